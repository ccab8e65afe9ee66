//! Messages that wait for one workload, as the bytes that it will read: bounded, and putting never waits. Events and
//! log lines that the workload has not requested are not among them.
//!
//! Thread: none, a plain value; `rx:server` and `control` put, `control` takes, see [`super::ControlHub`].

use super::lasting::{Lasting, LastingRequests, ResponseKind, TooMany};
use crate::limits::{CONTROL_CANCELLED, CONTROL_OUTBOX, CONTROL_OUTBOX_BYTES, CONTROL_UNREAD_BYTES};
use crate::model::messages::{Request, RequestContent, Response, ResponseContent, ToWorkload};
use crate::wire::delimited::{Undecodable, frame};
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

/// The error for a workload that did not read its events.
const EVENTS_LOST: &str =
    "Events were not read in time and are lost; the subscription is cancelled, subscribe again to get the state";

/// What ends the request that `response` belongs to, if more of it would come.
#[must_use]
pub fn cancellation(response: &Response) -> Option<Request> {
    match ResponseKind::of(response) {
        ResponseKind::Part(lasting) => Some(Request { id: response.id.clone(), content: lasting.cancel() }),
        _ => None,
    }
}

/// An encoded response, its id, and what it means for the request.
#[derive(Debug)]
pub struct Frame {
    id: String,
    kind: ResponseKind,
    bytes: Vec<u8>,
}

impl Frame {
    /// Encodes an answer of the server.
    ///
    /// # Errors
    /// It is too large.
    pub fn new(response: Response) -> Result<Self, Undecodable> {
        let (id, kind) = (response.id.clone(), ResponseKind::of(&response));
        Ok(Self { id, kind, bytes: frame(ToWorkload::Response(response))? })
    }

    /// Encodes a response of the agent to a request that the server does not have.
    ///
    /// # Errors
    /// It is too large.
    pub fn of_agent(response: Response) -> Result<Self, Undecodable> {
        Ok(Self { kind: ResponseKind::Other, ..Self::new(response)? })
    }

    fn part(&self) -> Option<Lasting> {
        match self.kind {
            ResponseKind::Part(lasting) => Some(lasting),
            _ => None,
        }
    }

    /// What it takes while it waits, in bytes.
    fn weight(&self) -> usize {
        self.id.len() + self.bytes.len()
    }

    fn answer_weight(&self) -> usize {
        if self.part().is_none() { self.weight() } else { 0 }
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
    lasting: LastingRequests,
    /// Cancelled by us: because the workload did not read, or, `false`, because it has not asked. What still comes of
    /// them is dropped.
    cancelled: BTreeMap<(Lasting, String), bool>,
}

impl Outbox {
    /// Puts an answer. When there is no room, log lines and events are dropped with the request that they belong to,
    /// and for other answers the oldest ones make room. Returns which requests are to be cancelled at the server.
    pub fn put(&mut self, frame: Frame) -> Vec<Request> {
        if !self.is_expected(&frame) {
            let unknown = frame.part().filter(|lasting| !self.lasting.is_unanswered(*lasting, &frame.id));
            let mut cancels = Vec::new();
            if let Some(lasting) = unknown {
                self.cancel(lasting, frame.id, false, &mut cancels);
            }
            return cancels;
        }
        if self.has_room(frame.weight()) {
            self.push(frame);
            return Vec::new();
        }
        let mut cancels = Vec::new();
        if let Some(lasting) = frame.part() {
            self.cancel(lasting, frame.id, true, &mut cancels);
            return cancels;
        }
        while !self.has_room(frame.weight())
            && let Some(oldest) = self.pop_waiting()
        {
            if let Some(lasting) = oldest.part() {
                self.cancel(lasting, oldest.id, true, &mut cancels);
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

    /// The bytes of the next message. Responses come only after a hello of the workload.
    pub fn pop(&mut self, greeted: bool) -> Option<Vec<u8>> {
        let first = self.first.take();
        first.or_else(|| if greeted { self.pop_waiting().map(|frame| frame.bytes) } else { None })
    }

    /// Whether [`Self::pop`] would return something.
    #[must_use]
    pub fn has_any(&self, greeted: bool) -> bool {
        self.first.is_some() || greeted && !self.waiting.is_empty()
    }

    /// Whether so many responses wait that the workload should read before its next request.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.answer_bytes >= CONTROL_UNREAD_BYTES
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        (self.first, self.waiting) = (None, VecDeque::new());
        (self.bytes, self.answer_bytes) = (0, 0);
    }

    /// The container will be another one. What the one before follows is not for it.
    pub fn forget_lasting(&mut self) {
        self.lasting = LastingRequests::default();
        self.cancelled.values_mut().for_each(|asked| *asked = false);
    }

    /// The connection to the server is lost, and with it what lasts.
    pub fn connection_lost(&mut self) {
        self.lasting.end_begun();
        self.cancelled.clear();
    }

    /// The workload has requested events and logs with this id, and got the first response.
    #[cfg(test)]
    pub fn follow(&mut self, id: &str) {
        for lasting in [Lasting::Logs, Lasting::Events] {
            self.lasting.ask(lasting, id).unwrap();
            self.lasting.begin(lasting, id, 1);
        }
    }

    /// A request of the workload, perhaps one that lasts, perhaps a repeated one.
    ///
    /// # Errors
    /// [`TooMany`] of what lasts.
    pub fn ask(&mut self, id: &str, content: &RequestContent) -> Result<(), TooMany> {
        Lasting::of(content).map_or(Ok(()), |lasting| self.lasting.ask(lasting, id))
    }

    /// The last request with this id is not sent.
    pub fn take_back(&mut self, id: &str, content: &RequestContent) {
        if let Some(lasting) = Lasting::of(content) {
            self.lasting.take_back(lasting, id);
        }
    }

    /// Notes what a response means. Returns whether it is for this container.
    fn is_expected(&mut self, Frame { id, kind, .. }: &Frame) -> bool {
        match *kind {
            ResponseKind::Begins(lasting, logs) => {
                self.lasting.begin(lasting, id, logs);
                self.forget_cancelled(lasting, id); // Whatever was to come of an earlier one has come.
                true
            }
            ResponseKind::Part(lasting) => self.lasting.has_begun(lasting, id),
            ResponseKind::Stops => self.lasting.stop_log(id),
            ResponseKind::Cancelled(lasting) => match self.forget_cancelled(lasting, id) {
                Some(asked) => asked,
                None => {
                    self.lasting.end(lasting, id);
                    true
                }
            },
            ResponseKind::Refused => {
                let kinds = [Lasting::Events, Lasting::Logs];
                if let Some(lasting) = kinds.into_iter().find(|lasting| self.lasting.is_unanswered(*lasting, id)) {
                    self.lasting.take_back(lasting, id);
                }
                true
            }
            ResponseKind::Other => true,
        }
    }

    fn forget_cancelled(&mut self, lasting: Lasting, id: &str) -> Option<bool> {
        if self.cancelled.is_empty() {
            return None;
        }
        self.cancelled.remove(&(lasting, id.to_owned()))
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

    fn cancel(&mut self, lasting: Lasting, id: String, asked: bool, cancels: &mut Vec<Request>) {
        if self.cancelled.len() >= CONTROL_CANCELLED {
            self.cancelled.clear(); // At worst something is cancelled twice.
        }
        match self.cancelled.entry((lasting, id.clone())) {
            Entry::Occupied(_) => return,
            Entry::Vacant(entry) => _ = entry.insert(asked),
        }
        self.lasting.end(lasting, &id);
        if lasting == Lasting::Events && asked {
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
    use crate::limits::{CONTROL_LASTING, CONTROL_LASTING_BYTES};
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

    /// One of a workload that has asked for these.
    fn following(ids: &[&str]) -> Outbox {
        let mut outbox = Outbox::default();
        ids.iter().for_each(|id| outbox.follow(id));
        outbox
    }

    fn subscription() -> RequestContent {
        RequestContent::CompleteState(crate::model::messages::ReadState { masks: vec![], subscribe: true })
    }

    fn first(id: &str) -> Response {
        let content = ResponseContent::CompleteState { state: Node::empty(), altered: None };
        Response { id: id.to_owned(), content }
    }

    fn full_of(response: &Response) -> Outbox {
        let mut outbox = following(&[&response.id]);
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
            let mut outbox = following(&["a", "b"]);
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
            outbox.follow("a");
            put(&mut outbox, lines("a", 1));
            assert_eq!(all(&mut outbox), [accepted, lines("a", 1)]);
        }
    }

    #[test]
    fn an_event_without_room_ends_its_subscription_and_the_workload_is_told() {
        let mut outbox = full_of(&lines("l", 1));
        outbox.follow("e");
        assert_eq!(put(&mut outbox, event("e")), [cancel("e", RequestContent::EventsCancel)]);
        assert_eq!(put(&mut outbox, event("e")), []);
        let told = all(&mut outbox).pop().unwrap();
        assert_eq!(told, Response { id: "e".to_owned(), content: ResponseContent::Error(EVENTS_LOST.to_owned()) });
        outbox.ask("e", &RequestContent::Logs(LogsRequest::default())).unwrap();
        put(&mut outbox, event("e"));
        assert_eq!(all(&mut outbox), [], "another kind of request with the same id");
        outbox.ask("e", &subscription()).unwrap();
        assert_eq!(put(&mut outbox, event("e")), []);
        assert_eq!(all(&mut outbox), [], "it came before the first answer, so it belongs to the earlier one");
        put(&mut outbox, first("e"));
        put(&mut outbox, event("e"));
        assert_eq!(all(&mut outbox), [first("e"), event("e")]);
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
    fn a_container_gets_nothing_of_what_the_one_before_asked_for() {
        let accepted = |id: &str| Response { id: id.to_owned(), content: ResponseContent::EventsCancelAccepted };
        let mut outbox = following(&["e", "cancelled"]);
        put(&mut outbox, event("e"));
        outbox.clear();
        outbox.forget_lasting();
        assert_eq!(all(&mut outbox), []);
        assert_eq!(put(&mut outbox, event("e")), [cancel("e", RequestContent::EventsCancel)]);
        assert_eq!(put(&mut outbox, event("e")), [], "once");
        // The next one uses the same id, as programs do, before the server has read that.
        outbox.ask("e", &subscription()).unwrap();
        for late in [event("e"), accepted("e")] {
            assert_eq!(put(&mut outbox, late), []);
        }
        assert_eq!(all(&mut outbox), []);
        for own in [first("e"), event("e"), event("e")] {
            assert_eq!(put(&mut outbox, own), []);
        }
        assert_eq!(all(&mut outbox), [first("e"), event("e"), event("e")]);
        // Its own cancellation is told.
        put(&mut outbox, accepted("e"));
        assert_eq!(all(&mut outbox), [accepted("e")]);
        assert_eq!(put(&mut outbox, event("e")), [cancel("e", RequestContent::EventsCancel)]);
        let stop =
            Response { id: "l".to_owned(), content: ResponseContent::LogsStop(InstanceName::with_id("w", "1", "A")) };
        put(&mut outbox, stop);
        assert_eq!(all(&mut outbox), [], "nobody has asked for these logs");
    }

    #[test]
    fn one_id_may_stand_for_everything_that_a_program_asks() {
        let mut outbox = Outbox::default();
        outbox.ask("1", &subscription()).unwrap();
        put(&mut outbox, first("1"));
        for other in [first("1"), answer("1"), event("1")] {
            put(&mut outbox, other);
        }
        outbox.ask("1", &subscription()).unwrap();
        put(&mut outbox, event("1"));
        put(&mut outbox, answer("1"));
        put(&mut outbox, event("1"));
        assert_eq!(all(&mut outbox).len(), 7, "the earlier subscription goes on when the later one is refused");
    }

    #[test]
    fn what_one_workload_follows_is_bounded_and_what_ends_makes_room() {
        let mut outbox = Outbox::default();
        let logs = RequestContent::Logs(LogsRequest::default());
        let instance = |name: &str| InstanceName::with_id(name, "1", "A");
        let said = |id: &str, content| Response { id: id.to_owned(), content };
        for number in 0..2 * CONTROL_LASTING {
            let id = number.to_string();
            outbox.ask(&id, &logs).unwrap();
            let accepted = ["w", "v", "w"].map(instance).to_vec(); // One that is named twice ends once.
            put(&mut outbox, said(&id, ResponseContent::LogsAccepted(accepted)));
            put(&mut outbox, said(&id, ResponseContent::LogsStop(instance("w"))));
            put(&mut outbox, lines(&id, 1));
            put(&mut outbox, said(&id, ResponseContent::LogsStop(instance("v"))));
            outbox.ask(&id, &logs).unwrap();
            put(&mut outbox, said(&id, ResponseContent::LogsAccepted(vec![])));
            outbox.ask(&id, &subscription()).unwrap();
            put(&mut outbox, answer(&id));
            outbox.ask(&id, &subscription()).unwrap();
            outbox.take_back(&id, &subscription());
            assert_eq!(all(&mut outbox).len(), 6, "{id}");
        }
        for number in 0..CONTROL_LASTING {
            outbox.ask(&number.to_string(), &subscription()).unwrap();
        }
        assert_eq!(outbox.ask("more", &subscription()), Err(TooMany));
        assert_eq!(outbox.ask("0", &subscription()), Ok(()), "again");
        outbox.connection_lost();
        assert_eq!(outbox.ask("more", &subscription()), Err(TooMany), "these were not answered");
        (0..CONTROL_LASTING).for_each(|number| drop(put(&mut outbox, first(&number.to_string()))));
        outbox.connection_lost();
        let long = "x".repeat(CONTROL_LASTING_BYTES);
        assert_eq!(outbox.ask(&long, &subscription()), Err(TooMany), "one is asked for twice");
        put(&mut outbox, first("0"));
        outbox.connection_lost();
        assert_eq!(outbox.ask(&long, &subscription()), Ok(()));
    }

    #[test]
    fn a_message_above_the_limit_waits_alone() {
        let mut outbox = following(&["a"]);
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
