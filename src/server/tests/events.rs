//! Event subscriptions and their events.

use super::*;
use ankaios_model::messages::AlteredFields;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x}
";

/// Two workloads that may read, the first of them that of [`MANIFEST`].
const ASKING: &str = "
apiVersion: v1
workloads:
  a: &a
    agent: agent_A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read, filterMasks: ['*']}]}
  other: *a
";

fn a() -> InstanceName {
    InstanceName::new("a", "x", "agent_A")
}

fn id(config: &str) -> String {
    ankaios_model::names::hash_id(config)
}

/// The paths with `+`, `~` or `-` before them.
fn signed(altered: &AlteredFields) -> String {
    let signs = [
        ("+", &altered.added),
        ("~", &altered.updated),
        ("-", &altered.removed),
    ];
    let paths = signs
        .into_iter()
        .flat_map(|(sign, paths)| paths.iter().map(move |path| format!("{sign}{path}")));
    paths.collect::<Vec<_>>().join(" ")
}

impl Cluster {
    fn subscribe_as(&mut self, peer: PeerId, id: &str, masks: &[&str]) -> ResponseContent {
        self.send_request(peer, id, read(masks, true));
        match self.take(peer).pop() {
            Some(FromServer::Response(response)) if response.id == id => response.content,
            other => panic!("{other:?}"),
        }
    }

    fn subscribe(&mut self, masks: &[&str]) -> PeerId {
        let peer = self.commander();
        let answer = self.subscribe_as(peer, "events", masks);
        assert!(
            matches!(answer, ResponseContent::CompleteState { altered: None, .. }),
            "{answer:?}"
        );
        peer
    }

    /// The events for `peer` since the last look: paths with `+`, `~` or `-` before them, and the
    /// state.
    fn events(&self, peer: PeerId) -> Vec<(String, String)> {
        let text = |message: FromServer| match message {
            FromServer::Response(Response {
                id,
                content:
                    ResponseContent::CompleteState {
                        state,
                        altered: Some(altered),
                    },
            }) if id == "events" => (signed(&altered), serde_json::to_string(&state).unwrap()),
            other => panic!("{other:?}"),
        };
        self.take(peer).into_iter().map(text).collect()
    }

    fn altered(&self, peer: PeerId) -> Vec<String> {
        self.events(peer)
            .into_iter()
            .map(|(altered, _)| altered)
            .collect()
    }
}

#[test]
fn subscriber_without_masks_gets_the_table_of_the_protocol() {
    let mut cluster = Cluster::default();
    let listener = cluster.subscribe(&[]);
    let agent = cluster.agent("agent_A");
    assert_eq!(cluster.altered(listener), ["+agents.agent_A"]);
    let load = |cpu_usage, free_memory| {
        ToServer::AgentLoad(AgentLoad {
            agent: "agent_A".into(),
            cpu_usage,
            free_memory,
            engine: String::new(),
        })
    };
    cluster.send(agent, load(1, 2));
    assert_eq!(cluster.altered(listener), ["+agents.agent_A.status"]);
    cluster.send(agent, load(2, 2));
    assert_eq!(
        cluster.altered(listener),
        ["~agents.agent_A.status.cpuUsage"]
    );
    cluster.send(agent, load(2, 2));
    assert_eq!(cluster.altered(listener), [] as [&str; 0]);

    let workload = |name: &str, config: &str| {
        format!(
            "{{desiredState: {{apiVersion: v1, workloads: {{{name}: {{agent: agent_A, runtime: podman, runtimeConfig: {config}}}}}}}}}"
        )
    };
    cluster
        .update(&workload("a", "x"), &["desiredState.workloads.a"])
        .unwrap();
    let first = "+desiredState.workloads.a +effectiveState.workloads.a +workloadStates.agent_A";
    assert_eq!(cluster.altered(listener), [first]);
    cluster
        .update(&workload("n", "y"), &["desiredState.workloads.n"])
        .unwrap();
    let second = "+desiredState.workloads.n +effectiveState.workloads.n +workloadStates.agent_A.n";
    assert_eq!(cluster.altered(listener), [second]);

    cluster
        .update(
            &workload("a", "x2"),
            &["desiredState.workloads.a.runtimeConfig"],
        )
        .unwrap();
    let config = format!(
        "+workloadStates.agent_A.a.{} ~desiredState.workloads.a.runtimeConfig ~effectiveState.workloads.a.runtimeConfig",
        id("x2")
    );
    assert_eq!(cluster.altered(listener), [config]);

    let n = InstanceName::new("n", "y", "agent_A");
    let way = format!("workloadStates.agent_A.n.{}", id("y"));
    let starting = WorkloadState::new(n.clone(), ExecutionState::starting_triggered());
    cluster.send(agent, ToServer::WorkloadStates(vec![starting.clone()]));
    assert_eq!(
        cluster.altered(listener),
        [format!("~{way}.additionalInfo ~{way}.subState")]
    );
    cluster.send(agent, ToServer::WorkloadStates(vec![starting]));
    assert_eq!(
        cluster.altered(listener),
        [] as [&str; 0],
        "the same state is reported again"
    );
    cluster.report(agent, &[(&n, Phase::Running)]);
    assert_eq!(
        cluster.altered(listener),
        [format!(
            "~{way}.additionalInfo ~{way}.state ~{way}.subState"
        )]
    );

    cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.workloads.n"],
        )
        .unwrap();
    assert_eq!(
        cluster.altered(listener),
        ["-desiredState.workloads.n -effectiveState.workloads.n"]
    );
    cluster.report(agent, &[(&n, Phase::Removed)]);
    assert_eq!(cluster.altered(listener), ["-workloadStates.agent_A.n"]);

    cluster.report(
        agent,
        &[(&InstanceName::new("a", "x", "agent_A"), Phase::Removed)],
    );
    assert_eq!(
        cluster.altered(listener),
        [format!("-workloadStates.agent_A.a.{}", id("x"))]
    );
    cluster.close(agent);
    let way = format!("workloadStates.agent_A.a.{}", id("x2"));
    assert_eq!(
        cluster.altered(listener),
        [format!("~{way}.state ~{way}.subState -agents.agent_A")]
    );
}

#[test]
fn event_has_new_values_and_only_the_version_of_removed_ones() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let states = cluster.subscribe(&["workloadStates.*.*.*.state"]);
    let workloads = cluster.subscribe(&["desiredState.workloads"]);
    let agents = cluster.subscribe(&["agents"]);
    let agent = cluster.agent("agent_A");
    assert_eq!(
        cluster.events(agents),
        [(
            "+agents.agent_A".to_owned(),
            r#"{"agents":{"agent_A":{}}}"#.to_owned()
        )]
    );
    cluster.report(agent, &[(&a(), Phase::Running)]);
    let state = format!(
        r#"{{"workloadStates":{{"agent_A":{{"a":{{"{}":{{"state":"Running","subState":"Ok"}}}}}}}}}}"#,
        id("x")
    );
    assert_eq!(
        cluster.events(states),
        [(
            format!("~workloadStates.agent_A.a.{}.state", id("x")),
            state
        )]
    );
    cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.workloads.a"],
        )
        .unwrap();
    let gone = (
        "-desiredState.workloads.a".to_owned(),
        r#"{"desiredState":{"apiVersion":"v1"}}"#.to_owned(),
    );
    assert_eq!(cluster.events(workloads), [gone]);
    cluster.close(agent);
    assert_eq!(
        cluster.events(agents),
        [("-agents.agent_A".to_owned(), "{}".to_owned())]
    );
}

#[test]
fn masks_above_at_and_below_what_was_added() {
    let new_workload = "{desiredState: {apiVersion: v1, workloads: {n: {agent: agent_A, runtime: podman, runtimeConfig: y, tags: {k: v}, dependencies: {a: ADD_COND_RUNNING}}}}}";
    for (masks, expected) in [
        (vec!["desiredState"], "+desiredState.workloads.n"),
        (
            vec!["desiredState.workloads.n"],
            "+desiredState.workloads.n",
        ),
        (
            vec!["*.workloads.n"],
            "+desiredState.workloads.n +effectiveState.workloads.n",
        ),
        (
            vec!["desiredState.workloads.*.agent"],
            "+desiredState.workloads.n.agent",
        ),
        (
            vec!["desiredState.workloads.*.tags"],
            "+desiredState.workloads.n.tags",
        ),
        (
            vec!["desiredState.workloads.*.tags.*"],
            "+desiredState.workloads.n.tags.k",
        ),
        (
            vec!["desiredState.workloads.n.dependencies"],
            "+desiredState.workloads.n.dependencies",
        ),
        (
            vec!["workloadStates.agent_A.n"],
            "+workloadStates.agent_A.n",
        ),
        (
            vec![
                "desiredState.workloads.n",
                "desiredState.workloads.*",
                "desiredState.workloads.n",
            ],
            "+desiredState.workloads.n",
        ),
        (
            vec!["desiredState.workloads.n", "desiredState.workloads.n.agent"],
            "+desiredState.workloads.n +desiredState.workloads.n.agent",
        ),
        (vec!["desiredState.workloads.n.nothing"], ""),
        (vec!["desiredState.workloads.a"], ""),
        (vec![""], ""),
        (vec!["agents"], ""),
    ] {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let listener = cluster.subscribe(&masks);
        cluster
            .update(new_workload, &["desiredState.workloads.n"])
            .unwrap();
        let expected: Vec<&str> = if expected.is_empty() {
            vec![]
        } else {
            vec![expected]
        };
        assert_eq!(cluster.altered(listener), expected, "{masks:?}");
    }
}

#[test]
fn the_first_state_of_an_agent_reaches_masks_on_its_workloads() {
    let mut cluster = Cluster::default();
    let listener =
        cluster.subscribe(&["workloadStates.agent_A.n", "workloadStates.*.*.*.subState"]);
    let agent = cluster.agent("agent_A");
    let n = InstanceName::with_id("n", "1", "agent_A");
    cluster.report(
        agent,
        &[
            (&n, Phase::Running),
            (&InstanceName::with_id("m", "2", "agent_A"), Phase::Running),
        ],
    );
    let expected = "+workloadStates.agent_A.m.2.subState +workloadStates.agent_A.n +workloadStates.agent_A.n.1.subState";
    assert_eq!(cluster.altered(listener), [expected]);
    // A mask below a leaf, or on a value that stays, is silent.
    let silent = cluster.subscribe(&[
        "workloadStates.agent_A.n.1.state.x",
        "workloadStates.agent_A.n.1.additionalInfo",
    ]);
    cluster.report(agent, &[(&n, Phase::Succeeded)]);
    assert_eq!(cluster.altered(silent), [] as [&str; 0]);
}

#[test]
fn one_change_is_one_event_even_if_an_entry_changes_twice() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    cluster.report(agent, &[(&a(), Phase::Running)]);
    let listener = cluster.subscribe(&["workloadStates"]);
    cluster.report(agent, &[(&a(), Phase::Succeeded), (&a(), Phase::Running)]);
    assert_eq!(cluster.altered(listener), [] as [&str; 0]);
    let way = format!("workloadStates.agent_A.a.{}", id("x"));
    cluster.report(
        agent,
        &[(&a(), Phase::Removed), (&a(), Phase::PendingStarting)],
    );
    assert_eq!(
        cluster.altered(listener),
        [format!("~{way}.state ~{way}.subState")]
    );
    cluster.report(
        agent,
        &[
            (&InstanceName::with_id("t", "1", "agent_A"), Phase::Running),
            (&InstanceName::with_id("t", "1", "agent_A"), Phase::Removed),
        ],
    );
    assert_eq!(cluster.altered(listener), [] as [&str; 0]);
}

#[test]
fn unscheduled_workloads_keep_their_empty_agent_segment() {
    let mut cluster = Cluster::default();
    let listener = cluster.subscribe(&["workloadStates"]);
    let deep = cluster.subscribe(&["workloadStates.*.*.*.state"]);
    let workload = |tag: &str| {
        format!(
            "{{desiredState: {{apiVersion: v1, workloads: {{u: {{agent: '', runtime: podman, runtimeConfig: y, tags: {{k: '{tag}'}}}}}}}}}}"
        )
    };
    cluster
        .update(&workload("1"), &["desiredState.workloads.u"])
        .unwrap();
    let (altered, state) = cluster.events(deep).remove(0);
    assert_eq!(altered, format!("+workloadStates..u.{}.state", id("y")));
    assert!(
        state.contains(r#"{"state":"NotScheduled","subState":"NotScheduled"}"#),
        "{state}"
    );
    assert_eq!(cluster.altered(listener), ["+workloadStates."]);
    cluster
        .update(&workload("2"), &["desiredState.workloads.u"])
        .unwrap();
    assert_eq!(
        cluster.altered(listener),
        [] as [&str; 0],
        "the same instance keeps its state"
    );
    cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.workloads.u"],
        )
        .unwrap();
    assert_eq!(cluster.altered(listener), ["-workloadStates."]);
}

#[test]
fn change_without_workloads_is_published_after_the_response() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let listener = cluster.subscribe(&[]);
    for (new_state, mask, expected) in [
        (
            "{desiredState: {apiVersion: v1, configs: {k: v}}}",
            "desiredState.configs",
            "+desiredState.configs",
        ),
        (
            "{desiredState: {apiVersion: v1, configs: {l: [m]}}}",
            "desiredState.configs.l",
            "+desiredState.configs.l",
        ),
        (
            "{desiredState: {apiVersion: v1, configs: {l: [n]}}}",
            "desiredState.configs.l",
            "~desiredState.configs.l",
        ),
        (
            "{desiredState: {apiVersion: v1, configs: {l: {a: b}}}}",
            "desiredState.configs.l",
            "~desiredState.configs.l",
        ),
        (
            "{desiredState: {apiVersion: v1}}",
            "desiredState.configs",
            "-desiredState.configs",
        ),
        (
            "{desiredState: {apiVersion: v0.1}}",
            "desiredState.apiVersion",
            "~desiredState.apiVersion ~effectiveState.apiVersion",
        ),
    ] {
        cluster.send_request(listener, "q", update(new_state, &[mask]));
        let messages = cluster.take(listener);
        let [FromServer::Response(answer), FromServer::Response(event)] = messages.as_slice()
        else {
            panic!("{messages:?}")
        };
        assert!(
            matches!(answer.content, ResponseContent::UpdateStateSuccess { .. }),
            "{answer:?}"
        );
        let ResponseContent::CompleteState {
            altered: Some(altered),
            ..
        } = &event.content
        else {
            panic!("{event:?}")
        };
        assert_eq!(signed(altered), expected);
    }
}

#[test]
fn tags_of_workloads_and_agents_are_reported_one_by_one() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let listener = cluster.subscribe(&["desiredState", "agents"]);
    let tags = |tags: &str| {
        format!(
            "{{desiredState: {{apiVersion: v1, workloads: {{a: {{tags: {tags}}}}}}}, agents: {{agent_A: {{tags: {tags}}}}}}}"
        )
    };
    for (new, sign, path) in [
        ("{k: '1'}", "+", "tags"),
        ("{k: '1', 'l.m': '2'}", "+", "tags.l.m"),
        ("{k: '3', 'l.m': '2'}", "~", "tags.k"),
        ("{k: '3'}", "-", "tags.l.m"),
        ("{}", "-", "tags"),
    ] {
        cluster
            .update(
                &tags(new),
                &["desiredState.workloads.a.tags", "agents.agent_A.tags"],
            )
            .unwrap();
        let (altered, state) = cluster.events(listener).remove(0);
        assert_eq!(
            altered,
            format!("{sign}agents.agent_A.{path} {sign}desiredState.workloads.a.{path}")
        );
        // A key with a dot is read by its place and not by its text.
        assert_eq!(
            state.contains(r#""l.m":"2""#),
            (sign, path) == ("+", "tags.l.m"),
            "{state}"
        );
    }
    cluster.close(agent);
}

#[test]
fn subscription_ends_by_cancel_goodbye_loss_or_the_same_id() {
    type End = fn(&mut Cluster, PeerId);
    let ends: [(&str, End); 3] = [
        ("cancel", |cluster, peer| {
            for _ in 0..2 {
                cluster.send_request(peer, "events", RequestContent::EventsCancel);
                let answer = cluster.take(peer);
                assert!(
                    matches!(&answer[..], [FromServer::Response(r)] if r.content == ResponseContent::EventsCancelAccepted)
                );
            }
        }),
        ("goodbye", |cluster, peer| {
            cluster.send(peer, ToServer::Goodbye)
        }),
        ("loss", |cluster, peer| cluster.close(peer)),
    ];
    for (name, end) in ends {
        let mut cluster = Cluster::default();
        let listener = cluster.subscribe(&["agents"]);
        let other = cluster.subscribe(&["agents"]);
        end(&mut cluster, listener);
        cluster.agent("A");
        assert_eq!(cluster.altered(listener), [] as [&str; 0], "{name}");
        assert_eq!(cluster.altered(other), ["+agents.A"], "{name}");
        cluster.close(other);
        assert!(
            cluster
                .server
                .subscriptions
                .has_no(SubscriptionKind::Events),
            "{name}"
        );
    }
    let mut cluster = Cluster::default();
    let listener = cluster.subscribe(&["agents"]);
    cluster.subscribe_as(listener, "events", &["desiredState"]);
    cluster.agent("A");
    assert_eq!(cluster.altered(listener), [] as [&str; 0]);
}

#[test]
fn subscription_of_a_workload_ends_with_it_or_its_agent() {
    let mut cluster = Cluster::with_manifest(ASKING);
    let agent = cluster.settled_agent("agent_A");
    for (id, kept_after_removal) in [("a@events", false), ("other@events", true)] {
        cluster.subscribe_as(agent, id, &["agents"]);
        cluster.report(agent, &[(&a(), Phase::Removed)]);
        assert_eq!(
            !cluster
                .server
                .subscriptions
                .has_no(SubscriptionKind::Events),
            kept_after_removal,
            "{id}"
        );
    }
    cluster.agent("agent_A");
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events),
        "a new connection begins without subscriptions"
    );
    let answer = cluster.settled_agent("B");
    assert!(matches!(
        cluster.subscribe_as(answer, "no workload", &[]),
        ResponseContent::Error(_)
    ));
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
}

#[test]
fn one_stream_cannot_have_subscriptions_without_end() {
    let mut cluster = Cluster::default();
    let peer = cluster.commander();
    let limit = crate::limits::SUBSCRIPTIONS_PER_PEER_MAX;
    for index in 0..limit {
        assert!(!matches!(
            cluster.subscribe_as(peer, &index.to_string(), &["x"]),
            ResponseContent::Error(_)
        ));
    }
    assert!(matches!(
        cluster.subscribe_as(peer, "one more", &["x"]),
        ResponseContent::Error(_)
    ));
    assert!(
        !matches!(
            cluster.subscribe_as(peer, "0", &["y"]),
            ResponseContent::Error(_)
        ),
        "replacing is allowed"
    );
    let other = cluster.commander();
    assert!(!matches!(
        cluster.subscribe_as(other, "0", &["x"]),
        ResponseContent::Error(_)
    ));
}

#[test]
fn subscriptions_with_very_many_masks_are_bounded_in_bytes() {
    let mut cluster = Cluster::default();
    let peer = cluster.commander();
    let masks: Vec<String> = (0..10_000)
        .map(|number| format!("desiredState.workloads.w{number}.tags"))
        .collect();
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    let mut subscribe = |id: usize| cluster.subscribe_as(peer, &id.to_string(), &masks);
    let refused = (0..100).find(|id| matches!(subscribe(*id), ResponseContent::Error(_)));
    assert!(refused.is_some_and(|id| id > 1), "{refused:?}");
    assert!(
        !matches!(subscribe(0), ResponseContent::Error(_)),
        "replacing is allowed"
    );
}

#[test]
fn late_end_of_an_older_instance_keeps_its_successors_events() {
    let mut cluster = Cluster::with_manifest(ASKING);
    let agent = cluster.settled_agent("agent_A");
    cluster.subscribe_as(agent, "a@events", &["agents"]);
    let other = InstanceName::with_id("a", "stray", "agent_A");
    cluster.report(agent, &[(&other, Phase::Running)]);
    cluster.report(agent, &[(&other, Phase::Removed)]);
    assert!(
        !cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events),
        "the running instance listens"
    );
    // Also when it is not wanted any more but there.
    cluster.report(agent, &[(&a(), Phase::Running), (&other, Phase::Running)]);
    cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.workloads.a"],
        )
        .unwrap();
    cluster.report(agent, &[(&other, Phase::Removed)]);
    assert!(
        !cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
    cluster.report(agent, &[(&other, Phase::Running), (&a(), Phase::Removed)]);
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events),
        "whoever asked is gone"
    );
}
