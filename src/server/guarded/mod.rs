//! Guarded updates: an accepted request that changes workloads is staged while the old instances
//! run, carried out as a whole, judged, and rolled back as a whole when it fails. What is known of
//! them, in memory, on disk and for clients.
//!
//! Thread: `server`; part of [`super::ServerLoop`], which owns [`GuardedUpdates`]. Without an open
//! update there is nothing to look at for requests, states and agents.

mod accept;
mod staging;
mod unit;
mod verdict;

use crate::ServerLoop;
use crate::effects::Effects;
use crate::limits::{UPDATES_ENDED, UPDATES_ENDED_BYTES, UPDATES_OPEN};
use crate::plan::Version;
use crate::state_store::{Stored, StoredUpdate, StoredUpdates};
use crate::state_view::entries;
use crate::update::UpdateError;
use ankaios_model::guarded_update::{AGENT_PREFIX, REMEMBERED, UpdatePhase};
use ankaios_model::lifecycle::{self, OnFailure};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::names::Name;
use ankaios_model::node::{Entries, Node};
use ankaios_model::trial::{self, Failure, Trial};
use ankaios_model::workload::Workload;
use ankaios_platform::logging::utc;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Not;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use unit::Unit;

/// What of a stored update is read beside what it waits for and what was before.
const SHOWN: [&str; 8] = [
    "phase",
    "reason",
    "accepted",
    "ended",
    "losses",
    "workloads",
    "configs",
    "replacedBy",
];

/// What is known of an update, whether it is open or has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    #[serde(skip)]
    number: u64,
    /// Whose request it is, as log lines count; empty when an earlier version has stored it.
    #[serde(default)]
    source: String,
    /// A workload has requested it.
    #[serde(
        rename = "ofWorkload",
        default,
        with = "unit::flag",
        skip_serializing_if = "Not::not"
    )]
    is_of_workload: bool,
    phase: UpdatePhase,
    /// Why it ended like that; of an open one, why it will be kept although it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
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
    unit: Unit,
    /// Workloads that it does not touch and that need one which it touches, with what follows when
    /// they fail.
    #[serde(default)]
    dependents: BTreeMap<Name, OnFailure>,
    /// Whether something of it was carried out.
    #[serde(
        rename = "switched",
        default,
        with = "unit::flag",
        skip_serializing_if = "Not::not"
    )]
    was_switched: bool,
    /// Whether an agent was there to start something of it, so that it may be the reason of a loss.
    #[serde(
        rename = "sent",
        default,
        with = "unit::flag",
        skip_serializing_if = "Not::not"
    )]
    was_sent: bool,
    /// Its fingerprint, when the same update shall be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remembered: Option<String>,
    /// What was desired before is gone, for want of room.
    #[serde(
        rename = "lostWayBack",
        default,
        with = "unit::flag",
        skip_serializing_if = "Not::not"
    )]
    has_lost_way_back: bool,
}

impl Record {
    /// What is restarted when it is rolled back.
    fn restarted(&self) -> BTreeSet<Name> {
        if self.was_switched {
            self.unit.restarted()
        } else {
            BTreeSet::new()
        }
    }

    /// What is stored of it, and read by clients as far as it concerns them.
    fn node(&self) -> Node {
        // A record has nothing that JSON could not hold.
        serde_json::to_value(self)
            .and_then(Node::deserialize)
            .unwrap_or_default()
    }
}

/// An open update.
#[derive(Debug)]
struct Open {
    record: Record,
    trial: Trial,
    /// Instances that have failed and were not decided about.
    failures: Vec<Failure>,
    /// When it was accepted or carried out, or this server was started.
    begun: Instant,
}

impl Open {
    fn new(record: Record, begun: Instant) -> Self {
        Self {
            record,
            trial: Trial::default(),
            failures: Vec::new(),
            begun,
        }
    }
}

/// An update that has ended.
#[derive(Debug)]
struct Ended {
    record: Record,
    /// What is stored of it.
    stored: Arc<Node>,
    /// How much that is, in bytes of JSON.
    bytes: usize,
}

impl Ended {
    fn new(record: Record) -> Self {
        let stored = Arc::new(record.node());
        let bytes = serde_json::to_string(&*stored).map_or(0, |text| text.len());
        Self {
            record,
            stored,
            bytes,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record);
        *self = Self::new(std::mem::take(&mut self.record));
    }

    /// Forgets what was desired before, or, if that is forgotten, all that it was about.
    fn shrink(&mut self) {
        let forgets_all = self.record.has_lost_way_back;
        self.change(|record| {
            if forgets_all {
                record.unit = Unit::default();
            }
            record
                .unit
                .workloads
                .values_mut()
                .for_each(|touched| touched.before.desired = None);
            record
                .unit
                .configs
                .values_mut()
                .for_each(|touched| touched.before = None);
            record.has_lost_way_back = true;
        });
    }
}

/// All guarded updates.
#[derive(Debug, Default)]
pub(crate) struct GuardedUpdates {
    /// What follows from the failure of an update whose blocks do not say it.
    pub(crate) on_failure: OnFailure,
    /// The newest number that was given.
    newest: u64,
    open: BTreeMap<u64, Open>,
    /// The newest ones, the last ended last.
    ended: VecDeque<Ended>,
    /// Agents that have to prepare something and are away, and since when.
    away: BTreeMap<Name, Instant>,
    /// Agents that cannot prepare and whose updates were warned of.
    warned: BTreeSet<Name>,
    /// There is something that has to be stored.
    pub(crate) is_unsaved: bool,
    /// Something has happened since the open updates were looked at last.
    is_outdated: bool,
    /// When what is staged is shown next in any case: ages are shown, and agents are not waited for
    /// without end.
    show_at: Option<Instant>,
    /// Until then it is not shown again because of reports; `None` when it is not shown as it is
    /// staged.
    shown_until: Option<Instant>,
}

impl GuardedUpdates {
    /// The open update that is about the workload `name`.
    pub(crate) fn open_update_of(&self, name: &Name) -> Option<u64> {
        self.open
            .iter()
            .find(|(_, open)| open.record.unit.workloads.contains_key(name))
            .map(|(number, _)| *number)
    }

    /// Whether some updates are not to be made once more.
    fn remembers_any(&self) -> bool {
        self.ended
            .iter()
            .any(|ended| ended.record.remembered.is_some())
    }

    /// Whether `unit` is none of those, but for the `forgotten` ones.
    fn check_new(&self, unit: &Unit, forgotten: &BTreeSet<u64>) -> Result<(), UpdateError> {
        let fingerprint = Some(unit.fingerprint());
        let same = |record: &&Record| {
            record.remembered == fingerprint && !forgotten.contains(&record.number)
        };
        self.ended
            .iter()
            .rev()
            .map(|ended| &ended.record)
            .find(same)
            .map_or(Ok(()), |same| {
                let (number, reason) = (same.number, same.reason.as_deref().unwrap_or_default());
                Err(UpdateError::Other(format!(
                    "{REMEMBERED}{number}, which was rolled back: {reason}"
                )))
            })
    }

    /// These updates may be made once more although they were undone.
    fn forget(&mut self, numbers: &BTreeSet<u64>) {
        let is_meant =
            |record: &Record| record.remembered.is_some() && numbers.contains(&record.number);
        for ended in self
            .ended
            .iter_mut()
            .filter(|ended| is_meant(&ended.record))
        {
            ended.change(|record| record.remembered = None);
            self.is_unsaved = true;
        }
    }

    /// What is staged is another than before: it is shown at once.
    pub(crate) fn changed(&mut self) {
        (self.is_outdated, self.shown_until) = (true, None);
    }

    /// Takes an open update away, to be ended or to become a part of another one.
    fn close(&mut self, number: u64) -> Option<Open> {
        self.changed();
        self.open.remove(&number)
    }

    /// An update has ended.
    fn end(&mut self, mut record: Record, phase: UpdatePhase, reason: Option<String>) {
        (record.phase, record.reason) = (phase, reason.or(record.reason.take()));
        record.ended = Some(utc(SystemTime::now()));
        for touched in record.unit.workloads.values_mut() {
            touched.before = Version {
                desired: touched.before.desired.take(),
                ..Version::default()
            };
            (touched.in_force, touched.stage, touched.made) = (None, None, Version::default());
        }
        record.dependents.clear();
        if phase.is_superseded() {
            record.unit = Unit::default();
        }
        self.is_unsaved = true;
        self.keep(record);
    }

    /// Keeps an update that has ended, and forgets what is too much: of whoever has most updates
    /// the oldest one, and of whoever has most bytes the largest.
    fn keep(&mut self, record: Record) {
        // Of those that others have taken over there may be many in a short time, which must not
        // displace the rest; nor must those of workloads displace those of commanders.
        let kind = |record: &Record| (record.phase.is_superseded(), record.is_of_workload);
        let newest = kind(&record);
        self.ended.push_back(Ended::new(record));
        loop {
            let same: Vec<(usize, &Ended)> = self
                .ended
                .iter()
                .enumerate()
                .filter(|(_, ended)| kind(&ended.record) == newest)
                .collect();
            let of_source = |one: &Ended| {
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
                    .filter(|(_, ended)| !ended.record.unit.is_empty());
                let key = |(index, ended): &&(usize, &Ended)| {
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

    fn records(&self) -> impl Iterator<Item = (&Record, Option<&Open>)> {
        let open = self.open.values().map(|open| (&open.record, Some(open)));
        open.chain(self.ended.iter().map(|ended| (&ended.record, None)))
    }

    /// What an update waits for: workloads, and agents that are away.
    fn waits_for(&self, open: &Open, now: Instant) -> Vec<String> {
        if open.record.phase == UpdatePhase::Trial {
            return open.trial.waits_for();
        }
        let (away, there): (Vec<_>, Vec<_>) = open
            .awaited(&self.away, now)
            .partition(|(_, agent)| self.away.contains_key(*agent));
        let agents: BTreeSet<&Name> = away.into_iter().map(|(_, agent)| agent).collect();
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

impl ServerLoop {
    /// What masks select of the updates; there even when nothing is selected, so that a reader
    /// learns that this server keeps some.
    pub(crate) fn read_updates(&self, wanted: &Wanted<'_>) -> Node {
        let records = self
            .guarded
            .records()
            .map(|(record, open)| (record.number.to_string(), (record, open)));
        entries(wanted, &records.collect(), |(record, open)| {
            self.update_node(record, *open)
        })
        .unwrap_or_default()
    }

    fn update_node(&self, record: &Record, open: Option<&Open>) -> Node {
        let mut node = record.node();
        let Node::Map(fields) = &mut node else {
            return node;
        };
        fields.retain(|key, _| SHOWN.contains(&&**key));
        for (part, parts) in [
            ("workloads", &["old", "new", "after"][..]),
            ("configs", &["after"]),
        ] {
            for entry in fields
                .get_mut(part)
                .and_then(Node::as_map_mut)
                .into_iter()
                .flat_map(Entries::values_mut)
            {
                entry
                    .as_map_mut()
                    .into_iter()
                    .for_each(|entry| entry.retain(|key, _| parts.contains(&&**key)));
            }
        }
        if !record.has_lost_way_back {
            let mut before = record.unit.before_node();
            if let Node::Map(entries) = &mut before {
                entries.insert(
                    "apiVersion",
                    Node::text(&*self.updates.workloads().desired.api_version),
                );
            }
            fields.insert("before", before);
        }
        let waits_for = open
            .map(|open| self.guarded.waits_for(open, self.now()))
            .unwrap_or_default();
        fields.insert(
            "waitsFor",
            Node::List(waits_for.into_iter().map(Node::text).collect()),
        );
        fields.insert(
            "keptIn",
            Node::text(if self.store.is_some() {
                "DISK"
            } else {
                "MEMORY"
            }),
        );
        fields.retain(|_, node| !node.is_empty_container());
        node
    }
}

// ------------------------------------------------------------------- on disk

impl ServerLoop {
    /// All that is kept over restarts.
    pub fn stored(&self) -> Stored {
        let guarded = &self.guarded;
        let open = guarded
            .open
            .values()
            .map(|open| (open.record.number, Arc::new(open.record.node())));
        let ended = guarded
            .ended
            .iter()
            .map(|ended| (ended.record.number, ended.stored.clone()));
        let list = open
            .chain(ended)
            .map(|(number, update)| StoredUpdate { number, update })
            .collect();
        let updates = (guarded.newest > 0).then_some(StoredUpdates {
            newest: guarded.newest,
            list,
        });
        Stored {
            desired: self.updates.workloads().desired.clone(),
            updates,
        }
    }

    /// What has to be stored before the first client is served: that this start was counted.
    pub fn take_unsaved(&mut self) -> Option<Stored> {
        std::mem::take(&mut self.guarded.is_unsaved).then(|| self.stored())
    }

    /// Goes on with stored updates, each in its phase, after the desired state was taken over as if
    /// all were carried out.
    // [impl->swdd~server-keeps-guarded-updates~1]
    pub(crate) fn restore_updates(&mut self, StoredUpdates { newest, list }: StoredUpdates) {
        // Numbers that are given later are new in any case.
        let known = list
            .iter()
            .map(|stored| stored.number)
            .max()
            .unwrap_or_default();
        self.guarded.newest = newest.max(known);
        for StoredUpdate { number, update } in list {
            let record = serde_json::to_value(&*update).and_then(Record::deserialize);
            match record.map(|record| Record { number, ..record }) {
                Ok(record) if !record.phase.is_open() => self.guarded.keep(record),
                Ok(record) if self.guarded.open.len() < UPDATES_OPEN => self.restore(record),
                Ok(_) => {
                    log::error!("Forgetting update {number}: more than {UPDATES_OPEN} are open.")
                }
                Err(error) => log::error!(
                    "Forgetting update {number}: what is stored of it cannot be read: {error}"
                ),
            }
        }
        while self.settle_updates() {}
    }

    /// While an update is being staged, agents have to run what was in force before. All of them
    /// are away, and those that prepare are known with their hello.
    fn restore(&mut self, mut record: Record) {
        let (now, number) = (self.now(), record.number);
        let mut in_force = BTreeMap::new();
        for (name, touched) in &mut record.unit.workloads {
            let Some(before) = touched.in_force.clone() else {
                continue;
            };
            touched.made = self.updates.workloads().form(name);
            // Hooks and templates may give another one than before.
            touched.new = unit::instance(&touched.made);
            touched.stage = self.stage_of(touched.made.effective.as_ref());
            if let Some(agent) = touched.stage.as_ref().and_then(|_| touched.added()) {
                self.guarded.away.insert(agent.instance.agent.clone(), now);
            }
            in_force.insert(name.clone(), before);
        }
        let mut effects = Effects::default();
        self.updates.put_in_force(in_force, now, &mut effects);
        self.apply(effects);
        let mut open = Open::new(record, now);
        let Record {
            unit,
            dependents,
            was_switched,
            was_sent,
            ..
        } = &open.record;
        // What this start could not take over has no agent, so nothing is judged of it.
        let switched = unit
            .workloads
            .iter()
            .filter(|(_, touched)| *was_switched && touched.in_force.is_none());
        let switched =
            switched.filter_map(|(name, touched)| self.candidate(name, touched.ran, None));
        let dependents = dependents
            .iter()
            .filter_map(|(name, it)| self.candidate(name, true, Some(*it)));
        for candidate in switched.chain(dependents) {
            open.trial.judge(
                trial::Candidate {
                    state: None,
                    ..candidate
                },
                now,
            );
        }
        if *was_sent {
            open.count_loss("the server", now);
            self.guarded.is_unsaved = true;
        }
        self.guarded.changed();
        self.guarded.open.insert(number, open);
    }
}

#[cfg(debug_assertions)]
pub(crate) mod inspection;
#[cfg(test)]
pub(crate) mod tests;
