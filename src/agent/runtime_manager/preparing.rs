//! What is prepared of the workloads that wait: which may be, how far, and what an earlier agent has prepared.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::{Existing, RuntimeManager, WorkloadThreads, removed};
use crate::agent::preparation::job::{JobContext, PreparationJob};
use crate::agent::preparation::levels::{self, Situation};
use crate::agent::preparation::prepared::{JobFailure, JobReport, Removal};
use crate::agent::preparation::record::Record;
use crate::agent::preparation::{NewJob, Wanted};
use crate::agent::start_slots::PreparationSlot;
use crate::agent::workload_state_store::WorkloadStateStore;
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::runtime::{ListedContainer, RuntimeConnector};
use crossbeam_channel::Receiver;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// How starts are prepared.
#[derive(Debug, Clone)]
pub struct PrepareSettings {
    /// How far, when a workload does not say it.
    pub level: PrepareLevel,
    /// Containers that are initialised at the same time, at most.
    pub max: usize,
    /// Starts and preparations at the same time are no more than this, or nothing is prepared.
    pub cores: usize,
    /// Identifies this boot of the node.
    pub boot: Arc<str>,
    /// Files of the node that podman copies into a container when it initialises it, and nerdctl when it creates it.
    pub copied: Arc<BTreeSet<String>>,
}

/// The files that are copied: with them a container has the name servers, the host names and the time zone of the node.
pub const COPIED_FILES: [&str; 4] =
    ["/etc/hosts", "/etc/localtime", "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

impl PrepareSettings {
    /// How far the workload is to be prepared as it says, or as the setting says.
    fn requested(&self, workload: &Workload) -> PrepareLevel {
        match &workload.config().lifecycle {
            Ok(block) => block.as_ref().and_then(|block| block.prepare).unwrap_or(self.level),
            Err(_) => PrepareLevel::None, // It will not be started.
        }
    }
}

/// Whether the record of an earlier agent says that it has prepared this container, or was about to.
pub(super) fn is_prepared(connector: &dyn RuntimeConnector, container: &ListedContainer) -> bool {
    let record = connector.prepared_record(&container.instance);
    record.as_deref().and_then(Record::read).is_some_and(|record| record.may_be_of(&container.id))
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// When [`Self::prepare`] wants to be called next.
    #[must_use]
    pub fn preparations_due(&self) -> Option<Instant> {
        self.preparations.due()
    }

    /// Becomes ready when there may be room for a preparation.
    #[must_use]
    pub fn room_for_preparations(&self) -> &Receiver<()> {
        &self.room
    }

    /// Does what follows for all workloads that were touched since the last call. Returns states to report.
    pub fn prepare(&mut self, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let _ = self.room.try_recv();
        let mut reports = Vec::new();
        loop {
            self.settle_touched(&mut reports, store);
            self.prepare_queued(&mut reports);
            if !self.preparations.is_touched() {
                return reports; // Else a job has failed at once, because there is no thread for it.
            }
        }
    }

    fn settle_touched(&mut self, reports: &mut Vec<WorkloadState>, store: &WorkloadStateStore) {
        while let Some(name) = self.preparations.next_touched(self.context.clock.now()) {
            let wanted = self.preparation_of(&name);
            let settled = self.preparations.settle(&name, wanted, self.context.clock.now());
            if let Some(removal) = settled.remove {
                let folder = !self.uses_folder(&removal.instance);
                let job = self.preparations.begin_removal(&name, removal, folder);
                reports.extend(job.and_then(|job| self.start_job(&name, job, None)).into_iter().flatten());
            }
            reports.extend(settled.reports);
            reports.extend(self.show_preparation(&name, settled.note, store));
        }
    }

    fn prepare_queued(&mut self, reports: &mut Vec<WorkloadState>) {
        while let Some(name) = self.preparations.first_queued() {
            let Some(slot) = self.context.slots.try_prepare(self.prepare.cores) else { return };
            let job = self.preparations.begin();
            reports.extend(job.and_then(|job| self.start_job(&name, job, Some(slot))).into_iter().flatten());
        }
    }

    /// A job has ended. Returns states to report.
    pub fn preparation_ended(&mut self, report: JobReport) -> Vec<WorkloadState> {
        self.preparations.ended(report, self.context.clock.now(), &mut self.random)
    }

    /// Each workload that waits may be prepared differently now.
    pub fn touch_waiting(&mut self) {
        self.scheduler.iter().for_each(|waiting| self.preparations.touch(&waiting.name));
    }

    /// What is to be prepared of a workload, if it waits and may be.
    fn preparation_of(&self, name: &Name) -> Option<Wanted> {
        let added = self.scheduler.new_of(name)?;
        let AddedWorkload { instance, workload } = added;
        if self.conditions.is_inactive(name) || self.listings.is_missing(&workload.runtime) {
            return None;
        }
        self.engines.get(&workload.runtime)?;
        let old = self.objects.get(name);
        let situation = Situation {
            instance,
            old: old.map(|object| &object.instance),
            old_shares: old.is_some_and(|object| object.searches) || self.is_accounted_for(instance),
            may_run: self.conditions.reason(name).is_none(),
        };
        let level = levels::allowed(workload, self.prepare.requested(workload), situation);
        (level > PrepareLevel::None).then(|| Wanted { added: added.clone(), level })
    }

    /// Whether something else may be in the folder of the instance.
    fn uses_folder(&self, instance: &InstanceName) -> bool {
        let of_object = self.objects.get(&instance.workload).is_some_and(|object| object.instance == *instance);
        of_object || self.scheduler.new_of(&instance.workload).is_some_and(|added| added.instance == *instance)
    }

    /// Starts a job. Returns states to report when there is no thread for it.
    fn start_job(
        &mut self,
        name: &Name,
        NewJob { number, control, task }: NewJob,
        slot: Option<PreparationSlot>,
    ) -> Option<Vec<WorkloadState>> {
        let failed =
            |cause: String| JobReport { workload: name.clone(), number, result: Err(JobFailure::for_now(cause)) };
        let Some(source) = self.engines.get(task.runtime()) else {
            return Some(self.preparation_ended(failed(format!("there is no runtime '{}'", task.runtime()))));
        };
        let job = PreparationJob {
            workload: name.clone(),
            number,
            task,
            connector: (source.connect)(),
            context: JobContext {
                clock: self.context.clock.clone(),
                folder: self.context.folder.clone(),
                boot: self.prepare.boot.clone(),
                copied: self.prepare.copied.clone(),
                create_timeout: self.context.create_timeout,
                reports: self.context.reports.clone(),
            },
            control,
            slot,
        };
        let error = self.threads.start_job(name, Box::new(job)).err()?;
        Some(self.preparation_ended(failed(format!("no thread can be started: {error}"))))
    }

    /// Shows how far the workload is prepared, if it is shown as waiting.
    fn show_preparation(&mut self, name: &Name, note: String, store: &WorkloadStateStore) -> Option<WorkloadState> {
        if !self.scheduler.note(name, note) {
            return None;
        }
        let state = self.waiting_to_start(&self.scheduler.new_of(name)?.instance);
        let shown = store.get(&state.instance)?;
        (shown.phase == Phase::PendingWaitingToStart && *shown != state.state).then_some(state)
    }

    // ------------------------------------------------------- ends and withdrawals

    /// The end of an instance that waited, at once unless something prepared of it has to be removed first.
    pub(super) fn end_of_waiting(&mut self, instance: &InstanceName, is_deleted: bool) -> Option<WorkloadState> {
        if is_deleted && self.preparations.has_container(instance) {
            self.preparations.report_end(instance);
            return None;
        }
        Some(removed(instance))
    }

    /// The last order of a workload is replaced: what was handed over with it and not taken is removed.
    pub(super) fn withdraw(&mut self, name: &Name) {
        if let Some(given) = self.objects.get_mut(name).and_then(|object| object.given.take()) {
            self.preparations.withdraw(&given);
        }
    }

    // -------------------------------------------------------------- agent restart

    /// Takes those of the containers that an earlier agent has prepared: what is wanted as it is waits for its start, the
    /// others are removed. The rest stays.
    pub(super) fn take_prepared(&mut self, added: &AddedWorkload, candidates: &mut Vec<Existing>) {
        candidates.retain(|(runtime, container)| {
            let waits = ["created", "configured", "initialized"];
            let state = &container.state;
            let is_waiting = waits.iter().any(|text| text.eq_ignore_ascii_case(&state.additional_info));
            let Some(source) =
                self.engines.get(runtime).filter(|_| state.phase == Phase::PendingStarting && is_waiting)
            else {
                return true;
            };
            let connector: Box<dyn RuntimeConnector> = (source.connect)();
            let text = connector.prepared_record(&container.instance);
            let is_wanted = container.instance == added.instance && *runtime == added.workload.runtime;
            let is_initialised = state.additional_info.eq_ignore_ascii_case("initialized");
            if text.is_none() && !(is_wanted && self.prepare.requested(&added.workload) > PrepareLevel::None) {
                return true; // A start of an earlier agent was cut short.
            }
            let (folder, boot) = (&self.context.folder, &self.prepare.boot);
            let record = text.as_deref().and_then(Record::read);
            let kept = record.filter(|record| is_wanted && record.may_be_of(&container.id));
            let kept = kept.and_then(|record| record.container(added, folder, &*connector, boot));
            match kept.filter(|kept| (kept.level == PrepareLevel::Init) == is_initialised) {
                Some(kept) => self.preparations.keep(added, kept),
                None => self.preparations.discard(Removal {
                    instance: container.instance.clone(),
                    runtime: runtime.clone(),
                    workload: None,
                    container: Some(container.id.clone()),
                    search: false,
                }),
            }
            false
        });
    }
}
