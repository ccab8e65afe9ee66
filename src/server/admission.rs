//! Admission: the decision whether a request is served now, stays pending, or is refused.
//!
//! A request stays pending for one of three reasons: it is an update, and mutating hooks work on an
//! earlier one; an earlier response to its peer is not sent yet, and no response is built before it
//! can be sent; or its requester is throttled.
//!
//! One rule makes the server's thread fair: after using it for `t`, a requester is throttled for
//! `9 t`. While throttled, it is served only if no other request is pending. Workloads are
//! throttled with their agent, and commanders with all others of their certificate, address or
//! user, so that further connections give no further time. All messages of agents are debited;
//! while an agent is throttled and other messages wait, its stream is read no further. A single
//! client is never delayed by that; many throttled ones share the remaining time. The oldest
//! request comes first, and responses to one requester keep their order.
//!
//! Two bounds apply: the number of requests of one requester, and the bytes of all pending
//! requests. When the bytes are used up, the source that has most of them loses its newest request.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. Time is passed in. Sends no
//! messages: refused requests are returned.

use super::sessions::{RequestKey, Requester, TokenBuckets};
use crate::updates::{CheckedUpdate, UpdateError};
use ankaios_model::messages::RequestContent;
use ankaios_model::names::Name;
use ankaios_wire::limits::SERVER_INBOX_OF_STREAM;
use ankaios_wire::peer::PeerId;
use ankaios_wire::semaphore::Permit;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Time of throttling for each unit of time that the server has worked for a requester. So a busy
/// requester has a tenth of the server's time.
const THROTTLE_FACTOR: u32 = 9;
/// Debt, in time of throttling, that a requester may have without being throttled. Reads and
/// updates take milliseconds.
const THROTTLE_FREE: Duration = Duration::from_millis(10 * THROTTLE_FACTOR as u64);
/// Longest throttling: an update of thousands of workloads does not delay its sender for minutes.
const THROTTLE_MAX: Duration = Duration::from_secs(10);

/// Limit of pending requests of one requester. Our agents send one request of each workload at a
/// time; other implementations send all of them. Requests of a commander keep their slots in the
/// inbox, so its connection is read no further and none is refused.
pub(crate) const PENDING_OF_REQUESTER: usize = 16;
const _: () = assert!(PENDING_OF_REQUESTER >= SERVER_INBOX_OF_STREAM);
/// Memory of all pending requests, in bytes. A single one may be larger.
const PENDING_BYTES: usize = 6 * 1024 * 1024;
/// Bytes that a request counts at least. So there are at most 512 requests: each decision examines
/// all of them.
const PENDING_BYTES_LEAST: usize = 12 * 1024;
/// Bytes that a request counts at most, so that half of the capacity is left to small ones.
const PENDING_BYTES_MOST: usize = PENDING_BYTES / 2;

/// The error when too many requests of a requester are pending.
const TOO_MANY_PENDING: &str =
    "Too many requests wait for earlier ones; try again when these have their responses";

/// The error when too many requests of a requester are pending while hooks work.
const TOO_MANY_PENDING_FOR_HOOKS: &str =
    "Too many requests wait for mutating hooks; try again later";

/// A request that is not served yet.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) requester: Requester,
    pub(crate) key: RequestKey,
    pub(crate) content: RequestContent,
    /// Its memory. Like its buckets, this is computed once, since each decision reads it of all
    /// requests.
    bytes: usize,
    buckets: TokenBuckets,
    /// Its slot in the inbox, if it keeps that.
    _slot: Permit,
}

impl PendingRequest {
    /// A pending request, with its memory and its token buckets.
    pub(crate) fn new(
        requester: Requester,
        key: RequestKey,
        content: RequestContent,
        slot: Permit,
    ) -> Self {
        let bytes = key.id.len() + content.memory_bytes();
        Self {
            buckets: requester.token_buckets(),
            requester,
            key,
            content,
            bytes: bytes.max(PENDING_BYTES_LEAST),
            _slot: slot,
        }
    }

    /// Returns whether it begins a subscription.
    fn is_subscription(&self) -> bool {
        match &self.content {
            RequestContent::Logs(_) => true,
            RequestContent::CompleteState(read) => read.subscribe,
            _ => false,
        }
    }

    /// Returns whether its response may be large.
    fn has_large_response(&self) -> bool {
        has_large_response(&self.content)
    }
}

/// A request that is not served, and the error for its sender.
#[derive(Debug)]
pub(crate) struct RefusedRequest {
    pub(crate) request: PendingRequest,
    pub(crate) reason: String,
}

/// An update that the hooks process.
#[derive(Debug)]
pub(crate) struct WithHooks {
    pub(crate) requester: Requester,
    pub(crate) key: RequestKey,
    /// The request, which is checked again if the state changes meanwhile.
    pub(crate) content: RequestContent,
    pub(crate) checked: CheckedUpdate,
    /// [`crate::updates::Workloads::commits`] when it was checked.
    pub(crate) commits: u64,
}

/// The slot of a handled message, kept so that its stream is read no further.
#[derive(Debug)]
struct KeptSlot {
    until: Instant,
    _slot: Permit,
}

/// Pending requests of one source.
#[derive(Default)]
struct PendingOfSource {
    count: usize,
    bytes: usize,
}

/// The empty token buckets of a requester. The lowest value is served first: a requester without an
/// empty bucket before all others, and one with an empty bucket of its source after all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Throttled {
    /// Whether the bucket of its agent, certificate, address or user is empty.
    source: bool,
    /// Whether the bucket of its stream is empty.
    stream: bool,
    /// Whether its own bucket is empty, on the stream of an agent that of its workload.
    own: bool,
}

impl Throttled {
    fn is_any(self) -> bool {
        self.source || self.stream || self.own
    }
}

/// The update that the hooks have, pending requests, and throttled requesters.
#[derive(Debug)]
pub(crate) struct Admission {
    with_hooks: Option<WithHooks>,
    pending: VecDeque<PendingRequest>,
    /// The times until which token buckets are empty: of agents, certificates, addresses and users;
    /// of streams; of workloads.
    empty_until: BTreeMap<Requester, Instant>,
    kept_slots: Vec<KeptSlot>,
    /// Whether further messages wait in the inbox.
    has_backlog: bool,
    /// Wakes the loop when a pending request may be served.
    waker: Waker,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            with_hooks: None,
            pending: VecDeque::new(),
            empty_until: BTreeMap::new(),
            kept_slots: Vec::new(),
            has_backlog: false,
            waker: Waker::noop().clone(),
        }
    }
}

/// Returns whether the response to a request may be large.
fn has_large_response(content: &RequestContent) -> bool {
    !content.is_cancel() && *content != RequestContent::Missing
}

impl Admission {
    /// Sets what wakes the loop when a pending request may be served.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = waker;
    }

    /// Wakes the loop when a pending request may be served.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    // -------------------------------------------------------------- throttling

    /// Debits the time that the server has worked for `requester` to each of its token buckets.
    pub(crate) fn debit(&mut self, requester: &Requester, begin: Instant, end: Instant) {
        let worked = end.saturating_duration_since(begin);
        let debt = worked.saturating_mul(THROTTLE_FACTOR);
        if debt.is_zero() {
            return;
        }
        let buckets = requester.token_buckets();
        let different = BTreeSet::from([buckets.source, buckets.stream, buckets.own]);
        for bucket in different {
            if !self.empty_until.contains_key(&bucket) {
                // First drop the buckets that are full again, so that the map stays small.
                self.empty_until.retain(|_, until| *until > end);
            }
            let until = self.empty_until.entry(bucket).or_insert(end);
            let debt_begins = end.max(*until);
            *until = (debt_begins + debt).min(end + THROTTLE_MAX);
        }
    }

    /// Debits the time that a message of an agent has taken, and keeps its slot if necessary: see
    /// [`Self::keep_slot`].
    pub(crate) fn debit_agent(&mut self, agent: &Name, slot: Permit, begin: Instant, end: Instant) {
        let agent = Requester::of_agent(agent);
        self.debit(&agent, begin, end);
        self.keep_slot(&agent, slot, end);
    }

    /// Keeps the slot of a handled message while its source is throttled and other messages wait:
    /// without the slot its stream is read no further.
    pub(crate) fn keep_slot(&mut self, requester: &Requester, slot: Permit, now: Instant) {
        if !self.has_backlog {
            return;
        }
        let source = requester.token_buckets().source;
        if self.is_throttled(&source, now)
            && let Some(until) = self.empty_until.get(&source)
        {
            self.kept_slots.push(KeptSlot {
                until: *until,
                _slot: slot,
            });
        }
    }

    /// Begins a turn of the loop: notes whether messages wait, and releases kept slots when none
    /// wait or their throttling has ended.
    pub(crate) fn begin_turn(&mut self, has_backlog: bool, now: Instant) {
        self.has_backlog = has_backlog;
        if !has_backlog {
            self.kept_slots.clear();
        }
        self.kept_slots.retain(|kept| kept.until > now);
    }

    /// Returns whether an agent must not connect: it is throttled while other messages wait.
    pub(crate) fn defers_agent(&self, agent: &Name, now: Instant) -> bool {
        // An agent has one bucket for all its connections.
        self.has_backlog && self.is_throttled(&Requester::of_agent(agent), now)
    }

    fn throttled(&self, buckets: &TokenBuckets, now: Instant) -> Throttled {
        Throttled {
            source: self.is_throttled(&buckets.source, now),
            stream: self.is_throttled(&buckets.stream, now),
            own: self.is_throttled(&buckets.own, now),
        }
    }

    fn is_throttled(&self, bucket: &Requester, now: Instant) -> bool {
        match self.empty_until.get(bucket) {
            Some(until) => *until > now + THROTTLE_FREE,
            None => false,
        }
    }

    // ---------------------------------------------------------------- requests

    /// Returns whether a request has to wait. `has_room` returns whether its response would be sent
    /// soon.
    pub(crate) fn must_wait(
        &self,
        requester: &Requester,
        content: &RequestContent,
        now: Instant,
        has_hooks: bool,
        has_room: impl FnOnce() -> bool,
    ) -> bool {
        // Its requester is throttled. A cancellation frees capacity, so it is not delayed.
        if !content.is_cancel() && self.throttled(&requester.token_buckets(), now).is_any() {
            return true;
        }
        if self.waits_for_hooks(requester, content) {
            return true;
        }
        // It must not overtake an older request of its requester, and with hooks no update may
        // overtake another one.
        for older in &self.pending {
            let is_update_before = has_hooks && content.is_update() && older.content.is_update();
            if older.requester == *requester || is_update_before {
                return true;
            }
        }
        has_large_response(content) && !has_room()
    }

    /// Returns whether a request waits for the update that the hooks have: if it is an update as
    /// well, or comes from the same requester.
    fn waits_for_hooks(&self, requester: &Requester, content: &RequestContent) -> bool {
        match &self.with_hooks {
            Some(first) => content.is_update() || first.requester == *requester,
            None => false,
        }
    }

    /// The keys of all updates that are not committed yet: the one that the hooks have, and the
    /// pending ones.
    pub(crate) fn updates(&self) -> Vec<RequestKey> {
        let mut keys = Vec::new();
        if let Some(update) = &self.with_hooks {
            keys.push(update.key.clone());
        }
        for pending in &self.pending {
            if pending.content.is_update() {
                keys.push(pending.key.clone());
            }
        }
        keys
    }

    /// Adds a pending request. Returns the requests that are refused: `request` itself if its
    /// requester has too many, or, when the capacity is used up, requests of sources that have more
    /// pending bytes than the source of `request`, or `request` itself.
    pub(crate) fn enqueue(&mut self, request: PendingRequest) -> Vec<RefusedRequest> {
        let pending = self.pending.iter();
        let of_requester = pending.filter(|pending| pending.requester == request.requester);
        if of_requester.count() >= PENDING_OF_REQUESTER {
            return vec![self.refused(request)];
        }
        let mut refused = Vec::new();
        while !self.has_capacity(request.bytes) {
            let Some(evicted) = self.evict_for(&request) else {
                refused.push(self.refused(request));
                return refused;
            };
            refused.push(self.refused(evicted));
        }
        self.pending.push_back(request);
        self.waker.wake_by_ref(); // Nothing else wakes the loop for a throttled requester.
        refused
    }

    fn has_capacity(&self, bytes: usize) -> bool {
        let mut taken = 0;
        for pending in &self.pending {
            taken += pending.bytes.min(PENDING_BYTES_MOST);
        }
        taken == 0 || taken + bytes <= PENDING_BYTES // A single request may be larger.
    }

    /// Makes room for `request`: removes the newest request of the source with most pending bytes.
    /// Removes none if its own source would have most. A source with one request keeps it.
    fn evict_for(&mut self, request: &PendingRequest) -> Option<PendingRequest> {
        let mut own_bytes = request.bytes;
        let mut others: BTreeMap<&Requester, PendingOfSource> = BTreeMap::new();
        for pending in &self.pending {
            let source = &pending.buckets.source;
            if *source == request.buckets.source {
                own_bytes += pending.bytes;
                continue;
            }
            let of_source = others.entry(source).or_default();
            of_source.count += 1;
            of_source.bytes += pending.bytes;
        }
        let mut largest = None;
        let mut largest_bytes = own_bytes;
        for (source, PendingOfSource { count, bytes }) in others {
            if count > 1 && bytes > largest_bytes {
                largest_bytes = bytes;
                largest = Some(source);
            }
        }
        let largest = largest?;
        let mut pending = self.pending.iter();
        let newest = pending.rposition(|pending| pending.buckets.source == *largest)?;
        self.pending.remove(newest)
    }

    fn refused(&self, request: PendingRequest) -> RefusedRequest {
        let reason = if self.with_hooks.is_none() {
            TOO_MANY_PENDING.to_owned()
        } else if request.content.is_update() {
            UpdateError::Other(TOO_MANY_PENDING_FOR_HOOKS.to_owned()).response_text()
        } else {
            TOO_MANY_PENDING_FOR_HOOKS.to_owned()
        };
        RefusedRequest { request, reason }
    }

    /// Notes the update that the hooks process next.
    pub(crate) fn begin_hooks(&mut self, update: WithHooks) {
        self.with_hooks = Some(update);
    }

    /// Takes the update that the hooks have processed.
    pub(crate) fn end_hooks(&mut self) -> Option<WithHooks> {
        self.with_hooks.take()
    }

    /// Takes the request that is served next: of all that can be served now, the oldest one of the
    /// least throttled requesters. `has_room` returns whether a response to a peer would be sent
    /// soon.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        mut has_room: impl FnMut(PeerId) -> bool,
    ) -> Option<PendingRequest> {
        let mut requesters = BTreeSet::new();
        let mut best = None;
        let mut least_throttled = None;
        for (index, pending) in self.pending.iter().enumerate() {
            // Responses to one requester keep their order.
            let is_oldest = requesters.insert(&pending.requester);
            if !is_oldest || self.waits_for_hooks(&pending.requester, &pending.content) {
                continue;
            }
            if pending.has_large_response() && !has_room(pending.key.peer) {
                continue;
            }
            let throttled = self.throttled(&pending.buckets, now);
            if least_throttled.is_none_or(|least| throttled < least) {
                least_throttled = Some(throttled);
                best = Some(index);
            }
        }
        self.pending.remove(best?)
    }

    /// Removes the pending subscriptions with this key, which are cancelled. Returns their number.
    pub(crate) fn withdraw(&mut self, key: &RequestKey) -> usize {
        let before = self.pending.len();
        self.pending
            .retain(|pending| pending.key != *key || !pending.is_subscription());
        before - self.pending.len()
    }

    /// Removes the pending requests of a stream that has ended. Pending updates stay and are
    /// committed; only their responses are lost.
    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.pending
            .retain(|pending| pending.key.peer != peer || pending.content.is_update());
        if !self.pending.is_empty() {
            self.waker.wake_by_ref(); // Its updates may be served now.
        }
    }
}

/// What tests of other files look at.
#[cfg(debug_assertions)]
impl Admission {
    /// Returns whether hooks work on an update.
    pub(crate) fn hooks_work(&self) -> bool {
        self.with_hooks.is_some()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::messages::{ReadState, UpdateState};
    use ankaios_platform::clock::{Clock, SystemClock};

    fn requester(peer: u64, workload: Option<&str>) -> Requester {
        match workload {
            Some(workload) => Requester {
                workload: Some(workload.into()),
                ..Requester::of_agent(&"A".into())
            },
            None => commander(peer, &peer.to_string()),
        }
    }

    fn commander(peer: u64, source: &str) -> Requester {
        Requester {
            is_agent: false,
            source: source.into(),
            peer: Some(PeerId(peer)),
            workload: None,
        }
    }

    fn read() -> RequestContent {
        RequestContent::CompleteState(ReadState::default())
    }

    fn update(bytes: usize) -> RequestContent {
        RequestContent::UpdateState(UpdateState {
            new_state: Some(Err("x".repeat(bytes))),
            masks: vec![],
            ..Default::default()
        })
    }

    fn add(
        admission: &mut Admission,
        requester: &Requester,
        id: &str,
        content: RequestContent,
    ) -> bool {
        let peer = requester.peer.unwrap_or(PeerId(1));
        let key = RequestKey {
            peer,
            id: id.to_owned(),
        };
        let request = PendingRequest::new(requester.clone(), key, content, Permit::default());
        admission.enqueue(request).is_empty()
    }

    fn ids(
        admission: &mut Admission,
        now: Instant,
        has_room: impl Fn(PeerId) -> bool,
    ) -> Vec<String> {
        std::iter::from_fn(|| admission.next(now, &has_room))
            .map(|pending| pending.key.id)
            .collect()
    }

    fn must_wait(
        admission: &Admission,
        requester: &Requester,
        content: &RequestContent,
        now: Instant,
    ) -> bool {
        admission.must_wait(requester, content, now, false, || true)
    }

    /// Lets the server work for `requester` for this number of milliseconds; returns the end of
    /// that.
    fn work(
        admission: &mut Admission,
        requester: &Requester,
        begin: Instant,
        milliseconds: u64,
    ) -> Instant {
        let end = begin + Duration::from_millis(milliseconds);
        admission.debit(requester, begin, end);
        end
    }

    #[test]
    fn requester_is_throttled_nine_times_as_long_as_it_was_served() {
        let (mut admission, begin) = (Admission::default(), SystemClock.now());
        let (a, b) = (requester(1, None), requester(2, None));
        let end = work(&mut admission, &a, begin, 10);
        assert!(!must_wait(&admission, &a, &read(), end), "it was short");
        let end = work(&mut admission, &a, end, 10);
        assert!(must_wait(&admission, &a, &read(), end));
        assert!(
            !must_wait(&admission, &a, &RequestContent::EventsCancel, end),
            "that frees something"
        );
        assert!(!must_wait(&admission, &b, &read(), end));
        assert!(must_wait(
            &admission,
            &a,
            &read(),
            end + Duration::from_millis(79)
        ));
        assert!(!must_wait(
            &admission,
            &a,
            &read(),
            end + Duration::from_millis(80)
        ));
        let end = work(&mut admission, &a, end, 3_600_000);
        assert!(must_wait(&admission, &a, &read(), end + THROTTLE_MAX / 2));
        assert!(
            !must_wait(&admission, &a, &read(), end + THROTTLE_MAX),
            "at most so long"
        );
        work(&mut admission, &b, end + THROTTLE_MAX, 1);
        assert_eq!(admission.empty_until.len(), 2, "full buckets are removed");
    }

    #[test]
    fn agent_is_throttled_with_all_its_workloads() {
        let (mut admission, mut now) = (Admission::default(), SystemClock.now());
        for number in 0..10 {
            now = work(
                &mut admission,
                &requester(number, Some(&format!("w{number}"))),
                now,
                5,
            );
        }
        assert!(must_wait(
            &admission,
            &requester(99, Some("other")),
            &read(),
            now
        ));
        assert!(must_wait(
            &admission,
            &requester(99, Some("w0")),
            &read(),
            now
        ));
        let other = Requester {
            workload: Some("w0".into()),
            ..Requester::of_agent(&"B".into())
        };
        assert!(!must_wait(&admission, &other, &read(), now));
    }

    #[test]
    fn connections_of_one_address_are_throttled_together() {
        let (mut admission, mut now) = (Admission::default(), SystemClock.now());
        let of = commander;
        for peer in 0..10 {
            now = work(&mut admission, &of(peer, "a"), now, 5);
        }
        now = work(&mut admission, &of(10, "a"), now, 20);
        assert!(
            must_wait(&admission, &of(99, "a"), &read(), now)
                && !must_wait(&admission, &of(99, "b"), &read(), now)
        );
        for (peer, source, id) in [
            (10, "a", "greedy"),
            (99, "a", "modest"),
            (100, "b", "other"),
        ] {
            assert!(add(&mut admission, &of(peer, source), id, read()));
        }
        assert_eq!(
            ids(&mut admission, now, |_| true),
            ["other", "modest", "greedy"]
        );
    }

    #[test]
    fn throttled_requester_is_served_last() {
        let (mut admission, begin) = (Admission::default(), SystemClock.now());
        let (greedy, own, modest) = (
            requester(1, Some("greedy")),
            requester(1, Some("own")),
            requester(2, None),
        );
        let now = work(&mut admission, &greedy, begin, 100);
        for (requester, id) in [
            (&greedy, "g1"),
            (&greedy, "g2"),
            (&own, "o1"),
            (&modest, "m1"),
            (&modest, "m2"),
        ] {
            assert!(add(&mut admission, requester, id, update(0)));
        }
        assert_eq!(
            ids(&mut admission, now, |_| true),
            ["m1", "m2", "o1", "g1", "g2"]
        );
    }

    #[test]
    fn others_wait_for_one_request_of_many_throttled_requesters() {
        let (mut admission, mut now) = (Admission::default(), SystemClock.now());
        let greedy: Vec<Requester> = (1..=24).map(|peer| requester(peer, None)).collect();
        greedy
            .iter()
            .for_each(|one| assert!(add(&mut admission, one, "first", update(0))));
        for round in 0..1_000 {
            let modest = requester(1_000 + round, None);
            for content in [read(), update(0)] {
                assert!(!must_wait(&admission, &modest, &content, now), "{round}");
            }
            let next = admission
                .next(now, |_| true)
                .expect("all of them are pending again and again")
                .requester;
            now = work(&mut admission, &next, now, 1_000);
            assert!(add(&mut admission, &next, "again", update(0)));
            // After the first round, a requester without room in its outbox is next once it has
            // room.
            assert!(add(&mut admission, &modest, "modest", read()));
            let others = |admission: &mut Admission| admission.next(now, |peer| peer.0 >= 1_000);
            assert_eq!(
                others(&mut admission).map(|pending| pending.requester),
                Some(modest)
            );
        }
    }

    #[test]
    fn update_above_the_capacity_leaves_half_to_small_requests() {
        let mut admission = Admission::default();
        let (large, other) = (requester(1, None), requester(2, None));
        assert!(add(&mut admission, &large, "x", update(PENDING_BYTES)));
        assert!(!add(&mut admission, &other, "y", update(PENDING_BYTES)));
        for number in 0..PENDING_BYTES_MOST / PENDING_BYTES_LEAST {
            let small = requester(3 + number as u64, None);
            assert!(add(&mut admission, &small, "z", read()), "{number}");
        }
        assert_eq!(admission.pending[0].key.id, "x", "nothing evicts it");
    }

    #[test]
    fn workload_has_a_bounded_number_of_pending_requests() {
        let mut admission = Admission::default();
        let (flooding, other) = (requester(1, Some("flooding")), requester(1, Some("other")));
        for number in 0..PENDING_OF_REQUESTER {
            assert!(add(&mut admission, &flooding, &number.to_string(), read()));
        }
        assert!(!add(&mut admission, &flooding, "refused", read()));
        assert!(add(&mut admission, &other, "fits", read()));
        assert_eq!(admission.pending.len(), PENDING_OF_REQUESTER + 1);
    }

    #[test]
    fn source_with_most_pending_bytes_pays_when_they_are_used_up() {
        let all = PENDING_BYTES / PENDING_BYTES_LEAST;
        let mut admission = Admission::default();
        let connection = |number: usize| commander(number as u64, "flooding");
        for number in 0..all {
            assert!(add(&mut admission, &connection(number), "old", read()));
        }
        assert!(!add(&mut admission, &connection(all), "refused", read()));
        let other = |round: usize| commander(10_000 + round as u64, "other");
        let enqueue = |admission: &mut Admission, round: usize| {
            let key = RequestKey {
                peer: PeerId(10_000 + round as u64),
                id: "other".to_owned(),
            };
            admission.enqueue(PendingRequest::new(
                other(round),
                key,
                read(),
                Permit::default(),
            ))
        };
        for round in 1..=all / 2 {
            let refused = enqueue(&mut admission, round);
            assert_eq!(refused.len(), 1, "{round}");
            let request = &refused[0].request;
            assert_eq!(request.requester, connection(all - round), "the newest");
            assert_eq!(refused[0].reason, TOO_MANY_PENDING);
        }
        let refused = enqueue(&mut admission, all);
        let request = &refused[0].request;
        assert_eq!(request.requester, other(all), "both have half");
        assert_eq!(admission.pending.len(), all);
    }

    #[test]
    fn slot_of_a_throttled_agent_is_kept_while_other_messages_wait() {
        let (mut admission, begin) = (Admission::default(), SystemClock.now());
        let slots = ankaios_wire::semaphore::Semaphore::new(1);
        let agent = Name::from("A");
        let second = begin + Duration::from_secs(1);
        admission.begin_turn(false, begin);
        admission.debit_agent(&agent, slots.acquire(1), begin, second);
        assert_eq!(slots.in_flight(), 0, "no other message waits");
        assert!(!admission.defers_agent(&agent, second));
        admission.begin_turn(true, second);
        assert!(admission.defers_agent(&agent, second));
        admission.debit_agent(&agent, slots.acquire(1), second, second);
        admission.debit_agent(&"B".into(), Permit::default(), second, second);
        assert_eq!(slots.in_flight(), 1);
        admission.begin_turn(true, second + Duration::from_secs(8));
        assert_eq!(slots.in_flight(), 1, "still throttled");
        admission.begin_turn(true, second + THROTTLE_MAX);
        assert_eq!(slots.in_flight(), 0, "throttled no longer");
        admission.debit_agent(&agent, slots.acquire(1), begin, second);
        assert_eq!(slots.in_flight(), 1);
        admission.begin_turn(false, second);
        assert_eq!(slots.in_flight(), 0, "nothing else waits");
    }

    #[test]
    fn newer_update_does_not_overtake_those_that_waited_for_hooks() {
        let (mut admission, now) = (Admission::default(), SystemClock.now());
        let (a, b) = (requester(1, None), requester(2, None));
        admission.with_hooks = Some(WithHooks {
            requester: requester(3, None),
            key: RequestKey {
                peer: PeerId(3),
                id: "h".to_owned(),
            },
            content: update(0),
            checked: CheckedUpdate::default(),
            commits: 0,
        });
        for (requester, id, content) in [
            (&a, "read", read()),
            (&a, "first", update(0)),
            (&b, "second", update(0)),
            (&b, "later", read()),
        ] {
            assert!(add(&mut admission, requester, id, content));
        }
        assert_eq!(ids(&mut admission, now, |_| true), ["read"]);
        admission.with_hooks = None;
        let other = requester(4, None);
        assert!(admission.must_wait(&other, &update(0), now, true, || true));
        assert!(!admission.must_wait(&other, &read(), now, true, || true));
        assert!(
            !must_wait(&admission, &other, &update(0), now),
            "there are no hooks"
        );
        assert_eq!(
            ids(&mut admission, now, |_| true),
            ["first", "second", "later"]
        );
    }

    #[test]
    fn request_with_room_for_its_response_is_served_before_others() {
        let (mut admission, now) = (Admission::default(), SystemClock.now());
        let (a, b, c) = (
            requester(1, Some("a")),
            requester(1, Some("b")),
            requester(2, None),
        );
        for (requester, id) in [(&a, "a1"), (&c, "c1"), (&a, "a2"), (&b, "b1"), (&c, "c2")] {
            assert!(
                admission.is_empty()
                    || !must_wait(&admission, requester, &read(), now)
                    || id.ends_with('2')
            );
            assert!(admission.must_wait(requester, &read(), now, false, || false));
            assert!(add(&mut admission, requester, id, read()));
        }
        assert_eq!(
            ids(&mut admission, now, |peer| peer == PeerId(2)),
            ["c1", "c2"]
        );
        assert!(add(
            &mut admission,
            &b,
            "cancel",
            RequestContent::EventsCancel
        ));
        assert_eq!(
            ids(&mut admission, now, |_| false),
            [""; 0],
            "a cancel comes after what was asked before it"
        );
        assert_eq!(
            ids(&mut admission, now, |_| true),
            ["a1", "a2", "b1", "cancel"]
        );
        assert!(
            !admission.must_wait(&a, &RequestContent::EventsCancel, now, false, || false),
            "its answer is small"
        );
    }
}
