//! Plans in, containers running, states out.
//!
//! Thread: see the files.

pub mod state_checker;
