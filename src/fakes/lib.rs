//! Tests only: a clock, a container engine and probes as values, for the tests of several crates.
//!
//! Thread: the one of the test.

pub mod fake_connector;
pub mod fake_probes;
pub mod log_lines;
pub mod manual_clock;

use ankaios_platform::{clock, logging};
