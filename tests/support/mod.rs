//! What the process and system tests share: a cluster of real programs, a fake or a real engine,
//! tables, waiting.
//!
//! Thread: the test's own; a `Recorder` and a `Process` own a child process, nothing else runs
//! beside the test. Everything a test starts has its own port, folders and engine, so tests run in
//! parallel.

pub mod cluster;
pub mod connection;
pub mod control_client;
pub mod engine;
pub mod listing;
pub mod log_client;
pub mod manifest;
pub mod podman;
pub mod process;
pub mod proxy;
pub mod python;
pub mod recorder;
pub mod scratch;
pub mod service_manager;
pub mod small_disk;
pub mod table;

use std::io::Write as _;
use std::time::{Duration, Instant};

pub use cluster::{Cluster, Output};
pub use control_client::ControlClient;
pub use engine::FakeEngine;
pub use log_client::LogClient;
pub use manifest::{manifest, pod, workload};
pub use process::Process;
pub use proxy::Proxy;
pub use recorder::Recorder;
pub use service_manager::ServiceManager;
pub use small_disk::SmallDisk;

/// Longest wait for anything that a test expects. Only a hang meets it: a test whose programs share
/// half of a core with those of seven others is slow, not wrong.
pub const LIMIT: Duration = Duration::from_secs(180);
/// Grain of polling for conditions.
pub const GRAIN: Duration = Duration::from_millis(25);

/// Prints that a test is left out on this machine: in the output, and in the last lines of
/// `./justw test`.
///
/// # Panics
/// In a recipe that leaves nothing out.
#[allow(clippy::print_stderr)]
pub fn leave_out(what: &str, why: &str) {
    assert!(
        std::env::var_os("ANKAIOS_LEAVE_NOTHING_OUT").is_none(),
        "{what} cannot be tested: {why}"
    );
    eprintln!("{what} is left out: {why}");
    if let Some(path) = std::env::var_os("ANKAIOS_LEFT_OUT") {
        let file = std::fs::File::options().append(true).open(path);
        let written =
            file.and_then(|mut file| file.write_all(format!("{what}: {why}\n").as_bytes()));
        written.expect("the file of `./justw test` can be written");
    }
}

/// A number that a user who repeats a test by hand may set.
///
/// # Panics
/// When it is something else.
pub fn from_environment(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let Ok(number) = text.parse() else {
        panic!("{variable} is a number, not '{text}'");
    };
    Some(number)
}

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

/// Runs a command with longer and longer limits of time, until its errors contain `text`. On a slow
/// machine the text needs more time. Returns the last limit and the output.
pub fn with_enough_time(text: &str, run: impl Fn(&str) -> Output) -> (&'static str, Output) {
    for limit in ["2s", "7s", "30s"] {
        let output = run(limit);
        if output.stderr.contains(text) {
            return (limit, output);
        }
    }
    let last = "150s";
    (last, run(last))
}

/// Waits until `condition` holds.
///
/// # Panics
/// After `LIMIT`, naming `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let held = poll(LIMIT, || condition().then_some(()));
    assert!(held.is_some(), "waited {LIMIT:?} in vain: {what}");
}
