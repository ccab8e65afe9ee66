//! The server as tests and the simulation inspect it. Only in development builds.
//!
//! Thread: that of a test.

pub use crate::rollouts::inspection::SeenUpdate;

use crate::mutating_hooks::{HookOutcome, MutatingHooks};
use crate::state_view::StateView;
use crate::subscriptions::SubscriptionKind;
use crate::{ServerEvent, ServerLoop};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::WorkloadPlan;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::threads;
use ankaios_wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};

impl ServerLoop {
    /// Numbers of entries that come and go: streams, stops and deletes that are remembered,
    /// workload states, rights that outlast their workload.
    pub fn sizes(&self) -> [usize; 5] {
        let workloads = self.updates.workloads();
        let [stopping, deletes] = self.updates.deletes().len();
        [
            self.sessions.len(),
            stopping,
            deletes,
            workloads.states.iter().count(),
            self.sessions.outlasting_rights(workloads),
        ]
    }

    /// The instances that are counted as unwanted and are not, and the unwanted ones that are not
    /// counted.
    pub fn wrong_unwanted(&self) -> BTreeSet<String> {
        let workloads = self.updates.workloads();
        let counted = workloads.unwanted.instances();
        let mut unwanted = BTreeSet::new();
        for (instance, _) in workloads.states.iter() {
            if workloads.is_unwanted(&instance) {
                unwanted.insert(instance);
            }
        }
        let mut wrong = BTreeSet::new();
        for instance in &counted {
            if !unwanted.contains(*instance) {
                wrong.insert(instance.to_string());
            }
        }
        for instance in &unwanted {
            if !counted.contains(instance) {
                wrong.insert(instance.to_string());
            }
        }
        wrong
    }

    /// Returns whether the state of an instance is the server's own, since no agent has it yet.
    pub fn is_placeholder(&self, instance: &InstanceName) -> bool {
        self.updates.workloads().placeholders.contains(instance)
    }

    /// Returns whether each instance with times has a state or is wanted.
    pub fn timings_agree(&self) -> bool {
        let workloads = self.updates.workloads();
        for instance in self.updates.timings().instances() {
            if workloads.states.get(instance).is_none() && !workloads.is_wanted(instance) {
                return false;
            }
        }
        true
    }

    /// The workloads that the delete of an instance waits for, as it was sent last.
    pub fn delete_conditions(&self, instance: &InstanceName) -> BTreeSet<String> {
        self.updates.deletes().conditions(instance)
    }

    /// The workloads of restarts that have not ended.
    pub fn restarting(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for restart in &self.updates.workloads().restarts {
            names.extend(restart.names.iter().cloned());
        }
        names
    }

    pub fn has_modes(&self) -> bool {
        self.updates.workloads().modes.is_some()
    }

    /// Returns whether a request has subscribed to events.
    pub fn is_subscribed(&self, peer: PeerId, id: &str) -> bool {
        let mut subscriptions = self.subscriptions.of(SubscriptionKind::Events);
        subscriptions.any(|(key, _)| key.peer == peer && key.id == id)
    }

    /// The number of event subscriptions of each stream.
    pub fn subscribed(&self) -> BTreeMap<PeerId, usize> {
        let mut counts = BTreeMap::new();
        for (key, _) in self.subscriptions.of(SubscriptionKind::Events) {
            *counts.entry(key.peer).or_default() += 1;
        }
        counts
    }

    /// Serves all pending requests that may be served, as the loop does when there is no other
    /// event.
    pub fn serve_all_waiting(&mut self) {
        loop {
            while self.serve_pending() {}
            self.on_event(ServerEvent::Room);
            // Hooks of the simulation have an outcome of each plan. Those of a test have none until
            // the test sends it.
            if !self.admission.hooks_work() {
                return;
            }
            let Ok(outcome) = self.updates.hook_outcomes().recv() else {
                return;
            };
            self.on_event(ServerEvent::Hooks(outcome));
        }
    }
}

impl StateView<'_> {
    /// The state in the response to a read with these masks.
    pub fn read(&self, masks: &[String]) -> Node {
        match MaskTree::of_request(masks).unwrap() {
            Some(masks) => self.select(&masks),
            None => self.everything(),
        }
    }
}

impl MutatingHooks {
    /// Hooks whose outcomes this function returns.
    pub fn answering(decide: fn(WorkloadPlan) -> HookOutcome) -> Self {
        let (hooks, ends) = Self::without_thread().unwrap();
        let body = move || {
            for plan in &ends.plans {
                if ends.outcomes.send(decide(plan)).is_err() {
                    return;
                }
            }
        };
        let _thread = threads::spawn("hook", STACK_LARGE, body).unwrap();
        hooks
    }
}
