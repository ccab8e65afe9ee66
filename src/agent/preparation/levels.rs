//! How far the start of a workload may be prepared: what a prepared container would hold, hinder or miss.
//!
//! Thread: none, plain functions; used by `scheduler`.

use crate::model::names::InstanceName;
use crate::model::prepare_level::PrepareLevel;
use crate::model::runtime_config::{ContainerConfig, EngineConfig};
use crate::model::workload::Workload;
use crate::runtime::containerd;

/// Where a workload stands that waits.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// What waits.
    pub instance: &'a InstanceName,
    /// What is there of the workload and goes before it starts.
    pub old: Option<&'a InstanceName>,
    /// The control loop of that one may remove any container of the workload.
    pub old_searches: bool,
    /// Its own precondition holds.
    pub may_run: bool,
}

/// Options of a container that another one may need first: ports and addresses are held from `INIT` on.
const HELD: [&str; 5] = ["--publish", "--publish-all", "--ip", "--ip6", "--mac-address"];
/// Options by which the new container has names or files of the old one.
const NAMED: [&str; 2] = ["--name", "--cidfile"];
/// Options by which an engine refuses to remove another container while this one exists.
const BINDING: [&str; 4] = ["--pod", "--pod-id-file", "--requires", "--volumes-from"];
/// Options that only a `run` has.
const OF_RUN: [&str; 6] = ["--detach", "--detach-keys", "--passwd", "--preserve-fds", "--rmi", "--sig-proxy"];
/// Begins an image that stands in a file or a folder. It is read by each create.
const NO_REGISTRY: [&str; 5] = ["oci-archive:", "docker-archive:", "oci:", "dir:", "docker-daemon:"];
/// Short options of a container with a value; what stands behind one in the same word is its value.
const SHORT_WITH_VALUE: &str = "acehlmpuvw";

/// The most that may be prepared of a workload, of what it says and where it stands. The engine's own bound on
/// initialised containers is not considered.
// [impl->swdd~agent-prepares-starts~1]
#[must_use]
pub fn most(workload: &Workload, situation: Situation<'_>) -> PrepareLevel {
    let config = workload.config();
    let Ok(EngineConfig::Container(container)) = &config.engine else {
        return PrepareLevel::Image; // A play of pods knows no steps.
    };
    let options = Options { container };
    if !matches!(container.option("--pull"), None | Some("missing" | "never")) {
        return PrepareLevel::None; // The image as of the start is wanted.
    }
    let Situation { instance, old, old_searches, may_run } = situation;
    let shares_with_old = old.is_some_and(|old| old == instance || old_searches || options.has_any(&NAMED));
    let restarts_itself = !matches!(container.option("--restart"), None | Some("no"));
    // `create` fails without the paths of a precondition, and `init` pins mounts. With `--replace` it would end the old
    // container; `podman start --all` of a boot would start one with `--restart`.
    let only_image = !may_run
        || shares_with_old
        || options.has("--replace")
        || restarts_itself
        || options.has_any(&BINDING)
        || options.has_value("container:")
        || options.has_any(&OF_RUN)
        || options.has_short('d');
    if only_image {
        let no_image = NO_REGISTRY.iter().any(|kind| container.image.starts_with(kind)) || options.has("--rootfs");
        return if no_image { PrepareLevel::None } else { PrepareLevel::Image };
    }
    let held = options.has_any(&HELD) || options.has_short('p') || options.has_short('P');
    if old.is_some() || *workload.runtime == *containerd::RUNTIME_NAME || held {
        return PrepareLevel::Create;
    }
    PrepareLevel::Init
}

/// Looks for options in a list of words; values that look like options count as such, which is only too careful.
struct Options<'a> {
    container: &'a ContainerConfig,
}

impl Options<'_> {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.container.command_options.iter().map(|word| &**word)
    }

    fn has(&self, name: &str) -> bool {
        self.words().any(|word| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    }

    fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    fn has_value(&self, begins: &str) -> bool {
        self.words().any(|word| word.starts_with(begins) || word.split('=').any(|part| part.starts_with(begins)))
    }

    /// Whether a word like `-itP` has this letter as an option.
    fn has_short(&self, letter: char) -> bool {
        let letters = self.words().filter_map(|word| word.strip_prefix('-')).filter(|rest| !rest.starts_with('-'));
        letters.into_iter().any(|letters| {
            let end = letters.find(|one| SHORT_WITH_VALUE.contains(one)).map_or(letters.len(), |end| end + 1);
            letters[..end].contains(letter)
        })
    }
}

#[cfg(test)]
mod tests;
