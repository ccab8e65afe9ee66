//! Guarded updates: an accepted request that changes workloads is staged while the old instances
//! run, switched as a whole, evaluated, and rolled back as a whole when it fails. What is known of
//! them, in memory, on disk and for clients.
//!
//! Thread: `server`; [`Rollouts`] is a plain value owned by [`crate::ServerLoop`], and reads
//! [`Updates`] where a call gets it. Without an open update there is nothing to look at for
//! requests, states and agents.

pub(crate) mod accept;
mod change_set;
pub(crate) mod outcome;
mod staging;

use crate::limits::{UPDATES_ENDED, UPDATES_ENDED_BYTES, UPDATES_OPEN};
use crate::state_store::{StoredUpdate, StoredUpdates};
use crate::state_view::entries;
use crate::updates::{Revision, UpdateError, Updates};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::guarded_update::{AGENT_PREFIX, REMEMBERED, UpdateCause, UpdatePhase};
use ankaios_model::health_window::{self, Failure, HealthWindow};
use ankaios_model::lifecycle::{self, OnFailure};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::node::{Entries, Node};
use ankaios_model::refusal::Refusal;
use ankaios_model::workload::Workload;
use ankaios_platform::logging::utc;
use change_set::ChangeSet;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Not;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// What of a stored update is read beside what it waits for and what was before.
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
    /// Whose request it is, as log lines count; empty when an earlier version has stored it.
    #[serde(default)]
    source: String,
    /// A workload has requested it.
    #[serde(
        rename = "ofWorkload",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    is_of_workload: bool,
    phase: UpdatePhase,
    /// Why it ended like that; of an open one, why it will be kept although it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When it was rolled back, the reason for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<UpdateCause>,
    /// RFC 3339.
    #[serde(default)]
    accepted: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    /// Starts of the server and losses of agents.
    #[serde(default)]
    losses: u32,
    /// The number of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced_by: Option<String>,
    #[serde(flatten)]
    change_set: ChangeSet,
    /// Workloads that it does not touch and that need one which it touches, with what follows when
    /// they fail.
    #[serde(default)]
    dependents: BTreeMap<Name, OnFailure>,
    /// Whether something of it was carried out.
    #[serde(
        rename = "switched",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    was_switched: bool,
    /// Whether an agent was there to start something of it, so that it may be the reason of a loss.
    #[serde(
        rename = "sent",
        default,
        with = "change_set::flag",
        skip_serializing_if = "Not::not"
    )]
    was_sent: bool,
    /// Its fingerprint, when the same update shall be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remembered: Option<String>,
    /// The earlier desired state was dropped, for lack of space.
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
}

/// An open update.
#[derive(Debug)]
struct OpenUpdate {
    record: UpdateRecord,
    window: HealthWindow,
    /// Instances that have failed and were not decided about.
    failures: Vec<Failure>,
    /// When it was accepted or carried out, or this server was started.
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
    /// How much that is, in bytes of JSON.
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

    /// Forgets what was desired before, or, if that is forgotten, all that it was about.
    fn shrink(&mut self) {
        let forgets_all = self.record.has_lost_way_back;
        self.change(|record| {
            if forgets_all {
                record.change_set = ChangeSet::default();
            }
            record
                .change_set
                .workloads
                .values_mut()
                .for_each(|affected| affected.before.desired = None);
            record
                .change_set
                .configs
                .values_mut()
                .for_each(|affected| affected.before = None);
            record.has_lost_way_back = true;
        });
    }
}

/// A connected agent.
#[derive(Debug)]
struct AgentStaging {
    /// Whether it can prepare instances.
    prepares: bool,
    /// Whether it was sent that an update of it is open; `None` of one that removes no images.
    sent_open: Option<bool>,
    /// Workloads that it was sent to prepare.
    to_prepare: Vec<AddedWorkload>,
}

/// All guarded updates.
#[derive(Debug, Default)]
pub(crate) struct Rollouts {
    /// What follows from the failure of an update whose blocks do not say it.
    on_failure: OnFailure,
    /// The newest number that was given.
    newest: u64,
    open: BTreeMap<u64, OpenUpdate>,
    /// The newest ones, the last ended last.
    ended: VecDeque<EndedUpdate>,
    /// Connected agents.
    agents: BTreeMap<Name, AgentStaging>,
    /// Agents that have to prepare something and are away, and since when.
    away: BTreeMap<Name, Instant>,
    /// Agents that cannot prepare and whose updates were warned of.
    warned: BTreeSet<Name>,
    /// There is something that has to be stored.
    is_unsaved: bool,
    /// Something has happened since the open updates were looked at last.
    is_outdated: bool,
    /// When what is staged is shown next in any case: ages are shown, and agents are not waited for
    /// without end.
    show_at: Option<Instant>,
    /// Until then it is not shown again because of reports; `None` when it is not shown as it is
    /// staged.
    shown_until: Option<Instant>,
}

impl Rollouts {
    /// Sets what follows from the failure of an update whose blocks do not say it.
    pub(crate) fn set_on_failure(&mut self, on_failure: OnFailure) {
        self.on_failure = on_failure;
    }

    /// Whether there is something that has to be stored.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Everything is given to the disk.
    pub(crate) fn saved(&mut self) {
        self.is_unsaved = false;
    }

    /// The open update that is about the workload `name`.
    pub(crate) fn open_update_of(&self, name: &Name) -> Option<u64> {
        self.open
            .iter()
            .find(|(_, open)| open.record.change_set.workloads.contains_key(name))
            .map(|(number, _)| *number)
    }

    /// Whether some updates are not to be made once more.
    fn remembers_any(&self) -> bool {
        self.ended
            .iter()
            .any(|ended| ended.record.remembered.is_some())
    }

    /// Whether `change_set` is none of those, but for the `forgotten` ones.
    fn check_new(
        &self,
        change_set: &ChangeSet,
        forgotten: &BTreeSet<u64>,
    ) -> Result<(), UpdateError> {
        let fingerprint = Some(change_set.fingerprint());
        let same = |record: &&UpdateRecord| {
            record.remembered == fingerprint && !forgotten.contains(&record.number)
        };
        self.ended
            .iter()
            .rev()
            .map(|ended| &ended.record)
            .find(same)
            .map_or(Ok(()), |same| {
                let (number, reason) = (same.number, same.reason.as_deref().unwrap_or_default());
                Err(UpdateError::Known {
                    text: format!("{REMEMBERED}{number}, which was rolled back: {reason}"),
                    refusal: Refusal::RolledBackBefore,
                })
            })
    }

    /// These updates may be made once more although they were undone.
    fn forget(&mut self, numbers: &BTreeSet<u64>) {
        let is_meant =
            |record: &UpdateRecord| record.remembered.is_some() && numbers.contains(&record.number);
        for ended in self
            .ended
            .iter_mut()
            .filter(|ended| is_meant(&ended.record))
        {
            ended.change(|record| record.remembered = None);
            self.is_unsaved = true;
        }
    }

    /// Shows the staged workloads at once, since they have changed.
    pub(crate) fn changed(&mut self) {
        (self.is_outdated, self.shown_until) = (true, None);
    }

    /// Takes an open update away, to be ended or to become a part of another one.
    fn close(&mut self, number: u64) -> Option<OpenUpdate> {
        self.changed();
        self.open.remove(&number)
    }

    /// An update has ended.
    fn end(&mut self, mut record: UpdateRecord, phase: UpdatePhase, reason: Option<String>) {
        (record.phase, record.reason) = (phase, reason.or(record.reason.take()));
        record.ended = Some(utc(SystemTime::now()));
        for affected in record.change_set.workloads.values_mut() {
            affected.before = Revision {
                desired: affected.before.desired.take(),
                ..Revision::default()
            };
            (affected.active, affected.stage, affected.made) = (None, None, Revision::default());
        }
        record.dependents.clear();
        if phase.is_superseded() {
            record.change_set = ChangeSet::default();
        }
        self.is_unsaved = true;
        self.keep(record);
    }

    /// Keeps an update that has ended, and forgets what is too much: of whoever has most updates
    /// the oldest one, and of whoever has most bytes the largest.
    fn keep(&mut self, record: UpdateRecord) {
        // Of those that others have taken over there may be many in a short time, which must not
        // displace the rest; nor must those of workloads displace those of commanders.
        let kind = |record: &UpdateRecord| (record.phase.is_superseded(), record.is_of_workload);
        let newest = kind(&record);
        self.ended.push_back(EndedUpdate::new(record));
        loop {
            let same: Vec<(usize, &EndedUpdate)> = self
                .ended
                .iter()
                .enumerate()
                .filter(|(_, ended)| kind(&ended.record) == newest)
                .collect();
            let of_source = |one: &EndedUpdate| {
                let of_source = same
                    .iter()
                    .filter(|(_, ended)| ended.record.source == one.record.source);
                of_source.fold((0, 0), |(count, bytes), (_, ended)| {
                    (count + 1, bytes + ended.bytes)
                })
            };
            if same.len() > UPDATES_ENDED {
                let most = same
                    .iter()
                    .max_by_key(|(index, ended)| (of_source(ended).0, Reverse(*index)));
                most.map(|(index, _)| *index)
                    .and_then(|index| self.ended.remove(index));
            } else if same.iter().map(|(_, ended)| ended.bytes).sum::<usize>() > UPDATES_ENDED_BYTES
            {
                let large = same
                    .iter()
                    .filter(|(_, ended)| !ended.record.change_set.is_empty());
                let key = |(index, ended): &&(usize, &EndedUpdate)| {
                    (of_source(ended).1, ended.bytes, Reverse(*index))
                };
                let Some((index, _)) = large.max_by_key(key) else {
                    return;
                };
                let index = *index;
                self.ended[index].shrink();
            } else {
                return;
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = (&UpdateRecord, Option<&OpenUpdate>)> {
        let open = self.open.values().map(|open| (&open.record, Some(open)));
        open.chain(self.ended.iter().map(|ended| (&ended.record, None)))
    }

    /// What an update waits for: workloads, and agents that are away.
    fn waits_for(&self, open: &OpenUpdate, now: Instant) -> Vec<String> {
        if open.record.phase == UpdatePhase::Trial {
            return open.window.waits_for();
        }
        let (away, there): (Vec<_>, Vec<_>) = open
            .awaited(&self.away, now)
            .partition(|(_, agent)| self.away.contains_key(*agent));
        let agents: BTreeSet<&Name> = away.into_iter().map(|(_, agent)| agent).collect_entries();
        let agents = agents
            .into_iter()
            .map(|agent| format!("{AGENT_PREFIX}{agent}"));
        there
            .into_iter()
            .map(|(name, _)| name.to_string())
            .chain(agents)
            .collect()
    }
}

/// The block `update` of a workload, if it has one.
fn block_of(workload: &Workload) -> Option<lifecycle::Update> {
    // Most texts name no update and need not be read; one with a backslash may name it in another
    // way.
    let is_possible =
        workload.runtime_config.contains("update") || workload.runtime_config.contains('\\');
    let block =
        is_possible.then(|| lifecycle::of_config(&workload.runtime, &workload.runtime_config));
    block?.ok()??.update
}

// ------------------------------------------------------------------- reading

/// The state that clients read beside the updates themselves.
#[derive(Clone, Copy)]
pub(crate) struct ReadContext<'c> {
    /// Revision of the desired state.
    pub(crate) api_version: &'c str,
    /// Whether updates are stored on a disk.
    pub(crate) is_stored: bool,
    pub(crate) now: Instant,
}

impl Rollouts {
    /// What masks select of the updates; there even when nothing is selected, so that a reader
    /// learns that this server keeps some.
    pub(crate) fn read(&self, wanted: &Wanted<'_>, context: ReadContext<'_>) -> Node {
        let records = self
            .records()
            .map(|(record, open)| (record.number.to_string(), (record, open)));
        entries(wanted, &records.collect_entries(), |(record, open)| {
            self.update_node(record, *open, context)
        })
        .unwrap_or_default()
    }

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

/// Keeps only these fields in each entry of the map `part`.
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
    /// All that is kept over restarts; `None` when there never was an update.
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

    /// Takes over stored updates that have ended. Returns those that are open: each is to be given
    /// to [`Self::restage`] and [`Self::reopen`].
    pub(crate) fn restore(
        &mut self,
        StoredUpdates { newest, list }: StoredUpdates,
    ) -> Vec<UpdateRecord> {
        self.newest = newest;
        let mut open = Vec::new();
        for StoredUpdate { number, update } in list {
            // Numbers that are given later are new in any case.
            self.newest = self.newest.max(number);
            let record = serde_json::to_value(&*update).and_then(UpdateRecord::deserialize);
            let record = match record {
                Ok(record) => UpdateRecord { number, ..record },
                Err(error) => {
                    log::error!(
                        "Forgetting update {number}: what is stored of it cannot be read: {error}"
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

    /// Begins the staging of a stored update again: all agents are away, and those that prepare are
    /// known with their hello. Returns what is active meanwhile: what was before.
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
            // Hooks and templates may give another one than before.
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

    /// Opens a stored update, when the workloads are active as it needs it.
    pub(crate) fn reopen(&mut self, record: UpdateRecord, updates: &Updates, now: Instant) {
        let mut members = Vec::new();
        // What this start could not take over has no agent, so nothing of it is evaluated.
        for (name, affected) in &record.change_set.workloads {
            if record.was_switched && affected.active.is_none() {
                members.extend(self.member(name, affected.ran, None, updates));
            }
        }
        for (name, on_failure) in &record.dependents {
            members.extend(self.member(name, true, Some(*on_failure), updates));
        }
        let (number, was_sent) = (record.number, record.was_sent);
        let mut open = OpenUpdate::new(record, now);
        for mut member in members {
            member.state = None;
            open.window.add(member, now);
        }
        if was_sent {
            open.count_loss("the server", now);
            self.is_unsaved = true;
        }
        self.changed();
        self.open.insert(number, open);
    }
}

#[cfg(debug_assertions)]
pub(crate) mod inspection;
#[cfg(test)]
pub(crate) mod tests;
