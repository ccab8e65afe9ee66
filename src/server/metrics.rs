//! The numbers of the server for its metrics file.
//!
//! Thread: `metrics` writes the file, see [`ankaios_platform::metrics_file`]; `server` computes the
//! numbers on request and never waits.

use super::ServerLoop;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::Phase;
use ankaios_model::names::Name;
use ankaios_model::version::VERSION;
use ankaios_platform::limits::METRICS_WAIT_MAX;
use ankaios_platform::metrics_file::{Family, MetricsText};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;

const INFO: Family = Family::gauge(
    "ankaios_server_info",
    "The version of the server; the value is always 1.",
);
const AGENTS: Family = Family::gauge("ankaios_server_agents", "Connected agents.");
const CERTIFICATE: Family = Family::gauge(
    "ankaios_server_certificate_expires_seconds",
    "When a certificate expires, in seconds since 1970; of the server the agent is empty.",
);
const WORKLOADS: Family = Family::gauge(
    "ankaios_server_workloads",
    "Workload instances by agent and state; those that are not scheduled have an empty agent.",
);
const UPDATES: Family = Family::counter(
    "ankaios_server_updates_total",
    "Updates of the desired state since the start of the server.",
);

const MODE: Family = Family::gauge(
    "ankaios_server_mode",
    "The current mode of the vehicle; the value is always 1.",
);
const MODE_SWITCHES: Family = Family::counter(
    "ankaios_server_mode_switches_total",
    "Switches of the mode since the start of the server, by clients or because of a failure.",
);

/// Where the thread `metrics` requests the numbers: it sends where their text is put.
pub type NumbersRequest = Sender<String>;

/// Requests the numbers from the server; `None` when it has ended, or is busy for long.
pub fn requested(requests: &Sender<NumbersRequest>) -> Option<String> {
    let (reply, numbers) = bounded(1);
    requests.try_send(reply).ok()?;
    numbers.recv_timeout(METRICS_WAIT_MAX).ok()
}

impl ServerLoop {
    /// Sets the channel by which the thread `metrics` requests the numbers.
    pub fn set_metrics(&mut self, requests: Receiver<NumbersRequest>) {
        self.metrics = Some(requests);
    }

    /// The numbers at this moment. All states of an agent are there when it has one of them: a
    /// series that comes and goes cannot be compared with others.
    pub(super) fn numbers(&self) -> String {
        let mut text = MetricsText::default();
        text.add(&INFO, &[("version", VERSION)], 1);
        text.add(&AGENTS, &[], self.sessions.agents().len());
        if let Some(expires) = self.expiry.own {
            text.add(&CERTIFICATE, &[("agent", "")], expires);
        }
        for (name, agent) in self.sessions.agents() {
            if let Some(expires) = agent.certificate_expires {
                text.add(&CERTIFICATE, &[("agent", name)], expires);
            }
        }
        let counts = self.updates.counts();
        for (result, count) in [("accepted", counts.accepted), ("refused", counts.refused)] {
            text.add(&UPDATES, &[("result", result)], count);
        }
        if let Some(modes) = &self.updates.workloads().modes {
            modes
                .current()
                .into_iter()
                .for_each(|mode| text.add(&MODE, &[("mode", mode)], 1));
            for (cause, count) in [
                ("client", modes.switches.client),
                ("failure", modes.switches.failure),
            ] {
                text.add(&MODE_SWITCHES, &[("cause", cause)], count);
            }
        }
        let stored = Phase::ALL
            .iter()
            .filter(|(phase, ..)| *phase != Phase::Removed);
        let none: BTreeMap<&'static str, u64> =
            stored.map(|(_, state, _)| (*state, 0)).collect_entries();
        let mut workloads: BTreeMap<Name, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for (instance, state) in self.updates.workloads().states.iter() {
            let states = workloads
                .entry(instance.agent)
                .or_insert_with(|| none.clone());
            *states.entry(state.phase.state()).or_default() += 1;
        }
        for (agent, states) in &workloads {
            for (state, count) in states {
                text.add(&WORKLOADS, &[("agent", agent), ("state", state)], count);
            }
        }
        text.finish()
    }
}
