//! What the JSON schema refuses, in the words of its validators.

use super::*;
use crate::fields::table::STATE;
use crate::runtime_config::CONTAINER;
use crate::yaml::{self, Origin};

fn violations(text: &str) -> Vec<String> {
    let root = yaml::read(text, Origin::Own).unwrap().root;
    let problems = read(&root, &STATE, DocumentKind::Schema).problems;
    problems
        .iter()
        .map(|problem| format!("'{}': {}", problem.path, problem.message))
        .collect()
}

/// Violations of a workload that has all mandatory fields and `extra`, relative to it.
fn of_workload(extra: &str) -> Vec<String> {
    let text =
        format!("{{apiVersion: v1, workloads: {{w: {{runtime: r, runtimeConfig: c, {extra}}}}}}}");
    violations(&text)
        .iter()
        .map(|violation| violation.replace("/workloads/w", ""))
        .collect()
}

/// A workload with `extra` has one violation with this text, or none.
fn check(extra: &str, violation: Option<&str>) {
    let found = of_workload(extra);
    assert_eq!(
        found.len(),
        usize::from(violation.is_some()),
        "{extra}: {found:?}"
    );
    assert!(
        violation.is_none_or(|part| found[0].contains(part)),
        "{extra}: {found:?}"
    );
}

#[test]
fn top_levels() {
    let long = "x".repeat(64);
    for (text, expected) in [
        ("apiVersion: v1", vec![]),
        ("apiVersion: v1\nworkloads:\nconfigs: ~\nother: 1", vec![]),
        ("", vec!["'': null is not of type \"object\""]),
        ("[]", vec!["'': a list is not of type \"object\""]),
        ("{}", vec!["'': \"apiVersion\" is a required property"]),
        (
            "apiVersion: v2",
            vec!["'/apiVersion': \"v2\" is not valid, expected v1"],
        ),
        (
            "apiVersion: 1",
            vec!["'/apiVersion': 1 is not of type \"string\" (put it in quotes)"],
        ),
        (
            "apiVersion: v1\nworkloads: 3",
            vec!["'/workloads': 3 is not of type \"object\""],
        ),
        (
            "apiVersion: v1\nworkloads: {w: ~}",
            vec!["'/workloads/w': null is not of type \"object\""],
        ),
        (
            "apiVersion: v1\nworkloads: {a/b: {runtime: 1}}",
            vec![
                "'/workloads/a~1b': \"a/b\" is not valid, expected letters, digits, '_' and '-'",
                "'/workloads/a~1b/runtime': 1 is not of type \"string\" (put it in quotes)",
                "'/workloads/a~1b': \"runtimeConfig\" is a required property",
            ],
        ),
        (
            &format!("apiVersion: v1\nconfigs: {{{long}: a, '': b}}"),
            vec![
                &format!("'/configs/{long}': \"{long}\" is longer than 63 characters"),
                "'/configs/': \"\" is shorter than 1 character",
            ],
        ),
        (
            "apiVersion: v1\nconfigs: {a: [t, {b: 1}], c: ~}",
            vec![
                "'/configs/a/1/b': 1 is not of types \"array\", \"object\", \"string\" (put it in quotes to make it text)",
                "'/configs/c': null is not of types \"array\", \"object\", \"string\" (put it in quotes to make it text)",
            ],
        ),
    ] {
        assert_eq!(violations(text), expected, "{text}");
    }
}

#[test]
fn workloads() {
    for (extra, expected) in [
        (
            "agent: '', restartPolicy: ON_FAILURE, tags: {a.b: c}, dependencies: {x: ADD_COND_FAILED}, note: 1",
            None,
        ),
        ("agent: 'a{{b.c}}-{{d}}'", None),
        ("agent: ~", Some("'/agent': null is not of type \"string\"")),
        (
            "agent: 'a.b'",
            Some(
                "'/agent': \"a.b\" is not valid, expected letters, digits, '_', '-' and templates",
            ),
        ),
        (
            "agent: '{{a}'",
            Some("'/agent': \"{{a}\" is not valid, expected letters"),
        ),
        (
            "restartPolicy: SOMETIMES",
            Some(
                "'/restartPolicy': \"SOMETIMES\" is not one of \"NEVER\", \"ON_FAILURE\", \"ALWAYS\"",
            ),
        ),
        (
            "restartPolicy: ~",
            Some("'/restartPolicy': null is not one of"),
        ),
        (
            "tags: {a: 1}",
            Some("'/tags/a': 1 is not of type \"string\" (put it in quotes)"),
        ),
        (
            "tags: {a: 1.10}",
            Some("'/tags/a': 1.10 is not of type \"string\" (put it in quotes)"),
        ),
        (
            "tags: {a: true}",
            Some("'/tags/a': true is not of type \"string\" (put it in quotes)"),
        ),
        ("tags: {a: on, b: yes, c: 2026-01-31}", None),
        (
            "tags: {a: [x]}",
            Some("'/tags/a': a list is not of type \"string\""),
        ),
        (
            "agent: 1",
            Some("'/agent': 1 is not of type \"string\" (put it in quotes)"),
        ),
        (
            "configs: {a: 1}",
            Some("'/configs/a': 1 is not of type \"string\" (put it in quotes)"),
        ),
        (
            "files: [{mountPoint: /m, data: 5}]",
            Some("'/files/0/data': 5 is not of type \"string\" (put it in quotes)"),
        ),
        (
            "files: [{mountPoint: /m, data: {a: b}}]",
            Some("(write `data: |` and leave the lines below it as they are)"),
        ),
        (
            "dependencies: ~",
            Some("'/dependencies': null is not of type \"object\""),
        ),
        ("configs: {a: b}", None),
        (
            "configs: {'a c': b}",
            Some("'/configs/a c': \"a c\" is not valid, expected letters, digits, '_' and '-'"),
        ),
        (
            "files: [{mountPoint: /m, data: d}, {mountPoint: /m, binaryData: d}]",
            None,
        ),
        (
            "files: {}",
            Some("'/files': a mapping is not of type \"array\""),
        ),
        (
            "files: [{mountPoint: /m}]",
            Some("'/files/0': \"data\" or \"binaryData\" is a required property"),
        ),
    ] {
        check(extra, expected);
    }
}

#[test]
fn structure_in_place_of_a_text_is_named_with_the_way_out() {
    for (fields, expected) in [
        (
            "runtime: r, runtimeConfig: {image: x}",
            "'/workloads/w/runtimeConfig': a mapping is not of type \"string\" (write `runtimeConfig: |` and leave the \
             lines below it as they are)",
        ),
        (
            "runtime: r, runtimeConfig: [x]",
            "'/workloads/w/runtimeConfig': a list is not of type \"string\" (write `runtimeConfig: |` and leave the lines \
             below it as they are)",
        ),
        (
            "runtime: r, runtimeConfig: 5",
            "'/workloads/w/runtimeConfig': 5 is not of type \"string\" (put it in quotes)",
        ),
        (
            "runtime: r, runtimeConfig: ~",
            "'/workloads/w/runtimeConfig': null is not of type \"string\"",
        ),
        (
            "runtime: 0x1, runtimeConfig: c",
            "'/workloads/w/runtime': 0x1 is not of type \"string\" (put it in quotes)",
        ),
        (
            "runtime: {}, runtimeConfig: c",
            "'/workloads/w/runtime': a mapping is not of type \"string\"",
        ),
    ] {
        let text = format!("{{apiVersion: v1, workloads: {{w: {{{fields}}}}}}}");
        assert_eq!(violations(&text), [expected], "{fields}");
    }
}

#[test]
fn access_rules() {
    for (rule, expected) in [
        (
            "{type: StateRule, operation: ReadWrite, filterMasks: ['*', a.*.b, a]}",
            None,
        ),
        ("{type: StateRule, operation: Read, filterMasks: []}", None),
        (
            "{type: LogRule, workloadNames: ['*', 'a*', '*a', a-b, 'a*b']}",
            None,
        ),
        ("{}", Some(": \"type\" is a required property")),
        (
            "{type: Rule}",
            Some("/type': \"Rule\" is not one of \"StateRule\", \"LogRule\""),
        ),
        (
            "{type: StateRule, operation: Read, filterMask: [a]}",
            Some(
                ": \"filterMasks\" is a required property (\"filterMask\" is its old name, rename it)",
            ),
        ),
        (
            "{type: StateRule, operation: read, filterMasks: []}",
            Some("/operation': \"read\" is not one of \"Nothing\""),
        ),
        (
            "{type: StateRule, operation: Read, filterMasks: [a.]}",
            Some("/filterMasks/0': \"a.\" is not valid, expected names or '*'"),
        ),
        (
            "{type: StateRule, operation: Read, filterMasks: ['']}",
            Some("/filterMasks/0': \"\" is not valid, expected names or '*'"),
        ),
        (
            "{type: LogRule, workloadNames: ['']}",
            Some("/workloadNames/0': \"\" is shorter than 1 character"),
        ),
        (
            "{type: LogRule, workloadNames: ['a*b*']}",
            Some("/workloadNames/0': \"a*b*\" is not valid, expected"),
        ),
    ] {
        check(
            &format!("controlInterfaceAccess: {{allowRules: [{rule}]}}"),
            expected,
        );
    }
    let log_rule = |name: &str| {
        of_workload(&format!(
            "controlInterfaceAccess: {{denyRules: [{{type: LogRule, workloadNames: [{name}]}}]}}"
        ))
    };
    assert_eq!(log_rule(&"x".repeat(64)), [""; 0]);
    assert_eq!(log_rule(&"x".repeat(65)).len(), 1);
}

fn reading(text: &str, object: &'static Object, rules: DocumentKind) -> ReadDocument {
    let root = yaml::read(text, Origin::Own).unwrap().root;
    read(&root, object, rules)
}

#[test]
fn problems_above_the_bound_are_only_counted() {
    for (count, more) in [(20, 0), (21, 1), (25, 5)] {
        let mut text = "apiVersion: v1\nworkloads:\n".to_owned();
        for number in 0..count {
            text.push_str(&format!("  w{number}: 1\n"));
        }
        let found = reading(&text, &STATE, DocumentKind::Manifest);
        assert_eq!(found.problems.len(), MANIFEST_WARNINGS_MAX, "{count}");
        assert_eq!(found.more_problems, more, "{count}");
    }
}

#[test]
fn unknown_keys_are_bounded_only_in_texts_of_engines() {
    let mut text = "apiVersion: v1\nimage: x\n".to_owned();
    for number in 0..25 {
        text.push_str(&format!("own{number}: 1\n"));
    }
    let engine = reading(&text, &CONTAINER, DocumentKind::Engine);
    assert_eq!(engine.unknown.len(), MANIFEST_WARNINGS_MAX);
    let manifest = reading(&text, &STATE, DocumentKind::Manifest);
    assert_eq!(manifest.unknown.len(), 26); // With the image.
}
