//! Effects: the messages, changes and writes that a part of the server wants outside of itself.
//!
//! A part changes its own fields only. A call that affects peers, subscribers, other parts or the
//! disk adds effects to a list, which [`super::ServerLoop::apply`] applies in their order. A call
//! without such a list is a question, or changes nothing but the part.
//!
//! Thread: `server`; plain values.

use super::sessions::RequestKey;
use super::subscriptions::ChangedPaths;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AddedWorkload, FromServer, ResponseContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_wire::outbox::OutboxError;
use ankaios_wire::peer::PeerId;

/// One thing to do outside of the part that wants it.
#[derive(Debug)]
pub(crate) enum Effect {
    // ------------------------------------------------------------------- peers
    /// Send a message to an agent, if it is connected.
    SendToAgent { agent: Name, message: FromServer },
    /// Send states to every stream that receives broadcasts, and to no agent its own.
    Broadcast(Vec<WorkloadState>),
    /// Send a response.
    Respond {
        key: RequestKey,
        content: ResponseContent,
    },
    /// Send states to command lines of an earlier version only.
    BroadcastToClis(Vec<WorkloadState>),
    /// Close a stream that did not take a message.
    Close { peer: PeerId, error: OutboxError },
    // ------------------------------------------------------------- subscribers
    /// Notify subscribers of these changes and of all states that have changed.
    Publish(ChangedPaths),
    /// The same at the end of the event, after the response.
    PublishLater(ChangedPaths),
    // -------------------------------------------------------------------- disk
    /// Store the desired state and all guarded updates.
    Store,
    // ------------------------------------------------------------- other parts
    /// The effective workloads have changed.
    Replaced {
        added: Vec<AddedWorkload>,
        deleted: Vec<InstanceName>,
    },
    /// States were reported, or follow from the loss of an agent.
    Reported {
        states: Vec<WorkloadState>,
        /// Whether one of these instances was staged.
        was_staged: bool,
        /// Changes that are published with them.
        changes: ChangedPaths,
    },
    /// An instance has no state any more.
    InstanceGone(InstanceName),
    /// The shown state of a staged instance is outdated.
    ShowStaged,
    /// An essential workload has finally failed.
    EssentialFailed(WorkloadState),
}

/// Effects in the order in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    /// Adds an effect.
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// Adds [`Effect::SendToAgent`].
    pub(crate) fn send_to_agent(&mut self, agent: &Name, message: FromServer) {
        self.push(Effect::SendToAgent {
            agent: agent.clone(),
            message,
        });
    }

    /// Adds the effects of another list.
    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Adds [`Effect::Respond`].
    pub(crate) fn respond(&mut self, key: &RequestKey, content: ResponseContent) {
        self.0.push(Effect::Respond {
            key: key.clone(),
            content,
        });
    }

    /// Adds [`Effect::Respond`] with an error.
    pub(crate) fn refuse(&mut self, key: &RequestKey, text: String) {
        self.respond(key, ResponseContent::Error(text.into()));
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
