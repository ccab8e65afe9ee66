//! Keeps the desired state over restarts of the server, when `state_dir` is set.
//!
//! A file holds one line with a checksum of the rest, then the state as JSON. A new file is
//! written, brought to the disk and renamed; the one that it replaces is kept. So a crash loses at
//! most the state that was being written, also when it leaves a file that cannot be read.
//!
//! Thread: `store` writes; [`StateStore`] belongs to `server`, which waits for the disk only before
//! a staged update is switched, and at most a second in ten; `main` reads at the start.
//! Owns: the files in the folder. Takes: accepted states, of which only the newest is written.
//! Gives: a report after each write, of which only the newest counts.

use crate::history::HistoryFile;
use ankaios_model::complete_state::{DesiredState, Rendering, desired_state_from_node};
use ankaios_model::names::{Name, hash_id};
use ankaios_model::node::Node;
use ankaios_platform::checked_file;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::folder_lock;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::utc;
use ankaios_platform::threads::{self, Thread};
use crossbeam_channel::{
    Receiver, RecvTimeoutError, Sender, TrySendError, at, bounded, never, select_biased,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Maps and lists of a stored state are nested this deep at most. Manifests nest less deep than
/// 128.
const STORED_DEPTH_MAX: usize = 256;
/// Pause before a state that could not be stored is stored again. A full disk seldom improves at
/// once.
const STORE_RETRY: Duration = Duration::from_secs(30);

/// Longest time that the server waits for its disk before a staged update is switched. All other
/// events wait meanwhile.
pub(crate) const STORE_WAIT: Duration = Duration::from_millis(500);
/// Each wait is regained in this many times its length. So the server waits for at most a second in
/// any ten: half a second at once, and the half that it regains meanwhile.
const REGAIN_FACTOR: u32 = 20;
/// Time of a write from which users are warned. Slow flash needs seconds for a large state.
const STORE_SLOW: Duration = Duration::from_secs(10);

/// Texts with changes of states that wait for the disk. While it hangs, later changes are kept in
/// memory only.
const CHANGES_QUEUE: usize = 64;

/// The state that was stored last.
pub const FILE: &str = "desired-state.json";
/// The state that was stored before it.
const PREVIOUS_FILE: &str = "desired-state.json.previous";
/// A state that is being written.
const NEW_FILE: &str = "desired-state.json.new";
/// What ends a write, in this order. Between the two the new file is the only newest one.
const RENAMES: [(&str, &str); 2] = [(FILE, PREVIOUS_FILE), (NEW_FILE, FILE)];
/// Locked as long as a server uses the folder; empty.
const LOCK_FILE: &str = "lock";
/// A newest state that cannot be read is renamed to this, to be inspected.
const DAMAGED_FILE: &str = "desired-state.json.damaged";
/// Says that the newest state is an older copy: the checksum of its desired state, then the
/// warning.
const OLDER_COPY_FILE: &str = "desired-state.json.warning";
/// Written and removed at the start, to check that the folder can be written.
const CHECK_FILE: &str = "desired-state.json.check";
/// Size of the check file, in bytes: one block of most file systems. A full disk still takes an
/// empty file.
const CHECK_BYTES: usize = 4096;
/// Before the checksum in the first line.
const HEADER: &str = "ankaios-lite desired state 1 sha256:";

/// Highest number of a guarded update: every reader of JSON represents it exactly.
pub(crate) const UPDATE_NUMBER_MAX: u64 = 1 << 53;

/// The key of guarded updates in the file; earlier servers ignore it.
const UPDATES: &str = "updates";

/// The key of stopped workloads in the file; earlier servers ignore it, and start them.
const STOPPED: &str = "stopped";

/// The guarded updates as they are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredUpdates {
    /// The number of the newest update.
    pub(crate) newest: u64,
    /// The open updates, then the ended ones in the order of their ends.
    pub list: Vec<StoredUpdate>,
}

/// A stored update with its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredUpdate {
    pub number: u64,
    pub update: Arc<Node>,
}

/// The state that survives a restart of the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    pub desired: DesiredState,
    /// `None` if there never was a guarded update.
    pub updates: Option<StoredUpdates>,
    /// Workloads that a client has stopped.
    pub stopped: BTreeSet<Name>,
}

/// A request to write a state.
#[derive(Debug)]
pub struct StateWrite {
    pub state: Stored,
    /// Requests are numbered from 1.
    number: u64,
    /// Dropped after the attempt, to wake a server that waits for it.
    attempted: Option<Sender<()>>,
}

/// The reason why the newest state is not on the disk.
#[derive(Debug, Clone, PartialEq)]
struct StoreFault {
    cause: String,
    /// When the first write failed.
    since: SystemTime,
}

/// The progress of the writer.
#[derive(Debug, Clone, Default, PartialEq)]
struct WriterReport {
    /// The number of the newest [`StateWrite`] that was attempted.
    attempted: u64,
    /// Whether another state was stored than the older copy with which the server has started.
    has_stored: bool,
    fault: Option<StoreFault>,
}

/// The server's end of the `store` thread.
#[derive(Debug)]
pub struct StateStore {
    folder: PathBuf,
    newest: Sender<StateWrite>,
    /// To the writer: lines of changes of states.
    changes: Sender<String>,
    /// The writer's end, to remove a state that a newer one replaces.
    outdated: Receiver<StateWrite>,
    /// From the writer: only the newest one.
    reports: Receiver<WriterReport>,
    report: WriterReport,
    /// Number of states that the writer was sent.
    sent: u64,
    /// When the writer began to be busy with a state that it has not attempted.
    busy_since: Option<Instant>,
    /// Whether there is a writer; without one nothing waits for it.
    has_writer: bool,
    /// When the server may wait for the whole of [`STORE_WAIT`] again. `None` before its first
    /// wait.
    all_regained_at: Option<Instant>,
}

impl StateStore {
    /// Stores the state `unsaved`, or checks that the folder can be written, then starts the thread
    /// that writes into `folder`.
    ///
    /// # Errors
    /// The operating system starts no thread.
    pub fn start(folder: PathBuf, unsaved: Option<Stored>) -> io::Result<(Self, Thread)> {
        let (mut store, states) = Self::without_writer();
        let (changes, lines) = bounded(CHANGES_QUEUE);
        store.changes = changes;
        // First, one attempt on this thread, so that a problem is known before clients are served.
        let (mut writer, reports) = StateWriter::new(folder.clone());
        match unsaved {
            Some(unsaved) => writer.attempt(Job::StoreStart(unsaved)),
            None => writer.attempt(Job::Check),
        }
        store.folder = folder;
        store.report = writer.report.clone();
        store.reports = reports;
        store.has_writer = true;
        // Then, the thread.
        let thread = threads::spawn("store", STACK_LARGE, move || {
            writer.run(&states, &lines, &SystemClock)
        })?;
        Ok((store, thread))
    }

    /// A store without a writer, and the channel of the states for one.
    pub fn without_writer() -> (Self, Receiver<StateWrite>) {
        let (newest, states) = bounded(1);
        let store = Self {
            folder: PathBuf::new(),
            newest,
            changes: bounded(0).0,
            outdated: states.clone(),
            reports: never(),
            report: WriterReport::default(),
            sent: 0,
            busy_since: None,
            has_writer: false,
            all_regained_at: None,
        };
        (store, states)
    }

    /// Sends the writer a state, which replaces one that it has not begun to write. Never waits.
    pub(crate) fn store(&mut self, state: Stored) {
        self.put(state, None);
    }

    /// Sends the writer a state and waits for its attempt, within the budget of
    /// [`Self::wait_left`].
    pub(crate) fn store_and_wait(&mut self, state: Stored) {
        let (attempted, wait) = bounded(1);
        self.put(state, Some(attempted));
        let begin = SystemClock.now();
        let limit = self.wait_left(begin);
        if !self.has_writer || limit.is_zero() {
            return; // No thread writes the state, or earlier waits have used the budget.
        }
        let is_late = wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        self.waited(begin, SystemClock.now());
        if is_late {
            log::warn!("The disk has not stored the state in time; continuing without it.");
        }
    }

    /// Sends the writer lines with changes of states. Never waits: they are dropped when the disk
    /// does not keep up.
    pub(crate) fn append_changes(&self, lines: String) {
        let _ = self.changes.try_send(lines);
    }

    /// Receives the newest report of the writer, if there is one.
    pub(crate) fn take_report(&mut self) {
        let Ok(report) = self.reports.try_recv() else {
            return;
        };
        if report.attempted == self.sent {
            self.busy_since = None; // It has nothing left to write.
        } else if report.attempted > self.report.attempted {
            self.busy_since = Some(SystemClock.now()); // It continues with a newer state.
        }
        self.report = report;
    }

    /// Returns whether another state was stored than the older copy with which the server has
    /// started.
    pub(crate) fn has_stored(&self) -> bool {
        self.report.has_stored
    }

    /// The warning for users that a restart of the server would go back to an older state. `None`
    /// while the newest state is on the disk, or is about to be.
    // [impl->swdd~server-warns-of-unstored-state~1]
    pub(crate) fn warning(&self) -> Option<String> {
        let folder = self.folder.display();
        let consequence =
            "a restart of the server would go back to the state that was stored before";
        if let Some(StoreFault { cause, since }) = &self.report.fault {
            let since = utc(*since);
            return Some(format!(
                "the state cannot be stored in '{folder}' since {since}: {cause}; {consequence}. Make room there or make it \
                 writable"
            ));
        }
        let busy_since = self.busy_since?;
        let busy = SystemClock.now().saturating_duration_since(busy_since);
        if busy < STORE_SLOW {
            return None;
        }
        Some(format!(
            "the disk of '{folder}' has been busy storing the state for {} s; {consequence}. Check that disk",
            busy.as_secs()
        ))
    }

    /// The time that the server may wait for its disk now: [`STORE_WAIT`], less the part of earlier
    /// waits that it has not regained yet.
    // [impl->swdd~server-waits-little-for-its-disk~1]
    fn wait_left(&self, now: Instant) -> Duration {
        let Some(all_regained_at) = self.all_regained_at else {
            return STORE_WAIT;
        };
        let missing = all_regained_at.saturating_duration_since(now) / REGAIN_FACTOR;
        STORE_WAIT.saturating_sub(missing)
    }

    /// Notes that the server has waited from `begin` to `end`. It regains that time slowly, after
    /// what it has not regained of earlier waits.
    fn waited(&mut self, begin: Instant, end: Instant) {
        let regain_from = match self.all_regained_at {
            Some(earlier) => earlier.max(end),
            None => end,
        };
        let waited = end.saturating_duration_since(begin);
        self.all_regained_at = Some(regain_from + waited * REGAIN_FACTOR);
    }

    /// Sends the writer a state, in place of one that it has not taken. `attempted` is dropped
    /// after the attempt to write the state.
    fn put(&mut self, state: Stored, attempted: Option<Sender<()>>) {
        self.sent += 1;
        if self.has_writer && self.busy_since.is_none() {
            self.busy_since = Some(SystemClock.now());
        }
        let write = StateWrite {
            state,
            number: self.sent,
            attempted,
        };
        if let Err(TrySendError::Full(write)) = self.newest.try_send(write) {
            // Empty: the writer has just taken it. There is room in both cases.
            let _ = self.outdated.try_recv();
            let _ = self.newest.try_send(write);
        }
    }
}

/// The state that a server finds at its start.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// The newest state that can be read.
    pub state: Stored,
    /// The reason why it is not the last stored state, if it is not.
    pub warning: Option<String>,
}

/// Why the folder of the stored state cannot be used, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct UnusableFolder {
    reason: String,
    pub hint: String,
}

impl From<io::Error> for UnusableFolder {
    fn from(error: io::Error) -> Self {
        let cause = match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                "it or a part of its path is a file: move that away"
            }
            ErrorKind::PermissionDenied => "let the user of the server write there",
            ErrorKind::ReadOnlyFilesystem => "make the file system writable",
            _ => "make the folder",
        };
        Self {
            reason: error.to_string(),
            hint: format!("{cause}, or name another folder with 'state_dir' in the config file"),
        }
    }
}

/// Makes the folder of the stored state unless it exists.
///
/// # Errors
/// It neither exists nor can be made.
pub fn make_folder(folder: &Path) -> Result<(), UnusableFolder> {
    fs::create_dir_all(folder)?;
    Ok(())
}

/// Reads the newest state in the folder that can be read. Returns `None` when none was ever stored.
///
/// # Errors
/// There are files of which none can be read. To continue without a state would delete the
/// workloads of all agents.
// [impl->swdd~server-keeps-two-states~1]
pub fn open(folder: &Path) -> Result<Option<Found>, UnusableFolder> {
    let newest = folder.join(FILE);
    let new = folder.join(NEW_FILE);
    let previous = folder.join(PREVIOUS_FILE);
    // First, the newest state. It is in the new file if the last write ended before its renames.
    let unfinished = read(&new).ok(); // A file that was written in part counts as none.
    let reason = match (read(&newest), unfinished) {
        // All writes were finished.
        (Ok(state), None) => return Ok(Some(found(folder, state))),
        // The last write ended before its renames: do them now.
        (Ok(_), Some(state)) => {
            rename(&newest, &previous);
            rename(&new, &newest);
            return Ok(Some(found(folder, state)));
        }
        // The last write ended between its renames, or the state before it is damaged.
        (Err(reason), Some(state)) => {
            keep_damaged(folder, &reason);
            rename(&new, &newest);
            let warning = None;
            return Ok(Some(Found { state, warning }));
        }
        (Err(reason), None) => reason,
    };
    // Then, if it is missing or damaged, the state before it.
    let state = match read(&previous) {
        Ok(state) => state,
        Err(other) if is_missing(&reason) && is_missing(&other) => return Ok(None),
        Err(other) => {
            return Err(UnusableFolder {
                reason: format!(
                    "neither '{FILE}' ({reason}) nor '{PREVIOUS_FILE}' ({other}) can be read"
                ),
                hint: "restore one of them from a backup, or move both away to start without: agents then delete all \
                       workloads that are not in the startup manifest. Until then all workloads keep running"
                    .to_owned(),
            });
        }
    };
    let warning = format!(
        "the state stored last cannot be read ('{}': {reason}): the server has started with the one before. Check \
         what is desired, the last update may be lost; the next update ends this warning",
        newest.display()
    );
    keep_damaged(folder, &reason);
    // Finally, store two copies of the state again: the write keeps the renamed file as the
    // previous one. A failure is logged.
    rename(&previous, &newest);
    let _ = save(folder, &state);
    note_older_copy(folder, &state, &warning);
    Ok(Some(Found {
        state,
        warning: Some(warning),
    }))
}

/// The found state, with the warning of an earlier start that it is an older copy.
fn found(folder: &Path, state: Stored) -> Found {
    let warning = check_older_copy(folder, &state);
    Found { state, warning }
}

/// Keeps a newest state that cannot be read, if there is one.
fn keep_damaged(folder: &Path, reason: &io::Error) {
    if is_missing(reason) {
        return;
    }
    let newest = folder.join(FILE);
    log::error!(
        "The stored state '{}' cannot be read: {reason}. It is kept as '{DAMAGED_FILE}'.",
        newest.display()
    );
    rename(&newest, &folder.join(DAMAGED_FILE));
}

/// Keeps the warning that `state` is an older copy, for later starts. It applies until an update
/// changes the desired state. If it cannot be written, the server starts anyway.
fn note_older_copy(folder: &Path, state: &Stored, warning: &str) {
    if let Err(error) = write_older_copy(folder, state, warning) {
        log::error!(
            "Cannot write '{OLDER_COPY_FILE}': {error}; the next start does not warn any more."
        );
    }
}

fn write_older_copy(folder: &Path, state: &Stored, warning: &str) -> io::Result<()> {
    let checksum = desired_checksum(state)?;
    let path = folder.join(OLDER_COPY_FILE);
    fs::write(path, format!("{checksum}\n{warning}"))
}

/// Returns the warning that [`note_older_copy`] has kept, if it is about `state`. Otherwise removes
/// it: an update has changed the desired state.
fn check_older_copy(folder: &Path, state: &Stored) -> Option<String> {
    let path = folder.join(OLDER_COPY_FILE);
    let noted = fs::read_to_string(&path).ok()?;
    let (checksum, warning) = noted.split_once('\n')?;
    if desired_checksum(state).is_ok_and(|it| it == checksum) {
        return Some(warning.to_owned());
    }
    let _ = fs::remove_file(path); // If that fails, the next start removes it.
    None
}

/// A checksum of the desired state.
fn desired_checksum(state: &Stored) -> io::Result<String> {
    let desired = Stored {
        desired: state.desired.clone(),
        ..Stored::default()
    };
    Ok(hash_id(&text(&desired)?))
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Renames a file of the folder. A failure is only logged: the server can start without it.
fn rename(from: &Path, to: &Path) {
    if let Err(error) = fs::rename(from, to) {
        log::error!(
            "Cannot rename '{}' to '{}': {error}.",
            from.display(),
            to.display()
        );
    }
}

/// Locks the folder for this server. Returns `None` when another server has it.
///
/// A file in the folder is locked, not the folder: that may also have the server's socket, and is
/// locked then while any server starts.
///
/// # Errors
/// When the file can neither be made nor locked.
pub fn lock(folder: &Path) -> io::Result<Option<File>> {
    folder_lock::lock(
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(folder.join(LOCK_FILE))?,
    )
}

fn read(path: &Path) -> io::Result<Stored> {
    // Without a bound: several updates may make a state larger than each of them, and it was in
    // memory before.
    parse(&fs::read_to_string(path)?).map_err(io::Error::other)
}

/// Reads a text that [`text`] has written.
///
/// # Errors
/// It is another text.
pub fn parse(text: &str) -> Result<Stored, String> {
    let body = checked_file::body(HEADER, text)?;
    // A stored state may be nested a few levels deeper than the limit of the parser, which is
    // therefore disabled. The reader recurses, so a forged file must not be nested without end.
    if depth(body) > STORED_DEPTH_MAX {
        return Err(format!(
            "its maps and lists are nested more than {STORED_DEPTH_MAX} deep"
        ));
    }
    let mut json = serde_json::Deserializer::from_str(body);
    json.disable_recursion_limit();
    let node = Node::deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    let desired = desired_state_from_node(&node).map_err(|error| error.to_string())?;
    let updates = read_updates(&node);
    if let Some(updates) = &updates {
        check_numbers(updates)?;
    }
    let stopped = read_stopped(&node);
    Ok(Stored {
        desired,
        updates,
        stopped,
    })
}

fn read_stopped(node: &Node) -> BTreeSet<Name> {
    let mut stopped = BTreeSet::new();
    if let Some(Node::List(names)) = node.get(STOPPED) {
        for name in names {
            stopped.extend(name.as_text().map(Name::from));
        }
    }
    stopped
}

/// Reads the guarded updates. Updates of another version are forgotten, so that the state is not
/// lost because of them.
fn read_updates(node: &Node) -> Option<StoredUpdates> {
    match node.get(UPDATES)?.read(UPDATES) {
        Ok(updates) => Some(updates),
        Err(error) => {
            log::warn!("Guarded updates of the stored state are forgotten: {error}");
            None
        }
    }
}

/// Checks all numbers of stored updates: the server calculates with them.
fn check_numbers(updates: &StoredUpdates) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for StoredUpdate { number, update } in &updates.list {
        if !known.insert(*number) {
            return Err(format!("it has two updates with the number {number}"));
        }
        check_counts(*number, update)?;
    }
    let newest = known.last().copied().unwrap_or_default();
    let highest = newest.max(updates.newest);
    if highest > UPDATE_NUMBER_MAX {
        return Err(format!(
            "it has an update with the number {highest}; the highest one is {UPDATE_NUMBER_MAX}"
        ));
    }
    Ok(())
}

/// Checks the numbers in a stored update, which are counts of 32 bits.
fn check_counts(number: u64, node: &Node) -> Result<(), String> {
    match node {
        Node::Number(count) if u32::try_from(*count).is_err() => {
            return Err(format!(
                "update {number} has the count {count}; the highest one is {}",
                u32::MAX
            ));
        }
        Node::Number(_) | Node::Text(_) => {}
        Node::List(items) => {
            for item in items {
                check_counts(number, item)?;
            }
        }
        Node::Map(entries) => {
            for value in entries.values() {
                check_counts(number, value)?;
            }
        }
    }
    Ok(())
}

/// The depth to which maps and lists are nested in a text of JSON.
fn depth(json: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    let mut in_text = false;
    let mut escaped = false;
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The stored text of a state.
///
/// # Errors
/// None in practice: a state has nothing that JSON could not hold.
pub fn text(state: &Stored) -> Result<String, serde_json::Error> {
    let mut node = state.desired.node(Rendering::Sparse);
    if let Some(updates) = &state.updates
        && let Node::Map(entries) = &mut node
    {
        let updates = Node::deserialize(serde_json::to_value(updates)?)?;
        entries.insert(UPDATES, updates);
    }
    if !state.stopped.is_empty()
        && let Some(entries) = node.as_map_mut()
    {
        let names = state.stopped.iter().map(|name| Node::text(&**name));
        entries.insert(STOPPED, Node::List(names.collect()));
    }
    let body = serde_json::to_string(&node)?;
    Ok(checked_file::text(HEADER, &body))
}

/// A task of the writer.
#[derive(Debug)]
enum Job {
    /// Store the state after an update, or after the outcome of one.
    Store(Stored),
    /// Store the state of the start, which no update has changed.
    StoreStart(Stored),
    /// Check that the folder can be written.
    Check,
}

/// Body of the thread `store`.
#[derive(Debug)]
struct StateWriter {
    folder: PathBuf,
    history: HistoryFile,
    /// The job that has failed and is tried again.
    failed: Option<Job>,
    report: WriterReport,
    reports: Sender<WriterReport>,
    /// The server's end, to remove a report that a newer one replaces.
    outdated: Receiver<WriterReport>,
}

impl StateWriter {
    /// The writer, and the channel of its reports.
    fn new(folder: PathBuf) -> (Self, Receiver<WriterReport>) {
        let (reports, outdated) = bounded(1);
        let writer = Self {
            history: HistoryFile::new(folder.clone()),
            folder,
            failed: None,
            report: WriterReport::default(),
            reports,
            outdated: outdated.clone(),
        };
        (writer, outdated)
    }

    /// Writes states and lines of changes until the server drops its end. A state that cannot be
    /// written is tried again, unless a newer one comes.
    fn run(
        mut self,
        states: &Receiver<StateWrite>,
        changes: &Receiver<String>,
        clock: &impl Clock,
    ) {
        loop {
            let next = self.next_state(states, changes, clock);
            let failed = self.failed.take();
            match next {
                Ok(StateWrite {
                    state,
                    number,
                    attempted,
                }) => {
                    self.report.attempted = number;
                    self.attempt(Job::Store(state));
                    drop(attempted); // Wakes the server, if it waits for that.
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(job) = failed {
                        self.attempt(job);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    for lines in changes.try_iter() {
                        self.history.append(&lines);
                    }
                    if let Some(job) = failed {
                        let _ = self.carry_out(&job); // The error was logged before.
                    }
                    return;
                }
            }
        }
    }

    /// Waits for the next state, and appends the lines that come before it.
    ///
    /// # Errors
    /// `Timeout`: the failed job has to be tried again. `Disconnected`: the server has ended.
    fn next_state(
        &mut self,
        states: &Receiver<StateWrite>,
        changes: &Receiver<String>,
        clock: &impl Clock,
    ) -> Result<StateWrite, RecvTimeoutError> {
        let retry = match &self.failed {
            None => never(),
            Some(_) => at(clock.now() + STORE_RETRY),
        };
        let mut changes = changes.clone();
        loop {
            select_biased! { // The state first: it is needed.
                recv(states) -> state => return state.map_err(|_| RecvTimeoutError::Disconnected),
                recv(retry) -> _ => return Err(RecvTimeoutError::Timeout),
                recv(changes) -> lines => match lines {
                    Ok(lines) => self.history.append(&lines),
                    Err(_) => changes = never(),
                },
            }
        }
    }

    /// Does `job`, keeps it for a retry if it fails, and reports the result.
    fn attempt(&mut self, job: Job) {
        match self.carry_out(&job) {
            Ok(is_newer) => {
                if self.report.fault.take().is_some() {
                    log::info!(
                        "The state can be stored in '{}' again.",
                        self.folder.display()
                    );
                }
                self.report.has_stored |= is_newer;
            }
            Err(error) => {
                self.log_failure(&job, &error);
                let since = match self.report.fault.take() {
                    Some(earlier) => earlier.since,
                    None => SystemTime::now(),
                };
                self.report.fault = Some(StoreFault {
                    cause: error.to_string(),
                    since,
                });
                self.failed = Some(job);
            }
        }
        if let Err(TrySendError::Full(report)) = self.reports.try_send(self.report.clone()) {
            // Empty: the server has just taken it. There is room in both cases.
            let _ = self.outdated.try_recv();
            let _ = self.reports.try_send(report);
        }
    }

    /// Does a job once. Returns whether it has stored another state than the older copy with which
    /// the server has started.
    fn carry_out(&self, job: &Job) -> io::Result<bool> {
        match job {
            Job::Store(state) => return write_update(&self.folder, state),
            Job::StoreStart(state) => write(&self.folder, state)?,
            Job::Check => check(&self.folder)?,
        }
        Ok(false)
    }

    fn log_failure(&self, job: &Job, error: &io::Error) {
        if matches!(job, Job::Check) {
            log::error!(
                "Cannot write into state_dir '{}': {error}. Trying again in {STORE_RETRY:?}; what is accepted until it \
                 can be written is lost when the server is restarted. Make room there or make it writable.",
                self.folder.display()
            );
        } else {
            log_unstored(&self.folder, error);
        }
    }
}

fn log_unstored(folder: &Path, error: &io::Error) {
    log::error!(
        "Cannot store the state in '{}': {error}. Trying again in {STORE_RETRY:?}; a restart of the server would go back \
         to the state stored before.",
        folder.display()
    );
}

/// Replaces the stored state. Returns whether that succeeded; if not, the reason is logged.
fn save(folder: &Path, state: &Stored) -> bool {
    let written = write(folder, state);
    if let Err(error) = &written {
        log_unstored(folder, error);
    }
    written.is_ok()
}

/// Checks that a state could be stored. The file is not synced, so it does not reach the disk
/// unless its removal fails.
fn check(folder: &Path) -> io::Result<()> {
    let path = folder.join(CHECK_FILE);
    let written = fs::write(&path, [0; CHECK_BYTES]);
    let _ = fs::remove_file(&path); // If that fails, the next check overwrites it.
    written
}

/// Replaces the stored state.
fn write(folder: &Path, state: &Stored) -> io::Result<()> {
    write_new(folder, state)?;
    rename_new(folder)
}

/// Replaces the stored state after an update, or after the outcome of a guarded one. Returns
/// whether it desires something else than the older copy with which the server has started.
fn write_update(folder: &Path, state: &Stored) -> io::Result<bool> {
    write_new(folder, state)?;
    // This also removes the warning about the older copy, if the state is not that copy.
    let is_older_copy = check_older_copy(folder, state).is_some();
    rename_new(folder)?;
    Ok(!is_older_copy)
}

/// Writes a state to the disk, beside the earlier files.
fn write_new(folder: &Path, state: &Stored) -> io::Result<()> {
    checked_file::write_new(&folder.join(NEW_FILE), &text(state)?)
}

/// Makes the file of [`write_new`] the newest state.
fn rename_new(folder: &Path) -> io::Result<()> {
    for (from, to) in RENAMES {
        match fs::rename(folder.join(from), folder.join(to)) {
            // Before the first write there is no earlier state.
            Err(error) if from == FILE && is_missing(&error) => {}
            renamed => renamed?,
        }
    }
    // The new names are on the disk only when the folder is.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::workload::ConfigItem;

    impl StateStore {
        /// Without a writer that ever takes a state, as while the disk hangs.
        pub(crate) fn hanging() -> (Self, Receiver<StateWrite>) {
            let (store, states) = Self::without_writer();
            (
                Self {
                    has_writer: true,
                    ..store
                },
                states,
            )
        }
    }

    fn state(name: &str) -> Stored {
        let yaml = format!(
            "{{apiVersion: v0.1, configs: {{k: {{a: ['1', {{x: y}}]}}}}, workloads: {{{name}: {{agent: '{{{{a}}}}', \
             runtime: podman, runtimeConfig: \"a: \\\"\\u0000\\u2028ä\\\\n\\\"\\nb\", restartPolicy: ALWAYS, \
             configs: {{a: k}}, dependencies: {{other: ADD_COND_FAILED}}, \
             files: [{{mountPoint: /a, binaryData: aGk=}}], \
             controlInterfaceAccess: {{denyRules: [{{type: LogRule, workloadNames: ['w*']}}]}}}}}}}}"
        );
        ankaios_model::manifest::Manifest::parse(&yaml)
            .unwrap()
            .into_desired_state()
            .unwrap()
            .into()
    }

    fn stored(folder: &Path) -> Option<Stored> {
        open(folder).unwrap().map(|found| found.state)
    }

    /// A folder with these files.
    fn folder_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
        folder
    }

    #[test]
    fn a_stored_state_is_read_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/below");
        make_folder(&path).unwrap();
        assert_eq!(stored(&path), None);
        for state in [state("a"), Stored::default(), state("b")] {
            write(&path, &state).unwrap();
            assert_eq!(stored(&path), Some(state));
        }
    }

    #[test]
    fn whatever_a_manifest_may_nest_can_be_stored() {
        let nested = |depth: usize| {
            let yaml = format!(
                "{{apiVersion: v1, configs: {{k: {}x{}}}}}",
                "[".repeat(depth),
                "]".repeat(depth)
            );
            ankaios_model::manifest::Manifest::parse(&yaml)
                .ok()?
                .into_desired_state()
                .ok()
        };
        let deepest = (1..2_000)
            .map_while(nested)
            .last()
            .expect("some depth is allowed");
        assert!(matches!(deepest.configs["k"], ConfigItem::List(_)));
        let deepest = Stored::from(deepest);
        assert_eq!(parse(&text(&deepest).unwrap()), Ok(deepest));
    }

    /// Damaged files that may be found in place of `whole`.
    fn damages(whole: &str) -> Vec<Vec<u8>> {
        let mut damaged: Vec<Vec<u8>> = (0..whole.len())
            .step_by(37)
            .map(|end| whole.as_bytes()[..end].to_vec())
            .collect();
        damaged.extend((0..whole.len()).step_by(31).map(|place| {
            let mut bytes = whole.to_owned().into_bytes();
            bytes[place] ^= 1;
            bytes
        }));
        damaged.extend((0..whole.len()).step_by(101).map(|place| {
            let mut bytes = whole.to_owned().into_bytes();
            bytes[place..].fill(0);
            bytes
        }));
        damaged.push(b"\xff\xfe".to_vec());
        damaged.push(whole.replace("state 1", "state 2").into_bytes());
        let body = r#"{"apiVersion":"v1","workloads":{"a":{}}}"#;
        damaged.push(format!("{HEADER}{}\n{body}", hash_id(body)).into_bytes());
        damaged
    }

    // [utest->swdd~server-keeps-two-states~1]
    #[test]
    fn unreadable_newest_state_is_replaced_by_the_previous_one() {
        let [before, whole] = ["a", "b"].map(|name| text(&state(name)).unwrap());
        for bytes in damages(&whole) {
            let folder = folder_with(&[
                (FILE, &bytes),
                (PREVIOUS_FILE, before.as_bytes()),
                (NEW_FILE, &bytes),
            ]);
            let Found {
                state: found,
                warning,
            } = open(folder.path()).unwrap().expect("a state");
            assert_eq!(found, state("a"), "{}", String::from_utf8_lossy(&bytes));
            let path = folder.path().join(FILE).display().to_string();
            assert!(warning.is_some_and(|text| text.contains(&path)));
            assert_eq!(fs::read(folder.path().join(DAMAGED_FILE)).unwrap(), bytes);
            let [newest, kept] = [FILE, PREVIOUS_FILE]
                .map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
            assert_eq!((&newest, &kept), (&before, &before), "there are two again");
            // Later starts warn as well, until an update has changed something.
            let again = open(folder.path()).unwrap().expect("a state");
            assert_eq!((again.state, again.warning.is_some()), (state("a"), true));
            // As if it had been stored last: the next write keeps it.
            write_update(folder.path(), &state("c")).unwrap();
            assert!(!folder.path().join(OLDER_COPY_FILE).exists());
            assert_eq!(
                open(folder.path()).unwrap(),
                Some(Found {
                    state: state("c"),
                    warning: None
                })
            );
            fs::write(folder.path().join(FILE), bytes).unwrap();
            assert_eq!(stored(folder.path()), Some(state("a")));
        }
    }

    #[test]
    fn folder_that_cannot_be_made_is_refused_with_a_way_out() {
        let outer = tempfile::tempdir().unwrap();
        let file = outer.path().join("file");
        fs::write(&file, "").unwrap();
        for folder in [file.clone(), file.join("below")] {
            let error = make_folder(&folder).unwrap_err();
            let expected = "it or a part of its path is a file: move that away, or name another folder with 'state_dir' in the config file";
            assert_eq!(error.hint, expected, "{error}");
        }
        make_folder(&outer.path().join("new/below")).unwrap();
    }

    #[test]
    fn unreadable_files_are_an_error_and_stay() {
        let whole = text(&state("a")).unwrap();
        let bad = &whole.as_bytes()[1..];
        for files in [
            &[(FILE, bad)][..],
            &[(PREVIOUS_FILE, bad)],
            &[(FILE, b""), (PREVIOUS_FILE, b"")],
        ] {
            let folder = folder_with(files);
            let error = open(folder.path()).unwrap_err();
            assert!(
                error.to_string().contains(FILE)
                    && error.hint.contains("backup")
                    && error.hint.contains("move both away"),
                "{error:?}"
            );
            assert!(
                files
                    .iter()
                    .all(|(name, bytes)| fs::read(folder.path().join(name)).unwrap() == *bytes)
            );
            // As it says.
            fs::write(folder.path().join(PREVIOUS_FILE), &whole).unwrap();
            assert_eq!(stored(folder.path()), Some(state("a")));
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FILE)).unwrap(); // Opens, but reading it fails.
        open(folder.path()).unwrap_err();
        assert!(folder.path().join(FILE).exists());
    }

    /// After each step of a write, with a new file that is there in part, and with a damaged newest
    /// file as well.
    #[test]
    fn power_cut_loses_at_most_the_state_being_written() {
        let new = text(&state("c")).unwrap();
        let first = text(&state("a")).unwrap();
        for (renames, end) in (0..=new.len())
            .step_by(50)
            .map(|end| (0, end))
            .chain((0..=2).map(|step| (step, new.len())))
        {
            for is_damaged in [false, true] {
                let folder = folder_with(&[(FILE, first.as_bytes())]);
                write(folder.path(), &state("b")).unwrap();
                let path = |name| folder.path().join(name);
                fs::write(path(NEW_FILE), &new[..end]).unwrap();
                RENAMES[..renames]
                    .iter()
                    .for_each(|(from, to)| fs::rename(path(from), path(to)).unwrap());
                if is_damaged && path(FILE).exists() {
                    fs::write(path(FILE), "").unwrap();
                }
                let Found {
                    state: found,
                    warning,
                } = open(folder.path()).unwrap().expect("a state");
                let is_new_whole = renames < 2 && end == new.len();
                let (expected, is_warned) = match (renames, is_damaged) {
                    _ if is_new_whole => ("c", false),
                    (0, true) => ("a", true),
                    (0, false) => ("b", false),
                    (2, true) => ("b", true),
                    _ => ("c", false),
                };
                let place = format!("{renames} renames, {end} bytes, damaged: {is_damaged}");
                assert_eq!(
                    (found, warning.is_some()),
                    (state(expected), is_warned),
                    "{place}"
                );
                // The used state is not lost by the next cut either, nor is the warning.
                fs::write(path(NEW_FILE), "").unwrap();
                let again = open(folder.path()).unwrap().expect("a state");
                assert_eq!(
                    (again.state, again.warning.is_some()),
                    (state(expected), is_warned),
                    "{place}"
                );
            }
        }
    }

    #[test]
    fn the_first_write_of_all_may_be_cut_off() {
        let whole = text(&state("a")).unwrap();
        assert_eq!(
            stored(folder_with(&[(NEW_FILE, &whole.as_bytes()[..50])]).path()),
            None
        );
        assert_eq!(
            stored(folder_with(&[(NEW_FILE, whole.as_bytes())]).path()),
            Some(state("a"))
        );
    }

    #[test]
    fn updates_of_another_version_are_forgotten_without_the_state() {
        for updates in [
            r#""none""#,
            r#"{"newest": 3}"#,
            r#"{"newest": 3, "list": [{"number": "3"}]}"#,
        ] {
            let body = format!(r#"{{"apiVersion": "v1", "updates": {updates}}}"#);
            let stored = parse(&format!("{HEADER}{}\n{body}", hash_id(&body))).unwrap();
            assert_eq!(
                (stored.desired.api_version.as_str(), stored.updates),
                ("v1", None),
                "{updates}"
            );
        }
    }

    /// The state of version 1.1 with `from` replaced by `to`, and the right checksum.
    fn version_1_1_with(from: &str, to: &str) -> String {
        let (_, body) = include_str!("../../tests/stored/version-1.1.json")
            .split_once('\n')
            .unwrap();
        let changed = body.replacen(from, to, 1);
        assert_ne!(changed, body);
        format!("{HEADER}{}\n{changed}", hash_id(&changed))
    }

    #[test]
    fn stored_number_beyond_its_bound_makes_the_state_unreadable() {
        for (from, to, reason) in [
            (
                r#""number":2"#,
                r#""number":18446744073709551615"#,
                "the number 18446744073709551615",
            ),
            (
                r#""newest":2"#,
                r#""newest":18446744073709551615"#,
                "the number 18446744073709551615",
            ),
            (
                r#""newest":2"#,
                r#""newest":9007199254740993"#,
                "the highest one is 9007199254740992",
            ),
            (
                r#""number":2"#,
                r#""number":1"#,
                "two updates with the number 1",
            ),
            (
                r#""losses":0"#,
                r#""losses":4294967296"#,
                "update 2 has the count 4294967296",
            ),
            (
                r#""losses":0"#,
                r#""losses":-1"#,
                "invalid type: integer `-1`",
            ),
            (
                r#""newest":2"#,
                r#""newest":18446744073709551616"#,
                "invalid type: floating point",
            ),
        ] {
            let text = version_1_1_with(from, to);
            let error = parse(&text).unwrap_err();
            assert!(error.contains(reason), "{error}");
            // So it is a state that cannot be read: the one before it is used.
            let before = super::text(&state("a")).unwrap();
            let folder =
                folder_with(&[(FILE, text.as_bytes()), (PREVIOUS_FILE, before.as_bytes())]);
            let found = open(folder.path()).unwrap().expect("a state");
            assert!(
                found.state == state("a")
                    && found
                        .warning
                        .is_some_and(|warning| warning.contains(reason))
            );
        }
    }

    #[test]
    fn highest_stored_numbers_are_read_and_stay_readable() {
        let newest = format!("\"newest\":{UPDATE_NUMBER_MAX}");
        let text = version_1_1_with("\"newest\":2", &newest);
        let mut server = crate::ServerLoop::new();
        server.start_again_with(parse(&text).unwrap()).unwrap();
        assert!(parse(&super::text(&server.stored()).unwrap()).is_ok());
        parse(&version_1_1_with(r#""losses":0"#, r#""losses":4294967295"#)).unwrap();
    }

    #[test]
    fn a_file_of_version_1_1_is_still_read() {
        let written = include_str!("../../tests/stored/version-1.1.json");
        let stored = parse(written).unwrap();
        let workloads: Vec<&str> = stored
            .desired
            .workloads
            .keys()
            .map(|name| &**name)
            .collect();
        assert_eq!(
            (workloads, stored.desired.configs.len()),
            (vec!["db", "spare", "web"], 3)
        );
        assert_eq!(text(&stored).unwrap(), written, "nothing of it is left out");
        let mut server = crate::ServerLoop::new();
        server.start_again_with(stored).unwrap();
        let phases: Vec<String> = server
            .seen_updates()
            .values()
            .map(|update| update.phase.to_string())
            .collect();
        assert_eq!(phases, ["GOOD", "STAGING"]);
    }

    // [utest->swdd~server-waits-little-for-its-disk~1]
    #[test]
    fn the_server_waits_for_the_disk_at_most_a_second_in_any_ten() {
        let period = Duration::from_secs(10);
        for slowness in [1, 7, 60, 499, 500, 10_000].map(Duration::from_millis) {
            let (mut store, _states) = StateStore::without_writer();
            let start = SystemClock.now();
            let mut waits: Vec<(Duration, Duration)> = Vec::new();
            let mut now = Duration::ZERO;
            while now < 3 * period {
                let time = store.wait_left(start + now).min(slowness);
                store.waited(start + now, start + now + time);
                waits.push((now, time));
                now += time + Duration::from_millis(20);
            }
            for (from, _) in &waits {
                let within = waits
                    .iter()
                    .filter(|(at, _)| at >= from && *at < *from + period);
                let waited: Duration = within
                    .map(|(at, time)| (*time).min(*from + period - *at))
                    .sum();
                assert!(
                    waited <= Duration::from_secs(1),
                    "{waited:?} from {from:?} on, {slowness:?} each"
                );
            }
            assert_eq!(
                waits[0].1,
                slowness.min(STORE_WAIT),
                "a sound disk is waited for"
            );
        }
    }

    #[test]
    fn only_the_newest_of_the_waiting_states_is_written() {
        let (mut store, states) = StateStore::without_writer();
        for name in ["a", "b", "c"] {
            store.store(state(name));
        }
        assert_eq!(states.try_recv().unwrap().state, state("c"));
        assert!(states.try_recv().is_err());
    }

    #[test]
    fn the_last_state_is_on_disk_when_the_thread_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, thread) = StateStore::start(folder.path().to_owned(), None).unwrap();
        for name in ["a", "b", "c", "d"] {
            store.store(state(name));
        }
        drop(store);
        assert!(threads::join_all([thread], Duration::from_secs(180)).is_empty());
        assert_eq!(stored(folder.path()), Some(state("d")));
    }

    #[test]
    fn a_write_that_failed_is_made_up_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone");
        let (mut store, states) = StateStore::without_writer();
        store.store(state("a"));
        // The folder comes back while the writer waits for its next try, which the end of the
        // server brings about.
        let (begun, wait) = bounded(0);
        let (writer_path, owner) = (path.clone(), store);
        let writer = threads::spawn("store", STACK_LARGE, move || {
            let _begun = begun;
            StateWriter::new(writer_path)
                .0
                .run(&states, &never(), &SystemClock);
        })
        .unwrap();
        while owner.newest.is_full() {
            std::thread::yield_now();
        }
        fs::create_dir(&path).unwrap();
        drop(owner);
        let _: Result<(), _> = wait.recv();
        assert!(threads::join_all([writer], Duration::from_secs(180)).is_empty());
        assert_eq!(stored(&path), Some(state("a")));
    }
    /// A folder into which nothing can be written, also by root: what would be written is a folder.
    fn unwritable_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in [NEW_FILE, CHECK_FILE] {
            fs::create_dir_all(folder.path().join(name).join("kept")).unwrap();
        }
        folder
    }

    fn make_writable(folder: &Path) {
        for name in [NEW_FILE, CHECK_FILE] {
            fs::remove_dir_all(folder.join(name)).unwrap();
        }
    }

    // [utest->swdd~server-warns-of-unstored-state~1]
    #[test]
    fn read_only_store_folder_is_warned_of_from_the_start() {
        let folder = unwritable_folder();
        let (mut store, thread) = StateStore::start(folder.path().to_owned(), None).unwrap();
        let first = store.warning().expect("the start tries it");
        let path = folder.path().display().to_string();
        assert!(
            first.contains(&path) && first.contains("Is a directory") && first.contains("since 2"),
            "{first}"
        );
        store.store_and_wait(state("a"));
        store.take_report();
        assert_eq!(
            store.warning(),
            Some(first),
            "it is the same fault, of the same time"
        );
        assert!(!store.has_stored());
        make_writable(folder.path());
        store.store_and_wait(state("b"));
        store.take_report();
        assert_eq!((store.warning(), store.has_stored()), (None, true));
        drop(store);
        assert!(threads::join_all([thread], Duration::from_secs(180)).is_empty());
    }

    #[test]
    fn failed_check_is_repeated_without_storing_the_startup_state() {
        let folder = unwritable_folder();
        let (mut writer, _reports) = StateWriter::new(folder.path().to_owned());
        writer.attempt(Job::Check);
        assert!(writer.report.fault.is_some());
        make_writable(folder.path());
        let job = writer.failed.take().expect("it is tried again");
        writer.attempt(job);
        assert_eq!(
            (writer.report, writer.failed.is_none()),
            (WriterReport::default(), true)
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn state_of_the_start_is_no_stored_update() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _thread) =
            StateStore::start(folder.path().to_owned(), Some(state("a"))).unwrap();
        assert_eq!(
            (stored(folder.path()), store.has_stored()),
            (Some(state("a")), false)
        );
        store.store_and_wait(state("b"));
        store.take_report();
        assert!(store.has_stored());
    }

    /// The outcome of a guarded update is stored as well, and does not change the desired state.
    #[test]
    fn older_copy_is_warned_of_until_something_else_is_desired() {
        let folder = tempfile::tempdir().unwrap();
        note_older_copy(folder.path(), &state("a"), "an older state");
        let (mut writer, _reports) = StateWriter::new(folder.path().to_owned());
        let updates = Some(StoredUpdates {
            newest: 1,
            list: Vec::new(),
        });
        writer.attempt(Job::Store(Stored {
            updates: updates.clone(),
            ..state("a")
        }));
        assert!(!writer.report.has_stored);
        let found = open(folder.path()).unwrap().expect("a state");
        assert_eq!(
            (found.state.updates, found.warning.as_deref()),
            (updates, Some("an older state"))
        );
        writer.attempt(Job::Store(state("b")));
        assert!(writer.report.has_stored);
        writer.attempt(Job::Store(state("a")));
        assert_eq!(
            open(folder.path()).unwrap().and_then(|found| found.warning),
            None
        );
    }

    #[test]
    fn write_that_does_not_end_is_warned_of() {
        let (mut store, _states) = StateStore::hanging();
        store.store(state("a"));
        assert_eq!(store.warning(), None, "any write needs a moment");
        store.busy_since = store
            .busy_since
            .and_then(|since| since.checked_sub(STORE_SLOW));
        assert!(
            store
                .warning()
                .is_some_and(|text| text.contains("busy storing the state for 10 s"))
        );
    }

    /// Updates may come faster than the disk stores them, one after the other.
    #[test]
    fn disk_that_stores_one_state_after_another_does_not_hang() {
        let (mut store, _states) = StateStore::hanging();
        let (writer, reports) = bounded(1);
        store.reports = reports;
        store.store(state("a"));
        store.store(state("b"));
        store.busy_since = store
            .busy_since
            .and_then(|since| since.checked_sub(STORE_SLOW));
        writer
            .send(WriterReport {
                attempted: 1,
                ..WriterReport::default()
            })
            .unwrap();
        store.take_report();
        assert_eq!(store.warning(), None);
        // A job that is tried again is none that ends.
        store.busy_since = store
            .busy_since
            .and_then(|since| since.checked_sub(STORE_SLOW));
        writer
            .send(WriterReport {
                attempted: 1,
                ..WriterReport::default()
            })
            .unwrap();
        store.take_report();
        assert!(store.warning().is_some());
    }
}
