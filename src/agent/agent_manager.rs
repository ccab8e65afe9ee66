//! What the server says, what workloads report, what containers exist: everything that is decided, is decided here.
//!
//! Thread: `scheduler`.
//! Owns: all states, all wishes.
//! Takes: [`SchedulerEvent`]s of `rx:server`, `uplink`, `wl:*` and `watch:*`. Gives: wishes to control loops,
//! listings to state checkers, states and load to `uplink`. Waits for none of them.

use super::events::SchedulerEvent;
use super::log_stream::{LogOrder, LogStreams};
use super::resources::LoadSampler;
use super::runtime_manager::{Existing, RuntimeManager, WorkloadThreads};
use super::state_checker::WatchCommand;
use super::uplink_outbox::UplinkOutbox;
use super::workload_scheduler::Change;
use super::workload_state_store::WorkloadStateStore;
use crate::limits::{
    EARLIER_CALLS_GRACE, EARLIER_CALLS_INTERVAL, EARLIER_CALLS_MAX, FIRST_LISTING_MAX, LOAD_INTERVAL, REPAIR_INTERVAL,
    TURN_MAX,
};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, AgentLoad, DeletedWorkload, FromServer, WorkloadPlan};
use crate::model::names::{InstanceName, Name, excerpt, has_name_characters};
use crate::platform::clock::Clock;
use crate::platform::logging::may_log;
use crate::platform::service_manager::StatusBoard;
use crate::platform::vital::Pulse;
use crate::runtime::engine_children::PreviousChildren;
use crate::runtime::{ListedContainer, RuntimeError};
use crossbeam_channel::{Receiver, Sender, TrySendError, select_biased};
use log::{debug, info, warn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// Whether the containers of an engine that were there before us are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// Not asked, or the state checker had no room for the question.
    Wanted,
    Asked,
    Known,
    /// The engine is not there, so it has no containers; asked again with the next hello, and by each workload that
    /// wants it.
    NotInstalled,
    /// The engine failed; ask again then.
    Failed(Instant),
}

impl Listing {
    /// Whether nothing can be there that nobody has heard of.
    fn is_known(&self) -> bool {
        matches!(self, Self::Known | Self::NotInstalled)
    }
}

/// Calls of an earlier agent of the same name that may still create or delete something.
pub trait EarlierCalls {
    /// How many still run.
    fn still_running(&mut self) -> usize;

    /// Ends those that still run, politely or by force.
    fn end(&mut self, by_force: bool);
}

impl EarlierCalls for PreviousChildren {
    fn still_running(&mut self) -> usize {
        PreviousChildren::still_running(self)
    }

    fn end(&mut self, by_force: bool) {
        PreviousChildren::end(self, by_force);
    }
}

/// A hello whose listings are under way.
#[derive(Debug, Default)]
struct PendingHello {
    /// What the hello said.
    said: BTreeMap<Name, AddedWorkload>,
    /// What is wanted after the plans that came since.
    wanted: BTreeMap<Name, AddedWorkload>,
    /// What those plans delete, of each workload the newest, and what that has to wait for.
    deleted: BTreeMap<Name, DeletedWorkload>,
    /// All instances that they delete.
    gone: BTreeSet<InstanceName>,
}

/// All decisions of an agent.
pub struct AgentManager<C: Clock, T> {
    agent: Name,
    clock: C,
    inbox: Sender<SchedulerEvent>,
    store: WorkloadStateStore,
    runtime: RuntimeManager<C, T>,
    uplink: UplinkOutbox,
    logs: LogStreams,
    load: LoadSampler,
    load_due: Instant,
    listings: BTreeMap<Name, Listing>,
    /// Why an engine could not list last time, so that the log does not repeat it.
    listing_errors: BTreeMap<Name, String>,
    found: Vec<Existing>,
    pending_hello: Option<PendingHello>,
    /// Whether the server has ever said hello; nothing is looked for before.
    greeted: bool,
    /// Whether it has said hello on a connection that is not lost.
    connected: bool,
    /// Whether the last report after a hello was of all that exists.
    all_told: bool,
    /// Until when a hello waits for engines that have not said what they have; `None` before they were asked. Later on,
    /// after a reconnect, what is ours is known.
    first_listings_until: Option<Instant>,
    /// `None` when no such call runs any more.
    earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    /// When to look at them next and, if they still run then, when to end them.
    earlier_calls_due: Option<(Instant, Instant)>,
    status: StatusBoard,
}

impl<C: Clock, T: WorkloadThreads<C>> AgentManager<C, T> {
    /// Manages the workloads of `agent`. `inbox` is where its events come from; listings are answered there.
    #[must_use]
    pub fn new(
        agent: Name,
        clock: C,
        inbox: Sender<SchedulerEvent>,
        runtime: RuntimeManager<C, T>,
        uplink: UplinkOutbox,
        load: LoadSampler,
        earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    ) -> Self {
        Self {
            store: WorkloadStateStore::new(agent.clone()),
            listings: runtime.engines().keys().map(|name| (name.clone(), Listing::Wanted)).collect(),
            listing_errors: BTreeMap::new(),
            load_due: clock.now(),
            logs: LogStreams::new(uplink.logs(), inbox.clone()),
            agent,
            clock,
            inbox,
            runtime,
            uplink,
            load,
            found: Vec::new(),
            pending_hello: None,
            greeted: false,
            connected: false,
            all_told: true,
            first_listings_until: None,
            earlier_calls,
            earlier_calls_due: None,
            status: StatusBoard::default(),
        }
    }

    /// Tells the service manager how many workloads there are in which state.
    #[must_use]
    pub fn with_status(self, status: StatusBoard) -> Self {
        Self { status, ..self }
    }

    fn tell_status(&self) {
        self.status.workloads(|| self.store.summary());
    }

    /// Handles events until the other end of `stop` is dropped.
    // [impl->swdd~agent-manager-listens-requests-from-server~1]
    pub fn run(mut self, events: &Receiver<SchedulerEvent>, stop: &Receiver<()>, pulse: &Pulse) {
        self.tell_status();
        loop {
            pulse.turn();
            let alarm = self.clock.alarm(self.due());
            let event = select_biased! {
                recv(stop) -> _ => return,
                recv(events) -> event => event.ok(),
                recv(alarm) -> _ => None,
                recv(pulse.nudged()) -> _ => continue,
            };
            let start = self.clock.now();
            match event {
                Some(event) => self.on_event(event),
                None => self.tick(),
            }
            let took = self.clock.now().saturating_duration_since(start);
            if took > TURN_MAX && may_log("events that take long") {
                warn!("The scheduler needed {} ms for one event.", took.as_millis());
            }
        }
    }

    /// When [`Self::tick`] wants to be called next.
    #[must_use]
    pub fn due(&self) -> Instant {
        let earlier_calls = self.earlier_calls_due.map(|(at, _)| at);
        let listings = self.first_listings_until.filter(|_| self.pending_hello.is_some());
        let conditions = self.runtime.conditions_due();
        earlier_calls.into_iter().chain(listings).chain(conditions).fold(self.load_due, Instant::min)
    }

    /// The threads of the control loops.
    pub fn threads(&mut self) -> &mut T {
        self.runtime.threads()
    }

    /// How much there is of what grows and shrinks: workloads, operations that wait, names that they wait for,
    /// workloads that may not run, and those with conditions of the node.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 5] {
        self.runtime.sizes()
    }

    /// The states of all workloads, as far as this agent knows.
    #[cfg(test)]
    pub fn known_states(&self) -> impl Iterator<Item = (&InstanceName, &ExecutionState)> {
        self.store.iter()
    }

    /// Does what is due: reports the load, looks whether calls of an earlier agent have ended, asks again for threads
    /// and listings that failed.
    pub fn tick(&mut self) {
        let now = self.clock.now();
        if self.load_due <= now {
            self.load_due = now + LOAD_INTERVAL; // Counted from now, so that missed ticks are skipped.
            self.report_load();
        }
        self.runtime.start_waiting_loops();
        if self.runtime.conditions_due().is_some_and(|at| at <= now) {
            let reports = self.runtime.refresh_conditions(&mut self.store);
            self.report(reports);
        }
        if self.greeted {
            self.ask_for_listings(now);
            self.finish_hello();
        }
    }

    fn report_load(&mut self) {
        // Without a connection nobody wants it, and the next sample is about all of the time until then.
        if self.connected
            && let Some((cpu_usage, free_memory)) = self.load.sample()
        {
            self.uplink.put_load(AgentLoad { agent: self.agent.to_string(), cpu_usage, free_memory });
        }
    }

    /// Whether no call of an earlier agent runs any more. It might create what a listing now would not show, and we
    /// would create it a second time (DESIGN section 9).
    fn earlier_calls_ended(&mut self, now: Instant) -> bool {
        let Some(calls) = &mut self.earlier_calls else { return true };
        let count = calls.still_running();
        if count == 0 {
            (self.earlier_calls, self.earlier_calls_due) = (None, None);
            return true;
        }
        let end_at = match self.earlier_calls_due {
            Some((_, end_at)) => end_at,
            None => {
                warn!("Waiting for {count} engine calls of an earlier agent.");
                now + EARLIER_CALLS_MAX
            }
        };
        if end_at <= now {
            calls.end(end_at + EARLIER_CALLS_GRACE <= now);
        }
        self.earlier_calls_due = Some((now + EARLIER_CALLS_INTERVAL, end_at));
        false
    }

    /// Handles one event.
    pub fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Server(message) => self.on_message(message),
            SchedulerEvent::ServerGone => {
                info!("Agent '{}' received ServerGone.", self.agent);
                self.connected = false;
                self.store.mark_foreign_stale();
                self.logs.cancel_all();
            }
            // [impl->swdd~agent-manager-receives-workload-states-of-its-workloads~1]
            SchedulerEvent::State(report) => self.report(vec![report]),
            SchedulerEvent::Listed { runtime, result } => self.on_listed(runtime, result),
            SchedulerEvent::LoopEnded(name) => self.runtime.loop_ended(&name),
            SchedulerEvent::LogEnded(id) => self.logs.ended(&id),
        }
    }

    fn on_message(&mut self, message: FromServer) {
        match message {
            FromServer::ServerHello(added) => self.on_hello(added),
            // [impl->swdd~agent-handles-update-workload-requests~1]
            FromServer::UpdateWorkload(plan) => self.on_plan(plan),
            // [impl->swdd~agent-handles-update-workload-state-requests~1]
            FromServer::WorkloadStates(states) => {
                let names: BTreeSet<Name> = states.iter().map(|state| state.instance.workload.clone()).collect();
                for state in states {
                    self.store.set_foreign(state);
                }
                self.states_changed(names);
            }
            FromServer::Response(_) => {} // It went to its workload when it came.
            FromServer::LogsRequest { request_id, request } => {
                let order = |instance: &InstanceName| LogOrder {
                    instance: instance.clone(),
                    connector: self.runtime.connector_of(instance),
                };
                let orders = request.instances.iter().map(order).collect();
                self.logs.start(&request_id, &request, orders);
            }
            FromServer::LogsCancel { request_id } => self.logs.cancel(&request_id),
        }
    }

    // ------------------------------------------------------------------ hello

    fn on_hello(&mut self, added: Vec<AddedWorkload>) {
        info!("Received the server hello with '{}' added workloads.", added.len());
        let wanted = added.into_iter().filter(is_acceptable);
        let said: BTreeMap<Name, _> = wanted.map(|added| (added.instance.workload.clone(), added)).collect();
        (self.greeted, self.connected) = (true, true);
        // Who looks at the nodes sees their load as soon as they are there.
        self.load_due = self.clock.now() + LOAD_INTERVAL;
        self.report_load();
        self.pending_hello = Some(PendingHello { wanted: said.clone(), said, ..PendingHello::default() });
        let dropped = self.store.drop_stale();
        for listing in self.listings.values_mut().filter(|listing| **listing == Listing::NotInstalled) {
            *listing = Listing::Wanted;
        }
        self.ask_for_listings(self.clock.now());
        self.finish_hello();
        self.states_changed(dropped);
    }

    // [impl->swdd~agent-existing-workloads-finds-list~1]
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    fn ask_for_listings(&mut self, now: Instant) {
        let wanted = |listing: &Listing| match listing {
            Listing::Wanted => true,
            Listing::Failed(again) => *again <= now,
            Listing::Asked | Listing::Known | Listing::NotInstalled => false,
        };
        if !self.listings.values().any(wanted) || !self.earlier_calls_ended(now) {
            return;
        }
        let until = *self.first_listings_until.get_or_insert(now + FIRST_LISTING_MAX);
        self.runtime.wait_for_others_until(until);
        for (runtime, listing) in &mut self.listings {
            let Some(engine) = self.runtime.engines().get(runtime).filter(|_| wanted(listing)) else { continue };
            let (inbox, name) = (self.inbox.clone(), runtime.clone());
            let reply = Box::new(move |result| {
                let _ = inbox.send(SchedulerEvent::Listed { runtime: name, result }); // Gone only at the end.
            });
            *listing = match engine.watch.try_send(WatchCommand::ListAll { reply }) {
                Ok(()) => Listing::Asked,
                Err(TrySendError::Full(_)) => Listing::Wanted, // Asked again with the next tick.
                Err(TrySendError::Disconnected(_)) => Listing::Failed(now + REPAIR_INTERVAL),
            };
        }
    }

    fn on_listed(&mut self, runtime: Name, result: Result<Vec<ListedContainer>, RuntimeError>) {
        self.runtime.note_listing(&runtime, &result);
        let found = match result {
            Ok(containers) => {
                info!("Found '{}' existing '{runtime}' workload(s).", containers.len());
                self.listings.insert(runtime.clone(), Listing::Known);
                containers
            }
            Err(RuntimeError::NotInstalled(text)) => {
                debug!("No existing '{runtime}' workloads are looked for: '{text}'");
                self.listings.insert(runtime.clone(), Listing::NotInstalled);
                Vec::new()
            }
            Err(error) => {
                let text = error.to_string();
                if self.listing_errors.get(&runtime) != Some(&text) {
                    warn!("Could not get reusable running workloads: '{text}'");
                    self.listing_errors.insert(runtime.clone(), text);
                }
                self.listings.insert(runtime.clone(), Listing::Failed(self.clock.now() + REPAIR_INTERVAL));
                Vec::new()
            }
        };
        let known = self.listings.get(&runtime).is_some_and(Listing::is_known);
        let acceptable = found.into_iter().filter(|container| is_file_name(&container.instance));
        let found: Vec<Existing> = acceptable.map(|container| (runtime.clone(), container)).collect();
        if self.pending_hello.is_some() {
            self.found.extend(found);
            self.finish_hello();
        } else {
            let (changes, reports) = self.runtime.found_late(found);
            self.report(reports);
            self.submit(changes);
            if !self.all_told && known {
                self.report_all();
            }
        }
    }

    /// Acts on the hello: on the first one when all engines have said what exists, or had time enough to; what one says
    /// later concerns its own workloads only. Until then only what runs as it should goes on. Later ones find what is
    /// ours known.
    fn finish_hello(&mut self) {
        let silent = |listing: &Listing| matches!(listing, Listing::Wanted | Listing::Asked);
        let patient = self.first_listings_until.is_none_or(|until| self.clock.now() < until);
        if patient && self.listings.values().any(silent) {
            return self.resume_running();
        }
        let Some(hello) = self.pending_hello.take() else { return };
        let found = std::mem::take(&mut self.found);
        let (wanted, later, gone) = self.split_plans(hello, &found);
        let (changes, reports) = self.runtime.hello(wanted, found);
        self.report_adopted(reports, &later);
        self.submit(changes);
        self.submit(later);
        let reports = self.runtime.forget_unwanted_conditions(&mut self.store);
        self.report(reports);
        for instance in gone {
            if self.store.get(&instance).is_none() && !self.runtime.has(&instance) {
                self.report(vec![WorkloadState::new(instance, ExecutionState::plain(Phase::Removed))]);
            }
        }
        // The server may think that we are gone.
        self.report_waiting(self.waiting_untold());
        self.report_all();
    }

    /// Stores the states of what was taken over. What goes on only until `later` ends it is shown as stopping from the
    /// start: nothing may start because it still runs.
    fn report_adopted(&mut self, reports: Vec<WorkloadState>, later: &[Change]) {
        let ending: BTreeSet<&InstanceName> =
            later.iter().filter_map(|change| change.deleted.as_ref()).map(|deleted| &deleted.instance).collect();
        let (adopted, others): (Vec<_>, Vec<_>) =
            reports.into_iter().partition(|report| ending.contains(&report.instance));
        for WorkloadState { instance, state } in adopted {
            self.store.set_own(&instance, state); // Shown again when the end is taken back.
        }
        let known = ending.into_iter().filter(|instance| self.store.get(instance).is_some());
        let mut stopping: Vec<WorkloadState> = known
            .map(|instance| WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::StoppingWaitingToStop)))
            .collect();
        stopping.iter_mut().for_each(|report| self.runtime.await_gone(report));
        self.report(stopping);
        self.report(others);
    }

    /// The instances that wait behind their predecessors and were reported by nobody: what counts for the server is
    /// what it knows itself, that they are to come.
    fn waiting_untold(&self) -> Vec<InstanceName> {
        let waiting = self.runtime.waits_behind_another();
        waiting.filter(|instance| self.store.get(instance).is_none()).cloned().collect()
    }

    fn report_waiting(&mut self, instances: Vec<InstanceName>) {
        let waiting = instances.iter().map(|instance| self.runtime.waiting_to_start(instance)).collect();
        self.report(waiting);
    }

    /// What runs as it should is watched at once, whatever other engines may say. What a plan has changed since the
    /// hello waits with the rest.
    fn resume_running(&mut self) {
        let Some(PendingHello { said, wanted, deleted, .. }) = &self.pending_hello else { return };
        let unchanged = wanted.iter().filter(|(name, added)| {
            said.get(*name) == Some(*added) && !deleted.contains_key(*name) // In both: deleted and added again.
        });
        let reports = self.runtime.resume_running(unchanged.map(|(_, added)| added), &mut self.found);
        self.report(reports);
    }

    /// Tells the server the states of all that exists here, and that this is all. As long as an engine does not say
    /// what it has nobody knows that.
    fn report_all(&mut self) {
        self.all_told = self.listings.values().all(Listing::is_known);
        self.uplink.resynchronise(self.store.own(), self.all_told);
    }

    /// What the hello wants, changes that follow it, instances that are gone. What goes on as the hello said is first
    /// taken over so: an update or delete of it may have to wait for others. Nothing is started that is gone already.
    fn split_plans(
        &self,
        hello: PendingHello,
        found: &[Existing],
    ) -> (Vec<AddedWorkload>, Vec<Change>, BTreeSet<InstanceName>) {
        let PendingHello { mut said, mut wanted, deleted, gone } = hello;
        let mut later = Vec::new();
        for (name, mut deleted) in deleted {
            let before = said.remove(&name).filter(|before| self.runtime.has_already(before, found));
            let Some(before) = before else { continue };
            if deleted.instance != before.instance && wanted.get(&name) == Some(&before) {
                continue; // Replaced, and wanted again as it was.
            }
            // The newest plan may name an instance that was never started.
            deleted.instance.clone_from(&before.instance);
            later.push(Change::replace(deleted, wanted.insert(name, before)));
        }
        (wanted.into_values().collect(), later, gone)
    }

    // ------------------------------------------------------- plans and states

    fn on_plan(&mut self, plan: WorkloadPlan) {
        info!(
            "Received a new desired state with '{}' added and '{}' deleted workloads.",
            plan.added.len(),
            plan.deleted.len()
        );
        let plan = WorkloadPlan { added: plan.added.into_iter().filter(is_acceptable).collect(), ..plan };
        if let Some(hello) = &mut self.pending_hello {
            // Nothing was started yet, so the plan changes what is wanted.
            for deleted in plan.deleted {
                hello.wanted.remove(&deleted.instance.workload);
                hello.gone.insert(deleted.instance.clone());
                hello.deleted.insert(deleted.instance.workload.clone(), deleted);
            }
            hello.wanted.extend(plan.added.into_iter().map(|added| (added.instance.workload.clone(), added)));
            return;
        }
        self.submit(RuntimeManager::<C, T>::changes(plan));
        // The server may read of the earlier end of an instance after it has wanted it again, and show no state of it.
        self.report_waiting(self.uplink.told_removed(self.waiting_untold(), self.clock.now()));
    }

    fn submit(&mut self, changes: Vec<Change>) {
        for change in changes {
            let reports = self.runtime.submit(change, &mut self.store);
            self.report(reports);
        }
    }

    fn states_changed(&mut self, workloads: BTreeSet<Name>) {
        for workload in workloads {
            let reports = self.runtime.state_changed(&workload, &self.store);
            self.report(reports);
        }
    }

    /// Stores states of own instances, sends them to the server and does what waited for them, which may give
    /// further states.
    // [impl->swdd~agent-sends-workload-states-of-its-workloads-to-server~2]
    fn report(&mut self, reports: Vec<WorkloadState>) {
        let mut reports = VecDeque::from(reports);
        while let Some(WorkloadState { instance, state }) = reports.pop_front() {
            let shown = self.store.set_own(&instance, state);
            let phase = shown.phase;
            self.uplink.put(WorkloadState::new(instance.clone(), shown));
            reports.extend(self.runtime.state_changed(&instance.workload, &self.store));
            if phase.state() != "Stopping" && self.runtime.waits_to_stop(&instance) {
                // It was started once more while it waits; without this nobody would see that it is to stop.
                let mut report = WorkloadState::new(instance, ExecutionState::plain(Phase::StoppingWaitingToStop));
                self.runtime.await_gone(&mut report);
                reports.push_back(report);
            } else if phase == Phase::Removed && self.runtime.waits_to_start(&instance) {
                // The same instance will come back; without this it would be shown nowhere until then.
                reports.push_back(self.runtime.waiting_to_start(&instance));
            }
        }
        self.tell_status();
    }
}

/// Names become parts of paths and of arguments, so a peer's mistake must not lead out of the run folder.
fn is_file_name(instance: &InstanceName) -> bool {
    [&instance.workload, &instance.id, &instance.agent].iter().all(|part| !part.is_empty() && has_name_characters(part))
}

fn is_acceptable(added: &AddedWorkload) -> bool {
    let acceptable = is_file_name(&added.instance);
    if !acceptable && may_log("workloads of the server") {
        warn!("Ignoring added workload '{}': its name is not valid.", excerpt(&added.instance.to_string()));
    }
    acceptable
}

#[cfg(test)]
mod tests;
