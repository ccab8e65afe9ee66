//! The threads that a program cannot do without. Each counts the turns of its loop. A watcher can
//! wake an idle one, to see that it still turns.
//!
//! Without a watcher no thread is woken. A wait for something outside, such as a server that does
//! not respond, is marked beforehand and is no lack of progress. A stuck loop marks nothing.
//!
//! Thread: [`Heartbeat`] belongs to the watched thread, [`WatchedThreads`] to `main` at the start
//! and then to `notify`.
//! Owns: the number of turns at the last check. Gives: the name of a watched thread that ends.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// All watched threads of a program.
pub struct WatchedThreads {
    threads: Vec<Watched>,
    on_end: OnThreadEnd,
}

/// Called with the name of a watched thread that ends.
type OnThreadEnd = Arc<dyn Fn(&str) + Send + Sync>;

/// A thread for its watcher.
struct Watched {
    mark: Arc<Mark>,
    waker: Box<dyn Fn() + Send>,
    /// Turns at the beginning of the round.
    counted: u64,
}

/// The progress of a thread, which it shares with its watcher.
#[derive(Debug)]
struct Mark {
    name: String,
    turns: AtomicU64,
    /// It waits for something outside.
    outside: AtomicBool,
}

/// Reports the progress of a thread, and its end when dropped.
pub struct Heartbeat {
    mark: Arc<Mark>,
    woken: Receiver<()>,
    /// Keeps the channel open without a watcher.
    _wakers: Sender<()>,
    on_end: OnThreadEnd,
}

impl WatchedThreads {
    /// No threads yet. Each that ends calls `on_end` with its name.
    pub fn new(on_end: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            threads: Vec::new(),
            on_end: Arc::new(on_end),
        }
    }

    /// Adds the thread `name`, which selects on [`Heartbeat::woken`].
    pub fn add(&mut self, name: impl Into<String>) -> Heartbeat {
        let (wakers, woken) = bounded(1);
        let waker = wakers.clone();
        let waker = Box::new(move || {
            let _ = waker.try_send(()); // Full: it was woken before.
        });
        self.insert(name.into(), waker, wakers, woken)
    }

    /// Adds the thread `name`, which `waker` wakes from its wait.
    pub fn add_woken_by(
        &mut self,
        name: impl Into<String>,
        waker: impl Fn() + Send + 'static,
    ) -> Heartbeat {
        let (wakers, woken) = bounded(1);
        self.insert(name.into(), Box::new(waker), wakers, woken)
    }

    /// Adds a thread with both ends of its channel. `waker` wakes it.
    fn insert(
        &mut self,
        name: String,
        waker: Box<dyn Fn() + Send>,
        wakers: Sender<()>,
        woken: Receiver<()>,
    ) -> Heartbeat {
        let mark = Arc::new(Mark {
            name,
            turns: AtomicU64::new(0),
            outside: AtomicBool::new(false),
        });
        self.threads.push(Watched {
            mark: mark.clone(),
            waker,
            counted: 0,
        });
        Heartbeat {
            mark,
            woken,
            _wakers: wakers,
            on_end: self.on_end.clone(),
        }
    }

    /// Begins a round, in which each thread must make progress once.
    pub(crate) fn begin_round(&mut self) {
        for thread in &mut self.threads {
            thread.counted = thread.mark.turns.load(Ordering::Acquire);
        }
    }

    /// Wakes the threads that made no progress in this round. Returns their names.
    pub(crate) fn wake_silent(&self) -> Vec<&str> {
        let mut silent = Vec::new();
        for thread in &self.threads {
            if thread.is_silent() {
                (thread.waker)();
                silent.push(thread.mark.name.as_str());
            }
        }
        silent
    }
}

impl Watched {
    /// Returns whether the thread made no progress in this round.
    fn is_silent(&self) -> bool {
        self.mark.turns.load(Ordering::Acquire) == self.counted
            && !self.mark.outside.load(Ordering::Acquire)
    }
}

impl Heartbeat {
    /// Counts a turn of the thread's loop. Each turn calls it before its wait.
    pub fn turn(&self) {
        self.mark.turns.fetch_add(1, Ordering::Release);
        #[cfg(debug_assertions)]
        freeze_if_asked(&self.mark.name);
    }

    /// Receives when the watcher wants a turn. The loop waits for it beside its work.
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Calls `wait`, which waits for something outside of this program, without a limit.
    pub fn outside<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.mark.outside.store(true, Ordering::Release);
        let result = wait();
        self.mark.outside.store(false, Ordering::Release);
        self.turn();
        result
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        (self.on_end)(&self.mark.name);
    }
}

/// Freezes the thread `name` if the folder in `ANKAIOS_TEST_FREEZE` has a file with its name. The
/// file is removed, so that the next process is not frozen. Only in builds for tests.
#[cfg(debug_assertions)]
fn freeze_if_asked(name: &str) {
    static FOLDER: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let Some(folder) = FOLDER.get_or_init(|| std::env::var_os("ANKAIOS_TEST_FREEZE")) else {
        return;
    };
    if std::fs::remove_file(std::path::Path::new(folder).join(name)).is_ok() {
        log::warn!("Thread '{name}' is frozen for a test.");
        loop {
            std::thread::park();
        }
    }
}

impl fmt::Debug for WatchedThreads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries(self.threads.iter().map(|thread| &thread.mark))
            .finish()
    }
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mark.fmt(formatter)
    }
}

#[cfg(test)]
impl WatchedThreads {
    /// Threads whose end has no consequence.
    pub(crate) fn unattended() -> Self {
        Self::new(|_| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Mutex;

    #[test]
    fn each_round_wants_a_turn_of_every_thread() {
        let mut threads = WatchedThreads::unattended();
        let (one, two) = (threads.add("one"), threads.add("two"));
        assert_eq!(
            threads.wake_silent(),
            ["one", "two"],
            "nobody has turned yet"
        );
        one.turn();
        assert_eq!(threads.wake_silent(), ["two"]);
        two.turn();
        assert!(threads.wake_silent().is_empty());
        threads.begin_round();
        assert_eq!(
            threads.wake_silent(),
            ["one", "two"],
            "the turns of before do not count"
        );
    }

    #[test]
    fn only_a_silent_thread_is_nudged_and_only_once() {
        let mut threads = WatchedThreads::unattended();
        let (silent, busy) = (threads.add("silent"), threads.add("busy"));
        busy.turn();
        for _ in 0..3 {
            assert_eq!(threads.wake_silent(), ["silent"]);
        }
        assert_eq!(silent.woken().try_iter().count(), 1);
        assert_eq!(busy.woken().try_iter().count(), 0);
    }

    #[test]
    fn a_wait_outside_is_progress_while_it_lasts_and_once_after_it() {
        let mut threads = WatchedThreads::unattended();
        let heartbeat = threads.add("uplink");
        heartbeat.outside(|| {
            threads.begin_round();
            assert!(threads.wake_silent().is_empty());
            threads.begin_round();
            assert!(threads.wake_silent().is_empty(), "also when it takes long");
        });
        assert!(threads.wake_silent().is_empty(), "it has just come back");
        threads.begin_round();
        assert_eq!(threads.wake_silent(), ["uplink"]);
    }

    #[test]
    fn where_nobody_watches_a_pulse_stays_quiet() {
        let mut threads = WatchedThreads::unattended();
        let heartbeat = threads.add("alone");
        drop(threads);
        // A closed channel is always ready, and its thread would spin.
        assert_eq!(
            heartbeat.woken().try_recv(),
            Err(crossbeam_channel::TryRecvError::Empty)
        );
    }

    #[test]
    fn the_end_of_a_thread_is_told_by_its_name() {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let told = ended.clone();
        let mut threads =
            WatchedThreads::new(move |name| told.lock().unwrap().push(name.to_owned()));
        let (stays, ends) = (threads.add("stays"), threads.add("ends"));
        drop(ends);
        assert_eq!(*ended.lock().unwrap(), ["ends"]);
        drop(stays);
    }
}
