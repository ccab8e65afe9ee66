//! Updates that are staged, of a whole agent that is driven event by event, with a fake engine.

use crate::events::SchedulerEvent;
use crate::stepped_agent::{AgentRig, deleted_after, wanted_with};
use ankaios_fakes::fake_connector::{Call, FakeEngine, Fault};
use ankaios_model::execution_state::Phase;
use ankaios_model::messages::{AddedWorkload, FromServer, PreparedInstance, ToServer};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{AddCondition, RestartPolicy};
use ankaios_runtime::limits::ENGINE_REASON_MAX;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn block(image: &str, update: &str) -> String {
    format!("image: {image}\nlifecycle: {{ update: {update} }}")
}

fn old() -> AddedWorkload {
    wanted_with("w", "image: old", |_| {})
}

fn new() -> AddedWorkload {
    wanted_with("w", &block("new", "{}"), |_| {})
}

/// An agent whose `w` runs.
fn rig() -> AgentRig {
    let mut rig = AgentRig::new();
    rig.add(&[old()]);
    forget(&rig);
    rig
}

fn forget(rig: &AgentRig) {
    rig.engine.take_calls();
    rig.sent();
}

fn stage(rig: &mut AgentRig, list: &[AddedWorkload]) {
    rig.agent.receive(FromServer::Prepare(list.to_vec()));
}

fn switch_to(rig: &mut AgentRig, new: &AddedWorkload, needed_by: &[&str]) {
    rig.change(
        std::slice::from_ref(new),
        &[deleted_after(&old().instance, needed_by)],
    );
}

/// The reports about staged instances since the last call. States that were sent meanwhile are
/// lost.
fn reports(rig: &AgentRig) -> Vec<String> {
    let messages = std::iter::from_fn(|| rig.agent.uplink.next());
    let prepared = messages.filter_map(|message| match message {
        ToServer::Prepared(reports) => Some(reports),
        _ => None,
    });
    let text = |report: PreparedInstance| {
        let PreparedInstance {
            instance,
            level,
            reason,
            tries,
            is_final,
            unmet,
        } = report;
        let level = level.map(|level| format!(" {level}")).unwrap_or_default();
        let reason = reason
            .map(|reason| format!(" '{reason}' {tries}"))
            .unwrap_or_default();
        let unmet = unmet.map(|unmet| format!(" ({unmet})")).unwrap_or_default();
        format!(
            "{}{level}{reason}{}{unmet}",
            instance.workload,
            if is_final { " final" } else { "" }
        )
    };
    prepared.flatten().map(text).collect()
}

fn running(rig: &AgentRig) -> usize {
    rig.engine
        .containers()
        .values()
        .filter(|container| container.state.phase == Phase::Running)
        .count()
}

// [utest->swdd~agent-stages-updates~1]
#[test]
fn listed_instance_is_prepared_and_removed_when_unlisted() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    assert_eq!(reports(&rig), ["w CREATE"]);
    rig.agent.pass(MINUTE);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig), rig.sent()),
        (vec![], vec![], vec![])
    );
    assert_eq!((rig.engine.containers().len(), running(&rig)), (2, 1));
    stage(&mut rig, &[]);
    assert_eq!(rig.engine.take_calls(), ["delete w"]);
    assert_eq!(
        (rig.engine.only().1.instance, rig.sent()),
        (old().instance, vec![])
    );
}

#[test]
fn preparation_goes_as_far_as_block_and_options_allow() {
    let with = |options: &str, update: &str| {
        wanted_with(
            "w",
            &format!("image: x\ncommandOptions: [{options}]\nlifecycle: {{ update: {update} }}"),
            |_| {},
        )
    };
    let same = AddedWorkload {
        instance: old().instance,
        ..new()
    };
    let rows: [(AddedWorkload, &str, &str); 5] = [
        (with("", "{ stage: IMAGE }"), "image", "w IMAGE"),
        (
            with("", "{ stage: NONE, when: { pathMissing: /x } }"),
            "",
            "w NONE",
        ),
        (with("--name=n", "{}"), "image", "w IMAGE"),
        (with("--pull=always", "{}"), "", "w NONE"),
        (same, "image", "w IMAGE"),
    ];
    for (added, call, report) in rows {
        let mut rig = rig();
        stage(&mut rig, std::slice::from_ref(&added));
        let calls: Vec<String> = rig
            .engine
            .take_calls()
            .iter()
            .map(|call| call[..5].to_owned())
            .collect();
        assert_eq!(calls.concat(), call, "{report}");
        assert_eq!(reports(&rig).last().map(String::as_str), Some(report));
    }
}

/// A new workload, or one that moves to this node.
#[test]
fn missing_workload_is_prepared_and_started_when_desired() {
    let mut rig = AgentRig::new();
    stage(&mut rig, &[new()]);
    rig.agent.pass(MINUTE);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig)),
        (
            vec!["create-only w".to_owned()],
            vec!["w CREATE".to_owned()]
        )
    );
    rig.restart_agent_with(&[], |agent| agent.receive(FromServer::Prepare(vec![new()])));
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig).last().cloned()),
        (vec!["list".into()], Some("w CREATE".into()))
    );
    rig.add(&[new()]);
    stage(&mut rig, &[]);
    rig.agent.pass(MINUTE);
    assert_eq!(
        (rig.engine.take_calls(), running(&rig)),
        (vec!["start w".to_owned()], 1)
    );
}

// [utest->swdd~agent-switches-to-prepared~1]
#[test]
fn switch_stops_then_starts_then_removes_the_old_container() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    switch_to(&mut rig, &new(), &[]);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);
    let expected = [
        "w Stopping(RequestedAtRuntime)",
        "w Removed",
        "w Pending(Starting): 'Triggered at runtime.'",
        "w Running(Ok)",
    ];
    assert_eq!(rig.sent(), expected);
    assert_eq!(rig.engine.only().1.instance, new().instance);
    stage(&mut rig, &[]);
    rig.agent.pass(MINUTE);
    assert!(
        rig.engine.take_calls().is_empty(),
        "what runs is not unwanted because it is not listed any more"
    );
}

#[test]
fn old_container_that_cannot_be_removed_blocks_nothing() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);
    assert_eq!(rig.sent().last().map(String::as_str), Some("w Running(Ok)"));
    rig.agent.pass(MINUTE);
    assert_eq!(
        (rig.engine.take_calls(), rig.sent()),
        (vec!["delete w".to_owned(); 2], vec![])
    );
    assert_eq!(rig.engine.only().1.instance, new().instance);
}

#[test]
fn nothing_is_started_before_the_old_container_has_stopped() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    rig.engine.inject(Call::Stop, [Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    assert_eq!(rig.engine.take_calls(), ["stop w"]);
    assert!(
        rig.sent()
            .last()
            .is_some_and(|state| state.starts_with("w Stopping(DeleteFailed)"))
    );
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);
}

#[test]
fn old_container_goes_even_if_the_new_one_cannot_start() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    rig.engine.inject(Call::Start, [Fault::Fails]);
    rig.engine.inject(Call::Create, [Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    let calls = rig.engine.take_calls();
    assert_eq!(
        calls.iter().filter(|call| *call == "stop w").count(),
        1,
        "{calls:?}"
    );
    let last = |wanted: &str| calls.iter().rposition(|call| call == wanted);
    assert!(last("delete w") > last("create w"), "{calls:?}");
    assert_eq!(rig.engine.containers().len(), 0);
    rig.agent.pass(MINUTE);
    assert_eq!(
        (rig.engine.only().1.instance, running(&rig)),
        (new().instance, 1)
    );
}

/// As when an update is undone while the engine refuses to remove the replaced container.
#[test]
fn returning_instance_is_created_after_its_stopped_container() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    stage(&mut rig, &[]);
    forget(&rig);
    rig.change(&[old()], &[deleted_after(&new().instance, &[])]);
    assert_eq!(
        rig.engine.take_calls(),
        ["delete w", "delete w", "create w"]
    );
    assert_eq!(
        (rig.engine.only().1.instance, running(&rig)),
        (old().instance, 1)
    );
}

/// Seed 14009730 of the simulation: the returning instance had to wait for others, and was prepared
/// beside its stopped container once nothing else of the workload was left.
#[test]
fn returning_instance_is_prepared_after_its_stopped_container() {
    let mut rig = AgentRig::with(|options| options.prepare.level = PrepareLevel::Create);
    rig.add(&[old()]);
    stage(&mut rig, &[new()]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    stage(&mut rig, &[]);
    forget(&rig);
    let again = wanted_with("w", "image: old", |workload| {
        workload
            .dependencies
            .insert("far".to_owned(), AddCondition::Running);
    });
    rig.change(&[again], &[deleted_after(&new().instance, &[])]);
    assert_eq!(rig.engine.take_calls(), ["delete w", "image image: old"]);
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), ["delete w", "create-only w"]);
    assert_eq!(rig.engine.only().1.instance, old().instance);
}

#[test]
fn a_delete_after_the_switch_leaves_nothing() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    switch_to(&mut rig, &new(), &[]);
    stage(&mut rig, &[]);
    rig.change(&[], &[deleted_after(&new().instance, &[])]);
    assert_eq!(rig.sent().last().map(String::as_str), Some("w Removed"));
    rig.agent.pass(MINUTE);
    assert!(rig.engine.containers().is_empty());
    assert_eq!((rig.agent.loops.count(), rig.sent()), (0, vec![]));
}

/// Seed 10206204 of the simulation: an update whose instance waited to start was rolled back, and
/// the next one staged the same instance. The server never got the end of the first.
#[test]
fn waiting_instance_that_is_staged_again_ends_when_deleted() {
    let mut rig = AgentRig::new();
    let web = wanted_with("web", &block("new", "{}"), |workload| {
        workload
            .dependencies
            .insert("db".to_owned(), AddCondition::Running);
    });
    stage(&mut rig, std::slice::from_ref(&web));
    forget(&rig);
    rig.add(std::slice::from_ref(&web));
    let sent = rig.sent();
    assert!(
        sent[0].starts_with("web Pending(WaitingToStart)"),
        "{sent:?}"
    );
    assert_eq!(rig.engine.containers().len(), 1, "it is prepared");
    rig.change(&[], &[deleted_after(&web.instance, &[])]);
    assert_eq!(rig.sent(), ["web Removed"]);
    assert_eq!(rig.engine.containers().len(), 1, "it stays prepared");
    stage(&mut rig, &[]);
    rig.agent.pass(MINUTE);
    assert!(rig.engine.containers().is_empty());
    assert_eq!((rig.agent.loops.count(), rig.sent()), (0, vec![]));
}

#[test]
fn staged_container_is_kept_while_the_switch_waits() {
    let mut rig = rig();
    let user = wanted_with("user", "image: user", |workload| {
        workload
            .dependencies
            .insert("w".to_owned(), AddCondition::Running);
    });
    rig.add(std::slice::from_ref(&user));
    stage(&mut rig, &[new()]);
    forget(&rig);
    switch_to(&mut rig, &new(), &["user"]);
    stage(&mut rig, &[]);
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), [""; 0]);
    rig.change(&[], &[deleted_after(&user.instance, &[])]);
    assert_eq!(
        rig.engine.take_calls(),
        ["delete user", "stop w", "start w", "delete w"]
    );
}

#[test]
fn failures_are_reported_and_tried_again_as_often_as_creates() {
    let mut rig = rig();
    rig.engine.inject(Call::CreateOnly, [Fault::Fails]);
    stage(&mut rig, &[new()]);
    let failed = reports(&rig);
    assert!(
        failed
            .last()
            .is_some_and(|report| report.starts_with("w '") && report.ends_with("' 1")),
        "{failed:?}"
    );
    assert!(failed[0].len() < ENGINE_REASON_MAX + 10);
    rig.agent.pass(MINUTE);
    assert_eq!(reports(&rig).last().map(String::as_str), Some("w CREATE"));

    let mut hopeless = self::rig();
    hopeless
        .engine
        .inject(Call::CreateOnly, std::iter::repeat_n(Fault::Fails, 30));
    stage(&mut hopeless, &[new()]);
    hopeless.agent.pass(200 * MINUTE);
    assert!(
        reports(&hopeless)
            .last()
            .is_some_and(|report| report.ends_with("' 21 final"))
    );
    assert_eq!(
        hopeless
            .engine
            .take_calls()
            .iter()
            .filter(|call| *call == "create-only w")
            .count(),
        21
    );
    assert_eq!(running(&hopeless), 1);

    let mut refused = self::rig();
    refused
        .engine
        .inject(Call::CreateOnly, [Fault::Unsupported]);
    stage(&mut refused, &[new()]);
    assert_eq!(
        reports(&refused).last().map(String::as_str),
        Some("w 'it will never work' 1 final")
    );
}

#[test]
fn a_runtime_that_is_not_there_is_a_final_failure() {
    let mut rig = rig();
    let other = wanted_with("w", &block("x", "{}"), |workload| {
        workload.runtime = "containerd".into()
    });
    stage(&mut rig, &[other]);
    let told = reports(&rig);
    assert!(
        told[0].contains("Unsupported Runtime") && told[0].ends_with("0 final"),
        "{told:?}"
    );
}

#[test]
fn staging_conditions_are_checked_each_second_reported_once() {
    let mut rig = rig();
    let when = wanted_with(
        "w",
        &block("new", "{ when: { pathMissing: /lock } }"),
        |_| {},
    );
    rig.paths.lock().unwrap().insert("/lock".to_owned());
    stage(&mut rig, &[when]);
    assert_eq!(reports(&rig), ["w CREATE (/lock exists)"]);
    rig.paths.lock().unwrap().clear();
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(reports(&rig), ["w CREATE"]);
    rig.paths.lock().unwrap().insert("/lock".to_owned());
    rig.agent.pass(Duration::from_secs(1));
    assert_eq!(reports(&rig), ["w CREATE (/lock exists)"]);
    assert_eq!(running(&rig), 1, "the old one is not concerned");
}

#[test]
fn what_may_not_run_is_created_when_its_precondition_holds() {
    let mut rig = rig();
    let config = "image: new\nlifecycle: { update: {}, precondition: { pathExists: /key } }";
    stage(&mut rig, &[wanted_with("w", config, |_| {})]);
    assert_eq!(
        reports(&rig).last().map(String::as_str),
        Some("w IMAGE (/key does not exist)")
    );
    forget(&rig);
    rig.paths.lock().unwrap().insert("/key".to_owned());
    rig.agent.pass(Duration::from_secs(2));
    assert_eq!(rig.engine.take_calls(), ["create-only w"]);
    assert_eq!(reports(&rig).last().map(String::as_str), Some("w CREATE"));
}

/// As when a server that was killed goes back to before a switch that it has not stored.
#[test]
fn same_instance_is_created_when_another_one_runs() {
    let mut rig = rig();
    stage(
        &mut rig,
        &[AddedWorkload {
            instance: old().instance,
            ..new()
        }],
    );
    assert_eq!(reports(&rig).last().map(String::as_str), Some("w IMAGE"));
    forget(&rig);
    switch_to(&mut rig, &wanted_with("w", "image: other", |_| {}), &[]);
    assert_eq!(
        rig.engine.take_calls(),
        ["delete w", "create w", "create-only w"]
    );
    assert_eq!(reports(&rig).last().map(String::as_str), Some("w CREATE"));
}

#[test]
fn what_runs_as_it_is_to_be_staged_needs_no_preparation() {
    let mut rig = rig();
    switch_to(&mut rig, &new(), &[]);
    forget(&rig);
    stage(&mut rig, &[new()]);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig)),
        (vec![], vec!["w CREATE".to_owned()])
    );
}

#[test]
fn what_is_not_relevant_on_the_node_needs_no_preparation() {
    let mut rig = rig();
    let config = "image: new\nlifecycle: { update: {}, activation: { tagEquals: { zone: b } } }";
    stage(&mut rig, &[wanted_with("w", config, |_| {})]);
    assert_eq!(
        (reports(&rig), rig.engine.take_calls()),
        (vec!["w NONE".to_owned()], vec![])
    );
}

#[test]
fn next_session_gets_all_staging_reports_once() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.pass(MINUTE);
    assert_eq!(rig.engine.take_calls(), [""; 0]);
    stage(&mut rig, &[new()]);
    rig.agent.hello(&[old()]);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig)),
        (vec![], vec!["w CREATE".to_owned()])
    );
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&[old()]);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig)),
        (vec!["delete w".to_owned()], vec![])
    );
}

#[test]
fn agent_back_after_the_switch_starts_its_staged_container() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&[new()]);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);
}

#[test]
fn agent_away_during_staging_prepares_before_it_stops() {
    let mut rig = rig();
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&[new()]);
    assert_eq!(
        rig.engine.take_calls(),
        ["create-only w", "stop w", "start w", "delete w"]
    );

    let mut restarted = self::rig();
    restarted.restart_agent_with(&[new()], |_| {});
    restarted.agent.pass(MINUTE);
    assert_eq!(
        restarted.engine.take_calls(),
        ["list", "create-only w", "delete w", "start w"]
    );

    let mut unstaged = self::rig();
    let new = wanted_with("w", &block("new", "{ stage: NONE }"), |_| {});
    unstaged.agent.hello(std::slice::from_ref(&new));
    assert_eq!(unstaged.engine.take_calls(), ["delete w", "create w"]);
}

#[test]
fn failed_staging_of_an_absent_agent_leaves_a_minute_to_undo() {
    let failing = || {
        let mut rig = rig();
        rig.engine.inject(Call::CreateOnly, [Fault::Unsupported]);
        rig.agent.hello(&[new()]);
        assert_eq!(rig.engine.take_calls(), ["create-only w"]);
        let sent = rig.sent();
        assert_eq!(
            sent.last().map(String::as_str),
            Some("w Pending(StartingFailed): 'cannot be staged: it will never work'")
        );
        rig
    };
    let mut taken_back = failing();
    taken_back.agent.pass(MINUTE / 2);
    taken_back.agent.hello(&[old()]);
    taken_back.agent.pass(MINUTE);
    assert_eq!(
        (taken_back.engine.take_calls(), running(&taken_back)),
        (vec![], 1)
    );
    assert_eq!(taken_back.engine.only().1.instance, old().instance);

    let mut stays = failing();
    stays.agent.pass(MINUTE / 2);
    assert_eq!((stays.engine.take_calls(), running(&stays)), (vec![], 1));
    stays.agent.pass(MINUTE);
    assert_eq!(stays.engine.take_calls(), ["delete w", "create w"]);
}

/// The agent was restarted, so it does not know what the old container was made from.
#[test]
fn failed_staging_leaves_the_adopted_container_alone() {
    for by_hello in [false, true] {
        let mut rig = rig();
        let id = rig.engine.only().0;
        rig.engine.inject(Call::CreateOnly, [Fault::Unsupported]);
        rig.restart_agent_with(&[new()], |_| {});
        assert_eq!(rig.engine.take_calls(), ["list", "create-only w"]);
        rig.sent();
        if by_hello {
            rig.agent.hello(&[old()]);
        } else {
            rig.change(&[old()], &[deleted_after(&new().instance, &[])]);
        }
        rig.agent.pass(2 * MINUTE);
        let sent = rig.sent();
        let of_old: Vec<&String> = sent
            .iter()
            .filter(|state| !state.ends_with("Removed"))
            .collect();
        assert!(
            of_old.iter().all(|state| *state == "w Running(Ok)") && !of_old.is_empty(),
            "{sent:?}"
        );
        assert_eq!(
            (rig.engine.take_calls(), running(&rig)),
            (vec![], 1),
            "{by_hello}"
        );
        assert_eq!(rig.engine.only().0, id);
        rig.ends("w", 1);
        assert_eq!(
            rig.sent(),
            ["w Failed(ExecFailed): 'Exit code: '1''"],
            "it is watched"
        );
        switch_to(&mut rig, &wanted_with("w", "image: other", |_| {}), &[]);
        assert_eq!(
            rig.engine.take_calls(),
            ["delete w", "create w"],
            "an update replaces it as any other"
        );
    }
}

#[test]
fn adopted_container_that_an_update_deletes_is_replaced() {
    let mut rig = rig();
    rig.engine.inject(Call::CreateOnly, [Fault::Unsupported]);
    rig.restart_agent_with(&[new()], |_| {});
    rig.change(&[], &[deleted_after(&new().instance, &[])]);
    assert_eq!(
        (rig.engine.take_calls().pop(), running(&rig)),
        (Some("delete w".to_owned()), 0)
    );

    let mut again = self::rig();
    again.engine.inject(Call::CreateOnly, [Fault::Unsupported]);
    again.restart_agent_with(&[new()], |_| {});
    forget(&again);
    again.change(&[old()], &[deleted_after(&old().instance, &[])]);
    assert_eq!(again.engine.take_calls(), ["delete w", "create w"]);
}

#[test]
fn staged_instance_does_not_change_the_text_of_the_waiting_one() {
    for next in [None, Some(Fault::Unsupported)] {
        let mut rig = rig();
        rig.engine.inject(
            Call::CreateOnly,
            [Some(Fault::Fails), next].into_iter().flatten(),
        );
        rig.agent.hello(&[new()]);
        let newer = wanted_with("w", &block("newer", "{}"), |_| {});
        stage(&mut rig, &[newer]);
        let sent = rig.sent();
        assert!(
            !sent.iter().any(|state| state.contains("cannot be staged")),
            "{sent:?}"
        );
        rig.agent.pass(2 * MINUTE);
        let containers = rig.engine.containers();
        let mut running = containers
            .values()
            .filter(|container| container.state.phase == Phase::Running);
        assert_eq!(
            running.next().map(|container| &container.instance),
            Some(&old().instance)
        );
        assert!(running.next().is_none());
        stage(&mut rig, &[]);
        rig.agent.pass(MINUTE);
        assert_eq!(rig.engine.only().1.instance, new().instance);
    }
}

#[test]
fn conditions_met_before_staging_are_not_awaited_again() {
    let mut rig = rig();
    let user = |config| wanted_with("user", config, |_| {});
    rig.add(&[user("image: user")]);
    forget(&rig);
    rig.engine.inject(Call::CreateOnly, [Fault::Fails]);
    let deleted = [
        deleted_after(&old().instance, &["user"]),
        deleted_after(&user("image: user").instance, &[]),
    ];
    rig.change(&[new(), user("image: other")], &deleted);
    rig.agent.pass(MINUTE);
    let calls = rig.engine.take_calls();
    assert!(
        calls.ends_with(&[
            "stop w".to_owned(),
            "start w".to_owned(),
            "delete w".to_owned()
        ]),
        "{calls:?}"
    );
}

/// On a link that comes and goes nothing was ever staged.
#[test]
fn a_lost_connection_touches_nothing_that_is_staged() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    for _ in 0..3 {
        rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
        stage(&mut rig, &[new()]);
        rig.agent.hello(&[old()]);
        rig.agent.pass(MINUTE);
        assert_eq!(
            (rig.engine.take_calls(), rig.engine.containers().len()),
            (vec![], 2)
        );
    }
}

#[test]
fn next_agent_keeps_staged_containers_and_removes_others() {
    let mut rig = rig();
    stage(&mut rig, &[new()]);
    forget(&rig);
    let answers = |rig: &mut AgentRig, list: &[AddedWorkload]| {
        rig.restart_agent_with(&[old()], |agent| {
            agent.receive(FromServer::Prepare(list.to_vec()))
        });
    };
    answers(&mut rig, &[new()]);
    assert_eq!(
        (rig.engine.take_calls(), reports(&rig).last().cloned()),
        (vec!["list".into()], Some("w CREATE".into()))
    );
    switch_to(&mut rig, &new(), &[]);
    assert_eq!(rig.engine.take_calls(), ["stop w", "start w", "delete w"]);

    let mut other = self::rig();
    stage(&mut other, &[new()]);
    forget(&other);
    answers(&mut other, &[]);
    assert_eq!(other.engine.take_calls(), ["list", "delete w"]);
    assert_eq!(
        (other.engine.only().1.instance, running(&other)),
        (old().instance, 1)
    );
}

#[test]
fn staged_instance_waits_for_the_listing_of_its_engine() {
    let mut rig = rig();
    rig.engine.inject(Call::List, [Fault::Fails]);
    rig.restart_agent_with(&[], |agent| agent.receive(FromServer::Prepare(vec![new()])));
    assert_eq!(reports(&rig), ["w"], "something of it may be there already");
    rig.agent.pass(MINUTE);
    assert_eq!(reports(&rig), ["w CREATE"]);
}

/// The old instance goes on before the other engine has listed, so its loop might search there for
/// more of it.
#[test]
fn unlisted_engine_blocks_no_container_of_another_one() {
    let mut first = rig();
    stage(&mut first, &[new()]);
    forget(&first);
    let kube = FakeEngine::new();
    kube.inject(Call::List, [Fault::Fails]);
    let mut next = AgentRig::silent_with(first.engine.clone(), |options| {
        options.others = vec![("kube", kube)]
    });
    stage(&mut next, &[new()]);
    next.agent.hello(&[old()]);
    assert_eq!(
        (next.engine.take_calls(), reports(&next).pop()),
        (vec!["list".into()], Some("w CREATE".into()))
    );
}

/// The next agent does not know that the instance goes on before it acts on the hello, which waits
/// for the other engine.
#[test]
fn container_that_the_hello_decides_later_blocks_a_create() {
    let mut first = rig();
    first.ends("w", 1);
    forget(&first);
    let kube = FakeEngine::new();
    kube.set_silent(true);
    let mut next = AgentRig::silent_with(first.engine.clone(), |options| {
        options.others = vec![("kube", kube.clone())]
    });
    stage(
        &mut next,
        &[AddedWorkload {
            instance: old().instance,
            ..new()
        }],
    );
    next.agent.hello(&[old()]);
    assert_eq!(
        (next.engine.take_calls(), reports(&next)),
        (vec!["list".to_owned()], vec![])
    );
    kube.set_silent(false);
    next.agent.pass(MINUTE);
    let calls = next.engine.take_calls();
    assert_eq!(calls[..2], ["delete w", "create w"]);
    assert!(
        calls[2].starts_with("image ") && calls.len() == 3,
        "{calls:?}"
    );
    assert_eq!(reports(&next).last().map(String::as_str), Some("w IMAGE"));
}

/// Its container was found before its purpose was known.
#[test]
fn next_agent_starts_no_staged_instance_for_the_old_one() {
    let always = wanted_with("w", "image: old", |workload| {
        workload.restart_policy = RestartPolicy::Always
    });
    let mut rig = AgentRig::new();
    rig.add(std::slice::from_ref(&always));
    stage(&mut rig, &[new()]);
    rig.ends("w", 1);
    forget(&rig);
    rig.restart_agent_with(&[always], |agent| {
        agent.receive(FromServer::Prepare(vec![new()]))
    });
    rig.agent.pass(MINUTE);
    let calls = rig.engine.take_calls();
    assert!(
        !calls.contains(&"start w".to_owned()) && calls.contains(&"create w".to_owned()),
        "{calls:?}"
    );
    assert_eq!(reports(&rig).last().map(String::as_str), Some("w CREATE"));
}
