//! The three programs over a Unix domain socket: no certificates, no `--insecure`, the rights of
//! users, and the file afterwards.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::cluster::ank_config;
use crate::support::process::{clean_command, copy_program, exit_code};
use crate::support::{Cluster, LIMIT, Process, leave_out, wait_until, workload};
use rustix::process::Signal;

/// A user that is neither root nor the one that runs the tests.
const STRANGER: u32 = 65534;

fn socket_of(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("ank.sock")
}

fn prepare() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::prepare();
    let socket = socket_of(&cluster);
    cluster.set_socket(&socket);
    (cluster, socket)
}

/// Runs `ank-server --address <address>` with further arguments to its end, which must be a
/// failure.
fn refused_server(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = clean_command(env!("CARGO_BIN_EXE_ank-server"), cluster.folder());
    command
        .args(["--server-config"])
        .arg(cluster.write("refused.conf", "version = 'v1'\n"))
        .args(arguments);
    let mut process = Process::start(&mut command, &cluster.folder().join("logs"), "refused");
    let status = process.wait(LIMIT).expect("the server does not start");
    assert_ne!(exit_code(status), 0);
    process.stderr()
}

#[test]
fn cluster_over_a_socket_needs_no_certificates() {
    let (mut cluster, socket) = prepare();
    cluster.start_all(&["agent_A"]);
    assert_eq!(
        fs::metadata(&socket)
            .expect("the socket exists")
            .permissions()
            .mode()
            & 0o7777,
        0o660
    );
    let log = cluster.server().stderr();
    assert!(
        log.contains(&format!("listens on 'unix://{}'", socket.display())),
        "{log}"
    );
    assert!(!log.contains("INSECURE"), "{log}");
    cluster.run(&[workload("web", "run")]);
    assert_eq!(cluster.ank(&["logs", "web"]).code, 0);
    // The agent connects again to the next server, whose predecessor could not remove its file.
    cluster.kill_server();
    assert!(
        fs::symlink_metadata(&socket)
            .expect("it is left")
            .file_type()
            .is_socket()
    );
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A"]);
    let server = cluster.server();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(LIMIT).map(exit_code), Some(0));
    assert!(
        fs::symlink_metadata(&socket).is_err(),
        "an orderly end removes it"
    );
    let output = cluster.ank(&["get", "workloads"]);
    let text = format!(
        "error: Could not connect to Ankaios server on 'unix://{}': No such file",
        socket.display()
    );
    assert!(
        output.code == 1 && output.stderr.starts_with(&text),
        "{}",
        output.stderr
    );
}

#[test]
fn a_socket_and_a_port_serve_the_same_cluster() {
    let (mut cluster, socket) = prepare();
    cluster.start_server(&["--insecure", "--address", &cluster.address()]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    let listens = format!(
        "listens on 'unix://{}' and '{}'",
        socket.display(),
        cluster.address()
    );
    assert!(
        cluster.server().stderr().contains(&listens),
        "{}",
        cluster.server().stderr()
    );
    let url = format!("http://{}", cluster.address());
    let output = cluster.bare_ank(&["--insecure", "--server-url", &url, "get", "agents"]);
    assert!(
        output.code == 0 && output.stdout.contains("agent_A"),
        "{}{}",
        output.stdout,
        output.stderr
    );
}

#[test]
fn unusable_socket_paths_are_errors_that_change_nothing() {
    let (mut cluster, socket) = prepare();
    cluster.start_server(&[]);
    let address = format!("unix://{}", socket.display());
    let error = refused_server(&cluster, &["--address", &address]);
    assert!(
        error.contains(&format!("cannot listen on '{address}'")) && error.contains("in use"),
        "{error}"
    );
    assert_eq!(cluster.ank(&["get", "workloads"]).code, 0);

    let file = cluster.write("notes", "kept");
    let error = refused_server(
        &cluster,
        &["--address", &format!("unix://{}", file.display())],
    );
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "kept");

    for (address, text) in [
        ("unix://ank.sock", "absolute path of at most 107 bytes"),
        ("unix:///nowhere/at/all.sock", "No such file or directory"),
    ] {
        let error = refused_server(&cluster, &["--address", address]);
        assert!(error.contains(text), "{address}: {error}");
    }
    let output = cluster.bare_ank(&["--server-url", "unix://ank.sock", "get", "agents"]);
    assert_eq!(output.code, 1);
    assert!(
        output
            .stderr
            .contains("Wrong server address format: 'unix://ank.sock'. A socket is"),
        "{}",
        output.stderr
    );
}

/// Lets every user reach the files in the cluster's folder.
fn open_to_all(cluster: &Cluster) {
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own files")
    };
    set(cluster.folder(), 0o755);
    set(&cluster.run_folder(), 0o1777);
}

/// The `program` of another user: a copy, because the folder that it was built in need not be open
/// to others.
fn of_stranger(cluster: &Cluster, program: &str, name: &str) -> Command {
    let copy = cluster.folder().join(name);
    if !copy.exists() {
        copy_program(Path::new(program), &copy);
    }
    let mut command = clean_command(copy.to_str().expect("a plain path"), cluster.folder());
    command
        .current_dir(cluster.folder())
        .uid(STRANGER)
        .gid(STRANGER);
    command
}

#[test]
fn other_users_may_command_by_file_mode_but_not_be_agents() {
    if !rustix::process::geteuid().is_root() {
        return leave_out(
            "a socket's other users",
            "only root can become another user",
        );
    }
    let (mut cluster, socket) = prepare();
    open_to_all(&cluster);
    cluster.start_server(&[]);
    let url = format!("unix://{}", socket.display());
    let ank_conf = cluster.write("ank.conf", &ank_config());
    let ask = || {
        let mut command = of_stranger(&cluster, env!("CARGO_BIN_EXE_ank"), "ank");
        command
            .args(["--server-url", &url, "--ank-config"])
            .arg(&ank_conf)
            .args(["get", "agents"]);
        cluster.finish(command, "")
    };
    let output = ask();
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains(": Permission denied")
            && output.stderr.contains("group of the socket")
    );

    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("own file");
    ask().success();

    let config = cluster.write("stranger.conf", "version = 'v1'\n");
    let mut command = of_stranger(&cluster, env!("CARGO_BIN_EXE_ank-agent"), "ank-agent");
    command
        .args(["--name", "stranger", "--server-url", &url, "--run-folder"])
        .arg(cluster.run_folder());
    command.arg("--agent-config").arg(config);
    let agent = Process::start(&mut command, &cluster.folder().join("logs"), "stranger");
    let text = "only root and the user of the server (uid 0) may run an agent, not uid 65534. (PERMISSION_DENIED)";
    wait_until("the agent is refused", || agent.stderr().contains(text));
    assert!(!cluster.ank(&["get", "agents"]).stdout.contains("stranger"));
    // The server's own kind is not delayed by it.
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
}

/// Starts `program` with a config file of `lines` and with `variables`, which lead it to a socket.
fn started_by_environment(
    cluster: &Cluster,
    program: &str,
    lines: &str,
    variables: &[(&str, &str)],
) -> Command {
    let config = cluster.write(
        &format!("{}.conf", variables[0].0),
        &format!("version = 'v1'\n{lines}\n"),
    );
    let mut command = clean_command(program, cluster.folder());
    // No engine: nothing is run here.
    command
        .arg("-x")
        .arg(config)
        .envs(variables.iter().copied())
        .env("PATH", cluster.folder());
    command
}

#[test]
fn environment_ranks_between_config_files_and_options() {
    let (cluster, socket) = prepare();
    let logs = cluster.folder().join("logs");
    let (url, other) = (
        format!("unix://{}", socket.display()),
        format!("unix://{}.other", socket.display()),
    );

    let (ank_server, variables) = (
        env!("CARGO_BIN_EXE_ank-server"),
        [("ANKSERVER_ADDRESS", url.as_str())],
    );
    let elsewhere = format!("address = '{other}'");
    let mut command = started_by_environment(&cluster, ank_server, &elsewhere, &variables);
    let server = Process::start(&mut command, &logs, "server");
    wait_until("the server listens", || {
        server.stderr().contains(&format!("listens on '{url}',"))
    });
    let mut command =
        started_by_environment(&cluster, ank_server, "", &[("ANKSERVER_ADDRESS", &other)]);
    let mut second = Process::start(command.args(["--address", &url]), &logs, "second");
    assert_eq!(
        second.wait(LIMIT).map(exit_code),
        Some(1),
        "{}",
        second.stderr()
    );
    assert!(
        second
            .stderr()
            .contains(&format!("cannot listen on '{url}': address in use")),
        "{}",
        second.stderr()
    );

    let variables = [
        ("ANKAGENT_NAME", "of_environment"),
        ("ANKAGENT_SERVER_URL", url.as_str()),
    ];
    let agent = |name: &str, arguments: &[&str]| {
        let file = format!("name = 'of_file'\nserver_url = '{other}'");
        let mut command =
            started_by_environment(&cluster, env!("CARGO_BIN_EXE_ank-agent"), &file, &variables);
        Process::start(
            command
                .arg("--run-folder")
                .arg(cluster.run_folder())
                .args(arguments),
            &logs,
            name,
        )
    };
    let _agents = [
        agent("environment", &[]),
        agent("option", &["--name", "of_option"]),
    ];
    let mut astray = agent("astray", &["--server-url", "unix://relative"]);
    assert_eq!(
        astray.wait(LIMIT).map(exit_code),
        Some(1),
        "{}",
        astray.stderr()
    );
    assert!(
        astray
            .stderr()
            .contains("address format: 'unix://relative'. A socket is"),
        "{}",
        astray.stderr()
    );

    let response_timeout = LIMIT.as_millis();
    let tables = format!(
        "[default]\nresponse_timeout = {response_timeout}\nserver_url = '{other}'\n[contexts.car]\nresponse_timeout = {response_timeout}\nserver_url = '{url}'"
    );
    let ank = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command =
            started_by_environment(&cluster, env!("CARGO_BIN_EXE_ank"), &tables, variables);
        command.args(arguments).args(["get", "agents"]);
        cluster.finish(command, "")
    };
    let car = ("ANK_CONTEXT", "car");
    wait_until("both agents are connected", || {
        let table = ank(&[car], &[]).success();
        ["of_environment ", "of_option "]
            .iter()
            .all(|name| table.contains(name))
    });
    assert_eq!(
        ank(&[("ANK_CONTEXT", "nosuch")], &["--context", "car"]).code,
        0
    );
    let unreachable = format!("error: Could not connect to Ankaios server on '{other}': ");
    for (variables, arguments) in [
        (&[car][..], &["--server-url", other.as_str()][..]),
        // An empty name is the way back to the table `default`.
        (&[car], &["--context", ""]),
        (&[("ANK_CONTEXT", "")], &[]),
    ] {
        let output = ank(variables, arguments);
        assert!(
            output.code == 1 && output.stderr.starts_with(&unreachable),
            "{arguments:?}: {}",
            output.stderr
        );
    }
    // A context on the command line means its server.
    let output = ank(&[("ANK_SERVER_URL", &other)], &["--context", "car"]);
    let warning =
        format!("warn: the server is '{other}' of ANK_SERVER_URL, not '{url}' of context 'car'\n");
    assert!(
        output.code == 1 && output.stderr.starts_with(&(warning + &unreachable)),
        "{}",
        output.stderr
    );
}
