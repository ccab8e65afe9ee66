//! What the kernel counts for one container: the files of its control groups, found through its
//! main process.
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

/// What the files of a container's control groups hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Its numbers, and when its main process was started, in clock ticks since boot.
    Usage(WorkloadUsage, Option<u64>),
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
    pub(crate) fn read(&mut self, process: &MainProcess) -> Reading {
        let of_process = self.top.join(format!("proc/{}", process.pid));
        let Some(groups) = self.text(&of_process.join("cgroup")).map(str::to_owned) else {
            return Reading::Ended;
        };
        let groups = Groups {
            text: &groups,
            id: &process.container.0,
        };
        let [memory, cpu, pids] =
            ["memory", "cpuacct", "pids"].map(|controller| groups.of(controller));
        if [&memory, &cpu, &pids].iter().all(|group| group.is_none()) {
            return Reading::NoCgroup;
        }
        let started = self.text(&of_process.join("stat")).and_then(start_ticks);
        let mut usage = WorkloadUsage::default();
        if let Some(group) = memory
            && let Some(folder) = self.folder(&group)
        {
            let [level, peak, inactive] = if group.is_v1() {
                [
                    "memory.usage_in_bytes",
                    "memory.max_usage_in_bytes",
                    "total_inactive_file",
                ]
            } else {
                ["memory.current", "memory.peak", "inactive_file"]
            };
            usage.memory_bytes = self.number(&folder.join(level));
            usage.memory_peak_bytes = self.number(&folder.join(peak));
            usage.inactive_file_bytes = self.entry(&folder.join("memory.stat"), inactive);
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
        if let Some(folder) = pids.and_then(|group| self.folder(&group)) {
            usage.pids = self.number(&folder.join("pids.current"));
        }
        Reading::Usage(usage, started)
    }

    /// Where the files of a control group are; `None` when it is not mounted here.
    fn folder(&self, group: &Group<'_>) -> Option<PathBuf> {
        let mut fitting = self
            .hierarchies
            .0
            .iter()
            .filter(|mount| mount.has(group.controller));
        let below =
            fitting.find_map(|mount| Some((mount, group.path.strip_prefix(&mount.root).ok()?)));
        let (mount, below) = below?;
        // A group above the root of our namespace is shown with `..`, which leads elsewhere here.
        let is_below = below
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
        is_below.then(|| self.top.join(point).join(below))
    }

    /// The text of a file, or its beginning.
    fn text(&mut self, path: &Path) -> Option<&str> {
        let length = File::open(path)
            .and_then(|mut file| file.read(&mut self.buffer))
            .ok()?;
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
        let mut lines = self.text(path)?.lines();
        lines
            .find_map(|line| line.split_once(' ').filter(|(name, _)| *name == key))?
            .1
            .parse()
            .ok()
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

/// A line of `/proc/self/mountinfo`, if it is about control groups.
fn mount(line: &str) -> Option<Mount> {
    let (fields, source) = line.split_once(" - ")?;
    let mut source = source.split(' ');
    let controllers = match source.next()? {
        "cgroup" => Some(source.nth(1)?.split(',').map(str::to_owned).collect()),
        "cgroup2" => None,
        _ => return None,
    };
    let mut fields = fields.split(' ').skip(3);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    Some(Mount {
        controllers,
        root,
        point,
    })
}

/// A path as the kernel writes it there: blanks and the like as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        path.push_str(before);
        match after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) => {
                path.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                path.push('\\');
                rest = after;
            }
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
    /// The container's own group for `controller`.
    fn of(&self, controller: &'t str) -> Option<Group<'t>> {
        // The number of the hierarchy, its controllers, the path.
        let lines = || {
            self.text
                .lines()
                .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        };
        let of_v1 =
            lines().find(|(controllers, _)| controllers.split(',').any(|one| one == controller));
        let of_v1 = of_v1.map(|(_, path)| (Some(controller), path));
        let (controller, path) = of_v1.or_else(|| {
            lines()
                .find(|(names, _)| names.is_empty())
                .map(|one| (None, one.1))
        })?;
        Some(Group {
            controller,
            path: Path::new(own_part(path, self.id)?),
        })
    }
}

/// The part of the path up to and including the last component that holds the container's id.
fn own_part<'t>(path: &'t str, id: &str) -> Option<&'t str> {
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let begin = if is_id { path.rfind(id)? } else { return None };
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
