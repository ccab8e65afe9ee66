//! Log lines of the server that others cause: each source has a few, for any messages.

use super::*;
use crate::settings::ModeSettings;
use ankaios_fakes::log_lines::{lines_of, suppressed};
use ankaios_model::messages::{AgentHello, LogEntry, LogsRequest, PreparedInstance, StopAndStart};
use ankaios_model::usage::AgentUsage;
use ankaios_platform::limits::LOG_SOURCE_LINES;

/// So often each message is sent.
const ROUNDS: usize = 100;

/// `user` may write what the requests are about.
const MANIFEST: &str = "
apiVersion: v1
configs: {mode: park}
workloads:
  user:
    agent: A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: ReadWrite, filterMasks: [desiredState.workloads.t0, desiredState.configs.mode]}
      - {type: LogRule, workloadNames: [t0]}
  t0: {agent: A, runtime: podman, runtimeConfig: x}
";

/// A request of each round, and the instance that it leads to.
type SubscriptionKind = Box<dyn Fn(usize) -> (RequestContent, Option<InstanceName>)>;

fn kinds() -> Vec<SubscriptionKind> {
    let t0 = |update: &'static str, rest: &'static str| -> SubscriptionKind {
        Box::new(move |number| {
            let config = format!("{{ image: {number}{update} }}");
            let workload =
                format!("{{agent: A, runtime: podman, runtimeConfig: '{config}'{rest}}}");
            let state =
                format!("{{desiredState: {{apiVersion: v1, workloads: {{t0: {workload}}}}}}}");
            let masks = ["desiredState.workloads.t0"];
            (
                super::update(&state, &masks),
                Some(InstanceName::new("t0", &config, "A")),
            )
        })
    };
    let same = |content: fn(usize) -> RequestContent| -> SubscriptionKind {
        Box::new(move |number| (content(number), None))
    };
    let logs = |name| LogsRequest {
        instances: vec![InstanceName::new(name, "x", "A")],
        ..LogsRequest::default()
    };
    vec![
        t0("", ""),
        t0(", lifecycle: { update: {} }", ""),
        t0(", lifecycle: { update: { onFailure: ROLLBACK } }", ""),
        t0(", lifecycle: { update: { stage: NONE } }", ""),
        t0(
            ", lifecycle: { update: { stage: NONE, onFailure: ROLLBACK } }",
            "",
        ),
        t0("", ", configs: {c: none}"),
        same(|number| {
            let state =
                format!("{{desiredState: {{apiVersion: v1, configs: {{mode: m{number}}}}}}}");
            update(&state, &["desiredState.configs.mode"])
        }),
        same(|_| {
            update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads.t0"],
            )
        }),
        same(|_| {
            update(
                "{desiredState: {apiVersion: v0.1}}",
                &["desiredState.workloads.t0"],
            )
        }),
        same(|_| {
            update(
                "{desiredState: {apiVersion: v9}}",
                &["desiredState.workloads.t0"],
            )
        }),
        same(|_| {
            update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads.other"],
            )
        }),
        same(|_| {
            RequestContent::UpdateState(UpdateState {
                new_state: Some(Err("x".to_owned())),
                masks: vec![],
                ..Default::default()
            })
        }),
        same(|_| {
            RequestContent::UpdateState(UpdateState {
                new_state: None,
                masks: vec![],
                ..Default::default()
            })
        }),
        same(|number| RequestContent::RollBack(number as u64)),
        same(|number| {
            RequestContent::StopAndStart(StopAndStart {
                stop: vec![format!("t{}", number % 2)],
                start: Vec::new(),
            })
        }),
        same(|_| read(&["desiredState.workloads.t0"], false)),
        same(|_| read(&["desiredState.workloads.t0"], true)),
        same(|_| read(&[], false)),
        same(|_| RequestContent::EventsCancel),
        Box::new(move |_| (RequestContent::Logs(logs("t0")), None)),
        Box::new(move |_| (RequestContent::Logs(logs("other")), None)),
        same(|_| RequestContent::LogsCancel),
        same(|_| RequestContent::Missing),
    ]
}

fn number_of(content: &RequestContent) -> usize {
    match content {
        RequestContent::UpdateState(_) => 0,
        RequestContent::CompleteState(_) => 1,
        RequestContent::Logs(_) => 2,
        RequestContent::LogsCancel => 3,
        RequestContent::EventsCancel => 4,
        RequestContent::Missing => 5,
        RequestContent::RollBack(_) => 6,
        RequestContent::StopAndStart(_) => 7,
    }
}

fn cluster() -> (Cluster, PeerId) {
    let mut cluster = Cluster::default();
    cluster.server.set_modes(ModeSettings {
        config_item: "mode".to_owned(),
        on_failure: None,
    });
    cluster.server.start_with(desired(MANIFEST)).unwrap();
    let agent = cluster.agent_with(
        "A",
        AgentCapabilities {
            prepares: true,
            ..AgentCapabilities::default()
        },
    );
    (cluster, agent)
}

/// Sends all kinds of requests, whose instances can neither be staged nor started.
fn flood(
    cluster: &mut Cluster,
    agent: PeerId,
    mut send: impl FnMut(&mut Cluster, String, RequestContent),
) {
    let mut sent = BTreeSet::new();
    for kind in kinds() {
        for number in 0..ROUNDS {
            let (content, instance) = kind(number);
            sent.insert(number_of(&content));
            send(cluster, number.to_string(), content);
            for _ in 0..3 {
                cluster.take_all();
                cluster.server.serve_all_waiting();
            }
            let Some(instance) = instance else { continue };
            if number % 2 == 1 {
                let (level, reason, tries, unmet) =
                    (None, Some("no such image".to_owned()), 1, None);
                let report = PreparedInstance {
                    instance: instance.clone(),
                    level,
                    reason,
                    tries,
                    is_final: true,
                    unmet,
                };
                cluster.send(agent, ToServer::Prepared(vec![report]));
            }
            if cluster.server.updates.workloads().is_wanted(&instance) {
                cluster.report(agent, &[(&instance, Phase::PendingStartingFailed)]);
            }
        }
    }
    assert_eq!(sent, (0..8).collect());
}

/// Each of these sources has caused as many lines as it may, and no other line was written.
#[track_caller]
fn assert_bounded(lines: &[String], sources: &[&str]) {
    assert_eq!(
        suppressed(lines),
        BTreeSet::from_iter(sources.iter().copied()),
        "{lines:#?}"
    );
    // With the line that further ones are left out.
    let most = (LOG_SOURCE_LINES as usize + 1) * sources.len();
    assert_eq!(lines.len(), most, "{lines:#?}");
}

#[test]
fn updates_of_a_workload_do_not_fill_the_log() {
    let (mut cluster, agent) = cluster();
    let lines = lines_of(|| {
        flood(&mut cluster, agent, |cluster, id, content| {
            cluster.send_request(agent, format!("user@{id}"), content)
        });
    });
    assert!(
        lines
            .iter()
            .any(|line| line == "Update 1 (t0) is being staged."),
        "{lines:#?}"
    );
    // Our agents deny what an agent of another kind may send, and which stands for itself.
    assert_bounded(&lines, &["A", "user' of 'A"]);
}

/// Most lines come when its connection is closed.
#[test]
fn repeated_command_lines_do_not_fill_the_log() {
    let (mut cluster, agent) = cluster();
    let lines = lines_of(|| {
        flood(&mut cluster, agent, |cluster, id, content| {
            let commander = cluster.open_from("uid 7", PeerHello::Commander);
            cluster.send_request(commander, id, content);
            cluster.send_request(commander, "", RequestContent::EventsCancel);
            cluster.close(commander);
        });
    });
    assert_bounded(&lines, &["uid 7"]);
}

fn messages(number: usize) -> Vec<ToServer> {
    let instance =
        |name: &str, agent: &str| InstanceName::new(&format!("{name}{number}"), "x", agent);
    let request = |id: String| Request {
        id,
        content: update("{desiredState: {apiVersion: v1}}", &["desiredState"]),
    };
    let (request_id, prepared) = (format!("B@{number}"), |instance| PreparedInstance {
        instance,
        level: None,
        reason: Some("x".to_owned()),
        tries: 1,
        is_final: true,
        unmet: None,
    });
    vec![
        ToServer::AgentHello(AgentHello {
            agent: "A".to_owned(),
            version: "1".to_owned(),
            ..AgentHello::default()
        }),
        ToServer::CommanderHello {
            version: "1".to_owned(),
        },
        ToServer::WorkloadStates(vec![state(&instance("x", "B"), Phase::Running)]),
        ToServer::WorkloadStates(vec![state(
            &InstanceName::new("x", &number.to_string(), "A"),
            Phase::Running,
        )]),
        ToServer::WorkloadStates(vec![state(&instance("y", "A"), Phase::FailedExecFailed)]),
        ToServer::StatesComplete,
        ToServer::AgentLoad(AgentLoad {
            agent: "B".to_owned(),
            cpu_usage: 1,
            free_memory: 1,
            engine: String::new(),
        }),
        ToServer::Prepared(vec![prepared(instance("z", "A"))]),
        ToServer::Request(request(format!("made_up{number}@x"))),
        ToServer::Request(request(String::new())),
        ToServer::Request(request("user@x".to_owned())),
        ToServer::Request(Request {
            id: String::new(),
            content: RequestContent::Missing,
        }),
        ToServer::LogEntries {
            request_id: request_id.clone(),
            entries: vec![LogEntry::line(instance("x", "A"), "x")],
        },
        ToServer::LogsStop {
            request_id,
            instance: instance("x", "A"),
        },
        ToServer::UsageResponse {
            number: 7,
            usage: AgentUsage::default(),
        },
        ToServer::Empty,
        ToServer::Goodbye,
    ]
}

fn number_of_message(message: &ToServer) -> usize {
    match message {
        ToServer::AgentHello(_) => 0,
        ToServer::CommanderHello { .. } => 1,
        ToServer::WorkloadStates(_) => 2,
        ToServer::StatesComplete => 3,
        ToServer::AgentLoad(_) => 4,
        ToServer::Prepared(_) => 5,
        ToServer::Request(_) => 6,
        ToServer::LogEntries { .. } => 7,
        ToServer::LogsStop { .. } => 8,
        ToServer::UsageResponse { .. } => 9,
        ToServer::Empty => 10,
        ToServer::Goodbye => 11,
    }
}

#[test]
fn messages_of_every_kind_do_not_fill_the_log() {
    let (mut cluster, mut agent) = cluster();
    let lines = lines_of(|| {
        for number in 0..ROUNDS {
            let older = agent;
            // It connects while it is connected, and its goodbye ends the newer one.
            agent = cluster.agent("A");
            let messages = messages(number);
            assert_eq!(
                messages
                    .iter()
                    .map(number_of_message)
                    .collect::<BTreeSet<_>>(),
                (0..12).collect()
            );
            messages
                .into_iter()
                .for_each(|message| cluster.send(agent, message));
            cluster.close(older);
            agent = cluster.agent("A");
            cluster.take_all();
        }
    });
    assert_bounded(&lines, &["A"]);
}
