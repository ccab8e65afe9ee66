//! The fields of the state and their kinds.
//!
//! Thread: none, plain values and functions.

use super::{Field, Kind, Object, QUOTED, TYPE, Text};
use crate::access_rules::{LOG_RULE, Operation, STATE_RULE};
use crate::field_path::WILDCARD;
use crate::nearest::meant;
use crate::workload::{AddCondition, RestartPolicy};

const ANY_TEXT: Kind = Kind::Text(Text::Any);

/// The state as a whole.
pub const COMPLETE_STATE: Object = Object::new(&[
    Field::new("desiredState", Kind::Object(&STATE)),
    Field::new("workloadStates", Kind::Any),
    Field::new("agents", Kind::Map(&Kind::Object(&AGENT))),
    Field::new("effectiveState", Kind::Object(&STATE)),
]);

/// Parts of the state that a server sends only if a mask of the read begins with their name. They
/// cannot be set.
pub const PARTS_ON_REQUEST: &[&str] = &[
    "history", "modes", "programs", "timings", "updates", "usage", "warning",
];

/// A manifest; `desiredState` and `effectiveState` look the same.
pub const STATE: Object = Object::named(
    "desiredState",
    &[
        Field::new("apiVersion", Kind::Text(Text::Version)).required(),
        Field {
            nullable: true,
            ..Field::new("workloads", Kind::Named(&Kind::Object(&WORKLOAD)))
        },
        Field {
            nullable: true,
            ..Field::new("configs", Kind::Named(&Kind::Config))
        }
        .omit_empty(),
    ],
);

/// A workload.
pub const WORKLOAD: Object = Object::named(
    "workload",
    &[
        Field::new("agent", Kind::Text(Text::Agent)),
        Field::new("restartPolicy", Kind::Choice(RestartPolicy::TEXTS)),
        Field::new(
            "dependencies",
            Kind::Map(&Kind::Choice(AddCondition::TEXTS)),
        )
        .omit_empty(),
        Field::new("tags", Kind::Tags).omit_empty(),
        Field::new("runtime", ANY_TEXT).required(),
        Field::new("runtimeConfig", ANY_TEXT).required(),
        Field::new("controlInterfaceAccess", Kind::Object(&ACCESS)).omit_empty(),
        Field::new("configs", Kind::Named(&Kind::Text(Text::Name))).omit_empty(),
        Field::new("files", Kind::List(&Kind::Object(&FILE))).omit_empty(),
    ],
);

const FILE: Object = Object {
    any_of: &["data", "binaryData"],
    ..Object::named(
        "file",
        &[
            Field::new("mountPoint", QUOTED).required(),
            Field::new("data", QUOTED),
            Field::new("binaryData", QUOTED),
        ],
    )
};

const ACCESS: Object = Object::named(
    "controlInterfaceAccess",
    &[
        Field::new("allowRules", Kind::List(&Kind::OneOf(&RULES))).omit_empty(),
        Field::new("denyRules", Kind::List(&Kind::OneOf(&RULES))).omit_empty(),
    ],
);

const RULES: [Object; 2] = [
    Object::new(&[
        Field::new(TYPE, Kind::Choice(&[STATE_RULE])).required(),
        Field::new("operation", Kind::Choice(Operation::TEXTS)).required(),
        Field {
            old_name: Some("filterMask"),
            ..Field::new("filterMasks", Kind::List(&Kind::Text(Text::Mask))).required()
        },
    ]),
    Object::new(&[
        Field::new(TYPE, Kind::Choice(&[LOG_RULE])).required(),
        Field::new("workloadNames", Kind::List(&Kind::Text(Text::NamePattern))).required(),
    ]),
];

/// A connected agent.
pub(crate) const AGENT: Object = Object::new(&[
    Field::new("status", Kind::Object(&STATUS)).omit_empty(),
    Field::new("tags", Kind::Map(&ANY_TEXT)).omit_empty(),
]);

const STATUS: Object = Object::new(&[
    Field::new("cpuUsage", Kind::Number),
    Field::new("freeMemory", Kind::Number),
]);

/// The states of workloads, by agent, workload and id. They are not part of [`COMPLETE_STATE`],
/// since they cannot be set: a file with them is accepted, and they are ignored.
const WORKLOAD_STATES: Kind = Kind::Map(&Kind::Map(&Kind::Map(&Kind::Object(&EXECUTION_STATE))));

const EXECUTION_STATE: Object = Object::new(&[
    Field::new("state", ANY_TEXT),
    Field::new("subState", ANY_TEXT),
    Field::new("additionalInfo", ANY_TEXT),
    Field::new("reason", ANY_TEXT),
    Field::new("prepared", ANY_TEXT),
]);

const WORKLOAD_STATES_NAME: &str = "workloadStates";

/// The kind of a field of the complete state, for masks.
fn kind_of(field: &Field) -> Kind {
    if field.name == WORKLOAD_STATES_NAME {
        WORKLOAD_STATES
    } else {
        field.kind
    }
}

/// Returns why a field, given by its parts, can never have a value; `None` if it can.
pub fn why_no_value(path: &[&str]) -> Option<String> {
    if let Some(reason) = why_selects_nothing(path) {
        return Some(reason);
    }
    if holds_value(Kind::Object(&COMPLETE_STATE), path) {
        return None;
    }
    // It is a group of fields. Perhaps names before its last part were left out.
    let mask = path.join(".");
    for missing in 1..=LEVELS_MAX {
        if let Some(whole) = with_levels(path, missing) {
            let whole = whole.join(".");
            return Some(format!(
                "'{mask}' is a group of fields and has no value; write '{whole}'"
            ));
        }
    }
    Some(format!(
        "'{mask}' is a group of fields or a list and has no value"
    ))
}

/// Levels of names that a user may have left out: agent, workload and id.
const LEVELS_MAX: usize = 3;

/// The path with `missing` wildcards before its last part: with three, `workloadStates.state`
/// becomes `workloadStates.*.*.*.state`. `None` if that path cannot have a value.
fn with_levels<'p>(path: &[&'p str], missing: usize) -> Option<Vec<&'p str>> {
    let (last, above) = path.split_last()?;
    let mut kind = Kind::Object(&COMPLETE_STATE);
    for part in above {
        kind = match kind {
            Kind::Map(below) | Kind::Named(below) => *below,
            Kind::Object(object) => kind_of(object.field(part)?),
            _ => return None,
        };
    }
    // A wildcard stands for a name that the user chose, never for a field.
    for _ in 0..missing {
        let (Kind::Map(below) | Kind::Named(below)) = kind else {
            return None;
        };
        kind = *below;
    }
    if !matches!(kind, Kind::Object(_)) || !holds_value(kind, &[last]) {
        return None;
    }
    let mut whole = above.to_vec();
    whole.extend(std::iter::repeat_n(WILDCARD, missing));
    whole.push(last);
    Some(whole)
}

/// Returns whether a node of this kind can have a value at `path`.
fn holds_value(kind: Kind, path: &[&str]) -> bool {
    let Some((part, below)) = path.split_first() else {
        return !matches!(
            kind,
            Kind::Object(_)
                | Kind::Map(_)
                | Kind::Named(_)
                | Kind::Tags
                | Kind::List(_)
                | Kind::OneOf(_)
        );
    };
    match kind {
        Kind::Object(object) => {
            for field in object.fields {
                let is_named = *part == WILDCARD || *part == field.name;
                if is_named && holds_value(kind_of(field), below) {
                    return true;
                }
            }
            false
        }
        Kind::Map(kind) | Kind::Named(kind) => holds_value(*kind, below),
        Kind::Tags => below.is_empty(),
        Kind::Config | Kind::Any => true,
        _ => false,
    }
}

/// Returns why a field mask, given by its parts, can never select anything; `None` if it can.
pub fn why_selects_nothing(path: &[&str]) -> Option<String> {
    if let [WORKLOAD_STATES_NAME, agent, workload, field] = path
        && EXECUTION_STATE.field(field).is_some()
    {
        let whole = format!("{WORKLOAD_STATES_NAME}.{agent}.{workload}.{WILDCARD}.{field}");
        return Some(format!(
            "the id of the instance is missing before '{field}'; write '{whole}'"
        ));
    }
    let mut kind = Kind::Object(&COMPLETE_STATE);
    for (depth, part) in path.iter().enumerate() {
        let known = match kind {
            // A wildcard selects all fields. The rest of the path may exist below one of them.
            Kind::Object(_) if *part == WILDCARD => return None,
            Kind::Object(object) => match object.field(part) {
                Some(field) => {
                    kind = kind_of(field);
                    continue;
                }
                None => object.names().collect(),
            },
            Kind::Map(below) | Kind::Named(below) if !part.is_empty() => {
                kind = *below;
                continue;
            }
            // Anything may be below.
            Kind::Config | Kind::Tags | Kind::List(_) | Kind::OneOf(_) | Kind::Any => return None,
            _ => vec![],
        };
        // This part is unknown.
        let above = if depth == 0 {
            "the state".to_owned()
        } else {
            format!("'{}'", path[..depth].join("."))
        };
        return Some(format!(
            "no part of {above} is called '{part}'{}",
            meant(part, known)
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    fn parts(mask: &str) -> Vec<&str> {
        mask.split('.').collect()
    }

    #[test]
    fn path_to_a_value_is_accepted() {
        for mask in [
            "desiredState.apiVersion",
            "desiredState.workloads.w.agent",
            "desiredState.workloads.w.tags.any",
            "desiredState.workloads.*.agent",
            "desiredState.configs.c",
            "desiredState.configs.c.any.depth",
            "desiredState.*",
            "workloadStates.A.w.id.state",
            "agents.A.tags.zone",
            "agents.A.status.cpuUsage",
        ] {
            assert_eq!(why_no_value(&parts(mask)), None, "{mask}");
        }
    }

    #[test]
    fn path_to_a_group_is_refused_with_the_path_that_was_meant() {
        for (mask, whole) in [
            ("workloadStates.state", "workloadStates.*.*.*.state"),
            ("workloadStates.A.state", "workloadStates.A.*.*.state"),
            (
                "desiredState.workloads.agent",
                "desiredState.workloads.*.agent",
            ),
        ] {
            let expected =
                format!("'{mask}' is a group of fields and has no value; write '{whole}'");
            assert_eq!(why_no_value(&parts(mask)), Some(expected));
        }
        for mask in [
            "desiredState",
            "desiredState.workloads",
            "desiredState.workloads.w",
            "desiredState.workloads.w.tags",
            "desiredState.workloads.w.files",
            "desiredState.workloads.w.tags.any.deeper",
            "agents.A.status",
            "workloadStates.A.w.id",
        ] {
            let expected = format!("'{mask}' is a group of fields or a list and has no value");
            assert_eq!(why_no_value(&parts(mask)), Some(expected));
        }
    }

    #[test]
    fn mask_that_selects_nothing_is_refused_with_the_unknown_part() {
        for (mask, expected) in [
            (
                "desiredstate",
                "no part of the state is called 'desiredstate'; did you mean 'desiredState'?",
            ),
            (
                "desiredState.workload.w",
                "no part of 'desiredState' is called 'workload'; did you mean 'workloads'?",
            ),
            (
                "desiredState.workloads..agent",
                "no part of 'desiredState.workloads' is called ''",
            ),
            (
                "desiredState.workloads.w.agent.x",
                "no part of 'desiredState.workloads.w.agent' is called 'x'",
            ),
            (
                "workloadStates.A.w.state",
                "the id of the instance is missing before 'state'; write \
                 'workloadStates.A.w.*.state'",
            ),
        ] {
            assert_eq!(why_selects_nothing(&parts(mask)).as_deref(), Some(expected));
            assert_eq!(why_no_value(&parts(mask)).as_deref(), Some(expected));
        }
        for mask in [
            "desiredState",
            "desiredState.*",
            "desiredState.workloads.w",
            "desiredState.workloads.w.files.any",
            "workloadStates.A.w.id",
        ] {
            assert_eq!(why_selects_nothing(&parts(mask)), None, "{mask}");
        }
    }

    #[test]
    fn type_of_a_rule_chooses_its_fields() {
        let rules = Kind::OneOf(&RULES);
        let of_type = |name: &str| rules.object(&Node::map([(TYPE, Node::text(name))]));
        assert!(of_type(LOG_RULE).unwrap().field("workloadNames").is_some());
        assert!(of_type(STATE_RULE).unwrap().field("operation").is_some());
        assert!(of_type("other").is_none());
    }
}
