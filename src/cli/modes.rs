//! `ank mode`: the modes of the server, the switch to one of them, and what is checked before
//! workloads that name some are sent.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::{CliError, Result, meant_or};
use super::output::{self, Output, Table, TooWide, one_line};
use super::rows::{entries, text};
use super::session::{ServerLink, Update};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::field_path::parts;
use ankaios_model::modes::{ESSENTIAL_TAG, MODES_TAG, mode_names};
use ankaios_model::names::is_name;
use ankaios_model::nearest::meant;
use ankaios_model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// The part of the complete state with the modes of the server.
pub(crate) const PART: &str = "modes";

/// The modes of the server in `state`, a complete state that was read with [`PART`], and which are
/// known: the current one, the one for failures and those that workloads name, sorted. `None` when
/// the server has no modes.
pub(crate) fn of_server(state: &Node) -> Option<(&Node, Vec<&str>)> {
    let modes = state
        .get(PART)
        .filter(|modes| modes.get("configItem").is_some())?;
    let known = modes
        .get("known")
        .and_then(Node::as_list)
        .unwrap_or_default();
    Some((modes, known.iter().filter_map(Node::as_text).collect()))
}

fn no_modes() -> CliError {
    CliError::input(
        "This server has no modes.",
        "set 'mode_config' in ank-server.conf",
    )
}

/// The modes in the tags of the workloads in `part` of a complete state, with each workload that
/// names them.
pub(crate) fn named<'s>(state: &'s Node, part: &str) -> impl Iterator<Item = (&'s str, &'s str)> {
    entries(state.at(&[part, "workloads"])).flat_map(|(name, workload)| {
        mode_names(text(workload, &["tags", MODES_TAG])).map(move |mode| (name, mode))
    })
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
    let count = |mode: &str| {
        let mut workloads: Vec<&str> = named(&state, "effectiveState")
            .filter(|(_, named)| *named == mode)
            .map(|(name, _)| name)
            .collect();
        workloads.dedup(); // One that names it twice.
        workloads.len()
    };
    let mut data = modes.clone();
    let counts = known
        .iter()
        .map(|mode| (*mode, Node::Number(count(mode) as u64)));
    data.as_map_mut()
        .map(|map| map.insert("workloads", Node::map(counts)));
    let row = |mode: &&str| {
        let is_current = if text(modes, &["current"]) == *mode {
            "yes"
        } else {
            ""
        };
        vec![
            one_line(mode),
            is_current.to_owned(),
            count(mode).to_string(),
        ]
    };
    let table = Table {
        headings: vec!["MODE", "CURRENT", "WORKLOADS"],
        rows: known.iter().map(row).collect(),
        least_wanted: &[],
    };
    output::show(format, &data, &table, TooWide::Drop, None, output)
}

/// Says why the server itself has switched, if it has.
pub(crate) fn warn_of_cause(modes: &Node, output: &mut Output) {
    if let Some(cause) = modes.get("cause") {
        output.warn(one_line(text(cause, &[])));
    }
}

/// The update that switches to a mode.
pub(crate) fn switch(link: &mut dyn ServerLink, mode: &str, may_be_new: bool) -> Result<Update> {
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
    Ok(Update {
        new_state,
        masks,
        accepted,
        ..Update::default()
    })
}

/// Leaves the item of the mode out of an update in which it is as it is already, or is to be kept,
/// so that the update does not overwrite a switch that comes in between. Returns the text of a
/// switch that must not be. To create or delete the item is none: the server sees to it that no
/// workload names modes without it.
// [impl->swdd~cli-switches-no-mode-by-accident~1]
pub(crate) fn leave_out(update: &mut Update, link: &mut dyn ServerLink) -> Result<Option<String>> {
    let Some(keeps) = update.keeps_mode else {
        return Ok(None);
    };
    let state = link.complete_state(&[PART, "desiredState.configs"])?;
    let Some((modes, _)) = of_server(&state) else {
        return Ok(None);
    };
    let path = ["desiredState", "configs", text(modes, &["configItem"])];
    let names = entries(state.at(&path[..2])).chain(entries(update.new_state.at(&path[..2])));
    let others = names
        .filter(|(name, _)| *name != path[2])
        .map(|(name, _)| format!("desiredState.configs.{name}"));
    let others: Vec<String> = others.collect();
    let without_item = |mask: &String| match parts(mask)[..] {
        ["desiredState"] => [&others[..], &["desiredState.workloads".to_owned()]].concat(),
        ["desiredState", "configs"] => others.clone(),
        ref place if *place == path => Vec::new(),
        _ => vec![mask.clone()],
    };
    let masks: Vec<String> = update.masks.iter().flat_map(without_item).collect();
    let (old, new) = (modes.get("current"), update.new_state.at(&path));
    if !keeps && old != new {
        let is_switch = old.and(new).is_some() && masks != update.masks;
        let (old, new) = (text(modes, &["current"]), text(&update.new_state, &path));
        return Ok(
            is_switch.then(|| format!("This would switch the mode from '{old}' to '{new}'."))
        );
    }
    update.masks = masks;
    update
        .new_state
        .at_mut(&path[..2])
        .and_then(Node::as_map_mut)
        .map(|configs| configs.remove(path[2]));
    Ok(None)
}

/// Of more warnings only the number is shown.
const WARNINGS_SHOWN: usize = 10;
/// What is read besides the modes for checks: what an update does not send.
const CHECK_MASKS: [&str; 3] = [
    PART,
    "desiredState.workloads.*.tags",
    "desiredState.workloads.*.dependencies",
];

type TaggedWorkloads<'s> = BTreeMap<&'s str, &'s Node>;

/// Checks the workloads of an update to `new_state` if one has the tag `modes`. A server without
/// modes would run all of them at once, so nothing is sent to it; a server with modes accepts what
/// probably is a mistake, so that is only warned of.
// [impl->swdd~cli-modes-need-a-server-with-modes~1]
pub(crate) fn check(
    new_state: &Node,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let sent: TaggedWorkloads<'_> =
        entries(new_state.at(&["desiredState", "workloads"])).collect_entries();
    let with_tag = |tag| {
        let tagged = sent
            .iter()
            .filter(move |(_, workload)| workload.at(&["tags", tag]).is_some());
        tagged.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let tagged = with_tag(MODES_TAG);
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
    warnings.extend((more > 0).then(|| format!("and {more} more of these")));
    if let (Some(name), None) = (with_tag(ESSENTIAL_TAG).first(), modes.get("onFailure")) {
        warnings.push(format!(
            "the tag 'essential' of workload '{name}' does nothing: this server has no mode for failures"
        ));
    }
    warnings
        .iter()
        .for_each(|warning| output.warn(one_line(warning)));
    Ok(())
}

/// A mode that only one workload names, although it resembles another one, is probably misspelt.
fn unknown_modes(modes: &Node, known: &[&str], new_state: &Node) -> Vec<String> {
    let mut known: BTreeSet<&str> = known.iter().copied().collect_entries();
    // The mode that this update switches to, and those that several workloads name.
    let item = ["desiredState", "configs", text(modes, &["configItem"])];
    known.extend(new_state.at(&item).and_then(Node::as_text));
    let mut seen = BTreeSet::new();
    for (_, mode) in named(new_state, "desiredState") {
        if !seen.insert(mode) {
            known.insert(mode);
        }
    }
    let mut misspelt = Vec::new();
    for (name, mode) in named(new_state, "desiredState") {
        if known.contains(mode) {
            continue;
        }
        let meant = meant(mode, known.iter().copied());
        if !meant.is_empty() {
            misspelt.push(format!(
                "mode '{mode}' of workload '{name}' is not known{meant}"
            ));
        }
    }
    misspelt
}

/// The modes of a workload; `None` for one that is in every mode.
fn modes_of(workload: &Node) -> Option<BTreeSet<&str>> {
    workload
        .at(&["tags", MODES_TAG])
        .and_then(Node::as_text)
        .map(|tag| mode_names(tag).collect_entries())
}

/// Each sent workload that is in a mode in which a workload that it needs is not, and each other
/// one that needs a sent one.
fn unmet_needs(known: &[&str], state: &Node, sent: &TaggedWorkloads<'_>) -> Vec<String> {
    let all: TaggedWorkloads<'_> = entries(state.at(&["desiredState", "workloads"]))
        .chain(sent.clone())
        .collect_entries();
    let named = all
        .values()
        .filter_map(|workload| modes_of(workload))
        .flatten();
    let every: BTreeSet<&str> = known.iter().copied().chain(named).collect_entries();
    let mut warnings = Vec::new();
    for (name, workload) in &all {
        for (needed, _) in workload.entries("dependencies") {
            let Some((needed, other)) = all.get_key_value(needed) else {
                continue;
            };
            if !sent.contains_key(name) && !sent.contains_key(needed) {
                continue;
            }
            let Some(there) = modes_of(other) else {
                continue;
            };
            let own = modes_of(workload).unwrap_or_else(|| every.clone());
            let without: Vec<&str> = own.difference(&there).copied().collect();
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
