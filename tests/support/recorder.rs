//! Records the execution states of all workloads in the order in which the server announces them.
//!
//! `ank get workloads --watch` prints one frame per announcement (spec/cli.md 6.3), so that short states are not missed
//! as polling would miss them.
//!
//! Thread: the test's. Owns: one `ank` process.

use super::cluster::Cluster;
use super::process::Process;
use super::table;
use super::{LIMIT, poll};

pub struct Recorder {
    watch: Process,
}

/// One recorded change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub workload: String,
    pub agent: String,
    pub state: String,
    pub info: String,
}

impl Recorder {
    /// Starts recording; returns when the first frame is there.
    pub fn start(cluster: &Cluster) -> Self {
        let watch = cluster.start_ank(&["get", "workloads", "-w"]);
        let recorder = Self { watch };
        let ready = poll(LIMIT, || recorder.watch.stdout().contains("WORKLOAD NAME").then_some(()));
        assert!(ready.is_some(), "no first frame: {}", recorder.watch.stderr());
        recorder
    }

    /// All changes so far. A workload that vanished has a last entry `Removed`.
    pub fn changes(&self) -> Vec<Change> {
        let text = self.watch.stdout();
        // The last piece may be half a frame: only what an empty line ends is complete.
        let complete = text.rfind("\n\n").map_or("", |end| &text[..end]);
        let mut changes = Vec::new();
        let mut before: Vec<Change> = Vec::new();
        for frame in complete.split("\n\n") {
            let rows = table::workloads(frame).into_iter();
            let now: Vec<Change> = rows
                .map(|row| Change { workload: row.name, agent: row.agent, state: row.state, info: row.info })
                .collect();
            changes.extend(now.iter().filter(|change| !before.contains(change)).cloned());
            let gone = before.iter().filter(|old| !now.iter().any(|new| new.workload == old.workload));
            changes.extend(gone.map(|old| Change { state: "Removed".to_owned(), ..old.clone() }));
            before = now;
        }
        changes
    }

    /// The states of one workload, without repetitions that differ only in the additional info.
    pub fn states_of(&self, workload: &str) -> Vec<String> {
        let own = self.changes().into_iter().filter(|change| change.workload == workload);
        let mut states: Vec<String> = own.map(|change| change.state).collect();
        states.dedup();
        states
    }

    /// Position of the first change of `workload` to `state`.
    ///
    /// # Panics
    /// When it was never recorded.
    pub fn position(&self, workload: &str, state: &str) -> usize {
        let changes = self.changes();
        let found = changes.iter().position(|change| change.workload == workload && change.state == state);
        found.unwrap_or_else(|| panic!("'{workload}' never was {state}: {changes:#?}"))
    }
}
