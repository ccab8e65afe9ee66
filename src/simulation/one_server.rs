//! One server for tests of the expectations, with peers whose messages are read directly.
//!
//! Thread: the one of the test.

use ankaios_model::complete_state::DesiredState;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{
    AgentCapabilities, AgentHello, FromServer, Request, RequestContent, Response, ResponseContent,
    ToServer, UpdateState,
};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_server::{ServerEvent, ServerLoop};
use ankaios_wire::outbox::{OutboxReader, outbox};
use ankaios_wire::peer::{MessagePermits, PeerEvent, PeerHello, PeerId};
use std::collections::BTreeMap;

/// A server and its messages.
#[derive(Default)]
pub(crate) struct OneServer {
    pub server: ServerLoop,
    readers: BTreeMap<PeerId, OutboxReader>,
    opened: u64,
}

impl OneServer {
    /// A server that was started with the manifest `yaml`.
    pub(crate) fn with_manifest(yaml: &str) -> Self {
        let mut cluster = Self::default();
        cluster.server.start_with(desired(yaml)).unwrap();
        cluster
    }

    fn open(&mut self, hello: PeerHello) -> PeerId {
        self.opened += 1;
        let peer = PeerId(self.opened);
        let (outbox, reader) = outbox();
        self.readers.insert(peer, reader);
        let source = String::new();
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
        self.agent_with(name, AgentCapabilities::default())
    }

    pub(crate) fn agent_with(&mut self, name: &str, capabilities: AgentCapabilities) -> PeerId {
        self.open(PeerHello::Agent(AgentHello {
            agent: name.to_owned(),
            capabilities,
            ..AgentHello::default()
        }))
    }

    pub(crate) fn commander(&mut self) -> PeerId {
        self.open(PeerHello::Commander)
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: ToServer) {
        self.server.on_event(ServerEvent::Peer(PeerEvent::Message {
            peer,
            message,
            permits: MessagePermits::default(),
        }));
    }

    pub(crate) fn report(&mut self, peer: PeerId, phases: &[(&InstanceName, Phase)]) {
        let mut states = Vec::new();
        for (instance, phase) in phases {
            states.push(state(instance, *phase));
        }
        self.send(peer, ToServer::WorkloadStates(states));
    }

    /// Sends a request and returns the response to it, which must be the last message.
    pub(crate) fn request(&mut self, peer: PeerId, content: RequestContent) -> ResponseContent {
        let id = "request".to_owned();
        self.send(peer, ToServer::Request(Request { id, content }));
        let reader = &self.readers[&peer];
        let mut last = None;
        while let Some(message) = reader.try_next() {
            last = Some(message);
        }
        match last {
            Some(FromServer::Response(Response { id, content })) if id == "request" => content,
            other => panic!("expected a response, not {other:?}"),
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

    /// The phase of an instance at the server.
    pub(crate) fn phase(&self, instance: &InstanceName) -> Option<Phase> {
        let state = self.server.view().states.get(instance)?;
        Some(state.phase)
    }
}

/// The desired state of a manifest.
pub(crate) fn desired(yaml: &str) -> DesiredState {
    let manifest = ankaios_model::manifest::Manifest::parse(yaml).unwrap();
    manifest.into_desired_state().unwrap()
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
    node(&serde_yaml::from_str(yaml).unwrap())
}

fn node(value: &serde_yaml::Value) -> Node {
    match value {
        serde_yaml::Value::Mapping(entries) => {
            let entries = entries.iter();
            Node::map(entries.map(|(key, value)| (key.as_str().unwrap(), node(value))))
        }
        serde_yaml::Value::Sequence(items) => Node::List(items.iter().map(node).collect()),
        serde_yaml::Value::Number(number) => Node::Number(number.as_u64().unwrap()),
        other => Node::text(other.as_str().unwrap()),
    }
}

pub(crate) fn state(instance: &InstanceName, phase: Phase) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(phase))
}

/// The added and deleted instances of an answer to an update, or its error.
fn outcome(answer: ResponseContent) -> Result<(Vec<String>, Vec<String>), String> {
    match answer {
        ResponseContent::UpdateStateSuccess { added, deleted, .. } => Ok((added, deleted)),
        ResponseContent::Error(ErrorResponse { text, .. }) => Err(text),
        other => panic!("{other:?}"),
    }
}
