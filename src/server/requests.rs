//! What commanders and workloads ask: one function per kind of request, and the steps of an accepted update.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::dependencies::{find_cycle, with_delete_conditions};
use super::events::{Changes, EventBudget, SameMasks, Subscriber, TooManyFields};
use super::mutating_hooks::HookOutcome;
use super::plan::{Difference, per_agent};
use super::requester::{Denied, Requester};
use super::templates::{RenderError, StartBudget};
use super::update::{StateChange, Tags, UpdateError, requested_change};
use super::waiting_requests::NoRoom;
use super::{PeerClass, RequestKey, ServerLoop};
use crate::limits::{
    ADDITIONAL_INFO_MAX, AGENT_TAGS_BYTES, LIFECYCLE_TEXTS_MAX, LOG_TIME_MAX, MASKS_PARTS_MAX, REQUEST_ID_MAX,
};
use crate::model::complete_state::tags_bytes;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::field_path;
use crate::model::lifecycle::{self, LifecycleError};
use crate::model::mask_tree::MaskTree;
use crate::model::messages::{
    AddedWorkload, DeletedWorkload, FromServer, ReadState, Request, RequestContent, Response, ResponseContent,
    UpdateState, WorkloadPlan,
};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::model::validation::{
    check_api_version, check_config_keys, check_config_references, check_mount_points, check_workload,
};
use crate::model::workload::Workload;
use crate::platform::logging::may_log;
use crate::wire::encoded_state::EncodedState;
use crate::wire::peer::{PeerId, Room};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// The workloads of an accepted update, sorted by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Instances that will start.
    pub added: Vec<InstanceName>,
    /// Instances that will end.
    pub deleted: Vec<InstanceName>,
}

/// An update that passed all checks but is not carried out yet.
#[derive(Debug, Default)]
pub struct PreparedUpdate {
    /// What changes in the desired state.
    change: StateChange,
    /// What changes in the rendered workloads.
    rendered: Difference,
    /// What changes in the effective workloads, once hooks have agreed.
    for_agents: Difference,
    /// Workloads of a start that cannot be taken over, and why.
    failed: BTreeMap<Name, String>,
}

/// What brings a change, which decides about workloads that cannot be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// A request: the whole update is refused.
    Update,
    /// The startup manifest: it is refused, unless only its templates do too much. They may be the work of many, and a
    /// server that ends would be started again and again.
    Manifest,
    /// A state that an earlier server had accepted: each such workload fails alone.
    Stored,
}

impl Occasion {
    /// Whether a workload with this error fails alone.
    fn forgives(self, error: &RenderError) -> bool {
        match self {
            Self::Update => false,
            Self::Manifest => matches!(error, RenderError::TooManySteps { .. }),
            Self::Stored => true,
        }
    }

    /// Notes the reason for a workload that fails alone.
    ///
    /// # Errors
    /// The `error`, where none does.
    fn fail(self, failed: &mut BTreeMap<Name, String>, name: &Name, error: UpdateError) -> Result<(), UpdateError> {
        if self != Self::Stored {
            return Err(error);
        }
        failed.insert(name.clone(), error.to_string());
        Ok(())
    }
}

/// A rendered workload, `None` for one that goes, or why it fails alone.
pub type Rendered = Result<Option<Arc<Workload>>, String>;

impl PreparedUpdate {
    /// Whether hooks have anything to say about it.
    #[must_use]
    pub fn changes_workloads(&self) -> bool {
        !self.rendered.is_empty()
    }

    /// What hooks are asked about.
    #[must_use]
    pub fn message(&self) -> WorkloadPlan {
        self.for_agents.message()
    }
}

/// What a requester is told when too many of its requests wait.
const UNREAD: &str = "Too many requests wait for earlier ones; ask again when these have been answered";
/// What a subscriber is told whose events are not taken.
const EVENTS_LOST: &str = "Events were not taken in time and are lost; the event subscription ends, subscribe again to \
                           get the state";

/// Why a request may not be kept, passed on or looked at, if its size is a reason. All that is said here is far beyond
/// what anybody needs.
fn too_large(id: &str, content: &RequestContent) -> Option<String> {
    if id.len() > REQUEST_ID_MAX {
        return Some(format!("The request id has {} bytes, at most {REQUEST_ID_MAX} are allowed", id.len()));
    }
    let masks = match content {
        RequestContent::UpdateState(update) => &update.masks,
        RequestContent::CompleteState(read) => &read.masks,
        RequestContent::Logs(logs) => {
            let time = [("since", &logs.since), ("until", &logs.until)].into_iter().find_map(|(name, time)| {
                let bytes = time.as_ref().map(String::len).filter(|bytes| *bytes > LOG_TIME_MAX)?;
                Some(format!("The time '{name}' has {bytes} bytes, at most {LOG_TIME_MAX} are allowed"))
            });
            return time;
        }
        _ => return None,
    };
    // Who names a field twice means it once.
    let different: HashSet<&String> = masks.iter().collect();
    let parts: usize = different.into_iter().map(|mask| mask.split('.').count()).sum();
    (parts > MASKS_PARTS_MAX).then(|| {
        format!("The field masks have {parts} parts, at most {MASKS_PARTS_MAX} are allowed; use fewer or shorter masks")
    })
}

fn invalid(error: &dyn std::error::Error) -> UpdateError {
    UpdateError::Invalid(error.to_string())
}

/// Tags that an update gives to an agent are bounded like those that it comes with.
fn check_agent_tags(agent_tags: &BTreeMap<Name, Tags>) -> Result<(), UpdateError> {
    let mut taken = agent_tags.iter().map(|(name, tags)| (name, tags_bytes(tags)));
    taken.find(|(_, bytes)| *bytes > AGENT_TAGS_BYTES).map_or(Ok(()), |(name, bytes)| {
        let name = excerpt(name);
        let text = format!("The tags of agent '{name}' take {bytes} bytes, at most {AGENT_TAGS_BYTES} are allowed");
        Err(UpdateError::Invalid(text))
    })
}

/// What an earlier server took stays as it is, also at a start; its agent says what is wrong with it.
fn check_files(change: &StateChange) -> Result<(), UpdateError> {
    for (name, workload) in &change.workloads {
        let checked = workload.iter().try_for_each(|workload| check_mount_points(workload));
        checked.map_err(|error| UpdateError::Invalid(named(&error, name)))?;
    }
    Ok(())
}

/// A typo in a `lifecycle:` block must not switch a safety gate off, so it is not passed on (spec/lifecycle.md section 1).
///
/// `left` is what the texts may still become that are read for this update.
fn check_lifecycle(AddedWorkload { instance, workload }: &AddedWorkload, left: &mut usize) -> Result<(), UpdateError> {
    let checked = lifecycle::of_config_within(&workload.runtime, &workload.runtime_config, left);
    let refused = |error: LifecycleError| UpdateError::Invalid(format!("Workload '{}': {error}", instance.workload));
    checked.map(drop).map_err(refused)
}

/// The text of `error`, with the name of the workload it is about.
fn named(error: &dyn std::error::Error, workload: &str) -> String {
    let text = error.to_string();
    let is_named = text.starts_with(&format!("Unsupported workload name '{workload}'"));
    if is_named { text } else { format!("{text} (workload '{workload}')") }
}

impl ServerLoop {
    /// Handles a request and answers it on the stream that it came from, or lets it wait: for an update before it, for
    /// answers that are on their way, or until nobody else wants anything because its requester has used up its share of
    /// the server's time. `room` is what its message takes of the inbox.
    pub(super) fn request(&mut self, peer: PeerId, Request { id, content }: Request, room: Room) {
        let begin = self.now();
        let key = RequestKey { peer, id };
        let requester = self.requester_of(&key);
        self.request_of(&requester, key, content, room);
        self.shares.charge(&requester, begin, self.now());
    }

    fn request_of(&mut self, requester: &Requester, key: RequestKey, content: RequestContent, room: Room) {
        if let Some(reason) = too_large(&key.id, &content) {
            return self.refuse_excess(&key, reason);
        }
        // Rules are many, so whoever has to wait in any case is compared with them only then.
        let is_late = !content.is_cancel() && !self.shares.excess(requester, self.now()).is_none();
        let checked =
            if is_late { self.rules_for(requester, &content).map(drop) } else { self.authorize(requester, &content) };
        if let Err(denied) = checked {
            return self.deny(&key, &denied);
        }
        if !is_late && !self.waiting.must_wait(requester, &content, || self.has_room_for_answer(key.peer)) {
            return self.serve(requester.clone(), key, content);
        }
        self.wait_for_turn(requester, key, content, room);
        if is_late {
            self.room.0.wake_by_ref(); // No peer tells when its turn has come.
        }
    }

    /// A commander is read no further while many of its requests wait, so that none is refused. An agent has other things
    /// to say as well, and all its workloads would wait for one of them.
    fn wait_for_turn(&mut self, requester: &Requester, key: RequestKey, content: RequestContent, mut room: Room) {
        room.give_bytes_back(); // What waits here has a bound of its own.
        let place = if requester.agent.is_none() { room } else { Room::default() };
        let Err(NoRoom { key, content }) = self.waiting.add(requester.clone(), key, content, place) else { return };
        match content {
            // What frees something is never refused. The answers before it come later, but that is little to lose.
            RequestContent::LogsCancel | RequestContent::EventsCancel => {
                self.waiting.withdraw(&key);
                self.serve(self.requester_of(&key), key, content);
            }
            _ if !self.waiting.hooks_work() => self.refuse_excess(&key, UNREAD.to_owned()),
            RequestContent::UpdateState(_) => self.refuse_excess(&key, UpdateError::TooManyWait.answer()),
            _ => self.refuse_excess(&key, UpdateError::TooManyWait.to_string()),
        }
    }

    /// Handles a request that has waited. What was allowed when it came may not be so any more.
    pub(super) fn serve_late(&mut self, requester: Requester, key: RequestKey, content: RequestContent) {
        match self.authorize(&requester, &content) {
            Ok(()) => self.serve(requester, key, content),
            Err(denied) => self.deny(&key, &denied),
        }
    }

    /// Handles a request whose turn it is.
    fn serve(&mut self, requester: Requester, key: RequestKey, content: RequestContent) {
        match content {
            RequestContent::UpdateState(update) => self.update_state(requester, key, update),
            RequestContent::CompleteState(read) if !read.subscribe => self.complete_state(&key, &read),
            RequestContent::Missing => {
                self.refuse(&key, "The Request does not contain any content");
            }
            // What lasts longer than its answer must be found again by its id.
            _ if key.id.is_empty() => self.refuse(&key, "The request id is empty"),
            _ if requester.agent.is_some() && requester.workload.is_none() => {
                self.refuse(&key, &format!("The request id '{}' does not name the workload that asks", key.id));
            }
            RequestContent::CompleteState(read) => self.subscribe(&requester, key, &read),
            RequestContent::EventsCancel => {
                self.subscriptions.remove(&key);
                self.answer(key.peer, key.id, ResponseContent::EventsCancelAccepted);
            }
            RequestContent::Logs(logs) => self.logs(&requester, key, logs),
            RequestContent::LogsCancel => self.logs_cancel(&key),
        }
    }

    /// Ids on the stream of a commander are its own; on that of an agent they name the workload, which the agent
    /// takes off. So the id that came is the id that goes back. Without one nobody could tell whose answer it is.
    pub(super) fn answer(&mut self, peer: PeerId, id: String, content: ResponseContent) {
        if id.is_empty() {
            if let Some(peer) = self.peers.get(&peer).filter(|peer| peer.may_log()) {
                log::warn!("Dropping an answer for '{}': its request has an empty id.", peer.name);
            }
            return;
        }
        self.tell(peer, FromServer::Response(Response { id, content }));
    }

    /// Our agents deny by themselves what this denies.
    fn deny(&mut self, key: &RequestKey, denied: &Denied) {
        if let Some(peer) = self.peers.get(&key.peer).filter(|peer| peer.may_log()) {
            log::warn!("Denied request '{}' of agent '{}': {denied}", excerpt(&key.id), peer.name);
        }
        self.refuse_excess(key, denied.to_string());
    }

    /// Refuses a request at once, whatever waits. Who asks without end gets no answer any more when much waits for its
    /// peer, which others need as well.
    fn refuse_excess(&mut self, key: &RequestKey, text: String) {
        let Some(peer) = self.peers.get(&key.peer).filter(|_| !key.id.is_empty()) else { return };
        let response = Response { id: key.id.clone(), content: ResponseContent::Error(text) };
        if let Err(error) = peer.outbox.put_or_drop(FromServer::Response(response)) {
            self.outbox_failed(key.peer, error);
        }
    }

    /// Whether a line about a request may be logged. On the stream of an agent each workload is a source of its own.
    fn may_log_of_requester(&self, key: &RequestKey) -> bool {
        let Some(peer) = self.peers.get(&key.peer) else { return false };
        match key.workload().filter(|_| peer.class == PeerClass::Agent) {
            Some(workload) => may_log(&format!("{workload}' of '{}", peer.name)),
            None => peer.may_log(),
        }
    }

    pub(super) fn refuse(&mut self, key: &RequestKey, text: &str) {
        self.answer(key.peer, key.id.clone(), ResponseContent::Error(text.to_owned()));
    }

    fn complete_state(&mut self, key: &RequestKey, read: &ReadState) {
        match MaskTree::of_request(&read.masks) {
            Ok(masks) => self.answer_read(key, masks.as_ref()),
            Err(error) => self.refuse(key, &error.to_string()),
        }
    }

    fn answer_read(&mut self, key: &RequestKey, masks: Option<&MaskTree>) {
        let state = masks.map_or_else(|| self.view().everything(), |masks| self.view().select(masks));
        self.answer(key.peer, key.id.clone(), ResponseContent::CompleteState { state, altered: None });
    }

    /// The answer to the read comes first, so that events begin where it ends.
    fn subscribe(&mut self, requester: &Requester, key: RequestKey, read: &ReadState) {
        let masks = match MaskTree::of_request(&read.masks) {
            Ok(masks) => masks,
            Err(error) => return self.refuse(&key, &error.to_string()),
        };
        match self.subscriptions.add(key.clone(), masks.clone(), self.owner(requester)) {
            Ok(()) => self.answer_read(&key, masks.as_ref()),
            Err(error) => self.refuse(&key, &error.to_string()),
        }
    }

    /// Tells subscribers what changed, each in one message with the new values. Workloads must not cost their agent the
    /// connection: who does not take its events in time loses them and is told.
    pub(super) fn publish(&mut self, changes: &Changes) {
        if changes.are_too_many() {
            for key in self.subscriptions.take_all() {
                self.refuse(&key, &TooManyFields.to_string());
            }
            return;
        }
        if changes.is_empty() {
            return;
        }
        let groups = self.subscriptions.by_masks();
        let subscribers: BTreeSet<&Subscriber> =
            groups.iter().flat_map(|group| &group.subscriptions).map(|(_, whose)| whose).collect();
        let mut budget = EventBudget::new(subscribers.len());
        // One after the other: what all of them are told could fill the memory.
        for group in groups {
            self.tell_event(group, changes, &mut budget);
        }
    }

    /// Tells subscriptions with the same masks what changed. It is found out, read and encoded once; who is the first of
    /// them that can pays for that.
    fn tell_event(
        &mut self,
        SameMasks { masks, subscriptions }: SameMasks,
        changes: &Changes,
        budget: &mut EventBudget,
    ) {
        let mut event: Option<Arc<EncodedState>> = None;
        for (key, whose) in subscriptions {
            let Some(peer) = self.peers.get(&key.peer) else { continue };
            let mut altered = None;
            if event.is_none() {
                match budget.spend(&whose, |left| changes.matching(masks.as_deref(), left)) {
                    Ok(found) if found.is_empty() => return,
                    Ok(found) => altered = Some(found),
                    Err(error) => {
                        self.end_events(&key, &error.to_string());
                        continue;
                    }
                }
            }
            let is_busy = peer.class == PeerClass::Agent && !peer.outbox.is_half_empty();
            if is_busy || !peer.outbox.has_room_for_event() {
                self.end_events(&key, EVENTS_LOST);
                continue;
            }
            if let Some(altered) = altered {
                let state = self.view().read_paths(altered.all());
                event = Some(Arc::new(peer.outbox.encode(&state, Some(altered.fields()))));
            }
            let Some(event) = &event else { continue };
            match budget.send(&whose, event.bytes()) {
                Ok(()) => {
                    if let Err(error) = peer.outbox.put_state(key.id, event) {
                        self.outbox_failed(key.peer, error);
                    }
                }
                Err(error) => self.end_events(&key, &error.to_string()),
            }
        }
    }

    /// Ends a subscription whose events cannot be told, and says why.
    fn end_events(&mut self, key: &RequestKey, reason: &str) {
        self.subscriptions.remove(key);
        self.refuse(key, reason);
    }

    fn update_state(&mut self, requester: Requester, key: RequestKey, update: UpdateState) {
        let again = self.failed_at_start(&update.masks);
        let prepared = requested_change(self.view(), update).and_then(|mut change| {
            again.into_iter().for_each(|(name, workload)| _ = change.workloads.entry(name).or_insert(Some(workload)));
            self.prepare(change, Occasion::Update)
        });
        match (prepared, &self.hooks) {
            (Ok(prepared), Some(hooks)) if prepared.changes_workloads() => {
                hooks.ask(prepared.message());
                self.waiting.begin(requester, key, prepared);
            }
            (prepared, _) => {
                let accepted = prepared.map(|prepared| self.commit(prepared));
                self.update_done(key, accepted);
            }
        }
    }

    /// The workloads among those that `masks` name that the start could not take over: an update tries them again although
    /// they are as they were. A wider mask names none of them, since all of them may be too much for one update.
    fn failed_at_start(&self, masks: &[String]) -> BTreeMap<Name, Arc<Workload>> {
        let failed = |mask: &String| {
            let ["desiredState", "workloads", name, ..] = field_path::parts(mask)[..] else { return None };
            let AddedWorkload { instance, .. } = self.effective.get(name)?;
            let state = self.states.get(instance).filter(|_| instance.agent.is_empty())?;
            let workload = self.desired.workloads.get(name)?;
            (state.phase == Phase::PendingStartingFailed).then(|| (instance.workload.clone(), workload.clone()))
        };
        masks.iter().filter_map(failed).collect()
    }

    /// Answers an update.
    pub(super) fn update_done(&mut self, key: RequestKey, result: Result<(Accepted, Changes), UpdateError>) {
        match result {
            Ok((accepted, unpublished)) => {
                let texts = |names: Vec<InstanceName>| names.iter().map(ToString::to_string).collect();
                let (added, deleted) = (texts(accepted.added), texts(accepted.deleted));
                self.answer(key.peer, key.id, ResponseContent::UpdateStateSuccess { added, deleted });
                self.publish(&unpublished);
            }
            Err(error) => {
                let answer = error.answer();
                if self.may_log_of_requester(&key) {
                    log::warn!("Refusing an update: {}", excerpt(&answer));
                }
                self.refuse(&key, &answer);
            }
        }
    }

    /// Checks and renders what is asked for, and finds out what it means for workloads (spec/server.md section 8.3).
    /// Looks at what changes and what depends on that, and at nothing else.
    pub(super) fn prepare(&self, change: StateChange, occasion: Occasion) -> Result<PreparedUpdate, UpdateError> {
        let deprecated =
            check_api_version(&change.api_version).map_err(|error| UpdateError::Rule(error.to_string()))?;
        if deprecated && may_log("deprecated API versions") {
            log::warn!("The API version '{}' is deprecated; use 'v1'.", change.api_version);
        }
        let configs = change.configs.iter().filter_map(|(key, item)| Some((key, item.as_ref()?)));
        check_config_keys(configs).map_err(|error| UpdateError::Rule(error.to_string()))?;
        if occasion == Occasion::Update {
            check_files(&change)?;
            check_agent_tags(&change.agent_tags)?;
        }
        let mut failed = BTreeMap::new();
        for (name, workload) in &change.workloads {
            if let Err(error) = workload.iter().try_for_each(|workload| check_config_references(workload)) {
                occasion.fail(&mut failed, name, UpdateError::Rule(named(&error, name)))?;
            }
        }
        let mut rendered = BTreeMap::new();
        for (name, result) in self.rendered(&change, occasion)? {
            match result {
                Ok(workload) if !failed.contains_key(&name) => drop(rendered.insert(name, workload)),
                Ok(_) => {}
                Err(reason) => drop(failed.insert(name, reason)),
            }
        }
        let mut rendered = Difference::between(self.before_hooks(), rendered);
        let mut texts_left = LIFECYCLE_TEXTS_MAX;
        for added in &rendered.added {
            let name = &added.instance.workload;
            let checked = check_workload(name, &added.workload);
            let checked = checked.map_err(|error| UpdateError::Invalid(named(&error, name)));
            if let Err(error) = checked.and_then(|()| check_lifecycle(added, &mut texts_left)) {
                occasion.fail(&mut failed, name, error)?;
            }
        }
        rendered.added.retain(|added| !failed.contains_key(&added.instance.workload));
        let workload = |name: &str| change.workload(&self.desired, name).map(|workload| &**workload);
        if let Some(cycle) = find_cycle(workload, rendered.added.iter().map(|added| &added.instance.workload)) {
            return Err(UpdateError::Cycle(cycle));
        }
        let for_agents = rendered.for_agents(&self.effective);
        Ok(PreparedUpdate { change, rendered, for_agents, failed })
    }

    /// Puts what hooks made of an update in the place of what they were asked about.
    pub(super) fn hooked(&self, prepared: PreparedUpdate, outcome: HookOutcome) -> Result<PreparedUpdate, UpdateError> {
        let Some(output) = outcome? else { return Ok(prepared) };
        let for_agents = prepared.for_agents.changed_to(output, &self.effective).map_err(|error| invalid(&error))?;
        let workload = |name: &str| for_agents.workload(&self.effective, name);
        match find_cycle(workload, for_agents.added.iter().map(|added| &added.instance.workload)) {
            Some(cycle) => Err(UpdateError::Cycle(cycle)),
            None => Ok(PreparedUpdate { for_agents, ..prepared }),
        }
    }

    /// Makes a checked state the desired one and tells agents what that means for them (spec/server.md section 8.4).
    ///
    /// When workloads changed, subscribers have been told before the agents; otherwise the changes are answered, to
    /// be told after the requester.
    pub(super) fn commit(&mut self, prepared: PreparedUpdate) -> (Accepted, Changes) {
        let PreparedUpdate { mut change, rendered, for_agents, failed } = prepared;
        let agent_tags = std::mem::take(&mut change.agent_tags);
        let stays = change.keeps(&self.desired);
        let before = change.carry_out(&mut self.desired);
        for (name, old) in &before.workloads {
            let new = self.desired.workloads.get(name);
            self.config_users.replace(name, old.as_deref(), new.map(|workload| &**workload));
        }
        if let Some(store) = self.store.as_ref().filter(|_| !stays) {
            store.store(&self.desired);
        }
        let mut changes = Changes::default();
        if !self.subscriptions.is_empty() {
            changes.desired(&before, &self.desired);
        }
        self.set_agent_tags(agent_tags, &mut changes);
        if let Some(before_hooks) = &mut self.before_hooks {
            rendered.carry_out(before_hooks);
        }
        self.put_failed(failed);
        if for_agents.is_empty() {
            return (Accepted::default(), changes);
        }
        (self.carry_out(for_agents, changes), Changes::default())
    }

    /// The rendered workloads, as they were before hooks changed them.
    fn before_hooks(&self) -> &BTreeMap<Name, AddedWorkload> {
        self.before_hooks.as_ref().unwrap_or(&self.effective)
    }

    /// The workloads that `change` touches as agents will get them: those that it names, and those that use configs that
    /// it names. At a start, those that need more than their share come last.
    pub(super) fn rendered(
        &self,
        change: &StateChange,
        occasion: Occasion,
    ) -> Result<BTreeMap<Name, Rendered>, UpdateError> {
        let users = change.configs.keys().flat_map(|key| self.config_users.of(key));
        let mut names: BTreeSet<&Name> = change.workloads.keys().chain(users).collect();
        let config = |key: &str| change.config(&self.desired, key);
        let mut start = StartBudget::new(names.len());
        let mut rendered = BTreeMap::new();
        self.templates.begin_update();
        for is_last in [occasion == Occasion::Update, true] {
            for name in std::mem::take(&mut names) {
                let workload = change.workload(&self.desired, name);
                let result = workload.map(|workload| match occasion {
                    Occasion::Update => self.templates.render(workload, config),
                    _ => self.templates.render_within(&mut start, is_last, workload, config),
                });
                let result = match result.transpose() {
                    Err(RenderError::TooManySteps { .. }) if !is_last => {
                        names.insert(name);
                        continue;
                    }
                    Err(error) => {
                        let refused = UpdateError::Invalid(named(&error, name));
                        if !occasion.forgives(&error) {
                            return Err(refused);
                        }
                        Err(refused.to_string())
                    }
                    Ok(workload) => Ok(workload),
                };
                rendered.insert(name.clone(), result);
            }
        }
        Ok(rendered)
    }

    /// Workloads of a start that cannot be taken over: they have no agent and never start, and say why. An update that
    /// names one makes a new try, see [`Self::failed_at_start`].
    fn put_failed(&mut self, failed: BTreeMap<Name, String>) {
        for (name, reason) in failed {
            log::error!("Workload '{name}' cannot be started: {reason}");
            let Some(workload) = self.desired.workloads.get(&name) else { continue };
            let workload = Arc::new(Workload { agent: Name::default(), ..Workload::clone(workload) });
            let instance = InstanceName::new(&name, &workload.runtime_config, "");
            let reason: String = reason.chars().take(ADDITIONAL_INFO_MAX / 4).collect();
            self.states.set(&instance, ExecutionState::with_info(Phase::PendingStartingFailed, reason));
            self.dependents.add(&name, &workload);
            let added = AddedWorkload { instance, workload };
            if let Some(before_hooks) = &mut self.before_hooks {
                before_hooks.insert(name.clone(), added.clone());
            }
            self.effective.insert(name, added);
        }
    }

    /// Only the tags of connected agents can be changed (spec/server.md section 8.5).
    fn set_agent_tags(&mut self, agent_tags: BTreeMap<Name, Tags>, changes: &mut Changes) {
        for (name, tags) in agent_tags {
            if let Some(agent) = self.agents.get_mut(&name) {
                let before = agent.attributes.clone();
                agent.attributes.tags = tags;
                changes.agent(&name, Some(&before), Some(&agent.attributes));
            }
        }
    }

    /// Replaces the effective workloads that differ, tells subscribers and sends each connected agent its part.
    fn carry_out(&mut self, difference: Difference, mut changes: Changes) -> Accepted {
        let accepted = Accepted {
            added: difference.added.iter().map(|added| added.instance.clone()).collect(),
            deleted: difference.deleted.clone(),
        };
        let (stopping, dependents) = (&mut self.stopping, &self.dependents);
        let deleted = with_delete_conditions(difference.deleted, &self.effective, dependents, stopping, &self.states);
        let old_states = self.replace_effective(&difference.added, &deleted, &mut changes);
        accepted.deleted.iter().for_each(|instance| self.end_logs_of_workload(instance));
        // One that comes back to an agent follows there what it did, until the older instance has stopped.
        for instance in accepted.deleted.iter().chain(&accepted.added) {
            self.end_denied_subscriptions(instance);
        }
        let (finished, for_agents) = self.split_finished(deleted);
        if !self.subscriptions.is_empty() {
            let removed = finished.iter().map(|(report, state)| (report.instance.clone(), Some(state.clone())));
            changes.states(old_states.into_iter().map(|name| (name, None)).chain(removed).collect(), &self.states);
            self.publish(&changes);
        }
        let finished: Vec<WorkloadState> = finished.into_iter().map(|(report, _)| report).collect();
        self.broadcast_states(&finished, None);
        for (agent, plan) in per_agent(&difference.added, for_agents) {
            if let Some(peer) = self.agents.get(&agent).map(|agent| agent.peer) {
                plan.deleted.iter().for_each(|deleted| self.waiting_deletes.note(deleted));
                self.tell(peer, FromServer::UpdateWorkload(plan));
            }
        }
        // Nobody reports anything of those whose agent is not there, so nothing else says that they need less now.
        let silent = accepted.added.iter().filter(|added| self.agents.get(&added.agent).is_none());
        let silent: Vec<InstanceName> = silent.cloned().collect();
        self.relieve_deletes(silent.iter());
        accepted
    }

    /// Replaces the effective workloads and gives new instances their first state. Answers these instances.
    fn replace_effective(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[DeletedWorkload],
        changes: &mut Changes,
    ) -> Vec<InstanceName> {
        let observed = !self.subscriptions.is_empty();
        let mut before: BTreeMap<Name, Arc<Workload>> = BTreeMap::new();
        for DeletedWorkload { instance, .. } in deleted {
            if let Some(stopped) = self.effective.remove(&instance.workload) {
                self.dependents.remove(&instance.workload, &stopped.workload);
                self.rights.end(&stopped.instance, &self.states);
                // What has no state has stopped; nobody would ever report its end.
                if self.states.get(&stopped.instance).is_some() {
                    self.stopping.note(&stopped);
                }
                before.insert(instance.workload.clone(), stopped.workload);
            }
        }
        let mut new_instances = Vec::new();
        for entry in added {
            let name = &entry.instance.workload;
            let old = before.remove(name);
            if observed {
                changes.workload("effectiveState", name, old.as_ref(), Some(&entry.workload));
            }
            self.effective.insert(name.clone(), entry.clone());
            self.dependents.add(name, &entry.workload);
            self.rights.begin(entry);
            self.strays.remove(&entry.instance);
            if let Some(agent) = self.agents.get_mut(&entry.instance.agent) {
                agent.unconfirmed.remove(&entry.instance); // It is told of it, so it will report it.
            }
            let unscheduled = entry.instance.agent.is_empty();
            let phase = if unscheduled { Phase::NotScheduled } else { Phase::PendingInitial };
            if self.states.set_initial(&entry.instance, ExecutionState::plain(phase)) {
                new_instances.push(entry.instance.clone());
            }
        }
        for (name, old) in before.iter().filter(|_| observed) {
            changes.workload("effectiveState", name, Some(old), None);
        }
        new_instances
    }

    /// Deletes what no agent has ever heard of, and answers it as removed with the state it had, beside what agents
    /// must delete.
    ///
    /// That is what has no agent, or an agent that is away and never reported a state; also what would be too much of an
    /// agent that reports no ends. An instance that continues in another form keeps its entry.
    fn split_finished(
        &mut self,
        deleted: Vec<DeletedWorkload>,
    ) -> (Vec<(WorkloadState, ExecutionState)>, Vec<DeletedWorkload>) {
        let (mut finished, mut for_agents) = (Vec::new(), Vec::new());
        for entry in deleted {
            let instance = &entry.instance;
            let continues = self.effective.get(&instance.workload).is_some_and(|added| added.instance == *instance);
            let unheard_of = instance.agent.is_empty()
                || (self.agents.get(&instance.agent).is_none()
                    && self.states.get(instance).is_some_and(|state| state.phase == Phase::PendingInitial));
            if continues || !unheard_of {
                for_agents.push(entry.clone());
                if continues || self.keeps_former(instance) {
                    continue;
                }
            }
            self.stopping.forget(instance);
            if let Some(state) = self.states.remove(instance) {
                self.rights.forget_gone(instance, &self.states);
                finished.push((WorkloadState::new(entry.instance, ExecutionState::plain(Phase::Removed)), state));
            }
        }
        (finished, for_agents)
    }

    /// Whether the state of an instance that is not wanted any more stays until its agent reports its end.
    fn keeps_former(&mut self, instance: &InstanceName) -> bool {
        let Some(state) = self.states.get(instance) else { return true };
        let keeps = self.strays.keep_former(instance, state.additional_info.len());
        if !keeps && may_log(&instance.agent) {
            log::warn!(
                "Taking '{}' as removed: agent '{}' has not reported the end of very many earlier workloads.",
                instance.short(),
                instance.agent
            );
        }
        keeps
    }
}
