//! What `ank apply` and `ank run workload` check when workloads have the tag `modes`.
//!
//! Thread: `main`. A server without modes would run all of them at once, so nothing is sent to it; a server with modes
//! accepts what probably is a mistake, so that is only warned of.

use super::error::{CliError, meant};
use super::modes::{PART, ServerModes, named};
use super::output::Output;
use super::rows::entries;
use super::session::ServerLink;
use super::table::one_line;
use crate::model::modes::{ESSENTIAL_TAG, MODES_TAG, mode_names};
use crate::model::nearest::nearest;
use crate::model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Of more warnings only the number is shown.
const WARNINGS_SHOWN: usize = 10;
/// What is read besides the modes: what the update does not send.
const MASKS: [&str; 3] = [PART, "desiredState.workloads.*.tags", "desiredState.workloads.*.dependencies"];

/// Checks the workloads of `update` if one has the tag `modes`.
///
/// # Errors
/// The server has no modes, or it does not respond.
// [impl->swdd~cli-modes-need-a-server-with-modes~1]
pub fn check(new_state: &Node, link: &mut dyn ServerLink, output: &mut Output<'_>) -> Result<(), CliError> {
    let sent = Workloads::of(new_state);
    let has_tag = |workload: &Node| workload.at(&["tags", MODES_TAG]).is_some();
    let tagged: Vec<&str> = sent.0.iter().filter(|(_, workload)| has_tag(workload)).map(|(name, _)| *name).collect();
    if tagged.is_empty() {
        return Ok(());
    }
    let state = link.complete_state(&MASKS)?;
    let Some(modes) = ServerModes::in_state(&state) else {
        let names = tagged.join("', '");
        let text = format!("Workloads with the tag 'modes' ('{names}') would all run: this server has no modes.");
        return Err(CliError::input(text, "'--ignore-modes' sends them all the same").into());
    };
    let mut warnings = unknown_modes(&modes, new_state);
    warnings.extend(unmet_needs(&modes, &state, &sent));
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        output.warn(one_line(warning));
    }
    if let Some(more @ 1..) = warnings.len().checked_sub(WARNINGS_SHOWN) {
        output.warn(format!("and {more} more of these"));
    }
    let has_essential = |workload: &&Node| workload.at(&["tags", ESSENTIAL_TAG]).is_some();
    if let Some((name, _)) = sent.0.iter().find(|(_, workload)| has_essential(workload))
        && modes.on_failure.is_none()
    {
        let text =
            format!("the tag 'essential' of workload '{name}' does nothing: this server has no mode for failures");
        output.warn(one_line(&text));
    }
    Ok(())
}

/// A mode that only one workload names, although it resembles another one, is probably misspelt.
fn unknown_modes(modes: &ServerModes, new_state: &Node) -> Vec<String> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    named(new_state, "desiredState").for_each(|(_, mode)| *times.entry(mode).or_default() += 1);
    let switched_to = new_state.at(&["desiredState", "configs", &modes.item]).and_then(Node::as_text);
    let often = times.iter().filter(|(_, times)| **times > 1).map(|(mode, _)| *mode);
    let known: BTreeSet<&str> = modes.known.iter().map(String::as_str).chain(switched_to).chain(often).collect();
    let unknown = named(new_state, "desiredState").filter(|(_, mode)| !known.contains(mode));
    let misspelt = unknown.filter(|(_, mode)| nearest(mode, known.iter().copied()).is_some());
    let text = |(name, mode): (&str, &str)| {
        format!("mode '{mode}' of workload '{name}' is not known{}", meant(mode, known.iter().copied()))
    };
    misspelt.map(text).collect()
}

/// Workloads of a part of the complete state.
struct Workloads<'s>(BTreeMap<&'s str, &'s Node>);

impl<'s> Workloads<'s> {
    fn of(state: &'s Node) -> Self {
        let workloads = entries(state.at(&["desiredState", "workloads"]));
        Self(workloads.collect())
    }
}

/// The modes of a workload; `None` for one that is in every mode.
fn modes_of(workload: &Node) -> Option<BTreeSet<&str>> {
    workload.at(&["tags", MODES_TAG]).and_then(Node::as_text).map(|tag| mode_names(tag).collect())
}

/// Each sent workload that is in a mode in which a workload that it needs is not, and each other one that needs a sent one.
fn unmet_needs(modes: &ServerModes, state: &Node, sent: &Workloads<'_>) -> Vec<String> {
    let mut all = Workloads::of(state);
    all.0.extend(sent.0.iter());
    let named = all.0.values().filter_map(|workload| modes_of(workload)).flatten();
    let every: BTreeSet<&str> = modes.known.iter().map(String::as_str).chain(named).collect();
    let mut warnings = Vec::new();
    for (name, workload) in &all.0 {
        for (needed, _) in entries(workload.get("dependencies")) {
            let Some((needed, other)) = all.0.get_key_value(needed) else { continue };
            if !sent.0.contains_key(name) && !sent.0.contains_key(needed) {
                continue;
            }
            let Some(there) = modes_of(other) else { continue };
            let own = modes_of(workload).unwrap_or_else(|| every.clone());
            let without: Vec<&str> = own.difference(&there).copied().collect();
            if !without.is_empty() {
                let without = without.join("', '");
                warnings.push(format!("workload '{name}' is in mode '{without}' without '{needed}', which it needs"));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
