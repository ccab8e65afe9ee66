//! A scripted container engine that answers the podman and nerdctl command lines the agent uses.
//!
//! Tests put a link named `podman` or `nerdctl` to this program first into the `PATH` of an agent.
//! The containers are real processes that outlive the caller, so pids, exit codes, adoption and
//! signals behave as with the real engine, while `script.json` makes any single command slow,
//! failing, hanging or talkative.
//!
//! Thread: one process per command, `main` only; `__monitor` and `__container` are the processes of
//! one container.
//! Owns: the folder named by `FAKE_ENGINE_DIR` (see `store.rs`). Takes: argv and `script.json`.
//! Gives: stdout, stderr, exit code and a line per start and end in `calls.log`.

#![allow(unreachable_pub)]
// Its files use each other, and nothing else uses them.

// A program of its own, outside of the rules for our programs.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod container;
mod images;
mod pods;
mod script;
mod store;
mod template;

use std::env;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::exit;

use arguments::Invocation;
use script::Script;
use serde_json::json;
use store::Store;

/// Exit code podman uses for its own errors.
const ENGINE_ERROR: i32 = 125;

/// What one command answers.
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn ok(stdout: impl Into<String>) -> Self {
        Self {
            code: 0,
            stdout: stdout.into(),
            stderr: String::new(),
        }
    }

    fn error(code: i32, text: impl AsRef<str>) -> Self {
        Self {
            code,
            stdout: String::new(),
            stderr: format!("Error: {}\n", text.as_ref()),
        }
    }
}

fn main() {
    let Some(dir) = env::var_os("FAKE_ENGINE_DIR").map(PathBuf::from) else {
        eprintln!("Error: FAKE_ENGINE_DIR is not set");
        exit(ENGINE_ERROR);
    };
    let store = Store::new(dir);
    let argv: Vec<String> = env::args_os()
        .skip(1)
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    match argv.first().map(String::as_str) {
        Some("__monitor") => return container::monitor(&store, &argv[1]),
        Some("__container") => container::live(&store, &argv[1]),
        _ => {}
    }

    store.log_start(&argv);
    let invocation = arguments::parse(&argv);
    let answer = answer(&store, &invocation);
    // A caller that closed its end early is the caller's business, not a reason to fail.
    let _ = std::io::stdout().write_all(answer.stdout.as_bytes());
    let _ = std::io::stderr().write_all(answer.stderr.as_bytes());
    store.log_end(answer.code);
    exit(answer.code);
}

/// Applies the first matching rule of the script, then the command itself unless the rule replaced
/// it.
fn answer(store: &Store, invocation: &Invocation) -> Answer {
    let workload = invocation.workload(store);
    let image = invocation.image();
    let Some(rule) =
        Script::load(store).take_rule(store, &invocation.command, workload.as_deref(), image)
    else {
        return perform(store, invocation, None, false);
    };
    script::wait_for_rule(store, &rule);
    if !rule.replaces_command() {
        return perform(store, invocation, rule.behave.as_deref(), false);
    }
    let mut result = if rule.perform {
        perform(store, invocation, rule.behave.as_deref(), false)
    } else if rule.leaves_container {
        perform(store, invocation, rule.behave.as_deref(), true)
    } else {
        Answer::ok("")
    };
    script::flood(&rule);
    result.code = rule.exit.unwrap_or(0);
    if !rule.perform {
        result.stdout.clear();
    }
    result.stdout.push_str(rule.stdout.as_deref().unwrap_or(""));
    result.stderr.push_str(rule.stderr.as_deref().unwrap_or(""));
    result
}

/// The command as podman would do it. `only_create` leaves a `run` after the creation, as a failed
/// start does.
fn perform(
    store: &Store,
    invocation: &Invocation,
    behave: Option<&str>,
    only_create: bool,
) -> Answer {
    match invocation.command.as_str() {
        "--version" | "-v" => Answer::ok("podman version 4.3.1\n"),
        "run" => run(store, invocation, behave, only_create),
        "create" => run(store, invocation, behave, true),
        "init" => each_container(invocation, store, |id| initialise(store, id)),
        "start" => start(store, invocation),
        "image exists" | "image inspect" if image_is_there(invocation) => Answer::ok(""),
        "image exists" | "image inspect" => Answer::error(1, ""),
        "pull" if image_is_there(invocation) => {
            images::pull(store, invocation.image().unwrap_or_default());
            Answer::ok("")
        }
        "pull" => Answer::error(
            ENGINE_ERROR,
            no_such_image(invocation.image().unwrap_or_default()),
        ),
        "images" => images::list(store, invocation),
        "untag" => images::untag(store, invocation),
        "rmi" => images::remove(store, invocation),
        "ps" => list(store, invocation),
        "kube play" => pods::play(store, &invocation.input, only_create),
        "kube down" => pods::down(store, &invocation.input),
        "pod ls" => pods::list(store),
        "pod rm" => pods::remove(store, invocation),
        "volume create" | "volume rm" | "volume inspect" | "volume ls" => {
            pods::volume(store, invocation)
        }
        "inspect" if is_nerdctl() => nerdctl_inspect(store, invocation),
        "stop" => each_container(invocation, store, |id| {
            container::stop(store, id, invocation.stop_seconds())
        }),
        "rm" => each_container(invocation, store, |id| {
            remove(store, id, invocation.flag(&["-f", "--force"]))
        }),
        "pause" => each_container(invocation, store, |id| {
            container::set_paused(store, id, true)
        }),
        "unpause" => each_container(invocation, store, |id| {
            container::set_paused(store, id, false)
        }),
        "container inspect" => inspect(store, invocation),
        "kill" => each_container(invocation, store, |id| container::kill(store, id)),
        "logs" => logs(store, invocation),
        other => Answer::error(
            ENGINE_ERROR,
            format!("unrecognized command `podman {other}`"),
        ),
    }
}

fn run(store: &Store, invocation: &Invocation, behave: Option<&str>, only_create: bool) -> Answer {
    let Some(image) = invocation.image() else {
        return Answer::error(ENGINE_ERROR, "an image is required");
    };
    let Some(behaviour) = container::Behaviour::parse(behave.unwrap_or(image)) else {
        return Answer::error(ENGINE_ERROR, no_such_image(image));
    };
    images::pull(store, image);
    let id = match store.create(invocation, image, &behaviour) {
        Ok(id) => id,
        Err(text) => return Answer::error(ENGINE_ERROR, text),
    };
    if only_create {
        return Answer::ok(format!("{id}\n"));
    }
    match container::launch(store, &id) {
        Ok(()) => Answer::ok(format!("{id}\n")),
        Err(text) => Answer::error(126, text),
    }
}

fn no_such_image(image: &str) -> String {
    format!("initializing source docker://{image}:latest: pinging container registry: no such host")
}

fn image_is_there(invocation: &Invocation) -> bool {
    invocation
        .image()
        .is_some_and(|image| container::Behaviour::parse(image).is_some())
}

fn initialise(store: &Store, id: &str) -> Result<(), (i32, String)> {
    let mut fits = false;
    store.change(id, |container| {
        fits = container.state == "created";
        if fits {
            "initialized".clone_into(&mut container.state);
        }
    });
    if fits {
        Ok(())
    } else {
        Err((
            ENGINE_ERROR,
            format!("container {id} has already been created in runtime"),
        ))
    }
}

fn start(store: &Store, invocation: &Invocation) -> Answer {
    each_container(invocation, store, |id| {
        let running = store
            .read(id)
            .is_some_and(|container| container.state == "running");
        if running {
            Ok(())
        } else {
            container::launch(store, id).map_err(|text| (ENGINE_ERROR, text))
        }
    })
}

/// Does `action` for every container named; a missing one is an error unless `--ignore` is given.
fn each_container(
    invocation: &Invocation,
    store: &Store,
    action: impl Fn(&str) -> Result<(), (i32, String)>,
) -> Answer {
    let mut stdout = String::new();
    for name in &invocation.positional {
        match store.find(name) {
            Some(container) => match action(&container.id) {
                Ok(()) => stdout.push_str(&format!("{name}\n")),
                Err((code, text)) => return Answer::error(code, text),
            },
            None if invocation.flag(&["--ignore", "-i"]) => {}
            None => {
                let code = if invocation.command == "rm" {
                    1
                } else {
                    ENGINE_ERROR
                };
                let text =
                    format!("no container with name or ID \"{name}\" found: no such container");
                return Answer::error(code, text);
            }
        }
    }
    Answer::ok(stdout)
}

fn remove(store: &Store, id: &str, force: bool) -> Result<(), (i32, String)> {
    let Some(container) = store.read(id) else {
        return Ok(());
    };
    if container.is_active() && !force {
        let reason = "running or paused containers cannot be removed without force: container state improper";
        return Err((
            2,
            format!(
                "cannot remove container {id} as it is {} - {reason}",
                container.state
            ),
        ));
    }
    if container.is_active() {
        container::kill(store, id)?;
    }
    store.remove(id);
    Ok(())
}

/// Whether the program was called by the name of containerd's command line.
fn is_nerdctl() -> bool {
    env::args_os()
        .next()
        .is_some_and(|name| PathBuf::from(name).ends_with("nerdctl"))
}

fn listed(store: &Store, invocation: &Invocation) -> Vec<store::Container> {
    let all = invocation.flag(&["--all", "-a"]);
    let containers = store.list().into_iter();
    let containers = containers.filter(|container| all || container.state == "running");
    containers
        .filter(|container| {
            invocation
                .filters()
                .iter()
                .all(|filter| container.matches(filter))
        })
        .collect()
}

/// The answer with a line for each row, as the template `format` renders it.
fn rendered(format: &str, rows: impl IntoIterator<Item = serde_json::Value>) -> Answer {
    let mut lines = String::new();
    for row in rows {
        match template::render(format, &row) {
            Ok(line) => lines.push_str(&format!("{line}\n")),
            Err(text) => return Answer::error(ENGINE_ERROR, text),
        }
    }
    Answer::ok(lines)
}

/// Answers for the containers that exist and fails when one is missing, as nerdctl does.
fn nerdctl_inspect(store: &Store, invocation: &Invocation) -> Answer {
    let found: Vec<_> = invocation
        .positional
        .iter()
        .filter_map(|id| store.find(id))
        .collect();
    let format = invocation
        .option(&["--format", "-f"])
        .unwrap_or("{{json .}}");
    let mut answer = rendered(
        format,
        found.iter().map(store::Container::as_nerdctl_inspects),
    );
    if found.len() < invocation.positional.len() {
        answer.code = 1;
        answer.stderr = "level=fatal msg=\"1 errors: [no such container]\"\n".to_owned();
    }
    answer
}

fn list(store: &Store, invocation: &Invocation) -> Answer {
    let rows = listed(store, invocation).into_iter();
    match invocation.option(&["--format"]) {
        Some("json") => {
            let rows: Vec<_> = rows.map(|container| container.as_listed()).collect();
            Answer::ok(format!(
                "{}\n",
                serde_json::to_string_pretty(&rows).expect("plain values serialise")
            ))
        }
        format => rendered(
            format.unwrap_or("{{.ID}}"),
            rows.map(|container| container.as_reported()),
        ),
    }
}

/// Answers the one question that is asked of a single container.
fn inspect(store: &Store, invocation: &Invocation) -> Answer {
    let name = invocation.positional.first().map_or("", String::as_str);
    let format = invocation
        .option(&["--format", "-f"])
        .unwrap_or("{{json .}}");
    match store.find(name) {
        Some(container) => rendered(
            format,
            [json!({ "Config": { "StopTimeout": container.stop_seconds } })],
        ),
        None => Answer::error(
            ENGINE_ERROR,
            format!("inspecting object: no such container {name}"),
        ),
    }
}

/// The lines, each after the same time.
fn with_times(lines: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(lines);
    let mut shown = String::new();
    for line in text.lines() {
        shown.push_str(&format!("2026-01-31T12:00:00.000000000Z {line}\n"));
    }
    shown.into_bytes()
}

/// Prints what the container wrote; with `-f` until it ended.
fn logs(store: &Store, invocation: &Invocation) -> Answer {
    let Some(container) = invocation
        .positional
        .first()
        .and_then(|name| store.find(name))
    else {
        return Answer::error(
            ENGINE_ERROR,
            "no container with this name or ID found: no such container",
        );
    };
    let follow = invocation.flag(&["-f", "--follow"]);
    let has_times = invocation.flag(&["--timestamps"]);
    let mut printed = 0;
    loop {
        let ended = store
            .read(&container.id)
            .is_none_or(|container| container.state != "running");
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(store.log_file(&container.id)) {
            let _ = file.read_to_string(&mut text);
        }
        // The file of a removed container is gone.
        let new = text.as_bytes().get(printed..).unwrap_or_default();
        let shown = if has_times {
            with_times(new)
        } else {
            new.to_vec()
        };
        if std::io::stdout().write_all(&shown).is_err() {
            return Answer::ok("");
        }
        let _ = std::io::stdout().flush();
        printed += new.len();
        if !follow || ended || store.is_gone() {
            return Answer::ok("");
        }
        container::pause();
    }
}
