//! What a guarded update changes: the workloads and configs that are its names, what they were
//! before, and how a request that would do the same is recognised.
//!
//! Thread: `server`; plain values.

use crate::updates::Revision;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{Rendering, config_node, workload_node};
use ankaios_model::guarded_update::definition_hash;
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::{AddedWorkload, PreparedInstance};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{ConfigItem, Workload};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Not;
use std::sync::Arc;

/// How a new instance is prepared by its agent before the update is carried out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceStaging {
    /// Up to which level.
    pub(crate) level: PrepareLevel,
    /// Whether the update is carried out under a condition of it only.
    pub(crate) has_condition: bool,
    /// What follows when it cannot be staged.
    pub(crate) on_failure: OnFailure,
    /// What its agent reported last, on its present connection.
    pub(crate) report: Option<PreparedInstance>,
}

/// A workload that an update touches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AffectedWorkload {
    /// What a rollback leads to: as it was before the first update that is not decided yet. Of one
    /// that has ended only what was desired, which may be gone for want of room.
    pub(crate) before: Revision,
    /// Its instance then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) old: Option<InstanceName>,
    /// Its instance once the update is carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) new: Option<InstanceName>,
    /// The hash of what is desired; `None` when the update deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
    /// The hash of all that the update makes of it.
    #[serde(default, rename = "print")]
    pub(crate) hash: String,
    /// The old instance was running when the update was carried out, so the new one must run.
    #[serde(default, with = "flag", skip_serializing_if = "Not::not")]
    pub(crate) ran: bool,
    /// It is not changed, but restarted with those that are, since it needs one of them.
    #[serde(default, with = "flag", skip_serializing_if = "Not::not")]
    pub(crate) restarts: bool,
    /// The active revision as long as the new one waits; `None` when it does not.
    #[serde(rename = "inForce", default, skip_serializing_if = "Option::is_none")]
    pub(crate) active: Option<Revision>,
    /// As the update makes it; nothing once that is carried out.
    #[serde(skip)]
    pub(crate) made: Revision,
    /// Only of one that waits and is prepared.
    #[serde(skip)]
    pub(crate) stage: Option<InstanceStaging>,
}

impl AffectedWorkload {
    /// A request makes `made` of a workload.
    pub(crate) fn new(before: Revision, made: Revision, stage: Option<InstanceStaging>) -> Self {
        let is_changed = (&before.rendered, &before.effective) != (&made.rendered, &made.effective);
        Self {
            old: instance(&before),
            new: instance(&made),
            after: desired_hash(made.desired.as_ref()),
            hash: hash(&made),
            active: is_changed.then(|| Revision {
                desired: None,
                ..before.clone()
            }),
            stage: stage.filter(|_| is_changed),
            before,
            made,
            ..Self::default()
        }
    }

    /// The same workload with a later request. Its agent is not sent the same again.
    fn followed_by(self, mut later: Self) -> Self {
        if let Some(stage) = &mut later.stage
            && later.made.effective == self.made.effective
        {
            stage.report = self.stage.and_then(|stage| stage.report);
        }
        Self {
            before: self.before,
            old: self.old,
            ran: self.ran,
            ..later
        }
    }

    /// The new instance that waits, as its agent gets it.
    pub(crate) fn added(&self) -> Option<&AddedWorkload> {
        self.made
            .effective
            .as_ref()
            .filter(|added| self.active.is_some() && !added.instance.agent.is_empty())
    }
}

/// A config that an update touches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AffectedConfig {
    /// What a rollback leads to; may be gone of an update that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<ConfigItem>,
    /// The hash of what is desired; `None` when the update deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
}

/// All that one update, or one request, changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangeSet {
    /// Workloads by name. Of a request also those that stay as they are although a config of an
    /// open update that they use has changed.
    #[serde(default)]
    pub(crate) workloads: BTreeMap<Name, AffectedWorkload>,
    /// Configs by key.
    #[serde(default)]
    pub(crate) configs: BTreeMap<String, AffectedConfig>,
}

pub(super) fn instance(revision: &Revision) -> Option<InstanceName> {
    revision
        .effective
        .as_ref()
        .map(|added| added.instance.clone())
}

/// Whether users, and the agent, get the same.
fn is_like(revision: &Revision, other: &Revision) -> bool {
    revision.desired == other.desired && revision.effective == other.effective
}

/// The hash of all that decides what runs.
fn hash(revision: &Revision) -> String {
    let node = |workload: &Arc<Workload>| workload_node(workload, Rendering::Sparse);
    let desired = revision
        .desired
        .as_ref()
        .map(|desired| ("desired", node(desired)));
    let effective = revision
        .effective
        .as_ref()
        .map(|added| ("effective", node(&added.workload)));
    let instance =
        instance(revision).map(|instance| ("instance", Node::text(instance.to_string())));
    definition_hash(&Node::map(
        desired.into_iter().chain(effective).chain(instance),
    ))
}

/// The hash by which the definition of a workload is recognised; `None` when there is none.
pub(super) fn desired_hash(desired: Option<&Arc<Workload>>) -> Option<String> {
    desired.map(|desired| definition_hash(&workload_node(desired, Rendering::Sparse)))
}

pub(super) fn config_hash(item: &ConfigItem) -> String {
    definition_hash(&config_node(item))
}

/// Whether a workload of an update leaves it with a later request: it is deleted, or set back.
fn leaves(known: &AffectedWorkload, request: &AffectedWorkload) -> bool {
    if request.made.desired.is_none() {
        return true;
    }
    is_like(&request.made, &known.before) && !request.restarts
}

impl ChangeSet {
    /// Whether nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.configs.is_empty()
    }

    /// Its names, for people.
    pub(crate) fn names(&self) -> String {
        let names = self
            .workloads
            .keys()
            .map(|name| &**name)
            .chain(self.configs.keys().map(String::as_str));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The masks of all that it is about.
    pub(crate) fn masks(&self) -> Vec<String> {
        let workloads = self
            .workloads
            .keys()
            .map(|name| format!("desiredState.workloads.{name}"));
        workloads
            .chain(
                self.configs
                    .keys()
                    .map(|key| format!("desiredState.configs.{key}")),
            )
            .collect()
    }

    /// Whether it changes a workload, and not only restarts it.
    pub(crate) fn is_changed(&self, name: &Name) -> bool {
        self.workloads
            .get(name)
            .is_some_and(|affected| !affected.restarts)
    }

    /// The workloads that are restarted together when it is carried out or put back.
    pub(crate) fn restarted(&self) -> BTreeSet<Name> {
        let restarts = self.workloads.values().any(|affected| affected.restarts);
        self.workloads
            .keys()
            .filter(|_| restarts)
            .cloned()
            .collect_entries()
    }

    /// Whether `request` has a name of this update, or a workload that refers to a config of it.
    pub(crate) fn is_affected_by(&self, request: &Self) -> bool {
        let has_config = request
            .configs
            .keys()
            .any(|key| self.configs.contains_key(key));
        if has_config {
            return true;
        }
        for (name, affected) in &request.workloads {
            if self.workloads.contains_key(name) || self.is_referred_to_by(affected) {
                return true;
            }
        }
        false
    }

    /// Whether the desired version of a workload refers to a config of this update.
    fn is_referred_to_by(&self, affected: &AffectedWorkload) -> bool {
        let Some(desired) = &affected.made.desired else {
            return false;
        };
        let mut keys = desired.configs.values();
        keys.any(|key| self.configs.contains_key(key))
    }

    /// Becomes one with a later request: of each name what was before the oldest one, and the
    /// newest version. A name that is set back to what was before, or deleted, leaves: it is not
    /// brought back. None leaves as long as the request has another one with a condition: nothing
    /// of it is stopped before. Returns the workloads that have left, as they will be.
    pub(crate) fn merge(&mut self, request: Self) -> BTreeMap<Name, Revision> {
        let mut left = BTreeMap::new();
        let has_condition = self.keeps_condition(&request);
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
        if self.configs.is_empty() && self.workloads.values().all(|affected| affected.restarts) {
            // What they need is as it was.
            for (name, affected) in std::mem::take(&mut self.workloads) {
                left.insert(name, affected.made);
            }
        }
        left
    }

    /// Whether `request` has a workload with a condition that becomes a part of this, or stays one.
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

    /// The hash of what leads from what was before to what the update makes of it: the same for the
    /// same update.
    // [impl->swdd~server-remembers-undone-updates~1]
    pub(crate) fn fingerprint(&self) -> String {
        let workload = |(name, affected): (&Name, &AffectedWorkload)| {
            (
                name.to_string(),
                Node::text(format!("{} {}", hash(&affected.before), affected.hash)),
            )
        };
        let config = |(key, affected): (&String, &AffectedConfig)| {
            let before = affected
                .before
                .as_ref()
                .map(config_hash)
                .unwrap_or_default();
            (
                key.clone(),
                Node::text(format!(
                    "{before} {}",
                    affected.after.as_deref().unwrap_or_default()
                )),
            )
        };
        definition_hash(&Node::map([
            ("workloads", Node::map(self.workloads.iter().map(workload))),
            ("configs", Node::map(self.configs.iter().map(config))),
        ]))
    }

    /// What was desired before, as a state; what was added is left out.
    pub(crate) fn before_node(&self) -> Node {
        let workload = |(name, affected): (&Name, &AffectedWorkload)| {
            Some((
                name.to_string(),
                workload_node(affected.before.desired.as_ref()?, Rendering::Sparse),
            ))
        };
        let config = |(key, affected): (&String, &AffectedConfig)| {
            Some((key.clone(), config_node(affected.before.as_ref()?)))
        };
        let configs = Node::map(self.configs.iter().filter_map(config));
        let configs =
            Some(("configs", configs)).filter(|(_, configs)| !configs.is_empty_container());
        let workloads = (
            "workloads",
            Node::map(self.workloads.iter().filter_map(workload)),
        );
        Node::map(std::iter::once(workloads).chain(configs))
    }
}

// ------------------------------------------------------------------ on disk

/// A flag is there or not.
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
