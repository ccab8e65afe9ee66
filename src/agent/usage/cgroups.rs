//! The usage of one container: the files of its control groups, found through its main process.
//!
//! No engine is called. `/proc/<pid>/cgroup` names a path in each hierarchy. Its part up to the
//! last component with the id of the container is the control group of the whole container. The
//! process itself may be in a group below it. If no component contains the id, the group has other
//! processes as well, so its numbers would be wrong.
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
/// Bytes that are read of a file. This is all of most files; of long ones only the beginning is
/// used.
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

/// The result of reading the control groups of a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CgroupReading {
    /// Its numbers.
    Usage(ContainerUsage),
    /// It has no control group of its own, or none that this process can see.
    NoCgroup,
    /// Its main process has ended.
    Ended,
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Its controllers; `None` for version 2, which has all that are not in a hierarchy of version
    /// 1.
    controllers: Option<Vec<String>>,
    /// The control group that is mounted, normally `/`.
    root: PathBuf,
    point: PathBuf,
}

/// The mounted hierarchies. They are read once, since they do not change: each container adds lines
/// to the kernel's list of mounts, so reading it takes long.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies(Vec<Mount>);

impl Hierarchies {
    /// Reads the list of mounts below `top`, normally `/`.
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
    /// Returns a reader of the files below `top`, normally `/`.
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
        // First: the control group of each controller.
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
        // Then: their files.
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
            // A group above the root of this namespace is shown with `..`. Here that would be the
            // path of another folder.
            let mut parts = below.components();
            if !parts.all(|part| matches!(part, Component::Normal(_))) {
                return None;
            }
            let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
            return Some(self.top.join(point).join(below));
        }
        None
    }

    /// The first [`FILE_BYTES`] of a file, without a character that is cut.
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

/// Reads a line of `/proc/self/mountinfo`; `None` when it is no mount of control groups. Before the
/// dash it has three numbers, the root and the mount point; after it, the type, the source and the
/// options, which name the controllers.
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

/// Reads a path of `/proc/self/mountinfo`. The kernel writes blanks and some other characters in it
/// as `\` and three octal digits.
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
    /// The controller, if its hierarchy is of version 1.
    controller: Option<&'t str>,
    path: &'t Path,
}

impl Group<'_> {
    fn is_v1(&self) -> bool {
        self.controller.is_some()
    }
}

impl<'t> Groups<'t> {
    /// The container's own group for `controller`: in its hierarchy of version 1, if there is one,
    /// otherwise in that of version 2.
    fn of(&self, controller: &'t str) -> Option<Group<'t>> {
        let mut of_v2 = None;
        for line in self.text.lines() {
            // A line has the number of the hierarchy, its controllers and the path.
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

    /// The container's own group in the path of its process.
    fn group(&self, controller: Option<&'t str>, path: &'t str) -> Option<Group<'t>> {
        Some(Group {
            controller,
            path: Path::new(own_part(path, self.id)?),
        })
    }
}

/// The part of the path that ends with the last component that contains the container's id.
fn own_part<'t>(path: &'t str, id: &str) -> Option<&'t str> {
    if id.len() != ID_DIGITS || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None; // Other texts could be in a path by chance.
    }
    let begin = path.rfind(id)?;
    let rest = &path[begin + id.len()..];
    let end = rest.find('/').unwrap_or(rest.len());
    Some(&path[..begin + id.len() + end])
}

/// When a process was started, from its `/proc/<pid>/stat`.
fn start_ticks(stat: &str) -> Option<u64> {
    // The name of the program, in parentheses, may contain any characters, even parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests;
