//! Cycles of dependencies: workloads that would wait for each other forever.
//!
//! Thread: none, plain functions.

use super::names::Name;
use super::workload::Workload;
use std::collections::BTreeSet;

/// Workloads of a cycle that a text names: the first and the last ones.
const SHOWN_MAX: usize = 10;

/// Returns the workloads of a cycle that can be reached from `starts`. `workload` returns the
/// workload of a name.
///
/// Dependencies with any condition are followed, except those on workloads that do not exist. Names
/// are followed in sorted order, so that the same graph always leads to the same cycle. The
/// depth-first search does not recurse: a user may write a chain that is longer than the stack.
pub fn find_cycle<'w>(
    workload: impl Fn(&str) -> Option<&'w Workload>,
    starts: impl IntoIterator<Item = &'w Name>,
) -> Option<Vec<Name>> {
    // Workloads from which no cycle can be reached.
    let mut finished: BTreeSet<&str> = BTreeSet::new();
    // Workloads on the way from the start to the present workload.
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for start in starts {
        let start: &str = start;
        if finished.contains(start) {
            continue;
        }
        let Some(first) = workload(start) else {
            continue;
        };
        open.insert(start);
        // Each workload of the way has its dependencies that were not followed yet.
        let mut way = vec![(start, first.dependencies.keys())];
        while let Some((name, rest)) = way.last_mut() {
            let Some(next) = rest.next().map(String::as_str) else {
                open.remove(*name);
                finished.insert(name);
                way.pop();
                continue;
            };
            if open.contains(next) {
                // The cycle begins where `next` is on the way.
                let names = way.iter().map(|(name, _)| *name);
                let cycle = names.skip_while(|name| *name != next);
                return Some(cycle.map(Name::from).collect());
            }
            if !finished.contains(next)
                && let Some(workload) = workload(next)
            {
                open.insert(next);
                way.push((next, workload.dependencies.keys()));
            }
        }
    }
    None
}

/// Describes a cycle. The middle of a long one is left out.
pub fn cycle_text(cycle: &[Name]) -> String {
    let mut names: Vec<&str> = cycle.iter().map(|name| &**name).collect();
    let first = names.first().copied().unwrap_or_default();
    names.extend(names.first().copied()); // The last workload depends on the first one.
    if cycle.len() > SHOWN_MAX {
        // The last workload stays, and the first one behind it.
        let begin = SHOWN_MAX - 1;
        let hidden = cycle.len() - SHOWN_MAX;
        names.splice(begin..begin + hidden, ["..."]);
    }
    format!(
        "workload dependency '{first}' is part of a cycle. It is: {}",
        names.join(" -> ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::AddCondition;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    type Workloads = BTreeMap<Name, Arc<Workload>>;

    fn graph(edges: &[(&str, &[&str])]) -> Workloads {
        let workload = |dependencies: &&[&str]| {
            let mut workload = Workload::new("A", "r", "c");
            workload.dependencies = dependencies
                .iter()
                .map(|name| ((*name).to_owned(), AddCondition::Failed))
                .collect();
            Arc::new(workload)
        };
        edges
            .iter()
            .map(|(name, dependencies)| (Name::from(*name), workload(dependencies)))
            .collect()
    }

    fn cycle(edges: &[(&str, &[&str])]) -> Option<String> {
        let workloads = graph(edges);
        let names = find_from(&workloads, workloads.keys())?;
        Some(
            names
                .iter()
                .map(|name| &**name)
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    fn find_from<'w>(
        workloads: &'w Workloads,
        starts: impl IntoIterator<Item = &'w Name>,
    ) -> Option<Vec<Name>> {
        find_cycle(
            |name| workloads.get(name).map(|workload| &**workload),
            starts,
        )
    }

    #[test]
    fn cycles_are_found_and_always_named_by_the_same_workload() {
        for (edges, expected) in [
            (vec![("a", &[][..])], None),
            (vec![("a", &["a"][..])], Some("a")),
            (vec![("a", &["b"][..]), ("b", &["a"])], Some("a b")),
            (
                vec![("a", &["b"][..]), ("b", &["c"]), ("c", &["b"])],
                Some("b c"),
            ),
            (vec![("a", &["missing"][..]), ("b", &["a", "other"])], None),
            // A node that is reachable twice hides no cycle, and is none by itself.
            (
                vec![("a", &["b", "c", "d"][..]), ("b", &["a"]), ("d", &["c"])],
                Some("a b"),
            ),
            (
                vec![
                    ("a", &["b", "c"][..]),
                    ("b", &["d"]),
                    ("c", &["d"]),
                    ("d", &[]),
                ],
                None,
            ),
        ] {
            assert_eq!(cycle(&edges).as_deref(), expected, "{edges:?}");
        }
    }

    #[test]
    fn only_what_the_starts_reach_is_looked_at() {
        let workloads = graph(&[("a", &["b"]), ("b", &[]), ("x", &["x"])]);
        assert_eq!(find_from(&workloads, &["a".into()]), None);
        assert_eq!(find_from(&workloads, &["nobody".into()]), None);
    }

    #[test]
    fn a_chain_of_any_length_needs_no_stack() {
        let names: Vec<String> = (0..100_000).map(|index| format!("w{index:06}")).collect();
        let mut workloads = Workloads::new();
        for pair in names.windows(2) {
            let mut workload = Workload::new("A", "r", "c");
            workload
                .dependencies
                .insert(pair[1].clone(), AddCondition::Running);
            workloads.insert(pair[0].as_str().into(), Arc::new(workload));
        }
        assert_eq!(find_from(&workloads, &[names[0].as_str().into()]), None);
    }

    #[test]
    fn text_of_a_long_cycle_leaves_out_its_middle() {
        let text = |count: usize| {
            let names: Vec<Name> = (0..count)
                .map(|index| format!("{index}").as_str().into())
                .collect();
            cycle_text(&names)
        };
        let begin = "workload dependency '0' is part of a cycle. It is: ";
        let shown = "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> 8";
        assert_eq!(text(1), format!("{begin}0 -> 0"));
        assert_eq!(text(10), format!("{begin}{shown} -> 9 -> 0"));
        assert_eq!(text(11), format!("{begin}{shown} -> ... -> 10 -> 0"));
        assert_eq!(text(13), format!("{begin}{shown} -> ... -> 12 -> 0"));
    }
}
