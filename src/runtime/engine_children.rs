//! Remembers which engine processes an agent has started, so that the next agent can wait for those
//! that outlive it.
//!
//! A `podman run` continues when its agent is killed. A new agent that lists containers too early
//! would miss the container of that call and create a second one. So each call that changes
//! something has a small file in `<agent folder>/engine-children/` while it runs: its name is a
//! token, which the process has in its environment, and it holds the program's name. No lock is
//! needed, since no two calls share a file.
//!
//! Thread: any thread that calls an engine; [`PreviousChildren`] belongs to the scheduler.

use ankaios_platform::private_folder::PrivateFolder;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Environment variable with the token of a recorded call.
pub(crate) const CALL_VARIABLE: &str = "ANKAIOS_ENGINE_CALL";

/// Number of first arguments that may name the program: an interpreter, an option of its own, the
/// program.
const WORDS: usize = 3;

/// Begins the token of a call that only reads, perhaps forever: the next agent ends it at once.
pub(super) const READER: &str = "reader-";

/// The folder with the records of running engine processes. A clone uses the same folder.
#[derive(Debug, Clone)]
pub struct EngineChildren {
    folder: Arc<Path>,
    boot_id: Arc<str>,
    next_call: Arc<AtomicU64>,
}

/// The record of one call; removed when dropped.
#[derive(Debug)]
pub(crate) struct ChildRecord {
    path: PathBuf,
    /// Identifies the call, in its environment and as file name.
    pub(crate) token: String,
}

/// Engine processes of an earlier agent of the same name that may still run.
#[derive(Debug)]
pub struct PreviousChildren {
    records: Vec<PreviousRecord>,
}

#[derive(Debug)]
struct PreviousRecord {
    record: ChildRecord,
    program: String,
    process: Option<Pid>,
}

impl EngineChildren {
    /// Creates the folder if it is missing, and takes over the records of an earlier agent. Ends
    /// its calls that only read.
    pub fn open(folder: &Path) -> io::Result<(Self, PreviousChildren)> {
        // First read the records.
        let place = PrivateFolder::open(folder)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot_id = boot_id.trim();
        let mut records = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // The drop of a record removes its file, unless the record is kept below.
            let record = ChildRecord {
                path: entry.path(),
                token: entry.file_name().to_string_lossy().into_owned(),
            };
            // The processes that a record names may be ended, so the file of another user is not
            // used.
            let text = match place.read(Path::new(&entry.file_name())) {
                Ok(text) => text,
                Err(error) => {
                    log::warn!("a record of an engine process is not used: {error}");
                    continue;
                }
            };
            let mut lines = text.lines();
            // Processes of an earlier boot do not run any more.
            if let (Some(boot), Some(program)) = (lines.next(), lines.next())
                && boot == boot_id
            {
                records.push(PreviousRecord {
                    record,
                    program: program.to_owned(),
                    process: None,
                });
            }
        }
        // Then end the readers.
        let mut previous = PreviousChildren { records };
        previous.signal(Signal::KILL, |token| token.starts_with(READER));
        let records = &mut previous.records;
        records.retain(|one| !one.record.token.starts_with(READER));
        // Finally choose a random first number: two agents may have the same pid, as in containers.
        let unique = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        let digits = unique.get(..8).unwrap_or_default();
        let first_call = u64::from_str_radix(digits, 16).unwrap_or_default();
        let children = Self {
            folder: folder.into(),
            boot_id: boot_id.into(),
            next_call: Arc::new(AtomicU64::new(first_call)),
        };
        Ok((children, previous))
    }

    /// The folder of the agent, above the one with the records.
    pub(super) fn agent_folder(&self) -> PathBuf {
        self.folder.parent().unwrap_or(Path::new("")).to_owned()
    }

    /// The id of this boot of the node; empty if it is unknown.
    pub fn boot(&self) -> &str {
        &self.boot_id
    }

    // [impl->swdd~agent-makes-removed-files-anew~1]
    /// Records a call of `program` before its start; `kind` is [`READER`] or empty. Returns `None`
    /// if that fails. The call is made anyway, since the record is only needed after a crash of the
    /// agent.
    pub(super) fn announce(&self, program: &str, kind: &str) -> Option<ChildRecord> {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let boot = self.boot_id.get(..8).unwrap_or_default();
        let token = format!("{kind}{}-{number}-{boot}", std::process::id());
        let path = self.folder.join(&token);
        if let Err(error) = self.write_record(&path, program) {
            let path = path.display();
            log::warn!("cannot record an engine process in '{path}': {error}");
            return None;
        }
        Some(ChildRecord { path, token })
    }

    /// Writes the file of a record.
    fn write_record(&self, path: &Path, program: &str) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let mut opened = options.open(path);
        // Make the folder again if a cleanup of old files has removed it.
        if let Err(error) = &opened
            && error.kind() == io::ErrorKind::NotFound
            && PrivateFolder::open(&self.folder).is_ok()
        {
            opened = options.open(path);
        }
        // Write all at once, so that a crash leaves the whole text or none.
        opened?.write_all(format!("{}\n{program}\n", self.boot_id).as_bytes())
    }
}

/// A record that cannot be removed is read again by the next agent, which finds no process of it.
impl Drop for ChildRecord {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::debug!("cannot remove '{}': {error}", self.path.display());
        }
    }
}

/// Calls of an earlier agent of the same name that may still create or delete something.
pub trait EarlierCalls {
    /// Forgets ended calls and returns the number of running ones.
    fn still_running(&mut self) -> usize;

    /// Ends the running calls by SIGTERM, or by SIGKILL. A container that they create anyway is
    /// removed by the next create of the same workload, or adopted.
    fn end(&mut self, by_force: bool);
}

impl EarlierCalls for PreviousChildren {
    fn still_running(&mut self) -> usize {
        self.find_processes();
        self.records.retain(|one| one.process.is_some());
        self.records.len()
    }

    fn end(&mut self, by_force: bool) {
        let signal = if by_force { Signal::KILL } else { Signal::TERM };
        self.signal(signal, |_| true);
    }
}

impl PreviousChildren {
    /// Sends a signal to the processes of all calls whose token `is_wanted`.
    fn signal(&mut self, signal: Signal, is_wanted: impl Fn(&str) -> bool) {
        self.find_processes();
        for one in &self.records {
            if let Some(process) = one.process
                && is_wanted(&one.record.token)
            {
                let number = process.as_raw_nonzero();
                log::warn!("ending process {number}, left by an earlier agent");
                let _ = kill_process_group(process, signal); // It may have ended meanwhile.
            }
        }
    }

    /// Finds the processes of the calls by their tokens.
    ///
    /// Helpers of a call such as aardvark-dns and conmon inherit the token and may live for long.
    /// So a process must also lead its group, and run the program.
    fn find_processes(&mut self) {
        for one in &mut self.records {
            one.process = None;
        }
        if self.records.is_empty() {
            return;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(process) = GroupLeader::read(&entry) else {
                continue;
            };
            let Some(token) = process.token() else {
                continue;
            };
            for one in &mut self.records {
                if one.record.token.as_bytes() == token && process.runs(&one.program) {
                    one.process = Some(process.pid);
                }
            }
        }
    }
}

/// A process that leads its group.
struct GroupLeader {
    pid: Pid,
    /// Its folder in `/proc`.
    folder: PathBuf,
}

impl GroupLeader {
    /// Reads an entry of `/proc`; `None` unless it leads a group of processes.
    fn read(entry: &fs::DirEntry) -> Option<Self> {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        if number <= 0 {
            return None; // A negative one would mean a group of processes to the kernel.
        }
        let folder = entry.path();
        let stat = fs::read(folder.join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in parentheses may contain anything; the state, the parent and the group follow.
        let group = stat.rsplit(')').next()?.split_ascii_whitespace().nth(2)?;
        if group.parse() != Ok(number) {
            return None;
        }
        Some(Self {
            pid: Pid::from_raw(number)?,
            folder,
        })
    }

    /// The token in its environment; `None` without one, or if the process has ended.
    fn token(&self) -> Option<Vec<u8>> {
        let environment = fs::read(self.folder.join("environ")).ok()?;
        for entry in environment.split(|byte| *byte == 0) {
            if let Some(rest) = entry.strip_prefix(CALL_VARIABLE.as_bytes())
                && let Some(token) = rest.strip_prefix(b"=")
            {
                return Some(token.to_vec());
            }
        }
        None
    }

    /// Returns whether the process runs `program`, directly or as the script of an interpreter.
    /// Only the first arguments show this: conmon has the path of podman among its later ones.
    fn runs(&self, program: &str) -> bool {
        let arguments = fs::read(self.folder.join("cmdline")).unwrap_or_default();
        let mut words = arguments.split(|byte| *byte == 0).take(WORDS);
        words.any(|word| word.rsplit(|byte| *byte == b'/').next() == Some(program.as_bytes()))
    }
}

#[cfg(test)]
#[cfg_attr(test, allow(clippy::disallowed_methods))]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    const PROGRAM: &str = "sleep";

    /// Starts a program, with the token of a record in its environment.
    fn start(record: Option<&ChildRecord>) -> Child {
        let mut command = Command::new(PROGRAM);
        command.arg("600").process_group(0).stdin(Stdio::null());
        if let Some(record) = record {
            command.env(CALL_VARIABLE, &record.token);
        }
        let child = command.spawn().unwrap();
        // A new program runs a moment before its arguments and environment can be read.
        while fs::read(format!("/proc/{}/environ", child.id()))
            .unwrap()
            .is_empty()
        {
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
    fn recorded_call_is_running_until_it_ends_and_loses_its_record() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM, "").unwrap();
        let other = children.announce(PROGRAM, "").unwrap();
        let mut child = start(Some(&record));
        crash(record);
        crash(other);

        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(
            previous.still_running(),
            1,
            "one call was started, the other was not"
        );
        previous.end(false);
        child.wait().unwrap();
        assert_eq!(previous.still_running(), 0);
        assert_eq!(files(folder.path()), 0);
        assert_eq!(
            EngineChildren::open(folder.path())
                .unwrap()
                .1
                .still_running(),
            0
        );
    }

    // [utest->swdd~agent-makes-removed-files-anew~1]
    #[test]
    fn calls_are_recorded_again_when_others_removed_the_folder() {
        let (folder, children) = earlier_agent();
        fs::remove_dir_all(folder.path()).unwrap();
        let record = children.announce(PROGRAM, "").expect("it is recorded");
        assert_eq!(files(folder.path()), 1);
        drop(record);
        assert_eq!(files(folder.path()), 0);
    }

    /// In a container each agent has pid 1, and workloads could guess a token that only counts.
    #[test]
    fn calls_of_two_agents_with_one_pid_have_different_tokens() {
        let tokens: Vec<String> = (0..2)
            .map(|_| {
                earlier_agent()
                    .1
                    .announce(PROGRAM, "")
                    .unwrap()
                    .token
                    .clone()
            })
            .collect();
        assert_ne!(tokens[0], tokens[1]);
    }

    #[test]
    fn a_record_of_an_earlier_program_has_the_process_in_it() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM, "").unwrap();
        let mut child = start(Some(&record));
        let text = fs::read_to_string(&record.path).unwrap();
        fs::write(&record.path, format!("{text}{} 4711\n", child.id())).unwrap();
        crash(record);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 1);
        previous.end(true);
        child.wait().unwrap();
        assert_eq!(previous.still_running(), 0);
    }

    #[test]
    fn a_call_that_only_reads_is_ended_by_the_next_agent_at_once() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM, READER).unwrap();
        let mut reader = start(Some(&record));
        let mut other = start(None);
        crash(record);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 0);
        reader.wait().unwrap();
        assert!(
            matches!(other.try_wait(), Ok(None)),
            "others are left alone"
        );
        assert_eq!(files(folder.path()), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// The next agent waited for the monitors of containers, and then killed them.
    #[test]
    fn a_monitor_of_a_container_that_inherits_the_token_is_no_call() {
        let (folder, children) = earlier_agent();
        let record = children.announce("podman", "").unwrap();
        let monitor = |words: &[&str]| {
            let mut command = Command::new("sh");
            command
                .arg0("conmon")
                .args(["-c", "sleep 600; :"])
                .args(words)
                .process_group(0)
                .stdin(Stdio::null());
            command.env(CALL_VARIABLE, &record.token).spawn().unwrap()
        };
        let mut monitors = [
            monitor(&["--exit-command", "/usr/bin/podman"]),
            monitor(&["1", "/usr/bin/podman"]),
        ];
        let is_ready = |child: &Child| {
            !fs::read(format!("/proc/{}/environ", child.id()))
                .unwrap()
                .is_empty()
        };
        while !monitors.iter().all(is_ready) {
            std::thread::yield_now();
        }
        crash(record);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 0);
        for monitor in &mut monitors {
            assert!(matches!(monitor.try_wait(), Ok(None)));
            kill_process_group(Pid::from_child(monitor), Signal::KILL).unwrap();
            monitor.wait().unwrap();
        }
    }

    #[test]
    fn a_zombie_and_other_processes_with_the_token_do_not_count() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM, "").unwrap();
        let mut child = start(Some(&record));
        let helper = |program: &str, group: Option<i32>| {
            let mut command = Command::new(program);
            command
                .arg("600")
                .stdin(Stdio::null())
                .env(CALL_VARIABLE, &record.token);
            group
                .into_iter()
                .for_each(|group| _ = command.process_group(group));
            command.spawn().unwrap()
        };
        let mut helpers = [helper("sleep", None), helper("cat", Some(0))];
        crash(record);
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 1);
        child.kill().unwrap();
        // WNOWAIT: the zombie stays.
        let options =
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&child)),
            options,
        )
        .unwrap();
        assert_eq!(previous.still_running(), 0);
        child.wait().unwrap();
        for helper in &mut helpers {
            let _ = helper.kill();
            helper.wait().unwrap();
        }
    }

    #[test]
    fn records_of_another_boot_and_garbage_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("a"),
            format!("other boot\n{PROGRAM}\n{} 1\n", std::process::id()),
        )
        .unwrap();
        fs::write(folder.path().join("b"), [0xff, 0xfe]).unwrap();
        fs::write(folder.path().join("c"), "").unwrap();
        let (_, mut previous) = EngineChildren::open(folder.path()).unwrap();
        assert_eq!(previous.still_running(), 0);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn a_call_that_ended_leaves_no_record() {
        let (folder, children) = earlier_agent();
        let record = children.announce(PROGRAM, "").unwrap();
        assert_eq!(files(folder.path()), 1);
        drop(record);
        assert_eq!(files(folder.path()), 0);
    }
}
