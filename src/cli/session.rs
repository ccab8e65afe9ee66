//! One connection to the server: requests with their answers, and the workload states it broadcasts meanwhile.
//!
//! Thread: `main`; `cli:rx` connects, receives and passes everything on in order; `cli:tx` sends, so that a server
//! that reads nothing cannot hold up `main` beyond its timeouts.
//! Owns: both threads, and the states received while an answer was awaited.

use super::error::{CliError, CommandError, ENDED, ENDED_IN_LOGS, ENDED_READING, NO_LOGS};
use crate::limits::{CLI_INBOX, CLI_OUTBOX, CONNECT_MAX, GOODBYE_MAX, STACK_LARGE, STOP_DEADLINE};
use crate::model::execution_state::WorkloadState;
use crate::model::messages::{AlteredFields, LogEntry, LogsRequest, ToServer, UpdateState};
use crate::model::messages::{FromServer, ReadState, Request, RequestContent, Response, ResponseContent};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::version::VERSION;
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::settings::MessageSize;
use crate::platform::threads::{self, Thread};
use crate::wire::address::{Security, ServerUrl};
use crate::wire::client::{self, ClientOptions, ClientSender, ConnectError, Hangup, Service, StreamEnd};
use crossbeam_channel::{Receiver, Sender, at, bounded, never, select_biased};
use std::time::{Duration, Instant};

/// Instances that an accepted update starts and ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// They start.
    pub added: Vec<InstanceName>,
    /// They end.
    pub deleted: Vec<InstanceName>,
}

/// What the commands need from a server.
pub trait ServerLink {
    /// Reads the parts of the complete state that `masks` select; none means everything.
    ///
    /// # Errors
    /// No answer in time, no connection, or a refusal.
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError>;

    /// Changes the parts that `masks` name. States received before the server accepted are forgotten: they may tell
    /// of an instance as it was.
    ///
    /// # Errors
    /// No answer in time, no connection, or the server's refusal.
    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError>;

    /// The next states that the server broadcast, in order; `None` when `until` passed first.
    ///
    /// # Errors
    /// The connection ended.
    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>, CommandError>;

    /// Asks for the parts of the state that `masks` select, and for an event whenever something in them changes.
    /// Answers the state as it is.
    ///
    /// # Errors
    /// As [`Self::complete_state`]; a signal asked to stop.
    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError>;

    /// The next event of the subscription; `None` when `until` passed first.
    ///
    /// # Errors
    /// The connection ended, the server refused, or a signal asked to stop.
    fn next_event(&mut self, until: Option<Instant>) -> Result<Option<StateEvent>, CommandError>;

    /// Asks for logs. Answers the instances whose lines will come.
    ///
    /// # Errors
    /// As [`Self::subscribe`].
    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError>;

    /// What comes next of the logs asked for, or about the instances.
    ///
    /// # Errors
    /// As [`Self::next_event`].
    fn next_log(&mut self) -> Result<LogStep, CommandError>;

    /// Ends the logs asked for.
    fn cancel_logs(&mut self);
}

/// A change of the state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateEvent {
    /// Only what changed.
    pub state: Node,
    /// Where.
    pub altered: AlteredFields,
}

/// What happens while logs are followed.
#[derive(Debug, Clone, PartialEq)]
pub enum LogStep {
    /// Lines.
    Entries(Vec<LogEntry>),
    /// No more lines of this instance.
    Stopped(InstanceName),
    /// New states of instances, also of others.
    States(Vec<WorkloadState>),
}

enum Event {
    Connected(Result<(ClientSender, Hangup), ConnectError>),
    Message(FromServer),
    Ended(StreamEnd),
}

/// An answer, or states that were broadcast before it.
type Answer = Result<ResponseContent, Vec<WorkloadState>>;

/// The connection of one run of `ank`.
pub struct Session {
    requests: Sender<ToServer>,
    hangup: Hangup,
    events: Receiver<Event>,
    threads: [Thread; 2],
    /// Received while an answer was awaited, oldest first.
    kept: Vec<WorkloadState>,
    response_timeout: Duration,
    /// When the first request must be answered: connecting is part of the wait.
    first_deadline: Option<Instant>,
    /// Id of the request whose answers go on: events or logs.
    stream: String,
    /// Signals that end the command in order.
    interrupts: Receiver<()>,
}

impl Session {
    /// Connects to `url`. What comes from `interrupts` ends every later wait with [`CommandError::Interrupted`].
    ///
    /// # Errors
    /// [`CliError::Unreachable`] when no connection can be had, [`CommandError::TimedOut`] when `response_timeout` passed
    /// before that was clear.
    pub fn open(
        url: ServerUrl,
        security: Security,
        response_timeout: Duration,
        message_max: MessageSize,
        interrupts: Receiver<()>,
    ) -> Result<Self, CliError> {
        let deadline = deadline_after(response_timeout);
        let shown = url.to_string();
        let options = ClientOptions {
            url,
            security,
            service: Service::Cli,
            connect_limit: response_timeout.clamp(Duration::from_millis(1), CONNECT_MAX),
            message_max: message_max.0,
        };
        let (give, events) = bounded(CLI_INBOX);
        let no_thread = |error| CliError::Start { text: format!("cannot start a thread: {error}"), hint: None };
        let reader = threads::spawn("cli:rx", STACK_LARGE, move || receive_all(&options, &give)).map_err(no_thread)?;
        let late = at(deadline);
        let connected = select_biased! {
            recv(interrupts) -> _ => return Err(CommandError::Interrupted.into()),
            recv(events) -> event => event.ok(),
            recv(late) -> _ => None,
        };
        match connected {
            Some(Event::Connected(Ok((sender, hangup)))) => {
                let (requests, to_send) = bounded(CLI_OUTBOX);
                let writer = threads::spawn("cli:tx", STACK_LARGE, move || send_all(sender, &to_send));
                Ok(Self {
                    requests,
                    hangup,
                    events,
                    threads: [reader, writer.map_err(no_thread)?],
                    kept: Vec::new(),
                    response_timeout,
                    first_deadline: Some(deadline),
                    stream: String::new(),
                    interrupts,
                })
            }
            Some(Event::Connected(Err(error))) => {
                Err(unreachable_server(&shown, &error, response_timeout, SystemClock.now() >= deadline))
            }
            _ => Err(CommandError::TimedOut(response_timeout).into()),
        }
    }

    /// Sends a request and waits for its answer; states that come meanwhile are kept.
    fn ask(&mut self, content: RequestContent, phrase: &'static str) -> Result<ResponseContent, CommandError> {
        let id = uuid::Uuid::new_v4().to_string();
        let deadline = self.first_deadline.take().unwrap_or_else(|| deadline_after(self.response_timeout));
        self.stream.clone_from(&id);
        // Full or closed: no answer will come, and the receiver may know why.
        let _ = self.requests.try_send(ToServer::Request(Request { id: id.clone(), content }));
        loop {
            match self.next_message(Some(deadline), phrase)? {
                Some(FromServer::Response(Response { id: answered, content })) if answered == id => return Ok(content),
                Some(FromServer::WorkloadStates(states)) => self.kept.extend(states),
                Some(_) => {}
                None => return Err(CommandError::TimedOut(self.response_timeout)),
            }
        }
    }

    /// The next message; `None` when `until` passed first.
    fn next_message(
        &mut self,
        until: Option<Instant>,
        phrase: &'static str,
    ) -> Result<Option<FromServer>, CommandError> {
        let late = until.map_or_else(never, at);
        let received = select_biased! { // What arrived counts even when the time is over by now.
            recv(self.interrupts) -> signal => match signal {
                Ok(()) => return Err(CommandError::Interrupted),
                // Nobody listens to signals any more.
                Err(_) => { self.interrupts = never(); return self.next_message(until, phrase) }
            },
            recv(self.events) -> event => event,
            recv(late) -> _ => return Ok(None),
        };
        match received {
            Ok(Event::Message(message)) => Ok(Some(message)),
            Ok(Event::Ended(end)) => Err(CommandError::Ended { phrase, end }),
            Ok(Event::Connected(_)) | Err(_) => Err(CommandError::Ended { phrase, end: StreamEnd::Closed }),
        }
    }

    /// The next answer of the stream asked for last, or the states that came before it; `None` when `until` passed
    /// first.
    fn next_answer(&mut self, until: Option<Instant>, phrase: &'static str) -> Result<Option<Answer>, CommandError> {
        loop {
            match self.next_message(until, phrase)? {
                Some(FromServer::Response(Response { id, content })) if id == self.stream => {
                    return Ok(Some(Ok(content)));
                }
                Some(FromServer::WorkloadStates(states)) => return Ok(Some(Err(states))),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Says goodbye, so that the server frees what it keeps for us, and waits a little for its end of the stream.
    pub fn say_goodbye(self) {
        let deadline = deadline_after(GOODBYE_MAX);
        if self.requests.try_send(ToServer::Goodbye).is_ok() {
            while let Ok(Event::Message(_)) = self.events.recv_deadline(deadline) {}
        }
        self.leave();
    }

    /// Closes the connection without a word.
    pub fn leave(self) {
        drop(self.events); // A reader that waits for room in the queue ends.
        self.hangup.hang_up();
        drop(self.requests);
        let _ = threads::join_all(self.threads, STOP_DEADLINE); // The program ends anyway.
    }
}

impl ServerLink for Session {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        let read = ReadState { masks: masks.iter().map(ToString::to_string).collect(), subscribe: false };
        match self.ask(RequestContent::CompleteState(read), ENDED_READING)? {
            ResponseContent::CompleteState { state, .. } => Ok(state),
            ResponseContent::Error(text) => Err(CommandError::Answer(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError> {
        let update = UpdateState { new_state: Some(Ok(new_state)), masks };
        match self.ask(RequestContent::UpdateState(update), ENDED)? {
            ResponseContent::UpdateStateSuccess { added, deleted } => {
                self.kept.clear();
                Ok(Accepted { added: instances(&added)?, deleted: instances(&deleted)? })
            }
            ResponseContent::Error(text) => Err(CommandError::Refused(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>, CommandError> {
        if !self.kept.is_empty() {
            return Ok(Some(std::mem::take(&mut self.kept)));
        }
        loop {
            match self.next_message(until, ENDED)? {
                Some(FromServer::WorkloadStates(states)) => return Ok(Some(states)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        let read = ReadState { masks: masks.iter().map(ToString::to_string).collect(), subscribe: true };
        match self.ask(RequestContent::CompleteState(read), ENDED)? {
            ResponseContent::CompleteState { state, .. } => Ok(state),
            ResponseContent::Error(text) => Err(CommandError::Subscription(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    fn next_event(&mut self, until: Option<Instant>) -> Result<Option<StateEvent>, CommandError> {
        loop {
            match self.next_answer(until, ENDED)? {
                Some(Ok(ResponseContent::CompleteState { state, altered })) => {
                    return Ok(Some(StateEvent { state, altered: altered.unwrap_or_default() }));
                }
                Some(Ok(ResponseContent::Error(text))) => return Err(CommandError::Subscription(text)),
                Some(Ok(_) | Err(_)) => {}
                None => return Ok(None),
            }
        }
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError> {
        self.kept.clear(); // What was told before is in the state that was read.
        match self.ask(RequestContent::Logs(request), NO_LOGS)? {
            ResponseContent::LogsAccepted(instances) => Ok(instances),
            ResponseContent::Error(text) => Err(CommandError::Answer(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    fn next_log(&mut self) -> Result<LogStep, CommandError> {
        if !self.kept.is_empty() {
            return Ok(LogStep::States(std::mem::take(&mut self.kept)));
        }
        loop {
            match self.next_answer(None, ENDED_IN_LOGS)? {
                Some(Ok(ResponseContent::LogEntries(entries))) => return Ok(LogStep::Entries(entries)),
                Some(Ok(ResponseContent::LogsStop(instance))) => return Ok(LogStep::Stopped(instance)),
                Some(Ok(ResponseContent::Error(text))) => return Err(CommandError::Logs(text)),
                Some(Ok(_)) | None => {}
                Some(Err(states)) => return Ok(LogStep::States(states)),
            }
        }
    }

    fn cancel_logs(&mut self) {
        let request = Request { id: self.stream.clone(), content: RequestContent::LogsCancel };
        let _ = self.requests.try_send(ToServer::Request(request)); // Without a connection nothing is left to end.
    }
}

fn instances(names: &[String]) -> Result<Vec<InstanceName>, CommandError> {
    let parse = |name: &String| InstanceName::parse(name).ok_or_else(|| CommandError::InstanceName(name.clone()));
    names.iter().map(parse).collect()
}

/// Body of `cli:tx`: sends until nothing more will come or the connection is lost.
fn send_all(mut sender: ClientSender, requests: &Receiver<ToServer>) {
    while let Ok(message) = requests.recv() {
        if sender.send(message).is_err() {
            return; // The receiver knows why.
        }
    }
    sender.finish();
}

/// Body of `cli:rx`: connects and passes on what comes until the stream ends or nobody listens any more.
fn receive_all(options: &ClientOptions, give: &Sender<Event>) {
    let hello = ToServer::CommanderHello { version: VERSION.to_owned() };
    let mut receiver = match client::connect(options, hello) {
        Ok((sender, receiver, hangup)) => {
            if give.send(Event::Connected(Ok((sender, hangup)))).is_err() {
                return;
            }
            receiver
        }
        Err(error) => {
            let _ = give.send(Event::Connected(Err(error))); // Nobody waits any more when this fails.
            return;
        }
    };
    loop {
        let (event, last) = match receiver.receive() {
            Ok(message) => (Event::Message(message), false),
            Err(end) => (Event::Ended(end), true),
        };
        if give.send(event).is_err() || last {
            return;
        }
    }
}

fn deadline_after(limit: Duration) -> Instant {
    let now = SystemClock.now();
    // A timeout that no clock can hold is as good as a very long one.
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
}

/// A host that does not answer looks like a slow server only when the whole time for an answer is over.
fn unreachable_server(url: &str, error: &ConnectError, response_timeout: Duration, late: bool) -> CliError {
    match error {
        ConnectError::Connect { source, .. } if late && source.kind() == std::io::ErrorKind::TimedOut => {
            CommandError::TimedOut(response_timeout).into()
        }
        error => not_connected(url, error),
    }
}

fn tls_hint(source: impl std::fmt::Display) -> String {
    let source = source.to_string();
    if source.contains("does not speak TLS") {
        return format!("{source}; use -k/--insecure if it is meant to run without");
    }
    format!("{source}; check the certificates of both sides")
}

fn not_connected(url: &str, error: &ConnectError) -> CliError {
    let hint = match error {
        ConnectError::Resolve { source, .. } => {
            format!("{source}; check the host name, or name another server with '--server-url <URL>'")
        }
        ConnectError::Tls { source, .. } => tls_hint(source),
        ConnectError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            format!("{source}; run it as root or as a member of the group of the socket")
        }
        ConnectError::Connect { source, .. } => {
            format!("{source}; start ank-server there, or name another server with '--server-url <URL>'")
        }
    };
    CliError::Unreachable { url: url.to_owned(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_also_a_connection_that_takes_long() {
        let (press, pressed) = bounded(1);
        press.send(()).unwrap();
        let url = ServerUrl::parse("http://127.0.0.1:1").unwrap();
        let limits = (Duration::from_secs(60), MessageSize::default());
        let opened = Session::open(url, Security::Insecure, limits.0, limits.1, pressed);
        assert!(opened.err().unwrap().is_interrupted());
    }

    #[test]
    fn a_host_that_does_not_answer_is_called_unreachable_before_the_response_timeout() {
        let silent = || ConnectError::Connect {
            url: "http://host:1".to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::TimedOut, "connection timed out"),
        };
        let text = |late| unreachable_server("http://host:1", &silent(), Duration::from_secs(30), late).to_string();
        assert_eq!(text(false), "Could not connect to Ankaios server on 'http://host:1'.");
        assert_eq!(text(true), "Command failed: 'Command timed out after '30s''");
    }

    #[test]
    fn a_server_that_speaks_no_tls_is_reached_with_insecure() {
        let hint = tls_hint("the server does not speak TLS");
        assert_eq!(hint, "the server does not speak TLS; use -k/--insecure if it is meant to run without");
        assert!(!tls_hint("certificate expired").contains("insecure"));
    }
}
