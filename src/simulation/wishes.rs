//! What commanders and workloads asked for, worked out here once more: which state that is, whether
//! it is refused, who may ask it, and what deletes have to wait for. The server is judged by it,
//! not by what it says of itself.
//!
//! Thread: the one of the test.

use super::guards::pending;
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
    /// The known updates that were undone.
    undone: BTreeSet<u64>,
    /// Workloads whose new form was not in force.
    pending: BTreeSet<Name>,
    /// Workloads that were being restarted.
    restarting: BTreeSet<Name>,
    /// The names of open updates.
    open: BTreeSet<Name>,
}

fn names_of_open(server: &ServerLoop) -> BTreeSet<Name> {
    let open = server
        .seen_updates()
        .into_values()
        .filter(|update| update.phase.is_open());
    open.flat_map(|update| update.names).collect()
}

/// The known updates that were undone.
pub(crate) fn undone(server: &ServerLoop) -> BTreeSet<u64> {
    let updates = server.seen_updates().into_iter();
    updates
        .filter(|(_, update)| update.phase == UpdatePhase::Undone)
        .map(|(number, _)| number)
        .collect()
}

/// What a restart of the workloads that are asked for has to end: they and all that need them
/// running, directly or not, as far as they were started. With an update it also depends on that.
pub(crate) fn to_restart(content: &RequestContent, server: &ServerLoop) -> BTreeSet<Name> {
    let RequestContent::UpdateState(UpdateState {
        new_state: None,
        restart,
        ..
    }) = content
    else {
        return BTreeSet::new();
    };
    let (effective, states) = (server.view().effective, server.view().states);
    let mut all: BTreeSet<Name> = restart
        .iter()
        .map(|name| Name::from(name.as_str()))
        .collect();
    loop {
        let needs_one = |added: &AddedWorkload| {
            needed_running(&added.workload)
                .iter()
                .any(|it| all.contains(it.as_str()))
        };
        let more = effective
            .iter()
            .filter(|(name, added)| !all.contains(*name) && needs_one(added));
        let more: Vec<Name> = more.map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    // Nobody waits for the end of what an agent that has just come back did not report yet.
    let counts = |phase| {
        !matches!(
            phase,
            Phase::PendingInitial | Phase::PendingWaitingToStart | Phase::AgentDisconnected
        )
    };
    all.retain(|name| {
        let instance = effective
            .get(name)
            .map(|added| &added.instance)
            .filter(|instance| !instance.agent.is_empty());
        instance
            .and_then(|instance| states.get(instance))
            .is_some_and(|state| counts(state.phase))
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

    /// Whether an update was undone since then.
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

/// What is remembered of earlier wishes.
#[derive(Default)]
pub(crate) struct Wishes {
    /// Instances that were told to stop and still have a state, with the workloads that they need
    /// running until then.
    stopping: BTreeMap<InstanceName, BTreeSet<String>>,
    /// By agent and name: the last rules of workloads that were wanted there and still have a
    /// state.
    last_rules: BTreeMap<(Name, Name), ControlInterfaceAccess>,
    /// Workloads of which a form came into force and was replaced with one event, so that it was
    /// not seen here.
    unclear: BTreeSet<Name>,
    /// Workloads whose last rules are those of such a form.
    unclear_rules: BTreeSet<Name>,
    /// Updates may be guarded, so one may be refused because of an earlier one.
    are_guarded: bool,
}

impl Wishes {
    pub(crate) fn new(are_guarded: bool) -> Self {
        Self {
            are_guarded,
            ..Self::default()
        }
    }

    /// Answers what the server has made wrong of a message: `update` is what it asks for, if that
    /// is an update and the server listens to who says it.
    pub(crate) fn judge(
        &mut self,
        before: &Before,
        update: Option<&UpdateState>,
        server: &ServerLoop,
    ) -> Option<String> {
        // One that restarts something may be refused for many reasons.
        let is_refused = |update: &UpdateState| {
            !update.restart.is_empty() && *server.view().desired == before.desired
        };
        let wished = update
            .filter(|update| !is_refused(update))
            .map(|update| after(&before.desired, update));
        let wished = wished.filter(|wished| !has_cycle(&wished.workloads));
        let wished = wished.filter(|wished| !server.has_modes() || modes::is_allowed(wished));
        let is = server.view().desired;
        let wanted = wished.as_ref().unwrap_or(&before.desired);
        // One whose clock has run out by then is undone at once: these are two changes.
        let has_undone = self.are_guarded && before.has_undone(server);
        let may_differ = self.are_guarded && (*is == before.desired || has_undone);
        if is != wanted && !may_differ {
            return Some(format!("asked for was {wanted:?}, the server has {is:?}"));
        }
        let wrong_delete = || {
            if has_undone {
                None
            } else {
                self.wrong_delete(before, update, server)
            }
        };
        let wrong = not_in_force(server).or_else(wrong_delete);
        self.note_ended(before, server);
        let joining = joining(before, update, server);
        let is_replaced = |name: &Name| has_undone || joining.contains(name);
        wished
            .iter()
            .for_each(|wished| self.note_replaced(wished, is_replaced, server));
        self.forget_gone(server);
        wrong
    }

    /// What was wanted before and is not any more may go on for a while.
    pub(crate) fn note_ended(&mut self, before: &Before, server: &ServerLoop) {
        let ended = before
            .effective
            .iter()
            .filter(|(name, added)| server.view().effective.get(*name) != Some(*added));
        ended.for_each(|(_, ended)| self.note_stopping(ended));
        // So may what waited to be replaced, when the mode is switched with what ends its waiting.
        let has_switched = modes::mode(&before.desired) != modes::mode(server.view().desired);
        if before.has_undone(server) || has_switched {
            let unseen: BTreeSet<Name> = before
                .pending
                .difference(&pending(server))
                .cloned()
                .collect();
            self.unclear.extend(unseen.iter().cloned());
            self.unclear_rules.extend(unseen);
        }
        self.forget_gone(server);
    }

    fn note_stopping(&mut self, ended: &AddedWorkload) {
        // What runs may still be an earlier form of the same instance.
        self.stopping
            .entry(ended.instance.clone())
            .or_default()
            .extend(needed_running(&ended.workload));
        let InstanceName {
            workload, agent, ..
        } = ended.instance.clone();
        self.unclear_rules.remove(&workload);
        self.last_rules.insert(
            (agent, workload),
            ended.workload.control_interface_access.clone(),
        );
    }

    /// What was asked for may have come into force and be replaced at once, unless it is only being
    /// staged.
    fn note_replaced(
        &mut self,
        wished: &DesiredState,
        is_replaced: impl Fn(&Name) -> bool,
        server: &ServerLoop,
    ) {
        let pending = pending(server);
        let in_force = |name: &Name| !pending.contains(name) && is_replaced(name);
        for (name, workload) in wished.workloads.iter().filter(|(name, _)| in_force(name)) {
            let added = modes::expected(wished, name, workload, server.has_modes());
            if server.view().effective.get(name) != Some(&added) {
                self.note_stopping(&added);
            }
        }
    }

    /// An agent that the server listens to is about to report these. What it says has been removed
    /// has ended in all forms that it had until then, also when the same instance comes back with
    /// this event and so never is without a state.
    pub(crate) fn reported(&mut self, states: &[WorkloadState]) {
        let removed = states
            .iter()
            .filter(|report| report.state.phase == Phase::Removed);
        removed.for_each(|report| _ = self.stopping.remove(&report.instance));
    }

    /// Instances without a state have stopped. One that is staged again is shown, although nothing
    /// of it is there.
    pub(crate) fn forget_gone(&mut self, server: &ServerLoop) {
        let (states, effective) = (server.view().states, server.view().effective);
        self.stopping.retain(|instance, _| {
            states.get(instance).is_some() && !server.is_placeholder(instance)
        });
        // What was not seen may have the instance name of what was replaced by it, and is stopping
        // since.
        let is_unseen = |instance: &InstanceName| {
            let is_wanted = effective
                .get(&instance.workload)
                .is_some_and(|added| added.instance == *instance);
            !is_wanted && !server.is_placeholder(instance)
        };
        self.unclear.retain(|name| {
            states
                .iter()
                .any(|(instance, _)| instance.workload == *name && is_unseen(&instance))
        });
        // The last rules count as long as any instance has a state. What is being staged is shown
        // too, and was never there.
        self.unclear_rules.retain(|name| {
            states.iter().any(|(instance, _)| {
                instance.workload == *name && !server.is_placeholder(&instance)
            })
        });
        self.last_rules.retain(|(agent, workload), _| {
            states
                .of_agent_workload(agent, workload)
                .any(|(instance, _)| !server.is_placeholder(&instance))
        });
    }

    /// Whether a workload may ask this through `agent`: by its rules there, or its last ones as
    /// long as it has not stopped; `None` when these are not known.
    pub(crate) fn may_ask(
        &self,
        server: &ServerLoop,
        agent: &Name,
        Request { id, content }: &Request,
    ) -> Option<bool> {
        let workload = id.split_once('@').expect("agents name the workload").0;
        let wanted = server
            .view()
            .effective
            .get(workload)
            .filter(|added| added.instance.agent == *agent);
        if wanted.is_none() && self.unclear_rules.contains(workload) {
            return None;
        }
        let rules = match wanted {
            Some(added) => Some(&added.workload.control_interface_access),
            None => self.last_rules.get(&(agent.clone(), workload.into())),
        };
        Some(match content {
            RequestContent::UpdateState(_) => {
                rules.is_some_and(|rules| allows(rules, "*", Operation::ReadWrite))
            }
            RequestContent::CompleteState(read) => rules.is_some_and(|rules| {
                read.masks.iter().all(|mask| {
                    allows(rules, mask, Operation::Read) || allows(rules, "*", Operation::ReadWrite)
                })
            }),
            _ => true, // Workloads ask nothing else here, they cancel it.
        })
    }

    /// The server was killed; the next one knows nothing of what stops.
    pub(crate) fn server_killed(&mut self) {
        self.stopping.clear();
        self.last_rules.clear();
        self.unclear.clear();
        self.unclear_rules.clear();
    }

    /// What ends waits for all that need it running: those that were wanted before, and those that
    /// are still stopping. An agent that is away is told nothing.
    fn wrong_delete(
        &self,
        before: &Before,
        update: Option<&UpdateState>,
        server: &ServerLoop,
    ) -> Option<String> {
        let view = server.view();
        let joining = joining(before, update, server);
        let ended = before
            .effective
            .iter()
            .filter(|(name, added)| view.effective.get(*name) != Some(*added));
        let mut told = ended.filter(|(_, added)| view.agents.get(&added.instance.agent).is_some());
        told.find_map(|(name, AddedWorkload { instance, .. })| {
            let needs_it = |workload: &Workload| needed_running(workload).contains(&**name);
            let effective = if joining.contains(name) {
                view.effective
            } else {
                &before.effective
            };
            let wanted = effective
                .iter()
                .filter(|(_, added)| needs_it(&added.workload))
                .map(|(name, _)| name);
            let ending = before
                .effective
                .values()
                .filter(|added| needs_it(&added.workload));
            let stopping = self
                .stopping
                .iter()
                .filter(|(_, needs)| needs.contains(&**name));
            let stopping = stopping
                .map(|(stopping, _)| stopping)
                .chain(ending.map(|ending| &ending.instance));
            let exists = |one: &&InstanceName| {
                before.existing.contains(*one) && view.states.get(one).is_some()
            };
            let stopping = stopping.filter(exists).map(|stopping| &stopping.workload);
            let stopping = stopping.filter(|name| !effective.contains_key(*name));
            let expected: BTreeSet<String> =
                wanted.chain(stopping).map(ToString::to_string).collect();
            let told = server.delete_conditions(instance);
            let is_told = |dependent: &String| {
                told.contains(dependent) || self.lets_go(dependent, name, before, server)
            };
            let may_be = |dependent: &String| {
                expected.contains(dependent) || self.unclear.contains(dependent.as_str())
            };
            let right = told.iter().all(may_be) && expected.iter().all(is_told);
            (!right).then(|| {
                format!("'{instance}' ends once {told:?} have, it is needed by {expected:?}")
            })
        })
    }

    /// Whether `dependent` goes on without needing `needed`, and whatever it was before does not
    /// run again: its agent would be told at once that this is not waited for.
    fn lets_go(&self, dependent: &str, needed: &str, before: &Before, server: &ServerLoop) -> bool {
        let view = server.view();
        let goes_on = |added: &AddedWorkload| !needed_running(&added.workload).contains(needed);
        let was = before
            .effective
            .get(dependent)
            .filter(|was| needed_running(&was.workload).contains(needed));
        let stopping = self
            .stopping
            .iter()
            .filter(|(old, needs)| &*old.workload == dependent && needs.contains(needed));
        let mut olds = was
            .map(|was| &was.instance)
            .into_iter()
            .chain(stopping.map(|(old, _)| old));
        let stops = |state: &ExecutionState| {
            let waits = state.phase == Phase::StoppingWaitingToStop || state.reason == Reason::Gone;
            let stops = state.phase.is_stopping() && !waits;
            stops || state.phase == Phase::AgentDisconnected
        };
        let is_old = |old: &InstanceName| {
            view.effective
                .get(dependent)
                .is_none_or(|added| added.instance != *old)
        };
        view.effective.get(dependent).is_some_and(goes_on)
            && olds.all(|old| !is_old(old) || view.states.get(old).is_none_or(stops))
    }
}

/// What joins an earlier restart, since it runs and needs by now what is restarted. It is told to
/// end once more: what needs it then is what is wanted after the update. What is a part of an open
/// update never joins: it is restarted with that, which may have been asked for before and staged
/// since, or with its rollback.
fn joining(before: &Before, update: Option<&UpdateState>, server: &ServerLoop) -> BTreeSet<Name> {
    if update.is_some_and(|update| !update.restart.is_empty()) {
        return BTreeSet::new();
    }
    let (mut joining, open) = (
        &server.restarting() - &before.restarting,
        names_of_open(server),
    );
    joining.retain(|name| !before.open.contains(name) && !open.contains(name));
    joining
}

/// What agents are told is what is desired and in the mode, but for what is being staged or
/// restarted: there are no templates here, and one simple hook.
pub(crate) fn not_in_force(server: &ServerLoop) -> Option<String> {
    let view = server.view();
    let (pending, restarting) = (pending(server), server.restarting());
    let in_force = |name: &Name| {
        let desired = view.desired.workloads.get(name);
        let expected = desired
            .map(|workload| modes::expected(view.desired, name, workload, server.has_modes()));
        let is = view.effective.get(name);
        let is_out =
            restarting.contains(name) && is.is_none_or(|added| added.instance.agent.is_empty());
        is == expected.as_ref() || pending.contains(name) || is_out
    };
    let all = view
        .desired
        .workloads
        .keys()
        .chain(view.effective.keys())
        .all(in_force);
    (!all).then(|| {
        format!(
            "desired is {:?}, in force is {:?}",
            view.desired.workloads, view.effective
        )
    })
}

/// Whether there is such a rule. Those of the simulation allow everything, or to read what they
/// name word for word.
fn allows(rules: &ControlInterfaceAccess, mask: &str, allowed: Operation) -> bool {
    rules.allow_rules.iter().any(|rule| match rule {
        AccessRule::State {
            operation,
            filter_masks,
        } => *operation == allowed && filter_masks.iter().any(|it| it == mask),
        AccessRule::Log { .. } => false,
    })
}

fn needed_running(workload: &Workload) -> BTreeSet<String> {
    let running = workload
        .dependencies
        .iter()
        .filter(|(_, condition)| **condition == AddCondition::Running);
    running.map(|(name, _)| name.clone()).collect()
}

/// The state that an update of the simulation asks for: its masks name whole workloads, or there
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
    let mut wished = desired.clone();
    for mask in &update.masks {
        if mask == modes::ITEM_MASK {
            let item = new
                .configs
                .get(modes::ITEM)
                .expect("clients delete no mode")
                .clone();
            wished.configs.insert(modes::ITEM.to_owned(), item);
            continue;
        }
        let name: Name = mask
            .strip_prefix("desiredState.workloads.")
            .expect("masks name workloads")
            .into();
        match new.workloads.get(&name) {
            Some(workload) => _ = wished.workloads.insert(name, workload.clone()),
            None => _ = wished.workloads.remove(&name),
        }
    }
    wished
}

/// Takes away who needs nobody that is left, as long as there is any.
fn has_cycle<W: AsRef<Workload>>(workloads: &BTreeMap<Name, W>) -> bool {
    let mut left: BTreeMap<&str, &Workload> = workloads
        .iter()
        .map(|(name, it)| (&**name, it.as_ref()))
        .collect();
    loop {
        let free = |workload: &Workload| {
            !workload
                .dependencies
                .keys()
                .any(|needed| left.contains_key(needed.as_str()))
        };
        let found = left
            .iter()
            .find(|(_, workload)| free(workload))
            .map(|(name, _)| *name);
        match found {
            Some(name) => _ = left.remove(name),
            None => return !left.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_server::{Cluster, tree, update};
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
        let mut cluster = Cluster::with_manifest(&state(&old));
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
        let judge =
            |update: &UpdateState| Wishes::new(false).judge(&before, Some(update), &cluster.server);
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
        let mut cluster = Cluster::with_manifest(&state(&[
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
        let (commander, mut wishes) = (cluster.commander(), Wishes::new(false));
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
            let judged = wishes.judge(&before, Some(&asked), &cluster.server);
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
        let mut cluster = Cluster::with_manifest(&state(&old));
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
            Wishes::new(true).judge(&before, Some(&update), &cluster.server),
            None
        );
    }

    /// Seed 15009549: a rollback restarts what its update has restarted.
    #[test]
    fn restart_with_a_rollback_waits_for_former_dependents() {
        let needs = "dependencies: {needed: ADD_COND_RUNNING}";
        let old = [workload("needed", "x", ""), workload("user", "x", "")];
        let mut cluster = Cluster::with_manifest(&state(&old));
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
            Wishes::new(true).judge(&before, Some(&update), &cluster.server),
            None
        );
    }

    /// Seed 13003419: a restart goes on with the report that its last instance is gone.
    #[test]
    fn removed_instance_needs_nothing_although_it_came_back() {
        let judged = |is_restarted: bool, is_known: bool| {
            let user = workload("user", "x", "dependencies: {needed: ADD_COND_RUNNING}");
            let mut cluster = Cluster::with_manifest(&state(&[workload("needed", "x", ""), user]));
            let agent = cluster.agent("A");
            let [needed, user] = ["needed", "user"].map(|name| InstanceName::new(name, "x", "A"));
            cluster.report(agent, &[(&needed, Phase::Running), (&user, Phase::Running)]);
            let (commander, mut wishes) = (cluster.commander(), Wishes::new(false));
            let ask = |cluster: &mut Cluster, wishes: &mut Wishes, content: RequestContent| {
                let RequestContent::UpdateState(asked) = &content else {
                    panic!("{content:?}")
                };
                let (before, asked) = (Before::of(&cluster.server), asked.clone());
                cluster.request(commander, content);
                wishes.judge(
                    &before,
                    Some(&asked).filter(|asked| asked.new_state.is_some()),
                    &cluster.server,
                )
            };
            let update = |workloads: &[String]| {
                update(&format!("{{desiredState: {}}}", state(workloads)), &[])
            };
            let independent = [workload("needed", "x", ""), workload("user", "x", "")];
            assert_eq!(ask(&mut cluster, &mut wishes, update(&independent)), None);
            if is_restarted {
                assert_eq!(ask(&mut cluster, &mut wishes, restart("user", None)), None);
                if is_known {
                    wishes.reported(&[WorkloadState::new(
                        user.clone(),
                        ExecutionState::plain(Phase::Removed),
                    )]);
                }
                cluster.report(agent, &[(&user, Phase::Removed)]);
                wishes.forget_gone(&cluster.server);
                assert_eq!(
                    cluster.phase(&user),
                    Some(Phase::PendingInitial),
                    "it is back already"
                );
                cluster.report(agent, &[(&user, Phase::Running)]);
            }
            assert_eq!(
                ask(&mut cluster, &mut wishes, update(&independent[..1])),
                None
            );
            let judged = ask(&mut cluster, &mut wishes, update(&[]));
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
