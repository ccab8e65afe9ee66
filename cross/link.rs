//! What the linker does for the programs, where it can: their build script.
//!
//! Thread: cargo runs it before it compiles the programs.

#![allow(clippy::print_stdout)] // What it prints tells cargo what to do.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Relative relocations in their packed form, and one copy of identical functions, where the linker
/// can do that.
fn main() {
    // Nothing here depends on a file.
    println!("cargo:rerun-if-changed=cross/link.rs");
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
