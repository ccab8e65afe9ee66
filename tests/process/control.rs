//! Workloads that talk to the cluster through their FIFOs, the test being the workload.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::control_client::{folder, logs, read, tree};
use crate::support::manifest::Workload;
use crate::support::process::{memory_peak_kib, thread_names};
use crate::support::{
    Cluster, ControlClient, LIMIT, Recorder, SmallDisk, connection, leave_out, manifest, poll,
    wait_until, workload,
};
use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::messages::{
    FromServer, RequestContent, Response, ResponseContent, ToServer, ToWorkload, UpdateState,
};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::model::node::Node;
use ankaios_lite::model::refusal::ErrorResponse;
use ankaios_lite::platform::limits::LOG_SOURCE_LINES;
use ankaios_lite::platform::watchdog::WatchedThreads;
use ankaios_lite::wire::address::{ListenAddress, Security};
use ankaios_lite::wire::client::{ClientReceiver, ClientSender, Hangup};
use ankaios_lite::wire::outbox::Outbox;
use ankaios_lite::wire::peer::PeerEvent;
use ankaios_lite::wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use crossbeam_channel::{Receiver, bounded};
use rustix::process::Signal;
use serde_json::json;

const WEB: &str = "web";
/// After this time without an answer a request is sent again; far longer than any answer takes.
const RETRY: Duration = Duration::from_secs(10);

/// A server that says nothing.
struct SilentServer {
    endpoint: ServerEndpoint,
    events: Receiver<PeerEvent>,
    /// The end of one would be that of its stream.
    outboxes: Vec<Outbox>,
}

impl SilentServer {
    fn start(address: &str) -> Self {
        let (inbox, events) = bounded(64);
        let options = EndpointOptions {
            addresses: vec![ListenAddress::Tcp(address.parse().expect("an address"))],
            socket_mode: 0o600,
            security: Security::Insecure,
            message_max: MESSAGE_MAX,
            commander_names: Vec::new(),
        };
        let endpoint = ServerEndpoint::start(&options, inbox, &mut WatchedThreads::new(|_| {}));
        let mut server = Self {
            endpoint: endpoint.expect("the address is free"),
            events,
            outboxes: Vec::new(),
        };
        // Before, a request may go to the server that has just ended.
        while server.outboxes.is_empty() {
            server.next();
        }
        server
    }

    fn next(&mut self) -> Option<ToServer> {
        match self
            .events
            .recv_timeout(LIMIT)
            .expect("the agent comes and asks")
        {
            PeerEvent::Message { message, .. } => return Some(message),
            PeerEvent::Opened { outbox, .. } => self.outboxes.push(outbox),
            PeerEvent::Closed { .. } => {}
        }
        None
    }

    /// The id of the next request that comes.
    fn next_request(&mut self) -> String {
        loop {
            if let Some(ToServer::Request(request)) = self.next() {
                return request.id;
            }
        }
    }

    fn stop(self) {
        self.endpoint.stop(LIMIT);
    }
}

/// A cluster with one running workload that has these rules.
fn cluster_with(rules: impl FnOnce(Workload) -> Workload) -> Cluster {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[rules(workload(WEB, "run"))]);
    cluster
}

fn client(cluster: &Cluster) -> ControlClient {
    ControlClient::connect(&folder(cluster, "agent_A", WEB))
}

fn state(content: ResponseContent) -> Node {
    match content {
        ResponseContent::CompleteState { state, .. } => state,
        other => panic!("a state is expected, not {other:?}"),
    }
}

fn closed(message: ToWorkload) -> String {
    match message {
        ToWorkload::Closed { reason } => reason,
        other => panic!("the end of the connection is expected, not {other:?}"),
    }
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").ino()
}

fn denied() -> ResponseContent {
    ResponseContent::Error("Access denied".into())
}

/// The connection of an agent in wrong hands: what workloads of `agent` are said to ask, and the
/// answers.
struct WrongHands {
    sender: ClientSender,
    receiver: ClientReceiver,
    _hangup: Hangup,
}

impl WrongHands {
    fn connect(cluster: &Cluster, agent: &str) -> Self {
        let (sender, receiver, hangup) = connection::agent(&cluster.url(), agent);
        Self {
            sender,
            receiver,
            _hangup: hangup,
        }
    }

    fn ask(&mut self, id: &str, content: RequestContent) -> ResponseContent {
        connection::request(&mut self.sender, id, content);
        loop {
            if let FromServer::Response(response) = self.receiver.receive().expect("an answer") {
                assert_eq!(response.id, id);
                return response.content;
            }
        }
    }
}

#[test]
fn an_agent_in_wrong_hands_can_ask_no_more_than_its_workloads() {
    let cluster = Cluster::start(&["agent_A"]);
    let mine = workload("mine", "run")
        .on("agent_B")
        .allow("ReadWrite", "desiredState.workloads.other");
    cluster.apply(&manifest(&[
        mine,
        workload(WEB, "run").allow("ReadWrite", "*"),
    ]));
    cluster.wait_for_state(WEB, "Running(Ok)");
    let mut agent = WrongHands::connect(&cluster, "agent_B");
    let everything = || {
        let nothing = tree("desiredState.workloads", Node::empty());
        RequestContent::UpdateState(UpdateState {
            new_state: Some(Ok(nothing)),
            masks: Vec::new(),
            ..Default::default()
        })
    };
    for id in ["attack", "web@attack", "mine@attack", "agent_A@web@attack"] {
        for content in [everything(), read(&[], true), read(&["agents"], false)] {
            let answer = agent.ask(id, content);
            let denied = matches!(&answer, ResponseContent::Error(ErrorResponse { text, .. }) if text.starts_with("Access denied: "));
            assert!(denied, "{id}: {answer:?}");
        }
        let cancelled = agent.ask(&format!("mine@{id}"), RequestContent::EventsCancel);
        assert_eq!(cancelled, ResponseContent::EventsCancelAccepted);
    }
    let mask = "desiredState.workloads.other";
    state(agent.ask("mine@1", read(&[mask], false)));
    // Everything is as it was, and the workload of the other agent is served.
    state_of_web(&mut client(&cluster));
}

#[test]
fn an_update_that_takes_a_right_away_ends_what_came_of_it() {
    let cluster = cluster_with(|web| web.allow("Read", "desiredState").allow_logs("*"));
    let mut first = client(&cluster);
    first.request("e", read(&["desiredState.workloads"], true));
    assert!(matches!(
        first.answer("e"),
        ResponseContent::CompleteState { altered: None, .. }
    ));
    let pipes = folder(&cluster, "agent_A", WEB);
    let before = inode(&pipes.join("input"));
    cluster.apply(&manifest(&[workload(WEB, "run").allow("Read", "agents")]));
    wait_until("the pipes are others", || {
        pipes.join("input").exists() && inode(&pipes.join("input")) != before
    });
    // The pipe may be gone before it was written there.
    match first.receive_within(Duration::ZERO) {
        Some(ToWorkload::Response(Response {
            content: ResponseContent::Error(ErrorResponse { text: error, .. }),
            ..
        })) => {
            assert!(
                error.ends_with(
                    "no rule allows 'desiredState.workloads'; the event subscription ends"
                ),
                "{error}"
            );
        }
        None => {}
        other => panic!("the end of the events is expected, not {other:?}"),
    }
    let mut second = ControlClient::connect(&pipes);
    cluster.apply(&manifest(&[workload("other", "exit0")]));
    cluster.wait_for_state("other", "Succeeded(Ok)");
    state(second.read("question", &["agents"]));
}

// [itest->swdd~agent-forward-responses-to-control-interface-pipe~1]
// [stest->swdd~agent-forward-responses-to-control-interface-pipe~1]
#[test]
fn a_workload_reads_and_changes_what_its_rules_allow() {
    let cluster = cluster_with(|web| {
        web.allow("Read", "agents")
            .allow("ReadWrite", "desiredState.workloads")
            .deny("Write", "desiredState.workloads.web")
    });
    let mut client = client(&cluster);
    let agents = state(client.read("a@b", &["agents"]));
    assert!(agents.at(&["agents", "agent_A"]).is_some(), "{agents:?}");

    let entries = [
        ("agent", "agent_A"),
        ("runtime", "podman"),
        ("runtimeConfig", "image: run"),
    ];
    let new = tree(
        "desiredState.workloads.other",
        Node::map(entries.map(|(key, text)| (key, Node::text(text)))),
    );
    let answer = client.update("u", new, &["desiredState.workloads.other"]);
    assert!(
        matches!(&answer, ResponseContent::UpdateStateSuccess { added, .. } if added.len() == 1),
        "{answer:?}"
    );
    cluster.wait_for_state("other", "Running(Ok)");

    let gone = client.update("d", Node::empty(), &["desiredState.workloads.other"]);
    assert!(
        matches!(&gone, ResponseContent::UpdateStateSuccess { deleted, .. } if deleted.len() == 1),
        "{gone:?}"
    );
    cluster.wait_until_gone("other");

    assert_eq!(client.read("r", &["workloadStates"]), denied());
    assert_eq!(client.read("r", &[]), denied());
    assert_eq!(
        client.update("w", Node::empty(), &["desiredState.workloads"]),
        denied()
    );
    assert_eq!(
        client.update("w", Node::empty(), &["desiredState.workloads.web.agent"]),
        denied()
    );
    let log = cluster.agents["agent_A"].stderr();
    assert!(
        log.contains("Denied request 'r' of workload 'web': no rule allows 'workloadStates'"),
        "{log}"
    );
}

#[test]
fn events_come_until_they_are_cancelled() {
    let cluster = cluster_with(|web| web.allow("Read", "desiredState"));
    let mut client = client(&cluster);
    client.request("e", read(&["desiredState.workloads"], true));
    let ResponseContent::CompleteState { altered: None, .. } = client.answer("e") else {
        panic!("the state comes first")
    };
    cluster.apply(&manifest(&[workload("other", "exit0")]));
    let ResponseContent::CompleteState {
        state,
        altered: Some(altered),
    } = client.answer("e")
    else {
        panic!("an event is expected")
    };
    assert_eq!(altered.added, ["desiredState.workloads.other"]);
    assert!(state.at(&["desiredState", "workloads", "other"]).is_some());
    client.request("e", RequestContent::EventsCancel);
    assert_eq!(client.answer("e"), ResponseContent::EventsCancelAccepted);
    cluster.apply(&manifest(&[workload("third", "exit0")]));
    cluster.wait_for_state("third", "Succeeded(Ok)");
    state_of_web(&mut client);
}

/// The next answer is that to this question, so nothing else has come.
fn state_of_web(client: &mut ControlClient) {
    let content = client.read("question", &["desiredState.workloads.web.agent"]);
    assert!(
        state(content)
            .at(&["desiredState", "workloads", "web", "agent"])
            .is_some()
    );
}

#[test]
fn a_server_that_restarts_is_no_event_for_the_session() {
    let text = manifest(&[workload(WEB, "run").allow("Read", "desiredState")]);
    let mut cluster = Cluster::prepare();
    let file = cluster.start_with_manifest(&text);
    cluster.wait_for_state(WEB, "Running(Ok)");
    let pipes = folder(&cluster, "agent_A", WEB);
    let mut client = ControlClient::connect(&pipes);
    let before = inode(&pipes.join("input"));
    cluster.kill_server();
    // A request that comes before the agent is connected is answered afterwards, see the next test.
    wait_until("the agent knows", || {
        cluster.agents["agent_A"]
            .stderr()
            .contains("received ServerGone")
    });
    client.request(
        "while away",
        read(&["desiredState.workloads.web.agent"], false),
    );
    cluster.start_server(&["-m", &file]);
    state(client.answer("while away"));
    state_of_web(&mut client);
    assert_eq!(inode(&pipes.join("input")), before);
}

// [itest->swdd~agent-renews-event-subscriptions~1]
#[test]
fn events_go_on_after_a_restart_of_the_server_and_logs_end() {
    let web = || {
        workload(WEB, "run")
            .allow("Read", "desiredState")
            .allow_logs("*")
            .config("commandArgs: [hello]")
    };
    let mut cluster = Cluster::prepare();
    cluster.start_with_manifest(&manifest(&[web()]));
    cluster.wait_for_state(WEB, "Running(Ok)");
    let pipes = folder(&cluster, "agent_A", WEB);
    let own_folder = pipes
        .parent()
        .and_then(Path::file_name)
        .expect("it is in that of its workload");
    let instance =
        InstanceName::parse(&format!("{}.agent_A", own_folder.to_string_lossy())).expect("a name");
    let mut client = ControlClient::connect(&pipes);
    client.request(
        "e",
        read(&["desiredState.workloads", "desiredState.configs.c"], true),
    );
    assert!(matches!(
        client.answer("e"),
        ResponseContent::CompleteState { altered: None, .. }
    ));
    client.request("l", logs(vec![instance.clone()]));
    assert_eq!(
        client.answer("l"),
        ResponseContent::LogsAccepted(vec![instance.clone()])
    );
    assert!(matches!(client.answer("l"), ResponseContent::LogEntries(_)));
    cluster.kill_server();
    assert_eq!(client.answer("l"), ResponseContent::LogsStop(instance));
    // The server that comes has something that the one before had not.
    let file = cluster.write(
        "other.yaml",
        &manifest(&[web(), workload("other", "exit0")]),
    );
    cluster.start_server(&["-m", file.to_str().expect("own path")]);
    let ResponseContent::CompleteState {
        state,
        altered: Some(altered),
    } = client.answer("e")
    else {
        panic!("an event is expected")
    };
    assert!(
        state.at(&["desiredState", "workloads", "other"]).is_some(),
        "{state:?}"
    );
    assert_eq!(altered.updated, ["desiredState.workloads"]);
    assert_eq!(altered.removed, ["desiredState.configs.c"]);
    cluster.apply(&manifest(&[workload("third", "exit0")]));
    let ResponseContent::CompleteState {
        altered: Some(altered),
        ..
    } = client.answer("e")
    else {
        panic!("an event is expected")
    };
    assert_eq!(altered.added, ["desiredState.workloads.third"]);
    state_of_web(&mut client);
}

#[test]
fn a_right_that_a_new_server_does_not_give_ends_the_events() {
    let web = |right: &str| {
        workload(WEB, "run")
            .allow("Read", "agents")
            .allow("Read", right)
    };
    let mut cluster = Cluster::prepare();
    cluster.start_with_manifest(&manifest(&[web("desiredState")]));
    cluster.wait_for_state(WEB, "Running(Ok)");
    let mut client = client(&cluster);
    client.request("e", read(&["desiredState.workloads"], true));
    assert!(matches!(
        client.answer("e"),
        ResponseContent::CompleteState { altered: None, .. }
    ));
    cluster.kill_server();
    let file = cluster.write("less.yaml", &manifest(&[web("workloadStates")]));
    cluster.start_server(&["-m", file.to_str().expect("own path")]);
    // Either the server refuses, or the agent has replaced the pipes before.
    let end = poll(LIMIT, || match client.receive_within(Duration::ZERO) {
        Some(message) => Some(Some(message)),
        None if client.is_at_end() => Some(None),
        None => None,
    });
    match end.expect("the end of the events is shown") {
        Some(ToWorkload::Response(Response {
            content: ResponseContent::Error(ErrorResponse { text: error, .. }),
            ..
        })) => {
            assert!(error.contains("Access denied"), "{error}");
        }
        None => {}
        other => panic!("the end of the events is expected, not {other:?}"),
    }
}

#[test]
fn the_end_of_the_agent_is_the_end_of_the_pipe_and_of_events() {
    let mut cluster = cluster_with(|web| web.allow("Read", "desiredState"));
    let pipes = folder(&cluster, "agent_A", WEB);
    let mut client = ControlClient::connect(&pipes);
    client.request("e", read(&["desiredState.workloads"], true));
    client.answer("e");
    assert!(!client.is_at_end());
    cluster.kill_agent("agent_A");
    wait_until("the pipe has ended", || client.is_at_end());
    cluster.start_agent("agent_A");
    cluster.wait_for_state(WEB, "Running(Ok)");
    wait_until("the agent reads again", || {
        client.write(&[]).is_ok() && try_hello(&mut client)
    });
    assert_eq!(client.receive(), ToWorkload::Accepted);
    client.request("e", read(&["desiredState.workloads"], true));
    assert!(matches!(
        client.answer("e"),
        ResponseContent::CompleteState { altered: None, .. }
    ));
}

#[test]
fn a_request_that_the_server_took_with_it_is_answered() {
    let text = manifest(&[workload(WEB, "run").allow("ReadWrite", "desiredState")]);
    let mut cluster = Cluster::prepare();
    cluster.agent_env = vec![("RUST_LOG".to_owned(), "debug".to_owned())];
    // The server that comes later must know the workload as well: otherwise it is removed, and its
    // session too.
    let file = cluster.start_with_manifest(&text);
    cluster.wait_for_state(WEB, "Running(Ok)");
    let mut client = client(&cluster);
    // In its place comes one that takes requests and answers nothing.
    cluster.kill_server();
    let mut silent = SilentServer::start(&cluster.address());
    // Before, a request is answered with an error.
    let connections = || {
        cluster.agents["agent_A"]
            .stderr()
            .matches("Connected to server '")
            .count()
    };
    wait_until("the agent has connected again", || connections() == 2);
    client.request("read", read(&["desiredState.workloads.web.agent"], false));
    let new = tree("desiredState.configs.c", Node::text("1"));
    let update = UpdateState {
        new_state: Some(Ok(new)),
        masks: vec!["desiredState.configs.c".to_owned()],
        ..Default::default()
    };
    client.request("update", RequestContent::UpdateState(update));
    client.request("cancel", RequestContent::EventsCancel);
    for id in ["read", "update", "cancel"] {
        let full_id = silent.next_request();
        assert!(
            full_id.starts_with(&format!("{WEB}@")) && full_id.ends_with(&format!("@{id}")),
            "{full_id}"
        );
    }
    silent.stop();
    for id in ["read", "update"] {
        let ResponseContent::Error(ErrorResponse { text, .. }) = client.answer(id) else {
            panic!("an error is expected for '{id}'")
        };
        assert!(text.contains("connection to the server was lost"), "{text}");
    }
    assert_eq!(
        client.answer("cancel"),
        ResponseContent::EventsCancelAccepted
    );
    cluster.start_server(&["-m", &file]);
    let answer = client.read("later", &["desiredState"]);
    assert!(
        matches!(answer, ResponseContent::CompleteState { .. }),
        "the session goes on: {answer:?}"
    );
}

#[test]
fn restarted_agent_reuses_fifos_and_requires_a_new_hello() {
    let mut cluster = cluster_with(|web| web.allow("Read", "desiredState"));
    let pipes = folder(&cluster, "agent_A", WEB);
    let mut client = ControlClient::connect(&pipes);
    let before = [inode(&pipes.join("input")), inode(&pipes.join("output"))];
    cluster.kill_agent("agent_A");
    // A process that it was just starting may have the pipe for a moment.
    wait_until("nobody reads any more", || !client.has_reader());
    assert!(client.write(b"x").is_err());
    cluster.start_agent("agent_A");
    cluster.wait_for_state(WEB, "Running(Ok)");
    // The descriptors of the workload go on working.
    wait_until("the agent reads again", || {
        client.write(&[]).is_ok() && try_hello(&mut client)
    });
    assert_eq!(client.receive(), ToWorkload::Accepted);
    state_of_web(&mut client);
    assert_eq!(
        [inode(&pipes.join("input")), inode(&pipes.join("output"))],
        before
    );
    assert_eq!(cluster.engine.calls_of("run", "web.").len(), 1);
}

fn try_hello(client: &mut ControlClient) -> bool {
    use ankaios_lite::model::messages::FromWorkload;
    let hello = FromWorkload::Hello {
        version: "1.0.0".to_owned(),
    };
    let bytes = ankaios_lite::wire::delimited::workload_side::frame(hello);
    client.write(&bytes).is_ok()
}

#[test]
fn updates_keep_or_replace_the_fifos_and_a_delete_removes_them() {
    let cluster = cluster_with(|web| web.allow("Read", "desiredState"));
    let pipes = folder(&cluster, "agent_A", WEB);
    let mode = |name| {
        std::fs::metadata(pipes.join(name))
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        [mode("input"), mode("output")],
        [0o666; 2],
        "for whoever the container runs as"
    );
    assert_eq!(
        [mode(".."), mode("../..")],
        [0o700; 2],
        "and for nobody else"
    );
    let mounts = |text: &str| cluster.engine.calls_of("run", text).len();
    let mount = format!(
        "--mount=type=bind,source={},destination=/run/ankaios/control_interface",
        pipes.display()
    );
    assert_eq!(mounts(&mount), 1);
    let mut client = ControlClient::connect(&pipes);
    let before = inode(&pipes.join("input"));

    cluster.apply(&manifest(&[workload(WEB, "run")
        .allow("Read", "desiredState")
        .tag("new")]));
    wait_until("the container is replaced", || mounts(&mount) == 2);
    cluster.wait_for_state(WEB, "Running(Ok)");
    state_of_web(&mut client);
    assert_eq!(
        inode(&pipes.join("input")),
        before,
        "same path and rules: the session goes on"
    );

    cluster.apply(&manifest(&[workload(WEB, "run")
        .allow("Read", "agents")
        .tag("new")]));
    wait_until("the container is replaced", || mounts(&mount) == 3);
    wait_until("the old session ends", || {
        client.write(b"").is_ok() && client.write(&[0]).is_err()
    });
    assert_ne!(inode(&pipes.join("input")), before);
    let mut client = ControlClient::connect(&pipes);
    assert_eq!(client.read("a", &["desiredState"]), denied());
    state(client.read("b", &["agents"]));

    cluster.apply(&manifest(&[workload(WEB, "run").tag("new")]));
    wait_until("the FIFOs are removed", || !pipes.exists());

    cluster.apply(&manifest(&[workload(WEB, "run").allow("Read", "agents")]));
    ControlClient::connect(&folder(&cluster, "agent_A", WEB));
    cluster.remove(WEB);
    assert!(!pipes.parent().expect("the folder of the workload").exists());
}

#[test]
fn bad_input_ends_one_session_with_a_reason_and_nothing_else() {
    let cluster = Cluster::start(&["agent_A"]);
    let both = [
        workload(WEB, "run").allow("Read", "desiredState"),
        workload("bad", "run").allow("Read", "desiredState"),
    ];
    cluster.apply(&manifest(&both));
    cluster.wait_until_run(&["bad", WEB]);
    let mut good = client(&cluster);
    let pipes = folder(&cluster, "agent_A", "bad");
    let undecodable = "Could not decode protobuf data";
    for (bytes, reason) in [
        (&[0x80, 0x80, 0x80, 0x80, 0x80, 2][..], undecodable),
        (&[3, 0xff, 0xff, 0xff], undecodable),
        (&[0], "Initial Hello missing!"),
        (
            &[7, 0x0a, 5, 0x12, 3, b'9', b'.', b'9'],
            "Unsupported protocol version '9.9'. Currently supported '1'",
        ),
    ] {
        // A program that comes back at once may be taken for the earlier one, whose messages are
        // ignored until it ends.
        let heard = poll(LIMIT, || {
            let mut bad = ControlClient::open(&pipes);
            bad.write(bytes).expect("the agent reads");
            bad.receive_within(RETRY)
        });
        assert_eq!(
            closed(heard.expect("the agent answers")),
            reason,
            "{bytes:?}"
        );
        state_of_web(&mut good);
    }
    for _ in 0..2_000 {
        drop(ControlClient::open(&pipes));
    }
    state_of_web(&mut good);
    // The agent may still be busy with the ends of those before.
    wait_until("a hello is accepted", || {
        let mut cured = ControlClient::open(&pipes);
        cured.hello("1.0.0");
        cured.receive_within(RETRY) == Some(ToWorkload::Accepted)
    });
}

#[test]
fn repeated_nonsense_of_a_workload_does_not_fill_the_log() {
    const ROUNDS: usize = 3 * LOG_SOURCE_LINES as usize;
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("bad", "run").allow("Read", "desiredState")]);
    let pipes = folder(&cluster, "agent_A", "bad");
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        let heard = poll(LIMIT, || {
            let mut bad = ControlClient::open(&pipes);
            bad.write(&[3, 0xff, 0xff, 0xff]).expect("the agent reads");
            bad.receive_within(Duration::from_millis(200))
        });
        assert_eq!(
            closed(heard.expect("the agent answers")),
            "Could not decode protobuf data"
        );
    }
    let log = cluster.agent("agent_A").stderr();
    let complaints = log
        .lines()
        .filter(|line| line.contains("Closing the control interface"))
        .count();
    // On a loaded machine the rounds take longer than the first minute, and each minute has its own
    // lines.
    let minutes = begin.elapsed().as_secs() as usize / 60 + 1;
    assert!(
        (1..=LOG_SOURCE_LINES as usize * minutes).contains(&complaints),
        "{log}"
    );
    assert!(
        log.contains("Many log lines are about 'bad': further ones are left out for 60s."),
        "{log}"
    );
}

#[test]
fn repeated_updates_of_a_workload_do_not_fill_the_logs() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let user = workload("user", "run").allow("ReadWrite", "desiredState.workloads.t0");
    cluster.run(&[user, workload("t0", "run")]);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "user"));
    // On a busy machine both also log turns that took long.
    let lines = |cluster: &mut Cluster| {
        [cluster.server().stderr(), cluster.agent("agent_A").stderr()].map(|log| {
            let is_slow = |line: &str| {
                line.contains("One event took") || line.contains("The scheduler needed")
            };
            log.lines().filter(|line| !is_slow(line)).count()
        })
    };
    let (before, begin) = (lines(&mut cluster), Instant::now());
    for number in 0..3 * LOG_SOURCE_LINES {
        for lifecycle in ["", "lifecycle: { update: {} }"] {
            let config = format!("image: run\ncommandOptions: ['--env=N={number}']\n{lifecycle}");
            let entries = [
                ("agent", "agent_A"),
                ("runtime", "podman"),
                ("runtimeConfig", &config),
            ];
            let t0 = Node::map(entries.map(|(key, text)| (key, Node::text(text))));
            let answer = client.update(
                "u",
                tree("desiredState.workloads.t0", t0),
                &["desiredState.workloads.t0"],
            );
            assert!(
                matches!(answer, ResponseContent::UpdateStateSuccess { .. }),
                "{answer:?}"
            );
        }
    }
    let after = lines(&mut cluster);
    let minutes = begin.elapsed().as_secs() as usize / 60 + 1;
    let written = [after[0] - before[0], after[1] - before[1]];
    // Of `user` in one log and of `t0` in the other, with two lines about those that are left out.
    let most = (LOG_SOURCE_LINES as usize + 2) * minutes;
    assert!(
        written.iter().all(|lines| (1..=most).contains(lines)),
        "{written:?}, at most {most}"
    );
}

#[test]
fn a_workload_that_does_not_read_its_events_costs_only_its_own() {
    let cluster = Cluster::start(&["agent_A"]);
    let both = [
        workload(WEB, "run").allow("Read", "*"),
        workload("lazy", "run").allow("Read", "*"),
    ];
    cluster.apply(&manifest(&both));
    cluster.wait_until_run(&["lazy", WEB]);
    let mut good = client(&cluster);
    let mut lazy = ControlClient::connect(&folder(&cluster, "agent_A", "lazy"));
    lazy.request("e", read(&[], true));
    // Each answer is some kilobytes; 4,000 of them are not read.
    for number in 0..4_000 {
        lazy.request(&format!("r{number}"), read(&[], false));
        if number % 500 == 0 {
            state_of_web(&mut good);
        }
    }
    state_of_web(&mut good);
    assert_eq!(cluster.ank(&["get", "agents"]).code, 0);
    // It gets the newest answers, in order, and the session goes on.
    lazy.request("last", read(&["agents"], false));
    let mut last = None;
    let answered = std::iter::from_fn(|| lazy.try_receive()).find(|message| {
        let ToWorkload::Response(Response { id, .. }) = message else {
            return false;
        };
        let number = id
            .strip_prefix('r')
            .and_then(|number| number.parse::<u32>().ok());
        assert!(number.is_none() || number > last, "'{id}' after {last:?}");
        last = number.or(last);
        id == "last"
    });
    assert!(answered.is_some());
}

#[test]
fn log_streams_end_by_cancel_removal_or_lost_reader() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    let talker = || workload("talker", "run").config("commandArgs: [hello, world]");
    cluster.apply(&manifest(&[
        workload(WEB, "run").allow_logs("talk*"),
        talker(),
    ]));
    cluster.wait_until_run(&[WEB, "talker"]);
    let instance = recorder.instance("talker");
    let mut client = client(&cluster);
    let begin = |client: &mut ControlClient, id: &str| {
        client.request(id, logs(vec![instance.clone()]));
        assert_eq!(
            client.answer(id),
            ResponseContent::LogsAccepted(vec![instance.clone()])
        );
        let ResponseContent::LogEntries(lines) = client.answer(id) else {
            panic!("lines are expected")
        };
        assert_eq!(
            lines
                .iter()
                .map(|line| line.message.as_str())
                .collect::<Vec<_>>(),
            ["hello world"]
        );
    };
    begin(&mut client, "one");
    begin(&mut client, "two");
    assert_eq!(cluster.engine.hanging_calls_of("logs").len(), 2);
    client.request("web", logs(vec![recorder.instance(WEB)]));
    assert_eq!(client.answer("web"), denied());
    client.request("one", RequestContent::LogsCancel);
    assert_eq!(client.answer("one"), ResponseContent::LogsCancelAccepted);
    wait_until("its process is ended", || {
        cluster.engine.hanging_calls_of("logs").len() == 1
    });
    cluster.delete("talker");
    assert_eq!(
        client.answer("two"),
        ResponseContent::LogsStop(instance.clone())
    );

    cluster.wait_until_gone("talker");
    cluster.apply(&manifest(&[talker()]));
    cluster.wait_for_state("talker", "Running(Ok)");
    begin(&mut client, "three");
    wait_until("only the new one is read", || {
        cluster.engine.hanging_calls_of("logs").len() == 1
    });
    cluster.delete(WEB);
    wait_until("nobody reads, so its process is ended", || {
        cluster.engine.hanging_calls_of("logs").is_empty()
    });
}

#[test]
fn workload_that_reads_no_logs_loses_only_its_own() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    let both = [
        workload(WEB, "run").allow("Read", "*"),
        workload("lazy", "run").allow_logs("*"),
    ];
    cluster.apply(&manifest(&both));
    cluster.wait_until_run(&["lazy", WEB]);
    cluster
        .engine
        .script(&json!([{ "command": "logs", "stdout_bytes": 60_000_000, "line_bytes": 64 }]));
    let mut good = client(&cluster);
    let mut lazy = ControlClient::connect(&folder(&cluster, "agent_A", "lazy"));
    lazy.request("flood", logs(vec![recorder.instance(WEB)]));
    wait_until("the flood is over", || {
        state_of_web(&mut good);
        cluster
            .engine
            .calls_of("logs", "")
            .first()
            .is_some_and(|call| call.exit.is_some())
            || cluster.engine.calls_of("logs", "").len() == 1
                && cluster.engine.hanging_calls_of("logs").is_empty()
    });
    let peak = memory_peak_kib(cluster.agent("agent_A").pid());
    assert!(peak < 200_000, "the agent took {peak} KiB");
    let end = std::iter::from_fn(|| lazy.try_receive()).find_map(|message| match message {
        ToWorkload::Response(Response {
            content: ResponseContent::LogEntries(_),
            ..
        }) => None,
        ToWorkload::Response(Response {
            content: ResponseContent::LogsAccepted(_),
            ..
        }) => None,
        ToWorkload::Response(Response { id, content }) => Some((id, content)),
        other => panic!("an answer is expected, not {other:?}"),
    });
    let (id, content) = end.expect("the end of the flood is told");
    assert_eq!(id, "flood");
    let told = matches!(
        content,
        ResponseContent::LogsCancelAccepted | ResponseContent::LogsStop(_)
    );
    assert!(told, "{content:?}");
}

#[test]
fn all_workloads_are_served_by_one_thread() {
    let names: Vec<String> = (0..20).map(|number| format!("w{number}")).collect();
    let mut cluster = Cluster::start(&["agent_A"]);
    let workloads: Vec<_> = names
        .iter()
        .map(|name| workload(name, "run").allow("Read", "agents"))
        .collect();
    cluster.apply(&manifest(&workloads));
    let mut clients: Vec<ControlClient> = names
        .iter()
        .map(|name| {
            cluster.wait_for_state(name, "Running(Ok)");
            ControlClient::connect(&folder(&cluster, "agent_A", name))
        })
        .collect();
    for client in &mut clients {
        state(client.read("a", &["agents"]));
    }
    let threads = thread_names(cluster.agent("agent_A").pid());
    let own = threads
        .iter()
        .filter(|name| name.starts_with("control"))
        .count();
    assert_eq!(own, 1, "{threads:?}");
    cluster.agent("agent_A").signal(Signal::TERM);
    let ended = cluster.agent("agent_A").wait(LIMIT);
    assert!(
        ended.is_some_and(|status| status.success()),
        "open sessions delay no stop"
    );
}

/// Makes 8,000 folders in `folder`, one in the other, as a container can.
fn nest_deeply(folder: &Path) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut inner = openat(CWD, folder, open, Mode::empty()).expect("it is there");
    for _ in 0..8_000 {
        mkdirat(&inner, "nested", Mode::RWXU).expect("own folder is writable");
        inner = openat(&inner, "nested", open, Mode::empty()).expect("it was just made");
    }
}

#[test]
fn deeply_nested_folders_of_a_workload_are_removed() {
    let mut cluster = Cluster::prepare();
    // In memory: a disk takes half a minute for as many folders.
    let Some(_disk) = SmallDisk::mount(&cluster.run_folder(), 64 * 1024) else {
        return;
    };
    cluster.start_server(&[]);
    cluster.set_wrapper("ank-agent", &["/usr/bin/prlimit", "--nofile=64:64"]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    let pid = cluster.agent("agent_A").pid();
    let with_access = manifest(&[
        workload(WEB, "run").allow("Read", "agents"),
        workload("other", "run"),
    ]);
    cluster.apply(&with_access);
    let own = folder(&cluster, "agent_A", WEB);
    nest_deeply(&own);
    // The folder goes with the right to use it, and with the workload.
    cluster.apply(&manifest(&[workload(WEB, "run")]));
    wait_until("the control interface is removed", || !own.exists());
    cluster.wait_for_state(WEB, "Running(Ok)");
    cluster.apply(&with_access);
    wait_until("it is there again", || own.join("output").exists());
    nest_deeply(&own);
    cluster.remove(WEB);
    let workload_folder = own.parent().expect("it is in that of its workload");
    wait_until("all of it is removed", || !workload_folder.exists());
    assert_eq!(
        cluster.workload("other").expect("it is known").state,
        "Running(Ok)"
    );
    assert!(cluster.agent("agent_A").is_running());
    assert_eq!(
        cluster.agent("agent_A").pid(),
        pid,
        "it is still the same process"
    );
}

#[test]
fn other_users_reach_neither_pipes_nor_files_of_a_workload() {
    if !rustix::process::geteuid().is_root() {
        return leave_out(
            "other users before the folder of an agent",
            "only root can become another user",
        );
    }
    let mut cluster = Cluster::start(&["agent_A"]);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("own files");
    };
    set(cluster.folder(), 0o755);
    let files = "apiVersion: v1\nworkloads:\n  web:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: 'image: run'\n    \
                 files: [{mountPoint: /etc/secret, data: secret}]\n    controlInterfaceAccess: {allowRules: [{type: \
                 StateRule, operation: Read, filterMasks: [agents]}]}\n";
    cluster.apply(files);
    cluster.wait_for_state(WEB, "Running(Ok)");
    let pipes = folder(&cluster, "agent_A", WEB);
    let file = pipes
        .parent()
        .expect("it is in that of its workload")
        .join("files/etc/secret");
    assert_eq!(
        std::fs::read_to_string(&file).expect("it is there"),
        "secret"
    );
    let agent_folder = cluster.run_folder().join("agent_A_io");
    let stranger = |script: String| {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &script])
            .uid(65534)
            .gid(65534)
            .current_dir("/")
            .stdin(Stdio::null());
        let output = command.output().expect("a shell runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let kept_away = || {
        for script in [
            format!("ls {}", agent_folder.display()),
            format!("cat {}", file.display()),
            format!(": >>{}", pipes.join("output").display()),
            format!(": <{}", pipes.join("input").display()),
        ] {
            let (done, errors) = stranger(script.clone());
            assert!(
                !done && errors.contains("Permission denied"),
                "{script}: {errors}"
            );
        }
    };
    kept_away();
    // As an earlier version made them.
    set(&agent_folder, 0o755);
    assert!(
        stranger(format!("ls {}", agent_folder.display())).0,
        "the test can fail"
    );
    cluster.kill_agent("agent_A");
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    kept_away();
    state(client(&cluster).read("a", &["agents"]));
}
