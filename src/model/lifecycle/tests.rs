//! Valid `lifecycle:` blocks, and the errors of invalid ones.

use super::*;
use crate::prepare_level::PrepareLevel;

const FULL: &str = "\
image: localhost/storage:2.1
lifecycle:
  activation: { pathExists: /dev/nvme0n1 }
  precondition: { pathExists: /run/keys/unsealed, pathMissing: /run/off, tagEquals: { zone: 1 } }
  ready:
    http: { port: 8080, path: /ready, status: 200 }
    initialDelayMs: 0
    periodMs: 500
    timeoutMs: 1000
    successThreshold: 1
    deadlineMs: 30000
    onDeadline: FAIL
  alive: { tcp: { port: 5432 }, periodMs: 5000, timeoutMs: 1000, failureThreshold: 3, action: RESTART }
  gone: { unix: /run/storage.sock, deadlineMs: 10000 }
  restart: { backoffMs: 500, backoffMaxMs: 300000, maxRestarts: 5, windowMs: 60000 }
  restartWith: DEPENDENCIES
  update: { stage: IMAGE, when: { pathMissing: /run/nav/lock }, healthyMs: 0, deadlineMs: 1000, onFailure: ROLLBACK }
";

fn read(block: &str) -> Result<Lifecycle, LifecycleError> {
    of_config("podman", &format!("image: x\nlifecycle:\n  {block}\n")).map(Option::unwrap)
}

fn local() -> IpAddr {
    IpAddr::from([127, 0, 0, 1])
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_documented_block_is_read_as_it_is_written() {
    let lifecycle = of_config("podman", FULL).unwrap().unwrap();
    let path = |path: &str| Some(path.to_owned());
    let ready = lifecycle.ready.as_ref().unwrap();
    assert_eq!(
        lifecycle.activation.as_ref().unwrap().path_exists,
        path("/dev/nvme0n1")
    );
    let precondition = lifecycle.precondition.as_ref().unwrap();
    assert_eq!(
        (&precondition.path_missing, &precondition.tags["zone"]),
        (&path("/run/off"), &"1".to_owned())
    );
    let http = Check::Http {
        host: local(),
        port: 8080,
        path: "/ready".to_owned(),
        status: Some(200),
    };
    assert_eq!(
        (&ready.check, ready.deadline, ready.on_deadline),
        (&http, Some(seconds(30)), OnDeadline::Fail)
    );
    let alive = lifecycle.alive.as_ref().unwrap();
    assert_eq!(
        alive.check,
        Check::Tcp {
            host: local(),
            port: 5432
        }
    );
    assert_eq!(
        (alive.failure_threshold, alive.action),
        (3, AliveAction::Restart)
    );
    assert_eq!(
        lifecycle.gone.as_ref().unwrap().check,
        Check::Unix("/run/storage.sock".to_owned())
    );
    assert_eq!(lifecycle.restart.unwrap().max_restarts, Some(5));
    let when = Condition {
        path_missing: path("/run/nav/lock"),
        ..Condition::default()
    };
    let terms = Terms {
        healthy: seconds(0),
        deadline: seconds(1),
    };
    let (stage, on_failure) = (PrepareLevel::Image, Some(OnFailure::Rollback));
    assert_eq!(
        lifecycle.update,
        Some(UpdateBlock {
            stage,
            when: Some(when),
            terms,
            on_failure
        })
    );
}

// [utest->swdd~lifecycle-restart-with-needs-a-dependency~1]
#[test]
fn restart_with_needs_a_dependency_that_runs() {
    use AddCondition::{Failed, Running, Succeeded};
    let follows = read("restartWith: DEPENDENCIES").unwrap();
    assert!(follows.restarts_with_dependencies());
    let without = read("restart: {}").unwrap();
    assert!(!without.restarts_with_dependencies());
    let none = "no dependencies";
    let others = "no dependency of the workload has 'ADD_COND_RUNNING'";
    for (conditions, expected) in [
        (&[][..], Some(none)),
        (&[Succeeded], Some(others)),
        (&[Failed, Succeeded], Some(others)),
        (&[Running], None),
        (&[Succeeded, Running], None),
    ] {
        let mut dependencies = BTreeMap::new();
        for (number, condition) in conditions.iter().enumerate() {
            dependencies.insert(format!("w{number}"), *condition);
        }
        assert_eq!(without.check_dependencies(&dependencies), Ok(()));
        let checked = follows.check_dependencies(&dependencies);
        let error = checked.map_err(|error| error.to_string());
        match (error, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => {
                assert!(error.starts_with("lifecycle.restartWith: "), "{error}");
                assert!(error.contains(expected), "{error}");
                assert!(error.contains("'dependencies'"), "{error}");
            }
            (error, expected) => panic!("{conditions:?}: {error:?}, expected {expected:?}"),
        }
    }
    let error = read("restartWith: ALL").unwrap_err().to_string();
    assert!(error.contains("lifecycle.restartWith"), "{error}");
    assert!(error.contains("DEPENDENCIES"), "{error}");
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let ready = read("ready: { file: /run/up }").unwrap().ready.unwrap();
    let pace = Pace {
        initial_delay: seconds(0),
        period: Duration::from_millis(500),
        timeout: seconds(1),
    };
    assert_eq!(
        (ready.pace, ready.success_threshold, ready.deadline),
        (pace, 1, Some(seconds(30)))
    );
    assert_eq!(
        read("ready: { file: /run/up, deadlineMs: 0 }")
            .unwrap()
            .ready
            .unwrap()
            .deadline,
        None
    );
    let alive = read("alive: { exec: [/bin/check, -q] }")
        .unwrap()
        .alive
        .unwrap();
    assert_eq!(
        (alive.pace.period, alive.failure_threshold, alive.action),
        (seconds(5), 3, AliveAction::Restart)
    );
    assert_eq!(
        read("gone: { tcp: { port: 1 } }")
            .unwrap()
            .gone
            .unwrap()
            .deadline,
        Some(seconds(10))
    );
    let restart = read("restart: {}").unwrap().restart.unwrap();
    let bounds = (
        restart.backoff,
        restart.backoff_max,
        restart.window,
        restart.max_restarts,
    );
    assert_eq!(
        bounds,
        (Duration::from_millis(500), seconds(300), seconds(60), None)
    );
    assert_eq!(
        (
            read("restart: {}").unwrap().prepare,
            read("prepare: INIT").unwrap().prepare
        ),
        (None, Some(PrepareLevel::Init))
    );
    let terms = Terms {
        healthy: seconds(10),
        deadline: seconds(120),
    };
    let update = UpdateBlock {
        stage: PrepareLevel::Create,
        when: None,
        terms,
        on_failure: None,
    };
    assert_eq!(read("update: {}").unwrap().update, Some(update));
    // A watchdog keeps nothing waiting.
    let watched = read("alive: { notify: true, timeoutMs: 3600000 }")
        .unwrap()
        .alive
        .unwrap();
    assert_eq!(watched.pace.timeout, seconds(3600));
    // The first notification that is missing is the failure.
    assert_eq!(watched.failure_threshold, 1);
    assert_eq!(
        read("ready: { file: /a, timeoutMs: 60000 }")
            .unwrap()
            .ready
            .unwrap()
            .pace
            .timeout,
        seconds(60)
    );
    assert_eq!(
        read("ready: { http: { port: 80 } }")
            .unwrap()
            .ready
            .unwrap()
            .check
            .to_string(),
        "http 80 /"
    );
}

/// Each of these would switch a gate off if it were ignored.
// [utest->swdd~lifecycle-block-is-checked~1]
#[test]
fn what_is_not_known_is_an_error_with_line_and_suggestion() {
    for (block, expected) in [
        (
            "redy: { file: /a }",
            "lifecycle.redy: unknown key; did you mean 'ready'? (line 3 column 3 of runtimeConfig)",
        ),
        (
            "ready: { fil: /a }",
            "lifecycle.ready.fil: unknown key; did you mean 'file'?",
        ),
        (
            "ready: { tcp: { prt: 1 } }",
            "lifecycle.ready.tcp.prt: unknown key; did you mean 'port'?",
        ),
        (
            "ready: { file: /a, deadlineMS: 1 }",
            "lifecycle.ready.deadlineMS: unknown key; did you mean 'deadlineMs'?",
        ),
        (
            "ready: { file: /a, failureThreshold: 3 }",
            "lifecycle.ready.failureThreshold: unknown key",
        ),
        (
            "ready: {}",
            "one of notify, exec, tcp, http, unix or file is needed",
        ),
        (
            "ready: ~",
            "lifecycle.ready: expected a mapping ('key: value'), found null",
        ),
        (
            "ready: { file: /a, tcp: { port: 1 } }",
            "'tcp' and 'file' are both there; only one can be",
        ),
        (
            "ready: { file: a }",
            "lifecycle.ready.file: expected an absolute path of the node, found text 'a'",
        ),
        (
            "ready: { file: /a, periodMs: 1 }",
            "expected a whole number from 50 to 86400000, found number 1",
        ),
        (
            "ready: { exec: [a], timeoutMs: 86400000 }",
            "expected a whole number from 50 to 60000, found number 86400000",
        ),
        (
            "alive: { tcp: { port: 1 }, timeoutMs: 60001 }",
            "expected a whole number from 50 to 60000, found number 60001",
        ),
        (
            "gone: { file: /a, timeoutMs: 60001 }",
            "expected a whole number from 50 to 60000, found number 60001",
        ),
        (
            "ready: { file: /a, periodMs: '500' }",
            "expected a whole number from 50 to 86400000, found text '500'",
        ),
        (
            "ready: { file: /a, periodMs: 0.5 }",
            "expected a whole number from 50 to 86400000, found number 0.5",
        ),
        (
            "ready: { file: /a, onDeadline: fail }",
            "unknown value 'fail', expected FAIL or WAIT",
        ),
        (
            "ready: { tcp: { port: 0 } }",
            "expected a whole number from 1 to 65535, found number 0",
        ),
        (
            "ready: { tcp: { port: 80, host: db } }",
            "expected an IP address or localhost (names are not looked up), found text 'db'",
        ),
        (
            "ready: { tcp: {} }",
            "lifecycle.ready.tcp: missing field `port`",
        ),
        (
            "ready: { http: { port: 80, path: 'a b' } }",
            "expected a path that begins with '/'",
        ),
        (
            "ready: { exec: /bin/true }",
            "lifecycle.ready.exec: expected a list ('- ' before each item), found text '/bin/true'",
        ),
        (
            "ready: { exec: [] }",
            "expected a command, found an empty list",
        ),
        (
            "ready: { notify: false }",
            "lifecycle.ready.notify: expected true, found boolean false",
        ),
        (
            "ready: { notify: true, periodMs: 500 }",
            "it means nothing together with 'notify'; leave it out",
        ),
        (
            "alive: { notify: true }",
            "lifecycle.alive: missing field `timeoutMs`",
        ),
        (
            "alive: { file: /a, action: STOP }",
            "unknown value 'STOP', expected RESTART or REPORT",
        ),
        (
            "gone: { exec: [a] }",
            "lifecycle.gone.exec: unknown key; known are tcp, http, unix, file, periodMs, timeoutMs, deadlineMs",
        ),
        (
            "restart: { maxRestart: 5 }",
            "lifecycle.restart.maxRestart: unknown key; did you mean 'maxRestarts'?",
        ),
        (
            "restart: { maxRestarts: -1 }",
            "expected a whole number from 0 to 4294967295, found number -1",
        ),
        (
            "precondition: {}",
            "at least one of pathExists, pathMissing or tagEquals is needed",
        ),
        (
            "precondition: { tagEquals: [a] }",
            "lifecycle.precondition.tagEquals: expected a mapping ('key: value', without '- '), found a list",
        ),
        (
            "prepare: create",
            "unknown value 'create', expected NONE, IMAGE, CREATE or INIT",
        ),
        (
            "prepare: true",
            "lifecycle.prepare: expected NONE, IMAGE, CREATE or INIT, found boolean true",
        ),
        ("ready: { file: /a }\n  ready: { file: /b }", "duplicate"),
        (
            "update: { stage: INIT }",
            "lifecycle.update.stage: unknown value 'INIT', expected NONE, IMAGE or CREATE",
        ),
        (
            "update: { stage: create }",
            "unknown value 'create', expected NONE, IMAGE or CREATE",
        ),
        (
            "update: { onFailure: ROLL_BACK }",
            "unknown value 'ROLL_BACK', expected ROLLBACK or KEEP",
        ),
        (
            "update: { when: {} }",
            "lifecycle.update.when: at least one of pathExists, pathMissing or tagEquals is needed",
        ),
        (
            "update: { healthyMs: 86400001 }",
            "expected a whole number from 0 to 86400000",
        ),
        (
            "update: { deadlineMs: 999 }",
            "expected a whole number from 1000 to 86400000",
        ),
        (
            "update: { deadlineMs: 10000 }",
            "'deadlineMs' (10000) must be greater than 'healthyMs' (10000)",
        ),
        (
            "update: { deadline: 1 }",
            "lifecycle.update.deadline: unknown key; did you mean 'deadlineMs'?",
        ),
    ] {
        let error = read(block).unwrap_err().to_string();
        assert!(error.contains(expected), "{block}: {error}");
        assert!(error.contains("line"), "{block}: {error}");
    }
}

/// The whole block would be ignored, with all its gates.
// [utest->swdd~lifecycle-block-is-checked~1]
#[test]
fn misspelt_key_of_the_block_is_an_error_with_line_and_hint() {
    for key in [
        "Lifecycle",
        "lifeCycle",
        "LIFECYCLE",
        "lifecyle",
        "lifecycles",
        "life-cycle",
        "livecycle",
    ] {
        let error = of_config(
            "podman",
            &format!("image: x\n{key}: {{ ready: {{ file: /a }} }}"),
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains(&format!("{key}: unknown key; did you mean 'lifecycle'?")),
            "{error}"
        );
        assert!(error.contains("line 2"), "{error}");
    }
}

#[test]
fn notify_is_for_podman_and_needs_its_options_for_itself() {
    let with = |runtime, rest: &str| {
        of_config(
            runtime,
            &format!("lifecycle: {{ ready: {{ notify: true }} }}\n{rest}"),
        )
    };
    assert!(
        with("podman", "commandOptions: [--net=host]")
            .unwrap()
            .unwrap()
            .wants_notify()
    );
    for runtime in ["podman-kube", "containerd"] {
        let error = with(runtime, "").unwrap_err().to_string();
        assert!(
            error.contains("'notify' is for the runtime podman only"),
            "{error}"
        );
    }
    for option in ["--sdnotify=ignore", "--pidfile"] {
        let error = with("podman", &format!("commandOptions: [-d, {option}]"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("'{option}' cannot be used together with 'notify'")),
            "{error}"
        );
    }
}

#[test]
fn no_block_and_other_runtimes_are_left_alone() {
    for (runtime, config) in [
        ("podman", "image: x"),
        ("podman", "commandArgs: [lifecycle]"),
        ("podman", "just lifecycle text"),
        ("podman", "half: a life: of a cycle"), // No YAML, which is the engine's affair.
        ("podman", "image: bicycle\nlife: 1\nlifetime: 2"),
        ("other", "lifecycle: { redy: 1 }"),
        ("podman", ""),
    ] {
        assert_eq!(of_config(runtime, config), Ok(None), "{config}");
    }
}

#[test]
fn a_condition_names_the_first_entry_that_does_not_hold() {
    let read = |text: &str| {
        read(&format!("activation: {text}"))
            .unwrap()
            .activation
            .unwrap()
    };
    let tags = BTreeMap::from([("zone".to_owned(), "2".to_owned())]);
    let exists = |path: &str| (path != "/silent").then_some(path == "/there");
    for (condition, unmet) in [
        (
            "{ pathExists: /there, pathMissing: /gone, tagEquals: { zone: 2 } }",
            None,
        ),
        ("{ pathExists: /gone }", Some("/gone does not exist")),
        ("{ pathMissing: /there }", Some("/there exists")),
        ("{ pathExists: /silent }", Some("/silent does not answer")),
        ("{ pathMissing: /silent }", Some("/silent does not answer")),
        (
            "{ tagEquals: { zone: '1' } }",
            Some("tag zone is '2', not '1'"),
        ),
        (
            "{ tagEquals: { area: '1' } }",
            Some("the agent has no tag area"),
        ),
    ] {
        assert_eq!(
            read(condition).unmet(exists, &tags).as_deref(),
            unmet,
            "{condition}"
        );
    }
}

#[test]
fn a_line_of_the_block_is_found_in_the_manifest() {
    let manifest = "workloads:\n  w:\n    runtimeConfig: |\n\n      image: x\n      lifecycle:\n        redy: 1\n";
    let at = Location {
        line: 3,
        column: 20,
    };
    assert_eq!(
        place_in_manifest(
            manifest,
            at,
            "image: x\nlifecycle:\n  redy: 1",
            Location { line: 3, column: 3 }
        ),
        Some(Location { line: 7, column: 9 })
    );
    assert_eq!(
        place_in_manifest(
            manifest,
            at,
            "image: x\nlifecycle: {redy: 1}",
            Location { line: 2, column: 1 }
        ),
        None
    );
}

#[test]
fn longest_timeout_of_a_probe_is_accepted() {
    for (timeout, is_accepted) in [(60_000, true), (60_001, false)] {
        let alive = format!("alive: {{ tcp: {{ port: 1 }}, timeoutMs: {timeout} }}");
        assert_eq!(read(&alive).is_ok(), is_accepted, "{timeout}");
    }
}

#[test]
fn line_of_a_block_is_found_below_at_most_three_empty_lines() {
    for (empty, expected) in [(0, Some(2)), (3, Some(5)), (4, None)] {
        let manifest = format!("runtimeConfig: |\n{}  image: x\n", "\n".repeat(empty));
        let begins = Location {
            line: 1,
            column: 16,
        };
        let at = Location { line: 1, column: 1 };
        let found = place_in_manifest(&manifest, begins, "image: x", at);
        assert_eq!(found.map(|place| place.line), expected, "{empty}");
    }
}
