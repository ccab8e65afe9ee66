//! How `ank-server` and `ank-agent` end: their exit codes, and what a usage error or a request for
//! help does. Which program a multi-call file is.
//!
//! Thread: `main`. `ank` has exit codes of its own (`src/cli/error.rs`).

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// How a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A signal ended it, or help was shown.
    Done = 0,
    /// The one fatal record has the reason.
    Failed = 1,
    /// A wrong option or environment variable.
    Usage = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Makes a panic of any thread end the program, as in release builds. Otherwise the program would
/// continue without the thread, and no supervisor would restart it.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

/// Prints the text of the command line parser: help and version to standard output, errors to
/// standard error.
pub fn usage(text: &clap::Error) -> Exit {
    let _ = text.print(); // The output may be closed.
    if text.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

/// The name of a program in `argv[0]`, without folders; empty when there is none.
pub fn called_as(first_argument: &OsStr) -> &OsStr {
    Path::new(first_argument).file_name().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    #[test]
    fn only_a_wrong_command_line_is_an_error() {
        for (argument, expected) in [
            ("--help", Exit::Done),
            ("--version", Exit::Done),
            ("--wrong", Exit::Usage),
        ] {
            let command = Command::new("program").version("1.0.0");
            let text = command
                .try_get_matches_from(["program", argument])
                .expect_err("nothing to run");
            assert_eq!(usage(&text), expected, "{argument}");
        }
    }

    #[test]
    fn program_is_named_by_the_last_part_of_the_path() {
        for (argument, expected) in [
            ("ank", "ank"),
            ("/usr/bin/ank-agent", "ank-agent"),
            ("./x/ank", "ank"),
            ("", ""),
        ] {
            assert_eq!(called_as(OsStr::new(argument)), expected, "{argument}");
        }
    }
}
