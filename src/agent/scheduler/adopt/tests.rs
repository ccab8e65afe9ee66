//! What an agent does with containers of an earlier life, and with its own when the server says
//! hello again.

use crate::events::SchedulerEvent;
use crate::limits::{EARLIER_CALLS_GRACE, EARLIER_CALLS_MAX, FIRST_LISTING_MAX, REPAIR_INTERVAL};
use crate::stepped_agent::{AgentOptions, AgentRig as Rig, deleted_after, wanted_with};
use ankaios_fakes::fake_connector::{Call, FAILURE, FakeEngine, Fault};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::limits::BACKOFF_FIRST;
use ankaios_model::messages::{AddedWorkload, FromServer, ToServer, WorkloadPlan};
use ankaios_model::names::InstanceName;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{AddCondition, File, FileContent, RestartPolicy};
use ankaios_runtime::engine_children::EarlierCalls;
use std::sync::{Arc, Mutex};
use std::time::Duration;

impl Rig {
    fn sent_sorted(&self) -> Vec<String> {
        let mut sent = self.sent();
        sent.sort();
        sent
    }

    /// Forgets the messages and calls until now.
    fn forget(&self) {
        self.sent();
        self.engine.take_calls();
    }
}

/// An agent that has received no hello yet.
fn silent() -> Rig {
    silent_with(|_| {})
}

fn silent_with(change: impl FnOnce(&mut AgentOptions)) -> Rig {
    Rig::silent_with(FakeEngine::new(), change).telling_configs()
}

/// An agent that has received no hello yet, on an engine with these containers of an earlier agent.
fn found(containers: &[(&str, &str, ExecutionState)]) -> Rig {
    let rig = silent();
    for (name, config, state) in containers {
        rig.engine.add(&instance(name, config), state.clone());
    }
    rig
}

fn wanted(name: &str, config: &str) -> AddedWorkload {
    wanted_with(name, config, |_| {})
}

fn needs_other(name: &str) -> AddedWorkload {
    wanted_with(name, "a", |w| {
        w.dependencies
            .insert("other".to_owned(), AddCondition::Running);
    })
}

fn instance(name: &str, config: &str) -> InstanceName {
    InstanceName::new(name, config, "agent_A")
}

fn plain(phase: Phase) -> ExecutionState {
    ExecutionState::plain(phase)
}

// [utest->swdd~agent-initial-list-existing-workloads~1]
// [utest->swdd~agent-existing-workloads-finds-list~1]
// [utest->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
// [utest->swdd~agent-existing-workloads-starts-new-if-not-found~1]
#[test]
fn desired_workload_without_container_is_created_after_listing() {
    let mut rig = silent();
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(rig.engine.take_calls(), ["list", "create w"]);
    assert_eq!(
        rig.sent(),
        [
            "w:a Pending(Starting): 'Triggered at runtime.'",
            "w:a Running(Ok)"
        ]
    );
}

// [utest->swdd~agent-existing-workloads-resume-existing~2]
// [utest->swdd~agent-resume-workload~2]
// [utest->swdd~agent-existing-workloads-replace-updated~2]
#[test]
fn an_existing_container_is_resumed_reused_or_replaced() {
    let started = "w:a Pending(Starting): 'Triggered at runtime.'";
    let replaced = |old: &str| {
        vec![
            format!("{old} Stopping(RequestedAtRuntime)"),
            format!("{old} Removed"),
            started.to_owned(),
        ]
    };
    for (config, state, calls, states) in [
        ("a", plain(Phase::Running), vec!["list"], vec![]),
        (
            "a",
            plain(Phase::Succeeded),
            vec!["list", "start w"],
            vec![started.to_owned()],
        ),
        (
            "a",
            ExecutionState::exited(1),
            vec!["list", "delete w", "create w"],
            replaced("w:a"),
        ),
        (
            "a",
            plain(Phase::FailedUnknown),
            vec!["list", "delete w", "create w"],
            replaced("w:a"),
        ),
        (
            "a",
            plain(Phase::PendingStarting),
            vec!["list", "delete w", "create w"],
            replaced("w:a"),
        ),
        (
            "b",
            plain(Phase::Running),
            vec!["list", "delete w", "create w"],
            replaced("w:b"),
        ),
        (
            "b",
            plain(Phase::Succeeded),
            vec!["list", "delete w", "create w"],
            replaced("w:b"),
        ),
    ] {
        let mut rig = found(&[("w", config, state.clone())]);
        rig.agent.hello(&[wanted("w", "a")]);
        assert_eq!(rig.engine.take_calls(), calls, "{config} {state}");
        let mut expected = states;
        // Known before anybody looks again.
        expected.extend((calls == ["list"]).then(|| "w:a Running(Ok)".to_owned()));
        expected.push("w:a Running(Ok)".to_owned());
        assert_eq!(rig.sent(), expected, "{config} {state}");
        assert_eq!(rig.engine.only().1.instance, instance("w", "a"));
    }
}

#[test]
fn what_cannot_be_started_again_is_replaced_when_it_succeeded() {
    let mut rig = silent();
    rig.engine.forbid_start_again();
    rig.engine.add(&instance("w", "a"), plain(Phase::Succeeded));
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(rig.engine.take_calls(), ["list", "delete w", "create w"]);
}

#[test]
fn missing_engine_is_called_once_per_hello_and_per_workload() {
    let mut rig = silent();
    rig.engine
        .inject(Call::List, [Fault::IsMissing, Fault::IsMissing]);
    rig.agent.hello(&[]);
    rig.agent.pass(REPAIR_INTERVAL * 3);
    assert_eq!(rig.engine.take_calls(), ["list"]);
    rig.agent.hello(&[]);
    assert_eq!(rig.engine.take_calls(), ["list"]);
    // It was installed in the meantime, and an earlier agent had left something.
    rig.engine.add(&instance("w", "b"), plain(Phase::Running));
    rig.add(&[wanted("w", "a")]);
    assert_eq!(rig.engine.take_calls(), ["list", "delete w", "create w"]);
}

#[test]
fn replacement_waits_for_dependencies_but_removes_at_once() {
    let waits = "w:a Pending(WaitingToStart): 'waits for 'other' to run'";
    for (config, phase, calls, states, start) in [
        ("a", Phase::Succeeded, vec!["list"], vec![waits], "start w"),
        (
            "b",
            Phase::Running,
            vec!["list", "delete w"],
            vec![waits, "w:b Stopping(RequestedAtRuntime)", "w:b Removed"],
            "create w",
        ),
    ] {
        for late in [false, true] {
            let mut rig = found(&[("w", config, plain(phase))]);
            rig.engine.inject(Call::List, late.then_some(Fault::Fails));
            rig.agent.hello(&[needs_other("w")]);
            rig.agent.pass(REPAIR_INTERVAL * 2);
            assert_eq!(
                rig.engine.take_calls(),
                [vec!["list"; usize::from(late)], calls.clone()].concat(),
                "{late}"
            );
            let mut sent = rig.sent();
            sent.dedup();
            assert_eq!(sent, states, "{late}");
            rig.add(&[wanted("other", "a")]);
            assert_eq!(rig.engine.take_calls(), ["create other", start], "{late}");
            assert_eq!(rig.engine.containers().len(), 2, "{late}");
            assert_eq!(rig.sent().last().unwrap(), "w:a Running(Ok)", "{late}");
        }
    }
}

#[test]
fn finished_container_kept_for_reuse_goes_with_its_workload() {
    let mut rig = found(&[("w", "a", plain(Phase::Succeeded))]);
    rig.agent.hello(&[needs_other("w")]);
    rig.change(&[], &[deleted_after(&instance("w", "a"), &[])]);
    assert!(rig.engine.containers().is_empty());
    let waits = "w:a Pending(WaitingToStart): 'waits for 'other' to run'";
    let sequence = [waits, "w:a Stopping(RequestedAtRuntime)", "w:a Removed"];
    assert_eq!(rig.sent(), sequence);
}

// [utest->swdd~agent-existing-workloads-delete-unneeded~1]
// [utest->swdd~agent-delete-old-workload~2]
#[test]
fn containers_that_nobody_wants_are_deleted() {
    let mut rig = found(&[
        ("w", "a", plain(Phase::Running)),
        ("other", "a", plain(Phase::Succeeded)),
    ]);
    let old_folder = rig.folder.path().join(instance("w", "a").folder());
    std::fs::create_dir_all(old_folder.join("files")).unwrap();
    rig.agent.hello(&[]);
    assert!(rig.engine.containers().is_empty());
    assert!(!old_folder.exists());
    let sent = rig.sent_sorted();
    let expected = |name: &str| {
        [
            format!("{name}:a Removed"),
            format!("{name}:a Stopping(RequestedAtRuntime)"),
        ]
    };
    assert_eq!(sent, [expected("other"), expected("w")].concat());
    assert_eq!(rig.agent.loops.count(), 0);
}

#[test]
fn a_failed_delete_of_an_unneeded_container_is_retried() {
    let mut rig = found(&[("w", "a", plain(Phase::Running))]);
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    rig.agent.hello(&[]);
    assert_eq!(
        rig.sent().last().unwrap(),
        &format!("w:a Stopping(DeleteFailed): '{FAILURE}'")
    );
    rig.agent.pass(Duration::from_secs(10));
    assert!(rig.engine.containers().is_empty());
    assert_eq!(rig.sent().last().unwrap(), "w:a Removed");
}

#[test]
fn best_of_several_containers_of_a_workload_stays() {
    let mut rig = found(&[("w", "b", plain(Phase::Running))]);
    let best = rig.engine.add(&instance("w", "a"), plain(Phase::Running));
    rig.engine.add(&instance("w", "a"), plain(Phase::Succeeded));
    let files = rig
        .folder
        .path()
        .join(instance("w", "a").folder())
        .join("files");
    std::fs::create_dir_all(&files).unwrap();
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(rig.engine.only().0, best);
    assert!(!rig.engine.take_calls().contains(&"create w".to_owned()));
    let mut sent = rig.sent();
    sent.retain(|state| state.starts_with("w:a "));
    sent.dedup();
    assert_eq!(sent, ["w:a Running(Ok)"]);
    assert!(files.exists());
    assert_eq!(rig.agent.loops.count(), 1);
}

#[test]
fn old_container_of_a_moved_workload_goes_before_the_new_one() {
    for state in [Phase::Running, Phase::Succeeded] {
        let mut rig = found(&[("w", "a", plain(state))]);
        rig.agent
            .hello(&[wanted_with("w", "a", |w| w.runtime = "podman-kube".into())]);
        assert!(rig.engine.containers().is_empty());
        let expected = [
            "w:a Stopping(RequestedAtRuntime)",
            "w:a Removed",
            "w:a Pending(Starting): 'Triggered at runtime.'",
            "w:a Pending(StartingFailed): 'Unsupported Runtime: 'podman-kube' is not among the 'runtimes' in the config \
             file of the agent'",
        ];
        assert_eq!(rig.sent(), expected, "{state}");
        assert_eq!(rig.agent.loops.count(), 1);
    }
}

#[test]
fn finished_workloads_run_again_after_an_agent_restart_or_not() {
    #[derive(Debug, PartialEq)]
    enum LastRun {
        ThisBoot,
        EarlierBoot,
        Unknown,
    }
    for (keeps, last_run, state, rerun_expected) in [
        (false, LastRun::ThisBoot, ExecutionState::exited(0), true),
        (true, LastRun::ThisBoot, ExecutionState::exited(0), false),
        (true, LastRun::ThisBoot, ExecutionState::exited(1), false),
        (true, LastRun::EarlierBoot, ExecutionState::exited(0), true),
        (true, LastRun::Unknown, ExecutionState::exited(0), true),
    ] {
        let mut rig = silent_with(|options| options.keeps_finished = keeps);
        let id = rig.engine.add(&instance("w", "a"), state.clone());
        if last_run != LastRun::Unknown {
            rig.engine.note(&id);
        }
        if last_run == LastRun::EarlierBoot {
            rig.engine.reboot();
        }
        rig.agent.hello(&[wanted("w", "a")]);
        assert_eq!(
            rig.engine.take_calls().len() > 1,
            rerun_expected,
            "{keeps} {last_run:?} {state}"
        );
        if !rerun_expected {
            let mut sent = rig.sent();
            sent.dedup();
            assert_eq!(sent, [format!("w:a {state}")]);
        }
    }
}

// [utest->swdd~agent-keeps-observed-ends~1]
#[test]
fn observed_end_stays_when_others_remove_the_container() {
    let needs = |name: &str, on: &str, condition| {
        wanted_with(name, "a", |w| {
            _ = w.dependencies.insert(on.to_owned(), condition)
        })
    };
    for (policy, code) in [
        (RestartPolicy::Never, 0),
        (RestartPolicy::Never, 3),
        (RestartPolicy::OnFailure, 0),
    ] {
        let mut rig = Rig::with(|options| options.keeps_finished = true).telling_configs();
        let finished = wanted_with("w", "a", |w| w.restart_policy = policy);
        rig.add(std::slice::from_ref(&finished));
        rig.ends("w", code);
        let condition = if code == 0 {
            AddCondition::Succeeded
        } else {
            AddCondition::Failed
        };
        rig.engine.remove(&rig.container_of("w"));
        rig.agent.run();
        let later = needs("later", "w", condition);
        rig.add(std::slice::from_ref(&later));
        let end = format!("w:a {}", ExecutionState::exited(code));
        let sent = rig.sent();
        assert_eq!(
            sent.iter().rfind(|state| state.starts_with("w:")),
            Some(&end),
            "{policy} {code}"
        );
        assert_eq!(
            rig.engine.take_calls(),
            ["create w", "create later"],
            "{policy} {code}"
        );

        // The next agent knows of it, too.
        rig.restart_agent(&[finished.clone(), later.clone()]);
        let sent = rig.sent_sorted();
        assert!(
            sent.contains(&end) && !sent.iter().any(|state| state.contains("Lost")),
            "{sent:?}"
        );
        assert_eq!(rig.engine.take_calls(), ["list"], "{policy} {code}");
        rig.add(&[needs("last", "w", condition)]);
        assert_eq!(rig.engine.take_calls(), ["create last"], "{policy} {code}");

        // In another boot it runs again.
        rig.prepare.boot = "boot 2".into();
        rig.restart_agent(&[finished, later]);
        assert!(
            rig.engine.take_calls().contains(&"create w".to_owned()),
            "{policy} {code}"
        );
    }
}

#[test]
fn end_is_forgotten_with_its_instance_and_at_its_next_start() {
    let mut rig = Rig::with(|options| options.keeps_finished = true);
    let web = wanted("w", "a");
    for forget in [true, false] {
        rig.add(std::slice::from_ref(&web));
        rig.ends("w", 0);
        if forget {
            rig.change(&[], &[deleted_after(&web.instance, &[])]);
            rig.restart_agent(std::slice::from_ref(&web));
            assert!(rig.engine.take_calls().contains(&"create w".to_owned()));
        } else {
            rig.restart_agent(std::slice::from_ref(&web));
        }
        rig.change(&[], &[deleted_after(&web.instance, &[])]);
    }
    // A setting that runs all again ignores records.
    rig.keeps_finished = false;
    rig.restart_agent(std::slice::from_ref(&web));
    rig.ends("w", 0);
    rig.engine.remove(&rig.container_of("w"));
    rig.agent.run();
    rig.engine.take_calls();
    rig.restart_agent(&[web]);
    assert_eq!(rig.engine.take_calls(), ["list", "create w"]);
}

#[test]
fn pod_that_ended_and_was_removed_keeps_its_end() {
    let mut rig = Rig::with(|options| options.keeps_finished = true);
    let pod = wanted("w", "a");
    rig.add(std::slice::from_ref(&pod));
    rig.ends("w", 3);
    rig.sent();
    let unknown = ExecutionState::with_info(Phase::FailedUnknown, "unknown container state");
    rig.engine.set_state(&rig.container_of("w"), unknown);
    rig.agent.run();
    assert_eq!(rig.sent(), [""; 0]);
    rig.restart_agent(&[pod]);
    let mut sent = rig.sent();
    sent.dedup();
    assert_eq!(sent, ["w Failed(ExecFailed): 'Exit code: '3''"]);
}

#[test]
fn pod_whose_failed_container_was_removed_keeps_its_failure() {
    let mut rig = Rig::with(|options| options.keeps_finished = true);
    let pod = wanted("w", "a");
    rig.add(std::slice::from_ref(&pod));
    rig.engine
        .set_pods(&rig.container_of("w"), &["one", "two"], Some("two"));
    rig.ends("w", 3);
    rig.sent();
    for agent in ["same", "next"] {
        rig.engine.set_pods(&rig.container_of("w"), &["one"], None);
        rig.engine
            .set_state(&rig.container_of("w"), ExecutionState::exited(0));
        rig.agent.run();
        assert_eq!(rig.sent(), [""; 0], "{agent} agent");
        rig.restart_agent(std::slice::from_ref(&pod));
        let mut sent = rig.sent();
        sent.dedup();
        assert_eq!(
            sent,
            ["w Failed(ExecFailed): 'Exit code: '3''"],
            "{agent} agent"
        );
    }
}

#[test]
fn container_with_a_name_outside_the_folder_is_left_alone() {
    let mut rig = silent();
    rig.engine.add(
        &InstanceName::with_id("..", "../etc", "agent_A"),
        plain(Phase::Running),
    );
    rig.agent.hello(&[]);
    assert_eq!(rig.engine.take_calls(), ["list"]);
    assert_eq!(rig.engine.containers().len(), 1);
}

// ------------------------------------------------------------ listing fails

#[test]
fn failed_listing_creates_workloads_and_removes_later() {
    let mut rig = found(&[
        ("w", "a", plain(Phase::Succeeded)),
        ("w", "b", plain(Phase::Running)),
        ("gone", "a", plain(Phase::Running)),
    ]);
    rig.engine.inject(Call::List, [Fault::Fails, Fault::Fails]);
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(
        rig.engine.take_calls(),
        ["list"],
        "nothing is created before it is known what exists"
    );
    rig.agent.pass(BACKOFF_FIRST);
    assert_eq!(rig.engine.take_calls(), ["list"]);
    rig.agent.pass(2 * BACKOFF_FIRST);
    assert_eq!(
        rig.engine.take_calls(),
        ["list", "delete gone", "delete w", "start w"]
    );
    rig.agent.pass(REPAIR_INTERVAL * 3);
    let containers = rig.engine.containers();
    let instances: Vec<&InstanceName> = containers
        .values()
        .map(|container| &container.instance)
        .collect();
    assert_eq!(instances, [&instance("w", "a")]);
    assert!(
        !rig.engine.take_calls().contains(&"list".to_owned()),
        "no listing after a good one"
    );
    assert_eq!(rig.agent.loops.count(), 1);
}

#[test]
fn report_is_not_complete_while_an_engine_is_unlisted() {
    let mut rig = found(&[("gone", "a", plain(Phase::Running))]);
    rig.engine.inject(Call::List, [Fault::Fails]);
    let ends = |rig: &Rig| {
        let messages = std::iter::from_fn(|| rig.agent.uplink.next());
        messages
            .filter(|message| *message == ToServer::StatesComplete)
            .count()
    };
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(ends(&rig), 0);
    rig.agent.pass(REPAIR_INTERVAL * 3);
    assert_eq!(rig.engine.only().1.instance, instance("w", "a"));
    assert_eq!(ends(&rig), 1);
    rig.agent.pass(REPAIR_INTERVAL * 3);
    assert_eq!(ends(&rig), 0);
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(ends(&rig), 1, "the next hello gets its own report");
}

#[test]
fn reconnect_after_a_failed_listing_lists_again() {
    let (mut rig, kube) = with_kube();
    kube.add(&instance("gone", "a"), plain(Phase::Running));
    kube.inject(Call::List, vec![Fault::Fails; 100]);
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(FIRST_LISTING_MAX);
    let (id, _) = rig.engine.only();
    rig.forget();
    kube.take_calls();
    kube.forget_faults();
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.clock.advance(REPAIR_INTERVAL);
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(kube.take_calls(), ["list", "delete gone"]);
    assert_eq!(rig.engine.only().0, id);
}

#[test]
fn running_container_found_late_is_kept_when_unchanged() {
    let mut rig = found(&[("w", "b", plain(Phase::Running))]);
    let best = rig.engine.add(&instance("w", "a"), plain(Phase::Running));
    rig.engine.add(&instance("w", "a"), plain(Phase::Succeeded));
    rig.engine.inject(Call::List, [Fault::Fails]);
    rig.agent.hello(&[needs_other("w")]);
    let waits = format!(
        "Waiting for 'podman', which may have a container of it: {FAILURE}; waits for 'other' to run"
    );
    assert_eq!(
        rig.sent(),
        [format!("w:a Pending(WaitingToStart): '{waits}'")]
    );
    rig.agent.pass(REPAIR_INTERVAL * 2);
    assert_eq!(rig.engine.only().0, best);
    let of_wanted = |sent: Vec<String>| {
        sent.into_iter()
            .filter(|s| s.starts_with("w:a "))
            .collect::<Vec<_>>()
    };
    let mut sent = of_wanted(rig.sent());
    sent.dedup();
    assert_eq!(sent, ["w:a Running(Ok)"]);
    rig.forget();
    rig.add(&[wanted("other", "a")]);
    assert_eq!(rig.engine.take_calls(), ["create other"]);
    assert!(of_wanted(rig.sent()).is_empty());
    assert_eq!(rig.agent.loops.count(), 2);
}

// ------------------------------------------------ containers that are too many

fn with_file(name: &str, config: &str) -> AddedWorkload {
    wanted_with(name, config, |w| {
        w.files.push(File {
            mount_point: "/f".to_owned(),
            content: FileContent::Data("text".to_owned()),
        });
    })
}

#[test]
fn end_of_an_old_container_is_not_that_of_its_new_instance() {
    let mut rig = found(&[
        ("w", "a", plain(Phase::Running)),
        ("w", "b", plain(Phase::Running)),
    ]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    rig.agent.hello(&[wanted("w", "b")]);
    assert!(
        rig.sent()
            .contains(&format!("w:a Stopping(DeleteFailed): '{FAILURE}'"))
    );
    rig.change(
        &[with_file("w", "a")],
        &[deleted_after(&instance("w", "b"), &[])],
    );
    rig.engine.inject(Call::Delete, vec![Fault::Fails; 4]);
    rig.agent.pass(Duration::from_secs(60));
    assert_eq!(
        rig.agent.loops.count(),
        1,
        "the old container is known to be gone"
    );
    let sent: Vec<String> = rig
        .sent()
        .into_iter()
        .filter(|state| state.starts_with("w:a "))
        .collect();
    assert!(
        sent.iter()
            .all(|state| !state.contains("Removed") && !state.contains("Stopping")),
        "{sent:?}"
    );
    assert_eq!(sent.last().unwrap(), "w:a Running(Ok)");
    assert!(
        rig.folder
            .path()
            .join(instance("w", "a").folder())
            .join("files")
            .exists()
    );
}

#[test]
fn the_folder_of_an_old_container_goes_with_it() {
    let mut rig = found(&[
        ("w", "a", plain(Phase::Running)),
        ("w", "b", plain(Phase::Running)),
    ]);
    let folder = |config| {
        rig.folder
            .path()
            .join(instance("w", config).folder())
            .join("files")
    };
    let (old, kept) = (folder("a"), folder("b"));
    [&old, &kept]
        .into_iter()
        .for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    rig.agent.hello(&[wanted("w", "b")]);
    assert!(rig.sent().contains(&"w:a Removed".to_owned()));
    assert!(!old.parent().unwrap().exists() && kept.exists());
}

// ------------------------------------------------------- one of several engines

/// An agent with podman and another engine, `kube`.
fn with_kube() -> (Rig, FakeEngine) {
    let kube = FakeEngine::new();
    let other = kube.clone();
    (
        silent_with(|options| options.others.push(("kube", other))),
        kube,
    )
}

fn on_kube(name: &str, config: &str) -> AddedWorkload {
    wanted_with(name, config, |w| w.runtime = "kube".into())
}

#[test]
fn same_instance_in_another_runtime_is_not_adopted() {
    let (mut rig, kube) = with_kube();
    kube.add(&instance("w", "a"), plain(Phase::Running));
    kube.inject(Call::List, vec![Fault::Fails; 100]);
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(FIRST_LISTING_MAX);
    let (id, _) = rig.engine.only();
    kube.forget_faults();
    rig.sent();
    let files = rig.folder.path().join(instance("w", "a").folder());
    std::fs::create_dir_all(&files).unwrap();
    rig.agent.pass(REPAIR_INTERVAL * 2);
    assert!(kube.containers().is_empty());
    assert_eq!(rig.engine.only().0, id);
    // All engines have listed now, so all states are sent once more.
    assert_eq!(
        rig.sent(),
        ["w:a Running(Ok)"],
        "the instance goes on running"
    );
    assert!(files.exists());
    assert_eq!(rig.agent.loops.count(), 1);
}

#[test]
fn moved_workload_with_two_late_engines_has_one_container() {
    for kube_first in [false, true] {
        let (mut rig, kube) = with_kube();
        rig.engine.add(&instance("w", "b"), plain(Phase::Running));
        kube.add(&instance("w", "a"), plain(Phase::Running));
        kube.add(&instance("w", "c"), plain(Phase::Succeeded));
        rig.engine.set_silent(true);
        kube.set_silent(true);
        rig.agent.hello(&[wanted("w", "a")]);
        rig.agent.pass(FIRST_LISTING_MAX);
        let own = |rig: &Rig| {
            rig.engine
                .containers()
                .values()
                .filter(|one| one.instance == instance("w", "a"))
                .count()
        };
        assert_eq!(own(&rig), 0, "what the own engine has is waited for");
        let first = if kube_first { &kube } else { &rig.engine };
        first.set_silent(false);
        rig.agent.pass(REPAIR_INTERVAL);
        kube.set_silent(false);
        rig.engine.set_silent(false);
        rig.agent.pass(REPAIR_INTERVAL * 2);
        assert!(kube.containers().is_empty(), "kube first: {kube_first}");
        assert_eq!(
            rig.engine.only().1.instance,
            instance("w", "a"),
            "kube first: {kube_first}"
        );
        assert_eq!(rig.agent.loops.count(), 1, "kube first: {kube_first}");
    }
}

/// `w:a` is created only when this engine has no `w:b` any more, and runs in the end.
fn is_not_started_beside_b_of(rig: &mut Rig, second: &FakeEngine, case: &str) {
    let is_there = || {
        second
            .containers()
            .values()
            .any(|one| one.instance == instance("w", "b"))
    };
    for _ in 0..500 {
        let started = rig
            .engine
            .take_calls()
            .iter()
            .any(|call| call == "create w");
        assert!(!(started && is_there()), "{case}");
        rig.agent.pass(Duration::from_millis(20));
    }
    rig.agent.pass(Duration::from_secs(120));
    assert!(!is_there(), "{case}");
    assert_eq!(rig.engine.only().1.instance, instance("w", "a"), "{case}");
    assert_eq!(rig.sent().last().unwrap(), "w:a Running(Ok)", "{case}");
    assert_eq!(rig.agent.loops.count(), 1, "{case}");
}

/// Seed 810084 of the simulation: a workload was started beside a container of it in another
/// runtime that was still being removed, since each of the two had a control loop of its own.
#[test]
fn second_old_container_that_cannot_be_removed_blocks_the_start() {
    let ended = ExecutionState::exited(1);
    for (own_state, second_on_kube) in [
        (ended.clone(), true),
        (ended.clone(), false),
        (plain(Phase::Running), true),
        (plain(Phase::Running), false),
    ] {
        let (mut rig, kube) = with_kube();
        let own = rig.engine.add(&instance("w", "a"), own_state.clone());
        let second = if second_on_kube {
            kube.clone()
        } else {
            rig.engine.clone()
        };
        second.add(&instance("w", "b"), plain(Phase::Running));
        second.inject(Call::Delete, vec![Fault::Fails; 7]);
        rig.agent.hello(&[wanted_with("w", "a", |w| {
            w.restart_policy = RestartPolicy::Always
        })]);
        if own_state.phase == Phase::Running {
            rig.engine.set_state(&own, ended.clone());
            rig.agent.run();
        }
        is_not_started_beside_b_of(
            &mut rig,
            &second,
            &format!("{own_state}, on kube: {second_on_kube}"),
        );
    }
}

/// Seed 1204185 of the simulation: the other engine was silent until the workload did not wait for
/// it any more. When it responded, the workload still had no container, and was started
/// beside the one that was being removed.
#[test]
fn late_container_of_a_given_up_engine_blocks_the_start() {
    for (fails, is_running) in [
        (Fault::Fails, false),
        (Fault::Hangs(Duration::from_secs(1)), true),
    ] {
        let (mut rig, kube) = with_kube();
        kube.add(&instance("w", "b"), plain(Phase::Running));
        kube.set_silent(true);
        // What hangs is begun before the other engine speaks; all that follows it is not.
        rig.engine.inject(
            Call::Create,
            std::iter::once(fails.clone()).chain(vec![Fault::Fails; 3]),
        );
        kube.inject(Call::Delete, vec![Fault::Fails; 7]);
        rig.agent.hello(&[wanted_with("w", "a", |w| {
            w.restart_policy = RestartPolicy::Always
        })]);
        rig.agent.pass(FIRST_LISTING_MAX);
        assert_eq!(
            rig.engine.take_calls(),
            ["list", "create w", "find w"][..if is_running { 2 } else { 3 }],
            "{fails:?}"
        );
        kube.set_silent(false);
        rig.agent.run();
        if is_running {
            let (id, _) = rig.engine.only();
            rig.engine.set_state(&id, ExecutionState::exited(1));
            rig.agent.run();
        }
        is_not_started_beside_b_of(&mut rig, &kube, &format!("{fails:?}"));
    }
}

#[test]
fn missing_engine_delays_no_workload_of_another_one() {
    let (mut rig, kube) = with_kube();
    kube.inject(Call::List, vec![Fault::IsMissing; 10]);
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(rig.engine.take_calls(), ["list", "create w"]);
    assert_eq!(kube.take_calls(), ["list"]);
}

#[test]
fn workload_of_a_silent_engine_is_deleted_with_late_containers() {
    let mut rig = found(&[("w", "a", plain(Phase::Running))]);
    rig.engine.set_silent(true);
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(FIRST_LISTING_MAX);
    let waits =
        "Waiting for 'podman', which may have a container of it: it has not listed its containers";
    assert_eq!(
        rig.sent(),
        [format!("w:a Pending(WaitingToStart): '{waits}'")]
    );
    rig.change(&[], &[deleted_after(&instance("w", "a"), &[])]);
    assert_eq!(rig.sent(), ["w:a Removed"]);
    rig.engine.set_silent(false);
    rig.agent.run();
    assert!(rig.engine.containers().is_empty());
}

#[test]
fn failing_engine_of_another_runtime_is_awaited_for_a_time() {
    let (mut rig, kube) = with_kube();
    kube.inject(Call::List, vec![Fault::Fails; 100]);
    rig.agent.hello(&[wanted("w", "a")]);
    let waits = format!("Waiting for 'kube', which may have a container of it: {FAILURE}");
    assert_eq!(
        rig.sent(),
        [format!("w:a Pending(WaitingToStart): '{waits}'")]
    );
    rig.agent.pass(FIRST_LISTING_MAX - Duration::from_millis(1));
    assert_eq!(
        (rig.engine.take_calls(), rig.sent()),
        (vec!["list".to_owned()], vec![])
    );
    assert!(
        kube.take_calls().len() > 2,
        "it is requested again meanwhile"
    );
    rig.agent.pass(Duration::from_millis(1));
    assert_eq!(rig.engine.take_calls(), ["create w"]);
}

#[test]
fn unlisted_engine_of_another_runtime_blocks_preparations() {
    let (kube, level) = (FakeEngine::new(), PrepareLevel::Create);
    let other = kube.clone();
    let mut rig = silent_with(|options| {
        options.others.push(("kube", other));
        options.prepare.level = level;
    });
    kube.inject(Call::List, vec![Fault::Fails; 100]);
    let needing = |name: &str| {
        wanted_with(name, "image: x\nlifecycle: { update: {} }", |workload| {
            workload
                .dependencies
                .insert("far".to_owned(), AddCondition::Running);
        })
    };
    rig.agent
        .receive(FromServer::Prepare(vec![needing("staged")]));
    rig.agent.hello(&[needing("waits")]);
    rig.agent.pass(FIRST_LISTING_MAX - Duration::from_millis(1));
    assert_eq!(rig.engine.take_calls(), ["list"]);
    rig.agent.pass(Duration::from_millis(1));
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only staged", "create-only waits"]
    );
}

#[test]
fn a_silent_engine_delays_only_its_own_workloads() {
    let (mut rig, kube) = with_kube();
    rig.engine
        .add(&instance("runs", "a"), plain(Phase::Running));
    let id = kube.add(&instance("there", "a"), plain(Phase::Running));
    kube.set_silent(true);
    rig.agent.hello(&[
        wanted("runs", "a"),
        wanted("new", "a"),
        on_kube("there", "a"),
        on_kube("k", "a"),
    ]);
    assert_eq!(rig.engine.take_calls(), ["list"]);
    rig.agent.pass(FIRST_LISTING_MAX);
    let sent = rig.sent();
    assert!(
        sent.contains(&"runs:a Running(Ok)".to_owned())
            && sent.contains(&"new:a Running(Ok)".to_owned())
    );
    assert_eq!(rig.engine.take_calls(), ["create new"]);
    assert!(kube.take_calls().is_empty());
    kube.set_silent(false);
    rig.agent.run();
    assert_eq!(kube.containers().len(), 2);
    assert!(
        kube.containers().contains_key(&id),
        "what runs as it should goes on running"
    );
    let sent = rig.sent();
    assert!(
        sent.contains(&"there:a Running(Ok)".to_owned())
            && sent.contains(&"k:a Running(Ok)".to_owned())
    );
}

#[test]
fn silent_engine_does_not_delay_watches_of_another_one() {
    for deleted in [false, true] {
        let (mut rig, kube) = with_kube();
        rig.engine
            .add(&instance("runs", "b"), plain(Phase::Running));
        let best = rig
            .engine
            .add(&instance("runs", "a"), plain(Phase::Running));
        rig.engine
            .add(&instance("runs", "a"), plain(Phase::Succeeded));
        let old = rig
            .engine
            .add(&instance("changed", "b"), plain(Phase::Running));
        kube.set_silent(true);
        rig.agent
            .hello(&[wanted("runs", "a"), wanted("changed", "a")]);
        assert!(rig.sent().contains(&"runs:a Running(Ok)".to_owned()));
        assert!(
            rig.engine.containers().keys().eq([&best, &old]),
            "what is new waits"
        );
        if deleted {
            rig.change(&[], &[deleted_after(&instance("runs", "a"), &[])]);
        }
        rig.agent.pass(FIRST_LISTING_MAX);
        let containers = rig.engine.containers();
        assert!(
            !containers.contains_key(&old)
                && containers
                    .values()
                    .any(|it| it.instance == instance("changed", "a"))
        );
        assert_eq!(containers.contains_key(&best), !deleted);
        let sent = rig.sent();
        assert_eq!(
            sent.contains(&"runs:a Removed".to_owned()),
            deleted,
            "{sent:?}"
        );
        assert_eq!(rig.agent.loops.count(), containers.len());
    }
}

// A control loop may take a target before the scheduler has finished the event.
#[test]
fn prepared_container_is_kept_while_its_start_is_undecided() {
    let mut rig = silent_with(|options| options.prepare.level = PrepareLevel::Init);
    let added = wanted_with("w", "image: x", |w| {
        w.dependencies
            .insert("other".to_owned(), AddCondition::Running);
    });
    rig.agent.hello(std::slice::from_ref(&added));
    assert_eq!(rig.engine.take_calls(), ["list", "create-only w", "init w"]);
    rig.restart_agent(std::slice::from_ref(&added));
    assert_eq!(rig.engine.take_calls(), ["list"]);
}

/// An agent that was killed left the folders of instances whose containers were gone already.
#[test]
fn folders_of_unneeded_instances_go_when_all_have_listed() {
    let mut rig = found(&[("unwanted", "a", plain(Phase::Running))]);
    let folder = |name, config| rig.folder.path().join(instance(name, config).folder());
    let [left, wanted_one, there] = [folder("w", "b"), folder("w", "a"), folder("unwanted", "a")];
    let others = ["notify", "engine-children"].map(|name| rig.folder.path().join(name));
    for path in [&left, &wanted_one, &there].into_iter().chain(&others) {
        std::fs::create_dir(path).unwrap();
    }
    rig.engine.inject(Call::List, [Fault::Fails]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    rig.agent.hello(&[wanted("w", "a")]);
    assert!(
        left.exists(),
        "it may be in use as long as the engine has not listed"
    );
    rig.agent.pass(BACKOFF_FIRST);
    assert!(
        !left.exists()
            && wanted_one.exists()
            && there.exists()
            && others.iter().all(|path| path.exists())
    );
}

#[test]
fn a_reconnect_waits_for_no_engine() {
    let (mut rig, kube) = with_kube();
    kube.inject(Call::List, [Fault::Fails]);
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(REPAIR_INTERVAL - Duration::from_secs(1));
    rig.forget();
    kube.set_silent(true);
    rig.clock.advance(Duration::from_secs(1));
    let mut again = vec![wanted("w", "a"), wanted("new", "a")];
    reconnect(&mut rig, &again);
    let sent = rig.sent();
    assert!(
        sent.contains(&"w:a Running(Ok)".to_owned()),
        "the server hears of what we have: {sent:?}"
    );
    assert!(sent.contains(&"new:a Running(Ok)".to_owned()), "{sent:?}");
    // The next plan of the server finds this container.
    again.remove(0);
    rig.change(&[], &[deleted_after(&instance("w", "a"), &["new"])]);
    assert_eq!(rig.sent(), ["w:a Stopping(WaitingToStop)"]);
}

#[test]
fn plans_before_the_listing_wait_for_users_of_found_containers() {
    for added in [vec![], vec![wanted("used", "b")]] {
        let mut rig = found(&[
            ("used", "a", plain(Phase::Running)),
            ("user", "a", plain(Phase::Running)),
        ]);
        let hello = FromServer::ServerHello(vec![wanted("used", "a"), wanted("user", "a")]);
        rig.agent.scheduler.on_event(SchedulerEvent::Server(hello));
        let plan = WorkloadPlan {
            added: added.clone(),
            deleted: vec![deleted_after(&instance("used", "a"), &["user"])],
        };
        rig.agent
            .scheduler
            .on_event(SchedulerEvent::Server(FromServer::UpdateWorkload(plan)));
        rig.agent.run();
        assert_eq!(rig.engine.take_calls(), ["list"], "{added:?}");
        assert!(
            rig.sent()
                .contains(&"used:a Stopping(WaitingToStop)".to_owned()),
            "{added:?}"
        );
        rig.change(&[], &[deleted_after(&instance("user", "a"), &[])]);
        let left: Vec<InstanceName> = rig
            .engine
            .containers()
            .into_values()
            .map(|found| found.instance)
            .collect();
        assert_eq!(
            left,
            added
                .iter()
                .map(|added| added.instance.clone())
                .collect::<Vec<_>>()
        );
    }
}

/// Calls of an earlier agent that end by themselves, when asked, or when killed.
#[derive(Clone, Default)]
struct Calls {
    running: Arc<Mutex<usize>>,
    ended: Arc<Mutex<Vec<bool>>>,
}

impl EarlierCalls for Calls {
    fn still_running(&mut self) -> usize {
        *self.running.lock().unwrap()
    }

    fn end(&mut self, by_force: bool) {
        self.ended.lock().unwrap().push(by_force);
        if by_force {
            *self.running.lock().unwrap() = 0;
        }
    }
}

fn with_a_call_of_an_earlier_agent() -> (Rig, Calls) {
    let calls = Calls::default();
    *calls.running.lock().unwrap() = 1;
    (
        silent_with(|options| options.earlier_calls = Some(Box::new(calls.clone()))),
        calls,
    )
}

#[test]
fn calls_of_an_earlier_agent_block_listings_and_creates() {
    let (mut rig, calls) = with_a_call_of_an_earlier_agent();
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(Duration::from_secs(5));
    assert!(rig.engine.take_calls().is_empty());
    rig.engine.add(&instance("w", "a"), plain(Phase::Running));
    *calls.running.lock().unwrap() = 0;
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(
        rig.engine.take_calls(),
        ["list"],
        "what the call created is adopted"
    );
    assert!(calls.ended.lock().unwrap().is_empty());
}

#[test]
fn calls_of_an_earlier_agent_that_hang_are_ended() {
    let (mut rig, calls) = with_a_call_of_an_earlier_agent();
    rig.agent.hello(&[wanted("w", "a")]);
    rig.agent.pass(EARLIER_CALLS_MAX - Duration::from_secs(1));
    assert!(calls.ended.lock().unwrap().is_empty());
    rig.agent.pass(EARLIER_CALLS_GRACE + Duration::from_secs(2));
    let ended = calls.ended.lock().unwrap().clone();
    assert!(
        ended.contains(&false) && ended.last() == Some(&true),
        "{ended:?}"
    );
    assert_eq!(rig.engine.take_calls(), ["list", "create w"]);
}

#[test]
fn plans_that_arrive_before_the_listing_change_what_is_wanted() {
    let (mut rig, calls) = with_a_call_of_an_earlier_agent();
    rig.agent.hello(&[
        wanted("deleted", "a"),
        wanted("updated", "a"),
        wanted("kept", "a"),
    ]);
    let deleted = ["updated", "deleted"].map(|name| deleted_after(&instance(name, "a"), &[]));
    rig.change(&[wanted("updated", "b")], &deleted);
    rig.add(&[wanted("added", "a")]);
    *calls.running.lock().unwrap() = 0;
    rig.agent.pass(Duration::from_secs(1));
    let mut created = rig.engine.take_calls();
    created.sort();
    assert_eq!(
        created,
        ["create added", "create kept", "create updated", "list"]
    );
    let sent = rig.sent();
    for removed in ["deleted:a Removed", "updated:a Removed"] {
        assert!(sent.contains(&removed.to_owned()), "{sent:?}");
    }
}

// ---------------------------------------------------------------- reconnect

fn reconnect(rig: &mut Rig, added: &[AddedWorkload]) {
    rig.agent.uplink.disconnected();
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.run();
    rig.agent.uplink.connected();
    rig.agent.hello(added);
}

#[test]
fn reconnect_leaves_unchanged_workloads_and_reports_them() {
    let mut rig = silent();
    let all = [
        wanted("runs", "a"),
        wanted("ended", "a"),
        wanted("failed", "a"),
        wanted("broken", "a"),
    ];
    rig.engine.inject(Call::Create, [Fault::Unsupported]);
    rig.agent.hello(&all);
    for (id, container) in rig.engine.containers() {
        match &*container.instance.workload {
            "ended" => rig.engine.set_state(&id, ExecutionState::exited(0)),
            "failed" => rig.engine.set_state(&id, ExecutionState::exited(3)),
            _ => {}
        }
    }
    rig.agent.run();
    rig.forget();
    reconnect(&mut rig, &all);
    assert!(rig.engine.take_calls().is_empty());
    let sent = rig.sent_sorted();
    assert_eq!(
        sent,
        [
            "broken:a Pending(StartingFailed): 'it will never work'",
            "ended:a Succeeded(Ok)",
            "failed:a Failed(ExecFailed): 'Exit code: '3''",
            "runs:a Running(Ok)",
        ]
    );
    assert_eq!(
        rig.agent.loops.count(),
        4,
        "no second loop for any workload"
    );
}

#[test]
fn reconnect_updates_deletes_and_creates_changed_workloads() {
    let mut rig = silent();
    rig.agent.hello(&[
        wanted("updated", "a"),
        wanted("deleted", "a"),
        wanted("policy", "a"),
    ]);
    rig.forget();
    let policy = wanted_with("policy", "a", |w| w.restart_policy = RestartPolicy::Always);
    reconnect(
        &mut rig,
        &[wanted("updated", "b"), wanted("created", "a"), policy],
    );
    let mut calls = rig.engine.take_calls();
    calls.sort();
    assert_eq!(
        calls,
        [
            "create created",
            "create policy",
            "create updated",
            "delete deleted",
            "delete policy",
            "delete updated"
        ]
    );
    let sent = rig.sent();
    for state in [
        "deleted:a Removed",
        "updated:a Removed",
        "updated:b Running(Ok)",
        "created:a Running(Ok)",
    ] {
        assert!(sent.contains(&state.to_owned()), "{state}: {sent:?}");
    }
}

#[test]
fn a_reconnect_keeps_what_waits_waiting() {
    let mut rig = silent();
    let waits = needs_other("waits");
    let used = wanted("used", "a");
    rig.agent
        .hello(&[waits.clone(), used.clone(), wanted("user", "a")]);
    rig.change(&[], &[deleted_after(&used.instance, &["user"])]);
    rig.forget();
    reconnect(&mut rig, &[waits, wanted("user", "a")]);
    assert!(rig.engine.take_calls().is_empty());
    let sent = rig.sent_sorted();
    let waiting = "waits:a Pending(WaitingToStart): 'waits for 'other' to run'";
    assert_eq!(
        sent,
        [
            "used:a Stopping(WaitingToStop)",
            "user:a Running(Ok)",
            waiting
        ]
    );
    reconnect(&mut rig, &[]);
    assert!(rig.engine.containers().is_empty());
    assert!(rig.sent().contains(&"waits:a Removed".to_owned()));
}

#[test]
fn a_reconnect_also_tells_of_what_waits_behind_its_predecessor() {
    let mut rig = silent();
    let (old, new, user) = (
        wanted("used", "a"),
        wanted("used", "b"),
        wanted("user", "a"),
    );
    rig.agent.hello(&[old.clone(), user.clone()]);
    rig.change(
        std::slice::from_ref(&new),
        &[deleted_after(&old.instance, &["user"])],
    );
    rig.forget();
    reconnect(&mut rig, &[new.clone(), user.clone()]);
    let mut sent = rig.sent_sorted();
    sent.dedup();
    assert_eq!(
        sent,
        [
            "used:a Stopping(WaitingToStop)",
            "used:b Pending(WaitingToStart)",
            "user:a Running(Ok)"
        ]
    );
    reconnect(&mut rig, &[user]);
    assert!(rig.sent().contains(&"used:b Removed".to_owned()));
}

#[test]
fn waiting_delete_ends_when_the_workload_is_desired_again() {
    let mut rig = silent();
    let used = wanted("used", "a");
    rig.agent.hello(&[used.clone(), wanted("user", "a")]);
    rig.change(&[], &[deleted_after(&used.instance, &["user"])]);
    assert_eq!(rig.sent().last().unwrap(), "used:a Stopping(WaitingToStop)");
    rig.forget();
    reconnect(&mut rig, &[used, wanted("user", "a")]);
    assert!(rig.engine.take_calls().is_empty());
    assert!(rig.sent().contains(&"used:a Running(Ok)".to_owned()));
}

const JOINS_POD: &str = "image: x\ncommandOptions: [--pod=p]";

#[test]
fn a_container_in_a_pod_was_adopted_and_the_genuine_one_stopped() {
    // The genuine one was noted by an earlier agent, or made by one that noted nothing.
    for noted in [true, false] {
        for forged_first in [true, false] {
            let mut rig = silent();
            let add = || rig.engine.add(&instance("w", "a"), plain(Phase::Running));
            let (mut genuine, mut forged) = (add(), add());
            if forged_first {
                std::mem::swap(&mut genuine, &mut forged);
            }
            rig.engine.put_into_pod(&forged);
            if noted {
                rig.engine.note(&genuine);
            }
            rig.agent.hello(&[wanted("w", "a")]);
            assert_eq!(
                rig.engine.take_calls(),
                ["list"],
                "noted: {noted}, first: {forged_first}"
            );
            assert_eq!(rig.engine.containers().len(), 2);
            rig.agent.hello(&[]);
            assert_eq!(
                rig.engine.containers().into_keys().collect::<Vec<_>>(),
                [forged],
                "the genuine one was watched"
            );
        }
    }
}

#[test]
fn container_in_a_pod_of_another_workload_is_not_deleted() {
    let mut rig = silent();
    let forged =
        ["w", "gone"].map(|name| rig.engine.add(&instance(name, "a"), plain(Phase::Running)));
    forged.iter().for_each(|id| rig.engine.put_into_pod(id));
    rig.agent.hello(&[wanted("w", "a")]);
    assert_eq!(rig.engine.take_calls(), ["list", "create w"]);
    assert!(
        forged
            .iter()
            .all(|id| rig.engine.containers().contains_key(id))
    );
}

#[test]
fn container_in_a_pod_is_kept_when_noted_or_desired_there() {
    for (config, noted) in [("a", true), (JOINS_POD, false), (JOINS_POD, true)] {
        let mut rig = silent();
        let ours = rig
            .engine
            .add(&instance("w", config), plain(Phase::Running));
        rig.engine.put_into_pod(&ours);
        if noted {
            rig.engine.note(&ours);
        }
        rig.agent.hello(&[wanted("w", config)]);
        assert_eq!(rig.engine.take_calls(), ["list"], "{config} {noted}");
    }
}

#[test]
fn container_of_others_with_our_labels_is_left_alone() {
    for config in ["a", "b"] {
        let mut rig = silent();
        let forged = rig
            .engine
            .add(&instance("w", config), plain(Phase::Running));
        let genuine = rig.engine.add(&instance("w", "a"), plain(Phase::Running));
        rig.engine.note(&genuine);
        rig.agent.hello(&[wanted("w", "a")]);
        assert_eq!(rig.engine.take_calls(), ["list"], "{config}");
        assert!(rig.engine.containers().contains_key(&forged));
        rig.agent.hello(&[]);
        assert_eq!(
            rig.engine.containers().into_keys().collect::<Vec<_>>(),
            [forged],
            "{config}"
        );
    }
}

#[test]
fn what_is_created_or_adopted_is_noted() {
    let mut rig = silent();
    let adopted = rig.engine.add(&instance("old", "a"), plain(Phase::Running));
    rig.agent.hello(&[wanted("old", "a"), wanted("new", "a")]);
    assert_eq!(rig.engine.noted(&instance("old", "a")), Some(adopted));
    assert!(
        rig.engine
            .noted(&instance("new", "a"))
            .is_some_and(|id| rig.engine.containers().contains_key(&id))
    );
}
