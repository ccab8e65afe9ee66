//! The connector against a scripted engine: its calls, and its reading of the answers.

use super::*;
use crate::ContainerId;
use crate::ListedContainer;
use crate::container_engine::ContainerConnector;
use crate::container_list::podman_format;
use crate::engine_cli::EngineCli;
use crate::scripted_engine::{ID, OTHER, ScriptedEngine, failed, id, new_container, run_call};
use crate::{MainProcess, NewContainer, RuntimeConnector as _, RuntimeError};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::InstanceName;
use ankaios_model::workload::Workload;
use std::fs;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

/// A scripted engine and a connector to it.
struct Engine {
    script: ScriptedEngine,
    connector: ContainerConnector,
}

impl Engine {
    fn answering(answers: &[&str]) -> Self {
        let script = ScriptedEngine::answering(answers);
        let mut connector = ContainerConnector::new(&ENGINE, "agent_A", script.children());
        connector.cli = script.cli(ENGINE.read_meaning);
        Self { script, connector }
    }

    fn calls(&self) -> Vec<String> {
        self.script.calls()
    }

    fn create(&mut self) -> Result<ContainerId, RuntimeError> {
        self.connector.create(&new(), None, None)
    }

    fn start(&mut self, container: &str) -> Result<ContainerId, RuntimeError> {
        self.connector.start(&id(container), &new(), None, None)
    }
}

fn new() -> NewContainer {
    new_container(
        "podman",
        "image: x\ngeneralOptions: [-g]\ncommandArgs: [sh]",
    )
}

fn find_call() -> String {
    format!(
        "ps --all --filter label=name={} --format={}",
        new().instance,
        podman_format()
    )
}

fn removal_calls() -> Vec<String> {
    vec![
        format!("stop --ignore {ID}"),
        format!("rm --ignore --volumes {ID}"),
    ]
}

fn listing(containers: &[(&str, String)]) -> String {
    let entries: Vec<String> = containers
        .iter()
        .map(|(id, name)| {
            format!(r#"{{"Id":"{id}","State":"running","Pid":7,"Labels":{{"name":"{name}","agent":"agent_A"}}}}"#)
        })
        .collect();
    format!("echo '{}'", entries.join("\n"))
}

// [utest->swdd~podman-name-returns-podman~1]
// [utest->swdd~podman-uses-podman-cli~1]
#[test]
fn the_runtime_podman_uses_the_program_podman() {
    let children = ScriptedEngine::answering(&[]).children();
    assert_eq!(
        ContainerConnector::new(&ENGINE, "agent_A", children)
            .cli
            .program,
        "podman"
    );
    assert_eq!(RUNTIME_NAME, "podman");
}

// [utest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_for_want_of_memory_needs_one_inspect() {
    let text = r#"echo '{"State":{"OOMKilled":true},"HostConfig":{"Memory":0}}'"#;
    let mut engine = Engine::answering(&[text]);
    let found = engine.connector.out_of_memory(&new().instance, &id(ID));
    assert_eq!(found, Ok(Some(crate::OutOfMemory { limit: None })));
    let calls = [format!("container inspect --format={{{{json .}}}} {ID}")];
    assert_eq!(engine.calls(), calls);
}

// [utest->swdd~podman-create-workload-runs-workload~1]
// [utest->swdd~functions-required-by-runtime-connector~1]
// [utest->swdd~podman-create-workload-returns-workload-id~1]
#[test]
fn create_runs_the_container_and_answers_its_id() {
    let mut engine = Engine::answering(&[&format!("echo 'Trying to pull' >&2; echo {ID}")]);
    assert_eq!(engine.create(), Ok(id(ID)));
    assert_eq!(engine.calls(), [run_call(&new())]);
}

#[test]
fn failed_create_shows_error_and_call_without_the_command() {
    let mut engine = Engine::answering(&["echo 'Error: no such command' >&2; exit 127"]);
    let text = failed(engine.create());
    let run = run_call(&new());
    assert_eq!(engine.calls(), std::slice::from_ref(&run));
    let mut arguments: Vec<&str> = run.split(' ').collect();
    *arguments.last_mut().unwrap() = "***";
    assert_eq!(
        text,
        format!(
            "Error: no such command. {}",
            engine.script.execution(&arguments)
        )
    );
}

#[test]
fn a_failed_create_or_start_showed_the_secrets_of_its_options() {
    let config = "image: x\ngeneralOptions: [--url, 'ssh://me:hidden1@host']\n\
                  commandOptions: [--env, PASSWORD=hidden2, -eTOKEN=hidden3, --net=host]\ncommandArgs: [sh, hidden4]";
    let new = new_container("podman", config);
    let answer =
        "echo 'Error: hidden2 and hidden3 at ssh://me:hidden1@host are wrong' >&2; exit 125";
    let mut engine = Engine::answering(&[]);
    engine.script.on("--url", answer);
    let said = "Error: *** and *** at *** are wrong. Execution of '";
    let shown = r#""--env" "PASSWORD=***" "-eTOKEN=***" "--net=host" "#;
    let text = failed(engine.connector.create(&new, None, None));
    assert!(
        text.starts_with(said) && text.contains(shown) && text.ends_with(r#" "x" "***" "***"'"#),
        "{text}"
    );
    assert!(
        text.contains(r#" "--url" "***" "run" "#) && !text.contains("hidden"),
        "{text}"
    );
    let result = failed(engine.connector.start(&id(ID), &new, None, None));
    let call = engine.script.execution(&["--url", "***", "start", ID]);
    assert_eq!(
        result,
        format!("Error: *** and *** at *** are wrong. {call}")
    );
}

#[test]
fn a_missing_engine_is_told() {
    let mut engine = Engine::answering(&[]);
    engine.connector.cli = EngineCli::new(
        "no-such-engine",
        ENGINE.read_meaning,
        engine.script.children(),
    );
    let text = failed(engine.create());
    assert!(
        text.starts_with("Error: 'no-such-engine' cannot be started: No such file or directory"),
        "{text}"
    );
}

#[test]
fn a_configuration_that_cannot_work_calls_nothing() {
    let mut engine = Engine::answering(&[]);
    let mut broken = new();
    broken.workload = Arc::new(Workload::new("agent_A", "podman", "commandArgs: []"));
    let result = engine.connector.create(&broken, None, None);
    assert!(
        matches!(&result, Err(RuntimeError::Unsupported(text)) if text.contains("missing field `image`")),
        "{result:?}"
    );
    assert_eq!(engine.calls(), [""; 0]);
}

#[test]
fn an_engine_that_prints_no_id_is_asked_for_it() {
    let found = listing(&[(ID, new().instance.to_string())]);
    let mut engine = Engine::answering(&["echo garbage", &found]);
    assert_eq!(engine.create(), Ok(id(ID)));

    let mut engine = Engine::answering(&[""]);
    assert_eq!(
        failed(engine.create()),
        "Unexpected number of workloads: 0 containers after a create"
    );
    assert_eq!(engine.calls().len(), 2);
}

#[test]
fn container_without_known_id_is_kept_if_the_engine_fails() {
    let mut engine = Engine::answering(&["echo garbage; rm \"$dir/engine\""]);
    let result = engine.create();
    let Err(RuntimeError::Failed(error)) = result else {
        panic!("a container may be there: {result:?}")
    };
    assert!(error.text.contains("cannot be started"), "{error}");
}

#[test]
fn a_create_that_takes_too_long_and_a_cancelled_one_end_at_once() {
    let mut engine = Engine::answering(&[]);
    engine.script.on("-g", "exec sleep 600");
    match engine
        .connector
        .create(&new(), Some(Duration::from_millis(10)), None)
    {
        Err(RuntimeError::TimedOut(error)) => assert_eq!(error.text, "No answer within 10ms"),
        other => panic!("{other:?}"),
    }
    assert!(
        engine.calls().len() <= 1,
        "who makes a create removes what it has left"
    );

    let mut engine = Engine::answering(&[]);
    let cancel = engine.script.cancelling("1");
    assert_eq!(
        engine.connector.create(&new(), None, Some(cancel.as_fd())),
        Err(RuntimeError::Cancelled)
    );
    assert_eq!(engine.calls().len(), 1);
}

#[test]
fn start_starts_the_same_container() {
    let mut engine = Engine::answering(&[&format!("echo {ID}")]);
    assert_eq!(engine.start(ID), Ok(id(ID)));
    assert_eq!(engine.calls(), [format!("-g start {ID}")]);

    let mut engine = Engine::answering(&["echo broken >&2; exit 125"]);
    assert!(failed(engine.start(ID)).starts_with("broken. Execution of "));
}

// [utest->swdd~podman-delete-workload-stops-and-removes-workload~1]
// [utest->swdd~agent-removes-anonymous-volumes~1]
// [utest->swdd~functions-required-by-runtime-connector~1]
#[test]
fn delete_stops_and_removes() {
    let mut engine = Engine::answering(&[]);
    assert_eq!(engine.connector.delete(&id(ID)), Ok(()));
    assert_eq!(engine.calls(), removal_calls());
}

#[test]
fn ended_container_is_only_removed_unless_restarted() {
    let mut engine = Engine::answering(&["", "echo 'container is running' >&2; exit 2"]);
    assert_eq!(engine.connector.delete_ended(&id("c")), Ok(()));
    assert_eq!(engine.connector.delete_ended(&id("c")), Ok(()));
    let removal = "rm --ignore --volumes c";
    assert_eq!(
        engine.calls(),
        [removal, removal, "stop --ignore c", removal]
    );
}

#[test]
fn a_failed_stop_or_removal_is_told() {
    let refused = "echo running >&2; exit 2";
    for (answers, failing) in [
        (
            ["echo no >&2; exit 125", refused],
            &["stop", "--ignore", ID][..],
        ),
        (
            ["", "echo no >&2; exit 2"],
            &["rm", "--ignore", "--volumes", ID],
        ),
    ] {
        let mut engine = Engine::answering(&answers);
        let text = failed(engine.connector.delete(&id(ID)));
        assert_eq!(text, format!("no. {}", engine.script.execution(failing)));
        assert_eq!(engine.calls().len(), answers.len());
    }
}

/// As podman answers for one whose removal was killed. It was stopped without end.
#[test]
fn what_cannot_be_stopped_is_removed_where_that_is_possible() {
    let stop = "echo 'container is running or paused, refusing to clean up' >&2; exit 125";
    let mut engine = Engine::answering(&[stop, "echo 'not paused' >&2; exit 125", ""]);
    assert_eq!(engine.connector.delete(&id(ID)), Ok(()));
    assert_eq!(
        engine.calls(),
        [
            format!("stop --ignore {ID}"),
            format!("unpause {ID}"),
            format!("rm --ignore --volumes {ID}")
        ]
    );
}

#[test]
fn a_paused_container_goes_on_to_be_stopped() {
    let mut engine = Engine::answering(&[
        "echo 'container is running or paused, refusing to clean up' >&2; exit 125",
    ]);
    assert_eq!(engine.connector.delete(&id(ID)), Ok(()));
    let stop = format!("stop --ignore {ID}");
    assert_eq!(
        engine.calls(),
        [
            stop.clone(),
            format!("unpause {ID}"),
            stop,
            format!("rm --ignore --volumes {ID}")
        ]
    );
}

/// A container named `paused` is not a paused one, and neither is one whose files have that name.
#[test]
fn name_paused_in_a_failed_stop_unpauses_nothing() {
    let named = "echo 'Error: /run/paused.1.agent_A, \"paused\": no' >&2; exit 125";
    for (container, stop) in [(ID, named), ("paused", "echo no >&2; exit 125")] {
        let mut engine = Engine::answering(&[stop, "exit 2"]);
        assert!(failed(engine.connector.delete(&id(container))).contains("no. Execution"));
        let expected = [
            format!("stop --ignore {container}"),
            format!("rm --ignore --volumes {container}"),
        ];
        assert_eq!(engine.calls(), expected);
    }
}

#[test]
fn options_of_a_failed_call_are_not_what_the_engine_said() {
    let words = [
        "unknown flag: --pidfile".to_owned(),
        format!("x is already in use by {ID}"),
        "no such container".to_owned(),
    ];
    for words in words {
        let config = format!("image: x\ngeneralOptions: [-g]\ncommandOptions: ['--name={words}']");
        let mut new = new_container("podman", &config);
        new.pid_file = Some("/run/pid".into());
        let mut engine = Engine::answering(&[]);
        engine.script.on("-g", "echo 'Error: no' >&2; exit 125");
        let error = engine.connector.create(&new, None, None).unwrap_err();
        assert!(error.to_string().contains(&words), "{error}");
        assert!(!error.means_gone() && !error.is_final(), "{error}");
        assert_eq!(engine.calls().len(), 1, "{words}");
    }
}

#[test]
fn what_a_killed_create_left_in_the_storage_is_removed() {
    let taken = format!(
        "echo 'the container name is already in use by {ID}. You have to remove it' >&2; exit 125"
    );
    for (exists, removed) in [("exit 1", true), ("", false), ("exit 125", false)] {
        let mut engine = Engine::answering(&[&taken, exists]);
        let text = failed(engine.connector.create(&new(), None, None));
        assert!(text.contains("is already in use"), "{text}");
        let rest: &[String] = &engine.calls()[1..];
        let expected = [format!("container exists {ID}"), format!("rm {ID}")];
        assert_eq!(rest, &expected[..1 + usize::from(removed)]);
    }
}

#[test]
fn a_stop_has_the_time_that_the_container_asked_for() {
    // The stop ends when the inspection lets it; by then its first limit has passed.
    for (answer, granted) in [
        ("70", true),
        ("10", false),
        ("0", false),
        ("garbage", false),
    ] {
        let mut engine = Engine::answering(&[]);
        let folder = engine.script.path();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("fifo"), rustix::fs::Mode::RWXU).unwrap();
        fs::write(folder.join("stop"), "read line <$dir/fifo").unwrap();
        let release = if granted { "echo go >$dir/fifo;" } else { "" };
        fs::write(folder.join("container"), format!("{release} echo {answer}")).unwrap();
        engine.connector.stop_limit = Duration::from_millis(100);
        let result = engine.connector.delete(&id(ID));
        let calls = engine.calls();
        let inspection = format!("container inspect --format={{{{.Config.StopTimeout}}}} {ID}");
        assert_eq!(
            calls.iter().filter(|call| **call == inspection).count(),
            1,
            "{answer}: {calls:?}"
        );
        assert_eq!(
            calls.last() == Some(&format!("rm --ignore --volumes {ID}")),
            granted,
            "{answer}: {calls:?}"
        );
        match result {
            Ok(()) if granted => {}
            Err(RuntimeError::TimedOut(_)) if !granted => {}
            other => panic!("{answer}: {other:?}"),
        }
    }
}

// [utest->swdd~podman-get-workload-id-uses-label~1]
// [utest->swdd~functions-required-by-runtime-connector~1]
#[test]
fn find_answers_the_containers_with_exactly_this_name() {
    let instance = new().instance;
    let found = [(ID, instance.to_string()), (OTHER, format!("x{instance}"))];
    let mut engine = Engine::answering(&[&listing(&found)]);
    assert_eq!(engine.connector.find(&instance, None), Ok(vec![id(ID)]));
    assert_eq!(engine.calls(), [find_call()]);
}

/// A listing of a container in a pod with the labels of the workload `web`, which its image
/// brought.
fn forged(id: &str) -> String {
    let entry = listing(&[(id, new().instance.to_string())]);
    entry.replace(r#""Pid":7"#, r#""Pid":7,"Pod":"p""#)
}

#[test]
fn container_in_a_pod_is_not_the_workload_of_its_image() {
    let instance = new().instance;
    let mut engine = Engine::answering(&[&forged(ID), &forged(ID), &forged(ID), &forged(ID)]);
    assert_eq!(
        engine.connector.find(&instance, Some(&new().workload)),
        Ok(vec![])
    );
    assert!(
        engine
            .connector
            .log_calls(&instance, &LogsRequest::default())
            .unwrap()
            .is_empty()
    );
    assert!(engine.connector.list().unwrap()[0].in_pod);
    let joins = Workload::new("agent_A", "podman", "image: x\ncommandOptions: [--pod, p]");
    assert_eq!(
        engine.connector.find(&instance, Some(&joins)),
        Ok(vec![id(ID)])
    );

    let mut engine = Engine::answering(&[&forged(ID)]);
    engine.connector.note(&instance, &id(ID));
    assert!(
        engine.connector.is_noted(&instance, &id(ID))
            && !engine.connector.is_noted(&instance, &id(OTHER))
    );
    assert_eq!(
        engine.connector.find(&instance, None),
        Ok(vec![id(ID)]),
        "we made it"
    );
}

// [utest->swdd~podman-list-of-existing-workloads-uses-labels~1]
// [utest->swdd~podmancli-container-state-cache-all-containers~1]
// [utest->swdd~podman-state-getter-uses-podmancli~1]
// [utest->swdd~functions-required-by-runtime-connector~1]
#[test]
fn one_call_lists_all_containers_of_this_agent_and_no_others() {
    let names = ["web.1.agent_A", "db.2.agent_A", "web.1.X-agent_A", "odd"];
    let found = names.map(|name| (ID, name.to_owned()));
    let mut engine = Engine::answering(&[&listing(&found)]);
    let expected = names[..2].iter().map(|name| ListedContainer {
        id: id(ID),
        instance: InstanceName::parse(name).unwrap(),
        state: ExecutionState::plain(Phase::Running),
        processes: vec![MainProcess {
            container: id(ID),
            pid: 7,
        }],
        ended_at: None,
        in_pod: false,
        pods: None,
    });
    assert_eq!(engine.connector.list(), Ok(expected.collect()));
    assert_eq!(
        engine.calls(),
        [format!(
            "ps --all --filter label=agent=agent_A --format={}",
            podman_format()
        )]
    );
}

#[test]
fn invalid_listing_is_an_error_that_names_the_call() {
    let mut engine = Engine::answering(&["echo garbage"]);
    let text = failed(engine.connector.list());
    assert!(
        text.starts_with(
            "The list of containers cannot be read: expected value at line 1 column 1. "
        ),
        "{text}"
    );
    let call = engine.script.execution(&[
        "ps",
        "--all",
        "--filter",
        "label=agent=agent_A",
        "--format=...",
    ]);
    assert!(text.ends_with(&call), "{text}");
}
