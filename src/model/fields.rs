//! The fields of manifests and complete states: one table for reading, checking, printing and
//! `ank_schema.json`.
//!
//! Thread: none, plain values. The order of the fields is the one in which states are printed.

pub mod reader;
pub mod table;

use super::field_path::is_filter_mask;
use super::names::has_name_characters;
use super::node::Node;
use super::version::API_VERSION;
use crate::limits::{NAME_MAX, SOCKET_PATH_MAX};
use std::net::IpAddr;

/// The field that distinguishes the objects of [`Kind::OneOf`].
pub const TYPE: &str = "type";

/// What a node is.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Text of some form.
    Text(Text),
    /// A whole number.
    Number,
    /// A whole number from the first to the second, with the one that a block has where it is not
    /// given.
    Range(u64, u64, Option<u64>),
    /// `true` and nothing else; in the tree an empty map.
    True,
    /// Texts of which there is at least one.
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
    /// The same with keys that are names.
    Named(&'static Kind),
    /// A mapping with known fields.
    Object(&'static Object),
    /// One of these objects, chosen by the field [`TYPE`].
    OneOf(&'static [Object]),
    /// Whatever the server sends; nothing that can be set.
    Any,
}

impl Kind {
    /// The texts of which one must be the value, or the first field of the object.
    pub(crate) fn texts(self) -> Vec<&'static str> {
        match self {
            Self::Choice(texts) => texts.to_vec(),
            Self::OneOf(objects) => objects.iter().filter_map(Object::tag).collect(),
            _ => Vec::new(),
        }
    }

    /// The object that `node` is when it is of this kind.
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
    /// Its name in the JSON schema; empty for one that has none there. Descriptions are there only.
    // The test that compares the schema reads it.
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

    /// The text of [`TYPE`], by which it is distinguished from others.
    pub(crate) fn tag(&self) -> Option<&'static str> {
        if let Kind::Choice(texts) = self.field(TYPE)?.kind {
            texts.first().copied()
        } else {
            None
        }
    }

    /// The field `name`.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

/// A field of an object.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its key.
    pub name: &'static str,
    /// The key that it had earlier; a manifest may still use it for the server.
    pub(crate) old_name: Option<&'static str>,
    pub kind: Kind,
    /// Whether an object is incomplete without it.
    pub(crate) required: bool,
    /// Whether null stands for an empty value in every manifest.
    pub(crate) nullable: bool,
    /// Whether it is not printed when it holds nothing.
    pub(crate) omit_empty: bool,
    /// What a block has where it is not given, beside numbers.
    pub(crate) default: Option<&'static str>,
    /// The field beside which it means nothing.
    pub(crate) not_with: Option<&'static str>,
    /// The field that it needs beside it.
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

    /// What a block has where it is not given.
    fn default(&self) -> Option<Node> {
        match self.kind {
            Kind::Range(.., Some(default)) => Some(Node::Number(default)),
            _ => self.default.map(Node::text),
        }
    }

    /// Whether `node`, the value of this field, is left out where only values are of interest.
    pub fn is_omitted(&self, node: &Node) -> bool {
        let is_empty = |node: &Node| match self.kind {
            // Only with fields that are left out themselves: no access rules are as good as two
            // empty lists.
            Kind::Object(object) => node.as_map().is_some_and(|entries| {
                entries.iter().all(|(key, node)| {
                    object
                        .field(key)
                        .is_some_and(|field| field.is_omitted(node))
                })
            }),
            _ => node.is_empty_container(),
        };
        self.omit_empty && is_empty(node)
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
    /// How many characters it has at most; it is not empty where this is bounded.
    pub(crate) fn length_max(self) -> Option<usize> {
        match self {
            Self::Name => Some(NAME_MAX),
            Self::NamePattern => Some(NAME_MAX + 1),
            Self::Path | Self::UrlPath => Some(PATH_MAX),
            Self::SocketPath => Some(SOCKET_PATH_MAX),
            _ => None,
        }
    }

    /// Whether `text` has its form.
    fn matches(self, text: &str) -> bool {
        match self {
            Self::Any | Self::Quoted | Self::Scalar => true,
            Self::Version => text == API_VERSION,
            Self::Name => !text.is_empty() && has_name_characters(text),
            Self::Agent => is_agent(text),
            Self::Mask => is_filter_mask(text),
            Self::NamePattern => {
                !text.is_empty()
                    && text.matches('*').count() <= 1
                    && text.split('*').all(has_name_characters)
            }
            Self::Path | Self::SocketPath | Self::UrlPath => {
                let is_printable =
                    self != Self::UrlPath || text.bytes().all(|byte| byte.is_ascii_graphic());
                let is_short = self.length_max().is_none_or(|max| text.len() <= max);
                text.starts_with('/') && !text.contains('\0') && is_printable && is_short
            }
            Self::Address => text == "localhost" || text.parse::<IpAddr>().is_ok(),
        }
    }

    /// What a text of another form should be.
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
            Self::Address => "an IP address or localhost; names are not looked up",
        }
    }

    /// What is wrong with `text`.
    ///
    /// # Errors
    /// It is too short, too long, or does not match the pattern.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self.length_max() {
            Some(_) if text.is_empty() => Err("\"\" is shorter than 1 character".to_owned()),
            Some(max) if text.chars().count() > max => {
                Err(format!("\"{text}\" is longer than {max} characters"))
            }
            _ if self.matches(text) => Ok(()),
            _ => Err(format!(
                "\"{text}\" is not valid, expected {}",
                self.expected()
            )),
        }
    }
}

/// Name characters with any number of `{{alias}}` or `{{alias.key}}` between them; may be empty.
fn is_agent(text: &str) -> bool {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((template, behind)) = after.split_once("}}") else {
            return false;
        };
        let is_template = template
            .split('.')
            .all(|part| !part.is_empty() && has_name_characters(part));
        if !has_name_characters(before) || !is_template {
            return false;
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

/// Leaves out what is omitted when it is empty, so that an empty container means the same as none.
pub fn omit_empty(node: &mut Node, kind: Kind) {
    match (kind, node) {
        (Kind::Map(below) | Kind::Named(below), Node::Map(entries)) => {
            entries
                .values_mut()
                .for_each(|node| omit_empty(node, *below));
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
