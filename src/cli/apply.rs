//! `ank apply` and `ank diff`: manifests to one update. `ank validate`: the checks of manifests
//! that need no server. Only the server renders templates, so their results are not checked.
//!
//! Thread: `main`. Takes: files or standard input. Gives: the update; all checks are made before
//! the connection.

use super::args::{ManifestArguments, ModeChange, PruneArguments, ValidateArguments};
use super::error::{CliError, ExitCode, Result, counted, meant_or};
use super::output::Output;
use super::session::{CliUpdate, ModeRule};
use super::set::hint_of_unread;
use super::update::read_file;
use ankaios_model::complete_state::{DesiredState, Rendering};
use ankaios_model::cycles::{cycle_text, find_cycle};
use ankaios_model::fields::reader::{
    self, DocumentKind, MANIFEST_WARNINGS_MAX, Problem, ReadDocument, UnknownKey,
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

impl Input {
    /// Begins the warnings about this manifest.
    fn prefix(&self) -> String {
        format!("{}: ", self.name)
    }
}

/// The update that applies or deletes the objects of manifests. Without objects it has no masks.
///
/// # Errors
/// A manifest cannot be read or used.
pub(crate) fn update(arguments: &ManifestArguments, output: &mut Output) -> Result<CliUpdate> {
    let files = all_files(&arguments.files, &arguments.manifests)?;
    let inputs = read_inputs(&files)?;
    merge(&inputs, arguments, output)
}

/// The manifests of the command line, those after `-f` first. A folder means its files `*.yaml`,
/// sorted.
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

/// The files `*.yaml` of a folder, sorted.
fn manifests_in(folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| not_read(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| not_read(folder, &error))?.path();
        if let Some(extension) = path.extension()
            && extension == "yaml"
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

/// Reads all manifests, in order. If the first is `-`, which is standard input, it ignores the
/// others.
fn read_inputs(names: &[String]) -> Result<Vec<Input>> {
    if is_standard_input(names) {
        return Ok(vec![read_standard_input()?]);
    }
    names.iter().map(|name| read_manifest_file(name)).collect()
}

fn is_standard_input(names: &[String]) -> bool {
    match names.first() {
        Some(name) => name == "-",
        None => false,
    }
}

fn read_standard_input() -> Result<Input> {
    let text = read_file("-").map_err(|error| not_read("standard input", &error))?;
    Ok(Input {
        name: "standard input".to_owned(),
        text,
    })
}

fn read_manifest_file(name: &str) -> Result<Input> {
    // Behind other manifests, `-` is the name of a file.
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

/// The update of the manifests, with sorted masks. All checks that need no server were made.
fn merge(
    inputs: &[Input],
    arguments: &ManifestArguments,
    output: &mut Output,
) -> Result<CliUpdate> {
    check_agent(arguments.agent.as_deref())?;
    let Merged { desired, errors } = merged(inputs, arguments, output);
    if let Some(first) = errors.into_iter().next() {
        return Err(first);
    }
    let mut masks = Vec::new();
    for name in desired.configs.keys() {
        masks.push(format!("desiredState.configs.{name}"));
    }
    for name in desired.workloads.keys() {
        masks.push(format!("desiredState.workloads.{name}"));
    }
    let mut new_state = Node::empty();
    if !arguments.delete {
        new_state = Node::map([("desiredState", desired.node(Rendering::Sparse))]);
    }
    // Without configs the update cannot switch the mode, and a deletion of the item of the mode is
    // never an accident.
    let mut mode_rule = arguments.mode.rule();
    let may_delete_item = arguments.delete && mode_rule == ModeRule::MustNotSwitch;
    if desired.configs.is_empty() || may_delete_item {
        mode_rule = ModeRule::MaySwitch;
    }
    Ok(CliUpdate {
        new_state,
        masks,
        checks_modes: !arguments.ignore_modes,
        mode_rule,
        ..CliUpdate::default()
    })
}

/// The objects of all manifests together, and all errors, in the order of the files.
struct Merged {
    desired: DesiredState,
    errors: Vec<CliError>,
}

/// Reads, checks and merges all manifests.
fn merged(inputs: &[Input], arguments: &ManifestArguments, output: &mut Output) -> Merged {
    let mut desired = DesiredState::default();
    let mut errors = Vec::new();
    // The manifest of each object.
    let mut origins = BTreeMap::new();
    for input in inputs {
        let (mut manifest, root) = match read_manifest(input, output) {
            Ok(read) => read,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        if arguments.delete {
            // Only the names matter.
            output.warn_of_unknown_keys(&input.prefix(), manifest.warnings.iter());
        } else {
            errors.extend(check_blocks(input, &manifest.warnings));
            let keys = manifest.warnings.iter();
            let ignored = keys.filter(|key| misplaced_block(key).is_none());
            output.warn_of_unknown_keys(&input.prefix(), ignored);
            let mut check = ConfigCheck {
                input,
                root: &root,
                warnings: 0,
                errors: Vec::new(),
                output,
            };
            check.all(&manifest);
            errors.extend(check.errors);
            errors.extend(set_agents(input, &mut manifest, arguments.agent.as_deref()).err());
        }
        let DesiredState {
            workloads, configs, ..
        } = manifest.state;
        for name in workloads.keys() {
            let first = origins.insert(("workloads", name.to_string()), &input.name);
            errors.extend(duplicate("workloads", name, first, &input.name));
        }
        for name in configs.keys() {
            let first = origins.insert(("configs", name.clone()), &input.name);
            errors.extend(duplicate("configs", name, first, &input.name));
        }
        desired.workloads.extend(workloads);
        desired.configs.extend(configs);
    }
    Merged { desired, errors }
}

/// The error for an object of the manifest `second` that the manifest `first` has as well; `None`
/// if there is no first one.
fn duplicate(kind: &str, name: &str, first: Option<&String>, second: &String) -> Option<CliError> {
    let first = first?;
    let text = format!("Multiple {kind} with the same name '{name}' found!");
    let hint = if first == second {
        format!("'{first}' is given twice")
    } else {
        format!("it is in '{first}' and in '{second}'; remove it from one of them")
    };
    Some(CliError::input(text, hint))
}

/// Refuses an agent of the command line whose name is invalid: later errors would blame the
/// manifests. Allowed are also a template, and an empty name, which schedules nothing.
pub(crate) fn check_agent(agent: Option<&str>) -> Result<()> {
    let Some(agent) = agent else { return Ok(()) };
    if agent.is_empty() || is_name(agent) || agent.contains("{{") {
        return Ok(());
    }
    Err(CliError::input(
        format!("Invalid agent name '{agent}' of '--agent'"),
        format!("an agent has a name of 1 to {NAME_MAX} characters in [a-zA-Z0-9_-]"),
    ))
}

/// Assigns all workloads to the agent of the command line. Without one, each must have its own.
fn set_agents(input: &Input, manifest: &mut Manifest, agent: Option<&str>) -> Result<()> {
    if let Some(agent) = agent {
        for workload in manifest.state.workloads.values_mut() {
            Arc::make_mut(workload).agent = agent.into();
        }
        return Ok(());
    }
    let Some((name, _)) = &manifest.without_agent else {
        return Ok(());
    };
    let hint = format!("workload '{name}' in '{}' has no key 'agent'", input.name);
    Err(CliError::input(
        "No agent name specified -> use '--agent' option to specify!",
        hint,
    ))
}

fn invalid(input: &Input, text: &str, hint: String) -> CliError {
    let name = &input.name;
    CliError::input(
        format!("Invalid manifest data provided: {name}: {text}"),
        hint,
    )
}

/// Reads and checks one manifest. The order of the checks is fixed, so that a mistake always has
/// the same message.
fn read_manifest(input: &Input, output: &mut Output) -> Result<(Manifest, Yaml)> {
    // First the syntax.
    let root = match yaml::read(&input.text, Origin::Own) {
        Ok(read) => read.root,
        Err(error) => {
            let otherwise = "a manifest is one YAML or JSON document";
            let hint = error.hint(&input.text, otherwise);
            return Err(invalid(input, &error.message, hint));
        }
    };
    // Then the fields. The JSON schema has only the present version.
    let deprecated = root.get("apiVersion").and_then(Yaml::scalar) == Some(API_VERSION_DEPRECATED);
    let rules = if deprecated {
        DocumentKind::Manifest
    } else {
        DocumentKind::Schema
    };
    let reading = reader::read(&root, &STATE, rules);
    if !deprecated && !reading.problems.is_empty() {
        // Misspelt keys are probably the missing ones.
        let misspelt = reading.unknown.iter().filter(|key| key.nearest.is_some());
        output.warn_of_unknown_keys(&input.prefix(), misspelt);
        return Err(schema_error(input, &root, &reading));
    }
    // Then the keys.
    check_keys(input, &root)?;
    if deprecated {
        output.status(DEPRECATED)?;
    }
    for key in &reading.unknown {
        if holds_objects(root.get(&key.path)) {
            return Err(unknown_objects(input, key));
        }
    }
    // Finally the objects.
    match Manifest::new(reading, &root) {
        Ok(manifest) => Ok((manifest, root)),
        Err(ManifestError::TagShape { message, location }) => {
            Err(CliError::input(message, place(input, location)))
        }
        Err(error) => {
            let hint = "correct the manifest".to_owned();
            Err(invalid(input, &error.to_string(), hint))
        }
    }
}

/// Returns whether a value of a manifest is a map with entries.
fn holds_objects(value: Option<&Yaml>) -> bool {
    match value {
        Some(value) => matches!(&value.content, Content::Map(objects) if !objects.is_empty()),
        None => false,
    }
}

/// The error for objects below an unknown key: they would be ignored without an error.
fn unknown_objects(input: &Input, unknown: &UnknownKey) -> CliError {
    let key = &unknown.path;
    let at = shown_place(unknown.location);
    let otherwise = "a manifest has 'apiVersion', 'workloads' and 'configs'";
    let hint = meant_or(key, STATE.names(), otherwise);
    invalid(input, &format!("unknown key '{key}'{at}"), hint)
}

/// A place within a text: ` at line 3, column 5`; empty if it is unknown.
fn shown_place(location: Option<Location>) -> String {
    match location {
        Some(at) => format!(" at {at}"),
        None => String::new(),
    }
}

/// The error for a mistake in a workload of a manifest.
fn refused(input: &Input, workload: &str, error: &dyn Display, hint: String) -> CliError {
    CliError::input(
        format!(
            "Invalid manifest data provided: {}: workload '{workload}': {error}",
            input.name
        ),
        hint,
    )
}

/// The errors for each `lifecycle:` beside `runtimeConfig`: it would be ignored there, with all its
/// conditions and checks.
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

/// The workload and the key, if an unknown key is probably `lifecycle:`.
fn misplaced_block(unknown: &UnknownKey) -> Option<(&str, &str)> {
    let (workload, key) = unknown.path.strip_prefix("workloads.")?.split_once('.')?;
    nearest(key, [lifecycle::KEY])?;
    Some((workload, key))
}

/// Checks the mount points and runtime configurations of one manifest.
///
/// - Errors: a mount point that engines would take for options, a mistake in a `lifecycle:` block,
///   which would disable a check, and a configuration that no agent can run: an agent would stop
///   the earlier instance before it finds that.
/// - Warnings: keys that engines ignore, and runtimes that only agents of others can have.
/// - Unchecked: texts with templates. Only the server renders them.
struct ConfigCheck<'m> {
    input: &'m Input,
    root: &'m Yaml,
    /// Number of warnings, including unprinted ones.
    warnings: usize,
    errors: Vec<CliError>,
    output: &'m mut Output,
}

impl ConfigCheck<'_> {
    fn all(&mut self, manifest: &Manifest) {
        for (name, workload) in &manifest.state.workloads {
            self.workload(name, workload);
        }
        let more = self.warnings.saturating_sub(MANIFEST_WARNINGS_MAX);
        if more > 0 {
            let file = &self.input.name;
            self.output
                .warn(format_args!("{file}: and {more} more of these"));
        }
    }

    fn workload(&mut self, name: &str, workload: &Workload) {
        if let Err(error) = check_mount_points(workload) {
            let hint = place(self.input, self.begin_of(name, "files"));
            self.errors.push(refused(self.input, name, &error, hint));
        }
        let runtime = &*workload.runtime;
        if !RUNTIMES.contains(&runtime) {
            self.warn_of_runtime(name, runtime);
        } else if !is_template(workload, &workload.runtime_config) {
            self.config(name, workload);
        }
    }

    /// Checks the runtime configuration of a workload.
    fn config(&mut self, name: &str, workload: &Workload) {
        let config = workload.config();
        // First, the `lifecycle:` block.
        if let Err(error) = &workload.lifecycle() {
            let hint = match self.place_in_config(name, workload, error.location) {
                Some(at) => format!("see '{}', line {}", self.input.name, at.line),
                None => place(self.input, self.begin_of(name, "runtimeConfig")),
            };
            self.errors.push(refused(self.input, name, error, hint));
            return;
        }
        // Then, the configuration of the engine.
        // [impl->swdd~cli-refuses-what-no-agent-can-run~1]
        if let Err(reason) = &config.engine {
            let text = cannot_be_run("runtimeConfig", reason);
            let hint = place(self.input, self.begin_of(name, "runtimeConfig"));
            self.errors.push(refused(self.input, name, &text, hint));
        }
        let file = &self.input.name;
        if let Some(text) = conflicting_restarts(workload)
            && self.count_warning()
        {
            let at = shown_place(self.begin_of(name, "runtimeConfig"));
            self.output.warn(format_args!(
                "{file}: workload '{name}': 'runtimeConfig'{at}: {text}"
            ));
        }
        // Finally, unknown keys.
        for key in &config.unknown {
            if self.count_warning() {
                let key = UnknownKey {
                    path: format!("workloads.{name}.runtimeConfig.{}", key.path),
                    location: self.place_in_config(name, workload, key.location),
                    ..key.clone()
                };
                self.output.warn(format_args!("{file}: {key}"));
            }
        }
        self.warnings += config.more_unknown;
    }

    fn warn_of_runtime(&mut self, name: &str, runtime: &str) {
        if !self.count_warning() {
            return;
        }
        let otherwise = format!("agents have '{}'", RUNTIMES.join("', '"));
        let meant = meant_or(runtime, RUNTIMES, &otherwise);
        let file = &self.input.name;
        self.output.warn(format_args!(
            "{file}: workload '{name}': unknown runtime '{runtime}'; {meant}"
        ));
    }

    /// Counts a warning. Returns whether to print it: only the first ones, since it takes time to
    /// find their places.
    fn count_warning(&mut self) -> bool {
        self.warnings += 1;
        self.warnings <= MANIFEST_WARNINGS_MAX
    }

    /// The place in the manifest where a field of a workload begins.
    fn begin_of(&self, name: &str, field: &str) -> Option<Location> {
        let (_, value) = self.root.entry_at(&["workloads", name, field])?;
        Some(value.at)
    }

    /// The place in the manifest of a place in the runtime configuration.
    fn place_in_config(
        &self,
        name: &str,
        workload: &Workload,
        at: Option<Location>,
    ) -> Option<Location> {
        let begin = self.begin_of(name, "runtimeConfig")?;
        place_in_manifest(&self.input.text, begin, &workload.runtime_config, at?)
    }
}

/// The text about a configuration that every agent would refuse, and where it is.
pub(crate) fn cannot_be_run(place: &str, reason: &str) -> String {
    format!("'{place}' cannot be run: {reason}")
}

/// The text about an engine that restarts the containers of a workload, as the agent does; `None`
/// if the engine restarts none.
fn conflicting_restarts(workload: &Workload) -> Option<String> {
    let EngineRestarts { policy, pod } = workload.config().engine_restarts()?;
    let Some(pod) = pod else {
        return Some(format!(
            "by '--restart {policy}' the engine starts the container again beside the agent, and after a boot without it; \
             remove it and use 'restartPolicy' of the workload"
        ));
    };
    // Manifests of Kubernetes often have a policy. It is harmless if the agent restarts nothing.
    if workload.restart_policy == RestartPolicy::Never {
        return None;
    }
    Some(format!(
        "podman starts the containers of pod '{pod}' again ('restartPolicy: {policy}'), and so does the agent; write \
         'restartPolicy: Never' into the pod"
    ))
}

/// Returns whether the server renders a text of a workload.
fn is_template(workload: &Workload, text: &str) -> bool {
    !workload.configs.is_empty() && text.contains("{{")
}

/// The hint with a place in a manifest.
fn place(input: &Input, location: Option<Location>) -> String {
    match location {
        Some(at) => format!("see '{}', {at}", input.name),
        None => format!("see '{}'", input.name),
    }
}

/// The error with all problems of the fields of a manifest.
fn schema_error(input: &Input, root: &Yaml, reading: &ReadDocument) -> CliError {
    let mut text = "Manifest schema validation failed:".to_owned();
    if root.is_null() {
        text.push_str(&format!("\n'{}' is empty", input.name));
        return CliError::input(text, "a manifest has at least the line: apiVersion: v1");
    }
    let mut problems: Vec<&Problem> = reading.problems.iter().collect();
    problems.sort_by_key(|problem| problem.at); // In the order of the file.
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
    if let Some(key) = wrong_key(root) {
        let hint = place(input, Some(key.at));
        return Err(CliError::input(key_error(key), hint));
    }
    let Some(workloads) = root.get("workloads") else {
        return Ok(());
    };
    let Content::Map(workloads) = &workloads.content else {
        return Ok(());
    };
    // An integer is a key, but not the name of a workload.
    for (key, _) in workloads.iter() {
        if let Content::Plain(Plain::Integer, number) = &key.content {
            return Err(CliError::input(
                "The provided path does not exist! This may be caused by improper naming. \
                 Names expected to have characters in '[a-zA-Z0-9_-]'",
                format!(
                    "put the name {number} of a workload in '{}' in quotes",
                    input.name
                ),
            ));
        }
    }
    Ok(())
}

/// The first key below `node` that no mask can name.
fn wrong_key(node: &Yaml) -> Option<&Yaml> {
    match &node.content {
        Content::Map(entries) => {
            for (key, value) in entries.iter() {
                let is_right = match &key.content {
                    Content::Text(text) => has_name_characters(text),
                    Content::Plain(kind, _) => matches!(kind, Plain::Integer),
                    Content::List(_) | Content::Map(_) => false,
                };
                if !is_right {
                    return Some(key);
                }
                let below = wrong_key(value);
                if below.is_some() {
                    return below;
                }
            }
            None
        }
        Content::List(items) => items.iter().find_map(wrong_key),
        Content::Text(_) | Content::Plain(..) => None,
    }
}

fn key_error(key: &Yaml) -> String {
    match &key.content {
        Content::Text(text) => {
            format!("Invalid mapping key '{text}': Expected to have characters in [a-zA-Z0-9_-].")
        }
        Content::Plain(..) => {
            let text = key.scalar().unwrap_or_default();
            format!("Unsupported mapping key '{text}'")
        }
        Content::List(_) | Content::Map(_) => {
            format!("Unsupported mapping key '{}'", key.describe())
        }
    }
}

// ------------------------------------------------------------ `ank validate`

/// Checks the manifests as one update of an empty cluster. Prints all errors that a server or an
/// agent would find. With `--strict`, warnings are errors.
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
    // First check each file: one that cannot be read does not hide the errors of the others.
    let mut inputs = Vec::new();
    let mut wrong = Vec::new();
    if is_standard_input(&arguments.manifests) {
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
    } = merged(&inputs, &arguments, output);
    wrong.extend(found);
    // Then check all of them together. A file with errors may have the objects that seem unknown.
    if wrong.is_empty() {
        for warning in unknown_references(&desired) {
            output.warn(warning);
        }
    }
    let rules = errors(&desired);
    if !rules.is_empty() {
        let text = format!("Invalid manifest data provided:\n{}", rules.join("\n"));
        wrong.push(CliError::input(
            text,
            "correct the manifests; the server would refuse them",
        ));
    }
    // Finally report.
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
    let workloads = counted(desired.workloads.len(), "workload");
    let configs = counted(desired.configs.len(), "config");
    output.status(&format!("Valid: {workloads}, {configs}."))?;
    Ok(ExitCode::Success)
}

/// The errors that a server would find in the merged manifests.
fn errors(state: &DesiredState) -> Vec<String> {
    let mut errors = Vec::new();
    if let Err(error) = check_config_keys(&state.configs) {
        errors.push(error.to_string());
    }
    for (name, workload) in &state.workloads {
        // Templates are rendered by the server, so their results are not checked.
        let checked = if is_template(workload, &workload.agent) {
            check_workload_name(name)
        } else {
            check_workload(name, workload)
        };
        if let Err(error) = checked.and_then(|()| check_config_references(workload)) {
            errors.push(format!("workload '{name}': {error}"));
        }
    }
    let cycle = find_cycle(
        |name| Some(&**state.workloads.get(name)?),
        state.workloads.keys(),
    );
    if let Some(cycle) = cycle {
        errors.push(cycle_text(&cycle));
    }
    errors
}

/// Texts about references to objects that no manifest has: they are in the cluster, or typing
/// errors.
fn unknown_references(state: &DesiredState) -> Vec<String> {
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
