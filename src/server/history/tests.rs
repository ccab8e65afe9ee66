//! The reports that are changes, and their file.

use super::*;
use ankaios_model::mask_tree::MaskTree;
use tempfile::TempDir;

fn instance(name: &str) -> InstanceName {
    InstanceName::with_id(name, "id", "A")
}

fn report(history: &mut History, name: &str, before: Option<Phase>, phase: Phase) {
    history.report(
        &instance(name),
        before,
        &ExecutionState::plain(phase),
        false,
    );
}

/// Each change as `<agent> <workload> <state>`.
fn shown(history: &History) -> Vec<String> {
    let mut shown = Vec::new();
    for change in &history.changes {
        let Change {
            agent,
            workload,
            state,
            ..
        } = change;
        shown.push(format!("{agent} {workload} {state}"));
    }
    shown
}

#[test]
fn mask_selects_all_changes_or_those_to_one_state() {
    let mut history = History::default();
    history.agent_connected("A");
    for phase in [Phase::FailedExecFailed, Phase::Running, Phase::FailedLost] {
        report(&mut history, "web", Some(Phase::PendingStarting), phase);
    }
    let rows: [(&[&str], Option<usize>); 7] = [
        (&["history"], Some(4)),
        (&["history.*"], Some(4)),
        (&["history.Failed"], Some(2)),
        (&["history.Failed", "history.AgentConnected"], Some(3)),
        (&["history.Succeeded"], None),
        (&["history.Fail"], None),
        (&["history.Failed.at"], None),
    ];
    for (masks, expected) in rows {
        let tree = MaskTree::new(masks.iter().copied());
        let number = match history.read(&tree.named("history")) {
            Some(Node::List(changes)) => Some(changes.len()),
            None => None,
            Some(other) => panic!("{other:?}"),
        };
        assert_eq!(number, expected, "{masks:?}");
    }
}

// [utest->swdd~server-keeps-last-changes~1]
#[test]
fn history_has_each_other_phase_of_an_instance_once() {
    let mut history = History::default();
    report(
        &mut history,
        "web",
        Some(Phase::PendingInitial),
        Phase::PendingStarting,
    );
    report(
        &mut history,
        "web",
        Some(Phase::PendingStarting),
        Phase::PendingStarting,
    );
    report(
        &mut history,
        "web",
        Some(Phase::PendingStarting),
        Phase::Running,
    );
    report(
        &mut history,
        "web",
        Some(Phase::Running),
        Phase::FailedExecFailed,
    );
    let expected = [
        "A web Pending(Starting)",
        "A web Running(Ok)",
        "A web Failed(ExecFailed)",
    ];
    assert_eq!(shown(&history), expected);
}

#[test]
fn history_of_a_lost_agent_has_one_change_and_differences() {
    let mut history = History::default();
    report(
        &mut history,
        "web",
        Some(Phase::PendingInitial),
        Phase::Running,
    );
    report(
        &mut history,
        "db",
        Some(Phase::PendingInitial),
        Phase::Running,
    );
    history.agent_lost("A");
    for name in ["web", "db", "old", "bad"] {
        report(
            &mut history,
            name,
            Some(Phase::Running),
            Phase::AgentDisconnected,
        );
    }
    history.agent_connected("A");
    let away = Some(Phase::AgentDisconnected);
    report(&mut history, "web", away, Phase::Running);
    report(&mut history, "db", away, Phase::FailedExecFailed);
    // Their last changes are not kept any more: only a failure is worth one.
    report(&mut history, "old", away, Phase::Running);
    report(&mut history, "bad", away, Phase::FailedLost);
    // The same after a restart of the server, which knows no phase.
    report(&mut history, "web", None, Phase::Running);
    report(&mut history, "bad", None, Phase::FailedLost);
    report(&mut history, "db", None, Phase::Running);
    for name in ["web", "old"] {
        let initial = Some(Phase::PendingInitial);
        let running = ExecutionState::plain(Phase::Running);
        history.report(&instance(name), initial, &running, true);
    }
    let expected = [
        "A web Running(Ok)",
        "A db Running(Ok)",
        "A  AgentDisconnected",
        "A  AgentConnected",
        "A db Failed(ExecFailed)",
        "A bad Failed(Lost)",
        "A db Running(Ok)",
    ];
    assert_eq!(shown(&history), expected);
}

#[test]
fn history_keeps_the_newest_changes_with_a_bounded_info() {
    let mut history = History::default();
    history.server_started();
    let long = "ä".repeat(INFO_MAX);
    for number in 0..CHANGES_KEPT {
        let state = ExecutionState::with_info(Phase::Running, long.as_str());
        history.report(
            &instance(&format!("w{number}")),
            Some(Phase::PendingStarting),
            &state,
            false,
        );
    }
    assert_eq!(history.changes.len(), CHANGES_KEPT);
    assert_eq!(history.changes[0].workload, "w0", "the start was dropped");
    assert_eq!(history.changes[0].info.len(), INFO_MAX);
    // All of them are kept, of which each was not stored.
    assert_eq!(history.take_unstored().lines().count(), CHANGES_KEPT);
    assert_eq!(history.take_unstored(), "");
}

#[test]
fn history_file_is_read_back_after_each_append() {
    let folder = TempDir::new().unwrap();
    let mut file = HistoryFile::new(folder.path().to_owned());
    let mut history = History::default();
    for round in 0..5 {
        for number in 0..CHANGES_KEPT / 2 {
            let name = format!("w{round}-{number}");
            report(
                &mut history,
                &name,
                Some(Phase::PendingStarting),
                Phase::Running,
            );
        }
        file.append(&history.take_unstored());
        let read = read(folder.path());
        assert_eq!(read, Vec::from(history.changes.clone()), "round {round}");
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(text.lines().count() <= LINES_MAX + 1);
    }
}

#[test]
fn history_file_with_a_cut_line_loses_only_that_line() {
    let folder = TempDir::new().unwrap();
    let mut history = History::default();
    report(
        &mut history,
        "web",
        Some(Phase::PendingStarting),
        Phase::Running,
    );
    let line = history.take_unstored();
    let path = folder.path().join(FILE);
    for cut in 1..line.len() - 1 {
        fs::write(&path, format!("{line}{}", &line[..cut])).unwrap();
        // The next server appends to it.
        HistoryFile::new(folder.path().to_owned()).append(&line);
        assert_eq!(read(folder.path()).len(), 2, "{cut}");
    }
    fs::write(&path, b"\xff\n").unwrap();
    assert_eq!(read(folder.path()), []);
}

#[test]
fn history_file_that_cannot_be_written_is_tried_again() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("later");
    let mut file = HistoryFile::new(missing.clone());
    let mut history = History::default();
    report(
        &mut history,
        "web",
        Some(Phase::PendingStarting),
        Phase::Running,
    );
    let line = history.take_unstored();
    file.append(&line);
    assert!(file.has_failed);
    fs::create_dir(&missing).unwrap();
    file.append(&line);
    assert!(!file.has_failed);
    assert_eq!(read(&missing).len(), 1);
}

#[test]
fn failing_workload_leaves_the_changes_of_others() {
    let folder = TempDir::new().unwrap();
    let mut file = HistoryFile::new(folder.path().to_owned());
    let mut history = History::default();
    let start = Some(Phase::PendingStarting);
    for name in ["db", "web"] {
        report(&mut history, name, start, Phase::Running);
    }
    for round in 0..CHANGES_KEPT {
        report(&mut history, "bad", start, Phase::FailedExecFailed);
        report(&mut history, "bad", None, Phase::PendingStarting);
        history.agent_lost("B");
        if round % 40 == 0 {
            file.append(&history.take_unstored());
        }
    }
    history.agent_connected("A");
    let mut expected = vec!["A db Running(Ok)", "A web Running(Ok)"];
    expected.push("A  AgentConnected");
    let mut failures = 0;
    let mut others = shown(&history);
    others.retain(|change| {
        let is_failure = change.starts_with("A bad ") || change.starts_with("B ");
        failures += usize::from(is_failure);
        !is_failure
    });
    assert_eq!(others, expected);
    assert_eq!(failures, 2 * CHANGES_OF_ONE_MAX);
    // The next server reads the same ones.
    file.append(&history.take_unstored());
    assert_eq!(read(folder.path()), Vec::from(history.changes.clone()));
}
