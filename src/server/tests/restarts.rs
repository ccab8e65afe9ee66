//! Restarts of workloads with their dependents: the plans of agents, and events meanwhile.

use super::*;
use crate::settings::ModeSettings;

/// `nav` needs `web`, which needs `storage`; `log` needs nothing and `late` the end of `storage`.
const MANIFEST: &str = "
apiVersion: v1
configs: {mode: drive}
workloads:
  storage: {agent: B, runtime: podman, runtimeConfig: x}
  web: {agent: A, runtime: podman, runtimeConfig: x, dependencies: {storage: ADD_COND_RUNNING}}
  nav: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: drive}, dependencies: {web: ADD_COND_RUNNING}}
  log: {agent: A, runtime: podman, runtimeConfig: x}
  late: {agent: A, runtime: podman, runtimeConfig: x, dependencies: {storage: ADD_COND_SUCCEEDED}}
  free: {agent: '', runtime: podman, runtimeConfig: x, dependencies: {storage: ADD_COND_RUNNING}}
";

const NEW_STORAGE: &str =
    "{desiredState: {workloads: {storage: {agent: B, runtime: podman, runtimeConfig: y}}}}";
const STORAGE: &str = "desiredState.workloads.storage";

fn instance(workload: &str) -> InstanceName {
    InstanceName::new(workload, "x", if workload == "storage" { "B" } else { "A" })
}

fn new_storage() -> InstanceName {
    InstanceName::new("storage", "y", "B")
}

fn texts(instances: &[&InstanceName]) -> Vec<String> {
    instances.iter().map(ToString::to_string).collect()
}

fn request(names: &[&str], update: Option<(&str, &[&str])>) -> RequestContent {
    let restart = names.iter().map(ToString::to_string).collect();
    let (new_state, masks) = update.unzip();
    let masks = masks
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    RequestContent::UpdateState(UpdateState {
        new_state: new_state.map(|state| Ok(tree(state))),
        masks,
        restart,
    })
}

/// All workloads run on both agents.
struct Rig {
    cluster: Cluster,
    a: PeerId,
    b: PeerId,
}

impl Rig {
    fn new() -> Self {
        Self::of(Cluster::with_manifest(MANIFEST))
    }

    fn of(mut cluster: Cluster) -> Self {
        let (a, b) = (cluster.agent("A"), cluster.agent("B"));
        let running = |cluster: &mut Cluster, peer, names: &[&str]| {
            names
                .iter()
                .for_each(|name| cluster.report(peer, &[(&instance(name), Phase::Running)]));
        };
        running(&mut cluster, a, &["web", "nav", "log"]);
        running(&mut cluster, b, &["storage"]);
        cluster.take_all();
        Self { cluster, a, b }
    }

    /// The instances that start again, or the error.
    fn send(&mut self, content: RequestContent) -> Result<Vec<String>, String> {
        let commander = self.cluster.commander();
        let answer = self.cluster.request(commander, content);
        self.cluster.send(commander, ToServer::Goodbye);
        match answer {
            ResponseContent::UpdateStateSuccess { restarted, .. } => Ok(restarted),
            answer => outcome(answer).map(|_| Vec::new()),
        }
    }

    fn restart(&mut self, names: &[&str]) -> Result<Vec<String>, String> {
        self.send(request(names, None))
    }

    /// The names that the agent was sent, added and deleted, since the last look.
    fn plan(&self, peer: PeerId) -> (String, String) {
        let messages = self.cluster.take(peer);
        let plans = plans(&messages);
        let deleted = plans
            .iter()
            .flat_map(|plan| &plan.deleted)
            .map(|deleted| deleted.instance.workload.to_string());
        let added: Vec<String> = plans.iter().flat_map(|plan| names(&plan.added)).collect();
        (added.join(" "), deleted.collect::<Vec<_>>().join(" "))
    }

    fn removed(&mut self, workload: &str) {
        let peer = if workload == "storage" {
            self.b
        } else {
            self.a
        };
        self.cluster
            .report(peer, &[(&instance(workload), Phase::Removed)]);
    }

    fn all_removed(&mut self, workloads: &[&str]) {
        workloads.iter().for_each(|name| self.removed(name));
    }

    fn effective_agent(&self, workload: &str) -> &str {
        &self.cluster.server.updates.workloads().effective[workload]
            .instance
            .agent
    }

    /// Nothing is left of a restart.
    fn is_over(&self) -> bool {
        let workloads = self.cluster.server.updates.workloads();
        workloads.restarts.is_empty() && workloads.placed.is_some() == workloads.modes.is_some()
    }
}

fn plan(added: &str, deleted: &str) -> (String, String) {
    (added.to_owned(), deleted.to_owned())
}

// [utest->swdd~server-restarts-workloads~1]
#[test]
fn dependents_leave_with_a_restarted_workload_until_all_ended() {
    let mut rig = Rig::new();
    let back = rig.restart(&["storage"]).unwrap();
    assert_eq!(
        back,
        texts(&[&instance("nav"), &instance("storage"), &instance("web")])
    );
    let conditions = rig.cluster.one_plan(rig.b).deleted[0]
        .dependencies
        .keys()
        .cloned()
        .collect::<Vec<_>>();
    assert_eq!(conditions, ["free", "web"]);
    assert_eq!(rig.plan(rig.a), plan("", "nav web"));
    let out = rig
        .cluster
        .server
        .updates
        .workloads()
        .states
        .get(&InstanceName::new("web", "x", ""))
        .unwrap()
        .to_string();
    assert_eq!(
        (rig.effective_agent("web"), &*out),
        ("", "NotScheduled: 'being restarted'")
    );
    for name in ["nav", "web"] {
        rig.cluster.report(
            rig.a,
            &[(&instance(name), Phase::StoppingRequestedAtRuntime)],
        );
        rig.removed(name);
        assert_eq!(
            (rig.plan(rig.a), rig.plan(rig.b)),
            (plan("", ""), plan("", "")),
            "{name}"
        );
    }
    rig.removed("storage");
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("nav web", ""), plan("storage", ""))
    );
    assert_eq!((rig.effective_agent("web"), rig.is_over()), ("A", true));
    assert_eq!(
        rig.cluster.phase(&instance("web")),
        Some(Phase::PendingInitial)
    );
    assert_eq!(rig.cluster.phase(&InstanceName::new("web", "x", "")), None);
}

#[test]
fn the_response_names_what_ends_and_starts_with_its_agent() {
    let mut rig = Rig::new();
    let commander = rig.cluster.commander();
    let both = texts(&[&instance("nav"), &instance("web")]);
    let response = rig.cluster.request(commander, request(&["web"], None));
    let expected = ResponseContent::UpdateStateSuccess {
        added: both.clone(),
        deleted: both.clone(),
        restarted: both,
        warning: None,
    };
    assert_eq!(response, expected);
}

#[test]
fn update_restarts_only_changed_workloads_and_dependents() {
    let mut rig = Rig::new();
    let all = ["storage", "log", "unknown"];
    assert_eq!(
        rig.send(request(
            &all,
            Some((
                "{desiredState: {configs: {c: d}}}",
                &["desiredState.configs.c"]
            ))
        )),
        Ok(vec![])
    );
    assert!(rig.is_over());
    let back = rig
        .send(request(&all, Some((NEW_STORAGE, &[STORAGE]))))
        .unwrap();
    assert_eq!(
        back,
        texts(&[&instance("nav"), &new_storage(), &instance("web")])
    );
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", "nav web"), plan("", "storage"))
    );
    rig.all_removed(&["nav", "web", "storage"]);
    assert_eq!(rig.cluster.one_plan(rig.b).added[0].instance, new_storage());
    assert_eq!(rig.plan(rig.a), plan("nav web", ""));
}

#[test]
fn impossible_restart_is_refused_with_its_reason() {
    let mut cluster = Cluster::default();
    cluster.server.set_modes(ModeSettings {
        config_item: "mode".to_owned(),
        on_failure: None,
    });
    cluster
        .server
        .start_with(desired(&MANIFEST.replace("mode: drive", "mode: park")))
        .unwrap();
    let mut rig = Rig::of(cluster);
    let rejected = |reason: &str| Err(format!("Update rejected: '{reason}'"));
    for (name, reason) in [
        ("wbe", "workload 'wbe' does not exist"),
        ("free", "workload 'free' does not run: it has no agent"),
        (
            "nav",
            "workload 'nav' does not run: it is outside of the current mode",
        ),
    ] {
        assert_eq!(rig.restart(&["log", name]), rejected(reason));
    }
    rig.cluster.close(rig.b);
    let reason = "agent 'B' is not connected, so 'storage' cannot be restarted; try again when it is connected";
    assert_eq!(rig.restart(&["storage"]), rejected(reason));
    assert_eq!((rig.plan(rig.a), rig.is_over()), (plan("", ""), true));
    assert_eq!(
        rig.send(request(&[], None)),
        Err("The UpdateStateRequest does not contain a new state".to_owned())
    );
}

#[test]
fn a_workload_needs_the_right_to_write_all_that_is_restarted() {
    let rule = |masks: &str| {
        format!("allowRules: [{{type: StateRule, operation: Write, filterMasks: [{masks}]}}]")
    };
    let outcome = |masks: &str| {
        let access = format!("log: {{controlInterfaceAccess: {{{}}}, ", rule(masks));
        let mut rig = Rig::of(Cluster::with_manifest(&MANIFEST.replace("log: {", &access)));
        rig.cluster
            .send_request(rig.a, "log@1", request(&["web"], None));
        let responses = rig.cluster.take(rig.a);
        responses.into_iter().find_map(|message| match message {
            FromServer::Response(Response { content, .. }) => {
                Some(super::outcome(content).map(|(added, _)| added.len()))
            }
            _ => None,
        })
    };
    let [web, nav] = ["desiredState.workloads.web", "desiredState.workloads.nav"];
    assert_eq!(outcome(&format!("{web}, {nav}")), Some(Ok(2)));
    let denied = outcome(nav).unwrap().unwrap_err();
    assert!(
        denied.starts_with("Access denied: ") && denied.contains(web),
        "{denied}"
    );
    let reason =
        "Update rejected: 'it would also restart 'nav', which this workload must not write'";
    assert_eq!(outcome(web), Some(Err(reason.to_owned())));
}

#[test]
fn a_second_restart_of_the_same_joins_and_of_others_does_not() {
    let mut rig = Rig::new();
    rig.restart(&["web"]).unwrap();
    rig.restart(&["log"]).unwrap();
    assert_eq!(rig.plan(rig.a), plan("", "nav web log"));
    rig.removed("web");
    let back = rig.restart(&["storage"]).unwrap();
    assert_eq!(
        back,
        texts(&[&instance("nav"), &instance("storage"), &instance("web")])
    );
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", ""), plan("", "storage"))
    );
    rig.removed("log");
    rig.removed("nav");
    assert_eq!(rig.plan(rig.a), plan("log", ""));
    rig.removed("storage");
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b), rig.is_over()),
        (plan("nav web", ""), plan("storage", ""), true)
    );
}

#[test]
fn restarted_workload_comes_back_in_its_newest_revision() {
    let mut rig = Rig::new();
    rig.restart(&["storage"]).unwrap();
    rig.cluster.take_all();
    assert_eq!(
        rig.cluster.update(NEW_STORAGE, &[STORAGE]).unwrap().0,
        texts(&[&new_storage()])
    );
    rig.cluster
        .update("{desiredState: {}}", &["desiredState.workloads.nav"])
        .unwrap();
    let same = "{desiredState: {workloads: {web: {agent: A, runtime: podman, runtimeConfig: x, dependencies: {storage: \
                ADD_COND_RUNNING}}}}}";
    assert_eq!(
        rig.cluster.update(same, &["desiredState.workloads.web"]),
        Ok((vec![], vec![]))
    );
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", ""), plan("", ""))
    );
    rig.all_removed(&["nav", "web", "storage"]);
    assert_eq!(rig.cluster.one_plan(rig.b).added[0].instance, new_storage());
    assert_eq!((rig.plan(rig.a), rig.is_over()), (plan("web", ""), true));
    assert!(
        !rig.cluster
            .server
            .updates
            .workloads()
            .effective
            .contains_key("nav")
    );
}

#[test]
fn an_agent_that_is_lost_is_not_waited_for() {
    let mut rig = Rig::new();
    rig.restart(&["storage"]).unwrap();
    rig.all_removed(&["nav", "web"]);
    rig.cluster.take_all();
    rig.cluster.close(rig.b);
    assert_eq!(
        (
            rig.plan(rig.a),
            rig.effective_agent("storage"),
            rig.is_over()
        ),
        (plan("nav web", ""), "B", true)
    );
    assert_eq!(
        rig.cluster.phase(&instance("storage")),
        Some(Phase::AgentDisconnected)
    );
}

#[test]
fn agent_lost_during_a_restart_stops_and_then_starts() {
    let mut rig = Rig::new();
    rig.restart(&["storage"]).unwrap();
    rig.cluster.close(rig.b);
    rig.cluster.take_all();
    rig.b = rig.cluster.agent("B");
    let hello = rig
        .cluster
        .take(rig.b)
        .into_iter()
        .find_map(|message| match message {
            FromServer::ServerHello(added) => Some(names(&added)),
            _ => None,
        });
    assert_eq!(hello, Some(vec![]));
    rig.cluster.report(
        rig.b,
        &[(&instance("storage"), Phase::StoppingRequestedAtRuntime)],
    );
    rig.cluster.take_all();
    rig.all_removed(&["nav", "web"]);
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b), rig.is_over()),
        (plan("nav web", ""), plan("storage", ""), true)
    );
}

#[test]
fn workload_restarted_during_a_mode_switch_follows_the_mode() {
    let mut cluster = Cluster::default();
    cluster.server.set_modes(ModeSettings {
        config_item: "mode".to_owned(),
        on_failure: None,
    });
    cluster.server.start_with(desired(MANIFEST)).unwrap();
    let mut rig = Rig::of(cluster);
    let info = |rig: &Rig| {
        let state = rig
            .cluster
            .server
            .updates
            .workloads()
            .states
            .get(&InstanceName::new("nav", "x", ""))
            .map(ToString::to_string);
        state.unwrap_or_default()
    };
    let switch = |rig: &mut Rig, mode: &str| {
        rig.cluster.update(
            &format!("{{desiredState: {{configs: {{mode: {mode}}}}}}}"),
            &["desiredState.configs.mode"],
        )
    };
    rig.restart(&["web"]).unwrap();
    assert_eq!(info(&rig), "NotScheduled: 'being restarted'");
    assert_eq!(switch(&mut rig, "park"), Ok((vec![], vec![])));
    assert_eq!(info(&rig), "NotScheduled: 'not in mode 'park''");
    rig.cluster.take_all();
    rig.all_removed(&["nav", "web"]);
    assert_eq!(
        (rig.plan(rig.a), rig.effective_agent("nav"), rig.is_over()),
        (plan("web", ""), "", true)
    );
    rig.cluster
        .report(rig.a, &[(&instance("web"), Phase::Running)]);
    rig.restart(&["web"]).unwrap();
    switch(&mut rig, "drive").unwrap();
    rig.cluster.take_all();
    rig.removed("web");
    let started = rig.plan(rig.a);
    assert_eq!(
        (
            started.0.contains("web"),
            rig.effective_agent("nav"),
            rig.is_over()
        ),
        (true, "A", true)
    );
}

/// It would be started before the end of a workload that waits for its end, and would wait without
/// end.
#[test]
fn a_restart_of_a_dependent_lets_what_waits_for_it_end_first() {
    let mut rig = Rig::new();
    rig.cluster.update(NEW_STORAGE, &[STORAGE]).unwrap();
    rig.cluster.report(
        rig.b,
        &[(&instance("storage"), Phase::StoppingWaitingToStop)],
    );
    rig.cluster.take_all();
    rig.restart(&["web"]).unwrap();
    rig.all_removed(&["nav", "web"]);
    assert_eq!(rig.plan(rig.a), plan("", "nav web"));
    rig.removed("storage");
    assert_eq!(
        (rig.plan(rig.a), rig.is_over()),
        (plan("nav web", ""), true)
    );
}

/// It would stay away as long as they run.
#[test]
fn restart_of_a_dependent_does_not_wait_for_blocked_ends() {
    let mut rig = Rig::new();
    let maps = "{desiredState: {apiVersion: v1, workloads: {maps: {agent: A, runtime: podman, runtimeConfig: x, \
                dependencies: {storage: ADD_COND_RUNNING}}}}}";
    rig.cluster
        .update(maps, &["desiredState.workloads.maps"])
        .unwrap();
    rig.cluster
        .report(rig.a, &[(&instance("maps"), Phase::Running)]);
    rig.cluster.update(NEW_STORAGE, &[STORAGE]).unwrap();
    rig.cluster.report(
        rig.b,
        &[(&instance("storage"), Phase::StoppingWaitingToStop)],
    );
    rig.cluster.take_all();
    rig.restart(&["web"]).unwrap();
    assert_eq!(rig.plan(rig.a), plan("", "nav web"));
    rig.all_removed(&["nav", "web"]);
    assert_eq!(
        (rig.plan(rig.a), rig.is_over()),
        (plan("nav web", ""), true)
    );
}

/// Agents of Eclipse Ankaios never report the end of an instance that was deleted before it was
/// created.
#[test]
fn waiting_workload_is_not_deleted_and_its_old_instance_ends() {
    let mut rig = Rig::new();
    rig.cluster.update(NEW_STORAGE, &[STORAGE]).unwrap();
    rig.cluster.report(
        rig.b,
        &[(&instance("storage"), Phase::StoppingWaitingToStop)],
    );
    rig.cluster.take_all();
    let back = rig.restart(&["storage"]).unwrap();
    assert_eq!(
        back,
        texts(&[&instance("nav"), &new_storage(), &instance("web")])
    );
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", "nav web"), plan("", ""))
    );
    rig.all_removed(&["nav", "web"]);
    assert_eq!(rig.plan(rig.a), plan("", ""));
    rig.removed("storage");
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b), rig.is_over()),
        (plan("nav web", ""), plan("", ""), true)
    );
    assert_eq!(
        rig.restart(&["late"]),
        Ok(texts(&[&instance("late")])),
        "it waits for 'storage'"
    );
    assert_eq!((rig.plan(rig.a), rig.is_over()), (plan("", ""), true));
}

#[test]
fn newer_revision_of_a_waiting_workload_is_sent_at_once() {
    let mut rig = Rig::new();
    rig.cluster.update(NEW_STORAGE, &[STORAGE]).unwrap();
    rig.cluster.report(
        rig.b,
        &[(&instance("storage"), Phase::StoppingWaitingToStop)],
    );
    rig.cluster.take_all();
    let newer = NEW_STORAGE.replace("runtimeConfig: y", "runtimeConfig: z");
    rig.send(request(&["storage"], Some((&newer, &[STORAGE]))))
        .unwrap();
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", "nav web"), plan("storage", "storage"))
    );
    rig.all_removed(&["nav", "web"]);
    assert_eq!(rig.plan(rig.a), plan("", ""));
    rig.removed("storage");
    assert_eq!(
        (rig.plan(rig.a), rig.is_over()),
        (plan("nav web", ""), true)
    );
}

#[test]
fn a_restart_of_the_server_ends_it() {
    let mut rig = Rig::new();
    rig.restart(&["storage"]).unwrap();
    let mut server = ServerLoop::new();
    server
        .start_again_with(rig.cluster.server.stored())
        .unwrap();
    assert!(
        server
            .updates
            .workloads()
            .effective
            .values()
            .all(|added| added.instance.agent == added.workload.agent)
    );
    assert_eq!(
        &*server.updates.workloads().effective["web"].instance.agent,
        "A"
    );
}

#[test]
fn hooks_are_not_asked_and_what_they_made_comes_back() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    cluster.hook();
    let mut rig = Rig::of(cluster);
    assert_eq!(rig.restart(&["web"]).unwrap().len(), 2);
    assert!(rig.cluster.plans.try_recv().is_err());
    rig.all_removed(&["nav", "web"]);
    assert!(rig.is_over());
}

/// It waits to start, as far as the server knows, while its agent starts it already.
#[test]
fn dependent_started_before_the_restart_arrives_joins_it() {
    let mut rig = Rig::new();
    rig.restart(&["web"]).unwrap();
    rig.all_removed(&["nav", "web"]);
    rig.cluster.take_all();
    assert_eq!(rig.restart(&["storage"]).unwrap().len(), 3);
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("", ""), plan("", "storage"))
    );
    rig.cluster
        .report(rig.a, &[(&instance("web"), Phase::PendingStarting)]);
    assert_eq!(rig.plan(rig.a), plan("", "web"));
    rig.removed("storage");
    assert!(!rig.is_over(), "web has not ended");
    rig.removed("web");
    assert!(rig.is_over());
    assert_eq!(
        (rig.plan(rig.a), rig.plan(rig.b)),
        (plan("web", ""), plan("storage", ""))
    );
}
