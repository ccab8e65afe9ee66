//! Tests only: the JSON schema of manifests, which editors and `ank-schema` know, made of what `ank apply` checks.
//!
//! Thread: none. The text is committed as `ank_schema.json`; ANKAIOS_WRITE_GOLDEN=1 writes it anew. That it accepts
//! what `ank apply` accepts, and nothing else, is tested with every node of a manifest replaced by wrong ones.

use super::{AGENT_PATTERN, LOG_NAME_MAX, LOG_NAME_PATTERN, MASK_PATTERN, NAME_PATTERN, VERSION_PATTERN, check};
use crate::limits::NAME_MAX;
use crate::model::access_rules::Operation;
use crate::model::workload::{AddCondition, RestartPolicy};
use crate::model::yaml::Document;
use regex_lite::Regex;
use serde_json::{Value, json};
use std::path::Path;

/// The schema, draft 07.
fn schema() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "desiredState",
        "description": "A manifest of Ankaios: the workloads of a cluster and the configs that their templates use.",
        "type": "object",
        "required": ["apiVersion"],
        "properties": {
            "apiVersion": { "type": "string", "pattern": VERSION_PATTERN },
            "workloads": or_null("workloadMap"),
            "configs": or_null("configMap"),
        },
        "definitions": {
            "workloadMap": named("workload"),
            "configMap": named("configItem"),
            "configObject": named("configItem"),
            "workload": workload(),
            "restartPolicy": {
                "description": "Whether a container that ended is started again: always, after an error, or never.",
                "default": "NEVER",
                "enum": RestartPolicy::ALL.iter().map(|policy| policy.as_str()).collect::<Vec<_>>(),
            },
            "addCondition": {
                "description": "What the other workload must have come to before this one starts.",
                "enum": AddCondition::ALL.iter().map(|condition| condition.as_str()).collect::<Vec<_>>(),
            },
            "configItem": {
                "description": "Text, or lists and objects of it; numbers and booleans stand in quotes.",
                "anyOf": [
                    { "type": "string" },
                    { "type": "array", "items": reference("configItem") },
                    reference("configObject"),
                ],
            },
            "file": {
                "description": "A file that the container finds at 'mountPoint', as text or as base64.",
                "type": "object",
                "required": ["mountPoint"],
                "anyOf": [{ "required": ["data"] }, { "required": ["binaryData"] }],
                "properties": {
                    "mountPoint": { "type": "string" },
                    "data": { "type": "string" },
                    "binaryData": { "type": "string" },
                },
            },
            "controlInterfaceAccess": {
                "description": "What the workload may ask for through its control interface; what is denied wins.",
                "type": "object",
                "properties": {
                    "allowRules": { "type": "array", "items": reference("accessRightsRule") },
                    "denyRules": { "type": "array", "items": reference("accessRightsRule") },
                },
            },
            "accessRightsRule": rule(),
        },
    })
}

fn reference(definition: &str) -> Value {
    json!({ "$ref": format!("#/definitions/{definition}") })
}

fn or_null(definition: &str) -> Value {
    json!({ "anyOf": [reference(definition), { "type": "null" }], "default": {} })
}

/// Text that names an object.
fn name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": NAME_PATTERN })
}

/// An object whose keys are names.
fn named(definition: &str) -> Value {
    json!({ "type": "object", "propertyNames": name(), "additionalProperties": reference(definition) })
}

fn workload() -> Value {
    json!({
        "description": "A container, or a group of containers, on one agent.",
        "type": "object",
        "required": ["runtime", "runtimeConfig"],
        "properties": {
            "agent": {
                "description": "The agent that runs it; empty: none does for now. May hold templates.",
                "type": "string",
                "default": "",
                "pattern": AGENT_PATTERN,
            },
            "runtime": {
                "description": "What runs it: podman, podman-kube or containerd.",
                "type": "string",
            },
            "runtimeConfig": {
                "description": "Text for the runtime, such as the image and its options. May hold templates, and the \
                                block 'lifecycle' with conditions and probes.",
                "type": "string",
            },
            "restartPolicy": reference("restartPolicy"),
            "dependencies": {
                "description": "The workloads that this one waits for.",
                "type": "object",
                "additionalProperties": reference("addCondition"),
            },
            "tags": { "type": "object", "additionalProperties": { "type": "string" } },
            "configs": {
                "description": "Names by which templates of this workload call configs.",
                "type": "object",
                "propertyNames": name(),
                "additionalProperties": name(),
            },
            "files": { "type": "array", "items": reference("file") },
            "controlInterfaceAccess": reference("controlInterfaceAccess"),
        },
    })
}

fn rule() -> Value {
    json!({
        "oneOf": [
            {
                "description": "About parts of the state, by field masks.",
                "type": "object",
                "required": ["type", "operation", "filterMasks"],
                "properties": {
                    "type": { "const": "StateRule" },
                    "operation": { "enum": Operation::NAMES.map(|(name, _)| name) },
                    "filterMasks": { "type": "array", "items": { "type": "string", "pattern": MASK_PATTERN } },
                },
            },
            {
                "description": "About the logs of workloads, by name.",
                "type": "object",
                "required": ["type", "workloadNames"],
                "properties": {
                    "type": { "const": "LogRule" },
                    "workloadNames": {
                        "type": "array",
                        "items": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": LOG_NAME_MAX,
                            "pattern": LOG_NAME_PATTERN,
                        },
                    },
                },
            },
        ],
    })
}

/// Whether `value` fulfils `part` of the schema `whole`; knows the words that the schema above uses, no others.
fn fulfils(whole: &Value, part: &Value, value: &Value) -> bool {
    let below = |part: &Value, value: &Value| fulfils(whole, part, value);
    let text = value.as_str();
    let characters = text.map(|text| text.chars().count() as u64);
    part.as_object().expect("a schema is an object").iter().all(|(word, wanted)| match word.as_str() {
        "$schema" | "title" | "description" | "default" | "definitions" => true,
        "$ref" => {
            let pointer = wanted.as_str().and_then(|place| place.strip_prefix('#')).expect("a place in this schema");
            below(whole.pointer(pointer).expect("it is defined"), value)
        }
        "type" => match wanted.as_str().expect("one type") {
            "string" => value.is_string(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            "null" => value.is_null(),
            other => panic!("type {other}"),
        },
        "enum" => wanted.as_array().expect("a list").contains(value),
        "const" => wanted == value,
        "pattern" => text.is_none_or(|text| Regex::new(wanted.as_str().unwrap()).unwrap().is_match(text)),
        "minLength" => characters.is_none_or(|length| length >= wanted.as_u64().unwrap()),
        "maxLength" => characters.is_none_or(|length| length <= wanted.as_u64().unwrap()),
        "anyOf" => wanted.as_array().unwrap().iter().any(|part| below(part, value)),
        "oneOf" => wanted.as_array().unwrap().iter().filter(|part| below(part, value)).count() == 1,
        "required" => {
            let names = wanted.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
            value.as_object().is_none_or(|object| names.clone().all(|name| object.contains_key(name)))
        }
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(key, value)| wanted.get(key).is_none_or(|part| below(part, value)))
        }),
        "propertyNames" => value.as_object().is_none_or(|object| object.keys().all(|key| below(wanted, &json!(key)))),
        // The schema uses it only where there are no "properties".
        "additionalProperties" => {
            value.as_object().is_none_or(|object| object.values().all(|value| below(wanted, value)))
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| below(wanted, item))),
        other => panic!("unknown word {other}"),
    })
}

/// A manifest that has everything.
fn full() -> Value {
    json!({
        "apiVersion": "v1",
        "workloads": {
            "web": {
                "runtime": "podman",
                "agent": "a{{b.c}}",
                "runtimeConfig": "image: x",
                "restartPolicy": "ALWAYS",
                "dependencies": { "db": "ADD_COND_RUNNING" },
                "tags": { "owner": "me" },
                "configs": { "b": "place" },
                "files": [{ "mountPoint": "/a", "data": "x" }, { "mountPoint": "/b", "binaryData": "eA==" }],
                "controlInterfaceAccess": {
                    "allowRules": [
                        { "type": "StateRule", "operation": "Read", "filterMasks": ["desiredState.*.a"] },
                        { "type": "LogRule", "workloadNames": ["a*b"] },
                    ],
                    "denyRules": [{ "type": "StateRule", "operation": "Nothing", "filterMasks": [] }],
                },
            },
        },
        "configs": { "place": { "list": ["a", { "b": "c" }], "text": "x" } },
    })
}

/// Every manifest that differs from `value` in one node: replaced by something else, taken away, or with a key more.
fn neighbours(value: &Value) -> Vec<Value> {
    let texts = ["", "a", "a b", "a.b", "*", "a*b*c", "v1", "LogRule", "{{a}}", "{{a}", "ADD_COND_FAILED", "Write"];
    let long = [63, 64, 65].map(|length| json!("x".repeat(length)));
    let plain = [Value::Null, json!(1), json!(true), json!([]), json!({}), json!(["a"]), json!({ "a": "b" })];
    let mut all: Vec<Value> = texts.into_iter().map(|text| json!(text)).chain(long.clone()).chain(plain).collect();
    match value {
        Value::Object(object) => {
            for (key, below) in object {
                let with = |other: Value| {
                    let mut changed = object.clone();
                    changed.insert(key.clone(), other);
                    Value::Object(changed)
                };
                all.extend(neighbours(below).into_iter().map(with));
                let mut without = object.clone();
                without.remove(key);
                all.push(Value::Object(without));
            }
            for key in ["", "a/b", "new"].into_iter().chain(long.iter().filter_map(Value::as_str)) {
                for value in [json!("x"), json!(1)] {
                    let mut more = object.clone();
                    more.insert(key.to_owned(), value);
                    all.push(Value::Object(more));
                }
            }
        }
        Value::Array(items) => {
            for (index, below) in items.iter().enumerate() {
                let with = |other: Value| {
                    let mut changed = items.clone();
                    changed[index] = other;
                    Value::Array(changed)
                };
                all.extend(neighbours(below).into_iter().map(with));
            }
        }
        _ => {}
    }
    all
}

#[test]
fn the_committed_schema_is_the_one_that_apply_checks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ank_schema.json");
    let expected = serde_json::to_string_pretty(&schema()).unwrap();
    if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &expected).expect("sources are writable");
    }
    assert!(std::fs::read_to_string(&path).unwrap() == expected, "ANKAIOS_WRITE_GOLDEN=1 writes ank_schema.json anew");
}

#[test]
fn schema_and_apply_accept_and_refuse_the_same_manifests() {
    let schema = schema();
    let (mut accepted, mut refused) = (0, 0);
    for manifest in neighbours(&full()).into_iter().chain([full()]) {
        let text = manifest.to_string(); // JSON is YAML.
        let violations = check(Document::read(&text, crate::limits::YAML_FILE_MAX).expect("it is YAML").root());
        assert_eq!(fulfils(&schema, &schema, &manifest), violations.is_empty(), "{text}\n{violations:?}");
        *if violations.is_empty() { &mut accepted } else { &mut refused } += 1;
    }
    assert!(accepted > 100 && refused > 500, "{accepted} accepted, {refused} refused: these say nothing");
}
