//! `ank`: runs one command; its result is the exit code.
//!
//! Thread: `main`.

/// The program; its exit code. Public for the multi-call file.
pub(crate) fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(ankaios_lite::cli::main(std::env::args_os()) as u8)
}
