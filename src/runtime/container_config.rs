//! The `runtimeConfig` of the container engines and the arguments that it turns into, shared by podman and nerdctl.
//!
//! Thread: none, plain values.

use super::masking::{MASK, Masked, masked_complaint};
use super::{NewContainer, RuntimeError};
use crate::limits::YAML_CONFIG_MAX;
use crate::model::names::InstanceName;
use crate::model::shown_text::without_passwords;
use crate::model::validation::{mount_rule, unfit_for_mount};
use crate::model::workload::Workload;
use crate::model::yaml;
use serde::{Deserialize, Deserializer};
use std::path::Path;

/// Label with the full name of the instance.
pub const LABEL_NAME: &str = "name";
/// Label with the name of the agent.
pub const LABEL_AGENT: &str = "agent";
/// Where a workload finds its control interface.
const CONTROL_INTERFACE_TARGET: &str = "/run/ankaios/control_interface";

/// A parsed `runtimeConfig` (spec/agent.md section 15.1). Unknown keys are ignored, as the peer does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping with the key 'image'")]
pub struct ContainerConfig {
    /// What to run.
    pub image: String,
    /// Options of the engine itself, before the verb.
    #[serde(default, deserialize_with = "list_or_null")]
    pub general_options: Vec<String>,
    /// Options of the verb `run`.
    #[serde(default, deserialize_with = "list_or_null")]
    pub command_options: Vec<String>,
    /// What the container executes.
    #[serde(default, deserialize_with = "list_or_null")]
    pub command_args: Vec<String>,
}

impl ContainerConfig {
    /// Reads the configuration of a workload for the runtime called `runtime`.
    ///
    /// # Errors
    /// `Unsupported` with the reader's message, or when the workload is for another runtime.
    pub fn of(new: &NewContainer, runtime: &str) -> Result<Self, RuntimeError> {
        if *new.workload.runtime != *runtime {
            let other = &new.workload.runtime;
            return Err(RuntimeError::Unsupported(format!("Received a workload for the wrong runtime: '{other}'")));
        }
        let config: Self = yaml::read(&new.workload.runtime_config, YAML_CONFIG_MAX)
            .map_err(|error| RuntimeError::Unsupported(masked_complaint(&error.to_string())))?;
        // The engine would take it as an option, and the first of the arguments as image.
        if config.image.is_empty() || config.image.starts_with('-') {
            let image = without_passwords(&config.image);
            let text = format!("Unsupported image '{image}': an image neither is empty nor begins with '-'");
            return Err(RuntimeError::Unsupported(text));
        }
        Ok(config)
    }

    /// The same as it may be shown, and what is hidden of it. What the container executes may hold anything.
    fn masked(&self) -> (Self, Vec<String>) {
        let [general, command] = [&self.general_options, &self.command_options].map(|options| Masked::options(options));
        let mut image = Masked::default();
        image.push_address(&self.image);
        let shown = Self {
            image: image.shown.concat(),
            general_options: general.shown,
            command_options: command.shown,
            command_args: vec![MASK.to_owned(); self.command_args.len()],
        };
        (shown, [general.hidden, command.hidden, image.hidden].concat())
    }

    /// [`Self::run_arguments`] as they may be shown.
    ///
    /// # Errors
    /// See there.
    pub fn shown_run_arguments(&self, new: &NewContainer) -> Result<Masked, RuntimeError> {
        let (config, hidden) = self.masked();
        Ok(Masked { shown: config.run_arguments(new)?, hidden })
    }

    /// [`Self::start_arguments`] as they may be shown.
    #[must_use]
    pub fn shown_start_arguments(&self, id: &str) -> Masked {
        let (config, hidden) = self.masked();
        Masked { shown: config.start_arguments(id), hidden }
    }

    /// The arguments that create and start the container of `new` (spec/agent.md section 15.2).
    ///
    /// A later `--name` in the user's options wins over ours; our labels stand behind the user's and win.
    ///
    /// # Errors
    /// `Unsupported` when a path would be read as options of its mount.
    // [impl->swdd~podman-create-workload-runs-workload~1]
    pub fn run_arguments(&self, new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        let mut arguments = self.general_options.clone();
        // [impl->swdd~podman-create-workload-sets-optionally-container-name~1]
        arguments.extend(["run", "--detach", "--name"].map(str::to_owned));
        arguments.push(new.instance.short());
        arguments.extend(self.command_options.iter().cloned());
        // [impl->swdd~podman-create-workload-mounts-fifo-files~1]
        if let Some(folder) = &new.control_interface {
            arguments.push(bind_mount(folder, CONTROL_INTERFACE_TARGET, "")?);
        }
        for (source, target) in &new.files {
            arguments.push(bind_mount(source, target, ",readonly=true")?);
        }
        if new.notify_socket.is_some() {
            arguments.push("--sdnotify=container".to_owned());
        }
        // [impl->swdd~podman-create-workload-creates-labels~1]
        arguments.push(format!("--label={LABEL_NAME}={}", new.instance));
        arguments.push(format!("--label={LABEL_AGENT}={}", new.instance.agent));
        arguments.push(self.image.clone());
        arguments.extend(self.command_args.iter().cloned());
        Ok(arguments)
    }

    /// The arguments that start the existing container `id` again.
    #[must_use]
    pub fn start_arguments(&self, id: &str) -> Vec<String> {
        let mut arguments = self.general_options.clone();
        arguments.extend(["start", id].map(str::to_owned));
        arguments
    }
}

/// The option that mounts a host path. It is a list with commas, so not every path can stand in it.
fn bind_mount(source: &Path, target: &str, more: &str) -> Result<String, RuntimeError> {
    let unfit = |path: &str, why: String| {
        let text = format!("Cannot mount '{}': {why} Change the mount point or the run folder.", path.escape_debug());
        Err(RuntimeError::Unsupported(text))
    };
    let Some(source) = source.to_str() else {
        return unfit(&source.to_string_lossy(), "It is not UTF-8.".to_owned());
    };
    for path in [source, target] {
        if let Some(character) = unfit_for_mount(path) {
            return unfit(path, mount_rule(character));
        }
    }
    Ok(format!("--mount=type=bind,source={source},destination={target}{more}"))
}

/// Whether the workload is wanted in a pod, which `--pod` says.
#[must_use]
pub fn joins_pod(workload: &Workload) -> bool {
    let config: Result<ContainerConfig, _> = yaml::read(&workload.runtime_config, YAML_CONFIG_MAX);
    let joins = |option: &String| option == "--pod" || option.starts_with("--pod=");
    config.is_ok_and(|config| config.command_options.iter().any(joins))
}

/// The filter that selects the containers of `instance`.
#[must_use]
pub fn filter_by_name(instance: &InstanceName) -> String {
    format!("label={LABEL_NAME}={instance}")
}

/// The filter that selects the containers of `agent`.
#[must_use]
pub fn filter_by_agent(agent: &str) -> String {
    format!("label={LABEL_AGENT}={agent}")
}

/// A list of texts; YAML null counts as empty. Scalars of any type are taken as they are written.
pub(super) fn list_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn new_container(runtime_config: &str) -> NewContainer {
        NewContainer {
            instance: InstanceName::new("web", runtime_config, "agent_A"),
            workload: Arc::new(Workload::new("agent_A", "podman", runtime_config)),
            control_interface: None,
            files: Vec::new(),
            notify_socket: None,
        }
    }

    fn parse(text: &str) -> Result<ContainerConfig, RuntimeError> {
        ContainerConfig::of(&new_container(text), "podman")
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn scalars_in_lists_are_taken_as_written_and_null_is_an_empty_list() {
        let text = "image: 5\ncommandOptions: [true, 0x10, 1.50, ~, 'x y']\ncommandArgs: null\ngeneralOptions: ~\n\
                    unknown: {a: 1}\n";
        let config = parse(text).unwrap();
        assert_eq!(config.image, "5");
        assert_eq!(config.command_options, strings(&["true", "0x10", "1.50", "~", "x y"]));
        assert_eq!((config.command_args, config.general_options), (vec![], vec![]));
        assert_eq!(parse("image: x\ncommandArgs:\n").unwrap().command_args, strings(&[]));
    }

    #[test]
    fn a_configuration_that_can_never_work_is_unsupported_and_says_why() {
        for (text, reason) in [
            ("commandArgs: []", "missing field `image`"),
            ("image: a\nimage: b", "duplicate field `image`"),
            ("image: a\ncommandArgs: x", "invalid type: string \"***\", expected a sequence"),
            ("image: a\ncommandArgs: [{a: b}]", "invalid type: map, expected a string"),
            ("image: [a]", "invalid type: sequence, expected a string"),
            ("image: a\n---\nimage: b", "more than one document"),
            ("", "missing field `image`"),
            ("just text", "invalid type: string \"***\", expected a mapping with the key 'image'"),
            ("image: 'a", "while scanning a quoted scalar"),
        ] {
            match parse(text) {
                Err(RuntimeError::Unsupported(message)) => assert!(message.contains(reason), "{text:?}: {message}"),
                other => panic!("{text:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn an_image_that_reads_like_an_option_replaced_our_labels() {
        for image in ["''", "-v=/:/host", "--label=name=other.1.agent_A"] {
            let result = parse(&format!("image: {image}\ncommandArgs: [alpine]"));
            let Err(RuntimeError::Unsupported(text)) = result else { panic!("{image}: {result:?}") };
            assert!(text.starts_with("Unsupported image '"), "{text}");
        }
    }

    #[test]
    fn a_path_with_a_comma_added_options_to_its_mount() {
        let config = parse("image: x").unwrap();
        let file = |source: &str, target: &str| {
            let mut new = new_container("image: x");
            new.files = vec![(source.into(), target.to_owned())];
            new
        };
        let mut folder = new_container("image: x");
        folder.control_interface = Some("/run,a/control_interface".into());
        for (new, path) in [
            (file("/run/x", "/x,source=/,destination=/host"), "/x,source=/,destination=/host"),
            (file("/r,n/x", "/x"), "/r,n/x"),
            (file("/run/\"x", "/x"), "/run/\\\"x"),
            (file("/run/x", "/x\n"), "/x\\n"),
            (folder, "/run,a/control_interface"),
        ] {
            match config.run_arguments(&new) {
                Err(RuntimeError::Unsupported(text)) => {
                    assert!(text.starts_with(&format!("Cannot mount '{path}': It contains '")), "{text}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_workload_for_another_runtime_is_unsupported() {
        let result = ContainerConfig::of(&new_container("image: x"), "containerd");
        let text = "Received a workload for the wrong runtime: 'podman'";
        assert_eq!(result, Err(RuntimeError::Unsupported(text.to_owned())));
    }

    // [utest->swdd~podman-create-workload-runs-workload~1]
    // [utest->swdd~podman-create-workload-creates-labels~1]
    // [utest->swdd~podman-create-workload-sets-optionally-container-name~1]
    // [utest->swdd~podman-create-workload-mounts-fifo-files~1]
    #[test]
    fn run_arguments_are_in_the_documented_order() {
        let text = "image: alpine:latest\ngeneralOptions: [--log-level=error]\ncommandOptions: [--net=host, --name, x]\n\
                    commandArgs: [sh, -c, 'echo \"hi\"']";
        let mut new = new_container(text);
        new.control_interface = Some("/run/a/control_interface".into());
        new.files = vec![("/run/a/files/etc/x".into(), "/etc/x".to_owned())];
        let config = ContainerConfig::of(&new, "podman").unwrap();
        let id = &*new.instance.id;
        assert_eq!(
            config.run_arguments(&new).unwrap(),
            strings(&[
                "--log-level=error",
                "run",
                "--detach",
                "--name",
                &format!("web.{}.agent_A", &id[..7]),
                "--net=host",
                "--name",
                "x",
                "--mount=type=bind,source=/run/a/control_interface,destination=/run/ankaios/control_interface",
                "--mount=type=bind,source=/run/a/files/etc/x,destination=/etc/x,readonly=true",
                &format!("--label=name=web.{id}.agent_A"),
                "--label=agent=agent_A",
                "alpine:latest",
                "sh",
                "-c",
                "echo \"hi\"",
            ])
        );
        assert_eq!(config.start_arguments("abc"), strings(&["--log-level=error", "start", "abc"]));
    }
}
