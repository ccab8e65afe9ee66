//! One file that is all three programs, by the name of the link that is called. Built and run with
//! `--features multicall`.
//!
//! Thread: the test's. Owns: one cluster with the fake engine.

use std::os::unix::fs::symlink;

use crate::support::process::{clean_command, thread_names};
use crate::support::{Cluster, wait_until, workload};

const FILE: &str = env!("CARGO_BIN_EXE_ankaios");

const NAMES: [&str; 3] = ["ank-server", "ank-agent", "ank"];

#[test]
fn links_are_the_three_programs() {
    let mut cluster = Cluster::prepare();
    let links = cluster.folder().join("links");
    std::fs::create_dir(&links).expect("own folder is writable");
    for name in NAMES {
        symlink(FILE, links.join(name)).expect("own folder is writable");
        cluster.set_program(name, &[&links.join(name)]);
    }
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    // Supervisors and scripts find a program by this name.
    assert_eq!(thread_names(cluster.server().pid())[0], "ank-server");
    assert_eq!(thread_names(cluster.agent("agent_A").pid())[0], "ank-agent");
    cluster.delete("w1");
    wait_until("w1 is deleted", || {
        cluster.engine.containers_of("w1").is_empty()
    });
}

#[test]
fn unknown_name_is_refused_with_the_names_to_use() {
    let cluster = Cluster::prepare();
    let output = cluster.finish(clean_command(FILE, cluster.folder()), "");
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("'ank-server', 'ank-agent', 'ank'"),
        "{}",
        output.stderr
    );
}
