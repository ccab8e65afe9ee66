//! The Rust side of `proto/`, generated at build time.
//!
//! Thread: none, plain values.

#![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]

include!(concat!(env!("OUT_DIR"), "/schema/mod.rs"));
