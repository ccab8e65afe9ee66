//! Requests with very many masks: what they ask for is answered or refused, and others never wait for them. The time is
//! counted in keys that are looked up, so that a slow machine proves the same.

use super::*;
use crate::limits::{EVENT_STEPS_MAX, MASKS_OVERLAP_MAX, MASKS_PARTS_MAX};
use crate::model::mask_tree::lookups;

/// Keys that are looked up within a second, even by a slow processor.
const LOOKUPS_MAX: usize = 5_000_000;

fn ask(cluster: &mut Cluster, masks: &[String], subscribe: bool) -> (PeerId, ResponseContent) {
    let peer = cluster.commander();
    let read = ReadState { masks: masks.to_vec(), subscribe };
    (peer, cluster.ask(peer, RequestContent::CompleteState(read)))
}

/// A config with `levels` maps of one entry each and one with `leaves` entries below them.
fn deep(levels: usize, leaves: usize) -> DesiredState {
    let leaf = |number: usize| (format!("k{number}"), crate::model::workload::ConfigItem::Text("v".to_owned()));
    let wide = crate::model::workload::ConfigItem::Map((0..leaves).map(leaf).collect());
    let below =
        (1..levels).fold(wide, |below, _| crate::model::workload::ConfigItem::Map([("a".to_owned(), below)].into()));
    DesiredState { configs: [("a".to_owned(), below)].into(), ..DesiredState::default() }
}

/// All ways to write the path of `levels` keys with a wildcard or the key at each of the first `free` of them.
fn ways(levels: usize, free: u32, last: &str) -> Vec<String> {
    let key = |way: usize, level: usize| if way >> level & 1 == 1 { "*" } else { "a" };
    let path = |way: usize| (0..levels).map(|level| key(way, level)).collect::<Vec<_>>().join(".");
    (0..1 << free).map(|way| format!("desiredState.configs.{}.{last}{way}", path(way))).collect()
}

#[test]
fn masks_that_lead_to_each_of_many_fields_in_thousands_of_ways_are_refused() {
    let mut cluster = Cluster::default();
    cluster.server.start_with(deep(12, 10_000)).unwrap();
    let masks = ways(12, 12, "x");
    let parts: usize = masks.iter().map(|mask| mask.split('.').count()).sum();
    assert!(parts < MASKS_PARTS_MAX, "{parts}");
    for subscribe in [false, true] {
        let mut answer = None;
        let work = lookups(|| answer = Some(ask(&mut cluster, &masks, subscribe)));
        let Some((_, ResponseContent::Error(text))) = answer else { panic!("{answer:?}") };
        assert!(text.contains("4096 of the field masks") && text.contains("use fewer"), "{text}");
        assert!(work < LOOKUPS_MAX, "{work}");
    }
    assert!(cluster.server.subscriptions.is_empty());
    // As many ways as are allowed are followed, and the state is there.
    let masks = ways(12, MASKS_OVERLAP_MAX.ilog2(), "k");
    let mut answer = None;
    let work = lookups(|| answer = Some(ask(&mut cluster, &masks, false)));
    let Some((_, ResponseContent::CompleteState { state, .. })) = answer else { panic!("{answer:?}") };
    assert!(serde_json::to_string(&state).unwrap().contains(r#""k0":"v""#), "{state:?}");
    assert!(work < LOOKUPS_MAX, "{work}");
}

#[test]
fn equal_masks_count_once_in_reads_subscriptions_and_updates() {
    let mut cluster = Cluster::default();
    let masks = vec!["desiredState.workloads.*.agent".to_owned(); 100_000];
    let (peer, answer) = ask(&mut cluster, &masks, true);
    assert!(matches!(answer, ResponseContent::CompleteState { .. }), "{answer:?}");
    let workload = |number: usize| format!("w{number}: {{agent: A, runtime: podman, runtimeConfig: x}}");
    let workloads = (0..300).map(workload).collect::<Vec<_>>().join(", ");
    let new = format!("{{desiredState: {{apiVersion: v1, workloads: {{{workloads}}}}}}}");
    let work = lookups(|| {
        cluster.update(&new, &["desiredState.workloads"; 100_000]).unwrap();
    });
    assert!(work < 100_000, "{work}");
    let messages = cluster.take(peer);
    let [
        FromServer::Response(Response {
            content: ResponseContent::CompleteState { altered: Some(altered), .. }, ..
        }),
    ] = messages.as_slice()
    else {
        panic!("{messages:?}")
    };
    assert_eq!(altered.added.len(), 300, "{altered:?}");
    assert_eq!(altered.added[0], "desiredState.workloads.w0.agent");
}

#[test]
fn a_dozen_masks_for_each_of_five_thousand_workloads_are_room_enough_and_cost_little() {
    let mut cluster = Cluster::default();
    let fields = ["agent", "runtime", "runtimeConfig", "restartPolicy", "tags", "configs", "files", "dependencies"];
    let fields = [&fields[..], &["controlInterfaceAccess", "one", "two", "three"]].concat();
    let masks: Vec<String> = (0..5_000)
        .flat_map(|number| fields.iter().map(move |field| format!("desiredState.workloads.w{number}.{field}")))
        .collect();
    let (peer, answer) = ask(&mut cluster, &masks, true);
    assert!(matches!(answer, ResponseContent::CompleteState { .. }), "{answer:?}");
    let workload = |number: usize| format!("w{number}: {{agent: A, runtime: podman, runtimeConfig: x}}");
    let workloads = (4_900..5_100).map(workload).collect::<Vec<_>>().join(", ");
    let new = format!("{{desiredState: {{apiVersion: v1, workloads: {{{workloads}}}}}}}");
    let work = lookups(|| {
        cluster.update(&new, &["desiredState.workloads"]).unwrap();
    });
    assert!(work < 100_000, "{work}");
    let [
        FromServer::Response(Response {
            content: ResponseContent::CompleteState { altered: Some(altered), .. }, ..
        }),
    ] = &cluster.take(peer)[..]
    else {
        panic!("one event")
    };
    assert_eq!(altered.added.len(), 100 * 4, "{:?}", altered.added.first());
}

#[test]
fn an_update_of_very_many_deep_fields_ends_subscriptions_and_not_the_server() {
    let state = |value: &str, leaves: usize| {
        let wide = Node::map((0..leaves).map(|number| (format!("k{number}"), Node::text(value))));
        let deep = (0..30).fold(wide, |below, _| Node::map([("a", below)]));
        Node::map([("desiredState", Node::map([("configs", Node::map([("c", deep)]))]))])
    };
    let mut cluster = Cluster::default();
    let masks = vec!["desiredState.configs".to_owned()];
    let put = |cluster: &mut Cluster, value: &str, leaves: usize| {
        let update = UpdateState { new_state: Some(Ok(state(value, leaves))), masks: masks.clone() };
        let peer = cluster.commander();
        let answer = cluster.ask(peer, RequestContent::UpdateState(update));
        assert!(matches!(answer, ResponseContent::UpdateStateSuccess { .. }), "{answer:?}");
    };
    put(&mut cluster, "old", 1_000);
    let (peer, _) = ask(&mut cluster, &["desiredState".to_owned()], true);
    put(&mut cluster, "new", 1_000);
    let event = cluster.take(peer).pop();
    assert!(
        matches!(&event, Some(FromServer::Response(Response { content: ResponseContent::CompleteState { altered: Some(altered), .. }, .. })) if altered.updated.len() == 1_000),
        "{event:?}"
    );
    put(&mut cluster, "newer", 10_000);
    let [FromServer::Response(Response { content: ResponseContent::Error(text), .. })] = &cluster.take(peer)[..] else {
        panic!("the subscriber is told")
    };
    assert!(text.contains("subscribe again"), "{text}");
    assert!(cluster.server.subscriptions.is_empty());
}

/// One new field brings all that is below it, and masks may lead to each of these fields.
#[test]
fn masks_to_each_of_very_many_new_fields_end_their_subscription_and_no_other() {
    let state = |leaves: usize| {
        let wide = Node::map((0..leaves).map(|number| (format!("k{number}"), Node::text("v"))));
        let deep = (0..30).fold(wide, |below, _| Node::map([("a", below)]));
        Node::map([("desiredState", Node::map([("configs", Node::map([("c", deep)]))]))])
    };
    let each = format!("desiredState.configs.c{}.*", ".a".repeat(30));
    for (leaves, told) in [(1_000, Some(1_000)), (40_000, None)] {
        let mut cluster = Cluster::default();
        let (greedy, _) = ask(&mut cluster, std::slice::from_ref(&each), true);
        let (modest, _) = ask(&mut cluster, &["desiredState.configs".to_owned()], true);
        let new_state = Some(Ok(state(leaves)));
        let update = UpdateState { new_state, masks: vec!["desiredState.configs".to_owned()] };
        let peer = cluster.commander();
        let mut answer = None;
        let work = lookups(|| answer = Some(cluster.ask(peer, RequestContent::UpdateState(update))));
        assert!(matches!(answer, Some(ResponseContent::UpdateStateSuccess { .. })), "{answer:?}");
        assert!(work < LOOKUPS_MAX, "{work}");
        let event = |peer: PeerId| match cluster.take(peer).pop() {
            Some(FromServer::Response(Response { content, .. })) => content,
            other => panic!("{other:?}"),
        };
        match (event(greedy), told) {
            (ResponseContent::CompleteState { altered: Some(altered), .. }, Some(told)) => {
                assert_eq!(altered.added.len(), told);
            }
            (ResponseContent::Error(text), None) => assert!(text.contains("subscribe again"), "{text}"),
            (other, _) => panic!("{leaves}: {other:?}"),
        }
        assert!(matches!(event(modest), ResponseContent::CompleteState { altered: Some(_), .. }), "{leaves}");
        assert_eq!(cluster.server.subscriptions.by_peer().len(), if told.is_some() { 2 } else { 1 });
    }
}

/// An update of `count` workloads.
fn workloads(count: usize, config: &str) -> String {
    let workload = |number: usize| format!("w{number}: {{agent: A, runtime: podman, runtimeConfig: {config}}}");
    let workloads = (0..count).map(workload).collect::<Vec<_>>().join(", ");
    format!("{{desiredState: {{apiVersion: v1, workloads: {{{workloads}}}}}}}")
}

/// Subscribes under many ids on one stream, each time with these masks.
fn subscribe_often(cluster: &mut Cluster, masks: impl Fn(usize) -> Vec<String>, count: usize) -> PeerId {
    let peer = cluster.commander();
    for number in 0..count {
        let content = RequestContent::CompleteState(ReadState { masks: masks(number), subscribe: true });
        cluster.say(peer, ToServer::Request(Request { id: format!("s{number:03}"), content }));
        cluster.take(peer);
    }
    peer
}

/// Events and errors.
fn told(messages: &[FromServer]) -> (Vec<&ResponseContent>, Vec<&str>) {
    let (mut events, mut errors) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            FromServer::Response(Response { content: ResponseContent::Error(text), .. }) => errors.push(text.as_str()),
            FromServer::Response(Response { content, .. }) => events.push(content),
            other => panic!("{other:?}"),
        }
    }
    (events, errors)
}

#[test]
fn what_many_subscriptions_with_equal_masks_are_told_is_found_out_and_read_once() {
    for masks in [vec![], vec!["*.*.*".to_owned(), "workloadStates".to_owned()]] {
        let mut works = Vec::new();
        for count in [1, 64] {
            let mut cluster = Cluster::default();
            let peer = subscribe_often(&mut cluster, |_| masks.clone(), count);
            let other = subscribe_often(&mut cluster, |_| masks.clone(), 1);
            works.push(lookups(|| drop(cluster.update(&workloads(100, "x"), &["desiredState.workloads"]).unwrap())));
            let messages = cluster.take(peer);
            let (events, errors) = told(&messages);
            assert_eq!((events.len(), errors.len()), (count, 0));
            let all = cluster.take(other);
            assert!(events.iter().all(|event| *event == told(&all).0[0]), "they are told the same");
        }
        assert!(works[0] == works[1] && works[0] > 0, "{masks:?}: {works:?}");
    }
}

#[test]
fn subscriptions_to_everything_of_one_who_has_many_end_when_telling_them_takes_too_long_and_no_others() {
    let mut cluster = Cluster::default();
    // Each asks for everything in another way.
    let everything = |number: usize| vec!["*".to_owned(), format!("x{number}")];
    let greedy = subscribe_often(&mut cluster, everything, 64);
    let modest = subscribe_often(&mut cluster, everything, 1);
    let own = subscribe_often(&mut cluster, |_| vec!["desiredState.workloads.w1".to_owned()], 1);
    let work = lookups(|| drop(cluster.update(&workloads(1_000, "x"), &["desiredState.workloads"]).unwrap()));
    assert!(work < EVENT_STEPS_MAX, "{work}");
    let messages = cluster.take(greedy);
    let (events, errors) = told(&messages);
    assert!(events.len() >= 5 && errors.len() >= 32 && events.len() + errors.len() == 64, "{} told", events.len());
    assert!(errors.iter().all(|text| text.contains("Too many fields")), "{errors:?}");
    for peer in [modest, own] {
        let messages = cluster.take(peer);
        assert_eq!((told(&messages).0.len(), told(&messages).1.len()), (1, 0));
    }
}

#[test]
fn who_subscribes_to_everything_without_masks_is_told_of_five_thousand_new_workloads() {
    let mut cluster = Cluster::default();
    let masks = [vec![], vec!["desiredState".to_owned()], vec!["*".to_owned()], vec!["workloadStates".to_owned()]];
    let peer = subscribe_often(&mut cluster, |number| masks[number].clone(), masks.len());
    cluster.update(&workloads(5_000, "x"), &["desiredState.workloads"]).unwrap();
    let messages = cluster.take(peer);
    assert_eq!((told(&messages).0.len(), told(&messages).1.len()), (masks.len(), 0));
}
