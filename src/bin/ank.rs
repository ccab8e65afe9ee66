//! `ank`: runs one command; its result is the exit code.
//!
//! Thread: `main`.

use ankaios_lite::platform::memory;
use std::io::Write as _;

/// The program; its exit code. Public for the multi-call file.
pub(crate) fn main() -> std::process::ExitCode {
    memory::at_start_of_command();
    let code = ankaios_lite::cli::main(std::env::args_os());
    let _ = std::io::stdout().flush(); // The output may be closed.
    // Exit at once: a normal exit would first destroy the state of a C++ library that threads still
    // use.
    signal_hook::low_level::exit(code as i32)
}
