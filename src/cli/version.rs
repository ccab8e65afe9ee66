//! `ank version`: the versions of `ank`, of the server and of connected agents. Also the warnings
//! of certificates that expire soon.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::Result;
use super::output::{self, Output, Table, TooWide, one_line};
use super::rows::text;
use super::session::ServerLink;
use ankaios_model::node::Node;
use ankaios_model::version::SHOWN_VERSION;
use ankaios_platform::logging::utc_of;
use ankaios_wire::expiry::warning;
use std::time::SystemTime;

/// The programs that agents call as container engines.
const ENGINES: [&str; 2] = ["podman", "nerdctl"];

/// The part of the state with versions and certificates; other servers have none.
pub(crate) const PART: &str = "programs";

/// Prints the versions of all programs. Without a connection, that of `ank` alone is printed, and
/// the error follows.
// [impl->swdd~cli-shows-versions~1]
pub(crate) fn print(
    format: Format,
    now: SystemTime,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let state = match link.complete_state(&[PART, "agents.*.status"]) {
        Ok(state) => state,
        Err(error) => {
            show(&[program("ank", "", &SHOWN_VERSION)], format, output)?;
            return Err(error);
        }
    };
    let mut programs = vec![
        program("ank", "", &SHOWN_VERSION),
        program("ank-server", "", text(&state, &[PART, "version"])),
    ];
    for (name, _) in state.entries("agents") {
        let version = text(&state, &[PART, "agents", name, "version"]);
        programs.push(program("ank-agent", name, version));
        // The engines are a text with names and versions, for example `podman 5.4.2`.
        let engines = text(&state, &[PART, "agents", name, "engine"]);
        for engine in engines.split(", ") {
            // Other names are left out: an agent could send any.
            if let Some((engine, version)) = engine.split_once(' ')
                && ENGINES.contains(&engine)
            {
                programs.push(program(engine, name, version));
            }
        }
    }
    show(&programs, format, output)?;
    warn_of_certificates(&state, now, output);
    Ok(())
}

/// A program with its name in the cluster, if it has one. An unknown version is empty.
fn program(program: &str, name: &str, version: &str) -> Node {
    let mut fields = vec![("program", Node::text(program))];
    for (key, text) in [("name", name), ("version", version)] {
        if !text.is_empty() {
            fields.push((key, Node::text(text)));
        }
    }
    Node::map(fields)
}

fn show(programs: &[Node], format: Format, output: &mut Output) -> Result<()> {
    let mut rows = Vec::new();
    for program in programs {
        let version = match text(program, &["version"]) {
            "" => "unknown: it does not report its version",
            version => version,
        };
        rows.push(vec![
            one_line(text(program, &["program"])),
            one_line(text(program, &["name"])),
            one_line(version),
        ]);
    }
    let table = Table {
        headings: vec!["PROGRAM", "NAME", "VERSION"],
        rows,
        least_wanted: &[],
        most_wanted: &["VERSION"],
    };
    let data = Node::List(programs.to_vec());
    output::show(format, &data, &table, TooWide::Wrap, None, output)
}

/// Warns of certificates in [`PART`] of the state that expire soon.
pub(crate) fn warn_of_certificates(state: &Node, now: SystemTime, output: &mut Output) {
    let Some(part) = state.get(PART) else { return };
    warn_of_certificate("the server", part, now, output);
    for (name, agent) in part.entries("agents") {
        warn_of_certificate(&format!("agent '{name}'"), agent, now, output);
    }
}

/// Warns if the certificate of a program expires soon.
fn warn_of_certificate(owner: &str, program: &Node, now: SystemTime, output: &mut Output) {
    if let Some(expires) = program.get("certificateExpires").and_then(Node::as_number)
        && let Some(text) = warning(owner, expires, now)
    {
        output.warn(one_line(&text));
    }
}

/// When an agent connected, as UTC; empty when that is unknown.
pub(crate) fn connected_at(state: &Node, agent: &str) -> String {
    let at = state.at(&[PART, "agents", agent, "connectedAt"]);
    let Some(at) = at.and_then(Node::as_number) else {
        return String::new();
    };
    utc_of(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Step, play};
    use std::time::{Duration, UNIX_EPOCH};

    const DAY: u64 = 24 * 3600;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(100 * DAY)
    }

    fn state(expires: u64) -> Node {
        let expires = ("certificateExpires", Node::Number(expires));
        let engines = (
            "engine",
            Node::text("nerdctl 1.7.0, podman 4.3.1, ank-server 9.9.9"),
        );
        let agent = Node::map([("version", Node::text("1.0.9")), expires.clone(), engines]);
        let part = Node::map([
            ("version", Node::text("1.1.0 (ankaios-lite)")),
            expires,
            ("agents", Node::map([("A", agent)])),
        ]);
        let agents = Node::map([("A", Node::empty()), ("other", Node::empty())]);
        Node::map([(PART, part), ("agents", agents)])
    }

    fn lines(text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for line in text.lines() {
            lines.push(Vec::from_iter(line.split_whitespace()).join(" "));
        }
        lines
    }

    // [utest->swdd~cli-shows-versions~1]
    #[test]
    fn version_lists_all_programs_and_warns_of_certificates() {
        let played = play(None, [Step::State(state(110 * DAY))], |server, output| {
            print(Format::Table, now(), server, output)
        });
        played.result.unwrap();
        let own = SHOWN_VERSION.as_str();
        let expected = [
            "PROGRAM NAME VERSION".to_owned(),
            format!("ank {own}"),
            "ank-server 1.1.0 (ankaios-lite)".to_owned(),
            "ank-agent A 1.0.9".to_owned(),
            "nerdctl A 1.7.0".to_owned(),
            "podman A 4.3.1".to_owned(),
            "ank-agent other unknown: it does not report its version".to_owned(),
        ];
        assert_eq!(lines(&played.out), expected);
        let text = "expires on 1970-04-21T00:00:00Z, in 10 days; replace it before\n";
        let expected = format!(
            "warn: the certificate of the server {text}warn: the certificate of agent 'A' {text}"
        );
        assert_eq!(played.err, expected);
        let played = play(None, [Step::State(state(200 * DAY))], |server, output| {
            print(Format::Table, now(), server, output)
        });
        assert_eq!(played.err, "");
        let far = state(u64::MAX);
        let played = play(None, [Step::State(far)], |server, output| {
            print(Format::Table, now(), server, output)
        });
        assert_eq!(played.err, "");
        let agent = Node::map([("connectedAt", Node::Number(u64::MAX))]);
        let part = Node::map([("agents", Node::map([("A", agent)]))]);
        let far = Node::map([(PART, part)]);
        assert_eq!(connected_at(&far, "A"), u64::MAX.to_string());
    }

    #[test]
    fn narrow_terminal_keeps_versions_and_breaks_no_word() {
        let steps = [Step::State(state(200 * DAY))];
        let played = play(Some(|| (40, 24)), steps, |server, output| {
            print(Format::Table, now(), server, output)
        });
        let words = Vec::from_iter(played.out.split_whitespace());
        for word in ["1.0.9", "4.3.1", "(ankaios-lite)", "version"] {
            assert!(words.contains(&word), "{word}: {}", played.out);
        }
        assert!(
            played.out.lines().all(|line| line.len() <= 40),
            "{}",
            played.out
        );
    }

    #[test]
    fn version_without_a_server_prints_its_own_and_the_error() {
        let played = play(None, [Step::Late], |server, output| {
            print(Format::Json, now(), server, output)
        });
        assert!(played.result.is_err());
        assert!(
            played.out.contains(SHOWN_VERSION.as_str()),
            "{}",
            played.out
        );
    }
}
