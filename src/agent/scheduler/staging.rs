//! The preparations of control loops: of starts that wait, and of instances that the server lets
//! this agent stage for an update. Also the reports about these to the server, and the containers
//! that an earlier agent has prepared.
//!
//! Thread: `scheduler`; part of [`WorkloadRecords`]. The list of the server is complete each time.
//! A lost connection changes nothing: each session has a list, which is empty when none has come
//! before the hello.

use super::conditions::StartConditions;
use super::workloads::{Existing, Waits, WorkloadRecord, WorkloadRecords};
use crate::settings::unsupported_runtime;
use crate::workload::mailbox::{FoundContainer, FoundPurpose, Preparation};
use crate::workload::preparation::record::PreparedRecord;
use ankaios_model::messages::{AddedWorkload, PreparedInstance};
use ankaios_model::names::Name;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_runtime::probes::short_info;
use ankaios_runtime::{ListedContainer, NeverStarted, RuntimeConnector};
use log::warn;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The files that engines copy into a container, so that it has the name servers, the host names
/// and the time zone of the node.
pub(crate) const COPIED_FILES: [&str; 4] = [
    "/etc/hosts",
    "/etc/localtime",
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
];

/// How long the current instance keeps running after the staging of the new one has failed. In this
/// time the server can roll the update back.
const UNDONE_WITHIN: Duration = Duration::from_secs(60);

/// An instance that is staged.
pub(super) struct Staged {
    added: AddedWorkload,
    /// The conditions that must hold before it replaces the current one.
    pub(super) conditions: Option<StartConditions>,
    /// The report that the server was sent in this session.
    sent: Option<PreparedInstance>,
}

/// The staging of the new instance, while the current one waits for it before it stops.
pub(super) enum StagingBeforeStop {
    UnderWay,
    /// It has failed for good. The current instance stops at `until`, unless the server rolls the
    /// update back.
    Failed {
        reason: String,
        until: Instant,
    },
}

/// How far an instance must be prepared to be staged, by its block `update`.
fn stage_of(added: &AddedWorkload) -> PrepareLevel {
    let config = added.workload.config();
    if let Some(lifecycle) = config.usable_lifecycle()
        && let Some(update) = &lifecycle.update
    {
        return update.stage;
    }
    PrepareLevel::None
}

/// Whether an earlier agent has prepared this container, or may have, as its record says.
pub(super) fn is_prepared(connector: &dyn RuntimeConnector, container: &ListedContainer) -> bool {
    match prepared_record(connector, container) {
        Some(record) => record.may_be_of(&container.id),
        None => false,
    }
}

fn prepared_record(
    connector: &dyn RuntimeConnector,
    container: &ListedContainer,
) -> Option<PreparedRecord> {
    PreparedRecord::read(&connector.prepared_record(&container.instance)?)
}

impl<C: Clock> WorkloadRecords<C> {
    // -------------------------------------------------------- staged instances

    /// Takes the instances to stage; the list is complete.
    // [impl->swdd~agent-stages-updates~1]
    pub(crate) fn stage(&mut self, mut list: BTreeMap<Name, AddedWorkload>) {
        self.has_stage_list = true;
        for (name, record) in &mut self.records {
            let Some(staged) = &record.staged else {
                continue;
            };
            if list.get(name) == Some(&staged.added) {
                list.remove(name); // It stays as it is.
            } else {
                record.staged = None;
                self.dirty.insert(name.clone());
            }
        }
        for (name, added) in list {
            let conditions = self.evaluate(&added, true);
            self.records.entry(name.clone()).or_default().staged = Some(Staged {
                added,
                conditions,
                sent: None,
            });
            self.dirty.insert(name);
        }
    }

    /// Begins a session, when the hello of the server is received.
    pub(super) fn session_begins(&mut self) {
        // First: drop staged instances. A server that stages any sends their list before its hello.
        if !self.has_stage_list {
            self.stage(BTreeMap::new());
        }
        self.has_stage_list = false;
        // Then: wait for the listings of the engines.
        self.awaits_listings = true;
        // Finally: report all staged instances again, since this server has received no report.
        for record in self.records.values_mut() {
            if let Some(staged) = &mut record.staged {
                staged.sent = None;
            }
        }
    }

    /// Ends a session, since the connection is lost. Staged instances stay until the next session
    /// has its own list.
    pub(crate) fn session_ended(&mut self) {
        self.has_stage_list = false;
    }

    /// Returns the new reports about staged instances, and records them as sent.
    pub(crate) fn take_staging_reports(&mut self) -> Vec<PreparedInstance> {
        let mut reports = Vec::new();
        if self.awaits_listings {
            return reports; // How far to prepare an instance is not known yet, see `staged_level`.
        }
        // First: all new reports.
        for record in self.records.values() {
            let Some(staged) = &record.staged else {
                continue;
            };
            let report = self.progress(record, &staged.added);
            if staged.sent.as_ref() != Some(&report) {
                reports.push(report);
            }
        }
        // Then: record them as sent.
        for report in &reports {
            log_failed_staging(report);
            if let Some(record) = self.records.get_mut(&report.instance.workload)
                && let Some(staged) = &mut record.staged
            {
                staged.sent = Some(report.clone());
            }
        }
        reports
    }

    /// How far a staged instance is.
    fn progress(&self, record: &WorkloadRecord<C>, added: &AddedWorkload) -> PreparedInstance {
        let mut progress = PreparedInstance {
            instance: added.instance.clone(),
            level: None,
            reason: None,
            tries: 0,
            is_final: false,
            unmet: None,
        };
        let report = match &record.control_loop {
            Some(control_loop) => control_loop.report(added),
            None => None,
        };
        // First: the level that is reached, if it is the target. An instance that runs, waits to be
        // started, or will not be created needs no preparation, so it counts as prepared.
        let stage = stage_of(added);
        let target = self.staged_level(record, added);
        if record.runs_or_awaits(added) || target == Some(PrepareLevel::None) {
            progress.level = Some(stage.min(target.unwrap_or(stage)));
        } else if let Some(report) = report
            && target.is_some()
        {
            progress.level = report.done;
        }
        // Then: why it is not reached.
        if let Some(report) = report
            && progress.level.is_none()
        {
            progress.is_final = report.is_final;
            progress.tries = report.failures;
            if report.failures > 0 {
                progress.reason = Some(report.failure.clone());
            }
        }
        let runtime = &added.workload.runtime;
        if !self.context.engines.contains_key(runtime) {
            progress.reason = Some(short_info(unsupported_runtime(runtime)));
            progress.tries = 0;
            progress.is_final = true;
        }
        // Finally: the conditions that prevent the switch.
        if progress.level.is_some() || progress.is_final {
            let unmet = record
                .staged_conditions()
                .and_then(StartConditions::staged_unmet);
            progress.unmet = unmet.map(|unmet| short_info(unmet.to_owned()));
        }
        progress
    }

    /// How far to prepare a staged instance; `None` while that is not known.
    fn staged_level(
        &self,
        record: &WorkloadRecord<C>,
        added: &AddedWorkload,
    ) -> Option<PrepareLevel> {
        let mut level = stage_of(added);
        if let Some(conditions) = record.staged_conditions() {
            if conditions.is_inactive() {
                return Some(PrepareLevel::None); // It will not be created.
            }
            if !conditions.may_run() {
                // A create would fail without the paths of a precondition.
                level = level.min(PrepareLevel::Image);
            }
        }
        if self.awaits_listings || !self.may_prepare(added) {
            return None;
        }
        Some(level)
    }

    // ------------------------------------------------- staging before a stop

    /// Notes that the current instance of a workload keeps running until the new one is staged, if
    /// the server has sent a new one and its block `update` says so.
    pub(super) fn begin_staging_before_stop(&mut self, name: &Name) {
        let Some(record) = self.records.get(name) else {
            return;
        };
        if !record.is_requested || record.staging.is_some() || !self.must_be_staged(record) {
            return;
        }
        if let Some(record) = self.records.get_mut(name) {
            record.staging = Some(StagingBeforeStop::UnderWay);
        }
    }

    /// Whether the new instance must be staged before the current one stops. Mostly it is staged
    /// already. An agent that was not connected during the staging stages it now.
    // [impl->swdd~agent-stages-updates~1]
    fn must_be_staged(&self, record: &WorkloadRecord<C>) -> bool {
        let (Some(control_loop), Some(new)) = (&record.control_loop, &record.desired) else {
            return false;
        };
        if control_loop.current().is_none() || record.runs(new) || record.starts_again() {
            return false; // Nothing is stopped for the new instance.
        }
        if stage_of(new) == PrepareLevel::None || !self.may_prepare(new) {
            return false;
        }
        if let Some(conditions) = &record.conditions
            && conditions.is_inactive()
        {
            return false; // The new instance will not be created.
        }
        match control_loop.report(new) {
            Some(report) => report.done.is_none() && !report.is_final,
            None => true,
        }
    }

    /// Takes the progress of the staging that the current instance waits for: it ends the wait if
    /// it has succeeded, and limits it if it has failed for good.
    pub(super) fn follow_staging_before_stop(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(StagingBeforeStop::UnderWay) = &record.staging else {
            return;
        };
        // The report to follow is that of the desired instance. The server may stage another one by
        // now.
        let (Some(control_loop), Some(desired)) = (&record.control_loop, &record.desired) else {
            return;
        };
        let Some(report) = control_loop.report(desired) else {
            return;
        };
        if report.done.is_some() {
            record.staging = None;
            return;
        }
        if !report.is_final {
            return;
        }
        let until = self.context.clock.now() + UNDONE_WITHIN;
        let reason = report.failure.clone();
        record.staging = Some(StagingBeforeStop::Failed { reason, until });
        self.evaluate_by(until);
    }

    /// Ends the waits for stagings that have failed and that the server has not rolled back in
    /// time: the current instances may stop. Returns when the other waits end.
    pub(super) fn end_staging_before_stop(&mut self, now: Instant) -> Vec<Instant> {
        let mut due = Vec::new();
        for (name, record) in &mut self.records {
            let Some(StagingBeforeStop::Failed { until, .. }) = &record.staging else {
                continue;
            };
            if now < *until {
                due.push(*until);
                continue;
            }
            let _source = log_source(name.clone());
            warn!("Replacing workload '{name}' although its new instance cannot be prepared.");
            record.staging = None;
            self.dirty.insert(name.clone());
        }
        due
    }

    // ---------------------------------------------------- targets of preparations

    /// Marks each workload as dirty that waits, is staged or has undecided containers: a new
    /// listing may change what follows.
    pub(crate) fn reconcile_waiting(&mut self) {
        for (name, record) in &self.records {
            if record.waits != Waits::No || record.staged.is_some() || !record.found.is_empty() {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// The instance of a workload that its control loop must prepare.
    pub(super) fn next_of(&self, name: &Name) -> Option<Preparation> {
        let record = self.records.get(name)?;
        // A listing may still show a container of the same instance, so nothing changes until then.
        let is_unknown = self.awaits_listings && record.staged.is_some();
        if is_unknown || self.may_be_elsewhere(record) {
            return record.control_loop.as_ref()?.target.next.clone();
        }
        let next = match record.staged() {
            Some(staged) if !record.runs_or_awaits(staged) => self.staged_next(record, staged)?,
            _ => self.waiting_next(record)?,
        };
        if next.level == PrepareLevel::None {
            return None;
        }
        Some(next)
    }

    /// The preparation of a staged instance; `None` while its level is not known.
    fn staged_next(
        &self,
        record: &WorkloadRecord<C>,
        staged: &AddedWorkload,
    ) -> Option<Preparation> {
        Some(Preparation {
            added: staged.clone(),
            level: self.staged_level(record, staged)?,
            retry_limit: Some(self.stage_tries()),
        })
    }

    /// The preparation of an instance that waits to be started, if it may be prepared.
    fn waiting_next(&self, record: &WorkloadRecord<C>) -> Option<Preparation> {
        let added = record.waiting()?;
        let conditions = record.conditions.as_ref();
        if conditions.is_some_and(StartConditions::is_inactive) || !self.may_prepare(added) {
            return None;
        }
        // First: the level that is requested, for this start or for an update.
        let mut level = self.requested(added);
        // An instance that was staged, and waits for others after the switch, stays prepared.
        if let Some(control_loop) = &record.control_loop
            && let Some(before) = &control_loop.target.next
            && before.added == *added
        {
            level = level.max(before.level);
        }
        let mut retry_limit = None;
        if record.staging.is_some() {
            level = level.max(stage_of(added));
            retry_limit = Some(self.stage_tries());
        }
        // Then: at most the image while it is blocked. A create would fail without the paths of a
        // precondition, and an `init` would pin mounts.
        if conditions.and_then(StartConditions::reason).is_some() {
            level = level.min(PrepareLevel::Image);
        }
        Some(Preparation {
            added: added.clone(),
            level,
            retry_limit,
        })
    }

    /// How often the staging of an instance is retried.
    fn stage_tries(&self) -> u32 {
        self.context.retry_limit.unwrap_or(u32::MAX)
    }

    /// Whether no container of the workload is known, and an engine that has not listed may have
    /// one.
    fn may_be_elsewhere(&self, record: &WorkloadRecord<C>) -> bool {
        if record.control_loop.is_some() || !record.adopt.is_empty() {
            return false;
        }
        for added in [record.staged(), record.waiting()].into_iter().flatten() {
            let unlisted = self.listings.unlisted_note(&added.workload.runtime);
            if unlisted.is_some() {
                return true;
            }
        }
        false
    }

    /// Whether the engine is enabled and has listed the containers of an earlier agent.
    fn may_prepare(&self, added: &AddedWorkload) -> bool {
        let runtime = &added.workload.runtime;
        self.context.engines.contains_key(runtime) && !self.listings.is_missing(runtime)
    }

    /// How far to prepare the workload: as its `lifecycle:` block says, or else the setting.
    fn requested(&self, added: &AddedWorkload) -> PrepareLevel {
        match &added.workload.config().lifecycle {
            Ok(Some(block)) => block.prepare.unwrap_or(self.prepare_level),
            Ok(None) => self.prepare_level,
            Err(_) => PrepareLevel::None, // It will not be started.
        }
    }

    // --------------------------------------- containers that an earlier agent prepared

    /// Takes the containers that an earlier agent has prepared out of the list, and returns them
    /// with their purposes. A container of a staged or desired instance waits for its start. All
    /// other prepared containers are removed.
    pub(super) fn take_prepared(
        &self,
        name: &Name,
        desired: Option<&AddedWorkload>,
        candidates: &mut Vec<Existing>,
    ) -> Vec<FoundContainer> {
        let mut prepared = Vec::new();
        let mut others = Vec::new();
        for existing in candidates.drain(..) {
            match self.purpose_of_unstarted(name, desired, &existing) {
                Some(purpose) => prepared.push(found_container(&existing, purpose)),
                None => others.push(existing),
            }
        }
        *candidates = others;
        prepared
    }

    /// The purpose of a container that was never started; `None` if it was started, or was not
    /// prepared.
    fn purpose_of_unstarted(
        &self,
        name: &Name,
        desired: Option<&AddedWorkload>,
        Existing { runtime, container }: &Existing,
    ) -> Option<FoundPurpose> {
        let record = self.records.get(name)?;
        let connector = self.context.connector(runtime)?;
        let never_started = container.never_started()?;
        let instance = &container.instance;
        // First: the instance that it may be for. The staged one, unless the same instance runs
        // with another definition: then nothing is created for the staging.
        let added = match record.staged() {
            Some(staged) if staged.instance == *instance && record.current() != Some(instance) => {
                staged
            }
            _ => desired?,
        };
        let is_desired = *instance == added.instance && *runtime == added.workload.runtime;
        // Then: whether it was prepared at all. Without a record, a start of an earlier agent may
        // have been interrupted.
        let text = connector.prepared_record(instance);
        let may_be_prepared = is_desired && self.requested(added) > PrepareLevel::None;
        if text.is_none() && !may_be_prepared {
            return None;
        }
        // Finally: whether it would be prepared in the same way now.
        let calls = &self.context.calls;
        let prepared = match text.as_deref().and_then(PreparedRecord::read) {
            Some(record) if is_desired && record.may_be_of(&container.id) => {
                record.container(added, &calls.folder, &*connector, &calls.boot)
            }
            _ => None,
        };
        let Some(prepared) = prepared else {
            return Some(FoundPurpose::RemoveUnused);
        };
        let expected = match prepared.level {
            PrepareLevel::Init => NeverStarted::Initialised,
            PrepareLevel::None | PrepareLevel::Image | PrepareLevel::Create => {
                NeverStarted::Created
            }
        };
        if never_started == expected {
            Some(FoundPurpose::Start(added.clone(), prepared))
        } else {
            Some(FoundPurpose::RemoveUnused)
        }
    }
}

/// A container that was listed, with its purpose.
pub(super) fn found_container(existing: &Existing, purpose: FoundPurpose) -> FoundContainer {
    FoundContainer {
        runtime: existing.runtime.clone(),
        instance: existing.container.instance.clone(),
        id: existing.container.id.clone(),
        purpose,
    }
}

/// Logs why an instance cannot be staged, if it cannot.
fn log_failed_staging(report: &PreparedInstance) {
    let Some(reason) = &report.reason else {
        return;
    };
    let name = &report.instance.workload;
    let tries = report.tries;
    let end = if report.is_final {
        "given up"
    } else {
        "trying again"
    };
    let _source = log_source(name.clone());
    warn!("The update of workload '{name}' cannot be staged, try {tries}, {end}: '{reason}'");
}

impl<C: Clock> WorkloadRecord<C> {
    /// The instance that is staged, if any.
    pub(super) fn staged(&self) -> Option<&AddedWorkload> {
        self.staged.as_ref().map(|staged| &staged.added)
    }

    /// Whether exactly this instance runs, or waits to be started.
    pub(super) fn runs_or_awaits(&self, added: &AddedWorkload) -> bool {
        self.waiting() == Some(added) || self.runs(added)
    }

    pub(super) fn staged_conditions(&self) -> Option<&StartConditions> {
        self.staged.as_ref()?.conditions.as_ref()
    }
}

#[cfg(test)]
mod tests;
