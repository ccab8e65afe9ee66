//! Guarded updates: an accepted request that changes workloads is staged while the old instances run, carried out as a
//! whole, judged, and put back as a whole when it fails.
//!
//! Thread: `server`; part of [`super::ServerLoop`], which owns [`GuardedUpdates`]. Nothing is done for requests, states
//! and agents while no update is open: each entry from outside begins with that question.

mod accept;
mod messages;
mod shown;
mod staging;
mod stored;
mod unit;
mod verdict;
mod view;

use crate::limits::{UPDATES_ENDED, UPDATES_ENDED_BYTES};
use crate::model::guarded_update::UpdatePhase;
use crate::model::lifecycle::{self, OnFailure};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::trial::{self, Failure, Trial};
use crate::model::workload::Workload;
use crate::platform::logging::utc;
use crate::server::update::UpdateError;
use serde::{Deserialize, Serialize};
use staging::Staging;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Not;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use unit::Unit;

/// What is known of an update, whether it is open or has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    #[serde(skip)]
    number: u64,
    /// Whose request it is, as log lines count; empty when an earlier version has stored it.
    #[serde(default)]
    source: String,
    /// A workload has requested it.
    #[serde(rename = "ofWorkload", default, with = "unit::flag", skip_serializing_if = "Not::not")]
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
    /// Workloads that it does not touch and that need one which it touches, with what follows when they fail.
    #[serde(default, with = "unit::by_name")]
    dependents: BTreeMap<Name, OnFailure>,
    /// Whether something of it was carried out.
    #[serde(rename = "switched", default, with = "unit::flag", skip_serializing_if = "Not::not")]
    was_switched: bool,
    /// Whether an agent was there to start something of it, so that it may be the reason of a loss.
    #[serde(rename = "sent", default, with = "unit::flag", skip_serializing_if = "Not::not")]
    was_sent: bool,
    /// Its fingerprint, when the same update shall be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remembered: Option<String>,
    /// What was desired before is gone, for want of room.
    #[serde(rename = "lostWayBack", default, with = "unit::flag", skip_serializing_if = "Not::not")]
    has_lost_way_back: bool,
}

/// An open update.
#[derive(Debug)]
struct Open {
    record: Record,
    trial: Trial,
    staging: Staging,
    /// Instances that have failed and were not decided about.
    failures: Vec<Failure>,
    /// When it was carried out, or this server was started.
    begun: Instant,
}

impl Open {
    fn new(record: Record, begun: Instant) -> Self {
        Self { record, trial: Trial::default(), staging: Staging::default(), failures: Vec::new(), begun }
    }

    fn is_staging(&self) -> bool {
        self.record.phase == UpdatePhase::Staging
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
        Self { record, stored, bytes }
    }

    /// Forgets what was desired before, or all that it was about, as far as that is needed to fit into `room` bytes.
    fn fit(&mut self, room: usize) {
        if self.bytes > room {
            self.record.unit.workloads.values_mut().for_each(|touched| touched.before.desired = None);
            self.record.unit.configs.values_mut().for_each(|touched| touched.before = None);
            self.record.has_lost_way_back = true;
            *self = Self::new(self.record.clone());
        }
        if self.bytes > room {
            self.record.unit = Unit::default();
            *self = Self::new(self.record.clone());
        }
    }
}

/// All guarded updates.
#[derive(Debug, Default)]
pub struct GuardedUpdates {
    /// What follows from the failure of an update whose blocks do not say it.
    on_failure: OnFailure,
    /// The newest number that was given.
    newest: u64,
    open: BTreeMap<u64, Open>,
    /// The newest ones, the last ended last.
    ended: VecDeque<Ended>,
    /// Instances that are staged and whose state is the server's own.
    placeholders: BTreeSet<InstanceName>,
    /// What each connected agent was sent to prepare; without empty lists.
    lists: BTreeMap<Name, Vec<AddedWorkload>>,
    /// Agents that cannot prepare and whose updates were warned of.
    warned: BTreeSet<Name>,
    /// There is something that has to be stored.
    is_unsaved: bool,
    /// Other things are staged, or are to be shown.
    is_outdated: bool,
    /// Agents have reported something about what is staged.
    has_progress: bool,
    /// When the texts of many instances were shown last.
    shown_many_at: Option<Instant>,
    /// When it is looked at again in any case: ages are shown, and agents are not waited for without end.
    staging_due: Option<Instant>,
    /// An update was carried out or undone since hooks began to work on a request.
    has_changed: bool,
    /// The server keeps its state over restarts.
    is_kept_on_disk: bool,
}

impl GuardedUpdates {
    /// From now on `on_failure` follows from the failure of an update whose blocks do not say it.
    pub fn set_on_failure(&mut self, on_failure: OnFailure) {
        self.on_failure = on_failure;
    }

    /// Hooks begin to work on a request.
    pub fn hooks_begin(&mut self) {
        self.has_changed = false;
    }

    /// Whether an update was carried out or undone since then, so that the request was prepared for another state.
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Whether there is something that has to be stored.
    pub fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Whether nothing is open.
    fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether requests need not be compared with anything.
    fn is_idle(&self) -> bool {
        self.is_quiet() && !self.remembers_any()
    }

    /// When something changes by itself, or at once when what is stored of a staging was not looked at yet.
    fn due(&self, now: Instant) -> Option<Instant> {
        let staging = if self.is_outdated { Some(now) } else { self.staging_due };
        self.open.values().filter_map(|open| open.trial.due()).chain(staging).min()
    }

    /// Whether what is staged may not be as it was last looked at.
    fn has_news(&self, now: Instant) -> bool {
        self.is_outdated || self.has_progress || self.staging_due.is_some_and(|at| at <= now)
    }

    /// What follows when an instance of `workload` fails.
    fn on_failure(&self, block: Option<&lifecycle::Update>) -> OnFailure {
        block.and_then(|block| block.on_failure).unwrap_or(self.on_failure)
    }

    /// Whether some updates are not to be made once more.
    fn remembers_any(&self) -> bool {
        self.ended.iter().any(|ended| ended.record.remembered.is_some())
    }

    /// Whether `unit` is none of those, but for the `forgotten` ones.
    ///
    /// # Errors
    /// [`UpdateError::Remembered`].
    fn check_new(&self, unit: &Unit, forgotten: &BTreeSet<u64>) -> Result<(), UpdateError> {
        let fingerprint = unit.fingerprint();
        let is_same =
            |record: &&Record| record.remembered.as_ref() == Some(&fingerprint) && !forgotten.contains(&record.number);
        self.ended.iter().rev().map(|ended| &ended.record).find(is_same).map_or(Ok(()), |same| {
            let reason = same.reason.clone().unwrap_or_default();
            Err(UpdateError::Remembered { number: same.number, reason })
        })
    }

    /// An update may be made once more although it was undone.
    fn forget(&mut self, numbers: &BTreeSet<u64>) {
        for ended in &mut self.ended {
            if numbers.contains(&ended.record.number) && ended.record.remembered.take().is_some() {
                *ended = Ended::new(ended.record.clone());
                self.is_unsaved = true;
            }
        }
    }

    /// Takes an open update away, to be ended or to become a part of another one.
    fn close(&mut self, number: u64) -> Option<Open> {
        self.is_outdated = true;
        self.open.remove(&number)
    }

    /// An update has ended.
    fn end(&mut self, mut record: Record, phase: UpdatePhase, reason: Option<String>) {
        (record.phase, record.reason) = (phase, reason.or(record.reason.take()));
        record.ended = Some(utc(SystemTime::now()));
        for touched in record.unit.workloads.values_mut() {
            (touched.before.rendered, touched.before.effective, touched.in_force) = (None, None, None);
        }
        record.dependents.clear();
        if phase.is_moot() {
            record.unit = Unit::default();
        }
        self.is_unsaved = true;
        self.keep(record);
    }

    /// Keeps an update that has ended, and forgets what is too much: the oldest one of whoever has most.
    fn keep(&mut self, record: Record) {
        // Of those that others have taken over there may be many in a short time, which must not displace the rest; nor
        // must those of workloads displace those of commanders.
        let kind = |ended: &Ended| (ended.record.phase.is_moot(), ended.record.is_of_workload);
        self.ended.push_back(Ended::new(record));
        let newest = self.ended.back().map(kind);
        let same = || self.ended.iter().enumerate().filter(|(_, ended)| Some(kind(ended)) == newest);
        if same().count() > UPDATES_ENDED {
            let has = |source: &str| same().filter(|(_, ended)| ended.record.source == *source).count();
            let most = same().max_by_key(|(index, ended)| (has(&ended.record.source), Reverse(*index)));
            most.map(|(index, _)| index).and_then(|index| self.ended.remove(index));
        }
        let (mut of_workloads, mut of_commanders) = (UPDATES_ENDED_BYTES, UPDATES_ENDED_BYTES);
        for ended in self.ended.iter_mut().rev() {
            let room = if ended.record.is_of_workload { &mut of_workloads } else { &mut of_commanders };
            ended.fit(*room);
            *room = room.saturating_sub(ended.bytes);
        }
    }
}

/// The block `update` of a workload, if it has one.
fn block_of(workload: &Workload) -> Option<lifecycle::Update> {
    // Most texts name no update and need not be read.
    let is_possible = workload.runtime_config.contains("update");
    let block = is_possible.then(|| lifecycle::of_config(&workload.runtime, &workload.runtime_config));
    block?.ok()??.update
}

#[cfg(test)]
pub mod tests;
