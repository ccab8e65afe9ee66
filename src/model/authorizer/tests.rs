//! Tests of the rules: the documented tables, and what must hold for all rules and requests.

use super::*;
use crate::field_path::apply;
use crate::field_path::random_tree;
use crate::mask_tree::{self, MaskTree};
use crate::messages::{LogsRequest, ReadState, UpdateState};
use crate::names::InstanceName;
use crate::node::Node;

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn state_rule(operation: Operation, masks: &[&str]) -> AccessRule {
    AccessRule::State {
        operation,
        filter_masks: owned(masks),
    }
}

fn log_rule(names: &[&str]) -> AccessRule {
    AccessRule::Log {
        workload_names: owned(names),
    }
}

fn authorizer(allow_rules: Vec<AccessRule>, deny_rules: Vec<AccessRule>) -> Authorizer {
    Authorizer::new(&ControlInterfaceAccess {
        allow_rules,
        deny_rules,
    })
}

fn read(masks: &[&str]) -> RequestContent {
    RequestContent::CompleteState(ReadState {
        masks: owned(masks),
        subscribe: false,
    })
}

fn subscribe(masks: &[&str]) -> RequestContent {
    RequestContent::CompleteState(ReadState {
        masks: owned(masks),
        subscribe: true,
    })
}

fn write(masks: &[&str]) -> RequestContent {
    RequestContent::UpdateState(UpdateState {
        new_state: Some(Ok(Node::empty())),
        masks: owned(masks),
        ..Default::default()
    })
}

fn logs(names: &[&str]) -> RequestContent {
    let instances = names
        .iter()
        .map(|name| InstanceName::with_id(name, "any id", "any agent"))
        .collect();
    RequestContent::Logs(LogsRequest {
        instances,
        ..LogsRequest::default()
    })
}

const YES: bool = true;
const NO: bool = false;

#[track_caller]
fn check_rows(authorizer: &Authorizer, rows: &[(RequestContent, bool)]) {
    for (content, allowed) in rows {
        let result = authorizer.check(content);
        assert_eq!(result.is_ok(), *allowed, "{content:?}: {result:?}");
    }
}

// [utest->swdd~agent-authorizes-control-interface-requests~1]
#[test]
fn allow_everything_to_read_but_one_field_of_each_workload() {
    let rules = authorizer(
        vec![state_rule(Operation::Read, &["*"])],
        vec![state_rule(
            Operation::Read,
            &["desiredState.workloads.*.agent"],
        )],
    );
    check_rows(
        &rules,
        &[
            (read(&[]), NO),
            (read(&[""]), NO),
            (read(&["desiredState"]), NO),
            (read(&["desiredState.workloads"]), NO),
            (read(&["desiredState.workloads.foo"]), NO),
            (read(&["desiredState.workloads.foo.agent"]), NO),
            (read(&["desiredState.workloads.foo.agent.x"]), NO),
            (read(&["desiredState.workloads.*"]), NO),
            (read(&["desiredState.workloads.*.agent"]), NO),
            (read(&["*"]), NO),
            (read(&["*.*"]), NO),
            (read(&["*.workloads.foo.agent"]), NO),
            (read(&["desiredState.*.foo.*"]), NO),
            (read(&["desiredState.workloads.foo.*"]), NO),
            (read(&["agents", "desiredState.workloads.foo.agent"]), NO),
            (subscribe(&["desiredState.workloads.foo.agent"]), NO),
            (subscribe(&[]), NO),
            (read(&["desiredState.workloads.foo.runtime"]), YES),
            (read(&["desiredState.workloads.*.runtime"]), YES),
            (read(&["agents"]), YES),
            (read(&["workloadStates"]), YES),
            (read(&["desiredState.configs"]), YES),
            (read(&["effectiveState.workloads.foo.agent"]), YES),
            (read(&["agents", "workloadStates"]), YES),
            (subscribe(&["desiredState.workloads.foo.runtime"]), YES),
            (write(&["agents"]), NO),
            (write(&[]), NO),
            (logs(&["foo"]), NO),
        ],
    );
}

// [utest->swdd~agent-authorizes-control-interface-requests~1]
#[test]
fn allow_writing_of_two_places() {
    let rules = authorizer(
        vec![state_rule(
            Operation::Write,
            &["desiredState.workloads.*.tags", "desiredState.configs.c1"],
        )],
        vec![],
    );
    check_rows(
        &rules,
        &[
            (write(&[]), NO),
            (write(&[""]), NO),
            (write(&["desiredState"]), NO),
            (write(&["desiredState.workloads"]), NO),
            (write(&["desiredState.workloads.foo"]), NO),
            (write(&["desiredState.configs"]), NO),
            (write(&["desiredState.configs.c2"]), NO),
            (write(&["desiredState.configs.*"]), NO),
            (write(&["desiredState.apiVersion"]), NO),
            (write(&["desiredState.workloads.foo.tagsx"]), NO),
            (
                write(&["desiredState.workloads.foo.tags", "desiredState.apiVersion"]),
                NO,
            ),
            (write(&["*.workloads.foo.tags"]), NO),
            (write(&["desiredState.workloads..tags"]), YES),
            (write(&["desiredState.workloads.foo.tags"]), YES),
            (write(&["desiredState.workloads.foo.tags."]), YES),
            (write(&["desiredState.workloads.foo.tags.k"]), YES),
            (write(&["desiredState.workloads.*.tags"]), YES),
            (write(&["desiredState.configs.c1"]), YES),
            (write(&["desiredState.configs.c1.sub"]), YES),
            (
                write(&["desiredState.configs.c1", "desiredState.workloads.foo.tags"]),
                YES,
            ),
            (read(&["desiredState.configs.c1"]), NO),
            (subscribe(&["desiredState.configs.c1"]), NO),
        ],
    );
}

// [utest->swdd~agent-authorizes-control-interface-requests~1]
#[test]
fn wildcards_at_the_beginning_give_what_they_say_and_no_more() {
    let rules = authorizer(
        vec![state_rule(Operation::ReadWrite, &["*.workloads.foo.tags"])],
        vec![],
    );
    check_rows(
        &rules,
        &[
            (read(&["desiredState.workloads.foo.tags"]), YES),
            (write(&["desiredState.workloads.foo.tags.k"]), YES),
            (read(&["*.workloads.foo.tags"]), YES),
            (read(&[]), NO),
            (write(&[]), NO),
            (read(&["desiredState"]), NO),
            (write(&["desiredState"]), NO),
            (read(&["*"]), NO),
            (read(&["*.workloads"]), NO),
        ],
    );
    let all = authorizer(vec![state_rule(Operation::ReadWrite, &["*"])], vec![]);
    check_rows(
        &all,
        &[
            (read(&[]), YES),
            (read(&[""]), YES),
            (read(&["*"]), YES),
            (read(&["desiredState.workloads.*.agent"]), YES),
            (write(&[]), YES),
            (write(&["desiredState"]), YES),
            (logs(&["foo"]), NO),
        ],
    );
    let two = authorizer(vec![state_rule(Operation::Read, &["*.*"])], vec![]);
    check_rows(
        &two,
        &[
            (read(&[]), NO),
            (read(&["a"]), NO),
            (read(&["a.b"]), YES),
            (read(&["*.*.c"]), YES),
        ],
    );
}

#[test]
fn operations_and_kinds_of_rules_are_apart() {
    let rules = authorizer(
        vec![
            state_rule(Operation::Nothing, &["*"]),
            state_rule(Operation::Read, &["desiredState", ""]),
            state_rule(Operation::ReadWrite, &["agents"]),
            log_rule(&["web"]),
        ],
        vec![
            state_rule(Operation::Nothing, &["agents"]),
            state_rule(Operation::Write, &["agents.A.tags"]),
            state_rule(Operation::Read, &[""]),
            log_rule(&[]),
        ],
    );
    check_rows(
        &rules,
        &[
            (read(&["desiredState"]), YES),
            (read(&["desiredState.workloads"]), YES),
            (write(&["desiredState"]), NO),
            (read(&["desiredstate"]), NO),
            (read(&["desiredStateX"]), NO),
            (read(&["agents.A.tags"]), YES),
            (write(&["agents.B.tags"]), YES),
            (write(&["agents.A.tags"]), NO),
            (write(&["agents.A.tags.k"]), NO),
            (write(&["agents.A"]), NO),
            (write(&["agents"]), NO),
            (write(&["agents.*.tags"]), NO),
            (read(&[]), NO),
            (read(&["workloadStates"]), NO),
            (read(&["."]), NO),
            (logs(&["web"]), YES),
            (logs(&["webx"]), NO),
            (RequestContent::LogsCancel, YES),
            (RequestContent::EventsCancel, YES),
            (RequestContent::Missing, NO),
        ],
    );
    let nothing = authorizer(vec![], vec![]);
    check_rows(
        &nothing,
        &[
            (read(&["a"]), NO),
            (write(&["a"]), NO),
            (logs(&["a"]), NO),
            (logs(&[]), YES),
            (RequestContent::LogsCancel, YES),
        ],
    );
}

// [utest->swdd~agent-authorizes-control-interface-requests~1]
#[test]
fn names_of_logs_match_every_pattern_of_every_rule() {
    let rules = authorizer(
        vec![log_rule(&["ivi_*", "abc"]), log_rule(&["*_log", "a*ab"])],
        vec![log_rule(&["x*", "secret", "ivi_*_private"])],
    );
    check_rows(
        &rules,
        &[
            (logs(&["ivi_"]), YES),
            (logs(&["ivi_radio"]), YES),
            (logs(&["abc"]), YES),
            (logs(&["my_log"]), YES),
            (logs(&["a-ab"]), YES),
            (logs(&["aab"]), YES),
            (logs(&["abc", "ivi_radio", "my_log"]), YES),
            (logs(&[]), YES),
            (logs(&["ab"]), NO),
            (logs(&["iv"]), NO),
            (logs(&["abcd"]), NO),
            (logs(&["secret"]), NO),
            (logs(&["x_log"]), NO),
            (logs(&["ivi_a_private"]), NO),
            (logs(&["abc", "unknown"]), NO),
            (logs(&["abc", "secret"]), NO),
            (logs(&[""]), NO),
        ],
    );
    let all = authorizer(vec![log_rule(&["*"])], vec![log_rule(&["secret"])]);
    check_rows(
        &all,
        &[
            (logs(&["any"]), YES),
            (logs(&["secret"]), NO),
            (logs(&["secrets"]), YES),
            (read(&["a"]), NO),
        ],
    );
}

#[test]
fn a_denial_names_what_was_asked_and_the_rule_that_decides() {
    let rules = authorizer(
        vec![state_rule(Operation::Read, &["a"]), log_rule(&["*"])],
        vec![state_rule(Operation::Read, &["a.b.*"]), log_rule(&["s*"])],
    );
    for (content, expected) in [
        (read(&["a.b"]), "'a.b' is denied by 'a.b.*'"),
        (read(&["a.c", "c"]), "no rule allows 'c'"),
        (read(&[]), "'' is denied by 'a.b.*'"),
        (logs(&["a", "secret"]), "'secret' is denied by 's*'"),
        (RequestContent::Missing, "it requests nothing"),
    ] {
        assert_eq!(rules.check(&content).unwrap_err().to_string(), expected);
    }
}

#[test]
fn rules_are_equal_when_they_say_the_same() {
    let one = authorizer(vec![state_rule(Operation::ReadWrite, &["a", "b"])], vec![]);
    let same = authorizer(
        vec![
            state_rule(Operation::Read, &["a"]),
            state_rule(Operation::ReadWrite, &["b"]),
            log_rule(&[]),
        ],
        vec![state_rule(Operation::Nothing, &["c"])],
    );
    assert_ne!(one, same, "the write rule of 'a' is missing");
    let same = authorizer(
        vec![
            state_rule(Operation::Read, &["a", "b"]),
            state_rule(Operation::Write, &["a", "b"]),
        ],
        vec![state_rule(Operation::Nothing, &["c"])],
    );
    assert_eq!(one, same);
    assert_eq!(
        one,
        authorizer(
            vec![state_rule(Operation::ReadWrite, &["b", "a", "a"])],
            vec![]
        )
    );
    assert_ne!(
        one,
        authorizer(vec![], vec![state_rule(Operation::ReadWrite, &["a", "b"])])
    );
}

#[test]
fn many_masks_against_many_rules_take_few_steps_or_are_denied() {
    let texts = |count: usize, text: &str| -> Vec<String> {
        (0..count)
            .map(|n| text.replace('#', &n.to_string()))
            .collect()
    };
    let rules = |masks: Vec<String>, names: Vec<String>| {
        let state = AccessRule::State {
            operation: Operation::ReadWrite,
            filter_masks: masks,
        };
        vec![
            state,
            AccessRule::Log {
                workload_names: names,
            },
        ]
    };
    let many = authorizer(
        rules(
            [
                texts(10_000, "desiredState.workloads.w#"),
                owned(&["*.*.*.tags"]),
            ]
            .concat(),
            texts(10_000, "w#"),
        ),
        rules(
            texts(10_000, "*.workloads.w#.agent"),
            texts(10_000, "secret_#"),
        ),
    );
    let read = |masks| {
        RequestContent::CompleteState(ReadState {
            masks,
            subscribe: false,
        })
    };
    let mut names = texts(10_000, "w#");
    let logs = |names: &[String]| {
        let instances = names
            .iter()
            .map(|name| InstanceName::with_id(name, "id", "agent"))
            .collect();
        RequestContent::Logs(LogsRequest {
            instances,
            ..LogsRequest::default()
        })
    };
    // Each mask is followed once through the rules, however many there are.
    let allowed = read(texts(10_000, "desiredState.workloads.w#.tags"));
    let lookups = mask_tree::lookups(|| assert_eq!(many.check(&allowed), Ok(())));
    assert!(lookups < 200_000, "{lookups}");
    assert_eq!(many.check(&logs(&names)), Ok(()));
    names.push("secret_7".to_owned());
    assert_eq!(
        many.check(&logs(&names)).unwrap_err().to_string(),
        "'secret_7' is denied by 'secret_7'"
    );
    // A request with all of them many times must not take the time of all others.
    assert_eq!(many.check(&read(texts(10, "*.*.*.tags.t#"))), Ok(()));
    for wide in ["*.*.*.tags.t#", "*.*.*", "*.*.*.tags"] {
        let lookups = mask_tree::lookups(|| {
            let denial = many.check(&read(texts(100_000, wide)));
            assert!(
                denial == Err(Denial::TooMuch) || wide == "*.*.*",
                "{wide}: {denial:?}"
            );
        });
        assert!(lookups < 3 * STEPS_MAX, "{lookups}");
    }
    let patterns = authorizer(rules(Vec::new(), texts(10_000, "*_#")), Vec::new());
    assert_eq!(
        patterns.check(&logs(&texts(10_000, "w#"))),
        Err(Denial::NotAllowed("w0".to_owned()))
    );
    assert_eq!(
        patterns.check(&logs(&texts(10_000, "w_1"))),
        Err(Denial::TooMuch)
    );
}

// -------------------------------------------------------------- what always holds

fn random_masks(random: &mut fastrand::Rng, count: usize) -> Vec<String> {
    let mask = |random: &mut fastrand::Rng| {
        let length = random.usize(..5);
        let parts: Vec<&str> = (0..length)
            .map(|_| {
                *random
                    .choice(["a", "b", "c", "*", "a", "b", ""].as_slice())
                    .unwrap()
            })
            .collect();
        parts.join(".")
    };
    (0..random.usize(..=count)).map(|_| mask(random)).collect()
}

/// Paths of all leaves, empty maps too.
fn leaves(node: &Node, path: &[String], found: &mut Vec<Vec<String>>) {
    match node {
        Node::Map(entries) if !entries.is_empty() => {
            for (key, child) in entries {
                leaves(child, &[path, &[key.to_owned()]].concat(), found);
            }
        }
        _ => found.push(path.to_vec()),
    }
}

/// Whether a pattern names the node at `path` or something above it. Written without the code that
/// is tested.
fn is_at_or_below(path: &[String], pattern: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    !pattern.contains(&"")
        && pattern.len() <= path.len()
        && pattern.iter().zip(path).all(|(p, k)| *p == "*" || p == k)
}

// [utest->swdd~agent-authorizes-control-interface-requests~1]
#[test]
fn whatever_is_allowed_shows_and_changes_nothing_that_is_denied() {
    let mut random = fastrand::Rng::with_seed(17);
    let (mut allowed_count, mut shown_count) = (0, 0);
    for round in 0..60_000 {
        let (allow, deny) = (random_masks(&mut random, 3), random_masks(&mut random, 2));
        let rule = |masks: &[String]| AccessRule::State {
            operation: Operation::ReadWrite,
            filter_masks: masks.to_vec(),
        };
        let rules = authorizer(vec![rule(&allow)], vec![rule(&deny)]);
        let masks = random_masks(&mut random, 3);
        let content = RequestContent::CompleteState(ReadState {
            masks: masks.clone(),
            subscribe: random.bool(),
        });
        let update = UpdateState {
            new_state: Some(Ok(Node::empty())),
            masks: masks.clone(),
            ..Default::default()
        };
        let decision = rules.check(&content).is_ok();
        assert_eq!(
            decision,
            rules.check(&RequestContent::UpdateState(update)).is_ok(),
            "same rules, same decision"
        );
        if !decision {
            continue;
        }
        allowed_count += 1;
        let tree = random_tree(&mut random, 4);
        let view = match masks.is_empty() {
            true => tree.clone(),
            false => MaskTree::new(masks.iter().map(String::as_str))
                .wanted()
                .take(tree.clone())
                .unwrap_or_default(),
        };
        let mut shown = Vec::new();
        if !view.is_empty_container() {
            leaves(&view, &[], &mut shown);
        }
        // What a write takes away counts as changed, too.
        let mut written = tree.clone();
        for mask in &masks {
            let mut changed = written.clone();
            if apply(&mut changed, &Node::empty(), [mask.as_str()]).is_ok() {
                written = changed;
            }
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        leaves(&tree, &[], &mut before);
        leaves(&written, &[], &mut after);
        if masks.is_empty() {
            after.clear();
        }
        let changed = before.into_iter().filter(|path| !after.contains(path));
        for path in shown.into_iter().chain(changed) {
            shown_count += 1;
            let place =
                format!("round {round}: {path:?} by {masks:?}, allowed {allow:?}, denied {deny:?}");
            assert!(
                !deny.iter().any(|pattern| is_at_or_below(&path, pattern)),
                "{place}"
            );
            let whole = path.is_empty() && allow.iter().any(|pattern| pattern == "*");
            let allowed = |pattern: &String| is_at_or_below(&path, pattern);
            assert!(whole || allow.iter().any(allowed), "{place}");
        }
    }
    assert!(
        allowed_count > 2_000 && shown_count > 2_000,
        "{allowed_count} requests, {shown_count} fields"
    );
}

#[test]
fn update_with_restarts_needs_a_rule_for_both_of_its_parts() {
    let of_web = state_rule(Operation::Write, &["desiredState.workloads.web"]);
    let rules = authorizer(vec![of_web], Vec::new());
    let request = |new_state, masks: &[&str], restart: &[&str]| {
        RequestContent::UpdateState(UpdateState {
            new_state,
            masks: owned(masks),
            restart: owned(restart),
        })
    };
    let state = || Some(Ok(Node::empty()));
    let web = "desiredState.workloads.web";
    let other = "desiredState.workloads.other";
    let not_allowed = |mask: &str| Err(Denial::NotAllowed(mask.to_owned()));
    assert_eq!(rules.check(&request(state(), &[web], &["web"])), Ok(()));
    assert_eq!(rules.check(&request(None, &[], &["web"])), Ok(()));
    assert_eq!(
        rules.check(&request(state(), &[other], &["web"])),
        not_allowed(other)
    );
    assert_eq!(
        rules.check(&request(state(), &[web], &["other"])),
        not_allowed(other)
    );
    assert_eq!(rules.check(&request(None, &[], &[])), not_allowed(""));
}

#[test]
fn masks_of_a_subscription_must_all_be_allowed() {
    let of_web = state_rule(Operation::Read, &["desiredState.workloads.web"]);
    let rules = authorizer(vec![of_web], Vec::new());
    let tree = |masks: &[&str]| MaskTree::new(masks.iter().copied());
    let web = "desiredState.workloads.web.agent";
    let other = "desiredState.workloads.other";
    assert_eq!(rules.check_read(Some(&tree(&[web]))), Ok(()));
    assert_eq!(
        rules.check_read(Some(&tree(&[web, other]))),
        Err(Denial::NotAllowed(other.to_owned()))
    );
    assert_eq!(
        rules.check_read(None),
        Err(Denial::NotAllowed(String::new()))
    );
}

#[test]
fn each_comparison_of_a_name_takes_one_step() {
    let patterns = NamePatterns::of(&[log_rule(&["a", "b*", "c*"])]);
    let mut steps = Steps(4);
    assert_eq!(patterns.matching("x", &mut steps), Ok(None));
    assert_eq!(steps.0, 1);
    assert_eq!(patterns.matching("x", &mut steps), Err(Denial::TooMuch));
}
