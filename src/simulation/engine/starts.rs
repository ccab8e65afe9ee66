//! Judges starts: never two containers of one workload.
//!
//! Thread: the one of the test.

use super::{Action, Call, Caller, Container, SimEngine, World};
use ankaios_agent::limits::FIRST_LISTING_MAX;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, NewContainer};
use std::time::Instant;

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
    /// Never a create while a previous one of the same workload is not gone.
    pub(super) fn check_start(&mut self, caller: &Caller, action: &Action, new: &NewContainer) {
        let name = &new.instance.workload;
        for call in self.calls.values() {
            if let Action::Run(other)
            | Action::Start(_, other)
            | Action::Create(other)
            | Action::Init(_, other) = &call.action
                && (other.instance == new.instance
                    || matches!(call.action, Action::Run(_) | Action::Start(..)))
                && other.instance.workload == *name
                && call.ends_at > self.clock.now()
            {
                let text = format!(
                    "'{}' is created while '{}' is being created",
                    new.instance, other.instance
                );
                self.violations.push(text);
            }
        }
        if let Action::Start(id, _) = action
            && let Some(other) = self
                .containers
                .get(id)
                .filter(|container| container.instance != new.instance)
        {
            self.violations.push(format!(
                "'{}' starts the container of '{}'",
                new.instance, other.instance
            ));
        }
        for (id, container) in &self.containers {
            let itself = matches!(action, Action::Start(own, _) if own == id);
            let known = container.leftover && container.instance == new.instance;
            let waits = container.is_prepared() || container.is_only_stopped_by(caller.life);
            let waits = waits && container.instance != new.instance;
            if container.instance.workload == *name
                && !itself
                && !known
                && !waits
                && !self.is_given_up(caller, container)
            {
                let text = format!(
                    "'{}' is created while a container of '{}' exists",
                    new.instance, container.instance
                );
                self.violations.push(text);
            }
        }
        let others = self
            .containers
            .iter()
            .filter(|(_, other)| other.instance.workload == *name);
        let given_up = others.filter(|(_, other)| self.is_given_up(caller, other));
        let given_up: Vec<_> = given_up.map(|(id, _)| (caller.life, id.clone())).collect();
        self.given_up.extend(given_up);
    }

    /// Never a create beside another one that only waits, unless its engine is not waited for any
    /// more, nor while the same instance is being started or prepared. What an earlier life of the
    /// agent has prepared may be on its way out, and what is staged for an update is prepared also
    /// beside what waits to be started.
    pub(super) fn check_preparation(
        &mut self,
        caller: &Caller,
        action: &Action,
        new: &NewContainer,
    ) {
        let now = self.clock.now();
        let of_instance = |call: &Call| match &call.action {
            Action::Run(other)
            | Action::Start(_, other)
            | Action::Create(other)
            | Action::Init(_, other) => other.instance == new.instance && call.ends_at > now,
            _ => false,
        };
        if self.calls.values().any(of_instance) {
            self.violations.push(format!(
                "'{}' is prepared while it is being started or prepared",
                new.instance
            ));
        }
        for (id, container) in &self.containers {
            let itself = matches!(action, Action::Init(own, _) if own == id);
            let same = container.instance == new.instance;
            let waits = container.instance.workload == new.instance.workload
                && (container.is_prepared() || same);
            let is_staged =
                self.staged.contains(&new.instance) && !self.staged.contains(&container.instance);
            let known = (container.leftover && same)
                || (!same && container.is_of_another_life(caller.life));
            if waits && !itself && !known && !is_staged && !self.may_stay(caller, id, container) {
                let text = format!(
                    "'{}' is prepared while a container of {:?} waits: {action:?} {container:?}",
                    new.instance, container.instance
                );
                self.violations.push(text);
            }
        }
    }

    /// Never two containers of a workload that run, or did: what this agent stopped for another
    /// instance goes later.
    pub(super) fn check_alone(
        &mut self,
        caller: &Caller,
        itself: Option<&ContainerId>,
        new: &NewContainer,
    ) {
        let of_workload = |(id, other): &(&ContainerId, &Container)| {
            other.instance.workload == new.instance.workload
                && itself != Some(*id)
                && !other.is_prepared()
                && !(other.is_only_stopped_by(caller.life) && other.instance != new.instance)
                && !self.may_stay(caller, id, other)
        };
        if let Some((_, other)) = self.containers.iter().find(of_workload) {
            let text = format!(
                "two containers at the same time: '{}' and '{}'",
                other.instance, new.instance
            );
            self.violations.push(text);
        }
    }

    /// No node has the tag that an activation names here.
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

    /// Whether a start that is under way may go on beside this container.
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
        let late = |at: &Instant| self.clock.now() >= *at + FIRST_LISTING_MAX;
        container.runtime != caller.runtime
            && !self
                .listed
                .contains(&(caller.life, container.runtime.clone()))
            && self.asked.get(&caller.life).is_some_and(late)
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
