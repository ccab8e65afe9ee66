//! Preparations of a whole agent, driven event by event, with a fake engine.

use crate::stepped_agent::{AgentRig, deleted_after, wanted_with};
use ankaios_fakes::fake_connector::{Call, FakeEngine, Fault};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{AddCondition, File, FileContent, Workload};
use ankaios_platform::clock::Clock as _;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn rig(level: PrepareLevel) -> AgentRig {
    AgentRig::with(|options| options.prepare.level = level)
}

/// A workload that waits until `far` runs on another agent.
fn needing(name: &str, options: &str, change: impl FnOnce(&mut Workload)) -> AddedWorkload {
    wanted_with(
        name,
        &format!("image: x\ncommandOptions: [{options}]"),
        |workload| {
            workload
                .dependencies
                .insert("far".to_owned(), AddCondition::Running);
            change(workload);
        },
    )
}

fn plain(name: &str) -> AddedWorkload {
    needing(name, "", |_| {})
}

fn far(rig: &mut AgentRig, phase: Phase) {
    rig.foreign("far", phase);
}

fn only_delete(rig: &mut AgentRig, added: &AddedWorkload) {
    rig.change(&[], &[deleted_after(&added.instance, &[])]);
}

const WAITS: &str = "w Pending(WaitingToStart): 'waits for 'far' to run'";

fn waits_prepared(level: &str) -> String {
    format!("w Pending(WaitingToStart): 'prepared: {level}; waits for 'far' to run'")
}

const TRIGGERED: &str = "w Pending(Starting): 'Triggered at runtime.'";

// [utest->swdd~agent-prepares-starts~1]
#[test]
fn what_waits_is_prepared_and_its_start_is_one_call() {
    for (level, steps) in [
        (PrepareLevel::None, &[][..]),
        (PrepareLevel::Image, &["image image: x\ncommandOptions: []"]),
        (PrepareLevel::Create, &["create-only w"]),
        (PrepareLevel::Init, &["create-only w", "init w"]),
    ] {
        let mut rig = rig(level);
        rig.add(&[plain("w")]);
        assert_eq!(rig.engine.take_calls(), steps, "{level}");
        let mut expected = vec![WAITS.to_owned()];
        if level > PrepareLevel::None {
            expected.push(waits_prepared(&level.to_string()));
        }
        assert_eq!(rig.sent(), expected, "{level}");
        rig.agent.pass(MINUTE);
        assert_eq!(
            (rig.engine.take_calls(), rig.sent()),
            (vec![], vec![]),
            "{level}"
        );
        far(&mut rig, Phase::Running);
        let start = if level < PrepareLevel::Create {
            "create w"
        } else {
            "start w"
        };
        assert_eq!(rig.engine.take_calls(), [start], "{level}");
        assert_eq!(rig.sent(), [TRIGGERED, "w Running(Ok)"], "{level}");
    }
}

// Its state is waiting, however far it is prepared.
// [utest->swdd~agent-prepares-starts~1]
// [utest->swdd~workload-ready-to-create-on-fulfilled-dependencies~1]
#[test]
fn prepared_workload_is_no_running_dependency() {
    for level in [
        PrepareLevel::Image,
        PrepareLevel::Create,
        PrepareLevel::Init,
    ] {
        let mut rig = rig(level);
        let user = needing("user", "", |workload| {
            let dependencies = [("base".to_owned(), AddCondition::Running)];
            workload.dependencies = dependencies.into();
        });
        rig.add(&[plain("base"), user]);
        rig.agent.pass(MINUTE);
        let calls = rig.engine.take_calls();
        let mut starts = calls.iter();
        let is_started =
            starts.any(|call| call.starts_with("start ") || call.starts_with("create "));
        assert!(!is_started, "{level}: {calls:?}");
        let waits = "waits for 'base' to run'";
        let sent = rig.sent();
        let mut of_user = sent.iter().filter(|state| state.starts_with("user "));
        assert!(of_user.all(|state| state.ends_with(waits)), "{sent:?}");
        far(&mut rig, Phase::Running);
        let sent = rig.sent();
        assert!(sent.contains(&"user Running(Ok)".to_owned()), "{sent:?}");
    }
}

#[test]
fn a_workload_says_for_itself_how_far_it_is_prepared() {
    let of = |level: &str| {
        wanted_with(
            "w",
            &format!("image: x\nlifecycle: {{ prepare: {level} }}"),
            |workload| {
                workload
                    .dependencies
                    .insert("far".to_owned(), AddCondition::Running);
            },
        )
    };
    let mut quiet = rig(PrepareLevel::Init);
    quiet.add(&[of("NONE")]);
    assert!(quiet.engine.take_calls().is_empty());
    let mut eager = rig(PrepareLevel::None);
    eager.add(&[of("CREATE")]);
    assert_eq!(eager.engine.take_calls(), ["create-only w"]);
}

#[test]
fn what_may_start_at_once_is_not_prepared() {
    let mut rig = rig(PrepareLevel::Init);
    far(&mut rig, Phase::Running);
    rig.add(&[plain("w")]);
    assert_eq!(rig.engine.take_calls(), ["create w"]);
    rig.engine.inject(Call::Create, [Fault::Fails]);
    rig.add(&[plain("v")]);
    rig.agent.pass(Duration::from_millis(500));
    assert_eq!(
        rig.engine.take_calls(),
        ["create v", "find v", "create v"],
        "the pause of a retry is no time to prepare"
    );
}

// ------------------------------------------------------------------ failures

#[test]
fn failed_start_of_a_prepared_container_creates_another_one() {
    for lost in [false, true] {
        let mut rig = rig(PrepareLevel::Create);
        rig.add(&[plain("w")]);
        rig.engine.take_calls();
        match lost {
            true => rig.engine.remove(&rig.container_of("w")),
            false => rig.engine.inject(Call::Start, [Fault::Fails]),
        }
        rig.engine.inject(Call::Create, [Fault::Fails]);
        rig.sent();
        far(&mut rig, Phase::Running);
        let removal = if lost { "delete nothing" } else { "delete w" };
        let calls = rig.engine.take_calls();
        assert_eq!(
            calls,
            ["start w", removal, "create w", "find w"],
            "{calls:?}"
        );
        let failed = "w Pending(Starting): 'Retry 1: Error: the engine says no'";
        assert_eq!(rig.sent(), [TRIGGERED, failed]);
        rig.agent.pass(Duration::from_millis(500));
        assert_eq!(
            (rig.engine.take_calls(), rig.engine.containers().len()),
            (vec!["create w".to_owned()], 1)
        );
    }
}

#[test]
fn start_that_the_engine_did_not_begin_removes_the_container() {
    let mut rig = rig(PrepareLevel::Create);
    rig.add(&[plain("w")]);
    rig.engine.inject(Call::Start, [Fault::IsMissing]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    rig.engine.take_calls();
    far(&mut rig, Phase::Running);
    // What could not be removed has its name, so a create would fail.
    assert_eq!(rig.engine.take_calls(), ["start w", "delete w"]);
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(rig.engine.take_calls(), ["delete w", "create w"]);
    assert_eq!(rig.engine.only().1.state.phase, Phase::Running);
}

#[test]
fn what_changed_since_the_create_is_created_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings");
    fs::write(&path, "1").unwrap();
    let mut rig = rig(PrepareLevel::Init);
    rig.add(&[needing(
        "w",
        &format!("'-v', '{}:/settings'", path.display()),
        |_| {},
    )]);
    fs::write(&path, "12").unwrap();
    rig.engine.take_calls();
    far(&mut rig, Phase::Running);
    assert_eq!(rig.engine.take_calls(), ["delete w", "create w"]);
}

#[test]
fn copied_files_of_an_initialised_container_are_compared() {
    for (runtime, level, changes, calls) in [
        ("podman", PrepareLevel::Init, false, &["start w"][..]),
        (
            "podman",
            PrepareLevel::Init,
            true,
            &["delete w", "create w"],
        ),
        ("podman", PrepareLevel::Create, true, &["start w"]),
        (
            "containerd",
            PrepareLevel::Create,
            true,
            &["delete w", "create w"],
        ),
    ] {
        let engine = FakeEngine::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        fs::write(&path, "nameserver 10.0.0.1").unwrap();
        let copied = BTreeSet::from([path.display().to_string()]);
        let mut rig = AgentRig::with(|options| {
            (options.prepare.level, options.prepare.copied) = (level, std::sync::Arc::new(copied));
            options.others = vec![("containerd", engine.clone())];
        });
        rig.add(&[needing("w", "", |workload| {
            workload.runtime = runtime.into()
        })]);
        if changes {
            fs::write(&path, "nameserver 10.0.0.10").unwrap();
        }
        let used = if runtime == "podman" {
            &rig.engine
        } else {
            &engine
        }
        .clone();
        used.take_calls();
        far(&mut rig, Phase::Running);
        assert_eq!(used.take_calls(), calls, "{runtime} {level} {changes}");
    }
}

#[test]
fn failed_preparation_is_shown_retried_and_blocks_no_start() {
    let mut rig = rig(PrepareLevel::Create);
    rig.engine.inject(Call::CreateOnly, vec![Fault::Fails; 40]);
    rig.add(&[plain("w")]);
    assert_eq!(rig.engine.take_calls(), ["create-only w", "find w"]);
    let sent = rig.sent();
    assert!(
        sent[1].starts_with(
            "w Pending(WaitingToStart): 'prepare: Error: the engine says no, retry in 1 s"
        ),
        "{sent:?}"
    );
    rig.agent.pass(MINUTE * 60);
    let tries = rig.engine.take_calls().len() / 2;
    assert!(
        (18..40).contains(&tries),
        "there is no limit of retries, only pauses: {tries}"
    );
    far(&mut rig, Phase::Running);
    assert_eq!(rig.engine.take_calls(), ["create w"]);
    assert!(rig.sent().ends_with(&["w Running(Ok)".to_owned()]));
}

#[test]
fn what_the_engine_can_never_create_is_prepared_once() {
    let mut rig = rig(PrepareLevel::Create);
    rig.engine.inject(Call::CreateOnly, [Fault::Unsupported]);
    rig.add(&[plain("w")]);
    rig.agent.pass(MINUTE * 60);
    assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    assert_eq!(
        rig.sent()[1..],
        ["w Pending(WaitingToStart): 'prepare: it will never work; waits for 'far' to run'"]
    );
    only_delete(&mut rig, &plain("w"));
    rig.add(&[needing("w", "--rm", |_| {})]);
    assert!(
        rig.engine
            .take_calls()
            .contains(&"create-only w".to_owned()),
        "an update may help"
    );
}

#[test]
fn what_took_too_long_is_searched_before_the_next_attempt() {
    let mut rig = rig(PrepareLevel::Create);
    rig.engine.inject(Call::CreateOnly, [Fault::TimesOut]);
    rig.add(&[plain("w")]);
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only w", "find w", "delete w", "create-only w"]
    );
    assert_eq!(rig.engine.containers().len(), 1);
}

/// The same instance may run: only its image is prepared when it comes again with other tags.
#[test]
fn image_that_took_too_long_removes_no_containers() {
    let mut rig = rig(PrepareLevel::Init);
    let old = wanted_with("w", "image: x", |_| {});
    rig.add(std::slice::from_ref(&old));
    rig.foreign("user", Phase::Running);
    rig.engine.take_calls();
    rig.engine.inject(Call::Image, [Fault::TimesOut]);
    let again = wanted_with("w", "image: x", |workload| {
        _ = workload.tags.insert("tag".to_owned(), "new".to_owned())
    });
    rig.change(&[again], &[deleted_after(&old.instance, &["user"])]);
    rig.agent.pass(Duration::from_secs(1));
    let image = "image image: x";
    assert_eq!(rig.engine.take_calls(), [image, image]);
    assert_eq!(rig.engine.only().1.state.phase, Phase::Running);
}

#[test]
fn without_a_thread_it_is_tried_again_later() {
    let refuse = |rig: &mut AgentRig, of_loop: bool, refuse: bool| match of_loop {
        true => rig.agent.loops.refuse(refuse),
        false => rig.agent.loops.refuse_calls(refuse),
    };
    for of_loop in [true, false] {
        let mut rig = rig(PrepareLevel::Create);
        refuse(&mut rig, of_loop, true);
        rig.add(&[plain("w")]);
        let sent = rig.sent();
        assert!(
            sent.last().is_some_and(|state| {
                state.contains("w Pending(WaitingToStart): 'prepare: no thread can be started: ")
            }),
            "{sent:?}"
        );
        refuse(&mut rig, of_loop, false);
        rig.agent.pass(Duration::from_secs(3));
        assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    }
}

#[test]
fn files_that_cannot_be_written_fail_the_preparation() {
    let mut rig = rig(PrepareLevel::Create);
    let bad = File {
        mount_point: "/x/".to_owned(),
        content: FileContent::Data(String::new()),
    };
    rig.add(&[needing("w", "", |workload| workload.files.push(bad))]);
    assert!(rig.engine.take_calls().is_empty());
    assert!(
        rig.sent()[1].contains("'prepare: Failed to create workload file: 'invalid mount point")
    );
}

#[test]
fn files_are_written_once_for_what_is_prepared() {
    let mut rig = rig(PrepareLevel::Create);
    let file = File {
        mount_point: "/f".to_owned(),
        content: FileContent::Data("text".to_owned()),
    };
    let added = needing("w", "", |workload| workload.files.push(file));
    rig.add(std::slice::from_ref(&added));
    let path = rig
        .folder
        .path()
        .join(added.instance.folder())
        .join("files/f");
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    far(&mut rig, Phase::Running);
    assert_eq!(rig.engine.take_calls(), ["create-only w", "start w"]);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
}

// -------------------------------------------------------- deletes and updates

#[test]
fn delete_of_a_prepared_workload_removes_it_then_reports_it() {
    let mut rig = rig(PrepareLevel::Init);
    let added = plain("w");
    rig.add(std::slice::from_ref(&added));
    rig.sent();
    rig.engine.take_calls();
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    only_delete(&mut rig, &added);
    let stuck = "w Stopping(DeleteFailed): 'Error: the engine says no'";
    assert_eq!(
        (rig.engine.take_calls(), rig.sent()),
        (vec!["delete w".to_owned()], vec![stuck.to_owned()])
    );
    let folder = rig.folder.path().join(added.instance.folder());
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), ["delete w", "delete w"]);
    assert_eq!(rig.sent().last().unwrap(), "w Removed");
    assert!(!folder.exists() && rig.engine.containers().is_empty());
}

/// A call that did something may have left a container; one that was not begun has not.
#[test]
fn unneeded_preparation_is_searched_only_if_the_engine_began_it() {
    for (fault, searches) in [
        (Fault::Unsupported, false),
        (Fault::Fails, true),
        (Fault::TimesOut, true),
    ] {
        let mut rig = rig(PrepareLevel::Create);
        rig.agent.loops.hold_calls = true;
        rig.engine.inject(Call::CreateOnly, [fault.clone()]);
        rig.add(&[plain("w")]);
        only_delete(&mut rig, &plain("w"));
        rig.agent.loops.hold_calls = false;
        rig.agent.run();
        let calls = rig.engine.take_calls();
        assert_eq!(calls[0], "create-only w", "{fault:?}");
        assert_eq!(calls.contains(&"find w".to_owned()), searches, "{fault:?}");
        assert!(rig.engine.containers().is_empty(), "{fault:?}");
    }
}

#[test]
fn an_add_waits_until_what_was_prepared_before_is_gone() {
    let mut rig = rig(PrepareLevel::Create);
    rig.add(&[plain("w")]);
    rig.engine.set_stuck("w", true);
    only_delete(&mut rig, &plain("w"));
    rig.engine.take_calls();
    rig.sent();
    far(&mut rig, Phase::Running);
    rig.add(&[plain("w")]);
    assert!(rig.engine.take_calls().is_empty(), "there would be two");
    assert_eq!(rig.sent()[..1], [TRIGGERED]);
    rig.engine.set_stuck("w", false);
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), ["delete w", "create w"]);
    assert_eq!(rig.engine.only().1.state.phase, Phase::Running);
}

#[test]
fn an_update_begins_anew_and_the_same_again_changes_nothing() {
    let mut rig = rig(PrepareLevel::Create);
    let (old, new) = (plain("w"), needing("w", "--rm", |_| {}));
    rig.add(std::slice::from_ref(&old));
    rig.agent.hello(std::slice::from_ref(&old));
    assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    rig.sent();
    rig.change(
        std::slice::from_ref(&new),
        &[deleted_after(&old.instance, &[])],
    );
    assert_eq!(rig.engine.take_calls(), ["delete w", "create-only w"]);
    assert_eq!(rig.sent(), ["w Removed", WAITS, &waits_prepared("CREATE")]);
    assert_eq!(rig.engine.only().1.instance, new.instance);
}

#[test]
fn what_waits_behind_its_predecessor_is_prepared_beside_it() {
    let mut rig = rig(PrepareLevel::Init);
    let old = wanted_with("w", "image: old", |_| {});
    rig.add(std::slice::from_ref(&old));
    rig.foreign("user", Phase::Running);
    rig.engine.take_calls();
    rig.sent();
    let new = wanted_with("w", "image: new", |_| {});
    rig.change(&[new], &[deleted_after(&old.instance, &["user"])]);
    assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    let waits = [
        "w Pending(WaitingToStart)",
        "w Pending(WaitingToStart): 'prepared: CREATE'",
    ];
    assert_eq!(
        rig.sent(),
        [&["w Stopping(WaitingToStop)"], &waits[..]].concat()
    );
    rig.foreign("user", Phase::Succeeded);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);
    assert_eq!(
        rig.sent(),
        [
            "w Stopping(RequestedAtRuntime)",
            "w Removed",
            TRIGGERED,
            "w Running(Ok)"
        ]
    );
}

#[test]
fn waiting_successor_shows_why_it_is_blocked() {
    let mut rig = rig(PrepareLevel::None);
    let old = wanted_with("w", "image: old", |_| {});
    rig.add(std::slice::from_ref(&old));
    rig.foreign("user", Phase::Running);
    rig.sent();
    let new = wanted_with(
        "w",
        "image: new\nlifecycle: { precondition: { pathExists: /key } }",
        |_| {},
    );
    rig.change(&[new], &[deleted_after(&old.instance, &["user"])]);
    let waits = "w Pending(WaitingToStart): 'precondition: /key does not exist'";
    assert_eq!(rig.sent(), ["w Stopping(WaitingToStop)", waits]);
    rig.paths.lock().unwrap().insert("/key".to_owned());
    rig.agent.pass(Duration::from_secs(2));
    assert_eq!(rig.sent(), ["w Pending(WaitingToStart)"]);
}

#[test]
fn next_instance_is_not_prepared_as_the_starting_one() {
    let mut rig = rig(PrepareLevel::Create);
    let [first, second, third] = ["first", "second", "third"]
        .map(|image| wanted_with("w", &format!("image: {image}"), |_| {}));
    rig.add(std::slice::from_ref(&first));
    rig.foreign("user", Phase::Running);
    rig.engine.inject(Call::CreateOnly, [Fault::Fails]);
    rig.change(
        std::slice::from_ref(&second),
        &[deleted_after(&first.instance, &["user"])],
    );
    assert_eq!(rig.engine.take_calls().last().unwrap(), "find w");
    // The second one will start as soon as the first one is gone, which fails; then it has to wait
    // for others.
    rig.engine
        .inject(Call::Delete, [(); 4].map(|()| Fault::Fails));
    rig.foreign("user", Phase::Succeeded);
    assert_eq!(rig.engine.take_calls(), ["delete w"]);
    rig.foreign("user", Phase::Running);
    rig.change(
        std::slice::from_ref(&third),
        &[deleted_after(&second.instance, &["user"])],
    );
    rig.agent.pass(MINUTE);
    let calls = [
        "delete w",
        "delete w",
        "delete w",
        "delete w",
        "create w",
        "create-only w",
    ];
    assert_eq!(rig.engine.take_calls(), calls);
    let there = |rig: &AgentRig| {
        rig.engine
            .containers()
            .into_iter()
            .map(|one| one.1.instance)
            .collect::<Vec<_>>()
    };
    assert_eq!(there(&rig), [second.instance, third.instance.clone()]);
    rig.foreign("user", Phase::Succeeded);
    let calls = ["stop w", "start w", "delete w"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(
        (rig.engine.take_calls(), there(&rig)),
        (calls, vec![third.instance])
    );
}

#[test]
fn a_precondition_that_stops_holding_takes_the_container_away() {
    let mut rig = rig(PrepareLevel::Init);
    rig.paths.lock().unwrap().insert("/key".to_owned());
    let config = "image: x\nlifecycle: { precondition: { pathExists: /key } }";
    rig.add(&[wanted_with("w", config, |workload| {
        workload
            .dependencies
            .insert("far".to_owned(), AddCondition::Running);
    })]);
    assert_eq!(rig.engine.take_calls(), ["create-only w", "init w"]);
    rig.paths.lock().unwrap().clear();
    rig.agent.pass(Duration::from_secs(2));
    assert_eq!(
        rig.engine.take_calls(),
        ["delete w".to_owned(), format!("image {config}")]
    );
    let last = "w Pending(WaitingToStart): 'precondition: /key does not exist; prepared: IMAGE; waits for 'far' to run'";
    assert_eq!(rig.sent().last().unwrap(), last);
    rig.paths.lock().unwrap().insert("/key".to_owned());
    rig.agent.pass(Duration::from_secs(2));
    assert_eq!(rig.engine.take_calls(), ["create-only w", "init w"]);
    assert_eq!(*rig.sent().last().unwrap(), waits_prepared("INIT"));
}

#[test]
fn leftover_of_a_failed_create_goes_before_a_preparation() {
    let mut rig = rig(PrepareLevel::Create);
    rig.paths.lock().unwrap().insert("/key".to_owned());
    let added = wanted_with(
        "w",
        "image: x\nlifecycle: { precondition: { pathExists: /key } }",
        |workload| {
            workload
                .dependencies
                .insert("far".to_owned(), AddCondition::Running);
        },
    );
    rig.engine.inject(Call::CreateOnly, [Fault::LeavesHalfDone]);
    rig.engine.inject(Call::Find, [Fault::Fails, Fault::Fails]);
    rig.add(std::slice::from_ref(&added));
    rig.paths.lock().unwrap().clear();
    assert_eq!(
        (rig.engine.take_calls(), rig.engine.containers().len()),
        (vec!["create-only w".to_owned(), "find w".to_owned()], 1)
    );
    rig.agent.pass(MINUTE);
    let calls = rig.engine.take_calls();
    assert_eq!(calls[..3], ["find w", "find w", "delete w"]);
    assert!(
        calls.last().is_some_and(|call| call.starts_with("image ")),
        "{calls:?}"
    );
    assert_eq!(rig.engine.containers().len(), 0);
}

#[test]
fn an_inactive_workload_is_not_prepared() {
    let mut rig = rig(PrepareLevel::Init);
    rig.add(&[wanted_with(
        "w",
        "image: x\nlifecycle: { activation: { tagEquals: { zone: b } } }",
        |_| {},
    )]);
    assert!(rig.engine.take_calls().is_empty());
}

// ----------------------------------------------------------- under way, bounds

#[test]
fn a_start_waits_for_the_call_under_way_and_for_no_further_step() {
    let mut rig = rig(PrepareLevel::Init);
    rig.agent.loops.hold_calls = true;
    rig.add(&[plain("w")]);
    far(&mut rig, Phase::Running);
    assert_eq!(
        (rig.engine.take_calls(), rig.sent().last().unwrap().as_str()),
        (vec![], TRIGGERED)
    );
    rig.agent.pass(Duration::from_secs(20));
    let age = |seconds| {
        format!(
            "w Pending(Starting): 'Triggered at runtime. The create has been running for {seconds} s.'"
        )
    };
    assert_eq!(rig.sent(), [age(10), age(20)]);
    rig.agent.loops.hold_calls = false;
    rig.agent.run();
    assert_eq!(rig.engine.take_calls(), ["create-only w", "start w"]);
    assert_eq!(rig.sent(), ["w Running(Ok)"]);
}

#[test]
fn start_of_a_prepared_container_blocks_other_preparations() {
    let mut rig = rig(PrepareLevel::Create);
    let (old, new) = (plain("w"), wanted_with("w", "image: new", |_| {}));
    rig.add(std::slice::from_ref(&old));
    rig.agent.loops.hold_calls = true;
    far(&mut rig, Phase::Running);
    rig.foreign("user", Phase::Running);
    rig.change(
        std::slice::from_ref(&new),
        &[deleted_after(&old.instance, &["user"])],
    );
    assert_eq!(
        rig.agent.loops.waiting_calls(),
        1,
        "the container of the old one only waits yet"
    );
    rig.agent.loops.hold_calls = false;
    rig.agent.run();
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only w", "start w", "create-only w"]
    );
}

#[test]
fn a_start_whose_preparation_fails_goes_on_with_a_create() {
    let mut rig = rig(PrepareLevel::Create);
    rig.agent.loops.hold_calls = true;
    rig.engine.inject(Call::CreateOnly, [Fault::Fails]);
    rig.add(&[plain("w")]);
    far(&mut rig, Phase::Running);
    rig.agent.loops.hold_calls = false;
    rig.agent.run();
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only w", "find w", "create w"]
    );
}

#[test]
fn delete_while_a_start_awaits_its_preparation_cancels_both() {
    let mut rig = rig(PrepareLevel::Create);
    rig.agent.loops.hold_calls = true;
    rig.add(&[plain("w")]);
    far(&mut rig, Phase::Running);
    rig.sent();
    only_delete(&mut rig, &plain("w"));
    assert_eq!(rig.sent(), ["w Stopping(RequestedAtRuntime)"]);
    rig.agent.loops.hold_calls = false;
    rig.agent.run();
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only w", "find w", "delete w"]
    );
    assert_eq!(
        (rig.sent(), rig.engine.containers().len()),
        (vec!["w Removed".to_owned()], 0)
    );
    assert_eq!(rig.agent.scheduler.sizes()[..2], [0, 0]);
}

#[test]
fn initialised_containers_are_bounded_and_granted_in_order() {
    let mut rig = AgentRig::with(|options| {
        (options.prepare.level, options.prepare.max) = (PrepareLevel::Init, 2)
    });
    let needs = |name: &str, other: &str| {
        wanted_with(name, "image: x", |workload| {
            workload
                .dependencies
                .insert(other.to_owned(), AddCondition::Running);
        })
    };
    rig.add(&[
        needs("a", "far"),
        needs("b", "other"),
        needs("c", "other"),
        needs("d", "other"),
    ]);
    let calls = rig.engine.take_calls();
    let of = |verb: &str| {
        calls
            .iter()
            .filter_map(|call| call.strip_prefix(verb))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of("create-only "), of("init ")),
        (vec!["a", "b", "c", "d"], vec!["a", "b"])
    );
    far(&mut rig, Phase::Running);
    assert_eq!(rig.engine.take_calls(), ["start a", "init c"]);
    only_delete(&mut rig, &needs("b", "other"));
    assert_eq!(rig.engine.take_calls(), ["delete b", "init d"]);
}

#[test]
fn two_that_leave_at_once_make_room_for_two() {
    let mut rig = AgentRig::with(|options| {
        (options.prepare.level, options.prepare.max) = (PrepareLevel::Init, 2)
    });
    let [a, b] = ["a", "b"].map(plain);
    rig.add(&[a.clone(), b.clone(), plain("c"), plain("d")]);
    rig.engine.take_calls();
    rig.change(
        &[],
        &[
            deleted_after(&a.instance, &[]),
            deleted_after(&b.instance, &[]),
        ],
    );
    let mut calls = rig.engine.take_calls();
    calls.sort_unstable();
    assert_eq!(calls, ["delete a", "delete b", "init c", "init d"]);
}

#[test]
fn workloads_that_wait_for_nothing_are_not_prepared() {
    let mut rig = AgentRig::with(|options| {
        (options.prepare.level, options.parallel_starts) = (PrepareLevel::Init, 2)
    });
    let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    let workloads: Vec<AddedWorkload> = names
        .iter()
        .map(|name| wanted_with(name, "image: x", |_| {}))
        .collect();
    rig.add(&workloads);
    let mut calls = rig.engine.take_calls();
    calls.sort_unstable();
    assert_eq!(
        calls,
        names
            .iter()
            .map(|name| format!("create {name}"))
            .collect::<Vec<_>>()
    );
}

#[test]
fn what_waits_prepared_wakes_the_agent_not_once_more() {
    let idle = |level| {
        let mut rig =
            AgentRig::with(|options| (options.prepare.level, options.prepare.max) = (level, 20));
        let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
        rig.add(&names.iter().map(|name| plain(name)).collect::<Vec<_>>());
        let prepared = rig.engine.containers().len();
        rig.engine.take_calls();
        rig.sent();
        let end = rig.clock.now() + MINUTE;
        let mut wakes = Vec::new();
        while rig.agent.scheduler.due() < end {
            let due = rig.agent.scheduler.due();
            wakes.push(end - due);
            rig.clock.advance(rig.clock.until(due));
            rig.agent.scheduler.tick();
        }
        assert!(
            !rig.agent.loops.step(),
            "a parked thread is not woken: {level}"
        );
        assert_eq!(
            (rig.engine.take_calls(), rig.sent()),
            (vec![], vec![]),
            "{level}"
        );
        (prepared, wakes)
    };
    let (quiet, (prepared, wakes)) = (idle(PrepareLevel::None), idle(PrepareLevel::Init));
    assert_eq!((prepared, &wakes), (20, &quiet.1));
    assert!(!wakes.is_empty(), "the load is reported");
}

#[test]
fn preparations_wait_for_a_free_core_first_come_first_served() {
    let mut rig = AgentRig::with(|options| {
        (options.prepare.level, options.prepare.cores) = (PrepareLevel::Create, 1)
    });
    rig.agent.loops.hold_calls = true;
    rig.add(&[plain("a"), plain("b"), plain("c")]);
    only_delete(&mut rig, &plain("b"));
    rig.add(&[plain("b")]);
    rig.agent.loops.hold_calls = false;
    rig.agent.run();
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only a", "create-only c", "create-only b"]
    );
}

// -------------------------------------------------------------- agent restart

/// The states that the engine's container of `w` may be in, with the calls of a new agent whose `w`
/// still waits, and then may start.
#[test]
fn prepared_container_changed_by_others_is_prepared_again() {
    for is_started in [false, true] {
        let mut rig = rig(PrepareLevel::Create);
        rig.add(&[plain("w"), wanted_with("other", "image: x", |_| {})]);
        rig.sent();
        let (id, _) = rig
            .engine
            .containers()
            .into_iter()
            .find(|(_, one)| &*one.instance.workload == "w")
            .unwrap();
        rig.engine.take_calls();
        if is_started {
            rig.engine
                .set_state(&id, ExecutionState::plain(Phase::Running));
        } else {
            rig.engine.remove(&id);
        }
        rig.agent.run();
        assert_eq!(rig.sent(), [WAITS, &waits_prepared("CREATE")]);
        let removal = if is_started {
            "delete w"
        } else {
            "delete nothing"
        };
        assert_eq!(rig.engine.take_calls(), [removal, "create-only w"]);
        far(&mut rig, Phase::Running);
        assert_eq!(rig.engine.take_calls(), ["start w"]);
    }
}

#[test]
fn next_agent_keeps_containers_prepared_in_the_same_boot() {
    let added = plain("w");
    type Change<'c> = &'c dyn Fn(&mut AgentRig);
    let changes: [(&str, Change<'_>, &[&str], &str); 5] = [
        ("unchanged", &|_| (), &[], "start w"),
        (
            "another boot",
            &|rig| rig.prepare.boot = "boot 2".into(),
            &["delete w", "create-only w", "init w"],
            "start w",
        ),
        (
            "init is lost",
            &|rig| {
                let created = ExecutionState::with_info(Phase::PendingStarting, "created");
                rig.engine.set_state(&rig.container_of("w"), created);
            },
            &["delete w", "create-only w", "init w"],
            "start w",
        ),
        (
            "no record",
            &|rig| rig.engine.set_record(&plain("w").instance, "?".to_owned()),
            &["delete w", "create-only w", "init w"],
            "start w",
        ),
        (
            "not prepared any more",
            &|rig| rig.prepare.level = PrepareLevel::None,
            &["delete w"],
            "create w",
        ),
    ];
    for (what, change, waiting, start) in changes {
        let mut rig = rig(PrepareLevel::Init);
        rig.add(std::slice::from_ref(&added));
        change(&mut rig);
        rig.engine.take_calls();
        rig.restart_agent(std::slice::from_ref(&added));
        assert_eq!(
            rig.engine.take_calls(),
            [&["list"], waiting].concat(),
            "{what}"
        );
        far(&mut rig, Phase::Running);
        assert_eq!(
            rig.engine.take_calls().last().map(String::as_str),
            Some(start),
            "{what}"
        );
        assert_eq!(rig.engine.only().1.state.phase, Phase::Running, "{what}");
        assert!(
            !rig.sent().iter().any(|state| state.contains("Stopping")),
            "{what}"
        );
    }
}

#[test]
fn next_agent_starts_or_removes_prepared_containers() {
    let mut wanted = rig(PrepareLevel::Create);
    let added = plain("w");
    wanted.add(std::slice::from_ref(&added));
    wanted.engine.take_calls();
    let now = wanted_with("w", "image: x\ncommandOptions: []", |_| {});
    wanted.restart_agent(&[now]);
    assert_eq!(
        wanted.engine.take_calls(),
        ["list", "delete w", "create w"],
        "it is another definition"
    );

    let mut unwanted = rig(PrepareLevel::Create);
    unwanted.add(std::slice::from_ref(&added));
    unwanted.restart_agent(&[]);
    assert!(unwanted.engine.containers().is_empty());
}

#[test]
fn container_of_an_earlier_create_without_record_is_removed() {
    let engine = FakeEngine::new();
    let added = plain("w");
    engine.add(
        &added.instance,
        ExecutionState::with_info(Phase::PendingStarting, "created"),
    );
    let mut rig = AgentRig::silent_with(engine, |options| {
        options.prepare.level = PrepareLevel::Create
    });
    rig.agent.hello(std::slice::from_ref(&added));
    assert_eq!(
        rig.engine.take_calls(),
        ["list", "delete w", "create-only w"]
    );
}

#[test]
fn the_next_agent_finds_old_and_new_of_an_update_that_waited() {
    let mut rig = rig(PrepareLevel::Create);
    let old = wanted_with("w", "image: old", |_| {});
    rig.add(std::slice::from_ref(&old));
    let new = plain("w");
    rig.change(
        std::slice::from_ref(&new),
        &[deleted_after(&old.instance, &["w2"])],
    );
    rig.engine.take_calls();
    assert_eq!(
        rig.engine.containers().len(),
        1,
        "nobody has to be waited for"
    );
    let mut rig = self::rig(PrepareLevel::Create);
    rig.add(std::slice::from_ref(&old));
    let user = wanted_with("w2", "image: user", |workload| {
        workload
            .dependencies
            .insert("w".to_owned(), AddCondition::Running);
    });
    rig.add(std::slice::from_ref(&user));
    let next = wanted_with("w", "image: new", |_| {});
    rig.change(
        std::slice::from_ref(&next),
        &[deleted_after(&old.instance, &["w2"])],
    );
    assert_eq!(rig.engine.containers().len(), 3);
    rig.engine.take_calls();
    rig.restart_agent(&[next.clone(), user]);
    let calls = rig.engine.take_calls();
    assert_eq!(calls, ["list", "delete w", "start w"]);
    assert!(
        rig.engine
            .containers()
            .values()
            .all(|container| container.state.phase == Phase::Running)
    );
}
