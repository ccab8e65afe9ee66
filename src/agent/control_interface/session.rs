//! The protocol of one workload: hello, authorisation, forwarding of requests.
//!
//! Thread: `control`. Owns: the bytes of an incomplete message, whether the workload has sent a
//! hello, one request that waits. Gives: [`SessionEffect`]s, and waits for nothing.

use crate::limits::CONTROL_MESSAGE_TIME;
use ankaios_model::authorizer::Authorizer;
use ankaios_model::messages::{
    FromWorkload, Request, RequestContent, Response, ResponseContent, ToWorkload,
};
use ankaios_model::names::{Name, excerpt};
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::version::check_compatible;
use ankaios_platform::logging::log_source;
use ankaios_wire::delimited::{ConvertError, FrameBuffer, read_message};
use ankaios_wire::limits::REQUEST_ID_MAX;
use log::{debug, info, warn};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const HELLO_MISSING: &str = "Initial Hello missing!";
const UNDECODABLE: &str = "Could not decode protobuf data";
const DENIED: &str = "Access denied";

/// Bytes of the longest text that the agent puts before an id, without the name of the workload.
const PREFIX_MAX: usize = "@4294967295@".len();
/// A large message must be complete after this time if others wait until it is read.
pub(super) const LARGE_TIME: Duration = Duration::from_secs(2);
const _: () = assert!(LARGE_TIME.as_secs() < CONTROL_MESSAGE_TIME.as_secs());

/// An effect of a session, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEffect {
    /// Write the response to a hello, or the end of the session, before all other messages.
    Greet(ToWorkload),
    /// Write a response of the agent itself, after all pending ones.
    Answer(Response),
    /// Begin a new generation: drop requests and unread responses of an earlier user of the pipes.
    Begin,
    /// Forward a request to the server. If it must wait, give it back with
    /// [`ControlSession::hold`].
    Forward(HeldRequest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionStage {
    /// Waits for a hello.
    New,
    Established,
    /// The session was ended for a reason that the workload was sent. Further bytes are ignored
    /// until it closes its pipe.
    Refused,
}

/// A request, and when it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldRequest {
    pub request: Request,
    pub since: Instant,
}

/// The message that is being read, or the request that waits.
pub(crate) struct MessageInHand {
    pub(crate) bytes: usize,
    /// Its number in the session.
    pub(crate) number: u64,
}

/// The workload's side of one control interface.
#[derive(Debug)]
pub struct ControlSession {
    workload: Name,
    authorizer: Authorizer,
    stage: SessionStage,
    /// The workload has closed its pipe since its last hello, so the next hello may be from another
    /// process.
    closed_since_hello: bool,
    buffer: FrameBuffer,
    /// When the incomplete message began.
    began: Option<Instant>,
    /// The size of the last message, in bytes.
    message_bytes: usize,
    /// The number of messages until now.
    messages: u64,
    /// The request that waits. Meanwhile no message is decoded.
    held: Option<HeldRequest>,
    effects: VecDeque<SessionEffect>,
}

impl ControlSession {
    /// Returns a session that waits for the hello of `workload`. A message may have up to
    /// `message_max` bytes.
    pub fn new(workload: Name, authorizer: Authorizer, message_max: usize) -> Self {
        Self {
            workload,
            authorizer,
            stage: SessionStage::New,
            closed_since_hello: false,
            buffer: FrameBuffer::new(message_max),
            began: None,
            message_bytes: 0,
            messages: 0,
            held: None,
            effects: VecDeque::new(),
        }
    }

    /// Whether the workload has sent a hello, so that it may get responses.
    pub fn is_established(&self) -> bool {
        self.stage == SessionStage::Established
    }

    /// Since when a request waits, if one does. Nothing is read meanwhile.
    pub(crate) fn paused_since(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.since)
    }

    /// The message that is being read, or the request that waits.
    pub(crate) fn in_hand(&self) -> MessageInHand {
        if self.held.is_some() {
            MessageInHand {
                bytes: self.message_bytes,
                number: self.messages,
            }
        } else {
            MessageInHand {
                bytes: self.buffer.expected(),
                number: self.messages + 1,
            }
        }
    }

    /// Restarts the time in which a message must be complete, since it was not read for a while.
    pub(crate) fn on_resume(&mut self, now: Instant) {
        if self.began.is_some() {
            self.began = Some(now);
        }
    }

    /// When an incomplete message must be complete, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.began.map(|began| began + CONTROL_MESSAGE_TIME)
    }

    /// Takes bytes that the workload has written.
    // [impl->swdd~agent-listens-for-requests-from-pipe~1]
    pub fn on_bytes(&mut self, bytes: &[u8]) {
        if self.stage != SessionStage::Refused {
            self.buffer.put(bytes);
        }
    }

    /// Makes the forwarding of the request that waits the next effect.
    pub(crate) fn retry_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.effects.push_back(SessionEffect::Forward(held));
        }
    }

    /// Holds a request back, until [`Self::retry_held`]. Nothing is read meanwhile.
    pub(crate) fn hold(&mut self, held: HeldRequest) {
        self.held = Some(held);
    }

    /// Drops a partial message, since the workload has closed its pipe. The session continues.
    pub fn on_close(&mut self) {
        self.closed_since_hello = true;
        self.forget_partial();
        if self.stage == SessionStage::Refused {
            self.stage = SessionStage::New;
        }
    }

    /// Begins again for a restarted container, which must send a hello.
    pub(crate) fn on_restart(&mut self) {
        self.stage = SessionStage::New;
        self.closed_since_hello = false;
        self.held = None;
        self.forget_partial();
        self.effects.push_back(SessionEffect::Begin);
    }

    /// Ends the session, since a message takes too long: its [`Self::deadline`] has passed, or
    /// messages of other workloads wait for it.
    pub fn on_late(&mut self, others_wait: bool) {
        let reason = match self.stage {
            SessionStage::New => UNDECODABLE.to_owned(),
            _ if others_wait => format!(
                "A large message was not complete within {} s while other workloads waited; write it as a whole",
                LARGE_TIME.as_secs()
            ),
            _ => format!(
                "A message was not complete within {} s",
                CONTROL_MESSAGE_TIME.as_secs()
            ),
        };
        self.refuse(reason);
    }

    /// Returns the next effect of the bytes and events until now; `None` when there is no further
    /// one.
    pub fn next(&mut self, now: Instant) -> Option<SessionEffect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if self.stage == SessionStage::Refused || self.held.is_some() {
                self.began = None; // Nothing is read, so nothing is late.
                return None;
            }
            match self.buffer.next_message() {
                Ok(Some(bytes)) => {
                    self.began = None;
                    self.message_bytes = bytes.len();
                    self.messages += 1;
                    let message = read_message(bytes);
                    self.on_message(message, now);
                }
                Ok(None) => {
                    if !self.buffer.is_partial() {
                        self.began = None;
                    } else if self.began.is_none() {
                        self.began = Some(now);
                    }
                    return None;
                }
                Err(error) => {
                    // Before a hello the workload may be anything, so it gets no details.
                    let reason = if self.stage == SessionStage::New {
                        UNDECODABLE.to_owned()
                    } else {
                        format!("{UNDECODABLE}: {error}")
                    };
                    debug!("Workload '{}' wrote {error}.", self.workload);
                    self.refuse(reason);
                }
            }
        }
    }

    /// Handles one message. Before a hello, anything else ends the session; afterwards a message
    /// that cannot be decoded is only skipped.
    fn on_message(&mut self, message: Result<FromWorkload, ConvertError>, now: Instant) {
        let _source = log_source(self.workload.clone());
        match (self.stage, message) {
            (_, Ok(FromWorkload::Hello { version })) => self.on_hello(&version),
            (SessionStage::New, Ok(_)) => self.refuse(HELLO_MISSING.to_owned()),
            (SessionStage::New, Err(_)) => self.refuse(UNDECODABLE.to_owned()),
            (_, Ok(FromWorkload::Request(request))) => self.on_request(request, now),
            (_, Ok(FromWorkload::TooHeavy { id, reason })) => self.refuse_request(id, &reason),
            (_, Ok(FromWorkload::Empty)) => {
                self.complain(
                    "Could not convert protobuf in internal data structure: 'ToAnkaios is None.'",
                );
            }
            (_, Err(error)) => self.complain(&format!(
                "Could not decode to Ankaios data. It is skipped: {error}"
            )),
        }
    }

    /// Accepts a hello, or refuses one with a version that is not compatible.
    fn on_hello(&mut self, version: &str) {
        if let Err(reason) = check_compatible(version) {
            return self.refuse(reason);
        }
        if self.stage == SessionStage::Established {
            self.complain(&format!(
                "Received yet another Hello with protocol version '{}'",
                excerpt(version)
            ));
        } else {
            info!(
                "Control interface connection established. Workload '{}'.",
                self.workload
            );
        }
        if self.closed_since_hello {
            self.closed_since_hello = false;
            self.effects.push_back(SessionEffect::Begin);
        }
        self.stage = SessionStage::Established;
        self.effects
            .push_back(SessionEffect::Greet(ToWorkload::Accepted));
    }

    /// Answers a request that is not allowed, and forwards any other one.
    // [impl->swdd~agent-authorizes-control-interface-requests~1]
    fn on_request(&mut self, request: Request, now: Instant) {
        let id_bytes = self.workload.len() + PREFIX_MAX + request.id.len();
        if id_bytes > REQUEST_ID_MAX {
            // The server would refuse it as well, but until then the id would use memory.
            let reason = format!(
                "the request id has {id_bytes} bytes with what the agent puts before it, at most {REQUEST_ID_MAX} are allowed"
            );
            return self.refuse_request(request.id, &reason);
        }
        // [impl->swdd~agent-forward-request-from-control-interface-pipe-to-server~1]
        let effect = match self.refusal(&request) {
            Some(error) => SessionEffect::Answer(Response {
                id: request.id,
                content: ResponseContent::Error(error),
            }),
            None => SessionEffect::Forward(HeldRequest {
                request,
                since: now,
            }),
        };
        self.effects.push_back(effect);
    }

    /// The error for a request that the rules of the workload deny, or that the server would refuse
    /// in the same way; `None` for any other request.
    fn refusal(&self, Request { id, content }: &Request) -> Option<ErrorResponse> {
        if let Err(denial) = self.authorizer.check(content) {
            let denial = denial.to_string();
            info!(
                "Denied request '{}' of workload '{}': {}",
                excerpt(id),
                self.workload,
                excerpt(&denial)
            );
            return Some(ErrorResponse::from(DENIED));
        }
        let RequestContent::UpdateState(update) = content else {
            return None;
        };
        match &update.new_state {
            None => Some(ErrorResponse::no_state()),
            Some(Err(reason)) => Some(format!("Update rejected: '{reason}'").into()),
            Some(Ok(_)) => None,
        }
    }

    /// Responds with an error to a request that is too large to be forwarded. An id that is too
    /// long is cut.
    fn refuse_request(&mut self, mut id: String, reason: &str) {
        self.complain(&format!("Request '{}' is refused: {reason}", excerpt(&id)));
        id.truncate(id.floor_char_boundary(REQUEST_ID_MAX));
        let content = ResponseContent::Error(format!("Request refused: {reason}").into());
        self.effects
            .push_back(SessionEffect::Answer(Response { id, content }));
    }

    /// Ends the session for this reason, until the workload closes its pipe.
    fn refuse(&mut self, reason: String) {
        let _source = log_source(self.workload.clone());
        warn!(
            "Closing the control interface connection of workload '{}': '{}'",
            self.workload,
            excerpt(&reason)
        );
        self.stage = SessionStage::Refused;
        self.held = None;
        self.forget_partial();
        self.effects
            .push_back(SessionEffect::Greet(ToWorkload::Closed { reason }));
    }

    /// Drops the bytes of an incomplete message. While a request waits, the buffer may contain
    /// whole messages, so it stays.
    fn forget_partial(&mut self) {
        if self.held.is_none() {
            self.buffer.clear();
        }
        self.began = None;
    }

    /// Logs a fault of the workload.
    fn complain(&self, text: &str) {
        warn!("Workload '{}': {text}", self.workload);
    }
}

#[cfg(test)]
mod tests;
