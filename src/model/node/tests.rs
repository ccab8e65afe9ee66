//! Entries against the map of std.

use super::*;
use std::collections::BTreeMap;

/// After any operations in any order, the entries are those of a `BTreeMap`.
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
                    expected
                        .values_mut()
                        .for_each(|other| *other = node.clone());
                }
                _ => assert_eq!(
                    entries.insert(key.clone(), node.clone()),
                    expected.insert(key, node)
                ),
            }
            assert!(
                entries
                    .iter()
                    .eq(expected.iter().map(|(key, node)| (key.as_str(), node)))
            );
            assert_eq!(entries.len(), expected.len());
            let key = random.usize(..keys).to_string();
            assert_eq!(
                (
                    entries.get(key.as_str()),
                    entries.contains_key(key.as_str())
                ),
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
        let entries: Entries = (0..count)
            .map(|number| ("key", Node::Number(number)))
            .collect();
        assert_eq!(
            (entries.len(), entries.get("key")),
            (1, Some(&Node::Number(count - 1)))
        );
    }
}

#[test]
fn bytes_of_texts_are_counted_at_every_depth() {
    let list = Node::List(vec![Node::text("ab"), Node::Number(7)]);
    let node = Node::map([("key", list), ("other", Node::text("cde"))]);
    assert_eq!(node.text_bytes(), 5);
    assert_eq!(Node::Number(7).text_bytes(), 0);
}

#[test]
fn memory_of_a_tree_counts_texts_keys_and_entries() {
    assert_eq!(Node::text("abc").memory_bytes(), 3);
    assert_eq!(Node::Number(7).memory_bytes(), 0);
    let list = Node::List(vec![Node::text("ab"), Node::Number(7)]);
    assert_eq!(list.memory_bytes(), 2 * size_of::<Node>() + 2);
    let map = Node::map([
        ("a", Node::text("x")),
        ("bc", list.clone()),
        ("d", Node::Number(1)),
    ]);
    // Three entries have room for a fourth.
    let entries = 4 * size_of::<(Key, Node)>();
    let texts = "abcd".len() + "x".len();
    assert_eq!(map.memory_bytes(), entries + texts + list.memory_bytes());
}

#[test]
fn number_is_read_only_from_a_count() {
    assert_eq!(Node::Number(7).as_number(), Some(7));
    assert_eq!(Node::text("7").as_number(), None);
}
