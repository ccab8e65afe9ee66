//! Bounds of what each program needs of its operating system.
//!
//! Thread: none, plain values.

use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Stack of a thread that only moves messages, in bytes. The kernel takes pages when they are
/// touched.
pub const STACK_SMALL: usize = 128 * 1024;
/// Stack of a thread that parses or builds nested data, in bytes.
pub const STACK_LARGE: usize = 1024 * 1024;
/// Longest time that `main` waits for its threads at the end before it names those still running.
pub const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// A turn of an event loop above this is logged as a warning: something blocked that must not.
pub const TURN_MAX: Duration = Duration::from_millis(500);

// ------------------------------------------------------------------- memory

/// After the start, or the last call of an engine, memory that only it needed is returned after
/// this time.
pub const SETTLE_AFTER: Duration = Duration::from_secs(2);
/// Dropping this many bytes at once is worth the milliseconds that returning them takes.
pub const TRIM_FROM: usize = 1024 * 1024;

// ---------------------------------------------------------------------- log

/// Log lines that one source may cause in a minute.
pub const LOG_SOURCE_LINES: u64 = 20;

// ------------------------------------------------------------------ requests

/// Longest wait of the thread that writes metrics for the loop that has the numbers.
pub const METRICS_WAIT_MAX: Duration = Duration::from_secs(1);

// -------------------------------------------------------- control interface

/// Longest message of a workload by default, in bytes. Memory is allocated as bytes arrive, not for
/// the announced length.
pub const CONTROL_MESSAGE_MAX: usize = 4 * 1024 * 1024;

// ------------------------------------------------------------ other programs

/// Longest wait for a killed child; one that the kernel cannot end is left to a thread of its own.
pub(crate) const KERNEL_KILL_GRACE: Duration = Duration::from_secs(2);
/// How often the end of a child is checked where the kernel has no pidfd (before Linux 5.3).
pub(crate) const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What a pipe holds by default, in bytes.
pub const PIPE_CAPACITY: usize = 64 * 1024;
/// Most that a pipe can hold without privileges, in bytes (`/proc/sys/fs/pipe-max-size`).
pub const PIPE_CONTENT_MAX: usize = 1024 * 1024;

// ----------------------------------------------------------------- workloads

/// Additional info in a report, in bytes; the rest of a long engine message is cut.
pub const ADDITIONAL_INFO_MAX: usize = 4 * 1024;
