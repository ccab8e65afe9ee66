//! What an update means for workloads and agents: revisions of workloads, and old against new,
//! workload by workload.
//!
//! Thread: `server`; plain functions.

use ankaios_model::complete_state::{Rendering, workload_node};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name, has_name_characters};
use ankaios_model::node::{Node, StateError};
use ankaios_model::validation::check_workload;
use ankaios_model::workload::Workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A workload at one time; nothing where it did not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredRevision", into = "StoredRevision")]
pub(crate) struct Revision {
    /// As users asked for it.
    pub(crate) desired: Option<Arc<Workload>>,
    /// As templates made it.
    pub(crate) rendered: Option<AddedWorkload>,
    /// As its agent gets it, after hooks.
    pub(crate) effective: Option<AddedWorkload>,
}

/// The workloads that differ, sorted by name. A changed workload is in both lists, even under the
/// same instance name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EffectiveDiff {
    /// New and changed workloads.
    pub(crate) added: Vec<AddedWorkload>,
    /// The instances that end.
    pub(crate) deleted: Vec<InstanceName>,
}

impl EffectiveDiff {
    /// What leads from `old` to these, `None` for those that go.
    pub(crate) fn to(
        old: &BTreeMap<Name, AddedWorkload>,
        new: impl Iterator<Item = (Name, Option<AddedWorkload>)>,
    ) -> Self {
        let mut difference = Self::default();
        for (name, new) in new {
            let known = old.get(&name);
            if known != new.as_ref() {
                difference
                    .deleted
                    .extend(known.map(|known| known.instance.clone()));
                difference.added.extend(new);
            }
        }
        difference
    }

    /// As a message; conditions of deletes are not known yet.
    pub(crate) fn message(&self) -> WorkloadPlan {
        let delete = |instance: &InstanceName| DeletedWorkload {
            instance: instance.clone(),
            dependencies: BTreeMap::new(),
        };
        WorkloadPlan {
            added: self.added.clone(),
            deleted: self.deleted.iter().map(delete).collect(),
        }
    }

    /// Makes the change in a set of workloads.
    pub(crate) fn apply(&self, workloads: &mut BTreeMap<Name, AddedWorkload>) {
        for deleted in &self.deleted {
            workloads.remove(&deleted.workload);
        }
        for added in &self.added {
            workloads.insert(added.instance.workload.clone(), added.clone());
        }
    }

    /// Whether nothing differs.
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty()
    }
}

/// What hooks added, checked.
pub(crate) fn check_added(
    AddedWorkload { instance, workload }: &AddedWorkload,
) -> Result<(), String> {
    let InstanceName {
        workload: name,
        id,
        agent,
    } = instance;
    check_workload(name, workload).map_err(|error| error.to_string())?;
    if id.is_empty() || !has_name_characters(id) {
        return Err(format!("Unsupported id '{id}' of workload '{name}'."));
    }
    if *agent != workload.agent {
        let wanted = &workload.agent;
        return Err(format!(
            "Workload '{name}' is for agent '{wanted}', but its instance name is for agent '{agent}'."
        ));
    }
    Ok(())
}

/// The workload with the name of its instance, sharing the texts that are there already.
pub(crate) fn added(name: &Name, workload: Arc<Workload>) -> AddedWorkload {
    let InstanceName { id, .. } = workload.instance_name(name);
    AddedWorkload {
        instance: InstanceName {
            workload: name.clone(),
            id,
            agent: workload.agent.clone(),
        },
        workload,
    }
}

/// Sorts what changes by agent. Each agent gets one plan, in which the workloads are sorted by
/// name.
pub(crate) fn per_agent(
    added: &[AddedWorkload],
    deleted: Vec<DeletedWorkload>,
) -> BTreeMap<Name, WorkloadPlan> {
    let mut plans: BTreeMap<Name, WorkloadPlan> = BTreeMap::new();
    for added in added {
        plans
            .entry(added.instance.agent.clone())
            .or_default()
            .added
            .push(added.clone());
    }
    for deleted in deleted {
        plans
            .entry(deleted.instance.agent.clone())
            .or_default()
            .deleted
            .push(deleted);
    }
    plans
}

// ------------------------------------------------------------------ on disk

/// A revision as it is stored. Where templates and hooks change nothing, no text stands there
/// twice.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredRevision {
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

impl From<Revision> for StoredRevision {
    fn from(
        Revision {
            desired,
            rendered,
            effective,
        }: Revision,
    ) -> Self {
        let node = |workload: &Arc<Workload>| workload_node(workload, Rendering::Sparse);
        let rendered = rendered.filter(|rendered| effective.as_ref() != Some(rendered));
        let [rendered, effective] = [rendered, effective].map(|added| {
            let AddedWorkload { instance, workload } = added?;
            let workload = (desired.as_ref() != Some(&workload)).then(|| node(&workload));
            Some(StoredWorkload { instance, workload })
        });
        Self {
            desired: desired.as_ref().map(node),
            rendered,
            effective,
        }
    }
}

impl TryFrom<StoredRevision> for Revision {
    type Error = StateError;

    /// An error ends the reading of the update: what would be put back is not known then.
    fn try_from(
        StoredRevision {
            desired,
            rendered,
            effective,
        }: StoredRevision,
    ) -> Result<Self, StateError> {
        let workload = |node: Node| node.read("workload").map(Arc::new);
        let desired = desired.map(workload).transpose()?;
        let part = |stored: Option<StoredWorkload>| {
            let Some(StoredWorkload {
                instance,
                workload: other,
            }) = stored
            else {
                return Ok(None);
            };
            let missing = || StateError::Missing {
                path: "desired".to_owned(),
                field: "workload",
            };
            let workload = other
                .map(workload)
                .unwrap_or_else(|| desired.clone().ok_or_else(missing))?;
            Ok(Some(AddedWorkload { instance, workload }))
        };
        let effective = part(effective)?;
        Ok(Self {
            rendered: part(rendered)?.or_else(|| effective.clone()),
            effective,
            desired,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads(entries: &[(&str, Workload)]) -> BTreeMap<Name, Arc<Workload>> {
        entries
            .iter()
            .map(|(name, workload)| (Name::from(*name), Arc::new(workload.clone())))
            .collect()
    }

    fn active(workloads: &BTreeMap<Name, Arc<Workload>>) -> BTreeMap<Name, AddedWorkload> {
        workloads
            .iter()
            .map(|(name, workload)| (name.clone(), added(name, workload.clone())))
            .collect()
    }

    /// What leads to `new`, with those that go.
    fn between(
        old: &BTreeMap<Name, Arc<Workload>>,
        new: &BTreeMap<Name, Arc<Workload>>,
    ) -> EffectiveDiff {
        let (old, new) = (active(old), active(new));
        let names: std::collections::BTreeSet<&Name> = old.keys().chain(new.keys()).collect();
        EffectiveDiff::to(
            &old,
            names
                .into_iter()
                .map(|name| (name.clone(), new.get(name).cloned())),
        )
    }

    fn names(difference: &EffectiveDiff) -> (String, String) {
        let added: Vec<&str> = difference
            .added
            .iter()
            .map(|added| &*added.instance.workload)
            .collect();
        let deleted: Vec<&str> = difference
            .deleted
            .iter()
            .map(|deleted| &*deleted.workload)
            .collect();
        (added.join(","), deleted.join(","))
    }

    #[test]
    fn workloads_are_compared_one_by_one() {
        let plain = |config: &str| Workload::new("A", "podman", config);
        let mut tagged = plain("x");
        tagged.tags.insert("k".into(), "v".into());
        let old = workloads(&[
            ("a", plain("x")),
            ("b", plain("x")),
            ("c", plain("x")),
            ("e", plain("x")),
        ]);
        for (new, added, deleted) in [
            (old.clone(), "", ""),
            (workloads(&[]), "", "a,b,c,e"),
            (
                workloads(&[
                    ("a", plain("y")),
                    ("b", plain("x")),
                    ("c", plain("x")),
                    ("e", plain("x")),
                ]),
                "a",
                "a",
            ),
            (
                workloads(&[("a", tagged), ("d", plain("x")), ("z", plain("x"))]),
                "a,d,z",
                "a,b,c,e",
            ),
        ] {
            let difference = between(&old, &new);
            assert_eq!(
                names(&difference),
                (added.to_owned(), deleted.to_owned()),
                "{new:?}"
            );
            assert_eq!(
                difference.is_empty(),
                added.is_empty() && deleted.is_empty()
            );
        }
    }
}
