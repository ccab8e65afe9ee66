//! Guarded updates, which are read by name only.
//!
//! Thread: whichever reads or writes the stream.

use super::{ConvertError, write_map};
use crate::model::node::Node;
use crate::wire::schema::ank_base as base;

/// The tree of all updates, by number; `state` reads what was desired before.
///
/// # Errors
/// Those of `state`.
pub fn read(
    updates: &base::UpdateMap,
    state: impl Fn(&base::State) -> Result<Node, ConvertError>,
) -> Result<Node, ConvertError> {
    let update = |(number, update): (&String, &_)| Ok((number.clone(), read_update(update, &state)?));
    updates.updates.iter().map(update).collect::<Result<_, _>>().map(Node::Map)
}

/// The message of a tree that may be partial; `state` writes what was desired before.
pub fn write(tree: &Node, state: impl Fn(&Node) -> base::State) -> base::UpdateMap {
    base::UpdateMap { updates: write_map(tree, |update| write_update(update, &state)), ..Default::default() }
}

fn read_update(
    update: &base::GuardedUpdate,
    state: impl Fn(&base::State) -> Result<Node, ConvertError>,
) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    for (key, text) in [
        ("phase", &update.phase),
        ("reason", &update.reason),
        ("accepted", &update.accepted),
        ("ended", &update.ended),
        ("replacedBy", &update.replacedBy),
        ("keptIn", &update.keptIn),
    ] {
        entries.extend(text.as_ref().map(|text| (key, Node::text(text))));
    }
    entries.extend(update.losses.map(|count| ("losses", Node::Number(count.into()))));
    if !update.waitsFor.is_empty() {
        entries.push(("waitsFor", Node::List(update.waitsFor.iter().map(Node::text).collect())));
    }
    if let Some(before) = update.before.as_ref() {
        entries.push(("before", state(before)?));
    }
    let texts = |texts: &[(&str, &Option<String>)]| {
        Node::map(texts.iter().filter_map(|(key, text)| Some((*key, Node::text(text.as_ref()?)))))
    };
    if !update.workloads.is_empty() {
        let workload = |it: &base::UpdatedWorkload| {
            texts(&[("old", &it.oldInstance), ("new", &it.newInstance), ("after", &it.after)])
        };
        entries.push(("workloads", Node::map(update.workloads.iter().map(|(name, it)| (name, workload(it))))));
    }
    if !update.configs.is_empty() {
        let config = |config: &base::UpdatedConfig| texts(&[("after", &config.after)]);
        entries.push(("configs", Node::map(update.configs.iter().map(|(key, it)| (key, config(it))))));
    }
    Ok(Node::map(entries))
}

fn write_update(node: &Node, state: impl Fn(&Node) -> base::State) -> base::GuardedUpdate {
    let text = |key: &str| part(node, key);
    let waits_for = node.get("waitsFor").and_then(Node::as_list).unwrap_or_default();
    let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
    let workload = |node: &Node| base::UpdatedWorkload {
        oldInstance: part(node, "old"),
        newInstance: part(node, "new"),
        after: part(node, "after"),
        ..Default::default()
    };
    let config = |node: &Node| base::UpdatedConfig { after: part(node, "after"), ..Default::default() };
    base::GuardedUpdate {
        phase: text("phase"),
        reason: text("reason"),
        accepted: text("accepted"),
        ended: text("ended"),
        losses: node.get("losses").and_then(Node::as_number).map(count),
        waitsFor: waits_for.iter().filter_map(Node::as_text).map(str::to_owned).collect(),
        before: node.get("before").map(state).into(),
        workloads: node.get("workloads").map(|node| write_map(node, workload)).unwrap_or_default(),
        configs: node.get("configs").map(|node| write_map(node, config)).unwrap_or_default(),
        replacedBy: text("replacedBy"),
        keptIn: text("keptIn"),
        ..Default::default()
    }
}

fn part(node: &Node, key: &str) -> Option<String> {
    Some(node.get(key)?.as_text()?.to_owned())
}
