//! The server: manifest in, plans out, states in, answers out.
//!
//! Thread: `server` runs [`ServerLoop`], the one owner of desired state, workload states and connected agents.
//! Owns: all of that, and one outbox per stream. Takes: [`ServerEvent`]s from a bounded inbox. Gives: messages
//! through outboxes, which never block; a peer that does not take them is dropped and resynchronises later.
//!
//! The loop only waits, [`ServerLoop::on_event`] decides. A test or simulation calls it without any thread.

pub mod agents;
pub mod dependencies;
pub mod events;
pub mod log_campaigns;
pub mod mutating_hooks;
pub mod plan;
pub mod requester;
mod requests;
pub mod settings;
mod shares;
pub mod state_store;
pub mod state_view;
pub mod strays;
pub mod templates;
pub mod update;
mod waiting_requests;

use crate::limits::{STRAY_INFO_MAX, STRAYS_OF_WORKLOAD, TURN_MAX};
use crate::model::complete_state::{AgentAttributes, DesiredState, WorkloadStates};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, AgentLoad, DeletedWorkload, FromServer, ToServer, WorkloadPlan};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::logging::may_log;
use crate::platform::service_manager::StatusBoard;
use crate::platform::vital::Pulse;
use crate::wire::outbox::{Outbox, OutboxError, StatesSnapshot};
use crate::wire::peer::{PeerEvent, PeerHello, PeerId, Room};
use agents::{Agent, Agents};
use crossbeam_channel::{Receiver, Sender, bounded, never, select_biased};
use dependencies::{Dependents, StoppingDependents, WaitingDeletes, with_delete_conditions};
use events::{Changes, Subscriptions};
use log_campaigns::LogCampaigns;
use mutating_hooks::{HookOutcome, MutatingHooks};
use requester::Rights;
use requests::Occasion;
use shares::Shares;
use state_store::StateStore;
use state_view::StateView;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;
use strays::Strays;
use templates::{ConfigUsers, Templates};
use update::{StateChange, UpdateError};
use waiting_requests::WaitingRequests;

/// What the server reacts to.
#[derive(Debug)]
pub enum ServerEvent {
    /// Something happened on a connection.
    Peer(PeerEvent),
    /// The mutating hooks are done with the update that they were asked about.
    Hooks(HookOutcome),
    /// A peer for which requests wait may have room for answers, or there are more of them.
    Room,
}

/// Which service a stream uses: what it is sent without asking depends on it (spec/server.md section 12.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerClass {
    Agent,
    Cli,
    Commander,
}

#[derive(Debug)]
struct Peer {
    class: PeerClass,
    /// The agent's name, or a name that no agent can have and no other stream has.
    name: Name,
    /// Whose log lines those about it are: the agent's name, or where a commander connects from.
    source: Name,
    outbox: Outbox,
}

impl Peer {
    /// Whether a line about what it did may be logged.
    fn may_log(&self) -> bool {
        may_log(&self.source)
    }

    /// Whether it is sent the states of workloads without asking.
    fn hears_broadcasts(&self) -> bool {
        self.class != PeerClass::Commander
    }
}

/// A request that is served beyond its answer: its stream and its id there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// The stream that it came on.
    pub peer: PeerId,
    /// As it came on that stream.
    pub id: String,
}

impl RequestKey {
    /// The workload that asks, on the stream of an agent: the part that the agent put before the workload's own id.
    #[must_use]
    pub fn workload(&self) -> Option<&str> {
        self.id.split_once('@').map(|(workload, _)| workload)
    }
}

/// What the service manager is told, and was told last: numbers of agents and workloads.
#[derive(Debug, Default)]
struct ServerStatus {
    board: StatusBoard,
    told: Option<(usize, usize)>,
}

impl ServerStatus {
    fn tell(&mut self, agents: usize, workloads: usize) {
        if self.told == Some((agents, workloads)) {
            return;
        }
        self.told = Some((agents, workloads));
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        self.board.connection(|| format!("{} connected", counted(agents, "agent")));
        self.board.workloads(|| counted(workloads, "workload"));
    }
}

/// Woken when a request that waits may be served: a peer has room for answers that it had not, or another was served.
struct RoomWaker(Waker);

impl Default for RoomWaker {
    fn default() -> Self {
        Self(Waker::noop().clone())
    }
}

/// Wakes the loop.
struct WakeLoop(Sender<()>);

impl Wake for WakeLoop {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(()); // Full: it is being woken already.
    }
}

/// What time it is; stands still until there is a clock.
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
    desired: DesiredState,
    /// What agents are told, by workload. Shares its workloads with `desired` as long as nothing is rendered.
    effective: BTreeMap<Name, AddedWorkload>,
    /// The rendered workloads as they were before hooks changed them; only kept when there are hooks.
    before_hooks: Option<BTreeMap<Name, AddedWorkload>>,
    hooks: Option<MutatingHooks>,
    waiting: WaitingRequests,
    /// How long the server has worked for whom.
    shares: Shares,
    time: Time,
    room: RoomWaker,
    store: Option<StateStore>,
    states: WorkloadStates,
    /// Which of these are of instances that are not wanted.
    strays: Strays,
    dependents: Dependents,
    stopping: StoppingDependents,
    waiting_deletes: WaitingDeletes,
    rights: Rights,
    templates: Templates,
    config_users: ConfigUsers,
    agents: Agents,
    peers: BTreeMap<PeerId, Peer>,
    /// Streams by the name that stands before ids of requests.
    names: BTreeMap<Name, PeerId>,
    subscriptions: Subscriptions,
    log_campaigns: LogCampaigns,
    /// Streams that did not take a message; dropped at the end of the event.
    failed: Vec<PeerId>,
    status: ServerStatus,
}

impl ServerLoop {
    /// A server without workloads.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `hooks` are asked before an update changes workloads. To be called before the first update.
    pub fn set_hooks(&mut self, hooks: MutatingHooks) {
        self.before_hooks = Some(self.effective.clone());
        self.hooks = Some(hooks);
    }

    /// From now on each accepted desired state is given to `store`. To be called after the start.
    pub fn set_store(&mut self, store: StateStore) {
        self.store = Some(store);
    }

    /// Takes over a startup manifest; waits for the hooks, since there is nothing else to do yet. A workload that was
    /// not rendered because the templates do too much altogether fails alone.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub fn start_with(&mut self, desired: DesiredState) -> Result<(), UpdateError> {
        self.start(desired, Occasion::Manifest)
    }

    /// Takes over a state that an earlier server had accepted, like [`ServerLoop::start_with`]. A workload that is
    /// refused now fails alone.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub fn start_again_with(&mut self, stored: DesiredState) -> Result<(), UpdateError> {
        self.start(stored, Occasion::Stored)
    }

    fn start(&mut self, desired: DesiredState, occasion: Occasion) -> Result<(), UpdateError> {
        let mut prepared = self.prepare(StateChange::between(&self.desired, desired), occasion)?;
        if let Some(hooks) = self.hooks.as_ref().filter(|_| prepared.changes_workloads()) {
            let outcome = hooks.ask_and_wait(prepared.message());
            prepared = self.hooked(prepared, outcome)?;
        }
        self.commit(prepared);
        Ok(())
    }

    /// Tells the service manager from now on how many agents and workloads there are.
    pub fn set_status(&mut self, board: StatusBoard) {
        self.status = ServerStatus { board, told: None };
        self.tell_status();
    }

    fn tell_status(&mut self) {
        self.status.tell(self.agents.by_name().len(), self.effective.len());
    }

    /// From now on the time that requests take is measured with `clock`.
    pub fn set_clock(&mut self, clock: impl Clock) {
        self.time = Time(Box::new(move || clock.now()));
    }

    fn now(&self) -> Instant {
        (self.time.0)()
    }

    /// Handles events until `stop` is closed by its owner or all senders of `events` are gone. The streams end
    /// with status OK when the loop is dropped at the end.
    pub fn run(mut self, events: &Receiver<PeerEvent>, stop: &Receiver<()>, clock: &impl Clock, pulse: &Pulse) {
        let outcomes = self.hooks.as_ref().map_or_else(never, |hooks| hooks.outcomes().clone());
        let (wake, room) = bounded(1);
        self.set_clock(clock.clone());
        self.room = RoomWaker(Waker::from(Arc::new(WakeLoop(wake))));
        let mut rest_until = clock.now();
        loop {
            pulse.turn();
            let event = select_biased! { // The end first: a flood of events must not delay it.
                recv(stop) -> _ => return,
                recv(outcomes) -> outcome => match outcome {
                    Ok(outcome) => ServerEvent::Hooks(outcome),
                    Err(_) => return log::error!("The thread of the mutating hooks has ended; ending the server."),
                },
                recv(events) -> event => match event {
                    Ok(event) => ServerEvent::Peer(event),
                    Err(_) => return,
                },
                // Last: who has to wait is behind with its answers anyway.
                recv(room) -> _ => ServerEvent::Room,
                recv(pulse.nudged()) -> _ => continue,
            };
            self.turn(event, clock);
            // But a flood of events must not keep it waiting for ever: it gets half of the time.
            let begin = clock.now();
            if begin >= rest_until && room.try_recv().is_ok() {
                self.turn(ServerEvent::Room, clock);
                let end = clock.now();
                rest_until = end + end.saturating_duration_since(begin);
            }
        }
    }

    fn turn(&mut self, event: ServerEvent, clock: &impl Clock) {
        let begin = clock.now();
        self.on_event(event);
        self.tell_status();
        let turn = clock.now().saturating_duration_since(begin);
        if turn > TURN_MAX && may_log("events that take long") {
            log::warn!("One event took {turn:?}; all others waited for it.");
        }
    }

    /// Handles one event completely.
    pub fn on_event(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Peer(PeerEvent::Opened { peer, hello, source, outbox }) => {
                self.peer_opened(peer, hello, source.into(), outbox);
            }
            ServerEvent::Peer(PeerEvent::Message { peer, message, room }) => {
                self.peer_said(peer, message, room);
            }
            ServerEvent::Peer(PeerEvent::Closed { peer }) => self.peer_gone(peer),
            ServerEvent::Hooks(outcome) => self.hooks_done(outcome),
            ServerEvent::Room => _ = self.serve_waiting(),
        }
        // Telling others that a peer is gone may fail for the next one; each can fail once only.
        while let Some(peer) = self.failed.pop() {
            self.peer_gone(peer);
        }
    }

    /// Everything that can be read.
    #[must_use]
    pub fn view(&self) -> StateView<'_> {
        StateView { desired: &self.desired, effective: &self.effective, states: &self.states, agents: &self.agents }
    }

    /// How much of what grows and shrinks is there: streams, names of streams, stops and deletes that are remembered,
    /// workload states, rights that outlast their workload.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 6] {
        let states = self.states.iter().count();
        [
            self.peers.len(),
            self.names.len(),
            self.stopping.len(),
            self.waiting_deletes.len(),
            states,
            self.rights.ending(),
        ]
    }

    /// Whether exactly the states of instances that are not wanted are counted as such.
    #[cfg(test)]
    pub fn strays_agree(&self) -> bool {
        let states: Vec<InstanceName> = self.states.iter().map(|(instance, _)| instance).collect();
        self.strays.instances() == states.iter().filter(|one| !self.is_wanted(one)).collect()
    }

    /// What the delete of an instance waits for, as its agent was told last.
    #[cfg(test)]
    pub fn told_conditions(&self, instance: &InstanceName) -> BTreeSet<String> {
        self.waiting_deletes.conditions(instance).map(|told| told.keys().cloned().collect()).unwrap_or_default()
    }

    /// Whether a request is served with events.
    #[cfg(test)]
    pub fn is_subscribed(&self, peer: PeerId, id: &str) -> bool {
        self.subscriptions.contains(&RequestKey { peer, id: id.to_owned() })
    }

    /// Event subscriptions of each stream.
    #[cfg(test)]
    pub fn subscribed(&self) -> BTreeMap<PeerId, usize> {
        self.subscriptions.by_peer()
    }

    // ------------------------------------------------------------ peers come

    fn peer_opened(&mut self, id: PeerId, hello: PeerHello, source: Name, outbox: Outbox) {
        let commander = |class: &str| Name::from(format!("{class}-{}", uuid::Uuid::new_v4()));
        match hello {
            PeerHello::Agent { name, tags } => self.agent_opened(id, name.into(), tags, outbox),
            PeerHello::Cli => {
                self.add_peer(id, Peer { class: PeerClass::Cli, name: commander("cli-conn"), source, outbox });
            }
            PeerHello::Commander => {
                self.add_peer(
                    id,
                    Peer { class: PeerClass::Commander, name: commander("commander-conn"), source, outbox },
                );
            }
        }
    }

    fn add_peer(&mut self, id: PeerId, peer: Peer) {
        self.names.insert(peer.name.clone(), id);
        self.peers.insert(id, peer);
    }

    /// The steps of spec/server.md section 10.1, in that order: states of the others, then the agent's workloads.
    fn agent_opened(&mut self, id: PeerId, name: Name, tags: BTreeMap<String, String>, outbox: Outbox) {
        if let Some(old) = self.agents.get(&name).map(|agent| agent.peer) {
            // Readers that wait for room in the inbox do not keep the order of their streams.
            if old > id {
                if may_log(&name) {
                    log::warn!("Ignoring an older connection of agent '{name}' that was announced late.");
                }
                return;
            }
            if may_log(&name) {
                log::warn!(
                    "Agent '{name}' connected again; closing its older connection. When this goes on, there are two of this name."
                );
            }
            self.forget_peer(old);
            self.end_logs_of_peer(old, PeerClass::Agent, &name);
        }
        self.add_peer(id, Peer { class: PeerClass::Agent, name: name.clone(), source: name.clone(), outbox });
        if may_log(&name) {
            log::info!("Agent '{name}' connected.");
        }
        self.refresh_states(id, &name);
        self.waiting_deletes.forget_agent(&name);
        let workloads = self.effective.values().filter(|added| added.instance.agent == name).cloned().collect();
        self.tell(id, FromServer::ServerHello(workloads));
        let attributes = AgentAttributes { load: None, tags };
        let mut changes = Changes::default();
        changes.agent(&name, self.agents.get(&name).map(|agent| &agent.attributes), Some(&attributes));
        let states = self.states.of_agent(&name).map(|(instance, _)| instance);
        let unwanted: BTreeSet<InstanceName> = states.filter(|instance| !self.is_wanted(instance)).collect();
        self.strays.agent_came(&name);
        self.agents.connect(name, Agent::new(id, attributes, unwanted));
        self.publish(&changes);
    }

    /// Tells everybody who hears broadcasts all states except its own and those of the newcomer. All share one list,
    /// so the cost does not grow with agents times states; a receiver that is busy gets the newest list only.
    fn refresh_states(&mut self, newcomer: PeerId, name: &Name) {
        let snapshot = StatesSnapshot::new(self.states.reports());
        let put = |(id, peer): (&PeerId, &Peer)| {
            let first = *id == newcomer;
            let result = peer.outbox.put_snapshot(&snapshot, &peer.name, name, first);
            result.err().map(|error| (*id, error))
        };
        let receivers = self.peers.iter().filter(|(_, peer)| peer.hears_broadcasts());
        let failed: Vec<(PeerId, OutboxError)> = receivers.filter_map(put).collect();
        for (id, error) in failed {
            self.outbox_failed(id, error);
        }
    }

    // -------------------------------------------------------------- peers go

    /// Every end of a stream: closed, failed, said goodbye, or does not read. An agent's states become unknown.
    fn peer_gone(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return }; // Replaced by a newer stream, or dropped before.
        let (name, class) = (peer.name.clone(), peer.class);
        let agent = if class == PeerClass::Agent { self.agents.disconnect(&name, id) } else { None };
        // What it asked for ends first, so that nothing of what follows is put for it.
        self.forget_peer(id);
        if let Some(attributes) = agent {
            self.agent_gone(&name, &attributes);
            self.strays.agent_went(&name);
            self.forget_surplus();
        }
        self.end_logs_of_peer(id, class, &name);
    }

    /// The steps of spec/server.md section 10.4 between the removal of the agent and the end of its logs.
    fn agent_gone(&mut self, name: &Name, attributes: &AgentAttributes) {
        if may_log(name) {
            log::info!("Agent '{name}' disconnected.");
        }
        let lost = self.states.set_agent_disconnected(name);
        let unknown = ExecutionState::plain(Phase::AgentDisconnected);
        let reports: Vec<WorkloadState> =
            lost.iter().map(|(instance, _)| WorkloadState::new(instance.clone(), unknown.clone())).collect();
        if !self.subscriptions.is_empty() {
            let mut changes = Changes::default();
            changes.agent(name, Some(attributes), None);
            changes.states(lost.into_iter().map(|(instance, state)| (instance, Some(state))).collect(), &self.states);
            self.publish(&changes);
        }
        self.broadcast_states(&reports, None);
        // Nothing waits for what is not known to run.
        self.relieve_deletes(reports.iter().map(|report| &report.instance));
    }

    /// Agents of ever new names must not fill the memory with states of instances that nobody wants.
    fn forget_surplus(&mut self) {
        while let Some((name, instances)) = self.strays.take_surplus() {
            let removed = ExecutionState::plain(Phase::Removed);
            let states: Vec<WorkloadState> =
                instances.into_iter().map(|instance| WorkloadState::new(instance, removed.clone())).collect();
            if may_log(&name) {
                log::warn!(
                    "Forgetting {} states of workloads that '{name}', which is gone, should not have.",
                    states.len()
                );
            }
            self.take_states(None, states);
        }
    }

    /// Forgets a stream and what it asked for, except for logs. Dropping its outbox ends it with status OK.
    fn forget_peer(&mut self, id: PeerId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        if self.names.get(&peer.name) == Some(&id) {
            self.names.remove(&peer.name);
        }
        self.subscriptions.remove_peer(id);
        self.waiting.remove_peer(id);
        if !self.waiting.is_empty() {
            self.room.0.wake_by_ref(); // Updates of it wait for no room any more.
        }
    }

    // ------------------------------------------------------------- peers say

    /// `room` is given back when the message is handled, so that the next large one waits until then.
    fn peer_said(&mut self, id: PeerId, message: ToServer, room: Room) {
        let Some(peer) = self.peers.get(&id) else { return }; // What a replaced stream says late means nothing.
        let (name, source) = (peer.name.clone(), peer.source.clone());
        match message {
            ToServer::Request(request) => self.request(id, request, room),
            ToServer::WorkloadStates(states) => self.states_reported(id, &name, states),
            ToServer::StatesComplete => self.all_states_reported(id, &name),
            ToServer::AgentLoad(load) => self.load_reported(id, &name, &load),
            ToServer::Goodbye => {
                log::debug!("'{name}' said goodbye.");
                self.peer_gone(id);
            }
            ToServer::LogEntries { request_id, entries } => self.log_entries(&name, &request_id, entries),
            ToServer::LogsStop { request_id, instance } => self.logs_stopped(&name, &request_id, instance),
            ToServer::AgentHello { .. } | ToServer::CommanderHello { .. } => {
                if may_log(&source) {
                    log::warn!("Ignoring another hello of '{name}' on the same connection.");
                }
            }
            ToServer::Empty if may_log(&source) => log::warn!("Ignoring a message of '{name}' that has no content."),
            ToServer::Empty => {}
        }
    }

    /// An agent speaks for itself only: what it says of others' workloads is ignored (spec/server.md section 10.3).
    fn states_reported(&mut self, id: PeerId, name: &Name, mut states: Vec<WorkloadState>) {
        let all = states.len();
        let agent = self.agents.get_mut(name).filter(|agent| agent.peer == id);
        states.retain(|state| agent.is_some() && state.instance.agent == *name);
        if states.len() < all && self.peers.get(&id).is_some_and(Peer::may_log) {
            log::warn!("Ignoring {} workload states that '{name}' may not report.", all - states.len());
        }
        let Some(agent) = agent else { return };
        let all = states.len();
        let (effective, strays) = (&self.effective, &mut self.strays);
        states.retain_mut(|WorkloadState { instance, state }| {
            agent.unconfirmed.remove(instance);
            if state.phase == Phase::Removed {
                strays.remove(instance);
                return true;
            }
            if is_wanted(effective, instance) {
                return true;
            }
            state.cut_info(STRAY_INFO_MAX);
            strays.report(instance)
        });
        if states.len() < all && may_log(name) {
            log::warn!(
                "Ignoring {} states of workloads that '{name}' should not have: there are too many of such, or more than \
                 {STRAYS_OF_WORKLOAD} of one workload.",
                all - states.len()
            );
        }
        self.take_states(Some(id), states);
        self.forget_surplus();
    }

    /// The agent has told all that it has: what it lost while it was away, and is not wanted any more, is gone. Nobody
    /// else could ever report that.
    fn all_states_reported(&mut self, id: PeerId, name: &Name) {
        let Some(agent) = self.agents.get_mut(name).filter(|agent| agent.peer == id) else { return };
        agent.told_all();
        let mut gone = std::mem::take(&mut agent.unconfirmed);
        gone.retain(|instance| self.states.get(instance).is_some());
        let removed = ExecutionState::plain(Phase::Removed);
        let states = gone.into_iter().map(|instance| WorkloadState::new(instance, removed.clone()));
        self.states_reported(id, name, states.collect());
    }

    /// Stores states that the agent with the stream `from` may report, and passes them on.
    fn take_states(&mut self, from: Option<PeerId>, states: Vec<WorkloadState>) {
        let mut old = Vec::new();
        for WorkloadState { instance, state } in &states {
            log::debug!("The state of '{instance}' is '{state}'.");
            old.push((instance.clone(), self.states.set(instance, state.clone())));
            if state.phase == Phase::Removed {
                self.stopping.forget(instance);
                // Of what is wanted this may be the end of an earlier form; the present one waits for what was told last.
                if !is_wanted(&self.effective, instance) {
                    self.waiting_deletes.forget(instance);
                }
            }
        }
        if !self.subscriptions.is_empty() {
            let mut changes = Changes::default();
            changes.states(old, &self.states);
            self.publish(&changes);
        }
        for removed in states.iter().filter(|state| state.state.phase == Phase::Removed) {
            self.end_requests_of_gone(&removed.instance); // Another one may have come with the same report.
        }
        self.broadcast_states(&states, from);
        self.tell_unknown_deletes_again(&states);
        self.relieve_deletes(states.iter().map(|state| &state.instance));
    }

    /// Tells agents again what they let wait although nobody knows for what: an earlier server told them, or this one on
    /// a connection that was lost with its last messages, or the instance was started again while it waits and its end was
    /// told. What is wanted may wait to be replaced by the same instance in another form, or for a condition of its node;
    /// an agent that says so when it connects is told once.
    fn tell_unknown_deletes_again(&mut self, states: &[WorkloadState]) {
        let Self { effective, agents, waiting_deletes, .. } = self;
        let waiting = states.iter().filter(|state| state.state.phase == Phase::StoppingWaitingToStop);
        let mut is_to_be_told = |one: &InstanceName| {
            !is_wanted(effective, one) || agents.get_mut(&one.agent).is_some_and(|agent| agent.retell(one))
        };
        let waiting = waiting.map(|state| &state.instance).filter(|one| !waiting_deletes.has_told(one));
        let unknown: Vec<InstanceName> = waiting.filter(|one| is_to_be_told(one)).cloned().collect();
        let (dependents, stopping) = (&self.dependents, &mut self.stopping);
        for deleted in with_delete_conditions(unknown, &self.effective, dependents, stopping, &self.states) {
            self.waiting_deletes.note(&deleted);
            self.tell_delete_again(deleted);
        }
    }

    /// Tells agents again what to delete when that has to wait for less, now that there is news of these instances.
    fn relieve_deletes<'n>(&mut self, news: impl Iterator<Item = &'n InstanceName>) {
        let Self { waiting_deletes, effective, dependents, stopping, states, .. } = self;
        let relieved = waiting_deletes.relieved(news, effective, dependents, stopping, states);
        for deleted in relieved {
            log::debug!("'{}' may go although others that needed it exist again.", deleted.instance);
            self.tell_delete_again(deleted);
        }
    }

    fn tell_delete_again(&mut self, deleted: DeletedWorkload) {
        let Some(peer) = self.agents.get(&deleted.instance.agent).map(|agent| agent.peer) else { return };
        // What replaces it is a part of the same order.
        let successor = self.effective.get(&deleted.instance.workload);
        let added = successor.filter(|added| added.instance.agent == deleted.instance.agent).cloned();
        self.tell(
            peer,
            FromServer::UpdateWorkload(WorkloadPlan { added: added.into_iter().collect(), deleted: vec![deleted] }),
        );
    }

    fn is_wanted(&self, instance: &InstanceName) -> bool {
        is_wanted(&self.effective, instance)
    }

    fn load_reported(&mut self, id: PeerId, name: &Name, load: &AgentLoad) {
        match self.agents.get_mut(name) {
            Some(agent) if agent.peer == id && *load.agent == **name => {
                let new = Some((load.cpu_usage, load.free_memory));
                if self.subscriptions.is_empty() {
                    agent.attributes.load = new; // Every two seconds, and nobody wants to hear of it.
                    return;
                }
                let before = agent.attributes.clone();
                agent.attributes.load = new;
                let mut changes = Changes::default();
                changes.agent(name, Some(&before), Some(&agent.attributes));
                self.publish(&changes);
            }
            _ if self.peers.get(&id).is_some_and(Peer::may_log) => {
                log::warn!("Ignoring the load of '{}' reported by '{name}'.", excerpt(&load.agent));
            }
            _ => {}
        }
    }

    // ---------------------------------------------------------------- sending

    /// Sends `states` to every stream that hears broadcasts, except to `except`, and to no agent its own.
    fn broadcast_states(&mut self, states: &[WorkloadState], except: Option<PeerId>) {
        if states.is_empty() {
            return;
        }
        let receivers: Vec<(PeerId, Name)> = self
            .peers
            .iter()
            .filter(|(id, peer)| Some(**id) != except && peer.hears_broadcasts())
            .map(|(id, peer)| (*id, peer.name.clone()))
            .collect();
        for (id, name) in receivers {
            let foreign: Vec<WorkloadState> =
                states.iter().filter(|state| state.instance.agent != name).cloned().collect();
            if !foreign.is_empty() {
                self.tell(id, FromServer::WorkloadStates(foreign));
            }
        }
    }

    /// Puts a message for one stream; a stream that cannot take it is dropped when the event is done.
    fn tell(&mut self, id: PeerId, message: FromServer) {
        let Some(peer) = self.peers.get(&id) else { return };
        if let Err(error) = peer.outbox.put(message) {
            self.outbox_failed(id, error);
        }
    }

    fn outbox_failed(&mut self, id: PeerId, error: OutboxError) {
        let Some(peer) = self.peers.get(&id).filter(|_| !self.failed.contains(&id)) else { return };
        if peer.may_log() {
            log::warn!("Closing the connection of '{}': {error}.", peer.name);
        }
        self.failed.push(id);
    }
}

fn is_wanted(effective: &BTreeMap<Name, AddedWorkload>, instance: &InstanceName) -> bool {
    effective.get(&instance.workload).is_some_and(|added| added.instance == *instance)
}

#[cfg(test)]
mod tests;
