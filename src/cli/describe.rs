//! `ank describe`: all that is known of one workload or agent, on one screen.
//!
//! Thread: `main`. Takes: the complete state, and the last lines of the logs. Gives: a text or data.

use super::args::{DescribeArguments, Format};
use super::blame::{self, Start, Starts};
use super::error::{CliError, Result, meant_or};
use super::events::{self, past_changes, time_of_change};
use super::logs::has_container;
use super::output::{Output, WARNING, all_lines, document, object, one_line, value};
use super::rows::{self, Reasons, Row, entries, text};
use super::session::{Incoming, ServerLink};
use super::top::{duration, sample_text, size};
use super::update::{KnownUpdate, updates};
use ankaios_model::execution_state::{PARTS_SEPARATOR, Phase};
use ankaios_model::lifecycle::{self, Check, Lifecycle};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::reason::{ALIVE_PREFIX, GONE_PREFIX, READY_PREFIX};
use ankaios_model::workload::AddCondition;
use serde_yaml::Value;
use std::time::{Duration, UNIX_EPOCH};

/// Lines of each log that are shown.
const LOG_LINES: i32 = 5;
/// Changes of states that are shown: the last starts with the causes of the ends between them.
const CHANGES_SHOWN: usize = 8;
/// Longest wait for these lines: an agent that does not respond must not delay all else.
const LOG_MAX: Duration = Duration::from_secs(2);

/// Prints what is known of the workload or the agent called `name`.
// [impl->swdd~cli-describes-one-object~1]
pub(crate) fn print(
    arguments: &DescribeArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let name = &arguments.name;
    let whole = [
        format!("desiredState.workloads.{name}"),
        format!("effectiveState.workloads.{name}"),
    ];
    let mut masks: Vec<&str> = rows::MASKS.to_vec();
    masks.extend(["updates", blame::PART, events::HISTORY, WARNING]);
    if ankaios_model::names::is_name(name) {
        masks.extend(whole.iter().map(String::as_str));
    }
    let state = link.complete_state(&masks)?;
    output.warn_of_storage(&state);
    let reasons = Reasons::new(&state);
    let has_workload = state.at(&["desiredState", "workloads", name]).is_some()
        || reasons.rows.keys().any(|known| *known.workload == **name);
    let has_agent = state.at(&["agents", name]).is_some()
        || reasons.rows.keys().any(|known| *known.agent == **name);
    if !has_workload && !has_agent {
        return Err(unknown(name, &state));
    }
    let mut parts = Vec::new();
    if has_workload {
        let workload = workload(name, &state, &reasons, link);
        parts.push(("workload", workload));
    }
    if has_agent {
        parts.push(("agent", agent(name, &state, &reasons)));
    }
    if arguments.output != Format::Table {
        return output.result(&document(&object(parts), arguments.output, false));
    }
    let mut lines = Vec::new();
    for (_, part) in &parts {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(all_lines(part));
    }
    output.result(&(lines.join("\n") + "\n"))
}

fn unknown(name: &str, state: &Node) -> CliError {
    let workloads = entries(state.at(&["desiredState", "workloads"]));
    let known = workloads
        .chain(state.entries("agents"))
        .map(|(name, _)| name);
    let hint = meant_or(
        name,
        known,
        "'ank get workloads' and 'ank get agents' list the names",
    );
    CliError::input(
        format!("'{name}' does not exist: it is no workload and no agent"),
        hint,
    )
}

/// An entry of a description; without a text there is none.
fn entry(key: &'static str, text: &str) -> (&'static str, Value) {
    let text = one_line(text);
    (key, value((!text.is_empty()).then_some(text)))
}

/// An entry with a list; without items there is none.
fn list(key: &'static str, items: Vec<String>) -> (&'static str, Value) {
    (key, value((!items.is_empty()).then_some(items)))
}

fn workload(name: &str, state: &Node, reasons: &Reasons, link: &mut dyn ServerLink) -> Value {
    let of = |part| state.at(&[part, "workloads", name]);
    let empty = Node::empty();
    let definition = of("effectiveState").or_else(|| of("desiredState"));
    let definition = definition.unwrap_or(&empty);
    let starts = Starts::of(state).ok();
    let config = text(definition, &["runtimeConfig"]);
    // An agent shows the mistake in a block that cannot be read as the state.
    let block = lifecycle::of_config(text(definition, &["runtime"]), config);
    let block = block.ok().flatten().unwrap_or_default();
    let mut instances = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.workload == *name {
            instances.push(described_instance(
                instance,
                reasons,
                starts.as_ref(),
                &block,
            ));
        }
    }
    if instances.is_empty() {
        instances.push(object([entry("state", "it has no instance")]));
    }
    let mut tags = Vec::new();
    for (key, tag) in definition.entries("tags") {
        tags.push(one_line(&format!("{key}={}", text(tag, &[]))));
    }
    let restarts = rows::restarts_with_dependencies(state, name);
    let mut needs = Vec::new();
    for (needed, condition) in definition.entries("dependencies") {
        let condition = text(condition, &[]);
        let mut need = dependency(needed, condition, needed, reasons);
        if restarts && condition == AddCondition::Running.as_str() {
            need.push_str(", restarts with it");
        }
        needs.push(need);
    }
    let mut users = Vec::new();
    for (user, condition) in reasons.users(name) {
        users.push(dependency(user, condition, name, reasons));
    }
    object([
        entry("workload", name),
        entry("runtime", text(definition, &["runtime"])),
        entry("image", image(config)),
        entry("restartPolicy", text(definition, &["restartPolicy"])),
        list("tags", tags),
        ("instances", Value::Sequence(instances)),
        list("needs", needs),
        list("neededBy", users),
        list("lastChanges", last_changes(name, state)),
        entry("lastUpdate", &last_update(name, state)),
        entry("usage", &usage(name, reasons, link)),
        list("lastLines", last_lines(name, reasons, link)),
    ])
}

/// The image in the text of a `runtimeConfig`; empty where it names none at the top.
fn image(config: &str) -> &str {
    let image = config.lines().find_map(|line| line.strip_prefix("image:"));
    image.unwrap_or_default().trim().trim_matches(['"', '\''])
}

fn described_instance(
    instance: &InstanceName,
    reasons: &Reasons,
    starts: Option<&Starts>,
    block: &Lifecycle,
) -> Value {
    let row = reasons.explained(instance);
    let start = starts.and_then(|starts| {
        let mut all = starts.all.iter();
        all.find(|start| start.instance == *instance)
    });
    let since = match (start, starts) {
        (Some(start), Some(starts)) => since(start, starts.now),
        _ => String::new(),
    };
    let count = start.map(|start| start.starts).filter(|count| *count > 0);
    object([
        entry("agent", &instance.agent),
        entry("id", &instance.id),
        entry("state", &row.state),
        entry("since", &since),
        entry("info", &row.info),
        ("starts", value(count)),
        list("checks", checks(block, &row)),
    ])
}

/// The checks of an instance, each with its last result. The agent says in the state what a check
/// found, as long as it does not pass.
// [impl->swdd~cli-describes-checks~1]
fn checks(block: &Lifecycle, row: &Row) -> Vec<String> {
    let is_running = row.phase == Some(Phase::Running);
    let mut checks = Vec::new();
    if let Some(ready) = &block.ready {
        let otherwise = match row.phase {
            Some(Phase::Running) => "passed",
            Some(Phase::PendingStarting) => "no result yet",
            _ => "not checked now",
        };
        let result = result_of_check(READY_PREFIX, &ready.check, row).unwrap_or(otherwise);
        let every = match ready.check {
            Check::Notify => String::new(),
            _ => format!(" every {:?}", ready.pace.period),
        };
        checks.push(format!("ready: {}{every}, {result}", ready.check));
    }
    if let Some(alive) = &block.alive {
        let otherwise = if is_running {
            "passes"
        } else {
            "not checked now"
        };
        let result = result_of_check(ALIVE_PREFIX, &alive.check, row).unwrap_or(otherwise);
        let every = match alive.check {
            Check::Notify => alive.pace.timeout,
            _ => alive.pace.period,
        };
        checks.push(format!("alive: {} every {every:?}, {result}", alive.check));
    }
    if let Some(gone) = &block.gone {
        let otherwise = "checked when it is removed";
        let result = result_of_check(GONE_PREFIX, &gone.check, row).unwrap_or(otherwise);
        let every = gone.pace.period;
        checks.push(format!("gone: {} every {every:?}, {result}", gone.check));
    }
    checks
}

/// What the state of an instance says of a check, without the check itself.
fn result_of_check<'r>(prefix: &str, check: &Check, row: &'r Row) -> Option<&'r str> {
    let begin = one_line(&format!("{prefix}{check}"));
    let (_, found) = row.info.split_once(&begin)?;
    let found = found.strip_prefix(' ')?;
    found.split(PARTS_SEPARATOR).next()
}

/// How long ago the last of the known events of a start was.
fn since(start: &Start, now: u64) -> String {
    let events = [
        start.desired,
        start.waiting,
        start.starting,
        start.started,
        start.running,
        start.ended,
    ];
    let Some(last) = events.into_iter().flatten().max() else {
        return String::new();
    };
    format!("{} ago", duration(now.saturating_sub(last) as f64))
}

/// A dependency of `shown`: whether the workload `needed` meets the condition.
fn dependency(shown: &str, condition: &str, needed: &str, reasons: &Reasons) -> String {
    let awaited = match AddCondition::parse(condition) {
        Some(AddCondition::Running) => "running",
        Some(AddCondition::Succeeded) => "succeeded",
        Some(AddCondition::Failed) => "failed",
        None => condition,
    };
    let is_met = reasons.rows_of(needed).any(|row| row.fulfils(condition));
    let met = if is_met { "met" } else { "not met" };
    one_line(&format!("{shown} ({awaited}, {met})"))
}

/// The last changes of states that the server keeps of a workload or agent, oldest first: why it
/// was restarted, for example.
fn last_changes(name: &str, state: &Node) -> Vec<String> {
    let history = state.get(events::HISTORY).and_then(Node::as_list);
    let history = history.unwrap_or_default();
    let mut changes = Vec::new();
    for change in past_changes(history, UNIX_EPOCH, &[name.to_owned()]) {
        let mut shown = time_of_change(&change);
        for key in ["state", "info"] {
            let text = text(&change, &[key]);
            if !text.is_empty() {
                shown.push_str(&format!(" {text}"));
            }
        }
        changes.push(one_line(&shown));
    }
    let first = changes.len().saturating_sub(CHANGES_SHOWN);
    changes.split_off(first)
}

/// The newest guarded update of a workload, its phase and reason.
fn last_update(name: &str, state: &Node) -> String {
    for KnownUpdate { id, node: update } in updates(state).into_iter().rev() {
        if update.at(&["workloads", name]).is_none() {
            continue;
        }
        let mut shown = format!("{id}, {}", text(update, &["phase"]));
        for key in ["accepted", "reason"] {
            let text = text(update, &[key]);
            if !text.is_empty() {
                shown.push_str(&format!(", {text}"));
            }
        }
        return shown;
    }
    String::new()
}

/// What the first instance that runs uses; empty when that is unknown.
fn usage(name: &str, reasons: &Reasons, link: &mut dyn ServerLink) -> String {
    let mut instances = reasons.rows.keys();
    let is_known =
        |instance: &&InstanceName| *instance.workload == *name && !instance.agent.is_empty();
    let Some(instance) = instances.find(is_known) else {
        return String::new();
    };
    // A server that cannot tell it has no such part.
    let Ok(state) = link.complete_state(&[&format!("usage.{}", instance.agent)]) else {
        return String::new();
    };
    let path = ["usage", &*instance.agent, "workloads", name, &*instance.id];
    state.at(&path).map(sample_text).unwrap_or_default()
}

/// The last lines of all instances that have a container; none when they do not come in time.
fn last_lines(name: &str, reasons: &Reasons, link: &mut dyn ServerLink) -> Vec<String> {
    let mut open = Vec::new();
    for (instance, row) in &reasons.rows {
        if *instance.workload == *name && has_container(row) {
            open.push(instance.clone());
        }
    }
    let mut lines = Vec::new();
    let request = LogsRequest {
        instances: open.clone(),
        follow: None,
        tail: Some(LOG_LINES),
        ..LogsRequest::default()
    };
    if open.is_empty() || link.request_logs(request).is_err() {
        return lines;
    }
    let until = link.now().checked_add(LOG_MAX);
    while !open.is_empty() {
        match link.next(until) {
            Ok(Some(Incoming::Lines(entries))) => {
                let printed = entries.iter().filter(|entry| !entry.is_reason);
                lines.extend(printed.map(|entry| one_line(&entry.message)));
            }
            Ok(Some(Incoming::Stopped(instance))) => open.retain(|other| *other != instance),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    if !open.is_empty() {
        link.cancel_logs();
    }
    lines
}

fn agent(name: &str, state: &Node, reasons: &Reasons) -> Value {
    let agent = state.at(&["agents", name]);
    let connection = if agent.is_some() {
        "connected"
    } else {
        "not connected"
    };
    let empty = Node::empty();
    let agent = agent.unwrap_or(&empty);
    let cpu = agent.at(&["status", "cpuUsage"]).and_then(Node::as_number);
    let memory = agent
        .at(&["status", "freeMemory"])
        .and_then(Node::as_number);
    let cpu = cpu.map(|percent| format!("{percent}%")).unwrap_or_default();
    let memory = memory.map(|bytes| size(bytes as f64)).unwrap_or_default();
    let mut tags = Vec::new();
    for (key, tag) in agent.entries("tags") {
        tags.push(one_line(&format!("{key}={}", text(tag, &[]))));
    }
    let mut workloads = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.agent == *name {
            let state = reasons.explained(instance).state;
            workloads.push(format!("{} ({state})", instance.workload));
        }
    }
    object([
        entry("agent", name),
        entry("connection", connection),
        entry("cpuUsage", &cpu),
        entry("freeMemory", &memory),
        list("tags", tags),
        list("workloads", workloads),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Step, instance, let_need, play, state};
    use ankaios_model::execution_state::Phase;
    use ankaios_model::messages::LogEntry;

    fn cluster() -> Node {
        let mut cluster = state(
            &["A"],
            &[
                ("web", "1", "A", Phase::Running),
                ("db", "1", "A", Phase::Running),
                ("api", "1", "B", Phase::PendingWaitingToStart),
            ],
        );
        let_need(
            &mut cluster,
            "desiredState",
            "web",
            &[("db", "ADD_COND_RUNNING")],
        );
        let_need(
            &mut cluster,
            "desiredState",
            "api",
            &[("web", "ADD_COND_SUCCEEDED")],
        );
        let web = cluster.at_mut(&["desiredState", "workloads", "web"]);
        let web = web.unwrap().as_map_mut().unwrap();
        web.insert("runtimeConfig", Node::text("image: 'nginx:1'\n"));
        let times = [
            ("desired", Node::Number(1_000)),
            ("starting", Node::Number(2_000)),
            ("running", Node::Number(5_000)),
            ("starts", Node::Number(3)),
        ];
        let instances = Node::map([(
            "A",
            Node::map([("web", Node::map([("1", Node::map(times))]))]),
        )]);
        let timings = Node::map([("now", Node::Number(65_000)), ("instances", instances)]);
        let update = Node::map([
            ("phase", Node::text("GOOD")),
            ("workloads", Node::map([("web", Node::empty())])),
        ]);
        let map = cluster.as_map_mut().unwrap();
        map.insert("timings", timings);
        map.insert("updates", Node::map([("2", update)]));
        cluster
    }

    fn described(name: &str, steps: Vec<Step>) -> Result<String, (String, String)> {
        let arguments = DescribeArguments {
            output: Format::Table,
            name: name.to_owned(),
        };
        let played = play(None, steps, |link, output| print(&arguments, link, output));
        let out = played.out;
        let result = played.result.map(|()| out);
        result.map_err(|error| (error.to_string(), error.hint()))
    }

    // [utest->swdd~cli-describes-one-object~1]
    #[test]
    fn description_of_a_workload_has_all_that_is_known() {
        let web = instance("web.1.A");
        let line = LogEntry {
            instance: web.clone(),
            message: "ready".to_owned(),
            is_reason: false,
        };
        let used = Node::map([("pids", Node::Number(3))]);
        let used = Node::map([("web", Node::map([("1", used)]))]);
        let usage = Node::map([("A", Node::map([("workloads", used)]))]);
        let steps = vec![
            Step::State(cluster()),
            Step::State(Node::map([("usage", usage)])),
            Step::Logs(vec![web.clone()]),
            Step::Log(Incoming::Lines(vec![line])),
            Step::Log(Incoming::Stopped(web)),
        ];
        let text = described("web", steps).unwrap();
        let expected = "\
workload: web
runtime: podman
image: nginx:1
instances:
- agent: A
  id: '1'
  state: Running(Ok)
  since: 1m0s ago
  starts: 3
needs:
- db (running, met)
neededBy:
- api (succeeded, not met)
lastUpdate: 2, GOOD
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("pids 3"), "{text}");
        assert!(text.ends_with("lastLines:\n- ready\n"), "{text}");
    }

    /// The lines about the checks of `web`, whose only instance has this state.
    fn checks_in(phase: Phase, info: &str) -> String {
        let mut cluster = state(&["A"], &[("web", "1", "A", phase)]);
        let web = cluster.at_mut(&["desiredState", "workloads", "web"]);
        let block = "image: i
lifecycle:
  ready: { tcp: { port: 80 }, periodMs: 500 }
  alive: { notify: true, timeoutMs: 30000 }
  gone: { file: /lock, periodMs: 2000 }
";
        let web = web.unwrap().as_map_mut().unwrap();
        web.insert("runtimeConfig", Node::text(block));
        let shown = cluster.at_mut(&["workloadStates", "A", "web", "1"]);
        let shown = shown.unwrap().as_map_mut().unwrap();
        shown.insert("additionalInfo", Node::text(info));
        let text = described("web", vec![Step::State(cluster)]).unwrap();
        let (_, checks) = text.split_once("  checks:\n").expect(&text);
        let mut lines = checks.lines();
        lines.by_ref().take(3).collect::<Vec<_>>().join("\n")
    }

    // [utest->swdd~cli-describes-checks~1]
    #[test]
    fn checks_are_described_with_their_last_results() {
        for (phase, info, ready, alive, gone) in [
            (
                Phase::PendingStarting,
                "ready: waits for tcp 80",
                "no result yet",
                "not checked now",
                "checked when it is removed",
            ),
            (
                Phase::PendingStarting,
                "Retry 1: ready: tcp 80 refused, attempt 2, 1 of 30 s; stopped",
                "refused, attempt 2, 1 of 30 s",
                "not checked now",
                "checked when it is removed",
            ),
            (
                Phase::Running,
                "ready: tcp 80 answered, attempt 3",
                "answered, attempt 3",
                "passes",
                "checked when it is removed",
            ),
            (
                Phase::Running,
                "alive: notify no WATCHDOG=1, 1 of 1",
                "passed",
                "no WATCHDOG=1, 1 of 1",
                "checked when it is removed",
            ),
            (
                Phase::StoppingRequestedAtRuntime,
                "gone: file /lock is still there, attempt 4",
                "not checked now",
                "not checked now",
                "is still there, attempt 4",
            ),
        ] {
            let expected = format!(
                "  - 'ready: tcp 80 every 500ms, {ready}'
  - 'alive: notify every 30s, {alive}'
  - 'gone: file /lock every 2s, {gone}'"
            );
            assert_eq!(checks_in(phase, info), expected, "{info}");
        }
    }

    #[test]
    fn description_of_an_agent_names_its_workloads() {
        let text = described("A", vec![Step::State(cluster())]).unwrap();
        let expected = "agent: A\nconnection: connected\nworkloads:\n- db (Running(Ok))\n- web (Running(Ok))\n";
        assert_eq!(text, expected);
        let text = described("B", vec![Step::State(cluster())]).unwrap();
        assert!(text.contains("connection: not connected\n"), "{text}");
    }

    #[test]
    fn description_of_an_unknown_name_says_what_was_meant() {
        let error = described("wbe", vec![Step::State(cluster())]).unwrap_err();
        assert_eq!(
            error.0,
            "'wbe' does not exist: it is no workload and no agent"
        );
        assert_eq!(error.1, "did you mean 'web'?");
    }
}
