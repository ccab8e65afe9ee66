//! Reads YAML texts into trees that keep what manifests need: the source text of numbers, and the
//! place of each node.
//!
//! Thread: none, plain values.
//!
//! This is the one reader of all YAML texts. It takes one event after the other and follows aliases
//! by sharing the node that they stand for. So what a text takes here is bounded by its length, and
//! by the entries that merge keys (`<<`) add. What is made of the tree is not: aliases make much of
//! little, which is counted while they are followed.

mod events;

use crate::limits::{FOREIGN_MESSAGE_MAX, MESSAGE_MAX};
use events::{Event, Events, Properties};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;

/// What a YAML node counts beside its text, in bytes: about its memory, a few times over in what is
/// made of it.
pub(crate) const NODE_BYTES: usize = 128;
/// Size of what others sent: some 30,000 nodes or 4 MB of text, so an agent stays below 50 MB.
pub(crate) const OTHERS_MAX: usize = FOREIGN_MESSAGE_MAX;
/// Lists and mappings may be nested this deep, which bounds every recursion over a tree.
const DEPTH_MAX: usize = 128;
/// The key, without quotes, whose mappings are merged into the one that it is in.
const MERGE_KEY: &str = "<<";
/// What its tag may be.
const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// One node of a YAML document. Copies share what is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yaml {
    pub content: Content,
    /// Where it begins. That of an alias is where the node begins that it stands for.
    pub at: Location,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// What stands in quotes, or cannot be anything else.
    Text(Rc<str>),
    /// Null, a number or a boolean, as written in the file.
    Plain(Plain, Rc<str>),
    List(Rc<[Yaml]>),
    /// Keys and values in the order of the file; no key is there twice.
    Map(Rc<[(Yaml, Yaml)]>),
}

/// What a scalar without quotes is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plain {
    /// No value, `~` or `null`.
    Null,
    Boolean,
    /// A whole number.
    Integer,
    /// Another number.
    Float,
}

impl Plain {
    /// What `text` is without quotes, by the core schema of YAML 1.2; `None` for a text.
    fn of(text: &str) -> Option<Self> {
        let number = text.strip_prefix(['+', '-']).unwrap_or(text);
        let is_integer = |(prefix, radix): (&str, u32)| {
            let digits = number
                .strip_prefix(prefix)
                .filter(|digits| !digits.starts_with(['+', '-']));
            digits.is_some_and(|digits| u128::from_str_radix(digits, radix).is_ok())
        };
        let has_zeros = || {
            number.len() > 1
                && number.starts_with('0')
                && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_float =
            || number.parse().is_ok_and(f64::is_finite) && !number.starts_with(['+', '-']);
        match (text, number) {
            ("" | "null" | "Null" | "NULL" | "~", _) => Some(Self::Null),
            ("true" | "True" | "TRUE" | "false" | "False" | "FALSE", _) => Some(Self::Boolean),
            _ if has_zeros()
                || !number.starts_with(|first: char| first.is_ascii_digit() || first == '.') =>
            {
                None
            }
            _ if [("0x", 16), ("0o", 8), ("0b", 2), ("", 10)]
                .into_iter()
                .any(is_integer) =>
            {
                Some(Self::Integer)
            }
            (".nan" | ".NaN" | ".NAN", _) | (_, ".inf" | ".Inf" | ".INF") => Some(Self::Float),
            _ => is_float().then_some(Self::Float),
        }
    }
}

impl Yaml {
    pub fn is_null(&self) -> bool {
        self.plain() == Some(Plain::Null)
    }

    /// The text of a scalar as written in the file, empty for null; `None` for lists and maps.
    pub fn scalar(&self) -> Option<&str> {
        if self.is_null() {
            Some("")
        } else {
            self.source()
        }
    }

    /// The text of a scalar as written in the file, also of null; `None` for lists and maps.
    pub fn source(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) | Content::Plain(_, text) => Some(text),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    /// What no two keys of a mapping have in common; `None` for lists and mappings.
    fn identity(&self) -> Option<(Rc<str>, Option<Plain>)> {
        match &self.content {
            Content::Text(text) => Some((text.clone(), None)),
            Content::Plain(plain, text) => Some((text.clone(), Some(*plain))),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    fn plain(&self) -> Option<Plain> {
        if let Content::Plain(plain, _) = self.content {
            Some(plain)
        } else {
            None
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&(Yaml, Yaml)> {
        let Content::Map(entries) = &self.content else {
            return None;
        };
        entries
            .iter()
            .find(|(candidate, _)| candidate.scalar() == Some(key))
    }

    /// The value of `key` when this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Yaml> {
        self.entry(key).map(|(_, value)| value)
    }

    /// What this is, for error texts: `number 5`, `a list`.
    pub fn describe(&self) -> String {
        match &self.content {
            Content::Text(text) if text.chars().count() > 40 => "a text".to_owned(),
            Content::Text(text) => format!("text '{text}'"),
            Content::Plain(Plain::Null, _) => "null".to_owned(),
            Content::Plain(Plain::Boolean, text) => format!("boolean {text}"),
            Content::Plain(_, text) => format!("number {text}"),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a mapping".to_owned(),
        }
    }

    /// The key and the value that `path` leads to through maps.
    pub fn entry_at(&self, path: &[&str]) -> Option<&(Yaml, Yaml)> {
        let (key, above) = path.split_last()?;
        above
            .iter()
            .try_fold(self, |node, key| node.get(key))?
            .entry(key)
    }
}

/// A place in the text, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    pub line: u32,
    pub(crate) column: u32,
}

impl Location {
    const BEGIN: Self = Self { line: 1, column: 1 };

    /// What follows a message of the reader. It does not name the beginning, which stands for no
    /// place as well.
    fn suffix(self) -> String {
        if self == Self::BEGIN {
            String::new()
        } else {
            format!(" at {self}")
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {} column {}", self.line, self.column)
    }
}

/// What stands before a message about a node; nothing for the root.
pub(crate) fn prefix(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!("{path}: ")
    }
}

/// The text is not YAML, has a key twice, or becomes too much.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What is wrong, with the line if there is one.
    pub message: String,
    /// Where; `None` when the text as a whole is refused.
    pub location: Option<Location>,
    /// Whether a second document begins there, where only one is read.
    pub is_second_document: bool,
}

impl YamlError {
    fn new(message: String, location: Option<Location>) -> Self {
        Self {
            message,
            location,
            is_second_document: false,
        }
    }

    fn whole(message: String) -> Self {
        Self::new(message, None)
    }

    fn second_document(at: Location) -> Self {
        let several = "deserializing from YAML containing more than one document is not supported";
        let message = format!("{several}: the second one begins at {at}");
        Self {
            message,
            location: Some(at),
            is_second_document: true,
        }
    }
}

/// Whose text it is. What becomes of it is bounded in bytes: its texts, and [`NODE_BYTES`] for each
/// node.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// A file of one's own: what aliases and the prefixes of tags add is bounded; the rest is by
    /// its length.
    Own,
    /// A runtime configuration, or the Kubernetes manifest in one, that others sent: all of it is
    /// bounded.
    Others,
}

/// One document.
#[derive(Debug, Clone)]
pub struct Document {
    pub root: Yaml,
    /// What it becomes when its aliases are followed, in bytes; reading it takes some 5 ns for
    /// each.
    pub(crate) size: usize,
}

/// Reads a text of one document; an empty text is null.
///
/// # Errors
/// [`YamlError`] when it is not exactly one well-formed document, or becomes too much.
pub fn read(text: &str, origin: Origin) -> Result<Document, YamlError> {
    let (mut reader, mut events) = (Reader::new(origin), Events::new(text));
    let end = match reader.document(&mut events)? {
        Some(end) => end, // It is empty.
        None => match events.next()? {
            (Event::EndOfText, _) => Location::BEGIN,
            (_, at) => return Err(YamlError::second_document(at)),
        },
    };
    let null = || Yaml {
        content: Content::Plain(Plain::Null, "".into()),
        at: end,
    };
    Ok(Document {
        root: reader.roots.pop().unwrap_or_else(null),
        size: reader.bytes,
    })
}

/// Reads all documents of a text, which together are bounded.
///
/// # Errors
/// [`YamlError`] when one is not well-formed, or when they become too much.
pub fn read_all(text: &str, origin: Origin) -> Result<Vec<Yaml>, YamlError> {
    let (mut reader, mut events) = (Reader::new(origin), Events::new(text));
    while reader.document(&mut events)?.is_none() {}
    Ok(reader.roots)
}

struct Reader {
    origin: Origin,
    /// What was read so far becomes.
    bytes: usize,
    /// What of that was added by aliases and tags.
    added: usize,
    /// What merging has copied. It is no part of what an alias adds: the copies stand for what was
    /// read.
    merged: usize,
    /// Lines that it has when it is written again; each may be indented.
    lines: usize,
    /// Lists and mappings that have not ended.
    open: Vec<Open>,
    /// Nodes by anchor; `None` while one has not ended.
    anchors: HashMap<String, Option<Anchored>>,
    /// The outermost nodes of the documents.
    roots: Vec<Yaml>,
}

struct Open {
    at: Location,
    anchor: Option<String>,
    /// The bytes and lines of all that is before it.
    before: (usize, usize),
    /// How many levels of lists and mappings are in it.
    height: usize,
    items: Items,
}

enum Items {
    List(Vec<Yaml>),
    Map(OpenMap),
}

/// A mapping that has not ended.
#[derive(Default)]
struct OpenMap {
    entries: Vec<(Yaml, Yaml)>,
    /// The key whose value comes next.
    key: Option<Yaml>,
    /// Whether that is a merge key.
    is_merge: bool,
    /// The merge key and its value; they are no entries.
    merged: Option<(Yaml, Yaml)>,
}

impl OpenMap {
    fn add(&mut self, node: Yaml) {
        let Some(key) = self.key.take() else {
            self.key = Some(node);
            return;
        };
        let is_merge = std::mem::take(&mut self.is_merge);
        if is_merge && self.merged.is_none() {
            self.merged = Some((key, node));
        } else {
            // A second merge key is found as one that is there twice.
            self.entries.push((key, node));
        }
    }
}

#[derive(Clone)]
struct Anchored {
    node: Yaml,
    bytes: usize,
    lines: usize,
    height: usize,
}

impl Reader {
    fn new(origin: Origin) -> Self {
        let (bytes, added, merged, lines) = (0, 0, 0, 0);
        Self {
            origin,
            bytes,
            added,
            merged,
            lines,
            open: Vec::new(),
            anchors: HashMap::new(),
            roots: Vec::new(),
        }
    }

    /// Takes the events up to the end of a document, or of the text; returns where that is.
    fn document(&mut self, events: &mut Events<'_>) -> Result<Option<Location>, YamlError> {
        loop {
            let (event, at) = events.next()?;
            match event {
                Event::DocumentStart => self.anchors.clear(),
                Event::DocumentEnd => return Ok(None),
                Event::EndOfText => return Ok(Some(at)),
                Event::Scalar {
                    properties,
                    text,
                    is_plain,
                } => {
                    let before = (self.bytes, self.lines);
                    let breaks = text.matches('\n').count();
                    self.spend(&properties, text.len(), 1 + breaks)?;
                    let tag = properties.tag.as_deref();
                    let is_merge =
                        &*text == MERGE_KEY && tag.map_or(is_plain, |tag| tag == MERGE_TAG);
                    let content = self.scalar(tag, text, is_plain, at)?;
                    self.node(Yaml { content, at }, properties.anchor, before, 0)?;
                    if is_merge {
                        self.mark_merge_key();
                    }
                }
                Event::Start { properties, is_map } => self.start(properties, is_map, at)?,
                Event::End => {
                    let Some(Open {
                        at,
                        anchor,
                        before,
                        height,
                        items,
                    }) = self.open.pop()
                    else {
                        continue;
                    };
                    let content = match items {
                        Items::List(items) => Content::List(items.into()),
                        Items::Map(OpenMap {
                            entries,
                            merged: None,
                            ..
                        }) => {
                            self.check_keys(entries.iter().map(|(key, _)| key))?;
                            Content::Map(entries.into())
                        }
                        Items::Map(OpenMap {
                            mut entries,
                            merged: Some((key, value)),
                            ..
                        }) => {
                            self.check_keys(entries.iter().map(|(key, _)| key).chain([&key]))?;
                            self.merge(&mut entries, &key, &value)?;
                            Content::Map(entries.into())
                        }
                    };
                    self.node(Yaml { content, at }, anchor, before, height + 1)?;
                }
                Event::Alias(anchor) => self.alias(&anchor, at)?,
            }
        }
    }

    fn start(
        &mut self,
        properties: Properties,
        is_map: bool,
        at: Location,
    ) -> Result<(), YamlError> {
        self.check_depth(1)?;
        let before = (self.bytes, self.lines);
        self.spend(&properties, NODE_BYTES, 1)?; // Its end is an event of its own.
        self.anchors
            .extend(properties.anchor.clone().map(|anchor| (anchor, None)));
        let items = match is_map {
            true => Items::Map(OpenMap::default()),
            false => Items::List(Vec::new()),
        };
        self.open.push(Open {
            at,
            anchor: properties.anchor,
            before,
            height: 0,
            items,
        });
        Ok(())
    }

    fn alias(&mut self, anchor: &str, at: Location) -> Result<(), YamlError> {
        match self.anchors.get(anchor).cloned() {
            Some(Some(Anchored {
                node,
                bytes,
                lines,
                height,
            })) => {
                self.check_depth(height)?;
                let before = (self.bytes, self.lines);
                self.count(bytes + NODE_BYTES, lines, true)?;
                self.node(node, None, before, height)
            }
            Some(None) => Err(YamlError::whole(format!(
                "the alias '*{anchor}' is inside of its own anchor"
            ))),
            None => Err(YamlError::new(
                format!("unknown anchor{}", at.suffix()),
                Some(at),
            )),
        }
    }

    fn check_depth(&self, levels: usize) -> Result<(), YamlError> {
        if self.open.len() + levels <= DEPTH_MAX {
            return Ok(());
        }
        Err(YamlError::whole(format!(
            "lists and mappings are nested more than {DEPTH_MAX} deep"
        )))
    }

    /// Counts a node with a text of so many bytes and lines.
    fn spend(
        &mut self,
        Properties { anchor, tag }: &Properties,
        text: usize,
        lines: usize,
    ) -> Result<(), YamlError> {
        let tag = tag.as_ref().map_or(0, String::len);
        self.count(
            NODE_BYTES + anchor.as_ref().map_or(0, String::len) + text,
            lines,
            false,
        )?;
        self.count(tag, 0, true)
    }

    fn count(&mut self, bytes: usize, lines: usize, is_added: bool) -> Result<(), YamlError> {
        // What a line counts for each list and mapping around it, in bytes: its indentation when it
        // is written again.
        let indented = lines.saturating_mul(2 * self.open.len());
        let bytes = bytes.saturating_add(indented);
        self.lines = self.lines.saturating_add(lines);
        self.bytes = self.bytes.saturating_add(bytes);
        self.added = self.added.saturating_add(if is_added { bytes } else { 0 });
        let (counted, max, longer) = match self.origin {
            // What aliases and merge keys may add to a file: as much as fits into a message.
            Origin::Own => (
                self.added.saturating_add(self.merged),
                MESSAGE_MAX,
                " longer",
            ),
            Origin::Others => (self.bytes.saturating_add(self.merged), OTHERS_MAX, ""),
        };
        if counted <= max {
            return Ok(());
        }
        let when = if self.anchors.is_empty() {
            "it is read"
        } else {
            "its aliases are followed"
        };
        Err(YamlError::whole(format!(
            "the YAML text becomes more than {max} bytes{longer} when {when} (each node counts {NODE_BYTES} bytes beside \
             its text); use fewer aliases or several smaller texts"
        )))
    }

    /// Puts a node where it belongs.
    fn node(
        &mut self,
        node: Yaml,
        anchor: Option<String>,
        before: (usize, usize),
        height: usize,
    ) -> Result<(), YamlError> {
        if let Some(anchor) = anchor {
            let (bytes, lines) = (self.bytes - before.0, self.lines - before.1);
            self.anchors.insert(
                anchor,
                Some(Anchored {
                    node: node.clone(),
                    bytes,
                    lines,
                    height,
                }),
            );
        }
        let Some(open) = self.open.last_mut() else {
            self.roots.push(node);
            return Ok(());
        };
        match &mut open.items {
            Items::List(items) => {
                open.height = open.height.max(height);
                items.push(node);
            }
            Items::Map(map) => {
                // What is merged stands one level higher than its mapping does.
                let height = if map.is_merge {
                    height.saturating_sub(1)
                } else {
                    height
                };
                open.height = open.height.max(height);
                map.add(node);
            }
        }
        Ok(())
    }

    /// The scalar that was read last is a merge key, if it is a key at all.
    fn mark_merge_key(&mut self) {
        if let Some(Open {
            items: Items::Map(map),
            ..
        }) = self.open.last_mut()
        {
            map.is_merge = map.key.is_some();
        }
    }

    /// Adds to the entries of a mapping what its merge `key` names, one mapping or several: all
    /// whose keys are not there yet. Of several mappings the first one counts. Each entry counts
    /// again: without aliases, mappings merged into one another would be copied as often as they
    /// are nested.
    fn merge(
        &mut self,
        entries: &mut Vec<(Yaml, Yaml)>,
        key: &Yaml,
        value: &Yaml,
    ) -> Result<(), YamlError> {
        let mappings = match &value.content {
            Content::List(items) => items,
            _ => std::slice::from_ref(value),
        };
        let mut known: HashSet<(Rc<str>, Option<Plain>)> = entries
            .iter()
            .filter_map(|(key, _)| key.identity())
            .collect();
        for mapping in mappings {
            let Content::Map(added) = &mapping.content else {
                let found = mapping.describe();
                let message = format!(
                    "{found} found at '{MERGE_KEY}', expected a mapping or a list of mappings"
                );
                return Err(self.wrong(&message, key.at));
            };
            self.merged = self
                .merged
                .saturating_add(NODE_BYTES.saturating_mul(added.len()));
            self.count(0, 0, false)?;
            for (key, value) in added.iter() {
                // Keys of lists and mappings are of no use.
                if key
                    .identity()
                    .is_some_and(|identity| known.insert(identity))
                {
                    entries.push((key.clone(), value.clone()));
                }
            }
        }
        Ok(())
    }

    /// Keys of lists and mappings are of no use, so only scalars are looked for a second time.
    fn check_keys<'k>(&self, keys: impl Iterator<Item = &'k Yaml>) -> Result<(), YamlError> {
        let mut keys: Vec<_> = keys
            .filter_map(|key| Some((key.source()?, key.plain(), key)))
            .collect();
        keys.sort_by_key(|(text, plain, key)| (*text, *plain, key.at));
        let again = keys
            .windows(2)
            .filter(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1))
            .map(|pair| pair[1].2);
        again.min_by_key(|key| key.at).map_or(Ok(()), |key| {
            let message = format!(
                "duplicate entry with key \"{}\"",
                key.scalar().unwrap_or_default()
            );
            Err(self.wrong(&message, key.at))
        })
    }

    fn scalar(
        &self,
        tag: Option<&str>,
        text: Rc<str>,
        is_plain: bool,
        at: Location,
    ) -> Result<Content, YamlError> {
        let found = if is_plain || tag.is_some() {
            Plain::of(&text)
        } else {
            None
        };
        let (kinds, expected): (&[Plain], _) =
            match tag.and_then(|tag| tag.strip_prefix("tag:yaml.org,2002:")) {
                Some("null") => (&[Plain::Null], "null"),
                Some("bool") => (&[Plain::Boolean], "a boolean"),
                Some("int") => (&[Plain::Integer], "an integer"),
                Some("float") => (&[Plain::Integer, Plain::Float], "a float"),
                // A tag of its own (`!name value`) has no meaning here.
                _ => {
                    let is_text = !is_plain || tag.is_some_and(|tag| !tag.starts_with('!'));
                    let kind = found.filter(|_| !is_text);
                    return Ok(kind.map_or_else(
                        || Content::Text(text.clone()),
                        |kind| Content::Plain(kind, text.clone()),
                    ));
                }
            };
        match found.filter(|kind| kinds.contains(kind)) {
            Some(kind) => Ok(Content::Plain(kind, text)),
            None => Err(self.wrong(&format!("invalid value, expected {expected}"), at)),
        }
    }

    /// The error of what is read now.
    fn wrong(&self, message: &str, at: Location) -> YamlError {
        let mut path = String::new();
        for open in &self.open {
            match &open.items {
                Items::List(items) => {
                    path.push_str(if path.is_empty() { ".[" } else { "[" });
                    path.push_str(&format!("{}]", items.len()));
                }
                Items::Map(OpenMap { key: Some(key), .. }) => {
                    path.push_str(if path.is_empty() { "" } else { "." });
                    path.push_str(key.source().unwrap_or("?"));
                }
                Items::Map(OpenMap { key: None, .. }) => {}
            }
        }
        YamlError::new(
            format!("{}{message}{}", prefix(&path), at.suffix()),
            Some(at),
        )
    }
}

#[cfg(test)]
mod tests;
