//! The updates of manifests, and the texts of their errors.

mod validate;

use super::*;
use crate::tests::play;

/// Merges manifests `a.yaml`, `b.yaml`, ... and gives the update or the error, standard output and
/// standard error.
fn merged(
    texts: &[&str],
    agent: Option<&str>,
    delete: bool,
) -> (Result<CliUpdate, CliError>, String, String) {
    let names = ["a.yaml", "b.yaml", "c.yaml"];
    let inputs: Vec<Input> = texts
        .iter()
        .zip(names)
        .map(|(text, name)| Input {
            name: name.to_owned(),
            text: (*text).to_owned(),
        })
        .collect();
    let arguments = ManifestArguments {
        files: Vec::new(),
        agent: agent.map(str::to_owned),
        delete,
        ignore_modes: false,
        mode: ModeChange::default(),
        prune: PruneArguments::default(),
        manifests: Vec::new(),
    };
    let played = play(None, [], |_, output| merge(&inputs, &arguments, output));
    (played.result, played.out, played.err)
}

fn error(texts: &[&str]) -> String {
    merged(texts, None, false).0.unwrap_err().to_string()
}

const WEB: &str =
    "apiVersion: v1\nworkloads:\n  web: {agent: A, runtime: podman, runtimeConfig: 'image: x'}\n";
const DB: &str = "apiVersion: v1\nworkloads:\n  db: {agent: '{{a}}', runtime: podman, runtimeConfig: 'image: y'}\nconfigs: {c: v}\n";

fn agents(update: &CliUpdate) -> Vec<(String, String)> {
    let workloads = update
        .new_state
        .at(&["desiredState", "workloads"])
        .and_then(Node::as_map)
        .unwrap();
    let agent = |workload: &Node| {
        workload
            .get("agent")
            .and_then(Node::as_text)
            .unwrap()
            .to_owned()
    };
    workloads
        .iter()
        .map(|(name, workload)| (name.to_owned(), agent(workload)))
        .collect()
}

#[test]
fn manifests_are_merged_into_one_update_with_sorted_masks() {
    let (update, out, err) = merged(&[WEB, DB], None, false);
    let update = update.unwrap();
    assert_eq!(
        update.masks,
        [
            "desiredState.configs.c",
            "desiredState.workloads.db",
            "desiredState.workloads.web"
        ]
    );
    let version = update
        .new_state
        .at(&["desiredState", "apiVersion"])
        .and_then(Node::as_text);
    assert_eq!(version, Some("v1"));
    assert_eq!(
        agents(&update),
        [("db".into(), "{{a}}".into()), ("web".into(), "A".into())]
    );
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
}

#[test]
fn agent_option_wins_and_is_needed_without_the_key() {
    let homeless =
        "apiVersion: v1\nworkloads:\n  w: {runtime: podman, runtimeConfig: 'image: x'}\n";
    let unscheduled = "apiVersion: v1\nworkloads:\n  u: {agent: '', runtime: podman, runtimeConfig: 'image: x'}\n";
    assert_eq!(
        error(&[homeless]),
        "No agent name specified -> use '--agent' option to specify!"
    );
    let update = merged(&[homeless, unscheduled, DB], Some("B"), false)
        .0
        .unwrap();
    assert_eq!(
        agents(&update),
        [
            ("db".into(), "B".into()),
            ("u".into(), "B".into()),
            ("w".into(), "B".into())
        ]
    );
    assert_eq!(
        agents(&merged(&[unscheduled], None, false).0.unwrap()),
        [("u".into(), String::new())]
    );
    assert!(
        merged(&[homeless], None, true).0.is_ok(),
        "deleting needs no agent"
    );
}

#[test]
fn deleting_sends_the_masks_with_an_empty_state() {
    let update = merged(&[WEB, DB], None, true).0.unwrap();
    assert_eq!(update.new_state, Node::empty());
    assert_eq!(
        update.masks,
        [
            "desiredState.configs.c",
            "desiredState.workloads.db",
            "desiredState.workloads.web"
        ]
    );
}

#[test]
fn manifests_without_objects_are_nothing_to_update() {
    for text in [
        "apiVersion: v1",
        "apiVersion: v1\nworkloads: {}\nconfigs:\n",
        "apiVersion: v1\nother: {}\nnote: x\n",
    ] {
        assert_eq!(
            merged(&[text], None, false).0.unwrap().masks,
            [""; 0],
            "{text}"
        );
    }
    assert_eq!(merged(&[], None, false).0.unwrap().masks, [""; 0]);
}

#[test]
fn deprecated_version_is_read_as_current_with_a_warning() {
    let text = "apiVersion: v0.1\nworkloads:\n  w:\n    agent: A\n    runtime: 1.10\n    runtimeConfig: x\n    \
                tags: [{key: a, value: b}]\n    controlInterfaceAccess:\n      allowRules:\n      \
                - {type: StateRule, operation: Read, filterMask: [a]}\n";
    let (update, out, err) = merged(&[text], None, false);
    let update = update.unwrap();
    assert_eq!(out, format!("{DEPRECATED}\n"));
    assert!(
        err.starts_with("warn: a.yaml: workload 'w': unknown runtime '1.10'; ")
            && err.lines().count() == 1,
        "{err}"
    );
    let at = |path: &[&str]| {
        update
            .new_state
            .get("desiredState")
            .unwrap()
            .at(path)
            .cloned()
    };
    assert_eq!(at(&["apiVersion"]), Some(Node::text("v1")));
    assert_eq!(
        at(&["workloads", "w", "tags"]),
        Some(Node::map([("a", Node::text("b"))]))
    );
    assert_eq!(at(&["workloads", "w", "runtime"]), Some(Node::text("1.10")));
    let rules = at(&["workloads", "w", "controlInterfaceAccess", "allowRules"]).unwrap();
    assert_eq!(
        rules.as_list().unwrap()[0].get("filterMasks"),
        Some(&Node::List(vec![Node::text("a")]))
    );
}

#[test]
fn wrong_manifests_give_the_documented_texts() {
    let workload = |text: &str| {
        format!(
            "apiVersion: v1\nworkloads:\n  w: {{agent: A, runtime: r, runtimeConfig: c{text}}}\n"
        )
    };
    let old = |text: &str| workload(text).replace("v1", "v0.1");
    for (text, expected) in [
        (
            "a: [".to_owned(),
            "Invalid manifest data provided: a.yaml: did not find expected node content at line 2 column 1, \
             while parsing a flow node",
        ),
        (
            format!("{WEB}---\n{DB}"),
            "Invalid manifest data provided: a.yaml: deserializing from YAML containing more than one document \
             is not supported: the second one begins at line 4 column 1",
        ),
        (
            "workloads: {}".to_owned(),
            "Manifest schema validation failed:\nthe manifest: missing field `apiVersion` (a.yaml, line 1 column 1)",
        ),
        (
            String::new(),
            "Manifest schema validation failed:\n'a.yaml' is empty",
        ),
        (
            "apiVersion: v2".to_owned(),
            "Manifest schema validation failed:\n'apiVersion': expected v1, found 'v2' (a.yaml, line 1 column 13)",
        ),
        (
            workload(", restartPolicy: x, tags: {a: 1}"),
            "Manifest schema validation failed:\n\
             'workloads.w.restartPolicy': unknown value 'x', expected NEVER, ON_FAILURE or ALWAYS \
             (a.yaml, line 3 column 62)\n\
             'workloads.w.tags.a': expected text (put it in quotes), found number 1 (a.yaml, line 3 column 75)",
        ),
        (
            workload(", tags: {a.b: c}"),
            "Invalid mapping key 'a.b': Expected to have characters in [a-zA-Z0-9_-].",
        ),
        (
            workload(", note: [{true: x}]"),
            "Unsupported mapping key 'true'",
        ),
        (
            workload(", note: {1.5: x}"),
            "Unsupported mapping key '1.5'",
        ),
        (
            workload(", note: {[a]: x}"),
            "Unsupported mapping key 'a list'",
        ),
        (
            workload("").replace("  w:", "  17:"),
            "The provided path does not exist! This may be caused by improper naming. \
             Names expected to have characters in '[a-zA-Z0-9_-]'",
        ),
        (
            old(", tags: {a: b}"),
            "For API version 'v0.1', tags must be specified as a sequence (list of key-value entries). \
             Found tags as mapping for workload 'w'.",
        ),
        (
            old(", restartPolicy: x"),
            "Invalid manifest data provided: a.yaml: workloads.w.restartPolicy: unknown value 'x', expected NEVER, \
             ON_FAILURE or ALWAYS at line 3 column 62",
        ),
        (
            "apiVersion: v1\nworkload:\n  web: {}\n".to_owned(),
            "Invalid manifest data provided: a.yaml: unknown key 'workload' at line 2 column 1",
        ),
    ] {
        let error = error(&[&text]);
        assert!(
            error.starts_with(expected),
            "{text}\n  {error}\n  {expected}"
        );
    }
}

#[test]
fn only_the_version_at_the_top_counts() {
    let text = "apiVersion: v1\nconfigs: {c: {apiVersion: apps}}\n";
    assert_eq!(
        merged(&[text], None, false).0.unwrap().masks,
        ["desiredState.configs.c"]
    );
}

#[test]
fn one_name_in_two_manifests_is_refused_with_both_files() {
    let (result, ..) = merged(&[WEB, DB, WEB], None, false);
    let error = result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Multiple workloads with the same name 'web' found!"
    );
    assert_eq!(
        error.hint(),
        "it is in 'a.yaml' and in 'c.yaml'; remove it from one of them"
    );
    let config = "apiVersion: v1\nconfigs: {c: v}\n";
    let expected = "Multiple configs with the same name 'c' found!";
    assert_eq!(self::error(&[config, config]), expected);
}

#[test]
fn unknown_keys_are_warned_about_with_the_file() {
    let text = "apiVersion: v1\nworkloads:\n  w:\n    agnet: B\n    agent: A\n    runtime: podman\n    runtimeConfig: 'image: c'\n";
    let (result, _, err) = merged(&[text], None, false);
    assert!(result.is_ok());
    assert_eq!(
        err,
        "warn: a.yaml: unknown key 'workloads.w.agnet' is ignored at line 4 column 5; did you mean 'agent'?\n"
    );
}

#[test]
fn misspelt_key_that_refuses_the_manifest_is_named() {
    let text =
        "apiVersion: v1\nworkloads:\n  w:\n    agent: A\n    runtime: r\n    runtimeConfg: c\n";
    let (result, _, err) = merged(&[text], None, false);
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("'workloads.w': missing field `runtimeConfig`"),
        "{error}"
    );
    assert_eq!(
        err,
        "warn: a.yaml: unknown key 'workloads.w.runtimeConfg' is ignored at line 6 column 5; did you mean \
         'runtimeConfig'?\n"
    );
}

#[test]
fn tabs_before_a_key_are_named_as_what_is_wrong() {
    let hint = |text: &str| merged(&[text], None, false).0.unwrap_err().hint();
    assert_eq!(
        hint("apiVersion: v1\nworkloads:\n\tw:\n\t\tagent: A\n"),
        "tabs cannot indent in YAML; line 3 begins with one: use spaces"
    );
    assert_eq!(
        hint("a: ["),
        "check line 2 and those before it: indentation, quotes and brackets"
    );
}

#[test]
fn many_violations_are_counted_not_listed() {
    let workloads: String = (0..50)
        .map(|index| format!("  w{index}: {{runtime: r}}\n"))
        .collect();
    let error = error(&[&format!("apiVersion: v1\nworkloads:\n{workloads}")]);
    assert_eq!(error.lines().count(), 1 + MANIFEST_WARNINGS_MAX + 1);
    assert!(error.ends_with("\nand 30 more"), "{error}");
}

#[test]
fn files_are_read_in_order_and_the_first_missing_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("a"), "text").unwrap();
    std::fs::write(path("binary"), [0xff, 0xfe]).unwrap();
    let inner = |error: CliError| match error {
        CliError::Input { text, .. } => text,
        error => panic!("{error}"),
    };
    let read = |names: &[String]| read_inputs(names).map(|inputs| inputs.len()).map_err(inner);
    assert_eq!(read(&[path("a"), path("a")]), Ok(2));
    assert_eq!(
        read(&[path("a"), path("b"), path("c")]),
        Err(format!("File '{}' not found!", path("b")))
    );
    assert_eq!(
        read(&[path("a"), "-".to_owned()]),
        Err("File '-' not found!".to_owned())
    );
    assert_eq!(
        read(&[path("")]),
        Err(format!(
            "Cannot read '{}': Is a directory (os error 21)",
            path("")
        ))
    );
    assert!(read(&[path("binary")]).unwrap_err().contains("UTF-8"));
}

#[test]
fn misspelt_lifecycle_key_is_refused_with_line_and_suggestion() {
    let manifest = |configs: &str, key: &str| {
        format!(
            "apiVersion: v1\nworkloads:\n  db:\n    agent: A\n    runtime: podman\n    {configs}runtimeConfig: |\n      \
             image: x\n      lifecycle:\n        {key}: {{file: '{{{{f}}}}/up'}}\nconfigs: {{f: /run}}\n"
        )
    };
    let text = manifest("", "redy");
    let refused = merged(&[&text], None, false).0.unwrap_err();
    let expected = "Invalid manifest data provided: a.yaml: workload 'db': lifecycle.redy: unknown key; did you mean 'ready'?";
    assert!(refused.to_string().contains(expected), "{refused}");
    assert_eq!(refused.hint(), "see 'a.yaml', line 9");
    assert!(text.lines().nth(8).unwrap().contains("redy"));
    assert!(
        merged(&[&manifest("configs: {f: f}\n    ", "redy")], None, false)
            .0
            .is_ok(),
        "the server renders it first"
    );
    assert!(
        merged(&[&text], None, true).0.is_ok(),
        "what is there can be deleted"
    );
    let flow = "apiVersion: v1\nworkloads:\n  db: {agent: A, runtime: podman, runtimeConfig: 'lifecycle: {alive: 1}'}\n";
    assert!(
        error(&[flow])
            .contains("lifecycle.alive: expected a mapping ('key: value'), found number 1")
    );
}

// [utest->swdd~lifecycle-restart-with-needs-a-dependency~1]
#[test]
fn restart_with_without_a_dependency_is_refused_with_its_place() {
    let manifest = |dependencies: &str| {
        format!(
            "apiVersion: v1\nworkloads:\n  web:\n    agent: A\n    runtime: podman\n    dependencies: {dependencies}\n    \
             runtimeConfig: |\n      image: x\n      lifecycle: {{ restartWith: DEPENDENCIES }}\n"
        )
    };
    for (dependencies, cause) in [
        ("{}", "the workload has no dependencies, "),
        (
            "{ db: ADD_COND_SUCCEEDED }",
            "no dependency of the workload has 'ADD_COND_RUNNING'",
        ),
    ] {
        let refused = merged(&[&manifest(dependencies)], None, false)
            .0
            .unwrap_err();
        let expected = format!("workload 'web': lifecycle.restartWith: {cause}");
        assert!(refused.to_string().contains(&expected), "{refused}");
        assert!(refused.hint().contains("'a.yaml'"), "{}", refused.hint());
    }
    let valid = manifest("{ db: ADD_COND_RUNNING, setup: ADD_COND_SUCCEEDED }");
    assert!(merged(&[&valid], None, false).0.is_ok());
}

#[test]
fn mount_point_with_options_is_refused_with_its_place() {
    for version in ["v1", "v0.1"] {
        let text = format!(
            "apiVersion: {version}\nworkloads:\n  w:\n    agent: A\n    runtime: podman\n    runtimeConfig: 'image: x'\n    \
             files:\n    - {{mountPoint: '/x,source=/,destination=/host', data: d}}\n"
        );
        let refused = merged(&[&text], None, false).0.unwrap_err();
        let expected = "Invalid manifest data provided: a.yaml: workload 'w': \
                        Unsupported mount point '/x,source=/,destination=/host'. It contains ','";
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(refused.hint(), "see 'a.yaml', line 8 column 5");
        assert!(
            merged(&[&text], None, true).0.is_ok(),
            "what is there can be deleted"
        );
    }
}

/// A manifest with one workload of this configuration.
fn with_config(runtime: &str, config: &str) -> String {
    let mut text = format!(
        "apiVersion: v1\nworkloads:\n  w:\n    agent: A\n    runtime: {runtime}\n    runtimeConfig: |\n"
    );
    for line in config.lines() {
        text.push_str(&format!("      {line}\n"));
    }
    text
}

#[test]
fn key_of_a_config_that_engines_ignore_is_warned_of() {
    for (config, expected) in [
        (
            "image: x\ncommandArg: [sleep]\nx-note: 1\n",
            "warn: a.yaml: unknown key 'workloads.w.runtimeConfig.commandArg' is ignored at line 8 column 7; did you mean 'commandArgs'?\n",
        ),
        (
            "image: x\nlifecycle: { prepare: IMAGE }\ncommandOptions: [-p, 80]\n",
            "",
        ),
    ] {
        let (result, _, err) = merged(&[&with_config("podman", config)], None, false);
        assert!(result.is_ok(), "{err}");
        assert_eq!(err, expected);
    }
}

// [utest->swdd~cli-refuses-what-no-agent-can-run~1]
#[test]
fn config_that_no_agent_can_run_is_refused() {
    for (runtime, config, reason) in [
        (
            "podman",
            "commandArgs: [a]\n",
            "missing field `image` (line 1 column 1 of runtimeConfig)",
        ),
        (
            "containerd",
            "image: x\ncommandArgs: --secret\n",
            "commandArgs: expected a list ('- ' before each item), found a text (line 2 column 1 of runtimeConfig)",
        ),
        (
            "podman",
            "image: --privileged\n",
            "Unsupported image '--privileged': an image neither is empty nor begins with '-'",
        ),
        (
            "podman-kube",
            "image: x\n",
            "missing field `manifest` (line 1 column 1 of runtimeConfig)",
        ),
    ] {
        let text = with_config(runtime, config);
        let refused = merged(&[&text], None, false).0.unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "Invalid manifest data provided: a.yaml: workload 'w': 'runtimeConfig' cannot be run: {reason}"
            )
        );
        assert_eq!(refused.hint(), "see 'a.yaml', line 6 column 20");
        let deletion = merged(&[&text], None, true);
        assert!(deletion.0.is_ok(), "what is there can be deleted");
    }
}

#[test]
fn config_that_only_a_server_or_agent_knows_is_accepted() {
    // The runtime of an agent of others has configurations of its own.
    let foreign = with_config("wasm", "module: x\n");
    let (result, _, err) = merged(&[&foreign], None, false);
    assert!(result.is_ok(), "{err}");
    assert!(err.contains("unknown runtime 'wasm'"), "{err}");
    // Only the server renders templates.
    let template = with_config("podman", "{{all}}\n").replace(
        "    runtimeConfig",
        "    configs: {all: config}\n    runtimeConfig",
    );
    let (result, _, err) = merged(&[&template], None, false);
    assert!(result.is_ok(), "{err}");
}

#[test]
fn restarts_by_the_engine_beside_the_agent_are_warned_of() {
    let with = |runtime: &str, policy: &str, config: &str| {
        let lines: String = config
            .lines()
            .map(|line| format!("      {line}\n"))
            .collect();
        let text = format!(
            "apiVersion: v1\nworkloads:\n  w:\n    agent: A\n    runtime: {runtime}\n    restartPolicy: {policy}\n    \
             runtimeConfig: |\n{lines}"
        );
        let (result, _, err) = merged(&[&text], None, false);
        assert!(result.is_ok(), "{err}");
        assert_eq!(
            merged(&[&text], None, true).2,
            "",
            "what is there can be deleted"
        );
        err
    };
    let begin = "warn: a.yaml: workload 'w': 'runtimeConfig' at line 7 column 20: ";
    for (runtime, policy) in [("podman", "NEVER"), ("containerd", "ALWAYS")] {
        let err = with(
            runtime,
            policy,
            "image: x\ncommandOptions: [--restart, always]",
        );
        assert!(
            err.starts_with(&format!("{begin}by '--restart always' the engine starts")),
            "{err}"
        );
        assert_eq!(
            with(runtime, policy, "image: x\ncommandOptions: [--restart=no]"),
            ""
        );
    }
    let pod = "manifest: |\n  kind: Pod\n  metadata: {name: p}\n  spec: {restartPolicy: OnFailure}";
    let err = with("podman-kube", "ON_FAILURE", pod);
    assert!(
        err.starts_with(&format!(
            "{begin}podman starts the containers of pod 'p' again "
        )),
        "{err}"
    );
    assert_eq!(with("podman-kube", "NEVER", pod), "");
    assert_eq!(
        with("podman-kube", "ALWAYS", &pod.replace("OnFailure", "Never")),
        ""
    );
}

#[test]
fn unknown_keys_above_the_bound_are_only_counted() {
    let mut of_manifest = "apiVersion: v1\n".to_owned();
    let mut of_config = "image: x\n".to_owned();
    for number in 0..MANIFEST_WARNINGS_MAX + 3 {
        of_manifest.push_str(&format!("own{number}: 1\n"));
        of_config.push_str(&format!("own{number}: 1\n"));
    }
    let of_config = with_config("podman", &of_config);
    let refused = format!("{of_manifest}workloads: 1\n").replace("own", "worklods");
    for text in [of_manifest, of_config, refused] {
        let (_, _, err) = merged(&[&text], None, false);
        assert_eq!(err.lines().count(), MANIFEST_WARNINGS_MAX + 1, "{err}");
        let end = "warn: a.yaml: and 3 more of these\n";
        assert!(err.ends_with(end), "{err}");
    }
}

#[test]
fn so_many_warnings_are_shown_and_the_rest_is_counted() {
    let workload = |number| {
        format!(
            "  w{number}: {{ agent: A, runtime: podman, runtimeConfig: '{{ image: x, comandArgs: [] }}' }}\n"
        )
    };
    let workloads: String = (0..MANIFEST_WARNINGS_MAX + 3).map(workload).collect();
    let (result, _, err) = merged(
        &[&format!("apiVersion: v1\nworkloads:\n{workloads}")],
        None,
        false,
    );
    assert!(
        result.is_ok() && err.lines().count() == MANIFEST_WARNINGS_MAX + 1,
        "{err}"
    );
    assert!(
        err.ends_with("warn: a.yaml: and 3 more of these\n"),
        "{err}"
    );
}

#[test]
fn lifecycle_block_beside_runtime_config_is_refused() {
    for (version, key) in [
        ("v1", "lifecycle"),
        ("v1", "lifecyle"),
        ("v0.1", "lifecycle"),
    ] {
        let text = format!(
            "apiVersion: {version}\nworkloads:\n  w:\n    agent: A\n    runtime: podman\n    runtimeConfig: 'image: x'\n    \
             {key}: {{ready: {{file: /a}}}}\n"
        );
        let (refused, _, err) = merged(&[&text], None, false);
        let refused = refused.unwrap_err();
        let expected = format!(
            "workload 'w': the block '{key}' belongs into the text of 'runtimeConfig', not beside it"
        );
        assert!(
            refused.to_string().contains(&expected) && !err.contains("is ignored"),
            "{refused}: {err}"
        );
        let hint = "see 'a.yaml', line 7 column 5: indent it below 'runtimeConfig: |'";
        assert_eq!(refused.hint(), hint);
        assert!(
            merged(&[&text], None, true).0.is_ok(),
            "what is there can be deleted"
        );
    }
}

#[test]
fn a_runtime_that_no_agent_has_is_a_warning() {
    for (runtime, meant) in [
        ("podmn", "did you mean 'podman'?"),
        ("lxc", "agents have 'podman', 'containerd', "),
    ] {
        let text = format!(
            "apiVersion: v1\nworkloads:\n  w: {{agent: A, runtime: {runtime}, runtimeConfig: c}}\n"
        );
        let (result, _, err) = merged(&[&text], None, false);
        let expected = format!("warn: a.yaml: workload 'w': unknown runtime '{runtime}'; {meant}");
        assert!(result.is_ok() && err.starts_with(&expected), "{err}");
    }
}

#[test]
fn keys_for_others_are_left_alone() {
    let text = "apiVersion: v1\nx-common: &common {agent: A}\nworkloads:\n  w: {agent: A, runtime: podman, runtimeConfig: 'image: c', x-b: [1]}\n";
    let (result, _, err) = merged(&[text], None, false);
    assert_eq!((result.unwrap().masks.len(), err.as_str()), (1, ""));
}

/// A manifest without aliases is bounded by its length only.
#[test]
fn a_manifest_of_twenty_thousand_workloads_is_applied() {
    let config = "      image: docker.io/library/alpine:latest\n      commandArgs: [\"sleep\", \"infinity\"]\n      \
                  commandOptions: [\"--env=A=b\", \"--env=C=d\", \"--label=e=f\"]\n";
    let one = |number: usize| {
        format!(
            "  w{number}:\n    agent: A\n    runtime: podman\n    restartPolicy: ALWAYS\n    tags: {{owner: team}}\n    \
             files: [{{mountPoint: /etc/x.conf, data: x}}]\n    runtimeConfig: |\n{config}"
        )
    };
    let workloads: String = (0..20_000).map(one).collect();
    let text = format!("apiVersion: v1\nworkloads:\n{workloads}");
    assert_eq!(merged(&[&text], None, false).0.unwrap().masks.len(), 20_000);
    assert_eq!(
        Manifest::parse(&text).unwrap().state.workloads.len(),
        20_000
    );
}

#[test]
fn manifest_with_merge_keys_is_applied_as_if_written_out() {
    let common =
        "{runtime: podman, restartPolicy: ALWAYS, runtimeConfig: 'image: x', tags: {k: v}}";
    let with_keys = format!(
        "apiVersion: v1\nx-common: &common {common}\nworkloads:\n  a: {{<<: *common, agent: A}}\n  \
         b: {{agent: B, restartPolicy: NEVER, <<: [*common]}}\n"
    );
    let written = "apiVersion: v1\nworkloads:\n  \
                   a: {runtime: podman, restartPolicy: ALWAYS, runtimeConfig: 'image: x', tags: {k: v}, agent: A}\n  \
                   b: {runtime: podman, restartPolicy: NEVER, runtimeConfig: 'image: x', tags: {k: v}, agent: B}\n";
    let update = |text: &str| {
        let (update, _, err) = merged(&[text], None, false);
        assert_eq!(err, "");
        update.unwrap()
    };
    assert_eq!(update(&with_keys), update(written));
}

#[test]
fn problem_in_a_merged_mapping_is_found_at_its_line() {
    let text = "apiVersion: v1\nx-common: &common\n  runtime: podman\n  runtimeConfig: 'image: x'\n  restartPolicy: SOMETIMES\n\
                workloads:\n  a: {<<: *common, agent: A}\n";
    let error = error(&[text]);
    assert!(
        error.contains("'workloads.a.restartPolicy'") && error.contains("line 5 column"),
        "{error}"
    );
}

#[test]
fn folder_stands_for_its_yaml_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let whole = folder.path().to_str().unwrap().to_owned();
    let error = all_files(&[], std::slice::from_ref(&whole)).unwrap_err();
    assert!(
        error.to_string().ends_with("has no files '*.yaml'"),
        "{error}"
    );
    for name in ["b.yaml", "a.yaml", "c.txt"] {
        std::fs::write(path(name), "").unwrap();
    }
    let files = all_files(&["first".to_owned()], &[whole, "-".to_owned()]).unwrap();
    let expected = [
        "first".to_owned(),
        path("a.yaml"),
        path("b.yaml"),
        "-".to_owned(),
    ];
    assert_eq!(files, expected);
}

#[test]
fn agent_option_that_names_no_agent_is_to_blame() {
    for agent in [None, Some(""), Some("agent_A"), Some("{{agent}}")] {
        check_agent(agent).unwrap();
    }
    let error = check_agent(Some("my agent")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Invalid agent name 'my agent' of '--agent'"
    );
}
