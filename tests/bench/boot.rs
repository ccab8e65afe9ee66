//! `bench boot`: starts on real podman with each level of `prepare`: a chain of five workloads,
//! twenty that wait for one, twenty that wait for nothing, and the first one after the start of an
//! agent; what twenty that wait cost; and what else makes starts short or long. Beside each stand
//! bare calls of podman in the same run, so that other load on the machine meets both: the ratios
//! matter.
//!
//! `BENCH_ROUNDS` is how often all is repeated, `BENCH_SECONDS` how long the twenty wait.
//! `BENCH_LEVELS` names the levels. Programs without levels have no `lifecycle:` block, so what
//! needs one is left out for them.
//!
//! Thread: `main` of the bench, one more for each bare call of podman at the same time.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::real::{Real, now};
use super::rows::Rows;
use super::settings::{is_foreign, rounds, seconds};
use super::table::Table;

const MANY: usize = 20;
const LINKS: usize = 5;
const BOUNDS: [u32; 5] = [1, 2, 4, 8, 20];
/// What follows the last report is over by then.
const SETTLED: Duration = Duration::from_secs(5);

/// When a workload is ready.
#[derive(Clone, Copy)]
enum Ready {
    /// As soon as it runs.
    AtOnce,
    /// A second after its start: it makes its file then.
    AfterASecond,
    /// The time at which another process creates its file.
    ByOthers,
}

struct Boot {
    real: Real,
    rows: Rows,
}

/// Returns true: the table shows which promises are kept.
pub fn run(programs: &Path) -> bool {
    let levels = levels();
    let mut boot = Boot {
        real: Real::new(programs),
        rows: Rows::default(),
    };
    if !is_foreign() {
        for level in &levels {
            boot.idle(level);
        }
    }
    for round in 0..rounds() {
        // Each level comes early and late, since the measurement before leaves its traces in the
        // machine.
        let mut order = levels.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        for level in &order {
            if !is_foreign() {
                boot.chain(level);
                boot.burst(level);
                boot.first(level);
            }
            boot.plain_chain(level);
            boot.at_once(level);
            boot.first_plain(level);
        }
        if !is_foreign() {
            for bound in BOUNDS {
                boot.parallel(bound);
            }
            boot.ways();
        }
    }
    boot.print(&levels);
    true
}

fn levels() -> Vec<String> {
    if is_foreign() {
        return vec!["none".to_owned()];
    }
    let levels = std::env::var("BENCH_LEVELS").unwrap_or_default();
    let levels = if levels.is_empty() {
        "none image create init"
    } else {
        &levels
    };
    levels.split_whitespace().map(str::to_owned).collect()
}

/// One workload that runs. `needs` is another one, or empty.
fn workload(name: &str, needs: &str, ready: Ready, shared: &Path) -> String {
    let shared = shared.display();
    let mut command = "exec sleep 6000".to_owned();
    if matches!(ready, Ready::AfterASecond) {
        command = format!("sleep 1; touch /shared/{name}; {command}");
    }
    let mut text = format!("  {name}:\n    runtime: podman\n    agent: bench\n");
    if !needs.is_empty() {
        let _ = writeln!(text, "    dependencies: {{{needs}: ADD_COND_RUNNING}}");
    }
    let _ = write!(
        text,
        "    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [\"-v\", \"{shared}:/shared\"]\n      commandArgs: [\"sh\", \"-c\", \"{command}\"]\n"
    );
    if !matches!(ready, Ready::AtOnce) {
        let _ = writeln!(
            text,
            "      lifecycle: {{ready: {{file: \"{shared}/{name}\", periodMs: 50, deadlineMs: 0}}}}"
        );
    }
    text
}

fn switches_of(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the agent runs");
    let mut sum = 0;
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        let counts = counts.filter_map(|line| line.split_whitespace().nth(1));
        sum += counts
            .filter_map(|count| count.parse::<u64>().ok())
            .sum::<u64>();
    }
    sum
}

impl Boot {
    /// A cluster whose agent prepares so far, with one more line of settings.
    fn start(&mut self, level: &str, line: &str) {
        let mut settings = line.to_owned();
        if !is_foreign() {
            let _ = write!(settings, "\nprepare = \"{level}\"\nprepare_max = 64");
        }
        self.real.start("", &settings);
    }

    fn manifest(&self, workloads: &[(String, String, Ready)]) -> String {
        let mut text = "apiVersion: v1\nworkloads:\n".to_owned();
        let shared = self.real.path("shared");
        for (name, needs, ready) in workloads {
            text += &workload(name, needs, *ready, &shared);
        }
        self.real.write("manifest.yaml", &text)
    }

    fn apply_no_wait(&self, file: &str) {
        self.real.ank(&["--quiet", "--no-wait", "apply", file]);
    }

    /// Waits until this number of workloads is prepared up to the level.
    fn wait_until_prepared(&self, level: &str, count: usize) {
        if level != "none" {
            let info = format!("prepared: {}", level.to_uppercase());
            self.real.wait_for_workloads(count, &info);
        }
    }

    /// The gate, and twenty that wait for it.
    fn gated(&self) -> Vec<(String, String, Ready)> {
        let mut workloads = vec![("gate".to_owned(), String::new(), Ready::ByOthers)];
        for index in 0..MANY {
            workloads.push((format!("w{index}"), "gate".to_owned(), Ready::AtOnce));
        }
        workloads
    }

    fn many(&self) -> String {
        let one = |index| (format!("w{index}"), String::new(), Ready::AtOnce);
        self.manifest(&(0..MANY).map(one).collect::<Vec<_>>())
    }

    fn chain_of(&self, ready: Ready) -> String {
        let mut workloads = vec![("c0".to_owned(), String::new(), ready)];
        for index in 1..LINKS {
            workloads.push((format!("c{index}"), format!("c{}", index - 1), ready));
        }
        self.manifest(&workloads)
    }

    fn wait_for_gate(&self) {
        self.real.wait_for_workloads(1, "ready: ");
    }

    fn open_gate(&self) {
        let path = self.real.path("shared").join("gate");
        fs::write(path, "").expect("own folder is writable");
    }

    /// A chain in which each link is ready one second after its start: from the file of one to the
    /// start of the next.
    fn chain(&mut self, level: &str) {
        self.start(level, "");
        let file = self.chain_of(Ready::AfterASecond);
        self.apply_no_wait(&file);
        self.real.wait_for_workloads(LINKS, "Running(Ok)");
        let names: Vec<String> = (1..LINKS).map(|index| format!("c{index}")).collect();
        let mut arguments = vec!["blame"];
        arguments.extend(names.iter().map(String::as_str));
        arguments.extend(["-o", "json"]);
        let blame: serde_json::Value =
            serde_json::from_str(&self.real.ank(&arguments)).expect("ank prints JSON");
        self.rows.note(
            &format!("start.{level}"),
            sum_of(&blame, "startMs") / 1000.0,
        );
        let mut sum = 0.0;
        let mut bare_sum = 0.0;
        for index in 1..LINKS {
            let before = self.real.changed(&format!("c{}", index - 1));
            sum += self.real.started(&format!("c{index}")) - before;
            bare_sum += bare(&self.real, &[], "alpine:latest");
        }
        self.real.stop();
        self.rows.note(&format!("chain.{level}"), sum);
        self.rows.note("chain.bare", bare_sum);
    }

    /// The same without readiness: from the first start to the last. Programs without the block
    /// can do this, too.
    fn plain_chain(&mut self, level: &str) {
        self.start(level, "");
        let file = self.chain_of(Ready::AtOnce);
        self.real.ank(&["--quiet", "apply", &file]);
        let last = self.real.started(&format!("c{}", LINKS - 1));
        let time = last - self.real.started("c0");
        self.rows.note(&format!("plain.{level}"), time);
        self.real.stop();
    }

    /// Twenty that wait for one; all are prepared when that becomes ready.
    fn burst(&mut self, level: &str) {
        self.start(level, "");
        let file = self.manifest(&self.gated());
        self.apply_no_wait(&file);
        self.wait_for_gate();
        self.wait_until_prepared(level, MANY);
        self.open_gate();
        self.real.wait_for_workloads(MANY + 1, "Running(Ok)");
        let last = self.starts().into_iter().fold(0.0, f64::max);
        let time = last - self.real.changed("gate");
        self.real.stop();
        let bare_time = bare_many(&self.real);
        self.real.remove_containers();
        self.rows.note("burst.bare", bare_time);
        self.rows.note(&format!("burst.{level}"), time);
    }

    /// When each of the twenty started.
    fn starts(&self) -> Vec<f64> {
        (0..MANY)
            .map(|index| self.real.started(&format!("w{index}")))
            .collect()
    }

    /// Twenty that wait for nothing: nothing is prepared, so nothing may take longer.
    fn at_once(&mut self, level: &str) {
        self.start(level, "");
        let file = self.many();
        let time = self.real.ank_time(&["--quiet", "apply", &file]);
        self.rows.note(&format!("at_once.{level}"), time);
        if !is_foreign() {
            let blame = self.real.ank(&["blame", "-o", "json"]);
            let prepared = blame.matches("\"prepared\"").count();
            self.rows
                .note(&format!("at_once_prepared.{level}"), prepared as f64);
        }
        self.real.stop();
    }

    /// The same with other bounds on starts at the same time: until the first and the last one
    /// started.
    fn parallel(&mut self, bound: u32) {
        self.start("none", &format!("max_parallel_starts = {bound}"));
        let file = self.many();
        let begin = now();
        self.real.ank(&["--quiet", "apply", &file]);
        let starts = self.starts();
        let first = starts.iter().copied().fold(f64::MAX, f64::min);
        let last = starts.iter().copied().fold(0.0, f64::max);
        self.rows
            .note(&format!("parallel_first.{bound}"), first - begin);
        self.rows.note(&format!("parallel.{bound}"), last - begin);
        self.real.stop();
    }

    /// Twenty that wait for one that never comes: calls of the engine and context switches of the
    /// agent meanwhile.
    fn idle(&mut self, level: &str) {
        self.real.counts_calls = true;
        self.real.forget_calls();
        self.start(level, "");
        self.real.counts_calls = false;
        let file = self.manifest(&self.gated());
        let text = fs::read_to_string(&file).expect("own file");
        // The gate is the first workload. Its agent never comes.
        let file = self.real.write(
            "idle.yaml",
            &text.replacen("agent: bench", "agent: absent", 1),
        );
        self.apply_no_wait(&file);
        self.real
            .wait_for_workloads(MANY, "Pending(WaitingToStart)");
        self.wait_until_prepared(level, MANY);
        std::thread::sleep(SETTLED);
        let pid = self.real.agent_pid();
        let calls = self.real.calls().len();
        let switches = switches_of(pid);
        std::thread::sleep(Duration::from_secs(seconds()));
        let calls = self.real.calls().len() - calls;
        let switches = switches_of(pid) - switches;
        self.rows.note(&format!("idle_calls.{level}"), calls as f64);
        self.rows
            .note(&format!("idle_switches.{level}"), switches as f64);
        self.real.stop();
    }

    /// Other ways to start faster, each as one `podman run`; what this machine does not have is
    /// left out.
    fn ways(&mut self) {
        let real = &self.real;
        self.rows.note("way.runc", bare(real, &[], "alpine:latest"));
        if real.podman_can(&["--runtime", "crun", "run", "--rm", "alpine:latest", "true"]) {
            self.rows.note(
                "way.crun",
                bare(real, &["--runtime", "crun"], "alpine:latest"),
            );
        }
        if real.podman(&["--help"]).contains("--transient-store") {
            self.rows.note(
                "way.transient",
                bare(real, &["--transient-store"], "alpine:latest"),
            );
        }
        let archive = real.path("image.tar");
        let file = archive.display().to_string();
        if !archive.exists() {
            let format = ["save", "--quiet", "--format", "oci-archive", "--output"];
            real.podman(&[&format[..], &[&file, "alpine:latest"]].concat());
        }
        self.rows.note(
            "way.archive",
            bare(real, &[], &format!("oci-archive:{file}")),
        );
        real.remove_containers();
    }

    /// The first workload after the start of the agent, which an earlier agent may have prepared.
    fn first(&mut self, level: &str) {
        self.start(level, "");
        let file = self.manifest(&[
            ("gate".to_owned(), String::new(), Ready::ByOthers),
            ("w".to_owned(), "gate".to_owned(), Ready::AtOnce),
        ]);
        self.apply_no_wait(&file);
        self.wait_for_gate();
        self.wait_until_prepared(level, 1);
        self.real.stop_agent();
        self.open_gate();
        let begin = now();
        self.real.start_agent();
        self.real.wait_for_workloads(2, "Running(Ok)");
        let time = self.real.started("w") - begin;
        self.rows.note(&format!("first.{level}"), time);
        self.real.stop();
    }

    /// The same for programs without the block: nothing waits.
    fn first_plain(&mut self, level: &str) {
        self.start(level, "");
        self.real.stop_agent();
        let file = self.manifest(&[("w".to_owned(), String::new(), Ready::AtOnce)]);
        self.apply_no_wait(&file);
        let begin = now();
        self.real.start_agent();
        self.real.wait_for_workloads(1, "Running(Ok)");
        let time = self.real.started("w") - begin;
        self.rows.note(&format!("first_plain.{level}"), time);
        self.real.stop();
    }

    fn print(&self, levels: &[String]) {
        let mut table = Table::default();
        let rows = &self.rows;
        for level in levels {
            let share = match level.as_str() {
                "create" => Some(1.05),
                "init" => Some(0.5),
                _ => None,
            };
            let what = format!(
                "chain of {LINKS}, ready 1 s after each start, {level}: sum of 4 starts; bare run"
            );
            rows.beside(
                &mut table,
                &what,
                &format!("chain.{level}"),
                "chain.bare",
                share,
            );
        }
        for level in levels {
            // It ends with the first look at the file, up to 50 ms after the start.
            let what = format!("the same starts, {level}: START of ank blame; bare run");
            rows.beside(
                &mut table,
                &what,
                &format!("start.{level}"),
                "chain.bare",
                None,
            );
        }
        for level in levels {
            let what = format!(
                "{MANY} that wait for one, {level}: until the last started; bare run at once"
            );
            rows.beside(
                &mut table,
                &what,
                &format!("burst.{level}"),
                "burst.bare",
                None,
            );
        }
        for level in levels {
            let share = (level != "none").then_some(1.02);
            let what = format!("{MANY} that wait for nothing, {level}: until all run; none");
            rows.beside(
                &mut table,
                &what,
                &format!("at_once.{level}"),
                "at_once.none",
                share,
            );
            let what = format!("{MANY} that wait for nothing, {level}: preparations");
            rows.count(&mut table, &what, &format!("at_once_prepared.{level}"), 0.0);
        }
        for level in levels {
            let what =
                format!("chain of {LINKS} without readiness, {level}: first to last start; none");
            rows.beside(
                &mut table,
                &what,
                &format!("plain.{level}"),
                "plain.none",
                None,
            );
        }
        for level in levels {
            let what =
                format!("start of the agent until a prepared workload started, {level}; none");
            rows.beside(
                &mut table,
                &what,
                &format!("first.{level}"),
                "first.none",
                None,
            );
        }
        for level in levels {
            let what = format!("start of the agent until a workload started, {level}; none");
            let key = format!("first_plain.{level}");
            rows.beside(&mut table, &what, &key, "first_plain.none", None);
        }
        let watched = seconds();
        for level in levels {
            let what = format!("{MANY} wait for {watched} s, {level}: calls of the engine");
            rows.count(&mut table, &what, &format!("idle_calls.{level}"), 0.0);
            let share = (level != "none").then_some(1.1);
            let what = format!(
                "{MANY} wait for {watched} s, {level}: context switches of the agent; none"
            );
            let key = format!("idle_switches.{level}");
            rows.beside_in(&mut table, &what, "", &key, "idle_switches.none", share);
        }
        for bound in BOUNDS {
            let what = format!("{MANY} that wait for nothing, max_parallel_starts {bound}");
            rows.noted(
                &mut table,
                &format!("{what}: first started"),
                &format!("parallel_first.{bound}"),
            );
            rows.noted(
                &mut table,
                &format!("{what}: last started"),
                &format!("parallel.{bound}"),
            );
        }
        for (what, key) in [
            ("podman run with crun; with runc", "way.crun"),
            (
                "podman run with a transient store; without",
                "way.transient",
            ),
            ("podman run of an image archive; of an image", "way.archive"),
        ] {
            rows.beside(&mut table, what, key, "way.runc", None);
        }
        println!("\nStarts on real podman");
        table.print();
    }
}

/// Seconds until one call of podman has started a container of the same kind.
fn bare(real: &Real, options: &[&str], image: &str) -> f64 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("bare_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let shared = format!("{}:/shared", real.path("shared").display());
    let begin = now();
    let mut arguments = options.to_vec();
    arguments.extend(["run", "--detach", "--name", &name, "-v", &shared, image]);
    arguments.extend(["sh", "-c", "exec sleep 6000"]);
    real.podman(&arguments);
    let mut arguments = options.to_vec();
    arguments.extend([
        "inspect",
        "--format",
        "{{.State.StartedAt.UnixNano}}",
        &name,
    ]);
    let printed = real.podman(&arguments);
    let started: f64 = printed.trim().parse().expect("podman prints a number");
    started / 1e9 - begin
}

/// Seconds that twenty of them at once take.
fn bare_many(real: &Real) -> f64 {
    let begin = now();
    std::thread::scope(|scope| {
        for _ in 0..MANY {
            scope.spawn(|| bare(real, &[], "alpine:latest"));
        }
    });
    now() - begin
}

/// The sum of a field, wherever it is in a JSON value.
fn sum_of(value: &serde_json::Value, field: &str) -> f64 {
    use serde_json::Value;
    match value {
        Value::Array(items) => items.iter().map(|item| sum_of(item, field)).sum(),
        Value::Object(fields) => {
            let own = fields.get(field).and_then(Value::as_f64).unwrap_or(0.0);
            own + fields
                .values()
                .map(|inner| sum_of(inner, field))
                .sum::<f64>()
        }
        _ => 0.0,
    }
}
