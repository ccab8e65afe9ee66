//! The entries of a map in the field tree: a list sorted by key without room to spare, where a `BTreeMap` would take memory
//! for eleven.
//!
//! Thread: none, plain values.
//!
//! To insert one moves all behind it, so many are collected: that takes the time of sorting, whatever their order.

use super::Node;
use std::borrow::Cow;
use std::{slice, vec};

/// The name of an entry. Names of fields are literals and take no memory of their own.
pub type Key = Cow<'static, str>;

/// Nodes by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries(Vec<(Key, Node)>);

impl Entries {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where `key` is, or belongs.
    fn position(&self, key: &str) -> Result<usize, usize> {
        // Most are collected in order.
        if self.0.last().is_none_or(|(last, _)| **last < *key) {
            return Err(self.0.len());
        }
        self.0.binary_search_by(|(other, _)| (**other).cmp(key))
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.position(key).ok().map(|index| &self.0[index].1)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.position(key).ok().map(|index| &mut self.0[index].1)
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    /// The node of `key`; an empty map when there was none.
    pub fn child(&mut self, key: impl Into<Key>) -> &mut Node {
        let key = key.into();
        let index = self.position(&key).unwrap_or_else(|index| {
            self.0.insert(index, (key, Node::empty()));
            index
        });
        &mut self.0[index].1
    }

    /// Sets the node of `key`. Returns the one that it had.
    pub fn insert(&mut self, key: impl Into<Key>, node: Node) -> Option<Node> {
        let key = key.into();
        match self.position(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index].1, node)),
            Err(index) => {
                self.0.insert(index, (key, node));
                None
            }
        }
    }

    /// Removes `key`. Returns the node that it had.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        self.position(key).ok().map(|index| self.0.remove(index).1)
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Node) -> bool) {
        self.0.retain_mut(|(key, node)| keep(key, node));
    }

    pub fn iter(&self) -> Iter<'_> {
        self.0.iter().map(|(key, node)| (key, node))
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &Node> {
        self.0.iter().map(|(_, node)| node)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.0.iter_mut().map(|(_, node)| node)
    }

    /// For how many there is room.
    pub fn places(&self) -> usize {
        self.0.capacity()
    }
}

/// Of entries with the same key the last one counts.
impl<K: Into<Key>> FromIterator<(K, Node)> for Entries {
    fn from_iter<I: IntoIterator<Item = (K, Node)>>(entries: I) -> Self {
        let mut list: Vec<(Key, Node)> = entries.into_iter().map(|(key, node)| (key.into(), node)).collect();
        list.sort_by(|(key, _), (other, _)| key.cmp(other));
        list.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Self(list)
    }
}

impl<K: Into<Key>> Extend<(K, Node)> for Entries {
    fn extend<I: IntoIterator<Item = (K, Node)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, node)| _ = self.insert(key, node));
    }
}

impl IntoIterator for Entries {
    type Item = (Key, Node);
    type IntoIter = vec::IntoIter<(Key, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

type Over<I, From, To> = std::iter::Map<I, fn(From) -> To>;
pub type Iter<'n> = Over<slice::Iter<'n, (Key, Node)>, &'n (Key, Node), (&'n str, &'n Node)>;

impl<'n> IntoIterator for &'n Entries {
    type Item = (&'n str, &'n Node);
    type IntoIter = Iter<'n>;

    fn into_iter(self) -> Iter<'n> {
        self.iter()
    }
}

impl<'n> IntoIterator for &'n mut Entries {
    type Item = (&'n str, &'n mut Node);
    type IntoIter = Over<slice::IterMut<'n, (Key, Node)>, &'n mut (Key, Node), Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut().map(|(key, node)| (&**key, node))
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
        for count in [2, 33] {
            let entries: Entries = (0..count).map(|number| ("key", Node::Number(number))).collect();
            assert_eq!((entries.len(), entries.get("key")), (1, Some(&Node::Number(count - 1))));
        }
    }
}
