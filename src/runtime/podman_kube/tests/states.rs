//! What the states of containers mean for the workload of their pods.

use super::*;
use crate::container_list;

fn states(containers: &[(&str, &str, i64)]) -> Vec<EngineContainer> {
    let entries: Vec<String> = containers
        .iter()
        .map(|(pod, state, code)| {
            let pid = if *state == "running" { 7 } else { 0 };
            let ended = 100 + code;
            format!(r#"{{"Id":"c","Pod":"{pod}","State":"{state}","ExitCode":{code},"Pid":{pid},"ExitedAt":{ended}}}"#)
        })
        .collect();
    container_list::parse(&entries.concat()).unwrap()
}

// [utest->swdd~podman-kube-state-getter-maps-state~2]
#[test]
fn a_single_container_gives_its_state_to_the_workload() {
    for (state, code, expected) in [
        ("created", 0, "Pending(Starting): 'starting container'"),
        ("configured", 0, "Pending(Starting): 'starting container'"),
        ("initialized", 0, "Pending(Starting): 'starting container'"),
        ("paused", 0, "Failed(Unknown): 'unknown container state'"),
        ("running", 0, "Running(Ok)"),
        ("exited", 0, "Succeeded(Ok)"),
        ("exited", 7, "Failed(ExecFailed): 'Exit code: '7''"),
        ("stopping", 0, "Stopping(Stopping): 'stopping container'"),
        ("stopped", 0, "Stopping(Stopping): 'stopping container'"),
        ("removing", 0, "Stopping(Stopping): 'stopping container'"),
        ("odd", 0, "Failed(Unknown): 'unknown container state'"),
    ] {
        let combined = combined_state(
            &["p".to_owned()],
            &states(&[("p", state, code), ("other", "exited", 9)]),
        );
        assert_eq!(combined.to_string(), expected, "{state} {code}");
    }
}

// [utest->swdd~podman-kube-state-getter-combines-states~2]
#[test]
fn of_all_containers_the_state_that_matters_most_counts() {
    let order = [
        ("exited", 1),
        ("created", 0),
        ("paused", 0),
        ("running", 0),
        ("stopping", 0),
        ("exited", 0),
    ];
    for (index, (state, code)) in order.iter().enumerate() {
        for (lesser, lesser_code) in &order[index..] {
            let containers = states(&[
                ("q", lesser, *lesser_code),
                ("p", state, *code),
                ("q", lesser, *lesser_code),
            ]);
            let expected = pod_container_state(&containers[1]);
            let pods = ["p".to_owned(), "q".to_owned()];
            assert_eq!(
                combined_state(&pods, &containers),
                expected,
                "{state} before {lesser}"
            );
        }
    }
}

// [utest->swdd~podman-kube-state-getter-treats-missing-pods-as-unknown~1]
// [utest->swdd~podman-kube-state-getter-removed-if-no-container~1]
#[test]
fn missing_pods_are_unknown_and_no_pods_at_all_are_lost() {
    let pods = ["p".to_owned(), "q".to_owned()];
    assert_eq!(
        combined_state(&pods, &states(&[("p", "running", 0)])),
        unknown()
    );
    assert_eq!(
        combined_state(&pods, &states(&[("p", "exited", 1)])),
        ExecutionState::exited(1)
    );
    assert_eq!(
        combined_state(&[], &states(&[("p", "running", 0)])),
        ExecutionState::plain(Phase::FailedLost)
    );
}

#[test]
fn pods_have_ended_when_the_last_of_their_containers_has() {
    for (containers, ended_at) in [
        (
            &[
                ("p", "exited", 0),
                ("p", "exited", 3),
                ("other", "exited", 9),
            ][..],
            Some(103),
        ),
        (&[("p", "exited", 0)], Some(100)),
        (&[("p", "exited", 3), ("p", "running", 0)], None),
        (&[("p", "running", 0)], None),
        (&[], None),
    ] {
        let pods = Ok(Some(vec!["p".to_owned()]));
        let instance = InstanceName::with_id("web", "1", "agent_A");
        assert_eq!(
            listed(instance, &pods, &states(containers)).ended_at,
            ended_at,
            "{containers:?}"
        );
    }
}

#[test]
fn listed_pods_name_their_containers_and_the_one_that_failed() {
    let text = r#"{"Id":"a","Pod":"p","State":"exited","ExitCode":0}{"Id":"b","Pod":"p","State":"exited","ExitCode":3}
        {"Id":"x","Pod":"other","State":"exited","ExitCode":3}"#;
    let containers = container_list::parse(text).unwrap();
    let pods_of = |pod: &str, count: usize| {
        let instance = InstanceName::with_id("web", "1", "agent_A");
        listed(
            instance,
            &Ok(Some(vec![pod.to_owned()])),
            &containers[..count],
        )
        .pods
        .unwrap()
    };
    let ids = |names: &[&str]| {
        names
            .iter()
            .map(|name| ContainerId((*name).into()))
            .collect()
    };
    let failed = Some(ContainerId("b".into()));
    assert_eq!(
        pods_of("p", 3),
        ListedPods {
            containers: ids(&["a", "b"]),
            failed
        }
    );
    assert_eq!(
        pods_of("p", 1),
        ListedPods {
            containers: ids(&["a"]),
            failed: None
        }
    );
}
