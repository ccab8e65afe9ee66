//! Plans to changes of targets: what a target does that meets an older one.

use super::*;
use crate::events::SchedulerEvent;
use crate::limits::LOAD_INTERVAL;
use crate::stepped_agent::{AgentRig as Rig, deleted_after, wanted_with};
use ankaios_fakes::fake_connector::{Call, FAILURE, FakeEngine, Fault};
use ankaios_model::messages::{FromServer, WorkloadPlan};
use ankaios_model::workload::Workload;
use std::sync::Arc;
use std::time::Duration;

impl Rig {
    /// An agent where these run already.
    fn running(workloads: &[AddedWorkload]) -> Self {
        let mut rig = Self::new().telling_configs();
        rig.change(workloads, &[]);
        rig.sent();
        rig.engine.take_calls();
        rig
    }

    fn loops(&mut self) -> usize {
        self.agent.loops.count()
    }
}

fn wanted(name: &str, config: &str) -> AddedWorkload {
    needing(name, config, None)
}

/// A workload that needs another one to run.
fn needing(name: &str, config: &str, other: impl Into<Option<&'static str>>) -> AddedWorkload {
    wanted_with(name, config, |workload| {
        workload.dependencies.extend(
            other
                .into()
                .map(|other| (other.to_owned(), AddCondition::Running)),
        );
    })
}

/// A delete that waits for another workload to be gone.
fn deleted(name: &str, config: &str, user: impl Into<Option<&'static str>>) -> DeletedWorkload {
    deleted_after(
        &InstanceName::new(name, config, "agent_A"),
        user.into().as_slice(),
    )
}

fn sequence(parts: &[&str]) -> Vec<String> {
    parts
        .iter()
        .map(|part| {
            let (instance, state) = part.split_once(' ').unwrap();
            let text = match state {
                "starting" => "Pending(Starting): 'Triggered at runtime.'",
                "waiting" => "Pending(WaitingToStart)",
                "waiting-for-other" => "Pending(WaitingToStart): 'waits for 'other' to run'",
                "running" => "Running(Ok)",
                "waiting-to-stop" => "Stopping(WaitingToStop)",
                "stopping" => "Stopping(RequestedAtRuntime)",
                "removed" => "Removed",
                other => other,
            };
            format!("{instance} {text}")
        })
        .collect()
}

// [utest->swdd~agent-transforms-update-workload-message-to-workload-operations~1]
// [utest->swdd~agent-handle-deleted-before-added-workloads~1]
// [utest->swdd~agent-deletes-workload~1]
// [utest->swdd~agent-updates-deleted-and-added-workloads~1]
// [utest->swdd~agent-added-creates-workload~1]
#[test]
fn a_plan_deletes_updates_and_creates_with_the_deletes_first() {
    let mut rig = Rig::running(&[wanted("gone", "a"), wanted("updated", "a")]);
    let deletes = [deleted("gone", "a", None), deleted("updated", "a", None)];
    rig.change(&[wanted("created", "a"), wanted("updated", "b")], &deletes);
    let calls = [
        "delete gone",
        "delete updated",
        "create updated",
        "create created",
    ];
    assert_eq!(rig.engine.take_calls(), calls);
}

// Without its control loop, a start under way would be unknown, and the workload started twice.
#[test]
fn idle_loop_with_a_newer_target_is_kept() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    let plan = |added: &[AddedWorkload], deleted: &[DeletedWorkload]| {
        let (added, deleted) = (added.to_vec(), deleted.to_vec());
        SchedulerEvent::Server(FromServer::UpdateWorkload(WorkloadPlan { added, deleted }))
    };
    let agent = &mut rig.agent;
    agent
        .scheduler
        .on_event(plan(&[], &[deleted("w", "a", None)]));
    while agent.loops.step() {}
    // The loop is idle, and its status waits behind this plan.
    agent.scheduler.on_event(plan(&[wanted("w", "b")], &[]));
    while agent.loops.step() {}
    agent.run();
    assert_eq!(rig.engine.take_calls(), ["delete w", "create w"]);
    assert_eq!(rig.sent().last().unwrap(), "w:b Running(Ok)");
}

// [utest->swdd~agent-executes-create-workload-operation~1]
// [utest->swdd~agent-executes-update-workload-operation~1]
// [utest->swdd~agent-executes-delete-workload-operation~1]
// [utest->swdd~agent-create-workload~1]
// [utest->swdd~agent-stores-running-workload~1]
// [utest->swdd~agent-workload-obj-update-command~1]
// [utest->swdd~agent-workload-obj-delete-command~1]
// [utest->swdd~agent-handles-new-workload-operations]
#[test]
fn one_workload_from_create_over_update_to_delete() {
    let mut rig = Rig::new().telling_configs();
    rig.change(&[wanted("w", "a")], &[]);
    assert_eq!(rig.sent(), sequence(&["w:a starting", "w:a running"]));
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a stopping", "w:a removed", "w:b starting", "w:b running"])
    );
    rig.change(&[], &[deleted("w", "b", None)]);
    assert_eq!(rig.sent(), sequence(&["w:b stopping", "w:b removed"]));
    assert_eq!(
        rig.engine.take_calls(),
        ["create w", "delete w", "create w", "delete w"]
    );
    assert_eq!(rig.loops(), 0);
    rig.change(&[wanted("w", "a")], &[]);
    assert_eq!(
        rig.engine.only().1.instance,
        wanted("w", "a").instance,
        "a name may come back"
    );
}

// [utest->swdd~agent-executes-update-delete-only-workload-operation~1]
// [utest->swdd~agent-handles-update-with-fulfilled-delete~1]
// [utest->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
#[test]
fn update_that_must_wait_deletes_first_and_reports_once() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b waiting-for-other", "w:a stopping", "w:a removed"])
    );
    rig.change(&[wanted("other", "a")], &[]);
    assert_eq!(
        rig.sent(),
        sequence(&[
            "other:a starting",
            "other:a running",
            "w:b starting",
            "w:b running"
        ])
    );
    assert_eq!(
        rig.engine.take_calls(),
        ["delete w", "create other", "create w"]
    );
}

/// The one was started beside the old container of the other, which was about to go, so both were
/// starting at the same time.
#[test]
fn replaced_dependents_start_after_their_replaced_dependency() {
    for (needed, user) in [("needed", "user"), ("needed", "a-user")] {
        let mut rig = Rig::running(&[wanted(needed, "a"), needing(user, "a", needed)]);
        let mut deletes = [deleted(needed, "a", user), deleted(user, "a", None)];
        deletes.sort_by_key(|deleted| deleted.instance.workload.clone());
        rig.change(&[needing(user, "b", needed), wanted(needed, "b")], &deletes);
        let states = rig.sent();
        let place = |state: &str| {
            states
                .iter()
                .position(|sent| *sent == sequence(&[state])[0])
        };
        let [runs, starts] = [format!("{needed}:b running"), format!("{user}:b starting")]
            .map(|state| place(&state));
        assert!(runs.is_some() && runs < starts, "{states:?}");
        let calls = [
            ("delete", user),
            ("delete", needed),
            ("create", needed),
            ("create", user),
        ];
        assert_eq!(
            rig.engine.take_calls(),
            calls.map(|(call, name)| format!("{call} {name}"))
        );
    }
}

#[test]
fn same_instance_that_waits_after_its_removal_is_shown() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[needing("w", "a", "other")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a stopping", "w:a removed", "w:a waiting-for-other"])
    );
}

/// Seed 52498 of the simulation: the server reads "removed" when it wants the instance again
/// already.
#[test]
fn instance_that_waits_again_after_its_end_is_shown_again() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a waiting-to-stop", "w:b waiting"])
    );
    rig.change(&[wanted("w", "c")], &[deleted("w", "b", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:a waiting-to-stop", "w:c waiting"])
    );
    rig.change(&[wanted("w", "b")], &[deleted("w", "c", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:c removed", "w:a waiting-to-stop", "w:b waiting"])
    );
    rig.change(&[], &[deleted("user", "a", None)]);
    let end = [
        "user:a stopping",
        "user:a removed",
        "w:a stopping",
        "w:a removed",
        "w:b starting",
        "w:b running",
    ];
    assert_eq!(rig.sent(), sequence(&end));
}

// [utest->swdd~agent-update-on-add-known-workload~1]
#[test]
fn returning_instance_that_is_replaced_is_reported_removed() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[needing("w", "a", "other")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent().last().unwrap(),
        "w:a Pending(WaitingToStart): 'waits for 'other' to run'"
    );
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a removed", "w:b waiting-for-other"])
    );
    rig.change(&[needing("w", "c", "other")], &[deleted("w", "b", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:c waiting-for-other"])
    );
    rig.change(&[wanted("other", "a")], &[]);
    assert_eq!(rig.engine.containers().len(), 2);
}

#[test]
fn instance_deleted_behind_a_failed_delete_is_reported_removed() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "b", None)]);
    rig.sent();
    rig.change(&[], &[deleted("w", "b", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:a stopping", "w:a removed"])
    );
    assert_eq!(rig.loops(), 0);
}

#[test]
fn instance_deleted_while_it_waits_is_reported_removed() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    rig.change(&[], &[deleted("w", "b", None)]);
    assert!(rig.sent().contains(&"w:b Removed".to_owned()));
    rig.change(&[needing("w", "b", "other")], &[]);
    assert_eq!(rig.sent(), sequence(&["w:b waiting-for-other"]));
    rig.change(&[], &[deleted("w", "b", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:a stopping", "w:a removed"])
    );
    assert_eq!(rig.loops(), 0);
}

#[test]
fn an_added_workload_that_exists_is_updated() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[wanted("w", "b")], &[]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a stopping", "w:a removed", "w:b starting", "w:b running"])
    );
}

// [utest->swdd~agent-add-on-update-missing-workload~1]
#[test]
fn update_of_a_missing_workload_creates_and_delete_removes() {
    let mut rig = Rig::new().telling_configs();
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a removed", "w:b starting", "w:b running"])
    );
    rig.change(&[], &[deleted("nothing", "a", None)]);
    assert_eq!(rig.sent(), sequence(&["nothing:a removed"]));
}

// ------------------------------------------------- operations that meet older ones

// [utest->swdd~agent-enqueues-unfulfilled-create~1]
#[test]
fn a_deleted_pending_create_is_dropped_and_never_started() {
    let mut rig = Rig::new().telling_configs();
    rig.change(&[needing("w", "a", "other")], &[]);
    rig.change(&[], &[deleted("w", "a", None)]);
    rig.change(&[wanted("other", "a")], &[]);
    let states = [
        "w:a waiting-for-other",
        "w:a removed",
        "other:a starting",
        "other:a running",
    ];
    assert_eq!(rig.sent(), sequence(&states));
    assert_eq!(rig.engine.take_calls(), ["create other"]);
}

#[test]
fn a_newer_wish_replaces_one_that_waits() {
    let mut rig = Rig::new().telling_configs();
    rig.change(&[needing("w", "a", "other")], &[]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&[
            "w:a waiting-for-other",
            "w:a removed",
            "w:b waiting-for-other"
        ])
    );
    rig.change(&[wanted("w", "c")], &[deleted("w", "b", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:c starting", "w:c running"])
    );
}

// [utest->swdd~agent-enqueues-unfulfilled-delete~1]
// [utest->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
#[test]
fn a_pending_update_that_is_deleted_removes_the_old_instance() {
    // The old one waits for its user.
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a waiting-to-stop", "w:b waiting"])
    );
    rig.change(&[], &[deleted("w", "b", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:a waiting-to-stop"])
    );
    rig.change(&[], &[deleted("user", "a", None)]);
    let states = [
        "user:a stopping",
        "w:a stopping",
        "w:a removed",
        "user:a removed",
    ];
    assert_eq!(sorted(rig.sent()), sorted(sequence(&states)));
    assert!(rig.engine.containers().is_empty());

    // The old one is gone already, the new one waits to start.
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    rig.sent();
    rig.change(&[], &[deleted("w", "b", "user")]);
    assert_eq!(rig.sent(), sequence(&["w:b removed"]));
    assert_eq!(rig.loops(), 1, "only the user is left");
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

#[test]
fn pending_update_without_new_instance_is_not_removed() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    rig.sent();
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "b", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a waiting-to-stop", "w:b waiting-for-other"])
    );
}

#[test]
fn pending_update_that_is_taken_back_touches_no_workload() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    rig.sent();
    rig.change(&[wanted("w", "a")], &[deleted("w", "b", "user")]);
    assert_eq!(rig.sent(), sequence(&["w:b removed", "w:a running"]));
    assert!(rig.engine.take_calls().is_empty());
    // The same after the old one is gone: it has to be made again.
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    rig.sent();
    rig.change(&[wanted("w", "a")], &[deleted("w", "b", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:b removed", "w:a starting", "w:a running"])
    );
}

/// The loop has not begun with the update when it is rolled back.
#[test]
fn a_rollback_of_what_was_never_switched_touches_no_container() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    let id = rig.engine.only().0;
    for (old, new) in [("a", "b"), ("b", "a")] {
        let plan = WorkloadPlan {
            added: vec![wanted("w", new)],
            deleted: vec![deleted("w", old, None)],
        };
        let message = FromServer::UpdateWorkload(plan);
        rig.agent
            .scheduler
            .on_event(SchedulerEvent::Server(message));
    }
    rig.agent.run();
    assert!(rig.engine.take_calls().is_empty());
    assert_eq!(rig.engine.only().0, id);
    let mut sent = rig.sent();
    assert_eq!(
        sent.pop().unwrap(),
        "w:a Running(Ok)",
        "the server may expect it"
    );
    assert_eq!(sent, sequence(&["w:b removed"]));
}

#[test]
fn pending_delete_with_a_new_add_still_waits_for_dependents() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[], &[deleted("w", "a", "user")]);
    rig.change(&[wanted("w", "b")], &[]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a waiting-to-stop", "w:a waiting-to-stop", "w:b waiting"])
    );
    assert!(rig.engine.take_calls().is_empty());
    rig.change(&[], &[deleted("user", "a", None)]);
    assert_eq!(rig.sent().last().unwrap(), "w:b Running(Ok)");
}

#[test]
fn newer_delete_replaces_the_conditions_of_a_waiting_one() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[], &[deleted("w", "a", "user")]);
    assert_eq!(rig.sent(), sequence(&["w:a waiting-to-stop"]));
    rig.change(&[], &[deleted("w", "a", None)]);
    assert_eq!(rig.sent(), sequence(&["w:a stopping", "w:a removed"]));
    // It comes once more after that.
    rig.change(&[], &[deleted("w", "a", None)]);
    assert_eq!(rig.sent(), sequence(&["w:a removed"]));
    assert_eq!(rig.loops(), 1, "only the user is left");
}

#[test]
fn newer_update_replaces_the_conditions_of_a_waiting_one() {
    let mut rig = Rig::running(&[wanted("w", "a"), wanted("user", "a")]);
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", "user")]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a waiting-to-stop", "w:b waiting"])
    );
    for _ in 0..2 {
        rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    }
    assert_eq!(rig.engine.take_calls(), ["delete w", "create w"]);
    assert_eq!(rig.sent().last().unwrap(), "w:b Running(Ok)");
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    assert!(
        rig.engine.take_calls().is_empty(),
        "it came after it was carried out"
    );
}

#[test]
fn two_that_wait_for_the_end_of_each_other_do_not_wait_for_ever() {
    for (first_waits_for, calls) in [
        ("user", vec!["delete user", "delete up"]),
        ("third", vec![]),
    ] {
        let mut rig = Rig::running(&[wanted("up", "a"), wanted("user", "a"), wanted("third", "a")]);
        rig.change(&[], &[deleted("up", "a", first_waits_for)]);
        assert!(
            rig.engine.take_calls().is_empty(),
            "it runs on, so what depends on it may not stop it"
        );
        rig.change(&[], &[deleted("user", "a", "up")]);
        assert_eq!(rig.engine.take_calls(), calls, "{first_waits_for}");
    }
}

#[test]
fn what_waits_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let all: Vec<AddedWorkload> = (0..50)
        .map(|number| needing(&format!("w{number}"), "a", "up"))
        .collect();
    rig.change(&all, &[]);
    assert_eq!(rig.agent.scheduler.sizes(), [50, 50, 0]);
    let gone: Vec<DeletedWorkload> = all
        .iter()
        .map(|added| deleted_after(&added.instance, &[]))
        .collect();
    rig.change(&[], &gone);
    assert_eq!(rig.agent.scheduler.sizes(), [0; 3]);
}

// ---------------------------------------------------------------- deletes that fail

#[test]
fn add_waits_for_a_failing_delete_of_the_same_workload() {
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    rig.change(&[], &[deleted("w", "a", None)]);
    let failed = format!("w:a Stopping(DeleteFailed): '{FAILURE}'");
    assert_eq!(
        rig.sent(),
        [sequence(&["w:a stopping"]), vec![failed.clone()]].concat()
    );
    rig.change(&[wanted("w", "b")], &[]);
    assert_eq!(
        rig.sent(),
        [sequence(&["w:a stopping"]), vec![failed]].concat()
    );
    assert_eq!(rig.engine.only().1.instance, wanted("w", "a").instance);
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(
        rig.sent(),
        sequence(&["w:a removed", "w:b starting", "w:b running"])
    );
    assert_eq!(rig.loops(), 1);
}

#[test]
fn what_came_after_a_removal_is_a_workload_like_any_other() {
    // After an update that had to wait.
    let mut rig = Rig::running(&[wanted("w", "a")]);
    rig.change(&[needing("w", "b", "other")], &[deleted("w", "a", None)]);
    rig.change(&[wanted("other", "a")], &[]);
    // After a delete that failed.
    rig.change(&[wanted("x", "a")], &[]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    rig.change(&[], &[deleted("x", "a", None)]);
    rig.change(&[wanted("x", "b")], &[]);
    rig.engine.take_calls();
    let all = [
        needing("w", "b", "other"),
        wanted("other", "a"),
        wanted("x", "b"),
    ];
    rig.agent.hello(&all);
    assert!(
        rig.engine.take_calls().is_empty(),
        "an unchanged workload is left alone"
    );
    rig.change(
        &[wanted("w", "c"), wanted("x", "c")],
        &[deleted("w", "b", "user"), deleted("x", "b", "user")],
    );
    assert_eq!(
        rig.engine.take_calls(),
        ["delete w", "delete x", "create w", "create x"]
    );
}

// ----------------------------------------------------------------- runtimes, threads

// [utest->swdd~agent-uses-specified-runtime~1]
// [utest->swdd~agent-supports-multiple-runtime-connectors~1]
// [utest->swdd~agent-skips-unknown-runtime~1]
#[test]
fn a_workload_runs_on_its_runtime_and_on_no_other() {
    let with_runtime = |config: &str, runtime: &str| {
        let workload = Workload::new("agent_A", runtime, config);
        AddedWorkload {
            instance: workload.instance_name("w"),
            workload: Arc::new(workload),
        }
    };
    let mut rig = Rig::new().telling_configs();
    rig.change(&[with_runtime("a", "magic")], &[]);
    let info = "Unsupported Runtime 'magic'; there are 'podman', 'containerd', 'podman-kube'";
    let unsupported =
        |instance: &str| vec![format!("{instance} Pending(StartingFailed): '{info}'")];
    assert_eq!(
        rig.sent(),
        [sequence(&["w:a starting"]), unsupported("w:a")].concat()
    );
    rig.change(&[with_runtime("b", "podman")], &[deleted("w", "a", None)]);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a stopping", "w:a removed", "w:b starting", "w:b running"])
    );
    rig.change(&[with_runtime("c", "magic")], &[deleted("w", "b", None)]);
    let states = sequence(&["w:b stopping", "w:b removed", "w:c starting"]);
    assert_eq!(rig.sent(), [states, unsupported("w:c")].concat());
    assert!(rig.engine.containers().is_empty());
}

#[test]
fn workload_without_thread_is_shown_and_starts_later() {
    let no_thread = "'No thread can be started for it, trying again: ";
    let mut rig = Rig::new().telling_configs();
    rig.agent.loops.refuse(true);
    rig.change(&[wanted("w", "a")], &[]);
    let sent = rig.sent();
    assert!(
        sent[0].starts_with(&format!("w:a Pending(Starting): {no_thread}")),
        "{sent:?}"
    );
    rig.agent.pass(LOAD_INTERVAL * 3);
    assert!(rig.sent().is_empty(), "it says so once");
    rig.agent.loops.refuse(false);
    rig.agent.pass(LOAD_INTERVAL);
    assert_eq!(rig.sent(), sequence(&["w:a starting", "w:a running"]));
}

#[test]
fn loop_without_thread_follows_its_newest_target_later() {
    for delete in [false, true] {
        let mut rig = Rig::new().telling_configs();
        rig.agent.loops.refuse(true);
        rig.change(&[wanted("w", "a")], &[]);
        let added = if delete {
            vec![]
        } else {
            vec![wanted("w", "b")]
        };
        rig.change(&added, &[deleted("w", "a", None)]);
        assert!(
            rig.sent().contains(&"w:a Removed".to_owned()),
            "delete: {delete}"
        );
        rig.agent.loops.refuse(false);
        rig.agent.pass(LOAD_INTERVAL);
        assert!(
            !rig.sent().contains(&"w:a Removed".to_owned()),
            "delete: {delete}"
        );
        let instances: Vec<InstanceName> = rig
            .engine
            .containers()
            .into_values()
            .map(|found| found.instance)
            .collect();
        assert_eq!(
            instances,
            added
                .iter()
                .map(|added| added.instance.clone())
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn existing_container_without_thread_is_kept_and_not_doubled() {
    let mut rig = Rig::silent(FakeEngine::new()).telling_configs();
    rig.engine.add(
        &wanted("w", "a").instance,
        ExecutionState::plain(Phase::Running),
    );
    rig.agent.loops.refuse(true);
    rig.agent.hello(&[wanted("w", "a")]);
    let sent = rig.sent();
    assert!(
        sent[0]
            .starts_with("w:a Failed(Unknown): 'No thread can be started for it, trying again: "),
        "{sent:?}"
    );
    rig.change(&[wanted("w", "b")], &[deleted("w", "a", None)]);
    assert_eq!(rig.engine.only().1.instance, wanted("w", "a").instance);
    assert!(rig.sent().is_empty());
    rig.agent.loops.refuse(false);
    rig.agent.pass(LOAD_INTERVAL);
    assert_eq!(
        rig.sent(),
        sequence(&["w:a stopping", "w:a removed", "w:b starting", "w:b running"])
    );
    assert_eq!(rig.engine.only().1.instance, wanted("w", "b").instance);
}

#[test]
fn a_thousand_workloads_come_and_go_and_leave_nothing_behind() {
    let mut rig = Rig::new().telling_configs();
    for round in 0..1000 {
        let name = format!("w{}", round % 7);
        rig.change(&[wanted(&name, "a")], &[]);
        rig.change(&[], &[deleted(&name, "a", None)]);
    }
    assert_eq!(rig.loops(), 0);
    assert!(rig.engine.containers().is_empty());
}
