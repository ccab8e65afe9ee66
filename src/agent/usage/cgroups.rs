//! The usage of one container: the files of its control groups, found through its main process.
//!
//! No engine is called. `/proc/<pid>/cgroup` names a path in each hierarchy. The part of it up to
//! the last component that holds the container's id is the control group of the whole container;
//! the processes may be in groups below it. Where no component holds the id, the group has other
//! processes as well, and its numbers would be wrong.
//!
//! A controller is in one hierarchy of version 1 or in that of version 2, and a kernel may have
//! both kinds.
//!
//! Thread: `usage`, `metrics`. Owns: nothing but a buffer.

use ankaios_model::usage::WorkloadUsage;
use ankaios_runtime::MainProcess;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Digits of the id of a container.
const ID_DIGITS: usize = 64;
/// Bytes that are read of a file: all of the short ones, and of long ones the part that is used.
const FILE_BYTES: usize = 8 * 1024;

/// Names of the files and entries with the memory of a control group.
struct MemoryFiles {
    level: &'static str,
    peak: &'static str,
    /// An entry in `memory.stat`.
    inactive: &'static str,
}

const MEMORY_V1: MemoryFiles = MemoryFiles {
    level: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    inactive: "total_inactive_file",
};
const MEMORY_V2: MemoryFiles = MemoryFiles {
    level: "memory.current",
    peak: "memory.peak",
    inactive: "inactive_file",
};

/// The usage of one container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerUsage {
    pub(crate) usage: WorkloadUsage,
    /// When its main process was started, in clock ticks since boot.
    pub(crate) start_ticks: Option<u64>,
}

/// The content of the files of a container's control groups.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CgroupReading {
    /// Its numbers.
    Usage(ContainerUsage),
    /// It has no control group of its own, or none that can be seen from here.
    NoCgroup,
    /// Its main process has ended.
    Ended,
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Its controllers; `None` for version 2, which has all that no hierarchy of version 1 has.
    controllers: Option<Vec<String>>,
    /// The control group that is mounted, normally `/`.
    root: PathBuf,
    point: PathBuf,
}

/// The mounted hierarchies. Each container adds lines to the kernel's list of mounts, so that
/// reading it costs as much as the files of several containers; hierarchies stay where they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies(Vec<Mount>);

impl Hierarchies {
    /// Reads them below `top`, normally `/`.
    pub(crate) fn read(top: &Path) -> io::Result<Self> {
        let mounts = fs::read_to_string(top.join("proc/self/mountinfo"))?;
        Ok(Self(mounts.lines().filter_map(mount).collect()))
    }
}

/// Reads the control groups of containers.
#[derive(Debug)]
pub(crate) struct CgroupReader<'h> {
    /// `/`, or a recorded tree.
    top: &'h Path,
    hierarchies: &'h Hierarchies,
    buffer: Vec<u8>,
}

impl<'h> CgroupReader<'h> {
    /// Reads the files below `top`, normally `/`.
    pub(crate) fn new(top: &'h Path, hierarchies: &'h Hierarchies) -> Self {
        Self {
            top,
            hierarchies,
            buffer: vec![0; FILE_BYTES],
        }
    }

    /// Reads the control groups of one container.
    pub(crate) fn read(&mut self, process: &MainProcess) -> CgroupReading {
        let of_process = self.top.join(format!("proc/{}", process.pid));
        let Some(groups) = self.text(&of_process.join("cgroup")).map(str::to_owned) else {
            return CgroupReading::Ended;
        };
        let groups = Groups {
            text: &groups,
            id: &process.container.0,
        };
        let memory = groups.of("memory");
        let cpu = groups.of("cpuacct");
        let pids = groups.of("pids");
        if memory.is_none() && cpu.is_none() && pids.is_none() {
            return CgroupReading::NoCgroup;
        }
        let start_ticks = self.text(&of_process.join("stat")).and_then(start_ticks);
        let mut usage = WorkloadUsage::default();
        if let Some(group) = memory
            && let Some(folder) = self.folder(&group)
        {
            let files = if group.is_v1() {
                &MEMORY_V1
            } else {
                &MEMORY_V2
            };
            usage.memory_bytes = self.number(&folder.join(files.level));
            usage.memory_peak_bytes = self.number(&folder.join(files.peak));
            let inactive = self.entry(&folder.join("memory.stat"), files.inactive);
            usage.inactive_file_bytes = inactive;
        }
        if let Some(group) = cpu
            && let Some(folder) = self.folder(&group)
        {
            usage.cpu_usec = if group.is_v1() {
                self.number(&folder.join("cpuacct.usage"))
                    .map(|nanoseconds| nanoseconds / 1000)
            } else {
                self.entry(&folder.join("cpu.stat"), "usage_usec")
            };
        }
        if let Some(group) = pids
            && let Some(folder) = self.folder(&group)
        {
            usage.pids = self.number(&folder.join("pids.current"));
        }
        CgroupReading::Usage(ContainerUsage { usage, start_ticks })
    }

    /// The folder with the files of a control group; `None` when it is not mounted here.
    fn folder(&self, group: &Group<'_>) -> Option<PathBuf> {
        for mount in &self.hierarchies.0 {
            if !mount.has(group.controller) {
                continue;
            }
            let Ok(below) = group.path.strip_prefix(&mount.root) else {
                continue;
            };
            // A group above the root of our namespace is shown with `..`, which leads elsewhere
            // here.
            let mut parts = below.components();
            if !parts.all(|part| matches!(part, Component::Normal(_))) {
                return None;
            }
            let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
            return Some(self.top.join(point).join(below));
        }
        None
    }

    /// The text of a file, or its beginning.
    fn text(&mut self, path: &Path) -> Option<&str> {
        let mut file = File::open(path).ok()?;
        let length = file.read(&mut self.buffer).ok()?;
        let read = self.buffer.get(..length)?;
        match std::str::from_utf8(read) {
            Ok(text) => Some(text),
            Err(error) => std::str::from_utf8(read.get(..error.valid_up_to())?).ok(),
        }
    }

    fn number(&mut self, path: &Path) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The number behind `key` in a file with a key and a number on each line.
    fn entry(&mut self, path: &Path, key: &str) -> Option<u64> {
        for line in self.text(path)?.lines() {
            if let Some((name, number)) = line.split_once(' ')
                && name == key
            {
                return number.parse().ok();
            }
        }
        None
    }
}

impl Mount {
    /// Whether it is the hierarchy of `controller`, or that of version 2 for `None`.
    fn has(&self, controller: Option<&str>) -> bool {
        match (&self.controllers, controller) {
            (Some(controllers), Some(wanted)) => controllers.iter().any(|one| one == wanted),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Reads a line of `/proc/self/mountinfo`; `None` when it is no mount of control groups.
fn mount(line: &str) -> Option<Mount> {
    let (fields, source) = line.split_once(" - ")?;
    let mut source = source.split(' ');
    let controllers = match source.next()? {
        "cgroup" => Some(source.nth(1)?.split(',').map(str::to_owned).collect()),
        "cgroup2" => None,
        _ => return None,
    };
    let mut fields = fields.split(' ').skip(3);
    Some(Mount {
        controllers,
        root: unescaped(fields.next()?),
        point: unescaped(fields.next()?),
    })
}

/// Reads a path as the kernel writes it there: blanks and some others as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        path.push_str(before);
        let digits = after.get(..3).unwrap_or_default();
        if let Ok(byte) = u8::from_str_radix(digits, 8) {
            path.push(char::from(byte));
            rest = &after[3..];
        } else {
            path.push('\\');
            rest = after;
        }
    }
    PathBuf::from(path + rest)
}

/// The control groups of a process, as the kernel lists them, and the id of its container.
struct Groups<'t> {
    text: &'t str,
    id: &'t str,
}

/// The control group of a container for one controller.
#[derive(Debug, PartialEq, Eq)]
struct Group<'t> {
    /// The controller when its hierarchy is of version 1.
    controller: Option<&'t str>,
    path: &'t Path,
}

impl Group<'_> {
    fn is_v1(&self) -> bool {
        self.controller.is_some()
    }
}

impl<'t> Groups<'t> {
    /// The container's own group for `controller`: of its hierarchy of version 1, or of version 2.
    fn of(&self, controller: &'t str) -> Option<Group<'t>> {
        let mut of_v2 = None;
        for line in self.text.lines() {
            // The number of the hierarchy, its controllers, the path.
            let Some((_, rest)) = line.split_once(':') else {
                continue;
            };
            let Some((controllers, path)) = rest.split_once(':') else {
                continue;
            };
            if controllers.split(',').any(|one| one == controller) {
                return self.group(Some(controller), path);
            }
            if controllers.is_empty() && of_v2.is_none() {
                of_v2 = Some(path);
            }
        }
        self.group(None, of_v2?)
    }

    fn group(&self, controller: Option<&'t str>, path: &'t str) -> Option<Group<'t>> {
        Some(Group {
            controller,
            path: Path::new(own_part(path, self.id)?),
        })
    }
}

/// The part of the path up to and including the last component that holds the container's id.
fn own_part<'t>(path: &'t str, id: &str) -> Option<&'t str> {
    if id.len() != ID_DIGITS || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let begin = path.rfind(id)?;
    let rest = &path[begin + id.len()..];
    let end = rest.find('/').unwrap_or(rest.len());
    Some(&path[..begin + id.len() + end])
}

/// When the process of this `/proc/<pid>/stat` was started. The name of its program, in
/// parentheses, may hold anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests;
