//! Requests of a workload that last longer than their first response: events, and log lines. Events and lines of other
//! requests belong to an earlier container of the workload, perhaps with other rules, and are not for this one.
//!
//! Thread: none, a plain value; part of [`super::outbox`].

use crate::limits::{CONTROL_LASTING, CONTROL_LASTING_BYTES};
use crate::model::messages::{RequestContent, Response, ResponseContent};
use std::collections::{BTreeMap, BTreeSet};

/// The kinds of such requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lasting {
    /// Lines of logs.
    Logs,
    /// Events.
    Events,
}

impl Lasting {
    /// Which kind of request this is, if it is one.
    #[must_use]
    pub fn of(content: &RequestContent) -> Option<Self> {
        match content {
            RequestContent::Logs(_) => Some(Self::Logs),
            RequestContent::CompleteState(read) if read.subscribe => Some(Self::Events),
            _ => None,
        }
    }

    /// What ends it.
    #[must_use]
    pub fn cancel(self) -> RequestContent {
        match self {
            Self::Logs => RequestContent::LogsCancel,
            Self::Events => RequestContent::EventsCancel,
        }
    }
}

/// What a response of the server means for the request that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseKind {
    /// The first answer; of logs, with the number of those that will end.
    Begins(Lasting, usize),
    /// An event, or lines.
    Part(Lasting),
    /// The end of one log.
    Stops,
    /// It is cancelled.
    Cancelled(Lasting),
    /// It was refused, or another one with this id.
    Refused,
    /// Nothing of that.
    Other,
}

impl ResponseKind {
    /// What `response` means.
    #[must_use]
    pub fn of(response: &Response) -> Self {
        match &response.content {
            ResponseContent::CompleteState { altered: None, .. } => Self::Begins(Lasting::Events, 0),
            ResponseContent::CompleteState { altered: Some(_), .. } => Self::Part(Lasting::Events),
            // A workload that is named twice sends its lines and their end once.
            ResponseContent::LogsAccepted(instances) => {
                Self::Begins(Lasting::Logs, instances.iter().collect::<BTreeSet<_>>().len())
            }
            ResponseContent::LogEntries(_) => Self::Part(Lasting::Logs),
            ResponseContent::LogsStop(_) => Self::Stops,
            ResponseContent::LogsCancelAccepted => Self::Cancelled(Lasting::Logs),
            ResponseContent::EventsCancelAccepted => Self::Cancelled(Lasting::Events),
            ResponseContent::Error(_) => Self::Refused,
            ResponseContent::UpdateStateSuccess { .. } => Self::Other,
        }
    }
}

/// A workload has as many of these as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

/// One request, or several with the same id.
#[derive(Debug, Default)]
struct Asked {
    /// How often it was requested without a response.
    unanswered: usize,
    /// It was answered, so what comes belongs to it.
    begun: bool,
    /// Logs that have not ended.
    logs: usize,
}

/// The requests of the present container, until they end.
#[derive(Debug, Default)]
pub struct LastingRequests {
    asked: BTreeMap<(Lasting, String), Asked>,
    /// Of the ids.
    bytes: usize,
}

impl LastingRequests {
    /// A request is on its way to the server.
    ///
    /// # Errors
    /// [`TooMany`] when [`CONTROL_LASTING`] or [`CONTROL_LASTING_BYTES`] are reached.
    pub fn ask(&mut self, lasting: Lasting, id: &str) -> Result<(), TooMany> {
        let key = (lasting, id.to_owned());
        if !self.asked.contains_key(&key) {
            if self.asked.len() >= CONTROL_LASTING || self.bytes + id.len() > CONTROL_LASTING_BYTES {
                return Err(TooMany);
            }
            self.bytes += id.len();
        }
        self.asked.entry(key).or_default().unanswered += 1;
        Ok(())
    }

    /// A request will not get its first response: it was not sent, or refused.
    pub fn take_back(&mut self, lasting: Lasting, id: &str) {
        let Some(asked) = self.get_mut(lasting, id) else { return };
        asked.unanswered = asked.unanswered.saturating_sub(1);
        if asked.unanswered == 0 && !asked.begun {
            self.remove(lasting, id);
        }
    }

    /// The first answer has come.
    pub fn begin(&mut self, lasting: Lasting, id: &str, logs: usize) {
        let Some(asked) = self.get_mut(lasting, id) else { return };
        asked.unanswered = asked.unanswered.saturating_sub(1);
        (asked.begun, asked.logs) = (true, logs);
        if lasting == Lasting::Logs && logs == 0 {
            self.end(lasting, id);
        }
    }

    /// One of its logs has ended. Returns whether it was requested.
    pub fn stop_log(&mut self, id: &str) -> bool {
        let Some(asked) = self.get_mut(Lasting::Logs, id).filter(|asked| asked.begun) else { return false };
        asked.logs = asked.logs.saturating_sub(1);
        if asked.logs == 0 {
            self.end(Lasting::Logs, id);
        }
        true
    }

    /// It is over; a later request with the same id is not.
    pub fn end(&mut self, lasting: Lasting, id: &str) {
        match self.get_mut(lasting, id) {
            Some(asked) if asked.unanswered > 0 => asked.begun = false,
            Some(_) => self.remove(lasting, id),
            None => {}
        }
    }

    /// The connection is lost: the server has ended all that had begun. Requests without a response are sent again, or
    /// get an error.
    pub fn end_begun(&mut self) {
        self.asked.retain(|_, asked| asked.unanswered > 0);
        self.asked.values_mut().for_each(|asked| asked.begun = false);
        self.bytes = self.asked.keys().map(|(_, id)| id.len()).sum();
    }

    /// Whether it was requested and has begun.
    #[must_use]
    pub fn has_begun(&self, lasting: Lasting, id: &str) -> bool {
        self.asked.get(&(lasting, id.to_owned())).is_some_and(|asked| asked.begun)
    }

    /// Whether an answer to it is on its way.
    #[must_use]
    pub fn is_unanswered(&self, lasting: Lasting, id: &str) -> bool {
        self.asked.get(&(lasting, id.to_owned())).is_some_and(|asked| asked.unanswered > 0)
    }

    fn get_mut(&mut self, lasting: Lasting, id: &str) -> Option<&mut Asked> {
        if self.asked.is_empty() {
            return None; // Most workloads only read the state.
        }
        self.asked.get_mut(&(lasting, id.to_owned()))
    }

    fn remove(&mut self, lasting: Lasting, id: &str) {
        if self.asked.remove(&(lasting, id.to_owned())).is_some() {
            self.bytes -= id.len();
        }
    }
}
