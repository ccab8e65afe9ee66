//! The open requests of one workload, and the encoded messages that wait for it. Both are bounded,
//! and no sender waits. Both belong to one generation: a container of the workload, from its hello
//! on. A response to an earlier generation is not for this one.
//!
//! Thread: none, a plain value; `grpc-poll-0`, `rx:server` and `control` put, `control` takes, see
//! [`super::ControlHub`].

use super::pipes::DirectPipe;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::messages::{
    AlteredFields, ReadState, Request, RequestContent, Response, ResponseContent, ToWorkload,
};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_wire::delimited::frame;
use std::collections::{BTreeSet, VecDeque};

/// Messages that wait for one workload. A workload that does not read them loses log lines and
/// events, and gets a notice.
const WAITING: usize = 1024;
/// Encoded bytes that wait for one workload. A larger message waits alone.
pub(super) const WAITING_BYTES: usize = 8 * 1024 * 1024;
/// A workload with this many bytes of unread responses must read some before its next request. This
/// is space for a few large ones.
pub(super) const UNREAD_BYTES: usize = WAITING_BYTES / 8;
/// Most subscriptions of one workload: 64 to events and 64 to logs, as the server allows.
const SUBSCRIPTIONS: usize = 128;
/// Most other requests without a response. Only a server that does not respond leaves more than
/// one; the oldest are forgotten.
const PENDING: usize = 8;

/// Bytes of the masks that are kept for one workload, to renew its event subscriptions. The server
/// allows no more.
const MASKS_BYTES: usize = 2 * 1024 * 1024;
/// The parts of a state that a subscription to everything contains.
const ALL_PARTS: [&str; 3] = ["agents", "desiredState", "workloadStates"];

/// The error for a workload whose subscription is not kept.
const EVENTS_ENDED: &str = "The connection to the server was lost, and with it the event subscription, whose masks are too \
                            long to be kept; subscribe again";
/// The error for a workload that follows more logs than messages can wait for it.
const LOGS_ENDED: &str =
    "The connection to the server was lost, and with it these logs; request them again";
/// The error for a workload that did not read its events.
const EVENTS_LOST: &str = "Events were not read in time and are lost; the subscription is cancelled, subscribe again to get the state";
/// The error for a workload whose request has no response, since the connection is lost.
const LOST: &str = "The connection to the server was lost before it responded. The request may have been carried out \
                    or not; send it again";

/// What a workload subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlSubscription {
    Logs,
    Events,
}

impl ControlSubscription {
    /// The request that cancels such a subscription.
    fn cancel(self) -> RequestContent {
        match self {
            Self::Logs => RequestContent::LogsCancel,
            Self::Events => RequestContent::EventsCancel,
        }
    }
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// It has one response.
    Once,
    Subscribe(ControlSubscription),
    Cancel(ControlSubscription),
}

impl RequestKind {
    /// The kind of a request with this content.
    fn of(content: &RequestContent) -> Self {
        match content {
            RequestContent::Logs(_) => Self::Subscribe(ControlSubscription::Logs),
            RequestContent::CompleteState(read) if read.subscribe => {
                Self::Subscribe(ControlSubscription::Events)
            }
            RequestContent::LogsCancel => Self::Cancel(ControlSubscription::Logs),
            RequestContent::EventsCancel => Self::Cancel(ControlSubscription::Events),
            _ => Self::Once,
        }
    }
}

/// Whether this can be the response to a request of this kind.
fn answers(content: &ResponseContent, kind: RequestKind) -> bool {
    match content {
        ResponseContent::CompleteState { altered: None, .. } => {
            matches!(
                kind,
                RequestKind::Once | RequestKind::Subscribe(ControlSubscription::Events)
            )
        }
        ResponseContent::LogsAccepted(_) => {
            kind == RequestKind::Subscribe(ControlSubscription::Logs)
        }
        ResponseContent::LogsCancelAccepted => {
            kind == RequestKind::Cancel(ControlSubscription::Logs)
        }
        ResponseContent::EventsCancelAccepted => {
            kind == RequestKind::Cancel(ControlSubscription::Events)
        }
        ResponseContent::UpdateStateSuccess { .. } => kind == RequestKind::Once,
        ResponseContent::Error(_) => true,
        _ => false,
    }
}

/// The kind of subscription, if this is an event or log lines; `None` for a response.
fn subscription_of(content: &ResponseContent) -> Option<ControlSubscription> {
    match content {
        ResponseContent::CompleteState {
            altered: Some(_), ..
        } => Some(ControlSubscription::Events),
        ResponseContent::LogEntries(_) => Some(ControlSubscription::Logs),
        _ => None,
    }
}

/// An encoded response, with its id as the workload wrote it.
#[derive(Debug)]
pub(crate) struct EncodedResponse {
    id: String,
    /// The kind of subscription, if it is an event or log lines.
    subscription: Option<ControlSubscription>,
    bytes: Vec<u8>,
}

impl EncodedResponse {
    pub(crate) fn new(response: Response) -> Self {
        Self {
            id: response.id.clone(),
            subscription: subscription_of(&response.content),
            bytes: frame(ToWorkload::Response(response)),
        }
    }

    /// The memory that it occupies while it waits, in bytes.
    fn weight(&self) -> usize {
        self.id.len() + self.bytes.len()
    }
}

/// The progress of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestProgress {
    /// It has no response, and the next request of the workload waits for that.
    UnderWay,
    /// It has no response, and the next request does not wait for that any more.
    Overdue,
    /// A subscription that has its first response. For logs: the instances whose logs have not
    /// ended.
    Begun(BTreeSet<InstanceName>),
    /// An event subscription that was lost with the connection, and is renewed on the next one.
    Lost,
}

/// A request without a response, or a subscription.
#[derive(Debug)]
struct OpenRequest {
    id: String,
    kind: RequestKind,
    progress: RequestProgress,
    /// The masks of an event subscription; `None` when they are not kept.
    masks: Option<Vec<String>>,
    /// It was renewed: the workload has its first response from an earlier connection.
    is_renewed: bool,
}

impl OpenRequest {
    /// Whether it is a subscription that has its first response.
    fn has_begun(&self) -> bool {
        matches!(self.progress, RequestProgress::Begun(_))
    }

    /// Whether it was sent and has no response yet.
    fn is_pending(&self) -> bool {
        matches!(
            self.progress,
            RequestProgress::UnderWay | RequestProgress::Overdue
        )
    }

    fn masks_bytes(&self) -> usize {
        match &self.masks {
            Some(masks) => masks.iter().map(String::len).sum(),
            None => 0,
        }
    }

    fn is_subscription(&self) -> bool {
        matches!(self.kind, RequestKind::Subscribe(_))
    }

    /// Whether it is the subscription of this kind and id, and has its first response.
    fn is_active(&self, subscription: ControlSubscription, id: &str) -> bool {
        self.has_begun() && self.kind == RequestKind::Subscribe(subscription) && self.id == id
    }
}

/// A generation that has ended.
pub(crate) struct EndedGeneration {
    /// The beginning of the ids of its requests.
    pub(crate) prefix: String,
    /// Requests that cancel its subscriptions at the server.
    pub(crate) cancels: Vec<Request>,
}

/// The waiting messages and the open requests of one workload.
#[derive(Debug)]
pub(crate) struct ControlMailbox {
    /// The text that the agent puts before each id of this generation.
    prefix: String,
    /// The response to a hello, or the end of the session; it comes before all other messages.
    first: Option<Vec<u8>>,
    waiting: VecDeque<EncodedResponse>,
    /// In the order in which they came.
    open: Vec<OpenRequest>,
    /// The pipe to the workload, while the next response may be written without `control`.
    direct: Option<DirectPipe>,
}

impl ControlMailbox {
    /// Returns an empty mailbox of the generation with this prefix.
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            prefix,
            first: None,
            waiting: VecDeque::new(),
            open: Vec::new(),
            direct: None,
        }
    }

    /// Sets the pipe that the next response may be written into without `control`, or takes it
    /// back.
    pub(super) fn set_direct(&mut self, pipe: Option<DirectPipe>) {
        self.direct = pipe;
    }

    /// Writes a response into the pipe, if `control` has left it here and nothing else is open or
    /// waits. Returns whether it was written, so that `control` need not be woken.
    pub(crate) fn write_directly(&self, response: &EncodedResponse) -> bool {
        let Some(pipe) = &self.direct else {
            return false;
        };
        let is_alone = self.first.is_none() && self.waiting.is_empty() && self.open.is_empty();
        is_alone && pipe.write_whole(&response.bytes)
    }

    /// Begins a new generation with this prefix. Returns the ended one.
    pub(crate) fn begin(&mut self, prefix: String) -> EndedGeneration {
        let before = std::mem::replace(self, Self::new(prefix));
        let mut cancels = Vec::new();
        for open in &before.open {
            // The server does not have a lost subscription.
            if let RequestKind::Subscribe(subscription) = open.kind
                && open.progress != RequestProgress::Lost
            {
                cancels.push(before.cancel(subscription, &open.id));
            }
        }
        EndedGeneration {
            prefix: before.prefix,
            cancels,
        }
    }

    /// The id as the workload wrote it, if it is of this generation.
    pub(crate) fn own_id<'i>(&self, id: &'i str) -> Option<&'i str> {
        id.strip_prefix(&self.prefix)
    }

    /// The id for the server.
    pub(crate) fn full_id(&self, own_id: &str) -> String {
        format!("{}{own_id}", self.prefix)
    }

    // -------------------------------------------------------- open requests

    /// Whether the workload must wait before its next request: for a response, or until it has read
    /// some.
    pub(crate) fn must_wait(&self, next: &RequestContent) -> bool {
        if self.must_await_response() {
            return true;
        }
        if next.is_cancel() {
            return false; // After it, fewer messages wait to be read.
        }
        let mut unread = 0;
        for response in &self.waiting {
            if response.subscription.is_none() {
                unread += response.weight();
            }
        }
        unread >= UNREAD_BYTES
    }

    /// Whether the next request waits for the response to an earlier one.
    pub(crate) fn must_await_response(&self) -> bool {
        self.open
            .iter()
            .any(|open| open.progress == RequestProgress::UnderWay)
    }

    /// Adds a request that is about to be sent. If too many have no response, forgets the oldest.
    ///
    /// # Errors
    /// A text for the workload, when it has too many subscriptions.
    pub(crate) fn add_request(
        &mut self,
        id: String,
        content: &RequestContent,
    ) -> Result<(), String> {
        let kind = RequestKind::of(content);
        // First: there must be space for the request.
        let mut subscriptions = 0;
        for open in &self.open {
            if open.is_subscription() {
                subscriptions += 1;
            }
        }
        let others = self.open.len() - subscriptions;
        if matches!(kind, RequestKind::Subscribe(_)) {
            if subscriptions >= SUBSCRIPTIONS {
                return Err(format!(
                    "Too many event subscriptions and requests for logs, at most {SUBSCRIPTIONS} are allowed; cancel some first"
                ));
            }
        } else if others >= PENDING
            && let Some(oldest) = self.open.iter().position(|open| !open.is_subscription())
        {
            self.open.remove(oldest);
        }
        // Then: the earlier request is not waited for any more. A lost subscription with the same
        // id is replaced or cancelled, so it is not renewed.
        self.wait_no_longer();
        if matches!(
            kind,
            RequestKind::Subscribe(ControlSubscription::Events)
                | RequestKind::Cancel(ControlSubscription::Events)
        ) {
            self.open
                .retain(|open| open.progress != RequestProgress::Lost || open.id != id);
        }
        // Finally: the request is open.
        let masks = self.kept_masks(content);
        self.open.push(OpenRequest {
            id,
            kind,
            progress: RequestProgress::UnderWay,
            masks,
            is_renewed: false,
        });
        Ok(())
    }

    /// The masks of a subscription, if there is space to keep them.
    fn kept_masks(&self, content: &RequestContent) -> Option<Vec<String>> {
        let RequestContent::CompleteState(ReadState {
            masks,
            subscribe: true,
        }) = content
        else {
            return None;
        };
        let kept: usize = self.open.iter().map(OpenRequest::masks_bytes).sum();
        let bytes: usize = masks.iter().map(String::len).sum();
        if kept + bytes > MASKS_BYTES {
            return None;
        }
        Some(masks.clone())
    }

    /// Returns the request that renews the next lost subscription, if any. They are renewed one
    /// after the other, and never while a request of the workload is under way.
    pub(crate) fn next_renewal(&mut self) -> Option<Request> {
        if self.must_await_response() {
            return None;
        }
        let renewed = self
            .open
            .iter_mut()
            .find(|open| open.progress == RequestProgress::Lost)?;
        renewed.progress = RequestProgress::UnderWay;
        renewed.is_renewed = true;
        let id = renewed.id.clone();
        let content = RequestContent::CompleteState(ReadState {
            masks: renewed.masks.clone().unwrap_or_default(),
            subscribe: true,
        });
        Some(Request {
            id: self.full_id(&id),
            content,
        })
    }

    /// Marks the request under way as overdue: the next one does not wait for its response.
    pub(crate) fn wait_no_longer(&mut self) {
        for open in &mut self.open {
            if open.progress == RequestProgress::UnderWay {
                open.progress = RequestProgress::Overdue;
            }
        }
    }

    /// Updates the open requests, since the connection to the server is lost:
    /// - one that `is_queued` was not sent yet, so it waits for the next connection, as a
    ///   subscription that was lost before does;
    /// - logs have ended;
    /// - an event subscription is renewed on the next connection, if its masks were kept;
    /// - a cancel has succeeded, since the server has ended the subscription with the connection;
    /// - any other request gets an error.
    pub(crate) fn connection_lost(&mut self, is_queued: impl Fn(&str) -> bool) {
        for mut open in std::mem::take(&mut self.open) {
            let is_unsent = open.is_pending() && is_queued(&self.full_id(&open.id));
            if is_unsent || open.progress == RequestProgress::Lost {
                self.open.push(open);
                continue;
            }
            match (open.kind, &open.progress) {
                (
                    RequestKind::Subscribe(ControlSubscription::Logs),
                    RequestProgress::Begun(instances),
                ) => {
                    self.end_logs(&open.id, instances);
                }
                (RequestKind::Subscribe(ControlSubscription::Events), _)
                    if open.has_begun() || open.is_renewed =>
                {
                    if open.masks.is_some() {
                        open.progress = RequestProgress::Lost;
                        self.open.push(open);
                    } else {
                        self.push_own(open.id, ResponseContent::Error(EVENTS_ENDED.into()));
                    }
                }
                (RequestKind::Cancel(ControlSubscription::Logs), _) => {
                    self.push_own(open.id, ResponseContent::LogsCancelAccepted);
                }
                (RequestKind::Cancel(ControlSubscription::Events), _) => {
                    self.push_own(open.id, ResponseContent::EventsCancelAccepted);
                }
                (RequestKind::Once | RequestKind::Subscribe(_), _) => {
                    self.push_own(open.id, ResponseContent::Error(LOST.into()));
                }
            }
        }
    }

    /// Puts messages that the logs of these instances have ended. If there is no space for all of
    /// them, puts one error instead.
    fn end_logs(&mut self, id: &str, instances: &BTreeSet<InstanceName>) {
        if self.waiting.len() + instances.len() > WAITING {
            return self.push_own(id.to_owned(), ResponseContent::Error(LOGS_ENDED.into()));
        }
        for instance in instances {
            self.push_own(id.to_owned(), ResponseContent::LogsStop(instance.clone()));
        }
    }

    /// Updates the open requests with a response of the server. Returns whether the response is for
    /// the workload. The first response to a renewed subscription is made an event.
    pub(crate) fn accept(&mut self, id: &str, content: &mut ResponseContent) -> bool {
        if let Some(subscription) = subscription_of(content) {
            return self.active_index(subscription, id).is_some();
        }
        let answered = self.take_answered(id, content);
        match content {
            ResponseContent::LogsStop(instance) => self.end_log_of(id, instance),
            // If no request is answered, the agent has sent the cancel itself.
            ResponseContent::LogsCancelAccepted => {
                self.remove_active(ControlSubscription::Logs, id);
                answered.is_some()
            }
            ResponseContent::EventsCancelAccepted => {
                self.remove_active(ControlSubscription::Events, id);
                answered.is_some()
            }
            ResponseContent::CompleteState { state, altered } => {
                if let Some(subscribed) = answered
                    && subscribed.kind == RequestKind::Subscribe(ControlSubscription::Events)
                {
                    if subscribed.is_renewed {
                        // The workload expects an event, since it has had the first response.
                        let masks = subscribed.masks.as_deref().unwrap_or_default();
                        *altered = Some(everything(masks, state));
                    }
                    // A new subscription replaces an earlier one with the same id.
                    self.remove_active(ControlSubscription::Events, id);
                    self.open.push(OpenRequest {
                        progress: RequestProgress::Begun(BTreeSet::new()),
                        ..subscribed
                    });
                }
                true
            }
            ResponseContent::LogsAccepted(instances) => {
                // An instance may be named twice; its log ends once.
                let instances: BTreeSet<InstanceName> = instances.iter().cloned().collect_entries();
                if let Some(requested) = answered {
                    self.remove_active(ControlSubscription::Logs, id);
                    if !instances.is_empty() {
                        self.open.push(OpenRequest {
                            progress: RequestProgress::Begun(instances),
                            ..requested
                        });
                    }
                }
                true
            }
            ResponseContent::Error(_)
            | ResponseContent::UpdateStateSuccess { .. }
            | ResponseContent::LogEntries(_) => true,
        }
    }

    /// Takes the request that this content answers: the oldest pending one with this id and a
    /// fitting kind.
    fn take_answered(&mut self, id: &str, content: &ResponseContent) -> Option<OpenRequest> {
        let index = self
            .open
            .iter()
            .position(|open| open.is_pending() && open.id == id && answers(content, open.kind))?;
        Some(self.open.remove(index))
    }

    /// The index of the active subscription of this kind and id.
    fn active_index(&self, subscription: ControlSubscription, id: &str) -> Option<usize> {
        self.open
            .iter()
            .position(|open| open.is_active(subscription, id))
    }

    /// Removes the active subscriptions of this kind and id.
    fn remove_active(&mut self, subscription: ControlSubscription, id: &str) {
        self.open.retain(|open| !open.is_active(subscription, id));
    }

    /// Notes that the log of an instance has ended. Returns whether the workload follows it.
    fn end_log_of(&mut self, id: &str, instance: &InstanceName) -> bool {
        let Some(index) = self.active_index(ControlSubscription::Logs, id) else {
            return false;
        };
        if let RequestProgress::Begun(instances) = &mut self.open[index].progress {
            instances.remove(instance);
            if instances.is_empty() {
                self.open.remove(index);
            }
        }
        true
    }

    // ----------------------------------------------------- waiting messages

    /// Puts a response. If there is no space, an event or log line is dropped and its subscription
    /// ends; another response makes space by dropping the oldest messages. Returns the requests
    /// that cancel ended subscriptions at the server.
    pub(crate) fn put(&mut self, response: EncodedResponse) -> Vec<Request> {
        let mut cancels = Vec::new();
        if let Some(subscription) = response.subscription
            && !self.has_room(response.weight())
        {
            cancels.extend(self.end_unread(subscription, response.id));
            return cancels;
        }
        while !self.has_room(response.weight())
            && let Some(oldest) = self.pop_waiting()
        {
            if let Some(subscription) = oldest.subscription {
                cancels.extend(self.end_unread(subscription, oldest.id));
            }
        }
        self.waiting.push_back(response);
        cancels
    }

    /// Puts the response to a hello, or the end of the session, before all other messages. The end
    /// drops those.
    pub(crate) fn put_first(&mut self, message: ToWorkload) {
        if matches!(message, ToWorkload::Closed { .. }) {
            self.clear();
        }
        self.first = Some(frame(message));
    }

    /// Takes the bytes of the next message. Before a hello of the workload (`greeted`) responses
    /// wait.
    pub(crate) fn pop(&mut self, greeted: bool) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if !greeted {
            return None;
        }
        Some(self.pop_waiting()?.bytes)
    }

    /// Whether [`Self::pop`] would return a message.
    pub(crate) fn has_any(&self, greeted: bool) -> bool {
        self.first.is_some() || (greeted && !self.waiting.is_empty())
    }

    /// Drops all waiting messages.
    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.waiting = VecDeque::new();
    }

    /// Whether there is space for a message of this size. A single one always has space.
    fn has_room(&self, bytes: usize) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let waiting: usize = self.waiting.iter().map(EncodedResponse::weight).sum();
        self.waiting.len() < WAITING && waiting + bytes <= WAITING_BYTES
    }

    /// Puts a response of the agent itself.
    fn push_own(&mut self, id: String, content: ResponseContent) {
        self.waiting
            .push_back(EncodedResponse::new(Response { id, content }));
    }

    /// Takes the oldest message that waits.
    fn pop_waiting(&mut self) -> Option<EncodedResponse> {
        let oldest = self.waiting.pop_front()?;
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new(); // Returns the memory of a burst.
        }
        Some(oldest)
    }

    /// Ends a subscription that the workload did not read, and notifies it. Returns the request
    /// that cancels it at the server.
    fn end_unread(&mut self, subscription: ControlSubscription, id: String) -> Option<Request> {
        let index = self.active_index(subscription, &id)?;
        self.open.remove(index);
        let cancel = self.cancel(subscription, &id);
        let content = match subscription {
            ControlSubscription::Logs => ResponseContent::LogsCancelAccepted,
            ControlSubscription::Events => ResponseContent::Error(EVENTS_LOST.into()),
        };
        self.push_own(id, content);
        Some(cancel)
    }

    /// The request that cancels a subscription at the server.
    fn cancel(&self, subscription: ControlSubscription, id: &str) -> Request {
        Request {
            id: self.full_id(id),
            content: subscription.cancel(),
        }
    }
}

/// The altered fields of a renewed subscription: all that `masks` select may have changed. Each
/// mask is named up to its first `*`, as updated if that is in `state`, otherwise as removed.
fn everything(masks: &[String], state: &Node) -> AlteredFields {
    // First: the paths of the masks. Without masks, or with an empty one, all parts of the state.
    let mut paths: BTreeSet<Vec<&str>> = BTreeSet::new();
    for mask in masks {
        let beginning: Vec<&str> = mask.split('.').take_while(|part| *part != "*").collect();
        paths.insert(beginning);
    }
    if paths.is_empty() || paths.contains([].as_slice()) || paths.contains([""].as_slice()) {
        paths = ALL_PARTS.iter().map(|part| vec![*part]).collect_entries();
        if let Some(parts) = state.as_map() {
            for part in parts.keys() {
                paths.insert(vec![part]);
            }
        }
    }
    // Then: whether each is in the state.
    let mut altered = AlteredFields::default();
    for path in paths {
        let list = if state.at(&path).is_some() {
            &mut altered.updated
        } else {
            &mut altered.removed
        };
        list.push(path.join("."));
    }
    altered
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::messages::{LogEntry, LogsRequest};
    use ankaios_wire::delimited::workload_side::read_message;

    impl ControlMailbox {
        /// The workload has requested events and logs with this id, and got the first response.
        pub(crate) fn follow(&mut self, id: &str) {
            for subscription in [ControlSubscription::Logs, ControlSubscription::Events] {
                let instances = BTreeSet::from([InstanceName::with_id("w", "1", "A")]);
                self.open.push(OpenRequest {
                    id: id.to_owned(),
                    kind: RequestKind::Subscribe(subscription),
                    progress: RequestProgress::Begun(instances),
                    masks: Some(vec![
                        "agents.*.status".to_owned(),
                        "desiredState.configs".to_owned(),
                    ]),
                    is_renewed: false,
                });
            }
        }
    }

    fn said(id: &str, content: ResponseContent) -> Response {
        Response {
            id: id.to_owned(),
            content,
        }
    }

    fn lines(id: &str, bytes: usize) -> Response {
        let instance = InstanceName::with_id("w", "1", "A");
        said(
            id,
            ResponseContent::LogEntries(vec![LogEntry::line(instance, "x".repeat(bytes))]),
        )
    }

    fn event(id: &str) -> Response {
        said(
            id,
            ResponseContent::CompleteState {
                state: Node::empty(),
                altered: Some(AlteredFields::default()),
            },
        )
    }

    fn first(id: &str) -> Response {
        said(
            id,
            ResponseContent::CompleteState {
                state: Node::empty(),
                altered: None,
            },
        )
    }

    fn refusal(id: &str) -> Response {
        said(id, ResponseContent::Error("no".into()))
    }

    fn accepted(id: &str, names: &[&str]) -> Response {
        let instances = names
            .iter()
            .map(|name| InstanceName::with_id(name, "1", "A"));
        said(id, ResponseContent::LogsAccepted(instances.collect()))
    }

    fn stop(id: &str, name: &str) -> Response {
        said(
            id,
            ResponseContent::LogsStop(InstanceName::with_id(name, "1", "A")),
        )
    }

    fn cancel(id: &str, content: RequestContent) -> Request {
        Request {
            id: format!("w@1@{id}"),
            content,
        }
    }

    fn logs() -> RequestContent {
        RequestContent::Logs(LogsRequest::default())
    }

    fn read_state(subscribe: bool) -> RequestContent {
        RequestContent::CompleteState(ReadState {
            masks: vec![],
            subscribe,
        })
    }

    fn mailbox() -> ControlMailbox {
        ControlMailbox::new("w@1@".to_owned())
    }

    /// One of a workload that follows these.
    fn following(ids: &[&str]) -> ControlMailbox {
        let mut mailbox = mailbox();
        ids.iter().for_each(|id| mailbox.follow(id));
        mailbox
    }

    fn ask(mailbox: &mut ControlMailbox, id: &str, content: &RequestContent) {
        mailbox.add_request(id.to_owned(), content).unwrap();
    }

    fn put(mailbox: &mut ControlMailbox, mut response: Response) -> Vec<Request> {
        let is_accepted = mailbox.accept(&response.id, &mut response.content);
        if is_accepted {
            mailbox.put(EncodedResponse::new(response))
        } else {
            Vec::new()
        }
    }

    fn read(frame: &[u8]) -> ToWorkload {
        let prefix = frame.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        read_message(&frame[prefix..]).unwrap()
    }

    fn full_of(response: &Response) -> ControlMailbox {
        let mut mailbox = following(&[&response.id]);
        for _ in 0..WAITING {
            assert_eq!(put(&mut mailbox, response.clone()), []);
        }
        mailbox
    }

    fn all(mailbox: &mut ControlMailbox) -> Vec<Response> {
        std::iter::from_fn(|| mailbox.pop(true))
            .map(|frame| match read(&frame) {
                ToWorkload::Response(response) => response,
                other => panic!("an answer is expected, not {other:?}"),
            })
            .collect()
    }

    // [utest->swdd~agent-uses-bounded-channels~1]
    #[test]
    fn next_request_waits_for_the_response_of_the_same_id() {
        let instance = || InstanceName::with_id("w", "1", "A");
        let update = RequestContent::UpdateState(ankaios_model::messages::UpdateState {
            new_state: None,
            masks: vec![],
            ..Default::default()
        });
        let updated = || ResponseContent::UpdateStateSuccess {
            added: vec![],
            deleted: vec![],
            restarted: vec![],
            warning: None,
        };
        for (asked, beside, answer) in [
            (read_state(false), event("a").content, first("a").content),
            (
                read_state(false),
                lines("a", 1).content,
                refusal("a").content,
            ),
            (
                read_state(false),
                ResponseContent::LogsCancelAccepted,
                first("a").content,
            ),
            (read_state(true), updated(), first("a").content),
            (
                logs(),
                ResponseContent::LogsStop(instance()),
                accepted("a", &["w"]).content,
            ),
            (logs(), first("a").content, refusal("a").content),
            (update, event("a").content, updated()),
            (
                RequestContent::LogsCancel,
                first("a").content,
                ResponseContent::LogsCancelAccepted,
            ),
            (
                RequestContent::EventsCancel,
                ResponseContent::LogsCancelAccepted,
                ResponseContent::EventsCancelAccepted,
            ),
        ] {
            let mut mailbox = following(&["a"]);
            ask(&mut mailbox, "a", &asked);
            put(&mut mailbox, said("a", beside.clone()));
            put(&mut mailbox, said("b", answer.clone()));
            assert!(
                mailbox.must_await_response() && mailbox.must_wait(&RequestContent::LogsCancel),
                "{beside:?}"
            );
            put(&mut mailbox, said("a", answer.clone()));
            assert!(!mailbox.must_await_response(), "{answer:?}");
            assert!(all(&mut mailbox).contains(&said("a", answer)));
        }
    }

    #[test]
    fn overdue_request_delays_no_other_and_is_answered() {
        let mut mailbox = mailbox();
        for id in ["a", "b"] {
            ask(&mut mailbox, id, &read_state(false));
        }
        put(&mut mailbox, first("b"));
        assert!(!mailbox.must_await_response());
        put(&mut mailbox, first("a"));
        assert_eq!(all(&mut mailbox), [first("b"), first("a")]);
        for number in 0..3 * PENDING {
            ask(&mut mailbox, &number.to_string(), &read_state(false));
        }
        assert_eq!(
            mailbox.open.len(),
            PENDING,
            "a server that answers nothing costs bounded room"
        );
    }

    #[test]
    fn workload_with_unread_responses_waits_but_may_cancel() {
        let mut mailbox = mailbox();
        put(
            &mut mailbox,
            said("a", ResponseContent::Error("x".repeat(UNREAD_BYTES).into())),
        );
        assert!(
            mailbox.must_wait(&read_state(false))
                && !mailbox.must_wait(&RequestContent::EventsCancel)
        );
        all(&mut mailbox);
        assert!(!mailbox.must_wait(&read_state(false)));
    }

    // [utest->swdd~agent-handles-control-interface-input-pipe-not-read~1]
    #[test]
    fn log_lines_without_room_cancel_their_request_once() {
        for bytes in [1, WAITING_BYTES / 4] {
            let mut mailbox = following(&["a", "b"]);
            let mut cancels = Vec::new();
            for _ in 0..2 * WAITING {
                cancels.extend(put(&mut mailbox, lines("a", bytes)));
            }
            assert_eq!(
                cancels,
                [cancel("a", RequestContent::LogsCancel)],
                "lines of {bytes} bytes"
            );
            let accepted_by_us = said("a", ResponseContent::LogsCancelAccepted);
            assert_eq!(
                all(&mut mailbox).pop(),
                Some(accepted_by_us.clone()),
                "the workload is told"
            );
            put(&mut mailbox, lines("a", 1));
            put(&mut mailbox, accepted_by_us);
            assert_eq!(
                all(&mut mailbox),
                [],
                "late lines of what is cancelled, and the answer to us"
            );
            put(&mut mailbox, lines("b", 1));
            mailbox.follow("a");
            put(&mut mailbox, lines("a", 1));
            assert_eq!(all(&mut mailbox), [lines("b", 1), lines("a", 1)]);
        }
    }

    #[test]
    fn event_without_room_ends_its_subscription_with_a_notice() {
        let mut mailbox = full_of(&lines("l", 1));
        mailbox.follow("e");
        assert_eq!(
            put(&mut mailbox, event("e")),
            [cancel("e", RequestContent::EventsCancel)]
        );
        assert_eq!(put(&mut mailbox, event("e")), []);
        let told = all(&mut mailbox).pop().unwrap();
        assert_eq!(told, said("e", ResponseContent::Error(EVENTS_LOST.into())));
        ask(&mut mailbox, "e", &read_state(true));
        put(&mut mailbox, event("e"));
        assert_eq!(
            all(&mut mailbox),
            [],
            "it came before the first answer, so it belongs to the earlier one"
        );
        put(&mut mailbox, first("e"));
        put(&mut mailbox, event("e"));
        assert_eq!(all(&mut mailbox), [first("e"), event("e")]);
    }

    #[test]
    fn an_answer_without_room_takes_that_of_the_oldest() {
        let mut mailbox = full_of(&refusal("old"));
        assert_eq!(put(&mut mailbox, refusal("new")), []);
        let kept = all(&mut mailbox);
        assert_eq!((kept.len(), kept.last()), (WAITING, Some(&refusal("new"))));

        let mut mailbox = full_of(&event("e"));
        assert_eq!(
            put(&mut mailbox, refusal("new")),
            [cancel("e", RequestContent::EventsCancel)]
        );
        assert!(all(&mut mailbox).contains(&refusal("new")));
    }

    #[test]
    fn new_generation_cancels_requests_of_the_one_before() {
        let mut mailbox = following(&["begun"]);
        ask(&mut mailbox, "asked", &logs());
        ask(&mut mailbox, "once", &read_state(false));
        put(&mut mailbox, event("begun"));
        let cancels = ["begun", "asked"].map(|id| cancel(id, RequestContent::LogsCancel));
        let EndedGeneration {
            prefix: before,
            cancels: mut cancelled,
        } = mailbox.begin("w@2@".to_owned());
        assert_eq!(
            cancelled.remove(1),
            cancel("begun", RequestContent::EventsCancel)
        );
        assert_eq!((&*before, &cancelled[..]), ("w@1@", &cancels[..]));
        assert_eq!(all(&mut mailbox), []);
        assert!(!mailbox.must_await_response() && mailbox.own_id("w@1@begun").is_none());
        assert_eq!(mailbox.own_id("w@2@begun@x"), Some("begun@x"));
        for unasked in [
            event("begun"),
            stop("l", "w"),
            said("l", ResponseContent::LogsCancelAccepted),
        ] {
            assert_eq!(put(&mut mailbox, unasked), []);
        }
        assert_eq!(all(&mut mailbox), [], "nobody has asked for these");
    }

    #[test]
    fn one_id_may_stand_for_everything_that_a_program_asks() {
        let mut mailbox = mailbox();
        ask(&mut mailbox, "1", &read_state(true));
        put(&mut mailbox, first("1"));
        for (content, answer) in [
            (read_state(false), first("1")),
            (logs(), refusal("1")),
            (read_state(true), refusal("1")),
        ] {
            ask(&mut mailbox, "1", &content);
            put(&mut mailbox, answer);
            put(&mut mailbox, event("1"));
        }
        assert_eq!(
            all(&mut mailbox).len(),
            7,
            "the earlier subscription goes on when the later one is refused"
        );
    }

    #[test]
    fn subscriptions_are_bounded_and_ended_ones_make_room() {
        let mut mailbox = mailbox();
        for number in 0..2 * SUBSCRIPTIONS {
            let id = number.to_string();
            ask(&mut mailbox, &id, &logs());
            // One that is named twice ends once.
            put(&mut mailbox, accepted(&id, &["w", "v", "w"]));
            put(&mut mailbox, stop(&id, "w"));
            put(&mut mailbox, lines(&id, 1));
            put(&mut mailbox, stop(&id, "v"));
            ask(&mut mailbox, &id, &logs());
            put(&mut mailbox, accepted(&id, &[]));
            ask(&mut mailbox, &id, &read_state(true));
            put(&mut mailbox, refusal(&id));
            assert_eq!(all(&mut mailbox).len(), 6, "{id}");
        }
        for number in 0..SUBSCRIPTIONS {
            ask(&mut mailbox, &number.to_string(), &read_state(true));
        }
        let refused = mailbox
            .add_request("more".to_owned(), &read_state(true))
            .unwrap_err();
        assert!(
            refused.contains("at most 128 are allowed; cancel some first"),
            "{refused}"
        );
        assert_eq!(
            mailbox.add_request("0".to_owned(), &RequestContent::EventsCancel),
            Ok(()),
            "what ends one always passes"
        );
        put(&mut mailbox, first("0"));
        put(
            &mut mailbox,
            said("0", ResponseContent::EventsCancelAccepted),
        );
        ask(&mut mailbox, "more", &read_state(true));
    }

    #[test]
    fn lost_connection_ends_all_requests_but_events_and_unsent() {
        let mut mailbox = following(&["begun"]);
        for (id, content) in [
            ("read", read_state(false)),
            ("logs", RequestContent::LogsCancel),
            ("events", RequestContent::EventsCancel),
            ("waits", logs()),
        ] {
            ask(&mut mailbox, id, &content);
        }
        mailbox.connection_lost(|id| id == "w@1@waits");
        let expected = [
            stop("begun", "w"),
            said("read", ResponseContent::Error(LOST.into())),
            said("logs", ResponseContent::LogsCancelAccepted),
            said("events", ResponseContent::EventsCancelAccepted),
        ];
        assert_eq!(all(&mut mailbox), expected);
        put(&mut mailbox, event("begun"));
        assert_eq!(all(&mut mailbox), []);
        assert!(mailbox.must_await_response() && mailbox.next_renewal().is_none());
        mailbox.connection_lost(|_| false);
        assert_eq!(
            all(&mut mailbox),
            [said("waits", ResponseContent::Error(LOST.into()))]
        );
    }

    /// A state with agents only.
    fn agents() -> Node {
        Node::map([("agents", Node::map([("A", Node::empty())]))])
    }

    // [utest->swdd~agent-renews-event-subscriptions~1]
    #[test]
    fn subscriptions_are_renewed_in_turn_with_a_full_event() {
        let mut mailbox = following(&["a", "b"]);
        mailbox.connection_lost(|_| false);
        mailbox.connection_lost(|_| false);
        assert_eq!(
            all(&mut mailbox),
            [stop("a", "w"), stop("b", "w")],
            "logs end"
        );
        for id in ["a", "b"] {
            let renewal = mailbox.next_renewal().unwrap();
            let masks = vec![
                "agents.*.status".to_owned(),
                "desiredState.configs".to_owned(),
            ];
            let content = RequestContent::CompleteState(ReadState {
                masks,
                subscribe: true,
            });
            assert_eq!(
                renewal,
                Request {
                    id: format!("w@1@{id}"),
                    content
                }
            );
            assert!(mailbox.next_renewal().is_none() && mailbox.must_wait(&read_state(false)));
            put(&mut mailbox, event(id));
            put(
                &mut mailbox,
                said(
                    id,
                    ResponseContent::CompleteState {
                        state: agents(),
                        altered: None,
                    },
                ),
            );
            put(&mut mailbox, event(id));
            let (updated, removed) = (
                vec!["agents".to_owned()],
                vec!["desiredState.configs".to_owned()],
            );
            let altered = Some(AlteredFields {
                added: vec![],
                updated,
                removed,
            });
            let full = said(
                id,
                ResponseContent::CompleteState {
                    state: agents(),
                    altered,
                },
            );
            assert_eq!(all(&mut mailbox), [full, event(id)]);
        }
        assert!(mailbox.next_renewal().is_none());
    }

    #[test]
    fn a_subscription_that_is_refused_again_or_cancelled_ends() {
        let mut mailbox = following(&["a"]);
        mailbox.connection_lost(|_| false);
        all(&mut mailbox);
        mailbox.next_renewal().unwrap();
        mailbox.connection_lost(|_| false);
        assert_eq!(
            all(&mut mailbox),
            [],
            "the next connection was lost as well"
        );
        mailbox.next_renewal().unwrap();
        put(&mut mailbox, refusal("a"));
        put(&mut mailbox, event("a"));
        assert_eq!(all(&mut mailbox), [refusal("a")]);
        for content in [RequestContent::EventsCancel, read_state(true)] {
            let mut mailbox = following(&["a"]);
            mailbox.connection_lost(|_| false);
            ask(&mut mailbox, "a", &content);
            mailbox.wait_no_longer();
            assert!(mailbox.next_renewal().is_none(), "{content:?}");
        }
    }

    #[test]
    fn what_is_kept_of_subscriptions_is_bounded() {
        let mut mailbox = mailbox();
        let masks = vec!["x".repeat(MASKS_BYTES / 2)];
        let large = RequestContent::CompleteState(ReadState {
            masks,
            subscribe: true,
        });
        for id in ["a", "b", "c"] {
            ask(&mut mailbox, id, &large);
            put(&mut mailbox, first(id));
        }
        all(&mut mailbox);
        mailbox.connection_lost(|_| false);
        assert_eq!(
            all(&mut mailbox),
            [said("c", ResponseContent::Error(EVENTS_ENDED.into()))]
        );
        let names: Vec<String> = (0..=WAITING).map(|number| format!("w{number}")).collect();
        ask(&mut mailbox, "l", &logs());
        put(
            &mut mailbox,
            accepted("l", &names.iter().map(String::as_str).collect::<Vec<_>>()),
        );
        all(&mut mailbox);
        mailbox.connection_lost(|_| false);
        assert_eq!(
            all(&mut mailbox),
            [said("l", ResponseContent::Error(LOGS_ENDED.into()))]
        );
    }

    #[test]
    fn a_full_event_names_what_its_masks_select() {
        for (masks, updated, removed) in [
            (
                vec![],
                vec!["agents"],
                vec!["desiredState", "workloadStates"],
            ),
            (
                vec!["*"],
                vec!["agents"],
                vec!["desiredState", "workloadStates"],
            ),
            (
                vec!["agents.A", "agents.B.tags"],
                vec!["agents.A"],
                vec!["agents.B.tags"],
            ),
            (vec!["agents.*.status", "agents"], vec!["agents"], vec![]),
        ] {
            let masks: Vec<String> = masks.into_iter().map(str::to_owned).collect();
            let altered = everything(&masks, &agents());
            assert_eq!(
                (altered.updated, altered.removed),
                (
                    updated.into_iter().map(str::to_owned).collect(),
                    removed.into_iter().map(str::to_owned).collect(),
                )
            );
        }
    }

    #[test]
    fn a_message_above_the_limit_waits_alone() {
        let mut mailbox = following(&["a"]);
        let large = lines("a", WAITING_BYTES + 1);
        assert_eq!(put(&mut mailbox, large.clone()), []);
        assert_eq!(
            put(&mut mailbox, lines("a", 1)),
            [cancel("a", RequestContent::LogsCancel)]
        );
        assert_eq!(
            all(&mut mailbox),
            [large, said("a", ResponseContent::LogsCancelAccepted)]
        );
    }

    #[test]
    fn nothing_comes_before_the_answer_to_the_hello() {
        let mut mailbox = mailbox();
        put(&mut mailbox, refusal("a"));
        assert!(!mailbox.has_any(false) && mailbox.has_any(true));
        assert_eq!(mailbox.pop(false), None);
        mailbox.put_first(ToWorkload::Accepted);
        assert_eq!(
            mailbox.pop(true).as_deref().map(read),
            Some(ToWorkload::Accepted)
        );
        assert_eq!(
            mailbox.pop(true).as_deref().map(read),
            Some(ToWorkload::Response(refusal("a")))
        );
        put(&mut mailbox, refusal("b"));
        mailbox.put_first(ToWorkload::Closed {
            reason: "r".to_owned(),
        });
        assert_eq!(
            mailbox.pop(true).as_deref().map(read),
            Some(ToWorkload::Closed {
                reason: "r".to_owned()
            })
        );
        assert_eq!(mailbox.pop(true), None);
    }
}
