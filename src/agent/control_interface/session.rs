//! The protocol of one workload: hello, authorisation, forwarding of requests.
//!
//! Thread: `control`. Owns: bytes that are no whole message yet, whether the workload has sent a
//! hello, one request that waits for room. Gives: [`Effect`]s, and waits for nothing.

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

/// What the agent puts before an id beside the name of the workload.
const PREFIX_MAX: usize = "@4294967295@".len();
/// A large message must be complete after this time when others wait for its turn.
pub(super) const LARGE_TIME: Duration = Duration::from_secs(2);
const _: () = assert!(LARGE_TIME.as_secs() < CONTROL_MESSAGE_TIME.as_secs());

/// What a session wants done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Answers a hello, or ends the session, before anything else that waits.
    Greet(ToWorkload),
    /// An answer behind those that wait.
    Answer(Response),
    /// A new generation begins: what an earlier user of the pipes has asked and did not read is
    /// forgotten.
    Begin,
    /// Passes a request to the server, which has waited for that since then; or [`Session::hold`]
    /// gets it back.
    Forward(Request, Instant),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits for a hello.
    New,
    Established,
    /// The workload got the reason; what it still sends is ignored until it closes its pipe.
    Refused,
}

/// The workload's side of one control interface.
#[derive(Debug)]
pub struct Session {
    workload: Name,
    authorizer: Authorizer,
    stage: Stage,
    /// The workload has closed its pipe since its last hello: the next hello may come from another
    /// process.
    closed_since_hello: bool,
    buffer: FrameBuffer,
    /// When the message began that is not complete.
    began: Option<Instant>,
    /// Bytes of the message that was read last.
    message_bytes: usize,
    /// Messages that were read.
    messages: u64,
    /// A request that waits since then; nothing is read meanwhile.
    held: Option<(Request, Instant)>,
    effects: VecDeque<Effect>,
}

impl Session {
    /// Waits for the hello of `workload`. Its messages may have `message_max` bytes.
    pub fn new(workload: Name, authorizer: Authorizer, message_max: usize) -> Self {
        Self {
            workload,
            authorizer,
            stage: Stage::New,
            closed_since_hello: false,
            buffer: FrameBuffer::new(message_max),
            began: None,
            message_bytes: 0,
            messages: 0,
            held: None,
            effects: VecDeque::new(),
        }
    }

    /// Whether the workload has sent a hello and may get responses.
    pub fn is_established(&self) -> bool {
        self.stage == Stage::Established
    }

    /// Since when a request waits. Nothing shall be read meanwhile.
    pub(crate) fn paused_since(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, since)| *since)
    }

    /// Bytes of the message that is being read, or of the request that waits, and which message
    /// that is.
    pub(crate) fn in_hand(&self) -> (usize, u64) {
        if self.held.is_some() {
            (self.message_bytes, self.messages)
        } else {
            (self.buffer.expected(), self.messages + 1)
        }
    }

    /// Its message could not be read for a while: the time to complete it begins now.
    pub(crate) fn on_resume(&mut self, now: Instant) {
        self.began = self.began.map(|_| now);
    }

    /// When a message that began must be complete.
    pub fn deadline(&self) -> Option<Instant> {
        self.began.map(|began| began + CONTROL_MESSAGE_TIME)
    }

    /// The workload wrote something.
    // [impl->swdd~agent-listens-for-requests-from-pipe~1]
    pub fn on_bytes(&mut self, bytes: &[u8]) {
        if self.stage != Stage::Refused {
            self.buffer.put(bytes);
        }
    }

    /// The request that waits may have waited long enough.
    pub(crate) fn retry_held(&mut self) {
        self.effects.extend(
            self.held
                .take()
                .map(|(request, since)| Effect::Forward(request, since)),
        );
    }

    /// A request has to wait. Nothing is read meanwhile.
    pub(crate) fn hold(&mut self, request: Request, since: Instant) {
        self.held = Some((request, since));
    }

    /// The workload has closed its pipe. A partial message is dropped; the session goes on.
    pub fn on_close(&mut self) {
        self.closed_since_hello = true;
        self.forget_partial();
        if self.stage == Stage::Refused {
            self.stage = Stage::New;
        }
    }

    /// The container was restarted: the new one must send a hello.
    pub(crate) fn on_restart(&mut self) {
        self.stage = Stage::New;
        self.closed_since_hello = false;
        self.held = None;
        self.forget_partial();
        self.effects.push_back(Effect::Begin);
    }

    /// A message takes too long: the time of [`Self::deadline`] has come, or those of others wait
    /// for its room.
    pub fn on_late(&mut self, others_wait: bool) {
        let reason = match self.stage {
            Stage::New => UNDECODABLE.to_owned(),
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

    /// What is to be done next about all that has come.
    pub fn next(&mut self, now: Instant) -> Option<Effect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if self.stage == Stage::Refused || self.held.is_some() {
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
                    let partial = self.buffer.is_partial();
                    self.began = partial.then(|| self.began.unwrap_or(now));
                    return None;
                }
                Err(error) => {
                    // Before a hello the error has no details.
                    let greeted = self.stage != Stage::New;
                    let reason = if greeted {
                        format!("{UNDECODABLE}: {error}")
                    } else {
                        UNDECODABLE.to_owned()
                    };
                    debug!("Workload '{}' wrote {error}.", self.workload);
                    self.refuse(reason);
                }
            }
        }
    }

    fn on_message(&mut self, message: Result<FromWorkload, ConvertError>, now: Instant) {
        let _source = log_source(self.workload.clone());
        match (self.stage, message) {
            (_, Ok(FromWorkload::Hello { version })) => self.on_hello(&version),
            (Stage::New, Ok(_)) => self.refuse(HELLO_MISSING.to_owned()),
            (Stage::New, Err(_)) => self.refuse(UNDECODABLE.to_owned()),
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

    fn on_hello(&mut self, version: &str) {
        if let Err(reason) = check_compatible(version) {
            return self.refuse(reason);
        }
        if self.stage == Stage::Established {
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
        if std::mem::take(&mut self.closed_since_hello) {
            self.effects.push_back(Effect::Begin);
        }
        self.stage = Stage::Established;
        self.effects.push_back(Effect::Greet(ToWorkload::Accepted));
    }

    // [impl->swdd~agent-authorizes-control-interface-requests~1]
    fn on_request(&mut self, request: Request, now: Instant) {
        let Request { id, content } = request;
        let whole = self.workload.len() + PREFIX_MAX + id.len();
        if whole > REQUEST_ID_MAX {
            // As the server would, but without the memory that the id takes on the way there and
            // back.
            let reason = format!(
                "the request id has {whole} bytes with what the agent puts before it, at most {REQUEST_ID_MAX} are allowed"
            );
            return self.refuse_request(id, &reason);
        }
        let refusal = match (self.authorizer.check(&content), &content) {
            (Err(denial), _) => {
                let denial = denial.to_string();
                info!(
                    "Denied request '{}' of workload '{}': {}",
                    excerpt(&id),
                    self.workload,
                    excerpt(&denial)
                );
                Some(ErrorResponse::from(DENIED))
            }
            (Ok(()), RequestContent::UpdateState(update)) => match &update.new_state {
                None => Some(ErrorResponse::no_state()),
                // The server would say the same.
                Some(Err(reason)) => Some(format!("Update rejected: '{reason}'").into()),
                Some(Ok(_)) => None,
            },
            (Ok(()), _) => None,
        };
        // [impl->swdd~agent-forward-request-from-control-interface-pipe-to-server~1]
        self.effects.push_back(match refusal {
            Some(error) => Effect::Answer(Response {
                id,
                content: ResponseContent::Error(error),
            }),
            None => Effect::Forward(Request { id, content }, now),
        });
    }

    /// Answers a request that is not passed on because of its size; of an id that is the reason the
    /// beginning must do.
    fn refuse_request(&mut self, mut id: String, reason: &str) {
        self.complain(&format!("Request '{}' is refused: {reason}", excerpt(&id)));
        id.truncate(id.floor_char_boundary(REQUEST_ID_MAX));
        let content = ResponseContent::Error(format!("Request refused: {reason}").into());
        self.effects
            .push_back(Effect::Answer(Response { id, content }));
    }

    fn refuse(&mut self, reason: String) {
        let _source = log_source(self.workload.clone());
        warn!(
            "Closing the control interface connection of workload '{}': '{}'",
            self.workload,
            excerpt(&reason)
        );
        self.stage = Stage::Refused;
        self.held = None;
        self.forget_partial();
        self.effects
            .push_back(Effect::Greet(ToWorkload::Closed { reason }));
    }

    fn forget_partial(&mut self) {
        if self.held.is_none() {
            self.buffer.clear();
        }
        self.began = None;
    }

    fn complain(&self, text: &str) {
        warn!("Workload '{}': {text}", self.workload);
    }
}

#[cfg(test)]
mod tests;
