//! Remembers which engine processes an agent has started, so that the next agent can wait for those that outlive it.
//!
//! A `podman run` goes on when its agent is killed. A new agent that lists containers too early would miss what that
//! call is about to create, and create it a second time. So each call that changes something leaves a small file in
//! `<agent folder>/engine-children/` while it runs:
//!
//! - before the start a file named by a token, holding the program's name: a call may be running;
//! - after the start the same file with pid and start time: exactly this process.
//!
//! An agent killed between the two leaves a file without pid; its process is then found by the token in its environment.
//! No lock is needed, since no two calls share a file.
//!
//! Thread: any thread that calls an engine; [`PreviousChildren`] belongs to the scheduler.

use crate::platform::private_folder::PrivateFolder;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Environment variable with the token of a recorded call.
pub const CALL_VARIABLE: &str = "ANKAIOS_ENGINE_CALL";

/// Begins the token of a call that only reads.
const READER: &str = "reader-";

/// Where this agent records the engine processes it runs. A clone records in the same place.
#[derive(Debug, Clone)]
pub struct EngineChildren {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    boot_id: String,
    next_call: AtomicU64,
}

/// The record of one call; removed when dropped.
#[derive(Debug)]
pub struct ChildRecord {
    path: PathBuf,
    token: String,
}

/// Engine processes of an earlier agent of the same name that may still run.
#[derive(Debug)]
pub struct PreviousChildren {
    records: Vec<PreviousRecord>,
}

#[derive(Debug)]
struct PreviousRecord {
    path: PathBuf,
    token: String,
    program: String,
    process: Option<Process>,
}

/// A process that cannot be mistaken for a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: Pid,
    start_ticks: u64,
}

impl EngineChildren {
    /// Creates the folder when it is missing, and takes over what an earlier agent left there.
    pub fn open(folder: &Path) -> io::Result<(Self, PreviousChildren)> {
        let place = PrivateFolder::open(folder)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let mut records = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match PreviousRecord::read(&place, &path, &boot_id) {
                Some(mut record) if record.token.starts_with(READER) => {
                    record.end_if_running(Signal::KILL);
                    remove(&path);
                }
                Some(record) => records.push(record),
                None => remove(&path),
            }
        }
        let shared = Shared { folder: folder.to_owned(), boot_id, next_call: AtomicU64::new(0) };
        Ok((Self { shared: Arc::new(shared) }, PreviousChildren { records }))
    }

    /// The folder of the agent, where the one with the records is.
    pub(super) fn agent_folder(&self) -> PathBuf {
        self.shared.folder.parent().unwrap_or(Path::new("")).to_owned()
    }

    /// Identifies this boot of the node; empty when that is not known.
    pub fn boot(&self) -> &str {
        &self.shared.boot_id
    }

    /// Records that a call of `program` is about to start. `None` when nothing can be written; the call is then
    /// made all the same, since only a crash of the agent during it would need the record.
    pub(super) fn announce(&self, program: &str) -> Option<ChildRecord> {
        self.record(program, "")
    }

    /// As [`Self::announce`], for a call that only reads and may do so for ever: the next agent ends it at once.
    pub(super) fn announce_reader(&self, program: &str) -> Option<ChildRecord> {
        self.record(program, READER)
    }

    fn record(&self, program: &str, kind: &str) -> Option<ChildRecord> {
        let number = self.shared.next_call.fetch_add(1, Ordering::Relaxed);
        let boot = self.shared.boot_id.get(..8).unwrap_or_default();
        let token = format!("{kind}{}-{number}-{boot}", std::process::id());
        let path = self.shared.folder.join(&token);
        let record = ChildRecord { path, token };
        record.append(&format!("{}\n{program}\n", self.shared.boot_id)).then_some(record)
    }
}

impl ChildRecord {
    /// Identifies the call, in its environment and as file name.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// The call runs as process `pid`.
    pub(super) fn started(&mut self, pid: u32) {
        let stat = i32::try_from(pid).ok().and_then(Pid::from_raw).and_then(Stat::of);
        if let Some(stat) = stat {
            // Without it the process can still be found by its token.
            self.append(&format!("{pid} {}\n", stat.start_ticks));
        }
    }

    /// Adds to the file in one write, so that a crash leaves it as it was before or after.
    fn append(&self, text: &str) -> bool {
        let file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        let result = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(error) = &result {
            log::warn!("cannot record an engine process in '{}': {error}", self.path.display());
        }
        result.is_ok()
    }
}

impl Drop for ChildRecord {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

impl PreviousChildren {
    /// How many calls of the earlier agent still run. Ended ones are forgotten.
    pub fn still_running(&mut self) -> usize {
        self.records.retain_mut(|record| {
            let running = record.is_running();
            if !running {
                remove(&record.path);
            }
            running
        });
        self.records.len()
    }

    /// Ends the calls that still run, with SIGTERM or by force. What they were about to create is cleaned up by the
    /// next create of the same workload, or adopted.
    pub fn end(&mut self, by_force: bool) {
        let signal = if by_force { Signal::KILL } else { Signal::TERM };
        self.still_running();
        for record in &mut self.records {
            record.end_if_running(signal);
        }
    }
}

impl PreviousRecord {
    /// `None` when the record is unreadable or from before the last boot: nothing runs any more.
    fn read(folder: &PrivateFolder, path: &Path, boot_id: &str) -> Option<Self> {
        // The processes that it names will be ended, so nobody else may have written it.
        let read = folder.read(Path::new(path.file_name()?));
        let text = read.inspect_err(|error| log::warn!("a record of an engine process is not used: {error}")).ok()?;
        let mut lines = text.lines();
        if lines.next()? != boot_id {
            return None;
        }
        let program = lines.next()?.to_owned();
        let process = lines.next().and_then(|line| {
            let (pid, start) = line.split_once(' ')?;
            Some(Process { pid: process_id(pid)?, start_ticks: start.parse().ok()? })
        });
        Some(Self { path: path.to_owned(), token: path.file_name()?.to_str()?.to_owned(), program, process })
    }

    fn end_if_running(&mut self, signal: Signal) {
        if self.is_running()
            && let Some(process) = self.process
        {
            log::warn!("ending process {}, left by an earlier agent", process.pid.as_raw_nonzero());
            let _ = kill_process_group(process.pid, signal);
        }
    }

    fn is_running(&mut self) -> bool {
        if self.process.is_none() {
            self.process = find_by_token(&self.token, &self.program);
        }
        self.process.is_some_and(|process| {
            Stat::of(process.pid).is_some_and(|stat| stat.start_ticks == process.start_ticks && !stat.is_zombie)
        })
    }
}

/// The number of a process. A negative one would mean a group of processes to the kernel.
fn process_id(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

/// The process started for the call `token`. Its own helpers inherit the environment and may live for long
/// (aardvark-dns), so only a process with the program's name that leads its group counts.
fn find_by_token(token: &str, program: &str) -> Option<Process> {
    let wanted = format!("{CALL_VARIABLE}={token}");
    let mut pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| process_id(entry.file_name().to_str()?));
    pids.find_map(|pid| {
        let stat = Stat::of(pid).filter(|stat| stat.group == pid.as_raw_nonzero().get())?;
        let has = |file: &str, wanted: &dyn Fn(&[u8]) -> bool| {
            let content = fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
            content.split(|byte| *byte == 0).any(wanted)
        };
        let is_program = |argument: &[u8]| argument.rsplit(|byte| *byte == b'/').next() == Some(program.as_bytes());
        let found = has("environ", &|entry| entry == wanted.as_bytes()) && has("cmdline", &is_program);
        found.then_some(Process { pid, start_ticks: stat.start_ticks })
    })
}

/// The fields of `/proc/<pid>/stat` that are needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    is_zombie: bool,
    group: i32,
    start_ticks: u64,
}

impl Stat {
    /// `None` when there is no such process.
    fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }

    /// The name of the program stands in parentheses and may contain anything, so fields count from the last one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?; // Field 3 of proc(5).
        let group = fields.nth(1)?.parse().ok()?; // Field 5.
        let start_ticks = fields.nth(16)?.parse().ok()?; // Field 22.
        Some(Self { is_zombie: matches!(state, "Z" | "X"), group, start_ticks })
    }
}

/// A record that cannot be removed is read again by the next agent, which finds its process gone.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        log::debug!("cannot remove '{}': {error}", path.display());
    }
}

#[cfg(test)]
#[cfg_attr(test, allow(clippy::disallowed_methods))]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    const PROGRAM: &str = "sleep";

    fn start(record: Option<&ChildRecord>) -> Child {
        let mut command = Command::new(PROGRAM);
        command.arg("600").process_group(0).stdin(Stdio::null());
        if let Some(record) = record {
            command.env(CALL_VARIABLE, record.token());
        }
        let child = command.spawn().unwrap();
        // A new program runs a moment before its arguments and environment can be read.
        while fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        child
    }

    /// Ends as an agent does that is killed: the record stays.
    fn crash(record: ChildRecord) {
        std::mem::forget(record);
    }

    fn earlier_agent() -> (tempfile::TempDir, EngineChildren) {
        let folder = tempfile::tempdir().unwrap();
        let children = EngineChildren::open(folder.path()).unwrap().0;
        (folder, children)
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_recorded_process_counts_until_it_ends_and_then_its_record_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (children, mut none) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(none.still_running(), 0);
        let mut record = children.announce(PROGRAM).unwrap();
        let mut child = start(None);
        record.started(child.id());
        crash(record);

        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 1);
        previous.end(true);
        child.wait().unwrap();
        assert_eq!(previous.still_running(), 0);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn a_process_that_was_not_recorded_in_time_is_found_by_its_token() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM).unwrap();
        let other = children.announce(PROGRAM).unwrap();
        let mut child = start(Some(&record));
        crash(record);
        crash(other);

        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 1, "one call was started, the other was not");
        previous.end(false);
        child.wait().unwrap();
        assert_eq!(previous.still_running(), 0);
    }

    #[test]
    fn a_call_that_only_reads_is_ended_by_the_next_agent_at_once() {
        let (folder, children) = earlier_agent();
        let [mut told, untold] = [(); 2].map(|()| children.announce_reader(PROGRAM).unwrap());
        let mut readers = [start(Some(&told)), start(Some(&untold))];
        told.started(readers[0].id());
        let mut other = start(None);
        crash(told);
        crash(untold);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 0);
        for reader in &mut readers {
            reader.wait().unwrap();
        }
        assert!(matches!(other.try_wait(), Ok(None)), "others are left alone");
        assert_eq!(files(folder.path()), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_zombie_and_a_later_process_with_the_same_pid_do_not_count() {
        let (folder, children) = earlier_agent();
        let boot_id = &children.shared.boot_id;
        fs::write(folder.path().join("a"), format!("{boot_id}\n{PROGRAM}\n{} 1\n", std::process::id())).unwrap();
        let mut child = start(None);
        let mut record = children.announce(PROGRAM).unwrap();
        record.started(child.id());
        crash(record);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 1);
        child.kill().unwrap();
        // WNOWAIT: the zombie stays.
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(Pid::from_child(&child)), options).unwrap();
        assert_eq!(previous.still_running(), 0);
        child.wait().unwrap();
    }

    #[test]
    fn records_of_another_boot_and_garbage_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), format!("other boot\n{PROGRAM}\n{} 1\n", std::process::id())).unwrap();
        fs::write(folder.path().join("b"), [0xff, 0xfe]).unwrap();
        fs::write(folder.path().join("c"), "").unwrap();
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 0);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn a_call_that_ended_leaves_no_record() {
        let (folder, children) = earlier_agent();
        let mut record = children.announce(PROGRAM).unwrap();
        record.started(std::process::id());
        assert_eq!(files(folder.path()), 1);
        drop(record);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn stat_is_read_whatever_the_program_is_called() {
        let rest = "S 1 42 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        for name in ["sh", "a b", ") R 1 1", "(x)"] {
            let stat = Stat::parse(&format!("10 ({name}) {rest}")).unwrap();
            assert_eq!(stat, Stat { is_zombie: false, group: 42, start_ticks: 98765 }, "{name:?}");
        }
        assert_eq!(Stat::parse("10 (sh"), None);
        assert_eq!(Stat::parse("10 (sh) Z 1"), None);
    }
}
