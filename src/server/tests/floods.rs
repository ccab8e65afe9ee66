//! Clients that request more than they read: pending and refused requests, and connections that
//! must survive the requests of others.

use super::*;
use crate::LoopWaker;
use crate::admission::PENDING_OF_REQUESTER;
use crate::limits::{LOG_COLLECTIONS_OF_WORKLOAD, SUBSCRIPTIONS_OF_WORKLOAD};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::messages::{AgentLoad, LogsRequest};
use ankaios_wire::limits::{PEER_OUTBOX_BYTES, RESPONSES_BYTES, SERVER_INBOX_OF_STREAM};
use ankaios_wire::peer::MessagePermits;
use ankaios_wire::semaphore::Semaphore;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

const RULES: &str = "{allowRules: [{type: StateRule, operation: ReadWrite, filterMasks: ['*']}, \
                     {type: LogRule, workloadNames: ['*']}]}";

/// Two workloads on agent A, which may request everything, and many other workloads on agent B with
/// long texts.
fn cluster() -> Cluster {
    let text = "x".repeat(2000);
    let workload = |agent: &str, rules: &str| {
        format!(
            "{{agent: {agent}, runtime: podman, runtimeConfig: x, controlInterfaceAccess: {rules}}}"
        )
    };
    let others = (0..100).map(|number| {
        let workload =
            workload("B", "{}").replace("runtime:", &format!("tags: {{long: {text}}}, runtime:"));
        format!("w{number}: {workload}")
    });
    let asking = ["greedy", "modest"].map(|name| format!("{name}: {}", workload("A", RULES)));
    let all: Vec<String> = others.chain(asking).collect();
    Cluster::with_manifest(&format!(
        "apiVersion: v1\nworkloads: {{{}}}",
        all.join(", ")
    ))
}

/// Ids of states and of errors among `messages`.
fn answers(messages: Vec<FromServer>) -> (Vec<String>, Vec<String>) {
    let (mut states, mut errors) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            FromServer::Response(Response {
                id,
                content: ResponseContent::CompleteState { .. },
            }) => states.push(id),
            FromServer::Response(Response {
                id,
                content: ResponseContent::Error(_),
            }) => errors.push(id),
            _ => {}
        }
    }
    (states, errors)
}

#[test]
fn response_is_built_only_after_the_one_before_is_taken() {
    let mut cluster = cluster();
    let agent = cluster.settled_agent("A");
    let commander = cluster.commander();
    let asked = 100;
    for number in 0..asked {
        cluster.send_request(agent, format!("greedy@{number}"), read(&[], false));
    }
    cluster.send_request(agent, "modest@x", read(&[], false));
    cluster.send_request(agent, "greedy@cancel", RequestContent::EventsCancel);
    assert!(
        matches!(
            cluster.request(commander, read(&[], false)),
            ResponseContent::CompleteState { .. }
        ),
        "another stream"
    );
    let (states, refused) = answers(cluster.take(agent));
    assert_eq!(
        (states, refused.len()),
        (
            vec!["greedy@0".to_owned()],
            asked - 1 - PENDING_OF_REQUESTER
        )
    );
    let mut late = Vec::new();
    for _ in 0..PENDING_OF_REQUESTER + 1 {
        cluster.server.on_event(ServerEvent::Room);
        cluster.server.on_event(ServerEvent::Room);
        let (states, refused) = answers(cluster.take(agent));
        assert_eq!((states.len(), refused.len()), (1, 0), "one at a time");
        late.extend(states);
    }
    let mut expected: Vec<_> = (1..=PENDING_OF_REQUESTER)
        .map(|number| format!("greedy@{number}"))
        .collect();
    expected.push("modest@x".to_owned());
    assert_eq!(late, expected);
    assert!(cluster.server.admission.is_empty() && !cluster.is_closed(agent));
}

#[test]
fn what_waited_is_served_one_request_in_a_turn() {
    let mut cluster = cluster();
    let (wake, woken) = crossbeam_channel::bounded(1);
    cluster
        .server
        .admission
        .set_waker(Waker::from(Arc::new(LoopWaker(wake))));
    let agent = cluster.settled_agent("A");
    cluster.send_request(agent, "greedy@large", read(&[], false)); // Its answer takes all the room.
    let asked = ["modest@1", "modest@2", "greedy@3", "modest@4"];
    for id in asked {
        cluster.send_request(agent, id, read(&["desiredState.workloads.w1.agent"], false));
    }
    assert_eq!(answers(cluster.take(agent)).0, ["greedy@large"]);
    let mut turns = Vec::new();
    while woken.try_recv().is_ok() && turns.len() <= 2 * asked.len() {
        cluster.server.on_event(ServerEvent::Room);
        turns.push(answers(cluster.take(agent)).0);
    }
    let served: Vec<String> = turns.concat();
    assert!(
        turns.iter().all(|turn| turn.len() <= 1) && turns.len() == asked.len() + 1,
        "{turns:?}"
    );
    assert_eq!(served, asked);
}

#[test]
fn agent_that_forwards_everything_keeps_its_connection() {
    let mut cluster = cluster();
    let agent = cluster.settled_agent("A");
    for number in 0..100_000 {
        cluster.send_request(agent, format!("greedy@{number}"), read(&[], false));
        cluster.send_request(agent, format!("nobody@{number}"), read(&[], false));
    }
    assert!(!cluster.is_closed(agent));
    let (states, refused) = answers(cluster.take(agent));
    assert!(
        (1..=2).contains(&states.len()) && refused.len() > 1_000,
        "{states:?} {}",
        refused.len()
    );
}

#[test]
fn untaken_events_end_the_subscription_not_the_connection() {
    let mut cluster = cluster();
    let agent = cluster.settled_agent("A");
    cluster.send_request(agent, "greedy@events", read(&[], true));
    assert_eq!(answers(cluster.take(agent)).0, ["greedy@events"]);
    let text = "x".repeat(100_000);
    for round in 0..2 * PEER_OUTBOX_BYTES / text.len() {
        let tags = format!(
            "{{desiredState: {{apiVersion: v1, workloads: {{w1: {{tags: {{t: '{round}{text}'}}}}}}}}}}"
        );
        cluster
            .update(&tags, &["desiredState.workloads.w1.tags"])
            .unwrap();
    }
    assert!(!cluster.is_closed(agent));
    assert!(!cluster.server.is_subscribed(agent, "greedy@events"));
    let (events, refused) = answers(cluster.take(agent));
    assert!(events.len() > 10);
    assert_eq!(refused, ["greedy@events"], "it is told");
}

#[test]
fn slow_agent_keeps_its_connection_when_others_want_its_logs() {
    let mut cluster = cluster();
    let provider = cluster.settled_agent("B");
    let commander = cluster.commander();
    let instances: Vec<InstanceName> = (0..100)
        .map(|number| InstanceName::new(&format!("w{number}"), "x", "B"))
        .collect();
    let logs = LogsRequest {
        instances,
        ..LogsRequest::default()
    };
    let mut stopped = 0;
    for number in 0..2_000 {
        cluster.send_request(
            commander,
            number.to_string(),
            RequestContent::Logs(logs.clone()),
        );
        cluster.send_request(commander, number.to_string(), RequestContent::LogsCancel);
        let stops = |message: &FromServer| {
            matches!(
                message,
                FromServer::Response(Response {
                    content: ResponseContent::LogsStop(_),
                    ..
                })
            )
        };
        stopped += cluster
            .take(commander)
            .iter()
            .filter(|message| stops(message))
            .count();
        cluster.server.on_event(ServerEvent::Room);
    }
    assert!(!cluster.is_closed(provider) && stopped > 0, "{stopped}");
}

/// The response to a workload that sets these workloads or configs.
fn greedy_sets(
    cluster: &mut Cluster,
    agent: PeerId,
    part: &str,
    name: &str,
    value: &str,
) -> Result<(), String> {
    let state = format!("{{desiredState: {{apiVersion: v1, {part}: {{{name}: {value}}}}}}}");
    cluster.send_request(
        agent,
        "greedy@1",
        update(&state, &[&format!("desiredState.{part}.{name}")]),
    );
    let response = cluster
        .take(agent)
        .into_iter()
        .find_map(|message| match message {
            FromServer::Response(response) => Some(response.content),
            _ => None,
        });
    outcome(response.expect("a response")).map(drop)
}

#[test]
fn workloads_grow_the_state_up_to_its_bound_and_users_beyond() {
    let mut cluster = cluster();
    let agent = cluster.settled_agent("A");
    let workload = |text: &str, rest: &str| {
        format!("{{agent: C, runtime: podman, runtimeConfig: '{text}'{rest}}}")
    };
    let large = "x".repeat(3 << 20);
    // Both as desired and as effective.
    for name in ["one", "two"] {
        assert_eq!(
            greedy_sets(
                &mut cluster,
                agent,
                "workloads",
                name,
                &workload(&large, "")
            ),
            Ok(())
        );
    }
    let before = cluster.read(&["desiredState.workloads"]);
    let refused = greedy_sets(
        &mut cluster,
        agent,
        "workloads",
        "three",
        &workload(&large, ""),
    )
    .unwrap_err();
    assert!(
        refused.contains("would take 19") && refused.contains("at most 16777216; use shorter"),
        "{refused}"
    );
    let file = format!(", files: [{{mountPoint: /f, data: {large}}}]");
    let mask = "x".repeat(4 << 20);
    let rules = format!(
        ", controlInterfaceAccess: {{allowRules: [{{type: StateRule, operation: Read, filterMasks: [{mask}]}}]}}"
    );
    for rest in [&file, &rules, &format!(", tags: {{t: {large}}}")] {
        let refused = greedy_sets(
            &mut cluster,
            agent,
            "workloads",
            "three",
            &workload("x", rest),
        )
        .unwrap_err();
        assert!(refused.contains("would take"), "{rest:.20} {refused}");
    }
    let refused =
        greedy_sets(&mut cluster, agent, "configs", "c", &"y".repeat(5 << 20)).unwrap_err();
    assert!(refused.contains("would take"), "{refused}");
    assert!(cluster.read(&["desiredState.workloads"]) == before);
    // A user may, and then workloads may make it smaller only.
    let state = format!(
        "{{desiredState: {{apiVersion: v1, workloads: {{three: {}}}}}}}",
        workload(&large, "")
    );
    cluster
        .update(&state, &["desiredState.workloads.three"])
        .unwrap();
    assert!(
        greedy_sets(
            &mut cluster,
            agent,
            "workloads",
            "one",
            &workload(&large, ", tags: {a: b}")
        )
        .is_err()
    );
    let other = large.replace('x', "z");
    assert_eq!(
        greedy_sets(
            &mut cluster,
            agent,
            "workloads",
            "one",
            &workload(&other, "")
        ),
        Ok(()),
        "as large as before"
    );
    assert_eq!(
        greedy_sets(&mut cluster, agent, "workloads", "two", &workload("x", "")),
        Ok(())
    );
    assert_eq!(
        greedy_sets(
            &mut cluster,
            agent,
            "workloads",
            "two",
            &workload("y", ", tags: {a: b}")
        ),
        Ok(())
    );
}

#[test]
fn what_templates_make_and_what_is_staged_counts_as_well() {
    let mut cluster = cluster();
    let agent = cluster.agent_with(
        "A",
        AgentCapabilities {
            prepares: true,
            ..Default::default()
        },
    );
    cluster.take_all();
    assert_eq!(
        greedy_sets(&mut cluster, agent, "configs", "c", &"y".repeat(1 << 20)),
        Ok(())
    );
    // This number of megabytes, of which the desired state has few.
    let rendered = |config: &str, count: usize| {
        let files: String = (0..count)
            .map(|number| {
                format!(
                    "{{mountPoint: /f{number}, data: '{}'}}, ",
                    "{{a}}".repeat(4)
                )
            })
            .collect();
        format!(
            "{{agent: A, runtime: podman, runtimeConfig: '{config}', configs: {{a: c}}, files: [{files}]}}"
        )
    };
    let waits = rendered(
        "{ image: x, lifecycle: { update: { when: { pathMissing: /lock } } } }",
        2,
    );
    assert_eq!(
        greedy_sets(&mut cluster, agent, "workloads", "one", &waits),
        Ok(())
    );
    assert!(
        !cluster
            .server
            .updates
            .workloads()
            .effective
            .contains_key("one"),
        "it is staged"
    );
    let refused =
        greedy_sets(&mut cluster, agent, "workloads", "two", &rendered("x", 2)).unwrap_err();
    assert!(refused.contains("would take 18"), "{refused}");
    assert_eq!(
        greedy_sets(&mut cluster, agent, "workloads", "two", &rendered("x", 1)),
        Ok(())
    );
    let refused =
        greedy_sets(&mut cluster, agent, "configs", "c", &"y".repeat(2 << 20)).unwrap_err();
    assert!(
        refused.contains("is longer than"),
        "it is rendered again: {refused}"
    );
    let refused =
        greedy_sets(&mut cluster, agent, "workloads", "two", &rendered("x", 3)).unwrap_err();
    assert!(refused.contains("render too much"), "{refused}");
}

#[test]
fn workload_has_a_share_of_the_subscriptions_of_its_agent() {
    let mut cluster = cluster();
    let agent = cluster.settled_agent("A");
    let masks = || ReadState {
        masks: vec!["agents".to_owned()],
        subscribe: true,
    };
    let instances = vec![InstanceName::new("w1", "x", "B")];
    let logs = LogsRequest {
        instances,
        ..LogsRequest::default()
    };
    for (content, share) in [
        (
            RequestContent::CompleteState(masks()),
            SUBSCRIPTIONS_OF_WORKLOAD,
        ),
        (RequestContent::Logs(logs), LOG_COLLECTIONS_OF_WORKLOAD),
    ] {
        // While agent B is away there are no logs, and collections end at once.
        let _provider = cluster.settled_agent("B");
        let mut accepted = |workload: &str, count: usize| {
            let mut accepted = 0;
            for number in 0..count {
                cluster.send_request(agent, format!("{workload}@{number}"), content.clone());
                accepted += usize::from(answers(cluster.take(agent)).1.is_empty());
            }
            accepted
        };
        assert_eq!(accepted("greedy", 2 * share), share);
        assert_eq!(accepted("modest", share), share);
    }
}

/// How long the slow server works at least for one request.
const WORK: Duration = Duration::from_millis(25);
/// As long as anybody rests.
const REST: Duration = Duration::from_secs(10);

/// Time that passes with each reading, so that the sender of a request is throttled.
#[derive(Debug, Clone)]
struct BusyClock(ManualClock);

impl Clock for BusyClock {
    fn now(&self) -> Instant {
        self.0.advance(WORK);
        self.0.now()
    }

    fn alarm(&self, at: Instant) -> Receiver<Instant> {
        self.0.alarm(at)
    }
}

/// A cluster whose server is slow, its clock, and the channel by which the server is woken.
fn busy_cluster() -> (Cluster, ManualClock, Receiver<()>) {
    let (mut cluster, clock) = (cluster(), ManualClock::new());
    let (wake, woken) = crossbeam_channel::bounded(1);
    cluster.server.set_clock(BusyClock(clock.clone()));
    cluster
        .server
        .admission
        .set_waker(Waker::from(Arc::new(LoopWaker(wake))));
    (cluster, clock, woken)
}

/// A request that is refused.
fn refused_update() -> RequestContent {
    RequestContent::UpdateState(UpdateState {
        new_state: None,
        masks: vec![],
        ..Default::default()
    })
}

#[test]
fn busy_agent_waits_for_others_whatever_workloads_it_names() {
    let (mut cluster, clock, woken) = busy_cluster();
    let (agent, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    clock.advance(REST); // Their hellos count as well.
    let commander = cluster.commander();
    let asked = 3 * PENDING_OF_REQUESTER;
    for number in 0..asked {
        cluster.send_request(agent, format!("greedy@{number}"), refused_update());
    }
    let at_once: Vec<String> = answers(cluster.take(agent)).1;
    let served = at_once
        .iter()
        .enumerate()
        .take_while(|(number, id)| **id == format!("greedy@{number}"))
        .count();
    assert!((1..5).contains(&served), "before it rests: {at_once:?}");
    assert_eq!(
        at_once.len(),
        asked - PENDING_OF_REQUESTER,
        "others wait or are refused"
    );
    cluster.send_request(agent, "modest@1", refused_update());
    assert_eq!(answers(cluster.take(agent)).1, [""; 0], "its stream rests");
    assert!(
        matches!(
            cluster.request(commander, read(&[], false)),
            ResponseContent::CompleteState { .. }
        ),
        "others are served"
    );
    cluster.send(other, ToServer::StatesComplete);
    // A new connection of the same agent changes nothing; updates of the one before it are still
    // made.
    let again = cluster.settled_agent("A");
    cluster.send_request(again, "greedy@again", refused_update());
    cluster.send_request(again, "modest@again", refused_update());
    assert_eq!(
        answers(cluster.take(again)),
        (vec![], vec!["greedy@again".to_owned()]),
        "no room"
    );
    let mut late = Vec::new();
    while woken.try_recv().is_ok() && late.len() < asked {
        cluster.server.on_event(ServerEvent::Room);
        late.extend(answers(cluster.take(again)).1);
    }
    assert_eq!(late, ["modest@again"]);
    assert!(
        cluster.server.admission.is_empty(),
        "when nobody else wants anything all is done"
    );
}

#[test]
fn a_modest_workload_comes_before_greedy_ones_of_the_same_agent() {
    let (mut cluster, clock, _) = busy_cluster();
    let agent = cluster.settled_agent("A");
    for number in 0..10 {
        cluster.send_request(agent, format!("greedy@{number}"), refused_update());
    }
    cluster.server.set_clock(clock.clone()); // To be put among those that wait takes no time.
    cluster.send_request(agent, "modest@1", refused_update());
    cluster.server.set_clock(BusyClock(clock.clone()));
    cluster.take(agent);
    cluster.server.on_event(ServerEvent::Room);
    assert_eq!(answers(cluster.take(agent)).1, ["modest@1"]);
    // Later it is not throttled, and its pending requests still keep their order.
    clock.advance(REST);
    cluster.send_request(agent, "greedy@last", refused_update());
    assert_eq!(answers(cluster.take(agent)).1, [""; 0]);
    cluster.server.serve_all_waiting();
    let late = answers(cluster.take(agent)).1;
    assert!(
        late.len() > 2 && late.last().is_some_and(|id| id == "greedy@last"),
        "{late:?}"
    );
    clock.advance(REST);
    cluster.send_request(agent, "greedy@recovered", refused_update());
    assert_eq!(answers(cluster.take(agent)).1, ["greedy@recovered"]);
}

#[test]
fn throttled_agent_is_read_no_further_while_others_wait() {
    let (mut cluster, clock, _) = busy_cluster();
    let (flooding, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    clock.advance(REST);
    let inbox = Semaphore::new(SERVER_INBOX_OF_STREAM);
    let send_load = |cluster: &mut Cluster, peer: PeerId, agent: &str| {
        let load = AgentLoad {
            agent: agent.to_owned(),
            cpu_usage: 1,
            free_memory: 1,
            engine: String::new(),
        };
        let message = PeerEvent::Message {
            peer,
            message: ToServer::AgentLoad(load),
            permits: MessagePermits::of_slot(inbox.acquire(1)),
        };
        cluster.server.on_event(ServerEvent::Peer(message));
    };
    let now = clock.now();
    cluster.server.admission.begin_turn(true, now);
    while inbox.in_flight() == 0 {
        send_load(&mut cluster, flooding, "A");
    }
    let kept = inbox.in_flight();
    cluster.server.set_clock(clock.clone()); // The message of the other agent takes no time.
    send_load(&mut cluster, other, "B");
    assert_eq!(inbox.in_flight(), kept, "others are read");
    cluster.server.set_clock(BusyClock(clock.clone()));
    // A request of it is kept pending, and its slot as well.
    cluster
        .server
        .on_event(ServerEvent::Peer(PeerEvent::Message {
            peer: flooding,
            message: ToServer::Request(Request {
                id: "greedy@1".to_owned(),
                content: refused_update(),
            }),
            permits: MessagePermits::of_slot(inbox.acquire(1)),
        }));
    assert_eq!(inbox.in_flight(), kept + 1);
    // It cannot avoid that with a new connection.
    let again = cluster.agent("A");
    assert!(cluster.take(again).is_empty() && cluster.is_closed(again));
    assert!(!cluster.is_closed(flooding));
    cluster.server.admission.begin_turn(false, clock.now());
    assert_eq!(inbox.in_flight(), 0, "nothing else waits");
    let again = cluster.agent("A");
    assert!(!cluster.is_closed(again));
}

#[test]
fn busy_commander_is_read_no_further_and_gets_all_responses() {
    let (mut cluster, _, _) = busy_cluster();
    let commander = cluster.commander();
    let inbox = Semaphore::new(SERVER_INBOX_OF_STREAM);
    let mut asked = Vec::new();
    // As its reader does it, which waits when all places of its stream are taken.
    while inbox.in_flight() < SERVER_INBOX_OF_STREAM {
        let id = asked.len().to_string();
        let message = ToServer::Request(Request {
            id: id.clone(),
            content: refused_update(),
        });
        let permits = MessagePermits::of_slot(inbox.acquire(1));
        cluster
            .server
            .on_event(ServerEvent::Peer(PeerEvent::Message {
                peer: commander,
                message,
                permits,
            }));
        asked.push(id);
        assert!(asked.len() < 2 * SERVER_INBOX_OF_STREAM);
    }
    cluster.server.serve_all_waiting();
    assert_eq!(answers(cluster.take(commander)).1, asked);
    assert_eq!(inbox.in_flight(), 0, "all places are given back");
}

#[test]
fn requests_after_hooks_are_served_one_by_one_and_in_order() {
    let (mut cluster, clock, _) = busy_cluster();
    cluster.hook();
    let first = cluster.commander();
    let change = "{desiredState: {apiVersion: v1, workloads: {w1: {tags: {a: b}}}}}";
    cluster.send_request(
        first,
        "first",
        update(change, &["desiredState.workloads.w1.tags"]),
    );
    assert!(cluster.plans.try_recv().is_ok());
    let waiting: Vec<PeerId> = (0..20).map(|_| cluster.commander()).collect();
    waiting
        .iter()
        .for_each(|peer| cluster.send_request(*peer, "waits", refused_update()));
    let begin = clock.now();
    cluster.server.on_event(ServerEvent::Hooks(Ok(None)));
    assert!(clock.now() - begin < 16 * WORK, "{:?}", clock.now() - begin);
    let newer = cluster.commander();
    cluster.send_request(newer, "newer", refused_update());
    assert_eq!(cluster.take(newer), []);
    let mut answered = 0;
    while cluster.take(newer).is_empty() {
        answered += waiting
            .iter()
            .filter(|peer| !cluster.take(**peer).is_empty())
            .count();
        cluster.server.on_event(ServerEvent::Room);
    }
    answered += waiting
        .iter()
        .filter(|peer| !cluster.take(**peer).is_empty())
        .count();
    assert_eq!(answered, waiting.len());
}

#[test]
fn sources_that_read_nothing_leave_response_capacity_to_others() {
    let mut cluster = cluster();
    let silent: Vec<PeerId> = (0..200).map(|_| cluster.commander()).collect();
    for peer in &silent {
        cluster.send_request(*peer, "x", read(&[], false));
    }
    let answered = |cluster: &Cluster, peers: &[PeerId]| {
        let has_response = |peer: &&PeerId| !cluster.readers[peer].is_empty();
        peers.iter().filter(has_response).count()
    };
    let first = answered(&cluster, &silent);
    cluster.server.serve_all_waiting();
    assert_eq!(answered(&cluster, &silent), first, "the others wait");
    let one = cluster.readers[&silent[0]]
        .next_to_send()
        .expect("it has a response")
        .size();
    let half = RESPONSES_BYTES / 2;
    assert!(
        (half..half + 2 * one).contains(&(first * one)),
        "{first} of {one} bytes"
    );
    let reader = cluster.commander();
    cluster.send_request(reader, "mine", read(&["desiredState.apiVersion"], false));
    assert_eq!(
        answers(cluster.take(reader)).0,
        [""; 0],
        "of the same source"
    );
    // Each further source that reads nothing gets half of the remaining bytes.
    for source in 1..4 {
        let address = format!("10.0.0.{source}");
        let more: Vec<PeerId> = (0..30)
            .map(|_| cluster.open_from(&address, PeerHello::Commander))
            .collect();
        for peer in &more {
            cluster.send_request(*peer, "x", read(&[], false));
        }
        cluster.server.serve_all_waiting();
        assert!(answered(&cluster, &more) >= 1, "{address}");
    }
    assert!(cluster.answers.in_flight() < RESPONSES_BYTES);
    let elsewhere = cluster.open_from("10.0.1.1", PeerHello::Commander);
    cluster.send_request(elsewhere, "other", read(&[], false));
    assert_eq!(answers(cluster.take(elsewhere)).0, ["other"]);
    for peer in &silent {
        cluster.break_outbox(*peer); // The writer closes it.
        cluster.close(*peer);
    }
    cluster.server.serve_all_waiting();
    assert_eq!(answers(cluster.take(reader)).0, ["mine"]);
}
