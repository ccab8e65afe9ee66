//! `ank apply --prune` and `ank diff --prune`: deletes in the same update what the manifests do not
//! name.
//!
//! Thread: `main`; `cli:ask` reads the answer to the question. Takes: the update of the manifests,
//! and the names in the desired state. Gives: the update with further masks, one for each workload
//! and config that it deletes, so that nothing else can be deleted.

use super::args::PruneArguments;
use super::error::{CliError, Result, counted};
use super::modes;
use super::output::{Output, one_line, some_of};
use super::rows::{entries, has_tags, text};
use super::session::{CliUpdate, ServerLink};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// The parts of the state that decide about deletions. A server without modes has no
/// [`modes::PART`].
const MASKS: [&str; 6] = [
    "desiredState.workloads.*.agent",
    "desiredState.workloads.*.runtime",
    "desiredState.workloads.*.tags",
    "desiredState.workloads.*.configs",
    "desiredState.configs",
    modes::PART,
];

/// What an update deletes because no manifest names it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    workloads: BTreeSet<String>,
    configs: BTreeSet<String>,
    /// The text that asks for a confirmation; `None` if little is deleted.
    question: Option<String>,
}

/// Makes an update also delete the objects that its manifests do not name.
///
/// # Errors
/// The manifests name no workload, so that all would be deleted.
// [impl->swdd~cli-prunes-what-manifests-do-not-name~1]
pub(crate) fn extend(
    update: &mut CliUpdate,
    arguments: &PruneArguments,
    link: &mut dyn ServerLink,
) -> Result<Pruned> {
    if !arguments.prune {
        return Ok(Pruned::default());
    }
    let mut workloads = entries(update.new_state.at(&["desiredState", "workloads"]));
    if workloads.next().is_none() {
        return Err(CliError::input(
            "The manifests name no workload, so '--prune' would delete all.",
            "nothing was changed; 'ank delete workload NAME...' deletes workloads",
        ));
    }
    let state = link.complete_state(&MASKS)?;
    let pruned = Pruned::of(&state, &update.new_state, &arguments.tags);
    for name in &pruned.configs {
        update.masks.push(format!("desiredState.configs.{name}"));
    }
    for name in &pruned.workloads {
        update.masks.push(format!("desiredState.workloads.{name}"));
    }
    update.masks.sort_unstable();
    Ok(pruned)
}

/// Prints the names of the deleted objects. On a terminal, asks before much is deleted.
///
/// # Errors
/// The answer is not yes.
pub(crate) fn confirm(
    pruned: &Pruned,
    is_confirmed: bool,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    if pruned.workloads.is_empty() && pruned.configs.is_empty() {
        return Ok(());
    }
    output.status(&pruned.text())?;
    let Some(question) = &pruned.question else {
        return Ok(());
    };
    if is_confirmed || !output.can_ask {
        return Ok(());
    }
    output.ask(format_args!("{question} Delete them? [y/N] "));
    let answer = link.read_line()?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(CliError::input(
        "The deletion was not confirmed.",
        "nothing was changed; 'ank diff --prune' shows what would be deleted, '--yes' confirms it",
    ))
}

impl Pruned {
    /// The objects of the desired state that are not in `new`, the state of the manifests. With
    /// `tags` only workloads that have all of them, and the configs that these used.
    fn of(state: &Node, new: &Node, tags: &[(String, String)]) -> Self {
        let old_workloads: BTreeMap<&str, &Node> =
            entries(state.at(&["desiredState", "workloads"])).collect_entries();
        let new_workloads: BTreeMap<&str, &Node> =
            entries(new.at(&["desiredState", "workloads"])).collect_entries();

        // First the workloads that no manifest names.
        let mut workloads = BTreeSet::new();
        for (name, workload) in &old_workloads {
            if !new_workloads.contains_key(name) && has_tags(workload, tags) {
                workloads.insert((*name).to_owned());
            }
        }

        // Then the configs that are used after the update. The server itself uses the config of the
        // mode.
        let mut used = BTreeSet::from([text(state, &[modes::PART, "configItem"])]);
        for workload in new_workloads.values() {
            used.extend(configs_of(workload));
        }
        for (name, workload) in &old_workloads {
            // Neither deleted nor replaced.
            let stays = !workloads.contains(*name) && !new_workloads.contains_key(name);
            if stays {
                used.extend(configs_of(workload));
            }
        }
        // Finally the configs that are not used and that no manifest names. With tags, only those
        // of workloads with these tags.
        let mut used_with_tags = BTreeSet::new();
        for workload in old_workloads.values() {
            if has_tags(workload, tags) {
                used_with_tags.extend(configs_of(workload));
            }
        }
        let mut configs = BTreeSet::new();
        for (name, _) in entries(state.at(&["desiredState", "configs"])) {
            let is_named = new.at(&["desiredState", "configs", name]).is_some();
            let is_in_scope = tags.is_empty() || used_with_tags.contains(name);
            if is_in_scope && !is_named && !used.contains(name) {
                configs.insert(name.to_owned());
            }
        }
        let question = question(&old_workloads, &new_workloads, &workloads);
        Self {
            workloads,
            configs,
            question,
        }
    }

    /// The text about the deletions, with the first names.
    fn text(&self) -> String {
        let mut parts = Vec::new();
        for (names, what) in [(&self.workloads, "workload"), (&self.configs, "config")] {
            if names.is_empty() {
                continue;
            }
            let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
            let plural = if names.len() == 1 { "" } else { "s" };
            let shown = some_of(quoted.iter().map(String::as_str));
            parts.push(format!("{what}{plural} {shown}"));
        }
        one_line(&format!(
            "Deleting what the manifests do not name: {}.",
            parts.join(" and ")
        ))
    }
}

fn configs_of(workload: &Node) -> impl Iterator<Item = &str> {
    workload
        .entries("configs")
        .map(|(_, config)| text(config, &[]))
}

/// The question before much is deleted: more than half of all workloads, or all of an agent.
fn question(
    old: &BTreeMap<&str, &Node>,
    new: &BTreeMap<&str, &Node>,
    pruned: &BTreeSet<String>,
) -> Option<String> {
    if pruned.len() * 2 > old.len() {
        let all = counted(old.len(), "workload");
        return Some(format!("This deletes {} of {all}.", pruned.len()));
    }
    // The agents that still have workloads.
    let mut left = BTreeSet::new();
    for workload in new.values() {
        left.insert(text(workload, &["agent"]));
    }
    for (name, workload) in old {
        let stays = !pruned.contains(*name) && !new.contains_key(name);
        if stays {
            left.insert(text(workload, &["agent"]));
        }
    }
    for name in pruned {
        let Some(workload) = old.get(name.as_str()) else {
            continue;
        };
        let agent = text(workload, &["agent"]);
        if !agent.is_empty() && !left.contains(agent) {
            return Some(one_line(&format!(
                "This deletes all workloads of agent '{agent}'."
            )));
        }
    }
    None
}

#[cfg(test)]
mod tests;
