//! A thread that panics ends its program, so that a supervisor can start it again; nothing goes on
//! half dead. Release builds abort by themselves, builds for tests by a hook: both are the same in
//! what remains.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::process::{clean_command, exit_code, is_alive};
use crate::support::{Cluster, LIMIT, Process, workload};
use rustix::process::Signal;

/// As a shell shows it.
const ABORTED: i32 = 128 + Signal::ABORT.as_raw();

#[test]
fn panic_ends_the_agent_and_the_next_adopts_its_containers() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("stays", "run")]);
    let container = cluster.engine.only_container("stays");
    for thread in [
        "scheduler",
        "uplink",
        "rx:server",
        "control",
        "watch",
        "list:podman",
        "wl:stays",
    ] {
        cluster.kill_agent("agent_A");
        cluster.agent_env = vec![("ANKAIOS_TEST_PANIC".to_owned(), thread.to_owned())];
        cluster.start_agent("agent_A");
        let status = cluster.agent("agent_A").wait(LIMIT);
        let said = cluster.agent("agent_A").stderr();
        let status =
            status.unwrap_or_else(|| panic!("the agent goes on without '{thread}':\n{said}"));
        assert_eq!(exit_code(status), ABORTED, "'{thread}'");
        assert!(
            said.contains(&format!("'{thread}'")),
            "the message names the thread:\n{said}"
        );
        assert!(is_alive(container.0), "'{thread}': the container goes on");
    }
    cluster.agent_env = Vec::new();
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    cluster.wait_for_state("stays", "Running(Ok)");
    assert_eq!(cluster.engine.only_container("stays"), container);
}

#[test]
fn a_thread_of_the_server_that_panics_ends_it() {
    let cluster = Cluster::prepare();
    let state = cluster.folder().join("state");
    let config = cluster.write(
        "panics.conf",
        &format!("version = \"v1\"\nstate_dir = '{}'\n", state.display()),
    );
    for thread in ["listen", "server", "tx", "store"] {
        let mut command = clean_command(env!("CARGO_BIN_EXE_ank-server"), cluster.folder());
        command
            .args(["--insecure", "--address", "127.0.0.1:0", "--server-config"])
            .arg(&config);
        command.env("ANKAIOS_TEST_PANIC", thread);
        let mut server = Process::start(&mut command, cluster.folder(), thread);
        let status = server.wait(LIMIT);
        let said = server.stderr();
        let status =
            status.unwrap_or_else(|| panic!("the server goes on without '{thread}':\n{said}"));
        assert_eq!(exit_code(status), ABORTED, "'{thread}':\n{said}");
        assert!(
            said.contains(&format!("'{thread}'")),
            "the message names the thread:\n{said}"
        );
    }
}
