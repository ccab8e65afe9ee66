//! The images of an engine: those that a workload names, those of the store, those of containers,
//! and the removal of one.
//!
//! Thread: the caller's: `image-call` of the agent. Owns: nothing.

use super::call_error::ErrorMeaning;
use super::command::EngineCall;
use super::container_list::labels_format;
use super::engine_cli::EngineCli;
use super::masking::MaskedArguments;
use super::{ContainerId, RuntimeError};
use crate::limits::LISTING_MAX;
use ankaios_model::names::InstanceName;
use ankaios_model::runtime_config::EngineConfig;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::patience;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest removal of one image. Slow flash needs some seconds for a gigabyte.
pub const IMAGE_REMOVAL_MAX: Duration = Duration::from_secs(30);
/// Prefixes of names from which an engine loads an image at each start. The name of that image in
/// the store only shows with its container.
const FILE_TRANSPORTS: [&str; 6] = [
    "docker-archive:",
    "oci-archive:",
    "oci:",
    "dir:",
    "docker-daemon:",
    "containers-storage:",
];

/// An image of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalImage {
    pub id: String,
    /// Its tags with registry, such as `docker.io/example/nav:1.4`; none of one without a name.
    pub names: Vec<String>,
    /// Its names with digests.
    pub digests: Vec<String>,
    /// Size in bytes, layers that it shares with others included.
    pub bytes: Option<u64>,
    /// Whether it is in an additional store, from which nothing can be removed.
    pub is_read_only: bool,
}

/// The image of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerImage {
    /// `None` where the engine does not print it.
    pub id: Option<String>,
    /// The name that the container was created with.
    pub name: String,
    /// The labels of a workload, if the container has them.
    pub instance: Option<InstanceName>,
}

/// The images of a store, and their users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageStore {
    pub images: Vec<LocalImage>,
    /// The images of all containers, also of other programs.
    pub containers: Vec<ContainerImage>,
}

/// The removal of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRemoval {
    /// Removes one of several names of the image, and keeps the image.
    Name { id: String, name: String },
    /// Removes the image with its only name, if it has one.
    Image { id: String, name: Option<String> },
}

impl LocalImage {
    /// The name of the image that a manifest calls `used`; `None` if it has no such name.
    pub fn name_for(&self, used: &str) -> Option<&str> {
        if let Some(exact) = self.names.iter().find(|name| is_same_name(name, used)) {
            return Some(exact);
        }
        let mut names = self.names.iter();
        names
            .find(|name| is_short_of(name, used))
            .map(String::as_str)
    }

    fn has_name(&self, used: &str) -> bool {
        self.names.iter().any(|name| is_same_name(name, used))
    }

    /// Returns whether a manifest with the image `used` means this image.
    pub fn is_called(&self, used: &str) -> bool {
        if used.contains('@') {
            return self.digests.iter().any(|one| is_same_digest(one, used));
        }
        let id = used.strip_prefix("sha256:").unwrap_or(used);
        self.id == id || self.name_for(used).is_some()
    }
}

impl ImageStore {
    /// The image that a manifest calls `used`. If that may mean two images, the one with exactly
    /// this name; `None` if there is none.
    pub fn find(&self, used: &str) -> Option<&LocalImage> {
        let mut found: Option<&LocalImage> = None;
        for image in &self.images {
            if !image.is_called(used) {
                continue;
            }
            match found {
                None => found = Some(image),
                Some(first) if first.id == image.id => {}
                Some(_) => return self.images.iter().find(|one| one.has_name(used)),
            }
        }
        found
    }

    /// The image with this id.
    pub fn with_id(&self, id: &str) -> Option<&LocalImage> {
        self.images.iter().find(|image| image.id == id)
    }

    /// Returns whether a container has this image.
    pub fn is_in_use(&self, image: &LocalImage) -> bool {
        self.containers.iter().any(|container| match &container.id {
            Some(id) => *id == image.id,
            None => image.is_called(&container.name),
        })
    }

    /// The image that the container of this instance has.
    pub fn of_instance(&self, instance: &InstanceName) -> Option<&LocalImage> {
        let mut containers = self.containers.iter();
        let container = containers.find(|one| one.instance.as_ref() == Some(instance))?;
        match &container.id {
            Some(id) => self.with_id(id),
            None => self.find(&container.name),
        }
    }
}

/// The names of the images that a workload uses, as its manifest has them. Empty if its general
/// options may choose another store.
pub fn names_of(workload: &Workload) -> BTreeSet<String> {
    match &workload.config().engine {
        Ok(EngineConfig::Container(config)) if config.general_options.is_empty() => {
            let mut options = config.command_options.iter();
            if options.any(|option| option.starts_with("--rootfs")) {
                return BTreeSet::new(); // Its image is a folder.
            }
            used_name(&config.image).into_iter().collect()
        }
        Ok(EngineConfig::Kube(config)) if config.general_options.is_empty() => {
            let names = super::podman_kube::all_images(&config.manifest);
            names.iter().filter_map(|name| used_name(name)).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Returns whether the image is loaded from a file, so that only its container shows its id.
pub fn is_of_file(name: &str) -> bool {
    let mut transports = FILE_TRANSPORTS.iter();
    transports.any(|transport| name.starts_with(transport))
}

/// The name without the transport that engines assume anyway. `None` for a path or an option.
fn used_name(name: &str) -> Option<String> {
    let name = name.trim();
    let name = name.strip_prefix("docker://").unwrap_or(name);
    if name.is_empty() || name.starts_with('-') || name.starts_with('/') {
        return None;
    }
    Some(name.to_owned())
}

/// The name with the tag that engines assume.
fn with_tag(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

fn is_same_name(name: &str, used: &str) -> bool {
    name == with_tag(used)
}

/// Returns whether `used` is the name without registry.
fn is_short_of(name: &str, used: &str) -> bool {
    match name.strip_suffix(&with_tag(used)) {
        Some(registry) => registry.ends_with('/'),
        None => false,
    }
}

/// Returns whether `used` in a manifest means `name` in a store, both with digests. `used` may lack
/// the registry, and may have a tag, unlike names in a store: `nav:1.4@sha256:...`.
fn is_same_digest(name: &str, used: &str) -> bool {
    let Some((name, digest)) = name.split_once('@') else {
        return false;
    };
    let Some((used_name, used_digest)) = used.split_once('@') else {
        return false;
    };
    if digest != used_digest {
        return false;
    }
    match name.strip_suffix(without_tag(used_name)) {
        Some(registry) => registry.is_empty() || registry.ends_with('/'),
        None => false,
    }
}

/// The name without its tag. The port of a registry is no tag.
fn without_tag(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

// ----------------------------------------------------------------- the engines

/// An image as podman prints it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedImage {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    digests: Option<Vec<String>>,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(default)]
    read_only: Option<bool>,
}

/// An image as nerdctl prints it: one line for each name.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedName {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    repository: String,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: String,
}

/// The image of a container as an engine prints it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedContainer {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    labels: Value,
}

/// Lists the store of podman.
pub(crate) fn podman_store(cli: &EngineCli) -> Result<ImageStore, RuntimeError> {
    let format = r#"--format={"Id":{{json .ImageSummary.ID}},"Names":{{json .ImageSummary.RepoTags}},"Digests":{{json .ImageSummary.RepoDigests}},"Bytes":{{json .ImageSummary.Size}},"ReadOnly":{{json .ImageSummary.ReadOnly}}}"#;
    let call = ["images", "--all", "--no-trunc"];
    let mut images: Vec<LocalImage> = Vec::new();
    for printed in listed::<PrintedImage>(cli, &call, format)? {
        // An image with several names is printed once for each of them.
        let is_known = images.iter().any(|known| known.id == printed.id);
        if is_known || !is_id(&printed.id) {
            continue;
        }
        images.push(LocalImage {
            id: printed.id,
            names: texts(printed.names),
            digests: texts(printed.digests),
            bytes: printed.bytes,
            is_read_only: printed.read_only.unwrap_or(false),
        });
    }
    let labels = labels_format(".ListContainer.Labels");
    let format = format!(
        r#"--format={{"Id":{{{{json .ListContainer.ImageID}}}},"Name":{{{{json .ListContainer.Image}}}},{labels}}}"#
    );
    // Also containers that other programs make in the same store.
    let call = ["ps", "--all", "--external", "--no-trunc"];
    let containers = listed::<PrintedContainer>(cli, &call, &format)?;
    Ok(ImageStore {
        images,
        containers: containers.into_iter().map(ContainerImage::from).collect(),
    })
}

/// Lists the store of containerd. nerdctl prints names of images of containers, and no ids.
pub(crate) fn nerdctl_store(cli: &EngineCli) -> Result<ImageStore, RuntimeError> {
    let call = ["images", "--all", "--no-trunc"];
    let mut images: BTreeMap<String, LocalImage> = BTreeMap::new();
    for printed in listed::<PrintedName>(cli, &call, "--format={{json .}}")? {
        let id = printed.id.trim_start_matches("sha256:").to_owned();
        if !is_id(&id) {
            continue;
        }
        let image = images.entry(id.clone()).or_insert_with(|| LocalImage {
            id,
            bytes: bytes_of(&printed.size),
            ..LocalImage::default()
        });
        if !is_part(&printed.repository) {
            continue; // The image has no name.
        }
        if is_part(&printed.tag) {
            image
                .names
                .push(canonical(&printed.repository, &printed.tag));
        }
        if is_part(&printed.digest) {
            let digest = format!("{}@{}", printed.repository, printed.digest);
            image.digests.push(digest);
        }
    }
    let call = ["ps", "--all", "--no-trunc"];
    let containers =
        listed::<PrintedContainer>(cli, &call, r#"--format={"Name":{{json .Image}}}"#)?;
    Ok(ImageStore {
        images: images.into_values().collect(),
        containers: containers.into_iter().map(ContainerImage::from).collect(),
    })
}

/// Removes an image of podman, or one of its names. The store may have changed since it was read,
/// but podman refuses to remove an image that has several names or a container now.
// [impl->swdd~agent-removes-replaced-images~1]
pub(crate) fn remove_from_podman(
    cli: &EngineCli,
    removal: &ImageRemoval,
) -> Result<(), RuntimeError> {
    let call = match removal {
        ImageRemoval::Name { id, name } => MaskedArguments::from(["untag", id, name]),
        ImageRemoval::Image { id, .. } => MaskedArguments::from(["rmi", "--no-prune", id]),
    };
    remove(cli.change(call))
}

/// Removes a name of an image of containerd, and the image with its last one.
// [impl->swdd~agent-removes-replaced-images~1]
pub(crate) fn remove_from_nerdctl(
    cli: &EngineCli,
    removal: &ImageRemoval,
) -> Result<(), RuntimeError> {
    let image = match removal {
        ImageRemoval::Name { name, .. } => name,
        ImageRemoval::Image { id, name } => name.as_ref().unwrap_or(id),
    };
    remove(cli.change(MaskedArguments::from(["rmi", image])))
}

/// Makes the call. An image that is already gone counts as removed.
fn remove(call: EngineCall<'_>) -> Result<(), RuntimeError> {
    match call.limit(patience(IMAGE_REMOVAL_MAX)).run(None) {
        Ok(_) => Ok(()),
        Err(error) if *error.meaning() == ErrorMeaning::NoSuchImage => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a call that prints one object for each entry. It fails if one cannot be read, so that no
/// image in use is taken for an unused one.
fn listed<T: for<'a> Deserialize<'a>>(
    cli: &EngineCli,
    call: &[&str],
    format: &str,
) -> Result<Vec<T>, RuntimeError> {
    let given = [call, &[format]].concat();
    let shown = [call, &["--format=..."]].concat();
    let call = cli.call(MaskedArguments::shown_as(&given, &shown));
    let text = call.limit(LISTING_MAX).run(None)?.into_text()?;
    let mut entries = Vec::new();
    for entry in serde_json::Deserializer::from_str(&text).into_iter() {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                let why = format!("The list cannot be read: {error}");
                return Err(cli.nonsense(&why, &shown));
            }
        }
    }
    Ok(entries)
}

impl From<PrintedContainer> for ContainerImage {
    fn from(printed: PrintedContainer) -> Self {
        let label = printed.labels["name"].as_str();
        Self {
            id: printed.id.filter(|id| !id.is_empty()),
            name: printed.name,
            instance: label.and_then(InstanceName::parse),
        }
    }
}

/// Returns whether a text is an id, and no option of a call.
fn is_id(text: &str) -> bool {
    ContainerId::printed(text).is_some()
}

/// Names of an image that can be arguments of a call.
fn texts(printed: Option<Vec<String>>) -> Vec<String> {
    let mut texts = printed.unwrap_or_default();
    texts.retain(|text| !text.starts_with('-') && !text.contains("<none>"));
    texts
}

/// Returns whether a printed text can be a part of the name of an image; engines print `<none>` for
/// a missing one.
fn is_part(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text != "<none>"
}

/// The full name of an image. nerdctl leaves out the registry that it assumes.
fn canonical(repository: &str, tag: &str) -> String {
    let Some((first, _)) = repository.split_once('/') else {
        return format!("docker.io/library/{repository}:{tag}");
    };
    let is_registry = first.contains(['.', ':']) || first == "localhost";
    if is_registry {
        return format!("{repository}:{tag}");
    }
    format!("docker.io/{repository}:{tag}")
}

/// The bytes of a text such as `7.6 MiB`.
fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let number: f64 = number.parse().ok().filter(|number| *number >= 0.0)?;
    let factor: f64 = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some((number * factor) as u64)
}

#[cfg(test)]
mod tests;
