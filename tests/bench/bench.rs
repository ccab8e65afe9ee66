//! Measures `ank-server` from outside: `bench server FOLDER` and `bench tls FOLDER`, where FOLDER
//! has the program.
//!
//! `server`: what a cluster of simulated agents costs the server, beside the numbers of Eclipse
//! Ankaios and what we promise. Fails only when a relation that no other load can change is broken:
//! the cost of one state change must not grow with the number of workloads. `tls`: what protecting
//! the connection costs. `modes`: what a switch costs. `usage`: what a read of what workloads use
//! costs. `load`: how costs grow. `report`: all rows that were measured as one table and one
//! drawing.
//!
//! Thread: `main`, one more for each simulated agent and for the subscriber. Run by
//! scripts/bench.sh.

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.

// A program of its own for people.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

mod clients;
mod load;
mod modes;
mod process;
mod report;
mod scale;
mod table;
mod tls;
mod usage;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let held = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["server", programs] => scale::run(Path::new(programs)),
        ["tls", programs] => tls::run(Path::new(programs)),
        ["modes", programs] => modes::run(Path::new(programs)),
        ["usage", programs] => usage::run(Path::new(programs)),
        ["load", programs, engine] => load::run(Path::new(programs), Path::new(engine)),
        ["report", ours, drawing] => {
            report::check() && report::run(Path::new(ours), None, Path::new(drawing))
        }
        ["report", ours, peer, drawing] => {
            report::check()
                && report::run(Path::new(ours), Some(Path::new(peer)), Path::new(drawing))
        }
        _ => {
            eprintln!(
                "usage: bench server|tls|modes|usage FOLDER_OF_ANK_SERVER\n       bench load FOLDER FAKE_ENGINE\n       bench report ROWS [ROWS_OF_PEER] SVG"
            );
            return ExitCode::from(2);
        }
    };
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
