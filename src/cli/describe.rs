//! `ank describe`: all that is known of one workload or agent, on one screen.
//!
//! Thread: `main`. Takes: the complete state, and the last lines of the logs. Gives: a text or
//! data.

use super::args::{DescribeArguments, Format};
use super::blame::{self, Lasting, Start, Starts};
use super::error::{CliError, Result, meant_or};
use super::events::{self, past_changes, time_of_change};
use super::logs::has_container;
use super::output::{Output, WARNING, all_lines, document, object, one_line, value};
use super::rows::{self, Reasons, Row, text};
use super::session::{Incoming, ServerLink};
use super::top::{duration, sample_text, size};
use super::update::{KnownUpdate, updates};
use super::version;
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
/// Number of changes of states that are shown: enough for the last starts, and why they ended.
const CHANGES_SHOWN: usize = 8;
/// Longest wait for lines of logs: an agent that does not respond must not delay all else.
const LOG_MAX: Duration = Duration::from_secs(2);

/// Prints all that is known of the workload or the agent with the name in `arguments`.
// [impl->swdd~cli-describes-one-object~1]
pub(crate) fn print(
    arguments: &DescribeArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let name = &arguments.name;
    // First, read all but the usage and the logs.
    let desired = format!("desiredState.workloads.{name}");
    let effective = format!("effectiveState.workloads.{name}");
    let mut masks: Vec<&str> = rows::MASKS.to_vec();
    masks.extend([
        "updates",
        blame::PART,
        events::HISTORY,
        version::PART,
        WARNING,
    ]);
    // A mask with another text could select something else.
    if ankaios_model::names::is_name(name) {
        masks.extend([desired.as_str(), effective.as_str()]);
    }
    let state = link.complete_state(&masks)?;
    output.warn_of_storage(&state);
    let reasons = Reasons::new(&state);
    // Then, describe the workload and the agent; both can have this name.
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
    // Finally, print them.
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
    let workloads = rows::names(state.at(&["desiredState", "workloads"]));
    let agents = rows::names(state.get("agents"));
    let otherwise = "'ank get workloads' and 'ank get agents' list the names";
    let hint = meant_or(name, workloads.chain(agents), otherwise);
    CliError::input(
        format!("'{name}' does not exist: it is no workload and no agent"),
        hint,
    )
}

/// An entry of a description. It is left out without a text.
fn entry(key: &'static str, text: &str) -> (&'static str, Value) {
    let text = one_line(text);
    if text.is_empty() {
        return (key, Value::Null);
    }
    (key, text.into())
}

/// An entry with a list. It is left out without items.
fn list(key: &'static str, items: Vec<String>) -> (&'static str, Value) {
    if items.is_empty() {
        return (key, Value::Null);
    }
    (key, items.into())
}

/// The tags of a workload or an agent, as in command lines.
fn tags(object: &Node) -> Vec<String> {
    let mut tags = Vec::new();
    for (key, tag) in object.entries("tags") {
        tags.push(one_line(&format!("{key}={}", text(tag, &[]))));
    }
    tags
}

/// The description of a workload.
fn workload(name: &str, state: &Node, reasons: &Reasons, link: &mut dyn ServerLink) -> Value {
    let empty = Node::empty();
    let definition = rows::definition(state, name).unwrap_or(&empty);
    let runtime = text(definition, &["runtime"]);
    let config = text(definition, &["runtimeConfig"]);
    let block = match lifecycle::of_config(runtime, config) {
        Ok(Some(block)) => block,
        // The state of the instance has the mistake in a block that cannot be read.
        Ok(None) | Err(_) => Lifecycle::default(),
    };
    let starts = Starts::of(state).ok(); // Not every server keeps the times of starts.
    let mut instances = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.workload == *name {
            let described = described_instance(instance, state, reasons, starts.as_ref(), &block);
            instances.push(described);
        }
    }
    if instances.is_empty() {
        instances.push(object([entry("state", "it has no instance")]));
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
        entry("runtime", runtime),
        entry("image", image(config)),
        entry("restartPolicy", text(definition, &["restartPolicy"])),
        list("tags", tags(definition)),
        ("instances", Value::Sequence(instances)),
        list("needs", needs),
        list("neededBy", users),
        list("lastChanges", last_changes(name, state)),
        entry("lastUpdate", &last_update(name, state)),
        entry("usage", &usage(name, reasons, link)),
        list("lastLines", last_lines(name, reasons, link)),
    ])
}

/// The image at the top of the text of a `runtimeConfig`; empty if there is none: the images of a
/// pod are further below.
fn image(config: &str) -> &str {
    for line in config.lines() {
        if let Some(image) = line.strip_prefix("image:") {
            return image.trim().trim_matches(['"', '\'']);
        }
    }
    ""
}

/// The description of an instance. `block` is the lifecycle of its workload.
fn described_instance(
    instance: &InstanceName,
    state: &Node,
    reasons: &Reasons,
    starts: Option<&Starts>,
    block: &Lifecycle,
) -> Value {
    let row = reasons.explained(instance);
    let mut since = String::new();
    let mut count = None;
    if let Some(starts) = starts
        && let Some(start) = starts.all.iter().find(|one| one.instance == *instance)
    {
        since = since_text(start, starts.now, state, &row);
        // The count begins with the process of the server. It would be too low if an earlier
        // process knew the instance, so none is shown then.
        if start.starts > 0 && !events::was_known_earlier(state, instance) {
            count = Some(start.starts);
        }
    }
    if row.phase == Some(Phase::AgentDisconnected) {
        // The start was before the loss of the agent. This state began with the loss.
        since = events::lost_at(state, &instance.agent);
    }
    let mut info = row.info.clone();
    let is_absent = state.at(&["agents", &*instance.agent]).is_none();
    // Without its agent, nothing else says why a new instance does not start.
    if info.is_empty() && row.phase == Some(Phase::PendingInitial) && is_absent {
        info = format!(
            "waits for agent '{}', which is not connected",
            instance.agent
        );
    }
    object([
        entry("agent", &instance.agent),
        entry("id", &instance.id),
        entry("state", &row.state),
        entry("since", &since),
        entry("info", &info),
        ("starts", value(count)),
        list("checks", checks(block, &row)),
    ])
}

/// The checks of an instance, each with its last result. The state has the result of a check that
/// does not pass.
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
            Check::Notify => String::new(), // The workload reports it once.
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
            Check::Notify => alive.pace.timeout, // The workload reports within this time.
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

/// The result of a check in the state of an instance; `None` if it has none.
fn result_of_check<'r>(prefix: &str, check: &Check, row: &'r Row) -> Option<&'r str> {
    // The text of the agent: prefix, check and result.
    let begin = one_line(&format!("{prefix}{check}"));
    let (_, found) = row.info.split_once(&begin)?;
    let found = found.strip_prefix(' ')?;
    found.split(PARTS_SEPARATOR).next()
}

/// The time since an instance has its state, for people; empty if nothing is known.
fn since_text(start: &Start, now: u64, state: &Node, row: &Row) -> String {
    match start.in_state(now, state, &row.state) {
        Some(Lasting::Exactly(time)) => format!("{} ago", duration(time as f64)),
        Some(Lasting::AtLeast(time)) => format!("at least {} ago", duration(time as f64)),
        None => String::new(),
    }
}

/// The text about a dependency: the name `shown` of one of its two workloads, and whether the one
/// called `needed` meets the condition.
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

/// The last changes of the state of a workload that the server keeps, oldest first. They show why
/// it was restarted, for example.
fn last_changes(name: &str, state: &Node) -> Vec<String> {
    let history = events::history(state).unwrap_or_default();
    let mut changes = Vec::new();
    for change in past_changes(history, UNIX_EPOCH, &[name.to_owned()]) {
        let mut shown = time_of_change(&change);
        // The loss or connection of an agent has no workload.
        if text(&change, &["workload"]).is_empty() {
            shown.push_str(&format!(" {}", text(&change, &["agent"])));
        }
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

/// The CPU, memory and so on of the first instance that has an agent; empty if unknown.
fn usage(name: &str, reasons: &Reasons, link: &mut dyn ServerLink) -> String {
    let mut all = reasons.rows.keys();
    let first = all.find(|known| *known.workload == *name && !known.agent.is_empty());
    let Some(instance) = first else {
        return String::new();
    };
    let mask = format!("usage.{}", instance.agent);
    let path = ["usage", &*instance.agent, "workloads", name, &*instance.id];
    // An older server refuses this part of the state, or has none.
    if let Ok(state) = link.complete_state(&[&mask])
        && let Some(sample) = state.at(&path)
    {
        return sample_text(sample);
    }
    String::new()
}

/// The last lines of all instances with a container. Lines after [`LOG_MAX`] are left out.
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
                for entry in entries {
                    if !entry.is_reason {
                        lines.push(one_line(&entry.message));
                    }
                }
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

/// The description of an agent. One that is not connected has no load and no tags.
fn agent(name: &str, state: &Node, reasons: &Reasons) -> Value {
    let empty = Node::empty();
    let mut agent = &empty;
    let mut connection = "not connected".to_owned();
    let mut since = events::lost_at(state, name);
    if let Some(connected) = state.at(&["agents", name]) {
        agent = connected;
        connection = "connected".to_owned();
        since = version::connected_at(state, name);
    }
    if !since.is_empty() {
        connection.push_str(&format!(" since {since}"));
    }
    let mut program = &empty;
    if let Some(known) = state.at(&[version::PART, "agents", name]) {
        program = known;
    }
    let cpu = match load(agent, "cpuUsage") {
        Some(percent) => format!("{percent}%"),
        None => String::new(),
    };
    let memory = match load(agent, "freeMemory") {
        Some(bytes) => size(bytes as f64),
        None => String::new(),
    };
    let mut workloads = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.agent == *name {
            let state = reasons.explained(instance).state;
            workloads.push(format!("{} ({state})", instance.workload));
        }
    }
    object([
        entry("agent", name),
        entry("connection", &connection),
        entry("version", text(program, &["version"])),
        entry("engine", text(program, &["engine"])),
        entry("cpuUsage", &cpu),
        entry("freeMemory", &memory),
        list("tags", tags(agent)),
        list("workloads", workloads),
    ])
}

/// A number in the load of an agent.
fn load(agent: &Node, key: &str) -> Option<u64> {
    agent.at(&["status", key])?.as_number()
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
    fn description_of_an_agent_has_versions_and_times() {
        let mut cluster = cluster();
        let program = Node::map([
            ("version", Node::text("1.1.0")),
            ("engine", Node::text("podman 4.3.1")),
            ("connectedAt", Node::Number(60)),
        ]);
        let agents = Node::map([("A", program)]);
        let lost = Node::map([
            ("at", Node::Number(120_000)),
            ("agent", Node::text("B")),
            ("state", Node::text("AgentDisconnected")),
        ]);
        let map = cluster.as_map_mut().unwrap();
        map.insert(version::PART, Node::map([("agents", agents)]));
        map.insert(events::HISTORY, Node::List(vec![lost]));
        let text = described("A", vec![Step::State(cluster.clone())]).unwrap();
        let expected = "agent: A\nconnection: connected since 1970-01-01T00:01:00Z\nversion: 1.1.0\nengine: podman 4.3.1\n";
        assert!(text.starts_with(expected), "{text}");
        let text = described("B", vec![Step::State(cluster)]).unwrap();
        let expected =
            "agent: B\nconnection: not connected since 1970-01-01T00:02:00Z\nworkloads:\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn workload_of_a_lost_agent_is_described_with_its_loss() {
        let mut cluster = cluster();
        let shown = cluster.at_mut(&["workloadStates", "A", "web", "1"]);
        let shown = shown.unwrap().as_map_mut().unwrap();
        shown.insert("state", Node::text("AgentDisconnected"));
        shown.insert("subState", Node::text("AgentDisconnected"));
        let lost = Node::map([
            ("at", Node::Number(120_000)),
            ("agent", Node::text("A")),
            ("state", Node::text("AgentDisconnected")),
        ]);
        let map = cluster.as_map_mut().unwrap();
        map.insert(events::HISTORY, Node::List(vec![lost]));
        let text = described("web", vec![Step::State(cluster)]).unwrap();
        let expected = "  state: AgentDisconnected\n  since: 1970-01-01T00:02:00Z\n";
        assert!(text.contains(expected), "{text}");
    }

    /// The description of `web` after a restart of the server. The state `change` is older than it.
    fn described_after_restart(change: &str, starting: Option<u64>) -> String {
        let mut cluster = cluster();
        let mut times = vec![("desired", 0), ("running", 1_000)];
        if let Some(starting) = starting {
            times.push(("starting", starting));
            times.push(("starts", 1));
        }
        let times = times.into_iter().map(|(key, at)| (key, Node::Number(at)));
        let place = cluster.at_mut(&["timings", "instances", "A", "web"]);
        place
            .unwrap()
            .as_map_mut()
            .unwrap()
            .insert("1", Node::map(times));
        let earlier = Node::map([
            ("at", Node::Number(100_000)),
            ("agent", Node::text("A")),
            ("workload", Node::text("web")),
            ("id", Node::text("1")),
            ("state", Node::text(change)),
        ]);
        let started = Node::map([
            ("at", Node::Number(400_000)),
            ("state", Node::text("ServerStarted")),
        ]);
        let map = cluster.as_map_mut().unwrap();
        map.insert(events::HISTORY, Node::List(vec![earlier, started]));
        described("web", vec![Step::State(cluster)]).unwrap()
    }

    #[test]
    fn time_of_a_state_is_kept_over_a_restart_of_the_server() {
        // Five minutes before the server, which runs since 65 seconds.
        let text = described_after_restart("Running(Ok)", None);
        assert!(text.contains("\n  since: 6m5s ago\n"), "{text}");
        // The last kept change is of another state.
        let text = described_after_restart("Pending(Starting)", None);
        assert!(text.contains("\n  since: at least 1m4s ago\n"), "{text}");
        // It was started again, but the earlier starts are not counted.
        let text = described_after_restart("Failed(Lost)", Some(500));
        assert!(text.contains("\n  since: 1m4s ago\n"), "{text}");
        assert!(!text.contains("starts:"), "{text}");
    }

    #[test]
    fn workload_of_an_unknown_agent_is_described_as_waiting_for_it() {
        let waiting = state(&["front"], &[("web", "1", "frnt", Phase::PendingInitial)]);
        let text = described("web", vec![Step::State(waiting)]).unwrap();
        let expected = "\n  info: waits for agent 'frnt', which is not connected\n";
        assert!(text.contains(expected), "{text}");
        let waiting = state(&["front"], &[("web", "1", "front", Phase::PendingInitial)]);
        let text = described("web", vec![Step::State(waiting)]).unwrap();
        assert!(!text.contains("info:"), "{text}");
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
