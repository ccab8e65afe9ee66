//! What workloads may ask through their agents, judged once more by the server.

use super::*;
use ankaios_model::messages::{LogEntry, LogsRequest};
use ankaios_model::refusal::ErrorResponse;

/// A workload with rules, as part of a manifest.
fn workload(name: &str, agent: &str, config: &str, rules: &str) -> String {
    format!(
        "  {name}: {{agent: {agent}, runtime: podman, runtimeConfig: {config}, controlInterfaceAccess: {{{rules}}}}}\n"
    )
}

fn manifest(workloads: &[String]) -> String {
    format!("apiVersion: v1\nworkloads:\n{}", workloads.concat())
}

/// The same as part of an update.
fn state_of(name: &str, agent: &str, config: &str, rules: &str) -> String {
    format!(
        "{{desiredState: {{apiVersion: v1, workloads: {{{}}}}}}}",
        workload(name, agent, config, rules).trim()
    )
}

const NOTHING: &str = "{desiredState: {apiVersion: v1}}";
const ALL: &str = "allowRules: [{type: StateRule, operation: ReadWrite, filterMasks: ['*']}, {type: LogRule, workloadNames: ['*']}]";
const READ_AGENTS: &str = "allowRules: [{type: StateRule, operation: Read, filterMasks: [agents]}]";
const DENIED: &str = "Access denied: ";

fn logs(instance: &InstanceName) -> RequestContent {
    RequestContent::Logs(LogsRequest {
        instances: vec![instance.clone()],
        ..Default::default()
    })
}

impl Cluster {
    /// What a request is answered first.
    fn ask_as(&mut self, peer: PeerId, id: &str, content: RequestContent) -> ResponseContent {
        self.take(peer);
        self.send_request(peer, id, content);
        let response = self
            .take(peer)
            .into_iter()
            .find_map(|message| match message {
                FromServer::Response(response) if response.id == id => Some(response.content),
                _ => None,
            });
        response.unwrap_or_else(|| panic!("no answer to '{id}'"))
    }

    /// The reason when a request is denied.
    fn denial(&mut self, peer: PeerId, id: &str, content: RequestContent) -> Option<String> {
        match self.ask_as(peer, id, content) {
            ResponseContent::Error(ErrorResponse { text, .. }) if text.starts_with(DENIED) => {
                Some(text[DENIED.len()..].to_owned())
            }
            _ => None,
        }
    }

    fn may_read(&mut self, peer: PeerId, id: &str) -> bool {
        self.denial(peer, id, read(&["agents"], false)).is_none()
    }
}

fn instance(name: &str, config: &str, agent: &str) -> InstanceName {
    InstanceName::new(name, config, agent)
}

#[test]
fn an_agent_cannot_ask_for_itself_or_for_workloads_of_others() {
    let workloads = [
        workload("mine", "A", "x", ALL),
        workload("theirs", "B", "x", ALL),
        workload("mute", "A", "x", ""),
    ];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let agent = cluster.settled_agent("A");
    let before = cluster.read(&["desiredState"]);
    let attack = || update("{desiredState: {apiVersion: v1, workloads: {}}}", &[]);
    for (id, reason) in [
        (
            "1",
            "the request id does not begin with the name of a workload of agent 'A'",
        ),
        (
            "theirs@1",
            "agent 'A' has no workload 'theirs' with allow rules",
        ),
        (
            "nobody@1",
            "agent 'A' has no workload 'nobody' with allow rules",
        ),
        ("A@mine@1", "agent 'A' has no workload 'A' with allow rules"),
        ("@1", "agent 'A' has no workload '' with allow rules"),
        (
            "mute@1",
            "agent 'A' has no workload 'mute' with allow rules",
        ),
    ] {
        for content in [
            attack(),
            read(&["agents"], false),
            read(&["agents"], true),
            logs(&instance("mine", "x", "A")),
        ] {
            let denial = cluster.denial(agent, id, content).unwrap();
            assert!(denial.starts_with(reason), "{id}: {denial}");
        }
    }
    assert_eq!(cluster.read(&["desiredState"]), before);
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
            && cluster.server.subscriptions.has_no(SubscriptionKind::Logs)
    );
    assert!(!cluster.is_closed(agent));
    // Commanders may do all that, whatever the id looks like.
    for peer in [cluster.commander(), cluster.open(PeerHello::Cli)] {
        assert!(cluster.may_read(peer, "theirs@1") && cluster.may_read(peer, "1"));
    }
    assert_eq!(cluster.denial(agent, "mine@1", attack()), None);
    assert_ne!(cluster.read(&["desiredState"]), before);
}

#[test]
fn rules_of_the_workload_apply_and_cancels_are_always_served() {
    let write = "allowRules: [{type: StateRule, operation: Write, filterMasks: [desiredState.workloads.w]}], denyRules: [{type: LogRule, workloadNames: ['*']}]";
    let workloads = [
        workload("reader", "A", "x", READ_AGENTS),
        workload("writer", "A", "x", write),
    ];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let agent = cluster.settled_agent("A");
    let change = |mask: &str| update(NOTHING, &[mask]);
    let reader = instance("reader", "x", "A");
    for (id, content, reason) in [
        ("reader@1", read(&["agents.A"], false), None),
        ("reader@1", read(&["agents"], true), None),
        (
            "reader@1",
            read(&["desiredState"], false),
            Some("no rule allows 'desiredState'"),
        ),
        ("reader@1", read(&["*"], true), Some("no rule allows '*'")),
        (
            "reader@1",
            change("desiredState.workloads.w"),
            Some("no rule allows 'desiredState.workloads.w'"),
        ),
        ("reader@1", logs(&reader), Some("no rule allows 'reader'")),
        ("writer@1", change("desiredState.workloads.w"), None),
        (
            "writer@1",
            change("desiredState.workloads.reader"),
            Some("no rule allows 'desiredState.workloads.reader'"),
        ),
        (
            "writer@1",
            read(&["agents"], false),
            Some("no rule allows 'agents'"),
        ),
        ("writer@1", logs(&reader), Some("'reader' is denied by '*'")),
        ("writer@1", RequestContent::EventsCancel, None),
        ("nobody@1", RequestContent::EventsCancel, None),
        ("nobody@1", RequestContent::LogsCancel, None),
    ] {
        let workload = id.split_once('@').unwrap().0;
        let expected =
            reason.map(|reason| format!("by the rules of workload '{workload}': {reason}"));
        assert_eq!(
            cluster.denial(agent, id, content.clone()),
            expected,
            "{id} {content:?}"
        );
    }
    assert!(
        !cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
    let accepted = cluster.ask_as(agent, "reader@1", RequestContent::EventsCancel);
    assert_eq!(accepted, ResponseContent::EventsCancelAccepted);
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
}

#[test]
fn stopping_workload_has_its_last_rules_until_it_is_gone() {
    type End = fn(&mut Cluster);
    let deleted: End = |cluster| {
        _ = cluster
            .update(NOTHING, &["desiredState.workloads.w"])
            .unwrap()
    };
    let moved: End = |cluster| {
        cluster
            .update(&state_of("w", "B", "x", ""), &["desiredState.workloads.w"])
            .unwrap();
    };
    let changed_and_moved: End = |cluster| {
        cluster
            .update(&state_of("w", "A", "y", ALL), &["desiredState.workloads.w"])
            .unwrap();
        cluster
            .update(&state_of("w", "B", "x", ALL), &["desiredState.workloads.w"])
            .unwrap();
    };
    for end in [deleted, moved, changed_and_moved] {
        let mut cluster = Cluster::with_manifest(&manifest(&[workload("w", "A", "x", ALL)]));
        let (agent, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
        let w = instance("w", "x", "A");
        cluster.report(agent, &[(&w, Phase::Running)]);
        end(&mut cluster);
        assert!(cluster.may_read(agent, "w@1"));
        assert_eq!(
            cluster.may_read(other, "w@1"),
            cluster
                .read(&["desiredState.workloads.w.controlInterfaceAccess"])
                .contains("ReadWrite")
        );
        // The same when the agent was away meanwhile and still has it.
        cluster.close(agent);
        let agent = cluster.settled_agent("A");
        cluster.report(agent, &[(&w, Phase::Running)]);
        assert!(cluster.may_read(agent, "w@1"));
        cluster.report(
            agent,
            &[
                (&w, Phase::Removed),
                (&instance("w", "y", "A"), Phase::Removed),
            ],
        );
        assert!(!cluster.may_read(agent, "w@1"));
        assert_eq!(cluster.server.sizes()[4], 0);
    }
}

/// Seed 3002773 of the simulation.
#[test]
fn report_of_an_end_and_a_return_leaves_the_last_rules() {
    let mut cluster = Cluster::with_manifest(&manifest(&[workload("w", "A", "x", ALL)]));
    let agent = cluster.settled_agent("A");
    let (old, new) = (instance("w", "x", "A"), instance("w", "y", "A"));
    cluster.report(agent, &[(&old, Phase::Running)]);
    cluster
        .update(&state_of("w", "A", "y", ALL), &["desiredState.workloads.w"])
        .unwrap();
    cluster
        .update(NOTHING, &["desiredState.workloads.w"])
        .unwrap();
    cluster.report(agent, &[(&old, Phase::Removed)]);
    cluster.report(
        agent,
        &[
            (&new, Phase::Removed),
            (&old, Phase::StoppingRequestedAtRuntime),
        ],
    );
    assert!(cluster.may_read(agent, "w@1"));
    cluster.report(agent, &[(&old, Phase::Removed)]);
    assert!(!cluster.may_read(agent, "w@1"));
    assert_eq!(cluster.server.sizes()[4], 0);
}

#[test]
fn rules_count_from_the_update_on_and_on_the_new_agent() {
    let mut cluster = Cluster::with_manifest(&manifest(&[workload("w", "A", "x", READ_AGENTS)]));
    let (agent, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    cluster.report(agent, &[(&instance("w", "x", "A"), Phase::Running)]);
    assert!(cluster.may_read(agent, "w@1") && !cluster.may_read(other, "w@1"));
    cluster
        .update(&state_of("w", "A", "x", ""), &["desiredState.workloads.w"])
        .unwrap();
    assert!(!cluster.may_read(agent, "w@1"));
    cluster
        .update(&state_of("w", "A", "x", ALL), &["desiredState.workloads.w"])
        .unwrap();
    assert!(cluster.may_read(agent, "w@1"));
    cluster
        .update(
            &state_of("w", "B", "x", READ_AGENTS),
            &["desiredState.workloads.w"],
        )
        .unwrap();
    assert!(cluster.may_read(other, "w@1"));
    cluster
        .update(&state_of("w", "A", "x", ""), &["desiredState.workloads.w"])
        .unwrap();
    assert!(
        !cluster.may_read(agent, "w@1"),
        "the newest rules there are none"
    );
    assert!(cluster.may_read(other, "w@1"), "it has not stopped there");
}

#[test]
fn what_a_server_never_knew_the_rules_of_may_not_ask() {
    let mut cluster = Cluster::with_manifest("apiVersion: v1");
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&instance("old", "x", "A"), Phase::Running)]);
    assert!(
        cluster
            .denial(agent, "old@1", read(&["agents"], false))
            .is_some()
    );
    assert_eq!(
        cluster.ask_as(agent, "old@1", RequestContent::LogsCancel),
        ResponseContent::LogsCancelAccepted,
        "what frees something is done"
    );
}

#[test]
fn rules_are_those_of_the_rendered_workload() {
    let yaml = "
apiVersion: v1
workloads:
  w:
    agent: '{{where}}'
    runtime: podman
    runtimeConfig: x
    configs: {where: where}
    controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read, filterMasks: [agents]}]}
configs: {where: A}
";
    let mut cluster = Cluster::with_manifest(yaml);
    let (agent, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    assert!(cluster.may_read(agent, "w@1") && !cluster.may_read(other, "w@1"));
    cluster.report(agent, &[(&instance("w", "x", "A"), Phase::Running)]);
    let moved = "{desiredState: {apiVersion: v1, configs: {where: B}}}";
    cluster
        .update(moved, &["desiredState.configs.where"])
        .unwrap();
    assert!(cluster.may_read(agent, "w@1") && cluster.may_read(other, "w@1"));
    cluster.report(agent, &[(&instance("w", "x", "A"), Phase::Removed)]);
    assert!(!cluster.may_read(agent, "w@1"));
}

// ------------------------------------------------------ subscriptions and logs

/// Returns whether the subscriber is notified of an agent that connects.
fn is_told(cluster: &mut Cluster, peer: PeerId, id: &str) -> bool {
    cluster.take_all();
    let other = cluster.agent("other");
    let told = cluster
        .take(peer)
        .iter()
        .any(|message| matches!(message, FromServer::Response(r) if r.id == id));
    cluster.close(other);
    cluster.take_all();
    told
}

#[test]
fn update_that_takes_a_right_away_ends_subscriptions() {
    let deny = "allowRules: [{type: StateRule, operation: Read, filterMasks: ['*']}], denyRules: [{type: StateRule, operation: Read, filterMasks: [agents.A]}]";
    for (rules, config, ended) in [
        ("", "x", true),
        ("", "y", true),
        (deny, "x", true),
        (ALL, "x", false),
        (READ_AGENTS, "y", false),
    ] {
        let workloads = [
            workload("w", "A", "x", READ_AGENTS),
            workload("v", "A", "x", READ_AGENTS),
        ];
        let mut cluster = Cluster::with_manifest(&manifest(&workloads));
        let agent = cluster.settled_agent("A");
        cluster.report(agent, &[(&instance("w", "x", "A"), Phase::Running)]);
        for id in ["w@events", "v@events"] {
            assert_eq!(cluster.denial(agent, id, read(&["agents"], true)), None);
        }
        assert!(is_told(&mut cluster, agent, "w@events"));
        cluster
            .update(
                &state_of("w", "A", config, rules),
                &["desiredState.workloads.w"],
            )
            .unwrap();
        let said = cluster
            .take(agent)
            .into_iter()
            .find_map(|message| match message {
                FromServer::Response(Response {
                    id,
                    content: ResponseContent::Error(ErrorResponse { text, .. }),
                }) => Some((id, text)),
                _ => None,
            });
        assert_eq!(said.is_some(), ended, "{rules} {config}: {said:?}");
        assert!(said.is_none_or(|(id, text)| id == "w@events"
            && text.starts_with(DENIED)
            && text.ends_with("ends")));
        assert_eq!(
            is_told(&mut cluster, agent, "w@events"),
            !ended,
            "{rules} {config}"
        );
        assert!(is_told(&mut cluster, agent, "v@events"));
    }
}

/// Seed 3005533 of the simulation.
#[test]
fn workload_that_returns_without_the_right_gets_no_events() {
    for (rules, ended) in [("", true), (READ_AGENTS, false)] {
        let mut cluster =
            Cluster::with_manifest(&manifest(&[workload("w", "A", "x", READ_AGENTS)]));
        let agent = cluster.settled_agent("A");
        cluster.settled_agent("B");
        cluster.report(agent, &[(&instance("w", "x", "A"), Phase::Running)]);
        assert_eq!(
            cluster.denial(agent, "w@events", read(&["agents"], true)),
            None
        );
        cluster
            .update(
                &state_of("w", "B", "x", rules),
                &["desiredState.workloads.w"],
            )
            .unwrap();
        assert!(
            is_told(&mut cluster, agent, "w@events"),
            "it has not stopped there"
        );
        cluster
            .update(
                &state_of("w", "A", "y", rules),
                &["desiredState.workloads.w"],
            )
            .unwrap();
        assert_eq!(is_told(&mut cluster, agent, "w@events"), !ended, "{rules}");
    }
}

#[test]
fn subscriptions_and_logs_end_with_their_instance() {
    let workloads = [
        workload("w", "A", "x", ALL),
        workload("other", "B", "x", ""),
    ];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let (agent, provider) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let (old, new) = (instance("w", "x", "A"), instance("w", "y", "A"));
    cluster.report(agent, &[(&old, Phase::Running)]);
    assert_eq!(
        cluster.denial(agent, "w@old", read(&["agents"], true)),
        None
    );
    cluster
        .update(&state_of("w", "A", "y", ALL), &["desiredState.workloads.w"])
        .unwrap();
    assert!(
        is_told(&mut cluster, agent, "w@old"),
        "it runs as long as it is not stopped"
    );
    // The successor may ask before the server has read of the end of the old one.
    for id in ["w@events", "w@logs"] {
        let content = if id == "w@logs" {
            logs(&instance("other", "x", "B"))
        } else {
            read(&["agents"], true)
        };
        assert_eq!(cluster.denial(agent, id, content), None);
    }
    cluster.report(agent, &[(&old, Phase::Removed)]);
    assert!(!is_told(&mut cluster, agent, "w@old"));
    assert!(is_told(&mut cluster, agent, "w@events"));
    assert!(!cluster.server.subscriptions.has_no(SubscriptionKind::Logs));
    // The container is created again without an update.
    cluster.take_all();
    cluster.report(
        agent,
        &[(&new, Phase::Removed), (&new, Phase::PendingStarting)],
    );
    let cancel = FromServer::LogsCancel {
        request_id: format!("{}@w@logs", agent.0),
    };
    assert!(cluster.take(provider).contains(&cancel));
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
            && cluster.server.subscriptions.has_no(SubscriptionKind::Logs)
    );
}

/// Seed 3012384 of the simulation.
#[test]
fn requests_of_an_older_instance_end_with_it() {
    let workloads = [
        workload("w", "A", "x", ALL),
        workload("other", "B", "x", ""),
    ];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let (agent, provider) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let (old, new) = (instance("w", "x", "A"), instance("w", "y", "A"));
    cluster.report(agent, &[(&old, Phase::Running)]);
    cluster
        .update(&state_of("w", "A", "y", ALL), &["desiredState.workloads.w"])
        .unwrap();
    cluster
        .update(NOTHING, &["desiredState.workloads.w"])
        .unwrap();
    cluster.report(agent, &[(&new, Phase::Removed)]);
    assert_eq!(
        cluster.denial(agent, "w@events", read(&["agents"], true)),
        None,
        "it has not stopped"
    );
    assert_eq!(
        cluster.denial(agent, "w@logs", logs(&instance("other", "x", "B"))),
        None
    );
    cluster.take_all();
    cluster.report(agent, &[(&old, Phase::Removed)]);
    let cancel = FromServer::LogsCancel {
        request_id: format!("{}@w@logs", agent.0),
    };
    assert!(cluster.take(provider).contains(&cancel));
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
            && cluster.server.subscriptions.has_no(SubscriptionKind::Logs)
    );
}

#[test]
fn log_lines_of_an_agent_without_a_request_are_dropped() {
    let workloads = [workload("a", "A", "x", ""), workload("b", "B", "x", "")];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let (agent_a, agent_b) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let (commander, stranger, cli) = (
        cluster.commander(),
        cluster.commander(),
        cluster.open(PeerHello::Cli),
    );
    let (a, b) = (instance("a", "x", "A"), instance("b", "x", "B"));
    cluster.send_request(commander, "logs", logs(&a));
    let asked = cluster.take(agent_a);
    let [FromServer::LogsRequest { request_id, .. }] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    cluster.take_all();
    let entry = |instance: &InstanceName, message: &str| LogEntry::line(instance.clone(), message);
    let lines = |entries: &[LogEntry]| ToServer::LogEntries {
        request_id: request_id.clone(),
        entries: entries.to_vec(),
    };
    let stop = |instance: &InstanceName| ToServer::LogsStop {
        request_id: request_id.clone(),
        instance: instance.clone(),
    };
    for peer in [agent_b, stranger, cli, commander] {
        for message in [
            lines(&[entry(&a, "forged"), entry(&b, "forged")]),
            stop(&a),
            stop(&b),
        ] {
            cluster.send(peer, message);
        }
    }
    // Not even the right agent for instances that were not requested from it.
    cluster.send(agent_a, stop(&b));
    cluster.send(agent_a, lines(&[entry(&b, "forged")]));
    assert_eq!(cluster.take(commander), []);
    cluster.send(agent_a, lines(&[entry(&b, "forged"), entry(&a, "line")]));
    cluster.send(agent_a, stop(&a));
    assert_eq!(
        cluster.responses(commander),
        [
            ResponseContent::LogEntries(vec![entry(&a, "line")]),
            ResponseContent::LogsStop(a.clone())
        ]
    );
    // It has said that this was all.
    cluster.send(agent_a, lines(&[entry(&a, "late")]));
    cluster.send(agent_a, stop(&a));
    assert_eq!(cluster.take(commander), []);
}
