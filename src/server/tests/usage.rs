//! Usage reads: the requests to agents, the wait for their samples, and the response.

use super::subscriptions::USAGE_READS_OF_WORKLOAD;
use super::*;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_model::messages::{AgentCapabilities, AgentHello};
use ankaios_model::names::hash_id;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::usage::{AgentUsage, WorkloadUsage};
use std::time::Duration;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: A, runtime: podman, runtimeConfig: x}
  b: {agent: B, runtime: podman, runtimeConfig: x, controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read, filterMasks: [usage]}]}}
";

/// A server with two agents that send samples, a commander, and the time.
struct Rig {
    cluster: Cluster,
    clock: ManualClock,
    agents: [PeerId; 2],
    commander: PeerId,
}

impl Rig {
    /// Of each read that waits for how many agents it does.
    fn waiting(&mut self) -> Vec<usize> {
        self.cluster
            .server
            .subscriptions
            .reads()
            .map(|(_, _, read)| read.awaited.len())
            .collect()
    }

    fn new() -> Self {
        let (mut cluster, clock) = (Cluster::with_manifest(MANIFEST), ManualClock::new());
        cluster.server.set_clock(clock.clone());
        let agents = ["A", "B"].map(|name| able(&mut cluster, name));
        let commander = cluster.commander();
        cluster.take_all();
        Self {
            cluster,
            clock,
            agents,
            commander,
        }
    }

    /// Sends a read of the commander.
    fn ask(&mut self, id: &str, masks: &[&str]) {
        self.cluster
            .send_request(self.commander, id, read(masks, false));
    }

    /// The numbers of the requests that an agent was sent since the last call, and nothing else.
    fn requested(&self, agent: usize) -> Vec<u64> {
        let number = |message| match message {
            FromServer::UsageRequest { number } => number,
            other => panic!("{other:?}"),
        };
        self.cluster
            .take(self.agents[agent])
            .into_iter()
            .map(number)
            .collect()
    }

    fn respond(&mut self, agent: usize, number: u64, usage: AgentUsage) {
        self.cluster.send(
            self.agents[agent],
            ToServer::UsageResponse { number, usage },
        );
    }

    /// The responses to the commander since the last call, each with its id, as JSON.
    fn responses(&self) -> Vec<(String, String)> {
        self.cluster
            .take(self.commander)
            .into_iter()
            .map(response)
            .collect()
    }

    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        if self
            .cluster
            .server
            .subscriptions
            .usage_until()
            .is_some_and(|at| at <= ankaios_platform::clock::Clock::now(&self.clock))
        {
            self.cluster.server.on_event(ServerEvent::Due);
        }
    }
}

fn response(message: FromServer) -> (String, String) {
    match message {
        FromServer::Response(Response {
            id,
            content:
                ResponseContent::CompleteState {
                    state,
                    altered: None,
                },
        }) => (id, serde_json::to_string(&state).unwrap()),
        FromServer::Response(Response {
            id,
            content: ResponseContent::Error(ErrorResponse { text, .. }),
        }) => (id, text),
        other => panic!("{other:?}"),
    }
}

fn able(cluster: &mut Cluster, name: &str) -> PeerId {
    let capabilities = AgentCapabilities {
        tells_usage: true,
        ..AgentCapabilities::default()
    };
    cluster.open(PeerHello::Agent(AgentHello {
        agent: name.to_owned(),
        capabilities,
        ..AgentHello::default()
    }))
}

/// A sample in which the instance of `workload` has this number of processes.
fn sample(workload: &str, pids: u64) -> AgentUsage {
    let usage = WorkloadUsage {
        pids: Some(pids),
        ..WorkloadUsage::default()
    };
    let ids = [(hash_id("x").as_str().into(), usage)].into();
    AgentUsage {
        sampled_usec: Some(5),
        workloads: [(workload.into(), ids)].into(),
        ..AgentUsage::default()
    }
}

/// The JSON of that sample.
fn shown(workload: &str, pids: u64) -> String {
    let id = hash_id("x");
    format!(r#"{{"sampledUsec":5,"workloads":{{"{workload}":{{"{id}":{{"pids":{pids}}}}}}}}}"#)
}

fn answer(id: &str, agents: &[(&str, &str)]) -> (String, String) {
    let agents: Vec<String> = agents
        .iter()
        .map(|(name, usage)| format!(r#""{name}":{usage}"#))
        .collect();
    (
        id.to_owned(),
        format!(r#"{{"usage":{{{}}}}}"#, agents.join(",")),
    )
}

const LATE: &str = r#"{"missing":"no answer within 1 s"}"#;

// [utest->swdd~usage-on-request~1]
#[test]
fn a_read_waits_for_all_agents_that_its_masks_reach() {
    let mut rig = Rig::new();
    rig.ask("1", &["usage"]);
    assert_eq!(
        (rig.requested(0), rig.requested(1), rig.responses()),
        (vec![1], vec![1], vec![])
    );
    rig.respond(1, 1, sample("b", 7));
    assert_eq!(rig.responses(), []);
    rig.respond(0, 1, sample("a", 3));
    assert_eq!(
        rig.responses(),
        [answer("1", &[("A", &shown("a", 3)), ("B", &shown("b", 7))])]
    );
    assert_eq!(
        rig.cluster.server.subscriptions.usage_until(),
        None,
        "no timer without a read"
    );
    rig.ask("2", &["usage.B.sampledUsec", "usage.C"]);
    assert_eq!((rig.requested(0), rig.requested(1)), (vec![], vec![2]));
    rig.respond(1, 2, sample("b", 7));
    assert_eq!(
        rig.responses(),
        [answer("2", &[("B", r#"{"sampledUsec":5}"#)])]
    );
    rig.ask("3", &["usage.nobody"]);
    assert_eq!(
        rig.responses(),
        [answer("3", &[])],
        "the part is there although it is empty"
    );
}

#[test]
fn masks_select_in_the_sample_and_other_parts_come_with_it() {
    let id = hash_id("x");
    for (masks, expected) in [
        (
            vec!["usage.*.workloads.a"],
            format!(r#"{{"usage":{{"A":{{"workloads":{{"a":{{"{id}":{{"pids":3}}}}}}}}}}}}"#),
        ),
        (
            vec!["usage.A.workloads.*.*.memoryBytes"],
            r#"{"usage":{}}"#.to_owned(),
        ),
        (
            vec!["usage.A.sampledUsec", "agents"],
            r#"{"agents":{"A":{},"B":{}},"usage":{"A":{"sampledUsec":5}}}"#.to_owned(),
        ),
    ] {
        let mut rig = Rig::new();
        rig.ask("1", &masks);
        for agent in [0, 1] {
            for number in rig.requested(agent) {
                rig.respond(agent, number, sample(["a", "b"][agent], 3));
            }
        }
        assert_eq!(rig.responses(), [("1".to_owned(), expected)], "{masks:?}");
    }
}

fn has_usage(state: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(state)
        .unwrap()
        .get("usage")
        .is_some()
}

#[test]
fn usage_is_read_only_by_masks_that_begin_with_its_name() {
    let mut rig = Rig::new();
    for masks in [&[][..], &["*"], &["*.A"], &["usageFoo"], &["agents"], &[""]] {
        rig.ask("1", masks);
        let (_, state) = rig.responses().remove(0);
        assert!(!has_usage(&state), "{masks:?}: {state}");
    }
    rig.cluster
        .send_request(rig.commander, "events", read(&["usage", "*"], true));
    assert!(!has_usage(&rig.responses()[0].1));
    assert_eq!((rig.requested(0), rig.requested(1)), (vec![], vec![]));
    let before = rig.cluster.read(&["desiredState"]);
    rig.cluster
        .update(
            "{usage: {A: {missing: x}}, desiredState: {apiVersion: v1}}",
            &["usage"],
        )
        .unwrap();
    assert_eq!(rig.cluster.read(&["desiredState"]), before);
    let error = rig
        .cluster
        .update("{desiredState: {apiVersion: v1}}", &["usage.A"])
        .unwrap_err();
    assert!(error.contains("Could not find field usage.A"), "{error}");
}

#[test]
fn after_a_second_the_response_goes_without_those_that_are_late() {
    let mut rig = Rig::new();
    rig.ask("1", &["usage"]);
    let (first, second) = (rig.requested(0)[0], rig.requested(1)[0]);
    rig.respond(0, first, sample("a", 3));
    rig.pass(USAGE_WAIT_MAX - Duration::from_millis(1));
    assert_eq!(rig.responses(), []);
    rig.pass(Duration::from_millis(1));
    assert_eq!(
        rig.responses(),
        [answer("1", &[("A", &shown("a", 3)), ("B", LATE)])]
    );
    rig.respond(1, second, sample("b", 9));
    assert_eq!(rig.responses(), [], "a late sample is dropped");
    rig.ask("2", &["usage.B"]);
    rig.respond(1, second, sample("b", 9));
    assert_eq!(rig.responses(), [], "also when the next read waits");
    let third = rig.requested(1)[0];
    rig.respond(1, third, sample("b", 7));
    assert_eq!(
        rig.responses(),
        [answer("2", &[("B", &shown("b", 7))])],
        "all when it goes on"
    );
}

#[test]
fn usage_reads_join_an_open_request_and_wait_a_second_each() {
    let mut rig = Rig::new();
    rig.ask("1", &["usage.A"]);
    let number = rig.requested(0)[0];
    rig.pass(USAGE_WAIT_MAX * 2 / 3);
    rig.ask("2", &["usage.A"]);
    rig.ask("other", &["usage.B"]);
    assert_eq!(
        (rig.requested(0), rig.requested(1).len()),
        (vec![], 1),
        "one request per agent"
    );
    rig.pass(USAGE_WAIT_MAX / 2);
    assert_eq!(rig.responses(), [answer("1", &[("A", LATE)])]);
    rig.ask("overtakes", &["desiredState.apiVersion"]);
    assert_eq!(
        rig.responses().len(),
        1,
        "later requests are served meanwhile"
    );
    rig.respond(0, number, sample("a", 3));
    assert_eq!(rig.responses(), [answer("2", &[("A", &shown("a", 3))])]);
}

#[test]
fn an_agent_that_cannot_or_that_leaves_is_named_at_once() {
    let mut rig = Rig::new();
    let plain = rig.cluster.agent("plain");
    rig.cluster.take_all();
    rig.ask("1", &["usage.plain"]);
    assert_eq!(
        rig.responses(),
        [answer(
            "1",
            &[("plain", r#"{"missing":"its agent cannot report usage"}"#)]
        )]
    );
    assert_eq!(
        rig.cluster.take(plain),
        [],
        "it would not understand the request"
    );
    rig.cluster.close(plain);
    rig.ask("2", &["usage"]);
    let number = rig.requested(1)[0];
    rig.cluster.close(rig.agents[0]);
    rig.cluster.take(rig.agents[1]); // The states of the others.
    rig.respond(1, number, sample("b", 1));
    let gone = r#"{"missing":"disconnected"}"#;
    assert_eq!(
        rig.responses(),
        [answer("2", &[("A", gone), ("B", &shown("b", 1))])]
    );
    // The same agent on a new connection is another one.
    rig.ask("3", &["usage.B"]);
    let number = rig.requested(1)[0];
    let newer = able(&mut rig.cluster, "B");
    assert_eq!(rig.responses(), [answer("3", &[("B", gone)])]);
    rig.ask("4", &["usage.B"]);
    rig.cluster.send(
        newer,
        ToServer::UsageResponse {
            number,
            usage: sample("b", 1),
        },
    );
    assert_eq!(rig.responses(), []);
    rig.pass(USAGE_WAIT_MAX);
    assert_eq!(rig.responses(), [answer("4", &[("B", LATE)])]);
}

#[test]
fn unrequested_samples_and_unknown_instances_are_left_out() {
    let mut rig = Rig::new();
    rig.respond(0, 1, sample("a", 3));
    rig.ask("1", &["usage.A"]);
    let number = rig.requested(0)[0];
    rig.respond(1, number, sample("a", 4)); // Another agent.
    assert_eq!(rig.responses(), []);
    let mut usage = sample("a", 3);
    usage
        .workloads
        .insert("b".into(), usage.workloads["a"].clone()); // Of agent B.
    usage
        .workloads
        .insert("nobody".into(), usage.workloads["a"].clone());
    let text = WorkloadUsage {
        missing: Some("ä".repeat(128)),
        ..WorkloadUsage::default()
    };
    usage
        .workloads
        .get_mut("a")
        .unwrap()
        .extend([("other".into(), text.clone())]);
    usage.missing = Some("not for agents to tell".to_owned());
    rig.respond(0, number, usage.clone());
    assert_eq!(rig.responses(), [answer("1", &[("A", &shown("a", 3))])]);
    rig.ask("2", &["usage.A"]);
    let number = rig.requested(0)[0];
    usage
        .workloads
        .get_mut("a")
        .unwrap()
        .insert(hash_id("x").as_str().into(), text);
    rig.respond(0, number, usage);
    assert!(
        rig.responses()[0].1.len() < 2 * 128 + 100,
        "a text of an agent is cut"
    );
}

#[test]
fn usage_response_is_built_after_the_one_before_is_taken() {
    let mut rig = Rig::new();
    let large = format!(
        "{{desiredState: {{configs: {{large: {}}}}}}}",
        "x".repeat(2 * ankaios_wire::outbox::PEER_RESPONSES_BYTES)
    );
    rig.cluster
        .update(&large, &["desiredState.configs.large"])
        .unwrap();
    rig.cluster.take_all();
    for id in ["1", "2", "3"] {
        rig.ask(id, &["usage.A", "desiredState.configs"]);
    }
    rig.pass(USAGE_WAIT_MAX);
    assert_eq!(
        rig.cluster.server.subscriptions.usage_until(),
        None,
        "no timer for what waits for room only"
    );
    for id in ["1", "2", "3"] {
        let ids: Vec<String> = rig.responses().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [id], "one at a time");
        rig.cluster.server.on_event(ServerEvent::Room);
    }
    for number in 0..=USAGE_READS_OF_WORKLOAD {
        rig.cluster.send_request(
            rig.agents[1],
            format!("b@{number}"),
            read(&["usage.A"], false),
        );
    }
    let refused = |message: &FromServer| matches!(message, FromServer::Response(Response { id, .. }) if *id == format!("b@{USAGE_READS_OF_WORKLOAD}"));
    assert_eq!(
        rig.cluster
            .take(rig.agents[1])
            .iter()
            .filter(|message| refused(message))
            .count(),
        1
    );
    let without = "{desiredState: {workloads: {b: {controlInterfaceAccess: {allowRules: []}}}}}";
    rig.cluster
        .update(
            without,
            &["desiredState.workloads.b.controlInterfaceAccess"],
        )
        .unwrap();
    rig.pass(USAGE_WAIT_MAX);
    let answers = rig
        .cluster
        .take(rig.agents[1])
        .into_iter()
        .filter(|message| matches!(message, FromServer::Response(_)));
    let denied: Vec<String> = answers.map(|message| response(message).1).collect();
    assert_eq!(denied.len(), USAGE_READS_OF_WORKLOAD);
    assert!(
        denied.iter().all(|text| text.contains("Access denied")),
        "{denied:?}"
    );
}

#[test]
fn sixteen_reads_of_a_stream_wait_and_they_end_with_it() {
    let mut rig = Rig::new();
    for number in 0..16 {
        rig.ask(&number.to_string(), &["usage.A"]);
    }
    rig.ask("more", &["usage.A"]);
    let [(id, refused)] = &rig.responses()[..] else {
        panic!("one is refused")
    };
    assert!(
        id == "more"
            && refused.starts_with("Too many requests for usage of this connection, at most 16"),
        "{refused}"
    );
    let other = rig.cluster.commander();
    rig.cluster
        .send_request(other, "other", read(&["usage.A"], false));
    assert_eq!(rig.requested(0), [1]);
    rig.cluster.close(rig.commander);
    assert_eq!(rig.waiting(), [1]);
    rig.cluster.close(other);
    assert_eq!(rig.cluster.server.subscriptions.usage_until(), None);
    rig.cluster.server.on_event(ServerEvent::Due);
    assert_eq!(rig.waiting(), [] as [usize; 0]);
}

#[test]
fn a_workload_reads_with_the_right_to_that_part_only() {
    let mut rig = Rig::new();
    for (id, masks, allowed) in [
        ("b@1", "usage.A", true),
        ("b@2", "agents", false),
        ("a@1", "usage", false),
    ] {
        let agent = if id.starts_with('b') { 1 } else { 0 };
        rig.cluster
            .send_request(rig.agents[agent], id, read(&[masks], false));
        if allowed {
            let number = rig.requested(0)[0];
            rig.respond(0, number, sample("a", 3));
        }
        let (of, text) = response(rig.cluster.take(rig.agents[agent]).remove(0));
        assert_eq!(
            (of.as_str(), text.contains("pids")),
            (id, allowed),
            "{text}"
        );
    }
}

#[test]
fn the_metrics_count_agents_states_and_updates() {
    let mut rig = Rig::new();
    let text = |rig: &mut Rig| rig.cluster.server.numbers();
    rig.cluster.report(
        rig.agents[0],
        &[(&InstanceName::new("a", "x", "A"), Phase::Running)],
    );
    rig.cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.configs.none"],
        )
        .unwrap();
    rig.cluster
        .update("{desiredState: {apiVersion: v1}}", &["foo.bar"])
        .unwrap_err();
    let shown = text(&mut rig);
    for line in [
        "ankaios_server_agents 2",
        r#"ankaios_server_updates_total{result="accepted"} 1"#,
        r#"ankaios_server_updates_total{result="refused"} 1"#,
        "ankaios_server_guarded_updates_open 0",
        r#"ankaios_server_guarded_updates_total{phase="UNDONE"} 0"#,
        r#"ankaios_server_workloads{agent="A",state="Running"} 1"#,
        r#"ankaios_server_workloads{agent="A",state="Pending"} 0"#,
        r#"ankaios_server_workloads{agent="B",state="Pending"} 1"#,
    ] {
        assert!(shown.lines().any(|one| one == line), "{line}:\n{shown}");
    }
    assert_eq!(
        shown
            .lines()
            .filter(|line| line.starts_with("ankaios_server_workloads{"))
            .count(),
        2 * 7
    );
    assert!(!shown.contains("mode"), "there are no modes");
    let is_stored = "ankaios_server_state_stored";
    assert!(!shown.contains(is_stored), "there is no state folder");
    rig.cluster.close(rig.agents[0]);
    assert!(
        text(&mut rig)
            .contains(r#"ankaios_server_workloads{agent="A",state="AgentDisconnected"} 1"#)
    );
}
