//! Whose a request is, and whether it may be asked: a stream and, where the stream is that of an agent, one of its
//! workloads.
//!
//! An agent's stream carries what its workloads ask, and the agent has compared it with their rules. The server does
//! so again, with the rules that it gave the agent, so that an agent in wrong hands can ask no more than the workloads
//! that it was given anyway.
//!
//! Thread: `server`; plain values and the part of [`ServerLoop`] that uses them.

use super::{PeerClass, RequestKey, ServerLoop};
use crate::model::authorizer::{Authorizer, Denial};
use crate::model::complete_state::WorkloadStates;
use crate::model::mask_tree::MaskTree;
use crate::model::messages::{AddedWorkload, RequestContent};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::wire::peer::PeerId;
use std::collections::BTreeMap;
use std::fmt;

/// Who asks: a stream, and on that of an agent the workload. Answers to one requester keep their order, and what one
/// requester takes is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requester {
    /// The stream.
    pub peer: PeerId,
    /// The agent whose stream it is; `None` for commanders.
    pub agent: Option<Name>,
    /// On the stream of an agent the name before the first `@` of the request id, which is a workload of that agent
    /// once the request is accepted; `None` on other streams, and where the id names nobody.
    pub workload: Option<Name>,
}

impl Requester {
    /// Whether both ask on the same stream, or on streams of the same agent.
    #[must_use]
    pub fn is_of_same_stream(&self, other: &Self) -> bool {
        match (&self.agent, &other.agent) {
            (None, None) => self.peer == other.peer,
            (mine, others) => mine == others,
        }
    }
}

/// Why a request on the stream of an agent is denied. The texts begin as those of agents do.
#[derive(Debug, PartialEq, Eq)]
pub struct Denied(String);

impl fmt::Display for Denied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Access denied: {}", self.0)
    }
}

/// A workload of an agent, as requests see it.
#[derive(Debug)]
struct Asking<'r> {
    /// The instance that the agent was told to run last.
    instance: &'r InstanceName,
    /// `None` when it has no control interface.
    authorizer: Option<&'r Authorizer>,
}

/// A workload that its agent does not have to run any more.
#[derive(Debug)]
struct Ending {
    instance: InstanceName,
    authorizer: Option<Authorizer>,
}

/// What workloads may ask through their agents: the rules of each are read once.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// Of effective workloads that have a control interface.
    effective: BTreeMap<Name, Authorizer>,
    /// By agent and name: workloads with a state on an agent that they are not effective on any more.
    ending: BTreeMap<(Name, Name), Ending>,
}

impl Rights {
    /// `added` is effective from now on.
    pub(super) fn begin(&mut self, AddedWorkload { instance, workload }: &AddedWorkload) {
        self.ending.remove(&(instance.agent.clone(), instance.workload.clone()));
        let access = &workload.control_interface_access;
        if access.allow_rules.is_empty() {
            self.effective.remove(&instance.workload); // Deny rules alone make no control interface.
        } else {
            self.effective.insert(instance.workload.clone(), Authorizer::new(access));
        }
    }

    /// `ended` is not effective any more. Its last rules count until no instance of it has a state on its agent.
    pub(super) fn end(&mut self, ended: &InstanceName, states: &WorkloadStates) {
        let authorizer = self.effective.remove(&ended.workload);
        let InstanceName { workload, agent, .. } = ended;
        if states.of_agent_workload(agent, workload).next().is_some() {
            let ending = Ending { instance: ended.clone(), authorizer };
            self.ending.insert((agent.clone(), workload.clone()), ending);
        }
    }

    /// `gone` has no state any more.
    pub(super) fn forget_gone(&mut self, InstanceName { workload, agent, .. }: &InstanceName, states: &WorkloadStates) {
        if states.of_agent_workload(agent, workload).next().is_none() {
            self.ending.remove(&(agent.clone(), workload.clone()));
        }
    }

    /// Number of workloads that are remembered although they are not effective.
    #[cfg(test)]
    pub(super) fn ending(&self) -> usize {
        self.ending.len()
    }
}

fn denied(workload: &str, denial: &Denial) -> Denied {
    Denied(format!("by the rules of workload '{workload}': {}", excerpt(&denial.to_string())))
}

impl ServerLoop {
    /// Who sent a request.
    pub(super) fn requester_of(&self, key: &RequestKey) -> Requester {
        let agent = self.peers.get(&key.peer).filter(|peer| peer.class == PeerClass::Agent);
        let agent = agent.map(|peer| peer.name.clone());
        let workload = agent.as_ref().and_then(|_| key.workload()).map(Name::from);
        Requester { peer: key.peer, agent, workload }
    }

    /// The workload `name` of an agent: an effective one, or one that has not stopped there yet.
    fn asking(&self, agent: &Name, name: &Name) -> Option<Asking<'_>> {
        if let Some(added) = self.effective.get(name).filter(|added| added.instance.agent == *agent) {
            return Some(Asking { instance: &added.instance, authorizer: self.rights.effective.get(name) });
        }
        let Ending { instance, authorizer } = self.rights.ending.get(&(agent.clone(), name.clone()))?;
        Some(Asking { instance, authorizer: authorizer.as_ref() })
    }

    /// Whether `requester` may ask this. Commanders may ask everything, and a cancellation only frees something.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub(super) fn authorize(&self, requester: &Requester, content: &RequestContent) -> Result<(), Denied> {
        let Some((workload, authorizer)) = self.rules_for(requester, content)? else { return Ok(()) };
        authorizer.check(content).map_err(|denial| denied(workload, &denial))
    }

    /// The workload and the rules that a request has to be compared with, `None` where anything may be asked. Costs
    /// nothing, unlike the comparison.
    ///
    /// # Errors
    /// [`Denied`] when nobody could have asked that.
    pub(super) fn rules_for<'r>(
        &'r self,
        requester: &'r Requester,
        content: &RequestContent,
    ) -> Result<Option<(&'r Name, &'r Authorizer)>, Denied> {
        let Some(agent) = &requester.agent else { return Ok(None) };
        if matches!(content, RequestContent::LogsCancel | RequestContent::EventsCancel | RequestContent::Missing) {
            return Ok(None); // What is missing is refused for what it is.
        }
        let Some(workload) = &requester.workload else {
            return Err(Denied(format!("the request id does not name the workload of agent '{agent}' that asks")));
        };
        Ok(Some((workload, self.authorizer(agent, workload)?)))
    }

    fn authorizer(&self, agent: &Name, workload: &Name) -> Result<&Authorizer, Denied> {
        let Some(asking) = self.asking(agent, workload) else {
            let workload = excerpt(workload);
            return Err(Denied(format!(
                "agent '{agent}' is not to run a workload '{workload}', and none is known that it still has to stop"
            )));
        };
        let none = || Denied(format!("workload '{workload}' has no allow rules for its control interface"));
        asking.authorizer.ok_or_else(none)
    }

    /// The instance that what `requester` asks for belongs to.
    pub(super) fn owner(&self, requester: &Requester) -> Option<InstanceName> {
        let (agent, workload) = (requester.agent.as_ref()?, requester.workload.as_ref()?);
        self.asking(agent, workload).map(|asking| asking.instance.clone())
    }

    /// An instance has no state any more: what it asked for ends. When its agent has nothing of the workload any more, so
    /// does all that was asked in its name: it belongs to the last instance that was wanted, which may have gone first.
    pub(super) fn end_requests_of_gone(&mut self, gone: &InstanceName) {
        self.rights.forget_gone(gone, &self.states);
        self.subscriptions.remove_owner(gone);
        self.end_logs_of_instance(gone);
        if self.asking(&gone.agent, &gone.workload).is_none() {
            self.end_denied_subscriptions(gone);
            self.end_logs_of_workload(gone);
        }
    }

    /// A workload was added, updated or deleted: subscriptions that it may not have any more end, and it is told why.
    pub(super) fn end_denied_subscriptions(&mut self, InstanceName { workload, agent, .. }: &InstanceName) {
        let Some(peer) = self.agents.get(agent).map(|agent| agent.peer) else { return };
        let check = |masks: Option<&MaskTree>| {
            self.authorizer(agent, workload)?.check_read(masks).map_err(|denial| denied(workload, &denial))
        };
        let own = self.subscriptions.of_workload(peer, workload);
        let ended: Vec<(RequestKey, Denied)> =
            own.filter_map(|(key, masks)| Some((key.clone(), check(masks).err()?))).collect();
        for (key, denied) in ended {
            self.subscriptions.remove(&key);
            self.refuse(&key, &format!("{denied}; the event subscription ends"));
        }
    }
}
