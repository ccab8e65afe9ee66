//! `ank diff` and `ank apply --dry-run`: what `ank apply` would add, change and delete.
//!
//! Thread: `main`. Takes: the update of the manifests, and the objects that it names as the server
//! has them. Gives: a unified diff or JSON; nothing is changed.

use super::args::Format;
use super::error::{ExitCode, Result, counted};
use super::modes;
use super::output::{Ordered, Output, all_lines, document, object, one_line, value};
use super::rows::{self, Reasons, entries};
use super::session::{ServerLink, Update};
use ankaios_model::field_path::parts;
use ankaios_model::fields::table::WORKLOAD;
use ankaios_model::fields::{Kind, omit_empty};
use ankaios_model::node::Node;
use ankaios_platform::clock::{Clock, SystemClock};
use serde_yaml::Value;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// The part of the state that says which workloads use which configs.
const USERS_MASK: &str = "desiredState.workloads.*.configs";

/// A comparison of large texts that takes longer is ended: what is left is shown as replaced.
const TIME_MAX: Duration = Duration::from_secs(1);

const HEADER: &str = "\x1b[1m";
const NEW: &str = "\x1b[32m";

/// Prints what `update`, which names whole workloads and configs, would change.
///
/// # Errors
/// No response, or standard output cannot be written.
pub(crate) fn print(
    mut update: Update,
    format: Format,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    let switch = modes::leave_out(&mut update, link)?;
    let mut masks: Vec<&str> = update.masks.iter().map(String::as_str).collect();
    if masks
        .iter()
        .any(|mask| mask.starts_with("desiredState.configs."))
    {
        masks.push(USERS_MASK);
    }
    // Without masks everything would be read.
    let state = if masks.is_empty() {
        Node::empty()
    } else {
        link.complete_state(&masks)?
    };
    let differences = Differences::of(&update, &state);
    if let Some(text) = switch {
        output.warn(format_args!(
            "{text} 'ank apply' does so only with '--switch-mode'."
        ));
    }
    let ends = |object: &&Difference| object.part == "workloads" && object.old.is_some();
    let ending: BTreeSet<&str> = differences
        .objects
        .iter()
        .filter(ends)
        .map(|object| &*object.name)
        .collect();
    if !ending.is_empty() {
        let reasons = Reasons::new(&link.complete_state(&rows::MASKS)?);
        let is_deletion = update.new_state == Node::empty();
        let restart = if is_deletion {
            ""
        } else {
            "use 'ank apply --restart-dependents', or "
        };
        let held = reasons.held_up(&ending, &ending, |_| restart.to_owned());
        held.iter()
            .for_each(|text| output.warn(format_args!("when it is applied, {text}")));
    }
    match format {
        Format::Json => output.result(&document(&differences.json(), format, false))?,
        _ => {
            output.coloured_result(differences.lines())?;
            for line in differences.summary() {
                output.status(&line)?;
            }
        }
    }
    Ok(if differences.objects.is_empty() {
        ExitCode::Success
    } else {
        ExitCode::Different
    })
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
    /// Further workloads that use configs among them, with the names of these.
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Differences {
    fn of(update: &Update, state: &Node) -> Self {
        let difference = |mask: &String| Difference::of(mask, state, &update.new_state);
        let objects: Vec<Difference> = update.masks.iter().filter_map(difference).collect();
        let names: BTreeSet<(&str, &str)> = objects
            .iter()
            .map(|object| (&*object.part, &*object.name))
            .collect();
        let changed = |part, name| names.contains(&(part, name));
        let mut users = BTreeMap::new();
        for (workload, definition) in entries(state.at(&["desiredState", "workloads"])) {
            let used = definition
                .entries("configs")
                .filter_map(|(_, config)| config.as_text());
            let used: BTreeSet<String> = used
                .filter(|config| changed("configs", config))
                .map(str::to_owned)
                .collect();
            if !used.is_empty() && !changed("workloads", workload) {
                users.insert(workload.to_owned(), used);
            }
        }
        Self { objects, users }
    }

    fn json(&self) -> Value {
        let objects = |part| {
            let of_part = self
                .objects
                .iter()
                .filter(move |object| object.part == part);
            object(
                of_part
                    .map(|object| (object.name.as_str(), object.json()))
                    .collect::<BTreeMap<_, _>>(),
            )
        };
        object([
            ("configUsers", value(Some(&self.users))),
            ("configs", objects("configs")),
            ("workloads", objects("workloads")),
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
        let mut counts = Vec::new();
        for action in ["add", "change", "delete"] {
            let number = |part: &str| {
                self.objects
                    .iter()
                    .filter(|it| it.part == part && it.action() == action)
                    .count()
            };
            let numbers = [
                (number("workloads"), "workload"),
                (number("configs"), "config"),
            ];
            let some = numbers.into_iter().filter(|(number, _)| *number > 0);
            let some: Vec<String> = some.map(|(number, what)| counted(number, what)).collect();
            counts
                .extend((!some.is_empty()).then(|| format!("{} to {action}", some.join(" and "))));
        }
        let mut lines = vec![format!("{}.", counts.join(", "))];
        lines.extend(self.users.iter().map(|(workload, used)| {
            let (used, plural) = (
                used.iter().cloned().collect::<Vec<_>>(),
                if used.len() == 1 { "" } else { "s" },
            );
            let text = format!(
                "Workload '{workload}' uses the config{plural} '{}'",
                used.join("', '")
            );
            format!(
                "{} and is replaced if its rendered configuration changes.",
                one_line(&text)
            )
        }));
        lines
    }
}

impl Difference {
    /// The object that `mask` names; `None` when it is the same in both states.
    fn of(mask: &str, old: &Node, new: &Node) -> Option<Self> {
        let path = parts(mask);
        let (part, kind, name) = match path[..] {
            [_, part @ "configs", name] => (part, Kind::Config, name),
            [_, part @ "workloads", name] => (part, Kind::Object(&WORKLOAD), name),
            _ => return None,
        };
        let object = |state: &Node| {
            let mut node = state.at(&path)?.clone();
            omit_empty(&mut node, kind); // An empty container means the same as none.
            Some(node)
        };
        let (old, new) = (object(old), object(new));
        (old != new).then(|| Self {
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

    fn json(&self) -> Value {
        let sides =
            |old: Option<&Node>, new: Option<&Node>| [("new", value(new)), ("old", value(old))];
        let (old, new) = (self.old.as_ref(), self.new.as_ref());
        let action = ("action", self.action().into());
        if self.part == "configs" {
            return object([action].into_iter().chain(sides(old, new)));
        }
        let names: BTreeSet<&str> = entries(old)
            .chain(entries(new))
            .map(|(name, _)| name)
            .collect();
        let of_both = |name| {
            (
                name,
                old.and_then(|node| node.get(name)),
                new.and_then(|node| node.get(name)),
            )
        };
        let changed = names
            .into_iter()
            .map(of_both)
            .filter(|(_, old, new)| old != new);
        object([
            action,
            (
                "fields",
                object(changed.map(|(name, old, new)| (name, object(sides(old, new))))),
            ),
        ])
    }

    /// The lines of the unified diff with their colours.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let label = |side: &Option<Node>| match side {
            Some(_) => format!(
                "{} {}",
                self.part.trim_end_matches('s'),
                one_line(&self.name)
            ),
            None => "/dev/null".to_owned(),
        };
        let mut shown = vec![
            (HEADER, format!("--- {}", label(&self.old))),
            (HEADER, format!("+++ {}", label(&self.new))),
        ];
        let text = |side: &Option<Node>| {
            side.as_ref()
                .map_or_else(Vec::new, |node| text_lines(node, self.kind))
        };
        let (old, new) = (text(&self.old), text(&self.new));
        let deadline = SystemClock.now() + TIME_MAX;
        let parts = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
        // Equal lines around those that differ.
        for hunk in group_diff_ops(parts, 3) {
            let range =
                |of: fn(&DiffOp) -> Range<usize>| of(&hunk[0]).start..of(&hunk[hunk.len() - 1]).end;
            let (before, after) = (range(DiffOp::old_range), range(DiffOp::new_range));
            // Of no lines the one before them is named.
            let place = |lines: &Range<usize>| {
                format!("{},{}", lines.start + lines.len().min(1), lines.len())
            };
            let field = field_around(&old, before.start)
                .map_or_else(String::new, |field| format!(" {field}"));
            shown.push((
                "\x1b[36m",
                format!("@@ -{} +{} @@{field}", place(&before), place(&after)),
            ));
            for part in hunk {
                let is_equal = part.tag() == DiffTag::Equal;
                let (sign, colour) = if is_equal {
                    (' ', "")
                } else {
                    ('-', "\x1b[31m")
                };
                shown.extend(
                    old[part.old_range()]
                        .iter()
                        .map(|line| (colour, format!("{sign}{line}"))),
                );
                if !is_equal {
                    shown.extend(
                        new[part.new_range()]
                            .iter()
                            .map(|line| (NEW, format!("+{line}"))),
                    );
                }
            }
        }
        shown
    }
}

/// The field that begins above line `at` and goes on there.
fn field_around(lines: &[String], at: usize) -> Option<&str> {
    let begins_field = |line: &&String| !line.starts_with([' ', '-']);
    if lines.get(at).is_none_or(|line| begins_field(&line)) {
        return None;
    }
    lines[..at]
        .iter()
        .rev()
        .find(begins_field)
        .and_then(|line| line.split(':').next())
}

/// The lines of an object as YAML with the documented order of fields.
fn text_lines(node: &Node, kind: Kind) -> Vec<String> {
    all_lines(&value(Some(Ordered { node, kind })))
}

#[cfg(test)]
mod tests;
