//! Guarded updates: an accepted request that changes workloads is staged while the old instances
//! run, switched as a whole, evaluated, and rolled back as a whole when it fails.
//!
//! This file has their records, in memory, on disk and for clients; `accept.rs` opens an update for
//! a request and switches it, `staging.rs` has agents prepare its instances, `outcome.rs` decides
//! how it ends.
//!
//! Thread: `server`; [`Rollouts`] is a plain value owned by [`crate::ServerLoop`], and reads
//! [`Updates`] where a call gets it. Without an open update, requests, states and agents cost
//! nothing here.

pub(crate) mod accept;
mod change_set;
pub(crate) mod outcome;
mod staging;

use crate::limits::{UPDATES_ENDED, UPDATES_ENDED_BYTES, UPDATES_OPEN};
use crate::state_store::{StoredUpdate, StoredUpdates};
use crate::state_view::entries;
use crate::updates::{Revision, UpdateError, Updates};

use ankaios_model::guarded_update::{AGENT_PREFIX, REMEMBERED, UpdateCause, UpdatePhase};
use ankaios_model::health_window::{self, Failure, HealthWindow};
use ankaios_model::lifecycle::{self, OnFailure, UpdateBlock};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::node::{Entries, Node};
use ankaios_model::refusal::Refusal;
use ankaios_model::workload::Workload;
use ankaios_platform::logging::utc;
use change_set::ChangeSet;
use serde::{Deserialize, Serialize};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Not;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The stored fields of an update that clients can read.
const SHOWN: [&str; 9] = [
    "phase",
    "reason",
    "cause",
    "accepted",
    "ended",
    "losses",
    "workloads",
    "configs",
    "replacedBy",
];

/// The record of an update, open or ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpdateRecord {
    #[serde(skip)]
    number: u64,
    /// The source of its log lines: its requester. Empty when an earlier version has stored it.
    #[serde(default)]
    source: String,
    /// Whether a workload has requested it.
    #[serde(
        rename = "ofWorkload",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    is_of_workload: bool,
    phase: UpdatePhase,
    /// The reason of its outcome; of an open one, why it will be kept although it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The reason of its rollback, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<UpdateCause>,
    /// When it was accepted, in the form of RFC 3339.
    #[serde(default)]
    accepted: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    /// Starts of the server and losses of agents since it was switched.
    #[serde(default)]
    losses: u32,
    /// The number of the update that it has become a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced_by: Option<String>,
    #[serde(flatten)]
    change_set: ChangeSet,
    /// Workloads that need one of its workloads and are not a part of it, with the consequence of
    /// their failure.
    #[serde(default)]
    dependents: BTreeMap<Name, OnFailure>,
    /// Whether a part of it was switched.
    #[serde(
        rename = "switched",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    was_switched: bool,
    /// Whether an agent was sent a part of it, so that it may be the reason of a loss.
    #[serde(
        rename = "sent",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    was_sent: bool,
    /// Its fingerprint if the same update must be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remembered: Option<String>,
    /// Whether the earlier desired state was dropped, for lack of space.
    #[serde(
        rename = "lostWayBack",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    has_lost_way_back: bool,
}

impl UpdateRecord {
    /// Returns the workloads that its rollback restarts.
    fn restarted(&self) -> BTreeSet<Name> {
        if self.was_switched {
            self.change_set.restarted()
        } else {
            BTreeSet::new()
        }
    }

    /// Returns its stored form; clients read the parts that concern them.
    fn node(&self) -> Node {
        // A record has nothing that JSON could not hold.
        serde_json::to_value(self)
            .and_then(Node::deserialize)
            .unwrap_or_default()
    }

    fn kind(&self) -> EndedKind {
        EndedKind {
            is_superseded: self.phase.is_superseded(),
            is_of_workload: self.is_of_workload,
        }
    }
}

/// Ended updates that share bounds. There may be many superseded ones in a short time, which must
/// not displace the rest; nor must those of workloads displace those of commanders.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EndedKind {
    is_superseded: bool,
    is_of_workload: bool,
}

/// All ended updates of one kind that have the same source.
#[derive(Default)]
struct EndedOfSource {
    count: usize,
    /// Bytes of their stored forms.
    bytes: usize,
}

/// An open update.
#[derive(Debug)]
struct OpenUpdate {
    record: UpdateRecord,
    window: HealthWindow,
    /// Failures of instances that were not evaluated yet.
    failures: Vec<Failure>,
    /// When it was accepted or switched, or this server was started.
    begun: Instant,
}

impl OpenUpdate {
    fn new(record: UpdateRecord, begun: Instant) -> Self {
        Self {
            record,
            window: HealthWindow::default(),
            failures: Vec::new(),
            begun,
        }
    }
}

/// An update that has ended.
#[derive(Debug)]
struct EndedUpdate {
    record: UpdateRecord,
    /// Its stored form.
    stored: Arc<Node>,
    /// Size of the stored form, in bytes of JSON.
    bytes: usize,
}

impl EndedUpdate {
    fn new(record: UpdateRecord) -> Self {
        let stored = Arc::new(record.node());
        let bytes = serde_json::to_string(&*stored).map_or(0, |text| text.len());
        Self {
            record,
            stored,
            bytes,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut UpdateRecord)) {
        change(&mut self.record);
        *self = Self::new(std::mem::take(&mut self.record));
    }

    /// Forgets the earlier desired state; the second time, the whole change set.
    fn shrink(&mut self) {
        self.change(|record| {
            if record.has_lost_way_back {
                record.change_set = ChangeSet::default();
            }
            for affected in record.change_set.workloads.values_mut() {
                affected.before.desired = None;
            }
            for affected in record.change_set.configs.values_mut() {
                affected.before = None;
            }
            record.has_lost_way_back = true;
        });
    }
}

/// A connected agent, and the last messages about updates that it was sent.
#[derive(Debug)]
struct AgentStaging {
    /// Whether it can prepare instances.
    prepares: bool,
    /// Whether the last message said that an update of its workloads is open; `None` of an agent
    /// that removes no images, which receives no such message.
    sent_open: Option<bool>,
    /// Instances that it was sent to prepare.
    to_prepare: Vec<AddedWorkload>,
}

/// All guarded updates.
#[derive(Debug, Default)]
pub(crate) struct Rollouts {
    /// The `onFailure` of updates whose blocks have none.
    on_failure: OnFailure,
    /// The number of the newest update.
    newest: u64,
    open: BTreeMap<u64, OpenUpdate>,
    /// The newest ended updates, in the order of their ends.
    ended: VecDeque<EndedUpdate>,
    /// The number of updates that have ended since the start of the server, by their last phase.
    ended_by_phase: BTreeMap<&'static str, u64>,
    /// Connected agents.
    agents: BTreeMap<Name, AgentStaging>,
    /// Disconnected agents that have to prepare instances, with the time of the disconnection.
    away: BTreeMap<Name, Instant>,
    /// Agents that cannot prepare instances and about which a warning was logged.
    warned: BTreeSet<Name>,
    /// Whether a change has to be stored.
    is_unsaved: bool,
    /// Whether an event since the last call of [`Self::take_due`] may concern an open update.
    is_outdated: bool,
    /// When staged instances are shown next in any case: their shown ages grow, and a disconnected
    /// agent is awaited for a limited time.
    show_at: Option<Instant>,
    /// Reports do not cause staged instances to be shown before this time. `None`: show the next
    /// change at once.
    shown_until: Option<Instant>,
}

impl Rollouts {
    /// Sets the `onFailure` of updates whose blocks have none.
    pub(crate) fn set_on_failure(&mut self, on_failure: OnFailure) {
        self.on_failure = on_failure;
    }

    /// The number of open updates.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// The number of updates that have ended in a phase since the start of the server.
    pub(crate) fn ended_count(&self, phase: UpdatePhase) -> u64 {
        let count = self.ended_by_phase.get(phase.as_str());
        count.copied().unwrap_or_default()
    }

    /// Returns whether a change has to be stored.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Notes that all changes were given to the store.
    pub(crate) fn note_saved(&mut self) {
        self.is_unsaved = false;
    }

    /// Returns the number of the open update that contains the workload `name`.
    pub(crate) fn open_update_of(&self, name: &Name) -> Option<u64> {
        for (number, open) in &self.open {
            if open.record.change_set.workloads.contains_key(name) {
                return Some(*number);
            }
        }
        None
    }

    /// Returns whether requests are compared with updates that were rolled back.
    fn remembers_any(&self) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|ended| ended.record.remembered.is_some())
    }

    /// Checks that no remembered update had the same change set. The `forgotten` ones are not
    /// compared.
    fn check_new(
        &self,
        change_set: &ChangeSet,
        forgotten: &BTreeSet<u64>,
    ) -> Result<(), UpdateError> {
        let fingerprint = Some(change_set.fingerprint());
        for ended in self.ended.iter().rev() {
            let record = &ended.record;
            if record.remembered != fingerprint || forgotten.contains(&record.number) {
                continue;
            }
            let number = record.number;
            let reason = record.reason.as_deref().unwrap_or_default();
            return Err(UpdateError::Known {
                text: format!("{REMEMBERED}{number}, which was rolled back: {reason}"),
                refusal: Refusal::RolledBackBefore,
            });
        }
        Ok(())
    }

    /// Allows these updates to be made once more although they were rolled back.
    fn forget(&mut self, numbers: &BTreeSet<u64>) {
        for ended in &mut self.ended {
            let record = &ended.record;
            if record.remembered.is_none() || !numbers.contains(&record.number) {
                continue;
            }
            ended.change(|record| record.remembered = None);
            self.is_unsaved = true;
        }
    }

    /// Notes that staged instances have changed, so that they are shown at once.
    pub(crate) fn note_change(&mut self) {
        self.is_outdated = true;
        self.shown_until = None;
    }

    /// Removes an open update, which ends or becomes a part of another one.
    fn close(&mut self, number: u64) -> Option<OpenUpdate> {
        self.note_change();
        self.open.remove(&number)
    }

    /// Ends an update that was closed. Keeps only the desired state from before it, for a later
    /// rollback by a request.
    fn end(&mut self, mut record: UpdateRecord, phase: UpdatePhase, reason: Option<String>) {
        record.phase = phase;
        *self.ended_by_phase.entry(phase.as_str()).or_default() += 1;
        if reason.is_some() {
            record.reason = reason;
        }
        record.ended = Some(utc(SystemTime::now()));
        record.dependents.clear();
        for affected in record.change_set.workloads.values_mut() {
            affected.before = Revision {
                desired: affected.before.desired.take(),
                ..Revision::default()
            };
            affected.active = None;
            affected.stage = None;
            affected.made = Revision::default();
        }
        if phase.is_superseded() {
            record.change_set = ChangeSet::default(); // A later update has it, or nothing is left.
        }
        self.is_unsaved = true;
        self.keep(record);
    }

    /// Keeps an ended update. Forgets others of its kind, or parts of them, above the bounds.
    fn keep(&mut self, record: UpdateRecord) {
        let kind = record.kind();
        self.ended.push_back(EndedUpdate::new(record));
        while self.ended_of(kind).count() > UPDATES_ENDED {
            self.forget_one(kind);
        }
        while self.bytes_of(kind) > UPDATES_ENDED_BYTES {
            let is_smaller = self.shrink_one(kind);
            if !is_smaller {
                return; // All of them have been shrunk.
            }
        }
    }

    /// The ended updates of one kind, each with its index.
    fn ended_of(&self, kind: EndedKind) -> impl Iterator<Item = (usize, &EndedUpdate)> {
        let ended = self.ended.iter().enumerate();
        ended.filter(move |(_, ended)| ended.record.kind() == kind)
    }

    fn bytes_of(&self, kind: EndedKind) -> usize {
        self.ended_of(kind).map(|(_, ended)| ended.bytes).sum()
    }

    /// The ended updates of one kind by their source.
    fn ended_by_source(&self, kind: EndedKind) -> BTreeMap<&str, EndedOfSource> {
        let mut sources: BTreeMap<&str, EndedOfSource> = BTreeMap::new();
        for (_, ended) in self.ended_of(kind) {
            let of_source = sources.entry(&ended.record.source).or_default();
            of_source.count += 1;
            of_source.bytes += ended.bytes;
        }
        sources
    }

    /// Removes the oldest update of the source that has most updates of this kind.
    fn forget_one(&mut self, kind: EndedKind) {
        let sources = self.ended_by_source(kind);
        let mut most = 0;
        let mut chosen = None;
        for (index, ended) in self.ended_of(kind) {
            let count = sources[ended.record.source.as_str()].count;
            if count > most {
                most = count;
                chosen = Some(index);
            }
        }
        if let Some(index) = chosen {
            self.ended.remove(index);
        }
    }

    /// Shrinks the largest update of the source that has most bytes of this kind; of several equal
    /// ones, the oldest. Returns whether there was one with a change set.
    fn shrink_one(&mut self, kind: EndedKind) -> bool {
        let sources = self.ended_by_source(kind);
        let mut largest = (0, 0);
        let mut chosen = None;
        for (index, ended) in self.ended_of(kind) {
            if ended.record.change_set.is_empty() {
                continue; // It has been shrunk already.
            }
            let of_source = sources[ended.record.source.as_str()].bytes;
            let size = (of_source, ended.bytes);
            if size > largest {
                largest = size;
                chosen = Some(index);
            }
        }
        let Some(index) = chosen else { return false };
        self.ended[index].shrink();
        true
    }

    /// All updates: the open ones, then the ended ones.
    fn records(&self) -> impl Iterator<Item = (&UpdateRecord, Option<&OpenUpdate>)> {
        let open = self.open.values().map(|open| (&open.record, Some(open)));
        open.chain(self.ended.iter().map(|ended| (&ended.record, None)))
    }

    /// Returns the workloads and the disconnected agents that an open update waits for.
    fn waits_for(&self, open: &OpenUpdate, now: Instant) -> Vec<String> {
        if open.record.phase == UpdatePhase::Trial {
            return open.window.waits_for();
        }
        let mut all = Vec::new();
        let mut away = BTreeSet::new();
        for instance in open.awaited(&self.away, now) {
            if self.away.contains_key(&instance.agent) {
                away.insert(&instance.agent);
            } else {
                all.push(instance.workload.to_string());
            }
        }
        for agent in away {
            all.push(format!("{AGENT_PREFIX}{agent}"));
        }
        all
    }
}

/// The block `update` of a workload, if it has one.
fn block_of(workload: &Workload) -> Option<UpdateBlock> {
    let config = &workload.runtime_config;
    // Most configurations do not name it and need not be read. One with a backslash may name it by
    // an escape sequence.
    if !config.contains("update") && !config.contains('\\') {
        return None;
    }
    // A block that cannot be read counts as none. The state of the instance has its mistake.
    lifecycle::of_config(&workload.runtime, config)
        .ok()??
        .update
}

// ------------------------------------------------------------------- reading

/// Facts of other parts that clients read with each update.
#[derive(Clone, Copy)]
pub(crate) struct ReadContext<'c> {
    /// The `apiVersion` of the desired state.
    pub(crate) api_version: &'c str,
    /// Whether updates are stored on a disk.
    pub(crate) is_stored: bool,
    pub(crate) now: Instant,
}

impl Rollouts {
    /// Returns the updates that masks select. If they select none, the node is empty: readers
    /// recognise a server with guarded updates by it.
    pub(crate) fn read(&self, wanted: &Wanted<'_>, context: ReadContext<'_>) -> Node {
        let mut updates = BTreeMap::new();
        for (record, open) in self.records() {
            updates.insert(record.number.to_string(), (record, open));
        }
        let selected = entries(wanted, &updates, |(record, open)| {
            self.update_node(record, *open, context)
        });
        selected.unwrap_or_default()
    }

    /// The node of one update, with the fields that clients can read.
    fn update_node(
        &self,
        record: &UpdateRecord,
        open: Option<&OpenUpdate>,
        context: ReadContext<'_>,
    ) -> Node {
        let mut node = record.node();
        let Node::Map(fields) = &mut node else {
            return node;
        };
        fields.retain(|key, _| SHOWN.contains(&&**key));
        retain_in_entries(fields, "workloads", &["old", "new", "after"]);
        retain_in_entries(fields, "configs", &["after"]);
        if !record.has_lost_way_back {
            let mut before = record.change_set.before_node();
            if let Node::Map(entries) = &mut before {
                entries.insert("apiVersion", Node::text(context.api_version));
            }
            fields.insert("before", before);
        }
        let waits_for = match open {
            Some(open) => self.waits_for(open, context.now),
            None => Vec::new(),
        };
        let waits_for = waits_for.into_iter().map(Node::text).collect();
        fields.insert("waitsFor", Node::List(waits_for));
        let kept_in = if context.is_stored { "DISK" } else { "MEMORY" };
        fields.insert("keptIn", Node::text(kept_in));
        fields.retain(|_, node| !node.is_empty_container());
        node
    }
}

/// Keeps only these fields in each entry of the map `part`. The conversion to the wire would leave
/// out all other fields as well, but only after masks have selected and memory was counted.
fn retain_in_entries(fields: &mut Entries, part: &str, kept: &[&str]) {
    let Some(Node::Map(entries)) = fields.get_mut(part) else {
        return;
    };
    for entry in entries.values_mut() {
        if let Node::Map(entry) = entry {
            entry.retain(|key, _| kept.contains(&&**key));
        }
    }
}

// ------------------------------------------------------------------- on disk

impl Rollouts {
    /// Returns the stored form of all updates; `None` when there never was one.
    pub(crate) fn stored(&self) -> Option<StoredUpdates> {
        if self.newest == 0 {
            return None;
        }
        let mut list = Vec::new();
        for open in self.open.values() {
            list.push(StoredUpdate {
                number: open.record.number,
                update: Arc::new(open.record.node()),
            });
        }
        for ended in &self.ended {
            list.push(StoredUpdate {
                number: ended.record.number,
                update: ended.stored.clone(),
            });
        }
        Some(StoredUpdates {
            newest: self.newest,
            list,
        })
    }

    /// Takes over stored updates that have ended. Returns the open ones, for [`Self::restage`] and
    /// [`Self::reopen`].
    pub(crate) fn restore(
        &mut self,
        StoredUpdates { newest, list }: StoredUpdates,
    ) -> Vec<UpdateRecord> {
        self.newest = newest;
        let mut open = Vec::new();
        for StoredUpdate { number, update } in list {
            // No later update may have the same number.
            self.newest = self.newest.max(number);
            let record = serde_json::to_value(&*update).and_then(UpdateRecord::deserialize);
            let record = match record {
                Ok(record) => UpdateRecord { number, ..record },
                Err(error) => {
                    log::error!(
                        "Forgetting update {number}: its stored record cannot be read: {error}"
                    );
                    continue;
                }
            };
            if !record.phase.is_open() {
                self.keep(record);
            } else if open.len() < UPDATES_OPEN {
                open.push(record);
            } else {
                log::error!("Forgetting update {number}: more than {UPDATES_OPEN} are open.");
            }
        }
        open
    }

    /// Begins the staging of a stored update again. No agent is connected yet, so the update waits
    /// for the agents of all its instances. Returns the revisions from before the update, which are
    /// active meanwhile.
    pub(crate) fn restage(
        &mut self,
        record: &mut UpdateRecord,
        updates: &Updates,
        now: Instant,
    ) -> BTreeMap<Name, Revision> {
        let mut active = BTreeMap::new();
        for (name, affected) in &mut record.change_set.workloads {
            let Some(before) = affected.active.clone() else {
                continue;
            };
            affected.made = updates.workloads().revision(name);
            // Hooks and templates may result in another instance than before.
            affected.new = change_set::instance(&affected.made);
            affected.stage = self.stage_of(affected.made.effective.as_ref(), updates);
            if affected.stage.is_some()
                && let Some(added) = affected.added()
            {
                self.away.insert(added.instance.agent.clone(), now);
            }
            active.insert(name.clone(), before);
        }
        active
    }

    /// Opens a stored update again, once the revisions that it needs are active.
    pub(crate) fn reopen(&mut self, record: UpdateRecord, updates: &Updates, now: Instant) {
        // First, the members of its health window. A workload that this start has refused has no
        // agent, so it is none of them.
        let mut members = Vec::new();
        for (name, affected) in &record.change_set.workloads {
            if record.was_switched && affected.active.is_none() {
                members.extend(self.member(name, affected.ran, None, updates));
            }
        }
        for (name, on_failure) in &record.dependents {
            members.extend(self.member(name, true, Some(*on_failure), updates));
        }
        // Then the window. No agent has reported a state to this server yet.
        let number = record.number;
        let mut open = OpenUpdate::new(record, now);
        for mut member in members {
            member.state = None;
            open.window.add(member, now);
        }
        // Finally, the update may be the reason why the last server has ended.
        if open.record.was_sent {
            open.count_loss("the server", now);
            self.is_unsaved = true;
        }
        self.note_change();
        self.open.insert(number, open);
    }
}

#[cfg(debug_assertions)]
pub(crate) mod inspection;
#[cfg(test)]
pub(crate) mod tests;
