//! A server and a clock for the tests of commands: scripted answers, no thread, no waiting.
//!
//! Thread: the test's. Owns: the script. Takes: requests. Gives: what the script says, in its order.

use super::error::{CommandError, ENDED, ENDED_READING};
use super::session::{Accepted, ServerLink};
use crate::clock::{Clock, SystemClock};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::InstanceName;
use crate::model::node::Node;
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
    /// Accepts an update.
    Accept(Accepted),
    /// Refuses an update.
    Refuse(&'static str),
    /// Broadcasts states.
    Broadcast(Vec<WorkloadState>),
    /// Says nothing for this long.
    Silence(Duration),
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
}

impl ScriptedServer {
    /// A server that does `steps`.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let clock = ScriptedClock(Arc::new(Mutex::new(SystemClock.now())));
        Self { steps: steps.into_iter().collect(), clock, reads: Vec::new(), updates: Vec::new() }
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
