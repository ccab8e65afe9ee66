//! The mailbox of one control loop: the newest target of the scheduler, and what state checkers,
//! probes and engine calls report. So a control loop waits for nothing else.
//!
//! Thread: [`MailboxHandle`] belongs to `scheduler`, [`Mailbox`] to `wl:<name>`. A newer target
//! replaces an older one, a newer state or result an older one, so the mailbox is bounded and no
//! sender waits. A target that makes the engine call of a start pointless also makes a descriptor
//! readable, which ends that call.

use crate::engine_call::CallResult;
use crate::state_checker::{GoneReply, StateReply};
use crate::workload::preparation::record::PreparedContainer;
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::sync::{EventFd, Mutex};
use ankaios_runtime::ContainerId;
use ankaios_runtime::probes::{ProbeReply, ProbeReport};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::sync::Arc;

/// What the scheduler wants of one control loop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    /// Counts the targets of one mailbox. A status names the one that it follows.
    pub(crate) number: u64,
    pub(crate) run: Run,
    /// A removal that has failed is retried at once.
    pub(crate) is_retry: bool,
    /// What to prepare beside what runs.
    pub(crate) next: Option<Preparation>,
    /// Containers of an earlier agent that the control loop has not taken yet. These are added to:
    /// a newer target must not lose one.
    pub(crate) adopt: Vec<FoundContainer>,
}

/// Which instance of the workload must run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Run {
    /// None: everything is removed, except the prepared container.
    #[default]
    Nothing,
    /// The container of an earlier agent that was handed over stays as it is: what replaces it, or
    /// starts it again, has to wait.
    Found,
    /// This one. Every other container of the workload is removed, except the prepared one.
    Instance(AddedWorkload),
}

impl Run {
    /// The instance that must run.
    pub(crate) fn added(&self) -> Option<&AddedWorkload> {
        match self {
            Self::Instance(added) => Some(added),
            Self::Nothing | Self::Found => None,
        }
    }
}

/// What to prepare beside what runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preparation {
    pub(crate) added: AddedWorkload,
    /// How far, if its options and what runs allow it.
    pub(crate) level: PrepareLevel,
    /// For an update: when more tries than these have failed, there is no further one. `None` for
    /// a start that waits, which is tried until it begins.
    pub(crate) retry_limit: Option<u32>,
}

/// A container that an earlier agent has left.
#[derive(Debug, Clone)]
pub(crate) struct FoundContainer {
    pub(crate) runtime: Name,
    pub(crate) instance: InstanceName,
    pub(crate) id: ContainerId,
    pub(crate) purpose: Purpose,
}

/// What becomes of a container that was found.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// It is adopted when this must run, and shown in this state until it was observed.
    Adopt(AddedWorkload, ExecutionState),
    /// It has ended, and is started again when this must run.
    StartAgain(AddedWorkload),
    /// It stays until something else must run.
    Replace,
    /// It is prepared, and started when this must run.
    Start(AddedWorkload, PreparedContainer),
    /// It is orphaned: it is removed before anything is started.
    Remove,
    /// It was prepared, was never started, and is removed.
    RemoveUnused,
}

/// What a control loop takes from its mailbox.
pub(crate) enum LoopEvent {
    /// There is a newer target, which stays in the mailbox until [`Mailbox::take_target`].
    Target,
    /// The engine call with this number has ended.
    Called(u64, CallResult),
    /// This prepared container was removed or started by somebody else.
    PreparedGone(ContainerId),
    /// The state checker observed this state of the container that is watched.
    Observed(ExecutionState),
    /// The newest result of a probe.
    Probed(ProbeReport),
}

/// Sets the target of one control loop. The control loop ends when this is dropped.
pub(crate) struct MailboxHandle {
    shared: Arc<Shared>,
}

/// What one control loop receives.
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
    woken: Receiver<()>,
}

struct Shared {
    slot: Mutex<Slot>,
    wake: Sender<()>,
}

#[derive(Default)]
struct Slot {
    target: Target,
    /// The control loop has not taken the target yet.
    is_new: bool,
    /// What else has happened, in order.
    events: VecDeque<LoopEvent>,
    /// Counts watches, so that a late state of an earlier one is recognised.
    watch: u64,
    /// The start under way.
    start: Option<CancellableStart>,
    /// The handle is gone.
    is_abandoned: bool,
}

/// A start under way, which ends early when something else must run.
struct CancellableStart {
    added: AddedWorkload,
    cancel: EventFd,
}

/// Makes a mailbox without a target.
pub(crate) fn mailbox() -> (MailboxHandle, Mailbox) {
    let (wake, woken) = bounded(1);
    let shared = Arc::new(Shared {
        slot: Mutex::default(),
        wake,
    });
    let handle = MailboxHandle {
        shared: shared.clone(),
    };
    (handle, Mailbox { shared, woken })
}

impl Shared {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // Full: the loop is being woken already.
    }

    fn put(&self, event: LoopEvent) {
        self.slot.lock().events.push_back(event);
        self.wake();
    }

    fn observed(&self, watch: u64, state: ExecutionState) {
        let mut slot = self.slot.lock();
        if slot.watch != watch {
            return; // Of an earlier watch.
        }
        slot.forget_observed();
        slot.events.push_back(LoopEvent::Observed(state));
        drop(slot);
        self.wake();
    }

    fn probed(&self, report: ProbeReport) {
        let mut slot = self.slot.lock();
        for event in &slot.events {
            // A verdict is reported once, so a lesser result of the same order must not replace it.
            if let LoopEvent::Probed(waiting) = event
                && waiting.key == report.key
                && waiting.is_verdict
                && !report.is_verdict
            {
                return;
            }
        }
        slot.events
            .retain(|event| !matches!(event, LoopEvent::Probed(_)));
        slot.events.push_back(LoopEvent::Probed(report));
        drop(slot);
        self.wake();
    }
}

impl Slot {
    /// Ends the start under way if something else must run.
    fn cancel_pointless_start(&self) {
        if let Some(start) = &self.start
            && self.target.run.added() != Some(&start.added)
        {
            start.cancel.set();
        }
    }

    fn forget_observed(&mut self) {
        self.events
            .retain(|event| !matches!(event, LoopEvent::Observed(_)));
    }
}

impl MailboxHandle {
    /// Sets the target, in place of an older one; never waits. Returns whether the control loop has
    /// taken the older one.
    pub(crate) fn put(&self, target: Target) -> bool {
        let mut slot = self.shared.slot.lock();
        let was_taken = !slot.is_new;
        let mut adopt = std::mem::take(&mut slot.target.adopt);
        slot.target = target;
        adopt.append(&mut slot.target.adopt);
        slot.target.adopt = adopt;
        slot.is_new = true;
        slot.cancel_pointless_start();
        drop(slot);
        self.shared.wake();
        #[cfg(debug_assertions)]
        super::inspection::target_was_sent();
        was_taken
    }
}

impl Drop for MailboxHandle {
    fn drop(&mut self) {
        self.shared.slot.lock().is_abandoned = true;
        self.shared.wake();
    }
}

impl Mailbox {
    /// Takes the next event. Targets come first: a delete must not lose to a retry.
    pub(crate) fn next(&self) -> Option<LoopEvent> {
        let mut slot = self.shared.slot.lock();
        if slot.is_new {
            return Some(LoopEvent::Target);
        }
        slot.events.pop_front()
    }

    /// Takes the newest target, if there is one that was not taken.
    pub(crate) fn take_target(&self) -> Option<Target> {
        let mut slot = self.shared.slot.lock();
        if !std::mem::take(&mut slot.is_new) {
            return None;
        }
        let adopt = std::mem::take(&mut slot.target.adopt);
        Some(Target {
            adopt,
            ..slot.target.clone()
        })
    }

    /// Whether there is a target that was not taken.
    pub(crate) fn has_target(&self) -> bool {
        self.shared.slot.lock().is_new
    }

    /// Begins a watch, and returns what takes its states. Those of an earlier watch are dropped.
    // [impl->swdd~workload-control-loop-checks-workload-state-validity~1]
    pub(crate) fn begin_watch(&self) -> StateReply {
        let watch = self.end_watch();
        let shared = self.shared.clone();
        Box::new(move |state| shared.observed(watch, state))
    }

    /// Drops observed states. Returns the number of the next watch.
    pub(crate) fn end_watch(&self) -> u64 {
        let mut slot = self.shared.slot.lock();
        slot.watch += 1;
        slot.forget_observed();
        slot.watch
    }

    /// Returns what reports that this prepared container was removed or started by somebody else.
    pub(crate) fn gone_reply(&self, id: ContainerId) -> GoneReply {
        let shared = self.shared.clone();
        Box::new(move || shared.put(LoopEvent::PreparedGone(id)))
    }

    /// Returns what takes the results of probes.
    pub(crate) fn probe_reply(&self) -> ProbeReply {
        let shared = self.shared.clone();
        Box::new(move |report| shared.probed(report))
    }

    /// Returns what takes the end of an engine call.
    pub(crate) fn call_reply(&self, number: u64) -> Box<dyn FnOnce(CallResult) + Send> {
        let shared = self.shared.clone();
        Box::new(move |result| shared.put(LoopEvent::Called(number, result)))
    }

    /// Returns what wakes the control loop.
    pub(crate) fn waker(&self) -> Box<dyn Fn() + Send> {
        let shared = self.shared.clone();
        Box::new(move || shared.wake())
    }

    /// Becomes ready when there may be an event.
    pub(crate) fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Takes the wake-up token, so call [`Self::next`] afterwards.
    pub(crate) fn take_wake_up(&self) {
        let _ = self.woken.try_recv();
    }

    /// Whether the handle is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.slot.lock().is_abandoned
    }

    /// Sets what cancels the start of this instance as soon as something else must run, which may
    /// be so already.
    pub(crate) fn begin_start(&self, added: AddedWorkload, cancel: EventFd) {
        let mut slot = self.shared.slot.lock();
        slot.start = Some(CancellableStart { added, cancel });
        slot.cancel_pointless_start();
    }

    /// No start is under way any more.
    pub(crate) fn end_start(&self) {
        self.shared.slot.lock().start = None;
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

    fn added(config: &str) -> AddedWorkload {
        let workload = Arc::new(Workload::new("A", "podman", config));
        AddedWorkload {
            instance: workload.instance_name("w"),
            workload,
        }
    }

    fn put(handle: &MailboxHandle, number: u64, run: Run) {
        handle.put(Target {
            number,
            run,
            ..Target::default()
        });
    }

    fn run(config: &str) -> Run {
        Run::Instance(added(config))
    }

    fn observed(mailbox: &Mailbox) -> Option<Phase> {
        match mailbox.next()? {
            LoopEvent::Observed(state) => Some(state.phase),
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
    fn only_the_newest_target_applies_and_keeps_all_found_containers() {
        let (handle, mailbox) = mailbox();
        for number in 1..=2 {
            let found = FoundContainer {
                runtime: "podman".into(),
                instance: instance("a"),
                id: ContainerId(number.to_string().as_str().into()),
                purpose: Purpose::Remove,
            };
            handle.put(Target {
                number,
                run: run(["a", "b"][number as usize - 1]),
                is_retry: false,
                next: None,
                adopt: vec![found],
            });
        }
        assert!(matches!(mailbox.next(), Some(LoopEvent::Target)));
        let target = mailbox.take_target().unwrap();
        assert_eq!((target.number, target.run), (2, run("b")));
        assert_eq!(target.adopt.len(), 2);
        assert!(mailbox.take_target().is_none() && mailbox.next().is_none());
        let next = Target::default();
        assert!(
            handle.put(next.clone()),
            "the control loop has taken the last one"
        );
        assert!(!handle.put(next));
        assert!(mailbox.take_target().unwrap().adopt.is_empty());
    }

    // [utest->swdd~workload-control-loop-checks-workload-state-validity~1]
    #[test]
    fn the_newest_state_of_the_newest_watch_applies_after_a_target() {
        let (handle, slot) = mailbox();
        let first = slot.begin_watch();
        first(ExecutionState::plain(Phase::Running));
        let second = slot.begin_watch();
        assert_eq!(observed(&slot), None);
        second(ExecutionState::plain(Phase::Running));
        second(ExecutionState::plain(Phase::Succeeded));
        first(ExecutionState::plain(Phase::Running));
        put(&handle, 1, run("a"));
        assert!(matches!(slot.next(), Some(LoopEvent::Target)));
        slot.take_target().unwrap();
        assert_eq!(observed(&slot), Some(Phase::Succeeded));
        second(ExecutionState::plain(Phase::Running));
        slot.end_watch();
        second(ExecutionState::plain(Phase::Running));
        assert_eq!(observed(&slot), None);
    }

    #[test]
    fn the_newest_result_of_a_probe_counts_but_a_verdict_stays_until_there_is_another_one() {
        let (_handle, slot) = mailbox();
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
            let Some(LoopEvent::Probed(report)) = slot.next() else {
                panic!("a report is expected")
            };
            assert_eq!(report.attempts, newest);
            assert!(slot.next().is_none());
        }
    }

    // [utest->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    #[test]
    fn a_start_is_cancelled_when_something_else_must_run() {
        let (handle, mailbox) = mailbox();
        let begin = |config| {
            let cancel = EventFd::new().unwrap();
            mailbox.begin_start(added(config), cancel.clone());
            cancel
        };
        put(&handle, 1, run("a"));
        let first = begin("a");
        put(&handle, 2, run("a"));
        assert!(!is_readable(&first), "it must still run");
        put(&handle, 3, Run::Nothing);
        assert!(is_readable(&first));
        assert!(is_readable(&begin("a")), "the target came before the start");
        put(&handle, 4, run("b"));
        let last = begin("b");
        mailbox.end_start();
        put(&handle, 5, Run::Nothing);
        assert!(!is_readable(&last));
    }

    #[test]
    fn a_mailbox_without_handle_is_abandoned_whoever_else_may_report() {
        let (handle, mailbox) = mailbox();
        let reply = mailbox.begin_watch();
        assert!(!mailbox.is_abandoned());
        drop(handle);
        reply(ExecutionState::plain(Phase::Running));
        assert!(mailbox.is_abandoned());
    }
}
