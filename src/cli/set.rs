//! `ank set state`: parts of the state from a file (spec/cli.md section 6.6).
//!
//! Thread: `main`. A typo must not delete anything: a mask whose value the file lacks is refused unless the deletion
//! is meant.

use super::error::{CliError, CommandError};
use super::output::Output;
use super::state_input::{self, StateInput, StateInputError};
use super::update::Update;
use crate::limits::MANIFEST_MAX;
use crate::model::field_path::parts;
use crate::model::node::Node;
use std::fs::File;
use std::io::{self, Read};

/// Parts of the state that can be changed.
const CHANGEABLE: [&str; 2] = ["desiredState", "agents"];

/// Reads the file of `ank set state`, the last of `masks_and_file`, and makes the update of it.
///
/// # Errors
/// The file cannot be read, is no complete state, or lacks what a mask names although no deletion was asked for.
pub fn update(masks_and_file: &[String], delete_missing: bool, output: &mut Output<'_>) -> Result<Update, CliError> {
    let (file, masks) = masks_and_file.split_last().map_or(("", masks_and_file), |(file, masks)| (file, masks));
    update_from(masks, file, &read_file(file)?, delete_missing, output)
}

/// Reads the text of the state file; `-` is standard input.
fn read_file(name: &str) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = if name == "-" {
        io::stdin().lock().take(MANIFEST_MAX + 1).read_to_string(&mut text)
    } else {
        File::open(name).and_then(|file| file.take(MANIFEST_MAX + 1).read_to_string(&mut text))
    };
    let failed = |error: &dyn std::fmt::Display| {
        CommandError::input(
            format!("Could not read the state object file '{name}'.\nError: '{error}'"),
            "the last argument is the file with the new state; '-' reads from standard input",
        )
    };
    match read {
        Ok(_) if text.len() as u64 > MANIFEST_MAX => Err(failed(&format_args!("larger than {MANIFEST_MAX} bytes"))),
        Ok(_) => Ok(text),
        Err(error) => Err(failed(&error)),
    }
}

/// What a file that is no YAML is called (spec/cli.md section 6.6).
fn no_yaml(file: &str, error: &str) -> String {
    let source = if file == "-" { "stdin input" } else { "state object file" };
    format!("Could not convert {source} to yaml.\nError: '{error}'")
}

/// The update that takes `masks` from `text`, the content of `file`.
fn update_from(
    masks: &[String],
    file: &str,
    text: &str,
    delete_missing: bool,
    output: &mut Output<'_>,
) -> Result<Update, CliError> {
    let StateInput { state, warnings } =
        state_input::read(text).map_err(|StateInputError { no_yaml: unreadable, text, hint }| {
            let text = if unreadable { no_yaml(file, &text) } else { text };
            CliError::StateFile { text, hint }
        })?;
    warnings.iter().for_each(|warning| output.warn(warning));
    for mask in masks {
        if !CHANGEABLE.contains(&parts(mask)[0]) {
            output.warn(format_args!("nothing below '{mask}' can be set; only desiredState and agents"));
        } else if !delete_missing && !is_given(&state, mask) {
            return Err(CommandError::input(
                format!("the state object file has no value for '{mask}'"),
                "correct the mask or the file; to delete that part, use '--delete-missing'",
            )
            .into());
        }
    }
    Ok(Update { new_state: state, masks: masks.to_vec(), ..Update::default() })
}

/// Whether `state` has a value at `mask`, or says by an empty map in the place of its parent that it has none.
fn is_given(state: &Node, mask: &str) -> bool {
    let path = parts(mask);
    let parent = &path[..path.len() - 1];
    let emptied = !parent.is_empty() && state.at(parent).is_some_and(|node| node.is_empty_container());
    emptied || state.at(&path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the update of `masks` from `text`; gives it or the error, and standard error.
    fn set(masks: &[&str], text: &str, delete: bool) -> (Result<Update, CliError>, String) {
        let mut err = Vec::new();
        let mut output = Output::to(io::sink(), &mut err, None);
        let masks: Vec<String> = masks.iter().map(ToString::to_string).collect();
        let result = update_from(&masks, "state.yaml", text, delete, &mut output);
        drop(output);
        (result, String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_mask_without_value_is_refused_unless_deletion_is_meant() {
        let one = "desiredState: {apiVersion: v1, workloads: {a: {agent: x, tags: {}}}}";
        let none = "desiredState: {apiVersion: v1, workloads: {}}";
        for (mask, text, accepted) in [
            ("desiredState", one, true),
            ("desiredState.workloads.a", one, true),
            ("desiredState.workloads.a.agent", one, true),
            ("desiredState.workloads.b", one, false),
            ("desiredState.workloads.a.runtime", one, false),
            ("desiredState.workloads.a.tags.gone", one, true), // `tags: {}` says that there are none.
            ("desiredState.workloads.a", none, true),
            ("desiredState", "", false),
            ("desiredState.workloads.a", "", false),
            ("agents.A.tags", "agents: {A: {}}", true),
            ("agents", none, false),
        ] {
            assert_eq!(set(&[mask], text, false).0.is_ok(), accepted, "{mask} {text:?}");
            assert_eq!(set(&[mask], text, true).0.unwrap().masks, [mask], "{mask} {text:?}");
        }
    }

    #[test]
    fn masks_that_change_nothing_are_warned_about() {
        let (result, err) = set(&["workloadStates.a", "nonsense"], "{}", false);
        assert_eq!(result.unwrap().masks, ["workloadStates.a", "nonsense"]);
        assert_eq!(err.lines().count(), 2, "{err}");
    }

    #[test]
    fn what_is_no_yaml_is_called_by_where_it_came_from() {
        for (file, source) in [("state.yaml", "state object file"), ("-", "stdin input")] {
            let mut output = Output::to(io::sink(), io::sink(), None);
            let error = update_from(&["desiredState".to_owned()], file, "a: [", false, &mut output).unwrap_err();
            let begin =
                format!("Could not serialize YAML object: 'Could not convert {source} to yaml.\nError: 'did not");
            assert!(error.to_string().starts_with(&begin) && error.to_string().ends_with("''"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_complete_state_changes_nothing() {
        let (result, _) = set(&["desiredState"], "desiredSate: {apiVersion: v1}", true);
        assert!(matches!(result, Err(CliError::StateFile { .. })));
    }
}
