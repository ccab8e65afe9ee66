//! Values and rules: no I/O, no threads, no protobuf.
//!
//! Thread: none; used by every thread of the three programs.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod access_rules;
pub mod authorizer;
pub mod changes;
pub mod collect;
pub mod complete_state;
pub mod cycles;
pub mod execution_state;
pub mod field_path;
pub mod fields;
pub mod guarded_update;
pub mod health_window;
pub mod lifecycle;
pub mod limits;
pub mod log_entries;
pub mod manifest;
pub mod mask_tree;
pub mod messages;
pub mod modes;
pub mod names;
pub mod nearest;
pub mod node;
pub mod prepare_level;
pub mod reason;
pub mod refusal;
pub mod runtime_config;
pub mod shown_text;
pub mod usage;
pub mod validation;
pub mod version;
pub mod workload;
pub mod yaml;
