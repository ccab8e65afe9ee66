//! Reads YAML by the table of fields: the field tree, what is wrong, and the keys that mean
//! nothing.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`, by `server` and by the
//! agent.

use super::{Field, Kind, Object, TAG, TYPE, Text};
use crate::names::alternatives;
use crate::nearest::nearest;
use crate::node::{Entries, Node};
use crate::shown_text::without_passwords;
use crate::version::{API_VERSION, API_VERSION_DEPRECATED};
use crate::yaml::{Content, Location, Plain, Yaml};
use std::fmt;

/// Unknown keys of one manifest that are warned about; more would hide the first ones.
pub const MANIFEST_WARNINGS_MAX: usize = 20;

/// Fields whose texts have several lines, mostly of YAML, so that a mapping is easily written in
/// their place.
const TEXTS_OF_LINES: [&str; 3] = ["runtimeConfig", "data", "manifest"];

/// What is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// A manifest as a server takes it: a number can stand for most texts; names are checked later.
    Manifest,
    /// A manifest as the JSON schema describes it; problems are worded as by its validators.
    Schema,
    /// A complete state or a part of it: null is as good as nothing.
    State,
    /// What an engine reads of a `runtimeConfig`: every scalar is a text. Problems quote nothing,
    /// it may be secret.
    Engine,
    /// A `lifecycle:` block: a key that means nothing would switch a gate off, so it is a problem.
    Block,
}

/// What is wrong with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The way to it, as in `workloads.web.files[0]`; by the rules of the schema as a JSON pointer.
    pub path: String,
    pub message: String,
    pub at: Location,
    /// Where its key is; that of list items and of the outermost node is the node.
    pub(crate) key_at: Location,
}

/// A key that means nothing and is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where in the tree, with the key itself.
    pub path: String,
    /// The key that was probably meant.
    pub nearest: Option<&'static str>,
    /// Where in the text.
    pub location: Option<Location>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown key '{}' is ignored", self.path)?;
        if let Some(location) = self.location {
            write!(formatter, " at {location}")?;
        }
        self.nearest
            .map_or(Ok(()), |name| write!(formatter, ", did you mean '{name}'?"))
    }
}

/// What a document holds.
#[derive(Debug, Default)]
pub struct Reading {
    /// All that can be read.
    pub tree: Node,
    /// What is wrong, in the order of the document; at most [`MANIFEST_WARNINGS_MAX`].
    pub problems: Vec<Problem>,
    /// How many more problems there are.
    pub more_problems: usize,
    /// The first tags that have the shape of another version.
    pub(crate) wrong_tags: Option<(String, Location)>,
    /// Keys that mean nothing, in the order of the document; at most [`MANIFEST_WARNINGS_MAX`] of
    /// what others sent.
    pub unknown: Vec<UnknownKey>,
}

/// Reads `root` as an `object`.
pub fn read(root: &Yaml, object: &'static Object, rules: Rules) -> Reading {
    read_at(
        root,
        &At {
            rules,
            key_at: root.at,
            node: root,
            parent: None,
        },
        object,
    )
}

/// Reads the value of `key` as an `object`.
pub(crate) fn read_part(
    root: &Yaml,
    key: &str,
    object: &'static Object,
    rules: Rules,
) -> Option<Reading> {
    Some(read_at(
        root,
        &At {
            rules,
            key_at: root.at,
            node: root,
            parent: None,
        }
        .optional(key)?,
        object,
    ))
}

fn read_at(root: &Yaml, at: &At<'_>, object: &'static Object) -> Reading {
    let version = root.get("apiVersion").and_then(Yaml::scalar);
    let mut reader = Reader {
        version,
        found: Reading::default(),
    };
    let tree = reader.object(at, object);
    let tree = reader.noted(tree).unwrap_or_default();
    Reading {
        tree,
        ..reader.found
    }
}

/// A node and the keys and indices that lead to it, which are put together only when something is
/// wrong.
struct At<'a> {
    rules: Rules,
    key_at: Location,
    node: &'a Yaml,
    parent: Option<(&'a At<'a>, Result<&'a str, usize>)>,
}

impl<'a> At<'a> {
    fn child(&'a self, name: &'a str, (key, node): &'a (Yaml, Yaml)) -> At<'a> {
        At {
            rules: self.rules,
            key_at: key.at,
            node,
            parent: Some((self, Ok(name))),
        }
    }

    fn optional(&'a self, key: &'a str) -> Option<At<'a>> {
        self.node.entry(key).map(|entry| self.child(key, entry))
    }

    /// The way from the outermost node, as people write it or as a JSON pointer.
    fn path(&self, is_pointer: bool) -> String {
        let Some((parent, link)) = &self.parent else {
            return String::new();
        };
        let above = parent.path(is_pointer);
        match link {
            Ok(key) if is_pointer => {
                format!("{above}/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            Err(index) if is_pointer => format!("{above}/{index}"),
            Ok(key) if above.is_empty() => (*key).to_owned(),
            Ok(key) => format!("{above}.{key}"),
            Err(index) => format!("{above}[{index}]"),
        }
    }

    /// How to write a text of several lines where a mapping or a list stands; `None` where a text
    /// of one line is expected.
    fn text_below(&self) -> Option<String> {
        let (_, Ok(key)) = self.parent.as_ref()? else {
            return None;
        };
        TEXTS_OF_LINES
            .contains(key)
            .then(|| format!("write `{key}: |` and leave the lines below it as they are"))
    }

    fn problem<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        // It may quote a value, and ends in states and logs.
        let (path, message) = (
            self.path(self.rules == Rules::Schema),
            without_passwords(&message.into()),
        );
        Err(Problem {
            path,
            message,
            at: self.node.at,
            key_at: self.key_at,
        })
    }

    /// The key is wrong, whatever its value is.
    fn problem_of_key<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        self.problem(message).map_err(|problem| Problem {
            at: problem.key_at,
            ..problem
        })
    }

    fn expected<T>(&self, expected: &str) -> Result<T, Problem> {
        self.problem(format!(
            "{} found, expected {expected}",
            self.node.describe()
        ))
    }
}

struct Reader<'d> {
    /// The version of the manifest.
    version: Option<&'d str>,
    found: Reading,
}

impl Reader<'_> {
    /// Notes a problem, so that the rest is read as well.
    fn noted<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result
            .map_err(
                |problem| match self.found.problems.len() < MANIFEST_WARNINGS_MAX {
                    true => self.found.problems.push(problem),
                    false => self.found.more_problems += 1,
                },
            )
            .ok()
    }

    fn wrong_type<T>(&self, at: &At<'_>, expected: &str, schema_type: &str) -> Result<T, Problem> {
        match at.rules {
            Rules::Schema => at.problem(format!("{} is not of {schema_type}", json(at.node))),
            Rules::Engine => {
                let found = match at.node.content {
                    Content::List(_) | Content::Map(_) => at.node.describe(),
                    Content::Text(_) | Content::Plain(..) => "a text".to_owned(),
                };
                at.problem(format!("{found} found, expected {expected}"))
            }
            Rules::Manifest | Rules::State | Rules::Block => at.expected(expected),
        }
    }

    fn missing<T>(&self, at: &At<'_>, fields: &[&str]) -> Result<T, Problem> {
        let quoted = |mark: &str| {
            fields
                .iter()
                .map(|name| format!("{mark}{name}{mark}"))
                .collect::<Vec<_>>()
                .join(" or ")
        };
        match at.rules {
            Rules::Schema => at.problem(format!("{} is a required property", quoted("\""))),
            Rules::Block if fields.len() > 1 => at.problem(format!(
                "at least one of {} is needed",
                alternatives(fields)
            )),
            _ => at.problem(format!("missing field {}", quoted("`"))),
        }
    }

    fn value(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        match kind {
            Kind::Text(text) => self.text(at, text),
            Kind::Choice(texts) => self.choice(at, texts),
            Kind::Number => {
                let number = at.node.scalar().and_then(|text| text.parse().ok());
                number.map_or_else(
                    || at.expected("a whole number"),
                    |number| Ok(Node::Number(number)),
                )
            }
            Kind::Range(lowest, highest, _) => {
                let number = match &at.node.content {
                    Content::Plain(Plain::Integer, text) => text.parse().ok(),
                    _ => None,
                };
                match number.filter(|number| (lowest..=highest).contains(number)) {
                    Some(number) => Ok(Node::Number(number)),
                    None => at.expected(&format!("a whole number from {lowest} to {highest}")),
                }
            }
            Kind::True => match &at.node.content {
                Content::Plain(Plain::Boolean, text) if **text == *"true" => Ok(Node::empty()),
                _ => at.expected("true"),
            },
            Kind::Command => {
                let command = self.list(at, Kind::Text(Text::Quoted))?;
                if command.is_empty_container() {
                    at.problem("an empty list found, expected a command")
                } else {
                    Ok(command)
                }
            }
            Kind::Config => match &at.node.content {
                Content::Text(text) => Ok(Node::text(&**text)),
                Content::List(_) => self.list(at, kind),
                Content::Map(_) => self.map(at, kind, true),
                Content::Plain(..) => self.wrong_type(
                    at,
                    "text (put it in quotes), a list or a mapping",
                    "types \"array\", \"object\", \"string\" (put it in quotes to make it text)",
                ),
            },
            Kind::Tags => self.tags(at),
            Kind::List(item) => self.list(at, *item),
            Kind::Map(value) => self.map(at, *value, false),
            Kind::Named(value) => self.map(at, *value, true),
            // The block is read by itself.
            Kind::Object(_) if at.rules == Rules::Engine => Ok(Node::empty()),
            Kind::Object(object) => self.object(at, object),
            Kind::OneOf(objects) => self.one_of(at, objects),
            Kind::Any => Ok(Node::empty()),
        }
    }

    fn text(&self, at: &At<'_>, text: Text) -> Result<Node, Problem> {
        let any = if at.rules == Rules::Engine {
            at.node.source()
        } else {
            at.node.scalar()
        };
        let takes_any = match at.rules {
            Rules::Schema => false,
            Rules::Block => text == Text::Scalar,
            Rules::Manifest => text != Text::Quoted,
            Rules::State | Rules::Engine => true,
        };
        let found = any.filter(|_| takes_any || matches!(at.node.content, Content::Text(_)));
        match (found, any) {
            (Some(found), _) if at.rules == Rules::Schema => text
                .check(found)
                .or_else(|message| at.problem(message))
                .map(|()| Node::text(found)),
            (Some(found), _) if at.rules == Rules::Block && text.check(found).is_err() => {
                at.expected(text.expected())
            }
            (Some(found), _) => Ok(Node::text(found)),
            (None, Some(_)) if at.node.is_null() => self.wrong_type(at, "text", "type \"string\""),
            (None, Some(_)) => self.wrong_type(
                at,
                "text (put it in quotes)",
                "type \"string\" (put it in quotes)",
            ),
            (None, None) => match at.text_below() {
                Some(way) => self.wrong_type(
                    at,
                    &format!("text ({way})"),
                    &format!("type \"string\" ({way})"),
                ),
                None => self.wrong_type(at, "text", "type \"string\""),
            },
        }
    }

    fn choice(&self, at: &At<'_>, texts: &[&str]) -> Result<Node, Problem> {
        let text = if let Content::Text(text) = &at.node.content {
            Some(&**text)
        } else {
            None
        };
        match (text, at.rules) {
            (Some(text), _) if texts.contains(&text) => Ok(Node::text(text)),
            (_, Rules::Schema) => {
                let texts: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
                at.problem(format!(
                    "{} is not one of {}",
                    json(at.node),
                    texts.join(", ")
                ))
            }
            (Some(text), _) => at.problem(format!(
                "unknown value '{text}', expected {}",
                alternatives(texts)
            )),
            (None, _) => at.expected(&alternatives(texts)),
        }
    }

    fn list(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        let Content::List(items) = &at.node.content else {
            return self.wrong_type(at, "a list", "type \"array\"");
        };
        let mut list = Vec::new();
        for (index, node) in items.iter().enumerate() {
            let item = self.value(
                &At {
                    rules: at.rules,
                    key_at: node.at,
                    node,
                    parent: Some((at, Err(index))),
                },
                kind,
            );
            list.extend(self.noted(item));
        }
        Ok(Node::List(list))
    }

    fn map(&mut self, at: &At<'_>, kind: Kind, named: bool) -> Result<Node, Problem> {
        let Content::Map(entries) = &at.node.content else {
            return self.wrong_type(at, "a mapping", "type \"object\"");
        };
        let mut map = Vec::new();
        for entry in entries.iter() {
            let (key, _) = entry;
            let Some(key) = key.scalar() else {
                // `ank apply` refuses such keys wherever they are.
                if at.rules != Rules::Schema {
                    self.noted::<()>(
                        at.problem(format!("{} found as key, expected text", key.describe())),
                    );
                }
                continue;
            };
            let child = at.child(key, entry);
            if named && at.rules == Rules::Schema {
                self.noted(
                    Text::Name
                        .check(key)
                        .or_else(|message| child.problem_of_key(message)),
                );
            }
            let value = self.value(&child, kind);
            map.extend(self.noted(value).map(|node| (key, node)));
        }
        Ok(Node::map(map))
    }

    fn object(&mut self, at: &At<'_>, object: &'static Object) -> Result<Node, Problem> {
        let is_top = at.parent.is_none();
        let entries: &[(Yaml, Yaml)] = match &at.node.content {
            Content::Map(entries) => entries,
            Content::Plain(Plain::Null, _)
                if is_top && matches!(at.rules, Rules::Manifest | Rules::Engine) =>
            {
                &[]
            }
            _ => return self.wrong_type(at, "a mapping", "type \"object\""),
        };
        let mut tree = Entries::default();
        for entry in entries {
            let (key, node) = entry;
            let Some(key) = key
                .scalar()
                .filter(|_| at.rules != Rules::State || !node.is_null())
            else {
                continue;
            };
            let child = at.child(key, entry);
            match object
                .fields
                .iter()
                .find(|field| field.name == key || field.old_name == Some(key))
            {
                None => self.unknown(&child, key, object),
                Some(field) if field.nullable && node.is_null() && at.rules == Rules::Engine => {}
                // The JSON schema has new names only.
                Some(field) if field.name != key && at.rules == Rules::Schema => {}
                Some(field) => {
                    let value = self.field(&child, field);
                    tree.insert(field.name, self.noted(value).unwrap_or_default());
                }
            }
        }
        // A state may be given in part, but lists only as a whole.
        let is_whole = at.rules != Rules::State || matches!(at.parent, Some((_, Err(_))));
        for field in object.fields {
            let (name, beside) = (field.name, |other| at.node.get(other).is_some());
            if let Some(old) = field.old_name.filter(|old| beside(old) && beside(name)) {
                self.noted::<()>(at.problem(format!(
                    "duplicate field `{name}` (`{old}` is its old name)"
                )));
            }
            if !tree.contains_key(name) {
                match field.old_name.filter(|old| beside(old)) {
                    // It is there, and only the JSON schema does not know its old name.
                    Some(old) => {
                        let text = format!(
                            "\"{name}\" is a required property (\"{old}\" is its old name, rename it)"
                        );
                        self.noted::<()>(at.problem(text));
                    }
                    None if is_whole && field.required => {
                        _ = self.noted::<()>(self.missing(at, &[name]))
                    }
                    None => {}
                }
                tree.extend(
                    field
                        .default()
                        .filter(|_| at.rules == Rules::Block)
                        .map(|node| (name.into(), node)),
                );
            } else if let Some(other) = field.not_with.filter(|other| beside(other)) {
                let text = format!("it means nothing together with '{other}'; leave it out");
                self.noted::<()>(at.optional(name).map_or(Ok(()), |at| at.problem(text)));
            } else if let Some(other) = field.needs.filter(|other| !beside(other)) {
                self.noted::<()>(self.missing(at, &[other]));
            }
        }
        let is_empty =
            |node: &Yaml| matches!(&node.content, Content::Map(entries) if entries.is_empty());
        let is_missing = |name: &&str| at.node.get(name).is_none_or(is_empty);
        if is_whole && !object.any_of.is_empty() && object.any_of.iter().all(is_missing) {
            return self.missing(at, object.any_of);
        }
        let mut found = object
            .one_of
            .iter()
            .filter(|name| at.node.get(name).is_some());
        match (found.next(), found.next()) {
            (None, _) if !object.one_of.is_empty() => {
                at.problem(format!("one of {} is needed", alternatives(object.one_of)))
            }
            (Some(first), Some(second)) => at.problem(format!(
                "'{first}' and '{second}' are both there, only one can be"
            )),
            _ => Ok(Node::Map(tree)),
        }
    }

    fn field(&mut self, at: &At<'_>, field: &Field) -> Result<Node, Problem> {
        let null_is_empty = match (at.rules, field.kind) {
            (Rules::Manifest, Kind::Object(_)) => true,
            // In later versions it is an error, which shows where something was forgotten.
            (Rules::Manifest, Kind::Tags | Kind::List(_) | Kind::Map(_) | Kind::Named(_)) => {
                field.nullable || self.version == Some(API_VERSION_DEPRECATED)
            }
            _ => field.nullable,
        };
        match field.kind {
            Kind::List(_) if null_is_empty && at.node.is_null() => Ok(Node::List(Vec::new())),
            _ if null_is_empty && at.node.is_null() => Ok(Node::empty()),
            kind => self.value(at, kind),
        }
    }

    fn one_of(&mut self, at: &At<'_>, objects: &'static [Object]) -> Result<Node, Problem> {
        if !matches!(at.node.content, Content::Map(_)) {
            return self.wrong_type(at, "a mapping", "type \"object\"");
        }
        let Some(tag) = at.optional(TYPE) else {
            return self.missing(at, &[TYPE]);
        };
        let chosen = self.choice(&tag, &Kind::OneOf(objects).texts())?;
        let object = objects
            .iter()
            .find(|object| object.tag() == chosen.as_text());
        object.map_or(Ok(chosen), |object| self.object(at, object))
    }

    /// Tags as a mapping, or as the list of entries that a manifest of the deprecated version has.
    fn tags(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        let version = self
            .version
            .filter(|_| at.rules == Rules::Manifest)
            .unwrap_or_default();
        let (found, is_list) = match at.node.content {
            Content::Map(_) => ("mapping", false),
            Content::List(_) => ("sequence", true),
            _ => ("a scalar", false),
        };
        let required = match version {
            API_VERSION if found != "mapping" => "mapping (key-value pairs)",
            API_VERSION_DEPRECATED if !is_list => "sequence (list of key-value entries)",
            _ if is_list && at.rules == Rules::Manifest => return self.tag_list(at),
            _ => return self.map(at, Kind::Text(Text::Quoted), false),
        };
        let above = at
            .parent
            .as_ref()
            .and_then(|(workload, _)| workload.parent.as_ref());
        let workload = above.map_or("", |(_, name)| name.unwrap_or_default());
        let message = format!(
            "For API version '{version}', tags must be specified as a {required}. Found tags as {found} for workload \
             '{workload}'."
        );
        self.found.wrong_tags.get_or_insert((message, at.key_at));
        Ok(Node::empty())
    }

    fn tag_list(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        let tags = self.list(at, Kind::Object(&TAG))?;
        let field = |tag: &Node, name| tag.get(name).and_then(Node::as_text).map(str::to_owned);
        let tags = tags.as_list().unwrap_or_default().iter();
        Ok(Node::map(tags.filter_map(|tag| {
            Some((field(tag, "key")?, Node::text(field(tag, "value")?)))
        })))
    }

    /// At the top of a complete state a wrong key would mean that the whole state is deleted,
    /// elsewhere it is just not used. Keys that begin with `x-` are for others.
    fn unknown(&mut self, at: &At<'_>, key: &str, object: &'static Object) {
        let known = || {
            object
                .fields
                .iter()
                .flat_map(|field| [Some(field.name), field.old_name])
                .flatten()
        };
        let nearest = nearest(key, known());
        let is_at_top = at
            .parent
            .as_ref()
            .is_some_and(|(above, _)| above.parent.is_none());
        if at.rules == Rules::State && is_at_top {
            let meant =
                nearest.map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"));
            self.noted::<()>(at.problem(format!("unknown key{meant}")));
        } else if key.starts_with("x-") {
        } else if at.rules == Rules::Block {
            let all = || format!("; known are {}", known().collect::<Vec<_>>().join(", "));
            let meant = nearest.map_or_else(all, |name| format!(", did you mean '{name}'?"));
            self.noted::<()>(at.problem(format!("unknown key{meant}")));
        } else if at.rules != Rules::Engine || self.found.unknown.len() < MANIFEST_WARNINGS_MAX {
            self.found.unknown.push(UnknownKey {
                path: at.path(false),
                nearest,
                location: Some(at.key_at),
            });
        }
    }
}

/// A value as a validator shows it; lists and mappings by their kind only.
fn json(node: &Yaml) -> String {
    match &node.content {
        Content::Text(text) => format!("\"{text}\""),
        Content::Plain(kind, text) if *kind != Plain::Null => (**text).to_owned(),
        _ => node.describe(),
    }
}

#[cfg(test)]
mod tests;
