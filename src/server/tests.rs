//! Tests of the server: a [`Cluster`] drives [`ServerLoop::on_event`] without threads and reads
//! what peers get.

mod agreement;
mod events;
mod floods;
mod hooks;
mod log_lines;
mod logs;
mod many_masks;
mod masks;
mod modes;
mod peers;
mod restarts;
mod rights;
mod stops;
mod unwanted;
mod updates;
mod usage;

use super::subscriptions::SubscriptionKind;
use super::*;
use crate::updates::Failed;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{
    AddedWorkload, AgentCapabilities, AgentHello, AgentLoad, FromServer, ReadState, Request,
    RequestContent, Response, ResponseContent, ToServer, UpdateState, WorkloadPlan,
};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_wire::outbox::{OTHERS_BYTES, OutboxReader, outbox_waking};
use ankaios_wire::peer::{MessagePermits, PeerHello, PeerId};
use ankaios_wire::semaphore::Semaphore;
use std::collections::{BTreeMap, BTreeSet};

impl From<DesiredState> for Stored {
    fn from(desired: DesiredState) -> Self {
        Self {
            desired,
            ..Self::default()
        }
    }
}

/// A server with peers whose messages are read directly from their outboxes.
pub(crate) struct Cluster {
    pub(crate) server: ServerLoop,
    readers: BTreeMap<PeerId, OutboxReader>,
    /// What hooks are asked, when there are some.
    plans: Receiver<WorkloadPlan>,
    /// What answers to all peers share.
    answers: Arc<Semaphore>,
    opened: u64,
}

impl Default for Cluster {
    fn default() -> Self {
        let answers = Semaphore::new(ankaios_wire::limits::RESPONSES_BYTES);
        let (server, plans) = (ServerLoop::default(), crossbeam_channel::never());
        Self {
            server,
            readers: BTreeMap::new(),
            plans,
            answers,
            opened: 0,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(
                (
                    self.server.wrong_unwanted().len(),
                    self.server.timings_agree()
                ),
                (0, true)
            );
        }
    }
}

impl Cluster {
    /// A server that was started with the manifest `yaml`.
    pub(crate) fn with_manifest(yaml: &str) -> Self {
        let mut cluster = Self::default();
        cluster.server.start_with(desired(yaml)).unwrap();
        cluster
    }

    /// Sets hooks, whose outcomes the test sends.
    pub(crate) fn hook(&mut self) {
        let (hooks, plans) = MutatingHooks::scripted();
        self.server.set_hooks(hooks);
        self.plans = plans;
    }

    pub(crate) fn open(&mut self, hello: PeerHello) -> PeerId {
        self.open_from("", hello)
    }

    /// As [`Self::open`], of a peer whose log lines count for `source`, unless it is an agent.
    pub(crate) fn open_from(&mut self, source: &str, hello: PeerHello) -> PeerId {
        self.opened += 1;
        let peer = PeerId(self.opened);
        let (outbox, reader) = outbox_waking(
            Waker::noop().clone(),
            self.answers.clone(),
            Semaphore::new(OTHERS_BYTES),
        );
        self.readers.insert(peer, reader);
        let source = source.to_owned();
        self.server.on_event(ServerEvent::Peer(PeerEvent::Opened {
            peer,
            hello,
            source,
            certificate_expires: None,
            outbox,
        }));
        peer
    }

    pub(crate) fn agent(&mut self, name: &str) -> PeerId {
        self.agent_with(name, Default::default())
    }

    pub(crate) fn agent_with(&mut self, name: &str, capabilities: AgentCapabilities) -> PeerId {
        self.open(PeerHello::Agent(AgentHello {
            agent: name.to_owned(),
            capabilities,
            ..AgentHello::default()
        }))
    }

    /// An agent whose first messages were read already.
    pub(crate) fn settled_agent(&mut self, name: &str) -> PeerId {
        let peer = self.agent(name);
        self.take_all();
        peer
    }

    pub(crate) fn commander(&mut self) -> PeerId {
        self.open(PeerHello::Commander)
    }

    pub(crate) fn close(&mut self, peer: PeerId) {
        self.server
            .on_event(ServerEvent::Peer(PeerEvent::Closed { peer }));
    }

    /// The peer dies without an event for the server.
    pub(crate) fn break_outbox(&mut self, peer: PeerId) {
        self.readers.remove(&peer);
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: ToServer) {
        self.server.on_event(ServerEvent::Peer(PeerEvent::Message {
            peer,
            message,
            permits: MessagePermits::default(),
        }));
    }

    pub(crate) fn report(&mut self, peer: PeerId, states: &[(&InstanceName, Phase)]) {
        let states = states
            .iter()
            .map(|(instance, phase)| state(instance, *phase))
            .collect();
        self.send(peer, ToServer::WorkloadStates(states));
    }

    /// Takes the messages that were sent to `peer` since the last call.
    pub(crate) fn take(&self, peer: PeerId) -> Vec<FromServer> {
        std::iter::from_fn(|| self.readers[&peer].try_next()).collect()
    }

    /// The one plan that the agent was sent since the last look.
    pub(crate) fn one_plan(&self, agent: PeerId) -> WorkloadPlan {
        let messages = self.take(agent);
        let [plan] = plans(&messages)[..] else {
            panic!("{messages:?}")
        };
        plan.clone()
    }

    /// Forgets all messages that were sent.
    pub(crate) fn take_all(&self) {
        self.readers.keys().for_each(|peer| drop(self.take(*peer)));
    }

    /// Whether the server has dropped its end of the stream.
    pub(crate) fn is_closed(&self, peer: PeerId) -> bool {
        self.server.sessions.peer(peer).is_none()
    }

    /// Sends a request without reading its response.
    pub(crate) fn send_request(
        &mut self,
        peer: PeerId,
        id: impl Into<String>,
        content: RequestContent,
    ) {
        self.send(
            peer,
            ToServer::Request(Request {
                id: id.into(),
                content,
            }),
        );
    }

    /// The responses that were sent to `peer` since the last look, and nothing else.
    pub(crate) fn responses(&self, peer: PeerId) -> Vec<ResponseContent> {
        let content = |message| match message {
            FromServer::Response(response) => response.content,
            other => panic!("{other:?}"),
        };
        self.take(peer).into_iter().map(content).collect()
    }

    /// Sends a request and returns the response to it, which must be the last message.
    pub(crate) fn request(&mut self, peer: PeerId, content: RequestContent) -> ResponseContent {
        self.send_request(peer, "question", content);
        match self.take(peer).pop() {
            Some(FromServer::Response(Response { id, content })) if id == "question" => content,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Sends an update from a new commander. Returns added and deleted instances, or the error.
    pub(crate) fn update(
        &mut self,
        new_state: &str,
        masks: &[&str],
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let commander = self.commander();
        let answer = self.request(commander, update(new_state, masks));
        self.send(commander, ToServer::Goodbye);
        outcome(answer)
    }

    /// What a new commander reads with `masks`, as JSON.
    pub(crate) fn read(&mut self, masks: &[&str]) -> String {
        let commander = self.commander();
        let answer = self.request(commander, read(masks, false));
        self.send(commander, ToServer::Goodbye);
        match answer {
            ResponseContent::CompleteState {
                state,
                altered: None,
            } => serde_json::to_string(&state).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The phase of an instance as the server knows it.
    pub(crate) fn phase(&self, instance: &InstanceName) -> Option<Phase> {
        self.server
            .updates
            .workloads()
            .states
            .get(instance)
            .map(|state| state.phase)
    }
}

fn plans(messages: &[FromServer]) -> Vec<&WorkloadPlan> {
    fn plan(message: &FromServer) -> Option<&WorkloadPlan> {
        if let FromServer::UpdateWorkload(plan) = message {
            Some(plan)
        } else {
            None
        }
    }
    messages.iter().filter_map(plan).collect()
}

pub(crate) fn desired(yaml: &str) -> DesiredState {
    ankaios_model::manifest::Manifest::parse(yaml)
        .unwrap()
        .into_desired_state()
        .unwrap()
}

/// The added and deleted instances of an answer to an update, or its error.
fn outcome(answer: ResponseContent) -> Result<(Vec<String>, Vec<String>), String> {
    match answer {
        ResponseContent::UpdateStateSuccess { added, deleted, .. } => Ok((added, deleted)),
        ResponseContent::Error(error) => Err(text_of(error)),
        other => panic!("{other:?}"),
    }
}

/// The text of a refusal, which has the same reason for clients that know only texts.
// [utest->swdd~api-reasons-of-refusals~1]
pub(crate) fn text_of(error: ErrorResponse) -> String {
    let by_text = ErrorResponse::received(error.text.clone(), None);
    assert_eq!(by_text, error);
    error.text
}

/// A read, or a subscription.
pub(crate) fn read(masks: &[&str], subscribe: bool) -> RequestContent {
    let masks = masks.iter().map(|mask| (*mask).to_owned()).collect();
    RequestContent::CompleteState(ReadState { masks, subscribe })
}

pub(crate) fn update(new_state: &str, masks: &[&str]) -> RequestContent {
    let masks = masks.iter().map(|mask| (*mask).to_owned()).collect();
    RequestContent::UpdateState(UpdateState {
        new_state: Some(Ok(tree(new_state))),
        masks,
        ..Default::default()
    })
}

/// A field tree from YAML.
pub(crate) fn tree(yaml: &str) -> Node {
    fn node(value: &serde_yaml::Value) -> Node {
        match value {
            serde_yaml::Value::Mapping(entries) => Node::map(
                entries
                    .iter()
                    .map(|(key, value)| (key.as_str().unwrap(), node(value))),
            ),
            serde_yaml::Value::Sequence(items) => Node::List(items.iter().map(node).collect()),
            serde_yaml::Value::Number(number) => Node::Number(number.as_u64().unwrap()),
            other => Node::text(other.as_str().unwrap()),
        }
    }
    node(&serde_yaml::from_str(yaml).unwrap())
}

pub(crate) fn state(instance: &InstanceName, phase: Phase) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(phase))
}

pub(crate) fn names(added: &[AddedWorkload]) -> Vec<String> {
    added
        .iter()
        .map(|added| added.instance.workload.to_string())
        .collect()
}
