//! A whole agent with checks and conditions in virtual time.

use super::*;
use crate::events::SchedulerEvent;
use crate::stepped_agent::{AgentRig as Rig, deleted_after, wanted_with};
use ankaios_fakes::fake_connector::{Call, FakeEngine, Fault};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::limits::CONDITION_INFO_MAX;
use ankaios_model::messages::{AddedWorkload, FromServer};
use ankaios_model::names::InstanceName;
use ankaios_model::workload::{AddCondition, RestartPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Rig {
    fn replace(&mut self, old: &AddedWorkload, new: &AddedWorkload) {
        self.change(
            std::slice::from_ref(new),
            &[deleted_after(&old.instance, &[])],
        );
    }

    /// The server wants these gone, each after those that need it.
    fn delete(&mut self, gone: &[AddedWorkload]) {
        let deleted = gone.iter().map(|added| {
            let needs = |other: &&AddedWorkload| {
                other
                    .workload
                    .dependencies
                    .contains_key(&*added.instance.workload)
            };
            let dependents: Vec<&str> = gone
                .iter()
                .filter(needs)
                .map(|other| &*other.instance.workload)
                .collect();
            deleted_after(&added.instance, &dependents)
        });
        self.change(&[], &deleted.collect::<Vec<_>>());
    }

    fn pass(&mut self, milliseconds: u64) {
        self.agent.pass(ms(milliseconds));
    }

    fn ready(&mut self, name: &str) {
        self.agent.answers.holds(name, Purpose::Ready, true);
        self.pass(1_000);
    }

    fn path(&mut self, path: &str, exists: bool) {
        let mut paths = self.paths.lock().unwrap();
        if exists {
            paths.insert(path.to_owned());
        } else {
            paths.remove(path);
        }
        drop(paths);
        self.pass(1_000);
    }

    /// The states since the last call, without additional info, each once.
    fn phases(&self) -> Vec<String> {
        let mut phases: Vec<String> = self
            .agent
            .sent()
            .iter()
            .map(|report| format!("{} {}", report.instance.workload, report.state.phase))
            .collect();
        phases.dedup();
        phases
    }

    fn calls(&self) -> Vec<String> {
        self.engine
            .take_calls()
            .into_iter()
            .filter(|call| call != "list")
            .collect()
    }

    fn containers(&self) -> BTreeSet<String> {
        self.engine
            .containers()
            .values()
            .map(|one| one.instance.workload.to_string())
            .collect()
    }
}

fn workload(name: &str, block: &str, needs: &[&str]) -> AddedWorkload {
    with_policy(name, block, needs, RestartPolicy::Never)
}

fn with_policy(name: &str, block: &str, needs: &[&str], policy: RestartPolicy) -> AddedWorkload {
    let lifecycle = if block.is_empty() {
        String::new()
    } else {
        format!("\nlifecycle: {block}")
    };
    wanted_with(name, &format!("image: {name}{lifecycle}"), |workload| {
        workload.restart_policy = policy;
        workload.dependencies = needs
            .iter()
            .map(|name| ((*name).to_owned(), AddCondition::Running))
            .collect();
    })
}

const READY: &str = "{ ready: { file: /up, periodMs: 500, deadlineMs: 0 } }";

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

// -------------------------------------------------------------------- ready

// [utest->swdd~agent-lifecycle-ready~1]
#[test]
fn dependent_starts_when_its_dependency_is_ready() {
    let mut rig = Rig::new();
    rig.add(&[workload("db", READY, &[]), workload("web", "", &["db"])]);
    rig.pass(3_000);
    assert_eq!(rig.calls(), ["create db"]);
    let sent = rig.sent();
    assert!(
        sent.contains(
            &"db Pending(Starting): 'ready: file /up refused, attempt 1, 0 s'".to_owned()
        ),
        "{sent:?}"
    );
    assert!(
        !sent.iter().any(|state| state.contains("db Running")),
        "{sent:?}"
    );
    rig.ready("db");
    assert_eq!(rig.calls(), ["create web"]);
    let sent = rig.sent();
    assert!(
        sent[0].starts_with("db Running(Ok): 'ready: file /up answered, attempt "),
        "{sent:?}"
    );
    assert_eq!(
        sent[1..],
        [
            "web Pending(Starting): 'Triggered at runtime.'",
            "web Running(Ok)"
        ]
    );
}

#[test]
fn readiness_is_kept_until_the_workload_ends() {
    let mut rig = Rig::new();
    rig.add(&[workload("db", READY, &[])]);
    rig.ready("db");
    rig.sent();
    rig.agent.answers.holds("db", Purpose::Ready, false);
    rig.pass(5_000);
    assert_eq!(rig.sent(), [] as [&str; 0]);
    assert_eq!(
        rig.agent.probes.orders(),
        [] as [&str; 0],
        "nobody is being probed any more"
    );
}

#[test]
fn as_many_successes_in_a_row_are_needed_as_are_asked_for() {
    let mut rig = Rig::new();
    rig.add(&[workload(
        "db",
        "{ ready: { file: /up, periodMs: 1000, successThreshold: 3, deadlineMs: 0 } }",
        &[],
    )]);
    let mut steps = Vec::new();
    for holds in [true, true, false, true, true, true] {
        rig.agent.answers.holds("db", Purpose::Ready, holds);
        rig.pass(1_000);
        steps.push(rig.sent().iter().any(|state| state.contains("Running(Ok)")));
    }
    // The first one was asked before there was an answer.
    assert_eq!(steps, [false, false, false, false, false, true]);
}

#[test]
fn workload_that_ends_before_ready_has_succeeded_or_failed() {
    for (code, phase) in [
        (0, "db Succeeded(Ok)"),
        (3, "db Failed(ExecFailed): 'Exit code: '3''"),
    ] {
        let mut rig = Rig::new();
        rig.add(&[workload("db", READY, &[])]);
        rig.pass(100);
        rig.sent();
        rig.ends("db", code);
        assert_eq!(rig.sent(), [phase]);
        assert_eq!(rig.agent.probes.orders(), [] as [&str; 0]);
    }
}

const FAILS: &str = "{ ready: { file: /up, periodMs: 500, deadlineMs: 2000 }, restart: { backoffMs: 1000, maxRestarts: 2 } }";

#[test]
fn missed_deadline_restarts_until_the_limit_then_error_handler() {
    let mut rig = Rig::new();
    let mut handler = workload("handler", "", &[]);
    Arc::make_mut(&mut handler.workload)
        .dependencies
        .insert("db".to_owned(), AddCondition::Failed);
    rig.add(&[workload("db", FAILS, &[]), handler]);
    rig.pass(2_100);
    assert_eq!(rig.calls(), ["create db", "delete db"]);
    let sent = rig.sent();
    assert_eq!(
        sent.last().unwrap(),
        "db Pending(Starting): 'Retry 1: ready: file /up refused, not ready within 2 s'",
        "{sent:?}"
    );
    rig.pass(15_000);
    assert_eq!(
        rig.calls(),
        [
            "create db",
            "delete db",
            "create db",
            "delete db",
            "create handler"
        ]
    );
    let phases = rig.phases();
    assert!(
        !phases
            .iter()
            .any(|state| state.contains("Stopping") || state.contains("Removed")),
        "{phases:?}"
    );
    assert_eq!(
        phases[phases.len() - 3..],
        [
            "db Failed(ExecFailed)",
            "handler Pending(Starting)",
            "handler Running(Ok)"
        ]
    );
    rig.pass(3_600_000);
    assert_eq!(
        rig.calls(),
        [] as [&str; 0],
        "it is not tried again by itself"
    );
    assert_eq!(rig.containers(), names(&["handler"]));
}

#[test]
fn missed_deadline_that_waits_ends_no_container() {
    for restarts in [false, true] {
        let mut rig = Rig::new();
        let wanted = [workload(
            "db",
            "{ ready: { file: /up, deadlineMs: 2000, onDeadline: WAIT } }",
            &[],
        )];
        rig.add(&wanted);
        rig.pass(10_000);
        if restarts {
            rig.restart_agent(&wanted);
        }
        rig.pass(60_000);
        assert_eq!(rig.calls(), ["create db"], "restarts: {restarts}");
        rig.ready("db");
        assert!(
            rig.sent().last().unwrap().starts_with("db Running(Ok)"),
            "restarts: {restarts}"
        );
    }
}

#[test]
fn an_update_begins_anew_after_the_restarts_were_used_up() {
    let mut rig = Rig::new();
    let old = workload("db", FAILS, &[]);
    rig.add(std::slice::from_ref(&old));
    rig.pass(60_000);
    assert_eq!(rig.phases().last().unwrap(), "db Failed(ExecFailed)");
    rig.calls();
    let new = workload("db", &FAILS.replace("2000", "3000"), &[]);
    rig.replace(&old, &new);
    assert_eq!(rig.calls(), ["create db"]);
    rig.pass(60_000);
    assert_eq!(
        rig.calls()
            .iter()
            .filter(|call| *call == "create db")
            .count(),
        2,
        "with the count at its beginning"
    );
}

// [utest->swdd~agent-lifecycle-restarts~1]
#[test]
fn restarts_after_failures_are_counted_until_a_ready_time() {
    let block =
        "{ restart: { backoffMs: 100, backoffMaxMs: 200, maxRestarts: 2, windowMs: 5000 } }";
    let mut rig = Rig::new();
    rig.add(&[with_policy("db", block, &[], RestartPolicy::OnFailure)]);
    for _ in 0..3 {
        rig.pass(5_000);
        rig.ends("db", 1);
        rig.pass(300);
        assert_eq!(
            rig.phases().last().unwrap(),
            "db Running(Ok)",
            "it ran long enough each time"
        );
    }
    rig.ends("db", 1);
    rig.pass(300);
    rig.sent();
    rig.ends("db", 1);
    assert_eq!(
        rig.sent(),
        ["db Failed(ExecFailed): 'No more restarts: Exit code: '1''"]
    );
    rig.pass(600_000);
    assert_eq!(rig.sent(), [] as [&str; 0]);
}

#[test]
fn invalid_block_fails_the_start_for_good() {
    let mut rig = Rig::new();
    rig.add(&[workload("db", "{ redy: { file: /up } }", &[])]);
    rig.pass(60_000);
    assert_eq!(rig.calls(), [] as [&str; 0]);
    let expected = "db Pending(StartingFailed): 'lifecycle.redy: unknown key; did you mean 'ready'? (line 2 column 14";
    assert!(rig.sent().last().unwrap().starts_with(expected));
}

#[test]
fn notification_makes_ready_and_the_watchdog_needs_more() {
    let block = "{ ready: { notify: true }, alive: { notify: true, timeoutMs: 5000 } }";
    let mut rig = Rig::new();
    rig.add(&[workload("db", block, &[])]);
    rig.pass(2_000);
    assert_eq!(
        rig.sent().last().unwrap(),
        "db Pending(Starting): 'ready: waits for notify'"
    );
    let new = rig.engine.only().1.new.unwrap();
    let socket = new.notify_socket.expect("a socket");
    assert!(
        socket.exists() && socket.as_os_str().len() < 107,
        "{}",
        socket.display()
    );
    rig.agent.probes.notify("db", "MAINPID=1");
    rig.agent.probes.notify("db", "STATUS=up\nREADY=1\n");
    rig.pass(100);
    assert_eq!(rig.sent(), ["db Running(Ok): 'ready: notify answered'"]);
    for _ in 0..5 {
        rig.pass(4_000);
        rig.agent.probes.notify("db", "WATCHDOG=1");
    }
    assert_eq!(rig.calls(), ["create db"]);
    rig.pass(5_000);
    assert_eq!(rig.calls(), ["stop db"]);
    assert!(
        rig.sent()
            .last()
            .unwrap()
            .contains("Failed(ExecFailed): 'alive: notify no WATCHDOG=1 for 5000 ms")
    );
    assert!(!socket.exists(), "nobody listens any more");
}

// -------------------------------------------------------------------- alive

const ALIVE: &str = "{ alive: { file: /up, periodMs: 1000, failureThreshold: 2 } }";

// [utest->swdd~agent-lifecycle-alive~1]
#[test]
fn workload_that_is_not_alive_is_stopped_by_its_policy() {
    for (policy, calls) in [
        (RestartPolicy::Never, vec!["create db", "stop db"]),
        (
            RestartPolicy::OnFailure,
            vec!["create db", "stop db", "delete db", "create db"],
        ),
    ] {
        let mut rig = Rig::new();
        rig.agent.answers.holds("db", Purpose::Alive, true);
        rig.add(&[with_policy("db", ALIVE, &[], policy)]);
        rig.pass(10_000);
        rig.sent();
        rig.agent.answers.holds("db", Purpose::Alive, false);
        rig.pass(2_100);
        let sent = rig.sent();
        assert_eq!(
            sent[0], "db Running(Ok): 'alive: file /up refused, 1 of 2'",
            "{policy}"
        );
        assert_eq!(
            sent[1], "db Failed(ExecFailed): 'alive: file /up refused, 2 of 2'",
            "{policy}"
        );
        rig.agent.answers.holds("db", Purpose::Alive, true);
        rig.pass(5_000);
        assert_eq!(rig.calls(), calls, "{policy}");
        let runs = rig.engine.only().1.state.phase == Phase::Running;
        assert_eq!(runs, policy == RestartPolicy::OnFailure, "{policy}");
    }
}

/// A workload that ran, does not answer any more and is listed as ended with `code`, all of which
/// its control loop has found out before its state checker says anything.
fn silent_and_listed_as_ended(code: i64) -> Rig {
    let mut rig = Rig::new();
    rig.agent.answers.holds("db", Purpose::Alive, true);
    rig.add(&[workload(
        "db",
        &ALIVE.replace("Threshold: 2", "Threshold: 1"),
        &[],
    )]);
    rig.pass(10_000);
    rig.sent();
    rig.agent.answers.holds("db", Purpose::Alive, false);
    rig.engine
        .set_state(&rig.container_of("db"), ExecutionState::exited(code));
    rig.clock.advance(ms(2_000));
    assert!(
        rig.agent.probes.step() && rig.agent.loops.step(),
        "it is being probed for and has ended"
    );
    rig
}

/// Its engine tells the end later than the checks fail.
#[test]
fn ended_workload_is_not_treated_as_not_alive() {
    for (code, phase) in [
        (0, "db Succeeded(Ok)"),
        (3, "db Failed(ExecFailed): 'Exit code: '3''"),
    ] {
        let mut rig = silent_and_listed_as_ended(code);
        rig.pass(10_000);
        let mut sent = rig.sent();
        sent.dedup(); // Its checker says the same.
        assert_eq!(sent, [phase], "{code}");
        assert_eq!(rig.calls(), ["create db"], "{code}");
    }
}

/// Seed 86232 of the simulation: it was still shown as failed while it ran.
#[test]
fn wrong_listing_of_an_end_is_corrected_by_the_next_one() {
    let mut rig = silent_and_listed_as_ended(3);
    rig.engine.set_state(
        &rig.container_of("db"),
        ExecutionState::plain(Phase::Running),
    );
    rig.agent.answers.holds("db", Purpose::Alive, true);
    rig.pass(10_000);
    let sent = rig.sent();
    assert!(
        sent.iter().all(|state| state == "db Running(Ok)"),
        "{sent:?}"
    );
    assert_eq!(rig.calls(), ["create db"]);
    rig.agent.answers.holds("db", Purpose::Alive, false);
    rig.pass(3_000);
    assert!(
        rig.calls().contains(&"stop db".to_owned()),
        "it is still checked: {:?}",
        rig.calls()
    );
}

#[test]
fn a_failure_that_is_only_reported_is_shown_until_it_is_over() {
    let mut rig = Rig::new();
    rig.agent.answers.holds("db", Purpose::Alive, true);
    rig.add(&[workload(
        "db",
        &ALIVE.replace("2 }", "2, action: REPORT }"),
        &[],
    )]);
    rig.pass(3_000);
    rig.sent();
    rig.agent
        .answers
        .set("db", Purpose::Alive, Outcome::fails("status 500"));
    rig.pass(3_000);
    let sent = rig.sent();
    assert_eq!(
        sent[sent.len() - 1],
        "db Running(Ok): 'alive: file /up status 500, 2 of 2'"
    );
    rig.agent.answers.holds("db", Purpose::Alive, true);
    rig.pass(2_000);
    assert_eq!(rig.sent(), ["db Running(Ok)"]);
    assert_eq!(rig.calls(), ["create db"]);
}

// -------------------------------------------------------------- agent restart

#[test]
fn adopted_container_is_probed_again_without_deadline() {
    let mut rig = Rig::new();
    let wanted = [workload("db", FAILS, &[]), workload("web", "", &["db"])];
    rig.add(&wanted);
    rig.pass(500);
    rig.calls();
    rig.restart_agent(&wanted);
    rig.pass(60_000);
    assert_eq!(
        rig.calls(),
        [] as [&str; 0],
        "the deadline of 2 s does not count"
    );
    let sent = rig.sent();
    assert_eq!(sent[0], "db Pending(Starting): 'ready: waits for file /up'");
    assert!(
        !sent.iter().any(|state| state.contains("db Running")),
        "{sent:?}"
    );
    rig.ready("db");
    assert_eq!(rig.calls(), ["create web"]);
}

/// Seed 22362 of the simulation: a listing showed the container as ended, the next one as running.
#[test]
fn deadline_applies_to_a_revived_container_unless_adopted() {
    let mut rig = Rig::new();
    let wanted = [workload(
        "db",
        &FAILS.replace("maxRestarts: 2", "maxRestarts: 0"),
        &[],
    )];
    rig.add(&wanted);
    let seen_again = |rig: &mut Rig| {
        rig.ends("db", 1);
        assert_eq!(rig.phases().last().unwrap(), "db Failed(ExecFailed)");
        rig.engine.set_state(
            &rig.container_of("db"),
            ExecutionState::plain(Phase::Running),
        );
        rig.pass(1_000);
        assert_eq!(rig.phases(), ["db Pending(Starting)"]);
        rig.calls();
        rig.pass(2_000);
    };
    rig.restart_agent(&wanted);
    seen_again(&mut rig);
    assert_eq!(
        rig.calls(),
        [] as [&str; 0],
        "it was there before the agent"
    );
    rig.agent.hello(&[]);
    rig.add(&wanted);
    seen_again(&mut rig);
    assert_eq!(rig.calls(), ["delete db"]);
    assert_eq!(rig.phases(), ["db Failed(ExecFailed)"]);
}

#[test]
fn after_a_restart_of_the_agent_what_notifies_counts_as_ready() {
    let mut rig = Rig::new();
    let wanted = [workload(
        "db",
        "{ ready: { notify: true }, alive: { notify: true, timeoutMs: 1000 } }",
        &[],
    )];
    rig.add(&wanted);
    rig.calls();
    rig.restart_agent(&wanted);
    rig.pass(10_000);
    assert_eq!(rig.phases(), ["db Running(Ok)"]);
    assert_eq!(
        rig.calls(),
        [] as [&str; 0],
        "its watchdog counts from the first time that it is fed"
    );
    rig.agent.probes.notify("db", "WATCHDOG=1");
    rig.pass(1_100);
    assert_eq!(rig.calls(), ["stop db"]);
}

#[test]
fn adopted_container_stops_for_an_unmet_precondition() {
    let mut rig = Rig::new();
    let wanted = [
        workload("db", "{ precondition: { pathExists: /key } }", &[]),
        workload("web", "", &["db"]),
    ];
    rig.path("/key", true);
    rig.add(&wanted);
    rig.pass(100);
    rig.calls();
    rig.paths.lock().unwrap().clear();
    rig.restart_agent(&wanted);
    rig.pass(2_000);
    assert_eq!(rig.calls(), ["delete web", "delete db"]);
}

#[test]
fn given_up_restarts_are_counted_again_after_an_agent_restart() {
    let mut rig = Rig::new();
    let mut handler = workload("handler", "", &[]);
    Arc::make_mut(&mut handler.workload)
        .dependencies
        .insert("db".to_owned(), AddCondition::Failed);
    let wanted = [workload("db", FAILS, &[]), handler];
    rig.add(&wanted);
    rig.pass(60_000);
    assert_eq!(rig.containers(), names(&["handler"]));
    rig.calls();
    rig.restart_agent(&wanted);
    rig.pass(60_000);
    assert_eq!(
        rig.calls(),
        [
            "create db",
            "delete db",
            "create db",
            "delete db",
            "create db",
            "delete db"
        ]
    );
    assert_eq!(rig.phases().last().unwrap(), "db Failed(ExecFailed)");
    assert_eq!(rig.containers(), names(&["handler"]), "it was left alone");
}

#[test]
fn precondition_stops_end_in_order_after_an_agent_restart() {
    let mut rig = Rig::new();
    rig.path("/key", true);
    let wanted = with_precondition("");
    rig.add(&wanted);
    rig.path("/key", false);
    assert_eq!(rig.containers(), names(&["1", "2"]));
    rig.calls();
    rig.restart_agent(&wanted);
    rig.pass(5_000);
    assert_eq!(rig.calls(), [] as [&str; 0]);
    rig.path("/key", true);
    rig.pass(1_000);
    assert_eq!(rig.calls(), ["create 3", "create 4", "create 5"]);
}

#[test]
fn stop_for_a_precondition_continues_after_an_agent_restart() {
    let mut rig = Rig::new();
    rig.path("/key", true);
    let wanted = with_precondition(GONE);
    rig.agent.answers.holds("5", Purpose::Gone, true);
    rig.add(&wanted);
    rig.pass(1_000);
    rig.path("/key", false);
    assert_eq!(
        rig.containers(),
        names(&["1", "2", "3"]),
        "5 is not gone, so 3 has to stay"
    );
    rig.calls();
    rig.restart_agent(&wanted);
    rig.pass(5_000);
    assert_eq!(rig.calls(), ["delete 3"]);
    rig.path("/key", true);
    rig.pass(1_000);
    assert_eq!(rig.containers(), names(&["1", "2", "3", "4", "5"]));
}

// ------------------------------------------------ commands in the middle of a check

#[test]
fn an_update_or_a_delete_ends_the_checks_of_what_was_there() {
    let mut rig = Rig::new();
    let (old, new) = (
        workload("db", READY, &[]),
        workload("db", &READY.replace("500", "600"), &[]),
    );
    rig.add(std::slice::from_ref(&old));
    rig.pass(100);
    rig.replace(&old, &new);
    assert_eq!(rig.agent.probes.orders(), ["ready of db"]);
    rig.sent();
    rig.ready("db");
    let ready: Vec<String> = rig
        .agent
        .sent()
        .iter()
        .map(|report| report.instance.id.to_string())
        .collect();
    assert_eq!(ready, [new.instance.id.to_string()]);
    let other = workload("db", READY, &[]);
    rig.replace(&new, &other);
    rig.delete(&[other]);
    rig.pass(1_000);
    assert_eq!(rig.agent.probes.orders(), [] as [&str; 0]);
    assert_eq!(rig.containers(), names(&[]));
}

// --------------------------------------------------------------------- gone

const GONE: &str = "{ gone: { file: /up, deadlineMs: 5000 } }";

// [utest->swdd~agent-lifecycle-gone~1]
#[test]
fn a_workload_is_removed_only_when_it_does_not_answer_any_more() {
    let mut rig = Rig::new();
    let db = workload("db", GONE, &[]);
    rig.agent.answers.holds("db", Purpose::Gone, true);
    rig.add(std::slice::from_ref(&db));
    rig.pass(100);
    rig.sent();
    rig.delete(&[db]);
    rig.pass(4_000);
    assert_eq!(rig.calls(), ["create db", "delete db"]);
    assert!(
        rig.sent()
            .iter()
            .all(|state| state.starts_with("db Stopping(RequestedAtRuntime): 'gone: file /up "))
    );
    rig.pass(1_100);
    assert_eq!(
        rig.sent().last().unwrap(),
        "db Stopping(DeleteFailed): 'gone: file /up is still there after 5 s'"
    );
    rig.agent.answers.holds("db", Purpose::Gone, false);
    rig.pass(500);
    assert_eq!(rig.sent(), ["db Removed"]);
}

#[test]
fn an_update_starts_the_new_instance_when_the_old_one_is_gone() {
    let mut rig = Rig::new();
    let (old, new) = (workload("db", GONE, &[]), workload("db", READY, &[]));
    rig.agent.answers.holds("db", Purpose::Gone, true);
    rig.add(std::slice::from_ref(&old));
    rig.pass(100);
    rig.calls();
    rig.replace(&old, &new);
    rig.pass(2_000);
    assert_eq!(rig.calls(), ["delete db"]);
    rig.agent.answers.holds("db", Purpose::Gone, false);
    rig.pass(500);
    assert_eq!(rig.calls(), ["create db"]);
}

#[test]
fn removed_workload_is_not_waited_for_after_an_agent_restart() {
    let mut rig = Rig::new();
    let db = workload("db", GONE, &[]);
    rig.agent.answers.holds("db", Purpose::Gone, true);
    rig.add(std::slice::from_ref(&db));
    rig.pass(100);
    rig.delete(&[db]);
    rig.pass(1_000);
    rig.restart_agent(&[]);
    rig.pass(1_000);
    assert_eq!(rig.agent.scheduler.known_states().count(), 0);
}

#[test]
fn what_has_finished_is_not_run_again_because_a_path_came_back() {
    let mut rig = Rig::new();
    rig.path("/key", true);
    rig.add(&[workload(
        "job",
        "{ precondition: { pathExists: /key } }",
        &[],
    )]);
    rig.pass(100);
    rig.ends("job", 0);
    rig.calls();
    rig.path("/key", false);
    rig.path("/key", true);
    rig.pass(5_000);
    assert_eq!(rig.calls(), [] as [&str; 0]);
}

#[test]
fn what_somebody_else_started_again_is_asked_again() {
    let mut rig = Rig::new();
    rig.add(&[workload("db", READY, &[])]);
    rig.ready("db");
    rig.ends("db", 1);
    rig.sent();
    rig.engine.set_state(
        &rig.container_of("db"),
        ExecutionState::plain(Phase::Running),
    );
    rig.pass(1_000);
    assert_eq!(rig.phases(), ["db Pending(Starting)", "db Running(Ok)"]);
}

// --------------------------------------------------------------- activation

// [utest->swdd~agent-lifecycle-activation~1]
#[test]
fn inactive_workload_is_never_created_nor_probed() {
    let mut rig = Rig::new();
    let block = "{ activation: { tagEquals: { zone: b } }, ready: { file: /up } }";
    rig.add(&[
        workload("db", block, &[]),
        workload("web", "", &["db"]),
        workload("other", "", &[]),
    ]);
    rig.pass(60_000);
    assert_eq!(rig.calls(), ["create other"]);
    let sent = rig.sent();
    assert!(
        sent.contains(
            &"db Pending(WaitingToStart): 'inactive: tag zone is 'a', not 'b''".to_owned()
        ),
        "{sent:?}"
    );
    assert_eq!(rig.agent.probes.orders(), [] as [&str; 0]);
}

#[test]
fn update_and_agent_restart_evaluate_the_activation_again() {
    let mut rig = Rig::new();
    let device = |tag: &str| {
        workload(
            "db",
            &format!("{{ activation: {{ pathExists: /dev/x, pathMissing: /{tag} }} }}"),
            &[],
        )
    };
    let old = device("a");
    rig.add(std::slice::from_ref(&old));
    rig.path("/dev/x", true);
    rig.pass(60_000);
    assert_eq!(rig.calls(), [] as [&str; 0], "it is looked at once");
    let new = device("b");
    rig.replace(&old, &new);
    assert_eq!(rig.calls(), ["create db"]);
    rig.path("/dev/x", false);
    rig.pass(60_000);
    assert_eq!(rig.calls(), [] as [&str; 0]);
    rig.sent();
    rig.restart_agent(&[new]);
    rig.pass(1_000);
    assert_eq!(
        rig.calls(),
        ["delete db"],
        "what an earlier life left is not relevant any more"
    );
    assert_eq!(
        rig.sent().last().unwrap(),
        "db Pending(WaitingToStart): 'inactive: /dev/x does not exist'"
    );
}

/// After each hello the containers of an engine that was not installed are requested again; known
/// conditions must not be evaluated then.
#[test]
fn new_connection_does_not_evaluate_the_activation_again() {
    let missing = FakeEngine::new();
    missing.inject(Call::List, vec![Fault::IsMissing; 10]);
    let mut rig = Rig::silent_with(FakeEngine::new(), |options| {
        options.others = vec![("containerd", missing)]
    });
    let wanted = [
        workload("camera", "{ activation: { pathExists: /dev/x } }", &[]),
        workload("radar", "{ activation: { pathMissing: /dev/x } }", &[]),
        workload("db", "{ precondition: { pathExists: /key } }", &[]),
        workload("other", "", &[]),
    ];
    rig.paths.lock().unwrap().insert("/dev/x".to_owned());
    rig.agent.hello(&wanted);
    rig.pass(100);
    assert_eq!(rig.calls(), ["create camera", "create other"]);
    *rig.paths.lock().unwrap() = BTreeSet::from(["/key".to_owned()]);
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&wanted);
    // With each plan the blocked workloads are determined.
    rig.replace(&wanted[3], &workload("other", "{ restart: {} }", &[]));
    rig.pass(60_000);
    assert_eq!(rig.calls(), ["delete other", "create other", "create db"]);
    assert_eq!(rig.containers(), names(&["camera", "db", "other"]));
}

/// Seed 2010618 of the simulation: an inactive workload moved to another agent before the engines
/// had listed. Its dependents still waited, for a workload that was forgotten.
#[test]
fn moved_dependency_does_not_keep_its_condition() {
    for block in [
        "{ activation: { tagEquals: { zone: b } } }",
        "{ precondition: { pathExists: /key } }",
    ] {
        let mut rig = Rig::silent(FakeEngine::new());
        let db = workload("db", block, &[]);
        rig.engine.set_silent(true);
        rig.agent.hello(std::slice::from_ref(&db));
        rig.change(
            &[workload("web", "", &["db"])],
            &[deleted_after(&db.instance, &[])],
        );
        let elsewhere = InstanceName::new("db", "x", "agent_B");
        let runs = WorkloadState::new(elsewhere, ExecutionState::plain(Phase::Running));
        rig.agent.receive(FromServer::WorkloadStates(vec![runs]));
        rig.engine.set_silent(false);
        rig.pass(10_000);
        assert_eq!(rig.calls(), ["create web"], "{block}");
        assert_eq!(rig.sent().last().unwrap(), "web Running(Ok)", "{block}");
    }
}

/// After a restart of the server: it cannot know why a workload waits to stop.
#[test]
fn repeated_plan_keeps_a_precondition_stop_going() {
    let mut rig = Rig::new();
    let db = workload("db", "{ precondition: { pathExists: /key } }", &[]);
    rig.path("/key", true);
    rig.add(&[db.clone(), workload("web", "", &["db"])]);
    rig.pass(1_000);
    rig.engine.set_stuck("web", true);
    rig.path("/key", false);
    assert!(
        rig.sent()
            .contains(&"db Stopping(WaitingToStop)".to_owned())
    );
    rig.calls();
    rig.replace(&db, &db);
    // A server that has restarted does not have this state.
    assert_eq!(rig.sent(), ["db Stopping(WaitingToStop)"]);
    assert_eq!(rig.calls(), [] as [&str; 0]);
    rig.engine.set_stuck("web", false);
    rig.pass(60_000);
    assert_eq!(rig.containers(), names(&[]));
    assert_eq!(
        rig.sent().last().unwrap(),
        "db Pending(WaitingToStart): 'precondition: /key does not exist'"
    );
}

/// Here paths below `/mnt` answer when `/mnt` is there.
#[test]
fn a_path_that_does_not_answer_starts_nothing_and_stops_nothing() {
    let mut rig = Rig::new();
    rig.add(&[
        workload("camera", "{ activation: { pathExists: /mnt/x } }", &[]),
        workload("radar", "{ activation: { pathMissing: /mnt/x } }", &[]),
        workload("db", "{ precondition: { pathExists: /mnt/x } }", &[]),
        workload("other", "{ precondition: { pathMissing: /x } }", &[]),
    ]);
    rig.pass(5_000);
    assert_eq!(rig.calls(), ["create other"]);
    let sent = rig.sent();
    for expected in [
        "camera Pending(WaitingToStart): 'activation: /mnt/x does not answer'",
        "db Pending(WaitingToStart): 'precondition: /mnt/x does not answer'",
    ] {
        assert!(sent.contains(&expected.to_owned()), "{sent:?}");
    }
    rig.paths
        .lock()
        .unwrap()
        .extend(["/mnt".to_owned(), "/mnt/x".to_owned()]);
    rig.pass(1_000);
    assert_eq!(rig.calls(), ["create camera", "create db"]);
    let expected = "radar Pending(WaitingToStart): 'inactive: /mnt/x exists'";
    assert!(rig.sent().contains(&expected.to_owned()));
    rig.path("/mnt", false);
    rig.pass(60_000);
    assert_eq!(rig.calls(), [] as [&str; 0], "what was known last counts");
    rig.paths.lock().unwrap().remove("/mnt/x");
    rig.path("/mnt", true);
    assert_eq!(
        rig.calls(),
        ["delete db"],
        "an activation that was looked at counts"
    );
}

// ------------------------------------------------- samples: reconcile

/// 1 -> 2, 1 -> 3, 2 -> 4, 3 -> 4, where the arrow shows the order of starts.
fn diamond(block: &str) -> [AddedWorkload; 4] {
    let one = |name: &str, needs: &[&str]| workload(name, block, needs);
    [
        one("1", &[]),
        one("2", &["1"]),
        one("3", &["1"]),
        one("4", &["2", "3"]),
    ]
}

#[test]
fn sample_reconcile_starts_in_the_order_of_readiness() {
    let mut rig = Rig::new();
    rig.add(&diamond(READY));
    rig.pass(2_000);
    assert_eq!(rig.calls(), ["create 1"]);
    rig.ready("1");
    assert_eq!(rig.calls(), ["create 2", "create 3"]);
    rig.ready("3");
    assert_eq!(rig.calls(), [] as [&str; 0]);
    rig.ready("2");
    assert_eq!(rig.calls(), ["create 4"]);
}

#[test]
fn sample_reconcile_failure_blocks_its_dependents_only() {
    for (failing, created) in [
        ("1", names(&["1"])),
        ("2", names(&["1", "2", "3"])),
        ("3", names(&["1", "2", "3"])),
        ("4", names(&["1", "2", "3", "4"])),
    ] {
        for fails in [false, true] {
            let mut rig = Rig::new();
            for name in ["1", "2", "3", "4"].iter().filter(|name| **name != failing) {
                rig.agent.answers.holds(name, Purpose::Ready, true);
            }
            rig.add(&diamond(READY));
            rig.pass(10_000);
            if fails {
                rig.ends(failing, 1);
            }
            rig.pass(60_000);
            assert_eq!(rig.containers(), created, "{failing}, {fails}");
        }
    }
}

/// 1 -> 2, 1 -> 3, 3 -> 4, 3 -> 5; 3 has a precondition.
fn with_precondition(block_of_last: &str) -> [AddedWorkload; 5] {
    [
        workload("1", "", &[]),
        workload("2", "", &["1"]),
        workload("3", "{ precondition: { pathExists: /key } }", &["1"]),
        workload("4", block_of_last, &["3"]),
        workload("5", block_of_last, &["3"]),
    ]
}

#[test]
fn sample_precondition_never_met_keeps_dependents_stopped() {
    let mut rig = Rig::new();
    rig.add(&with_precondition(""));
    rig.pass(60_000);
    assert_eq!(rig.calls(), ["create 1", "create 2"]);
    let sent = rig.sent();
    assert!(
        sent.contains(&"3 Pending(WaitingToStart): 'precondition: /key does not exist'".to_owned()),
        "{sent:?}"
    );
}

// [utest->swdd~agent-lifecycle-precondition~1]
#[test]
fn sample_precondition_withdrawn_and_restored_keeps_the_order() {
    let mut rig = Rig::new();
    rig.path("/key", true);
    rig.add(&with_precondition(""));
    rig.pass(1_000);
    assert_eq!(rig.containers(), names(&["1", "2", "3", "4", "5"]));
    let _ = (rig.calls(), rig.sent());
    rig.path("/key", false);
    assert_eq!(rig.calls(), ["delete 4", "delete 5", "delete 3"]);
    let states: BTreeMap<String, String> = rig
        .agent
        .scheduler
        .known_states()
        .map(|(of, state)| (of.workload.to_string(), state.to_string()))
        .collect();
    assert_eq!(
        states["3"],
        "Pending(WaitingToStart): 'precondition: /key does not exist'"
    );
    assert_eq!(
        states["4"],
        "Pending(WaitingToStart): 'waits for '3', which may not run'"
    );
    assert_eq!(states["1"], "Running(Ok)");
    rig.sent();
    rig.path("/key", true);
    rig.pass(1_000);
    assert_eq!(rig.calls(), ["create 3", "create 4", "create 5"]);
    assert_eq!(rig.containers(), names(&["1", "2", "3", "4", "5"]));
    let known: BTreeSet<String> = rig
        .agent
        .scheduler
        .known_states()
        .map(|(_, state)| state.to_string())
        .collect();
    assert_eq!(known, names(&["Running(Ok)"]));
}

#[test]
fn sample_precondition_failed_cleanup_keeps_its_dependency() {
    for (failing, other) in [("4", "5"), ("5", "4")] {
        for gone_condition in [true, false] {
            let mut rig = Rig::new();
            rig.path("/key", true);
            rig.agent.answers.holds(failing, Purpose::Gone, true);
            rig.add(&with_precondition(if gone_condition { GONE } else { "" }));
            rig.pass(1_000);
            rig.engine.set_stuck(failing, !gone_condition);
            rig.calls();
            rig.path("/key", false);
            rig.pass(30_000);
            let mut expected = names(&["1", "2", "3"]);
            expected.extend((!gone_condition).then(|| failing.to_owned()));
            assert_eq!(rig.containers(), expected, "{failing} and not {other}");
            rig.agent.answers.holds(failing, Purpose::Gone, false);
            rig.engine.set_stuck(failing, false);
            rig.pass(400_000);
            assert_eq!(rig.containers(), names(&["1", "2"]));
        }
    }
}

#[test]
fn sample_precondition_failure_blocks_its_dependents_only() {
    for (failing, created) in [
        ("1", names(&["1"])),
        ("2", names(&["1", "2", "3", "4", "5"])),
        ("3", names(&["1", "2", "3"])),
        ("4", names(&["1", "2", "3", "4", "5"])),
        ("5", names(&["1", "2", "3", "4", "5"])),
    ] {
        for fails in [false, true] {
            let mut rig = Rig::new();
            rig.path("/key", true);
            let mut all = with_precondition("");
            let index = failing.parse::<usize>().unwrap() - 1;
            let needs: Vec<&str> = all[index]
                .workload
                .dependencies
                .keys()
                .map(String::as_str)
                .collect();
            all[index] = workload(
                failing,
                "{ ready: { file: /up, deadlineMs: 0 }, precondition: { pathExists: /key } }",
                &needs,
            );
            rig.add(&all);
            rig.pass(1_000);
            if fails {
                rig.ends(failing, 1);
            }
            rig.pass(60_000);
            assert_eq!(rig.containers(), created, "{failing}, {fails}");
        }
    }
}

#[test]
fn precondition_restored_before_the_stop_changes_nothing() {
    let mut rig = Rig::new();
    rig.path("/key", true);
    rig.agent.answers.holds("5", Purpose::Gone, true);
    rig.add(&with_precondition(GONE));
    rig.pass(1_000);
    rig.path("/key", false);
    assert!(
        rig.phases()
            .contains(&"3 Stopping(WaitingToStop)".to_owned())
    );
    rig.path("/key", true);
    assert!(rig.phases().contains(&"3 Running(Ok)".to_owned()));
    rig.agent.answers.holds("5", Purpose::Gone, false);
    rig.pass(2_000);
    assert_eq!(rig.containers(), names(&["1", "2", "3", "4", "5"]));
}

// ---------------------------------------------------- samples: clean-up

#[test]
fn sample_cleanup_goes_from_the_last_to_the_first() {
    let mut rig = Rig::new();
    let all = diamond(GONE);
    rig.add(&all);
    rig.pass(1_000);
    for name in ["2", "3"] {
        rig.agent.answers.holds(name, Purpose::Gone, true);
    }
    rig.calls();
    rig.delete(&all);
    rig.pass(1_000);
    assert_eq!(rig.calls(), ["delete 4", "delete 2", "delete 3"]);
    for name in ["2", "3"] {
        assert_eq!(rig.containers(), names(&["1"]));
        rig.agent.answers.holds(name, Purpose::Gone, false);
        rig.pass(1_000);
    }
    assert_eq!(rig.calls(), ["delete 1"]);
    assert_eq!(rig.agent.scheduler.known_states().count(), 0);
}

/// A workload that waits to stop still needs its dependencies, even if it will be deleted as well.
#[test]
fn sample_cleanup_without_conditions_keeps_the_order() {
    let mut rig = Rig::new();
    let all = diamond("");
    rig.add(&all);
    rig.pass(1_000);
    rig.calls();
    rig.delete(&all);
    rig.pass(1_000);
    assert_eq!(
        rig.calls(),
        ["delete 4", "delete 2", "delete 3", "delete 1"]
    );
}

#[test]
fn sample_cleanup_that_fails_keeps_what_it_needs() {
    for (failing, kept) in [
        ("4", names(&["1", "2", "3"])),
        ("2", names(&["1"])),
        ("3", names(&["1"])),
        ("1", names(&[])),
    ] {
        for stuck in [false, true] {
            let mut rig = Rig::new();
            let all = diamond(GONE);
            rig.add(&all);
            rig.pass(1_000);
            rig.engine.set_stuck(failing, stuck);
            rig.agent.answers.holds(failing, Purpose::Gone, true);
            rig.delete(&all);
            rig.pass(60_000);
            let mut expected = kept.clone();
            expected.extend(stuck.then(|| failing.to_owned()));
            assert_eq!(rig.containers(), expected, "{failing}, {stuck}");
            rig.engine.set_stuck(failing, false);
            rig.agent.answers.holds(failing, Purpose::Gone, false);
            rig.pass(400_000);
            assert_eq!(rig.containers(), names(&[]), "{failing}, {stuck}");
        }
    }
}

#[test]
fn dependent_that_is_not_ready_is_pending_for_the_delete() {
    let mut rig = Rig::new();
    let all = [workload("db", "", &[]), workload("web", READY, &["db"])];
    rig.add(&all);
    rig.pass(2_000);
    assert_eq!(rig.containers(), names(&["db", "web"]));
    rig.calls();
    rig.change(&[], &[deleted_after(&all[0].instance, &["web"])]);
    rig.pass(5_000);
    assert_eq!(rig.calls(), [] as [&str; 0]);
    rig.ends("web", 0);
    assert_eq!(rig.calls(), ["delete db"]);
}

#[test]
fn results_of_conditions_are_short() {
    let long = "x".repeat(1_000);
    assert!(short_info(long.clone()).len() <= CONDITION_INFO_MAX);
    let mut rig = Rig::new();
    rig.agent
        .answers
        .set("db", Purpose::Ready, Outcome::fails(long));
    rig.add(&[workload("db", READY, &[])]);
    rig.pass(30_000);
    assert!(
        rig.agent
            .sent()
            .iter()
            .all(|report| report.state.additional_info.len() <= CONDITION_INFO_MAX)
    );
}

#[test]
fn result_of_a_check_names_only_a_deadline_that_applies() {
    let mut rig = Rig::new();
    let wanted = [workload(
        "db",
        "{ ready: { file: /up, periodMs: 1000, deadlineMs: 30000 } }",
        &[],
    )];
    rig.add(&wanted);
    rig.pass(2_000);
    assert!(rig.sent().last().unwrap().ends_with(" of 30 s'"));
    // An adopted container has no deadline.
    rig.restart_agent(&wanted);
    rig.pass(2_000);
    let sent = rig.sent();
    let last = sent.last().unwrap();
    assert!(
        last.contains("ready: file") && !last.contains(" of 30 s"),
        "{last}"
    );
}

#[test]
fn gone_condition_fails_at_its_deadline_and_never_without_one() {
    for (deadline, is_failed) in [(0, false), (5_000, true)] {
        let block =
            format!("{{ gone: {{ file: /lock, periodMs: 10000, deadlineMs: {deadline} }} }}");
        let db = workload("db", &block, &[]);
        let mut rig = Rig::new();
        rig.agent.answers.holds("db", Purpose::Gone, true);
        rig.add(std::slice::from_ref(&db));
        rig.pass(1_000);
        rig.delete(&[db]);
        // Before the second probe.
        rig.pass(6_000);
        let failed = "db Stopping(DeleteFailed)".to_owned();
        assert_eq!(rig.phases().contains(&failed), is_failed, "{deadline}");
        rig.pass(60_000);
        assert!(!rig.phases().contains(&"db Removed".to_owned()));
        if !is_failed {
            rig.agent.answers.holds("db", Purpose::Gone, false);
            rig.pass(10_000);
            assert_eq!(rig.phases(), ["db Removed"]);
        }
    }
}

#[test]
fn notify_socket_stays_the_same_while_it_is_read() {
    for (alive, is_read) in [
        ("{ notify: true, timeoutMs: 5000 }", true),
        ("{ file: /up }", false),
    ] {
        let mut rig = Rig::new();
        let block = format!("{{ ready: {{ notify: true }}, alive: {alive} }}");
        let wanted = [workload("db", &block, &[])];
        rig.add(&wanted);
        rig.pass(2_000);
        let new = rig.engine.only().1.new.unwrap();
        let socket = new.notify_socket.unwrap();
        let file = |path: &Path| std::fs::metadata(path).ok().map(|file| file.ino());
        // Keeps the number of the file from being used again.
        let kept = socket.with_extension("kept");
        std::fs::hard_link(&socket, &kept).unwrap();
        rig.agent.probes.notify("db", "READY=1");
        rig.pass(100);
        let expected = if is_read { file(&kept) } else { None };
        assert_eq!(file(&socket), expected, "{alive}");
        rig.restart_agent(&wanted);
        rig.pass(100);
        assert_eq!(socket.exists(), is_read, "{alive}");
    }
}
