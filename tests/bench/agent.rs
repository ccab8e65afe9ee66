//! `bench agent`: memory and CPU time of the agent on real podman with 1 and with 20 workloads that
//! only run, how soon the exit of a container shows, the start of 20 workloads beside 20 bare
//! `podman run` at once, and what a crash loop costs. CPU time counts the children that have ended.
//! `modes` and `usage` have a part here as well: a switch beside the same change by hand, and what
//! samples and `ank top` cost.
//!
//! `BENCH_ROUNDS` is how often starts and exits are repeated, `BENCH_SECONDS` how long what lasts a
//! minute is watched, `BENCH_PARTS` names the parts to do. `BENCH_COUNT_CALLS=1` prints what was
//! called of podman.
//!
//! Thread: `main` of the bench.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::process::{anonymous_of, cpu_with_children, pss_of};
use super::real::{Real, now, output};
use super::scale::{mebibytes, milliseconds};
use super::settings::{rounds, seconds};
use super::table::{Table, median};

const WORKLOADS: usize = 20;
/// Workloads of one group of `modes`.
const GROUP: usize = 10;
/// Switches of which the median is taken.
const SWITCHES: usize = 20;
/// Runs of a command, and reads of usage, of which the mean is taken.
const RUNS: u32 = 20;
const READS: u32 = 200;
/// What follows a start is over by then, also the memory that is returned after it.
const SETTLED: Duration = Duration::from_secs(8);

/// What `bench agent` does when `BENCH_PARTS` says nothing.
pub const PARTS: &str = "connected idle starts exits deletes crash_loop";

/// What an idle agent of Eclipse Ankaios needs: MiB, and seconds of CPU in a minute.
struct Idle {
    pss: f64,
    anonymous: f64,
    cpu: f64,
}

/// Measures these parts. Returns true: there is no relation to keep, the table shows the rest.
pub fn run(programs: &Path, parts: &str) -> bool {
    let mut real = Real::new(programs);
    real.counts_calls =
        std::env::var_os("BENCH_COUNT_CALLS").is_some_and(|value| !value.is_empty());
    let server = if parts.contains("modes") {
        "mode_config = \"mode\""
    } else {
        ""
    };
    real.start(server, "");
    let mut table = Table::default();
    for part in parts.split_whitespace() {
        match part {
            "connected" => connected(&real, &mut table),
            "idle" => {
                let one = Idle {
                    pss: 7.1,
                    anonymous: 0.94,
                    cpu: 1.3,
                };
                let many = Idle {
                    pss: 7.4,
                    anonymous: 1.46,
                    cpu: 2.3,
                };
                idle(&real, 1, one, &mut table);
                idle(&real, WORKLOADS, many, &mut table);
            }
            "starts" => starts(&real, &mut table),
            "exits" => exits(&real, &mut table),
            "deletes" => deletes(&real, &mut table),
            "crash_loop" => crash_loop(&real, &mut table),
            "modes" => modes(&real, &mut table),
            "usage" => usage(&real, &mut table),
            other => panic!("there is no part '{other}'"),
        }
    }
    real.stop();
    println!("\nAgent on real podman");
    table.print();
    true
}

/// Workloads that only run.
fn many(real: &Real, count: usize) -> String {
    let mut text = "apiVersion: v1\nworkloads:\n".to_owned();
    for index in 0..count {
        let _ = write!(
            text,
            "  bench_{index}:\n    runtime: podman\n    agent: bench\n    runtimeConfig: |\n      \
             image: alpine:latest\n      commandOptions: [\"--entrypoint\", \"/bin/sleep\"]\n      \
             commandArgs: [\"6000\"]\n"
        );
    }
    real.write("many.yaml", &text)
}

fn delete(real: &Real, file: &str) {
    // The containers ignore SIGTERM; podman's ten seconds 20 times would be a long wait.
    real.podman(&["kill", "--all"]);
    real.ank(&["--quiet", "apply", "-d", file]);
}

/// CPU time of the agent and of its children that have ended.
fn agent_cpu(real: &Real) -> Duration {
    cpu_with_children(real.agent_pid())
}

/// Seconds of CPU that the agent and its children use in the next minute.
fn cpu_of_a_minute(real: &Real) -> f64 {
    let before = agent_cpu(real);
    std::thread::sleep(Duration::from_secs(seconds()));
    (agent_cpu(real) - before).as_secs_f64() * 60.0 / seconds() as f64
}

/// Two rows: memory with its part of the shared pages of files, and memory that is in no file.
fn agent_memory(real: &Real, when: &str, pss_of_peer: f64, own_of_peer: f64, table: &mut Table) {
    let pss = mebibytes(pss_of(real.agent_pid()));
    let own = mebibytes(anonymous_of(real.agent_pid()));
    table.promised(
        &format!("agent: memory, {when}"),
        "MiB",
        pss,
        pss_of_peer,
        0.5,
    );
    table.promised(
        &format!("agent: anonymous memory, {when}"),
        "MiB",
        own,
        own_of_peer,
        0.8,
    );
}

/// The memory right after the connection, with the memory that the start of the agent needed.
fn connected(real: &Real, table: &mut Table) {
    std::thread::sleep(Duration::from_secs(1));
    agent_memory(real, "just connected, no workload", 6.7, 0.79, table);
}

fn idle(real: &Real, workloads: usize, of_peer: Idle, table: &mut Table) {
    let file = many(real, workloads);
    real.apply(&file, workloads);
    std::thread::sleep(SETTLED);
    let when = format!("workloads: {workloads}");
    agent_memory(real, &when, of_peer.pss, of_peer.anonymous, table);
    let what = format!("agent and podman: CPU of an idle minute, workloads: {workloads}");
    table.promised(&what, "s", cpu_of_a_minute(real), of_peer.cpu, 0.1);
    delete(real, &file);
}

/// Seconds that this number of `podman run` at once takes.
fn bare_podman(real: &Real) -> f64 {
    let begin = now();
    let mut children = Vec::new();
    for index in 0..WORKLOADS {
        let name = format!("bare_{index}");
        let mut command = real.podman_command(&["run", "--detach", "--name", &name]);
        command.args(["--entrypoint", "/bin/sleep", "alpine:latest", "6000"]);
        command.stdout(std::process::Stdio::null());
        children.push(command.spawn().expect("podman starts"));
    }
    for mut child in children {
        let status = child.wait().expect("podman ends");
        assert!(status.success(), "podman run: {status}");
    }
    now() - begin
}

fn starts(real: &Real, table: &mut Table) {
    let mut bare = Vec::new();
    let mut ours = Vec::new();
    let mut ratios = Vec::new();
    for _ in 0..rounds() {
        // One after the other, so that other load meets both.
        let bare_time = bare_podman(real);
        real.remove_containers();
        real.forget_calls();
        let file = many(real, WORKLOADS);
        let begin = now();
        real.apply(&file, WORKLOADS);
        let own_time = now() - begin;
        print_calls(real);
        delete(real, &file);
        bare.push(bare_time);
        ours.push(own_time);
        ratios.push(own_time / bare_time);
    }
    table.noted(
        &format!("{WORKLOADS} bare podman run at once"),
        "s",
        median(bare),
    );
    let what = format!("{WORKLOADS} workloads applied until all are Running");
    table.noted(&what, "s", median(ours));
    let what = "the same, as a share of bare podman";
    table.beside(what, "", median(ratios), 1.0, Some(1.0));
}

/// How often each command of podman was called, if that was counted.
fn print_calls(real: &Real) {
    if !real.counts_calls {
        return;
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for call in real.calls() {
        let command = call.split(' ').next().unwrap_or_default();
        *counts.entry(command.to_owned()).or_default() += 1;
    }
    println!("calls of podman: {counts:?}");
}

/// From the exit of a container to the change in `ank get workloads`.
fn exits(real: &Real, table: &mut Table) {
    let mut delays = Vec::new();
    for round in 0..rounds() * 2 {
        let name = format!("brief_{round}");
        let config = "image: alpine:latest\ncommandOptions: [\"--entrypoint\", \"/bin/sleep\"]\ncommandArgs: [\"1\"]";
        real.ank(&[
            "--quiet",
            "--no-wait",
            "run",
            "workload",
            &name,
            "--runtime",
            "podman",
            "--agent",
            "bench",
            "--config",
            config,
        ]);
        // Without a pause between the reads, which would be measured as well.
        let give_up = now() + 20.0;
        while !real
            .ank(&["get", "workloads", &name])
            .contains("Succeeded(Ok)")
        {
            assert!(now() < give_up, "workload '{name}' did not end within 20 s");
        }
        delays.push(now() - real.finished(&name));
        real.ank(&["--quiet", "delete", "workload", &name]);
    }
    let longest = delays.iter().copied().fold(0.0, f64::max);
    let what = "exit of a container until ank get workloads shows it (median)";
    table.promised(what, "s", median(delays), 0.95, 0.15);
    table.noted("the longest of them", "s", longest);
}

/// Deletes workloads that have ended, each from the begin of the command to its end.
fn deletes(real: &Real, table: &mut Table) {
    let mut times = Vec::new();
    for round in 0..rounds() {
        let name = format!("ended_{round}");
        let config = "image: alpine:latest\ncommandOptions: [\"--entrypoint\", \"/bin/true\"]";
        real.ank(&[
            "--quiet",
            "run",
            "workload",
            &name,
            "--runtime",
            "podman",
            "--agent",
            "bench",
            "--config",
            config,
        ]);
        times.push(real.ank_time(&["--quiet", "delete", "workload", &name]));
    }
    let what = "delete of a workload that has ended (median)";
    table.promised(what, "s", median(times), 0.09, 1.0);
    let begin = now();
    real.podman(&["create", "--name", "bare", "alpine:latest"]);
    real.podman(&["rm", "bare"]);
    table.noted("podman create and rm, bare", "s", now() - begin);
}

fn crash_loop(real: &Real, table: &mut Table) {
    let file = real.write(
        "crashing.yaml",
        "apiVersion: v1\nworkloads:\n  crashing:\n    runtime: podman\n    agent: bench\n    \
         restartPolicy: ALWAYS\n    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [\"--entrypoint\", \"/bin/false\"]\n",
    );
    real.ank(&["--quiet", "--no-wait", "apply", &file]);
    for which in ["first", "next"] {
        let what = format!("crash loop with ALWAYS: CPU of agent and podman, {which} minute");
        // Of one core.
        let percent = cpu_of_a_minute(real) / 60.0 * 100.0;
        table.promised(&what, "%", percent, 25.0, 0.1);
    }
    real.ank(&["--quiet", "delete", "workload", "crashing"]);
}

// ----------------------------------------------------------------------- modes

/// Ten workloads, three after another a chain.
fn group(name: &str, agent: &str, modes: &str) -> String {
    let mut text = String::new();
    for index in 0..GROUP {
        let _ = write!(
            text,
            "  {name}_{index}:\n    runtime: podman\n    agent: \"{agent}\"\n"
        );
        if !modes.is_empty() {
            let _ = writeln!(text, "    tags: {{ modes: {modes} }}");
        }
        if index % 3 != 0 {
            let needed = index - 1;
            let _ = writeln!(
                text,
                "    dependencies: {{ {name}_{needed}: ADD_COND_RUNNING }}"
            );
        }
        text.push_str(
            "    runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [\"--stop-timeout\", \"1\"]\n      \
             commandArgs: [\"sh\", \"-c\", \"trap exit TERM; while true; do sleep 1 & wait $!; done\"]\n",
        );
    }
    text
}

/// The part of the state that says on which agents the two groups run.
fn assigned(drive: &str, park: &str) -> String {
    let mut text = "desiredState:\n  apiVersion: v1\n  workloads:\n".to_owned();
    for index in 0..GROUP {
        let _ = write!(
            text,
            "    drive_{index}: {{ agent: \"{drive}\" }}\n    park_{index}: {{ agent: \"{park}\" }}\n"
        );
    }
    text
}

/// Twenty switches, then the same changes by hand: ten workloads end, ten start, ten continue.
fn modes(real: &Real, table: &mut Table) {
    let of_modes = format!(
        "apiVersion: v1\nconfigs: {{ mode: park }}\nworkloads:\n{}{}{}",
        group("drive", "bench", "drive"),
        group("park", "bench", "park"),
        group("both", "bench", "drive park")
    );
    let by_hand = format!(
        "apiVersion: v1\nworkloads:\n{}{}{}",
        group("drive", "", ""),
        group("park", "bench", ""),
        group("both", "bench", "")
    );
    let of_modes = real.write("modes.yaml", &of_modes);
    let by_hand = real.write("by_hand.yaml", &by_hand);
    let drive = real.write("drive.yaml", &assigned("bench", ""));
    let park = real.write("park.yaml", &assigned("", "bench"));

    real.apply(&of_modes, 2 * GROUP);
    let mut switches = Vec::new();
    for round in 0..SWITCHES {
        let mode = if round % 2 == 0 { "drive" } else { "park" };
        switches.push(real.ank_time(&["--quiet", "mode", mode]));
    }
    real.ank(&["--quiet", "apply", "-d", &of_modes]);

    real.apply(&by_hand, 2 * GROUP);
    let mut masks = Vec::new();
    for index in 0..GROUP {
        masks.push(format!("desiredState.workloads.drive_{index}.agent"));
        masks.push(format!("desiredState.workloads.park_{index}.agent"));
    }
    let mut changes = Vec::new();
    for round in 0..SWITCHES {
        let mut arguments = vec!["--quiet", "set", "state"];
        arguments.extend(masks.iter().map(String::as_str));
        arguments.push(if round % 2 == 0 { &drive } else { &park });
        changes.push(real.ank_time(&arguments));
    }
    real.ank(&["--quiet", "apply", "-d", &by_hand]);
    let what = "switch of the mode, 10 end, 10 start, 10 go on";
    table.promised(what, "s", median(switches), median(changes), 1.1);
}

// ----------------------------------------------------------------------- usage

/// CPU and time of one of many runs, in milliseconds; CPU with all its children.
fn each(what: &str, command: impl Fn() -> Command, table: &mut Table) {
    let begin = now();
    let before = cpu_with_children(std::process::id());
    for _ in 0..RUNS {
        output(&mut command()).expect("the command succeeds");
    }
    let cpu = milliseconds((cpu_with_children(std::process::id()) - before) / RUNS);
    let time = (now() - begin) * 1000.0 / f64::from(RUNS);
    table.noted(&format!("{what}: CPU"), "ms", cpu);
    table.noted(&format!("{what}: time"), "ms", time);
}

fn usage(real: &Real, table: &mut Table) {
    let file = many(real, WORKLOADS);
    real.apply(&file, WORKLOADS);
    std::thread::sleep(SETTLED);
    let before = agent_cpu(real);
    for _ in 0..READS {
        real.ank(&["get", "state", "usage"]);
    }
    let cpu = milliseconds((agent_cpu(real) - before) / READS);
    let what = format!("agent: CPU of a sample of {WORKLOADS} workloads, limit");
    table.promised(&what, "ms", cpu, 1.0, 1.0);
    let top = || real.ank_command(&["top", "--interval", "500ms"]);
    each("ank top, with an interval of 500 ms", top, table);
    let stats = || real.podman_command(&["stats", "--no-stream"]);
    each("podman stats --no-stream", stats, table);
    delete(real, &file);
    let _ = fs::remove_file(file);
}
