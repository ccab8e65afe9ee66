//! Writes the manual pages of the three programs into a folder: `cargo run --example man -- <folder>`.
//!
//! Made of the same command lines that the programs parse; only what `--help` does not say is added here.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::error::Error;
use std::fs;
use std::path::Path;

/// What a page has beside the command line.
struct Further {
    section: &'static str,
    files: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static str,
}

const SERVER: Further = Further {
    section: "8",
    files: &[
        ("/etc/ankaios/ank-server.conf", "Settings, with all keys and their defaults as comments."),
        ("/etc/ankaios/state.yaml", "The workloads to start with, where the settings name it."),
        ("/var/lib/ankaios/desired-state.json", "The desired state, where the settings name this folder."),
        ("/run/ankaios/ank.sock", "The socket for programs on this machine, where the settings name it."),
    ],
    environment: &[("RUST_LOG", "Level of the log: error, warn, info (the default), debug or trace.")],
    see_also: "ank-agent(8), ank(1)",
};
const AGENT: Further = Further {
    section: "8",
    files: &[
        ("/etc/ankaios/ank-agent.conf", "Settings, with all keys and their defaults as comments."),
        ("/run/ankaios-agent", "Files and pipes of running workloads, where the settings name it."),
    ],
    environment: &[("RUST_LOG", "Level of the log: error, warn, info (the default), debug or trace.")],
    see_also: "ank-server(8), ank(1), podman(1)",
};
const ANK: Further = Further {
    section: "1",
    files: &[
        ("~/.config/ankaios/ank.conf", "Settings of a user."),
        ("/etc/ankaios/ank.conf", "Settings of all users that have no file of their own."),
    ],
    environment: &[("COMPLETE", "Name of a shell: prints the script that completes command lines.")],
    see_also: "ank-server(8), ank-agent(8)",
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: man <folder>")?;
    let folder = Path::new(&folder);
    for (command, further) in [
        (ankaios_lite::server::settings::command(), &SERVER),
        (ankaios_lite::agent::settings::command(), &AGENT),
        (ankaios_lite::cli::args::command(), &ANK),
    ] {
        let mut command = command;
        command.build();
        write_with_subcommands(&command, command.get_name(), further, folder)?;
    }
    Ok(())
}

fn write_with_subcommands(
    command: &Command,
    name: &str,
    further: &Further,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let section = folder.join(format!("man{}", further.section));
    fs::create_dir_all(&section)?;
    fs::write(section.join(format!("{name}.{}", further.section)), page(command, name, further)?)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        write_with_subcommands(below, &format!("{name}-{}", below.get_name()), further, folder)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str, further: &Further) -> Result<Vec<u8>, Box<dyn Error>> {
    let man = Man::new(command.clone()).title(name.to_owned()).section(further.section).source("Ankaios").manual("");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut end = Roff::new();
    for (title, entries) in [("FILES", further.files), ("ENVIRONMENT", further.environment)] {
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
