//! What values take in memory, about: queues and budgets are bounded by it, and a bound needs no exact number. A state as
//! a tree takes many times what it takes on the wire.
//!
//! Thread: none, plain functions.

use super::messages::{LogsRequest, Request, RequestContent};
use super::names::InstanceName;
use super::node::{Entries, Key, Node};

/// What a value takes beside itself.
pub trait MemorySize {
    /// In bytes, about.
    fn memory_bytes(&self) -> usize;
}

impl MemorySize for str {
    fn memory_bytes(&self) -> usize {
        self.len()
    }
}

impl MemorySize for String {
    fn memory_bytes(&self) -> usize {
        self.len()
    }
}

impl<T: MemorySize> MemorySize for Option<T> {
    fn memory_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::memory_bytes)
    }
}

impl<T: MemorySize> MemorySize for [T] {
    fn memory_bytes(&self) -> usize {
        self.iter().map(|item| size_of::<T>() + item.memory_bytes()).sum()
    }
}

impl MemorySize for Entries {
    fn memory_bytes(&self) -> usize {
        let own = |(key, node): (&str, &Node)| key.len() + node.memory_bytes();
        self.places() * size_of::<(Key, Node)>() + self.iter().map(own).sum::<usize>()
    }
}

impl MemorySize for Node {
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 0,
            Self::List(items) => items.memory_bytes(),
            Self::Map(entries) => entries.memory_bytes(),
        }
    }
}

impl MemorySize for InstanceName {
    fn memory_bytes(&self) -> usize {
        self.workload.len() + self.id.len() + self.agent.len()
    }
}

impl MemorySize for LogsRequest {
    fn memory_bytes(&self) -> usize {
        self.instances.memory_bytes() + self.since.memory_bytes() + self.until.memory_bytes()
    }
}

impl MemorySize for Request {
    fn memory_bytes(&self) -> usize {
        self.id.len() + self.content.memory_bytes()
    }
}

impl MemorySize for RequestContent {
    fn memory_bytes(&self) -> usize {
        match self {
            Self::UpdateState(update) => {
                let state = match &update.new_state {
                    Some(Ok(state)) => state.memory_bytes(),
                    Some(Err(reason)) => reason.len(),
                    None => 0,
                };
                state + update.masks.memory_bytes()
            }
            Self::CompleteState(read) => read.masks.memory_bytes(),
            Self::Logs(logs) => logs.memory_bytes(),
            Self::RollBack(_) | Self::LogsCancel | Self::EventsCancel | Self::Missing => 0,
        }
    }
}
