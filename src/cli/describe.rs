//! `ank describe`: all that is known of one workload or agent, on one screen.
//!
//! Thread: `main`. Takes: the complete state, and the last lines of the logs. Gives: a text or
//! data.

use super::args::{DescribeArguments, Format};
use super::blame::{self, Known};
use super::error::{CliError, Result, meant_or};
use super::events::{self, past_changes, time_of_change};
use super::logs::has_container;
use super::output::{Output, WARNING, document, object, one_line, optional, row_data, value};
use super::rows::{self, Reasons, Row, text};
use super::session::{Incoming, ServerLink};
use super::top::{duration, sample_text, size};
use super::update::{self, KnownUpdate, updates};
use super::version;
use ankaios_model::execution_state::{PARTS_SEPARATOR, Phase};
use ankaios_model::lifecycle::{self, Check, Lifecycle};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::reason::{ALIVE_PREFIX, GONE_PREFIX, READY_PREFIX};
use ankaios_model::runtime_config::image_of;
use ankaios_model::workload::AddCondition;
use serde_yaml::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines of each log that are shown.
const LOG_LINES: i32 = 5;
/// Number of changes of states that are shown: enough for the last starts, and why they ended.
const CHANGES_SHOWN: usize = 8;
/// Longest wait for lines of logs: an agent that does not respond must not delay all else.
const LOG_MAX: Duration = Duration::from_secs(2);

/// The facts about one object: for people with texts, for programs with values.
struct Description {
    shown: Value,
    data: Value,
}

/// Prints all that is known of the workload or the agent with the name in `arguments`. `now` is the
/// present time.
// [impl->swdd~cli-describes-one-object~1]
pub(crate) fn print(
    arguments: &DescribeArguments,
    now: SystemTime,
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
    let mut reasons = Reasons::new(&state);
    reasons.add_details(&state, now);
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
        let data = parts.into_iter().map(|(kind, part)| (kind, part.data));
        return output.result(&document(&object(data), arguments.output, false));
    }
    let mut lines = Vec::new();
    for (_, part) in &parts {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(text_lines(&part.shown));
    }
    output.result(&(lines.join("\n") + "\n"))
}

/// The lines of a description, as in YAML but without quotes: people read them.
fn text_lines(shown: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    match shown {
        Value::Mapping(map) => {
            for (key, value) in map {
                let key = text_of(key);
                if value.is_sequence() || value.is_mapping() {
                    lines.push(format!("{key}:"));
                    lines.extend(text_lines(value));
                } else {
                    lines.push(format!("{key}: {}", text_of(value)));
                }
            }
        }
        Value::Sequence(items) => {
            for item in items {
                let mut lead = "- ";
                for line in text_lines(item) {
                    lines.push(format!("{lead}{line}"));
                    lead = "  ";
                }
            }
        }
        scalar => lines.push(text_of(scalar)),
    }
    lines
}

/// A text or number without quotes.
fn text_of(scalar: &Value) -> String {
    match scalar {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(), // A description has no other ones.
    }
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
    (key, optional(&one_line(text)))
}

/// An entry with a list. It is left out without items.
fn list<I: Into<Value>>(key: &'static str, items: Vec<I>) -> (&'static str, Value) {
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
fn workload(name: &str, state: &Node, reasons: &Reasons, link: &mut dyn ServerLink) -> Description {
    let empty = Node::empty();
    let definition = rows::definition(state, name).unwrap_or(&empty);
    let runtime = text(definition, &["runtime"]);
    let config = text(definition, &["runtimeConfig"]);
    let block = match lifecycle::of_config(runtime, config) {
        Ok(Some(block)) => block,
        // The state of the instance has the mistake in a block that cannot be read.
        Ok(None) | Err(_) => Lifecycle::default(),
    };
    // First, its instances.
    let mut shown_instances = Vec::new();
    let mut instances = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.workload == *name {
            let described = described_instance(instance, state, reasons, &block);
            shown_instances.push(described.shown);
            instances.push(described.data);
        }
    }
    if shown_instances.is_empty() {
        shown_instances.push(object([entry("state", "it has no instance")]));
    }
    // Then, the workloads that it needs, and those that need it.
    let restarts = rows::restarts_with_dependencies(state, name);
    let mut needs = Vec::new();
    for (needed, condition) in definition.entries("dependencies") {
        let condition = text(condition, &[]);
        let mut need = Dependency::new(needed, condition, needed, reasons);
        need.restarts = restarts && condition == AddCondition::Running.as_str();
        needs.push(need);
    }
    let mut users = Vec::new();
    for (user, condition) in reasons.users(name) {
        users.push(Dependency::new(user, condition, name, reasons));
    }
    // Then, its changes and its present state.
    let changes = last_changes(name, state);
    let last_update = last_update(name, state);
    let usage = usage(name, reasons, link);
    let lines = last_lines(name, reasons, link);
    // Finally, all of it in both forms.
    let image = image_of(config);
    let restart_policy = text(definition, &["restartPolicy"]);
    let shown = object([
        entry("workload", name),
        entry("runtime", runtime),
        entry("image", &image),
        entry("restartPolicy", restart_policy),
        list("tags", tags(definition)),
        ("instances", Value::Sequence(shown_instances)),
        list("needs", needs.iter().map(Dependency::text).collect()),
        list("neededBy", users.iter().map(Dependency::text).collect()),
        list("lastChanges", changes.iter().map(change_text).collect()),
        entry(
            "lastUpdate",
            &last_update.map(update_text).unwrap_or_default(),
        ),
        entry(
            "usage",
            &usage.as_ref().map(sample_text).unwrap_or_default(),
        ),
        list("lastLines", lines.clone()),
    ]);
    let data = object([
        entry("name", name),
        entry("runtime", runtime),
        entry("image", &image),
        entry("restartPolicy", restart_policy),
        ("tags", value(definition.get("tags"))),
        ("instances", Value::Sequence(instances)),
        list("needs", needs.iter().map(Dependency::data).collect()),
        list("neededBy", users.iter().map(Dependency::data).collect()),
        list("lastChanges", changes.iter().map(change_data).collect()),
        ("lastUpdate", last_update.map_or(Value::Null, update_data)),
        ("usage", value(usage)),
        list("lastLines", lines),
    ]);
    Description { shown, data }
}

/// The description of an instance. `block` is the lifecycle of its workload.
fn described_instance(
    instance: &InstanceName,
    state: &Node,
    reasons: &Reasons,
    block: &Lifecycle,
) -> Description {
    let mut row = reasons.explained(instance);
    let is_absent = state.at(&["agents", &*instance.agent]).is_none();
    // Without its agent, nothing else says why a new instance does not start.
    if row.info.is_empty() && row.phase == Some(Phase::PendingInitial) && is_absent {
        row.info = format!(
            "waits for agent '{}', which is not connected",
            instance.agent
        );
    }
    // The count begins with the process of the server. It would be too low if an earlier process
    // knew the instance, so none is shown then.
    let starts = match row.restarts {
        Some(Known::Exactly(restarts)) => Some(restarts + 1),
        Some(Known::AtLeast(_)) | None => None,
    };
    let checks = checks(block, &row);
    let shown = object([
        entry("agent", &instance.agent),
        entry("id", &instance.id),
        entry("state", &row.state),
        entry("since", &since_text(&row)),
        entry("info", &row.info),
        ("starts", value(starts)),
        list("checks", checks.iter().map(ShownCheck::text).collect()),
    ]);
    let mut data = row_data(rows::fields(instance, &row));
    if let Value::Mapping(map) = &mut data
        && !checks.is_empty()
    {
        let checks: Vec<Value> = checks.iter().map(ShownCheck::data).collect();
        map.insert("checks".into(), checks.into());
    }
    Description { shown, data }
}

/// A check of an instance.
struct ShownCheck {
    /// Its key in the lifecycle.
    key: &'static str,
    check: String,
    /// The pause between two tries; `None` if the check is not repeated.
    every: Option<Duration>,
    result: String,
}

impl ShownCheck {
    /// The check for people.
    fn text(&self) -> String {
        let every = match self.every {
            Some(every) => format!(" every {every:?}"),
            None => String::new(),
        };
        format!("{}: {}{every}, {}", self.key, self.check, self.result)
    }

    /// The check for programs.
    fn data(&self) -> Value {
        let every = self.every.map(|every| every.as_millis() as u64);
        object([
            entry("name", self.key),
            entry("check", &self.check),
            ("everyMs", value(every)),
            entry("result", &self.result),
        ])
    }
}

/// The checks of an instance, each with its last result. The state has the result of a check that
/// does not pass.
// [impl->swdd~cli-describes-checks~1]
fn checks(block: &Lifecycle, row: &Row) -> Vec<ShownCheck> {
    let is_running = row.phase == Some(Phase::Running);
    let mut checks = Vec::new();
    if let Some(ready) = &block.ready {
        let otherwise = match row.phase {
            Some(Phase::Running) => "passed",
            Some(Phase::PendingStarting) => "no result yet",
            _ => "not checked now",
        };
        let result = result_of_check(READY_PREFIX, &ready.check, row).unwrap_or(otherwise);
        checks.push(ShownCheck {
            key: "ready",
            check: ready.check.to_string(),
            every: match ready.check {
                Check::Notify => None, // The workload reports it once.
                _ => Some(ready.pace.period),
            },
            result: result.to_owned(),
        });
    }
    if let Some(alive) = &block.alive {
        let otherwise = if is_running {
            "passes"
        } else {
            "not checked now"
        };
        let result = result_of_check(ALIVE_PREFIX, &alive.check, row).unwrap_or(otherwise);
        checks.push(ShownCheck {
            key: "alive",
            check: alive.check.to_string(),
            every: match alive.check {
                Check::Notify => Some(alive.pace.timeout), // The workload reports within this time.
                _ => Some(alive.pace.period),
            },
            result: result.to_owned(),
        });
    }
    if let Some(gone) = &block.gone {
        let otherwise = "checked when it is removed";
        let result = result_of_check(GONE_PREFIX, &gone.check, row).unwrap_or(otherwise);
        checks.push(ShownCheck {
            key: "gone",
            check: gone.check.to_string(),
            every: Some(gone.pace.period),
            result: result.to_owned(),
        });
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
fn since_text(row: &Row) -> String {
    match row.since.lasting {
        Some(Known::Exactly(time)) => format!("{} ago", duration(time as f64)),
        Some(Known::AtLeast(time)) => format!("at least {} ago", duration(time as f64)),
        None => row.since.time.clone(),
    }
}

/// A dependency between the described workload and another one.
struct Dependency<'s> {
    /// The other workload.
    workload: &'s str,
    condition: &'s str,
    is_met: bool,
    /// The described workload is restarted with the other one.
    restarts: bool,
}

impl<'s> Dependency<'s> {
    /// The dependency that has `workload` at its other end. The workload `needed` must meet the
    /// condition.
    fn new(workload: &'s str, condition: &'s str, needed: &str, reasons: &Reasons) -> Self {
        Self {
            workload,
            condition,
            is_met: reasons.rows_of(needed).any(|row| row.fulfils(condition)),
            restarts: false,
        }
    }

    /// The dependency for people.
    fn text(&self) -> String {
        let awaited = match AddCondition::parse(self.condition) {
            Some(AddCondition::Running) => "running",
            Some(AddCondition::Succeeded) => "succeeded",
            Some(AddCondition::Failed) => "failed",
            None => self.condition,
        };
        let met = if self.is_met { "met" } else { "not met" };
        let mut shown = one_line(&format!("{} ({awaited}, {met})", self.workload));
        if self.restarts {
            shown.push_str(", restarts with it");
        }
        shown
    }

    /// The dependency for programs.
    fn data(&self) -> Value {
        object([
            entry("workload", self.workload),
            entry("condition", self.condition),
            ("isMet", self.is_met.into()),
            ("restartsWithIt", value(self.restarts.then_some(true))),
        ])
    }
}

/// The last changes of the state of a workload that the server keeps, oldest first. They show why
/// it was restarted, for example.
fn last_changes(name: &str, state: &Node) -> Vec<Node> {
    let history = events::history(state).unwrap_or_default();
    let mut changes = past_changes(history, UNIX_EPOCH, &[name.to_owned()]);
    let first = changes.len().saturating_sub(CHANGES_SHOWN);
    changes.split_off(first)
}

/// A change for people: its time, its agent if it is one of an agent, the state and the info.
fn change_text(change: &Node) -> String {
    let mut shown = time_of_change(change);
    // The loss or connection of an agent has no workload.
    if text(change, &["workload"]).is_empty() {
        shown.push_str(&format!(" {}", text(change, &["agent"])));
    }
    for key in ["state", "info"] {
        let text = text(change, &[key]);
        if !text.is_empty() {
            shown.push_str(&format!(" {text}"));
        }
    }
    one_line(&shown)
}

fn change_data(change: &Node) -> Value {
    value(Some(events::change_data(change)))
}

/// The newest guarded update of a workload.
fn last_update<'s>(name: &str, state: &'s Node) -> Option<KnownUpdate<'s>> {
    let mut newest_first = updates(state).into_iter().rev();
    newest_first.find(|update| update.node.at(&["workloads", name]).is_some())
}

/// The number of an update, its phase and reason.
fn update_text(KnownUpdate { id, node }: KnownUpdate<'_>) -> String {
    let mut shown = format!("{id}, {}", text(node, &["phase"]));
    for key in ["accepted", "reason"] {
        let text = text(node, &[key]);
        if !text.is_empty() {
            shown.push_str(&format!(", {text}"));
        }
    }
    shown
}

fn update_data(KnownUpdate { id, node }: KnownUpdate<'_>) -> Value {
    row_data(update::fields(id, node))
}

/// The CPU, memory and so on of the first instance that has an agent; `None` if unknown.
fn usage(name: &str, reasons: &Reasons, link: &mut dyn ServerLink) -> Option<Node> {
    let mut all = reasons.rows.keys();
    let instance = all.find(|known| *known.workload == *name && !known.agent.is_empty())?;
    let mask = format!("usage.{}", instance.agent);
    let path = ["usage", &*instance.agent, "workloads", name, &*instance.id];
    // An older server refuses this part of the state, or has none.
    let state = link.complete_state(&[&mask]).ok()?;
    state.at(&path).cloned()
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
fn agent(name: &str, state: &Node, reasons: &Reasons) -> Description {
    let empty = Node::empty();
    let connected = state.at(&["agents", name]);
    let agent = connected.unwrap_or(&empty);
    let mut program = &empty;
    if let Some(known) = state.at(&[version::PART, "agents", name]) {
        program = known;
    }
    // First, since when it is connected or not.
    let mut connection = "not connected".to_owned();
    let mut since = events::lost_at(state, name);
    let mut since_key = "disconnectedSince";
    if connected.is_some() {
        connection = "connected".to_owned();
        since = version::connected_at(state, name);
        since_key = "connectedSince";
    }
    if !since.is_empty() {
        connection.push_str(&format!(" since {since}"));
    }
    // Then, its load.
    let cpu = load(agent, "cpuUsage");
    let memory = load(agent, "freeMemory");
    let cpu_text = cpu.map(|percent| format!("{percent}%"));
    let memory_text = memory.map(|bytes| size(bytes as f64));
    // Then, its workloads.
    let mut shown_workloads = Vec::new();
    let mut workloads = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.agent == *name {
            let row = reasons.explained(instance);
            shown_workloads.push(format!("{} ({})", instance.workload, row.state));
            workloads.push(row_data(rows::fields(instance, &row)));
        }
    }
    // Finally, all of it in both forms.
    let version = text(program, &["version"]);
    let engine = text(program, &["engine"]);
    let shown = object([
        entry("agent", name),
        entry("connection", &connection),
        entry("version", version),
        entry("engine", engine),
        ("cpuUsage", value(cpu_text)),
        ("freeMemory", value(memory_text)),
        list("tags", tags(agent)),
        list("workloads", shown_workloads),
    ]);
    let data = object([
        entry("name", name),
        ("isConnected", connected.is_some().into()),
        entry(since_key, &since),
        entry("version", version),
        entry("engine", engine),
        ("cpuUsage", value(cpu)),
        ("freeMemory", value(memory)),
        ("tags", value(agent.get("tags"))),
        list("workloads", workloads),
    ]);
    Description { shown, data }
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
        described_as(Format::Table, name, steps)
    }

    /// Describes an object 1,000 seconds after the begin of 1970.
    fn described_as(
        output: Format,
        name: &str,
        steps: Vec<Step>,
    ) -> Result<String, (String, String)> {
        let arguments = DescribeArguments {
            output,
            name: name.to_owned(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let played = play(None, steps, |link, output| {
            print(&arguments, now, link, output)
        });
        let out = played.out;
        let result = played.result.map(|()| out);
        result.map_err(|error| (error.to_string(), error.hint()))
    }

    /// The responses to a description of `web`, which uses 3 processes and has printed a line.
    fn steps_of_web(cluster: Node) -> Vec<Step> {
        let web = instance("web.1.A");
        let line = LogEntry {
            instance: web.clone(),
            message: "ready".to_owned(),
            is_reason: false,
        };
        let used = Node::map([("pids", Node::Number(3))]);
        let used = Node::map([("web", Node::map([("1", used)]))]);
        let usage = Node::map([("A", Node::map([("workloads", used)]))]);
        vec![
            Step::State(cluster),
            Step::State(Node::map([("usage", usage)])),
            Step::Logs(vec![web.clone()]),
            Step::Log(Incoming::Lines(vec![line])),
            Step::Log(Incoming::Stopped(web)),
        ]
    }

    fn json_of(name: &str, steps: Vec<Step>) -> serde_json::Value {
        let text = described_as(Format::Json, name, steps).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn document_of_a_workload_has_values_in_place_of_sentences() {
        let mut cluster = cluster();
        let web = cluster.at_mut(&["desiredState", "workloads", "web"]);
        let web = web.unwrap().as_map_mut().unwrap();
        let config =
            "image: 'nginx:1'\nlifecycle: { alive: { tcp: { port: 80 }, periodMs: 500 } }\n";
        web.insert("runtimeConfig", Node::text(config));
        web.insert("tags", Node::map([("team", Node::text("maps"))]));
        let change = Node::map([
            ("at", Node::Number(120_000)),
            ("agent", Node::text("A")),
            ("workload", Node::text("web")),
            ("state", Node::text("Failed(ExecFailed)")),
            ("info", Node::text("Exit code: '1'")),
        ]);
        let map = cluster.as_map_mut().unwrap();
        map.insert(events::HISTORY, Node::List(vec![change]));
        let document = json_of("web", steps_of_web(cluster));
        let expected = serde_json::json!({ "workload": {
            "name": "web",
            "runtime": "podman",
            "image": "nginx:1",
            "tags": { "team": "maps" },
            "instances": [{
                "workload": "web",
                "agent": "A",
                "runtime": "podman",
                "id": "1",
                "state": "Running",
                "subState": "Ok",
                "since": "1970-01-01T00:15:40Z",
                "restarts": 2,
                "additionalInfo": "",
                "checks": [
                    { "name": "alive", "check": "tcp 80", "everyMs": 500, "result": "passes" },
                ],
            }],
            "needs": [{ "workload": "db", "condition": "ADD_COND_RUNNING", "isMet": true }],
            "neededBy": [{ "workload": "api", "condition": "ADD_COND_SUCCEEDED", "isMet": false }],
            "lastChanges": [{
                "timestamp": "1970-01-01T00:02:00Z",
                "agent": "A",
                "workload": "web",
                "state": "Failed(ExecFailed)",
                "info": "Exit code: '1'",
            }],
            "lastUpdate": { "id": 2, "phase": "GOOD", "accepted": "", "workloads": { "web": {} }, "keptIn": "" },
            "usage": { "pids": 3 },
            "lastLines": ["ready"],
        } });
        assert_eq!(document, expected);
    }

    #[test]
    fn document_of_an_agent_has_values_in_place_of_sentences() {
        let mut cluster = cluster();
        let status = Node::map([
            ("cpuUsage", Node::Number(42)),
            ("freeMemory", Node::Number(1024)),
        ]);
        let program = Node::map([
            ("version", Node::text("1.1.0")),
            ("connectedAt", Node::Number(60)),
        ]);
        let lost = Node::map([
            ("at", Node::Number(120_000)),
            ("agent", Node::text("B")),
            ("state", Node::text("AgentDisconnected")),
        ]);
        let agent = cluster.at_mut(&["agents", "A"]).unwrap();
        agent.as_map_mut().unwrap().insert("status", status);
        let programs = Node::map([("agents", Node::map([("A", program)]))]);
        let map = cluster.as_map_mut().unwrap();
        map.insert(version::PART, programs);
        map.insert(events::HISTORY, Node::List(vec![lost]));
        let document = json_of("A", vec![Step::State(cluster.clone())]);
        let agent = &document["agent"];
        assert_eq!(agent["name"], "A");
        assert_eq!(agent["isConnected"], true);
        assert_eq!(agent["connectedSince"], "1970-01-01T00:01:00Z");
        assert_eq!(agent["cpuUsage"], 42);
        assert_eq!(agent["freeMemory"], 1024);
        let workloads = agent["workloads"].as_array().unwrap();
        assert_eq!(workloads[1]["workload"], "web");
        assert_eq!(workloads[1]["state"], "Running");
        assert_eq!(workloads[1]["restarts"], 2);
        let document = json_of("B", vec![Step::State(cluster)]);
        let agent = &document["agent"];
        assert_eq!(agent["isConnected"], false);
        assert_eq!(agent["disconnectedSince"], "1970-01-01T00:02:00Z");
    }

    // [utest->swdd~cli-describes-one-object~1]
    #[test]
    fn description_of_a_workload_has_all_that_is_known() {
        let text = described("web", steps_of_web(cluster())).unwrap();
        let expected = "\
workload: web
runtime: podman
image: nginx:1
instances:
- agent: A
  id: 1
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
                "  - ready: tcp 80 every 500ms, {ready}
  - alive: notify every 30s, {alive}
  - gone: file /lock every 2s, {gone}"
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
    fn texts_of_a_description_have_no_quotes_around_them() {
        let mut cluster = cluster();
        let shown = cluster.at_mut(&["workloadStates", "A", "web", "1"]);
        let shown = shown.unwrap().as_map_mut().unwrap();
        shown.insert("additionalInfo", Node::text("Exit code: '3'"));
        let text = described("web", vec![Step::State(cluster)]).unwrap();
        assert!(text.contains("\n  info: Exit code: '3'\n"), "{text}");
    }

    #[test]
    fn stopping_workload_is_described_without_time_of_its_start() {
        let mut cluster = cluster();
        let shown = cluster.at_mut(&["workloadStates", "A", "web", "1"]);
        let shown = shown.unwrap().as_map_mut().unwrap();
        shown.insert("state", Node::text("Stopping"));
        shown.insert("subState", Node::text("RequestedAtRuntime"));
        let text = described("web", vec![Step::State(cluster)]).unwrap();
        assert!(!text.contains("since:"), "{text}");
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
