//! The numbers of the server for its metrics file.
//!
//! Thread: `metrics` writes the file, see [`crate::platform::metrics_file`]; `server` computes the numbers on request and
//! never waits.

use super::ServerLoop;
use super::modes::SwitchCounts;
use crate::limits::METRICS_WAIT_MAX;
use crate::model::execution_state::Phase;
use crate::model::names::Name;
use crate::model::version::VERSION;
use crate::platform::metrics_file::{Family, MetricsText};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;

const INFO: Family = Family::gauge("ankaios_server_info", "The version of the server; the value is always 1.");
const AGENTS: Family = Family::gauge("ankaios_server_agents", "Connected agents.");
const WORKLOADS: Family = Family::gauge(
    "ankaios_server_workloads",
    "Workload instances by agent and state; those that are not scheduled have an empty agent.",
);
const UPDATES: Family =
    Family::counter("ankaios_server_updates_total", "Updates of the desired state since the start of the server.");

const MODE: Family = Family::gauge("ankaios_server_mode", "The current mode of the vehicle; the value is always 1.");
const MODE_SWITCHES: Family = Family::counter(
    "ankaios_server_mode_switches_total",
    "Switches of the mode since the start of the server, by clients or because of a failure.",
);

/// Where the thread `metrics` requests the numbers: it sends where they are put.
pub type NumbersRequest = Sender<ServerNumbers>;

/// How many updates there were since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpdateCounts {
    accepted: u64,
    refused: u64,
}

impl UpdateCounts {
    /// Counts one.
    pub fn add(&mut self, is_accepted: bool) {
        let count = if is_accepted { &mut self.accepted } else { &mut self.refused };
        *count = count.saturating_add(1);
    }
}

/// What the metrics are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerNumbers {
    agents: usize,
    /// By agent and the name of a state.
    workloads: BTreeMap<Name, BTreeMap<&'static str, u64>>,
    updates: UpdateCounts,
    /// The current mode, if there is one, and the switches; `None` without modes.
    modes: Option<(Option<String>, SwitchCounts)>,
}

impl ServerNumbers {
    /// The metrics as text.
    pub fn text(&self) -> String {
        let mut text = MetricsText::default();
        text.add(&INFO, &[("version", VERSION)], 1);
        text.add(&AGENTS, &[], self.agents);
        for (result, count) in [("accepted", self.updates.accepted), ("refused", self.updates.refused)] {
            text.add(&UPDATES, &[("result", result)], count);
        }
        if let Some((mode, SwitchCounts { client, failure })) = &self.modes {
            if let Some(mode) = mode {
                text.add(&MODE, &[("mode", mode)], 1);
            }
            for (cause, count) in [("client", client), ("failure", failure)] {
                text.add(&MODE_SWITCHES, &[("cause", cause)], count);
            }
        }
        for (agent, states) in &self.workloads {
            for (state, count) in states {
                text.add(&WORKLOADS, &[("agent", agent), ("state", state)], count);
            }
        }
        text.finish()
    }
}

/// Requests the numbers from the server; `None` when it has ended, or is busy for long.
pub fn requested(requests: &Sender<NumbersRequest>) -> Option<ServerNumbers> {
    let (reply, numbers) = bounded(1);
    requests.try_send(reply).ok()?;
    numbers.recv_timeout(METRICS_WAIT_MAX).ok()
}

impl ServerLoop {
    /// From now on computes the numbers of the metrics for whoever sends to the other end of `requests`.
    pub fn set_metrics(&mut self, requests: Receiver<NumbersRequest>) {
        self.metrics = Some(requests);
    }

    /// The numbers at this moment. All states of an agent are there when it has one of them: a series that comes and goes
    /// cannot be compared with others.
    pub(super) fn numbers(&self) -> ServerNumbers {
        let stored = Phase::ALL.iter().filter(|(phase, ..)| *phase != Phase::Removed);
        let none: BTreeMap<&'static str, u64> = stored.map(|(_, state, _)| (*state, 0)).collect();
        let mut workloads: BTreeMap<Name, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for (instance, state) in self.workloads.states.iter() {
            let states = workloads.entry(instance.agent).or_insert_with(|| none.clone());
            *states.entry(state.phase.state()).or_default() += 1;
        }
        let modes = self.workloads.modes.as_ref().map(|modes| (modes.current().map(str::to_owned), modes.switches));
        ServerNumbers { agents: self.peers.agents.len(), workloads, updates: self.updates, modes }
    }
}
