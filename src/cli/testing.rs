//! A server and a clock for the tests of commands: scripted answers, no thread, no waiting.
//!
//! Thread: the test's. Owns: the script. Takes: requests. Gives: what the script says, in its order.

use super::error::{CommandError, ENDED, ENDED_IN_LOGS, ENDED_READING, NO_LOGS};
use super::session::{Accepted, LogStep, ServerLink, StateEvent};
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

/// Time that passes only while [`ScriptedServer`] is silent; clones show the same time.
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

/// What the server does next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Answers a reading request.
    State(Node),
    /// Answers a reading request with an error.
    NoState(&'static str),
    /// Accepts an update.
    Accept(Accepted),
    /// Refuses an update.
    Refuse(&'static str),
    /// Broadcasts states.
    Broadcast(Vec<WorkloadState>),
    /// Says nothing for this long.
    Silence(Duration),
    /// Tells of a change.
    Event(StateEvent),
    /// Accepts a request for logs of these instances.
    Logs(Vec<InstanceName>),
    /// Sends lines, ends them, or tells of states meanwhile.
    Log(LogStep),
    /// Not the server: somebody presses Ctrl+C.
    Signal,
}

/// Plays a script and remembers what was asked; at the end of the script the connection is lost.
#[derive(Debug)]
pub struct ScriptedServer {
    steps: VecDeque<Step>,
    /// The clock that [`Step::Silence`] moves.
    pub clock: ScriptedClock,
    /// Masks of the reading requests.
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

fn lost(phrase: &'static str) -> CommandError {
    CommandError::Ended { phrase, end: StreamEnd::Lost("end of the script".to_owned()) }
}

impl ServerLink for ScriptedServer {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.reads.push(masks.iter().map(ToString::to_string).collect());
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::NoState(text)) => Err(CommandError::Answer(text.to_owned())),
            None => Err(lost(ENDED_READING)),
            other => panic!("a state was asked for, the script says {other:?}"),
        }
    }

    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError> {
        self.updates.push((new_state, masks));
        match self.steps.pop_front() {
            Some(Step::Accept(accepted)) => Ok(accepted),
            Some(Step::Refuse(text)) => Err(CommandError::Refused(text.to_owned())),
            None => Err(lost(ENDED)),
            other => panic!("an update was sent, the script says {other:?}"),
        }
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
            None => Err(lost(ENDED)),
            other => panic!("states were awaited, the script says {other:?}"),
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.reads.push(masks.iter().map(ToString::to_string).collect());
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::Refuse(text)) => Err(CommandError::Subscription(text.to_owned())),
            None => Err(lost(ENDED)),
            other => panic!("events were asked for, the script says {other:?}"),
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
            None => Err(lost(ENDED)),
            other => panic!("an event was awaited, the script says {other:?}"),
        }
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError> {
        self.logs.push(request);
        match self.steps.pop_front() {
            Some(Step::Logs(instances)) => Ok(instances),
            Some(Step::Refuse(text)) => Err(CommandError::Answer(text.to_owned())),
            None => Err(lost(NO_LOGS)),
            other => panic!("logs were asked for, the script says {other:?}"),
        }
    }

    fn next_log(&mut self) -> Result<LogStep, CommandError> {
        match self.steps.pop_front() {
            Some(Step::Log(step)) => Ok(step),
            Some(Step::Refuse(text)) => Err(CommandError::Logs(text.to_owned())),
            Some(Step::Signal) => Err(CommandError::Interrupted),
            None => Err(lost(ENDED_IN_LOGS)),
            other => panic!("log lines were awaited, the script says {other:?}"),
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

/// The answer that these instances start and end.
pub fn accepted(added: &[&str], deleted: &[&str]) -> Accepted {
    let all = |names: &[&str]| names.iter().map(|name| instance(name)).collect();
    Accepted { added: all(added), deleted: all(deleted) }
}
