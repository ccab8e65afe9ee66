//! One connection to the server: requests with their responses, and the workload states that it
//! broadcasts.
//!
//! Thread: `main`, which sends all requests but the first; `cli:rx` connects, sends the first request
//! and forwards everything that it receives in order, so that a server that accepts nothing cannot
//! delay `main` beyond its timeouts; `cli:signals` waits for signals, `cli:ask` for a line of
//! standard input.
//! Owns: these threads, and the states received while a response was awaited.

use super::error::{CliError, Result};
use super::output::{Output, WARNING};
use super::settings::{CliSettings, Waiting};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{
    AlteredFields, LogEntry, LogsRequest, StopAndStart, ToServer, UpdateState,
};
use ankaios_model::messages::{
    FromServer, ReadState, Request, RequestContent, Response, ResponseContent,
};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::version::VERSION;
use ankaios_platform::clock::{Clock, SystemClock, patience};
use ankaios_platform::limits::{STACK_LARGE, STACK_SMALL};
use ankaios_platform::threads;
use ankaios_wire::client::{
    self, ClientOptions, ClientReceiver, ClientSender, ConnectError, Service, StreamEnd, TlsCause,
    TlsError,
};
use ankaios_wire::limits::CONNECT_MAX;
use ankaios_wire::limits::GOODBYE_MAX;
use crossbeam_channel::{Receiver, Sender, at, bounded, never, select_biased};
use signal_hook::iterator::Signals;
use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

/// The response is of another kind than the request.
const UNEXPECTED: &str = "Received an unexpected response from the server";

/// The instances that an accepted update starts and ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Instances that start.
    pub(crate) added: Vec<InstanceName>,
    /// Instances that end.
    pub(crate) deleted: Vec<InstanceName>,
    /// Instances that start again, when all of them have ended.
    pub(crate) restarted: Vec<InstanceName>,
    /// States received before the server accepted, oldest first.
    pub(crate) earlier: Vec<WorkloadState>,
}

/// The server as the commands use it, and the time against which they wait.
pub(crate) trait ServerLink {
    /// Reads the parts of the complete state that `masks` select; none means everything.
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node>;

    /// Sends an update. States received before its response can be older than the update, so
    /// [`Self::next`] does not return them: see [`Accepted::earlier`].
    fn update(&mut self, content: RequestContent) -> Result<Accepted>;

    /// Changes the parts that `masks` name.
    fn update_state(&mut self, new_state: Node, masks: Vec<String>) -> Result<Accepted> {
        let update = UpdateState {
            new_state: Some(Ok(new_state)),
            masks,
            ..UpdateState::default()
        };
        self.update(RequestContent::UpdateState(update))
    }

    /// Subscribes to changes of the parts of the state that `masks` select. Returns these parts as
    /// they are now.
    fn subscribe(&mut self, masks: &[&str]) -> Result<Node>;

    /// Requests logs. Returns the instances whose lines the server will send.
    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>>;

    /// Returns the next message of the server that is no response; `None` if `until` has passed
    /// first.
    ///
    /// # Errors
    /// A signal, the end of the connection, or an error in place of events or logs.
    fn next(&mut self, until: Option<Instant>) -> Result<Option<Incoming>>;

    /// Returns the next states; `None` if `until` has passed first.
    fn next_states(&mut self, until: Option<Instant>) -> Result<Option<Vec<WorkloadState>>> {
        loop {
            match self.next(until)? {
                Some(Incoming::States(states)) => return Ok(Some(states)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Ends the requested logs.
    fn cancel_logs(&mut self);

    /// Drops the connection: after a pause the next request makes a new one.
    fn reconnect(&mut self) -> Result<()>;

    /// Waits for a line of standard input; a signal is an error.
    fn read_line(&mut self) -> Result<String>;

    fn now(&self) -> Instant;
}

/// A message that the server sends by itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Incoming {
    /// Broadcast states of instances.
    States(Vec<WorkloadState>),
    /// A change that was subscribed to: only the parts that changed, and their paths.
    Event(Node, AlteredFields),
    /// Log lines.
    Lines(Vec<LogEntry>),
    /// No more lines of this instance.
    Stopped(InstanceName),
}

/// The rule of an update for the mode of the vehicle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ModeRule {
    /// The update can switch it.
    #[default]
    MaySwitch,
    /// An update that would switch it is refused.
    MustNotSwitch,
    /// The config item of the mode is left out of the update.
    Keep,
}

/// A change of the state that a command will send.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CliUpdate {
    /// Parts of a complete state.
    pub(crate) new_state: Node,
    /// Which parts to take from it. A part that it lacks is deleted.
    pub(crate) masks: Vec<String>,
    /// Workloads that the command deletes by name. A name that does not exist may be a typing
    /// error, so it is warned of.
    pub(crate) deleted: Vec<String>,
    /// Send it even if the server has rolled the same update back before.
    pub(crate) force: bool,
    /// Restore the earlier state if it fails.
    pub(crate) rollback: bool,
    /// Workloads to restart with their dependents. With a new state, only those that it changes are
    /// restarted.
    pub(crate) restart: Vec<String>,
    /// The guarded update to roll back, in place of all above. Then `masks` name its objects.
    pub(crate) rollback_of: Option<u64>,
    /// Workloads to stop and to start, in place of all above.
    pub(crate) stop_and_start: StopAndStart,
    /// The text for an accepted switch of the mode, stop or start; empty for all other updates.
    pub(crate) accepted: String,
    /// Whether a server without modes must not get workloads with the tag `modes`.
    pub(crate) checks_modes: bool,
    pub(crate) mode_rule: ModeRule,
}

impl Accepted {
    /// Returns whether no instance starts or ends.
    pub(crate) fn changes_nothing(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty()
    }
}

impl CliUpdate {
    /// Returns whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.masks.is_empty()
            && self.restart.is_empty()
            && !self.is_rollback()
            && !self.is_stop_or_start()
    }

    /// Returns whether it only restarts workloads.
    pub(crate) fn is_restart(&self) -> bool {
        self.masks.is_empty() && !self.restart.is_empty()
    }

    /// Returns whether it rolls back a guarded update.
    pub(crate) fn is_rollback(&self) -> bool {
        self.rollback_of.is_some()
    }

    /// Returns whether it stops or starts workloads.
    pub(crate) fn is_stop_or_start(&self) -> bool {
        self.stop_and_start != StopAndStart::default()
    }

    /// Returns whether it is the one that `ank mode` makes.
    pub(crate) fn is_mode_switch(&self) -> bool {
        // Only these two kinds have a text.
        !self.accepted.is_empty() && !self.is_stop_or_start()
    }

    /// Returns whether its new state is that of a user, from manifests, a state file or options.
    pub(crate) fn has_manifests(&self) -> bool {
        !self.is_restart()
            && !self.is_rollback()
            && !self.is_mode_switch()
            && !self.is_stop_or_start()
    }
}

/// The server, the streams and the settings of a command.
pub(crate) struct Context<'c> {
    pub(crate) link: &'c mut dyn ServerLink,
    pub(crate) output: &'c mut Output,
    /// Whether and how to wait after an update.
    pub(crate) waiting: Waiting,
    /// Workloads with the tag `modes` are sent also to a server without modes.
    pub(crate) ignore_modes: bool,
}

/// The connection of one run of `ank`, made by the first request: files are read and checked
/// before.
pub(crate) struct Session<'s> {
    settings: &'s CliSettings,
    connection: Option<OpenConnection>,
    /// States received while a response was awaited, oldest first.
    kept: Vec<WorkloadState>,
    stream: ResponseStream,
    /// Signals that end the command; all others keep their default action.
    signals: &'static [c_int],
    /// Receives these signals, from the first request on.
    interrupts: Receiver<()>,
    /// Whether the server has accepted an update.
    has_updated: bool,
    /// The warning about the stored state in the response to the last update.
    storage_warning: Option<String>,
    /// Whether TLS cannot be the cause of an end of the connection: the server has sent a message,
    /// or its address is a socket.
    is_understood: bool,
}

/// The subscription or the request for logs that the server still responds to.
struct ResponseStream {
    /// The id of its request, and so of all its responses; empty without a stream.
    request_id: String,
    /// Makes the error if a response refuses it.
    refused: fn(ErrorResponse) -> CliError,
}

struct OpenConnection {
    sender: ClientSender,
    events: Receiver<Result<FromServer, StreamEnd>>,
}

impl<'s> Session<'s> {
    /// Each of `signals` will end a wait with [`CliError::Interrupted`].
    pub(crate) fn new(settings: &'s CliSettings, signals: &'static [c_int]) -> Self {
        let is_understood = settings.url.is_socket();
        let stream = ResponseStream {
            request_id: String::new(),
            refused: CliError::response,
        };
        Self {
            settings,
            connection: None,
            kept: Vec::new(),
            stream,
            signals,
            interrupts: never(),
            has_updated: false,
            storage_warning: None,
            is_understood,
        }
    }

    /// Connects, and sends `first` behind the hello.
    fn connect(&mut self, deadline: Instant, first: ToServer) -> Result<OpenConnection> {
        // First, catch signals: they can end the wait for the connection.
        let signals = std::mem::take(&mut self.signals);
        if !signals.is_empty() {
            self.interrupts = catch(signals).map_err(|error| {
                CliError::start(format_args!("cannot catch signals: {error}"), "")
            })?;
        }
        // Then, connect on the thread that will receive.
        let url = &self.settings.url;
        let limit = patience(CONNECT_MAX).min(self.settings.response_timeout);
        let options = ClientOptions {
            url: url.clone(),
            security: self.settings.security.clone(),
            service: Service::Cli,
            connect_limit: limit,
            message_max: self.settings.message_max.0 as usize,
        };
        let (connected, connection) = bounded(1);
        // Messages of the server that wait in `ank`.
        let (to_main, events) = bounded(1024);
        threads::spawn("cli:rx", STACK_LARGE, move || {
            connect_and_receive(&options, first, &connected, &to_main);
        })
        .map_err(no_thread)?;
        // Finally, wait until it is connected.
        match self.receive(&connection, Some(deadline))? {
            Some(Ok(sender)) => Ok(OpenConnection { sender, events }),
            Some(Err(error)) => Err(unreachable_server(&url.to_string(), &error, limit)),
            None => Err(silent_server(&url.to_string(), limit)),
        }
    }

    /// Receives from `channel`; `None` if `until` has passed first.
    ///
    /// # Errors
    /// A signal, or the channel is closed.
    fn receive<T>(&self, channel: &Receiver<T>, until: Option<Instant>) -> Result<Option<T>> {
        let late = match until {
            Some(until) => at(until),
            None => never(),
        };
        select_biased! { // A message that is there is received even if the time has passed.
            recv(self.interrupts) -> _ => Err(CliError::Interrupted),
            recv(channel) -> received => match received {
                Ok(received) => Ok(Some(received)),
                Err(_) => Err(CliError::ended(StreamEnd::Closed, false)),
            },
            recv(late) -> _ => Ok(None),
        }
    }

    /// Sends a request and waits for its response. Keeps states that are received meanwhile.
    /// `refused` makes the error if the server refuses the request.
    fn request(
        &mut self,
        content: RequestContent,
        refused: fn(ErrorResponse) -> CliError,
    ) -> Result<ResponseContent> {
        let id = uuid::Uuid::new_v4().to_string();
        let opens_stream = match &content {
            RequestContent::CompleteState(read) => read.subscribe,
            RequestContent::Logs(_) => true,
            _ => false,
        };
        // Further responses to an earlier request are of no use.
        self.stream = ResponseStream {
            request_id: String::new(),
            refused,
        };
        let response_timeout = self.settings.response_timeout;
        let deadline = SystemClock.now() + response_timeout; // Connecting is part of the wait.
        let request = ToServer::Request(Request {
            id: id.clone(),
            content,
        });
        match &mut self.connection {
            // An error means that no response will come. The receiver reports the cause.
            Some(connection) => _ = connection.sender.send_within(request, response_timeout),
            None => self.connection = Some(self.connect(deadline, request)?),
        }
        loop {
            match self.next_message(Some(deadline))? {
                Some(FromServer::Response(Response { id: of, content })) if of == id => {
                    if opens_stream {
                        self.stream.request_id = id;
                    }
                    return match content {
                        ResponseContent::Error(error) => Err(refused(error)),
                        content => Ok(content),
                    };
                }
                Some(FromServer::WorkloadStates(states)) => self.kept.extend(states),
                Some(_) => {}
                None => return Err(CliError::TimedOut(response_timeout)),
            }
        }
    }

    /// Reads the parts that `masks` select.
    fn read(
        &mut self,
        masks: &[&str],
        subscribe: bool,
        refused: fn(ErrorResponse) -> CliError,
    ) -> Result<Node> {
        let read = ReadState {
            masks: masks.iter().map(ToString::to_string).collect(),
            subscribe,
        };
        match self.request(RequestContent::CompleteState(read), refused)? {
            ResponseContent::CompleteState { state, .. } => Ok(state),
            _ => Err(CliError::unexpected(UNEXPECTED)),
        }
    }

    /// Warns after an accepted update if a restart of the server may lose it.
    pub(crate) fn warn_of_storage(&mut self, output: &mut Output) {
        if !self.has_updated {
            return;
        }
        // The server responds before it writes to the disk, so its warning is read once more.
        if self.connection.is_some()
            && let Ok(state) = self.complete_state(&[WARNING])
        {
            return output.warn_of_storage(&state);
        }
        // Without that, the warning of the response applies.
        if let Some(text) = &self.storage_warning {
            output.warn(text);
        }
    }

    /// Returns the next message; `None` if `until` has passed first.
    fn next_message(&mut self, until: Option<Instant>) -> Result<Option<FromServer>> {
        let Some(connection) = &self.connection else {
            return Err(CliError::ended(StreamEnd::Closed, false));
        };
        match self.receive(&connection.events, until)? {
            Some(Ok(message)) => {
                self.is_understood = true;
                Ok(Some(message))
            }
            Some(Err(StreamEnd::Foreign(text))) => Err(CliError::Unreachable {
                url: self.settings.url.to_string(),
                cause: format!("no Ankaios server answers there ({text})"),
                hint: format!("check the address and the port, or {OTHER_SERVER}"),
            }),
            Some(Err(end)) => Err(CliError::ended(end, self.is_understood)),
            None => Ok(None),
        }
    }

    /// Leaves the connection to the end of the program, which closes it. The server sees the same as
    /// if the call was ended first, which would take the library a tenth of a millisecond.
    ///
    /// With `in_order` it ends an open stream before: it sends `Goodbye`, so that the server drops
    /// the stream, and waits a moment for the end of the connection.
    pub(crate) fn close(&mut self, in_order: bool) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let has_stream = !self.stream.request_id.is_empty();
        if in_order && has_stream {
            let deadline = SystemClock.now() + GOODBYE_MAX;
            let sent = connection
                .sender
                .send_within(ToServer::Goodbye, GOODBYE_MAX);
            if sent.is_ok() {
                while let Ok(Ok(_)) = connection.events.recv_deadline(deadline) {}
            }
        }
        std::mem::forget(connection);
    }
}

impl ServerLink for Session<'_> {
    fn complete_state(&mut self, masks: &[&str]) -> Result<Node> {
        self.read(masks, false, CliError::response)
    }

    fn update(&mut self, content: RequestContent) -> Result<Accepted> {
        let ResponseContent::UpdateStateSuccess {
            added,
            deleted,
            restarted,
            warning,
        } = self.request(content, CliError::Refused)?
        else {
            return Err(CliError::unexpected(UNEXPECTED));
        };
        self.has_updated = true;
        self.storage_warning = warning;
        let mut added = parse_instances(&added)?;
        let deleted = parse_instances(&deleted)?;
        let restarted = parse_instances(&restarted)?;
        // An instance that is in both lists is added twice, which changes nothing.
        added.extend(restarted.iter().cloned());
        Ok(Accepted {
            added,
            deleted,
            restarted,
            earlier: std::mem::take(&mut self.kept),
        })
    }

    fn subscribe(&mut self, masks: &[&str]) -> Result<Node> {
        self.read(masks, true, CliError::subscription)
    }

    fn request_logs(&mut self, request: LogsRequest) -> Result<Vec<InstanceName>> {
        self.kept.clear(); // The state that was read before is newer.
        match self.request(RequestContent::Logs(request), CliError::response)? {
            ResponseContent::LogsAccepted(instances) => {
                self.stream.refused = CliError::logs;
                Ok(instances)
            }
            _ => Err(CliError::unexpected(UNEXPECTED)),
        }
    }

    fn next(&mut self, until: Option<Instant>) -> Result<Option<Incoming>> {
        if !self.kept.is_empty() {
            return Ok(Some(Incoming::States(std::mem::take(&mut self.kept))));
        }
        loop {
            let Some(message) = self.next_message(until)? else {
                return Ok(None);
            };
            if let Some(incoming) = self.stream.incoming(message)? {
                return Ok(Some(incoming));
            }
        }
    }

    fn cancel_logs(&mut self) {
        let Some(connection) = &mut self.connection else {
            return; // The logs ended with the connection.
        };
        let request = ToServer::Request(Request {
            id: self.stream.request_id.clone(),
            content: RequestContent::LogsCancel,
        });
        // An error means that the connection is lost.
        let _ = connection.sender.send_within(request, GOODBYE_MAX);
    }

    fn reconnect(&mut self) -> Result<()> {
        self.connection = None; // Its thread ends with it.
        // Pause between attempts of `ank get events --reconnect` to reach the server again.
        let pause = Some(SystemClock.now() + Duration::from_secs(1));
        self.receive::<()>(&never(), pause).map(drop)
    }

    fn read_line(&mut self) -> Result<String> {
        let (to_main, lines) = bounded(1);
        // A thread, so that a signal ends the wait. It ends with the program.
        threads::spawn("cli:ask", STACK_SMALL, move || {
            let mut line = String::new();
            let result = io::stdin().read_line(&mut line).map(|_| line);
            let _ = to_main.send(result); // Closed: a signal has ended the wait.
        })
        .map_err(no_thread)?;
        let Some(result) = self.receive(&lines, None)? else {
            return Ok(String::new()); // Never: there is no time limit.
        };
        result.map_err(|error| {
            CliError::input(
                format!("cannot read the answer: {error}"),
                "nothing was changed; '--yes' needs no answer",
            )
        })
    }

    fn now(&self) -> Instant {
        SystemClock.now()
    }
}

impl ResponseStream {
    /// The message that the server has sent by itself; `None` if it responds to an earlier request.
    ///
    /// # Errors
    /// The server has ended the stream with an error.
    fn incoming(&self, message: FromServer) -> Result<Option<Incoming>> {
        let content = match message {
            FromServer::WorkloadStates(states) => return Ok(Some(Incoming::States(states))),
            FromServer::Response(Response { id, content }) if id == self.request_id => content,
            _ => return Ok(None),
        };
        match content {
            ResponseContent::CompleteState { state, altered } => {
                Ok(Some(Incoming::Event(state, altered.unwrap_or_default())))
            }
            ResponseContent::LogEntries(entries) => Ok(Some(Incoming::Lines(entries))),
            ResponseContent::LogsStop(instance) => Ok(Some(Incoming::Stopped(instance))),
            ResponseContent::Error(error) => Err((self.refused)(error)),
            _ => Ok(None),
        }
    }
}

/// Parses the names of instances in the response to an update.
fn parse_instances(names: &[String]) -> Result<Vec<InstanceName>> {
    let mut instances = Vec::new();
    for name in names {
        let Some(instance) = InstanceName::parse(name) else {
            let text = format!("Could not parse UpdateStateSuccess message: '{name}'");
            return Err(CliError::unexpected(&text));
        };
        instances.push(instance);
    }
    Ok(instances)
}

fn no_thread(error: io::Error) -> CliError {
    CliError::start(format_args!("cannot start a thread: {error}"), "")
}

/// Begins to catch `signals`. The returned channel receives them.
fn catch(signals: &[c_int]) -> io::Result<Receiver<()>> {
    let mut signals = Signals::new(signals)?;
    let (give, received) = bounded(1);
    // The thread ends with the program.
    threads::spawn("cli:signals", STACK_SMALL, move || {
        for _ in signals.forever() {
            let _ = give.try_send(()); // Full: one is waiting already.
        }
    })?;
    Ok(received)
}

/// Body of `cli:rx`: connects, sends `first` behind the hello, reports the connection to `connected`,
/// and forwards messages until the stream ends or the channel is closed.
fn connect_and_receive(
    options: &ClientOptions,
    first: ToServer,
    connected: &Sender<Result<ClientSender, ConnectError>>,
    to_main: &Sender<Result<FromServer, StreamEnd>>,
) {
    let hello = ToServer::CommanderHello {
        version: VERSION.to_owned(),
    };
    let (mut sender, receiver, _hangup) = match client::connect(options, hello) {
        Ok(connection) => connection,
        Err(error) => {
            let _ = connected.send(Err(error)); // Closed: the command has ended.
            return;
        }
    };
    // The request does not wait until `main` runs. An error shows as the end of the stream.
    let _ = sender.send_within(first, GOODBYE_MAX);
    if connected.send(Ok(sender)).is_ok() {
        receive_all(receiver, to_main);
    }
}

/// Forwards messages until the stream ends or the channel is closed.
fn receive_all(mut receiver: ClientReceiver, to_main: &Sender<Result<FromServer, StreamEnd>>) {
    loop {
        let message = receiver.receive();
        let is_last = message.is_err();
        if to_main.send(message).is_err() || is_last {
            return;
        }
    }
}

/// The end of hints for an address where no server is.
const OTHER_SERVER: &str = "name another server with '--server-url <URL>'";

/// The error for an address that does not respond within `limit`.
fn silent_server(url: &str, limit: Duration) -> CliError {
    let remedy = if url.starts_with("unix:") {
        "the server that listens there hangs: see its log"
    } else {
        "check the address, the route and the firewall"
    };
    CliError::Unreachable {
        url: url.to_owned(),
        cause: format!("no connection within {limit:?}"),
        hint: format!("{remedy}, or {OTHER_SERVER}"),
    }
}

/// The error for a connection that failed.
fn unreachable_server(url: &str, error: &ConnectError, limit: Duration) -> CliError {
    let hint = match error {
        ConnectError::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
            return silent_server(url, limit);
        }
        ConnectError::Connect { source, .. } => connect_hint(source.kind()),
        ConnectError::Resolve { .. } => format!("check the host name, or {OTHER_SERVER}"),
        ConnectError::Tls { source, .. } => tls_hint(source).to_owned(),
    };
    let cause = match error {
        ConnectError::Connect { source, .. } | ConnectError::Resolve { source, .. } => {
            source.to_string()
        }
        ConnectError::Tls { source, .. } => source.to_string(),
    };
    CliError::Unreachable {
        url: url.to_owned(),
        cause,
        hint,
    }
}

fn connect_hint(cause: io::ErrorKind) -> String {
    match cause {
        io::ErrorKind::PermissionDenied => {
            "run it as root or as a member of the group of the socket".to_owned()
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            format!("check the address and the network, or {OTHER_SERVER}")
        }
        _ => format!("start ank-server there, or {OTHER_SERVER}"),
    }
}

fn tls_hint(error: &TlsError) -> &'static str {
    match error.cause {
        TlsCause::NoTls => "use -k/--insecure if it runs without TLS on purpose",
        TlsCause::Other | TlsCause::RefusedByPeer => "check the certificates of both sides",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_platform::limits::STOP_DEADLINE;
    use ankaios_platform::settings::MessageSize;
    use ankaios_wire::address::{Security, ServerUrl};

    fn settings(address: &str) -> CliSettings {
        CliSettings {
            url: ServerUrl::parse(&format!("http://{address}")).unwrap(),
            security: Security::Insecure,
            response_timeout: Duration::from_secs(60),
            message_max: MessageSize::default(),
            waiting: Waiting::default(),
            ignore_modes: false,
        }
    }

    /// A server with much to do does not take it for long.
    #[test]
    fn reader_sends_no_goodbye_and_does_not_wait_for_its_end() {
        use ankaios_platform::watchdog::WatchedThreads;
        use ankaios_wire::peer::PeerEvent;
        use ankaios_wire::server_endpoint::{EndpointOptions, ServerEndpoint};
        let (inbox, events) = bounded(16);
        let options = EndpointOptions {
            addresses: vec!["127.0.0.1:0".parse().unwrap()],
            socket_mode: 0o660,
            security: Security::Insecure,
            message_max: 4 * 1024 * 1024,
            commander_names: Vec::new(),
        };
        let endpoint =
            ServerEndpoint::start(&options, inbox, &mut WatchedThreads::new(|_| {})).unwrap();
        let address = endpoint.addresses()[0].to_string();
        let server = std::thread::spawn(move || {
            let (mut outboxes, mut goodbyes) = (Vec::new(), 0);
            for event in events {
                match event {
                    PeerEvent::Opened { outbox, .. } => outboxes.push(outbox),
                    PeerEvent::Message {
                        message: ToServer::Request(Request { id, content }),
                        ..
                    } => {
                        let RequestContent::CompleteState(_) = content else {
                            panic!("{content:?}")
                        };
                        let content = ResponseContent::CompleteState {
                            state: Node::empty(),
                            altered: None,
                        };
                        outboxes
                            .last()
                            .unwrap()
                            .put(FromServer::Response(Response { id, content }))
                            .unwrap();
                    }
                    PeerEvent::Message { message, .. } => {
                        goodbyes += usize::from(message == ToServer::Goodbye)
                    }
                    PeerEvent::Closed { .. } => {}
                }
            }
            goodbyes
        });
        let settings = settings(&address);
        for follows in [false, true] {
            let mut session = Session::new(&settings, &[]);
            if follows {
                session.subscribe(&[])
            } else {
                session.complete_state(&[])
            }
            .unwrap();
            let begin = SystemClock.now();
            session.close(true);
            let took = SystemClock.now().saturating_duration_since(begin);
            assert_eq!(took >= GOODBYE_MAX, follows, "{took:?}");
        }
        endpoint.stop(STOP_DEADLINE);
        assert_eq!(server.join().unwrap(), 1);
    }

    #[test]
    fn a_signal_ends_a_connection_attempt() {
        let settings = settings("127.0.0.1:1");
        let mut session = Session::new(&settings, &[]);
        let (press, pressed) = bounded(1);
        press.send(()).unwrap();
        session.interrupts = pressed;
        assert!(session.complete_state(&[]).unwrap_err().is_interrupted());
    }

    #[test]
    fn where_no_route_leads_no_server_can_be_started() {
        for (kind, remedy) in [
            (io::ErrorKind::ConnectionRefused, "start ank-server there"),
            (
                io::ErrorKind::NetworkUnreachable,
                "check the address and the network",
            ),
            (
                io::ErrorKind::HostUnreachable,
                "check the address and the network",
            ),
        ] {
            let error = ConnectError::Connect {
                url: "http://host:1".to_owned(),
                source: kind.into(),
            };
            let hint = unreachable_server("http://host:1", &error, Duration::ZERO).hint();
            let expected = format!("{remedy}, or name another server with '--server-url <URL>'");
            assert_eq!(hint, expected);
        }
    }

    #[test]
    fn silent_host_is_named_with_address_route_and_firewall() {
        for (url, expected) in [
            (
                "http://host:1",
                "check the address, the route and the firewall, or ",
            ),
            (
                "unix:///s",
                "the server that listens there hangs: see its log, or ",
            ),
        ] {
            let source = io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
            let silent = ConnectError::Connect {
                url: url.to_owned(),
                source,
            };
            let error = unreachable_server(url, &silent, Duration::from_secs(3));
            assert_eq!(
                error.to_string(),
                format!("Could not connect to Ankaios server on '{url}': no connection within 3s")
            );
            assert!(error.hint().starts_with(expected), "{}", error.hint());
        }
    }

    /// Accepts connections and answers each with `answer`.
    fn foreign_server(answer: &'static [u8]) -> String {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(answer);
                let _ = stream.read(&mut [0; 1024]); // Until the client has read it.
            }
        });
        address
    }

    #[test]
    fn web_server_is_named_as_no_server_of_ankaios() {
        let address = foreign_server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let settings = settings(&address);
        let mut session = Session::new(&settings, &[]);
        let error = session.complete_state(&[]).unwrap_err();
        // gRPC may see the end of the connection before it has read the answer; the hint asks for
        // the server then.
        let shown = format!("{error}; {}", error.hint());
        assert!(shown.contains("Ankaios server answers there"), "{shown}");
    }

    #[test]
    fn a_server_that_speaks_no_tls_is_reached_with_insecure() {
        let hint = |cause| {
            let text = "the server does not speak TLS".to_owned();
            tls_hint(&TlsError { text, cause })
        };
        assert_eq!(
            hint(TlsCause::NoTls),
            "use -k/--insecure if it runs without TLS on purpose"
        );
        assert!(!hint(TlsCause::Other).contains("insecure"));
    }
}
