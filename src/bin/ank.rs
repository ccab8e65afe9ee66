//! `ank`: reads the arguments, runs one command, answers with an exit code.
//!
//! Thread: `main`.

use ankaios_lite::cli::args::Arguments;

fn main() {
    match Arguments::read(std::env::args_os()) {
        Ok(arguments) => println!("{arguments:?}"),
        Err(error) => error.exit(),
    }
}
