//! `ank diff` and `ank apply --dry-run`: their output, their end, and that they change nothing.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::{Cluster, manifest, workload};

/// Everything that a manifest can have.
const FULL: &str = "\
apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    restartPolicy: ALWAYS
    tags: {team: one, empty: ''}
    dependencies: {db: ADD_COND_RUNNING}
    configs: {port: port}
    files:
    - {mountPoint: /etc/web.conf, data: \"listen {{port}}\\nroot /\\n\"}
    - {mountPoint: /etc/logo, binaryData: aGk=}
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: ReadWrite, filterMasks: [desiredState.workloads.web]}
      denyRules:
      - {type: LogRule, workloadNames: ['*']}
    runtimeConfig: |
      image: run
      commandArgs: [\"a\", \"b\"]
  db: {agent: agent_A, runtime: podman, runtimeConfig: 'image: run', tags: {}}
configs: {port: '80', nested: {list: [a, {b: c}]}}
";

#[test]
fn diff_is_empty_after_apply_and_shows_each_change() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.write("full.yaml", FULL);
    let before = cluster.ank(&["diff", "full.yaml"]);
    assert_eq!((before.code, before.stderr.as_str()), (6, ""));
    assert!(
        before
            .stdout
            .ends_with("\n2 workloads and 2 configs to add.\n"),
        "{}",
        before.stdout
    );
    assert_eq!(cluster.workloads(), [], "nothing is applied");
    cluster.ank(&["apply", "full.yaml"]).success();
    assert_eq!(
        cluster.ank(&["diff", "full.yaml"]).success(),
        "No differences.\n"
    );
    assert_eq!(cluster.ank(&["-q", "diff", "full.yaml"]).success(), "");

    let other = FULL
        .replace("\"a\", \"b\"", "\"a\", \"c\"")
        .replace("port: '80'", "port: '81'");
    cluster.write(
        "other.yaml",
        &other.replace("  db: {agent: agent_A,", "  db: {agent: '',"),
    );
    let expected = "\
--- config port
+++ config port
@@ -1,1 +1,1 @@
-'80'
+'81'
--- workload db
+++ workload db
@@ -1,4 +1,4 @@
-agent: agent_A
+agent: ''
 restartPolicy: NEVER
 runtime: podman
 runtimeConfig: 'image: run'
--- workload web
+++ workload web
@@ -8,7 +8,7 @@
 runtime: podman
 runtimeConfig: |-
   image: run
-  commandArgs: [\"a\", \"b\"]
+  commandArgs: [\"a\", \"c\"]
 controlInterfaceAccess:
   allowRules:
   - type: StateRule
2 workloads and 1 config to change.
";
    let state = cluster.ank(&["get", "state", "desiredState"]).success();
    for arguments in [
        &["diff", "other.yaml"][..],
        &["apply", "--dry-run", "other.yaml"],
    ] {
        let output = cluster.ank(arguments);
        assert_eq!(
            (output.code, output.stdout.as_str(), output.stderr.as_str()),
            (6, expected, ""),
            "{arguments:?}"
        );
    }
    assert_eq!(
        cluster.ank(&["get", "state", "desiredState"]).success(),
        state,
        "nothing is changed"
    );
}

#[test]
fn diff_shows_deletes_and_users_of_a_changed_config() {
    let cluster = Cluster::start(&[]);
    let text = format!(
        "{}configs: {{port: '80'}}\n",
        manifest(&[workload("web", "run").on("nobody")])
    );
    let user = "  user: {agent: nobody, runtime: podman, runtimeConfig: 'image: run', configs: {p: port}}\nconfigs:";
    cluster
        .ank_with_input(
            &["--no-wait", "apply", "-"],
            &text.replace("configs:", user),
        )
        .success();
    cluster.write("web.yaml", &text);
    let output = cluster.ank(&["diff", "-d", "web.yaml"]);
    let summary = "1 workload and 1 config to delete.\n\
                   Workload 'user' uses the config 'port' and is replaced if its rendered configuration changes.\n";
    assert!(
        output
            .stdout
            .starts_with("--- config port\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-'80'\n"),
        "{}",
        output.stdout
    );
    assert!(
        output
            .stdout
            .contains("\n--- workload web\n+++ /dev/null\n"),
        "{}",
        output.stdout
    );
    assert!(
        output.code == 6 && output.stdout.ends_with(summary),
        "{}",
        output.stdout
    );

    let json = cluster.ank(&["apply", "--dry-run", "-d", "-o", "json", "web.yaml"]);
    let found: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(
        (json.code, found["workloads"]["web"]["action"].as_str()),
        (6, Some("delete"))
    );
    assert_eq!(
        found["configs"]["port"],
        serde_json::json!({ "action": "delete", "old": "80" })
    );
    assert_eq!(
        found["configUsers"],
        serde_json::json!({ "user": ["port"] })
    );

    let elsewhere = cluster.ank(&["diff", "--agent", "agent_Z", "web.yaml"]);
    assert!(
        elsewhere
            .stdout
            .contains("\n-agent: nobody\n+agent: agent_Z\n"),
        "{}",
        elsewhere.stdout
    );
}

#[test]
fn errors_are_no_differences() {
    let mut cluster = Cluster::start(&[]);
    cluster.write(
        "bad.yaml",
        "apiVersion: v1\nworkloads: {w1: {agent: a, runtime: podman}}\n",
    );
    cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    for (file, error) in [
        ("nosuch.yaml", "error: File 'nosuch.yaml' not found!\n"),
        ("bad.yaml", "error: Manifest schema validation failed:\n"),
    ] {
        for arguments in [&["diff", file][..], &["apply", "--dry-run", file]] {
            let output = cluster.ank(arguments);
            assert_eq!(
                (output.code, output.stdout.as_str()),
                (1, ""),
                "{arguments:?}"
            );
            assert!(output.stderr.starts_with(error), "{}", output.stderr);
        }
    }
    let usage = cluster.ank(&["diff"]);
    assert_eq!((usage.code, usage.stdout.as_str()), (2, ""));
    cluster.kill_server();
    let output = cluster.ank(&["diff", "web.yaml"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(
        output
            .stderr
            .starts_with("error: Could not connect to Ankaios server on"),
        "{}",
        output.stderr
    );
}
