//! Writes the manual pages of the three programs into a folder:
//! `cargo run --example man -- <folder>`.
//!
//! They are made of the command lines that the programs parse; only what `--help` lacks is added
//! here.

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::error::Error;
use std::fs;
use std::path::Path;

/// What a page has beside the command line.
struct Further {
    section: &'static str,
    exits: &'static [(&'static str, &'static str)],
    files: &'static [(&'static str, &'static str)],
    /// Variables that are not those of options.
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static str,
}

const EXITS_OF_SERVICES: [(&str, &str); 3] = [
    (
        "0",
        "The program was ended by SIGTERM or SIGINT, or help was printed.",
    ),
    (
        "1",
        "An error, also a missing or wrong name, certificate, address or file; the last line of the log names it.",
    ),
    (
        "2",
        "The command line or a variable cannot be read: an unknown option, or a value of the wrong form.",
    ),
];

const SERVER: Further = Further {
    section: "8",
    exits: &EXITS_OF_SERVICES,
    files: &[
        (
            "/etc/ankaios/ank-server.conf",
            "Settings, with all keys and their defaults as comments.",
        ),
        (
            "/etc/ankaios/state.yaml",
            "The startup manifest, if the settings name it.",
        ),
        (
            "/var/lib/ankaios/desired-state.json",
            "The desired state, if the settings name this folder.",
        ),
        (
            "/var/lib/ankaios/desired-state.json.previous",
            "The desired state that was stored before it.",
        ),
        (
            "/run/ankaios/ank.sock",
            "The socket for programs on this machine, if the settings name it.",
        ),
    ],
    environment: &[(
        "RUST_LOG",
        "Level of the log: error, warn, info (the default), debug or trace.",
    )],
    see_also: "ank-agent(8), ank(1)",
};
const AGENT: Further = Further {
    section: "8",
    exits: &EXITS_OF_SERVICES,
    files: &[
        (
            "/etc/ankaios/ank-agent.conf",
            "Settings, with all keys and their defaults as comments.",
        ),
        (
            "/run/ankaios-agent",
            "Files and pipes of running workloads, if the settings name it.",
        ),
    ],
    environment: &[(
        "RUST_LOG",
        "Level of the log: error, warn, info (the default), debug or trace.",
    )],
    see_also: "ank-server(8), ank(1), podman(1)",
};
const ANK: Further = Further {
    section: "1",
    exits: &[
        (
            "0",
            "Done. Also when a signal ended ank logs, or ank get events without --until and --count.",
        ),
        ("1", "The command failed."),
        ("2", "The command line or the environment is wrong."),
        (
            "3",
            "The update was accepted, but a workload failed; with --fail-on-error.",
        ),
        (
            "4",
            "--wait-timeout passed first; or, with --fail-on-error, a guarded update waits for an agent that is away.",
        ),
        ("5", "The update failed and was rolled back."),
        (
            "6",
            "The manifests and the desired state differ; only of ank diff and ank apply --dry-run.",
        ),
        (
            "128 + n",
            "The signal n ended the command, for example 130 after Ctrl+C.",
        ),
    ],
    files: &[
        ("~/.config/ankaios/ank.conf", "Settings of a user."),
        (
            "/etc/ankaios/ank.conf",
            "Settings of all users that have no file of their own.",
        ),
    ],
    environment: &[(
        "COMPLETE",
        "Name of a shell: prints the script that completes command lines.",
    )],
    see_also: "ank-server(8), ank-agent(8)",
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: man <folder>")?;
    write(Path::new(&folder))
}

/// Writes all pages into folders `man1` and `man8` below this one.
pub fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for (command, further) in [
        (ankaios_lite::server::settings::command(), &SERVER),
        (ankaios_lite::agent::settings::command(), &AGENT),
        (ankaios_lite::cli::args::command(), &ANK),
    ] {
        let mut command = without_help(command); // Which would be a page that says nothing.
        command.build();
        let command = with_variables(command);
        write_with_subcommands(&command, command.get_name(), further, folder)?;
    }
    Ok(())
}

/// The command and those below it, without the generated command `help`.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

fn write_with_subcommands(
    command: &Command,
    name: &str,
    further: &Further,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let section = folder.join(format!("man{}", further.section));
    fs::create_dir_all(&section)?;
    fs::write(
        section.join(format!("{name}.{}", further.section)),
        page(command, name, further)?,
    )?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        write_with_subcommands(
            below,
            &format!("{name}-{}", below.get_name()),
            further,
            folder,
        )?;
    }
    Ok(())
}

/// The variable of an option in its help, which may contain the current value.
const VARIABLE: &str = " [env: ";

/// The environment variable of an option: its own, or the one that its help shows.
fn variable(argument: &Arg) -> Option<String> {
    if let Some(name) = argument.get_env() {
        return Some(name.to_string_lossy().into_owned());
    }
    let help = argument.get_help()?.to_string();
    help.split_once(VARIABLE)?
        .1
        .split(['=', ']'])
        .next()
        .map(str::to_owned)
}

/// The command with the variable of each option in its help, without the value that the environment
/// has while pages are made.
fn with_variables(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let Some(name) = variable(&argument) else {
            return argument;
        };
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let help = help
            .split_once(VARIABLE)
            .map_or(help.as_str(), |(help, _)| help);
        argument.help(format!("{help}{VARIABLE}{name}]"))
    });
    command.mut_subcommands(with_variables)
}

/// Option and environment variable of each argument that has one.
fn variables(command: &Command) -> Vec<(String, String)> {
    let named = |argument: &Arg| {
        Some((
            variable(argument)?,
            format!("As --{}.", argument.get_long()?),
        ))
    };
    let mut all: Vec<_> = command.get_arguments().filter_map(named).collect();
    all.sort();
    all.dedup();
    all
}

fn page(command: &Command, name: &str, further: &Further) -> Result<Vec<u8>, Box<dyn Error>> {
    let man = Man::new(command.clone())
        .title(name.to_owned())
        .section(further.section)
        .source("Ankaios")
        .manual("");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let variables = variables(command);
    let variables = variables
        .iter()
        .map(|(name, meaning)| (name.as_str(), meaning.as_str()));
    let environment: Vec<(&str, &str)> = variables
        .chain(further.environment.iter().copied())
        .collect();
    let mut end = Roff::new();
    for (title, entries) in [
        ("EXIT STATUS", further.exits),
        ("ENVIRONMENT", &environment),
        ("FILES", further.files),
    ] {
        end.control("SH", [title]);
        for (what, meaning) in entries {
            end.control("TP", []);
            end.text([bold(*what)]);
            end.text([roman(*meaning)]);
        }
    }
    end.control("SH", ["SEE ALSO"]);
    end.text([roman(further.see_also)]);
    end.to_writer(&mut text)?;
    Ok(text)
}
