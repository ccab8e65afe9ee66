//! What manifests a server takes, and the texts of errors and warnings.

use super::*;
use crate::access_rules::{AccessRule, Operation};
use crate::fields::reader::MANIFEST_WARNINGS_MAX;
use crate::workload::{AddCondition, ConfigItem, File, FileContent, RestartPolicy, Workload};
use std::collections::BTreeMap;

/// A manifest with one workload `w` that has all mandatory fields, and `extra` lines below it.
fn with(extra: &str) -> String {
    let lines: String = extra.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nworkloads:\n  w:\n    agent: A\n    runtime: podman\n    runtimeConfig: x\n{lines}"
    )
}

fn read(text: &str) -> Result<DesiredState, ManifestError> {
    Manifest::parse(text)?.into_desired_state()
}

fn workload(text: &str) -> Workload {
    let state = read(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    Workload::clone(state.workloads.values().next().expect("one workload"))
}

fn texts(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
        .collect()
}

/// A startup manifest has a budget; what large clusters start with stays within it.
#[test]
fn a_manifest_of_thousands_of_workloads_is_read() {
    const FEW: &str = "restartPolicy: ALWAYS\ntags: {owner: team}\n";
    const MANY: &str = "restartPolicy: ALWAYS\ntags: {owner: team, kind: service}\nconfigs: {c: common}\n\
                        files: [{mountPoint: /etc/x.conf, data: x}]\ncontrolInterfaceAccess: {allowRules: \
                        [{type: StateRule, operation: Read, filterMasks: [workloadStates, desiredState]}]}\n";
    for (count, fields) in [(7_500, FEW), (2_500, MANY)] {
        let lines: String = fields.lines().map(|line| format!("    {line}\n")).collect();
        let one = |number: usize| {
            let config = format!(
                "\"image: i\\ncommandOptions: [--publish={number}:80, --env=NUMBER={number}]\""
            );
            format!(
                "  w{number}:\n    agent: A\n    runtime: podman\n    runtimeConfig: {config}\n{lines}"
            )
        };
        let workloads: String = (0..count).map(one).collect();
        let text = format!("apiVersion: v1\nconfigs: {{common: text}}\nworkloads:\n{workloads}");
        assert_eq!(read(&text).unwrap().workloads.len(), count);
    }
}

/// A dashboard that many have uses such a manifest, and other implementations take it.
#[test]
fn in_v0_1_a_mapping_or_list_that_is_left_empty_has_no_entries() {
    let access = "controlInterfaceAccess:\n  allowRules:\n  - type: StateRule\n    operation: Read\n    filterMasks:\n  \
                  - {type: LogRule, workloadNames: ~}\n  denyRules:\n";
    for empty in [
        "tags:",
        "tags: ~",
        "dependencies:",
        "configs: null",
        "files:",
        "controlInterfaceAccess:",
        access,
    ] {
        let old = with(empty).replace("v1", "v0.1");
        let mut expected = workload(&with(""));
        if empty == access {
            let rules = "controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read, filterMasks: []}, \
                         {type: LogRule, workloadNames: []}]}";
            expected = workload(&with(rules));
        }
        assert_eq!(workload(&old), expected, "{empty}");
        if empty != "controlInterfaceAccess:" {
            assert!(read(&with(empty)).is_err(), "in v1 it is an error: {empty}");
        }
    }
    // Null is no value for anything else.
    for wrong in [
        "restartPolicy:",
        "configs: [a]",
        "files: [~]",
        "tags: [{key: a, value: ~}]",
    ] {
        assert!(read(&with(wrong).replace("v1", "v0.1")).is_err(), "{wrong}");
    }
    assert!(read("apiVersion: v0.1\nworkloads:\n  w:\n").is_err());
    assert!(read("apiVersion: v0.1\nconfigs:\n  key:\n").is_err());
}

/// What [`a_manifest_with_everything_is_read`] reads, with a value in each of its fields.
pub(crate) fn workload_with_everything() -> Workload {
    let mut workload = Workload::new("agent_A", "podman", "image: x");
    workload.restart_policy = RestartPolicy::OnFailure;
    workload.tags = texts(&[("owner", "me")]);
    let dependencies = [
        ("db", AddCondition::Running),
        ("init", AddCondition::Succeeded),
        ("bad", AddCondition::Failed),
    ];
    workload.dependencies = dependencies
        .map(|(name, condition)| (name.to_owned(), condition))
        .into();
    workload.configs = texts(&[("alias", "key")]);
    let file = |mount_point: &str, content| File {
        mount_point: mount_point.into(),
        content,
    };
    workload.files = vec![
        file("/etc/a", FileContent::Data("text".into())),
        file("/etc/b", FileContent::BinaryData("aGk=".into())),
        file("/etc/c", FileContent::Data(String::new())),
    ];
    let state_rule = |operation, mask: &str| AccessRule::State {
        operation,
        filter_masks: vec![mask.into()],
    };
    let log_rule = |name: &str| AccessRule::Log {
        workload_names: vec![name.into()],
    };
    let access = &mut workload.control_interface_access;
    access.allow_rules = vec![
        state_rule(Operation::Read, "desiredState.workloads.*"),
        log_rule("web*"),
    ];
    access.deny_rules = vec![state_rule(Operation::Nothing, "*"), log_rule("*")];
    workload
}

#[test]
fn a_manifest_with_everything_is_read() {
    let text = "\
apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    runtimeConfig: |
      image: x
    restartPolicy: ON_FAILURE
    tags: {owner: me}
    dependencies: {db: ADD_COND_RUNNING, init: ADD_COND_SUCCEEDED, bad: ADD_COND_FAILED}
    configs: {alias: key}
    files:
    - {mountPoint: /etc/a, data: \"text\"}
    - {mountPoint: /etc/b, binaryData: \"aGk=\"}
    - {mountPoint: /etc/c, data: ''}
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: Read, filterMasks: [\"desiredState.workloads.*\"]}
      - {type: LogRule, workloadNames: [\"web*\"]}
      denyRules:
      - {type: StateRule, operation: Nothing, filterMasks: ['*']}
      - {type: LogRule, workloadNames: ['*']}
configs:
  key: value
  list: [a, {b: c}]
";
    let state = read(text).unwrap();
    assert_eq!(state.api_version, "v1");
    assert_eq!(*state.workloads["web"], workload_with_everything());
    let text = |text: &str| ConfigItem::Text(text.to_owned());
    let list = ConfigItem::List(vec![
        text("a"),
        ConfigItem::Map([("b".to_owned(), text("c"))].into()),
    ]);
    assert_eq!(
        state.configs,
        [("key".to_owned(), text("value")), ("list".to_owned(), list)].into()
    );
}

#[test]
fn accepted_top_levels() {
    for (text, workloads, configs) in [
        ("apiVersion: v1\n", 0, 0),
        ("apiVersion: v0.1\nworkloads:\nconfigs: ~\n", 0, 0),
        (
            "apiVersion: v1\nworkloads: {}\nconfigs: {}\nother: [1, 2]\n",
            0,
            0,
        ),
        (
            "{\"apiVersion\": \"v1\", \"configs\": {\"a\": \"b\"}}",
            0,
            1,
        ),
        (
            "%YAML 1.2\n---\napiVersion: v1\nworkloads: {w: {agent: a, runtime: r, runtimeConfig: c}}\n...\n",
            1,
            0,
        ),
    ] {
        let state = read(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert_eq!(
            (state.workloads.len(), state.configs.len()),
            (workloads, configs),
            "{text}"
        );
    }
}

#[test]
fn scalars_of_text_fields_are_their_source_text() {
    let text =
        "apiVersion: v1\nworkloads:\n  0x10: {agent: 1.10, runtime: true, runtimeConfig: 0o7}\n";
    let state = read(text).unwrap();
    assert_eq!(
        state.workloads["0x10"].as_ref(),
        &Workload::new("1.10", "true", "0o7")
    );
    let nulls = "apiVersion: v1\nworkloads:\n  ~: {agent: ~, runtime: , runtimeConfig: null}\n";
    assert_eq!(workload(nulls), Workload::new("", "", ""));
    let stripped = "apiVersion: v1\nworkloads:\n  w: {agent: a, runtime: r, runtimeConfig: \"\\u2003 x\\n\\n\"}\n";
    assert_eq!(&*workload(stripped).runtime_config, "x");
}

#[test]
fn accepted_fields() {
    let base = Workload::new("A", "podman", "x");
    let changed = |change: &dyn Fn(&mut Workload)| {
        let mut workload = base.clone();
        change(&mut workload);
        workload
    };
    let file = |content| {
        vec![File {
            mount_point: "/m".into(),
            content,
        }]
    };
    let state_rule = |operation| AccessRule::State {
        operation,
        filter_masks: vec!["a".into()],
    };
    for (extra, expected) in [
        ("image: unknown keys are ignored", base.clone()),
        (
            "restartPolicy: ALWAYS",
            changed(&|w| w.restart_policy = RestartPolicy::Always),
        ),
        ("restartPolicy: NEVER", base.clone()),
        ("tags: {}", base.clone()),
        (
            "tags: {1: '2', a: ''}",
            changed(&|w| w.tags = texts(&[("1", "2"), ("a", "")])),
        ),
        ("dependencies: {}", base.clone()),
        ("configs: {}", base.clone()),
        (
            "configs: {a: 1}",
            changed(&|w| w.configs = texts(&[("a", "1")])),
        ),
        ("files: []", base.clone()),
        (
            "files: [{mountPoint: /m, data: d, binaryData: b, mode: 1}]",
            changed(&|w| w.files = file(FileContent::Data("d".into()))),
        ),
        (
            "files: [{mountPoint: /m, data: ''}]",
            changed(&|w| w.files = file(FileContent::Data(String::new()))),
        ),
        ("controlInterfaceAccess:", base.clone()),
        ("controlInterfaceAccess: {}", base.clone()),
        (
            "controlInterfaceAccess: {allowRules: [], rules: []}",
            base.clone(),
        ),
        (
            "controlInterfaceAccess: {denyRules: [{type: StateRule, operation: Nothing, filterMask: [a]}]}",
            changed(&|w| {
                w.control_interface_access.deny_rules = vec![state_rule(Operation::Nothing)]
            }),
        ),
        (
            "controlInterfaceAccess: {allowRules: [{type: LogRule, workloadNames: []}]}",
            changed(&|w| {
                w.control_interface_access.allow_rules = vec![AccessRule::Log {
                    workload_names: Vec::new(),
                }];
            }),
        ),
        (
            "a: &anchor {owner: me}\ntags: *anchor",
            changed(&|w| w.tags = texts(&[("owner", "me")])),
        ),
        (
            "base: &base {restartPolicy: ALWAYS, runtime: other}\n<<: *base",
            changed(&|w| w.restart_policy = RestartPolicy::Always),
        ),
    ] {
        assert_eq!(workload(&with(extra)), expected, "{extra}");
    }
}

#[test]
fn refused_manifests_name_the_field_and_the_place() {
    let top = |text: &str| text.to_owned();
    for (text, message) in [
        (top(""), "missing field `apiVersion` at line 1 column 1"),
        (
            top("workloads: {}\n"),
            "missing field `apiVersion` at line 1 column 1",
        ),
        (
            top("[1]\n"),
            "expected a mapping ('key: value', without '- '), found a list at line 1 column 1",
        ),
        (
            top("text"),
            "expected a mapping ('key: value'), found text 'text' at line 1 column 1",
        ),
        (
            top("apiVersion: {}\n"),
            "apiVersion: expected text, found a mapping at line 1 column 13",
        ),
        (
            top("apiVersion: v1\nworkloads: []\n"),
            "workloads: expected a mapping ('key: value', without '- '), found a list at line 2 column 12",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  w:\n"),
            "workloads.w: expected a mapping ('key: value'), found nothing at line 3 column 5",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  w: {runtime: r, runtimeConfig: c}\n"),
            "workloads.w: missing field `agent` at line 3 column 6",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  w: {agent: a, runtimeConfig: c}\n"),
            "workloads.w: missing field `runtime` at line 3 column 6",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  w: {agent: a, runtime: r}\n"),
            "workloads.w: missing field `runtimeConfig` at line 3 column 6",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  w: {agent: [], runtime: r, runtimeConfig: c}\n"),
            "workloads.w.agent: expected text, found a list at line 3 column 14",
        ),
        (
            top("apiVersion: v1\nworkloads:\n  [w]: {}\n"),
            "workloads: a list found as key, expected text at line 3 column 3",
        ),
        (
            with("restartPolicy: never"),
            "workloads.w.restartPolicy: unknown value 'never', expected NEVER, ON_FAILURE or ALWAYS at line 7 column 20",
        ),
        (
            with("restartPolicy:"),
            "workloads.w.restartPolicy: expected NEVER, ON_FAILURE or ALWAYS, found nothing at line 7 column 19",
        ),
        (
            with("tags: {a: 1}"),
            "workloads.w.tags.a: expected text (put it in quotes), found number 1 at line 7 column 15",
        ),
        (
            with("tags: {a: true}"),
            "workloads.w.tags.a: expected text (put it in quotes), found boolean true at line 7 column 15",
        ),
        (
            with("").replace("runtimeConfig: x", "runtimeConfig: {image: x}"),
            "workloads.w.runtimeConfig: expected text (write `runtimeConfig: |` and leave the lines below \
             it as they are), found a mapping at line 6 column 20",
        ),
        (
            with("tags: {a: }"),
            "workloads.w.tags.a: expected text, found nothing at line 7 column 15",
        ),
        (
            with("dependencies:"),
            "workloads.w.dependencies: expected a mapping ({} for an empty one), found nothing at line 7 column 18",
        ),
        (
            with("dependencies: []"),
            "workloads.w.dependencies: expected a mapping ('key: value', without '- '), found a list at line 7 column 19",
        ),
        (
            with("dependencies: {db: RUNNING}"),
            "workloads.w.dependencies.db: unknown value 'RUNNING', expected \
             ADD_COND_RUNNING, ADD_COND_SUCCEEDED or ADD_COND_FAILED at line 7 column 24",
        ),
        (
            with("configs: ~"),
            "workloads.w.configs: expected a mapping ({} for an empty one), found null at line 7 column 14",
        ),
        (
            with("configs: [a]"),
            "workloads.w.configs: expected a mapping ('key: value', without '- '), found a list at line 7 column 14",
        ),
        (
            with("files: ~"),
            "workloads.w.files: expected a list ([] for an empty one), found null at line 7 column 12",
        ),
        (
            with("files: {}"),
            "workloads.w.files: expected a list ('- ' before each item), found a mapping at line 7 column 12",
        ),
        (
            with("files: [{data: d}]"),
            "workloads.w.files[0]: missing field `mountPoint` at line 7 column 13",
        ),
        (
            with("files: [{mountPoint: /m}]"),
            "workloads.w.files[0]: missing field `data` or `binaryData` at line 7 column 13",
        ),
        (
            with("files: [{mountPoint: /m, data: 1}]"),
            "workloads.w.files[0].data: expected text (put it in quotes), found number 1 at line 7 column 36",
        ),
        (
            with("controlInterfaceAccess: []"),
            "workloads.w.controlInterfaceAccess: expected a mapping ('key: value', without '- '), found a list at line 7 column 29",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(
            matches!(error, ManifestError::Invalid { .. }),
            "{text}: {error:?}"
        );
        assert_eq!(error.to_string(), message, "{text}");
    }
}

#[test]
fn refused_access_rules() {
    let place = "workloads.w.controlInterfaceAccess.allowRules[0]";
    for (rule, message) in [
        ("{operation: Read, filterMasks: []}", "missing field `type`"),
        (
            "{type: Rule}",
            "unknown value 'Rule', expected StateRule or LogRule",
        ),
        (
            "{type: StateRule, filterMasks: [a]}",
            "missing field `operation`",
        ),
        (
            "{type: StateRule, operation: Read}",
            "missing field `filterMasks`",
        ),
        (
            "{type: StateRule, operation: read, filterMasks: []}",
            "expected Nothing, Read, Write or ReadWrite",
        ),
        (
            "{type: StateRule, operation: Read, filterMask: [a], filterMasks: [a]}",
            "duplicate field `filterMasks` (`filterMask` is its old name)",
        ),
        (
            "{type: StateRule, operation: Read, filterMasks: a}",
            "expected a list ('- ' before each item), found text 'a'",
        ),
        ("{type: LogRule}", "missing field `workloadNames`"),
        (
            "LogRule",
            "expected a mapping ('key: value'), found text 'LogRule'",
        ),
    ] {
        let error = read(&with(&format!(
            "controlInterfaceAccess:\n  allowRules:\n  - {rule}"
        )))
        .unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(place) && text.contains(message),
            "{rule}: {text}"
        );
        assert!(text.contains(" at line 9 column "), "{rule}: {text}");
    }
}

#[test]
fn config_values_must_be_texts_lists_or_mappings() {
    for (value, message) in [
        (
            "1",
            "configs.k: expected text (put it in quotes), a list or a mapping, found number 1 at line 3 column 6",
        ),
        (
            "~",
            "configs.k: expected text, a list or a mapping, found null at line 3 column 6",
        ),
        (
            "[a, {b: false}]",
            "configs.k[1].b: expected text (put it in quotes), a list or a mapping, found boolean false \
             at line 3 column 14",
        ),
    ] {
        let error = read(&format!("apiVersion: v1\nconfigs:\n  k: {value}\n")).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn yaml_that_cannot_be_read_is_a_class_of_its_own() {
    for (text, part) in [
        ("apiVersion: [", "did not find expected node content"),
        (
            "apiVersion: v1\n---\napiVersion: v1\n",
            "more than one document is not supported",
        ),
        (
            "apiVersion: v1\napiVersion: v1\n",
            "duplicate entry with key \"apiVersion\" at line 2 column 1",
        ),
        (
            "apiVersion: v1\nworkloads:\n  w: {}\n  v: {}\n  w: {}\n",
            "workloads: duplicate entry with key \"w\" at line 5 column 3",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(
            matches!(error, ManifestError::Unreadable { .. }),
            "{text}: {error:?}"
        );
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn tags_have_the_shape_of_the_version() {
    let tags = |version: &str, tags: &str| {
        format!(
            "apiVersion: {version}\nworkloads:\n  a: {{agent: A, runtime: r, runtimeConfig: c, tags: {tags}}}\n"
        )
    };
    let v1 = "For API version 'v1', tags must be specified as a mapping (key-value pairs). \
              Found tags as sequence for workload 'a'.";
    let v01 = "For API version 'v0.1', tags must be specified as a sequence (list of key-value entries). \
               Found tags as mapping for workload 'a'.";
    let scalar = v1.replace("sequence", "number 5");
    for (text, message) in [
        (tags("v1", "[]"), v1),
        (tags("v1", "5"), &scalar),
        (tags("v0.1", "{}"), v01),
    ] {
        let error = read(&text).unwrap_err();
        assert_eq!(error.to_string(), message);
        let ManifestError::TagShape {
            location: Some(at), ..
        } = error
        else {
            panic!("{text}: {error:?}")
        };
        assert_eq!(at.line, 3);
    }
    assert!(matches!(
        read(&tags("v1", "~")),
        Err(ManifestError::TagShape { .. })
    ));
    let list = "[{key: a, value: b}, {key: c, value: ''}]";
    assert_eq!(
        workload(&tags("v0.1", list)).tags,
        texts(&[("a", "b"), ("c", "")])
    );
    assert!(
        read(&tags("v0.1", "[{key: a, value: 1}]"))
            .unwrap_err()
            .to_string()
            .contains("tags[0].value: expected text (put it in quotes), found number 1")
    );
    assert!(
        read(&tags("v0.1", "[{key: a}]"))
            .unwrap_err()
            .to_string()
            .contains("missing field `value`")
    );
    // Other versions are refused by the receiver, not for the shape of their tags.
    for shape in ["{a: b}", "[{key: a, value: b}]"] {
        assert_eq!(read(&tags("v2", shape)).unwrap().api_version, "v2");
    }
}

#[test]
fn unknown_keys_are_warned_about_with_the_nearest_name() {
    let text = "\
apiVersion: v1
workload: {}
workloads:
  web:
    agnet: x
    agent: A
    runtime: r
    runtimeConfig: c
    files: [{mountPoint: /m, data: d, mode: 7}]
    controlInterfaceAccess:
      allowRules: [{type: LogRule, workloadNames: [], operation: Read}]
";
    let warnings: Vec<String> = Manifest::parse(text)
        .unwrap()
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        warnings,
        [
            "unknown key 'workload' is ignored at line 2 column 1; did you mean 'workloads'?",
            "unknown key 'workloads.web.agnet' is ignored at line 5 column 5; did you mean 'agent'?",
            "unknown key 'workloads.web.files[0].mode' is ignored at line 9 column 39",
            "unknown key 'workloads.web.controlInterfaceAccess.allowRules[0].operation' is ignored \
             at line 11 column 55",
        ]
    );
    let many: String = (0..1000).map(|index| format!("x{index}: 1\n")).collect();
    let mut warned = Vec::new();
    let warn = |warning: &dyn std::fmt::Display| warned.push(warning.to_string());
    Manifest::parse_and_warn(&format!("apiVersion: v1\n{many}"), warn).unwrap();
    assert_eq!(warned.len(), MANIFEST_WARNINGS_MAX + 1);
    assert_eq!(warned[MANIFEST_WARNINGS_MAX], "and 980 more of these");
}

#[test]
fn workload_without_agent_is_kept_until_one_is_set() {
    let manifest =
        Manifest::parse("apiVersion: v1\nworkloads: {w: {runtime: r, runtimeConfig: c}}\n")
            .unwrap();
    assert_eq!(
        manifest.without_agent.as_ref().map(|(name, _)| &**name),
        Some("w")
    );
    assert!(manifest.into_desired_state().is_err());
}
