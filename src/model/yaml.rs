//! Reads YAML texts into trees that keep what manifests need: the source text of numbers, and the
//! place of each node.
//!
//! Thread: none, plain values.
//!
//! This is the one reader of all YAML texts. It takes one event after the other; an alias shares
//! the node of its anchor. So the length of a text and the entries of its merge keys (`<<`) bound
//! the memory of the tree. They do not bound values that are made of the tree, since aliases repeat
//! nodes; that size is counted while aliases are followed.

mod events;

use crate::limits::{FOREIGN_MESSAGE_MAX, MESSAGE_MAX};
use crate::names::excerpt;
use events::{Event, Events, Properties};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;

/// Counted size of a YAML node beside its text, in bytes: about its memory, here and in the values
/// that are made of it.
pub(crate) const NODE_BYTES: usize = 128;
/// Counted size of a text from others, in bytes: some 30,000 nodes or 4 MB of text, so an agent
/// stays below 50 MB.
pub(crate) const OTHERS_MAX: usize = FOREIGN_MESSAGE_MAX;
/// Levels of lists and mappings: bounds every recursion over a tree.
const DEPTH_MAX: usize = 128;
/// The key, without quotes, that merges other mappings into its own.
const MERGE_KEY: &str = "<<";
/// The tag of a merge key, which may be left out.
const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// One node of a YAML document. Copies share the nodes below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yaml {
    pub content: Content,
    /// Its beginning; for an alias the beginning of the anchored node.
    pub at: Location,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text, in quotes or not.
    Text(Rc<str>),
    /// Null, a number or a boolean, as written in the file.
    Plain(Plain, Rc<str>),
    List(Rc<[Yaml]>),
    /// Keys and values in the order of the file, without duplicates.
    Map(Rc<[(Yaml, Yaml)]>),
}

/// The kind of a scalar without quotes that is not a text.
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
    /// Classifies a scalar without quotes by the core schema of YAML 1.2; `None` for a text.
    fn of(text: &str) -> Option<Self> {
        match text {
            "" | "null" | "Null" | "NULL" | "~" => return Some(Self::Null),
            "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => return Some(Self::Boolean),
            ".nan" | ".NaN" | ".NAN" => return Some(Self::Float),
            _ => {}
        }
        let number = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !number.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
            return None;
        }
        // A number with a leading zero, such as a telephone number, is a text.
        if number.len() > 1 && number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2), ("", 10)] {
            if is_integer(number, prefix, radix) {
                return Some(Self::Integer);
            }
        }
        if matches!(number, ".inf" | ".Inf" | ".INF") || number.parse().is_ok_and(f64::is_finite) {
            return Some(Self::Float);
        }
        None
    }
}

/// Returns whether `number` is `prefix` and digits, without a sign between them.
fn is_integer(number: &str, prefix: &str, radix: u32) -> bool {
    let Some(digits) = number.strip_prefix(prefix) else {
        return false;
    };
    !digits.starts_with(['+', '-']) && u128::from_str_radix(digits, radix).is_ok()
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

    /// The identity of a key, unique in its mapping; `None` for lists and mappings.
    fn identity(&self) -> Option<(Rc<str>, Option<Plain>)> {
        match &self.content {
            Content::Text(text) => Some((text.clone(), None)),
            Content::Plain(plain, text) => Some((text.clone(), Some(*plain))),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    fn plain(&self) -> Option<Plain> {
        match self.content {
            Content::Plain(plain, _) => Some(plain),
            _ => None,
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

    /// The value of `key` if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Yaml> {
        let (_, value) = self.entry(key)?;
        Some(value)
    }

    /// Describes the node for error texts: `number 5`, `a list`.
    pub fn describe(&self) -> String {
        match &self.content {
            Content::Text(text) if text.chars().count() > 40 => "a text".to_owned(),
            Content::Text(text) => format!("text '{text}'"),
            Content::Plain(Plain::Null, text) if text.is_empty() => "nothing".to_owned(),
            Content::Plain(Plain::Null, _) => "null".to_owned(),
            Content::Plain(Plain::Boolean, text) => format!("boolean {text}"),
            Content::Plain(_, text) => format!("number {}", excerpt(text)),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a mapping".to_owned(),
        }
    }

    /// The text of the scalar that `path` leads to through maps.
    pub(crate) fn scalar_at(&self, path: &[&str]) -> Option<&str> {
        let (_, value) = self.entry_at(path)?;
        value.scalar()
    }

    /// The key and the value that `path` leads to through maps.
    pub fn entry_at(&self, path: &[&str]) -> Option<&(Yaml, Yaml)> {
        let (key, above) = path.split_last()?;
        let mut node = self;
        for key in above {
            node = node.get(key)?;
        }
        node.entry(key)
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

    /// The end of a message of the reader. The beginning is not named, since it also stands for
    /// "unknown".
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

/// The path before a message about a node; empty for the root.
pub(crate) fn prefix(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!("{path}: ")
    }
}

/// The text is not YAML, has a duplicate key, or becomes too large.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// The message for people, with the line if there is one.
    pub message: String,
    /// The place; `None` if the text as a whole is refused.
    pub location: Option<Location>,
    pub fault: YamlFault,
}

impl YamlError {
    /// Returns what to do about a `text` that has this error: `general` if its place is unknown.
    pub fn hint(&self, text: &str, general: &str) -> String {
        let Some(at) = self.location else {
            return general.to_owned();
        };
        let number = at.line;
        match self.fault {
            YamlFault::SecondDocument => {
                return format!(
                    "{general}; put what begins in line {number} into a file of its own"
                );
            }
            YamlFault::DuplicateKey => {
                return format!("remove one of the two keys; the second is in line {number}");
            }
            YamlFault::Other => {}
        }
        let line = text.lines().nth(number as usize - 1).unwrap_or_default();
        if line.trim_start_matches(' ').starts_with('\t') {
            return format!(
                "tabs cannot indent in YAML; line {number} begins with one: use spaces"
            );
        }
        format!("check line {number} and those before it: indentation, quotes and brackets")
    }
}

/// The fault of a text, as far as programs decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YamlFault {
    /// Only the message has it.
    Other,
    /// A second document begins there although only one is expected.
    SecondDocument,
    /// The key is there for the second time.
    DuplicateKey,
}

impl YamlError {
    fn new(message: String, location: Option<Location>) -> Self {
        Self {
            message,
            location,
            fault: YamlFault::Other,
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
            fault: YamlFault::SecondDocument,
        }
    }
}

/// The author of a text. Its counted size is bounded: its texts, and [`NODE_BYTES`] for each node.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// The user's own file: only the size that aliases and tags add is bounded.
    Own,
    /// Others, who sent a runtime configuration, or the Kubernetes manifest in one: the whole size
    /// is bounded.
    Others,
}

/// One document.
#[derive(Debug, Clone)]
pub struct Document {
    pub root: Yaml,
    /// Counted size with its aliases followed, in bytes; reading takes some 5 ns for each.
    pub(crate) size: usize,
}

/// Reads a text of one document; an empty text is null.
///
/// # Errors
/// [`YamlError`] if it is not exactly one well-formed document, or becomes too large.
pub fn read(text: &str, origin: Origin) -> Result<Document, YamlError> {
    let mut reader = Reader::new(origin);
    let mut events = Events::new(text);
    let end_of_text = reader.document(&mut events)?;
    if end_of_text.is_none() {
        // There is a document, and the text must end after it.
        let (event, at) = events.next()?;
        if !matches!(event, Event::EndOfText) {
            return Err(YamlError::second_document(at));
        }
    }
    let root = reader.roots.pop().unwrap_or_else(|| Yaml {
        content: Content::Plain(Plain::Null, "".into()),
        at: end_of_text.unwrap_or(Location::BEGIN),
    });
    Ok(Document {
        root,
        size: reader.bytes,
    })
}

/// Reads all documents of a text, which together are bounded.
///
/// # Errors
/// [`YamlError`] if one is not well-formed, or if they become too large.
pub fn read_all(text: &str, origin: Origin) -> Result<Vec<Yaml>, YamlError> {
    let mut reader = Reader::new(origin);
    let mut events = Events::new(text);
    while reader.document(&mut events)?.is_none() {}
    Ok(reader.roots)
}

struct Reader {
    origin: Origin,
    /// Counted size of the text so far, in bytes.
    bytes: usize,
    /// The part of `bytes` from aliases and tags.
    added: usize,
    /// Size of the entries that merging has copied, in bytes. An alias does not add it again.
    merged: usize,
    /// Lines of the text when it is written again; each may be indented.
    lines: usize,
    /// Lists and mappings that have not ended.
    open: Vec<OpenCollection>,
    /// Nodes by anchor; `None` while one has not ended.
    anchors: HashMap<String, Option<Anchored>>,
    /// The outermost nodes of the documents.
    roots: Vec<Yaml>,
}

/// The counted size of a part of the text.
#[derive(Clone, Copy)]
struct Size {
    bytes: usize,
    lines: usize,
}

/// A list or mapping that has not ended.
struct OpenCollection {
    at: Location,
    anchor: Option<String>,
    /// Size of the text before it.
    before: Size,
    /// Levels of lists and mappings in it.
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
    /// Whether `key` is a merge key.
    is_merge: bool,
    /// The merge key and its value, which are not entries.
    merged: Option<(Yaml, Yaml)>,
}

impl OpenMap {
    /// Adds a key, or the value of the last key.
    fn add(&mut self, node: Yaml) {
        let Some(key) = self.key.take() else {
            self.key = Some(node);
            return;
        };
        let is_merge = std::mem::take(&mut self.is_merge);
        if is_merge && self.merged.is_none() {
            self.merged = Some((key, node));
        } else {
            // A second merge key is reported as a duplicate.
            self.entries.push((key, node));
        }
    }
}

/// A tag of the core schema that a scalar must fit.
struct CoreTag {
    kinds: &'static [Plain],
    expected: &'static str,
}

impl CoreTag {
    fn new(kinds: &'static [Plain], expected: &'static str) -> Self {
        Self { kinds, expected }
    }

    fn of(tag: &str) -> Option<Self> {
        match tag.strip_prefix("tag:yaml.org,2002:")? {
            "null" => Some(Self::new(&[Plain::Null], "null")),
            "bool" => Some(Self::new(&[Plain::Boolean], "a boolean")),
            "int" => Some(Self::new(&[Plain::Integer], "an integer")),
            "float" => Some(Self::new(&[Plain::Integer, Plain::Float], "a float")),
            _ => None,
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
        Self {
            origin,
            bytes: 0,
            added: 0,
            merged: 0,
            lines: 0,
            open: Vec::new(),
            anchors: HashMap::new(),
            roots: Vec::new(),
        }
    }

    fn size(&self) -> Size {
        Size {
            bytes: self.bytes,
            lines: self.lines,
        }
    }

    /// Takes the events up to the end of a document. Returns the end of the text if that comes
    /// first.
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
                    let before = self.size();
                    let breaks = text.matches('\n').count();
                    self.spend(&properties, text.len(), breaks + 1)?;
                    let tag = properties.tag.as_deref();
                    // A merge key has its tag, or neither a tag nor quotes.
                    let may_merge = match tag {
                        Some(tag) => tag == MERGE_TAG,
                        None => is_plain,
                    };
                    let is_merge = may_merge && *text == *MERGE_KEY;
                    let content = self.scalar(tag, text, is_plain, at)?;
                    self.node(Yaml { content, at }, properties.anchor, before, 0)?;
                    if is_merge {
                        self.mark_merge_key();
                    }
                }
                Event::Start { properties, is_map } => self.start(properties, is_map, at)?,
                Event::End => self.end()?,
                Event::Alias(anchor) => self.alias(&anchor, at)?,
            }
        }
    }

    /// Begins a list or map, to which the following nodes belong.
    fn start(
        &mut self,
        properties: Properties,
        is_map: bool,
        at: Location,
    ) -> Result<(), YamlError> {
        self.check_depth(1)?;
        let before = self.size();
        self.spend(&properties, NODE_BYTES, 1)?; // Its begin counts as a node, and so does its end.
        if let Some(anchor) = &properties.anchor {
            self.anchors.insert(anchor.clone(), None);
        }
        let items = if is_map {
            Items::Map(OpenMap::default())
        } else {
            Items::List(Vec::new())
        };
        self.open.push(OpenCollection {
            at,
            anchor: properties.anchor,
            before,
            height: 0,
            items,
        });
        Ok(())
    }

    /// Ends the list or map that was started last.
    fn end(&mut self) -> Result<(), YamlError> {
        let Some(OpenCollection {
            at,
            anchor,
            before,
            height,
            items,
        }) = self.open.pop()
        else {
            return Ok(());
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
        self.node(Yaml { content, at }, anchor, before, height + 1)
    }

    /// Adds the node of an anchor once more.
    fn alias(&mut self, anchor: &str, at: Location) -> Result<(), YamlError> {
        match self.anchors.get(anchor).cloned() {
            Some(Some(Anchored {
                node,
                bytes,
                lines,
                height,
            })) => {
                self.check_depth(height)?;
                let before = self.size();
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

    /// Counts a node whose text has `text` bytes and `lines` lines.
    fn spend(
        &mut self,
        Properties { anchor, tag }: &Properties,
        text: usize,
        lines: usize,
    ) -> Result<(), YamlError> {
        let anchor = anchor.as_deref().unwrap_or_default();
        self.count(NODE_BYTES + anchor.len() + text, lines, false)?;
        let tag = tag.as_deref().unwrap_or_default();
        self.count(tag.len(), 0, true)
    }

    /// Adds a part of the text to the counted size. `is_added`: an alias or a tag adds it.
    ///
    /// # Errors
    /// The text becomes too large.
    fn count(&mut self, bytes: usize, lines: usize, is_added: bool) -> Result<(), YamlError> {
        // Each line also counts its indentation when it is written again: two bytes for each list
        // and mapping around it.
        let indented = lines.saturating_mul(2 * self.open.len());
        let bytes = bytes.saturating_add(indented);
        self.lines = self.lines.saturating_add(lines);
        self.bytes = self.bytes.saturating_add(bytes);
        if is_added {
            self.added = self.added.saturating_add(bytes);
        }
        match self.origin {
            // The user's own file may be of any size, but aliases, tags and merge keys may add only
            // as much to it as fits into a message.
            Origin::Own if self.added.saturating_add(self.merged) > MESSAGE_MAX => {
                Err(self.too_large(&format!("{MESSAGE_MAX} bytes longer")))
            }
            Origin::Others if self.bytes.saturating_add(self.merged) > OTHERS_MAX => {
                Err(self.too_large(&format!("{OTHERS_MAX} bytes")))
            }
            Origin::Own | Origin::Others => Ok(()),
        }
    }

    /// The error of a text that becomes more than `size`, such as `4194304 bytes`.
    fn too_large(&self, size: &str) -> YamlError {
        let when = if self.anchors.is_empty() {
            "it is read"
        } else {
            "its aliases are followed"
        };
        YamlError::whole(format!(
            "the YAML text becomes more than {size} when {when} (each node counts {NODE_BYTES} bytes beside its text); \
             use fewer aliases or several smaller texts"
        ))
    }

    /// Adds a complete node to the list or mapping around it, and remembers it by its anchor.
    fn node(
        &mut self,
        node: Yaml,
        anchor: Option<String>,
        before: Size,
        height: usize,
    ) -> Result<(), YamlError> {
        if let Some(anchor) = anchor {
            let anchored = Anchored {
                node: node.clone(),
                bytes: self.bytes - before.bytes,
                lines: self.lines - before.lines,
                height,
            };
            self.anchors.insert(anchor, Some(anchored));
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
                // The entries of a merged mapping end up one level higher.
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

    /// Marks the last scalar as a merge key, if it is a key at all.
    fn mark_merge_key(&mut self) {
        if let Some(OpenCollection {
            items: Items::Map(map),
            ..
        }) = self.open.last_mut()
        {
            map.is_merge = map.key.is_some();
        }
    }

    /// Merges the mapping or mappings of the merge `key` into `entries`; an earlier entry wins.
    /// Each copy is counted, since nested merges copy an entry once for each level.
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
        let keys = entries.iter().map(|(key, _)| key);
        let mut known: HashSet<_> = keys.filter_map(Yaml::identity).collect();
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
            self.count(0, 0, false)?; // Compares the size with its bound.
            for (key, value) in added.iter() {
                // Lists and mappings are useless as keys.
                if let Some(identity) = key.identity()
                    && known.insert(identity)
                {
                    entries.push((key.clone(), value.clone()));
                }
            }
        }
        Ok(())
    }

    /// Refuses duplicate keys. Lists and mappings are useless as keys, so only scalars are checked.
    fn check_keys<'k>(&self, keys: impl Iterator<Item = &'k Yaml>) -> Result<(), YamlError> {
        let mut scalars: Vec<&Yaml> = keys.filter(|key| key.source().is_some()).collect();
        scalars.sort_by_key(|key| (key.source(), key.plain(), key.at));
        // Of several duplicates, the first one in the text is reported.
        let mut duplicate: Option<&Yaml> = None;
        for pair in scalars.windows(2) {
            let is_same = pair[0].content == pair[1].content;
            if is_same && duplicate.is_none_or(|first| pair[1].at < first.at) {
                duplicate = Some(pair[1]);
            }
        }
        let Some(key) = duplicate else {
            return Ok(());
        };
        let text = key.scalar().unwrap_or_default();
        let mut error = self.wrong(&format!("duplicate entry with key \"{text}\""), key.at);
        error.fault = YamlFault::DuplicateKey;
        Err(error)
    }

    /// The content of a scalar: a text, or what its tag or its form make of it.
    fn scalar(
        &self,
        tag: Option<&str>,
        text: Rc<str>,
        is_plain: bool,
        at: Location,
    ) -> Result<Content, YamlError> {
        // Without a tag of the core schema, quotes decide. A local tag (`!name value`) has no
        // meaning here, any other one makes a text.
        let Some(allowed) = tag.and_then(CoreTag::of) else {
            let is_text = !is_plain || tag.is_some_and(|tag| !tag.starts_with('!'));
            return Ok(match Plain::of(&text) {
                Some(kind) if !is_text => Content::Plain(kind, text),
                _ => Content::Text(text),
            });
        };
        match Plain::of(&text) {
            Some(kind) if allowed.kinds.contains(&kind) => Ok(Content::Plain(kind, text)),
            _ => {
                let expected = allowed.expected;
                Err(self.wrong(&format!("invalid value, expected {expected}"), at))
            }
        }
    }

    /// Returns an error with the path to the present position, such as `workloads.web.files[0]`. A
    /// path that begins with a list begins with a dot: `.[0]`.
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
                Items::Map(OpenMap { key: None, .. }) => {} // The error is about the whole mapping.
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
