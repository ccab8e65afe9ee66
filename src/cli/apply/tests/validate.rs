//! What `ank validate` finds in manifests.

use super::*;
use ankaios_model::manifest::Manifest;

fn state(workloads: &str) -> DesiredState {
    Manifest::parse(&format!("apiVersion: v1\n{workloads}"))
        .unwrap()
        .state
}

fn workload(further: &str) -> String {
    format!("{{ runtime: podman, agent: A, runtimeConfig: 'image: x'{further} }}")
}

#[test]
fn all_errors_of_a_server_are_named() {
    let (good, long) = (workload(""), "w".repeat(64));
    let text = format!(
        "workloads: {{ a: {}, b: {}, {long}: {good} }}",
        workload(", dependencies: { b: ADD_COND_RUNNING }"),
        workload(", dependencies: { a: ADD_COND_SUCCEEDED }"),
    );
    let errors = errors(&state(&text));
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors[0].starts_with(&format!("workload '{long}': ")),
        "{errors:?}"
    );
    assert_eq!(
        errors[1],
        "workload dependency 'a' is part of a cycle. It is: a -> b -> a"
    );
}

#[test]
fn what_templates_lead_to_is_left_to_the_server() {
    let text = "workloads: { a: { runtime: podman, agent: '{{c.agent}}', runtimeConfig: '{{c.all}}', configs: { c: c } } }\n\
                configs: { c: { agent: A, all: 'image: x' } }";
    assert_eq!(
        (errors(&state(text)), unknown_references(&state(text))),
        (Vec::new(), Vec::new())
    );
}

#[test]
fn what_no_manifest_has_is_a_warning_with_the_nearest_name() {
    let text = format!(
        "workloads: {{ storage: {}, web: {} }}\nconfigs: {{ ports: '1' }}",
        workload(""),
        workload(
            ", dependencies: { storag: ADD_COND_RUNNING, other: ADD_COND_RUNNING }, configs: { p: port }"
        ),
    );
    let expected = [
        "workload 'web' needs 'other', which is in no manifest",
        "workload 'web' needs 'storag', which is in no manifest; did you mean 'storage'?",
        "workload 'web' uses the config 'port', which is in no manifest; did you mean 'ports'?",
    ];
    assert_eq!(unknown_references(&state(&text)), expected);
    assert_eq!(errors(&state(&text)), [""; 0]);
}

/// Validates files of these texts, named `0.yaml`, `1.yaml`, ..., and a missing one where a text is
/// empty.
fn validated(texts: &[&str], strict: bool) -> (ExitCode, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = |(number, text): (usize, &&str)| {
        let path = folder.path().join(format!("{number}.yaml"));
        if !text.is_empty() {
            std::fs::write(&path, text).unwrap();
        }
        path.to_str().unwrap().to_owned()
    };
    let manifests: Vec<String> = texts.iter().enumerate().map(file).collect();
    let arguments = ValidateArguments {
        files: Vec::new(),
        agent: None,
        strict,
        manifests,
    };
    let played = play(None, [], |_, output| validate(&arguments, output));
    let err = played
        .err
        .replace(&format!("{}/", folder.path().display()), "");
    (played.result.unwrap(), played.out, err)
}

#[test]
fn wrong_name_is_reported_with_its_own_line() {
    let body = "    runtime: podman\n    agent: A\n    runtimeConfig: 'image: x'\n";
    for (text, line) in [
        (
            format!("apiVersion: v1\nworkloads:\n  my.app:\n{body}"),
            "line 3 ",
        ),
        (
            format!("apiVersion: v1\nworkloads:\n  w:\n{body}configs:\n  a.b:\n    c: d\n"),
            "line 8 ",
        ),
    ] {
        let (code, _, err) = validated(&[&text], false);
        assert_eq!(code, ExitCode::Failed);
        assert!(err.contains(line), "{err}");
    }
}

#[test]
fn errors_of_all_files_are_named() {
    let bad = "apiVersion: v1\nworkloads:\n  web: { runtime: podman, agent: A }\n";
    let worse = "apiVersion: v1\nworkloads:\n  a: { runtime: podman, agent: A, runtimeConfig: \"image: x\\nlifecycle: { redy: {} }\" }\n  \
                 b: { runtime: podman, agent: A, runtimeConfig: \"image: x\\nlifecycle: { alve: {} }\" }\n";
    let (code, out, err) = validated(&[bad, "", worse, "- x"], false);
    assert_eq!((code, out.as_str()), (ExitCode::Failed, ""));
    for named in [
        "0.yaml",
        "'1.yaml' not found",
        "2.yaml: workload 'a': ",
        "2.yaml: workload 'b': ",
        "3.yaml",
    ] {
        assert!(err.contains(named), "{named}: {err}");
    }
    assert_eq!(err.matches("error: ").count(), 5, "{err}");
}

// [utest->swdd~cli-refuses-what-no-agent-can-run~1]
#[test]
fn config_that_no_agent_can_run_is_an_error_with_its_place() {
    let text = "apiVersion: v1\nworkloads:\n  w: { runtime: podman, runtimeConfig: 'imag: x' }\n";
    let (code, out, err) = validated(&[text], false);
    assert_eq!((code, out.as_str()), (ExitCode::Failed, ""));
    let expected = "warn: 0.yaml: unknown key 'workloads.w.runtimeConfig.imag' is ignored; did you mean 'image'?\n\
                    error: Invalid manifest data provided: 0.yaml: workload 'w': 'runtimeConfig' cannot be run: missing field `image` (line 1 column 1 of runtimeConfig)\n\
                    hint: see '0.yaml', line 3 column 40\n\
                    error: No agent name specified -> use '--agent' option to specify!\n\
                    hint: workload 'w' in '0.yaml' has no key 'agent'\n";
    assert_eq!(err, expected);
}

#[test]
fn warnings_are_errors_only_with_strict() {
    let unknown = "apiVersion: v1\nworkloads:\n  web: { runtime: podmn, agent: A, runtimeConfig: 'image: x' }\n";
    let (code, out, err) = validated(&[unknown], false);
    assert_eq!(
        (code, out.as_str()),
        (ExitCode::Success, "Valid: 1 workload, 0 configs.\n")
    );
    assert!(
        err.contains("unknown runtime 'podmn'; did you mean 'podman'?"),
        "{err}"
    );
    let (code, out, err) = validated(&[unknown], true);
    assert_eq!((code, out.as_str()), (ExitCode::Failed, ""));
    assert!(err.contains("error: valid, but with 1 warning\n"), "{err}");
    let good = format!("apiVersion: v1\nworkloads: {{ w: {} }}", workload(""));
    assert_eq!(validated(&[&good], true).0, ExitCode::Success);
}
