//! `ank set state`: parts of the state from a file.
//!
//! Thread: `main`. The file has the form that `get state` prints; all of it is checked here, since
//! the wire format would silently drop what it has no place for. A typing error must not delete
//! anything: a mask whose value the file lacks is refused unless an option asks for the deletion.

use super::error::{CliError, Result};
use super::output::Output;
use super::session::CliUpdate;
use super::update::read_file;
use ankaios_model::field_path::{parts, value_at};
use ankaios_model::fields::reader::{self, DocumentKind, ReadDocument};
use ankaios_model::fields::table::COMPLETE_STATE;
use ankaios_model::manifest::ManifestError;
use ankaios_model::node::Node;
use ankaios_model::yaml::{self, Origin};
use std::io::{self, ErrorKind};

/// The update that takes masks from a file, which is the last of `masks_and_file`.
///
/// # Errors
/// The file cannot be read or is no complete state. Without `delete_missing`, also if the file
/// lacks a part that a mask names.
pub(crate) fn update(
    masks_and_file: &[String],
    delete_missing: bool,
    output: &mut Output,
) -> Result<CliUpdate> {
    let Some((file, masks)) = masks_and_file.split_last() else {
        return Ok(CliUpdate::default()); // Never: the command line has at least two.
    };
    match read_file(file) {
        Ok(text) => update_from(masks, file, &text, delete_missing, output),
        Err(error) => {
            let text = format!("Could not read the state object file '{file}'.\nError: '{error}'");
            let general =
                "the last argument is the file with the new state; '-' reads from standard input";
            Err(CliError::input(text, hint_of_unread(&error, general)))
        }
    }
}

/// Parts of the state that can be changed.
const CHANGEABLE: [&str; 2] = ["desiredState", "agents"];

/// The update that takes `masks` from `text`, the content of `file`.
fn update_from(
    masks: &[String],
    file: &str,
    text: &str,
    delete_missing: bool,
    output: &mut Output,
) -> Result<CliUpdate> {
    let name = if file == "-" {
        "standard input".to_owned()
    } else {
        format!("'{file}'")
    };
    let ReadDocument {
        tree: state,
        unknown,
        ..
    } = read(&name, text)?;
    output.warn_of_unknown_keys("", unknown.iter());
    for mask in masks {
        if !CHANGEABLE.contains(&parts(mask)[0]) {
            output.warn(format_args!(
                "mask '{mask}' changes nothing: only parts of desiredState and agents can be set"
            ));
        } else if !delete_missing && !is_given(&state, mask) {
            return Err(CliError::input(
                format!("the state object file has no value for '{mask}'"),
                "correct the mask or the file; to delete that part, use '--delete-missing'",
            ));
        }
    }
    Ok(CliUpdate {
        new_state: state,
        masks: masks.to_vec(),
        ..CliUpdate::default()
    })
}

/// Returns whether a file decides about `mask`. Its `state` has a value there, or the map around
/// that place is given as empty, which means that there is no value.
fn is_given(state: &Node, mask: &str) -> bool {
    let path = parts(mask);
    if let [parents @ .., _] = &path[..]
        && !parents.is_empty()
        && let Some(parent) = state.at(parents)
        && parent.is_empty_container()
    {
        return true;
    }
    value_at(state, &path).is_some()
}

/// Reads the complete state in `text`; an empty text is an empty state. `name` is the file in
/// messages.
///
/// # Errors
/// Not YAML, another structure, or a key at the top that no complete state has.
pub fn read(name: &str, text: &str) -> Result<ReadDocument> {
    let document = match yaml::read(text, Origin::Own) {
        Ok(document) => document,
        Err(error) => {
            let hint = error.hint(text, "the file must be one YAML or JSON document");
            return Err(invalid(name, &error.message, &hint));
        }
    };
    let root = &document.root;
    if root.is_null() {
        return Ok(ReadDocument::default());
    }
    let read = reader::read(root, &COMPLETE_STATE, DocumentKind::State);
    if let Some(problem) = read.problems.first() {
        let hint = "the file holds a complete state as 'ank get state' prints it; manifests are for 'ank apply'";
        let problem = ManifestError::invalid(problem.clone());
        return Err(invalid(name, &problem.to_string(), hint));
    }
    if let Some(desired) = read.tree.get("desiredState")
        && desired.get("apiVersion").is_none()
    {
        let hint = "write 'apiVersion: v1' below 'desiredState'";
        return Err(invalid(name, "missing field `apiVersion`", hint));
    }
    Ok(read)
}

fn invalid(name: &str, text: &str, hint: &str) -> CliError {
    CliError::input(format!("Invalid state in {name}: {text}"), hint)
}

/// The hint for a file that cannot be read because of `error`; `general` where the error has no
/// hint of its own.
pub(crate) fn hint_of_unread<'a>(error: &io::Error, general: &'a str) -> &'a str {
    match error.kind() {
        ErrorKind::IsADirectory => "it is a folder; name the files in it",
        ErrorKind::PermissionDenied => {
            "check the permissions of the file and of the folders that it is in"
        }
        ErrorKind::InvalidData => {
            "the file must be text in UTF-8; editors offer that when they save it"
        }
        _ => general,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::play;
    use ankaios_model::fields::reader::MANIFEST_WARNINGS_MAX;
    use std::io;

    /// Makes the update of `masks` from `text`; returns it or the error, and standard error.
    fn set(masks: &[&str], text: &str, delete: bool) -> (Result<CliUpdate, CliError>, String) {
        let masks: Vec<String> = masks.iter().map(ToString::to_string).collect();
        let played = play(None, [], |_, output| {
            update_from(&masks, "state.yaml", text, delete, output)
        });
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
            // `tags: {}` says that there are none.
            ("desiredState.workloads.a.tags.gone", one, true),
            ("desiredState.workloads.a", none, true),
            ("desiredState", "", false),
            ("desiredState.workloads.a", "", false),
            ("agents.A.tags", "agents: {A: {}}", true),
            ("agents", none, false),
        ] {
            assert_eq!(
                set(&[mask], text, false).0.is_ok(),
                accepted,
                "{mask} {text:?}"
            );
            assert_eq!(
                set(&[mask], text, true).0.unwrap().masks,
                [mask],
                "{mask} {text:?}"
            );
        }
    }

    #[test]
    fn masks_that_change_nothing_are_warned_about() {
        let (result, err) = set(&["workloadStates.a", "nonsense"], "{}", false);
        assert_eq!(result.unwrap().masks, ["workloadStates.a", "nonsense"]);
        assert_eq!(err.lines().count(), 2, "{err}");
    }

    #[test]
    fn unknown_keys_above_the_bound_are_only_counted() {
        let mut text = "desiredState:\n  apiVersion: v1\n".to_owned();
        for number in 0..MANIFEST_WARNINGS_MAX + 2 {
            text.push_str(&format!("  own{number}: 1\n"));
        }
        let (result, err) = set(&["desiredState"], &text, false);
        assert!(result.is_ok());
        assert_eq!(err.lines().count(), MANIFEST_WARNINGS_MAX + 1, "{err}");
        assert!(err.ends_with("warn: and 2 more of these\n"), "{err}");
    }

    #[test]
    fn a_file_that_is_no_complete_state_is_named_with_its_error() {
        for (file, text, expected) in [
            (
                "state.yaml",
                "a: [",
                "Invalid state in 'state.yaml': did not find",
            ),
            ("-", "a: [", "Invalid state in standard input: did not find"),
            (
                "-",
                "desiredSate: {}",
                "Invalid state in standard input: desiredSate: unknown key",
            ),
        ] {
            let mut output = Output::to(io::sink(), io::sink(), None);
            let error = update_from(&["desiredState".to_owned()], file, text, true, &mut output)
                .unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}

#[cfg(test)]
mod reading_tests {
    use super::*;
    use ankaios_model::complete_state::Rendering;
    use ankaios_model::manifest::Manifest;
    use ankaios_model::node::Node;

    #[test]
    fn what_get_state_prints_is_read_back() {
        let manifest = "apiVersion: v1\nworkloads:\n  w:\n    agent: A\n    runtime: r\n    runtimeConfig: c\n    \
                        tags: {a: b}\n    dependencies: {d: ADD_COND_FAILED}\n    configs: {x: y}\n    files:\n    \
                        - {mountPoint: /m, data: d}\n    controlInterfaceAccess:\n      allowRules:\n      \
                        - {type: StateRule, operation: Read, filterMasks: [a]}\n      \
                        denyRules:\n      - {type: LogRule, workloadNames: ['*']}\nconfigs: {y: [t, {u: v}]}\n";
        let desired = Manifest::parse(manifest)
            .unwrap()
            .into_desired_state()
            .unwrap();
        let load = Node::map([
            ("cpuUsage", Node::Number(3)),
            ("freeMemory", Node::Number(4)),
        ]);
        let agent = Node::map([
            ("status", load),
            ("tags", Node::map([("k", Node::text("v"))])),
        ]);
        let state = Node::map([
            ("desiredState", desired.node(Rendering::Sparse)),
            ("agents", Node::map([("A", agent)])),
        ]);
        for format in [crate::args::Format::Yaml, crate::args::Format::Json] {
            let text = crate::output::state_text(&state, format);
            let read = read("-", &text).unwrap();
            assert_eq!(
                (read.tree, read.unknown.len()),
                (state.clone(), 0),
                "{text}"
            );
        }
    }

    #[test]
    fn duplicate_key_leads_to_the_line_of_the_second_one() {
        let hint = read("-", "a: b\na: c\n").unwrap_err().hint();
        assert_eq!(hint, "remove one of the two keys; the second is in line 2");
    }

    #[test]
    fn tabs_are_named_only_where_they_are_what_is_wrong() {
        for (text, tabs) in [
            ("a:\n\tb: c\n", true),
            ("a: |\n  x\n  \ty\nb: [\n", false),
            ("a: [", false),
        ] {
            let hint = read("-", text).unwrap_err().hint();
            assert_eq!(
                hint.starts_with("tabs cannot indent in YAML; line 2"),
                tabs,
                "{text:?}: {hint}"
            );
        }
    }

    #[test]
    fn parts_and_empty_files_are_states_too() {
        for (text, expected) in [
            ("", Node::empty()),
            ("{}", Node::empty()),
            ("agents: {A: {tags: {n: 1.0}}}", {
                let tags = Node::map([("n", Node::text("1.0"))]);
                Node::map([("agents", Node::map([("A", Node::map([("tags", tags)]))]))])
            }),
            ("desiredState: {apiVersion: v1, workloads: ~}", {
                Node::map([(
                    "desiredState",
                    Node::map([("apiVersion", Node::text("v1"))]),
                )])
            }),
        ] {
            assert_eq!(read("-", text).unwrap().tree, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_complete_state_is_refused() {
        let workload =
            |text: &str| format!("desiredState: {{apiVersion: v1, workloads: {{w: {{{text}}}}}}}");
        for (text, message) in [
            ("a: [".to_owned(), "did not find expected"),
            (
                "[1]".to_owned(),
                "expected a mapping ('key: value', without '- '), found a list at line 1 column 1",
            ),
            (
                "desiredState: {workloads: {}}".to_owned(),
                "missing field `apiVersion`",
            ),
            (
                "desiredSate: {apiVersion: v1}".to_owned(),
                "desiredSate: unknown key; did you mean 'desiredState'? at line 1 column 14",
            ),
            (
                "apiVersion: v1\nworkloads: {}".to_owned(),
                "apiVersion: unknown key at line 1 column 13",
            ),
            (
                workload("restartPolicy: never"),
                "restartPolicy: unknown value 'never', expected NEVER, ON_FAILURE",
            ),
            (
                workload("dependencies: {a: b}"),
                "expected ADD_COND_RUNNING",
            ),
            (
                workload("tags: [a]"),
                "tags: expected a mapping ('key: value', without '- '), found a list",
            ),
            (
                workload("files: [{data: x}]"),
                "files[0]: missing field `mountPoint`",
            ),
            (
                workload("files: [{mountPoint: x}]"),
                "files[0]: missing field `data`",
            ),
            (
                workload("controlInterfaceAccess: {allowRules: [{}]}"),
                "allowRules[0]: missing field `type`",
            ),
            (
                workload(
                    "controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read}]}",
                ),
                "allowRules[0]: missing field `filterMasks`",
            ),
            (
                "agents: {A: {status: {cpuUsage: -1}}}".to_owned(),
                "expected a whole number, found number -1",
            ),
            (
                "desiredState: {apiVersion: v1, configs: {a: 1}}".to_owned(),
                "expected text (put it in quotes), a list or a mapping, found number 1",
            ),
        ] {
            let error = read("-", &text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_keys_below_the_top_are_warned_about() {
        let text = "desiredState:\n  apiVersion: v1\n  workloads:\n    w:\n      agnet: A\n";
        let input = read("-", text).unwrap();
        let expected = "unknown key 'desiredState.workloads.w.agnet' is ignored at line 5 column 7; did you mean 'agent'?";
        assert_eq!(
            input
                .unknown
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            [expected]
        );
    }
}
