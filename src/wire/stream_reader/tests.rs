//! The two threads of a reader: which one gets a message, and in which order.

use super::*;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::thread::JoinHandle;

/// A stream whose messages are pushed by the thread that stands for that of gRPC.
struct Pushed {
    messages: Receiver<Received>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Stream for Pushed {
    type Item = grpcio::Result<Received>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        *self.waker.lock() = Some(context.waker().clone());
        match self.messages.try_recv() {
            Ok(message) => Poll::Ready(Some(Ok(message))),
            Err(error) if error.is_disconnected() => Poll::Ready(None),
            Err(_) => Poll::Pending,
        }
    }
}

/// The end that pushes messages.
struct Pusher {
    messages: Option<Sender<Received>>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Pusher {
    /// As gRPC does: once for each time that the stream was asked, and without a lock.
    fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn push(&self, byte: u8) {
        let messages = self.messages.as_ref().unwrap();
        messages.send(Received::Copied(vec![byte])).unwrap();
        self.wake();
    }

    fn end(&mut self) {
        self.messages = None;
        self.wake();
    }
}

fn pushed() -> (Pusher, Messages) {
    let (give, messages) = unbounded();
    let waker = Arc::new(Mutex::new(None));
    let stream = Pushed {
        messages,
        waker: waker.clone(),
    };
    let pusher = Pusher {
        messages: Some(give),
        waker,
    };
    (pusher, Box::new(stream))
}

/// A message, and the thread that got it.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Now(u8),
    Left(u8),
}

fn byte_of(received: Received) -> u8 {
    match received.unpack(1) {
        Ok(bytes) => bytes[0],
        Err(error) => panic!("{}", error.reason),
    }
}

/// Passes even bytes on, and leaves odd ones.
fn pass_even(got: Sender<Got>) -> PassNow {
    Box::new(move |received| {
        let byte = byte_of(received);
        if byte % 2 == 1 {
            return Some(Received::Copied(vec![byte]));
        }
        got.send(Got::Now(byte)).unwrap();
        None
    })
}

/// Runs the thread of a stream until its end.
fn run(mut reader: StreamReader, got: Sender<Got>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(received) = reader.next() {
            let Ok(received) = received else {
                panic!("the stream failed");
            };
            got.send(Got::Left(byte_of(received))).unwrap();
        }
    })
}

/// Waits until the thread of the stream waits.
fn until_waiting(shared: &SharedReader) {
    while shared.0.lock().waiting.is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn a_message_is_passed_on_only_while_the_thread_waits() {
    let (mut pusher, messages) = pushed();
    let (got, order) = unbounded();
    let reader = StreamReader::passing(messages, pass_even(got.clone()));
    let shared = reader.0.clone();
    // Before the thread asks for the first message, nothing is passed on.
    pusher.push(2);
    let thread = run(reader, got);
    assert_eq!(order.recv(), Ok(Got::Left(2)));
    until_waiting(&shared);
    pusher.push(4);
    assert_eq!(order.try_recv(), Ok(Got::Now(4)));
    pusher.push(5);
    assert_eq!(order.recv(), Ok(Got::Left(5)));
    pusher.end();
    thread.join().unwrap();
    assert!(order.try_recv().is_err());
}

#[test]
fn messages_of_both_threads_stay_in_order() {
    const MESSAGES: u8 = 251;
    let (mut pusher, messages) = pushed();
    let (got, order) = unbounded();
    let reader = StreamReader::passing(messages, pass_even(got.clone()));
    let thread = run(reader, got);
    for byte in 0..MESSAGES {
        pusher.push(byte);
    }
    pusher.end();
    thread.join().unwrap();
    let bytes: Vec<u8> = order
        .try_iter()
        .map(|got| match got {
            Got::Now(byte) | Got::Left(byte) => byte,
        })
        .collect();
    assert_eq!(bytes, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn a_dropped_reader_drops_the_stream_that_would_wake_it() {
    let (pusher, messages) = pushed();
    let (got, order) = unbounded();
    let reader = StreamReader::passing(messages, pass_even(got));
    let shared = reader.0.clone();
    let waker = Waker::from(shared.clone());
    assert!(shared.0.lock().poll(&waker).is_pending());
    drop(reader);
    let messages = pusher.messages.as_ref().unwrap();
    assert!(messages.send(Received::Copied(vec![2])).is_err());
    pusher.wake(); // It has nothing to read any more.
    assert!(order.try_recv().is_err());
}
