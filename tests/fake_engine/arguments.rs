//! Splits a podman command line into its parts, as far as the agent and its users need it.
//!
//! Thread: `main`. Owns nothing. Takes: argv. Gives: `Invocation`.

use std::io::Read as _;

use crate::pods;
use crate::store::Store;

/// Options of the supported commands that take their value as a separate argument.
const WITH_VALUE: &[&str] = &[
    "--name",
    "--label",
    "-l",
    "--entrypoint",
    "-e",
    "--env",
    "-v",
    "--volume",
    "-p",
    "--publish",
    "--network",
    "--net",
    "--mount",
    "--stop-timeout",
    "--user",
    "-u",
    "--memory",
    "-m",
    "--filter",
    "--format",
    "--time",
    "-t",
    "--tail",
    "--since",
    "--until",
    "--log-level",
    "--root",
    "--runroot",
    "--storage-driver",
    "--signal",
    "-s",
    "--hostname",
    "--pidfile",
];

/// First words of commands that have two.
const GROUPS: &[&str] = &["container", "image", "kube", "pod", "volume"];

/// One command line: `podman <general options> <command> <options> <positional>`.
pub struct Invocation {
    pub command: String,
    options: Vec<(String, Option<String>)>,
    /// For `run` and `create`: image and command; otherwise container names or ids.
    pub positional: Vec<String>,
    /// What came on stdin, of commands that read a manifest.
    pub input: String,
}

/// Reads `argv` without the program name. Never fails: an unknown option is read as a flag.
pub fn parse(argv: &[String]) -> Invocation {
    let mut command = String::new();
    let mut options = Vec::new();
    let mut positional: Vec<String> = Vec::new();
    let mut words = argv.iter();
    while let Some(word) = words.next() {
        let ends_options = is_create(&command) && !positional.is_empty();
        if ends_options || !word.starts_with('-') {
            if command.is_empty() {
                command.clone_from(word);
            } else {
                positional.push(word.clone());
            }
        } else if let Some((name, value)) = word.split_once('=') {
            options.push((name.to_owned(), Some(value.to_owned())));
        } else if takes_value(&command, word) {
            options.push((word.clone(), words.next().cloned()));
        } else {
            options.push((word.clone(), None));
        }
    }
    if command.is_empty() {
        command = argv.first().cloned().unwrap_or_default();
    }
    // Commands of two words, such as `podman container <command>`.
    if GROUPS.contains(&command.as_str()) && !positional.is_empty() {
        command = format!("{command} {}", positional.remove(0));
    }
    let input = if command.starts_with("kube ") {
        read_input()
    } else {
        String::new()
    };
    Invocation {
        command,
        options,
        positional,
        input,
    }
}

fn read_input() -> String {
    let mut text = String::new();
    let _ = std::io::stdin().read_to_string(&mut text); // What is no text is no manifest.
    text
}

/// Returns whether the next word is the value of an option. `-t` is a time for `stop`, but means a
/// terminal for `run`.
fn takes_value(command: &str, option: &str) -> bool {
    WITH_VALUE.contains(&option) && !(is_create(command) && option == "-t")
}

/// Whether a command makes a container.
fn is_create(command: &str) -> bool {
    matches!(command, "run" | "create")
}

impl Invocation {
    /// The last value given for any of `names`.
    pub fn option(&self, names: &[&str]) -> Option<&str> {
        let found = self
            .options
            .iter()
            .rev()
            .find(|(name, _)| names.contains(&name.as_str()));
        found.and_then(|(_, value)| value.as_deref())
    }

    pub fn flag(&self, names: &[&str]) -> bool {
        self.options.iter().any(|(name, value)| {
            names.contains(&name.as_str()) && value.as_deref() != Some("false")
        })
    }

    /// All labels in the order given; a later one wins, as in podman.
    pub fn labels(&self) -> Vec<(String, String)> {
        let texts = self.values(&["--label", "-l"]);
        texts
            .map(|text| text.split_once('=').unwrap_or((text, "")))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    pub fn filters(&self) -> Vec<&str> {
        self.values(&["--filter"]).collect()
    }

    pub fn image(&self) -> Option<&str> {
        let is_of_image = matches!(&*self.command, "pull" | "image exists" | "image inspect");
        if !is_create(&self.command) && !is_of_image {
            return None;
        }
        self.positional.first().map(String::as_str)
    }

    /// The workload this command is about: from the label of a `run`, otherwise from the container
    /// named.
    pub fn workload(&self, store: &Store) -> Option<String> {
        if is_create(&self.command) {
            let mut labels = self.labels().into_iter();
            let (_, name) = labels.rfind(|(key, _)| key == "name")?;
            return name.split('.').next().map(str::to_owned);
        }
        if matches!(
            self.command.as_str(),
            "start" | "init" | "stop" | "rm" | "kill" | "logs"
        ) {
            return store.find(self.positional.first()?)?.workload();
        }
        let first = self.positional.first();
        match self.command.as_str() {
            "kube play" | "kube down" => pods::workload_of(&self.input),
            "volume create" | "volume rm" | "volume inspect" => {
                first?.split('.').next().map(str::to_owned)
            }
            "pod rm" => {
                let mut pods = store.pods().into_iter();
                Some(pods.find(|pod| Some(&pod.id) == first)?.name)
            }
            _ => None,
        }
    }

    /// Time limit of a `stop` given on the command line, in seconds.
    pub fn stop_seconds(&self) -> Option<u64> {
        self.option(&["--time", "-t"])
            .and_then(|text| text.parse().ok())
    }

    fn values<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let matching = self
            .options
            .iter()
            .filter(|(name, _)| names.contains(&name.as_str()));
        matching.filter_map(|(_, value)| value.as_deref())
    }
}
