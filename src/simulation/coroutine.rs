//! Control loops and their engine calls that share one thread: each pauses in the middle of an
//! engine call and continues when the call has ended.
//!
//! Thread: the one of the test. A control loop blocks in engine calls, so each has a stack of its
//! own, and the simulation decides which one continues. Dropping a [`Task`] unwinds its stack, as
//! if the process was killed.

use ankaios_agent::engine_call::ContainerCall;
use ankaios_agent::workload::{LoopStep, WorkloadControlLoop};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_platform::sync::EventFd;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use crossbeam_channel::{Receiver, never};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;
use std::time::Instant;

/// Stack of one control loop, in bytes; a failing test prints from here.
const STACK: usize = 512 * 1024;

/// Why a control loop stopped.
#[derive(Debug)]
pub(crate) enum Pause {
    /// It handled an event and may find another one.
    Worked,
    /// It waits until it is woken, or for `due`.
    Idle { due: Option<Instant> },
    /// It is in an engine call, which continues at this time.
    Calling { until: Instant },
}

thread_local! {
    static RUNNING: Cell<Option<NonNull<Yielder<(), Pause>>>> = const { Cell::new(None) };
}

/// Stops the running control loop until it is resumed.
pub(crate) fn pause(why: Pause) {
    let yielder = RUNNING
        .get()
        .expect("only control loops of a simulation are paused");
    // SAFETY: a task sets the pointer whenever it starts or continues, and no other task runs
    // before it pauses again. So the pointer is that of the yielder of this task, which lives as
    // long as the stack of the task.
    #[allow(unsafe_code)]
    unsafe { yielder.as_ref() }.suspend(why);
    RUNNING.set(Some(yielder));
}

/// One control loop or job.
pub(crate) struct Task {
    /// Name of the workload.
    pub workload: String,
    coroutine: Coroutine<(), Pause, ()>,
    pause: Pause,
    woken: Receiver<()>,
    is_loop: bool,
    /// A call continues when this becomes readable.
    cancel: Option<EventFd>,
}

impl Task {
    /// A control loop that has not begun.
    pub(crate) fn new(
        workload: &str,
        mut control_loop: Box<WorkloadControlLoop<ManualClock>>,
    ) -> Self {
        let woken = control_loop.woken();
        let stack = DefaultStack::new(STACK).expect("there is memory for a stack");
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            RUNNING.set(Some(NonNull::from(yielder)));
            loop {
                let wait = match control_loop.step() {
                    LoopStep::Worked => Pause::Worked,
                    LoopStep::Idle => Pause::Idle {
                        due: control_loop.due(),
                    },
                    LoopStep::Ended => return,
                };
                pause(wait);
            }
        });
        Self {
            workload: workload.to_owned(),
            coroutine,
            pause: Pause::Worked,
            woken,
            is_loop: true,
            cancel: None,
        }
    }

    /// An engine call that has not begun.
    pub(crate) fn call(call: Box<ContainerCall>) -> Self {
        let workload = call.new.instance.workload.to_string();
        let cancel = call.cancel.clone();
        let stack = DefaultStack::new(STACK).expect("there is memory for a stack");
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            RUNNING.set(Some(NonNull::from(yielder)));
            call.run();
        });
        Self {
            workload,
            coroutine,
            pause: Pause::Worked,
            woken: never(),
            is_loop: false,
            cancel,
        }
    }

    /// Whether it is a control loop.
    pub(crate) fn is_loop(&self) -> bool {
        self.is_loop
    }

    /// Notes whether its call was cancelled. Returns whether it can continue now.
    pub(crate) fn poll_ready(&mut self, now: Instant) -> bool {
        if let Some(cancel) = &self.cancel
            && is_readable(cancel)
        {
            self.cancel = None; // A call is cancelled once.
            self.pause = Pause::Worked;
        }
        let is_woken = !self.woken.is_empty();
        match &self.pause {
            Pause::Worked => true,
            Pause::Idle { due } => is_woken || due.is_some_and(|at| at <= now),
            Pause::Calling { until } => *until <= now,
        }
    }

    /// The time at which it can continue without being woken.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.pause {
            Pause::Worked => None,
            Pause::Idle { due, .. } => due,
            Pause::Calling { until } => Some(until),
        }
    }

    /// Continues until the next pause. Returns whether the control loop has ended.
    pub(crate) fn resume(&mut self) -> bool {
        let _ = self.woken.try_recv();
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(pause) => {
                self.pause = pause;
                false
            }
            CoroutineResult::Return(()) => true,
        }
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
    ) == Ok(1)
}
