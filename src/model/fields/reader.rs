//! Reads YAML by the table of fields: the field tree, problems, and unknown keys.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`, by `server` and by the
//! agent.

use super::{Field, Kind, Object, TAG, TYPE, Text};
use crate::names::{alternatives, excerpt};
use crate::nearest::nearest;
use crate::node::{Entries, Node};
use crate::shown_text::without_passwords;
use crate::version::{API_VERSION, API_VERSION_DEPRECATED};
use crate::yaml::{Content, Location, Plain, Yaml};
use std::fmt;

/// Warnings of unknown keys of one manifest; more would hide the first ones.
pub const MANIFEST_WARNINGS_MAX: usize = 20;

/// Fields with texts of several lines, mostly YAML. Users easily write a mapping there.
const TEXTS_OF_LINES: [&str; 3] = ["runtimeConfig", "data", "manifest"];

/// The kind of a document, by which it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// A manifest for the server: a number can stand for most texts; names are checked later.
    Manifest,
    /// A manifest as the JSON schema describes it: texts are quoted, and their forms are checked.
    Schema,
    /// A complete state or a part of it: null is the same as a missing value.
    State,
    /// A `runtimeConfig` for an engine: every scalar is a text. Problems quote no values, which may
    /// be secret.
    Engine,
    /// A `lifecycle:` block: an unknown key is a problem, since a typo would disable a condition.
    Block,
}

/// A problem of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its path, as in `workloads.web.files[0]`.
    pub path: String,
    pub message: String,
    pub at: Location,
    /// Place of its key; for list items and the outermost node that of the node.
    pub(crate) key_at: Location,
}

/// An unknown key, which is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Its path in the tree, with the key itself.
    pub path: String,
    /// The most similar known key.
    pub nearest: Option<&'static str>,
    /// Its place in the text.
    pub location: Option<Location>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown key '{}' is ignored", self.path)?;
        if let Some(location) = self.location {
            write!(formatter, " at {location}")?;
        }
        if let Some(name) = self.nearest {
            write!(formatter, "; did you mean '{name}'?")?;
        }
        Ok(())
    }
}

/// The content of a document.
#[derive(Debug, Default)]
pub struct ReadDocument {
    /// The readable part.
    pub tree: Node,
    /// Problems in the order of the document; at most [`MANIFEST_WARNINGS_MAX`].
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub more_problems: usize,
    /// The first tags with the shape of another version: message and place.
    pub(crate) wrong_tags: Option<(String, Location)>,
    /// Unknown keys in the order of the document; at most [`MANIFEST_WARNINGS_MAX`] of a text from
    /// others.
    pub unknown: Vec<UnknownKey>,
    /// Number of further unknown keys.
    pub more_unknown: usize,
}

/// Reads `root` as an `object`.
pub fn read(root: &Yaml, object: &'static Object, rules: DocumentKind) -> ReadDocument {
    read_at(root, &At::top(root, rules), object)
}

/// Reads the value of `key` as an `object`.
pub(crate) fn read_part(
    root: &Yaml,
    key: &str,
    object: &'static Object,
    rules: DocumentKind,
) -> Option<ReadDocument> {
    Some(read_at(root, &At::top(root, rules).optional(key)?, object))
}

/// Reads the node `at`, which is the `root` or below it, as an `object`.
fn read_at(root: &Yaml, at: &At<'_>, object: &'static Object) -> ReadDocument {
    let version = root.get("apiVersion").and_then(Yaml::scalar);
    let mut reader = FieldReader {
        version,
        found: ReadDocument::default(),
    };
    let tree = reader.object(at, object);
    let tree = reader.noted(tree).unwrap_or_default();
    ReadDocument {
        tree,
        ..reader.found
    }
}

/// A node and the steps that lead to it, which are joined to a path only for a problem.
struct At<'a> {
    rules: DocumentKind,
    key_at: Location,
    node: &'a Yaml,
    /// The node above; `None` for the outermost one.
    parent: Option<&'a At<'a>>,
    step: PathStep<'a>,
}

/// One step of a path.
#[derive(Clone, Copy)]
enum PathStep<'a> {
    /// To the outermost node.
    Top,
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    fn top(root: &'a Yaml, rules: DocumentKind) -> At<'a> {
        At {
            rules,
            key_at: root.at,
            node: root,
            parent: None,
            step: PathStep::Top,
        }
    }

    fn child(&'a self, name: &'a str, (key, node): &'a (Yaml, Yaml)) -> At<'a> {
        At {
            rules: self.rules,
            key_at: key.at,
            node,
            parent: Some(self),
            step: PathStep::Key(name),
        }
    }

    fn item(&'a self, index: usize, node: &'a Yaml) -> At<'a> {
        At {
            rules: self.rules,
            key_at: node.at,
            node,
            parent: Some(self),
            step: PathStep::Index(index),
        }
    }

    fn optional(&'a self, key: &'a str) -> Option<At<'a>> {
        let entry = self.node.entry(key)?;
        Some(self.child(key, entry))
    }

    /// Returns whether the node has an entry `key`.
    fn has(&self, key: &str) -> bool {
        self.node.get(key).is_some()
    }

    /// Returns whether the node has an entry `key` that is not an empty mapping.
    fn has_content(&self, key: &str) -> bool {
        match self.node.get(key) {
            Some(node) => !matches!(&node.content, Content::Map(entries) if entries.is_empty()),
            None => false,
        }
    }

    /// The path from the outermost node, as people write it. Long keys are shortened: a document
    /// may have thousands of problems below one.
    fn path(&self) -> String {
        let above = match self.parent {
            Some(parent) => parent.path(),
            None => String::new(),
        };
        match self.step {
            PathStep::Top => above,
            PathStep::Key(key) if above.is_empty() => excerpt(key).into_owned(),
            PathStep::Key(key) => format!("{above}.{}", excerpt(key)),
            PathStep::Index(index) => format!("{above}[{index}]"),
        }
    }

    /// Returns how to write a text of several lines in place of a mapping or a list; `None` if a
    /// text of one line is expected.
    fn multiline_advice(&self) -> Option<String> {
        match self.step {
            PathStep::Key(key) if TEXTS_OF_LINES.contains(&key) => Some(format!(
                "write `{key}: |` and leave the lines below it as they are"
            )),
            _ => None,
        }
    }

    fn problem<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        Err(Problem {
            path: self.path(),
            // The message may quote a value, and it is shown in states and logs.
            message: without_passwords(&message.into()),
            at: self.node.at,
            key_at: self.key_at,
        })
    }

    /// Checks the form of a key. The place of the problem is that of the key, not of its value.
    fn check_key(&self, key: &str) -> Result<(), Problem> {
        let Err(message) = Text::Name.check(key) else {
            return Ok(());
        };
        self.problem(message).map_err(|problem| Problem {
            at: problem.key_at,
            ..problem
        })
    }

    fn expected<T>(&self, expected: &str) -> Result<T, Problem> {
        let found = self.node.describe();
        self.problem(format!("expected {expected}, found {found}"))
    }

    /// Returns whether null stands for an empty mapping: at the top of a manifest or
    /// `runtimeConfig`.
    fn may_be_null(&self) -> bool {
        self.parent.is_none() && matches!(self.rules, DocumentKind::Manifest | DocumentKind::Engine)
    }

    /// Returns whether required fields must not be missing. A state may be given in part, but each
    /// item of its lists only as a whole.
    fn is_whole(&self) -> bool {
        self.rules != DocumentKind::State || matches!(self.step, PathStep::Index(_))
    }
}

struct FieldReader<'d> {
    /// The version of the manifest.
    version: Option<&'d str>,
    found: ReadDocument,
}

impl FieldReader<'_> {
    /// Returns the value of a result, or records its problem, so that the rest is read as well.
    fn noted<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(problem) if self.found.problems.len() < MANIFEST_WARNINGS_MAX => {
                self.found.problems.push(problem);
            }
            Err(_) => self.found.more_problems += 1,
        }
        None
    }

    /// Records the problem of `at` with this message.
    fn report(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.noted::<()>(at.problem(message));
    }

    /// The problem of a node with a wrong type. It does not quote the text of an engine, which may
    /// be secret.
    fn wrong_type<T>(&self, at: &At<'_>, expected: &str) -> Result<T, Problem> {
        let is_structure = matches!(at.node.content, Content::List(_) | Content::Map(_));
        if at.rules == DocumentKind::Engine && !is_structure {
            return at.problem(format!("expected {expected}, found a text"));
        }
        at.expected(expected)
    }

    /// The problem of a node that is no list.
    fn no_list<T>(&self, at: &At<'_>) -> Result<T, Problem> {
        let expected = match &at.node.content {
            Content::Plain(Plain::Null, _) => "a list ([] for an empty one)",
            _ => "a list ('- ' before each item)",
        };
        self.wrong_type(at, expected)
    }

    /// The problem of a node that is no mapping; one with required fields cannot be empty.
    fn no_mapping<T>(&self, at: &At<'_>, has_required: bool) -> Result<T, Problem> {
        let expected = match &at.node.content {
            Content::Plain(Plain::Null, _) if !has_required => "a mapping ({} for an empty one)",
            Content::List(_) => "a mapping ('key: value', without '- ')",
            _ => "a mapping ('key: value')",
        };
        self.wrong_type(at, expected)
    }

    /// The problem of a node that lacks a required field, or has none of several.
    fn missing<T>(&self, at: &At<'_>, fields: &[&str]) -> Result<T, Problem> {
        match at.rules {
            DocumentKind::Block if fields.len() > 1 => {
                let names = alternatives(fields);
                at.problem(format!("at least one of {names} is needed"))
            }
            _ => {
                let names = fields.join("` or `");
                at.problem(format!("missing field `{names}`"))
            }
        }
    }

    /// Reads a node of one kind.
    fn value(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        match kind {
            Kind::Text(text) => self.text(at, text),
            Kind::Choice(texts) => self.choice(at, texts),
            Kind::Number => match at.node.scalar().unwrap_or_default().parse() {
                Ok(number) => Ok(Node::Number(number)),
                Err(_) => at.expected("a whole number"),
            },
            Kind::Range(lowest, highest, _) => {
                if let Content::Plain(Plain::Integer, text) = &at.node.content
                    && let Ok(number) = text.parse()
                    && (lowest..=highest).contains(&number)
                {
                    return Ok(Node::Number(number));
                }
                at.expected(&format!("a whole number from {lowest} to {highest}"))
            }
            Kind::True => match &at.node.content {
                Content::Plain(Plain::Boolean, text) if **text == *"true" => Ok(Node::empty()),
                _ => at.expected("true"),
            },
            Kind::Command => {
                let command = self.list(at, Kind::Text(Text::Quoted))?;
                if command.is_empty_container() {
                    return at.problem("expected a command, found an empty list");
                }
                Ok(command)
            }
            Kind::Config => match &at.node.content {
                Content::Text(text) => Ok(Node::text(&**text)),
                Content::List(_) => self.list(at, kind),
                Content::Map(_) => self.map(at, kind, true),
                Content::Plain(Plain::Null, _) => self.wrong_type(at, "text, a list or a mapping"),
                Content::Plain(..) => {
                    self.wrong_type(at, "text (put it in quotes), a list or a mapping")
                }
            },
            Kind::Tags => self.tags(at),
            Kind::List(item) => self.list(at, *item),
            Kind::Map(value) => self.map(at, *value, false),
            Kind::Named(value) => self.map(at, *value, true),
            // The block is read by itself.
            Kind::Object(_) if at.rules == DocumentKind::Engine => Ok(Node::empty()),
            Kind::Object(object) => self.object(at, object),
            Kind::OneOf(objects) => self.one_of(at, objects),
            Kind::Any => Ok(Node::empty()),
        }
    }

    /// Reads a text. Other scalars are texts as well where the document allows it.
    fn text(&self, at: &At<'_>, text: Text) -> Result<Node, Problem> {
        let scalar = if at.rules == DocumentKind::Engine {
            at.node.source()
        } else {
            at.node.scalar()
        };
        let takes_any_scalar = match at.rules {
            DocumentKind::Schema => false,
            DocumentKind::Block => text == Text::Scalar,
            DocumentKind::Manifest => text != Text::Quoted,
            DocumentKind::State | DocumentKind::Engine => true,
        };
        if let Some(found) = scalar
            && (takes_any_scalar || matches!(at.node.content, Content::Text(_)))
        {
            return self.checked_text(at, text, found);
        }
        // It is no text: report that with an advice, if there is one.
        let advice = match scalar {
            Some(_) if at.node.is_null() => None,
            Some(_) => Some("put it in quotes".to_owned()),
            None => at.multiline_advice(),
        };
        match advice {
            Some(advice) => self.wrong_type(at, &format!("text ({advice})")),
            None => self.wrong_type(at, "text"),
        }
    }

    /// Checks the form of a text as far as the rules want it.
    fn checked_text(&self, at: &At<'_>, text: Text, found: &str) -> Result<Node, Problem> {
        match (at.rules, text.check(found)) {
            (DocumentKind::Schema, Err(message)) => at.problem(message),
            (DocumentKind::Block, Err(_)) => at.expected(text.expected()),
            _ => Ok(Node::text(found)),
        }
    }

    /// Reads one of these texts.
    fn choice(&self, at: &At<'_>, texts: &[&str]) -> Result<Node, Problem> {
        if let Content::Text(text) = &at.node.content
            && texts.contains(&&**text)
        {
            return Ok(Node::text(&**text));
        }
        let expected = alternatives(texts);
        match &at.node.content {
            Content::Text(text) => {
                let text = excerpt(text);
                at.problem(format!("unknown value '{text}', expected {expected}"))
            }
            _ => at.expected(&expected),
        }
    }

    /// Reads a list of nodes of one kind. Items with a problem are left out.
    fn list(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        let Content::List(items) = &at.node.content else {
            return self.no_list(at);
        };
        let mut list = Vec::new();
        for (index, node) in items.iter().enumerate() {
            let item = self.value(&at.item(index, node), kind);
            if let Some(item) = self.noted(item) {
                list.push(item);
            }
        }
        Ok(Node::List(list))
    }

    /// Reads a mapping with nodes of one kind below any keys. With `named` the keys are names.
    fn map(&mut self, at: &At<'_>, kind: Kind, named: bool) -> Result<Node, Problem> {
        let Content::Map(entries) = &at.node.content else {
            return self.no_mapping(at, false);
        };
        let mut map = Vec::new();
        for entry in entries.iter() {
            let (key, _) = entry;
            let Some(key) = key.scalar() else {
                // `ank apply` refuses such keys wherever they are.
                if at.rules != DocumentKind::Schema {
                    let found = key.describe();
                    self.report(at, format!("{found} found as key, expected text"));
                }
                continue;
            };
            let child = at.child(key, entry);
            if named && at.rules == DocumentKind::Schema {
                self.noted(child.check_key(key));
            }
            let value = self.value(&child, kind);
            if let Some(value) = self.noted(value) {
                map.push((key, value));
            }
        }
        Ok(Node::map(map))
    }

    /// Reads a mapping by the table of its fields. Problems of its entries are recorded, so that
    /// all others are read as well.
    fn object(&mut self, at: &At<'_>, object: &'static Object) -> Result<Node, Problem> {
        let entries: &[(Yaml, Yaml)] = match &at.node.content {
            Content::Map(entries) => entries,
            Content::Plain(Plain::Null, _) if at.may_be_null() => &[],
            _ => {
                return self.no_mapping(at, object.needs_fields());
            }
        };
        // First the entries that the document has.
        let mut tree = Entries::default();
        for entry in entries {
            let (key, node) = entry;
            let Some(key) = key.scalar() else {
                continue;
            };
            if at.rules == DocumentKind::State && node.is_null() {
                continue;
            }
            let child = at.child(key, entry);
            let Some(field) = object.field_in_manifest(key) else {
                self.unknown(&child, key, object);
                continue;
            };
            let is_absent = at.rules == DocumentKind::Engine && field.nullable && node.is_null();
            // The JSON schema has new names only.
            let is_hidden = at.rules == DocumentKind::Schema && field.name != key;
            if !is_absent && !is_hidden {
                let value = self.field(&child, field);
                // A field with a problem is in the tree as well: it is not missing.
                tree.insert(field.name, self.noted(value).unwrap_or_default());
            }
        }
        // Then what each known field requires of the others.
        for field in object.fields {
            if let Some(old) = field.old_name
                && at.has(old)
                && at.has(field.name)
            {
                let name = field.name;
                self.report(
                    at,
                    format!("duplicate field `{name}` (`{old}` is its old name)"),
                );
            }
            if tree.contains_key(field.name) {
                self.check_companions(at, field);
                continue;
            }
            self.check_missing(at, field);
            if at.rules == DocumentKind::Block
                && let Some(default) = field.default()
            {
                tree.insert(field.name, default);
            }
        }
        // Finally the groups of fields of which one is needed.
        self.check_groups(at, object)?;
        Ok(Node::Map(tree))
    }

    /// Reports a field without value if it is required.
    fn check_missing(&mut self, at: &At<'_>, field: &Field) {
        let name = field.name;
        // The JSON schema does not have the old name, so the field has no value there.
        if let Some(old) = field.old_name
            && at.has(old)
        {
            let message = format!("missing field `{name}` (`{old}` is its old name, rename it)");
            self.report(at, message);
            return;
        }
        if at.is_whole() && field.required {
            self.noted::<()>(self.missing(at, &[name]));
        }
    }

    /// Checks a field that has a value: reports it beside a field that excludes it, or without the
    /// one that it needs.
    fn check_companions(&mut self, at: &At<'_>, field: &Field) {
        if let Some(other) = field.not_with
            && at.has(other)
        {
            if let Some(entry) = at.optional(field.name) {
                let message = format!("it means nothing together with '{other}'; leave it out");
                self.report(&entry, message);
            }
            return; // What it needs does not matter then.
        }
        if let Some(other) = field.needs
            && !at.has(other)
        {
            self.noted::<()>(self.missing(at, &[other]));
        }
    }

    /// Checks the fields of which at least one is required, then those of which exactly one is.
    fn check_groups(&self, at: &At<'_>, object: &Object) -> Result<(), Problem> {
        if at.is_whole() && !object.any_of.is_empty() {
            let mut names = object.any_of.iter();
            let has_one = names.any(|name| at.has_content(name));
            if !has_one {
                return self.missing(at, object.any_of);
            }
        }
        if object.one_of.is_empty() {
            return Ok(());
        }
        let mut found = object.one_of.iter().filter(|name| at.has(name));
        let Some(first) = found.next() else {
            return at.problem(format!("one of {} is needed", alternatives(object.one_of)));
        };
        match found.next() {
            Some(second) => at.problem(format!(
                "'{first}' and '{second}' are both there; only one can be"
            )),
            None => Ok(()),
        }
    }

    /// Reads the value of a field. Null stands for an empty value in some fields and documents.
    fn field(&mut self, at: &At<'_>, field: &Field) -> Result<Node, Problem> {
        let null_is_empty = match (at.rules, field.kind) {
            (DocumentKind::Manifest, Kind::Object(_)) => true,
            // In later versions null is an error, since the value was probably forgotten.
            (
                DocumentKind::Manifest,
                Kind::Tags | Kind::List(_) | Kind::Map(_) | Kind::Named(_),
            ) => field.nullable || self.version == Some(API_VERSION_DEPRECATED),
            _ => field.nullable,
        };
        if !null_is_empty || !at.node.is_null() {
            return self.value(at, field.kind);
        }
        match field.kind {
            Kind::List(_) => Ok(Node::List(Vec::new())),
            _ => Ok(Node::empty()),
        }
    }

    /// Reads a mapping by the table that its field [`TYPE`] chooses.
    fn one_of(&mut self, at: &At<'_>, objects: &'static [Object]) -> Result<Node, Problem> {
        if !matches!(at.node.content, Content::Map(_)) {
            return self.no_mapping(at, true);
        }
        let Some(tag) = at.optional(TYPE) else {
            return self.missing(at, &[TYPE]);
        };
        let chosen = self.choice(&tag, &Kind::OneOf(objects).texts())?;
        for object in objects {
            if object.tag() == chosen.as_text() {
                return self.object(at, object);
            }
        }
        Ok(chosen) // Never reached: `choice` returns the tag of one of the objects.
    }

    /// Reads tags: a mapping, or a list of entries in a manifest of the deprecated version. Notes
    /// the first tags of a manifest that have the shape of the other version.
    fn tags(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        // First, the shape that the version of a manifest requires, if the tags have another one.
        let version = match self.version {
            Some(version) if at.rules == DocumentKind::Manifest => version,
            _ => "",
        };
        let found = match at.node.content {
            Content::Map(_) => "mapping".to_owned(),
            Content::List(_) => "sequence".to_owned(),
            _ => at.node.describe(),
        };
        let required = match version {
            API_VERSION if found != "mapping" => Some("mapping (key-value pairs)"),
            API_VERSION_DEPRECATED if found != "sequence" => {
                Some("sequence (list of key-value entries)")
            }
            _ => None,
        };
        // Then, the tags, if their shape is allowed.
        let Some(required) = required else {
            if found == "sequence" && at.rules == DocumentKind::Manifest {
                return self.tag_list(at);
            }
            return self.map(at, Kind::Text(Text::Quoted), false);
        };
        // Otherwise, the message about their shape.
        let workload = match at.parent.map(|workload| workload.step) {
            Some(PathStep::Key(name)) => name,
            _ => "",
        };
        let message = format!(
            "For API version '{version}', tags must be specified as a {required}. Found tags as {found} for workload \
             '{workload}'."
        );
        self.found.wrong_tags.get_or_insert((message, at.key_at));
        Ok(Node::empty())
    }

    /// Reads a list of tags, as the deprecated version has it.
    fn tag_list(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        let tags = self.list(at, Kind::Object(&TAG))?;
        let mut map = Vec::new();
        for tag in tags.as_list().unwrap_or_default() {
            if let Some(Node::Text(key)) = tag.get("key")
                && let Some(Node::Text(value)) = tag.get("value")
            {
                map.push((key.to_string(), Node::Text(value.clone())));
            }
        }
        Ok(Node::map(map))
    }

    /// Records an unknown key. It is a problem in two places: at the top of a complete state, where
    /// a typo would delete the whole state, and in a `lifecycle:` block, where it would disable a
    /// condition. Elsewhere it is only noted.
    fn unknown(&mut self, at: &At<'_>, key: &str, object: &'static Object) {
        let known = object.names_in_manifest();
        let nearest = nearest(key, known.iter().copied());
        let is_at_top = at.parent.is_some_and(|above| above.parent.is_none());
        let is_top_of_state = at.rules == DocumentKind::State && is_at_top;
        // Keys that begin with `x-` are for others. The top of a state has none.
        if key.starts_with("x-") && !is_top_of_state {
            return;
        }
        let is_in_block = at.rules == DocumentKind::Block;
        if is_top_of_state || is_in_block {
            let message = match nearest {
                Some(name) => format!("unknown key; did you mean '{name}'?"),
                None if is_in_block => format!("unknown key; known are {}", known.join(", ")),
                None => "unknown key".to_owned(),
            };
            self.report(at, message);
            return;
        }
        // Others may have written the text of an engine, with any number of such keys.
        let is_full = self.found.unknown.len() >= MANIFEST_WARNINGS_MAX;
        if at.rules == DocumentKind::Engine && is_full {
            self.found.more_unknown += 1;
            return;
        }
        self.found.unknown.push(UnknownKey {
            path: at.path(),
            nearest,
            location: Some(at.key_at),
        });
    }
}

#[cfg(test)]
mod tests;
