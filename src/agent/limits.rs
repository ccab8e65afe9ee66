//! Bounds of the agent, with their reasons; others stand beside their one user.
//!
//! Thread: none, plain values.

use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_platform::limits::TURN_MAX;
use ankaios_runtime::limits::{LISTING_MAX, PATH_THREADS};
use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Longest time that the agent waits for its threads at the end. Calls of the engine are not waited
/// for.
pub(crate) const AGENT_STOP_DEADLINE: Duration = Duration::from_secs(1);

// ------------------------------------------------------------------- queues

/// Events waiting for the scheduler thread of the agent; senders wait when it is full. All of it is
/// allocated at the start, a quarter of a KiB for each event, so it is no more than bursts need.
pub const SCHEDULER_INBOX: usize = 64;
/// Commands waiting for one state checker; control loops wait when it is full.
pub const WATCH_INBOX: usize = 16;
/// Size of both where one thread sends and takes, as in the simulation: no sender can wait there.
pub const STEPPED_INBOX: usize = 256;

// ------------------------------------------------------------------ requests

/// Longest wait for the state checkers, which never wait for an engine, before a sample is taken
/// without theirs.
pub(crate) const USAGE_PROCESSES_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(USAGE_PROCESSES_MAX.as_millis() < USAGE_WAIT_MAX.as_millis());
/// Logs that one agent reads at the same time; each takes a thread and a process of the engine.
pub(crate) const LOG_STREAMS_MAX: usize = 64;
/// Those of them that were requested by one workload, on this node or another one.
pub(crate) const LOG_STREAMS_OF_WORKLOAD: usize = 16;
/// At its end the agent waits this long for the processes that read logs.
pub(crate) const LOG_STOP_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(LOG_STOP_MAX.as_millis() < AGENT_STOP_DEADLINE.as_millis());

// --------------------------------------------------------------- connections

/// Pause of an agent before its second attempt to reach the server, which may be about to start. It
/// doubles with each attempt.
pub(crate) const RECONNECT_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause of an agent between two attempts to reach the server.
pub const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(RECONNECT_PAUSE_FIRST.as_millis() < RECONNECT_PAUSE.as_millis());

// -------------------------------------------------------- control interface

/// A message must be complete this long after its first byte. Slow programs need milliseconds.
pub(crate) const CONTROL_MESSAGE_TIME: Duration = Duration::from_secs(30);

// ----------------------------------------------------------------- lifecycle

/// Longest wait of the scheduler for paths of conditions, once for each that does not answer. A
/// disk needs less.
pub(crate) const PATH_WAIT: Duration = Duration::from_millis(50);
const _: () = assert!(PATH_WAIT.as_millis() * PATH_THREADS as u128 * 2 < TURN_MAX.as_millis());

// ------------------------------------------------------------------ engines

/// Interval of full listings, which repair what events cannot show.
pub const REPAIR_INTERVAL: Duration = Duration::from_secs(30);
/// How often containers are listed where no pidfd can be had.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A create that takes longer gives its start slot back, so that a hanging one delays no other.
pub(crate) const START_SLOT_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(LISTING_MAX.as_secs() <= REPAIR_INTERVAL.as_secs());
/// A container of an earlier agent that is only created is replaced after this time. An engine that
/// restarts a container shows it so for a moment.
pub(crate) const CREATED_MAX: Duration = Duration::from_secs(90);
const _: () = assert!(CREATED_MAX.as_secs() > REPAIR_INTERVAL.as_secs() + LISTING_MAX.as_secs());
/// An engine that has not listed its containers within this time after the agent's start delays
/// only its own workloads from then on.
pub const FIRST_LISTING_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(FIRST_LISTING_MAX.as_secs() < LISTING_MAX.as_secs());
/// Engine calls of a killed agent may run for this long before they are ended.
pub(crate) const EARLIER_CALLS_MAX: Duration = Duration::from_secs(30);
/// Calls that do not end within this time after SIGTERM are killed.
pub(crate) const EARLIER_CALLS_GRACE: Duration = Duration::from_secs(5);

// ----------------------------------------------------------------- workloads

/// Failed creates are retried this often by default; 0 in the configuration means no limit.
pub(crate) const RETRY_LIMIT: u32 = 20;
/// A workload that has failed for good is tried again this often, without a new report.
pub(crate) const REVIVAL_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// After running this long, the next restart of a workload is immediate again.
pub(crate) const RESTART_RESET: Duration = Duration::from_secs(60);
/// Two starts of one workload are at least this far apart.
pub(crate) const RESTART_SPACING: Duration = Duration::from_secs(1);
/// Longest path of the kernel in bytes, its end included; an engine could not mount a file at a
/// longer one.
pub(crate) const PATH_MAX: usize = 4096;
/// Longest removal of files that a workload left in the agent's folder; only that workload waits. A
/// million are removed in this time in memory, some ten thousand on a slow disk.
pub(crate) const REMOVAL_MAX: Duration = Duration::from_secs(60);
/// How often the agent reports its load.
pub(crate) const LOAD_INTERVAL: Duration = Duration::from_secs(2);
