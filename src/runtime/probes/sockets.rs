//! Probes workloads: connections, HTTP requests, files; commands inside of containers on threads of
//! their own.
//!
//! A container with a network of its own is probed inside of it: the thread enters its network
//! namespace while it makes the socket, which stays in that namespace.
//!
//! Thread: `probes`, which never waits for a workload nor for a path; `exec:<workload>` waits for
//! one command and ends.
//! Owns: the sockets that wait for an answer. Gives: results of commands to `probes`.

use super::paths::{PathProbe, PathProbes, ProbePath};
use super::{Outcome, ProbeOrder, Purpose};
use crate::command::EngineCall;
use crate::exit_watch::belongs_to;
use crate::limits::{EXEC_PARALLEL, EXEC_RUNNING_MAX, EXEC_SLOT_MAX, STACK_WORKLOAD};
use crate::masking::MaskedArguments;
use crate::{ProbeTarget, RuntimeError};
use ankaios_model::lifecycle::Check;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::threads;
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::event::PollFlags;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, connect, send, shutdown,
    socket_with, sockopt,
};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of an HTTP answer in which its first line must end; only that line is evaluated.
const HTTP_ANSWER_MAX: usize = 512;
/// Bytes of the rest of an HTTP answer that are read, so that the connection ends in order.
const HTTP_REST_MAX: usize = 64 * 1024;

/// Wakes the thread of the probes.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The probes that wait for a result.
pub(crate) struct SocketIo {
    waiting: BTreeMap<u64, WaitingSocket>,
    networks: Networks,
    paths: Paths,
    commands: Commands,
}

/// A connection that is being made, or a request that waits for its answer.
struct WaitingSocket {
    socket: OwnedFd,
    /// Sent once the socket is connected; `None` if the connection alone is the probe.
    request: Option<HttpRequest>,
    sent: bool,
    answer: Vec<u8>,
    /// Bytes of the answer that are still read, once its first line has decided the outcome.
    rest: Option<usize>,
}

struct HttpRequest {
    text: String,
    /// The only status that is a success; `None` for any from 200 to 399.
    expected_status: Option<u16>,
}

impl super::table::ProbeIo for SocketIo {
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome> {
        match &order.check {
            Check::Notify => None,
            Check::File(path) => self.paths.begin(order.key, PathProbe::Look(path.clone())),
            Check::Unix(path) => {
                let probe = PathProbe::Connects(path.clone());
                self.paths.begin(order.key, probe)
            }
            Check::Exec(command) => {
                self.commands.begin(order, command);
                None
            }
            Check::Tcp { host, port } => self.connect(order, SocketAddr::new(*host, *port), None),
            Check::Http {
                host,
                port,
                path,
                status,
            } => {
                let address = SocketAddr::new(*host, *port);
                let text = format!(
                    "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: ank-agent\r\nConnection: close\r\n\r\n"
                );
                let request = HttpRequest {
                    text,
                    expected_status: *status,
                };
                self.connect(order, address, Some(request))
            }
        }
    }

    fn abandon(&mut self, key: u64) {
        self.waiting.remove(&key);
        self.networks.forget(key);
        self.paths.abandon(key);
        self.commands.queue.retain(|call| call.key != key);
    }
}

impl SocketIo {
    /// No probe yet. `wake` is called when a result waits in [`Self::take_ended`]; `probe_path`
    /// probes paths.
    pub(crate) fn new(wake: Wake, probe_path: ProbePath) -> Self {
        let paths = Paths {
            probes: PathProbes::new(wake.clone(), probe_path),
            waiting: BTreeMap::new(),
        };
        let commands = Commands::new(wake);
        Self {
            waiting: BTreeMap::new(),
            networks: Networks::default(),
            paths,
            commands,
        }
    }

    /// The sockets that wait: key, descriptor, and the events that each waits for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>, PollFlags)> {
        self.waiting.iter().map(|(key, waiting)| {
            let events = if waiting.sent {
                PollFlags::IN
            } else {
                PollFlags::OUT
            };
            (*key, waiting.socket.as_fd(), events)
        })
    }

    /// Continues the probe whose socket is ready. Returns the outcome in the call that decides it.
    /// Later calls only read the rest of the answer, then the socket is closed.
    pub(crate) fn ready(&mut self, key: u64) -> Option<Outcome> {
        let waiting = self.waiting.get_mut(&key)?;
        let was_decided = waiting.rest.is_some();
        let mut outcome = None;
        if !was_decided {
            outcome = Some(waiting.proceed()?); // Undecided: the socket is waited for again.
        }
        if waiting.read_rest() {
            self.waiting.remove(&key);
        }
        outcome
    }

    /// Takes the results of commands and paths.
    pub(crate) fn take_ended(&mut self) -> Vec<EndedProbe> {
        let mut ended = self.commands.take_ended();
        ended.extend(self.paths.take_ended());
        ended
    }

    /// The time at which a hanging command gives its slot back, so that [`Self::take_ended`] can
    /// start another one.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.commands.due(SystemClock.now())
    }

    /// Begins a connection. Returns the outcome if it is known at once.
    fn connect(
        &mut self,
        order: &ProbeOrder,
        address: SocketAddr,
        request: Option<HttpRequest>,
    ) -> Option<Outcome> {
        let socket = match self.new_socket(order, address) {
            Ok(socket) => socket,
            Err(reason) => return Some(Outcome::fails(reason)),
        };
        let mut waiting = WaitingSocket {
            socket,
            request,
            sent: false,
            answer: Vec::new(),
            rest: None,
        };
        let outcome = match connect(&waiting.socket, &address) {
            Ok(()) => waiting.proceed(),
            Err(Errno::INPROGRESS) => None,
            Err(errno) => Some(failure(errno)),
        };
        if outcome.is_none() {
            self.waiting.insert(order.key, waiting);
        }
        outcome
    }

    /// Makes the socket, in the network of the container for a loopback address. A workload that
    /// has ended has no network but the node's.
    fn new_socket(&mut self, order: &ProbeOrder, address: SocketAddr) -> Result<OwnedFd, String> {
        let family = if address.is_ipv6() {
            AddressFamily::INET6
        } else {
            AddressFamily::INET
        };
        if order.purpose != Purpose::Gone && address.ip().is_loopback() {
            return self.networks.socket(order.key, &order.target, family);
        }
        stream_socket(family).map_err(text)
    }
}

impl WaitingSocket {
    /// Sends the request, or reads the answer. Returns the outcome once it is known.
    fn proceed(&mut self) -> Option<Outcome> {
        if self.sent {
            return self.read();
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Some(failure(errno)),
        }
        let Some(request) = &self.request else {
            return Some(Outcome::Holds);
        };
        // A fresh connection takes a whole request at once.
        match send(&self.socket, request.text.as_bytes(), SendFlags::NOSIGNAL) {
            Ok(_) => {
                self.sent = true;
                None
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(failure(errno)),
        }
    }

    /// Reads the beginning of an answer. Returns the outcome once the first line is complete, or is
    /// too long.
    fn read(&mut self) -> Option<Outcome> {
        let mut chunk = [0_u8; HTTP_ANSWER_MAX];
        match rustix::io::read(&self.socket, &mut chunk[..]) {
            Ok(0) => {
                return Some(Outcome::Fails {
                    reason: "closed without an answer".to_owned(),
                    answered: true,
                });
            }
            Ok(count) => self.answer.extend_from_slice(&chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(errno) => return Some(failure(errno)),
        }
        let line_end = self.answer.iter().position(|byte| *byte == b'\n');
        if line_end.is_none() && self.answer.len() < HTTP_ANSWER_MAX {
            return None;
        }
        self.rest = Some(HTTP_REST_MAX);
        let _ = shutdown(&self.socket, Shutdown::Write); // It fails if the peer has reset it.
        let expected = match &self.request {
            Some(request) => request.expected_status,
            None => None,
        };
        // A first line that is too long is evaluated as an empty one, which is not HTTP.
        let first_line = &self.answer[..line_end.unwrap_or_default()];
        Some(evaluate(first_line, expected))
    }

    /// Reads the rest of an answer and returns whether the socket can be closed. Closing one with
    /// unread bytes would reset the connection, which many servers log.
    fn read_rest(&mut self) -> bool {
        let mut chunk = [0_u8; 4096];
        while let Some(rest @ 1..) = self.rest {
            match rustix::io::read(&self.socket, &mut chunk[..]) {
                Ok(count @ 1..) => self.rest = Some(rest.saturating_sub(count)),
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
        true
    }
}

/// The outcome of a probe by the first line of an HTTP answer. Without an `expected` status all
/// from 200 to 399 are a success.
pub fn evaluate(line: &[u8], expected: Option<u16>) -> Outcome {
    let line = String::from_utf8_lossy(line);
    let Some(status) = http_status(&line) else {
        return Outcome::Fails {
            reason: "the answer is not HTTP".to_owned(),
            answered: true,
        };
    };
    let is_success = match expected {
        Some(expected) => status == expected,
        None => (200..400).contains(&status),
    };
    if is_success {
        return Outcome::Holds;
    }
    Outcome::Fails {
        reason: format!("status {status}"),
        answered: true,
    }
}

/// The status in the first line of an answer; `None` if that is not HTTP.
fn http_status(line: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace();
    if !words.next()?.starts_with("HTTP/") {
        return None;
    }
    words.next()?.parse().ok()
}

fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
}

fn failure(errno: Errno) -> Outcome {
    Outcome::fails(text(errno))
}

/// The reason of a failure, in a few words.
fn text(errno: Errno) -> String {
    match errno {
        Errno::CONNREFUSED => "refused".to_owned(),
        Errno::NOENT => "does not exist".to_owned(),
        Errno::HOSTUNREACH | Errno::NETUNREACH => "unreachable".to_owned(),
        Errno::AGAIN => "does not accept".to_owned(),
        Errno::CONNRESET => "reset".to_owned(),
        other => std::io::Error::from(other).to_string(),
    }
}

// ------------------------------------------------------------------------- paths

/// Paths of the node.
struct Paths {
    probes: PathProbes,
    /// The orders that wait for a result.
    waiting: BTreeMap<u64, PathProbe>,
}

impl Paths {
    fn begin(&mut self, key: u64, probe: PathProbe) -> Option<Outcome> {
        if let Err(cause) = self.probes.start(&probe) {
            return Some(Outcome::fails(cause));
        }
        self.waiting.insert(key, probe);
        None
    }

    fn abandon(&mut self, key: u64) {
        if let Some(probe) = self.waiting.remove(&key) {
            self.probes.abandon(&probe);
        }
    }

    /// Takes the results that have arrived. Several orders may wait for one path.
    fn take_ended(&mut self) -> Vec<EndedProbe> {
        let mut results = BTreeMap::new();
        for probed in self.probes.take_results() {
            results.insert(probed.probe, probed.result);
        }
        let mut ended = Vec::new();
        for (key, probe) in &self.waiting {
            let outcome = match results.get(probe) {
                Some(Ok(_)) => Outcome::Holds,
                Some(Err(errno)) => failure(*errno),
                None => continue,
            };
            ended.push(EndedProbe { key: *key, outcome });
        }
        for one in &ended {
            self.waiting.remove(&one.key);
        }
        ended
    }
}

// ------------------------------------------------------------ network of containers

/// Network namespaces that sockets are made in.
#[derive(Default)]
struct Networks {
    by_order: BTreeMap<u64, Network>,
    /// The namespace of the node, once it is open.
    own: Option<File>,
    /// The thread is in the namespace of a container, since it could not return.
    is_away: bool,
}

enum Network {
    OfNode,
    OfContainer(File),
}

impl Networks {
    fn forget(&mut self, key: u64) {
        self.by_order.remove(&key);
    }

    /// Makes a socket in the network of the container.
    fn socket(
        &mut self,
        key: u64,
        target: &ProbeTarget,
        family: AddressFamily,
    ) -> Result<OwnedFd, String> {
        self.restore_netns()?;
        if !self.by_order.contains_key(&key) {
            let found = self.find(target)?;
            self.by_order.insert(key, found);
        }
        let Some(Network::OfContainer(network)) = self.by_order.get(&key) else {
            return stream_socket(family).map_err(text);
        };
        let entered = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
        if let Err(errno) = entered {
            let why = text(errno);
            return Err(format!("its network cannot be entered: {why}; use exec"));
        }
        self.is_away = true;
        let socket = stream_socket(family).map_err(text);
        self.restore_netns()?;
        socket
    }

    /// Returns to the network of the node, unless the thread is there.
    fn restore_netns(&mut self) -> Result<(), String> {
        if !self.is_away {
            return Ok(());
        }
        let Some(own) = &self.own else {
            return Ok(());
        };
        let back = move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network));
        if let Err(errno) = back {
            let why = text(errno);
            return Err(format!(
                "the network of the node cannot be entered again: {why}"
            ));
        }
        self.is_away = false;
        Ok(())
    }

    /// Finds the network of the container's process. It may be that of the node.
    fn find(&mut self, target: &ProbeTarget) -> Result<Network, String> {
        // First open the network of the node, once: the thread returns to it later.
        let own = match self.own.take() {
            Some(own) => own,
            None => File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())?,
        };
        let own = self.own.insert(own);
        // Then open that of the process, and compare both.
        let network = target.processes.iter().find_map(network_of);
        let network = network.ok_or("its process is not found")?;
        let found = fstat(&network).map_err(text)?;
        let node = fstat(own).map_err(text)?;
        if found.st_dev == node.st_dev && found.st_ino == node.st_ino {
            return Ok(Network::OfNode);
        }
        Ok(Network::OfContainer(network))
    }
}

/// Opens the network namespace of a process; `None` if it is not one of its container.
fn network_of(process: &crate::MainProcess) -> Option<File> {
    let network = File::open(format!("/proc/{}/ns/net", process.pid)).ok()?;
    // Checked after the open: the pid may have gone to another process.
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
    if !belongs_to(pid, &process.container.0) {
        return None;
    }
    Some(network)
}

// ---------------------------------------------------------------------- commands

struct Commands {
    /// The start of the running command of each workload; there is at most one.
    running: BTreeMap<String, Instant>,
    queue: VecDeque<QueuedCommand>,
    ended: Receiver<EndedCommand>,
    /// Given to each thread of a command.
    send_ended: Sender<EndedCommand>,
    wake: Wake,
}

/// A probe that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndedProbe {
    pub(crate) key: u64,
    pub(crate) outcome: Outcome,
}

/// A command that has ended.
struct EndedCommand {
    workload: String,
    probe: EndedProbe,
}

struct QueuedCommand {
    key: u64,
    workload: String,
    target: ProbeTarget,
    command: Vec<String>,
    limit: std::time::Duration,
}

impl Commands {
    fn new(wake: Wake) -> Self {
        // There is room for the result of each command that runs.
        let (send_ended, ended) = bounded(EXEC_RUNNING_MAX);
        Self {
            running: BTreeMap::new(),
            queue: VecDeque::new(),
            ended,
            send_ended,
            wake,
        }
    }

    /// Queues the command of an order, and starts it if there is a slot.
    fn begin(&mut self, order: &ProbeOrder, command: &[String]) {
        self.queue.push_back(QueuedCommand {
            key: order.key,
            workload: order.instance.workload.to_string(),
            target: order.target.clone(),
            command: command.to_vec(),
            limit: order.pace.timeout,
        });
        self.start_waiting();
    }

    /// The time at which the next hanging command gives its slot back, if others wait.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.queue.is_empty() {
            return None;
        }
        self.slot_ends(now).into_iter().min()
    }

    /// The times at which the running commands that still hold a slot give it back.
    fn slot_ends(&self, now: Instant) -> Vec<Instant> {
        let mut ends = Vec::new();
        for since in self.running.values() {
            let end = *since + EXEC_SLOT_MAX;
            if end > now {
                ends.push(end);
            }
        }
        ends
    }

    /// Takes the first command that can start: no other of its workload runs, and a slot is free.
    fn take_next(&mut self, now: Instant) -> Option<QueuedCommand> {
        let held_slots = self.slot_ends(now).len();
        if held_slots >= EXEC_PARALLEL || self.running.len() >= EXEC_RUNNING_MAX {
            return None;
        }
        let mut waiting = self.queue.iter();
        let index = waiting.position(|command| !self.running.contains_key(&command.workload))?;
        self.queue.remove(index)
    }

    /// Starts the queued commands for which there are slots.
    fn start_waiting(&mut self) {
        let now = SystemClock.now();
        while let Some(command) = self.take_next(now) {
            let workload = command.workload.clone();
            let key = command.key;
            self.running.insert(workload.clone(), now);
            let send_ended = self.send_ended.clone();
            let wake = self.wake.clone();
            let name = format!("exec:{workload}");
            let started = threads::spawn(name, STACK_WORKLOAD, move || {
                let outcome = command.run();
                // There is room for each running command.
                let _ = send_ended.send(command.ended(outcome));
                wake();
            });
            if let Err(error) = started {
                // Report this as its result. Its slot becomes free when the result is taken.
                let outcome = Outcome::fails(format!("no thread: {error}"));
                let probe = EndedProbe { key, outcome };
                // There is room here as well.
                let _ = self.send_ended.try_send(EndedCommand { workload, probe });
                (self.wake)();
            }
        }
    }

    /// Takes the results of ended commands, and starts queued ones.
    fn take_ended(&mut self) -> Vec<EndedProbe> {
        let mut ended = Vec::new();
        for command in self.ended.try_iter() {
            self.running.remove(&command.workload);
            ended.push(command.probe);
        }
        self.start_waiting();
        ended
    }
}

impl QueuedCommand {
    /// Runs the command inside of the container and waits for its end.
    fn run(&self) -> Outcome {
        let Some(container) = &self.target.container else {
            return Outcome::fails("its container is not known");
        };
        let arguments = MaskedArguments::default()
            .plain(&["exec", container])
            .command(&self.command);
        let call = EngineCall::new(self.target.program, arguments).limit(self.limit);
        match call.run(None) {
            Ok(_) => Outcome::Holds,
            Err(RuntimeError::TimedOut(_)) => {
                Outcome::fails(format!("no answer within {} ms", self.limit.as_millis()))
            }
            Err(error) => Outcome::fails(last_line(error.text())),
        }
    }

    fn ended(self, outcome: Outcome) -> EndedCommand {
        EndedCommand {
            workload: self.workload,
            probe: EndedProbe {
                key: self.key,
                outcome,
            },
        }
    }
}

/// The last line that a command printed, up to [`COMMAND_REASON_MAX`] bytes.
pub fn last_line(printed: &str) -> String {
    let mut lines = printed.lines().map(str::trim);
    let last = lines.rfind(|line| !line.is_empty()).unwrap_or("failed");
    last[..last.floor_char_boundary(COMMAND_REASON_MAX)].to_owned()
}

/// Kept bytes of the last line of a failed command: with the rest it fits into
/// `CONDITION_INFO_MAX`.
const COMMAND_REASON_MAX: usize = 120;

#[cfg(test)]
mod tests;
