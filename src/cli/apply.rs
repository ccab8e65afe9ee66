//! `ank apply` and `ank diff`: manifests to one update. `ank validate`: the checks of manifests
//! that need no server, which renders templates; so what they lead to is not checked.
//!
//! Thread: `main`. Takes: files or standard input. Gives: the update; all checks are made before
//! the connection.

use super::args::{ManifestArguments, ModeChange, PruneArguments, ValidateArguments};
use super::error::{CliError, ExitCode, Result, counted, meant_or};
use super::output::Output;
use super::session::Update;
use super::set::{hint_of_unread, hint_of_unreadable};
use super::update::read_file;
use ankaios_model::complete_state::{DesiredState, Rendering};
use ankaios_model::cycles::{cycle_text, find_cycle};
use ankaios_model::fields::reader::{
    self, MANIFEST_WARNINGS_MAX, Problem, Reading, Rules, UnknownKey,
};
use ankaios_model::fields::table::STATE;
use ankaios_model::lifecycle::{self, place_in_manifest};
use ankaios_model::limits::NAME_MAX;
use ankaios_model::manifest::{Manifest, ManifestError};
use ankaios_model::names::{RUNTIMES, has_name_characters, is_name};
use ankaios_model::nearest::{meant, nearest};
use ankaios_model::node::Node;
use ankaios_model::runtime_config::EngineRestarts;
use ankaios_model::validation::{
    check_config_keys, check_config_references, check_mount_points, check_workload,
    check_workload_name,
};
use ankaios_model::version::API_VERSION_DEPRECATED;
use ankaios_model::workload::{RestartPolicy, Workload};
use ankaios_model::yaml::{self, Content, Location, Origin, Plain, Yaml};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::Path;
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

/// Reads manifests and makes one update of them; without objects it has no masks.
///
/// # Errors
/// A manifest cannot be read or used.
pub(crate) fn update(arguments: &ManifestArguments, output: &mut Output) -> Result<Update> {
    let inputs = read_inputs(&all_files(&arguments.files, &arguments.manifests)?)?;
    merge(&inputs, arguments, output)
}

/// The manifests of the command line, those after `-f` first. A folder stands for its files
/// `*.yaml`, sorted.
fn all_files(options: &[String], words: &[String]) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for name in options.iter().chain(words) {
        if Path::new(name).is_dir() {
            files.extend(manifests_in(name)?);
        } else {
            files.push(name.clone());
        }
    }
    Ok(files)
}

fn manifests_in(folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| not_read(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| not_read(folder, &error))?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
            && path.is_file()
        {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    if files.is_empty() {
        return Err(CliError::input(
            format!("the folder '{folder}' has no files '*.yaml'"),
            "name the files, or another folder; folders in it are not read",
        ));
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads all manifests, in order; the first that cannot be read ends it. `-` is standard input only
/// as the first one; then the others are ignored.
fn read_inputs(names: &[String]) -> Result<Vec<Input>> {
    if names.first().is_some_and(|name| name == "-") {
        return Ok(vec![read_standard_input()?]);
    }
    names.iter().map(|name| read_manifest_file(name)).collect()
}

fn read_standard_input() -> Result<Input> {
    let text = read_file("-").map_err(|error| not_read("standard input", &error))?;
    Ok(Input {
        name: "standard input".to_owned(),
        text,
    })
}

fn read_manifest_file(name: &str) -> Result<Input> {
    let path = if name == "-" { "./-" } else { name };
    Ok(Input {
        name: name.to_owned(),
        text: read_file(path).map_err(|error| not_read(name, &error))?,
    })
}

fn not_read(name: &str, error: &io::Error) -> CliError {
    if error.kind() == io::ErrorKind::NotFound {
        let hint = "check the path; '-' as the first manifest means standard input";
        return CliError::input(format!("File '{name}' not found!"), hint);
    }
    let hint = hint_of_unread(error, "a manifest is a file of YAML or JSON text");
    CliError::input(format!("Cannot read '{name}': {error}"), hint)
}

/// The update with sorted masks.
fn merge(inputs: &[Input], arguments: &ManifestArguments, output: &mut Output) -> Result<Update> {
    check_agent(arguments.agent.as_deref())?;
    let Merged { desired, errors } = merged(inputs, arguments, output, true);
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    let config_masks = desired
        .configs
        .keys()
        .map(|name| format!("desiredState.configs.{name}"));
    let workload_masks = desired
        .workloads
        .keys()
        .map(|name| format!("desiredState.workloads.{name}"));
    let masks: Vec<String> = config_masks.chain(workload_masks).collect();
    let new_state = match arguments.delete {
        true => Node::empty(),
        false => Node::map([("desiredState", desired.node(Rendering::Sparse))]),
    };
    // Who deletes the item of the mode says so.
    let may_switch = |keeps: &bool| !desired.configs.is_empty() && (*keeps || !arguments.delete);
    let keeps_mode = arguments.mode.keeps_mode().filter(may_switch);
    Ok(Update {
        new_state,
        masks,
        checks_modes: !arguments.ignore_modes,
        keeps_mode,
        ..Update::default()
    })
}

/// What manifests hold together, and all that is wrong with them, in the order of the files.
struct Merged {
    desired: DesiredState,
    errors: Vec<CliError>,
}

fn merged(
    inputs: &[Input],
    arguments: &ManifestArguments,
    output: &mut Output,
    warns_of_engines: bool,
) -> Merged {
    let mut desired = DesiredState::default();
    let mut errors = Vec::new();
    let mut origins = BTreeMap::new();
    for input in inputs {
        let (mut manifest, root) = match read_manifest(input, output) {
            Ok(read) => read,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        if !arguments.delete {
            errors.extend(check_blocks(input, &manifest.warnings));
        }
        // What is refused is not ignored.
        let is_ignored = |key: &&UnknownKey| arguments.delete || misplaced_block(key).is_none();
        for warning in manifest
            .warnings
            .iter()
            .filter(is_ignored)
            .take(MANIFEST_WARNINGS_MAX)
        {
            output.warn(format_args!("{}: {warning}", input.name));
        }
        if !arguments.delete {
            // Who ends here because of a missing agent checks no engine later.
            let misses_agent = arguments.agent.is_none() && manifest.without_agent.is_some();
            errors.extend(check_configs(
                input,
                &manifest,
                &root,
                output,
                warns_of_engines || misses_agent,
            ));
            errors.extend(set_agents(input, &mut manifest, arguments.agent.as_deref()).err());
        }
        let DesiredState {
            workloads, configs, ..
        } = manifest.state;
        let names = workloads.keys().map(|name| ("workloads", name.to_string()));
        for (kind, name) in names.chain(configs.keys().map(|name| ("configs", name.clone()))) {
            let second = &input.name;
            if let Some(first) = origins.insert((kind, name.clone()), second) {
                let text = format!("Multiple {kind} with the same name '{name}' found!");
                let hint = match first == second {
                    true => format!("'{first}' is given twice"),
                    false => {
                        format!("it is in '{first}' and in '{second}'; remove it from one of them")
                    }
                };
                errors.push(CliError::input(text, hint));
            }
        }
        desired.workloads.extend(workloads);
        desired.configs.extend(configs);
    }
    Merged { desired, errors }
}

/// Refuses an agent of the command line that no agent can have as its name: the manifests are
/// right then. An empty one schedules nothing.
fn check_agent(agent: Option<&str>) -> Result<()> {
    let Some(agent) = agent else { return Ok(()) };
    if agent.is_empty() || is_name(agent) || agent.contains("{{") {
        return Ok(());
    }
    Err(CliError::input(
        format!("Invalid agent name '{agent}' of '--agent'"),
        format!("an agent has a name of 1 to {NAME_MAX} characters in [a-zA-Z0-9_-]"),
    ))
}

/// Gives all workloads the agent of the command line, if there is one.
fn set_agents(input: &Input, manifest: &mut Manifest, agent: Option<&str>) -> Result<()> {
    if let Some(agent) = agent {
        manifest
            .state
            .workloads
            .values_mut()
            .for_each(|workload| Arc::make_mut(workload).agent = agent.into());
        return Ok(());
    }
    manifest.without_agent.as_ref().map_or(Ok(()), |(name, _)| {
        let hint = format!("workload '{name}' in '{}' has no key 'agent'", input.name);
        Err(CliError::input(
            "No agent name specified -> use '--agent' option to specify!",
            hint,
        ))
    })
}

/// Reads and checks one manifest; the order of checks is fixed, so that the same mistake leads to
/// the same message.
fn read_manifest(input: &Input, output: &mut Output) -> Result<(Manifest, Yaml)> {
    let invalid = |text: &str, hint: String| {
        CliError::input(
            format!("Invalid manifest data provided: {}: {text}", input.name),
            hint,
        )
    };
    let read = yaml::read(&input.text, Origin::Own).map_err(|error| {
        invalid(
            &error.message,
            hint_of_unreadable(
                &input.text,
                &error,
                "a manifest is one YAML or JSON document",
            ),
        )
    })?;
    let root = read.root;
    let deprecated = root.get("apiVersion").and_then(Yaml::scalar) == Some(API_VERSION_DEPRECATED);
    let rules = if deprecated {
        Rules::Manifest
    } else {
        Rules::Schema
    };
    let reading = reader::read(&root, &STATE, rules);
    if !deprecated && !reading.problems.is_empty() {
        // Misspelt keys are probably the missing ones.
        for key in reading
            .unknown
            .iter()
            .filter(|key| key.nearest.is_some())
            .take(MANIFEST_WARNINGS_MAX)
        {
            output.warn(format_args!("{}: {key}", input.name));
        }
        return Err(schema_error(input, &root, &reading));
    }
    check_keys(input, &root)?;
    if deprecated {
        output.status(DEPRECATED)?;
    }
    // They would be ignored without an error.
    let holds_objects =
        |value: &Yaml| matches!(&value.content, Content::Map(objects) if !objects.is_empty());
    let mut unknown = reading.unknown.iter();
    if let Some(UnknownKey {
        path: key,
        location,
        ..
    }) = unknown.find(|key| root.get(&key.path).is_some_and(holds_objects))
    {
        let at = location.map_or_else(String::new, |at| format!(" at {at}"));
        let hint = meant_or(
            key,
            STATE.names(),
            "a manifest has 'apiVersion', 'workloads' and 'configs'",
        );
        return Err(invalid(&format!("unknown key '{key}'{at}"), hint));
    }
    let manifest = Manifest::new(reading, &root).map_err(|error| match error {
        ManifestError::TagShape { message, location } => {
            CliError::input(message, place(input, location))
        }
        error => invalid(&error.to_string(), "correct the manifest".to_owned()),
    })?;
    Ok((manifest, root))
}

fn refused(input: &Input, workload: &str, error: &dyn Display, hint: String) -> CliError {
    CliError::input(
        format!(
            "Invalid manifest data provided: {}: workload '{workload}': {error}",
            input.name
        ),
        hint,
    )
}

/// Refuses each `lifecycle:` beside `runtimeConfig`: it would be ignored there, with all its gates.
fn check_blocks(input: &Input, unknown: &[UnknownKey]) -> Vec<CliError> {
    let mut errors = Vec::new();
    for unknown in unknown {
        let Some((workload, key)) = misplaced_block(unknown) else {
            continue;
        };
        let text =
            format!("the block '{key}' belongs into the text of 'runtimeConfig', not beside it");
        let hint = format!(
            "{}: indent it below 'runtimeConfig: |'",
            place(input, unknown.location)
        );
        errors.push(refused(input, workload, &text, hint));
    }
    errors
}

/// The workload and the key, when an unknown key is probably `lifecycle:`.
fn misplaced_block(unknown: &UnknownKey) -> Option<(&str, &str)> {
    let (workload, key) = unknown.path.strip_prefix("workloads.")?.split_once('.')?;
    nearest(key, [lifecycle::KEY]).map(|_| (workload, key))
}

/// Refuses mount points that are further options, and errors in `lifecycle:` blocks: a misspelt key
/// would disable a check. Warns of what engines cannot use or ignore. Texts with templates are
/// checked by the server, which renders them.
fn check_configs(
    input: &Input,
    manifest: &Manifest,
    root: &Yaml,
    output: &mut Output,
    warns_of_engines: bool,
) -> Vec<CliError> {
    let mut errors = Vec::new();
    let mut warnings: usize = 0;
    // To find the place of each takes time, and nobody reads thousands.
    let mut may_warn = || {
        warnings += 1;
        warnings <= MANIFEST_WARNINGS_MAX
    };
    for (name, workload) in &manifest.state.workloads {
        let begins = |field: &str| {
            root.entry_at(&["workloads", name, field])
                .map(|(_, value)| value.at)
        };
        // The engine would take a mount point with the syntax of further options as such.
        if let Err(error) = check_mount_points(workload) {
            errors.push(refused(input, name, &error, place(input, begins("files"))));
        }
        let config = &workload.runtime_config;
        let runtime = &*workload.runtime;
        if !RUNTIMES.contains(&runtime) {
            if may_warn() {
                let meant = meant_or(
                    runtime,
                    RUNTIMES,
                    &format!("agents have '{}'", RUNTIMES.join("', '")),
                );
                output.warn(format_args!(
                    "{}: workload '{name}': unknown runtime '{runtime}', {meant}",
                    input.name
                ));
            }
            continue;
        }
        if is_template(workload, config) {
            continue;
        }
        let read = workload.config();
        let begins = || begins("runtimeConfig");
        let in_file = |at: Option<Location>| place_in_manifest(&input.text, begins()?, config, at?);
        if let Err(error) = &workload.lifecycle() {
            let line =
                in_file(error.location).map(|at| format!("see '{}', line {}", input.name, at.line));
            errors.push(refused(
                input,
                name,
                error,
                line.unwrap_or_else(|| place(input, begins())),
            ));
            continue;
        }
        if let Some(reason) = read
            .engine
            .as_ref()
            .err()
            .filter(|_| warns_of_engines && may_warn())
        {
            let at = begins().map_or_else(String::new, |at| format!(" at {at}"));
            output.warn(format_args!(
                "{}: workload '{name}': 'runtimeConfig'{at} cannot be run: {reason}",
                input.name
            ));
        }
        if let Some(text) = fights_with_engine(workload)
            && may_warn()
        {
            let at = begins().map_or_else(String::new, |at| format!(" at {at}"));
            output.warn(format_args!(
                "{}: workload '{name}': 'runtimeConfig'{at}: {text}",
                input.name
            ));
        }
        for key in read.unknown.iter().filter(|_| may_warn()) {
            let path = format!("workloads.{name}.runtimeConfig.{}", key.path);
            let key = UnknownKey {
                path,
                location: in_file(key.location),
                ..key.clone()
            };
            output.warn(format_args!("{}: {key}", input.name));
        }
    }
    if let more @ 1.. = warnings.saturating_sub(MANIFEST_WARNINGS_MAX) {
        output.warn(format_args!("{}: and {more} more of these", input.name));
    }
    errors
}

/// What is wrong with restarts by the engine, when there are any. Those of a pod are usual in
/// manifests of Kubernetes and harmless as long as the agent starts nothing again.
fn fights_with_engine(workload: &Workload) -> Option<String> {
    let EngineRestarts { policy, pod } = workload.config().engine_restarts()?;
    match pod {
        None => Some(format!(
            "by '--restart {policy}' the engine starts the container again beside the agent, and after a boot without it; \
             remove it and use 'restartPolicy' of the workload"
        )),
        Some(pod) if workload.restart_policy != RestartPolicy::Never => Some(format!(
            "podman starts the containers of pod '{pod}' again ('restartPolicy: {policy}'), and so does the agent; write \
             'restartPolicy: Never' into the pod"
        )),
        Some(_) => None,
    }
}

/// Whether the server renders a text of a workload.
fn is_template(workload: &Workload, text: &str) -> bool {
    !workload.configs.is_empty() && text.contains("{{")
}

fn place(input: &Input, location: Option<Location>) -> String {
    location.map_or_else(
        || format!("see '{}'", input.name),
        |at| format!("see '{}', {at}", input.name),
    )
}

fn schema_error(input: &Input, root: &Yaml, reading: &Reading) -> CliError {
    let mut problems: Vec<&Problem> = reading.problems.iter().collect();
    problems.sort_by_key(|problem| problem.at); // In the order of the file.
    let mut text = "Manifest schema validation failed:".to_owned();
    if root.is_null() {
        text.push_str(&format!("\n'{}' is empty", input.name));
        return CliError::input(text, "a manifest has at least the line: apiVersion: v1");
    }
    for Problem {
        path, message, at, ..
    } in problems
    {
        let what = if path.is_empty() {
            "the manifest".to_owned()
        } else {
            format!("'{path}'")
        };
        text.push_str(&format!("\n{what}: {message} ({}, {at})", input.name));
    }
    if reading.more_problems > 0 {
        text.push_str(&format!("\nand {} more", reading.more_problems));
    }
    CliError::input(text, "correct the manifest")
}

/// Refuses keys at any depth that masks cannot name.
fn check_keys(input: &Input, root: &Yaml) -> Result<()> {
    if let Some((text, at)) = wrong_key(root) {
        return Err(CliError::input(text, place(input, Some(at))));
    }
    let Some(Content::Map(workloads)) = root.get("workloads").map(|workloads| &workloads.content)
    else {
        return Ok(());
    };
    match workloads
        .iter()
        .find(|(key, _)| matches!(key.content, Content::Plain(Plain::Integer, _)))
    {
        Some((key, _)) => Err(CliError::input(
            "The provided path does not exist! This may be caused by improper naming. \
             Names expected to have characters in '[a-zA-Z0-9_-]'",
            format!(
                "put the name {} of a workload in '{}' in quotes",
                key.scalar().unwrap_or_default(),
                input.name
            ),
        )),
        None => Ok(()),
    }
}

/// The message for the first wrong key below `node`, and where it is.
fn wrong_key(node: &Yaml) -> Option<(String, Location)> {
    match &node.content {
        Content::Map(entries) => entries.iter().find_map(|(key, value)| {
            let wrong = match &key.content {
                Content::Text(text) if !has_name_characters(text) => {
                    format!("Invalid mapping key '{text}': Expected to have characters in [a-zA-Z0-9_-].")
                }
                Content::Text(_) | Content::Plain(Plain::Integer, _) => return wrong_key(value),
                Content::Plain(..) => format!("Unsupported mapping key '{}'", key.scalar().unwrap_or_default()),
                Content::List(_) | Content::Map(_) => format!("Unsupported mapping key '{}'", key.describe()),
            };
            Some((wrong, key.at))
        }),
        Content::List(items) => items.iter().find_map(wrong_key),
        Content::Text(_) | Content::Plain(..) => None,
    }
}

// ------------------------------------------------------------ `ank validate`

/// Checks the manifests as one update of an empty cluster. Prints everything that is wrong in any
/// of them: all that a server or an agent would refuse, and with `--strict` also what is only
/// warned of.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn validate(arguments: &ValidateArguments, output: &mut Output) -> Result<ExitCode> {
    check_agent(arguments.agent.as_deref())?;
    let strict = arguments.strict;
    let arguments = ManifestArguments {
        agent: arguments.agent.clone(),
        files: Vec::new(),
        manifests: all_files(&arguments.files, &arguments.manifests)?,
        delete: false,
        ignore_modes: true,
        mode: ModeChange::default(),
        prune: PruneArguments::default(),
    };
    let earlier = output.warnings;
    // First each file: one that cannot be read does not hide what is wrong with the others.
    let mut inputs = Vec::new();
    let mut wrong = Vec::new();
    let is_stdin = arguments.manifests.first().is_some_and(|name| name == "-");
    if is_stdin {
        inputs.push(read_standard_input()?); // The others are ignored then.
    } else {
        for name in &arguments.manifests {
            match read_manifest_file(name) {
                Ok(input) => inputs.push(input),
                Err(error) => wrong.push(error),
            }
        }
    }
    let Merged {
        desired,
        errors: found,
    } = merged(&inputs, &arguments, output, false);
    wrong.extend(found);
    // Then all of them together. What cannot be read may be what others refer to.
    if wrong.is_empty() {
        for warning in unknown(&desired) {
            output.warn(warning);
        }
    }
    let rules = errors(&desired);
    if !rules.is_empty() {
        let text = format!("Invalid manifest data provided:\n{}", rules.join("\n"));
        wrong.push(CliError::input(
            text,
            "correct the manifests; 'ank apply' would be refused or fail",
        ));
    }
    for error in &wrong {
        output.error(error, &error.hint());
    }
    if !wrong.is_empty() {
        return Ok(ExitCode::Failed);
    }
    let warnings = output.warnings - earlier;
    if strict && warnings > 0 {
        let text = format!("valid, but with {}", counted(warnings, "warning"));
        output.error(
            text,
            "correct what the warnings name; without '--strict' they are no error",
        );
        return Ok(ExitCode::Failed);
    }
    let (workloads, configs) = (
        counted(desired.workloads.len(), "workload"),
        counted(desired.configs.len(), "config"),
    );
    output.status(&format!("Valid: {workloads}, {configs}."))?;
    Ok(ExitCode::Success)
}

fn errors(state: &DesiredState) -> Vec<String> {
    let mut errors = Vec::new();
    if let Err(error) = check_config_keys(&state.configs) {
        errors.push(error.to_string());
    }
    for (name, workload) in &state.workloads {
        let named = if is_template(workload, &workload.agent) {
            check_workload_name(name)
        } else {
            check_workload(name, workload)
        };
        if let Err(error) = named.and_then(|()| check_config_references(workload)) {
            errors.push(format!("workload '{name}': {error}"));
        }
        let is_run = !is_template(workload, &workload.runtime_config)
            && RUNTIMES.contains(&&*workload.runtime);
        if is_run && let Err(error) = &workload.config().engine {
            errors.push(format!("workload '{name}': {error}"));
        }
    }
    let workload = |name: &str| state.workloads.get(name).map(|workload| &**workload);
    if let Some(cycle) = find_cycle(workload, state.workloads.keys()) {
        errors.push(cycle_text(&cycle));
    }
    errors
}

/// What the manifests refer to and do not have: it may be in the cluster, or a typing error.
fn unknown(state: &DesiredState) -> Vec<String> {
    let mut unknown = Vec::new();
    for (name, workload) in &state.workloads {
        for needed in workload.dependencies.keys() {
            if state.workloads.contains_key(needed.as_str()) {
                continue;
            }
            let others = state.workloads.keys().filter(|other| *other != name);
            let meant = meant(needed, others.map(|other| &**other));
            unknown.push(format!(
                "workload '{name}' needs '{needed}', which is in no manifest{meant}"
            ));
        }
        for config in workload.configs.values() {
            if state.configs.contains_key(config.as_str()) {
                continue;
            }
            let meant = meant(config, state.configs.keys().map(String::as_str));
            unknown.push(format!(
                "workload '{name}' uses the config '{config}', which is in no manifest{meant}"
            ));
        }
    }
    unknown
}

#[cfg(test)]
mod tests;
