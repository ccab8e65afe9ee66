//! The numbers of the server for its metrics file.
//!
//! Thread: `metrics` writes the file, see [`ankaios_platform::metrics_file`]; `server` computes the
//! numbers on request and never waits.

use super::ServerLoop;
use super::rollouts::Rollouts;
use super::sessions::ConnectedAgent;
use super::updates::Modes;
use ankaios_model::complete_state::WorkloadStates;
use ankaios_model::execution_state::Phase;
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::names::Name;
use ankaios_model::version::VERSION;
use ankaios_platform::limits::METRICS_WAIT_MAX;
use ankaios_platform::metrics_file::{Family, MetricsText};
use crossbeam_channel::{Sender, bounded};
use std::collections::BTreeMap;

const INFO: Family = Family::gauge(
    "ankaios_server_info",
    "The version of the server; the value is always 1.",
);
const AGENTS: Family = Family::gauge("ankaios_server_agents", "Connected agents.");
const CERTIFICATE: Family = Family::gauge(
    "ankaios_server_certificate_expires_seconds",
    "When a certificate expires, in seconds since 1970. That of the server has an empty agent.",
);
const WORKLOADS: Family = Family::gauge(
    "ankaios_server_workloads",
    "Workload instances by agent and state; those that are not scheduled have an empty agent.",
);
const UPDATES: Family = Family::counter(
    "ankaios_server_updates_total",
    "Updates of the desired state since the start of the server.",
);
const GUARDED_OPEN: Family = Family::gauge(
    "ankaios_server_guarded_updates_open",
    "Guarded updates whose outcome is still unknown.",
);
const GUARDED_ENDED: Family = Family::counter(
    "ankaios_server_guarded_updates_total",
    "Guarded updates that have ended since the start of the server, by their last phase.",
);
const STATE_STORED: Family = Family::gauge(
    "ankaios_server_state_stored",
    "1 if the newest state is stored, 0 if a restart of the server would lose it.",
);
const MODE: Family = Family::gauge(
    "ankaios_server_mode",
    "The current mode of the vehicle; the value is always 1.",
);
const MODE_SWITCHES: Family = Family::counter(
    "ankaios_server_mode_switches_total",
    "Switches of the mode since the start of the server, by clients or because of a failure.",
);

/// A request of the thread `metrics` for the numbers: the channel for their text.
pub type NumbersRequest = Sender<String>;

/// Requests the numbers from the server. Returns `None` when it has ended, or is busy for long.
pub fn requested(requests: &Sender<NumbersRequest>) -> Option<String> {
    let (reply, numbers) = bounded(1);
    requests.try_send(reply).ok()?; // Full: the server is busy.
    numbers.recv_timeout(METRICS_WAIT_MAX).ok()
}

impl ServerLoop {
    /// The numbers at this moment, in the format of Prometheus.
    pub(super) fn numbers(&self) -> String {
        let mut text = MetricsText::default();
        text.add(&INFO, &[("version", VERSION)], 1);
        add_agents(&mut text, self.sessions.agents(), self.expiry.own());
        let counts = self.updates.counts();
        text.add(&UPDATES, &[("result", "accepted")], counts.accepted);
        text.add(&UPDATES, &[("result", "refused")], counts.refused);
        add_guarded_updates(&mut text, &self.rollouts);
        if let Some(is_stored) = self.storage.has_newest() {
            text.add(&STATE_STORED, &[], u8::from(is_stored));
        }
        if let Some(modes) = &self.updates.workloads().modes {
            add_modes(&mut text, modes);
        }
        add_states(&mut text, &self.updates.workloads().states);
        text.finish()
    }
}

/// Adds the number of agents and when certificates expire: `own` is that of the server.
fn add_agents(text: &mut MetricsText, agents: &BTreeMap<Name, ConnectedAgent>, own: Option<u64>) {
    text.add(&AGENTS, &[], agents.len());
    if let Some(expires) = own {
        text.add(&CERTIFICATE, &[("agent", "")], expires);
    }
    for (name, agent) in agents {
        if let Some(expires) = agent.certificate_expires {
            text.add(&CERTIFICATE, &[("agent", name)], expires);
        }
    }
}

/// Adds the number of open updates, and of ended ones a number for every last phase, be it 0.
fn add_guarded_updates(text: &mut MetricsText, rollouts: &Rollouts) {
    text.add(&GUARDED_OPEN, &[], rollouts.open_count());
    for phase in UpdatePhase::ALL {
        if !phase.is_open() {
            let labels = [("phase", phase.as_str())];
            text.add(&GUARDED_ENDED, &labels, rollouts.ended_count(*phase));
        }
    }
}

fn add_modes(text: &mut MetricsText, modes: &Modes) {
    if let Some(mode) = modes.current() {
        text.add(&MODE, &[("mode", mode)], 1);
    }
    let switches = modes.switches;
    text.add(&MODE_SWITCHES, &[("cause", "client")], switches.client);
    text.add(&MODE_SWITCHES, &[("cause", "failure")], switches.failure);
}

/// Adds the number of instances in each state. An agent with one instance has a number for every
/// state, be it 0: a series that comes and goes cannot be compared with others.
fn add_states(text: &mut MetricsText, states: &WorkloadStates) {
    let mut zeros: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (phase, state, _) in Phase::ALL {
        if phase != Phase::Removed {
            zeros.insert(state, 0);
        }
    }
    let mut agents: BTreeMap<Name, BTreeMap<&'static str, u64>> = BTreeMap::new();
    for (instance, state) in states.iter() {
        let counts = agents
            .entry(instance.agent)
            .or_insert_with(|| zeros.clone());
        *counts.entry(state.phase.state()).or_default() += 1;
    }
    for (agent, counts) in &agents {
        for (state, count) in counts {
            text.add(&WORKLOADS, &[("agent", agent), ("state", state)], count);
        }
    }
}
