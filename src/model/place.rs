//! A node of a YAML document together with the way to it, so that an error can name the place.
//!
//! Thread: none, plain values.

use super::shown_text::without_passwords;
use super::yaml::{Step, Yaml};

/// A problem before its place in the text is looked up, which costs another reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The way to the node that is wrong.
    pub path: Vec<Step>,
    /// What is wrong with it.
    pub message: String,
}

/// A node and the way to it. The way is put together only when something is wrong.
pub(super) struct At<'a> {
    /// The node.
    pub(super) node: &'a Yaml,
    parent: Option<(&'a At<'a>, Link<'a>)>,
}

#[derive(Clone, Copy)]
enum Link<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    /// The outermost node.
    pub(super) fn root(node: &'a Yaml) -> Self {
        Self { node, parent: None }
    }

    /// The value of `key`.
    pub(super) fn child(&'a self, key: &'a str, node: &'a Yaml) -> At<'a> {
        At { node, parent: Some((self, Link::Key(key))) }
    }

    /// The way from the outermost node.
    pub(super) fn steps(&self) -> Vec<Step> {
        let Some((parent, link)) = &self.parent else { return Vec::new() };
        let mut steps = parent.steps();
        steps.push(match link {
            Link::Key(key) => Step::Key((*key).to_owned()),
            Link::Index(index) => Step::Index(*index),
        });
        steps
    }

    /// Whether this is the item of a list.
    pub(super) fn is_item(&self) -> bool {
        matches!(self.parent, Some((_, Link::Index(_))))
    }

    /// Fails with `message` about this node.
    pub(super) fn problem<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        // It may quote a value, and ends in states and logs.
        Err(Problem { path: self.steps(), message: without_passwords(&message.into()) })
    }

    /// Fails because the node is something else than `expected`.
    pub(super) fn expected<T>(&self, expected: &str) -> Result<T, Problem> {
        self.problem(format!("{} found, expected {expected}", self.node.describe()))
    }

    /// The value of `key` when this is a mapping that has it.
    pub(super) fn optional(&'a self, key: &'a str) -> Option<At<'a>> {
        self.node.get(key).map(|node| self.child(key, node))
    }

    /// The value of `key`.
    pub(super) fn required(&'a self, key: &'a str) -> Result<At<'a>, Problem> {
        self.optional(key).map_or_else(|| self.problem(format!("missing field `{key}`")), Ok)
    }

    /// The text of any scalar, numbers as written, null as empty.
    pub(super) fn text(&self) -> Result<&'a str, Problem> {
        self.node.scalar().map_or_else(|| self.expected("text"), Ok)
    }

    /// The text of a string.
    pub(super) fn string(&self) -> Result<&'a str, Problem> {
        match self.node {
            Yaml::Text(text) => Ok(text),
            Yaml::Plain(..) | Yaml::Null => self.expected("text (put it in quotes)"),
            Yaml::List(_) | Yaml::Map(_) => self.expected("text"),
        }
    }

    /// The entries of a mapping with their keys as text.
    pub(super) fn entries(&'a self) -> Result<Vec<(&'a str, At<'a>)>, Problem> {
        let Yaml::Map(entries) = self.node else { return self.expected("a mapping") };
        let entry = |(key, node): &'a (Yaml, Yaml)| match key.scalar() {
            Some(text) => Ok((text, self.child(text, node))),
            None => self.problem(format!("{} found as key, expected text", key.describe())),
        };
        entries.iter().map(entry).collect()
    }

    /// The items of a list.
    pub(super) fn items(&'a self) -> Result<impl Iterator<Item = At<'a>>, Problem> {
        let Yaml::List(items) = self.node else { return self.expected("a list") };
        let item = |(index, node)| At { node, parent: Some((self, Link::Index(index))) };
        Ok(items.iter().enumerate().map(item))
    }

    /// One of the texts that `parse` knows; `names` lists them for the error.
    pub(super) fn member<T>(&self, names: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, Problem> {
        let Yaml::Text(text) = self.node else { return self.expected(names) };
        parse(text).map_or_else(|| self.problem(format!("unknown value '{text}', expected {names}")), Ok)
    }
}
