//! Modes of the vehicle: which workloads run, what a switch sends, and what the failure of an
//! essential workload does.

use super::hooks::move_to;
use super::*;
use crate::settings::ModeSettings;
use ankaios_fakes::log_lines::lines_of;

const MANIFEST: &str = "
apiVersion: v1
configs: {mode: park, other: x}
workloads:
  base: {agent: A, runtime: podman, runtimeConfig: x}
  guard: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: park}}
  map: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: drive}, dependencies: {nav: ADD_COND_RUNNING}}
  nav: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: drive limp}}
";

impl Cluster {
    /// A server without workloads whose mode is the config item `mode`.
    fn with_modes(on_failure: Option<&str>) -> Self {
        let mut cluster = Self::default();
        let on_failure = on_failure.map(str::to_owned);
        cluster.server.set_modes(ModeSettings {
            config_item: "mode".to_owned(),
            on_failure,
        });
        cluster
    }

    fn started_with(on_failure: Option<&str>, manifest: &str) -> Self {
        let mut cluster = Self::with_modes(on_failure);
        cluster.server.start_with(desired(manifest)).unwrap();
        cluster
    }

    fn switch(&mut self, mode: &str) -> Result<(Vec<String>, Vec<String>), String> {
        self.update(
            &format!("{{desiredState: {{configs: {{mode: {mode}}}}}}}"),
            &["desiredState.configs.mode"],
        )
    }

    /// The text of the config item.
    fn mode(&mut self) -> String {
        let state = self.read(&["desiredState.configs.mode"]);
        let json: serde_json::Value = serde_json::from_str(&state).unwrap();
        json["desiredState"]["configs"]["mode"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The effective agent of a workload.
    fn effective_agent(&self, workload: &str) -> Option<&str> {
        self.server
            .updates
            .workloads()
            .effective
            .get(workload)
            .map(|added| &*added.instance.agent)
    }

    fn shown(&self, workload: &str, agent: &str) -> Option<String> {
        let state = self
            .server
            .updates
            .workloads()
            .states
            .get(&instance(workload, agent))?;
        Some(state.to_string())
    }

    fn cause(&self) -> Option<&str> {
        self.server
            .updates
            .workloads()
            .modes
            .as_ref()?
            .cause
            .as_deref()
    }
}

fn instance(workload: &str, agent: &str) -> InstanceName {
    InstanceName::new(workload, "x", agent)
}

fn texts(names: &[(&str, &str)]) -> Vec<String> {
    names
        .iter()
        .map(|(workload, agent)| instance(workload, agent).to_string())
        .collect()
}

/// The paths of the events that were sent, with `+`, `~` or `-` for added, updated and removed.
fn events(cluster: &Cluster, peer: PeerId) -> Vec<String> {
    let altered = |content| match content {
        ResponseContent::CompleteState {
            altered: Some(altered),
            ..
        } => {
            let signed = |sign: &str, fields: &[String]| -> Vec<String> {
                fields
                    .iter()
                    .map(|field| format!("{sign}{field}"))
                    .collect()
            };
            [
                signed("+", &altered.added),
                signed("~", &altered.updated),
                signed("-", &altered.removed),
            ]
            .concat()
        }
        other => panic!("{other:?}"),
    };
    cluster
        .responses(peer)
        .into_iter()
        .flat_map(altered)
        .collect()
}

// [utest->swdd~server-modes-outside-is-not-scheduled~1]
#[test]
fn what_is_outside_of_the_mode_has_no_agent_and_says_why() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let agent = cluster.agent("A");
    let hello = cluster
        .take(agent)
        .into_iter()
        .find_map(|message| match message {
            FromServer::ServerHello(added) => Some(names(&added)),
            _ => None,
        });
    assert_eq!(hello.unwrap(), ["base", "guard"]);
    assert_eq!(cluster.effective_agent("nav"), Some(""));
    assert_eq!(
        cluster.shown("nav", "").as_deref(),
        Some("NotScheduled: 'not in mode 'park''")
    );
    assert_eq!(
        cluster.shown("guard", "A").as_deref(),
        Some("Pending(Initial)")
    );
    let desired = cluster.read(&["desiredState.workloads.nav.agent"]);
    assert_eq!(
        desired,
        r#"{"desiredState":{"apiVersion":"v1","workloads":{"nav":{"agent":"A"}}}}"#
    );
}

#[test]
fn without_the_setting_tags_and_items_mean_nothing() {
    let odd = "
apiVersion: v1
configs: {mode: [a]}
workloads:
  base: {agent: A, runtime: podman, runtimeConfig: x, tags: {modes: '', essential: maybe}}
  nav: {agent: A, runtime: podman, runtimeConfig: '{{m}}', tags: {modes: 'a,b'}, configs: {m: mode}}
";
    let mut cluster = Cluster::with_manifest(odd);
    assert_eq!(
        (
            cluster.effective_agent("base"),
            cluster.effective_agent("nav")
        ),
        (Some("A"), Some("A"))
    );
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&instance("base", "A"), Phase::FailedLost)]);
    let item = "{desiredState: {configs: {mode: drive}}}";
    let (added, _) = cluster
        .update(item, &["desiredState.configs.mode"])
        .unwrap();
    assert_eq!(added.len(), 1, "templates may use it");
}

/// Everything that a subscriber, a reader and an agent get while much happens, with the two tags
/// called `modes` and `essential` as given.
fn messages(modes: &str, essential: &str) -> String {
    let mut cluster = Cluster::default();
    let manifest = MANIFEST.replace("modes:", &format!("{essential}: 'true', {modes}:"));
    cluster.server.start_with(desired(&manifest)).unwrap();
    let (agent, commander) = (cluster.agent("A"), cluster.commander());
    let mut all = Vec::new();
    cluster.send_request(commander, "events", read(&[], true));
    cluster.report(
        agent,
        &[
            (&instance("nav", "A"), Phase::FailedLost),
            (&instance("guard", "A"), Phase::Running),
        ],
    );
    cluster.send_request(
        commander,
        "switch",
        update(
            "{desiredState: {configs: {mode: drive}}}",
            &["desiredState.configs.mode"],
        ),
    );
    let moved = "{desiredState: {workloads: {nav: {agent: B}}}}";
    cluster.send_request(
        commander,
        "move",
        update(moved, &["desiredState.workloads.nav.agent"]),
    );
    cluster.send_request(
        commander,
        "delete",
        update("{desiredState: {}}", &["desiredState.configs.mode"]),
    );
    all.extend(cluster.take(agent));
    all.extend(cluster.take(commander));
    assert!(all.len() > 8, "{all:?}");
    format!("{all:?}")
        .replace(&format!("\"{modes}\""), "TAG")
        .replace(&format!("\"{essential}\""), "OTHER")
}

#[test]
fn without_the_setting_messages_are_those_of_any_other_tags() {
    assert_eq!(
        messages("modes", "essential"),
        messages("m0des", "essent1al")
    );
}

// [utest->swdd~server-modes-switch~1]
#[test]
fn a_switch_sends_what_leaves_and_what_enters_and_nothing_else() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let agent = cluster.settled_agent("A");
    let (base, guard) = (instance("base", "A"), instance("guard", "A"));
    cluster.report(agent, &[(&base, Phase::Running), (&guard, Phase::Running)]);
    let answer = cluster.switch("drive").unwrap();
    let expected = (
        texts(&[("guard", ""), ("map", "A"), ("nav", "A")]),
        texts(&[("guard", "A"), ("map", ""), ("nav", "")]),
    );
    assert_eq!(answer, expected);
    let plan = cluster.one_plan(agent);
    assert_eq!(names(&plan.added), ["map", "nav"]);
    assert_eq!(
        plan.deleted
            .iter()
            .map(|deleted| &deleted.instance)
            .collect::<Vec<_>>(),
        [&guard]
    );
    assert_eq!(
        cluster.shown("guard", "").as_deref(),
        Some("NotScheduled: 'not in mode 'drive''")
    );
    assert_eq!(cluster.shown("nav", ""), None);
    assert_eq!(
        cluster.shown("nav", "A").as_deref(),
        Some("Pending(Initial)")
    );
    assert_eq!(cluster.shown("base", "A").as_deref(), Some("Running(Ok)"));
    // Back before the end of the old instance: dependents stop first.
    cluster.report(
        agent,
        &[
            (&instance("map", "A"), Phase::Running),
            (&instance("nav", "A"), Phase::Running),
        ],
    );
    cluster.switch("park").unwrap();
    let plan = cluster.one_plan(agent);
    let waits: Vec<(String, Vec<&String>)> = (plan.deleted.iter())
        .map(|deleted| {
            (
                deleted.instance.workload.to_string(),
                deleted.dependencies.keys().collect(),
            )
        })
        .collect();
    assert_eq!(
        waits,
        [
            ("map".to_owned(), vec![]),
            ("nav".to_owned(), vec![&"map".to_owned()])
        ]
    );
    assert_eq!(names(&plan.added), ["guard"]);
    assert_eq!(
        cluster.phase(&guard),
        Some(Phase::Running),
        "its end was not reported"
    );
}

#[test]
fn the_same_mode_and_changes_outside_of_it_change_nothing() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let (agent, commander) = (cluster.settled_agent("A"), cluster.commander());
    cluster.request(commander, read(&["effectiveState", "workloadStates"], true));
    let nothing = (vec![], vec![]);
    assert_eq!(cluster.switch("park").unwrap(), nothing);
    let moved = "{desiredState: {workloads: {nav: {agent: B}}}}";
    assert_eq!(
        cluster
            .update(moved, &["desiredState.workloads.nav.agent"])
            .unwrap(),
        nothing
    );
    assert_eq!(
        (cluster.take(agent), events(&cluster, commander)),
        (vec![], vec![])
    );
    // The mode is known nevertheless.
    cluster.switch("drive").unwrap();
    assert_eq!(cluster.effective_agent("nav"), Some("B"));
}

#[test]
fn mode_switch_publishes_the_new_reason_of_workloads_outside() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    cluster.settled_agent("A");
    let commander = cluster.commander();
    cluster.request(
        commander,
        read(&["workloadStates", "desiredState.configs"], true),
    );
    let id = instance("nav", "").id;
    cluster.switch("flash").unwrap();
    let guard = "+workloadStates..guard".to_owned();
    let info = |name: &str| format!("~workloadStates..{name}.{id}.additionalInfo");
    let seen = events(&cluster, commander);
    for path in [
        "~desiredState.configs.mode",
        &guard,
        &info("map"),
        &info("nav"),
    ] {
        assert!(seen.iter().any(|seen| seen == path), "{path}: {seen:?}");
    }
    // Nothing runs in either: only reasons change.
    cluster.switch("off").unwrap();
    let mut seen = events(&cluster, commander);
    seen.sort();
    assert_eq!(
        seen,
        [
            "~desiredState.configs.mode".to_owned(),
            info("guard"),
            info("map"),
            info("nav")
        ]
    );
}

#[test]
fn a_workload_without_agent_loses_its_reason_inside_of_the_mode() {
    let manifest = MANIFEST.replace("nav: {agent: A", "nav: {agent: ''");
    let mut cluster = Cluster::started_with(None, &manifest);
    assert_eq!(
        cluster.shown("nav", "").as_deref(),
        Some("NotScheduled: 'not in mode 'park''")
    );
    let (added, deleted) = cluster.switch("drive").unwrap();
    assert!(
        ![added, deleted]
            .concat()
            .iter()
            .any(|name| name.starts_with("nav")),
        "it has not changed"
    );
    assert_eq!(cluster.shown("nav", "").as_deref(), Some("NotScheduled"));
    let untagged = "{desiredState: {workloads: {nav: {}}}}";
    cluster.switch("park").unwrap();
    cluster
        .update(untagged, &["desiredState.workloads.nav.tags"])
        .unwrap();
    assert_eq!(cluster.shown("nav", "").as_deref(), Some("NotScheduled"));
}

#[test]
fn workloads_and_mode_of_one_update_apply_together() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let agent = cluster.settled_agent("A");
    let both = |tag: &str| {
        format!(
            "{{desiredState: {{configs: {{mode: flash}}, workloads: {{writer: {{agent: A, runtime: podman, \
             runtimeConfig: x, tags: {{modes: '{tag}'}}}}}}}}}}"
        )
    };
    let masks = ["desiredState.configs.mode", "desiredState.workloads.writer"];
    cluster.update(&both("a,b"), &masks).unwrap_err();
    assert_eq!(
        (cluster.mode().as_str(), cluster.take(agent)),
        ("park", vec![])
    );
    cluster.update(&both("flash"), &masks).unwrap();
    let plan = cluster.one_plan(agent);
    assert_eq!(
        (names(&plan.added), plan.deleted.len()),
        (vec!["writer".to_owned()], 1)
    );
}

#[test]
fn the_last_of_several_switches_wins() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let agent = cluster.settled_agent("A");
    for mode in ["drive", "off", "limp"] {
        cluster.switch(mode).unwrap();
    }
    let running: Vec<&str> = ["base", "guard", "map", "nav"]
        .into_iter()
        .filter(|name| cluster.effective_agent(name) == Some("A"))
        .collect();
    assert_eq!(running, ["base", "nav"]);
    let messages = cluster.take(agent);
    assert_eq!(plans(&messages).len(), 3);
}

#[test]
fn another_tag_is_an_update_inside_and_a_move_across_the_border() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let agent = cluster.settled_agent("A");
    let guard = instance("guard", "A");
    cluster.report(agent, &[(&guard, Phase::Running)]);
    let mut tag = |modes: &str| {
        let state =
            format!("{{desiredState: {{workloads: {{guard: {{tags: {{modes: {modes}}}}}}}}}}}");
        cluster
            .update(&state, &["desiredState.workloads.guard.tags"])
            .unwrap();
        let plan = cluster.one_plan(agent);
        (plan.added.len(), plan.deleted.len())
    };
    assert_eq!(tag("park flash"), (1, 1), "in the mode before and after");
    assert_eq!(tag("flash"), (0, 1));
    assert_eq!(tag("flash park"), (1, 0));
}

#[test]
fn clients_read_the_modes_by_name_and_only_where_there_are_some() {
    let mut cluster = Cluster::started_with(Some("limp"), MANIFEST);
    assert_eq!(
        cluster.read(&["modes"]),
        r#"{"modes":{"configItem":"mode","current":"park","known":["drive","limp","park"],"onFailure":"limp"}}"#
    );
    assert_eq!(
        cluster.read(&["modes.current"]),
        r#"{"modes":{"current":"park"}}"#
    );
    for masks in [&[][..], &["*"], &["*.current"], &["desiredState"]] {
        assert!(!cluster.read(masks).contains("configItem"), "{masks:?}");
    }
    cluster.switch("off").unwrap();
    assert!(
        cluster
            .read(&["modes"])
            .contains(r#""known":["drive","limp","off","park"]"#)
    );
    let before = cluster.read(&[]);
    cluster
        .update("{desiredState: {}, modes: {current: drive}}", &["modes"])
        .unwrap();
    assert_eq!(
        cluster.read(&[]),
        before,
        "it is no part of what can be changed"
    );
    assert_eq!(Cluster::with_manifest(MANIFEST).read(&["modes"]), "{}");
}

#[test]
fn a_workload_reads_and_switches_with_the_rules_for_these_masks() {
    let rule = |operation: &str, mask: &str| {
        format!("{{type: StateRule, operation: {operation}, filterMasks: ['{mask}']}}")
    };
    let rules = format!(
        "[{}, {}]",
        rule("Write", "desiredState.configs.mode"),
        rule("Read", "modes")
    );
    let manifest = format!(
        "{MANIFEST}  keeper: {{agent: A, runtime: podman, runtimeConfig: x, controlInterfaceAccess: {{allowRules: {rules}}}}}\n"
    );
    let mut cluster = Cluster::started_with(None, &manifest);
    let agent = cluster.settled_agent("A");
    let mut ask = |content| {
        cluster.send_request(agent, "keeper@1", content);
        let responses = cluster
            .take(agent)
            .into_iter()
            .filter_map(|message| match message {
                FromServer::Response(Response { content, .. }) => Some(content),
                _ => None,
            });
        responses.last().unwrap()
    };
    let modes = ask(read(&["modes"], false));
    assert!(
        matches!(&modes, ResponseContent::CompleteState { state, .. } if state.get("modes").is_some()),
        "{modes:?}"
    );
    assert!(matches!(
        ask(read(&["desiredState.configs.mode"], false)),
        ResponseContent::Error(_)
    ));
    let item = |key: &str| format!("{{desiredState: {{configs: {{{key}: drive}}}}}}");
    outcome(ask(update(&item("other"), &["desiredState.configs.other"]))).unwrap_err();
    let (added, _) = outcome(ask(update(&item("mode"), &["desiredState.configs.mode"]))).unwrap();
    assert_eq!(added, texts(&[("guard", ""), ("map", "A"), ("nav", "A")]));
}

// ------------------------------------------------------------------- refusals

/// Refused manifests: tags and config references of a workload, the configs, and the core of the
/// error.
const REFUSED: [(&str, &str, &str); 13] = [
    (
        "tags: {modes: ''}",
        "mode: park",
        "Tag 'modes' of workload 'w' names no mode; leave it out for every mode",
    ),
    (
        "tags: {modes: \" \\t\\n\"}",
        "mode: park",
        "Tag 'modes' of workload 'w' names no mode; leave it out for every mode",
    ),
    (
        "tags: {modes: 'drive,park'}",
        "mode: park",
        "Unsupported mode 'drive,park' in tag 'modes' of workload 'w'; blanks separate modes. <C>",
    ),
    (
        "tags: {modes: 'drive {{x}}'}",
        "mode: park",
        "Unsupported mode '{{x}}' in tag 'modes' of workload 'w'; blanks separate modes. <C>",
    ),
    (
        "tags: {modes: 'LONG'}",
        "mode: park",
        "Unsupported mode 'LONG' in tag 'modes' of workload 'w'; blanks separate modes. <C>",
    ),
    (
        "tags: {modes: 'MANY'}",
        "mode: park",
        "Tag 'modes' of workload 'w' names more than 64 modes; leave it out for every mode",
    ),
    (
        "tags: {modes: drive}",
        "",
        "Workload 'w' has the tag 'modes', but config item 'mode' does not exist",
    ),
    (
        "tags: {}",
        "mode: [park]",
        "Config item 'mode' must be the name of a mode. <C>",
    ),
    (
        "tags: {}",
        "mode: {park: x}",
        "Config item 'mode' must be the name of a mode. <C>",
    ),
    (
        "tags: {}",
        "mode: ''",
        "Config item 'mode' must be the name of a mode. <C>",
    ),
    (
        "tags: {}",
        "mode: limp home",
        "Config item 'mode' must be the name of a mode. <C>",
    ),
    (
        "configs: {m: mode}",
        "mode: park",
        "Workload 'w' refers to config item 'mode'; no template may depend on the mode",
    ),
    (
        "tags: {essential: 'yes'}",
        "mode: park",
        "Tag 'essential' of workload 'w' must be 'true' or 'false'",
    ),
];

const NAME_RULE: &str = "Only a-z, A-Z, 0-9 chars, underscore (_), and hyphen (-) allowed. Maximum length is 63 characters.";

// [utest->swdd~server-modes-are-checked~1]
#[test]
fn invalid_modes_are_refused_in_updates_manifests_and_stores() {
    let (long, many) = ("m".repeat(64), "m ".repeat(65));
    for (fields, configs, core) in REFUSED {
        let [fields, core] =
            [fields, core].map(|text| text.replace("LONG", &long).replace("MANY", &many));
        let core = format!(
            "Resulting State is invalid, reason: '{}'",
            core.replace("<C>", NAME_RULE)
        );
        let workload = format!("w: {{agent: A, runtime: podman, runtimeConfig: x, {fields}}}");
        let state = format!("apiVersion: v1\nworkloads: {{{workload}}}\nconfigs: {{{configs}}}");
        let mut cluster = Cluster::started_with(Some("limp"), MANIFEST);
        let update = format!(
            "{{desiredState: {{apiVersion: v1, workloads: {{{workload}}}, configs: {{{configs}}}}}}}"
        );
        let error = cluster.update(&update, &[]).unwrap_err();
        assert_eq!(
            error,
            format!("Update rejected: '{core}'"),
            "{fields} {configs}"
        );
        assert_eq!(cluster.mode(), "park", "nothing has changed");
        let start = |start: fn(&mut ServerLoop, DesiredState) -> Result<(), UpdateError>| {
            start(
                &mut Cluster::with_modes(Some("limp")).server,
                desired(&state),
            )
            .unwrap_err()
            .to_string()
        };
        assert_eq!(start(ServerLoop::start_with), core, "manifest");
        assert_eq!(
            start(|server, state| server.start_again_with(state.into())),
            core,
            "stored state"
        );
    }
}

#[test]
fn the_config_item_stays_while_a_workload_has_the_tag() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let error = cluster
        .update("{desiredState: {}}", &["desiredState.configs.mode"])
        .unwrap_err();
    assert!(
        error.contains(
            "Workload 'guard' has the tag 'modes', but config item 'mode' does not exist"
        ),
        "{error}"
    );
    let essential = "{desiredState: {workloads: {base: {tags: {essential: maybe}}}}}";
    cluster
        .update(essential, &["desiredState.workloads.base.tags"])
        .expect("failures lead to no mode");
    let only_base = "{desiredState: {apiVersion: v1, workloads: {base: {agent: A, runtime: podman, runtimeConfig: x}}}}";
    cluster.update(only_base, &[]).unwrap();
    assert_eq!(
        (cluster.mode().as_str(), cluster.effective_agent("base")),
        ("", Some("A"))
    );
}

// ---------------------------------------------------------------------- start

#[test]
fn stored_mode_applies_and_failures_of_the_start_stay() {
    let manifest = format!(
        "{MANIFEST}  broken: {{agent: A, runtime: podman, runtimeConfig: '{{{{nothing}}}}', configs: {{o: other}}, \
         tags: {{modes: park}}}}\n"
    );
    let mut cluster = Cluster::with_modes(None);
    cluster
        .server
        .start_again_with(desired(&manifest.replace("mode: park", "mode: limp")).into())
        .unwrap();
    assert_eq!(cluster.effective_agent("nav"), Some("A"));
    for mode in ["park", "drive"] {
        cluster.switch(mode).unwrap();
        assert_eq!(cluster.effective_agent("broken"), Some(""));
        let id = InstanceName::new("broken", "{{nothing}}", "");
        assert_eq!(cluster.phase(&id), Some(Phase::PendingStartingFailed));
    }
}

// ---------------------------------------------------------------------- hooks

/// A server with modes and hooks, whose state has gone through them: `nav` on another agent than it
/// is desired on.
fn hooked() -> (Cluster, PeerId) {
    let mut cluster = Cluster::with_modes(Some("limp"));
    cluster.hook();
    let agent = cluster.settled_agent("A");
    let commander = cluster.commander();
    let state = "{desiredState: {apiVersion: v1, configs: {mode: park}, workloads: {nav: {agent: A, runtime: podman, \
                 runtimeConfig: x, tags: {modes: drive}}, base: {agent: A, runtime: podman, runtimeConfig: x, \
                 tags: {essential: 'true'}}}}}";
    cluster.send_request(commander, "whole", update(state, &[]));
    let mut plan = cluster.asked().unwrap();
    let agents: Vec<&str> = plan
        .added
        .iter()
        .map(|added| &*added.instance.agent)
        .collect();
    assert_eq!(
        agents,
        ["A", "A"],
        "hooks see each workload with its own agent"
    );
    move_to(&mut plan, "nav", "B");
    cluster.answer(Ok(Some(plan)));
    assert_eq!(
        outcome(cluster.responses(commander).pop().unwrap())
            .unwrap()
            .0
            .len(),
        2
    );
    cluster.take_all();
    (cluster, agent)
}

#[test]
fn hooks_choose_the_agent_but_not_the_mode_of_a_workload() {
    let (mut cluster, _) = hooked();
    assert_eq!(cluster.effective_agent("nav"), Some(""));
    cluster.switch("drive").unwrap();
    assert_eq!(
        (cluster.asked(), cluster.effective_agent("nav")),
        (None, Some("B")),
        "no hook is asked for a switch"
    );
    cluster.switch("park").unwrap();
    let commander = cluster.commander();
    let config = "{desiredState: {workloads: {nav: {runtimeConfig: y}}}}";
    cluster.send_request(
        commander,
        "config",
        update(config, &["desiredState.workloads.nav.runtimeConfig"]),
    );
    let plan = cluster.asked().unwrap();
    assert_eq!(
        plan.deleted[0].instance,
        instance("nav", "B"),
        "as it is in its mode"
    );
    cluster.answer(Ok(None));
    let id = InstanceName::new("nav", "y", "");
    let expected = (vec![id.to_string()], texts(&[("nav", "")]));
    assert_eq!(
        outcome(cluster.responses(commander).pop().unwrap()),
        Ok(expected)
    );
}

#[test]
fn tags_count_as_hooks_left_them_and_are_checked_again() {
    let (mut cluster, _) = hooked();
    let commander = cluster.commander();
    for (number, (tag, expected)) in [
        ("", Err("Hook output: Tag 'modes' of workload 'nav' names no mode; leave it out for every mode")),
        ("park", Ok("A")),
        ("flash", Ok("")),
    ]
    .into_iter()
    .enumerate()
    {
        let config = format!("{{desiredState: {{workloads: {{nav: {{runtimeConfig: y{number}}}}}}}}}");
        cluster.send_request(commander, "tag", update(&config, &["desiredState.workloads.nav.runtimeConfig"]));
        let mut plan = cluster.asked().unwrap();
        Arc::make_mut(&mut plan.added[0].workload).tags.insert("modes".to_owned(), tag.to_owned());
        cluster.answer(Ok(Some(plan)));
        match (outcome(cluster.responses(commander).pop().unwrap()), expected) {
            (Err(error), Err(core)) => assert!(error.contains(core), "{error}"),
            (Ok(_), Ok(agent)) => assert_eq!(cluster.effective_agent("nav"), Some(agent), "{tag}"),
            other => panic!("{tag}: {other:?}"),
        }
    }
    // What a hook has written keeps the config item, too.
    let untagged = "{desiredState: {workloads: {nav: {}}}}";
    cluster.send_request(
        commander,
        "tags",
        update(untagged, &["desiredState.workloads.nav.tags"]),
    );
    let mut plan = cluster.asked().unwrap();
    Arc::make_mut(&mut plan.added[0].workload)
        .tags
        .insert("modes".to_owned(), "park".to_owned());
    cluster.answer(Ok(Some(plan)));
    let error = cluster
        .update("{desiredState: {}}", &["desiredState.configs.mode"])
        .unwrap_err();
    assert!(
        error.contains("Workload 'nav' has the tag 'modes'"),
        "{error}"
    );
}

// ------------------------------------------------------------------- failures

/// A workload in `drive` whose failure leads to `limp`, and one in both.
fn essential(policy: &str) -> String {
    format!(
        "
apiVersion: v1
configs: {{mode: drive}}
workloads:
  brake: {{agent: A, runtime: podman, runtimeConfig: x, restartPolicy: {policy}, tags: {{modes: drive limp, essential: 'true'}}}}
  nav: {{agent: A, runtime: podman, runtimeConfig: x, tags: {{modes: drive, essential: 'true'}}}}
  radio: {{agent: A, runtime: podman, runtimeConfig: x, tags: {{modes: drive, essential: 'false'}}}}
"
    )
}

fn report(cluster: &mut Cluster, agent: PeerId, reports: &[(&str, Phase, &str)]) {
    let state = |(name, phase, info): &(&str, Phase, &str)| {
        WorkloadState::new(
            instance(name, "A"),
            ExecutionState::from_text(*phase, *info),
        )
    };
    cluster.send(
        agent,
        ToServer::WorkloadStates(reports.iter().map(state).collect()),
    );
}

// [utest->swdd~server-modes-failure~1]
#[test]
fn only_final_failures_of_essential_workloads_change_the_mode() {
    use Phase::*;
    let mut rows = vec![
        ("brake", "NEVER", FailedExecFailed, "Exit code: '1'", true),
        (
            "brake",
            "ON_FAILURE",
            FailedExecFailed,
            "Exit code: '1'",
            false,
        ),
        ("brake", "ALWAYS", FailedExecFailed, "Exit code: '1'", false),
        (
            "brake",
            "ALWAYS",
            FailedExecFailed,
            "No more restarts: Exit code: '1'",
            true,
        ),
        (
            "brake",
            "ALWAYS",
            FailedExecFailed,
            "alive: No more restarts: ",
            false,
        ),
        ("brake", "ALWAYS", FailedLost, "", true),
        (
            "brake",
            "ALWAYS",
            PendingStartingFailed,
            "No more retries: x",
            true,
        ),
        ("radio", "NEVER", FailedLost, "", false),
    ];
    let finally = [FailedExecFailed, FailedLost, PendingStartingFailed];
    let others = Phase::ALL
        .iter()
        .map(|(phase, ..)| *phase)
        .filter(|phase| !finally.contains(phase));
    rows.extend(others.map(|phase| ("brake", "NEVER", phase, "No more restarts: ", false)));
    for (workload, policy, phase, info, switches) in rows {
        let mut cluster = Cluster::started_with(Some("limp"), &essential(policy));
        let agent = cluster.settled_agent("A");
        report(&mut cluster, agent, &[(workload, phase, info)]);
        let expected = if switches { "limp" } else { "drive" };
        assert_eq!(
            cluster.mode(),
            expected,
            "{workload} {policy} {phase} {info}"
        );
    }
}

#[test]
fn switch_by_a_failure_is_stored_sent_and_explained() {
    let mut cluster = Cluster::started_with(Some("limp"), &essential("NEVER"));
    let (agent, commander) = (cluster.settled_agent("A"), cluster.commander());
    cluster.request(commander, read(&["desiredState.configs"], true));
    report(
        &mut cluster,
        agent,
        &[("brake", Phase::FailedExecFailed, "Exit code: '1'")],
    );
    let cause = "Essential workload 'brake' failed: 'Failed(ExecFailed): 'Exit code: '1'''; switched from mode \
                 'drive' to 'limp'.";
    assert_eq!(cluster.cause(), Some(cause));
    assert_eq!(events(&cluster, commander), ["~desiredState.configs.mode"]);
    let plan = cluster.one_plan(agent);
    let ended: Vec<&str> = plan
        .deleted
        .iter()
        .map(|deleted| &*deleted.instance.workload)
        .collect();
    assert_eq!((ended, plan.added.len()), (vec!["nav", "radio"], 0));
    let other = "{desiredState: {configs: {other: x}}}";
    cluster
        .update(other, &["desiredState.configs.other"])
        .unwrap();
    assert_eq!(cluster.cause(), Some(cause));
    cluster.switch("limp").unwrap();
    assert_eq!(
        cluster.cause(),
        None,
        "written by a client, although it is the same"
    );
    cluster.switch("drive").unwrap();
    let text = cluster.server.numbers();
    for line in [
        r#"ankaios_server_mode{mode="drive"} 1"#,
        r#"ankaios_server_mode_switches_total{cause="client"} 1"#,
        r#"ankaios_server_mode_switches_total{cause="failure"} 1"#,
    ] {
        assert!(text.lines().any(|one| one == line), "{line}:\n{text}");
    }
}

#[test]
fn failure_without_a_mode_for_failures_changes_nothing() {
    let mut cluster = Cluster::started_with(None, &essential("NEVER"));
    let agent = cluster.settled_agent("A");
    report(&mut cluster, agent, &[("brake", Phase::FailedLost, "")]);
    assert_eq!(cluster.mode(), "drive");
    let manifest = "apiVersion: v1\nworkloads: {brake: {agent: A, runtime: podman, runtimeConfig: x, tags: \
                    {essential: 'true'}}}";
    let mut cluster = Cluster::started_with(Some("limp"), manifest);
    let agent = cluster.settled_agent("A");
    report(&mut cluster, agent, &[("brake", Phase::FailedLost, "")]);
    assert_eq!(cluster.mode(), "");
}

#[test]
fn a_failure_counts_once_until_the_workload_has_recovered() {
    let mut cluster = Cluster::started_with(Some("limp"), &essential("NEVER"));
    let agent = cluster.settled_agent("A");
    let failed = [("brake", Phase::FailedLost, "")];
    report(&mut cluster, agent, &failed);
    assert_eq!(cluster.mode(), "limp");
    cluster.switch("drive").unwrap();
    cluster.close(agent);
    let agent = cluster.settled_agent("A");
    report(&mut cluster, agent, &failed);
    assert_eq!(
        cluster.mode(),
        "drive",
        "it was known before the client switched"
    );
    report(&mut cluster, agent, &[("brake", Phase::Running, "")]);
    report(&mut cluster, agent, &failed);
    assert_eq!(cluster.mode(), "limp");
}

#[test]
fn a_workload_that_enters_the_mode_again_may_fail_again() {
    let mut cluster = Cluster::started_with(Some("limp"), &essential("NEVER"));
    let agent = cluster.settled_agent("A");
    let failed = [("nav", Phase::FailedLost, "")];
    for _ in 0..2 {
        report(&mut cluster, agent, &failed);
        assert_eq!(cluster.mode(), "limp");
        report(&mut cluster, agent, &failed); // It is outside now.
        cluster.switch("drive").unwrap();
    }
}

#[test]
fn failure_in_the_failure_mode_or_outside_switches_nothing() {
    let manifest = essential("NEVER").replace("mode: drive", "mode: limp");
    let mut cluster = Cluster::started_with(Some("limp"), &manifest);
    let agent = cluster.settled_agent("A");
    report(
        &mut cluster,
        agent,
        &[
            ("brake", Phase::FailedLost, ""),
            ("nav", Phase::FailedLost, ""),
        ],
    );
    assert_eq!((cluster.mode().as_str(), cluster.cause()), ("limp", None));
    // Two in one report: one switch, to which the first of them led.
    let mut cluster = Cluster::started_with(Some("limp"), &essential("NEVER"));
    let agent = cluster.settled_agent("A");
    report(
        &mut cluster,
        agent,
        &[
            ("nav", Phase::FailedLost, ""),
            ("brake", Phase::FailedLost, ""),
        ],
    );
    assert!(
        cluster.cause().unwrap().contains("'nav'"),
        "{:?}",
        cluster.cause()
    );
}

#[test]
fn updates_at_hooks_do_not_undo_the_switch_of_a_failure() {
    let (mut cluster, agent) = hooked();
    let commanders = [
        cluster.commander(),
        cluster.commander(),
        cluster.commander(),
    ];
    let both = "{desiredState: {configs: {mode: drive}, workloads: {nav: {runtimeConfig: y}}}}";
    let masks = [
        "desiredState.configs.mode",
        "desiredState.workloads.nav.runtimeConfig",
    ];
    cluster.send_request(commanders[0], "u", update(both, &masks));
    let item = |mode: &str| format!("{{desiredState: {{configs: {{mode: {mode}}}}}}}");
    cluster.send_request(
        commanders[1],
        "u",
        update(&item("flash"), &["desiredState.configs.mode"]),
    );
    report(&mut cluster, agent, &[("base", Phase::FailedLost, "")]);
    assert_eq!(cluster.mode(), "limp", "at once");
    let cause = cluster.cause().unwrap().to_owned();
    cluster.send_request(
        commanders[2],
        "u",
        update(&item("drive"), &["desiredState.configs.mode"]),
    );
    for _ in ["before the switch", "after it"] {
        cluster.asked().unwrap();
        cluster.answer(Ok(None));
    }
    // All three have their responses by now, in order; the last one came after the failure.
    cluster.server.serve_all_waiting();
    for commander in commanders {
        assert_eq!(cluster.responses(commander).len(), 1);
    }
    assert_eq!((cluster.mode().as_str(), cluster.cause()), ("drive", None));
    assert!(cause.contains("'base'"));
    // The same without the third.
    cluster.report(agent, &[(&instance("base", "A"), Phase::Running)]);
    cluster.send_request(
        commanders[0],
        "u",
        update(&both.replace(": y", ": z"), &masks),
    );
    cluster.send_request(
        commanders[1],
        "u",
        update(&item("flash"), &["desiredState.configs.mode"]),
    );
    report(&mut cluster, agent, &[("base", Phase::FailedLost, "")]);
    for _ in ["before the switch", "after it"] {
        cluster.asked().unwrap();
        cluster.answer(Ok(None));
    }
    cluster.server.serve_all_waiting();
    assert_eq!(cluster.mode(), "limp");
    assert!(
        cluster
            .cause()
            .is_some_and(|cause| cause.contains("'base'"))
    );
    cluster.switch("park").unwrap();
    assert_eq!(cluster.mode(), "park");
}

#[test]
fn mode_that_no_workload_names_is_warned_of_once_it_is_current() {
    let mut cluster = Cluster::started_with(None, MANIFEST);
    let warns = |cluster: &mut Cluster, mode: &str| {
        let lines = lines_of(|| drop(cluster.switch(mode).unwrap()));
        let switched = format!("to '{mode}'.");
        assert!(
            lines.iter().any(|line| line.ends_with(&switched)),
            "{lines:?}"
        );
        lines
            .iter()
            .any(|line| line.starts_with("No workload names mode"))
    };
    assert!(warns(&mut cluster, "unnamed"));
    assert!(!warns(&mut cluster, "drive"));
}

#[test]
fn essential_workload_without_a_failure_has_none_noted() {
    let mut cluster = Cluster::started_with(Some("limp"), &essential("NEVER"));
    let agent = cluster.settled_agent("A");
    report(&mut cluster, agent, &[("nav", Phase::Running, "")]);
    let updates = &cluster.server.updates;
    assert!(updates.noted_failure(&"nav".into()).is_none());
}
