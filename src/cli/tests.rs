//! What tests of commands share: a scripted server and a clock; no thread, no waiting.
//!
//! Thread: the test's. Owns: the script. Takes: requests. Gives: the steps of the script, in order.

use super::error::{CliError, CommandError};
use super::output::Output;
use super::session::{Accepted, LogStep, ServerLink, StateEvent};
use crate::model::complete_state::execution_state_node;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::LogsRequest;
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::platform::clock::{Clock, SystemClock};
use crate::wire::client::StreamEnd;
use crossbeam_channel::{Receiver, never};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time that advances only in [`Step::Silence`]; clones have the same time.
#[derive(Debug, Clone)]
pub struct ScriptedClock(Arc<Mutex<Instant>>);

impl Clock for ScriptedClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    fn alarm(&self, _at: Instant) -> Receiver<Instant> {
        never()
    }
}

/// The next step of the server.
#[derive(Debug, Clone)]
pub enum Step {
    /// Responds to a read.
    State(Node),
    /// Responds to a read with an error.
    NoState(&'static str),
    /// Does not respond to a read in time.
    Late,
    /// Accepts an update.
    Accept(Accepted),
    /// Refuses an update.
    Refuse(&'static str),
    /// Broadcasts states.
    Broadcast(Vec<WorkloadState>),
    /// Sends nothing for this time.
    Silence(Duration),
    /// Sends an event.
    Event(StateEvent),
    /// Accepts a request for logs of these instances.
    Logs(Vec<InstanceName>),
    /// Sends lines, ends them, or sends states.
    Log(LogStep),
    /// Not the server: a signal.
    Signal,
}

/// Plays a script and records the requests; at its end the connection is lost.
#[derive(Debug)]
pub struct ScriptedServer {
    steps: VecDeque<Step>,
    /// The clock that [`Step::Silence`] moves.
    pub clock: ScriptedClock,
    /// Masks of the reads.
    pub reads: Vec<Vec<String>>,
    /// New states and masks of the updates.
    pub updates: Vec<(Node, Vec<String>)>,
    /// Requests for logs.
    pub logs: Vec<LogsRequest>,
    /// Whether logs were cancelled.
    pub cancelled: bool,
}

impl ScriptedServer {
    /// A server that does `steps`.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let clock = ScriptedClock(Arc::new(Mutex::new(SystemClock.now())));
        let steps = steps.into_iter().collect();
        Self { steps, clock, reads: Vec::new(), updates: Vec::new(), logs: Vec::new(), cancelled: false }
    }

    /// Whether the whole script was played.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty()
    }
}

fn lost() -> CommandError {
    CommandError::Ended(StreamEnd::Lost("end of the script".to_owned()))
}

impl ServerLink for ScriptedServer {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.reads.push(masks.iter().map(ToString::to_string).collect());
        if matches!(self.steps.front(), Some(Step::Silence(_))) {
            self.steps.pop_front(); // It was cut short by the read.
        }
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::NoState(text)) => Err(CommandError::Response(text.to_owned())),
            Some(Step::Late) => Err(CommandError::TimedOut(Duration::from_secs(3))),
            None => Err(lost()),
            other => panic!("a state is read, the script has {other:?}"),
        }
    }

    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError> {
        self.updates.push((new_state, masks));
        match self.steps.pop_front() {
            Some(Step::Accept(accepted)) => Ok(accepted),
            Some(Step::Refuse(text)) => Err(CommandError::Refused(text.to_owned())),
            None => Err(lost()),
            other => panic!("an update was sent, the script has {other:?}"),
        }
    }

    fn roll_back(&mut self, update: u64) -> Result<Accepted, CommandError> {
        self.update_state(Node::Number(update), Vec::new())
    }

    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>, CommandError> {
        match self.steps.pop_front() {
            Some(Step::Broadcast(states)) => Ok(Some(states)),
            Some(Step::Silence(duration)) => {
                let end = self.clock.now() + duration;
                match until {
                    Some(until) if until < end => {
                        self.steps.push_front(Step::Silence(end - until));
                        *self.clock.0.lock().unwrap() = until;
                        Ok(None)
                    }
                    _ => {
                        *self.clock.0.lock().unwrap() = end;
                        self.next_states(until)
                    }
                }
            }
            Some(Step::Signal) => Err(CommandError::Interrupted),
            None => Err(lost()),
            other => panic!("states are awaited, the script has {other:?}"),
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.reads.push(masks.iter().map(ToString::to_string).collect());
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::Refuse(text)) => Err(CommandError::Subscription(text.to_owned())),
            None => Err(lost()),
            other => panic!("a subscription, the script has {other:?}"),
        }
    }

    fn next_event(&mut self, until: Option<Instant>) -> Result<Option<StateEvent>, CommandError> {
        match self.steps.pop_front() {
            Some(Step::Event(event)) => Ok(Some(event)),
            Some(Step::Silence(duration)) => {
                let end = self.clock.now() + duration;
                assert!(until.is_some_and(|until| until < end), "the silence ends nothing");
                Ok(None)
            }
            Some(Step::Signal) => Err(CommandError::Interrupted),
            None => Err(lost()),
            other => panic!("an event is awaited, the script has {other:?}"),
        }
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError> {
        self.logs.push(request);
        match self.steps.pop_front() {
            Some(Step::Logs(instances)) => Ok(instances),
            Some(Step::Refuse(text)) => Err(CommandError::Response(text.to_owned())),
            None => Err(lost()),
            other => panic!("logs are requested, the script has {other:?}"),
        }
    }

    fn next_log(&mut self) -> Result<LogStep, CommandError> {
        match self.steps.pop_front() {
            Some(Step::Log(step)) => Ok(step),
            Some(Step::Refuse(text)) => Err(CommandError::Logs(text.to_owned())),
            Some(Step::Signal) => Err(CommandError::Interrupted),
            None => Err(lost()),
            other => panic!("log lines are awaited, the script has {other:?}"),
        }
    }

    fn cancel_logs(&mut self) {
        self.cancelled = true;
    }
}

/// The instance `<workload>.<id>.<agent>`.
pub fn instance(text: &str) -> InstanceName {
    InstanceName::parse(text).unwrap()
}

/// A reported state.
pub fn reported(name: &str, phase: Phase, info: &str) -> WorkloadState {
    WorkloadState::new(instance(name), ExecutionState::with_info(phase, info))
}

/// The response that these instances start and end.
pub fn accepted(added: &[&str], deleted: &[&str]) -> Accepted {
    let all = |names: &[&str]| names.iter().map(|name| instance(name)).collect();
    Accepted { added: all(added), deleted: all(deleted), earlier: Vec::new() }
}

/// The complete state in which `instances` run with podman, in the given phases.
pub fn state(agents: &[&str], instances: &[(&str, &str, &str, Phase)]) -> Node {
    let mut states = Node::empty();
    let mut workloads = Node::empty();
    for (workload, id, agent, phase) in instances {
        let mut place = &mut states;
        for part in [agent, workload, id] {
            place = place.as_map_mut().unwrap().child((*part).to_owned());
        }
        *place = execution_state_node(&ExecutionState::plain(*phase));
        let workload_node = Node::map([("agent", Node::text(*agent)), ("runtime", Node::text("podman"))]);
        workloads.as_map_mut().unwrap().insert((*workload).to_owned(), workload_node);
    }
    Node::map([
        ("workloadStates", states),
        ("agents", Node::map(agents.iter().map(|agent| (*agent, Node::empty())))),
        ("desiredState", Node::map([("workloads", workloads)])),
    ])
}

/// Adds what `workload` needs to a part of `state`.
pub fn let_need(state: &mut Node, part: &str, workload: &str, needs: &[(&str, &str)]) {
    let place = [part, "workloads", workload, "dependencies"]
        .into_iter()
        .fold(state, |place, key| place.as_map_mut().unwrap().child(key.to_owned()));
    *place = Node::map(needs.iter().map(|(name, condition)| (*name, Node::text(*condition))));
}

/// What a command did with a script.
#[derive(Debug)]
pub struct Played<T> {
    pub result: Result<T, CliError>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    pub server: ScriptedServer,
}

/// Runs `command` against `steps`; with `terminal`, standard output is one of that size.
pub fn play<T>(
    terminal: Option<fn() -> (usize, usize)>,
    steps: impl IntoIterator<Item = Step>,
    command: impl FnOnce(&mut ScriptedServer, &ScriptedClock, &mut Output<'_>) -> Result<T, CliError>,
) -> Played<T> {
    let mut server = ScriptedServer::new(steps);
    let clock = server.clock.clone();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut output = Output::to(&mut out, &mut err, terminal);
    let result = command(&mut server, &clock, &mut output);
    drop(output);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Played { result, out: text(out), err: text(err), server }
}
