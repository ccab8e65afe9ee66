//! Messages between servers, agents, commanders and workloads, after the wire format was checked.
//!
//! Thread: none, plain values.

use super::execution_state::WorkloadState;
use super::names::InstanceName;
use super::node::Node;
use super::prepare_level::PrepareLevel;
use super::refusal::ErrorResponse;
use super::usage::AgentUsage;
use super::workload::{DeleteCondition, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why an update without content is refused.
pub const NO_STATE: &str = "The UpdateStateRequest does not contain a new state";

/// From agents and commanders to the server.
#[derive(Debug, Clone, PartialEq)]
pub enum ToServer {
    /// First message of an agent.
    AgentHello(AgentHello),
    /// First message of a commander.
    CommanderHello {
        /// Its version, not yet checked.
        version: String,
    },
    /// New states of workload instances. Entries that lacked something are left out.
    WorkloadStates(Vec<WorkloadState>),
    /// The states sent since the hello are those of all instances that the agent has. On the wire
    /// this is a list without states, which other implementations ignore and never send.
    StatesComplete,
    /// Load of a node.
    AgentLoad(AgentLoad),
    /// The progress of prepared instances.
    Prepared(Vec<PreparedInstance>),
    /// A request of a commander or, through its agent, of a workload.
    Request(Request),
    /// Log lines for the requester with this id.
    LogEntries {
        /// Full id of the logs request.
        request_id: String,
        /// The lines.
        entries: Vec<LogEntry>,
    },
    /// The end of the log lines of this instance for the requester with this id.
    LogsStop {
        /// Full id of the logs request.
        request_id: String,
        instance: InstanceName,
    },
    /// A sample of CPU and memory of the node and its workloads.
    UsageResponse {
        /// The number of the request.
        number: u64,
        usage: AgentUsage,
    },
    /// The sender leaves.
    Goodbye,
    /// A message without content or without a mandatory part, which deserves a warning only.
    Empty,
}

/// The hello of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentHello {
    /// Its name; not checked in a message.
    pub agent: String,
    /// Its version; not checked in a message.
    pub version: String,
    pub tags: BTreeMap<String, String>,
    pub capabilities: AgentCapabilities,
}

/// Abilities that other implementations and older programs lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCapabilities {
    /// It responds to [`FromServer::UsageRequest`].
    pub tells_usage: bool,
    /// It prepares instances of an update while the old ones run.
    pub prepares: bool,
    /// It removes images, and receives [`FromServer::UpdateOpen`].
    pub removes_images: bool,
}

/// From the server to agents and commanders.
#[derive(Debug, Clone, PartialEq)]
pub enum FromServer {
    /// All workloads of the agent; the response to its hello.
    ServerHello(Vec<AddedWorkload>),
    /// Workloads that the agent gets and loses.
    UpdateWorkload(WorkloadPlan),
    /// New states of instances on other agents.
    WorkloadStates(Vec<WorkloadState>),
    /// The response to a request.
    Response(Response),
    /// Collect logs.
    LogsRequest {
        /// Full id of the request.
        request_id: String,
        request: LogsRequest,
    },
    /// Stop collecting logs.
    LogsCancel {
        /// Full id of the request.
        request_id: String,
    },
    /// The complete list of instances to prepare while others run.
    Prepare(Vec<AddedWorkload>),
    /// Whether a guarded update with workloads of this agent is open: its rollback may need each
    /// image. Only to agents with this ability.
    UpdateOpen(bool),
    /// Send a sample of CPU and memory; only to agents with this ability.
    UsageRequest {
        /// Repeated in the response.
        number: u64,
    },
}

/// The progress of a prepared instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparedInstance {
    pub instance: InstanceName,
    /// The level it has reached, once that is as high as possible.
    pub level: Option<PrepareLevel>,
    /// Why the last try failed.
    pub reason: Option<String>,
    /// Number of failed tries.
    pub tries: u32,
    /// Whether there is no further try.
    pub is_final: bool,
    /// The unmet condition for replacing the old instance.
    pub unmet: Option<String>,
}

/// From a workload to its agent, through the control interface.
#[derive(Debug, Clone, PartialEq)]
pub enum FromWorkload {
    /// First message of a session.
    Hello {
        /// Its version, not yet checked.
        version: String,
    },
    /// A request for the server, not yet authorised; the id is the workload's own.
    Request(Request),
    /// A request that is refused without decoding, because of the memory for it.
    TooHeavy { id: String, reason: String },
    /// Nothing.
    Empty,
}

/// From an agent to a workload, through the control interface.
#[derive(Debug, Clone, PartialEq)]
pub enum ToWorkload {
    /// The response to a hello.
    Accepted,
    /// The session ends.
    Closed { reason: String },
    /// The response to a request, with the workload's own id.
    Response(Response),
}

/// The part of an update for one agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkloadPlan {
    /// Workloads to start, or new revisions of workloads to replace.
    pub added: Vec<AddedWorkload>,
    /// Instances to stop.
    pub deleted: Vec<DeletedWorkload>,
}

/// A workload to run, with the name of the instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AddedWorkload {
    pub instance: InstanceName,
    /// Shared with the server's state.
    pub workload: Arc<Workload>,
}

/// An instance to stop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeletedWorkload {
    pub instance: InstanceName,
    /// The conditions that its dependents must meet before the stop.
    pub dependencies: BTreeMap<String, DeleteCondition>,
}

/// Load of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentLoad {
    /// Name of the agent.
    pub agent: String,
    /// Percent of all cores together, 0 to 100.
    pub cpu_usage: u32,
    /// Bytes.
    pub free_memory: u64,
    /// Names and versions of its container engines, such as `podman 4.3.1`; empty if not known.
    pub engine: String,
}

/// A request of a commander or a workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Chosen by the sender, not unique; connection layers put prefixes before it.
    pub id: String,
    pub content: RequestContent,
}

/// The kinds of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum RequestContent {
    /// Change the desired state.
    UpdateState(UpdateState),
    /// Restore the desired state from before the guarded update of this number.
    RollBack(u64),
    /// Stop and start workloads; the desired state stays as it is.
    StopAndStart(StopAndStart),
    /// Read the state.
    CompleteState(ReadState),
    /// Collect logs.
    Logs(LogsRequest),
    /// Stop collecting the logs of the request with the same id.
    LogsCancel,
    /// Stop the events of the request with the same id.
    EventsCancel,
    /// The sender left it out.
    #[default]
    Missing,
}

impl RequestContent {
    /// Returns whether it cancels a subscription.
    pub fn is_cancel(&self) -> bool {
        matches!(self, Self::LogsCancel | Self::EventsCancel)
    }

    /// About how many bytes of memory the content points to. Queues are bounded by this number,
    /// which need not be exact.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::UpdateState(UpdateState {
                new_state,
                masks,
                restart,
            }) => {
                let state = match new_state {
                    None => 0,
                    Some(Ok(state)) => state.memory_bytes(),
                    Some(Err(reason)) => reason.len(),
                };
                state + texts_bytes(masks) + texts_bytes(restart)
            }
            Self::StopAndStart(StopAndStart { stop, start }) => {
                texts_bytes(stop) + texts_bytes(start)
            }
            Self::CompleteState(read) => texts_bytes(&read.masks),
            Self::Logs(logs) => {
                let mut bytes = logs.since.as_ref().map_or(0, String::len);
                bytes += logs.until.as_ref().map_or(0, String::len);
                for instance in &logs.instances {
                    bytes += size_of::<InstanceName>() + instance.bytes();
                }
                bytes
            }
            Self::RollBack(_) | Self::LogsCancel | Self::EventsCancel | Self::Missing => 0,
        }
    }

    /// Returns whether it changes the desired state.
    pub fn is_update(&self) -> bool {
        matches!(
            self,
            Self::UpdateState(_) | Self::RollBack(_) | Self::StopAndStart(_)
        )
    }
}

fn texts_bytes(texts: &[String]) -> usize {
    texts
        .iter()
        .map(|text| size_of::<String>() + text.len())
        .sum()
}

/// Change of the desired state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpdateState {
    /// The new state as a field tree with exactly the present fields, or why it cannot be read;
    /// `None` if the sender left it out.
    pub new_state: Option<Result<Node, String>>,
    /// Paths to take from it; none means the whole desired state.
    pub masks: Vec<String>,
    /// Workloads to restart with all dependents that need them running; with a new state only
    /// those of them that it changes.
    pub restart: Vec<String>,
}

/// Workloads that are stopped or started although they stay desired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopAndStart {
    /// Those that leave the effective state until a client starts them again.
    pub stop: Vec<String>,
    /// Stopped ones that come back.
    pub start: Vec<String>,
}

/// Reading of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadState {
    /// Paths to read; none means all.
    pub masks: Vec<String>,
    /// Whether to send later changes as events.
    pub subscribe: bool,
}

/// Logs to collect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogsRequest {
    pub instances: Vec<InstanceName>,
    /// Whether to continue with new lines.
    pub follow: Option<bool>,
    /// Lines from the end; absent or negative means all.
    pub tail: Option<i32>,
    /// RFC 3339 time.
    pub since: Option<String>,
    /// RFC 3339 time.
    pub until: Option<String>,
    /// Whether each line begins with its time. Other implementations ignore it.
    pub timestamps: bool,
}

/// A response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// Id of the request.
    pub id: String,
    pub content: ResponseContent,
}

/// The kinds of responses.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseContent {
    /// The request was refused.
    Error(ErrorResponse),
    /// The state, or an event about it.
    CompleteState {
        /// The selected parts as a field tree.
        state: Node,
        /// The changed fields; only in events.
        altered: Option<AlteredFields>,
    },
    /// The update was accepted.
    UpdateStateSuccess {
        /// Instances that will start.
        added: Vec<String>,
        /// Instances that will end.
        deleted: Vec<String>,
        /// Instances that start again when all of them have ended.
        restarted: Vec<String>,
        /// Why a restart of the server may lose the update.
        warning: Option<String>,
    },
    /// Logs of these instances will come.
    LogsAccepted(Vec<InstanceName>),
    /// Log lines.
    LogEntries(Vec<LogEntry>),
    /// The end of the lines of this instance.
    LogsStop(InstanceName),
    /// The collection ended.
    LogsCancelAccepted,
    /// The events ended.
    EventsCancelAccepted,
}

/// The content of a response whose sender left it out.
impl Default for ResponseContent {
    fn default() -> Self {
        Self::Error("an answer without content".into())
    }
}

/// Paths of the changed fields of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlteredFields {
    /// New.
    pub added: Vec<String>,
    /// Different.
    pub updated: Vec<String>,
    /// Gone.
    pub removed: Vec<String>,
}

/// One line of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// The instance that wrote it.
    pub instance: InstanceName,
    /// The line without its end.
    pub message: String,
    /// Whether the agent wrote it: the reason why there are no lines.
    pub is_reason: bool,
}

impl LogEntry {
    /// A line that `instance` wrote.
    pub fn line(instance: InstanceName, message: impl Into<String>) -> Self {
        Self {
            instance,
            message: message.into(),
            is_reason: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    #[test]
    fn memory_of_a_request_counts_what_the_sender_chooses() {
        let text = size_of::<String>();
        let instance = size_of::<InstanceName>();
        let update = |new_state| {
            RequestContent::UpdateState(UpdateState {
                new_state,
                masks: vec!["ab".to_owned()],
                restart: vec!["web".to_owned(), String::new()],
            })
        };
        let logs = LogsRequest {
            instances: vec![
                InstanceName::with_id("w", "id", "A"),
                InstanceName::with_id("web", "id", "A"),
            ],
            since: Some("12".to_owned()),
            until: Some("345".to_owned()),
            ..LogsRequest::default()
        };
        let read = ReadState {
            masks: vec!["abc".to_owned()],
            subscribe: false,
        };
        for (content, expected) in [
            (update(None), 3 * text + 5),
            (update(Some(Ok(Node::text("1234")))), 3 * text + 9),
            (update(Some(Err("why".to_owned()))), 3 * text + 8),
            (RequestContent::CompleteState(read), text + 3),
            (RequestContent::Logs(logs), 2 * instance + 5 + 10),
            (RequestContent::RollBack(1), 0),
        ] {
            assert_eq!(content.memory_bytes(), expected, "{content:?}");
        }
    }
}
