//! The arguments that the `runtimeConfig` of a container turns into, shared by podman and nerdctl.
//!
//! Thread: none, plain values.

use super::masking::MaskedArguments;
use super::{NewContainer, RuntimeError};
use ankaios_model::names::InstanceName;
use ankaios_model::runtime_config::{ContainerConfig, EngineConfig};
use ankaios_model::validation::{mount_rule, unfit_for_mount};
use ankaios_model::workload::Workload;
use std::path::Path;
use std::sync::Arc;

/// Folder of the control interface in a container.
pub(crate) const CONTROL_INTERFACE: &str = "/run/ankaios/control_interface";
/// Label with the full name of the instance.
pub(crate) const LABEL_NAME: &str = "name";
/// Label with the name of the agent.
pub(crate) const LABEL_AGENT: &str = "agent";

/// The configuration of the container of `workload`, for the runtime called `runtime`.
pub fn config_of(workload: &Workload, runtime: &str) -> Result<Arc<ContainerConfig>, RuntimeError> {
    match &workload.config().engine {
        Err(reason) => Err(RuntimeError::Unsupported(reason.clone())),
        Ok(EngineConfig::Container(config)) if *workload.runtime == *runtime => Ok(config.clone()),
        Ok(_) => {
            let other = &workload.runtime;
            Err(RuntimeError::Unsupported(format!(
                "Received a workload for the wrong runtime: '{other}'"
            )))
        }
    }
}

/// The arguments of engines for a container.
pub trait EngineArguments {
    /// The arguments that create and start the container of `new`. Of two equal options the engine
    /// uses the last: the user's `--name` and `--pidfile`, but our labels.
    fn run_arguments(&self, new: &NewContainer) -> Result<MaskedArguments, RuntimeError>;

    /// The arguments that create the same container and do not start it.
    fn create_arguments(&self, new: &NewContainer) -> Result<MaskedArguments, RuntimeError>;

    /// The arguments of a call that creates it. A pid file with a path that is not UTF-8 is left
    /// out: a listing shows the state instead.
    fn container_arguments(
        &self,
        verb: &[&str],
        new: &NewContainer,
    ) -> Result<MaskedArguments, RuntimeError>;

    /// The arguments of a call, such as `start` and a container. Secrets of earlier calls are
    /// masked in it, since the engine may repeat them.
    fn call(&self, verb: &[&str]) -> MaskedArguments;

    /// The arguments that pull the image with the options of a create.
    fn pull_arguments(&self) -> MaskedArguments;
}

impl EngineArguments for ContainerConfig {
    // [impl->swdd~podman-create-workload-runs-workload~1]
    fn run_arguments(&self, new: &NewContainer) -> Result<MaskedArguments, RuntimeError> {
        self.container_arguments(&["run", "--detach"], new)
    }

    fn create_arguments(&self, new: &NewContainer) -> Result<MaskedArguments, RuntimeError> {
        self.container_arguments(&["create"], new)
    }

    fn container_arguments(
        &self,
        verb: &[&str],
        new: &NewContainer,
    ) -> Result<MaskedArguments, RuntimeError> {
        // First our name and pid file, which options of the user may replace.
        // [impl->swdd~podman-create-workload-sets-optionally-container-name~1]
        let mut arguments = self.call(verb).plain(&["--name", &new.instance.short()]);
        if let Some(path) = &new.pid_file
            && let Some(path) = path.to_str()
        {
            arguments = arguments.plain(&[format!("--pidfile={path}")]);
        }
        arguments = arguments.options(&self.command_options);
        // Then our mounts and labels, which they cannot replace.
        let mut own = Vec::new();
        // [impl->swdd~podman-create-workload-mounts-fifo-files~1]
        if let Some(folder) = &new.control_interface {
            own.push(bind_mount(folder, CONTROL_INTERFACE, "")?);
        }
        for (source, target) in &new.files {
            own.push(bind_mount(source, target, ",readonly=true")?);
        }
        if new.notify_socket.is_some() {
            own.push("--sdnotify=container".to_owned());
        }
        // [impl->swdd~podman-create-workload-creates-labels~1]
        own.push(format!("--label={LABEL_NAME}={}", new.instance));
        own.push(format!("--label={LABEL_AGENT}={}", new.instance.agent));
        Ok(arguments
            .plain(&own)
            .address(&self.image)
            .command(&self.command_args))
    }

    fn call(&self, verb: &[&str]) -> MaskedArguments {
        // First find the secrets of a create.
        let of_create = MaskedArguments::default()
            .options(&self.command_options)
            .address(&self.image);
        // Then build the call, which has none of these arguments.
        let without_arguments = MaskedArguments {
            hidden: of_create.hidden,
            ..MaskedArguments::default()
        };
        without_arguments.options(&self.general_options).plain(verb)
    }

    fn pull_arguments(&self) -> MaskedArguments {
        self.call(&["pull"])
            .options(&pull_options(&self.command_options))
            .address(&self.image)
    }
}

/// Selects the options of a create or a play that affect the pull of an image.
pub(crate) fn pull_options(options: &[impl AsRef<str>]) -> Vec<String> {
    const WITH_VALUE: [&str; 5] = ["--arch", "--authfile", "--os", "--platform", "--variant"];
    let mut found = Vec::new();
    let mut words = options.iter().map(AsRef::as_ref);
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        // `--tls-verify` is a switch: it has its value in the same word, or none.
        let is_switch = name == "--tls-verify";
        let has_value = WITH_VALUE.contains(&name);
        if !has_value && !is_switch {
            continue;
        }
        found.push(word.to_owned());
        // Without a `=` in its word, an option has its value in the next word.
        if has_value && name == word {
            found.extend(words.next().map(str::to_owned));
        }
    }
    found
}

/// The option that mounts a host path. It is a list with commas, so it cannot contain every path.
fn bind_mount(source: &Path, target: &str, more: &str) -> Result<String, RuntimeError> {
    let Some(source) = source.to_str() else {
        let path = source.to_string_lossy();
        return Err(cannot_mount(&path, "It is not UTF-8."));
    };
    for path in [source, target] {
        if let Some(character) = unfit_for_mount(path) {
            return Err(cannot_mount(path, &mount_rule(character)));
        }
    }
    Ok(format!(
        "--mount=type=bind,source={source},destination={target}{more}"
    ))
}

fn cannot_mount(path: &str, why: &str) -> RuntimeError {
    RuntimeError::Unsupported(format!(
        "Cannot mount '{}': {why} Change the mount point or the run folder.",
        path.escape_debug()
    ))
}

/// The filter that selects the containers of `instance`.
pub(crate) fn filter_by_name(instance: &InstanceName) -> String {
    format!("label={LABEL_NAME}={instance}")
}

/// The filter that selects the containers of `agent`.
pub(crate) fn filter_by_agent(agent: &str) -> String {
    format!("label={LABEL_AGENT}={agent}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted_engine;

    fn new_container(runtime_config: &str) -> NewContainer {
        scripted_engine::new_container("podman", runtime_config)
    }

    #[test]
    fn a_path_with_a_comma_added_options_to_its_mount() {
        let config = config_of(&new_container("image: x").workload, "podman").unwrap();
        let file = |source: &str, target: &str| {
            let mut new = new_container("image: x");
            new.files = vec![(source.into(), target.to_owned())];
            new
        };
        let mut folder = new_container("image: x");
        folder.control_interface = Some("/run,a/control_interface".into());
        for (new, path) in [
            (
                file("/run/x", "/x,source=/,destination=/host"),
                "/x,source=/,destination=/host",
            ),
            (file("/r,n/x", "/x"), "/r,n/x"),
            (file("/run/\"x", "/x"), "/run/\\\"x"),
            (file("/run/x", "/x\n"), "/x\\n"),
            (folder, "/run,a/control_interface"),
        ] {
            match config.run_arguments(&new) {
                Err(RuntimeError::Unsupported(text)) => {
                    assert!(
                        text.starts_with(&format!("Cannot mount '{path}': It contains '")),
                        "{text}"
                    );
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_workload_for_another_runtime_is_unsupported() {
        let result = config_of(&new_container("image: x").workload, "containerd");
        let text = "Received a workload for the wrong runtime: 'podman'";
        assert_eq!(result, Err(RuntimeError::Unsupported(text.to_owned())));
    }

    #[test]
    fn create_has_arguments_of_run_and_pull_those_of_the_image() {
        let text = "image: alpine:latest\ngeneralOptions: [--log-level=error]\ncommandOptions: [--net=host, --arch, \
                    arm64, --tls-verify=false, -v, /a:/b, --os=linux, --arch]\ncommandArgs: [sh]";
        let new = new_container(text);
        let config = config_of(&new.workload, "podman").unwrap();
        let mut run = config.run_arguments(&new).unwrap().given;
        let detach = run
            .iter()
            .position(|argument| argument == "--detach")
            .unwrap();
        run[detach - 1] = "create".to_owned();
        run.remove(detach);
        assert_eq!(config.create_arguments(&new).unwrap().given, run);
        assert_eq!(
            config.pull_arguments().given.join(" "),
            "--log-level=error pull --arch arm64 --tls-verify=false --os=linux --arch alpine:latest"
        );
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
        let config = config_of(&new.workload, "podman").unwrap();
        let id = &*new.instance.id;
        assert_eq!(
            config.run_arguments(&new).unwrap().given,
            [
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
            ]
        );
        assert_eq!(
            config.call(&["start", "abc"]).given,
            ["--log-level=error", "start", "abc"]
        );
    }
}
