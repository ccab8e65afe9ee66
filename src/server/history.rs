//! The last changes of states: what happened on all nodes, for `ank get events --since`.
//!
//! A change is another phase of an instance, an agent that connects or is lost, or a start of the
//! server. When an agent is lost, that is one change, and not one of each of its workloads.
//!
//! Thread: `server`; [`History`] is a plain value owned by [`crate::updates::Updates`]. `main`
//! reads the file at the start, and the thread `store` owns it then.

use ankaios_model::changes::{AGENT_CONNECTED, AGENT_LOST, SERVER_STARTED};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::limits::{CHANGES_KEPT, CHANGES_OF_ONE_MAX};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest kept additional info, in bytes: its beginning says what happened.
const INFO_MAX: usize = 200;
/// Lines of the file before it is written again without the oldest ones. So most changes only
/// append to it.
const LINES_MAX: usize = 3 * CHANGES_KEPT;
/// Longest file that is read, in bytes: more than [`LINES_MAX`] of the longest lines.
const FILE_MAX: u64 = 1024 * 1024;

/// The file with the changes in the folder of the stored state, one a line as JSON.
pub const FILE: &str = "state-changes.jsonl";
/// A shorter file that replaces it.
const NEW_FILE: &str = "state-changes.jsonl.new";

/// One change. Texts that do not apply are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Milliseconds since 1970 on the clock of the server's node.
    at: u64,
    agent: String,
    workload: String,
    id: String,
    state: String,
    info: String,
}

/// The last changes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    changes: VecDeque<Change>,
    /// Number of changes, the newest ones, that were not sent to the store yet.
    unstored: usize,
}

impl Change {
    fn of_instance(instance: &InstanceName, state: &ExecutionState) -> Self {
        let info = &*state.additional_info;
        Self {
            agent: instance.agent.to_string(),
            workload: instance.workload.to_string(),
            id: instance.id.to_string(),
            state: state.phase.to_string(),
            info: info[..info.floor_char_boundary(INFO_MAX)].to_owned(),
            ..Self::default()
        }
    }

    fn is_of(&self, instance: &InstanceName) -> bool {
        self.id == *instance.id
            && self.workload == *instance.workload
            && self.agent == *instance.agent
    }

    /// Returns whether both changes are of the same workload; others are of the same agent, or
    /// starts of the server.
    fn is_of_same(&self, other: &Self) -> bool {
        if self.workload.is_empty() {
            return other.workload.is_empty() && self.agent == other.agent;
        }
        self.workload == other.workload
    }

    /// The state without its sub-state.
    fn state_name(&self) -> &str {
        match self.state.split_once('(') {
            Some((name, _)) => name,
            None => &self.state,
        }
    }

    fn node(&self) -> Node {
        let texts = [
            ("agent", &self.agent),
            ("workload", &self.workload),
            ("id", &self.id),
            ("state", &self.state),
            ("info", &self.info),
        ];
        let mut fields = vec![("at", Node::Number(self.at))];
        for (key, text) in texts {
            if !text.is_empty() {
                fields.push((key, Node::text(text.as_str())));
            }
        }
        Node::object(fields)
    }
}

impl History {
    /// Takes over the changes that an earlier server has stored.
    pub(crate) fn restore(&mut self, changes: Vec<Change>) {
        self.changes = changes.into();
    }

    /// Notes the start of the server.
    pub(crate) fn server_started(&mut self) {
        self.add_state("", SERVER_STARTED);
    }

    /// Notes that an agent has connected.
    pub(crate) fn agent_connected(&mut self, agent: &str) {
        self.add_state(agent, AGENT_CONNECTED);
    }

    /// Notes that the connection of an agent has ended.
    pub(crate) fn agent_lost(&mut self, agent: &str) {
        self.add_state(agent, AGENT_LOST);
    }

    /// Notes a reported state of an instance whose phase was `before`, if it is a change.
    ///
    /// An agent that connects reports all its instances. If the server does not know the phase from
    /// before, a state is a change if it differs from the last kept change of the instance, or is a
    /// failure.
    // [impl->swdd~server-keeps-last-changes~1]
    pub(crate) fn report(
        &mut self,
        instance: &InstanceName,
        before: Option<Phase>,
        state: &ExecutionState,
        is_first_report: bool,
    ) {
        if state.phase == Phase::AgentDisconnected {
            return; // The loss of the agent is the change.
        }
        let is_change = match before {
            None | Some(Phase::AgentDisconnected) => self.is_news(instance, state.phase),
            // The agent may have reported the same phase to an earlier process of the server.
            Some(Phase::PendingInitial) if is_first_report => self.is_news(instance, state.phase),
            Some(before) => before != state.phase,
        };
        if is_change {
            self.add(Change::of_instance(instance, state));
        }
    }

    /// Returns whether a phase differs from the last kept change of its instance. Without such a
    /// change, only a failure is news.
    fn is_news(&self, instance: &InstanceName, phase: Phase) -> bool {
        let mut newest_first = self.changes.iter().rev();
        match newest_first.find(|change| change.is_of(instance)) {
            Some(last) => last.state != phase.to_string(),
            None => matches!(
                phase,
                Phase::FailedExecFailed
                    | Phase::FailedLost
                    | Phase::FailedUnknown
                    | Phase::PendingStartingFailed
            ),
        }
    }

    fn add_state(&mut self, agent: &str, state: &str) {
        self.add(Change {
            agent: agent.to_owned(),
            state: state.to_owned(),
            ..Change::default()
        });
    }

    fn add(&mut self, mut change: Change) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = since_1970.unwrap_or_default().as_millis();
        change.at = u64::try_from(at).unwrap_or(u64::MAX);
        let unstored_from = self.changes.len() - self.unstored;
        let dropped = keep(&mut self.changes, change);
        self.unstored += 1;
        if dropped.is_some_and(|index| index >= unstored_from) {
            self.unstored -= 1; // The dropped change was not stored yet.
        }
    }

    /// The changes that masks select as a list, oldest first; `None` if they select nothing. A mask
    /// selects all, or those to one state, which it names without the sub-state: `history.Failed`.
    pub(crate) fn read(&self, wanted: &Wanted<'_>) -> Option<Node> {
        let mut changes = Vec::new();
        for change in &self.changes {
            if wanted.below(change.state_name()).is_whole() {
                changes.push(change.node());
            }
        }
        if changes.is_empty() && !wanted.is_whole() {
            return None;
        }
        Some(Node::List(changes))
    }

    /// Returns the lines for the file of the changes since the last call. Empty if there is none.
    pub(crate) fn take_unstored(&mut self) -> String {
        let first = self.changes.len() - self.unstored;
        self.unstored = 0;
        lines_of(self.changes.range(first..))
    }
}

/// Adds a change, and drops the oldest one of the same workload or agent, or of all, if there are
/// too many. Returns the place that the dropped one had.
fn keep(changes: &mut VecDeque<Change>, change: Change) -> Option<usize> {
    let mut same = 0;
    let mut oldest_same = 0;
    for (index, other) in changes.iter().enumerate().rev() {
        if other.is_of_same(&change) {
            same += 1;
            oldest_same = index;
        }
    }
    let mut dropped = None;
    if same >= CHANGES_OF_ONE_MAX {
        dropped = Some(oldest_same);
    } else if changes.len() >= CHANGES_KEPT {
        dropped = Some(0);
    }
    if let Some(index) = dropped {
        changes.remove(index);
    }
    changes.push_back(change);
    dropped
}

/// The last changes in a file that an earlier server has written into `folder`. A line that cannot
/// be read is left out: the history is not needed to run workloads.
pub fn read(folder: &Path) -> Vec<Change> {
    let path = folder.join(FILE);
    let text = match read_file(&path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!("Cannot read '{}': {error}.", path.display());
            }
            return Vec::new();
        }
    };
    kept_changes(&text).into()
}

/// Reads the first [`FILE_MAX`] bytes of the file. A loss of power may leave bytes that are not
/// UTF-8; they are replaced.
fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(FILE_MAX)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The changes in the lines of a file, without those beyond the bounds of [`keep`].
fn kept_changes(text: &str) -> VecDeque<Change> {
    let mut changes = VecDeque::new();
    for line in text.lines() {
        if let Ok(change) = serde_json::from_str(line) {
            keep(&mut changes, change);
        }
    }
    changes
}

/// The lines of these changes in the file.
fn lines_of<'c>(changes: impl Iterator<Item = &'c Change>) -> String {
    let mut lines = String::new();
    for change in changes {
        // It has only texts and a number, which JSON can hold.
        lines.push_str(&serde_json::to_string(change).unwrap_or_default());
        lines.push('\n');
    }
    lines
}

/// The file that the thread `store` writes.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    folder: PathBuf,
    /// Lines in it; `None` while that is unknown.
    lines: Option<usize>,
    /// Whether the last write has failed, which was logged.
    has_failed: bool,
}

impl HistoryFile {
    /// The file in `folder`; it is made by the first change.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            lines: None,
            has_failed: false,
        }
    }

    /// Appends lines, without waiting until they are on the disk: that spares the flash, and a loss
    /// of power loses the last half minute only. A write that fails loses its own lines only.
    pub(crate) fn append(&mut self, lines: &str) {
        let written = self.try_append(lines);
        if let Err(error) = &written
            && !self.has_failed
        {
            log::warn!(
                "Cannot write '{}': {error}; changes of states are kept in memory only.",
                self.folder.join(FILE).display()
            );
        }
        self.has_failed = written.is_err();
    }

    /// Appends lines, and drops the oldest ones of a long file.
    fn try_append(&mut self, lines: &str) -> io::Result<()> {
        // First, the lines. An earlier server or a failed write may have left half a line in the
        // file, so they begin on a new line then.
        let is_continued = self.lines.is_some() && !self.has_failed;
        let begin = if is_continued { "" } else { "\n" };
        let path = self.folder.join(FILE);
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(format!("{begin}{lines}").as_bytes())?;
        drop(file);

        // Then, if the file is long or its length is unknown, it is replaced by one without the
        // oldest lines. Changes that cannot be read are lost.
        let known = self.lines.unwrap_or(LINES_MAX);
        let count = known + lines.lines().count();
        if count <= LINES_MAX {
            self.lines = Some(count);
            return Ok(());
        }
        let text = read_file(&path).unwrap_or_default();
        let kept = kept_changes(&text);
        let new = self.folder.join(NEW_FILE);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(lines_of(kept.iter()).as_bytes())?;
        fs::rename(&new, &path)?;
        self.lines = Some(kept.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
