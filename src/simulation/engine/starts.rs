//! Judges starts: never two containers of one workload.
//!
//! Thread: the one of the test.

use super::{Action, Caller, Container, SimEngine, World};
use ankaios_agent::limits::FIRST_LISTING_MAX;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, NewContainer};

impl SimEngine {
    /// Takes the list of all instances that the agent must stage.
    pub(crate) fn note_staged(&self, staged: &[AddedWorkload]) {
        self.world().staged = staged.iter().map(|added| added.instance.clone()).collect();
    }

    /// Returns whether the agent must stage this instance.
    pub(crate) fn is_staged(&self, instance: &InstanceName) -> bool {
        self.world().staged.contains(instance)
    }
}

impl World {
    /// Checks that no container is started while another one of the same workload is not gone.
    pub(super) fn check_start(&mut self, caller: &Caller, action: &Action, new: &NewContainer) {
        let name = &new.instance.workload;
        // First, the calls under way. A preparation of another instance may still run.
        for call in self.calls.values() {
            let Some(other) = call.action.container() else {
                continue;
            };
            let is_same = other.instance == new.instance;
            let conflicts = is_same || call.action.starts();
            let runs = call.ends_at > self.clock.now();
            if other.instance.workload == *name && conflicts && runs {
                let text = format!(
                    "'{}' is created while '{}' is being created",
                    new.instance, other.instance
                );
                self.violations.push(text);
            }
        }
        // Then, the container that is started.
        if let Action::Start(id, _) = action
            && let Some(other) = self.containers.get(id)
            && other.instance != new.instance
        {
            self.violations.push(format!(
                "'{}' starts the container of '{}'",
                new.instance, other.instance
            ));
        }
        // Then, all other containers of the workload.
        let mut given_up = Vec::new();
        for (id, container) in &self.containers {
            if container.instance.workload != *name {
                continue;
            }
            if self.is_given_up(caller, container) {
                given_up.push((caller.life, id.clone()));
                continue;
            }
            let is_same = container.instance == new.instance;
            let is_itself = matches!(action, Action::Start(own, _) if own == id);
            let is_leftover = container.leftover && is_same;
            // A container of another instance may wait to be started, or to be removed.
            let only_waits = container.is_prepared() || container.is_only_stopped_by(caller.life);
            let is_other = only_waits && !is_same;
            if !is_itself && !is_leftover && !is_other {
                let text = format!(
                    "'{}' is created while a container of '{}' exists",
                    new.instance, container.instance
                );
                self.violations.push(text);
            }
        }
        self.given_up.extend(given_up);
    }

    /// Checks that no container is prepared beside another one that waits, or while the same
    /// instance is being started or prepared. A container may remain if its engine is not waited
    /// for any more, or if an earlier life of the agent has prepared it. A staged instance may be
    /// prepared beside the one that it will replace.
    pub(super) fn check_preparation(
        &mut self,
        caller: &Caller,
        action: &Action,
        new: &NewContainer,
    ) {
        // First, the calls under way.
        for call in self.calls.values() {
            if let Some(other) = call.action.container()
                && other.instance == new.instance
                && call.ends_at > self.clock.now()
            {
                self.violations.push(format!(
                    "'{}' is prepared while it is being started or prepared",
                    new.instance
                ));
                break;
            }
        }
        // Then, the containers of the workload.
        for (id, container) in &self.containers {
            if container.instance.workload != new.instance.workload {
                continue;
            }
            let is_same = container.instance == new.instance;
            let waits = container.is_prepared() || is_same;
            let is_itself = matches!(action, Action::Init(own, _) if own == id);
            let may_remain = if is_same {
                container.leftover
            } else {
                container.is_of_another_life(caller.life)
            };
            let is_staged =
                self.staged.contains(&new.instance) && !self.staged.contains(&container.instance);
            if !waits || is_itself || may_remain || is_staged {
                continue;
            }
            if !self.may_stay(caller, id, container) {
                let text = format!(
                    "'{}' is prepared while a container of {:?} waits: {action:?} {container:?}",
                    new.instance, container.instance
                );
                self.violations.push(text);
            }
        }
    }

    /// Checks that no other container of the workload runs or has run. A container that this agent
    /// has stopped for another instance is removed later.
    pub(super) fn check_alone(
        &mut self,
        caller: &Caller,
        itself: Option<&ContainerId>,
        new: &NewContainer,
    ) {
        for (id, other) in &self.containers {
            let is_of_workload = other.instance.workload == new.instance.workload;
            if !is_of_workload || itself == Some(id) || other.is_prepared() {
                continue;
            }
            let is_only_stopped = other.is_only_stopped_by(caller.life);
            if is_only_stopped && other.instance != new.instance {
                continue;
            }
            if !self.may_stay(caller, id, other) {
                let text = format!(
                    "two containers at the same time: '{}' and '{}'",
                    other.instance, new.instance
                );
                self.violations.push(text);
                return;
            }
        }
    }

    /// Checks that no workload with an activation starts: no node has the tag that it names here.
    pub(super) fn check_relevance(
        &mut self,
        NewContainer {
            instance, workload, ..
        }: &NewContainer,
    ) {
        if workload.runtime_config.contains("activation:") {
            self.violations
                .push(format!("'{instance}' starts on a node that it is not for"));
        }
    }

    /// Returns whether a start that is under way may continue beside this container.
    pub(super) fn may_stay(
        &self,
        caller: &Caller,
        id: &ContainerId,
        container: &Container,
    ) -> bool {
        self.is_given_up(caller, container) || self.given_up.contains(&(caller.life, id.clone()))
    }

    /// Returns whether a workload does not wait any more for the first listing of another runtime.
    pub(super) fn is_given_up(&self, caller: &Caller, container: &Container) -> bool {
        let listing = (caller.life, container.runtime.clone());
        if container.runtime == caller.runtime || self.listed.contains(&listing) {
            return false;
        }
        match self.asked.get(&caller.life) {
            Some(asked_at) => self.clock.now() >= *asked_at + FIRST_LISTING_MAX,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{Action, Caller, EngineFaults, SimEngine};
    use crate::trace::Trace;
    use ankaios_fakes::manual_clock::ManualClock;
    use ankaios_model::workload::Workload;
    use ankaios_platform::clock::Clock;
    use ankaios_runtime::NewContainer;
    use std::sync::Arc;

    fn new(config: &str) -> NewContainer {
        let workload = Arc::new(Workload::new("agent_A", "podman", config));
        let instance = workload.instance_name("w");
        NewContainer {
            instance,
            workload,
            control_interface: None,
            files: Vec::new(),
            notify_socket: None,
            pid_file: None,
        }
    }

    struct Node {
        clock: ManualClock,
        engine: SimEngine,
    }

    impl Node {
        fn new() -> Self {
            let clock = ManualClock::new();
            let (random, trace) = (fastrand::Rng::with_seed(1), Trace::new(&clock, 0));
            Self {
                engine: SimEngine::new(&clock, random, trace, EngineFaults::default()),
                clock,
            }
        }

        /// Makes a call and waits for its end.
        fn call(&self, action: Action) {
            let call = self.engine.begin(
                &Caller {
                    life: 1,
                    runtime: "podman".into(),
                },
                action,
                None,
            );
            while self.engine.take_result(call).is_none() {
                let due = self.engine.due_of(call).expect("it has not ended");
                self.clock.advance(self.clock.until(due));
                self.engine.step();
            }
        }

        fn id(&self, new: &NewContainer) -> ankaios_runtime::ContainerId {
            self.engine
                .id_of(&new.instance)
                .expect("it has a container")
        }
    }

    /// As of an agent that starts a staged instance before it has stopped the old one.
    #[test]
    fn start_of_a_staged_instance_before_the_old_stop_is_an_alarm() {
        for (stops, alarms) in [(true, 0), (false, 1)] {
            let (node, old, new) = (Node::new(), new("run : 1"), new("run : 2"));
            node.call(Action::Run(old.clone()));
            node.call(Action::Create(new.clone()));
            if stops {
                node.call(Action::Stop(node.id(&old)));
            }
            assert_eq!(node.engine.take_violations(), [""; 0]);
            node.call(Action::Start(node.id(&new), new.clone()));
            assert_eq!(node.engine.take_violations().is_empty(), alarms == 0);
        }
    }
}
