//! The entries of a map in the field tree, sorted by key. Most maps have a handful: those are kept in one list without
//! room to spare, where a `BTreeMap` would take memory for eleven. Larger ones are a `BTreeMap`, so that no order of
//! changes is slow.
//!
//! Thread: none, plain values.

use super::Node;
use std::borrow::Cow;
use std::collections::{BTreeMap, btree_map};
use std::{slice, vec};

/// The name of an entry. Names of fields are literals and take no memory of their own.
pub type Key = Cow<'static, str>;

/// Up to so many entries are a list; to insert one there moves at most as many.
const LIST_MAX: usize = 32;

/// Nodes by key.
#[derive(Debug, Clone)]
pub struct Entries(Kept);

#[derive(Debug, Clone)]
enum Kept {
    List(Vec<(Key, Node)>),
    Tree(BTreeMap<Key, Node>),
}

use Kept::{List, Tree};

impl Default for Entries {
    fn default() -> Self {
        Self(List(Vec::new()))
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}

impl Entries {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            List(list) => list.len(),
            Tree(tree) => tree.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.0 {
            List(list) => position(list, key).ok().map(|index| &list[index].1),
            Tree(tree) => tree.get(key),
        }
    }

    /// The node of `key`, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.0 {
            List(list) => position(list, key).ok().map(|index| &mut list[index].1),
            Tree(tree) => tree.get_mut(key),
        }
    }

    /// Whether `key` is there.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The node of `key`; an empty map when there was none.
    pub fn child(&mut self, key: impl Into<Key>) -> &mut Node {
        let key = key.into();
        self.make_room();
        match &mut self.0 {
            List(list) => {
                let index = position(list, &key).unwrap_or_else(|index| {
                    list.insert(index, (key, Node::empty()));
                    index
                });
                &mut list[index].1
            }
            Tree(tree) => tree.entry(key).or_default(),
        }
    }

    /// Sets the node of `key`. Returns the one that it had.
    pub fn insert(&mut self, key: impl Into<Key>, node: Node) -> Option<Node> {
        let key = key.into();
        self.make_room();
        match &mut self.0 {
            List(list) => match position(list, &key) {
                Ok(index) => Some(std::mem::replace(&mut list[index].1, node)),
                Err(index) => {
                    list.insert(index, (key, node));
                    None
                }
            },
            Tree(tree) => tree.insert(key, node),
        }
    }

    /// Removes `key`. Returns the node that it had.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        match &mut self.0 {
            List(list) => position(list, key).ok().map(|index| list.remove(index).1),
            Tree(tree) => tree.remove(key),
        }
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Node) -> bool) {
        match &mut self.0 {
            List(list) => list.retain_mut(|(key, node)| keep(key, node)),
            Tree(tree) => tree.retain(|key, node| keep(key, node)),
        }
    }

    /// All of them, by key.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            List(list) => Either::List(list.iter().map(|(key, node)| (&**key, node))),
            Tree(tree) => Either::Tree(tree.iter().map(|(key, node)| (&**key, node))),
        }
    }

    /// All of them, by key, to be changed.
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        match &mut self.0 {
            List(list) => Either::List(list.iter_mut().map(|(key, node)| (&**key, node))),
            Tree(tree) => Either::Tree(tree.iter_mut().map(|(key, node)| (&**key, node))),
        }
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// All nodes, by key.
    pub fn values(&self) -> impl Iterator<Item = &Node> {
        self.iter().map(|(_, node)| node)
    }

    /// All nodes, by key, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.iter_mut().map(|(_, node)| node)
    }

    /// For how many there is room.
    #[must_use]
    pub fn places(&self) -> usize {
        /// A `BTreeMap` has room for so many at once, used or not.
        const BLOCK: usize = 11;
        match &self.0 {
            List(list) => list.capacity(),
            Tree(tree) => tree.len().div_ceil(BLOCK) * BLOCK,
        }
    }

    /// A list that may grow no more becomes a tree.
    fn make_room(&mut self) {
        if let List(list) = &mut self.0
            && list.len() >= LIST_MAX
        {
            self.0 = Tree(std::mem::take(list).into_iter().collect());
        }
    }
}

/// Where `key` is, or belongs.
fn position(list: &[(Key, Node)], key: &str) -> Result<usize, usize> {
    list.binary_search_by(|(other, _)| (**other).cmp(key))
}

/// Of entries with the same key the last one counts.
impl<K: Into<Key>> FromIterator<(K, Node)> for Entries {
    fn from_iter<I: IntoIterator<Item = (K, Node)>>(entries: I) -> Self {
        let mut list: Vec<(Key, Node)> = entries.into_iter().map(|(key, node)| (key.into(), node)).collect();
        if list.len() > LIST_MAX {
            return Self(Tree(list.into_iter().collect()));
        }
        list.sort_by(|(key, _), (other, _)| key.cmp(other));
        list.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Self(List(list))
    }
}

impl<K: Into<Key>> Extend<(K, Node)> for Entries {
    fn extend<I: IntoIterator<Item = (K, Node)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, node)| _ = self.insert(key, node));
    }
}

/// Iterates over a list or a tree.
#[derive(Debug)]
pub enum Either<L, T> {
    /// Over a list.
    List(L),
    /// Over a tree.
    Tree(T),
}

impl<L: Iterator, T: Iterator<Item = L::Item>> Iterator for Either<L, T> {
    type Item = L::Item;

    fn next(&mut self) -> Option<L::Item> {
        match self {
            Self::List(list) => list.next(),
            Self::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::List(list) => list.size_hint(),
            Self::Tree(tree) => tree.size_hint(),
        }
    }
}

type Over<I, From, To> = std::iter::Map<I, fn(From) -> To>;
/// Keys and nodes.
pub type Iter<'n> = Either<
    Over<slice::Iter<'n, (Key, Node)>, &'n (Key, Node), (&'n str, &'n Node)>,
    Over<btree_map::Iter<'n, Key, Node>, (&'n Key, &'n Node), (&'n str, &'n Node)>,
>;
/// Keys and nodes to be changed.
pub type IterMut<'n> = Either<
    Over<slice::IterMut<'n, (Key, Node)>, &'n mut (Key, Node), (&'n str, &'n mut Node)>,
    Over<btree_map::IterMut<'n, Key, Node>, (&'n Key, &'n mut Node), (&'n str, &'n mut Node)>,
>;

impl IntoIterator for Entries {
    type Item = (Key, Node);
    type IntoIter = Either<vec::IntoIter<(Key, Node)>, btree_map::IntoIter<Key, Node>>;

    fn into_iter(self) -> Self::IntoIter {
        match self.0 {
            List(list) => Either::List(list.into_iter()),
            Tree(tree) => Either::Tree(tree.into_iter()),
        }
    }
}

impl<'n> IntoIterator for &'n Entries {
    type Item = (&'n str, &'n Node);
    type IntoIter = Iter<'n>;

    fn into_iter(self) -> Iter<'n> {
        self.iter()
    }
}

impl<'n> IntoIterator for &'n mut Entries {
    type Item = (&'n str, &'n mut Node);
    type IntoIter = IterMut<'n>;

    fn into_iter(self) -> IterMut<'n> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is done, in whatever order, the entries are those of a `BTreeMap`.
    #[test]
    fn entries_are_a_sorted_map_of_any_size() {
        let mut random = fastrand::Rng::with_seed(1);
        for keys in [3, LIST_MAX, 3 * LIST_MAX] {
            let (mut entries, mut expected) = (Entries::default(), BTreeMap::<String, Node>::new());
            for number in 0..20 * keys as u64 {
                let (key, node) = (random.usize(..keys).to_string(), Node::Number(number));
                match random.u8(..8) {
                    0 => assert_eq!(entries.remove(&key), expected.remove(&key)),
                    1 => assert_eq!(entries.child(key.clone()), expected.entry(key).or_default()),
                    2 => {
                        entries.retain(|other, _| other != key);
                        expected.retain(|other, _| *other != key);
                    }
                    3 => {
                        entries.values_mut().for_each(|other| *other = node.clone());
                        expected.values_mut().for_each(|other| *other = node.clone());
                    }
                    _ => assert_eq!(entries.insert(key.clone(), node.clone()), expected.insert(key, node)),
                }
                assert!(entries.iter().eq(expected.iter().map(|(key, node)| (key.as_str(), node))));
                assert_eq!(entries.len(), expected.len());
                let key = random.usize(..keys).to_string();
                assert_eq!(
                    (entries.get(&key), entries.contains_key(&key)),
                    (expected.get(&key), expected.contains_key(&key))
                );
                assert_eq!(entries.get_mut(&key), expected.get_mut(&key));
            }
            // However they came to be, and in whatever order.
            let mut list: Vec<(Key, Node)> = entries.clone().into_iter().collect();
            random.shuffle(&mut list);
            assert_eq!(list.into_iter().collect::<Entries>(), entries);
        }
    }

    #[test]
    fn of_equal_keys_the_last_one_counts() {
        for count in [2, LIST_MAX + 1] {
            let entries: Entries = (0..count as u64).map(|number| ("key", Node::Number(number))).collect();
            assert_eq!((entries.len(), entries.get("key")), (1, Some(&Node::Number(count as u64 - 1))));
        }
    }
}
