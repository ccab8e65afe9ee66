//! `ank diff` and `ank apply --dry-run`: what `ank apply` would add, change and delete.
//!
//! Thread: `main`. Takes: the update of the manifests, and the objects that it names as the server
//! has them. Gives: a unified diff or JSON; nothing is changed.

use super::args::Format;
use super::error::{ExitCode, Result, counted};
use super::modes;
use super::output::{
    ColouredLine, Ordered, Output, WARNING, all_lines, document, object, one_line, value,
};
use super::rows::{self, Reasons, entries, text};
use super::session::{CliUpdate, ServerLink};
use ankaios_model::field_path::parts;
use ankaios_model::fields::table::WORKLOAD;
use ankaios_model::fields::{Kind, omit_empty};
use ankaios_model::node::Node;
use ankaios_platform::clock::{Clock, SystemClock};
use serde_yaml::Value;
use similar::{Algorithm, DiffTag, capture_diff_slices_deadline, group_diff_ops};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// The part of the state with the configs of each workload.
const USERS_MASK: &str = "desiredState.workloads.*.configs";

/// Longest comparison of large texts. After that, all further lines are shown as replaced.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Equal lines around those that differ.
const LINES_AROUND: usize = 3;

// Colours of lines.
const HEADER: &str = "\x1b[1m";
const PLACE: &str = "\x1b[36m";
const OLD: &str = "\x1b[31m";
const NEW: &str = "\x1b[32m";

/// Prints what `update`, which names whole workloads and configs, would change.
///
/// # Errors
/// No response, or standard output cannot be written.
pub(crate) fn print(
    mut update: CliUpdate,
    format: Format,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    let switch = modes::apply_mode_rule(&mut update, link)?;
    // First read the objects. Without masks everything would be read.
    let mut masks: Vec<&str> = update.masks.iter().map(String::as_str).collect();
    let mut has_config = false;
    for mask in &masks {
        has_config |= mask.starts_with("desiredState.configs.");
    }
    if has_config {
        masks.push(USERS_MASK);
    }
    let mut state = Node::empty();
    if !masks.is_empty() {
        masks.push(WARNING);
        state = link.complete_state(&masks)?;
    }
    output.warn_of_storage(&state);
    // Then warn about the consequences of an apply.
    let differences = Differences::of(&update, &state);
    if let Some(text) = switch {
        output.warn(format_args!(
            "{text} 'ank apply' does so only with '--switch-mode'."
        ));
    }
    let mut ending = BTreeSet::new();
    for object in &differences.objects {
        if object.part == "workloads" && object.old.is_some() {
            ending.insert(&*object.name);
        }
    }
    if !ending.is_empty() {
        let masks = [&rows::MASKS[..], &rows::CONFIG_MASKS[..]].concat();
        let reasons = Reasons::new(&link.complete_state(&masks)?);
        // 'ank apply -d' has no such option.
        let is_deletion = update.new_state == Node::empty();
        let remedy = if is_deletion {
            ""
        } else {
            "use 'ank apply --restart-dependents', or "
        };
        // Dependents that the update itself ends block nothing.
        if let Some(blocked) = reasons.blocked_stops(&ending, &ending) {
            let text = blocked.text(remedy);
            output.warn(format_args!("when it is applied, {text}"));
        }
    }
    // Finally print the differences.
    if format == Format::Json {
        output.result(&document(&differences.json(), format, false))?;
    } else {
        output.coloured_result(differences.lines())?;
        for line in differences.summary() {
            output.status(&line)?;
        }
    }
    if differences.objects.is_empty() {
        return Ok(ExitCode::Success);
    }
    Ok(ExitCode::Different)
}

/// An object that is not the same before and after an update.
#[derive(Debug)]
struct Difference {
    /// `configs` or `workloads`.
    part: String,
    kind: Kind,
    name: String,
    old: Option<Node>,
    new: Option<Node>,
}

#[derive(Debug)]
struct Differences {
    objects: Vec<Difference>,
    /// Workloads that are not among the objects, with the configs among the objects that they use.
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Differences {
    /// The objects that `update` would change in `state`, which has them and the users of configs.
    fn of(update: &CliUpdate, state: &Node) -> Self {
        let mut objects = Vec::new();
        for mask in &update.masks {
            objects.extend(Difference::of(mask, state, &update.new_state));
        }
        let mut differences = Self {
            objects,
            users: BTreeMap::new(),
        };
        for (workload, definition) in entries(state.at(&["desiredState", "workloads"])) {
            if differences.has("workloads", workload) {
                continue;
            }
            let mut used = BTreeSet::new();
            for (_, config) in definition.entries("configs") {
                let config = text(config, &[]);
                if differences.has("configs", config) {
                    used.insert(config.to_owned());
                }
            }
            if !used.is_empty() {
                differences.users.insert(workload.to_owned(), used);
            }
        }
        differences
    }

    fn has(&self, part: &str, name: &str) -> bool {
        let mut objects = self.objects.iter();
        objects.any(|object| object.part == part && object.name == name)
    }

    fn json(&self) -> Value {
        object([
            ("configUsers", value(Some(&self.users))),
            ("configs", self.objects_json("configs")),
            ("workloads", self.objects_json("workloads")),
        ])
    }

    fn objects_json(&self, part: &str) -> Value {
        let mut objects = BTreeMap::new();
        for object in &self.objects {
            if object.part == part {
                objects.insert(object.name.as_str(), object.json());
            }
        }
        object(objects)
    }

    fn lines(&self) -> impl Iterator<Item = ColouredLine> {
        self.objects.iter().flat_map(Difference::lines)
    }

    /// Lines for people below the differences.
    fn summary(&self) -> Vec<String> {
        if self.objects.is_empty() {
            return vec!["No differences.".to_owned()];
        }
        let mut counts = Vec::new();
        for action in ["add", "change", "delete"] {
            let mut some = Vec::new();
            for (part, object) in [("workloads", "workload"), ("configs", "config")] {
                let number = self.count(part, action);
                if number > 0 {
                    some.push(counted(number, object));
                }
            }
            if !some.is_empty() {
                counts.push(format!("{} to {action}", some.join(" and ")));
            }
        }
        let mut lines = vec![format!("{}.", counts.join(", "))];
        for (workload, used) in &self.users {
            let plural = if used.len() == 1 { "" } else { "s" };
            let used = Vec::from_iter(used.iter().map(String::as_str)).join("', '");
            let text = one_line(&format!(
                "Workload '{workload}' uses the config{plural} '{used}'"
            ));
            lines.push(format!(
                "{text} and is replaced if its rendered configuration changes."
            ));
        }
        lines
    }

    fn count(&self, part: &str, action: &str) -> usize {
        let mut count = 0;
        for object in &self.objects {
            if object.part == part && object.action() == action {
                count += 1;
            }
        }
        count
    }
}

impl Difference {
    /// The difference of the object that `mask` names; `None` if it is the same in both states.
    fn of(mask: &str, old: &Node, new: &Node) -> Option<Self> {
        let path = parts(mask);
        let (part, kind, name) = match path[..] {
            [_, part @ "configs", name] => (part, Kind::Config, name),
            [_, part @ "workloads", name] => (part, Kind::Object(&WORKLOAD), name),
            _ => return None,
        };
        let mut old = old.at(&path).cloned();
        let mut new = new.at(&path).cloned();
        // An empty container means the same as none.
        for node in [&mut old, &mut new].into_iter().flatten() {
            omit_empty(node, kind);
        }
        if old == new {
            return None;
        }
        Some(Self {
            part: part.to_owned(),
            kind,
            name: name.to_owned(),
            old,
            new,
        })
    }

    fn action(&self) -> &'static str {
        match (&self.old, &self.new) {
            (None, _) => "add",
            (_, None) => "delete",
            _ => "change",
        }
    }

    /// The difference for programs: of a config both values, of a workload each changed field.
    fn json(&self) -> Value {
        let action = ("action", self.action().into());
        let old = self.old.as_ref();
        let new = self.new.as_ref();
        if self.part == "configs" {
            return object([action, ("new", value(new)), ("old", value(old))]);
        }
        let mut names = BTreeSet::new();
        names.extend(rows::names(old));
        names.extend(rows::names(new));
        let mut fields = Vec::new();
        for name in names {
            let old = old.and_then(|node| node.get(name));
            let new = new.and_then(|node| node.get(name));
            if old != new {
                fields.push((name, object([("new", value(new)), ("old", value(old))])));
            }
        }
        object([action, ("fields", object(fields))])
    }

    /// The lines of the unified diff.
    fn lines(&self) -> Vec<ColouredLine> {
        let old = text_lines(self.old.as_ref(), self.kind);
        let new = text_lines(self.new.as_ref(), self.kind);
        let mut shown = vec![
            coloured(HEADER, format!("--- {}", self.label(&self.old))),
            coloured(HEADER, format!("+++ {}", self.label(&self.new))),
        ];
        let deadline = SystemClock.now() + TIME_MAX;
        let parts = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
        for hunk in group_diff_ops(parts, LINES_AROUND) {
            let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else {
                continue;
            };
            let before = first.old_range().start..last.old_range().end;
            let after = first.new_range().start..last.new_range().end;
            let mut place = format!("@@ -{} +{} @@", range(&before), range(&after));
            if let Some(field) = field_around(&old, before.start) {
                place.push_str(&format!(" {field}"));
            }
            shown.push(coloured(PLACE, place));
            for part in hunk {
                let is_equal = part.tag() == DiffTag::Equal;
                for line in &old[part.old_range()] {
                    if is_equal {
                        shown.push(coloured("", format!(" {line}")));
                    } else {
                        shown.push(coloured(OLD, format!("-{line}")));
                    }
                }
                if !is_equal {
                    for line in &new[part.new_range()] {
                        shown.push(coloured(NEW, format!("+{line}")));
                    }
                }
            }
        }
        shown
    }

    /// The name of a side in the header of the diff.
    fn label(&self, side: &Option<Node>) -> String {
        if side.is_none() {
            return "/dev/null".to_owned();
        }
        let kind = self.part.trim_end_matches('s');
        format!("{kind} {}", one_line(&self.name))
    }
}

fn coloured(colour: &'static str, text: String) -> ColouredLine {
    ColouredLine { colour, text }
}

/// A range of a unified diff: the first line and the number of lines. Without lines, the first is
/// the line before.
fn range(lines: &Range<usize>) -> String {
    format!("{},{}", lines.start + lines.len().min(1), lines.len())
}

/// The field that begins above line `at` and continues there.
fn field_around(lines: &[String], at: usize) -> Option<&str> {
    if begins_field(lines.get(at)?) {
        return None;
    }
    let mut above = lines[..at].iter().rev();
    let begin = above.find(|line| begins_field(line))?;
    begin.split(':').next()
}

fn begins_field(line: &str) -> bool {
    !line.starts_with([' ', '-'])
}

/// The lines of an object as YAML with the documented order of fields; none without an object.
fn text_lines(node: Option<&Node>, kind: Kind) -> Vec<String> {
    let Some(node) = node else { return Vec::new() };
    all_lines(&value(Some(Ordered { node, kind })))
}

#[cfg(test)]
mod tests;
