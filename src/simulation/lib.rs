//! Tests only: whole programs on one thread, with time, engines and connections as values.
//!
//! Thread: the one of the test.
//!
//! The simulation runs a whole [`cluster`] through a [`scenario`] that a seed
//! decides, and checks what must always hold: [`engine`] that no workload ever has two containers,
//! [`orders`] that dependencies are kept, [`guards`] that an update that failed leads back to what
//! was before, [`settled`] that actual equals desired once faults stop. A seed that fails is made
//! smaller by [`shrink`]. `./justw sim` runs it, `./justw sim 42` repeats a seed with all its events.

#![cfg(test)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod asked;
mod cluster;
mod coroutine;
mod disk;
mod disturbances;
mod engine;
mod guards;
mod life;
mod modes;
mod network;
mod one_server;
mod orders;
mod progress;
mod readiness;
mod scenario;
mod settled;
mod shrink;
mod sim_connector;
mod subscriber;
mod tests;
mod trace;
mod wishes;
