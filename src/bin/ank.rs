//! `ank`: runs one command and ends with its exit code.
//!
//! Thread: `main`.

/// The program; its exit code. Public for the multi-call file.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(ankaios_lite::cli::main(std::env::args_os()) as u8)
}
