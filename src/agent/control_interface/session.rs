//! The protocol of one workload: hello, authorisation, forwarding of requests.
//!
//! Thread: `control`. Owns: bytes that are no whole message yet, whether the workload has sent a hello, one
//! request that waits for room. Reaches the outside through [`Outside`], and waits for nothing.

use super::mailbox;
use crate::limits::{CONTROL_MESSAGE_TIME, REQUEST_ID_MAX};
use crate::model::authorizer::Authorizer;
use crate::model::messages::{FromWorkload, NO_STATE, Request, RequestContent, Response, ResponseContent, ToWorkload};
use crate::model::names::{Name, excerpt};
use crate::model::version::check_compatible;
use crate::platform::logging::log_source;
use crate::wire::delimited::{FrameBuffer, Undecodable, read_message};
use log::{debug, info, warn};
use std::time::{Duration, Instant};

const HELLO_MISSING: &str = "Initial Hello missing!";
const UNDECODABLE: &str = "Could not decode protobuf data";
const DENIED: &str = "Access denied";
const NO_SERVER: &str = "The agent has no connection to the server; try again later";

/// What the agent puts before an id beside the name of the workload.
const PREFIX_MAX: usize = "@4294967295@".len();
/// A large message must be complete after this time when others wait for its turn.
pub(super) const LARGE_TIME: Duration = Duration::from_secs(2);
const _: () = assert!(LARGE_TIME.as_secs() < CONTROL_MESSAGE_TIME.as_secs());

/// What a session does to the world.
pub trait Outside {
    /// Answers a hello, or ends the session, before anything else that waits.
    fn greet(&mut self, message: ToWorkload);

    /// Sends an answer behind those that wait.
    fn answer(&mut self, response: Response);

    /// Begins a new generation: forgets what an earlier user of the pipes has asked and did not read.
    fn begin_generation(&mut self);

    /// Passes a request to the server, which has waited for that since then.
    fn forward(&mut self, request: Request, since: Instant, now: Instant) -> Forwarded;
}

/// What became of a request.
#[derive(Debug, PartialEq)]
pub enum Forwarded {
    /// It is on its way.
    Yes,
    /// It has to wait for the answer to an earlier one, or until answers are read.
    Later(Request),
    /// There is no connection, and it may not wait for one.
    NoServer { id: String },
    /// The workload follows as many events and logs as it may.
    TooMany { id: String },
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
    /// The workload has closed its pipe since its last hello: the next hello may come from another process.
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
        }
    }

    /// Whether the workload has sent a hello and may get responses.
    pub fn is_established(&self) -> bool {
        self.stage == Stage::Established
    }

    /// Since when a request waits. Nothing shall be read meanwhile.
    pub fn paused_since(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, since)| *since)
    }

    /// Bytes of the message that is being read, or of the request that waits, and which message that is.
    pub fn in_hand(&self) -> (usize, u64) {
        if self.held.is_some() {
            (self.message_bytes, self.messages)
        } else {
            (self.buffer.expected(), self.messages + 1)
        }
    }

    /// Its message could not be read for a while: the time to complete it begins now.
    pub fn on_resume(&mut self, now: Instant) {
        self.began = self.began.map(|_| now);
    }

    /// When a message that began must be complete.
    pub fn deadline(&self) -> Option<Instant> {
        self.began.map(|began| began + CONTROL_MESSAGE_TIME)
    }

    /// The workload wrote something.
    // [impl->swdd~agent-listens-for-requests-from-pipe~1]
    pub fn on_bytes(&mut self, bytes: &[u8], now: Instant, outside: &mut dyn Outside) {
        if self.stage != Stage::Refused {
            self.buffer.put(bytes);
            self.on_messages(now, outside);
        }
    }

    /// The request that waits may have waited long enough.
    pub fn on_turn(&mut self, now: Instant, outside: &mut dyn Outside) {
        if let Some((request, since)) = self.held.take() {
            self.forward(request, since, now, outside);
            self.on_messages(now, outside);
        }
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
    pub fn on_restart(&mut self, outside: &mut dyn Outside) {
        self.stage = Stage::New;
        self.closed_since_hello = false;
        self.held = None;
        self.forget_partial();
        outside.begin_generation();
    }

    /// The time of [`Self::deadline`] has come.
    pub fn on_deadline(&mut self, outside: &mut dyn Outside) {
        let reason = match self.stage {
            Stage::New => UNDECODABLE.to_owned(),
            _ => format!("A message was not complete within {} s", CONTROL_MESSAGE_TIME.as_secs()),
        };
        self.refuse(reason, outside);
    }

    /// The message that is being read takes too long while those of others wait for its room.
    pub fn on_slow(&mut self, outside: &mut dyn Outside) {
        let reason = match self.stage {
            Stage::New => UNDECODABLE.to_owned(),
            _ => format!(
                "A large message was not complete within {} s while other workloads waited; write it as a whole",
                LARGE_TIME.as_secs()
            ),
        };
        self.refuse(reason, outside);
    }

    fn on_messages(&mut self, now: Instant, outside: &mut dyn Outside) {
        let mut complete = false;
        while self.stage != Stage::Refused && self.held.is_none() {
            match self.buffer.next_message() {
                Ok(Some(bytes)) => {
                    complete = true;
                    self.message_bytes = bytes.len();
                    self.messages += 1;
                    let message = read_message(bytes);
                    self.on_message(message, now, outside);
                }
                Ok(None) => {
                    let partial = self.buffer.is_partial();
                    self.began = partial.then(|| self.began.filter(|_| !complete).unwrap_or(now));
                    return;
                }
                Err(error) => {
                    let greeted = self.stage != Stage::New; // Before a hello the error has no details.
                    let reason = if greeted { format!("{UNDECODABLE}: {error}") } else { UNDECODABLE.to_owned() };
                    debug!("Workload '{}' wrote {error}.", self.workload);
                    self.refuse(reason, outside);
                }
            }
        }
        self.began = None; // Nothing is read, so nothing is late.
    }

    fn on_message(&mut self, message: Result<FromWorkload, Undecodable>, now: Instant, outside: &mut dyn Outside) {
        let _source = log_source(self.workload.clone());
        match (self.stage, message) {
            (_, Ok(FromWorkload::Hello { version })) => self.on_hello(&version, outside),
            (Stage::New, Ok(_)) => self.refuse(HELLO_MISSING.to_owned(), outside),
            (Stage::New, Err(_)) => self.refuse(UNDECODABLE.to_owned(), outside),
            (_, Ok(FromWorkload::Request(request))) => self.on_request(request, now, outside),
            (_, Ok(FromWorkload::TooHeavy { id, reason })) => self.refuse_request(id, &reason, outside),
            (_, Ok(FromWorkload::Empty)) => {
                self.complain(|| {
                    "Could not convert protobuf in internal data structure: 'ToAnkaios is None.'".to_owned()
                });
            }
            (_, Err(error)) => self.complain(|| format!("Could not decode to Ankaios data. It is skipped: {error}")),
        }
    }

    fn on_hello(&mut self, version: &str, outside: &mut dyn Outside) {
        if let Err(reason) = check_compatible(version) {
            return self.refuse(reason, outside);
        }
        if self.stage == Stage::Established {
            self.complain(|| format!("Received yet another Hello with protocol version '{}'", excerpt(version)));
        } else {
            info!("Control interface connection established. Workload '{}'.", self.workload);
        }
        if std::mem::take(&mut self.closed_since_hello) {
            outside.begin_generation();
        }
        self.stage = Stage::Established;
        outside.greet(ToWorkload::Accepted);
    }

    // [impl->swdd~agent-authorizes-control-interface-requests~1]
    fn on_request(&mut self, request: Request, now: Instant, outside: &mut dyn Outside) {
        let Request { id, content } = request;
        let whole = self.workload.len() + PREFIX_MAX + id.len();
        if whole > REQUEST_ID_MAX {
            // As the server would, but without the memory that the id takes on the way there and back.
            let reason = format!(
                "the request id has {whole} bytes with what the agent puts before it, at most {REQUEST_ID_MAX} are allowed"
            );
            return self.refuse_request(id, &reason, outside);
        }
        let refusal = match (self.authorizer.check(&content), &content) {
            (Err(denial), _) => {
                let denial = denial.to_string();
                info!("Denied request '{}' of workload '{}': {}", excerpt(&id), self.workload, excerpt(&denial));
                Some(DENIED.to_owned())
            }
            (Ok(()), RequestContent::UpdateState(update)) => match &update.new_state {
                None => Some(NO_STATE.to_owned()),
                Some(Err(reason)) => Some(format!("Update rejected: '{reason}'")), // The server would say the same.
                Some(Ok(_)) => None,
            },
            (Ok(()), _) => None,
        };
        if let Some(text) = refusal {
            return outside.answer(Response { id, content: ResponseContent::Error(text) });
        }
        self.forward(Request { id, content }, now, now, outside);
    }

    /// Answers a request that is not passed on because of its size; of an id that is the reason the beginning must do.
    fn refuse_request(&self, mut id: String, reason: &str, outside: &mut dyn Outside) {
        self.complain(|| format!("Request '{}' is refused: {reason}", excerpt(&id)));
        id.truncate(id.floor_char_boundary(REQUEST_ID_MAX));
        let content = ResponseContent::Error(format!("Request refused: {reason}"));
        outside.answer(Response { id, content });
    }

    // [impl->swdd~agent-forward-request-from-control-interface-pipe-to-server~1]
    fn forward(&mut self, request: Request, since: Instant, now: Instant, outside: &mut dyn Outside) {
        let (id, text) = match outside.forward(request, since, now) {
            Forwarded::Yes => return,
            Forwarded::Later(request) => {
                self.held = Some((request, since));
                return;
            }
            Forwarded::NoServer { id } => (id, NO_SERVER.to_owned()),
            Forwarded::TooMany { id } => {
                let most = mailbox::OPEN;
                let text = format!(
                    "Too many event subscriptions and requests for logs, at most {most} are allowed; cancel some first"
                );
                (id, text)
            }
        };
        outside.answer(Response { id, content: ResponseContent::Error(text) });
    }

    fn refuse(&mut self, reason: String, outside: &mut dyn Outside) {
        let _source = log_source(self.workload.clone());
        warn!("Closing the control interface connection of workload '{}': '{}'", self.workload, excerpt(&reason));
        self.stage = Stage::Refused;
        self.held = None;
        self.forget_partial();
        outside.greet(ToWorkload::Closed { reason });
    }

    fn forget_partial(&mut self) {
        if self.held.is_none() {
            self.buffer.clear();
        }
        self.began = None;
    }

    fn complain(&self, text: impl Fn() -> String) {
        warn!("Workload '{}': {}", self.workload, text());
    }
}

#[cfg(test)]
mod tests;
