//! What is to be prepared of each workload: what waits, or what is staged for an update; and what an earlier agent has
//! prepared.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::{Existing, RuntimeManager, WorkloadObject, WorkloadThreads};
use crate::agent::events::PreparationReport;
use crate::agent::preparation::record::Record;
use crate::agent::staging::stage_of;
use crate::agent::wish_slot::{Preparation, Surplus};
use crate::agent::workload_state_store::WorkloadStateStore;
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::messages::AddedWorkload;
use crate::model::names::Name;
use crate::model::prepare_level::PrepareLevel;
use crate::platform::clock::Clock;
use crate::runtime::{ListedContainer, RuntimeConnector};

/// The files that engines copy into a container: with them it has the name servers, the host names and the time zone of
/// the node.
pub const COPIED_FILES: [&str; 4] =
    ["/etc/hosts", "/etc/localtime", "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Whether the record of an earlier agent says that it has prepared this container, or was about to.
pub(super) fn is_prepared(connector: &dyn RuntimeConnector, container: &ListedContainer) -> bool {
    let record = connector.prepared_record(&container.instance);
    record.as_deref().and_then(Record::read).is_some_and(|record| record.may_be_of(&container.id))
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// Says control loops what is to be prepared of the workloads that were touched since the last call. Returns states to
    /// report.
    pub fn prepare(&mut self, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        self.touched.extend(self.found.keys().cloned());
        while let Some(name) = self.touched.pop_first() {
            if self.staging.awaits_hello() && self.staging.get(&name).is_some() {
                continue; // A container of the same instance may turn out to go on.
            }
            let wanted = self.preparation_of(&name);
            if wanted.is_none() {
                reports.extend(self.show_preparation(&name, String::new(), store));
            }
            let found = self.found.contains_key(&name);
            match self.objects.get_mut(&name) {
                Some(object) if object.preparation == wanted && !found => continue,
                Some(object) => {
                    let found = self.found.remove(&name);
                    let put = found.clone().map_or(Ok(()), |(added, found)| object.wishes.put_found(added, found));
                    if put.and_then(|()| object.wishes.prepare(wanted.clone())).is_ok() {
                        (object.preparation, object.prepared) = (wanted, None);
                        continue;
                    }
                    self.found.extend(found.map(|found| (name.clone(), found)));
                }
                None => {}
            }
            let found = self.found.get(&name).map(|(added, _)| added);
            let Some(first) = wanted.as_ref().map(|wanted| &wanted.added).or(found).cloned() else { continue };
            let (instance, runtime) = (first.instance, first.workload.runtime.clone());
            reports.extend(self.start_loop(instance, runtime, None, Vec::new(), None));
            if let Some(object) = self.objects.get_mut(&name) {
                _ = object.wishes.prepare(wanted.clone()); // It is still there.
                object.preparation = wanted;
            }
        }
        reports
    }

    /// A control loop reports how far it has prepared something. Returns states to report.
    pub fn prepared(&mut self, report: PreparationReport, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let name = report.added.instance.workload.clone();
        // What is staged is shown by the server.
        let note = if self.staged_preparation(&name).is_some() { String::new() } else { report.note.clone() };
        let object = self.objects.get_mut(&name);
        let is_wanted = |object: &&mut WorkloadObject| {
            object.preparation.as_ref().is_some_and(|wanted| wanted.added == report.added)
        };
        let Some(object) = object.filter(is_wanted) else { return Vec::new() };
        object.prepared = Some(report.clone());
        let shown = self.show_preparation(&name, note, store);
        shown.into_iter().chain(self.stages_before_stop(&report, store)).collect()
    }

    /// Each workload that waits, or is staged, may be prepared differently now.
    pub fn touch_waiting(&mut self) {
        self.touched.extend(self.scheduler.iter().map(|waiting| waiting.name.clone()));
        self.touched.extend(self.staging.names().cloned());
    }

    /// What is to be prepared of a workload, if it waits and may be.
    fn preparation_of(&self, name: &Name) -> Option<Preparation> {
        if let Some(staged) = self.staged_preparation(name) {
            return staged;
        }
        let added = self.scheduler.new_of(name)?;
        if self.conditions.is_inactive(name) || !self.may_prepare(added) {
            return None;
        }
        // What was staged for an update that is carried out now, and waits for others, is kept.
        let before = self.objects.get(name).and_then(|object| object.preparation.as_ref());
        let before = before.filter(|before| before.added == *added).map(|before| before.level);
        let is_unstaged = self.scheduler.unstaged.contains_key(name);
        let stage = if is_unstaged { stage_of(added) } else { PrepareLevel::None };
        let retry_limit = is_unstaged.then(|| self.context.retry_limit.unwrap_or(u32::MAX));
        let level = self.requested(added).max(before.unwrap_or_default()).max(stage);
        // A create would fail without the paths of a precondition, and an `init` would pin mounts.
        let level = if self.conditions.reason(name).is_some() { level.min(PrepareLevel::Image) } else { level };
        (level > PrepareLevel::None).then(|| Preparation { added: added.clone(), level, retry_limit })
    }

    /// Whether the engine is there and has said what an earlier agent has left.
    pub(super) fn may_prepare(&self, added: &AddedWorkload) -> bool {
        let runtime = &added.workload.runtime;
        self.context.engines.contains_key(runtime) && !self.listings.is_missing(runtime)
    }

    /// How far the workload is to be prepared as it says, or as the setting says.
    fn requested(&self, added: &AddedWorkload) -> PrepareLevel {
        match &added.workload.config().lifecycle {
            Ok(block) => block.as_ref().and_then(|block| block.prepare).unwrap_or(self.prepare_level),
            Err(_) => PrepareLevel::None, // It will not be started.
        }
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

    /// Takes those of the containers that an earlier agent has prepared: what is wanted as it is waits for its start, the
    /// others are returned to be removed. The rest stays.
    pub(super) fn take_prepared(&mut self, added: &AddedWorkload, candidates: &mut Vec<Existing>) -> Vec<Surplus> {
        let mut unused = Vec::new();
        candidates.retain(|(runtime, container)| {
            let waits = ["created", "configured", "initialized"];
            let state = &container.state;
            let is_waiting = waits.iter().any(|text| text.eq_ignore_ascii_case(&state.additional_info));
            let source = self.context.engines.get(runtime);
            let Some(source) = source.filter(|_| state.phase == Phase::PendingStarting && is_waiting) else {
                return true;
            };
            let connector = (source.connect)();
            let text = connector.prepared_record(&container.instance);
            let is_wanted = container.instance == added.instance && *runtime == added.workload.runtime;
            let is_initialised = state.additional_info.eq_ignore_ascii_case("initialized");
            if text.is_none() && !(is_wanted && self.requested(added) > PrepareLevel::None) {
                return true; // A start of an earlier agent was cut short.
            }
            let calls = &self.context.calls;
            let record = text.as_deref().and_then(Record::read);
            let kept = record.filter(|record| is_wanted && record.may_be_of(&container.id));
            let kept = kept.and_then(|record| record.container(added, &calls.folder, &*connector, &calls.boot));
            match kept.filter(|kept| (kept.level == PrepareLevel::Init) == is_initialised) {
                Some(kept) => _ = self.found.insert(added.instance.workload.clone(), (added.clone(), kept)),
                None => unused.push(Surplus {
                    runtime: runtime.clone(),
                    instance: container.instance.clone(),
                    id: container.id.clone(),
                    is_unused: true,
                }),
            }
            false
        });
        unused
    }

    /// Gives containers to remove to the control loop of their workload, or to one made for that.
    pub(super) fn remove(&mut self, surplus: Vec<Surplus>) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        for one in surplus {
            let (instance, runtime) = (one.instance.clone(), one.runtime.clone());
            match self.objects.get(&instance.workload) {
                Some(object) if object.wishes.put_surplus(vec![one.clone()]).is_ok() => {}
                _ => reports.extend(self.start_loop(instance, runtime, None, vec![one], Some(super::Wish::End))),
            }
        }
        reports
    }
}
