//! Who sends a request, and whether it is allowed: a stream and, where the stream is that of an
//! agent, one of its workloads.
//!
//! An agent has compared the requests of its workloads with their rules. The server does so again,
//! with the rules that it sent to the agent, so that a compromised agent has no more rights than
//! its workloads have anyway.
//!
//! Thread: `server`; plain values.

use crate::updates::Workloads;
use ankaios_model::authorizer::{Authorizer, Denial};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{AddedWorkload, RequestContent, UpdateState};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;

/// A request that is served beyond its response: its stream and its id there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestKey {
    /// The stream that it came on.
    pub(crate) peer: PeerId,
    /// As it came on that stream.
    pub(crate) id: String,
}

impl RequestKey {
    /// The workload that sent it through its agent: the part that the agent put before the
    /// workload's own id.
    pub(crate) fn workload(&self) -> Option<&str> {
        self.id.split_once('@').map(|(workload, _)| workload)
    }

    /// The id that is unique in the cluster, under which agents know it: with the number of the
    /// stream before it.
    pub(crate) fn full_id(&self) -> String {
        format!("{}@{}", self.peer.0, self.id)
    }
}

/// Who sends requests. Responses to one requester keep their order, and what one requester uses is
/// counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Requester {
    /// Whether it sends them on the stream of an agent.
    pub(crate) is_agent: bool,
    /// The agent, under whose name all its connections count; of a commander its certificate,
    /// address or user.
    pub(crate) source: Name,
    /// The connection of a commander; `None` stands for all of that source.
    pub(crate) peer: Option<PeerId>,
    /// On the stream of an agent the name before the first `@` of the request id, which is a
    /// workload of that agent once the request is accepted; `None` on other streams, and where the
    /// id has no such part.
    pub(crate) workload: Option<Name>,
}

impl Requester {
    /// The agent whose stream it is; `None` for commanders.
    pub(crate) fn agent(&self) -> Option<&Name> {
        self.is_agent.then_some(&self.source)
    }

    /// The stream of an agent.
    pub(crate) fn of_agent(name: &Name) -> Self {
        Self {
            is_agent: true,
            source: name.clone(),
            peer: None,
            workload: None,
        }
    }

    /// The token buckets that its requests are debited to: that of its source, that of its stream
    /// and its own.
    pub(crate) fn token_buckets(&self) -> [Self; 3] {
        let stream = Self {
            workload: None,
            ..self.clone()
        };
        [
            Self {
                peer: None,
                ..stream.clone()
            },
            stream,
            self.clone(),
        ]
    }

    /// The source of its log lines. On the stream of an agent each workload is one of its own.
    pub(crate) fn log_source(&self) -> Name {
        let source = &self.source;
        self.workload.as_ref().map_or_else(
            || source.clone(),
            |workload| format!("{workload}' of '{source}").into(),
        )
    }
}

/// Why a request on the stream of an agent is denied. The texts begin as those of agents do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Access denied: {0}")]
pub(crate) struct Denied(String);

/// What one workload may request.
#[derive(Debug)]
pub(crate) struct Right {
    /// The instance that the agent was told to run last.
    instance: InstanceName,
    authorizer: Authorizer,
}

/// What workloads may request through their agents: the rules of each are read once.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// By agent and name: workloads with allow rules that are effective, or that still have a state
    /// on their agent.
    by_workload: BTreeMap<(Name, Name), Right>,
}

impl Rights {
    /// `added` is effective from now on.
    pub(crate) fn begin(&mut self, AddedWorkload { instance, workload }: &AddedWorkload) {
        let key = (instance.agent.clone(), instance.workload.clone());
        let access = &workload.control_interface_access;
        if access.allow_rules.is_empty() {
            self.by_workload.remove(&key); // Deny rules alone make no control interface.
        } else {
            let right = Right {
                instance: instance.clone(),
                authorizer: Authorizer::new(access),
            };
            self.by_workload.insert(key, right);
        }
    }

    /// `ended` is not effective any more, or has no state any more. The last rules of a workload
    /// count until it is not effective and no instance of it has a state on its agent; what is only
    /// staged was never there.
    pub(crate) fn end(
        &mut self,
        InstanceName {
            workload, agent, ..
        }: &InstanceName,
        workloads: &Workloads,
    ) {
        let mut states = workloads.states.of_agent_workload(agent, workload);
        let has_state = states.any(|(instance, _)| !workloads.placeholders.contains(&instance));
        let is_effective = workloads
            .effective
            .get(workload)
            .is_some_and(|added| added.instance.agent == *agent);
        if !has_state && !is_effective {
            self.by_workload.remove(&(agent.clone(), workload.clone()));
        }
    }

    pub(crate) fn of(&self, agent: &Name, workload: &Name) -> Option<&Right> {
        self.by_workload.get(&(agent.clone(), workload.clone()))
    }

    pub(crate) fn authorizer(&self, agent: &Name, workload: &Name) -> Result<&Authorizer, Denied> {
        let denied = || {
            let workload = excerpt(workload);
            Denied(format!(
                "agent '{agent}' has no workload '{workload}' with allow rules for its control interface, neither to run nor \
                 to stop"
            ))
        };
        self.of(agent, workload)
            .map(|right| &right.authorizer)
            .ok_or_else(denied)
    }

    /// The instance that the requests of `requester` belong to.
    pub(crate) fn owner(&self, requester: &Requester) -> Option<InstanceName> {
        self.of(requester.agent()?, requester.workload.as_ref()?)
            .map(|right| right.instance.clone())
    }

    /// Checks whether a workload may read these masks.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub(crate) fn check_read(
        &self,
        agent: &Name,
        workload: &Name,
        masks: Option<&MaskTree>,
    ) -> Result<(), Denied> {
        self.authorizer(agent, workload)?
            .check_read(masks)
            .map_err(|denial| denied(workload, &denial))
    }

    /// Whether `requester` may write all that these masks name.
    pub(crate) fn may_write(&self, requester: &Requester, masks: Vec<String>) -> bool {
        let update = RequestContent::UpdateState(UpdateState {
            masks,
            ..UpdateState::default()
        });
        requester.agent().is_none() || self.authorize(requester, &update).is_ok()
    }

    /// Checks a request. Commanders may request everything, and a cancellation only frees
    /// something.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub(crate) fn authorize(
        &self,
        requester: &Requester,
        content: &RequestContent,
    ) -> Result<(), Denied> {
        let Some(agent) = requester.agent() else {
            return Ok(());
        };
        if content.is_cancel() || *content == RequestContent::Missing {
            return Ok(()); // A request without content is refused for that.
        }
        let Some(workload) = &requester.workload else {
            return Err(Denied(format!(
                "the request id does not begin with the name of a workload of agent '{agent}'"
            )));
        };
        self.authorizer(agent, workload)?
            .check(content)
            .map_err(|denial| denied(workload, &denial))
    }
}

fn denied(workload: &str, denial: &Denial) -> Denied {
    Denied(format!(
        "by the rules of workload '{workload}': {}",
        excerpt(&denial.to_string())
    ))
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl Rights {
    /// Number of workloads that are remembered although they are not effective.
    pub(crate) fn ending(&self, workloads: &Workloads) -> usize {
        let agent_of = |workload: &Name| {
            workloads
                .effective
                .get(workload)
                .map(|added| &added.instance.agent)
        };
        self.by_workload
            .keys()
            .filter(|(agent, workload)| agent_of(workload) != Some(agent))
            .count()
    }
}
