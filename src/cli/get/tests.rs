//! Tables, filters and the watch mode, against a scripted server.

use super::*;
use crate::tests::{ScriptedServer, Step, instance, let_need, play, reported, state};
use ankaios_model::names::hash_id;
use serde_yaml::Value;
use std::time::{Duration, UNIX_EPOCH};

/// A time at which `ank` reads a state: 1,000 seconds after the begin of 1970.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000)
}

/// Standard output of a command that ends well and plays the whole script.
fn written(
    steps: Vec<Step>,
    get: impl FnOnce(&mut ScriptedServer, &mut Output) -> Result<()>,
) -> String {
    let played = play(None, steps, |server, output| {
        output.set_level(true, false); // Results are printed although it is quiet.
        get(server, output)
    });
    played.result.unwrap();
    assert!(played.server.is_done());
    played.out
}

#[test]
fn workloads_are_sorted_by_name() {
    let cluster = state(
        &["A", "B"],
        &[
            ("web", "1", "B", Phase::Running),
            ("db", "2", "B", Phase::Succeeded),
            ("web", "0", "A", Phase::Removed),
        ],
    );
    let text = written(vec![Step::State(cluster)], |link, output| {
        workloads(link, &WorkloadArguments::default(), now(), output)
    });
    let expected = "\
WORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE   ADDITIONAL INFO
db              B       podman    Succeeded(Ok)                    \n\
web             A       podman    Removed                          \n\
web             B                 Running(Ok)                      \n";
    assert_eq!(text, expected);
    let text = written(vec![Step::State(Node::empty())], |link, output| {
        workloads(link, &WorkloadArguments::default(), now(), output)
    });
    assert_eq!(
        text,
        "WORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE   ADDITIONAL INFO\n"
    );
}

#[test]
fn all_conditions_of_a_filter_must_hold() {
    let row = Row {
        state: "Pending(Starting)".into(),
        ..Row::default()
    };
    let name = instance("web.1.A");
    let text = |text: &str| Some(text.to_owned());
    for (agent, state, names, accepted) in [
        (None, None, vec![], true),
        (text("A"), None, vec![], true),
        (text("a"), None, vec![], false),
        (text(""), None, vec![], false),
        (None, text("pending(starting)"), vec![], true),
        (None, text("PENDING"), vec![], true),
        (None, text("starting"), vec![], false),
        (None, text("pend"), vec![], false),
        (None, None, vec!["db".to_owned(), "web".to_owned()], true),
        (None, None, vec!["we".to_owned()], false),
        (text("A"), text("running"), vec!["web".to_owned()], false),
    ] {
        let filter = WorkloadArguments {
            filter: Filter { agent, names },
            state,
            ..WorkloadArguments::default()
        };
        assert_eq!(filter.accepts(&name, &row), accepted, "{filter:?}");
    }
}

#[test]
fn agents_show_their_load_as_soon_as_they_reported_it() {
    let mut cluster = state(
        &["B"],
        &[
            ("w", "1", "A", Phase::Running),
            ("w", "2", "A", Phase::Stopping),
        ],
    );
    let load = Node::map([
        ("cpuUsage", Node::Number(42)),
        ("freeMemory", Node::Number(1024)),
    ]);
    let agents_node = Node::map([("A", Node::map([("status", load)])), ("B", Node::empty())]);
    cluster.as_map_mut().unwrap().insert("agents", agents_node);
    let text = written(vec![Step::State(cluster)], |link, output| {
        agents(&ListArguments::default(), link, output)
    });
    let expected = "\
NAME   WORKLOADS   CPU USAGE   FREE MEMORY
A      2           42%         1024B      \n\
B      0                                  \n";
    assert_eq!(text, expected);
}

#[test]
fn wide_table_of_agents_has_memory_in_readable_units() {
    let load = Node::map([("freeMemory", Node::Number(1536 * 1024 * 1024))]);
    let agent = Node::map([("A", Node::map([("status", load)]))]);
    let cluster = Node::map([("agents", agent)]);
    for (output, shown) in [
        (Format::Wide, " 1.5GiB "),
        (Format::Table, " 1610612736B\n"),
    ] {
        let arguments = ListArguments {
            output,
            ..ListArguments::default()
        };
        let text = written(vec![Step::State(cluster.clone())], |link, output| {
            agents(&arguments, link, output)
        });
        assert!(text.contains(shown), "{output:?}: {text}");
    }
}

#[test]
fn wide_table_of_agents_shows_their_engines() {
    let mut cluster = state(&["A", "B"], &[]);
    let program = Node::map([("engine", Node::text("podman 4.3.1"))]);
    let programs = Node::map([("agents", Node::map([("A", program)]))]);
    cluster
        .as_map_mut()
        .unwrap()
        .insert(version::PART.to_owned(), programs);
    let arguments = ListArguments {
        output: Format::Wide,
        ..ListArguments::default()
    };
    let text = written(vec![Step::State(cluster)], |link, output| {
        agents(&arguments, link, output)
    });
    let lines = Vec::from_iter(text.lines().map(str::trim_end));
    assert!(lines[0].ends_with("ENGINE"), "{text}");
    assert!(lines[1].ends_with("podman 4.3.1"), "{text}");
    assert!(lines[2].starts_with('B'), "{text}");
    assert!(!lines[2].contains("podman"), "{text}");
}

#[test]
fn configs_are_listed_below_one_heading() {
    let items = Node::map([("b", Node::text("x")), ("a_long_name", Node::text("y"))]);
    let cluster = Node::map([("desiredState", Node::map([("configs", items)]))]);
    assert_eq!(
        written(vec![Step::State(cluster)], |link, output| configs(
            &ListArguments::default(),
            link,
            output
        )),
        "CONFIG     \na_long_name\nb          \n"
    );
    assert_eq!(
        written(vec![Step::State(Node::empty())], |link, output| configs(
            &ListArguments::default(),
            link,
            output
        )),
        "CONFIG\n"
    );
}

#[test]
fn watching_follows_states_and_reads_again_for_new_instances() {
    let first = state(
        &["A"],
        &[
            ("a", "1", "A", Phase::Running),
            ("b", "1", "A", Phase::Running),
        ],
    );
    let second = state(
        &["A"],
        &[
            ("a", "1", "A", Phase::Running),
            ("c", "1", "A", Phase::Running),
        ],
    );
    let steps = vec![
        Step::State(first),
        Step::Broadcast(vec![reported(
            "a.1.A",
            Phase::FailedExecFailed,
            "Exit code: '1'",
        )]),
        Step::Broadcast(vec![reported("b.1.A", Phase::Removed, "")]),
        Step::Broadcast(vec![reported("c.1.A", Phase::PendingStarting, "")]),
        Step::State(second),
    ];
    let filter = WorkloadArguments {
        state: Some("running".to_owned()),
        watch: true,
        ..WorkloadArguments::default()
    };
    let played = play(None, steps, |server, output| {
        workloads(server, &filter, now(), output)
    });
    assert_eq!(
        played.result.unwrap_err().to_string(),
        "Connection to server interrupted: end of the script"
    );
    let frames: Vec<String> = played
        .out
        .split_terminator("\n\n")
        .map(|frame| {
            frame
                .lines()
                .skip(1)
                .filter_map(|line| line.split(' ').next())
                .collect::<Vec<_>>()
                .join(",")
        })
        .collect();
    assert_eq!(frames, ["a,b", "b", "", "a,c"]);
    assert_eq!(played.server.reads.len(), 2);
}

#[test]
fn a_filter_for_what_does_not_exist_leads_to_a_warning() {
    let filter = |agent: &str, state: &str, name: &str| {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        WorkloadArguments {
            filter: Filter {
                agent: text(agent),
                names: text(name).into_iter().collect(),
            },
            state: text(state),
            ..WorkloadArguments::default()
        }
    };
    for (filter, warning) in [
        (
            filter("", "", "wbe"),
            "warn: workload 'wbe' does not exist\nhint: did you mean 'web'?\n",
        ),
        (
            filter("agent_X", "", ""),
            "warn: agent 'agent_X' does not exist\nhint: did you mean 'agent_A'?\n",
        ),
        (
            filter("", "Runing", ""),
            "warn: no state is called 'Runing'\nhint: did you mean 'Running'?\n",
        ),
        (filter("agent_A", "pending(STARTING)", "web"), ""),
        (filter("agent_A", "Failed", "web"), ""),
        (
            WorkloadArguments {
                filter: Filter {
                    agent: Some(String::new()),
                    names: Vec::new(),
                },
                ..WorkloadArguments::default()
            },
            "",
        ),
    ] {
        let cluster = state(&["agent_A"], &[("web", "1", "agent_A", Phase::Running)]);
        let played = play(None, [Step::State(cluster)], |server, output| {
            workloads(server, &filter, now(), output)
        });
        let heading = "WORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE   ADDITIONAL INFO\n";
        assert_eq!(
            (played.out.as_str(), played.err.as_str()),
            (heading, warning),
            "{filter:?}"
        );
    }
}

#[test]
fn workloads_that_wait_show_for_what_also_when_they_are_watched() {
    let waits = [
        ("db", "1", "A", Phase::PendingStarting),
        ("web", "1", "A", Phase::PendingWaitingToStart),
    ];
    let mut cluster = state(&["A"], &waits);
    let_need(
        &mut cluster,
        "effectiveState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let filter = Filter {
        names: vec!["web".to_owned()],
        ..Filter::default()
    };
    let filter = WorkloadArguments {
        filter,
        ..WorkloadArguments::default()
    };
    let text = written(vec![Step::State(cluster.clone())], |link, output| {
        workloads(link, &filter, now(), output)
    });
    assert!(
        text.contains("Pending(WaitingToStart)   waits for 'db' to run: it is Pending(Starting)\n"),
        "{text}"
    );

    let failed = Step::Broadcast(vec![reported(
        "db.1.A",
        Phase::PendingStartingFailed,
        "no image",
    )]);
    let steps = [Step::State(cluster), failed];
    let filter = WorkloadArguments {
        watch: true,
        ..filter
    };
    let text = play(None, steps, |server, output| {
        workloads(server, &filter, now(), output)
    })
    .out;
    assert!(
        text.ends_with("waits for 'db' to run: it is Pending(StartingFailed)\n\n"),
        "{text}"
    );
}

#[test]
fn a_warning_of_the_server_is_shown_once_beside_the_state() {
    let masks = ["agents", "workloadStates"].map(str::to_owned);
    let steps = |part| {
        [
            Step::State(Node::map([("agents", Node::map([("A", Node::empty())]))])),
            part,
        ]
    };
    let warning = Node::map([("warning", Node::text("older\n\x1b state"))]);
    for (part, err) in [
        (Step::State(warning), "warn: older\n\\u{1b} state\n"),
        (Step::State(Node::empty()), ""),
        (Step::NoState("unknown mask"), ""),
    ] {
        let played = play(None, steps(part), |server, output| {
            super::state(server, &masks, Format::Json, output)
        });
        assert!(played.result.is_ok() && played.server.is_done());
        assert_eq!(
            (played.server.reads, played.err.as_str()),
            (vec![masks.to_vec(), vec!["warning".to_owned()]], err)
        );
        assert!(played.out.contains("agents"));
    }
}

#[test]
fn a_mask_that_selects_nothing_leads_to_a_warning() {
    let masks = [
        "desiredSate.workloads",
        "agents.nobody",
        "*.workloads",
        "",
        "desiredState.workloads",
        "desiredState.workloads.*.agent",
        "effectiveState.workloads.wbe.agent",
        "effectiveState.workloads.wbe",
        "desiredState.configs.c",
        "desiredState..x",
        "desiredState.wrkloads",
        "desiredState.workloads.web.tags",
        "desiredState.workloads.web.foo",
        "desiredState.workloads.web.agent.x",
        "desiredState.workloads.web",
        "workloadStates.A.web.state",
    ]
    .map(str::to_owned);
    let web = Node::map([("web", Node::map([("agent", Node::text("A"))]))]);
    let steps = [Step::State(Node::map([(
        "desiredState",
        Node::map([("workloads", web)]),
    )]))];
    let played = play(None, steps, |server, output| {
        super::state(server, &masks, Format::Json, output)
    });
    assert_eq!(
        played.err,
        "warn: mask 'desiredSate.workloads' selects nothing: no part of the state is called 'desiredSate'\nhint: did you mean \
         'desiredState'?\nwarn: mask '' selects nothing: no part of the state is called ''\nwarn: agent 'nobody' does not \
         exist\nwarn: mask 'effectiveState.workloads.wbe.agent' selects nothing\nwarn: workload 'wbe' does not exist\nwarn: \
         config 'c' does not exist\nwarn: mask 'desiredState..x' selects nothing: no part of 'desiredState' is called ''\n\
         warn: mask 'desiredState.wrkloads' selects nothing: no part of 'desiredState' is called 'wrkloads'; did you mean \
         'workloads'?\nwarn: mask 'desiredState.workloads.web.tags' selects nothing\nwarn: mask \
         'desiredState.workloads.web.foo' selects nothing: no part of 'desiredState.workloads.web' is called 'foo'\nwarn: \
         mask 'desiredState.workloads.web.agent.x' selects nothing: no part of 'desiredState.workloads.web.agent' is \
         called 'x'\nwarn: mask 'workloadStates.A.web.state' selects nothing: the id of the instance is missing before \
         'state'; write 'workloadStates.A.web.*.state'\n"
    );
}

#[test]
fn tables_are_followed_by_nothing_but_a_warning_about_storage() {
    let part = |with: Node| {
        Node::map([
            ("warning", Node::text("the state cannot be stored anywhere")),
            ("updates", with),
        ])
    };
    let none = Node::map::<&str>([]);
    for (step, get) in [
        (
            part(none.clone()),
            (|link, output| workloads(link, &WorkloadArguments::default(), now(), output)) as Get,
        ),
        (part(none.clone()), |link, output| {
            agents(&ListArguments::default(), link, output)
        }),
        (part(none.clone()), |link, output| {
            configs(&ListArguments::default(), link, output)
        }),
        (part(none), |link, output| {
            crate::update::print(&ListArguments::default(), link, output)
        }),
    ] {
        let played = play(None, vec![Step::State(step)], get);
        assert_eq!(played.err, "warn: the state cannot be stored anywhere\n");
        assert_eq!(played.out.lines().count(), 1, "{}", played.out);
        assert!(
            played.server.reads[0].contains(&"warning".to_owned()),
            "{:?}",
            played.server.reads
        );
    }
}

type Get = fn(&mut ScriptedServer, &mut Output) -> Result<()>;

// [utest->swdd~cli-state-as-manifest~1]
#[test]
fn state_as_manifest_has_the_version_and_whole_objects() {
    let web = Node::map([
        ("agent", Node::text("A")),
        ("runtime", Node::text("podman")),
    ]);
    let workloads = Node::map([("web", web)]);
    let desired = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
    let masks = ["desiredState.workloads.web".to_owned()];
    let steps = vec![Step::State(desired), Step::State(Node::empty())];
    let text = written(steps, |link, output| {
        super::state(link, &masks, Format::Manifest, output)
    });
    let expected = "apiVersion: v1\nworkloads:\n  web:\n    agent: A\n    runtime: podman\n";
    assert_eq!(text, expected);
    for mask in ["agents", "desiredState.workloads.web.agent"] {
        let masks = [mask.to_owned()];
        let played = play(None, vec![], |link, output| {
            super::state(link, &masks, Format::Manifest, output)
        });
        let error = played.result.unwrap_err().to_string();
        assert_eq!(error, format!("'{mask}' is no part of a manifest"));
    }
}

#[test]
fn agent_that_is_away_is_named_below_the_list() {
    let cluster = state(&["A"], &[("web", "1", "B", Phase::AgentDisconnected)]);
    let played = play(None, vec![Step::State(cluster)], |link, output| {
        agents(&ListArguments::default(), link, output)
    });
    played.result.unwrap();
    assert_eq!(
        played.err,
        "warn: agent 'B' is not connected; it has 1 workload\n"
    );
}

#[test]
fn agent_that_is_away_is_named_with_the_time_of_its_loss() {
    let cluster = state(
        &["A"],
        &[
            ("web", "1", "B", Phase::AgentDisconnected),
            ("db", "1", "C", Phase::AgentDisconnected),
        ],
    );
    let change = |at, agent, state| {
        Node::map([
            ("at", Node::Number(at)),
            ("agent", Node::text(agent)),
            ("state", Node::text(state)),
        ])
    };
    let changes = vec![
        change(1_000, "B", "AgentDisconnected"),
        change(2_000, "C", "AgentDisconnected"),
        change(60_000, "B", "AgentConnected"),
        change(120_000, "B", "AgentDisconnected"),
        change(180_000, "C", "AgentConnected"),
    ];
    let history = Node::map([("history", Node::List(changes))]);
    let steps = vec![Step::State(cluster), Step::State(history)];
    let played = play(None, steps, |link, output| {
        agents(&ListArguments::default(), link, output)
    });
    played.result.unwrap();
    let expected = "warn: agent 'B' is not connected since 1970-01-01T00:02:00Z; it has 1 workload\n\
                    warn: agent 'C' is not connected; it has 1 workload\n";
    assert_eq!(played.err, expected);
    assert!(played.server.is_done(), "one read for all agents");
}

/// A cluster whose server was restarted 65 seconds ago.
fn after_restart_of_server() -> Node {
    let mut cluster = state(
        &["A"],
        &[
            ("db", "1", "A", Phase::Running),
            ("other", "1", "A", Phase::Running),
            ("web", "1", "A", Phase::Running),
        ],
    );
    let times = |fields: &[(&'static str, u64)]| {
        let fields = fields.iter().map(|(key, at)| (*key, Node::Number(*at)));
        Node::map([("1", Node::map(fields))])
    };
    let of_agent = Node::map([
        ("db", times(&[("desired", 0), ("running", 1_000)])),
        ("other", times(&[("desired", 0), ("running", 1_000)])),
        (
            "web",
            times(&[("starting", 4_000), ("running", 5_000), ("starts", 1)]),
        ),
    ]);
    let timings = Node::map([
        ("now", Node::Number(65_000)),
        ("instances", Node::map([("A", of_agent)])),
    ]);
    let change = |at, workload, state| {
        Node::map([
            ("at", Node::Number(at)),
            ("agent", Node::text("A")),
            ("workload", Node::text(workload)),
            ("id", Node::text("1")),
            ("state", Node::text(state)),
        ])
    };
    let started = Node::map([
        ("at", Node::Number(400_000)),
        ("state", Node::text("ServerStarted")),
    ]);
    let changes = vec![
        change(100_000, "db", "Running(Ok)"),
        change(100_000, "web", "Running(Ok)"),
        started,
        change(404_000, "web", "Pending(Starting)"),
        change(405_000, "web", "Running(Ok)"),
    ];
    let map = cluster.as_map_mut().unwrap();
    map.insert("timings", timings);
    map.insert("history", Node::List(changes));
    cluster
}

#[test]
fn age_and_restarts_count_from_before_a_restart_of_the_server() {
    let cluster = after_restart_of_server();
    let filter = WorkloadArguments {
        output: Format::Wide,
        ..WorkloadArguments::default()
    };
    let text = written(vec![Step::State(cluster)], |link, output| {
        workloads(link, &filter, now(), output)
    });
    let mut ages = Vec::new();
    for line in text.lines().skip(1) {
        let (_, cells) = line.split_once("Running(Ok)").unwrap();
        ages.push(cells.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    assert_eq!(ages, ["6m5s", ">1m4s", "1m0s >0"]);
}

/// The documents of the workloads in `cluster`.
fn documents(cluster: Node) -> Vec<Value> {
    let filter = WorkloadArguments {
        output: Format::Json,
        ..WorkloadArguments::default()
    };
    let text = written(vec![Step::State(cluster)], |link, output| {
        workloads(link, &filter, now(), output)
    });
    let document: Value = serde_yaml::from_str(&text).unwrap();
    document["workloads"].as_sequence().unwrap().clone()
}

#[test]
fn documents_of_workloads_have_times_counts_and_reasons() {
    let mut cluster = after_restart_of_server();
    let other = cluster.at_mut(&["workloadStates", "A", "other", "1"]);
    let other = other.unwrap().as_map_mut().unwrap();
    other.insert("state", Node::text("Pending"));
    other.insert("subState", Node::text("WaitingToStart"));
    other.insert("reason", Node::text("PRECONDITION"));
    other.insert("prepared", Node::text("CREATE"));
    let documents = documents(cluster);
    // 365 and 60 seconds before now; the second one may be older than 64 seconds.
    assert_eq!(documents[0]["since"], "1970-01-01T00:10:35Z");
    assert_eq!(documents[1]["sinceAtLatest"], "1970-01-01T00:15:36Z");
    assert_eq!(documents[2]["since"], "1970-01-01T00:15:40Z");
    assert_eq!(documents[2]["restartsAtLeast"], 0);
    assert_eq!(documents[0].get("restarts"), None);
    assert_eq!(documents[1]["reason"], "PRECONDITION");
    assert_eq!(documents[1]["prepared"], "CREATE");
    assert_eq!(documents[0].get("reason"), None);
}

#[test]
fn image_is_shown_for_instances_with_the_known_configuration() {
    let config = "image: 'nginx:1' # the newest\n";
    let id = hash_id(config);
    let instances = [
        ("web", id.as_str(), "A", Phase::Running),
        ("web", "old", "A", Phase::Running),
    ];
    let mut cluster = state(&["A"], &instances);
    let web = cluster.at_mut(&["desiredState", "workloads", "web"]);
    let web = web.unwrap().as_map_mut().unwrap();
    web.insert("runtimeConfig", Node::text(config));
    let filter = WorkloadArguments {
        output: Format::Wide,
        ..WorkloadArguments::default()
    };
    let text = written(vec![Step::State(cluster.clone())], |link, output| {
        workloads(link, &filter, now(), output)
    });
    for line in text.lines().skip(1) {
        assert_eq!(line.contains(" nginx:1 "), line.contains(&id), "{text}");
    }
    for document in documents(cluster) {
        let is_known = document["id"] == id.as_str();
        let image = document.get("image").and_then(Value::as_str);
        assert_eq!(image, is_known.then_some("nginx:1"));
    }
}

#[test]
fn workloads_of_an_agent_that_is_away_are_followed_by_a_warning() {
    let away = [
        ("web", "1", "agent_A", Phase::AgentDisconnected),
        ("nav", "1", "agent_A", Phase::AgentDisconnected),
        ("db", "1", "frnt", Phase::PendingInitial),
    ];
    let cluster = state(&["front"], &away);
    let lost = Node::map([
        ("at", Node::Number(120_000)),
        ("agent", Node::text("agent_A")),
        ("state", Node::text("AgentDisconnected")),
    ]);
    let history = Node::map([("history", Node::List(vec![lost]))]);
    let of_web =
        "warn: agent 'agent_A' is not connected since 1970-01-01T00:02:00Z; it has 2 workloads\n";
    let of_db = "warn: agent 'frnt' is not connected; it has 1 workload\n\
         hint: if the name is misspelt: agent 'front' is connected\n";
    for (names, expected) in [
        (&[][..], format!("{of_web}{of_db}")),
        (&["web"], of_web.to_owned()),
        (&["db"], of_db.to_owned()),
    ] {
        let names = names.iter().map(ToString::to_string).collect();
        let filter = WorkloadArguments {
            filter: Filter { agent: None, names },
            ..WorkloadArguments::default()
        };
        let steps = [Step::State(cluster.clone()), Step::State(history.clone())];
        let played = play(None, steps, |link, output| {
            workloads(link, &filter, now(), output)
        });
        played.result.unwrap();
        assert_eq!(played.err, expected);
        assert!(played.server.is_done(), "the times were read");
    }
}

#[test]
fn workloads_are_one_read_unless_an_agent_is_away() {
    let running = state(&["A"], &[("web", "1", "A", Phase::Running)]);
    let failed = state(&["A"], &[("web", "1", "A", Phase::FailedExecFailed)]);
    let away = state(&["A"], &[("web", "1", "B", Phase::AgentDisconnected)]);
    for (cluster, reads) in [(running, 1), (failed, 1), (away, 2)] {
        let steps = [Step::State(cluster), Step::State(Node::empty())];
        let filter = WorkloadArguments::default();
        let played = play(None, steps, |link, output| {
            workloads(link, &filter, now(), output)
        });
        played.result.unwrap();
        let [first, others @ ..] = &played.server.reads[..] else {
            panic!("nothing was read");
        };
        assert!(first.contains(&"history.Failed".to_owned()), "{first:?}");
        assert!(!first.contains(&"history".to_owned()), "{first:?}");
        assert_eq!(1 + others.len(), reads, "{others:?}");
    }
}

// [utest->swdd~cli-warns-of-failures~1]
#[test]
fn workload_that_fails_again_and_again_leads_to_a_warning() {
    let warning = "warn: failed in the last hour: 'web' at least 3 times\n\
                   hint: 'ank describe web' shows the last causes\n";
    let hour_ago = 1_000_000;
    for (ids, first_at, name, expected) in [
        (["1", "1", "1"], hour_ago, "web", warning),
        (["1", "1", "1"], hour_ago - 1, "web", ""),
        (["1", "0", "1"], hour_ago, "web", ""),
        (["1", "1", "1"], hour_ago, "db", ""),
    ] {
        let running = [
            ("db", "1", "A", Phase::Running),
            ("web", "1", "A", Phase::Running),
        ];
        let mut cluster = state(&["A"], &running);
        let mut changes = Vec::new();
        for (after, id) in ids.into_iter().enumerate() {
            for state in ["Pending(Starting)", "Running(Ok)", "Failed(ExecFailed)"] {
                changes.push(Node::map([
                    ("at", Node::Number(first_at + after as u64)),
                    ("agent", Node::text("A")),
                    ("workload", Node::text("web")),
                    ("id", Node::text(id)),
                    ("state", Node::text(state)),
                ]));
            }
        }
        let map = cluster.as_map_mut().unwrap();
        map.insert("history", Node::List(changes));
        let filter = WorkloadArguments {
            filter: Filter {
                agent: None,
                names: vec![name.to_owned()],
            },
            ..WorkloadArguments::default()
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_000 + 3600);
        let played = play(None, [Step::State(cluster)], |link, output| {
            workloads(link, &filter, now, output)
        });
        played.result.unwrap();
        assert_eq!(played.err, expected, "{ids:?} {first_at} {name}");
    }
}
