//! Images on real podman without a registry: a small disk that stays free in updates, rollbacks and
//! kills.
//!
//! Thread: the test's. Owns: one cluster and one podman store (store.rs).
//!
//! `ANKAIOS_KILL_ROUNDS` is the number of kills within each update, and `ANKAIOS_KILL_SEED` chooses
//! their moments.

use crate::store::{PATIENT, Podman};
use crate::support::{Cluster, from_environment, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The disk: room for four of the images with their containers, and not for all.
const DISK_KIB: usize = 64 * 1024;
/// Bytes that make each image different.
const PAYLOAD: usize = 5 * 1024 * 1024;
/// The versions as they come: eleven updates, and two that roll back to the version before.
const VERSIONS: [u32; 14] = [1, 2, 3, 4, 3, 5, 6, 7, 8, 9, 8, 10, 11, 12];
/// Kills within each update in each run of the tests; four are 56 of them.
const KILLS: u64 = 1;
/// An update takes about as long.
const UPDATE_MS: u64 = 1500;

fn name(version: u32) -> String {
    format!("docker.io/example/nav:{version}")
}

/// Loads an image as an OTA client does, from a file beside the disk.
fn load(podman: &Podman, folder: &Path, version: u32) {
    let root = folder.join("image");
    fs::create_dir_all(&root).expect("own folder is writable");
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(PAYLOAD)
        .collect();
    fs::write(root.join("payload"), bytes).expect("own folder is writable");
    let archive = folder.join("nav.tar");
    fs::copy(podman.image_archive(), &archive).expect("own folder is writable");
    let appended = Command::new("tar")
        .arg("--append")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(&root)
        .arg("payload")
        .status();
    assert!(appended.is_ok_and(|status| status.success()), "tar appends");
    let path = archive.to_string_lossy().into_owned();
    let change = "ENV PATH=/bin";
    podman.run(&[
        "import",
        "--quiet",
        "--change",
        change,
        &path,
        &name(version),
    ]);
}

fn manifest(version: u32) -> String {
    format!(
        "apiVersion: v1\nworkloads:\n  nav:\n    agent: agent_A\n    runtime: podman\n    restartPolicy: ALWAYS\n    \
         runtimeConfig: |\n      image: {}\n      commandOptions: [\"--pull=never\", \"--stop-timeout\", \"1\"]\n      \
         commandArgs: [sh, -c, \"{PATIENT}\"]\n",
        name(version)
    )
}

/// The names of all images. podman fails when one that it lists is removed meanwhile.
fn images(podman: &Podman) -> BTreeSet<String> {
    let mut text = None;
    wait_until("podman lists its images", || {
        text = podman.try_run(&["images", "--all", "--format={{.Repository}}:{{.Tag}}"]);
        text.is_some()
    });
    text.iter()
        .flat_map(|text| text.lines())
        .map(str::to_owned)
        .collect()
}

fn start(podman: &Podman) -> Cluster {
    let mut cluster = Cluster::prepare_on(podman);
    let state = cluster.folder().join("state");
    cluster.agent_config = format!(
        "image_cleanup = 'replaced'\nstate_dir = '{}'",
        state.display()
    );
    let quiet = ("ANKAIOS_TEST_IMAGE_QUIET_MS".to_owned(), "300".to_owned());
    cluster.agent_env.push(quiet);
    cluster.start_all(&["agent_A"]);
    cluster
}

// [stest->swdd~agent-shows-bytes-of-images~1]
// [stest->swdd~agent-removes-replaced-images~1]
// [stest->swdd~agent-keeps-needed-images~1]
#[test]
#[allow(clippy::print_stderr)] // A failure needs the seed.
fn small_disk_stays_free_in_updates_rollbacks_and_kills() {
    let Some(podman) = Podman::on_small_disk(DISK_KIB) else {
        return;
    };
    let kills = from_environment("ANKAIOS_KILL_ROUNDS").unwrap_or(KILLS);
    let seed = from_environment("ANKAIOS_KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("ANKAIOS_KILL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = start(&podman);
    podman.run(&["tag", "alpine:latest", "docker.io/example/by-hand:1"]);
    let mut before: Option<u32> = None;
    for version in VERSIONS {
        if !images(&podman).contains(&name(version)) {
            load(&podman, cluster.folder(), version);
        }
        let output = cluster.ank_with_input(&["--no-wait", "apply", "-"], &manifest(version));
        assert_eq!(output.code, 0, "{}", output.stderr);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(random.u64(..UPDATE_MS)));
            cluster.kill_agent("agent_A");
            cluster.start_agent("agent_A");
        }
        cluster.wait_until_run(&["nav"]);
        let runs = || {
            let containers = podman.containers_of("nav");
            containers.len() == 1 && containers[0]["Image"] == *name(version)
        };
        wait_until(&format!("only version {version} is there"), runs);
        let mut expected: BTreeSet<String> = [
            "docker.io/library/alpine:latest",
            "docker.io/example/by-hand:1",
        ]
        .map(str::to_owned)
        .into();
        expected.insert(name(version));
        expected.extend(before.map(name));
        wait_until(&format!("the images are {expected:?}"), || {
            images(&podman) == expected
        });
        before = Some(version);
    }
    let text = cluster.ank(&["top", "-o", "wide", "nav"]).stdout;
    let row = text.lines().find(|line| line.starts_with("nav"));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    let [.., all, removable] = &words[..] else {
        panic!("{text}")
    };
    assert!(all.ends_with("MiB") && *removable == "0B", "{text}");
}
