//! What each program needs of its operating system: threads, time, child processes, log, folders,
//! settings, systemd.
//!
//! Thread: the caller's.

#[cfg(any(feature = "agent", feature = "server"))]
pub mod child;
pub mod clock;
#[cfg(any(feature = "agent", feature = "server"))]
pub mod folder_lock;
pub mod logging;
pub mod memory;
#[cfg(any(feature = "server", feature = "agent"))]
pub mod metrics_file;
#[cfg(feature = "agent")]
pub mod private_folder;
pub mod program;
#[cfg(any(feature = "agent", feature = "server"))]
pub mod service_manager;
pub mod settings;
pub mod sync;
pub mod threads;
#[cfg(any(feature = "agent", feature = "server"))]
pub mod watchdog;
