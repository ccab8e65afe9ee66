//! `ank diff` and `ank apply --dry-run`: what `ank apply` would add, change and delete.
//!
//! Thread: `main`. Takes: the update of the manifests, and the objects that it names as the server has them. Gives: a
//! unified diff or JSON; nothing is changed.

use super::args::DiffFormat;
use super::error::{CliError, ExitCode};
use super::output::Output;
use super::rows::entries;
use super::session::ServerLink;
use super::state_output::{Ordered, json_text};
use super::table::one_line;
use super::unified::{self, Line};
use super::update::Update;
use crate::model::field_path::parts;
use crate::model::fields::{Kind, WORKLOAD, omit_empty};
use crate::model::node::Node;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The part of the state that says which workloads use which configs.
const USERS_MASK: &str = "desiredState.workloads.*.configs";

const HEADER: &str = "\x1b[1m";
const PLACE: &str = "\x1b[36m";
const OLD: &str = "\x1b[31m";
const NEW: &str = "\x1b[32m";

/// Prints what `update`, which names whole workloads and configs, would change.
///
/// # Errors
/// No response, or standard output cannot be written.
pub fn print(
    update: &Update,
    format: DiffFormat,
    link: &mut impl ServerLink,
    output: &mut Output<'_>,
) -> Result<ExitCode, CliError> {
    let mut masks: Vec<&str> = update.masks.iter().map(String::as_str).collect();
    if masks.iter().any(|mask| mask.starts_with("desiredState.configs.")) {
        masks.push(USERS_MASK);
    }
    // Without masks everything would be read.
    let state = if masks.is_empty() { Node::empty() } else { link.complete_state(&masks)? };
    let differences = Differences::of(update, &state);
    match format {
        DiffFormat::Json => output.result(&json_text(&differences.json()))?,
        DiffFormat::Text => {
            output.coloured_result(differences.lines())?;
            for line in differences.summary() {
                output.status(&line)?;
            }
        }
    }
    Ok(if differences.objects.is_empty() { ExitCode::Success } else { ExitCode::Different })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ObjectKind {
    Config,
    Workload,
}

impl ObjectKind {
    fn of_part(part: &str) -> Option<Self> {
        match part {
            "workloads" => Some(Self::Workload),
            "configs" => Some(Self::Config),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Workload => "workload",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Config => Kind::Config,
            Self::Workload => Kind::Object(&WORKLOAD),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Add,
    Change,
    Delete,
}

impl Action {
    const ALL: [Self; 3] = [Self::Add, Self::Change, Self::Delete];

    fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Change => "change",
            Self::Delete => "delete",
        }
    }
}

/// An object that is not the same before and after an update.
#[derive(Debug)]
struct Difference {
    kind: ObjectKind,
    name: String,
    old: Option<Node>,
    new: Option<Node>,
}

#[derive(Debug)]
struct Differences {
    objects: Vec<Difference>,
    /// Further workloads that use configs among them, with the names of these.
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Differences {
    fn of(update: &Update, state: &Node) -> Self {
        let difference = |mask: &String| Difference::of(mask, state, &update.new_state);
        let objects: Vec<Difference> = update.masks.iter().filter_map(difference).collect();
        let changed: BTreeSet<(ObjectKind, &str)> = objects.iter().map(|it| (it.kind, it.name.as_str())).collect();
        let mut users = BTreeMap::new();
        for (workload, definition) in entries(state.at(&["desiredState", "workloads"])) {
            let used = entries(definition.get("configs")).filter_map(|(_, config)| config.as_text());
            let used: BTreeSet<String> =
                used.filter(|config| changed.contains(&(ObjectKind::Config, *config))).map(str::to_owned).collect();
            if !used.is_empty() && !changed.contains(&(ObjectKind::Workload, workload)) {
                users.insert(workload.to_owned(), used);
            }
        }
        Self { objects, users }
    }

    fn json(&self) -> Node {
        let objects = |kind| {
            let of_kind = self.objects.iter().filter(move |object| object.kind == kind);
            Node::map(of_kind.map(|object| (object.name.as_str(), object.json())))
        };
        let users = self.users.iter().map(|(name, used)| (name, Node::List(used.iter().map(Node::text).collect())));
        Node::map([
            ("workloads", objects(ObjectKind::Workload)),
            ("configs", objects(ObjectKind::Config)),
            ("configUsers", Node::map(users)),
        ])
    }

    fn lines(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.objects.iter().flat_map(Difference::lines)
    }

    /// Lines for people below the differences.
    fn summary(&self) -> Vec<String> {
        if self.objects.is_empty() {
            return vec!["No differences.".to_owned()];
        }
        let counted = |action: Action| {
            let count = |kind: ObjectKind| {
                let number = self.objects.iter().filter(|it| it.kind == kind && it.action() == action).count();
                let plural = if number == 1 { "" } else { "s" };
                (number > 0).then(|| format!("{number} {}{plural}", kind.name()))
            };
            let counts: Vec<String> =
                [ObjectKind::Workload, ObjectKind::Config].into_iter().filter_map(count).collect();
            (!counts.is_empty()).then(|| format!("{} to {}", counts.join(" and "), action.name()))
        };
        let counts = Action::ALL.into_iter().filter_map(counted);
        let mut lines = vec![format!("{}.", counts.collect::<Vec<_>>().join(", "))];
        lines.extend(self.users.iter().map(|(workload, used)| {
            let (used, plural) = (used.iter().cloned().collect::<Vec<_>>(), if used.len() == 1 { "" } else { "s" });
            let text = format!("Workload '{workload}' uses the config{plural} '{}'", used.join("', '"));
            format!("{} and is replaced if its rendered configuration changes.", one_line(&text))
        }));
        lines
    }
}

impl Difference {
    /// The object that `mask` names; `None` when it is the same in both states.
    fn of(mask: &str, old: &Node, new: &Node) -> Option<Self> {
        let path = parts(mask);
        let [_, part, name] = path[..] else { return None };
        let kind = ObjectKind::of_part(part)?;
        let object = |state: &Node| {
            let mut node = state.at(&path)?.clone();
            omit_empty(&mut node, kind.kind()); // An empty container means the same as none.
            Some(node)
        };
        let (old, new) = (object(old), object(new));
        (old != new).then(|| Self { kind, name: name.to_owned(), old, new })
    }

    fn action(&self) -> Action {
        match (&self.old, &self.new) {
            (None, _) => Action::Add,
            (_, None) => Action::Delete,
            _ => Action::Change,
        }
    }

    fn json(&self) -> Node {
        let (old, new) = (self.old.as_ref(), self.new.as_ref());
        let mut object = match self.kind {
            ObjectKind::Config => both(old, new),
            ObjectKind::Workload => {
                let names: BTreeSet<&str> = entries(old).chain(entries(new)).map(|(name, _)| name).collect();
                let value = |side: Option<&'_ Node>, name: &str| side.and_then(|node| node.get(name)).cloned();
                let changed = names.into_iter().map(|name| (name, value(old, name), value(new, name)));
                let changed = changed.filter(|(_, old, new)| old != new);
                let fields = changed.map(|(name, old, new)| (name, both(old.as_ref(), new.as_ref())));
                Node::map([("fields", Node::map(fields))])
            }
        };
        if let Some(entries) = object.as_map_mut() {
            entries.insert("action", Node::text(self.action().name()));
        }
        object
    }

    /// The lines of the unified diff with their colours.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let label = |side: &Option<Node>| match side {
            Some(_) => format!("{} {}", self.kind.name(), one_line(&self.name)),
            None => "/dev/null".to_owned(),
        };
        let mut shown =
            vec![(HEADER, format!("--- {}", label(&self.old))), (HEADER, format!("+++ {}", label(&self.new)))];
        let text = |side: &Option<Node>| side.as_ref().map_or_else(Vec::new, |node| text_lines(node, self.kind.kind()));
        let (old, new) = (text(&self.old), text(&self.new));
        let lines = unified::compare(&old, &new);
        for hunk in unified::hunks(&lines) {
            let field = field_around(&lines, &hunk).map_or_else(String::new, |field| format!(" {field}"));
            shown.push((PLACE, format!("{}{field}", unified::heading(&lines, &hunk))));
            shown.extend(lines[hunk].iter().map(|line| match line {
                Line::Both(text) => ("", format!(" {text}")),
                Line::Old(text) => (OLD, format!("-{text}")),
                Line::New(text) => (NEW, format!("+{text}")),
            }));
        }
        shown
    }
}

/// `{old, new}`, each as far as it is there.
fn both(old: Option<&Node>, new: Option<&Node>) -> Node {
    Node::map([("old", old), ("new", new)].into_iter().filter_map(|(side, node)| Some((side, node?.clone()))))
}

/// The field that begins above a hunk and goes on in its first line.
fn field_around<'t>(lines: &[Line<'t>], hunk: &Range<usize>) -> Option<&'t str> {
    let begins_field = |line: &&Line<'_>| !line.text().starts_with([' ', '-']);
    if lines[hunk.clone()].first().is_none_or(|line| begins_field(&line)) {
        return None;
    }
    lines[..hunk.start].iter().rev().find(begins_field).and_then(|line| line.text().split(':').next())
}

/// The lines of an object as YAML with the documented order of fields.
fn text_lines(node: &Node, kind: Kind) -> Vec<String> {
    // Texts, numbers, lists and maps with text keys can be values of YAML.
    let (beside, below) = yaml_lines(&serde_yaml::to_value(Ordered { node, kind }).unwrap_or_default());
    Some(beside).filter(|line| !line.is_empty()).into_iter().chain(below).collect()
}

/// A value as YAML: what stands beside its key, and the lines below. Texts of several lines are always written line by
/// line, so that these can be compared.
fn yaml_lines(value: &Value) -> (String, Vec<String>) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            let lines = map.iter().flat_map(|(key, value)| {
                let (beside, below) = yaml_lines(value);
                let indent = if value.is_sequence() { "" } else { "  " };
                let blank = if beside.is_empty() { "" } else { " " };
                let first = format!("{}:{blank}{beside}", scalar(key));
                std::iter::once(first).chain(below.into_iter().map(move |line| format!("{indent}{line}")))
            });
            (String::new(), lines.collect())
        }
        Value::Sequence(items) if !items.is_empty() => {
            let lines = items.iter().flat_map(|item| {
                let (beside, below) = yaml_lines(item);
                // The first entry of a map stands beside the dash.
                let lines = Some(beside).filter(|line| !line.is_empty()).into_iter().chain(below);
                lines
                    .zip(std::iter::once("- ").chain(std::iter::repeat("  ")))
                    .map(|(line, lead)| format!("{lead}{line}"))
            });
            (String::new(), lines.collect())
        }
        Value::String(text) if text.contains('\n') => {
            let body = text.strip_suffix('\n');
            let style = match body {
                None => "|-",
                Some(body) if body.is_empty() || body.ends_with('\n') => "|+",
                Some(_) => "|",
            };
            (style.to_owned(), body.unwrap_or(text).split('\n').map(str::to_owned).collect())
        }
        value => (scalar(value), Vec::new()),
    }
}

/// A value on one line.
fn scalar(value: &Value) -> String {
    match value {
        // Only a key can have several lines here. Each text of JSON is one of YAML as well.
        Value::String(text) if text.contains('\n') => serde_json::to_string(text).unwrap_or_default(),
        _ => serde_yaml::to_string(value).unwrap_or_default().trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests;
