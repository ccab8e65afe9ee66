//! `ank get events`: changes of the state as they happen.
//!
//! Thread: `main`. Takes: events. Gives: one document each, at once.

use super::args::{EventsArguments, Format, Until};
use super::error::{CliError, ExitCode, Result, meant_or, shown, unknown};
use super::get::check_masks;
use super::output::{self, Output, Table, TooWide, event_text, one_line};
use super::rows::{entries, text};
use super::session::{Context, Incoming, ServerLink};
use ankaios_model::changes::{AGENT_LOST, SERVER_STARTED};
use ankaios_model::field_path::{WILDCARD, parts};
use ankaios_model::limits::{CHANGES_KEPT, CHANGES_OF_ONE_MAX};
use ankaios_model::messages::AlteredFields;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_platform::logging::utc_of;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

impl Until {
    /// Returns whether a field that the mask selects has the value. `state` may hold only changes.
    fn is_met(&self, state: &Node) -> bool {
        has_value(state, &parts(&self.mask), &self.value)
    }
}

/// Returns whether a field at `path` below `node` has this value.
fn has_value(node: &Node, path: &[&str], value: &str) -> bool {
    let Some((name, below)) = path.split_first() else {
        return match (node.as_text(), node.as_number()) {
            (Some(text), _) => text == value,
            (None, Some(number)) => number.to_string() == value,
            (None, None) => false,
        };
    };
    if *name == WILDCARD {
        return entries(Some(node)).any(|(_, node)| has_value(node, below, value));
    }
    match node.get(name) {
        Some(node) => has_value(node, below, value),
        None => false,
    }
}

/// The part of the state with the last changes of states.
pub(crate) const HISTORY: &str = "history";
/// The mask for the changes of [`HISTORY`] that are failures of workloads: mostly none.
pub(crate) const FAILURES: &str = "history.Failed";

/// The part [`HISTORY`] of the state; `None` if the server keeps none.
pub(crate) fn history(state: &Node) -> Option<&[Node]> {
    state.get(HISTORY).and_then(Node::as_list)
}

/// Returns the changes since `since` of a part [`HISTORY`] of the state. If there are `names`, only
/// the changes of the workloads and agents with these names, and the losses and connections of the
/// agents of these workloads: a workload has no change of its own when its agent is lost.
pub(crate) fn past_changes(history: &[Node], since: SystemTime, names: &[String]) -> Vec<Node> {
    let since_1970 = millis_of(since);
    let agents = agents_of(history, names);
    let mut changes = Vec::new();
    for change in history {
        let workload = text(change, &["workload"]);
        let agent = text(change, &["agent"]);
        let is_named = names.iter().any(|name| name == workload || name == agent);
        // The loss or connection of an agent names no workload.
        let is_of_agent = workload.is_empty() && agents.contains(agent);
        let is_wanted = names.is_empty() || is_named || is_of_agent;
        if is_wanted && millis_of_change(change) >= since_1970 {
            changes.push(change.clone());
        }
    }
    changes
}

/// The agents that run or ran the workloads with these names.
fn agents_of<'h>(history: &'h [Node], names: &[String]) -> BTreeSet<&'h str> {
    let mut agents = BTreeSet::new();
    for change in history {
        let workload = text(change, &["workload"]);
        if names.iter().any(|name| name == workload) {
            agents.insert(text(change, &["agent"]));
        }
    }
    // Workloads that are not scheduled have an empty agent. It would select the server's starts.
    agents.remove("");
    agents
}

/// How long before the start of the server, in milliseconds, an instance has reached the state
/// `shown`, in which it still is. `None` if that was later, or is not known.
pub(crate) fn before_server_start(
    state: &Node,
    instance: &InstanceName,
    shown: &str,
) -> Option<u64> {
    let history = history(state)?;
    let (server_start, earlier) = split_at_server_start(history)?;
    let later = &history[earlier.len()..];
    if later.iter().any(|change| is_of(change, instance)) {
        return None; // It has reached its state later.
    }
    let mut newest_first = earlier.iter().rev();
    let newest = newest_first.find(|change| is_of(change, instance))?;
    if text(newest, &["state"]) != shown {
        return None; // The change to its state is not kept.
    }
    server_start.checked_sub(millis_of_change(newest))
}

/// Returns whether an earlier process of the server has noted a change of an instance.
pub(crate) fn was_known_earlier(state: &Node, instance: &InstanceName) -> bool {
    let Some((_, earlier)) = history(state).and_then(split_at_server_start) else {
        return false;
    };
    earlier.iter().any(|change| is_of(change, instance))
}

/// When the present process of the server started, in milliseconds since 1970, and the changes that
/// earlier processes have noted.
fn split_at_server_start(history: &[Node]) -> Option<(u64, &[Node])> {
    let is_start = |change: &Node| text(change, &["state"]) == SERVER_STARTED;
    let index = history.iter().rposition(is_start)?;
    Some((millis_of_change(&history[index]), &history[..index]))
}

fn is_of(change: &Node, instance: &InstanceName) -> bool {
    text(change, &["id"]) == &*instance.id
        && text(change, &["workload"]) == &*instance.workload
        && text(change, &["agent"]) == &*instance.agent
}

/// The numbers of failures of instances since `since` that the server keeps. There may have been
/// more.
pub(crate) fn failures(state: &Node, since: SystemTime) -> HashMap<InstanceName, usize> {
    let since = millis_of(since);
    let mut failures = HashMap::new();
    for change in history(state).unwrap_or_default() {
        let is_failure = text(change, &["state"]).starts_with("Failed(");
        if is_failure && millis_of_change(change) >= since {
            let [workload, id, agent] = ["workload", "id", "agent"].map(|key| text(change, &[key]));
            let instance = InstanceName::with_id(workload, id, agent);
            *failures.entry(instance).or_default() += 1;
        }
    }
    failures
}

/// When the server lost an agent that is not connected, as UTC; empty if that is unknown.
pub(crate) fn lost_at(state: &Node, agent: &str) -> String {
    let mut last = None;
    for change in history(state).unwrap_or_default() {
        let is_of_agent = text(change, &["workload"]).is_empty();
        if is_of_agent && text(change, &["agent"]) == agent {
            last = Some(change);
        }
    }
    match last {
        Some(change) if text(change, &["state"]) == AGENT_LOST => time_of_change(change),
        _ => String::new(),
    }
}

/// The time of a change, as UTC.
pub(crate) fn time_of_change(change: &Node) -> String {
    utc_of(millis_of_change(change) / 1000)
}

/// The time of a change, in milliseconds since 1970.
fn millis_of_change(change: &Node) -> u64 {
    let at = change.get("at").and_then(Node::as_number);
    at.unwrap_or_default()
}

/// The milliseconds since 1970.
fn millis_of(time: SystemTime) -> u64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// Warns if changes since `since` are no longer kept: the server drops the oldest of too many in
/// all, and of too many of one workload or agent.
fn warn_of_older_changes(
    history: &[Node],
    since: SystemTime,
    names: &[String],
    output: &mut Output,
) {
    // First, of too many in all.
    let since = millis_of(since);
    if let Some(oldest) = history.first()
        && history.len() >= CHANGES_KEPT
        && millis_of_change(oldest) > since
    {
        let time = time_of_change(oldest);
        output.warn(format_args!(
            "older changes are not kept: the oldest is of {time}"
        ));
        return;
    }
    // Then, of too many of one workload or agent.
    let mut of_one: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for change in history {
        let mut name = text(change, &["workload"]);
        if name.is_empty() {
            name = text(change, &["agent"]);
        }
        of_one.entry(name).or_default().push(change);
    }
    for (name, changes) in of_one {
        let is_wanted = names.is_empty() || names.iter().any(|wanted| wanted == name);
        let is_full = changes.len() >= CHANGES_OF_ONE_MAX;
        let oldest = changes[0];
        if is_wanted && is_full && millis_of_change(oldest) > since {
            let time = time_of_change(oldest);
            output.warn(one_line(&format!(
                "older changes of '{name}' are not kept: the oldest is of {time}"
            )));
        }
    }
}

/// Warns of names that no kept change has: they are probably typing errors.
fn warn_of_unknown_names(names: &[String], history: &[Node], output: &mut Output) {
    let mut known = Vec::new();
    for change in history {
        known.extend([text(change, &["workload"]), text(change, &["agent"])]);
    }
    for name in unknown(names, known.iter().copied()) {
        let text = format!("no change of '{name}' is kept");
        output.warn_with_hint(text, &meant_or(name, known.iter().copied(), ""));
    }
}

/// The texts of a change that are shown.
const CHANGE_TEXTS: [&str; 4] = ["agent", "workload", "state", "info"];

/// A change for programs, without empty texts.
pub(crate) fn change_data(change: &Node) -> Node {
    let mut fields = vec![("timestamp", Node::text(time_of_change(change)))];
    for key in CHANGE_TEXTS {
        let text = text(change, &[key]);
        if !text.is_empty() {
            fields.push((key, Node::text(text)));
        }
    }
    Node::map(fields)
}

/// Prints the last changes of states that the server keeps.
// [impl->swdd~cli-shows-last-changes~1]
pub(crate) fn print_past(
    arguments: &EventsArguments,
    since: SystemTime,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let names = &arguments.masks;
    if let Some(mask) = names.iter().find(|name| name.contains('.')) {
        return Err(CliError::input(
            format!("'{mask}' is no name of a workload or agent"),
            "with '--since' there are names in place of masks, for example 'ank get events --since 1h web'",
        ));
    }
    let state = link.complete_state(&[HISTORY])?;
    let Some(history) = history(&state) else {
        return Err(CliError::input(
            "This server does not keep changes of states.",
            "without '--since', 'ank get events' prints changes as they happen",
        ));
    };
    warn_of_unknown_names(names, history, output);
    warn_of_older_changes(history, since, names, output);
    let mut documents = Vec::new();
    let mut rows = Vec::new();
    for change in past_changes(history, since, names) {
        let mut row = vec![time_of_change(&change)];
        for key in CHANGE_TEXTS {
            row.push(one_line(text(&change, &[key])));
        }
        rows.push(row);
        documents.push(change_data(&change));
    }
    let table = Table {
        headings: vec!["TIME", "AGENT", "WORKLOAD NAME", "STATE", "ADDITIONAL INFO"],
        rows,
        least_wanted: &[],
        most_wanted: &[],
    };
    let format = arguments.output.unwrap_or(Format::Table);
    let data = Node::List(documents);
    output::show(format, &data, &table, TooWide::Whole, None, output)
}

/// Prints events until their number is reached, a field has its value, or the time limit is over.
/// `now` is the time of each document. With `--reconnect` it connects again after a lost
/// connection, and prints the current state first: the changes in between are not known.
pub(crate) fn follow(
    arguments: &EventsArguments,
    now: fn() -> SystemTime,
    Context {
        link,
        output,
        waiting,
        ..
    }: &mut Context<'_>,
) -> Result<ExitCode> {
    let EventsArguments {
        output: format,
        include_current_state,
        until,
        masks,
        count,
        reconnect,
        since: _,
    } = arguments;
    let format = format.unwrap_or(Format::Yaml);
    let give_up = waiting.give_up(link.now());
    let mut masks = masks.clone();
    masks.extend(until.iter().map(|until| until.mask.clone()));
    check_masks(&masks)?;
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    let mut left = *count;
    let mut is_subscribed = false; // On this connection.
    let mut has_begun = false; // On any connection.
    loop {
        let incoming = if is_subscribed {
            link.next(give_up)
        } else {
            let subscribed = link.subscribe(&masks);
            subscribed.map(|state| Some(Incoming::Event(state, AlteredFields::default())))
        };
        match incoming {
            Ok(Some(Incoming::Event(state, altered))) => {
                let is_met = match until {
                    Some(until) => until.is_met(&state),
                    None => false,
                };
                // The first event is the current state. It is printed on request, or if it has the
                // value that ends the events.
                if has_begun || *include_current_state || is_met {
                    output.result(&event_text(now(), &altered, &state, format))?;
                }
                // The current state of a connection does not count as an event.
                if is_subscribed && let Some(left) = &mut left {
                    *left -= 1;
                }
                is_subscribed = true;
                has_begun = true;
                if left == Some(0) || is_met {
                    return Ok(ExitCode::Success);
                }
            }
            Ok(Some(_)) => {} // It belongs to another command.
            Ok(None) => {
                let limit = shown(waiting.limit.unwrap_or_default());
                output.error(
                    format_args!("gave up waiting for events after '{limit}'"),
                    "",
                );
                return Ok(ExitCode::GaveUp);
            }
            Err(error) => {
                let may_reconnect = *reconnect && has_begun && error.is_transient();
                let is_late = match give_up {
                    Some(give_up) => link.now() >= give_up,
                    None => false,
                };
                if !may_reconnect || is_late {
                    return Err(error);
                }
                output.warn(format_args!("{error}; trying again"));
                link.reconnect()?;
                is_subscribed = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::error::CliError;
    use crate::settings::Waiting;
    use crate::tests::{Played, Step, play};
    use std::time::{Duration, UNIX_EPOCH};

    fn at() -> SystemTime {
        UNIX_EPOCH + Duration::new(1_769_860_800, 123_456_789)
    }

    fn event(state: Node, added: &[&str], removed: &[&str]) -> Step {
        let texts = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        let altered = AlteredFields {
            added: texts(added),
            updated: Vec::new(),
            removed: texts(removed),
        };
        Step::Event(state, altered)
    }

    type Printed = (Result<ExitCode, CliError>, String);

    fn printed(format: Format, current: bool, left: Option<u64>, steps: Vec<Step>) -> Printed {
        followed(format, current, left, None, steps)
    }

    fn followed(
        format: Format,
        current: bool,
        left: Option<u64>,
        until: Option<&Until>,
        steps: Vec<Step>,
    ) -> Printed {
        let arguments = EventsArguments {
            since: None,
            output: Some(format),
            include_current_state: current,
            count: left,
            until: until.cloned(),
            reconnect: false,
            masks: vec!["desiredState.configs".to_owned()],
        };
        let waiting = Waiting {
            limit: Some(Duration::from_secs(5)),
            ..Waiting::default()
        };
        let played = play(None, steps, |link, output| {
            follow(
                &arguments,
                at,
                &mut Context {
                    link,
                    output,
                    waiting,
                    ignore_modes: false,
                },
            )
        });
        let field = until.map(|until| until.mask.as_str());
        assert_eq!(
            played.server.reads,
            [["desiredState.configs"]
                .into_iter()
                .chain(field)
                .collect::<Vec<_>>()]
        );
        (played.result, played.out)
    }

    fn configs(value: &str) -> Node {
        Node::map([(
            "desiredState",
            Node::map([("configs", Node::map([("k", Node::text(value))]))]),
        )])
    }

    #[test]
    fn json_events_are_one_line_each_with_keys_in_order() {
        let steps = vec![
            Step::State(configs("a")),
            event(configs("b"), &["desiredState.configs.k"], &[]),
            event(Node::empty(), &[], &["desiredState.configs.k"]),
        ];
        let (result, text) = printed(Format::Json, true, Some(2), steps);
        result.unwrap();
        let expected = "\
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"completeState\":{\"desiredState\":{\"configs\":{\"k\":\"a\"}}}}
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"addedFields\":[\"desiredState.configs.k\"],\"completeState\":{\"desiredState\":{\"configs\":{\"k\":\"b\"}}}}
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"removedFields\":[\"desiredState.configs.k\"],\"completeState\":{}}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn yaml_events_are_documents_without_empty_lines() {
        let steps = vec![
            Step::State(configs("a")),
            event(configs("b"), &["desiredState.configs.k"], &["x"]),
        ];
        let (result, text) = printed(Format::Yaml, false, None, steps);
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Connection to server interrupted: end of the script"
        );
        assert!(error.is_transient());
        let expected = "\
---
timestamp: 2026-01-31T12:00:00.123456789+00:00
addedFields:
- desiredState.configs.k
removedFields:
- x
completeState:
  desiredState:
    configs:
      k: b
";
        assert_eq!(text, expected);
    }

    #[test]
    fn events_end_when_a_field_has_its_value_even_at_the_start() {
        let until = |mask: &str, value: &str| Until {
            mask: mask.to_owned(),
            value: value.to_owned(),
        };
        let k = until("desiredState.*.k", "b");
        let steps = |values: &[&str]| {
            let events = values[1..]
                .iter()
                .map(|value| event(configs(value), &["desiredState.configs.k"], &[]));
            std::iter::once(Step::State(configs(values[0])))
                .chain(events)
                .collect::<Vec<_>>()
        };
        for (values, until, lines) in [
            (&["b"][..], &k, 1),
            (&["a", "b"], &k, 1),
            (&["a", "c", "b"], &k, 2),
            (&["a", "b"], &until("desiredState.configs.k", "b"), 1),
        ] {
            let (result, text) = followed(Format::Json, false, None, Some(until), steps(values));
            assert_eq!(
                (result.unwrap(), text.lines().count()),
                (ExitCode::Success, lines),
                "{values:?}"
            );
        }
        let (result, _) = followed(
            Format::Json,
            false,
            None,
            Some(&until("desiredState.configs", "b")),
            steps(&["b"]),
        );
        assert!(result.unwrap_err().is_transient(), "a map has no value");
        assert!(until("a.n", "7").is_met(&Node::map([("a", Node::map([("n", Node::Number(7))]))])));
    }

    #[test]
    fn masks_that_never_match_are_refused_before_anything_is_sent() {
        for (mask, reason) in [
            (
                "desiredSate",
                "no part of the state is called 'desiredSate'; did you mean 'desiredState'?",
            ),
            (
                "desiredState.wrkloads",
                "no part of 'desiredState' is called 'wrkloads'; did you mean 'workloads'?",
            ),
            (
                "workloadStates.A.w.state",
                "the id of the instance is missing before 'state'; write 'workloadStates.A.w.*.state'",
            ),
            (
                "timings",
                "it is no part of events; 'ank get state timings' shows it",
            ),
        ] {
            let error =
                check_masks(&["desiredState.configs".to_owned(), mask.to_owned()]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("mask '{mask}' selects nothing: {reason}")
            );
        }
        let later = [
            "desiredState.workloads.later",
            "workloadStates.A.w",
            "agents.B",
            "*",
            "workloadStates.A.w.*.state",
        ];
        check_masks(&later.map(str::to_owned)).unwrap();
    }

    #[test]
    fn following_can_be_given_up() {
        let steps = vec![
            Step::State(configs("a")),
            Step::Silence(Duration::from_secs(9)),
        ];
        let (result, text) = printed(Format::Json, false, None, steps);
        assert_eq!((result.unwrap(), text.as_str()), (ExitCode::GaveUp, ""));
    }

    #[test]
    fn a_signal_ends_the_events_without_a_message() {
        let (result, text) = printed(
            Format::Json,
            false,
            None,
            vec![Step::State(configs("a")), Step::Signal],
        );
        assert!(result.unwrap_err().is_interrupted());
        assert_eq!(text, "");
    }

    #[test]
    fn a_refused_subscription_says_why() {
        let (result, _) = printed(Format::Json, false, None, vec![Step::Refuse("too many")]);
        let expected = "Event subscription failed: too many";
        assert_eq!(result.unwrap_err().to_string(), expected);
    }

    fn change(at: u64, agent: &str, workload: &str, state: &str, info: &str) -> Node {
        let mut change = vec![("at", Node::Number(at)), ("state", Node::text(state))];
        for (key, text) in [("agent", agent), ("workload", workload), ("info", info)] {
            if !text.is_empty() {
                change.push((key, Node::text(text)));
            }
        }
        Node::map(change)
    }

    fn history() -> Node {
        let changes = vec![
            change(1_000, "", "", "ServerStarted", ""),
            change(2_000, "A", "", "AgentConnected", ""),
            change(3_000, "A", "web", "Running(Ok)", ""),
            change(4_000, "A", "web", "Failed(ExecFailed)", "Exit code: '1'"),
            change(5_000, "A", "db", "Running(Ok)", ""),
        ];
        Node::map([(HISTORY, Node::List(changes))])
    }

    /// Prints the last changes since a time in seconds since 1970.
    fn printed_past(
        since: u64,
        names: &[&str],
        format: Option<Format>,
        state: Node,
    ) -> Result<String, CliError> {
        let played = played_past(since, names, format, state);
        played.result.map(|()| played.out)
    }

    fn played_past(since: u64, names: &[&str], format: Option<Format>, state: Node) -> Played<()> {
        let arguments = EventsArguments {
            output: format,
            since: None,
            include_current_state: false,
            count: None,
            until: None,
            reconnect: false,
            masks: names.iter().map(ToString::to_string).collect(),
        };
        let since = UNIX_EPOCH + Duration::from_secs(since);
        play(None, [Step::State(state)], |server, output| {
            print_past(&arguments, since, server, output)
        })
    }

    // [utest->swdd~cli-shows-last-changes~1]
    #[test]
    fn last_changes_are_a_table_of_what_was_since_then() {
        let text = printed_past(2, &[], None, history()).unwrap();
        let expected = "\
TIME                   AGENT   WORKLOAD NAME   STATE                ADDITIONAL INFO
1970-01-01T00:00:02Z   A                       AgentConnected
1970-01-01T00:00:03Z   A       web             Running(Ok)
1970-01-01T00:00:04Z   A       web             Failed(ExecFailed)   Exit code: '1'
1970-01-01T00:00:05Z   A       db              Running(Ok)
";
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines, Vec::from_iter(expected.lines()));
        let text = printed_past(0, &["db", "web"], Some(Format::Json), history()).unwrap();
        let found: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        let found = found.as_sequence().unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(found[2]["timestamp"], "1970-01-01T00:00:04Z");
        assert_eq!(found[2]["info"], "Exit code: '1'");
        assert_eq!(found[0]["state"], "AgentConnected");
        let of_agent = printed_past(0, &["A"], None, history()).unwrap();
        assert_eq!(of_agent.lines().count(), 5, "{of_agent}");
    }

    #[test]
    fn name_without_kept_changes_leads_to_a_warning() {
        let played = played_past(0, &["web", "wbe", "other"], None, history());
        let expected = "warn: no change of 'wbe' is kept\nhint: did you mean 'web'?\n\
                        warn: no change of 'other' is kept\n";
        assert_eq!(played.err, expected);
        // All changes of this one are older.
        assert_eq!(played_past(9, &["web"], None, history()).err, "");
    }

    #[test]
    fn last_changes_of_a_workload_have_the_loss_of_its_agent() {
        let changes = vec![
            change(1_000, "B", "", "AgentConnected", ""),
            change(2_000, "A", "", "AgentConnected", ""),
            change(3_000, "A", "web", "Running(Ok)", ""),
            change(4_000, "B", "db", "Running(Ok)", ""),
            change(5_000, "A", "", "AgentDisconnected", ""),
            change(6_000, "B", "", "AgentDisconnected", ""),
        ];
        let state = Node::map([(HISTORY, Node::List(changes))]);
        let text = printed_past(3, &["web"], None, state).unwrap();
        let expected = "\
TIME                   AGENT   WORKLOAD NAME   STATE               ADDITIONAL INFO
1970-01-01T00:00:03Z   A       web             Running(Ok)
1970-01-01T00:00:05Z   A                       AgentDisconnected
";
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines, Vec::from_iter(expected.lines()));
    }

    #[test]
    fn changes_that_are_not_kept_lead_to_a_warning() {
        let web = |number: usize| {
            let mut changes = vec![change(1_000, "A", "db", "Running(Ok)", "")];
            for _ in 0..number {
                changes.push(change(60_000, "A", "web", "Running(Ok)", ""));
            }
            Node::map([(HISTORY, Node::List(changes))])
        };
        let of_web =
            "warn: older changes of 'web' are not kept: the oldest is of 1970-01-01T00:01:00Z\n";
        let of_all = "warn: older changes are not kept: the oldest is of 1970-01-01T00:00:01Z\n";
        for (number, since, names, expected) in [
            (CHANGES_OF_ONE_MAX - 1, 0, &[][..], ""),
            (CHANGES_OF_ONE_MAX, 0, &[], of_web),
            (CHANGES_OF_ONE_MAX, 0, &["web"], of_web),
            (CHANGES_OF_ONE_MAX, 0, &["db"], ""),
            (CHANGES_OF_ONE_MAX, 60, &[], ""),
            (CHANGES_KEPT - 1, 0, &[], of_all),
            (CHANGES_KEPT - 1, 60, &[], ""),
        ] {
            let played = played_past(since, names, None, web(number));
            assert_eq!(played.err, expected, "{number} {since} {names:?}");
        }
    }

    #[test]
    fn change_in_the_far_future_is_shown() {
        let far = vec![change(u64::MAX, "A", "", "AgentConnected", "")];
        let text = printed_past(0, &[], None, Node::map([(HISTORY, Node::List(far))])).unwrap();
        assert!(text.contains("AgentConnected"), "{text}");
    }

    #[test]
    fn last_changes_of_a_mask_or_an_older_server_are_an_error() {
        let error = printed_past(0, &["workloadStates.A"], None, history()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'workloadStates.A' is no name of a workload or agent"
        );
        let error = printed_past(0, &[], None, Node::empty()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "This server does not keep changes of states."
        );
    }
}
