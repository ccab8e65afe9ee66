//! Messages between servers, agents, commanders and workloads, after the wire format was checked.
//!
//! Thread: none, plain values.

use super::execution_state::WorkloadState;
use super::names::InstanceName;
use super::node::Node;
use super::prepare_level::PrepareLevel;
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
    /// How far instances are that shall be prepared.
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
    /// No more log lines of this instance for the requester with this id.
    LogsStop {
        /// Full id of the logs request.
        request_id: String,
        /// Whose log ended.
        instance: InstanceName,
    },
    /// What the agent's workloads and its node use.
    UsageResponse {
        /// The number of the request.
        number: u64,
        /// The sample.
        usage: AgentUsage,
    },
    /// The sender leaves.
    Goodbye,
    /// Something without content, or content without its mandatory part; only worth a warning.
    Empty,
}

/// How an agent presents itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentHello {
    /// Its name; not checked in a message.
    pub agent: String,
    /// Its version, likewise.
    pub version: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// What it does beyond what every agent does.
    pub capabilities: AgentCapabilities,
}

/// What an agent does only if its program can; other implementations and older programs do nothing
/// of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCapabilities {
    /// It responds to [`FromServer::UsageRequest`].
    pub tells_usage: bool,
    /// It prepares instances of an update while the old ones run.
    pub prepares: bool,
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
    /// An answer to a request.
    Response(Response),
    /// Collect logs.
    LogsRequest {
        /// Full id of the request.
        request_id: String,
        /// What to collect.
        request: LogsRequest,
    },
    /// Stop collecting logs.
    LogsCancel {
        /// Full id of the request.
        request_id: String,
    },
    /// All instances that the agent shall prepare beside what runs.
    Prepare(Vec<AddedWorkload>),
    /// Send what workloads and node use; only to agents that do.
    UsageRequest {
        /// Repeated in the response.
        number: u64,
    },
}

/// How far an agent is with an instance that it shall prepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparedInstance {
    /// Which.
    pub instance: InstanceName,
    /// Its level when all is prepared that can be.
    pub level: Option<PrepareLevel>,
    /// Why the last try failed.
    pub reason: Option<String>,
    /// Tries that failed.
    pub tries: u32,
    /// Whether there is no further try.
    pub is_final: bool,
    /// What does not hold of the conditions under which it may replace the old instance.
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
    /// Something for the server, not yet authorised; the id is the workload's own.
    Request(Request),
    /// A request that is not decoded, because of the memory that it would take.
    TooHeavy {
        /// Its id.
        id: String,
        /// How heavy it is.
        reason: String,
    },
    /// Nothing.
    Empty,
}

/// From an agent to a workload, through the control interface.
#[derive(Debug, Clone, PartialEq)]
pub enum ToWorkload {
    /// The response to a hello.
    Accepted,
    /// The session ends.
    Closed {
        /// Why.
        reason: String,
    },
    /// An answer to a request, with the workload's own id.
    Response(Response),
}

/// What changes for one agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkloadPlan {
    /// Workloads to start, or the new form of workloads to change.
    pub added: Vec<AddedWorkload>,
    /// Instances to stop.
    pub deleted: Vec<DeletedWorkload>,
}

/// A workload to run, with the name of the instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AddedWorkload {
    /// Which instance.
    pub instance: InstanceName,
    /// What to run; shared with the server's state.
    pub workload: Arc<Workload>,
}

/// An instance to stop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeletedWorkload {
    /// Which instance.
    pub instance: InstanceName,
    /// What other workloads must have reached before.
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
}

/// A request of a commander or a workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Chosen by the sender, not unique; connection layers put prefixes before it.
    pub id: String,
    /// What is requested.
    pub content: RequestContent,
}

/// The kinds of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum RequestContent {
    /// Change the desired state.
    UpdateState(UpdateState),
    /// Change the desired state to what it was before the guarded update of this number.
    RollBack(u64),
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
    /// Whether it only ends something that goes on.
    pub fn is_cancel(&self) -> bool {
        matches!(self, Self::LogsCancel | Self::EventsCancel)
    }

    /// What it takes in memory beside itself, in bytes, about: queues are bounded by it, and a
    /// bound needs no exact number.
    pub fn memory_bytes(&self) -> usize {
        let texts = |texts: &[String]| {
            texts
                .iter()
                .map(|text| size_of::<String>() + text.len())
                .sum::<usize>()
        };
        match self {
            Self::UpdateState(UpdateState {
                new_state,
                masks,
                restart,
            }) => {
                let state = new_state.as_ref().map_or(0, |state| {
                    state.as_ref().map_or_else(String::len, Node::memory_bytes)
                });
                state + texts(masks) + texts(restart)
            }
            Self::CompleteState(read) => texts(&read.masks),
            Self::Logs(LogsRequest {
                instances,
                since,
                until,
                ..
            }) => {
                let names = instances
                    .iter()
                    .map(|instance| size_of::<InstanceName>() + instance.bytes());
                names.sum::<usize>() + since.iter().chain(until).map(String::len).sum::<usize>()
            }
            Self::RollBack(_) | Self::LogsCancel | Self::EventsCancel | Self::Missing => 0,
        }
    }

    /// Whether it changes the desired state.
    pub fn is_update(&self) -> bool {
        matches!(self, Self::UpdateState(_) | Self::RollBack(_))
    }
}

/// Change of the desired state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpdateState {
    /// The new state as a field tree that keeps what was present, or why it cannot be read;
    /// `None` when the sender left it out.
    pub new_state: Option<Result<Node, String>>,
    /// Paths to take from it; none means the whole desired state.
    pub masks: Vec<String>,
    /// Workloads to restart with all that need them running; with a new state those of them that it
    /// changes.
    pub restart: Vec<String>,
}

/// Reading of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadState {
    /// Paths to read; none means all.
    pub masks: Vec<String>,
    /// Also send what changes later.
    pub subscribe: bool,
}

/// Logs to collect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogsRequest {
    /// Of which instances.
    pub instances: Vec<InstanceName>,
    /// Go on with new lines.
    pub follow: Option<bool>,
    /// Lines from the end; absent or negative means all.
    pub tail: Option<i32>,
    /// RFC 3339 time.
    pub since: Option<String>,
    /// RFC 3339 time.
    pub until: Option<String>,
}

/// A response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// Id of the request.
    pub id: String,
    /// Its content.
    pub content: ResponseContent,
}

/// The kinds of responses.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseContent {
    /// The request was refused.
    Error(String),
    /// The state, or an event about it.
    CompleteState {
        /// The selected parts as a field tree.
        state: Node,
        /// What changed; only in events.
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
        /// What users should know of the stored state: why a restart of the server may lose the
        /// update.
        warning: Option<String>,
    },
    /// Logs of these instances will come.
    LogsAccepted(Vec<InstanceName>),
    /// Log lines.
    LogEntries(Vec<LogEntry>),
    /// No more lines of this instance.
    LogsStop(InstanceName),
    /// The collection ended.
    LogsCancelAccepted,
    /// The events ended.
    EventsCancelAccepted,
}

/// What nothing was sent for.
impl Default for ResponseContent {
    fn default() -> Self {
        Self::Error("an answer without content".to_owned())
    }
}

/// Paths of what an event is about.
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
    /// Who wrote it.
    pub instance: InstanceName,
    /// The line without its end.
    pub message: String,
    /// Nobody wrote it: it says why there are no lines.
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
