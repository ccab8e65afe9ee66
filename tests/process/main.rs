//! The three programs as processes, with a scripted fake engine in place of podman: one module per
//! matter.
//!
//! All tests of this level are one program, so that what they share is compiled once and they run
//! side by side. A test therefore changes nothing that the whole process has: limits, environment,
//! working folder and signals are set for the children that it starts.

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.
#![allow(clippy::disallowed_methods)] // Tests start processes and wait for them.

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod bad_input;
mod bad_updates;
mod blame;
mod busy_cluster;
mod cli_errors;
mod cli_follow;
mod cli_outputs;
mod containerd;
mod control;
mod cycles;
mod dependencies;
mod dependents;
mod diff;
mod docs;
mod engine_calls;
mod engine_faults;
mod fake_engine;
mod faults;
mod faults_limits;
mod flood;
mod followers;
mod guarded_updates;
mod hooks;
mod http2_attacks;
mod images;
mod kill;
mod lifecycle;
mod logs;
mod modes;
#[cfg(feature = "multicall")]
mod multicall;
mod panics;
mod persistence;
mod prepare;
mod prune;
mod python_client;
mod repeated;
mod restarts;
mod rollback;
mod service_manager;
mod socket;
mod staged_updates;
mod state_output;
mod stolen_agent;
mod stops;
mod tls;
mod updates;
mod usage;
mod yaml_bombs;
