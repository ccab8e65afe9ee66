//! What commanders and workloads ask: one function per kind of request, and the steps of an accepted update.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::dependencies::{find_cycle, with_delete_conditions};
use super::plan::{Difference, per_agent};
use super::update::{NewState, Tags, UpdateError, requested_state};
use crate::model::complete_state::DesiredState;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{
    DeletedWorkload, FromServer, ReadState, Request, RequestContent, Response, ResponseContent, UpdateState,
};
use crate::model::names::{InstanceName, Name};
use crate::model::validation::{check_api_version, check_config_keys, check_config_references, check_workload};
use crate::model::workload::Workload;
use crate::wire::server_endpoint::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The workloads of an accepted update, sorted by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Instances that will start.
    pub added: Vec<InstanceName>,
    /// Instances that will end.
    pub deleted: Vec<InstanceName>,
}

fn invalid(error: &dyn std::error::Error) -> UpdateError {
    UpdateError::Invalid(error.to_string())
}

impl ServerLoop {
    /// Answers a request on the stream that it came from.
    pub(super) fn request(&mut self, peer: PeerId, Request { id, content }: Request) {
        let answer = match content {
            RequestContent::UpdateState(update) => self.update_state(update),
            RequestContent::CompleteState(read) => self.complete_state(&read),
            RequestContent::Logs(_) | RequestContent::LogsCancel => {
                ResponseContent::Error("Logs are not supported yet by this server".to_owned())
            }
            RequestContent::EventsCancel => ResponseContent::EventsCancelAccepted,
            RequestContent::Missing => ResponseContent::Error("The Request does not contain any content".to_owned()),
        };
        self.answer(peer, id, answer);
    }

    /// Ids on the stream of a commander are its own; on that of an agent they name the workload, which the agent
    /// takes off. So the id that came is the id that goes back. Without one nobody could tell whose answer it is.
    fn answer(&mut self, peer: PeerId, id: String, content: ResponseContent) {
        if id.is_empty() {
            let name = self.peers.get(&peer).map(|peer| peer.name.clone()).unwrap_or_default();
            log::warn!("Dropping an answer for '{name}': its request has an empty id.");
            return;
        }
        self.tell(peer, FromServer::Response(Response { id, content }));
    }

    fn complete_state(&self, read: &ReadState) -> ResponseContent {
        if read.subscribe {
            return ResponseContent::Error("Events are not supported yet by this server".to_owned());
        }
        ResponseContent::CompleteState { state: self.view().read(&read.masks), altered: None }
    }

    fn update_state(&mut self, update: UpdateState) -> ResponseContent {
        let accepted = requested_state(self.view(), update).and_then(|new| self.apply(new));
        match accepted {
            Ok(accepted) => {
                let texts = |names: Vec<InstanceName>| names.iter().map(ToString::to_string).collect();
                ResponseContent::UpdateStateSuccess { added: texts(accepted.added), deleted: texts(accepted.deleted) }
            }
            Err(error) => {
                let answer = error.answer();
                log::warn!("Refusing an update: {answer}");
                ResponseContent::Error(answer)
            }
        }
    }

    /// Makes `new` the desired state and tells agents what that means for them, or changes nothing
    /// (spec/server.md sections 8.3 and 8.4).
    pub(super) fn apply(&mut self, new: NewState) -> Result<Accepted, UpdateError> {
        let NewState { desired, agent_tags } = new;
        if check_api_version(&desired.api_version).map_err(UpdateError::Rule)? {
            log::warn!("The API version '{}' is deprecated; use 'v1'.", desired.api_version);
        }
        check_config_keys(&desired.configs).map_err(UpdateError::Rule)?;
        let changed = |name: &Name, workload: &Arc<Workload>| {
            !self.desired.workloads.get(name).is_some_and(|known| Arc::ptr_eq(known, workload))
        };
        for (_, workload) in desired.workloads.iter().filter(|(name, workload)| changed(name, workload)) {
            check_config_references(workload).map_err(UpdateError::Rule)?;
        }
        let rendered = self.rendered(&desired)?;
        let difference =
            Difference::between(&self.effective, rendered.iter().map(|(name, workload)| (*name, workload)));
        for added in &difference.added {
            check_workload(&added.instance.workload, &added.workload).map_err(|error| invalid(&error))?;
        }
        let starts: BTreeSet<Name> = difference.added.iter().map(|added| added.instance.workload.clone()).collect();
        if let Some(name) = find_cycle(&desired.workloads, &starts) {
            return Err(UpdateError::Cycle(name));
        }
        // From here on nothing fails.
        self.desired = desired;
        self.set_agent_tags(agent_tags);
        Ok(self.carry_out(difference))
    }

    /// The workloads of `desired` as agents will get them. Only those that changed, or whose configs may have changed,
    /// are rendered again.
    fn rendered<'d>(&self, desired: &'d DesiredState) -> Result<Vec<(&'d Name, Arc<Workload>)>, UpdateError> {
        let same_configs = desired.configs == self.desired.configs;
        let one = |(name, workload): (&'d Name, &'d Arc<Workload>)| {
            let unchanged = self.desired.workloads.get(name).is_some_and(|known| Arc::ptr_eq(known, workload));
            let in_force = self.effective.get(name).filter(|_| unchanged && same_configs);
            let rendered = match in_force {
                Some(added) => added.workload.clone(),
                None => self.templates.render(workload, &desired.configs).map_err(|error| invalid(&error))?,
            };
            Ok((name, rendered))
        };
        desired.workloads.iter().map(one).collect()
    }

    /// Only the tags of connected agents can be changed (spec/server.md section 8.5).
    fn set_agent_tags(&mut self, agent_tags: BTreeMap<Name, Tags>) {
        for (name, tags) in agent_tags {
            if let Some(agent) = self.agents.get_mut(&name) {
                agent.attributes.tags = tags;
            }
        }
    }

    /// Replaces the effective workloads that differ and sends each connected agent its part.
    fn carry_out(&mut self, difference: Difference) -> Accepted {
        let accepted = Accepted {
            added: difference.added.iter().map(|added| added.instance.clone()).collect(),
            deleted: difference.deleted.clone(),
        };
        let deleted = with_delete_conditions(difference.deleted, &self.effective, &mut self.stopping, &self.states);
        for DeletedWorkload { instance, .. } in &deleted {
            if let Some(stopped) = self.effective.remove(&instance.workload) {
                self.stopping.note(&stopped);
            }
        }
        for added in &difference.added {
            self.effective.insert(added.instance.workload.clone(), added.clone());
            let unscheduled = added.instance.agent.is_empty();
            let phase = if unscheduled { Phase::NotScheduled } else { Phase::PendingInitial };
            self.states.set_initial(&added.instance, ExecutionState::plain(phase));
        }
        let (finished, for_agents) = self.split_finished(deleted);
        self.broadcast_states(&finished, None);
        for (agent, plan) in per_agent(&difference.added, for_agents) {
            if let Some(peer) = self.agents.get(&agent).map(|agent| agent.peer) {
                self.tell(peer, FromServer::UpdateWorkload(plan));
            }
        }
        accepted
    }

    /// Deletes what no agent has ever heard of, and answers it as removed, beside what agents must delete.
    ///
    /// That is what has no agent, or an agent that is away and never reported a state. An instance that continues
    /// in another form keeps its entry.
    fn split_finished(&mut self, deleted: Vec<DeletedWorkload>) -> (Vec<WorkloadState>, Vec<DeletedWorkload>) {
        let (mut finished, mut for_agents) = (Vec::new(), Vec::new());
        for entry in deleted {
            let instance = &entry.instance;
            let continues = self.effective.get(&instance.workload).is_some_and(|added| added.instance == *instance);
            let unheard_of = instance.agent.is_empty()
                || (self.agents.get(&instance.agent).is_none()
                    && self.states.get(instance).is_some_and(|state| state.phase == Phase::PendingInitial));
            if continues || !unheard_of {
                for_agents.push(entry);
            } else {
                self.stopping.forget(instance);
                if self.states.remove(instance).is_some() {
                    finished.push(WorkloadState::new(entry.instance, ExecutionState::plain(Phase::Removed)));
                }
            }
        }
        (finished, for_agents)
    }
}
