//! `ank mode`: the modes of the server, the switch to one of them, and the checks of workloads with
//! modes before they are sent.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::{CliError, Result, meant_or};
use super::output::{self, Output, Table, TooWide, one_line};
use super::rows::{entries, text};
use super::session::{CliUpdate, ModeRule, ServerLink};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::field_path::parts;
use ankaios_model::modes::{ESSENTIAL_TAG, MODES_TAG, mode_names};
use ankaios_model::names::is_name;
use ankaios_model::nearest::meant;
use ankaios_model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// The part of the complete state with the modes of the server.
pub(crate) const PART: &str = "modes";

/// Returns [`PART`] of a complete state, and the sorted names of the known modes: the current one,
/// the one for failures, and those that workloads name. `None` if the server has no modes.
pub(crate) fn of_server(state: &Node) -> Option<(&Node, Vec<&str>)> {
    let modes = state.get(PART)?;
    modes.get("configItem")?; // Only a server without modes lacks it.
    let listed = modes.get("known").and_then(Node::as_list);
    let mut known = Vec::new();
    for mode in listed.unwrap_or_default() {
        known.extend(mode.as_text());
    }
    Some((modes, known))
}

fn no_modes() -> CliError {
    CliError::input(
        "This server has no modes.",
        "set 'mode_config' in ank-server.conf",
    )
}

/// A workload and one of the modes in its tags.
pub(crate) struct NamedMode<'s> {
    pub(crate) workload: &'s str,
    pub(crate) mode: &'s str,
}

/// Returns the modes in the tags of the workloads in `part` of a complete state.
pub(crate) fn named<'s>(state: &'s Node, part: &str) -> Vec<NamedMode<'s>> {
    let mut named = Vec::new();
    for (workload, definition) in entries(state.at(&[part, "workloads"])) {
        for mode in mode_names(text(definition, &["tags", MODES_TAG])) {
            named.push(NamedMode { workload, mode });
        }
    }
    named
}

/// Prints the modes of the server, which one is current, and how many workloads name each.
pub(crate) fn show(link: &mut dyn ServerLink, format: Format, output: &mut Output) -> Result<()> {
    let state = link.complete_state(&[PART, "effectiveState.workloads.*.tags"])?;
    let (modes, known) = of_server(&state).ok_or_else(no_modes)?;
    warn_of_cause(modes, output);
    if modes.get("current").is_none() {
        output.warn(format_args!(
            "config item '{}' does not exist, so no mode is set",
            text(modes, &["configItem"])
        ));
    }
    // A workload that names a mode twice counts once.
    let mut workloads: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for NamedMode { workload, mode } in named(&state, "effectiveState") {
        workloads.entry(mode).or_default().insert(workload);
    }
    let current = text(modes, &["current"]);
    let mut counts = Vec::new();
    let mut rows = Vec::new();
    for mode in known {
        let count = workloads.get(mode).map_or(0, BTreeSet::len);
        let is_current = if mode == current { "yes" } else { "" };
        counts.push((mode, Node::Number(count as u64)));
        rows.push(vec![
            one_line(mode),
            is_current.to_owned(),
            count.to_string(),
        ]);
    }
    let mut data = modes.clone();
    if let Some(data) = data.as_map_mut() {
        data.insert("workloads", Node::map(counts));
    }
    let table = Table {
        headings: vec!["MODE", "CURRENT", "WORKLOADS"],
        rows,
        least_wanted: &[],
        most_wanted: &[],
    };
    output::show(format, &data, &table, TooWide::Drop, None, output)
}

/// Warns of the cause if the server itself has switched the mode.
pub(crate) fn warn_of_cause(modes: &Node, output: &mut Output) {
    if let Some(cause) = modes.get("cause") {
        output.warn(one_line(text(cause, &[])));
    }
}

/// The update that switches to a mode.
pub(crate) fn switch(link: &mut dyn ServerLink, mode: &str, may_be_new: bool) -> Result<CliUpdate> {
    let state = link.complete_state(&[PART])?;
    let (modes, known) = of_server(&state).ok_or_else(no_modes)?;
    if !may_be_new && !known.contains(&mode) {
        let why = if is_name(mode) {
            "'--new' switches to it anyway"
        } else {
            "no mode can have this name"
        };
        let list = if known.is_empty() {
            "none is known yet".to_owned()
        } else {
            format!("the known ones are '{}'", known.join("', '"))
        };
        let otherwise = format!("{why}; {list}");
        let hint = meant_or(mode, known, &otherwise);
        return Err(CliError::input(
            format!("Mode '{mode}' is not known."),
            hint,
        ));
    }
    let accepted = match text(modes, &["current"]) {
        "" => format!("Switched to mode '{mode}'."),
        current if current == mode => format!("Mode '{mode}' is set already."),
        current => format!("Switched from mode '{current}' to '{mode}'."),
    };
    let item = text(modes, &["configItem"]);
    let new_state = Node::map([(
        "desiredState",
        Node::map([("configs", Node::map([(item, Node::text(mode))]))]),
    )]);
    let masks = vec![format!("desiredState.configs.{item}")];
    Ok(CliUpdate {
        new_state,
        masks,
        accepted,
        ..CliUpdate::default()
    })
}

/// Applies the mode rule of an update. Returns an error text if the update must not switch the mode
/// and would.
// [impl->swdd~cli-switches-no-mode-by-accident~1]
pub(crate) fn apply_mode_rule(
    update: &mut CliUpdate,
    link: &mut dyn ServerLink,
) -> Result<Option<String>> {
    if update.mode_rule == ModeRule::MaySwitch {
        return Ok(None);
    }
    let state = link.complete_state(&[PART, "desiredState.configs"])?;
    let Some((modes, _)) = of_server(&state) else {
        return Ok(None);
    };
    let item = text(modes, &["configItem"]);
    let configs = ["desiredState", "configs"];
    let path = ["desiredState", "configs", item];
    // First, make masks without the item. A mask of all configs becomes one mask for each other
    // config.
    let mut others = Vec::new();
    for part in [state.at(&configs), update.new_state.at(&configs)] {
        for (name, _) in entries(part) {
            if name != item {
                others.push(format!("desiredState.configs.{name}"));
            }
        }
    }
    let mut masks = Vec::new();
    for mask in &update.masks {
        let place = parts(mask);
        if place == path {
            continue; // The mask of the item itself is left out.
        }
        if place == configs {
            masks.extend(others.clone());
        } else if place == ["desiredState"] {
            masks.extend(others.clone());
            masks.push("desiredState.workloads".to_owned());
        } else {
            masks.push(mask.clone());
        }
    }
    // Then, check whether the update switches the mode.
    let old = modes.get("current");
    let new = update.new_state.at(&path);
    if update.mode_rule == ModeRule::MustNotSwitch && old != new {
        // To create or delete the item is no switch: the server ensures that no workload names
        // modes without it.
        let names_item = masks != update.masks;
        if !names_item || old.is_none() || new.is_none() {
            return Ok(None);
        }
        let old = text(modes, &["current"]);
        let new = text(&update.new_state, &path);
        return Ok(Some(format!(
            "This would switch the mode from '{old}' to '{new}'."
        )));
    }
    // Finally, leave the item out: a switch by others in between must not be overwritten.
    update.masks = masks;
    if let Some(configs) = update.new_state.at_mut(&configs)
        && let Some(configs) = configs.as_map_mut()
    {
        configs.remove(item);
    }
    Ok(None)
}

/// Number of warnings that are printed.
const WARNINGS_SHOWN: usize = 10;
/// The parts of the state that a check reads.
const CHECK_MASKS: [&str; 3] = [
    PART,
    "desiredState.workloads.*.tags",
    "desiredState.workloads.*.dependencies",
];

type TaggedWorkloads<'s> = BTreeMap<&'s str, &'s Node>;

/// Checks the workloads of an update if one has the tag `modes`. Refuses a server without modes,
/// which would run all of them at once. Otherwise only warns of probable mistakes: the server
/// accepts them.
// [impl->swdd~cli-modes-need-a-server-with-modes~1]
pub(crate) fn check(
    new_state: &Node,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let sent: TaggedWorkloads<'_> =
        entries(new_state.at(&["desiredState", "workloads"])).collect_entries();
    let tagged = with_tag(&sent, MODES_TAG);
    if tagged.is_empty() {
        return Ok(());
    }
    let state = link.complete_state(&CHECK_MASKS)?;
    let Some((modes, known)) = of_server(&state) else {
        let names = tagged.join("', '");
        let text = format!(
            "Workloads with the tag 'modes' ('{names}') would all run: this server has no modes."
        );
        return Err(CliError::input(text, "'--ignore-modes' sends them anyway"));
    };
    let mut warnings = unknown_modes(modes, &known, new_state);
    warnings.extend(unmet_needs(&known, &state, &sent));
    let more = warnings.len().saturating_sub(WARNINGS_SHOWN);
    warnings.truncate(WARNINGS_SHOWN);
    if more > 0 {
        warnings.push(format!("and {more} more of these"));
    }
    if modes.get("onFailure").is_none()
        && let Some(name) = with_tag(&sent, ESSENTIAL_TAG).first()
    {
        warnings.push(format!(
            "the tag 'essential' of workload '{name}' does nothing: this server has no mode for failures"
        ));
    }
    for warning in warnings {
        output.warn(one_line(&warning));
    }
    Ok(())
}

/// Returns the names of the workloads with a tag.
fn with_tag<'s>(workloads: &TaggedWorkloads<'s>, tag: &str) -> Vec<&'s str> {
    let mut names = Vec::new();
    for (name, workload) in workloads {
        if workload.at(&["tags", tag]).is_some() {
            names.push(*name);
        }
    }
    names
}

/// Returns a warning for each mode that is probably misspelt: only one workload names it, and it
/// resembles another mode.
fn unknown_modes(modes: &Node, known: &[&str], new_state: &Node) -> Vec<String> {
    // First, add the mode that this update switches to, and those that several workloads name.
    let mut known: BTreeSet<&str> = known.iter().copied().collect_entries();
    let item = ["desiredState", "configs", text(modes, &["configItem"])];
    known.extend(new_state.at(&item).and_then(Node::as_text));
    let mut seen = BTreeSet::new();
    let named = named(new_state, "desiredState");
    for NamedMode { mode, .. } in &named {
        if !seen.insert(*mode) {
            known.insert(*mode);
        }
    }
    // Then, find those that are not known.
    let mut misspelt = Vec::new();
    for NamedMode { workload, mode } in named {
        if known.contains(mode) {
            continue;
        }
        let meant = meant(mode, known.iter().copied());
        if !meant.is_empty() {
            misspelt.push(format!(
                "mode '{mode}' of workload '{workload}' is not known{meant}"
            ));
        }
    }
    misspelt
}

/// The modes of a workload; `None` for one that is in every mode.
fn modes_of(workload: &Node) -> Option<BTreeSet<&str>> {
    let tag = workload.at(&["tags", MODES_TAG])?.as_text()?;
    Some(mode_names(tag).collect_entries())
}

/// Returns a warning for each dependency that is not in all modes of its workload, if one of the
/// two is sent.
fn unmet_needs(known: &[&str], state: &Node, sent: &TaggedWorkloads<'_>) -> Vec<String> {
    // First, the workloads after the update, and all modes.
    let before = entries(state.at(&["desiredState", "workloads"]));
    let all: TaggedWorkloads<'_> = before.chain(sent.clone()).collect_entries();
    let mut every_mode: BTreeSet<&str> = known.iter().copied().collect_entries();
    for workload in all.values() {
        every_mode.extend(modes_of(workload).unwrap_or_default());
    }
    // Then, compare the modes of both ends of each dependency.
    let mut warnings = Vec::new();
    for (name, workload) in &all {
        for (needed, _) in workload.entries("dependencies") {
            if !sent.contains_key(name) && !sent.contains_key(needed) {
                continue; // The update does not concern this dependency.
            }
            let Some(dependency) = all.get(needed) else {
                continue; // The server refuses it.
            };
            let Some(modes_of_dependency) = modes_of(dependency) else {
                continue; // It is in every mode.
            };
            let modes = modes_of(workload).unwrap_or_else(|| every_mode.clone());
            let without = Vec::from_iter(modes.difference(&modes_of_dependency).copied());
            if !without.is_empty() {
                let without = without.join("', '");
                warnings.push(format!(
                    "workload '{name}' is in mode '{without}' without '{needed}', which it needs"
                ));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
