//! How far the start of a workload may be prepared: what a prepared container would hold, hinder or
//! miss.
//!
//! Thread: none, plain functions; used by `wl:<name>`.

use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::runtime_config::{ContainerConfig, EngineConfig};
use ankaios_model::workload::Workload;
use ankaios_runtime::containerd;

/// What there is of a workload that waits, and goes before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Old {
    Nothing,
    /// An earlier instance.
    Instance,
    /// A container of the same instance.
    Same,
}

/// Options of a container that another one may need first: ports and addresses are held from `INIT`
/// on.
const HELD: [&str; 5] = [
    "--publish",
    "--publish-all",
    "--ip",
    "--ip6",
    "--mac-address",
];
/// The same as values of `--network`, behind the name of a network.
const HELD_VALUES: [&str; 3] = ["ip=", "ip6=", "mac="];
/// Options with which nothing but the image is prepared.
const ONLY_IMAGE: [&str; 14] = [
    // A `create` would end the old container.
    "--replace",
    // An engine refuses to remove another container while this one exists.
    "--pod",
    "--pod-id-file",
    "--requires",
    "--volumes-from",
    // The file with the id stays when the container is removed, which makes the next create fail;
    // secrets stay as they were.
    "--cidfile",
    "--secret",
    // Only a `run` has them.
    "--detach",
    "--detach-keys",
    "--passwd",
    "--preserve-fd",
    "--preserve-fds",
    "--rmi",
    "--sig-proxy",
];
/// Begins an image that stands in a file or a folder. It is read by each create.
const NO_REGISTRY: [&str; 5] = [
    "oci-archive:",
    "docker-archive:",
    "oci:",
    "dir:",
    "docker-daemon:",
];
/// Short options of a container with a value; what stands behind one in the same word is its value.
const SHORT_WITH_VALUE: &str = "acehlmpuvw";

/// How far a workload is prepared of which so much is requested, by what it says and where it
/// stands. The bound on initialised containers is not considered.
pub(crate) fn allowed(workload: &Workload, requested: PrepareLevel, old: Old) -> PrepareLevel {
    let level = requested.min(most(workload, old));
    match &workload.config().engine {
        Ok(EngineConfig::Container(container))
            if level == PrepareLevel::Image && !has_image(container) =>
        {
            PrepareLevel::None
        }
        _ => level,
    }
}

/// Whether there is an image that can be got once for all creates.
fn has_image(container: &ContainerConfig) -> bool {
    !NO_REGISTRY
        .iter()
        .any(|kind| container.image.starts_with(kind))
        && !Options { container }.has("--rootfs")
}

// [impl->swdd~agent-prepares-starts~1]
fn most(workload: &Workload, old: Old) -> PrepareLevel {
    let config = workload.config();
    let Ok(EngineConfig::Container(container)) = &config.engine else {
        return PrepareLevel::Image; // A play of pods knows no steps.
    };
    let options = Options { container };
    if !matches!(container.option("--pull"), None | Some("missing" | "never")) {
        return PrepareLevel::None; // The image as of the start is wanted.
    }
    let shares_with_old = old == Old::Same || old == Old::Instance && options.has("--name");
    // `podman start --all` of a boot would start it.
    let restarts_itself = container.restart_option().is_some();
    // `create` takes a range of user ids of its own, of which there are few.
    let takes_ids = container
        .option("--userns")
        .is_some_and(|value| value.starts_with("auto"));
    let only_image = shares_with_old
        || restarts_itself
        || takes_ids
        || options.has_any(&ONLY_IMAGE)
        || options.has_value("container:")
        || options.has_short('d');
    if only_image {
        return PrepareLevel::Image;
    }
    let held = options.has_any(&HELD)
        || options.has_part(&HELD_VALUES)
        || options.has_short('p')
        || options.has_short('P');
    if old == Old::Instance || *workload.runtime == *containerd::RUNTIME_NAME || held {
        return PrepareLevel::Create;
    }
    PrepareLevel::Init
}

/// Looks for options in a list of words; values that look like options count as such, which is only
/// too careful.
struct Options<'a> {
    container: &'a ContainerConfig,
}

impl Options<'_> {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.container.command_options.iter().map(|word| &**word)
    }

    fn has(&self, name: &str) -> bool {
        self.words().any(|word| {
            word.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    }

    fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    fn has_value(&self, begins: &str) -> bool {
        self.words().any(|word| {
            word.starts_with(begins) || word.split('=').any(|part| part.starts_with(begins))
        })
    }

    /// Whether a later part of a value like `bridge:ip=10.0.0.2` begins so.
    fn has_part(&self, begins: &[&str]) -> bool {
        let parts = self.words().flat_map(|word| word.split([':', ',']).skip(1));
        parts
            .into_iter()
            .any(|part| begins.iter().any(|begin| part.starts_with(begin)))
    }

    /// Whether a word like `-itP` has this letter as an option.
    fn has_short(&self, letter: char) -> bool {
        let letters = self
            .words()
            .filter_map(|word| word.strip_prefix('-'))
            .filter(|rest| !rest.starts_with('-'));
        letters.into_iter().any(|letters| {
            let end = letters
                .find(|one| SHORT_WITH_VALUE.contains(one))
                .map_or(letters.len(), |end| end + 1);
            letters[..end].contains(letter)
        })
    }
}

#[cfg(test)]
mod tests;
