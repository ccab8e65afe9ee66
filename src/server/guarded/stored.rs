//! Guarded updates on disk: beside the desired state, in the same file.
//!
//! Thread: `server`; plain functions and the part of [`ServerLoop`] that goes on after a start.

use super::trial::Candidate;
use super::unit::Form;
use super::{GuardedUpdates, Open, Record};
use crate::limits::UPDATES_OPEN;
use crate::model::complete_state::{Rendering, StateError, workload_from_node, workload_node};
use crate::model::guarded_update::UpdatePhase;
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::workload::Workload;
use crate::server::ServerLoop;
use crate::server::events::Changes;
use crate::server::plan::Difference;
use crate::server::state_store::Stored;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A form as it is stored. Where templates and hooks change nothing, no text stands there twice.
#[derive(Serialize, Deserialize)]
pub struct StoredForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    desired: Option<Node>,
    /// None when it is the effective one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rendered: Option<StoredWorkload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<StoredWorkload>,
}

#[derive(Serialize, Deserialize)]
struct StoredWorkload {
    instance: InstanceName,
    /// None when it is the desired one.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<Node>,
}

impl From<Form> for StoredForm {
    fn from(Form { desired, rendered, effective }: Form) -> Self {
        let node = |workload: &Arc<Workload>| workload_node(workload, Rendering::Sparse);
        let rendered = rendered.filter(|rendered| effective.as_ref() != Some(rendered));
        let [rendered, effective] = [rendered, effective].map(|added| {
            let AddedWorkload { instance, workload } = added?;
            let workload = (desired.as_ref() != Some(&workload)).then(|| node(&workload));
            Some(StoredWorkload { instance, workload })
        });
        Self { desired: desired.as_ref().map(node), rendered, effective }
    }
}

impl TryFrom<StoredForm> for Form {
    type Error = StateError;

    /// An error ends the reading of the update: what would be put back is not known then.
    fn try_from(StoredForm { desired, rendered, effective }: StoredForm) -> Result<Self, StateError> {
        let workload = |node: Node| workload_from_node(&node, "workload").map(Arc::new);
        let desired = desired.map(workload).transpose()?;
        let part = |stored: Option<StoredWorkload>| {
            let Some(StoredWorkload { instance, workload: other }) = stored else { return Ok(None) };
            let missing = || StateError::Missing { path: "desired".to_owned(), field: "workload" };
            let workload = other.map(workload).unwrap_or_else(|| desired.clone().ok_or_else(missing))?;
            Ok(Some(AddedWorkload { instance, workload }))
        };
        let effective = part(effective)?;
        Ok(Self { rendered: part(rendered)?.or_else(|| effective.clone()), effective, desired })
    }
}

/// A flag is there or not.
pub mod flag {
    use serde::de::IgnoredAny;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("true")
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| true)
    }
}

/// A map by names.
pub mod by_name {
    use crate::model::names::Name;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<V: Serialize, S: Serializer>(map: &BTreeMap<Name, V>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(name, value)| (&**name, value)))
    }

    pub fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Name, V>, D::Error> {
        let map: BTreeMap<String, V> = Deserialize::deserialize(deserializer)?;
        Ok(map.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// A config as its tree.
pub mod config {
    use crate::model::complete_state::{config_from_node, config_node};
    use crate::model::node::Node;
    use crate::model::workload::ConfigItem;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(config: &Option<ConfigItem>, serializer: S) -> Result<S::Ok, S::Error> {
        config.as_ref().map(config_node).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ConfigItem>, D::Error> {
        Ok(Some(config_from_node(&Node::deserialize(deserializer)?)))
    }
}

impl Record {
    /// What is stored of it, and read by clients as far as it concerns them.
    pub(super) fn node(&self) -> Node {
        // A record has nothing that JSON could not hold.
        serde_json::to_value(self).and_then(Node::deserialize).unwrap_or_default()
    }

    fn from_node(number: u64, node: &Node) -> Result<Self, serde_json::Error> {
        Ok(Self { number, ..Self::deserialize(serde_json::to_value(node)?)? })
    }
}

impl ServerLoop {
    /// All that is kept over restarts.
    #[must_use]
    pub fn stored(&self) -> Stored {
        let guarded = &self.guarded;
        let desired = self.workloads.desired.clone();
        if guarded.newest == 0 {
            return Stored { desired, updates: None };
        }
        let open = guarded.open.values().map(|open| (open.record.number, Arc::new(open.record.node())));
        let ended = guarded.ended.iter().map(|ended| (ended.record.number, ended.stored.clone()));
        Stored { desired, updates: Some((guarded.newest, open.chain(ended).collect())) }
    }
}

impl ServerLoop {
    /// Goes on with stored updates, each in its phase, after the desired state was taken over as if all were carried out.
    // [impl->swdd~server-keeps-guarded-updates~1]
    pub(in crate::server) fn restore_updates(&mut self, newest: u64, updates: &[(u64, Arc<Node>)]) {
        // Ours never comes near that; numbers given from now on are new in any case.
        let known = updates.iter().map(|(number, _)| *number).max().unwrap_or_default();
        self.guarded.newest = newest.max(known).min(u64::MAX / 2);
        for (number, node) in updates {
            match Record::from_node(*number, node) {
                Ok(record) if !record.phase.is_open() => self.guarded.keep(record),
                Ok(record) if self.guarded.open.len() < UPDATES_OPEN => self.restore(record),
                Ok(_) => log::error!("Forgetting update {number}: more than {UPDATES_OPEN} are open."),
                Err(error) => log::error!("Forgetting update {number}: what is stored of it cannot be read: {error}"),
            }
        }
        while self.settle_updates() {}
    }

    fn restore(&mut self, record: Record) {
        let (now, number) = (self.now(), record.number);
        let is_staging = record.phase == UpdatePhase::Staging;
        let touched = record.unit.workloads.iter();
        let in_force = touched.filter_map(|(name, touched)| Some((name.clone(), touched.in_force.clone()?)));
        let in_force: BTreeMap<Name, Form> = in_force.filter(|_| is_staging).collect();
        let mut open = Open::new(record, now);
        for name in open.record.unit.workloads.keys().filter(|name| !in_force.contains_key(*name)) {
            // What this start could not take over has no agent, so nothing is judged of it.
            let ran = open.record.unit.workloads.get(name).is_some_and(|touched| touched.ran);
            if open.record.was_switched
                && let Some(candidate) = self.candidate(name, ran, None)
            {
                open.trial.judge(candidate, now);
            }
        }
        for (name, on_failure) in &open.record.dependents {
            if let Some(candidate) = self.candidate(name, true, Some(*on_failure)) {
                open.trial.judge(Candidate { state: None, ..candidate }, now);
            }
        }
        if open.record.was_sent {
            Self::judge_start(&mut open, now);
            self.guarded.is_unsaved = true;
        }
        self.guarded.is_outdated = true;
        self.put_back_in_force(&mut open, &in_force);
        self.guarded.open.insert(number, open);
    }

    /// What is rendered and in force of a workload.
    pub(super) fn form_in_force(&self, name: &Name) -> Form {
        Form {
            desired: None,
            rendered: self.workloads.before_hooks().get(name).cloned(),
            effective: self.workloads.before_modes().get(name).cloned(),
        }
    }

    /// While an update is being staged, agents have to run what was in force before.
    fn put_back_in_force(&mut self, open: &mut Open, in_force: &BTreeMap<Name, Form>) {
        let new = |name: &Name| {
            let desired = self.workloads.desired.workloads.get(name).cloned();
            (name.clone(), Form { desired, ..self.form_in_force(name) })
        };
        let new: BTreeMap<Name, Form> = in_force.keys().map(new).collect();
        let rendered = in_force.iter().map(|(name, form)| (name, form.rendered.as_ref()));
        let rendered = Difference::to(self.workloads.before_hooks(), rendered);
        let effective = in_force.iter().map(|(name, form)| (name, form.effective.as_ref()));
        let for_agents = Difference::to(self.workloads.before_modes(), effective);
        if let Some(before_hooks) = &mut self.workloads.before_hooks {
            rendered.carry_out(before_hooks);
        }
        self.carry_out_in_mode(for_agents, Changes::default());
        self.stage_again(open, new);
    }

    /// What has to be stored before the first client is served: that this start was counted.
    pub fn take_unsaved(&mut self) -> Option<Stored> {
        std::mem::take(&mut self.guarded.is_unsaved).then(|| self.stored())
    }
}

impl GuardedUpdates {
    /// From now on updates are kept over restarts.
    pub(in crate::server) fn keep_on_disk(&mut self) {
        self.is_kept_on_disk = true;
    }
}
