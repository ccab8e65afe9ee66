//! The start times that the server keeps, and what follows from them: what an instance waited for, how long its start
//! took, and which chain of workloads was the last to be ready.
//!
//! Thread: `main`, plain values. All times are in milliseconds since the start of the server.

use super::error::{CliError, Result};
use super::rows::{Needs, instances, needs, text};
use super::table::one_line;

use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::{BTreeSet, HashMap};

/// The part of the complete state with the start times.
pub const PART: &str = "timings";

/// The parts of the complete state that [`Starts::of`] needs.
pub const MASKS: [&str; 3] = [PART, "desiredState.workloads.*.dependencies", "effectiveState.workloads.*.dependencies"];

/// The latest starts of all instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starts {
    /// The time of the response.
    pub now: u64,
    /// From the boot of the server's node to the start of the server.
    pub boot: u64,
    /// In the order of agent, workload and id.
    pub all: Vec<Start>,
}

/// The latest start of one instance; what did not happen, or was not reported, is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Which instance.
    pub instance: InstanceName,
    /// Accepted as a part of the desired state.
    pub desired: Option<u64>,
    /// First reported as waiting for others.
    pub waiting: Option<u64>,
    /// First reported as starting.
    pub starting: Option<u64>,
    /// First reported as started and not ready.
    pub started: Option<u64>,
    /// First reported as running, which is ready.
    pub running: Option<u64>,
    /// First reported as ended.
    pub ended: Option<u64>,
    /// How many starts of it were reported.
    pub starts: u64,
    /// How far its start was prepared; empty when it was not.
    pub prepared: String,
    /// The dependency that was met last while it waited; empty when there is none.
    pub waited_for: String,
}

impl Starts {
    /// The starts in `state`, a complete state as far as [`MASKS`].
    // [impl->swdd~cli-shows-start-times~1]
    pub fn of(state: &Node) -> Result<Self> {
        let Some(timings) = state.get(PART) else {
            let hint = "an ank-server of Ankaios lite keeps them, if it is not older than this ank";
            return Err(CliError::start("the server keeps no start times", hint));
        };
        let number = |key: &str| time(timings, key).unwrap_or_default();
        let parts = instances(timings.get("instances"));
        let mut all: Vec<Start> = parts.map(|(instance, times)| Start::of(instance, times)).collect();
        let needs = needs(state);
        let mut by_name: HashMap<&str, Vec<&Start>> = HashMap::new();
        all.iter().for_each(|start| by_name.entry(&start.instance.workload).or_default().push(start));
        let waited_for: Vec<String> = all.iter().map(|start| met_last(start, &needs, &by_name)).collect();
        all.iter_mut().zip(waited_for).for_each(|(start, name)| start.waited_for = name);
        Ok(Self { now: number("now"), boot: number("boot"), all })
    }

    /// The start of each workload. Of several instances it is the one that was accepted last.
    pub fn by_workload(&self) -> HashMap<&str, &Start> {
        let mut all: Vec<&Start> = self.all.iter().collect();
        all.sort_by_key(|start| start.desired); // A later one replaces an earlier one.
        all.into_iter().map(|start| (&*start.instance.workload, start)).collect()
    }

    /// The workload among those that pass `filter` which was ready last, the dependency that it waited for last, and so
    /// on.
    pub fn last_chain(&self, filter: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let among = self.all.iter().filter(|start| filter(&start.instance.workload));
        let mut next = among.filter(|start| start.ready_at().is_some()).max_by_key(|start| start.ready_at());
        let (mut chain, by_workload) = (BTreeSet::new(), self.by_workload());
        while let Some(start) = next.filter(|start| chain.insert(&*start.instance.workload)) {
            next = by_workload.get(&*start.waited_for).copied();
        }
        chain
    }
}

fn time(node: &Node, key: &str) -> Option<u64> {
    // Later start times are taken for this one, in milliseconds (35,000 years): nothing that a server sends overflows.
    Some(node.get(key)?.as_number()?.min(1 << 50))
}

/// The dependency of `start` that was met last while it waited.
fn met_last(start: &Start, needs: &Needs, by_name: &HashMap<&str, Vec<&Start>>) -> String {
    let Some((waiting, starting)) = start.waiting.zip(start.starting) else { return String::new() };
    let of_instance = needs.get(&*start.instance.workload).into_iter().flatten();
    let met = of_instance.flat_map(|(name, condition)| {
        let instances = by_name.get(name.as_str()).into_iter().flatten();
        instances.filter_map(move |other| Some((other.met(condition)?, name)))
    });
    let while_it_waited = met.filter(|(at, _)| (waiting..=starting).contains(at));
    while_it_waited.max().map(|(_, name)| name.clone()).unwrap_or_default()
}

/// The time between two moments; `None` when one of them is missing, or they are not in this order.
fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    to?.checked_sub(from?)
}

impl Start {
    pub fn of(instance: InstanceName, times: &Node) -> Self {
        let at = |key: &str| time(times, key);
        Self {
            instance,
            desired: at("desired"),
            waiting: at("waiting"),
            starting: at("starting"),
            started: at("started"),
            running: at("running"),
            ended: at("ended"),
            starts: times.get("starts").and_then(Node::as_number).unwrap_or_default(),
            prepared: one_line(text(times, &["prepared"])),
            waited_for: String::new(),
        }
    }

    /// When a dependency with `condition` on this instance was met.
    fn met(&self, condition: &str) -> Option<u64> {
        if condition == "ADD_COND_RUNNING" { self.running } else { self.ended }
    }

    /// When it was ready. Without a report that it starts, it ran before the server knew of it, and nobody knows when it was
    /// ready.
    pub fn ready_at(&self) -> Option<u64> {
        self.running.filter(|_| self.starting.is_some())
    }

    /// When it was ready; of what ended before it was reported to run, as a short job does, when it ended.
    pub fn done_at(&self) -> Option<u64> {
        self.ready_at().or(self.ended.filter(|_| self.starting.is_some() && self.running.is_none()))
    }

    /// When the start began: with the acceptance of the instance, or, if it had been started before, with the first
    /// report after that.
    pub fn begin(&self) -> Option<u64> {
        if self.starts > 1 { self.waiting.into_iter().chain(self.starting).min() } else { self.desired }
    }

    /// How long it waited before it was started.
    pub fn waited(&self) -> Option<u64> {
        between(self.waiting, self.starting)
    }

    /// How long its engine took to start it.
    pub fn start(&self) -> Option<u64> {
        between(self.starting, self.started.or(self.running).or(self.ended))
    }

    /// How long it took from there until it was ready.
    pub fn ready(&self) -> Option<u64> {
        between(self.started, self.running)
    }

    /// How long it took altogether.
    pub fn total(&self) -> Option<u64> {
        between(self.begin(), self.done_at())
    }

    /// How long it takes already at `now`, since `from`; `None` when it is done, or has not begun.
    pub fn so_far(&self, from: Option<u64>, now: u64) -> Option<u64> {
        let goes_on = self.waiting.or(self.starting).is_some() && self.running.or(self.ended).is_none();
        between(from.filter(|_| goes_on), Some(now))
    }
}

/// Milliseconds as seconds with three decimals.
pub fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

#[cfg(test)]
pub(crate) mod tests;
