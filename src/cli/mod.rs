//! The command line tool `ank`: answers for people and scripts (spec/cli.md).
//!
//! Thread: `main`; a second thread, `cli:rx`, only passes on what the server sends.

pub mod args;
pub mod error;
pub mod live;
pub mod output;
pub mod rows;
pub mod session;
pub mod settings;
pub mod state_output;
pub mod table;
#[cfg(test)]
mod testing;
pub mod wait;
