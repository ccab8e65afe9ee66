//! The connector against a scripted nerdctl.

use super::*;
use crate::container_engine::ContainerConnector;
use crate::scripted_engine::{ID, OTHER, ScriptedEngine, failed, id, new_container, run_call};
use crate::{NewContainer, OutOfMemory, RuntimeConnector as _, RuntimeError};
use ankaios_model::messages::LogsRequest;

fn connector(script: &ScriptedEngine) -> ContainerConnector {
    let mut connector = ContainerConnector::new(&ENGINE, "agent_A", script.children());
    connector.cli = script.cli(ENGINE.read_meaning);
    connector
}

fn new() -> NewContainer {
    new_container("containerd", "image: x")
}

/// What nerdctl prints of these containers: their ids, or with `inspect` labels and states.
fn print(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("printf '%s\\n' '{line}';"))
        .collect()
}

fn ids(ids: &[&str]) -> String {
    print(&ids.iter().map(|id| format!("\"{id}\"")).collect::<Vec<_>>())
}

fn inspected(id: &str, name: &str, state: &str) -> String {
    format!(
        r#"{{"Id":"{id}","State":{{{state}}},"AutoRemove":"","Labels":{{"name":"{name}","agent":"agent_A"}}}}"#
    )
}

fn running(id: &str, name: &str) -> String {
    inspected(id, name, r#""Status":"running","Pid":7"#)
}

// [utest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_for_want_of_memory_needs_one_inspect() {
    let script = ScriptedEngine::answering(&[]);
    let text = r#"echo '{"State":{"OOMKilled":true},"HostConfig":{"Memory":8388608}}'"#;
    script.on("inspect", text);
    let limit = Some(8 << 20);
    let found = connector(&script).out_of_memory(&new().instance, &id(ID));
    assert_eq!(found, Ok(Some(OutOfMemory { limit })));
    let calls = [format!("inspect --format={{{{json .}}}} {ID}")];
    assert_eq!(script.calls(), calls);
}

#[test]
fn a_container_is_run_started_and_deleted_by_nerdctl() {
    let answer = format!("echo {ID}");
    let script = ScriptedEngine::answering(&[&answer, &answer]);
    let mut containerd = connector(&script);
    assert_eq!(containerd.create(&new(), None, None), Ok(id(ID)));
    assert_eq!(containerd.start(&id(ID), &new(), None, None), Ok(id(ID)));
    assert_eq!(containerd.delete(&id(ID)), Ok(()));
    assert_eq!(
        script.calls(),
        [
            run_call(&new()),
            format!("start {ID}"),
            format!("stop {ID}"),
            format!("rm --volumes {ID}")
        ]
    );
    assert_eq!(
        ContainerConnector::new(&ENGINE, "agent_A", script.children())
            .cli
            .program,
        "nerdctl"
    );
}

#[test]
fn container_of_a_failed_create_is_removed_also_if_not_stopped() {
    let found = print(&[
        running(ID, &new().instance.to_string()),
        running(OTHER, "web.2.agent_A"),
    ]);
    let gone = "echo 'No such container' >&2; exit 1";
    let script = ScriptedEngine::answering(&[&ids(&[ID, OTHER]), &found, gone]);
    let mut connector = connector(&script);
    assert_eq!(connector.find(&new().instance, None), Ok(vec![id(ID)]));
    assert_eq!(connector.delete(&id(ID)), Ok(()));
    let find = format!(
        "ps --all --no-trunc --filter label=name={} --format={{{{json .ID}}}}",
        new().instance
    );
    let inspect = format!("inspect --format={} {ID} {OTHER}", format());
    assert_eq!(
        script.calls(),
        [
            find,
            inspect,
            format!("stop {ID}"),
            format!("rm --volumes {ID}")
        ]
    );
}

#[test]
fn deleting_what_is_gone_is_done_and_other_errors_are_told() {
    let gone = "echo 'level=fatal msg=\"no such container x\"' >&2; exit 1";
    assert_eq!(
        connector(&ScriptedEngine::answering(&[gone, gone])).delete(&id(ID)),
        Ok(())
    );
    for answers in [["exit 1", "exit 2"], [gone, "exit 1"]] {
        let script = ScriptedEngine::answering(&answers);
        assert!(
            failed(connector(&script).delete(&id(ID))).starts_with("Ended with exit status: 1.")
        );
    }
}

#[test]
fn a_listing_joins_labels_and_states_of_this_agents_containers() {
    // One container vanished in between, which makes the call fail.
    let ended = inspected(
        OTHER,
        "db.2.agent_A",
        r#""Status":"exited","ExitCode":3,"Pid":0"#,
    );
    let states = print(&[
        running(ID, "web.1.agent_A"),
        ended,
        running("f", "web.1.X-agent_A"),
        "{}".to_owned(),
    ]);
    let script = ScriptedEngine::answering(&[
        &ids(&[ID, OTHER, "f", "v", "--all"]),
        &format!("{states} exit 1"),
    ]);
    let listed = connector(&script).list().unwrap();
    let calls = script.calls();
    assert_eq!(
        calls[0],
        "ps --all --no-trunc --filter label=agent=agent_A --format={{json .ID}}"
    );
    assert_eq!(
        calls[1],
        format!("inspect --format={} {ID} {OTHER} f v", format())
    );
    let told: Vec<_> = listed
        .iter()
        .map(|one| {
            (
                one.id.clone(),
                one.instance.to_string(),
                one.state.to_string(),
            )
        })
        .collect();
    let expected = [
        (id(ID), "web.1.agent_A".to_owned(), "Running(Ok)".to_owned()),
        (
            id(OTHER),
            "db.2.agent_A".to_owned(),
            "Failed(ExecFailed): 'Exit code: '3''".to_owned(),
        ),
    ];
    assert_eq!(told, expected);
    assert_eq!(
        listed[0].processes,
        [MainProcess {
            container: id(ID),
            pid: 7
        }]
    );
    assert_eq!(listed[1].processes, []);
}

#[test]
fn nothing_is_inspected_when_there_is_nothing() {
    let script = ScriptedEngine::answering(&[]);
    assert_eq!(connector(&script).list(), Ok(vec![]));
    assert_eq!(script.calls().len(), 1);
    let script = ScriptedEngine::answering(&[&ids(&[ID]), "echo 'no such container' >&2; exit 1"]);
    assert_eq!(
        connector(&script).list(),
        Ok(vec![]),
        "the only one vanished"
    );
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    for answers in [["echo garbage", ""], [&ids(&[ID]), "echo garbage"]] {
        let result = connector(&ScriptedEngine::answering(&answers)).list();
        assert!(failed(result).contains(" cannot be read: "), "{answers:?}");
    }
    let script = ScriptedEngine::answering(&["exit 1"]);
    assert!(matches!(
        connector(&script).find(&new().instance, None),
        Err(RuntimeError::Failed(_))
    ));
}

#[test]
fn engine_states_mean_what_the_table_says() {
    for (status, code, expected) in [
        ("created", "0", "Pending(Starting): 'created'"),
        ("restarting", "0", "Pending(Starting): 'restarting'"),
        ("Running", "0", "Running(Ok)"),
        ("exited", "0", "Succeeded(Ok)"),
        ("exited", "2", "Failed(ExecFailed): 'Exit code: '2''"),
        ("exited", "null", "Failed(Unknown): 'exited'"),
        ("dead", "0", "Failed(ExecFailed): 'Exit code: '0''"),
        ("removing", "0", "Stopping(Stopping): 'removing'"),
        ("paused", "0", "Failed(Unknown): 'paused'"),
        ("", "0", "Failed(Unknown)"),
    ] {
        let text = format!(r#"{{"Id":"i","State":{{"Status":"{status}","ExitCode":{code}}}}}"#);
        assert_eq!(
            execution_state(&container_list::parse(&text).unwrap()[0]).to_string(),
            expected,
            "{status} {code}"
        );
    }
}

#[test]
fn the_time_of_the_end_is_known_of_what_has_ended() {
    for (status, finished, expected) in [
        ("exited", "1970-01-01T00:00:01Z", Some(1)),
        (
            "exited",
            "2024-02-29T12:00:00.123456789Z",
            Some(1_709_208_000),
        ),
        ("exited", "2024-03-01T00:30:00.5+01:30", Some(1_709_247_600)),
        ("exited", "2023-12-31T23:59:59-00:01", Some(1_704_067_259)),
        ("dead", "2000-01-01T00:00:00Z", Some(946_684_800)),
        ("running", "2000-01-01T00:00:00Z", None),
        ("exited", "0001-01-01T00:00:00Z", None),
        ("exited", "1970-01-01T00:00:00+00:01", None),
        ("exited", "99999999999999-01-01T00:00:00Z", None),
        ("exited", "2000-13-01T00:00:00Z", None),
        ("exited", "2000-01-01T00:00:00+99999999999999999:00", None),
        ("exited", "2000-01-01T00:00:00--153722867280912930:-8", None),
        ("exited", "2000-01-01T00:00:00+24:00", None),
        ("exited", "2000-01-01T00:00:00+00:60", None),
        ("exited", "2000-01-01T00:00:00+01:-30", None),
        ("exited", "2000-01-01T00:00Z", None),
        ("exited", "yesterday", None),
        ("exited", "", None),
    ] {
        let state = format!(r#""Status":"{status}","ExitCode":0,"FinishedAt":"{finished}""#);
        let container = &container_list::parse(&inspected("i", "w.1.agent_A", &state)).unwrap()[0];
        assert_eq!(
            listed(container, "agent_A").unwrap().ended_at,
            expected,
            "{status} {finished}"
        );
    }
}

#[test]
fn logs_are_read_by_the_id_of_the_container() {
    let found = print(&[running(ID, &new().instance.to_string())]);
    let script = ScriptedEngine::answering(&[&ids(&[ID]), &found, ""]);
    let mut containerd = connector(&script);
    let calls = containerd
        .log_calls(&new().instance, &LogsRequest::default())
        .unwrap();
    assert_eq!(
        calls
            .iter()
            .map(|call| call.arguments.join(" "))
            .collect::<Vec<_>>(),
        [format!("logs {ID}")]
    );
    assert!(
        containerd
            .log_calls(&new().instance, &LogsRequest::default())
            .unwrap()
            .is_empty(),
        "it is gone"
    );
}

#[test]
fn how_a_container_ended_that_removes_itself_was_up_to_chance() {
    for (label, expected) in [
        ("true", "Failed(Lost)"),
        ("false", "Succeeded(Ok)"),
        ("", "Succeeded(Ok)"),
    ] {
        let text = format!(
            r#"{{"Id":"i","AutoRemove":"{label}","State":{{"Status":"exited","ExitCode":0}}}}"#
        );
        assert_eq!(
            execution_state(&container_list::parse(&text).unwrap()[0]).to_string(),
            expected,
            "{label}"
        );
    }
}
