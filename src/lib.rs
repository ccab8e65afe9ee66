//! A synchronous, thread-based Ankaios for constrained ECUs.

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod limits;
pub mod logging;
pub mod memory;
pub mod model;
#[cfg(feature = "agent")]
pub mod runtime;
#[cfg(feature = "server")]
pub mod server;
pub mod settings;
#[cfg(all(test, feature = "agent"))]
pub mod simulation;
pub mod threads;
pub mod wire;
