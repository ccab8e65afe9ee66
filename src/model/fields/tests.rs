//! Tests only: the JSON schema of manifests, which editors use and `ank-schema` prints, made of the
//! table.
//!
//! Thread: none. The text is committed as `ank_schema.json`; ANKAIOS_WRITE_GOLDEN=1 writes it again.
//! That it accepts what `ank apply` accepts, and nothing else, is tested with every node of a
//! manifest replaced by wrong ones.

use super::reader::{DocumentKind, read, read_part};
use super::table::STATE;
use super::{Field, Kind, Object, Text};
use crate::lifecycle;
use crate::runtime_config::{CONTAINER, KUBE};
use crate::workload::{AddCondition, RestartPolicy};
use crate::yaml::{self, Origin};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The schema, draft 07.
fn schema() -> Value {
    let mut definitions = json!({
        "configItem": {
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": reference("configItem") },
                reference("configObject"),
            ],
        },
        "configObject": value(Kind::Named(&Kind::Config), &mut Map::new()),
    });
    let defined = definitions.as_object_mut().unwrap();
    let mut schema = object(&STATE, defined);
    for config in [&CONTAINER, &KUBE] {
        value(Kind::Object(config), defined);
    }
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!(STATE.name);
    schema["definitions"] = definitions;
    schema
}

fn reference(definition: &str) -> Value {
    json!({ "$ref": format!("#/definitions/{definition}") })
}

/// A reference to the schema that `define` makes and that this adds to `definitions`.
fn defined(
    name: &str,
    definitions: &mut Map<String, Value>,
    define: impl Fn(&mut Map<String, Value>) -> Value,
) -> Value {
    if name.is_empty() {
        return define(definitions);
    }
    if !definitions.contains_key(name) {
        let schema = define(definitions);
        definitions.insert(name.to_owned(), schema);
    }
    reference(name)
}

fn value(kind: Kind, definitions: &mut Map<String, Value>) -> Value {
    match kind {
        Kind::Text(form) => text(form),
        Kind::Choice([text]) => json!({ "const": text }),
        Kind::Choice(texts) if texts == RestartPolicy::TEXTS => defined(
            "restartPolicy",
            definitions,
            |_| json!({ "enum": texts, "default": "NEVER" }),
        ),
        Kind::Choice(texts) if texts == AddCondition::TEXTS => {
            defined("addCondition", definitions, |_| json!({ "enum": texts }))
        }
        Kind::Choice(texts) => json!({ "enum": texts }),
        Kind::Config => reference("configItem"),
        Kind::Tags => value(Kind::Map(&Kind::Text(Text::Quoted)), definitions),
        Kind::List(item) => json!({ "type": "array", "items": value(*item, definitions) }),
        Kind::Map(below) => {
            json!({ "type": "object", "additionalProperties": value(*below, definitions) })
        }
        Kind::Named(below) => {
            let mut schema = value(Kind::Map(below), definitions);
            schema["propertyNames"] = text(Text::Name);
            schema
        }
        Kind::Object(below) => defined(below.name, definitions, |definitions| {
            object(below, definitions)
        }),
        Kind::OneOf(objects) => defined(
            "accessRightsRule",
            definitions,
            |definitions| json!({ "oneOf": objects.iter().map(|below| object(below, definitions)).collect::<Vec<_>>() }),
        ),
        Kind::Range(lowest, highest, default) => {
            let mut schema = json!({ "type": "integer", "minimum": lowest, "maximum": highest });
            schema
                .as_object_mut()
                .unwrap()
                .extend(default.map(|default| ("default".to_owned(), json!(default))));
            schema
        }
        Kind::True => json!({ "const": true }),
        Kind::Command => json!({ "type": "array", "items": text(Text::Quoted), "minItems": 1 }),
        Kind::Number | Kind::Any => panic!("no part of a manifest"),
    }
}

/// The regular expression that it matches.
fn pattern(form: Text) -> Option<&'static str> {
    match form {
        Text::Any | Text::Quoted | Text::Scalar => None,
        Text::Version => Some("^v1$"),
        Text::Name => Some("^[a-zA-Z0-9_-]+$"),
        Text::Agent => {
            Some(r"^(?:[a-zA-Z0-9_-]*\{\{[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*\}\})*[a-zA-Z0-9_-]*$")
        }
        Text::Mask => Some(r"^(?:\*|[a-zA-Z0-9_-]+)(?:\.(?:\*|[a-zA-Z0-9_-]+))*$"),
        Text::NamePattern => Some(r"^(?:\*|[a-zA-Z0-9_-]*\*[a-zA-Z0-9_-]*|[a-zA-Z0-9_-]+)$"),
        Text::Path | Text::SocketPath => Some("^/"),
        Text::UrlPath => Some("^/[!-~]*$"),
        Text::Address => Some("^(?:localhost|[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)$"),
    }
}

fn text(form: Text) -> Value {
    let mut schema = match form {
        Text::Scalar => json!({ "type": ["string", "number", "boolean", "null"] }),
        _ => json!({ "type": "string" }),
    };
    if let Some(pattern) = pattern(form) {
        schema["pattern"] = json!(pattern);
    }
    if let Some(length_max) = form.length_max() {
        schema["minLength"] = json!(1);
        schema["maxLength"] = json!(length_max);
    }
    schema
}

/// Descriptions have their place in the committed schema only: they stay where they are.
fn take_descriptions(committed: &Value, schema: &mut Value) {
    if let (Value::Array(committed), Value::Array(schema)) = (committed, &mut *schema) {
        return committed
            .iter()
            .zip(schema)
            .for_each(|(committed, below)| take_descriptions(committed, below));
    }
    let (Some(committed), Some(schema)) = (committed.as_object(), schema.as_object_mut()) else {
        return;
    };
    if let Some(Value::String(text)) = committed.get("description") {
        schema.insert("description".to_owned(), json!(text));
    }
    for (key, below) in schema {
        committed
            .get(key)
            .into_iter()
            .for_each(|committed| take_descriptions(committed, below));
    }
}

fn object(object: &Object, definitions: &mut Map<String, Value>) -> Value {
    let properties: Map<String, Value> = object
        .fields
        .iter()
        .map(|field| (field.name.to_owned(), property(field, definitions)))
        .collect();
    let required: Vec<&str> = object
        .fields
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name)
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "patternProperties": { "^x-": {} },
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !object.any_of.is_empty() {
        let needed = |name: &&str| match object.field(name).unwrap().kind {
            Kind::Map(_) => {
                json!({ "required": [name], "properties": { *name: { "minProperties": 1 } } })
            }
            _ => json!({ "required": [name] }),
        };
        schema["anyOf"] = object.any_of.iter().map(needed).collect();
    }
    if !object.one_of.is_empty() {
        schema["oneOf"] = object
            .one_of
            .iter()
            .map(|name| json!({ "required": [name] }))
            .collect();
    }
    let others = object.fields.iter().filter_map(
        |Field {
             name,
             not_with,
             needs,
             ..
         }| {
            let excluded = not_with.map(|other| json!({ "not": { "required": [other] } }));
            Some((
                (*name).to_owned(),
                excluded.or(needs.map(|other| json!([other])))?,
            ))
        },
    );
    let dependencies: Map<String, Value> = others.collect();
    if !dependencies.is_empty() {
        schema["dependencies"] = json!(dependencies);
    }
    schema
}

fn property(field: &Field, definitions: &mut Map<String, Value>) -> Value {
    if field.nullable && !matches!(field.kind, Kind::Named(_)) {
        return json!({ "anyOf": [value(field.kind, definitions), { "type": "null" }] });
    }
    if field.nullable {
        let name = format!("{}Map", field.name.trim_end_matches('s'));
        let map = defined(&name, definitions, |definitions| {
            value(field.kind, definitions)
        });
        return json!({ "anyOf": [map, { "type": "null" }], "default": {} });
    }
    let mut schema = value(field.kind, definitions);
    let default = matches!(field.kind, Kind::Text(Text::Agent)).then_some("");
    schema.as_object_mut().unwrap().extend(
        field
            .default
            .or(default)
            .map(|text| ("default".to_owned(), json!(text))),
    );
    schema
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

/// Every manifest that differs from `value` in one node: replaced by something else, taken away, or
/// with a key more.
fn neighbours(value: &Value) -> Vec<Value> {
    let texts = [
        "",
        "a",
        "a b",
        "a.b",
        "*",
        "a*b*c",
        "v1",
        "LogRule",
        "{{a}}",
        "{{a}",
        "ADD_COND_FAILED",
        "Write",
    ];
    let long = [63, 64, 65].map(|length| json!("x".repeat(length)));
    let plain = [
        Value::Null,
        json!(1),
        json!(true),
        json!([]),
        json!({}),
        json!(["a"]),
        json!({ "a": "b" }),
    ];
    let mut all: Vec<Value> = texts
        .into_iter()
        .map(|text| json!(text))
        .chain(long.clone())
        .chain(plain)
        .collect();
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
            for key in ["", "a/b", "new", "x-new"]
                .into_iter()
                .chain(long.iter().filter_map(Value::as_str))
            {
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ank_schema.json");
    let mut schema = schema();
    let committed = std::fs::read_to_string(&path).unwrap();
    take_descriptions(&serde_json::from_str(&committed).unwrap(), &mut schema);
    let expected = serde_json::to_string_pretty(&schema).unwrap();
    if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &expected).expect("sources are writable");
    }
    assert!(
        committed == expected,
        "ANKAIOS_WRITE_GOLDEN=1 writes ank_schema.json anew"
    );
}

#[test]
fn schema_and_apply_accept_and_refuse_the_same_manifests() {
    let schema = jsonschema::validator_for(&schema()).expect("it is a schema");
    let (mut accepted, mut refused) = (0, 0);
    for manifest in neighbours(&full()).into_iter().chain([full()]) {
        let text = manifest.to_string(); // JSON is YAML.
        let root = yaml::read(&text, Origin::Own).expect("it is YAML").root;
        let reading = read(&root, &STATE, DocumentKind::Schema);
        let is_fine = reading.problems.is_empty() && reading.unknown.is_empty();
        assert_eq!(schema.is_valid(&manifest), is_fine, "{text}\n{reading:?}");
        *if is_fine { &mut accepted } else { &mut refused } += 1;
    }
    assert!(
        accepted > 100 && refused > 500,
        "{accepted} accepted, {refused} refused: these say nothing"
    );
}

/// A text for podman or containerd, and one for podman-kube, that have everything.
fn full_configs() -> [(&'static Object, Value); 3] {
    let block = json!({
        "activation": { "pathExists": "/a", "pathMissing": "/b", "tagEquals": { "zone": 1 } },
        "ready": {
            "http": { "port": 80, "path": "/x", "status": 200, "host": "::1" }, "initialDelayMs": 0, "periodMs": 50,
            "timeoutMs": 60000, "successThreshold": 1, "deadlineMs": 0, "onDeadline": "WAIT",
        },
        "alive": { "exec": ["a", "b"], "failureThreshold": 2, "action": "REPORT" },
        "gone": { "unix": "/run/x", "deadlineMs": 1 },
        "restart": { "backoffMs": 100, "backoffMaxMs": 100, "maxRestarts": 0, "windowMs": 0 },
        "prepare": "INIT",
        "update": { "stage": "NONE", "when": { "pathExists": "/a" }, "healthyMs": 1, "deadlineMs": 1000, "onFailure": "KEEP" },
    });
    let notified = json!({ "ready": { "notify": true, "deadlineMs": 1 }, "alive": { "notify": true, "timeoutMs": 50 } });
    let options = json!(["-p", 80]);
    [
        (
            &CONTAINER,
            json!({ "image": "x", "generalOptions": options, "commandOptions": options, "commandArgs": null,
            "lifecycle": block }),
        ),
        (&CONTAINER, json!({ "image": 5, "lifecycle": notified })),
        (
            &KUBE,
            json!({ "manifest": "x", "generalOptions": options, "playOptions": options, "downOptions": options,
            "controlInterfaceTarget": "a/b", "lifecycle": { "gone": { "tcp": { "port": 1 }, "periodMs": 50 } } }),
        ),
    ]
}

#[test]
fn schema_and_apply_accept_the_same_runtime_configurations() {
    let schema = schema();
    let (mut accepted, mut refused) = (0, 0);
    for (object, full) in full_configs() {
        let own = json!({ "$ref": format!("#/definitions/{}", object.name), "definitions": schema["definitions"] });
        let own = jsonschema::validator_for(&own).expect("it is a schema");
        for config in neighbours(&full).into_iter().chain([full]) {
            let text = config.to_string();
            let root = yaml::read(&text, Origin::Own).expect("it is YAML").root;
            let engine = read(&root, object, DocumentKind::Engine);
            let block = read_part(
                &root,
                lifecycle::KEY,
                &lifecycle::BLOCK,
                DocumentKind::Block,
            )
            .unwrap_or_default();
            let is_fine = engine.problems.is_empty()
                && engine.unknown.is_empty()
                && block.problems.is_empty();
            assert_eq!(
                own.is_valid(&config),
                is_fine,
                "{text}\n{engine:?}\n{block:?}"
            );
            *if is_fine { &mut accepted } else { &mut refused } += 1;
        }
    }
    assert!(
        accepted > 100 && refused > 500,
        "{accepted} accepted, {refused} refused: these say nothing"
    );
}
