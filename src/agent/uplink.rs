//! Keeps the connection to the server: connect, hello, send what waits, reconnect for ever.
//!
//! Thread: `uplink`; each connection has a reader `rx:server`, which passes messages to the
//! scheduler.
//! Takes: what waits in the [`UplinkReader`]. Gives: answers for workloads to their control
//! interfaces, everything else and the loss of the connection to the scheduler (may block there), a
//! refusal of our version to `main`. Workloads go on whatever happens here.

use super::control_interface::ControlHub;
use super::events::SchedulerEvent;
use super::uplink_outbox::UplinkReader;
use crate::limits::{RECONNECT_PAUSE, RECONNECT_PAUSE_FIRST};
use ankaios_model::messages::{AgentCapabilities, AgentHello, FromServer, ToServer};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::with_causes;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::threads;
use ankaios_platform::watchdog::Heartbeat;
use ankaios_wire::client::{ClientOptions, ClientReceiver, StreamEnd, connect};
use crossbeam_channel::{Receiver, Sender, bounded, select_biased};
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The connection to the server.
pub(crate) struct Uplink {
    /// Where the server is.
    pub(crate) options: ClientOptions,
    /// Name of this agent.
    pub(crate) agent: String,
    /// Whether it removes images, sent with every hello.
    pub(crate) removes_images: bool,
    /// Our version, sent with every hello.
    pub(crate) version: &'static str,
    /// Its tags, sent with every hello.
    pub(crate) tags: BTreeMap<String, String>,
    /// What to send.
    pub(crate) outbox: UplinkReader,
    /// Takes answers for workloads with a control interface.
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
    /// The server will never accept us. Holds its text.
    Refused(String),
    /// Try again; `greeted` is whether the server has sent a message.
    Interrupted { reason: String, greeted: bool },
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
                    if log.is_worth(&reason, now) {
                        warn!("Connection to server interrupted: '{reason}'");
                    } else {
                        debug!("Connection to server interrupted: '{reason}'");
                    }
                    let lasted = now.saturating_duration_since(began);
                    let pause =
                        SystemClock.alarm(now + reconnects.next_pause(greeted.then_some(lasted)));
                    loop {
                        select_biased! {
                            recv(stop) -> _ => return None,
                            recv(pause) -> _ => break,
                            recv(heartbeat.woken()) -> _ => heartbeat.turn(),
                        }
                    }
                }
            }
        }
    }

    // [impl->swdd~agent-sends-hello~1]
    fn session(&self, stop: &Receiver<()>, heartbeat: &Heartbeat) -> SessionEnd {
        let (agent, version) = (self.agent.clone(), self.version.to_owned());
        let capabilities = AgentCapabilities {
            tells_usage: true,
            prepares: true,
            removes_images: self.removes_images,
        };
        let hello = ToServer::AgentHello(AgentHello {
            agent,
            version,
            tags: self.tags.clone(),
            capabilities,
        });
        let interrupted = |reason| SessionEnd::Interrupted {
            reason,
            greeted: false,
        };
        let (sender, receiver, hangup) = match heartbeat.outside(|| connect(&self.options, hello)) {
            Ok(connection) => connection,
            Err(error) => return interrupted(with_causes(&error)),
        };
        let (ended_sender, ended) = bounded(1);
        let (control, scheduler) = (self.control.clone(), self.scheduler.clone());
        let (status, url) = (self.status.clone(), self.options.url.clone());
        let greeted = move || {
            info!("Connected to the server.");
            status.connection(|| format!("Connected to '{url}'"));
        };
        // Before anything is read: what follows from the hello is put at once.
        self.outbox.connected_by(Box::new(sender));
        let reader = threads::spawn("rx:server", STACK_LARGE, move || {
            // Gone only when the agent ends.
            let _ = ended_sender.send(read(receiver, &control, &scheduler, greeted));
        });
        if let Err(error) = reader {
            hangup.hang_up();
            self.outbox.disconnected();
            return interrupted(format!("no thread for the connection: {error}"));
        }
        self.control.connected();
        debug!("Connected to server '{}'.", self.options.url);
        let end = loop {
            heartbeat.turn();
            if self.outbox.send_waiting().is_err() {
                hangup.hang_up(); // The reader ends then, with the better reason.
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
        hangup.hang_up();
        self.outbox.disconnected();
        // Also after a clean end of the stream: a server that was shut down in order is as absent
        // as one that crashed, so its reports about other agents are as outdated. A server that has
        // sent nothing left nothing behind, and may be tried each second.
        if !matches!(end, Ok((_, false))) {
            // Gone only when the agent ends.
            let _ = self.scheduler.send(SchedulerEvent::ServerGone);
        }
        self.control.connection_lost();
        match end {
            Ok((StreamEnd::VersionMismatch(text), _)) => SessionEnd::Refused(text),
            Ok((StreamEnd::Closed, greeted)) => {
                let reason = format!(
                    "{}: it ends, or another agent with this name connected",
                    StreamEnd::Closed
                );
                SessionEnd::Interrupted { reason, greeted }
            }
            Ok((end @ StreamEnd::Lost(_), false)) if self.options.has_no_tls() => interrupted(
                format!("{end}; the server may expect TLS, or be none of Ankaios"),
            ),
            Ok((end, greeted)) => SessionEnd::Interrupted {
                reason: end.to_string(),
                greeted,
            },
            Err(_) => interrupted("the reader of the connection ended".to_owned()),
        }
    }
}

/// Passes messages on until the stream ends, and may wait for the scheduler; returns how it ended,
/// and whether there was any message. Calls `on_first` at the first one.
fn read(
    mut receiver: ClientReceiver,
    control: &ControlHub,
    scheduler: &Sender<SchedulerEvent>,
    on_first: impl Fn(),
) -> (StreamEnd, bool) {
    let mut greeted = false;
    loop {
        match receiver.receive() {
            Ok(message) => {
                if !greeted {
                    on_first();
                }
                greeted = true;
                read_configs(&message);
                if let FromServer::Response(response) = message {
                    // The scheduler decides nothing about it, and would only make it later.
                    control.deliver(response);
                } else if scheduler.send(SchedulerEvent::Server(message)).is_err() {
                    return (StreamEnd::Closed, greeted);
                }
            }
            Err(end) => return (end, greeted),
        }
    }
}

/// Reads the runtime configurations of new workloads here, where nobody waits for something else.
fn read_configs(message: &FromServer) {
    let added = match message {
        FromServer::ServerHello(added) => added,
        FromServer::UpdateWorkload(plan) => &plan.added,
        _ => return,
    };
    added.iter().for_each(|added| drop(added.workload.config()));
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
        if lasted.is_some_and(|lasted| lasted > RECONNECT_PAUSE) {
            self.failures = 0;
        }
        let doublings = self.failures.min(16); // So that no number of attempts can overflow.
        self.failures = self.failures.saturating_add(1);
        RECONNECT_PAUSE_FIRST
            .saturating_mul(1 << doublings)
            .min(RECONNECT_PAUSE)
    }
}

/// Keeps the log readable while the server is away: a reason is repeated only after ever longer
/// intervals.
#[derive(Debug, Default)]
struct InterruptionLog {
    last: Option<(String, Instant, Duration)>,
}

impl InterruptionLog {
    fn is_worth(&mut self, reason: &str, now: Instant) -> bool {
        let interval = match &self.last {
            Some((last, at, interval)) if last == reason => {
                if now.saturating_duration_since(*at) < *interval {
                    return false;
                }
                // Longest pause between two log lines with the same reason.
                (*interval * 2).min(Duration::from_secs(3600))
            }
            // The same reason for a lost connection is logged again after this long at first; it
            // doubles.
            _ => Duration::from_secs(60),
        };
        self.last = Some((reason.to_owned(), now, interval));
        true
    }
}

#[cfg(test)]
mod tests;
