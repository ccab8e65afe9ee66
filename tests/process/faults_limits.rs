//! The machine has too little of something: room on the disk, descriptors, threads, a name server
//! that answers, a clock that goes steadily. Each test has its promise as its name.
//!
//! Some need the rights of root and say so where they have none. Thread: the test's. Owns: one
//! cluster with the fake engine per test.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::process::{cpu_ticks, exit_code, is_alive, open_files};
use crate::support::{
    Cluster, GRAIN, LIMIT, SmallDisk, leave_out, manifest, poll, wait_until, workload,
};
use rustix::process::Signal;
use serde_json::json;

fn all_run(cluster: &Cluster, count: usize) {
    cluster.wait_for_all(count, "Running(Ok)");
    wait_until("each has one container, which runs", || {
        let containers = cluster.engine.containers();
        containers.len() == count && containers.iter().all(|one| one["State"] == "running")
    });
}

fn count_in(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

/// A workload with a file of `bytes` bytes, which the agent writes into its run folder.
fn with_file(name: &str, bytes: usize) -> String {
    let text = "x".repeat(bytes);
    format!(
        "apiVersion: v1\nworkloads:\n  {name}:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: 'image: run'\n    \
         files: [{{mountPoint: /etc/file, data: '{text}'}}]\n"
    )
}

// ------------------------------------------------------------------------------ disks

#[test]
fn full_disk_loses_no_update_and_the_state_is_stored_later() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    let Some(disk) = SmallDisk::mount(&folder, 256) else {
        return;
    };
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    cluster.start_all(&["agent_A"]);
    let stored = || fs::read_to_string(folder.join("desired-state.json")).unwrap_or_default();
    cluster.apply(&manifest(&[workload("before", "run")]));
    wait_until("the first state is stored", || stored().contains("before"));
    disk.fill();
    let long = format!("commandArgs: [\"{}\"]", "x".repeat(10_000));
    let during = cluster.write(
        "during.yaml",
        &manifest(&[workload("during", "run").config(&long)]),
    );
    assert_eq!(
        cluster
            .ank(&["--no-wait", "apply", &during.display().to_string()])
            .code,
        0
    );
    cluster.wait_until_run(&["during"]);
    wait_until("it says what is wrong", || {
        cluster
            .server
            .as_ref()
            .is_some_and(|server| count_in(&server.stderr(), "Cannot store the state") > 0)
    });
    assert!(
        stored().contains("before"),
        "what was stored is still there"
    );
    disk.clear();
    wait_until("it is made up for", || stored().contains("during"));
    cluster.kill_server();
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A"]);
    all_run(&cluster, 2);
}

/// What `ank` prints with these arguments, and the lines of its standard error.
fn with_warnings(cluster: &Cluster, arguments: &[&str]) -> (String, Vec<String>) {
    let output = cluster.ank(arguments);
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.stderr);
    (
        output.stdout,
        output.stderr.lines().map(str::to_owned).collect(),
    )
}

// [stest->swdd~server-warns-of-unstored-state~1]
#[test]
fn state_that_cannot_be_stored_is_warned_of_until_it_is_stored() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    let Some(disk) = SmallDisk::mount(&folder, 256) else {
        return;
    };
    let metrics = cluster.folder().join("server.prom");
    cluster.server_config = format!(
        "state_dir = '{}'\nmetrics = '{}'\nmetrics_interval = 1",
        folder.display(),
        metrics.display()
    );
    disk.read_only(true);
    cluster.start_all(&["agent_A"]);
    // The start says so.
    let log = cluster
        .server
        .as_ref()
        .map(|server| server.stderr())
        .unwrap_or_default();
    assert_eq!(count_in(&log, "Cannot write into state_dir"), 1, "{log}");
    let lists = ["workloads", "agents", "updates", "configs", "state"];
    let applied = cluster.write("applied.yaml", &manifest(&[workload("applied", "run")]));
    let apply = ["apply", &applied.display().to_string()];
    for arguments in lists
        .map(|list| vec!["get", list])
        .into_iter()
        .chain([apply.to_vec()])
    {
        let (text, warnings) = with_warnings(&cluster, &arguments);
        let [warning] = &warnings[..] else {
            panic!("{arguments:?}: {warnings:?}")
        };
        assert!(
            warning.starts_with("warn: the state cannot be stored in '"),
            "{arguments:?}: {warning}"
        );
        assert!(
            warning.contains("since 2") && warning.contains("Read-only file system"),
            "{arguments:?}: {warning}"
        );
        assert!(!text.contains("cannot be stored"), "{text}");
    }
    wait_until("the metrics show it", || {
        has_line(&metrics, "ankaios_server_state_stored 0")
    });
    // Also an update whose response is the only one.
    let (_, warnings) = with_warnings(&cluster, &["--no-wait", "delete", "workload", "applied"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let json = with_warnings(&cluster, &["get", "agents", "-o", "json"]).0;
    assert!(
        serde_json::from_str::<serde_json::Value>(&json).is_ok(),
        "{json}"
    );
    disk.read_only(false);
    let again = cluster.write("again.yaml", &manifest(&[workload("again", "run")]));
    assert_eq!(
        cluster
            .ank(&["--no-wait", "apply", &again.display().to_string()])
            .code,
        0
    );
    wait_until("the state is stored, which ends the warnings", || {
        with_warnings(&cluster, &["get", "workloads"]).1.is_empty()
    });
    for list in lists {
        assert_eq!(with_warnings(&cluster, &["get", list]).1, [""; 0], "{list}");
    }
    wait_until("the metrics show that it is stored", || {
        has_line(&metrics, "ankaios_server_state_stored 1")
    });
}

/// Returns whether a file has this line.
fn has_line(path: &Path, line: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().any(|one| one == line)
}

/// The workload `before` runs on an agent whose run folder is a disk of its own; `None` where
/// nothing can be mounted.
fn with_run_folder_on_a_small_disk() -> Option<(Cluster, SmallDisk)> {
    let mut cluster = Cluster::prepare();
    let folder = cluster.run_folder();
    let disk = SmallDisk::mount(&folder, 512)?;
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[workload("before", "run")]));
    all_run(&cluster, 1);
    Some((cluster, disk))
}

#[test]
fn full_run_folder_delays_only_workloads_that_need_files() {
    let Some((cluster, disk)) = with_run_folder_on_a_small_disk() else {
        return;
    };
    disk.fill();
    cluster.apply(&with_file("needs_room", 50_000));
    let row = cluster.wait_for_row("needs_room", "it fails with the reason", |row| {
        row.info.contains("No space left")
    });
    assert_eq!(row.state, "Pending(Starting)", "{row:?}");
    assert_eq!(
        cluster.workload("before").expect("it is known").state,
        "Running(Ok)"
    );
    disk.clear();
    all_run(&cluster, 2);
}

#[test]
fn full_run_folder_delays_no_workload_that_needs_no_file() {
    let Some((cluster, disk)) = with_run_folder_on_a_small_disk() else {
        return;
    };
    disk.fill();
    cluster.apply(&manifest(&[workload("later", "run")]));
    all_run(&cluster, 2);
    disk.clear();
    cluster.remove("later");
}

/// As runc, whose file beside the pid file stays when it cannot be written, and is refused by each
/// later start.
#[test]
fn failed_start_leaves_nothing_in_the_way_of_the_next_one() {
    let cluster = Cluster::start(&["agent_A"]);
    let no_space =
        "level=error msg=\"write .pid: no space left on device\"\nError: OCI runtime error";
    cluster
        .engine
        .script(&json!([{ "command": "run", "exit": 125, "stderr": no_space }]));
    cluster.apply(&manifest(&[workload("web", "run")]));
    let row = cluster.wait_for_row("web", "is retried", |row| row.info.starts_with("Retry "));
    assert!(
        row.info
            .ends_with(": no space left on device: Error: OCI runtime error"),
        "{row:?}"
    );
    let call = cluster.engine.calls_of("run", "web.").remove(0);
    let pid_file = call
        .argv
        .iter()
        .find_map(|word| word.strip_prefix("--pidfile="))
        .expect("it has one");
    fs::write(Path::new(pid_file).with_file_name(".pid"), "").expect("own folder is writable");
    // A call may have been on its way, behind the clean-up of its own start.
    let seen = cluster.engine.calls_of("run", "web.").len();
    wait_until("a further start has failed", || {
        cluster.engine.calls_of("run", "web.").len() >= seen + 2
    });
    cluster.engine.script(&json!([]));
    cluster.wait_until_run(&["web"]);
}

#[test]
fn read_only_run_folder_stops_no_workload_and_is_named() {
    let Some((mut cluster, disk)) = with_run_folder_on_a_small_disk() else {
        return;
    };
    let before = cluster.engine.only_container("before");
    disk.read_only(true);
    let is_named = |cluster: &Cluster| {
        cluster.apply(&with_file("needs_file", 10));
        cluster.wait_for_row("needs_file", "it fails with the reason", |row| {
            row.info.contains("Read-only file system")
        });
        cluster.remove("needs_file");
    };
    is_named(&cluster);
    // The next agent takes the running container over, and says the same.
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("before", "AgentDisconnected");
    cluster.start_agent("agent_A");
    all_run(&cluster, 1);
    is_named(&cluster);
    disk.read_only(false);
    cluster.apply(&with_file("needs_file", 10));
    all_run(&cluster, 2);
    assert_eq!(cluster.engine.only_container("before"), before);
}

// ------------------------------------------------------------------- descriptors, threads

#[test]
fn server_without_descriptors_serves_present_clients_idly() {
    let mut cluster = Cluster::prepare();
    cluster.set_wrapper("ank-server", &["/usr/bin/prlimit", "--nofile=96:96"]);
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[workload("ends", "run")]));
    all_run(&cluster, 1);
    let server = cluster.server().pid();
    let open = || open_files(server);
    // In small steps: the backlog of the listener would hide how many were taken.
    let mut greedy = Vec::new();
    let full = poll(LIMIT, || {
        greedy.extend((0..8).filter_map(|_| TcpStream::connect(cluster.address()).ok()));
        let before = open();
        (before >= 90 || greedy.len() > 400).then_some(before)
    });
    assert!(
        full.is_some_and(|open| open >= 90),
        "{full:?} descriptors are in use"
    );
    let ticks = cpu_ticks(server);
    // The agent has one of its connections: its messages arrive. The log shows that, since no other
    // client can connect.
    cluster.engine.finish("ends", 3);
    let long_enough = (0..40).map(|_| std::thread::sleep(GRAIN)).count();
    assert!(
        cpu_ticks(server) - ticks < 50,
        "{long_enough} looks: it spins"
    );
    assert!(is_alive(server));
    drop(greedy);
    cluster.wait_for_row("ends", "what happened meanwhile", |row| {
        row.state == "Failed(ExecFailed)"
    });
    cluster.run(&[workload("new", "run")]);
}

#[test]
fn agent_with_few_descriptors_still_calls_its_engine() {
    let mut cluster = Cluster::prepare();
    cluster.start_server(&[]);
    cluster.set_wrapper("ank-agent", &["/usr/bin/prlimit", "--nofile=48:48"]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    let all: Vec<_> = (0..30)
        .map(|number| workload(&format!("w{number}"), "run"))
        .collect();
    cluster.apply(&manifest(&all));
    all_run(&cluster, 30);
    cluster.engine.finish("w7", 3);
    cluster.wait_for_row("w7", "its end", |row| row.state == "Failed(ExecFailed)");
    assert!(cluster.agent("agent_A").is_running());
}

/// A group of processes with a limit of threads in all. Needs root and cgroups that can be
/// written.
struct Threads {
    path: PathBuf,
}

impl Threads {
    #[allow(clippy::print_stderr)] // Whoever reads the output is told.
    fn group(name: &str) -> Option<Self> {
        for base in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let path = Path::new(base).join(format!("ankaios-test-{name}-{}", std::process::id()));
            if fs::create_dir(&path).is_ok() {
                if path.join("pids.max").exists() {
                    return Some(Self { path });
                }
                let _ = fs::remove_dir(&path);
            }
        }
        leave_out(
            "too few threads",
            "no group of processes with a limit of threads can be had here",
        );
        None
    }

    fn allow(&self, count: &str) {
        fs::write(self.path.join("pids.max"), count).expect("own group");
    }

    fn used(&self) -> usize {
        let text = fs::read_to_string(self.path.join("pids.current")).expect("own group");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Its remaining processes go back to their old group.
        let outside = self.path.parent().expect("it has one").join("cgroup.procs");
        for pid in fs::read_to_string(self.path.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = fs::write(&outside, pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn workloads_without_a_thread_wait_for_one_and_are_reported_so() {
    let Some(group) = Threads::group("threads") else {
        return;
    };
    let mut cluster = Cluster::start(&[]);
    let procs = group.path.join("cgroup.procs");
    let script = format!("echo $$ > '{}' && exec \"$@\"", procs.display());
    cluster.set_wrapper("ank-agent", &["/bin/sh", "-c", &script, "sh"]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    cluster.apply(&manifest(&[workload("first", "run")]));
    all_run(&cluster, 1);
    group.allow(&(group.used() + 6).to_string());
    let all: Vec<_> = (0..20)
        .map(|number| workload(&format!("w{number}"), "run"))
        .collect();
    cluster.apply(&manifest(&all));
    cluster.wait_for("some wait for a thread", || {
        cluster
            .workloads()
            .iter()
            .any(|row| row.info.contains("No thread can be started"))
            .then_some(())
    });
    assert_eq!(
        cluster.workload("first").expect("it is known").state,
        "Running(Ok)"
    );
    group.allow("max");
    all_run(&cluster, 21);
}

// ----------------------------------------------------------------- names and clocks

/// A name server that hears questions and answers them only when it may.
struct NameServer {
    asked: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl NameServer {
    fn start(address: &str) -> Option<Self> {
        let socket = UdpSocket::bind((address, 53)).ok()?;
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("own socket");
        let server = Self {
            asked: Arc::default(),
            answers: Arc::default(),
            ended: Arc::default(),
        };
        let (asked, answers, ended) = (
            server.asked.clone(),
            server.answers.clone(),
            server.ended.clone(),
        );
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while !ended.load(Ordering::SeqCst) {
                let Ok((length, from)) = socket.recv_from(&mut question) else {
                    continue;
                };
                asked.fetch_add(1, Ordering::SeqCst);
                if answers.load(Ordering::SeqCst) {
                    let _ = socket.send_to(&loopback_answer(&question[..length]), from);
                }
            }
        });
        Some(server)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

/// 127.0.0.1 for a question about an IPv4 address, nothing for others.
fn loopback_answer(question: &[u8]) -> Vec<u8> {
    let end = question
        .iter()
        .skip(12)
        .position(|byte| *byte == 0)
        .map_or(question.len(), |at| at + 12 + 5);
    let question = &question[..end.min(question.len())];
    let is_ipv4 = question.ends_with(&[0, 1, 0, 1]);
    let mut answer = question.to_vec();
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0]);
    if is_ipv4 {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    answer
}

#[test]
fn agent_with_a_silent_name_server_connects_later() {
    let address = format!("127.{}.{}.9", fastrand::u8(10..250), fastrand::u8(..));
    let mut cluster = Cluster::start(&[]);
    let resolver = cluster.write(
        "resolv.conf",
        &format!("nameserver {address}\noptions timeout:2 attempts:1\n"),
    );
    let script = format!(
        "/bin/mount --bind '{}' /etc/resolv.conf && exec \"$@\"",
        resolver.display()
    );
    let allowed = Command::new("unshare")
        .args(["--mount", "/bin/sh", "-c", &script, "sh", "true"])
        .output();
    let (Some(names), true) = (
        NameServer::start(&address),
        allowed.is_ok_and(|output| output.status.success()),
    ) else {
        return leave_out(
            "a silent name server",
            "a name server of its own needs the rights of root",
        );
    };
    let port = cluster
        .address()
        .rsplit(':')
        .next()
        .expect("an address has a port")
        .to_owned();
    cluster.set_wrapper(
        "ank-agent",
        &[
            "/usr/bin/unshare",
            "--mount",
            "/bin/sh",
            "-c",
            &script,
            "sh",
        ],
    );
    cluster.agent_url = Some(format!("http://slow.example.test:{port}"));
    // The signal to end comes while it waits for the name.
    cluster.start_agent("agent_A");
    wait_until("the agent asks for the name", || {
        names.asked.load(Ordering::SeqCst) > 0
    });
    cluster.agent("agent_A").signal(Signal::TERM);
    let status = cluster.agent("agent_A").wait(LIMIT).expect("it ends");
    assert_eq!(
        exit_code(status),
        0,
        "{}",
        cluster.agent("agent_A").stderr()
    );
    // Answered at last.
    cluster.start_agent("agent_A");
    let asked = names.asked.load(Ordering::SeqCst);
    wait_until("the agent asks for the name", || {
        names.asked.load(Ordering::SeqCst) > asked
    });
    names.answers.store(true, Ordering::SeqCst);
    cluster.wait_for_agents(&["agent_A"]);
    cluster.apply(&manifest(&[workload("w", "run")]));
    all_run(&cluster, 1);
}

/// Libraries of this name change what programs believe about the time; only the wall clock here.
fn faketime() -> Option<PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/faketime",
        "/usr/lib/aarch64-linux-gnu/faketime",
        "/usr/lib/faketime",
    ];
    places
        .into_iter()
        .map(|place| Path::new(place).join("libfaketimeMT.so.1"))
        .find(|path| path.exists())
}

#[test]
fn a_wall_clock_that_jumps_changes_nothing_that_runs_or_waits() {
    let Some(library) = faketime() else {
        return leave_out("a clock that jumps", "libfaketime is not installed");
    };
    let mut cluster = Cluster::prepare();
    let clock = cluster.write("clock", "+0\n");
    let variables = [
        format!("LD_PRELOAD={}", library.display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        "DONT_FAKE_MONOTONIC=1".to_owned(),
        "FAKETIME_NO_CACHE=1".to_owned(),
    ];
    let words: Vec<&str> = ["/usr/bin/env"]
        .into_iter()
        .chain(variables.iter().map(String::as_str))
        .collect();
    cluster.set_wrapper("ank-agent", &words);
    cluster.set_wrapper("ank-server", &words);
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("stays", "run"),
        workload("back", "run").restart("ALWAYS"),
    ]));
    all_run(&cluster, 2);
    let stays = cluster.engine.only_container("stays");
    for offset in ["+10y\n", "-20y\n", "+1h\n"] {
        let runs = || cluster.engine.calls_of("run", "back.").len();
        let before = runs();
        fs::write(&clock, offset).expect("own file");
        cluster.engine.finish("back", 1);
        wait_until("it is restarted all the same", || runs() > before);
        all_run(&cluster, 2);
        cluster.apply(&manifest(&[workload("later", "exit0")]));
        cluster.wait_for_state("later", "Succeeded(Ok)");
        cluster.remove("later");
    }
    assert_eq!(cluster.engine.only_container("stays"), stays);
    assert!(cluster.server().is_running() && cluster.agent("agent_A").is_running());
}
