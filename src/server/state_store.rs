//! Keeps the desired state over restarts of the server, when `state_dir` is set.
//!
//! The file holds one line with a checksum of the rest, then the state as JSON. It is replaced as a whole: a new file
//! is written, brought to the disk and renamed, so that a crash leaves either the old or the new one.
//!
//! Thread: `store` writes; [`StateStore`] belongs to `server`, which waits for the disk only before a staged update is carried
//! out; `main` reads at the start.
//! Owns: the files in the folder. Takes: accepted states, of which only the newest is written.

use crate::limits::{STACK_LARGE, STORE_RETRY, STORED_DEPTH_MAX};
use crate::model::complete_state::{DesiredState, Rendering, desired_state_from_node};
use crate::model::names::hash_id;
use crate::model::node::Node;
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::folder_lock;
use crate::platform::threads::{self, Thread};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The stored state.
pub const FILE: &str = "desired-state.json";
/// A state that is being written; means nothing when it is found at the start.
const NEW_FILE: &str = "desired-state.json.new";
/// Locked as long as a server uses the folder; empty.
const LOCK_FILE: &str = "lock";
/// A stored state that cannot be used is renamed to this, to be inspected.
pub const DAMAGED_FILE: &str = "desired-state.json.damaged";
/// Before the checksum in the first line.
const HEADER: &str = "ankaios-lite desired state 1 sha256:";

/// The key of guarded updates in the file; earlier servers ignore it.
const UPDATES: &str = "updates";

/// The keys below it.
const NEWEST_UPDATE: &str = "newest";
const UPDATE_LIST: &str = "list";

/// A guarded update as it is stored, with its number.
pub type StoredUpdate = (u64, Arc<Node>);

/// What is kept over restarts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    /// What users asked for.
    pub desired: DesiredState,
    /// The newest number of a guarded update, and those that are known, with their numbers; `None` when there was none.
    pub updates: Option<(u64, Vec<StoredUpdate>)>,
}

impl From<DesiredState> for Stored {
    fn from(desired: DesiredState) -> Self {
        Self { desired, updates: None }
    }
}

/// A state to be written.
#[derive(Debug)]
pub struct StateWrite {
    /// What.
    pub state: Stored,
    /// Dropped when that was tried.
    tried: Option<Sender<()>>,
}

/// The server's end of the `store` thread.
#[derive(Debug)]
pub struct StateStore {
    newest: Sender<StateWrite>,
    /// The writer's end, to remove a state that a newer one replaces.
    outdated: Receiver<StateWrite>,
    /// Whether somebody writes.
    is_attended: bool,
}

impl StateStore {
    /// Starts the thread that writes into `folder`.
    ///
    /// # Errors
    /// The operating system's reason when no thread can be had.
    pub fn start(folder: PathBuf) -> io::Result<(Self, Thread)> {
        let (mut store, states) = Self::unattended();
        store.is_attended = true;
        let thread = threads::spawn("store", STACK_LARGE, move || write_all(&folder, &states, &SystemClock))?;
        Ok((store, thread))
    }

    /// Without a thread: the states come out of the other end.
    pub(crate) fn unattended() -> (Self, Receiver<StateWrite>) {
        let (newest, states) = bounded(1);
        (Self { newest, outdated: states.clone(), is_attended: false }, states)
    }

    /// Gives the writer a state; never waits. One that it has not begun to write is replaced.
    pub fn store(&self, state: Stored) {
        self.put(StateWrite { state, tried: None });
    }

    /// As [`Self::store`], and waits until the writer has tried it, at most for `limit`.
    pub fn store_and_wait(&self, state: Stored, limit: Duration) {
        let (tried, wait) = bounded(1);
        self.put(StateWrite { state, tried: Some(tried) });
        if self.is_attended && wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            log::warn!("The state was not stored within {limit:?}; going on without waiting for the disk.");
        }
    }

    fn put(&self, write: StateWrite) {
        if let Err(TrySendError::Full(write)) = self.newest.try_send(write) {
            let _ = self.outdated.try_recv(); // Empty: the writer has just taken it. There is room in both cases.
            let _ = self.newest.try_send(write);
        }
    }
}

/// Makes the folder and reads the state stored in it. Returns `None` after renaming a file that holds something else:
/// only then there is nothing to lose.
///
/// # Errors
/// When the folder neither exists nor can be made, or when the file is there but cannot be read.
pub fn open(folder: &Path) -> io::Result<Option<Stored>> {
    fs::create_dir_all(folder)?;
    let path = folder.join(FILE);
    match read(&path) {
        Ok(state) => Ok(Some(state)),
        Err(Unusable::Missing) => Ok(None),
        Err(Unusable::Unread(error)) => Err(io::Error::new(error.kind(), format!("'{}': {error}", path.display()))),
        Err(Unusable::Damaged(reason)) => {
            set_aside(folder, &reason);
            Ok(None)
        }
    }
}

/// Makes the folder and locks it for one server, by a file in it: the folder itself may be that of the server's socket,
/// which is locked while another server starts. `None` when another server has it.
///
/// # Errors
/// When the file can neither be made nor locked.
pub fn lock(folder: &Path) -> io::Result<Option<File>> {
    fs::create_dir_all(folder)?;
    folder_lock::lock(
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(folder.join(LOCK_FILE))?,
    )
}

/// Puts the stored state away, because it cannot be used.
fn set_aside(folder: &Path, reason: &str) {
    let (path, aside) = (folder.join(FILE), folder.join(DAMAGED_FILE));
    let moved = match fs::rename(&path, &aside) {
        Ok(()) => format!("It is now '{}'", aside.display()),
        Err(error) => format!("It cannot be renamed: {error}"),
    };
    log::error!("The stored state '{}' cannot be used: {reason}. {moved}.", path.display());
}

/// Why there is no stored state.
#[derive(Debug)]
enum Unusable {
    Missing,
    /// It may be fine; another try may succeed.
    Unread(io::Error),
    /// It is not what was written.
    Damaged(String),
}

fn read(path: &Path) -> Result<Stored, Unusable> {
    // Without a bound: several updates lead to a state that is larger than each of them, and it was in memory before.
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::Unread(error),
    })?;
    let text = String::from_utf8(bytes).map_err(|error| Unusable::Damaged(error.to_string()))?;
    parse(&text).map_err(Unusable::Damaged)
}

/// Reads what [`text`] has written.
///
/// # Errors
/// Why it is not that.
pub fn parse(text: &str) -> Result<Stored, String> {
    let (header, body) = text.split_once('\n').ok_or("it has no first line")?;
    let checksum = header.strip_prefix(HEADER).ok_or("its first line is not the one of a stored state")?;
    if checksum != hash_id(body) {
        return Err("its checksum is wrong".to_owned());
    }
    // Our own text, as deep as some manifest may have been: at most a few levels above the limit of the parser. The
    // reader recurses, so a file that somebody has made must not be deeper than that.
    if depth(body) > STORED_DEPTH_MAX {
        return Err(format!("its maps and lists are nested more than {STORED_DEPTH_MAX} deep"));
    }
    let mut json = serde_json::Deserializer::from_str(body);
    json.disable_recursion_limit();
    let node = Node::deserialize(&mut json).and_then(|node| json.end().map(|()| node));
    let node = node.map_err(|error| error.to_string())?;
    let desired = desired_state_from_node(&node).map_err(|error| error.to_string())?;
    Ok(Stored { desired, updates: node.get(UPDATES).map(updates_from_node) })
}

/// How deep maps and lists are nested in a text of JSON.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
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

/// The updates as a part of the stored state.
fn updates_node(newest: u64, updates: &[StoredUpdate]) -> Node {
    // In the order in which they have ended, the open ones first.
    let one = |(number, update): &(u64, Arc<Node>)| {
        let number = ("number", Node::Number(*number));
        Node::object([number, ("update", Node::clone(update))])
    };
    Node::object([(NEWEST_UPDATE, Node::Number(newest)), (UPDATE_LIST, Node::List(updates.iter().map(one).collect()))])
}

/// Reads what [`updates_node`] has made; what is not that is left out.
fn updates_from_node(node: &Node) -> (u64, Vec<(u64, Arc<Node>)>) {
    let newest = node.get(NEWEST_UPDATE).and_then(Node::as_number).unwrap_or_default();
    let one = |item: &Node| Some((item.get("number")?.as_number()?, Arc::new(item.get("update")?.clone())));
    let list = node.get(UPDATE_LIST).and_then(Node::as_list).unwrap_or_default();
    (newest, list.iter().filter_map(one).collect())
}

/// What is stored of a state.
///
/// # Errors
/// None in practice: a state has nothing that JSON could not hold.
pub fn text(state: &Stored) -> Result<String, serde_json::Error> {
    let mut node = state.desired.node(Rendering::Sparse);
    if let (Some((newest, updates)), Some(entries)) = (&state.updates, node.as_map_mut()) {
        entries.insert(UPDATES, updates_node(*newest, updates));
    }
    let body = serde_json::to_string(&node)?;
    Ok(format!("{HEADER}{}\n{body}", hash_id(&body)))
}

/// Writes states until the server drops its end. What fails is tried again, unless a newer state comes.
fn write_all(folder: &Path, states: &Receiver<StateWrite>, clock: &impl Clock) {
    let mut failed: Option<Stored> = None;
    loop {
        let next = match failed.take() {
            None => states.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(old) => match states.recv_deadline(clock.now() + STORE_RETRY) {
                Err(RecvTimeoutError::Timeout) => Ok(StateWrite { state: old, tried: None }),
                Err(RecvTimeoutError::Disconnected) => {
                    // The last try; the error was logged before.
                    let _ = write(folder, &old);
                    return;
                }
                newer => newer,
            },
        };
        let Ok(StateWrite { state, tried }) = next else { return };
        if !save(folder, &state) {
            failed = Some(state);
        }
        drop(tried); // Wakes who waits for it.
    }
}

/// Replaces the stored state. Returns whether that succeeded; if not, the reason is logged.
pub fn save(folder: &Path, state: &Stored) -> bool {
    let written = write(folder, state);
    if let Err(error) = &written {
        log::error!(
            "Cannot store the state in '{}': {error}. Trying again in {STORE_RETRY:?}; a restart of the server \
             would go back to the state stored before.",
            folder.display()
        );
    }
    written.is_ok()
}

/// Replaces the stored state.
fn write(folder: &Path, state: &Stored) -> io::Result<()> {
    let (new, path) = (folder.join(NEW_FILE), folder.join(FILE));
    // Runtime configurations and files may hold secrets, so it is for the server alone.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text(state)?.as_bytes())?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, &path)?;
    // The new name is on the disk only when the folder is.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::workload::ConfigItem;

    fn state(name: &str) -> Stored {
        let yaml = format!(
            "{{apiVersion: v0.1, configs: {{k: {{a: ['1', {{x: y}}]}}}}, workloads: {{{name}: {{agent: '{{{{a}}}}', \
             runtime: podman, runtimeConfig: \"a: \\\"\\u0000\\u2028ä\\\\n\\\"\\nb\", restartPolicy: ALWAYS, \
             configs: {{a: k}}, dependencies: {{other: ADD_COND_FAILED}}, \
             files: [{{mountPoint: /a, binaryData: aGk=}}], \
             controlInterfaceAccess: {{denyRules: [{{type: LogRule, workloadNames: ['w*']}}]}}}}}}}}"
        );
        crate::model::manifest::Manifest::parse(&yaml).unwrap().into_desired_state().unwrap().into()
    }

    fn stored(folder: &Path) -> Option<Stored> {
        open(folder).unwrap()
    }

    #[test]
    fn a_stored_state_is_read_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/below");
        assert_eq!(stored(&path), None);
        for state in [state("a"), Stored::default(), state("b")] {
            write(&path, &state).unwrap();
            assert_eq!(stored(&path), Some(state));
        }
    }

    #[test]
    fn whatever_a_manifest_may_nest_can_be_stored() {
        let nested = |depth: usize| {
            let yaml = format!("{{apiVersion: v1, configs: {{k: {}x{}}}}}", "[".repeat(depth), "]".repeat(depth));
            crate::model::manifest::Manifest::parse(&yaml).ok()?.into_desired_state().ok()
        };
        let deepest = (1..2_000).map_while(nested).last().expect("some depth is allowed");
        assert!(matches!(deepest.configs["k"], ConfigItem::List(_)));
        let deepest = Stored::from(deepest);
        assert_eq!(parse(&text(&deepest).unwrap()), Ok(deepest));
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let whole = text(&state("a")).unwrap();
        let mut damaged: Vec<Vec<u8>> =
            (0..whole.len()).step_by(7).map(|end| whole.as_bytes()[..end].to_vec()).collect();
        damaged.extend((0..whole.len()).step_by(5).map(|place| {
            let mut bytes = whole.clone().into_bytes();
            bytes[place] ^= 1;
            bytes
        }));
        damaged.push(b"\xff\xfe".to_vec());
        let body = r#"{"apiVersion":"v1","workloads":{"a":{}}}"#;
        damaged.push(format!("{HEADER}{}\n{body}", hash_id(body)).into_bytes());
        let folder = tempfile::tempdir().unwrap();
        for bytes in damaged {
            fs::write(folder.path().join(FILE), &bytes).unwrap();
            assert_eq!(stored(folder.path()), None, "{}", String::from_utf8_lossy(&bytes));
            assert_eq!(fs::read(folder.path().join(DAMAGED_FILE)).unwrap(), bytes);
            assert!(!folder.path().join(FILE).exists());
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::create_dir(&path).unwrap(); // Opens, but reading it fails.
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(path.exists() && !folder.path().join(DAMAGED_FILE).exists());
    }

    #[test]
    fn a_write_that_was_interrupted_leaves_the_state_before_it() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &state("a")).unwrap();
        fs::write(folder.path().join(NEW_FILE), &text(&state("b")).unwrap()[..99]).unwrap();
        assert_eq!(stored(folder.path()), Some(state("a")));
        write(folder.path(), &state("c")).unwrap();
        assert_eq!(stored(folder.path()), Some(state("c")));
    }

    #[test]
    fn only_the_newest_of_the_waiting_states_is_written() {
        let (store, states) = StateStore::unattended();
        for name in ["a", "b", "c"] {
            store.store(state(name));
        }
        assert_eq!(states.try_recv().unwrap().state, state("c"));
        assert!(states.try_recv().is_err());
    }

    #[test]
    fn the_last_state_is_on_disk_when_the_thread_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (store, thread) = StateStore::start(folder.path().to_owned()).unwrap();
        for name in ["a", "b", "c", "d"] {
            store.store(state(name));
        }
        drop(store);
        assert!(threads::join_all([thread], Duration::from_secs(60)).is_empty());
        assert_eq!(stored(folder.path()), Some(state("d")));
    }

    #[test]
    fn a_write_that_failed_is_made_up_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone");
        let (store, states) = StateStore::unattended();
        store.store(state("a"));
        // The folder comes back while the writer waits for its next try, which the end of the server brings about.
        let (begun, wait) = bounded(0);
        let (writer_path, owner) = (path.clone(), store);
        let writer = threads::spawn("store", STACK_LARGE, move || {
            let _begun = begun;
            write_all(&writer_path, &states, &SystemClock);
        })
        .unwrap();
        while owner.newest.is_full() {
            std::thread::yield_now();
        }
        fs::create_dir(&path).unwrap();
        drop(owner);
        let _: Result<(), _> = wait.recv();
        assert!(threads::join_all([writer], Duration::from_secs(60)).is_empty());
        assert_eq!(stored(&path), Some(state("a")));
    }
}
