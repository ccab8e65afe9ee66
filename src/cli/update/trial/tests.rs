//! When an update is good and when it has failed, with reports at given times.

mod undo;

use super::*;
use crate::tests::{ScriptedServer, Step, accepted, instance, let_need, reported, state};
use ankaios_model::complete_state::execution_state_node;
use ankaios_platform::clock::{Clock, SystemClock};

/// What a check says: good, failed with a reason, or the second of the next check.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    Good,
    Failed(String),
    Open(f32),
}

struct Rig {
    wait: WaitState,
    trial: ClientTrial,
    begin: Instant,
    /// The effective state.
    effective: Node,
}

/// The effective state: names with restart policy and block `update`.
fn effective(workloads: &[(&str, &str, &str)]) -> Node {
    let workload = |(name, policy, block): &(&str, &str, &str)| {
        let config = format!("image: x\nlifecycle: {{ update: {block} }}");
        let fields = [
            ("runtime", "podman"),
            ("restartPolicy", policy),
            ("runtimeConfig", &config),
        ];
        (
            (*name).to_owned(),
            Node::map(fields.map(|(key, text)| (key, Node::text(text)))),
        )
    };
    Node::map([(
        "effectiveState",
        Node::map([("workloads", Node::map(workloads.iter().map(workload)))]),
    )])
}

impl Rig {
    /// Begins the trial of `changes` to the complete state `before`; instances begin as
    /// `Pending(Initial)`.
    fn new(changes: &Accepted, before: &Node, connected: &[&str], effective: &Node) -> Self {
        let mut now = before.clone();
        for name in changes.added.iter().chain(&changes.deleted) {
            let path = ["workloadStates", &name.agent, &name.workload, &name.id];
            let place = path.iter().fold(&mut now, |at, key| {
                at.as_map_mut().unwrap().child((*key).to_owned())
            });
            if place.is_empty_container() {
                *place = execution_state_node(&ExecutionState::plain(Phase::PendingInitial));
            }
        }
        let agents = state(connected, &[]).get("agents").cloned().unwrap();
        now.as_map_mut()
            .unwrap()
            .insert("agents".to_owned(), agents);
        let begin = SystemClock.now();
        let mut wait = WaitState::new(changes, before, &now, AbsentAgents::Skipped);
        let trial = ClientTrial::new(changes, before, &mut wait, effective, begin);
        Self {
            wait,
            trial,
            begin,
            effective: effective.clone(),
        }
    }

    /// One new workload `w` on agent `A`.
    fn of_one(policy: &str, block: &str) -> Self {
        Self::new(
            &accepted(&["w.1.A"], &[]),
            &state(&["A"], &[]),
            &["A"],
            &effective(&[("w", policy, block)]),
        )
    }

    fn at(&self, second: f32) -> Instant {
        self.begin + Duration::from_secs_f32(second)
    }

    fn report(&mut self, second: f32, name: &str, phase: Phase, info: &str) {
        let states = [reported(name, phase, info)];
        self.wait.on_states(&states);
        self.check_with(second, &states);
    }

    fn check(&mut self, second: f32) -> Verdict {
        self.check_with(second, &[])
    }

    fn check_with(&mut self, second: f32, states: &[WorkloadState]) -> Verdict {
        let now = self.at(second);
        let mut server = ScriptedServer {
            now,
            ..ScriptedServer::new([Step::State(self.effective.clone())])
        };
        match self
            .trial
            .check(&mut self.wait, &mut server, states)
            .unwrap()
        {
            GoalProgress::Break(()) => self
                .trial
                .failure
                .clone()
                .map_or(Verdict::Good, Verdict::Failed),
            GoalProgress::Continue(again) => {
                let again = again.unwrap().duration_since(self.begin).as_secs_f32();
                Verdict::Open((again * 10.0).round() / 10.0)
            }
        }
    }
}

fn failed(why: &str) -> Verdict {
    Verdict::Failed(why.to_owned())
}

#[test]
fn instance_is_healthy_after_running_without_interruption() {
    let mut rig = Rig::of_one("ON_FAILURE", "{ healthyMs: 10000, deadlineMs: 60000 }");
    assert_eq!(rig.check(0.0), Verdict::Open(60.0));
    rig.report(1.0, "w.1.A", Phase::PendingStarting, "");
    rig.report(2.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(2.0), Verdict::Open(12.0));
    rig.report(11.0, "w.1.A", Phase::FailedExecFailed, "Exit code: '1'");
    assert_eq!(rig.check(11.0), Verdict::Open(60.0));
    rig.report(12.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(13.0), Verdict::Open(22.0));
    rig.report(15.0, "w.1.A", Phase::Running, "ready: again");
    assert_eq!(rig.check(21.9), Verdict::Open(22.0));
    assert_eq!(rig.check(22.0), Verdict::Good);
}

#[test]
fn what_cannot_come_to_run_any_more_has_failed() {
    let no_more = "No more restarts: Exit code: '1'";
    for (policy, phase, info, fails) in [
        (
            "ALWAYS",
            Phase::PendingStartingFailed,
            "No more retries: no image",
            true,
        ),
        ("NEVER", Phase::FailedExecFailed, "Exit code: '1'", true),
        ("ALWAYS", Phase::FailedExecFailed, "Exit code: '1'", false),
        (
            "ON_FAILURE",
            Phase::FailedExecFailed,
            "Exit code: '1'",
            false,
        ),
        ("ON_FAILURE", Phase::FailedExecFailed, no_more, true),
        ("NEVER", Phase::FailedLost, "", false),
        ("NEVER", Phase::FailedUnknown, "", false),
        ("NEVER", Phase::PendingStarting, "Retry 3: no image", false),
    ] {
        let mut rig = Rig::of_one(policy, "{}");
        rig.report(1.0, "w.1.A", phase, info);
        let expected = if fails {
            failed(&format!("w: {phase}: '{info}'"))
        } else {
            Verdict::Open(120.0)
        };
        assert_eq!(rig.check(1.0), expected, "{policy} {phase} {info}");
    }
}

#[test]
fn without_a_block_the_defaults_count() {
    let effective = Node::map([("effectiveState", Node::empty())]);
    let mut rig = Rig::new(
        &accepted(&["w.1.A"], &[]),
        &state(&["A"], &[]),
        &["A"],
        &effective,
    );
    rig.report(1.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(1.0), Verdict::Open(11.0));
    rig.report(2.0, "w.1.A", Phase::PendingStarting, "");
    assert_eq!(rig.check(119.9), Verdict::Open(120.0));
    assert_eq!(
        rig.check(120.0),
        failed("w: not healthy within 120 s: Pending(Starting)")
    );
}

#[test]
fn deadline_pauses_without_agent_and_restarts_after_health() {
    let mut rig = Rig::of_one("ALWAYS", "{ healthyMs: 1000, deadlineMs: 10000 }");
    rig.report(4.0, "w.1.A", Phase::AgentDisconnected, "");
    assert_eq!(
        rig.check(100.0),
        Verdict::Good,
        "nothing but an absent agent is left"
    );
    rig.report(100.0, "w.1.A", Phase::PendingStarting, "");
    assert_eq!(rig.check(100.0), Verdict::Open(106.0));
    rig.report(104.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(105.0), Verdict::Good);
    rig.report(200.0, "w.1.A", Phase::PendingStarting, "");
    assert_eq!(rig.check(200.0), Verdict::Open(210.0));
    assert_eq!(
        rig.check(210.0),
        failed("w: not healthy within 10 s: Pending(Starting)")
    );
}

#[test]
fn an_agent_that_was_away_from_the_beginning_is_not_waited_for() {
    let changes = accepted(&["w.1.A", "v.1.B"], &[]);
    let mut rig = Rig::new(
        &changes,
        &state(&["A"], &[]),
        &["A"],
        &effective(&[("w", "NEVER", "{ healthyMs: 0 }")]),
    );
    assert_eq!(rig.check(0.0), Verdict::Open(120.0));
    rig.report(1.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(1.0), Verdict::Good);
}

#[test]
fn reports_about_the_old_instance_of_the_same_name_do_not_count() {
    let before = state(&["A"], &[("w", "1", "A", Phase::Running)]);
    let changes = accepted(&["w.1.A"], &["w.1.A"]);
    let mut rig = Rig::new(
        &changes,
        &before,
        &["A"],
        &effective(&[("w", "NEVER", "{}")]),
    );
    rig.report(1.0, "w.1.A", Phase::Running, "");
    rig.report(2.0, "w.1.A", Phase::FailedExecFailed, "Exit code: '1'");
    assert_eq!(rig.check(3.0), Verdict::Open(120.0));
    rig.report(4.0, "w.1.A", Phase::Removed, "");
    rig.report(5.0, "w.1.A", Phase::Running, "");
    assert_eq!(rig.check(5.0), Verdict::Open(15.0));
    assert_eq!(rig.check(15.0), Verdict::Good);
    // After a reconnect the agent reports its instances.
    let mut rig = Rig::new(
        &changes,
        &before,
        &["A"],
        &effective(&[("w", "NEVER", "{}")]),
    );
    rig.report(1.0, "w.1.A", Phase::AgentDisconnected, "");
    rig.report(2.0, "w.1.A", Phase::FailedExecFailed, "Exit code: '1'");
    assert_eq!(
        rig.check(2.0),
        failed("w: Failed(ExecFailed): 'Exit code: '1''")
    );
}

/// It was set back without waiting, and applied again before it had ended.
#[test]
fn late_end_of_an_older_instance_is_not_that_of_the_new_one() {
    let before = state(
        &["A"],
        &[
            ("w", "1", "A", Phase::PendingInitial),
            ("w", "2", "A", Phase::Running),
        ],
    );
    let changes = accepted(&["w.2.A"], &["w.1.A"]);
    let mut rig = Rig::new(
        &changes,
        &before,
        &["A"],
        &effective(&[("w", "NEVER", "{}")]),
    );
    rig.report(1.0, "w.1.A", Phase::Removed, "");
    rig.report(1.0, "w.2.A", Phase::Running, "");
    assert_eq!(
        rig.check(11.0),
        Verdict::Open(120.0),
        "what runs is the older one"
    );
    rig.report(12.0, "w.2.A", Phase::Removed, "");
    assert_eq!(rig.check(12.0), Verdict::Open(120.0));
    rig.report(13.0, "w.2.A", Phase::FailedExecFailed, "Exit code: '1'");
    assert_eq!(
        rig.check(13.0),
        failed("w: Failed(ExecFailed): 'Exit code: '1''")
    );
    assert!(rig.trial.gone.is_empty());
}

/// A restart that makes a new container reports the end of the old one.
#[test]
fn a_restart_was_taken_for_a_delete_by_others() {
    let mut rig = Rig::of_one("ALWAYS", "{ deadlineMs: 30000 }");
    for second in [1.0, 2.0] {
        rig.report(second, "w.1.A", Phase::FailedExecFailed, "Exit code: '1'");
        rig.report(second, "w.1.A", Phase::Removed, "");
        assert_eq!(rig.check(second), Verdict::Open(30.0));
    }
    rig.report(3.0, "w.1.A", Phase::PendingStarting, "");
    assert_eq!(
        rig.check(30.0),
        failed("w: not healthy within 30 s: Pending(Starting)")
    );
}

#[test]
fn instances_that_others_delete_or_replace_are_not_evaluated() {
    let rules = effective(&[("w", "NEVER", "{}"), ("v", "NEVER", "{ healthyMs: 0 }")]);
    let mut rig = Rig::new(
        &accepted(&["w.2.A", "v.2.A"], &["w.1.A"]),
        &state(&["A"], &[]),
        &["A"],
        &rules,
    );
    rig.report(1.0, "w.1.A", Phase::Removed, "");
    rig.report(1.0, "w.2.A", Phase::Running, "");
    rig.effective = effective(&[("v", "NEVER", "{ healthyMs: 0 }")]);
    rig.report(2.0, "w.2.A", Phase::Removed, "");
    assert_eq!(rig.check(2.0), Verdict::Open(120.0));
    assert!(rig.trial.gone.contains("w"));
    rig.report(3.0, "v.2.A", Phase::Running, "");
    assert_eq!(rig.check(3.0), Verdict::Good);
}

#[test]
fn what_may_not_run_is_waited_for_only_if_it_ran() {
    let changes = accepted(&["w.2.A"], &["w.1.A"]);
    for (info, ran, waited) in [
        ("precondition: /key does not exist", Phase::Running, true),
        (
            "precondition: /key does not exist",
            Phase::PendingWaitingToStart,
            false,
        ),
        ("inactive: the agent has no tag zone", Phase::Running, false),
        ("", Phase::PendingWaitingToStart, true),
    ] {
        let before = state(&["A"], &[("w", "1", "A", ran)]);
        let mut rig = Rig::new(
            &changes,
            &before,
            &["A"],
            &effective(&[("w", "NEVER", "{}")]),
        );
        rig.report(1.0, "w.1.A", Phase::Removed, "");
        rig.report(1.0, "w.2.A", Phase::PendingWaitingToStart, info);
        let expected = if waited {
            Verdict::Open(120.0)
        } else {
            Verdict::Good
        };
        assert_eq!(rig.check(2.0), expected, "{info} {ran}");
    }
}

/// `logger` needs `api`, which needs `db`; `report` needs the end of `db`, `off` did not run.
fn dependents() -> Node {
    let running = ["db", "api", "logger", "report"].map(|name| (name, "1", "A", Phase::Running));
    let mut before = state(
        &["A"],
        &[&running[..], &[("off", "1", "A", Phase::Succeeded)]].concat(),
    );
    for (name, needs, how) in [
        ("api", "db", "ADD_COND_RUNNING"),
        ("logger", "api", "ADD_COND_RUNNING"),
        ("report", "db", "ADD_COND_SUCCEEDED"),
        ("off", "db", "ADD_COND_RUNNING"),
    ] {
        let_need(&mut before, "desiredState", name, &[(needs, how)]);
    }
    before
}

#[test]
fn running_workloads_that_need_a_changed_one_are_judged_with_it() {
    let changes = accepted(&["db.2.A"], &["db.1.A"]);
    let rules = effective(&[
        ("db", "NEVER", "{ healthyMs: 1000 }"),
        ("logger", "NEVER", "{ deadlineMs: 20000 }"),
    ]);
    let begin = || {
        let mut rig = Rig::new(&changes, &dependents(), &["A"], &rules);
        rig.report(1.0, "db.1.A", Phase::Removed, "");
        rig.report(1.0, "db.2.A", Phase::Running, "");
        rig
    };
    assert_eq!(begin().trial.trial.waits_for(), ["api", "db", "logger"]);
    let mut rig = begin();
    assert_eq!(
        rig.check(9.9),
        Verdict::Open(10.0),
        "all have to be healthy at the same time"
    );
    assert_eq!(rig.check(10.0), Verdict::Good);
    let mut rig = begin();
    rig.report(2.0, "logger.1.A", Phase::FailedExecFailed, "Exit code: '3'");
    assert_eq!(
        rig.check(2.0),
        failed("logger: Failed(ExecFailed): 'Exit code: '3''")
    );
    let mut rig = begin();
    rig.report(5.0, "logger.1.A", Phase::PendingStarting, "Retry 1: x");
    assert_eq!(rig.check(19.9), Verdict::Open(20.0));
    assert_eq!(
        rig.check(20.0),
        failed("logger: not healthy within 20 s: Pending(Starting): 'Retry 1: x'")
    );
    let frame = rig.wait.frame(' ', 200, 20).join("\n");
    assert!(frame.contains("logger"), "what is judged is shown: {frame}");
}

#[test]
fn dependents_of_updates_that_are_kept_undo_nothing() {
    let rules = effective(&[
        ("db", "NEVER", "{ onFailure: KEEP, healthyMs: 0 }"),
        ("logger", "NEVER", "{}"),
    ]);
    let mut rig = Rig::new(&accepted(&["db.2.A"], &[]), &dependents(), &["A"], &rules);
    rig.report(1.0, "db.2.A", Phase::Running, "");
    rig.report(1.0, "logger.1.A", Phase::FailedExecFailed, "Exit code: '3'");
    assert_eq!(rig.check(10.0), Verdict::Good);
    assert_eq!(
        rig.trial.kept,
        ["logger: Failed(ExecFailed): 'Exit code: '3''"]
    );
}

#[test]
fn three_losses_of_agents_with_started_instances_are_a_failure() {
    let mut rig = Rig::of_one("ALWAYS", "{}");
    rig.report(0.0, "w.1.A", Phase::AgentDisconnected, ""); // Not started yet.
    for second in [1.0, 2.0, 3.0] {
        assert_ne!(rig.check(second), failed("w: 3 losses of agent 'A'"));
        rig.report(second, "w.1.A", Phase::Running, "");
        rig.report(second, "w.1.A", Phase::AgentDisconnected, "");
        rig.report(second, "w.1.A", Phase::AgentDisconnected, "");
    }
    assert_eq!(rig.check(4.0), failed("w: 3 losses of agent 'A'"));
}

#[test]
fn a_failure_under_keep_is_only_noted() {
    let rules = effective(&[
        ("w", "NEVER", "{ onFailure: KEEP }"),
        ("v", "NEVER", "{ healthyMs: 0 }"),
    ]);
    let mut rig = Rig::new(
        &accepted(&["w.1.A", "v.1.A"], &[]),
        &state(&["A"], &[]),
        &["A"],
        &rules,
    );
    rig.report(1.0, "w.1.A", Phase::FailedExecFailed, "Exit code: '1'");
    assert_eq!(rig.check(1.0), Verdict::Open(120.0));
    rig.report(2.0, "v.1.A", Phase::Running, "");
    assert_eq!(rig.check(2.0), Verdict::Good);
    assert_eq!(rig.trial.kept, ["w: Failed(ExecFailed): 'Exit code: '1''"]);
}

#[test]
fn update_that_cannot_stop_the_old_one_names_its_dependents() {
    let changes = accepted(&["db.2.A"], &["db.1.A"]);
    let mut rig = Rig::new(
        &changes,
        &dependents(),
        &["A"],
        &effective(&[("db", "NEVER", "{}")]),
    );
    rig.report(1.0, "db.1.A", Phase::StoppingWaitingToStop, "");
    let why = "db: not healthy within 120 s: Stopping(WaitingToStop): 'waits for 'api' to end: it is Running(Ok)'";
    assert_eq!(rig.check(120.0), failed(why));
}

#[test]
fn ends_are_awaited_and_instances_without_agent_not_evaluated() {
    let before = state(&["A"], &[("old", "1", "A", Phase::Running)]);
    let changes = accepted(&["new.1."], &["old.1.A"]);
    let mut rig = Rig::new(&changes, &before, &["A"], &effective(&[]));
    let mut server = ScriptedServer {
        now: rig.at(0.0),
        ..ScriptedServer::new([])
    };
    let progress = rig.trial.check(&mut rig.wait, &mut server, &[]).unwrap();
    assert_eq!(progress, GoalProgress::Continue(None));
    rig.report(1.0, "old.1.A", Phase::Removed, "");
    assert_eq!(rig.check(1.0), Verdict::Good);
}

#[test]
fn what_is_judged_turns_in_the_frame_until_it_is_healthy() {
    let mut rig = Rig::of_one("NEVER", "{}");
    rig.report(1.0, "w.1.A", Phase::Running, "");
    rig.check(1.0);
    assert!(rig.wait.frame('/', 200, 20)[1].contains("/ Running(Ok)"));
    assert_eq!(rig.wait.outstanding(), [&instance("w.1.A")]);
}
