//! What `ank` prints, byte for byte: help, tables and graphs at 80 and 200 columns, in a terminal
//! and in a pipe; shell completion. The expected texts are in `tests/golden/`;
//! ANKAIOS_WRITE_GOLDEN=1 writes them again, to be looked at before they are committed.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::process::clean_command;
use crate::support::{Cluster, Output, manifest, workload};
use ankaios_lite::cli::args;

/// Where output goes.
#[derive(Debug, Clone, Copy)]
enum To {
    Pipe,
    Terminal(u32),
}

impl To {
    const ALL: [Self; 3] = [Self::Pipe, Self::Terminal(80), Self::Terminal(200)];

    fn name(self) -> String {
        match self {
            Self::Pipe => "pipe".to_owned(),
            Self::Terminal(columns) => format!("{columns}"),
        }
    }
}

/// Runs `command`, whose words need no quotes, with its output going `to` there.
fn run(cluster: &Cluster, command: &Command, to: To) -> Output {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .collect();
    let line: Vec<String> = words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut shell = match to {
        To::Pipe => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{} 2>&1 | cat", line.join(" "))]);
            shell
        }
        To::Terminal(columns) => {
            let mut shell = Command::new("script"); // Gives its child a terminal.
            let line = format!("stty rows 24 cols {columns}; exec {}", line.join(" "));
            shell.args(["-qec", &line, "/dev/null"]);
            shell
        }
    };
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .env_remove("COLUMNS")
        .env_remove("LINES")
        .current_dir(cluster.folder());
    let mut output = cluster.finish(shell, "");
    output.stdout = output.stdout.replace("\r\n", "\n");
    output
}

/// Compares `text` with the file `name` of the golden texts.
#[track_caller]
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.txt"));
    if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("has a folder")).expect("sources are writable");
        fs::write(&path, text).expect("sources are writable");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{name} differs from {}:\n{text}",
        path.display()
    );
}

/// All commands of `ank`, each as its words; the first has none.
fn commands() -> Vec<String> {
    let mut found = vec![String::new()];
    add_commands(&args::command(), "", &mut found);
    found
}

fn add_commands(above: &clap::Command, words: &str, found: &mut Vec<String>) {
    for command in above.get_subcommands() {
        let words = format!("{words} {}", command.get_name());
        found.push(words.trim_start().to_owned());
        add_commands(command, words.trim_start(), found);
    }
}

/// The help of all commands, one below the other.
fn all_help(cluster: &Cluster, to: To) -> String {
    let mut all = String::new();
    for words in commands() {
        let mut command = cluster.bare_ank_command();
        command.args(words.split_whitespace()).arg("--help");
        let output = run(cluster, &command, to);
        assert_eq!(output.code, 0, "{words}");
        let shown = format!("ank {words} --help").replace("  ", " ");
        all.push_str(&format!("$ {shown}\n{}\n", output.stdout));
    }
    all
}

#[test]
fn help_fits_the_terminal() {
    let cluster = Cluster::prepare();
    for to in To::ALL {
        let all = all_help(&cluster, to);
        assert_help_fits(to, &all);
        golden(&format!("help_{}", to.name()), &all);
    }
}

/// Each line fits but usage lines, which the terminal wraps itself, and single words.
#[track_caller]
fn assert_help_fits(to: To, help: &str) {
    let To::Terminal(columns) = to else { return };
    let columns = usize::try_from(columns).expect("small");
    for line in help.lines() {
        let is_usage = line.starts_with("Usage: ") || line.starts_with("$ ank ");
        let is_word = line.split_whitespace().count() == 1;
        let fits = line.chars().count() <= columns;
        assert!(fits || is_usage || is_word, "{columns} columns: {line}");
    }
}

#[test]
fn help_in_a_narrow_terminal_breaks_no_word() {
    let cluster = Cluster::prepare();
    let wide = all_help(&cluster, To::Pipe);
    let narrow = all_help(&cluster, To::Terminal(40));
    assert_help_fits(To::Terminal(40), &narrow);
    let wide = Vec::from_iter(wide.split_whitespace());
    let narrow = Vec::from_iter(narrow.split_whitespace());
    for (at, word) in wide.iter().enumerate() {
        let begin = at.saturating_sub(5);
        assert_eq!(narrow.get(at), Some(word), "after {:?}", &wide[begin..at]);
    }
    assert_eq!(wide.len(), narrow.len());
}

#[test]
fn tables_and_graphs_fit_the_terminal() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(
        &(manifest(&[
            workload("web", "run")
                .after("database", "ADD_COND_RUNNING")
                .after("setup", "ADD_COND_SUCCEEDED"),
            workload("database", "run"),
            workload("setup", "exit0"),
            workload("reporter", "exit3"),
            workload("odd", "run").runtime("nosuch"),
            workload("nowhere", "run").on("\"\""),
            workload("waiting", "run").after("nobody", "ADD_COND_RUNNING"),
        ]) + "configs: {port: '80', 'certificate-of-the-vehicle': {name: x, hosts: [a, b]}}\n"),
    );
    for (name, state) in [
        ("web", "Running(Ok)"),
        ("setup", "Succeeded(Ok)"),
        ("reporter", "Failed(ExecFailed)"),
        ("odd", "Pending(StartingFailed)"),
        ("waiting", "Pending(WaitingToStart)"),
    ] {
        cluster.wait_for_state(name, state);
    }
    let tables = [
        "get workloads",
        "get workloads -s running web",
        "graph",
        "get configs",
    ];
    for words in tables {
        for to in To::ALL {
            let mut command = cluster.ank_command();
            command.args(words.split_whitespace());
            let output = run(&cluster, &command, to);
            assert_eq!(output.code, 0, "{words}");
            assert_fits(to, &output.stdout);
            golden(
                &format!("{}_{}", words.replace(' ', "_"), to.name()),
                &output.stdout,
            );
        }
    }
    for words in ["get workloads", "graph"] {
        let mut command = cluster.ank_command();
        command.args(words.split_whitespace());
        let output = run(&cluster, &command, To::Terminal(48));
        assert_fits(To::Terminal(48), &output.stdout);
        golden(&format!("{}_48", words.replace(' ', "_")), &output.stdout);
    }
    // These look the same everywhere.
    for words in [
        "graph -o dot",
        "graph -o mermaid",
        "graph -o json",
        "get workloads -o yaml",
        "get workloads -o wide waiting",
        "get configs -o json",
        "get state desiredState",
        "get state desiredState -o json",
        "get events -c --count 0 desiredState.configs",
        "get events -c --count 0 desiredState.configs -o json",
    ] {
        let outputs = To::ALL.map(|to| {
            let mut command = cluster.ank_command();
            command.args(words.split_whitespace());
            let output = run(&cluster, &command, to);
            assert_eq!(output.code, 0, "{words}");
            without_times(&output.stdout)
        });
        assert!(
            outputs[0] == outputs[1] && outputs[1] == outputs[2],
            "{words}"
        );
        golden(&words.replace(' ', "_"), &outputs[0]);
    }
}

/// Tables, with the texts that a narrow terminal must show.
const NARROW: [(&str, &[&str]); 9] = [
    (
        "get workloads",
        &["handler_of_storage_errors", "Failed(ExecFailed)"],
    ),
    ("get agents", &["NAME", "agent_A"]),
    ("get configs", &["certificate-of-the-vehicle", "port"]),
    ("get updates", &["ID", "PHASE"]),
    (
        "get events --since 1h",
        &["handler_of_storage_errors", "Failed(ExecFailed)"],
    ),
    ("graph", &["NAME", "handler_of_storage_errors", "web"]),
    ("blame", &["NAME", "TOTAL"]),
    ("version", &["VERSION", "ank-server", "agent_A"]),
    (
        "describe handler_of_storage_errors",
        &["handler_of_storage_errors", "Failed(ExecFailed)"],
    ),
];

#[test]
fn tables_in_a_narrow_terminal_keep_what_matters() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(
        &(manifest(&[
            workload("web", "run").after("handler_of_storage_errors", "ADD_COND_FAILED"),
            workload("handler_of_storage_errors", "exit3"),
            workload("odd", "run").runtime("nosuch"),
        ]) + "configs: {port: '80', certificate-of-the-vehicle: {name: x, hosts: [a, b]}}\n"),
    );
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("odd", "Pending(StartingFailed)");
    for (words, kept) in NARROW {
        let mut command = cluster.ank_command();
        command.args(words.split_whitespace());
        // The cluster may change between two commands, so it is read before and after.
        let mut wide = run(&cluster, &command, To::Pipe).stdout;
        let narrow = run(&cluster, &command, To::Terminal(40));
        wide.push_str(&run(&cluster, &command, To::Pipe).stdout);
        assert_eq!(narrow.code, 0, "{words}");
        let shown = narrow.stdout;
        for text in kept {
            assert!(shown.contains(text), "{words}, {text}:\n{shown}");
        }
        if !words.starts_with("describe") {
            assert_fits(To::Terminal(40), &shown); // The terminal wraps data itself.
        }
        let known = Vec::from_iter(wide.split_whitespace());
        for word in shown.split_whitespace() {
            // Numbers change, and a cell may be shortened where that is shown.
            let may_differ = word.ends_with("...") || word.contains(|c: char| c.is_ascii_digit());
            assert!(
                may_differ || known.contains(&word),
                "{words}, {word}:\n{shown}"
            );
        }
    }
}

#[track_caller]
fn assert_fits(to: To, text: &str) {
    if let To::Terminal(columns) = to {
        let columns = usize::try_from(columns).expect("small");
        assert!(
            text.lines().all(|line| line.chars().count() <= columns),
            "{text}"
        );
    }
}

/// `text` with each time in it replaced, and without what depends on whether the agent has reported
/// the begin of a start: a later report replaces one that was not sent yet.
fn without_times(text: &str) -> String {
    let pattern = regex_lite::Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{9}\+00:00|Z)")
        .expect("a pattern");
    let text = pattern.replace_all(text, "<time>");
    let text = text.replace("  sinceAtLatest: ", "  since: ");
    text.replace("  restarts: 0\n", "")
}

/// The last screen of a terminal with enough lines: each frame replaces the one before it.
fn on_screen(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut at = 0;
    for line in text.split('\n') {
        let mut rest = line;
        if let Some(after) = rest.strip_prefix("\u{1b}[J") {
            lines.truncate(at); // All that is below is cleared.
            rest = after;
        }
        while let Some((_, after)) = rest
            .strip_prefix("\u{1b}[")
            .and_then(|rest| rest.split_once(['G', 'A']))
        {
            let up = &rest[2..rest.len() - after.len()];
            if let Some(up) = up.strip_suffix('A') {
                at -= up.parse::<usize>().expect("a number of lines");
            }
            rest = after;
        }
        let cleared = rest.trim_end_matches("\u{1b}[K").to_owned();
        match lines.get_mut(at) {
            Some(line) => *line = cleared,
            None => lines.push(cleared),
        }
        at += 1;
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n") + "\n"
}

#[test]
fn an_apply_that_misses_its_target_says_so_at_any_width() {
    let cluster = Cluster::start(&["agent_A"]);
    let text = manifest(&[
        workload("database", "run"),
        workload("odd", "run").runtime("podmn"),
        workload("strange", "run").runtime("rocket"),
    ]);
    cluster.write("missing.yaml", &text);
    for to in To::ALL {
        cluster.ank(&["delete", "workload", "database", "odd", "strange"]);
        let mut command = cluster.ank_command();
        command.args(["apply", "missing.yaml", "--fail-on-error"]);
        let output = run(&cluster, &command, to);
        // Which frames there were depends on how fast the machine is; the last one and what follows
        // do not.
        let shown = match to {
            To::Pipe => output
                .stdout
                .rsplit("\n\n")
                .take(2)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("\n\n"),
            To::Terminal(_) => {
                assert_eq!(output.code, 3);
                // The two warnings of the runtimes are before it.
                on_screen(&output.stdout)
                    .split_inclusive('\n')
                    .skip(2)
                    .collect()
            }
        };
        let shown = shown
            .replace("\u{1b}[38;5;11m", "")
            .replace("\u{1b}[1;38;5;9m", "")
            .replace("\u{1b}[38;5;14m", "");
        let shown = shown.replace("\u{1b}[0m", "");
        assert_fits(to, &shown);
        golden(&format!("apply_missed_{}", to.name()), &shown);
    }
}

#[test]
fn unusable_config_files_are_named_by_file_line_and_key() {
    let cluster = Cluster::prepare();
    cluster.write("empty.conf", "");
    cluster.write("syntax.conf", "version = 'v1'\ninsecure = \n");
    cluster.write("type.conf", "version = 'v1'\ninsecure = 'true'\n");
    cluster.write("version.conf", "\nversion = 'v2'\n");
    cluster.write(
        "both.conf",
        "version = 'v1'\nca_pem = '/ca.pem'\nca_pem_content = 'x'\n",
    );
    cluster.write(
        "pem.conf",
        "version = 'v1'\nname = 'a'\ninsecure = true\nkey_pem = '/nowhere/key.pem'\n",
    );
    cluster.write(
        "address.conf",
        "version = 'v1'\nname = 'a'\ninsecure = true\naddress = 'localhost:1'\nserver_url = 'here'\n",
    );
    let folder = cluster.folder().display().to_string();
    let mut all = String::new();
    for name in [
        "missing", "empty", "syntax", "type", "version", "both", "pem", "address",
    ] {
        let file = format!("{name}.conf");
        let programs = [
            env!("CARGO_BIN_EXE_ank"),
            env!("CARGO_BIN_EXE_ank-server"),
            env!("CARGO_BIN_EXE_ank-agent"),
        ];
        for program in programs {
            let mut command = clean_command(program, cluster.folder());
            command
                .current_dir(cluster.folder())
                .args(["-x", &file])
                .env("TMPDIR", &folder);
            if program.ends_with("ank") {
                command.args(["get", "agents"]);
            }
            let output = cluster.finish(command, "");
            assert_eq!(
                (output.code, output.stdout.as_str()),
                (1, ""),
                "{program} {name}: {}",
                output.stderr
            );
            let program = program.rsplit('/').next().unwrap_or_default();
            let text: Vec<&str> = output
                .stderr
                .lines()
                .filter(|line| !line.contains(" INFO "))
                .collect();
            let text: Vec<String> = text
                .iter()
                .map(|line| {
                    line.split_once("Z ")
                        .filter(|_| line.starts_with('['))
                        .map_or_else(|| (*line).to_owned(), |(_, rest)| format!("[{rest}"))
                })
                .collect();
            all.push_str(&format!(
                "$ {program} -x {file}\n{}\n\n",
                text.join("\n").replace(&folder, "<folder>")
            ));
        }
    }
    golden("config_errors", &all);
}

#[test]
fn shells_show_what_candidates_mean() {
    let cluster = Cluster::prepare();
    let mut all = String::new();
    for words in [
        "",
        "get ",
        "get workload -",
        "get agent ",
        "get state -o ",
        "logs -",
    ] {
        let mut command = cluster.bare_ank_command();
        command
            .env("COMPLETE", "fish")
            .args(["--", "ank"])
            .args(words.split(' '));
        let shown = cluster.finish(command, "").success();
        all.push_str(&format!(
            "$ ank {words}<Tab>\n{}\n\n",
            shown.replace('\t', "    ")
        ));
    }
    golden("completion", &all);
}

#[test]
fn errors_are_coloured_in_a_terminal_only_and_not_with_no_color() {
    let cluster = Cluster::prepare();
    let mut command = cluster.bare_ank_command();
    command.args(["-k", "-s", "ftp://here", "get", "state"]);
    let text = "Cannot connect to server: Wrong server address format: 'ftp://here'.";
    let first = |to, command: &Command| {
        run(&cluster, command, to)
            .stdout
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(first(To::Pipe, &command), format!("error: {text}"));
    assert_eq!(
        first(To::Terminal(80), &command),
        format!("\u{1b}[1;38;5;9merror:\u{1b}[0m {text}")
    );
    command.env("NO_COLOR", "1");
    assert_eq!(first(To::Terminal(80), &command), format!("error: {text}"));
}

#[test]
fn differences_are_coloured_on_a_terminal_unless_no_color() {
    let cluster = Cluster::start(&[]);
    cluster.write("config.yaml", "apiVersion: v1\nconfigs: {c: new}\n");
    let state = "desiredState: {apiVersion: v1, configs: {c: old}}\n";
    cluster
        .ank_with_input(&["set", "state", "desiredState.configs.c", "-"], state)
        .success();
    let mut command = cluster.ank_command();
    command.args(["diff", "config.yaml"]);
    let plain = "--- config c\n+++ config c\n@@ -1,1 +1,1 @@\n-old\n+new\n1 config to change.\n";
    let coloured = "\u{1b}[1m--- config c\u{1b}[0m\n\u{1b}[1m+++ config c\u{1b}[0m\n\u{1b}[36m@@ -1,1 +1,1 @@\u{1b}[0m\n\
                    \u{1b}[31m-old\u{1b}[0m\n\u{1b}[32m+new\u{1b}[0m\n1 config to change.\n";
    assert_eq!(run(&cluster, &command, To::Pipe).stdout, plain);
    assert_eq!(run(&cluster, &command, To::Terminal(80)).stdout, coloured);
    command.env("NO_COLOR", "1");
    assert_eq!(run(&cluster, &command, To::Terminal(80)).stdout, plain);
}

/// The candidates for the last of `words`.
fn candidates(cluster: &Cluster, options: &[String], words: &[&str]) -> Vec<String> {
    let mut command = cluster.bare_ank_command();
    command
        .env("COMPLETE", "fish")
        .args(["--", "ank"])
        .args(options)
        .args(words);
    let shown = cluster.finish(command, "").success();
    let lines = shown
        .lines()
        .map(|line| line.split('\t').next().unwrap_or_default().to_owned());
    lines.filter(|value| !value.starts_with('-')).collect()
}

#[test]
fn shells_are_told_the_names_that_the_typed_server_knows() {
    let cluster = Cluster::start(&["agent_A"]);
    let text =
        manifest(&[workload("web", "run"), workload("worker", "run")]) + "configs: {port: '80'}\n";
    cluster.apply(&text);
    cluster.wait_for_state("web", "Running(Ok)");
    let typed = ["-k".to_owned(), "-s".to_owned(), cluster.url()];
    let complete = |words: &[&str]| candidates(&cluster, &typed, words);
    assert_eq!(complete(&["get", "workload", "w"]), ["web", "worker"]);
    assert_eq!(complete(&["delete", "workload", "web", "wo"]), ["worker"]);
    assert_eq!(complete(&["logs", "--follow", "we"]), ["web"]);
    assert_eq!(complete(&["delete", "config", "p"]), ["port"]);
    assert_eq!(complete(&["get", "workload", "-a", "a"]), ["agent_A"]);
    assert_eq!(complete(&["apply", "--agent", ""]), ["agent_A"]);
    assert_eq!(
        complete(&["get", "workload", "-s", "S"]),
        ["Stopping", "Succeeded"]
    );
    assert_eq!(
        complete(&["get", "state", "desiredState.c"]),
        ["desiredState.configs", "desiredState.configs.port"]
    );
    let states = [
        "workloadStates.agent_A.web",
        "workloadStates.agent_A.worker",
    ];
    assert_eq!(
        complete(&["get", "events", "workloadStates.agent_A.w"]),
        states
    );
    assert_eq!(
        complete(&["get", "state", "-o", ""]),
        ["yaml", "json", "manifest"]
    );
    assert_eq!(complete(&["get", "wo"]), ["workload"]);
    let nobody = [
        "-k".to_owned(),
        "-s".to_owned(),
        "http://127.0.0.1:1".to_owned(),
    ];
    assert_eq!(
        candidates(&cluster, &nobody, &["get", "workload", "w"]),
        [""; 0],
        "no server, no names, no message"
    );
}

#[test]
fn each_shell_gets_its_script_and_an_unknown_one_an_error() {
    let cluster = Cluster::prepare();
    let run = |shell: &str, words: &[&str]| {
        let mut command = cluster.bare_ank_command();
        command.env("COMPLETE", shell).args(words);
        cluster.finish(command, "")
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(shell, &[]).success();
        assert!(script.contains("COMPLETE"), "{shell}: {script}");
    }
    for ignored in ["", "0"] {
        assert!(run(ignored, &["--version"]).stdout.starts_with("ank "));
    }
    let output = run("tcsh", &["get", "state"]);
    let text = "error: unknown shell `tcsh`, expected one of `bash`, `elvish`, `fish`, `powershell`, `zsh`";
    assert_eq!((output.code, output.stderr.trim_end()), (2, text));
}
