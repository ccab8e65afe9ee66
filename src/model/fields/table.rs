//! Which fields the state has, and what each may hold.
//!
//! Thread: none, plain values and functions.

use super::{Field, Kind, Object, QUOTED, TYPE, Text};
use crate::model::access_rules::{LOG_RULE, Operation, STATE_RULE};
use crate::model::field_path::WILDCARD;
use crate::model::nearest::meant;
use crate::model::workload::{AddCondition, RestartPolicy};

const ANY_TEXT: Kind = Kind::Text(Text::Any);

/// The state as a whole.
pub const COMPLETE_STATE: Object = Object::new(&[
    Field::new("desiredState", Kind::Object(&STATE)),
    Field::new("workloadStates", Kind::Any),
    Field::new("agents", Kind::Map(&Kind::Object(&AGENT))),
    Field::new("effectiveState", Kind::Object(&STATE)),
]);

/// Parts of the state that a server sends only where a mask of a read begins with their name. Nothing of them can be set.
pub const PARTS_ON_REQUEST: &[&str] = &["modes", "timings", "updates", "usage", "warning"];

/// A manifest; `desiredState` and `effectiveState` look the same.
pub const STATE: Object = Object::named(
    "desiredState",
    &[
        Field::new("apiVersion", Kind::Text(Text::Version)).required(),
        Field { nullable: true, ..Field::new("workloads", Kind::Named(&Kind::Object(&WORKLOAD))) },
        Field { nullable: true, ..Field::new("configs", Kind::Named(&Kind::Config)) }.omit_empty(),
    ],
);

/// A workload.
pub const WORKLOAD: Object = Object::named(
    "workload",
    &[
        Field::new("agent", Kind::Text(Text::Agent)),
        Field::new("restartPolicy", Kind::Choice(RestartPolicy::TEXTS)),
        Field::new("dependencies", Kind::Map(&Kind::Choice(AddCondition::TEXTS))).omit_empty(),
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
        &[Field::new("mountPoint", QUOTED).required(), Field::new("data", QUOTED), Field::new("binaryData", QUOTED)],
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
pub const AGENT: Object = Object::new(&[
    Field::new("status", Kind::Object(&STATUS)).omit_empty(),
    Field::new("tags", Kind::Map(&ANY_TEXT)).omit_empty(),
]);

const STATUS: Object = Object::new(&[Field::new("cpuUsage", Kind::Number), Field::new("freeMemory", Kind::Number)]);

/// Why a field mask, given by its parts, can never select anything; `None` when some state has the field.
pub fn selects_nothing(path: &[&str]) -> Option<String> {
    let mut kind = Kind::Object(&COMPLETE_STATE);
    for (depth, part) in path.iter().enumerate() {
        let known = match kind {
            Kind::Object(_) if *part == WILDCARD => return None, // Below each of its fields are others.
            Kind::Object(object) => match object.field(part) {
                Some(field) => {
                    kind = field.kind;
                    continue;
                }
                None => object.names().collect(),
            },
            Kind::Map(below) | Kind::Named(below) if !part.is_empty() => {
                kind = *below;
                continue;
            }
            Kind::Config | Kind::Tags | Kind::List(_) | Kind::OneOf(_) | Kind::Any => return None,
            _ => vec![],
        };
        let above = if depth == 0 { "the state".to_owned() } else { format!("'{}'", path[..depth].join(".")) };
        return Some(format!("no part of {above} is called '{part}'{}", meant(part, known)));
    }
    None
}
