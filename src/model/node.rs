//! The field tree: a state as nested maps, which field masks address.
//!
//! Thread: none, plain values.

use super::names::alternatives;
use litemap::LiteMap;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::{iter, slice, vec};

/// One node of the tree. Maps are sorted, so two outputs of one state are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Text, which a tree of a state shares with that.
    Text(Arc<str>),
    /// A count, percentage or size.
    Number(u64),
    /// A list; for masks a leaf.
    List(Vec<Node>),
    /// Nodes by key.
    Map(Entries),
}

impl Default for Node {
    fn default() -> Self {
        Self::empty()
    }
}

impl Node {
    /// A map without entries.
    pub fn empty() -> Self {
        Self::Map(Entries::default())
    }

    /// A text node.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// A map of the given entries.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Node)>) -> Self {
        let entries = entries.into_iter().map(|(key, node)| (key.into(), node));
        Self::Map(entries.collect())
    }

    /// A map of these fields, whose names take no memory.
    pub fn object(fields: impl IntoIterator<Item = (&'static str, Node)>) -> Self {
        Self::Map(fields.into_iter().collect())
    }

    /// The entry `key` if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.as_map()?.get(key)
    }

    /// The node that `path` leads to through maps.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The entries of the map that is the entry `key`; none when that is no map.
    pub fn entries(&self, key: &str) -> impl Iterator<Item = (&str, &Self)> + Clone {
        self.get(key).and_then(Self::as_map).into_iter().flatten()
    }

    /// The node that `path` leads to through maps, to be changed.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut Node> {
        path.iter()
            .try_fold(self, |node, key| node.as_map_mut()?.get_mut(*key))
    }

    pub fn as_map(&self) -> Option<&Entries> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_map_mut(&mut self) -> Option<&mut Entries> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Node]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    /// Reads a value; errors name the path below `key`.
    pub fn read<'n, T: Deserialize<'n>>(&'n self, key: &'n str) -> Result<T, StateError> {
        T::deserialize(NodeReader {
            step: NodeStep::Key(key),
            node: self,
        })
    }

    /// About how many bytes of memory the node points to. A state takes many times more as a tree
    /// than on the wire.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 0,
            Self::List(items) => {
                let behind: usize = items.iter().map(Self::memory_bytes).sum();
                items.len() * size_of::<Self>() + behind
            }
            Self::Map(entries) => {
                // A map that grew has room for up to twice as many entries.
                let mut bytes = entries.len().next_power_of_two() * size_of::<(Key, Self)>();
                for (key, node) in entries {
                    bytes += key.len() + node.memory_bytes();
                }
                bytes
            }
        }
    }

    /// Bytes of its texts. An encoded message is hardly smaller: it has short codes only for the
    /// names of fields and states.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 0,
            Self::List(items) => items.iter().map(Self::text_bytes).sum(),
            Self::Map(entries) => entries.values().map(Self::text_bytes).sum(),
        }
    }

    /// Returns whether this is a map or a list without entries.
    pub fn is_empty_container(&self) -> bool {
        match self {
            Self::Map(map) => map.is_empty(),
            Self::List(list) => list.is_empty(),
            Self::Text(_) | Self::Number(_) => false,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, a count, a list or a map")
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::text(text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry::<String, Node>()? {
            map.push(entry);
        }
        Ok(Node::map(map))
    }
}

/// Why a tree does not hold a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A mandatory field is not in the node at this path.
    #[error("missing field `{field}`")]
    Missing { path: String, field: &'static str },
    /// The node at this path has a wrong type or value.
    #[error("{path}: invalid value, expected {expected}")]
    Invalid { path: String, expected: String },
}

impl de::Error for StateError {
    fn custom<T: Display>(expected: T) -> Self {
        Self::Invalid {
            path: String::new(),
            expected: expected.to_string(),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing {
            path: String::new(),
            field,
        }
    }

    fn invalid_type(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match &*expected.to_string() {
            "a string" => Self::custom("text"),
            "a sequence" => Self::custom("a list"),
            expected => Self::custom(expected),
        }
    }

    fn unknown_variant(_found: &str, texts: &'static [&'static str]) -> Self {
        Self::custom(alternatives(texts))
    }
}

/// The deserializer of a node. It knows the key or index that leads to the node; keys are joined to
/// a path only for an error, since a long key may have many nodes below it.
struct NodeReader<'n> {
    step: NodeStep<'n>,
    node: &'n Node,
}

/// One step of a path.
enum NodeStep<'n> {
    Key(&'n str),
    Index(usize),
}

impl NodeReader<'_> {
    /// Puts the own key or index before the path of an error.
    fn named<T>(&self, result: Result<T, StateError>) -> Result<T, StateError> {
        let mut error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let (StateError::Missing { path, .. } | StateError::Invalid { path, .. }) = &mut error;
        if !path.is_empty() {
            path.insert(0, '.');
        }
        match self.step {
            NodeStep::Key(key) => path.insert_str(0, key),
            NodeStep::Index(index) => path.insert_str(0, &index.to_string()),
        }
        Err(error)
    }
}

impl<'n> IntoDeserializer<'n, StateError> for NodeReader<'n> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for NodeReader<'de> {
    type Error = StateError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, StateError> {
        let value = match self.node {
            Node::Text(text) => visitor.visit_borrowed_str(text),
            Node::Number(number) => visitor.visit_u64(*number),
            Node::List(items) => {
                let items = items.iter().enumerate().map(|(index, node)| NodeReader {
                    step: NodeStep::Index(index),
                    node,
                });
                SeqDeserializer::new(items).deserialize_any(visitor)
            }
            Node::Map(entries) => {
                let entries = entries.iter().map(|(key, node)| {
                    let step = NodeStep::Key(key);
                    (key, NodeReader { step, node })
                });
                MapDeserializer::new(entries).deserialize_any(visitor)
            }
        };
        self.named(value)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, StateError> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        texts: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, StateError> {
        // A node of another type is refused as an unknown text.
        let text = self.node.as_text().unwrap_or_default();
        let value = text
            .into_deserializer()
            .deserialize_enum(name, texts, visitor);
        self.named(value)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::List(list) => serializer.collect_seq(list),
            Self::Map(map) => serializer.collect_map(map),
        }
    }
}

// ------------------------------------------------------------------ entries
//
// The entries of a map are a sorted list; a `BTreeMap` would reserve memory for eleven. An insert
// moves all entries behind it, so a large number is collected: that takes the time of sorting,
// whatever their order.

/// The name of an entry. Names of fields are literals and take no memory of their own.
pub type Key = Cow<'static, str>;

/// Nodes by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries(LiteMap<Key, Node>);

impl Entries {
    /// Returns the node of `key`, which becomes an empty map if there was none.
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

/// Of entries with the same key the last one is kept.
impl<K: Into<Key>> FromIterator<(K, Node)> for Entries {
    fn from_iter<I: IntoIterator<Item = (K, Node)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        sorted(entries.map(|(key, node)| (key.into(), node)).collect())
    }
}

/// Sorts entries, of which the last one of each key stays. The code that sorts is large, so it is
/// there only once, not for each type of iterator.
fn sorted(entries: Vec<(Key, Node)>) -> Entries {
    Entries(entries.into_iter().collect())
}

impl IntoIterator for Entries {
    type Item = (Key, Node);
    type IntoIter = vec::IntoIter<(Key, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

type Iter<'n> = iter::Map<slice::Iter<'n, (Key, Node)>, fn(&'n (Key, Node)) -> (&'n str, &'n Node)>;

impl<'n> IntoIterator for &'n Entries {
    type Item = (&'n str, &'n Node);
    type IntoIter = Iter<'n>;

    fn into_iter(self) -> Iter<'n> {
        self.as_slice().iter().map(|(key, node)| (key, node))
    }
}

#[cfg(test)]
mod tests;
