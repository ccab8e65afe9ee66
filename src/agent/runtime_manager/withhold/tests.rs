//! Workloads that may not run because of the conditions of others. What follows is in readiness/tests.rs.

use super::*;
use crate::model::workload::Workload;
use std::sync::Arc;

fn wanted(needs: &[(&str, &str, AddCondition)]) -> BTreeMap<Name, AddedWorkload> {
    let names: BTreeSet<&str> = needs.iter().flat_map(|(name, other, _)| [*name, *other]).collect();
    let one = |name: &str| {
        let mut workload = Workload::new("A", "podman", "x");
        let mine = needs.iter().filter(|(dependent, ..)| *dependent == name);
        workload.dependencies = mine.map(|(_, other, condition)| ((*other).to_owned(), *condition)).collect();
        AddedWorkload { instance: workload.instance_name(name), workload: Arc::new(workload) }
    };
    names.into_iter().map(|name| (name.into(), one(name))).collect()
}

#[test]
fn all_who_need_it_to_run_may_not_run_either_and_nobody_else() {
    use AddCondition::{Failed, Running, Succeeded};
    let wanted = wanted(&[
        ("direct", "closed", Running),
        ("indirect", "direct", Running),
        ("after", "closed", Succeeded),
        ("handler", "closed", Failed),
        ("other", "else", Running),
    ]);
    let closed = BTreeMap::from([(Name::from("closed"), "precondition: no".to_owned())]);
    let all = with_dependents(closed, &wanted);
    let texts: Vec<(&str, &str)> = all.iter().map(|(name, why)| (&**name, why.as_str())).collect();
    assert_eq!(
        texts,
        [
            ("closed", "precondition: no"),
            ("direct", "waits for 'closed', which may not run"),
            ("indirect", "waits for 'direct', which may not run"),
        ]
    );
}
