//! What a control loop orders to be probed: where, over which socket and how often.

use super::*;
use ankaios_runtime::MainProcess;
use ankaios_runtime::probes::{Outcome, ProbeOrder, ProbeReport, Probes, Purpose};
use std::sync::Mutex;

/// The pid of the process that an engine names at the start. A listing names 1.
const PID_AT_START: u32 = 7;

const TCP: &str = "{ ready: { tcp: { port: 80 } }, gone: { tcp: { port: 80 } } }";
const EXEC: &str = "{ ready: { exec: [/bin/check] } }";
const FILE: &str = "{ ready: { file: /up } }";

/// Keeps all orders and probes nothing.
#[derive(Default)]
struct KeptOrders(Mutex<Vec<ProbeOrder>>);

impl Probes for KeptOrders {
    fn watch(&self, order: ProbeOrder) {
        self.0.lock().unwrap().push(order);
    }

    fn unwatch(&self, _key: u64) {}
}

/// A workload with this block that was just started, and its orders.
fn started(block: &str) -> (Rig, Arc<KeptOrders>) {
    let orders = Arc::new(KeptOrders::default());
    let probes = orders.clone();
    let mut rig = Rig::with(move |context| context.probes = probes);
    rig.want_with("a", |workload| set_block(workload, block));
    (rig, orders)
}

fn set_block(workload: &mut Workload, block: &str) {
    let config = format!("image: a\nlifecycle: {block}");
    *workload = Workload::new("agent_A", "podman", &config);
}

impl KeptOrders {
    /// The container and the pids of the newest order.
    fn target(&self) -> (bool, Vec<u32>) {
        let orders = self.0.lock().unwrap();
        let target = &orders.last().unwrap().target;
        let processes = &target.processes;
        let pids = processes.iter().map(|process| process.pid).collect();
        (target.container.is_some(), pids)
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether the newest order has a socket.
    fn has_socket(&self) -> bool {
        self.0.lock().unwrap().last().unwrap().notify.is_some()
    }

    /// The result of the newest order.
    fn report(&self, outcome: Outcome) -> ProbeReport {
        ProbeReport {
            key: self.0.lock().unwrap().last().unwrap().key,
            is_verdict: outcome == Outcome::Holds,
            outcome,
            in_a_row: 1,
            attempts: 1,
        }
    }
}

impl Rig {
    /// Begins the lifecycle of its container again; the engine has named its process.
    fn begin_again(&mut self, just_started: bool) {
        let container = self.engine.only().0;
        let pid = PID_AT_START;
        self.control_loop.process = Some(MainProcess { container, pid });
        self.control_loop.begin_lifecycle(just_started);
    }
}

#[test]
fn probe_goes_to_the_container_or_to_its_processes() {
    for (block, just_started, expected) in [
        (TCP, true, (false, vec![PID_AT_START])),
        // The process may be another one since.
        (TCP, false, (true, vec![1])),
        (EXEC, true, (true, vec![])),
        (EXEC, false, (true, vec![])),
        (FILE, true, (false, vec![])),
        (FILE, false, (false, vec![])),
    ] {
        let (mut rig, orders) = started(block);
        rig.begin_again(just_started);
        assert_eq!(orders.target(), expected, "{block} {just_started}");
    }
}

/// Its processes have ended with the container; their pids may be those of others.
#[test]
fn probe_for_what_is_gone_goes_to_no_process() {
    let (mut rig, orders) = started(TCP);
    rig.begin_again(true);
    rig.end();
    let purpose = orders.0.lock().unwrap().last().unwrap().purpose;
    assert_eq!(purpose, Purpose::Gone);
    assert_eq!(orders.target(), (false, vec![]));
}

#[test]
fn probe_is_ordered_again_only_while_its_target_is_unknown() {
    let refused = || Outcome::fails("refused");
    for (block, is_named, unknown, outcome, orders_more) in [
        (EXEC, false, true, refused(), 1),
        (EXEC, false, true, Outcome::Holds, 0),
        (EXEC, false, false, refused(), 0),
        (TCP, false, true, refused(), 1),
        (TCP, false, false, refused(), 0),
        (TCP, true, true, refused(), 0),
        (FILE, false, true, refused(), 0),
    ] {
        let (mut rig, orders) = started(block);
        if unknown {
            rig.engine.inject(Call::ProbeTarget, [Fault::Fails]);
        }
        if is_named {
            rig.begin_again(true);
        } else {
            rig.control_loop.begin_lifecycle(true);
        }
        let before = orders.count();
        rig.control_loop.on_probed(&orders.report(outcome.clone()));
        let case = format!("{block} named: {is_named} unknown: {unknown} {outcome:?}");
        assert_eq!(orders.count() - before, orders_more, "{case}");
    }
}

#[test]
fn only_a_check_by_notify_is_ordered_with_the_socket() {
    let alive = "alive: { notify: true, timeoutMs: 5000 }";
    for (ready, has_socket) in [("{ notify: true }", true), ("{ file: /up }", false)] {
        let (_rig, orders) = started(&format!("{{ ready: {ready}, {alive} }}"));
        assert_eq!(orders.has_socket(), has_socket, "{ready}");
    }
}

/// A probe that was ordered again would begin with its first result.
#[test]
fn liveness_probe_goes_on_while_the_workload_runs() {
    let (mut rig, orders) = started("{ alive: { file: /up, failureThreshold: 2 } }");
    let running = || ExecutionState::plain(Phase::Running);
    rig.observe(running());
    rig.observe(running());
    assert_eq!(orders.count(), 1);
    rig.observe(ExecutionState::plain(Phase::FailedUnknown));
    rig.observe(running());
    assert_eq!(orders.count(), 2, "its results were of no use meanwhile");
}

#[test]
fn socket_with_a_too_long_path_names_the_run_folder() {
    // The longest path of a socket has 107 bytes.
    for (folder, is_too_long) in [("x".repeat(108), true), ("file".to_owned(), false)] {
        let mut rig = Rig::with(|context| {
            std::fs::write(context.calls.folder.join("file"), "").unwrap();
            context.calls.folder.push(&folder);
        });
        rig.want_with("a", |workload| {
            set_block(workload, "{ ready: { notify: true } }");
        });
        let instances = &rig.control_loop.status.instances;
        let state = instances.values().next_back().unwrap();
        let expected = if is_too_long {
            Phase::PendingStartingFailed
        } else {
            Phase::PendingStarting
        };
        assert_eq!(state.phase, expected, "{state}");
        let hint = "; a shorter run folder may help";
        assert_eq!(state.additional_info.contains(hint), is_too_long, "{state}");
    }
}
