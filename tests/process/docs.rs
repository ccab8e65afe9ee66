//! Examples of the pages in `docs/`, run as they stand.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::path::Path;

use crate::support::cluster::free_port;
use crate::support::control_client::folder;
use crate::support::process::{clean_command, exit_code};
use crate::support::{Cluster, ControlClient, LIMIT, Process};
use ankaios_lite::model::messages::ResponseContent;
use ankaios_lite::model::node::Node;

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|block| Some(block.split_once("\n```")?.0.to_owned() + "\n")).collect()
}

#[test]
fn the_first_manifest_never_started_and_its_deny_rule_denied_nothing() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.engine.script(&serde_json::json!([{ "command": "run", "behave": "run" }]));
    cluster.apply(&blocks("manifests.md", "yaml")[0]);
    cluster.wait_until_run(&["storage", "reader"]);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "reader"));
    let mut delete = |id: &str, mask: &str| client.update(id, Node::empty(), &[mask]);
    let accepted = delete("1", "desiredState.workloads.other");
    assert!(matches!(accepted, ResponseContent::UpdateStateSuccess { .. }), "{accepted:?}");
    let denied = delete("2", "desiredState.workloads.storage");
    assert!(matches!(&denied, ResponseContent::Error(text) if text.starts_with("Access denied")), "{denied:?}");
    let read = client.read("3", &["desiredState.workloads.storage"]);
    assert!(matches!(read, ResponseContent::CompleteState { .. }), "{read:?}");
}

#[test]
fn the_page_on_tls_connected_before_the_server_listened() {
    let cluster = Cluster::prepare();
    let (home, port) = (cluster.folder().join("home"), free_port());
    let programs = Path::new(env!("CARGO_BIN_EXE_ank")).parent().expect("it is in a folder");
    // The programs that it starts end with it.
    let script = blocks("tls.md", "sh").concat() + "code=$?; kill $(jobs -p); wait; exit $code\n";
    let mut command = clean_command("timeout", &home);
    command.args(["60", "bash", "-c", &script]).current_dir(&home);
    command.env("PATH", format!("{}:{}:/usr/bin:/bin", cluster.engine.bin().display(), programs.display()));
    command.env("FAKE_ENGINE_DIR", cluster.engine.state()).env("TMPDIR", cluster.run_folder());
    command.env("ANKSERVER_ADDRESS", format!("127.0.0.1:{port}"));
    command.env("ANKAGENT_SERVER_URL", format!("https://127.0.0.1:{port}"));
    command.env("ANK_SERVER_URL", format!("https://127.0.0.1:{port}"));
    let mut script = Process::start(&mut command, &cluster.folder().join("logs"), "script");
    let status = script.wait(LIMIT).map(exit_code);
    assert_eq!(status, Some(0), "{}{}", script.stdout(), script.stderr());
    assert!(script.stdout().starts_with("agent_A "), "{}", script.stdout());
}
