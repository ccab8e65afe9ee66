//! Examples of the pages in `docs/`, run as they stand.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::path::{Path, PathBuf};

use crate::support::cluster::free_port;
use crate::support::control_client::folder;
use crate::support::process::{clean_command, exit_code};
use crate::support::{Cluster, ControlClient, LIMIT, Process, wait_until};
use ankaios_lite::model::execution_state::Phase;
use ankaios_lite::model::guarded_update::{UpdateCause, UpdatePhase};
use ankaios_lite::model::lifecycle::{AliveAction, OnDeadline, OnFailure, RestartWith};
use ankaios_lite::model::messages::ResponseContent;
use ankaios_lite::model::node::Node;
use ankaios_lite::model::prepare_level::PrepareLevel;
use ankaios_lite::model::reason::Reason;
use ankaios_lite::model::refusal::{ErrorResponse, Refusal};
use ankaios_lite::model::workload::RestartPolicy;

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let fence = format!("```{language}\n");
    text.split(&fence)
        .skip(1)
        .filter_map(|block| Some(block.split_once("\n```")?.0.to_owned() + "\n"))
        .collect()
}

/// The pages of `docs/` and those beside it.
fn pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> = ["README.md", "SECURITY.md", "CONTRIBUTING.md"]
        .map(|name| top.join(name))
        .into_iter()
        .collect();
    let mut folders = vec![top.join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder)
            .expect("it can be read")
            .flatten()
            .map(|entry| entry.path())
        {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn each_link_of_a_page_leads_to_a_file_and_a_heading_that_exist() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("it can be read");
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .map(|(link, _)| link)
        {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().expect("it is in a folder").join(file)
            };
            assert!(
                target.exists(),
                "{}: '{link}' leads to no file",
                page.display()
            );
            if !heading.is_empty() {
                let target = std::fs::read_to_string(&target).expect("it can be read");
                let found = target
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(found, "{}: '{link}' leads to no heading", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// `NONE` stands for an absent value.
fn without_none(texts: &[&'static str]) -> Vec<String> {
    let mut kept: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    kept.retain(|text| text != "NONE");
    kept
}

fn assert_listed(page: &str, texts: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let page_text = std::fs::read_to_string(path).expect("the page is there");
    for text in texts {
        let quoted = format!("`{text}`");
        assert!(page_text.contains(&quoted), "docs/{page} lacks {quoted}");
    }
}

#[test]
fn values_that_users_meet_are_on_their_reference_pages() {
    let mut states: Vec<String> = Phase::ALL.iter().map(|row| row.0.to_string()).collect();
    states.extend(without_none(Reason::TEXTS));
    assert_listed("states.md", &states);
    let mut of_updates = without_none(Refusal::TEXTS);
    of_updates.extend(without_none(UpdatePhase::TEXTS));
    of_updates.extend(without_none(UpdateCause::TEXTS));
    assert_listed("updates-reference.md", &of_updates);
    let mut of_lifecycle = without_none(PrepareLevel::TEXTS);
    of_lifecycle.extend(without_none(OnDeadline::TEXTS));
    of_lifecycle.extend(without_none(AliveAction::TEXTS));
    of_lifecycle.extend(without_none(OnFailure::TEXTS));
    of_lifecycle.extend(without_none(RestartWith::TEXTS));
    assert_listed("lifecycle-reference.md", &of_lifecycle);
    assert_listed("manifests.md", &without_none(RestartPolicy::TEXTS));
}

/// The blocks of all pages that are whole manifests.
fn manifests() -> Vec<String> {
    let mut manifests = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("it can be read");
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("\n```").next().unwrap_or_default();
            if block.starts_with("apiVersion: v1\nworkloads:\n") {
                manifests.push(format!("{block}\n"));
            }
        }
    }
    manifests
}

#[test]
fn manifests_of_all_pages_are_valid() {
    let cluster = Cluster::prepare();
    let manifests = manifests();
    assert!(manifests.len() > 5, "{manifests:?}");
    for manifest in manifests {
        let file = cluster.write("page.yaml", &manifest).display().to_string();
        let output = cluster.bare_ank(&["validate", &file]);
        assert_eq!(output.code, 0, "{manifest}{}", output.stderr);
    }
}

#[test]
fn manifest_of_the_docs_starts_and_its_deny_rule_denies() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "run", "behave": "run" }]));
    cluster.apply(&blocks("manifests.md", "yaml")[0]);
    cluster.wait_until_run(&["storage", "reader"]);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "reader"));
    let mut delete = |id: &str, mask: &str| client.update(id, Node::empty(), &[mask]);
    let accepted = delete("1", "desiredState.workloads.other");
    assert!(
        matches!(accepted, ResponseContent::UpdateStateSuccess { .. }),
        "{accepted:?}"
    );
    let denied = delete("2", "desiredState.workloads.storage");
    assert!(
        matches!(&denied, ResponseContent::Error(ErrorResponse { text, .. }) if text.starts_with("Access denied")),
        "{denied:?}"
    );
    let read = client.read("3", &["desiredState.workloads.storage"]);
    assert!(
        matches!(read, ResponseContent::CompleteState { .. }),
        "{read:?}"
    );
}

#[test]
fn the_page_on_tls_connected_before_the_server_listened() {
    let cluster = Cluster::prepare();
    let (home, port) = (cluster.folder().join("home"), free_port());
    let programs = Path::new(env!("CARGO_BIN_EXE_ank"))
        .parent()
        .expect("it is in a folder");
    // The programs that it starts end with it.
    let script = blocks("tls.md", "sh").concat() + "code=$?; kill $(jobs -p); wait; exit $code\n";
    let mut command = clean_command("timeout", &home);
    command
        .args([&LIMIT.as_secs().to_string(), "bash", "-c", &script])
        .current_dir(&home);
    command.env(
        "PATH",
        format!(
            "{}:{}:/usr/bin:/bin",
            cluster.engine.bin().display(),
            programs.display()
        ),
    );
    command
        .env("FAKE_ENGINE_DIR", cluster.engine.state())
        .env("TMPDIR", cluster.run_folder());
    command.env("ANKSERVER_ADDRESS", format!("127.0.0.1:{port}"));
    command.env("ANKAGENT_SERVER_URL", format!("https://127.0.0.1:{port}"));
    command.env("ANK_SERVER_URL", format!("https://127.0.0.1:{port}"));
    let mut script = Process::start(&mut command, &cluster.folder().join("logs"), "script");
    let status = script.wait(LIMIT).map(exit_code);
    assert_eq!(status, Some(0), "{}{}", script.stdout(), script.stderr());
    assert!(
        script.stdout().starts_with("agent_A "),
        "{}",
        script.stdout()
    );
}

/// The certificates and the settings of the page, with paths, ports and the address of this test.
#[test]
fn the_settings_of_getting_started_connect_two_nodes() {
    let cluster = Cluster::prepare();
    let (home, port) = (cluster.folder().join("home"), free_port().to_string());
    let logs = cluster.folder().join("logs");
    let here = |text: &str| {
        let text = text
            .replace("/etc/ankaios/certs", &home.display().to_string())
            .replace("25551", &port);
        let text = text
            .replace("192.0.2.1", "127.0.0.1")
            .replace("0.0.0.0", "127.0.0.1");
        let text = text.replace(
            "/run/ankaios/ank.sock",
            &home.join("ank.sock").display().to_string(),
        );
        let text = text.replace(
            "/run/ankaios-agent",
            &cluster.run_folder().display().to_string(),
        );
        let text = text.replace(
            "/etc/ankaios/state.yaml",
            &home.join("state.yaml").display().to_string(),
        );
        text.replace("/var/lib/ankaios", &home.display().to_string())
    };
    std::fs::write(home.join("state.yaml"), "apiVersion: v1\nworkloads: {}\n")
        .expect("own folder is writable");
    let shell = blocks("getting-started.md", "sh");
    let certificates = shell
        .iter()
        .find(|block| block.contains("openssl"))
        .expect("the page makes certificates");
    let mut openssl = clean_command("bash", &home);
    openssl
        .env("PATH", "/usr/bin:/bin")
        .args(["-e", "-c", certificates])
        .current_dir(&home);
    assert!(
        openssl.output().is_ok_and(|output| output.status.success()),
        "the certificates are made"
    );
    let settings = blocks("getting-started.md", "toml");
    let started: Vec<Process> = [("ank-server", 0), ("ank-agent", 1), ("ank-agent", 2)]
        .into_iter()
        .map(|(name, block)| {
            let path = home.join(format!("{block}.conf"));
            std::fs::write(&path, here(&settings[block])).expect("own folder is writable");
            let program = Path::new(env!("CARGO_BIN_EXE_ank")).with_file_name(name);
            let mut command = clean_command(&program, &home);
            command
                .arg("-x")
                .arg(path)
                .env("PATH", cluster.engine.bin());
            command.env("FAKE_ENGINE_DIR", cluster.engine.state());
            Process::start(&mut command, &logs, &format!("{name}-{block}"))
        })
        .collect();
    wait_until("both agents are connected", || {
        let mut ank = cluster.bare_ank_command();
        ank.args([
            "-s",
            &format!("unix://{}", home.join("ank.sock").display()),
            "get",
            "agents",
        ]);
        let table = cluster.finish(ank, "").stdout;
        ["front ", "rear "]
            .iter()
            .all(|name| table.lines().any(|line| line.starts_with(name)))
    });
    assert_eq!(started.len(), 3);
}
