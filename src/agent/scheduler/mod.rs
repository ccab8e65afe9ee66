//! Decides about all workloads of the agent, from the messages of the server, the statuses of
//! control loops and the listings of engines.
//!
//! Thread: `scheduler`. Owns: all states, all targets. Takes: [`SchedulerEvent`]s of `rx:server`,
//! `uplink`, `wl:*`, `watch`, `metrics`, `images`. Gives: targets to control loops, listings to
//! state checkers, states and load to `uplink`. Waits for none of them.

use crate::events::{Overview, SchedulerEvent, WorkloadOverview};
use crate::folder_removal::remove_left_over;
use crate::images::needs::ImageNeeds;
use crate::limits::{EARLIER_CALLS_GRACE, EARLIER_CALLS_MAX, LOAD_INTERVAL};
use crate::log_stream::LogStreams;
use crate::resources::LoadSampler;
use crate::state_checker::ListResult;
use crate::uplink_outbox::UplinkOutbox;
use crate::usage::{UsageRequests, UsageSampler};
use ankaios_model::messages::{AddedWorkload, AgentLoad, FromServer, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name, excerpt, has_name_characters};
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::TURN_MAX;
use ankaios_platform::memory::OwnStack;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_runtime::engine_children::EarlierCalls;
use ankaios_runtime::engine_version::EngineVersions;
use crossbeam_channel::{Receiver, Sender, select_biased};
use log::{debug, info, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::time::Instant;
use workloads::WorkloadRecords;

mod adopt;
pub mod conditions;
mod listings;
mod restart_with;
mod staging;
mod states;
pub mod workloads;

pub(crate) use staging::COPIED_FILES;

/// How often the engine calls of an earlier agent are checked; only after the start of this one.
const EARLIER_CALLS_INTERVAL: Duration = Duration::from_millis(200);

/// All decisions of an agent.
pub struct Scheduler<C: Clock> {
    inbox: Sender<SchedulerEvent>,
    workloads: WorkloadRecords<C>,
    uplink: UplinkOutbox,
    logs: LogStreams,
    usage: UsageRequests,
    load: LoadSampler,
    load_due: Instant,
    versions: EngineVersions,
    /// Whether a hello was received on the present connection.
    connected: bool,
    /// A guarded update with workloads of this agent is open.
    is_update_open: bool,
    /// Whether the last report after a hello contained all instances.
    all_reported: bool,
    /// The states of all instances must be sent to the server.
    must_report_all: bool,
    /// The folders that an earlier agent has left are removed.
    is_swept: bool,
    /// The engine calls of an earlier agent; `None` when all have ended.
    earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    /// The wait for them.
    earlier_calls_wait: Option<EarlierCallsWait>,
    status: StatusBoard,
}

/// The wait for the engine calls of an earlier agent.
struct EarlierCallsWait {
    /// When to check them next.
    check_at: Instant,
    /// When to end them.
    end_at: Instant,
}

impl<C: Clock> Scheduler<C> {
    /// Returns a scheduler of these workloads. `inbox` is its own, for replies of listings and
    /// logs.
    pub fn new(
        inbox: Sender<SchedulerEvent>,
        workloads: WorkloadRecords<C>,
        uplink: UplinkOutbox,
        load: LoadSampler,
        versions: EngineVersions,
        earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
        status: StatusBoard,
    ) -> Self {
        let mut checkers = Vec::new();
        for engine in workloads.context.engines.values() {
            checkers.push(engine.watch.clone());
        }
        let images = workloads.context.calls.images.clone();
        let sampler = UsageSampler::new(Path::new("/"), checkers, images);
        Self {
            load_due: workloads.context.clock.now(),
            logs: LogStreams::new(uplink.clone(), inbox.clone()),
            usage: UsageRequests::new(uplink.clone(), sampler),
            inbox,
            workloads,
            uplink,
            load,
            versions,
            connected: false,
            is_update_open: false,
            all_reported: true,
            must_report_all: false,
            is_swept: false,
            earlier_calls,
            earlier_calls_wait: None,
            status,
        }
    }

    /// Reports to the service manager how many workloads there are in which state.
    fn report_status(&self) {
        self.status.workloads(|| self.workloads.store.summary());
    }

    /// Handles events until the other end of `stop` is dropped.
    // [impl->swdd~agent-manager-listens-requests-from-server~1]
    pub(crate) fn run(
        &mut self,
        events: &Receiver<SchedulerEvent>,
        stop: &Receiver<()>,
        heartbeat: &Heartbeat,
    ) {
        self.report_status();
        let stack = OwnStack::of_this_thread();
        loop {
            heartbeat.turn();
            if let Some(stack) = &stack
                && events.is_empty()
            {
                stack.give_back_unused();
            }
            let alarm = self.workloads.context.clock.alarm(self.due());
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

    /// When to call [`Self::tick`] next.
    pub fn due(&self) -> Instant {
        let dues = [
            self.earlier_calls_wait.as_ref().map(|wait| wait.check_at),
            self.workloads.listings.due(),
            self.workloads.conditions_due,
        ];
        let mut due = self.load_due;
        for at in dues.into_iter().flatten() {
            due = due.min(at);
        }
        due
    }

    fn now(&self) -> Instant {
        self.workloads.context.clock.now()
    }

    /// Does everything that is due: reports the load, evaluates conditions, retries threads and
    /// listings, checks earlier calls.
    #[inline(never)] // Else `run` keeps the frame of this while it waits.
    pub fn tick(&mut self) {
        let now = self.now();
        if self.load_due <= now {
            // Counted from now, so that missed ticks are skipped.
            self.load_due = now + LOAD_INTERVAL;
            self.report_load();
        }
        self.logs.forget_ended();
        self.workloads.start_waiting_loops();
        self.workloads.refresh_conditions(now);
        if self.workloads.listings.give_up(now) {
            self.workloads.reconcile_waiting();
        }
        self.request_listings(now);
        self.finish_event();
    }

    /// Does the last steps of each event: targets of control loops, states and reports to the
    /// server, logs that can be read now.
    fn finish_event(&mut self) {
        self.reconcile();
        self.finish_hello();
        self.logs
            .update_waiting(|instance| self.workloads.log_of(instance));
        if self.connected {
            self.uplink
                .put_prepared(self.workloads.take_staging_reports());
        }
    }

    /// Reports the load since the last report. Without a connection nothing is sampled, so the next
    /// report covers that time as well.
    fn report_load(&mut self) {
        if self.connected
            && let Some(load) = self.load.sample()
        {
            self.uplink.put_load(AgentLoad {
                agent: self.workloads.store.agent.to_string(),
                cpu_usage: load.cpu_usage,
                free_memory: load.free_memory,
                engine: self.versions.shown(),
            });
        }
    }

    /// Checks the engine calls of an earlier agent, and ends those that take too long. Returns
    /// whether all have ended. Until then a listing could miss a container that one of them
    /// creates, and this agent would create a second one.
    fn end_earlier_calls(&mut self, now: Instant) -> bool {
        let Some(calls) = &mut self.earlier_calls else {
            return true;
        };
        let count = calls.still_running();
        if count == 0 {
            self.earlier_calls = None;
            self.earlier_calls_wait = None;
            return true;
        }
        let end_at = match &self.earlier_calls_wait {
            Some(wait) => wait.end_at,
            None => {
                warn!("Waiting for {count} engine calls of an earlier agent.");
                now + EARLIER_CALLS_MAX
            }
        };
        if end_at <= now {
            let must_kill = end_at + EARLIER_CALLS_GRACE <= now;
            calls.end(must_kill);
        }
        self.earlier_calls_wait = Some(EarlierCallsWait {
            check_at: now + EARLIER_CALLS_INTERVAL,
            end_at,
        });
        false
    }

    /// Handles one event.
    #[inline(never)] // As `tick`.
    pub fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Server(message) => self.on_message(message),
            SchedulerEvent::ServerGone => {
                info!(
                    "Agent '{}' received ServerGone.",
                    self.workloads.store.agent
                );
                self.connected = false;
                self.is_update_open = false; // The next session reports it.
                self.images_changed();
                self.workloads.session_ended();
                self.workloads.store.mark_foreign_stale();
                self.logs.cancel_all();
            }
            SchedulerEvent::Status { workload, status } => {
                self.workloads.take_status(&workload, status);
            }
            SchedulerEvent::Listed { runtime, result } => self.on_listed(&runtime, result),
            SchedulerEvent::NoLog {
                request_id,
                instance,
            } => {
                let source = self.workloads.log_of(&instance);
                let why = self.workloads.why_without_log(&instance);
                self.logs.found_nothing(&request_id, &instance, source, why);
            }
            // A reply fails only if the requester does not wait any more.
            SchedulerEvent::Overview(reply) => _ = reply.try_send(self.overview()),
            SchedulerEvent::ImageNeeds(reply) => _ = reply.try_send(self.image_needs()),
        }
        self.finish_event();
    }

    /// Handles a message of the server.
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
                self.workloads.take_foreign(states);
            }
            FromServer::Response(_) => {} // `uplink.rs` has passed it to its workload.
            FromServer::LogsRequest {
                request_id,
                request,
            } => {
                self.logs.start(&request_id, &request, |instance| {
                    self.workloads.log_of(instance)
                });
            }
            FromServer::LogsCancel { request_id } => self.logs.cancel(&request_id),
            FromServer::UsageRequest { number } => self.usage.request(number),
            FromServer::UpdateOpen(is_open) => self.is_update_open = is_open,
            FromServer::Prepare(mut list) => {
                list.retain(|added| added.instance.agent == self.workloads.store.agent);
                self.workloads.stage(by_name(list));
            }
        }
    }

    /// The desired workloads and their states, for the metrics.
    fn overview(&self) -> Overview {
        let mut workloads = Vec::new();
        for AddedWorkload { instance, workload } in self.workloads.desired() {
            let state = self.workloads.store.get(instance);
            workloads.push(WorkloadOverview {
                instance: instance.clone(),
                runtime: workload.runtime.clone(),
                state: state.map(|state| state.phase.state()),
                out_of_memory: self.workloads.out_of_memory(&instance.workload),
            });
        }
        Overview {
            connected: self.connected,
            workloads,
        }
    }

    /// Delays the clean-up of images until nothing has changed for some time.
    fn images_changed(&self) {
        if let Some(images) = &self.workloads.context.calls.images {
            images.changed();
        }
    }

    /// The instances whose images must stay.
    // [impl->swdd~agent-keeps-needed-images~1]
    fn image_needs(&self) -> ImageNeeds {
        let has_all = self.workloads.listings.are_known() && !self.workloads.awaits_listings;
        let mut needs = self.workloads.image_needs();
        needs.is_settled = self.connected && has_all;
        needs.is_update_open |= self.is_update_open;
        needs
    }

    // ------------------------------------------------------------------ hello

    /// Begins a session with all desired workloads of this agent.
    fn on_hello(&mut self, added: Vec<AddedWorkload>) {
        info!(
            "Received the server hello with '{}' added workloads.",
            added.len()
        );
        self.connected = true;
        self.load_due = self.now() + LOAD_INTERVAL;
        self.report_load();
        self.workloads.hello(by_name(added));
        let dropped = self.workloads.store.drop_stale();
        self.workloads.states_changed(&dropped);
        self.workloads.listings.need_all();
        self.request_listings(self.now());
    }

    /// Requests the listings that are due, after the engine calls of an earlier agent have ended.
    fn request_listings(&mut self, now: Instant) {
        if !self.workloads.listings.are_due(now) || !self.end_earlier_calls(now) {
            return;
        }
        let engines = &self.workloads.context.engines;
        self.workloads.listings.request(engines, &self.inbox, now);
    }

    /// Takes the containers of an engine that existed before this agent.
    fn on_listed(&mut self, runtime: &Name, result: ListResult) {
        let listed = self.workloads.listings.take(runtime, result, self.now());
        self.workloads.reconcile_waiting();
        let Some(mut listed) = listed else {
            return;
        };
        self.workloads.recall_ends(runtime, &mut listed);
        listed.retain(|container| is_file_name(&container.instance));
        self.workloads.take_listed(runtime, listed);
        self.must_report_all |= !self.all_reported; // The last report was not complete.
    }

    /// Acts on the hello once all engines have listed their containers, or had enough time for
    /// that. Until then, containers that run as desired are adopted, and no other target is set.
    fn finish_hello(&mut self) {
        if self.workloads.awaits_listings {
            if self.workloads.listings.must_hello_wait() {
                return;
            }
            self.workloads.on_listings_known();
            self.reconcile();
            self.must_report_all = true;
        }
        if self.must_report_all {
            self.must_report_all = false;
            self.report_all();
        }
    }

    /// Reports the states of all instances to the server, and whether these are complete: not
    /// before all engines have listed.
    fn report_all(&mut self) {
        self.all_reported = self.workloads.listings.are_known();
        self.uplink
            .resynchronise(self.workloads.store.own(), self.all_reported);
        if self.all_reported && !self.is_swept {
            self.is_swept = true;
            self.remove_left_folders();
        }
    }

    /// Removes the folders of instances that do not exist any more. A killed agent may have left
    /// some.
    fn remove_left_folders(&self) {
        let agent = &self.workloads.store.agent;
        remove_left_over(&self.workloads.context.calls.folder, |folder| {
            match InstanceName::parse(&format!("{folder}.{agent}")) {
                Some(instance) => self.workloads.keeps(&instance),
                None => true, // It is no folder of an instance, so it stays.
            }
        });
    }

    // ------------------------------------------------------- plans and states

    /// Takes the added and the deleted workloads of a plan. A workload in both is replaced.
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
            self.workloads.request(name, new, Some(deleted));
        }
        // [impl->swdd~agent-added-creates-workload~1]
        for (name, new) in added {
            self.workloads.request(name, Some(new), None);
        }
        self.request_listings(self.now());
    }

    /// Reconciles all dirty workloads, and reports their new states to the server. Repeats this,
    /// since other workloads may have waited for these states.
    // [impl->swdd~agent-sends-workload-states-of-its-workloads-to-server~2]
    fn reconcile(&mut self) {
        loop {
            let changes = self.workloads.reconcile();
            if changes.is_empty() {
                return;
            }
            let mut names = BTreeSet::new();
            for change in changes {
                names.insert(change.instance.workload.clone());
                self.uplink.put(change);
            }
            self.workloads.states_changed(&names);
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

/// Whether the names of an instance are safe as parts of paths and arguments. A peer must not lead
/// the agent out of its run folder.
fn is_file_name(instance: &InstanceName) -> bool {
    for part in [&instance.workload, &instance.id, &instance.agent] {
        if part.is_empty() || !has_name_characters(part) {
            return false;
        }
    }
    true
}

/// Returns the workloads by name, without those whose names are not valid.
fn by_name(list: Vec<AddedWorkload>) -> BTreeMap<Name, AddedWorkload> {
    let mut by_name = BTreeMap::new();
    for added in list {
        if is_file_name(&added.instance) {
            by_name.insert(added.instance.workload.clone(), added);
        } else {
            let name = added.instance.to_string();
            warn!(
                "Ignoring added workload '{}': its name is not valid.",
                excerpt(&name)
            );
        }
    }
    by_name
}

#[cfg(debug_assertions)]
mod inspection;
#[cfg(test)]
mod tests;
