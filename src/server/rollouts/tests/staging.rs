//! Updates that are staged before they are carried out, with an agent that the test plays.

use super::*;
use crate::ServerLoop;
use crate::limits::{UPDATE_AGENT_AWAY, UPDATES_OPEN};
use crate::state_store::STORE_WAIT;
use ankaios_model::messages::PreparedInstance;
use ankaios_model::names::Name;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::SystemClock;

/// May only be replaced, or started, while a file is missing.
const WHEN: &str = "{ when: { pathMissing: /lock } }";

/// Two workloads that run on an agent which prepares.
fn rig() -> Rig {
    Rig::with_agent(&[db("1"), workload("web", "1", "", NEEDS_DB)], PREPARES)
}

fn prepared(instance: &InstanceName) -> PreparedInstance {
    let instance = instance.clone();
    PreparedInstance {
        instance,
        level: Some(PrepareLevel::Create),
        reason: None,
        tries: 0,
        is_final: false,
        unmet: None,
    }
}

fn failed(instance: &InstanceName, tries: u32, is_final: bool) -> PreparedInstance {
    let reason = Some("no such image".to_owned());
    PreparedInstance {
        level: None,
        reason,
        tries,
        is_final,
        ..prepared(instance)
    }
}

impl Rig {
    fn prepared(&mut self, report: PreparedInstance) {
        self.cluster.send(self.a, ToServer::Prepared(vec![report]));
    }

    /// What the agent was sent, in short.
    fn sent(&self) -> Vec<String> {
        let short = |message: &FromServer| match message {
            FromServer::Prepare(added) => format!("prepare {}", names(added).join(",")),
            FromServer::UpdateWorkload(plan) => format!("update {}", names(&plan.added).join(",")),
            FromServer::ServerHello(added) => {
                let images: Vec<&Name> = added.iter().map(|added| &added.instance.id).collect();
                format!(
                    "hello {}",
                    if images.contains(&&db_instance("1").id) {
                        "old"
                    } else {
                        "new"
                    }
                )
            }
            other => format!("{other:?}"),
        };
        self.cluster.take(self.a).iter().map(short).collect()
    }
}

// [utest->swdd~server-stages-updates~1]
#[test]
fn staging_sends_no_plan_until_all_is_prepared() {
    let mut rig = rig();
    let cli = cli(&mut rig);
    let (added, deleted) = rig.apply(&[&db("2")]).unwrap();
    assert_eq!(
        (added, deleted),
        (
            vec![db_instance("2").to_string()],
            vec![db_instance("1").to_string()]
        )
    );
    assert_eq!(
        (rig.sent(), rig.writes()),
        (vec!["prepare db".to_owned()], 1)
    );
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 STAGING".to_owned()],
            vec!["db 2".to_owned(), "web 1".to_owned()]
        )
    );
    assert_eq!(
        rig.cluster.server.view().effective["db"].instance,
        db_instance("1")
    );
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: stages CREATE'"
    );
    rig.wait(Duration::from_secs(25));
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: stages CREATE, 20 s'"
    );
    rig.prepared(failed(&db_instance("2"), 2, false));
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: no such image, retry 2 in 1 s'"
    );
    assert_eq!((rig.sent(), rig.writes()), (vec![], 0), "no agent is told");
    let shown = format!("{:?}", rig.cluster.take(cli));
    assert!(
        shown.contains("update: no such image, retry 2 in 1 s"),
        "who waits sees how it goes: {shown}"
    );
    rig.prepared(prepared(&db_instance("2")));
    assert_eq!(
        (rig.sent(), rig.writes()),
        (vec!["update db".to_owned(), "prepare ".to_owned()], 1)
    );
    assert_eq!(
        (rig.phases(), rig.state(&db_instance("2"))),
        (vec!["1 TRIAL".to_owned()], "Pending(Initial)".to_owned())
    );
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

#[test]
fn update_that_cannot_be_staged_is_undone_without_a_stop() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.cluster.take_all();
    rig.prepared(failed(&db_instance("2"), 20, true));
    assert_eq!(rig.read(1, "reason"), "db: cannot be staged: no such image");
    assert_eq!(rig.read(1, "cause"), "CANNOT_BE_STAGED");
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 UNDONE".to_owned()],
            vec!["db 1".to_owned(), "web 1".to_owned()]
        )
    );
    assert_eq!(
        (rig.sent(), rig.state(&db_instance("2"))),
        (vec!["prepare ".to_owned()], String::new())
    );
    rig.apply(&[&db("2")]).unwrap();
}

#[test]
fn unstageable_update_with_keep_switches_once_conditions_hold() {
    let update = "{ when: { pathMissing: /lock } }";
    let mut rig = Rig::with_agent(&[workload("db", "1", update, "")], PREPARES);
    rig.apply(&[&workload("db", "2", update, "")]).unwrap();
    let new = instance("db", "2", update);
    let unmet = Some("/lock exists".to_owned());
    rig.prepared(PreparedInstance {
        unmet,
        ..failed(&new, 20, true)
    });
    assert_eq!(
        (rig.phases(), rig.state(&new)),
        (
            vec!["1 STAGING".to_owned()],
            "Pending(Initial): 'update: cannot be staged: no such image'".to_owned()
        )
    );
    rig.prepared(failed(&new, 20, true));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
}

#[test]
fn condition_blocks_the_update_and_others_name_it() {
    let update = "{ stage: NONE, when: { pathMissing: /lock } }";
    let mut rig = Rig::with_agent(&[db("1"), workload("nav", "1", update, "")], PREPARES);
    rig.apply(&[
        &db("2"),
        &workload("nav", "2", update, ""),
        &workload("new", "1", "", ""),
    ])
    .unwrap();
    let nav = instance("nav", "2", update);
    rig.prepared(prepared(&db_instance("2")));
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: waits for nav'"
    );
    assert_eq!(
        rig.state(&instance("new", "1", "")),
        "Pending(Initial): 'update: waits for nav'"
    );
    rig.prepared(PreparedInstance {
        unmet: Some("/lock exists".into()),
        ..prepared(&nav)
    });
    assert_eq!(rig.state(&nav), "Pending(Initial): 'update: /lock exists'");
    rig.wait(Duration::from_secs(100_000));
    assert_eq!(
        (rig.phases(), rig.read(1, "waitsFor")),
        (vec!["1 STAGING".to_owned()], r#"["nav"]"#.to_owned())
    );
    rig.cluster.take_all();
    rig.prepared(prepared(&nav));
    assert_eq!(rig.sent(), ["update db,nav,new", "prepare "]);
}

#[test]
fn lost_agent_is_awaited_for_a_minute_and_shown_unchanged() {
    let mut rig = rig();
    let b = rig.cluster.agent("B");
    rig.apply(&[&db("2")]).unwrap();
    rig.cluster.close(rig.a);
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: stages CREATE'"
    );
    assert_eq!(rig.state(&db_instance("1")), "AgentDisconnected");
    let told = format!("{:?}", rig.cluster.take(b));
    assert!(!told.contains(&*db_instance("2").id), "{told}");
    rig.wait(UPDATE_AGENT_AWAY - Duration::from_secs(1));
    rig.a = rig.cluster.agent_with("A", PREPARES);
    let messages = rig.cluster.take(rig.a);
    let place = |is_it: fn(&FromServer) -> bool| messages.iter().position(is_it).unwrap();
    let hello = place(|message| matches!(message, FromServer::ServerHello(_)));
    assert!(
        place(is_prepare) < hello,
        "before its workloads: {messages:?}"
    );
    let FromServer::ServerHello(added) = &messages[hello] else {
        panic!()
    };
    assert!(added.iter().any(|added| added.instance == db_instance("1")));
    rig.cluster.send(rig.a, ToServer::StatesComplete); // Not a list of what it has lost.
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: stages CREATE, 50 s'"
    );
    rig.cluster.close(rig.a);
    rig.wait(UPDATE_AGENT_AWAY);
    assert_eq!(
        (rig.phases(), rig.read(1, "waitsFor")),
        (vec!["1 TRIAL".to_owned()], r#"["agent A"]"#.to_owned())
    );
    rig.a = rig.cluster.agent_with("A", PREPARES);
    let sent = rig.sent();
    assert!(
        sent.contains(&"hello new".to_owned()) && !sent.iter().any(|it| it.starts_with("prepare")),
        "{sent:?}"
    );
}

#[test]
fn absent_agent_is_awaited_only_for_its_condition() {
    let update = "{ when: { pathMissing: /lock } }";
    for (update, waits) in [(update, true), ("{}", false)] {
        let mut rig = Rig::with_agent(&[workload("db", "1", update, "")], PREPARES);
        rig.cluster.close(rig.a);
        rig.apply(&[&workload("db", "2", update, "")]).unwrap();
        rig.wait(UPDATE_AGENT_AWAY * 100);
        assert_eq!(rig.phases(), [if waits { "1 STAGING" } else { "1 TRIAL" }]);
        if waits {
            rig.a = rig.cluster.agent_with("A", AgentCapabilities::default());
            assert_eq!(rig.phases(), ["1 TRIAL"], "it cannot prepare");
        }
    }
}

#[test]
fn agents_that_nothing_waits_for_any_more_are_forgotten() {
    let mut rig = rig();
    for number in 0..3 {
        let nav = workload("nav", "1", WHEN, "")
            .replace("agent: A", &format!("agent: invented_{number}"));
        rig.apply(&[&nav]).unwrap();
        assert_eq!(rig.cluster.server.rollouts.away.len(), 1);
        rig.apply(&["nav: ~"]).unwrap();
        assert!(rig.cluster.server.rollouts.away.is_empty());
    }
}

#[test]
fn agent_that_cannot_prepare_is_updated_at_once() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    let mut rig = self::rig();
    rig.apply(&[&workload("web", "2", "{ stage: NONE }", NEEDS_DB)])
        .unwrap();
    rig.apply(&[&workload("nobody", "1", WHEN, "").replace("agent: A", "agent: \"\"")])
        .unwrap();
    assert_eq!(rig.phases(), ["1 TRIAL", "2 GOOD"]);
}

#[test]
fn new_workload_with_a_condition_blocks_its_whole_update() {
    let mut rig = rig();
    rig.apply(&[&db("2"), &workload("nav", "1", WHEN, "")])
        .unwrap();
    let nav = instance("nav", "1", WHEN);
    rig.prepared(prepared(&db_instance("2")));
    rig.prepared(PreparedInstance {
        unmet: Some("/lock exists".to_owned()),
        ..prepared(&nav)
    });
    assert_eq!(
        (rig.phases(), rig.sent()),
        (
            vec!["1 STAGING".to_owned()],
            vec!["prepare db,nav".to_owned()]
        )
    );
    assert_eq!(rig.state(&nav), "Pending(Initial): 'update: /lock exists'");
    let stored = rig.cluster.server.stored();
    let mut server = ServerLoop::new();
    server.set_clock(rig.clock.clone());
    server.start_again_with(stored).unwrap();
    rig.cluster = Cluster::default();
    rig.cluster.server = server;
    rig.a = rig.cluster.agent_with("A", PREPARES);
    let sent: Vec<String> = rig
        .sent()
        .into_iter()
        .filter(|it| !it.contains("WorkloadStates"))
        .collect();
    assert_eq!(
        sent,
        ["prepare db,nav", "hello old"],
        "it is waited for after a restart, too"
    );
    rig.prepared(prepared(&db_instance("2")));
    rig.prepared(prepared(&nav));
    assert_eq!(
        (rig.phases(), rig.sent()),
        (
            vec!["1 TRIAL".into()],
            vec!["update db,nav".into(), "prepare ".to_owned()]
        )
    );
}

#[test]
fn moved_workload_waits_for_its_new_agent_and_condition() {
    for (update, has_condition) in [(WHEN, true), ("{}", false)] {
        let on = |agent: &str| {
            workload("nav", "1", update, "").replace("agent: A", &format!("agent: {agent}"))
        };
        let mut rig = Rig::with_agent(&[on("A")], PREPARES);
        let b = rig.cluster.agent_with("B", PREPARES);
        rig.cluster.take_all();
        rig.apply(&[&on("B")]).unwrap();
        let there = InstanceName {
            agent: "B".into(),
            ..instance("nav", "1", update)
        };
        assert_eq!(
            (rig.sent(), rig.state(&there)),
            (
                vec![],
                "Pending(Initial): 'update: stages CREATE'".to_owned()
            )
        );
        assert!(rig.cluster.take(b).iter().any(is_prepare));
        if has_condition {
            let unmet = PreparedInstance {
                unmet: Some("/lock exists".to_owned()),
                ..prepared(&there)
            };
            rig.cluster.send(b, ToServer::Prepared(vec![unmet]));
            assert_eq!(
                rig.state(&there),
                "Pending(Initial): 'update: /lock exists'"
            );
        }
        assert_eq!(
            (rig.phases(), rig.sent()),
            (vec!["1 STAGING".to_owned()], vec![]),
            "the old one runs on"
        );
        rig.cluster
            .send(b, ToServer::Prepared(vec![prepared(&there)]));
        assert_eq!(
            (rig.phases(), rig.plan().1),
            (
                vec!["1 TRIAL".to_owned()],
                vec![instance("nav", "1", update).to_string()]
            )
        );
    }
}

#[test]
fn move_to_an_absent_agent_waits_only_for_a_condition() {
    for (update, phase) in [(WHEN, "1 STAGING"), ("{}", "1 TRIAL")] {
        let nav = workload("nav", "1", update, "");
        let mut rig = Rig::with_agent(std::slice::from_ref(&nav), PREPARES);
        rig.apply(&[&nav.replace("agent: A", "agent: B")]).unwrap();
        rig.wait(UPDATE_AGENT_AWAY * 100);
        assert_eq!(
            (rig.phases(), rig.read(1, "waitsFor")),
            (vec![phase.to_owned()], r#"["agent B"]"#.to_owned())
        );
        rig.cluster.agent("B");
        assert_eq!(rig.phases(), ["1 TRIAL"], "it cannot prepare");
    }
}

#[test]
fn staged_instance_of_the_same_name_shows_the_agents_state() {
    let mut rig = rig();
    rig.apply(&[&workload("db", "1", ROLLBACK, ", tags: { k: v }")])
        .unwrap();
    let db = db_instance("1");
    let b = rig.cluster.agent("B");
    rig.cluster.take_all();
    assert_eq!(rig.state(&db), "Running(Ok)");
    rig.report_info(&db, Phase::Running, "alive: failed once");
    assert_eq!(rig.state(&db), "Running(Ok): 'alive: failed once'");
    let told = format!("{:?}", rig.cluster.take(b));
    assert!(
        told.contains("alive") && !told.contains("update:"),
        "{told}"
    );
    let c = rig.cluster.agent("C");
    let told = format!("{:?}", rig.cluster.take(c));
    assert!(
        told.contains("alive") && !told.contains("update:"),
        "{told}"
    );
    rig.prepared(prepared(&db));
    assert_eq!(
        (rig.phases(), rig.state(&db)),
        (
            vec!["1 TRIAL".to_owned()],
            "Running(Ok): 'alive: failed once'".to_owned()
        )
    );
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 TRIAL"], "that was the old one");
    rig.report(&db, Phase::Removed);
    rig.report(&db, Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

/// Its agent has reported the end of an earlier one, and reports this one next.
#[test]
fn active_instance_without_a_state_is_no_placeholder() {
    let mut rig = rig();
    rig.apply(&[&workload("db", "1", ROLLBACK, ", tags: { k: v }")])
        .unwrap();
    let db = db_instance("1");
    rig.report(&db, Phase::Removed);
    assert_eq!(rig.state(&db), "");
    rig.report(&db, Phase::Running);
    assert_eq!(rig.state(&db), "Running(Ok)");
}

#[test]
fn staged_instance_of_a_withdrawn_update_ends_at_the_server() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&db("3")]).unwrap();
    assert_eq!(
        (rig.phases(), rig.sent()),
        (
            vec!["1 REPLACED".to_owned(), "2 STAGING".to_owned()],
            vec!["prepare db".to_owned(); 2]
        )
    );
    assert_eq!(
        (rig.state(&db_instance("2")), rig.state(&db_instance("1"))),
        (String::new(), "Running(Ok)".to_owned())
    );
    rig.apply(&[&db("1")]).unwrap();
    assert_eq!(
        (rig.phases().pop(), rig.sent()),
        (Some("2 WITHDRAWN".to_owned()), vec!["prepare ".to_owned()])
    );
    assert_eq!(
        (rig.state(&db_instance("3")), rig.state(&db_instance("1"))),
        (String::new(), "Running(Ok)".to_owned())
    );
    rig.apply(&[&db("2")]).unwrap();
    rig.cluster.take_all();
    rig.apply(&["db: ~"]).unwrap();
    assert_eq!(
        (rig.state(&db_instance("2")), rig.sent()),
        (
            String::new(),
            vec!["update ".to_owned(), "prepare ".to_owned()]
        )
    );
    assert_eq!(rig.phases().pop(), Some("3 WITHDRAWN".to_owned()));
}

#[test]
fn joining_request_is_staged_and_switched_part_stays_evaluated() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.prepared(prepared(&db_instance("2")));
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    rig.cluster.take_all();
    rig.apply(&[&db("3"), &workload("new", "1", ROLLBACK, "")])
        .unwrap();
    assert_eq!(
        (rig.phases(), rig.sent()),
        (
            vec!["1 REPLACED".to_owned(), "2 STAGING".to_owned()],
            vec!["prepare db,new".to_owned()]
        )
    );
    rig.wait(DEADLINE * 2);
    assert_eq!(
        rig.phases()[1],
        "2 STAGING",
        "what is about to be replaced is healthy"
    );
    rig.report_info(
        &instance("web", "1", ""),
        Phase::FailedExecFailed,
        "Exit code: '1'",
    );
    assert_eq!(
        (rig.phases()[1].clone(), rig.desired()),
        (
            "2 UNDONE".to_owned(),
            vec!["db 1".to_owned(), "web 1".to_owned()]
        )
    );
    assert_eq!(rig.sent(), ["update db", "prepare "]);
    assert!(
        rig.apply(&[&db("3"), &workload("new", "1", ROLLBACK, "")])
            .unwrap_err()
            .contains("same as update 2")
    );
}

#[test]
fn what_was_switched_is_judged_on_while_its_successor_is_staged() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.prepared(prepared(&db_instance("2")));
    rig.report(&db_instance("1"), Phase::Removed);
    rig.apply(&[&db("3")]).unwrap();
    rig.wait(DEADLINE / 2);
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(
        (rig.phases().pop(), rig.read(3, "waitsFor")),
        (Some("3 TRIAL".to_owned()), r#"["db"]"#.to_owned())
    );
    rig.apply(&[&db("4")]).unwrap();
    rig.wait(DEADLINE / 2);
    assert_eq!(
        (rig.desired(), rig.read(4, "phase")),
        (vec!["db 1".into(), "web 1".into()], "UNDONE".to_owned())
    );
}

#[test]
fn repeated_requests_do_not_postpone_the_outcome() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.prepared(prepared(&db_instance("2")));
    rig.report(&db_instance("1"), Phase::Removed);
    let mut seconds = 0;
    while rig.desired()[0] != "db 1" {
        seconds += 1;
        assert!(seconds <= DEADLINE.as_secs());
        rig.apply(&[&db(&format!("2{seconds}"))]).unwrap();
        rig.wait(Duration::from_secs(1));
    }
    assert_eq!(seconds, DEADLINE.as_secs());
}

#[test]
fn restarted_server_sends_old_workloads_and_their_lists() {
    let mut rig = rig();
    rig.apply(&[&db("2"), &workload("new", "1", "", "")])
        .unwrap();
    let stored = rig.cluster.server.stored();
    let mut server = ServerLoop::new();
    server.set_clock(rig.clock.clone());
    server.start_again_with(stored.clone()).unwrap();
    assert_eq!(
        server.take_unsaved(),
        None,
        "a start during the staging costs no write"
    );
    assert_eq!(server.stored(), stored);
    assert!(
        server.due().is_some(),
        "an agent that never comes is not waited for without end"
    );
    rig.cluster = Cluster::default();
    rig.cluster.server = server;
    rig.a = rig.cluster.agent_with("A", PREPARES);
    let sent: Vec<String> = rig
        .sent()
        .into_iter()
        .filter(|it| !it.contains("WorkloadStates"))
        .collect();
    assert_eq!(sent, ["prepare db", "hello old"]);
    assert_eq!(
        rig.state(&db_instance("2")),
        "Pending(Initial): 'update: stages CREATE'"
    );
    rig.prepared(prepared(&db_instance("2")));
    assert_eq!(
        (rig.phases(), rig.sent()),
        (
            vec!["1 TRIAL".to_owned()],
            vec!["update db,new".to_owned(), "prepare ".to_owned()]
        )
    );
    rig.report(&db_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(rig.desired(), ["db 1", "web 1"]);
}

/// With other tags it is the same instance.
#[test]
fn instance_deleted_while_its_revision_waits_leaves_nothing() {
    let update = "{ when: { pathMissing: /lock } }";
    let text = config("1", update);
    let form = |tag: &str| {
        format!(
            "far: {{ agent: B, runtime: podman, runtimeConfig: '{text}', tags: {{ v: '{tag}' }} }}"
        )
    };
    let mut rig = Rig::with_agent(&[db("1"), form("1")], PREPARES);
    rig.apply(&[&form("2")]).unwrap();
    let far = InstanceName::new("far", &text, "B");
    assert_eq!(
        (rig.state(&far), rig.phases()),
        ("Pending(Initial)".to_owned(), vec!["1 STAGING".to_owned()])
    );
    rig.apply(&["far: ~"]).unwrap();
    assert_eq!(
        (rig.state(&far), rig.phases()),
        (String::new(), vec!["1 WITHDRAWN".to_owned()])
    );
}

/// Otherwise the desired and the active revision would differ without end.
#[test]
fn what_cannot_be_staged_and_cannot_be_undone_comes_into_force() {
    let needs = |name: &str| format!(", dependencies: {{ {name}: ADD_COND_FAILED }}");
    let old = workload("db", "1", ROLLBACK, &needs("web"));
    let mut rig = Rig::with_agent(&[old, workload("web", "1", "", "")], PREPARES);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&workload("web", "1", "", &needs("db"))])
        .unwrap(); // No cycle as long as the update stays.
    rig.prepared(failed(&db_instance("2"), 20, true));
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 TRIAL".to_owned()],
            vec!["db 2".to_owned(), "web 1".to_owned()]
        )
    );
    assert!(
        rig.read(1, "reason")
            .contains("cannot be rolled back: workload dependency 'db' is part of a cycle")
    );
    assert_eq!(
        rig.cluster.server.view().effective["db"].instance,
        db_instance("2")
    );
    assert_eq!(rig.state(&db_instance("2")), "Pending(Initial)");
}

/// A server does not start with a stored state that has a cycle.
#[test]
fn what_is_active_comes_back_only_when_that_makes_no_cycle() {
    let needs = |name: &str| format!(", dependencies: {{ {name}: ADD_COND_FAILED }}");
    let old = workload("db", "1", ROLLBACK, &needs("web"));
    let mut rig = Rig::with_agent(&[old.clone(), workload("web", "1", "", "")], PREPARES);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&workload("web", "1", "", &needs("db"))])
        .unwrap();
    let error = rig.apply(&[&old]).unwrap_err();
    assert!(error.contains("is part of a cycle"), "{error}");
    assert_eq!(rig.desired(), ["db 2", "web 1"]);
}

/// What leaves an open update was stopped at once, although the same request has a condition that
/// does not hold.
#[test]
fn condition_blocks_workloads_that_leave_the_update_with_it() {
    let brake = |image| workload("brake", image, WHEN, "");
    for other in [db("1"), "db: ~".to_owned()] {
        let mut rig = Rig::with_agent(&[db("1"), brake("1")], PREPARES);
        rig.apply(&[&db("2")]).unwrap();
        rig.prepared(prepared(&db_instance("2")));
        assert_eq!(rig.phases(), ["1 TRIAL"]);
        rig.cluster.take_all();
        rig.apply(&[&other, &brake("2")]).unwrap();
        let brake = instance("brake", "2", WHEN);
        rig.prepared(PreparedInstance {
            unmet: Some("/lock exists".into()),
            ..prepared(&brake)
        });
        if other == db("1") {
            rig.prepared(prepared(&db_instance("1")));
        }
        assert_eq!(rig.phases(), ["1 REPLACED", "2 STAGING"]);
        assert_eq!(
            rig.cluster.server.view().effective["db"].instance,
            db_instance("2"),
            "it runs on"
        );
        rig.prepared(prepared(&brake));
        assert_eq!(rig.phases(), ["1 REPLACED", "2 TRIAL"]);
        let active = rig
            .cluster
            .server
            .view()
            .effective
            .get("db")
            .map(|added| added.instance.clone());
        assert_eq!(active, (other == db("1")).then(|| db_instance("1")));
    }
}

/// The condition of a workload that was in the update already counts like that of a new one.
#[test]
fn condition_of_a_known_workload_blocks_what_leaves() {
    let brake = |image| workload("brake", image, WHEN, "");
    let mut rig = Rig::with_agent(&[db("1"), brake("1")], PREPARES);
    rig.apply(&[&db("2"), &brake("2")]).unwrap();
    rig.prepared(prepared(&db_instance("2")));
    rig.prepared(prepared(&instance("brake", "2", WHEN)));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    rig.apply(&["db: ~", &brake("3")]).unwrap();
    let new = instance("brake", "3", WHEN);
    rig.prepared(PreparedInstance {
        unmet: Some("/lock exists".into()),
        ..prepared(&new)
    });
    let runs_on = |rig: &Rig| rig.cluster.server.view().effective.contains_key("db");
    assert!(runs_on(&rig), "{:?}", rig.phases());
    rig.prepared(prepared(&new));
    assert!(!runs_on(&rig), "{:?}", rig.phases());
}

/// A key of YAML may be written with escapes.
#[test]
fn an_update_block_is_found_however_its_name_is_written() {
    let escaped = db("2").replace("update:", r#""\x75pdate":"#);
    assert_ne!(escaped, db("2"));
    let mut rig = Rig::with_agent(&[db("1")], PREPARES);
    rig.apply(&[&escaped]).unwrap();
    assert_eq!(rig.phases(), ["1 STAGING"]);
}

#[test]
fn what_cannot_be_undone_is_not_carried_out_against_a_condition() {
    let needs = |name: &str| format!(", dependencies: {{ {name}: ADD_COND_FAILED }}");
    let old = workload("db", "1", ROLLBACK, &needs("web"));
    let brake = |image| workload("brake", image, "{ when: { pathMissing: /lock } }", "");
    let mut rig = Rig::with_agent(&[old, workload("web", "1", "", ""), brake("1")], PREPARES);
    rig.apply(&[&db("2"), &brake("2")]).unwrap();
    rig.apply(&[&workload("web", "1", "", &needs("db"))])
        .unwrap();
    rig.prepared(failed(&db_instance("2"), 20, true));
    let brake = |image| instance("brake", image, "{ when: { pathMissing: /lock } }");
    rig.prepared(PreparedInstance {
        unmet: Some("/lock exists".to_owned()),
        ..prepared(&brake("2"))
    });
    let active = |rig: &Rig| {
        rig.cluster.server.view().effective["brake"]
            .instance
            .clone()
    };
    assert_eq!(
        (rig.phases(), active(&rig)),
        (vec!["1 STAGING".to_owned()], brake("1"))
    );
    rig.prepared(prepared(&brake("2")));
    assert_eq!(
        (rig.phases(), active(&rig)),
        (vec!["1 TRIAL".to_owned()], brake("2"))
    );
}

/// Each may change the texts of all others.
#[test]
fn reports_about_many_are_shown_together_and_acted_upon_at_once() {
    let of = |image: &str| {
        (0..100)
            .map(|n| workload(&format!("w{n:02}"), image, ROLLBACK, ""))
            .collect::<Vec<_>>()
    };
    let new = |n: usize| instance(&format!("w{n:02}"), "2", ROLLBACK);
    let mut rig = Rig::with_agent(&of("1"), PREPARES);
    let update = of("2");
    rig.apply(&update.iter().map(String::as_str).collect::<Vec<_>>())
        .unwrap();
    rig.wait(Duration::from_millis(10));
    rig.prepared(prepared(&new(0)));
    assert_eq!(
        rig.state(&new(0)),
        "Pending(Initial): 'update: stages CREATE'"
    );
    rig.wait(Duration::from_secs(1));
    assert_eq!(
        rig.state(&new(0)),
        "Pending(Initial): 'update: waits for w01'"
    );
    (1..99).for_each(|n| rig.prepared(prepared(&new(n))));
    assert_eq!(rig.phases(), ["1 STAGING"]);
    rig.prepared(prepared(&new(99)));
    assert_eq!(
        (rig.phases(), rig.state(&new(0))),
        (vec!["1 TRIAL".to_owned()], "Pending(Initial)".to_owned())
    );
    let mut rig = Rig::with_agent(&of("1"), PREPARES);
    rig.apply(&update.iter().map(String::as_str).collect::<Vec<_>>())
        .unwrap();
    rig.prepared(failed(&new(7), 3, true));
    assert_eq!(rig.phases(), ["1 UNDONE"]);
    assert_eq!(rig.state(&new(7)), "");
}

/// Thousands may be staged while others report a state each second.
#[test]
fn only_states_of_what_is_staged_make_it_be_looked_through() {
    let mut rig = Rig::with_agent(&[workload("w", "1", ROLLBACK, "")], PREPARES);
    rig.apply(&[&workload("w", "2", ROLLBACK, "")]).unwrap();
    let guarded = &mut rig.cluster.server.rollouts;
    guarded.is_outdated = false;
    let now = rig.clock.now();
    let waiting = |name: &str, image: &str| {
        let instance = instance(name, image, ROLLBACK);
        [WorkloadState::new(
            instance,
            ExecutionState::plain(Phase::PendingWaitingToStart),
        )]
    };
    guarded.states_reported(&waiting("other", "1"), false, now);
    assert!(!guarded.is_outdated);
    guarded.states_reported(&waiting("w", "2"), false, now);
    assert!(guarded.is_outdated);
}

// [utest->swdd~server-waits-little-for-its-disk~1]
#[test]
fn ready_updates_do_not_each_wait_for_a_hanging_disk() {
    let names: Vec<String> = (0..UPDATES_OPEN)
        .map(|number| format!("w{number}"))
        .collect();
    let entries = |image: &str| {
        names
            .iter()
            .map(|name| workload(name, image, ROLLBACK, ""))
            .collect::<Vec<_>>()
    };
    let mut rig = Rig::with_agent(&entries("1"), PREPARES);
    entries("2")
        .iter()
        .for_each(|entry| _ = rig.apply(&[entry]).unwrap());
    let (store, _states) = StateStore::hanging();
    rig.cluster.server.set_store(store);
    let begin = SystemClock.now();
    let reports = names
        .iter()
        .map(|name| prepared(&instance(name, "2", ROLLBACK)))
        .collect();
    rig.cluster.send(rig.a, ToServer::Prepared(reports));
    let waited = SystemClock.now().saturating_duration_since(begin);
    assert!(
        rig.phases().iter().all(|phase| phase.ends_with("TRIAL")),
        "{:?}",
        rig.phases()
    );
    // A wait for each would be at least 8 s.
    assert!(
        waited >= STORE_WAIT && waited < 8 * STORE_WAIT,
        "{waited:?}"
    );
}

/// It removes images as well.
const REMOVES: AgentCapabilities = AgentCapabilities {
    removes_images: true,
    ..PREPARES
};

// [utest->swdd~server-reports-open-updates-to-agents~1]
#[test]
fn agent_that_removes_images_is_sent_when_an_update_is_open() {
    let mut rig = Rig::with_agent(&[db("1"), workload("web", "1", "", NEEDS_DB)], REMOVES);
    rig.apply(&[&workload("web", "2", "", NEEDS_DB)]).unwrap();
    let is_open = |sent: &str| sent.starts_with("UpdateOpen");
    assert!(
        !rig.sent().iter().any(|sent| is_open(sent)),
        "it is not guarded"
    );
    rig.apply(&[&db("2")]).unwrap();
    assert_eq!(rig.sent(), ["prepare db", "UpdateOpen(true)"]);
    rig.prepared(prepared(&db_instance("2")));
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::Running);
    assert!(
        !rig.sent().iter().any(|sent| is_open(sent)),
        "it is on trial"
    );
    // Another session is sent it before its hello, and one that does not remove images is not.
    rig.reconnect(PREPARES);
    assert!(!rig.sent().iter().any(|sent| is_open(sent)));
    rig.reconnect(REMOVES);
    assert_eq!(rig.sent()[0], "UpdateOpen(true)");
    let web = instance("web", "2", "");
    rig.report(&db_instance("2"), Phase::Running);
    rig.report(&web, Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
    assert_eq!(rig.sent(), ["UpdateOpen(false)"]);
}

#[test]
fn update_of_another_agent_is_not_sent_as_open() {
    let mut rig = Rig::with_agent(&[db("1")], REMOVES);
    let b = rig.cluster.agent_with("B", REMOVES);
    rig.cluster.take_all();
    rig.apply(&[&db("2")]).unwrap();
    assert!(rig.sent().contains(&"UpdateOpen(true)".to_owned()));
    let sent = rig.cluster.take(b);
    let is_open = |message: &FromServer| matches!(message, FromServer::UpdateOpen(_));
    assert!(!sent.iter().any(is_open), "{sent:?}");
}
