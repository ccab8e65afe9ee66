//! The scheduler thread's decisions, driven through `on_event`, with everything behind it in
//! memory.

use super::*;
use crate::limits::RESTART_SPACING;
use crate::log_stream::LogAccess;
use crate::stepped_agent::{
    AgentOptions, AgentRig as Rig, SteppedAgent, deleted_after, wanted_with,
};
use ankaios_fakes::fake_connector::{Call, FakeEngine, Fault};
use ankaios_fakes::log_lines::{lines_of, suppressed};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::access_rules::{AccessRule, Operation};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::{DeletedWorkload, LogsRequest, Response, ResponseContent, ToServer};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, RestartPolicy, Workload};
use ankaios_platform::limits::LOG_SOURCE_LINES;
use crossbeam_channel::bounded;
use std::sync::Arc;
use std::time::Duration;

fn workload(name: &str, change: impl FnOnce(&mut Workload)) -> AddedWorkload {
    wanted_with(name, "a", change)
}

fn needing(name: &str, other: &str, condition: AddCondition) -> AddedWorkload {
    workload(name, |workload| {
        workload.dependencies.insert(other.to_owned(), condition);
    })
}

fn started(name: &str) -> Vec<String> {
    vec![
        format!("{name} Pending(Starting): 'Triggered at runtime.'"),
        format!("{name} Running(Ok)"),
    ]
}

// [utest->swdd~agent-handles-update-workload-requests~1]
// [utest->swdd~agent-handles-new-workload-operations]
// [utest->swdd~agent-manager-listens-requests-from-server~1]
// [utest->swdd~agent-manager-receives-workload-states-of-its-workloads~1]
#[test]
fn the_storage_example_goes_through_the_documented_states() {
    let mut rig = Rig::new();
    rig.add(&[
        needing("logger", "storage_provider", AddCondition::Running),
        needing("storage_provider", "init_storage", AddCondition::Succeeded),
        workload("init_storage", |_| {}),
        needing("error_handler", "storage_provider", AddCondition::Failed),
    ]);
    let waits =
        |name: &str, other: &str| format!("{name} Pending(WaitingToStart): 'waits for {other}'");
    let waiting = vec![
        waits("error_handler", "'storage_provider' to fail"),
        waits("logger", "'storage_provider' to run"),
        waits("storage_provider", "'init_storage' to succeed"),
    ];
    assert_eq!(rig.sent(), [waiting, started("init_storage")].concat());
    rig.ends("init_storage", 0);
    let expected = [
        vec!["init_storage Succeeded(Ok)".to_owned()],
        started("storage_provider"),
        started("logger"),
    ]
    .concat();
    assert_eq!(rig.sent(), expected);
    rig.ends("storage_provider", 1);
    let failed = vec!["storage_provider Failed(ExecFailed): 'Exit code: '1''".to_owned()];
    assert_eq!(rig.sent(), [failed, started("error_handler")].concat());
}

// [utest->swdd~agent-shows-unmet-dependencies~1]
#[test]
fn unmet_dependencies_are_reported_again_only_when_others_are() {
    let mut rig = Rig::new();
    let waiting = workload("w", |workload| {
        let conditions = [
            ("a", AddCondition::Succeeded),
            ("b", AddCondition::Running),
            ("c", AddCondition::Failed),
        ];
        workload.dependencies = conditions
            .map(|(name, condition)| (name.to_owned(), condition))
            .into();
    });
    rig.add(&[waiting]);
    let waits = |parts: &str| vec![format!("w Pending(WaitingToStart): '{parts}'")];
    assert_eq!(
        rig.sent(),
        waits("waits for 'a' to succeed; waits for 'b' to run; waits for 'c' to fail")
    );
    rig.foreign("a", Phase::Running);
    assert!(rig.sent().is_empty(), "still the same are unmet");
    rig.foreign("a", Phase::Succeeded);
    assert_eq!(
        rig.sent(),
        waits("waits for 'b' to run; waits for 'c' to fail")
    );
    rig.foreign("c", Phase::FailedExecFailed);
    assert_eq!(rig.sent(), waits("waits for 'b' to run"));
    rig.foreign("c", Phase::Running);
    assert_eq!(
        rig.sent(),
        waits("waits for 'b' to run; waits for 'c' to fail")
    );
    rig.foreign("c", Phase::FailedExecFailed);
    rig.foreign("b", Phase::Running);
    assert_eq!(
        rig.sent(),
        [waits("waits for 'b' to run"), started("w")].concat()
    );
}

/// The reason of the state that the agent has sent last.
fn last_reason(rig: &Rig) -> Reason {
    let sent = rig.agent.sent();
    sent.last().expect("it has sent a state").state.reason
}

// [utest->swdd~update-awaits-no-failure~1]
#[test]
fn reason_of_a_wait_for_failures_only_is_of_its_own() {
    let mut rig = Rig::new();
    let waiting = workload("w", |workload| {
        let conditions = [("a", AddCondition::Running), ("b", AddCondition::Failed)];
        workload.dependencies = conditions
            .map(|(name, condition)| (name.to_owned(), condition))
            .into();
    });
    rig.add(&[waiting]);
    assert_eq!(last_reason(&rig), Reason::Dependency);
    rig.foreign("a", Phase::Running);
    assert_eq!(last_reason(&rig), Reason::AwaitsFailure);
    rig.foreign("a", Phase::Succeeded);
    assert_eq!(last_reason(&rig), Reason::Dependency);
}

// [utest->swdd~agent-handles-update-workload-state-requests~1]
// [utest->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
// [utest->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
#[test]
fn states_of_other_agents_start_and_stop_what_waits_for_them() {
    for end in [Phase::Removed, Phase::Succeeded, Phase::AgentDisconnected] {
        let mut rig = Rig::new();
        rig.add(&[needing("w", "far", AddCondition::Running)]);
        rig.foreign("far", Phase::PendingStarting);
        assert!(rig.engine.take_calls().is_empty());
        rig.foreign("far", Phase::Running);
        assert_eq!(rig.engine.take_calls(), ["create w"]);
        rig.change(
            &[],
            &[deleted_after(&workload("w", |_| {}).instance, &["far"])],
        );
        assert!(rig.engine.take_calls().is_empty());
        rig.foreign("far", end);
        assert_eq!(rig.engine.take_calls(), ["delete w"], "{end}");
    }
}

#[test]
fn a_failed_start_that_was_given_up_lets_an_error_handler_start() {
    let mut rig = Rig::new();
    rig.add(&[needing("handler", "far", AddCondition::Failed)]);
    for (phase, calls) in [
        (Phase::PendingStarting, vec![]),
        (Phase::FailedLost, vec![]),
        (Phase::PendingStartingFailed, vec!["create handler"]),
    ] {
        rig.foreign("far", phase);
        assert_eq!(rig.engine.take_calls(), calls, "{phase}");
    }
}

#[test]
fn dependents_of_a_blocked_workload_are_blocked_and_no_others() {
    use AddCondition::{Failed, Running, Succeeded};
    let mut rig = Rig::new();
    let closed = workload("closed", |workload| {
        workload.runtime_config = "lifecycle: { precondition: { pathExists: /no } }".into();
    });
    rig.add(&[
        needing("after", "closed", Succeeded),
        needing("direct", "closed", Running),
        needing("handler", "closed", Failed),
        needing("indirect", "direct", Running),
        closed,
    ]);
    let known = rig.agent.scheduler.known_states();
    let states: Vec<String> = known
        .map(|(instance, state)| format!("{} {state}", instance.workload))
        .collect();
    assert_eq!(
        states,
        [
            "after Pending(WaitingToStart): 'waits for 'closed' to succeed'",
            "closed Pending(WaitingToStart): 'precondition: /no does not exist'",
            "direct Pending(WaitingToStart): 'waits for 'closed', which may not run'",
            "handler Pending(WaitingToStart): 'waits for 'closed' to fail'",
            "indirect Pending(WaitingToStart): 'waits for 'direct', which may not run'",
        ]
    );
}

// [utest->swdd~agent-manager-hysteresis_on-workload-states-of-its-workloads~1]
// [utest->swdd~agent-sends-workload-states-of-its-workloads-to-server~2]
#[test]
fn workload_that_waits_to_stop_is_shown_so_whatever_happens() {
    let mut rig = Rig::new();
    let used = workload("used", |_| {});
    rig.add(std::slice::from_ref(&used));
    rig.foreign("user", Phase::Running);
    rig.change(&[], &[deleted_after(&used.instance, &["user"])]);
    rig.sent();
    rig.ends("used", 3);
    assert_eq!(rig.sent(), [""; 0]);
    rig.foreign("user", Phase::Succeeded);
    assert_eq!(
        rig.sent(),
        ["used Stopping(RequestedAtRuntime)", "used Removed"]
    );
}

#[test]
fn workload_restarted_while_it_waits_to_stop_is_shown_waiting() {
    for code in [0, 3] {
        let mut rig = Rig::new();
        let used = workload("used", |workload| {
            workload.restart_policy = RestartPolicy::Always
        });
        rig.add(std::slice::from_ref(&used));
        rig.foreign("user", Phase::Running);
        rig.change(&[], &[deleted_after(&used.instance, &["user"])]);
        rig.ends("used", code);
        rig.agent.pass(RESTART_SPACING);
        assert_eq!(
            rig.engine.only().1.state.phase,
            Phase::Running,
            "it is needed, so it runs again"
        );
        assert_eq!(rig.sent().last().unwrap(), "used Stopping(WaitingToStop)");
        rig.foreign("user", Phase::Succeeded);
        assert_eq!(rig.sent().last().unwrap(), "used Removed");
        assert!(rig.engine.containers().is_empty());
    }
}

#[test]
fn restarts_without_server_continue_and_are_reported_later() {
    let mut rig = Rig::new();
    let restarting = workload("restarting", |w| w.restart_policy = RestartPolicy::Always);
    let all = [
        restarting,
        workload("first", |_| {}),
        needing("second", "first", AddCondition::Succeeded),
    ];
    rig.add(&all);
    rig.sent();
    rig.agent.uplink.disconnected();
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.engine.take_calls();
    for _ in 0..50 {
        rig.ends("restarting", 0);
        rig.agent.pass(Duration::from_secs(2));
    }
    rig.ends("first", 0);
    assert_eq!(
        rig.engine.take_calls(),
        [vec!["start restarting"; 50], vec!["create second"]].concat()
    );
    rig.agent.uplink.connected();
    rig.agent.hello(&all);
    let mut sent = rig.sent();
    sent.sort();
    assert_eq!(
        sent,
        [
            "first Succeeded(Ok)",
            "restarting Running(Ok)",
            "second Running(Ok)"
        ]
    );
}

#[test]
fn dependencies_after_a_reconnect_need_new_reports() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent
        .hello(&[needing("w", "far", AddCondition::Running)]);
    assert_eq!(
        rig.sent(),
        ["w Pending(WaitingToStart): 'waits for 'far' to run'"]
    );
    rig.foreign("far", Phase::Running);
    assert_eq!(rig.sent(), started("w"));
}

#[test]
fn failed_listing_is_not_requested_before_a_hello() {
    let mut rig = Rig::silent(FakeEngine::new());
    rig.agent.pass(Duration::from_secs(60));
    assert!(rig.engine.take_calls().is_empty());
}

#[test]
fn names_that_could_lead_out_of_the_run_folder_are_refused() {
    let mut rig = Rig::new();
    let mut bad = workload("w", |_| {});
    bad.instance.id = "../../x".into();
    rig.add(&[bad, workload("good", |_| {})]);
    assert_eq!(rig.sent(), started("good"));
}

#[test]
fn logs_of_a_waiting_restart_are_those_of_its_last_run() {
    let added = wanted_with("w", "image: x", |workload| {
        workload
            .dependencies
            .insert("far".to_owned(), AddCondition::Running);
    });
    let mut prepared = Rig::with(|options| options.prepare.level = PrepareLevel::Create);
    prepared.add(std::slice::from_ref(&added));
    let mut again = Rig::silent(FakeEngine::new());
    again
        .engine
        .add(&added.instance, ExecutionState::plain(Phase::Succeeded));
    again.agent.hello(std::slice::from_ref(&added));
    for (rig, has_logs) in [(&prepared, false), (&again, true)] {
        assert!(
            rig.sent()
                .last()
                .unwrap()
                .starts_with("w Pending(WaitingToStart)")
        );
        assert_eq!(rig.engine.containers().len(), 1, "{has_logs}");
        let available = rig.agent.scheduler.workloads.log_of(&added.instance);
        assert_eq!(matches!(available, LogAccess::Readable { .. }), has_logs);
    }
}

/// How the log of `added` can be read, in short.
fn log_of(rig: &Rig, added: &AddedWorkload) -> String {
    match rig.agent.scheduler.workloads.log_of(&added.instance) {
        LogAccess::Readable { start, .. } => format!("readable {start:?}"),
        LogAccess::Starting => "starting".to_owned(),
        LogAccess::Later(why) => format!("later: {why}"),
        LogAccess::Never(why) => format!("never: {why}"),
    }
}

#[test]
fn a_log_can_be_read_as_soon_as_its_container_was_started() {
    // It is not ready for a long time, so its state is that of a start.
    let config = "image: x\nlifecycle: {ready: {tcp: {port: 1}}}";
    let added = wanted_with("w", config, |workload| {
        workload.restart_policy = RestartPolicy::Always
    });
    let mut rig = Rig::new();
    assert_eq!(
        log_of(&rig, &added),
        "never: workload 'w' is not on agent 'agent_A'"
    );
    let plan = WorkloadPlan {
        added: vec![added.clone()],
        deleted: vec![],
    };
    rig.agent
        .scheduler
        .on_event(SchedulerEvent::Server(FromServer::UpdateWorkload(plan)));
    assert_eq!(log_of(&rig, &added), "starting");
    rig.agent.run();
    assert!(
        rig.sent()
            .last()
            .unwrap()
            .starts_with("w Pending(Starting): 'ready: ")
    );
    assert_eq!(log_of(&rig, &added), "readable Some(1)");
    rig.ends("w", 1);
    rig.agent.pass(Duration::from_secs(60));
    let restarted = log_of(&rig, &added);
    assert!(
        restarted.starts_with("readable Some(") && restarted != "readable Some(1)",
        "{restarted}"
    );
    rig.change(&[], &[deleted_after(&added.instance, &[])]);
    assert_eq!(
        log_of(&rig, &added),
        "never: workload 'w' is not on agent 'agent_A'"
    );
}

#[test]
fn a_log_of_a_start_that_failed_may_come_later() {
    let added = workload("w", |_| {});
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::Fails]);
    rig.add(std::slice::from_ref(&added));
    let failed = log_of(&rig, &added);
    assert!(
        failed.starts_with("later: it has no container; it is Pending(Starting): 'Retry 1: "),
        "{failed}"
    );
    rig.agent.pass(Duration::from_secs(60));
    assert_eq!(log_of(&rig, &added), "readable Some(1)");
}

#[test]
fn messages_for_what_is_not_there_change_nothing() {
    let mut rig = Rig::new();
    rig.agent.receive(FromServer::LogsCancel {
        request_id: "w@1".to_owned(),
    });
    rig.agent.receive(FromServer::WorkloadStates(vec![]));
    rig.agent.scheduler.on_event(SchedulerEvent::Status {
        workload: "nobody".into(),
        status: Arc::default(),
    });
    rig.agent.run();
    assert!(rig.sent().is_empty());
}

#[test]
fn agent_crash_during_creates_makes_no_second_container() {
    for crash_after in 0..40 {
        let (folder, engine, clock) = (
            tempfile::tempdir().unwrap(),
            FakeEngine::new(),
            ManualClock::new(),
        );
        let all: Vec<AddedWorkload> = (0..5)
            .map(|number| workload(&format!("w{number}"), |_| {}))
            .collect();
        engine.inject(Call::Create, [Fault::LeavesHalfDone, Fault::TimesOut]);
        let mut first = SteppedAgent::start(AgentOptions::new(folder.path()), &engine, &clock);
        first
            .scheduler
            .on_event(SchedulerEvent::Server(FromServer::ServerHello(all.clone())));
        for _ in 0..crash_after {
            first.step();
        }
        drop(first);
        let mut second = SteppedAgent::start(AgentOptions::new(folder.path()), &engine, &clock);
        second.hello(&all);
        second.pass(Duration::from_secs(60));
        let containers = engine.containers();
        let names: BTreeSet<Name> = containers
            .values()
            .map(|c| c.instance.workload.clone())
            .collect();
        assert_eq!(
            (containers.len(), names.len()),
            (5, 5),
            "crash after {crash_after} steps"
        );
        assert!(
            containers.values().all(|c| c.state.phase == Phase::Running),
            "crash after {crash_after} steps"
        );
    }
}

/// Seed 23784 of the simulation.
#[test]
fn deleted_workload_is_not_started_in_place_of_a_late_container() {
    let third = workload("app", |workload| workload.runtime_config = "third".into());
    for (replaced_by, then) in [
        (None, vec!["list", "delete app"]),
        (Some(third), vec!["list", "delete app", "create app"]),
    ] {
        let (net, said) = (
            workload("net", |_| {}),
            needing("app", "net", AddCondition::Running),
        );
        let older = workload("app", |workload| workload.runtime_config = "first".into());
        let mut rig = silent(&[&net, &older], &[net.clone(), said.clone()]);
        rig.change(replaced_by.as_slice(), &[deleted(&said, &[])]);
        assert_eq!(rig.lists_containers(), then);
        let sent = rig
            .agent
            .sent()
            .into_iter()
            .filter(|report| report.instance == said.instance);
        let states: Vec<String> = sent.map(|report| report.state.to_string()).collect();
        assert_eq!(states, ["Removed"]);
    }
}

/// An agent whose engine does not list its containers before `lists_containers`, with `running` and
/// a hello of `said`.
fn silent(running: &[&AddedWorkload], said: &[AddedWorkload]) -> Rig {
    let mut rig = Rig::silent(FakeEngine::new());
    for added in running {
        rig.engine
            .add(&added.instance, ExecutionState::plain(Phase::Running));
    }
    rig.engine.set_silent(true);
    rig.agent.hello(said);
    rig
}

fn deleted(added: &AddedWorkload, users: &[&str]) -> DeletedWorkload {
    deleted_after(&added.instance, users)
}

impl Rig {
    /// The engine lists its containers now. Returns the calls of the agent that follow.
    fn lists_containers(&mut self) -> Vec<String> {
        self.engine.set_silent(false);
        self.agent.pass(Duration::from_secs(10));
        self.engine.take_calls()
    }

    fn known(&self, added: &AddedWorkload) -> String {
        let state = self
            .agent
            .scheduler
            .known_states()
            .find(|(instance, _)| **instance == added.instance);
        state.map_or_else(|| "unknown".to_owned(), |(_, state)| state.to_string())
    }
}

/// Seed 2037184 of the simulation.
#[test]
fn found_container_that_only_goes_starts_no_dependents() {
    let old = workload("w0", |_| {});
    let new = workload("w0", |workload| workload.runtime_config = "new".into());
    let user = needing("w5", "w0", AddCondition::Running);
    for (replaced_by, then) in [
        (None, vec!["delete w0"]),
        (Some(new), vec!["delete w0", "create w0", "create w5"]),
    ] {
        let mut rig = silent(&[&old], std::slice::from_ref(&old));
        rig.foreign("far", Phase::Running);
        let added: Vec<_> = replaced_by.into_iter().chain([user.clone()]).collect();
        rig.change(&added, &[deleted(&old, &["far"])]);
        assert_eq!(rig.lists_containers(), ["list"], "{then:?}");
        let waits = "Pending(WaitingToStart): 'waits for 'w0' to run'";
        assert_eq!(
            (&*rig.known(&old), &*rig.known(&user)),
            ("Stopping(WaitingToStop)", waits)
        );
        rig.foreign("far", Phase::Removed);
        rig.agent.pass(Duration::from_secs(10));
        assert_eq!(rig.engine.take_calls(), then);
    }
}

#[test]
fn found_container_that_only_goes_replaces_no_other() {
    let (net, old) = (
        workload("net", |_| {}),
        needing("app", "net", AddCondition::Running),
    );
    let mut rig = silent(&[&net, &old], &[net.clone(), old.clone()]);
    rig.foreign("far", Phase::Running);
    let mut new = old.clone();
    Arc::make_mut(&mut new.workload).runtime_config = "new".into();
    new.instance = new.workload.instance_name("app");
    let deleted = [deleted(&old, &[]), deleted(&net, &["far"])];
    rig.change(std::slice::from_ref(&new), &deleted);
    assert_eq!(rig.lists_containers(), ["list", "delete app"]);
    let waits = "Pending(WaitingToStart): 'waits for 'net' to run'";
    assert_eq!(
        (&*rig.known(&net), &*rig.known(&new)),
        ("Stopping(WaitingToStop)", waits)
    );
}

#[test]
fn rolled_back_workload_never_stops_and_keeps_dependencies() {
    let (net, app) = (
        workload("net", |_| {}),
        needing("app", "net", AddCondition::Running),
    );
    let other = workload("app", |workload| workload.runtime_config = "other".into());
    let mut rig = silent(&[&net, &app], &[net.clone(), app.clone()]);
    for (old, new) in [(&app, &other), (&other, &app)] {
        rig.change(std::slice::from_ref(new), &[deleted(old, &[])]);
    }
    rig.change(&[], &[deleted(&net, &["app"])]);
    assert_eq!(rig.lists_containers(), ["list"]);
    assert_eq!(
        (&*rig.known(&net), &*rig.known(&app)),
        ("Stopping(WaitingToStop)", "Running(Ok)")
    );
    let sent = rig.sent();
    assert!(
        sent.contains(&"app Removed".to_owned()),
        "the other one never came: {sent:?}"
    );
}

/// Seed 800136 of the simulation: the agent woke up each second for a workload that it did not
/// have.
#[test]
fn conditions_of_a_withdrawn_workload_are_not_checked_for_ever() {
    let gated = workload("gated", |workload| {
        workload.runtime_config = "lifecycle: { precondition: { pathExists: /key } }".into();
    });
    let plan = FromServer::UpdateWorkload(WorkloadPlan {
        added: vec![],
        deleted: vec![deleted(&gated, &[])],
    });
    for takes_back in [plan, FromServer::ServerHello(vec![])] {
        let mut rig = silent(&[], std::slice::from_ref(&gated));
        rig.agent.receive(takes_back);
        rig.lists_containers();
        assert_eq!(rig.agent.scheduler.sizes(), [0; 3]);
    }
}

#[test]
fn the_scheduler_thread_ends_when_told_to() {
    let mut rig = Rig::new();
    let (_inbox, events) = crossbeam_channel::bounded(1);
    let (running, stop) = crossbeam_channel::bounded(0);
    drop(running);
    rig.agent.scheduler.run(
        &events,
        &stop,
        &ankaios_platform::watchdog::WatchedThreads::new(|_| {}).add("unattended"),
    );
}

/// The loads that were sent since the last call: CPU usage of 2 kB of free memory.
fn loads(rig: &Rig) -> Vec<u32> {
    let messages = std::iter::from_fn(|| rig.agent.uplink.next());
    let loads = messages.filter_map(|message| {
        if let ToServer::AgentLoad(load) = message {
            Some(load)
        } else {
            None
        }
    });
    loads
        .inspect(|load| assert_eq!((&*load.agent, load.free_memory), ("agent_A", 2048)))
        .map(|load| load.cpu_usage)
        .collect()
}

#[test]
fn load_is_reported_with_each_hello_and_every_two_seconds() {
    let mut rig = Rig::silent_with(FakeEngine::new(), |options| {
        std::fs::write(options.folder.join("meminfo"), "MemFree: 2 kB\n").unwrap();
        std::fs::write(options.folder.join("stat"), "cpu  10 0 0 90 0 0 0 0 0 0\n").unwrap();
    });
    rig.agent.pass(Duration::from_millis(2500));
    assert_eq!(loads(&rig), [] as [u32; 0], "nobody has said hello");
    rig.agent.hello(&[]);
    assert_eq!(loads(&rig), [10], "at once");
    std::fs::write(
        rig.folder.path().join("stat"),
        "cpu  30 0 0 170 0 0 0 0 0 0\n",
    )
    .unwrap();
    rig.agent.pass(Duration::from_millis(1999));
    assert_eq!(loads(&rig), [] as [u32; 0]);
    rig.agent.pass(Duration::from_millis(1));
    assert_eq!(loads(&rig), [20], "of the time since then");
    rig.agent.pass(Duration::from_secs(4));
    assert_eq!(loads(&rig).len(), 1, "only the newest waits");
    rig.clock.advance(LOAD_INTERVAL * 10);
    rig.agent.run();
    assert_eq!(
        (loads(&rig).len(), rig.agent.scheduler.due()),
        (1, rig.clock.now() + LOAD_INTERVAL),
        "without bursts"
    );
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.pass(Duration::from_millis(2700));
    assert_eq!(loads(&rig), [] as [u32; 0], "nobody is there");
    std::fs::write(
        rig.folder.path().join("stat"),
        "cpu  130 0 0 270 0 0 0 0 0 0\n",
    )
    .unwrap();
    rig.agent.hello(&[]);
    assert_eq!(loads(&rig), [50], "of the time without a connection");
}

// [utest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_for_want_of_memory_is_reported_and_counted() {
    let mut rig = Rig::new();
    rig.add(&[workload("web", |_| {}), workload("other", |_| {})]);
    rig.sent();
    rig.engine.take_calls();
    rig.engine
        .kill_out_of_memory(&rig.container_of("web"), Some(8 << 20));
    rig.agent.run();
    let text = "Failed(ExecFailed): 'Exit code: '137', out of memory (limit 8 MiB)'";
    assert_eq!(rig.sent(), [format!("web {text}")]);
    assert_eq!(rig.engine.take_calls(), ["inspect web"]);
    rig.ends("other", 1);
    assert_eq!(
        rig.engine.take_calls(),
        [""; 0],
        "no other end needs a call"
    );
    let counts: Vec<_> = ["web", "other", "unknown"]
        .map(|name| rig.agent.scheduler.workloads.out_of_memory(&name.into()))
        .into();
    assert_eq!(counts, [1, 0, 0]);
}

// [utest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_of_unknown_cause_is_asked_for_once_and_shown() {
    for fault in [None, Some(Fault::Fails)] {
        let mut rig = Rig::new();
        rig.add(&[workload("web", |_| {})]);
        rig.sent();
        rig.engine.take_calls();
        rig.engine.inject(Call::Inspect, fault);
        rig.ends("web", 137);
        assert_eq!(rig.sent(), ["web Failed(ExecFailed): 'Exit code: '137''"]);
        assert_eq!(rig.engine.take_calls(), ["inspect web"]);
    }
}

#[test]
fn overview_has_each_desired_workload_with_its_instance() {
    let mut rig = Rig::silent(FakeEngine::new());
    let shown = |rig: &mut Rig| {
        let (reply, overview) = bounded(1);
        rig.agent
            .scheduler
            .on_event(SchedulerEvent::Overview(reply));
        let Overview {
            connected,
            workloads,
        } = overview.try_recv().unwrap();
        let of_one = |one: WorkloadOverview| {
            let config = ["a", "b"].into_iter().find(|config| {
                InstanceName::new(&one.instance.workload, config, "agent_A") == one.instance
            });
            format!(
                "{}:{} {} {}",
                one.instance.workload,
                config.unwrap(),
                one.runtime,
                one.state.unwrap_or("-")
            )
        };
        (
            connected,
            workloads.into_iter().map(of_one).collect::<Vec<_>>(),
        )
    };
    assert_eq!(shown(&mut rig), (false, vec![]));
    let used = workload("used", |_| {});
    rig.agent.hello(&[
        used.clone(),
        needing("waits", "far", AddCondition::Running),
        workload("gone", |_| {}),
    ]);
    let all = [
        "gone:a podman Running",
        "used:a podman Running",
        "waits:a podman Pending",
    ]
    .map(str::to_owned);
    assert_eq!(shown(&mut rig), (true, all.to_vec()));
    // A successor waits behind its predecessor, and an instance that will go is not shown.
    rig.foreign("user", Phase::Running);
    let gone = workload("gone", |_| {}).instance;
    let new = wanted_with("used", "b", |_| {});
    rig.change(
        &[new],
        &[
            deleted_after(&used.instance, &["user"]),
            deleted_after(&gone, &["user"]),
        ],
    );
    let all = ["used:b podman Pending", "waits:a podman Pending"].map(str::to_owned);
    assert_eq!(shown(&mut rig), (true, all.to_vec()));
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    assert!(!shown(&mut rig).0);
}

fn number_of(message: &FromServer) -> usize {
    match message {
        FromServer::ServerHello(_) => 0,
        FromServer::UpdateWorkload(_) => 1,
        FromServer::WorkloadStates(_) => 2,
        FromServer::Response(_) => 3,
        FromServer::LogsRequest { .. } => 4,
        FromServer::LogsCancel { .. } => 5,
        FromServer::Prepare(_) => 6,
        FromServer::UsageRequest { .. } => 7,
        FromServer::UpdateOpen(_) => 8,
    }
}

/// All that a workload can have the server send about another one.
#[test]
fn workload_updated_without_end_does_not_fill_the_log() {
    let t0 = |config: String, runtime: &str, has_interface: bool| {
        wanted_with("t0", &config, |workload| {
            workload.runtime = runtime.into();
            let rule = AccessRule::State {
                operation: Operation::Read,
                filter_masks: vec!["*".to_owned()],
            };
            workload
                .control_interface_access
                .allow_rules
                .extend(has_interface.then_some(rule));
        })
    };
    let mut rig = Rig::new();
    let (mut old, mut sent) = (t0(String::new(), "podman", false), BTreeSet::new());
    rig.add(std::slice::from_ref(&old));
    let lines = lines_of(|| {
        for number in 0..100 {
            let new = t0(
                format!("{{ image: {number}, lifecycle: {{ update: {{}} }} }}"),
                "podman",
                true,
            );
            let instances = vec![
                InstanceName::with_id("unknown", "id", "agent_A"),
                new.instance.clone(),
            ];
            let request = LogsRequest {
                instances,
                ..LogsRequest::default()
            };
            let request_id = format!("agent_B@user@{number}");
            rig.engine.inject(Call::Image, [Fault::Fails]);
            let mut messages = vec![
                FromServer::Prepare(vec![new.clone()]),
                FromServer::LogsRequest {
                    request_id: request_id.clone(),
                    request,
                },
                FromServer::LogsCancel { request_id },
                FromServer::Response(Response {
                    id: "t0@x".to_owned(),
                    content: ResponseContent::LogsCancelAccepted,
                }),
                FromServer::WorkloadStates(vec![]),
                FromServer::UsageRequest { number: 1 },
                FromServer::UpdateOpen(number % 2 == 0),
            ];
            let same = |runtime| t0(number.to_string(), runtime, false);
            for new in [new, same("podman"), same("none"), same("podman")] {
                let deleted = vec![deleted_after(&old.instance, &[])];
                messages.push(FromServer::UpdateWorkload(WorkloadPlan {
                    added: vec![new.clone()],
                    deleted,
                }));
                old = new;
            }
            let deleted = vec![deleted_after(&old.instance, &[])];
            messages.push(FromServer::UpdateWorkload(WorkloadPlan {
                added: vec![],
                deleted,
            }));
            messages.push(FromServer::UpdateWorkload(WorkloadPlan {
                added: vec![old.clone()],
                deleted: vec![],
            }));
            rig.engine
                .inject(Call::Create, [Fault::Fails, Fault::TimesOut]);
            rig.engine.inject(Call::Delete, [Fault::Fails]);
            for message in messages {
                sent.insert(number_of(&message));
                rig.agent.receive(message);
            }
            rig.agent.pass(Duration::from_millis(100));
            rig.sent();
        }
    });
    // A hello comes with a connection, which no request makes.
    assert_eq!(sent, (1..9).collect());
    assert_eq!(
        suppressed(&lines),
        BTreeSet::from(["log requests", "t0"]),
        "{lines:#?}"
    );
    assert_eq!(
        lines.len(),
        2 * (LOG_SOURCE_LINES as usize + 1),
        "{lines:#?}"
    );
}

// [utest->swdd~agent-refuses-unreadable-workload~1]
#[test]
fn workload_of_a_newer_server_is_refused_by_name_and_others_run() {
    for level in [PrepareLevel::None, PrepareLevel::Create] {
        let mut rig = Rig::with(|options| options.prepare.level = level);
        let newer = workload("newer", |workload| {
            workload.unreadable = Some("it is too new".into())
        });
        rig.add(&[newer, workload("good", |_| {})]);
        let sent = rig.sent();
        assert!(
            sent.contains(&"newer Pending(StartingFailed): 'it is too new'".to_owned()),
            "{sent:?}"
        );
        assert!(sent.contains(&"good Running(Ok)".to_owned()), "{sent:?}");
        assert_eq!(rig.engine.containers().len(), 1);
    }
}

// [utest->swdd~agent-keeps-needed-images~1]
#[test]
fn needs_of_images_are_all_instances_that_may_be_used() {
    let needs_of = |rig: &mut Rig| {
        let (reply, needs) = bounded(1);
        let event = SchedulerEvent::ImageNeeds(reply);
        rig.agent.scheduler.on_event(event);
        needs.try_recv().expect("needs")
    };
    let mut rig = Rig::silent(FakeEngine::new());
    assert!(!needs_of(&mut rig).is_settled, "nothing is known yet");
    rig.agent.hello(&[]);
    let (one, two) = (
        wanted_with("web", "a", |_| {}),
        wanted_with("web", "b", |_| {}),
    );
    rig.add(std::slice::from_ref(&one));
    let needs = needs_of(&mut rig);
    let web = &needs.workloads["web"];
    assert!(needs.is_settled && !needs.is_update_open);
    assert_eq!(web.desired, Some(one.clone()));
    assert_eq!(web.started, std::slice::from_ref(&one));
    // A staged instance means that an update is open.
    rig.agent.receive(FromServer::Prepare(vec![two.clone()]));
    let needs = needs_of(&mut rig);
    assert!(needs.is_update_open && needs.workloads["web"].others.contains(&two));
    rig.agent.receive(FromServer::Prepare(vec![]));
    assert!(!needs_of(&mut rig).is_update_open);
    for is_open in [true, false] {
        rig.agent.receive(FromServer::UpdateOpen(is_open));
        assert_eq!(needs_of(&mut rig).is_update_open, is_open);
    }
    // The next session reports it again.
    rig.agent.receive(FromServer::UpdateOpen(true));
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    let needs = needs_of(&mut rig);
    assert!(!needs.is_settled && !needs.is_update_open);
    // The current instance stays while its successor waits for others.
    rig.agent.hello(std::slice::from_ref(&one));
    rig.foreign("user", Phase::Running);
    rig.change(
        std::slice::from_ref(&two),
        &[deleted_after(&one.instance, &["user"])],
    );
    let needs = needs_of(&mut rig);
    let web = &needs.workloads["web"];
    assert_eq!((&web.desired, &web.started[..]), (&Some(two), &[one][..]));
}
