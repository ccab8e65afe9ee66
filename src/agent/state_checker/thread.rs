//! The thread of all state checkers of an agent: it waits for commands, listings and the ends of
//! processes.
//!
//! Thread: `watch`, which never waits for an engine; `list:<runtime>` makes one listing and ends.
//! Owns: one [`StateChecker`] per runtime, and the watched processes of all. Takes: [`WatchCommand`]
//! through a [`WatchSender`]. Gives: what the checkers give.

use super::{CheckerSettings, ListResult, StateChecker, SystemEnv, WatchCommand, earliest};
use crate::limits::WATCH_INBOX;
use crate::workload::Connector;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::memory::OwnStack;
use ankaios_platform::sync::{EventFd, Mutex};
use ankaios_platform::threads::{self, Thread};
use ankaios_platform::watchdog::{Heartbeat, WatchedThreads};
use ankaios_runtime::engine_version::EngineVersions;
use ankaios_runtime::exit_watch::{ExitWatch, NotWatched, WatchedProcess};
use ankaios_runtime::{MainProcess, RuntimeError};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Sends commands to the state checker of one runtime.
#[derive(Debug, Clone)]
pub struct WatchSender {
    commands: Sender<WatchCommand>,
    waker: EventFd,
}

impl WatchSender {
    /// A sender and its receiver, with room for this number of commands. `waker` wakes the thread
    /// that has the receiver.
    pub fn new(size: usize, waker: EventFd) -> (Self, Receiver<WatchCommand>) {
        let (commands, inbox) = bounded(size);
        (Self { commands, waker }, inbox)
    }

    /// Sends a command; waits while the inbox is full. The state checker ends only with the agent:
    /// the command is dropped then.
    pub(crate) fn send(&self, command: WatchCommand) {
        let _ = self.commands.send(command); // It has ended.
        self.waker.set();
    }

    /// Sends a command, unless the inbox is still full at this time.
    pub(crate) fn send_deadline(&self, command: WatchCommand, until: Instant) {
        let _ = self.commands.send_deadline(command, until); // It is full, or has ended.
        self.waker.set();
    }

    /// Sends a command; never waits.
    pub(crate) fn try_send(&self, command: WatchCommand) -> Result<(), NotSent> {
        match self.commands.try_send(command) {
            Ok(()) => {
                self.waker.set();
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(NotSent::Full),
            Err(TrySendError::Disconnected(_)) => Err(NotSent::Ended),
        }
    }
}

/// Why a command was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// The inbox is full.
    Full,
    /// The state checker has ended.
    Ended,
}

/// The state checkers of all runtimes, before and while their thread runs.
pub(crate) struct WatchThread {
    runtimes: Vec<WatchedRuntime>,
    /// The processes of all runtimes.
    exits: Arc<ExitWatch>,
}

/// One runtime with the inboxes of its checker.
struct WatchedRuntime {
    checker: StateChecker<System, SystemClock>,
    commands: Receiver<WatchCommand>,
    listings: Receiver<ListResult>,
}

impl WatchThread {
    /// No runtime yet. The thread will end when the other end of the pipe `stop` is closed.
    pub(crate) fn new(stop: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            runtimes: Vec::new(),
            exits: Arc::new(ExitWatch::new(stop)?),
        })
    }

    /// Adds a runtime. Returns the sender of commands for it.
    pub(crate) fn add(
        &mut self,
        settings: CheckerSettings,
        connector: Connector,
        versions: EngineVersions,
    ) -> WatchSender {
        let (sender, commands) = WatchSender::new(WATCH_INBOX, self.exits.waker());
        let (listed, listings) = bounded(1);
        let system = System {
            place: self.runtimes.len() as u64,
            runtime: settings.runtime,
            exits: self.exits.clone(),
            connector: Arc::new(Mutex::new(connector)),
            listed,
            versions,
        };
        self.runtimes.push(WatchedRuntime {
            checker: StateChecker::new(system, SystemClock, settings),
            commands,
            listings,
        });
        sender
    }

    /// Starts the thread.
    // [impl->swdd~podman-start-checker-starts-podman-state-checker~1]
    pub(crate) fn start(self, watched: &mut WatchedThreads) -> io::Result<Thread> {
        let waker = self.exits.waker();
        let heartbeat = watched.add_woken_by("watch", move || waker.set());
        threads::spawn("watch", STACK_LARGE, move || self.run(&heartbeat))
    }

    /// Passes events to the checkers, until the agent ends.
    fn run(mut self, heartbeat: &Heartbeat) {
        let stack = OwnStack::of_this_thread();
        loop {
            heartbeat.turn();
            if let Some(stack) = &stack {
                stack.give_back_unused();
            }
            let timeout = self.due().map(|at| SystemClock.until(at));
            match self.exits.wait(timeout) {
                Ok(Some(ended)) => self.on_events(&ended),
                Ok(None) => return,
                Err(error) => {
                    return log::error!("Containers cannot be watched any more: '{error}'");
                }
            }
        }
    }

    /// When a checker has something to do without an event.
    fn due(&self) -> Option<Instant> {
        let mut due = None;
        for runtime in &self.runtimes {
            due = earliest(due, runtime.checker.next_listing_at());
        }
        due
    }

    /// Handles all that has come in. One listing serves all events that came together.
    #[inline(never)] // Else `run` keeps the frame of this while it waits.
    fn on_events(&mut self, ended: &[u64]) {
        for runtime in &mut self.runtimes {
            for command in runtime.commands.try_iter() {
                runtime.checker.on_command(command);
            }
        }
        for key in ended {
            if let Some(runtime) = self.runtimes.get_mut((key % PLACES) as usize) {
                runtime.checker.on_exit(key / PLACES);
            }
        }
        for runtime in &mut self.runtimes {
            for listing in runtime.listings.try_iter() {
                runtime.checker.on_listed(listing);
            }
            runtime.checker.list_if_due();
        }
    }
}

/// More than there are runtimes. The key of a process is that of its checker, times this, plus the
/// place of its runtime.
const PLACES: u64 = 256;

/// The operating system and the engine of a runtime.
struct System {
    /// Its place in [`WatchThread`].
    place: u64,
    runtime: &'static str,
    exits: Arc<ExitWatch>,
    /// Locked during a listing.
    connector: Arc<Mutex<Connector>>,
    /// Has room for the one listing that is under way.
    listed: Sender<ListResult>,
    versions: EngineVersions,
}

impl SystemEnv for System {
    type Process = WatchedProcess;

    /// Starts a thread for the listing, so that an engine that hangs does not block the checkers.
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    fn start_listing(&mut self) {
        let connector = self.connector.clone();
        let listed = self.listed.clone();
        let waker = self.exits.waker();
        let versions = self.versions.clone();
        let runtime = self.runtime;
        let thread = threads::spawn(format!("list:{runtime}"), STACK_LARGE, move || {
            let result = connector.lock().list();
            let is_there = result.is_ok();
            let _ = listed.send(result); // Fails only when the agent ends.
            waker.set();
            if is_there {
                // After the listing, so that no start waits for it.
                versions.read_once(runtime, || connector.lock().version());
            }
        });
        if let Err(error) = thread {
            let text = format!("no thread for a listing: {error}");
            let failed = RuntimeError::Failed(text.into());
            let _ = self.listed.try_send(Err(failed));
            self.exits.waker().set();
        }
    }

    fn watch_exit(
        &mut self,
        key: u64,
        process: &MainProcess,
    ) -> Result<WatchedProcess, NotWatched> {
        self.exits.watch(key * PLACES + self.place, process)
    }
}

#[cfg(test)]
mod tests;
