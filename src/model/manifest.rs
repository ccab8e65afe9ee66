//! Reads manifests: YAML text to a desired state.
//!
//! Thread: none, plain functions.
