//! The schema of manifests: what `ank apply` refuses before anything is sent (spec/cli.md sections 8.2 and 9).
//!
//! Thread: `main`, plain functions. Stricter than the server, which takes numbers for text and checks names later.
//! The texts of violations are those of JSON schema validators; each names the smallest node that is wrong.

use crate::limits::NAME_MAX;
use crate::model::access_rules::Operation;
use crate::model::names::has_name_characters;
use crate::model::workload::{AddCondition, RestartPolicy};
use crate::model::yaml::{Step, Yaml};

#[cfg(test)]
mod json_schema;

const VERSION_PATTERN: &str = "^v1$";
const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]+$";
const AGENT_PATTERN: &str = r"^(?:[a-zA-Z0-9_-]*\{\{[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*\}\})*[a-zA-Z0-9_-]*$";
const MASK_PATTERN: &str = r"^(?:\*|[a-zA-Z0-9_-]+)(?:\.(?:\*|[a-zA-Z0-9_-]+))*$";
const LOG_NAME_PATTERN: &str = r"^(?:\*|[a-zA-Z0-9_-]*\*[a-zA-Z0-9_-]*|[a-zA-Z0-9_-]+)$";
/// Longest workload name or pattern of a log rule.
const LOG_NAME_MAX: usize = NAME_MAX + 1;

/// A node that breaks the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The way to the node.
    pub path: Vec<Step>,
    /// What is wrong with it.
    pub message: String,
}

impl Violation {
    /// The path as a JSON pointer; empty for the whole manifest.
    #[must_use]
    pub fn pointer(&self) -> String {
        let part = |step: &Step| match step {
            Step::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            Step::Index(index) => format!("/{index}"),
        };
        self.path.iter().map(part).collect()
    }
}

/// Checks a whole manifest with `apiVersion: v1`.
#[must_use]
pub fn check(root: &Yaml) -> Vec<Violation> {
    let mut checker = Checker { path: Vec::new(), violations: Vec::new() };
    if checker.is_object(root) {
        checker.require(root, &["apiVersion"]);
        checker.field(root, "apiVersion", |checker, node| checker.text(node, VERSION_PATTERN, |text| text == "v1"));
        checker.field(root, "workloads", |checker, node| checker.named(node, Checker::workload));
        checker.field(root, "configs", |checker, node| checker.named(node, Checker::config));
    }
    checker.violations
}

struct Checker {
    path: Vec<Step>,
    violations: Vec<Violation>,
}

impl Checker {
    fn report(&mut self, message: String) {
        self.violations.push(Violation { path: self.path.clone(), message });
    }

    fn at(&mut self, step: Step, check: impl FnOnce(&mut Self)) {
        self.path.push(step);
        check(self);
        self.path.pop();
    }

    fn field(&mut self, node: &Yaml, key: &str, check: impl FnOnce(&mut Self, &Yaml)) {
        if let Some(value) = node.get(key) {
            self.at(Step::Key(key.to_owned()), |checker| check(checker, value));
        }
    }

    fn has_type(&mut self, node: &Yaml, is: bool, name: &str) -> bool {
        if !is {
            self.report(format!("{} is not of type \"{name}\"", json(node)));
        }
        is
    }

    fn is_object(&mut self, node: &Yaml) -> bool {
        self.has_type(node, matches!(node, Yaml::Map(_)), "object")
    }

    fn require(&mut self, node: &Yaml, keys: &[&str]) {
        for key in keys.iter().filter(|key| node.get(key).is_none()) {
            self.report(format!("\"{key}\" is a required property"));
        }
    }

    fn text(&mut self, node: &Yaml, pattern: &str, matches: impl FnOnce(&str) -> bool) {
        let Yaml::Text(text) = node else {
            self.has_type(node, false, "string");
            return;
        };
        if !matches(text) {
            self.report(format!("\"{text}\" does not match \"{pattern}\""));
        }
    }

    fn any_text(&mut self, node: &Yaml) {
        self.has_type(node, matches!(node, Yaml::Text(_)), "string");
    }

    fn one_of(&mut self, node: &Yaml, texts: &[&str]) {
        if !matches!(node, Yaml::Text(text) if texts.contains(&text.as_str())) {
            let texts: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
            self.report(format!("{} is not one of {}", json(node), texts.join(", ")));
        }
    }

    fn name(&mut self, text: &str, length_max: usize, pattern: &str, matches: impl FnOnce(&str) -> bool) {
        if text.is_empty() {
            self.report("\"\" is shorter than 1 character".to_owned());
        } else if text.chars().count() > length_max {
            self.report(format!("\"{text}\" is longer than {length_max} characters"));
        } else if !matches(text) {
            self.report(format!("\"{text}\" does not match \"{pattern}\""));
        }
    }

    /// A mapping whose keys are names; null where it is at the top.
    fn named(&mut self, node: &Yaml, check: impl Fn(&mut Self, &Yaml)) {
        if *node == Yaml::Null && self.path.len() == 1 {
            return;
        }
        if !self.is_object(node) {
            return;
        }
        self.values(node, |checker, key, value| {
            checker.name(key, NAME_MAX, NAME_PATTERN, has_name_characters);
            check(checker, value);
        });
    }

    fn values(&mut self, node: &Yaml, check: impl Fn(&mut Self, &str, &Yaml)) {
        let Yaml::Map(entries) = node else { return };
        for (key, value) in entries {
            // A list or mapping as key is refused with all other keys that are no names.
            let Some(key) = key.scalar() else { continue };
            self.at(Step::Key(key.to_owned()), |checker| check(checker, key, value));
        }
    }

    fn items(&mut self, node: &Yaml, check: impl Fn(&mut Self, &Yaml)) {
        let Yaml::List(items) = node else {
            self.has_type(node, false, "array");
            return;
        };
        for (index, item) in items.iter().enumerate() {
            self.at(Step::Index(index), |checker| check(checker, item));
        }
    }

    fn workload(&mut self, node: &Yaml) {
        if !self.is_object(node) {
            return;
        }
        self.require(node, &["runtime", "runtimeConfig"]);
        self.field(node, "runtime", Self::any_text);
        self.field(node, "runtimeConfig", Self::any_text);
        self.field(node, "agent", |checker, agent| checker.text(agent, AGENT_PATTERN, is_agent));
        self.field(node, "restartPolicy", |checker, policy| {
            checker.one_of(policy, &RestartPolicy::ALL.iter().map(|policy| policy.as_str()).collect::<Vec<_>>());
        });
        self.field(node, "tags", |checker, tags| {
            if checker.is_object(tags) {
                checker.values(tags, |checker, _, value| checker.any_text(value));
            }
        });
        self.field(node, "dependencies", |checker, dependencies| {
            let conditions: Vec<&str> = AddCondition::ALL.iter().map(|condition| condition.as_str()).collect();
            if checker.is_object(dependencies) {
                checker.values(dependencies, |checker, _, condition| checker.one_of(condition, &conditions));
            }
        });
        self.field(node, "configs", |checker, configs| {
            checker.named(configs, |checker, key| match key {
                Yaml::Text(text) => checker.name(text, NAME_MAX, NAME_PATTERN, has_name_characters),
                _ => checker.any_text(key),
            });
        });
        self.field(node, "files", |checker, files| checker.items(files, Self::file));
        self.field(node, "controlInterfaceAccess", |checker, access| {
            if checker.is_object(access) {
                for rules in ["allowRules", "denyRules"] {
                    checker.field(access, rules, |checker, rules| checker.items(rules, Self::rule));
                }
            }
        });
    }

    fn file(&mut self, node: &Yaml) {
        if !self.is_object(node) {
            return;
        }
        self.require(node, &["mountPoint"]);
        if node.get("data").is_none() && node.get("binaryData").is_none() {
            self.report("\"data\" or \"binaryData\" is a required property".to_owned());
        }
        for key in ["mountPoint", "data", "binaryData"] {
            self.field(node, key, Self::any_text);
        }
    }

    fn rule(&mut self, node: &Yaml) {
        if !self.is_object(node) {
            return;
        }
        match node.get("type") {
            Some(Yaml::Text(kind)) if kind == "StateRule" => {
                self.require(node, &["operation", "filterMasks"]);
                self.field(node, "operation", |checker, operation| {
                    checker.one_of(operation, &Operation::NAMES.map(|(name, _)| name));
                });
                self.field(node, "filterMasks", |checker, masks| {
                    checker.items(masks, |checker, mask| checker.text(mask, MASK_PATTERN, is_mask));
                });
            }
            Some(Yaml::Text(kind)) if kind == "LogRule" => {
                self.require(node, &["workloadNames"]);
                self.field(node, "workloadNames", |checker, names| {
                    checker.items(names, |checker, name| match name {
                        Yaml::Text(text) => checker.name(text, LOG_NAME_MAX, LOG_NAME_PATTERN, is_log_name),
                        _ => checker.any_text(name),
                    });
                });
            }
            Some(kind) => self.at(Step::Key("type".to_owned()), |checker| {
                checker.one_of(kind, &["StateRule", "LogRule"]);
            }),
            None => self.require(node, &["type"]),
        }
    }

    fn config(&mut self, node: &Yaml) {
        match node {
            Yaml::Text(_) => {}
            Yaml::List(_) => self.items(node, Self::config),
            Yaml::Map(_) => self.named(node, Self::config),
            Yaml::Null | Yaml::Plain(..) => self.report(format!(
                "{} is not of types \"array\", \"object\", \"string\" (put it in quotes to make it text)",
                json(node)
            )),
        }
    }
}

/// A value as a validator shows it; lists and mappings by their kind only.
fn json(node: &Yaml) -> String {
    match node {
        Yaml::Text(text) => format!("\"{text}\""),
        Yaml::Plain(_, text) => text.clone(),
        Yaml::Null | Yaml::List(_) | Yaml::Map(_) => node.describe(),
    }
}

/// Name characters with any number of `{{alias}}` or `{{alias.key}}` between them; may be empty.
fn is_agent(text: &str) -> bool {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((template, behind)) = after.split_once("}}") else { return false };
        let is_template = template.split('.').all(|part| !part.is_empty() && has_name_characters(part));
        if !has_name_characters(before) || !is_template {
            return false;
        }
        rest = behind;
    }
    has_name_characters(rest)
}

fn is_mask(text: &str) -> bool {
    text.split('.').all(|part| part == "*" || (!part.is_empty() && has_name_characters(part)))
}

fn is_log_name(text: &str) -> bool {
    !text.is_empty() && text.matches('*').count() <= 1 && text.split('*').all(has_name_characters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::yaml::Document;

    fn violations(text: &str) -> Vec<String> {
        let document = Document::read(text, crate::limits::YAML_FILE_MAX).unwrap();
        check(document.root()).iter().map(|found| format!("'{}': {}", found.pointer(), found.message)).collect()
    }

    /// Violations of a workload that has all mandatory fields and `extra`, relative to it.
    fn of_workload(extra: &str) -> Vec<String> {
        let text = format!("{{apiVersion: v1, workloads: {{w: {{runtime: r, runtimeConfig: c, {extra}}}}}}}");
        violations(&text).iter().map(|violation| violation.replace("/workloads/w", "")).collect()
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
            ("apiVersion: v2", vec!["'/apiVersion': \"v2\" does not match \"^v1$\""]),
            ("apiVersion: 1", vec!["'/apiVersion': 1 is not of type \"string\""]),
            ("apiVersion: v1\nworkloads: 3", vec!["'/workloads': 3 is not of type \"object\""]),
            ("apiVersion: v1\nworkloads: {w: ~}", vec!["'/workloads/w': null is not of type \"object\""]),
            (
                "apiVersion: v1\nworkloads: {a/b: {runtime: 1}}",
                vec![
                    "'/workloads/a~1b': \"a/b\" does not match \"^[a-zA-Z0-9_-]+$\"",
                    "'/workloads/a~1b': \"runtimeConfig\" is a required property",
                    "'/workloads/a~1b/runtime': 1 is not of type \"string\"",
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
            ("agent: '', restartPolicy: ON_FAILURE, tags: {a.b: c}, dependencies: {x: ADD_COND_FAILED}, note: 1", None),
            ("agent: 'a{{b.c}}-{{d}}'", None),
            ("agent: ~", Some("'/agent': null is not of type \"string\"")),
            ("agent: 'a.b'", Some("'/agent': \"a.b\" does not match \"^(?:")),
            ("agent: '{{a}'", Some("'/agent': \"{{a}\" does not match \"^(?:")),
            ("agent: '{{a..b}}'", Some("'/agent': \"{{a..b}}\" does not match \"^(?:")),
            (
                "restartPolicy: SOMETIMES",
                Some("'/restartPolicy': \"SOMETIMES\" is not one of \"NEVER\", \"ON_FAILURE\", \"ALWAYS\""),
            ),
            ("restartPolicy: ~", Some("'/restartPolicy': null is not one of")),
            ("tags: [a]", Some("'/tags': a list is not of type \"object\"")),
            ("tags: {a: 1}", Some("'/tags/a': 1 is not of type \"string\"")),
            ("dependencies: {a: RUNNING}", Some("'/dependencies/a': \"RUNNING\" is not one of \"ADD_COND_RUNNING\"")),
            ("dependencies: ~", Some("'/dependencies': null is not of type \"object\"")),
            ("configs: {a: b}", None),
            ("configs: ~", Some("'/configs': null is not of type \"object\"")),
            ("configs: {a: 'b c'}", Some("'/configs/a': \"b c\" does not match \"^[a-zA-Z0-9_-]+$\"")),
            ("configs: {'a c': b}", Some("'/configs/a c': \"a c\" does not match \"^[a-zA-Z0-9_-]+$\"")),
            ("configs: {a: 1}", Some("'/configs/a': 1 is not of type \"string\"")),
            ("files: [{mountPoint: /m, data: d}, {mountPoint: /m, binaryData: d}]", None),
            ("files: {}", Some("'/files': a mapping is not of type \"array\"")),
            ("files: [{data: d}]", Some("'/files/0': \"mountPoint\" is a required property")),
            ("files: [{mountPoint: /m}]", Some("'/files/0': \"data\" or \"binaryData\" is a required property")),
            ("files: [{mountPoint: /m, data: 1}]", Some("'/files/0/data': 1 is not of type \"string\"")),
            ("controlInterfaceAccess: ~", Some("'/controlInterfaceAccess': null is not of type \"object\"")),
        ] {
            let found = of_workload(extra);
            match expected {
                None => assert_eq!(found, [""; 0], "{extra}"),
                Some(start) => {
                    assert_eq!(found.len(), 1, "{extra}: {found:?}");
                    assert!(found[0].starts_with(start), "{extra}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn access_rules() {
        for (rule, expected) in [
            ("{type: StateRule, operation: ReadWrite, filterMasks: ['*', a.*.b, a]}", None),
            ("{type: StateRule, operation: Read, filterMasks: []}", None),
            ("{type: LogRule, workloadNames: ['*', 'a*', '*a', a-b, 'a*b']}", None),
            ("{}", Some(": \"type\" is a required property")),
            ("{type: Rule}", Some("/type': \"Rule\" is not one of \"StateRule\", \"LogRule\"")),
            ("{type: StateRule, filterMasks: [a]}", Some(": \"operation\" is a required property")),
            ("{type: StateRule, operation: Read, filterMask: [a]}", Some(": \"filterMasks\" is a required property")),
            (
                "{type: StateRule, operation: read, filterMasks: []}",
                Some("/operation': \"read\" is not one of \"Nothing\""),
            ),
            ("{type: StateRule, operation: Read, filterMasks: [a.]}", Some("/filterMasks/0': \"a.\" does not match")),
            ("{type: StateRule, operation: Read, filterMasks: ['a*']}", Some("/filterMasks/0': \"a*\" does not match")),
            ("{type: StateRule, operation: Read, filterMasks: ['']}", Some("/filterMasks/0': \"\" does not match")),
            ("{type: LogRule}", Some(": \"workloadNames\" is a required property")),
            ("{type: LogRule, workloadNames: ['']}", Some("/workloadNames/0': \"\" is shorter than 1 character")),
            ("{type: LogRule, workloadNames: ['a*b*']}", Some("/workloadNames/0': \"a*b*\" does not match")),
            ("{type: LogRule, workloadNames: [1]}", Some("/workloadNames/0': 1 is not of type \"string\"")),
        ] {
            let found = of_workload(&format!("controlInterfaceAccess: {{allowRules: [{rule}]}}"));
            match expected {
                None => assert_eq!(found, [""; 0], "{rule}"),
                Some(part) => {
                    assert_eq!(found.len(), 1, "{rule}: {found:?}");
                    assert!(found[0].contains(part), "{rule}: {found:?}");
                }
            }
        }
        let longest = "x".repeat(64);
        assert_eq!(
            of_workload(&format!(
                "controlInterfaceAccess: {{denyRules: [{{type: LogRule, workloadNames: [{longest}]}}]}}"
            )),
            [""; 0]
        );
        assert_eq!(
            of_workload(&format!(
                "controlInterfaceAccess: {{denyRules: [{{type: LogRule, workloadNames: [{longest}x]}}]}}"
            ))
            .len(),
            1
        );
    }
}
