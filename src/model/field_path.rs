//! Field masks: write and remove at paths in a field tree. Reads are in `mask_tree`.
//!
//! Thread: none, plain functions.

use super::names::excerpt;
use super::node::Node;
use std::collections::HashSet;

/// Stands for every key of the map at its level, in masks that read.
pub const WILDCARD: &str = "*";

/// Splits a mask at its dots. There is no escaping, so a key that contains a dot cannot be addressed.
#[must_use]
pub fn parts(mask: &str) -> Vec<&str> {
    mask.split('.').collect()
}

/// The place that a mask names cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Could not find field {}", excerpt(mask))]
pub struct FieldNotFound {
    /// The mask as the user wrote it.
    pub mask: String,
}

/// Makes `tree` agree with `new` at each of `masks`, one after the other: replaces the whole node when `new` has one
/// there, removes it otherwise.
///
/// `*` is an ordinary key here. In `new` the index of an entry leads into a list, as in Eclipse Ankaios; in `tree` nothing
/// does, so it becomes a key there where there was nothing. Missing maps on the way are created only when there is something to put there. What
/// several masks lead to is copied once, however they overlap.
///
/// # Errors
/// [`FieldNotFound`] when a mask is empty, when it leads through something that is not a map, or when what should be
/// removed has no parent; `tree` may have been changed in part then.
// [impl->swdd~update-desired-state-with-update-mask~1]
pub fn apply<'m>(tree: &mut Node, new: &Node, masks: impl IntoIterator<Item = &'m str>) -> Result<(), FieldNotFound> {
    // A place that was put agrees with `new` until the end, whatever other masks do: so it holds nothing until then, and
    // what masks find below it stands in `new`.
    let mut put: HashSet<Vec<&str>> = HashSet::new();
    for mask in masks {
        let failed = || FieldNotFound { mask: mask.to_owned() };
        if mask.is_empty() {
            return Err(failed());
        }
        let path = parts(mask);
        let (last, parents) = path.split_last().ok_or_else(failed)?;
        let exists = value_at(new, &path).is_some();
        if let Some(whole) = place_above(&put, new, &path) {
            // What was put is as in `new`: a list in it is one.
            let parent = value_at(new, &path[..whole]).and_then(|node| node.at(parents.get(whole..)?));
            if parents.len() >= whole && !matches!(parent, Some(Node::Map(_))) {
                return Err(failed());
            }
            continue;
        }
        let mut place = &mut *tree;
        for key in parents {
            let Node::Map(entries) = place else { return Err(failed()) };
            place = if exists { entries.child((*key).to_owned()) } else { entries.get_mut(key).ok_or_else(failed)? };
        }
        let Node::Map(entries) = place else { return Err(failed()) };
        if exists {
            entries.insert((*last).to_owned(), Node::empty());
            put.insert(path);
        } else {
            entries.remove(last);
        }
    }
    for path in &put {
        if let Some((last, parents)) = path.split_last()
            && place_above(&put, new, parents).is_none()
            && let (Some(Node::Map(entries)), Some(node)) = (tree.at_mut(parents), value_at(new, path))
        {
            entries.insert((*last).to_owned(), node.clone());
        }
    }
    Ok(())
}

/// How many parts of `path` lead to the first of the places in `put`, all of which exist in `new`, that it leads to or
/// through.
fn place_above(put: &HashSet<Vec<&str>>, new: &Node, path: &[&str]) -> Option<usize> {
    let mut node = new;
    for length in 1..=path.len() {
        node = child(node, path[length - 1])?;
        if put.contains(&path[..length]) {
            return Some(length);
        }
    }
    None
}

/// What a new state has at a path, which may lead into lists by index.
pub fn value_at<'n>(new: &'n Node, path: &[&str]) -> Option<&'n Node> {
    path.iter().try_fold(new, |node, key| child(node, key))
}

fn child<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    match node {
        Node::List(entries) => entries.get(key.parse::<usize>().ok()?),
        _ => node.get(key),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What [`apply`] does for one mask, without regard to others.
    pub(crate) fn apply_one(tree: &mut Node, new: &Node, mask: &str) -> Option<()> {
        let path = parts(mask);
        let (last, parents) = path.split_last().filter(|_| !mask.is_empty())?;
        let value = value_at(new, &path);
        let mut place = tree;
        for key in parents {
            let entries = place.as_map_mut()?;
            place = if value.is_some() { entries.child((*key).to_owned()) } else { entries.get_mut(key)? };
        }
        let entries = place.as_map_mut()?;
        match value {
            Some(node) => drop(entries.insert((*last).to_owned(), node.clone())),
            None => drop(entries.remove(last)),
        }
        Some(())
    }

    pub(in crate::model) fn random_tree(random: &mut fastrand::Rng, depth: usize) -> Node {
        if depth == 0 || random.usize(..5) == 0 {
            return Node::text(random.u8(..3).to_string());
        }
        if random.usize(..6) == 0 {
            return Node::List((0..random.usize(..3)).map(|_| random_tree(random, depth - 1)).collect());
        }
        let keys = ["a", "b", "0"].into_iter().filter(|_| random.usize(..3) > 0).collect::<Vec<_>>();
        Node::map(keys.into_iter().map(|key| (key, random_tree(random, depth - 1))))
    }

    // [utest->swdd~update-desired-state-with-update-mask~1]
    #[test]
    fn masks_that_overlap_lead_to_the_same_as_one_after_the_other() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut applied, mut refused) = (0, 0);
        for round in 0..40_000 {
            let (old, new) = (random_tree(&mut random, 4), random_tree(&mut random, 4));
            let mask = |random: &mut fastrand::Rng| {
                let parts: Vec<&str> = (0..=random.usize(..4))
                    .map(|_| *random.choice(["a", "b", "0", "1", "00"].as_slice()).unwrap())
                    .collect();
                parts.join(".")
            };
            let masks: Vec<String> = (0..=random.usize(..5)).map(|_| mask(&mut random)).collect();
            let (mut expected, mut result) = (old.clone(), old);
            let one_by_one = masks.iter().try_for_each(|mask| apply_one(&mut expected, &new, mask).ok_or(mask));
            let at_once = apply(&mut result, &new, masks.iter().map(String::as_str));
            assert_eq!(
                at_once.as_ref().map_err(|error| &error.mask),
                one_by_one.as_ref().map_err(|mask| *mask),
                "{round}"
            );
            if at_once.is_ok() {
                assert_eq!(result, expected, "round {round}: {masks:?} of {new:?}");
                applied += 1;
            } else {
                refused += 1;
            }
        }
        assert!(applied > 2000 && refused > 2000, "{applied} {refused}");
    }
}
