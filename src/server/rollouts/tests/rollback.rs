//! Requests that name an update to be rolled back: carried out as one, refused when something would
//! be lost.

use super::bounds::{ask_for, with_rights};
use super::*;
use crate::limits::UPDATES_ENDED_BYTES;
use crate::tests::text_of;
use ankaios_model::messages::{RequestContent, ResponseContent};

fn roll_back(rig: &mut Rig, number: u64) -> Result<(), String> {
    let commander = rig.cluster.commander();
    match rig
        .cluster
        .request(commander, RequestContent::RollBack(number))
    {
        ResponseContent::UpdateStateSuccess { .. } => Ok(()),
        ResponseContent::Error(error) => Err(text_of(error)),
        other => panic!("{other:?}"),
    }
}

const OTHER_CONFIG: &str = "{ desiredState: { apiVersion: v1, configs: { c: z } } }";

fn refused(reason: &str) -> Result<(), String> {
    Err(format!("Update rejected: '{reason}'"))
}

/// Update 1 has changed `db` and config `c`, deleted `old` and added `new`.
fn updated() -> Rig {
    let templated = |image: &str| {
        workload(
            "db",
            &format!("{image}{{{{c}}}}"),
            ROLLBACK,
            ", configs: { c: c }",
        )
    };
    let state = |c: &str, workloads: &[String]| {
        let workloads = workloads.join(", ");
        format!("{{ apiVersion: v1, configs: {{ c: '{c}' }}, workloads: {{ {workloads} }} }}")
    };
    let before = state("a", &[templated("1"), workload("old", "1", "", "")]);
    let mut rig = Rig::of(
        Cluster::with_manifest(&before),
        AgentCapabilities::default(),
    );
    let after = state("b", &[templated("2"), workload("new", "1", "", "")]);
    rig.cluster
        .update(&format!("{{ desiredState: {after} }}"), &[])
        .unwrap();
    rig
}

/// All is healthy now.
fn settle(rig: &mut Rig) {
    let wanted: Vec<_> = rig
        .cluster
        .server
        .view()
        .effective
        .values()
        .map(|added| added.instance.clone())
        .collect();
    wanted
        .iter()
        .for_each(|instance| rig.report(instance, Phase::Running));
    rig.wait(HEALTHY);
    rig.cluster.take_all();
}

// [utest->swdd~server-rolls-back-updates~1]
#[test]
fn all_that_an_update_has_changed_is_set_back_with_one_request() {
    for is_open in [true, false] {
        let mut rig = updated();
        if !is_open {
            settle(&mut rig);
        }
        assert_eq!(rig.phases(), [if is_open { "1 TRIAL" } else { "1 GOOD" }]);
        assert_eq!(roll_back(&mut rig, 1), Ok(()));
        assert_eq!(rig.desired(), ["db 1", "old 1"]);
        assert!(
            rig.cluster
                .read(&["desiredState.configs"])
                .contains("\"configs\":{\"c\":\"a\"}")
        );
        // That of an open one ends it; another one is an update as any.
        let expected: &[&str] = if is_open {
            &["1 WITHDRAWN"]
        } else {
            &["1 GOOD", "2 TRIAL"]
        };
        assert_eq!(rig.phases(), expected);
    }
}

#[test]
fn what_was_changed_since_stays_and_nothing_is_set_back() {
    type Change = fn(&mut Rig);
    let changes: [(Change, &str); 4] = [
        (
            |rig| drop(rig.apply(&[&workload("new", "3", "", "")])),
            "workload 'new' was changed after update 1",
        ),
        (
            |rig| drop(rig.apply(&["new: ~"])),
            "workload 'new' was changed after update 1",
        ),
        (
            |rig| drop(rig.apply(&[&workload("old", "1", "", "")])),
            "workload 'old' was changed after update 1",
        ),
        (
            |rig| {
                drop(
                    rig.cluster
                        .update(OTHER_CONFIG, &["desiredState.configs.c"]),
                )
            },
            "config 'c' was changed after update 1",
        ),
    ];
    for (change, reason) in changes {
        let mut rig = updated();
        settle(&mut rig);
        change(&mut rig);
        let desired = rig.desired();
        assert_eq!(roll_back(&mut rig, 1), refused(reason));
        assert_eq!(rig.desired(), desired);
    }
}

#[test]
fn unknown_or_inactive_update_is_not_rolled_back() {
    let mut rig = Rig::new(&[db("1"), workload("big", "1", "", "")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&db("3")]).unwrap();
    rig.report(&db_instance("3"), Phase::PendingStartingFailed);
    rig.apply(&[&db("4")]).unwrap();
    assert_eq!(roll_back(&mut rig, 3), Ok(()));
    rig.cluster
        .server
        .set_update_on_failure(OnFailure::Rollback);
    let large = workload("big", &"x".repeat(UPDATES_ENDED_BYTES), "", "");
    rig.apply(&[&large]).unwrap();
    settle(&mut rig);
    rig.apply(&[&workload("big", "2", "", "")]).unwrap();
    settle(&mut rig);
    assert_eq!(
        rig.phases(),
        ["1 REPLACED", "2 UNDONE", "3 WITHDRAWN", "4 GOOD", "5 GOOD"]
    );
    let not_kept =
        |number| format!("the server no longer has the state from before update {number}");
    for (number, reason) in [
        (
            1,
            "update 1 has become a part of update 2 and cannot be rolled back by itself".to_owned(),
        ),
        (
            2,
            "update 2 was rolled back: what was there before it is active".to_owned(),
        ),
        (3, not_kept(3)),
        (5, not_kept(5)),
        (6, "update 6 does not exist".to_owned()),
        (0, "update 0 does not exist".to_owned()),
    ] {
        assert_eq!(roll_back(&mut rig, number), refused(&reason));
    }
    assert_eq!(rig.desired(), ["big 2", "db 1"]);
}

#[test]
fn a_workload_rolls_back_only_what_it_may_write_all_of() {
    let user = |name: &str, masks: &str| with_rights(name, masks);
    let both = "'desiredState.workloads.db', 'desiredState.workloads.web'";
    let mut rig = Rig::new(&[
        db("1"),
        workload("web", "1", "", ""),
        user("half", "'desiredState.workloads.db'"),
        user("whole", both),
        workload("none", "1", "", ""),
    ]);
    rig.apply(&[&db("2"), &workload("web", "2", "", "")])
        .unwrap();
    settle(&mut rig);
    for (id, expected) in [
        (
            "half@1",
            "update 1 has parts that this workload must not write",
        ),
        ("none@1", "Access denied"),
        ("whole@1", "UpdateStateSuccess"),
    ] {
        assert!(rig.desired().contains(&"db 2".to_owned()));
        let answer = ask_for(&mut rig, id, RequestContent::RollBack(1));
        assert!(answer.contains(expected), "{id}: {answer}");
    }
    assert_eq!(rig.desired()[..1], ["db 1"]);
}
