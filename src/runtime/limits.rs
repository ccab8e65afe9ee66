//! Bounds of calls of the container engines, and of checks.
//!
//! Thread: none, plain values.

use ankaios_model::limits::CONDITION_INFO_MAX;
use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Stack of a thread that runs one workload, in bytes: the manifests of pods may be nested deeply.
pub const STACK_WORKLOAD: usize = 512 * 1024;

// ----------------------------------------------------------------- lifecycle

/// Probes by commands that run at the same time, at most one of each workload. More wait: each
/// costs the engine some 0.1 s.
pub(crate) const EXEC_PARALLEL: usize = 4;
/// A command that takes longer gives its slot back, so that hanging ones delay no others for long.
pub(crate) const EXEC_SLOT_MAX: Duration = Duration::from_secs(2);
/// Running commands, with hanging ones: each is a process of the engine, of some 10 MB.
pub(crate) const EXEC_RUNNING_MAX: usize = 16;
const _: () = assert!(EXEC_RUNNING_MAX > EXEC_PARALLEL);
/// Threads that probe paths for one owner. A network mount that does not answer blocks one each; a
/// node has few. While all are blocked, prepared containers that mount paths are created again.
pub const PATH_THREADS: usize = 4;
/// Probes of paths of one owner without a result: two for each of many workloads.
pub(crate) const PATH_PROBES_MAX: usize = 1024;

// ------------------------------------------------------------------ engines

/// Longest wait for one listing of containers. Slow flash makes seconds normal, not minutes.
pub const LISTING_MAX: Duration = Duration::from_secs(30);
/// How much longer than the container's own stop timeout a stop may take.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Reason of a failed engine call in states, in bytes; the log has the whole output. With the words
/// around it, it fits into [`CONDITION_INFO_MAX`].
pub const ENGINE_REASON_MAX: usize = 200;
const _: () = assert!(ENGINE_REASON_MAX + 40 <= CONDITION_INFO_MAX);
/// Longest name and version of an engine, in bytes. The server shows 100 of all engines together.
pub(crate) const ENGINE_VERSION_MAX: usize = 48;
