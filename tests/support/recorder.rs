//! Records the execution states of all workloads exactly as the server broadcasts them, so that no
//! short state is missed.
//!
//! Thread: `recorder`, one per recorder: reads the stream until the connection is closed, on drop.
//! Owns: a connection of the kind `ank` uses. Gives: the list of changes, which the test reads.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ankaios_lite::model::messages::{FromServer, ReadState, RequestContent};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::wire::client::{ClientReceiver, ClientSender, Hangup, Service};

use super::cluster::Cluster;
use super::{LIMIT, connection, poll};

pub struct Recorder {
    changes: Arc<Mutex<Vec<Change>>>,
    hangup: Hangup,
    thread: Option<JoinHandle<()>>,
    _sender: ClientSender,
}

/// One broadcast state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub workload: String,
    pub agent: String,
    pub id: String,
    /// For example `Running(Ok)` or `Removed`.
    pub state: String,
    pub info: String,
    /// Number of the message that it came in.
    pub message: usize,
}

impl Recorder {
    /// Starts recording. After the return no state is missed.
    pub fn start(cluster: &Cluster) -> Self {
        let (mut sender, mut receiver, hangup) =
            connection::commander(&cluster.url(), Service::Cli);
        // The answer to any request shows that the server knows this connection.
        let masks = vec!["desiredState.apiVersion".to_owned()];
        let content = RequestContent::CompleteState(ReadState {
            masks,
            subscribe: false,
        });
        connection::request(&mut sender, "recorder", content);
        loop {
            let message = receiver.receive().expect("the stream is open");
            if let FromServer::Response(_) = message {
                break;
            }
        }
        let changes = Arc::new(Mutex::new(Vec::new()));
        let recorded = changes.clone();
        let thread = std::thread::Builder::new().name("recorder".to_owned());
        let thread = thread.spawn(move || record(receiver, &recorded));
        Self {
            changes,
            hangup,
            thread: Some(thread.expect("a thread")),
            _sender: sender,
        }
    }

    /// All changes so far.
    pub fn changes(&self) -> Vec<Change> {
        self.changes
            .lock()
            .expect("the recorder does not panic")
            .clone()
    }

    /// The states of one workload so far; repetitions count once.
    pub fn states_of(&self, workload: &str) -> Vec<String> {
        let mut states = Vec::new();
        for change in self.changes() {
            if change.workload == workload {
                states.push(change.state);
            }
        }
        states.dedup();
        states
    }

    /// The states of one workload, once the last one is `state`.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn states_until(&self, workload: &str, state: &str) -> Vec<String> {
        let states = poll(LIMIT, || {
            let states = self.states_of(workload);
            (states.last()? == state).then_some(states)
        });
        let Some(states) = states else {
            panic!("'{workload}' never was {state}: {:#?}", self.changes());
        };
        states
    }

    /// The instance of `workload` in the last recorded state.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn instance(&self, workload: &str) -> InstanceName {
        let change = poll(LIMIT, || {
            let mut changes = self.changes().into_iter();
            changes.rfind(|change| change.workload == workload)
        });
        let change = change.unwrap_or_else(|| panic!("'{workload}' has no recorded state"));
        InstanceName::with_id(workload, &change.id, &change.agent)
    }

    /// Position of the first change of `workload` to `state`, once it is recorded: other clients may
    /// have seen it before.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn position(&self, workload: &str, state: &str) -> usize {
        let found = poll(LIMIT, || {
            self.changes()
                .iter()
                .position(|change| change.workload == workload && change.state == state)
        });
        found.unwrap_or_else(|| panic!("'{workload}' never was {state}: {:#?}", self.changes()))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.hangup.hang_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn record(mut receiver: ClientReceiver, changes: &Mutex<Vec<Change>>) {
    let mut number = 0;
    while let Ok(message) = receiver.receive() {
        let FromServer::WorkloadStates(states) = message else {
            continue;
        };
        number += 1;
        let new = states.into_iter().map(|state| Change {
            workload: state.instance.workload.to_string(),
            agent: state.instance.agent.to_string(),
            id: state.instance.id.to_string(),
            state: state.state.phase.to_string(),
            info: state.state.additional_info.to_string(),
            message: number,
        });
        changes
            .lock()
            .expect("the recorder does not panic")
            .extend(new);
    }
}
