//! Kills for want of memory: from the engine, or else from the file of its monitor, or else from
//! the counter of the control group.
//!
//! Thread: the caller's, after an end with the code of a kill. Owns: the file `oom` in the folder
//! of each instance.
//!
//! The monitor of podman (conmon) leaves an empty file `oom` in its working folder. Podman 4.3
//! looks for it elsewhere, and reports no kill. So containers are started in the folder of their
//! instance: the file is found there, and does not stay in the folder of the agent.

use super::ContainerId;
use super::container_records::ContainerRecords;
use ankaios_model::names::InstanceName;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Paths of the control groups of containers, without the id that replaces `ID`: of podman and
/// nerdctl, with systemd and without.
const GROUPS: [&str; 5] = [
    "machine.slice/libpod-ID.scope",
    "libpod_parent/libpod-ID",
    "system.slice/nerdctl-ID.scope",
    "default/ID",
    "ID",
];
/// Mount points of control groups: version 2, the memory controller of version 1.
const MOUNTS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/memory"];
/// Files with the entry `oom_kill`: version 2, version 1.
const EVENTS: [&str; 2] = ["memory.events", "memory.oom_control"];
/// Files with the limit: version 2, version 1.
const LIMITS: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
/// Larger numbers mean that there is no limit: version 1 has the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// The file that the monitor leaves.
const MONITOR_FILE: &str = "oom";

/// Makes the folder of the instance, in which its containers are started, and removes the file of
/// an earlier kill from it.
///
/// Returns `None` for the folder of the agent: if `options` may have paths that are relative to
/// that, or if the folder cannot be made.
pub(crate) fn make_start_folder<'o>(
    records: &ContainerRecords,
    instance: &InstanceName,
    mut options: impl Iterator<Item = &'o String>,
) -> Option<PathBuf> {
    records.forget(instance, MONITOR_FILE);
    if options.any(|option| may_have_relative_path(option)) {
        return None;
    }
    records.make_folder(instance)
}

/// Returns whether `text` may have a path that is relative to the folder of the agent. The text is
/// an option, or a whole manifest of pods.
fn may_have_relative_path(text: &str) -> bool {
    // `./app.env` and `../app.env` are found in both.
    if text.starts_with("..") || text.contains("./") {
        return true;
    }
    // Only a manifest has several lines. Its words are not looked up: its relative paths begin with
    // a dot.
    if text.contains('\n') {
        return false;
    }
    // An option may name a file without a dot: `--env-file=app.env`.
    for part in text.split(['=', ':', ',']) {
        let may_be_relative = !part.is_empty() && !part.starts_with(['/', '-']);
        if may_be_relative && Path::new(part).exists() {
            return true;
        }
    }
    false
}

/// Returns whether the monitor of a container of the instance has noted a kill.
pub(crate) fn has_monitor_file(records: &ContainerRecords, instance: &InstanceName) -> bool {
    records.kept(instance, MONITOR_FILE).is_some()
}

/// A kill for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The limit of the container, in bytes, where it has one.
    pub limit: Option<u64>,
}

/// Finds the first container that was killed for want of memory in what an engine prints: a JSON
/// value for each container, or a list of them. `has_file` is whether their monitor has noted a
/// kill; `top` is `/` except in tests.
pub(crate) fn in_inspected(text: &str, has_file: bool, top: &Path) -> Option<OutOfMemory> {
    for printed in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let containers = match printed.ok()? {
            Value::Array(containers) => containers,
            container => vec![container],
        };
        for container in &containers {
            if let Some(kill) = of_container(container, has_file, top) {
                return Some(kill);
            }
        }
    }
    None
}

/// As [`in_inspected`], for one container.
fn of_container(container: &Value, has_file: bool, top: &Path) -> Option<OutOfMemory> {
    // First find the kill: in the state, the file of the monitor, or the control group.
    let group = group_of_container(container, top);
    let is_counted = match &group {
        Some(folder) => kills(folder) > 0,
        None => false,
    };
    let is_killed = container["State"]["OOMKilled"] == true || has_file || is_counted;
    if !is_killed {
        return None;
    }
    // Then find the limit. Engines print 0 for none.
    let limit = match container["HostConfig"]["Memory"].as_u64() {
        Some(bytes @ 1..) => Some(bytes),
        _ => match &group {
            Some(folder) => limit(folder),
            None => None,
        },
    };
    Some(OutOfMemory { limit })
}

/// The folder of the control group of a container, if it still exists.
fn group_of_container(container: &Value, top: &Path) -> Option<PathBuf> {
    if let Some(path) = container["State"]["CgroupPath"].as_str()
        && !path.is_empty()
        && let Some(folder) = folder_of_path(path, top)
    {
        return Some(folder);
    }
    let id = ContainerId::printed(container["Id"].as_str()?)?;
    folder_of_id(&id, top)
}

/// The folder of a control group with this path, if it counts kills.
fn folder_of_path(path: &str, top: &Path) -> Option<PathBuf> {
    let relative = path.trim_start_matches('/');
    for mount in MOUNTS {
        let folder = top.join(mount).join(relative);
        if has_events(&folder) {
            return Some(folder);
        }
    }
    None
}

/// The folder of the control group of a container, at one of the usual paths.
fn folder_of_id(id: &ContainerId, top: &Path) -> Option<PathBuf> {
    for group in GROUPS {
        let folder = folder_of_path(&group.replace("ID", &id.0), top);
        if folder.is_some() {
            return folder;
        }
    }
    None
}

fn has_events(folder: &Path) -> bool {
    EVENTS.iter().any(|file| folder.join(file).exists())
}

/// Number of processes of the control group that were killed for want of memory.
fn kills(folder: &Path) -> u64 {
    for file in EVENTS {
        let Ok(text) = fs::read_to_string(folder.join(file)) else {
            continue;
        };
        for line in text.lines() {
            if let Some(count) = line.strip_prefix("oom_kill ") {
                return count.trim().parse().unwrap_or(0);
            }
        }
    }
    0
}

/// The limit of a control group in bytes; `None` if there is none.
fn limit(folder: &Path) -> Option<u64> {
    for file in LIMITS {
        let Ok(text) = fs::read_to_string(folder.join(file)) else {
            continue;
        };
        let bytes: u64 = text.trim().parse().ok()?; // Version 2 has `max` for none.
        if bytes >= NO_LIMIT {
            return None;
        }
        return Some(bytes);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MIB: u64 = 1024 * 1024;

    fn id() -> String {
        "a".repeat(64)
    }

    /// A tree with these files, each with its text.
    fn tree(files: &[(String, &str)]) -> TempDir {
        let top = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        top
    }

    fn killed(text: &str, top: &TempDir) -> Option<Option<u64>> {
        in_inspected(text, false, top.path()).map(|found| found.limit)
    }

    // [utest->swdd~agent-reports-kills-out-of-memory~1]
    #[test]
    fn file_of_the_monitor_is_a_kill_until_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let records = ContainerRecords::below(folder.path().to_owned(), "boot");
        let web = InstanceName::with_id("web", "1", "agent_A");
        let none: [String; 0] = [];
        let started = make_start_folder(&records, &web, none.iter()).unwrap();
        assert!(started.is_dir() && started.starts_with(folder.path()));
        assert!(!has_monitor_file(&records, &web));
        fs::write(started.join("oom"), "").unwrap();
        assert!(has_monitor_file(&records, &web));
        let text = r#"{"State":{"OOMKilled":false},"HostConfig":{"Memory":8388608}}"#;
        let found = in_inspected(text, true, folder.path());
        assert_eq!(found.unwrap().limit, Some(8 * MIB));
        assert_eq!(
            make_start_folder(&records, &web, none.iter()),
            Some(started)
        );
        assert!(!has_monitor_file(&records, &web));
    }

    #[test]
    fn relative_paths_keep_the_folder_of_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let records = ContainerRecords::below(folder.path().to_owned(), "boot");
        let web = InstanceName::with_id("web", "1", "agent_A");
        // The folder of a test is that of its crate.
        for (option, is_relative) in [
            ("--memory=64m", false),
            ("--volume=/data:/data", false),
            ("--volume=data:/data", false),
            ("-p", false),
            ("8080:80/tcp", false),
            ("--volume=./data:/data", true),
            ("../env", true),
            ("--env-file=Cargo.toml", true),
            ("lib.rs", true),
            ("--mount=type=bind,src=Cargo.toml,dst=/x", true),
            ("kind: Pod\nspec: { hostPath: /lib.rs }\n", false),
            ("kind: Pod\nspec: { hostPath: ./lib.rs }\n", true),
        ] {
            let options = ["--name=x".to_owned(), option.to_owned()];
            let found = make_start_folder(&records, &web, options.iter());
            assert_eq!(found.is_none(), is_relative, "{option}");
        }
        let relative = ContainerRecords::below("run".into(), "boot");
        assert_eq!(make_start_folder(&relative, &web, [].iter()), None);
    }

    // [utest->swdd~agent-reports-kills-out-of-memory~1]
    #[test]
    fn kill_is_what_the_engine_says() {
        let top = tree(&[]);
        for (text, expected) in [
            (
                r#"{"State":{"OOMKilled":true},"HostConfig":{"Memory":8388608}}"#,
                Some(Some(8 * MIB)),
            ),
            (
                r#"{"State":{"OOMKilled":true},"HostConfig":{"Memory":0}}"#,
                Some(None),
            ),
            (r#"{"State":{"OOMKilled":true}}"#, Some(None)),
            (
                r#"{"State":{"OOMKilled":false},"HostConfig":{"Memory":8388608}}"#,
                None,
            ),
            (r#"{"State":{}} {"State":{"OOMKilled":true}}"#, Some(None)),
            // As podman prints it with `{{json .}}`.
            (
                "[\n {\"State\": {\"OOMKilled\": false}},\n {\"State\": {\"OOMKilled\": true}}\n]\n",
                Some(None),
            ),
            ("[]", None),
            (r#"{"State":{"OOMKilled":"true"}}"#, None),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(killed(text, &top), expected, "{text}");
        }
    }

    // [utest->swdd~agent-reports-kills-out-of-memory~1]
    #[test]
    fn kill_that_no_engine_says_is_that_of_the_group() {
        let silent = format!(r#"{{"Id":"{}","State":{{"Status":"exited"}}}}"#, id());
        let named = r#"{"State":{"OOMKilled":false,"CgroupPath":"/some/where"}}"#;
        for (text, folder, events, limit, expected) in [
            (
                &*silent,
                format!("sys/fs/cgroup/system.slice/nerdctl-{}.scope", id()),
                ("memory.events", "low 0\noom 1\noom_kill 1\n"),
                ("memory.max", "8388608\n"),
                Some(Some(8 * MIB)),
            ),
            (
                &*silent,
                format!("sys/fs/cgroup/memory/default/{}", id()),
                ("memory.oom_control", "under_oom 0\noom_kill 2\n"),
                ("memory.limit_in_bytes", "9223372036854771712\n"),
                Some(None),
            ),
            (
                named,
                "sys/fs/cgroup/some/where".to_owned(),
                ("memory.events", "oom_kill 1\n"),
                ("memory.max", "max\n"),
                Some(None),
            ),
            (
                named,
                "sys/fs/cgroup/memory/some/where".to_owned(),
                ("memory.oom_control", "oom_kill_disable 0\noom_kill 0\n"),
                ("memory.limit_in_bytes", "8388608\n"),
                None,
            ),
            (
                named,
                "sys/fs/cgroup/elsewhere".to_owned(),
                ("memory.events", "oom_kill 1\n"),
                ("memory.max", "max\n"),
                None,
            ),
        ] {
            let files = [events, limit].map(|(file, text)| (format!("{folder}/{file}"), text));
            assert_eq!(killed(text, &tree(&files)), expected, "{folder}");
        }
    }
}
