//! Keeps the connection to the server: connects, sends the hello and waiting messages, and connects
//! again without end.
//!
//! Thread: `uplink`; each connection has a reader `rx:server`, which passes messages to the
//! scheduler. `grpc-poll-0` delivers small responses itself.
//! Takes: messages of the [`UplinkReader`]. Gives: responses for workloads to their control
//! interfaces, everything else and the loss of the connection to the scheduler (may block there), a
//! refusal of our version to `main`. Workloads run on whatever happens here.

use super::control_interface::ControlHub;
use super::events::SchedulerEvent;
use super::uplink_outbox::UplinkReader;
use crate::limits::{
    RECONNECT_PAUSE, RECONNECT_PAUSE_DISPLACED, RECONNECT_PAUSE_FIRST, RECONNECT_STABLE,
};
use ankaios_model::messages::{AgentCapabilities, AgentHello, FromServer, ToServer};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::with_causes;
use ankaios_platform::memory::OwnStack;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::threads;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_wire::client::{ClientOptions, ClientReceiver, Hangup, StreamEnd, connect};
use crossbeam_channel::{Receiver, RecvError, Sender, bounded, select_biased};
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// The connection to the server.
pub(crate) struct Uplink {
    /// The address of the server, and the security of the connection.
    pub(crate) options: ClientOptions,
    /// Name of this agent.
    pub(crate) agent: String,
    /// Whether it removes images, sent with every hello.
    pub(crate) removes_images: bool,
    /// Our version, sent with every hello.
    pub(crate) version: &'static str,
    /// Its tags, sent with every hello.
    pub(crate) tags: BTreeMap<String, String>,
    /// The messages to send.
    pub(crate) outbox: UplinkReader,
    /// Takes responses for workloads with a control interface.
    pub(crate) control: ControlHub,
    /// The scheduler's inbox, for everything else.
    pub(crate) scheduler: Sender<SchedulerEvent>,
    /// Gets the state of the connection.
    pub(crate) status: StatusBoard,
}

/// How a session ended.
enum SessionEnd {
    /// The agent ends.
    Stopped,
    /// The server will never accept this agent. Its text says why.
    Refused(String),
    /// The connection is lost or was not possible.
    Interrupted(Interruption),
}

/// The end of a session after which the agent connects again.
#[derive(Debug)]
struct Interruption {
    reason: String,
    /// The server has sent a message.
    greeted: bool,
    /// The server has closed the connection in order.
    closed_by_server: bool,
}

impl Interruption {
    /// Returns whether the server has ended, or another agent with this name has connected.
    fn may_be_displacement(&self) -> bool {
        self.greeted && self.closed_by_server
    }
}

impl SessionEnd {
    /// The end of a session in which the server has sent nothing.
    fn without_message(reason: String) -> Self {
        Self::Interrupted(Interruption {
            reason,
            greeted: false,
            closed_by_server: false,
        })
    }
}

/// A connection whose messages are read.
struct OpenConnection {
    /// Receives the end of the stream.
    ended: Receiver<ReadEnd>,
    hangup: Hangup,
}

/// How the stream of a connection ended.
struct ReadEnd {
    end: StreamEnd,
    /// The server has sent a message.
    greeted: bool,
}

impl Uplink {
    /// Runs until the other end of `stop` is dropped. Returns the server's text when it refuses our
    /// version.
    // [impl->swdd~communication-to-from-agent-middleware~1]
    // [impl->swdd~agent-shall-use-interfaces-to-server~1]
    pub(crate) fn run(&self, stop: &Receiver<()>, heartbeat: &Heartbeat) -> Option<String> {
        let mut log = InterruptionLog::default();
        let mut reconnects = Reconnects::default();
        self.status
            .connection(|| format!("Connecting to '{}'", self.options.url));
        loop {
            heartbeat.turn();
            let began = SystemClock.now();
            match self.session(stop, heartbeat) {
                SessionEnd::Stopped => return None,
                SessionEnd::Refused(text) => return Some(text),
                SessionEnd::Interrupted(interruption) => {
                    let now = SystemClock.now();
                    let lasted = now.saturating_duration_since(began);
                    let pause = reconnects.next_pause(&interruption, lasted);
                    let mut reason = interruption.reason.clone();
                    if interruption.may_be_displacement() && reconnects.is_displaced_again() {
                        let name = &self.agent;
                        reason.push_str(&format!(
                            ". This repeats, so another agent probably has the name '{name}'; give each a name of its own"
                        ));
                    } else if interruption.greeted {
                        log = InterruptionLog::default(); // The next reason is new.
                    }
                    self.status.connection(|| {
                        format!("No connection to '{}': {reason}", self.options.url)
                    });
                    log.log(&reason, now);
                    if !wait_until(now + pause, stop, heartbeat) {
                        return None;
                    }
                }
            }
        }
    }

    /// Connects, sends the hello, and starts the reader.
    // [impl->swdd~agent-sends-hello~1]
    #[inline(never)] // Else the thread keeps the frame of this as long as it is connected.
    fn open(&self, heartbeat: &Heartbeat) -> Result<OpenConnection, SessionEnd> {
        let hello = ToServer::AgentHello(AgentHello {
            agent: self.agent.clone(),
            version: self.version.to_owned(),
            tags: self.tags.clone(),
            capabilities: AgentCapabilities {
                tells_usage: true,
                prepares: true,
                removes_images: self.removes_images,
            },
        });
        let (sender, receiver, hangup) = match heartbeat.outside(|| connect(&self.options, hello)) {
            Ok(connection) => connection,
            Err(error) => return Err(SessionEnd::without_message(with_causes(&error))),
        };
        // The sender is set first, since received messages have responses.
        self.outbox.connected_by(Box::new(sender));
        let ended = match self.start_reader(receiver) {
            Ok(ended) => ended,
            Err(error) => {
                hangup.hang_up();
                self.outbox.disconnected();
                let reason = format!("no thread for the connection: {error}");
                return Err(SessionEnd::without_message(reason));
            }
        };
        self.control.connected();
        debug!("Connected to server '{}'.", self.options.url);
        Ok(OpenConnection { ended, hangup })
    }

    /// Connects, then sends and receives until the connection is lost or the agent ends.
    fn session(&self, stop: &Receiver<()>, heartbeat: &Heartbeat) -> SessionEnd {
        let OpenConnection { ended, hangup } = match self.open(heartbeat) {
            Ok(connection) => connection,
            Err(end) => return end,
        };
        let stack = OwnStack::of_this_thread();
        let end = loop {
            heartbeat.turn();
            if self.outbox.send_waiting().is_err() {
                hangup.hang_up(); // The reader ends then, with the reason.
            }
            if let Some(stack) = &stack {
                stack.give_back_unused(); // Connecting and sending need most of it.
            }
            select_biased! {
                recv(stop) -> _ => {
                    hangup.hang_up();
                    return SessionEnd::Stopped;
                }
                recv(ended) -> end => break end,
                recv(self.outbox.woken()) -> _ => {}
                recv(heartbeat.woken()) -> _ => {}
            }
        };
        self.close(end, &hangup)
    }

    /// Closes a connection whose stream has ended.
    #[inline(never)] // As `open`.
    fn close(&self, end: Result<ReadEnd, RecvError>, hangup: &Hangup) -> SessionEnd {
        // Notify the other threads, also after a clean end, since reports about other agents are
        // outdated then as well. If the server has sent nothing, the scheduler is not notified:
        // nothing depends on such a connection, and there may be a new one each second.
        hangup.hang_up();
        self.outbox.disconnected();
        let has_sent_nothing = matches!(end, Ok(ReadEnd { greeted: false, .. }));
        if !has_sent_nothing {
            // Gone only when the agent ends.
            let _ = self.scheduler.send(SchedulerEvent::ServerGone);
        }
        self.control.connection_lost();
        let Ok(ReadEnd { end, greeted }) = end else {
            let reason = "the reader of the connection ended".to_owned();
            return SessionEnd::without_message(reason);
        };
        let reason = match &end {
            StreamEnd::VersionMismatch(text) => return SessionEnd::Refused(text.clone()),
            StreamEnd::Closed => {
                format!("{end}: it ends, or another agent with this name connected")
            }
            StreamEnd::Lost(_) if !greeted && self.options.has_no_tls() => {
                format!("{end}; the server may expect TLS, or be none of Ankaios")
            }
            _ => end.to_string(),
        };
        SessionEnd::Interrupted(Interruption {
            reason,
            greeted,
            closed_by_server: matches!(end, StreamEnd::Closed),
        })
    }

    /// Starts the thread `rx:server`. Returns the channel that receives the end of the stream.
    fn start_reader(&self, mut receiver: ClientReceiver) -> io::Result<Receiver<ReadEnd>> {
        // Waking another thread for a response would take longer than delivering it.
        let control = self.control.clone();
        receiver.give_responses_to(Box::new(move |response| control.deliver(response)));
        let (ended_sender, ended) = bounded(1);
        let control = self.control.clone();
        let scheduler = self.scheduler.clone();
        let status = self.status.clone();
        let url = self.options.url.clone();
        let on_first = move || {
            info!("Connected to the server.");
            status.connection(|| format!("Connected to '{url}'"));
        };
        threads::spawn("rx:server", STACK_LARGE, move || {
            let end = read(receiver, &control, &scheduler, on_first);
            let _ = ended_sender.send(end); // Gone only when the agent ends.
        })?;
        Ok(ended)
    }
}

/// Waits until this time. Returns false if the agent ends before.
fn wait_until(at: Instant, stop: &Receiver<()>, heartbeat: &Heartbeat) -> bool {
    let alarm = SystemClock.alarm(at);
    loop {
        select_biased! {
            recv(stop) -> _ => return false,
            recv(alarm) -> _ => return true,
            recv(heartbeat.woken()) -> _ => heartbeat.turn(),
        }
    }
}

/// Receives messages until the stream ends, and passes them on; may wait for the scheduler. Calls
/// `on_first` at the first one.
fn read(
    mut receiver: ClientReceiver,
    control: &ControlHub,
    scheduler: &Sender<SchedulerEvent>,
    on_first: impl Fn(),
) -> ReadEnd {
    let mut greeted = false;
    let stack = OwnStack::of_this_thread();
    loop {
        if let Some(stack) = &stack {
            stack.give_back_unused(); // Reading a message needs most of it.
        }
        let message = match receiver.receive() {
            Ok(message) => message,
            Err(end) => return ReadEnd { end, greeted },
        };
        if !greeted {
            greeted = true;
            on_first();
        }
        read_configs(&message);
        if let FromServer::Response(response) = message {
            // Directly, since the scheduler would only delay it.
            control.deliver(response);
        } else if scheduler.send(SchedulerEvent::Server(message)).is_err() {
            // The scheduler is gone only when the agent ends.
            return ReadEnd {
                end: StreamEnd::Closed,
                greeted,
            };
        }
    }
}

/// Reads the runtime configurations of new workloads here, to save the time of the scheduler.
fn read_configs(message: &FromServer) {
    let added = match message {
        FromServer::ServerHello(added) => added,
        FromServer::UpdateWorkload(plan) => &plan.added,
        _ => return,
    };
    for added in added {
        let _ = added.workload.config(); // The workload keeps the result.
    }
}

/// The pauses between attempts to connect: short at first, since a server that is just starting is
/// ready within a second, then longer.
#[derive(Debug, Default)]
struct Reconnects {
    /// The number of attempts since the last connection that lasted.
    failures: u32,
    /// The number of connections that the server has closed since one was stable. Two agents of the
    /// same name end each other's connections, and must not do so all the time.
    displaced: u32,
}

/// Displaced connections in a row that cannot be explained by restarts of the server.
const DISPLACED_AGAIN: u32 = 4;

impl Reconnects {
    /// The pause after a session that `lasted` this long.
    fn next_pause(&mut self, interruption: &Interruption, lasted: Duration) -> Duration {
        if interruption.greeted && lasted > RECONNECT_PAUSE {
            self.failures = 0;
        }
        if interruption.greeted && lasted > RECONNECT_STABLE {
            self.displaced = 0;
        }
        let pause = doubled(self.failures).min(RECONNECT_PAUSE);
        self.failures = self.failures.saturating_add(1);
        if !interruption.may_be_displacement() {
            return pause;
        }
        let pause_of_displaced = doubled(self.displaced).min(RECONNECT_PAUSE_DISPLACED);
        self.displaced = self.displaced.saturating_add(1);
        pause.max(pause_of_displaced)
    }

    /// Returns whether another agent with the same name is probable.
    fn is_displaced_again(&self) -> bool {
        self.displaced >= DISPLACED_AGAIN
    }
}

/// The first pause, doubled this number of times.
fn doubled(times: u32) -> Duration {
    let doublings = times.min(16); // More would overflow.
    RECONNECT_PAUSE_FIRST.saturating_mul(1 << doublings)
}

/// First pause between two log lines with the same reason for a lost connection. It doubles each
/// time.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// Longest pause between two log lines with the same reason for a lost connection.
const LOG_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The log of lost connections. A reason is repeated at longer and longer intervals, so that the
/// log stays readable while the server is away.
#[derive(Debug, Default)]
struct InterruptionLog {
    last: Option<LoggedInterruption>,
}

#[derive(Debug)]
struct LoggedInterruption {
    reason: String,
    at: Instant,
    /// The pause before the same reason is logged again.
    pause: Duration,
}

impl InterruptionLog {
    /// Logs the reason, at the level debug if it was logged a short time ago.
    fn log(&mut self, reason: &str, now: Instant) {
        if self.is_new(reason, now) {
            warn!("Connection to server interrupted: '{reason}'");
            self.note(reason, now);
        } else {
            debug!("Connection to server interrupted: '{reason}'");
        }
    }

    /// Whether the reason is another one than before, or was logged long ago.
    fn is_new(&self, reason: &str, now: Instant) -> bool {
        match &self.last {
            Some(last) if last.reason == reason => {
                now.saturating_duration_since(last.at) >= last.pause
            }
            _ => true,
        }
    }

    /// Notes that the reason is logged now.
    fn note(&mut self, reason: &str, now: Instant) {
        let pause = match &self.last {
            Some(last) if last.reason == reason => (last.pause * 2).min(LOG_PAUSE_MAX),
            _ => LOG_PAUSE,
        };
        self.last = Some(LoggedInterruption {
            reason: reason.to_owned(),
            at: now,
            pause,
        });
    }
}

#[cfg(test)]
mod tests;
