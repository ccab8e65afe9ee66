//! Records of the containers that this agent created or adopted.
//!
//! Labels alone prove nothing: an image may bring the labels of a workload, and containers inherit
//! them, for example those of pods from a Kubernetes manifest. So the id of the container of an
//! instance is noted in the folder of that instance. The note is removed with the folder; a stale
//! one names a container that does not exist any more and is harmless.
//!
//! Thread: `wl:<name>` and `call:<name>` note and read, `scheduler` reads.
//! Owns: the files `container`, `prepared` and `ended` in the folder of each instance, and those
//! that a connector keeps beside them.

use super::{ContainerId, ListedContainer};
use ankaios_model::names::InstanceName;
use ankaios_model::workload::Workload;
use ankaios_platform::logging::log_source;
use ankaios_platform::private_folder::PrivateFolder;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file in the folder of an instance.
const FILE: &str = "container";
/// Name of the file beside it about a container that waits to be started.
pub(crate) const PREPARED: &str = "prepared";
/// Name of the file beside it about a container that has ended.
pub(crate) const ENDED: &str = "ended";

/// The notes on the containers of an agent's workloads.
#[derive(Debug, Clone)]
pub(crate) struct ContainerRecords {
    folder: PathBuf,
    /// The id of this boot of the node; empty if it is unknown.
    boot: Arc<str>,
}

impl ContainerRecords {
    /// Notes below the folder of an agent, made during this `boot`.
    pub(crate) fn below(folder: PathBuf, boot: &str) -> Self {
        Self {
            folder,
            boot: boot.into(),
        }
    }

    /// Notes that `id` runs the instance, in this boot. If that fails, the labels of the container
    /// decide.
    pub(crate) fn note(&self, instance: &InstanceName, id: &ContainerId) {
        let text = format!("{}\n{}\n", id.0, self.boot);
        if self.kept(instance, FILE).as_deref() == Some(&*text) {
            return; // It is noted already.
        }
        if !self.has(instance, id) {
            self.forget(instance, PREPARED); // The prepared container was started or replaced.
        }
        self.keep(instance, FILE, &text);
    }

    /// Returns whether the last note of the instance names `id`.
    pub(crate) fn has(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        match self.kept(instance, FILE) {
            Some(noted) => noted.lines().next() == Some(&*id.0),
            None => false,
        }
    }

    /// Returns whether `id` is known to have run the instance since the node booted. Clocks cannot
    /// show that: they may be set at any time, and a node without one begins each boot with the
    /// same time.
    // [impl->swdd~agent-tells-boots-apart-by-id~1]
    pub(crate) fn ran_in_this_boot(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        if self.boot.is_empty() {
            return false; // This boot is not known.
        }
        let noted = self.kept(instance, FILE).unwrap_or_default();
        let mut lines = noted.lines();
        lines.next() == Some(&*id.0) && lines.next() == Some(&*self.boot)
    }

    /// Makes the folder of the instance if it is missing. `None` if that fails, or if the path is
    /// relative: no call can run there, since other paths of the agent in it are relative as well.
    pub(crate) fn make_folder(&self, instance: &InstanceName) -> Option<PathBuf> {
        let folder = self.folder.join(instance.folder());
        if folder.is_relative() || PrivateFolder::open(&folder).is_err() {
            return None;
        }
        Some(folder)
    }

    /// Keeps a text about the instance for this and later agents. A failure only causes a warning.
    pub(crate) fn keep(&self, instance: &InstanceName, file: &str, text: &str) {
        let folder = self.folder.join(instance.folder());
        if let Err(error) = write(&folder, file, text) {
            self.forget(instance, file); // A part must not be mistaken for the whole.
            let folder = folder.display();
            log::warn!(
                "Could not note the {file} of workload '{instance}' in '{folder}': '{error}'"
            );
        }
    }

    /// The kept text. Anything but our own file is ignored: a link leads elsewhere, and a pipe
    /// never ends.
    pub(crate) fn kept(&self, instance: &InstanceName, file: &str) -> Option<String> {
        let folder = PrivateFolder::existing(&self.folder.join(instance.folder())).ok()?;
        folder.read(Path::new(file)).ok()
    }

    /// Removes the kept text.
    pub(crate) fn forget(&self, instance: &InstanceName, file: &str) {
        // There may be none.
        let _ = fs::remove_file(self.folder.join(instance.folder()).join(file));
    }

    /// The instances of `agent` that have a kept text of this name. Empty if the folder cannot be
    /// read.
    pub(crate) fn instances(&self, agent: &str, file: &str) -> BTreeSet<InstanceName> {
        let mut instances = BTreeSet::new();
        let Ok(folders) = fs::read_dir(&self.folder) else {
            return instances;
        };
        for folder in folders.flatten() {
            let folder_name = folder.file_name();
            let instance_name = format!("{}.{agent}", folder_name.to_string_lossy());
            if let Some(instance) = InstanceName::parse(&instance_name)
                && folder.path().join(file).exists()
            {
                instances.insert(instance);
            }
        }
        instances
    }
}

fn write(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    let folder = PrivateFolder::open(folder)?;
    let mut file = folder.write_anew(Path::new(file), Mode::RUSR | Mode::WUSR)?;
    file.write_all(text.as_bytes())
}

/// The note on a container by this and earlier agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// There is none.
    No,
    /// It was prepared, so it is ours. Its predecessor may run without a note if its start was
    /// interrupted.
    Prepared,
    /// It runs the instance.
    Runs,
}

/// Keeps the containers of the workload. `candidates` all have its labels, which a container may
/// also inherit from its image; such a container is left out with a warning.
///
/// - If a container is noted to run, only noted containers are kept.
/// - Otherwise a container in a pod must be noted, or the workload must have the option `--pod`.
pub fn keep_own<T>(
    candidates: &mut Vec<T>,
    listed: impl Fn(&T) -> &ListedContainer,
    noted: impl Fn(&T) -> Noted,
    wanted: Option<&Workload>,
) {
    if candidates.len() < 2 && !candidates.iter().any(|one| listed(one).in_pod) {
        return; // The usual case, in which no file is read.
    }
    let notes: Vec<Noted> = candidates.iter().map(noted).collect();
    let is_one_running = notes.contains(&Noted::Runs);
    let joins_pod = match wanted {
        Some(workload) => workload.config().joins_pod(),
        None => false,
    };
    let mut kept = Vec::new();
    for (candidate, note) in candidates.drain(..).zip(notes) {
        let container = listed(&candidate);
        let may_have_labels_of_image = container.in_pod && !joins_pod;
        if note == Noted::No && is_one_running {
            warn_of_other(container, "another one was made for it");
        } else if note == Noted::No && may_have_labels_of_image {
            warn_of_other(container, "it belongs to a pod");
        } else {
            kept.push(candidate);
        }
    }
    *candidates = kept;
}

fn warn_of_other(container: &ListedContainer, why: &str) {
    let instance = &container.instance;
    let _source = log_source(instance.workload.clone());
    log::warn!(
        "Container '{}' has the labels of workload '{instance}', but {why}. It is left alone.",
        container.id.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::execution_state::{ExecutionState, Phase};
    use rustix::fs::FileType;

    fn container(id: &str, in_pod: bool) -> ListedContainer {
        ListedContainer {
            id: ContainerId(id.into()),
            instance: InstanceName::with_id("web", "1", "agent_A"),
            state: ExecutionState::plain(Phase::Running),
            processes: Vec::new(),
            ended_at: None,
            in_pod,
            pods: None,
        }
    }

    #[test]
    fn container_in_a_pod_or_beside_a_noted_one_is_left_alone() {
        let plain = Workload::new("agent_A", "podman", "image: x");
        let pod = Workload::new("agent_A", "podman", "image: x\ncommandOptions: [--pod=p]");
        // Each candidate: id, in a pod. An id with an `n` was noted, one with a `p` prepared.
        for (candidates, wanted, ours) in [
            (&[("a", false)][..], None, &["a"][..]),
            (&[("a", false), ("b", false)], Some(&plain), &["a", "b"]),
            (&[("a", false), ("n", false)], Some(&plain), &["n"]),
            (&[("n", false), ("a", true)], Some(&pod), &["n"]),
            (&[("a", true)], Some(&plain), &[]),
            (&[("a", true)], None, &[]),
            (&[("a", true)], Some(&pod), &["a"]),
            (&[("n", true)], None, &["n"]),
            (&[("a", false), ("b", true)], Some(&plain), &["a"]),
            (
                &[("n1", false), ("n2", true), ("a", false)],
                Some(&plain),
                &["n1", "n2"],
            ),
            (&[("p", false), ("a", false)], Some(&plain), &["p", "a"]),
            (
                &[("p", false), ("n", false), ("a", false)],
                Some(&plain),
                &["p", "n"],
            ),
        ] {
            let mut found: Vec<_> = candidates
                .iter()
                .map(|(id, in_pod)| container(id, *in_pod))
                .collect();
            let noted = |one: &ListedContainer| match one.id.0.chars().next() {
                Some('n') => Noted::Runs,
                Some('p') => Noted::Prepared,
                _ => Noted::No,
            };
            keep_own(&mut found, |one| one, noted, wanted);
            let found: Vec<&str> = found.iter().map(|one| &*one.id.0).collect();
            assert_eq!(found, ours, "{candidates:?}");
        }
    }

    #[test]
    fn the_last_container_of_an_instance_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let records = ContainerRecords::below(folder.path().to_owned(), "boot 1");
        let [web, db] = ["web", "db"].map(|name| InstanceName::with_id(name, "1", "agent_A"));
        let [first, second] = ["first", "second"].map(|id| ContainerId(id.into()));
        assert!(!records.has(&web, &first));
        for id in [&first, &second] {
            records.note(&web, id);
            assert!(records.has(&web, id));
        }
        assert!(!records.has(&web, &first) && !records.has(&db, &second));
        records.keep(&web, PREPARED, "a record");
        assert_eq!(
            (
                records.kept(&web, PREPARED).as_deref(),
                records.kept(&db, PREPARED)
            ),
            (Some("a record"), None)
        );
        records.note(&web, &first);
        assert_eq!(
            records.kept(&web, PREPARED),
            None,
            "what runs does not wait"
        );
        records.note(&web, &second);
        fs::create_dir(folder.path().join(web.folder()).join("taken")).unwrap();
        records.keep(&web, "taken", "a text that cannot be written");
        assert_eq!(records.kept(&web, "taken"), None);
        fs::remove_dir_all(folder.path().join(web.folder())).unwrap();
        assert!(!records.has(&web, &second));
    }

    #[test]
    fn record_that_is_a_link_or_a_pipe_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let records = ContainerRecords::below(folder.path().to_owned(), "boot 1");
        let web = InstanceName::with_id("web", "1", "agent_A");
        records.keep(&web, ENDED, "a record");
        assert_eq!(records.kept(&web, ENDED).as_deref(), Some("a record"));
        let own = folder.path().join(web.folder());
        fs::write(folder.path().join("elsewhere"), "a forged record").unwrap();
        fs::remove_file(own.join(ENDED)).unwrap();
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), own.join(ENDED)).unwrap();
        assert_eq!(records.kept(&web, ENDED), None);
        fs::remove_file(own.join(ENDED)).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            own.join(ENDED),
            FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(records.kept(&web, ENDED), None);
    }

    // [utest->swdd~agent-tells-boots-apart-by-id~1]
    #[test]
    fn container_of_an_earlier_boot_is_known_by_the_boot_id() {
        let folder = tempfile::tempdir().unwrap();
        let boot = |id: &str| ContainerRecords::below(folder.path().to_owned(), id);
        let (first, second, unknown) = (boot("boot 1"), boot("boot 2"), boot(""));
        let web = InstanceName::with_id("web", "1", "agent_A");
        let [id, other] = ["id", "other"].map(|id| ContainerId(id.into()));
        first.note(&web, &id);
        assert!(first.ran_in_this_boot(&web, &id) && !first.ran_in_this_boot(&web, &other));
        assert!(second.has(&web, &id) && !second.ran_in_this_boot(&web, &id));
        // The same container is started again after the boot.
        second.note(&web, &id);
        assert!(second.ran_in_this_boot(&web, &id) && !first.ran_in_this_boot(&web, &id));
        unknown.note(&web, &id);
        assert!(
            unknown.has(&web, &id) && !unknown.ran_in_this_boot(&web, &id),
            "it may be another boot"
        );
        // As an earlier version noted it.
        first.keep(&web, FILE, "id");
        assert!(first.has(&web, &id) && !first.ran_in_this_boot(&web, &id));
    }
}
