//! What clients read of guarded updates.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::{Open, Record};
use crate::model::guarded_update::AGENT_PREFIX;
use crate::model::mask_tree::Wanted;
use crate::model::node::{Entries, Node};
use crate::server::ServerLoop;
use crate::server::state_view::entries;
use std::collections::BTreeMap;

/// What of a stored update is read beside what it waits for and what was before.
const SHOWN: [&str; 8] = ["phase", "reason", "accepted", "ended", "losses", "workloads", "configs", "replacedBy"];

impl ServerLoop {
    /// What masks select of the updates; there even when nothing is selected, so that a reader learns that this server
    /// keeps some.
    pub(in crate::server) fn read_updates(&self, wanted: &Wanted<'_>) -> Node {
        entries(wanted, &self.updates(), UpdateView::node).unwrap_or_default()
    }

    pub(super) fn updates(&self) -> BTreeMap<String, UpdateView<'_>> {
        let guarded = &self.guarded;
        let view = |record, open| UpdateView { server: self, record, open };
        let ended = guarded.ended.iter().map(|ended| view(&ended.record, None));
        let open = guarded.open.values().map(|open| view(&open.record, Some(open)));
        open.chain(ended).map(|view| (view.record.number.to_string(), view)).collect()
    }
}

/// One update, to be read.
pub(super) struct UpdateView<'s> {
    pub server: &'s ServerLoop,
    pub record: &'s Record,
    pub open: Option<&'s Open>,
}

impl UpdateView<'_> {
    /// As it is read.
    fn node(&self) -> Node {
        let mut node = self.record.node();
        let Node::Map(fields) = &mut node else { return node };
        fields.retain(|key, _| SHOWN.contains(&key));
        for (part, parts) in [("workloads", &["old", "new", "after"][..]), ("configs", &["after"])] {
            for entry in fields.get_mut(part).and_then(Node::as_map_mut).into_iter().flat_map(Entries::values_mut) {
                entry.as_map_mut().into_iter().for_each(|entry| entry.retain(|key, _| parts.contains(&key)));
            }
        }
        if !self.record.has_lost_way_back {
            let mut before = self.record.unit.before_node();
            if let Node::Map(entries) = &mut before {
                entries.insert("apiVersion", Node::text(&self.server.workloads.desired.api_version));
            }
            fields.insert("before", before);
        }
        fields.insert("waitsFor", Node::List(self.waits_for().into_iter().map(Node::Text).collect()));
        let place = if self.server.guarded.is_kept_on_disk { "DISK" } else { "MEMORY" };
        fields.insert("keptIn", Node::text(place));
        fields.retain(|_, node| !node.is_empty_container());
        node
    }

    pub fn waits_for(&self) -> Vec<String> {
        let Some(open) = self.open else { return Vec::new() };
        if !open.is_staging() {
            return open.trial.waits_for();
        }
        let (workloads, agents) = open.staging.waits_for(self.server.now());
        let agents = agents.into_iter().map(|agent| format!("{AGENT_PREFIX}{agent}"));
        workloads.into_iter().map(ToString::to_string).chain(agents).collect()
    }
}
