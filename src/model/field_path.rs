//! Field masks: read, write, remove and expand paths in a field tree (spec/server.md sections 7 and 8.2).
//!
//! Thread: none, plain functions.

use super::names::excerpt;
use super::node::Node;
use crate::limits::MASK_PARTS_MAX;
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

/// Many reading masks as one tree, so that a state is walked once however many masks there are.
#[derive(Debug, Default)]
pub struct MaskTree {
    ends_here: bool,
    below: BTreeMap<String, MaskTree>,
}

impl MaskTree {
    /// Joins `masks`. Empty ones select nothing; those with more than [`MASK_PARTS_MAX`] parts cannot match
    /// anything, and leaving them out bounds every recursion over the tree.
    pub fn new<'m>(masks: impl IntoIterator<Item = &'m str>) -> Self {
        let mut root = Self::default();
        for mask in masks.into_iter().filter(|mask| !mask.is_empty()) {
            if mask.split('.').nth(MASK_PARTS_MAX).is_none() {
                root.insert(mask.split('.'));
            }
        }
        root
    }

    /// Joins paths whose keys may contain dots.
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p [String]>) -> Self {
        let mut root = Self::default();
        for path in paths.into_iter().filter(|path| path.len() <= MASK_PARTS_MAX) {
            root.insert(path.iter().map(String::as_str));
        }
        root
    }

    fn insert<'p>(&mut self, parts: impl Iterator<Item = &'p str>) {
        let mut place = self;
        for part in parts {
            place = place.below.entry(part.to_owned()).or_default();
        }
        place.ends_here = true;
    }

    /// The position of all masks at their beginning.
    #[must_use]
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted { places: vec![self] }
    }
}

/// A position in all masks of a [`MaskTree`] that lead to the same node.
#[derive(Debug)]
pub struct Wanted<'m> {
    places: Vec<&'m MaskTree>,
}

/// Which entries of a map are wanted.
#[derive(Debug, PartialEq, Eq)]
pub enum Keys<'m> {
    /// All that exist.
    All,
    /// These, sorted, if they exist.
    Named(Vec<&'m str>),
}

impl<'m> Wanted<'m> {
    /// Whether no mask leads here.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether the node itself is wanted with everything below it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.places.iter().any(|place| place.ends_here)
    }

    /// What is wanted of the entry `key`; everything of it when the node itself is wanted as a whole.
    #[must_use]
    pub fn below(&self, key: &str) -> Wanted<'m> {
        let follow = |place: &&'m MaskTree| {
            if place.ends_here {
                return vec![*place];
            }
            [place.below.get(key), place.below.get(WILDCARD)].into_iter().flatten().collect()
        };
        // A wildcard as a literal key would be found twice.
        let mut places: Vec<&'m MaskTree> = self.places.iter().flat_map(follow).collect();
        places.dedup_by(|one, other| std::ptr::eq(*one, *other));
        Wanted { places }
    }

    /// Which entries are wanted, wholly or in part.
    #[must_use]
    pub fn keys(&self) -> Keys<'m> {
        if self.is_whole() || self.places.iter().any(|place| place.below.contains_key(WILDCARD)) {
            return Keys::All;
        }
        let mut names: Vec<&'m str> =
            self.places.iter().flat_map(|place| place.below.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        Keys::Named(names)
    }

    /// What is wanted of `node`; `None` when that is nothing.
    #[must_use]
    pub fn take(&self, node: Node) -> Option<Node> {
        if self.is_whole() {
            return Some(node);
        }
        let Node::Map(entries) = node else { return None };
        let kept: BTreeMap<String, Node> = entries
            .into_iter()
            .filter_map(|(key, child)| {
                let wanted = self.below(&key);
                if wanted.is_nothing() { None } else { Some((key, wanted.take(child)?)) }
            })
            .collect();
        (!kept.is_empty()).then_some(Node::Map(kept))
    }
}

/// The place that a mask names cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Could not find field {}", excerpt(mask))]
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

    #[test]
    fn a_tree_of_masks_selects_what_the_masks_select_one_by_one() {
        let long = ["x"; 10_000].join(".");
        for masks in [
            vec![],
            vec!["desiredState.workloads.a.agent"],
            vec!["desiredState.workloads.*.tags.owner", "agents"],
            vec!["desiredState.workloads.zzz.agent", "nonexistent", ""],
            vec!["desiredState.workloads.a.files.0", "desiredState.workloads.*.agent"],
            vec!["*"],
            vec!["*.*"],
            vec!["*.workloads.a", "desiredState.*.*.agent", "desiredState.workloads.b.tags"],
            vec!["desiredState.workloads.a", "desiredState.workloads.a.tags.owner"],
            vec!["desiredState..a", ".", "desiredState.", long.as_str()],
        ] {
            let tree_of_masks = MaskTree::new(masks.iter().copied());
            let selected = tree_of_masks.wanted().take(tree()).unwrap_or_default();
            assert_eq!(selected, select(&tree(), masks.iter().copied()), "{masks:.200?}");
        }
    }

    #[test]
    fn a_tree_of_masks_knows_which_entries_to_look_at() {
        let masks = MaskTree::new(["a.b", "a.c.d", "*.c", "x"]);
        assert_eq!(masks.wanted().keys(), Keys::All);
        assert_eq!(masks.wanted().below("a").keys(), Keys::Named(vec!["b", "c"]));
        assert_eq!(masks.wanted().below("other").keys(), Keys::Named(vec!["c"]));
        assert_eq!(masks.wanted().below("x").below("anything").keys(), Keys::All);
        assert!(masks.wanted().below("a").below("c").is_whole());
        assert!(masks.wanted().below("other").below("b").is_nothing());
        let literal = MaskTree::new(["*.a"]);
        assert_eq!(literal.wanted().below("*").places.len(), 1);
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
