//! Generates the Rust side of `proto/` with the pure Rust parser, so that no `protoc` is needed.

fn main() {
    let files = ["proto/ank_base.proto", "proto/control_api.proto", "proto/grpc_api.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    protobuf_codegen::Codegen::new().pure().includes(["proto"]).inputs(files).cargo_out_dir("schema").run_from_script();
}
