//! What tests of commands share: a scripted server with its time; no thread, no waiting.
//!
//! Thread: the test's. Owns: the script. Takes: requests. Gives: the steps of the script, in order.

use super::error::CliError;
use super::output::Output;
use super::session::{Accepted, Incoming, ServerLink};
use ankaios_model::complete_state::execution_state_node;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{
    AlteredFields, LogsRequest, RequestContent, StopAndStart, UpdateState,
};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_wire::client::StreamEnd;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The next step of the server.
#[derive(Debug, Clone)]
pub(crate) enum Step {
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
    Event(Node, AlteredFields),
    /// Accepts a request for logs of these instances.
    Logs(Vec<InstanceName>),
    /// Sends lines, ends them, or sends states.
    Log(Incoming),
    /// Not the server: a signal.
    Signal,
    /// Not the server: a line of standard input.
    Line(&'static str),
}

/// Plays a script and records the requests; at its end the connection is lost.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    pub(crate) steps: VecDeque<Step>,
    /// The time; it advances only in [`Step::Silence`].
    pub(crate) now: Instant,
    /// Masks of the reads.
    pub(crate) reads: Vec<Vec<String>>,
    /// New states and masks of the updates.
    pub(crate) updates: Vec<(Node, Vec<String>)>,
    /// The workloads that they restart.
    pub(crate) restarts: Vec<Vec<String>>,
    /// Requests to stop and start.
    pub(crate) stops: Vec<StopAndStart>,
    /// Requests for logs.
    pub(crate) logs: Vec<LogsRequest>,
    /// Whether logs were cancelled.
    pub(crate) cancelled: bool,
}

impl ScriptedServer {
    /// A server that does `steps`.
    pub(crate) fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        Self {
            steps,
            now: SystemClock.now(),
            reads: Vec::new(),
            updates: Vec::new(),
            restarts: Vec::new(),
            stops: Vec::new(),
            logs: Vec::new(),
            cancelled: false,
        }
    }

    /// Whether the whole script was played.
    pub(crate) fn is_done(&self) -> bool {
        self.steps.is_empty()
    }
}

fn lost() -> CliError {
    CliError::ended(StreamEnd::Lost("end of the script".to_owned()), false)
}

impl ServerLink for ScriptedServer {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CliError> {
        self.reads
            .push(masks.iter().map(ToString::to_string).collect());
        if matches!(self.steps.front(), Some(Step::Silence(_))) {
            self.steps.pop_front(); // It was cut short by the read.
        }
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::NoState(text)) => Err(CliError::Response(text.to_owned())),
            Some(Step::Late) => Err(CliError::TimedOut(Duration::from_secs(3))),
            Some(Step::Signal) => Err(CliError::Interrupted),
            None => Err(lost()),
            other => panic!("a state is read, the script has {other:?}"),
        }
    }

    fn update(&mut self, content: RequestContent) -> Result<Accepted, CliError> {
        match content {
            RequestContent::UpdateState(UpdateState {
                new_state,
                masks,
                restart,
            }) => {
                self.updates
                    .push((new_state.and_then(Result::ok).unwrap_or_default(), masks));
                self.restarts.push(restart);
            }
            RequestContent::RollBack(update) => {
                self.updates.push((Node::Number(update), Vec::new()))
            }
            RequestContent::StopAndStart(names) => self.stops.push(names),
            other => panic!("{other:?}"),
        }
        match self.steps.pop_front() {
            Some(Step::Accept(accepted)) => Ok(accepted),
            Some(Step::Refuse(text)) => {
                let error = ErrorResponse::received(text.to_owned(), None);
                Err(CliError::Refused(error))
            }
            None => Err(lost()),
            other => panic!("an update was sent, the script has {other:?}"),
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CliError> {
        self.reads
            .push(masks.iter().map(ToString::to_string).collect());
        match self.steps.pop_front() {
            Some(Step::State(state)) => Ok(state),
            Some(Step::Refuse(text)) => Err(CliError::Subscription(text.to_owned())),
            None => Err(lost()),
            other => panic!("a subscription, the script has {other:?}"),
        }
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CliError> {
        self.logs.push(request);
        match self.steps.pop_front() {
            Some(Step::Logs(instances)) => Ok(instances),
            Some(Step::Refuse(text)) => Err(CliError::Response(text.to_owned())),
            None => Err(lost()),
            other => panic!("logs are requested, the script has {other:?}"),
        }
    }

    fn next(&mut self, until: Option<Instant>) -> Result<Option<Incoming>, CliError> {
        match self.steps.pop_front() {
            Some(Step::Broadcast(states)) => Ok(Some(Incoming::States(states))),
            Some(Step::Event(state, altered)) => Ok(Some(Incoming::Event(state, altered))),
            Some(Step::Log(incoming)) => Ok(Some(incoming)),
            Some(Step::Silence(duration)) => {
                let end = self.now + duration;
                match until {
                    Some(until) if until < end => {
                        self.steps.push_front(Step::Silence(end - until));
                        self.now = until;
                        Ok(None)
                    }
                    _ => {
                        self.now = end;
                        self.next(until)
                    }
                }
            }
            Some(Step::Refuse(text)) => Err(CliError::Logs(text.to_owned())),
            Some(Step::Signal) => Err(CliError::Interrupted),
            None => Err(lost()),
            other => panic!("nothing is requested, the script has {other:?}"),
        }
    }

    fn cancel_logs(&mut self) {
        self.cancelled = true;
    }

    fn reconnect(&mut self) -> Result<(), CliError> {
        Ok(())
    }

    fn read_line(&mut self) -> Result<String, CliError> {
        match self.steps.pop_front() {
            Some(Step::Line(text)) => Ok(text.to_owned()),
            Some(Step::Signal) => Err(CliError::Interrupted),
            other => panic!("a line is read, the script has {other:?}"),
        }
    }

    fn now(&self) -> Instant {
        self.now
    }
}

/// The instance `<workload>.<id>.<agent>`.
pub(crate) fn instance(text: &str) -> InstanceName {
    InstanceName::parse(text).unwrap()
}

/// A reported state.
pub(crate) fn reported(name: &str, phase: Phase, info: &str) -> WorkloadState {
    WorkloadState::new(instance(name), ExecutionState::from_text(phase, info))
}

/// The response that these instances start and end.
pub(crate) fn accepted(added: &[&str], deleted: &[&str]) -> Accepted {
    let all = |names: &[&str]| names.iter().map(|name| instance(name)).collect();
    Accepted {
        added: all(added),
        deleted: all(deleted),
        ..Accepted::default()
    }
}

/// The complete state in which `instances` run with podman, in the given phases.
pub(crate) fn state(agents: &[&str], instances: &[(&str, &str, &str, Phase)]) -> Node {
    let mut states = Node::empty();
    let mut workloads = Node::empty();
    for (workload, id, agent, phase) in instances {
        let mut place = &mut states;
        for part in [agent, workload, id] {
            place = place.as_map_mut().unwrap().child((*part).to_owned());
        }
        *place = execution_state_node(&ExecutionState::plain(*phase));
        let workload_node = Node::map([
            ("agent", Node::text(*agent)),
            ("runtime", Node::text("podman")),
        ]);
        workloads
            .as_map_mut()
            .unwrap()
            .insert((*workload).to_owned(), workload_node);
    }
    Node::map([
        ("workloadStates", states),
        (
            "agents",
            Node::map(agents.iter().map(|agent| (*agent, Node::empty()))),
        ),
        ("desiredState", Node::map([("workloads", workloads)])),
    ])
}

/// Adds what `workload` needs to a part of `state`.
pub(crate) fn let_need(state: &mut Node, part: &str, workload: &str, needs: &[(&str, &str)]) {
    let place = [part, "workloads", workload, "dependencies"]
        .into_iter()
        .fold(state, |place, key| {
            place.as_map_mut().unwrap().child(key.to_owned())
        });
    *place = Node::map(
        needs
            .iter()
            .map(|(name, condition)| (*name, Node::text(*condition))),
    );
}

/// A stream that is read after it was written.
#[derive(Clone, Default)]
pub(crate) struct Written(Rc<RefCell<Vec<u8>>>);

impl Written {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a command did with a script.
#[derive(Debug)]
pub(crate) struct Played<T> {
    pub(crate) result: Result<T, CliError>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
    pub(crate) server: ScriptedServer,
}

/// Runs `command` against `steps`; with `terminal`, standard output is one of that size.
pub(crate) fn play<T>(
    terminal: Option<fn() -> (usize, usize)>,
    steps: impl IntoIterator<Item = Step>,
    command: impl FnOnce(&mut ScriptedServer, &mut Output) -> Result<T, CliError>,
) -> Played<T> {
    let mut server = ScriptedServer::new(steps);
    let (out, err) = (Written::default(), Written::default());
    let mut output = Output::to(out.clone(), err.clone(), terminal);
    let result = command(&mut server, &mut output);
    drop(output);
    Played {
        result,
        out: out.text(),
        err: err.text(),
        server,
    }
}
