//! The field tree: a state as nested maps, which field masks address.
//!
//! Thread: none, plain values.

mod entries;

pub use entries::{Entries, Key};
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::fmt;

/// One node of the tree. Maps are sorted, so two outputs of one state are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Text.
    Text(String),
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
    #[must_use]
    pub fn empty() -> Self {
        Self::Map(Entries::default())
    }

    /// A text node.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A map of the given entries.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Node)>) -> Self {
        Self::Map(entries.into_iter().map(|(key, node)| (key.into(), node)).collect())
    }

    /// A map of these fields, whose names take no memory.
    pub fn object(fields: impl IntoIterator<Item = (&'static str, Node)>) -> Self {
        Self::Map(fields.into_iter().collect())
    }

    /// The entry `key` when this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.as_map()?.get(key)
    }

    /// The node that `path` leads to through maps.
    #[must_use]
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The entries of the map that is the entry `key`; none when that is no map.
    pub fn entries(&self, key: &str) -> impl Iterator<Item = (&str, &Self)> {
        self.get(key).and_then(Self::as_map).into_iter().flatten()
    }

    /// The node that `path` leads to through maps, to be changed.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut Node> {
        path.iter().try_fold(self, |node, key| node.as_map_mut()?.get_mut(key))
    }

    /// The entries when this is a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Entries> {
        if let Self::Map(map) = self { Some(map) } else { None }
    }

    /// The entries when this is a map.
    pub fn as_map_mut(&mut self) -> Option<&mut Entries> {
        if let Self::Map(map) = self { Some(map) } else { None }
    }

    /// The text when this is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The number when this is a number.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// The items when this is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Node]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    /// What it takes in memory beside itself, in bytes, about: a state as a tree takes many times what it takes on the wire.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 0,
            Self::List(items) => items.iter().map(|item| size_of::<Self>() + item.memory_bytes()).sum(),
            Self::Map(entries) => {
                let own = entries.iter().map(|(key, node)| key.len() + node.memory_bytes());
                entries.places() * size_of::<(Key, Self)>() + own.sum::<usize>()
            }
        }
    }

    /// Whether this is a map or a list without entries.
    #[must_use]
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
        let mut list: Vec<(String, Node)> = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            list.push(entry);
        }
        Ok(Node::map(list))
    }
}

impl<'de> IntoDeserializer<'de> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Values are read out of trees that the table of fields has checked.
impl<'de> Deserializer<'de> for &'de Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Node::Text(text) => visitor.visit_borrowed_str(text),
            Node::Number(number) => visitor.visit_u64(*number),
            Node::List(items) => SeqDeserializer::new(items.iter()).deserialize_any(visitor),
            Node::Map(entries) => MapDeserializer::new(entries.iter()).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        texts: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.as_text().unwrap_or_default().into_deserializer().deserialize_enum(name, texts, visitor)
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
            Self::List(list) => {
                let mut sequence = serializer.serialize_seq(Some(list.len()))?;
                for item in list {
                    sequence.serialize_element(item)?;
                }
                sequence.end()
            }
            Self::Map(map) => {
                let mut entries = serializer.serialize_map(Some(map.len()))?;
                for (key, node) in map {
                    entries.serialize_entry(key, node)?;
                }
                entries.end()
            }
        }
    }
}
