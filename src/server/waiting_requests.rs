//! Requests that wait, and who is served first. Updates wait while mutating hooks work on an
//! earlier one; requests of a peer while a response for it is not sent yet, so that no response is
//! built before it can be sent; and requests of whoever rests.
//!
//! One rule makes the server's thread fair: who has kept it busy for `t` rests for `9 t`, and is
//! served meanwhile only when nobody else waits. Workloads rest with their agent, and commanders
//! with all others of their certificate, address or user: whoever opens one connection after
//! another has no more time. It holds for all that agents send, see
//! [`ServerLoop::next_arrived`](super::ServerLoop::next_arrived). A client alone never notices
//! that; many greedy ones together leave each other what they leave everybody else. The oldest
//! request comes first, and responses to one requester keep their order.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. Time is passed in.

use super::prepare::PreparedUpdate;
use super::requester::{RequestKey, Requester};
use ankaios_model::messages::RequestContent;
use ankaios_model::names::Name;
use ankaios_wire::limits::{INBOX_SMALL_MESSAGE, SERVER_INBOX_OF_STREAM};
use ankaios_wire::peer::{PeerId, Room};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A requester rests for so many times as long as the server worked for it: it has a tenth of the
/// time.
const REST: u32 = 9;
/// What it owes of that does not count until it has kept the server busy for so long. Reads and
/// updates take milliseconds.
const REST_FREE: Duration = Duration::from_millis(10 * REST as u64);
/// Longest rest: an update of thousands of workloads does not delay its sender for minutes.
const REST_MAX: Duration = Duration::from_secs(10);

/// Requests that wait, at most; more are refused.
const WAITING: usize = 512;
/// Those of one agent or one connection of a commander. They keep their places in the inbox, so the
/// connection of a commander with as many is read no further.
pub(crate) const WAITING_OF_STREAM: usize = WAITING / 4;
/// Those of one workload. Our agents pass on one at a time, other implementations all.
pub(crate) const WAITING_OF_WORKLOAD: usize = 16;
/// What all of them take in memory, in bytes. A single one may be larger.
const WAITING_BYTES: usize = 6 * 1024 * 1024;
/// One part in so many of the places and bytes is kept for small requests on connections without
/// other waiting requests.
const WAITING_FIRST: usize = 4;
const _: () = assert!(WAITING_OF_STREAM >= SERVER_INBOX_OF_STREAM);
const _: () = assert!(WAITING_OF_STREAM < WAITING - WAITING / WAITING_FIRST);

#[derive(Debug)]
struct Waiting {
    requester: Requester,
    key: RequestKey,
    content: RequestContent,
    bytes: usize,
    /// The place of its message in the inbox, if that is kept.
    _place: Room,
}

/// An update that the hooks have.
#[derive(Debug)]
pub(crate) struct WithHooks {
    pub(crate) requester: Requester,
    pub(crate) key: RequestKey,
    /// As it was requested, in case that the state becomes another meanwhile.
    pub(crate) content: RequestContent,
    pub(crate) prepared: PreparedUpdate,
    /// [`crate::updates::Workloads::commits`] when it was prepared.
    pub(crate) commits: u64,
}

/// The update that the hooks have, what waits, and who rests.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    with_hooks: Option<WithHooks>,
    queue: VecDeque<Waiting>,
    /// When they have rested for all that was done for them: agents, certificates, addresses and
    /// users; streams; workloads.
    rested: BTreeMap<Requester, Instant>,
}

/// Whether the response to a request may be large.
fn has_large_answer(content: &RequestContent) -> bool {
    !content.is_cancel() && *content != RequestContent::Missing
}

impl WaitingRequests {
    // ------------------------------------------------------------------- rests

    /// The server has worked for `requester` from `begin` to `end`.
    pub(crate) fn charge(&mut self, requester: &Requester, begin: Instant, end: Instant) {
        let rest = end.saturating_duration_since(begin).saturating_mul(REST);
        if rest.is_zero() {
            return;
        }
        for account in BTreeSet::from(requester.accounts()) {
            if !self.rested.contains_key(&account) {
                self.rested.retain(|_, rested| *rested > end);
            }
            let rested = self.rested.entry(account).or_insert(end);
            *rested = ((*rested).max(end) + rest).min(end + REST_MAX);
        }
    }

    /// Whether an agent rests.
    pub(crate) fn agent_rests(&self, agent: &Name, now: Instant) -> bool {
        self.rests(&Requester::of_agent(agent), now).contains(&true)
    }

    /// Whether all of its certificate, address or user rest, whether its stream does, and whether
    /// its workload does.
    fn rests(&self, requester: &Requester, now: Instant) -> [bool; 3] {
        let rests = |account| {
            self.rested
                .get(&account)
                .is_some_and(|rested| *rested > now + REST_FREE)
        };
        if self.rested.is_empty() {
            [false; 3]
        } else {
            requester.accounts().map(rests)
        }
    }

    // ----------------------------------------------------------------- waiting

    /// Whether a request has to wait: its requester rests or has older ones that wait, hooks work
    /// on an update before it, an update would pass others that waited for hooks, or its response
    /// would not be sent soon, as `has_room` returns.
    pub(crate) fn must_wait(
        &self,
        requester: &Requester,
        content: &RequestContent,
        now: Instant,
        has_hooks: bool,
        has_room: impl FnOnce() -> bool,
    ) -> bool {
        !content.is_cancel() && self.rests(requester, now).contains(&true)
            || self.waits_for_hooks(requester, content)
            || self
                .queue
                .iter()
                .any(|waiting| waiting.requester == *requester)
            || has_hooks
                && content.is_update()
                && self.queue.iter().any(|waiting| waiting.content.is_update())
            || has_large_answer(content) && !has_room()
    }

    fn waits_for_hooks(&self, requester: &Requester, content: &RequestContent) -> bool {
        self.with_hooks
            .as_ref()
            .is_some_and(|first| content.is_update() || first.requester == *requester)
    }

    /// The update that the hooks have, and those that wait.
    pub(crate) fn updates(&self) -> impl Iterator<Item = &RequestKey> {
        let first = self.with_hooks.iter().map(|first| &first.key);
        first.chain(
            self.queue
                .iter()
                .filter(|waiting| waiting.content.is_update())
                .map(|waiting| &waiting.key),
        )
    }

    /// Whether hooks work on an update.
    pub(crate) fn hooks_work(&self) -> bool {
        self.with_hooks.is_some()
    }

    /// Lets a request wait; `place` is kept as long as it does. What there is no room for is
    /// returned.
    pub(crate) fn add(
        &mut self,
        requester: Requester,
        key: RequestKey,
        content: RequestContent,
        place: Room,
    ) -> Result<(), (RequestKey, RequestContent)> {
        let bytes = key.id.len() + content.memory_bytes();
        let (mut of_stream, mut of_workload, mut taken) = (0, 0, 0);
        for waiting in &self.queue {
            of_stream += usize::from(
                (&waiting.requester.source, waiting.requester.peer)
                    == (&requester.source, requester.peer),
            );
            of_workload += usize::from(waiting.requester == requester);
            // One that is larger than all this leaves the small ones their part.
            taken += waiting
                .bytes
                .min(WAITING_BYTES - WAITING_BYTES / WAITING_FIRST);
        }
        let kept = if of_stream == 0 && bytes <= INBOX_SMALL_MESSAGE {
            0
        } else {
            1
        };
        let part = |all: usize| all - kept * all / WAITING_FIRST;
        let has_place = self.queue.len() < part(WAITING)
            && of_stream < WAITING_OF_STREAM
            && (requester.workload.is_none() || of_workload < WAITING_OF_WORKLOAD);
        if !has_place || taken > 0 && taken + bytes > part(WAITING_BYTES) {
            return Err((key, content));
        }
        self.queue.push_back(Waiting {
            requester,
            key,
            content,
            bytes,
            _place: place,
        });
        Ok(())
    }

    /// The hooks work on this update.
    pub(crate) fn begin(&mut self, update: WithHooks) {
        self.with_hooks = Some(update);
    }

    /// The hooks are done with the update that is returned.
    pub(crate) fn end(&mut self) -> Option<WithHooks> {
        self.with_hooks.take()
    }

    /// Takes the next request to be served: the oldest of those that wait neither for hooks, nor
    /// for an older one of the same requester, nor for the stream of its peer (`has_room` returns
    /// whether a response would be sent soon). Of requesters that rest it is the oldest only if
    /// there is no other; whose stream does not rest comes before others of its address, and a
    /// workload that does not before others of its stream.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        has_room: impl Fn(PeerId) -> bool,
    ) -> Option<(Requester, RequestKey, RequestContent)> {
        let mut older = BTreeSet::new();
        let ready = self.queue.iter().enumerate().filter(
            |(
                _,
                Waiting {
                    requester,
                    key,
                    content,
                    ..
                },
            )| {
                older.insert(requester)
                    && !self.waits_for_hooks(requester, content)
                    && (!has_large_answer(content) || has_room(key.peer))
            },
        );
        // The first of equals.
        let (index, _) = ready.min_by_key(|(_, waiting)| self.rests(&waiting.requester, now))?;
        let Waiting {
            requester,
            key,
            content,
            ..
        } = self.queue.remove(index)?;
        Some((requester, key, content))
    }

    /// Drops requests under `key` that would last longer than their response. Returns how many.
    pub(crate) fn withdraw(&mut self, key: &RequestKey) -> usize {
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

    /// A stream has ended. Its updates are carried out all the same, as if the response was lost;
    /// its other requests need no response any more.
    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.queue
            .retain(|waiting| waiting.key.peer != peer || waiting.content.is_update());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
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
        waiting: &mut WaitingRequests,
        requester: &Requester,
        id: &str,
        content: RequestContent,
    ) -> bool {
        let peer = requester.peer.unwrap_or(PeerId(1));
        let key = RequestKey {
            peer,
            id: id.to_owned(),
        };
        waiting
            .add(requester.clone(), key, content, Room::default())
            .is_ok()
    }

    fn ids(
        waiting: &mut WaitingRequests,
        now: Instant,
        has_room: impl Fn(PeerId) -> bool,
    ) -> Vec<String> {
        std::iter::from_fn(|| waiting.next(now, &has_room))
            .map(|(_, key, _)| key.id)
            .collect()
    }

    fn must_wait(
        waiting: &WaitingRequests,
        requester: &Requester,
        content: &RequestContent,
        now: Instant,
    ) -> bool {
        waiting.must_wait(requester, content, now, false, || true)
    }

    /// The server works for `requester` for so many milliseconds; returns when that ends.
    fn work(
        waiting: &mut WaitingRequests,
        requester: &Requester,
        begin: Instant,
        milliseconds: u64,
    ) -> Instant {
        let end = begin + Duration::from_millis(milliseconds);
        waiting.charge(requester, begin, end);
        end
    }

    #[test]
    fn who_has_kept_the_server_busy_rests_for_nine_times_as_long_and_short_requests_add_up() {
        let (mut waiting, begin) = (WaitingRequests::default(), SystemClock.now());
        let (a, b) = (requester(1, None), requester(2, None));
        let end = work(&mut waiting, &a, begin, 10);
        assert!(!must_wait(&waiting, &a, &read(), end), "it was short");
        let end = work(&mut waiting, &a, end, 10);
        assert!(must_wait(&waiting, &a, &read(), end));
        assert!(
            !must_wait(&waiting, &a, &RequestContent::EventsCancel, end),
            "that frees something"
        );
        assert!(!must_wait(&waiting, &b, &read(), end));
        assert!(must_wait(
            &waiting,
            &a,
            &read(),
            end + Duration::from_millis(79)
        ));
        assert!(!must_wait(
            &waiting,
            &a,
            &read(),
            end + Duration::from_millis(80)
        ));
        let end = work(&mut waiting, &a, end, 3_600_000);
        assert!(must_wait(&waiting, &a, &read(), end + REST_MAX / 2));
        assert!(
            !must_wait(&waiting, &a, &read(), end + REST_MAX),
            "at most so long"
        );
        work(&mut waiting, &b, end + REST_MAX, 1);
        assert_eq!(waiting.rested.len(), 2, "of who has rested nothing is kept");
    }

    #[test]
    fn an_agent_rests_for_its_workloads_whatever_ids_and_connections_it_uses() {
        let (mut waiting, mut now) = (WaitingRequests::default(), SystemClock.now());
        for number in 0..10 {
            now = work(
                &mut waiting,
                &requester(number, Some(&format!("w{number}"))),
                now,
                5,
            );
        }
        assert!(must_wait(
            &waiting,
            &requester(99, Some("other")),
            &read(),
            now
        ));
        assert!(must_wait(
            &waiting,
            &requester(99, Some("w0")),
            &read(),
            now
        ));
        let other = Requester {
            workload: Some("w0".into()),
            ..Requester::of_agent(&"B".into())
        };
        assert!(!must_wait(&waiting, &other, &read(), now));
    }

    #[test]
    fn all_connections_from_one_address_rest_together_but_its_modest_ones_come_before_greedy_ones()
    {
        let (mut waiting, mut now) = (WaitingRequests::default(), SystemClock.now());
        let of = commander;
        for peer in 0..10 {
            now = work(&mut waiting, &of(peer, "a"), now, 5);
        }
        now = work(&mut waiting, &of(10, "a"), now, 20);
        assert!(
            must_wait(&waiting, &of(99, "a"), &read(), now)
                && !must_wait(&waiting, &of(99, "b"), &read(), now)
        );
        for (peer, source, id) in [
            (10, "a", "greedy"),
            (99, "a", "modest"),
            (100, "b", "other"),
        ] {
            assert!(add(&mut waiting, &of(peer, source), id, read()));
        }
        assert_eq!(
            ids(&mut waiting, now, |_| true),
            ["other", "modest", "greedy"]
        );
    }

    #[test]
    fn whoever_rests_is_served_when_nobody_else_waits() {
        let (mut waiting, begin) = (WaitingRequests::default(), SystemClock.now());
        let (greedy, own, modest) = (
            requester(1, Some("greedy")),
            requester(1, Some("own")),
            requester(2, None),
        );
        let now = work(&mut waiting, &greedy, begin, 100);
        for (requester, id) in [
            (&greedy, "g1"),
            (&greedy, "g2"),
            (&own, "o1"),
            (&modest, "m1"),
            (&modest, "m2"),
        ] {
            assert!(add(&mut waiting, requester, id, update(0)));
        }
        assert_eq!(
            ids(&mut waiting, now, |_| true),
            ["m1", "m2", "o1", "g1", "g2"]
        );
    }

    #[test]
    fn others_wait_for_one_request_at_most_however_many_always_keep_the_server_busy() {
        let (mut waiting, mut now) = (WaitingRequests::default(), SystemClock.now());
        let greedy: Vec<Requester> = (1..=24).map(|peer| requester(peer, None)).collect();
        greedy
            .iter()
            .for_each(|one| assert!(add(&mut waiting, one, "first", update(0))));
        for round in 0..1_000 {
            let modest = requester(1_000 + round, None);
            for content in [read(), update(0)] {
                assert!(!must_wait(&waiting, &modest, &content, now), "{round}");
            }
            let (next, ..) = waiting
                .next(now, |_| true)
                .expect("all of them wait again and again");
            now = work(&mut waiting, &next, now, 1_000);
            assert!(add(&mut waiting, &next, "again", update(0)));
            // Whoever has to wait for room in its outbox is next as soon as it has that, after the
            // first round.
            assert!(add(&mut waiting, &modest, "modest", read()));
            let others = |waiting: &mut WaitingRequests| waiting.next(now, |peer| peer.0 >= 1_000);
            assert_eq!(
                others(&mut waiting).map(|(requester, ..)| requester),
                Some(modest)
            );
        }
    }

    #[test]
    fn an_update_larger_than_all_that_may_wait_waits_alone() {
        let mut waiting = WaitingRequests::default();
        assert!(add(
            &mut waiting,
            &requester(1, None),
            "x",
            update(WAITING_BYTES)
        ));
        assert!(!add(&mut waiting, &requester(1, None), "x", update(0)));
        assert!(
            add(&mut waiting, &requester(2, None), "y", read()),
            "who asks for one small thing finds room"
        );
    }

    #[test]
    fn workloads_and_streams_have_a_share_of_what_may_wait_and_whoever_asks_for_one_thing_finds_room()
     {
        let mut waiting = WaitingRequests::default();
        let (greedy, modest) = (requester(1, Some("greedy")), requester(1, Some("modest")));
        let fits = (0..WAITING)
            .filter(|_| add(&mut waiting, &greedy, "greedy", read()))
            .count();
        assert_eq!(fits, WAITING_OF_WORKLOAD);
        assert!(add(&mut waiting, &modest, "modest", read()));
        let mut waiting = WaitingRequests::default();
        for workload in 0..WAITING {
            add(
                &mut waiting,
                &requester(1, Some(&workload.to_string())),
                "x",
                read(),
            );
        }
        assert_eq!(
            waiting.queue.len(),
            WAITING_OF_STREAM,
            "workloads of one agent"
        );
        for _ in 0..WAITING {
            add(&mut waiting, &requester(2, None), "x", read());
        }
        assert_eq!(waiting.queue.len(), 2 * WAITING_OF_STREAM, "a commander");
        assert!(
            !add(&mut waiting, &requester(99, Some("w")), "x", read()),
            "another connection of the same agent"
        );
        for peer in 3..10 {
            (0..WAITING).for_each(|_| _ = add(&mut waiting, &requester(peer, None), "x", read()));
        }
        assert!(waiting.queue.len() < WAITING, "{}", waiting.queue.len());
        assert!(add(&mut waiting, &requester(10, None), "first", read()));
        assert!(!add(&mut waiting, &requester(10, None), "second", read()));
        let mut waiting = WaitingRequests::default();
        let large = || update(WAITING_BYTES / 8);
        for peer in 0..8 {
            add(&mut waiting, &requester(peer, None), "large", large());
        }
        assert!(
            waiting.queue.len() > 4 && !add(&mut waiting, &requester(9, None), "large", large())
        );
        assert!(add(&mut waiting, &requester(9, None), "small", read()));
    }

    #[test]
    fn a_newer_update_does_not_pass_those_that_waited_for_hooks() {
        let (mut waiting, now) = (WaitingRequests::default(), SystemClock.now());
        let (a, b) = (requester(1, None), requester(2, None));
        waiting.with_hooks = Some(WithHooks {
            requester: requester(3, None),
            key: RequestKey {
                peer: PeerId(3),
                id: "h".to_owned(),
            },
            content: update(0),
            prepared: PreparedUpdate::default(),
            commits: 0,
        });
        for (requester, id, content) in [
            (&a, "read", read()),
            (&a, "first", update(0)),
            (&b, "second", update(0)),
            (&b, "later", read()),
        ] {
            assert!(add(&mut waiting, requester, id, content));
        }
        assert_eq!(ids(&mut waiting, now, |_| true), ["read"]);
        waiting.with_hooks = None;
        let other = requester(4, None);
        assert!(waiting.must_wait(&other, &update(0), now, true, || true));
        assert!(!waiting.must_wait(&other, &read(), now, true, || true));
        assert!(
            !must_wait(&waiting, &other, &update(0), now),
            "there are no hooks"
        );
        assert_eq!(
            ids(&mut waiting, now, |_| true),
            ["first", "second", "later"]
        );
    }

    #[test]
    fn who_has_room_is_served_in_its_order_while_others_wait() {
        let (mut waiting, now) = (WaitingRequests::default(), SystemClock.now());
        let (a, b, c) = (
            requester(1, Some("a")),
            requester(1, Some("b")),
            requester(2, None),
        );
        for (requester, id) in [(&a, "a1"), (&c, "c1"), (&a, "a2"), (&b, "b1"), (&c, "c2")] {
            assert!(
                waiting.is_empty()
                    || !must_wait(&waiting, requester, &read(), now)
                    || id.ends_with('2')
            );
            assert!(waiting.must_wait(requester, &read(), now, false, || false));
            assert!(add(&mut waiting, requester, id, read()));
        }
        assert_eq!(
            ids(&mut waiting, now, |peer| peer == PeerId(2)),
            ["c1", "c2"]
        );
        assert!(add(
            &mut waiting,
            &b,
            "cancel",
            RequestContent::EventsCancel
        ));
        assert_eq!(
            ids(&mut waiting, now, |_| false),
            [""; 0],
            "a cancel comes after what was asked before it"
        );
        assert_eq!(
            ids(&mut waiting, now, |_| true),
            ["a1", "a2", "b1", "cancel"]
        );
        assert!(
            !waiting.must_wait(&a, &RequestContent::EventsCancel, now, false, || false),
            "its answer is small"
        );
    }
}
