//! The expected results of requests, computed here once more: the requested state, whether it is
//! refused, who has the right to it, and the conditions of deletes. The server is compared with
//! them, not with its own responses.
//!
//! Thread: the one of the test.

use super::guarded_updates::pending;
use super::modes;
use ankaios_model::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use ankaios_model::complete_state::{DesiredState, desired_state_from_node};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::messages::{AddedWorkload, Request, RequestContent, UpdateState};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, Workload};
use ankaios_server::ServerLoop;
use std::collections::{BTreeMap, BTreeSet};

/// The server before it handles a message.
pub(crate) struct Before {
    desired: DesiredState,
    effective: BTreeMap<Name, AddedWorkload>,
    /// Instances with a state.
    existing: BTreeSet<InstanceName>,
    /// The known updates that were rolled back.
    undone: BTreeSet<u64>,
    /// Workloads whose new version was not active.
    pending: BTreeSet<Name>,
    /// Workloads that were being restarted.
    restarting: BTreeSet<Name>,
    /// The names of open updates.
    open: BTreeSet<Name>,
}

fn names_of_open(server: &ServerLoop) -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for update in server.seen_updates().into_values() {
        if update.phase.is_open() {
            names.extend(update.names);
        }
    }
    names
}

/// The known updates that were rolled back.
pub(crate) fn undone(server: &ServerLoop) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for (number, update) in server.seen_updates() {
        if update.phase == UpdatePhase::Undone {
            numbers.insert(number);
        }
    }
    numbers
}

/// The workloads that a requested restart must end: the named ones and all that need them running,
/// directly or not, if they were started. None for a restart with an update, which decides as well.
pub(crate) fn to_restart(content: &RequestContent, server: &ServerLoop) -> BTreeSet<Name> {
    let RequestContent::UpdateState(UpdateState {
        new_state: None,
        restart,
        ..
    }) = content
    else {
        return BTreeSet::new();
    };
    let effective = server.view().effective;
    let states = server.view().states;
    // First all workloads that are concerned.
    let mut all: BTreeSet<Name> = restart
        .iter()
        .map(|name| Name::from(name.as_str()))
        .collect();
    loop {
        let before = all.len();
        for (name, added) in effective {
            let needed = needed_running(&added.workload);
            if needed.iter().any(|needed| all.contains(needed.as_str())) {
                all.insert(name.clone());
            }
        }
        if all.len() == before {
            break;
        }
    }
    // Then those that were started. The server does not wait for instances without a report: their
    // agent has just connected again.
    all.retain(|name| {
        let Some(added) = effective.get(name) else {
            return false;
        };
        if added.instance.agent.is_empty() {
            return false;
        }
        match states.get(&added.instance) {
            Some(state) => !matches!(
                state.phase,
                Phase::PendingInitial | Phase::PendingWaitingToStart | Phase::AgentDisconnected
            ),
            None => false,
        }
    });
    all
}

impl Before {
    pub(crate) fn of(server: &ServerLoop) -> Self {
        let view = server.view();
        let existing = view.states.iter().map(|(instance, _)| instance).collect();
        Self {
            desired: view.desired.clone(),
            effective: view.effective.clone(),
            existing,
            undone: undone(server),
            pending: pending(server),
            restarting: server.restarting(),
            open: names_of_open(server),
        }
    }

    /// Returns whether an update was rolled back since then.
    fn has_undone(&self, server: &ServerLoop) -> bool {
        !undone(server).is_subset(&self.undone)
    }

    pub(crate) fn desired(&self) -> &DesiredState {
        &self.desired
    }

    pub(crate) fn restarting(&self) -> &BTreeSet<Name> {
        &self.restarting
    }

    pub(crate) fn effective(&self) -> &BTreeMap<Name, AddedWorkload> {
        &self.effective
    }
}

/// The instances and rules of earlier states that still matter.
#[derive(Default)]
pub(crate) struct ServerExpectations {
    /// Instances that stop and still have a state, with the workloads that they need running until
    /// then.
    stopping: BTreeMap<InstanceName, BTreeSet<String>>,
    /// By agent and name: the last rules of workloads that were desired there and still have a
    /// state.
    last_rules: BTreeMap<(Name, Name), ControlInterfaceAccess>,
    /// Workloads with a version that became active and was replaced with one event, so that it was
    /// not seen here.
    unclear: BTreeSet<Name>,
    /// Workloads whose last rules are those of such a version.
    unclear_rules: BTreeSet<Name>,
    /// Updates may be guarded, so one may be refused because of an earlier one.
    are_guarded: bool,
    /// The last update was valid and has changed nothing, so it must have been refused.
    is_ignored: bool,
    /// Number of server events that have changed the effective workloads.
    changes: u64,
    /// The change that made the present version of each workload effective. A workload that is not
    /// here was effective when the server started.
    begun_at: BTreeMap<Name, u64>,
    /// By workload and agent: the change that ended its last version there. Deletes that the server
    /// does not know are not here: those of an earlier server, and those of an instance whose end
    /// was reported before its policy started it again.
    ended_at: BTreeMap<(Name, Name), u64>,
}

impl ServerExpectations {
    pub(crate) fn new(are_guarded: bool) -> Self {
        Self {
            are_guarded,
            ..Self::default()
        }
    }

    /// Returns the violation after a message: `update` is its update, if it has one and the server
    /// accepts messages of its sender.
    pub(crate) fn check(
        &mut self,
        before: &Before,
        update: Option<&UpdateState>,
        server: &ServerLoop,
    ) -> Option<String> {
        let requested = requested_state(before, update, server);
        let is = server.view().desired;
        let is_unchanged = *is == before.desired;
        let has_undone = self.are_guarded && before.has_undone(server);
        self.is_ignored = match &requested {
            Some(requested) => is_unchanged && *requested != before.desired && !has_undone,
            None => false,
        };
        // An update with a restart may be refused for many reasons.
        let restarts = update.is_some_and(|update| !update.restart.is_empty());
        let expected = requested.filter(|_| !restarts || !is_unchanged);
        let wanted = expected.as_ref().unwrap_or(&before.desired);
        // A request may be refused because of a guarded update. A guarded update whose health
        // window has ended by then is rolled back at once: these are two changes.
        let may_differ = self.are_guarded && (is_unchanged || has_undone);
        if is != wanted && !may_differ {
            return Some(format!("requested was {wanted:?}, the server has {is:?}"));
        }
        let mut wrong = not_in_force(server);
        if wrong.is_none() && !has_undone {
            wrong = self.wrong_delete(before, update, server);
        }
        self.note_ended(before, server);
        if let Some(expected) = &expected {
            let joining = joining(before, update, server);
            let pending = pending(server);
            for name in expected.workloads.keys() {
                let is_replaced = has_undone || joining.contains(name);
                if is_replaced && !pending.contains(name) {
                    self.note_replaced(expected, name, server);
                }
            }
        }
        self.forget_gone(server);
        wrong
    }

    /// Returns whether the last update has changed nothing although it is valid. The response to it
    /// must be a refusal.
    pub(crate) fn is_ignored(&self) -> bool {
        self.is_ignored
    }

    /// Notes instances that are not desired any more: they may still run for a while.
    pub(crate) fn note_ended(&mut self, before: &Before, server: &ServerLoop) {
        self.changes += 1;
        for (name, added) in &before.effective {
            if server.view().effective.get(name) != Some(added) {
                self.note_stopping(added);
                let place = (name.clone(), added.instance.agent.clone());
                self.ended_at.insert(place, self.changes);
            }
        }
        for (name, added) in server.view().effective {
            if before.effective.get(name) != Some(added) {
                self.begun_at.insert(name.clone(), self.changes);
            }
        }
        // So may new versions that waited: a rollback or a switch of the mode may have ended their
        // wait and replaced them with one event.
        let has_switched = modes::mode(&before.desired) != modes::mode(server.view().desired);
        if before.has_undone(server) || has_switched {
            let pending = pending(server);
            for name in before.pending.difference(&pending) {
                self.unclear.insert(name.clone());
                self.unclear_rules.insert(name.clone());
            }
        }
        self.forget_gone(server);
    }

    /// Returns whether a delete of `stopping` may wait for the present version of `dependent`: it
    /// must have been there before the delete. An agent that waits because of a delete that the
    /// server does not know may wait for any version.
    pub(crate) fn may_keep(&self, dependent: &str, stopping: &InstanceName) -> bool {
        let place = (stopping.workload.clone(), stopping.agent.clone());
        let Some(ended) = self.ended_at.get(&place) else {
            return true;
        };
        match self.begun_at.get(dependent) {
            Some(begun) => begun < ended,
            None => true,
        }
    }

    fn note_stopping(&mut self, ended: &AddedWorkload) {
        let InstanceName {
            workload, agent, ..
        } = ended.instance.clone();
        // An earlier version of the same instance may still run.
        let needed = self.stopping.entry(ended.instance.clone()).or_default();
        needed.extend(needed_running(&ended.workload));
        self.unclear_rules.remove(&workload);
        let rules = ended.workload.control_interface_access.clone();
        self.last_rules.insert((agent, workload), rules);
    }

    /// Notes a requested workload that may have become active and been replaced at once.
    fn note_replaced(&mut self, expected: &DesiredState, name: &Name, server: &ServerLoop) {
        let workload = &expected.workloads[name];
        let added = modes::expected(expected, name, workload, server.has_modes());
        if server.view().effective.get(name) != Some(&added) {
            self.note_stopping(&added);
        }
    }

    /// Takes the states of an agent that the server accepts. A removed instance has ended in all
    /// versions that it had until then, also if the same instance is added with this event and so
    /// never is without a state.
    pub(crate) fn reported(&mut self, states: &[WorkloadState]) {
        for report in states {
            if report.state.phase == Phase::Removed {
                let InstanceName {
                    workload, agent, ..
                } = &report.instance;
                self.stopping.remove(&report.instance);
                self.ended_at.remove(&(workload.clone(), agent.clone()));
            }
        }
    }

    /// Forgets instances without a state: they have stopped. A staged instance has a state although
    /// it does not exist; that is a placeholder.
    pub(crate) fn forget_gone(&mut self, server: &ServerLoop) {
        let states = server.view().states;
        let effective = server.view().effective;
        // The instances of each workload that exist, and those of them that are not desired.
        let mut existing = BTreeSet::new();
        let mut undesired = BTreeSet::new();
        for (instance, _) in states.iter() {
            if server.is_placeholder(&instance) {
                continue;
            }
            let is_desired = match effective.get(&instance.workload) {
                Some(added) => added.instance == instance,
                None => false,
            };
            if !is_desired {
                undesired.insert(instance.workload.clone());
            }
            existing.insert(instance.workload.clone());
        }
        self.stopping.retain(|instance, _| {
            states.get(instance).is_some() && !server.is_placeholder(instance)
        });
        // A version that was not seen may still stop while an instance exists that is not desired.
        self.unclear.retain(|name| undesired.contains(name));
        // The last rules apply while any instance exists.
        self.unclear_rules.retain(|name| existing.contains(name));
        self.last_rules.retain(|(agent, workload), _| {
            let mut instances = states.of_agent_workload(agent, workload);
            instances.any(|(instance, _)| !server.is_placeholder(&instance))
        });
    }

    /// Returns whether a workload has the right to a request through `agent`: by its rules there,
    /// or by its last ones until it has stopped; `None` if these are not known.
    pub(crate) fn may_request(
        &self,
        server: &ServerLoop,
        agent: &Name,
        Request { id, content }: &Request,
    ) -> Option<bool> {
        let workload = id.split_once('@').expect("agents name the workload").0;
        let rules = match server.view().effective.get(workload) {
            Some(added) if added.instance.agent == *agent => {
                Some(&added.workload.control_interface_access)
            }
            _ if self.unclear_rules.contains(workload) => return None,
            _ => self.last_rules.get(&(agent.clone(), workload.into())),
        };
        let read = match content {
            RequestContent::UpdateState(_) => None,
            RequestContent::CompleteState(read) => Some(read),
            _ => return Some(true), // Workloads send only cancellations otherwise.
        };
        let Some(rules) = rules else {
            return Some(false);
        };
        if allows(rules, "*", Operation::ReadWrite) {
            return Some(true);
        }
        let Some(read) = read else {
            return Some(false);
        };
        let mut masks = read.masks.iter();
        Some(masks.all(|mask| allows(rules, mask, Operation::Read)))
    }

    /// Forgets all: the server was killed, and the next one does not know which instances stop.
    pub(crate) fn server_killed(&mut self) {
        self.stopping.clear();
        self.last_rules.clear();
        self.unclear.clear();
        self.unclear_rules.clear();
        self.begun_at.clear();
        self.ended_at.clear();
    }

    /// Returns the violation if a delete has wrong conditions. An instance that ends waits for all
    /// that need it running: those that were desired before, and those that are still stopping. An
    /// agent that is not connected gets no delete.
    fn wrong_delete(
        &self,
        before: &Before,
        update: Option<&UpdateState>,
        server: &ServerLoop,
    ) -> Option<String> {
        let view = server.view();
        let joining = joining(before, update, server);
        for (name, AddedWorkload { instance, .. }) in &before.effective {
            let is_unchanged = view.effective.get(name) == before.effective.get(name);
            if is_unchanged || view.agents.get(&instance.agent).is_none() {
                continue;
            }
            let effective = if joining.contains(name) {
                view.effective
            } else {
                &before.effective
            };
            let expected = self.dependents(name, effective, before, server);
            let conditions = server.delete_conditions(instance);
            let is_right = conditions.iter().all(|dependent| {
                expected.contains(dependent) || self.unclear.contains(dependent.as_str())
            });
            let is_complete = expected.iter().all(|dependent| {
                conditions.contains(dependent) || self.is_released(dependent, name, before, server)
            });
            if !is_right || !is_complete {
                return Some(format!(
                    "'{instance}' ends once {conditions:?} have, it is needed by {expected:?}"
                ));
            }
        }
        None
    }

    /// The workloads that need `name` running: those in `effective`, and those that are not there
    /// any more and still stop.
    fn dependents(
        &self,
        name: &Name,
        effective: &BTreeMap<Name, AddedWorkload>,
        before: &Before,
        server: &ServerLoop,
    ) -> BTreeSet<String> {
        let mut dependents = BTreeSet::new();
        for (dependent, added) in effective {
            if needed_running(&added.workload).contains(&**name) {
                dependents.insert(dependent.to_string());
            }
        }
        let mut ending = Vec::new();
        for (instance, needed) in &self.stopping {
            if needed.contains(&**name) {
                ending.push(instance);
            }
        }
        for added in before.effective.values() {
            if needed_running(&added.workload).contains(&**name) {
                ending.push(&added.instance);
            }
        }
        for instance in ending {
            let exists =
                before.existing.contains(instance) && server.view().states.get(instance).is_some();
            if exists && !effective.contains_key(&instance.workload) {
                dependents.insert(instance.workload.to_string());
            }
        }
        dependents
    }

    /// Returns whether the present version of `dependent` does not need `needed` or was not there
    /// before, and its earlier instances do not run again: the delete need not wait for it.
    fn is_released(
        &self,
        dependent: &str,
        needed: &str,
        before: &Before,
        server: &ServerLoop,
    ) -> bool {
        let view = server.view();
        let Some(now) = view.effective.get(dependent) else {
            return false;
        };
        let was_there = before.effective.get(dependent) == Some(now);
        if was_there && needed_running(&now.workload).contains(needed) {
            return false;
        }
        let mut earlier = Vec::new();
        if let Some(added) = before.effective.get(dependent)
            && needed_running(&added.workload).contains(needed)
        {
            earlier.push(&added.instance);
        }
        for (instance, needs) in &self.stopping {
            if *instance.workload == *dependent && needs.contains(needed) {
                earlier.push(instance);
            }
        }
        for instance in earlier {
            if let Some(state) = view.states.get(instance)
                && *instance != now.instance
                && !is_stopping(state)
            {
                return false;
            }
        }
        true
    }
}

/// Returns whether an instance stops and waits for nothing.
fn is_stopping(state: &ExecutionState) -> bool {
    if state.phase == Phase::StoppingWaitingToStop || state.reason == Reason::Gone {
        return false;
    }
    state.phase.is_stopping() || state.phase == Phase::AgentDisconnected
}

/// The state that an update requests; `None` without one, or if it is invalid.
fn requested_state(
    before: &Before,
    update: Option<&UpdateState>,
    server: &ServerLoop,
) -> Option<DesiredState> {
    let requested = after(&before.desired, update?);
    if has_cycle(&requested.workloads) {
        return None;
    }
    if server.has_modes() && !modes::is_allowed(&requested) {
        return None;
    }
    Some(requested)
}

/// The workloads that join an earlier restart, because they run and now need a restarted one. Each
/// gets another delete, with the dependents after the update. A part of an open update never joins:
/// it is restarted with that update, which may have been requested before and staged since, or with
/// its rollback.
fn joining(before: &Before, update: Option<&UpdateState>, server: &ServerLoop) -> BTreeSet<Name> {
    if let Some(update) = update
        && !update.restart.is_empty()
    {
        return BTreeSet::new();
    }
    let open = names_of_open(server);
    let mut joining = &server.restarting() - &before.restarting;
    joining.retain(|name| !before.open.contains(name) && !open.contains(name));
    joining
}

/// Returns the violation if the effective state is not the desired one in the mode, except for
/// staged and restarted workloads: there are no templates here, and one simple hook.
pub(crate) fn not_in_force(server: &ServerLoop) -> Option<String> {
    let view = server.view();
    let pending = pending(server);
    let restarting = server.restarting();
    let desired = &view.desired.workloads;
    for name in desired.keys().chain(view.effective.keys()) {
        if pending.contains(name) {
            continue;
        }
        let is = view.effective.get(name);
        let is_unscheduled = match is {
            Some(added) => added.instance.agent.is_empty(),
            None => true,
        };
        if restarting.contains(name) && is_unscheduled {
            continue;
        }
        let expected = match desired.get(name) {
            Some(workload) => {
                let has_modes = server.has_modes();
                Some(modes::expected(view.desired, name, workload, has_modes))
            }
            None => None,
        };
        if is != expected.as_ref() {
            let effective = view.effective;
            return Some(format!("desired is {desired:?}, active is {effective:?}"));
        }
    }
    None
}

/// Returns whether there is such a rule. The rules of the simulation allow everything, or reads of
/// the masks that they name literally.
fn allows(rules: &ControlInterfaceAccess, mask: &str, allowed: Operation) -> bool {
    for rule in &rules.allow_rules {
        if let AccessRule::State {
            operation,
            filter_masks,
        } = rule
            && *operation == allowed
            && filter_masks.iter().any(|one| one == mask)
        {
            return true;
        }
    }
    false
}

fn needed_running(workload: &Workload) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, condition) in &workload.dependencies {
        if *condition == AddCondition::Running {
            names.insert(name.clone());
        }
    }
    names
}

/// The state that an update of the simulation requests: its masks name whole workloads, or there
/// are none.
fn after(desired: &DesiredState, update: &UpdateState) -> DesiredState {
    let Some(Ok(tree)) = &update.new_state else {
        panic!("the simulation asks for states: {update:?}")
    };
    let new = tree.get("desiredState").expect("a state has this part");
    let new = desired_state_from_node(new).expect("it was made from a state");
    if update.masks.is_empty() {
        return new;
    }
    let mut expected = desired.clone();
    for mask in &update.masks {
        if mask == modes::ITEM_MASK {
            let item = new.configs.get(modes::ITEM);
            let item = item.expect("clients delete no mode").clone();
            expected.configs.insert(modes::ITEM.to_owned(), item);
            continue;
        }
        let name = mask.strip_prefix("desiredState.workloads.");
        let name: Name = name.expect("masks name workloads").into();
        match new.workloads.get(&name) {
            Some(workload) => _ = expected.workloads.insert(name, workload.clone()),
            None => _ = expected.workloads.remove(&name),
        }
    }
    expected
}

/// Returns whether workloads need each other: removes those that need none of the others, until
/// there are no more of them.
fn has_cycle<W: AsRef<Workload>>(workloads: &BTreeMap<Name, W>) -> bool {
    let mut left: BTreeSet<&str> = workloads.keys().map(|name| &**name).collect();
    loop {
        let before = left.len();
        for (name, workload) in workloads {
            let mut needs = workload.as_ref().dependencies.keys();
            if !needs.any(|needed| left.contains(needed.as_str())) {
                left.remove(&**name);
            }
        }
        if left.len() == before {
            return !left.is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_server::{OneServer, tree, update};
    use ankaios_model::messages::AgentCapabilities;
    use std::sync::Arc;

    fn needs(edges: &[(&str, &str)]) -> BTreeMap<Name, Arc<Workload>> {
        let mut workloads: BTreeMap<Name, Workload> = BTreeMap::new();
        for (name, needed) in edges {
            let workload = workloads
                .entry((*name).into())
                .or_insert_with(|| Workload::new("A", "r", "c"));
            workload
                .dependencies
                .insert((*needed).to_owned(), AddCondition::Failed);
        }
        workloads
            .into_iter()
            .map(|(name, workload)| (name, Arc::new(workload)))
            .collect()
    }

    #[test]
    fn only_a_workload_that_waits_for_itself_is_a_cycle() {
        assert!(!has_cycle(&needs(&[
            ("a", "b"),
            ("b", "missing"),
            ("a", "missing")
        ])));
        assert!(has_cycle(&needs(&[("a", "a")])));
        assert!(has_cycle(&needs(&[
            ("x", "a"),
            ("a", "b"),
            ("b", "c"),
            ("c", "a")
        ])));
    }

    fn workload(name: &str, config: &str, more: &str) -> String {
        format!("{name}: {{agent: A, runtime: podman, runtimeConfig: {config}, {more}}}")
    }

    fn state(workloads: &[String]) -> String {
        format!(
            "{{apiVersion: v1, workloads: {{{}}}}}",
            workloads.join(", ")
        )
    }

    /// A restart, alone or with an update.
    fn restart(name: &str, new: Option<&str>) -> RequestContent {
        let new_state = new.map(|new| Ok(tree(new)));
        let restart = vec![name.to_owned()];
        RequestContent::UpdateState(UpdateState {
            new_state,
            restart,
            ..UpdateState::default()
        })
    }

    /// Seed 10012608: `w` ends twice with one update, the second time as a part of the restart of
    /// `needed`. Until then it was needed by what came with that update.
    #[test]
    fn joined_restart_with_an_update_waits_for_new_dependents() {
        let running = |needed: &str| format!("dependencies: {{{needed}: ADD_COND_RUNNING}}");
        let workload = |name: &str, more: &str| workload(name, "x", more);
        let old = [workload("needed", ""), workload("w", "")];
        let mut cluster = OneServer::with_manifest(&state(&old));
        let agent = cluster.agent("A");
        let [needed, w] = ["needed", "w"].map(|name| InstanceName::new(name, "x", "A"));
        cluster.report(agent, &[(&needed, Phase::Running), (&w, Phase::Running)]);
        let commander = cluster.commander();
        cluster.request(commander, restart("needed", None));
        let before = Before::of(&cluster.server);
        let new = [
            workload("needed", ""),
            workload("w", &running("needed")),
            workload("user", &running("w")),
        ];
        let new = format!("{{desiredState: {}}}", state(&new));
        cluster.request(commander, update(&new, &[]));
        assert_eq!(
            cluster.server.delete_conditions(&w),
            BTreeSet::from(["user".to_owned()])
        );
        let mut update = UpdateState {
            new_state: Some(Ok(tree(&new))),
            ..UpdateState::default()
        };
        let judge = |update: &UpdateState| {
            ServerExpectations::new(false).check(&before, Some(update), &cluster.server)
        };
        assert_eq!(judge(&update), None);
        update.restart.push("w".to_owned());
        assert!(
            judge(&update).unwrap().contains("needed by {}"),
            "all that is restarted ends once"
        );
    }

    /// Seed 24012317: what joined a restart with the update that made it need something may still
    /// have come into force.
    #[test]
    fn joined_restart_is_awaited_by_its_former_dependencies() {
        let needs = "dependencies: {needed: ADD_COND_RUNNING, other: ADD_COND_RUNNING}";
        let [needed, other] = ["needed", "other"].map(|name| workload(name, "x", ""));
        let mut cluster = OneServer::with_manifest(&state(&[
            needed.clone(),
            other.clone(),
            workload("user", "x", ""),
        ]));
        let agent = cluster.agent("A");
        let running = ["needed", "other", "user"].map(|name| InstanceName::new(name, "x", "A"));
        cluster.report(
            agent,
            &running
                .each_ref()
                .map(|instance| (instance, Phase::Running)),
        );
        let (commander, mut expectations) = (cluster.commander(), ServerExpectations::new(false));
        cluster.request(commander, restart("needed", None));
        let mut ask = |workloads: &[String]| {
            let (before, new) = (
                Before::of(&cluster.server),
                format!("{{desiredState: {}}}", state(workloads)),
            );
            cluster.request(commander, update(&new, &[]));
            let asked = UpdateState {
                new_state: Some(Ok(tree(&new))),
                ..UpdateState::default()
            };
            let judged = expectations.check(&before, Some(&asked), &cluster.server);
            (judged, cluster.server.delete_conditions(&running[1]).len())
        };
        assert_eq!(
            ask(&[needed.clone(), other.clone(), workload("user", "x", needs)]),
            (None, 0)
        );
        assert_eq!(ask(&[needed.clone(), other]), (None, 0));
        assert_eq!(ask(&[needed]), (None, 1), "the user has not ended");
    }

    /// Seed 13005815: what a staged update was to restart is restarted with a later update, which
    /// asks for no restart.
    #[test]
    fn restart_with_a_staged_update_waits_for_former_dependents() {
        let staged = |stage: &str| {
            format!("'{{ lifecycle: {{ update: {{ {stage} onFailure: ROLLBACK }} }} }}'")
        };
        let user = |name: &str| workload(name, "x", "dependencies: {needed: ADD_COND_RUNNING}");
        let old = [workload("needed", "x", ""), user("other"), user("user")];
        let mut cluster = OneServer::with_manifest(&state(&old));
        let agent = cluster.agent_with(
            "A",
            AgentCapabilities {
                prepares: true,
                ..Default::default()
            },
        );
        let [needed, other, user_old] =
            ["needed", "other", "user"].map(|name| InstanceName::new(name, "x", "A"));
        cluster.report(
            agent,
            &[&needed, &other, &user_old].map(|instance| (instance, Phase::Running)),
        );
        let commander = cluster.commander();
        let new = |stage: &str| {
            let new = [
                workload("needed", "y", ""),
                user("other"),
                workload("user", &staged(stage), ""),
            ];
            format!("{{desiredState: {}}}", state(&new))
        };
        cluster.request(commander, restart("needed", Some(&new(""))));
        assert_eq!(
            pending(&cluster.server).len(),
            2,
            "nothing is carried out yet"
        );
        let before = Before::of(&cluster.server);
        let new = new("stage: NONE,");
        cluster.request(commander, update(&new, &[]));
        assert_eq!(cluster.server.restarting().len(), 3);
        assert_eq!(
            cluster.server.delete_conditions(&needed),
            BTreeSet::from(["other", "user"].map(str::to_owned))
        );
        let update = UpdateState {
            new_state: Some(Ok(tree(&new))),
            ..UpdateState::default()
        };
        assert_eq!(
            ServerExpectations::new(true).check(&before, Some(&update), &cluster.server),
            None
        );
    }

    /// Seed 15009549: a rollback restarts what its update has restarted.
    #[test]
    fn restart_with_a_rollback_waits_for_former_dependents() {
        let needs = "dependencies: {needed: ADD_COND_RUNNING}";
        let old = [workload("needed", "x", ""), workload("user", "x", "")];
        let mut cluster = OneServer::with_manifest(&state(&old));
        let agent = cluster.agent("A");
        let config = "{ lifecycle: { update: { stage: NONE, onFailure: ROLLBACK } } }";
        let [needed, user, new_needed] = [("needed", "x"), ("user", "x"), ("needed", config)]
            .map(|(name, id)| InstanceName::new(name, id, "A"));
        cluster.report(agent, &[(&needed, Phase::Running), (&user, Phase::Running)]);
        let commander = cluster.commander();
        let new = [
            workload("needed", &format!("'{config}'"), ""),
            workload("user", "y", needs),
        ];
        let new = format!("{{desiredState: {}}}", state(&new));
        cluster.request(commander, restart("needed", Some(&new)));
        cluster.report(agent, &[(&needed, Phase::Removed), (&user, Phase::Removed)]);
        cluster.report(agent, &[(&new_needed, Phase::Running)]);
        let before = Before::of(&cluster.server);
        cluster.request(commander, RequestContent::RollBack(1));
        assert_eq!(
            cluster.server.delete_conditions(&new_needed),
            BTreeSet::from(["user".to_owned()])
        );
        let update = UpdateState {
            new_state: Some(Ok(tree(&format!("{{desiredState: {}}}", state(&old))))),
            ..Default::default()
        };
        assert_eq!(
            ServerExpectations::new(true).check(&before, Some(&update), &cluster.server),
            None
        );
    }

    /// Seed 13003419: a restart goes on with the report that its last instance is gone.
    #[test]
    fn removed_instance_needs_nothing_although_it_came_back() {
        let judged = |is_restarted: bool, is_known: bool| {
            let user = workload("user", "x", "dependencies: {needed: ADD_COND_RUNNING}");
            let mut cluster =
                OneServer::with_manifest(&state(&[workload("needed", "x", ""), user]));
            let agent = cluster.agent("A");
            let [needed, user] = ["needed", "user"].map(|name| InstanceName::new(name, "x", "A"));
            cluster.report(agent, &[(&needed, Phase::Running), (&user, Phase::Running)]);
            let (commander, mut expectations) =
                (cluster.commander(), ServerExpectations::new(false));
            let ask = |cluster: &mut OneServer,
                       expectations: &mut ServerExpectations,
                       content: RequestContent| {
                let RequestContent::UpdateState(asked) = &content else {
                    panic!("{content:?}")
                };
                let (before, asked) = (Before::of(&cluster.server), asked.clone());
                cluster.request(commander, content);
                expectations.check(
                    &before,
                    Some(&asked).filter(|asked| asked.new_state.is_some()),
                    &cluster.server,
                )
            };
            let update = |workloads: &[String]| {
                update(&format!("{{desiredState: {}}}", state(workloads)), &[])
            };
            let independent = [workload("needed", "x", ""), workload("user", "x", "")];
            assert_eq!(
                ask(&mut cluster, &mut expectations, update(&independent)),
                None
            );
            if is_restarted {
                assert_eq!(
                    ask(&mut cluster, &mut expectations, restart("user", None)),
                    None
                );
                if is_known {
                    expectations.reported(&[WorkloadState::new(
                        user.clone(),
                        ExecutionState::plain(Phase::Removed),
                    )]);
                }
                cluster.report(agent, &[(&user, Phase::Removed)]);
                expectations.forget_gone(&cluster.server);
                assert_eq!(
                    cluster.phase(&user),
                    Some(Phase::PendingInitial),
                    "it is back already"
                );
                cluster.report(agent, &[(&user, Phase::Running)]);
            }
            assert_eq!(
                ask(&mut cluster, &mut expectations, update(&independent[..1])),
                None
            );
            let judged = ask(&mut cluster, &mut expectations, update(&[]));
            (cluster.server.delete_conditions(&needed).len(), judged)
        };
        assert_eq!(judged(true, true), (0, None));
        assert_eq!(
            judged(false, false),
            (1, None),
            "its earlier form may still run"
        );
        let (_, wrong) = judged(true, false);
        assert!(
            wrong.unwrap().contains(r#"needed by {"user"}"#),
            "without that report it would have to wait"
        );
    }
}
