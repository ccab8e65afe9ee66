//! Reads one YAML document into a tree that keeps what manifests need: the source text of numbers, and places.
//!
//! Thread: none, plain values.
//!
//! This is the one reader of all YAML texts: each is measured first ([`budget`]), since aliases make much of little.
//!
//! The YAML library returns `1.10` as a number, but a manifest means the text. So numbers and booleans are read a
//! second time as text, and a place in the file is found by walking there again, which only errors need.

mod budget;

use crate::limits::YAML_ALONE_FROM;
use crate::platform::sync::Mutex;
use serde::de::{Deserialize, DeserializeOwned, Visitor};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess, VariantAccess};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::MutexGuard;

/// Held while a large text is read: control loops of many workloads may each have one.
static ALONE: Mutex<()> = Mutex::new(());

/// One node of a YAML document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Yaml {
    /// No value, `~` or `null`.
    Null,
    /// A string.
    Text(String),
    /// A number or boolean without quotes, as written in the file.
    Plain(Plain, String),
    /// A list.
    List(Vec<Yaml>),
    /// Keys and values in the order of the file; no key is there twice.
    Map(Vec<(Yaml, Yaml)>),
}

/// What a scalar without quotes is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plain {
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer,
    /// Another number.
    Float,
}

impl Yaml {
    /// The text of a scalar as written in the file, empty for null; `None` for lists and maps.
    #[must_use]
    pub fn scalar(&self) -> Option<&str> {
        match self {
            Self::Null => Some(""),
            Self::Text(text) | Self::Plain(_, text) => Some(text),
            Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The value of `key` when this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Yaml> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(candidate, _)| candidate.scalar() == Some(key)).map(|(_, value)| value)
    }

    /// What this is, for error texts: `number 5`, `a list`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Text(text) if text.chars().count() > 40 => "a text".to_owned(),
            Self::Text(text) => format!("text '{text}'"),
            Self::Plain(Plain::Boolean, text) => format!("boolean {text}"),
            Self::Plain(_, text) => format!("number {text}"),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }

    fn has_plain(&self) -> bool {
        match self {
            Self::Null | Self::Text(_) => false,
            Self::Plain(..) => true,
            Self::List(items) => items.iter().any(Self::has_plain),
            Self::Map(entries) => entries.iter().any(|(key, value)| key.has_plain() || value.has_plain()),
        }
    }
}

/// A place in the text, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {} column {}", self.line, self.column)
    }
}

/// One step from a node to a node below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To the value of a key.
    Key(String),
    /// To a list item, counted from 0.
    Index(usize),
}

/// Joins steps the way error messages name them: `workloads.web.files[0]`; empty for the root.
#[must_use]
pub fn path_text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.extend([".", key]),
            Step::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// Joins steps as a JSON pointer: `/workloads/web/files/0`; empty for the root.
#[must_use]
pub fn json_pointer(path: &[Step]) -> String {
    let part = |step: &Step| match step {
        Step::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Step::Index(index) => format!("/{index}"),
    };
    path.iter().map(part).collect()
}

/// The text is not one YAML document: syntax, a key that is there twice, several documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What is wrong, with the line if the library has it.
    pub message: String,
    /// Where.
    pub location: Option<Location>,
}

fn error(error: serde_yaml::Error) -> YamlError {
    let location = error.location().map(|at| Location { line: at.line(), column: at.column() });
    YamlError { message: error.to_string(), location }
}

/// The only call of the library; the sizes of all texts were checked before.
#[allow(clippy::disallowed_methods)]
fn library(text: &str) -> serde_yaml::Deserializer<'_> {
    serde_yaml::Deserializer::from_str(text)
}

/// A text that becomes `size` bytes is read by one thread at a time when it is large.
fn alone(size: usize) -> Option<MutexGuard<'static, ()>> {
    (size >= YAML_ALONE_FROM).then(|| ALONE.lock())
}

/// Checks that all documents of a text together become at most `budget` bytes, see [`Document::read`].
///
/// # Errors
/// [`YamlError`] when they become more. Other errors of the text are not checked.
pub fn check(text: &str, budget: usize) -> Result<(), YamlError> {
    budget::expanded_size(text, budget).map(drop)
}

/// Reads a value out of a text of one document, which may become `budget` bytes, see [`Document::read`].
///
/// # Errors
/// [`YamlError`] when it is not one well-formed document, becomes more, or is something else than a `T`.
pub fn read<T: DeserializeOwned>(text: &str, budget: usize) -> Result<T, YamlError> {
    let _alone = alone(budget::expanded_size(text, budget)?);
    T::deserialize(library(text)).map_err(error)
}

/// Reads all documents of a text, which together may become `budget` bytes, see [`Document::read`].
///
/// # Errors
/// [`YamlError`] when one is not well-formed, or when they become more.
pub fn read_all<T: DeserializeOwned>(text: &str, budget: usize) -> Result<Vec<T>, YamlError> {
    let _alone = alone(budget::expanded_size(text, budget)?);
    library(text).map(|one| T::deserialize(one).map_err(error)).collect()
}

/// One parsed YAML document together with its text.
#[derive(Debug, Clone)]
pub struct Document<'t> {
    text: &'t str,
    /// What it becomes, in bytes.
    size: usize,
    root: Yaml,
}

impl<'t> Document<'t> {
    /// Parses `text`; an empty text is a null document. It may become `budget` bytes when its aliases are followed,
    /// which takes about four times as much memory while it is read.
    ///
    /// # Errors
    /// [`YamlError`] when it is not exactly one well-formed document, or becomes more.
    pub fn read(text: &'t str, budget: usize) -> Result<Self, YamlError> {
        let size = budget::expanded_size(text, budget)?;
        let _alone = alone(size);
        let Parsed(mut root) = Parsed::deserialize(library(text)).map_err(error)?;
        if root.has_plain() {
            SourceText(&mut root).deserialize(library(text)).map_err(error)?;
        }
        Ok(Self { text, size, root })
    }

    /// What it becomes when its aliases are followed, in bytes; reading it takes some 5 ns for each.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The outermost node.
    #[must_use]
    pub fn root(&self) -> &Yaml {
        &self.root
    }

    /// Where the node starts that `path` leads to. Reads the text again, so only for errors and warnings.
    #[must_use]
    pub fn locate(&self, path: &[Step]) -> Option<Location> {
        let _alone = alone(self.size);
        let found = Finder { path, at_key: false }.deserialize(library(self.text));
        Some(found.err()?.location()).flatten().map(|at| Location { line: at.line(), column: at.column() })
    }

    /// Where the key stands that the last step of `path` names.
    #[must_use]
    pub fn locate_key(&self, path: &[Step]) -> Option<Location> {
        let _alone = alone(self.size);
        let found = Finder { path, at_key: true }.deserialize(library(self.text));
        Some(found.err()?.location()).flatten().map(|at| Location { line: at.line(), column: at.column() })
    }
}

// ----------------------------------------------------------- first reading

/// The tree, numbers in the library's own spelling.
struct Parsed(Yaml);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor { seen: None }).map(Parsed)
    }
}

/// Builds a node. For a key it has the keys before it, so that the error points at the second one.
struct TreeVisitor<'s> {
    seen: Option<&'s BTreeSet<Yaml>>,
}

impl TreeVisitor<'_> {
    fn node<E: Error>(&self, node: Yaml) -> Result<Yaml, E> {
        if self.seen.is_some_and(|seen| seen.contains(&node)) {
            let key = node.scalar().unwrap_or_default();
            return Err(E::custom(format_args!("duplicate entry with key \"{key}\"")));
        }
        Ok(node)
    }

    fn plain<E: Error>(&self, kind: Plain, text: impl ToString) -> Result<Yaml, E> {
        self.node(Yaml::Plain(kind, text.to_string()))
    }
}

impl<'de> DeserializeSeed<'de> for TreeVisitor<'_> {
    type Value = Yaml;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeVisitor<'_> {
    type Value = Yaml;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any YAML value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Yaml, E> {
        self.plain(Plain::Boolean, value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Yaml, E> {
        self.plain(Plain::Integer, value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Yaml, E> {
        self.plain(Plain::Integer, value)
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Yaml, E> {
        self.plain(Plain::Integer, value)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Yaml, E> {
        self.plain(Plain::Integer, value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Yaml, E> {
        self.plain(Plain::Float, value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Yaml, E> {
        self.node(Yaml::Text(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Yaml, E> {
        self.node(Yaml::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Yaml, E> {
        self.node(Yaml::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(TreeVisitor { seen: None })? {
            list.push(item);
        }
        self.node(Yaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Yaml, A::Error> {
        let (mut map, mut seen) = (Vec::new(), BTreeSet::new());
        while let Some(key) = entries.next_key_seed(TreeVisitor { seen: Some(&seen) })? {
            let value = entries.next_value_seed(TreeVisitor { seen: None })?;
            seen.insert(key.clone());
            map.push((key, value));
        }
        self.node(Yaml::Map(map))
    }

    /// A value with a tag of its own (`!name value`): the tag has no meaning here.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Yaml, A::Error> {
        let (_tag, value) = tagged.variant_seed(std::marker::PhantomData::<IgnoredTag>)?;
        value.newtype_variant_seed(self)
    }
}

struct IgnoredTag;

impl<'de> Deserialize<'de> for IgnoredTag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_identifier(IgnoredAny).map(|_| Self)
    }
}

// ---------------------------------------------------------- second reading

/// Walks the document next to the tree and replaces numbers and booleans by their source text.
struct SourceText<'n>(&'n mut Yaml);

impl<'de> DeserializeSeed<'de> for SourceText<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            Yaml::Plain(..) => deserializer.deserialize_str(self),
            Yaml::List(_) => deserializer.deserialize_seq(self),
            Yaml::Map(_) => deserializer.deserialize_map(self),
            Yaml::Null | Yaml::Text(_) => deserializer.deserialize_ignored_any(IgnoredAny).map(|_| ()),
        }
    }
}

impl<'de> Visitor<'de> for SourceText<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("what was there before")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        if let Yaml::Plain(_, text) = self.0 {
            value.clone_into(text);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if let Yaml::List(list) = self.0 {
            for item in list {
                items.next_element_seed(SourceText(item))?;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if let Yaml::Map(map) = self.0 {
            for (key, value) in map {
                entries.next_key_seed(SourceText(key))?;
                entries.next_value_seed(SourceText(value))?;
            }
        }
        Ok(())
    }
}

// ------------------------------------------------------------ third reading

/// Walks to a node and fails there on purpose: only errors of the library carry a place.
struct Finder<'p> {
    path: &'p [Step],
    at_key: bool,
}

impl Finder<'_> {
    fn here<E: Error>() -> E {
        E::custom("here")
    }
}

impl<'de> DeserializeSeed<'de> for Finder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.path.first() {
            Some(Step::Key(_)) => deserializer.deserialize_map(self),
            Some(Step::Index(_)) => deserializer.deserialize_seq(self),
            None => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("nothing") // Every scalar is an error, which is the point.
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((Step::Index(index), rest)) = self.path.split_first() else { return Err(Self::here()) };
        for _ in 0..*index {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Finder { path: rest, at_key: self.at_key })?;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((Step::Key(wanted), rest)) = self.path.split_first() else { return Err(Self::here()) };
        let fail = self.at_key && rest.is_empty();
        while let Some(found) = entries.next_key_seed(FinderKey { wanted, fail })? {
            if found {
                return entries.next_value_seed(Finder { path: rest, at_key: self.at_key });
            }
            entries.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _tagged: A) -> Result<(), A::Error> {
        Err(Self::here())
    }
}

/// Compares a key; fails at the wanted one when its own place is wanted.
struct FinderKey<'p> {
    wanted: &'p str,
    fail: bool,
}

impl<'de> DeserializeSeed<'de> for FinderKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FinderKey<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        let found = key == self.wanted;
        if found && self.fail { Err(Finder::here()) } else { Ok(found) }
    }
}

