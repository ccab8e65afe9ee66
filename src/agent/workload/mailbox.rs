//! The newest wish for one workload: a slot between the scheduler and the control loop of the
//! workload. State checkers and probes put their results into it, too, so a control loop waits for
//! nothing else.
//!
//! Thread: [`WishSender`] belongs to `scheduler`, [`WishSlot`] to `wl:<name>`. A newer wish
//! replaces one that was not taken, a newer state or result an older one, so the slot is bounded
//! and no sender waits. A newer wish also makes a descriptor readable, which ends an engine call
//! that has become pointless.

use super::preparation::record::PreparedContainer;
use crate::engine_call::CallResult;
use crate::state_checker::{GoneReply, StateReply};
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::sync::{EventFd, Mutex};
use ankaios_runtime::ContainerId;
use ankaios_runtime::probes::{ProbeReply, ProbeReport};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What is to be prepared beside what runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preparation {
    pub(crate) added: AddedWorkload,
    /// How far, if its options and what runs allow it.
    pub(crate) level: PrepareLevel,
    /// For an update: when more tries than these have failed, there is no further one. `None` for
    /// what waits to be started, which is tried until then.
    pub(crate) retry_limit: Option<u32>,
}

/// A container of the workload that is not wanted.
#[derive(Debug, Clone)]
pub(crate) struct Surplus {
    pub(crate) runtime: Name,
    pub(crate) instance: InstanceName,
    pub(crate) id: ContainerId,
    /// It was prepared and never started.
    pub(crate) is_unused: bool,
}

/// What is wanted of a workload.
#[derive(Debug)]
pub(crate) enum Wish {
    /// It runs, and nothing else of it but what is prepared.
    Run(AddedWorkload),
    /// Nothing of it is there but what is prepared.
    End,
}

impl Wish {
    /// What is to run.
    pub(crate) fn added(&self) -> Option<&AddedWorkload> {
        match self {
            Self::Run(added) => Some(added),
            Self::End => None,
        }
    }
}

/// How far the newest start of an instance is, which decides whether its log can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StartProgress {
    /// No try has ended yet.
    #[default]
    UnderWay,
    /// The last try failed. There may be further ones.
    Failed,
    /// The container was started. Starts of one control loop have numbers.
    Started(u64),
}

/// The progress of one instance; every other instance has none.
struct StartNote {
    instance: InstanceName,
    progress: StartProgress,
}

/// What a control loop takes from its slot.
pub(crate) enum SlotEvent {
    /// There is a newer wish, which stays in the slot until [`WishSlot::take`].
    Wish,
    /// What is to be prepared has changed.
    Preparation,
    /// There are containers to be removed, which stay in the slot until [`WishSlot::take_surplus`].
    Surplus,
    /// The engine call with this number has ended.
    Called(u64, CallResult),
    /// This prepared container was removed or started by somebody else.
    PreparedGone(ContainerId),
    /// The state checker observed this state of the container that is watched.
    Observed(ExecutionState),
    /// The newest result of a probe.
    Probed(ProbeReport),
}

/// Puts wishes for one workload. The control loop ends when this is dropped.
pub(crate) struct WishSender {
    shared: Arc<Shared>,
}

/// Takes the wishes for one workload.
pub(crate) struct WishSlot {
    shared: Arc<Shared>,
    woken: Receiver<()>,
}

struct Shared {
    slot: Mutex<Slot>,
    wake: Sender<()>,
}

#[derive(Default)]
struct Slot {
    /// The newest wish until it is taken.
    wish: Option<Wish>,
    /// The control loop has not been notified of it yet.
    is_new: bool,
    /// The instances whose end the control loop will report.
    held: BTreeSet<InstanceName>,
    preparation: Option<Preparation>,
    preparation_is_new: bool,
    /// Instances that were to be prepared, and are not to be any more.
    ended: Vec<InstanceName>,
    /// What an earlier agent has prepared.
    found: Option<(AddedWorkload, PreparedContainer)>,
    /// What the container of an earlier life of the agent goes on as.
    resumed: Option<AddedWorkload>,
    surplus: Vec<Surplus>,
    /// What else has happened, in order.
    events: VecDeque<SlotEvent>,
    /// Counts watches, so that a late state of an earlier one is recognised.
    watch: u64,
    /// The control loop has nothing, and nothing was put since it has said so.
    is_done: bool,
    /// The sender is gone.
    abandoned: bool,
    /// Of the start that is under way.
    cancel: Option<EventFd>,
    /// What the control loop noted last about starts.
    start: Option<StartNote>,
    /// Starts until now.
    starts: u64,
}

/// Makes a slot without a wish.
pub(crate) fn wish_slot() -> (WishSender, WishSlot) {
    let (wake, woken) = bounded(1);
    let shared = Arc::new(Shared {
        slot: Mutex::default(),
        wake,
    });
    (
        WishSender {
            shared: shared.clone(),
        },
        WishSlot { shared, woken },
    )
}

impl Shared {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // Full: the loop is being woken already.
    }

    /// Puts an event, in place of those that `replaces` says. What `counts` no more is dropped.
    fn put(
        &self,
        event: SlotEvent,
        counts: impl FnOnce(&Slot) -> bool,
        replaces: impl Fn(&SlotEvent) -> bool,
    ) {
        let mut slot = self.slot.lock();
        if counts(&slot) {
            slot.events.retain(|event| !replaces(event));
            slot.events.push_back(event);
            drop(slot);
            self.wake();
        }
    }

    fn probed(&self, report: ProbeReport) {
        // A verdict is reported once, so a lesser result of the same order must not replace it.
        let (key, is_verdict) = (report.key, report.is_verdict);
        let is_lesser = |event: &SlotEvent| matches!(event, SlotEvent::Probed(waiting) if waiting.is_verdict && !is_verdict && waiting.key == key);
        let counts = |slot: &Slot| !slot.events.iter().any(is_lesser);
        self.put(SlotEvent::Probed(report), counts, |event| {
            matches!(event, SlotEvent::Probed(_))
        });
    }
}

impl Slot {
    fn wants(&self, instance: &InstanceName) -> bool {
        self.wish
            .as_ref()
            .and_then(Wish::added)
            .is_some_and(|added| added.instance == *instance)
    }

    fn cancel_call(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.set();
        }
    }
}

impl WishSender {
    /// Puts a wish in place of an older one; never waits. Returns the instance of that one when it
    /// was not taken: the control loop starts nothing of it, and removes what it had prepared.
    pub(crate) fn put(&self, wish: Wish) -> Option<InstanceName> {
        self.put_with(wish, None)
    }

    /// The same, together with what an earlier agent has prepared, which may be what is to run.
    pub(crate) fn put_with(
        &self,
        wish: Wish,
        found: Option<(AddedWorkload, PreparedContainer)>,
    ) -> Option<InstanceName> {
        self.change(|slot| {
            if found.is_some() {
                (slot.found, slot.preparation_is_new) = (found, true);
            }
            slot.cancel_call();
            let replaced = slot.wish.replace(wish);
            slot.is_new = true;
            let skipped = replaced
                .as_ref()
                .and_then(Wish::added)
                .map(|added| added.instance.clone());
            skipped.filter(|instance| !slot.wants(instance) && !slot.held.contains(instance))
        })
    }

    /// Orders that the container of an earlier life of the agent goes on as this. Nothing was
    /// ordered before.
    pub(crate) fn resume(&self, added: AddedWorkload) {
        self.change(|slot| {
            slot.resumed = Some(added.clone());
            slot.wish = Some(Wish::Run(added));
            slot.is_new = true;
        });
    }

    /// Orders what is to be prepared beside what runs, and gives the control loop what an earlier
    /// agent has prepared.
    pub(crate) fn prepare(
        &self,
        preparation: Option<Preparation>,
        found: Option<(AddedWorkload, PreparedContainer)>,
    ) {
        self.change(|slot| {
            (slot.preparation, slot.preparation_is_new) = (preparation, true);
            if found.is_some() {
                slot.found = found;
            }
        });
    }

    /// Gives the control loop containers to remove.
    pub(crate) fn put_surplus(&self, surplus: Vec<Surplus>) {
        self.change(|slot| {
            let started = surplus.iter().filter(|one| !one.is_unused);
            slot.held.extend(started.map(|one| one.instance.clone()));
            slot.surplus.extend(surplus);
        });
    }

    /// Lets the control loop report the end of an instance that was to be prepared.
    pub(crate) fn report_end(&self, instance: &InstanceName) {
        self.change(|slot| {
            slot.held.insert(instance.clone());
            slot.ended.push(instance.clone());
            slot.preparation_is_new = true;
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        let mut slot = self.shared.slot.lock();
        slot.is_done = false;
        let changed = change(&mut slot);
        drop(slot);
        self.shared.wake();
        changed
    }

    /// Whether the control loop has, or is to start, something of this instance and will report its
    /// end.
    pub(crate) fn accounts_for(&self, instance: &InstanceName) -> bool {
        let slot = self.shared.slot.lock();
        slot.wants(instance) || slot.held.contains(instance)
    }

    /// How far the start of this instance is.
    pub(crate) fn start_of(&self, instance: &InstanceName) -> StartProgress {
        let slot = self.shared.slot.lock();
        match &slot.start {
            Some(note) if note.instance == *instance => note.progress,
            _ => StartProgress::UnderWay,
        }
    }

    /// Whether the control loop has nothing and nothing to do, so that this may be dropped.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.slot.lock().is_done
    }
}

impl Drop for WishSender {
    fn drop(&mut self) {
        self.shared.slot.lock().abandoned = true;
        self.shared.wake();
    }
}

impl WishSlot {
    /// Takes the next event. Wishes come first: a delete must not lose to a retry.
    pub(crate) fn next(&self) -> Option<SlotEvent> {
        let mut slot = self.shared.slot.lock();
        if std::mem::take(&mut slot.preparation_is_new) {
            // What an earlier agent has prepared may be what is to run.
            return Some(SlotEvent::Preparation);
        }
        if std::mem::take(&mut slot.is_new) {
            return Some(SlotEvent::Wish);
        }
        if !slot.surplus.is_empty() {
            return Some(SlotEvent::Surplus);
        }
        slot.events.pop_front()
    }

    /// Reads the workload that is to run as soon as the wish is taken.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&AddedWorkload) -> T) -> Option<T> {
        self.shared
            .slot
            .lock()
            .wish
            .as_ref()
            .and_then(Wish::added)
            .map(read)
    }

    /// Takes the newest wish, and returns what is to run; the control loop holds that instead of
    /// `removed`, whose end it reports.
    pub(crate) fn take(&self, removed: Option<&InstanceName>) -> Option<AddedWorkload> {
        self.take_if(removed, |_| true)
    }

    /// [`Self::take`] if the newest wish `fits`. One that came since [`Self::peek`] may not; it is
    /// announced by itself.
    pub(crate) fn take_if(
        &self,
        removed: Option<&InstanceName>,
        fits: impl FnOnce(&Wish) -> bool,
    ) -> Option<AddedWorkload> {
        let mut slot = self.shared.slot.lock();
        if !slot.wish.as_ref().is_none_or(fits) {
            return None;
        }
        slot.is_new = false;
        removed
            .into_iter()
            .for_each(|removed| _ = slot.held.remove(removed));
        let Some(Wish::Run(added)) = slot.wish.take() else {
            return None;
        };
        slot.held.insert(added.instance.clone());
        Some(added)
    }

    /// Containers to remove.
    pub(crate) fn take_surplus(&self) -> Vec<Surplus> {
        std::mem::take(&mut self.shared.slot.lock().surplus)
    }

    /// What is to be prepared.
    pub(crate) fn preparation(&self) -> Option<Preparation> {
        self.shared.slot.lock().preparation.clone()
    }

    /// Instances that were to be prepared, and are not to be any more; once.
    pub(crate) fn take_ended(&self) -> Vec<InstanceName> {
        std::mem::take(&mut self.shared.slot.lock().ended)
    }

    /// What an earlier agent has prepared; once.
    pub(crate) fn take_found(&self) -> Option<(AddedWorkload, PreparedContainer)> {
        self.shared.slot.lock().found.take()
    }

    /// What the container of an earlier life of the agent goes on as; once.
    pub(crate) fn take_resumed(&self) -> Option<AddedWorkload> {
        self.shared.slot.lock().resumed.take()
    }

    /// The control loop has something of this instance.
    pub(crate) fn hold(&self, instance: &InstanceName) {
        self.shared.slot.lock().held.insert(instance.clone());
    }

    /// The control loop has nothing of this instance any more. Returns whether that is to be
    /// reported: not when the instance is wanted again, nor when nobody counts on it.
    pub(crate) fn release(&self, instance: &InstanceName) -> bool {
        let mut slot = self.shared.slot.lock();
        slot.held.remove(instance) && !slot.wants(instance)
    }

    /// Whether the control loop has to report the end of this instance.
    pub(crate) fn holds(&self, instance: &InstanceName) -> bool {
        self.shared.slot.lock().held.contains(instance)
    }

    /// Notes that the container of this instance was started.
    pub(crate) fn note_started(&self, instance: &InstanceName) {
        let mut slot = self.shared.slot.lock();
        slot.starts += 1;
        let progress = StartProgress::Started(slot.starts);
        slot.start = Some(StartNote {
            instance: instance.clone(),
            progress,
        });
    }

    /// Notes that a try to start this instance failed.
    pub(crate) fn note_start_failed(&self, instance: &InstanceName) {
        let note = StartNote {
            instance: instance.clone(),
            progress: StartProgress::Failed,
        };
        self.shared.slot.lock().start = Some(note);
    }

    /// Notes that no container is started any more: it goes, or another start begins.
    pub(crate) fn note_not_started(&self) {
        self.shared.slot.lock().start = None;
    }

    /// Whether there is a wish that was not taken.
    pub(crate) fn has_wish(&self) -> bool {
        self.shared.slot.lock().wish.is_some()
    }

    /// Whether this instance is to run as soon as the wish is taken.
    pub(crate) fn wants(&self, instance: &InstanceName) -> bool {
        self.shared.slot.lock().wants(instance)
    }

    /// Begins a watch: what takes its states. Those of an earlier one count no more.
    // [impl->swdd~workload-control-loop-checks-workload-state-validity~1]
    pub(crate) fn begin_watch(&self) -> StateReply {
        let watch = self.end_watch();
        let shared = self.shared.clone();
        let is_state = |event: &SlotEvent| matches!(event, SlotEvent::Observed(_));
        Box::new(move |state| {
            shared.put(
                SlotEvent::Observed(state),
                |slot| slot.watch == watch,
                is_state,
            )
        })
    }

    /// What reports that this prepared container was removed or started by somebody else.
    pub(crate) fn gone_reply(&self, id: ContainerId) -> GoneReply {
        let shared = self.shared.clone();
        Box::new(move || shared.put(SlotEvent::PreparedGone(id), |_| true, |_| false))
    }

    /// Observed states do not count any more. Returns the number of the next watch.
    pub(crate) fn end_watch(&self) -> u64 {
        let mut slot = self.shared.slot.lock();
        slot.watch += 1;
        slot.events
            .retain(|event| !matches!(event, SlotEvent::Observed(_)));
        slot.watch
    }

    /// Takes the results of probes.
    pub(crate) fn probe_reply(&self) -> ProbeReply {
        let shared = self.shared.clone();
        Box::new(move |report| shared.probed(report))
    }

    /// Wakes the control loop.
    pub(crate) fn waker(&self) -> Box<dyn Fn() + Send> {
        let shared = self.shared.clone();
        Box::new(move || shared.wake())
    }

    /// Becomes ready when there may be an event.
    pub(crate) fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Whether the sender is gone. Takes the wake-up token, so call [`Self::next`] afterwards.
    pub(crate) fn owner_gone(&self) -> bool {
        let _ = self.woken.try_recv();
        self.shared.slot.lock().abandoned
    }

    /// The control loop has nothing; it is done if it has nothing to do either. Returns whether
    /// that is new.
    pub(crate) fn done_if_empty(&self) -> bool {
        let mut slot = self.shared.slot.lock();
        let has_nothing_to_do =
            slot.wish.is_none() && slot.surplus.is_empty() && slot.ended.is_empty();
        let is_done = has_nothing_to_do && slot.preparation.is_none() && slot.found.is_none();
        is_done && !std::mem::replace(&mut slot.is_done, true)
    }

    /// Takes the end of an engine call.
    pub(crate) fn call_reply(&self, number: u64) -> Box<dyn FnOnce(CallResult) + Send> {
        let shared = self.shared.clone();
        Box::new(move |result| shared.put(SlotEvent::Called(number, result), |_| true, |_| false))
    }

    /// Lets a newer wish cancel the start that begins now, also one that has come already. `None`:
    /// there is none.
    pub(crate) fn set_cancel(&self, cancel: Option<EventFd>) {
        let mut slot = self.shared.slot.lock();
        slot.cancel = cancel;
        if slot.is_new {
            slot.cancel_call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::execution_state::Phase;
    use ankaios_model::workload::Workload;
    use ankaios_runtime::probes::Outcome;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd as _;

    fn instance(config: &str) -> InstanceName {
        InstanceName::new("w", config, "A")
    }

    fn run(config: &str) -> Wish {
        let workload = Arc::new(Workload::new("A", "podman", config));
        let added = AddedWorkload {
            instance: workload.instance_name("w"),
            workload,
        };
        Wish::Run(added)
    }

    fn taken(slot: &WishSlot, removed: &str) -> Option<String> {
        slot.take(Some(&instance(removed)))
            .map(|added| added.workload.runtime_config.to_string())
    }

    fn observed(slot: &WishSlot) -> Option<Phase> {
        match slot.next()? {
            SlotEvent::Observed(state) => Some(state.phase),
            _ => panic!("a state is expected"),
        }
    }

    fn is_readable(cancel: &EventFd) -> bool {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(
            &mut [PollFd::from_borrowed_fd(cancel.as_fd(), PollFlags::IN)],
            Some(&zero),
        )
        .unwrap()
            == 1
    }

    // [utest->swdd~agent-uses-bounded-channels~1]
    #[test]
    fn only_the_newest_wish_counts_and_each_instance_that_was_skipped_is_named_once() {
        let (sender, slot) = wish_slot();
        assert_eq!(sender.put(run("a")), None);
        assert_eq!(
            sender.put(run("a")),
            None,
            "the same instance in another way"
        );
        assert_eq!(sender.put(run("b")), Some(instance("a")));
        assert!(sender.accounts_for(&instance("b")) && !sender.accounts_for(&instance("a")));
        assert!(matches!(slot.next(), Some(SlotEvent::Wish)));
        assert!(slot.next().is_none(), "it is announced once");
        assert_eq!(taken(&slot, "").as_deref(), Some("b"));
        assert_eq!(sender.put(run("b")), None);
        assert_eq!(
            sender.put(Wish::End),
            None,
            "the loop has this instance and reports its end"
        );
        assert!(sender.accounts_for(&instance("b")));
        assert_eq!(taken(&slot, "b"), None);
        assert!(!sender.accounts_for(&instance("b")));
    }

    // [utest->swdd~workload-control-loop-checks-workload-state-validity~1]
    #[test]
    fn the_newest_state_of_the_newest_watch_counts_and_comes_after_a_wish() {
        let (sender, slot) = wish_slot();
        let first = slot.begin_watch();
        first(ExecutionState::plain(Phase::Running));
        let second = slot.begin_watch();
        assert_eq!(observed(&slot), None);
        second(ExecutionState::plain(Phase::Running));
        second(ExecutionState::plain(Phase::Succeeded));
        first(ExecutionState::plain(Phase::Running));
        sender.put(run("a"));
        assert!(matches!(slot.next(), Some(SlotEvent::Wish)));
        assert_eq!(observed(&slot), Some(Phase::Succeeded));
        second(ExecutionState::plain(Phase::Running));
        slot.end_watch();
        second(ExecutionState::plain(Phase::Running));
        assert_eq!(observed(&slot), None);
    }

    #[test]
    fn the_newest_result_of_a_probe_counts_but_a_verdict_stays_until_there_is_another_one() {
        let (_sender, slot) = wish_slot();
        let report = |(key, attempts, is_verdict)| {
            let (outcome, in_a_row) = (Outcome::Holds, 1);
            slot.probe_reply()(ProbeReport {
                key,
                outcome,
                in_a_row,
                attempts,
                is_verdict,
            });
        };
        for (reports, newest) in [
            (vec![(1, 1, false), (1, 2, false)], 2),
            (vec![(1, 3, true), (1, 4, false)], 3),
            (vec![(1, 5, true), (1, 6, true)], 6),
            (vec![(1, 7, true), (2, 8, false)], 8),
        ] {
            reports.into_iter().for_each(report);
            let Some(SlotEvent::Probed(report)) = slot.next() else {
                panic!("a report is expected")
            };
            assert_eq!(report.attempts, newest);
            assert!(slot.next().is_none());
        }
    }

    #[test]
    fn a_wish_that_came_since_the_slot_was_read_is_not_taken_for_that_one_and_announced() {
        let (sender, slot) = wish_slot();
        sender.put(run("a"));
        assert!(matches!(slot.next(), Some(SlotEvent::Wish)));
        let is_first = |wish: &Wish| {
            wish.added()
                .is_some_and(|added| added.instance == instance("a"))
        };
        for newer in [run("b"), Wish::End] {
            sender.put(newer);
            assert!(slot.take_if(None, is_first).is_none());
            assert!(
                matches!(slot.next(), Some(SlotEvent::Wish)),
                "it is announced although the earlier one was seen"
            );
        }
        sender.put(run("a"));
        assert!(slot.take_if(None, is_first).is_some());
        assert!(slot.next().is_none());
    }

    // [utest->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    #[test]
    fn a_start_is_cancelled_by_a_wish_before_and_during_it_only() {
        let (sender, slot) = wish_slot();
        let begin = || {
            let cancel = EventFd::new().unwrap();
            slot.set_cancel(Some(cancel.clone()));
            cancel
        };
        slot.begin_watch()(ExecutionState::plain(Phase::Running));
        let first = begin();
        assert!(!is_readable(&first));
        sender.put(Wish::End);
        assert!(is_readable(&first));
        assert!(is_readable(&begin()), "the wish was not seen yet");
        assert!(matches!(slot.next(), Some(SlotEvent::Wish)));
        assert!(!is_readable(&begin()), "the wish was seen");
        let last = begin();
        slot.set_cancel(None);
        sender.put(Wish::End);
        assert!(!is_readable(&last));
    }

    #[test]
    fn a_loop_ends_only_when_no_wish_was_missed() {
        let (sender, slot) = wish_slot();
        sender.put(Wish::End);
        assert!(!slot.done_if_empty());
        assert_eq!(taken(&slot, ""), None);
        slot.begin_watch()(ExecutionState::plain(Phase::Running));
        assert!(slot.done_if_empty() && sender.is_done());
        assert!(!slot.done_if_empty(), "it says so once");
        sender.put(Wish::End);
        assert!(!sender.is_done());
        assert!(!slot.owner_gone());
        let reply = slot.begin_watch();
        drop(sender);
        reply(ExecutionState::plain(Phase::Running));
        assert!(slot.owner_gone(), "whoever else may still report");
    }
}
