//! The uplink against a real endpoint on the loopback interface. Waits are bounded and end as soon
//! as something comes.

use super::super::uplink_outbox::{UplinkOutbox, uplink_outbox};
use super::*;
use crate::limits::SCHEDULER_INBOX;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::MESSAGE_MAX;
use ankaios_model::messages::{AgentCapabilities, AgentHello, AgentLoad, FromServer};
use ankaios_model::names::InstanceName;
use ankaios_model::version::VERSION;
use ankaios_platform::threads::Thread;
use ankaios_platform::watchdog::WatchedThreads;
use ankaios_wire::address::{ListenAddress, Security, ServerUrl};
use ankaios_wire::client::Service;
use ankaios_wire::limits::{CONNECT_MAX, SERVER_INBOX};
use ankaios_wire::outbox::Outbox;
use ankaios_wire::peer::{PeerEvent, PeerHello};
use ankaios_wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use std::net::SocketAddr;

/// Longest wait for what must come.
const LIMIT: Duration = Duration::from_secs(180);

fn endpoint(address: SocketAddr) -> (ServerEndpoint, Receiver<PeerEvent>) {
    let (inbox, events) = bounded(SERVER_INBOX);
    let options = EndpointOptions {
        addresses: vec![ListenAddress::Tcp(address)],
        socket_mode: 0o660,
        security: Security::Insecure,
        message_max: MESSAGE_MAX,
        commander_names: Vec::new(),
    };
    (
        ServerEndpoint::start(&options, inbox, &mut WatchedThreads::new(|_| {})).unwrap(),
        events,
    )
}

/// The TCP address, of which there is one.
fn address_of(server: &ServerEndpoint) -> SocketAddr {
    match server.addresses() {
        [ListenAddress::Tcp(address)] => *address,
        other => panic!("{other:?}"),
    }
}

/// An uplink on a thread of its own.
struct Running {
    outbox: UplinkOutbox,
    events: Receiver<SchedulerEvent>,
    stop: Option<Sender<()>>,
    result: Receiver<Option<String>>,
    thread: Option<Thread>,
}

impl Running {
    fn start(server: SocketAddr, version: &'static str) -> Self {
        let (outbox, reader) = uplink_outbox();
        let (scheduler, events) = bounded(SCHEDULER_INBOX);
        let (stop, stopped) = bounded(0);
        let (results, result) = bounded(1);
        let control = ControlHub::new(outbox.clone(), MESSAGE_MAX).unwrap();
        let uplink = Uplink {
            options: ClientOptions {
                url: ServerUrl::parse(&format!("http://{server}")).unwrap(),
                security: Security::Insecure,
                service: Service::Agent,
                connect_limit: CONNECT_MAX,
                message_max: MESSAGE_MAX,
            },
            agent: "agent_A".to_owned(),
            removes_images: false,
            version,
            tags: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            outbox: reader,
            control,
            scheduler,
            status: StatusBoard::default(),
        };
        let thread = threads::spawn("uplink", STACK_LARGE, move || {
            let _ =
                results.send(uplink.run(&stopped, &WatchedThreads::new(|_| {}).add("unattended")));
        });
        Self {
            outbox,
            events,
            stop: Some(stop),
            result,
            thread: Some(thread.unwrap()),
        }
    }

    fn stop(mut self) {
        self.stop = None;
        assert!(
            threads::join_all(self.thread.take(), LIMIT).is_empty(),
            "it ends when told to"
        );
    }
}

fn opened(events: &Receiver<PeerEvent>) -> Outbox {
    match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Opened { hello, outbox, .. } => {
            let tags = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
            assert_eq!(
                hello,
                PeerHello::Agent(AgentHello {
                    agent: "agent_A".to_owned(),
                    tags,
                    capabilities: AgentCapabilities {
                        tells_usage: true,
                        prepares: true,
                        removes_images: false,
                    },
                    version: ankaios_model::version::VERSION.to_owned()
                })
            );
            outbox
        }
        other => panic!("a hello is expected, not {other:?}"),
    }
}

/// The server says hello, and the agent hears it.
fn greet(to_agent: &Outbox, uplink: &Running) {
    to_agent.put(FromServer::ServerHello(vec![])).unwrap();
    let event = uplink.events.recv_timeout(LIMIT).unwrap();
    assert!(
        matches!(event, SchedulerEvent::Server(FromServer::ServerHello(_))),
        "{event:?}"
    );
}

/// The server drops the connection, and both notice.
fn disconnect(to_agent: Outbox, uplink: &Running, peers: &Receiver<PeerEvent>) {
    drop(to_agent);
    let event = uplink.events.recv_timeout(LIMIT).unwrap();
    assert!(matches!(event, SchedulerEvent::ServerGone), "{event:?}");
    assert!(matches!(
        peers.recv_timeout(LIMIT).unwrap(),
        PeerEvent::Closed { .. }
    ));
}

fn message(events: &Receiver<PeerEvent>) -> ToServer {
    match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Message { message, .. } => message,
        other => panic!("a message is expected, not {other:?}"),
    }
}

fn state(phase: Phase) -> WorkloadState {
    WorkloadState::new(
        InstanceName::with_id("w", "id", "agent_A"),
        ExecutionState::plain(phase),
    )
}

// [utest->swdd~agent-sends-hello~1]
#[test]
fn lost_connection_is_reported_and_made_again() {
    let (server, peers) = endpoint("127.0.0.1:0".parse().unwrap());
    let uplink = Running::start(address_of(&server), VERSION);
    let to_agent = opened(&peers);
    greet(&to_agent, &uplink);
    uplink.outbox.put(state(Phase::Running));
    assert_eq!(
        message(&peers),
        ToServer::WorkloadStates(vec![state(Phase::Running)])
    );

    disconnect(to_agent, &uplink, &peers);
    uplink.outbox.put(state(Phase::Removed));
    let _to_agent = opened(&peers);
    assert_eq!(
        message(&peers),
        ToServer::WorkloadStates(vec![state(Phase::Removed)])
    );
    uplink.stop();
    server.stop(LIMIT);
}

#[test]
fn what_is_put_because_of_a_hello_is_sent_on_each_connection() {
    let (server, peers) = endpoint("127.0.0.1:0".parse().unwrap());
    let uplink = Running::start(address_of(&server), VERSION);
    for cpu_usage in 0..3 {
        let to_agent = opened(&peers);
        greet(&to_agent, &uplink);
        let load = AgentLoad {
            agent: "agent_A".to_owned(),
            cpu_usage,
            free_memory: 1,
            engine: String::new(),
        };
        uplink.outbox.put_load(load.clone());
        assert_eq!(message(&peers), ToServer::AgentLoad(load));
        disconnect(to_agent, &uplink, &peers);
    }
    uplink.stop();
    server.stop(LIMIT);
}

#[test]
fn a_server_of_another_version_is_given_up() {
    let (server, _peers) = endpoint("127.0.0.1:0".parse().unwrap());
    let uplink = Running::start(address_of(&server), "9.0.0");
    let text = uplink.result.recv_timeout(LIMIT).unwrap();
    assert_eq!(
        text.as_deref(),
        Some("Unsupported protocol version '9.0.0'. Currently supported '1'")
    );
    server.stop(LIMIT);
}

#[test]
fn a_server_that_comes_later_is_found() {
    let (server, _) = endpoint("127.0.0.1:0".parse().unwrap());
    let address = address_of(&server);
    server.stop(LIMIT);
    let uplink = Running::start(address, VERSION);
    let (server, peers) = endpoint(address);
    drop(opened(&peers));
    uplink.stop();
    server.stop(LIMIT);
}

/// The end of a session in which the server has sent nothing.
const UNREACHABLE: Interruption = Interruption {
    reason: String::new(),
    greeted: false,
    closed_by_server: false,
};
const LOST: Interruption = Interruption {
    reason: String::new(),
    greeted: true,
    closed_by_server: false,
};
const CLOSED: Interruption = Interruption {
    reason: String::new(),
    greeted: true,
    closed_by_server: true,
};

impl Reconnects {
    /// The milliseconds of the pauses after as many sessions that ended so and lasted that long.
    fn pauses(&mut self, count: usize, end: &Interruption, lasted: Duration) -> Vec<u128> {
        let mut pauses = Vec::new();
        for _ in 0..count {
            pauses.push(self.next_pause(end, lasted).as_millis());
        }
        pauses
    }
}

#[test]
fn first_attempts_to_connect_are_quick_and_later_ones_are_not() {
    let mut reconnects = Reconnects::default();
    let pauses = reconnects.pauses(7, &UNREACHABLE, Duration::ZERO);
    assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000, 1000]);
    // Connections that were ended at once.
    let pauses = reconnects.pauses(3, &LOST, RECONNECT_PAUSE);
    assert_eq!(pauses, [1000, 1000, 1000]);
    let lasted = RECONNECT_PAUSE * 2;
    assert_eq!(reconnects.pauses(2, &LOST, lasted), [100, 100]);
    reconnects.failures = u32::MAX;
    let pauses = reconnects.pauses(1, &UNREACHABLE, Duration::ZERO);
    assert_eq!(pauses, [1000]);
}

#[test]
fn pause_of_an_agent_that_is_displaced_again_and_again_grows() {
    // Each of two agents with one name is connected during the pause of the other one.
    let mut reconnects = Reconnects::default();
    let mut pauses = Vec::new();
    let mut lasted = Duration::ZERO;
    for _ in 0..12 {
        lasted = reconnects.next_pause(&CLOSED, lasted);
        pauses.push(lasted.as_millis());
    }
    assert_eq!(pauses[..4], [100, 200, 400, 800]);
    assert_eq!(pauses[8..], [25_600, 30_000, 30_000, 30_000]);
    assert!(reconnects.is_displaced_again());
    // The other one was renamed.
    let stable = RECONNECT_STABLE * 2;
    assert_eq!(reconnects.pauses(1, &CLOSED, stable), [100]);
    assert!(!reconnects.is_displaced_again());
}

/// Notes an interruption. Returns whether it is logged as a warning.
fn is_logged(log: &mut InterruptionLog, reason: &str, now: Instant) -> bool {
    let is_new = log.is_new(reason, now);
    log.log(reason, now);
    is_new
}

#[test]
fn long_absence_of_the_server_logs_new_reasons_only() {
    let clock = ManualClock::new();
    let mut log = InterruptionLog::default();
    let told = (0..86_400).filter(|_| {
        clock.advance(RECONNECT_PAUSE);
        is_logged(&mut log, "connection refused", clock.now())
    });
    let told = told.count();
    assert!((24..=34).contains(&told), "{told}");
    assert!(is_logged(&mut log, "no route to host", clock.now()));
    assert!(is_logged(&mut log, "connection refused", clock.now()));
    assert!(!is_logged(&mut log, "connection refused", clock.now()));
}
