//! Change sets: the workloads and configs that a guarded update affects, with their revisions from
//! before it, and the fingerprint by which the same update is recognised.
//!
//! Thread: `server`; plain values.

use crate::updates::Revision;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{Rendering, config_node, workload_node};
use ankaios_model::guarded_update::definition_hash;
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::{AddedWorkload, PreparedInstance};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::{Entries, Node};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{ConfigItem, Workload};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Not;
use std::sync::Arc;

/// The preparation of a new instance by its agent before the update is switched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceStaging {
    /// How far the agent prepares it.
    pub(crate) level: PrepareLevel,
    /// Whether it has a condition, which must be met before the update is switched.
    pub(crate) has_condition: bool,
    /// The consequence when it cannot be staged.
    pub(crate) on_failure: OnFailure,
    /// The last report of its agent on its present connection.
    pub(crate) report: Option<PreparedInstance>,
}

/// A workload that an update affects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AffectedWorkload {
    /// The revision that a rollback restores: that from before the oldest update which is still
    /// open. An ended update has only the desired workload, and none after a lack of space.
    pub(crate) before: Revision,
    /// The instance of that revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) old: Option<InstanceName>,
    /// Its instance once the update is switched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) new: Option<InstanceName>,
    /// The hash of the desired workload; `None` when the update deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
    /// The hash of the new revision.
    #[serde(default, rename = "print")]
    pub(crate) hash: String,
    /// Whether the old instance was running at the switch, so that the new one must run.
    #[serde(default, with = "flag", skip_serializing_if = "Not::not")]
    pub(crate) ran: bool,
    /// Whether it is not changed, but restarted since it needs a changed workload.
    #[serde(default, with = "flag", skip_serializing_if = "Not::not")]
    pub(crate) restarts: bool,
    /// The active revision until the new one is switched; `None` afterwards, or without a change.
    #[serde(rename = "inForce", default, skip_serializing_if = "Option::is_none")]
    pub(crate) active: Option<Revision>,
    /// The new revision until the switch, which moves it to the workloads.
    #[serde(skip)]
    pub(crate) made: Revision,
    /// The preparation of the new instance until the switch, if its agent prepares it.
    #[serde(skip)]
    pub(crate) stage: Option<InstanceStaging>,
}

impl AffectedWorkload {
    /// A workload that a request changes from `before` to `made`.
    pub(crate) fn new(before: Revision, made: Revision, stage: Option<InstanceStaging>) -> Self {
        let mut affected = Self {
            old: instance(&before),
            new: instance(&made),
            after: desired_hash(made.desired.as_ref()),
            hash: hash(&made),
            ..Self::default()
        };
        if before.rendered != made.rendered || before.effective != made.effective {
            affected.active = Some(Revision {
                desired: None,
                ..before.clone()
            });
            affected.stage = stage;
        }
        affected.before = before;
        affected.made = made;
        affected
    }

    /// The same workload after a later request. An unchanged instance keeps its report, since its
    /// agent is not sent the same again.
    fn followed_by(self, mut later: Self) -> Self {
        if let Some(stage) = &mut later.stage
            && later.made.effective == self.made.effective
            && let Some(own) = self.stage
        {
            stage.report = own.report;
        }
        Self {
            before: self.before,
            old: self.old,
            ran: self.ran,
            ..later
        }
    }

    /// The new instance that is not switched yet, as its agent receives it.
    pub(crate) fn added(&self) -> Option<&AddedWorkload> {
        let added = self.made.effective.as_ref()?;
        if self.active.is_none() || added.instance.agent.is_empty() {
            return None;
        }
        Some(added)
    }
}

/// A config that an update affects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AffectedConfig {
    /// The item that a rollback restores. An ended update may have lost it for lack of space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<ConfigItem>,
    /// The hash of the desired item; `None` when the update deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
}

/// All that one update, or one request, changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangeSet {
    /// Workloads by name. A request also has unchanged workloads of open updates that use a config
    /// of the request.
    #[serde(default)]
    pub(crate) workloads: BTreeMap<Name, AffectedWorkload>,
    /// Configs by key.
    #[serde(default)]
    pub(crate) configs: BTreeMap<String, AffectedConfig>,
}

pub(super) fn instance(revision: &Revision) -> Option<InstanceName> {
    let added = revision.effective.as_ref()?;
    Some(added.instance.clone())
}

/// Returns whether users and the agent get the same with both revisions.
fn is_like(revision: &Revision, other: &Revision) -> bool {
    revision.desired == other.desired && revision.effective == other.effective
}

/// The hash of a revision, as it is desired and as it runs.
fn hash(revision: &Revision) -> String {
    let mut parts = Vec::new();
    if let Some(desired) = &revision.desired {
        parts.push(("desired", sparse(desired)));
    }
    if let Some(added) = &revision.effective {
        parts.push(("effective", sparse(&added.workload)));
        parts.push(("instance", Node::text(added.instance.to_string())));
    }
    definition_hash(&Node::map(parts))
}

/// The hash of a desired workload; `None` when it is not desired.
pub(super) fn desired_hash(desired: Option<&Arc<Workload>>) -> Option<String> {
    desired.map(|desired| definition_hash(&sparse(desired)))
}

fn sparse(workload: &Arc<Workload>) -> Node {
    workload_node(workload, Rendering::Sparse)
}

pub(super) fn config_hash(item: &ConfigItem) -> String {
    definition_hash(&config_node(item))
}

/// Returns whether a workload leaves its update with a later request, which deletes it or sets it
/// back.
fn leaves(known: &AffectedWorkload, request: &AffectedWorkload) -> bool {
    if request.made.desired.is_none() {
        return true;
    }
    is_like(&request.made, &known.before) && !request.restarts
}

impl ChangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.configs.is_empty()
    }

    /// The names of its workloads and configs, for log lines.
    pub(crate) fn names(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for name in self.workloads.keys() {
            names.push(name);
        }
        for key in self.configs.keys() {
            names.push(key);
        }
        names.join(", ")
    }

    /// The masks of its workloads and configs.
    pub(crate) fn masks(&self) -> Vec<String> {
        let mut masks = Vec::new();
        for name in self.workloads.keys() {
            masks.push(format!("desiredState.workloads.{name}"));
        }
        for key in self.configs.keys() {
            masks.push(format!("desiredState.configs.{key}"));
        }
        masks
    }

    /// Returns whether it changes a workload, and does not only restart it.
    pub(crate) fn is_changed(&self, name: &Name) -> bool {
        match self.workloads.get(name) {
            Some(affected) => !affected.restarts,
            None => false,
        }
    }

    /// The workloads that are restarted together when it is switched or rolled back.
    pub(crate) fn restarted(&self) -> BTreeSet<Name> {
        let has_restart = self.workloads.values().any(|affected| affected.restarts);
        if !has_restart {
            return BTreeSet::new();
        }
        self.workloads.keys().cloned().collect_entries()
    }

    /// Returns whether `request` has a workload or config of this update, or a workload that refers
    /// to a config of this update.
    pub(crate) fn is_affected_by(&self, request: &Self) -> bool {
        for key in request.configs.keys() {
            if self.configs.contains_key(key) {
                return true;
            }
        }
        for (name, affected) in &request.workloads {
            if self.workloads.contains_key(name) || self.is_referred_to_by(affected) {
                return true;
            }
        }
        false
    }

    /// Returns whether the desired version of a workload refers to a config of this update.
    fn is_referred_to_by(&self, affected: &AffectedWorkload) -> bool {
        let Some(desired) = &affected.made.desired else {
            return false;
        };
        let mut keys = desired.configs.values();
        keys.any(|key| self.configs.contains_key(key))
    }

    /// Merges a later request. Returns the new revisions of the workloads that leave. A workload or
    /// config:
    /// - joins the update, if only the request has it;
    /// - leaves it, if both have it and the request deletes it or restores its earlier revision, so
    ///   that a rollback does not touch it;
    /// - stays otherwise, with the earlier revision of this update and the new one of the request.
    ///
    /// No workload leaves while the request has one with a condition: one that leaves is changed at
    /// once, but nothing must stop before the condition is met.
    pub(crate) fn merge(&mut self, request: Self) -> BTreeMap<Name, Revision> {
        let mut left = BTreeMap::new();
        let has_condition = self.keeps_condition(&request);
        // First, the workloads.
        for (name, affected) in request.workloads {
            let Some(known) = self.workloads.remove(&name) else {
                self.workloads.insert(name, affected);
                continue;
            };
            if !has_condition && leaves(&known, &affected) {
                left.insert(name, affected.made);
            } else {
                self.workloads.insert(name, known.followed_by(affected));
            }
        }
        // Then, the configs.
        for (key, mut affected) in request.configs {
            if let Some(known) = self.configs.remove(&key) {
                let is_as_before = affected.after == known.before.as_ref().map(config_hash);
                if affected.after.is_none() || is_as_before {
                    continue;
                }
                affected.before = known.before;
            }
            self.configs.insert(key, affected);
        }
        // Finally, the restarts leave if nothing else is left: the workloads that they need are not
        // changed any more.
        if self.configs.is_empty() && self.workloads.values().all(|affected| affected.restarts) {
            for (name, affected) in std::mem::take(&mut self.workloads) {
                left.insert(name, affected.made);
            }
        }
        left
    }

    /// Returns whether a workload of `request` with a condition joins this update or stays in it.
    fn keeps_condition(&self, request: &Self) -> bool {
        for (name, affected) in &request.workloads {
            let has_condition = match &affected.stage {
                Some(stage) => stage.has_condition,
                None => false,
            };
            let stays = match self.workloads.get(name) {
                Some(known) => !leaves(known, affected),
                None => true,
            };
            if has_condition && stays {
                return true;
            }
        }
        false
    }

    /// The fingerprint of the update, from the revisions before and after it.
    // [impl->swdd~server-remembers-undone-updates~1]
    pub(crate) fn fingerprint(&self) -> String {
        let mut workloads = Entries::default();
        for (name, affected) in &self.workloads {
            let before = hash(&affected.before);
            let text = format!("{before} {}", affected.hash);
            workloads.insert(name.to_string(), Node::text(text));
        }
        let mut configs = Entries::default();
        for (key, affected) in &self.configs {
            let before = affected.before.as_ref().map(config_hash);
            let text = format!(
                "{} {}",
                before.unwrap_or_default(),
                affected.after.as_deref().unwrap_or_default()
            );
            configs.insert(key.clone(), Node::text(text));
        }
        definition_hash(&Node::map([
            ("workloads", Node::Map(workloads)),
            ("configs", Node::Map(configs)),
        ]))
    }

    /// The part of the desired state from before the update. It lacks the workloads and configs
    /// that the update has added.
    pub(crate) fn before_node(&self) -> Node {
        let mut workloads = Entries::default();
        for (name, affected) in &self.workloads {
            if let Some(before) = &affected.before.desired {
                workloads.insert(name.to_string(), sparse(before));
            }
        }
        let mut configs = Entries::default();
        for (key, affected) in &self.configs {
            if let Some(before) = &affected.before {
                configs.insert(key.clone(), config_node(before));
            }
        }
        let mut state = Entries::default();
        state.insert("workloads", Node::Map(workloads));
        if !configs.is_empty() {
            state.insert("configs", Node::Map(configs));
        }
        Node::Map(state)
    }
}

// ------------------------------------------------------------------ on disk

/// The stored form of a flag: its key is there, or not.
pub(crate) mod flag {
    use serde::de::IgnoredAny;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("true")
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<bool, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| true)
    }
}
