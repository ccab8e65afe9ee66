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
    /// How much of what grows and shrinks is there: streams, stops and deletes that are remembered,
    /// workload states, rights that outlast their workload.
    pub fn sizes(&self) -> [usize; 5] {
        let [stopping, deletes] = self.updates.deletes().len();
        let (streams, states) = (
            self.sessions.len(),
            self.updates.workloads().states.iter().count(),
        );
        [
            streams,
            stopping,
            deletes,
            states,
            self.sessions.outlasting_rights(self.updates.workloads()),
        ]
    }

    /// The instances that are counted as unwanted and have no such state, and those of which it is
    /// the other way round.
    pub fn wrong_unwanted(&self) -> BTreeSet<String> {
        let states: Vec<_> = self
            .updates
            .workloads()
            .states
            .iter()
            .map(|(instance, _)| instance)
            .collect();
        let expected: BTreeSet<&InstanceName> = states
            .iter()
            .filter(|one| self.updates.workloads().is_unwanted(one))
            .collect();
        self.updates
            .workloads()
            .unwanted
            .instances()
            .symmetric_difference(&expected)
            .map(ToString::to_string)
            .collect()
    }

    /// Whether the server itself shows this instance, which no agent has got yet.
    pub fn is_placeholder(&self, instance: &InstanceName) -> bool {
        self.updates.workloads().placeholders.contains(instance)
    }

    /// Whether only instances have times that have a state or are wanted.
    pub fn timings_agree(&self) -> bool {
        let workloads = self.updates.workloads();
        self.updates
            .timings()
            .instances()
            .all(|one| workloads.states.get(one).is_some() || workloads.is_wanted(one))
    }

    /// What the delete of an instance waits for, as it was sent last.
    pub fn delete_conditions(&self, instance: &InstanceName) -> BTreeSet<String> {
        self.updates.deletes().conditions(instance)
    }

    /// Workloads that are out of the effective state until their restarts go on.
    pub fn restarting(&self) -> BTreeSet<Name> {
        self.updates
            .workloads()
            .restarts
            .iter()
            .flat_map(|restart| &restart.names)
            .cloned()
            .collect()
    }

    /// Whether it has modes.
    pub fn has_modes(&self) -> bool {
        self.updates.workloads().modes.is_some()
    }

    /// Whether a request is served with events.
    pub fn is_subscribed(&self, peer: PeerId, id: &str) -> bool {
        self.subscriptions
            .of(SubscriptionKind::Events)
            .any(|(key, _)| key.peer == peer && key.id == id)
    }

    /// Event subscriptions of each stream.
    pub fn subscribed(&self) -> BTreeMap<PeerId, usize> {
        let mut counts = BTreeMap::new();
        self.subscriptions
            .of(SubscriptionKind::Events)
            .for_each(|(key, _)| *counts.entry(key.peer).or_default() += 1);
        counts
    }

    /// Serves all that waits as far as it may be served, as the loop does when nothing else
    /// happens.
    pub fn serve_all_waiting(&mut self) {
        loop {
            while self.serve_pending() {}
            self.on_event(ServerEvent::Room);
            // Those of a simulation have an outcome of each plan; those of a test have none until
            // the test gives it.
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
    /// What the response to a read with these masks has.
    pub fn read(&self, masks: &[String]) -> Node {
        let masks = MaskTree::of_request(masks).unwrap();
        masks.map_or_else(|| self.everything(), |masks| self.select(&masks))
    }
}

impl MutatingHooks {
    /// Hooks that do this.
    pub fn answering(decide: fn(WorkloadPlan) -> HookOutcome) -> Self {
        let (hooks, plans, outcomes, _) = Self::without_thread().unwrap();
        let decide_all = move || {
            plans
                .iter()
                .map(decide)
                .try_for_each(|outcome| outcomes.send(outcome))
        };
        let _thread = threads::spawn("hook", STACK_LARGE, move || drop(decide_all())).unwrap();
        hooks
    }
}
