//! What an update means for workloads and agents: old against new, workload by workload.
//!
//! Thread: `server`; plain functions.

use crate::model::messages::{AddedWorkload, DeletedWorkload, WorkloadPlan};
use crate::model::names::{InstanceName, Name, excerpt, has_name_characters};
use crate::model::validation::check_workload;
use crate::model::workload::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The workloads that differ, sorted by name. A changed workload is in both lists, even under the same instance name.
#[derive(Debug, Default, PartialEq)]
pub struct Difference {
    /// New and changed workloads.
    pub added: Vec<AddedWorkload>,
    /// The instances that end.
    pub deleted: Vec<InstanceName>,
}

impl Difference {
    /// Compares rendered workloads, sorted by name, with those in force; `None` stands for one that goes. Those that
    /// are not in `changed` stay.
    pub fn between(old: &BTreeMap<Name, AddedWorkload>, changed: BTreeMap<Name, Option<Arc<Workload>>>) -> Self {
        let mut difference = Self::default();
        for (name, workload) in changed {
            let known = old.get(&name);
            if known.map(|known| &known.workload) == workload.as_ref() {
                continue;
            }
            difference.deleted.extend(known.map(|known| known.instance.clone()));
            difference.added.extend(workload.map(|workload| added(&name, workload)));
        }
        difference
    }

    /// A workload of `workloads` after this change.
    pub fn workload<'a>(&'a self, workloads: &'a BTreeMap<Name, AddedWorkload>, name: &str) -> Option<&'a Workload> {
        if let Some(added) = self.of(name) {
            return Some(&added.workload);
        }
        let stays = |known: &&AddedWorkload| self.deleted.binary_search(&known.instance).is_err();
        workloads.get(name).filter(stays).map(|known| &*known.workload)
    }

    /// The same change as seen by agents: the instances that end are those in `effective`, which hooks may have made
    /// others than the rendered ones.
    pub fn for_agents(&self, effective: &BTreeMap<Name, AddedWorkload>) -> Self {
        let deleted = self.deleted.iter().map(|instance| &instance.workload);
        let names: BTreeSet<&Name> = self.added.iter().map(|added| &added.instance.workload).chain(deleted).collect();
        let ends = |name: &&Name| effective.get(&***name).map(|added| added.instance.clone());
        Self { added: self.added.clone(), deleted: names.iter().filter_map(ends).collect() }
    }

    /// What hooks made of this change, checked and completed so that it leads from `effective` to another consistent
    /// state: an instance that is replaced ends even if the hook forgot it, one that does not exist cannot end.
    ///
    /// # Errors
    /// Why the output cannot be carried out.
    pub fn changed_to(&self, output: WorkloadPlan, effective: &BTreeMap<Name, AddedWorkload>) -> Result<Self, String> {
        let mut added: BTreeMap<Name, AddedWorkload> = BTreeMap::new();
        for entry in output.added {
            check_added(&entry)?;
            let name = entry.instance.workload.clone();
            let same = |known: &&AddedWorkload| **known == entry;
            // What is the same is shared, so that no text is kept twice.
            let entry = self.of(&name).filter(same).cloned().unwrap_or(entry);
            if added.insert(name.clone(), entry).is_some() {
                return Err(format!("Workload '{name}' is added twice."));
            }
        }
        let mut deleted: BTreeSet<InstanceName> = BTreeSet::new();
        for DeletedWorkload { instance, .. } in output.deleted {
            if effective.get(&instance.workload).is_some_and(|known| known.instance == instance) {
                deleted.insert(instance);
            } else {
                log::warn!("A hook deletes '{}', which does not exist.", excerpt(&instance.to_string()));
            }
        }
        added.retain(|name, entry| match effective.get(name) {
            Some(known) if !deleted.contains(&known.instance) => {
                let changes = known != entry;
                deleted.extend(changes.then(|| known.instance.clone()));
                changes
            }
            _ => true,
        });
        Ok(Self { added: added.into_values().collect(), deleted: deleted.into_iter().collect() })
    }

    /// What leads from `old` to these.
    pub fn to<'n>(
        old: &BTreeMap<Name, AddedWorkload>,
        new: impl Iterator<Item = (&'n Name, Option<&'n AddedWorkload>)>,
    ) -> Self {
        let mut difference = Self::default();
        for (name, new) in new {
            let known = old.get(name);
            if known != new {
                difference.deleted.extend(known.map(|known| known.instance.clone()));
                difference.added.extend(new.cloned());
            }
        }
        difference
    }

    /// The workloads that differ; one that changes is there twice.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.added.iter().map(|added| &added.instance).chain(&self.deleted).map(|instance| &instance.workload)
    }

    /// The new forms of the workloads that differ, `None` for those that go.
    pub fn by_name(&self) -> BTreeMap<&Name, Option<&AddedWorkload>> {
        let deleted = self.deleted.iter().map(|instance| (&instance.workload, None));
        deleted.chain(self.added.iter().map(|added| (&added.instance.workload, Some(added)))).collect()
    }

    fn of(&self, workload: &str) -> Option<&AddedWorkload> {
        let index = self.added.binary_search_by(|added| (*added.instance.workload).cmp(workload)).ok()?;
        self.added.get(index)
    }

    /// As a message; conditions of deletes are not known yet.
    pub fn message(&self) -> WorkloadPlan {
        let delete =
            |instance: &InstanceName| DeletedWorkload { instance: instance.clone(), dependencies: BTreeMap::new() };
        WorkloadPlan { added: self.added.clone(), deleted: self.deleted.iter().map(delete).collect() }
    }

    /// Makes the change in a set of workloads.
    pub fn carry_out(&self, workloads: &mut BTreeMap<Name, AddedWorkload>) {
        for deleted in &self.deleted {
            workloads.remove(&deleted.workload);
        }
        for added in &self.added {
            workloads.insert(added.instance.workload.clone(), added.clone());
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty()
    }
}

fn check_added(AddedWorkload { instance, workload }: &AddedWorkload) -> Result<(), String> {
    let InstanceName { workload: name, id, agent } = instance;
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
fn added(name: &Name, workload: Arc<Workload>) -> AddedWorkload {
    let InstanceName { id, .. } = workload.instance_name(name);
    AddedWorkload { instance: InstanceName { workload: name.clone(), id, agent: workload.agent.clone() }, workload }
}

/// Sorts what changes by agent. Each agent gets one plan, in which the workloads are sorted by name.
pub fn per_agent(added: &[AddedWorkload], deleted: Vec<DeletedWorkload>) -> BTreeMap<Name, WorkloadPlan> {
    let mut plans: BTreeMap<Name, WorkloadPlan> = BTreeMap::new();
    for added in added {
        plans.entry(added.instance.agent.clone()).or_default().added.push(added.clone());
    }
    for deleted in deleted {
        plans.entry(deleted.instance.agent.clone()).or_default().deleted.push(deleted);
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads(entries: &[(&str, Workload)]) -> BTreeMap<Name, Arc<Workload>> {
        entries.iter().map(|(name, workload)| (Name::from(*name), Arc::new(workload.clone()))).collect()
    }

    fn in_force(workloads: &BTreeMap<Name, Arc<Workload>>) -> BTreeMap<Name, AddedWorkload> {
        workloads.iter().map(|(name, workload)| (name.clone(), added(name, workload.clone()))).collect()
    }

    /// What leads to `new`, with those that go.
    fn between(old: &BTreeMap<Name, Arc<Workload>>, new: &BTreeMap<Name, Arc<Workload>>) -> Difference {
        let gone = old.keys().map(|name| (name.clone(), None));
        let stays = new.iter().map(|(name, workload)| (name.clone(), Some(workload.clone())));
        Difference::between(&in_force(old), gone.chain(stays).collect())
    }

    fn names(difference: &Difference) -> (String, String) {
        let added: Vec<&str> = difference.added.iter().map(|added| &*added.instance.workload).collect();
        let deleted: Vec<&str> = difference.deleted.iter().map(|deleted| &*deleted.workload).collect();
        (added.join(","), deleted.join(","))
    }

    #[test]
    fn workloads_are_compared_one_by_one() {
        let plain = |config: &str| Workload::new("A", "podman", config);
        let mut tagged = plain("x");
        tagged.tags.insert("k".into(), "v".into());
        let old = workloads(&[("a", plain("x")), ("b", plain("x")), ("c", plain("x")), ("e", plain("x"))]);
        for (new, added, deleted) in [
            (old.clone(), "", ""),
            (workloads(&[]), "", "a,b,c,e"),
            (workloads(&[("a", plain("y")), ("b", plain("x")), ("c", plain("x")), ("e", plain("x"))]), "a", "a"),
            (workloads(&[("a", tagged), ("d", plain("x")), ("z", plain("x"))]), "a,d,z", "a,b,c,e"),
        ] {
            let difference = between(&old, &new);
            assert_eq!(names(&difference), (added.to_owned(), deleted.to_owned()), "{new:?}");
            assert_eq!(difference.is_empty(), added.is_empty() && deleted.is_empty());
        }
    }
}
