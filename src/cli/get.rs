//! `ank get state|workload|agent|config`: states as text, tables of workloads, agents and configs.
//!
//! Thread: `main`.

use super::args::{Filter, Format, ListArguments, WorkloadArguments};
use super::error::{CliError, Result, counted, meant_or, unknown};
use super::events;
use super::output::{
    Column, LiveFrames, Output, TooWide, View, WARNING, manifest_text, one_line, some_of,
    state_text, value,
};
use super::rows::{self, Reasons, Row, text};
use super::session::ServerLink;
use super::top::size;
use super::version;
use ankaios_model::execution_state::Phase;
use ankaios_model::field_path::{WILDCARD, parts};
use ankaios_model::fields::table::{COMPLETE_STATE, PARTS_ON_REQUEST, why_selects_nothing};
use ankaios_model::names::InstanceName;
use ankaios_model::nearest::nearest;
use ankaios_model::node::Node;
use ankaios_model::version::API_VERSION;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The part of the state that manifests describe.
const DESIRED_STATE: &str = "desiredState";

/// A table warns of an instance that has failed this number of times within [`FAILURES_TIME`].
const FAILURES_MANY: usize = 3;
/// An hour: a workload that fails at once is restarted after at most five minutes.
const FAILURES_TIME: Duration = Duration::from_secs(3600);

impl Filter {
    pub(super) fn accepts_agent(&self, agent: &str) -> bool {
        self.agent.as_ref().is_none_or(|wanted| wanted == agent)
    }

    pub(super) fn accepts(&self, instance: &InstanceName) -> bool {
        if !self.accepts_agent(&instance.agent) {
            return false;
        }
        let mut names = self.names.iter();
        self.names.is_empty() || names.any(|name| **name == *instance.workload)
    }

    /// Warns about names that do not exist: they are probably typing errors.
    pub(super) fn warn_of_unknown_names(
        &self,
        state: &Node,
        rows: &BTreeMap<InstanceName, Row>,
        output: &mut Output,
    ) {
        let workloads = rows.keys().map(|instance| &*instance.workload);
        output.warn_of_unknown_workloads(&self.names, workloads);
        // An empty name selects workloads that are not scheduled.
        if let Some(agent) = &self.agent
            && !agent.is_empty()
        {
            let known = known_agents(state, rows);
            if !known.contains(&agent.as_str()) {
                let text = format!("agent '{agent}' does not exist");
                output.warn_with_hint(text, &meant_or(agent, known, ""));
            }
        }
    }

    /// Refuses the first name that does not exist.
    pub(super) fn refuse_unknown(
        &self,
        state: &Node,
        rows: &BTreeMap<InstanceName, Row>,
    ) -> Result<()> {
        CliError::check_workloads(&self.names, rows.keys().map(|instance| &*instance.workload))?;
        match &self.agent {
            // An empty name selects workloads that are not scheduled.
            Some(agent) if !agent.is_empty() => {
                let known = known_agents(state, rows);
                check_listed("agent", std::slice::from_ref(agent), known.into_iter())
            }
            _ => Ok(()),
        }
    }
}

/// The agents that are connected or have instances.
fn known_agents<'s>(state: &'s Node, rows: &'s BTreeMap<InstanceName, Row>) -> Vec<&'s str> {
    let mut known: Vec<&str> = state.entries("agents").map(|(name, _)| name).collect();
    known.extend(rows.keys().map(|instance| &*instance.agent));
    known
}

impl WorkloadArguments {
    /// Returns whether the row matches all conditions. A state matches with and without its
    /// sub-state, in upper and lower case.
    fn accepts(&self, instance: &InstanceName, row: &Row) -> bool {
        if !self.filter.accepts(instance) {
            return false;
        }
        let Some(wanted) = &self.state else {
            return true;
        };
        let without_sub_state = row.state.split('(').next().unwrap_or_default();
        row.state.to_lowercase() == wanted.to_lowercase()
            || without_sub_state.to_lowercase() == wanted.to_lowercase()
    }

    fn view(&self, reasons: &Reasons) -> View {
        let mut shown = Vec::new();
        for (instance, row) in &reasons.rows {
            if self.accepts(instance, row) {
                shown.push((instance, reasons.explained(instance)));
            }
        }
        rows::view(self.output, shown)
    }

    /// Warns of workloads that fail again and again: while they run, their state does not show it.
    // [impl->swdd~cli-warns-of-failures~1]
    fn warn_of_failures(
        &self,
        reasons: &Reasons,
        state: &Node,
        now: SystemTime,
        output: &mut Output,
    ) {
        let since = now.checked_sub(FAILURES_TIME).unwrap_or(UNIX_EPOCH);
        let failures = events::failures(state, since);
        let mut texts = Vec::new();
        let mut first = "";
        for instance in reasons.rows.keys() {
            let number = failures.get(instance).copied().unwrap_or_default();
            if number < FAILURES_MANY || !self.filter.accepts(instance) {
                continue;
            }
            let name = &*instance.workload;
            texts.push(format!("'{name}' at least {number} times"));
            if first.is_empty() {
                first = name;
            }
        }
        if texts.is_empty() {
            return;
        }
        let texts = some_of(texts.iter().map(String::as_str));
        let text = format!("failed in the last hour: {texts}");
        let hint = format!("'ank describe {first}' shows the last causes");
        output.warn_with_hint(text, &one_line(&hint));
    }

    /// Warns about a state that does not exist.
    fn warn_of_unknown_state(&self, output: &mut Output) {
        let Some(wanted) = &self.state else {
            return;
        };
        let mut known = Vec::new();
        for (phase, state, _) in Phase::ALL {
            known.push(phase.to_string());
            known.push((*state).to_owned());
        }
        if !known.iter().any(|name| name.eq_ignore_ascii_case(wanted)) {
            let text = format!("no state is called '{wanted}'");
            let hint = meant_or(wanted, known.iter().map(String::as_str), "");
            output.warn_with_hint(text, &hint);
        }
    }
}

/// Prints the parts of the state that `masks` select.
pub(crate) fn state(
    link: &mut dyn ServerLink,
    masks: &[String],
    format: Format,
    output: &mut Output,
) -> Result<()> {
    warn_of_unknown_parts(masks, output);
    let mut masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    if format == Format::Manifest {
        check_manifest_masks(&masks)?;
        if masks.is_empty() {
            masks.push(DESIRED_STATE);
        }
    }
    let state = link.complete_state(&masks)?;
    for mask in masks {
        warn_of_missing_part(mask, &state, output);
    }
    // The warning has a read of its own: beside other masks it would be in the printed state.
    if let Ok(part) = link.complete_state(&[WARNING]) {
        output.warn_of_storage(&part);
    }
    if format == Format::Manifest {
        return output.result(&manifest(&state)?);
    }
    output.result(&state_text(&state, format))
}

/// Refuses masks that select anything but the desired state, all its workloads or configs, or a
/// whole workload or config.
fn check_manifest_masks(masks: &[&str]) -> Result<()> {
    for mask in masks {
        let path = parts(mask);
        let is_whole = matches!(
            path[..],
            [DESIRED_STATE]
                | [DESIRED_STATE, "workloads" | "configs"]
                | [DESIRED_STATE, "workloads" | "configs", _]
        );
        if !is_whole {
            return Err(CliError::input(
                format!("'{mask}' is no part of a manifest"),
                "a manifest has whole workloads and configs, for example 'desiredState.workloads.web'",
            ));
        }
    }
    Ok(())
}

/// The desired state in `state` as a manifest; the version is added where a mask left it out.
// [impl->swdd~cli-state-as-manifest~1]
fn manifest(state: &Node) -> Result<String> {
    let mut desired = state.get(DESIRED_STATE).cloned().unwrap_or_default();
    let Some(entries) = desired.as_map_mut() else {
        return Err(CliError::unexpected("The desired state is no map"));
    };
    if entries.get("apiVersion").is_none() {
        entries.insert("apiVersion", Node::text(API_VERSION));
    }
    Ok(manifest_text(&desired))
}

/// Warns about a mask for an object, or a part of one, that does not exist: the response lacks it
/// without an error.
fn warn_of_missing_part(mask: &str, state: &Node, output: &mut Output) {
    let path = parts(mask);
    // An unknown part of the state was reported before the read.
    if COMPLETE_STATE.field(path[0]).is_some()
        && let Some(reason) = why_selects_nothing(&path)
    {
        output.warn(format_args!("mask '{mask}' selects nothing: {reason}"));
        return;
    }
    let kind = match path[..] {
        ["desiredState" | "effectiveState", "workloads", ..] => "workload",
        ["desiredState" | "effectiveState", "configs", ..] => "config",
        ["agents", ..] => "agent",
        [part] if PARTS_ON_REQUEST.contains(&part) => "part",
        _ => return,
    };
    // The number of names in the path of one such object.
    let object_length = match kind {
        "part" => 1,
        "agent" => 2,
        _ => 3,
    };
    let mut before_wildcards = path.split(|part| *part == WILDCARD);
    let named = before_wildcards.next().unwrap_or_default();
    let names_one_object = named.len() >= object_length;
    if !names_one_object || state.at(named).is_some() {
        return;
    }
    if path.len() == object_length {
        let name = path[object_length - 1];
        output.warn(format_args!("{kind} '{name}' does not exist"));
    } else {
        // Either the object does not exist, or it lacks this part.
        output.warn(format_args!("mask '{mask}' selects nothing"));
    }
}

/// Warns about masks that can never select anything: the server accepts them without an error.
fn warn_of_unknown_parts(masks: &[String], output: &mut Output) {
    let mut known: Vec<&str> = COMPLETE_STATE.names().collect();
    known.extend(PARTS_ON_REQUEST);
    for mask in masks {
        let part = parts(mask)[0];
        if part != WILDCARD && !known.contains(&part) {
            let text =
                format!("mask '{mask}' selects nothing: no part of the state is called '{part}'");
            output.warn_with_hint(text, &meant_or(part, known.iter().copied(), ""));
        }
    }
}

/// Refuses masks of which nothing can ever change, so that no event would come for them.
pub(crate) fn check_masks(masks: &[String]) -> Result<()> {
    for mask in masks {
        let path = parts(mask);
        let reason = if PARTS_ON_REQUEST.contains(&path[0]) {
            format!(
                "it is no part of events; 'ank get state {}' shows it",
                path[0]
            )
        } else if let Some(reason) = why_selects_nothing(&path) {
            reason
        } else {
            continue;
        };
        let text = format!("mask '{mask}' selects nothing: {reason}");
        return Err(CliError::input(
            text,
            "'ank get state' shows which parts there are",
        ));
    }
    Ok(())
}

/// Prints the workloads; with `--watch` it keeps them up to date until the connection ends. The
/// present time is `now`.
pub(crate) fn workloads(
    link: &mut dyn ServerLink,
    filter: &WorkloadArguments,
    now: SystemTime,
    output: &mut Output,
) -> Result<()> {
    let mut masks = [&rows::MASKS[..], &[WARNING]].concat();
    // Broadcast states have no times, so frames would show old ones.
    let has_details = !filter.watch && has_all_columns(filter.output);
    if has_details {
        masks.extend(rows::DETAIL_MASKS);
    } else if !filter.watch {
        masks.push(events::FAILURES);
    }
    let state = link.complete_state(&masks)?;
    output.warn_of_storage(&state);
    let mut reasons = Reasons::new(&state);
    if has_details {
        reasons.add_details(&state, now);
    }
    // Where Eclipse Ankaios has the command, an unknown name is no error: scripts rely on it.
    filter
        .filter
        .warn_of_unknown_names(&state, &reasons.rows, output);
    filter.warn_of_unknown_state(output);
    if filter.watch {
        drop(state); // It may be large, and watching may take long.
        return watch(reasons, filter, link, output);
    }
    let view = filter.view(&reasons);
    view.print("workloads", TooWide::Wrap, None, output)?;
    // The table of Eclipse Ankaios has no place for warnings, so they follow it.
    filter.warn_of_failures(&reasons, &state, now, output);
    let mut shown_agents = BTreeSet::new();
    for instance in reasons.rows.keys() {
        if filter.filter.accepts(instance) {
            shown_agents.insert(&*instance.agent);
        }
    }
    // All workloads of such an agent count, shown or not.
    let mut absent = absent_agents(&state, reasons.rows.keys());
    absent.retain(|agent, _| shown_agents.contains(agent));
    warn_of_absent_agents(&absent, &state, link, output);
    Ok(())
}

/// Returns whether a format has more than the columns of the table of Eclipse Ankaios.
fn has_all_columns(format: Format) -> bool {
    matches!(format, Format::Wide | Format::Json | Format::Yaml)
}

/// Prints the workloads after each change of a state.
fn watch(
    mut reasons: Reasons,
    filter: &WorkloadArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let mut frames = LiveFrames::default();
    loop {
        let view = filter.view(&reasons);
        view.print("workloads", TooWide::Wrap, Some(&mut frames), output)?;
        let Some(states) = link.next_states(None)? else {
            continue;
        };
        // The report of a new instance lacks its runtime, so the runtime is read.
        let mut all_known = true;
        for state in &states {
            all_known &= reasons.on_state(state);
            if state.state.phase == Phase::Removed {
                reasons.rows.remove(&state.instance);
            }
        }
        if !all_known {
            reasons = Reasons::new(&link.complete_state(&rows::MASKS)?);
        }
    }
}

impl ListArguments {
    /// Returns whether `name` is one of the wanted ones; without names all are.
    pub(crate) fn accepts(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// Refuses the first of `names` that is not in `known`, the names of all objects of this `kind`.
pub(crate) fn check_listed<'k>(
    kind: &str,
    names: &[String],
    known: impl Iterator<Item = &'k str> + Clone,
) -> Result<()> {
    let Some(name) = unknown(names, known.clone()).next() else {
        return Ok(());
    };
    let hint = meant_or(name, known, &format!("'ank get {kind}s' lists them"));
    Err(CliError::input(
        format!("{kind} '{name}' does not exist"),
        hint,
    ))
}

/// Prints the agents.
pub(crate) fn agents(
    arguments: &ListArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let masks = ["agents", "workloadStates", WARNING, version::PART];
    let state = link.complete_state(&masks)?;
    output.warn_of_storage(&state);
    version::warn_of_certificates(&state, SystemTime::now(), output);
    let known = rows::names(state.get("agents"));
    check_listed("agent", &arguments.names, known)?;
    let mut rows = Vec::new();
    for (name, agent) in state.entries("agents") {
        if arguments.accepts(name) {
            let workloads = state.at(&["workloadStates", name]);
            let mut fields = agent_fields(name, agent, workloads, arguments.output);
            fields.extend(program_fields(name, &state));
            rows.push(fields);
        }
    }
    let mut blank = agent_fields("", &Node::empty(), None, arguments.output);
    blank.extend(program_fields("", &Node::empty()));
    let view = View::new(arguments.output, &blank, rows);
    view.print("agents", TooWide::Drop, None, output)?;
    // The list has only the connected agents, as that of Eclipse Ankaios.
    if arguments.names.is_empty() {
        let rows = rows::rows(&state);
        let absent = absent_agents(&state, rows.keys());
        warn_of_absent_agents(&absent, &state, link, output);
    }
    Ok(())
}

/// The agents of some instances that are not connected, with their workloads.
fn absent_agents<'i>(
    state: &Node,
    instances: impl IntoIterator<Item = &'i InstanceName>,
) -> BTreeMap<&'i str, BTreeSet<&'i str>> {
    let mut absent: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for instance in instances {
        let agent = &*instance.agent;
        if !agent.is_empty() && state.at(&["agents", agent]).is_none() {
            let workloads = absent.entry(agent).or_default();
            workloads.insert(&*instance.workload);
        }
    }
    absent
}

/// Warns of agents that are not connected. The connected agents are in `state`. The times of losses
/// are read only if there is an absent agent: the kept changes are many.
fn warn_of_absent_agents(
    absent: &BTreeMap<&str, BTreeSet<&str>>,
    state: &Node,
    link: &mut dyn ServerLink,
    output: &mut Output,
) {
    if absent.is_empty() {
        return;
    }
    // The warnings matter more than the times.
    let history = link.complete_state(&[events::HISTORY]).unwrap_or_default();
    for (agent, workloads) in absent {
        let lost_at = events::lost_at(&history, agent);
        let mut since = String::new();
        let mut hint = String::new();
        if lost_at.is_empty() {
            // It was never connected, or its loss is no longer kept.
            let connected = rows::names(state.get("agents"));
            if let Some(similar) = nearest(agent, connected) {
                hint = format!("if the name is misspelt: agent '{similar}' is connected");
            }
        } else {
            since = format!(" since {lost_at}");
        }
        let number = counted(workloads.len(), "workload");
        let text = format!("agent '{agent}' is not connected{since}; it has {number}");
        output.warn_with_hint(one_line(&text), &one_line(&hint));
    }
}

/// The version of the program of an agent, the time of its connection, and its container engines.
fn program_fields(name: &str, state: &Node) -> Vec<Column> {
    let version = text(state, &[version::PART, "agents", name, "version"]);
    let engine = text(state, &[version::PART, "agents", name, "engine"]);
    let connected_at = version::connected_at(state, name);
    vec![
        Column::text("VERSION", "version", version).wide(),
        Column::text("CONNECTED SINCE", "connectedSince", &connected_at).wide(),
        Column::text("ENGINE", "engine", engine).wide(),
    ]
}

fn agent_fields(name: &str, agent: &Node, workloads: Option<&Node>, format: Format) -> Vec<Column> {
    let mut instances: u64 = 0;
    for (_, ids) in rows::entries(workloads) {
        instances += rows::entries(Some(ids)).count() as u64;
    }
    let mut tags = Vec::new();
    for (key, tag) in agent.entries("tags") {
        tags.push(format!("{key}={}", text(tag, &[])));
    }
    let tags = one_line(&tags.join(", "));
    // Scripts read the table that Eclipse Ankaios prints, with bytes.
    let free_memory: fn(u64) -> String = match format {
        Format::Wide => |bytes| size(bytes as f64),
        _ => |bytes| format!("{bytes}B"),
    };
    vec![
        Column::text("NAME", "name", name),
        Column::new("WORKLOADS", "workloads", instances.to_string(), instances),
        load_column(agent, "CPU USAGE", "cpuUsage", |percent| {
            format!("{percent}%")
        }),
        load_column(agent, "FREE MEMORY", "freeMemory", free_memory),
        Column::new("TAGS", "tags", tags, value(agent.get("tags"))).wide(),
    ]
}

fn load_column(agent: &Node, heading: &'static str, key: &str, cell: fn(u64) -> String) -> Column {
    let number = agent.at(&["status", key]).and_then(Node::as_number);
    let shown = number.map(cell).unwrap_or_default();
    Column::new(heading, key, shown, value(number))
}

/// Prints the names of configs.
pub(crate) fn configs(
    arguments: &ListArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let state = link.complete_state(&["desiredState.configs", WARNING])?;
    output.warn_of_storage(&state);
    let configs = state.at(&["desiredState", "configs"]);
    check_listed("config", &arguments.names, rows::names(configs))?;
    let mut rows = Vec::new();
    for (name, config) in rows::entries(configs) {
        if arguments.accepts(name) {
            rows.push(config_fields(name, Some(config)));
        }
    }
    let view = View::new(arguments.output, &config_fields("", None), rows);
    view.print("configs", TooWide::Drop, None, output)
}

fn config_fields(name: &str, config: Option<&Node>) -> Vec<Column> {
    let json = match config {
        Some(config) => serde_json::to_string(config).unwrap_or_default(),
        None => String::new(),
    };
    vec![
        Column::text("CONFIG", "name", name),
        Column::new("VALUE", "value", one_line(&json), value(config)).wide(),
    ]
}

#[cfg(test)]
mod tests;
