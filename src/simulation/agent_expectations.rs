//! The starts and stops that one life of an agent may make, from the messages of the server: a
//! workload may start once its dependencies were met, and may be stopped once the conditions of its
//! delete were met, as far as that agent could know. The states of other agents are kept here once
//! more, so that a mistake in its own memory is found.
//!
//! Thread: the one of the test.

use super::engine::{SimEngine, removes_itself};
use ankaios_agent::events::SchedulerEvent;
use ankaios_agent::scheduler::Scheduler;
use ankaios_agent::workload::status::Status;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, FromServer, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, DeleteCondition, Workload};
use ankaios_runtime::ListedContainer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The largest exit code of a process.
const EXIT_CODE_LAST: i64 = 255;

/// The conditions of a delete: workloads, and the state that each must have reached.
type Conditions = BTreeMap<String, DeleteCondition>;

/// An instance that the server sent to the agent.
struct SentInstance {
    added: AddedWorkload,
    /// Its dependencies were met at some time since it was sent, or it ran already.
    may_start: bool,
    /// It is restarted with its dependencies, and one of them has ended since they were met.
    is_withdrawn: bool,
    /// When the permission to start was withdrawn. Its control loop may have begun to start it
    /// before, and continues at that instant.
    withdrawn_at: Option<Instant>,
    is_current: bool,
    /// The event that is being handled ends it. Until its deletes are done, it may still start.
    ends: bool,
    /// The number of the target by which its control loop must run it no longer.
    ended_by: Option<u64>,
    /// When its control loop had that target. A later start needs another permission.
    ended_at: Option<Instant>,
}

impl SentInstance {
    /// Returns whether a control loop may start it at this instant.
    fn may_start_at(&self, now: Instant) -> bool {
        let has_ended = match self.ended_at {
            Some(at) => at < now,
            None => false,
        };
        (self.may_start && !has_ended) || self.withdrawn_at == Some(now)
    }
}

/// A delete that the server sent, alone or as a part of an update.
struct SentDelete {
    conditions: Conditions,
    /// They were met at some time since it was sent.
    may_stop: bool,
    /// The instances that were desired before.
    deleted: Vec<AddedWorkload>,
}

/// An instance in one runtime.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ContainerKey {
    instance: InstanceName,
    runtime: Name,
}

impl ContainerKey {
    fn of(added: &AddedWorkload) -> Self {
        Self::new(&added.instance, &added.workload.runtime)
    }

    fn new(instance: &InstanceName, runtime: &Name) -> Self {
        Self {
            instance: instance.clone(),
            runtime: runtime.clone(),
        }
    }
}

/// The state of an instance of another agent.
struct ForeignState {
    state: ExecutionState,
    /// The connection was lost since it was sent.
    is_stale: bool,
}

/// The messages to one life of an agent, and the starts and stops that they allow.
pub(crate) struct AgentExpectations {
    agent: Name,
    /// The number of the life.
    life: u64,
    foreign: BTreeMap<InstanceName, ForeignState>,
    instances: Vec<SentInstance>,
    /// The newest of each workload, until its instance is desired again or has ended.
    deletes: BTreeMap<Name, SentDelete>,
    /// Containers that an earlier message let stop, until they are started again: a loop may handle
    /// it only when the same instance is desired and deleted once more, and a stop that failed is
    /// tried again.
    stopping: BTreeSet<ContainerKey>,
    /// Containers of an earlier life, found before the first hello.
    found: Vec<ContainerKey>,
    has_hello: bool,
    /// The newest status of each control loop, as it was sent, and as the scheduler has it.
    sent: BTreeMap<Name, Arc<Status>>,
    statuses: BTreeMap<Name, Arc<Status>>,
    /// Containers of earlier lives that listings have shown as running, until this life starts or
    /// stops them. It adopts them as running, and their policies restart them without regard to
    /// dependencies, if they have ended since.
    listed: BTreeSet<ContainerKey>,
    /// When the last end of an instance was reported. Its policy may restart it at this instant:
    /// the scheduler cannot forbid it before, and cancels the start.
    ended_at: BTreeMap<InstanceName, Instant>,
    /// The newest conditions of deletes of each workload.
    pub delete_conditions: BTreeMap<Name, Conditions>,
}

/// The states that one agent has: its own, and those of others that were sent.
struct Known<'k> {
    agent: &'k Name,
    manager: &'k Scheduler<ManualClock>,
    foreign: &'k BTreeMap<InstanceName, ForeignState>,
    /// A newer state of an instance of its own.
    news: Option<&'k WorkloadState>,
}

impl Known<'_> {
    /// The states of the agent's own instances, and those of others.
    fn all(&self) -> Vec<(&InstanceName, &ExecutionState)> {
        let mut all = Vec::new();
        for (instance, state) in self.manager.known_states() {
            if instance.agent == *self.agent {
                all.push((instance, state));
            }
        }
        for (instance, foreign) in self.foreign {
            all.push((instance, &foreign.state));
        }
        all
    }

    /// The states of the instances of `name`.
    fn states_of(&self, name: &str) -> Vec<&ExecutionState> {
        let mut states = Vec::new();
        for (instance, state) in self.all() {
            if *instance.workload == *name {
                states.push(state);
            }
        }
        states
    }

    /// Returns whether an instance of `name` meets the condition, as known or as just reported.
    fn any_meets(&self, name: &str, condition: AddCondition) -> bool {
        if let Some(news) = self.news
            && *news.instance.workload == *name
            && meets(news.state.phase, condition)
        {
            return true;
        }
        let mut states = self.states_of(name).into_iter();
        states.any(|state| meets(state.phase, condition))
    }

    /// Returns whether all instances of `name` have ended, or are about to.
    fn has_ended(&self, name: &str) -> bool {
        let states = self.states_of(name);
        !states.is_empty() && states.into_iter().all(has_ended)
    }

    /// Returns whether all instances of `name` meet the condition of a delete.
    fn all_let_stop(&self, name: &str, condition: DeleteCondition) -> bool {
        for (instance, known) in self.all() {
            let mut state = known;
            if let Some(news) = self.news
                && news.instance == *instance
            {
                state = &news.state;
            }
            if *instance.workload == *name && !lets_stop(state, condition) {
                return false;
            }
        }
        // The reported instance is perhaps not known yet.
        match self.news {
            Some(news) if *news.instance.workload == *name => lets_stop(&news.state, condition),
            _ => true,
        }
    }

    /// The workloads that wait to stop, with their conditions.
    fn waiting<'c>(
        &self,
        conditions: &'c BTreeMap<Name, Conditions>,
    ) -> BTreeMap<&'c str, &'c Conditions> {
        let mut waiting = BTreeMap::new();
        for (name, waits_for) in conditions {
            let mut states = self.states_of(name).into_iter();
            if states.any(|state| state.phase == Phase::StoppingWaitingToStop) {
                waiting.insert(&**name, waits_for);
            }
        }
        waiting
    }

    /// Returns whether all instances of `name` stop or wait to stop, and wait for the end of
    /// `deleted` in turn, directly or not. Such a circle does not block the stop of `deleted`.
    fn waits_in_turn(
        &self,
        name: &str,
        condition: DeleteCondition,
        deleted: &str,
        waiting: &BTreeMap<&str, &Conditions>,
    ) -> bool {
        let mut open = vec![name];
        let mut reached = BTreeSet::new();
        while let Some(next) = open.pop() {
            let Some(waits_for) = waiting.get(next) else {
                continue;
            };
            for awaited in waits_for.keys() {
                if reached.insert(awaited.as_str()) {
                    open.push(awaited);
                }
            }
        }
        if !reached.contains(deleted) {
            return false;
        }
        let mut states = self.states_of(name).into_iter();
        states.all(|state| state.phase.state() == "Stopping" || lets_stop(state, condition))
    }
}

impl AgentExpectations {
    /// The life of an agent without a message.
    pub(crate) fn new(agent: Name, life: u64) -> Self {
        Self {
            agent,
            life,
            foreign: BTreeMap::new(),
            instances: Vec::new(),
            deletes: BTreeMap::new(),
            stopping: BTreeSet::new(),
            found: Vec::new(),
            has_hello: false,
            sent: BTreeMap::new(),
            statuses: BTreeMap::new(),
            listed: BTreeSet::new(),
            ended_at: BTreeMap::new(),
            delete_conditions: BTreeMap::new(),
        }
    }

    /// Takes an event that is about to be handled, or a tick.
    pub(crate) fn before(
        &mut self,
        event: Option<&SchedulerEvent>,
        manager: &Scheduler<ManualClock>,
        engine: &SimEngine,
    ) {
        match event {
            Some(SchedulerEvent::Server(FromServer::WorkloadStates(states))) => {
                self.take_foreign_states(states);
            }
            Some(SchedulerEvent::ServerGone) => {
                for foreign in self.foreign.values_mut() {
                    foreign.is_stale = true;
                }
            }
            Some(SchedulerEvent::Server(FromServer::ServerHello(added))) => self.take_hello(added),
            Some(SchedulerEvent::Server(FromServer::UpdateWorkload(plan))) => self.take_plan(plan),
            Some(SchedulerEvent::Listed {
                runtime,
                result: Ok(listed),
            }) => self.take_listing(runtime, listed),
            _ => {}
        }
        self.note_allowed(manager, engine, None);
        if let Some(SchedulerEvent::Status { workload, status }) = event {
            let earlier = self.statuses.insert(workload.clone(), status.clone());
            for report in status.changes_since(&earlier.unwrap_or_default()) {
                // The consequences of a report may hide its state before the event is done.
                self.note_allowed(manager, engine, Some(&report));
            }
        }
    }

    fn take_hello(&mut self, added: &[AddedWorkload]) {
        self.foreign.retain(|_, foreign| !foreign.is_stale);
        // First drop the deletes of instances that were desired again since. If the hello lacks
        // such an instance, it is deleted without conditions.
        let instances = &self.instances;
        self.deletes.retain(|name, delete| {
            let is_desired_again = instances.iter().any(|sent| {
                sent.is_current
                    && sent.added.instance.workload == *name
                    && delete.deleted.contains(&sent.added)
            });
            !is_desired_again
        });
        // Then compare the instances.
        for sent in &mut self.instances {
            if !added.contains(&sent.added) {
                sent.ends = true;
            }
        }
        for added in added {
            self.desired_without_delete(added);
            let mut instances = self.instances.iter();
            if !instances.any(|sent| sent.is_current && !sent.ends && sent.added == *added) {
                self.add(added.clone());
            }
        }
        // Instances that the hello lacks stop without conditions, also if a later delete has some.
        // A delete that waits already continues to wait.
        for sent in &self.instances {
            let ends = sent.is_current && sent.ends;
            if ends && !self.deletes.contains_key(&sent.added.instance.workload) {
                self.stopping.insert(ContainerKey::of(&sent.added));
            }
        }
        // Finally the containers that were found before.
        self.has_hello = true;
        let found = std::mem::take(&mut self.found);
        self.stop_orphans(found);
    }

    fn take_plan(&mut self, plan: &WorkloadPlan) {
        let mut names = BTreeSet::new();
        for deleted in &plan.deleted {
            let name = &deleted.instance.workload;
            names.insert(name);
            self.end_instances(name);
            // This delete takes over the instances of an earlier one that still waits. Others are
            // already being stopped.
            let mut instances = match self.deletes.remove(name) {
                Some(earlier) if !earlier.may_stop => earlier.deleted,
                _ => Vec::new(),
            };
            for sent in &self.instances {
                if sent.is_current && sent.added.instance.workload == *name {
                    instances.push(sent.added.clone());
                }
            }
            let delete = SentDelete {
                conditions: deleted.dependencies.clone(),
                may_stop: false,
                deleted: instances,
            };
            self.deletes.insert(name.clone(), delete);
            self.delete_conditions
                .insert(name.clone(), deleted.dependencies.clone());
        }
        for added in &plan.added {
            let name = &added.instance.workload;
            if !names.contains(name) {
                self.desired_without_delete(added);
            }
            self.end_instances(name);
            self.add(added.clone());
        }
    }

    fn take_listing(&mut self, runtime: &Name, listed: &[ListedContainer]) {
        let mut found = Vec::new();
        for container in listed {
            let key = ContainerKey::new(&container.instance, runtime);
            if container.state.phase == Phase::Running {
                self.listed.insert(key.clone());
            }
            found.push(key);
        }
        if self.has_hello {
            self.stop_orphans(found);
        } else {
            self.found.extend(found);
        }
    }

    /// Returns the reports of a control loop that are new.
    pub(crate) fn reported(&mut self, event: &SchedulerEvent, now: Instant) -> Vec<WorkloadState> {
        let SchedulerEvent::Status { workload, status } = event else {
            return Vec::new();
        };
        let earlier = self.sent.insert(workload.clone(), status.clone());
        let target = status.target_number();
        for sent in &mut self.instances {
            let is_of_loop = sent.added.instance.workload == *workload;
            if is_of_loop && sent.ended_by.is_some_and(|number| number <= target) {
                sent.ended_at.get_or_insert(now);
            }
        }
        let reports = status.changes_since(&earlier.unwrap_or_default());
        for report in &reports {
            if report.state.phase.has_ended() {
                self.ended_at.insert(report.instance.clone(), now);
            }
        }
        reports
    }

    /// Number of workloads in its messages that may still exist.
    pub(crate) fn workloads(&self) -> usize {
        let mut names: BTreeSet<&Name> = self.delete_conditions.keys().collect();
        for sent in &self.instances {
            if sent.is_current {
                names.insert(&sent.added.instance.workload);
            }
        }
        names.len()
    }

    fn take_foreign_states(&mut self, states: &[WorkloadState]) {
        for WorkloadState { instance, state } in states {
            if instance.agent == self.agent {
                continue;
            }
            if state.phase == Phase::Removed {
                self.foreign.remove(instance);
                continue;
            }
            let foreign = ForeignState {
                state: state.clone(),
                is_stale: false,
            };
            self.foreign.insert(instance.clone(), foreign);
        }
    }

    fn end_instances(&mut self, name: &Name) {
        for sent in &mut self.instances {
            if sent.added.instance.workload == *name {
                sent.ends = true;
            }
        }
    }

    /// Takes an instance that is desired without a delete of its workload. An earlier delete that
    /// still waits continues to wait, unless the instance is the first that it deletes.
    fn desired_without_delete(&mut self, added: &AddedWorkload) {
        let name = &added.instance.workload;
        if let Some(delete) = self.deletes.get_mut(name)
            && !delete.may_stop
            && delete.deleted.first() != Some(added)
        {
            delete.deleted.retain(|deleted| deleted != added); // It is desired again.
        } else {
            self.deletes.remove(name);
        }
    }

    /// Containers of an earlier life that are not desired stop without conditions.
    fn stop_orphans(&mut self, found: Vec<ContainerKey>) {
        for container in found {
            let mut instances = self.instances.iter();
            let is_desired = instances.any(|sent| {
                sent.is_current && !sent.ends && sent.added.instance == container.instance
            });
            if !is_desired {
                self.stopping.insert(container);
            }
        }
    }

    fn add(&mut self, added: AddedWorkload) {
        self.instances.push(SentInstance {
            added,
            may_start: false,
            is_withdrawn: false,
            withdrawn_at: None,
            is_current: true,
            ends: false,
            ended_by: None,
            ended_at: None,
        });
    }

    /// Takes the end of an event.
    pub(crate) fn after(
        &mut self,
        manager: &Scheduler<ManualClock>,
        engine: &SimEngine,
        now: Instant,
    ) {
        self.note_allowed(manager, engine, None);
        for sent in &mut self.instances {
            if sent.ends {
                sent.is_current = false;
            }
        }
        self.end_permissions(manager, now);
        self.withdraw(manager, now);
        if !manager.awaits_listings() {
            self.forget_listed(engine);
        }
    }

    /// Notes by which target the control loops of ended instances must run these no longer. One that
    /// waits to be replaced or deleted continues, and its policy restarts it.
    fn end_permissions(&mut self, manager: &Scheduler<ManualClock>, now: Instant) {
        for sent in &mut self.instances {
            if sent.is_current || sent.ended_by.is_some() || manager.may_run(&sent.added) {
                continue;
            }
            match manager.target_number(&sent.added.instance.workload) {
                Some(number) => sent.ended_by = Some(number),
                None => _ = sent.ended_at.get_or_insert(now), // There is no control loop.
            }
        }
    }

    /// Forgets the listed containers that are gone, or that this life has started or stopped.
    fn forget_listed(&mut self, engine: &SimEngine) {
        if self.listed.is_empty() {
            return;
        }
        let mut untouched = BTreeSet::new();
        for container in engine.containers() {
            let is_earlier = container.is_of_another_life(self.life);
            if is_earlier && !container.was_stopped_by(self.life) {
                untouched.insert(ContainerKey::new(&container.instance, &container.runtime));
            }
        }
        self.listed.retain(|listed| untouched.contains(listed));
    }

    /// Notes which workloads that are restarted with their dependencies must not be started before
    /// these are met again.
    fn withdraw(&mut self, manager: &Scheduler<ManualClock>, now: Instant) {
        let known = Known {
            agent: &self.agent,
            manager,
            foreign: &self.foreign,
            news: None,
        };
        for sent in &mut self.instances {
            let workload = &sent.added.workload;
            // An instance that waits to be replaced or deleted is not restarted with others.
            if !sent.is_current || !workload.runtime_config.contains("restartWith") {
                continue;
            }
            for (name, condition) in &workload.dependencies {
                if *condition == AddCondition::Running && known.has_ended(name) {
                    if sent.may_start {
                        sent.withdrawn_at = Some(now);
                    }
                    sent.may_start = false;
                    sent.is_withdrawn = true;
                }
            }
        }
    }

    /// Notes which instances may start now, and which may stop.
    fn note_allowed(
        &mut self,
        manager: &Scheduler<ManualClock>,
        engine: &SimEngine,
        news: Option<&WorkloadState>,
    ) {
        let known = Known {
            agent: &self.agent,
            manager,
            foreign: &self.foreign,
            news,
        };
        // First, the starts.
        let containers = engine.containers();
        for sent in &mut self.instances {
            if !sent.is_current || sent.may_start {
                continue;
            }
            let AddedWorkload { instance, workload } = &sent.added;
            let mut dependencies = workload.dependencies.iter();
            if dependencies.all(|(name, condition)| known.any_meets(name, *condition)) {
                sent.is_withdrawn = false;
                sent.may_start = true;
                continue;
            }
            // Without its dependencies, only an instance that ran already may be started again.
            let runs = containers
                .iter()
                .any(|found| found.instance == *instance && found.phase() == Phase::Running);
            let is_listed = self.listed.contains(&ContainerKey::of(&sent.added));
            sent.may_start = !sent.is_withdrawn && (is_listed || runs);
        }
        // Then, the stops.
        if self.deletes.values().all(|delete| delete.may_stop) {
            return;
        }
        let waiting = known.waiting(&self.delete_conditions);
        for (name, delete) in &mut self.deletes {
            if delete.may_stop {
                continue;
            }
            delete.may_stop = delete.conditions.iter().all(|(awaited, condition)| {
                known.all_let_stop(awaited, *condition)
                    || known.waits_in_turn(awaited, *condition, name, &waiting)
            });
            if delete.may_stop {
                self.stopping
                    .extend(delete.deleted.iter().map(ContainerKey::of));
            }
        }
    }

    /// Returns the violation if the stop of a running container is against the conditions of its
    /// delete.
    pub(crate) fn check_stop(&self, stopped: &AddedWorkload, runtime: &Name) -> Option<String> {
        let instance = &stopped.instance;
        if self.may_end_itself(instance) {
            return None;
        }
        let container = ContainerKey::new(instance, runtime);
        let Some(delete) = self.deletes.get(&instance.workload) else {
            return self.check_stop_of_desired(stopped, &container);
        };
        if delete.may_stop || self.stopping.contains(&container) {
            return None;
        }
        let mut deleted = delete.deleted.iter().map(ContainerKey::of);
        if !deleted.any(|deleted| deleted == container) {
            return None; // The delete is about other instances.
        }
        let conditions = &delete.conditions;
        Some(format!(
            "'{instance}' is stopped before its conditions are met: {conditions:?}"
        ))
    }

    /// Returns the violation if a desired instance is stopped without a delete. A container of an
    /// earlier version is replaced, also if it has the same instance name.
    fn check_stop_of_desired(
        &self,
        stopped: &AddedWorkload,
        container: &ContainerKey,
    ) -> Option<String> {
        if self.stopping.contains(container) {
            return None;
        }
        let mut instances = self.instances.iter();
        let is_desired = instances.any(|sent| {
            let is_of_engine = sent.added.workload.runtime == container.runtime;
            sent.is_current && !sent.ends && sent.added == *stopped && is_of_engine
        });
        if !is_desired {
            return None;
        }
        let instance = &container.instance;
        Some(format!("'{instance}' is stopped although it is desired"))
    }

    /// Returns whether a block may end a container although others wait for it: it is not ready in
    /// time, or does not work any more, or must not run.
    fn may_end_itself(&self, instance: &InstanceName) -> bool {
        for sent in &self.instances {
            if sent.added.instance != *instance {
                continue;
            }
            let config = &sent.added.workload.runtime_config;
            // A check of `/never` always fails.
            let mut parts = ["alive:", "/never", "restartWith:"].iter();
            if parts.any(|part| config.contains(part)) {
                return true;
            }
            if self.may_be_blocked(&sent.added.workload, &mut BTreeSet::new()) {
                return true;
            }
        }
        false
    }

    /// Returns whether a condition of the node may end this workload, by itself or because of one
    /// that it needs running. `seen` are the names that were visited already.
    fn may_be_blocked<'s>(&'s self, workload: &'s Workload, seen: &mut BTreeSet<&'s str>) -> bool {
        let config = &workload.runtime_config;
        if config.contains("precondition:") || config.contains("activation:") {
            return true;
        }
        for (needed, condition) in &workload.dependencies {
            if *condition != AddCondition::Running || !seen.insert(needed) {
                continue;
            }
            for sent in &self.instances {
                if *sent.added.instance.workload == **needed
                    && self.may_be_blocked(&sent.added.workload, seen)
                {
                    return true;
                }
            }
        }
        false
    }

    /// Returns the violation if a control loop of this life reports a workload as running that this
    /// life has not found ready since its last start.
    pub(crate) fn check_ready(
        &self,
        report: &WorkloadState,
        life: u64,
        engine: &SimEngine,
    ) -> Option<String> {
        let WorkloadState { instance, state } = report;
        let mut instances = self.instances.iter();
        let has_check = instances.any(|sent| {
            sent.added.instance == *instance
                && sent.added.workload.runtime_config.contains("ready:")
        });
        if !has_check || state.phase != Phase::Running || engine.is_ready(life, instance) {
            return None;
        }
        Some(format!(
            "'{instance}' is reported as running and is not known to be ready"
        ))
    }

    /// Returns the violation if a control loop reports how a workload ended that removes itself:
    /// whether an agent can see that is chance.
    pub(crate) fn check_end(
        &self,
        WorkloadState { instance, state }: &WorkloadState,
    ) -> Option<String> {
        let mut codes = 1..=EXIT_CODE_LAST;
        let has_code =
            codes.any(|code| state.additional_info == ExecutionState::exited(code).additional_info);
        if state.phase != Phase::Succeeded && !has_code {
            return None;
        }
        let mut instances = self.instances.iter();
        let removes_itself = instances.any(|sent| {
            sent.added.instance == *instance && removes_itself(&sent.added.workload.runtime_config)
        });
        if !removes_itself {
            return None;
        }
        Some(format!(
            "'{instance}' removes itself and is reported to have ended as {state}"
        ))
    }

    /// Takes a create or start. Returns the violation if it is against its dependencies.
    pub(crate) fn check_start(
        &mut self,
        instance: &InstanceName,
        workload: &Arc<Workload>,
        now: Instant,
    ) -> Option<String> {
        let started = AddedWorkload {
            instance: instance.clone(),
            workload: workload.clone(),
        };
        self.stopping.remove(&ContainerKey::of(&started));
        let mut is_current = false;
        // Its policy may restart it at the instant of its end.
        let mut may_start = self.ended_at.get(instance) == Some(&now);
        for sent in &self.instances {
            if sent.added == started {
                is_current |= sent.is_current;
                may_start |= sent.may_start_at(now);
            }
        }
        // The instances that the started one replaces are gone, so a delete of them is over.
        if is_current {
            self.deletes.retain(|name, delete| {
                *name != instance.workload || delete.deleted.contains(&started)
            });
        }
        if may_start {
            return None;
        }
        Some(format!(
            "'{instance}' starts before its dependencies {:?} are met",
            workload.dependencies
        ))
    }
}

/// Returns whether a workload in this phase meets the condition of a dependent. Written here once
/// more, so that a mistake in the original is found.
pub(crate) fn meets(phase: Phase, condition: AddCondition) -> bool {
    match condition {
        AddCondition::Running => phase == Phase::Running,
        AddCondition::Succeeded => phase == Phase::Succeeded,
        AddCondition::Failed => {
            phase == Phase::FailedExecFailed || phase == Phase::PendingStartingFailed
        }
    }
}

/// Returns whether a workload in this state has ended for those that are restarted with it. States
/// that say nothing about the container are no end.
pub(crate) fn has_ended(state: &ExecutionState) -> bool {
    let is_adopted = state.phase == Phase::PendingStarting && state.reason == Reason::Ready;
    let is_unlisted = state.reason == Reason::EngineUnlisted;
    let says_nothing = matches!(
        state.phase,
        Phase::AgentDisconnected
            | Phase::FailedUnknown
            | Phase::PendingInitial
            | Phase::NotScheduled
    );
    state.phase != Phase::Running && !says_nothing && !is_adopted && !is_unlisted
}

/// Returns whether a workload in this state meets the condition of a delete. A workload that stops
/// is awaited while it waits for others, and to its end if it has a condition `gone`.
fn lets_stop(state: &ExecutionState, condition: DeleteCondition) -> bool {
    let phase = state.phase;
    let waits_for_gone = phase.is_stopping() && state.reason == Reason::Gone;
    if phase == Phase::StoppingWaitingToStop || waits_for_gone {
        return false;
    }
    if matches!(phase, Phase::PendingWaitingToStart | Phase::Removed) {
        return true;
    }
    match condition {
        DeleteCondition::Running => phase == Phase::Running,
        DeleteCondition::NotPendingNorRunning => !phase.is_pending() && phase != Phase::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::EngineFaults;
    use super::super::life::{Life, LifeOptions, Part, PrepareOptions};
    use super::super::trace::Trace;
    use super::*;
    use ankaios_model::messages::DeletedWorkload;
    use ankaios_model::prepare_level::PrepareLevel;
    use ankaios_platform::clock::Clock;
    use ankaios_runtime::ContainerId;
    use std::path::Path;
    use std::time::Duration;

    /// An agent with its expectations. It has the state of `user`, which runs on another agent.
    struct CheckedAgent {
        life: Life,
        engine: SimEngine,
        clock: ManualClock,
        expectations: AgentExpectations,
    }

    impl CheckedAgent {
        fn new() -> Self {
            let clock = ManualClock::new();
            let trace = Trace::new(&clock, 0);
            let engine = SimEngine::new(
                &clock,
                fastrand::Rng::with_seed(1),
                trace,
                EngineFaults::default(),
            );
            let prepare = PrepareOptions {
                level: PrepareLevel::None,
                initialised_max: 0,
            };
            let options = LifeOptions {
                parallel_starts: 1,
                create_timeout: None,
                pidfds: true,
                seed: 1,
                prepare,
                lags: 0,
                boot: 0,
            };
            let life = Life::start(
                &"A".into(),
                1,
                &engine,
                &clock,
                Path::new("/nonexistent"),
                options,
            );
            let mut checked = Self {
                life,
                engine,
                clock,
                expectations: AgentExpectations::new("A".into(), 1),
            };
            let user = InstanceName::with_id("user", "id", "B");
            let runs = WorkloadState::new(user, ExecutionState::plain(Phase::Running));
            checked.event(SchedulerEvent::Server(FromServer::WorkloadStates(vec![
                runs,
            ])));
            checked
        }

        fn event(&mut self, event: SchedulerEvent) {
            self.expectations
                .before(Some(&event), &self.life.manager, &self.engine);
            self.life.manager.on_event(event);
            self.expectations
                .after(&self.life.manager, &self.engine, self.clock.now());
        }

        fn plan(&mut self, added: &[&AddedWorkload], deleted: &[(&AddedWorkload, &[&str])]) {
            let deleted = deleted.iter().map(|(of, waits_for)| DeletedWorkload {
                instance: of.instance.clone(),
                dependencies: waits_for
                    .iter()
                    .map(|name| ((*name).to_owned(), DeleteCondition::NotPendingNorRunning))
                    .collect(),
            });
            let plan = WorkloadPlan {
                added: added.iter().map(|added| (*added).clone()).collect(),
                deleted: deleted.collect(),
            };
            self.event(SchedulerEvent::Server(FromServer::UpdateWorkload(plan)));
        }

        /// Lets control loops handle their targets.
        fn step_loops(&mut self) {
            let mut parts = Vec::new();
            self.life.ready(&mut parts);
            while let Some(part) = parts.pop() {
                let Part::Loop(index) = part else { continue };
                let (_, events) = self.life.step_loop(index);
                for event in events {
                    self.expectations.reported(&event, self.clock.now());
                    self.event(event);
                }
                parts.clear();
                self.life.ready(&mut parts);
            }
        }

        fn may_stop(&self, of: &AddedWorkload) -> bool {
            self.expectations
                .check_stop(of, &of.workload.runtime)
                .is_none()
        }

        fn may_start(&mut self, added: &AddedWorkload) -> bool {
            self.expectations
                .check_start(&added.instance, &added.workload, self.clock.now())
                .is_none()
        }
    }

    fn wanted(config: &str, needs: Option<AddCondition>) -> AddedWorkload {
        let mut workload = Workload::new("A", "podman", config);
        workload.dependencies = needs
            .map(|condition| ("user".to_owned(), condition))
            .into_iter()
            .collect();
        AddedWorkload {
            instance: workload.instance_name("w"),
            workload: Arc::new(workload),
        }
    }

    #[test]
    fn stop_against_its_delete_conditions_is_an_alarm() {
        let (mut checked, w) = (CheckedAgent::new(), wanted("run 0", None));
        checked.plan(&[&w], &[]);
        checked.plan(&[], &[(&w, &["user"])]);
        assert!(!checked.may_stop(&w));
        checked.plan(&[], &[(&w, &[])]);
        assert!(checked.may_stop(&w));
    }

    /// Seed 349: the same instance is wanted and deleted once more before its loop came to the
    /// first delete.
    #[test]
    fn stop_under_way_is_no_alarm_when_a_newer_delete_waits() {
        let (mut checked, w) = (CheckedAgent::new(), wanted("run 0", None));
        checked.plan(&[&w], &[]);
        checked.plan(&[], &[(&w, &[])]);
        checked.plan(&[&w], &[]);
        checked.plan(&[], &[(&w, &["user"])]);
        assert!(checked.may_stop(&w), "the first delete let it stop");
        assert!(checked.may_start(&w));
        assert!(!checked.may_stop(&w), "it was started again since");
    }

    /// Seeds 2008032 and 2013391: deletes of a hello have no conditions; only a delete that waits
    /// already continues to wait.
    #[test]
    fn what_a_hello_takes_back_may_stop_unless_its_delete_waits() {
        let w = wanted("run 0", None);
        let mut workload = (*w.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: w.instance.clone(),
            workload: Arc::new(workload),
        };
        let taken_back = |checked: &mut CheckedAgent| {
            checked.event(SchedulerEvent::Server(FromServer::ServerHello(Vec::new())))
        };
        let mut checked = CheckedAgent::new();
        checked.plan(&[&w], &[]);
        checked.plan(&[&changed], &[(&w, &["user"])]);
        taken_back(&mut checked);
        assert!(!checked.may_stop(&w), "it waits");
        let mut checked = CheckedAgent::new();
        checked.plan(&[&w], &[]);
        checked.plan(&[&changed], &[(&w, &["user"])]);
        checked.plan(&[&w], &[(&changed, &["user"])]);
        assert!(!checked.may_stop(&w));
        taken_back(&mut checked);
        assert!(checked.may_stop(&w), "it was wanted as it is after all");
        let mut checked = CheckedAgent::new();
        checked.plan(&[&w], &[]);
        checked.plan(&[&changed], &[(&w, &["user"])]);
        assert!(checked.may_start(&changed));
        taken_back(&mut checked);
        assert!(checked.may_stop(&changed), "there was nothing to replace");
    }

    /// Seed 5211295: a stop that failed is tried again although the workload is meanwhile to be
    /// deleted, too.
    #[test]
    fn instance_replaced_by_a_hello_stops_despite_a_later_delete() {
        let (mut checked, w) = (CheckedAgent::new(), wanted("run 0", None));
        let mut workload = (*w.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: w.instance.clone(),
            workload: Arc::new(workload),
        };
        checked.plan(&[&w], &[]);
        checked.event(SchedulerEvent::Server(FromServer::ServerHello(vec![
            changed.clone(),
        ])));
        checked.plan(&[], &[(&changed, &["user"])]);
        assert!(checked.may_stop(&w), "the hello replaces it");
        assert!(
            checked.may_start(&changed) && !checked.may_stop(&changed),
            "what is there then waits"
        );
    }

    /// Seed 5417861: what an earlier life left stops without conditions, before the hello and after
    /// it.
    #[test]
    fn orphan_is_stopped_although_desired_and_deleted_later() {
        let w = wanted("run 0", None);
        let hello =
            |added: Vec<AddedWorkload>| SchedulerEvent::Server(FromServer::ServerHello(added));
        let listed = || {
            let state = ExecutionState::plain(Phase::Running);
            let (id, instance) = (ContainerId("1".into()), w.instance.clone());
            let found = ListedContainer {
                id,
                instance,
                state,
                processes: Vec::new(),
                ended_at: None,
                in_pod: false,
                pods: None,
            };
            SchedulerEvent::Listed {
                runtime: w.workload.runtime.clone(),
                result: Ok(vec![found]),
            }
        };
        for events in [vec![hello(vec![]), listed()], vec![listed(), hello(vec![])]] {
            let mut checked = CheckedAgent::new();
            events.into_iter().for_each(|event| checked.event(event));
            checked.plan(&[&w], &[]);
            checked.plan(&[], &[(&w, &["user"])]);
            assert!(checked.may_stop(&w), "it was not desired");
        }
        for events in [
            vec![hello(vec![w.clone()]), listed()],
            vec![listed(), hello(vec![w.clone()])],
        ] {
            let mut checked = CheckedAgent::new();
            events.into_iter().for_each(|event| checked.event(event));
            checked.plan(&[], &[(&w, &["user"])]);
            assert!(!checked.may_stop(&w), "it was wanted");
        }
    }

    /// Seed 1331: a delete concerns the desired instance, not those that an earlier one lets stop.
    #[test]
    fn waiting_delete_does_not_affect_an_earlier_one() {
        let (mut checked, old, new) = (
            CheckedAgent::new(),
            wanted("run 0", None),
            wanted("run 1", None),
        );
        checked.plan(&[&old], &[]);
        checked.plan(&[], &[(&old, &[])]);
        checked.plan(&[&new], &[]);
        checked.plan(&[], &[(&new, &["user"])]);
        assert!(checked.may_stop(&old) && !checked.may_stop(&new));
        // A delete that still waits becomes a part of the next one.
        let (mut checked, third) = (CheckedAgent::new(), wanted("exit0 0", None));
        checked.plan(&[&old], &[]);
        checked.plan(&[&new], &[(&old, &["user"])]);
        checked.plan(&[&third], &[(&new, &["user"])]);
        assert!(!checked.may_stop(&old), "the old one still waits");
    }

    /// Seed 9918485: the replacement of an instance that waits is taken back, too, before that one
    /// may stop.
    #[test]
    fn waiting_delete_keeps_waiting_when_another_replaces_it() {
        let (old, new) = (wanted("run 0", None), wanted("run 1", None));
        for comes in [
            FromServer::UpdateWorkload(WorkloadPlan {
                added: vec![new.clone()],
                deleted: Vec::new(),
            }),
            FromServer::ServerHello(vec![new.clone()]),
        ] {
            let mut checked = CheckedAgent::new();
            checked.plan(&[&old], &[]);
            checked.plan(&[], &[(&old, &["user"])]);
            checked.event(SchedulerEvent::Server(comes));
            assert!(!checked.may_stop(&old), "it still waits");
            checked.plan(&[], &[(&new, &["user"])]);
            assert!(!checked.may_stop(&old));
            checked.plan(&[&new], &[]);
            assert!(!checked.may_stop(&old), "only the new one is wanted again");
            checked.plan(&[], &[(&new, &[])]);
            checked.plan(&[&old], &[]);
            checked.plan(&[], &[(&old, &["user"])]);
            assert!(
                checked.may_stop(&old),
                "that has let it stop, which may be under way"
            );
            assert!(
                checked.may_start(&old) && !checked.may_stop(&old),
                "it was started again since"
            );
        }
    }

    #[test]
    fn waiting_delete_of_a_desired_instance_stops_nothing() {
        let (mut checked, old, new) = (
            CheckedAgent::new(),
            wanted("run 0", None),
            wanted("run 1", None),
        );
        checked.plan(&[&old], &[]);
        checked.plan(&[&new], &[(&old, &["user"])]);
        checked.plan(&[&old], &[]);
        checked.plan(&[], &[(&old, &["user"])]);
        assert!(!checked.may_stop(&old));
    }

    fn shown_as_running(added: &AddedWorkload) -> ListedContainer {
        ListedContainer {
            id: ContainerId("1".into()),
            instance: added.instance.clone(),
            state: ExecutionState::plain(Phase::Running),
            processes: Vec::new(),
            ended_at: None,
            in_pod: false,
            pods: None,
        }
    }

    /// Seed 10021561: it ended after one engine has listed it, and before the agent acts on what
    /// all have listed.
    #[test]
    fn listed_instance_continues_if_desired_before_all_listings() {
        let (mut checked, unmet) = (
            CheckedAgent::new(),
            wanted("run 0", Some(AddCondition::Succeeded)),
        );
        let running = shown_as_running(&unmet);
        let listed = |runtime: &str, found| SchedulerEvent::Listed {
            runtime: runtime.into(),
            result: Ok(found),
        };
        checked.event(SchedulerEvent::Server(FromServer::ServerHello(Vec::new())));
        checked.event(listed("podman", vec![running]));
        checked.plan(&[&unmet], &[]);
        assert!(
            checked.may_start(&unmet),
            "it is taken over and may be restarted"
        );
        checked.event(listed("containerd", Vec::new()));
        checked.plan(&[], &[(&unmet, &[])]);
        let mut workload = (*unmet.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: unmet.instance.clone(),
            workload: Arc::new(workload),
        };
        checked.plan(&[&changed], &[]);
        assert!(!checked.may_start(&changed), "the listing is history");
    }

    #[test]
    fn start_needs_its_dependencies_unless_seen_running() {
        let (mut checked, met, unmet) = (
            CheckedAgent::new(),
            wanted("run 0", Some(AddCondition::Running)),
            wanted("run 1", Some(AddCondition::Succeeded)),
        );
        checked.plan(&[&met], &[]);
        assert!(
            checked.may_start(&met) && !checked.may_start(&unmet),
            "only the first was ordered"
        );
        checked.plan(&[&unmet], &[(&met, &[])]);
        assert!(!checked.may_start(&unmet));
        let found = shown_as_running(&unmet);
        checked.event(SchedulerEvent::Listed {
            runtime: "podman".into(),
            result: Ok(vec![found]),
        });
        assert!(
            checked.may_start(&unmet),
            "a listing has shown it as running"
        );
    }

    /// As of a scheduler that remembers the dependencies of the first time.
    #[test]
    fn start_of_an_instance_that_came_back_needs_dependencies() {
        let (mut checked, w) = (
            CheckedAgent::new(),
            wanted("run 0", Some(AddCondition::Running)),
        );
        checked.plan(&[&w], &[]);
        checked.plan(&[], &[(&w, &[])]);
        assert!(checked.may_start(&w), "its control loop may start it now");
        checked.step_loops();
        checked.clock.advance(Duration::from_millis(1));
        let user = InstanceName::with_id("user", "id", "B");
        let ended = WorkloadState::new(user, ExecutionState::plain(Phase::Succeeded));
        checked.event(SchedulerEvent::Server(FromServer::WorkloadStates(vec![
            ended,
        ])));
        checked.plan(&[&w], &[]);
        assert!(!checked.may_start(&w), "it waits for the user once more");
    }

    #[test]
    fn stop_of_a_desired_instance_is_an_alarm() {
        let (mut checked, w) = (CheckedAgent::new(), wanted("run 0", None));
        checked.plan(&[&w], &[]);
        assert!(!checked.may_stop(&w));
        let mut workload = (*w.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let earlier = AddedWorkload {
            instance: w.instance.clone(),
            workload: Arc::new(workload),
        };
        assert!(checked.may_stop(&earlier), "it is replaced");
        checked.plan(&[], &[(&w, &[])]);
        assert!(checked.may_stop(&w));
    }

    #[test]
    fn block_of_an_earlier_version_allows_no_stop() {
        let block = "lifecycle: { precondition: { pathExists: /key } }";
        let blocked = wanted(&format!("run 0\n{block}"), None);
        let (mut checked, w) = (CheckedAgent::new(), wanted("run 1", None));
        checked.plan(&[&blocked], &[]);
        assert!(checked.may_stop(&blocked), "the node may forbid it");
        checked.plan(&[&w], &[(&blocked, &[])]);
        checked.plan(&[], &[(&w, &["user"])]);
        assert!(!checked.may_stop(&w));
    }
}
