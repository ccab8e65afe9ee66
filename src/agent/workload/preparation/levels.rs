//! How far the start of a workload may be prepared: a prepared container must not hold resources of
//! others, hinder other containers, or miss the state at its start.
//!
//! Thread: none, plain functions; used by `wl:<name>`.

use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::runtime_config::{ContainerConfig, EngineConfig};
use ankaios_model::workload::Workload;
use ankaios_runtime::containerd;

/// The containers of a workload that are removed before the prepared one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PresentContainers {
    Nothing,
    /// An earlier instance.
    OtherInstance,
    /// A container of the same instance.
    SameInstance,
}

/// Options with ports and addresses. From `INIT` on the container holds them, although another one
/// may need them first.
const HELD: [&str; 5] = [
    "--publish",
    "--publish-all",
    "--ip",
    "--ip6",
    "--mac-address",
];
/// The same in a value of `--network`, after the name of the network.
const HELD_VALUES: [&str; 3] = ["ip=", "ip6=", "mac="];
/// Options with which only the image is prepared.
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
/// Begins of images in a file or a folder, which each create reads.
const NO_REGISTRY: [&str; 5] = [
    "oci-archive:",
    "docker-archive:",
    "oci:",
    "dir:",
    "docker-daemon:",
];
/// Short options of a container with a value, which may follow in the same word.
const SHORT_WITH_VALUE: &str = "acehlmpuvw";

/// Returns how far a workload may be prepared, at most `requested`: its options and the present
/// containers may lower the level. The number of initialised containers is bounded elsewhere.
pub(crate) fn allowed(
    workload: &Workload,
    requested: PrepareLevel,
    present: PresentContainers,
) -> PrepareLevel {
    let level = requested.min(highest(workload, present));
    if let Ok(EngineConfig::Container(container)) = &workload.config().engine
        && level == PrepareLevel::Image
        && !has_image(container)
    {
        return PrepareLevel::None;
    }
    level
}

/// Whether there is an image that can be pulled once for all creates.
fn has_image(container: &ContainerConfig) -> bool {
    for begin in NO_REGISTRY {
        if container.image.starts_with(begin) {
            return false;
        }
    }
    !Options { container }.has("--rootfs")
}

/// The highest level at which a prepared container does no harm. Each level is a step further.
// [impl->swdd~agent-prepares-starts~1]
fn highest(workload: &Workload, present: PresentContainers) -> PrepareLevel {
    let config = workload.config();
    let Ok(EngineConfig::Container(container)) = &config.engine else {
        return PrepareLevel::Image; // Podman creates and starts a pod in one step.
    };
    let options = Options { container };
    // First: nothing, if the start must pull the image itself.
    if !matches!(container.option("--pull"), None | Some("missing" | "never")) {
        return PrepareLevel::None;
    }
    // Then: only the image, if a second container would be in the way.
    let shares_name = match present {
        PresentContainers::Nothing => false,
        PresentContainers::OtherInstance => options.has("--name"),
        PresentContainers::SameInstance => true,
    };
    // `podman start --all` of a boot would start it.
    let restarts_itself = container.restart_option().is_some();
    // `create` takes a range of user ids of its own, of which there are few.
    let takes_ids = match container.option("--userns") {
        Some(value) => value.starts_with("auto"),
        None => false,
    };
    // The engine refuses to remove a container while another one shares its namespace.
    let joins_container = options.has_value("container:");
    let detaches = options.has_short('d');
    let is_only_image = shares_name
        || restarts_itself
        || takes_ids
        || joins_container
        || options.has_any(&ONLY_IMAGE)
        || detaches;
    if is_only_image {
        return PrepareLevel::Image;
    }
    // Finally: no initialised container, if it would hold what another one needs first.
    let publishes_ports = options.has_short('p') || options.has_short('P');
    let holds_resources =
        options.has_any(&HELD) || options.has_part(&HELD_VALUES) || publishes_ports;
    let is_containerd = *workload.runtime == *containerd::RUNTIME_NAME;
    if present == PresentContainers::OtherInstance || is_containerd || holds_resources {
        return PrepareLevel::Create;
    }
    PrepareLevel::Init
}

/// The options of a container, which are searched word by word. A value that looks like an option
/// is taken for one: that only lowers the level.
struct Options<'a> {
    container: &'a ContainerConfig,
}

impl Options<'_> {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.container.command_options.iter().map(|word| &**word)
    }

    fn has(&self, name: &str) -> bool {
        self.words().any(|word| is_option(word, name))
    }

    fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    /// Whether a word, or a value after `=` in it, begins with this text.
    fn has_value(&self, begin: &str) -> bool {
        for word in self.words() {
            for part in word.split('=') {
                if part.starts_with(begin) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether a later part of a value like `bridge:ip=10.0.0.2` begins with one of these texts.
    fn has_part(&self, begins: &[&str]) -> bool {
        for word in self.words() {
            for part in word.split([':', ',']).skip(1) {
                if begins.iter().any(|begin| part.starts_with(begin)) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether a word like `-itP` has this letter as an option.
    fn has_short(&self, letter: char) -> bool {
        self.words()
            .any(|word| short_options(word).contains(letter))
    }
}

/// Whether the word is this option, with a value or without.
fn is_option(word: &str, name: &str) -> bool {
    match word.strip_prefix(name) {
        Some(rest) => rest.is_empty() || rest.starts_with('='),
        None => false,
    }
}

/// The letters of the short options in a word like `-itP`, without a value that follows them.
fn short_options(word: &str) -> &str {
    let Some(letters) = word.strip_prefix('-') else {
        return "";
    };
    if letters.starts_with('-') {
        return ""; // It is a long option.
    }
    match letters.find(|letter| SHORT_WITH_VALUE.contains(letter)) {
        Some(index) => &letters[..=index],
        None => letters,
    }
}

#[cfg(test)]
mod tests;
