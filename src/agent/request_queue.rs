//! Requests of workloads that wait for the connection to the server, a share for each workload, cancellations beside;
//! and those that were sent and have no answer yet, which the workload gets from us when the connection is lost.
//!
//! Thread: none, a plain value; `control` puts and `uplink` takes, see [`super::uplink_outbox`].

use crate::limits::{CONTROL_CANCELS, CONTROL_REQUESTS, CONTROL_REQUESTS_BYTES, CONTROL_UNANSWERED};
use crate::model::messages::{Request, RequestContent, Response, ResponseContent};
use crate::model::names::Name;
use std::collections::{BTreeMap, VecDeque};

/// What a workload is told when the server went without an answer. Nobody knows whether the request reached it.
const LOST: &str = "The connection to the server was lost before it answered. What was asked for may have been done or \
                    not; ask again";

/// What waits.
#[derive(Debug, Default)]
pub struct RequestQueue {
    requests: VecDeque<Waiting>,
    shares: BTreeMap<Name, Share>,
    cancels: VecDeque<Request>,
    unanswered: BTreeMap<Name, VecDeque<Unanswered>>,
}

/// A request that was sent.
#[derive(Debug)]
struct Unanswered {
    id: String,
    /// What the workload gets if the server says nothing more.
    otherwise: ResponseContent,
}

#[derive(Debug)]
struct Waiting {
    workload: Name,
    request: Request,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Share {
    count: usize,
    bytes: usize,
}

impl RequestQueue {
    /// Puts a request of `workload` behind those that wait.
    ///
    /// # Errors
    /// The request, when the share of this workload is used up.
    pub fn put(&mut self, workload: &Name, request: Request) -> Result<(), Request> {
        let bytes = request.id.len() + request.content.approximate_bytes();
        let share = self.shares.entry(workload.clone()).or_default();
        let too_large = share.count > 0 && share.bytes + bytes > CONTROL_REQUESTS_BYTES;
        if share.count >= CONTROL_REQUESTS || too_large {
            return Err(request);
        }
        share.count += 1;
        share.bytes += bytes;
        self.requests.push_back(Waiting { workload: workload.clone(), request, bytes });
        Ok(())
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

    /// A request is being sent. Of each workload the newest are remembered: nobody has that many at a time.
    pub fn sent(&mut self, workload: &Name, Request { id, content }: &Request) {
        let otherwise = match content {
            // The server ended it with the connection.
            RequestContent::LogsCancel => ResponseContent::LogsCancelAccepted,
            RequestContent::EventsCancel => ResponseContent::EventsCancelAccepted,
            _ => ResponseContent::Error(LOST.to_owned()),
        };
        let unanswered = self.unanswered.entry(workload.clone()).or_default();
        if unanswered.len() >= CONTROL_UNANSWERED {
            unanswered.pop_front();
        }
        unanswered.push_back(Unanswered { id: id.clone(), otherwise });
    }

    /// The server has answered the request with this id, or says more about it.
    pub fn answered(&mut self, workload: &str, id: &str) {
        let Some(unanswered) = self.unanswered.get_mut(workload) else { return };
        if let Some(index) = unanswered.iter().position(|sent| own_id(&sent.id) == id) {
            unanswered.remove(index);
        }
        if unanswered.is_empty() {
            self.unanswered.remove(workload);
        }
    }

    /// Nobody is interested in the answers for this workload any more.
    pub fn forget(&mut self, workload: &str) {
        self.unanswered.remove(workload);
    }

    /// The connection is lost: answers to all that was sent, with the ids that the server would use.
    pub fn lost(&mut self) -> Vec<Response> {
        let unanswered = std::mem::take(&mut self.unanswered).into_values().flatten();
        unanswered.map(|Unanswered { id, otherwise }| Response { id, content: otherwise }).collect()
    }

    /// The next request for the server.
    pub fn pop(&mut self) -> Option<Request> {
        if let Some(cancel) = self.cancels.pop_front() {
            return Some(cancel);
        }
        let Waiting { workload, request, bytes } = self.requests.pop_front()?;
        if let Some(share) = self.shares.get_mut(&workload) {
            share.count -= 1;
            share.bytes -= bytes;
            if share.count == 0 {
                self.shares.remove(&workload);
            }
        }
        self.sent(&workload, &request);
        Some(request)
    }
}

/// The id as the workload wrote it.
fn own_id(id: &str) -> &str {
    id.split_once('@').map_or(id, |(_, own)| own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::ReadState;

    fn request(id: &str) -> Request {
        Request { id: id.to_owned(), content: RequestContent::CompleteState(ReadState::default()) }
    }

    // [utest->swdd~agent-uses-bounded-channels~1]
    #[test]
    fn a_workload_that_asks_too_much_takes_no_room_from_others() {
        let mut queue = RequestQueue::default();
        let (greedy, modest): (Name, Name) = ("greedy".into(), "modest".into());
        for number in 0..CONTROL_REQUESTS {
            queue.put(&greedy, request(&number.to_string())).unwrap();
        }
        assert_eq!(queue.put(&greedy, request("more")), Err(request("more")));
        queue.put(&modest, request("modest")).unwrap();
        assert_eq!(queue.pop(), Some(request("0")));
        queue.put(&greedy, request("more")).unwrap();
        let rest: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|request| request.id).collect();
        assert_eq!(rest.len(), CONTROL_REQUESTS + 1);
        assert_eq!(&rest[rest.len() - 2..], ["modest", "more"]);
        assert!(queue.shares.is_empty());
    }

    #[test]
    fn bytes_are_limited_but_one_large_request_passes() {
        let mut queue = RequestQueue::default();
        let large = request(&"x".repeat(CONTROL_REQUESTS_BYTES + 1));
        queue.put(&"w".into(), large.clone()).unwrap();
        assert_eq!(queue.put(&"w".into(), request("y")), Err(request("y")));
        assert_eq!(queue.pop(), Some(large));
        queue.put(&"w".into(), request("y")).unwrap();
    }

    #[test]
    fn a_cancellation_overtakes_and_is_there_once() {
        let mut queue = RequestQueue::default();
        queue.put(&"w".into(), request("a")).unwrap();
        let cancel = |id: &str| Request { id: id.to_owned(), content: RequestContent::LogsCancel };
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
        queue.put(&one, request("one@a")).unwrap();
        queue.put(&one, request("one@b@c")).unwrap();
        queue.put(&one, cancel("one@l", RequestContent::LogsCancel)).unwrap();
        queue.put(&two, cancel("two@e", RequestContent::EventsCancel)).unwrap();
        queue.put(&two, request("two@waits")).unwrap();
        queue.put_cancel(cancel("one@ours", RequestContent::LogsCancel));
        for _ in 0..5 {
            queue.pop().unwrap();
        }
        queue.answered("one", "a");
        queue.answered("one", "unknown");
        queue.answered("other", "b@c");
        let response = |id: &str, content| Response { id: id.to_owned(), content };
        let expected = [
            response("one@b@c", ResponseContent::Error(LOST.to_owned())),
            response("one@l", ResponseContent::LogsCancelAccepted),
            response("two@e", ResponseContent::EventsCancelAccepted),
        ];
        assert_eq!(queue.lost(), expected);
        assert_eq!(queue.lost(), []);
        assert_eq!(queue.pop(), Some(request("two@waits")), "what was not sent is sent later");
    }

    #[test]
    fn a_server_that_answers_nothing_costs_bounded_room() {
        let mut queue = RequestQueue::default();
        for number in 0..3 * CONTROL_UNANSWERED {
            queue.sent(&"w".into(), &request(&format!("w@{number}")));
        }
        let lost = queue.lost();
        assert_eq!((lost.len(), &*lost[0].id), (CONTROL_UNANSWERED, &*format!("w@{}", 2 * CONTROL_UNANSWERED)));
        queue.sent(&"w".into(), &request("w@a"));
        queue.forget("w");
        assert_eq!(queue.lost(), []);
    }
}
