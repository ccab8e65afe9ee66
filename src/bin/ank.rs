//! `ank`: runs one command and answers with an exit code (spec/cli.md section 3).
//!
//! Thread: `main`.

/// The program; its exit code. Public for the multi-call file.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(ankaios_lite::cli::main(std::env::args_os()) as u8)
}
