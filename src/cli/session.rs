//! One connection to the server: requests with their answers, and the workload states it broadcasts meanwhile.
//!
//! Thread: `main`; `cli:rx` connects, receives and passes everything on in order; `cli:tx` sends, so that a server
//! that reads nothing cannot hold up `main` beyond its timeouts.
//! Owns: both threads, and the states received while an answer was awaited.

use super::error::{CliError, CommandError, ENDED, ENDED_READING};
use crate::clock::{Clock, SystemClock};
use crate::limits::{CLI_INBOX, CLI_OUTBOX, CONNECT_MAX, GOODBYE_MAX, STACK_LARGE, STOP_DEADLINE};
use crate::model::execution_state::WorkloadState;
use crate::model::messages::{FromServer, ReadState, Request, RequestContent, Response, ResponseContent};
use crate::model::messages::{ToServer, UpdateState};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::version::VERSION;
use crate::settings::MessageSize;
use crate::threads::{self, Thread};
use crate::wire::address::{Security, ServerUrl};
use crate::wire::client::{self, ClientOptions, ClientSender, ConnectError, Hangup, Service, StreamEnd};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
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
    /// Received while an answer was awaited, oldest first.
    kept: Vec<WorkloadState>,
    response_timeout: Duration,
    /// When the first request must be answered: connecting is part of the wait.
    first_deadline: Option<Instant>,
}

impl Session {
    /// Connects to `url`.
    ///
    /// # Errors
    /// [`CliError::Start`] when no connection can be had, [`CommandError::TimedOut`] when it takes longer than
    /// `response_timeout`.
    pub fn open(
        url: ServerUrl,
        security: Security,
        response_timeout: Duration,
        message_max: MessageSize,
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
        match events.recv_deadline(deadline) {
            Ok(Event::Connected(Ok((sender, hangup)))) => {
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
                })
            }
            Ok(Event::Connected(Err(error))) if !timed_out(&error) => Err(not_connected(&shown, &error)),
            _ => Err(CommandError::TimedOut(response_timeout).into()),
        }
    }

    /// Sends a request and waits for its answer; states that come meanwhile are kept.
    fn ask(&mut self, content: RequestContent, phrase: &'static str) -> Result<ResponseContent, CommandError> {
        let id = uuid::Uuid::new_v4().to_string();
        let deadline = self.first_deadline.take().unwrap_or_else(|| deadline_after(self.response_timeout));
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

    fn next_message(
        &mut self,
        until: Option<Instant>,
        phrase: &'static str,
    ) -> Result<Option<FromServer>, CommandError> {
        let received = match until {
            Some(until) => self.events.recv_deadline(until),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Event::Message(message)) => Ok(Some(message)),
            Ok(Event::Ended(end)) => Err(CommandError::Ended { phrase, end }),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Ok(Event::Connected(_)) | Err(RecvTimeoutError::Disconnected) => {
                Err(CommandError::Ended { phrase, end: StreamEnd::Closed })
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

fn timed_out(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Connect { source, .. } if source.kind() == std::io::ErrorKind::TimedOut)
}

fn not_connected(url: &str, error: &ConnectError) -> CliError {
    let hint = match error {
        ConnectError::Resolve { source, .. } => {
            format!("{source}; check the host name, or name another server with '--server-url <URL>'")
        }
        ConnectError::Tls { source, .. } => format!("{source}; check the certificates of both sides"),
        ConnectError::Connect { source, .. } => {
            format!("{source}; start ank-server there, or name another server with '--server-url <URL>'")
        }
    };
    CliError::Start { text: format!("Could not connect to Ankaios server on '{url}'."), hint: Some(hint) }
}
