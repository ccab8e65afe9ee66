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
use super::masking::Arguments;
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

/// A container that vanishes meanwhile is left out.
fn listing(cli: &EngineCli, filter: &str) -> Result<Vec<EngineContainer>, RuntimeError> {
    let arguments = [
        "ps",
        "--all",
        "--no-trunc",
        "--filter",
        filter,
        "--format={{json .ID}}",
    ];
    let text = cli.call(arguments).run(None)?.into_text()?;
    let ids: Result<BTreeSet<String>, _> = serde_json::Deserializer::from_str(&text)
        .into_iter()
        .collect();
    let ids =
        ids.map_err(|error| cli.nonsense(&format!("The ids cannot be read: {error}"), &arguments))?;
    let ids: Vec<&str> = ids
        .iter()
        .map(String::as_str)
        .filter(|id| ContainerId::printed(id).is_some())
        .collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let format = format!("--format={}", format());
    let shown = ["inspect", "--format=...", "..."];
    let given = [&["inspect", &format], &ids[..]].concat();
    let call = cli.call(Arguments::shown_as(&given, &shown)).partial();
    let result = cli.read_listing(call, &shown);
    result.or_else(|error| {
        if error.means_gone() {
            Ok(Vec::new())
        } else {
            Err(error)
        }
    })
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

/// The container when it is one of `agent`.
pub fn listed(container: &EngineContainer, agent: &str) -> Option<ListedContainer> {
    let (id, instance) = (container.id()?, container.instance_of(agent)?);
    let of_state = &container.field("State");
    let pid = of_state["Pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok())
        .filter(|pid| *pid > 0);
    let processes = pid
        .map(|pid| MainProcess {
            container: id.clone(),
            pid,
        })
        .into_iter()
        .collect();
    let state = execution_state(container);
    let finished = of_state["FinishedAt"]
        .as_str()
        .filter(|_| state.phase.has_ended());
    let ended_at = finished.and_then(seconds_since_1970);
    Some(ListedContainer {
        id,
        instance,
        state,
        processes,
        ended_at,
        in_pod: false,
        pods: None,
    })
}

/// What nerdctl's state of the container means for its workload.
fn execution_state(container: &EngineContainer) -> ExecutionState {
    let state = container.field("State");
    let status = state["Status"].as_str().unwrap_or_default();
    let with_status = |phase| ExecutionState::with_info(phase, status);
    match (
        status.to_ascii_lowercase().as_str(),
        state["ExitCode"].as_i64(),
    ) {
        ("created" | "restarting", _) => with_status(Phase::PendingStarting),
        ("running", _) => ExecutionState::plain(Phase::Running),
        // It removes itself, so whether anybody sees the exit code is up to chance.
        ("exited" | "dead", _) if *container.field("AutoRemove") == "true" => {
            ExecutionState::plain(Phase::FailedLost)
        }
        ("exited", Some(code)) => ExecutionState::exited(code),
        ("dead", Some(code)) => {
            ExecutionState::with_info(Phase::FailedExecFailed, format!("Exit code: '{code}'"))
        }
        ("removing", _) => with_status(Phase::Stopping),
        _ => with_status(Phase::FailedUnknown),
    }
}

/// Reads a time like `2026-01-31T23:59:59.123+02:00` to the second; `None` for anything else and
/// for times before 1970, such as the year 1 that stands for never.
fn seconds_since_1970(text: &str) -> Option<u64> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()?
        .unix_timestamp()
        .try_into()
        .ok()
}

#[cfg(test)]
mod tests;
