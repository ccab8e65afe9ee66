//! Peers come, speak and go.

use super::*;
use crate::updates::NEVER_WANTED;
use ankaios_model::log_entries;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x, dependencies: {b: ADD_COND_RUNNING}}
  b: {agent: agent_B, runtime: podman, runtimeConfig: hello, controlInterfaceAccess: {allowRules: [{type: LogRule, workloadNames: [a]}]}}
  c: {agent: '', runtime: podman, runtimeConfig: z}
";

/// A workload that may ask for everything.
const ASKING: &str = "
apiVersion: v1
workloads:
  workload:
    agent: A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess: {allowRules: [{type: StateRule, operation: ReadWrite, filterMasks: ['*']}]}
";

fn a() -> InstanceName {
    InstanceName::new("a", "x", "agent_A")
}

fn b() -> InstanceName {
    InstanceName::new("b", "hello", "agent_B")
}

fn c() -> InstanceName {
    InstanceName::new("c", "z", "")
}

#[test]
fn the_worked_example_of_the_specification() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (a_initial, b_initial) = (
        state(&a(), Phase::PendingInitial),
        state(&b(), Phase::PendingInitial),
    );
    let c_unscheduled = state(&c(), Phase::NotScheduled);

    let agent_a = cluster.agent("agent_A");
    let messages = cluster.take(agent_a);
    assert_eq!(
        messages[0],
        FromServer::WorkloadStates(vec![c_unscheduled.clone(), b_initial])
    );
    assert!(matches!(&messages[1], FromServer::ServerHello(added) if names(added) == ["a"]));
    assert_eq!(messages.len(), 2);

    let agent_b = cluster.agent("agent_B");
    let messages = cluster.take(agent_b);
    assert_eq!(
        messages[0],
        FromServer::WorkloadStates(vec![c_unscheduled, a_initial])
    );
    assert!(matches!(&messages[1], FromServer::ServerHello(added) if names(added) == ["b"]));
    assert_eq!(cluster.take(agent_a), [], "it was sent all of that already");

    let commander = cluster.commander();
    cluster.report(agent_a, &[(&a(), Phase::Running)]);
    assert_eq!(
        cluster.take(agent_b),
        [FromServer::WorkloadStates(vec![state(
            &a(),
            Phase::Running
        )])]
    );
    assert_eq!(
        (cluster.take(agent_a), cluster.take(commander)),
        (vec![], vec![])
    );

    let new_state = "{desiredState: {apiVersion: v1, workloads: {b: {runtimeConfig: hello2}}}}";
    let new_b = InstanceName::new("b", "hello2", "agent_B");
    assert_eq!(
        cluster.request(
            commander,
            update(new_state, &["desiredState.workloads.b.runtimeConfig"])
        ),
        ResponseContent::UpdateStateSuccess {
            added: vec![new_b.to_string()],
            deleted: vec![b().to_string()],
            restarted: vec![],
            warning: None
        }
    );
    let WorkloadPlan { added, deleted } = cluster.one_plan(agent_b);
    assert_eq!((added.len(), &added[0].instance), (1, &new_b));
    assert_eq!((deleted.len(), &deleted[0].instance), (1, &b()));
    let waits: Vec<(&str, &str)> = deleted[0]
        .dependencies
        .iter()
        .map(|(name, condition)| (name.as_str(), condition.as_str()))
        .collect();
    assert_eq!(waits, [("a", "DEL_COND_NOT_PENDING_NOR_RUNNING")]);
    assert_eq!(cluster.take(agent_a), []);

    cluster.close(agent_b);
    assert_eq!(cluster.read(&["agents"]), r#"{"agents":{"agent_A":{}}}"#);
    let mut lost = vec![
        state(&b(), Phase::AgentDisconnected),
        state(&new_b, Phase::AgentDisconnected),
    ];
    lost.sort_by(|one, other| one.instance.cmp(&other.instance));
    assert_eq!(cluster.take(agent_a), [FromServer::WorkloadStates(lost)]);
    assert_eq!(cluster.phase(&new_b), Some(Phase::AgentDisconnected));
}

#[test]
fn tags_of_a_hello_are_shown_and_a_reconnect_begins_anew() {
    let mut cluster = Cluster::default();
    let hello = |value: &str| {
        PeerHello::Agent(ankaios_model::messages::AgentHello {
            agent: "A".into(),
            tags: [("k".into(), value.into())].into(),
            ..ankaios_model::messages::AgentHello::default()
        })
    };
    let agent = cluster.open(hello("1"));
    cluster.send(
        agent,
        ToServer::AgentLoad(AgentLoad {
            agent: "A".into(),
            cpu_usage: 5,
            free_memory: 6,
            engine: String::new(),
        }),
    );
    let with_load = r#"{"agents":{"A":{"status":{"cpuUsage":5,"freeMemory":6},"tags":{"k":"1"}}}}"#;
    assert_eq!(cluster.read(&["agents"]), with_load);
    cluster.open(hello("2"));
    assert_eq!(
        cluster.read(&["agents"]),
        r#"{"agents":{"A":{"tags":{"k":"2"}}}}"#
    );
}

#[test]
fn newer_connection_of_an_agent_outlasts_the_older_one() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let old = cluster.settled_agent("agent_A");
    let new = cluster.agent("agent_A");
    assert!(cluster.is_closed(old) && !cluster.is_closed(new));
    assert!(
        matches!(cluster.take(new).last(), Some(FromServer::ServerHello(added)) if names(added) == ["a"])
    );
    cluster.report(new, &[(&a(), Phase::Running)]);
    cluster.report(old, &[(&a(), Phase::FailedLost)]);
    cluster.send(old, ToServer::Goodbye);
    cluster.close(old);
    assert_eq!(cluster.phase(&a()), Some(Phase::Running));
    assert_eq!(cluster.read(&["agents"]), r#"{"agents":{"agent_A":{}}}"#);
    cluster.close(new);
    assert_eq!(cluster.phase(&a()), Some(Phase::AgentDisconnected));
    assert_eq!(cluster.read(&["agents"]), r#"{"agents":{}}"#);
}

#[test]
fn every_end_of_an_agent_stream_counts_as_gone() {
    type End = fn(&mut Cluster, PeerId);
    let ends: [(&str, End); 3] = [
        ("closed", |cluster, agent| cluster.close(agent)),
        ("goodbye", |cluster, agent| {
            cluster.send(agent, ToServer::Goodbye)
        }),
        ("reads nothing", |cluster, agent| {
            cluster.break_outbox(agent);
            let other = cluster.agent("other");
            cluster.report(
                other,
                &[(&InstanceName::new("x", "x", "other"), Phase::Running)],
            );
        }),
    ];
    for (name, end) in ends {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let agent = cluster.settled_agent("agent_A");
        let witness = cluster.settled_agent("agent_B");
        cluster.report(agent, &[(&a(), Phase::Running)]);
        cluster.take_all();
        end(&mut cluster, agent);
        assert_eq!(
            cluster.phase(&a()),
            Some(Phase::AgentDisconnected),
            "{name}"
        );
        assert!(cluster.is_closed(agent), "{name}");
        let told = cluster.take(witness);
        let Some(FromServer::WorkloadStates(states)) = told.last() else {
            panic!("{name}: {told:?}")
        };
        assert_eq!(
            states.last(),
            Some(&state(&a(), Phase::AgentDisconnected)),
            "{name}"
        );
        cluster.close(agent); // The endpoint reports the end of the stream as well.
    }
}

#[test]
fn many_peers_that_stop_reading_at_once_are_all_dropped() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agents: Vec<PeerId> = (0..20)
        .map(|index| cluster.settled_agent(&format!("agent{index}")))
        .collect();
    let survivor = cluster.settled_agent("agent_A");
    agents.iter().for_each(|agent| cluster.break_outbox(*agent));
    cluster.report(survivor, &[(&a(), Phase::Running)]);
    assert!(agents.iter().all(|agent| cluster.is_closed(*agent)));
    assert!(!cluster.is_closed(survivor));
}

#[test]
fn an_agent_speaks_for_itself_only_and_a_commander_for_nobody() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let cli = cluster.open(PeerHello::Cli);
    cluster.report(
        agent,
        &[
            (&b(), Phase::Running),
            (&a(), Phase::Running),
            (&c(), Phase::Removed),
        ],
    );
    assert_eq!(
        cluster.take(cli),
        [FromServer::WorkloadStates(vec![state(
            &a(),
            Phase::Running
        )])]
    );
    assert_eq!(cluster.phase(&b()), Some(Phase::PendingInitial));
    assert_eq!(cluster.phase(&c()), Some(Phase::NotScheduled));
    cluster.report(cli, &[(&a(), Phase::FailedLost)]);
    assert_eq!(cluster.phase(&a()), Some(Phase::Running));
    for (peer, name) in [(agent, "agent_B"), (cli, "agent_A")] {
        let load = AgentLoad {
            agent: name.into(),
            cpu_usage: 1,
            free_memory: 1,
            engine: String::new(),
        };
        cluster.send(peer, ToServer::AgentLoad(load));
    }
    assert_eq!(cluster.read(&["agents"]), r#"{"agents":{"agent_A":{}}}"#);
}

#[test]
fn removed_states_vanish_and_unknown_workloads_are_kept() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let other = cluster.settled_agent("agent_B");
    let unknown = InstanceName::with_id("old", "id", "agent_A");
    cluster.report(agent, &[(&unknown, Phase::Running)]);
    assert_eq!(cluster.phase(&unknown), Some(Phase::Running));
    cluster.take_all();
    cluster.report(agent, &[(&unknown, Phase::Removed)]);
    assert_eq!(cluster.phase(&unknown), None);
    assert_eq!(
        cluster.take(other),
        [FromServer::WorkloadStates(vec![state(
            &unknown,
            Phase::Removed
        )])]
    );
    cluster.report(agent, &[]);
    assert_eq!(cluster.take(other), []);
}

#[test]
fn unwanted_states_of_one_agent_are_bounded() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (mut agent, witness) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let strange = |number: usize| InstanceName::with_id(&format!("x{number}"), "id", "agent_A");
    for round in 0..3 {
        for part in 0..100 {
            let names: Vec<InstanceName> = (0..1_000)
                .map(|index| strange(round * 100_000 + part * 1_000 + index))
                .collect();
            cluster.report(
                agent,
                &names
                    .iter()
                    .map(|name| (name, Phase::Running))
                    .collect::<Vec<_>>(),
            );
            cluster.take_all();
        }
        let count = cluster
            .server
            .updates
            .workloads()
            .states
            .of_agent("agent_A")
            .count();
        let wanted = 1;
        assert_eq!(count, NEVER_WANTED + wanted);
        // Reports of wanted or known instances are still taken.
        let [first, second] = [0, 1].map(|index| strange(round * 100_000 + index));
        cluster.report(
            agent,
            &[
                (&a(), Phase::Running),
                (&first, Phase::Succeeded),
                (&second, Phase::Removed),
            ],
        );
        assert_eq!(cluster.phase(&a()), Some(Phase::Running));
        assert_eq!(cluster.phase(&first), Some(Phase::Succeeded));
        assert_eq!(cluster.phase(&second), None);
        cluster.take_all();
        cluster.report(
            agent,
            &[
                (&second, Phase::Running),
                (&strange(999_999_999), Phase::Running),
            ],
        );
        assert_eq!(
            cluster.phase(&second),
            Some(Phase::Running),
            "one is gone, so there is room for one"
        );
        assert_eq!(
            cluster.take(witness),
            [FromServer::WorkloadStates(vec![state(
                &second,
                Phase::Running
            )])],
            "what is not stored is not passed on"
        );
        // A new connection begins with empty counts.
        cluster.close(agent);
        agent = cluster.settled_agent("agent_A");
    }
}

#[test]
fn unwanted_states_of_agents_with_new_names_are_bounded() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let witness = cluster.settled_agent("agent_B");
    let before = cluster.server.updates.workloads().states.iter().count();
    for number in 0..20 {
        let name = format!("new_{number}");
        let agent = cluster.settled_agent(&name);
        let names: Vec<_> = (0..4_000)
            .map(|index| InstanceName::with_id(&format!("x{index}"), "id", &name))
            .collect();
        cluster.report(
            agent,
            &names
                .iter()
                .map(|name| (name, Phase::Running))
                .collect::<Vec<_>>(),
        );
        assert_eq!(
            cluster
                .server
                .updates
                .workloads()
                .states
                .of_agent(&name)
                .count(),
            NEVER_WANTED
        );
        cluster.take_all();
        cluster.close(agent);
        let [FromServer::WorkloadStates(gone)] = &cluster.take(witness)[..] else {
            panic!("all hear that")
        };
        assert!(
            gone.len() == NEVER_WANTED
                && gone.iter().all(|state| state.state.phase == Phase::Removed)
        );
        assert_eq!(
            cluster.server.updates.workloads().states.iter().count(),
            before
        );
    }
}

#[test]
fn lost_agent_is_reported_before_its_log_collections_end() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent_a, agent_b) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let cli = cluster.open(PeerHello::Cli);
    let logs = |instance: InstanceName| {
        RequestContent::Logs(ankaios_model::messages::LogsRequest {
            instances: vec![instance],
            ..Default::default()
        })
    };
    // agent_B collects from agent_A for its workload, and provides for the command line.
    cluster.send_request(agent_b, "b@logs", logs(a()));
    cluster.send_request(cli, "logs", logs(b()));
    cluster.take_all();
    cluster.close(agent_b);
    let gone = FromServer::WorkloadStates(vec![state(&b(), Phase::AgentDisconnected)]);
    let cancel = FromServer::LogsCancel {
        request_id: format!("{}@b@logs", agent_b.0),
    };
    assert_eq!(cluster.take(agent_a), [gone.clone(), cancel]);
    let why = log_entries::no_log(b(), "agent 'agent_B' is not connected any more");
    let reason = Response {
        id: "logs".into(),
        content: ResponseContent::LogEntries(vec![why]),
    };
    let stop = Response {
        id: "logs".into(),
        content: ResponseContent::LogsStop(b()),
    };
    assert_eq!(
        cluster.take(cli),
        [
            gone,
            FromServer::Response(reason),
            FromServer::Response(stop)
        ]
    );
}

#[test]
fn only_agents_and_the_older_cli_service_hear_of_states() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (cli, commander) = (cluster.open(PeerHello::Cli), cluster.commander());
    let agent = cluster.agent("agent_A");
    // The new agent receives all states that are not its own; no other peer needs them.
    let others = vec![
        state(&c(), Phase::NotScheduled),
        state(&b(), Phase::PendingInitial),
    ];
    assert_eq!(cluster.take(agent)[0], FromServer::WorkloadStates(others));
    assert_eq!(cluster.take(cli), []);
    cluster.report(agent, &[(&a(), Phase::Running)]);
    assert_eq!(
        cluster.take(cli),
        [FromServer::WorkloadStates(vec![state(
            &a(),
            Phase::Running
        )])]
    );
    assert_eq!(cluster.take(commander), []);
}

#[test]
fn strange_messages_change_nothing_and_keep_the_connection() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let before = cluster.read(&[]);
    let commander = cluster.commander();
    for message in [
        ToServer::Empty,
        ToServer::AgentHello(ankaios_model::messages::AgentHello {
            agent: "x".into(),
            version: "1.0.0".into(),
            ..ankaios_model::messages::AgentHello::default()
        }),
        ToServer::CommanderHello {
            version: String::new(),
        },
        ToServer::LogEntries {
            request_id: String::new(),
            entries: vec![],
        },
        ToServer::LogsStop {
            request_id: "no@such@one".into(),
            instance: a(),
        },
    ] {
        cluster.send(commander, message);
    }
    for content in [
        RequestContent::Missing,
        RequestContent::EventsCancel,
        RequestContent::LogsCancel,
    ] {
        // A request without an id has no response.
        cluster.send_request(commander, String::new(), content);
    }
    assert_eq!(cluster.take(commander), []);
    assert!(!cluster.is_closed(commander));
    assert_eq!(cluster.read(&[]), before);
    // Messages of an unknown stream are ignored.
    cluster.send(PeerId(999), ToServer::Goodbye);
    cluster.close(PeerId(999));
}

#[test]
fn a_request_that_cannot_be_handled_is_answered_with_an_error() {
    let mut cluster = Cluster::with_manifest(ASKING);
    let agent = cluster.settled_agent("A");
    let commander = cluster.commander();
    let no_state = RequestContent::UpdateState(UpdateState {
        new_state: None,
        masks: vec![],
        ..Default::default()
    });
    for (content, text) in [
        (
            RequestContent::Missing,
            "The Request does not contain any content",
        ),
        (
            no_state,
            "The UpdateStateRequest does not contain a new state",
        ),
    ] {
        for (peer, id) in [(commander, "question"), (agent, "workload@question")] {
            cluster.send_request(peer, id, content.clone());
            let answer = Response {
                id: id.to_owned(),
                content: ResponseContent::Error(ErrorResponse::received(text.to_owned(), None)),
            };
            assert_eq!(cluster.take(peer), [FromServer::Response(answer)]);
            assert!(!cluster.is_closed(peer));
        }
    }
}

#[test]
fn answers_carry_the_id_that_came_on_the_same_stream() {
    let mut cluster = Cluster::with_manifest(ASKING);
    let (agent, cli, commander) = (
        cluster.settled_agent("A"),
        cluster.open(PeerHello::Cli),
        cluster.commander(),
    );
    for (peer, id) in [
        (agent, "workload@1@2"),
        (agent, "no-workload"),
        (cli, "same"),
        (commander, "same"),
        (cli, "@"),
    ] {
        let content = read(&["agents"], false);
        cluster.send_request(peer, id, content);
        let answers = cluster.take(peer);
        assert!(
            matches!(answers.as_slice(), [FromServer::Response(response)] if response.id == id),
            "{answers:?}"
        );
    }
}

#[test]
fn hostile_texts_are_only_texts() {
    let mut cluster = Cluster::default();
    let name = "x".repeat(63);
    let agent = cluster.settled_agent(&name);
    let strange = InstanceName::with_id("..\n\u{0}@", &"i".repeat(300), &name);
    cluster.report(agent, &[(&strange, Phase::Running)]);
    assert_eq!(cluster.phase(&strange), Some(Phase::Running));
    assert!(
        cluster
            .read(&["workloadStates.*.*.*.state"])
            .contains("Running")
    );
    let masks: Vec<String> = vec![
        ["*"; 10_000].join("."),
        "..".into(),
        "\n".into(),
        "a".repeat(1_000_000),
    ];
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    assert_eq!(cluster.read(&masks), "{}");
    for mask in masks {
        let result = cluster.update("{desiredState: {apiVersion: v1}}", &[mask]);
        assert!(result.is_ok() || result.unwrap_err().contains("Could not find field"));
    }
}

#[test]
fn older_connection_announced_late_does_not_replace_the_newer() {
    let mut cluster = Cluster::default();
    let newer = cluster.settled_agent("agent_A");
    let (outbox, reader) = ankaios_wire::outbox::outbox();
    let hello = PeerHello::Agent(ankaios_model::messages::AgentHello {
        agent: "agent_A".to_owned(),
        ..ankaios_model::messages::AgentHello::default()
    });
    let opened = PeerEvent::Opened {
        peer: PeerId(newer.0 - 1),
        hello,
        source: String::new(),
        certificate_expires: None,
        outbox,
    };
    cluster.server.on_event(ServerEvent::Peer(opened));
    assert!(!cluster.is_closed(newer));
    assert!(cluster.is_closed(PeerId(newer.0 - 1)) && reader.ended());
    assert_eq!(cluster.server.sessions.of_agent("agent_A"), Some(newer));
}

// [utest->swdd~server-reports-programs~1]
#[test]
fn version_of_an_agent_of_ours_names_its_implementation() {
    let mut cluster = Cluster::default();
    let of_ours = AgentCapabilities {
        prepares: true,
        ..AgentCapabilities::default()
    };
    for (agent, version, capabilities) in [
        ("ours", "1.1.0", of_ours),
        ("silent", "", of_ours),
        ("theirs", "1.1.0", AgentCapabilities::default()),
    ] {
        cluster.open(PeerHello::Agent(AgentHello {
            agent: agent.to_owned(),
            version: version.to_owned(),
            capabilities,
            ..AgentHello::default()
        }));
    }
    let shown = cluster.read(&["programs.agents.*.version"]);
    let expected = r#"{"programs":{"agents":{"ours":{"version":"1.1.0 (ankaios-lite)"},"silent":{"version":""},"theirs":{"version":"1.1.0"}}}}"#;
    assert_eq!(shown, expected);
}
