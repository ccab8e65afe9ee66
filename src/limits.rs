//! Bounds that several rooms share or a user may meet, with their reasons; others stand beside
//! their one user.
//!
//! Thread: none, plain values.

use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Stack of a thread that only moves messages, in bytes. The kernel takes pages when they are
/// touched.
pub const STACK_SMALL: usize = 128 * 1024;
/// Stack of a thread that parses or builds nested data, in bytes.
pub const STACK_LARGE: usize = 1024 * 1024;
/// Stack of the server's thread, in bytes: templates nested [`TEMPLATE_DEPTH_MAX`] deep need up to
/// 1.5 MiB.
pub const STACK_SERVER: usize = 4 * 1024 * 1024;
/// Longest time that `main` waits for its threads at the end before it names those still running.
pub const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// A turn of an event loop above this is logged as a warning: something blocked that must not.
pub const TURN_MAX: Duration = Duration::from_millis(500);
/// Stack of a thread that runs one workload, in bytes: the manifests of pods may be nested deeply.
pub const STACK_WORKLOAD: usize = 512 * 1024;
/// Longest time that the agent waits for its threads at the end. Calls of the engine are not waited
/// for.
pub const AGENT_STOP_DEADLINE: Duration = Duration::from_secs(1);

// ------------------------------------------------------------------- memory

/// After the start, or the last call of an engine, memory that only it needed is returned after
/// this time.
pub const SETTLE_AFTER: Duration = Duration::from_secs(2);
/// Dropping this many bytes at once is worth the milliseconds that returning them takes.
pub const TRIM_FROM: usize = 1024 * 1024;
/// Messages of this many bytes in total are a burst, after which free memory is returned.
pub const BURST_TRIM_FROM: usize = 4 * 1024 * 1024;
const _: () = assert!(BURST_TRIM_FROM >= TRIM_FROM);
/// Free memory is returned this long after a burst was noticed.
pub const BURST_TRIM_AFTER: Duration = Duration::from_millis(500);

// ---------------------------------------------------------------------- log

/// Log lines that one source may cause in a minute.
pub const LOG_SOURCE_LINES: u64 = 20;

// ------------------------------------------------------------------- queues

/// Messages of all peers waiting in the inbox of the server, and as many that it has taken out of
/// it. When both are full readers wait, and TCP slows the peers down.
pub const SERVER_INBOX: usize = 512;
/// Messages of one stream among them, so that a peer that sends without pause leaves places to
/// others.
pub const SERVER_INBOX_OF_STREAM: usize = SERVER_INBOX / 8;
/// Messages up to this decoded size, in bytes, need no room: their number bounds them.
pub const INBOX_SMALL_MESSAGE: usize = 16 * 1024;
const _: () = assert!(2 * SERVER_INBOX * INBOX_SMALL_MESSAGE < 24 * 1024 * 1024);
/// Bytes that wait for one peer, beside one large message: some thousands of events. A peer for
/// which more waits is disconnected and gets the whole state when it reconnects.
pub const PEER_OUTBOX_BYTES: usize = 16 * 1024 * 1024;
/// While responses of this many bytes wait for all peers together, no request that had to wait is
/// processed and no event sent to a slow subscriber. Responses are built one at a time, so at most
/// one comes on top. With 500 workloads a whole state takes some 250 KB.
pub const ANSWERS_BYTES: usize = 6 * 1024 * 1024;
const _: () = assert!(ANSWERS_BYTES > PEER_EVENTS_BYTES);
/// While requests wait for that room, a peer that occupies some of it and takes nothing for this
/// long is disconnected. On a link of 1 Mbit/s, 250 KB take as long.
pub const PEER_STUCK_CROWDED: Duration = Duration::from_secs(2);
const _: () = assert!(PEER_STUCK_CROWDED.as_secs() < PEER_STUCK.as_secs());
/// A peer that takes nothing for this long while something waits for it is disconnected.
pub const PEER_STUCK: Duration = Duration::from_secs(10);
/// Bytes per second of the slowest supported link (1 Mbit/s). gRPC reports only that a whole
/// message was sent, so a large one has so much longer than [`PEER_STUCK`]; keepalive notices
/// earlier that a peer is gone.
pub const PEER_SLOWEST: u64 = 128 * 1024;
/// A message up to this size, in bytes, counts as sent when gRPC has it; its completion is checked
/// before the next one. Half of the smallest window of a stream, so that it normally leaves at
/// once.
pub const PEER_SMALL_MESSAGE: usize = 32 * 1024;
/// After an agent was sent states of others, further ones are collected in one message for this
/// long, so that a burst of changes on many agents does not cost agents times changes.
pub const STATES_REST: Duration = Duration::from_millis(20);
/// Events waiting for the scheduler thread of the agent; senders wait when it is full. All the room
/// is allocated at the start, so it is no more than bursts need.
pub const SCHEDULER_INBOX: usize = 256;
/// Commands waiting for one state checker; control loops wait when it is full.
pub const WATCH_INBOX: usize = 64;

// ------------------------------------------------------------------ requests

/// What requests of workloads may make of the desired and the effective state together, in bytes of
/// memory: a response with all of it is one that our clients take.
pub const STATE_OF_WORKLOADS_MAX: usize = 16 * 1024 * 1024;
const _: () = assert!(2 * STATE_OF_WORKLOADS_MAX < MESSAGE_MAX);

/// Event subscriptions of one stream. An agent's stream carries those of all its workloads.
pub const SUBSCRIPTIONS_PER_PEER_MAX: usize = 1024;
/// Log collections that one stream may have running. An agent's stream carries those of all its
/// workloads.
pub const LOG_CAMPAIGNS_PER_PEER_MAX: usize = 1024;
/// Event subscriptions of one workload among them.
pub const SUBSCRIPTIONS_OF_WORKLOAD: usize = 64;
/// Log collections of one workload among them. Each may be of many workloads.
pub const LOG_CAMPAIGNS_OF_WORKLOAD: usize = 64;
/// Longest id of a request, in bytes. It is stored, and sent to agents behind the names of a stream
/// and a workload.
pub const REQUEST_ID_MAX: usize = 1024;
/// Parts of all field masks of one read or subscription, equal masks counted each time: two masks
/// for each of 5,000 workloads. More is refused before it is decoded.
pub const READ_MASKS_PARTS_MAX: usize = 50_000;
/// Parts of all field masks of one update and of the names that it restarts, each counted once: a
/// dozen masks for each of 5,000 workloads. Each part may take a hundred bytes while the state is
/// read.
pub const MASKS_PARTS_MAX: usize = 250_000;
/// While responses to all peers take all their room, a peer for which so many bytes wait beside a
/// large message loses further events.
pub const PEER_EVENTS_BYTES: usize = 1024 * 1024;
/// Tags of an agent, in bytes of their keys and values and 64 each. They are stored while it is
/// connected, and are a part of responses with those of all agents.
pub const AGENT_TAGS_BYTES: usize = 16 * 1024;
/// Encoded log entries in one message, in bytes: a peer of another implementation takes 4 MiB at
/// most.
pub const LOG_MESSAGE_MAX: usize = 2 * 1024 * 1024;

/// Longest wait of a read for the samples of agents. A sample takes milliseconds; whoever reads
/// repeats it.
pub const USAGE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the state checkers, which never wait for an engine, before a sample is taken
/// without theirs.
pub const USAGE_PROCESSES_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(USAGE_PROCESSES_MAX.as_millis() < USAGE_WAIT_MAX.as_millis());
/// Longest wait of the thread that writes metrics for the loop that has the numbers.
pub const METRICS_WAIT_MAX: Duration = Duration::from_secs(1);

/// Logs that one agent reads at the same time; each takes a thread and a process of the engine.
pub const LOG_STREAMS_MAX: usize = 64;
/// Those of them that were requested by one workload, on this node or another one.
pub const LOG_STREAMS_OF_WORKLOAD: usize = 16;
/// At its end the agent waits this long for the processes that read logs.
pub const LOG_STOP_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(LOG_STOP_MAX.as_millis() < AGENT_STOP_DEADLINE.as_millis());

// --------------------------------------------------------------- connections

/// Largest gRPC message sent or received by default, in bytes. 5,000 workloads with states need
/// about 8 MB.
pub const MESSAGE_MAX: usize = 64 * 1024 * 1024;
/// What other implementations receive at most (gRPC default), in bytes.
pub const FOREIGN_MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// Longest first message of a stream, in bytes: a hello with [`AGENT_TAGS_BYTES`] of tags.
pub const FIRST_MESSAGE_MAX: usize = 128 * 1024;
const _: () = assert!(AGENT_TAGS_BYTES * 3 / 2 < FIRST_MESSAGE_MAX);
/// Longest request on the stream of an agent, in bytes: what a workload sends by default, and what
/// agents add.
pub const AGENT_REQUEST_MAX: usize = CONTROL_MESSAGE_MAX + 64 * 1024;
const _: () = assert!(AGENT_REQUEST_MAX > FOREIGN_MESSAGE_MAX);
/// Longest wait for a TCP connection. A vehicle network connects in milliseconds or not at all.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// An HTTP/2 ping is sent after this long without traffic.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A peer that does not answer a ping for this long is gone.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time data may stay unacknowledged by TCP before the connection counts as dead.
pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);
/// A new connection must send its hello within this time.
pub const HELLO_MAX: Duration = Duration::from_secs(10);
/// A TLS handshake must be done within this time.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longest path of a Unix domain socket, in bytes: what the kernel takes without the zero at the
/// end.
pub const SOCKET_PATH_MAX: usize = 107;
/// Longest wait of a client for its last message to be sent.
pub const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// Pause of an agent before its second attempt to reach the server, which may be about to start. It
/// doubles with each attempt.
pub const RECONNECT_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause of an agent between two attempts to reach the server.
pub const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(RECONNECT_PAUSE_FIRST.as_millis() < RECONNECT_PAUSE.as_millis());
const _: () = assert!(
    KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs() < 30
        && TCP_USER_TIMEOUT.as_secs() < 30
);

// -------------------------------------------------------- control interface

/// Longest message of a workload by default, in bytes. Memory is allocated as bytes arrive, not for
/// the announced length.
pub const CONTROL_MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// A message must be complete this long after its first byte. Slow programs need milliseconds.
pub const CONTROL_MESSAGE_TIME: Duration = Duration::from_secs(30);

// -------------------------------------------------------------------- names

/// Longest name of a workload, agent or config item, in bytes.
pub const NAME_MAX: usize = 63;
/// Bytes shown of a text from outside that may have any length.
pub const EXCERPT_MAX: usize = 200;

// ----------------------------------------------------------------- lifecycle

/// Additional info about probes and conditions, in bytes: it is sent to the whole cluster.
pub const CONDITION_INFO_MAX: usize = 256;
/// Commands that check at the same time, at most one of each workload. More wait: each costs the
/// engine some 0.1 s.
pub const EXEC_PARALLEL: usize = 4;
/// A command that takes longer gives its slot back, so that hanging ones delay no others for long.
pub const EXEC_SLOT_MAX: Duration = Duration::from_secs(2);
/// Running commands, hanging ones among them: each is a process of the engine, with some 10 MB.
pub const EXEC_RUNNING_MAX: usize = 16;
const _: () = assert!(EXEC_RUNNING_MAX > EXEC_PARALLEL);

/// Threads that probe paths for one owner. A network mount that does not answer blocks one each; a
/// node has few. While all are blocked, what is prepared and names paths is created anew.
pub const PATH_THREADS: usize = 4;
/// Probes of paths of one owner without a result: two for each of many workloads.
pub const PATH_PROBES_MAX: usize = 1024;
/// Longest wait of the scheduler for paths of conditions, once for each that does not answer. A
/// disk needs less.
pub const PATH_WAIT: Duration = Duration::from_millis(50);
const _: () = assert!(PATH_WAIT.as_millis() * PATH_THREADS as u128 * 2 < TURN_MAX.as_millis());

// ---------------------------------------------------------- guarded updates

/// Guarded updates that are open at the same time. Each report is compared with all of them.
pub const UPDATES_OPEN: usize = 16;
/// How many of these workloads may have requested, so that there is room for those of commanders.
pub const UPDATES_OPEN_OF_WORKLOADS: usize = 12;
/// Ended updates that are known, so that failures are remembered: of commanders, and as many of
/// workloads.
pub const UPDATES_ENDED: usize = 16;
/// What was before them, in bytes of JSON, newest first, of either: it is written with each desired
/// state.
pub const UPDATES_ENDED_BYTES: usize = 1024 * 1024;
/// An agent that is away for so long is not waited for before an update is carried out.
pub const UPDATE_AGENT_AWAY: Duration = Duration::from_secs(60);
/// Starts of the server and losses of agents after which an update has failed: it may be their
/// reason.
pub const UPDATE_LOSSES: u32 = 3;

// ---------------------------------------------------------------- templates

/// Blocks, alternatives and brackets of a template may be nested this deep. The template engine
/// recurses and would overflow the stack, which ends the process; it needs up to 16 KiB for each
/// level.
pub const TEMPLATE_DEPTH_MAX: usize = 64;
/// Longest rendered template, in bytes. Agents of Eclipse Ankaios take no longer messages.
pub const RENDERED_MAX: usize = FOREIGN_MESSAGE_MAX;
/// All rendered templates of one update, in bytes; more could not be sent to agents.
pub const RENDERED_UPDATE_MAX: usize = 2 * MESSAGE_MAX;
/// The same of a request of a workload, which may make only [`STATE_OF_WORKLOADS_MAX`] of the
/// state.
pub const RENDERED_FOR_WORKLOAD_MAX: usize = STATE_OF_WORKLOADS_MAX / 2;
const _: () = assert!(2 * TEMPLATE_DEPTH_MAX * 16 * 1024 < STACK_SERVER);
/// Steps of all templates of one update. A step is at most about a microsecond of the server's
/// thread on a small PC. Thousands of workloads with loops need some 100,000; nested loops over a
/// short list could run for ever.
pub const TEMPLATE_STEPS_MAX: usize = 1_000_000;
/// Steps of all templates at a start, which are the result of several updates. Agents wait at most
/// two seconds meanwhile, and then start what is rendered; the rest has failed.
pub const TEMPLATE_START_STEPS: usize = 1_600_000;
/// One part of so many of these is shared evenly by all workloads; the rest is for those that need
/// more.
pub const TEMPLATE_START_SHARE: usize = 4;
const _: () = assert!(
    TEMPLATE_START_STEPS - TEMPLATE_START_STEPS / TEMPLATE_START_SHARE > TEMPLATE_STEPS_MAX
);
/// Bytes of config values that are copied or compared in one step.
pub const TEMPLATE_STEP_BYTES: usize = 1024;
/// Config values that the templates of one workload can name, in bytes. The template engine gets a
/// copy of them.
pub const TEMPLATE_VALUES_MAX: usize = RENDERED_MAX;

// ------------------------------------------------------------ other programs

/// Longest wait for a killed child; one that the kernel cannot end is left to a thread of its own.
pub const KERNEL_KILL_GRACE: Duration = Duration::from_secs(2);
/// How often the end of a child is checked where the kernel has no pidfd (before Linux 5.3).
pub const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What a pipe holds by default, in bytes.
pub const PIPE_CAPACITY: usize = 64 * 1024;
/// Most that a pipe can hold without privileges, in bytes (`/proc/sys/fs/pipe-max-size`).
pub const PIPE_CONTENT_MAX: usize = 1024 * 1024;

// ----------------------------------------------------------- mutating hooks

/// Time from SIGTERM to SIGKILL for a hook.
pub const HOOK_KILL_GRACE: Duration = Duration::from_millis(500);
const _: () = assert!(HOOK_KILL_GRACE.as_millis() < STOP_DEADLINE.as_millis());

// ------------------------------------------------------------------ engines

/// Longest wait for one listing of containers. Slow flash makes seconds normal, not minutes.
pub const LISTING_MAX: Duration = Duration::from_secs(30);
/// Interval of full listings, which repair what events cannot show.
pub const REPAIR_INTERVAL: Duration = Duration::from_secs(30);
/// How often containers are listed where no pidfd can be had.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How much longer than the container's own stop timeout a stop may take.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// A create that takes longer gives its start slot back, so that a hanging one delays no other.
pub const START_SLOT_MAX: Duration = Duration::from_secs(10);
/// How often the age of a long create is reported in the additional info.
pub const CREATE_AGE_INTERVAL: Duration = Duration::from_secs(10);
/// Reason of a failed engine call in states, in bytes; the log has the whole output. With what is
/// written around it, it fits into [`CONDITION_INFO_MAX`].
pub const ENGINE_REASON_MAX: usize = 200;
const _: () = assert!(ENGINE_REASON_MAX + 40 <= CONDITION_INFO_MAX);
const _: () = assert!(LISTING_MAX.as_secs() <= REPAIR_INTERVAL.as_secs());
/// A container of an earlier agent that is only created is replaced after this time. An engine that
/// restarts a container shows it so for a moment.
pub const CREATED_MAX: Duration = Duration::from_secs(90);
const _: () = assert!(CREATED_MAX.as_secs() > REPAIR_INTERVAL.as_secs() + LISTING_MAX.as_secs());
/// An engine that has not listed its containers within this time after the agent's start delays
/// only its own workloads from then on.
pub const FIRST_LISTING_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(FIRST_LISTING_MAX.as_secs() < LISTING_MAX.as_secs());

/// Engine calls of a killed agent may run for this long before they are ended.
pub const EARLIER_CALLS_MAX: Duration = Duration::from_secs(30);
/// Calls that do not end within this time after SIGTERM are killed.
pub const EARLIER_CALLS_GRACE: Duration = Duration::from_secs(5);

// ----------------------------------------------------------------- workloads

/// Failed creates are retried this often by default; 0 in the configuration means no limit.
pub const RETRY_LIMIT: u32 = 20;
/// Upper bound of the first retry or restart delay; it doubles with each further one.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Upper bound of all retry and restart delays.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// A workload that has failed for good is tried again this often, without a new report.
pub const REVIVAL_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// After running this long, the next restart of a workload is immediate again.
pub const RESTART_RESET: Duration = Duration::from_secs(60);
/// Two starts of one workload are at least this far apart.
pub const RESTART_SPACING: Duration = Duration::from_secs(1);
/// Additional info in a report, in bytes; the rest of a long engine message is cut.
pub const ADDITIONAL_INFO_MAX: usize = 4 * 1024;
/// Longest path of the kernel in bytes, its end included; an engine could not mount a file at a
/// longer one.
pub const PATH_MAX: usize = 4096;
/// Longest removal of files that a workload left in the agent's folder; only that workload waits. A
/// million are removed in this time in memory, some ten thousand on a slow disk.
pub const REMOVAL_MAX: Duration = Duration::from_secs(60);
/// How often the agent reports its load.
pub const LOAD_INTERVAL: Duration = Duration::from_secs(2);
