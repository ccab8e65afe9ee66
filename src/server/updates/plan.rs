//! Plans: revisions of workloads, the difference between old and new ones, and the part of it for
//! each agent.
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

/// A workload at one time. A part is `None` where the workload did not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredRevision", into = "StoredRevision")]
pub(crate) struct Revision {
    /// The workload as clients wrote it.
    pub(crate) desired: Option<Arc<Workload>>,
    /// The workload after its templates were filled in.
    pub(crate) rendered: Option<AddedWorkload>,
    /// The workload as its agent gets it, after hooks.
    pub(crate) effective: Option<AddedWorkload>,
}

/// Workloads that are added, changed or deleted, sorted by name. A changed workload is in both
/// lists, even under the same instance name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EffectiveDiff {
    /// New and changed workloads.
    pub(crate) added: Vec<AddedWorkload>,
    /// The instances that end.
    pub(crate) deleted: Vec<InstanceName>,
}

impl EffectiveDiff {
    /// Adds the change of one workload from `old` to `new`, unless both are equal. Call it in the
    /// order of the names.
    pub(crate) fn compare(&mut self, old: Option<&AddedWorkload>, new: Option<AddedWorkload>) {
        if old == new.as_ref() {
            return;
        }
        if let Some(old) = old {
            self.deleted.push(old.instance.clone());
        }
        self.added.extend(new);
    }

    /// The plan for hooks. It has no conditions of deletes.
    pub(crate) fn message(&self) -> WorkloadPlan {
        let mut deleted = Vec::with_capacity(self.deleted.len());
        for instance in &self.deleted {
            deleted.push(DeletedWorkload {
                instance: instance.clone(),
                dependencies: BTreeMap::new(),
            });
        }
        WorkloadPlan {
            added: self.added.clone(),
            deleted,
        }
    }

    /// Applies the changes to a set of workloads.
    pub(crate) fn apply(&self, workloads: &mut BTreeMap<Name, AddedWorkload>) {
        for deleted in &self.deleted {
            workloads.remove(&deleted.workload);
        }
        for added in &self.added {
            workloads.insert(added.instance.workload.clone(), added.clone());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty()
    }
}

/// Checks a workload that hooks have added.
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

/// The workload `name` with the name of its instance, which shares its texts with the workload.
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

/// Makes one plan for each agent. The workloads in a plan keep the order of the lists.
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

/// The stored form of a revision. It has a text twice only where templates or hooks change the
/// workload.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredRevision {
    #[serde(skip_serializing_if = "Option::is_none")]
    desired: Option<Node>,
    /// `None` if it is the same as the effective one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rendered: Option<StoredWorkload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<StoredWorkload>,
}

#[derive(Serialize, Deserialize)]
struct StoredWorkload {
    instance: InstanceName,
    /// `None` if it is the same as the desired one.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<Node>,
}

impl StoredWorkload {
    /// The stored form of a rendered or effective workload, next to the desired one.
    fn beside(desired: Option<&Arc<Workload>>, added: AddedWorkload) -> Self {
        let AddedWorkload { instance, workload } = added;
        let own = if desired == Some(&workload) {
            None
        } else {
            Some(sparse(&workload))
        };
        Self {
            instance,
            workload: own,
        }
    }

    /// The workload of a stored form; the desired one if the form contains none.
    fn restore(self, desired: Option<&Arc<Workload>>) -> Result<AddedWorkload, StateError> {
        let workload = match (&self.workload, desired) {
            (Some(own), _) => read_workload(own)?,
            (None, Some(desired)) => desired.clone(),
            (None, None) => {
                return Err(StateError::Missing {
                    path: "desired".to_owned(),
                    field: "workload",
                });
            }
        };
        Ok(AddedWorkload {
            instance: self.instance,
            workload,
        })
    }
}

fn sparse(workload: &Arc<Workload>) -> Node {
    workload_node(workload, Rendering::Sparse)
}

fn read_workload(node: &Node) -> Result<Arc<Workload>, StateError> {
    node.read("workload").map(Arc::new)
}

impl From<Revision> for StoredRevision {
    fn from(
        Revision {
            desired,
            rendered,
            effective,
        }: Revision,
    ) -> Self {
        let mut stored = Self {
            desired: desired.as_ref().map(sparse),
            rendered: None,
            effective: None,
        };
        if let Some(rendered) = rendered
            && effective.as_ref() != Some(&rendered)
        {
            stored.rendered = Some(StoredWorkload::beside(desired.as_ref(), rendered));
        }
        if let Some(effective) = effective {
            stored.effective = Some(StoredWorkload::beside(desired.as_ref(), effective));
        }
        stored
    }
}

impl TryFrom<StoredRevision> for Revision {
    type Error = StateError;

    /// An error ends the reading of the update: a rollback must restore all of a revision.
    fn try_from(stored: StoredRevision) -> Result<Self, StateError> {
        let mut revision = Self::default();
        if let Some(desired) = &stored.desired {
            revision.desired = Some(read_workload(desired)?);
        }
        let desired = revision.desired.as_ref();
        if let Some(effective) = stored.effective {
            revision.effective = Some(effective.restore(desired)?);
        }
        revision.rendered = match stored.rendered {
            Some(rendered) => Some(rendered.restore(desired)?),
            None => revision.effective.clone(),
        };
        Ok(revision)
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

    /// The difference from `old` to `new`.
    fn between(
        old: &BTreeMap<Name, Arc<Workload>>,
        new: &BTreeMap<Name, Arc<Workload>>,
    ) -> EffectiveDiff {
        let (old, new) = (active(old), active(new));
        let names: std::collections::BTreeSet<&Name> = old.keys().chain(new.keys()).collect();
        let mut difference = EffectiveDiff::default();
        for name in names {
            difference.compare(old.get(name), new.get(name).cloned());
        }
        difference
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
