//! Keeps the connection to the server: connects, sends the hello and waiting messages, and connects
//! again without end.
//!
//! Thread: `uplink`; each connection has a reader `rx:server`, which passes messages to the
//! scheduler.
//! Takes: messages of the [`UplinkReader`]. Gives: responses for workloads to their control
//! interfaces, everything else and the loss of the connection to the scheduler (may block there), a
//! refusal of our version to `main`. Workloads run on whatever happens here.

use super::control_interface::ControlHub;
use super::events::SchedulerEvent;
use super::uplink_outbox::UplinkReader;
use crate::limits::{RECONNECT_PAUSE, RECONNECT_PAUSE_FIRST};
use ankaios_model::messages::{AgentCapabilities, AgentHello, FromServer, ToServer};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::with_causes;
use ankaios_platform::memory;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::threads;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_wire::client::{ClientOptions, ClientReceiver, StreamEnd, connect};
use crossbeam_channel::{Receiver, Sender, bounded, select_biased};
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// The connection to the server.
pub(crate) struct Uplink {
    /// The address of the server, and how the connection is protected.
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
    /// The server will never accept us, as its text says.
    Refused(String),
    /// Try again; `greeted` is whether the server has sent a message.
    Interrupted { reason: String, greeted: bool },
}

impl SessionEnd {
    /// The end of a session in which the server has sent nothing.
    fn without_message(reason: String) -> Self {
        Self::Interrupted {
            reason,
            greeted: false,
        }
    }
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
    pub(crate) fn run(self, stop: &Receiver<()>, heartbeat: &Heartbeat) -> Option<String> {
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
                SessionEnd::Interrupted { reason, greeted } => {
                    self.status.connection(|| {
                        format!("No connection to '{}': {reason}", self.options.url)
                    });
                    let now = SystemClock.now();
                    if greeted {
                        log = InterruptionLog::default();
                    }
                    log.log(&reason, now);
                    let mut lasted = None;
                    if greeted {
                        lasted = Some(now.saturating_duration_since(began));
                    }
                    let pause = now + reconnects.next_pause(lasted);
                    if !wait_until(pause, stop, heartbeat) {
                        return None;
                    }
                }
            }
        }
    }

    // [impl->swdd~agent-sends-hello~1]
    fn session(&self, stop: &Receiver<()>, heartbeat: &Heartbeat) -> SessionEnd {
        // First: connect.
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
            Err(error) => return SessionEnd::without_message(with_causes(&error)),
        };
        // Then: send and receive. Messages that follow from the hello can be sent at once.
        self.outbox.connected_by(Box::new(sender));
        let ended = match self.start_reader(receiver) {
            Ok(ended) => ended,
            Err(error) => {
                hangup.hang_up();
                self.outbox.disconnected();
                let reason = format!("no thread for the connection: {error}");
                return SessionEnd::without_message(reason);
            }
        };
        self.control.connected();
        debug!("Connected to server '{}'.", self.options.url);
        // Connecting needs more of it than what follows.
        memory::give_back_stack();
        let end = loop {
            heartbeat.turn();
            if self.outbox.send_waiting().is_err() {
                hangup.hang_up(); // The reader ends then, with the reason.
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
        // Finally: all others learn that the connection is lost. Also after a clean end of the
        // stream: a server that was stopped is as absent as one that crashed, so its reports about
        // other agents are as outdated. A server that has sent nothing may be tried each second,
        // and nothing depends on it.
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
        SessionEnd::Interrupted { reason, greeted }
    }

    /// Starts the thread `rx:server`. Returns the channel that receives the end of the stream.
    fn start_reader(&self, receiver: ClientReceiver) -> io::Result<Receiver<ReadEnd>> {
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

/// Waits until that time. Returns whether to continue: not when the agent ends.
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

/// Passes messages on until the stream ends, and may wait for the scheduler. Calls `on_first` at
/// the first one.
fn read(
    mut receiver: ClientReceiver,
    control: &ControlHub,
    scheduler: &Sender<SchedulerEvent>,
    on_first: impl Fn(),
) -> ReadEnd {
    let mut greeted = false;
    loop {
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
            // The scheduler decides nothing about it, and would only delay it.
            control.deliver(response);
        } else if scheduler.send(SchedulerEvent::Server(message)).is_err() {
            return ReadEnd {
                end: StreamEnd::Closed,
                greeted,
            };
        }
    }
}

/// Reads the runtime configurations of new workloads, which the scheduler then need not do.
fn read_configs(message: &FromServer) {
    let added = match message {
        FromServer::ServerHello(added) => added,
        FromServer::UpdateWorkload(plan) => &plan.added,
        _ => return,
    };
    for added in added {
        let _ = added.workload.config(); // Kept in the workload.
    }
}

/// When to connect again: at first soon, since a server that starts or restarts is there within a
/// second, then less often.
#[derive(Debug, Default)]
struct Reconnects {
    /// Attempts in a row that led to no connection that lasted.
    failures: u32,
}

impl Reconnects {
    /// Pause after an attempt. `lasted`: how long there was a connection on which the server has
    /// sent something. One that ended at once is no success: agents of the same name would end each
    /// other's connections as fast as they can.
    fn next_pause(&mut self, lasted: Option<Duration>) -> Duration {
        if let Some(lasted) = lasted
            && lasted > RECONNECT_PAUSE
        {
            self.failures = 0;
        }
        let doublings = self.failures.min(16); // So that no number of attempts can overflow.
        self.failures = self.failures.saturating_add(1);
        RECONNECT_PAUSE_FIRST
            .saturating_mul(1 << doublings)
            .min(RECONNECT_PAUSE)
    }
}

/// First pause between two log lines with the same reason for a lost connection; it doubles.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// Longest such pause.
const LOG_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Keeps the log readable while the server is away: a reason is repeated only after longer and
/// longer intervals.
#[derive(Debug, Default)]
struct InterruptionLog {
    last: Option<LoggedInterruption>,
}

#[derive(Debug)]
struct LoggedInterruption {
    reason: String,
    at: Instant,
    /// Until the same reason is logged again.
    pause: Duration,
}

impl InterruptionLog {
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
