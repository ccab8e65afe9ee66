//! Start times: what the server keeps of real reports, and what `ank blame` and
//! `ank graph --timing` make of it.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;
use std::time::Instant;

use crate::support::control_client::folder;
use crate::support::manifest::Workload;
use crate::support::{Cluster, ControlClient, LIMIT, manifest, table, workload};
use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::messages::{FromServer, Request, Response, ResponseContent, ToServer};
use ankaios_lite::model::node::Node;
use ankaios_lite::platform::watchdog::WatchedThreads;
use ankaios_lite::wire::address::{ListenAddress, Security};
use ankaios_lite::wire::peer::PeerEvent;
use ankaios_lite::wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use crossbeam_channel::bounded;
use serde_json::{Value, json};

/// `db` is ready when the file exists, `web` needs it and `setup`, which ends at once.
fn chain(ready: &str) -> Vec<Workload> {
    let condition = format!("lifecycle: {{ready: {{file: {ready}, periodMs: 50, deadlineMs: 0}}}}");
    vec![
        workload("db", "run").config(&condition),
        workload("setup", "exit0"),
        workload("web", "run")
            .after("db", "ADD_COND_RUNNING")
            .after("setup", "ADD_COND_SUCCEEDED"),
    ]
}

/// The entry of one workload in the output of `ank blame -o json`.
fn blamed(cluster: &Cluster, name: &str) -> Value {
    let text = cluster.ank(&["blame", "-o", "json", name]).success();
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert!(document["bootMs"].as_u64() > Some(0), "{text}");
    let [one] = &document["workloads"].as_array().expect("a list")[..] else {
        panic!("{text}")
    };
    one.clone()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Releases the start of `name` when it has been held for a while. Returns how long the server knew
/// at least that it was starting, in ms: it knew that before the test did, and hears of the end
/// after the release.
fn held_start(cluster: &Cluster, name: &str) -> u64 {
    cluster.wait_for_state(name, "Pending(Starting)");
    let seen = Instant::now();
    assert!(
        blamed(cluster, name)["startMs"].is_null(),
        "it has not started"
    );
    let held = seen.elapsed().as_millis();
    cluster.engine.release(name);
    // Both ends of what the server shows are rounded.
    u64::try_from(held).expect("it fits").saturating_sub(1)
}

#[test]
fn start_after_a_server_restart_begins_with_its_first_report() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = format!("state_dir = '{}'", cluster.folder().join("state").display());
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("web", "run").restart("ON_FAILURE")]);
    cluster.kill_server();
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A"]);
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.engine.finish("web", 1);
    let web = cluster.wait_for("it was started again", || {
        let web = blamed(&cluster, "web");
        web["totalMs"].is_u64().then_some(web)
    });
    assert_eq!(number(&web, "starts"), 2, "{web}");
    let waiting = web["waitingAtMs"].as_u64();
    let begin = waiting.unwrap_or_else(|| number(&web, "startingAtMs"));
    let end = begin + number(&web, "totalMs");
    assert_eq!(end, number(&web, "runningAtMs"), "{web}");
}

// [stest->swdd~server-keeps-start-times~1]
// [stest->swdd~cli-shows-start-times~1]
#[test]
fn the_time_of_a_start_is_assigned_to_what_took_it() {
    let mut cluster = Cluster::prepare();
    let ready = cluster.folder().join("ready");
    cluster.engine.script(&json!([
        { "command": "run", "workload": "db", "hold": "db" },
        { "command": "run", "workload": "web", "hold": "web" },
    ]));
    cluster.start_with_manifest(&manifest(&chain(ready.to_str().expect("UTF-8"))));
    let db_held = held_start(&cluster, "db");
    cluster.wait_for_state("setup", "Succeeded(Ok)");
    cluster.wait_for_row("db", "not ready", |row| row.info.starts_with("ready: "));
    let waiting = blamed(&cluster, "web");
    assert!(
        waiting["waitingAtMs"].is_u64() && waiting["totalMs"].is_null(),
        "{waiting}"
    );
    fs::write(&ready, "").expect("own folder is writable");
    let web_held = held_start(&cluster, "web");
    cluster.wait_until_run(&["web", "db"]);

    let [db, web] = ["db", "web"].map(|name| blamed(&cluster, name));
    assert_eq!(
        (&db["starts"], &web["waitedFor"]),
        (&json!(1), &json!("db"))
    );
    for (start, held) in [(&db, db_held), (&web, web_held)] {
        assert!(number(start, "startMs") >= held, "{start} {held}");
        assert_eq!(
            number(start, "desiredAtMs") + number(start, "totalMs"),
            number(start, "runningAtMs"),
            "{start}"
        );
    }
    let parts = number(&db, "startMs") + number(&db, "readyMs") + number(&db, "startingAtMs");
    assert_eq!(parts, number(&db, "runningAtMs"));
    assert!(
        number(&web, "waitedMs") >= db_held && web["readyMs"].is_null(),
        "{web} {db_held}"
    );
    assert!(
        number(&web, "startingAtMs") >= number(&db, "runningAtMs"),
        "{web} {db}"
    );

    let text = cluster.ank(&["blame"]).success();
    let rows = table::parse(&text);
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(
        (names[0], names[1], rows[0][3].as_str()),
        ("web", "db", "db"),
        "{text}"
    );
    let graph = cluster.ank(&["graph", "--timing"]).success();
    let marked: Vec<&str> = graph.lines().filter(|line| line.contains(" * ")).collect();
    assert_eq!(marked.len(), 2, "{graph}");
    assert!(
        marked[0].starts_with("web ") && marked[1].starts_with("|-- db "),
        "{graph}"
    );
    let svg = cluster.ank(&["blame", "-o", "svg"]).success();
    assert!(
        svg.starts_with("<svg ")
            && svg.matches("<g>").count() == 3
            && svg.matches("<path").count() == 1,
        "{svg}"
    );
}

#[test]
fn a_restart_is_a_further_start_and_a_delete_ends_it() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[
        workload("w1", "run").restart("ALWAYS"),
        workload("w2", "run"),
    ]);
    let first = blamed(&cluster, "w1");
    assert!(number(&first, "desiredAtMs") > 0, "{first}");
    cluster.engine.finish("w1", 1);
    let second = cluster.wait_for("the second start", || {
        Some(blamed(&cluster, "w1"))
            .filter(|start| start["starts"] == 2 && start["runningAtMs"].is_u64())
    });
    assert_eq!(second["desiredAtMs"], first["desiredAtMs"]);
    assert!(
        number(&second, "startingAtMs") > number(&first, "runningAtMs"),
        "{second}"
    );
    assert!(
        number(&second, "totalMs") < number(&second, "runningAtMs") - number(&first, "runningAtMs"),
        "{second}"
    );
    cluster.remove("w1");
    let output = cluster.ank(&["blame", "w1"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(
        output.stderr.contains("Workload name 'w1' does not exist.")
            && output.stderr.contains("did you mean 'w2'")
    );
}

// [stest->swdd~server-sends-parts-on-request~1]
#[test]
fn times_are_read_by_their_name_only_and_not_by_workloads() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run").allow("Read", "*")]);
    assert!(
        cluster
            .ank(&["get", "state", "timings.instances.agent_A.web"])
            .success()
            .contains("desired: ")
    );
    assert!(
        !cluster
            .ank(&["get", "state", "-o", "json"])
            .success()
            .contains("\"timings\"")
    );
    let events = cluster.ank(&["get", "events", "-c", "--count", "0", "timings"]);
    assert_eq!(events.code, 1);
    let refused =
        "mask 'timings' selects nothing: it is no part of events; 'ank get state timings' shows it";
    assert!(events.stderr.contains(refused), "{}", events.stderr);
    assert!(!events.stdout.contains("desired"), "{}", events.stdout);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let ResponseContent::CompleteState { state, .. } = client.read("1", &["timings", "agents"])
    else {
        panic!("no state")
    };
    assert!(
        state.get("agents").is_some() && state.get("timings").is_none(),
        "{state:?}"
    );
}

#[test]
fn a_server_that_keeps_no_start_times_is_an_error() {
    let mut cluster = Cluster::prepare();
    cluster.reserve_port();
    let (inbox, events) = bounded(64);
    let options = EndpointOptions {
        addresses: vec![ListenAddress::Tcp(
            cluster.address().parse().expect("an address"),
        )],
        socket_mode: 0o600,
        security: Security::Insecure,
        message_max: MESSAGE_MAX,
        commander_names: Vec::new(),
    };
    let endpoint = ServerEndpoint::start(&options, inbox, &mut WatchedThreads::new(|_| {}))
        .expect("the port is free");
    for words in [&["blame"][..], &["graph", "--timing"]] {
        let mut ank = cluster.start_ank(words);
        let mut outboxes = Vec::new();
        let request = loop {
            match events.recv_timeout(LIMIT).expect("ank sends a request") {
                PeerEvent::Opened { outbox, .. } => outboxes.push(outbox),
                PeerEvent::Message {
                    message: ToServer::Request(Request { id, .. }),
                    ..
                } => break id,
                _ => {}
            }
        };
        let content = ResponseContent::CompleteState {
            state: Node::empty(),
            altered: None,
        };
        let response = FromServer::Response(Response {
            id: request,
            content,
        });
        outboxes
            .last()
            .expect("a stream")
            .put(response)
            .expect("room");
        let status = ank.wait(LIMIT).expect("ank ends");
        assert_eq!(
            (status.code(), ank.stdout().as_str()),
            (Some(1), ""),
            "{words:?}"
        );
        assert!(
            ank.stderr()
                .starts_with("error: the server keeps no start times\nhint: "),
            "{}",
            ank.stderr()
        );
    }
    drop(endpoint);
}
