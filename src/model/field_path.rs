//! Field masks: write and remove at paths in a field tree. Reads are in `mask_tree`.
//!
//! Thread: none, plain functions.

use super::names::{excerpt, has_name_characters};
use super::node::{Key, Node};
use std::collections::BTreeMap;

/// Stands for every key of the map at its level, in masks that read.
pub const WILDCARD: &str = "*";

/// Splits a mask at its dots. There is no escaping, so a key that contains a dot cannot be
/// addressed.
pub fn parts(mask: &str) -> Vec<&str> {
    mask.split('.').collect()
}

/// Returns whether this is a mask of an access rule: parts that are `*` or consist of name
/// characters.
pub(crate) fn is_filter_mask(mask: &str) -> bool {
    parts(mask).into_iter().all(is_filter_part)
}

fn is_filter_part(part: &str) -> bool {
    part == WILDCARD || (!part.is_empty() && has_name_characters(part))
}

/// A mask leads to no place of the tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Could not find field {}", excerpt(mask))]
pub struct FieldNotFound {
    /// The mask as the user wrote it.
    pub(crate) mask: String,
}

/// A tree under change. Maps that masks lead through are opened, so that no order of changes is
/// slow.
enum Place {
    Closed(Node),
    Open(BTreeMap<Key, Place>),
    /// The node of the new state, whatever other masks do. It is copied at the end, once.
    Put,
}

impl Place {
    /// Opens a map and returns its entries; `None` if this is not a map.
    fn open(&mut self) -> Option<&mut BTreeMap<Key, Self>> {
        if let Self::Closed(Node::Map(entries)) = self {
            let mut opened = BTreeMap::new();
            for (key, node) in std::mem::take(entries) {
                opened.insert(key, Self::Closed(node));
            }
            *self = Self::Open(opened);
        }
        match self {
            Self::Open(entries) => Some(entries),
            Self::Closed(_) | Self::Put => None,
        }
    }

    /// Turns the place into a node. `new` is the node of the new state at this place.
    fn close(self, new: Option<&Node>) -> Node {
        match self {
            Self::Closed(node) => node,
            Self::Put => new.cloned().unwrap_or_default(),
            Self::Open(entries) => {
                let mut closed = Vec::with_capacity(entries.len());
                for (key, place) in entries {
                    let new = new.and_then(|new| child(new, &key));
                    closed.push((key, place.close(new)));
                }
                Node::Map(closed.into_iter().collect())
            }
        }
    }
}

/// Makes `tree` agree with `new` at each of `masks`, one after the other: replaces the whole node
/// if `new` has one there, removes it otherwise.
///
/// `*` is an ordinary key here. In `new` the index of an entry leads into a list, as in Eclipse
/// Ankaios; in `tree` it does not, so it becomes a key there. Missing maps on the way are created
/// only for a node of `new`. A node that several masks select is copied once, however they overlap.
///
/// # Errors
/// [`FieldNotFound`] if a mask is empty, leads through something that is not a map, or removes
/// something that has no parent; `tree` is empty then.
// [impl->swdd~update-desired-state-with-update-mask~1]
pub fn apply<'m>(
    tree: &mut Node,
    new: &Node,
    masks: impl IntoIterator<Item = &'m str>,
) -> Result<(), FieldNotFound> {
    let mut top = Place::Closed(std::mem::take(tree));
    for mask in masks {
        let changed = match mask {
            "" => None,
            _ => apply_mask(&mut top, new, &parts(mask)),
        };
        if changed.is_none() {
            return Err(FieldNotFound {
                mask: mask.to_owned(),
            });
        }
    }
    *tree = top.close(Some(new));
    Ok(())
}

/// Applies one mask. Returns `None` if it leads to no place.
fn apply_mask(top: &mut Place, new: &Node, path: &[&str]) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let exists = value_at(new, path).is_some();
    // First go down to the parent, or to a node above it that is copied from `new` as a whole.
    let mut place = top;
    let mut depth = 0;
    while depth < parents.len() && !matches!(place, Place::Put) {
        let key = parents[depth];
        let entries = place.open()?;
        if exists && !entries.contains_key(key) {
            entries.insert(key.to_owned().into(), Place::Open(BTreeMap::new()));
        }
        place = entries.get_mut(key)?;
        depth += 1;
    }
    if matches!(place, Place::Put) {
        // The copy already agrees with `new`. The mask is still wrong if its parent in the copy is
        // not a map: as in `tree`, no index leads into a list there.
        let parent = value_at(new, &path[..depth])?.at(&parents[depth..])?;
        return parent.as_map().map(|_| ());
    }
    // Then change the last part.
    let entries = place.open()?;
    if exists {
        entries.insert((*last).to_owned().into(), Place::Put);
    } else {
        entries.remove(*last);
    }
    Some(())
}

/// Returns the node of a new state at a path, which may lead into lists by index.
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
pub(crate) use tests::random_tree;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    /// What [`apply`] does for one mask, without regard to others.
    pub(crate) fn apply_one(tree: &mut Node, new: &Node, mask: &str) -> Option<()> {
        let path = parts(mask);
        let (last, parents) = path.split_last().filter(|_| !mask.is_empty())?;
        let value = value_at(new, &path);
        let mut place = tree;
        for key in parents {
            let entries = place.as_map_mut()?;
            place = if value.is_some() {
                entries.child((*key).to_owned())
            } else {
                entries.get_mut(*key)?
            };
        }
        let entries = place.as_map_mut()?;
        match value {
            Some(node) => drop(entries.insert((*last).to_owned(), node.clone())),
            None => drop(entries.remove(*last)),
        }
        Some(())
    }

    pub(crate) fn random_tree(random: &mut fastrand::Rng, depth: usize) -> Node {
        if depth == 0 || random.usize(..5) == 0 {
            return Node::text(random.u8(..3).to_string());
        }
        if random.usize(..6) == 0 {
            return Node::List(
                (0..random.usize(..3))
                    .map(|_| random_tree(random, depth - 1))
                    .collect(),
            );
        }
        let keys = ["a", "b", "0"]
            .into_iter()
            .filter(|_| random.usize(..3) > 0)
            .collect::<Vec<_>>();
        Node::map(
            keys.into_iter()
                .map(|key| (key, random_tree(random, depth - 1))),
        )
    }

    #[test]
    fn a_hundred_thousand_keys_in_reverse_order_are_quick() {
        let names: Vec<String> = (0..100_000)
            .rev()
            .map(|number| format!("a.w{number:06}"))
            .collect();
        let all = Node::map([(
            "a",
            Node::map(names.iter().map(|name| (&name[2..], Node::text("x")))),
        )]);
        // Other load on the machine does not count.
        let cpu_seconds = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
        let begin = cpu_seconds();
        let mut tree = Node::empty();
        apply(&mut tree, &all, names.iter().map(String::as_str)).unwrap();
        assert_eq!(tree, all);
        apply(&mut tree, &Node::empty(), names.iter().map(String::as_str)).unwrap();
        assert_eq!(tree, Node::map([("a", Node::empty())]));
        let used = cpu_seconds() - begin;
        assert!(
            used < 20,
            "{used} s, where squares of the number would take many minutes"
        );
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
                    .map(|_| {
                        *random
                            .choice(["a", "b", "0", "1", "00"].as_slice())
                            .unwrap()
                    })
                    .collect();
                parts.join(".")
            };
            let masks: Vec<String> = (0..=random.usize(..5)).map(|_| mask(&mut random)).collect();
            let (mut expected, mut result) = (old.clone(), old);
            let one_by_one = masks
                .iter()
                .try_for_each(|mask| apply_one(&mut expected, &new, mask).ok_or(mask));
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
