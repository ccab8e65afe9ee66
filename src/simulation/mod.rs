//! Tests only: time, engine and threads as values, so that whole programs run on one thread.
//!
//! Thread: the one of the test.
//!
//! Two things stand here. [`stepped_agent`] with [`fake_connector`] runs one agent in tests that
//! tell a story. The simulation runs a whole [`cluster`] through a [`scenario`] that a seed
//! decides, and checks what must always hold: [`engine`] that no workload ever has two containers,
//! [`orders`] that dependencies are kept, [`guards`] that an update that failed leads back to what
//! was before, [`settled`] that actual equals desired once faults stop. A seed that fails is made
//! smaller by [`shrink`]. `just sim` runs it, `just sim 42` repeats a seed with all its events.

mod asked;
mod cluster;
mod coroutine;
mod disk;
mod disturbances;
mod engine;
pub mod fake_connector;
pub mod fake_probes;
mod guards;
mod life;
pub mod manual_clock;
mod modes;
mod network;
mod orders;
mod readiness;
mod scenario;
mod settled;
mod shrink;
mod sim_connector;
pub mod stepped_agent;
mod subscriber;
mod tests;
mod trace;
mod wishes;
