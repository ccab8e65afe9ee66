//! Guarded updates on disk: beside the desired state, in the same file.
//!
//! Thread: `server`; plain functions and the part of [`ServerLoop`] that goes on after a start.

use super::trial::Candidate;
use super::unit::Form;
use super::{GuardedUpdates, Open, Record};
use crate::limits::UPDATES_OPEN;
use crate::model::guarded_update::UpdatePhase;
use crate::model::names::Name;
use crate::model::node::Node;
use crate::server::ServerLoop;
use crate::server::events::Changes;
use crate::server::plan::Difference;
use crate::server::state_store::Stored;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Record {
    /// What is stored of it, and read by clients as far as it concerns them.
    pub(super) fn node(&self) -> Node {
        // A record has nothing that JSON could not hold.
        serde_json::to_value(self).and_then(Node::deserialize).unwrap_or_default()
    }

    fn from_node(number: u64, node: &Node) -> Result<Self, serde_json::Error> {
        Ok(Self { number, ..Self::deserialize(serde_json::to_value(node)?)? })
    }
}

impl ServerLoop {
    /// All that is kept over restarts.
    #[must_use]
    pub fn stored(&self) -> Stored {
        let guarded = &self.guarded;
        let desired = self.workloads.desired.clone();
        if guarded.newest == 0 {
            return Stored { desired, updates: None };
        }
        let open = guarded.open.values().map(|open| (open.record.number, Arc::new(open.record.node())));
        let ended = guarded.ended.iter().map(|ended| (ended.record.number, ended.stored.clone()));
        Stored { desired, updates: Some((guarded.newest, open.chain(ended).collect())) }
    }
}

impl ServerLoop {
    /// Goes on with stored updates, each in its phase, after the desired state was taken over as if all were carried out.
    // [impl->swdd~server-keeps-guarded-updates~1]
    pub(in crate::server) fn restore_updates(&mut self, newest: u64, updates: &[(u64, Arc<Node>)]) {
        // Ours never comes near that; numbers given from now on are new in any case.
        let known = updates.iter().map(|(number, _)| *number).max().unwrap_or_default();
        self.guarded.newest = newest.max(known).min(u64::MAX / 2);
        for (number, node) in updates {
            match Record::from_node(*number, node) {
                Ok(record) if !record.phase.is_open() => self.guarded.keep(record),
                Ok(record) if self.guarded.open.len() < UPDATES_OPEN => self.restore(record),
                Ok(_) => log::error!("Forgetting update {number}: more than {UPDATES_OPEN} are open."),
                Err(error) => log::error!("Forgetting update {number}: what is stored of it cannot be read: {error}"),
            }
        }
        while self.settle_updates() {}
    }

    fn restore(&mut self, record: Record) {
        let (now, number) = (self.now(), record.number);
        let is_staging = record.phase == UpdatePhase::Staging;
        let touched = record.unit.workloads.iter();
        let in_force = touched.filter_map(|(name, touched)| Some((name.clone(), touched.in_force.clone()?)));
        let in_force: BTreeMap<Name, Form> = in_force.filter(|_| is_staging).collect();
        let mut open = Open::new(record, now);
        for name in open.record.unit.workloads.keys().filter(|name| !in_force.contains_key(*name)) {
            // What this start could not take over has no agent, so nothing is judged of it.
            let ran = open.record.unit.workloads.get(name).is_some_and(|touched| touched.ran);
            if open.record.was_switched
                && let Some(candidate) = self.candidate(name, ran, None)
            {
                open.trial.judge(candidate, now);
            }
        }
        for (name, on_failure) in &open.record.dependents {
            if let Some(candidate) = self.candidate(name, true, Some(*on_failure)) {
                open.trial.judge(Candidate { state: None, ..candidate }, now);
            }
        }
        if open.record.was_sent {
            Self::judge_start(&mut open, now);
            self.guarded.is_unsaved = true;
        }
        self.guarded.is_outdated = true;
        self.put_back_in_force(&mut open, &in_force);
        self.guarded.open.insert(number, open);
    }

    /// What is rendered and in force of a workload.
    pub(super) fn form_in_force(&self, name: &Name) -> Form {
        Form {
            desired: None,
            rendered: self.workloads.before_hooks().get(name).cloned(),
            effective: self.workloads.before_modes().get(name).cloned(),
        }
    }

    /// While an update is being staged, agents have to run what was in force before.
    fn put_back_in_force(&mut self, open: &mut Open, in_force: &BTreeMap<Name, Form>) {
        let new = |name: &Name| {
            let desired = self.workloads.desired.workloads.get(name).cloned();
            (name.clone(), Form { desired, ..self.form_in_force(name) })
        };
        let new: BTreeMap<Name, Form> = in_force.keys().map(new).collect();
        let rendered = in_force.iter().map(|(name, form)| (name, form.rendered.as_ref()));
        let rendered = Difference::to(self.workloads.before_hooks(), rendered);
        let effective = in_force.iter().map(|(name, form)| (name, form.effective.as_ref()));
        let for_agents = Difference::to(self.workloads.before_modes(), effective);
        if let Some(before_hooks) = &mut self.workloads.before_hooks {
            rendered.carry_out(before_hooks);
        }
        self.carry_out_in_mode(for_agents, Changes::default());
        self.stage_again(open, new);
    }

    /// What has to be stored before the first client is served: that this start was counted.
    pub fn take_unsaved(&mut self) -> Option<Stored> {
        std::mem::take(&mut self.guarded.is_unsaved).then(|| self.stored())
    }
}

impl GuardedUpdates {
    /// From now on updates are kept over restarts.
    pub(in crate::server) fn keep_on_disk(&mut self) {
        self.is_kept_on_disk = true;
    }
}
