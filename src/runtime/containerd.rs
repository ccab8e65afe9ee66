//! Containers of containerd through the `nerdctl` command line.
//!
//! nerdctl's `ps` prints no states, and labels in a form that leaves open where one ends. So a
//! listing is two calls: `ps` for ids, `inspect` for the labels and states of all of them.
//!
//! Thread: the caller's, see [`super::container_engine`]. Owns: nothing.

use super::call_error::meaning_of_nerdctl;
use super::container_engine::Engine;
use super::container_list::{self, EngineContainer};
use super::engine_cli::EngineCli;
use super::images;
use super::masking::MaskedArguments;
use super::{ContainerId, ListedContainer, MainProcess, RuntimeError};
use ankaios_model::execution_state::{ExecutionState, Phase};
use std::collections::BTreeSet;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Name of the runtime in manifests.
pub const RUNTIME_NAME: &str = "containerd";

pub const ENGINE: Engine = Engine {
    runtime: RUNTIME_NAME,
    program: "nerdctl",
    read_meaning: meaning_of_nerdctl,
    stop: &["stop"],
    remove: &["rm", "--volumes"],
    details: &["inspect", "--format={{json .}}"],
    image_exists: &["image", "inspect"],
    stop_timeout: &[
        "inspect",
        r#"--format={{index .Config.Labels "nerdctl/stop-timeout"}}"#,
    ],
    listing,
    listed,
    image_store: images::nerdctl_store,
    remove_image: images::remove_from_nerdctl,
};

/// The containers that match a filter. One that vanishes between the two calls is left out.
fn listing(cli: &EngineCli, filter: &str) -> Result<Vec<EngineContainer>, RuntimeError> {
    let arguments = [
        "ps",
        "--all",
        "--no-trunc",
        "--filter",
        filter,
        "--format={{json .ID}}",
    ];
    // First list the ids.
    let text = cli.call(arguments).run(None)?.into_text()?;
    let mut ids: BTreeSet<String> = BTreeSet::new();
    for id in serde_json::Deserializer::from_str(&text).into_iter() {
        match id {
            Ok(id) => ids.insert(id),
            Err(error) => {
                let why = format!("The ids cannot be read: {error}");
                return Err(cli.nonsense(&why, &arguments));
            }
        };
    }
    ids.retain(|id| ContainerId::printed(id).is_some());
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // Then inspect all of them. Errors show the call without its long format and the ids.
    let format = format!("--format={}", format());
    let shown = ["inspect", "--format=...", "..."];
    let mut given = vec!["inspect", &format];
    given.extend(ids.iter().map(String::as_str));
    let call = cli
        .call(MaskedArguments::shown_as(&given, &shown))
        .partial();
    match cli.read_listing(call, &shown) {
        Err(error) if error.means_gone() => Ok(Vec::new()),
        result => result,
    }
}

/// The Go template by which nerdctl inspects one container.
fn format() -> String {
    let labels = container_list::labels_format(".Config.Labels");
    // Label by which nerdctl remembers `--rm`.
    let auto_remove = container_list::shortened(r#"(index .Config.Labels "nerdctl/auto-remove")"#);
    format!(
        r#"{{"Id":{{{{json .ID}}}},"State":{{{{json .State}}}},"AutoRemove":{auto_remove},{labels}}}"#
    )
}

/// The container if it belongs to `agent`.
pub fn listed(container: &EngineContainer, agent: &str) -> Option<ListedContainer> {
    let state = execution_state(container);
    let mut ended_at = None;
    if state.phase.has_ended() {
        ended_at = ended_at_second(container);
    }
    Some(ListedContainer {
        id: container.id()?,
        instance: container.instance_of(agent)?,
        state,
        processes: process(container).into_iter().collect(),
        ended_at,
        in_pod: false,
        pods: None,
    })
}

/// The main process while it runs; without one nerdctl prints pid 0.
fn process(container: &EngineContainer) -> Option<MainProcess> {
    let pid = container.field("State")["Pid"].as_u64()?;
    let pid = u32::try_from(pid).ok()?;
    if pid == 0 {
        return None;
    }
    Some(MainProcess {
        container: container.id()?,
        pid,
    })
}

fn ended_at_second(container: &EngineContainer) -> Option<u64> {
    seconds_since_1970(container.field("State")["FinishedAt"].as_str()?)
}

/// The state of the workload that follows from nerdctl's state of the container.
fn execution_state(container: &EngineContainer) -> ExecutionState {
    let state = container.field("State");
    let status = state["Status"].as_str().unwrap_or_default();
    let exit_code = state["ExitCode"].as_i64();
    let unknown = ExecutionState::with_info(Phase::FailedUnknown, status);
    match status.to_ascii_lowercase().as_str() {
        "created" | "restarting" => ExecutionState::with_info(Phase::PendingStarting, status),
        "running" => ExecutionState::plain(Phase::Running),
        // It removes itself, so the exit code is seen only by chance.
        "exited" | "dead" if *container.field("AutoRemove") == "true" => {
            ExecutionState::plain(Phase::FailedLost)
        }
        "exited" => match exit_code {
            Some(code) => ExecutionState::exited(code),
            None => unknown,
        },
        "dead" => match exit_code {
            Some(code) => {
                ExecutionState::with_info(Phase::FailedExecFailed, format!("Exit code: '{code}'"))
            }
            None => unknown,
        },
        "removing" => ExecutionState::with_info(Phase::Stopping, status),
        _ => unknown,
    }
}

/// Reads a time like `2026-01-31T23:59:59.123+02:00` to the second; `None` for anything else and
/// for times before 1970, such as the year 1 that stands for never.
fn seconds_since_1970(text: &str) -> Option<u64> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp()).ok()
}

#[cfg(test)]
mod tests;
