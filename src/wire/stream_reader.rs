//! Receives the messages of one stream. The thread of gRPC, which has each message first, passes it
//! on itself when that needs no waiting: waking another thread takes longer. All other messages,
//! and the end, are left to the thread of the stream.
//!
//! Thread: [`StreamReader::next`] on that of the stream, [`PassNow`] on `grpc-poll-0`. The second
//! reads only while the first waits, so the messages stay in order.
//! Owns: the receiving end of the stream.

use super::grpc::Received;
use ankaios_platform::sync::Mutex;
use futures_util::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// The messages of a stream, as gRPC gives them.
pub(crate) type Messages = Box<dyn Stream<Item = grpcio::Result<Received>> + Unpin + Send>;

/// The next message; `None` at the end of the stream. A stream that failed returns errors without
/// end.
pub(crate) type Next = Option<grpcio::Result<Received>>;

/// Passes a message on. Returns one for which it would have to wait, or which takes long.
pub(crate) type PassNow = Box<dyn FnMut(Received) -> Option<Received> + Send>;

/// The receiving end of a stream. The stream ends when it is dropped.
pub(crate) struct StreamReader(Arc<SharedReader>);

struct SharedReader(Mutex<State>);

struct State {
    /// `None` once the [`StreamReader`] was dropped: a stream that waits has a waker, which has
    /// this state.
    messages: Option<Messages>,
    pass_now: PassNow,
    /// A message, or the end, for the thread of the stream.
    left: Option<Next>,
    /// The thread of the stream while it waits.
    waiting: Option<Thread>,
}

impl StreamReader {
    /// Leaves every message to the thread of the stream.
    pub(crate) fn new(messages: Messages) -> Self {
        Self::passing(messages, Box::new(Some))
    }

    /// Calls `pass_now` on the thread of gRPC. It must not wait.
    pub(crate) fn passing(messages: Messages, pass_now: PassNow) -> Self {
        Self(Arc::new(SharedReader(Mutex::new(State {
            messages: Some(messages),
            pass_now,
            left: None,
            waiting: None,
        }))))
    }

    /// As [`Self::passing`], from the next message on.
    pub(crate) fn pass_with(&mut self, pass_now: PassNow) {
        self.0.0.lock().pass_now = pass_now;
    }

    /// Waits for a message that `pass_now` has returned, or that came while this thread was busy.
    pub(crate) fn next(&mut self) -> Next {
        let waker = Waker::from(self.0.clone());
        loop {
            let mut state = self.0.0.lock();
            state.waiting = None;
            if let Poll::Ready(next) = state.poll(&waker) {
                return next;
            }
            state.waiting = Some(std::thread::current());
            drop(state);
            std::thread::park();
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let messages = self.0.0.lock().messages.take();
        drop(messages); // Without the lock, since that ends the call.
    }
}

impl State {
    fn poll(&mut self, waker: &Waker) -> Poll<Next> {
        if let Some(left) = self.left.take() {
            return Poll::Ready(left);
        }
        match &mut self.messages {
            Some(messages) => Pin::new(messages).poll_next(&mut Context::from_waker(waker)),
            None => Poll::Ready(None),
        }
    }

    /// Passes messages on until none is there. Returns the first one that cannot be passed on.
    fn pass_on(&mut self, waker: &Waker) -> Poll<Next> {
        loop {
            match self.poll(waker) {
                Poll::Ready(Some(Ok(received))) => {
                    if let Some(received) = (self.pass_now)(received) {
                        return Poll::Ready(Some(Ok(received)));
                    }
                }
                other => return other,
            }
        }
    }
}

impl Wake for SharedReader {
    /// Called by the thread of gRPC when a message, or the end, may be there.
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut state = self.0.lock();
        if state.waiting.is_none() {
            return; // The thread of the stream looks again before it waits.
        }
        if let Poll::Ready(left) = state.pass_on(&waker) {
            state.left = Some(left);
            if let Some(thread) = state.waiting.take() {
                thread.unpark();
            }
        }
    }
}

#[cfg(test)]
mod tests;
