//! One connection to the server: requests with their responses, and the workload states that it broadcasts.
//!
//! Thread: `main`; `cli:rx` connects, receives and forwards everything in order; `cli:tx` sends, so that a server that
//! reads nothing cannot delay `main` beyond its timeouts.
//! Owns: both threads, and the states received while a response was awaited.

use super::error::{CliError, CommandError};
use super::settings::CliSettings;
use crate::limits::{CLI_INBOX, CLI_OUTBOX, CONNECT_MAX, GOODBYE_MAX, STACK_LARGE, STOP_DEADLINE};
use crate::model::execution_state::WorkloadState;
use crate::model::messages::{AlteredFields, LogEntry, LogsRequest, ToServer, UpdateState};
use crate::model::messages::{FromServer, ReadState, Request, RequestContent, Response, ResponseContent};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::version::VERSION;
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::threads::{self, Thread};
use crate::wire::client::{self, ClientOptions, ClientSender, ConnectError, Hangup, Service, StreamEnd};
use crossbeam_channel::{Receiver, Sender, at, bounded, never, select_biased};
use std::time::{Duration, Instant};

/// The instances that an accepted update starts and ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Instances that start.
    pub added: Vec<InstanceName>,
    /// Instances that end.
    pub deleted: Vec<InstanceName>,
    /// States received before the server accepted, oldest first.
    pub earlier: Vec<WorkloadState>,
}

/// The server as the commands use it.
pub trait ServerLink {
    /// Reads the parts of the complete state that `masks` select; none means everything.
    ///
    /// # Errors
    /// No response in time, no connection, or a refusal.
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError>;

    /// Changes the parts that `masks` name. States received before the server accepted are no next ones: they may be older
    /// than the update.
    ///
    /// # Errors
    /// No response in time, no connection, or the server's refusal.
    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError>;

    /// As [`Self::update_state`], to what was there before a guarded update.
    fn roll_back(&mut self, update: u64) -> Result<Accepted, CommandError>;

    /// Returns the next states that the server broadcast, in order; `None` when `until` passed first.
    ///
    /// # Errors
    /// The connection ended.
    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>, CommandError>;

    /// Subscribes to changes of the parts of the state that `masks` select. Returns these parts as they are now.
    ///
    /// # Errors
    /// As [`Self::complete_state`], or a signal.
    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError>;

    /// Returns the next event of the subscription; `None` when `until` passed first.
    ///
    /// # Errors
    /// The connection ended, the server refused, or a signal.
    fn next_event(&mut self, until: Option<Instant>) -> Result<Option<StateEvent>, CommandError>;

    /// Requests logs. Returns the instances whose lines the server will send.
    ///
    /// # Errors
    /// As [`Self::subscribe`].
    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError>;

    /// Returns what comes next of the requested logs, or new states.
    ///
    /// # Errors
    /// As [`Self::next_event`].
    fn next_log(&mut self) -> Result<LogStep, CommandError>;

    /// Ends the requested logs.
    fn cancel_logs(&mut self);
}

/// A change of the state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateEvent {
    /// Only the parts that changed.
    pub state: Node,
    /// Their paths.
    pub altered: AlteredFields,
}

/// A step while logs are followed.
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

/// The connection of one run of `ank`.
pub struct Session {
    requests: Sender<ToServer>,
    hangup: Hangup,
    events: Receiver<Event>,
    threads: [Thread; 2],
    /// Received while a response was awaited, oldest first.
    kept: Vec<WorkloadState>,
    response_timeout: Duration,
    /// Deadline of the first response: connecting is part of the wait.
    first_deadline: Option<Instant>,
    /// Id of the last request; events and logs are responses with this id, too.
    stream: String,
    /// Signals that end the command.
    interrupts: Receiver<()>,
    /// Whether the server has sent something, or the connection is one without TLS in any case.
    is_understood: bool,
}

impl Session {
    /// Connects to the server. A message from `interrupts` ends every wait with [`CommandError::Interrupted`].
    ///
    /// # Errors
    /// [`CliError::Unreachable`] when there is no connection, [`CommandError::TimedOut`] when the response timeout passed
    /// before.
    pub fn open(settings: &CliSettings, interrupts: Receiver<()>) -> Result<Self, CliError> {
        let response_timeout = settings.response_timeout;
        let deadline = deadline_after(response_timeout);
        let options = ClientOptions {
            url: settings.url.clone(),
            security: settings.security.clone(),
            service: Service::Cli,
            connect_limit: response_timeout.clamp(Duration::from_millis(1), CONNECT_MAX),
            message_max: settings.message_max.0,
        };
        let (to_main, events) = bounded(CLI_INBOX);
        let no_thread = |error| CliError::Start { text: format!("cannot start a thread: {error}"), hint: None };
        let reader =
            threads::spawn("cli:rx", STACK_LARGE, move || receive_all(&options, &to_main)).map_err(no_thread)?;
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
                    is_understood: settings.url.is_socket(),
                })
            }
            Some(Event::Connected(Err(error))) => Err(unreachable_server(
                &settings.url.to_string(),
                &error,
                response_timeout,
                SystemClock.now() >= deadline,
            )),
            _ => Err(CommandError::TimedOut(response_timeout).into()),
        }
    }

    /// Sends a request and waits for its response; states received meanwhile are kept.
    fn request(&mut self, content: RequestContent) -> Result<ResponseContent, CommandError> {
        let id = uuid::Uuid::new_v4().to_string();
        let deadline = self.first_deadline.take().unwrap_or_else(|| deadline_after(self.response_timeout));
        self.stream.clone_from(&id);
        // Full or closed: no response will come, and the receiver reports the cause.
        let _ = self.requests.try_send(ToServer::Request(Request { id: id.clone(), content }));
        loop {
            match self.next_message(Some(deadline))? {
                Some(FromServer::Response(Response { id: of, content })) if of == id => return Ok(content),
                Some(FromServer::WorkloadStates(states)) => self.kept.extend(states),
                Some(_) => {}
                None => return Err(CommandError::TimedOut(self.response_timeout)),
            }
        }
    }

    /// Reads the parts that `masks` select; `refused` makes the error of the server's text.
    fn read(
        &mut self,
        masks: &[&str],
        subscribe: bool,
        refused: fn(String) -> CommandError,
    ) -> Result<Node, CommandError> {
        let read = ReadState { masks: masks.iter().map(ToString::to_string).collect(), subscribe };
        match self.request(RequestContent::CompleteState(read))? {
            ResponseContent::CompleteState { state, .. } => Ok(state),
            ResponseContent::Error(text) => Err(refused(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    /// The next message; `None` when `until` passed first.
    fn next_message(&mut self, until: Option<Instant>) -> Result<Option<FromServer>, CommandError> {
        let late = until.map_or_else(never, at);
        let received = select_biased! { // A message that arrived counts, also after the time.
            recv(self.interrupts) -> signal => match signal {
                Ok(()) => return Err(CommandError::Interrupted),
                // The thread that catches signals has ended.
                Err(_) => { self.interrupts = never(); return self.next_message(until) }
            },
            recv(self.events) -> event => event,
            recv(late) -> _ => return Ok(None),
        };
        match received {
            Ok(Event::Message(message)) => {
                self.is_understood = true;
                Ok(Some(message))
            }
            Ok(Event::Ended(end @ (StreamEnd::Closed | StreamEnd::Lost(_)))) if self.is_understood => {
                Err(CommandError::Stopped(end))
            }
            Ok(Event::Ended(end)) => Err(CommandError::Ended(end)),
            Ok(Event::Connected(_)) | Err(_) => Err(CommandError::Ended(StreamEnd::Closed)),
        }
    }

    /// The next response to the last request, or states that came before it; `None` when `until` passed first.
    fn next_of_stream(&mut self, until: Option<Instant>) -> Result<Option<FromServer>, CommandError> {
        loop {
            match self.next_message(until)? {
                Some(FromServer::Response(response)) if response.id != self.stream => {}
                Some(message @ (FromServer::Response(_) | FromServer::WorkloadStates(_))) => return Ok(Some(message)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Sends `Goodbye`, so that the server frees what it holds for this connection, and waits shortly for its end.
    pub fn close_with_goodbye(self) {
        let deadline = deadline_after(GOODBYE_MAX);
        if self.requests.try_send(ToServer::Goodbye).is_ok() {
            while let Ok(Event::Message(_)) = self.events.recv_deadline(deadline) {}
        }
        self.close();
    }

    /// Closes the connection without `Goodbye`.
    pub fn close(self) {
        drop(self.events); // A reader that waits for room in the queue ends.
        self.hangup.hang_up();
        drop(self.requests);
        let _ = threads::join_all(self.threads, STOP_DEADLINE); // The program ends anyway.
    }

    fn change_state(&mut self, content: RequestContent) -> Result<Accepted, CommandError> {
        match self.request(content)? {
            ResponseContent::UpdateStateSuccess { added, deleted } => {
                let earlier = std::mem::take(&mut self.kept);
                Ok(Accepted { added: instances(&added)?, deleted: instances(&deleted)?, earlier })
            }
            ResponseContent::Error(text) => Err(CommandError::Refused(text)),
            _ => Err(CommandError::Unexpected),
        }
    }
}

impl ServerLink for Session {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.read(masks, false, CommandError::Response)
    }

    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted, CommandError> {
        self.change_state(RequestContent::UpdateState(UpdateState { new_state: Some(Ok(new_state)), masks }))
    }

    fn roll_back(&mut self, update: u64) -> Result<Accepted, CommandError> {
        self.change_state(RequestContent::RollBack(update))
    }

    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>, CommandError> {
        if !self.kept.is_empty() {
            return Ok(Some(std::mem::take(&mut self.kept)));
        }
        loop {
            match self.next_message(until)? {
                Some(FromServer::WorkloadStates(states)) => return Ok(Some(states)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node, CommandError> {
        self.read(masks, true, CommandError::Subscription)
    }

    fn next_event(&mut self, until: Option<Instant>) -> Result<Option<StateEvent>, CommandError> {
        loop {
            match self.next_of_stream(until)? {
                Some(FromServer::Response(Response { content, .. })) => match content {
                    ResponseContent::CompleteState { state, altered } => {
                        return Ok(Some(StateEvent { state, altered: altered.unwrap_or_default() }));
                    }
                    ResponseContent::Error(text) => return Err(CommandError::Subscription(text)),
                    _ => {}
                },
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>, CommandError> {
        self.kept.clear(); // The state that was read before is newer.
        match self.request(RequestContent::Logs(request))? {
            ResponseContent::LogsAccepted(instances) => Ok(instances),
            ResponseContent::Error(text) => Err(CommandError::Response(text)),
            _ => Err(CommandError::Unexpected),
        }
    }

    fn next_log(&mut self) -> Result<LogStep, CommandError> {
        if !self.kept.is_empty() {
            return Ok(LogStep::States(std::mem::take(&mut self.kept)));
        }
        loop {
            match self.next_of_stream(None)? {
                Some(FromServer::WorkloadStates(states)) => return Ok(LogStep::States(states)),
                Some(FromServer::Response(Response { content, .. })) => match content {
                    ResponseContent::LogEntries(entries) => return Ok(LogStep::Entries(entries)),
                    ResponseContent::LogsStop(instance) => return Ok(LogStep::Stopped(instance)),
                    ResponseContent::Error(text) => return Err(CommandError::Logs(text)),
                    _ => {}
                },
                _ => {}
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

/// Body of `cli:tx`: sends until the channel is closed or the connection is lost.
fn send_all(mut sender: ClientSender, requests: &Receiver<ToServer>) {
    while let Ok(message) = requests.recv() {
        if sender.send(message).is_err() {
            return; // The receiver reports the cause.
        }
    }
    sender.finish();
}

/// Body of `cli:rx`: connects and forwards messages until the stream ends or the channel is closed.
fn receive_all(options: &ClientOptions, to_main: &Sender<Event>) {
    let hello = ToServer::CommanderHello { version: VERSION.to_owned() };
    let mut receiver = match client::connect(options, hello) {
        Ok((sender, receiver, hangup)) => {
            if to_main.send(Event::Connected(Ok((sender, hangup)))).is_err() {
                return;
            }
            receiver
        }
        Err(error) => {
            let _ = to_main.send(Event::Connected(Err(error))); // Closed: the command has ended.
            return;
        }
    };
    loop {
        let (event, last) = match receiver.receive() {
            Ok(message) => (Event::Message(message), false),
            Err(end) => (Event::Ended(end), true),
        };
        if to_main.send(event).is_err() || last {
            return;
        }
    }
}

fn deadline_after(limit: Duration) -> Instant {
    let now = SystemClock.now();
    // A timeout that no clock can represent means a very long one.
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
}

/// A host that does not respond counts as a slow server only when the whole response timeout has passed.
fn unreachable_server(url: &str, error: &ConnectError, response_timeout: Duration, late: bool) -> CliError {
    let hint = match error {
        ConnectError::Connect { source, .. } if late && source.kind() == std::io::ErrorKind::TimedOut => {
            return CommandError::TimedOut(response_timeout).into();
        }
        ConnectError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            format!("{source}; run it as root or as a member of the group of the socket")
        }
        ConnectError::Connect { source, .. } => {
            format!("{source}; start ank-server there, or name another server with '--server-url <URL>'")
        }
        ConnectError::Resolve { source, .. } => {
            format!("{source}; check the host name, or name another server with '--server-url <URL>'")
        }
        ConnectError::Tls { source, .. } => tls_hint(source),
    };
    CliError::Unreachable { url: url.to_owned(), hint }
}

fn tls_hint(source: impl std::fmt::Display) -> String {
    let source = source.to_string();
    if source.contains("does not speak TLS") {
        return format!("{source}; use -k/--insecure if it runs without TLS on purpose");
    }
    format!("{source}; check the certificates of both sides")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::Waiting;
    use crate::platform::settings::MessageSize;
    use crate::wire::address::{Security, ServerUrl};

    #[test]
    fn a_signal_ends_a_connection_attempt() {
        let (press, pressed) = bounded(1);
        press.send(()).unwrap();
        let settings = CliSettings {
            url: ServerUrl::parse("http://127.0.0.1:1").unwrap(),
            security: Security::Insecure,
            response_timeout: Duration::from_secs(60),
            message_max: MessageSize::default(),
            waiting: Waiting::default(),
            ignore_modes: false,
        };
        let opened = Session::open(&settings, pressed);
        assert!(opened.err().unwrap().is_interrupted());
    }

    #[test]
    fn a_host_that_does_not_respond_is_unreachable_before_the_response_timeout() {
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
        assert_eq!(hint, "the server does not speak TLS; use -k/--insecure if it runs without TLS on purpose");
        assert!(!tls_hint("certificate expired").contains("insecure"));
    }
}
