//! Stopped workloads in guarded updates.

use super::*;
use ankaios_model::messages::{RequestContent, ResponseContent, StopAndStart};
use ankaios_model::reason::STOPPED;

fn send(rig: &mut Rig, stop: &[&str], start: &[&str]) -> Result<(), String> {
    let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let content = RequestContent::StopAndStart(StopAndStart {
        stop: texts(stop),
        start: texts(start),
    });
    let commander = rig.cluster.commander();
    match rig.cluster.request(commander, content) {
        ResponseContent::UpdateStateSuccess { .. } => Ok(()),
        ResponseContent::Error(error) => Err(error.text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn member_of_open_update_is_neither_stopped_nor_started() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", "")]);
    rig.apply(&[&db("2")]).unwrap();
    let refused = "Update rejected: ''db' is a part of update 1, which is open; wait until that has ended, or use 'ank rollback 1''";
    assert_eq!(send(&mut rig, &["db"], &[]), Err(refused.to_owned()));
    send(&mut rig, &["web"], &[]).unwrap();
}

#[test]
fn guarded_update_of_stopped_workload_does_not_judge_it() {
    let mut rig = Rig::new(&[db("1"), workload("web", "1", "", "")]);
    send(&mut rig, &["db"], &[]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.cluster.take_all();
    rig.apply(&[&db("2")]).unwrap();
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
    assert!(rig.cluster.take(rig.a).iter().all(|message| {
        !matches!(message, FromServer::UpdateWorkload(plan) if !plan.added.is_empty())
    }));
    send(&mut rig, &[], &["db"]).unwrap();
    assert_eq!(rig.plan().0, ["db"]);
}

#[test]
fn undone_delete_leaves_a_stopped_workload_stopped() {
    let mut rig = Rig::new(&[db("1"), workload("old", "1", "", "")]);
    send(&mut rig, &["old"], &[]).unwrap();
    rig.report(&instance("old", "1", ""), Phase::Removed);
    rig.apply(&[&db("2"), "old: ~"]).unwrap();
    rig.report(&db_instance("1"), Phase::Removed);
    rig.report(&db_instance("2"), Phase::FailedExecFailed);
    rig.wait(DEADLINE);
    assert_eq!(rig.desired(), ["db 1", "old 1"], "{:?}", rig.phases());
    let unscheduled = InstanceName::new("old", &config("1", ""), "");
    assert_eq!(
        rig.state(&unscheduled),
        format!("NotScheduled: '{STOPPED}'")
    );
}
