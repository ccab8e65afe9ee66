//! Updates that restart dependents of their workloads: the dependents are names of the update, and
//! a rollback restarts them as well.

use super::*;
use crate::tests::text_of;
use crate::tests::update;
use ankaios_model::messages::{RequestContent, ResponseContent, UpdateState};

fn web() -> InstanceName {
    instance("web", "1", "")
}

fn rig() -> Rig {
    Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB)])
}

fn with_restart(content: RequestContent, names: &[&str]) -> RequestContent {
    let RequestContent::UpdateState(update) = content else {
        panic!("{content:?}")
    };
    let restart = names.iter().map(ToString::to_string).collect();
    RequestContent::UpdateState(UpdateState { restart, ..update })
}

/// The instances that are restarted.
fn request(rig: &mut Rig, content: RequestContent) -> Result<Vec<String>, String> {
    let commander = rig.cluster.commander();
    match rig.cluster.request(commander, content) {
        ResponseContent::UpdateStateSuccess { restarted, .. } => Ok(restarted),
        ResponseContent::Error(error) => Err(text_of(error)),
        other => panic!("{other:?}"),
    }
}

fn new_db() -> RequestContent {
    let state = format!("{{ desiredState: {{ workloads: {{ {} }} }} }}", db("2"));
    with_restart(update(&state, &["desiredState.workloads.db"]), &["db"])
}

fn names_of(rig: &Rig, number: u64) -> Vec<String> {
    rig.cluster.server.seen_updates()[&number]
        .names
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Reports the ends of all restarted workloads; returns the started ones.
fn all_removed(rig: &mut Rig, db: &InstanceName) -> Vec<String> {
    rig.cluster.take_all();
    rig.report(&web(), Phase::Removed);
    rig.report(db, Phase::Removed);
    rig.plan().0
}

fn updated() -> Rig {
    let mut rig = rig();
    assert_eq!(
        request(&mut rig, new_db()),
        Ok(vec![db_instance("2").to_string(), web().to_string()])
    );
    assert_eq!(
        rig.plan(),
        (
            vec![],
            vec![db_instance("1").to_string(), web().to_string()]
        )
    );
    assert_eq!(
        (rig.phases(), names_of(&rig, 1)),
        (
            vec!["1 TRIAL".to_owned()],
            vec!["db".to_owned(), "web".to_owned()]
        )
    );
    rig
}

// [utest->swdd~server-restarts-workloads~1]
#[test]
fn dependents_of_an_update_must_become_healthy_again() {
    let mut rig = updated();
    rig.report(&web(), Phase::Running); // A late report of the old instance.
    rig.wait(HEALTHY);
    assert_eq!(rig.read(1, "waitsFor"), r#"["db","web"]"#);
    assert_eq!(all_removed(&mut rig, &db_instance("1")), ["db", "web"]);
    rig.report(&db_instance("2"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.read(1, "waitsFor"), r#"["web"]"#);
    rig.report(&web(), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
}

#[test]
fn an_undo_restarts_the_dependents_again() {
    let mut rig = updated();
    all_removed(&mut rig, &db_instance("1"));
    rig.report(&db_instance("2"), Phase::Running);
    rig.report(&web(), Phase::FailedExecFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 UNDONE".to_owned()],
            vec!["db 1".to_owned(), "web 1".to_owned()]
        )
    );
    assert_eq!(
        rig.plan(),
        (
            vec![],
            vec![db_instance("2").to_string(), web().to_string()]
        )
    );
    assert_eq!(all_removed(&mut rig, &db_instance("2")), ["db", "web"]);
    assert!(
        request(&mut rig, new_db())
            .unwrap_err()
            .contains("which was rolled back")
    );
}

#[test]
fn a_rollback_restarts_them_whether_the_update_is_open_or_not() {
    for is_open in [true, false] {
        let mut rig = updated();
        all_removed(&mut rig, &db_instance("1"));
        [db_instance("2"), web()]
            .iter()
            .for_each(|one| rig.report(one, Phase::Running));
        if !is_open {
            rig.wait(HEALTHY);
        }
        let back = request(&mut rig, RequestContent::RollBack(1)).unwrap();
        assert_eq!(back, [db_instance("1").to_string(), web().to_string()]);
        assert_eq!(
            rig.plan(),
            (
                vec![],
                vec![db_instance("2").to_string(), web().to_string()]
            )
        );
        let expected: &[&str] = if is_open {
            &["1 WITHDRAWN"]
        } else {
            &["1 GOOD", "2 TRIAL"]
        };
        assert_eq!(rig.phases(), expected);
        assert_eq!(all_removed(&mut rig, &db_instance("2")), ["db", "web"]);
    }
}

/// All names of an update were restarted with each later part, whatever that was about.
#[test]
fn only_what_needs_what_joins_is_restarted_once_more() {
    let nav = |image| workload("nav", image, "{ onFailure: ROLLBACK }", "");
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", NEEDS_DB), nav("1")]);
    let state = format!(
        "{{ desiredState: {{ workloads: {{ {}, {} }} }} }}",
        db("2"),
        nav("2")
    );
    let both = ["desiredState.workloads.db", "desiredState.workloads.nav"];
    assert_eq!(
        request(&mut rig, with_restart(update(&state, &both), &["db"])).map(|all| all.len()),
        Ok(3)
    );
    rig.report(
        &instance("nav", "1", "{ onFailure: ROLLBACK }"),
        Phase::Removed,
    );
    assert_eq!(
        all_removed(&mut rig, &db_instance("1")),
        ["db", "nav", "web"]
    );
    [db_instance("2"), web()]
        .iter()
        .for_each(|one| rig.report(one, Phase::Running));
    let join = |rig: &mut Rig, name: &str, workload: String| {
        let state = format!("{{ desiredState: {{ workloads: {{ {workload} }} }} }}");
        request(
            rig,
            update(&state, &[&format!("desiredState.workloads.{name}")]),
        )
    };
    assert_eq!(join(&mut rig, "nav", nav("3")), Ok(vec![]));
    assert_eq!(rig.read(2, "waitsFor"), r#"["db","nav","web"]"#);
    rig.report(
        &instance("nav", "3", "{ onFailure: ROLLBACK }"),
        Phase::Running,
    );
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 REPLACED", "2 GOOD"]);

    let mut rig = updated();
    all_removed(&mut rig, &db_instance("1"));
    [db_instance("2"), web()]
        .iter()
        .for_each(|one| rig.report(one, Phase::Running));
    let again = vec![db_instance("3").to_string(), web().to_string()];
    assert_eq!(
        join(&mut rig, "db", db("3")),
        Ok(again),
        "it could not stop before what needs it"
    );
    assert_eq!(all_removed(&mut rig, &db_instance("2")), ["db", "web"]);
    [db_instance("3"), web()]
        .iter()
        .for_each(|one| rig.report(one, Phase::Running));
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 REPLACED", "2 GOOD"]);
}

#[test]
fn a_manifest_of_before_ends_an_open_update_that_restarts() {
    let mut rig = updated();
    rig.apply(&[&db("1")]).unwrap();
    assert_eq!(rig.phases(), ["1 WITHDRAWN"]);
}

#[test]
fn names_of_an_open_update_are_not_restarted() {
    let mut rig = rig();
    rig.apply(&[&db("2")]).unwrap();
    rig.cluster.take_all();
    let reason = "'db' is a part of update 1, which is open; wait until that has ended, or use 'ank rollback 1'";
    let restart = with_restart(RequestContent::UpdateState(UpdateState::default()), &["db"]);
    assert_eq!(
        request(&mut rig, restart),
        Err(format!("Update rejected: '{reason}'"))
    );
    let alone = with_restart(
        RequestContent::UpdateState(UpdateState::default()),
        &["web"],
    );
    assert_eq!(request(&mut rig, alone), Ok(vec![web().to_string()]));
    assert_eq!(rig.plan(), (vec![], vec![web().to_string()]));
}

#[test]
fn what_is_staged_is_restarted_when_it_is_carried_out() {
    let staged = |image| workload("db", image, "{ onFailure: ROLLBACK, stage: IMAGE }", "");
    let mut rig = Rig::with_agent(&[staged("1"), workload("web", "1", "", NEEDS_DB)], PREPARES);
    let state = format!("{{ desiredState: {{ workloads: {{ {} }} }} }}", staged("2"));
    let content = with_restart(update(&state, &["desiredState.workloads.db"]), &["db"]);
    assert_eq!(request(&mut rig, content), Ok(vec![web().to_string()]));
    assert_eq!(
        (rig.phases(), rig.state(&web())),
        (vec!["1 STAGING".to_owned()], "Running(Ok)".to_owned())
    );
    assert!(
        rig.cluster.take(rig.a).iter().all(is_prepare),
        "nothing is stopped"
    );
    let instance = instance("db", "2", "{ onFailure: ROLLBACK, stage: IMAGE }");
    let level = Some(ankaios_model::prepare_level::PrepareLevel::Image);
    let prepared = ankaios_model::messages::PreparedInstance {
        instance,
        level,
        ..Default::default()
    };
    rig.cluster.send(rig.a, ToServer::Prepared(vec![prepared]));
    assert_eq!(rig.phases(), ["1 TRIAL"]);
    let messages = rig.cluster.take(rig.a);
    let plan = messages.iter().find_map(|message| match message {
        FromServer::UpdateWorkload(plan) => Some(plan),
        _ => None,
    });
    let WorkloadPlan { added, deleted } = plan.unwrap();
    assert_eq!((added.len(), deleted.len()), (0, 2));
}
