//! Generates the Rust side of `proto/` with the pure Rust parser, so that no `protoc` is needed.

fn main() {
    let files = ["proto/ank_base.proto", "proto/control_api.proto", "proto/grpc_api.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    protobuf_codegen::Codegen::new().pure().includes(["proto"]).inputs(files).cargo_out_dir("schema").run_from_script();
    link_small();
}

/// Relative relocations in their packed form, and one copy of identical functions where the linker can do that.
fn link_small() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("PROFILE") != "release" || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // The default linker of this target is lld; others do not know the option.
    if variable("CARGO_CFG_TARGET_ARCH") == "x86_64" {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
