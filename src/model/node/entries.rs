//! The entries of a map in the field tree: a sorted list, where a `BTreeMap` would take memory for eleven.
//!
//! Thread: none, plain values.
//!
//! To insert one moves all behind it, so many are collected: that takes the time of sorting, whatever their order.

use super::Node;
use litemap::LiteMap;
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::{slice, vec};

/// The name of an entry. Names of fields are literals and take no memory of their own.
pub type Key = Cow<'static, str>;

/// Nodes by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries(LiteMap<Key, Node>);

impl Entries {
    /// The node of `key`; an empty map when there was none.
    pub fn child(&mut self, key: impl Into<Key>) -> &mut Node {
        self.entry(key.into()).or_default()
    }

    /// Sets the node of `key`. Returns the one that it had.
    pub fn insert(&mut self, key: impl Into<Key>, node: Node) -> Option<Node> {
        self.0.insert(key.into(), node)
    }

    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.iter_mut().map(|(_, node)| node)
    }
}

impl Deref for Entries {
    type Target = LiteMap<Key, Node>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Of entries with the same key the last one counts.
impl<K: Into<Key>> FromIterator<(K, Node)> for Entries {
    fn from_iter<I: IntoIterator<Item = (K, Node)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(key, node)| (key.into(), node)).collect())
    }
}

impl<K: Into<Key>> Extend<(K, Node)> for Entries {
    fn extend<I: IntoIterator<Item = (K, Node)>>(&mut self, entries: I) {
        self.0.extend(entries.into_iter().map(|(key, node)| (key.into(), node)));
    }
}

impl IntoIterator for Entries {
    type Item = (Key, Node);
    type IntoIter = vec::IntoIter<(Key, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

type Iter<'n> = std::iter::Map<slice::Iter<'n, (Key, Node)>, fn(&'n (Key, Node)) -> (&'n str, &'n Node)>;

impl<'n> IntoIterator for &'n Entries {
    type Item = (&'n str, &'n Node);
    type IntoIter = Iter<'n>;

    fn into_iter(self) -> Iter<'n> {
        self.as_slice().iter().map(|(key, node)| (key, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Whatever is done, in whatever order, the entries are those of a `BTreeMap`.
    #[test]
    fn entries_are_a_sorted_map() {
        let mut random = fastrand::Rng::with_seed(1);
        for keys in [3, 100] {
            let (mut entries, mut expected) = (Entries::default(), BTreeMap::<String, Node>::new());
            for number in 0..20 * keys as u64 {
                let (key, node) = (random.usize(..keys).to_string(), Node::Number(number));
                match random.u8(..8) {
                    0 => assert_eq!(entries.remove(key.as_str()), expected.remove(&key)),
                    1 => assert_eq!(entries.child(key.clone()), expected.entry(key).or_default()),
                    2 => {
                        entries.retain(|other, _| **other != *key);
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
                    (entries.get(key.as_str()), entries.contains_key(key.as_str())),
                    (expected.get(&key), expected.contains_key(&key))
                );
                assert_eq!(entries.get_mut(key.as_str()), expected.get_mut(&key));
            }
            // However they came to be, and in whatever order.
            let mut list: Vec<(Key, Node)> = entries.clone().into_iter().collect();
            random.shuffle(&mut list);
            assert_eq!(list.into_iter().collect::<Entries>(), entries);
        }
    }

    #[test]
    fn of_equal_keys_the_last_one_counts() {
        for count in [2, 33] {
            let entries: Entries = (0..count).map(|number| ("key", Node::Number(number))).collect();
            assert_eq!((entries.len(), entries.get("key")), (1, Some(&Node::Number(count - 1))));
        }
    }
}
