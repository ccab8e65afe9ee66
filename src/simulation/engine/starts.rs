//! Judges starts: never two containers of one workload.
//!
//! Thread: the one of the test.

use super::{Action, Caller, Container, World};
use crate::limits::FIRST_LISTING_MAX;
use crate::platform::clock::Clock;
use crate::runtime::{ContainerId, NewContainer};
use std::time::Instant;

impl World {
    /// Never a create while a previous one of the same workload is not gone.
    pub(super) fn check_start(&mut self, caller: &Caller, action: &Action, new: &NewContainer) {
        let name = &new.instance.workload;
        for call in self.calls.values() {
            if let Action::Run(other) | Action::Start(_, other) = &call.action
                && other.instance.workload == *name
                && call.ends_at > self.clock.now()
            {
                let text = format!("'{}' is created while '{}' is being created", new.instance, other.instance);
                self.violations.push(text);
            }
        }
        for (id, container) in &self.containers {
            let itself = matches!(action, Action::Start(own, _) if own == id);
            let known = container.leftover && container.instance == new.instance;
            if container.instance.workload == *name && !itself && !known && !self.is_given_up(caller, container) {
                let text =
                    format!("'{}' is created while a container of '{}' exists", new.instance, container.instance);
                self.violations.push(text);
            }
        }
        let others = self.containers.iter().filter(|(_, other)| other.instance.workload == *name);
        let given_up = others.filter(|(_, other)| self.is_given_up(caller, other));
        let given_up: Vec<_> = given_up.map(|(id, _)| (caller.life, id.clone())).collect();
        self.given_up.extend(given_up);
    }

    /// No node has the tag that an activation names here.
    pub(super) fn check_relevance(&mut self, NewContainer { instance, workload, .. }: &NewContainer) {
        if workload.runtime_config.contains("activation:") {
            self.violations.push(format!("'{instance}' starts on a node that it is not for"));
        }
    }

    /// Whether a start that is under way may go on beside this container.
    pub(super) fn may_stay(&self, caller: &Caller, id: &ContainerId, container: &Container) -> bool {
        self.is_given_up(caller, container) || self.given_up.contains(&(caller.life, id.clone()))
    }

    /// Workloads wait only so long for an engine of another runtime that never told what it has.
    pub(super) fn is_given_up(&self, caller: &Caller, container: &Container) -> bool {
        let late = |at: &Instant| self.clock.now() >= *at + FIRST_LISTING_MAX;
        container.runtime != caller.runtime
            && !self.listed.contains(&(caller.life, container.runtime.clone()))
            && self.asked.get(&caller.life).is_some_and(late)
    }
}
