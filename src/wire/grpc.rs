//! What both ends of a gRPC stream share: methods, channel arguments, the library's environment,
//! blocking waits.
//!
//! Thread: plain functions; the library itself runs `grpc-poll-0` and a few idle threads of its
//! own.

use super::convert::messages::request_id_of_begin;
use super::grpc_parts;
use super::outbox::Outgoing;
use crate::limits::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, REQUEST_ID_MAX, TCP_USER_TIMEOUT};
use ankaios_model::limits::FOREIGN_MESSAGE_MAX;
use ankaios_platform::clock::{Clock, SystemClock};
use grpcio::{ChannelBuilder, EnvBuilder, Environment, GrpcSlice, Marshaller, Method, MethodType};
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use std::ffi::CString;
use std::future::Future;
use std::io::Read;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::sync::{Arc, Once, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// The three services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// For agents.
    Agent,
    /// For command line tools: gets broadcasts of workload states. Deprecated.
    Cli,
    /// For other commanders: gets responses only.
    Command,
}

impl Service {
    pub(crate) const fn method(self) -> &'static str {
        match self {
            Self::Agent => "/grpc_api.AgentConnection/ConnectAgent",
            Self::Cli => "/grpc_api.CliConnection/ConnectCli",
            Self::Command => "/grpc_api.CommandConnection/ConnectCommand",
        }
    }
}

/// A message as it was received.
pub(crate) enum Received {
    /// In pieces, of which gRPC has the memory.
    Pieces(grpcio::MessageReader),
    /// Copied from these.
    Copied(Vec<u8>),
}

const RECEIVED: Marshaller<Received> = Marshaller {
    ser: never_sent,
    de: |reader| Ok(Received::Pieces(reader)),
};

/// The client's side of a method.
pub(crate) const fn called(service: Service) -> Method<Vec<u8>, Received> {
    let sent = Marshaller {
        ser: |bytes: &Vec<u8>, slice| give(slice, bytes.clone()),
        de: never_received,
    };
    Method {
        ty: MethodType::Duplex,
        name: service.method(),
        req_mar: sent,
        resp_mar: RECEIVED,
    }
}

/// The server's side of a method.
pub(crate) const fn served(service: Service) -> Method<Received, Outgoing> {
    let sent = Marshaller {
        ser: |message: &Outgoing, slice| give(slice, message.bytes()),
        de: never_received,
    };
    Method {
        ty: MethodType::Duplex,
        name: service.method(),
        req_mar: RECEIVED,
        resp_mar: sent,
    }
}

fn give(slice: &mut GrpcSlice, bytes: Vec<u8>) -> grpcio::Result<()> {
    *slice = bytes.into();
    Ok(())
}

/// A method names both directions although each end uses only one.
fn never_sent(_: &Received, _: &mut GrpcSlice) -> grpcio::Result<()> {
    Err(grpcio::Error::Codec(
        "this end receives such messages".into(),
    ))
}

fn never_received<T>(_: grpcio::MessageReader) -> grpcio::Result<T> {
    Err(grpcio::Error::Codec("this end sends such messages".into()))
}

/// Why a message was not copied.
pub(crate) struct NotUnpacked {
    /// The id of the request, if it is one.
    pub(crate) request_id: Option<String>,
    pub(crate) reason: String,
}

impl Received {
    /// Bytes of the message.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pieces(reader) => reader.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Copies the message, unless that was done before, or it has more than `max` bytes.
    pub(crate) fn unpack(self, max: usize) -> Result<Vec<u8>, NotUnpacked> {
        let mut reader = match self {
            Self::Pieces(reader) => reader,
            Self::Copied(bytes) => return Ok(bytes),
        };
        let length = reader.len();
        if length > max {
            // The response to a request needs its id, which is at the beginning.
            return Err(NotUnpacked {
                request_id: request_id_of_begin(&begin_of(&mut reader)),
                reason: format!("a message of {length} bytes, at most {max} are taken here"),
            });
        }
        let mut bytes = Vec::with_capacity(length);
        match reader.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(NotUnpacked {
                request_id: None,
                reason: format!("it cannot be read: {error}"),
            }),
        }
    }
}

/// The first bytes of a message, in which an id has room.
fn begin_of(reader: &mut grpcio::MessageReader) -> Vec<u8> {
    let mut begin = Vec::new();
    let _ = reader
        .take(2 * REQUEST_ID_MAX as u64)
        .read_to_end(&mut begin); // Without it no response is sent.
    begin
}

/// How the name of our programs begins, whatever their version.
const OWN_USER_AGENT: &str = "ankaios-lite/";

/// The user agent of our programs. The server reads from it how much a client takes.
fn user_agent(message_max: i32) -> String {
    format!(
        "{OWN_USER_AGENT}{} (takes {message_max} bytes)",
        env!("CARGO_PKG_VERSION")
    )
}

/// The largest message for a client with this user agent, in bytes; at most `message_max`. Programs
/// of other implementations keep the default of gRPC.
pub(crate) fn takes(user_agent: &[u8], message_max: usize) -> usize {
    let text = String::from_utf8_lossy(user_agent);
    let Some(own) = text.strip_prefix(OWN_USER_AGENT) else {
        return message_max.min(FOREIGN_MESSAGE_MAX);
    };
    match stated_bytes(own) {
        Some(bytes) => bytes.min(message_max),
        None => message_max,
    }
}

/// The number in a [`user_agent`].
fn stated_bytes(user_agent: &str) -> Option<usize> {
    let (_, rest) = user_agent.split_once("(takes ")?;
    let (bytes, _) = rest.split_once(" bytes)")?;
    bytes.parse().ok()
}

/// Whether a client with this user agent is one of our programs.
pub(crate) fn is_own(user_agent: &[u8]) -> bool {
    user_agent.starts_with(OWN_USER_AGENT.as_bytes())
}

/// Returns whether a client sends its requests only after it has received the response headers.
pub(crate) fn waits_for_headers(user_agent: &[u8]) -> bool {
    String::from_utf8_lossy(user_agent).contains("tonic/")
}

/// The gRPC library, started on first use with a single completion queue.
pub(crate) fn environment() -> Arc<Environment> {
    static ENVIRONMENT: OnceLock<Arc<Environment>> = OnceLock::new();
    ENVIRONMENT.get_or_init(start_library).clone()
}

fn start_library() -> Arc<Environment> {
    grpcio::redirect_log(); // Otherwise the library writes to standard error in another format.
    let environment = EnvBuilder::new()
        .cq_count(1)
        .name_prefix("grpc-poll")
        .build();
    Arc::new(environment)
}

/// Ends the library's thread for timers, since our programs set none. It waits for that thread, so
/// only programs that run for long call this, before their first connection.
pub(crate) fn end_timer_thread() {
    static ENDED: Once = Once::new();
    let _library = environment(); // The thread exists once the library is started.
    ENDED.call_once(grpc_parts::end_timer_thread);
}

/// Ends the library's threads for work of other threads; otherwise as [`end_timer_thread`]. The
/// server keeps them, see [`grpc_parts::end_executor_threads`].
pub(crate) fn end_executor_threads() {
    static ENDED: Once = Once::new();
    let _library = environment();
    ENDED.call_once(grpc_parts::end_executor_threads);
}

/// How late timers of the library may run, in nanoseconds. The shortest are those of its pings,
/// which take seconds.
const TIMER_SLACK_NS: u64 = 50_000_000;

/// Starts the first end of a connection, so that timers of the library may run late.
///
/// With that end the library starts the thread of its timers, which inherits the timer slack of
/// this thread. Once a second it examines two lists, some milliseconds apart. With a large slack
/// the kernel wakes it once for both.
pub(crate) fn with_late_timers<T>(start: impl FnOnce() -> T) -> T {
    let own = current_timer_slack().ok().and_then(NonZeroU64::new);
    // If this fails, the timers only wake the thread more often.
    let _ = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
    let started = start();
    let _ = set_current_timer_slack(own);
    started
}

/// How soon a peer that has vanished is noticed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keepalive {
    /// A ping is sent after this long without traffic.
    pub(crate) interval: Duration,
    /// A peer that does not answer a ping for this long is gone.
    pub(crate) timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: KEEPALIVE_INTERVAL,
            timeout: KEEPALIVE_TIMEOUT,
        }
    }
}

/// Limits and keepalive for either side. A dead peer is noticed within 30 s by default.
pub(crate) fn channel(message_max: usize, keepalive: Keepalive) -> ChannelBuilder {
    let message_max = i32::try_from(message_max).unwrap_or(i32::MAX);
    ChannelBuilder::new(environment())
        .max_receive_message_len(message_max)
        .max_send_message_len(message_max)
        .keepalive_time(keepalive.interval)
        .keepalive_timeout(keepalive.timeout)
        .keepalive_permit_without_calls(true)
        .http2_max_pings_without_data(0)
        // The peers ping as well; without these a server of this library closes their connections.
        .http2_max_ping_strikes(0)
        .http2_min_recv_ping_interval_without_data(Duration::from_secs(1))
        // The library would measure the speed of a connection, and let more unread bytes wait on a
        // fast one. The number of bytes must have a bound, and each measurement is a ping that
        // wakes both ends, one with each load report of an agent. A message that is being read
        // comes in as a whole anyway.
        .http2_bdp_probe(false)
        // No peer compresses. A few bytes would become gigabytes, before any limit is compared.
        .raw_cfg_int(argument("grpc.compression_enabled_algorithms_bitset"), 1)
        .raw_cfg_int(argument("grpc.per_message_decompression"), 0)
        .primary_user_agent(&user_agent(message_max))
}

/// An integer argument of the library that has no method of its own.
pub(crate) fn argument(name: &str) -> CString {
    CString::new(name).expect("argument names are literals without a zero byte")
}

/// Sets the options of a connected socket for gRPC: no delay, dead peers noticed.
///
/// # Errors
/// The socket refuses an option, normally because the peer is gone already.
pub(crate) fn set_tcp_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let limit_ms = u32::try_from(TCP_USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(
        stream, limit_ms,
    )?)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` on the calling thread until it is ready. `None` if that takes longer than `limit`.
pub(crate) fn wait_at_most<F: Future + Unpin>(mut future: F, limit: Duration) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let deadline = SystemClock.now() + limit;
    loop {
        if let Poll::Ready(output) = std::pin::Pin::new(&mut future).poll(&mut context) {
            return Some(output);
        }
        let left = SystemClock.until(deadline);
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_states_what_a_client_takes() {
        let own = |bytes: i32| format!("{} grpc-c/36.0.0 (linux; chttp2)", user_agent(bytes));
        for (text, takes_bytes) in [
            (own(20_000_000), 20_000_000),
            (own(i32::MAX), 64_000_000),
            ("ankaios-lite/0.9.0 grpc-c/36.0.0".to_owned(), 64_000_000),
            (
                "ankaios-lite/2.0.0 (takes many bytes)".to_owned(),
                64_000_000,
            ),
            ("tonic/0.11.0".to_owned(), FOREIGN_MESSAGE_MAX),
            (String::new(), FOREIGN_MESSAGE_MAX),
        ] {
            assert_eq!(takes(text.as_bytes(), 64_000_000), takes_bytes, "{text}");
        }
        assert_eq!(takes(b"tonic", 1_000), 1_000);
    }

    #[test]
    fn the_library_has_no_threads_that_nothing_uses() {
        end_timer_thread();
        end_executor_threads();
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        let names: Vec<String> = names.collect();
        assert!(
            names.iter().any(|name| name.starts_with("grpc-poll")),
            "{names:?}"
        );
        for idle in ["grpc_global_tim", "default-execut", "resolver-execut"] {
            assert!(
                !names.iter().any(|name| name.starts_with(idle)),
                "{names:?}"
            );
        }
    }

    #[test]
    fn only_what_starts_with_a_connection_may_be_late() {
        let own = current_timer_slack().unwrap();
        let slack = with_late_timers(|| {
            let (give, take) = crossbeam_channel::bounded(1);
            let body = move || give.send(current_timer_slack().unwrap()).unwrap();
            ankaios_platform::threads::spawn("late", ankaios_platform::limits::STACK_SMALL, body)
                .unwrap();
            take.recv().unwrap()
        });
        assert_eq!(Duration::from_nanos(slack), Duration::from_millis(50));
        assert_eq!(current_timer_slack().unwrap(), own);
    }

    #[test]
    fn a_wait_ends_with_the_future_or_with_the_time() {
        let limit = Duration::from_secs(30);
        assert_eq!(wait_at_most(std::future::ready(1), limit), Some(1));
        assert_eq!(
            wait_at_most(std::future::pending::<()>(), Duration::from_millis(5)),
            None
        );
    }
}
