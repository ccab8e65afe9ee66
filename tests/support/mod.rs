//! What the process and system tests share: a cluster of real programs, a fake or a real engine, tables, waiting.
//!
//! Thread: the test's own; a `Recorder` and a `Process` own a child process, nothing else runs beside the test.
//! Everything a test starts has its own port, folders and engine, so tests run in parallel.

// Every test binary compiles this folder and uses its part of it.
#![allow(dead_code, unused_imports)]

pub mod cluster;
pub mod control_client;
pub mod engine;
pub mod listing;
pub mod log_client;
pub mod manifest;
pub mod podman;
pub mod process;
pub mod python;
pub mod recorder;
pub mod scratch;
pub mod service_manager;
pub mod table;

use std::time::{Duration, Instant};

pub use cluster::{Cluster, Output};
pub use control_client::ControlClient;
pub use engine::FakeEngine;
pub use log_client::LogClient;
pub use manifest::{manifest, pod, workload};
pub use process::Process;
pub use recorder::Recorder;
pub use service_manager::ServiceManager;

/// Longest wait for anything a test expects. Generous, because a loaded machine is slow, not wrong.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Grain of polling for conditions.
pub const GRAIN: Duration = Duration::from_millis(25);

/// Waits until `condition` gives a value. `None` after `limit`.
pub fn poll<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if begin.elapsed() > limit {
            return None;
        }
        std::thread::sleep(GRAIN);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// After `LIMIT`, naming `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let held = poll(LIMIT, || condition().then_some(()));
    assert!(held.is_some(), "waited {LIMIT:?} in vain: {what}");
}
