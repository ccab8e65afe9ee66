//! Messages that wait for one workload, as the bytes that it will read: bounded, never blocking who puts them
//! (spec/control-interface.md CFIX-2).
//!
//! Thread: none, a plain value; `rx:server` and `control` put, `control` takes, see [`super::ControlHub`].

use crate::limits::{CONTROL_CANCELLED, CONTROL_OUTBOX, CONTROL_OUTBOX_BYTES, CONTROL_UNREAD_BYTES};
use crate::model::messages::{Request, RequestContent, Response, ResponseContent, ToWorkload};
use crate::wire::delimited::{Undecodable, frame};
use std::collections::{BTreeSet, VecDeque};

/// What a workload is told when it did not read its events.
const EVENTS_LOST: &str =
    "Events were not read in time and are lost; the subscription is cancelled, subscribe again to get the state";

/// What lasts longer than one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    Logs,
    Events,
}

impl Lasting {
    fn of(content: &ResponseContent) -> Option<Self> {
        match content {
            ResponseContent::LogEntries(_) => Some(Self::Logs),
            ResponseContent::CompleteState { altered: Some(_), .. } => Some(Self::Events),
            _ => None,
        }
    }

    fn cancel(self) -> RequestContent {
        match self {
            Self::Logs => RequestContent::LogsCancel,
            Self::Events => RequestContent::EventsCancel,
        }
    }
}

/// What ends the request that `response` belongs to, if more of it would come.
#[must_use]
pub fn cancellation(response: &Response) -> Option<Request> {
    Lasting::of(&response.content).map(|lasting| Request { id: response.id.clone(), content: lasting.cancel() })
}

/// An answer as it is written, and what has to be known about it.
#[derive(Debug)]
pub struct Frame {
    id: String,
    lasting: Option<Lasting>,
    /// What was cancelled, if this says so.
    ended: Option<Lasting>,
    bytes: Vec<u8>,
}

impl Frame {
    /// Encodes an answer.
    ///
    /// # Errors
    /// It is too large.
    pub fn new(response: Response) -> Result<Self, Undecodable> {
        let id = response.id.clone();
        let lasting = Lasting::of(&response.content);
        let ended = match &response.content {
            ResponseContent::LogsCancelAccepted => Some(Lasting::Logs),
            ResponseContent::EventsCancelAccepted => Some(Lasting::Events),
            _ => None,
        };
        Ok(Self { id, lasting, ended, bytes: frame(ToWorkload::Response(response))? })
    }

    /// What it takes while it waits, in bytes.
    fn weight(&self) -> usize {
        self.id.len() + self.bytes.len()
    }

    fn answer_weight(&self) -> usize {
        if self.lasting.is_none() { self.weight() } else { 0 }
    }
}

/// What waits for one workload.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Answers a hello or ends the session, so it comes before all else.
    first: Option<Vec<u8>>,
    waiting: VecDeque<Frame>,
    bytes: usize,
    /// How much of that is answers, other than log lines and events.
    answer_bytes: usize,
    /// Cancelled because the workload did not read. What still comes of them is dropped.
    cancelled: BTreeSet<(Lasting, String)>,
}

impl Outbox {
    /// Puts an answer. When there is no room, log lines and events are dropped with the request that they belong to,
    /// and for other answers the oldest ones make room. Answers which requests are to be cancelled at the server.
    pub fn put(&mut self, frame: Frame) -> Vec<Request> {
        if let Some(ended) = frame.ended {
            self.forget_cancelled(ended, &frame.id);
        }
        if frame.lasting.is_some_and(|lasting| self.cancelled.contains(&(lasting, frame.id.clone()))) {
            return Vec::new();
        }
        if self.has_room(frame.weight()) {
            self.push(frame);
            return Vec::new();
        }
        let mut cancels = Vec::new();
        if let Some(lasting) = frame.lasting {
            self.cancel(lasting, frame.id, &mut cancels);
            return cancels;
        }
        while !self.has_room(frame.weight())
            && let Some(oldest) = self.pop_waiting()
        {
            if let Some(lasting) = oldest.lasting {
                self.cancel(lasting, oldest.id, &mut cancels);
            }
        }
        self.push(frame);
        cancels
    }

    /// Puts what comes before everything else. After the end of a session nothing else comes.
    pub fn put_first(&mut self, message: ToWorkload) {
        if matches!(message, ToWorkload::Closed { .. }) {
            self.clear();
        }
        self.first = frame(message).ok(); // These are short.
    }

    /// The bytes of the next message. Answers come only when the workload has said hello.
    pub fn pop(&mut self, greeted: bool) -> Option<Vec<u8>> {
        let first = self.first.take();
        first.or_else(|| if greeted { self.pop_waiting().map(|frame| frame.bytes) } else { None })
    }

    /// Whether [`Self::pop`] would answer something.
    #[must_use]
    pub fn has_any(&self, greeted: bool) -> bool {
        self.first.is_some() || greeted && !self.waiting.is_empty()
    }

    /// Whether so many answers wait that the workload should read before it asks for more.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.answer_bytes >= CONTROL_UNREAD_BYTES
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        (self.first, self.waiting) = (None, VecDeque::new());
        (self.bytes, self.answer_bytes) = (0, 0);
    }

    /// The workload asks for something that lasts under this id, maybe anew.
    pub fn asked(&mut self, id: &str, content: &RequestContent) {
        match content {
            RequestContent::Logs(_) => self.forget_cancelled(Lasting::Logs, id),
            RequestContent::CompleteState(read) if read.subscribe => self.forget_cancelled(Lasting::Events, id),
            _ => {}
        }
    }

    fn forget_cancelled(&mut self, lasting: Lasting, id: &str) {
        if !self.cancelled.is_empty() {
            self.cancelled.remove(&(lasting, id.to_owned()));
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        let empty = self.waiting.is_empty();
        empty || self.waiting.len() < CONTROL_OUTBOX && self.bytes + bytes <= CONTROL_OUTBOX_BYTES
    }

    fn push(&mut self, frame: Frame) {
        self.bytes += frame.weight();
        self.answer_bytes += frame.answer_weight();
        self.waiting.push_back(frame);
    }

    fn pop_waiting(&mut self) -> Option<Frame> {
        let frame = self.waiting.pop_front()?;
        self.bytes -= frame.weight();
        self.answer_bytes -= frame.answer_weight();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new(); // Gives the room of a burst back.
        }
        Some(frame)
    }

    fn cancel(&mut self, lasting: Lasting, id: String, cancels: &mut Vec<Request>) {
        if self.cancelled.len() >= CONTROL_CANCELLED {
            self.cancelled.clear(); // At worst something is cancelled twice.
        }
        if !self.cancelled.insert((lasting, id.clone())) {
            return;
        }
        if lasting == Lasting::Events {
            let content = ResponseContent::Error(EVENTS_LOST.to_owned());
            let told = Frame::new(Response { id: id.clone(), content });
            told.into_iter().for_each(|frame| self.push(frame)); // It is short.
        }
        cancels.push(Request { id, content: lasting.cancel() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{AlteredFields, LogEntry, LogsRequest};
    use crate::model::names::InstanceName;
    use crate::model::node::Node;
    use crate::wire::delimited::workload_side::read_message;

    fn lines(id: &str, bytes: usize) -> Response {
        let instance = InstanceName::with_id("w", "1", "A");
        let entry = LogEntry { instance, message: "x".repeat(bytes) };
        Response { id: id.to_owned(), content: ResponseContent::LogEntries(vec![entry]) }
    }

    fn event(id: &str) -> Response {
        let content = ResponseContent::CompleteState { state: Node::empty(), altered: Some(AlteredFields::default()) };
        Response { id: id.to_owned(), content }
    }

    fn answer(id: &str) -> Response {
        Response { id: id.to_owned(), content: ResponseContent::Error("no".to_owned()) }
    }

    fn cancel(id: &str, content: RequestContent) -> Request {
        Request { id: id.to_owned(), content }
    }

    fn put(outbox: &mut Outbox, response: Response) -> Vec<Request> {
        outbox.put(Frame::new(response).unwrap())
    }

    fn read(frame: &[u8]) -> ToWorkload {
        let prefix = frame.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        read_message(&frame[prefix..]).unwrap()
    }

    fn full_of(response: &Response) -> Outbox {
        let mut outbox = Outbox::default();
        for _ in 0..CONTROL_OUTBOX {
            assert_eq!(put(&mut outbox, response.clone()), []);
        }
        outbox
    }

    fn all(outbox: &mut Outbox) -> Vec<Response> {
        std::iter::from_fn(|| outbox.pop(true))
            .map(|frame| match read(&frame) {
                ToWorkload::Response(response) => response,
                other => panic!("an answer is expected, not {other:?}"),
            })
            .collect()
    }

    // [utest->swdd~agent-handles-control-interface-input-pipe-not-read~1]
    #[test]
    fn log_lines_without_room_are_dropped_and_their_request_is_cancelled_once() {
        for bytes in [1, CONTROL_OUTBOX_BYTES / 4] {
            let mut outbox = Outbox::default();
            let mut cancels = Vec::new();
            for _ in 0..2 * CONTROL_OUTBOX {
                cancels.extend(put(&mut outbox, lines("a", bytes)));
            }
            assert_eq!(cancels, [cancel("a", RequestContent::LogsCancel)], "lines of {bytes} bytes");
            assert!(outbox.bytes <= CONTROL_OUTBOX_BYTES && outbox.waiting.len() <= CONTROL_OUTBOX);
            all(&mut outbox);
            put(&mut outbox, lines("a", 1));
            assert_eq!(all(&mut outbox), [], "late lines of what is cancelled");
            put(&mut outbox, lines("b", 1));
            assert_eq!(all(&mut outbox), [lines("b", 1)]);
            let accepted = Response { id: "a".to_owned(), content: ResponseContent::LogsCancelAccepted };
            put(&mut outbox, accepted.clone());
            put(&mut outbox, lines("a", 1));
            assert_eq!(all(&mut outbox), [accepted, lines("a", 1)]);
        }
    }

    #[test]
    fn an_event_without_room_ends_its_subscription_and_the_workload_is_told() {
        let mut outbox = full_of(&lines("l", 1));
        assert_eq!(put(&mut outbox, event("e")), [cancel("e", RequestContent::EventsCancel)]);
        assert_eq!(put(&mut outbox, event("e")), []);
        let told = all(&mut outbox).pop().unwrap();
        assert_eq!(told, Response { id: "e".to_owned(), content: ResponseContent::Error(EVENTS_LOST.to_owned()) });
        outbox.asked("e", &RequestContent::Logs(LogsRequest::default()));
        put(&mut outbox, event("e"));
        assert_eq!(all(&mut outbox), [], "another kind of request with the same id");
        let read = crate::model::messages::ReadState { masks: vec![], subscribe: true };
        outbox.asked("e", &RequestContent::CompleteState(read));
        put(&mut outbox, event("e"));
        assert_eq!(all(&mut outbox), [event("e")]);
    }

    #[test]
    fn an_answer_without_room_takes_that_of_the_oldest() {
        let mut outbox = full_of(&answer("old"));
        assert_eq!(put(&mut outbox, answer("new")), []);
        let kept = all(&mut outbox);
        assert_eq!((kept.len(), kept.last()), (CONTROL_OUTBOX, Some(&answer("new"))));
        assert_eq!((outbox.bytes, outbox.answer_bytes), (0, 0));

        let mut outbox = full_of(&event("e"));
        assert_eq!(put(&mut outbox, answer("new")), [cancel("e", RequestContent::EventsCancel)]);
        assert!(all(&mut outbox).contains(&answer("new")));
    }

    #[test]
    fn a_message_above_the_limit_waits_alone() {
        let mut outbox = Outbox::default();
        let large = lines("a", CONTROL_OUTBOX_BYTES + 1);
        assert_eq!(put(&mut outbox, large.clone()), []);
        assert_eq!(put(&mut outbox, lines("a", 1)), [cancel("a", RequestContent::LogsCancel)]);
        assert_eq!(all(&mut outbox), [large]);
    }

    #[test]
    fn nothing_comes_before_the_answer_to_the_hello() {
        let mut outbox = Outbox::default();
        put(&mut outbox, answer("a"));
        assert!(!outbox.has_any(false) && outbox.has_any(true));
        assert_eq!(outbox.pop(false), None);
        outbox.put_first(ToWorkload::Accepted);
        assert_eq!(outbox.pop(true).as_deref().map(read), Some(ToWorkload::Accepted));
        assert_eq!(outbox.pop(true).as_deref().map(read), Some(ToWorkload::Response(answer("a"))));
        put(&mut outbox, answer("b"));
        outbox.put_first(ToWorkload::Closed { reason: "r".to_owned() });
        assert_eq!(outbox.pop(true).as_deref().map(read), Some(ToWorkload::Closed { reason: "r".to_owned() }));
        assert_eq!(outbox.pop(true), None);
    }
}
