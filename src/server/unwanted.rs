//! Instances that have a state although nobody wants them: those that an agent has of another manifest, and those that are
//! being deleted. Agents must not fill the memory of the server with such states.
//!
//! Reports of further ones are ignored when there are too many, and the known ones stay: what an agent reports first is
//! what it really has, and each forgotten state would have to be sent to everybody.
//!
//! Thread: `server`; a plain value owned by [`super::workloads::Workloads`].

use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet};

/// Additional info stored of such an instance, in bytes.
pub const UNWANTED_INFO_MAX: usize = 256;
/// Instances of one agent that were never wanted, as long as it is connected. More can only be a mistake or an attack.
pub const NEVER_WANTED: usize = 1_000;
/// Those of one workload among them: containers of a few earlier forms may be left. Each is compared with all known
/// deletes.
pub const NEVER_WANTED_OF_WORKLOAD: usize = 16;
/// Those of all agents together, and what they take, in bytes of their names and the longest infos: every client that reads
/// the state gets them, and programs of other implementations take 4 MiB.
const NEVER_WANTED_IN_ALL: usize = 4 * NEVER_WANTED;
const NEVER_WANTED_BYTES: usize = 1024 * 1024;
/// Longest name of one, in bytes of memory; no manifest can have a longer one.
const NAME_BYTES_MAX: usize = 512;
/// Instances of one agent that are being deleted, in bytes of their names, their infos and [`STATE_BYTES`] each: 5,000
/// workloads that are replaced twice. What an agent leaves beyond that counts as removed.
const DELETED_BYTES: usize = 10 * 1024 * 1024;
/// What a state takes beside the names and the text, about.
const STATE_BYTES: usize = 256;
/// Those of one workload among them: updates that follow each other faster than its agent carries them out.
pub const DELETED_OF_WORKLOAD: usize = 256;

/// All of them, by agent.
#[derive(Debug, Default)]
pub struct UnwantedInstances {
    never_wanted: BTreeMap<Name, BTreeSet<InstanceName>>,
    never_wanted_bytes: usize,
    deleted: BTreeMap<Name, Deleted>,
}

/// Instances that were wanted and whose end is not reported, with what the state of each takes at most.
#[derive(Debug, Default)]
struct Deleted {
    instances: BTreeMap<InstanceName, usize>,
    bytes: usize,
}

/// Whether there is another place among those of the same workload; `sorted` begins with the first that may be one.
fn has_place<'i>(sorted: impl Iterator<Item = &'i InstanceName>, instance: &InstanceName, most: usize) -> bool {
    sorted.take_while(|other| other.workload == instance.workload).take(most).count() < most
}

fn never_wanted_bytes(instance: &InstanceName) -> usize {
    instance.bytes() + UNWANTED_INFO_MAX
}

fn first_of_workload(instance: &InstanceName) -> InstanceName {
    InstanceName::with_id(&instance.workload, "", "")
}

impl UnwantedInstances {
    /// A connected agent reports a state of an instance that is not wanted, with a text of at most [`UNWANTED_INFO_MAX`]
    /// bytes. Returns `false` when it cannot be kept: there are too many.
    pub fn report(&mut self, instance: &InstanceName) -> bool {
        if self.deleted.get(&instance.agent).is_some_and(|deleted| deleted.instances.contains_key(instance)) {
            return true;
        }
        let in_all: usize = self.never_wanted.values().map(BTreeSet::len).sum();
        let bytes = self.never_wanted_bytes + never_wanted_bytes(instance);
        let own = self.never_wanted.entry(instance.agent.clone()).or_default();
        let is_known = own.contains(instance);
        let has_room = own.len() < NEVER_WANTED
            && in_all < NEVER_WANTED_IN_ALL
            && bytes <= NEVER_WANTED_BYTES
            && instance.bytes() <= NAME_BYTES_MAX
            && has_place(own.range(first_of_workload(instance)..), instance, NEVER_WANTED_OF_WORKLOAD);
        if has_room && own.insert(instance.clone()) {
            self.never_wanted_bytes = bytes;
        }
        is_known || has_room
    }

    /// An instance that has a state with a text of `info` bytes is not wanted any more. Returns `false` when its state
    /// cannot be kept until the agent reports its end: there are too many of this agent.
    pub fn delete(&mut self, instance: &InstanceName, info: usize) -> bool {
        let bytes = instance.bytes() + info.max(UNWANTED_INFO_MAX) + STATE_BYTES;
        let own = self.deleted.entry(instance.agent.clone()).or_default();
        let others = own.instances.range(first_of_workload(instance)..).map(|(other, _)| other);
        let has_room = own.bytes + bytes <= DELETED_BYTES && has_place(others, instance, DELETED_OF_WORKLOAD);
        if has_room {
            own.bytes += bytes;
            own.bytes -= own.instances.insert(instance.clone(), bytes).unwrap_or_default();
        }
        has_room
    }

    /// The instance has no state any more, or is wanted now.
    pub fn remove(&mut self, instance: &InstanceName) {
        if let Some(own) = self.never_wanted.get_mut(&instance.agent) {
            self.never_wanted_bytes -= if own.remove(instance) { never_wanted_bytes(instance) } else { 0 };
            if own.is_empty() {
                self.never_wanted.remove(&instance.agent);
            }
        }
        if let Some(own) = self.deleted.get_mut(&instance.agent) {
            own.bytes -= own.instances.remove(instance).unwrap_or_default();
            if own.instances.is_empty() {
                self.deleted.remove(&instance.agent);
            }
        }
    }

    /// An agent is gone. Returns its instances that were never wanted: nothing is kept of them, and it reports them again
    /// when it comes back.
    pub fn agent_gone(&mut self, name: &Name) -> BTreeSet<InstanceName> {
        let gone = self.never_wanted.remove(name).unwrap_or_default();
        self.never_wanted_bytes -= gone.iter().map(never_wanted_bytes).sum::<usize>();
        gone
    }

    /// All of them; sums that do not agree with the entries end the test.
    #[cfg(test)]
    pub fn instances(&self) -> BTreeSet<&InstanceName> {
        for (name, own) in &self.deleted {
            assert_eq!(own.bytes, own.instances.values().sum::<usize>(), "{name}");
        }
        let never_wanted = self.never_wanted.values().flatten().map(never_wanted_bytes);
        assert_eq!(self.never_wanted_bytes, never_wanted.sum::<usize>());
        let deleted = self.deleted.values().flat_map(|own| own.instances.keys());
        self.never_wanted.values().flatten().chain(deleted).collect()
    }
}
