//! Hooks as shell scripts: what each may do to an update, and that none can hang, flood or outlive
//! its run.

use super::*;
use ankaios_model::messages::{AddedWorkload, DeletedWorkload};
use ankaios_model::names::InstanceName;
use ankaios_model::workload::Workload;
use ankaios_platform::limits::PIPE_CONTENT_MAX;
use ankaios_platform::settings::Number;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use tempfile::TempDir;

/// What a hook of these tests may write, in bytes.
const OUTPUT_MAX: usize = 8 * 1024 * 1024;

impl MutatingHooks {
    /// Hooks whose outcomes a test gives.
    pub(crate) fn scripted() -> (Self, Receiver<WorkloadPlan>) {
        let (hooks, ends) = Self::without_thread().unwrap();
        (hooks, ends.plans)
    }
}

/// Hooks in a folder of their own.
struct Hooks {
    folder: TempDir,
    entries: Vec<HookEntry>,
}

impl Hooks {
    fn new(scripts: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let entry = |(name, script): &(&str, &str)| {
            fs::write(folder.path().join(format!("{name}.script")), script).unwrap();
            // A link, since a file that is written while another test forks cannot be executed.
            let program = concat!(env!("CARGO_MANIFEST_DIR"), "/mutating_hooks/hook.sh");
            symlink(program, folder.path().join(name)).unwrap();
            HookEntry {
                name: (*name).to_owned(),
                prio: Number(0),
                path: folder.path().to_owned(),
                timeout_s: Number(60),
            }
        };
        let entries = scripts.iter().map(entry).collect();
        Self { folder, entries }
    }

    fn one(script: &str) -> Self {
        Self::new(&[("hook", script)])
    }

    fn run(&self, plan: &WorkloadPlan) -> HookOutcome {
        run_all(&self.entries, OUTPUT_MAX, plan, None)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// One added and one deleted workload; `config` makes it as large as wanted.
fn plan(config: &str) -> WorkloadPlan {
    let workload = Arc::new(Workload::new("A", "podman", config));
    let instance = workload.instance_name("web");
    let deleted = DeletedWorkload {
        instance: InstanceName::new("old", "x", "A"),
        dependencies: [].into(),
    };
    WorkloadPlan {
        added: vec![AddedWorkload { instance, workload }],
        deleted: vec![deleted],
    }
}

fn answer(outcome: HookOutcome) -> String {
    outcome.expect_err("the update is refused").response_text()
}

#[test]
fn a_hook_that_gives_back_what_it_got_changes_nothing() {
    assert_eq!(Hooks::one("cat").run(&plan("x")), Ok(None));
    assert_eq!(Hooks::one("cat; echo noise >&2").run(&plan("x")), Ok(None));
    assert_eq!(Hooks::new(&[]).run(&plan("x")), Ok(None));
}

#[test]
fn hook_writes_while_it_reads_more_than_a_pipe_holds() {
    let large = plan(&"0123456789".repeat(PIPE_CONTENT_MAX / 5));
    assert_eq!(Hooks::one("cat").run(&large), Ok(None));
}

#[test]
fn hook_output_replaces_the_update_and_empty_output_drops_it() {
    let hooks = Hooks::one("cat >/dev/null; cat \"$0.out\"");
    hooks.write("hook.out", &ankaios_wire::hooks::write_plan(&plan("other")));
    assert_eq!(hooks.run(&plan("x")), Ok(Some(plan("other"))));
    assert_eq!(
        Hooks::one("cat >/dev/null").run(&plan("x")),
        Ok(Some(WorkloadPlan::default()))
    );
    assert_eq!(
        Hooks::one("exit 0").run(&plan("x")),
        Ok(Some(WorkloadPlan::default()))
    );
}

#[test]
fn each_hook_gets_the_result_of_the_one_before() {
    let hooks = Hooks::new(&[
        ("first", "cat >$0.in; cat $0.out"),
        ("second", "cat >$0.in; cat $0.in"),
        ("third", "cat >$0.in; cat $0.out"),
    ]);
    let (changed, last) = (
        ankaios_wire::hooks::write_plan(&plan("changed")),
        ankaios_wire::hooks::write_plan(&plan("last")),
    );
    hooks.write("first.out", &changed);
    hooks.write("third.out", &last);
    assert_eq!(hooks.run(&plan("x")), Ok(Some(plan("last"))));
    let inputs =
        ["first.in", "second.in", "third.in"].map(|name| fs::read(hooks.path(name)).unwrap());
    assert_eq!(
        inputs,
        [
            ankaios_wire::hooks::write_plan(&plan("x")),
            changed.clone(),
            changed
        ]
    );
}

#[test]
fn a_change_that_a_later_hook_takes_back_is_none() {
    let hooks = Hooks::new(&[
        ("first", "cat >/dev/null; cat $0.out"),
        ("second", "cat >/dev/null; cat $0.out"),
    ]);
    hooks.write(
        "first.out",
        &ankaios_wire::hooks::write_plan(&plan("changed")),
    );
    hooks.write("second.out", &ankaios_wire::hooks::write_plan(&plan("x")));
    assert_eq!(hooks.run(&plan("x")), Ok(None));
}

#[test]
fn the_first_veto_ends_the_chain_and_its_reason_is_answered() {
    let hooks = Hooks::new(&[
        ("no", "cat >/dev/null; echo ' because  \n' >&2; exit 3"),
        ("next", "touch $0.ran; cat"),
    ]);
    let veto = hooks.run(&plan("x")).unwrap_err();
    assert_eq!(
        veto.response_text(),
        "Update rejected by mutating hook 'no': 'Hook 'no' rejected the change: because'"
    );
    assert_eq!(
        veto.to_string(),
        "Mutating hook 'no' vetoed the state change: 'Hook 'no' rejected the change: because'"
    );
    assert!(!fs::exists(hooks.path("next.ran")).unwrap());
}

#[test]
fn death_by_a_signal_is_a_veto_too() {
    assert_eq!(
        answer(Hooks::one("kill -9 $$").run(&plan("x"))),
        "Update rejected by mutating hook 'hook': 'Hook 'hook' rejected the change: it ended with signal: 9 \
         (SIGKILL) and without error output'"
    );
}

#[test]
fn a_hook_that_cannot_start_is_named_with_its_file() {
    let missing = Hooks::new(&[("hook", "")]);
    fs::remove_file(missing.path("hook")).unwrap();
    assert_eq!(
        answer(missing.run(&plan("x"))),
        format!(
            "Update rejected: 'Mutating hook 'hook' execution failed: 'Failed to execute hook '{}': No such file or \
             directory (os error 2)''",
            missing.path("hook")
        )
    );
    let not_executable = missing;
    not_executable.write("hook", b"#!/bin/sh");
    assert!(answer(not_executable.run(&plan("x"))).contains("Permission denied"));
}

#[test]
fn a_large_update_that_a_hook_does_not_read_is_refused() {
    let large = plan(&"0123456789".repeat(PIPE_CONTENT_MAX / 5));
    let hooks = Hooks::one("exit 0");
    let text = answer(hooks.run(&large));
    assert!(
        text.contains(&format!(
            "Failed to write to hook '{}' stdin: ",
            hooks.path("hook")
        )),
        "{text}"
    );
}

#[test]
fn output_that_is_no_update_is_refused() {
    let text = answer(Hooks::one("cat >/dev/null; echo garbage").run(&plan("x")));
    let expected = "Update rejected: 'Resulting State is invalid, reason: 'Failed to decode protobuf output from hook 'hook': ";
    assert!(text.starts_with(expected), "{text}");
    // Field 1, a message of length 0: an added workload without anything.
    assert_eq!(
        answer(Hooks::one("cat >/dev/null; printf '\\n\\000'").run(&plan("x"))),
        "Update rejected: 'Resulting State is invalid, reason: 'Failed to convert output from hook 'hook': No \
         instance name''"
    );
}

#[test]
fn endless_output_is_cut_off_at_once() {
    let text = answer(Hooks::one("cat >/dev/null; exec yes").run(&plan("x")));
    assert!(
        text.contains(&format!("wrote more than {OUTPUT_MAX} bytes and was ended")),
        "{text}"
    );
}

#[test]
fn a_hook_that_hangs_is_ended_with_its_helpers() {
    let mut hooks =
        Hooks::one("trap '' TERM; echo asking >&2; sleep 600 & echo $! >$0.pid; wait; wait");
    hooks.entries[0].timeout_s = Number(1);
    let text = answer(hooks.run(&plan("x")));
    assert!(
        text.contains("did not end within 1s and was ended. Its error output: 'asking'"),
        "{text}"
    );
    let pid = fs::read_to_string(hooks.path("hook.pid")).unwrap();
    let alive = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        // A zombie that is not reaped yet has ended.
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    };
    let gone = (0..10_000_000).any(|_| {
        std::thread::yield_now();
        !alive()
    });
    assert!(gone, "process {pid} stays");
}

#[test]
fn the_end_of_the_server_ends_a_running_hook() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("begun");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let scripts = Hooks::one(&format!("echo >{}; exec sleep 600", fifo.display()));
    let (hooks, thread) = MutatingHooks::start(scripts.entries.clone(), OUTPUT_MAX).unwrap();
    hooks.start_plan(plan("x"));
    fs::read(&fifo).unwrap(); // Until the hook runs.
    drop(hooks);
    assert!(threads::join_all([thread], Duration::from_secs(180)).is_empty());
}

#[test]
fn the_thread_answers_plan_after_plan() {
    let scripts = Hooks::one("cat");
    let (hooks, thread) = MutatingHooks::start(scripts.entries.clone(), OUTPUT_MAX).unwrap();
    assert_eq!(
        (hooks.run(plan("x")), hooks.run(plan("y"))),
        (Ok(None), Ok(None))
    );
    drop(hooks);
    assert!(threads::join_all([thread], Duration::from_secs(180)).is_empty());
}
