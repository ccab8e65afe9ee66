//! Guarded updates from outside: the states to which a rollback leads, computed here once more, and
//! agents that report the progress of staged instances.
//!
//! Thread: the one of the test.

use super::life::RUNTIMES;
use super::modes;
use super::server_expectations::Before;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::complete_state::Rendering;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::guarded_update::{AGENT_PREFIX, UpdatePhase};
use ankaios_model::messages::{AddedWorkload, PreparedInstance, UpdateState};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::workload::{RestartPolicy, Workload};
use ankaios_platform::clock::Clock;
use ankaios_server::ServerLoop;
use ankaios_server::inspection::SeenUpdate;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Part of the reason of an update that is kept because the state from before it is refused now.
const NO_WAY_BACK: &str = "cannot be rolled back";

/// The guarded updates of a cluster.
#[derive(Default)]
pub(crate) struct GuardedUpdates {
    updates: BTreeMap<u64, SeenUpdate>,
    /// Each workload of an open update before the first of the updates that it is a part of.
    ways_back: BTreeMap<Name, Option<Arc<Workload>>>,
    /// The workloads of each update after it.
    after: BTreeMap<u64, BTreeMap<Name, Option<Arc<Workload>>>>,
    /// Agents that prepare nothing, where conditions mean nothing.
    foreign: BTreeSet<Name>,
    /// Instances whose conditions were met in the last reports of their agents, on their present
    /// connections.
    permitted: BTreeSet<InstanceName>,
    /// Open updates that are kept after some failures: of a workload that does not roll its update
    /// back, now or in an update that they have replaced.
    may_be_kept: BTreeSet<u64>,
    /// Open updates during which the mode was switched, and those that have replaced them. The
    /// server does not evaluate workloads that a switch has brought to their agents.
    saw_switch: BTreeSet<u64>,
    /// By update: its workloads that the server does not evaluate while they are the same. It
    /// replaces none of them: it sets them back to the active version, or they would be restarted
    /// with it, but did not run.
    not_evaluated: BTreeMap<u64, BTreeMap<Name, AddedWorkload>>,
}

impl GuardedUpdates {
    /// Has no updates yet; these agents prepare nothing.
    pub(crate) fn new(foreign: BTreeSet<Name>) -> Self {
        Self {
            foreign,
            ..Self::default()
        }
    }

    /// Takes the reports of agents to the server.
    pub(crate) fn reported(&mut self, reports: &[PreparedInstance]) {
        for report in reports {
            let is_ended = report.level.is_some() || report.is_final;
            if is_ended && report.unmet.is_none() {
                self.permitted.insert(report.instance.clone());
            } else {
                self.permitted.remove(&report.instance);
            }
        }
    }

    /// Takes the end of an agent's connection, or the begin of another one: its earlier reports no
    /// longer apply.
    pub(crate) fn disconnected(&mut self, agent: &Name) {
        self.permitted.retain(|instance| instance.agent != *agent);
    }

    /// Takes another server, which has read the stored state.
    pub(crate) fn restarted(&mut self, server: &ServerLoop) {
        self.permitted.clear();
        self.updates = server.seen_updates();
        self.ways_back.clear();
        self.may_be_kept.clear();
        self.saw_switch.clear();
        self.not_evaluated.clear();
        for (number, update) in &self.updates {
            if update.phase.is_open() {
                self.ways_back.extend(update.ways_back.clone());
                // A failure of a workload that is in it no longer may be stored as well.
                self.may_be_kept.insert(*number);
            }
        }
    }

    /// Returns the violation after an event, which was a request for an update or not.
    pub(crate) fn check(
        &mut self,
        before: &Before,
        is_request: bool,
        server: &ServerLoop,
    ) -> Option<String> {
        let now = server.seen_updates();
        let earlier = std::mem::replace(&mut self.updates, now.clone());
        let newest = earlier.keys().last().copied().unwrap_or_default();
        let mode = modes::mode(server.view().desired);
        if modes::mode(before.desired()) != mode {
            self.saw_switch.extend(now.keys());
        }
        for (number, update) in &now {
            // First a new update.
            if *number > newest {
                if !is_request {
                    return Some(format!(
                        "update {number} of {:?} was not requested",
                        update.names
                    ));
                }
                self.note_new(*number, update, before, server);
                self.note_reactions(*number, update, &now, server);
            }
            // Then an update that has ended.
            let earlier = earlier.get(number);
            let was_open = match earlier {
                Some(earlier) => earlier.phase.is_open(),
                None => true,
            };
            if update.phase == UpdatePhase::Undone && was_open {
                let wrong = self.wrong_rollback(*number, update, server);
                if wrong.is_some() {
                    return wrong;
                }
            }
            if was_open && let Some(wrong) = self.wrong_end(*number, update, server) {
                return Some(wrong);
            }
            // Finally the changes of the effective state, which a switch of the mode explains.
            if modes::mode(before.desired()) != mode {
                continue;
            }
            let changed = self.changed(update, before, server);
            let is_switched = was_open && update.phase != UpdatePhase::Undone;
            if is_switched && !changed.is_empty() {
                for name in &update.names {
                    let is_concerned = changed.contains(name) || update.pending.contains(name);
                    if is_concerned && self.is_forbidden(name, server) {
                        return Some(format!(
                            "update {number} is switched although 'when' of '{name}' is not met"
                        ));
                    }
                }
            }
            let Some(earlier) = earlier else {
                continue;
            };
            for name in &update.pending {
                if earlier.pending.contains(name) && changed.contains(name) {
                    return Some(format!(
                        "'{name}' has changed although update {number} is only being staged"
                    ));
                }
            }
        }
        // Forget what no open update needs.
        let mut open = BTreeSet::new();
        for update in now.values() {
            if update.phase.is_open() {
                open.extend(update.names.clone());
            }
        }
        self.ways_back.retain(|name, _| open.contains(name));
        self.may_be_kept.retain(|number| is_open(&now, *number));
        self.saw_switch.retain(|number| is_open(&now, *number));
        self.not_evaluated
            .retain(|number, _| is_open(&now, *number));
        let pending = pending(server);
        self.permitted
            .retain(|instance| pending.contains(&instance.workload));
        None
    }

    fn note_new(&mut self, number: u64, update: &SeenUpdate, before: &Before, server: &ServerLoop) {
        let mut after = BTreeMap::new();
        let mut not_evaluated = BTreeMap::new();
        for name in &update.names {
            if let Some(active) = kept_version(name, update, before, server) {
                not_evaluated.insert(name.clone(), active.clone());
            }
            let way_back = before.desired().workloads.get(name);
            self.ways_back
                .entry(name.clone())
                .or_insert_with(|| way_back.cloned());
            let now = server.view().desired.workloads.get(name);
            after.insert(name.clone(), now.cloned());
        }
        self.after.insert(number, after);
        if !not_evaluated.is_empty() {
            self.not_evaluated.insert(number, not_evaluated);
        }
    }

    /// Notes whether a new update may be kept after a failure, and whether all of it is evaluated.
    fn note_reactions(
        &mut self,
        number: u64,
        update: &SeenUpdate,
        now: &BTreeMap<u64, SeenUpdate>,
        server: &ServerLoop,
    ) {
        // A reason to be kept passes on to the update that replaces another one, as do the
        // workloads that are not evaluated.
        let mut replaced = self.may_be_kept.iter();
        let mut may_be_kept = replaced.any(|earlier| !is_open(now, *earlier));
        let mut replaced = self.saw_switch.iter();
        if replaced.any(|earlier| !is_open(now, *earlier)) {
            self.saw_switch.insert(number);
        }
        for name in &update.names {
            // Dependents of a deleted workload follow the default, which is to keep the update.
            may_be_kept |= match server.view().desired.workloads.get(name) {
                Some(workload) => !rolls_back(workload),
                None => true,
            };
        }
        if may_be_kept {
            self.may_be_kept.insert(number);
        }
    }

    /// Returns the violation if an update has another end than the states of its workloads demand.
    fn wrong_end(&self, number: u64, update: &SeenUpdate, server: &ServerLoop) -> Option<String> {
        let names = &update.names;
        if update.phase == UpdatePhase::Kept && !self.may_be_kept.contains(&number) {
            let reason = update.reason.as_deref().unwrap_or_default();
            if !reason.contains(NO_WAY_BACK) {
                return Some(format!(
                    "update {number} of {names:?} is kept although each failure rolls it back: {reason}"
                ));
            }
        }
        if update.phase == UpdatePhase::Good
            && !self.saw_switch.contains(&number)
            && let Some(failed) = failed_member(names, self.not_evaluated.get(&number), server)
        {
            return Some(format!("update {number} is good although {failed}"));
        }
        None
    }

    /// The workload before the open updates that change it; `None` if there was none.
    fn way_back(&self, name: &Name) -> Option<&Arc<Workload>> {
        self.ways_back.get(name)?.as_ref()
    }

    fn wrong_rollback(
        &self,
        number: u64,
        update: &SeenUpdate,
        server: &ServerLoop,
    ) -> Option<String> {
        for name in &update.names {
            let way_back = self.way_back(name);
            let is = server.view().desired.workloads.get(name);
            if way_back != is {
                return Some(format!(
                    "update {number} was undone: '{name}' was {way_back:?} and is {is:?}"
                ));
            }
        }
        None
    }

    /// The workloads of an update that have changed with the last event, without those that come
    /// back after a restart, or that are only restarted with the update.
    fn changed(&self, update: &SeenUpdate, before: &Before, server: &ServerLoop) -> BTreeSet<Name> {
        let view = server.view();
        let restarting = server.restarting();
        let mut changed = BTreeSet::new();
        for name in update.names.iter().chain(&update.pending) {
            let is_same = before.effective().get(name) == view.effective.get(name);
            if is_same || before.restarting().contains(name) {
                continue;
            }
            let way_back = self.way_back(name);
            let is_only_restarted = restarting.contains(name)
                && way_back.is_some()
                && way_back == view.desired.workloads.get(name);
            if !is_only_restarted {
                changed.insert(name.clone());
            }
        }
        changed
    }

    /// The update that a rollback requests; `None` if it must be refused, because a workload is not
    /// as the update left it.
    pub(crate) fn rollback_of(&self, number: u64, server: &ServerLoop) -> Option<UpdateState> {
        let update = self.updates.get(&number)?;
        let after = self.after.get(&number)?;
        let ways_back = if update.phase.is_open() {
            &self.ways_back
        } else {
            &update.ways_back
        };
        let mut expected = server.view().desired.clone();
        let mut masks = Vec::new();
        for name in &update.names {
            if expected.workloads.get(name) != after.get(name)?.as_ref() {
                return None;
            }
            match ways_back.get(name)? {
                Some(before) => _ = expected.workloads.insert(name.clone(), before.clone()),
                None => _ = expected.workloads.remove(name),
            }
            masks.push(format!("desiredState.workloads.{name}"));
        }
        if masks.is_empty() {
            return None;
        }
        let tree = Node::map([("desiredState", expected.node(Rendering::Sparse))]);
        Some(UpdateState {
            new_state: Some(Ok(tree)),
            masks,
            ..Default::default()
        })
    }

    /// Returns whether the new version of a workload has a condition `when` that its agent has not
    /// reported as met. An agent that was never connected may be one that prepares.
    fn is_forbidden(&self, name: &Name, server: &ServerLoop) -> bool {
        let Some(workload) = server.view().desired.workloads.get(name) else {
            return false;
        };
        let instance = modes::own_instance(name, workload, server.has_modes());
        if instance.agent.is_empty() || self.foreign.contains(&instance.agent) {
            return false;
        }
        // Other runtimes have no block.
        let has_condition =
            RUNTIMES.contains(&&*workload.runtime) && workload.runtime_config.contains(" when: ");
        has_condition && !self.permitted.contains(&instance)
    }

    /// Lines for a trace about the updates that the last event has changed.
    pub(crate) fn news(&self, before: &BTreeMap<u64, SeenUpdate>) -> Vec<String> {
        let mut lines = trace_lines(&self.updates);
        let before = trace_lines(before);
        lines.retain(|line| !before.contains(line));
        lines
    }

    pub(crate) fn updates(&self) -> &BTreeMap<u64, SeenUpdate> {
        &self.updates
    }

    /// Returns the violation if an open update waits for more than agents that are not connected.
    pub(crate) fn unfinished(&self, server: &ServerLoop) -> Option<String> {
        for (number, update) in server.seen_updates() {
            let SeenUpdate {
                phase, waits_for, ..
            } = update;
            let mut agents = waits_for.iter();
            let waits_for_agents =
                !waits_for.is_empty() && agents.all(|awaited| awaited.starts_with(AGENT_PREFIX));
            if phase.is_open() && !waits_for_agents {
                return Some(format!(
                    "update {number} is {phase} and waits for {waits_for:?}"
                ));
            }
        }
        None
    }
}

/// Returns whether an update is still open.
fn is_open(updates: &BTreeMap<u64, SeenUpdate>, number: u64) -> bool {
    match updates.get(&number) {
        Some(update) => update.phase.is_open(),
        None => false,
    }
}

/// Returns whether a failure of this workload rolls its update back. Other runtimes have no block.
fn rolls_back(workload: &Workload) -> bool {
    RUNTIMES.contains(&&*workload.runtime)
        && workload.runtime_config.contains("onFailure: ROLLBACK")
}

/// Returns the active version of a workload of a new update that neither replaces it nor restarts
/// it.
fn kept_version<'s>(
    name: &Name,
    update: &SeenUpdate,
    before: &Before,
    server: &'s ServerLoop,
) -> Option<&'s AddedWorkload> {
    let view = server.view();
    let active = view.effective.get(name)?;
    if before.effective().get(name) != Some(active) || update.pending.contains(name) {
        return None;
    }
    let desired = view.desired.workloads.get(name);
    let is_set_back = before.desired().workloads.get(name) != desired;
    let runs = match view.states.get(&active.instance) {
        Some(state) => state.phase == Phase::Running,
        None => false,
    };
    if is_set_back || !runs {
        Some(active)
    } else {
        None
    }
}

/// Returns a workload that has finally failed, with its state. Those of `not_evaluated` are left
/// out while they are the same.
fn failed_member(
    names: &BTreeSet<Name>,
    not_evaluated: Option<&BTreeMap<Name, AddedWorkload>>,
    server: &ServerLoop,
) -> Option<String> {
    let view = server.view();
    for name in names {
        let Some(active) = view.effective.get(name) else {
            continue;
        };
        if let Some(not_evaluated) = not_evaluated
            && not_evaluated.get(name) == Some(active)
        {
            continue;
        }
        // A workload without an agent is not evaluated.
        if active.instance.agent.is_empty() {
            continue;
        }
        let Some(state) = view.states.get(&active.instance) else {
            continue;
        };
        if is_final_failure(state, active.workload.restart_policy) {
            return Some(format!("'{}' is {state}", active.instance));
        }
    }
    None
}

fn is_final_failure(state: &ExecutionState, policy: RestartPolicy) -> bool {
    match state.phase {
        Phase::PendingStartingFailed => true,
        Phase::FailedExecFailed => {
            policy == RestartPolicy::Never || state.reason == Reason::NoMoreRestarts
        }
        _ => false,
    }
}

fn trace_lines(updates: &BTreeMap<u64, SeenUpdate>) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, update) in updates {
        let SeenUpdate {
            phase,
            names,
            pending,
            ..
        } = update;
        lines.push(format!(
            "update {number} is {phase}: {names:?}, of which {pending:?} waits"
        ));
    }
    lines
}

/// Workloads whose new version is not active yet.
pub(crate) fn pending(server: &ServerLoop) -> BTreeSet<Name> {
    let mut pending = BTreeSet::new();
    for update in server.seen_updates().into_values() {
        pending.extend(update.pending);
    }
    pending
}

/// The reports of an agent about instances that it stages. Nothing is prepared here: each switch
/// takes the usual way.
pub(crate) struct StagingReports {
    clock: ManualClock,
    random: fastrand::Rng,
    /// In the order of their times.
    reports: VecDeque<PlannedReport>,
    listed: Vec<AddedWorkload>,
}

struct PlannedReport {
    at: Instant,
    report: PreparedInstance,
}

/// Longest time until something about an instance changes, in milliseconds.
const STEP_MS: u64 = 8_000;

impl StagingReports {
    pub(crate) fn new(clock: &ManualClock, seed: u64) -> Self {
        Self {
            clock: clock.clone(),
            random: fastrand::Rng::with_seed(seed),
            reports: VecDeque::new(),
            listed: Vec::new(),
        }
    }

    /// Takes the begin of another connection, or the end of the agent.
    pub(crate) fn reset(&mut self) {
        self.reports.clear();
        self.listed.clear();
    }

    /// Takes the list of all staged instances.
    pub(crate) fn list(&mut self, list: &[AddedWorkload]) {
        let known = std::mem::replace(&mut self.listed, list.to_vec());
        self.reports.retain(|planned| {
            let instance = &planned.report.instance;
            let mut list = list.iter();
            list.any(|added| added.instance == *instance && known.contains(added))
        });
        for added in list {
            if !known.contains(added) {
                self.plan_reports(&added.instance);
            }
        }
        let reports = self.reports.make_contiguous();
        reports.sort_by_key(|planned| planned.at);
    }

    /// Plans the reports of an instance: some tries fail, then it is staged or never will be. A
    /// condition may block it for a while.
    fn plan_reports(&mut self, instance: &InstanceName) {
        // First choose them.
        let mut reports = Vec::new();
        let tries = [0, 0, 1, 3][self.random.usize(..4)];
        for number in 1..=tries {
            reports.push(failed(instance, number));
        }
        if self.random.u8(0..4) == 0 {
            reports.push(PreparedInstance {
                unmet: Some("/sim/key does not exist".to_owned()),
                ..staged(instance)
            });
        }
        if self.random.u8(0..6) == 0 {
            reports.push(PreparedInstance {
                is_final: true,
                ..failed(instance, tries + 1)
            });
        } else {
            reports.push(staged(instance));
        }
        // Then their times.
        let mut at = self.clock.now();
        for report in reports {
            at += Duration::from_millis(self.random.u64(1..STEP_MS));
            self.reports.push_back(PlannedReport { at, report });
        }
    }

    /// The time of the next report.
    pub(crate) fn due(&self) -> Option<Instant> {
        Some(self.reports.front()?.at)
    }

    /// Takes the next report.
    pub(crate) fn next(&mut self) -> Option<PreparedInstance> {
        Some(self.reports.pop_front()?.report)
    }
}

/// The report that an instance is staged.
fn staged(instance: &InstanceName) -> PreparedInstance {
    PreparedInstance {
        instance: instance.clone(),
        level: Some(PrepareLevel::Create),
        reason: None,
        tries: 0,
        is_final: false,
        unmet: None,
    }
}

/// The report that the try with this number has failed.
fn failed(instance: &InstanceName, number: u32) -> PreparedInstance {
    PreparedInstance {
        instance: instance.clone(),
        level: None,
        reason: Some("no such image".to_owned()),
        tries: number,
        is_final: false,
        unmet: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_server::{OneServer, desired};
    use ankaios_model::execution_state::WorkloadState;
    use ankaios_model::messages::ToServer;
    use ankaios_wire::peer::PeerId;

    const MANIFEST: &str = "{ apiVersion: v1, workloads: { w: { agent: A, runtime: podman, runtimeConfig: 'image: 1' } } }";

    /// A server with its guarded updates.
    struct Judged {
        cluster: OneServer,
        agent: PeerId,
        guarded: GuardedUpdates,
    }

    impl Judged {
        fn new() -> Self {
            let mut cluster = OneServer::default();
            cluster.server.start_with(desired(MANIFEST)).unwrap();
            let agent = cluster.agent("A");
            Self {
                cluster,
                agent,
                guarded: GuardedUpdates::default(),
            }
        }

        /// An update to this image, which `is_known` to have been asked for, or was not seen at
        /// all.
        fn update(&mut self, image: &str, is_known: Option<bool>) -> Option<String> {
            self.update_with("onFailure: ROLLBACK", image, is_known)
        }

        fn update_with(
            &mut self,
            block: &str,
            image: &str,
            is_known: Option<bool>,
        ) -> Option<String> {
            let before = Before::of(&self.cluster.server);
            let config = format!("{{ image: {image}, lifecycle: {{ update: {{ {block} }} }} }}");
            let workload = format!("{{ agent: A, runtime: podman, runtimeConfig: '{config}' }}");
            let state =
                format!("{{ desiredState: {{ apiVersion: v1, workloads: {{ w: {workload} }} }} }}");
            self.cluster
                .update(&state, &["desiredState.workloads.w"])
                .unwrap();
            self.guarded.check(&before, is_known?, &self.cluster.server)
        }

        fn fail(&mut self) -> Option<String> {
            let before = Before::of(&self.cluster.server);
            let instance = self.cluster.server.view().effective["w"].instance.clone();
            let state = WorkloadState::new(
                instance,
                ExecutionState::plain(Phase::PendingStartingFailed),
            );
            self.cluster
                .send(self.agent, ToServer::WorkloadStates(vec![state]));
            self.guarded.check(&before, false, &self.cluster.server)
        }
    }

    #[test]
    fn an_update_that_leads_back_to_the_last_good_state_is_right() {
        let mut judged = Judged::new();
        assert_eq!(
            (
                judged.update("2", Some(true)),
                judged.update("3", Some(true)),
                judged.fail()
            ),
            (None, None, None)
        );
    }

    /// As of a rollback that is evaluated, and so may be rolled back without end.
    #[test]
    fn an_update_that_nobody_asked_for_is_an_alarm() {
        let wrong = Judged::new().update("2", Some(false));
        assert!(wrong.is_some_and(|wrong| wrong.contains("was not requested")));
    }

    /// As of a move, which replaces nothing on its agent.
    #[test]
    fn update_switched_before_its_agent_is_ready_is_an_alarm() {
        for (agent, is_wrong) in [("A", true), ("foreign", false)] {
            let mut judged = Judged::new();
            judged.guarded = GuardedUpdates::new(BTreeSet::from(["foreign".into()]));
            let before = Before::of(&judged.cluster.server);
            // Agent A does not prepare in truth, so the server requests nothing.
            judged.cluster.agent("foreign");
            let config = "{ image: 2, lifecycle: { update: { when: { pathExists: /key } } } }";
            let workload =
                format!("{{ agent: {agent}, runtime: podman, runtimeConfig: '{config}' }}");
            let state =
                format!("{{ desiredState: {{ apiVersion: v1, workloads: {{ w: {workload} }} }} }}");
            judged
                .cluster
                .update(&state, &["desiredState.workloads.w"])
                .unwrap();
            let wrong = judged.guarded.check(&before, true, &judged.cluster.server);
            let expected = is_wrong
                .then(|| "update 1 is switched although 'when' of 'w' is not met".to_owned());
            assert_eq!(wrong, expected, "{agent}");
        }
    }

    /// As of an update that forgets the way back of the one that it takes over.
    #[test]
    fn rollback_to_another_state_than_the_last_good_is_an_alarm() {
        let mut judged = Judged::new();
        assert_eq!(judged.update("2", Some(true)), None);
        let way_back = judged.guarded.ways_back.get_mut("w").unwrap();
        *way_back = judged
            .cluster
            .server
            .view()
            .desired
            .workloads
            .get("w")
            .cloned();
        assert_eq!(judged.update("3", Some(true)), None);
        let wrong = judged.fail();
        assert!(wrong.is_some_and(|wrong| wrong.starts_with("update 2 was undone: 'w' was Some")));
    }

    /// As of a server that takes each reaction for that of a workload which is kept.
    #[test]
    fn failed_update_kept_against_its_block_is_an_alarm() {
        for (may_be_kept, is_wrong) in [(true, false), (false, true)] {
            let mut judged = Judged::new();
            assert_eq!(judged.update_with("onFailure: KEEP", "2", Some(true)), None);
            assert_eq!(judged.guarded.may_be_kept, BTreeSet::from([1]));
            if !may_be_kept {
                judged.guarded.may_be_kept.clear();
            }
            let wrong = judged.fail().unwrap_or_default();
            let is_alarm = wrong.starts_with(r#"update 1 of {"w"} is kept although"#);
            assert_eq!(is_alarm, is_wrong, "{wrong}");
        }
        let mut judged = Judged::new();
        assert_eq!(judged.update("2", Some(true)), None);
        assert_eq!(judged.guarded.may_be_kept, BTreeSet::new());
    }

    /// As of a server that evaluates no state.
    #[test]
    fn good_update_with_a_failed_workload_is_an_alarm() {
        let mut judged = Judged::new();
        assert_eq!(judged.update_with("onFailure: KEEP", "2", Some(true)), None);
        let mut update = judged.guarded.updates[&1].clone();
        update.phase = UpdatePhase::Good;
        let server = &judged.cluster.server;
        assert_eq!(judged.guarded.wrong_end(1, &update, server), None);
        assert_eq!(judged.fail(), None);
        let wrong = judged.guarded.wrong_end(1, &update, &judged.cluster.server);
        assert!(wrong.is_some_and(|wrong| wrong.starts_with("update 1 is good although 'w.")));
    }
}
