//! The mask algorithm of updates.

use super::*;
use ankaios_model::refusal::ErrorResponse;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a:
    agent: A
    runtime: podman
    runtimeConfig: x
    restartPolicy: ALWAYS
    tags: {t0: '0'}
    files: [{mountPoint: /a, data: d}]
  b: {agent: A, runtime: podman, runtimeConfig: y}
configs: {k: v}
";

/// One row: new state, masks, and either what a read of the desired state contains afterwards or
/// the error.
struct Row {
    new_state: &'static str,
    masks: &'static [&'static str],
    outcome: Result<&'static str, &'static str>,
}

fn row(
    masks: &'static [&'static str],
    new_state: &'static str,
    outcome: Result<&'static str, &'static str>,
) -> Row {
    Row {
        new_state,
        masks,
        outcome,
    }
}

const UNCHANGED: &str = r#"{"desiredState":{"apiVersion":"v1","configs":{"k":"v"},"workloads":{"a":{"agent":"A","files":[{"data":"d","mountPoint":"/a"}],"restartPolicy":"ALWAYS","runtime":"podman","runtimeConfig":"x","tags":{"t0":"0"}},"b":{"agent":"A","restartPolicy":"NEVER","runtime":"podman","runtimeConfig":"y"}}}}"#;

fn check(rows: &[Row]) {
    for Row {
        new_state,
        masks,
        outcome,
    } in rows
    {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        assert_eq!(cluster.read(&["desiredState"]), UNCHANGED);
        let result = cluster.update(new_state, masks);
        let after = cluster.read(&["desiredState"]);
        match (outcome, result) {
            (Ok(part), Ok(_)) => assert!(after.contains(part), "{masks:?}: {after}"),
            (Err(text), Err(error)) => {
                assert_eq!(error, *text, "{masks:?}");
                assert_eq!(
                    after, UNCHANGED,
                    "{masks:?}: a refused update changes nothing"
                );
            }
            (_, result) => panic!("{masks:?}: {result:?}"),
        }
    }
}

// [utest->swdd~update-desired-state-with-update-mask~1]
#[test]
fn masks_about_tags_and_fields() {
    let tags = "{desiredState: {apiVersion: v1, workloads: {a: {tags: {t1: '1'}}}}}";
    let no_tags = "{desiredState: {apiVersion: v1, workloads: {a: {tags: {}}}}}";
    let empty = "{desiredState: {apiVersion: v1, workloads: {}}}";
    check(&[
        row(
            &["desiredState.workloads.a.tags.t1"],
            tags,
            Ok(r#""tags":{"t0":"0","t1":"1"}"#),
        ),
        row(
            &["desiredState.workloads.a.tags"],
            tags,
            Ok(r#""tags":{"t1":"1"}"#),
        ),
        row(
            &["desiredState.workloads.a.tags"],
            empty,
            Ok(r#""runtimeConfig":"x"},"b""#),
        ),
        row(
            &["desiredState.workloads.a.tags"],
            no_tags,
            Ok(r#""runtimeConfig":"x"},"b""#),
        ),
        row(
            &["desiredState.workloads.a.tags.t0"],
            empty,
            Ok(r#""runtimeConfig":"x"},"b""#),
        ),
        row(&["desiredState.workloads.a.tags.zz"], empty, Ok(UNCHANGED)),
        row(&["desiredState.workloads.b.tags.t1"], empty, Ok(UNCHANGED)),
        row(
            &["desiredState.workloads.a.files"],
            empty,
            Ok(r#"{"a":{"agent":"A","restartPolicy""#),
        ),
        row(
            &["desiredState.workloads.a.restartPolicy"],
            empty,
            Ok(r#""restartPolicy":"NEVER","runtime":"podman","runtimeConfig":"x""#),
        ),
        row(
            &["desiredState.workloads.a.agent"],
            empty,
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'missing field `agent`'''",
            ),
        ),
        row(
            &["desiredState.workloads.a.files.0"],
            empty,
            Err("Update rejected: 'Could not find field desiredState.workloads.a.files.0'"),
        ),
        row(
            &["desiredState.workloads.a.runtime.x"],
            empty,
            Err("Update rejected: 'Could not find field desiredState.workloads.a.runtime.x'"),
        ),
    ]);
}

// [utest->swdd~update-desired-state-with-update-mask~1]
#[test]
fn masks_about_workloads_that_exist_or_not() {
    let empty = "{desiredState: {apiVersion: v1, workloads: {}}}";
    let only_agent = "{desiredState: {apiVersion: v1, workloads: {n: {agent: A}}}}";
    let whole = "{desiredState: {apiVersion: v1, workloads: {n: {agent: A, runtime: podman, runtimeConfig: ' z '}}}}";
    check(&[
        row(&["desiredState.workloads.zz"], empty, Ok(UNCHANGED)),
        row(
            &["desiredState.workloads.zz.agent"],
            empty,
            Err("Update rejected: 'Could not find field desiredState.workloads.zz.agent'"),
        ),
        row(
            &["desiredState.workloads.n.agent"],
            only_agent,
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'missing field `runtime`'''",
            ),
        ),
        row(
            &["desiredState.workloads.n"],
            whole,
            Ok(
                r#""n":{"agent":"A","restartPolicy":"NEVER","runtime":"podman","runtimeConfig":"z"}"#,
            ),
        ),
        row(
            &["desiredState.workloads.a"],
            empty,
            Ok(r#""workloads":{"b":"#),
        ),
        row(
            &["desiredState.workloads"],
            whole,
            Ok(r#""configs":{"k":"v"},"workloads":{"n":"#),
        ),
        row(
            &["desiredState.workloads", "desiredState.workloads.n"],
            empty,
            Ok(r#""configs":{"k":"v"},"workloads":{}"#),
        ),
        row(
            &["desiredState.workloads.a", "desiredState.workloads.n"],
            whole,
            Ok(
                r#""workloads":{"b":{"agent":"A","restartPolicy":"NEVER","runtime":"podman","runtimeConfig":"y"},"n":"#,
            ),
        ),
    ]);
}

#[test]
fn masks_about_the_whole_state_the_version_and_configs() {
    let empty = "{desiredState: {apiVersion: v1, workloads: {}}}";
    let version = "{desiredState: {apiVersion: v0.1}}";
    let no_version = "{desiredState: {apiVersion: '', workloads: {}}}";
    let configs = "{desiredState: {apiVersion: v1, configs: {k: [x], n: {m: o}}}}";
    check(&[
        row(
            &["desiredState.apiVersion"],
            version,
            Ok(r#""apiVersion":"v0.1","configs":{"k":"v"}"#),
        ),
        row(
            &["desiredState"],
            "{agents: {}}",
            Ok(r#"{"desiredState":{"apiVersion":"v1","workloads":{}}}"#),
        ),
        row(
            &["desiredState"],
            empty,
            Ok(r#"{"desiredState":{"apiVersion":"v1","workloads":{}}}"#),
        ),
        row(
            &["desiredState"],
            no_version,
            Err("Unsupported API version. Received '', expected 'v1'"),
        ),
        row(
            &["desiredState.configs.k"],
            configs,
            Ok(r#""configs":{"k":["x"]},"#),
        ),
        row(
            &["desiredState.configs.n.m"],
            configs,
            Ok(r#""configs":{"k":"v","n":{"m":"o"}},"#),
        ),
        row(
            &["desiredState.configs"],
            configs,
            Ok(r#""configs":{"k":["x"],"n":{"m":"o"}},"#),
        ),
        row(
            &["desiredState.configs.k"],
            empty,
            Ok(r#"{"desiredState":{"apiVersion":"v1","workloads""#),
        ),
        row(
            &["desiredState.configs.n.m"],
            empty,
            Err("Update rejected: 'Could not find field desiredState.configs.n.m'"),
        ),
        row(
            &["desiredState.configs.k.deeper"],
            "{desiredState: {apiVersion: v1, configs: {k: {deeper: x}}}}",
            Err("Update rejected: 'Could not find field desiredState.configs.k.deeper'"),
        ),
    ]);
}

#[test]
fn masks_that_mean_nothing_do_nothing_or_are_refused() {
    let empty = "{desiredState: {apiVersion: v1, workloads: {}}}";
    check(&[
        row(&["foo"], empty, Ok(UNCHANGED)),
        row(&["desiredState.workloads."], empty, Ok(UNCHANGED)),
        row(&["desiredState.*"], empty, Ok(UNCHANGED)),
        row(&["*"], empty, Ok(UNCHANGED)),
        row(&["effectiveState"], empty, Ok(UNCHANGED)),
        row(&["workloadStates"], empty, Ok(UNCHANGED)),
        row(&["agents"], empty, Ok(UNCHANGED)),
        row(&["agents.zz"], empty, Ok(UNCHANGED)),
        row(
            &["foo.bar"],
            empty,
            Err("Update rejected: 'Could not find field foo.bar'"),
        ),
        row(
            &[""],
            empty,
            Err("Update rejected: 'Could not find field '"),
        ),
        row(
            &["effectiveState.workloads.n.agent"],
            empty,
            Err("Update rejected: 'Could not find field effectiveState.workloads.n.agent'"),
        ),
        row(
            &["workloadStates.a.b.c"],
            empty,
            Err("Update rejected: 'Could not find field workloadStates.a.b.c'"),
        ),
    ]);
}

#[test]
fn update_without_masks_replaces_the_desired_state_only() {
    let whole = "{desiredState: {apiVersion: v1, workloads: {n: {agent: A, runtime: podman, runtimeConfig: z}}}}";
    let read_only = "{desiredState: {apiVersion: v1, workloads: {}}, workloadStates: {x: {}}, effectiveState: {apiVersion: v9}}";
    let incomplete =
        "{desiredState: {apiVersion: v1, workloads: {n: {runtime: podman, runtimeConfig: z}}}}";
    check(&[
        row(
            &[],
            whole,
            Ok(r#"{"desiredState":{"apiVersion":"v1","workloads":{"n":{"agent":"A","#),
        ),
        row(
            &[],
            read_only,
            Ok(r#"{"desiredState":{"apiVersion":"v1","workloads":{}}}"#),
        ),
        row(
            &[],
            incomplete,
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'Cannot convert field 'desired_state' to spec object: 'Cannot convert field 'workloads' to spec object: 'Cannot convert field 'n' to spec object: 'Missing field 'agent''.'.'.'''",
            ),
        ),
        row(
            &[],
            "{desiredState: {apiVersion: v1}}",
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'Cannot convert field 'desired_state' to spec object: 'Missing field 'workloads''.'''",
            ),
        ),
        row(
            &[],
            "{agents: {}}",
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'Missing field 'desired_state''''",
            ),
        ),
        row(
            &[],
            "{desiredState: {apiVersion: v1, workloads: {}}, agents: {A: {}}}",
            Err(
                "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'Cannot convert field 'agents' to spec object: 'Cannot convert field 'A' to spec object: 'Missing field 'tags''.'.'''",
            ),
        ),
        row(
            &[],
            "{desiredState: {apiVersion: v2, workloads: {}}}",
            Err("Unsupported API version. Received 'v2', expected 'v1'"),
        ),
    ]);
}

#[test]
fn a_new_state_that_cannot_be_read_is_refused() {
    for (masks, expected) in [
        (
            vec!["desiredState".to_owned()],
            "Update rejected: 'Failed to parse new state, 'unknown enumeration value 9''",
        ),
        (
            vec![],
            "Update rejected: 'Resulting State is invalid, reason: 'Could not parse into CompleteState: 'unknown enumeration value 9'''",
        ),
    ] {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let commander = cluster.commander();
        let new_state = Some(Err("unknown enumeration value 9".to_owned()));
        let answer = cluster.request(
            commander,
            RequestContent::UpdateState(UpdateState {
                new_state,
                masks,
                ..Default::default()
            }),
        );
        assert_eq!(answer, ResponseContent::Error(expected.into()));
    }
}

#[test]
fn tags_of_connected_agents_are_set_and_removed_one_by_one() {
    let both = "{agents: {A: {tags: {k: v, l: w}}, B: {tags: {k: v}}}}";
    for (new_state, masks, expected) in [
        (both, vec!["agents.A.tags.k"], r#"{"old":"1","k":"v"}"#),
        (both, vec!["agents.A.tags"], r#"{"k":"v","l":"w"}"#),
        (both, vec!["agents.A"], r#"{"k":"v","l":"w"}"#),
        (both, vec!["agents"], r#"{"k":"v","l":"w"}"#),
        ("{}", vec!["agents.A.tags.old"], "{}"),
        ("{}", vec!["agents.A.tags.zz"], r#"{"old":"1"}"#),
        ("{}", vec!["agents.A.tags"], "{}"),
        ("{}", vec!["agents.A"], r#"{"old":"1"}"#),
        ("{}", vec!["agents"], r#"{"old":"1"}"#),
        (
            "{agents: {A: {status: {cpuUsage: 1}}}}",
            vec!["agents.A.status"],
            r#"{"old":"1"}"#,
        ),
        (
            "{desiredState: {apiVersion: v1, workloads: {}}, agents: {A: {tags: {k: v}}}}",
            vec![],
            r#"{"k":"v"}"#,
        ),
        (
            "{desiredState: {apiVersion: v1, workloads: {}}}",
            vec![],
            r#"{"old":"1"}"#,
        ),
    ] {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        cluster.open(PeerHello::Agent(ankaios_model::messages::AgentHello {
            agent: "A".into(),
            tags: [("old".into(), "1".into())].into(),
            ..ankaios_model::messages::AgentHello::default()
        }));
        cluster.update(new_state, &masks).unwrap();
        let tags = &cluster
            .server
            .sessions
            .agents()
            .get("A")
            .unwrap()
            .attributes
            .tags;
        let expected: BTreeMap<String, String> = serde_json::from_str(expected).unwrap();
        assert_eq!(*tags, expected, "{masks:?} of {new_state}");
        assert!(!cluster.server.sessions.agents().contains_key("B"));
    }
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let result = cluster.update("{}", &["agents.A.tags.k"]);
    assert_eq!(
        result,
        Err("Update rejected: 'Could not find field agents.A.tags.k'".to_owned())
    );
}

#[test]
fn runtime_configs_are_stripped_by_updates_and_manifests() {
    let config = "\"\\n \\u00a0 image: x\\n\\n\\u2028\"";
    let workload = format!("{{agent: A, runtime: podman, runtimeConfig: {config}}}");
    let whole = format!("{{desiredState: {{apiVersion: v1, workloads: {{n: {workload}}}}}}}");
    let stripped = InstanceName::new("n", "image: x", "A").to_string();
    for masks in [
        vec![],
        vec!["desiredState"],
        vec!["desiredState.workloads"],
        vec!["desiredState.workloads.n"],
        vec![
            "desiredState.workloads.n.agent",
            "desiredState.workloads.n.runtime",
            "desiredState.workloads.n.runtimeConfig",
        ],
    ] {
        let mut cluster = Cluster::default();
        assert_eq!(
            cluster.update(&whole, &masks),
            Ok((vec![stripped.clone()], vec![])),
            "{masks:?}"
        );
        let read = cluster.read(&["*.workloads.n.runtimeConfig"]);
        assert_eq!(
            read.matches(r#""runtimeConfig":"image: x""#).count(),
            2,
            "{masks:?}: {read}"
        );
        // So a later update of another field has nothing to strip, and restarts nothing.
        let tag = "{desiredState: {apiVersion: v1, workloads: {n: {tags: {k: v}}}}}";
        let (added, deleted) = cluster
            .update(tag, &["desiredState.workloads.n.tags"])
            .unwrap();
        assert_eq!(
            (&added, &deleted),
            (&vec![stripped.clone()], &vec![stripped.clone()]),
            "{masks:?}"
        );
        assert_eq!(
            cluster.update(&whole, &["desiredState.workloads.n.runtimeConfig"]),
            Ok((vec![], vec![]))
        );
    }
    let mut cluster =
        Cluster::with_manifest(&format!("{{apiVersion: v1, workloads: {{n: {workload}}}}}"));
    assert_eq!(
        cluster.phase(&InstanceName::new("n", "image: x", "A")),
        Some(Phase::PendingInitial)
    );
    assert!(
        cluster
            .read(&["desiredState"])
            .contains(r#""runtimeConfig":"image: x""#)
    );
}

#[test]
fn unchanged_workloads_stay_the_same_objects() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let before = cluster.server.updates.workloads().desired.workloads["b"].clone();
    let new_state = "{desiredState: {apiVersion: v1, workloads: {a: {runtimeConfig: new}}}}";
    cluster
        .update(new_state, &["desiredState.workloads.a.runtimeConfig"])
        .unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &before,
        &cluster.server.updates.workloads().desired.workloads["b"]
    ));
    // The same holds when the whole state is sent again, and for the plans of agents.
    let whole = "{desiredState: {apiVersion: v1, workloads: {b: {agent: A, runtime: podman, runtimeConfig: y}}}}";
    let (added, deleted) = cluster.update(whole, &[]).unwrap();
    assert_eq!((added.len(), deleted.len()), (0, 1));
    assert!(std::sync::Arc::ptr_eq(
        &before,
        &cluster.server.updates.workloads().desired.workloads["b"]
    ));
    assert!(std::sync::Arc::ptr_eq(
        &before,
        &cluster.server.updates.workloads().effective["b"].workload
    ));
}

#[test]
fn masks_that_say_the_same_again_cost_nothing_and_mean_the_same() {
    let workloads: String = (0..500)
        .map(|number| format!("    w{number}: {{agent: A, runtime: podman, runtimeConfig: x}}\n"))
        .collect();
    let state = format!("desiredState:\n  apiVersion: v1\n  workloads:\n{workloads}");
    let mut cluster = Cluster::default();
    let masks = vec!["desiredState"; 20_000];
    let (added, _) = cluster.update(&state, &masks).unwrap();
    assert_eq!(added.len(), 500);
    // A missing entry selects nothing the second time as well as the first.
    let mut with_absent = vec!["desiredState.workloads.w1"; 3];
    with_absent.extend(["desiredState.workloads", "desiredState.workloads.w1.tags"]);
    let (_, deleted) = cluster
        .update("{desiredState: {apiVersion: v1}}", &with_absent[..3])
        .unwrap();
    assert_eq!(deleted.len(), 1);
    let error = cluster
        .update("{desiredState: {apiVersion: v1}}", &with_absent)
        .unwrap_err();
    assert_eq!(
        error,
        "Update rejected: 'Could not find field desiredState.workloads.w1.tags'"
    );
}

#[test]
fn updates_with_too_many_masks_are_refused_before_decoding() {
    let mut cluster = Cluster::default();
    let commander = cluster.commander();
    let deep = vec!["x"; 200].join(".");
    let masks: Vec<String> = (0..1_300)
        .map(|number| format!("{number}.{deep}"))
        .collect();
    let texts: Vec<&str> = masks.iter().map(String::as_str).collect();
    let answer = cluster.request(commander, update("{}", &texts));
    assert!(
        matches!(&answer, ResponseContent::Error(ErrorResponse { text, .. }) if text.contains("field masks")),
        "{answer:?}"
    );
    // Of reads fewer are decoded.
    let few = RequestContent::CompleteState(ReadState {
        masks: masks[..1_000].to_vec(),
        subscribe: false,
    });
    assert!(matches!(
        cluster.request(commander, few),
        ResponseContent::CompleteState { .. }
    ));
}
