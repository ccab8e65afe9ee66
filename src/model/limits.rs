//! Bounds of values that all programs share or a user may meet.
//!
//! Thread: none, plain values.

use std::time::Duration;

// ------------------------------------------------------------------ requests

/// Encoded log entries in one message, in bytes: a peer of another implementation takes 4 MiB at
/// most.
pub const LOG_MESSAGE_MAX: usize = 2 * 1024 * 1024;
/// Longest wait of a read for the samples of agents. A sample takes milliseconds, and clients
/// repeat the read.
pub const USAGE_WAIT_MAX: Duration = Duration::from_secs(1);

// --------------------------------------------------------------- connections

/// Largest gRPC message sent or received by default, in bytes. 5,000 workloads with states need
/// about 8 MB.
pub const MESSAGE_MAX: usize = 64 * 1024 * 1024;
/// Largest message that other implementations receive (gRPC default), in bytes.
pub const FOREIGN_MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// Longest path of a Unix domain socket, in bytes: the kernel's limit without the zero at the end.
pub const SOCKET_PATH_MAX: usize = 107;
/// Changes of states that the server keeps: a day of a calm cluster, and less than 100 KiB of
/// memory.
pub const CHANGES_KEPT: usize = 200;
/// Of these, the changes of one workload, and of one agent: a workload that fails again and again
/// must not replace the changes of all others.
pub const CHANGES_OF_ONE_MAX: usize = 50;

// -------------------------------------------------------------------- names

/// Longest name of a workload, agent or config item, in bytes.
pub const NAME_MAX: usize = 63;
/// Shown bytes of a text from outside, which may have any length.
pub const EXCERPT_MAX: usize = 200;

// ----------------------------------------------------------------- lifecycle

/// Additional info about probes and conditions, in bytes: it is sent to the whole cluster.
pub const CONDITION_INFO_MAX: usize = 256;

// ---------------------------------------------------------- guarded updates

/// Starts of the server and losses of agents that fail an open update: it may be their reason.
pub const UPDATE_LOSSES: u32 = 3;

// ------------------------------------------------------------------ engines

/// How often the age of a long create is reported in the additional info.
pub const CREATE_AGE_INTERVAL: Duration = Duration::from_secs(10);

// ----------------------------------------------------------------- workloads

/// Upper bound of the first retry or restart delay; it doubles with each further one.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Upper bound of all retry and restart delays.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
