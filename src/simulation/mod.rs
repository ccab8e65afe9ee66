//! Tests only: time, engine and threads as values, so that whole programs run on one thread.
//!
//! Thread: the one of the test.

pub mod fake_connector;
pub mod manual_clock;
pub mod stepped_agent;
