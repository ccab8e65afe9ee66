//! Stopped workloads: the plans of agents, the events that start them again, and the rights to stop
//! them.

use super::*;
use crate::settings::ModeSettings;
use crate::state_store::{parse, text};
use ankaios_model::messages::StopAndStart;
use ankaios_model::reason::Reason;

/// `web` needs `db`; `log` needs nothing. `op` may write `web` only.
const MANIFEST: &str = "
apiVersion: v1
configs: {mode: drive}
workloads:
  db: {agent: A, runtime: podman, runtimeConfig: x}
  web: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: drive}, dependencies: {db: ADD_COND_RUNNING}}
  log: {agent: A, runtime: podman, runtimeConfig: x}
  op:
    agent: A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess:
      allowRules: [{type: StateRule, operation: Write, filterMasks: [desiredState.workloads.web]}]
";
const ALL: [&str; 4] = ["db", "log", "op", "web"];
const WEB: &str = "desiredState.workloads.web";

fn instance(workload: &str) -> InstanceName {
    InstanceName::new(workload, "x", "A")
}

fn web(config: &str) -> String {
    format!(
        "{{desiredState: {{workloads: {{web: {{agent: A, runtime: podman, runtimeConfig: {config}, tags: {{modes: drive}}}}}}}}}}"
    )
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn request(stop: &[&str], start: &[&str]) -> RequestContent {
    RequestContent::StopAndStart(StopAndStart {
        stop: texts(stop),
        start: texts(start),
    })
}

/// All workloads run on agent A.
struct Rig {
    cluster: Cluster,
    a: PeerId,
}

impl Rig {
    fn new() -> Self {
        Self::of(Cluster::with_manifest(MANIFEST))
    }

    fn of(mut cluster: Cluster) -> Self {
        let a = cluster.agent("A");
        for name in ALL {
            cluster.report(a, &[(&instance(name), Phase::Running)]);
        }
        cluster.take_all();
        Self { cluster, a }
    }

    fn send(&mut self, content: RequestContent) -> Result<(Vec<String>, Vec<String>), String> {
        let commander = self.cluster.commander();
        let answer = self.cluster.request(commander, content);
        self.cluster.send(commander, ToServer::Goodbye);
        outcome(answer)
    }

    fn stop(&mut self, names: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
        self.send(request(names, &[]))
    }

    fn start(&mut self, names: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
        self.send(request(&[], names))
    }

    /// The names that the agent was sent, added and deleted, since the last look.
    fn plan(&self) -> (String, String) {
        let messages = self.cluster.take(self.a);
        let plans = plans(&messages);
        let mut added = Vec::new();
        let mut deleted = Vec::new();
        for plan in plans {
            added.extend(names(&plan.added));
            for one in &plan.deleted {
                deleted.push(one.instance.workload.to_string());
            }
        }
        (added.join(" "), deleted.join(" "))
    }

    fn agent_of(&self, workload: &str) -> String {
        let workloads = self.cluster.server.updates.workloads();
        workloads.effective[workload].instance.agent.to_string()
    }

    fn reason_of(&self, instance: &InstanceName) -> Option<Reason> {
        let workloads = self.cluster.server.updates.workloads();
        workloads.states.get(instance).map(|state| state.reason)
    }

    fn warning(&mut self) -> String {
        self.cluster.read(&["warning"])
    }
}

fn plan(added: &str, deleted: &str) -> (String, String) {
    (added.to_owned(), deleted.to_owned())
}

fn refused(reason: &str) -> Result<(Vec<String>, Vec<String>), String> {
    Err(format!("Update rejected: '{reason}'"))
}

// [utest->swdd~server-stops-workloads~1]
#[test]
fn stopped_workload_ends_and_returns_when_started() {
    let mut rig = Rig::new();
    let desired = rig.cluster.read(&["desiredState"]);
    let unscheduled = InstanceName::new("log", "x", "");
    let accepted = (
        vec![unscheduled.to_string()],
        vec![instance("log").to_string()],
    );
    assert_eq!(rig.stop(&["log"]), Ok(accepted));
    assert_eq!(rig.plan(), plan("", "log"));
    assert_eq!(rig.reason_of(&unscheduled), Some(Reason::Stopped));
    assert_eq!(rig.cluster.read(&["desiredState"]), desired);
    assert!(
        rig.warning()
            .contains("workload 'log' is stopped until 'ank start log'")
    );
    rig.cluster
        .report(rig.a, &[(&instance("log"), Phase::Removed)]);
    rig.start(&["log"]).unwrap();
    assert_eq!(rig.plan(), plan("log", ""));
    assert_eq!(rig.warning(), "{}");
    assert!(rig.cluster.server.updates.workloads().placed.is_none());
}

#[test]
fn stop_again_and_start_of_running_change_nothing() {
    let mut rig = Rig::new();
    rig.stop(&["log"]).unwrap();
    rig.plan();
    let nothing = || Ok((Vec::new(), Vec::new()));
    assert_eq!(rig.stop(&["log"]), nothing());
    assert_eq!(rig.start(&["web"]), nothing());
    assert_eq!(rig.plan(), plan("", ""));
}

#[test]
fn stop_names_what_must_end_first() {
    let mut rig = Rig::new();
    let reason = "'web' must end before 'db' can; stop them together: 'ank stop db web'";
    assert_eq!(rig.stop(&["db"]), refused(reason));
    assert_eq!(rig.plan(), plan("", ""));
    rig.stop(&["web", "db"]).unwrap();
    assert_eq!(rig.plan(), plan("", "db web"));
}

#[test]
fn stop_with_many_dependents_names_a_few_of_them() {
    let mut rig = Rig::new();
    let mut workloads = String::new();
    let mut masks = Vec::new();
    for number in 0..50 {
        workloads.push_str(&format!(
            "d{number:02}: {{agent: A, runtime: podman, runtimeConfig: x, dependencies: {{db: ADD_COND_RUNNING}}}}, "
        ));
        masks.push(format!("desiredState.workloads.d{number:02}"));
    }
    let update = format!("{{desiredState: {{workloads: {{{workloads}}}}}}}");
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    rig.cluster.update(&update, &masks).unwrap();
    rig.plan();
    let reason = "51 other workloads must end before these can, such as 'd00', 'd01', 'd02', 'd03', 'd04', 'd05', \
                  'd06', 'd07', 'd08', 'd09'; stop them together ('ank graph' shows what needs what)";
    assert_eq!(rig.stop(&["db"]), refused(reason));
}

/// A dependent of the follower does not keep the dependency running either.
#[test]
fn dependent_that_follows_need_not_be_stopped_as_well() {
    let mut rig = Rig::new();
    let config = r#""image: x\nlifecycle: { restartWith: DEPENDENCIES }""#;
    let update = format!(
        "{{desiredState: {{workloads: {{
            web: {{agent: A, runtime: podman, runtimeConfig: {config}, dependencies: {{db: ADD_COND_RUNNING}}}},
            log: {{agent: A, runtime: podman, runtimeConfig: x, dependencies: {{web: ADD_COND_RUNNING}}}}
        }}}}}}"
    );
    let masks = [WEB, "desiredState.workloads.log"];
    rig.cluster.update(&update, &masks).unwrap();
    let image = "image: x\nlifecycle: { restartWith: DEPENDENCIES }";
    for instance in [InstanceName::new("web", image, "A"), instance("log")] {
        rig.cluster.report(rig.a, &[(&instance, Phase::Running)]);
    }
    rig.plan();
    rig.stop(&["db"]).unwrap();
    assert_eq!(rig.plan(), plan("", "db"));
    // The follower itself is kept as ever.
    let reason = "'log' must end before 'web' can; stop them together: 'ank stop web log'";
    assert_eq!(rig.stop(&["web"]), refused(reason));
}

#[test]
fn dependent_that_has_ended_keeps_nothing_running() {
    let mut rig = Rig::new();
    rig.cluster
        .report(rig.a, &[(&instance("web"), Phase::Succeeded)]);
    rig.stop(&["db"]).unwrap();
    assert_eq!(rig.plan(), plan("", "db"));
}

#[test]
fn unknown_workload_is_neither_stopped_nor_started() {
    let mut rig = Rig::new();
    for content in [request(&["log", "nix"], &[]), request(&[], &["nix"])] {
        assert_eq!(rig.send(content), refused("workload 'nix' does not exist"));
    }
    assert_eq!(rig.agent_of("log"), "A", "nothing of it was done");
}

#[test]
fn update_of_stopped_workload_does_not_start_it() {
    let mut rig = Rig::new();
    rig.stop(&["web"]).unwrap();
    rig.plan();
    rig.cluster.update(&web("y"), &[WEB]).unwrap();
    assert_eq!(rig.plan(), plan("", ""));
    rig.start(&["web"]).unwrap();
    let added = rig.cluster.one_plan(rig.a).added;
    assert_eq!(&*added[0].workload.runtime_config, "y");
}

#[test]
fn deleted_workload_is_not_stopped_when_created_again() {
    let mut rig = Rig::new();
    rig.stop(&["web"]).unwrap();
    rig.cluster.update("{}", &[WEB]).unwrap();
    assert_eq!(rig.warning(), "{}");
    rig.plan();
    rig.cluster.update(&web("y"), &[WEB]).unwrap();
    assert_eq!(rig.plan(), plan("web", ""));
}

#[test]
fn stopped_workload_is_not_restarted() {
    let mut rig = Rig::new();
    rig.stop(&["web"]).unwrap();
    rig.plan();
    let restart = RequestContent::UpdateState(UpdateState {
        restart: vec!["web".to_owned()],
        ..UpdateState::default()
    });
    let reason = "workload 'web' does not run: it is stopped; 'ank start web' starts it";
    assert_eq!(rig.send(restart), refused(reason));
    // A workload that it needs is restarted without it.
    let restart = RequestContent::UpdateState(UpdateState {
        restart: vec!["db".to_owned()],
        ..UpdateState::default()
    });
    rig.send(restart).unwrap();
    rig.cluster
        .report(rig.a, &[(&instance("web"), Phase::Removed)]);
    rig.cluster
        .report(rig.a, &[(&instance("db"), Phase::Removed)]);
    assert_eq!(rig.plan(), plan("db", "db"));
    assert_eq!(rig.agent_of("web"), "");
}

#[test]
fn switch_of_the_mode_does_not_start_it() {
    let mut cluster = Cluster::default();
    cluster.server.set_modes(ModeSettings {
        config_item: "mode".to_owned(),
        on_failure: None,
    });
    cluster.server.start_with(desired(MANIFEST)).unwrap();
    let mut rig = Rig::of(cluster);
    rig.stop(&["web"]).unwrap();
    for mode in ["park", "drive"] {
        let state = format!("{{desiredState: {{configs: {{mode: {mode}}}}}}}");
        rig.cluster
            .update(&state, &["desiredState.configs.mode"])
            .unwrap();
        assert_eq!(rig.agent_of("web"), "", "{mode}");
        let unscheduled = InstanceName::new("web", "x", "");
        assert_eq!(rig.reason_of(&unscheduled), Some(Reason::Stopped), "{mode}");
    }
    rig.plan();
    rig.start(&["web"]).unwrap();
    assert_eq!(rig.plan(), plan("web", ""));
}

#[test]
fn stopped_workload_stays_stopped_over_a_restart() {
    let mut rig = Rig::new();
    rig.stop(&["log"]).unwrap();
    let stored = text(&rig.cluster.server.stored()).unwrap();
    let mut cluster = Cluster::default();
    let stored = parse(&stored).unwrap();
    cluster.server.start_again_with(stored).unwrap();
    let a = cluster.agent("A");
    let mut sent = Vec::new();
    for message in cluster.take(a) {
        if let FromServer::ServerHello(added) = message {
            sent.extend(names(&added));
        }
    }
    assert_eq!(sent, ["db", "op", "web"]);
    let mut rig = Rig { cluster, a };
    rig.start(&["log"]).unwrap();
    assert_eq!(rig.plan(), plan("log", ""));
}

#[test]
fn workload_stops_only_what_it_may_write() {
    let mut rig = Rig::new();
    let mut ask = |content: RequestContent| {
        rig.cluster.send_request(rig.a, "op@1", content);
        let messages = rig.cluster.take(rig.a);
        let mut responses = messages.into_iter().filter_map(|message| match message {
            FromServer::Response(response) => Some(response.content),
            _ => None,
        });
        outcome(responses.next().unwrap())
    };
    let denied = ask(request(&["web", "log"], &[])).unwrap_err();
    assert!(denied.starts_with("Access denied: "), "{denied}");
    assert!(ask(request(&[], &["log"])).is_err());
    ask(request(&["web"], &[])).unwrap();
    ask(request(&[], &["web"])).unwrap();
}

#[test]
fn hooks_are_not_asked_about_a_stop() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    cluster.hook();
    let mut rig = Rig::of(cluster);
    rig.stop(&["log"]).unwrap();
    assert!(rig.cluster.plans.try_recv().is_err());
    assert_eq!(rig.plan(), plan("", "log"));
}

#[test]
fn warning_names_ten_workloads_at_most() {
    let entries: Vec<String> = (0..12)
        .map(|number| format!("w{number:02}: {{agent: A, runtime: podman, runtimeConfig: x}}"))
        .collect();
    let manifest = format!("{{apiVersion: v1, workloads: {{{}}}}}", entries.join(", "));
    let mut cluster = Cluster::with_manifest(&manifest);
    let commander = cluster.commander();
    let names: Vec<String> = (0..12).map(|number| format!("w{number:02}")).collect();
    let content = RequestContent::StopAndStart(StopAndStart {
        stop: names,
        start: Vec::new(),
    });
    outcome(cluster.request(commander, content)).unwrap();
    let warning = cluster.read(&["warning"]);
    assert!(
        warning.contains("'w09' and 2 more are stopped until 'ank start NAME'"),
        "{warning}"
    );
    assert!(warning.contains("no 'state_dir'"), "{warning}");
}
