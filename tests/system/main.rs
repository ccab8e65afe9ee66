//! The three programs as processes with a real podman, in an image and container store of its own
//! per test.
//!
//! `./justw stest` runs these alone, and then none of them may be left out. They begin in the order of
//! their names, so those that take longest have early ones.

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.
#![allow(clippy::disallowed_methods)] // Tests start processes and wait for them.

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
#[path = "../support/mod.rs"]
mod support;

mod changes_of_mode;
mod control;
mod examples;
mod guarded_updates;
mod images;
mod kill;
mod lifecycle;
mod podman;
mod podman_kube;
mod prepare;
mod states;
mod store;
mod usage;
mod volumes;
