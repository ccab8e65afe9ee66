//! The fuzz targets with a few thousand inputs from a fixed seed: valid inputs, changed at random,
//! and every input that was once found to be wrong (tests/fuzz/found/<target>/).
//!
//! `ANKAIOS_FUZZ_INPUTS=100000` takes more of them. `ANKAIOS_FUZZ_SEEDS=<folder>` writes what the
//! targets begin with, for cargo-fuzz (scripts/fuzz.sh).

#![allow(unreachable_pub)] // Its files offer each other what they have, and nobody else.
#![allow(clippy::disallowed_methods)] // Tests start threads of their own.

#[path = "fuzz/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use targets::Target;

/// Changed inputs of each target.
const INPUTS: usize = 1500;
/// Of those that write files or read command lines.
const INPUTS_SLOW: usize = 300;
/// Longest input, in bytes.
const LENGTH_MAX: usize = 16 * 1024;

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")),
    )
}

/// Runs one input; a failure shows it in a form that can be kept.
fn feed(name: &str, target: Target, input: &[u8], origin: &str) {
    if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
        panic!(
            "'{name}' fails with {origin}: b\"{}\"",
            input.escape_ascii()
        );
    }
}

/// The target on a thread with the stack of the server's thread.
fn run(wanted: &'static str) {
    let stack = ankaios_lite::server::limits::STACK_SERVER;
    let body = move || {
        let (name, target, seeds) = targets::all()
            .into_iter()
            .find(|(name, ..)| *name == wanted)
            .expect("there is such a target");
        for (number, seed) in seeds.iter().enumerate() {
            feed(name, target, seed, &format!("seed {number}"));
        }
        for (path, input) in found(name) {
            feed(name, target, &input, &path);
        }
        let mut random = fastrand::Rng::with_seed(7);
        let inputs = if ["settings", "files", "records"].contains(&name) {
            INPUTS_SLOW
        } else {
            INPUTS
        };
        for round in 0..number("ANKAIOS_FUZZ_INPUTS").unwrap_or(inputs) {
            feed(
                name,
                target,
                &changed(&mut random, &seeds),
                &format!("input {round}"),
            );
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(stack)
        .spawn(body)
        .expect("a thread can be had");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Inputs that failed once.
fn found(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/found")
        .join(name);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            (
                entry.path().display().to_string(),
                fs::read(entry.path()).expect("it is readable"),
            )
        })
        .collect()
}

// ----------------------------------------------------------- random changes

/// Pieces that mean something in one of the targets.
const PIECES: [&str; 46] = [
    "*",
    ".",
    "\n",
    "\n\n",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "{{",
    "}}",
    "{{#each ",
    "{{/each}}",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "null",
    "~",
    "\"",
    "'",
    "|\n",
    "desiredState.",
    "workloads.",
    "\u{feff}",
    "é",
    "\0",
    "apiVersion: v1\n",
    "---\n",
    "\"Id\":",
    "null,",
    "[[",
    "\\u0000",
    "-1",
    "18446744073709551616",
    "1e400",
    "../",
    "/",
    "\r\n",
    "{{#> x}}",
    "{{> @partial-block}}",
    "(lookup a b)",
    "= \"\"\"",
    "\u{1b}[2J",
    "name=",
];

/// One of the seeds with up to eight changes.
fn changed(random: &mut fastrand::Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.usize(..seeds.len())].clone();
    for _ in 0..=random.usize(..8) {
        let at = random.usize(..=input.len());
        let end = (at + random.usize(..40)).min(input.len());
        match random.u8(..8) {
            0 => drop(input.drain(at..end)),
            1 if at < input.len() => input[at] = random.u8(..),
            2 if at < input.len() => input[at] ^= 1 << random.u8(..8),
            3 => insert(
                &mut input,
                at,
                PIECES[random.usize(..PIECES.len())].as_bytes(),
            ),
            4 => {
                let copy = input[at..end].to_vec();
                insert(&mut input, at, &copy.repeat(random.usize(1..4)));
            }
            5 => {
                let other = &seeds[random.usize(..seeds.len())];
                let from = random.usize(..=other.len());
                let to = (from + random.usize(..200)).min(other.len());
                insert(&mut input, at, &other[from..to]);
            }
            6 => input.truncate(at),
            _ => {
                let to = random.usize(..=input.len());
                let moved: Vec<u8> = input.drain(at..end).collect();
                insert(&mut input, to, &moved);
            }
        }
    }
    input.truncate(LENGTH_MAX);
    input
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let at = at.min(input.len());
    input.splice(at..at, bytes.iter().copied());
}

// ----------------------------------------------------------------- the tests

#[test]
fn a_manifest_of_any_bytes_is_read_or_refused() {
    run("manifest");
}

#[test]
fn masks_of_any_bytes_read_their_parts_and_update_atomically() {
    run("masks");
}

#[test]
fn messages_of_any_bytes_are_answered_and_survive_a_round_trip() {
    run("messages");
}

#[test]
fn corpus_of_each_target_is_written_where_cargo_fuzz_looks() {
    let wanted = std::env::var_os("ANKAIOS_FUZZ_SEEDS").map(std::path::PathBuf::from);
    let own = tempfile::tempdir().expect("the temporary folder is writable");
    let folder = wanted.unwrap_or_else(|| own.path().to_owned());
    for (name, _, seeds) in targets::all() {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).expect("the folder is writable");
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed).expect("the folder is writable");
        }
        assert!(fs::read_dir(&folder).expect("it was made").count() >= seeds.len());
    }
}

#[test]
fn bytes_of_a_workload_get_through_only_as_what_its_rules_allow() {
    run("control");
}

#[test]
fn outputs_of_engines_show_containers_of_the_agent_only() {
    run("engines");
}

#[test]
fn configurations_of_all_runtimes_are_read_or_refused() {
    run("configs");
}

#[test]
fn templates_of_any_bytes_are_rendered_or_refused() {
    run("templates");
}

#[test]
fn config_files_of_any_bytes_are_read_or_refused() {
    run("settings");
}

#[test]
fn what_hooks_write_is_read_whole_or_refused() {
    run("hooks");
}

#[test]
fn a_stored_state_of_any_bytes_is_read_or_refused() {
    run("stored");
}

#[test]
fn answers_to_probes_hold_or_fail() {
    run("probes");
}

#[test]
fn logs_of_any_bytes_become_their_lines() {
    run("logs");
}

#[test]
fn names_and_addresses_of_any_bytes_are_read_or_refused() {
    run("texts");
}

#[test]
fn files_of_any_names_stay_in_the_folder_of_their_workload() {
    run("files");
}

#[test]
fn records_of_any_bytes_stop_no_agent() {
    run("records");
}

/// A target that is not everywhere would never run.
#[test]
fn each_target_is_known_to_cargo_fuzz_and_to_its_script() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &str| fs::read_to_string(top.join(path)).expect("it is readable");
    let mut names: Vec<&str> = targets::all().iter().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    let manifest = text("tests/fuzz/Cargo.toml");
    let own = text("tests/fuzz_bounded.rs");
    let script = text("scripts/fuzz.sh");
    let all = format!("all=({})", names.join(" "));
    assert!(script.contains(&all), "{all}");
    // A filter that matches no test passes as well, and the targets would begin with nothing.
    let writer =
        std::any::type_name_of_val(&corpus_of_each_target_is_written_where_cargo_fuzz_looks);
    let writer = writer.rsplit("::").next().expect("a path has a last part");
    assert!(
        script.lines().any(|line| line.trim() == writer),
        "scripts/fuzz.sh does not run {writer}"
    );
    for name in names {
        assert!(
            text(&format!("tests/fuzz/fuzz_targets/{name}.rs"))
                .contains(&format!("targets::{name}(bytes)"))
        );
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        assert!(
            own.contains(&format!("run(\"{name}\");")),
            "{name} does not run here"
        );
    }
}
