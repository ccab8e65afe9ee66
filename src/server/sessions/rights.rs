//! The rights of workloads to send requests through their agents.
//!
//! An agent has compared the requests of its workloads with their rules. The server does so again,
//! with the rules that it sent to the agent, so that a compromised agent only has the rights of its
//! workloads.
//!
//! Thread: `server`; a plain value owned by [`super::Sessions`].

use super::requester::Requester;
use ankaios_model::authorizer::{Authorizer, Denial};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{AddedWorkload, RequestContent, UpdateState};
use ankaios_model::names::{InstanceName, Name, excerpt};
use std::collections::BTreeMap;

/// The reason why a request on the stream of an agent is denied. The texts begin as those of
/// agents.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Access denied: {0}")]
pub(crate) struct Denied(String);

/// The right of one workload.
#[derive(Debug)]
pub(crate) struct Right {
    /// The instance that the agent was sent last.
    instance: InstanceName,
    authorizer: Authorizer,
}

/// The rights of all workloads. The rules of each are read once.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// By agent and name: workloads with allow rules that are effective, or that still have a state
    /// on their agent.
    by_workload: BTreeMap<(Name, Name), Right>,
}

impl Rights {
    /// Takes the rules of a workload that has become effective.
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

    /// Forgets the rules of a workload that is not effective on this agent and has no instance with
    /// a state there.
    pub(crate) fn end(&mut self, agent: &Name, workload: &Name) {
        self.by_workload.remove(&(agent.clone(), workload.clone()));
    }

    /// The right of a workload, if it has one.
    fn of(&self, agent: &Name, workload: &Name) -> Option<&Right> {
        self.by_workload.get(&(agent.clone(), workload.clone()))
    }

    fn authorizer(&self, agent: &Name, workload: &Name) -> Result<&Authorizer, Denied> {
        let Some(right) = self.of(agent, workload) else {
            let workload = excerpt(workload);
            return Err(Denied(format!(
                "agent '{agent}' has no workload '{workload}' with allow rules for its control interface, not even a \
                 stopping one"
            )));
        };
        Ok(&right.authorizer)
    }

    /// Returns whether a workload has rules on its agent.
    pub(crate) fn has(&self, agent: &Name, workload: &Name) -> bool {
        self.of(agent, workload).is_some()
    }

    /// The instance that the requests of `requester` belong to.
    pub(crate) fn owner(&self, requester: &Requester) -> Option<InstanceName> {
        let right = self.of(requester.agent()?, requester.workload.as_ref()?)?;
        Some(right.instance.clone())
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

    /// Returns whether `requester` may write all that these masks name.
    pub(crate) fn may_write(&self, requester: &Requester, masks: Vec<String>) -> bool {
        let update = RequestContent::UpdateState(UpdateState {
            masks,
            ..UpdateState::default()
        });
        requester.agent().is_none() || self.authorize(requester, &update).is_ok()
    }

    /// Checks a request against the rules of its workload. Commanders may request everything.
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
        // A cancellation only frees something, and a request without content is refused later.
        if content.is_cancel() || *content == RequestContent::Missing {
            return Ok(());
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

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl Rights {
    /// Agent and name of each workload that has rules.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &(Name, Name)> {
        self.by_workload.keys()
    }
}
