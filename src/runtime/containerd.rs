//! Containers of containerd through the `nerdctl` command line (spec/agent.md section 17).
//!
//! nerdctl's listing has no states, so a listing is two calls: `ps` for ids and labels, `inspect` for the states of
//! all of them.
//!
//! Thread: the caller's: `wl:<name>` for create, start and delete, `watch:containerd` for listings.
//! Owns: nothing that outlives a call; the engine keeps the containers.

use super::container_config::{LABEL_AGENT, LABEL_NAME, filter_by_agent, filter_by_name};
use super::container_engine::ContainerEngine;
use super::engine_children::EngineChildren;
use super::engine_cli::{EngineCli, strings};
use super::{CallWatch, ContainerId, ListedContainer, MainProcess, RuntimeError, Unwatched};
use crate::limits::{CONTAINER_STOP_DEFAULT, REMOVE_MAX, STOP_GRACE};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::{InstanceName, Name};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Name of the runtime in manifests.
pub const RUNTIME_NAME: &str = "containerd";
const PROGRAM: &str = "nerdctl";
/// Label by which nerdctl remembers `--rm`.
const LABEL_AUTO_REMOVE: &str = "nerdctl/auto-remove";

/// Runs workloads with nerdctl for one agent.
#[derive(Debug, Clone)]
pub struct ContainerdConnector {
    cli: EngineCli,
    agent: Name,
    stop_limit: Duration,
}

impl ContainerdConnector {
    /// A connector for the containers of `agent`, which records its calls in `children`.
    #[must_use]
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        let stop_limit = CONTAINER_STOP_DEFAULT + STOP_GRACE;
        Self { cli: EngineCli::new(PROGRAM, children), agent: agent.into(), stop_limit }
    }

    fn ps(&self, filter: &str, watch: &mut dyn CallWatch) -> Result<Vec<PsEntry>, RuntimeError> {
        let arguments = ["ps", "--all", "--no-trunc", "--filter", filter, "--format=json"];
        let text = self.cli.ask_watched(&arguments, watch)?;
        parse_ps(&text)
            .map_err(|error| self.cli.nonsense(&format!("The list of containers cannot be read: {error}"), &arguments))
    }

    /// States of these containers; one that has vanished since it was listed is left out.
    fn inspect(&self, ids: &[&str], watch: &mut dyn CallWatch) -> Result<Vec<Inspection>, RuntimeError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = vec!["inspect"];
        arguments.extend(ids);
        let answer = self.cli.call(&arguments).partial().run(watch);
        let text = match answer {
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            answer => answer?.into_text()?,
        };
        parse_inspections(&text).map_err(|error| {
            self.cli.nonsense(&format!("The states of containers cannot be read: {error}"), &["inspect", "..."])
        })
    }

    /// How long the container may take to stop; `None` when the engine does not say.
    fn stop_timeout(&self, id: &ContainerId) -> Option<Duration> {
        let format = r#"--format={{index .Config.Labels "nerdctl/stop-timeout"}}"#;
        let answer = self.cli.ask(&["inspect", format, &id.0]).ok()?;
        Some(Duration::from_secs(answer.trim().parse().ok()?))
    }
}

impl ContainerEngine for ContainerdConnector {
    fn runtime_name(&self) -> &'static str {
        RUNTIME_NAME
    }

    fn cli(&self) -> &EngineCli {
        &self.cli
    }

    fn find_watched(
        &self,
        instance: &InstanceName,
        _in_pods: bool, // nerdctl has none.
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let name = instance.to_string();
        let entries = self.ps(&filter_by_name(instance), watch)?;
        let (clear, unclear): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| entry.labels(LABEL_NAME).count() == 1);
        let clear = clear.into_iter().filter(|entry| entry.label(LABEL_NAME) == Some(&name));
        let mut found: Vec<ContainerId> = clear.filter_map(PsEntry::container).collect();
        let unclear: Vec<&str> = unclear.into_iter().filter_map(PsEntry::id).collect();
        let inspected = self.inspect(&unclear, watch)?;
        let named = inspected.iter().filter(|one| one.label(LABEL_NAME) == Some(&name));
        found.extend(named.filter_map(Inspection::container));
        Ok(found)
    }

    /// One that was never started cannot be stopped.
    fn stop_watched(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        let stop = self.cli.change(strings(&["stop", &id.0])).limit(self.stop_limit);
        let more_time = || self.stop_timeout(id)?.checked_sub(CONTAINER_STOP_DEFAULT).filter(|extra| !extra.is_zero());
        gone_is_fine(stop.run_extended(watch, more_time).map(drop))
    }

    fn remove(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        let removal = self.cli.change(strings(&["rm", &id.0])).limit(REMOVE_MAX);
        gone_is_fine(removal.run(watch).map(drop))
    }

    fn list_all(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let entries = self.ps(&filter_by_agent(&self.agent), &mut Unwatched)?;
        let foreign = |entry: &PsEntry| entry.is_clear() && entry.of_agent(&self.agent).is_none();
        let ids: BTreeSet<&str> = entries.iter().filter(|entry| !foreign(entry)).filter_map(PsEntry::id).collect();
        let states = self.inspect(&ids.into_iter().collect::<Vec<_>>(), &mut Unwatched)?;
        Ok(listed(&entries, &states, &self.agent))
    }
}

/// Reads what `nerdctl ps` prints: an object on each line.
fn parse_ps(text: &str) -> Result<Vec<PsEntry>, serde_json::Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}

fn parse_inspections(text: &str) -> Result<Vec<Inspection>, serde_json::Error> {
    serde_json::from_str(text)
}

/// The containers of `agent` among those that were listed and inspected.
fn listed(entries: &[PsEntry], states: &[Inspection], agent: &str) -> Vec<ListedContainer> {
    let by_id: BTreeMap<&str, &PsEntry> = entries.iter().filter_map(|entry| Some((entry.id()?, entry))).collect();
    let ours = states.iter().filter_map(|state| {
        let entry = by_id.get(state.id.as_str()?)?;
        let instance = if entry.is_clear() { entry.of_agent(agent) } else { state.of_agent(agent) };
        state.listed(instance?)
    });
    ours.collect()
}

/// The containers of `agent` as `nerdctl ps` and `nerdctl inspect` print them.
///
/// # Errors
/// Why one of the texts is not what these commands print.
pub fn read_listing(ps: &str, inspect: &str, agent: &str) -> Result<Vec<ListedContainer>, serde_json::Error> {
    Ok(listed(&parse_ps(ps)?, &parse_inspections(inspect)?, agent))
}

fn is_gone(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Failed(text) if text.to_ascii_lowercase().contains("no such container"))
}

fn gone_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    result.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

/// One line of `nerdctl ps`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PsEntry {
    #[serde(rename = "ID", alias = "Id")]
    id: Value,
    #[serde(rename = "Labels")]
    labels: Value,
}

impl PsEntry {
    fn id(&self) -> Option<&str> {
        self.id.as_str().filter(|id| ContainerId::printed(id).is_some())
    }

    fn container(&self) -> Option<ContainerId> {
        self.id().and_then(ContainerId::printed)
    }

    /// The labels are one text, `key=value,key=value`, in any order. A value with a comma, which an image may bring,
    /// looks as if there were further labels.
    fn labels(&self, name: &str) -> impl Iterator<Item = &str> {
        let labels = self.labels.as_str().unwrap_or_default().split(',').filter_map(|label| label.split_once('='));
        labels.filter(move |(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The value of a label; `None` when the text does not say which it is.
    fn label(&self, name: &str) -> Option<&str> {
        let mut values = self.labels(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Whether the text leaves no doubt about the labels that matter here.
    fn is_clear(&self) -> bool {
        [LABEL_NAME, LABEL_AGENT].iter().all(|label| self.labels(label).count() < 2)
    }

    fn of_agent(&self, agent: &str) -> Option<InstanceName> {
        instance_of_agent(self.label(LABEL_NAME), self.label(LABEL_AGENT), agent)
    }
}

/// The instance when both the label and the name say exactly `agent`.
fn instance_of_agent(name: Option<&str>, label: Option<&str>, agent: &str) -> Option<InstanceName> {
    let instance = name.and_then(InstanceName::parse)?;
    (label == Some(agent) && *instance.agent == *agent).then_some(instance)
}

/// What `nerdctl inspect` tells about one container.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Inspection {
    #[serde(rename = "Id", alias = "ID")]
    id: Value,
    #[serde(rename = "State")]
    state: Value,
    #[serde(rename = "Config")]
    config: Value,
}

impl Inspection {
    fn container(&self) -> Option<ContainerId> {
        self.id.as_str().and_then(ContainerId::printed)
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.config["Labels"][name].as_str()
    }

    fn of_agent(&self, agent: &str) -> Option<InstanceName> {
        instance_of_agent(self.label(LABEL_NAME), self.label(LABEL_AGENT), agent)
    }

    fn listed(&self, instance: InstanceName) -> Option<ListedContainer> {
        let container = self.container()?;
        let pid = self.state["Pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let processes = pid.map(|pid| MainProcess { container: container.clone(), pid }).into_iter().collect();
        let state = self.execution_state();
        let ended = matches!(state.phase, Phase::Succeeded | Phase::FailedExecFailed);
        let ended_at = self.state["FinishedAt"].as_str().filter(|_| ended).and_then(seconds_since_1970);
        Some(ListedContainer { id: container, instance, state, processes, ended_at, in_pod: false })
    }

    /// What the container's state means for its workload (spec/agent.md section 17).
    fn execution_state(&self) -> ExecutionState {
        let status = self.state["Status"].as_str().unwrap_or_default();
        let with_status = |phase| ExecutionState::with_info(phase, status);
        let code = self.state["ExitCode"].as_i64();
        match (status.to_ascii_lowercase().as_str(), code) {
            ("created" | "restarting", _) => with_status(Phase::PendingStarting),
            ("running", _) => ExecutionState::plain(Phase::Running),
            // It removes itself, so whether anybody sees the exit code is up to chance.
            ("exited" | "dead", _) if self.label(LABEL_AUTO_REMOVE) == Some("true") => {
                ExecutionState::plain(Phase::FailedLost)
            }
            ("exited", Some(code)) => ExecutionState::exited(code),
            ("dead", Some(code)) => ExecutionState::with_info(Phase::FailedExecFailed, format!("Exit code: '{code}'")),
            ("removing", _) => with_status(Phase::Stopping),
            _ => with_status(Phase::FailedUnknown),
        }
    }
}

/// Reads a time like `2026-01-31T23:59:59.123+02:00` to the second; `None` for anything else and for times before
/// 1970, such as the year 1 that stands for never.
fn seconds_since_1970(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' '])?;
    let numbers = |text: &str, separator: char| -> Option<[i64; 3]> {
        let numbers: Result<Vec<i64>, _> = text.split(separator).map(str::parse).collect();
        numbers.ok()?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let clock_end = time.find(['.', 'Z', '+', '-']).unwrap_or(time.len());
    let [hour, minute, second] = numbers(&time[..clock_end], ':')?;
    let zone = time[clock_end..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match zone.as_bytes() {
        [] | [b'Z', ..] => 0,
        [sign, rest @ ..] => {
            let (hours, minutes) = std::str::from_utf8(rest).ok()?.split_once(':')?;
            let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
            if hours >= 24 || minutes >= 60 {
                return None;
            }
            let minutes = i64::from(hours * 60 + minutes);
            if *sign == b'-' { -minutes } else { minutes }
        }
    };
    let in_range = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let in_range = in_range && (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !in_range {
        return None;
    }
    // Years begin in March, so that a leap day is the last day of its year.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    let days = days - 719_468; // From March of the year 0 to 1970.
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    u64::try_from(seconds).ok()
}

#[cfg(test)]
mod tests;
