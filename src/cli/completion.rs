//! Shell completion: `ank completion SHELL`, or `COMPLETE=SHELL ank`, prints the script, which then
//! calls the same program for candidates.
//!
//! Thread: `main`. Takes: the words typed so far, with their options for the connection. Gives:
//! names in the state of the server; none, without a message, when it does not respond within a
//! second.

use super::args::{self, Common};
use super::error::Result;
use super::modes::{self, NamedMode, named, of_server};
use super::output::Output;
use super::rows::entries;
use super::session::{ServerLink, Session};
use super::settings::{CliSettings, known_contexts};
use ankaios_model::collect::CollectEntries as _;
use std::time::Duration;

use ankaios_model::execution_state::Phase;
use ankaios_model::fields::table::PARTS_ON_REQUEST;
use ankaios_model::names::RUNTIMES;
use ankaios_model::node::Node;
use ankaios_model::shown_text::acts_on_terminal;
use ankaios_platform::clock::patience;
use clap::{Arg, Command, FromArgMatches};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;

/// Prints the script or the candidates if a shell requests them. Returns whether it did.
pub(crate) fn respond_to_shell(
    words: impl IntoIterator<Item = impl Into<OsString>>,
) -> Result<bool, clap::Error> {
    CompleteEnv::with_factory(command).try_complete(words, std::env::current_dir().ok().as_deref())
}

/// The script for `shell`, the same as `COMPLETE=<shell> ank` prints.
pub(crate) fn script(shell: &str) -> Result<String> {
    let mut script = Vec::new();
    if let Some(completer) = Shells::builtins().completer(shell) {
        completer.write_registration("COMPLETE", "ank", "ank", "ank", &mut script)?;
    }
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The command tree with candidates. Unless the completed word begins with `-`, options are hidden:
/// twenty of them would bury the few names of workloads.
fn command() -> Command {
    let words = words_of_command_line();
    // A shell that does not pass the place of the word completes the last one.
    let mut place = words.len().saturating_sub(1);
    if let Ok(passed) = std::env::var("_CLAP_COMPLETE_INDEX")
        && let Ok(passed) = passed.parse()
    {
        place = passed;
    }
    let command = with_candidates(args::command());
    if let Some(word) = words.get(place)
        && word.as_encoded_bytes().starts_with(b"-")
    {
        return command;
    }
    with_hidden_options(command)
}

/// Hides the options of a command and of those below it. Hidden options are candidates only where
/// there is nothing else to complete.
fn with_hidden_options(command: Command) -> Command {
    let command = command.disable_help_flag(true).disable_version_flag(true);
    command
        .mut_args(|argument| {
            let is_option = !argument.is_positional();
            argument.hide(is_option)
        })
        .mut_subcommands(with_hidden_options)
}

/// Adds the candidates for names, masks and states to the arguments of `command` and of those below
/// it.
fn with_candidates(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|argument| argument_with_candidates(&name, argument))
        .mut_subcommands(with_candidates)
}

/// Adds the candidates to an argument of the command called `command`.
fn argument_with_candidates(command: &str, argument: Arg) -> Arg {
    let Some(candidates) = candidates(command, argument.get_id().as_str()) else {
        return argument;
    };
    let or_file = argument.get_id() == "masks_and_file"; // Its last word is a file.
    argument.add(ArgValueCompleter::new(move |word: &OsStr| {
        complete(candidates, or_file, word)
    }))
}

/// The values that can stand at a place of the command line.
#[derive(Clone, Copy)]
struct Candidates {
    /// The parts of the state to read; empty if no server is needed.
    parts: &'static [&'static str],
    /// Finds the values in these parts.
    of_state: fn(&Node) -> BTreeSet<String>,
}

impl Candidates {
    /// Values in these parts of the state of the server, for [`candidates`].
    const fn of(
        parts: &'static [&'static str],
        of_state: fn(&Node) -> BTreeSet<String>,
    ) -> Option<Self> {
        Some(Self { parts, of_state })
    }

    /// Values that need no server, for [`candidates`].
    const fn without_server(values: fn(&Node) -> BTreeSet<String>) -> Option<Self> {
        Self::of(&[], values)
    }
}

/// The parts of the state with all names.
const ALL_NAMES: &[&str] = &[
    "desiredState.workloads.*.agent",
    "desiredState.configs",
    "workloadStates",
    "agents",
];
const WORKLOADS: &[&str] = &["desiredState.workloads.*.agent"];
const CONFIGS: &[&str] = &["desiredState.configs"];
const AGENTS: &[&str] = &["agents"];
const UPDATES: &[&str] = &["updates.*.phase"];
const MODES: &[&str] = &[modes::PART, "desiredState.workloads.*.tags"];

/// The candidates for an argument of a command, both by their ids.
fn candidates(command: &str, argument: &str) -> Option<Candidates> {
    match (command, argument) {
        ("config", "names") => Candidates::of(CONFIGS, config_items),
        ("agent", "names") | (_, "agent") => Candidates::of(AGENTS, agents),
        ("update", "names") | (_, "id") => Candidates::of(UPDATES, updates),
        (_, "names") => Candidates::of(WORKLOADS, workloads),
        ("describe", "name") => Candidates::of(ALL_NAMES, workloads_and_agents),
        ("events", "masks") => Candidates::of(ALL_NAMES, masks_or_names),
        ("state", "masks") => Candidates::of(ALL_NAMES, masks_and_parts_on_request),
        (_, "masks" | "masks_and_file") => Candidates::of(ALL_NAMES, masks),
        ("wait", "state") => None, // Clap knows its few values.
        (_, "state") => Candidates::without_server(|_| states()),
        (_, "runtime") => Candidates::without_server(|_| runtimes()),
        (_, "mode") => Candidates::of(MODES, named_modes),
        (_, "context") => Candidates::without_server(|_| contexts()),
        _ => None,
    }
}

fn config_items(state: &Node) -> BTreeSet<String> {
    keys(state, &["desiredState", "configs"])
}

fn agents(state: &Node) -> BTreeSet<String> {
    keys(state, &["agents"])
}

fn updates(state: &Node) -> BTreeSet<String> {
    keys(state, &["updates"])
}

fn workloads(state: &Node) -> BTreeSet<String> {
    keys(state, &["desiredState", "workloads"])
}

fn workloads_and_agents(state: &Node) -> BTreeSet<String> {
    let mut names = workloads(state);
    names.extend(agents(state));
    names
}

/// The candidates for `ank get events` with the options that are typed so far.
fn masks_or_names(state: &Node) -> BTreeSet<String> {
    candidates_of_events(&words_of_command_line(), state)
}

/// Names of workloads and agents after `--since`, masks without it.
fn candidates_of_events(words: &[OsString], state: &Node) -> BTreeSet<String> {
    let mut words = words.iter();
    if words.any(|word| word.as_encoded_bytes().starts_with(b"--since")) {
        return workloads_and_agents(state);
    }
    masks(state)
}

fn masks_and_parts_on_request(state: &Node) -> BTreeSet<String> {
    let mut found = masks(state);
    // The state is empty if no server has responded.
    if !state.is_empty_container() {
        for part in PARTS_ON_REQUEST {
            found.insert((*part).to_string());
        }
    }
    found
}

fn states() -> BTreeSet<String> {
    let mut states = BTreeSet::new();
    for (_, state, _) in Phase::ALL {
        states.insert((*state).to_owned());
    }
    states
}

fn runtimes() -> BTreeSet<String> {
    RUNTIMES.map(str::to_owned).into_iter().collect_entries()
}

/// The known modes, and those that desired workloads name.
fn named_modes(state: &Node) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Some((_, known)) = of_server(state) {
        found.extend(known.into_iter().map(str::to_owned));
    }
    for NamedMode { mode, .. } in named(state, "desiredState") {
        found.insert(mode.to_owned());
    }
    found
}

fn contexts() -> BTreeSet<String> {
    match typed_options(words_of_command_line()) {
        Some(typed) => known_contexts(&typed.common).into_iter().collect_entries(),
        None => BTreeSet::new(),
    }
}

/// The candidates for the completed `word`: values that begin with it, and with `or_file` also
/// files.
fn complete(
    Candidates { parts, of_state }: Candidates,
    or_file: bool,
    word: &OsStr,
) -> Vec<CompletionCandidate> {
    let Some(begin) = word.to_str() else {
        return Vec::new();
    };
    let mut state = Node::empty();
    if !parts.is_empty()
        && let Some(read) = read_state(parts)
    {
        state = read;
    }
    let mut candidates = Vec::new();
    for name in of_state(&state) {
        // Names with control characters could act on the shell's terminal.
        if name.starts_with(begin) && !name.chars().any(acts_on_terminal) {
            candidates.push(CompletionCandidate::new(name));
        }
    }
    if or_file {
        candidates.extend(PathCompleter::file().stdio().complete(word));
    }
    candidates
}

/// The keys of the map at `path`.
fn keys(state: &Node, path: &[&str]) -> BTreeSet<String> {
    entries(state.at(path))
        .map(|(name, _)| name.to_owned())
        .collect_entries()
}

/// Names in the longest completed mask: down to one object. Below objects there are too many.
const MASK_NAMES_MAX: usize = 3;

/// The masks that select parts of `state`.
fn masks(state: &Node) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_masks(state, "", MASK_NAMES_MAX, &mut found);
    found
}

/// Adds the masks with at most `names_max` names below `node`. They begin with `above`.
fn add_masks(node: &Node, above: &str, names_max: usize, found: &mut BTreeSet<String>) {
    if names_max == 0 {
        return;
    }
    for (name, node) in entries(Some(node)) {
        // Workloads that are not scheduled have an agent without a name. No mask can select it.
        if name.is_empty() {
            continue;
        }
        let mask = format!("{above}{name}");
        add_masks(node, &format!("{mask}."), names_max - 1, found);
        found.insert(mask);
    }
}

/// The words that the shell passes on, behind `--`.
fn words_of_command_line() -> Vec<OsString> {
    let words = std::env::args_os().skip_while(|word| word != "--");
    words.skip(1).collect()
}

/// Longest wait for the server while a command line is completed: a prompt must not hang.
const RESPONSE_MAX: Duration = Duration::from_secs(1);

/// Reads `masks` from the server that the typed words, the environment and the config file select.
fn read_state(masks: &[&str]) -> Option<Node> {
    let typed = typed_options(words_of_command_line())?;
    let mut silent = Output::to(io::sink(), io::sink(), None);
    let settings = CliSettings::load(typed.server_url.as_deref(), &typed.common, &mut silent);
    let mut settings = settings.ok()?;
    settings.response_timeout = settings.response_timeout.min(patience(RESPONSE_MAX));
    let mut session = Session::new(&settings, &[]);
    let state = session.complete_state(masks).ok();
    session.close(false);
    state
}

/// The options for the connection in an unfinished command line.
struct TypedOptions {
    server_url: Option<String>,
    common: Common,
}

/// Parses the options in the typed words; `None` if they are wrong.
fn typed_options(words: Vec<OsString>) -> Option<TypedOptions> {
    let command = args::command().ignore_errors(true);
    let matches = command.try_get_matches_from(words).ok()?;
    Some(TypedOptions {
        server_url: matches.get_one::<String>("server_url").cloned(),
        common: Common::from_arg_matches(&matches).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Node {
        let load = Node::map([("cpuUsage", Node::Number(1))]);
        let workloads = Node::map([
            ("web", Node::map([("agent", Node::text("A"))])),
            ("db", Node::empty()),
        ]);
        let web = Node::map([("web", Node::empty())]);
        let desired = Node::map([
            ("workloads", workloads),
            ("configs", Node::map([("port", Node::text("80"))])),
        ]);
        Node::map([
            ("desiredState", desired),
            ("workloadStates", Node::map([("A", web.clone()), ("", web)])),
            (
                "agents",
                Node::map([("A", Node::map([("status", load)])), ("B", Node::empty())]),
            ),
            (
                "updates",
                Node::map([("1", Node::empty()), ("12", Node::empty())]),
            ),
        ])
    }

    #[test]
    fn candidates_are_what_the_state_has_at_that_place() {
        let masks = [
            "agents",
            "agents.A",
            "agents.A.status",
            "agents.B",
            "desiredState",
            "desiredState.configs",
            "desiredState.configs.port",
            "desiredState.workloads",
            "desiredState.workloads.db",
            "desiredState.workloads.web",
            "workloadStates",
            "workloadStates.A",
            "workloadStates.A.web",
        ];
        let of_read: Vec<&str> = masks
            .into_iter()
            .take(10)
            .chain(PARTS_ON_REQUEST.to_vec())
            .chain(masks[10..].to_vec())
            .collect();
        for (command, argument, expected) in [
            ("logs", "names", &["db", "web"][..]),
            ("config", "names", &["port"]),
            ("top", "agent", &["A", "B"]),
            ("rollback", "id", &["1", "12"]),
            ("update", "names", &["1", "12"]),
            ("agent", "names", &["A", "B"]),
            ("describe", "name", &["A", "B", "db", "web"]),
            ("events", "masks", &masks),
            ("state", "masks", &of_read),
        ] {
            let Candidates { parts, of_state } = candidates(command, argument).unwrap();
            let mut state = state();
            // Only the parts of its masks.
            let is_read = |part: &str| {
                parts
                    .iter()
                    .any(|mask| mask.split('.').next() == Some(part))
            };
            state.as_map_mut().unwrap().retain(|part, _| is_read(part));
            let found: Vec<String> = of_state(&state).into_iter().collect();
            assert_eq!(found, expected, "{command} {argument}");
            assert!(of_state(&Node::empty()).is_empty(), "{command} {argument}");
        }
    }

    #[test]
    fn past_events_are_of_workloads_and_agents() {
        for option in ["--since", "--since=1h"] {
            let words = ["ank", "get", "events", option].map(OsString::from);
            let found = Vec::from_iter(candidates_of_events(&words, &state()));
            assert_eq!(found, ["A", "B", "db", "web"], "{option}");
        }
    }

    #[test]
    fn wait_completes_the_states_that_it_awaits() {
        let command = with_candidates(args::command());
        let wait = command.find_subcommand("wait").unwrap();
        let mut arguments = wait.get_arguments();
        let awaited = arguments.find(|found| found.get_id() == "state").unwrap();
        assert!(awaited.get::<ArgValueCompleter>().is_none());
        let values = awaited.get_possible_values();
        let names = Vec::from_iter(values.iter().map(|value| value.get_name()));
        assert_eq!(names, ["running", "succeeded", "gone"]);
    }

    #[test]
    fn arguments_of_all_commands_have_their_candidates() {
        let command = with_candidates(args::command());
        for (words, argument, has) in [
            ("", "context", true),
            ("get workload", "agent", true),
            ("get workload", "state", true),
            ("get events", "masks", true),
            ("set state", "masks_and_file", true),
            ("delete config", "names", true),
            ("run workload", "runtime", true),
            ("restart", "names", true),
            ("stop", "names", true),
            ("start", "names", true),
            ("rollback", "id", true),
            ("diff", "agent", true),
            ("apply", "agent", true),
            ("run workload", "config", false),
            ("logs", "names", true),
            ("wait", "names", true),
            ("describe", "name", true),
            ("top", "names", true),
            ("top", "agent", true),
        ] {
            let mut words = words.split_whitespace();
            let command = words
                .try_fold(&command, |command, word| command.find_subcommand(word))
                .unwrap();
            let argument = command
                .get_arguments()
                .find(|found| found.get_id() == argument)
                .unwrap();
            assert_eq!(
                argument.get::<ArgValueCompleter>().is_some(),
                has,
                "{argument}"
            );
        }
    }

    #[test]
    fn options_typed_so_far_name_the_server() {
        for (words, url, insecure) in [
            (
                "ank -s http://a:1 -k get workload",
                Some("http://a:1"),
                Some(true),
            ),
            (
                "ank get workload -s run --server-url http://b:2",
                Some("http://b:2"),
                None,
            ),
            ("ank delete workload --insecure x ", None, Some(true)),
            ("ank -s http://a:1 logs -s 2026", Some("http://a:1"), None),
            ("ank -k run workload w --runtime", None, Some(true)),
            ("ank -k nonsense --what", None, Some(true)),
        ] {
            let TypedOptions {
                server_url: found,
                common,
            } = typed_options(words.split(' ').map(OsString::from).collect()).unwrap();
            assert_eq!(
                (found.as_deref(), common.insecure),
                (url, insecure),
                "{words}"
            );
        }
    }
}
