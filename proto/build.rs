//! Generates the Rust side of `proto/` with the pure Rust parser, so that no `protoc` is needed.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Files of the schema, and which of their messages are left as bytes: src/wire/convert/tree.rs
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

fn main() {
    let folder = PathBuf::from(variable("OUT_DIR")).join("proto");
    fs::create_dir_all(&folder).expect("cargo's folder is writable");
    for (name, bytes) in FILES {
        let file = format!("proto/{name}");
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
    link_small();
}

/// Relative relocations in their packed form, and one copy of identical functions, where the linker
/// can do that.
fn link_small() {
    if variable("PROFILE") != "release" || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    for argument in ["-Wl,-z,pack-relative-relocs", "-Wl,--icf=all"] {
        if linker_takes(argument) {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
    }
}

/// Which linker there is depends on target, compiler and settings; asking it is the only sure way.
// Nothing else runs in a build script that could wait for this.
#[allow(clippy::disallowed_methods)]
fn linker_takes(argument: &str) -> bool {
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args([
        "--crate-name",
        "linker_takes",
        "--crate-type",
        "bin",
        "--target",
        &variable("TARGET"),
        "-",
    ]);
    compiler
        .arg(format!("-Clink-arg={argument}"))
        .args(["--out-dir", &variable("OUT_DIR")]);
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    compiler.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    if !variable("RUSTC_LINKER").is_empty() {
        compiler.arg(format!("-Clinker={}", variable("RUSTC_LINKER")));
    }
    let child = compiler
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    // Dropping standard input ends it. Who does not read the program fails below.
    let _ = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(b"fn main() {}"));
    child.wait().is_ok_and(|status| status.success())
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
