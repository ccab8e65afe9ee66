//! The ledger of the images that workloads of this agent have used, and its file. Its rules decide
//! which images are still needed.
//!
//! Thread: `images`, which owns it; plain values and rules.

use super::ImageBytes;
use super::needs::{ImageNeeds, NeededInstances};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::InstanceName;
use ankaios_platform::checked_file;
use ankaios_platform::private_folder::PrivateFolder;
use ankaios_runtime::images::{ImageRemoval, ImageStore, LocalImage, is_of_file, names_of};
use ankaios_runtime::podman_kube;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The name of the file with the ledger.
pub(crate) const FILE: &str = "known-images.json";
/// The text before the checksum in its first line.
const HEADER: &str = "ankaios-lite known images 1 sha256:";
/// How long the images of the last version of a deleted workload are kept, in days on which the
/// agent ran.
pub(super) const DELETED_DAYS: u32 = 30;
/// Versions of all workloads in the ledger. Each takes some 200 bytes of the file, which a workload
/// with rights could otherwise let grow without end. The images of forgotten ones are not removed.
pub(super) const VERSIONS_MAX: usize = 2048;

/// The ledger of all workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Ledger {
    /// The number of the newest use or start. Numbers give their order.
    newest: u64,
    /// The last day that was counted, in days since 1970.
    day: u64,
    pub(super) workloads: BTreeMap<String, KnownWorkload>,
}

/// The versions of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct KnownWorkload {
    /// Days on which the agent ran since it was deleted; `None` while it is desired.
    pub(super) deleted_days: Option<u32>,
    pub(super) versions: Vec<Version>,
}

/// A version of a workload: an instance that was started, staged or prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Version {
    pub(super) id: String,
    pub(super) runtime: String,
    pub(super) images: Vec<KnownImage>,
    /// The number of its first use.
    used: u64,
    /// The number of its first start after that of another version; 0 if it was never started.
    ran: u64,
    /// Its images must stay, as the rules were applied last.
    pub(super) is_needed: bool,
}

/// An image that a version was used with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct KnownImage {
    /// The name in the manifest; for an image that is loaded from a file, the name in the store.
    pub(super) name: String,
    /// `None` until it was seen in the store.
    pub(super) id: Option<String>,
    pub(super) bytes: Option<u64>,
    /// Its name belongs to another image by now, so nothing needs this one any more.
    #[serde(default)]
    is_superseded: bool,
}

/// A store in which an engine has its images. podman and podman-kube share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreKind {
    Podman,
    Containerd,
}

impl StoreKind {
    pub(super) fn of_runtime(runtime: &str) -> Self {
        match runtime {
            ankaios_runtime::containerd::RUNTIME_NAME => Self::Containerd,
            _ => Self::Podman,
        }
    }

    /// Runtimes whose engine has this store.
    pub(super) fn runtimes(self) -> &'static [&'static str] {
        match self {
            Self::Podman => &[
                ankaios_runtime::podman::RUNTIME_NAME,
                podman_kube::RUNTIME_NAME,
            ],
            Self::Containerd => &[ankaios_runtime::containerd::RUNTIME_NAME],
        }
    }
}

/// An image that no workload needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnneededImage {
    pub(crate) workload: String,
    pub(crate) name: String,
    pub(crate) id: Option<String>,
}

/// The decision about an unneeded image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The image is gone, cannot be removed, or belongs to others than this agent: forget it.
    Forget,
    /// A container uses the image, or a needed version names it: keep it for now.
    Keep,
    Remove {
        removal: ImageRemoval,
        /// The most bytes that this can free.
        bytes: u64,
    },
}

/// The images of one store that must stay.
#[derive(Debug, Default)]
pub(super) struct Needed {
    ids: BTreeSet<String>,
    /// Names as the store has them, with the id.
    names: BTreeSet<(String, String)>,
}

impl Needed {
    /// Adds an image of a needed version: the one that has its name in the store now, and the one
    /// that was used.
    fn add(&mut self, store: &ImageStore, used: &KnownImage) {
        if !is_of_file(&used.name)
            && let Some(image) = store.find(&used.name)
        {
            self.ids.insert(image.id.clone());
            if let Some(name) = image.name_for(&used.name) {
                self.names.insert((image.id.clone(), name.to_owned()));
            }
        }
        if let Some(id) = &used.id
            && !used.is_superseded
        {
            self.ids.insert(id.clone());
        }
    }
}

impl Ledger {
    // -------------------------------------------------------------------- uses

    /// Notes that an engine is about to use these images for an instance. Returns whether that is
    /// new.
    // [impl->swdd~agent-knows-images-before-their-use~1]
    pub(super) fn note_use(
        &mut self,
        instance: &InstanceName,
        runtime: &str,
        names: BTreeSet<String>,
    ) -> bool {
        let name = instance.workload.to_string();
        let workload = self.workloads.entry(name).or_default();
        if let Some(version) = workload.version(instance, runtime) {
            let was_needed = std::mem::replace(&mut version.is_needed, true);
            return !was_needed;
        }
        self.newest += 1;
        let mut images = Vec::new();
        for name in names {
            images.push(KnownImage {
                name,
                ..KnownImage::default()
            });
        }
        workload.versions.push(Version {
            id: instance.id.to_string(),
            runtime: runtime.to_owned(),
            images,
            used: self.newest,
            ran: 0,
            is_needed: true,
        });
        self.forget_above_bound();
        true
    }

    /// Forgets a version if there are more than [`VERSIONS_MAX`]. It is the oldest one of the
    /// workload with the most versions, so that a workload that changes often displaces only its
    /// own.
    fn forget_above_bound(&mut self) {
        let count: usize = self.workloads.values().map(|one| one.versions.len()).sum();
        if count <= VERSIONS_MAX {
            return;
        }
        // Of several workloads with the most versions, that with the oldest one.
        let longest = self.workloads.iter_mut().max_by_key(|(_, workload)| {
            let oldest = workload.versions.first().map(|version| version.used);
            (workload.versions.len(), Reverse(oldest))
        });
        let Some((name, workload)) = longest else {
            return;
        };
        let forgotten = workload.versions.remove(0);
        log::warn!(
            "More than {VERSIONS_MAX} versions of workloads have images here: the images of '{name}' with the id '{}' \
             will not be removed.",
            forgotten.id
        );
        self.workloads.retain(|_, one| !one.versions.is_empty());
    }

    /// Notes that an instance was started. Returns whether that is new: not if this version was the
    /// last one to run, since it may be restarted again and again.
    pub(super) fn note_start(&mut self, instance: &InstanceName, runtime: &str) -> bool {
        let Some(workload) = self.workloads.get_mut(&*instance.workload) else {
            return false;
        };
        let last = workload.versions.iter().map(|version| version.ran).max();
        let Some(version) = workload.version(instance, runtime) else {
            return false;
        };
        if version.ran > 0 && Some(version.ran) == last {
            return false;
        }
        self.newest += 1;
        version.ran = self.newest;
        true
    }

    /// Whether a needed version has an image that was never seen in this store.
    pub(super) fn has_unseen(&self, kind: StoreKind) -> bool {
        for (_, version) in self.versions(kind) {
            if version.is_needed && version.images.iter().any(|image| image.id.is_none()) {
                return true;
            }
        }
        false
    }

    /// Whether any version has images in this store.
    pub(super) fn has_store(&self, kind: StoreKind) -> bool {
        !self.versions(kind).is_empty()
    }

    /// The versions of this store, with their workloads.
    fn versions(&self, kind: StoreKind) -> Vec<(&String, &Version)> {
        let mut of_store = Vec::new();
        for (name, workload) in &self.workloads {
            for version in &workload.versions {
                if StoreKind::of_runtime(&version.runtime) == kind {
                    of_store.push((name, version));
                }
            }
        }
        of_store
    }

    // ------------------------------------------------------------------- needs

    /// Adds a day to all deleted workloads, if `today` is later than the last day, or if the agent
    /// has run for a whole day. Returns whether anything has changed.
    ///
    /// Clocks of vehicles are wrong and are set. Since no times are compared, a step of the clock
    /// adds one day at most.
    // [impl->swdd~agent-keeps-images-of-deleted-workloads~1]
    pub(super) fn count_day(&mut self, today: u64, has_run_a_day: bool) -> bool {
        if today <= self.day && !has_run_a_day {
            return false;
        }
        self.day = today;
        let mut has_counted = false;
        for workload in self.workloads.values_mut() {
            if let Some(days) = &mut workload.deleted_days {
                *days = days.saturating_add(1);
                has_counted = true;
            }
        }
        has_counted
    }

    /// Whether images of a deleted workload are kept until more days have passed.
    pub(super) fn has_deleted(&self) -> bool {
        for workload in self.workloads.values() {
            if let Some(days) = workload.deleted_days
                && days < DELETED_DAYS
                && !workload.versions.is_empty()
            {
                return true;
            }
        }
        false
    }

    /// Decides which versions are needed. Returns whether anything has changed.
    pub(super) fn apply(&mut self, needs: &ImageNeeds, history: usize) -> bool {
        let before = self.clone();
        // First: versions that this ledger may lack, since their containers were adopted and not
        // started.
        for (name, instances) in &needs.workloads {
            for added in &instances.started {
                let runtime = &added.workload.runtime;
                self.note_use(&added.instance, runtime, names_of(&added.workload));
                self.note_start(&added.instance, runtime);
            }
            if instances.desired.is_some()
                && let Some(workload) = self.workloads.get_mut(&**name)
            {
                workload.deleted_days = None;
            }
        }
        // Then: the needs of each workload.
        for (name, workload) in &mut self.workloads {
            let instances = needs.workloads.get(&**name);
            let is_desired = instances.is_some_and(|instances| instances.desired.is_some());
            if !is_desired {
                workload.deleted_days.get_or_insert(0);
            }
            workload.apply(instances, history);
        }
        *self != before
    }

    /// The images of a store that must stay: those of needed versions of all agents, and those that
    /// workloads of this agent name.
    pub(super) fn needed(
        &self,
        kind: StoreKind,
        store: &ImageStore,
        needs: &ImageNeeds,
        others: &[Ledger],
    ) -> Needed {
        let mut needed = Needed::default();
        for ledger in others.iter().chain([self]) {
            for (_, version) in ledger.versions(kind) {
                if !version.is_needed {
                    continue;
                }
                for image in &version.images {
                    needed.add(store, image);
                }
            }
        }
        for added in needs.workloads.values().flat_map(NeededInstances::all) {
            if StoreKind::of_runtime(&added.workload.runtime) != kind {
                continue;
            }
            for name in names_of(&added.workload) {
                let image = KnownImage {
                    name,
                    ..KnownImage::default()
                };
                needed.add(store, &image);
            }
        }
        needed
    }

    // ------------------------------------------------------------------- store

    /// Updates the ids of images from a listing of the store. Returns whether anything has changed.
    pub(super) fn see(&mut self, kind: StoreKind, store: &ImageStore, agent: &str) -> bool {
        let before = self.clone();
        for (name, workload) in &mut self.workloads {
            for version in &mut workload.versions {
                if StoreKind::of_runtime(&version.runtime) == kind {
                    let instance = InstanceName::with_id(name, &version.id, agent);
                    version.see(store, &instance);
                }
            }
        }
        *self != before
    }

    /// The bytes of the images of each workload: of all, and of those that no workload needs.
    // [impl->swdd~agent-shows-bytes-of-images~1]
    pub(super) fn bytes(&self) -> BTreeMap<String, ImageBytes> {
        // First: which images are needed, and the size of each.
        let mut needed = BTreeSet::new();
        let mut seen: BTreeMap<&String, BTreeMap<&String, u64>> = BTreeMap::new();
        for (name, workload) in &self.workloads {
            for version in &workload.versions {
                for image in &version.images {
                    let Some(id) = &image.id else {
                        continue;
                    };
                    if version.is_needed && !image.is_superseded {
                        needed.insert(id);
                    }
                    let bytes = image.bytes.unwrap_or(0);
                    seen.entry(name).or_default().insert(id, bytes);
                }
            }
        }
        // Then: the sums.
        let mut all = BTreeMap::new();
        for (name, images) in seen {
            let mut bytes = ImageBytes::default();
            for (id, size) in images {
                bytes.all += size;
                if !needed.contains(id) {
                    bytes.removable += size;
                }
            }
            all.insert(name.clone(), bytes);
        }
        all
    }

    /// The images of a store in versions that are not needed, and superseded ones. Another version
    /// may need them.
    pub(super) fn unneeded(&self, kind: StoreKind) -> Vec<UnneededImage> {
        let mut images = BTreeSet::new();
        for (workload, version) in self.versions(kind) {
            for image in &version.images {
                if !version.is_needed || image.is_superseded {
                    images.insert(UnneededImage {
                        workload: workload.clone(),
                        name: image.name.clone(),
                        id: image.id.clone(),
                    });
                }
            }
        }
        images.into_iter().collect()
    }

    /// Forgets an unneeded image, which was removed or is not ours.
    pub(super) fn forget(&mut self, kind: StoreKind, gone: &UnneededImage) {
        let Some(workload) = self.workloads.get_mut(&gone.workload) else {
            return;
        };
        for version in &mut workload.versions {
            if StoreKind::of_runtime(&version.runtime) != kind {
                continue;
            }
            let is_version_needed = version.is_needed;
            version.images.retain(|image| {
                let is_needed = is_version_needed && !image.is_superseded;
                is_needed || image.name != gone.name || image.id != gone.id
            });
        }
        workload
            .versions
            .retain(|version| version.is_needed || !version.images.is_empty());
        self.workloads
            .retain(|_, workload| !workload.versions.is_empty());
    }
}

impl KnownWorkload {
    fn version(&mut self, instance: &InstanceName, runtime: &str) -> Option<&mut Version> {
        let mut versions = self.versions.iter_mut();
        versions.find(|version| *version.id == *instance.id && version.runtime == runtime)
    }

    /// The index of the version of this instance.
    fn index_of(&self, added: &AddedWorkload) -> Option<usize> {
        self.versions.iter().position(|version| {
            version.id == *added.instance.id && version.runtime == *added.workload.runtime
        })
    }

    /// Decides which versions are needed:
    /// - those that are desired, staged, prepared or present, and the last `history` others that ran;
    /// - the last one that ran, as long as the desired one never ran;
    /// - of a deleted workload, the last one for [`DELETED_DAYS`].
    // [impl->swdd~agent-keeps-needed-images~1]
    fn apply(&mut self, instances: Option<&NeededInstances>, history: usize) {
        // First: the instances that the scheduler has named.
        let mut needed = BTreeSet::new();
        let mut desired = None;
        if let Some(instances) = instances {
            for added in instances.all() {
                needed.extend(self.index_of(added));
            }
            if let Some(added) = &instances.desired {
                desired = self.index_of(added);
            }
        }
        // Then: some of the others, the newest first.
        let mut others: Vec<usize> = Vec::new();
        let mut has_desired_run = false;
        for (index, version) in self.versions.iter().enumerate() {
            if Some(index) != desired {
                others.push(index);
            } else {
                has_desired_run = version.ran > 0;
            }
        }
        others.sort_by_key(|index| {
            let version = &self.versions[*index];
            Reverse((version.ran, version.used))
        });
        match self.deleted_days {
            Some(days) if days < DELETED_DAYS => needed.extend(others.first()),
            Some(_) => {}
            None => {
                let kept = if has_desired_run {
                    history
                } else {
                    history.max(1)
                };
                others.retain(|index| self.versions[*index].ran > 0);
                needed.extend(others.iter().take(kept));
            }
        }
        // Finally: all versions.
        for (index, version) in self.versions.iter_mut().enumerate() {
            version.is_needed = needed.contains(&index);
        }
    }
}

impl Version {
    /// Updates the ids of its images from a listing of the store. If a name belongs to another
    /// image now, the earlier image is kept as superseded.
    fn see(&mut self, store: &ImageStore, instance: &InstanceName) {
        let mut superseded = Vec::new();
        for image in &mut self.images {
            if image.is_superseded {
                continue; // Its name belongs to another image, so its id stays.
            }
            let found = if is_of_file(&image.name) {
                store.of_instance(instance)
            } else {
                store.find(&image.name)
            };
            let Some(found) = found else {
                continue;
            };
            if image.id.as_ref() == Some(&found.id) {
                continue;
            }
            if image.id.is_some() {
                if !self.is_needed {
                    continue; // Others use the name now.
                }
                superseded.push(KnownImage {
                    is_superseded: true,
                    ..image.clone()
                });
            }
            image.id = Some(found.id.clone());
            image.bytes = found.bytes;
            // An image from a file can only be removed by its name in the store.
            if is_of_file(&image.name) && found.names.len() == 1 {
                image.name = found.names[0].clone();
            }
        }
        self.images.extend(superseded);
    }
}

/// Decides about an image of a version that is not needed. The image may have several names, and
/// another version may need it under one of them.
// [impl->swdd~agent-removes-replaced-images~1]
pub(super) fn decide(image: &UnneededImage, store: &ImageStore, needed: &Needed) -> Decision {
    // First: whether it can be removed at all.
    let found = match &image.id {
        Some(id) => store.with_id(id),
        None => store.find(&image.name),
    };
    let Some(found) = found else {
        return Decision::Forget;
    };
    if found.is_read_only {
        return Decision::Forget;
    }
    if store.is_in_use(found) {
        return Decision::Keep;
    }
    // Then: its name, if the image stays under another one.
    let name = found.name_for(&image.name);
    if let Some(name) = name {
        if needed.names.contains(&(found.id.clone(), name.to_owned())) {
            return Decision::Keep;
        }
        if found.names.len() > 1 {
            let removal = ImageRemoval::Name {
                id: found.id.clone(),
                name: name.to_owned(),
            };
            return Decision::Remove { removal, bytes: 0 };
        }
    }
    // Finally: the whole image.
    if needed.ids.contains(&found.id) {
        return Decision::Keep;
    }
    if name.is_none() && !found.names.is_empty() {
        return Decision::Forget; // Only others than this agent have named it.
    }
    whole(found, name)
}

/// The decision to remove a whole image.
fn whole(image: &LocalImage, name: Option<&str>) -> Decision {
    Decision::Remove {
        removal: ImageRemoval::Image {
            id: image.id.clone(),
            name: name.map(str::to_owned),
        },
        bytes: image.bytes.unwrap_or(0),
    }
}

// ------------------------------------------------------------------------- file

/// The folder with the ledger of an agent, beside those of other agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LedgerFolder {
    /// The folder with one folder for each agent.
    pub(crate) agents: PathBuf,
    pub(crate) agent: String,
    /// The end of the name of such a folder, after the name of the agent.
    pub(crate) ending: &'static str,
    /// The folder in it; empty for itself.
    pub(crate) inner: &'static str,
}

impl LedgerFolder {
    /// The folder of this agent.
    pub(crate) fn path(&self) -> PathBuf {
        let own = self.agents.join(format!("{}{}", self.agent, self.ending));
        if self.inner.is_empty() {
            own
        } else {
            own.join(self.inner)
        }
    }

    /// Reads the ledger; an empty one if there is no file.
    ///
    /// # Errors
    /// A text that says why the file cannot be read, and names it.
    // [impl->swdd~agent-removes-nothing-with-damaged-knowledge~1]
    pub(super) fn read(&self) -> Result<Ledger, String> {
        let path = self.path();
        match read_in(&path) {
            Ok(ledger) => Ok(ledger.unwrap_or_default()),
            Err(error) => Err(format!("'{}': {error}", path.join(FILE).display())),
        }
    }

    /// Replaces the file.
    pub(super) fn write(&self, ledger: &Ledger) -> io::Result<()> {
        let path = self.path();
        PrivateFolder::open(&path)?;
        let body = serde_json::to_string(ledger)?;
        checked_file::replace(&path, FILE, &checked_file::text(HEADER, &body))
    }

    /// Reads the ledgers of other agents of the same user, which may use the same stores.
    ///
    /// # Errors
    /// A text that says why a file cannot be read, and names it.
    // [impl->swdd~agent-leaves-images-of-other-agents~1]
    pub(super) fn read_others(&self) -> Result<Vec<Ledger>, String> {
        let mut others = Vec::new();
        let entries = match fs::read_dir(&self.agents) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(others),
            Err(error) => return Err(failed(&self.agents, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.agents, error))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                continue; // No agent makes such a name.
            };
            let Some(agent) = name.strip_suffix(self.ending) else {
                continue; // Not the folder of an agent.
            };
            if agent == self.agent {
                continue;
            }
            let folder = entry.path();
            if PrivateFolder::existing(&folder).is_err() {
                continue; // It belongs to another user, with another store.
            }
            let folder = folder.join(self.inner);
            let read = read_in(&folder).map_err(|error| failed(&folder.join(FILE), error))?;
            others.extend(read);
        }
        Ok(others)
    }
}

/// The text of an error with this file or folder.
fn failed(path: &Path, error: impl std::fmt::Display) -> String {
    format!("'{}': {error}", path.display())
}

/// Reads the ledger in a folder; `None` when there is none.
fn read_in(folder: &Path) -> Result<Option<Ledger>, String> {
    let opened = match PrivateFolder::existing(folder) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let text = match opened.read(Path::new(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let body = checked_file::body(HEADER, &text)?;
    serde_json::from_str(body)
        .map(Some)
        .map_err(|error| error.to_string())
}

impl NeededInstances {
    /// All instances. One may be named several times.
    pub(super) fn all(&self) -> impl Iterator<Item = &AddedWorkload> {
        let others = self.others.iter().chain(&self.started);
        self.desired.iter().chain(others)
    }
}
