//! Containers through the `podman` command line.
//!
//! Thread: the caller's, see [`super::container_engine`]. Owns: nothing.

use super::call_error::meaning_of_podman;
use super::container_engine::Engine;
use super::container_list::EngineContainer;
use super::images;

/// Name of the runtime in manifests, and of the program.
// [impl->swdd~podman-name-returns-podman~1]
pub const RUNTIME_NAME: &str = "podman";

/// Prints all data of a container, as JSON.
pub(crate) const DETAILS: [&str; 3] = ["container", "inspect", "--format={{json .}}"];

// [impl->swdd~podman-implements-runtime-connector~1]
// [impl->swdd~podman-uses-podman-cli~1]
pub const ENGINE: Engine = Engine {
    runtime: RUNTIME_NAME,
    program: RUNTIME_NAME,
    read_meaning: meaning_of_podman,
    stop: &["stop", "--ignore"],
    remove: &["rm", "--ignore", "--volumes"],
    image_exists: &["image", "exists"],
    details: &DETAILS,
    stop_timeout: &["container", "inspect", "--format={{.Config.StopTimeout}}"],
    listing: |cli, filter| cli.containers(&["--filter", filter]),
    listed: EngineContainer::of_agent,
    image_store: images::podman_store,
    remove_image: images::remove_from_podman,
};

#[cfg(test)]
mod tests;
