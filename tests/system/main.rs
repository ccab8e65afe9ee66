//! The three programs as processes with a real podman, in an image and container store of its own per test.
//!
//! `just stest` runs these alone, and then none of them may be left out.

#![allow(clippy::disallowed_methods)] // Tests start processes and wait for them.

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
#[path = "../support/mod.rs"]
mod support;

mod control;
mod lifecycle;
mod modes;
mod podman;
mod podman_kube;
mod prepare;
mod states;
mod store;
mod updates;
mod usage;
