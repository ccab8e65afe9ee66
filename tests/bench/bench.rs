//! Measures release programs from outside: `bench PART`, where `ANKAIOS_TEST_PROGRAMS` names the
//! folder of the programs. Run by scripts/bench.sh, which lists the parts.
//!
//! `server`, `tls`, `modes`, `usage` and `load` measure a server with simulated agents, `control`
//! and `lifecycle` real programs with the scripted engine, `agent`, `boot` and `update` real
//! programs on real podman. A part fails only when a relation that no other load can change is
//! broken. `report` shows all rows that were measured as one table and one drawing.
//!
//! Thread: `main`, one more for each simulated agent and for the subscriber.

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.

// A program of its own for people.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code)] // The system tests use all of it, these a part.
#[path = "../system/store.rs"]
mod store;

mod agent;
mod boot;
mod clients;
mod control;
mod lifecycle;
mod load;
mod modes;
mod process;
mod real;
mod report;
mod rows;
mod scale;
mod settings;
mod table;
mod tls;
mod update;
mod usage;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The last one is what `cargo bench` gives to each program.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let programs = settings::programs();
    let held = match words.as_slice() {
        ["server"] => scale::run(&programs),
        ["tls"] => tls::run(&programs),
        ["modes"] => modes::run(&programs) && agent::run(&programs, "modes"),
        ["usage"] => usage::run(&programs) && agent::run(&programs, "usage"),
        ["control"] => control::run(),
        ["lifecycle"] => lifecycle::run(),
        ["agent"] => {
            let parts = std::env::var("BENCH_PARTS").unwrap_or_default();
            let parts = if parts.is_empty() {
                agent::PARTS
            } else {
                &parts
            };
            agent::run(&programs, parts)
        }
        ["boot"] => boot::run(&programs),
        ["update"] => update::run(&programs),
        ["load"] => load::run(&programs, support::engine::program()),
        ["report", ours, drawing] => {
            report::check() && report::run(Path::new(ours), None, Path::new(drawing))
        }
        ["report", ours, peer, drawing] => {
            report::check()
                && report::run(Path::new(ours), Some(Path::new(peer)), Path::new(drawing))
        }
        _ => {
            eprintln!("usage: bench PART, or bench report ROWS [ROWS_OF_PEER] SVG");
            return ExitCode::from(2);
        }
    };
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
