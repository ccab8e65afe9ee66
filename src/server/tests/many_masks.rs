//! Requests with very many masks: they are served or refused, and others never wait for them. The
//! time is counted in keys that are looked up, so that a slow machine proves the same.

use super::*;
use crate::limits::MASKS_PARTS_MAX;
use ankaios_model::mask_tree::MASKS_OVERLAP_MAX;
use ankaios_model::mask_tree::lookups;
use ankaios_model::refusal::ErrorResponse;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Keys that are looked up within a second, even by a slow processor.
const LOOKUPS_MAX: usize = 5_000_000;

fn read_as_new(
    cluster: &mut Cluster,
    masks: &[String],
    subscribe: bool,
) -> (PeerId, ResponseContent) {
    let peer = cluster.commander();
    let read = ReadState {
        masks: masks.to_vec(),
        subscribe,
    };
    (
        peer,
        cluster.request(peer, RequestContent::CompleteState(read)),
    )
}

/// A config with `levels` maps of one entry each and one with `leaves` entries below them.
fn deep(levels: usize, leaves: usize) -> DesiredState {
    let leaf = |number: usize| {
        (
            format!("k{number}"),
            ankaios_model::workload::ConfigItem::Text("v".to_owned()),
        )
    };
    let wide = ankaios_model::workload::ConfigItem::Map((0..leaves).map(leaf).collect());
    let below = (1..levels).fold(wide, |below, _| {
        ankaios_model::workload::ConfigItem::Map([("a".to_owned(), below)].into())
    });
    DesiredState {
        configs: [("a".to_owned(), below)].into(),
        ..DesiredState::default()
    }
}

/// A state with these workloads.
fn workloads(numbers: Range<usize>) -> String {
    let workload =
        |number: usize| format!("w{number}: {{agent: A, runtime: podman, runtimeConfig: x}}");
    let workloads = numbers.map(workload).collect::<Vec<_>>().join(", ");
    format!("{{desiredState: {{apiVersion: v1, workloads: {{{workloads}}}}}}}")
}

/// A state with a config of 30 maps below each other and `leaves` values in the last of them.
fn wide(value: &str, leaves: usize) -> Node {
    let wide = Node::map((0..leaves).map(|number| (format!("k{number}"), Node::text(value))));
    let deep = (0..30).fold(wide, |below, _| Node::map([("a", below)]));
    Node::map([(
        "desiredState",
        Node::map([("configs", Node::map([("c", deep)]))]),
    )])
}

/// The fields that the one event for `peer` added.
fn added_by_one_event(cluster: &Cluster, peer: PeerId) -> Vec<String> {
    match cluster.responses(peer).as_slice() {
        [
            ResponseContent::CompleteState {
                altered: Some(altered),
                ..
            },
        ] => altered.added.clone(),
        other => panic!("{other:?}"),
    }
}

/// All ways to write the path of `levels` keys with a wildcard or the key at each of the first
/// `free` of them.
fn ways(levels: usize, free: u32, last: &str) -> Vec<String> {
    let key = |way: usize, level: usize| if way >> level & 1 == 1 { "*" } else { "a" };
    let path = |way: usize| {
        (0..levels)
            .map(|level| key(way, level))
            .collect::<Vec<_>>()
            .join(".")
    };
    (0..1 << free)
        .map(|way| format!("desiredState.configs.{}.{last}{way}", path(way)))
        .collect()
}

#[test]
fn masks_that_reach_fields_in_thousands_of_ways_are_refused() {
    let mut cluster = Cluster::default();
    cluster.server.start_with(deep(12, 10_000)).unwrap();
    let masks = ways(12, 12, "x");
    let parts: usize = masks.iter().map(|mask| mask.split('.').count()).sum();
    assert!(parts < MASKS_PARTS_MAX, "{parts}");
    for subscribe in [false, true] {
        let mut answer = None;
        let work = lookups(|| answer = Some(read_as_new(&mut cluster, &masks, subscribe)));
        let Some((_, ResponseContent::Error(ErrorResponse { text, .. }))) = answer else {
            panic!("{answer:?}")
        };
        assert!(
            text.contains("4096 of the field masks") && text.contains("use fewer"),
            "{text}"
        );
        assert!(work < LOOKUPS_MAX, "{work}");
    }
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
    // As many ways as are allowed are followed, and the state is there.
    let masks = ways(12, MASKS_OVERLAP_MAX.ilog2(), "k");
    let mut answer = None;
    let work = lookups(|| answer = Some(read_as_new(&mut cluster, &masks, false)));
    let Some((_, ResponseContent::CompleteState { state, .. })) = answer else {
        panic!("{answer:?}")
    };
    assert!(
        serde_json::to_string(&state)
            .unwrap()
            .contains(r#""k0":"v""#),
        "{state:?}"
    );
    assert!(work < LOOKUPS_MAX, "{work}");
}

#[test]
fn equal_masks_count_once_in_reads_subscriptions_and_updates() {
    let mut cluster = Cluster::default();
    let masks = vec!["desiredState.workloads.*.agent".to_owned(); 100_000];
    let (peer, answer) = read_as_new(&mut cluster, &masks, true);
    assert!(
        matches!(answer, ResponseContent::CompleteState { .. }),
        "{answer:?}"
    );
    let work = lookups(|| {
        cluster
            .update(&workloads(0..300), &["desiredState.workloads"; 100_000])
            .unwrap();
    });
    assert!(work < 100_000, "{work}");
    let added = added_by_one_event(&cluster, peer);
    assert_eq!(added.len(), 300, "{added:?}");
    assert_eq!(added[0], "desiredState.workloads.w0.agent");
}

#[test]
fn dozen_masks_for_each_of_5000_workloads_are_allowed() {
    let mut cluster = Cluster::default();
    let fields = [
        "agent",
        "runtime",
        "runtimeConfig",
        "restartPolicy",
        "tags",
        "configs",
        "files",
        "dependencies",
    ];
    let fields = [
        &fields[..],
        &["controlInterfaceAccess", "one", "two", "three"],
    ]
    .concat();
    let masks: Vec<String> = (0..5_000)
        .flat_map(|number| {
            fields
                .iter()
                .map(move |field| format!("desiredState.workloads.w{number}.{field}"))
        })
        .collect();
    let (peer, answer) = read_as_new(&mut cluster, &masks, true);
    assert!(
        matches!(answer, ResponseContent::CompleteState { .. }),
        "{answer:?}"
    );
    let work = lookups(|| {
        cluster
            .update(&workloads(4_900..5_100), &["desiredState.workloads"])
            .unwrap();
    });
    assert!(work < 100_000, "{work}");
    assert_eq!(added_by_one_event(&cluster, peer).len(), 100 * 4);
}

#[test]
fn update_of_very_many_deep_fields_ends_subscriptions() {
    let mut cluster = Cluster::default();
    let masks = vec!["desiredState.configs".to_owned()];
    let put = |cluster: &mut Cluster, value: &str, leaves: usize| {
        let update = UpdateState {
            new_state: Some(Ok(wide(value, leaves))),
            masks: masks.clone(),
            ..Default::default()
        };
        let peer = cluster.commander();
        let answer = cluster.request(peer, RequestContent::UpdateState(update));
        assert!(
            matches!(answer, ResponseContent::UpdateStateSuccess { .. }),
            "{answer:?}"
        );
    };
    put(&mut cluster, "old", 1_000);
    let (peer, _) = read_as_new(&mut cluster, &["desiredState".to_owned()], true);
    put(&mut cluster, "new", 1_000);
    let event = cluster.responses(peer).pop();
    assert!(
        matches!(&event, Some(ResponseContent::CompleteState { altered: Some(altered), .. }) if altered.updated.len() == 1_000),
        "{event:?}"
    );
    put(&mut cluster, "newer", 10_000);
    let [ResponseContent::Error(ErrorResponse { text, .. })] = &cluster.responses(peer)[..] else {
        panic!("the subscriber gets an error")
    };
    assert!(text.contains("subscribe again"), "{text}");
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
}

/// One new field brings all that is below it, and masks may lead to each of these fields.
#[test]
fn masks_to_very_many_new_fields_end_only_their_subscription() {
    let each = format!("desiredState.configs.c{}.*", ".a".repeat(30));
    for (leaves, told) in [(1_000, Some(1_000)), (40_000, None)] {
        let mut cluster = Cluster::default();
        let (greedy, _) = read_as_new(&mut cluster, std::slice::from_ref(&each), true);
        let (modest, _) = read_as_new(&mut cluster, &["desiredState.configs".to_owned()], true);
        let new_state = Some(Ok(wide("v", leaves)));
        let update = UpdateState {
            new_state,
            masks: vec!["desiredState.configs".to_owned()],
            ..Default::default()
        };
        let peer = cluster.commander();
        let mut answer = None;
        let work =
            lookups(|| answer = Some(cluster.request(peer, RequestContent::UpdateState(update))));
        assert!(
            matches!(answer, Some(ResponseContent::UpdateStateSuccess { .. })),
            "{answer:?}"
        );
        assert!(work < LOOKUPS_MAX, "{work}");
        let event = |peer: PeerId| cluster.responses(peer).pop().unwrap();
        match (event(greedy), told) {
            (
                ResponseContent::CompleteState {
                    altered: Some(altered),
                    ..
                },
                Some(told),
            ) => {
                assert_eq!(altered.added.len(), told);
            }
            (ResponseContent::Error(ErrorResponse { text, .. }), None) => {
                assert!(text.contains("subscribe again"), "{text}")
            }
            (other, _) => panic!("{leaves}: {other:?}"),
        }
        assert!(
            matches!(
                event(modest),
                ResponseContent::CompleteState {
                    altered: Some(_),
                    ..
                }
            ),
            "{leaves}"
        );
        assert_eq!(
            cluster.server.subscribed().len(),
            if told.is_some() { 2 } else { 1 }
        );
    }
}

/// Subscribes under many ids on one stream, each time with these masks.
fn subscribe_often(
    cluster: &mut Cluster,
    masks: impl Fn(usize) -> Vec<String>,
    count: usize,
) -> PeerId {
    let peer = cluster.commander();
    for number in 0..count {
        let content = RequestContent::CompleteState(ReadState {
            masks: masks(number),
            subscribe: true,
        });
        cluster.send_request(peer, format!("s{number:03}"), content);
        cluster.take(peer);
    }
    peer
}

/// Events and errors for `peer`.
fn events(cluster: &Cluster, peer: PeerId) -> (Vec<ResponseContent>, Vec<String>) {
    let (mut events, mut errors) = (Vec::new(), Vec::new());
    for content in cluster.responses(peer) {
        match content {
            ResponseContent::Error(ErrorResponse { text, .. }) => errors.push(text),
            event => events.push(event),
        }
    }
    (events, errors)
}

#[test]
fn event_for_equal_masks_is_built_once() {
    for masks in [
        vec![],
        vec!["*.*.*".to_owned(), "workloadStates".to_owned()],
    ] {
        let mut works = Vec::new();
        for count in [1, 64] {
            let mut cluster = Cluster::default();
            let peer = subscribe_often(&mut cluster, |_| masks.clone(), count);
            let other = subscribe_often(&mut cluster, |_| masks.clone(), 1);
            works.push(lookups(|| {
                drop(
                    cluster
                        .update(&workloads(0..100), &["desiredState.workloads"])
                        .unwrap(),
                )
            }));
            let (own, errors) = events(&cluster, peer);
            assert_eq!((own.len(), errors.len()), (count, 0));
            let others = events(&cluster, other).0;
            assert!(
                own.iter().all(|event| *event == others[0]),
                "they get the same"
            );
        }
        assert!(works[0] == works[1] && works[0] > 0, "{masks:?}: {works:?}");
    }
}

#[test]
fn requester_with_slow_events_loses_only_its_subscriptions() {
    let mut cluster = Cluster::default();
    // Each asks for everything in another way.
    let everything = |number: usize| vec!["*".to_owned(), format!("x{number}")];
    let greedy = subscribe_often(&mut cluster, everything, 64);
    let modest = subscribe_often(&mut cluster, everything, 1);
    let own = subscribe_often(
        &mut cluster,
        |_| vec!["desiredState.workloads.w1".to_owned()],
        1,
    );
    // Each look at the time that the thread has used finds half a millisecond more.
    let looks = AtomicU32::new(0);
    let time = move || Duration::from_micros(500) * looks.fetch_add(1, Ordering::Relaxed);
    cluster
        .server
        .subscriptions
        .set_cpu_time(CpuTime(Box::new(time)));
    let work = lookups(|| {
        drop(
            cluster
                .update(&workloads(0..1_000), &["desiredState.workloads"])
                .unwrap(),
        )
    });
    assert!(work < LOOKUPS_MAX, "{work}");
    let (sent, errors) = events(&cluster, greedy);
    assert!(
        sent.len() >= 5 && errors.len() >= 32 && sent.len() + errors.len() == 64,
        "{} events",
        sent.len()
    );
    assert!(
        errors.iter().all(|text| text.contains("Too many fields")),
        "{errors:?}"
    );
    for peer in [modest, own] {
        let (own, errors) = events(&cluster, peer);
        assert_eq!((own.len(), errors.len()), (1, 0));
    }
}

#[test]
fn subscriber_without_masks_gets_5000_new_workloads() {
    let mut cluster = Cluster::default();
    let masks = [
        vec![],
        vec!["desiredState".to_owned()],
        vec!["*".to_owned()],
        vec!["workloadStates".to_owned()],
    ];
    let peer = subscribe_often(&mut cluster, |number| masks[number].clone(), masks.len());
    cluster
        .update(&workloads(0..5_000), &["desiredState.workloads"])
        .unwrap();
    let (own, errors) = events(&cluster, peer);
    assert_eq!((own.len(), errors.len()), (masks.len(), 0));
}
