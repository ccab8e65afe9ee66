//! The multi-call program: all components in one file, for less flash and shared pages of code. The
//! names under which it is called, links to the file, select the program.
//!
//! Thread: `main`, which becomes that of the program that was called.

use ankaios_lite::platform::program::{Exit, called_as};
use std::io::Write;
use std::process::ExitCode;

#[cfg(feature = "agent")]
#[path = "ank-agent.rs"]
mod ank_agent;
#[cfg(feature = "server")]
#[path = "ank-server.rs"]
mod ank_server;

/// The name of a link, and the program that runs under it.
type Program = (&'static str, fn() -> ExitCode);

/// The programs in this file.
const PROGRAMS: &[Program] = &[
    #[cfg(feature = "server")]
    ("ank-server", ank_server::main),
    #[cfg(feature = "agent")]
    ("ank-agent", ank_agent::main),
    #[cfg(feature = "cli")]
    ("ank", ank::main),
];

#[cfg(feature = "cli")]
#[path = "ank.rs"]
mod ank;

fn main() -> ExitCode {
    let first = std::env::args_os().next().unwrap_or_default();
    let mut names = Vec::new();
    for (name, run) in PROGRAMS {
        if *name == called_as(&first) {
            return run();
        }
        names.push(format!("'{name}'"));
    }
    let names = names.join(", ");
    // Standard error may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "error: this file holds several programs, and '{}' is the name of none\nhint: link to it under one of these names and call that: {names}",
        first.display(),
    );
    Exit::Usage.into()
}
