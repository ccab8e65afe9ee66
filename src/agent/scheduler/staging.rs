//! What is to be prepared of each workload beside what runs: what waits, or what the server lets
//! this agent stage for an update; what the server is sent of that; and what an earlier agent has
//! prepared.
//!
//! Thread: `scheduler`; part of [`Workloads`]. The list of the server is complete each time. A
//! lost connection changes nothing: each session has a list, which is empty when none has come
//! before the hello.

use super::workloads::{Existing, Record, Waits, Workloads};
use crate::events::{Note, PreparationReport};
use crate::scheduler::conditions::Gate;
use crate::settings::unsupported_runtime;
use crate::workload::mailbox::{Preparation, Surplus};
use crate::workload::preparation::record::Record as PreparedRecord;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::guarded_update::CANNOT_BE_STAGED;
use ankaios_model::messages::{AddedWorkload, PreparedInstance};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_runtime::probes::short_info;
use ankaios_runtime::{ListedContainer, RuntimeConnector};
use log::warn;
use std::collections::BTreeMap;
use std::time::Duration;

/// The files that engines copy into a container: with them it has the name servers, the host names
/// and the time zone of the node.
pub(crate) const COPIED_FILES: [&str; 4] = [
    "/etc/hosts",
    "/etc/localtime",
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
];

/// For so long the old instance runs on after the new one could not be staged, so that the server
/// can undo the update.
const UNDONE_WITHIN: Duration = Duration::from_secs(60);

/// An instance that is staged.
pub(super) struct Staged {
    added: AddedWorkload,
    /// The conditions under which it may replace the old one.
    pub(super) gate: Option<Gate>,
    /// What the server was sent of it in this session.
    told: Option<PreparedInstance>,
}

/// How far the block `update` wants the instance to be prepared.
fn stage_of(added: &AddedWorkload) -> PrepareLevel {
    let config = added.workload.config();
    let block = config
        .usable_lifecycle()
        .and_then(|lifecycle| lifecycle.update.as_ref());
    block.map_or(PrepareLevel::None, |block| block.stage)
}

pub(super) fn surplus_of(
    runtime: &Name,
    ListedContainer { instance, id, .. }: &ListedContainer,
) -> Surplus {
    Surplus {
        runtime: runtime.clone(),
        instance: instance.clone(),
        id: id.clone(),
        is_unused: false,
    }
}

/// Whether the record of an earlier agent says that it has prepared this container, or was about
/// to.
pub(super) fn is_prepared(connector: &dyn RuntimeConnector, container: &ListedContainer) -> bool {
    let record = connector.prepared_record(&container.instance);
    record
        .as_deref()
        .and_then(PreparedRecord::read)
        .is_some_and(|record| record.may_be_of(&container.id))
}

impl<C: Clock> Workloads<C> {
    // ------------------------------------------------------ what the server stages

    /// These are all instances to be staged from now on.
    // [impl->swdd~agent-stages-updates~1]
    pub(crate) fn stage(&mut self, mut list: BTreeMap<Name, AddedWorkload>) {
        self.has_stage_list = true;
        for (name, record) in &mut self.records {
            if record
                .staged
                .take_if(|staged| list.get(name) != Some(&staged.added))
                .is_some()
            {
                self.touched.insert(name.clone());
            } else if record.staged.is_some() {
                list.remove(name); // It stays as it is.
            }
        }
        for (name, added) in list {
            let gate = self.gate(&added, true);
            self.records.entry(name.clone()).or_default().staged = Some(Staged {
                added,
                gate,
                told: None,
            });
            self.touched.insert(name);
        }
    }

    /// The server sends a hello, by which it forgets what was reported. Without a list before it
    /// nothing is to be staged any more.
    pub(super) fn session_begins(&mut self) {
        if !self.has_stage_list {
            self.stage(BTreeMap::new());
        }
        (self.has_stage_list, self.awaits_listings) = (false, true);
        self.records
            .values_mut()
            .filter_map(|record| record.staged.as_mut())
            .for_each(|staged| staged.told = None);
    }

    /// The connection is lost: the list that comes next belongs to another session. Nothing else
    /// changes.
    pub(crate) fn session_ended(&mut self) {
        self.has_stage_list = false;
    }

    /// What is to be reported of what is staged.
    pub(crate) fn staging_reports(&mut self) -> Vec<PreparedInstance> {
        if self.awaits_listings {
            return Vec::new();
        }
        let news = self.records.values().filter_map(|record| {
            let staged = record.staged.as_ref()?;
            Some(self.progress(record, &staged.added))
                .filter(|now| staged.told.as_ref() != Some(now))
        });
        let news: Vec<PreparedInstance> = news.collect();
        for now in &news {
            let name = &now.instance.workload;
            if let PreparedInstance {
                reason: Some(reason),
                tries,
                is_final,
                ..
            } = now
            {
                let end = if *is_final {
                    "given up"
                } else {
                    "trying again"
                };
                let _source = log_source(name.clone());
                warn!(
                    "The update of workload '{name}' cannot be staged, try {tries}, {end}: '{reason}'"
                );
            }
            let staged = self
                .records
                .get_mut(name)
                .and_then(|record| record.staged.as_mut());
            staged
                .into_iter()
                .for_each(|staged| staged.told = Some(now.clone()));
        }
        news
    }

    /// How far an instance that is staged is.
    fn progress(&self, record: &Record, added: &AddedWorkload) -> PreparedInstance {
        let (target, stage) = (self.staged_level(record, added), stage_of(added));
        let report = record.report(added);
        // What runs or waits as it is needs nothing as long as it does.
        let is_there = record.carries_out(added) || target == Some(PrepareLevel::None);
        let level = match report
            .and_then(|report| report.done)
            .filter(|_| target.is_some())
        {
            _ if is_there => Some(stage.min(target.unwrap_or(stage))),
            done => done,
        };
        let report = report.filter(|_| level.is_none());
        let mut failure = report.and_then(|report| report.failure.clone());
        let mut is_final = report.is_some_and(|report| report.is_final);
        if !self.context.engines.contains_key(&added.workload.runtime) {
            let reason = short_info(unsupported_runtime(&added.workload.runtime));
            (failure, is_final) = (Some((reason, 0)), true);
        }
        let unmet = record
            .staged_gate()
            .and_then(Gate::staged_unmet)
            .filter(|_| level.is_some() || is_final);
        let unmet = unmet.map(|unmet| short_info(unmet.to_owned()));
        let (reason, tries) = failure.unzip();
        let (tries, instance) = (tries.unwrap_or(0), added.instance.clone());
        PreparedInstance {
            instance,
            level,
            reason,
            tries,
            is_final,
            unmet,
        }
    }

    /// Whether this instance is wanted, staged or there.
    pub(crate) fn keeps(&self, instance: &InstanceName) -> bool {
        self.has(instance)
            || self
                .staged_of(&instance.workload)
                .is_some_and(|staged| staged.instance == *instance)
    }

    fn staged_of(&self, name: &Name) -> Option<&AddedWorkload> {
        self.records.get(name).and_then(Record::staged)
    }

    /// How far a staged instance is to be prepared; `None` while that is not known.
    fn staged_level(&self, record: &Record, added: &AddedWorkload) -> Option<PrepareLevel> {
        let gate = record.staged_gate();
        if gate.is_some_and(Gate::is_inactive) {
            return Some(PrepareLevel::None); // It will not be created.
        }
        // A create would fail without the paths of a precondition.
        let most = if gate.is_none_or(Gate::may_run) {
            PrepareLevel::Init
        } else {
            PrepareLevel::Image
        };
        (!self.awaits_listings && self.may_prepare(added)).then(|| stage_of(added).min(most))
    }

    // ----------------------------------------------- what is staged before a stop

    /// Whether the old instance runs on until the new one is staged. It is already when the server
    /// has let this agent stage it; an agent that was away then does it now.
    // [impl->swdd~agent-stages-updates~1]
    pub(super) fn is_to_be_staged(&self, name: &Name) -> bool {
        let Some(record) = self
            .records
            .get(name)
            .filter(|record| record.live().is_some())
        else {
            return false;
        };
        let new = record
            .wanted
            .as_ref()
            .filter(|new| !record.runs(new) && !record.starts_again());
        new.is_some_and(|new| {
            stage_of(new) > PrepareLevel::None
                && record
                    .report(new)
                    .is_none_or(|report| report.done.is_none() && !report.is_final)
                && self.may_prepare(new)
                && !record.gate.as_ref().is_some_and(Gate::is_inactive)
        })
    }

    /// What follows from a report about what is to be staged before the old instance stops.
    fn stages_before_stop(&mut self, report: &PreparationReport) {
        let instance = &report.added.instance;
        // What the server lets this agent stage may be yet another instance.
        let wanted = self
            .records
            .get(&instance.workload)
            .and_then(|record| record.wanted.as_ref());
        let is_wanted = wanted == Some(&report.added);
        let Some(until) = self
            .unstaged
            .get_mut(&instance.workload)
            .filter(|_| is_wanted)
        else {
            return;
        };
        if report.done.is_some() {
            self.unstaged.remove(&instance.workload);
            return self.decide(&instance.workload, false);
        }
        if !report.is_final || until.is_some() {
            return;
        }
        *until = Some(self.context.clock.now() + UNDONE_WITHIN);
        let reason = report
            .failure
            .as_ref()
            .map(|(reason, _)| reason.as_str())
            .unwrap_or_default();
        let state = ExecutionState::with_info(
            Phase::PendingStartingFailed,
            format!("{CANNOT_BE_STAGED}{reason}"),
        )
        .because(Reason::CannotBeStaged);
        self.reports
            .push_back(WorkloadState::new(instance.clone(), state));
    }

    /// Lets old instances stop whose new ones could not be staged, which nobody has taken back.
    pub(super) fn release_unstaged(&mut self) {
        let now = self.context.clock.now();
        let due: Vec<Name> = self
            .unstaged
            .extract_if(.., |_, until| until.is_some_and(|until| until <= now))
            .map(|(name, _)| name)
            .collect();
        for name in &due {
            let _source = log_source(name.clone());
            warn!("Replacing workload '{name}' although its new instance cannot be prepared.");
        }
        self.decide_all(&due);
    }

    // -------------------------------------------------------- orders to the loops

    /// Orders what is to be prepared of the workloads that were touched since the last call, and
    /// forgets those of which there is nothing any more.
    pub(crate) fn prepare(&mut self) {
        self.touched.extend(self.found.keys().cloned());
        while let Some(name) = self.touched.pop_first() {
            if self.records.get(&name).is_some_and(Record::is_empty) {
                self.records.remove(&name);
            }
            // A container of the same instance may turn out to go on.
            let is_staged = self.staged_of(&name).is_some();
            if self.awaits_listings && is_staged || self.may_be_elsewhere(&name) {
                continue;
            }
            let wanted = self.preparation_of(&name);
            if wanted.is_none() {
                self.note(&name, Note::default());
            }
            let found = self.found.remove(&name);
            let object = match wanted
                .as_ref()
                .map(|wanted| &wanted.added)
                .or(found.as_ref().map(|(added, _)| added))
            {
                Some(AddedWorkload { instance, workload }) => {
                    self.object_for(instance, &workload.runtime)
                }
                None => self.object(&name),
            };
            if let Some(object) =
                object.filter(|object| object.preparation != wanted || found.is_some())
            {
                object.wishes.prepare(wanted.clone(), found);
                (object.preparation, object.prepared) = (wanted, None);
            }
        }
    }

    /// A control loop reports how far it has prepared something.
    pub(crate) fn prepared(&mut self, report: PreparationReport) {
        let name = report.added.instance.workload.clone();
        // What is staged is shown by the server.
        let shows = |record: &Record| {
            record
                .staged()
                .is_none_or(|staged| record.carries_out(staged))
        };
        let is_shown = self.records.get(&name).is_some_and(shows);
        let note = if is_shown {
            report.note.clone()
        } else {
            Note::default()
        };
        let Some(object) = self.object(&name) else {
            return;
        };
        if object
            .preparation
            .as_ref()
            .is_some_and(|wanted| wanted.added == report.added)
        {
            object.prepared = Some(report.clone());
            self.note(&name, note);
            self.stages_before_stop(&report);
        }
    }

    /// Shows this while the workload waits.
    fn note(&mut self, name: &Name, note: Note) {
        if let Some(record) = self.records.get_mut(name) {
            record.note = note;
            self.reports.extend(record.renewed(&self.store));
        }
    }

    /// Each workload that waits, or is staged, may be prepared differently now.
    pub(crate) fn touch_waiting(&mut self) {
        let waits = |record: &Record| record.waits != Waits::No || record.staged.is_some();
        self.touched.extend(
            self.records
                .iter()
                .filter(|(_, record)| waits(record))
                .map(|(name, _)| name.clone()),
        );
    }

    /// What is to be prepared of a workload, if it is staged, or waits and may be.
    fn preparation_of(&self, name: &Name) -> Option<Preparation> {
        let tries = || Some(self.context.retry_limit.unwrap_or(u32::MAX));
        let record = self.records.get(name)?;
        let staged = record.staged().filter(|added| !record.carries_out(added));
        let (added, level, retry_limit) = if let Some(added) = staged {
            (added, self.staged_level(record, added)?, tries())
        } else {
            let added = record.waiting()?;
            let gate = record.gate.as_ref();
            if gate.is_some_and(Gate::is_inactive) || !self.may_prepare(added) {
                return None;
            }
            // What was staged for an update that is carried out now, and waits for others, is kept.
            let before = record
                .object
                .as_ref()
                .and_then(|object| object.preparation.as_ref());
            let before = before
                .filter(|before| before.added == *added)
                .map(|before| before.level);
            let is_unstaged = self.unstaged.contains_key(name);
            let stage = if is_unstaged {
                stage_of(added)
            } else {
                PrepareLevel::None
            };
            let level = self
                .requested(added)
                .max(before.unwrap_or_default())
                .max(stage);
            // A create would fail without the paths of a precondition, and an `init` would pin
            // mounts.
            let may_run = gate.and_then(Gate::reason).is_none();
            let level = if may_run {
                level
            } else {
                level.min(PrepareLevel::Image)
            };
            (added, level, is_unstaged.then(tries).flatten())
        };
        (level > PrepareLevel::None).then(|| Preparation {
            added: added.clone(),
            level,
            retry_limit,
        })
    }

    /// Whether nothing of the workload is known, and an engine may have a container of it.
    fn may_be_elsewhere(&self, name: &Name) -> bool {
        let unknown = self
            .records
            .get(name)
            .filter(|record| record.object.is_none() && !self.found.contains_key(name));
        let mut wanted = unknown
            .into_iter()
            .flat_map(|record| record.staged().into_iter().chain(record.waiting()));
        wanted.any(|added| self.listings.hold_up(&added.workload.runtime).is_some())
    }

    /// Whether the engine is there and has said what an earlier agent has left.
    fn may_prepare(&self, added: &AddedWorkload) -> bool {
        let runtime = &added.workload.runtime;
        self.context.engines.contains_key(runtime) && !self.listings.is_missing(runtime)
    }

    /// How far the workload is to be prepared as it says, or as the setting says.
    fn requested(&self, added: &AddedWorkload) -> PrepareLevel {
        match &added.workload.config().lifecycle {
            Ok(block) => block
                .as_ref()
                .and_then(|block| block.prepare)
                .unwrap_or(self.prepare_level),
            Err(_) => PrepareLevel::None, // It will not be started.
        }
    }

    // ------------------------------------------------- what an earlier agent prepared

    /// Takes those of the containers that an earlier agent has prepared: what is staged, or wanted
    /// as it is, waits for its start, the others are returned to be removed. The rest stays.
    pub(super) fn take_prepared(
        &mut self,
        name: &Name,
        wanted: Option<&AddedWorkload>,
        candidates: &mut Vec<Existing>,
    ) -> Vec<Surplus> {
        // Nothing is created of an instance that runs in another form.
        let runs = self
            .records
            .get(name)
            .and_then(|record| record.object.as_ref())
            .map(|object| &object.instance);
        let staged = self
            .staged_of(name)
            .filter(|staged| runs != Some(&staged.instance))
            .cloned();
        let mut unused = Vec::new();
        candidates.retain(|(runtime, container)| {
            let waits = ["created", "configured", "initialized"];
            let (state, instance) = (&container.state, &container.instance);
            let is_waiting = waits
                .iter()
                .any(|text| text.eq_ignore_ascii_case(&state.additional_info));
            let connector = self.context.connector(runtime);
            let Some(connector) =
                connector.filter(|_| state.phase == Phase::PendingStarting && is_waiting)
            else {
                return true;
            };
            let staged = staged
                .as_ref()
                .filter(|staged| staged.instance == *instance);
            let Some(added) = staged.or(wanted) else {
                return true;
            };
            let text = connector.prepared_record(instance);
            let is_wanted = *instance == added.instance && *runtime == added.workload.runtime;
            let is_initialised = state.additional_info.eq_ignore_ascii_case("initialized");
            if text.is_none() && !(is_wanted && self.requested(added) > PrepareLevel::None) {
                return true; // A start of an earlier agent was cut short.
            }
            let calls = &self.context.calls;
            let record = text.as_deref().and_then(PreparedRecord::read);
            let kept = record.filter(|record| is_wanted && record.may_be_of(&container.id));
            let kept = kept.and_then(|record| {
                record.container(added, &calls.folder, &*connector, &calls.boot)
            });
            match kept.filter(|kept| (kept.level == PrepareLevel::Init) == is_initialised) {
                Some(kept) => _ = self.found.insert(name.clone(), (added.clone(), kept)),
                None => unused.push(Surplus {
                    is_unused: true,
                    ..surplus_of(runtime, container)
                }),
            }
            false
        });
        unused
    }
}

impl Record {
    fn staged(&self) -> Option<&AddedWorkload> {
        self.staged.as_ref().map(|staged| &staged.added)
    }

    /// Whether this is wanted already, exactly as it is.
    fn carries_out(&self, added: &AddedWorkload) -> bool {
        self.waiting() == Some(added) || self.runs(added)
    }

    pub(super) fn staged_gate(&self) -> Option<&Gate> {
        self.staged.as_ref()?.gate.as_ref()
    }

    /// How far its control loop has prepared this.
    fn report(&self, added: &AddedWorkload) -> Option<&PreparationReport> {
        self.object
            .as_ref()?
            .prepared
            .as_ref()
            .filter(|report| report.added == *added)
    }
}

#[cfg(test)]
mod tests;
