//! The faults a test orders: rules in `script.json`, read again by every command.
//!
//! Thread: `main`. Owns: the counters in `rule_uses.json`. Takes: `script.json`. Gives: the rule
//! for one command.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::container::{LIFETIME_MAX, pause};
use crate::store::Store;

/// One rule. The first rule that matches a command applies to it.
pub struct Rule {
    command: Option<String>,
    workload: Option<String>,
    image: Option<String>,
    /// How often the rule applies; absent means always.
    times: Option<u64>,
    delay: Duration,
    hang: bool,
    /// Waits until the test releases this name.
    hold: Option<String>,
    /// Replaces the image's behaviour of a `run`.
    pub behave: Option<String>,
    pub exit: Option<i32>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Length of a line of these bytes; 0 means no line end at all.
    line_bytes: usize,
    /// Do the command as well, before answering what the rule says.
    pub perform: bool,
    /// A failing `run` that leaves a container which was created, but not started.
    pub leaves_container: bool,
}

impl Rule {
    fn from(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let number = |key: &str| value[key].as_u64().unwrap_or(0);
        let yes = |key: &str| value[key].as_bool().unwrap_or(false);
        Self {
            command: text("command"),
            workload: text("workload"),
            image: text("image"),
            times: value["times"].as_u64(),
            delay: Duration::from_millis(number("delay_ms")),
            hang: yes("hang"),
            hold: text("hold"),
            behave: text("behave"),
            exit: value["exit"]
                .as_i64()
                .and_then(|code| i32::try_from(code).ok()),
            stdout: text("stdout"),
            stderr: text("stderr"),
            stdout_bytes: number("stdout_bytes"),
            stderr_bytes: number("stderr_bytes"),
            line_bytes: usize::try_from(number("line_bytes")).expect("a short line"),
            perform: yes("perform"),
            leaves_container: yes("leaves_container"),
        }
    }

    fn matches(&self, command: &str, workload: Option<&str>, image: Option<&str>) -> bool {
        accepts(&self.command, Some(command))
            && accepts(&self.workload, workload)
            && accepts(&self.image, image)
    }

    /// Returns whether the rule holds the command until the test releases its name.
    fn is_held(&self, store: &Store) -> bool {
        match &self.hold {
            Some(name) => !store.path("released").join(name).exists(),
            None => false,
        }
    }

    /// True when the rule says what to answer, so that the command itself is not done.
    pub fn replaces_command(&self) -> bool {
        let speaks = self.stdout.is_some() || self.stderr.is_some();
        speaks || self.exit.is_some() || self.stdout_bytes > 0 || self.stderr_bytes > 0
    }
}

/// Returns whether a rule that wants this value, or any, applies to the given one.
fn accepts(wanted: &Option<String>, given: Option<&str>) -> bool {
    wanted.is_none() || wanted.as_deref() == given
}

/// The content of `script.json`; a missing file is an empty script.
pub struct Script {
    value: Value,
}

impl Script {
    pub fn load(store: &Store) -> Self {
        let Ok(text) = std::fs::read_to_string(store.path("script.json")) else {
            return Self { value: Value::Null };
        };
        // A test with a broken script must not pass by accident.
        Self {
            value: serde_json::from_str(&text).expect("script.json must be JSON"),
        }
    }

    /// How long the exit code of an ended container stays unknown.
    pub fn exit_record_delay(&self) -> Duration {
        Duration::from_millis(self.value["exit_record_delay_ms"].as_u64().unwrap_or(0))
    }

    /// How long a container made with `--rm` is shown as exited before it is gone.
    pub fn removal_delay(&self) -> Duration {
        Duration::from_millis(self.value["removal_delay_ms"].as_u64().unwrap_or(0))
    }

    /// The first rule that matches and is not used up; counts its use.
    pub fn take_rule(
        &self,
        store: &Store,
        command: &str,
        workload: Option<&str>,
        image: Option<&str>,
    ) -> Option<Rule> {
        let rules = self.value["rules"].as_array()?;
        for (index, value) in rules.iter().enumerate() {
            let rule = Rule::from(value);
            if !rule.matches(command, workload, image) {
                continue;
            }
            match rule.times {
                None => return Some(rule),
                Some(limit) if store.count_use(&index.to_string()) <= limit => return Some(rule),
                Some(_) => {}
            }
        }
        None
    }
}

/// Waits for the rule's delay, until `hold` is released, and without end (at most
/// `LIFETIME_MAX`) when it hangs.
pub fn wait_for_rule(store: &Store, rule: &Rule) {
    let begin = Instant::now();
    while !store.is_gone() {
        let elapsed = begin.elapsed();
        let waits = rule.hang || elapsed < rule.delay || rule.is_held(store);
        if !waits || elapsed >= LIFETIME_MAX {
            return;
        }
        pause();
    }
}

/// Writes the ordered number of bytes to stdout and stderr, or until its reader has ended.
pub fn flood(rule: &Rule) {
    let mut block = [b'x'; 8192];
    if rule.line_bytes > 0 {
        for line in block.chunks_exact_mut(rule.line_bytes) {
            line[rule.line_bytes - 1] = b'\n';
        }
    }
    let mut out = rule.stdout_bytes;
    let mut err = rule.stderr_bytes;
    while out > 0 || err > 0 {
        let out_now = usize::try_from(out.min(block.len() as u64)).expect("at most one block");
        let err_now = usize::try_from(err.min(block.len() as u64)).expect("at most one block");
        let written = std::io::stdout()
            .write_all(&block[..out_now])
            .and(std::io::stderr().write_all(&block[..err_now]));
        if written.is_err() {
            return;
        }
        out -= out_now as u64;
        err -= err_now as u64;
    }
}
