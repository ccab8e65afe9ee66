//! What one workload, one agent or many requests cannot do to the updates of others.

use super::*;
use crate::limits::{UPDATES_ENDED, UPDATES_ENDED_BYTES, UPDATES_OPEN, UPDATES_OPEN_OF_WORKLOADS};
use crate::tests::update;
use ankaios_model::messages::RequestContent;

/// A workload that may write these fields.
pub(crate) fn with_rights(name: &str, masks: &str) -> String {
    let rules = format!(
        "allowRules: [{{ type: StateRule, operation: ReadWrite, filterMasks: [{masks}] }}]"
    );
    workload(
        name,
        "1",
        "",
        &format!(", controlInterfaceAccess: {{ {rules} }}"),
    )
}

/// What a workload is answered that asks for these workloads.
pub(crate) fn ask(rig: &mut Rig, id: &str, workloads: &[&str]) -> String {
    let names = workloads
        .iter()
        .map(|entry| entry.split(':').next().unwrap());
    let masks: Vec<String> = names
        .map(|name| format!("desiredState.workloads.{name}"))
        .collect();
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
        workloads.join(", ")
    );
    ask_for(rig, id, update(&state, &masks))
}

/// What a workload is answered.
pub(crate) fn ask_for(rig: &mut Rig, id: &str, content: RequestContent) -> String {
    rig.cluster.take_all();
    rig.cluster.send_request(rig.a, id, content);
    format!("{:?}", rig.cluster.take(rig.a))
}

/// The rollback after its failure would restore workloads that it must not write.
#[test]
fn a_workload_joins_no_update_of_what_it_may_not_write() {
    let user = with_rights("user", "'desiredState.workloads.mine'");
    let mut rig = Rig::new(&[db("1"), user, workload("mine", "1", "", "")]);
    rig.apply(&[&db("2"), &workload("mine", "2", "", "")])
        .unwrap();
    let mine = workload("mine", "3", ROLLBACK, "");
    let answer = ask(&mut rig, "user@1", &[&mine]);
    assert!(
        answer.contains("it would become a part of update 1"),
        "{answer}"
    );
    assert_eq!(
        (rig.phases(), rig.desired()[0].as_str()),
        (vec!["1 TRIAL".to_owned()], "db 2")
    );
    rig.apply(&[&mine]).unwrap();
    assert_eq!(rig.phases(), ["1 REPLACED", "2 TRIAL"], "a commander may");
}

#[test]
fn a_workload_goes_on_with_an_update_of_its_own() {
    let user = with_rights("user", "'desiredState.workloads.mine'");
    let mut rig = Rig::new(&[user, workload("mine", "1", "", "")]);
    for image in ["2", "3"] {
        let answer = ask(
            &mut rig,
            "user@1",
            &[&workload("mine", image, ROLLBACK, "")],
        );
        assert!(answer.contains("UpdateStateSuccess"), "{answer}");
    }
    assert_eq!(rig.phases(), ["1 REPLACED", "2 TRIAL"]);
}

#[test]
fn updates_of_workloads_leave_places_to_commanders() {
    let mut rig = Rig::new(&[with_rights("user", "'*'")]);
    rig.apply(&["far: { agent: absent, runtime: podman, runtimeConfig: '{ image: 1, lifecycle: { update: {} } }' }"])
        .unwrap();
    let of_user = |number: usize| workload(&format!("u{number:02}"), "1", "{}", "");
    for number in 0..UPDATES_OPEN_OF_WORKLOADS {
        let answer = ask(&mut rig, "user@1", &[&of_user(number)]);
        assert!(answer.contains("UpdateStateSuccess"), "{answer}");
    }
    let answer = ask(&mut rig, "user@1", &[&of_user(99)]);
    assert!(answer.contains("guarded updates are open"), "{answer}");
    for number in UPDATES_OPEN_OF_WORKLOADS + 1..UPDATES_OPEN {
        rig.apply(&[&workload(&format!("c{number}"), "1", "{}", "")])
            .unwrap();
    }
    assert_eq!(rig.read(1, "phase"), "TRIAL", "nobody had to make room");
}

#[test]
fn whoever_fills_all_places_can_be_deleted() {
    let mut rig = Rig::new(&[workload("boss", "1", "", "")]);
    rig.cluster
        .server
        .set_update_on_failure(OnFailure::Rollback);
    for number in 0..UPDATES_OPEN {
        rig.apply(&[&workload(&format!("w{number}"), "1", "", "")])
            .unwrap();
    }
    assert!(rig.apply(&[&workload("boss", "2", "", "")]).is_err());
    rig.apply(&["boss: ~"]).unwrap();
    assert!(
        !rig.desired()
            .iter()
            .any(|desired| desired.starts_with("boss"))
    );
}

/// As of a manifest that is applied again and again while a node sleeps.
#[test]
fn replaced_updates_hold_no_memory_and_displace_no_other() {
    let many: Vec<String> = (0..200)
        .map(|number| workload(&format!("m{number}"), "1", "{}", ""))
        .collect();
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    rig.apply(&many).unwrap();
    let size = |rig: &Rig| {
        serde_json::to_string(&*rig.cluster.server.stored().updates.unwrap().list[0].update)
            .unwrap()
            .len()
    };
    let before = size(&rig);
    for image in 2..2 * UPDATES_ENDED {
        rig.apply(&[&workload("m0", &image.to_string(), "{}", "")])
            .unwrap();
    }
    let updates = rig.cluster.server.stored().updates.unwrap().list;
    let stored: usize = updates
        .iter()
        .map(|stored| serde_json::to_string(&*stored.update).unwrap().len())
        .sum();
    assert!(
        stored < before + before / 2,
        "{stored} bytes, of which the open one has {before}"
    );
    assert!(
        rig.apply(&[&db("2")])
            .unwrap_err()
            .contains("it is the same as update 1"),
        "this one is still known"
    );
}

#[test]
fn what_is_kept_of_ended_updates_is_bounded_with_names_and_all() {
    let mut rig = Rig::new(&[]);
    let long = "x".repeat(150);
    for round in 0..UPDATES_ENDED {
        let entry = |number| {
            workload(
                &format!("w{number}"),
                &format!("{round}{long}"),
                "{ healthyMs: 0 }",
                "",
            )
        };
        let entries: Vec<String> = (0..400).map(entry).collect();
        rig.apply(&entries.iter().map(String::as_str).collect::<Vec<_>>())
            .unwrap();
        let new: Vec<InstanceName> = rig
            .cluster
            .server
            .view()
            .effective
            .values()
            .map(|added| added.instance.clone())
            .collect();
        new.iter()
            .for_each(|instance| rig.report(instance, Phase::Removed));
        new.iter()
            .for_each(|instance| rig.report(instance, Phase::Running));
    }
    let updates = rig.cluster.server.stored().updates.unwrap().list;
    assert_eq!(updates.len(), UPDATES_ENDED);
    let stored: usize = updates
        .iter()
        .map(|stored| serde_json::to_string(&*stored.update).unwrap().len())
        .sum();
    assert!(
        stored < UPDATES_ENDED_BYTES + UPDATES_ENDED * 1024,
        "{stored} bytes"
    );
}

/// A sleeping node is no reason to take its new workload away.
#[test]
fn start_of_the_server_is_a_loss_once_an_agent_was_sent_a_part() {
    let mut rig = Rig::new(&[]);
    let far = "far: { agent: B, runtime: podman, runtimeConfig: '{ image: 1, lifecycle: { update: { onFailure: ROLLBACK } } }' }";
    rig.apply(&[far]).unwrap();
    for _ in 0..4 {
        restarts::restart(&mut rig);
        assert_eq!(
            (rig.read(1, "phase"), rig.read(1, "losses")),
            ("TRIAL".to_owned(), "0".to_owned())
        );
    }
    rig.writes();
    rig.cluster.agent("B");
    assert_eq!(rig.writes(), 1);
    for _ in 0..3 {
        assert_eq!(rig.read(1, "phase"), "TRIAL");
        restarts::restart(&mut rig);
    }
    assert_eq!(rig.read(1, "phase"), "UNDONE");
}

/// Ends as often as there is room for ended updates, and more: each update of `mine` fails and is
/// undone.
fn fail_again_and_again(rig: &mut Rig, user: &str, mine: &str) {
    for number in 0..2 * UPDATES_ENDED {
        let image = format!(
            "{number}{}",
            "x".repeat(UPDATES_ENDED_BYTES / UPDATES_ENDED)
        );
        let answer = ask(
            rig,
            &format!("{user}@1"),
            &[&workload(mine, &image, ROLLBACK, "")],
        );
        assert!(answer.contains("UpdateStateSuccess"), "{answer}");
        rig.report(
            &instance(mine, &image, ROLLBACK),
            Phase::PendingStartingFailed,
        );
        let kept = workload(mine, &image, "{ stage: NONE }", ""); // Its way back is as large.
        assert!(ask(rig, &format!("{user}@1"), &[&kept]).contains("UpdateStateSuccess"));
        rig.report(
            &instance(mine, &image, "{ stage: NONE }"),
            Phase::PendingStartingFailed,
        );
    }
}

#[test]
fn updates_of_a_workload_displace_only_its_own_ended_ones() {
    let users = ["user", "other"].map(|name| with_rights(name, "'desiredState.workloads.*'"));
    let mut rig = Rig::new(
        &[
            &users[..],
            &[
                db("1"),
                workload("a", "1", "", ""),
                workload("b", "1", "", ""),
            ],
        ]
        .concat(),
    );
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    let b = workload("b", "2", ROLLBACK, "");
    ask(&mut rig, "other@1", &[&b]);
    rig.report(&instance("b", "2", ROLLBACK), Phase::PendingStartingFailed);
    fail_again_and_again(&mut rig, "user", "a");
    for _ in 0..2 {
        assert!(
            rig.apply(&[&db("2")])
                .unwrap_err()
                .contains("it is the same as update 1, which was rolled back")
        );
        assert!(rig.read(1, "before").contains("image: 1"), "the way back");
        let answer = ask(&mut rig, "other@1", &[&b]);
        assert!(
            answer.contains("it is the same as update 2, which was rolled back"),
            "{answer}"
        );
        assert_eq!(rig.phases().len(), 1 + UPDATES_ENDED, "one of a commander");
        restarts::restart(&mut rig);
    }
}

/// A single change of a workload that was made as large as all room together.
#[test]
fn a_large_update_took_the_way_back_of_all_others() {
    let users = ["user", "other"].map(|name| with_rights(name, "'desiredState.workloads.*'"));
    let mut rig = Rig::new(
        &[
            &users[..],
            &[
                db("1"),
                workload("a", "1", "", ""),
                workload("b", "1", "", ""),
            ],
        ]
        .concat(),
    );
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    ask(&mut rig, "other@1", &[&workload("b", "2", ROLLBACK, "")]);
    rig.report(&instance("b", "2", ROLLBACK), Phase::PendingStartingFailed);
    let large = "x".repeat(UPDATES_ENDED_BYTES);
    ask(&mut rig, "user@1", &[&workload("a", &large, "", "")]);
    ask(&mut rig, "user@1", &[&workload("a", "2", ROLLBACK, "")]);
    rig.report(&instance("a", "2", ROLLBACK), Phase::PendingStartingFailed);
    assert_eq!(rig.phases(), ["1 UNDONE", "2 UNDONE", "3 UNDONE"]);
    // A request that corrects it has no share in that either.
    rig.apply(&[&workload("a", "3", ROLLBACK, "")]).unwrap();
    rig.report(&instance("a", "3", ROLLBACK), Phase::PendingStartingFailed);
    for number in [1, 2] {
        assert!(
            rig.read(number, "before").contains("image: 1"),
            "update {number}"
        );
    }
}

#[test]
fn ended_updates_may_fill_their_bytes_to_the_last_one() {
    let ended = |length: usize| {
        let image = "x".repeat(length);
        let mut rig = Rig::new(&[workload("a", &image, "", "")]);
        rig.apply(&[&workload("a", "2", ROLLBACK, "")]).unwrap();
        rig.report(&instance("a", "2", ROLLBACK), Phase::PendingStartingFailed);
        assert_eq!(rig.phases(), ["1 UNDONE"]);
        let ended = &rig.cluster.server.rollouts.ended[0];
        (ended.bytes, ended.record.has_lost_way_back)
    };
    let start = UPDATES_ENDED_BYTES / 2;
    let (bytes, _) = ended(start);
    let fits = start + UPDATES_ENDED_BYTES - bytes;
    assert_eq!(ended(fits), (UPDATES_ENDED_BYTES, false));
    let (_, has_lost_way_back) = ended(fits + 1);
    assert!(has_lost_way_back);
}
