//! What control loops are told to do, and the queue it waits in: bounded, never blocking who tells.
//!
//! Thread: [`WorkloadCommandSender`] belongs to `scheduler`, [`WorkloadInbox`] to `wl:<name>`.
//! A command that makes a running create pointless also makes a descriptor readable, which ends the engine call.

use super::state_checker::WatchCommand;
use crate::limits::WORKLOAD_INBOX;
use crate::model::execution_state::ExecutionState;
use crate::model::names::{InstanceName, Name};
use crate::model::workload::Workload;
use crate::runtime::{ContainerId, RuntimeConnector};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An engine as one control loop uses it.
pub struct Engine {
    /// Its own connector.
    pub connector: Box<dyn RuntimeConnector>,
    /// The engine's state checker.
    pub watch: Sender<WatchCommand>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engine")
    }
}

/// A workload to run.
#[derive(Debug)]
pub struct WorkloadOrder {
    /// Which instance.
    pub instance: InstanceName,
    /// What to run.
    pub workload: Arc<Workload>,
    /// Where; `None` when its runtime is unknown or not enabled.
    pub engine: Option<Engine>,
    /// Containers of this workload may exist that no listing showed; remove them before the first create.
    pub search_first: bool,
    /// Engines of other runtimes that may have a container of this workload, which goes before the first create, too.
    pub others: Vec<OtherEngine>,
}

/// An engine of another runtime that has not said which containers it has since the agent started.
#[derive(Debug)]
pub struct OtherEngine {
    /// Its runtime.
    pub runtime: Name,
    /// The engine.
    pub engine: Engine,
    /// When it is not waited for any more; `None` waits for ever.
    pub until: Option<Instant>,
}

/// A container of an earlier life of the agent.
#[derive(Debug)]
pub struct HeldContainer {
    /// Whose it is.
    pub instance: InstanceName,
    /// Which it is.
    pub id: ContainerId,
    /// Where it is.
    pub engine: Engine,
    /// Another control loop runs the same instance: the states and the folder of the instance are not this one's.
    pub silent: bool,
}

/// Commands of one workload, executed strictly in order.
#[derive(Debug)]
pub enum WorkloadCommand {
    /// Start it; a held container of the same instance is started again instead of making a new one.
    Create(WorkloadOrder),
    /// Remove what is there, then start this; `None` only removes.
    Update(Option<WorkloadOrder>),
    /// Remove what is there and end the loop.
    Delete,
    /// Take over a container that runs, or that ended and shall stay as it is.
    Resume(WorkloadOrder, ContainerId),
    /// Take over a container which the next command starts again or removes.
    Hold(HeldContainer),
    /// A container of the workload was found in this engine, which others remove: nothing is started beside it.
    FoundIn(OtherEngine),
    /// The state checker saw this.
    Observed {
        /// Number of the start that is meant.
        generation: u64,
        /// The state.
        state: ExecutionState,
    },
}

impl WorkloadCommand {
    /// Whether a create that is under way is not wanted any more once this command waits.
    fn cancels_create(&self) -> bool {
        matches!(self, Self::Update(_) | Self::Delete)
    }
}

/// The control loop has ended; the command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopEnded;

/// Puts commands for one workload.
#[derive(Debug)]
pub struct WorkloadCommandSender {
    shared: Arc<Mutex<Queue>>,
    wake: Sender<()>,
}

/// Takes commands of one workload.
#[derive(Debug)]
pub struct WorkloadInbox {
    shared: Arc<Mutex<Queue>>,
    woken: Receiver<()>,
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<WorkloadCommand>,
    closed: bool,
    /// Of the engine call that is under way.
    cancel: Option<Arc<OwnedFd>>,
}

/// Makes the two ends of a queue.
#[must_use]
pub fn workload_inbox() -> (WorkloadCommandSender, WorkloadInbox) {
    let shared = Arc::new(Mutex::new(Queue::default()));
    let (wake, woken) = bounded(1);
    (WorkloadCommandSender { shared: shared.clone(), wake }, WorkloadInbox { shared, woken })
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // A poisoned queue is still a queue: no operation leaves it half changed.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkloadCommandSender {
    /// Puts `command`; never waits. Answers an instance that will never be started because a newer wish replaced it
    /// in a full queue.
    ///
    /// # Errors
    /// [`LoopEnded`] when nobody will take it: start a new loop.
    pub fn send(&self, command: WorkloadCommand) -> Result<Option<InstanceName>, LoopEnded> {
        let mut queue = lock(&self.shared);
        if queue.closed {
            return Err(LoopEnded);
        }
        if command.cancels_create() {
            queue.cancel_call();
        }
        let replaced = queue.put(command);
        drop(queue);
        let _ = self.wake.try_send(()); // Full: the loop is being woken already.
        Ok(replaced)
    }
}

impl Queue {
    fn put(&mut self, command: WorkloadCommand) -> Option<InstanceName> {
        if let WorkloadCommand::Observed { generation, .. } = &command {
            // Only the newest state of a start matters; it keeps the place of the last one.
            if let Some(WorkloadCommand::Observed { generation: waiting, .. }) = self.commands.back()
                && waiting == generation
            {
                self.commands.pop_back();
            }
            if self.commands.len() < WORKLOAD_INBOX {
                self.commands.push_back(command);
            }
            return None; // Full of wishes: what is observed now will be removed anyway.
        }
        if let WorkloadCommand::FoundIn(found) = &command {
            // At most one of each engine, so a full queue has room for it.
            let same = |waiting: &WorkloadCommand| matches!(waiting, WorkloadCommand::FoundIn(other) if other.runtime == found.runtime);
            self.commands.retain(|waiting| !same(waiting));
            self.commands.push_back(command);
            return None;
        }
        if self.commands.len() >= WORKLOAD_INBOX {
            self.commands.retain(|waiting| !matches!(waiting, WorkloadCommand::Observed { .. }));
        }
        let mut replaced = None;
        let full = self.commands.len() >= WORKLOAD_INBOX;
        if full
            && self.commands.back().is_some_and(WorkloadCommand::cancels_create)
            && let Some(WorkloadCommand::Update(Some(order))) = self.commands.pop_back()
        {
            replaced = Some(order.instance);
        }
        self.commands.push_back(command);
        replaced
    }

    fn cancel_call(&self) {
        if let Some(cancel) = &self.cancel {
            let _ = rustix::io::write(cancel, &1_u64.to_ne_bytes()); // Full means readable already.
        }
    }
}

impl WorkloadInbox {
    /// The next command if there is one.
    #[must_use]
    pub fn pop(&self) -> Option<WorkloadCommand> {
        lock(&self.shared).commands.pop_front()
    }

    /// Becomes ready when there may be a command, and for good when the sender is gone.
    #[must_use]
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Whether nobody can send any more. Takes the wake-up token, so look for commands afterwards.
    #[must_use]
    pub fn owner_gone(&self) -> bool {
        self.woken.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Refuses commands from now on if none waits; answers whether it does. What was observed does not count.
    #[must_use]
    pub fn close_if_empty(&self) -> bool {
        let mut queue = lock(&self.shared);
        queue.commands.retain(|waiting| !matches!(waiting, WorkloadCommand::Observed { .. }));
        queue.closed = queue.commands.is_empty();
        queue.closed
    }

    /// Whether a command waits that makes a create pointless.
    #[must_use]
    pub fn cancels_create(&self) -> bool {
        lock(&self.shared).commands.iter().any(WorkloadCommand::cancels_create)
    }

    /// Whether a command waits that names a container beside which nothing may be started.
    #[must_use]
    pub fn names_another_container(&self) -> bool {
        lock(&self.shared).commands.iter().any(|command| matches!(command, WorkloadCommand::FoundIn(_)))
    }

    /// Announces an engine call; what it answers becomes readable when a command makes the call pointless.
    ///
    /// `None` when no descriptor can be had; the call then runs to its end.
    #[must_use]
    pub fn begin_call(&self) -> Option<CancellableCall<'_>> {
        let cancel = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let mut queue = lock(&self.shared);
        queue.cancel = Some(cancel.clone());
        if queue.commands.iter().any(WorkloadCommand::cancels_create) {
            queue.cancel_call();
        }
        drop(queue);
        Some(CancellableCall { inbox: self, cancel })
    }
}

impl Drop for WorkloadInbox {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared);
        queue.closed = true;
        queue.commands.clear();
    }
}

/// An engine call that commands may cancel, until this is dropped.
#[derive(Debug)]
pub struct CancellableCall<'a> {
    inbox: &'a WorkloadInbox,
    cancel: Arc<OwnedFd>,
}

impl CancellableCall<'_> {
    /// Readable when the call is not wanted any more.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.cancel
    }
}

impl Drop for CancellableCall<'_> {
    fn drop(&mut self) {
        lock(&self.inbox.shared).cancel = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::execution_state::Phase;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn update(config: &str) -> WorkloadCommand {
        let workload = Workload::new("A", "podman", config);
        let instance = workload.instance_name("w");
        WorkloadCommand::Update(Some(WorkloadOrder {
            instance,
            workload: Arc::new(workload),
            engine: None,
            search_first: false,
            others: Vec::new(),
        }))
    }

    fn observed(generation: u64, phase: Phase) -> WorkloadCommand {
        WorkloadCommand::Observed { generation, state: ExecutionState::plain(phase) }
    }

    fn readable(call: &CancellableCall<'_>) -> bool {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(call.fd(), PollFlags::IN)], Some(&zero)).unwrap() == 1
    }

    fn taken(inbox: &WorkloadInbox) -> Vec<String> {
        std::iter::from_fn(|| inbox.pop())
            .map(|command| match command {
                WorkloadCommand::Update(Some(order)) => order.workload.runtime_config.to_string(),
                WorkloadCommand::Observed { state, .. } => state.to_string(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn commands_come_in_order_and_states_of_one_start_are_merged() {
        let (sender, inbox) = workload_inbox();
        sender.send(update("1")).unwrap();
        sender.send(observed(1, Phase::PendingStarting)).unwrap();
        sender.send(observed(1, Phase::Running)).unwrap();
        sender.send(observed(2, Phase::Succeeded)).unwrap();
        sender.send(WorkloadCommand::Delete).unwrap();
        assert_eq!(taken(&inbox), ["1", "Running(Ok)", "Succeeded(Ok)", "Delete"]);
    }

    // [utest->swdd~agent-uses-bounded-channels~1]
    #[test]
    fn a_full_queue_keeps_the_newest_wish_and_names_what_it_dropped() {
        let (sender, inbox) = workload_inbox();
        for number in 0..WORKLOAD_INBOX {
            assert_eq!(sender.send(update(&number.to_string())), Ok(None));
        }
        let dropped = InstanceName::new("w", &(WORKLOAD_INBOX - 1).to_string(), "A");
        assert_eq!(sender.send(update("new")), Ok(Some(dropped)));
        assert_eq!(sender.send(observed(1, Phase::Running)), Ok(None));
        assert_eq!(sender.send(WorkloadCommand::Delete), Ok(Some(InstanceName::new("w", "new", "A"))));
        assert_eq!(sender.send(WorkloadCommand::Delete), Ok(None));
        let taken = taken(&inbox);
        assert_eq!(taken.len(), WORKLOAD_INBOX);
        assert_eq!(taken.last().unwrap(), "Delete");
    }

    #[test]
    fn a_flood_of_states_takes_no_room_from_wishes() {
        let (sender, inbox) = workload_inbox();
        for generation in 0..100 {
            sender.send(observed(generation, Phase::Running)).unwrap();
        }
        sender.send(WorkloadCommand::Delete).unwrap();
        assert_eq!(taken(&inbox), ["Delete"]);
    }

    // [utest->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    #[test]
    fn a_call_is_cancelled_by_a_wish_before_and_during_it_only() {
        let (sender, inbox) = workload_inbox();
        sender.send(observed(1, Phase::Running)).unwrap();
        let call = inbox.begin_call().unwrap();
        assert!(!readable(&call));
        sender.send(WorkloadCommand::Delete).unwrap();
        assert!(readable(&call));
        drop(call);
        assert!(readable(&inbox.begin_call().unwrap()), "the delete still waits");
        assert_eq!(taken(&inbox).last().unwrap(), "Delete");
        assert!(!readable(&inbox.begin_call().unwrap()), "the delete was taken");
    }

    #[test]
    fn a_loop_ends_only_when_no_command_was_missed() {
        let (sender, inbox) = workload_inbox();
        sender.send(WorkloadCommand::Delete).unwrap();
        assert!(!inbox.close_if_empty());
        let _ = inbox.pop();
        sender.send(observed(1, Phase::Running)).unwrap();
        assert!(inbox.close_if_empty());
        assert_eq!(sender.send(WorkloadCommand::Delete), Err(LoopEnded));
        assert!(!inbox.owner_gone());
        drop(sender);
        assert!(inbox.owner_gone());
    }
}
