//! The connector against a scripted podman: its calls, and its reading of the answers.

mod manifest;
mod states;

use super::*;
use crate::MainProcess;
use crate::container_list::podman_format;
use crate::scripted_engine::{ScriptedEngine, failed, id, new_container};
use ankaios_model::execution_state::Phase;
use std::fs;
use std::os::fd::AsFd as _;

const MANIFEST: &str = "kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main}]}\n";
const CONFIG: &str = "manifest: |\n  kind: Pod\n  metadata: {name: web}\n  spec: {containers: [{name: main}]}\n\
    generalOptions: [-g]\nplayOptions: [--p]\ndownOptions: [--d]\ncontrolInterfaceTarget: web/main";
const NO_VOLUME: &str =
    "echo 'Error: inspecting object: no such volume x' >&2; echo '[]'; exit 125";
const NO_POD: &str = "echo 'Error: no pod with name or ID web found: no such pod' >&2; exit 125";

fn connector(script: &ScriptedEngine) -> PodmanKubeConnector {
    let mut connector = PodmanKubeConnector::new("agent_A", script.children());
    connector.cli = script.cli(meaning_of_podman);
    connector
}

fn new() -> NewContainer {
    new_container("podman-kube", CONFIG)
}

fn delete(script: &ScriptedEngine) -> Result<(), RuntimeError> {
    connector(script).delete(&id(&new().instance.to_string()))
}

fn create(connector: &mut PodmanKubeConnector) -> Result<ContainerId, RuntimeError> {
    connector.create(&new(), None, None)
}

/// The calls with the encoded data left out.
fn calls(script: &ScriptedEngine) -> Vec<String> {
    let without_data = |call: String| match call.split_once("--label=data=") {
        Some((before, after)) => format!(
            "{before}DATA{}",
            after.trim_start_matches(|c: char| c != ' ')
        ),
        None => call,
    };
    script.calls().into_iter().map(without_data).collect()
}

fn store_calls(suffix: &str) -> [String; 2] {
    let volume = format!("{}{suffix}", new().instance);
    [
        format!("volume rm {volume}"),
        format!("volume create DATA {volume}"),
    ]
}

fn removal_calls() -> [String; 2] {
    let instance = new().instance;
    [
        format!("volume rm {instance}.pods"),
        format!("volume rm {instance}.config"),
    ]
}

const POD_LS: &str = "pod ls --no-trunc --format={{.Id}} {{.Name}}";
const REMOVE_NEW: &str = "pod rm --force --ignore --time=0 new";
const PLAY: &str = "-g kube play --quiet --p -";

/// What `volume inspect` prints for a volume with this data.
fn volume(data: &str) -> String {
    format!(
        "echo '[{{\"Name\":\"v\",\"Labels\":{{\"data\":\"{}\"}}}}]'",
        BASE64_STANDARD_NO_PAD.encode(data)
    )
}

// [utest->swdd~podman-kube-name-returns-podman-kube~1]
// [utest->swdd~podman-kube-uses-podman-cli~1]
#[test]
fn the_runtime_podman_kube_uses_the_program_podman() {
    let children = ScriptedEngine::answering(&[]).children();
    assert_eq!(
        PodmanKubeConnector::new("agent_A", children).cli.program,
        "podman"
    );
    assert_eq!(RUNTIME_NAME, "podman-kube");
}

// [utest->swdd~podman-kube-create-workload-apply-manifest~1]
// [utest->swdd~podman-kube-create-workload-returns-workload-id~1]
// [utest->swdd~podman-kube-create-workload-creates-config-volume~1]
// [utest->swdd~podman-kube-create-workload-creates-pods-volume~1]
#[test]
fn create_keeps_configuration_and_pods_around_the_play() {
    let script = ScriptedEngine::answering(&[]);
    script.on(
        "-g",
        "cat >$dir/played; printf 'Pod:\\np1\\nContainer:\\nc1\\n\\nPod:\\np2\\nVolumes:\\nv\\n'",
    );
    let instance = new().instance;
    assert_eq!(
        create(&mut connector(&script)),
        Ok(id(&instance.to_string()))
    );
    let [rm_config, create_config] = store_calls(".config");
    let [rm_pods, create_pods] = store_calls(".pods");
    let expected = [
        POD_LS.to_owned(),
        rm_config,
        create_config,
        PLAY.to_owned(),
        rm_pods,
        create_pods,
    ];
    assert_eq!(calls(&script), expected);
    assert_eq!(
        fs::read_to_string(script.path().join("played")).unwrap(),
        MANIFEST
    );
    let data = |call: &str| {
        let (_, rest) = call.split_once("--label=data=").unwrap();
        String::from_utf8(
            BASE64_STANDARD_NO_PAD
                .decode(rest.split_once(' ').unwrap().0)
                .unwrap(),
        )
        .unwrap()
    };
    assert_eq!(
        data(&script.calls()[2]),
        CONFIG,
        "the configuration as it was given"
    );
    assert!(
        !script.calls()[2].contains('='.to_string().repeat(2).as_str()),
        "without padding"
    );
    assert_eq!(data(&script.calls()[5]), r#"["p1","p2"]"#);
}

#[test]
fn the_control_interface_is_played_and_not_kept() {
    let script = ScriptedEngine::answering(&[]);
    script.on("-g", "cat >$dir/played; printf 'Pod:\\nabc\\n'");
    let mut with_interface = new();
    with_interface.control_interface = Some("/run/a/control_interface".into());
    connector(&script)
        .create(&with_interface, None, None)
        .unwrap();
    assert!(
        fs::read_to_string(script.path().join("played"))
            .unwrap()
            .contains("/run/a/control_interface")
    );
    assert!(script.calls()[2].contains(&BASE64_STANDARD_NO_PAD.encode(CONFIG)));
}

#[test]
fn a_workload_that_can_never_run_calls_nothing() {
    let script = ScriptedEngine::answering(&[]);
    let mut with_files = new();
    with_files.files = vec![("/x".into(), "/y".to_owned())];
    let mut with_interface = new_container("podman-kube", "manifest: 'kind: Pod'");
    with_interface.control_interface = Some("/x".into());
    let mut named_like_an_option = new();
    named_like_an_option.instance = InstanceName::with_id("-l", "1", "agent_A");
    for (broken, reason) in [
        (
            with_files,
            "Workload files are not supported for podman-kube runtime. Use ConfigMaps instead.",
        ),
        (
            with_interface,
            "Control interface target not specified in runtime config.",
        ),
        (
            new_container("podman", CONFIG),
            "Received a manifest for the wrong runtime: 'podman'",
        ),
        (
            new_container("podman-kube", "playOptions: []"),
            "missing field `manifest`",
        ),
        (named_like_an_option, "Unsupported workload name '-l': "),
    ] {
        match connector(&script).create(&broken, None, None) {
            Err(RuntimeError::Unsupported(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    assert_eq!(script.calls(), [""; 0]);
}

// [utest->swdd~podman-kube-create-continues-if-cannot-create-volume~1]
#[test]
fn a_play_that_names_no_pods_had_its_pods_lost() {
    // Listed are the pods before the play and after it.
    let script = ScriptedEngine::answering(&[
        "echo 'old other'",
        "",
        "",
        "echo nonsense",
        "echo 'old other'; echo 'new web'",
    ]);
    let mut kube = connector(&script);
    create(&mut kube).unwrap();
    assert_eq!(
        kube.pods_of(&new().instance),
        Ok(Some(vec!["new".to_owned()]))
    );

    let script = ScriptedEngine::answering(&[
        "echo 'old other'",
        "",
        "",
        "echo nonsense",
        "echo 'old other'",
    ]);
    let text = failed(create(&mut connector(&script)));
    assert_eq!(
        text,
        format!(
            "It made no pod that can be found. {}",
            script.execution(&["kube", "play"])
        )
    );
}

#[test]
fn ids_of_pods_that_read_like_options_stopped_all_pods() {
    assert_eq!(parse_pods("Pod:\n--all\np1\n-a\n"), ["p1"]);
    let script = ScriptedEngine::answering(&[]);
    script.on("volume", &volume(r#"["--all"]"#));
    assert!(connector(&script).pods_of(&new().instance).is_err());
}

#[test]
fn volumes_that_cannot_be_made_do_not_hinder_the_workload() {
    let script = ScriptedEngine::answering(&[]);
    script.on("volume", "exit 125");
    script.on("-g", "printf 'Pod:\\np1\\n'");
    let mut lister = connector(&script);
    let mut kube = connector(&script);
    let web = create(&mut kube).unwrap();
    // The listing finds no volume either, and knows the pod anyway.
    script.on("volume", "");
    script.on(
        "ps",
        r#"echo '{"Id":"c","Pod":"p1","State":"running","Pid":7}'"#,
    );
    let listed = lister.list().unwrap();
    assert_eq!(
        kube.list().as_ref(),
        Ok(&listed),
        "whichever connector of the agent lists"
    );
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].id.clone(), listed[0].state.phase),
        (web.clone(), Phase::Running)
    );
    assert_eq!(
        listed[0].processes,
        [MainProcess {
            container: id("c"),
            pid: 7
        }]
    );
    script.on("kube", "cat >$dir/downed");
    assert_eq!(kube.delete(&web), Ok(()));
    assert_eq!(
        fs::read_to_string(script.path().join("downed")).unwrap(),
        MANIFEST
    );
    assert_eq!(lister.list(), Ok(vec![]));
}

// [utest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_for_want_of_memory_is_that_of_a_killed_container() {
    let script = ScriptedEngine::answering(&[]);
    let mut kube = connector(&script);
    let instance = new().instance;
    kube.cli.records().keep(&instance, PODS, r#"["p1"]"#);
    let container =
        |id, code| format!(r#"{{"Id":"{id}","Pod":"p1","State":"exited","ExitCode":{code}}}"#);
    let listed = |codes: [i64; 2]| {
        let [a, b] = [container("a", codes[0]), container("b", codes[1])];
        script.on("ps", &format!("echo '{a}'; echo '{b}'"));
    };
    let id = id(&instance.to_string());
    script.on(
        "container",
        r#"echo '{"State":{"OOMKilled":true},"HostConfig":{"Memory":8388608}}'"#,
    );
    listed([0, 1]);
    assert_eq!(kube.out_of_memory(&instance, &id), Ok(None));
    assert_eq!(calls(&script).len(), 1, "nothing was killed");
    listed([0, 137]);
    let limit = Some(8 << 20);
    assert_eq!(
        kube.out_of_memory(&instance, &id),
        Ok(Some(OutOfMemory { limit }))
    );
    assert_eq!(
        calls(&script).last().unwrap(),
        "container inspect --format={{json .}} b"
    );
}

#[test]
fn a_failed_play_removes_the_pods_that_it_made_and_no_others() {
    let script = ScriptedEngine::answering(&[
        "echo 'old web'; echo 'x db'",
        "",
        "",
        "",
        "printf 'new web\\nold web\\ny other\\n'",
    ]);
    script.on("4", "echo 'pod already exists' >&2; exit 125");
    let mut kube = connector(&script);
    assert!(failed(create(&mut kube)).starts_with("pod already exists. Execution of "));
    let calls = calls(&script);
    assert_eq!(
        calls[4..7],
        [
            POD_LS.to_owned(),
            listing_with_pods(),
            REMOVE_NEW.to_owned()
        ]
    );
    assert_eq!(calls[7..], removal_calls());
}

/// The rest never ran: podman waited ten seconds for the container that holds the pod together.
#[test]
fn failed_play_stops_what_runs_and_waits_for_nothing_else() {
    let listing = "printf 'p1 web\np2 db-pod\nx web\n'";
    let script = ScriptedEngine::answering(&["echo 'x web'", "", "", "exit 125", listing]);
    script.on("ps", TWO_PODS_RUN);
    let new = new_container("podman-kube", TWO_PODS);
    assert!(connector(&script).create(&new, None, None).is_err());
    let mut calls = calls(&script);
    calls[7..9].sort();
    let stops = ["unpause c", "stop --ignore --time=7 a", "stop --ignore b c"];
    assert_eq!(
        calls[5..9],
        [&listing_with_pods(), stops[0], stops[1], stops[2]]
    );
    assert_eq!(calls[9], "pod rm --force --ignore --time=0 p1 p2");
    assert_eq!(
        calls[10..],
        ["pods", "config"].map(|what| format!("volume rm {}.{what}", new.instance))
    );
}

#[test]
fn failed_play_whose_pods_cannot_be_stopped_is_not_killed() {
    let script = ScriptedEngine::answering(&["", "", "", "exit 125", "echo 'new web'"]);
    script.on("ps", "exit 125");
    let mut kube = connector(&script);
    assert!(create(&mut kube).is_err());
    assert_eq!(
        calls(&script)[5..],
        [listing_with_pods()],
        "the volumes stay as well"
    );
    script.on("ps", "");
    assert_eq!(
        kube.remove_left_over(&new().instance.workload, None),
        Ok(())
    );
    assert_eq!(calls(&script)[7..8], [REMOVE_NEW]);
}

#[test]
fn pods_that_a_failed_play_left_are_removed_before_the_next() {
    let script =
        ScriptedEngine::answering(&["", "", "", "exit 125", "echo 'new web'", "", "exit 125"]);
    let mut kube = connector(&script);
    assert!(create(&mut kube).is_err());
    script.on("-g", "printf 'Pod:\\nabc\\n'");
    create(&mut kube).unwrap();
    let calls = calls(&script);
    let removal = [listing_with_pods(), REMOVE_NEW.to_owned()];
    assert_eq!(
        calls[5..9],
        [removal.clone(), removal].concat(),
        "the volumes stay until the pods are gone"
    );
    assert_eq!(calls[9..11], removal_calls());
    assert_eq!(calls[11], POD_LS);
}

#[test]
fn pods_of_a_failed_play_are_removed_after_a_failed_listing() {
    // The play fails, and so does the listing of its pods.
    let script = ScriptedEngine::answering(&["echo 'old web'", "", "", "exit 125", "exit 125"]);
    let mut kube = connector(&script);
    assert!(create(&mut kube).is_err());
    let instance = new().instance;
    assert_eq!(calls(&script).len(), 5, "the volumes stay");
    let web = id(&instance.to_string());
    assert_eq!(kube.find(&instance, None), Ok(vec![web.clone()]));
    // While the listing fails, neither a create nor a delete succeeds.
    script.on("6", "exit 125");
    assert!(create(&mut kube).is_err());
    script.on("7", "exit 125");
    assert!(kube.delete(&web).is_err());
    script.on("8", "printf 'old web\nnew web\n'");
    script.on("13", NO_VOLUME);
    assert_eq!(kube.delete(&web), Ok(()));
    let calls = calls(&script);
    assert_eq!(calls[5..8], [POD_LS; 3]);
    assert_eq!(calls[8..10], [listing_with_pods(), REMOVE_NEW.to_owned()]);
    assert_eq!(calls[10..12], removal_calls());
    assert_eq!(calls[12], format!("volume inspect {instance}.config"));
}

#[test]
fn calls_before_the_play_could_not_be_cancelled() {
    let [rm, create_volume] = store_calls(".config");
    for (hanging, expected) in [
        ("1", vec![POD_LS.to_owned()]),
        (
            "2",
            [&[POD_LS.to_owned(), rm.clone()][..], &removal_calls()].concat(),
        ),
        (
            "3",
            [
                &[POD_LS.to_owned(), rm, create_volume][..],
                &removal_calls(),
            ]
            .concat(),
        ),
    ] {
        let script = ScriptedEngine::answering(&[]);
        let cancel = script.cancelling(hanging);
        let result = connector(&script).create(&new(), None, Some(cancel.as_fd()));
        assert_eq!(result, Err(RuntimeError::Cancelled), "call {hanging}");
        assert_eq!(calls(&script), expected);
    }
}

// [utest->swdd~podman-kube-delete-workload-downs-manifest-file~1]
// [utest->swdd~podman-kube-delete-removes-volumes~1]
// [utest->swdd~podman-kube-get-workload-id-uses-volumes~1]
#[test]
fn a_later_agent_takes_down_what_the_configuration_volume_says() {
    let script = ScriptedEngine::answering(&[&volume(CONFIG), NO_VOLUME, "", "cat >$dir/downed"]);
    let instance = new().instance;
    assert_eq!(
        connector(&script).delete(&id(&instance.to_string())),
        Ok(())
    );
    let inspections = ["config", "pods"].map(|what| format!("volume inspect {instance}.{what}"));
    assert_eq!(script.calls()[..2], inspections);
    assert_eq!(
        script.calls()[2..4],
        [listing_with_pods(), "kube down --d -".to_owned()]
    );
    assert_eq!(script.calls()[4..], removal_calls());
    assert_eq!(
        fs::read_to_string(script.path().join("downed")).unwrap(),
        MANIFEST
    );
}

#[test]
fn a_failed_down_keeps_the_volumes_and_is_told() {
    let script =
        ScriptedEngine::answering(&[&volume(CONFIG), NO_VOLUME, "", "echo no >&2; exit 125"]);
    let text = failed(delete(&script));
    assert!(text.starts_with("no. Execution of "), "{text}");
    assert_eq!(script.calls().len(), 4);
    let script = ScriptedEngine::answering(&["echo '[{}]'"]);
    let text = failed(delete(&script));
    assert!(text.contains("holds no data. Execution of "), "{text}");
    assert!(failed(connector(&script).delete(&id("nonsense"))).contains("'nonsense'"));
}

#[test]
fn what_is_gone_already_counts_as_deleted() {
    let script = ScriptedEngine::answering(&[NO_VOLUME]);
    assert_eq!(delete(&script), Ok(()));
    assert_eq!(script.calls().len(), 1, "nothing says what to take down");
    let script = ScriptedEngine::answering(&[&volume(CONFIG), NO_VOLUME, "", NO_POD]);
    assert_eq!(delete(&script), Ok(()));
    assert_eq!(script.calls()[4..], removal_calls());
}

/// Its pods would be forgotten while they run.
#[test]
fn option_with_words_of_podman_does_not_mean_gone() {
    let config = CONFIG.replace("[--d]", "['--d=no such pod']");
    let down = "echo no >&2; exit 125";
    let script = ScriptedEngine::answering(&[&volume(&config), NO_VOLUME, "", down]);
    assert!(failed(delete(&script)).starts_with("no. Execution of "));
    assert_eq!(script.calls().len(), 4, "the volumes are kept");
}

#[test]
fn down_takes_the_other_pods_alone_if_one_is_missing() {
    let two = format!(
        "manifest: |\n  {}---\n  kind: Deployment\n  metadata: {{name: db}}\n",
        MANIFEST.replace('\n', "\n  ")
    );
    for (last, fails) in [("cat >$dir/downed", false), ("exit 125", true)] {
        let script =
            ScriptedEngine::answering(&[&volume(&two), NO_VOLUME, "", NO_POD, NO_POD, last]);
        let result = delete(&script);
        assert_eq!(result.is_err(), fails);
        assert_eq!(script.calls()[3..6], ["kube down -"; 3]);
        assert_eq!(script.calls().len(), if fails { 6 } else { 8 });
        if !fails {
            let downed = fs::read_to_string(script.path().join("downed")).unwrap();
            assert!(
                downed.contains("Deployment") && !downed.contains("web"),
                "{downed}"
            );
        }
    }
}

/// Two pods of which one names the seconds that it may take to stop, and other pods.
const TWO_PODS: &str = "manifest: |\n  kind: Pod\n  metadata: {name: web}\n  spec: {terminationGracePeriodSeconds: 7, \
    containers: [{name: main}]}\n  ---\n  kind: Deployment\n  metadata: {name: db}\n  spec: {template: {spec: {containers: \
    [{name: main}]}}}\n";
const TWO_PODS_RUN: &str = r#"cat <<'END'
{"Id":"a","Pod":"p1","PodName":"web","State":"running","Pid":7}
{"Id":"ended","Pod":"p1","PodName":"web","State":"exited","Pid":0}
{"Id":"infra","Pod":"p1","PodName":"web","State":"running","Pid":8,"IsInfra":true}
{"Id":"b","Pod":"p2","PodName":"db-pod","State":"running","Pid":9}
{"Id":"c","Pod":"p2","PodName":"db-pod","State":"paused","Pid":10}
{"Id":"strange","Pod":"p3","PodName":"other","State":"running","Pid":11}
{"Id":"alone","State":"running","Pid":12}
END"#;

fn listing_with_pods() -> String {
    format!("ps --all --pod --format={}", podman_format())
}

/// Neither of two stops ends before the other has begun.
// [utest->swdd~podman-kube-delete-stops-in-order~1]
#[test]
fn delete_stops_all_pods_at_once_each_within_its_own_seconds() {
    for noted in [volume(r#"["p1","p2"]"#), NO_VOLUME.to_owned()] {
        let script = ScriptedEngine::answering(&[&volume(TWO_PODS), &noted]);
        let fifo = script.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::RWXU).unwrap();
        script.on("ps", TWO_PODS_RUN);
        script.on(
            "stop",
            "case \"$*\" in *--time=7*) read line <$dir/fifo;; *) echo go >$dir/fifo;; esac",
        );
        assert_eq!(delete(&script), Ok(()));
        let mut calls = script.calls();
        calls[4..6].sort();
        let stops = ["stop --ignore --time=7 a", "stop --ignore b c"];
        assert_eq!(
            calls[2..7],
            [
                &listing_with_pods(),
                "unpause c",
                stops[0],
                stops[1],
                "kube down -"
            ]
        );
    }
}

#[test]
fn pods_that_could_not_be_stopped_are_not_killed() {
    for call in ["ps", "unpause", "stop"] {
        let script = ScriptedEngine::answering(&[&volume(TWO_PODS), &volume(r#"["p1","p2"]"#)]);
        script.on("ps", TWO_PODS_RUN);
        script.on(call, "echo no >&2; exit 125");
        let text = failed(delete(&script));
        assert!(text.starts_with("no. Execution of "), "{call}: {text}");
        assert!(
            !script
                .calls()
                .iter()
                .any(|call| call.starts_with("kube down")),
            "{:?}",
            script.calls()
        );
    }
}

#[test]
fn the_seconds_of_a_pod_are_bounded_and_no_other_value_counts() {
    let seconds = |value: &str| {
        let spec =
            format!("{{terminationGracePeriodSeconds: {value}, containers: [{{name: main}}]}}");
        pod_documents(&format!("kind: Pod\nmetadata: {{name: web}}\nspec: {spec}"))
            .remove(0)
            .stop_seconds
    };
    for (value, expected) in [
        ("0", Some(0)),
        ("30", Some(30)),
        ("18446744073709551615", Some(u32::MAX)),
        ("-1", None),
        ("1.5", None),
        ("\"30\"", None),
        ("null", None),
        ("[]", None),
    ] {
        assert_eq!(seconds(value), expected, "{value}");
    }
}

#[test]
fn pods_cannot_be_started_again() {
    let script = ScriptedEngine::answering(&[]);
    let mut kube = connector(&script);
    assert!(!kube.can_start_again());
    let result = kube.start(&id(&new().instance.to_string()), &new(), None, None);
    assert!(matches!(result, Err(RuntimeError::Unsupported(_))));
    assert_eq!(script.calls(), [""; 0], "and they are not touched");
}

// [utest->swdd~podman-kube-list-existing-workloads-using-config-volumes~1]
// [utest->swdd~podman-kube-get-workload-id-uses-volumes~1]
// [utest->swdd~podman-kube-state-getter-uses-container-states~1]
// [utest->swdd~podman-kube-state-getter-reset-cache~1]
#[test]
fn listing_finds_workloads_of_this_agent_by_their_volumes() {
    let names = "printf 'web.1.agent_A.config\\nweb.1.X-agent_A.config\\nodd.config\\ndb.2.agent_A.config\\n'";
    let ps = |state: &str| {
        format!(
            r#"echo '{{"Id":"c","Pod":"p1","State":"{state}","ExitCode":3}} {{"Id":"d","Pod":"q"}}'"#
        )
    };
    let script =
        ScriptedEngine::answering(&[names, NO_VOLUME, &volume(r#"["p1"]"#), &ps("running")]);
    let mut kube = connector(&script);
    let told = |listed: Vec<ListedContainer>| -> Vec<String> {
        listed
            .iter()
            .map(|one| format!("{} {} {}", &*one.id.0, one.instance, one.state))
            .collect()
    };
    let db = "db.2.agent_A db.2.agent_A Succeeded(Ok)";
    let expected = [db, "web.1.agent_A web.1.agent_A Running(Ok)"];
    assert_eq!(told(kube.list().unwrap()), expected);
    assert_eq!(
        script.calls(),
        [
            r"volume ls --filter name=\.agent_A\.config$ --format={{.Name}}",
            "volume inspect db.2.agent_A.pods",
            "volume inspect web.1.agent_A.pods",
            &format!("ps --all --format={}", podman_format())
        ]
    );
    // The pods are remembered, the states are not.
    script.on("5", names);
    script.on("6", NO_VOLUME);
    script.on("7", &ps("exited"));
    let expected = [
        db,
        "web.1.agent_A web.1.agent_A Failed(ExecFailed): 'Exit code: '3''",
    ];
    assert_eq!(told(kube.list().unwrap()), expected);
    assert_eq!(script.calls().len(), 7);
}

#[test]
fn unreadable_pods_are_not_taken_for_success() {
    for broken in [
        "echo 'database is locked' >&2; exit 125",
        &volume("no list"),
        "echo '[{}]'",
    ] {
        let script =
            ScriptedEngine::answering(&["printf 'web.1.agent_A.config\ndb.2.agent_A.config\n'"]);
        script.on("2", &volume(r#"["p1"]"#));
        script.on("volume", broken);
        script.on("ps", r#"echo '{"Id":"c","Pod":"p1","State":"running"}'"#);
        let listed = connector(&script).list().unwrap();
        let states: Vec<String> = listed.iter().map(|one| one.state.to_string()).collect();
        assert_eq!(
            states,
            [
                "Running(Ok)",
                "Failed(Unknown): 'Could not load workload metadata'"
            ],
            "{broken}"
        );
    }
    // One moment of trouble is nothing.
    let script = ScriptedEngine::answering(&[
        "echo web.1.agent_A.config",
        "exit 125",
        &volume(r#"["p1"]"#),
    ]);
    script.on("ps", r#"echo '{"Id":"c","Pod":"p1","State":"running"}'"#);
    assert_eq!(
        connector(&script).list().unwrap()[0].state.phase,
        Phase::Running
    );
}

#[test]
fn logs_of_all_containers_but_the_infra_one_are_read() {
    let wanted = LogsRequest {
        follow: Some(true),
        tail: Some(5),
        ..LogsRequest::default()
    };
    let two = r#"{"Id":"a","Pod":"p1","Name":"web-a"}{"Id":"b","Pod":"p2","Name":"web-b"}"#;
    let infra = r#"{"Id":"i","Pod":"p1","IsInfra":true}{"Id":"x","Pod":"q","Name":"other"}"#;
    let one = two.split_once("}{").unwrap().0.to_owned() + "}";
    for (containers, expected) in [
        (
            format!("{two}{infra}"),
            vec![("a", "[web-a] "), ("b", "[web-b] ")],
        ),
        (format!("{one}{infra}"), vec![("a", "")]),
        (infra.to_owned(), vec![]),
    ] {
        let script = ScriptedEngine::answering(&[
            &volume(r#"["p1","p2"]"#),
            &format!("echo '{containers}'"),
        ]);
        let calls = connector(&script)
            .log_calls(&new().instance, &wanted)
            .unwrap();
        let told: Vec<_> = calls
            .iter()
            .map(|call| (call.arguments.join(" "), call.prefix.as_str()))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(id, prefix)| (format!("logs -f --tail 5 {id}"), *prefix))
            .collect();
        assert_eq!(told, expected);
    }
    let script = ScriptedEngine::answering(&[NO_VOLUME]);
    assert!(
        connector(&script)
            .log_calls(&new().instance, &wanted)
            .unwrap()
            .is_empty()
    );
    let script = ScriptedEngine::answering(&[]);
    script.on("volume", "exit 125");
    assert!(
        connector(&script)
            .log_calls(&new().instance, &wanted)
            .is_err()
    );
}

#[test]
fn containers_are_not_listed_when_there_is_no_workload() {
    let script = ScriptedEngine::answering(&[]);
    assert_eq!(connector(&script).list(), Ok(vec![]));
    assert_eq!(script.calls().len(), 1);
    for (answer, text) in [
        ("exit 125", "Ended with exit status: 125."),
        (
            "echo nonsense",
            "The list of volumes cannot be read. Execution of",
        ), // It was taken for an empty one.
    ] {
        let text_of = failed(connector(&ScriptedEngine::answering(&[answer])).list());
        assert!(text_of.starts_with(text), "{text_of}");
    }
}

#[test]
fn find_asks_for_exactly_this_instance() {
    let instance = InstanceName::with_id("web", "1", "agent_A");
    let script = ScriptedEngine::answering(&[&volume(CONFIG)]);
    assert_eq!(
        connector(&script).find(&instance, None),
        Ok(vec![id("web.1.agent_A")])
    );
    assert_eq!(script.calls(), ["volume inspect web.1.agent_A.config"]);
    assert_eq!(
        connector(&ScriptedEngine::answering(&[NO_VOLUME])).find(&instance, None),
        Ok(vec![])
    );
    assert!(
        connector(&ScriptedEngine::answering(&["exit 125"]))
            .find(&instance, None)
            .is_err()
    );
}

#[test]
fn pods_are_read_from_all_sections_of_the_output() {
    for (output, pods) in [
        ("", vec![]),
        ("Pod:\np1\nContainer:\nc1\n", vec!["p1"]),
        (
            "Volumes:\nv\nPod:\n  p1  \n\np2\nContainers:\nc1\nc2\n\nPod:\np3\n",
            vec!["p1", "p2", "p3"],
        ),
        ("Containers:\nc1\n", vec![]),
    ] {
        assert_eq!(parse_pods(output), pods, "{output:?}");
    }
}

/// A workload that failed its check `alive` was removed, and its logs with it.
#[test]
fn a_stop_leaves_the_pods_with_their_logs() {
    let instance = new().instance;
    let script = ScriptedEngine::answering(&[&volume("[\"p1\",\"p2\"]"), &volume(TWO_PODS)]);
    script.on(
        "ps",
        "echo '{\"Id\":\"a\",\"Pod\":\"p1\",\"PodName\":\"web\",\"Pid\":7}'",
    );
    let mut connector = connector(&script);
    let id = ContainerId(instance.to_string().into());
    connector.stop(&id).unwrap();
    let inspections = ["pods", "config"].map(|what| format!("volume inspect {instance}.{what}"));
    assert_eq!(calls(&script)[..2], inspections);
    let stops = ["stop --ignore --time=7 a", "pod stop --ignore p1 p2"];
    assert_eq!(
        calls(&script)[2..],
        [&listing_with_pods(), stops[0], stops[1]]
    );
}
