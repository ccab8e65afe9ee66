//! Looks at paths of the node, which may take as long as a file system wants: a network mount that does not answer keeps
//! a thread here, and nobody else.
//!
//! One thread does all the work; another one is started for each that is kept, up to a bound.
//!
//! Thread: `scheduler` and `probes` own one each; `paths` does what its owner asks and ends with it.
//! Owns: which paths are being looked at. Takes: questions of its owner. Gives: answers, and wakes the owner.

use crate::limits::{PATH_LOOKS_MAX, PATH_THREADS, PATH_WAIT, STACK_SMALL};
use crate::platform::threads;
use crossbeam_channel::{Receiver, Sender, after, bounded, select_biased};
use rustix::fs::stat;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is asked of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathQuestion {
    /// Whether something is there.
    Exists(String),
    /// Whether a connection to the socket there can be made.
    Connects(String),
}

/// Whether it does, or why not.
pub type PathAnswer = Result<(), Errno>;

/// A question with its answer.
pub type Answered = (PathQuestion, PathAnswer);

/// How to look.
pub type Look = Arc<dyn Fn(&PathQuestion) -> PathAnswer + Send + Sync>;

/// Paths that are being looked at, by one owner.
pub struct PathLooks {
    look: Look,
    wake: Arc<dyn Fn() + Send + Sync>,
    questions: (Sender<PathQuestion>, Receiver<PathQuestion>),
    answers: (Sender<Answered>, Receiver<Answered>),
    /// Asked and not answered yet; whether the owner has lost its patience.
    open: BTreeMap<PathQuestion, bool>,
    threads: usize,
}

impl PathLooks {
    /// Starts no thread yet. `wake` is called when an answer waits in [`Self::take_answers`].
    #[must_use]
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>, look: Look) -> Self {
        // There is room for all that may be open, so nobody ever waits for room.
        let (questions, answers) = (bounded(PATH_LOOKS_MAX), bounded(PATH_LOOKS_MAX));
        Self { look, wake, questions, answers, open: BTreeMap::new(), threads: 0 }
    }

    /// Asks, unless the answer is awaited already.
    ///
    /// # Errors
    /// Why nobody can look.
    pub fn ask(&mut self, question: &PathQuestion) -> Result<(), String> {
        if self.open.contains_key(question) {
            return Ok(());
        }
        let kept = self.kept();
        if self.open.len() >= PATH_LOOKS_MAX {
            return Err(format!("{kept} other paths do not answer"));
        }
        if self.threads <= kept && self.threads < PATH_THREADS {
            match self.start_thread() {
                Ok(()) => self.threads += 1,
                Err(error) if self.threads == 0 => return Err(format!("no thread to look with: {error}")),
                Err(_) => {} // Those that there are may go on some time.
            }
        }
        let _ = self.questions.0.try_send(question.clone()); // There is room.
        self.open.insert(question.clone(), false);
        Ok(())
    }

    /// The owner does not wait for this any more; it may be answered all the same.
    pub fn lose_patience(&mut self, question: &PathQuestion) {
        if let Some(lost) = self.open.get_mut(question) {
            *lost = true;
        }
    }

    /// What has been answered.
    pub fn take_answers(&mut self) -> Vec<Answered> {
        let answers: Vec<_> = self.answers.1.try_iter().collect();
        answers.iter().for_each(|(question, _)| _ = self.open.remove(question));
        answers
    }

    /// Which of these paths exist, as far as that can be told within [`PATH_WAIT`]. What did not answer then is not
    /// waited for the next time.
    pub fn exist(&mut self, paths: &BTreeSet<&str>) -> BTreeMap<String, bool> {
        let mut known = BTreeMap::new();
        let mut note = |(question, answer): Answered| {
            if let PathQuestion::Exists(path) = question {
                known.insert(path, answer.is_ok());
            }
        };
        self.take_answers().into_iter().for_each(&mut note); // Late ones.
        for path in paths {
            let _ = self.ask(&PathQuestion::Exists((*path).to_owned())); // Then it is not known.
        }
        let enough = after(PATH_WAIT);
        // With all threads kept, nobody would answer what is asked now.
        while self.open.values().any(|lost| !lost) && self.kept() < PATH_THREADS {
            select_biased! {
                recv(self.answers.1) -> answer => {
                    let Ok(answer) = answer else { break };
                    self.open.remove(&answer.0);
                    note(answer);
                }
                recv(enough) -> _ => break,
            }
        }
        self.open.values_mut().for_each(|lost| *lost = true);
        known
    }

    /// How many threads are kept by paths that do not answer, at most.
    fn kept(&self) -> usize {
        self.open.values().filter(|lost| **lost).count().min(PATH_THREADS)
    }

    fn start_thread(&self) -> std::io::Result<()> {
        let (questions, answers) = (self.questions.1.clone(), self.answers.0.clone());
        let (look, wake) = (self.look.clone(), self.wake.clone());
        let body = move || {
            for question in questions {
                let answer = look(&question);
                let _ = answers.try_send((question, answer)); // There is room.
                wake();
            }
        };
        threads::spawn("paths", STACK_SMALL, body).map(drop)
    }
}

/// Looks at the node that we run on.
#[must_use]
pub fn node() -> Look {
    Arc::new(|question| match question {
        PathQuestion::Exists(path) => stat(path.as_str()).map(drop),
        PathQuestion::Connects(path) => SocketAddrUnix::new(path.as_str()).and_then(|address| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
        }),
    })
}

#[cfg(test)]
mod tests;
