//! Probes workloads: connections, HTTP requests, files; commands inside of containers on threads of
//! their own.
//!
//! A container with a network of its own is probed inside of it: the thread enters its network
//! namespace while it makes the socket, which from then on belongs there.
//!
//! Thread: `probes`, which never waits for a workload nor for a path; `exec:<workload>` waits for
//! one command and ends.
//! Owns: the sockets that wait for an answer. Gives: results of commands to `probes`.

use super::paths::{PathProbe, PathProbes, PathResult, ProbePath};
use super::{Outcome, ProbeOrder, Purpose};
use crate::command::EngineCall;
use crate::exit_watch::belongs_to;
use crate::limits::{EXEC_PARALLEL, EXEC_RUNNING_MAX, EXEC_SLOT_MAX, STACK_WORKLOAD};
use crate::masking::Arguments;
use crate::{ProbeTarget, RuntimeError};
use ankaios_model::collect::CollectEntries as _;
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

/// Bytes read of a response to an HTTP request: only its first line counts.
const HTTP_ANSWER_MAX: usize = 512;

/// Wakes the thread of the probes.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The probes under way.
pub(crate) struct SocketIo {
    waiting: BTreeMap<u64, Waiting>,
    networks: Networks,
    paths: Paths,
    commands: Commands,
}

/// A connection that is being made, or a request that waits for its answer.
struct Waiting {
    socket: OwnedFd,
    /// What to send once it is connected, and the status that counts.
    request: Option<(String, Option<u16>)>,
    sent: bool,
    answer: Vec<u8>,
    /// Bytes of the answer that are still read although its beginning has decided. `None` before
    /// that.
    rest: Option<usize>,
}

impl super::table::ProbeIo for SocketIo {
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome> {
        match &order.check {
            Check::Notify => None,
            Check::File(path) => self.paths.begin(order.key, PathProbe::Look(path.clone())),
            Check::Unix(path) => self
                .paths
                .begin(order.key, PathProbe::Connects(path.clone())),
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
                let shown = if host.is_ipv6() {
                    format!("[{host}]")
                } else {
                    host.to_string()
                };
                let request = format!(
                    "GET {path} HTTP/1.1\r\nHost: {shown}:{port}\r\nUser-Agent: ank-agent\r\nConnection: close\r\n\r\n"
                );
                self.connect(
                    order,
                    SocketAddr::new(*host, *port),
                    Some((request, *status)),
                )
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

    /// The sockets that wait, and for what.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>, PollFlags)> {
        self.waiting.iter().map(|(key, waiting)| {
            let flags = if waiting.sent {
                PollFlags::IN
            } else {
                PollFlags::OUT
            };
            (*key, waiting.socket.as_fd(), flags)
        })
    }

    /// A socket is ready. Returns the outcome once it is known.
    pub(crate) fn ready(&mut self, key: u64) -> Option<Outcome> {
        let waiting = self.waiting.get_mut(&key)?;
        let outcome = if waiting.rest.is_none() {
            Some(waiting.go_on()?)
        } else {
            None
        };
        if waiting.has_ended() {
            self.waiting.remove(&key);
        }
        outcome
    }

    /// The results of commands and paths.
    pub(crate) fn take_ended(&mut self) -> Vec<(u64, Outcome)> {
        let mut ended = self.commands.take_ended();
        ended.extend(self.paths.take_ended());
        ended
    }

    /// When [`Self::take_ended`] may have something to do although nothing has ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.commands.due(SystemClock.now())
    }

    fn connect(
        &mut self,
        order: &ProbeOrder,
        address: SocketAddr,
        request: Option<(String, Option<u16>)>,
    ) -> Option<Outcome> {
        let family = if address.is_ipv6() {
            AddressFamily::INET6
        } else {
            AddressFamily::INET
        };
        // Once it has ended there is no network but the node's.
        let own_network = order.purpose != Purpose::Gone;
        let socket = if own_network && address.ip().is_loopback() {
            self.networks.socket(order.key, &order.target, family)
        } else {
            stream_socket(family).map_err(text)
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(reason) => return Some(Outcome::fails(reason)),
        };
        let mut waiting = Waiting {
            socket,
            request,
            sent: false,
            answer: Vec::new(),
            rest: None,
        };
        let outcome = match connect(&waiting.socket, &address) {
            Ok(()) => waiting.go_on(),
            Err(Errno::INPROGRESS) => None,
            Err(errno) => Some(failure(errno)),
        };
        if outcome.is_none() {
            self.waiting.insert(order.key, waiting);
        }
        outcome
    }
}

impl Waiting {
    fn go_on(&mut self) -> Option<Outcome> {
        if self.sent {
            return self.read();
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Some(failure(errno)),
        }
        let Some((request, _)) = &self.request else {
            return Some(Outcome::Holds);
        };
        // A fresh connection takes a whole request at once.
        match send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL) {
            Ok(_) => {
                self.sent = true;
                None
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(failure(errno)),
        }
    }

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
        // Bytes that are read of the rest of the response, so that the connection ends in order.
        self.rest = Some(64 * 1024);
        let _ = shutdown(&self.socket, Shutdown::Write);
        let expected = self.request.as_ref().and_then(|(_, status)| *status);
        Some(judge(
            &self.answer[..line_end.unwrap_or_default()],
            expected,
        ))
    }

    /// Reads the rest of an answer and returns whether that was all. Closing a socket with unread
    /// bytes would reset the connection, which many servers log.
    fn has_ended(&mut self) -> bool {
        let mut chunk = [0_u8; 4096];
        while let Some(rest) = self.rest.filter(|rest| *rest > 0) {
            match rustix::io::read(&self.socket, &mut chunk[..]) {
                Ok(count @ 1..) => self.rest = Some(rest.saturating_sub(count)),
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
        true
    }
}

/// The outcome of the first line of an HTTP answer; without an `expected` status all from 200 to
/// 399 hold.
pub fn judge(line: &[u8], expected: Option<u16>) -> Outcome {
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let is_http = words
        .next()
        .is_some_and(|version| version.starts_with("HTTP/"));
    let status = words
        .next()
        .and_then(|status| status.parse::<u16>().ok())
        .filter(|_| is_http);
    match status {
        None => Outcome::Fails {
            reason: "the answer is not HTTP".to_owned(),
            answered: true,
        },
        Some(status)
            if expected.map_or((200..400).contains(&status), |expected| expected == status) =>
        {
            Outcome::Holds
        }
        Some(status) => Outcome::Fails {
            reason: format!("status {status}"),
            answered: true,
        },
    }
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

    fn take_ended(&mut self) -> Vec<Ended> {
        let results: BTreeMap<PathProbe, PathResult> =
            self.probes.take_results().into_iter().collect_entries();
        let mut ended = Vec::new();
        self.waiting.retain(|key, probe| {
            let outcome = match results.get(probe) {
                Some(Ok(_)) => Outcome::Holds,
                Some(Err(errno)) => failure(*errno),
                None => return true,
            };
            ended.push((*key, outcome));
            false
        });
        ended
    }
}

// ------------------------------------------------------------ network of containers

/// Network namespaces that sockets are made in.
#[derive(Default)]
struct Networks {
    /// By order; `None` is the node's own.
    of: BTreeMap<u64, Option<File>>,
    own: Option<File>,
    /// The thread is in the namespace of a container, since it could not return.
    is_away: bool,
}

impl Networks {
    fn forget(&mut self, key: u64) {
        self.of.remove(&key);
    }

    /// Makes a socket in the network of the container.
    fn socket(
        &mut self,
        key: u64,
        target: &ProbeTarget,
        family: AddressFamily,
    ) -> Result<OwnedFd, String> {
        self.restore_netns()?;
        if !self.of.contains_key(&key) {
            let found = self.find(target)?;
            self.of.insert(key, found);
        }
        let Some(Some(network)) = self.of.get(&key) else {
            return stream_socket(family).map_err(text);
        };
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| format!("its network cannot be entered: {}; use exec", text(errno)))?;
        self.is_away = true;
        let socket = stream_socket(family).map_err(text);
        self.restore_netns()?;
        socket
    }

    fn restore_netns(&mut self) -> Result<(), String> {
        if let Some(own) = &self.own
            && self.is_away
        {
            let back = move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network));
            if let Err(errno) = back {
                let why = text(errno);
                return Err(format!(
                    "the network of the node cannot be entered again: {why}"
                ));
            }
            self.is_away = false;
        }
        Ok(())
    }

    /// The namespace of the container's process; `None` if it is the node's own.
    fn find(&mut self, target: &ProbeTarget) -> Result<Option<File>, String> {
        let own = match self.own.take() {
            Some(own) => own,
            None => File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())?,
        };
        let own = self.own.insert(own);
        let mut networks = target.processes.iter().filter_map(network_of);
        let network = networks.next().ok_or("its process is not found")?;
        let found = fstat(&network).map_err(text)?;
        let node = fstat(own).map_err(text)?;
        if (found.st_dev, found.st_ino) == (node.st_dev, node.st_ino) {
            return Ok(None);
        }
        Ok(Some(network))
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
    /// By workload, of which one command runs at a time; since when.
    running: BTreeMap<String, Instant>,
    queue: VecDeque<Command>,
    results: (Sender<EndedOf>, Receiver<EndedOf>),
    wake: Wake,
}

/// Key and outcome of a probe that has ended.
type Ended = (u64, Outcome);

/// The same with the workload.
type EndedOf = (String, Ended);

struct Command {
    key: u64,
    workload: String,
    target: ProbeTarget,
    command: Vec<String>,
    limit: std::time::Duration,
}

impl Commands {
    fn new(wake: Wake) -> Self {
        Self {
            running: BTreeMap::new(),
            queue: VecDeque::new(),
            results: bounded(EXEC_RUNNING_MAX),
            wake,
        }
    }

    fn begin(&mut self, order: &ProbeOrder, command: &[String]) {
        self.queue.push_back(Command {
            key: order.key,
            workload: order.instance.workload.to_string(),
            target: order.target.clone(),
            command: command.to_vec(),
            limit: order.pace.timeout,
        });
        self.start_waiting();
    }

    /// When the next hanging command gives its slot back, if others wait.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.queue.is_empty() {
            return None;
        }
        let ends = self.running.values().map(|since| *since + EXEC_SLOT_MAX);
        ends.filter(|end| *end > now).min()
    }

    /// Takes the first command that can start: no other of its workload runs, and a slot is free.
    fn take_next(&mut self, now: Instant) -> Option<Command> {
        let holds_slot = |since: &&Instant| now.saturating_duration_since(**since) < EXEC_SLOT_MAX;
        let slots = self.running.values().filter(holds_slot).count();
        if slots >= EXEC_PARALLEL || self.running.len() >= EXEC_RUNNING_MAX {
            return None;
        }
        let mut waiting = self.queue.iter();
        let index = waiting.position(|command| !self.running.contains_key(&command.workload))?;
        self.queue.remove(index)
    }

    fn start_waiting(&mut self) {
        let now = SystemClock.now();
        while let Some(command) = self.take_next(now) {
            let workload = command.workload.clone();
            let key = command.key;
            self.running.insert(workload.clone(), now);
            let results = self.results.0.clone();
            let wake = self.wake.clone();
            let name = format!("exec:{workload}");
            let body = move || {
                // There is room for the result of each that runs.
                let _ = results.send((command.workload.clone(), (key, command.run())));
                wake();
            };
            if let Err(error) = threads::spawn(name, STACK_WORKLOAD, body) {
                // It occupies its slot until its result is taken, as any other.
                let outcome = Outcome::fails(format!("no thread: {error}"));
                let _ = self.results.0.try_send((workload, (key, outcome)));
                (self.wake)();
            }
        }
    }

    fn take_ended(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        for (workload, result) in self.results.1.try_iter() {
            self.running.remove(&workload);
            ended.push(result);
        }
        self.start_waiting();
        ended
    }
}

impl Command {
    /// Runs it inside of the container and waits for its end.
    fn run(self) -> Outcome {
        let Some(container) = &self.target.container else {
            return Outcome::fails("its container is not known");
        };
        let arguments = Arguments::default()
            .plain(&["exec", container])
            .command(&self.command);
        match EngineCall::new(self.target.program, arguments)
            .limit(self.limit)
            .run(None)
        {
            Ok(_) => Outcome::Holds,
            Err(RuntimeError::TimedOut(_)) => {
                Outcome::fails(format!("no answer within {} ms", self.limit.as_millis()))
            }
            Err(error) => Outcome::fails(last_line(error.text())),
        }
    }
}

/// The last line that a command printed.
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
