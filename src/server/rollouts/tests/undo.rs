//! Updates that fail are put back as a whole, and the same is refused.

use super::*;
use ankaios_fakes::log_lines::lines_of;
use ankaios_model::workload::ConfigItem;

// [utest->swdd~server-undoes-failed-updates~1]
// [utest->swdd~server-remembers-undone-updates~1]
#[test]
fn failed_update_is_rolled_back_and_refused_until_forgotten() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    let both = [db("2"), workload("web", "2", "", NEEDS_DB)];
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    rig.apply(&both).unwrap();
    rig.cluster.take_all();
    rig.writes();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report_info(
        &db_instance("2"),
        Phase::PendingStartingFailed,
        "No more retries: no such image",
    );
    let why = "db: Pending(StartingFailed): 'No more retries: no such image'";
    let (added, deleted) = rig.plan();
    assert_eq!(added, ["db", "web"]);
    assert_eq!(
        deleted,
        [
            db_instance("2").to_string(),
            instance("web", "2", "").to_string()
        ]
    );
    assert_eq!(rig.desired(), ["db 1", "web 1"]);
    assert_eq!(
        (rig.phases(), rig.read(1, "reason")),
        (vec!["1 UNDONE".to_owned()], why.to_owned())
    );
    assert_eq!(rig.read(1, "cause"), "UNHEALTHY");
    assert_eq!(
        (rig.writes(), rig.cluster.server.due()),
        (1, None),
        "it is not judged"
    );
    rig.report_info(
        &db_instance("1"),
        Phase::PendingStartingFailed,
        "No more retries: x",
    );
    assert_eq!(
        (rig.phases().len(), rig.desired()),
        (1, vec!["db 1".to_owned(), "web 1".to_owned()])
    );

    let refused =
        format!("Update rejected: 'it is the same as update 1, which was rolled back: {why}'");
    assert_eq!(rig.apply(&both), Err(refused.clone()));
    assert_eq!((rig.phases().len(), rig.writes()), (1, 0));
    rig.apply(&[&db("3")]).unwrap();
    rig.apply(&[&db("1")]).unwrap();
    assert_eq!(rig.apply(&both), Err(refused), "still");
    let masks = [
        "updates.1",
        "desiredState.workloads.db",
        "desiredState.workloads.web",
    ];
    assert!(
        rig.apply_masks(&both, &["updates.1.phase"])
            .unwrap_err()
            .contains("Could not find field updates.1.phase")
    );
    rig.apply_masks(&both, &masks).unwrap();
    assert_eq!(rig.desired(), ["db 2", "web 2"]);
}

// [utest->swdd~metrics-file~1]
#[test]
fn outcomes_of_guarded_updates_are_counted() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.numbers(), ["updates_open 1"]);
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(rig.numbers(), ["updates_total{phase=\"UNDONE\"} 1"]);
    rig.apply(&[&db("3")]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("3"), Phase::Running);
    rig.wait(HEALTHY);
    let expected = [
        "updates_total{phase=\"GOOD\"} 1",
        "updates_total{phase=\"UNDONE\"} 1",
    ];
    assert_eq!(rig.numbers(), expected);
}

#[test]
fn a_dependent_that_the_update_does_not_touch_fails_it() {
    let mut rig = Rig::new(&[
        db("1"),
        workload("web", "1", "", NEEDS_DB),
        workload("ui", "1", "", ", dependencies: { web: ADD_COND_RUNNING }"),
    ]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    rig.report_info(
        &instance("ui", "1", ""),
        Phase::FailedExecFailed,
        "Exit code: '1'",
    );
    assert_eq!(
        rig.read(1, "reason"),
        "ui: Failed(ExecFailed): 'Exit code: '1''"
    );
    assert_eq!(
        (rig.desired(), rig.read(1, "phase")),
        (
            vec!["db 1".into(), "ui 1".into(), "web 1".into()],
            "UNDONE".into()
        )
    );
}

#[test]
fn unhealthy_update_is_rolled_back_at_its_deadline() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("1"), Phase::StoppingWaitingToStop);
    rig.wait(DEADLINE - Duration::from_millis(1));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    rig.wait(Duration::from_millis(1));
    assert_eq!(
        rig.read(1, "reason"),
        "db: not healthy within 120 s: waits for 'web' to stop"
    );
    assert_eq!(rig.read(1, "cause"), "AWAITS_DEPENDENTS");
    assert_eq!(rig.desired(), ["db 1", "web 1"]);
}

#[test]
fn additions_deletions_moves_and_configs_are_put_back() {
    let mut rig = Rig::new(&[
        db("1"),
        workload("gone", "1", "", ""),
        workload("moved", "1", "", ""),
    ]);
    rig.cluster
        .update(
            "{ desiredState: { apiVersion: v1, configs: { c: '1' } } }",
            &["desiredState.configs"],
        )
        .unwrap();
    let templated = ", configs: { c: c }".to_owned();
    rig.apply(&[&workload("t", "{{c}}", "", &templated)])
        .unwrap();
    let before = rig.cluster.server.view().desired.clone();
    let effective = rig.cluster.server.view().effective.clone();
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, configs: {{ c: '2', d: '3' }}, workloads: {{ {}, {}, {}, {} }} }} }}",
        db("2"),
        workload("new", "1", "", ""),
        workload("moved", "1", "", "").replace("agent: A", "agent: B"),
        workload("t", "{{c}}", "", &templated),
    );
    rig.cluster.update(&state, &[]).unwrap();
    assert_eq!(rig.read(1, "configs").matches("after").count(), 2);
    assert_eq!(
        rig.cluster.server.view().desired.configs["c"],
        ConfigItem::Text("2".to_owned())
    );
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(rig.read(1, "phase"), "UNDONE");
    assert_eq!(*rig.cluster.server.view().desired, before);
    assert_eq!(*rig.cluster.server.view().effective, effective);
}

#[test]
fn an_undo_asks_no_hook_and_puts_back_what_hooks_had_made() {
    let mut rig = Rig::new(&[db("1")]);
    rig.cluster.hook();
    let effective = rig.cluster.server.view().effective.clone();
    let commander = rig.cluster.commander();
    let masks = ["desiredState.workloads.db"];
    let state = format!(
        "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
        db("2")
    );
    rig.cluster
        .send_request(commander, "r", crate::tests::update(&state, &masks));
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (vec!["1 UNDONE".to_owned()], vec!["db 1".to_owned()])
    );
    assert_eq!(*rig.cluster.server.view().effective, effective);
    rig.cluster
        .send_request(commander, "r", crate::tests::update(&state, &masks));
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    let answer = format!("{:?}", rig.cluster.take(commander).pop());
    assert!(answer.contains("it is the same as update 1"), "{answer}");
}

#[test]
fn request_at_hooks_during_a_rollback_applies_after_it() {
    let mut rig = Rig::new(&[db("1")]);
    rig.cluster.hook();
    let commander = rig.cluster.commander();
    let send = |rig: &mut Rig, image: &str| {
        let state = format!(
            "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
            db(image)
        );
        let request = crate::tests::update(&state, &["desiredState.workloads.db"]);
        rig.cluster.send_request(commander, "r", request);
    };
    send(&mut rig, "2");
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    send(&mut rig, "3");
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(rig.desired(), ["db 1"]);
    rig.report(&db_instance("2"), Phase::Removed);
    rig.report(&db_instance("1"), Phase::Running);
    rig.cluster.take_all();
    while rig.cluster.asked().is_some() {}
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    let asked = rig
        .cluster
        .asked()
        .expect("they were asked about another state");
    assert_eq!(asked.deleted[0].instance, db_instance("1"));
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    assert_eq!(
        rig.plan(),
        (vec!["db".to_owned()], vec![db_instance("1").to_string()]),
        "what is there now ends"
    );
    assert_eq!(
        (rig.desired(), rig.phases()),
        (
            vec!["db 3".to_owned()],
            vec!["1 UNDONE".to_owned(), "2 TRIAL".to_owned()]
        )
    );
}

/// It was deleted when the request came, and a rollback restored it while hooks worked: it ran on
/// although no client wanted it.
#[test]
fn workload_restored_while_hooks_have_its_delete_ends() {
    let mut rig = Rig::new(&[db("1"), workload("old", "1", ROLLBACK, "")]);
    rig.cluster.hook();
    let commander = rig.cluster.commander();
    let send = |rig: &mut Rig, image: &str| {
        let state = format!(
            "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
            db(image)
        );
        rig.cluster
            .send_request(commander, "r", crate::tests::update(&state, &[]));
    };
    send(&mut rig, "2");
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    send(&mut rig, "3");
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(rig.desired(), ["db 1", "old 1"]);
    while rig.cluster.asked().is_some() {}
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    let asked = rig
        .cluster
        .asked()
        .expect("they were asked about another state");
    let deleted: Vec<&str> = asked
        .deleted
        .iter()
        .map(|deleted| &*deleted.instance.workload)
        .collect();
    assert_eq!(
        (deleted, names(&asked.added)),
        (vec!["db", "old"], vec!["db".to_owned()])
    );
    rig.cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    assert_eq!(rig.desired(), ["db 3"]);
}

#[test]
fn update_without_a_valid_way_back_is_stuck() {
    let needs = |name: &str| format!(", dependencies: {{ {name}: ADD_COND_FAILED }}");
    let old = workload("db", "1", ROLLBACK, &needs("web"));
    let mut rig = Rig::new(&[old, workload("web", "1", "", "")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&workload("web", "1", "", &needs("db"))])
        .unwrap(); // No cycle as long as the update stays.
    rig.cluster.take_all();
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 STUCK".to_owned()],
            vec!["db 2".to_owned(), "web 1".to_owned()]
        )
    );
    assert!(
        rig.read(1, "reason")
            .contains("cannot be rolled back: workload dependency 'db' is part of a cycle")
    );
    assert_eq!(rig.cluster.take(rig.a), []);
    assert_eq!(rig.cluster.server.due(), None);
}

#[test]
fn third_loss_of_an_agent_fails_the_update_unless_it_recovered() {
    let mut rig = Rig::new(&[
        db("1"),
        workload("web", "1", ROLLBACK, "").replace("agent: A", "agent: B"),
    ]);
    let lose = |rig: &mut Rig| {
        rig.report(&db_instance("2"), Phase::Running);
        rig.reconnect(AgentCapabilities::default());
    };
    rig.apply(&[
        &db("2"),
        &workload("new", "1", "", "").replace("agent: A", "agent: B"),
    ])
    .unwrap();
    lose(&mut rig);
    lose(&mut rig);
    assert_eq!(rig.read(1, "losses"), "2");
    rig.writes();
    rig.report(&db_instance("2"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(
        (rig.read(1, "losses"), rig.writes()),
        ("0".to_owned(), 1),
        "all that are there are healthy"
    );
    lose(&mut rig);
    lose(&mut rig);
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    lose(&mut rig);
    assert_eq!(rig.read(1, "reason"), "db: 3 losses of agent 'A'");
    assert_eq!(rig.desired(), ["db 1", "web 1"]);
}

#[test]
fn command_lines_of_an_earlier_version_end_with_the_failure() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    let cli = cli(&mut rig);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("1"), Phase::StoppingWaitingToStop);
    rig.cluster.take_all();
    rig.wait(DEADLINE);
    let failed =
        "Failed(ExecFailed): 'rolled back: db: not healthy within 120 s: waits for 'web' to stop'";
    let told: Vec<String> = rig
        .cluster
        .take(cli)
        .into_iter()
        .flat_map(|message| {
            if let FromServer::WorkloadStates(states) = message {
                states
            } else {
                vec![]
            }
        })
        .map(|WorkloadState { instance, state }| {
            format!(
                "{} {state}",
                if instance == db_instance("1") {
                    "old"
                } else {
                    "new"
                }
            )
        })
        .collect();
    let mut expected = vec![
        format!("new {failed}"),
        "old Removed".to_owned(),
        "old Stopping(WaitingToStop)".to_owned(),
    ];
    assert!(told.len() >= expected.len(), "{told:?}");
    expected.retain(|line| !told.contains(line));
    assert!(expected.is_empty(), "{told:?}");
    let agent = format!("{:?}", rig.cluster.take(rig.a));
    assert!(
        !agent.contains("rolled back"),
        "no agent receives it: {agent}"
    );
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial)",
        "it is stored nowhere"
    );
}

#[test]
fn command_lines_are_told_no_failure_of_what_has_a_result() {
    let nowhere = |image| workload("idle", image, "", "").replace("agent: A", "agent: ''");
    let web = |image| workload("web", image, "", "");
    let mut rig = Rig::new(&[db("1"), web("1"), nowhere("1")]);
    let cli = cli(&mut rig);
    rig.apply(&[&db("2"), &web("2"), &nowhere("2")]).unwrap();
    rig.report(&instance("web", "2", ""), Phase::Running);
    rig.cluster.take_all();
    rig.wait(DEADLINE);
    assert_eq!(rig.read(1, "phase"), "UNDONE");
    let mut failed = Vec::new();
    for message in rig.cluster.take(cli) {
        let FromServer::WorkloadStates(states) = message else {
            continue;
        };
        for WorkloadState { instance, state } in states {
            if state.additional_info.starts_with("rolled back: ") {
                failed.push(instance);
            }
        }
    }
    assert_eq!(failed, [db_instance("2")]);
}

/// What ran must run again. What did not run and is blocked now is not waited for.
#[test]
fn blocked_workload_is_awaited_if_it_ran_at_the_switch() {
    for (phase, end) in [(Phase::Running, "UNDONE"), (Phase::PendingStarting, "GOOD")] {
        let mut rig = Rig::new(&[db("1")]);
        rig.report(&db_instance("1"), phase);
        rig.apply(&[&db("2")]).unwrap();
        rig.report(&db_instance("1"), Phase::Removed);
        let blocked = "precondition: /lock exists";
        rig.report_info(&db_instance("2"), Phase::PendingWaitingToStart, blocked);
        rig.wait(DEADLINE + HEALTHY);
        assert_eq!(rig.read(1, "phase"), end, "{phase}");
    }
}

#[test]
fn the_same_change_from_another_state_is_another_update() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    rig.apply(&[&db("3")]).unwrap();
    rig.report(&db_instance("3"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 UNDONE", "2 GOOD"]);
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.phases(), ["1 UNDONE", "2 GOOD", "3 TRIAL"]);
}

#[test]
fn forgotten_update_may_be_made_any_number_of_times() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report_info(
        &db_instance("2"),
        Phase::PendingStartingFailed,
        "No more retries: x",
    );
    assert_eq!(rig.phases(), ["1 UNDONE"]);
    assert!(rig.apply(&[&db("2")]).is_err());
    let masks = ["updates.1", "desiredState.workloads.db"];
    rig.apply_masks(&[&db("2")], &masks).unwrap();
    rig.apply(&[&db("1")]).unwrap();
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.desired(), ["db 2"]);
}

#[test]
fn workload_of_an_update_is_read_without_internal_fields() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    let node = rig.update_node(1, "workloads.db");
    let keys: Vec<&str> = node.as_map().unwrap().keys().collect();
    assert!(!keys.is_empty());
    for key in keys {
        assert!(["after", "new", "old"].contains(&key), "{key}");
    }
}

#[test]
fn only_an_update_that_is_good_is_logged_as_healthy() {
    for is_healthy in [true, false] {
        let keep = |image| workload("db", image, "{ onFailure: KEEP }", "");
        let mut rig = Rig::new(&[keep("1")]);
        rig.apply(&[&keep("2")]).unwrap();
        let new = instance("db", "2", "{ onFailure: KEEP }");
        rig.report(&instance("db", "1", "{ onFailure: KEEP }"), Phase::Removed);
        if is_healthy {
            rig.report(&new, Phase::Running);
        }
        let lines = lines_of(|| rig.wait(DEADLINE));
        let phase = if is_healthy { "1 GOOD" } else { "1 KEPT" };
        assert_eq!(rig.phases(), [phase]);
        let has_passed = lines.iter().any(|line| line.contains("passed its health"));
        assert_eq!(has_passed, is_healthy, "{lines:?}");
    }
}

#[test]
fn agent_that_cannot_prepare_is_warned_of_once() {
    let when = "{ when: { pathMissing: /lock } }";
    let one = |image| workload("db", image, when, "");
    let mut rig = Rig::new(&[one("1")]);
    let lines = lines_of(|| {
        rig.apply(&[&one("2")]).unwrap();
        rig.apply(&[&one("3")]).unwrap();
    });
    let warnings = lines.iter().filter(|line| line.contains("cannot prepare"));
    assert_eq!(warnings.count(), 1, "{lines:?}");
}
