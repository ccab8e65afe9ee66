//! Documentation that is shipped: manual pages and the comments of the settings name everything
//! that the programs accept.
//!
//! Thread: the test's. Owns: one scratch folder per test.

#![allow(clippy::print_stderr)] // Tests say what they cannot do here.

#[allow(dead_code)] // Its `main`.
#[path = "../../cross/package/man.rs"]
mod generator;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::scratch;

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("'{}': {error}", path.display()))
}

fn repository(path: &str) -> String {
    read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// File name and text of each page, without the markup of words.
fn pages() -> Vec<(String, String)> {
    let folder = scratch::folder("man");
    generator::write(folder.path()).expect("pages can be written");
    let mut pages = Vec::new();
    for section in ["man1", "man8"] {
        for file in fs::read_dir(folder.path().join(section))
            .expect("there are pages")
            .flatten()
        {
            let name = file.file_name().to_string_lossy().into_owned();
            if let Ok(output) = Command::new("groff")
                .args(["-man", "-Tutf8", "-ww", "-z"])
                .arg(file.path())
                .output()
            {
                assert!(
                    output.stderr.is_empty(),
                    "{name}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            } else {
                eprintln!("no groff here");
            }
            pages.push((name, without_markup(&read(file.path()))));
        }
    }
    pages
}

fn without_markup(page: &str) -> String {
    page.replace("\\fB", "")
        .replace("\\fI", "")
        .replace("\\fR", "")
        .replace('\\', "")
}

/// Whether it is in `text`, but not as a part of a longer name.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| word == name)
}

#[test]
fn manual_pages_name_variables_of_options_and_exit_codes() {
    let pages = pages();
    assert!(pages.len() > 15, "{pages:?}");
    for (name, command) in [
        ("ank-server.8", ankaios_lite::server::settings::command()),
        ("ank-agent.8", ankaios_lite::agent::settings::command()),
        ("ank.1", ankaios_lite::cli::args::command()),
    ] {
        let (_, page) = pages
            .iter()
            .find(|(page, _)| page == name)
            .expect("there is a page");
        let (_, environment) = page
            .split_once(".SH ENVIRONMENT")
            .expect("there is this part");
        let variables: Vec<_> = command
            .get_arguments()
            .filter_map(|argument| argument.get_env())
            .collect();
        assert!(variables.len() > 4, "{variables:?}");
        for variable in variables {
            assert!(
                names(environment, &variable.to_string_lossy()),
                "{name}: {}",
                variable.display()
            );
        }
    }
    for (name, page) in &pages {
        let (_, exits) = page
            .split_once(".SH \"EXIT STATUS\"\n")
            .unwrap_or_else(|| panic!("{name} lacks exit codes"));
        let last = if name.ends_with(".1") { "4" } else { "2" };
        assert!(
            exits.lines().any(|line| line == last),
            "{name} has no exit code {last}"
        );
    }
}

#[test]
fn manual_pages_do_not_tell_the_environment_they_were_made_in() {
    for (name, page) in pages() {
        for shown in page.split("[env: ").skip(1) {
            let (variable, _) = shown.split_once(']').expect("a name in brackets");
            assert!(
                variable.starts_with("ANK") && !variable.contains('='),
                "{name}: {variable}"
            );
        }
    }
}

/// The texts in `const <name>: ... = [...];` of a source file.
fn listed(source: &str, name: &str) -> Vec<String> {
    let source = repository(source);
    let (_, list) = source
        .split_once(&format!("const {name}: "))
        .unwrap_or_else(|| panic!("no list '{name}'"));
    let (list, _) = list.split_once("];").expect("the list ends");
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn settings_that_are_shipped_name_every_key() {
    let pems = listed("src/platform/settings.rs", "NAMES");
    for (program, source, list) in [
        ("ank-server", "src/server/settings.rs", "KNOWN_KEYS"),
        ("ank-agent", "src/agent/settings.rs", "KNOWN_KEYS"),
        ("ank", "src/cli/settings.rs", "KEYS"),
    ] {
        let file = repository(&format!("cross/package/{program}.conf"));
        let keys = [listed(source, list), pems.clone()].concat();
        assert!(keys.len() > 10, "{keys:?}");
        for key in keys {
            let name = key
                .trim_end_matches(".*")
                .rsplit('.')
                .next()
                .expect("a name");
            assert!(names(&file, name), "{program}.conf does not name '{key}'");
        }
    }
}
