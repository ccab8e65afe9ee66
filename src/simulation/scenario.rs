//! The requests of a commander and the faults, decided by a seed.
//!
//! Thread: the one of the test.

use super::cluster::Cluster;
use super::disturbances::Disturbances;
use super::guarded_updates::pending;
use super::life::RUNTIMES;
use super::modes;
use super::server_expectations;
use super::settled::unsettled;
use super::trace::Trace;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use ankaios_model::complete_state::{DesiredState, Rendering};
use ankaios_model::messages::{ReadState, RequestContent, UpdateState};
use ankaios_model::names::Name;
use ankaios_model::node::Node;
use ankaios_model::runtime_config::RuntimeConfig;
use ankaios_model::workload::{AddCondition, ConfigItem, RestartPolicy, Workload};
use ankaios_platform::clock::Clock;
use ankaios_server::ServerLoop;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Part of the refusal of an update that was undone before.
pub(crate) const SAME_AS: &str = "it is the same as update";
/// Part of the refusal of one more guarded update.
pub(crate) const MANY_OPEN: &str = "guarded updates are open";
/// Parts of the refusals of restarts.
const RESTART_REFUSED: [&str; 4] = [
    "does not exist",
    "does not run",
    "is not connected",
    "is a part of update",
];
/// Once nothing disturbs any more, everything must be in order after this time: some of the longest
/// pauses between retries, or one revival of a workload that gave up, each followed by what depends
/// on it.
const SETTLED_AFTER: Duration = Duration::from_secs(90 * 60);
/// Interval of comparisons with the desired state.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a state that is the desired one must stay so.
const STAYS_SETTLED: Duration = Duration::from_secs(120);

/// Each seed has less rounds of requests and disturbances.
pub(crate) const ROUNDS_MAX: usize = 60;

/// What workloads say about their lifecycle, mostly nothing. All hold once nothing disturbs any
/// more, except `never`.
const LIFECYCLES: [&str; 12] = [
    "",
    "",
    "",
    "",
    "",
    "{ ready: { file: /up, deadlineMs: 0 } }",
    "{ ready: { file: /up, deadlineMs: 6000 }, alive: { file: /up, periodMs: 1000, failureThreshold: 2 } }",
    "{ ready: { file: /up, successThreshold: 2, onDeadline: WAIT, deadlineMs: 1000 }, gone: { file: /up, deadlineMs: 1000 } }",
    "{ ready: { file: /never, deadlineMs: 2000 }, restart: { maxRestarts: 1, backoffMaxMs: 1000 } }",
    "{ gone: { file: /up }, restart: { maxRestarts: 3, windowMs: 1000 } }",
    "{ precondition: { pathExists: /sim/key } }",
    "{ activation: { tagEquals: { zone: b } } }",
];

/// Begins the block of a workload that is restarted with those that it needs.
const RESTART_WITH: &str = "restartWith: DEPENDENCIES, ";

/// What workloads say about updates to them.
const GUARDS: [&str; 6] = [
    "{ healthyMs: 2000, deadlineMs: 30000, onFailure: ROLLBACK }",
    "{ healthyMs: 0, deadlineMs: 8000, onFailure: ROLLBACK }",
    "{ stage: NONE, healthyMs: 1000, deadlineMs: 60000, onFailure: ROLLBACK }",
    "{ when: { pathExists: /sim/key }, healthyMs: 2000, deadlineMs: 30000, onFailure: ROLLBACK }",
    "{ healthyMs: 1000, deadlineMs: 10000, onFailure: KEEP }",
    "{}",
];

/// The parts of a seed that are left out, to find out what its failure needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Numbers of rounds without requests and faults.
    pub rounds: BTreeSet<usize>,
    /// Kinds of faults that do not happen.
    pub faults: BTreeSet<String>,
}

/// How a seed ended.
pub(crate) struct Outcome {
    pub steps: u64,
    /// Rounds of requests and disturbances that there were.
    pub rounds: usize,
    /// Kinds of faults that happened or could have.
    pub faults: Vec<&'static str>,
    /// The violation, if there is one.
    pub violation: Option<String>,
}

/// Runs one seed.
pub(crate) fn run(seed: u64, clock: ManualClock, trace: Trace, left_out: &LeftOut) -> Outcome {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disturbances = Disturbances::new(&mut random, seed);
    for (name, percent) in disturbances.kinds() {
        *percent = if left_out.faults.contains(name) {
            0
        } else {
            *percent
        };
    }
    trace.line(|| format!("seed {seed}: {disturbances:?}"));
    let faults = disturbances
        .kinds()
        .into_iter()
        .filter(|(_, percent)| **percent > 0)
        .map(|(name, _)| name)
        .collect();
    let cluster = Cluster::new(random.fork(), trace, clock, &disturbances);
    let mut scenario = Scenario {
        cluster,
        random,
        disturbances,
        past: Vec::new(),
    };
    let rounds = scenario.disturb(&left_out.rounds);
    let violation = scenario.settle();
    Outcome {
        steps: scenario.cluster.steps,
        rounds,
        faults,
        violation,
    }
}

struct Scenario {
    cluster: Cluster,
    random: fastrand::Rng,
    disturbances: Disturbances,
    /// Desired states that were once asked for.
    past: Vec<DesiredState>,
}

impl Scenario {
    /// Answers how many rounds there are. Each has numbers of its own, so that it stays as it is
    /// when others are left out.
    fn disturb(&mut self, left_out: &BTreeSet<usize>) -> usize {
        let pause_ms = [300, 3_000, 20_000][self.random.usize(..3)];
        let rounds = self.random.usize(5..ROUNDS_MAX);
        let seed = self.random.u64(..);
        for round in 0..rounds {
            if left_out.contains(&round) {
                continue;
            }
            self.random = fastrand::Rng::with_seed(seed.wrapping_add(round as u64));
            self.cluster.trace.line(|| format!("round {round}"));
            if self.happens(self.disturbances.modes) {
                self.client_switches();
            }
            match self.random.u8(0..7) {
                0 | 1 => self.something_breaks(),
                2 => self.send_workload_request(),
                _ => self.commander_acts(),
            }
            // Several requests in a row must not be rare.
            let pause = if self.random.u8(0..3) == 0 {
                0
            } else {
                self.random.u64(0..pause_ms)
            };
            let end = self.cluster.clock.now() + Duration::from_millis(pause);
            self.cluster.run_until(end);
            if !self.cluster.violations.is_empty() {
                break;
            }
        }
        rounds
    }

    fn settle(&mut self) -> Option<String> {
        self.cluster.calm_down();
        let (mut waited, mut settled) = (Duration::ZERO, Duration::ZERO);
        let mut reason = None;
        while waited < SETTLED_AFTER && settled < STAYS_SETTLED {
            // Not in step with reports that come as regularly: their messages would always be on
            // their way.
            let interval = LOOK_INTERVAL + Duration::from_millis(self.random.u64(0..1000));
            self.cluster.run_until(self.cluster.clock.now() + interval);
            if let Some(violation) = self.cluster.violations.first() {
                return Some(violation.clone());
            }
            waited += interval;
            reason = unsettled(&mut self.cluster);
            settled = if reason.is_none() {
                settled + interval
            } else {
                Duration::ZERO
            };
        }
        reason.map(|reason| format!("not settled after {} s: {reason}", waited.as_secs()))
    }

    // ------------------------------------------------------------- what breaks

    fn something_breaks(&mut self) {
        let Disturbances {
            cuts,
            agent_kills,
            server_kills,
            reboots,
            crashes,
            removals,
            paths,
            pauses,
            stalls,
            ..
        } = self.disturbances;
        let Disturbances {
            server_pauses,
            manifests,
            departures,
            storms,
            damages,
            ..
        } = self.disturbances;
        let node = self.random.usize(..self.cluster.nodes.len());
        let longest_ms = if self.random.bool() { 1_000 } else { 30_000 };
        let away = Duration::from_millis(self.random.u64(0..longest_ms));
        if self.random.u32(0..100) < stalls {
            self.cluster.stall(node);
        }
        if self.random.u32(0..100) < cuts {
            self.cluster.cut(node);
        }
        if self.random.u32(0..100) < pauses {
            self.cluster.pause(node, away);
        }
        if self.random.u32(0..100) < agent_kills {
            self.cluster.kill_agent(node, away, false);
        }
        if self.random.u32(0..100) < reboots {
            self.cluster.kill_agent(node, away, true);
        }
        if self.random.u32(0..100) < server_kills {
            self.cluster.kill_server(away);
            if self.happens(damages) {
                self.cluster.damage_disk();
            }
            if !self.past.is_empty() && self.happens(manifests) {
                let other = self.past[self.random.usize(..self.past.len())].clone();
                // What a workload asked for may have been refused, as a cycle.
                if modes::new_server(self.cluster.has_modes)
                    .start_with(other.clone())
                    .is_ok()
                {
                    self.cluster.manifest = other;
                }
            }
        }
        if self.random.u32(0..100) < crashes {
            self.cluster.nodes[node].engine.crash_one();
        }
        if self.random.u32(0..100) < paths {
            self.cluster.nodes[node].engine.toggle("/sim/key");
        }
        if self.random.u32(0..100) < removals {
            self.cluster.nodes[node].engine.remove_one();
        }
        if self.happens(server_pauses) {
            self.cluster.pause_server(away);
        }
        if self.happens(departures) {
            self.cluster.change_subscriber();
        }
        if self.happens(storms) {
            let end = self.cluster.clock.now() + Duration::from_millis(self.random.u64(0..2_000));
            self.cluster.run_until(end);
            self.something_breaks();
        }
    }

    /// For kinds that were not there from the begin: without them nothing is drawn.
    fn happens(&mut self, percent: u32) -> bool {
        percent > 0 && self.random.u32(0..100) < percent
    }

    // ---------------------------------------------------------- desired states

    /// Over its control interface, so its requests take time.
    fn send_workload_request(&mut self) {
        let node = self.random.usize(..self.cluster.nodes.len());
        let (_, workload) = self.any_name();
        // Mostly from its own node: elsewhere, or after its end, it must be denied.
        let node = if self.peek(8) > 0 {
            self.home_of(&workload).unwrap_or(node)
        } else {
            node
        };
        let content = if self.random.bool() {
            let masks = vec![
                ["workloadStates", "desiredState.workloads.w2", "agents"][self.random.usize(..3)]
                    .to_owned(),
            ];
            RequestContent::CompleteState(ReadState {
                masks,
                subscribe: self.random.bool(),
            })
        } else {
            let Some((update, desired)) = self.next_update() else {
                return;
            };
            self.past.push(desired);
            RequestContent::UpdateState(update)
        };
        self.cluster.send_workload_request(node, &workload, content);
    }

    fn commander_acts(&mut self) {
        if self.happens(self.disturbances.rollbacks) {
            return self.commander_rolls_back();
        }
        let restarts = self.happens(self.disturbances.restarts);
        if restarts && self.random.bool() {
            return self.commander_restarts();
        }
        let Some((mut update, desired)) = self.next_update() else {
            return;
        };
        if restarts {
            update.restart = desired.workloads.keys().map(ToString::to_string).collect();
        }
        let update = RequestContent::UpdateState(update);
        let repeated = self.random.u8(0..10) == 0;
        // The active version of these may name a mode although their new one does not.
        let are_staged = self
            .cluster
            .server
            .as_ref()
            .is_some_and(|server| !pending(server).is_empty());
        let undone = self.undone();
        let answer = self.cluster.ask(update.clone());
        match &answer {
            Some(Ok(())) => self.past.push(desired),
            Some(Err(text)) => {
                self.cluster.trace.line(|| format!("commander: {text}"));
                let is_refusal = ["cycle", SAME_AS, MANY_OPEN]
                    .iter()
                    .any(|refusal| text.contains(refusal));
                let is_refusal =
                    is_refusal || restarts && RESTART_REFUSED.iter().any(|it| text.contains(it));
                if !(is_refusal || are_staged && text.contains("has the tag 'modes'")) {
                    self.cluster
                        .violations
                        .push(format!("a valid update was refused: {text}"));
                }
            }
            None => {}
        }
        if repeated && !restarts {
            let again = self.cluster.ask(update);
            // One that joins an update whose time is used up is undone at once, and leads elsewhere
            // from there.
            if again != answer && self.undone() == undone {
                self.cluster.violations.push(format!(
                    "the same update has two different answers: {answer:?}, {again:?}"
                ));
            }
        }
    }

    /// Any workload, also one that does not exist or does not run.
    fn commander_restarts(&mut self) {
        let restart = vec![self.any_name().1.to_string()];
        self.cluster
            .trace
            .line(|| format!("commander: restarts {restart:?}"));
        let answer = self.cluster.ask(RequestContent::UpdateState(UpdateState {
            restart,
            ..Default::default()
        }));
        if let Some(Err(text)) = answer
            && !RESTART_REFUSED.iter().any(|it| text.contains(it))
        {
            self.cluster
                .violations
                .push(format!("a valid restart was refused: {text}"));
        }
    }

    /// Any update; most have something that was changed since.
    fn commander_rolls_back(&mut self) {
        let updates = self
            .cluster
            .server
            .as_ref()
            .map(ServerLoop::seen_updates)
            .unwrap_or_default();
        let number = updates
            .keys()
            .rev()
            .nth(self.random.usize(..3))
            .copied()
            .unwrap_or(1);
        let answer = self.cluster.ask(RequestContent::RollBack(number));
        self.cluster
            .trace
            .line(|| format!("commander: rolls back update {number}: {answer:?}"));
        if let (Some(Ok(())), Some(server)) = (answer, &self.cluster.server) {
            self.past.push(server.view().desired.clone());
        }
    }

    /// Known updates that were undone.
    fn undone(&self) -> BTreeSet<u64> {
        self.cluster
            .server
            .as_ref()
            .map(server_expectations::undone)
            .unwrap_or_default()
    }

    /// Switches the mode. Only workloads in one of both modes are concerned.
    fn client_switches(&mut self) {
        let Some(server) = &self.cluster.server else {
            return;
        };
        let mut desired = server.view().desired.clone();
        let was_in_force: BTreeMap<_, _> = server.view().effective.clone();
        // The desired version of these is not active.
        let staged: BTreeSet<Name> = pending(server)
            .into_iter()
            .chain(server.restarting())
            .collect();
        let undone = self.undone();
        let mode = modes::MODES[self.random.usize(..modes::MODES.len())];
        self.cluster
            .trace
            .line(|| format!("commander: switches to '{mode}'"));
        desired
            .configs
            .insert(modes::ITEM.to_owned(), ConfigItem::Text(mode.to_owned()));
        let tree = Node::map([("desiredState", desired.node(Rendering::Sparse))]);
        let update = UpdateState {
            new_state: Some(Ok(tree)),
            masks: vec![modes::ITEM_MASK.to_owned()],
            ..Default::default()
        };
        match self.cluster.ask(RequestContent::UpdateState(update)) {
            Some(Ok(())) => self.past.push(desired.clone()),
            Some(Err(text)) => self
                .cluster
                .violations
                .push(format!("a switch was refused: {text}")),
            None => return,
        }
        let changes = |(name, workload)| {
            was_in_force.get(name) != Some(&modes::expected(&desired, name, workload, true))
        };
        let changed = desired
            .workloads
            .iter()
            .filter(|entry| !staged.contains(entry.0) && changes(*entry));
        let changed: BTreeSet<Name> = changed.map(|(name, _)| name.clone()).collect();
        let reported: BTreeSet<Name> = self
            .cluster
            .last_changed
            .difference(&staged)
            .cloned()
            .collect();
        // An update whose time is over at this moment is rolled back as well.
        if changed != reported && self.undone() == undone {
            self.cluster.violations.push(format!(
                "the switch concerns {changed:?}, the server changed {reported:?}"
            ));
        }
    }

    /// A change of the present state, and the state that it leads to.
    fn next_update(&mut self) -> Option<(UpdateState, DesiredState)> {
        let server = self.cluster.server.as_ref()?;
        let mut desired = server.view().desired.clone();
        let mut masks = Vec::new();
        match self.random.u8(0..100) {
            0..60 => {
                for _ in 0..self.random.usize(1..=3) {
                    let (index, name) = self.any_name();
                    let workload = match desired.workloads.get(&name) {
                        Some(known) if self.random.u8(0..4) > 0 => self.changed(index, known),
                        _ => self.new_workload(index),
                    };
                    masks.push(format!("desiredState.workloads.{name}"));
                    desired.workloads.insert(name, Arc::new(workload));
                }
            }
            60..80 => {
                for _ in 0..self.random.usize(1..=2) {
                    let (_, name) = self.any_name();
                    masks.push(format!("desiredState.workloads.{name}"));
                    desired.workloads.remove(&name);
                }
            }
            80..90 => {
                desired.workloads.clear();
                for _ in 0..self.random.usize(0..=6) {
                    let (index, name) = self.any_name();
                    desired
                        .workloads
                        .insert(name, Arc::new(self.new_workload(index)));
                }
            }
            _ if !self.past.is_empty() => {
                desired = self.past[self.random.usize(..self.past.len())].clone()
            }
            _ => {}
        }
        let tree = Node::map([("desiredState", desired.node(Rendering::Sparse))]);
        self.cluster
            .trace
            .line(|| format!("commander: {masks:?} {:?}", texts(&desired)));
        Some((
            UpdateState {
                new_state: Some(Ok(tree)),
                masks,
                ..Default::default()
            },
            desired,
        ))
    }

    /// A number below `end` without drawing one, so that earlier seeds play as before this choice
    /// was added.
    fn peek(&self, end: u8) -> u8 {
        self.random.clone().u8(0..end)
    }

    /// The node that a workload is for.
    fn home_of(&self, workload: &str) -> Option<usize> {
        let agent = &self
            .cluster
            .server
            .as_ref()?
            .view()
            .effective
            .get(workload)?
            .instance
            .agent;
        self.cluster
            .nodes
            .iter()
            .position(|node| node.name == *agent)
    }

    /// What a workload may ask: mostly everything.
    fn any_access(&self) -> ControlInterfaceAccess {
        // No pipes can be created here, and a workload with pipes is not prepared without them.
        let without = if self.disturbances.prepares > 0 { 7 } else { 1 };
        let (operation, masks): (Operation, &[&str]) = match self.peek(10) {
            number if number < without => return ControlInterfaceAccess::default(),
            1 | 2 => (Operation::Read, &["agents", "desiredState.workloads.w2"]),
            _ => (Operation::ReadWrite, &["*"]),
        };
        let filter_masks = masks.iter().map(|mask| (*mask).to_owned()).collect();
        ControlInterfaceAccess {
            allow_rules: vec![AccessRule::State {
                operation,
                filter_masks,
            }],
            deny_rules: vec![],
        }
    }

    fn any_name(&mut self) -> (usize, Name) {
        let index = self.random.usize(0..6);
        (index, format!("w{index}").into())
    }

    fn new_workload(&mut self, index: usize) -> Workload {
        let mut workload = Workload::new("", "", "");
        (workload.agent, workload.runtime) = (self.any_agent(), self.any_runtime());
        workload.runtime_config = self.any_config();
        workload.restart_policy = RestartPolicy::ALL[self.random.usize(..3)];
        self.set_dependencies(index, &mut workload);
        self.set_restart_with(&mut workload);
        workload.control_interface_access = self.any_access();
        self.retag(&mut workload);
        workload
    }

    /// Only while there is a mode.
    fn retag(&mut self, workload: &mut Workload) {
        let desired = self
            .cluster
            .server
            .as_ref()
            .map(|server| server.view().desired);
        if self.cluster.has_modes && desired.is_some_and(|desired| modes::mode(desired).is_some()) {
            modes::retag(workload, &mut self.random);
        }
    }

    /// One thing about it is different.
    fn changed(&mut self, index: usize, known: &Workload) -> Workload {
        let mut workload = known.clone();
        self.retag(&mut workload);
        match self.random.u8(0..12) {
            0..5 => workload.runtime_config = self.any_config(),
            5 | 6 => workload.agent = self.any_agent(),
            7 => workload.runtime = self.any_runtime(),
            8 => workload.restart_policy = RestartPolicy::ALL[self.random.usize(..3)],
            9 | 10 => self.set_dependencies(index, &mut workload),
            _ => {
                workload
                    .tags
                    .insert("tag".to_owned(), self.random.u8(0..3).to_string());
            }
        }
        self.set_restart_with(&mut workload);
        if self.peek(3) == 0 {
            workload.control_interface_access = self.any_access();
        }
        workload
    }

    /// Lets the workload be restarted with those that it needs running, or not any more when there
    /// is none: its update would be refused.
    fn set_restart_with(&mut self, workload: &mut Workload) {
        let config = workload.runtime_config.to_string();
        let mut conditions = workload.dependencies.values();
        if !conditions.any(|condition| *condition == AddCondition::Running) {
            let config = config.replace(RESTART_WITH, "");
            workload.runtime_config = config.as_str().into();
            return;
        }
        if config.contains(RESTART_WITH) || !self.happens(self.disturbances.followers) {
            return;
        }
        let config = match config.split_once("lifecycle: { ") {
            Some((before, block)) => format!("{before}lifecycle: {{ {RESTART_WITH}{block}"),
            None => format!("{config}\nlifecycle: {{ {RESTART_WITH}}}"),
        };
        workload.runtime_config = config.as_str().into();
    }

    fn any_agent(&mut self) -> Name {
        match self.random.u8(0..30) {
            0 => "".into(),
            1 => "nobody".into(),
            _ => self.cluster.nodes[self.random.usize(..self.cluster.nodes.len())]
                .name
                .clone(),
        }
    }

    fn any_runtime(&mut self) -> Name {
        match self.random.u8(0..30) {
            0 => "unknown".into(),
            1..6 => RUNTIMES[1].into(),
            _ => RUNTIMES[0].into(),
        }
    }

    fn any_config(&mut self) -> RuntimeConfig {
        let program =
            ["run", "run", "run", "exit0", "exit0", "exit1", "bad"][self.random.usize(..7)];
        let number = self.random.u8(0..2);
        let removes_itself = if self.happens(self.disturbances.self_removals) {
            " rm"
        } else {
            ""
        };
        let block = LIFECYCLES[self.random.usize(..LIFECYCLES.len())];
        let guard = if self.happens(self.disturbances.guards) {
            GUARDS[self.random.usize(..GUARDS.len())]
        } else {
            ""
        };
        let block = match (block.strip_suffix(" }"), guard) {
            (_, "") => block.to_owned(),
            (None, guard) => format!("{{ update: {guard} }}"),
            (Some(block), guard) => format!("{block}, update: {guard} }}"),
        };
        let lifecycle = if block.is_empty() {
            String::new()
        } else {
            format!("\nlifecycle: {block}")
        };
        // Only what its engine understands can be prepared.
        let image = if self.disturbances.prepares > 0 {
            "\nimage: x"
        } else {
            ""
        };
        format!("{program} : {number}{removes_itself}{image}{lifecycle}")
            .as_str()
            .into()
    }

    /// Mostly on workloads before it, so that there are few cycles.
    fn set_dependencies(&mut self, index: usize, workload: &mut Workload) {
        workload.dependencies.clear();
        for _ in 0..[0, 0, 1, 1, 2][self.random.usize(..5)] {
            let last = if self.random.u8(0..20) == 0 { 6 } else { index };
            if last > 0 {
                let name = format!("w{}", self.random.usize(..last));
                // A draw with other bounds changes what all seeds do, also those in `FOUND`: draw
                // new kinds from a generator of their own, as `disturbances.rs` does.
                let condition = [
                    AddCondition::Running,
                    AddCondition::Succeeded,
                    AddCondition::Failed,
                ];
                workload
                    .dependencies
                    .insert(name, condition[[0, 0, 1, 2][self.random.usize(..4)]]);
            }
        }
    }
}

fn texts(desired: &DesiredState) -> Vec<String> {
    let text = |(name, workload): (&Name, &Arc<Workload>)| {
        let Workload {
            agent,
            runtime,
            runtime_config,
            restart_policy,
            dependencies,
            tags,
            ..
        } = &**workload;
        format!(
            "{name}: {agent} {runtime} '{}' {restart_policy} {dependencies:?} {tags:?}",
            &**runtime_config
        )
    };
    desired.workloads.iter().map(text).collect()
}
