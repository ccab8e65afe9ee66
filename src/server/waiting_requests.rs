//! Requests that wait: while mutating hooks work on an update, other updates do; while an answer for a peer is on its way,
//! further requests of that peer do, so that no answer is built before it can be sent. Updates that wait for hooks are
//! carried out in the order in which they came, answers to one requester keep their order, everybody else is served.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::mutating_hooks::HookOutcome;
use super::requester::Requester;
use super::requests::PreparedUpdate;
use super::{RequestKey, ServerLoop};
use crate::limits::{
    REQUESTS_WAITING, REQUESTS_WAITING_BYTES, REQUESTS_WAITING_OF_WORKLOAD, REQUESTS_WAITING_OF_WORKLOAD_BYTES,
};
use crate::model::messages::RequestContent;
use crate::wire::server_endpoint::PeerId;
use std::collections::{BTreeSet, VecDeque};

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

/// The update that the hooks have, and what waits.
#[derive(Debug, Default)]
pub struct WaitingRequests {
    with_hooks: Option<(Requester, RequestKey, PreparedUpdate)>,
    queue: VecDeque<Waiting>,
}

/// Whether the answer to a request may be large.
fn has_large_answer(content: &RequestContent) -> bool {
    !content.is_cancel() && *content != RequestContent::Missing
}

impl WaitingRequests {
    /// Whether a request has to wait for its turn; `has_room` says whether its answer would be sent soon.
    #[must_use]
    pub fn must_wait(&self, requester: &Requester, content: &RequestContent, has_room: impl FnOnce() -> bool) -> bool {
        self.waits_for_hooks(requester, content)
            || self.queue.iter().any(|waiting| waiting.requester == *requester)
            || has_large_answer(content) && !has_room()
    }

    fn waits_for_hooks(&self, requester: &Requester, content: &RequestContent) -> bool {
        self.with_hooks
            .as_ref()
            .is_some_and(|(asked, ..)| matches!(content, RequestContent::UpdateState(_)) || asked == requester)
    }

    /// Whether hooks work on an update.
    #[must_use]
    pub fn hooks_work(&self) -> bool {
        self.with_hooks.is_some()
    }

    /// Lets a request wait.
    ///
    /// # Errors
    /// [`NoRoom`] when all that waits, or all of this workload, is as much as may wait; a single request may be larger.
    pub fn add(&mut self, requester: Requester, key: RequestKey, content: RequestContent) -> Result<(), NoRoom> {
        let bytes = key.id.len() + content.memory_bytes();
        let has_room = |of: &dyn Fn(&Waiting) -> bool, count_max: usize, bytes_max: usize| {
            let counted = self.queue.iter().filter(|waiting| of(waiting));
            let (count, taken) = counted.fold((0, 0), |(count, taken), one| (count + 1, taken + one.bytes));
            count < count_max && (taken == 0 || taken + bytes <= bytes_max)
        };
        let has_share = requester.workload.is_none()
            || has_room(
                &|waiting| waiting.requester == requester,
                REQUESTS_WAITING_OF_WORKLOAD,
                REQUESTS_WAITING_OF_WORKLOAD_BYTES,
            );
        if !has_share || !has_room(&|_| true, REQUESTS_WAITING, REQUESTS_WAITING_BYTES) {
            return Err(NoRoom { key, content });
        }
        self.queue.push_back(Waiting { requester, key, content, bytes });
        Ok(())
    }

    /// The hooks have got the update of `key`.
    pub fn begin(&mut self, requester: Requester, key: RequestKey, update: PreparedUpdate) {
        self.with_hooks = Some((requester, key, update));
    }

    /// Takes the next request whose turn it is: the oldest that has to wait neither for hooks, nor for an older one of the
    /// same requester, nor for the stream of its peer, of which `has_room` says whether an answer would be sent soon.
    /// What else its requester has asked goes behind all others then, so that who asks little does not wait for who asks
    /// much.
    fn next(&mut self, has_room: impl Fn(PeerId) -> bool) -> Option<(Requester, RequestKey, RequestContent)> {
        let mut older = BTreeSet::new();
        let index = self.queue.iter().position(|Waiting { requester, key, content, .. }| {
            older.insert(requester)
                && !self.waits_for_hooks(requester, content)
                && (!has_large_answer(content) || has_room(key.peer))
        })?;
        let next = self.queue.remove(index)?;
        if !matches!(next.content, RequestContent::UpdateState(_)) {
            let waiting = std::mem::take(&mut self.queue).into_iter();
            let (own, others): (Vec<_>, Vec<_>) = waiting.partition(|waiting| waiting.requester == next.requester);
            self.queue = others.into_iter().chain(own).collect();
        }
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
    }

    /// A stream has ended. What it asked to be changed is changed all the same, as if the answer was lost; nobody
    /// waits for its other answers.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.queue
            .retain(|waiting| waiting.key.peer != peer || matches!(waiting.content, RequestContent::UpdateState(_)));
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl ServerLoop {
    /// Whether an answer for this peer, nothing of whose requester waits, would be sent soon; if not, it is told when that is
    /// so.
    pub(super) fn has_room_for_answer(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_none_or(|peer| peer.outbox.has_room_for_answer(true, &self.room.0))
    }

    /// Serves the next request that has to wait no more, and comes back for others: each may take its time, and what
    /// else happens gets its turn in between. Returns whether there was one.
    pub(super) fn serve_waiting(&mut self) -> bool {
        let Self { waiting, peers, room, .. } = self;
        let has_room = |peer| peers.get(&peer).is_none_or(|peer| peer.outbox.has_room_for_answer(false, &room.0));
        let Some((requester, key, content)) = waiting.next(has_room) else { return false };
        self.serve_late(requester, key, content);
        self.room.0.wake_by_ref();
        true
    }

    /// Serves all that waits as far as it has to wait no more, as the loop does when nothing else happens.
    #[cfg(test)]
    pub fn serve_all_waiting(&mut self) {
        while self.serve_waiting() {}
        self.on_event(super::ServerEvent::Room);
    }

    /// The hooks have answered: carries the update out or refuses it, then serves what waited for that.
    pub(super) fn hooks_done(&mut self, outcome: HookOutcome) {
        let Some((_, key, prepared)) = self.waiting.with_hooks.take() else {
            log::error!("Ignoring an outcome of mutating hooks that nobody waits for.");
            return;
        };
        let result = self.hooked(prepared, outcome).map(|prepared| self.commit(prepared));
        self.update_done(key, result);
        while self.serve_waiting() {} // At once, so that no newer update comes before them.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{ReadState, UpdateState};

    fn requester(peer: u64, workload: Option<&str>) -> Requester {
        let agent = workload.map(|_| "A".into());
        Requester { peer: PeerId(peer), agent, workload: workload.map(Into::into) }
    }

    fn read() -> RequestContent {
        RequestContent::CompleteState(ReadState::default())
    }

    fn update(bytes: usize) -> RequestContent {
        RequestContent::UpdateState(UpdateState { new_state: Some(Err("x".repeat(bytes))), masks: vec![] })
    }

    fn add(waiting: &mut WaitingRequests, requester: &Requester, id: &str, content: RequestContent) -> bool {
        let key = RequestKey { peer: requester.peer, id: id.to_owned() };
        waiting.add(requester.clone(), key, content).is_ok()
    }

    fn ids(waiting: &mut WaitingRequests, has_room: impl Fn(PeerId) -> bool) -> Vec<String> {
        std::iter::from_fn(|| waiting.next(&has_room)).map(|(_, key, _)| key.id).collect()
    }

    #[test]
    fn an_update_larger_than_all_that_may_wait_waits_alone() {
        let mut waiting = WaitingRequests::default();
        assert!(add(&mut waiting, &requester(1, None), "x", update(REQUESTS_WAITING_BYTES)));
        assert!(!add(&mut waiting, &requester(1, None), "x", update(0)));
    }

    #[test]
    fn one_workload_has_a_share_of_what_may_wait() {
        let mut waiting = WaitingRequests::default();
        let (greedy, modest) = (requester(1, Some("greedy")), requester(1, Some("modest")));
        let fits = (0..REQUESTS_WAITING).filter(|_| add(&mut waiting, &greedy, "greedy", read())).count();
        assert_eq!(fits, REQUESTS_WAITING_OF_WORKLOAD);
        assert!(add(&mut waiting, &modest, "modest", update(REQUESTS_WAITING_OF_WORKLOAD_BYTES)));
        assert!(!add(&mut waiting, &modest, "modest", update(0)));
        let fits = (0..REQUESTS_WAITING).filter(|_| add(&mut waiting, &requester(2, None), "ank", read())).count();
        assert_eq!(fits, REQUESTS_WAITING - REQUESTS_WAITING_OF_WORKLOAD - 1);
    }

    #[test]
    fn who_has_room_is_served_in_its_order_while_others_wait() {
        let mut waiting = WaitingRequests::default();
        let (a, b, c) = (requester(1, Some("a")), requester(1, Some("b")), requester(2, None));
        for (requester, id) in [(&a, "a1"), (&c, "c1"), (&a, "a2"), (&b, "b1"), (&c, "c2")] {
            assert!(waiting.is_empty() || !waiting.must_wait(requester, &read(), || true) || id.ends_with('2'));
            assert!(waiting.must_wait(requester, &read(), || false));
            assert!(add(&mut waiting, requester, id, read()));
        }
        assert_eq!(ids(&mut waiting, |peer| peer == PeerId(2)), ["c1", "c2"]);
        assert!(add(&mut waiting, &b, "cancel", RequestContent::EventsCancel));
        assert_eq!(ids(&mut waiting, |_| false), [""; 0], "a cancel comes after what was asked before it");
        assert_eq!(ids(&mut waiting, |_| true), ["a1", "b1", "a2", "cancel"], "by turns");
        assert!(!waiting.must_wait(&a, &RequestContent::EventsCancel, || false), "its answer is small");
    }
}
