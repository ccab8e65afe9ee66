//! Tests only: whole programs on one thread, with time, engines and connections as values.
//!
//! Thread: the one of the test.
//!
//! The simulation runs a whole [`cluster`] through a [`scenario`] that a seed decides. It checks in
//! [`engine`] that no workload ever has two containers, in [`agent_expectations`] that dependencies
//! are kept, in [`server_expectations`] that the state is the requested one, in [`guarded_updates`]
//! that a failed update is rolled back to the earlier state, and in [`settled`] that actual equals
//! desired once faults stop. A seed that fails is made smaller by [`shrink`]. `./justw sim` runs it,
//! `./justw sim 42` repeats a seed with all its events.

#![cfg(test)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod agent_expectations;
mod cluster;
mod coroutine;
mod disk;
mod disturbances;
mod engine;
mod guarded_updates;
mod life;
mod modes;
mod network;
mod one_server;
mod progress;
mod readiness;
mod scenario;
mod server_expectations;
mod settled;
mod shrink;
mod sim_connector;
mod subscriber;
mod tests;
mod trace;
mod workload_requests;
