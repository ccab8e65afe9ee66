//! The Rust side of `proto/`, generated at build time.
//!
//! Thread: none, plain values.

#![allow(clippy::all, clippy::pedantic, missing_docs)]

include!(concat!(env!("OUT_DIR"), "/schema/mod.rs"));
