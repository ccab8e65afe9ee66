//! What workloads use on real podman: `ank top` and the metrics beside the kernel's own files and
//! known loads.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use crate::store::{PATIENT, Podman, shell};
use crate::support::{Cluster, LIMIT, poll, wait_until};
use ankaios_lite::model::limits::USAGE_WAIT_MAX;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the kernel shows control groups: version 2 here, each hierarchy of version 1 in a folder
/// of its own.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
const MIB: u64 = 1024 * 1024;
/// Between the two samples from which shares of time are counted.
const INTERVAL: Duration = Duration::from_secs(3);

/// A control group of the test's own for containers. On drop it goes, also when the test has
/// failed: it would stay on the machine, since neither podman nor a container removes what it did
/// not make itself.
struct ParentGroup {
    name: String,
}

impl ParentGroup {
    /// Make it before the podman store: only when all containers are gone it can go.
    fn new() -> Self {
        Self {
            name: format!("ankaios-test-{}", std::process::id()),
        }
    }

    /// Its folders, one in each hierarchy that has it.
    fn folders(&self) -> Vec<PathBuf> {
        let root = PathBuf::from(CONTROL_GROUPS);
        let hierarchies = fs::read_dir(&root)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let folders = hierarchies
            .chain([root.clone()])
            .map(|hierarchy| hierarchy.join(&self.name));
        folders.filter(|folder| folder.is_dir()).collect()
    }
}

impl Drop for ParentGroup {
    fn drop(&mut self) {
        // The kernel refuses as long as a process of it has not quite ended.
        let removed = poll(LIMIT, || {
            self.folders()
                .iter()
                .for_each(|folder| remove_group(folder));
            self.folders().is_empty().then_some(())
        });
        assert!(
            removed.is_some() || std::thread::panicking(),
            "left behind: {:?}",
            self.folders()
        );
    }
}

/// Removes a control group and those below it, as far as the kernel allows it now.
fn remove_group(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder); // Its files are the kernel's and go with it.
}

/// The file `name` in the control group of a container; that of version 1 where the kernel has it,
/// else of version 2.
fn file(pid: u32, id: &str, controller: &str, v1: &str, v2: &str) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the container runs");
    let group = |controller: &str| {
        let line = groups.lines().find(|line| {
            line.split(':')
                .nth(1)
                .is_some_and(|names| names.split(',').any(|name| name == controller))
        });
        let path = line?.splitn(3, ':').nth(2)?;
        let end = path.rfind(id)?
            + path[path.rfind(id)?..]
                .find('/')
                .unwrap_or(path.len() - path.rfind(id)?);
        Some(path[..end].trim_start_matches('/').to_owned())
    };
    match group(controller) {
        Some(path) => PathBuf::from(CONTROL_GROUPS)
            .join(controller)
            .join(path)
            .join(v1),
        None => PathBuf::from(CONTROL_GROUPS)
            .join(group("").expect("version 2 has it"))
            .join(v2),
    }
}

fn number(path: &PathBuf) -> u64 {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().parse().expect("a number")
}

/// CPU time in microseconds.
fn cpu(pid: u32, id: &str) -> u64 {
    let path = file(pid, id, "cpuacct", "cpuacct.usage", "cpu.stat");
    let text = fs::read_to_string(&path).expect("it can be read");
    match text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
    {
        Some(usec) => usec.parse().expect("a number"),
        None => text.trim().parse::<u64>().expect("nanoseconds") / 1000,
    }
}

/// What `ank top` shows. On a busy machine an agent may take longer than the read waits.
fn top(cluster: &Cluster, arguments: &[&str]) -> Value {
    let shown = cluster.wait_for("the sample of each agent", || {
        let output = cluster.ank(&[&["top", "-o", "json"], arguments].concat());
        assert_eq!(output.code, 0, "{}", output.stderr);
        output.stderr.is_empty().then_some(output.stdout)
    });
    serde_json::from_str(&shown).expect("it is JSON")
}

fn of_workload<'d>(document: &'d Value, name: &str) -> &'d Value {
    let workloads = document["workloads"].as_array().expect("a list");
    workloads
        .iter()
        .find(|one| one["workload"] == name)
        .unwrap_or_else(|| panic!("no {name} in {document}"))
}

fn value(of: &Value, key: &str) -> u64 {
    of[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key} in {of}"))
}

/// A workload in a shell with these options.
fn with_options(name: &str, options: &str, command: &str) -> String {
    format!(
        "  {name}:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [\"--stop-timeout\", \"1\", {options}]\n      commandArgs: [sh, -c, {command:?}]\n"
    )
}

// [stest->swdd~usage-on-request~1]
// [stest->swdd~metrics-file~1]
#[test]
fn values_are_those_of_the_kernel_and_known_loads_are_seen() {
    let parent = ParentGroup::new();
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    let metrics = cluster.folder().join("agent.prom");
    cluster.agent_config = format!("metrics = '{}'\nmetrics_interval = 1\n", metrics.display());
    cluster.start_all(&["agent_A"]);
    let held = format!("dd if=/dev/zero of=/dev/shm/held bs=1M count=100; {PATIENT}");
    let workloads = [
        with_options("busy", "\"--cpus=0.25\"", "while true; do true; done"),
        with_options("held", "\"--shm-size=200m\"", &held),
        with_options(
            "below",
            &format!("\"--cgroup-parent=/{}\"", parent.name),
            PATIENT,
        ),
        with_options("done", "\"--tty\"", "exit 0"),
    ];
    cluster.apply(&format!(
        "apiVersion: v1\nworkloads:\n{}",
        workloads.concat()
    ));
    cluster.wait_until_run(&["busy", "held", "below"]);
    cluster.wait_for_state("done", "Succeeded(Ok)");
    assert!(
        !parent.folders().is_empty(),
        "the group of 'below' is where it is looked for"
    );
    wait_until("the memory to be taken", || {
        let memory = value_of_held(&cluster);
        memory >= 100 * MIB
    });

    let busy = podman.only_container("busy");
    let before = cpu(busy.0, &busy.1);
    let document = top(
        &cluster,
        &["--interval", &format!("{}s", INTERVAL.as_secs())],
    );
    let after = cpu(busy.0, &busy.1);
    let usage = of_workload(&document, "busy");
    assert!(
        (before..=after).contains(&value(usage, "cpuUsec")),
        "{before} {after} {usage}"
    );
    let share = usage["cpuPercent"].as_f64().expect("a number");
    // The first sample may have come late, by as much as the server waits for it.
    let most = 100.0 * (after - before) as f64 / (INTERVAL - USAGE_WAIT_MAX).as_micros() as f64;
    assert!(
        share > 0.0 && share <= most,
        "{most} percent at most: {usage}"
    );
    assert_eq!(
        (value(usage, "restarts"), &usage["subState"]),
        (0, &Value::from("Ok"))
    );

    let held = podman.only_container("held");
    let usage = of_workload(&document, "held");
    let known = 100 * MIB;
    let shown = value(usage, "memoryBytes") - value(usage, "inactiveFileBytes");
    assert!((known..known + known / 20).contains(&shown), "{usage}");
    let in_file = number(&file(
        held.0,
        &held.1,
        "memory",
        "memory.usage_in_bytes",
        "memory.current",
    ));
    assert!(
        value(usage, "memoryBytes").abs_diff(in_file) < in_file / 20,
        "{in_file} {usage}"
    );
    assert!(
        value(usage, "memoryPeakBytes") >= value(usage, "memoryBytes") - MIB,
        "{usage}"
    );

    let below = podman.only_container("below");
    let usage = of_workload(&document, "below");
    let in_file = number(&file(
        below.0,
        &below.1,
        "pids",
        "pids.current",
        "pids.current",
    ));
    assert!(
        value(usage, "pids").abs_diff(in_file) <= 1,
        "{in_file} {usage}"
    ); // Its shell starts a `sleep` ever again.
    assert!(
        value(usage, "uptimeMs") > 0 && usage.get("missing").is_none(),
        "{usage}"
    );
    let done = of_workload(&document, "done");
    assert!(
        done.get("memoryBytes").is_none() && value(done, "restarts") == 0,
        "{done}"
    );
    let node = &document["agents"]["agent_A"];
    assert!(
        value(node, "memoryTotalBytes") > value(node, "memoryAvailableBytes"),
        "{node}"
    );

    let memory =
        r#"ankaios_workload_memory_bytes{agent="agent_A",workload="held",runtime="podman"} "#;
    wait_until("the metrics to show the memory", || {
        let text = fs::read_to_string(&metrics).unwrap_or_default();
        let bytes = text
            .lines()
            .find_map(|line| line.strip_prefix(memory)?.parse::<u64>().ok());
        bytes.is_some_and(|bytes| (known..known + known / 20).contains(&bytes))
    });
}

fn value_of_held(cluster: &Cluster) -> u64 {
    let document = top(cluster, &["--interval", "500ms", "held"]);
    of_workload(&document, "held")["memoryBytes"]
        .as_u64()
        .unwrap_or_default()
}

#[test]
fn restarts_are_counted_and_begin_anew_with_an_update() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "restart_backoff = false");
    let again = |text: &str| {
        shell("again", text).replace("    runtime:", "    restartPolicy: ALWAYS\n    runtime:")
    };
    cluster.apply(&again("exit 1"));
    wait_until("two restarts", || {
        let document = top(&cluster, &["--interval", "500ms"]);
        of_workload(&document, "again")["restarts"].as_u64() >= Some(2)
    });
    cluster.apply_until_run(&again(PATIENT), &["again"]);
    wait_until("the count to begin anew", || {
        let document = top(&cluster, &["--interval", "500ms"]);
        let workloads = document["workloads"].as_array().expect("a list");
        workloads.len() == 1 && workloads[0]["restarts"] == 0
    });
}

#[test]
fn containers_of_a_pod_are_added_up() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let container = |name: &str| {
        let held = format!("dd if=/dev/zero of=/dev/shm/{name} bs=1M count=20; {PATIENT}");
        format!(
            "          - {{name: {name}, image: 'alpine:latest', command: [sh, -c, {held:?}]}}\n"
        )
    };
    let text = format!(
        "apiVersion: v1\nworkloads:\n  pod:\n    agent: agent_A\n    runtime: podman-kube\n    runtimeConfig: |\n      \
         manifest: |\n        apiVersion: v1\n        kind: Pod\n        metadata: {{name: pod}}\n        spec:\n          \
         hostNetwork: true\n          restartPolicy: Never\n          terminationGracePeriodSeconds: 1\n          \
         containers:\n{}{}",
        container("one"),
        container("two")
    );
    cluster.apply_until_run(&text, &["pod"]);
    wait_until("both containers to have taken their memory", || {
        let document = top(&cluster, &["--interval", "500ms"]);
        let usage = of_workload(&document, "pod");
        usage["memoryBytes"]
            .as_u64()
            .is_some_and(|bytes| (40 * MIB..50 * MIB).contains(&bytes))
            && usage.get("memoryPeakBytes").is_none()
            && usage["pids"].as_u64() >= Some(2)
    });
}
