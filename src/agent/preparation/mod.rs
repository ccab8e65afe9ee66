//! Starts prepared while their workloads wait: how far that may go ([`levels`]), what the host had
//! when it was done ([`host_paths`]), and what the next agent must know of it ([`record`]). The
//! control loop of a workload does it.
//!
//! Thread: see the files.

pub(crate) mod host_paths;
pub(crate) mod levels;
pub(crate) mod record;

#[cfg(test)]
mod tests;
