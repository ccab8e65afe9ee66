//! Which changes wait, and what makes them ready.

use super::*;
use crate::model::workload::{AddCondition, DeleteCondition, Workload};
use std::sync::Arc;

fn added(name: &str, config: &str, dependencies: &[(&str, AddCondition)]) -> AddedWorkload {
    let mut workload = Workload::new("A", "podman", config);
    workload.dependencies = dependencies.iter().map(|(name, condition)| ((*name).to_owned(), *condition)).collect();
    AddedWorkload { instance: workload.instance_name(name), workload: Arc::new(workload) }
}

fn create(name: &str, dependencies: &[(&str, AddCondition)]) -> Change {
    Change::run(added(name, "new", dependencies))
}

fn delete(name: &str, dependencies: &[(&str, DeleteCondition)]) -> Change {
    let dependencies = dependencies.iter().map(|(name, condition)| ((*name).to_owned(), *condition)).collect();
    Change::replace(DeletedWorkload { instance: InstanceName::new(name, "old", "A"), dependencies }, None)
}

/// An update of `w` that needs `up` to run and `user` to be gone.
fn update() -> Change {
    let delete = delete("w", &[("user", DeleteCondition::NotPendingNorRunning)]);
    Change { new: create("w", &[("up", AddCondition::Running)]).new, ..delete }
}

fn store(up: bool, user: bool) -> WorkloadStateStore {
    let mut store = WorkloadStateStore::new("A".into());
    set(&mut store, "up", up);
    set(&mut store, "user", user);
    store
}

fn set(store: &mut WorkloadStateStore, name: &str, running: bool) {
    let phase = if running { Phase::Running } else { Phase::FailedExecFailed };
    store.set_own(&InstanceName::with_id(name, "id", "A"), ExecutionState::plain(phase));
}

/// Kinds of orders and of reports, in order.
fn kinds(decision: &Decision) -> Vec<String> {
    let reports = decision.reports.iter().map(|report| {
        let which =
            if report.instance == InstanceName::new(&report.instance.workload, "new", "A") { "new" } else { "old" };
        format!("{which} {}", report.state)
    });
    let ready = decision.ready.iter().map(|order| match order {
        Order::Run(_) => "Run".to_owned(),
        Order::End(_) => "End".to_owned(),
    });
    reports.chain(ready).collect()
}

const WAITS: &str = "new Pending(WaitingToStart)";
const WAITS_TO_STOP: &str = "old Stopping(WaitingToStop)";

// [utest->swdd~agent-enqueues-unfulfilled-create~1]
#[test]
fn a_create_waits_for_its_dependencies() {
    for (up, expected, queued) in [(true, vec!["Run"], false), (false, vec![WAITS], true)] {
        let mut scheduler = WorkloadScheduler::default();
        let decision = scheduler.decide(create("w", &[("up", AddCondition::Running)]), &store(up, true));
        assert_eq!(kinds(&decision), expected);
        assert_eq!(scheduler.get("w").is_some(), queued);
    }
}

// [utest->swdd~agent-enqueues-unfulfilled-delete~1]
#[test]
fn a_delete_waits_for_its_dependents() {
    for (user, expected, queued) in [(false, vec!["End"], false), (true, vec![WAITS_TO_STOP], true)] {
        let mut scheduler = WorkloadScheduler::default();
        let change = Change { new: None, ..update() };
        assert_eq!(kinds(&scheduler.decide(change, &store(true, user))), expected);
        assert_eq!(scheduler.get("w").is_some(), queued);
    }
}

// [utest->swdd~agent-handles-update-with-fulfilled-delete~1]
// [utest->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
// [utest->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
#[test]
fn an_update_deletes_as_soon_as_it_may_and_starts_when_it_may() {
    for (up, user, expected) in [
        (true, false, vec!["Run"]),
        (false, false, vec![WAITS, "End"]),
        (true, true, vec![WAITS_TO_STOP]),
        (false, true, vec![WAITS_TO_STOP]),
    ] {
        let mut scheduler = WorkloadScheduler::default();
        let decision = scheduler.decide(update(), &store(up, user));
        assert_eq!(kinds(&decision), expected, "up {up} user {user}");
        let queued = match (up, user) {
            (true, false) => None,
            (false, false) => Some(Change { deleted: None, ..update() }),
            (_, true) => Some(update()),
        };
        assert_eq!(scheduler.get("w"), queued.as_ref());
    }
}

// [utest->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
#[test]
fn a_waiting_update_goes_through_both_phases_and_reports_each_once() {
    let mut scheduler = WorkloadScheduler::default();
    let mut store = store(false, true);
    scheduler.decide(update(), &store);
    assert_eq!(scheduler.state_changed("user", &store), Decision::default(), "nothing is reported again");
    set(&mut store, "user", false);
    assert_eq!(kinds(&scheduler.state_changed("user", &store)), [WAITS, "End"]);
    assert_eq!(scheduler.state_changed("up", &store), Decision::default());
    set(&mut store, "up", true);
    assert_eq!(kinds(&scheduler.state_changed("up", &store)), ["Run"]);
    assert_eq!(scheduler.iter().count(), 0);
}

#[test]
fn two_that_wait_for_the_end_of_each_other_do_not_wait_for_ever() {
    let needs = |other| vec![(other, DeleteCondition::NotPendingNorRunning)];
    for in_circle in [true, false] {
        let (mut scheduler, mut store) = (WorkloadScheduler::default(), store(true, true));
        let first = delete("up", &if in_circle { needs("user") } else { needs("third") });
        set(&mut store, "third", true);
        assert_eq!(kinds(&scheduler.decide(first, &store)), [WAITS_TO_STOP]);
        // It runs on, so what it depends on must not stop before it.
        store.set_own(&InstanceName::with_id("up", "id", "A"), ExecutionState::plain(Phase::StoppingWaitingToStop));
        let second = delete("user", &needs("up"));
        let expected = if in_circle { "End" } else { WAITS_TO_STOP };
        assert_eq!(kinds(&scheduler.decide(second, &store)), [expected]);
    }
}

#[test]
fn a_failed_start_that_was_given_up_lets_an_error_handler_start() {
    let mut scheduler = WorkloadScheduler::default();
    let mut store = store(false, false);
    let up = InstanceName::with_id("up2", "id", "A");
    scheduler.decide(create("handler", &[("up2", AddCondition::Failed)]), &store);
    for (phase, ready) in
        [(Phase::PendingStarting, false), (Phase::FailedLost, false), (Phase::PendingStartingFailed, true)]
    {
        store.set_own(&up, ExecutionState::plain(phase));
        assert_eq!(!scheduler.state_changed("up2", &store).ready.is_empty(), ready, "{phase}");
    }
}

#[test]
fn what_waits_is_found_by_what_it_waits_for_and_leaves_nothing_behind() {
    let mut scheduler = WorkloadScheduler::default();
    let store = store(false, true);
    for number in 0..50 {
        scheduler.decide(create(&format!("w{number}"), &[("up", AddCondition::Running)]), &store);
    }
    assert_eq!(scheduler.waiters.len(), 1, "50 waiting workloads cost one look-up");
    assert_eq!(kinds(&scheduler.decide(create("w50", &[]), &store)), ["Run"]);
    assert_eq!(scheduler.state_changed("w50", &store), Decision::default());
    for number in 0..50 {
        assert!(scheduler.take(&format!("w{number}")).is_some());
    }
    assert!(scheduler.waiters.is_empty());
    assert!(scheduler.take("w0").is_none());
}
