//! Who talks to the server: simulated agents, a commander, a subscriber of events.
//!
//! Thread: requests and reports on the caller's, what the server sends on a thread of each agent
//! and subscriber.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ankaios_lite::model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::messages::{
    AgentCapabilities, AgentHello, FromServer, ReadState, Request, RequestContent, Response,
    ResponseContent, ToServer, UpdateState,
};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::model::node::Node;
use ankaios_lite::model::usage::{AgentUsage, WorkloadUsage};
use ankaios_lite::model::version::VERSION;
use ankaios_lite::wire::client::{
    ClientOptions, ClientReceiver, ClientSender, Hangup, Service, connect,
};
use ankaios_lite::wire::limits::CONNECT_MAX;

use super::process::Server;

/// Longest wait for anything that the server has to send.
const LIMIT: Duration = Duration::from_secs(120);

type Ends = (ClientSender, ClientReceiver, Hangup);

fn open(server: &Server, service: Service, hello: ToServer) -> Option<Ends> {
    let options = ClientOptions {
        url: server.url.clone(),
        security: server.security.clone(),
        service,
        connect_limit: CONNECT_MAX,
        message_max: MESSAGE_MAX,
    };
    connect(&options, hello).ok()
}

/// Whether the server gives an answer right now.
pub fn answers(server: &Server) -> bool {
    // Without this every attempt would cost the start of a gRPC channel.
    let listens = TcpStream::connect(("127.0.0.1", server.port)).is_ok();
    listens
        && Commander::try_connect(server)
            .is_some_and(|mut commander| commander.try_read(&["agents"]).is_some())
}

// --------------------------------------------------------------- commanders

/// Asks one thing after the other.
pub struct Commander {
    sender: ClientSender,
    receiver: ClientReceiver,
    _hangup: Hangup,
}

fn texts(masks: &[&str]) -> Vec<String> {
    masks.iter().map(|mask| (*mask).to_owned()).collect()
}

fn request(content: RequestContent) -> ToServer {
    ToServer::Request(Request {
        id: "bench".to_owned(),
        content,
    })
}

impl Commander {
    pub fn connect(server: &Server) -> Self {
        Self::try_connect(server).expect("the server takes connections")
    }

    fn try_connect(server: &Server) -> Option<Self> {
        let hello = ToServer::CommanderHello {
            version: VERSION.to_owned(),
        };
        let (sender, receiver, hangup) = open(server, Service::Command, hello)?;
        Some(Self {
            sender,
            receiver,
            _hangup: hangup,
        })
    }

    fn ask(&mut self, content: RequestContent) -> Option<ResponseContent> {
        self.sender.send(request(content)).ok()?;
        match self.receiver.receive().ok()? {
            FromServer::Response(Response { content, .. }) => Some(content),
            other => panic!("no answer but {other:?}"),
        }
    }

    fn try_read(&mut self, masks: &[&str]) -> Option<Node> {
        match self.ask(RequestContent::CompleteState(ReadState {
            masks: texts(masks),
            subscribe: false,
        }))? {
            ResponseContent::CompleteState { state, .. } => Some(state),
            other => panic!("no state but {other:?}"),
        }
    }

    /// The part of the state that `masks` select.
    pub fn read(&mut self, masks: &[&str]) -> Node {
        self.try_read(masks).expect("the server answers")
    }

    /// Replaces the desired state.
    pub fn apply(&mut self, new_state: Node) {
        self.update(new_state, texts(&["desiredState"]));
    }

    /// Replaces the parts of the state that `masks` select.
    pub fn update(&mut self, new_state: Node, masks: Vec<String>) {
        let update = UpdateState {
            new_state: Some(Ok(new_state)),
            masks,
            ..Default::default()
        };
        match self.ask(RequestContent::UpdateState(update)) {
            Some(ResponseContent::UpdateStateSuccess { .. }) => {}
            other => panic!("the update was not accepted: {other:?}"),
        }
    }
}

/// Receives changed workload states.
pub struct Subscriber {
    events: Receiver<Instant>,
    _sender: ClientSender,
    hangup: Hangup,
}

impl Subscriber {
    pub fn connect(server: &Server) -> Self {
        let Commander {
            mut sender,
            mut receiver,
            _hangup: hangup,
        } = Commander::connect(server);
        let read = ReadState {
            masks: texts(&["workloadStates"]),
            subscribe: true,
        };
        sender
            .send(request(RequestContent::CompleteState(read)))
            .expect("the server takes requests");
        receiver.receive().expect("the server answers");
        let (events_to, events) = sync_channel(1024);
        std::thread::spawn(move || {
            while receiver.receive().is_ok() && events_to.send(Instant::now()).is_ok() {}
        });
        Self {
            events,
            _sender: sender,
            hangup,
        }
    }

    /// When the next event arrived.
    pub fn next(&self) -> Instant {
        self.events
            .recv_timeout(LIMIT)
            .expect("an event for each change")
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.hangup.hang_up();
    }
}

// ------------------------------------------------------------------- agents

/// How an agent reports the workloads that it is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// All in one message: the agent was faster than its connection.
    Together,
    /// Each in a message of its own.
    OneByOne,
}

/// A simulated agent: its workloads run at once, and deleted ones are gone at once.
pub struct Agent {
    sender: Arc<Mutex<ClientSender>>,
    hangup: Hangup,
    instances: Receiver<InstanceName>,
    /// Its workloads, and whether they are in the last report.
    pub workloads: Vec<(InstanceName, bool)>,
}

impl Agent {
    pub fn connect(server: &Server, name: &str, reports: Reports) -> Self {
        let hello = ToServer::AgentHello(AgentHello {
            agent: name.to_owned(),
            version: VERSION.to_owned(),
            capabilities: AgentCapabilities {
                tells_usage: true,
                ..AgentCapabilities::default()
            },
            ..AgentHello::default()
        });
        let (sender, receiver, hangup) =
            open(server, Service::Agent, hello).expect("the server takes connections");
        let sender = Arc::new(Mutex::new(sender));
        let (started, instances) = sync_channel(16 * 1024);
        let answers = sender.clone();
        std::thread::spawn(move || serve(receiver, &answers, &started, reports));
        Self {
            sender,
            hangup,
            instances,
            workloads: Vec::new(),
        }
    }

    /// Waits until it has reported `count` workloads.
    pub fn wait_for_workloads(&mut self, count: usize) {
        while self.workloads.len() < count {
            let instance = self
                .instances
                .recv_timeout(LIMIT)
                .expect("the server sends the workloads");
            self.workloads.push((instance, true));
        }
    }

    /// Waits until it has reported `count` more workloads.
    pub fn wait_for_more(&mut self, count: usize) {
        self.wait_for_workloads(self.workloads.len() + count);
    }

    /// Reports another state of the workload with this number.
    pub fn report_change(&mut self, number: usize) {
        let index = number % self.workloads.len();
        let (instance, runs) = &mut self.workloads[index];
        *runs = !*runs;
        let phase = if *runs {
            Phase::Running
        } else {
            Phase::Succeeded
        };
        send(
            &self.sender,
            vec![WorkloadState::new(
                instance.clone(),
                ExecutionState::plain(phase),
            )],
        );
    }

    /// Reports that the workload that it got last has failed.
    pub fn report_failure(&self) {
        let (instance, _) = self.workloads.last().expect("it runs one");
        send(
            &self.sender,
            vec![WorkloadState::new(
                instance.clone(),
                ExecutionState::exited(1),
            )],
        );
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.hangup.hang_up();
    }
}

fn serve(
    mut receiver: ClientReceiver,
    sender: &Mutex<ClientSender>,
    started: &SyncSender<InstanceName>,
    reports: Reports,
) {
    let mut own: BTreeSet<InstanceName> = BTreeSet::new();
    while let Ok(message) = receiver.receive() {
        let (added, deleted) = match message {
            FromServer::ServerHello(added) => (added, Vec::new()),
            FromServer::UpdateWorkload(plan) => (plan.added, plan.deleted),
            FromServer::UsageRequest { number } => {
                let response = ToServer::UsageResponse {
                    number,
                    usage: usage_of(&own),
                };
                let _ = sender.lock().expect("nobody panics with it").send(response);
                continue;
            }
            _ => continue,
        };
        // First, the deleted instances are gone.
        let mut gone = Vec::new();
        for workload in deleted {
            own.remove(&workload.instance);
            gone.push(workload.instance);
        }
        if !gone.is_empty() {
            send(sender, states_in(Phase::Removed, &gone));
        }
        // Then, the added ones run.
        let mut names = Vec::new();
        for workload in added {
            own.insert(workload.instance.clone());
            names.push(workload.instance);
        }
        let names_in_message = match reports {
            Reports::Together => names.len().max(1),
            Reports::OneByOne => 1,
        };
        for names in names.chunks(names_in_message) {
            send(sender, states_in(Phase::Running, names));
        }
        for name in names {
            let _ = started.send(name);
        }
    }
}

/// The states of instances that all are in the same phase.
fn states_in(phase: Phase, instances: &[InstanceName]) -> Vec<WorkloadState> {
    let mut states = Vec::new();
    for instance in instances {
        let state = ExecutionState::plain(phase);
        states.push(WorkloadState::new(instance.clone(), state));
    }
    states
}

/// A sample with all values of these instances.
fn usage_of(own: &BTreeSet<InstanceName>) -> AgentUsage {
    const VALUE: Option<u64> = Some(123_456_789);
    let usage = WorkloadUsage {
        memory_bytes: VALUE,
        inactive_file_bytes: VALUE,
        memory_peak_bytes: VALUE,
        cpu_usec: VALUE,
        pids: VALUE,
        uptime_ms: VALUE,
        restarts: VALUE,
        ..WorkloadUsage::default()
    };
    let mut workloads = BTreeMap::new();
    for name in own {
        let of_instance = BTreeMap::from([(name.id.to_string(), usage.clone())]);
        workloads.insert(name.workload.to_string(), of_instance);
    }
    AgentUsage {
        sampled_usec: VALUE,
        workloads,
        ..AgentUsage::default()
    }
}

fn send(sender: &Mutex<ClientSender>, states: Vec<WorkloadState>) {
    // An error means that the bench is over.
    let _ = sender
        .lock()
        .expect("nobody panics with it")
        .send(ToServer::WorkloadStates(states));
}
