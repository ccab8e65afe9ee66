//! What values take in memory, about: queues and budgets are bounded by it, and a bound needs no exact number. A state as
//! a tree takes many times what it takes on the wire.
//!
//! Thread: none, plain functions.

use super::access_rules::AccessRule;
use super::execution_state::WorkloadState;
use super::messages::{
    AddedWorkload, AlteredFields, DeletedWorkload, FromServer, LogEntry, LogsRequest, Request, RequestContent,
    Response, ResponseContent,
};
use super::names::InstanceName;
use super::node::{Entries, Key, Node};
use super::workload::{AddCondition, DeleteCondition, File, FileContent, Workload};
use std::collections::BTreeMap;

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

impl MemorySize for AddCondition {
    fn memory_bytes(&self) -> usize {
        0
    }
}

impl MemorySize for DeleteCondition {
    fn memory_bytes(&self) -> usize {
        0
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

impl<T: MemorySize> MemorySize for BTreeMap<String, T> {
    fn memory_bytes(&self) -> usize {
        /// A map has room for so many entries at once, used or not.
        const BLOCK: usize = 11;
        let places = self.len().div_ceil(BLOCK) * BLOCK * (size_of::<String>() + size_of::<T>());
        places + self.iter().map(|(key, value)| key.len() + value.memory_bytes()).sum::<usize>()
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

impl MemorySize for WorkloadState {
    fn memory_bytes(&self) -> usize {
        self.instance.memory_bytes() + self.state.additional_info.len()
    }
}

impl MemorySize for LogEntry {
    fn memory_bytes(&self) -> usize {
        self.instance.memory_bytes() + self.message.len()
    }
}

impl MemorySize for File {
    fn memory_bytes(&self) -> usize {
        let (FileContent::Data(content) | FileContent::BinaryData(content)) = &self.content;
        self.mount_point.len() + content.len()
    }
}

impl MemorySize for AccessRule {
    fn memory_bytes(&self) -> usize {
        let (Self::State { filter_masks: texts, .. } | Self::Log { workload_names: texts }) = self;
        texts.memory_bytes()
    }
}

impl MemorySize for Workload {
    fn memory_bytes(&self) -> usize {
        let access = &self.control_interface_access;
        self.agent.len()
            + self.runtime.len()
            + self.runtime_config.len()
            + self.dependencies.memory_bytes()
            + self.tags.memory_bytes()
            + self.configs.memory_bytes()
            + self.files.memory_bytes()
            + access.allow_rules.memory_bytes()
            + access.deny_rules.memory_bytes()
    }
}

impl MemorySize for AddedWorkload {
    fn memory_bytes(&self) -> usize {
        self.instance.memory_bytes() + size_of::<Workload>() + self.workload.memory_bytes()
    }
}

impl MemorySize for DeletedWorkload {
    fn memory_bytes(&self) -> usize {
        self.instance.memory_bytes() + self.dependencies.memory_bytes()
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

impl MemorySize for AlteredFields {
    fn memory_bytes(&self) -> usize {
        self.added.memory_bytes() + self.updated.memory_bytes() + self.removed.memory_bytes()
    }
}

impl MemorySize for Response {
    fn memory_bytes(&self) -> usize {
        self.id.len()
            + match &self.content {
                ResponseContent::Error(text) => text.len(),
                ResponseContent::CompleteState { state, altered } => state.memory_bytes() + altered.memory_bytes(),
                ResponseContent::UpdateStateSuccess { added, deleted } => added.memory_bytes() + deleted.memory_bytes(),
                ResponseContent::LogsAccepted(names) => names.memory_bytes(),
                ResponseContent::LogEntries(entries) => entries.memory_bytes(),
                ResponseContent::LogsStop(name) => name.memory_bytes(),
                ResponseContent::LogsCancelAccepted | ResponseContent::EventsCancelAccepted => 0,
            }
    }
}

impl MemorySize for FromServer {
    fn memory_bytes(&self) -> usize {
        match self {
            Self::ServerHello(added) => added.memory_bytes(),
            Self::UpdateWorkload(plan) => plan.added.memory_bytes() + plan.deleted.memory_bytes(),
            Self::WorkloadStates(states) => states.memory_bytes(),
            Self::Response(response) => response.memory_bytes(),
            Self::LogsRequest { request_id, request } => request_id.len() + request.memory_bytes(),
            Self::LogsCancel { request_id } => request_id.len(),
            Self::UsageRequest { .. } => 0,
            Self::Prepare(added) => added.memory_bytes(),
        }
    }
}
