//! What each program needs of its operating system: threads, time, child processes, log, folders,
//! settings, systemd.
//!
//! Thread: the caller's.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod checked_file;
pub mod child;
pub mod clock;
pub mod folder_lock;
pub mod limits;
#[cfg(test)]
#[path = "../fakes/log_lines.rs"]
#[allow(dead_code, unreachable_pub)] // Others need all of it.
mod log_lines;
pub mod logging;
/// The clock of the tests of all crates.
#[cfg(test)]
#[path = "../fakes/manual_clock.rs"]
#[allow(unreachable_pub)] // Others use it.
mod manual_clock;
pub mod memory;
pub mod metrics_file;
pub mod private_folder;
pub mod program;
pub mod security;
pub mod service_manager;
pub mod settings;
pub mod sync;
pub mod threads;
pub mod watchdog;
