//! Starts prepared while their workloads wait: the image is got, the container created and initialised, so that the start
//! is short.
//!
//! Follow one: `runtime_manager/preparing.rs` says what may be prepared ([`levels`]), [`Preparations`] decides what is done
//! next, a [`job`] does it, and the control loop that starts the workload takes what there is ([`handover`]). Whatever
//! goes wrong, a plain create follows.
//!
//! Thread: `scheduler` owns [`Preparations`]; see the files for the others. What is prepared costs nothing while it waits.
//! Owns: what is prepared, the jobs under way, what has to be removed.

pub mod handover;
pub mod host_paths;
pub mod job;
pub mod levels;
pub mod prepared;
pub mod record;

use super::backoff::retry_delay;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::{PREPARE_PREFIX, PREPARED_PREFIX, PrepareLevel};
use handover::{Giver, Withdrawn};
use job::{JobControl, Task};
use prepared::{Given, JobDone, JobFailure, JobReport, PreparedContainer, Removal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// What is to be prepared of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Which instance.
    pub added: AddedWorkload,
    /// How far; not `NONE`.
    pub level: PrepareLevel,
    /// For an update: when more tries than these have failed, there is no further one. `None` for what waits to be
    /// started, which is tried until then.
    pub retry_limit: Option<u32>,
}

/// How far a preparation is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is reached.
    pub level: PrepareLevel,
    /// Why the last try failed, and how many did.
    pub failure: Option<(String, u32)>,
    /// There is no further try.
    pub has_given_up: bool,
    /// It was staged for an update.
    pub is_for_update: bool,
}

/// What follows for one workload.
#[derive(Debug, Default)]
pub struct Settled {
    /// To remove now, with a job.
    pub remove: Option<Removal>,
    /// To report.
    pub reports: Vec<WorkloadState>,
    /// What to show behind the reason why the workload waits.
    pub note: String,
}

/// A job that is about to start.
pub struct NewJob {
    /// Its number.
    pub number: u64,
    /// How it is notified of changes.
    pub control: JobControl,
    /// What it does.
    pub task: Task,
}

/// All that is prepared, or waits to be.
pub struct Preparations {
    /// Containers that may be initialised.
    max: usize,
    entries: BTreeMap<Name, Entry>,
    /// Workloads of which something may have changed.
    touched: BTreeSet<Name>,
    /// Workloads that wait for a free core, by the number of their entry.
    queued: BTreeSet<(u64, Name)>,
    /// When to try again what failed.
    due: BTreeSet<(Instant, Name)>,
    /// Workloads whose container is initialised, or is going to be.
    initialised: BTreeSet<Name>,
    entered: u64,
    jobs: u64,
}

struct Entry {
    /// Who came first is served first.
    number: u64,
    wanted: Option<Wanted>,
    /// What is or was being prepared.
    of: Option<AddedWorkload>,
    /// How far that is.
    level: PrepareLevel,
    container: Option<PreparedContainer>,
    /// A create failed, so something of it may be left.
    unsure: bool,
    doing: Doing,
    failures: u32,
    /// Why the last try failed.
    reason: String,
    /// It was staged for an update.
    is_for_update: bool,
    removals: VecDeque<Removal>,
    failed_removals: u32,
    /// The control loop that is to start it waits for what comes of it.
    given_to: Option<Giver>,
    /// Control loops that wait until all removals are done.
    released: Vec<Giver>,
    /// Instances whose end is reported when all removals are done.
    ends: BTreeSet<InstanceName>,
    note: String,
}

enum Doing {
    Nothing,
    Running(Job),
    RetryAt(Instant),
    RemoveAt(Instant),
    /// Only an update helps.
    Failed,
}

struct Job {
    number: u64,
    control: JobControl,
    /// What it prepares and how far; `None` when it removes.
    prepares: Option<(AddedWorkload, PrepareLevel)>,
}

enum Next {
    Wait,
    Remove(Removal),
    /// Nothing is left that would have to go first.
    GoOn,
}

impl Entry {
    fn new(number: u64) -> Self {
        Self {
            number,
            wanted: None,
            of: None,
            level: PrepareLevel::None,
            container: None,
            unsure: false,
            doing: Doing::Nothing,
            failures: 0,
            reason: String::new(),
            is_for_update: false,
            removals: VecDeque::new(),
            failed_removals: 0,
            given_to: None,
            released: Vec::new(),
            ends: BTreeSet::new(),
            note: String::new(),
        }
    }

    /// Whether this is to be prepared so far, or to be started.
    fn is_wanted(&self, added: &AddedWorkload, level: PrepareLevel) -> bool {
        let waits = self.wanted.as_ref().is_some_and(|wanted| wanted.added == *added && level <= wanted.level);
        waits || self.given_to.as_ref().is_some_and(|giver| giver.added() == added)
    }

    /// What was prepared is not wanted any more.
    fn put_off(&mut self) {
        let Some(of) = self.of.take() else { return };
        self.removals.extend(removal(&of, self.container.take(), self.unsure));
        (self.level, self.unsure, self.failures) = (PrepareLevel::None, false, 0);
        self.is_for_update = false;
        self.note.clear();
        if matches!(self.doing, Doing::RetryAt(_) | Doing::Failed) {
            self.doing = Doing::Nothing;
        }
    }

    fn next(&mut self, now: Instant) -> Next {
        if let Doing::Running(job) = &self.doing {
            if job.prepares.as_ref().is_some_and(|(added, level)| !self.is_wanted(added, *level)) {
                job.control.cancel();
            }
            return Next::Wait;
        }
        if self.of.as_ref().is_some_and(|of| !self.is_wanted(of, self.level)) {
            self.put_off();
        }
        match self.removals.front() {
            Some(_) if matches!(self.doing, Doing::RemoveAt(at) if at > now) => Next::Wait,
            Some(removal) => Next::Remove(removal.clone()),
            None => Next::GoOn,
        }
    }

    /// Whether another instance is prepared for an update, and nothing is left of this one.
    fn is_for_update_of_another(&self, instance: &InstanceName) -> bool {
        let is_another = |added: &AddedWorkload| added.instance != *instance;
        let is_staged = |wanted: &Wanted| wanted.retry_limit.is_some() && is_another(&wanted.added);
        self.wanted.as_ref().is_some_and(is_staged)
            && self.of.as_ref().is_none_or(is_another)
            && self.removals.is_empty()
            && self.ends.is_empty()
            && self.released.is_empty()
            && self.given_to.is_none()
    }

    fn is_idle(&self) -> bool {
        !matches!(self.doing, Doing::Running(_)) && self.container.is_none() && !self.unsure && self.removals.is_empty()
    }

    /// Whether it is initialised, or is going to be.
    fn is_initialised(&self) -> bool {
        let by_job = matches!(&self.doing, Doing::Running(Job { prepares: Some((_, PrepareLevel::Init)), .. }));
        by_job || self.level == PrepareLevel::Init
    }

    fn has_container_of(&self, instance: &InstanceName) -> bool {
        let is_it = |added: &AddedWorkload| added.instance == *instance;
        let held = self.of.as_ref().is_some_and(is_it) && (self.container.is_some() || self.unsure);
        let made = matches!(&self.doing, Doing::Running(Job { prepares: Some((added, level)), .. })
            if is_it(added) && *level >= PrepareLevel::Create);
        held || made || self.removals.iter().any(|removal| removal.instance == *instance)
    }
}

/// How to remove what there is of `added`; `None` for nothing.
fn removal(added: &AddedWorkload, container: Option<PreparedContainer>, search: bool) -> Option<Removal> {
    let AddedWorkload { instance, workload } = added;
    (container.is_some() || search).then(|| Removal {
        instance: instance.clone(),
        runtime: workload.runtime.clone(),
        workload: Some(workload.clone()),
        container: container.map(|container| container.id),
        search,
    })
}

impl Preparations {
    /// Nothing is prepared. At most `max` containers will be initialised at the same time.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            entries: BTreeMap::new(),
            touched: BTreeSet::new(),
            queued: BTreeSet::new(),
            due: BTreeSet::new(),
            initialised: BTreeSet::new(),
            entered: 0,
            jobs: 0,
        }
    }

    /// How many workloads there are something of.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Something of the workload may have changed.
    pub fn touch(&mut self, name: &Name) {
        self.touched.insert(name.clone());
    }

    /// Whether something of a workload may have changed.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The next workload of which something may have changed, or that is due.
    pub fn next_touched(&mut self, now: Instant) -> Option<Name> {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            self.touched.extend(self.due.pop_first().map(|(_, name)| name));
        }
        self.touched.pop_first()
    }

    /// When [`Self::next_touched`] has something by itself.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Whether there is, or may be, a container of the instance that was prepared and not handed over.
    #[must_use]
    pub fn has_container(&self, instance: &InstanceName) -> bool {
        self.entries.get(&instance.workload).is_some_and(|entry| entry.has_container_of(instance))
    }

    /// Whether a container of exactly this is there, or is being made, so that its start will not create one.
    #[must_use]
    pub fn makes_container(&self, added: &AddedWorkload) -> bool {
        let Some(entry) = self.entries.get(&added.instance.workload) else { return false };
        let made = matches!(&entry.doing, Doing::Running(Job { prepares: Some((of, level)), .. })
            if of == added && *level >= PrepareLevel::Create);
        made || entry.of.as_ref() == Some(added) && entry.container.is_some()
    }

    /// How far the preparation of exactly this is.
    #[must_use]
    pub fn progress(&self, added: &AddedWorkload) -> Progress {
        let entry = self.entries.get(&added.instance.workload).filter(|entry| entry.of.as_ref() == Some(added));
        entry.map_or_else(Progress::default, |entry| Progress {
            level: entry.level,
            failure: (entry.failures > 0).then(|| (entry.reason.clone(), entry.failures)),
            has_given_up: matches!(entry.doing, Doing::Failed),
            is_for_update: entry.is_for_update,
        })
    }

    fn entry(&mut self, name: &Name) -> &mut Entry {
        self.touched.insert(name.clone());
        let entered = &mut self.entered;
        self.entries.entry(name.clone()).or_insert_with(|| {
            *entered += 1;
            Entry::new(*entered)
        })
    }

    // ----------------------------------------------------------------- wishes

    /// Reports the end of this instance, which is not wanted any more, when nothing prepared of it is left.
    pub fn report_end(&mut self, instance: &InstanceName) {
        self.entry(&instance.workload).ends.insert(instance.clone());
    }

    /// The instance is wanted again. Returns whether its end has not been reported yet.
    #[must_use]
    pub fn forget_end(&mut self, instance: &InstanceName) -> bool {
        self.entries.get_mut(&instance.workload).is_some_and(|entry| entry.ends.remove(instance))
    }

    /// An earlier agent has prepared this container, which is wanted as it is.
    pub fn keep(&mut self, added: &AddedWorkload, container: PreparedContainer) {
        let entry = self.entry(&added.instance.workload);
        entry.note = format!("{PREPARED_PREFIX}{}", container.level);
        (entry.of, entry.level, entry.container) = (Some(added.clone()), container.level, Some(container));
        self.note_initialised(&added.instance.workload);
    }

    /// An earlier agent has prepared this, which is not wanted.
    pub fn discard(&mut self, removal: Removal) {
        self.entry(&removal.instance.workload.clone()).removals.push_back(removal);
    }

    /// The workload is going to be started. Returns how its control loop gets what was prepared; `None` when there is
    /// nothing to get, nor to wait for.
    #[must_use]
    pub fn hand_over(&mut self, added: &AddedWorkload) -> Option<Giver> {
        let name = &added.instance.workload;
        let entry = self.entries.get_mut(name)?;
        if entry.is_for_update_of_another(&added.instance) {
            return None;
        }
        if entry.is_idle() && entry.ends.is_empty() && entry.released.is_empty() {
            self.remove(name);
            return None;
        }
        if let Doing::Running(Job { control, prepares: Some((of, _)), .. }) = &entry.doing
            && of == added
        {
            control.end_after_step();
        }
        let giver = Giver::new(added.clone());
        (entry.given_to, entry.wanted) = (Some(giver.clone()), None);
        self.touch(name);
        Some(giver)
    }

    /// What was handed over is not to be started any more. Unless it was taken, it is removed.
    pub fn withdraw(&mut self, giver: &Giver) {
        let added = giver.added();
        let withdrawn = giver.withdraw();
        if withdrawn == Withdrawn::Nothing {
            return;
        }
        let entry = self.entry(&added.instance.workload);
        if entry.given_to.as_ref().is_some_and(|given| given.is(giver)) {
            entry.given_to = None;
        }
        if let Withdrawn::Given(Given { container, unsure }) = withdrawn {
            entry.removals.extend(removal(added, container, unsure));
        }
        entry.released.push(giver.clone());
    }

    // --------------------------------------------------------------- decisions

    /// Decides what follows when this is wanted of the workload. What is to be prepared waits in a queue, see
    /// [`Self::first_queued`].
    pub fn settle(&mut self, name: &Name, wanted: Option<Wanted>, now: Instant) -> Settled {
        let mut settled = Settled::default();
        if wanted.is_none() && !self.entries.contains_key(name) {
            return settled;
        }
        let entry = self.entry(name);
        let number = entry.number;
        entry.wanted = wanted;
        let next = entry.next(now);
        entry.is_for_update |= entry.wanted.as_ref().is_some_and(|wanted| wanted.retry_limit.is_some());
        settled.note.clone_from(&entry.note);
        self.touched.remove(name);
        self.queued.remove(&(number, name.clone()));
        if let Next::GoOn = next {
            self.go_on(name, now, &mut settled);
        } else if let Next::Remove(removal) = next {
            settled.remove = Some(removal);
        }
        self.note_initialised(name);
        settled
    }

    fn go_on(&mut self, name: &Name, now: Instant, settled: &mut Settled) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.failed_removals = 0;
        entry.released.drain(..).for_each(|giver| giver.release());
        let gone = std::mem::take(&mut entry.ends).into_iter();
        settled
            .reports
            .extend(gone.map(|instance| WorkloadState::new(instance, ExecutionState::plain(Phase::Removed))));
        if let Some(giver) = entry.given_to.take_if(|giver| entry.of.as_ref().is_some_and(|of| of != giver.added())) {
            giver.give(Given::default()); // What is there is of another instance, which is staged.
        }
        if let Some(giver) = entry.given_to.take() {
            giver.give(Given { container: entry.container.take(), unsure: entry.unsure });
            let other_is_wanted = entry.wanted.is_some();
            self.entries.remove(name);
            settled.note.clear();
            if other_is_wanted {
                self.touch(name); // Nothing of it was begun.
            }
            return;
        }
        let Some(wanted) = entry.wanted.as_ref().map(|wanted| wanted.level) else {
            self.entries.remove(name);
            settled.note.clear();
            return;
        };
        let (level, number) = (entry.level, entry.number);
        match entry.doing {
            Doing::Failed => return,
            Doing::RetryAt(at) if at > now => {
                self.due.insert((at, name.clone()));
                return;
            }
            _ => entry.doing = Doing::Nothing,
        }
        let only_init_is_left = level == PrepareLevel::Create && wanted == PrepareLevel::Init;
        if level < wanted && (!only_init_is_left || self.may_initialise()) {
            self.queued.insert((number, name.clone()));
        }
    }

    /// Whether there is room for one more that is initialised.
    fn may_initialise(&self) -> bool {
        self.initialised.len() < self.max
    }

    /// Keeps [`Self::initialised`] true for a workload of which something has changed.
    fn note_initialised(&mut self, name: &Name) {
        if self.entries.get(name).is_some_and(Entry::is_initialised) {
            self.initialised.insert(name.clone());
        } else if self.initialised.remove(name) {
            self.promote();
        }
    }

    /// There is room for more that are initialised: who waits longest is.
    fn promote(&mut self) {
        let waits = |entry: &Entry| {
            let wanted = entry.wanted.as_ref().is_some_and(|wanted| wanted.level == PrepareLevel::Init);
            wanted && entry.level == PrepareLevel::Create && matches!(entry.doing, Doing::Nothing)
        };
        let waiting = self.entries.iter().filter(|(_, entry)| waits(entry)).map(|(name, entry)| (entry.number, name));
        let by_number: BTreeSet<(u64, &Name)> = waiting.collect();
        let room = self.max.saturating_sub(self.initialised.len());
        self.touched.extend(by_number.into_iter().take(room).map(|(_, name)| name.clone()));
    }

    fn remove(&mut self, name: &Name) {
        if let Some(entry) = self.entries.remove(name) {
            self.queued.remove(&(entry.number, name.clone()));
            self.note_initialised(name);
        }
    }

    // -------------------------------------------------------------------- jobs

    /// Who is to be prepared next as soon as a core is free.
    #[must_use]
    pub fn first_queued(&self) -> Option<Name> {
        self.queued.first().map(|(_, name)| name.clone())
    }

    /// Begins to prepare the first of the queue; `None` when there is nothing to do for it.
    pub fn begin(&mut self) -> Option<NewJob> {
        let (_, name) = self.queued.pop_first()?;
        let has_room = self.may_initialise();
        let entry = self.entries.get_mut(&name)?;
        let Wanted { added, level, .. } = entry.wanted.clone()?;
        let level = if has_room { level } else { level.min(PrepareLevel::Create) };
        if level <= entry.level {
            return None;
        }
        entry.of = Some(added.clone());
        let (container, prepares) = (entry.container.clone(), Some((added.clone(), level)));
        self.begin_job(&name, Task::Prepare { added, container, level }, prepares)
    }

    /// Begins to remove something of the workload, with the folder of its instance if that has no other use.
    pub fn begin_removal(&mut self, name: &Name, removal: Removal, folder: bool) -> Option<NewJob> {
        self.begin_job(name, Task::Remove { removal, folder }, None)
    }

    fn begin_job(
        &mut self,
        name: &Name,
        task: Task,
        prepares: Option<(AddedWorkload, PrepareLevel)>,
    ) -> Option<NewJob> {
        self.jobs += 1;
        let (number, control) = (self.jobs, JobControl::new());
        self.entries.get_mut(name)?.doing = Doing::Running(Job { number, control: control.clone(), prepares });
        self.note_initialised(name);
        Some(NewJob { number, control, task })
    }

    /// A job has ended. Returns what to report.
    pub fn ended(&mut self, report: JobReport, now: Instant, random: &mut fastrand::Rng) -> Vec<WorkloadState> {
        let JobReport { workload: name, number, result } = report;
        let Some(entry) = self.entries.get_mut(&name) else { return Vec::new() };
        let Doing::Running(job) = &entry.doing else { return Vec::new() };
        if job.number != number {
            return Vec::new();
        }
        let Doing::Running(job) = std::mem::replace(&mut entry.doing, Doing::Nothing) else { return Vec::new() };
        self.touched.insert(name.clone());
        match (job.prepares, result) {
            (_, Ok(JobDone::Prepared { level, container })) => {
                (entry.level, entry.container, entry.failures) = (level, container, 0);
                entry.unsure &= level < PrepareLevel::Create; // An image says nothing about what an earlier try has left.
                entry.note = format!("{PREPARED_PREFIX}{level}");
            }
            (_, Ok(JobDone::Removed)) => _ = entry.removals.pop_front(),
            (Some((_, level)), Err(failure)) => entry.failed(level, &failure, now, random),
            (None, Err(failure)) => {
                let instances = entry.removal_failed(now, random);
                self.due.extend(match &entry.doing {
                    Doing::RemoveAt(at) => Some((*at, name)),
                    _ => None,
                });
                let state = ExecutionState::with_info(Phase::StoppingDeleteFailed, failure.reason);
                return instances.into_iter().map(|instance| WorkloadState::new(instance, state.clone())).collect();
            }
        }
        self.note_initialised(&name);
        Vec::new()
    }
}

impl Entry {
    /// A job has failed to prepare so far. A connector removes what it made, unless the call was ended.
    fn failed(&mut self, level: PrepareLevel, failure: &JobFailure, now: Instant, random: &mut fastrand::Rng) {
        let container = self.container.take();
        self.level = PrepareLevel::None;
        self.unsure |= level >= PrepareLevel::Create;
        // The image alone leaves no container, and what a search finds may run: an instance can come again with other tags.
        if failure.search
            && level >= PrepareLevel::Create
            && let Some(of) = &self.of
        {
            self.removals.extend(removal(of, container, true));
            self.unsure = false; // It is searched now.
        }
        if failure.cancelled {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.reason.clone_from(&failure.reason);
        let retry_limit = self.wanted.as_ref().and_then(|wanted| wanted.retry_limit);
        if failure.is_final || retry_limit.is_some_and(|limit| self.failures > limit) {
            self.doing = Doing::Failed;
            self.note = format!("{PREPARE_PREFIX}{}", failure.reason);
            return;
        }
        let delay = retry_delay(self.failures, random);
        let seconds = delay.as_millis().div_ceil(1_000);
        self.doing = Doing::RetryAt(now + delay);
        self.note = format!("{PREPARE_PREFIX}{}, retry in {seconds} s", failure.reason);
    }

    /// Returns whose end has to wait for another try.
    fn removal_failed(&mut self, now: Instant, random: &mut fastrand::Rng) -> Vec<InstanceName> {
        self.failed_removals = self.failed_removals.saturating_add(1);
        self.doing = Doing::RemoveAt(now + retry_delay(self.failed_removals, random));
        self.ends.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
