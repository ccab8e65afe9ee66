//! What a repeated command waits for and how it ends, against a scripted server.

use super::*;
use crate::error::CliError;
use crate::session::CliUpdate;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, play};
use ankaios_model::complete_state::execution_state_node;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use std::time::Duration;

const FAIL_ON_ERROR: Waiting = Waiting {
    no_wait: false,
    limit: None,
    fail_on_error: true,
};
const LIMITED: Waiting = Waiting {
    no_wait: false,
    limit: Some(Duration::from_secs(10)),
    fail_on_error: true,
};

/// The desired instance of a workload on agent `A`.
fn desired(name: &str) -> InstanceName {
    InstanceName::new(name, "image: x", "A")
}

fn older(name: &str) -> InstanceName {
    InstanceName::new(name, "image: old", "A")
}

/// A complete state with these instances; `workloads` are desired.
fn cluster(agents: &[&str], workloads: &[&str], instances: &[(InstanceName, Phase)]) -> Node {
    let mut states = Node::empty();
    for (name, phase) in instances {
        let path = [&name.agent, &name.workload, &name.id];
        let place = path.iter().fold(&mut states, |at, key| {
            at.as_map_mut().unwrap().child(key.to_string())
        });
        *place = execution_state_node(&ExecutionState::with_info(*phase, "why"));
    }
    let fields = [
        ("agent", "A"),
        ("runtime", "podman"),
        ("runtimeConfig", "image: x"),
        ("restartPolicy", "NEVER"),
    ];
    let workload = Node::map(fields.map(|(key, text)| (key, Node::text(text))));
    let workloads = Node::map(workloads.iter().map(|name| (*name, workload.clone())));
    let part = Node::map([("workloads", workloads)]);
    Node::map([
        ("workloadStates", states),
        (
            "agents",
            Node::map(agents.iter().map(|agent| (*agent, Node::empty()))),
        ),
        ("desiredState", part.clone()),
        ("effectiveState", part),
    ])
}

fn web(phase: Phase) -> Step {
    Step::State(cluster(&["A"], &["web"], &[(desired("web"), phase)]))
}

fn report(instance: InstanceName, phase: Phase) -> Step {
    Step::Broadcast(vec![WorkloadState::new(
        instance,
        ExecutionState::with_info(phase, "why"),
    )])
}

/// Sends an update of `web` that changes nothing.
fn repeat(
    update: CliUpdate,
    waiting: Waiting,
    steps: impl IntoIterator<Item = Step>,
) -> Played<ExitCode> {
    let update = CliUpdate {
        masks: vec!["desiredState.workloads.web".to_owned()],
        ..update
    };
    play(None, steps, |link, output| {
        Context {
            link,
            output,
            waiting,
            ignore_modes: false,
        }
        .update_and_wait(update)
    })
}

fn unchanged(
    waiting: Waiting,
    now: Phase,
    steps: impl IntoIterator<Item = Step>,
) -> Played<ExitCode> {
    let begun = [web(now), Step::Accept(accepted(&[], &[])), web(now)];
    repeat(
        CliUpdate::default(),
        waiting,
        begun.into_iter().chain(steps),
    )
}

// [utest->swdd~cli-repeated-command-has-the-same-result~1]
#[test]
fn unchanged_failed_workload_ends_with_3() {
    for phase in [
        Phase::FailedExecFailed,
        Phase::FailedLost,
        Phase::PendingStartingFailed,
    ] {
        let ran = unchanged(FAIL_ON_ERROR, phase, []);
        assert_eq!(ran.result.unwrap(), ExitCode::WorkloadFailed, "{phase}");
        assert_eq!(ran.out, "Apply successful. No workloads updated.\n");
        let expected = format!(
            "warn: 1 workload did not reach the desired state:\nWORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE{}",
            " "
        );
        assert!(
            ran.err.starts_with(&expected) && ran.err.contains("why"),
            "{}",
            ran.err
        );
        assert!(
            ran.err
                .contains("\nerror: the update was accepted, but 1 workload failed\n"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn unchanged_running_workload_ends_at_once_with_0() {
    for phase in [Phase::Running, Phase::Succeeded] {
        let ran = unchanged(LIMITED, phase, []);
        assert_eq!(
            (ran.result.unwrap(), ran.err.as_str()),
            (ExitCode::Success, "")
        );
        assert_eq!(ran.out, "Apply successful. No workloads updated.\n");
    }
}

#[test]
fn unchanged_workload_that_is_not_ready_is_waited_for() {
    let ran = unchanged(
        LIMITED,
        Phase::PendingStarting,
        [report(desired("web"), Phase::Running)],
    );
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    let begin = "Apply successful. No workloads updated.\nWaiting for workload(s) to reach desired states (press Ctrl+C";
    assert!(ran.out.starts_with(begin), "{}", ran.out);
    let ran = unchanged(
        LIMITED,
        Phase::PendingStarting,
        [report(desired("web"), Phase::FailedExecFailed)],
    );
    assert_eq!(ran.result.unwrap(), ExitCode::WorkloadFailed);
    let ran = unchanged(
        LIMITED,
        Phase::PendingStarting,
        [Step::Silence(Duration::from_secs(11))],
    );
    assert_eq!(ran.result.unwrap(), ExitCode::GaveUp);
    assert!(
        ran.err
            .contains("error: gave up waiting after '10s' for 1 workload\n"),
        "{}",
        ran.err
    );
}

#[test]
fn unchanged_workload_is_not_judged_without_the_options() {
    let steps = [
        web(Phase::FailedExecFailed),
        Step::Accept(accepted(&[], &[])),
    ];
    let ran = repeat(CliUpdate::default(), Waiting::default(), steps);
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(ran.server.is_done());
}

#[test]
fn older_instance_is_waited_for_and_not_judged() {
    let both = [
        (older("web"), Phase::FailedExecFailed),
        (desired("web"), Phase::PendingInitial),
    ];
    let now = || Step::State(cluster(&["A"], &["web"], &both));
    let end = [
        report(older("web"), Phase::Removed),
        report(desired("web"), Phase::Running),
    ];
    let steps = [now(), Step::Accept(accepted(&[], &[])), now()]
        .into_iter()
        .chain(end);
    let ran = repeat(CliUpdate::default(), LIMITED, steps);
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(ran.server.is_done());
}

#[test]
fn repeated_deletion_waits_for_the_end() {
    let now = || {
        Step::State(cluster(
            &["A"],
            &[],
            &[(older("web"), Phase::StoppingRequestedAtRuntime)],
        ))
    };
    let begun = || [now(), Step::Accept(accepted(&[], &[])), now()].into_iter();
    let ran = repeat(
        CliUpdate::default(),
        LIMITED,
        begun().chain([report(older("web"), Phase::Removed)]),
    );
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert!(ran.server.is_done());
    let ran = repeat(
        CliUpdate::default(),
        LIMITED,
        begun().chain([Step::Silence(Duration::from_secs(11))]),
    );
    assert_eq!(ran.result.unwrap(), ExitCode::GaveUp);
}

#[test]
fn workloads_beside_the_changed_ones_are_judged() {
    let accepted = accepted(&["db.2.A"], &[]);
    let mut now = cluster(
        &["A"],
        &["web"],
        &[(desired("web"), Phase::FailedExecFailed)],
    );
    let running = execution_state_node(&ExecutionState::plain(Phase::Running));
    let db = Node::map([("db", Node::map([("1", running)]))]);
    now.at_mut(&["workloadStates", "A"])
        .and_then(Node::as_map_mut)
        .unwrap()
        .extend(
            db.as_map()
                .unwrap()
                .iter()
                .map(|(name, node)| (name.to_owned().into(), node.clone())),
        );
    let now = || Step::State(now.clone());
    let running = Step::Broadcast(vec![crate::tests::reported("db.2.A", Phase::Running, "")]);
    let steps = [now(), Step::Accept(accepted), now(), running, now()];
    let ran = repeat(CliUpdate::default(), FAIL_ON_ERROR, steps);
    assert_eq!(ran.result.unwrap(), ExitCode::WorkloadFailed);
}

/// An update of `web` that the server judges.
fn judged(phase: &str) -> Node {
    let texts =
        [("phase", phase), ("reason", "web: why")].map(|(key, text)| (key, Node::text(text)));
    let mut update = Node::map(texts);
    let names = Node::map([("web", Node::empty())]);
    update.as_map_mut().unwrap().insert("workloads", names);
    update
}

fn with_update(mut state: Node, phase: &str) -> Step {
    state
        .as_map_mut()
        .unwrap()
        .insert("updates", Node::map([("4", judged(phase))]));
    Step::State(state)
}

#[test]
fn open_update_is_followed_to_its_end() {
    for (phase, code) in [
        ("UNDONE", ExitCode::Undone),
        ("STUCK", ExitCode::Failed),
        ("KEPT", ExitCode::WorkloadFailed),
    ] {
        let now = || cluster(&["A"], &["web"], &[(desired("web"), Phase::Running)]);
        let read = |phase| with_update(Node::empty(), phase);
        let begun = [
            with_update(now(), "TRIAL"),
            Step::Accept(accepted(&[], &[])),
            read("TRIAL"),
        ];
        let followed = [with_update(now(), "TRIAL"), read(phase)];
        // It replaced nothing that would have to run again.
        let restored = (phase == "UNDONE").then(|| read(phase));
        let steps = begun.into_iter().chain(followed).chain(restored);
        let ran = repeat(CliUpdate::default(), FAIL_ON_ERROR, steps);
        assert_eq!(ran.result.unwrap(), code, "{phase}: {}", ran.err);
    }
}

#[test]
fn repeated_rollback_evaluates_health_and_cannot_roll_back() {
    let update = || CliUpdate {
        rollback: true,
        ..CliUpdate::default()
    };
    let begun = |phase| {
        [
            Step::State(Node::empty()),
            web(phase),
            Step::Accept(accepted(&[], &[])),
            web(phase),
        ]
    };
    let health = [
        Step::Silence(Duration::from_secs(10)),
        Step::Broadcast(Vec::new()),
    ];
    let ran = repeat(
        update(),
        Waiting::default(),
        begun(Phase::Running).into_iter().chain(health),
    );
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(ran.server.is_done(), "it has to be healthy for 10 s");
    let dies = report(desired("web"), Phase::FailedExecFailed);
    let ran = repeat(
        update(),
        Waiting::default(),
        begun(Phase::Running).into_iter().chain([dies]),
    );
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::WorkloadFailed, 1)
    );
    let expected = "error: the workloads are as the manifests say, but one failed: web: Failed(ExecFailed): 'why'\n";
    assert!(ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn masks_name_workloads_also_by_configs_and_the_mode() {
    let workload = |config: &str, tag: &str| {
        let configs = Node::map([("alias", Node::text(config))]);
        let tags = Node::map([(tag, Node::text("drive"))]);
        Node::map([("configs", configs), ("tags", tags)])
    };
    let workloads = Node::map([
        ("web", workload("port", "x")),
        ("db", workload("disk", "modes")),
    ]);
    let state = Node::map([
        ("desiredState", Node::map([("workloads", workloads)])),
        ("modes", Node::map([("configItem", Node::text("mode"))])),
    ]);
    for (mask, expected) in [
        ("desiredState.workloads.app.agent", &["app"][..]),
        ("desiredState.configs.port", &["web"]),
        ("desiredState.configs.mode", &["db"]),
        ("desiredState.configs.other", &[]),
        ("desiredState.configs", &["db", "web"]),
        ("desiredState", &["db", "web"]),
        ("desiredState.workloads", &["db", "web"]),
        ("agents.A.tags", &[]),
    ] {
        let steps = [Step::State(state.clone())];
        let named = play(None, steps, |link, _| workloads_of(mask, link))
            .result
            .unwrap();
        assert_eq!(Vec::from_iter(named), expected, "{mask}");
    }
}

fn workloads_of(mask: &str, link: &mut dyn ServerLink) -> Result<BTreeSet<String>, CliError> {
    workloads(&[mask.to_owned()], link)
}
