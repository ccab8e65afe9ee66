//! The mailbox of one control loop: the newest target of the scheduler, and the reports of state
//! checkers, probes and engine calls. So a control loop waits for nothing else.
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
    pub(crate) run: RunTarget,
    /// A removal that has failed is retried at once.
    pub(crate) is_retry: bool,
    /// The instance to prepare beside the current one.
    pub(crate) next: Option<Preparation>,
    /// Containers of an earlier agent that the control loop has not taken yet. A newer target keeps
    /// them and adds its own.
    pub(crate) adopt: Vec<FoundContainer>,
}

/// Which instance of the workload must run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum RunTarget {
    /// None: everything is removed, except the prepared container.
    #[default]
    Nothing,
    /// The container of an earlier agent stays as it is, because its replacement or restart has to
    /// wait.
    Found,
    /// This one. All other containers of the workload are removed, except the prepared one.
    Instance(AddedWorkload),
}

impl RunTarget {
    /// The instance that must run.
    pub(crate) fn added(&self) -> Option<&AddedWorkload> {
        match self {
            Self::Instance(added) => Some(added),
            Self::Nothing | Self::Found => None,
        }
    }
}

/// An instance to prepare beside the current one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preparation {
    pub(crate) added: AddedWorkload,
    /// The highest level. Its options and the current instance may lower it.
    pub(crate) level: PrepareLevel,
    /// How often a failed try is repeated for an update. `None`, for a start that waits: as often
    /// as needed.
    pub(crate) retry_limit: Option<u32>,
}

/// A container that an earlier agent has left.
#[derive(Debug, Clone)]
pub(crate) struct FoundContainer {
    pub(crate) runtime: Name,
    pub(crate) instance: InstanceName,
    pub(crate) id: ContainerId,
    pub(crate) purpose: FoundPurpose,
}

/// The use of a container that was found.
#[derive(Debug, Clone)]
pub(crate) enum FoundPurpose {
    /// It is adopted when this instance must run. Until it is observed, this state is shown.
    Adopt(AddedWorkload, ExecutionState),
    /// It has ended. It is started again when this instance must run.
    StartAgain(AddedWorkload),
    /// It stays until another instance must run, or none.
    Replace,
    /// It is prepared. It is started when this instance must run.
    Start(AddedWorkload, PreparedContainer),
    /// It is orphaned. It is removed before the workload is started.
    Remove,
    /// It was prepared, was never started, and is removed.
    RemoveUnused,
}

/// An event of a control loop, from its mailbox.
pub(crate) enum LoopEvent {
    /// There is a newer target, which stays in the mailbox until [`Mailbox::take_target`].
    Target,
    /// The engine call with this number has ended.
    Called(u64, CallResult),
    /// Others have removed or started this prepared container.
    PreparedGone(ContainerId),
    /// The state checker observed this state of the container that is watched.
    Observed(ExecutionState),
    /// The newest result of a probe.
    Probed(ProbeReport),
}

/// Sets the target of one control loop. The control loop ends when this is dropped.
pub(crate) struct MailboxHandle {
    contents: Arc<Mutex<Contents>>,
}

/// The mailbox of one control loop, as the loop itself uses it.
pub(crate) struct Mailbox {
    contents: Arc<Mutex<Contents>>,
    woken: Receiver<()>,
}

/// The contents of a mailbox.
struct Contents {
    target: Target,
    /// The control loop has not taken the target yet.
    is_new: bool,
    /// All other events, in order.
    events: VecDeque<LoopEvent>,
    /// The number of the present watch. States of an earlier one are dropped.
    watch: u64,
    /// The start under way.
    start: Option<CancellableStart>,
    /// The handle was dropped.
    is_abandoned: bool,
    wake: Sender<()>,
}

/// A start under way, which ends early when another instance must run.
struct CancellableStart {
    added: AddedWorkload,
    cancel: EventFd,
}

/// Makes a mailbox without a target.
pub(crate) fn mailbox() -> (MailboxHandle, Mailbox) {
    let (wake, woken) = bounded(1);
    let contents = Arc::new(Mutex::new(Contents {
        target: Target::default(),
        is_new: false,
        events: VecDeque::new(),
        watch: 0,
        start: None,
        is_abandoned: false,
        wake,
    }));
    let handle = MailboxHandle {
        contents: contents.clone(),
    };
    (handle, Mailbox { contents, woken })
}

impl Contents {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // Full: the loop is being woken already.
    }

    fn put(&mut self, event: LoopEvent) {
        self.events.push_back(event);
        self.wake();
    }

    /// Puts a state of the container, unless it is from an earlier watch.
    fn put_observed(&mut self, watch: u64, state: ExecutionState) {
        if self.watch == watch {
            self.forget_observed();
            self.put(LoopEvent::Observed(state));
        }
    }

    /// Puts the result of a probe in the place of an older one. A verdict is only replaced by
    /// another verdict, or by a result of another probe: the prober does not repeat it.
    fn put_probed(&mut self, report: ProbeReport) {
        for event in &self.events {
            if let LoopEvent::Probed(waiting) = event
                && waiting.key == report.key
                && waiting.is_verdict
                && !report.is_verdict
            {
                return;
            }
        }
        self.events
            .retain(|event| !matches!(event, LoopEvent::Probed(_)));
        self.put(LoopEvent::Probed(report));
    }

    fn forget_observed(&mut self) {
        self.events
            .retain(|event| !matches!(event, LoopEvent::Observed(_)));
    }

    /// Cancels the start under way if another instance must run.
    fn cancel_pointless_start(&self) {
        if let Some(start) = &self.start
            && self.target.run.added() != Some(&start.added)
        {
            start.cancel.set();
        }
    }
}

impl MailboxHandle {
    /// Replaces the target; never waits. Containers to adopt are added to those that were not taken
    /// yet. Returns whether the control loop had taken the older target.
    pub(crate) fn put(&self, mut target: Target) -> bool {
        let mut contents = self.contents.lock();
        let was_taken = !contents.is_new;
        let mut adopt = std::mem::take(&mut contents.target.adopt);
        adopt.append(&mut target.adopt);
        target.adopt = adopt;
        contents.target = target;
        contents.is_new = true;
        contents.cancel_pointless_start();
        contents.wake();
        drop(contents);
        #[cfg(debug_assertions)]
        super::inspection::target_was_sent();
        was_taken
    }
}

impl Drop for MailboxHandle {
    fn drop(&mut self) {
        let mut contents = self.contents.lock();
        contents.is_abandoned = true;
        contents.wake();
    }
}

impl Mailbox {
    /// Takes the next event. A new target comes first: a delete must not wait for other events.
    pub(crate) fn next(&self) -> Option<LoopEvent> {
        let mut contents = self.contents.lock();
        if contents.is_new {
            return Some(LoopEvent::Target);
        }
        contents.events.pop_front()
    }

    /// Takes the newest target, if it was not taken yet.
    pub(crate) fn take_target(&self) -> Option<Target> {
        let mut contents = self.contents.lock();
        if !contents.is_new {
            return None;
        }
        contents.is_new = false;
        let adopt = std::mem::take(&mut contents.target.adopt);
        Some(Target {
            adopt,
            ..contents.target.clone()
        })
    }

    /// Whether there is a target that was not taken.
    pub(crate) fn has_target(&self) -> bool {
        self.contents.lock().is_new
    }

    /// Begins a watch, and drops the states of the earlier one. Returns the function that takes the
    /// states of the new one.
    // [impl->swdd~workload-control-loop-checks-workload-state-validity~1]
    pub(crate) fn begin_watch(&self) -> StateReply {
        let watch = self.end_watch();
        let contents = self.contents.clone();
        Box::new(move |state| contents.lock().put_observed(watch, state))
    }

    /// Ends the watch, and drops its states. Returns the number of the next watch.
    pub(crate) fn end_watch(&self) -> u64 {
        let mut contents = self.contents.lock();
        contents.watch += 1;
        contents.forget_observed();
        contents.watch
    }

    /// Returns the function that reports that others have removed or started this prepared
    /// container.
    pub(crate) fn gone_reply(&self, id: ContainerId) -> GoneReply {
        let contents = self.contents.clone();
        Box::new(move || contents.lock().put(LoopEvent::PreparedGone(id)))
    }

    /// Returns the function that takes the results of probes.
    pub(crate) fn probe_reply(&self) -> ProbeReply {
        let contents = self.contents.clone();
        Box::new(move |report| contents.lock().put_probed(report))
    }

    /// Returns the function that takes the end of an engine call.
    pub(crate) fn call_reply(&self, number: u64) -> Box<dyn FnOnce(CallResult) + Send> {
        let contents = self.contents.clone();
        Box::new(move |result| contents.lock().put(LoopEvent::Called(number, result)))
    }

    /// Returns the function that wakes the control loop.
    pub(crate) fn waker(&self) -> Box<dyn Fn() + Send> {
        let contents = self.contents.clone();
        Box::new(move || contents.lock().wake())
    }

    /// Becomes ready when there may be an event.
    pub(crate) fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Takes the wake-up token. Call [`Self::next`] afterwards, or an event may be missed.
    pub(crate) fn take_wake_up(&self) {
        let _ = self.woken.try_recv();
    }

    /// Whether the handle is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.contents.lock().is_abandoned
    }

    /// Sets the descriptor that cancels the start of this instance. It becomes readable as soon as
    /// another one must run: at once, if a newer target says so already.
    pub(crate) fn begin_start(&self, added: AddedWorkload, cancel: EventFd) {
        let mut contents = self.contents.lock();
        contents.start = Some(CancellableStart { added, cancel });
        contents.cancel_pointless_start();
    }

    /// Notes that no start is under way any more.
    pub(crate) fn end_start(&self) {
        self.contents.lock().start = None;
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

    fn put(handle: &MailboxHandle, number: u64, run: RunTarget) {
        handle.put(Target {
            number,
            run,
            ..Target::default()
        });
    }

    fn run(config: &str) -> RunTarget {
        RunTarget::Instance(added(config))
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
    fn newest_target_applies_and_keeps_all_found_containers() {
        let (handle, mailbox) = mailbox();
        for number in 1..=2 {
            let found = FoundContainer {
                runtime: "podman".into(),
                instance: instance("a"),
                id: ContainerId(number.to_string().as_str().into()),
                purpose: FoundPurpose::Remove,
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
    fn newest_probe_result_applies_unless_a_verdict_waits() {
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
        put(&handle, 3, RunTarget::Nothing);
        assert!(is_readable(&first));
        assert!(is_readable(&begin("a")), "the target came before the start");
        put(&handle, 4, run("b"));
        let last = begin("b");
        mailbox.end_start();
        put(&handle, 5, RunTarget::Nothing);
        assert!(!is_readable(&last));
    }

    #[test]
    fn mailbox_without_handle_is_abandoned_despite_other_senders() {
        let (handle, mailbox) = mailbox();
        let reply = mailbox.begin_watch();
        assert!(!mailbox.is_abandoned());
        drop(handle);
        reply(ExecutionState::plain(Phase::Running));
        assert!(mailbox.is_abandoned());
    }
}
