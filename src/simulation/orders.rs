//! What the server has told one life of an agent, to judge its starts and stops: a workload may
//! start once its dependencies were met, and is stopped once what its delete waits for was met, as
//! far as that agent could know. What it knows of others is kept here once more, so that a mistake
//! in its own memory is found.
//!
//! Thread: the one of the test.

use super::engine::{SimEngine, removes_itself};
use ankaios_agent::events::SchedulerEvent;
use ankaios_agent::scheduler::Scheduler;
use ankaios_agent::workload::status::Status;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, FromServer};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, DeleteCondition, Workload};
use ankaios_runtime::ListedContainer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The largest exit code of a process.
const EXIT_CODE_LAST: i64 = 255;

/// What a delete waits for: workloads, and what each must have reached.
type Conditions = BTreeMap<String, DeleteCondition>;

struct Order {
    added: AddedWorkload,
    /// Its dependencies were met at some time since it came, or it ran already.
    may_start: bool,
    /// It is restarted with its dependencies, and one of them has ended since they were met.
    is_withdrawn: bool,
    current: bool,
    /// The event that is being handled ends it. Until its deletes are done, it may still start.
    ends: bool,
}

/// A delete, alone or as a part of an update.
struct Delete {
    conditions: Conditions,
    /// They were met at some time since it came.
    may_stop: bool,
    /// What it is about: what was wanted before.
    of: Vec<AddedWorkload>,
}

impl Delete {
    /// Instances with their runtimes.
    fn containers(&self) -> impl Iterator<Item = (InstanceName, Name)> {
        self.of
            .iter()
            .map(|added| (added.instance.clone(), added.workload.runtime.clone()))
    }
}

/// The orders of one life.
pub(crate) struct Orders {
    agent: Name,
    /// States of instances of other agents, and whether the connection was lost since they were
    /// told.
    foreign: BTreeMap<InstanceName, (ExecutionState, bool)>,
    orders: Vec<Order>,
    /// The newest of each workload, until what it is about is wanted again or has ended.
    deletes: BTreeMap<Name, Delete>,
    /// What an earlier order let stop, until it is started again: a loop may come to it only when
    /// the same instance is wanted and deleted once more, and a stop that failed is tried again.
    stopping: BTreeSet<(InstanceName, Name)>,
    /// What an earlier life left, found before the first hello.
    found: Vec<(InstanceName, Name)>,
    has_hello: bool,
    /// The newest status of each control loop, as it was sent, and as the scheduler has it.
    sent: BTreeMap<Name, Arc<Status>>,
    statuses: BTreeMap<Name, Arc<Status>>,
    /// What listings have shown as running, until the agent acts on them. They may be older than
    /// its end, which the agent cannot know.
    listed: BTreeSet<(InstanceName, Name)>,
    /// What deletes of a workload have to wait for, as told last.
    pub delete_conditions: BTreeMap<Name, Conditions>,
}

/// What one agent knows: of its own what it decided itself, of others what it was told.
struct Known<'k> {
    agent: &'k Name,
    manager: &'k Scheduler<ManualClock>,
    foreign: &'k BTreeMap<InstanceName, (ExecutionState, bool)>,
    /// A newer state of an instance of its own.
    news: Option<&'k WorkloadState>,
}

impl Known<'_> {
    fn all(&self) -> impl Iterator<Item = (&InstanceName, &ExecutionState)> {
        let own = self
            .manager
            .known_states()
            .filter(|(known, _)| known.agent == *self.agent);
        own.chain(
            self.foreign
                .iter()
                .map(|(known, (state, _))| (known, state)),
        )
    }

    /// Some instance of `name` has reached the state, as shown or as it was just told.
    fn may_start(&self, name: &str, condition: AddCondition) -> bool {
        let news = self.news.map(|news| (&news.instance, &news.state));
        self.all()
            .chain(news)
            .any(|(known, state)| *known.workload == *name && meets(state.phase, condition))
    }

    /// All instances of `name` have ended, or are about to.
    fn has_ended(&self, name: &str) -> bool {
        let mut states = self.all().filter(|(known, _)| *known.workload == *name);
        let Some((_, first)) = states.next() else {
            return false;
        };
        has_ended(first) && states.all(|(_, state)| has_ended(state))
    }

    /// All instances of `name` are so far.
    fn may_stop(&self, name: &str, condition: DeleteCondition) -> bool {
        let old = self
            .all()
            .filter(|(known, _)| self.news.is_none_or(|news| news.instance != **known));
        let mut states = old.chain(self.news.map(|news| (&news.instance, &news.state)));
        states.all(|(known, state)| *known.workload != *name || lets_stop(state, condition))
    }

    /// What waits to stop, with what it was told to wait for.
    fn waiting<'c>(
        &self,
        conditions: &'c BTreeMap<Name, Conditions>,
    ) -> BTreeMap<&'c str, &'c Conditions> {
        let waits = |name: &Name| {
            self.all().any(|(one, state)| {
                one.workload == *name && state.phase == Phase::StoppingWaitingToStop
            })
        };
        conditions
            .iter()
            .filter(|(name, _)| waits(name))
            .map(|(name, waits_for)| (&**name, waits_for))
            .collect()
    }

    /// Whether what is left of `name` waits to stop and for the end of `of` in turn, directly or
    /// not.
    fn waits_in_turn(
        &self,
        name: &str,
        condition: DeleteCondition,
        of: &str,
        waiting: &BTreeMap<&str, &Conditions>,
    ) -> bool {
        let (mut open, mut reached) = (vec![name], BTreeSet::new());
        while let Some(next) = open.pop() {
            let awaited = waiting
                .get(next)
                .into_iter()
                .flat_map(|waits_for| waits_for.keys());
            open.extend(
                awaited
                    .map(String::as_str)
                    .filter(|awaited| reached.insert(*awaited)),
            );
        }
        let mut of_name = self.all().filter(|(known, _)| *known.workload == *name);
        let stops = |state: &ExecutionState| {
            state.phase.state() == "Stopping" || lets_stop(state, condition)
        };
        reached.contains(of) && of_name.all(|(_, state)| stops(state))
    }
}

impl Orders {
    /// The life of an agent that was told nothing yet.
    pub(crate) fn new(agent: Name) -> Self {
        Self {
            agent,
            foreign: BTreeMap::new(),
            orders: Vec::new(),
            deletes: BTreeMap::new(),
            stopping: BTreeSet::new(),
            found: Vec::new(),
            has_hello: false,
            sent: BTreeMap::new(),
            statuses: BTreeMap::new(),
            listed: BTreeSet::new(),
            delete_conditions: BTreeMap::new(),
        }
    }

    /// An event is about to be handled, or a tick.
    pub(crate) fn before(
        &mut self,
        event: Option<&SchedulerEvent>,
        manager: &Scheduler<ManualClock>,
        engine: &SimEngine,
    ) {
        match event {
            Some(SchedulerEvent::Server(FromServer::WorkloadStates(states))) => {
                self.told_of_others(states)
            }
            Some(SchedulerEvent::ServerGone) => self
                .foreign
                .values_mut()
                .for_each(|(_, is_stale)| *is_stale = true),
            Some(SchedulerEvent::Server(FromServer::ServerHello(added))) => {
                self.foreign.retain(|_, (_, is_stale)| !*is_stale);
                // What was wanted again as it is does not wait any more; a hello that takes it back
                // has no conditions.
                let orders = || {
                    self.orders
                        .iter()
                        .filter(|order| order.current)
                        .map(|order| &order.added)
                };
                let wanted_again = |name: &Name, delete: &Delete| {
                    orders()
                        .any(|added| added.instance.workload == *name && delete.of.contains(added))
                };
                self.deletes
                    .retain(|name, delete| !wanted_again(name, delete));
                let keep = |order: &Order| added.contains(&order.added);
                self.orders
                    .iter_mut()
                    .for_each(|order| order.ends |= !keep(order));
                for added in added {
                    self.wanted_without_delete(added);
                    if !self
                        .orders
                        .iter()
                        .any(|order| order.current && !order.ends && order.added == *added)
                    {
                        self.order(added.clone());
                    }
                }
                // A hello ends these without conditions, and what a later delete waits for does not
                // end a stop under way.
                let ended = self
                    .orders
                    .iter()
                    .filter(|order| order.current && order.ends)
                    .map(|order| &order.added);
                let ended =
                    ended.filter(|added| !self.deletes.contains_key(&added.instance.workload));
                self.stopping.extend(
                    ended.map(|added| (added.instance.clone(), added.workload.runtime.clone())),
                );
                self.has_hello = true;
                let found = std::mem::take(&mut self.found);
                self.stop_unwanted(found);
            }
            Some(SchedulerEvent::Server(FromServer::UpdateWorkload(plan))) => {
                for deleted in &plan.deleted {
                    let name = &deleted.instance.workload;
                    self.outdate(name);
                    // What an earlier delete was about is already being stopped, unless that one
                    // still waits.
                    let waiting = self
                        .deletes
                        .remove(name)
                        .filter(|earlier| !earlier.may_stop);
                    let mut of = waiting.map(|earlier| earlier.of).unwrap_or_default();
                    let known = self
                        .orders
                        .iter()
                        .filter(|order| order.current)
                        .map(|order| &order.added);
                    let known = known.filter(|added| added.instance.workload == *name);
                    of.extend(known.cloned());
                    let delete = Delete {
                        conditions: deleted.dependencies.clone(),
                        may_stop: false,
                        of,
                    };
                    self.deletes.insert(name.clone(), delete);
                    self.delete_conditions
                        .insert(name.clone(), deleted.dependencies.clone());
                }
                for added in &plan.added {
                    if !plan
                        .deleted
                        .iter()
                        .any(|deleted| deleted.instance.workload == added.instance.workload)
                    {
                        self.wanted_without_delete(added);
                    }
                    self.outdate(&added.instance.workload);
                    self.order(added.clone());
                }
            }
            Some(SchedulerEvent::Listed {
                runtime,
                result: Ok(listed),
            }) => {
                let with_runtime =
                    |found: &ListedContainer| (found.instance.clone(), runtime.clone());
                let running = listed
                    .iter()
                    .filter(|found| found.state.phase == Phase::Running);
                self.listed.extend(running.map(with_runtime));
                let found = listed.iter().map(with_runtime);
                if self.has_hello {
                    self.stop_unwanted(found.collect());
                } else {
                    self.found.extend(found);
                }
            }
            _ => {}
        }
        self.look(manager, engine, None);
        if let Some(SchedulerEvent::Status { workload, status }) = event {
            let earlier = self.statuses.insert(workload.clone(), status.clone());
            for report in status.changes_since(&earlier.unwrap_or_default()) {
                // What this leads to may hide it again before the event is done.
                self.look(manager, engine, Some(&report));
            }
        }
    }

    /// What a control loop reports that it has not reported before.
    pub(crate) fn reported(&mut self, event: &SchedulerEvent) -> Vec<WorkloadState> {
        let SchedulerEvent::Status { workload, status } = event else {
            return Vec::new();
        };
        let earlier = self.sent.insert(workload.clone(), status.clone());
        status.changes_since(&earlier.unwrap_or_default())
    }

    /// How many workloads it was told of that may still be there.
    pub(crate) fn workloads(&self) -> usize {
        let names = self
            .orders
            .iter()
            .filter(|order| order.current)
            .map(|order| &order.added.instance.workload);
        names
            .chain(self.delete_conditions.keys())
            .collect::<BTreeSet<&Name>>()
            .len()
    }

    fn told_of_others(&mut self, states: &[WorkloadState]) {
        for WorkloadState { instance, state } in states
            .iter()
            .filter(|told| told.instance.agent != self.agent)
        {
            match state.phase {
                Phase::Removed => _ = self.foreign.remove(instance),
                _ => {
                    _ = self
                        .foreign
                        .insert(instance.clone(), (state.clone(), false))
                }
            }
        }
    }

    fn outdate(&mut self, name: &Name) {
        let orders = self
            .orders
            .iter_mut()
            .filter(|order| order.added.instance.workload == *name);
        orders.for_each(|order| order.ends = true);
    }

    /// What still waits to stop goes on waiting when something else is to come in its place, and
    /// does not stop when it is wanted itself: that is the first, the others were to come in its
    /// place.
    fn wanted_without_delete(&mut self, added: &AddedWorkload) {
        let name = &added.instance.workload;
        match self
            .deletes
            .get_mut(name)
            .filter(|delete| !delete.may_stop && delete.of.first() != Some(added))
        {
            Some(delete) => delete.of.retain(|of| of != added),
            None => _ = self.deletes.remove(name),
        }
    }

    /// What an earlier life left and nobody wants stops without conditions.
    fn stop_unwanted(&mut self, found: Vec<(InstanceName, Name)>) {
        let wanted = |instance: &InstanceName| {
            self.orders
                .iter()
                .any(|order| order.current && !order.ends && order.added.instance == *instance)
        };
        let unwanted: Vec<(InstanceName, Name)> = found
            .into_iter()
            .filter(|(instance, _)| !wanted(instance))
            .collect();
        self.stopping.extend(unwanted);
    }

    fn order(&mut self, added: AddedWorkload) {
        self.orders.push(Order {
            added,
            may_start: false,
            is_withdrawn: false,
            current: true,
            ends: false,
        });
    }

    /// The event was handled.
    pub(crate) fn after(&mut self, manager: &Scheduler<ManualClock>, engine: &SimEngine) {
        self.look(manager, engine, None);
        self.orders
            .iter_mut()
            .for_each(|order| order.current &= !order.ends);
        self.withdraw(manager);
        if !manager.awaits_listings() {
            self.listed.clear();
        }
    }

    /// Notes which workloads that are restarted with their dependencies must not be started before
    /// these are met again.
    fn withdraw(&mut self, manager: &Scheduler<ManualClock>) {
        let known = Known {
            agent: &self.agent,
            manager,
            foreign: &self.foreign,
            news: None,
        };
        for order in &mut self.orders {
            let workload = &order.added.workload;
            if !workload.runtime_config.contains("restartWith") {
                continue;
            }
            for (name, condition) in &workload.dependencies {
                if *condition == AddCondition::Running && known.has_ended(name) {
                    (order.may_start, order.is_withdrawn) = (false, true);
                }
            }
        }
    }

    /// Notes which orders may start now.
    fn look(
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
        for order in self
            .orders
            .iter_mut()
            .filter(|order| order.current && !order.may_start)
        {
            let AddedWorkload { instance, workload } = &order.added;
            let mut dependencies = workload.dependencies.iter();
            let is_met = dependencies.all(|(name, condition)| known.may_start(name, *condition));
            if is_met {
                order.is_withdrawn = false;
            }
            let runs = || {
                let mut containers = engine.containers().into_iter();
                let is_listed = self
                    .listed
                    .contains(&(instance.clone(), workload.runtime.clone()));
                is_listed
                    || containers
                        .any(|found| found.instance == *instance && found.phase() == Phase::Running)
            };
            order.may_start = is_met || (!order.is_withdrawn && runs());
        }
        if self.deletes.values().all(|delete| delete.may_stop) {
            return;
        }
        let waiting = known.waiting(&self.delete_conditions);
        for (of, delete) in self
            .deletes
            .iter_mut()
            .filter(|(_, delete)| !delete.may_stop)
        {
            let mut conditions = delete.conditions.iter();
            let is_met = |(name, condition): (&String, &DeleteCondition)| {
                known.may_stop(name, *condition)
                    || known.waits_in_turn(name, *condition, of, &waiting)
            };
            delete.may_stop = conditions.all(is_met);
            if delete.may_stop {
                self.stopping.extend(delete.containers());
            }
        }
    }

    /// Whether the stop of a running container is against what its delete waits for.
    pub(crate) fn check_stop(&self, instance: &InstanceName, runtime: &Name) -> Option<String> {
        if self.stops_by_itself(instance) {
            return None;
        }
        let delete = self
            .deletes
            .get(&instance.workload)
            .filter(|delete| !delete.may_stop)?;
        if self.stopping.contains(&(instance.clone(), runtime.clone())) {
            return None;
        }
        let wanted_before = delete
            .containers()
            .any(|(of, its_runtime)| of == *instance && its_runtime == *runtime);
        wanted_before.then(|| {
            format!(
                "'{instance}' is stopped before what it waits for: {:?}",
                delete.conditions
            )
        })
    }

    /// A block may end a container whatever waits for it: it is not ready in time, or does not work
    /// any more, or may not run.
    fn stops_by_itself(&self, instance: &InstanceName) -> bool {
        let mut of_instance = self
            .orders
            .iter()
            .filter(|order| order.added.instance == *instance);
        let ends = |config: &str| {
            ["alive:", "/never", "restartWith:"]
                .iter()
                .any(|part| config.contains(part))
        };
        of_instance.any(|order| ends(&order.added.workload.runtime_config))
            || self.may_be_withheld(&instance.workload, &mut BTreeSet::new())
    }

    /// Whether a condition of the node may end this workload, by itself or because of one that it
    /// needs running.
    fn may_be_withheld(&self, name: &str, seen: &mut BTreeSet<String>) -> bool {
        if !seen.insert(name.to_owned()) {
            return false;
        }
        let mut of_name = self
            .orders
            .iter()
            .map(|order| &order.added)
            .filter(|added| *added.instance.workload == *name);
        of_name.any(|AddedWorkload { workload, .. }| {
            let config = &workload.runtime_config;
            let needs = workload
                .dependencies
                .iter()
                .filter(|(_, condition)| **condition == AddCondition::Running);
            let mut needs = needs.map(|(needed, _)| needed);
            config.contains("precondition:")
                || config.contains("activation:")
                || needs.any(|needed| self.may_be_withheld(needed, seen))
        })
    }

    /// Whether a control loop of this life says that a workload runs which that life has not found
    /// ready since its last start.
    pub(crate) fn check_ready(
        &self,
        report: &WorkloadState,
        life: u64,
        engine: &SimEngine,
    ) -> Option<String> {
        let WorkloadState { instance, state } = report;
        let of_instance = |order: &&Order| order.added.instance == *instance;
        let gated = |order: &Order| order.added.workload.runtime_config.contains("ready:");
        let is_gated = self.orders.iter().filter(of_instance).any(gated);
        let early = is_gated && state.phase == Phase::Running && !engine.is_ready(life, instance);
        early.then(|| format!("'{instance}' is said to run and is not known to be ready"))
    }

    /// Whether a control loop knows how a workload ended that removes itself: nobody else would, it
    /// is up to chance.
    pub(crate) fn check_end(
        &self,
        WorkloadState { instance, state }: &WorkloadState,
    ) -> Option<String> {
        let shows = |code| state.additional_info == ExecutionState::exited(code).additional_info;
        let knows = state.phase == Phase::Succeeded || (1..=EXIT_CODE_LAST).any(shows);
        let removes = |order: &Order| {
            order.added.instance == *instance
                && removes_itself(&order.added.workload.runtime_config)
        };
        let wrong = knows && self.orders.iter().any(removes);
        wrong.then(|| format!("'{instance}' removes itself and is said to have ended as {state}"))
    }

    /// Whether a create or start is against its dependencies.
    pub(crate) fn check_start(
        &mut self,
        instance: &InstanceName,
        workload: &Arc<Workload>,
    ) -> Option<String> {
        self.stopping
            .remove(&(instance.clone(), workload.runtime.clone()));
        // A new form of the instance that was to be replaced: there was nothing to stop, or nothing
        // any more.
        let started = AddedWorkload {
            instance: instance.clone(),
            workload: workload.clone(),
        };
        if self
            .orders
            .iter()
            .any(|order| order.current && order.added == started)
        {
            self.deletes
                .retain(|name, delete| *name != instance.workload || delete.of.contains(&started));
        }
        let mut equal = self
            .orders
            .iter()
            .filter(|order| order.added.instance == *instance && order.added.workload == *workload);
        if equal.any(|order| order.may_start) {
            return None;
        }
        Some(format!(
            "'{instance}' starts before its dependencies {:?} are met",
            workload.dependencies
        ))
    }
}

/// Written here once more, so that a mistake in the original is found.
fn meets(phase: Phase, condition: AddCondition) -> bool {
    match condition {
        AddCondition::Running => phase == Phase::Running,
        AddCondition::Succeeded => phase == Phase::Succeeded,
        AddCondition::Failed => {
            phase == Phase::FailedExecFailed || phase == Phase::PendingStartingFailed
        }
    }
}

/// As [`meets`], for those that are restarted with others: states that say nothing about the
/// container are left out.
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

/// As [`meets`], for deletes. What stops is waited for while it waits for others, and to the end if
/// it says so.
fn lets_stop(state: &ExecutionState, condition: DeleteCondition) -> bool {
    let phase = state.phase;
    match condition {
        _ if phase == Phase::StoppingWaitingToStop => false,
        _ if phase.is_stopping() && state.reason == Reason::Gone => false,
        _ if matches!(phase, Phase::PendingWaitingToStart | Phase::Removed) => true,
        DeleteCondition::Running => phase == Phase::Running,
        DeleteCondition::NotPendingNorRunning => !phase.is_pending() && phase != Phase::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::EngineFaults;
    use super::super::life::{Life, LifeOptions};
    use super::super::trace::Trace;
    use super::*;
    use ankaios_model::messages::{DeletedWorkload, WorkloadPlan};
    use ankaios_model::prepare_level::PrepareLevel;
    use ankaios_runtime::ContainerId;
    use std::path::Path;

    /// What an agent is told, and its judge. It knows that `user` runs on another agent.
    struct Told {
        life: Life,
        engine: SimEngine,
        orders: Orders,
    }

    impl Told {
        fn new() -> Self {
            let clock = ManualClock::new();
            let trace = Trace::new(&clock, 0);
            let engine = SimEngine::new(
                &clock,
                fastrand::Rng::with_seed(1),
                trace,
                EngineFaults::default(),
            );
            let prepare = (PrepareLevel::None, 0);
            let options = LifeOptions {
                parallel_starts: 1,
                create_timeout: None,
                pidfds: true,
                seed: 1,
                prepare,
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
            let mut told = Self {
                life,
                engine,
                orders: Orders::new("A".into()),
            };
            let user = InstanceName::with_id("user", "id", "B");
            let runs = WorkloadState::new(user, ExecutionState::plain(Phase::Running));
            told.event(SchedulerEvent::Server(FromServer::WorkloadStates(vec![
                runs,
            ])));
            told
        }

        fn event(&mut self, event: SchedulerEvent) {
            self.orders
                .before(Some(&event), &self.life.manager, &self.engine);
            self.life.manager.on_event(event);
            self.orders.after(&self.life.manager, &self.engine);
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

        fn may_stop(&self, of: &AddedWorkload) -> bool {
            self.orders
                .check_stop(&of.instance, &of.workload.runtime)
                .is_none()
        }

        fn may_start(&mut self, added: &AddedWorkload) -> bool {
            self.orders
                .check_start(&added.instance, &added.workload)
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
        let (mut told, w) = (Told::new(), wanted("run 0", None));
        told.plan(&[&w], &[]);
        told.plan(&[], &[(&w, &["user"])]);
        assert!(!told.may_stop(&w));
        told.plan(&[], &[(&w, &[])]);
        assert!(told.may_stop(&w));
    }

    /// Seed 349: the same instance is wanted and deleted once more before its loop came to the
    /// first delete.
    #[test]
    fn stop_under_way_is_no_alarm_when_a_newer_delete_waits() {
        let (mut told, w) = (Told::new(), wanted("run 0", None));
        told.plan(&[&w], &[]);
        told.plan(&[], &[(&w, &[])]);
        told.plan(&[&w], &[]);
        told.plan(&[], &[(&w, &["user"])]);
        assert!(told.may_stop(&w), "the first delete let it stop");
        assert!(told.may_start(&w));
        assert!(!told.may_stop(&w), "it was started again since");
    }

    /// Seeds 2008032 and 2013391: deletes of a hello have no conditions, only what waits already
    /// goes on waiting.
    #[test]
    fn what_a_hello_takes_back_may_stop_unless_its_delete_waits() {
        let w = wanted("run 0", None);
        let mut workload = (*w.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: w.instance.clone(),
            workload: Arc::new(workload),
        };
        let taken_back = |told: &mut Told| {
            told.event(SchedulerEvent::Server(FromServer::ServerHello(Vec::new())))
        };
        let mut told = Told::new();
        told.plan(&[&w], &[]);
        told.plan(&[&changed], &[(&w, &["user"])]);
        taken_back(&mut told);
        assert!(!told.may_stop(&w), "it waits");
        let mut told = Told::new();
        told.plan(&[&w], &[]);
        told.plan(&[&changed], &[(&w, &["user"])]);
        told.plan(&[&w], &[(&changed, &["user"])]);
        assert!(!told.may_stop(&w));
        taken_back(&mut told);
        assert!(told.may_stop(&w), "it was wanted as it is after all");
        let mut told = Told::new();
        told.plan(&[&w], &[]);
        told.plan(&[&changed], &[(&w, &["user"])]);
        assert!(told.may_start(&changed));
        taken_back(&mut told);
        assert!(told.may_stop(&changed), "there was nothing to replace");
    }

    /// Seed 5211295: a stop that failed is tried again although the workload is meanwhile to be
    /// deleted, too.
    #[test]
    fn instance_replaced_by_a_hello_stops_despite_a_later_delete() {
        let (mut told, w) = (Told::new(), wanted("run 0", None));
        let mut workload = (*w.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: w.instance.clone(),
            workload: Arc::new(workload),
        };
        told.plan(&[&w], &[]);
        told.event(SchedulerEvent::Server(FromServer::ServerHello(vec![
            changed.clone(),
        ])));
        told.plan(&[], &[(&changed, &["user"])]);
        assert!(told.may_stop(&w), "the hello replaces it");
        assert!(
            told.may_start(&changed) && !told.may_stop(&changed),
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
            let mut told = Told::new();
            events.into_iter().for_each(|event| told.event(event));
            told.plan(&[&w], &[]);
            told.plan(&[], &[(&w, &["user"])]);
            assert!(told.may_stop(&w), "nobody wanted it");
        }
        for events in [
            vec![hello(vec![w.clone()]), listed()],
            vec![listed(), hello(vec![w.clone()])],
        ] {
            let mut told = Told::new();
            events.into_iter().for_each(|event| told.event(event));
            told.plan(&[], &[(&w, &["user"])]);
            assert!(!told.may_stop(&w), "it was wanted");
        }
    }

    /// Seed 1331: a delete is about what was wanted when it came, not about what an earlier one
    /// lets stop.
    #[test]
    fn waiting_delete_does_not_affect_an_earlier_one() {
        let (mut told, old, new) = (Told::new(), wanted("run 0", None), wanted("run 1", None));
        told.plan(&[&old], &[]);
        told.plan(&[], &[(&old, &[])]);
        told.plan(&[&new], &[]);
        told.plan(&[], &[(&new, &["user"])]);
        assert!(told.may_stop(&old) && !told.may_stop(&new));
        // One that still waits takes what it is about along.
        let (mut told, third) = (Told::new(), wanted("exit0 0", None));
        told.plan(&[&old], &[]);
        told.plan(&[&new], &[(&old, &["user"])]);
        told.plan(&[&third], &[(&new, &["user"])]);
        assert!(!told.may_stop(&old), "the old one still waits");
    }

    /// Seed 9918485: what is to come in the place of what waits is taken back, too, before that may
    /// stop.
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
            let mut told = Told::new();
            told.plan(&[&old], &[]);
            told.plan(&[], &[(&old, &["user"])]);
            told.event(SchedulerEvent::Server(comes));
            assert!(!told.may_stop(&old), "it still waits");
            told.plan(&[], &[(&new, &["user"])]);
            assert!(!told.may_stop(&old));
            told.plan(&[&new], &[]);
            assert!(!told.may_stop(&old), "only the new one is wanted again");
            told.plan(&[], &[(&new, &[])]);
            told.plan(&[&old], &[]);
            told.plan(&[], &[(&old, &["user"])]);
            assert!(
                told.may_stop(&old),
                "that has let it stop, which may be under way"
            );
            assert!(
                told.may_start(&old) && !told.may_stop(&old),
                "it was started again since"
            );
        }
    }

    #[test]
    fn waiting_delete_of_a_desired_instance_stops_nothing() {
        let (mut told, old, new) = (Told::new(), wanted("run 0", None), wanted("run 1", None));
        told.plan(&[&old], &[]);
        told.plan(&[&new], &[(&old, &["user"])]);
        told.plan(&[&old], &[]);
        told.plan(&[], &[(&old, &["user"])]);
        assert!(!told.may_stop(&old));
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
        let (mut told, unmet) = (Told::new(), wanted("run 0", Some(AddCondition::Succeeded)));
        let running = shown_as_running(&unmet);
        let listed = |runtime: &str, found| SchedulerEvent::Listed {
            runtime: runtime.into(),
            result: Ok(found),
        };
        told.event(SchedulerEvent::Server(FromServer::ServerHello(Vec::new())));
        told.event(listed("podman", vec![running]));
        told.plan(&[&unmet], &[]);
        assert!(
            told.may_start(&unmet),
            "it is taken over and may be restarted"
        );
        told.event(listed("containerd", Vec::new()));
        told.plan(&[], &[(&unmet, &[])]);
        let mut workload = (*unmet.workload).clone();
        workload.tags.insert("tag".to_owned(), "1".to_owned());
        let changed = AddedWorkload {
            instance: unmet.instance.clone(),
            workload: Arc::new(workload),
        };
        told.plan(&[&changed], &[]);
        assert!(!told.may_start(&changed), "the listing is history");
    }

    #[test]
    fn start_needs_its_dependencies_unless_seen_running() {
        let (mut told, met, unmet) = (
            Told::new(),
            wanted("run 0", Some(AddCondition::Running)),
            wanted("run 1", Some(AddCondition::Succeeded)),
        );
        told.plan(&[&met], &[]);
        assert!(
            told.may_start(&met) && !told.may_start(&unmet),
            "only the first was ordered"
        );
        told.plan(&[&unmet], &[(&met, &[])]);
        assert!(!told.may_start(&unmet));
        let found = shown_as_running(&unmet);
        told.event(SchedulerEvent::Listed {
            runtime: "podman".into(),
            result: Ok(vec![found]),
        });
        assert!(told.may_start(&unmet), "a listing has shown it as running");
    }
}
