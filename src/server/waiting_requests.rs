//! Requests that wait: updates while mutating hooks work on an earlier one; requests of a peer while a response for it is
//! not sent yet, so that no response is built before it can be sent; and requests of a requester that has used up its share
//! of the server's time (shares.rs), until nobody else wants anything. Updates that wait for hooks are carried out in the
//! order in which they came, up to those of requesters beyond their share, which others must not have to wait for. Responses
//! to one requester keep their order.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use super::prepare::PreparedUpdate;
use super::requester::{RequestKey, Requester};
use super::shares::{Excess, has_room};
use crate::limits::{
    INBOX_SMALL_MESSAGE, REQUESTS_WAITING, REQUESTS_WAITING_BYTES, REQUESTS_WAITING_FIRST, REQUESTS_WAITING_OF_STREAM,
    REQUESTS_WAITING_OF_STREAM_BYTES, REQUESTS_WAITING_OF_WORKLOAD, REQUESTS_WAITING_OF_WORKLOAD_BYTES,
};
use crate::model::memory_size::MemorySize;
use crate::model::messages::RequestContent;
use crate::wire::peer::{PeerId, Room};
use std::collections::{BTreeSet, VecDeque};

#[derive(Debug)]
struct Waiting {
    requester: Requester,
    key: RequestKey,
    content: RequestContent,
    bytes: usize,
    /// An update that waits for the hooks, which newer ones must not overtake.
    is_in_line: bool,
    /// The place of its message in the inbox, if that is kept.
    _place: Room,
}

/// A request cannot wait: too many do.
#[derive(Debug)]
pub struct NoRoom {
    /// Its stream and id.
    pub key: RequestKey,
    /// Its content.
    pub content: RequestContent,
}

/// The update that the hooks have, and what waits.
#[derive(Debug, Default)]
pub struct WaitingRequests {
    with_hooks: Option<(Requester, RequestKey, PreparedUpdate)>,
    queue: VecDeque<Waiting>,
}

/// Whether the response to a request may be large.
fn has_large_answer(content: &RequestContent) -> bool {
    !content.is_cancel() && *content != RequestContent::Missing
}

impl WaitingRequests {
    /// Whether a request has to wait; `has_room` returns whether its response would be sent soon.
    pub fn must_wait(&self, requester: &Requester, content: &RequestContent, has_room: impl FnOnce() -> bool) -> bool {
        self.waits_for_hooks(requester, content)
            || self.comes_into_line(content)
            || self.queue.iter().any(|waiting| waiting.requester == *requester)
            || has_large_answer(content) && !has_room()
    }

    fn waits_for_hooks(&self, requester: &Requester, content: &RequestContent) -> bool {
        self.with_hooks.as_ref().is_some_and(|(first, ..)| content.is_update() || first == requester)
    }

    /// Whether it is an update that comes behind others that wait, or have waited, for hooks.
    fn comes_into_line(&self, content: &RequestContent) -> bool {
        content.is_update() && (self.hooks_work() || self.queue.iter().any(|waiting| waiting.is_in_line))
    }

    /// The update that the hooks have, and those that wait for them.
    pub fn updates_in_line(&self) -> impl Iterator<Item = &RequestKey> {
        let first = self.with_hooks.iter().map(|(_, key, _)| key);
        first.chain(self.queue.iter().filter(|waiting| waiting.is_in_line).map(|waiting| &waiting.key))
    }

    /// Whether hooks work on an update.
    pub fn hooks_work(&self) -> bool {
        self.with_hooks.is_some()
    }

    /// Lets a request wait. `place` is kept as long as it does.
    ///
    /// # Errors
    /// [`NoRoom`] when all that waits, or all of this workload or stream, is as much as may wait; a single request may be
    /// larger.
    pub fn add(
        &mut self,
        requester: Requester,
        key: RequestKey,
        content: RequestContent,
        place: Room,
    ) -> Result<(), NoRoom> {
        let bytes = key.id.len() + content.memory_bytes();
        // One that is larger than all that may wait waits alone.
        let has_room_beside = |others: &dyn Fn(&Requester) -> bool, count_max: usize, bytes_max: usize| {
            let mut others =
                self.queue.iter().filter(|waiting| others(&waiting.requester)).map(|one| one.bytes).peekable();
            others.peek().is_none() || has_room(others, bytes, count_max, bytes_max)
        };
        let is_same = |other: &Requester| *other == requester;
        let is_of_stream = |other: &Requester| other.stream == requester.stream;
        let has_share = (requester.workload.is_none()
            || has_room_beside(&is_same, REQUESTS_WAITING_OF_WORKLOAD, REQUESTS_WAITING_OF_WORKLOAD_BYTES))
            && has_room_beside(&is_of_stream, REQUESTS_WAITING_OF_STREAM, REQUESTS_WAITING_OF_STREAM_BYTES);
        let is_first =
            bytes <= INBOX_SMALL_MESSAGE && !self.queue.iter().any(|waiting| is_of_stream(&waiting.requester));
        let part = |all: usize| if is_first { all } else { all - all / REQUESTS_WAITING_FIRST };
        if !has_share || !has_room_beside(&|_| true, part(REQUESTS_WAITING), part(REQUESTS_WAITING_BYTES)) {
            return Err(NoRoom { key, content });
        }
        let is_in_line = self.comes_into_line(&content);
        self.queue.push_back(Waiting { requester, key, content, bytes, is_in_line, _place: place });
        Ok(())
    }

    /// The hooks work on the update of `key`.
    pub fn begin(&mut self, requester: Requester, key: RequestKey, update: PreparedUpdate) {
        self.with_hooks = Some((requester, key, update));
    }

    /// The hooks are done with the update that is returned.
    pub fn end(&mut self) -> Option<(Requester, RequestKey, PreparedUpdate)> {
        self.with_hooks.take()
    }

    /// Takes the next request to be served: of those that wait neither for hooks, nor for an older one of the same requester,
    /// nor for the stream of its peer (`has_room` returns whether a response would be sent soon), the oldest of the
    /// requester with the least `excess`.
    /// Other requests of that requester go behind all others then, so that a requester with few requests does not wait
    /// for one with many; but no update that waits for hooks loses its place.
    pub fn next(
        &mut self,
        has_room: impl Fn(PeerId) -> bool,
        excess: impl Fn(&Requester) -> Excess,
    ) -> Option<(Requester, RequestKey, RequestContent)> {
        let mut older = BTreeSet::new();
        let ready = self.queue.iter().enumerate().filter(|(_, Waiting { requester, key, content, .. })| {
            older.insert(requester)
                && !self.waits_for_hooks(requester, content)
                && (!has_large_answer(content) || has_room(key.peer))
        });
        let (index, _) = ready.min_by_key(|(_, waiting)| excess(&waiting.requester))?; // The first of equals.
        let next = self.queue.remove(index)?;
        let is_own = |waiting: &Waiting| waiting.requester == next.requester;
        let has_place = self.queue.iter().any(|waiting| is_own(waiting) && waiting.is_in_line);
        if !has_place && !next.content.is_update() {
            let waiting = std::mem::take(&mut self.queue).into_iter();
            let (own, others): (Vec<_>, Vec<_>) = waiting.partition(is_own);
            self.queue = others.into_iter().chain(own).collect();
        }
        Some((next.requester, next.key, next.content))
    }

    /// Drops requests under `key` that would last longer than their response. Returns how many.
    #[must_use]
    pub fn withdraw(&mut self, key: &RequestKey) -> usize {
        let before = self.queue.len();
        self.queue.retain(|waiting| {
            let lasting = match &waiting.content {
                RequestContent::Logs(_) => true,
                RequestContent::CompleteState(read) => read.subscribe,
                _ => false,
            };
            waiting.key != *key || !lasting
        });
        before - self.queue.len()
    }

    /// A stream has ended. Its updates are carried out all the same, as if the response was lost; its other requests need
    /// no response any more.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.queue.retain(|waiting| waiting.key.peer != peer || waiting.content.is_update());
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUEST_TIME_SHARE;
    use crate::model::messages::{ReadState, UpdateState};
    use crate::platform::clock::{Clock, SystemClock};
    use crate::server::requester::Stream;
    use crate::server::shares::Shares;

    fn requester(peer: u64, workload: Option<&str>) -> Requester {
        let stream = workload.map_or(Stream::Commander(PeerId(peer)), |_| Stream::Agent("A".into()));
        Requester { stream, workload: workload.map(Into::into) }
    }

    fn read() -> RequestContent {
        RequestContent::CompleteState(ReadState::default())
    }

    fn update(bytes: usize) -> RequestContent {
        RequestContent::UpdateState(UpdateState { new_state: Some(Err("x".repeat(bytes))), masks: vec![] })
    }

    fn add(waiting: &mut WaitingRequests, requester: &Requester, id: &str, content: RequestContent) -> bool {
        let peer = if let Stream::Commander(peer) = requester.stream { peer } else { PeerId(1) };
        let key = RequestKey { peer, id: id.to_owned() };
        waiting.add(requester.clone(), key, content, Room::default()).is_ok()
    }

    fn ids(waiting: &mut WaitingRequests, has_room: impl Fn(PeerId) -> bool) -> Vec<String> {
        std::iter::from_fn(|| waiting.next(&has_room, |_| Excess::default())).map(|(_, key, _)| key.id).collect()
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
    }

    #[test]
    fn one_stream_has_a_share_of_what_may_wait_and_whoever_asks_for_one_thing_finds_room() {
        let mut waiting = WaitingRequests::default();
        for workload in 0..REQUESTS_WAITING {
            add(&mut waiting, &requester(1, Some(&workload.to_string())), "x", read());
        }
        assert_eq!(waiting.queue.len(), REQUESTS_WAITING_OF_STREAM, "workloads of one agent");
        for _ in 0..REQUESTS_WAITING {
            add(&mut waiting, &requester(2, None), "x", read());
        }
        assert_eq!(waiting.queue.len(), 2 * REQUESTS_WAITING_OF_STREAM, "a commander");
        assert!(!add(&mut waiting, &requester(99, Some("w")), "x", read()), "another connection of the same agent");
        for peer in 3..10 {
            (0..REQUESTS_WAITING).for_each(|_| _ = add(&mut waiting, &requester(peer, None), "x", read()));
        }
        assert!(waiting.queue.len() < REQUESTS_WAITING, "{}", waiting.queue.len());
        assert!(add(&mut waiting, &requester(10, None), "first", read()));
        assert!(!add(&mut waiting, &requester(10, None), "second", read()));
        let mut waiting = WaitingRequests::default();
        let large = || update(REQUESTS_WAITING_OF_STREAM_BYTES / 2);
        for peer in 0..4 {
            add(&mut waiting, &requester(peer, None), "large", large());
        }
        assert!(waiting.queue.len() > 1 && !add(&mut waiting, &requester(9, None), "large", large()));
        assert!(add(&mut waiting, &requester(9, None), "small", read()));
    }

    #[test]
    fn who_took_least_beyond_its_share_is_next_and_a_newer_update_does_not_pass_those_that_waited_for_hooks() {
        let mut waiting = WaitingRequests::default();
        let (greedy, modest) = (requester(1, Some("greedy")), requester(2, None));
        let (mut shares, begin) = (Shares::default(), SystemClock.now());
        shares.charge(&greedy, begin, begin + 2 * REQUEST_TIME_SHARE);
        let now = begin + 2 * REQUEST_TIME_SHARE;
        for (requester, id) in [(&greedy, "g1"), (&greedy, "g2"), (&modest, "m1"), (&greedy, "g3"), (&modest, "m2")] {
            assert!(add(&mut waiting, requester, id, update(0)));
        }
        let mut next = || waiting.next(|_| true, |one| shares.excess(one, now)).map(|(_, key, _)| key.id);
        let order: Vec<String> = std::iter::from_fn(&mut next).collect();
        assert_eq!(order, ["m1", "m2", "g1", "g2", "g3"]);
        let other = requester(3, None);
        assert!(!waiting.must_wait(&other, &update(0), || true), "no hooks");
        waiting.with_hooks =
            Some((modest.clone(), RequestKey { peer: PeerId(2), id: "h".to_owned() }, PreparedUpdate::default()));
        assert!(add(&mut waiting, &greedy, "waits", update(0)));
        waiting.with_hooks = None;
        assert!(waiting.must_wait(&other, &update(0), || true));
        assert!(!waiting.must_wait(&other, &read(), || true));
    }

    #[test]
    fn a_read_before_an_update_that_waits_for_hooks_does_not_cost_that_its_place() {
        let mut waiting = WaitingRequests::default();
        let (a, b) = (requester(1, None), requester(2, None));
        waiting.with_hooks =
            Some((requester(3, None), RequestKey { peer: PeerId(3), id: "h".to_owned() }, PreparedUpdate::default()));
        for (requester, id, content) in
            [(&a, "read", read()), (&a, "first", update(0)), (&b, "second", update(0)), (&b, "later", read())]
        {
            assert!(add(&mut waiting, requester, id, content));
        }
        assert_eq!(ids(&mut waiting, |_| true), ["read"]);
        waiting.with_hooks = None;
        assert_eq!(ids(&mut waiting, |_| true), ["first", "second", "later"]);
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
