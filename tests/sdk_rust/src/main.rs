//! A workload that talks to the cluster with the Rust SDK: every call that the SDK offers, once and
//! with its effect.
//!
//! Runs inside a container; tests/system/control.rs starts it. Exit code 0 means that every
//! assertion held; what failed is in the log of the container.

use std::collections::HashMap;
use std::time::Duration;

use ankaios_sdk::{
    Ankaios, AnkaiosError, File, LogResponse, LogsRequest, Manifest, Workload,
    WorkloadInstanceName, WorkloadStateEnum,
};
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

/// Much longer than anything takes; a loaded machine is slow, not wrong.
/// Only a hang meets it.
const LIMIT: Duration = Duration::from_secs(180);
/// Looks at a state until [`LIMIT`] is over, each after the [`PAUSE`].
const LOOKS: u128 = LIMIT.as_millis() / PAUSE.as_millis();
const PAUSE: Duration = Duration::from_millis(100);

const PATIENT: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";
const TALKING: &str =
    "trap 'exit 0' TERM; echo first; i=0; while true; do sleep 0.2; i=$((i+1)); echo line $i; done";

fn config(command: &str) -> String {
    format!(
        "image: alpine:latest\ncommandOptions: [\"--stop-timeout\", \"1\"]\ncommandArgs: [sh, -c, \"{command}\"]\n"
    )
}

fn workload(name: &str, command: &str) -> Workload {
    let builder = Workload::builder()
        .workload_name(name)
        .agent_name("agent_A")
        .runtime("podman");
    let builder = builder
        .restart_policy("NEVER")
        .runtime_config(config(command))
        .add_tag("owner", "sdk");
    builder.build().expect("all mandatory fields are set")
}

async fn next<T>(receiver: &mut Receiver<T>, what: &str) -> T {
    let next = timeout(LIMIT, receiver.recv()).await;
    next.unwrap_or_else(|_| panic!("waited in vain: {what}"))
        .unwrap_or_else(|| panic!("ended: {what}"))
}

async fn instance_of(ankaios: &mut Ankaios, name: &str) -> WorkloadInstanceName {
    for _ in 0..LOOKS {
        let states = ankaios
            .get_workload_states_for_name(name.to_owned())
            .await
            .expect("states can be read");
        if let Some(state) = states.as_list().into_iter().next() {
            return state.workload_instance_name;
        }
        sleep(PAUSE).await;
    }
    panic!("waited in vain: a state of '{name}'");
}

async fn wait_until_gone(ankaios: &mut Ankaios, name: &str) {
    for _ in 0..LOOKS {
        let states = ankaios
            .get_workload_states_for_name(name.to_owned())
            .await
            .expect("states can be read");
        if states.as_list().is_empty() {
            return;
        }
        sleep(PAUSE).await;
    }
    panic!("waited in vain: '{name}' is gone");
}

async fn wait_until_running(ankaios: &mut Ankaios, instance: &WorkloadInstanceName) {
    let mut result = Ok(());
    // The SDK's own limit is short.
    for _ in 0..12 {
        result = ankaios
            .wait_for_workload_to_reach_state(instance.clone(), WorkloadStateEnum::Running)
            .await;
        if !matches!(result, Err(AnkaiosError::TimeoutError(_))) {
            break;
        }
    }
    result.expect("the workload runs");
}

async fn workloads(ankaios: &mut Ankaios) -> WorkloadInstanceName {
    let success = ankaios
        .apply_workload(workload("talker", TALKING))
        .await
        .expect("a workload can be added");
    assert_eq!(
        (
            success.added_workloads.len(),
            success.deleted_workloads.len()
        ),
        (1, 0)
    );
    let found = ankaios
        .get_workload("talker".to_owned())
        .await
        .expect("it can be read");
    assert_eq!(
        found
            .iter()
            .map(|one| one.name.as_str())
            .collect::<Vec<_>>(),
        ["talker"]
    );
    assert_eq!(found[0].get_tags()["owner"], "sdk");
    let instance = instance_of(ankaios, "talker").await;
    wait_until_running(ankaios, &instance).await;
    let state = ankaios
        .get_execution_state_for_instance_name(&instance)
        .await
        .expect("it has a state");
    assert_eq!(state.state, WorkloadStateEnum::Running);
    let all = ankaios
        .get_workload_states()
        .await
        .expect("states can be read")
        .as_list();
    let on_agent = ankaios
        .get_workload_states_on_agent("agent_A".to_owned())
        .await
        .expect("states can be read");
    for states in [all, on_agent.as_list()] {
        let names: Vec<&str> = states
            .iter()
            .map(|state| state.workload_instance_name.workload_name.as_str())
            .collect();
        assert!(
            names.contains(&"talker") && names.contains(&"sdk"),
            "{names:?}"
        );
    }
    instance
}

async fn manifests(ankaios: &mut Ankaios) {
    let text = config(PATIENT).replace('\n', "\n      ");
    let text = format!(
        "apiVersion: v1\nworkloads:\n  extra:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: |\n      {text}\n"
    );
    let manifest = || Manifest::from_string(text.clone()).expect("a valid manifest");
    let success = ankaios
        .apply_manifest(manifest())
        .await
        .expect("a manifest can be applied");
    assert_eq!(success.added_workloads.len(), 1);
    let instance = instance_of(ankaios, "extra").await;
    wait_until_running(ankaios, &instance).await;
    let success = ankaios
        .delete_manifest(manifest())
        .await
        .expect("a manifest can be deleted");
    assert_eq!(success.deleted_workloads.len(), 1);
    wait_until_gone(ankaios, "extra").await;
}

async fn configs(ankaios: &mut Ankaios) {
    let yaml = |text: &str| serde_yaml::from_str::<serde_yaml::Value>(text).expect("valid YAML");
    let two = HashMap::from([
        ("one".to_owned(), yaml("'1'")),
        ("two".to_owned(), yaml("[a, b]")),
    ]);
    ankaios
        .update_configs(two)
        .await
        .expect("configs can be set");
    ankaios
        .add_config("three".to_owned(), yaml("{key: value}"))
        .await
        .expect("a config can be added");
    let all = ankaios.get_configs().await.expect("configs can be read");
    assert_eq!(all.len(), 3, "{all:?}");
    assert_eq!(all["two"], yaml("[a, b]"));
    let one = ankaios
        .get_config("three".to_owned())
        .await
        .expect("a config can be read");
    assert_eq!(one["three"], yaml("{key: value}"));
    ankaios
        .delete_config("one".to_owned())
        .await
        .expect("a config can be deleted");
    assert_eq!(
        ankaios
            .get_configs()
            .await
            .expect("configs can be read")
            .len(),
        2
    );
    ankaios
        .delete_all_configs()
        .await
        .expect("all configs can be deleted");
    assert!(
        ankaios
            .get_configs()
            .await
            .expect("configs can be read")
            .is_empty()
    );
}

async fn wait_until_all_are(ankaios: &mut Ankaios, name: &str, state: WorkloadStateEnum) {
    for _ in 0..LOOKS {
        let states = ankaios
            .get_workload_states_for_name(name.to_owned())
            .await
            .expect("states can be read")
            .as_list();
        if !states.is_empty() && states.iter().all(|one| one.execution_state.state == state) {
            return;
        }
        sleep(PAUSE).await;
    }
    panic!("waited in vain: '{name}' is {state:?}");
}

/// The config item is that of the server's modes, so writing it switches.
async fn modes(ankaios: &mut Ankaios) {
    let mode = |mode: &str| serde_yaml::Value::from(mode);
    ankaios
        .add_config("mode".to_owned(), mode("park"))
        .await
        .expect("a config can be added");
    let nav = Workload::builder()
        .workload_name("nav")
        .agent_name("agent_A")
        .runtime("podman");
    let nav = nav
        .restart_policy("NEVER")
        .runtime_config(config(PATIENT))
        .add_tag("modes", "drive");
    ankaios
        .apply_workload(nav.build().expect("all fields are set"))
        .await
        .expect("a workload can be added");
    wait_until_all_are(ankaios, "nav", WorkloadStateEnum::NotScheduled).await;
    ankaios
        .add_config("mode".to_owned(), mode("drive"))
        .await
        .expect("a config can be changed");
    wait_until_all_are(ankaios, "nav", WorkloadStateEnum::Running).await;
    ankaios
        .delete_workload("nav".to_owned())
        .await
        .expect("a workload can be deleted");
    wait_until_gone(ankaios, "nav").await;
    ankaios
        .delete_all_configs()
        .await
        .expect("all configs can be deleted");
}

async fn agents(ankaios: &mut Ankaios) {
    let agents = ankaios.get_agents().await.expect("agents can be read");
    assert_eq!(agents.keys().collect::<Vec<_>>(), ["agent_A"]);
    let tags = HashMap::from([("place".to_owned(), "roof".to_owned())]);
    ankaios
        .set_agent_tags("agent_A".to_owned(), tags.clone())
        .await
        .expect("tags can be set");
    assert_eq!(
        ankaios
            .get_agent("agent_A".to_owned())
            .await
            .expect("an agent can be read")
            .tags,
        tags
    );
}

async fn state(ankaios: &mut Ankaios) {
    let state = ankaios
        .get_state(vec![])
        .await
        .expect("the state can be read");
    assert_eq!(state.get_api_version(), "v1");
    let mut names: Vec<String> = state
        .get_workloads()
        .into_iter()
        .map(|workload| workload.name)
        .collect();
    names.sort();
    assert_eq!(names, ["sdk", "talker"]);
    let part = ankaios
        .get_state(vec!["desiredState.workloads.talker".to_owned()])
        .await
        .expect("and a part of it");
    assert!(part.get_workload("talker").is_some() && part.get_workload("sdk").is_none());
}

async fn logs(ankaios: &mut Ankaios, instance: &WorkloadInstanceName) {
    let follow = LogsRequest {
        workload_names: vec![instance.clone()],
        follow: true,
        ..LogsRequest::default()
    };
    let mut campaign = ankaios
        .request_logs(follow)
        .await
        .expect("logs can be asked for");
    assert_eq!(campaign.accepted_workload_names, [instance.clone()]);
    let mut lines = Vec::new();
    while lines.len() < 5 {
        match next(&mut campaign.logs_receiver, "a line of 'talker'").await {
            LogResponse::LogEntries(entries) => {
                assert!(
                    entries.iter().all(|entry| entry.workload_name == *instance),
                    "{entries:?}"
                );
                lines.extend(entries.into_iter().map(|entry| entry.message));
            }
            LogResponse::LogsStopResponse(name) => panic!("'{name:?}' still writes"),
        }
    }
    let numbers: Vec<u32> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("line "))
        .map(|number| number.parse().unwrap())
        .collect();
    assert!(
        numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{lines:?}"
    );
    ankaios
        .stop_receiving_logs(campaign)
        .await
        .expect("logs can be stopped");

    // Without following, the end is reported.
    let tail = LogsRequest {
        workload_names: vec![instance.clone()],
        tail: 2,
        ..LogsRequest::default()
    };
    let mut campaign = ankaios
        .request_logs(tail)
        .await
        .expect("logs can be asked for");
    loop {
        if let LogResponse::LogsStopResponse(name) =
            next(&mut campaign.logs_receiver, "the end of the lines").await
        {
            assert_eq!(name, *instance);
            break;
        }
    }
}

async fn events(ankaios: &mut Ankaios) {
    let masks = vec!["desiredState.workloads.*.tags".to_owned()];
    let mut campaign = ankaios
        .register_event(masks)
        .await
        .expect("events can be asked for");
    let first = next(&mut campaign.events_receiver, "the state as it is").await;
    assert!(first.added_fields.is_empty(), "{first:?}");
    ankaios
        .apply_workload(workload("event", "exit 0"))
        .await
        .expect("a workload can be added");
    let event = next(&mut campaign.events_receiver, "the event").await;
    assert_eq!(event.added_fields, ["desiredState.workloads.event.tags"]);
    assert!(event.complete_state.get_workload("event").is_some());
    ankaios
        .delete_workload("event".to_owned())
        .await
        .expect("a workload can be deleted");
    let event = next(&mut campaign.events_receiver, "the event of the removal").await;
    assert_eq!(event.removed_fields, ["desiredState.workloads.event.tags"]);
    ankaios
        .unregister_event(campaign)
        .await
        .expect("events can be cancelled");
}

/// A workload with all that the SDK can give it; its log shows that.
async fn files_rules_and_dependencies(ankaios: &mut Ankaios) {
    ankaios
        .add_config("greeting".to_owned(), serde_yaml::Value::from("hello"))
        .await
        .expect("a config can be added");
    let command = "cat /etc/text /etc/binary; trap 'exit 0' TERM; while true; do sleep 0.1; done";
    let owned = |text: &str| vec![text.to_owned()];
    let full = Workload::builder()
        .workload_name("full")
        .agent_name("agent_A")
        .runtime("podman")
        .restart_policy("NEVER")
        .runtime_config(config(command).trim_end()) // The server strips it, so it would come back like this.
        .add_tag("owner", "sdk")
        .add_dependency("talker", "ADD_COND_RUNNING")
        .add_config("word", "greeting")
        .add_allow_rule("Read", owned("agents"))
        .add_deny_rule("Write", owned("desiredState.workloads.*.tags"))
        .add_file(File::from_data("/etc/text", "text says {{word}}\n"))
        .add_file(File::from_binary_data(
            "/etc/binary",
            "YmluYXJ5IHNheXMgc28K",
        ))
        .build()
        .expect("all mandatory fields are set");
    let expected = full.to_dict();
    let success = ankaios
        .apply_workload(full)
        .await
        .expect("a workload can be added");
    assert_eq!(success.added_workloads.len(), 1);
    let found = ankaios
        .get_workload("full".to_owned())
        .await
        .expect("it can be read");
    assert_eq!(
        found.iter().map(Workload::to_dict).collect::<Vec<_>>(),
        [expected]
    );
    let instance = instance_of(ankaios, "full").await;
    wait_until_running(ankaios, &instance).await;
    let follow = LogsRequest {
        workload_names: vec![instance.clone()],
        follow: true,
        ..LogsRequest::default()
    };
    let mut campaign = ankaios
        .request_logs(follow)
        .await
        .expect("logs can be asked for");
    let mut lines = Vec::new();
    while lines.len() < 2 {
        match next(&mut campaign.logs_receiver, "what the files say").await {
            LogResponse::LogEntries(entries) => {
                lines.extend(entries.into_iter().map(|entry| entry.message))
            }
            LogResponse::LogsStopResponse(name) => panic!("'{name:?}' still runs"),
        }
    }
    assert_eq!(lines, ["text says hello", "binary says so"]);
    // A log that is followed ends with its workload.
    ankaios
        .delete_workload("full".to_owned())
        .await
        .expect("a workload can be deleted");
    let end = next(&mut campaign.logs_receiver, "the end of the log").await;
    assert!(
        matches!(&end, LogResponse::LogsStopResponse(name) if *name == instance),
        "{end:?}"
    );
    wait_until_gone(ankaios, "full").await;
    ankaios
        .delete_all_configs()
        .await
        .expect("all configs can be deleted");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // The other ways to connect; each closes the pipes, and the next one sends its hello again.
    let mut ankaios = Ankaios::new().await.expect("the agent accepts us");
    ankaios.get_agents().await.expect("agents can be read");
    drop(ankaios);
    let mut ankaios = Ankaios::new_with_timeout(LIMIT)
        .await
        .expect("the agent accepts us again");
    ankaios.get_agents().await.expect("agents can be read");
    drop(ankaios);
    let mut ankaios = Ankaios::builder()
        .control_interface()
        .timeout(LIMIT)
        .connect()
        .await
        .expect("the agent accepts us");
    let instance = workloads(&mut ankaios).await;
    manifests(&mut ankaios).await;
    configs(&mut ankaios).await;
    modes(&mut ankaios).await;
    agents(&mut ankaios).await;
    state(&mut ankaios).await;
    logs(&mut ankaios, &instance).await;
    events(&mut ankaios).await;
    files_rules_and_dependencies(&mut ankaios).await;
    let success = ankaios
        .delete_workload("talker".to_owned())
        .await
        .expect("a workload can be deleted");
    assert_eq!(success.deleted_workloads.len(), 1);
    wait_until_gone(&mut ankaios, "talker").await;
    println!("all assertions held");
}
