//! Requests that wait while mutating hooks work on an update. Updates are carried out in the order in which they came;
//! answers to one requester keep their order; everybody else is served meanwhile.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::mutating_hooks::HookOutcome;
use super::requester::Requester;
use super::requests::PreparedUpdate;
use super::{RequestKey, ServerLoop};
use crate::limits::{HOOK_WAITING, HOOK_WAITING_BYTES};
use crate::model::messages::RequestContent;
use crate::wire::server_endpoint::PeerId;
use std::collections::VecDeque;

#[derive(Debug)]
struct Waiting {
    requester: Requester,
    key: RequestKey,
    content: RequestContent,
    bytes: usize,
}

/// A request cannot wait: too many do.
#[derive(Debug)]
pub struct NoRoom {
    /// Whose it is.
    pub key: RequestKey,
    /// What it asks.
    pub content: RequestContent,
}

/// The update that the hooks have, and what waits for it.
#[derive(Debug, Default)]
pub struct WaitingRequests {
    with_hooks: Option<(RequestKey, PreparedUpdate)>,
    requester: Option<Requester>,
    queue: VecDeque<Waiting>,
    bytes: usize,
}

impl WaitingRequests {
    /// Whether a request has to wait for its turn.
    #[must_use]
    pub fn must_wait(&self, requester: &Requester, content: &RequestContent) -> bool {
        self.with_hooks.is_some()
            && (matches!(content, RequestContent::UpdateState(_))
                || self.requester.as_ref() == Some(requester)
                || self.queue.iter().any(|waiting| waiting.requester == *requester))
    }

    /// Lets a request wait.
    ///
    /// # Errors
    /// [`NoRoom`] when [`HOOK_WAITING`] or [`HOOK_WAITING_BYTES`] are reached; a single request may be larger.
    pub fn add(&mut self, requester: Requester, key: RequestKey, content: RequestContent) -> Result<(), NoRoom> {
        let bytes = key.id.len() + content.approximate_bytes();
        if self.queue.len() >= HOOK_WAITING || (self.bytes > 0 && self.bytes + bytes > HOOK_WAITING_BYTES) {
            return Err(NoRoom { key, content });
        }
        self.bytes += bytes;
        self.queue.push_back(Waiting { requester, key, content, bytes });
        Ok(())
    }

    /// The hooks have got the update of `key`.
    pub fn begin(&mut self, requester: Requester, key: RequestKey, update: PreparedUpdate) {
        self.requester = Some(requester);
        self.with_hooks = Some((key, update));
    }

    /// The hooks are done with their update.
    fn end(&mut self) -> Option<(RequestKey, PreparedUpdate)> {
        self.requester = None;
        self.with_hooks.take()
    }

    /// The next request whose turn it is; `None` while hooks work or when none waits.
    fn next(&mut self) -> Option<(Requester, RequestKey, RequestContent)> {
        if self.with_hooks.is_some() {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.bytes -= next.bytes;
        Some((next.requester, next.key, next.content))
    }

    /// What waits under `key` to last longer than its answer is cancelled before it has begun.
    pub fn withdraw(&mut self, key: &RequestKey) {
        self.queue.retain(|waiting| {
            let lasting = match &waiting.content {
                RequestContent::Logs(_) => true,
                RequestContent::CompleteState(read) => read.subscribe,
                _ => false,
            };
            waiting.key != *key || !lasting
        });
        self.bytes = self.queue.iter().map(|waiting| waiting.bytes).sum();
    }

    /// A stream has ended. What it asked to be changed is changed all the same, as if the answer was lost; nobody
    /// waits for its other answers.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.queue
            .retain(|waiting| waiting.key.peer != peer || matches!(waiting.content, RequestContent::UpdateState(_)));
        self.bytes = self.queue.iter().map(|waiting| waiting.bytes).sum();
    }
}

impl ServerLoop {
    /// The hooks have answered: carries the update out or refuses it, then serves what waited for that.
    pub(super) fn hooks_done(&mut self, outcome: HookOutcome) {
        let Some((key, prepared)) = self.waiting.end() else {
            log::error!("Ignoring an outcome of mutating hooks that nobody waits for.");
            return;
        };
        let result = self.hooked(prepared, outcome).map(|prepared| self.commit(prepared));
        self.update_done(key, result);
        while let Some((requester, key, content)) = self.waiting.next() {
            self.serve_late(requester, key, content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::UpdateState;

    #[test]
    fn an_update_larger_than_all_that_may_wait_waits_alone() {
        let requester = Requester { peer: PeerId(1), agent: None, workload: None };
        let mut waiting = WaitingRequests::default();
        let mut add = |bytes: usize| {
            let key = RequestKey { peer: PeerId(1), id: "x".to_owned() };
            let update = UpdateState { new_state: Some(Err("x".repeat(bytes))), masks: vec![] };
            waiting.add(requester.clone(), key, RequestContent::UpdateState(update)).is_ok()
        };
        assert!(add(HOOK_WAITING_BYTES));
        assert!(!add(0));
    }
}
