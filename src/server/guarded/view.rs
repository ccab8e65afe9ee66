//! What clients read of guarded updates.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::unit::{TouchedConfig, TouchedWorkload};
use super::{GuardedUpdates, Open, Record};
use crate::model::guarded_update::AGENT_PREFIX;
use crate::model::mask_tree::Wanted;
use crate::model::names::Name;
use crate::model::node::Node;
use crate::server::ServerLoop;
use crate::server::state_view::entries;
use std::collections::BTreeMap;
#[cfg(test)]
use {super::SeenUpdate, crate::model::execution_state::WorkloadState};

impl ServerLoop {
    /// What masks select of the updates; there even when nothing is selected, so that a reader learns that this server
    /// keeps some.
    pub(in crate::server) fn read_updates(&self, wanted: &Wanted<'_>) -> Node {
        entries(wanted, &self.updates(), UpdateView::node).unwrap_or_default()
    }

    fn updates(&self) -> BTreeMap<String, UpdateView<'_>> {
        let guarded = &self.guarded;
        let view = |record, open| UpdateView { server: self, record, open };
        let ended = guarded.ended.iter().map(|ended| view(&ended.record, None));
        let open = guarded.open.values().map(|open| view(&open.record, Some(open)));
        open.chain(ended).map(|view| (view.record.number.to_string(), view)).collect()
    }
}

#[cfg(test)]
impl ServerLoop {
    /// All updates by number.
    pub fn seen_updates(&self) -> BTreeMap<u64, SeenUpdate> {
        let seen = |UpdateView { record, open, .. }: &UpdateView<'_>| {
            let workloads = &record.unit.workloads;
            let ways_back = workloads.iter().map(|(name, touched)| (name.clone(), touched.before.desired.clone()));
            SeenUpdate {
                phase: record.phase,
                names: workloads.keys().cloned().collect(),
                waits_for: UpdateView { server: self, record, open: *open }.waits_for(),
                pending: open.iter().flat_map(|open| open.staging.pending.keys().cloned()).collect(),
                ways_back: ways_back.collect(),
            }
        };
        self.updates().values().map(|view| (view.record.number, seen(view))).collect()
    }

    /// All states as agents know them.
    pub fn reported_states(&self) -> Vec<WorkloadState> {
        self.guarded.as_reported(self.workloads.states.reports())
    }
}

/// One update, to be read.
struct UpdateView<'s> {
    server: &'s ServerLoop,
    record: &'s Record,
    open: Option<&'s Open>,
}

impl UpdateView<'_> {
    /// As it is read.
    fn node(&self) -> Node {
        let Record { phase, reason, accepted, ended, losses, replaced_by, unit, .. } = self.record;
        let GuardedUpdates { is_kept_on_disk, .. } = self.server.guarded;
        let workload = |(name, touched): (&Name, &TouchedWorkload)| {
            let [old, new] = [&touched.old, &touched.new].map(|it| it.as_ref().map(|it| Node::text(it.to_string())));
            let after = touched.after.as_ref().map(Node::text);
            let fields = [("old", old), ("new", new), ("after", after)];
            (name.to_string(), Node::object(fields.into_iter().filter_map(|(key, node)| Some((key, node?)))))
        };
        let config = |(key, touched): (&String, &TouchedConfig)| {
            (key.clone(), Node::map(touched.after.as_ref().map(|after| ("after", Node::text(after)))))
        };
        let mut before = unit.before_node();
        if let Node::Map(entries) = &mut before {
            entries.insert("apiVersion".to_owned(), Node::text(&self.server.workloads.desired.api_version));
        }
        let waits_for = self.waits_for().into_iter().map(Node::Text).collect();
        let fields = [
            ("phase", Some(Node::text(phase.as_str()))),
            ("reason", reason.as_ref().map(Node::text)),
            ("accepted", Some(Node::text(accepted))),
            ("ended", ended.as_ref().map(Node::text)),
            ("losses", Some(Node::Number(u64::from(*losses)))),
            ("waitsFor", Some(Node::List(waits_for))),
            ("before", (!self.record.has_lost_way_back).then_some(before)),
            ("workloads", Some(Node::map(unit.workloads.iter().map(workload)))),
            ("configs", Some(Node::map(unit.configs.iter().map(config)))),
            ("replacedBy", replaced_by.map(|number| Node::text(number.to_string()))),
            ("keptIn", Some(Node::text(if is_kept_on_disk { "DISK" } else { "MEMORY" }))),
        ];
        Node::object(
            fields.into_iter().filter_map(|(key, node)| Some((key, node.filter(|it| !it.is_empty_container())?))),
        )
    }

    fn waits_for(&self) -> Vec<String> {
        let Some(open) = self.open else { return Vec::new() };
        if !open.is_staging() {
            return open.trial.waits_for();
        }
        let (workloads, agents) = open.staging.waits_for(self.server.now());
        let agents = agents.into_iter().map(|agent| format!("{AGENT_PREFIX}{agent}"));
        workloads.into_iter().map(ToString::to_string).chain(agents).collect()
    }
}
