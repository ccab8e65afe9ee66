//! What the JSON schema refuses, in words of users.

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
        .map(|violation| violation.replace("workloads.w", ""))
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

/// Each problem names its path. With a long key above them, they took gigabytes.
#[test]
fn long_key_is_shortened_in_each_problem_below_it() {
    let key = "k".repeat(1000);
    let workload = "{runtime: [], agent: [], runtimeConfig: [], unknown: 1}";
    let text = format!("{{apiVersion: v1, workloads: {{{key}: {workload}}}}}");
    let root = yaml::read(&text, Origin::Own).unwrap().root;
    let found = read(&root, &STATE, DocumentKind::Manifest);
    assert_eq!(found.unknown.len(), 1);
    assert!(found.unknown[0].path.len() < 300);
    assert!(found.problems.len() > 1);
    for problem in &found.problems {
        assert!(problem.path.len() < 300 && problem.message.len() < 400);
    }
}

#[test]
fn top_levels() {
    let long = "x".repeat(64);
    for (text, expected) in [
        ("apiVersion: v1", vec![]),
        ("apiVersion: v1\nworkloads:\nconfigs: ~\nother: 1", vec![]),
        (
            "",
            vec!["'': expected a mapping ('key: value'), found nothing"],
        ),
        (
            "[]",
            vec!["'': expected a mapping ('key: value', without '- '), found a list"],
        ),
        ("{}", vec!["'': missing field `apiVersion`"]),
        (
            "apiVersion: v2",
            vec!["'apiVersion': expected v1, found 'v2'"],
        ),
        (
            "apiVersion: 1",
            vec!["'apiVersion': expected text (put it in quotes), found number 1"],
        ),
        (
            "apiVersion: v1\nworkloads: 3",
            vec!["'workloads': expected a mapping ('key: value'), found number 3"],
        ),
        (
            "apiVersion: v1\nworkloads: {w: ~}",
            vec!["'workloads.w': expected a mapping ('key: value'), found null"],
        ),
        (
            "apiVersion: v1\nworkloads: {a/b: {runtime: 1}}",
            vec![
                "'workloads.a/b': expected letters, digits, '_' and '-', found 'a/b'",
                "'workloads.a/b.runtime': expected text (put it in quotes), found number 1",
                "'workloads.a/b': missing field `runtimeConfig`",
            ],
        ),
        (
            &format!("apiVersion: v1\nconfigs: {{{long}: a, '': b}}"),
            vec![
                &format!("'configs.{long}': expected at most 63 characters, found '{long}'"),
                "'configs.': expected letters, digits, '_' and '-', found an empty text",
            ],
        ),
        (
            "apiVersion: v1\nconfigs: {a: [t, {b: 1}], c: ~}",
            vec![
                "'configs.a[1].b': expected text (put it in quotes), a list or a mapping, found number 1",
                "'configs.c': expected text, a list or a mapping, found null",
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
        ("agent: ~", Some("'.agent': expected text, found null")),
        (
            "agent: 'a.b'",
            Some(
                "'.agent': expected letters, digits, '_', '-' and templates as {{config}}, found 'a.b'",
            ),
        ),
        (
            "agent: '{{a}'",
            Some(
                "'.agent': expected letters, digits, '_', '-' and templates as {{config}}, found '{{a}'",
            ),
        ),
        (
            "restartPolicy: SOMETIMES",
            Some(
                "'.restartPolicy': unknown value 'SOMETIMES', expected NEVER, ON_FAILURE or ALWAYS",
            ),
        ),
        (
            "restartPolicy: ~",
            Some("'.restartPolicy': expected NEVER, ON_FAILURE or ALWAYS, found null"),
        ),
        (
            "tags: {a: 1}",
            Some("'.tags.a': expected text (put it in quotes), found number 1"),
        ),
        (
            "tags: {a: 1.10}",
            Some("'.tags.a': expected text (put it in quotes), found number 1.10"),
        ),
        (
            "tags: {a: true}",
            Some("'.tags.a': expected text (put it in quotes), found boolean true"),
        ),
        ("tags: {a: on, b: yes, c: 2026-01-31}", None),
        (
            "tags: {a: [x]}",
            Some("'.tags.a': expected text, found a list"),
        ),
        (
            "agent: 1",
            Some("'.agent': expected text (put it in quotes), found number 1"),
        ),
        (
            "configs: {a: 1}",
            Some("'.configs.a': expected text (put it in quotes), found number 1"),
        ),
        (
            "files: [{mountPoint: /m, data: 5}]",
            Some("'.files[0].data': expected text (put it in quotes), found number 5"),
        ),
        (
            "files: [{mountPoint: /m, data: {a: b}}]",
            Some("(write `data: |` and leave the lines below it as they are)"),
        ),
        (
            "dependencies: ~",
            Some("'.dependencies': expected a mapping ({} for an empty one), found null"),
        ),
        ("configs: {a: b}", None),
        (
            "configs: {'a c': b}",
            Some("'.configs.a c': expected letters, digits, '_' and '-', found 'a c'"),
        ),
        (
            "files: [{mountPoint: /m, data: d}, {mountPoint: /m, binaryData: d}]",
            None,
        ),
        (
            "files: {}",
            Some("'.files': expected a list ('- ' before each item), found a mapping"),
        ),
        (
            "files: [{mountPoint: /m}]",
            Some("'.files[0]': missing field `data` or `binaryData`"),
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
            "'workloads.w.runtimeConfig': expected text (write `runtimeConfig: |` and leave the lines below it as they are), \
             found a mapping",
        ),
        (
            "runtime: r, runtimeConfig: [x]",
            "'workloads.w.runtimeConfig': expected text (write `runtimeConfig: |` and leave the lines below it as they are), \
             found a list",
        ),
        (
            "runtime: r, runtimeConfig: 5",
            "'workloads.w.runtimeConfig': expected text (put it in quotes), found number 5",
        ),
        (
            "runtime: r, runtimeConfig: ~",
            "'workloads.w.runtimeConfig': expected text, found null",
        ),
        (
            "runtime: 0x1, runtimeConfig: c",
            "'workloads.w.runtime': expected text (put it in quotes), found number 0x1",
        ),
        (
            "runtime: {}, runtimeConfig: c",
            "'workloads.w.runtime': expected text, found a mapping",
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
        ("{}", Some(": missing field `type`")),
        (
            "{type: Rule}",
            Some(".type': unknown value 'Rule', expected StateRule or LogRule"),
        ),
        (
            "{type: StateRule, operation: Read, filterMask: [a]}",
            Some(": missing field `filterMasks` (`filterMask` is its old name, rename it)"),
        ),
        (
            "{type: StateRule, operation: read, filterMasks: []}",
            Some(".operation': unknown value 'read', expected Nothing, Read, Write or ReadWrite"),
        ),
        (
            "{type: StateRule, operation: Read, filterMasks: [a.]}",
            Some(".filterMasks[0]': expected names or '*', separated by '.', found 'a.'"),
        ),
        (
            "{type: StateRule, operation: Read, filterMasks: ['']}",
            Some(".filterMasks[0]': expected names or '*', separated by '.', found ''"),
        ),
        (
            "{type: LogRule, workloadNames: ['']}",
            Some(
                ".workloadNames[0]': expected letters, digits, '_', '-' and at most one '*', found an empty text",
            ),
        ),
        (
            "{type: LogRule, workloadNames: ['a*b*']}",
            Some(
                ".workloadNames[0]': expected letters, digits, '_', '-' and at most one '*', found 'a*b*'",
            ),
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
    assert_eq!(engine.more_unknown, 6); // With the version.
    let manifest = reading(&text, &STATE, DocumentKind::Manifest);
    assert_eq!(manifest.unknown.len(), 26); // With the image.
    assert_eq!(manifest.more_unknown, 0);
}
