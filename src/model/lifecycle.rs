//! The `lifecycle:` block of a runtime configuration: when a workload may run, counts as ready, as alive and as gone,
//! how often it is started again, and how far a start is prepared.
//!
//! Thread: none, plain values; read by `main` of `ank`, by `server` and by the agent.
//!
//! A typo must not switch a safety gate off, so an unknown key is an error with its place.

mod update;

pub use update::{OnFailure, Terms, Update};

use super::names::alternatives;
use super::nearest::nearest;
use super::place::{At, Problem};
use super::prepare_level::PrepareLevel;
use super::runtime_config::RUNTIMES;
use super::yaml::{Document, Location, Plain, Yaml, path_text};
use crate::limits::{
    LIFECYCLE_BACKOFF_LOWEST, LIFECYCLE_TIME_MAX, PROBE_PERIOD_LOWEST, PROBE_TEXT_MAX, PROBE_TIMEOUT_MAX,
    SOCKET_PATH_MAX, YAML_CONFIG_MAX, YAML_NODE,
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Key of the block.
pub const KEY: &str = "lifecycle";

/// A checked block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifecycle {
    /// Whether the workload is relevant on its node; evaluated when the agent starts and on updates.
    pub activation: Option<Condition>,
    /// What must hold for it to run, all the time.
    pub precondition: Option<Condition>,
    /// When its dependents may start.
    pub ready: Option<Ready>,
    /// Whether it still works.
    pub alive: Option<Alive>,
    /// The check that must fail before it counts as removed.
    pub gone: Option<Gone>,
    /// How often it is started again.
    pub restart: Option<Restart>,
    /// How far its start is prepared while it waits; the agent's setting without it.
    pub prepare: Option<PrepareLevel>,
    /// How an update to it is staged and judged.
    pub update: Option<Update>,
}

impl Lifecycle {
    /// Whether the engine must give the workload a notify socket.
    #[must_use]
    pub fn wants_notify(&self) -> bool {
        let ready = self.ready.as_ref().is_some_and(|ready| ready.check == Check::Notify);
        ready || self.alive.as_ref().is_some_and(|alive| alive.check == Check::Notify)
    }
}

/// A probe of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The workload sends `READY=1` and `WATCHDOG=1` to its notify socket.
    Notify,
    /// A command inside its container ends with exit code 0.
    Exec(Vec<String>),
    /// A connection to a port can be made.
    Tcp {
        /// Where; the workload itself unless said otherwise.
        host: IpAddr,
        /// Which port.
        port: u16,
    },
    /// A request is answered.
    Http {
        /// Where; the workload itself unless said otherwise.
        host: IpAddr,
        /// Which port.
        port: u16,
        /// Which path is requested.
        path: String,
        /// The status that counts; any from 200 to 399 without it.
        status: Option<u16>,
    },
    /// A connection to a Unix domain socket of the node can be made.
    Unix(String),
    /// A file of the node exists.
    File(String),
}

impl fmt::Display for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notify => formatter.write_str("notify"),
            Self::Exec(command) => write!(formatter, "exec {}", command.first().map_or("", String::as_str)),
            Self::Tcp { host, port } if host.is_loopback() => write!(formatter, "tcp {port}"),
            Self::Tcp { host, port } => write!(formatter, "tcp {host} {port}"),
            Self::Http { port, path, .. } => write!(formatter, "http {port} {path}"),
            Self::Unix(path) => write!(formatter, "unix {path}"),
            Self::File(path) => write!(formatter, "file {path}"),
        }
    }
}

/// How a check is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Before the first one.
    pub initial_delay: Duration,
    /// From the end of one to the next.
    pub period: Duration,
    /// Longest wait for one.
    pub timeout: Duration,
}

/// When dependents may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// What must hold.
    pub check: Check,
    /// How it is repeated.
    pub pace: Pace,
    /// How often in a row it must hold.
    pub success_threshold: u32,
    /// `None` waits for ever.
    pub deadline: Option<Duration>,
    /// What follows when it is over.
    pub on_deadline: OnDeadline,
}

/// What follows from a missed deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeadline {
    /// The start failed.
    Fail,
    /// Probing goes on.
    Wait,
}

/// Whether it still works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alive {
    /// What must hold.
    pub check: Check,
    /// How it is repeated.
    pub pace: Pace,
    /// How often in a row it must fail.
    pub failure_threshold: u32,
    /// What follows then.
    pub action: AliveAction,
}

/// What follows when it does not work any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliveAction {
    /// It is stopped and has failed; its restart policy decides.
    Restart,
    /// It is only reported.
    Report,
}

/// When it counts as removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// What must fail.
    pub check: Check,
    /// How it is repeated.
    pub pace: Pace,
    /// When the delete counts as failed; `None` never.
    pub deadline: Option<Duration>,
}

/// How often it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Bound of the first delay.
    pub backoff: Duration,
    /// Bound of all delays.
    pub backoff_max: Duration,
    /// Starts without success in a row; `None` has no limit.
    pub max_restarts: Option<u32>,
    /// Being ready for this long begins a new count.
    pub window: Duration,
}

/// Entries that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    /// A path of the node that must exist.
    pub path_exists: Option<String>,
    /// A path of the node that must not exist.
    pub path_missing: Option<String>,
    /// Tags that the agent must have been started with.
    pub tags: BTreeMap<String, String>,
}

impl Condition {
    /// The paths it is about.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.path_exists.iter().chain(&self.path_missing).map(String::as_str)
    }

    /// The first entry that does not hold, as text; `None` when all hold. `exists` is `None` for a path that does
    /// not answer, which does not hold either.
    #[must_use]
    pub fn unmet(&self, exists: impl Fn(&str) -> Option<bool>, tags: &BTreeMap<String, String>) -> Option<String> {
        let both = [(&self.path_exists, true, "does not exist"), (&self.path_missing, false, "exists")];
        for (path, wanted, otherwise) in both {
            let Some(path) = path else { continue };
            match exists(path) {
                Some(found) if found == wanted => {}
                Some(_) => return Some(format!("{path} {otherwise}")),
                None => return Some(format!("{path} does not answer")),
            }
        }
        let wrong = self.tags.iter().find(|(key, value)| tags.get(*key) != Some(*value))?;
        Some(match tags.get(wrong.0) {
            Some(other) => format!("tag {} is '{other}', not '{}'", wrong.0, wrong.1),
            None => format!("the agent has no tag {}", wrong.0),
        })
    }
}

/// A block is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LifecycleError {
    /// Path of the field inside the runtime configuration, empty when its text cannot be read at all.
    pub path: String,
    /// What is wrong, with a suggestion where there is one.
    pub message: String,
    /// Where in the runtime configuration.
    pub location: Option<Location>,
}

impl fmt::Display for LifecycleError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(formatter, "{}: ", self.path)?;
        }
        formatter.write_str(&self.message)?;
        self.location.map_or(Ok(()), |at| write!(formatter, " ({at} of runtimeConfig)"))
    }
}

// --------------------------------------------------------------- reading it

const BLOCK_KEYS: [&str; 8] = ["activation", "precondition", "ready", "alive", "gone", "restart", "prepare", "update"];
const CHECK_KEYS: [&str; 6] = ["notify", "exec", "tcp", "http", "unix", "file"];
const CONDITION_KEYS: [&str; 3] = ["pathExists", "pathMissing", "tagEquals"];
const TCP_KEYS: [&str; 2] = ["port", "host"];
const HTTP_KEYS: [&str; 4] = ["port", "path", "status", "host"];
const READY_KEYS: [&str; 6] =
    ["initialDelayMs", "periodMs", "timeoutMs", "successThreshold", "deadlineMs", "onDeadline"];
const ALIVE_KEYS: [&str; 4] = ["periodMs", "timeoutMs", "failureThreshold", "action"];
const GONE_KEYS: [&str; 3] = ["periodMs", "timeoutMs", "deadlineMs"];
const RESTART_KEYS: [&str; 4] = ["backoffMs", "backoffMaxMs", "maxRestarts", "windowMs"];
/// With `notify` nothing is probed, so there is no pace.
const NOTIFY_READY_KEYS: [&str; 2] = ["deadlineMs", "onDeadline"];
const NOTIFY_ALIVE_KEYS: [&str; 2] = ["timeoutMs", "action"];

/// The error when there is too much to read.
const TOO_MANY_TEXTS: &str = "too many and too large runtime configurations to look for the block; use smaller ones or \
                              several updates";

/// Reads the block of a runtime configuration; `None` when it has none, or the runtime is not one that has it.
///
/// # Errors
/// The first thing that is not as it should be.
// [impl->swdd~lifecycle-block-is-checked~1]
pub fn of_config(runtime: &str, config: &str) -> Result<Option<Lifecycle>, LifecycleError> {
    let mut unbounded = usize::MAX;
    of_config_within(runtime, config, &mut unbounded)
}

/// Reads the block of one of many runtime configurations, which together may become `left` bytes: all requests wait
/// until all are read.
///
/// # Errors
/// As [`of_config`], or when they become more.
pub fn of_config_within(runtime: &str, config: &str, left: &mut usize) -> Result<Option<Lifecycle>, LifecycleError> {
    if !RUNTIMES.contains(&runtime) || !may_have_block(config) {
        return Ok(None);
    }
    let read = if *left > 0 { Some(Document::read(config, YAML_CONFIG_MAX)) } else { None };
    let size = match &read {
        None | Some(Err(_)) => config.len().saturating_mul(YAML_NODE / 2).min(YAML_CONFIG_MAX),
        Some(Ok(document)) => document.size(),
    };
    *left = left.saturating_sub(size);
    let unplaced = |message: String| LifecycleError { path: String::new(), message, location: None };
    let document = match read {
        None => return Err(unplaced(TOO_MANY_TEXTS.to_owned())),
        Some(Ok(document)) => document,
        Some(Err(error)) if config.contains(KEY) => {
            let message = format!("the runtime configuration cannot be read: {}", error.message);
            return Err(LifecycleError { location: error.location, ..unplaced(message) });
        }
        Some(Err(_)) => return Ok(None), // Its engine will report it.
    };
    let root = At::root(document.root());
    let Some(block) = root.optional(KEY) else { return check_misspelt(&root).map_err(|it| located(it, &document)) };
    let lifecycle = Reader { runtime, root: &root }.block(&block).map_err(|problem| located(problem, &document))?;
    Ok(Some(lifecycle))
}

fn located(problem: Problem, document: &Document<'_>) -> LifecycleError {
    let Problem { path, message } = problem;
    let location = document.locate_key(&path).or_else(|| document.locate(&path));
    LifecycleError { path: path_text(&path), message, location }
}

/// Whether there can be a block, perhaps under a misspelt key. Most configurations have none and need not be read.
fn may_have_block(config: &str) -> bool {
    let is_half = |word: &[u8]| word.eq_ignore_ascii_case(b"life") || word.eq_ignore_ascii_case(b"cycle");
    config.as_bytes().windows(4).any(is_half) || config.as_bytes().windows(5).any(is_half)
}

/// The block under another spelling would be ignored, with all its gates.
fn check_misspelt(root: &At<'_>) -> Result<Option<Lifecycle>, Problem> {
    let Yaml::Map(entries) = root.node else { return Ok(None) };
    let spelt = entries.iter().filter_map(|(key, _)| key.scalar()).find(|key| nearest(key, [KEY]).is_some());
    match spelt {
        Some(key) => root.child(key, root.node).problem(format!("unknown key, did you mean '{KEY}'?")),
        None => Ok(None),
    }
}

struct Reader<'a> {
    runtime: &'a str,
    root: &'a At<'a>,
}

impl Reader<'_> {
    fn block(&self, at: &At<'_>) -> Result<Lifecycle, Problem> {
        known_keys(at, &[&BLOCK_KEYS])?;
        let condition = |key| at.optional(key).map(|at| condition(&at)).transpose();
        let lifecycle = Lifecycle {
            activation: condition("activation")?,
            precondition: condition("precondition")?,
            ready: at.optional("ready").map(|at| self.ready(&at)).transpose()?,
            alive: at.optional("alive").map(|at| self.alive(&at)).transpose()?,
            gone: at.optional("gone").map(|at| self.gone(&at)).transpose()?,
            restart: at.optional("restart").map(|at| restart(&at)).transpose()?,
            prepare: at.optional("prepare").map(|at| prepare(&at)).transpose()?,
            update: at.optional("update").map(|at| update::read(&at)).transpose()?,
        };
        if lifecycle.wants_notify() {
            self.check_notify(at)?;
        }
        Ok(lifecycle)
    }

    /// Podman needs these options for itself when a workload notifies.
    fn check_notify(&self, at: &At<'_>) -> Result<(), Problem> {
        if self.runtime != "podman" {
            let text = format!("'notify' is for the runtime podman only, this is {}", self.runtime);
            return at.problem(text);
        }
        let Some(options) = self.root.optional("commandOptions") else { return Ok(()) };
        let Yaml::List(texts) = options.node else { return Ok(()) };
        let taken = |text: &&str| ["--sdnotify", "--pidfile"].contains(&text.split('=').next().unwrap_or_default());
        match texts.iter().filter_map(Yaml::scalar).find(taken) {
            Some(option) => options.problem(format!("'{option}' cannot be used together with 'notify'; leave it out")),
            None => Ok(()),
        }
    }

    fn ready(&self, at: &At<'_>) -> Result<Ready, Problem> {
        let check = self.check(at, &READY_KEYS, &NOTIFY_READY_KEYS)?;
        let deadline = milliseconds(at, "deadlineMs", 30_000, 0)?;
        let on_deadline = at.optional("onDeadline").map(|at| {
            at.member("FAIL or WAIT", |text| match text {
                "FAIL" => Some(OnDeadline::Fail),
                "WAIT" => Some(OnDeadline::Wait),
                _ => None,
            })
        });
        Ok(Ready {
            pace: pace(at, &check, 500, 1_000)?,
            check,
            success_threshold: threshold(at, "successThreshold", 1)?,
            deadline: (!deadline.is_zero()).then_some(deadline),
            on_deadline: on_deadline.transpose()?.unwrap_or(OnDeadline::Fail),
        })
    }

    fn alive(&self, at: &At<'_>) -> Result<Alive, Problem> {
        let check = self.check(at, &ALIVE_KEYS, &NOTIFY_ALIVE_KEYS)?;
        let notified = check == Check::Notify;
        if notified {
            at.required("timeoutMs")?; // There is no time that suits many.
        }
        let action = at.optional("action").map(|at| {
            at.member("RESTART or REPORT", |text| match text {
                "RESTART" => Some(AliveAction::Restart),
                "REPORT" => Some(AliveAction::Report),
                _ => None,
            })
        });
        Ok(Alive {
            pace: pace(at, &check, 5_000, 1_000)?,
            check,
            failure_threshold: if notified { 1 } else { threshold(at, "failureThreshold", 3)? },
            action: action.transpose()?.unwrap_or(AliveAction::Restart),
        })
    }

    fn gone(&self, at: &At<'_>) -> Result<Gone, Problem> {
        let check = self.check(at, &GONE_KEYS, &[])?;
        if matches!(check, Check::Exec(_) | Check::Notify) {
            let kind = if check == Check::Notify { "notify" } else { "exec" };
            let text = format!("'{kind}' needs the container, which is gone then; use tcp, http, unix or file");
            return at.problem(text);
        }
        let deadline = milliseconds(at, "deadlineMs", 10_000, 0)?;
        Ok(Gone { pace: pace(at, &check, 200, 1_000)?, check, deadline: (!deadline.is_zero()).then_some(deadline) })
    }

    /// Exactly one check; besides it only keys of `others`, or of `with_notify` when it is that one.
    fn check(&self, at: &At<'_>, others: &[&'static str], with_notify: &[&'static str]) -> Result<Check, Problem> {
        known_keys(at, &[&CHECK_KEYS, others])?;
        let mut found = CHECK_KEYS.into_iter().filter(|key| at.node.get(key).is_some());
        let Some(kind) = found.next() else {
            return at.problem("one of notify, exec, tcp, http, unix or file is needed");
        };
        if let Some(second) = found.next() {
            return at.problem(format!("'{kind}' and '{second}' are both there, only one can be"));
        }
        let check = check(kind, &at.required(kind)?)?;
        let meaningless = |key: &&&str| !with_notify.contains(*key) && at.node.get(key).is_some();
        match others.iter().find(meaningless) {
            Some(key) if check == Check::Notify => {
                at.child(key, at.node).problem("it means nothing together with 'notify'; leave it out")
            }
            _ => Ok(check),
        }
    }
}

fn check(kind: &str, at: &At<'_>) -> Result<Check, Problem> {
    Ok(match kind {
        "notify" => match at.node {
            Yaml::Plain(Plain::Boolean, text) if text == "true" => Check::Notify,
            _ => return at.expected("true"),
        },
        "exec" => {
            let command: Vec<String> =
                at.items()?.map(|item| item.string().map(str::to_owned)).collect::<Result<_, _>>()?;
            if command.is_empty() {
                return at.problem("an empty list found, expected a command");
            }
            Check::Exec(command)
        }
        "tcp" => {
            known_keys(at, &[&TCP_KEYS])?;
            Check::Tcp { host: host(at)?, port: port(at)? }
        }
        "http" => {
            known_keys(at, &[&HTTP_KEYS])?;
            let status = at.optional("status").map(|at| integer(&at, 100, 599)).transpose()?;
            Check::Http {
                host: host(at)?,
                port: port(at)?,
                path: url_path(at)?,
                status: status.and_then(|status| u16::try_from(status).ok()),
            }
        }
        "unix" => {
            let path = absolute_path(at)?;
            if path.len() > SOCKET_PATH_MAX {
                return at.problem(format!("a path of more than {SOCKET_PATH_MAX} bytes cannot be that of a socket"));
            }
            Check::Unix(path)
        }
        _ => Check::File(absolute_path(at)?),
    })
}

fn host(at: &At<'_>) -> Result<IpAddr, Problem> {
    let Some(host) = at.optional("host") else { return Ok(IpAddr::from([127, 0, 0, 1])) };
    match host.string()? {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        text => text.parse().or_else(|_| host.problem(format!("'{text}' is no IP address; names are not looked up"))),
    }
}

fn port(at: &At<'_>) -> Result<u16, Problem> {
    let port = integer(&at.required("port")?, 1, u64::from(u16::MAX))?;
    Ok(u16::try_from(port).unwrap_or_default()) // It is in the range.
}

fn url_path(at: &At<'_>) -> Result<String, Problem> {
    let Some(path) = at.optional("path") else { return Ok("/".to_owned()) };
    let text = path.string()?;
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    if !text.starts_with('/') || !printable || text.len() > PROBE_TEXT_MAX {
        return path.problem("expected a path that begins with '/' and has no blanks");
    }
    Ok(text.to_owned())
}

fn absolute_path(at: &At<'_>) -> Result<String, Problem> {
    let text = at.string()?;
    if !text.starts_with('/') || text.contains('\0') || text.len() > PROBE_TEXT_MAX {
        return at.problem(format!("{} found, expected an absolute path of the node", at.node.describe()));
    }
    Ok(text.to_owned())
}

fn pace(at: &At<'_>, check: &Check, period_ms: u64, timeout_ms: u64) -> Result<Pace, Problem> {
    let lowest = u64::try_from(PROBE_PERIOD_LOWEST.as_millis()).unwrap_or_default();
    // Between two notifications nothing is kept waiting.
    let longest = if *check == Check::Notify { LIFECYCLE_TIME_MAX } else { PROBE_TIMEOUT_MAX };
    Ok(Pace {
        initial_delay: milliseconds(at, "initialDelayMs", 0, 0)?,
        period: milliseconds(at, "periodMs", period_ms, lowest)?,
        timeout: milliseconds_within(at, "timeoutMs", timeout_ms, lowest, longest)?,
    })
}

fn restart(at: &At<'_>) -> Result<Restart, Problem> {
    known_keys(at, &[&RESTART_KEYS])?;
    let lowest = u64::try_from(LIFECYCLE_BACKOFF_LOWEST.as_millis()).unwrap_or_default();
    let max_restarts = at.optional("maxRestarts").map(|at| integer(&at, 0, u64::from(u32::MAX))).transpose()?;
    Ok(Restart {
        backoff: milliseconds(at, "backoffMs", 500, lowest)?,
        backoff_max: milliseconds(at, "backoffMaxMs", 300_000, lowest)?,
        max_restarts: max_restarts.and_then(|count| u32::try_from(count).ok()),
        window: milliseconds(at, "windowMs", 60_000, 0)?,
    })
}

fn prepare(at: &At<'_>) -> Result<PrepareLevel, Problem> {
    at.member(&alternatives(PrepareLevel::TEXTS), PrepareLevel::parse)
}

fn condition(at: &At<'_>) -> Result<Condition, Problem> {
    known_keys(at, &[&CONDITION_KEYS])?;
    let mut condition = Condition {
        path_exists: at.optional("pathExists").map(|at| absolute_path(&at)).transpose()?,
        path_missing: at.optional("pathMissing").map(|at| absolute_path(&at)).transpose()?,
        tags: BTreeMap::new(),
    };
    if let Some(tags) = at.optional("tagEquals") {
        for (key, value) in tags.entries()? {
            condition.tags.insert(key.to_owned(), value.text()?.to_owned());
        }
    }
    if condition == Condition::default() {
        return at.problem("at least one of pathExists, pathMissing or tagEquals is needed");
    }
    Ok(condition)
}

fn known_keys(at: &At<'_>, known: &[&[&'static str]]) -> Result<(), Problem> {
    let known = || known.iter().flat_map(|keys| keys.iter().copied());
    for (key, value) in at.entries()? {
        if !known().any(|one| one == key) {
            let meant = nearest(key, known()).map_or_else(
                || format!("; known are {}", known().collect::<Vec<_>>().join(", ")),
                |name| format!(", did you mean '{name}'?"),
            );
            return value.problem(format!("unknown key{meant}"));
        }
    }
    Ok(())
}

fn threshold(at: &At<'_>, key: &str, default: u32) -> Result<u32, Problem> {
    let Some(count) = at.optional(key) else { return Ok(default) };
    Ok(u32::try_from(integer(&count, 1, 1_000_000)?).unwrap_or(default))
}

fn milliseconds(at: &At<'_>, key: &str, default: u64, lowest: u64) -> Result<Duration, Problem> {
    milliseconds_within(at, key, default, lowest, LIFECYCLE_TIME_MAX)
}

fn milliseconds_within(
    at: &At<'_>,
    key: &str,
    default: u64,
    lowest: u64,
    longest: Duration,
) -> Result<Duration, Problem> {
    let highest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    let value = at.optional(key).map(|at| integer(&at, lowest, highest)).transpose()?;
    Ok(Duration::from_millis(value.unwrap_or(default)))
}

fn integer(at: &At<'_>, lowest: u64, highest: u64) -> Result<u64, Problem> {
    let number = match at.node {
        Yaml::Plain(Plain::Integer, text) => text.parse().ok(),
        _ => None,
    };
    match number {
        Some(number) if (lowest..=highest).contains(&number) => Ok(number),
        _ => at.expected(&format!("a whole number from {lowest} to {highest}")),
    }
}

/// The line of a manifest where `line` of a runtime configuration stands that is written there as a block of text
/// below `config_path`; `None` when it is written differently. Both are counted from 1.
#[must_use]
pub fn line_in_manifest(manifest: &str, begins: Location, config: &str, line: usize) -> Option<usize> {
    let wanted = config.lines().nth(line.checked_sub(1)?)?.trim();
    // A block begins in the line after its mark, or later: empty lines at its beginning do not count.
    let first = begins.line + line;
    let is_it = |number: &usize| manifest.lines().nth(number - 1).is_some_and(|text| text.trim() == wanted);
    (first..first + 4).find(is_it)
}

#[cfg(test)]
mod tests;
