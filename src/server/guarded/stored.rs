//! Guarded updates on disk: beside the desired state, in the same file.
//!
//! Thread: `server`; plain functions and the part of [`ServerLoop`] that goes on after a start.

use super::trial::Candidate;
use super::unit::{Form, TouchedConfig, TouchedWorkload, Unit};
use super::{GuardedUpdates, Open, Record};
use crate::limits::{UPDATE_LOSSES, UPDATES_OPEN};
use crate::model::complete_state::{Rendering, config_from_node, config_node, workload_from_node, workload_node};
use crate::model::guarded_update::UpdatePhase;
use crate::model::lifecycle::OnFailure;
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::workload::Workload;
use crate::server::ServerLoop;
use crate::server::events::Changes;
use crate::server::plan::Difference;
use crate::server::state_store::Stored;
use std::collections::BTreeMap;
use std::sync::Arc;

// ------------------------------------------------------------------ to disk

fn added_node(added: &AddedWorkload, desired: Option<&Arc<Workload>>) -> Node {
    // Where templates and hooks change nothing, the text would stand there twice.
    let workload = (desired != Some(&added.workload)).then(|| workload_node(&added.workload, Rendering::Sparse));
    let instance = ("instance", Node::text(added.instance.to_string()));
    Node::object(std::iter::once(instance).chain(workload.map(|workload| ("workload", workload))))
}

fn form_node(form: &Form) -> Node {
    let desired = form.desired.as_ref();
    let rendered = form.rendered.as_ref().filter(|rendered| form.effective.as_ref() != Some(*rendered));
    let parts = [
        ("desired", desired.map(|desired| workload_node(desired, Rendering::Sparse))),
        ("rendered", rendered.map(|rendered| added_node(rendered, desired))),
        ("effective", form.effective.as_ref().map(|effective| added_node(effective, desired))),
    ];
    Node::object(parts.into_iter().filter_map(|(key, node)| Some((key, node?))))
}

fn texts<const N: usize>(texts: [(&'static str, Option<&str>); N]) -> impl Iterator<Item = (&'static str, Node)> {
    texts.into_iter().filter_map(|(key, text)| Some((key, Node::text(text?)))).collect::<Vec<_>>().into_iter()
}

/// What is stored of an update. `in_force` returns what runs of a workload whose new form is not carried out yet.
pub(super) fn node(record: &Record, in_force: impl Fn(&Name) -> Option<Form>) -> Node {
    let Record {
        source,
        is_of_workload,
        phase,
        reason,
        accepted,
        ended,
        losses,
        replaced_by,
        unit,
        dependents,
        was_switched,
        was_sent,
        remembered,
        ..
    } = record;
    let workload = |(name, touched): (&Name, &TouchedWorkload)| {
        let [old, new] = [&touched.old, &touched.new].map(|it| it.as_ref().map(ToString::to_string));
        let fields = texts([
            ("old", old.as_deref()),
            ("new", new.as_deref()),
            ("after", touched.after.as_deref()),
            ("print", Some(&touched.print)),
            ("ran", touched.ran.then_some("true")),
        ]);
        let before = ("before", form_node(&touched.before));
        let in_force = in_force(name).map(|form| ("inForce", form_node(&form)));
        (name.to_string(), Node::object(fields.chain([before]).chain(in_force)))
    };
    let config = |(key, touched): (&String, &TouchedConfig)| {
        let before = touched.before.as_ref().map(|before| ("before", config_node(before)));
        (key.clone(), Node::object(texts([("after", touched.after.as_deref())]).chain(before)))
    };
    let replaced_by = replaced_by.map(|number| number.to_string());
    let fields = texts([
        ("source", Some(&**source)),
        ("ofWorkload", is_of_workload.then_some("true")),
        ("phase", Some(phase.as_str())),
        ("reason", reason.as_deref()),
        ("accepted", Some(accepted)),
        ("ended", ended.as_deref()),
        ("replacedBy", replaced_by.as_deref()),
        ("remembered", remembered.as_deref()),
        ("switched", was_switched.then_some("true")),
        ("sent", was_sent.then_some("true")),
        ("lostWayBack", record.has_lost_way_back.then_some("true")),
    ]);
    let dependents = dependents.iter().map(|(name, on_failure)| (name.to_string(), Node::text(on_failure.as_str())));
    Node::object(fields.chain([
        ("losses", Node::Number(u64::from(*losses))),
        ("workloads", Node::map(unit.workloads.iter().map(workload))),
        ("configs", Node::map(unit.configs.iter().map(config))),
        ("dependents", Node::map(dependents)),
    ]))
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
        let open = guarded.open.values().map(|open| {
            let in_force = |name: &Name| {
                open.staging.pending.contains_key(name).then(|| Form {
                    desired: None,
                    rendered: self.workloads.before_hooks().get(name).cloned(),
                    effective: self.workloads.before_modes().get(name).cloned(),
                })
            };
            (open.record.number, Arc::new(node(&open.record, in_force)))
        });
        let ended = guarded.ended.iter().map(|ended| (ended.record.number, ended.stored.clone()));
        Stored { desired, updates: Some((guarded.newest, open.chain(ended).collect())) }
    }
}

// ---------------------------------------------------------------- from disk

fn text(node: &Node, key: &str) -> Option<String> {
    node.get(key)?.as_text().map(str::to_owned)
}

fn instance(node: &Node, key: &str) -> Option<InstanceName> {
    InstanceName::parse(node.get(key)?.as_text()?)
}

fn added_from(node: &Node, desired: Option<&Arc<Workload>>) -> Option<AddedWorkload> {
    let workload = match node.get("workload") {
        Some(workload) => Arc::new(workload_from_node(workload, "workload").ok()?),
        None => desired?.clone(),
    };
    Some(AddedWorkload { instance: instance(node, "instance")?, workload })
}

/// `None` when it cannot be read: what would be put back is not known then.
fn form_from(node: &Node) -> Option<Form> {
    let desired = node.get("desired").map(|desired| workload_from_node(desired, "workload").map(Arc::new));
    let desired = desired.transpose().ok()?;
    let part = |key| node.get(key).map(|part| added_from(part, desired.as_ref()).ok_or(())).transpose().ok();
    let effective = part("effective")?;
    let rendered = part("rendered")?.or_else(|| effective.clone());
    Some(Form { desired, rendered, effective })
}

fn record_from(number: u64, node: &Node) -> Option<Record> {
    let workload = |(name, node): (&str, &Node)| {
        let touched = TouchedWorkload {
            before: form_from(node.get("before")?)?,
            old: instance(node, "old"),
            new: instance(node, "new"),
            after: text(node, "after"),
            print: text(node, "print").unwrap_or_default(),
            ran: node.get("ran").is_some(),
        };
        Some((Name::from(name), touched))
    };
    let config = |(key, node): (&str, &Node)| {
        (key.to_owned(), TouchedConfig { before: node.get("before").map(config_from_node), after: text(node, "after") })
    };
    let dependent = |(name, node): (&str, &Node)| Some((Name::from(name), OnFailure::parse(node.as_text()?)?));
    Some(Record {
        number,
        source: text(node, "source").unwrap_or_default().into(),
        is_of_workload: node.get("ofWorkload").is_some(),
        phase: UpdatePhase::parse(node.get("phase")?.as_text()?)?,
        reason: text(node, "reason"),
        accepted: text(node, "accepted").unwrap_or_default(),
        ended: text(node, "ended"),
        losses: node.get("losses").and_then(Node::as_number).map_or(0, |it| u32::try_from(it).unwrap_or(UPDATE_LOSSES)),
        replaced_by: text(node, "replacedBy").and_then(|number| number.parse().ok()),
        unit: Unit {
            workloads: node.entries("workloads").map(workload).collect::<Option<_>>()?,
            configs: node.entries("configs").map(config).collect(),
        },
        dependents: node.entries("dependents").filter_map(dependent).collect(),
        was_switched: node.get("switched").is_some(),
        was_sent: node.get("sent").is_some(),
        remembered: text(node, "remembered"),
        has_lost_way_back: node.get("lostWayBack").is_some(),
    })
}

impl ServerLoop {
    /// Goes on with stored updates, each in its phase, after the desired state was taken over as if all were carried out.
    // [impl->swdd~server-keeps-guarded-updates~1]
    pub(in crate::server) fn restore_updates(&mut self, newest: u64, updates: &[(u64, Arc<Node>)]) {
        // Ours never comes near that; numbers given from now on are new in any case.
        let known = updates.iter().map(|(number, _)| *number).max().unwrap_or_default();
        self.guarded.newest = newest.max(known).min(u64::MAX / 2);
        for (number, node) in updates {
            match record_from(*number, node) {
                Some(record) if !record.phase.is_open() => self.guarded.keep(record),
                Some(record) if self.guarded.open.len() < UPDATES_OPEN => self.restore(record, node),
                Some(_) => log::error!("Forgetting update {number}: more than {UPDATES_OPEN} are open."),
                None => log::error!("Forgetting update {number}: what is stored of it cannot be read."),
            }
        }
        while self.settle_updates() {}
    }

    fn restore(&mut self, record: Record, node: &Node) {
        let (now, number) = (self.now(), record.number);
        let mut open = Open::new(record, now);
        let in_force = node
            .entries("workloads")
            .filter_map(|(name, node)| Some((Name::from(name), form_from(node.get("inForce")?)?)));
        let in_force: BTreeMap<Name, Form> = in_force.filter(|_| open.is_staging()).collect();
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

    /// While an update is being staged, agents have to run what was in force before.
    fn put_back_in_force(&mut self, open: &mut Open, in_force: &BTreeMap<Name, Form>) {
        let names = |name: &Name| {
            let workloads = &self.workloads;
            let new = Form {
                desired: workloads.desired.workloads.get(name).cloned(),
                rendered: workloads.before_hooks().get(name).cloned(),
                effective: workloads.before_modes().get(name).cloned(),
            };
            (name.clone(), new)
        };
        let new: BTreeMap<Name, Form> = in_force.keys().map(names).collect();
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
