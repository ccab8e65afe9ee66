//! Log collections: fan-out, stop, cancel and every way in which a peer disappears.

use super::*;
use ankaios_model::log_entries;
use ankaios_model::messages::{LogEntry, LogsRequest};
use ankaios_model::refusal::ErrorResponse;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x, controlInterfaceAccess: &all {allowRules: [{type: LogRule, workloadNames: ['*']}]}}
  b: {agent: agent_B, runtime: podman, runtimeConfig: x}
  c: {agent: agent_A, runtime: podman, runtimeConfig: x, controlInterfaceAccess: *all}
  away: {agent: agent_C, runtime: podman, runtimeConfig: x}
  unscheduled: {agent: '', runtime: podman, runtimeConfig: x}
";

fn instance(name: &str, agent: &str) -> InstanceName {
    InstanceName::new(name, "x", agent)
}

fn request(instances: &[InstanceName]) -> LogsRequest {
    LogsRequest {
        instances: instances.to_vec(),
        follow: Some(true),
        tail: Some(3),
        since: Some("s".into()),
        until: None,
        timestamps: true,
    }
}

/// Both agents connected, and `requester` has asked for the logs of `a` and
/// `b` under the id `logs`.
struct Fixture {
    cluster: Cluster,
    agent_a: PeerId,
    agent_b: PeerId,
    requester: PeerId,
    /// The id under which the agents know the request.
    full_id: String,
}

impl Fixture {
    fn new(requester: impl FnOnce(&mut Cluster, PeerId) -> PeerId, id: &str) -> Self {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let (agent_a, agent_b) = (
            cluster.settled_agent("agent_A"),
            cluster.settled_agent("agent_B"),
        );
        let requester = requester(&mut cluster, agent_a);
        cluster.take_all();
        let wanted = [instance("a", "agent_A"), instance("b", "agent_B")];
        let content = RequestContent::Logs(request(&wanted));
        cluster.send_request(requester, id, content);
        let messages = cluster.take(agent_b);
        let [FromServer::LogsRequest { request_id, .. }] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        let full_id = request_id.clone();
        cluster.take_all();
        Self {
            cluster,
            agent_a,
            agent_b,
            requester,
            full_id,
        }
    }

    fn commander() -> Self {
        Self::new(|cluster, _| cluster.commander(), "logs")
    }

    fn answers(&self) -> Vec<ResponseContent> {
        self.cluster.responses(self.requester)
    }

    fn cancels(&self, agent: PeerId) -> usize {
        let cancel = FromServer::LogsCancel {
            request_id: self.full_id.clone(),
        };
        self.cluster
            .take(agent)
            .iter()
            .filter(|message| **message == cancel)
            .count()
    }
}

#[test]
fn log_request_reaches_each_agent_with_its_own_instances() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent_a, agent_b) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let commander = cluster.commander();
    cluster.take_all();
    let (a, b) = (instance("a", "agent_A"), instance("b", "agent_B"));
    let (away, unscheduled) = (instance("away", "agent_C"), instance("unscheduled", ""));
    let wrong = [
        InstanceName::with_id("a", "other", "agent_A"),
        instance("a", "agent_B"),
        instance("zz", "agent_A"),
    ];
    let wanted = [
        &[
            a.clone(),
            a.clone(),
            away.clone(),
            b.clone(),
            unscheduled.clone(),
        ][..],
        &wrong,
    ]
    .concat();
    let content = RequestContent::Logs(request(&wanted));
    cluster.send_request(commander, "x@y", content);
    for (agent, instances) in [
        (agent_a, vec![a.clone(), a.clone()]),
        (agent_b, vec![b.clone()]),
    ] {
        let messages = cluster.take(agent);
        let [
            FromServer::LogsRequest {
                request_id,
                request: got,
            },
        ] = messages.as_slice()
        else {
            panic!("{messages:?}")
        };
        assert_eq!(*got, request(&instances));
        assert!(
            request_id == &format!("{}@x@y", commander.0),
            "{request_id}"
        );
    }
    let content = |message: FromServer| match message {
        FromServer::Response(Response { id, content }) if id == "x@y" => content,
        other => panic!("{other:?}"),
    };
    let answers: Vec<ResponseContent> = cluster.take(commander).into_iter().map(content).collect();
    // Instances without a connected agent have no lines, so their logs end at once.
    let kept = vec![a.clone(), a, away.clone(), b, unscheduled.clone()];
    let reason = |instance: &InstanceName, why: &str| {
        ResponseContent::LogEntries(vec![log_entries::no_log(instance.clone(), why)])
    };
    let expected = [
        ResponseContent::LogsAccepted(kept),
        reason(&unscheduled, "it has no agent"),
        ResponseContent::LogsStop(unscheduled),
        reason(&away, "agent 'agent_C' is not connected"),
        ResponseContent::LogsStop(away),
    ];
    assert_eq!(answers, expected);
}

#[test]
fn nothing_to_collect_is_accepted_with_an_empty_list() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let commander = cluster.commander();
    let content = RequestContent::Logs(request(&[instance("zz", "agent_A")]));
    assert_eq!(
        cluster.request(commander, content),
        ResponseContent::LogsAccepted(vec![])
    );
    assert!(cluster.server.subscriptions.has_no(SubscriptionKind::Logs));
}

#[test]
fn lines_and_stops_reach_the_requester_and_end_the_collection() {
    let mut fixture = Fixture::commander();
    let (a, b) = (instance("a", "agent_A"), instance("b", "agent_B"));
    let entries = vec![LogEntry::line(a.clone(), "line")];
    let request_id = fixture.full_id.clone();
    fixture.cluster.send(
        fixture.agent_a,
        ToServer::LogEntries {
            request_id: request_id.clone(),
            entries: entries.clone(),
        },
    );
    assert_eq!(
        fixture.answers(),
        [ResponseContent::LogEntries(entries.clone())]
    );
    for (agent, instance) in [(fixture.agent_a, a), (fixture.agent_b, b)] {
        assert!(
            !fixture
                .cluster
                .server
                .subscriptions
                .has_no(SubscriptionKind::Logs)
        );
        fixture.cluster.send(
            agent,
            ToServer::LogsStop {
                request_id: request_id.clone(),
                instance: instance.clone(),
            },
        );
        assert_eq!(fixture.answers(), [ResponseContent::LogsStop(instance)]);
    }
    assert!(
        fixture
            .cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Logs)
    );
    // No agent is requested to send lines any more, and agents that end send no second stop.
    fixture.cluster.send(
        fixture.agent_a,
        ToServer::LogEntries {
            request_id,
            entries,
        },
    );
    assert_eq!(fixture.answers(), []);
    fixture.cluster.close(fixture.agent_a);
    assert_eq!(fixture.answers(), []);
}

#[test]
fn a_message_with_too_many_lines_is_split() {
    let mut fixture = Fixture::commander();
    let line = LogEntry::line(instance("a", "agent_A"), "x".repeat(1_500_000));
    let message = ToServer::LogEntries {
        request_id: fixture.full_id.clone(),
        entries: vec![line.clone(), line],
    };
    fixture.cluster.send(fixture.agent_a, message);
    assert_eq!(fixture.answers().len(), 2);
}

#[test]
fn log_cancel_reaches_its_agents_and_is_always_accepted() {
    let mut fixture = Fixture::commander();
    let bystander = fixture.cluster.settled_agent("agent_C");
    fixture.cluster.take_all();
    for round in 0..2 {
        let cancel = Request {
            id: "logs".into(),
            content: RequestContent::LogsCancel,
        };
        fixture
            .cluster
            .send(fixture.requester, ToServer::Request(cancel));
        assert_eq!(fixture.answers(), [ResponseContent::LogsCancelAccepted]);
        let expected = usize::from(round == 0);
        assert_eq!(
            (
                fixture.cancels(fixture.agent_a),
                fixture.cancels(fixture.agent_b)
            ),
            (expected, expected)
        );
        assert_eq!(fixture.cluster.take(bystander), []);
    }
    assert!(
        fixture
            .cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Logs)
    );
}

#[test]
fn a_requester_that_disappears_ends_its_collections() {
    type End = fn(&mut Cluster, PeerId);
    let ends: [End; 2] = [
        |cluster, peer| cluster.send(peer, ToServer::Goodbye),
        |cluster, peer| cluster.close(peer),
    ];
    for end in ends {
        let mut fixture = Fixture::commander();
        end(&mut fixture.cluster, fixture.requester);
        assert_eq!(
            (
                fixture.cancels(fixture.agent_a),
                fixture.cancels(fixture.agent_b)
            ),
            (1, 1)
        );
        assert!(
            fixture
                .cluster
                .server
                .subscriptions
                .has_no(SubscriptionKind::Logs)
        );
        // A late message has no receiver any more.
        let message = ToServer::LogsStop {
            request_id: fixture.full_id.clone(),
            instance: instance("a", "agent_A"),
        };
        fixture.cluster.send(fixture.agent_a, message);
    }
}

#[test]
fn a_provider_that_disappears_is_reported_as_stopped() {
    let mut fixture = Fixture::commander();
    fixture.cluster.close(fixture.agent_b);
    let ended = |name: &str, agent: &str| {
        let why = format!("agent '{agent}' is not connected any more");
        let reason =
            ResponseContent::LogEntries(vec![log_entries::no_log(instance(name, agent), &why)]);
        [reason, ResponseContent::LogsStop(instance(name, agent))]
    };
    assert_eq!(fixture.answers(), ended("b", "agent_B"));
    // The same when its connection is replaced.
    fixture.cluster.agent("agent_A");
    assert_eq!(fixture.answers(), ended("a", "agent_A"));
    assert!(
        fixture
            .cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Logs)
    );
}

#[test]
fn log_collection_ends_with_its_workload_update_or_agent() {
    type End = fn(&mut Cluster, PeerId);
    let deleted: End = |cluster, _| {
        cluster
            .update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads.a"],
            )
            .unwrap();
    };
    let updated: End = |cluster, _| {
        let tag = "{desiredState: {apiVersion: v1, workloads: {a: {tags: {k: v}}}}}";
        cluster
            .update(tag, &["desiredState.workloads.a.tags"])
            .unwrap();
    };
    let agent_gone: End = |cluster, agent| cluster.close(agent);
    let another_deleted: End = |cluster, _| {
        cluster
            .update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads.away"],
            )
            .unwrap();
    };
    for (end, over) in [
        (deleted, true),
        (updated, true),
        (agent_gone, true),
        (another_deleted, false),
    ] {
        let mut fixture = Fixture::new(|_, agent_a| agent_a, "a@logs");
        assert_eq!(fixture.full_id, format!("{}@a@logs", fixture.agent_a.0));
        end(&mut fixture.cluster, fixture.agent_a);
        assert_eq!(fixture.cancels(fixture.agent_b), usize::from(over));
        assert_eq!(
            fixture
                .cluster
                .server
                .subscriptions
                .has_no(SubscriptionKind::Logs),
            over
        );
    }
    // A workload of the same name on another agent is another collector.
    let mut fixture = Fixture::new(|_, agent_a| agent_a, "c@logs");
    let moved = "{desiredState: {apiVersion: v1, workloads: {c: {agent: agent_C}}}}";
    fixture
        .cluster
        .update(moved, &["desiredState.workloads.c.agent"])
        .unwrap();
    assert!(
        fixture
            .cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Logs),
        "it was moved"
    );
    let content = RequestContent::Logs(request(&[instance("b", "agent_B")]));
    fixture
        .cluster
        .send_request(fixture.agent_a, "c@logs", content);
    fixture
        .cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.workloads.c"],
        )
        .unwrap();
    assert!(
        !fixture
            .cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Logs),
        "the older one has not stopped yet"
    );
}

#[test]
fn log_request_needs_an_id_and_their_number_is_bounded() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let content = || RequestContent::Logs(request(&[instance("a", "agent_A")]));
    for content in [
        content(),
        RequestContent::LogsCancel,
        RequestContent::EventsCancel,
    ] {
        cluster.send_request(agent, String::new(), content.clone());
        assert_eq!(cluster.take(agent), []);
        cluster.send_request(agent, "no-workload", content);
        let messages = cluster.take(agent);
        assert!(
            matches!(&messages[..], [FromServer::Response(r)] if matches!(r.content, ResponseContent::Error(_)))
        );
    }
    let commander = cluster.commander();
    let mut last = None;
    for index in 0..=crate::limits::LOG_COLLECTIONS_PER_PEER_MAX {
        cluster.send_request(commander, index.to_string(), content());
        last = cluster.take(commander).pop();
    }
    assert!(
        matches!(last, Some(FromServer::Response(r)) if matches!(r.content, ResponseContent::Error(_)))
    );
}

#[test]
fn log_request_that_is_too_large_for_agents_is_refused() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let commander = cluster.commander();
    let a = instance("a", "agent_A");
    let long = "9".repeat(4_200_000);
    let since = LogsRequest {
        since: Some(long.clone()),
        ..request(std::slice::from_ref(&a))
    };
    let until = LogsRequest {
        until: Some(long.clone()),
        ..request(std::slice::from_ref(&a))
    };
    for (id, request) in [
        ("since", since),
        ("until", until),
        (&*long, request(std::slice::from_ref(&a))),
    ] {
        cluster.send_request(commander, id, RequestContent::Logs(request));
        let answer = cluster.take(commander).pop();
        let refused = matches!(&answer, Some(FromServer::Response(Response { content: ResponseContent::Error(ErrorResponse { text, .. }), .. }))
            if text.contains("at most"));
        assert!(refused, "{id:.9}");
        assert_eq!(cluster.take(agent), [], "{id:.9}");
    }
    let answer = cluster.request(commander, RequestContent::Logs(request(&vec![a; 60_000])));
    assert!(
        matches!(&answer, ResponseContent::Error(ErrorResponse { text, .. }) if text.contains("each once")),
        "{answer:?}"
    );
    assert_eq!(cluster.take(agent), []);
}

#[test]
fn log_collections_are_bounded_by_the_bytes_of_their_names() {
    let workloads: String = (0..2_000)
        .map(|number| format!("  w{number}: {{agent: A, runtime: podman, runtimeConfig: x}}\n"))
        .collect();
    let mut cluster = Cluster::with_manifest(&format!("apiVersion: v1\nworkloads:\n{workloads}"));
    cluster.settled_agent("A");
    let commander = cluster.commander();
    let all: Vec<InstanceName> = (0..2_000)
        .map(|number| instance(&format!("w{number}"), "A"))
        .collect();
    let mut refused = None;
    for number in 0..200 {
        let content = RequestContent::Logs(request(&all));
        cluster.send_request(commander, number.to_string(), content);
        let answer = cluster.take(commander).pop();
        cluster.take_all();
        if matches!(
            answer,
            Some(FromServer::Response(Response {
                content: ResponseContent::Error(_),
                ..
            }))
        ) {
            refused = Some(number);
            break;
        }
    }
    assert!(refused.is_some_and(|number| number > 5), "{refused:?}");
}
