//! Requests of workloads that wait for the connection to the server: a share for each workload, cancellations beside.
//!
//! Thread: none, a plain value; `control` puts and `uplink` takes, see [`super::uplink_outbox`].

use crate::limits::{CONTROL_CANCELS, CONTROL_REQUESTS, CONTROL_REQUESTS_BYTES};
use crate::model::messages::Request;
use crate::model::names::Name;
use std::collections::{BTreeMap, VecDeque};

/// What waits.
#[derive(Debug, Default)]
pub struct RequestQueue {
    requests: VecDeque<Waiting>,
    shares: BTreeMap<Name, Share>,
    cancels: VecDeque<Request>,
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
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{ReadState, RequestContent};

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
}
