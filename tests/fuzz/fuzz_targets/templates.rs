//! Fuzz target of cargo-fuzz; what it does stands in tests/fuzz/targets.rs.
#![no_main]
#![allow(dead_code)]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::templates(bytes));
