//! Reads YAML by the table of fields: the field tree, what is wrong, and the keys that mean nothing.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`.

use super::{Field, Kind, Object, Presence, TAG, TYPE, Text};
use crate::limits::MANIFEST_WARNINGS_MAX;
use crate::model::names::alternatives;
use crate::model::nearest::nearest;
use crate::model::node::{Entries, Node};
use crate::model::place::{At, Problem};
use crate::model::version::{API_VERSION, API_VERSION_DEPRECATED};
use crate::model::yaml::{Document, Location, Step, Yaml, path_text};
use std::fmt;

/// What is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// A manifest as a server takes it: a number can stand for most texts; names are checked later.
    Manifest,
    /// A manifest as the JSON schema describes it; problems are worded as by its validators.
    Schema,
    /// A complete state or a part of it: null is as good as nothing.
    State,
}

/// A key that means nothing and is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where in the tree, with the key itself.
    pub path: Vec<Step>,
    /// The key that was probably meant.
    pub nearest: Option<&'static str>,
    /// Where in the text.
    pub location: Option<Location>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown key '{}' is ignored", path_text(&self.path))?;
        if let Some(location) = self.location {
            write!(formatter, " at {location}")?;
        }
        self.nearest.map_or(Ok(()), |name| write!(formatter, ", did you mean '{name}'?"))
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
    pub wrong_tags: Option<Problem>,
    /// Keys that mean nothing, in the order of the document; at most [`MANIFEST_WARNINGS_MAX`].
    pub unknown: Vec<UnknownKey>,
}

/// Reads `document` as an `object`.
#[must_use]
pub fn read(document: &Document<'_>, object: &'static Object, rules: Rules) -> Reading {
    let version = document.root().get("apiVersion").and_then(Yaml::scalar);
    let mut reader = Reader { rules, version, found: Reading::default() };
    let tree = reader.object(&At::root(document.root()), object);
    let tree = reader.noted(tree).unwrap_or_default();
    let mut found = reader.found;
    for key in &mut found.unknown {
        key.location = document.locate_key(&key.path);
    }
    Reading { tree, ..found }
}

struct Reader<'d> {
    rules: Rules,
    /// The version of the manifest.
    version: Option<&'d str>,
    found: Reading,
}

impl Reader<'_> {
    /// Notes a problem, so that the rest is read as well.
    fn noted<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result
            .map_err(|problem| match self.found.problems.len() < MANIFEST_WARNINGS_MAX {
                true => self.found.problems.push(problem),
                false => self.found.more_problems += 1,
            })
            .ok()
    }

    fn wrong_type<T>(&self, at: &At<'_>, expected: &str, schema_type: &str) -> Result<T, Problem> {
        match self.rules {
            Rules::Schema => at.problem(format!("{} is not of {schema_type}", json(at.node))),
            Rules::Manifest | Rules::State => at.expected(expected),
        }
    }

    fn missing<T>(&self, at: &At<'_>, fields: &[&str]) -> Result<T, Problem> {
        let quoted =
            |mark: &str| fields.iter().map(|name| format!("{mark}{name}{mark}")).collect::<Vec<_>>().join(" or ");
        match self.rules {
            Rules::Schema => at.problem(format!("{} is a required property", quoted("\""))),
            Rules::Manifest | Rules::State => at.problem(format!("missing field {}", quoted("`"))),
        }
    }

    fn value(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        match kind {
            Kind::Text(text) => self.text(at, text),
            Kind::Constant(_) | Kind::Choice(_) => self.choice(at, &kind.texts()),
            Kind::Number => {
                let number = at.node.scalar().and_then(|text| text.parse().ok());
                number.map_or_else(|| at.expected("a whole number"), |number| Ok(Node::Number(number)))
            }
            Kind::Config => match at.node {
                Yaml::Text(text) => Ok(Node::text(text)),
                Yaml::List(_) => self.list(at, kind),
                Yaml::Map(_) => self.map(at, kind, true),
                Yaml::Null | Yaml::Plain(..) => self.wrong_type(
                    at,
                    "text (put it in quotes), a list or a mapping",
                    "types \"array\", \"object\", \"string\" (put it in quotes to make it text)",
                ),
            },
            Kind::Tags => self.tags(at),
            Kind::List(item) => self.list(at, *item),
            Kind::Map(value) => self.map(at, *value, false),
            Kind::Named(value) => self.map(at, *value, true),
            Kind::Object(object) => self.object(at, object),
            Kind::OneOf(objects) => self.one_of(at, objects),
            Kind::Any => Ok(Node::empty()),
        }
    }

    fn text(&self, at: &At<'_>, text: Text) -> Result<Node, Problem> {
        let found = match (self.rules, text) {
            (Rules::Schema, _) => {
                let Yaml::Text(found) = at.node else { return self.wrong_type(at, "text", "type \"string\"") };
                text.check(found).or_else(|message| at.problem(message))?;
                found
            }
            (Rules::Manifest, Text::Quoted) => at.string()?,
            (Rules::Manifest | Rules::State, _) => at.text()?,
        };
        Ok(Node::text(found))
    }

    fn choice(&self, at: &At<'_>, texts: &[&str]) -> Result<Node, Problem> {
        let chosen = match at.node {
            Yaml::Text(text) if texts.contains(&text.as_str()) => Some(Node::text(text)),
            _ => None,
        };
        match (chosen, at.node, self.rules) {
            (Some(node), ..) => Ok(node),
            (None, _, Rules::Schema) => {
                let texts: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
                at.problem(format!("{} is not one of {}", json(at.node), texts.join(", ")))
            }
            (None, Yaml::Text(text), _) => {
                at.problem(format!("unknown value '{text}', expected {}", alternatives(texts)))
            }
            (None, ..) => at.expected(&alternatives(texts)),
        }
    }

    fn list(&mut self, at: &At<'_>, kind: Kind) -> Result<Node, Problem> {
        if !matches!(at.node, Yaml::List(_)) {
            return self.wrong_type(at, "a list", "type \"array\"");
        }
        let mut items = Vec::new();
        for item in at.items()? {
            let item = self.value(&item, kind);
            items.extend(self.noted(item));
        }
        Ok(Node::List(items))
    }

    fn map(&mut self, at: &At<'_>, kind: Kind, named: bool) -> Result<Node, Problem> {
        let Yaml::Map(entries) = at.node else { return self.wrong_type(at, "a mapping", "type \"object\"") };
        let mut map = Entries::default();
        for (key, node) in entries {
            let Some(key) = key.scalar() else {
                // `ank apply` refuses such keys wherever they are.
                if self.rules != Rules::Schema {
                    self.noted::<()>(at.problem(format!("{} found as key, expected text", key.describe())));
                }
                continue;
            };
            let child = at.child(key, node);
            if named && self.rules == Rules::Schema {
                self.noted(Text::Name.check(key).or_else(|message| child.problem(message)));
            }
            let value = self.value(&child, kind);
            map.extend(self.noted(value).map(|node| (key.to_owned(), node)));
        }
        Ok(Node::Map(map))
    }

    fn object(&mut self, at: &At<'_>, object: &'static Object) -> Result<Node, Problem> {
        let Yaml::Map(entries) = at.node else { return self.wrong_type(at, "a mapping", "type \"object\"") };
        let mut tree = Entries::default();
        for (key, node) in entries {
            let Some(key) = key.scalar().filter(|_| self.rules != Rules::State || *node != Yaml::Null) else {
                continue;
            };
            let child = at.child(key, node);
            match object.fields.iter().find(|field| field.name == key || field.old_name == Some(key)) {
                None => self.unknown(&child, key, object),
                // The JSON schema has new names only.
                Some(field) if field.name != key && self.rules == Rules::Schema => {}
                Some(field) => {
                    let value = self.field(&child, field);
                    tree.insert(field.name.to_owned(), self.noted(value).unwrap_or_default());
                }
            }
        }
        for field in object.fields {
            if let Some(old) = field.old_name.filter(|old| at.optional(old).and(at.optional(field.name)).is_some()) {
                self.noted::<()>(at.problem(format!("duplicate field `{}` (`{old}` is its old name)", field.name)));
            }
        }
        // A state may be given in part, but lists only as a whole.
        if self.rules != Rules::State || at.is_item() {
            let required = object.fields.iter().filter(|field| field.presence == Presence::Required);
            for field in required.filter(|field| !tree.contains_key(field.name)) {
                self.noted::<()>(self.missing(at, &[field.name]));
            }
            if !object.any_of.is_empty() && !object.any_of.iter().any(|name| tree.contains_key(name)) {
                return self.missing(at, object.any_of);
            }
        }
        Ok(Node::Map(tree))
    }

    fn field(&mut self, at: &At<'_>, field: &Field) -> Result<Node, Problem> {
        let null_is_empty = match (self.rules, field.kind) {
            (Rules::Manifest, Kind::Object(_)) => true,
            // In later versions it is an error, which shows where something was forgotten.
            (Rules::Manifest, Kind::Tags | Kind::List(_) | Kind::Map(_) | Kind::Named(_)) => {
                field.nullable || self.version == Some(API_VERSION_DEPRECATED)
            }
            _ => field.nullable,
        };
        match (at.node, field.kind) {
            (Yaml::Null, Kind::List(_)) if null_is_empty => Ok(Node::List(Vec::new())),
            (Yaml::Null, _) if null_is_empty => Ok(Node::empty()),
            _ => self.value(at, field.kind),
        }
    }

    fn one_of(&mut self, at: &At<'_>, objects: &'static [Object]) -> Result<Node, Problem> {
        if !matches!(at.node, Yaml::Map(_)) {
            return self.wrong_type(at, "a mapping", "type \"object\"");
        }
        let Some(tag) = at.optional(TYPE) else { return self.missing(at, &[TYPE]) };
        let chosen = self.choice(&tag, &Kind::OneOf(objects).texts())?;
        let object = objects.iter().find(|object| object.tag() == chosen.as_text());
        object.map_or(Ok(chosen), |object| self.object(at, object))
    }

    /// Tags as a mapping, or as the list of entries that a manifest of the deprecated version has.
    fn tags(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        let version = self.version.filter(|_| self.rules == Rules::Manifest).unwrap_or_default();
        let (found, is_list) = match at.node {
            Yaml::Map(_) => ("mapping", false),
            Yaml::List(_) => ("sequence", true),
            _ => ("a scalar", false),
        };
        let required = match version {
            API_VERSION if found != "mapping" => "mapping (key-value pairs)",
            API_VERSION_DEPRECATED if !is_list => "sequence (list of key-value entries)",
            _ if is_list && self.rules == Rules::Manifest => return self.tag_list(at),
            _ => return self.map(at, Kind::Text(Text::Quoted), false),
        };
        let path = at.steps();
        let workload = path_text(path.get(1).map(std::slice::from_ref).unwrap_or_default());
        let message = format!(
            "For API version '{version}', tags must be specified as a {required}. Found tags as {found} for workload \
             '{workload}'."
        );
        self.found.wrong_tags.get_or_insert(Problem { path, message });
        Ok(Node::empty())
    }

    fn tag_list(&mut self, at: &At<'_>) -> Result<Node, Problem> {
        let tags = self.list(at, Kind::Object(&TAG))?;
        let field = |tag: &Node, name| tag.get(name).and_then(Node::as_text).map(str::to_owned);
        let tags = tags.as_list().unwrap_or_default().iter();
        Ok(Node::map(tags.filter_map(|tag| Some((field(tag, "key")?, Node::Text(field(tag, "value")?))))))
    }

    /// At the top of a complete state a wrong key would mean that the whole state is deleted, elsewhere it is just not
    /// used.
    fn unknown(&mut self, at: &At<'_>, key: &str, object: &'static Object) {
        let known = object.fields.iter().flat_map(|field| [Some(field.name), field.old_name]).flatten();
        let path = at.steps();
        if self.rules == Rules::State && path.len() == 1 {
            let meant = nearest(key, known).map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"));
            self.noted::<()>(at.problem(format!("unknown key{meant}")));
        } else if self.found.unknown.len() < MANIFEST_WARNINGS_MAX {
            self.found.unknown.push(UnknownKey { path, nearest: nearest(key, known), location: None });
        }
    }
}

/// A value as a validator shows it; lists and mappings by their kind only.
fn json(node: &Yaml) -> String {
    match node {
        Yaml::Text(text) => format!("\"{text}\""),
        Yaml::Plain(_, text) => text.clone(),
        Yaml::Null | Yaml::List(_) | Yaml::Map(_) => node.describe(),
    }
}

#[cfg(test)]
mod tests;
