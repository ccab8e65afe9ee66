//! Before a start: searches for containers of the workload that are not accounted for, to remove them or take them over.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`]. It waits for listings as for wishes, so that a delete need
//! not wait for an engine that hangs, and holds no start slot.
//! Takes: listings of the state checkers, one for all workloads that search at the same time.

use super::{Connector, Leftovers, Stage, Start, WorkloadControlLoop};
use crate::agent::backoff::retry_delay;
use crate::agent::state_checker::WatchCommand;
use crate::agent::wish_slot::{Listed, Surplus};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::Name;
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::runtime::container_records::{Noted, leave_strangers};
use crate::runtime::{ContainerId, ListedContainer, RuntimeError};
use log::{debug, info, warn};

/// A search that is under way.
pub(super) struct Search {
    pub(super) start: Start,
    pub(super) listed: Vec<Listed>,
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Whether a container may exist that must be gone before a start.
    pub(super) fn must_search(&self) -> bool {
        self.searches_own() || !self.others.is_empty()
    }

    fn searches_own(&self) -> bool {
        self.leftovers >= Leftovers::Likely
    }

    /// Requests listings of the engines where such containers may be.
    pub(super) fn search(&mut self, start: Start) {
        let reply = self.slot.begin_search();
        let own = self.wanted.as_ref().filter(|_| self.searches_own()).map(|workload| (&workload.runtime, None));
        let others = self.others.iter().map(|(runtime, _)| (runtime, Some(runtime.clone())));
        for (runtime, of) in own.into_iter().chain(others) {
            if let Some(source) = self.context.engines.get(runtime) {
                let _ = source.watch.send(WatchCommand::ListAll { reply: reply(of) }); // Gone only when the agent ends.
            }
        }
        self.stage = Stage::Searching(Search { start, listed: Vec::new() });
    }

    /// Workloads do not wait for ever for an engine of another runtime. What it lists later is removed then.
    pub(super) fn give_up_others(&mut self) {
        let now = self.context.clock.now();
        for (runtime, _) in self.others.extract_if(.., |(_, until)| *until <= now) {
            let name = &self.instance.workload;
            warn!("Starting workload '{name}' although '{runtime}' has not listed its containers.");
        }
    }

    /// When all engines have listed: removes what was found, and starts.
    pub(super) fn end_search(&mut self) {
        let Stage::Searching(search) = &self.stage else { return };
        let has_listed = |runtime: Option<&Name>| search.listed.iter().any(|(of, _)| of.as_ref() == runtime);
        let own_missing = self.searches_own() && !has_listed(None);
        if own_missing || !self.others.iter().all(|(runtime, _)| has_listed(Some(runtime))) {
            return;
        }
        let Stage::Searching(Search { start, listed }) = std::mem::replace(&mut self.stage, Stage::Idle) else {
            return;
        };
        let (mut running, mut failed, mut failed_other) = (None, None, None);
        for (runtime, result) in listed {
            match runtime {
                Some(runtime) => match result {
                    // Its program is not there, so nothing can have been made with it.
                    Err(RuntimeError::NotInstalled(_)) => self.others.retain(|(other, _)| *other != runtime),
                    Err(error) => failed_other = Some((runtime, error)),
                    Ok(listed) => self.other_has(&runtime, listed),
                },
                None => match result.and_then(|listed| self.remove_own(start, listed)) {
                    Ok(found) => running = found,
                    Err(RuntimeError::Cancelled) => return, // The wish that makes it pointless comes next.
                    Err(error) => failed = Some(error),
                },
            }
        }
        if let Some(error) = failed {
            return self.on_search_failed(start, &error);
        }
        if let Some((runtime, error)) = failed_other {
            return self.on_other_failed(start, &runtime, &error);
        }
        (self.leftovers, self.failed_searches) = (Leftovers::None, 0);
        if let Some(id) = running {
            info!("Resuming workload '{}'", self.instance.workload);
            return self.adopt(id);
        }
        self.begin_start(start);
    }

    /// As a create that failed, but what was to be started stays so.
    fn on_search_failed(&mut self, start: Start, error: &RuntimeError) {
        self.on_create_failed(start, &error.to_string(), &error.reason());
        let given_up_at = self.others.iter().map(|(_, until)| *until).min();
        if let Stage::RetryAt(at, again @ Start::New) = &mut self.stage {
            *again = start;
            *at = given_up_at.map_or(*at, |until| until.min(*at));
        }
    }

    /// An engine of another runtime failed, so this is no failed create. The search is repeated soon.
    fn on_other_failed(&mut self, start: Start, runtime: &Name, error: &RuntimeError) {
        self.report_waits_for(start, runtime, error);
        self.failed_searches = self.failed_searches.saturating_add(1);
        let again = self.context.clock.now() + retry_delay(self.failed_searches, &mut self.random);
        let given_up_at = self.others.iter().map(|(_, until)| *until).min();
        self.stage = Stage::RetryAt(given_up_at.map_or(again, |until| until.min(again)), start);
    }

    pub(super) fn report_waits_for(&mut self, start: Start, runtime: &Name, error: &RuntimeError) {
        let name = &self.instance.workload;
        debug!("Workload '{name}' waits for '{runtime}', which may have a container of it: '{error}'");
        let info = format!("Waiting for '{runtime}', which may have a container of it: {}", error.reason());
        if start != Start::Revival && self.shown != info {
            self.report(ExecutionState::with_info(Phase::PendingStarting, info));
        }
    }

    /// Removes what the own engine has. A container of an earlier life that runs as it should is taken over instead.
    fn remove_own(&mut self, start: Start, listed: Vec<ListedContainer>) -> Result<Option<ContainerId>, RuntimeError> {
        let any_instance = self.leftovers == Leftovers::AnyInstance;
        let ours = |found: &ListedContainer| match any_instance {
            true => found.instance.workload == self.instance.workload,
            false => found.instance == self.instance,
        };
        let mut found: Vec<ListedContainer> = listed.into_iter().filter(ours).collect();
        if let Some(engine) = &self.engine {
            leave_strangers_of(&engine.connector, &mut found, self.wanted.as_deref());
        }
        found.retain(|found| self.container.as_ref() != Some(&found.id));
        let serves = |found: &ListedContainer| found.instance == self.instance && found.state.phase == Phase::Running;
        let may_serve = any_instance && start != Start::Existing;
        let serving = found.iter().position(serves).filter(|_| may_serve).map(|index| found.swap_remove(index).id);
        for container in found {
            if self.slot.has_newer() {
                return Err(RuntimeError::Cancelled);
            }
            let Some(engine) = &mut self.engine else { break };
            engine.connector.delete(&container.id)?;
        }
        Ok(serving)
    }

    /// What an engine of another runtime has of the workload is too many.
    fn other_has(&mut self, runtime: &Name, mut found: Vec<ListedContainer>) {
        self.others.retain(|(other, _)| other != runtime);
        let Some(source) = self.context.engines.get(runtime) else { return };
        found.retain(|found| found.instance.workload == self.instance.workload);
        leave_strangers_of(&(source.connect)(), &mut found, self.wanted.as_deref());
        found.iter().for_each(|found| self.slot.hold(&found.instance));
        let surplus =
            |ListedContainer { instance, id, .. }| Surplus { runtime: runtime.clone(), instance, id, is_unused: false };
        self.add_surplus(found.into_iter().map(surplus).collect());
    }
}

/// Leaves out containers with the name of the workload that the agent has not made.
pub(super) fn leave_strangers_of(connector: &Connector, found: &mut Vec<ListedContainer>, wanted: Option<&Workload>) {
    let is_noted = |one: &ListedContainer| connector.is_noted(&one.instance, &one.id);
    leave_strangers(found, |one| one, |one| if is_noted(one) { Noted::Runs } else { Noted::No }, wanted);
}
