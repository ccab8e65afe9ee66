//! Guarded updates as they must be seen from outside: which states they lead back to, worked out
//! here once more, and agents that report how far they are with what they shall prepare.
//!
//! Thread: the one of the test.

use super::life::RUNTIMES;
use super::modes;
use super::wishes::Before;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::complete_state::Rendering;
use ankaios_model::guarded_update::{AGENT_PREFIX, UpdatePhase};
use ankaios_model::messages::{AddedWorkload, PreparedInstance, UpdateState};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_server::ServerLoop;
use ankaios_server::inspection::SeenUpdate;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is known of guarded updates.
#[derive(Default)]
pub(crate) struct Guards {
    updates: BTreeMap<u64, SeenUpdate>,
    /// What each name of an open update was before the first of the updates that it is a part of.
    ways_back: BTreeMap<Name, Option<Arc<Workload>>>,
    /// What each update made of its names.
    after: BTreeMap<u64, BTreeMap<Name, Option<Arc<Workload>>>>,
    /// Agents that prepare nothing, where conditions mean nothing.
    foreign: BTreeSet<Name>,
    /// Instances whose conditions held when their agents reported them last, on their present
    /// connections.
    permitted: BTreeSet<InstanceName>,
}

impl Guards {
    /// Nothing is known yet but these agents that prepare nothing.
    pub(crate) fn new(foreign: BTreeSet<Name>) -> Self {
        Self {
            foreign,
            ..Self::default()
        }
    }

    /// The server hears how far agents are.
    pub(crate) fn reported(&mut self, reports: &[PreparedInstance]) {
        for PreparedInstance {
            instance,
            level,
            is_final,
            unmet,
            ..
        } in reports
        {
            if (level.is_some() || *is_final) && unmet.is_none() {
                self.permitted.insert(instance.clone());
            } else {
                self.permitted.remove(instance);
            }
        }
    }

    /// The connection of an agent has ended, or another one begins: what it reported does not count
    /// any more.
    pub(crate) fn disconnected(&mut self, agent: &Name) {
        self.permitted.retain(|instance| instance.agent != *agent);
    }

    /// Another server has started, which knows what is stored.
    pub(crate) fn restarted(&mut self, server: &ServerLoop) {
        self.permitted.clear();
        self.updates = server.seen_updates();
        let open = self
            .updates
            .values()
            .filter(|update| update.phase.is_open());
        self.ways_back = open.flat_map(|update| update.ways_back.clone()).collect();
    }

    /// Answers what an event has made wrong, which was a request for an update or not.
    pub(crate) fn judge(
        &mut self,
        before: &Before,
        is_request: bool,
        server: &ServerLoop,
    ) -> Option<String> {
        let now = server.seen_updates();
        let earlier = std::mem::replace(&mut self.updates, now);
        let newest = earlier.keys().last().copied().unwrap_or_default();
        let view = server.view();
        let is_same_mode = modes::mode(before.desired()) == modes::mode(view.desired);
        for (number, update) in &self.updates {
            if *number > newest {
                if !is_request {
                    return Some(format!(
                        "update {number} of {:?} was asked for by nobody",
                        update.names
                    ));
                }
                for name in &update.names {
                    let way_back = || before.desired().workloads.get(name).cloned();
                    self.ways_back.entry(name.clone()).or_insert_with(way_back);
                }
                let after = |name: &Name| (name.clone(), view.desired.workloads.get(name).cloned());
                self.after
                    .insert(*number, update.names.iter().map(after).collect());
            }
            let was_open = earlier
                .get(number)
                .is_none_or(|earlier| earlier.phase.is_open());
            if update.phase == UpdatePhase::Undone && was_open {
                for name in &update.names {
                    let way_back = self.ways_back.get(name).and_then(Option::as_ref);
                    let is = view.desired.workloads.get(name);
                    if way_back != is {
                        return Some(format!(
                            "update {number} was undone: '{name}' was {way_back:?} and is {is:?}"
                        ));
                    }
                }
            }
            let restarting = server.restarting();
            // Its dependents are restarted with an update, and are not changed by it.
            let is_only_restarted = |name: &Name| {
                let way_back = self.ways_back.get(name).and_then(Option::as_ref);
                restarting.contains(name)
                    && way_back.is_some()
                    && way_back == view.desired.workloads.get(name)
            };
            let is_changed = |name: &&Name| {
                // What comes back after a restart is no part of that.
                before.effective().get(*name) != view.effective.get(*name)
                    && !before.restarting().contains(*name)
                    && !is_only_restarted(name)
            };
            let is_carried_out = was_open && is_same_mode && update.phase != UpdatePhase::Undone;
            if is_carried_out && update.names.iter().any(|name| is_changed(&name)) {
                let mut concerned = update
                    .names
                    .iter()
                    .filter(|name| is_changed(name) || update.pending.contains(*name));
                if let Some(name) = concerned.find(|name| self.is_forbidden(name, server)) {
                    return Some(format!(
                        "update {number} is carried out although 'when' of '{name}' does not hold"
                    ));
                }
            }
            let waited = earlier.get(number).map(|earlier| &earlier.pending);
            for name in update
                .pending
                .iter()
                .filter(|name| waited.is_some_and(|waited| waited.contains(*name)))
            {
                if is_same_mode && is_changed(&name) {
                    return Some(format!(
                        "'{name}' has changed although update {number} is only being staged"
                    ));
                }
            }
        }
        let open: BTreeSet<Name> = self
            .open()
            .flat_map(|(_, update)| update.names.clone())
            .collect();
        self.ways_back.retain(|name, _| open.contains(name));
        let pending = pending(server);
        self.permitted
            .retain(|instance| pending.contains(&instance.workload));
        None
    }

    /// What a rollback of an update asks for. `None`: it has to be refused, since something is not
    /// as the update left it.
    pub(crate) fn rollback_of(&self, number: u64, server: &ServerLoop) -> Option<UpdateState> {
        let update = self.updates.get(&number)?;
        let (mut wished, mut masks) = (server.view().desired.clone(), Vec::new());
        let after = self.after.get(&number)?;
        for name in &update.names {
            if wished.workloads.get(name) != after.get(name)?.as_ref() {
                return None;
            }
            let known = if update.phase.is_open() {
                &self.ways_back
            } else {
                &update.ways_back
            };
            match known.get(name)? {
                Some(before) => _ = wished.workloads.insert(name.clone(), before.clone()),
                None => _ = wished.workloads.remove(name),
            }
            masks.push(format!("desiredState.workloads.{name}"));
        }
        let tree = Node::map([("desiredState", wished.node(Rendering::Sparse))]);
        (!masks.is_empty()).then_some(UpdateState {
            new_state: Some(Ok(tree)),
            masks,
            ..Default::default()
        })
    }

    /// Whether the new form of a workload has a condition under which it may come into force, and
    /// its agent has not reported that this holds. An agent that was never there may be one that
    /// prepares.
    fn is_forbidden(&self, name: &Name, server: &ServerLoop) -> bool {
        let Some(workload) = server.view().desired.workloads.get(name) else {
            return false;
        };
        let instance = modes::own_instance(name, workload, server.has_modes());
        let is_asked = !instance.agent.is_empty() && !self.foreign.contains(&instance.agent);
        // Other runtimes know no block.
        let has_condition =
            RUNTIMES.contains(&&*workload.runtime) && workload.runtime_config.contains(" when: ");
        has_condition && is_asked && !self.permitted.contains(&instance)
    }

    /// What is shown of those updates of which the last event has changed something, for a trace.
    pub(crate) fn news(&self, before: &BTreeMap<u64, SeenUpdate>) -> Vec<String> {
        let text = |(number, update): (&u64, &SeenUpdate)| {
            let SeenUpdate {
                phase,
                names,
                pending,
                ..
            } = update;
            format!("update {number} is {phase}: {names:?}, of which {pending:?} waits")
        };
        let now: Vec<String> = self.updates.iter().map(text).collect();
        let before: Vec<String> = before.iter().map(text).collect();
        now.into_iter()
            .filter(|line| !before.contains(line))
            .collect()
    }

    /// All updates that are known.
    pub(crate) fn updates(&self) -> &BTreeMap<u64, SeenUpdate> {
        &self.updates
    }

    fn open(&self) -> impl Iterator<Item = (&u64, &SeenUpdate)> {
        self.updates
            .iter()
            .filter(|(_, update)| update.phase.is_open())
    }

    /// Answers which update waits for something else than agents that are away.
    pub(crate) fn unfinished(&self, server: &ServerLoop) -> Option<String> {
        let updates = server.seen_updates();
        let mut open = updates.iter().filter(|(_, update)| update.phase.is_open());
        open.find_map(
            |(
                number,
                SeenUpdate {
                    phase, waits_for, ..
                },
            )| {
                let waits = waits_for.is_empty()
                    || waits_for.iter().any(|it| !it.starts_with(AGENT_PREFIX));
                waits.then(|| format!("update {number} is {phase} and waits for {waits_for:?}"))
            },
        )
    }
}

/// Workloads whose new form is not in force yet.
pub(crate) fn pending(server: &ServerLoop) -> BTreeSet<Name> {
    server
        .seen_updates()
        .into_values()
        .flat_map(|update| update.pending)
        .collect()
}

/// The part of an agent that prepares. What it prepared is not used here: each switch takes the
/// usual way.
pub(crate) struct Preparing {
    clock: ManualClock,
    random: fastrand::Rng,
    reports: VecDeque<(Instant, PreparedInstance)>,
    listed: Vec<AddedWorkload>,
}

/// Longest time until something about an instance changes, in milliseconds.
const STEP_MS: u64 = 8_000;

impl Preparing {
    pub(crate) fn new(clock: &ManualClock, seed: u64) -> Self {
        let (random, reports, listed) =
            (fastrand::Rng::with_seed(seed), VecDeque::new(), Vec::new());
        Self {
            clock: clock.clone(),
            random,
            reports,
            listed,
        }
    }

    /// Another connection begins, or the agent is gone.
    pub(crate) fn reset(&mut self) {
        self.reports.clear();
        self.listed.clear();
    }

    /// These are all instances to be prepared.
    pub(crate) fn list(&mut self, list: &[AddedWorkload]) {
        let known = std::mem::replace(&mut self.listed, list.to_vec());
        let stays = |instance: &InstanceName| {
            list.iter()
                .any(|added| added.instance == *instance && known.contains(added))
        };
        self.reports.retain(|(_, report)| stays(&report.instance));
        for added in list.iter().filter(|added| !known.contains(added)) {
            self.plan_reports(&added.instance);
        }
        self.reports.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// Some tries fail, then it is staged or never will be; a condition may hold it back for a
    /// while.
    fn plan_reports(&mut self, instance: &InstanceName) {
        let mut at = self.clock.now();
        let report = |level, tries, is_final, unmet: bool| PreparedInstance {
            instance: instance.clone(),
            level,
            reason: (tries > 0).then(|| "no such image".to_owned()),
            tries,
            is_final,
            unmet: unmet.then(|| "/sim/key does not exist".to_owned()),
        };
        let tries = [0, 0, 1, 3][self.random.usize(..4)];
        let mut reports: Vec<_> = (1..=tries)
            .map(|number| report(None, number, false, false))
            .collect();
        if self.random.u8(0..4) == 0 {
            reports.push(report(Some(PrepareLevel::Create), 0, false, true));
        }
        let is_final = self.random.u8(0..6) == 0;
        let level = (!is_final).then_some(PrepareLevel::Create);
        reports.push(report(
            level,
            if is_final { tries + 1 } else { 0 },
            is_final,
            false,
        ));
        for report in reports {
            at += Duration::from_millis(self.random.u64(1..STEP_MS));
            self.reports.push_back((at, report));
        }
    }

    /// When it has something to report.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.reports.front().map(|(at, _)| *at)
    }

    /// What it reports now.
    pub(crate) fn next(&mut self) -> Option<PreparedInstance> {
        self.reports.pop_front().map(|(_, report)| report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_server::{Cluster, desired};
    use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
    use ankaios_model::messages::ToServer;
    use ankaios_wire::peer::PeerId;

    const MANIFEST: &str = "{ apiVersion: v1, workloads: { w: { agent: A, runtime: podman, runtimeConfig: 'image: 1' } } }";

    /// A server, and what is known of its updates.
    struct Judged {
        cluster: Cluster,
        agent: PeerId,
        guards: Guards,
    }

    impl Judged {
        fn new() -> Self {
            let mut cluster = Cluster::default();
            cluster.server.start_with(desired(MANIFEST)).unwrap();
            let agent = cluster.agent("A");
            Self {
                cluster,
                agent,
                guards: Guards::default(),
            }
        }

        /// An update to this image, which `is_known` to have been asked for, or was not seen at
        /// all.
        fn update(&mut self, image: &str, is_known: Option<bool>) -> Option<String> {
            let before = Before::of(&self.cluster.server);
            let config =
                format!("{{ image: {image}, lifecycle: {{ update: {{ onFailure: ROLLBACK }} }} }}");
            let workload = format!("{{ agent: A, runtime: podman, runtimeConfig: '{config}' }}");
            let state =
                format!("{{ desiredState: {{ apiVersion: v1, workloads: {{ w: {workload} }} }} }}");
            self.cluster
                .update(&state, &["desiredState.workloads.w"])
                .unwrap();
            self.guards.judge(&before, is_known?, &self.cluster.server)
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
            self.guards.judge(&before, false, &self.cluster.server)
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

    /// As of an undo that is judged, and so may be undone for ever.
    #[test]
    fn an_update_that_nobody_asked_for_is_an_alarm() {
        let wrong = Judged::new().update("2", Some(false));
        assert!(wrong.is_some_and(|wrong| wrong.contains("was asked for by nobody")));
    }

    /// As of a move, which replaces nothing on its agent.
    #[test]
    fn update_switched_before_its_agent_is_ready_is_an_alarm() {
        for (agent, is_wrong) in [("A", true), ("foreign", false)] {
            let mut judged = Judged::new();
            judged.guards = Guards::new(BTreeSet::from(["foreign".into()]));
            let before = Before::of(&judged.cluster.server);
            // Agent A does not prepare in truth, so the server asks nobody.
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
            let wrong = judged.guards.judge(&before, true, &judged.cluster.server);
            let expected = is_wrong
                .then(|| "update 1 is carried out although 'when' of 'w' does not hold".to_owned());
            assert_eq!(wrong, expected, "{agent}");
        }
    }

    /// As of an update that forgets the way back of the one that it takes over.
    #[test]
    fn rollback_to_another_state_than_the_last_good_is_an_alarm() {
        let mut judged = Judged::new();
        assert_eq!(judged.update("2", Some(true)), None);
        let way_back = judged.guards.ways_back.get_mut("w").unwrap();
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
}
