//! Guarded updates of a server with modes.

use super::*;
use crate::settings::ModeSettings;
use crate::tests::desired;
use ankaios_model::messages::PreparedInstance;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::ConfigItem;

const DRIVE: &str = ", tags: { modes: drive }";
const PARK: &str = ", tags: { modes: park }";
const ESSENTIAL: &str = ", tags: { modes: drive, essential: 'true' }";

/// A server in the mode `drive`.
fn rig(on_failure: Option<&str>, workloads: &[String], capabilities: AgentCapabilities) -> Rig {
    let mut cluster = Cluster::default();
    let on_failure = on_failure.map(str::to_owned);
    cluster.server.set_modes(ModeSettings {
        config_item: "mode".to_owned(),
        on_failure,
    });
    let workloads = workloads.join(", ");
    let manifest =
        format!("{{ apiVersion: v1, configs: {{ mode: drive }}, workloads: {{ {workloads} }} }}");
    cluster.server.start_with(desired(&manifest)).unwrap();
    Rig::of(cluster, capabilities)
}

fn one(name: &str, image: &str, rest: &str) -> String {
    workload(name, image, ROLLBACK, rest)
}

impl Rig {
    fn switch(&mut self, mode: &str) {
        let state =
            format!("{{ desiredState: {{ apiVersion: v1, configs: {{ mode: {mode} }} }} }}");
        self.cluster
            .update(&state, &["desiredState.configs.mode"])
            .unwrap();
    }

    fn mode(&self) -> Option<&ConfigItem> {
        self.cluster.server.view().desired.configs.get("mode")
    }

    fn fail(&mut self, name: &str, image: &str) {
        self.report_info(
            &instance(name, image, ROLLBACK),
            Phase::PendingStartingFailed,
            "No more retries: x",
        );
    }
}

fn text(mode: &str) -> ConfigItem {
    ConfigItem::Text(mode.to_owned())
}

#[test]
fn what_is_outside_of_the_mode_is_not_judged_and_delays_no_end() {
    let mut rig = rig(
        None,
        &[one("db", "1", DRIVE), one("map", "1", PARK)],
        AgentCapabilities::default(),
    );
    rig.apply(&[&one("db", "2", DRIVE), &one("map", "2", PARK)])
        .unwrap();
    assert_eq!(
        (rig.phases(), rig.read(1, "waitsFor")),
        (vec!["1 TRIAL".to_owned()], r#"["db"]"#.to_owned())
    );
    rig.switch("park");
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

#[test]
fn rollback_restores_workloads_outside_and_keeps_the_mode() {
    let mut rig = rig(
        None,
        &[one("db", "1", DRIVE), one("map", "1", PARK)],
        AgentCapabilities::default(),
    );
    rig.apply(&[&one("db", "2", DRIVE), &one("map", "2", PARK)])
        .unwrap();
    rig.cluster.take_all();
    rig.fail("db", "2");
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 UNDONE".to_owned()],
            vec!["db 1".to_owned(), "map 1".to_owned()]
        )
    );
    assert_eq!(
        (rig.plan().0, rig.mode()),
        (vec!["db".to_owned()], Some(&text("drive")))
    );
    rig.switch("park");
    let map = instance("map", "1", ROLLBACK);
    assert!(
        rig.cluster.server.updates.workloads().is_wanted(&map),
        "what was put back comes with its mode"
    );
}

#[test]
fn a_request_that_also_switches_is_undone_without_the_switch() {
    let mut rig = rig(None, &[one("db", "1", "")], AgentCapabilities::default());
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, configs: {{ mode: park }}, workloads: {{ {} }} }} }}",
        one("db", "2", "")
    );
    rig.cluster
        .update(
            &state,
            &["desiredState.configs.mode", "desiredState.workloads.db"],
        )
        .unwrap();
    rig.fail("db", "2");
    assert_eq!(
        (rig.desired(), rig.mode()),
        (vec!["db 1".to_owned()], Some(&text("park")))
    );
    assert!(
        !rig.cluster.read(&["updates"]).contains("\"mode\""),
        "it is no part of the update"
    );
}

#[test]
fn a_way_back_that_modes_do_not_allow_any_more_is_stuck() {
    let mut rig = rig(None, &[one("db", "1", DRIVE)], AgentCapabilities::default());
    rig.apply(&[&one("db", "2", "")]).unwrap();
    rig.cluster
        .update(
            "{ desiredState: { apiVersion: v1 } }",
            &["desiredState.configs.mode"],
        )
        .unwrap();
    rig.fail("db", "2");
    assert_eq!(
        (rig.phases(), rig.desired()),
        (vec!["1 STUCK".to_owned()], vec!["db 2".to_owned()])
    );
    let why = rig.read(1, "reason");
    assert!(
        why.contains("Workload 'db' has the tag 'modes', but config item 'mode' does not exist"),
        "{why}"
    );
}

#[test]
fn a_new_instance_outside_of_the_mode_is_not_staged() {
    let mut rig = rig(
        None,
        &[one("map", "1", PARK), one("db", "1", DRIVE)],
        PREPARES,
    );
    rig.apply(&[&one("map", "2", PARK)]).unwrap();
    rig.apply(&[&one("db", "2", PARK)]).unwrap();
    assert_eq!(rig.phases(), ["1 GOOD", "2 GOOD"]);
    assert!(!rig.cluster.take(rig.a).iter().any(is_prepare));
}

/// With other tags it is the same instance, and would stop.
#[test]
fn tags_that_leave_the_mode_wait_for_the_condition() {
    const WHEN: &str = "{ when: { pathMissing: /lock } }";
    let nav = |tags| workload("nav", "1", WHEN, tags);
    let mut rig = rig(None, &[nav(DRIVE)], PREPARES);
    let report = |unmet: Option<&str>| PreparedInstance {
        instance: instance("nav", "1", WHEN),
        level: Some(PrepareLevel::Image),
        reason: None,
        tries: 0,
        is_final: false,
        unmet: unmet.map(str::to_owned),
    };
    for (tags, is_active) in [(PARK, false), (DRIVE, true)] {
        rig.apply(&[&nav(tags)]).unwrap();
        rig.cluster.send(
            rig.a,
            ToServer::Prepared(vec![report(Some("/lock exists"))]),
        );
        let sent = rig.cluster.take(rig.a);
        assert!(
            !sent
                .iter()
                .any(|message| matches!(message, FromServer::UpdateWorkload(_))),
            "{tags}: {sent:?}"
        );
        assert_eq!(
            rig.phases().pop().map(|mut it| it.split_off(2)),
            Some("STAGING".to_owned()),
            "{tags}"
        );
        rig.cluster
            .send(rig.a, ToServer::Prepared(vec![report(None)]));
        assert_eq!(
            rig.cluster
                .server
                .updates
                .workloads()
                .is_wanted(&report(None).instance),
            is_active,
            "{tags}"
        );
        assert_eq!(rig.plan().1.is_empty(), is_active, "{tags}");
        rig.report(&report(None).instance, Phase::Removed);
    }
}

/// Seed 880010497 of the simulation: it was sent to its agent by the switch and deleted at once,
/// and what it needed to run waited for its end.
#[test]
fn workload_deleted_with_a_mode_switch_is_not_started_by_it() {
    let mut rig = rig(
        None,
        &[one("db", "1", ""), workload("map", "1", "", PARK)],
        PREPARES,
    );
    rig.apply(&[&one("db", "2", ""), &workload("new", "1", "", "")])
        .unwrap();
    assert_eq!(rig.phases(), ["1 STAGING"]);
    rig.cluster.take_all();
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, configs: {{ mode: park }}, workloads: {{ {} }} }} }}",
        one("db", "1", "")
    );
    let masks = [
        "desiredState.configs.mode",
        "desiredState.workloads.db",
        "desiredState.workloads.map",
    ];
    rig.cluster.update(&state, &masks).unwrap(); // Nothing is left to be staged.
    assert_eq!(
        (rig.phases().pop(), rig.plan()),
        (Some("2 TRIAL".to_owned()), (vec!["new".to_owned()], vec![]))
    );
}

/// The failure of an essential workload is one of the update first; once that is undone it counts.
#[test]
fn a_failure_that_undoes_an_update_does_not_switch_the_mode() {
    let mut rig = rig(
        Some("limp"),
        &[one("db", "1", ESSENTIAL)],
        AgentCapabilities::default(),
    );
    rig.apply(&[&one("db", "2", ESSENTIAL)]).unwrap();
    rig.report(&instance("db", "1", ROLLBACK), Phase::Removed);
    rig.fail("db", "2");
    assert_eq!(
        (rig.phases(), rig.mode()),
        (vec!["1 UNDONE".to_owned()], Some(&text("drive")))
    );
    rig.report(&instance("db", "2", ROLLBACK), Phase::Removed);
    rig.fail("db", "1");
    assert_eq!(rig.mode(), Some(&text("limp")));
}

#[test]
fn a_failure_that_undoes_nothing_switches_the_mode() {
    let keep = |image: &str| workload("db", image, "{}", ESSENTIAL);
    let mut kept = rig(Some("limp"), &[keep("1")], AgentCapabilities::default());
    kept.apply(&[&keep("2")]).unwrap();
    kept.report_info(
        &instance("db", "2", "{}"),
        Phase::PendingStartingFailed,
        "No more retries: x",
    );
    assert_eq!(kept.mode(), Some(&text("limp")));

    let needs_user = format!("{ESSENTIAL}, dependencies: {{ user: ADD_COND_RUNNING }}");
    let user = |rest: &str| workload("user", "1", "", rest);
    let before = [one("db", "1", &needs_user), user("")];
    let mut stuck = rig(Some("limp"), &before, AgentCapabilities::default());
    stuck.apply(&[&one("db", "2", ESSENTIAL)]).unwrap();
    stuck.apply(&[&user(NEEDS_DB)]).unwrap(); // From now on what was before would be a circle.
    stuck.fail("db", "2");
    assert_eq!(
        (stuck.phases(), stuck.mode()),
        (vec!["1 STUCK".to_owned()], Some(&text("limp")))
    );
}
