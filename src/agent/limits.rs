//! Bounds of the agent, with their reasons. A bound with a single user is beside that user.
//!
//! Thread: none, plain values.

use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_platform::limits::TURN_MAX;
use ankaios_runtime::limits::{LISTING_MAX, PATH_THREADS};
use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Longest wait of the agent for its threads at its end. It does not wait for calls of an engine.
pub(crate) const AGENT_STOP_DEADLINE: Duration = Duration::from_secs(1);

// ------------------------------------------------------------------- queues

/// Events that wait for the scheduler. Senders wait when it is full. The memory for all of them, a
/// quarter of a KiB each, is allocated at the start, so there are no more than a burst needs.
pub const SCHEDULER_INBOX: usize = 64;
/// Commands that wait for one state checker. Control loops wait when it is full, which takes
/// microseconds. Each engine has its own, a fifth of a KiB for each command.
pub const WATCH_INBOX: usize = 8;
/// The size of both inboxes in the simulation: there one thread sends and takes, so it must never
/// wait.
pub const STEPPED_INBOX: usize = 256;

// ------------------------------------------------------------------ requests

/// Longest wait for the processes that a state checker watches. Then a sample of the usage is taken
/// without them. State checkers never wait for an engine, so they need much less.
pub(crate) const USAGE_PROCESSES_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(USAGE_PROCESSES_MAX.as_millis() < USAGE_WAIT_MAX.as_millis());
/// Logs that one agent reads at the same time. Each needs a thread and a process of the engine.
pub(crate) const LOG_STREAMS_MAX: usize = 64;
/// Logs that one agent reads at the same time for one workload, on this node or another one.
pub(crate) const LOG_STREAMS_OF_WORKLOAD: usize = 16;
/// Longest wait of the agent, at its end, for the processes that read logs.
pub(crate) const LOG_STOP_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(LOG_STOP_MAX.as_millis() < AGENT_STOP_DEADLINE.as_millis());

// --------------------------------------------------------------- connections

/// Pause of an agent before its second attempt to reach the server. It doubles with each attempt.
/// It is short, since the server may just be starting.
pub(crate) const RECONNECT_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause of an agent between two attempts to reach the server.
pub const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(RECONNECT_PAUSE_FIRST.as_millis() < RECONNECT_PAUSE.as_millis());
/// Longest pause of an agent whose connections the server closes again and again: another agent
/// with its name probably displaces it, and each change of the agent is one of all its workloads.
pub(crate) const RECONNECT_PAUSE_DISPLACED: Duration = Duration::from_secs(30);
/// A connection that has lasted this long was not displaced by another agent that also connects
/// again and again. Longer than the pause of that one.
pub(crate) const RECONNECT_STABLE: Duration = Duration::from_secs(60);
const _: () = assert!(RECONNECT_PAUSE_DISPLACED.as_millis() < RECONNECT_STABLE.as_millis());

// -------------------------------------------------------- control interface

/// A message must be complete this long after its first byte. Slow programs need milliseconds.
pub(crate) const CONTROL_MESSAGE_TIME: Duration = Duration::from_secs(30);

// ----------------------------------------------------------------- lifecycle

/// Longest wait of the scheduler for the paths of conditions. It waits only once for a path that
/// does not answer. A disk needs less.
pub(crate) const PATH_WAIT: Duration = Duration::from_millis(50);
const _: () = assert!(PATH_WAIT.as_millis() * PATH_THREADS as u128 * 2 < TURN_MAX.as_millis());

// ------------------------------------------------------------------ engines

/// Interval of full listings, which show changes that no event reports.
pub const REPAIR_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of listings while the kernel cannot report the end of a container's process.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A create that takes longer than this gives its start slot back, so that it delays no others.
pub(crate) const START_SLOT_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(LISTING_MAX.as_secs() <= REPAIR_INTERVAL.as_secs());
/// An adopted container that is created but not started is replaced after this time. It is longer
/// than an engine needs to restart a container and to list it again.
pub(crate) const CREATED_MAX: Duration = Duration::from_secs(90);
const _: () = assert!(CREATED_MAX.as_secs() > REPAIR_INTERVAL.as_secs() + LISTING_MAX.as_secs());
/// Longest wait of all workloads for the first listings of all engines. Afterwards an engine that
/// has not listed its containers delays only its own workloads.
pub const FIRST_LISTING_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(FIRST_LISTING_MAX.as_secs() < LISTING_MAX.as_secs());
/// Engine calls of a killed agent get SIGTERM after this time.
pub(crate) const EARLIER_CALLS_MAX: Duration = Duration::from_secs(30);
/// Engine calls of a killed agent are killed this long after SIGTERM.
pub(crate) const EARLIER_CALLS_GRACE: Duration = Duration::from_secs(5);

// ----------------------------------------------------------------- workloads

/// Retries of a failed create, by default. In the configuration, 0 means no limit.
pub(crate) const RETRY_LIMIT: u32 = 20;
/// Interval of further tries after the last retry. They are not reported.
pub(crate) const REVIVAL_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// After a workload has run for this time, its next restart is immediate again.
pub(crate) const RESTART_RESET: Duration = Duration::from_secs(60);
/// Two starts of one workload are at least this far apart.
pub(crate) const RESTART_SPACING: Duration = Duration::from_secs(1);
/// Longest path of the kernel in bytes, with its final zero. An engine cannot mount a file at a
/// longer one.
pub(crate) const PATH_MAX: usize = 4096;
/// Longest removal of the files that a workload has left in the agent's folder. Only that workload
/// waits. This is enough for a million files in memory, or some ten thousand on a slow disk.
pub(crate) const REMOVAL_MAX: Duration = Duration::from_secs(60);
/// How often the agent reports its load.
pub(crate) const LOAD_INTERVAL: Duration = Duration::from_secs(2);
