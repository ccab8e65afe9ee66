//! `ank set state`: parts of the state from a file.
//!
//! Thread: `main`. A typing error must not delete anything: a mask whose value the file lacks is refused unless an
//! option asks for the deletion.

use super::error::{CliError, Result};
use super::output::Output;
use super::session::Update;
use super::state_input;
use super::update::read_file;
use crate::model::field_path::{parts, value_at};
use crate::model::fields::reader::{MANIFEST_WARNINGS_MAX, Reading};
use crate::model::node::Node;

/// Reads the file of `ank set state`, the last of `masks_and_file`, and makes the update of it.
///
/// # Errors
/// The file cannot be read, is no complete state, or lacks what a mask names without `delete_missing`.
pub fn update(masks_and_file: &[String], delete_missing: bool, output: &mut Output) -> Result<Update> {
    let (file, masks) = masks_and_file.split_last().map_or(("", masks_and_file), |(file, masks)| (file, masks));
    let text = read_file(file).map_err(|error| {
        let text = format!("Could not read the state object file '{file}'.\nError: '{error}'");
        let general = "the last argument is the file with the new state; '-' reads from standard input";
        CliError::input(text, state_input::hint_of_unread(&error, general))
    })?;
    update_from(masks, file, &text, delete_missing, output)
}

/// The update that takes `masks` from `text`, the content of `file`.
fn update_from(masks: &[String], file: &str, text: &str, delete_missing: bool, output: &mut Output) -> Result<Update> {
    let name = if file == "-" { "standard input".to_owned() } else { format!("'{file}'") };
    let Reading { tree: state, unknown, .. } = state_input::read(&name, text)?;
    unknown.iter().take(MANIFEST_WARNINGS_MAX).for_each(|key| output.warn(key));
    for mask in masks {
        // Parts of the state that can be changed.
        if !["desiredState", "agents"].contains(&parts(mask)[0]) {
            output
                .warn(format_args!("mask '{mask}' changes nothing: only parts of desiredState and agents can be set"));
        } else if !delete_missing && !is_given(&state, mask) {
            return Err(CliError::input(
                format!("the state object file has no value for '{mask}'"),
                "correct the mask or the file; to delete that part, use '--delete-missing'",
            ));
        }
    }
    Ok(Update { new_state: state, masks: masks.to_vec(), ..Update::default() })
}

/// Whether `state` has a value at `mask`, or an empty map as its parent: that means that there is none.
fn is_given(state: &Node, mask: &str) -> bool {
    let path = parts(mask);
    let parent = &path[..path.len() - 1];
    let emptied = !parent.is_empty() && state.at(parent).is_some_and(|node| node.is_empty_container());
    emptied || value_at(state, &path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::play;
    use std::io;

    /// Makes the update of `masks` from `text`; returns it or the error, and standard error.
    fn set(masks: &[&str], text: &str, delete: bool) -> (Result<Update, CliError>, String) {
        let masks: Vec<String> = masks.iter().map(ToString::to_string).collect();
        let played = play(None, [], |_, output| update_from(&masks, "state.yaml", text, delete, output));
        (played.result, played.err)
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
    fn a_file_that_is_no_complete_state_is_named_with_its_error() {
        for (file, text, expected) in [
            ("state.yaml", "a: [", "Command failed: 'Invalid state in 'state.yaml': did not find"),
            ("-", "a: [", "Command failed: 'Invalid state in standard input: did not find"),
            ("-", "desiredSate: {}", "Command failed: 'Invalid state in standard input: desiredSate: unknown key"),
        ] {
            let mut output = Output::to(io::sink(), io::sink(), None);
            let error = update_from(&["desiredState".to_owned()], file, text, true, &mut output).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
