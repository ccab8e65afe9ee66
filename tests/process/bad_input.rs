//! Bad input ends in a clear message that names the object, with the documented exit code.
//!
//! Thread: the test's. Owns: one cluster per test.

use std::fs;
use std::process::Command;

use crate::support::cluster::free_port;
use crate::support::process::{Process, clean_command, exit_code};
use crate::support::{Cluster, LIMIT, Output, manifest, workload};

/// Asserts exit code 1, nothing on stdout and `error: <text>` as the first line of stderr.
#[track_caller]
fn fails_with(output: &Output, text: &str) {
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (1, ""),
        "{}",
        output.stderr
    );
    assert_eq!(
        output.stderr.lines().next().unwrap_or_default(),
        format!("error: {text}"),
        "{}",
        output.stderr
    );
}

/// As `fails_with`, where the end of the text depends on a library.
#[track_caller]
fn fails_beginning_with(output: &Output, text: &str) {
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (1, ""),
        "{}",
        output.stderr
    );
    assert!(
        output.stderr.starts_with(&format!("error: {text}")),
        "{}",
        output.stderr
    );
}

fn apply(cluster: &Cluster, text: &str) -> Output {
    cluster.ank_with_input(&["apply", "-"], text)
}

#[test]
fn manifest_that_cannot_be_read() {
    let cluster = Cluster::start(&[]);
    fails_with(
        &cluster.ank(&["apply", "nosuch.yaml"]),
        "File 'nosuch.yaml' not found!",
    );
    cluster.write("good.yaml", &manifest(&[workload("w1", "run")]));
    fails_with(
        &cluster.ank(&["apply", "good.yaml", "nosuch.yaml"]),
        "File 'nosuch.yaml' not found!",
    );
    fails_with(
        &cluster.ank(&["apply", "good.yaml", "-"]),
        "File '-' not found!",
    );
    fs::create_dir(cluster.folder().join("folder")).expect("own folder is writable");
    fails_beginning_with(
        &cluster.ank(&["apply", "folder"]),
        "the folder 'folder' has no files '*.yaml'",
    );
    assert_eq!(cluster.workloads(), []);
}

#[test]
fn manifest_that_is_no_yaml() {
    let cluster = Cluster::start(&[]);
    fails_beginning_with(
        &apply(&cluster, "workloads: [\n"),
        "Invalid manifest data provided: ",
    );
    let output = apply(&cluster, "apiVersion: v1\n---\napiVersion: v1\n");
    fails_beginning_with(&output, "Invalid manifest data provided: ");
    assert!(
        output.stderr.contains("more than one document"),
        "{}",
        output.stderr
    );
    assert!(
        output
            .stderr
            .contains("the second one begins at line 2 column 1"),
        "{}",
        output.stderr
    );
    assert!(
        output
            .stderr
            .contains("put what begins in line 2 into a file of its own"),
        "{}",
        output.stderr
    );
}

#[test]
fn manifest_with_byte_order_mark_is_read_wherever_it_stands() {
    let mut cluster = Cluster::prepare();
    let marked = |name: &str| {
        format!("\u{feff}{}", manifest(&[workload(name, "run")])).replace('\n', "\r\n")
    };
    let startup = cluster.write("startup.yaml", &marked("first"));
    cluster.start_server(&["--startup-manifest", &startup.display().to_string()]);
    let path = cluster
        .write("file.yaml", &marked("second"))
        .display()
        .to_string();
    cluster.ank(&["validate", &path]).success();
    cluster.ank(&["--no-wait", "apply", &path]).success();
    cluster
        .ank_with_input(&["--no-wait", "apply", "-"], &marked("third"))
        .success();
    let state = "\u{feff}desiredState: {apiVersion: v1, configs: {c: x}}\n";
    cluster
        .ank_with_input(
            &["--no-wait", "set", "state", "desiredState.configs.c", "-"],
            state,
        )
        .success();
    let read = cluster
        .ank(&["get", "state", "desiredState", "-o", "json"])
        .success();
    for name in ["first", "second", "third", "\"c\": \"x\""] {
        assert!(read.contains(name), "{name}: {read}");
    }
    let utf16: Vec<u8> = marked("fourth")
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    fs::write(&path, utf16).expect("own folder is writable");
    let output = cluster.ank(&["apply", &path]);
    fails_with(
        &output,
        &format!("Cannot read '{path}': it is text in UTF-16; save it as UTF-8"),
    );
    assert!(
        output
            .stderr
            .contains("hint: the file must be text in UTF-8"),
        "{}",
        output.stderr
    );
}

#[test]
fn manifest_that_breaks_the_schema() {
    let cluster = Cluster::start(&[]);
    let output = apply(
        &cluster,
        "apiVersion: v1\nworkloads: {w1: {agent: a, runtime: podman}}\n",
    );
    fails_beginning_with(&output, "Manifest schema validation failed:");
    assert!(
        output.stderr.contains("missing field `runtimeConfig`"),
        "{}",
        output.stderr
    );
    assert_eq!(cluster.workloads(), []);
}

/// A foreign manifest could change the text of the terminal, its title or the clipboard.
#[test]
fn escape_sequences_in_manifests_reached_the_terminal() {
    let cluster = Cluster::start(&[]);
    let hostile = "\\e]0;x\\a\\x9b2J\\u202ex"; // As YAML escapes them.
    let fields = "agent: a, runtime: podman, runtimeConfig: x";
    let escaped = "\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}x";
    let acts = |text: &str| {
        text.chars()
            .any(|c| (c.is_control() && c != '\n') || c == '\u{202e}')
    };
    for text in [
        format!("apiVersion: \"{hostile}\"\n"),
        format!("apiVersion: v1\nworkloads: {{w: {{{fields}, \"{hostile}\": 1}}}}"),
        format!("apiVersion: v1\nworkloads: {{\"{hostile}\": {{{fields}}}}}"),
        format!("apiVersion: v1\nworkloads: {{w: {{{fields}, restartPolicy: \"{hostile}\"}}}}"),
    ] {
        let output = apply(&cluster, &text);
        assert!(output.stderr.contains(escaped), "{text}: {output:?}");
        assert!(
            !acts(&output.stderr) && !acts(&output.stdout),
            "{text}: {output:?}"
        );
    }
    let word = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}x";
    for words in [
        &["get", word][..],
        &["logs", word],
        &["apply", word],
        &["get", "state", word],
        &["get", "state", "-o", word],
    ] {
        let output = cluster.ank(words);
        assert!(
            output.stderr.contains("\\u{9b}2J\\u{202e}x"),
            "{words:?}: {output:?}"
        );
        assert!(
            !acts(&output.stderr) && !acts(&output.stdout),
            "{words:?}: {output:?}"
        );
    }
    let state = "desiredState: {apiVersion: v1, workloads: {w: {agent: a, runtime: podman, runtimeConfig: x, tags: {t: \"T\"}}}}";
    let set = cluster.ank_with_input(
        &["--no-wait", "set", "state", "desiredState", "-"],
        &state.replace('T', hostile),
    );
    assert_eq!(set.code, 0, "{set:?}");
    for format in ["yaml", "json"] {
        let output = cluster.ank(&["get", "state", "-o", format]);
        assert!(
            output.stdout.contains("\\u202ex") && !acts(&output.stdout),
            "{output:?}"
        );
        cluster.write("state", &output.stdout);
        let again = cluster.ank(&["--no-wait", "set", "state", "desiredState", "state"]);
        assert_eq!(
            (
                again.code,
                cluster.ank(&["get", "state", "-o", format]).stdout
            ),
            (0, output.stdout)
        );
    }
}

#[test]
fn manifest_the_server_refuses() {
    let cluster = Cluster::start(&[]);
    let refused = |text: &str| format!("SetState failed with: {text}");
    let cycle = manifest(&[
        workload("a", "run").after("b", "ADD_COND_RUNNING"),
        workload("b", "run").after("a", "ADD_COND_SUCCEEDED"),
    ]);
    let cause = "Update rejected: workload dependency 'a' is part of a cycle. It is: a -> b -> a";
    fails_with(&apply(&cluster, &cycle), &refused(cause));
    assert_eq!(cluster.workloads(), [], "a refused update changes nothing");
}

// [stest->swdd~api-workload-naming-convention~1]
// [stest->swdd~api-agent-naming-convention~1]
// [stest->swdd~api-config-item-key-naming-convention~1]
// [stest->swdd~api-config-aliases-and-config-reference-keys-naming-convention~1]
// [stest->swdd~api-access-rules-filter-mask-convention~1]
#[test]
fn names_that_break_the_rules_are_refused_by_the_server() {
    let cluster = Cluster::start(&[]);
    // The manifest schema of `ank apply` would refuse some of these itself; `set state` leaves them
    // to the server.
    let set = |part: &str| {
        let text = format!("desiredState:\n  apiVersion: v1\n  {part}\n");
        cluster.ank_with_input(&["set", "state", "desiredState", "-"], &text)
    };
    let fields = "runtime: podman, runtimeConfig: x";
    let rules = |mask: &str| {
        format!("allowRules: [{{type: StateRule, operation: Read, filterMasks: [{mask}]}}]")
    };
    let cases = [
        (
            format!("workloads: {{a.b: {{agent: a, {fields}}}}}"),
            "Unsupported workload name 'a.b'.",
        ),
        (
            format!("workloads: {{w: {{agent: a b, {fields}}}}}"),
            "Unsupported agent name 'a b'.",
        ),
        (
            "configs: {a.b: text}".to_owned(),
            "Unsupported config item key 'a.b'.",
        ),
        (
            format!(
                "configs: {{k: v}}\n  workloads: {{w: {{agent: a, {fields}, configs: {{a.b: k}}}}}}"
            ),
            "Unsupported config alias 'a.b'.",
        ),
        (
            format!("workloads: {{w: {{agent: a, {fields}, configs: {{alias: k.v}}}}}}"),
            "Unsupported config reference key 'k.v'.",
        ),
        (
            format!(
                "workloads: {{w: {{agent: a, {fields}, controlInterfaceAccess: {{{}}}}}}}",
                rules("\"\"")
            ),
            "Empty filter masks are not allowed in Control Interface access rules",
        ),
    ];
    for (part, message) in cases {
        let output = set(&part);
        assert_eq!(output.code, 1, "{part}: {}{}", output.stdout, output.stderr);
        assert!(
            output.stderr.contains(message),
            "{part}: no '{message}' in {}",
            output.stderr
        );
        assert!(
            output.stderr.contains("SetState failed with"),
            "{part}: it is the server that says so"
        );
    }
    assert_eq!(cluster.workloads(), [], "a refused update changes nothing");
    let longest = "x".repeat(63);
    assert_eq!(
        set(&format!(
            "workloads: {{{longest}: {{agent: \"\", {fields}}}}}"
        ))
        .code,
        0
    );
    assert_eq!(cluster.workloads().len(), 1);
}

/// The error of a connection to a port without a listener.
const REFUSED: &str = "Connection refused (os error 111)";

#[test]
fn url_that_is_none_and_server_that_is_not_there() {
    let cluster = Cluster::prepare();
    let port = free_port();
    let run = |arguments: &[&str]| cluster.bare_ank(arguments);
    let output = run(&["-k", "-s", "ftp://here", "get", "workloads"]);
    fails_with(
        &output,
        "Cannot connect to server: Wrong server address format: 'ftp://here'.",
    );
    let url = format!("http://127.0.0.1:{port}");
    let nobody = format!("Could not connect to Ankaios server on '{url}': {REFUSED}");
    for command in [
        &["get", "state"][..],
        &["get", "workloads"],
        &["get", "agents"],
        &["delete", "workload", "w"],
    ] {
        let mut arguments = vec!["-k", "-s", &url];
        arguments.extend(command);
        fails_with(&run(&arguments), &nobody);
    }
    let secure = format!("https://127.0.0.1:{port}");
    fails_with(&run(&["-k", "-s", &secure, "get", "state"]), &nobody);
    let output = run(&["-s", &url, "get", "state"]);
    fails_beginning_with(
        &output,
        "Missing certificate files: '--ca_pem', '--crt_pem', '--key_pem'",
    );
    assert!(output.stderr.contains("add '-k'"), "{}", output.stderr);
}

#[test]
fn server_that_does_not_answer_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let cluster = Cluster::prepare();
    // On a slow machine the connection alone takes longer than the first limit.
    let limits = [("300", "300ms"), ("3000", "3s"), ("30000", "30s")];
    for (what, text) in [
        (
            "workloads",
            "Failed to get workloads: Command timed out after '",
        ),
        ("state", "Could not retrieve state."),
    ] {
        let mut last = None;
        for (limit, shown) in limits {
            let options = ["-k", "-s", &url, "--response-timeout", limit];
            let output = cluster.bare_ank(&[&options[..], &["get", what]].concat());
            let is_late = output.stderr.contains(text);
            last = Some((output, shown));
            if is_late {
                break;
            }
        }
        let (output, shown) = last.expect("there are limits");
        fails_beginning_with(&output, text);
        assert!(output.stderr.contains(shown), "{}", output.stderr);
    }
}

#[test]
fn masks_that_lead_nowhere() {
    let cluster = Cluster::start(&[]);
    let output = cluster.ank(&["get", "state", "-o", "json", "nonsense.a.b"]);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (0, "{}\n"),
        "reading nothing is no error"
    );
    let output = cluster.ank(&["get", "state", "nonsense"]);
    assert_eq!((output.code, output.stdout.as_str()), (0, "{}\n\n"));
    let output = cluster.ank(&["delete", "workload", "nosuch.agent"]);
    let cause =
        "Invalid workload name 'nosuch.agent': Expected 1 to 63 characters in [a-zA-Z0-9_-].";
    fails_with(&output, &format!("Failed to delete workloads: {cause}"));
}

#[test]
fn state_that_cannot_be_set() {
    let cluster = Cluster::start(&[]);
    cluster.apply(&manifest(&[workload("w1", "run")]));
    let set = |mask: &str, text: &str| cluster.ank_with_input(&["set", "state", mask, "-"], text);
    let output = cluster.ank(&["set", "state", "desiredState", "nosuch.yaml"]);
    fails_beginning_with(
        &output,
        "Failed to set state: Could not read the state object file 'nosuch.yaml'.",
    );
    let invalid = "Failed to set state: Invalid state in";
    fails_beginning_with(
        &set("desiredState", "a: [\n"),
        &format!("{invalid} standard input: did not find"),
    );
    cluster.write("broken.yaml", "a: [\n");
    let output = cluster.ank(&["set", "state", "desiredState", "broken.yaml"]);
    fails_beginning_with(&output, &format!("{invalid} 'broken.yaml': did not find"));
    let output = set("desiredState", "desiredState: {workloads: {}}\n");
    fails_with(
        &output,
        &format!("{invalid} standard input: missing field `apiVersion`"),
    );
    // A typo must not wipe the state.
    for (mask, text) in [
        ("desiredState", "desiredSate: {apiVersion: v1}\n"),
        ("desiredState", "apiVersion: v1\nworkloads: {}\n"),
    ] {
        let output = set(mask, text);
        assert_eq!(output.code, 1, "{text}: {}{}", output.stdout, output.stderr);
        assert!(
            output.stderr.starts_with("error: Failed to set state: "),
            "{}",
            output.stderr
        );
    }
    assert_eq!(cluster.workloads().len(), 1);
    let incomplete = "desiredState:\n  apiVersion: v1\n  workloads:\n    n:\n      agent: a\n";
    let output = set("desiredState.workloads.n", incomplete);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("runtime"), "{}", output.stderr);
}

#[test]
fn usage_errors_exit_with_two_and_explain_themselves_on_stderr() {
    let cluster = Cluster::prepare();
    for (arguments, text) in [
        (&["gett"][..], "error: "),
        (&["get", "state", "-o", "xml"], "error: "),
        (&["set", "state", "only-one"], "error: "),
        (&[], "Usage: "),
        (&["get"], "Usage: "),
    ] {
        let output = cluster.bare_ank(arguments);
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (2, ""),
            "{arguments:?}"
        );
        assert!(
            output.stderr.contains(text),
            "{arguments:?}: {}",
            output.stderr
        );
    }
    let mut command = cluster.bare_ank_command();
    command.env("ANK_INSECURE", "yes").args(["get", "state"]);
    assert_eq!(cluster.finish(command, "").code, 2);
}

#[test]
fn environment_variables_are_no_words_of_the_command_line() {
    let cluster = Cluster::prepare();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = cluster.bare_ank_command();
        command.args(arguments).envs(variables.iter().copied());
        let output = cluster.finish(command, "");
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (2, ""),
            "{arguments:?}"
        );
        output.stderr
    };
    let variables = [
        ("ANK_INSECURE", "true"),
        ("ANK_SERVER_URL", "http://127.0.0.1:1"),
        ("ANK_CA_PEM", "ca.pem"),
    ];
    for arguments in [
        &[][..],
        &["get"],
        &["apply"],
        &["logs"],
        &["delete", "workload"],
        &["set", "state"],
    ] {
        let shown = run(arguments, &variables);
        let empty = variables.iter().fold(shown, |text, (name, value)| {
            text.replace(&format!("{name}={value}"), &format!("{name}="))
        });
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&empty), words(&run(arguments, &[])), "{arguments:?}");
        assert!(
            empty.contains("Usage: ank ") && empty.contains("\nOptions"),
            "{arguments:?}: {empty}"
        );
    }
    let shown = run(&["delete", "workload", "-q"], &variables);
    assert!(
        shown.contains("Usage: ank delete workload ") && !shown.contains("--insecure <"),
        "{shown}"
    );
    assert_eq!(shown, run(&["delete", "workload", "-q"], &[]));
}

#[test]
fn wrong_variable_and_misplaced_option_are_named() {
    let cluster = Cluster::prepare();
    let ank = |arguments: &[&str], variable: Option<(&str, &str)>| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_ank"), cluster.folder());
        command.args(arguments).envs(variable);
        let output = command.output().expect("ank starts");
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    let insecure = "tip: the value is that of the environment variable ANK_INSECURE";
    let url = "hint: write it in the variable ANK_SERVER_URL as http://";
    let server = "tip: for the server write '--server-url <URL>', or '-s <URL>' before the command";
    for (arguments, variable, code, text) in [
        (
            &["get", "agents"][..],
            Some(("ANK_INSECURE", "1")),
            2,
            insecure,
        ),
        (&["get", "agents"], Some(("ANK_SERVER_URL", "")), 1, url),
        (
            &["get", "agents", "-s", "http://127.0.0.1:1"],
            None,
            2,
            server,
        ),
        (
            &["apply", "-s", "http://127.0.0.1:1", "f.yaml"],
            None,
            2,
            server,
        ),
    ] {
        let (ended, error) = ank(arguments, variable);
        assert_eq!(ended, Some(code), "{arguments:?}: {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
}

/// Runs a server or an agent that has to end by itself, and gives its exit code and log.
fn ends(cluster: &Cluster, mut command: Command, name: &str) -> (i32, String) {
    let mut process = Process::start(&mut command, cluster.folder(), name);
    let status = process
        .wait(LIMIT)
        .unwrap_or_else(|| panic!("{command:?} runs on:\n{}", process.stderr()));
    (exit_code(status), process.stderr())
}

fn server(cluster: &Cluster, arguments: &[&str]) -> Command {
    let config = cluster.write("server.conf", "version = \"v1\"\n");
    let mut command = clean_command(env!("CARGO_BIN_EXE_ank-server"), cluster.folder());
    command
        .current_dir(cluster.folder())
        .arg("-x")
        .arg(config)
        .args(arguments);
    command
}

#[test]
fn an_option_of_the_agent_wins_over_the_environment() {
    let cluster = Cluster::prepare();
    cluster.write(
        "agent.conf",
        "version = \"v1\"\nname = \"agent_A\"\ninsecure = true\nrun_folder = \".\"\n",
    );
    for (number, (value, arguments)) in [("true", &["--no-insecure"][..]), ("false", &[])]
        .into_iter()
        .enumerate()
    {
        let mut command = clean_command(env!("CARGO_BIN_EXE_ank-agent"), cluster.folder());
        command
            .current_dir(cluster.folder())
            .args(["-x", "agent.conf"])
            .args(arguments);
        command.env("ANKAGENT_INSECURE", value);
        let (ended, log) = ends(&cluster, command, &format!("agent-environment-{number}"));
        assert_eq!(ended, 1, "{value} {arguments:?}: {log}");
        assert!(
            log.contains("Missing certificate files: '"),
            "{value} {arguments:?}: {log}"
        );
    }
}

#[test]
fn environment_wins_over_file_and_errors_pass_log_filters() {
    let cluster = Cluster::prepare();
    cluster.write(
        "insecure.conf",
        "version = \"v1\"\ninsecure = true\nstartup_manifest = \"nosuch.yaml\"\n",
    );
    let no_certificates = "ERROR] Missing certificate files: '";
    let manifest = "ERROR] Could not read the startup config: 'nosuch.yaml: ";
    cluster.write("empty.yaml", "apiVersion: v1\n");
    for (number, (variable, value, arguments, code, text)) in [
        // With the manifest that exists the decision about TLS is reached; options still win over
        // the environment.
        (
            "ANKSERVER_INSECURE",
            "false",
            &["-m", "empty.yaml"][..],
            1,
            no_certificates,
        ),
        (
            "ANKSERVER_INSECURE",
            "true",
            &["--no-insecure", "-m", "empty.yaml"],
            1,
            no_certificates,
        ),
        (
            "ANKSERVER_INSECURE",
            "yes",
            &[],
            2,
            "tip: the value is that of the environment variable ANKSERVER_INSECURE",
        ),
        (
            "ANKSERVER_CRT_PEM",
            "nosuch.pem",
            &[],
            1,
            "ERROR] Failed to load certificate files!: '",
        ),
        ("RUST_LOG", "ank_server=off", &[], 1, manifest),
        ("RUST_LOG", "off", &[], 1, manifest),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = clean_command(env!("CARGO_BIN_EXE_ank-server"), cluster.folder());
        command
            .current_dir(cluster.folder())
            .args(["-x", "insecure.conf"])
            .args(arguments)
            .env(variable, value);
        let (ended, log) = ends(&cluster, command, &format!("environment-{number}"));
        assert_eq!(ended, code, "{variable}={value}: {log}");
        assert!(
            log.contains(text),
            "{variable}={value}: no \"{text}\" in: {log}"
        );
    }
}

fn agent(cluster: &Cluster, arguments: &[&str]) -> Command {
    let config = cluster.write("agent.conf", "version = \"v1\"\n");
    let mut command = clean_command(env!("CARGO_BIN_EXE_ank-agent"), cluster.folder());
    command
        .current_dir(cluster.folder())
        .arg("-x")
        .arg(config)
        .args(arguments);
    command
}

#[test]
fn address_in_use_ends_the_second_server_only() {
    let mut cluster = Cluster::start(&[]);
    let address = cluster.address();
    let (code, log) = ends(
        &cluster,
        server(&cluster, &["-k", "-a", &address]),
        "second",
    );
    assert_eq!(code, 1, "{log}");
    assert!(
        log.contains("server error: ") && log.contains("in use"),
        "{log}"
    );
    assert!(log.contains(&address), "the address is named: {log}");
    assert!(cluster.server().is_running());
    assert_eq!(cluster.ank(&["get", "state"]).code, 0);
}

#[test]
fn server_refuses_what_it_cannot_start_with() {
    let cluster = Cluster::prepare();
    let address = format!("127.0.0.1:{}", free_port());
    let cycle = manifest(&[
        workload("a", "run").after("b", "ADD_COND_RUNNING"),
        workload("b", "run").after("a", "ADD_COND_RUNNING"),
    ]);
    cluster.write("cycle.yaml", &cycle);
    cluster.write("no.yaml", "a: [\n");
    cluster.write(
        "fields.yaml",
        "apiVersion: v1\nworkloads: {w: {runtme: r, agent: a}}\n",
    );
    cluster.write("version.yaml", "apiVersion: v9\nworkloads: {}\n");
    let cases: [(&[&str], i32, &str); 11] = [
        (
            &["-k", "-m", "nosuch.yaml"],
            1,
            "Could not read the startup config: '",
        ),
        (
            &["-k", "-m", "no.yaml"],
            1,
            "Invalid tags format in startup manifest: ''no.yaml': ",
        ),
        (
            &["-k", "-m", "fields.yaml"],
            1,
            "fields.yaml: unknown key 'workloads.w.runtme' is ignored at line 2 column 17; did you mean 'runtime'?",
        ),
        (
            &["-k", "-m", "fields.yaml"],
            1,
            "Parsing start config failed with error: ''fields.yaml': workloads.w: missing",
        ),
        (
            &["-k", "-m", "version.yaml"],
            1,
            "server error: Unsupported API version. Received 'v9', expected 'v1'",
        ),
        (
            &["-k", "-m", "cycle.yaml"],
            1,
            "server error: workload dependency 'a' is part of a cycle. It is: a -> b -> a (startup manifest 'cycle.yaml')\n",
        ),
        (&[], 1, "Missing certificate files: '"),
        (
            &["-k", "--ca_pem", "nosuch.pem"],
            1,
            "Failed to load certificate files!: '",
        ),
        (&["-k", "-a", "localhost:25551"], 2, "error: "),
        (&["-k", "--nosuch"], 2, "error: "),
        (&["-k", "-x", "bad.conf"], 2, "error: "),
    ];
    for (number, (arguments, code, text)) in cases.into_iter().enumerate() {
        let mut all = vec!["-a", &address];
        if arguments.contains(&"-a") {
            all.clear();
        }
        all.extend(arguments);
        let (ended, log) = ends(
            &cluster,
            server(&cluster, &all),
            &format!("server-{number}"),
        );
        assert_eq!(ended, code, "{arguments:?}: {log}");
        assert!(log.contains(text), "{arguments:?}: no \"{text}\" in: {log}");
    }
}

// [stest->swdd~agent-supports-cli-argument-for-insecure-communication~1]
#[test]
fn agent_refuses_what_it_cannot_start_with() {
    let cluster = Cluster::prepare();
    let run_folder = cluster.run_folder().to_string_lossy().into_owned();
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["-k", "-n", "a.b"],
            1,
            "Error encountered while checking agent name!: 'Agent name 'a.b' is invalid.",
        ),
        (
            &["-n", "a"],
            1,
            "Missing certificate files: 'Either provide mTLS config via the '--ca_pem",
        ),
        (&["-k", "-n", "a", "--nosuch"], 2, "error: "),
        (
            &["-k", "-n", "a", "-r", "/nosuch/folder"],
            1,
            "Run folder creation failed. Cannot continue without run folder.: 'Could not find directory \"/nosuch/folder\"'",
        ),
        (
            &["-k", "-n", "a", "--ca_pem", "nosuch.pem"],
            1,
            "Failed to load certificate files!: '",
        ),
    ];
    for (number, (arguments, code, text)) in cases.into_iter().enumerate() {
        let mut all = vec!["-r", run_folder.as_str()];
        if arguments.contains(&"-r") {
            all.clear();
        }
        all.extend(arguments);
        let (ended, log) = ends(&cluster, agent(&cluster, &all), &format!("agent-{number}"));
        assert_eq!(ended, code, "{arguments:?}: {log}");
        assert!(log.contains(text), "{arguments:?}: no \"{text}\" in: {log}");
    }
}

#[test]
fn stored_bad_mount_point_fails_its_workload_alone() {
    let file = "    files:\n    - {mountPoint: '/x,source=/,destination=/host', data: d}\n";
    let text = manifest(&[workload("bad", "run"), workload("good", "run")]);
    let text = text.replacen(
        "    runtimeConfig:",
        &format!("{file}    runtimeConfig:"),
        1,
    );
    let mut cluster = Cluster::prepare();
    cluster.start_with_manifest(&text);
    let row = cluster.wait_for_state("bad", "Pending(StartingFailed)");
    let expected = "Failed to create workload file: 'invalid mount point '/x,source=/,destination=/host': 'It contains ','";
    assert!(row.info.starts_with(expected), "{row:?}");
    cluster.wait_for_state("good", "Running(Ok)");
    assert_eq!(cluster.engine.calls_of("run", "bad.").len(), 0);
    let output = apply(&cluster, &text);
    fails_beginning_with(&output, "Invalid manifest data provided: ");
    assert!(
        output
            .stderr
            .contains("workload 'bad': Unsupported mount point"),
        "{}",
        output.stderr
    );
}
