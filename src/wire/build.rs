//! Generates the Rust side of `proto/` with the pure Rust parser, so that no `protoc` is needed.
//!
//! Thread: cargo runs it before it compiles this crate.

use std::fs;
use std::path::PathBuf;

/// Files of the schema, and which of their messages are left as bytes: convert/tree.rs
/// reads and writes those. On the wire a message and bytes are the same.
const FILES: [(&str, &[(&str, &str)]); 3] = [
    (
        "ank_base.proto",
        &[
            (
                "CompleteState newState = 1;",
                "optional bytes newState = 1;",
            ),
            (
                "CompleteState completeState = 1;",
                "optional bytes completeState = 1;",
            ),
            (
                "ExecutionState executionState = 2;",
                "optional bytes executionState = 2;",
            ),
        ],
    ),
    ("control_api.proto", &[]),
    (
        "grpc_api.proto",
        &[
            (
                "ank_base.Workload workload = 2;",
                "optional bytes workload = 2;",
            ),
            (
                "ank_base.AgentUsage usage = 2;",
                "optional bytes usage = 2;",
            ),
        ],
    ),
];

/// Copies the schema with bytes in place of the messages that [`FILES`] names, and generates the
/// Rust side of the copy.
fn main() {
    let folder = PathBuf::from(variable("OUT_DIR")).join("proto");
    fs::create_dir_all(&folder).expect("cargo's folder is writable");
    for (name, bytes) in FILES {
        let file = format!("../../proto/{name}");
        println!("cargo:rerun-if-changed={file}");
        let mut text = fs::read_to_string(&file).expect("it is part of the sources");
        for (message, as_bytes) in bytes {
            assert!(text.contains(message), "{file} has no '{message}'");
            text = text.replace(message, as_bytes);
        }
        fs::write(folder.join(name), text).expect("cargo's folder is writable");
    }
    let files = FILES.map(|(name, _)| folder.join(name));
    protobuf_codegen::Codegen::new()
        .pure()
        .includes([&folder])
        .inputs(files)
        .cargo_out_dir("schema")
        .run_from_script();
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
