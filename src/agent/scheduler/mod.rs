//! Decides about all workloads of the agent, from the messages of the server, the statuses of
//! control loops and the listings of engines.
//!
//! Thread: `scheduler`.
//! Owns: all states, all targets.
//! Takes: [`SchedulerEvent`]s of `rx:server`, `uplink`, `wl:*`, `watch:*`, `metrics`, `images`. Gives:
//! targets to control loops, listings to state checkers, states and load to `uplink`. Waits for none
//! of them.

use crate::events::{Overview, SchedulerEvent, WorkloadOverview};
use crate::folder_removal::remove_left;
use crate::images::needs::ImageNeeds;
use crate::limits::{EARLIER_CALLS_GRACE, EARLIER_CALLS_MAX, LOAD_INTERVAL};
use crate::log_stream::LogStreams;
use crate::resources::LoadSampler;
use crate::state_checker::ListResult;
use crate::uplink_outbox::UplinkOutbox;
use crate::usage::{UsageRequests, UsageSampler};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::messages::{AddedWorkload, AgentLoad, FromServer, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name, excerpt, has_name_characters};
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::TURN_MAX;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_runtime::engine_children::EarlierCalls;
use crossbeam_channel::{Receiver, Sender, select_biased};
use log::{debug, info, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::time::Instant;
use workloads::Workloads;

mod adopt;
pub mod conditions;
mod listings;
mod staging;
mod states;
pub mod workloads;

pub(crate) use staging::COPIED_FILES;

/// All decisions of an agent.
pub struct Scheduler<C: Clock> {
    inbox: Sender<SchedulerEvent>,
    runtime: Workloads<C>,
    uplink: UplinkOutbox,
    logs: LogStreams,
    usage: UsageRequests,
    load: LoadSampler,
    load_due: Instant,
    /// Whether a hello has come on the present connection.
    connected: bool,
    /// A guarded update with workloads of this agent is open.
    is_update_open: bool,
    /// Whether the last report after a hello contained all instances.
    all_reported: bool,
    /// The server has to be sent the states of all instances.
    must_report_all: bool,
    /// The folders that an earlier agent has left are removed.
    is_swept: bool,
    /// `None` when no such call runs any more.
    earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    /// When to check them next, and from when on to end them.
    earlier_calls_due: Option<(Instant, Instant)>,
    status: StatusBoard,
}

impl<C: Clock> Scheduler<C> {
    /// Manages the workloads of `runtime`. Its events, listings among them, come through `inbox`.
    pub fn new(
        inbox: Sender<SchedulerEvent>,
        runtime: Workloads<C>,
        uplink: UplinkOutbox,
        load: LoadSampler,
        earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
        status: StatusBoard,
    ) -> Self {
        let checkers = runtime
            .context
            .engines
            .values()
            .map(|engine| engine.watch.clone())
            .collect();
        let images = runtime.context.calls.images.clone();
        let sampler = UsageSampler::new(Path::new("/"), checkers, images);
        Self {
            load_due: runtime.context.clock.now(),
            logs: LogStreams::new(uplink.clone(), inbox.clone()),
            usage: UsageRequests::new(uplink.clone(), sampler),
            inbox,
            runtime,
            uplink,
            load,
            connected: false,
            is_update_open: false,
            all_reported: true,
            must_report_all: false,
            is_swept: false,
            earlier_calls,
            earlier_calls_due: None,
            status,
        }
    }

    /// Reports to the service manager how many workloads there are in which state.
    fn report_status(&self) {
        self.status.workloads(|| self.runtime.store.summary());
    }

    /// Handles events until the other end of `stop` is dropped.
    // [impl->swdd~agent-manager-listens-requests-from-server~1]
    pub(crate) fn run(
        mut self,
        events: &Receiver<SchedulerEvent>,
        stop: &Receiver<()>,
        heartbeat: &Heartbeat,
    ) {
        self.report_status();
        loop {
            heartbeat.turn();
            let alarm = self.runtime.context.clock.alarm(self.due());
            let event = select_biased! {
                recv(stop) -> _ => return,
                recv(events) -> event => event.ok(),
                recv(alarm) -> _ => None,
                recv(heartbeat.woken()) -> _ => continue,
            };
            let start = self.now();
            match event {
                Some(event) => self.on_event(event),
                None => self.tick(),
            }
            let took = self.now().saturating_duration_since(start);
            if took > TURN_MAX {
                warn!(
                    "The scheduler needed {} ms for one event.",
                    took.as_millis()
                );
            }
        }
    }

    /// When [`Self::tick`] wants to be called next.
    pub fn due(&self) -> Instant {
        let earlier_calls = self.earlier_calls_due.map(|(at, _)| at);
        let others = self
            .runtime
            .listings
            .due()
            .into_iter()
            .chain(self.runtime.conditions_due);
        earlier_calls
            .into_iter()
            .chain(others)
            .fold(self.load_due, Instant::min)
    }

    fn now(&self) -> Instant {
        self.runtime.context.clock.now()
    }

    /// Does what is due: reports the load, evaluates conditions, retries threads and listings,
    /// checks earlier calls.
    pub fn tick(&mut self) {
        let now = self.now();
        if self.load_due <= now {
            // Counted from now, so that missed ticks are skipped.
            self.load_due = now + LOAD_INTERVAL;
            self.report_load();
        }
        self.logs.forget_ended();
        self.runtime.start_waiting_loops();
        self.runtime.refresh_conditions(now);
        if self.runtime.listings.give_up(now) {
            self.runtime.reconcile_waiting();
        }
        self.request_listings(now);
        self.finish_event();
    }

    /// Does what follows from an event: targets of control loops, states and reports to the server,
    /// logs that can be read now.
    fn finish_event(&mut self) {
        self.reconcile();
        self.finish_hello();
        self.logs
            .look_again(|instance| self.runtime.log_of(instance));
        if self.connected {
            self.uplink
                .put_prepared(self.runtime.take_staging_reports());
        }
    }

    fn report_load(&mut self) {
        // Without a connection it is not sampled: the next sample covers the time until then.
        if self.connected
            && let Some((cpu_usage, free_memory)) = self.load.sample()
        {
            self.uplink.put_load(AgentLoad {
                agent: self.runtime.store.agent.to_string(),
                cpu_usage,
                free_memory,
            });
        }
    }

    /// Whether no call of an earlier agent runs any more. It might create a container that a
    /// listing now would not show, and we would create it a second time.
    fn earlier_calls_ended(&mut self, now: Instant) -> bool {
        let Some(calls) = &mut self.earlier_calls else {
            return true;
        };
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
        // How often the end of such calls is checked; only at the start.
        self.earlier_calls_due = Some((now + Duration::from_millis(200), end_at));
        false
    }

    /// Handles one event.
    pub fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Server(message) => self.on_message(message),
            SchedulerEvent::ServerGone => {
                info!("Agent '{}' received ServerGone.", self.runtime.store.agent);
                self.connected = false;
                self.is_update_open = false; // The next session says it.
                self.images_changed();
                self.runtime.session_ended();
                self.runtime.store.mark_foreign_stale();
                self.logs.cancel_all();
            }
            SchedulerEvent::Status { workload, status } => {
                self.runtime.take_status(&workload, status);
            }
            SchedulerEvent::Listed { runtime, result } => self.on_listed(&runtime, result),
            SchedulerEvent::NoLog {
                request_id,
                instance,
            } => {
                let now = self.runtime.log_of(&instance);
                let why = self.runtime.why_without_log(&instance);
                self.logs.found_nothing(&request_id, &instance, now, why);
            }
            // Full or gone: nobody waits for it any more.
            SchedulerEvent::Overview(reply) => _ = reply.try_send(self.overview()),
            SchedulerEvent::ImageNeeds(reply) => _ = reply.try_send(self.image_needs()),
        }
        self.finish_event();
    }

    fn on_message(&mut self, message: FromServer) {
        if changes_needs(&message) {
            self.images_changed();
        }
        match message {
            FromServer::ServerHello(added) => self.on_hello(added),
            // [impl->swdd~agent-handles-update-workload-requests~1]
            FromServer::UpdateWorkload(plan) => self.on_plan(plan),
            // [impl->swdd~agent-handles-update-workload-state-requests~1]
            FromServer::WorkloadStates(states) => {
                let names: BTreeSet<Name> = states
                    .iter()
                    .map(|state| state.instance.workload.clone())
                    .collect_entries();
                for state in states {
                    self.runtime.store.set_foreign(state);
                }
                self.runtime.states_changed(&names);
            }
            FromServer::Response(_) => {} // `rx:server` has passed it to its workload.
            FromServer::LogsRequest {
                request_id,
                request,
            } => {
                self.logs.start(&request_id, &request, |instance| {
                    self.runtime.log_of(instance)
                });
            }
            FromServer::LogsCancel { request_id } => self.logs.cancel(&request_id),
            FromServer::UsageRequest { number } => self.usage.request(number),
            FromServer::UpdateOpen(is_open) => self.is_update_open = is_open,
            FromServer::Prepare(list) => {
                let is_ours =
                    |added: &AddedWorkload| added.instance.agent == self.runtime.store.agent;
                self.runtime
                    .stage(by_name(list.into_iter().filter(is_ours).collect()));
            }
        }
    }

    fn overview(&self) -> Overview {
        let of_one = |AddedWorkload { instance, workload }: &AddedWorkload| {
            let state = self
                .runtime
                .store
                .get(instance)
                .map(|state| state.phase.state());
            WorkloadOverview {
                instance: instance.clone(),
                runtime: workload.runtime.clone(),
                state,
                out_of_memory: self.runtime.out_of_memory(&instance.workload),
            }
        };
        let workloads = self.runtime.wanted().map(of_one).collect();
        Overview {
            connected: self.connected,
            workloads,
        }
    }

    /// No image is removed before it has been quiet again.
    fn images_changed(&self) {
        if let Some(images) = &self.runtime.context.calls.images {
            images.changed();
        }
    }

    /// Which images must stay for which instances.
    // [impl->swdd~agent-keeps-needed-images~1]
    fn image_needs(&self) -> ImageNeeds {
        let has_all = self.runtime.listings.are_known() && !self.runtime.awaits_listings;
        let mut needs = self.runtime.image_needs();
        needs.is_settled = self.connected && has_all;
        needs.is_update_open |= self.is_update_open;
        needs
    }

    // ------------------------------------------------------------------ hello

    fn on_hello(&mut self, added: Vec<AddedWorkload>) {
        info!(
            "Received the server hello with '{}' added workloads.",
            added.len()
        );
        self.connected = true;
        self.load_due = self.now() + LOAD_INTERVAL;
        self.report_load();
        self.runtime.hello(by_name(added));
        let dropped = self.runtime.store.drop_stale();
        self.runtime.states_changed(&dropped);
        self.runtime.listings.want(|_| true);
        self.request_listings(self.now());
    }

    fn request_listings(&mut self, now: Instant) {
        if self.runtime.listings.are_due(now) && self.earlier_calls_ended(now) {
            self.runtime
                .listings
                .request(&self.runtime.context.engines, &self.inbox, now);
        }
    }

    fn on_listed(&mut self, runtime: &Name, result: ListResult) {
        let listed = self.runtime.listings.take(runtime, result, self.now());
        self.runtime.reconcile_waiting();
        let Some(mut listed) = listed else {
            return;
        };
        self.runtime.recall_ends(runtime, &mut listed);
        listed.retain(|container| is_file_name(&container.instance));
        self.runtime.take_listed(runtime, listed);
        self.must_report_all |= !self.all_reported;
    }

    /// Acts on the hello: on the first one when all engines have listed their containers or had
    /// time enough for it; a later listing concerns the workloads of its engine only. Until then
    /// only unchanged running workloads are adopted, which are watched at once, and plans change
    /// nothing but what is wanted.
    fn finish_hello(&mut self) {
        if self.runtime.awaits_listings {
            if self.runtime.listings.hold_up_hello() {
                return;
            }
            self.runtime.on_listings_known();
            self.reconcile();
            self.must_report_all = true;
        }
        if std::mem::take(&mut self.must_report_all) {
            self.report_all();
        }
    }

    /// Reports the states of all instances to the server, and that these are all: known when all
    /// engines have listed.
    fn report_all(&mut self) {
        self.all_reported = self.runtime.listings.are_known();
        self.uplink
            .resynchronise(self.runtime.store.own(), self.all_reported);
        if self.all_reported && !std::mem::replace(&mut self.is_swept, true) {
            let instance = |folder: &str| {
                InstanceName::parse(&format!("{folder}.{}", self.runtime.store.agent))
            };
            let keeps = |folder: &str| {
                instance(folder).is_none_or(|instance| self.runtime.keeps(&instance))
            };
            // An agent that was killed has left them.
            remove_left(&self.runtime.context.calls.folder, keeps);
        }
    }

    // ------------------------------------------------------- plans and states

    // [impl->swdd~agent-transforms-update-workload-message-to-workload-operations~1]
    // [impl->swdd~agent-handle-deleted-before-added-workloads~1]
    fn on_plan(&mut self, plan: WorkloadPlan) {
        debug!(
            "Received a new desired state with '{}' added and '{}' deleted workloads.",
            plan.added.len(),
            plan.deleted.len()
        );
        let mut added = by_name(plan.added);
        // [impl->swdd~agent-deletes-workload~1]
        for deleted in plan.deleted {
            let name = deleted.instance.workload.clone();
            // [impl->swdd~agent-updates-deleted-and-added-workloads~1]
            let new = added.remove(&name);
            self.runtime.request(name, new, Some(deleted));
        }
        // [impl->swdd~agent-added-creates-workload~1]
        for (name, new) in added {
            self.runtime.request(name, Some(new), None);
        }
        self.request_listings(self.now());
    }

    /// Reconciles the workloads of which something has changed, sends their new states to the
    /// server, and reconciles the workloads that waited for these.
    // [impl->swdd~agent-sends-workload-states-of-its-workloads-to-server~2]
    fn reconcile(&mut self) {
        loop {
            let changes = self.runtime.reconcile();
            if changes.is_empty() {
                return;
            }
            let mut names = BTreeSet::new();
            for change in changes {
                names.insert(change.instance.workload.clone());
                self.uplink.put(change);
            }
            self.runtime.states_changed(&names);
            self.report_status();
        }
    }
}

/// Whether other images may be needed after this message.
fn changes_needs(message: &FromServer) -> bool {
    matches!(
        message,
        FromServer::ServerHello(_)
            | FromServer::UpdateWorkload(_)
            | FromServer::Prepare(_)
            | FromServer::UpdateOpen(_)
    )
}

/// Names become parts of paths and of arguments, so a peer's mistake must not lead out of the run
/// folder.
fn is_file_name(instance: &InstanceName) -> bool {
    [&instance.workload, &instance.id, &instance.agent]
        .iter()
        .all(|part| !part.is_empty() && has_name_characters(part))
}

fn is_acceptable(added: &AddedWorkload) -> bool {
    let acceptable = is_file_name(&added.instance);
    if !acceptable {
        warn!(
            "Ignoring added workload '{}': its name is not valid.",
            excerpt(&added.instance.to_string())
        );
    }
    acceptable
}

/// Those that are acceptable.
fn by_name(added: Vec<AddedWorkload>) -> BTreeMap<Name, AddedWorkload> {
    added
        .into_iter()
        .filter(is_acceptable)
        .map(|added| (added.instance.workload.clone(), added))
        .collect_entries()
}

#[cfg(debug_assertions)]
mod inspection;
#[cfg(test)]
mod tests;
