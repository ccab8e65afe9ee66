//! Guarded updates after a restart of the server.

use super::bounds::{ask, with_rights};
use super::*;
use crate::ServerLoop;
use crate::limits::UPDATES_OPEN_OF_WORKLOADS;
use crate::mutating_hooks::MutatingHooks;
use crate::state_store::{Stored, parse, text};
use ankaios_model::messages::PreparedInstance;
use ankaios_model::prepare_level::PrepareLevel;
use std::sync::Arc;

/// Kills the server, and starts the next one with the stored state.
pub(crate) fn restart(rig: &mut Rig) {
    let stored = parse(&text(&rig.cluster.server.stored()).unwrap()).unwrap();
    assert_eq!(
        stored,
        rig.cluster.server.stored(),
        "what is written is read"
    );
    let mut server = ServerLoop::new();
    server.set_clock(rig.clock.clone());
    server.start_again_with(stored).unwrap();
    let (mut store, writes) = StateStore::without_writer();
    server
        .take_unsaved()
        .into_iter()
        .for_each(|state| store.store(state));
    server.set_store(store);
    (rig.cluster, rig.stored) = (Cluster::default(), writes);
    rig.cluster.server = server;
    rig.a = rig.cluster.agent("A");
}

/// What hooks make of a workload may have been changed together with the server.
#[test]
fn update_that_hooks_change_at_the_start_is_staged_again() {
    let mut rig = Rig::with_agent(&[db("1")], PREPARES);
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.phases(), ["1 STAGING"]);
    let stored = rig.cluster.server.stored();
    let mut server = ServerLoop::new();
    server.set_clock(rig.clock.clone());
    server.set_hooks(MutatingHooks::answering(|mut plan| {
        plan.added
            .iter_mut()
            .for_each(|added| added.instance.id = "other".into());
        Ok(Some(plan))
    }));
    server.start_again_with(stored).unwrap();
    rig.cluster = Cluster::default();
    rig.cluster.server = server;
    rig.a = rig.cluster.agent_with("A", PREPARES);
    let other = InstanceName::with_id("db", "other", "A");
    let sent = rig.cluster.take(rig.a);
    assert!(
        sent.iter()
            .any(|sent| matches!(sent, FromServer::Prepare(list) if list[0].instance == other)),
        "{sent:?}"
    );
    let hello = |sent: &FromServer| matches!(sent, FromServer::ServerHello(all) if all[0].instance == db_instance("1"));
    assert!(sent.iter().any(hello), "{sent:?}");
    let ready = PreparedInstance {
        instance: other.clone(),
        level: Some(PrepareLevel::Create),
        ..Default::default()
    };
    rig.cluster.send(rig.a, ToServer::Prepared(vec![ready]));
    assert_eq!(
        (rig.phases(), rig.plan().1),
        (
            vec!["1 TRIAL".to_owned()],
            vec![db_instance("1").to_string()]
        )
    );
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&other, Phase::PendingStartingFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (vec!["1 UNDONE".to_owned()], vec!["db 1".to_owned()])
    );
    assert_eq!(rig.plan().1, [other.to_string()]);
    assert!(
        rig.cluster
            .server
            .updates
            .workloads()
            .is_wanted(&db_instance("1"))
    );
}

// [utest->swdd~server-keeps-guarded-updates~1]
#[test]
fn a_trial_goes_on_and_the_third_start_of_the_server_ends_it() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("2"), Phase::Running);
    for losses in 1..3 {
        restart(&mut rig);
        assert_eq!(
            (rig.read(1, "losses"), rig.writes()),
            (losses.to_string(), 1),
            "one write for each start"
        );
        assert_eq!(rig.desired(), ["db 2", "web 1"]);
        assert_eq!(
            rig.read(1, "waitsFor"),
            r#"["db","web"]"#,
            "the dependent as well"
        );
        rig.wait(DEADLINE - Duration::from_secs(1));
    }
    restart(&mut rig);
    assert_eq!(
        (rig.read(1, "phase"), rig.read(1, "reason")),
        ("UNDONE".into(), "db: 3 losses of the server".to_owned())
    );
    assert_eq!(
        (rig.desired(), rig.writes()),
        (vec!["db 1".to_owned(), "web 1".to_owned()], 1)
    );
    let hello = rig.cluster.take(rig.a).pop();
    assert!(
        matches!(&hello, Some(FromServer::ServerHello(added)) if added[0].instance == db_instance("1")),
        "{hello:?}"
    );
    restart(&mut rig);
    let error = rig.apply(&[&db("2")]).unwrap_err();
    assert!(
        error.contains("same as update 1, which was rolled back: db: 3 losses of the server"),
        "{error}"
    );
}

#[test]
fn a_trial_ends_well_after_a_restart_and_the_count_begins_anew() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    restart(&mut rig);
    rig.report(&db_instance("2"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(
        (rig.read(1, "phase"), rig.read(1, "losses")),
        ("GOOD".to_owned(), "0".to_owned())
    );
}

#[test]
fn a_failure_after_a_restart_rolls_back_what_is_made_of_configs() {
    let mut rig = Rig::new(&[db("1")]);
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, configs: {{ c: '2' }}, workloads: {{ {} }} }} }}",
        workload("db", "{{c}}", ROLLBACK, ", configs: { c: c }")
    );
    rig.cluster.update(&state, &[]).unwrap();
    let effective = rig.cluster.server.view().effective.clone();
    restart(&mut rig);
    assert_eq!(*rig.cluster.server.view().effective, effective);
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    let view = rig.cluster.server.view();
    assert!(view.desired.configs.is_empty() && view.effective["db"].instance == db_instance("1"));
}

#[test]
fn ended_updates_are_bounded_in_number_and_in_bytes() {
    let mut rig = Rig::new(&[]);
    for number in 0..20 {
        // Deleted while it is open, so it is over at once.
        let image = "x".repeat(100_000);
        rig.apply(&[&workload(
            &format!("w{number}"),
            &format!("{image}{number}"),
            "{}",
            "",
        )])
        .unwrap();
        rig.apply(&[&workload(
            &format!("w{number}"),
            &format!("{image}{number}b"),
            "{}",
            "",
        )])
        .unwrap();
        rig.apply(&[&format!("w{number}: ~")]).unwrap();
    }
    assert_eq!(rig.phases().len(), 16);
    let bytes = text(&rig.cluster.server.stored()).unwrap().len();
    assert!(bytes < 1_200_000, "{bytes}");
    restart(&mut rig);
    assert_eq!(rig.phases().len(), 16);
    rig.apply(&[&db("1")]).unwrap();
    assert_eq!(rig.read(41, "phase"), "TRIAL", "numbers go on");
}

#[test]
fn without_a_disk_updates_are_in_memory_only() {
    let mut cluster = Cluster::default();
    cluster
        .update(
            &format!(
                "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
                db("1")
            ),
            &[],
        )
        .unwrap();
    assert!(cluster.read(&["updates.1.keptIn"]).contains("MEMORY"));
}

#[test]
fn an_earlier_server_reads_the_state_and_ignores_the_updates() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    let written = text(&rig.cluster.server.stored()).unwrap();
    let body: Node = serde_json::from_str(written.lines().nth(1).unwrap()).unwrap();
    let desired = ankaios_model::complete_state::desired_state_from_node(&body).unwrap();
    assert_eq!(desired, *rig.cluster.server.view().desired);
    assert!(body.at(&["updates", "list"]).is_some());
}

/// The stored form of an earlier version, which has no requesters of updates.
fn of_earlier_version(mut stored: Stored) -> Stored {
    for update in stored
        .updates
        .iter_mut()
        .flat_map(|updates| &mut updates.list)
    {
        let entries = Arc::make_mut(&mut update.update).as_map_mut().unwrap();
        assert!(entries.remove("source").is_some());
        entries.remove("ofWorkload");
    }
    stored
}

#[test]
fn restart_keeps_that_a_workload_requested_an_open_update() {
    let mut rig = Rig::new(&[with_rights("user", "'*'")]);
    let of_user = |number: usize| workload(&format!("u{number:02}"), "1", "{}", "");
    for number in 0..UPDATES_OPEN_OF_WORKLOADS {
        ask(&mut rig, "user@1", &[&of_user(number)]);
    }
    assert_eq!(rig.phases().len(), UPDATES_OPEN_OF_WORKLOADS);
    restart(&mut rig);
    let answer = ask(&mut rig, "user@1", &[&of_user(99)]);
    assert!(answer.contains("guarded updates are open"), "{answer}");
    rig.apply(&[&db("1")]).unwrap();
    // An earlier version has not stored it: they count as those of a commander until they end.
    let mut server = ServerLoop::new();
    server
        .start_again_with(of_earlier_version(rig.cluster.server.stored()))
        .unwrap();
    assert_eq!(server.seen_updates().len(), UPDATES_OPEN_OF_WORKLOADS + 1);
}
