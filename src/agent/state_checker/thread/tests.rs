//! The thread with engines as values, and with real processes.

use super::*;
use crate::limits::REPAIR_INTERVAL;
use crate::state_checker::{KnownEnd, StateReply};
use ankaios_fakes::fake_connector::FakeEngine;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::names::InstanceName;
use ankaios_runtime::ContainerId;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const AMPLE: Duration = Duration::from_secs(180);

/// A running thread of two runtimes.
struct Rig {
    podman: Runtime,
    other: Runtime,
    thread: Thread,
    running: OwnedFd,
}

/// One runtime of the thread.
struct Runtime {
    engine: FakeEngine,
    commands: WatchSender,
    /// The states that the checker has reported.
    reports: Receiver<ExecutionState>,
    report: Sender<ExecutionState>,
}

impl Runtime {
    fn add(watch: &mut WatchThread, runtime: &'static str) -> Self {
        let engine = FakeEngine::new();
        let settings = CheckerSettings {
            runtime,
            unknown_info: "?",
            repair_interval: REPAIR_INTERVAL,
        };
        let connector = Box::new(engine.connector("agent_A"));
        let commands = watch.add(settings, connector, EngineVersions::default());
        let (report, reports) = bounded(4);
        Self {
            engine,
            commands,
            reports,
            report,
        }
    }

    /// Watches a container of the instance.
    fn watch(&self, instance: InstanceName, id: ContainerId, process: Option<MainProcess>) {
        let report = self.report.clone();
        let reply: StateReply = Box::new(move |state| report.send(state).unwrap());
        let command = WatchCommand::Watch {
            instance,
            id,
            process,
            restarts: 0,
            engine_restarts: false,
            end: KnownEnd::default(),
            reply,
        };
        self.commands.send(command);
    }

    fn expect(&self, state: &ExecutionState) {
        assert_eq!(self.reports.recv_timeout(AMPLE).as_ref(), Ok(state));
    }
}

impl Rig {
    fn start() -> Self {
        let (stop, running) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut watch = WatchThread::new(stop).unwrap();
        let podman = Runtime::add(&mut watch, "podman");
        let other = Runtime::add(&mut watch, "other");
        let thread = watch.start(&mut WatchedThreads::new(|_| {})).unwrap();
        Self {
            podman,
            other,
            thread,
            running,
        }
    }

    /// Ends the thread although the senders of commands are still there.
    fn stop(self) {
        drop(self.running);
        assert_eq!(threads::join_all([self.thread], AMPLE), [""; 0]);
    }
}

fn instance() -> InstanceName {
    InstanceName::with_id("web", "1", "agent_A")
}

#[test]
fn thread_reports_listed_states_and_ends_with_the_agent() {
    let rig = Rig::start();
    let engine = &rig.podman.engine;
    let id = engine.add(&instance(), ExecutionState::plain(Phase::Running));
    rig.podman.watch(instance(), id.clone(), None);
    for state in [
        ExecutionState::plain(Phase::Running),
        ExecutionState::exited(0),
    ] {
        engine.set_state(&id, state.clone());
        rig.podman.expect(&state);
    }
    rig.stop();
}

/// Starts a process of this container. Returns its monitor as well.
fn process_of(id: &ContainerId) -> (Child, MainProcess) {
    let script = "sleep 600 & echo $!; wait";
    let mut monitor = Command::new("sh")
        .args(["-c", script, "conmon", &*id.0])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(monitor.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let process = MainProcess {
        container: id.clone(),
        pid: line.trim().parse().unwrap(),
    };
    (monitor, process)
}

#[test]
fn end_of_a_process_reaches_the_checker_of_its_runtime() {
    let rig = Rig::start();
    let running = ExecutionState::plain(Phase::Running);
    let mut processes = Vec::new();
    for runtime in [&rig.podman, &rig.other] {
        let id = runtime.engine.add(&instance(), running.clone());
        let (monitor, process) = process_of(&id);
        runtime.watch(instance(), id.clone(), Some(process.clone()));
        runtime.expect(&running);
        processes.push((monitor, process));
        // The end of the process shows it, long before the next listing at an interval.
        runtime.engine.set_state(&id, ExecutionState::exited(3));
    }
    for (runtime, (mut monitor, process)) in [&rig.podman, &rig.other].into_iter().zip(processes) {
        assert!(runtime.reports.is_empty(), "nothing has ended yet");
        let pid = rustix::process::Pid::from_raw(process.pid.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        monitor.wait().unwrap();
        runtime.expect(&ExecutionState::exited(3));
    }
    rig.stop();
}
