//! `bench update`: outages of updates on real podman: of a workload that is switched to an instance
//! that was staged, or to one that was not, and until the old one runs again after a bad update.
//! Beside each stand bare calls of podman in the same run, so that other load on the machine meets
//! both: the ratios matter. Times are those of files, which the kernel counts in its ticks (1 to
//! 10 ms).
//!
//! `BENCH_ROUNDS` is how often all is repeated. Programs without guarded updates have no
//! `lifecycle:` block, so only the plain update is measured for them.
//!
//! Thread: `main` of the bench, one that follows the states while an update is rolled back.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use super::real::{Real, now};
use super::rows::Rows;
use super::settings::{is_foreign, rounds};
use super::table::Table;
use crate::support::wait_until;

/// Pause between the removal of an old container and the next measurement.
const PAUSE: Duration = Duration::from_secs(1);

/// What bare podman does to replace a container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bare {
    /// Stop, remove, run.
    Plain,
    /// Create, then stop and start.
    Staged,
    /// Stop, run: the new one is removed later.
    Undone,
}

struct Updates {
    real: Real,
    rows: Rows,
    /// Of the running workload: part of the names of its files.
    version: usize,
}

/// Returns true: the table shows which promises are kept.
pub fn run(programs: &Path) -> bool {
    let mut updates = Updates {
        real: Real::new(programs),
        rows: Rows::default(),
        version: 0,
    };
    updates.real.start("", "retry_limit = 1");
    let file = updates.manifest(&program("0"), "", "");
    updates.apply(&file);
    updates.real.wait_for_file("first.0");
    for round in 0..rounds() {
        updates.bare(Bare::Plain);
        updates.outage("plain", "");
        if is_foreign() {
            continue;
        }
        updates.bare(Bare::Staged);
        updates.outage("staged", "stage: CREATE, healthyMs: 100");
        updates.bare(Bare::Undone);
        updates.rolled_back(round);
        updates.refused();
    }
    updates.print();
    updates.real.stop();
    true
}

/// A program that runs until it is ended. It makes a file when it begins and then more of them,
/// every two milliseconds, so that both ends of an outage are seen without the engine.
fn program(version: &str) -> String {
    format!(
        "trap \"exit 0\" TERM; touch /shared/first.{version}; while :; do touch /shared/alive.{version}; usleep 2000; done"
    )
}

impl Updates {
    /// One workload. `update` is its block `update`, or empty; `options` are more options of
    /// podman.
    fn manifest(&self, command: &str, update: &str, options: &str) -> String {
        let shared = self.real.path("shared");
        let command = command.replace('"', "\\\"");
        let mut text = format!(
            "apiVersion: v1\nworkloads:\n  w:\n    runtime: podman\n    agent: bench\n    runtimeConfig: |\n      \
             image: alpine:latest\n      commandOptions: [{options}\"-v\", \"{}:/shared\"]\n      \
             commandArgs: [\"sh\", \"-c\", \"{command}\"]\n",
            shared.display()
        );
        if !update.is_empty() {
            text += &format!("      lifecycle: {{ update: {{ {update} }} }}\n");
        }
        self.real.write("w.yaml", &text)
    }

    fn apply(&self, file: &str) {
        self.real.ank(&["--quiet", "--no-wait", "apply", file]);
    }

    /// Waits until the old container is removed, and a moment more.
    fn settle(&self) {
        wait_until("the old container is removed", || {
            let listed = self
                .real
                .podman(&["ps", "--all", "--quiet", "--filter", "label=name"]);
            listed.lines().count() == 1
        });
        std::thread::sleep(PAUSE);
    }

    /// An update of the running workload: from the last sign of life of the old instance to the
    /// first of the new one.
    fn outage(&mut self, key: &str, update: &str) {
        let old = self.version;
        self.version += 1;
        let new = self.version;
        let file = self.manifest(&program(&new.to_string()), update, "");
        self.apply(&file);
        self.real.wait_for_file(&format!("first.{new}"));
        self.settle();
        let time =
            self.real.changed(&format!("first.{new}")) - self.real.changed(&format!("alive.{old}"));
        self.rows.note(key, time);
    }

    /// A bad update: from its outcome, and from the end of the new instance, to the first sign of
    /// life of the old one, which comes back.
    fn rolled_back(&mut self, round: usize) {
        let first = format!("first.{}", self.version);
        self.real.remove_file("bad");
        self.real.remove_file(&first);
        let update = "healthyMs: 500, onFailure: ROLLBACK";
        let file = self.manifest("touch /shared/bad; exit 3", update, "");
        // Otherwise the server refuses the same update the next time.
        let text = std::fs::read_to_string(&file).expect("own file");
        let file = self.real.write(
            "bad.yaml",
            &format!("{text}    tags: {{round: \"{round}\"}}\n"),
        );
        let (mut watch, failed) = self.follow();
        self.apply(&file);
        self.real.wait_for_file("bad");
        self.real.wait_for_file(&first);
        self.settle();
        let _ = watch.kill();
        let _ = watch.wait();
        let back = self.real.changed(&first);
        self.rows.note("ended", back - self.real.changed("bad"));
        if let Some(failed) = failed.join().expect("the follower does not panic") {
            self.rows.note("undone", back - failed);
        }
    }

    /// Follows the states until one is shown as failed, which is when the server decides.
    fn follow(&self) -> (Child, JoinHandle<Option<f64>>) {
        let mut command = self.real.ank_command(&["get", "workloads", "-w"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut watch = command.spawn().expect("ank starts");
        let printed = watch.stdout.take().expect("its output is a pipe");
        (watch, std::thread::spawn(|| time_of_failure(printed)))
    }

    /// An update that shows while it is staged that it cannot start: whether the old one was
    /// stopped for it.
    fn refused(&mut self) {
        let before = self.running_container();
        let update = "stage: CREATE, onFailure: ROLLBACK";
        let file = self.manifest("true", update, "\"--memory\", \"nonsense\", ");
        self.apply(&file);
        wait_until("the update is undone", || {
            let updates = self.real.ank(&["get", "updates"]);
            updates
                .lines()
                .last()
                .is_some_and(|line| line.contains(" UNDONE "))
        });
        self.settle();
        let stopped = self.running_container() != before;
        self.rows.note("refused", f64::from(u8::from(stopped)));
    }

    /// The id of the running container and when it started.
    fn running_container(&self) -> String {
        let id = self
            .real
            .podman(&["ps", "--quiet", "--filter", "label=name"]);
        self.real.podman(&[
            "inspect",
            "--format",
            "{{.Id}} {{.State.StartedAt}}",
            id.trim(),
        ])
    }

    /// The same with calls of podman.
    fn bare(&mut self, kind: Bare) {
        let real = &self.real;
        let old = format!("bare_old_{}", self.version);
        let new = format!("bare_new_{}", self.version);
        let shared = format!("{}:/shared", real.path("shared").display());
        let make = |what: &[&str], name: &str| {
            let script = program(name);
            let rest = [
                "--name",
                name,
                "-v",
                &shared,
                "alpine:latest",
                "sh",
                "-c",
                &script,
            ];
            real.podman(&[what, &rest[..]].concat());
        };
        make(&["run", "--detach"], &old);
        real.wait_for_file(&format!("first.{old}"));
        std::thread::sleep(Duration::from_millis(200));
        if kind == Bare::Staged {
            make(&["create"], &new);
        }
        real.podman(&["stop", &old]);
        if kind == Bare::Plain {
            real.podman(&["rm", &old]);
        }
        if kind == Bare::Staged {
            real.podman(&["start", &new]);
        } else {
            make(&["run", "--detach"], &new);
        }
        real.wait_for_file(&format!("first.{new}"));
        let time = real.changed(&format!("first.{new}")) - real.changed(&format!("alive.{old}"));
        let key = match kind {
            Bare::Plain => "bare.plain",
            Bare::Staged => "bare.staged",
            Bare::Undone => "bare.undone",
        };
        self.rows.note(key, time);
        let _ = real.podman_can(&["rm", "--force", "--time", "0", &old, &new]);
        real.remove_file(&format!("first.{old}"));
        real.remove_file(&format!("first.{new}"));
    }

    fn print(&self) {
        let mut table = Table::default();
        for (what, key, base, share) in [
            (
                "update that is staged: outage; bare stop, start of a created one",
                "staged",
                "bare.staged",
                Some(1.1),
            ),
            (
                "update that is not staged: outage; bare stop, rm, run",
                "plain",
                "bare.plain",
                None,
            ),
            (
                "bad update: from the verdict to the old one; bare stop, run",
                "undone",
                "bare.undone",
                Some(1.5),
            ),
            (
                "bad update: from its end to the old one; bare stop, run",
                "ended",
                "bare.undone",
                None,
            ),
        ] {
            self.rows
                .beside_in(&mut table, what, "ms", key, base, share);
        }
        if let Some(stopped) = self.rows.largest("refused") {
            let what = "bad update that cannot be staged: the old one was stopped";
            table.counted(what, stopped, 0.0);
        }
        println!("\nUpdates on real podman");
        table.print();
    }
}

/// When the first line came that shows a failed workload.
fn time_of_failure(printed: ChildStdout) -> Option<f64> {
    for line in BufReader::new(printed).lines() {
        if line.ok()?.contains("Failed(ExecFailed)") {
            return Some(now());
        }
    }
    None
}
