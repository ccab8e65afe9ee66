//! The fields of manifests and complete states: one table for reading, checking, printing and
//! `ank_schema.json`.
//!
//! Thread: none, plain values. The order of the fields is the one in which states are printed.

pub mod reader;
pub mod table;

use super::field_path::is_filter_mask;
use super::names::{excerpt, has_name_characters};
use super::node::Node;
use super::version::API_VERSION;
use crate::limits::{NAME_MAX, SOCKET_PATH_MAX};
use std::net::IpAddr;

/// The field that distinguishes the objects of [`Kind::OneOf`].
pub const TYPE: &str = "type";

/// The kind of a node.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Text of some form.
    Text(Text),
    /// A whole number.
    Number,
    /// A whole number from the first to the second, and the default of a block.
    Range(u64, u64, Option<u64>),
    /// `true` and nothing else; in the tree an empty map.
    True,
    /// One text or more.
    Command,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A value for templates: text, list or mapping.
    Config,
    /// Texts by key; in a manifest of the deprecated version a list of entries, see [`TAG`].
    Tags,
    /// Any number of these.
    List(&'static Kind),
    /// Any number of keys, each with this below it.
    Map(&'static Kind),
    /// Any number of keys that are names, each with this below it.
    Named(&'static Kind),
    /// A mapping with known fields.
    Object(&'static Object),
    /// One of these objects, chosen by the field [`TYPE`].
    OneOf(&'static [Object]),
    /// A value from the server, which cannot be set.
    Any,
}

impl Kind {
    /// The texts of a choice, or those of [`TYPE`] that choose an object.
    pub(crate) fn texts(self) -> Vec<&'static str> {
        match self {
            Self::Choice(texts) => texts.to_vec(),
            Self::OneOf(objects) => objects.iter().filter_map(Object::tag).collect(),
            _ => Vec::new(),
        }
    }

    /// The object that describes a `node` of this kind.
    pub fn object(self, node: &Node) -> Option<&'static Object> {
        match self {
            Self::Object(object) => Some(object),
            Self::OneOf(objects) => {
                let text = node.get(TYPE)?.as_text();
                objects.iter().find(|object| object.tag() == text)
            }
            _ => None,
        }
    }
}

/// A mapping with known fields.
#[derive(Debug, Clone, Copy)]
pub struct Object {
    /// Its name in the JSON schema, or empty.
    // Only the test that compares the schema reads it.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) name: &'static str,
    /// In the order in which they are printed.
    pub fields: &'static [Field],
    /// Fields of which at least one is required; any may be missing when this is empty.
    pub(crate) any_of: &'static [&'static str],
    /// Fields of which exactly one is required, likewise.
    pub(crate) one_of: &'static [&'static str],
}

impl Object {
    pub(super) const fn new(fields: &'static [Field]) -> Self {
        Self::named("", fields)
    }

    pub(super) const fn named(name: &'static str, fields: &'static [Field]) -> Self {
        Self {
            name,
            fields,
            any_of: &[],
            one_of: &[],
        }
    }

    /// The text of [`TYPE`] that chooses this object.
    pub(crate) fn tag(&self) -> Option<&'static str> {
        match self.field(TYPE)?.kind {
            Kind::Choice(texts) => texts.first().copied(),
            _ => None,
        }
    }

    /// The field `name`.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The field that a `key` of a manifest means: its name, or its old one.
    fn field_in_manifest(&self, key: &str) -> Option<&'static Field> {
        self.fields
            .iter()
            .find(|field| field.name == key || field.old_name == Some(key))
    }

    /// The names of all fields in a manifest, also the old ones.
    fn names_in_manifest(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for field in self.fields {
            names.push(field.name);
            names.extend(field.old_name);
        }
        names
    }

    /// Returns whether it is incomplete without any field.
    fn needs_fields(&self) -> bool {
        let has_required = self.fields.iter().any(|field| field.required);
        has_required || !self.any_of.is_empty() || !self.one_of.is_empty()
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

/// A field of an object.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    /// Its earlier name, which manifests for the server may still use.
    pub(crate) old_name: Option<&'static str>,
    pub kind: Kind,
    /// Whether an object is incomplete without it.
    pub(crate) required: bool,
    /// Whether null stands for an empty value in every manifest.
    pub(crate) nullable: bool,
    /// Whether an empty value is not printed.
    pub(crate) omit_empty: bool,
    /// The default in a block, unless it is a number.
    pub(crate) default: Option<&'static str>,
    /// Another field that excludes this one.
    pub(crate) not_with: Option<&'static str>,
    /// Another field that this one requires.
    pub(crate) needs: Option<&'static str>,
}

impl Field {
    pub(super) const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            old_name: None,
            kind,
            required: false,
            nullable: false,
            omit_empty: false,
            default: None,
            not_with: None,
            needs: None,
        }
    }

    pub(super) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    const fn omit_empty(self) -> Self {
        Self {
            omit_empty: true,
            ..self
        }
    }

    /// The default in a block.
    fn default(&self) -> Option<Node> {
        match self.kind {
            Kind::Range(.., Some(default)) => Some(Node::Number(default)),
            _ => self.default.map(Node::text),
        }
    }

    /// Returns whether `node`, the value of this field, is empty and not printed.
    pub fn is_omitted(&self, node: &Node) -> bool {
        if !self.omit_empty {
            return false;
        }
        match (self.kind, node) {
            // An object is empty if all its fields are: missing access rules mean the same as two
            // empty lists.
            (Kind::Object(object), Node::Map(entries)) => entries.iter().all(|(key, node)| {
                let field = object.field(key);
                field.is_some_and(|field| field.is_omitted(node))
            }),
            (Kind::Object(_), _) => false,
            _ => node.is_empty_container(),
        }
    }
}

/// The form of a text. `ank` checks it before a manifest is sent; the server checks names later,
/// after templates are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// Any text; the server takes a number as well.
    Any,
    /// Any text; a number must be in quotes.
    Quoted,
    /// Any text; a number, boolean or null is one as well.
    Scalar,
    /// The version of a manifest.
    Version,
    /// A name of something.
    Name,
    /// The name of an agent, which may hold templates and be empty.
    Agent,
    /// A field mask of an access rule.
    Mask,
    /// A workload name of an access rule, with at most one wildcard.
    NamePattern,
    /// An absolute path of a node.
    Path,
    /// That of a socket.
    SocketPath,
    /// The path of a URL.
    UrlPath,
    /// An IP address or `localhost`.
    Address,
}

impl Text {
    /// Its longest length in characters. A bounded text must not be empty.
    pub(crate) fn length_max(self) -> Option<usize> {
        match self {
            Self::Name => Some(NAME_MAX),
            Self::NamePattern => Some(NAME_MAX + 1),
            Self::Path | Self::UrlPath => Some(PATH_MAX),
            Self::SocketPath => Some(SOCKET_PATH_MAX),
            _ => None,
        }
    }

    /// Returns whether `text` has its form.
    fn matches(self, text: &str) -> bool {
        match self {
            Self::Any | Self::Quoted | Self::Scalar => true,
            Self::Version => text == API_VERSION,
            Self::Name => !text.is_empty() && has_name_characters(text),
            Self::Agent => is_agent_with_templates(text),
            Self::Mask => is_filter_mask(text),
            Self::NamePattern => {
                !text.is_empty()
                    && text.matches('*').count() <= 1
                    && text.split('*').all(has_name_characters)
            }
            Self::Path | Self::SocketPath => self.is_absolute_path(text),
            Self::UrlPath => {
                self.is_absolute_path(text) && text.bytes().all(|byte| byte.is_ascii_graphic())
            }
            Self::Address => text == "localhost" || text.parse::<IpAddr>().is_ok(),
        }
    }

    fn is_absolute_path(self, text: &str) -> bool {
        let is_short = self.length_max().is_none_or(|max| text.len() <= max);
        is_short && text.starts_with('/') && !text.contains('\0')
    }

    /// Describes the form, for the error of a text that does not have it.
    fn expected(self) -> &'static str {
        match self {
            Self::Any | Self::Quoted | Self::Scalar => "",
            Self::Version => "v1",
            Self::Name => "letters, digits, '_' and '-'",
            Self::Agent => "letters, digits, '_', '-' and templates as {{config}}",
            Self::Mask => "names or '*', separated by '.'",
            Self::NamePattern => "letters, digits, '_', '-' and at most one '*'",
            Self::Path => "an absolute path of the node",
            Self::SocketPath => "an absolute path of the node with at most 107 bytes",
            Self::UrlPath => "a path that begins with '/' and has no blanks",
            Self::Address => "an IP address or localhost (names are not looked up)",
        }
    }

    /// Checks the length and the form of `text`.
    ///
    /// # Errors
    /// The message for people.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        if let Some(max) = self.length_max() {
            if text.is_empty() {
                return Err(format!("expected {}, found an empty text", self.expected()));
            }
            if text.chars().count() > max {
                return Err(format!(
                    "expected at most {max} characters, found '{}'",
                    excerpt(text)
                ));
            }
        }
        if self.matches(text) {
            return Ok(());
        }
        Err(format!(
            "expected {}, found '{}'",
            self.expected(),
            excerpt(text)
        ))
    }
}

/// Name characters with any number of `{{alias}}` or `{{alias.key}}` between them; may be empty.
fn is_agent_with_templates(text: &str) -> bool {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((template, behind)) = after.split_once("}}") else {
            return false;
        };
        if !has_name_characters(before) {
            return false;
        }
        for part in template.split('.') {
            if part.is_empty() || !has_name_characters(part) {
                return false;
            }
        }
        rest = behind;
    }
    has_name_characters(rest)
}

/// Longest path of a check, in bytes.
const PATH_MAX: usize = 1024;
const _: () = assert!(SOCKET_PATH_MAX == 107, "a text names it");

const QUOTED: Kind = Kind::Text(Text::Quoted);

/// A tag in a manifest of the deprecated version.
pub(crate) const TAG: Object = Object::new(&[
    Field::new("key", QUOTED).required(),
    Field::new("value", QUOTED).required(),
]);

/// Removes empty values of fields with `omit_empty`, which are printed only with a value.
pub fn omit_empty(node: &mut Node, kind: Kind) {
    match (kind, node) {
        (Kind::Map(below) | Kind::Named(below), Node::Map(entries)) => {
            for node in entries.values_mut() {
                omit_empty(node, *below);
            }
        }
        (Kind::Object(object), Node::Map(entries)) => {
            for field in object.fields {
                let Some(node) = entries.get_mut(field.name) else {
                    continue;
                };
                omit_empty(node, field.kind);
                if field.is_omitted(node) {
                    entries.remove(field.name);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
