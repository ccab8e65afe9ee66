//! Requests of workloads on their way to the server, a share for each workload: those that wait for the connection, and
//! those that were sent and have no answer yet, which the workload gets from us when the connection is lost. Whoever has
//! used up its share is not read until it gets an answer. Our own cancellations are beside all that.
//!
//! Thread: none, a plain value; `control` puts and `uplink` takes, see [`super::uplink_outbox`].

use crate::limits::{
    CONTROL_ANSWER_MAX, CONTROL_CANCEL_REQUESTS, CONTROL_CANCELS, CONTROL_QUEUED_BYTES, CONTROL_REQUESTS,
    CONTROL_REQUESTS_BYTES, CONTROL_SMALL_REQUEST, CONTROL_UNANSWERED,
};
use crate::model::memory_size::MemorySize;
use crate::model::messages::{Request, RequestContent, Response, ResponseContent};
use crate::model::names::Name;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The error for a workload when the server is gone without a response. The request may have reached it.
const LOST: &str = "The connection to the server was lost before it answered. What was asked for may have been done or \
                    not; ask again";

/// What waits, and what is not answered.
#[derive(Debug, Default)]
pub struct RequestQueue {
    requests: VecDeque<(Name, Request)>,
    /// What the large ones of them take, in bytes.
    large_bytes: usize,
    shares: BTreeMap<Name, Share>,
    cancels: VecDeque<Request>,
}

/// What is under way for one workload.
#[derive(Debug, Default)]
struct Share {
    /// Requests that are no cancellations.
    requests: usize,
    /// What those take, in bytes.
    bytes: usize,
    cancels: usize,
    /// Those of them that were sent, in that order.
    sent: VecDeque<Unanswered>,
}

/// A request that was sent.
#[derive(Debug)]
struct Unanswered {
    id: String,
    bytes: usize,
    /// It is overdue, and another one was sent in its place.
    given_up: bool,
    /// What the workload gets without a response.
    otherwise: ResponseContent,
}

impl Unanswered {
    fn new(Request { id, content }: &Request, bytes: usize) -> Self {
        let otherwise = match content {
            // The server ended it with the connection.
            RequestContent::LogsCancel => ResponseContent::LogsCancelAccepted,
            RequestContent::EventsCancel => ResponseContent::EventsCancelAccepted,
            _ => ResponseContent::Error(LOST.to_owned()),
        };
        Self { id: id.clone(), bytes, given_up: false, otherwise }
    }

    fn is_cancel(&self) -> bool {
        !matches!(self.otherwise, ResponseContent::Error(_))
    }

    /// Whether `content` is the answer, when the ids are the same. What follows an answer, such as an event, is not.
    fn is_answered_by(&self, content: &ResponseContent) -> bool {
        match content {
            ResponseContent::Error(_) => true,
            ResponseContent::LogsCancelAccepted | ResponseContent::EventsCancelAccepted => self.otherwise == *content,
            ResponseContent::CompleteState { altered, .. } => altered.is_none() && !self.is_cancel(),
            ResponseContent::LogEntries(_) | ResponseContent::LogsStop(_) => false,
            ResponseContent::UpdateStateSuccess { .. } | ResponseContent::LogsAccepted(_) => !self.is_cancel(),
        }
    }
}

impl Share {
    fn add(&mut self, is_cancel: bool, bytes: usize) {
        if is_cancel {
            self.cancels += 1;
        } else {
            self.requests += 1;
            self.bytes += bytes;
        }
    }

    fn sent(&mut self, request: Unanswered) {
        if self.sent.len() >= CONTROL_UNANSWERED {
            self.remove(0); // A server that does not answer costs bounded room.
        }
        self.sent.push_back(request);
    }

    /// Gives up the oldest one of this kind that was sent.
    fn give_up_oldest(&mut self, is_cancel: bool) {
        let mut sent = self.sent.iter_mut();
        if let Some(oldest) = sent.find(|sent| sent.is_cancel() == is_cancel && !sent.given_up) {
            oldest.given_up = true;
            let bytes = oldest.bytes;
            self.give_back(is_cancel, bytes);
        }
    }

    fn give_back(&mut self, is_cancel: bool, bytes: usize) {
        if is_cancel {
            self.cancels -= 1;
        } else {
            self.requests -= 1;
            self.bytes -= bytes;
        }
    }

    fn remove(&mut self, index: usize) -> Option<Unanswered> {
        let request = self.sent.remove(index)?;
        if !request.given_up {
            self.give_back(request.is_cancel(), request.bytes);
        }
        Some(request)
    }

    fn is_empty(&self) -> bool {
        self.requests == 0 && self.cancels == 0 && self.sent.is_empty()
    }
}

impl RequestQueue {
    /// Whether the share of `workload` has room for a request that was held back for `held`. Cancellations have a share of
    /// their own, so that a workload that waits for answers can still end what goes on. A request that is overdue finds
    /// room in any case: some server may not respond to all requests.
    #[must_use]
    pub fn has_room_for(&self, workload: &Name, request: &Request, held: Duration) -> bool {
        let large = large_bytes(request.memory_bytes());
        if large > 0 && self.large_bytes > 0 && self.large_bytes + large > CONTROL_QUEUED_BYTES {
            return false; // The connection takes them one after the other, and none is lost meanwhile.
        }
        let Some(share) = self.shares.get(workload).filter(|_| held < CONTROL_ANSWER_MAX) else { return true };
        if request.content.is_cancel() {
            return share.cancels < CONTROL_CANCEL_REQUESTS;
        }
        let fits = share.bytes + request.memory_bytes() <= CONTROL_REQUESTS_BYTES;
        share.requests == 0 || share.requests < CONTROL_REQUESTS && fits
    }

    /// Puts a request of `workload` behind those that wait; [`Self::has_room_for`] has agreed. One that is overdue takes
    /// the place of the oldest one that was sent, so that a response that never comes does not use up the share for ever.
    pub fn put(&mut self, workload: &Name, request: Request) {
        if !self.has_room_for(workload, &request, Duration::ZERO)
            && let Some(share) = self.shares.get_mut(workload)
        {
            share.give_up_oldest(request.content.is_cancel());
        }
        let bytes = request.memory_bytes();
        self.large_bytes += large_bytes(bytes);
        self.shares.entry(workload.clone()).or_default().add(request.content.is_cancel(), bytes);
        self.requests.push_back((workload.clone(), request));
    }

    /// Puts a cancellation, which no data can delay. It comes after answers only, so what it cancels is not here.
    pub fn put_cancel(&mut self, request: Request) {
        if self.cancels.contains(&request) {
            return;
        }
        if self.cancels.len() >= CONTROL_CANCELS {
            self.cancels.pop_front(); // The server ended what is that old with the connection.
        }
        self.cancels.push_back(request);
    }

    /// Whether no request waits, so that another one may be sent at once.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.cancels.is_empty()
    }

    /// The server has sent `content` for the request with this id.
    pub fn answered(&mut self, workload: &str, id: &str, content: &ResponseContent) {
        let Some(share) = self.shares.get_mut(workload) else { return };
        if let Some(index) = share.sent.iter().position(|sent| own_id(&sent.id) == id && sent.is_answered_by(content)) {
            share.remove(index);
        }
        if share.is_empty() {
            self.shares.remove(workload);
        }
    }

    /// No one waits for the responses to this workload any more.
    pub fn forget(&mut self, workload: &str) {
        if let Some(share) = self.shares.get_mut(workload) {
            while share.remove(0).is_some() {}
        }
        self.shares.retain(|_, share| !share.is_empty());
    }

    /// The connection is lost: answers to all that was sent, with the ids that the server would use.
    pub fn lost(&mut self) -> Vec<Response> {
        let mut lost = Vec::new();
        for share in self.shares.values_mut() {
            while let Some(Unanswered { id, otherwise, .. }) = share.remove(0) {
                lost.push(Response { id, content: otherwise });
            }
        }
        self.shares.retain(|_, share| !share.is_empty());
        lost
    }

    /// The next request for the server.
    pub fn pop(&mut self) -> Option<Request> {
        if let Some(cancel) = self.cancels.pop_front() {
            return Some(cancel);
        }
        let (workload, request) = self.requests.pop_front()?;
        let bytes = request.memory_bytes();
        self.large_bytes -= large_bytes(bytes);
        self.shares.entry(workload).or_default().sent(Unanswered::new(&request, bytes));
        Some(request)
    }
}

/// What a request of `bytes` counts for the room that all share; small ones are bounded by their number.
fn large_bytes(bytes: usize) -> usize {
    if bytes > CONTROL_SMALL_REQUEST { bytes } else { 0 }
}

/// The id as the workload wrote it.
fn own_id(id: &str) -> &str {
    id.split_once('@').map_or(id, |(_, own)| own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{AlteredFields, ReadState};
    use crate::model::names::InstanceName;
    use crate::model::node::Node;

    fn request(id: &str) -> Request {
        Request { id: id.to_owned(), content: RequestContent::CompleteState(ReadState::default()) }
    }

    fn cancel(id: &str) -> Request {
        Request { id: id.to_owned(), content: RequestContent::LogsCancel }
    }

    fn error() -> ResponseContent {
        ResponseContent::Error(String::new())
    }

    /// Puts it if there is room for it.
    fn put(queue: &mut RequestQueue, workload: &Name, request: Request) -> bool {
        let has_room = queue.has_room_for(workload, &request, Duration::ZERO);
        if has_room {
            queue.put(workload, request);
        }
        has_room
    }

    // [utest->swdd~agent-uses-bounded-channels~1]
    #[test]
    fn a_workload_has_a_handful_of_requests_under_way_until_they_are_answered_and_takes_no_room_from_others() {
        let mut queue = RequestQueue::default();
        let (greedy, modest): (Name, Name) = ("greedy".into(), "modest".into());
        for number in 0..CONTROL_REQUESTS {
            assert!(put(&mut queue, &greedy, request(&format!("greedy@{number}"))));
        }
        assert!(!put(&mut queue, &greedy, request("greedy@more")));
        assert!(put(&mut queue, &modest, request("modest@a")));
        assert_eq!(queue.pop(), Some(request("greedy@0")));
        assert!(!put(&mut queue, &greedy, request("greedy@more")), "it was sent, which is no answer");
        queue.answered("modest", "0", &error());
        assert!(!put(&mut queue, &greedy, request("greedy@more")));
        queue.answered("greedy", "0", &error());
        assert!(put(&mut queue, &greedy, request("greedy@more")));
        let rest: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|request| request.id).collect();
        assert_eq!(&rest[rest.len() - 2..], ["modest@a", "greedy@more"]);
        for id in ["1", "2", "3", "more"] {
            queue.answered("greedy", id, &error());
        }
        queue.answered("modest", "a", &error());
        assert!(queue.shares.is_empty());
    }

    #[test]
    fn a_workload_that_waits_for_answers_can_still_cancel_what_goes_on() {
        let (mut queue, workload) = (RequestQueue::default(), Name::from("w"));
        while put(&mut queue, &workload, request("w@a")) {}
        for number in 0..CONTROL_CANCEL_REQUESTS {
            assert!(put(&mut queue, &workload, cancel(&format!("w@{number}"))));
        }
        assert!(!put(&mut queue, &workload, cancel("w@more")), "but not without end");
        let order: Vec<bool> = std::iter::from_fn(|| queue.pop()).map(|request| request.content.is_cancel()).collect();
        assert!(order.is_sorted() && order.len() == CONTROL_REQUESTS + CONTROL_CANCEL_REQUESTS, "in order");
        queue.answered("w", "7", &ResponseContent::LogsCancelAccepted);
        assert!(put(&mut queue, &workload, cancel("w@more")));
        assert!(!put(&mut queue, &workload, request("w@b")));
    }

    #[test]
    fn a_request_that_is_overdue_is_sent_although_the_server_does_not_answer() {
        let (mut queue, workload) = (RequestQueue::default(), Name::from("w"));
        while put(&mut queue, &workload, request("w@a")) {}
        let held = CONTROL_ANSWER_MAX - Duration::from_nanos(1);
        assert!(!queue.has_room_for(&workload, &request("w@b"), held));
        assert!(queue.has_room_for(&workload, &request("w@b"), CONTROL_ANSWER_MAX));
        while queue.pop().is_some() {}
        for number in 0..CONTROL_REQUESTS {
            queue.put(&workload, request(&format!("w@overdue {number}")));
        }
        while queue.pop().is_some() {}
        queue.answered("w", "overdue 0", &error());
        assert!(put(&mut queue, &workload, request("w@c")), "what was never answered is given up");
    }

    #[test]
    fn only_the_answer_ends_a_request_and_not_what_the_same_id_says_besides() {
        let (mut queue, workload) = (RequestQueue::default(), Name::from("w"));
        let state = |altered| ResponseContent::CompleteState { state: Node::empty(), altered };
        let other = |content| Request { id: "w@a".to_owned(), content };
        let instance = InstanceName::with_id("w", "1", "A");
        for (asked, beside, answer) in [
            (request("w@a"), state(Some(AlteredFields::default())), state(None)),
            (request("w@a"), ResponseContent::LogEntries(vec![]), ResponseContent::LogsAccepted(vec![])),
            (request("w@a"), ResponseContent::LogsStop(instance), error()),
            (request("w@a"), ResponseContent::LogsCancelAccepted, state(None)),
            (other(RequestContent::LogsCancel), state(None), ResponseContent::LogsCancelAccepted),
            (other(RequestContent::EventsCancel), ResponseContent::LogsCancelAccepted, error()),
        ] {
            assert!(put(&mut queue, &workload, asked));
            queue.pop().unwrap();
            queue.answered("w", "a", &beside);
            assert!(!queue.shares.is_empty(), "{beside:?}");
            queue.answered("w", "a", &answer);
            assert!(queue.shares.is_empty(), "{answer:?}");
        }
    }

    #[test]
    fn bytes_are_limited_until_the_answer_comes_but_one_large_request_passes() {
        let (mut queue, workload) = (RequestQueue::default(), Name::from("w"));
        let large = request(&"x".repeat(CONTROL_REQUESTS_BYTES + 1));
        assert!(put(&mut queue, &workload, large.clone()));
        assert!(!put(&mut queue, &workload, request("y")));
        assert_eq!(queue.pop(), Some(large.clone()));
        assert!(!put(&mut queue, &workload, request("y")), "the server has it now");
        queue.answered("w", &large.id, &error());
        assert!(put(&mut queue, &workload, request("y")));
    }

    #[test]
    fn large_requests_of_all_workloads_share_room_until_they_are_sent_and_small_ones_pass() {
        let mut queue = RequestQueue::default();
        let large = |id: &str| request(&format!("{id}{}", "x".repeat(CONTROL_QUEUED_BYTES / 2)));
        assert!(put(&mut queue, &"a".into(), large("a")));
        assert!(!put(&mut queue, &"b".into(), large("b")));
        let late = queue.has_room_for(&"b".into(), &large("b"), CONTROL_ANSWER_MAX);
        assert!(!late, "it waits for the connection, not for an answer");
        assert!(put(&mut queue, &"b".into(), request("small")));
        queue.pop().unwrap();
        assert!(put(&mut queue, &"b".into(), large("b")), "an answer is not waited for");
        while queue.pop().is_some() {}
        assert_eq!(queue.large_bytes, 0);
    }

    #[test]
    fn a_cancellation_overtakes_and_is_there_once() {
        let mut queue = RequestQueue::default();
        queue.put(&"w".into(), request("a"));
        for _ in 0..3 {
            queue.put_cancel(cancel("b"));
        }
        let all: Vec<Request> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, [cancel("b"), request("a")]);
        for number in 0..2 * CONTROL_CANCELS {
            queue.put_cancel(cancel(&number.to_string()));
        }
        assert_eq!(queue.cancels.len(), CONTROL_CANCELS);
    }

    #[test]
    fn what_the_server_left_unanswered_is_answered_once_by_its_kind() {
        let mut queue = RequestQueue::default();
        let (one, two): (Name, Name) = ("one".into(), "two".into());
        let cancel = |id: &str, content| Request { id: id.to_owned(), content };
        queue.put(&one, request("one@a"));
        queue.put(&one, request("one@b@c"));
        queue.put(&one, cancel("one@l", RequestContent::LogsCancel));
        queue.put(&two, cancel("two@e", RequestContent::EventsCancel));
        queue.put(&two, request("two@waits"));
        queue.put_cancel(cancel("one@ours", RequestContent::LogsCancel));
        for _ in 0..5 {
            queue.pop().unwrap();
        }
        queue.answered("one", "a", &error());
        queue.answered("one", "unknown", &error());
        queue.answered("other", "b@c", &error());
        let response = |id: &str, content| Response { id: id.to_owned(), content };
        let expected = [
            response("one@b@c", ResponseContent::Error(LOST.to_owned())),
            response("one@l", ResponseContent::LogsCancelAccepted),
            response("two@e", ResponseContent::EventsCancelAccepted),
        ];
        assert_eq!(queue.lost(), expected);
        assert_eq!(queue.lost(), []);
        assert_eq!(queue.pop(), Some(request("two@waits")), "what was not sent is sent later");
        queue.answered("two", "waits", &error());
        assert!(queue.shares.is_empty());
    }

    #[test]
    fn a_server_that_answers_nothing_costs_bounded_room() {
        let mut queue = RequestQueue::default();
        let send = |queue: &mut RequestQueue, id: &str| {
            queue.put(&"w".into(), request(id));
            queue.pop().unwrap();
        };
        for number in 0..3 * CONTROL_UNANSWERED {
            send(&mut queue, &format!("w@{number}"));
        }
        let lost = queue.lost();
        assert_eq!((lost.len(), &*lost[0].id), (CONTROL_UNANSWERED, &*format!("w@{}", 2 * CONTROL_UNANSWERED)));
        send(&mut queue, "w@a");
        queue.forget("w");
        assert_eq!(queue.lost(), []);
    }
}
