//! The server: manifest in, plans out, states in, responses out.
//!
//! Thread: `server` runs [`ServerLoop`], the one owner of desired state, workload states and
//! connected agents. Owns: five parts ([`Updates`], [`Rollouts`], [`Subscriptions`], [`Sessions`],
//! [`Admission`]), each with fields that only it sees. Takes: [`ServerEvent`]s from a bounded
//! inbox. Gives: messages through outboxes, which never block; a peer that does not take them is
//! closed and resynchronises later.
//!
//! This file has the loop, which routes events to parts and carries out their effects. Its methods
//! for peers are in `connections.rs`, for requests in `requests.rs`, for guarded updates in
//! `rollout_steps.rs`; nothing else sees its fields, except the numbers in `metrics.rs`.
//!
//! The loop only waits, [`ServerLoop::on_event`] decides. A test or simulation calls it without any
//! thread.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod admission;
mod connections;
mod effects;
mod expiry;
pub mod history;
#[cfg(debug_assertions)]
pub mod inspection;
pub mod limits;
pub mod metrics;
pub mod mutating_hooks;
mod requests;
mod rollout_steps;
mod rollouts;
mod sessions;
pub mod settings;
pub mod state_store;
mod state_view;
mod storage;
mod subscriptions;
mod updates;

use admission::Admission;
use ankaios_model::complete_state::DesiredState;
use ankaios_model::execution_state::{Phase, WorkloadState};
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::TURN_MAX;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_wire::peer::PeerEvent;
use crossbeam_channel::{Receiver, RecvError, Sender, bounded, never, select_biased};
use effects::{Effect, Effects};
use expiry::Expiry;
use history::Change;
use metrics::NumbersRequest;
use mutating_hooks::{HookOutcome, MutatingHooks};
use rollouts::Rollouts;
use sessions::Sessions;
use settings::ModeSettings;
use state_store::{StateStore, Stored};
use state_view::StateView;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;
use storage::Storage;
use subscriptions::{ChangedPaths, CpuTime, Subscriptions};
use updates::{AcceptedUpdate, CheckedUpdate, UpdateError, UpdateSource, Updates};

/// An event of the server.
#[derive(Debug)]
pub enum ServerEvent {
    /// Something happened on a connection.
    Peer(PeerEvent),
    /// The mutating hooks are done with an update.
    Hooks(HookOutcome),
    /// The thread `metrics` requests the numbers.
    Numbers(NumbersRequest),
    /// A pending request may be served: a peer has room for responses again, or another request was
    /// served.
    Room,
    /// There is something to do without an event, see [`ServerLoop::due`].
    Due,
}

/// Wakes the loop.
struct LoopWaker(Sender<()>);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(()); // Full: it is being woken already.
    }
}

/// The channels that wake the loop; an alarm does as well.
struct Inputs<'l> {
    /// Closed by its owner to end the loop.
    stop: &'l Receiver<()>,
    /// From the mutating hooks.
    outcomes: Receiver<HookOutcome>,
    /// From the connections.
    events: &'l Receiver<PeerEvent>,
    /// From [`LoopWaker`]: a pending request may be served.
    room: Receiver<()>,
    /// From the watchdog, which checks that the loop still turns.
    woken: &'l Receiver<()>,
}

/// Turns an outcome of the hooks into an event. Returns `None`, which ends the loop, when their
/// thread has ended.
fn event_of_hooks(outcome: Result<HookOutcome, RecvError>) -> Option<ServerEvent> {
    match outcome {
        Ok(outcome) => Some(ServerEvent::Hooks(outcome)),
        Err(RecvError) => {
            log::error!("The thread of the mutating hooks has ended; ending the server.");
            None
        }
    }
}

/// The source of the present time. Without a clock, time stands still.
struct Time(Box<dyn Fn() -> Instant + Send>);

impl Default for Time {
    fn default() -> Self {
        let start = SystemClock.now();
        Self(Box::new(move || start))
    }
}

/// The state of the cluster and everything that changes it.
#[derive(Default)]
pub struct ServerLoop {
    updates: Updates,
    rollouts: Rollouts,
    subscriptions: Subscriptions,
    sessions: Sessions,
    admission: Admission,
    /// The store of the state on the disk.
    storage: Storage,
    /// The warnings of certificates that expire soon.
    expiry: Expiry,
    /// The service manager, which shows the numbers of agents and workloads.
    status: StatusBoard,
    /// Requests of the thread `metrics`; `None` without it.
    metrics: Option<Receiver<NumbersRequest>>,
    time: Time,
}

impl ServerLoop {
    /// A server without workloads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the hooks that may change or refuse updates of workloads. Call it before the first
    /// update.
    pub fn set_hooks(&mut self, hooks: MutatingHooks) {
        self.updates.set_hooks(hooks);
    }

    /// Lets a config item decide which workloads run. Call it before the first update.
    pub fn set_modes(&mut self, settings: ModeSettings) {
        self.updates.set_modes(settings);
    }

    /// Sets the store of each accepted desired state. Call it after the start.
    pub fn set_store(&mut self, store: StateStore) {
        self.storage.set_store(store);
    }

    /// Sets the part `warning` of the state until another state is stored.
    pub fn set_warning(&mut self, text: String) {
        self.storage.set_start_warning(text);
    }

    /// Takes over the last changes that an earlier server has stored, and adds the start of this
    /// server.
    pub fn start_history(&mut self, changes: Vec<Change>) {
        let history = self.updates.history_mut();
        history.restore(changes);
        history.server_started();
    }

    /// Sets the default `onFailure` of guarded updates.
    pub fn set_update_on_failure(&mut self, on_failure: OnFailure) {
        self.rollouts.set_on_failure(on_failure);
    }

    /// Makes a startup manifest the desired state. Waits for the hooks, since no agent is connected
    /// yet. When all templates together take too many steps, only the workloads that are left
    /// without steps fail.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub fn start_with(&mut self, desired: DesiredState) -> Result<(), UpdateError> {
        self.start(desired, UpdateSource::Manifest)
    }

    /// Makes a state that an earlier server had stored the desired state, like
    /// [`ServerLoop::start_with`]. If a workload is refused now, only this workload fails.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub fn start_again_with(
        &mut self,
        Stored {
            desired,
            updates,
            stopped,
        }: Stored,
    ) -> Result<(), UpdateError> {
        self.updates.restore_stopped(stopped);
        self.start(desired, UpdateSource::Stored)?;
        if let Some(updates) = updates {
            self.restore_updates(updates);
        }
        self.updates.forget_stopped(&self.rollouts);
        let is_stored = true; // Otherwise there would be no state to start with.
        if let Some(warning) = self.updates.stop_warning(is_stored) {
            log::warn!("After the restart of the server, {warning}.");
        }
        Ok(())
    }

    fn start(&mut self, desired: DesiredState, source: UpdateSource) -> Result<(), UpdateError> {
        let mut effects = Effects::default();
        let result = self
            .updates
            .start(desired, source, self.now(), &mut effects);
        self.apply(effects);
        result
    }

    /// Sets the service manager that gets the numbers of agents and workloads.
    pub fn set_status(&mut self, board: StatusBoard) {
        self.status = board;
        self.report_status();
    }

    fn report_status(&self) {
        let agents = self.sessions.agents().len();
        let workloads = self.updates.workloads().effective.len();
        self.status
            .connection(|| format!("{} connected", counted(agents, "agent")));
        self.status.workloads(|| counted(workloads, "workload"));
    }

    /// Sets when the server's own certificate expires.
    pub fn set_own_certificate(&mut self, expires: Option<u64>) {
        let now = self.now();
        self.expiry.set_own(expires, now);
    }

    /// Sets the channel by which the thread `metrics` requests the numbers.
    pub fn set_metrics(&mut self, requests: Receiver<NumbersRequest>) {
        self.metrics = Some(requests);
    }

    /// Sets the clock by which the time of requests is measured.
    pub fn set_clock(&mut self, clock: impl Clock) {
        self.time = Time(Box::new(move || clock.now()));
    }

    fn now(&self) -> Instant {
        (self.time.0)()
    }

    /// Handles events until `stop` is closed by its owner or all senders of `events` are gone. The
    /// streams end with status OK when the loop is dropped at the end.
    pub fn run(
        mut self,
        events: &Receiver<PeerEvent>,
        stop: &Receiver<()>,
        clock: &impl Clock,
        heartbeat: &Heartbeat,
    ) {
        let (wake, room) = bounded(1);
        let inputs = Inputs {
            stop,
            outcomes: self.updates.hook_outcomes(),
            events,
            room,
            woken: heartbeat.woken(),
        };
        self.set_clock(clock.clone());
        self.subscriptions.set_cpu_time(CpuTime::of_thread());
        self.admission
            .set_waker(Waker::from(Arc::new(LoopWaker(wake))));
        let mut next_room = clock.now();
        loop {
            heartbeat.turn();
            self.admission.begin_turn(!events.is_empty(), clock.now());
            let Some(event) = self.next_event(&inputs, clock) else {
                return;
            };
            self.turn(event, clock);
            // A flood of events must not delay pending requests without end, so one is served now.
            // Then only events are handled for as long as that took: each side gets half the time.
            let begin = clock.now();
            if begin >= next_room && inputs.room.try_recv().is_ok() {
                self.turn(ServerEvent::Room, clock);
                let end = clock.now();
                next_room = end + end.saturating_duration_since(begin);
            }
        }
    }

    /// Waits for the next event. If several channels have one, the first channel below is taken.
    /// `None` ends the loop.
    fn next_event(&mut self, inputs: &Inputs<'_>, clock: &impl Clock) -> Option<ServerEvent> {
        let metrics = self.metrics.clone().unwrap_or_else(never);
        let due = self.due().map_or_else(never, |at| clock.alarm(at));
        select_biased! { // The end first: a flood of events must not delay it.
            recv(inputs.stop) -> _ => None,
            recv(inputs.outcomes) -> outcome => event_of_hooks(outcome),
            recv(inputs.events) -> event => event.ok().map(ServerEvent::Peer),
            recv(metrics) -> reply => match reply {
                Ok(reply) => Some(ServerEvent::Numbers(reply)),
                Err(_) => {
                    self.metrics = None; // Its thread has ended, as this one will.
                    Some(ServerEvent::Due)
                }
            },
            // After new events: a peer with pending requests has not read its earlier responses.
            recv(inputs.room) -> _ => Some(ServerEvent::Room),
            recv(due) -> _ => Some(ServerEvent::Due),
            recv(inputs.woken) -> _ => Some(ServerEvent::Due),
        }
    }

    /// Handles one event, and logs it if it kept the loop busy for long.
    fn turn(&mut self, event: ServerEvent, clock: &impl Clock) {
        let begin = clock.now();
        self.on_event(event);
        self.report_status();
        let turn = clock.now().saturating_duration_since(begin);
        if turn > TURN_MAX {
            log::warn!("One event took {turn:?}; all others waited for it.");
        }
    }

    /// When [`ServerLoop::on_event`] has to be called even if there is no other event.
    pub fn due(&self) -> Option<Instant> {
        let times = [
            self.rollouts.due(),
            self.subscriptions.usage_until(),
            self.expiry.due(),
        ];
        times.into_iter().flatten().min()
    }

    /// Handles one event with all its consequences.
    pub fn on_event(&mut self, event: ServerEvent) {
        // First, what the handling depends on: the CPU time so far, the progress of the disk, and
        // whether changes are collected for subscribers.
        self.subscriptions.begin_event();
        self.storage.take_report();
        self.updates.observe(self.subscriptions.are_observed());
        // Then, the event and what follows from it.
        self.handle(event);
        self.settle();
        // Finally, work that needs the final state.
        self.updates.forget_stopped(&self.rollouts);
        self.store_history();
        if self.expiry.due().is_some() {
            let now = self.now();
            self.expiry.check(self.sessions.agents(), now);
        }
    }

    /// Stores the changes of the event, if there is a store.
    fn store_history(&mut self) {
        if self.storage.is_on() {
            let lines = self.updates.history_mut().take_unstored();
            self.storage.append_changes(lines);
        }
    }

    /// Routes an event to the method that handles it.
    fn handle(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Peer(PeerEvent::Opened {
                peer,
                hello,
                source,
                certificate_expires,
                outbox,
            }) => self.peer_opened(peer, hello, source.into(), certificate_expires, outbox),
            ServerEvent::Peer(PeerEvent::Message {
                peer,
                message,
                permits,
            }) => self.message_received(peer, message, permits),
            ServerEvent::Peer(PeerEvent::Closed { peer }) => self.peer_gone(peer),
            ServerEvent::Hooks(outcome) => self.hooks_done(outcome),
            ServerEvent::Numbers(reply) => {
                let _ = reply.try_send(self.numbers()); // Fails if the thread waits no longer.
            }
            ServerEvent::Room => _ = self.serve_pending(),
            ServerEvent::Due => {}
        }
    }

    /// Handles the consequences of an event, and the consequences of these, until none is left.
    fn settle(&mut self) {
        loop {
            for changes in self.subscriptions.take_unpublished() {
                self.publish(changes);
            }
            self.respond_with_usage();
            // Messages about the end of one peer may fail for others. Each peer fails at most once.
            while let Some(peer) = self.sessions.take_failed() {
                self.peer_gone(peer);
                self.respond_with_usage();
            }
            let updates_went_on = self.settle_updates();
            let restarts_went_on = self.settle_restarts();
            if !updates_went_on && !restarts_went_on {
                return;
            }
        }
    }

    /// Applies the effects that a part has returned, in their order. An effect may have
    /// consequences in other parts; these are applied before the next effect.
    fn apply(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::SendToAgent { agent, message } => {
                    self.sessions.send_to_agent(&agent, message);
                }
                Effect::Broadcast(states) => self.sessions.broadcast_states(&states),
                Effect::Respond { key, content } => self.sessions.respond(&key, content),
                Effect::BroadcastToClis(states) => self.sessions.broadcast_to_clis(&states),
                Effect::Close { peer, error } => self.sessions.fail(peer, &error),
                Effect::Publish(changes) => self.publish(changes),
                Effect::PublishLater(changes) => self.subscriptions.publish_later(changes),
                Effect::Store => self.store_state(),
                Effect::Replaced { added, deleted } => self.replaced(&added, &deleted),
                Effect::Reported {
                    states,
                    was_staged,
                    changes,
                } => self.reported(&states, was_staged, changes),
                Effect::InstanceGone(instance) => self.instance_gone(&instance),
                Effect::ShowStaged => self.rollouts.note_change(),
                Effect::EssentialFailed(failure) => self.essential_failed(&failure),
            }
        }
    }

    /// Notifies subscribers of `changes` and of all states that have changed.
    fn publish(&mut self, mut changes: ChangedPaths) {
        self.updates.add_changed_states(&mut changes);
        let view = view(&self.updates, &self.sessions);
        let mut effects = Effects::default();
        self.subscriptions
            .publish(&changes, view, &self.sessions, &mut effects);
        self.apply(effects);
    }

    /// Makes a checked state the desired one. Returns the affected instances, for the response.
    fn commit(&mut self, mut checked: CheckedUpdate) -> AcceptedUpdate {
        let agent_tags = std::mem::take(&mut checked.change.agent_tags);
        let changes = self.sessions.set_agent_tags(agent_tags);
        let now = self.now();
        let mut effects = Effects::default();
        let accepted = self.updates.commit(checked, changes, now, &mut effects);
        self.apply(effects);
        accepted
    }

    /// Passes a change of the effective workloads on to rights, guarded updates and subscriptions:
    /// these follow instances that are active.
    fn replaced(&mut self, added: &[AddedWorkload], deleted: &[InstanceName]) {
        self.sessions
            .replaced(added, deleted, self.updates.workloads());
        let now = self.now();
        for instance in deleted {
            self.rollouts.instance_ended(instance, now);
        }
        let mut effects = Effects::default();
        self.subscriptions
            .replaced(added, deleted, &self.sessions, &mut effects);
        self.apply(effects);
    }

    /// Passes states on to guarded updates, subscribers and peers. They were reported, or follow
    /// from the loss of an agent.
    fn reported(&mut self, states: &[WorkloadState], was_staged: bool, changes: ChangedPaths) {
        self.rollouts
            .states_reported(states, was_staged, self.now());
        self.publish(changes);
        for WorkloadState { instance, state } in states {
            if state.phase == Phase::Removed {
                self.instance_gone(instance);
            }
        }
        self.sessions.broadcast_states(states);
    }

    /// Ends the rights and subscriptions of an instance that has no state any more.
    fn instance_gone(&mut self, gone: &InstanceName) {
        self.sessions.end_rights(gone, self.updates.workloads());
        let mut effects = Effects::default();
        self.subscriptions
            .instance_gone(gone, &self.sessions, &mut effects);
        self.apply(effects);
    }

    /// Switches to the mode for failures, because an essential workload has finally failed.
    fn essential_failed(&mut self, failure: &WorkloadState) {
        if self.rollouts.would_undo(&failure.instance) {
            return; // The rollback of its update is tried first.
        }
        // Updates that came before the failure may write another mode.
        let older_updates = self.admission.updates();
        let now = self.now();
        let mut effects = Effects::default();
        self.updates
            .essential_failed(failure, older_updates, now, &mut effects);
        self.apply(effects);
    }

    /// Takes the due steps of restarts. Returns whether there was one: then others may follow.
    fn settle_restarts(&mut self) -> bool {
        let now = self.now();
        let mut effects = Effects::default();
        let has_stepped = self
            .updates
            .settle_restarts(&self.rollouts, now, &mut effects);
        self.apply(effects);
        has_stepped
    }

    /// Everything that can be read.
    pub fn view(&self) -> StateView<'_> {
        view(&self.updates, &self.sessions)
    }
}

/// `<count> <noun>`, with the plural of the noun.
fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Everything that can be read.
fn view<'s>(updates: &'s Updates, sessions: &'s Sessions) -> StateView<'s> {
    let workloads = updates.workloads();
    StateView {
        desired: &workloads.desired,
        effective: &workloads.effective,
        states: &workloads.states,
        agents: sessions.agents(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
