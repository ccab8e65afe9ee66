//! What the server has told one life of an agent, to judge its starts: a workload may start once its dependencies were
//! met, as far as that agent could know.
//!
//! Thread: the one of the test.

use super::engine::SimEngine;
use super::life::Tasks;
use super::manual_clock::ManualClock;
use crate::agent::agent_manager::{AgentManager, SchedulerEvent};
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, FromServer};
use crate::model::names::{InstanceName, Name};
use crate::model::workload::{AddCondition, DeleteCondition, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Order {
    added: AddedWorkload,
    /// Its dependencies were met at some time since it came, or it ran already.
    may_start: bool,
    current: bool,
    /// The event that is being handled ends it. Until its deletes are done, it may still start.
    ends: bool,
}

/// The orders of one life.
#[derive(Default)]
pub struct Orders {
    orders: Vec<Order>,
    /// What deletes of a workload have to wait for, as told last.
    pub delete_conditions: BTreeMap<Name, BTreeMap<String, DeleteCondition>>,
}

impl Orders {
    /// An event is about to be handled, or a tick.
    pub fn before(
        &mut self,
        event: Option<&SchedulerEvent>,
        manager: &AgentManager<ManualClock, Tasks>,
        engine: &SimEngine,
    ) {
        match event {
            Some(SchedulerEvent::Server(FromServer::ServerHello(added))) => {
                let keep = |order: &Order| added.contains(&order.added);
                self.orders.iter_mut().for_each(|order| order.ends |= !keep(order));
                for added in added {
                    if !self.orders.iter().any(|order| order.current && !order.ends && order.added == *added) {
                        self.order(added.clone());
                    }
                }
            }
            Some(SchedulerEvent::Server(FromServer::UpdateWorkload(plan))) => {
                for deleted in &plan.deleted {
                    let name = &deleted.instance.workload;
                    self.outdate(name);
                    self.delete_conditions.insert(name.clone(), deleted.dependencies.clone());
                }
                for added in &plan.added {
                    self.outdate(&added.instance.workload);
                    self.order(added.clone());
                }
            }
            _ => {}
        }
        self.look(manager, engine, None);
        if let Some(SchedulerEvent::State(report)) = event {
            // What this leads to may hide it again before the event is done.
            self.look(manager, engine, Some(report));
        }
    }

    fn outdate(&mut self, name: &Name) {
        let orders = self.orders.iter_mut().filter(|order| order.added.instance.workload == *name);
        orders.for_each(|order| order.ends = true);
    }

    fn order(&mut self, added: AddedWorkload) {
        self.orders.push(Order { added, may_start: false, current: true, ends: false });
    }

    /// The event was handled.
    pub fn after(&mut self, manager: &AgentManager<ManualClock, Tasks>, engine: &SimEngine) {
        self.look(manager, engine, None);
        self.orders.iter_mut().for_each(|order| order.current &= !order.ends);
    }

    /// Notes which orders may start now.
    fn look(&mut self, manager: &AgentManager<ManualClock, Tasks>, engine: &SimEngine, news: Option<&WorkloadState>) {
        for order in self.orders.iter_mut().filter(|order| order.current && !order.may_start) {
            let instance = &order.added.instance;
            let met = |(name, condition): (&String, &AddCondition)| {
                let news = news.map(|report| (&report.instance, &report.state));
                let mut states = manager.known_states().chain(news);
                states.any(|(known, state)| *known.workload == **name && meets(state.phase, *condition))
            };
            order.may_start = order.added.workload.dependencies.iter().all(met)
                || engine
                    .containers()
                    .iter()
                    .any(|found| found.instance == *instance && found.phase() == Phase::Running);
        }
    }

    /// Whether a create or start is against its dependencies.
    pub fn check_start(&self, instance: &InstanceName, workload: &Arc<Workload>) -> Option<String> {
        let mut equal =
            self.orders.iter().filter(|order| order.added.instance == *instance && order.added.workload == *workload);
        if equal.any(|order| order.may_start) {
            return None;
        }
        Some(format!("'{instance}' starts before its dependencies {:?} are met", workload.dependencies))
    }
}

/// Written here once more, so that a mistake in the original is found.
fn meets(phase: Phase, condition: AddCondition) -> bool {
    match condition {
        AddCondition::Running => phase == Phase::Running,
        AddCondition::Succeeded => phase == Phase::Succeeded,
        AddCondition::Failed => phase == Phase::FailedExecFailed || phase == Phase::PendingStartingFailed,
    }
}
