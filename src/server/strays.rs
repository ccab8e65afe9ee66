//! Instances that have a state although nobody wants them, by agent: some after a start with another manifest, and those
//! that have to stop. Agents must not fill the memory of the server, or a response, with such states.
//!
//! Reports of further ones are ignored when there are too many, and the known ones stay: what an agent reports first is
//! what it really has, and each forgotten state would have to be sent to everybody.
//!
//! Thread: `server`; a plain value owned by [`super::workloads::Workloads`].

use crate::limits::{
    FORMER_OF_WORKLOAD, FORMER_STATES_BYTES, STRAY_INFO_MAX, STRAY_STATE_ENTRY, STRAY_STATES_BYTES, STRAYS_BYTES,
    STRAYS_OF_WORKLOAD,
};
use crate::model::memory_size::MemorySize;
use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All unwanted instances with a state.
#[derive(Debug, Default)]
pub struct Strays {
    by_agent: BTreeMap<Name, OfAgent>,
    /// Disconnected agents that had reported some, in the order in which they went.
    gone: VecDeque<Name>,
    /// Bytes of those reported by connected agents.
    connected_bytes: usize,
    /// Bytes of those reported by the agents in `gone`.
    gone_bytes: usize,
}

#[derive(Debug, Default)]
struct OfAgent {
    /// Those that were not wanted when the agent reported them first.
    reported: Share,
    /// Those that were wanted, and that the agent has not reported as removed yet.
    former: Share,
    is_gone: bool,
}

/// Instances with what the state of each takes at most.
#[derive(Debug, Default)]
struct Share {
    instances: BTreeMap<InstanceName, usize>,
    bytes: usize,
}

impl Share {
    /// Whether there is room for another instance, in bytes and among those of its workload.
    fn has_room(&self, instance: &InstanceName, bytes: usize, bytes_max: usize, of_workload_max: usize) -> bool {
        let first = InstanceName::with_id(&instance.workload, "", "");
        let others = self.instances.range(first..).take_while(|(other, _)| other.workload == instance.workload);
        self.bytes + bytes <= bytes_max && others.take(of_workload_max).count() < of_workload_max
    }

    fn add(&mut self, instance: &InstanceName, bytes: usize) {
        self.bytes += bytes;
        self.bytes -= self.instances.insert(instance.clone(), bytes).unwrap_or_default();
    }

    /// Returns the bytes that are free now.
    fn remove(&mut self, instance: &InstanceName) -> usize {
        let bytes = self.instances.remove(instance).unwrap_or_default();
        self.bytes -= bytes;
        bytes
    }
}

/// What a state takes with a text of `info` bytes.
fn state_bytes(instance: &InstanceName, info: usize) -> usize {
    instance.memory_bytes() + info + STRAY_STATE_ENTRY
}

impl Strays {
    /// A connected agent reports a state of an instance that is not wanted, with a text of at most [`STRAY_INFO_MAX`]
    /// bytes. Returns `false` when it cannot be kept: there are too many.
    #[must_use]
    pub fn report(&mut self, instance: &InstanceName) -> bool {
        let bytes = state_bytes(instance, STRAY_INFO_MAX);
        if let Some(own) = self.by_agent.get(&instance.agent) {
            if own.reported.instances.contains_key(instance) || own.former.instances.contains_key(instance) {
                return true;
            }
            if !own.reported.has_room(instance, bytes, STRAY_STATES_BYTES, STRAYS_OF_WORKLOAD) {
                return false;
            }
        }
        if bytes > STRAY_STATES_BYTES || self.connected_bytes + bytes > STRAYS_BYTES {
            return false;
        }
        self.connected_bytes += bytes;
        self.by_agent.entry(instance.agent.clone()).or_default().reported.add(instance, bytes);
        true
    }

    /// An instance that has a state with a text of `info` bytes is not wanted any more. Returns `false` when its state
    /// cannot be kept until the agent reports its end: there are too many of this agent.
    #[must_use]
    pub fn keep_former(&mut self, instance: &InstanceName, info: usize) -> bool {
        let bytes = state_bytes(instance, info.max(STRAY_INFO_MAX));
        let own = self.by_agent.entry(instance.agent.clone()).or_default();
        let has_room = own.former.has_room(instance, bytes, FORMER_STATES_BYTES, FORMER_OF_WORKLOAD);
        if has_room {
            own.former.add(instance, bytes);
        }
        has_room
    }

    /// The instance has no state any more, or is wanted now.
    pub fn remove(&mut self, instance: &InstanceName) {
        let Some(own) = self.by_agent.get_mut(&instance.agent) else { return };
        own.former.remove(instance);
        let free = own.reported.remove(instance);
        *(if own.is_gone { &mut self.gone_bytes } else { &mut self.connected_bytes }) -= free;
        if own.former.instances.is_empty() && own.reported.instances.is_empty() {
            if own.is_gone {
                self.gone.retain(|gone| *gone != instance.agent);
            }
            self.by_agent.remove(&instance.agent);
        }
    }

    /// An agent has connected.
    pub fn agent_connected(&mut self, name: &Name) {
        let Some(own) = self.by_agent.get_mut(name).filter(|own| own.is_gone) else { return };
        own.is_gone = false;
        self.gone.retain(|gone| gone != name);
        self.gone_bytes -= own.reported.bytes;
        self.connected_bytes += own.reported.bytes;
    }

    /// An agent has disconnected.
    pub fn agent_disconnected(&mut self, name: &Name) {
        let Some(own) = self.by_agent.get_mut(name).filter(|own| !own.is_gone) else { return };
        own.is_gone = true;
        self.gone.push_back(name.clone());
        self.gone_bytes += own.reported.bytes;
        self.connected_bytes -= own.reported.bytes;
    }

    /// The instances of the agent that disconnected first, if there is too much altogether. It reports them again when it
    /// connects.
    pub fn take_surplus(&mut self) -> Option<(Name, BTreeSet<InstanceName>)> {
        while self.connected_bytes + self.gone_bytes > STRAYS_BYTES {
            let name = self.gone.pop_front()?;
            let Some(own) = self.by_agent.get_mut(&name) else { continue };
            let reported = std::mem::take(&mut own.reported);
            self.gone_bytes -= reported.bytes;
            own.is_gone = false; // Nothing is left of it that counts.
            if own.former.instances.is_empty() {
                self.by_agent.remove(&name);
            }
            if !reported.instances.is_empty() {
                return Some((name, reported.instances.into_keys().collect()));
            }
        }
        None
    }

    /// All of them; sums that do not agree with the entries end the test.
    #[cfg(test)]
    pub fn instances(&self) -> BTreeSet<&InstanceName> {
        let (mut connected, mut gone) = (0, 0);
        for (name, own) in &self.by_agent {
            for share in [&own.reported, &own.former] {
                assert_eq!(share.bytes, share.instances.values().sum::<usize>(), "{name}");
            }
            assert_eq!(own.is_gone, self.gone.contains(name), "{name}");
            *(if own.is_gone { &mut gone } else { &mut connected }) += own.reported.bytes;
        }
        assert_eq!((connected, gone), (self.connected_bytes, self.gone_bytes));
        let shares = self.by_agent.values().flat_map(|own| [&own.reported, &own.former]);
        shares.flat_map(|share| share.instances.keys()).collect()
    }
}
