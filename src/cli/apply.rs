//! `ank apply`: manifests to one update.
//!
//! Thread: `main`. Takes: files or standard input. Gives: the update; all checks are made before the connection.

use super::args::ApplyArguments;
use super::error::{CliError, CommandError, meant_or};
use super::manifest_schema;
use super::output::Output;
use super::state_input::hint_of_unreadable;
use super::update::{Update, read_file};
use crate::limits::{MANIFEST_WARNINGS_MAX, YAML_FILE_MAX};
use crate::model::complete_state::{API_VERSION, API_VERSION_DEPRECATED, DesiredState, Rendering};
use crate::model::lifecycle;
use crate::model::manifest::{Manifest, ManifestWorkload, TOP_KEYS, check_tag_shapes};
use crate::model::names::has_name_characters;
use crate::model::node::Node;
use crate::model::validation::check_mount_points;
use crate::model::workload::ConfigItem;
use crate::model::yaml::{Document, Location, Plain, Step, Yaml};
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::sync::Arc;

const DEPRECATED: &str = "Warning: The manifest API version 'v0.1' is deprecated and support will be removed in \
                          future releases. Please update to the latest API version 'v1'.";

/// The text of a manifest.
#[derive(Debug, Clone)]
struct Input {
    /// The name in messages.
    name: String,
    text: String,
}

/// Reads the manifests of `ank apply` and makes one update of them; without objects it has no masks.
///
/// # Errors
/// A manifest cannot be read or used.
pub fn update(arguments: &ApplyArguments, output: &mut Output<'_>) -> Result<Update, CliError> {
    merge(&read_inputs(&arguments.manifests)?, arguments, output)
}

/// Reads all manifests, in order; the first that cannot be read ends it. `-` is standard input only as the first one;
/// then the others are ignored.
fn read_inputs(names: &[String]) -> Result<Vec<Input>, CommandError> {
    if names.first().is_some_and(|name| name == "-") {
        let text = read_file("-").map_err(|error| not_read("standard input", &error))?;
        return Ok(vec![Input { name: "standard input".to_owned(), text }]);
    }
    let read = |name: &String| {
        let path = if name == "-" { "./-" } else { name };
        Ok(Input { name: name.clone(), text: read_file(path).map_err(|error| not_read(name, &error))? })
    };
    names.iter().map(read).collect()
}

fn not_read(name: &str, error: &io::Error) -> CommandError {
    if error.kind() == io::ErrorKind::NotFound {
        let hint = "check the path; '-' as the first manifest means standard input";
        return CommandError::input(format!("File '{name}' not found!"), hint);
    }
    CommandError::input(format!("Cannot read '{name}': {error}"), "a manifest is a file of YAML or JSON text")
}

/// The objects of all manifests, with the manifest they come from.
#[derive(Default)]
struct Objects<'i> {
    workloads: BTreeMap<String, (&'i Input, ManifestWorkload)>,
    configs: BTreeMap<String, (&'i Input, ConfigItem)>,
}

/// The update with sorted masks.
fn merge(inputs: &[Input], arguments: &ApplyArguments, output: &mut Output<'_>) -> Result<Update, CliError> {
    let mut objects = Objects::default();
    for input in inputs {
        let manifest = read_manifest(input, output)?;
        if !arguments.delete {
            check_files(input, &manifest)?;
            check_lifecycles(input, &manifest)?;
        }
        for (name, workload) in manifest.workloads {
            put(&mut objects.workloads, "workloads", name, input, workload)?;
        }
        for (name, config) in manifest.configs {
            put(&mut objects.configs, "configs", name, input, config)?;
        }
    }
    let configs = objects.configs.keys().map(|name| format!("desiredState.configs.{name}"));
    let workloads = objects.workloads.keys().map(|name| format!("desiredState.workloads.{name}"));
    let masks: Vec<String> = configs.chain(workloads).collect();
    let new_state = if arguments.delete { Node::empty() } else { new_state(objects, arguments.agent.as_deref())? };
    Ok(Update { new_state, masks, ..Update::default() })
}

fn put<'i, T>(
    objects: &mut BTreeMap<String, (&'i Input, T)>,
    kind: &str,
    name: String,
    input: &'i Input,
    object: T,
) -> Result<(), CommandError> {
    match objects.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert((input, object));
            Ok(())
        }
        Entry::Occupied(entry) => {
            let (first, second) = (&entry.get().0.name, &input.name);
            let hint = if first == second {
                format!("'{first}' is given twice")
            } else {
                format!("it is in '{first}' and in '{second}'; remove it from one of them")
            };
            Err(CommandError::input(format!("Multiple {kind} with the same name '{}' found!", entry.key()), hint))
        }
    }
}

fn new_state(objects: Objects<'_>, agent: Option<&str>) -> Result<Node, CommandError> {
    let mut desired = DesiredState::default();
    for (name, (input, entry)) in objects.workloads {
        let mut workload = entry.workload;
        let Some(agent) = agent.or(entry.agent.as_deref()) else {
            return Err(CommandError::input(
                "No agent name specified -> use '--agent' option to specify!",
                format!("workload '{name}' in '{}' has no key 'agent'", input.name),
            ));
        };
        workload.agent = agent.into();
        desired.workloads.insert(name.into(), Arc::new(workload));
    }
    desired.configs = objects.configs.into_iter().map(|(name, (_, config))| (name, config)).collect();
    Ok(Node::map([("desiredState", desired.node(Rendering::Sparse))]))
}

/// Reads and checks one manifest; the order of checks is fixed, so that the same mistake leads to the same message.
fn read_manifest(input: &Input, output: &mut Output<'_>) -> Result<Manifest, CliError> {
    let invalid = |text: &str, hint: String| {
        CommandError::input(format!("Invalid manifest data provided: {}: {text}", input.name), hint)
    };
    let document = Document::read(&input.text, YAML_FILE_MAX).map_err(|error| {
        invalid(&error.message, hint_of_unreadable(&input.text, &error, "a manifest is one YAML or JSON document"))
    })?;
    let root = document.root();
    let deprecated = root.get("apiVersion").and_then(Yaml::scalar) == Some(API_VERSION_DEPRECATED);
    if !deprecated {
        check_schema(input, &document).inspect_err(|_| warn_of_misspelt(input, &document, output))?;
    }
    check_keys(input, &document)?;
    if deprecated {
        output.status(DEPRECATED)?;
    }
    check_tag_shapes(&document)
        .map_err(|error| CommandError::input(error.to_string(), place(input, error.location())))?;
    if let Some((key, at)) = unknown_objects(&document) {
        let hint = meant_or(&key, TOP_KEYS, "a manifest has 'apiVersion', 'workloads' and 'configs'");
        let at = at.map_or_else(String::new, |at| format!(" at {at}"));
        return Err(invalid(&format!("unknown key '{key}'{at}"), hint).into());
    }
    let manifest = Manifest::from_document(&document)
        .map_err(|error| invalid(&error.to_string(), "correct the manifest and apply it again".to_owned()))?;
    if ![API_VERSION, API_VERSION_DEPRECATED].contains(&manifest.api_version.as_str()) {
        let version = &manifest.api_version;
        let text = format!("Invalid manifest API version provided. Expected '{API_VERSION}', got: '{version}'.");
        return Err(CommandError::input(text, place(input, None)).into());
    }
    for warning in &manifest.warnings {
        output.warn(format_args!("{}: {warning}", input.name));
    }
    Ok(manifest)
}

/// Refuses mount points with the syntax of further mount options: the engine would take them as such.
fn check_files(input: &Input, manifest: &Manifest) -> Result<(), CommandError> {
    for (name, ManifestWorkload { workload, .. }) in &manifest.workloads {
        let Err(error) = check_mount_points(workload) else { continue };
        let files = ["workloads", name, "files"].map(|key| Step::Key(key.to_owned()));
        let at = Document::read(&input.text, YAML_FILE_MAX).ok().and_then(|document| document.locate(&files));
        let text = format!("Invalid manifest data provided: {}: workload '{name}': {error}", input.name);
        return Err(CommandError::input(text, place(input, at)));
    }
    Ok(())
}

/// Refuses errors in `lifecycle:` blocks: a misspelt key would disable a check. Texts with templates are checked by
/// the server, which renders them.
fn check_lifecycles(input: &Input, manifest: &Manifest) -> Result<(), CommandError> {
    for (name, ManifestWorkload { workload, .. }) in &manifest.workloads {
        let config = &workload.runtime_config;
        if !workload.configs.is_empty() && config.contains("{{") {
            continue;
        }
        let Err(error) = lifecycle::of_config(&workload.runtime, config) else { continue };
        let path = ["workloads", name, "runtimeConfig"].map(|key| Step::Key(key.to_owned()));
        let begins = Document::read(&input.text, YAML_FILE_MAX).ok().and_then(|document| document.locate(&path));
        let line = begins
            .zip(error.location)
            .and_then(|(begins, at)| lifecycle::line_in_manifest(&input.text, begins, config, at.line));
        let place = line.map_or_else(|| place(input, begins), |line| format!("see '{}', line {line}", input.name));
        let text = format!("Invalid manifest data provided: {}: workload '{name}': {error}", input.name);
        return Err(CommandError::input(text, place));
    }
    Ok(())
}

/// Warns about misspelt keys of a refused manifest: they are probably the missing ones.
fn warn_of_misspelt(input: &Input, document: &Document<'_>, output: &mut Output<'_>) {
    for key in Manifest::unknown_keys(document).iter().filter(|key| key.nearest.is_some()) {
        output.warn(format_args!("{}: {key}", input.name));
    }
}

fn place(input: &Input, location: Option<Location>) -> String {
    location.map_or_else(|| format!("see '{}'", input.name), |at| format!("see '{}', {at}", input.name))
}

fn check_schema(input: &Input, document: &Document<'_>) -> Result<(), CommandError> {
    let violations = manifest_schema::check(document.root());
    if violations.is_empty() {
        return Ok(());
    }
    let located = violations.iter().take(MANIFEST_WARNINGS_MAX).map(|found| (document.locate(&found.path), found));
    let mut located: Vec<_> = located.collect();
    located.sort_by_key(|(at, _)| at.map(|at| (at.line, at.column))); // In the order of the file.
    let mut text = "Manifest schema validation failed:".to_owned();
    for (at, violation) in located {
        let at = at.map_or_else(String::new, |at| format!(", {at}"));
        text.push_str(&format!("\n'{}': {} ({}{at})", violation.pointer(), violation.message, input.name));
    }
    if violations.len() > MANIFEST_WARNINGS_MAX {
        text.push_str(&format!("\nand {} more", violations.len() - MANIFEST_WARNINGS_MAX));
    }
    Err(CommandError::input(text, "correct the manifest and apply it again; nothing was changed"))
}

/// Refuses keys at any depth that masks cannot name.
fn check_keys(input: &Input, document: &Document<'_>) -> Result<(), CommandError> {
    let mut path = Vec::new();
    if let Some(text) = wrong_key(document.root(), &mut path) {
        return Err(CommandError::input(text, place(input, document.locate(&path))));
    }
    let Some(Yaml::Map(workloads)) = document.root().get("workloads") else { return Ok(()) };
    match workloads.iter().find(|(key, _)| matches!(key, Yaml::Plain(Plain::Integer, _))) {
        Some((key, _)) => Err(CommandError::input(
            "The provided path does not exist! This may be caused by improper naming. \
             Names expected to have characters in '[a-zA-Z0-9_-]'",
            format!("put the name {} of a workload in '{}' in quotes", key.scalar().unwrap_or_default(), input.name),
        )),
        None => Ok(()),
    }
}

/// The message for the first wrong key below `node`; `path` then leads to its value.
fn wrong_key(node: &Yaml, path: &mut Vec<Step>) -> Option<String> {
    match node {
        Yaml::Map(entries) => entries.iter().find_map(|(key, value)| {
            path.push(Step::Key(key.scalar().unwrap_or_default().to_owned()));
            let wrong = match key {
                Yaml::Text(text) if !has_name_characters(text) => {
                    Some(format!("Invalid mapping key '{text}': Expected to have characters in [a-zA-Z0-9_-]."))
                }
                Yaml::Text(_) | Yaml::Plain(Plain::Integer, _) => wrong_key(value, path),
                Yaml::Plain(..) | Yaml::Null => {
                    Some(format!("Unsupported mapping key '{}'", key.scalar().unwrap_or_default()))
                }
                Yaml::List(_) | Yaml::Map(_) => Some(format!("Unsupported mapping key '{}'", key.describe())),
            };
            if wrong.is_none() {
                path.pop();
            }
            wrong
        }),
        Yaml::List(items) => items.iter().enumerate().find_map(|(index, item)| {
            path.push(Step::Index(index));
            let wrong = wrong_key(item, path);
            if wrong.is_none() {
                path.pop();
            }
            wrong
        }),
        Yaml::Null | Yaml::Text(_) | Yaml::Plain(..) => None,
    }
}

/// An unknown key at the top that holds objects: they would be ignored without an error.
fn unknown_objects(document: &Document<'_>) -> Option<(String, Option<Location>)> {
    let Yaml::Map(entries) = document.root() else { return None };
    let (key, _) = entries.iter().find(|(key, value)| {
        let known = key.scalar().is_some_and(|key| TOP_KEYS.contains(&key));
        !known && matches!(value, Yaml::Map(objects) if !objects.is_empty())
    })?;
    let key = key.scalar()?.to_owned();
    let at = document.locate_key(&[Step::Key(key.clone())]);
    Some((key, at))
}

#[cfg(test)]
mod tests;
