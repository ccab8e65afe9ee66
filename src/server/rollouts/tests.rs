//! Guarded updates through the events of the server, with a clock that the test moves.

mod bounds;
mod dependents;
mod joins;
mod modes;
mod part;
mod restarts;
mod rollback;
mod staging;
mod stops;
mod undo;

use crate::ServerEvent;
use crate::state_store::{StateStore, StateWrite};
use crate::tests::{Cluster, names};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::{AgentCapabilities, FromServer, ToServer, WorkloadPlan};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_platform::clock::Clock;
use ankaios_wire::peer::{PeerHello, PeerId};
use crossbeam_channel::Receiver;
use std::time::Duration;

/// Judged by the defaults, and put back when it fails.
pub(crate) const ROLLBACK: &str = "{ onFailure: ROLLBACK }";
pub(crate) const PREPARES: AgentCapabilities = AgentCapabilities {
    prepares: true,
    tells_usage: false,
    removes_images: false,
};
pub(crate) const HEALTHY: Duration = Duration::from_secs(10);
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A server, whose clock the test moves, and its agents.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) clock: ManualClock,
    pub(crate) a: PeerId,
    pub(crate) stored: Receiver<StateWrite>,
}

/// The runtime configuration of a workload; no block without `update`.
pub(crate) fn config(image: &str, update: &str) -> String {
    let block = if update.is_empty() {
        String::new()
    } else {
        format!(", lifecycle: {{ update: {update} }}")
    };
    format!("{{ image: {image}{block} }}")
}

/// A workload on agent A as an entry of a state.
pub(crate) fn workload(name: &str, image: &str, update: &str, rest: &str) -> String {
    let config = config(image, update);
    format!("{name}: {{ agent: A, runtime: podman, runtimeConfig: '{config}'{rest} }}")
}

pub(crate) fn instance(name: &str, image: &str, update: &str) -> InstanceName {
    InstanceName::new(name, &config(image, update), "A")
}

pub(crate) const NEEDS_DB: &str = ", dependencies: { db: ADD_COND_RUNNING }";

impl Rig {
    /// A server with these workloads, all of which run, on an agent that stages nothing.
    pub(crate) fn new(workloads: &[String]) -> Self {
        Self::with_agent(workloads, AgentCapabilities::default())
    }

    pub(crate) fn with_agent(workloads: &[String], capabilities: AgentCapabilities) -> Self {
        let manifest = format!(
            "{{ apiVersion: v1, workloads: {{ {} }} }}",
            workloads.join(", ")
        );
        Self::of(Cluster::with_manifest(&manifest), capabilities)
    }

    /// Of a server that was started; all that is to run on agent A does.
    pub(crate) fn of(mut cluster: Cluster, capabilities: AgentCapabilities) -> Self {
        let (clock, (store, stored)) = (ManualClock::new(), StateStore::without_writer());
        cluster.server.set_clock(clock.clone());
        cluster.server.set_store(store);
        let a = cluster.agent_with("A", capabilities);
        let mut rig = Self {
            cluster,
            clock,
            a,
            stored,
        };
        let wanted = rig
            .cluster
            .server
            .view()
            .effective
            .values()
            .map(|added| added.instance.clone());
        let wanted: Vec<InstanceName> = wanted
            .filter(|instance| !instance.agent.is_empty())
            .collect();
        wanted
            .iter()
            .for_each(|instance| rig.report(instance, Phase::Running));
        rig.cluster.take_all();
        rig
    }

    /// The metrics of guarded updates that are not 0, without the common part of their names.
    pub(crate) fn numbers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for line in self.cluster.server.numbers().lines() {
            if let Some(number) = line.strip_prefix("ankaios_server_guarded_")
                && !number.ends_with(" 0")
            {
                found.push(number.to_owned());
            }
        }
        found
    }

    pub(crate) fn report(&mut self, instance: &InstanceName, phase: Phase) {
        self.report_info(instance, phase, "");
    }

    pub(crate) fn report_info(&mut self, instance: &InstanceName, phase: Phase, info: &str) {
        let state = WorkloadState::new(instance.clone(), ExecutionState::from_text(phase, info));
        self.cluster
            .send(self.a, ToServer::WorkloadStates(vec![state]));
    }

    /// Time goes on, and the loop wakes when it wants to.
    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while let Some(due) = self.cluster.server.due().filter(|due| *due <= end) {
            self.clock.advance(self.clock.until(due));
            self.cluster.server.on_event(ServerEvent::Due);
        }
        self.clock.advance(self.clock.until(end));
    }

    /// An update of whole workloads; `name: ~` deletes one.
    pub(crate) fn apply(
        &mut self,
        workloads: &[&str],
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let masks: Vec<String> = workloads
            .iter()
            .map(|entry| {
                format!(
                    "desiredState.workloads.{}",
                    entry.split(':').next().unwrap_or_default()
                )
            })
            .collect();
        self.apply_masks(
            workloads,
            &masks.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    }

    pub(crate) fn apply_masks(
        &mut self,
        workloads: &[&str],
        masks: &[&str],
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let kept: Vec<&str> = workloads
            .iter()
            .copied()
            .filter(|entry| !entry.ends_with('~'))
            .collect();
        let state = format!(
            "{{ desiredState: {{ apiVersion: v1, workloads: {{ {} }} }} }}",
            kept.join(", ")
        );
        self.cluster.update(&state, masks)
    }

    fn update_node(&mut self, number: u64, path: &str) -> Node {
        let number = number.to_string();
        let tree: Node = serde_json::from_str(&self.cluster.read(&["updates"])).unwrap();
        let parts: Vec<&str> = ["updates", &number]
            .into_iter()
            .chain(path.split('.'))
            .collect();
        tree.at(&parts).cloned().unwrap_or_default()
    }

    /// A field of an update, as a client reads it.
    pub(crate) fn read(&mut self, number: u64, path: &str) -> String {
        match self.update_node(number, path) {
            Node::Text(text) => text.to_string(),
            other => serde_json::to_string(&other).unwrap(),
        }
    }

    pub(crate) fn phases(&mut self) -> Vec<String> {
        let tree: Node = serde_json::from_str(&self.cluster.read(&["updates.*.phase"])).unwrap();
        let updates = tree.get("updates").and_then(Node::as_map).unwrap();
        updates
            .iter()
            .map(|(number, one)| {
                format!("{number} {}", one.get("phase").unwrap().as_text().unwrap())
            })
            .collect()
    }

    /// The images that are desired, by workload.
    pub(crate) fn desired(&self) -> Vec<String> {
        let desired = &self.cluster.server.view().desired.workloads;
        let image = |config: &str| {
            config
                .split(['{', ' ', ',', '}'])
                .filter(|it| !it.is_empty())
                .nth(1)
                .unwrap()
                .to_owned()
        };
        desired
            .iter()
            .map(|(name, workload)| format!("{name} {}", image(&workload.runtime_config)))
            .collect()
    }

    /// The one plan that the agent was sent, by names.
    pub(crate) fn plan(&self) -> (Vec<String>, Vec<String>) {
        let WorkloadPlan { added, deleted } = self.cluster.one_plan(self.a);
        (
            names(&added),
            deleted
                .iter()
                .map(|deleted| deleted.instance.to_string())
                .collect(),
        )
    }

    /// How often the state was stored since the last call.
    pub(crate) fn writes(&self) -> usize {
        self.stored.try_iter().count()
    }

    pub(crate) fn state(&self, instance: &InstanceName) -> String {
        self.cluster
            .server
            .updates
            .workloads()
            .states
            .get(instance)
            .map_or_else(String::new, ToString::to_string)
    }

    /// Agent A connects again.
    pub(crate) fn reconnect(&mut self, capabilities: AgentCapabilities) {
        self.cluster.close(self.a);
        self.a = self.cluster.agent_with("A", capabilities);
    }
}

fn db(image: &str) -> String {
    workload("db", image, ROLLBACK, "")
}

fn db_instance(image: &str) -> InstanceName {
    instance("db", image, ROLLBACK)
}

#[test]
fn an_update_is_guarded_by_a_block_or_by_the_settings() {
    let plain = |image| workload("web", image, "", "");
    for (on_failure, entry, is_guarded) in [
        (OnFailure::Keep, plain("2"), false),
        (OnFailure::Rollback, plain("2"), true),
        (OnFailure::Rollback, "web: ~".to_owned(), true),
        (OnFailure::Keep, "web: ~".to_owned(), false),
        (OnFailure::Keep, workload("web", "1", "{}", ""), true),
        (OnFailure::Rollback, plain("1"), false),
        (OnFailure::Rollback, "other: ~".to_owned(), false),
    ] {
        let mut rig = Rig::new(&[plain("1")]);
        rig.cluster.server.set_update_on_failure(on_failure);
        rig.apply(&[&entry]).unwrap();
        assert_eq!(!rig.phases().is_empty(), is_guarded, "{on_failure} {entry}");
    }
}

#[test]
fn healthy_update_succeeds_with_two_writes_to_the_store() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    assert_eq!(rig.cluster.server.due(), None);
    let (added, deleted) = rig.apply(&[&db("2")]).unwrap();
    assert_eq!(
        (added, deleted),
        (
            vec![db_instance("2").to_string()],
            vec![db_instance("1").to_string()]
        )
    );
    assert_eq!((rig.plan().0, rig.writes()), (vec!["db".to_owned()], 1));
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    assert_eq!(rig.read(1, "waitsFor"), r#"["db","web"]"#);
    rig.wait(HEALTHY);
    assert_eq!((rig.phases(), rig.writes()), (vec!["1 GOOD".to_owned()], 1));
    assert_eq!(rig.cluster.server.due(), None, "nothing is open");
    let read = |rig: &mut Rig, path| rig.read(1, path);
    assert_eq!(
        read(&mut rig, "workloads.db.old"),
        db_instance("1").to_string()
    );
    assert_eq!(
        read(&mut rig, "workloads.db.new"),
        db_instance("2").to_string()
    );
    assert!(
        read(&mut rig, "before").contains("image: 1") && read(&mut rig, "accepted").ends_with('Z')
    );
    assert_eq!(
        (read(&mut rig, "keptIn"), read(&mut rig, "losses")),
        ("DISK".to_owned(), "0".to_owned())
    );
}

/// It was set back, and applied again before its agent had ended it.
#[test]
fn late_reports_of_an_older_instance_counted_for_the_new_one() {
    for (is_deleted, late) in [
        (false, Phase::Running),
        (true, Phase::Running),
        (false, Phase::FailedExecFailed),
    ] {
        let mut rig = Rig::new(&[db("1")]);
        rig.apply(&[&db("2")]).unwrap();
        rig.report(&db_instance("1"), Phase::Removed);
        rig.report(&db_instance("2"), Phase::Running);
        let back = if is_deleted {
            "db: ~".to_owned()
        } else {
            db("1")
        };
        rig.apply(&[&back]).unwrap();
        rig.apply(&[&db("2")]).unwrap();
        assert_eq!(
            rig.phases(),
            ["1 WITHDRAWN", "2 TRIAL"],
            "{late} {is_deleted}"
        );
        rig.report(&db_instance("2"), late);
        rig.wait(HEALTHY);
        assert_eq!(rig.read(2, "phase"), "TRIAL", "{late} {is_deleted}");
        for phase in [
            Phase::StoppingRequestedAtRuntime,
            Phase::Removed,
            Phase::PendingStarting,
            Phase::Running,
        ] {
            rig.report(&db_instance("2"), phase);
        }
        rig.wait(HEALTHY - Duration::from_secs(1));
        assert_eq!(rig.read(2, "phase"), "TRIAL");
        rig.wait(Duration::from_secs(1));
        assert_eq!(rig.read(2, "phase"), "GOOD");
    }
}

#[test]
fn failed_update_with_keep_stays_and_the_others_are_awaited() {
    let keep = |name: &str, image: &str| workload(name, image, "{}", "");
    let mut rig = Rig::new(&[keep("a", "1"), keep("b", "1")]);
    rig.apply(&[&keep("a", "2"), &keep("b", "2")]).unwrap();
    rig.cluster.take_all();
    rig.report_info(
        &instance("a", "2", "{}"),
        Phase::PendingStartingFailed,
        "No more retries: x",
    );
    assert_eq!(rig.read(1, "waitsFor"), r#"["b"]"#);
    rig.report(&instance("b", "2", "{}"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.read(1, "phase"), "KEPT");
    assert_eq!(
        rig.read(1, "reason"),
        "a: Pending(StartingFailed): 'No more retries: x'"
    );
    assert_eq!(
        (rig.desired(), rig.cluster.take(rig.a).len()),
        (vec!["a 2".to_owned(), "b 2".to_owned()], 0)
    );
    rig.apply(&[&keep("a", "1")]).unwrap();
    rig.apply(&[&keep("a", "2")]).unwrap(); // Only what was undone is refused.
}

/// The update would wait for its end, which no agent reports.
#[test]
fn what_hooks_leave_as_it_is_runs_on_and_is_healthy() {
    let keep = |name: &str, image: &str| workload(name, image, ROLLBACK, "");
    let mut rig = Rig::new(&[keep("a", "1"), keep("b", "1")]);
    rig.cluster.hook();
    let commander = rig.cluster.commander();
    let workloads = [keep("a", "2"), keep("b", "2")].join(", ");
    let state = format!("{{ desiredState: {{ apiVersion: v1, workloads: {{ {workloads} }} }} }}");
    let masks = ["desiredState.workloads.a", "desiredState.workloads.b"];
    rig.cluster
        .send_request(commander, "r", crate::tests::update(&state, &masks));
    let mut plan = rig.cluster.asked().expect("what hooks are to change");
    plan.added.retain(|added| &*added.instance.workload != "b");
    plan.deleted
        .retain(|deleted| &*deleted.instance.workload != "b");
    rig.cluster
        .server
        .on_event(ServerEvent::Hooks(Ok(Some(plan))));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    rig.report(&instance("a", "1", ROLLBACK), Phase::Removed);
    rig.report(&instance("a", "2", ROLLBACK), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

#[test]
fn what_is_not_scheduled_is_not_judged() {
    let mut rig = Rig::new(&[]);
    rig.apply(&[&db("1").replace("agent: A", "agent: \"\"")])
        .unwrap();
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

#[test]
fn reads_without_its_name_events_and_workloads_get_no_updates() {
    let access = ", controlInterfaceAccess: { allowRules: [{ type: StateRule, operation: ReadWrite, filterMasks: ['*'] }] }";
    let mut rig = Rig::new(&[workload("db", "1", ROLLBACK, access)]);
    rig.apply(&[&workload("db", "2", ROLLBACK, access)])
        .unwrap();
    for masks in [&["*"][..], &["*.1.phase"], &["desiredState"], &[]] {
        assert!(
            !rig.cluster.read(masks).contains("\"updates\""),
            "{masks:?}"
        );
    }
    assert!(
        rig.cluster
            .read(&["updates.1.phase", "agents"])
            .ends_with(r#""updates":{"1":{"phase":"TRIAL"}}}"#)
    );
    assert_eq!(rig.cluster.read(&["updates.9"]), r#"{"updates":{}}"#);
    let commander = rig.cluster.commander();
    let subscribed = rig
        .cluster
        .request(commander, crate::tests::read(&["updates"], true));
    assert!(
        !format!("{subscribed:?}").contains("phase"),
        "{subscribed:?}"
    );
    rig.cluster.take_all();
    rig.cluster
        .send_request(rig.a, "db@1", crate::tests::read(&["updates"], false));
    let answer = format!("{:?}", rig.cluster.take(rig.a));
    assert!(
        answer.contains("CompleteState") && !answer.contains("phase"),
        "{answer}"
    );
    let forget = crate::tests::update("{ desiredState: { apiVersion: v1 } }", &["updates.1"]);
    rig.cluster.send_request(rig.a, "db@2", forget);
    let answer = format!("{:?}", rig.cluster.take(rig.a));
    assert!(
        answer.contains("Could not find field updates.1"),
        "{answer}"
    );
}

#[test]
fn seventeenth_update_replaces_one_that_awaits_absent_agents() {
    let mut rig = Rig::new(&[]);
    let on = |number: usize, agent: &str| {
        workload(&format!("w{number:02}"), "1", "{}", "")
            .replace("agent: A", &format!("agent: {agent}"))
    };
    for number in 0..15 {
        rig.apply(&[&on(number, "A")]).unwrap();
    }
    rig.apply(&[&on(15, "absent")]).unwrap();
    rig.apply(&[&on(16, "A")]).unwrap();
    assert_eq!(rig.read(16, "phase"), "KEPT");
    assert_eq!(rig.read(16, "reason"), "no longer awaited: agent absent");
    let error = rig.apply(&[&on(17, "A")]).unwrap_err();
    assert!(
        error.starts_with("Update rejected: '16 guarded updates are open"),
        "{error}"
    );
    assert!(!rig.desired().contains(&"w17 1".to_owned()));
    rig.apply(&[&on(0, "absent")]).unwrap(); // It becomes a part of the first one.
    assert_eq!(rig.read(1, "phase"), "REPLACED");
}

#[test]
fn an_independent_update_of_a_dependent_ends_its_judging() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)]);
    rig.apply(&[&db("2")]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    rig.apply(&[&workload("web", "2", "", NEEDS_DB)]).unwrap();
    assert_eq!(
        (rig.phases(), rig.read(1, "waitsFor")),
        (vec!["1 TRIAL".to_owned()], r#"["db"]"#.to_owned())
    );
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

fn is_prepare(message: &FromServer) -> bool {
    matches!(message, FromServer::Prepare(_))
}

fn cli(rig: &mut Rig) -> PeerId {
    rig.cluster.open(PeerHello::Cli)
}
