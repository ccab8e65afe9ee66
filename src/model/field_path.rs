//! Field masks: read, write, remove and expand paths in a field tree (spec/server.md sections 7 and 8.2).
//!
//! Thread: none, plain functions.

use super::node::Node;
use std::collections::BTreeMap;

/// Stands for every key of the map at its level, in masks that read.
pub const WILDCARD: &str = "*";

/// Splits a mask at its dots. There is no escaping, so a key that contains a dot cannot be addressed.
#[must_use]
pub fn parts(mask: &str) -> Vec<&str> {
    mask.split('.').collect()
}

/// Copies what `masks` select from `tree` into a new tree. What does not exist is left out silently.
// [impl->swdd~server-filters-get-complete-state-result~2]
#[must_use]
pub fn select<'m>(tree: &Node, masks: impl IntoIterator<Item = &'m str>) -> Node {
    let mut selected = Node::empty();
    for mask in masks.into_iter().filter(|mask| !mask.is_empty()) {
        copy_matches(tree, &mut selected, &parts(mask));
    }
    selected
}

/// Copies every node that `path` leads to from `source` to the same place in `target`.
fn copy_matches(source: &Node, target: &mut Node, path: &[&str]) {
    let Some((key, rest)) = path.split_first() else {
        *target = source.clone();
        return;
    };
    let Node::Map(entries) = source else { return };
    let matches: Vec<(&String, &Node)> =
        if *key == WILDCARD { entries.iter().collect() } else { entries.get_key_value(*key).into_iter().collect() };
    for (name, node) in matches {
        if !leads_somewhere(node, rest) {
            continue; // Or the target would get empty maps on the way to nothing.
        }
        if !matches!(target, Node::Map(_)) {
            return; // A shorter mask has copied a list or scalar here already.
        }
        if let Node::Map(map) = target {
            copy_matches(node, map.entry(name.clone()).or_default(), rest);
        }
    }
}

/// Whether `path` leads to at least one node below `node`.
fn leads_somewhere(node: &Node, path: &[&str]) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    let Node::Map(entries) = node else { return false };
    if *key == WILDCARD {
        entries.values().any(|child| leads_somewhere(child, rest))
    } else {
        entries.get(*key).is_some_and(|child| leads_somewhere(child, rest))
    }
}

/// The place that a mask names cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Could not find field {mask}")]
pub struct FieldNotFound {
    /// The mask as the user wrote it.
    pub mask: String,
}

/// Makes `tree` agree with `new` at `mask`: replaces the whole node when `new` has one there, removes it otherwise.
///
/// `*` is an ordinary key here. Missing maps on the way are created only when there is something to put there.
///
/// # Errors
/// [`FieldNotFound`] when the mask is empty, when it leads through something that is not a map, or when what
/// should be removed has no parent.
// [impl->swdd~update-desired-state-with-update-mask~1]
pub fn apply(tree: &mut Node, new: &Node, mask: &str) -> Result<(), FieldNotFound> {
    let failed = || FieldNotFound { mask: mask.to_owned() };
    if mask.is_empty() {
        return Err(failed());
    }
    let path = parts(mask);
    let (last, parents) = path.split_last().ok_or_else(failed)?;
    let value = new.at(&path);
    let mut place = tree;
    for key in parents {
        let Node::Map(entries) = place else { return Err(failed()) };
        place = if value.is_some() {
            entries.entry((*key).to_owned()).or_default()
        } else {
            entries.get_mut(*key).ok_or_else(failed)?
        };
    }
    let Node::Map(entries) = place else { return Err(failed()) };
    match value {
        Some(node) => entries.insert((*last).to_owned(), node.clone()),
        None => entries.remove(*last),
    };
    Ok(())
}

/// Removes maps and lists that are empty, at any depth below `node`, unless `keep` says the key stays.
pub fn prune(node: &mut Node, keep: &dyn Fn(&str) -> bool) {
    if let Node::Map(entries) = node {
        for child in entries.values_mut() {
            prune(child, keep);
        }
        let pruned: BTreeMap<String, Node> = std::mem::take(entries)
            .into_iter()
            .filter(|(key, child)| keep(key) || !child.is_empty_container())
            .collect();
        *entries = pruned;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Node {
        let workload = |agent: &str| {
            Node::map([
                ("agent", Node::text(agent)),
                ("tags", Node::map([("owner", Node::text("me"))])),
                ("files", Node::List(vec![Node::text("f")])),
            ])
        };
        let workloads = Node::map([("a", workload("A")), ("b", workload("B"))]);
        Node::map([("desiredState", Node::map([("workloads", workloads)])), ("agents", Node::empty())])
    }

    // [utest->swdd~server-filters-get-complete-state-result~2]
    #[test]
    fn reading_masks_select_existing_nodes_only() {
        for (masks, expected) in [
            (vec!["desiredState.workloads.a.agent"], r#"{"desiredState":{"workloads":{"a":{"agent":"A"}}}}"#),
            (
                vec!["desiredState.workloads.*.tags.owner"],
                r#"{"desiredState":{"workloads":{"a":{"tags":{"owner":"me"}},"b":{"tags":{"owner":"me"}}}}}"#,
            ),
            (vec!["desiredState.workloads.zzz"], "{}"),
            (vec!["desiredState.workloads.zzz.agent"], "{}"),
            (vec!["nonexistent", ""], "{}"),
            (vec!["agents"], r#"{"agents":{}}"#),
            (vec!["desiredState.workloads.a.files.0"], "{}"),
            (
                vec!["desiredState.workloads.a.files", "desiredState.workloads.a.files.0"],
                r#"{"desiredState":{"workloads":{"a":{"files":["f"]}}}}"#,
            ),
            (
                vec!["desiredState.workloads.a.agent", "", "desiredState.workloads.b.agent"],
                r#"{"desiredState":{"workloads":{"a":{"agent":"A"},"b":{"agent":"B"}}}}"#,
            ),
        ] {
            let selected = select(&tree(), masks.iter().copied());
            assert_eq!(serde_json::to_string(&selected).unwrap(), expected, "{masks:?}");
        }
        assert_eq!(select(&tree(), ["*"]), tree());
    }

    // [utest->swdd~update-desired-state-with-update-mask~1]
    #[test]
    fn writing_masks_replace_create_and_remove() {
        let new = Node::map([(
            "desiredState",
            Node::map([("workloads", Node::map([("a", Node::map([("tags", Node::map([("t", Node::text("1"))]))]))]))]),
        )]);
        for (mask, outcome, path, expected) in [
            ("desiredState.workloads.a.tags.t", Ok::<(), ()>(()), vec!["a", "tags", "owner"], Some("me")),
            ("desiredState.workloads.a.tags", Ok(()), vec!["a", "tags", "owner"], None),
            ("desiredState.workloads.a.agent", Ok(()), vec!["a", "agent"], None),
            ("desiredState.workloads.zz", Ok(()), vec!["a", "agent"], Some("A")),
            ("desiredState.workloads.zz.agent", Err(()), vec!["a", "agent"], Some("A")),
            ("desiredState.workloads.a.files.0", Err(()), vec!["a", "agent"], Some("A")),
            ("", Err(()), vec!["a", "agent"], Some("A")),
            ("foo", Ok(()), vec!["a", "agent"], Some("A")),
            ("foo.bar", Err(()), vec!["a", "agent"], Some("A")),
        ] {
            let mut current = tree();
            let result = apply(&mut current, &new, mask);
            assert_eq!(result.is_ok(), outcome.is_ok(), "{mask:?}");
            if let Err(error) = result {
                assert_eq!(error.to_string(), format!("Could not find field {mask}"));
            }
            let full: Vec<&str> = ["desiredState", "workloads"].into_iter().chain(path).collect();
            assert_eq!(current.at(&full).and_then(Node::as_text), expected, "{mask:?}");
        }
    }
}
