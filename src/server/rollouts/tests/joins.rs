//! Requests while an update is open: other names are independent, the same names make one update of
//! both.

use super::*;

fn web(image: &str) -> String {
    workload("web", image, ROLLBACK, "")
}

fn web_instance(image: &str) -> InstanceName {
    instance("web", image, ROLLBACK)
}

#[test]
fn updates_of_other_names_are_independent() {
    let mut rig = Rig::new(&[db("1"), web("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&web("2")]).unwrap();
    rig.report(&web_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 TRIAL".into(), "2 UNDONE".into()],
            vec!["db 2".to_owned(), "web 1".to_owned()]
        )
    );
    assert_eq!(
        rig.apply(&[&db("2")]),
        Ok((vec![], vec![])),
        "the same again is no trial"
    );
    assert_eq!(rig.phases().len(), 2);
}

#[test]
fn request_for_the_same_workload_joins_and_all_is_rolled_back() {
    let mut rig = Rig::new(&[db("1"), web("1")]);
    rig.apply(&[&db("2")]).unwrap();
    let unguarded = workload("db", "3", "", "");
    rig.apply(&[&unguarded, &web("2")]).unwrap();
    assert_eq!(rig.phases(), ["1 REPLACED", "2 TRIAL"]);
    assert_eq!(rig.read(1, "replacedBy"), "2");
    assert_eq!(
        rig.read(2, "workloads.db.old"),
        db_instance("1").to_string(),
        "the last good one"
    );
    rig.report(&web_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 REPLACED".into(), "2 UNDONE".into()],
            vec!["db 1".to_owned(), "web 1".to_owned()]
        )
    );
    // The server remembers both requests together.
    let error = rig.apply(&[&unguarded, &web("2")]).unwrap_err();
    assert!(error.contains("it is the same as update 2"), "{error}");
    rig.apply(&[&web("2")]).unwrap();
}

#[test]
fn the_clock_goes_on_when_a_name_is_touched_again() {
    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.wait(DEADLINE - Duration::from_secs(5));
    rig.apply(&[&db("3")]).unwrap();
    rig.wait(Duration::from_secs(5));
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 REPLACED".into(), "2 UNDONE".into()],
            vec!["db 1".to_owned()]
        )
    );
}

#[test]
fn what_is_set_back_or_deleted_leaves_and_is_not_brought_back() {
    let mut rig = Rig::new(&[db("1"), web("1"), workload("x", "1", "", "")]);
    rig.apply(&[&db("2"), &web("2"), &workload("x", "2", "", "")])
        .unwrap();
    rig.apply(&[&db("1")]).unwrap();
    rig.apply(&["x: ~"]).unwrap();
    assert_eq!(rig.phases(), ["1 REPLACED", "2 REPLACED", "3 TRIAL"]);
    rig.report(&web_instance("2"), Phase::PendingStartingFailed);
    assert_eq!(
        (rig.desired(), rig.read(3, "phase")),
        (
            vec!["db 1".to_owned(), "web 1".to_owned()],
            "UNDONE".to_owned()
        )
    );

    let mut rig = Rig::new(&[db("1")]);
    rig.apply(&[&db("2")]).unwrap();
    rig.apply(&[&db("1")]).unwrap();
    assert_eq!(
        (rig.phases(), rig.cluster.server.due()),
        (vec!["1 WITHDRAWN".to_owned()], None)
    );
    rig.apply(&[&db("2")]).unwrap(); // It is not remembered.
    rig.apply(&["db: ~"]).unwrap();
    assert_eq!(
        (rig.phases(), rig.desired()),
        (
            vec!["1 WITHDRAWN".to_owned(), "2 WITHDRAWN".to_owned()],
            vec![]
        )
    );
}

#[test]
fn workload_with_a_config_of_an_open_update_joins_it() {
    let mut rig = Rig::new(&[]);
    rig.cluster
        .server
        .set_update_on_failure(OnFailure::Rollback);
    let templated = |name: &str| workload(name, "{{c}}", "", ", configs: { c: c }");
    let state = |config: &str, workloads: &str| {
        format!(
            "{{ desiredState: {{ apiVersion: v1, configs: {{ c: '{config}' }}, workloads: {{ {workloads} }} }} }}"
        )
    };
    rig.cluster
        .update(&state("1", &templated("a")), &[])
        .unwrap();
    let rendered = |name: &str, image: &str| InstanceName::new(name, &config(image, ""), "A");
    rig.report(&rendered("a", "1"), Phase::Running);
    rig.wait(HEALTHY);
    assert_eq!(rig.phases(), ["1 GOOD"]);
    rig.cluster
        .update(&state("2", ""), &["desiredState.configs.c"])
        .unwrap();
    rig.apply(&[&templated("b")]).unwrap();
    assert_eq!(rig.phases(), ["1 GOOD", "2 REPLACED", "3 TRIAL"]);
    rig.report(&rendered("b", "2"), Phase::PendingStartingFailed);
    let effective: Vec<String> = rig
        .cluster
        .server
        .view()
        .effective
        .values()
        .map(|added| added.instance.to_string())
        .collect();
    assert_eq!(effective, [rendered("a", "1").to_string()]);
    // With the config alone set back, the state is that from before.
    rig.cluster
        .update(&state("2", ""), &["desiredState.configs.c"])
        .unwrap();
    rig.cluster
        .update(&state("1", ""), &["desiredState.configs.c"])
        .unwrap();
    assert_eq!(rig.read(4, "phase"), "WITHDRAWN");
}
