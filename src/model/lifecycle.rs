//! The `lifecycle:` block of a runtime configuration: conditions, the checks ready, alive and gone,
//! limits of restarts, prepared starts, and guarded updates.
//!
//! Thread: none, plain values; read by `main` of `ank`, by `server` and by the agent.
//!
//! A typo must not disable a condition, so an unknown key is an error with its place.

use super::fields::reader::{DocumentKind, Problem, read_part};
use super::fields::{Field, Kind, Object, Text};
use super::names::RUNTIMES;
use super::names::named_enum;
use super::nearest::nearest;
use super::prepare_level::PrepareLevel;
use super::workload::AddCondition;
use super::yaml::{
    self, Content, Location, NODE_BYTES, OTHERS_MAX, Origin, Yaml, YamlError, prefix,
};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Key of the block.
pub const KEY: &str = "lifecycle";

/// A checked block.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// The condition for being relevant on its node; evaluated when the agent starts and on
    /// updates.
    pub activation: Option<Condition>,
    /// The condition for running, evaluated all the time.
    pub precondition: Option<Condition>,
    /// The check that must pass before its dependents start.
    pub ready: Option<Ready>,
    /// The check of a running workload.
    pub alive: Option<Alive>,
    /// The check that must fail before the workload is reported as removed.
    pub gone: Option<Gone>,
    /// Limits of its restarts.
    pub restart: Option<Restart>,
    /// Which other workloads it is restarted with.
    pub restart_with: Option<RestartWith>,
    /// How far its start is prepared; without it the agent's setting applies.
    pub prepare: Option<PrepareLevel>,
    /// How an update to it is staged and evaluated.
    pub update: Option<UpdateBlock>,
}

impl Lifecycle {
    /// Returns whether the engine must give the workload a notify socket.
    pub fn wants_notify(&self) -> bool {
        let ready = self.ready.as_ref().map(|ready| &ready.check);
        let alive = self.alive.as_ref().map(|alive| &alive.check);
        ready == Some(&Check::Notify) || alive == Some(&Check::Notify)
    }

    /// Returns whether the workload is restarted with the dependencies that it needs running.
    pub fn restarts_with_dependencies(&self) -> bool {
        self.restart_with == Some(RestartWith::Dependencies)
    }

    /// Checks what the block says about these dependencies of its workload.
    ///
    /// # Errors
    /// The workload would be restarted with its dependencies, and needs none of them running.
    // [impl->swdd~lifecycle-restart-with-needs-a-dependency~1]
    pub fn check_dependencies(
        &self,
        dependencies: &BTreeMap<String, AddCondition>,
    ) -> Result<(), LifecycleError> {
        let mut conditions = dependencies.values();
        let needs_one_running = conditions.any(|condition| *condition == AddCondition::Running);
        if !self.restarts_with_dependencies() || needs_one_running {
            return Ok(());
        }
        let found = if dependencies.is_empty() {
            "the workload has no dependencies"
        } else {
            "no dependency of the workload has 'ADD_COND_RUNNING'"
        };
        Err(LifecycleError {
            path: format!("{KEY}.{}", RESTART_WITH.name),
            message: format!(
                "{found}, so it would never be restarted; add the workload to restart with to 'dependencies', with 'ADD_COND_RUNNING', or leave this key out"
            ),
            location: None,
        })
    }
}

/// A probe of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The workload sends `READY=1` and `WATCHDOG=1` to its notify socket.
    Notify,
    /// A command inside its container ends with exit code 0.
    Exec(Vec<String>),
    /// A connection to a port can be made.
    Tcp {
        #[serde(deserialize_with = "address")]
        host: IpAddr,
        port: u16,
    },
    /// An HTTP request gets a response.
    Http {
        #[serde(deserialize_with = "address")]
        host: IpAddr,
        port: u16,
        path: String,
        /// The expected status; any from 200 to 399 without it.
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
            Self::Exec(command) => write!(
                formatter,
                "exec {}",
                command.first().map_or("", String::as_str)
            ),
            Self::Tcp { host, port } if host.is_loopback() => write!(formatter, "tcp {port}"),
            Self::Tcp { host, port } => write!(formatter, "tcp {host} {port}"),
            Self::Http { port, path, .. } => write!(formatter, "http {port} {path}"),
            Self::Unix(path) => write!(formatter, "unix {path}"),
            Self::File(path) => write!(formatter, "file {path}"),
        }
    }
}

/// The times of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    /// Delay before the first probe.
    #[serde(rename = "initialDelayMs", deserialize_with = "milliseconds", default)]
    pub initial_delay: Duration,
    /// Delay from the end of one probe to the next.
    #[serde(rename = "periodMs", deserialize_with = "milliseconds")]
    pub period: Duration,
    /// Longest duration of a probe.
    #[serde(rename = "timeoutMs", deserialize_with = "milliseconds")]
    pub timeout: Duration,
}

/// The check that must pass before dependents start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    #[serde(flatten)]
    pub check: Check,
    #[serde(flatten)]
    pub pace: Pace,
    /// Number of successful probes in a row.
    pub success_threshold: u32,
    /// `None` waits forever.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds_or_none")]
    pub deadline: Option<Duration>,
    /// Reaction to a missed deadline.
    #[serde(default)]
    pub on_deadline: OnDeadline,
}

named_enum! {
    /// Reaction to a missed deadline of the check `ready`.
    #[derive(Default)]
    OnDeadline {
        /// The start has failed.
        #[default]
        Fail = "FAIL",
        /// Probing continues.
        Wait = "WAIT",
    }
}

/// The check of a running workload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alive {
    #[serde(flatten)]
    pub check: Check,
    #[serde(flatten)]
    pub pace: Pace,
    /// Number of failed probes in a row.
    pub failure_threshold: u32,
    /// Reaction to that many failed probes.
    #[serde(default)]
    pub action: AliveAction,
}

named_enum! {
    /// Reaction to a failed check `alive`.
    #[derive(Default)]
    AliveAction {
        /// The workload is stopped and has failed; its restart policy applies.
        #[default]
        Restart = "RESTART",
        /// The failure is only reported.
        Report = "REPORT",
    }
}

/// The check that must fail before the workload is reported as removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gone {
    #[serde(flatten)]
    pub check: Check,
    #[serde(flatten)]
    pub pace: Pace,
    /// Time after which the delete has failed; `None` is never.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds_or_none")]
    pub deadline: Option<Duration>,
}

/// Limits of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    /// Bound of the first delay.
    #[serde(rename = "backoffMs", deserialize_with = "milliseconds")]
    pub backoff: Duration,
    /// Bound of all delays.
    #[serde(rename = "backoffMaxMs", deserialize_with = "milliseconds")]
    pub backoff_max: Duration,
    /// Restarts in a row that do not succeed; `None` has no limit.
    pub max_restarts: Option<u32>,
    /// Time of being ready that resets the count.
    #[serde(rename = "windowMs", deserialize_with = "milliseconds")]
    pub window: Duration,
}

named_enum! {
    /// Which other workloads a workload is restarted with.
    RestartWith {
        /// Its dependencies with `ADD_COND_RUNNING`.
        Dependencies = "DEPENDENCIES",
    }
}

named_enum! {
    /// Reaction to a failed update, the strictest first.
    #[derive(Default)]
    OnFailure {
        /// The update is rolled back.
        Rollback = "ROLLBACK",
        /// The update stays.
        #[default]
        Keep = "KEEP",
    }
}

/// The health window of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    /// Time of running, or since success, after which the instance is healthy.
    #[serde(rename = "healthyMs", deserialize_with = "milliseconds")]
    pub healthy: Duration,
    /// Time after which an instance that is not healthy has failed.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds")]
    pub deadline: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            healthy: Duration::from_millis(UPDATE_HEALTHY_MS),
            deadline: Duration::from_millis(UPDATE_DEADLINE_MS),
        }
    }
}

/// How an update is staged, switched and evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateBlock {
    /// How far new instances are prepared before old ones are stopped.
    pub stage: PrepareLevel,
    /// The condition for the switch.
    pub when: Option<Condition>,
    #[serde(flatten)]
    pub terms: Terms,
    /// Reaction to its failure; `None` leaves that to the server's settings.
    pub on_failure: Option<OnFailure>,
}

/// A condition: all its entries must be met.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// A path of the node that must exist.
    pub(crate) path_exists: Option<String>,
    /// A path of the node that must not exist.
    pub(crate) path_missing: Option<String>,
    /// Tags that the agent must have been started with.
    #[serde(rename = "tagEquals", default)]
    pub(crate) tags: BTreeMap<String, String>,
}

impl Condition {
    /// The paths of all entries.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let paths = self.path_exists.iter().chain(&self.path_missing);
        paths.map(String::as_str)
    }

    /// Describes the first entry that is not met; `None` if all are met. `exists` returns `None`
    /// for a path that does not respond: its entry is not met.
    pub fn unmet(
        &self,
        exists: impl Fn(&str) -> Option<bool>,
        tags: &BTreeMap<String, String>,
    ) -> Option<String> {
        if let Some(path) = &self.path_exists {
            match exists(path) {
                Some(true) => {}
                Some(false) => return Some(format!("{path} does not exist")),
                None => return Some(format!("{path} does not answer")),
            }
        }
        if let Some(path) = &self.path_missing {
            match exists(path) {
                Some(false) => {}
                Some(true) => return Some(format!("{path} exists")),
                None => return Some(format!("{path} does not answer")),
            }
        }
        for (key, value) in &self.tags {
            match tags.get(key) {
                Some(found) if found == value => {}
                Some(other) => return Some(format!("tag {key} is '{other}', not '{value}'")),
                None => return Some(format!("the agent has no tag {key}")),
            }
        }
        None
    }
}

/// An error in a runtime configuration or in its `lifecycle:` block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}{}", prefix(path), location.map_or_else(String::new, |at| format!(" ({at} of runtimeConfig)")))]
pub struct LifecycleError {
    /// Path of the field; empty if the text cannot be read at all.
    pub(crate) path: String,
    /// The message, with a suggestion if there is one.
    pub(crate) message: String,
    /// Place in the runtime configuration.
    pub location: Option<Location>,
}

impl LifecycleError {
    pub(super) fn new(
        Problem {
            path,
            message,
            key_at,
            ..
        }: Problem,
    ) -> Self {
        Self {
            path,
            message,
            location: Some(key_at),
        }
    }

    /// The error of the text as a whole.
    fn of_text(message: &str, location: Option<Location>) -> Self {
        Self {
            path: String::new(),
            message: message.to_owned(),
            location,
        }
    }

    /// The error of the node at `path`.
    fn of_node(root: &Yaml, path: &[&str], message: &str) -> Self {
        Self {
            path: path.join("."),
            message: message.to_owned(),
            location: root.entry_at(path).map(|(key, _)| key.at),
        }
    }
}

// ----------------------------------------------------------------- its fields

/// Longest time, in milliseconds: a day. More can only be a mistake.
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Shortest period and timeout of a check, in milliseconds. Faster ones would only cost.
const PERIOD_LOWEST_MS: u64 = 50;
/// Longest timeout of a probe, in milliseconds: it occupies a socket or a process of the engine.
/// Only the watchdog of `notify` may have a longer one.
const TIMEOUT_MAX_MS: u64 = 60_000;
/// Shortest first delay of restarts, in milliseconds. A container needs about that long to start.
const BACKOFF_LOWEST_MS: u64 = 100;
/// Default time that a new instance must run to be healthy, in milliseconds.
const UPDATE_HEALTHY_MS: u64 = 10_000;
/// Default deadline of a new instance, in milliseconds: the pull of an image of some hundred MB may
/// be part of it.
const UPDATE_DEADLINE_MS: u64 = 120_000;

pub(super) const FIELD: Field = Field::new(KEY, Kind::Object(&BLOCK));

pub(super) const BLOCK: Object = Object::named(
    KEY,
    &[
        Field::new("activation", CONDITION),
        Field::new("precondition", CONDITION),
        Field::new("ready", Kind::Object(&READY)),
        Field::new("alive", Kind::Object(&ALIVE)),
        Field::new("gone", Kind::Object(&GONE)),
        Field::new("restart", Kind::Object(&RESTART)),
        RESTART_WITH,
        Field::new("prepare", Kind::Choice(PrepareLevel::TEXTS)),
        Field::new("update", Kind::Object(&UPDATE)),
    ],
);

const CONDITION: Kind = Kind::Object(&Object {
    any_of: &["pathExists", "pathMissing", "tagEquals"],
    ..Object::named(
        "condition",
        &[
            Field::new("pathExists", PATH),
            Field::new("pathMissing", PATH),
            Field::new("tagEquals", Kind::Map(&Kind::Text(Text::Scalar))),
        ],
    )
});

const PATH: Kind = Kind::Text(Text::Path);

const fn number(name: &'static str, lowest: u64, highest: u64, default: u64) -> Field {
    Field::new(name, Kind::Range(lowest, highest, Some(default)))
}

const fn time(name: &'static str, default: u64) -> Field {
    number(name, 0, DAY_MS, default)
}

const fn period(default: u64) -> Field {
    number("periodMs", PERIOD_LOWEST_MS, DAY_MS, default)
}

const fn timeout(highest: u64) -> Field {
    number("timeoutMs", PERIOD_LOWEST_MS, highest, 1000)
}

/// A field for probes. The check `notify` has none, so both exclude each other.
const fn probed(field: Field) -> Field {
    Field {
        not_with: Some(NOTIFY.name),
        ..field
    }
}

const NOTIFY: Field = Field::new("notify", Kind::True);
const EXEC: Field = Field::new("exec", Kind::Command);
const TCP: Field = Field::new("tcp", Kind::Object(&Object::new(&[PORT, HOST])));
const HTTP: Field = Field::new(
    "http",
    Kind::Object(&Object::new(&[
        PORT,
        Field {
            default: Some("/"),
            ..Field::new("path", Kind::Text(Text::UrlPath))
        },
        Field::new("status", Kind::Range(100, 599, None)),
        HOST,
    ])),
);
const UNIX: Field = Field::new("unix", Kind::Text(Text::SocketPath));
const FILE: Field = Field::new("file", PATH);
const PORT: Field = Field::new("port", Kind::Range(1, u16::MAX as u64, None)).required();
const HOST: Field = Field {
    default: Some("localhost"),
    ..Field::new("host", Kind::Text(Text::Address))
};

const READY: Object = Object {
    one_of: &["notify", "exec", "tcp", "http", "unix", "file"],
    ..Object::named(
        "ready",
        &[
            NOTIFY,
            EXEC,
            TCP,
            HTTP,
            UNIX,
            FILE,
            probed(time("initialDelayMs", 0)),
            probed(period(500)),
            probed(timeout(TIMEOUT_MAX_MS)),
            probed(number("successThreshold", 1, 1_000_000, 1)),
            time("deadlineMs", 30_000),
            Field::new("onDeadline", Kind::Choice(OnDeadline::TEXTS)),
        ],
    )
};

const ALIVE: Object = Object {
    one_of: READY.one_of,
    ..Object::named(
        "alive",
        &[
            // It needs the timeout, since no default would suit most workloads.
            Field {
                needs: Some("timeoutMs"),
                ..NOTIFY
            },
            EXEC,
            TCP,
            HTTP,
            UNIX,
            FILE,
            probed(period(5000)),
            timeout(DAY_MS),
            probed(number("failureThreshold", 1, 1_000_000, 3)),
            Field::new("action", Kind::Choice(AliveAction::TEXTS)),
        ],
    )
};

const GONE: Object = Object {
    one_of: &["tcp", "http", "unix", "file"],
    ..Object::named(
        "gone",
        &[
            TCP,
            HTTP,
            UNIX,
            FILE,
            period(200),
            timeout(TIMEOUT_MAX_MS),
            time("deadlineMs", 10_000),
        ],
    )
};

const RESTART: Object = Object::named(
    "restart",
    &[
        number("backoffMs", BACKOFF_LOWEST_MS, DAY_MS, 500),
        number("backoffMaxMs", BACKOFF_LOWEST_MS, DAY_MS, 300_000),
        Field::new("maxRestarts", Kind::Range(0, u32::MAX as u64, None)),
        time("windowMs", 60_000),
    ],
);

const RESTART_WITH: Field = Field::new("restartWith", Kind::Choice(RestartWith::TEXTS));

const UPDATE: Object = Object::named(
    "update",
    &[
        // An initialised container would hold memory and ports beside the one that runs.
        Field {
            default: Some("CREATE"),
            ..Field::new("stage", Kind::Choice(&["NONE", "IMAGE", "CREATE"]))
        },
        Field::new("when", CONDITION),
        time("healthyMs", UPDATE_HEALTHY_MS),
        // Shortest deadline of an update, in milliseconds. No container is stopped and started in
        // less.
        number("deadlineMs", 1000, DAY_MS, UPDATE_DEADLINE_MS),
        Field::new("onFailure", Kind::Choice(OnFailure::TEXTS)),
    ],
);

// --------------------------------------------------------------- reading it

/// Reads the block of a runtime configuration; `None` if there is none, or for an unknown runtime.
///
/// # Errors
/// The first problem.
// [impl->swdd~lifecycle-block-is-checked~1]
pub fn of_config(runtime: &str, config: &str) -> Result<Option<Lifecycle>, LifecycleError> {
    of_config_within(runtime, config, &mut { usize::MAX })
}

/// Reads the block of one of many runtime configurations. `left` bounds the size of all of them
/// together, in counted bytes, since other requests wait while they are read.
///
/// # Errors
/// As [`of_config`], or nothing is left.
pub fn of_config_within(
    runtime: &str,
    config: &str,
    left: &mut usize,
) -> Result<Option<Lifecycle>, LifecycleError> {
    if !RUNTIMES.contains(&runtime) || !may_have_block(config) {
        return Ok(None);
    }
    if *left == 0 {
        return Err(LifecycleError::of_text(
            "too many and too large runtime configurations to look for the block; use smaller ones or several updates",
            None,
        ));
    }
    let read = yaml::read(config, Origin::Others);
    let size = match &read {
        Ok(document) => document.size,
        // How much was read before the error is not known. At most about every second byte was a
        // node.
        Err(_) => config.len().saturating_mul(NODE_BYTES / 2).min(OTHERS_MAX),
    };
    *left = left.saturating_sub(size);
    let root = read.as_ref().map(|document| &document.root);
    of_document(runtime, config, root)
}

/// Reads the block of a runtime configuration that was read as YAML.
pub(super) fn of_document(
    runtime: &str,
    config: &str,
    root: Result<&Yaml, &YamlError>,
) -> Result<Option<Lifecycle>, LifecycleError> {
    if !RUNTIMES.contains(&runtime) {
        return Ok(None);
    }
    let root = match root {
        Ok(root) => root,
        Err(error) if config.contains(KEY) => {
            let message = &error.message;
            let message = format!("the runtime configuration cannot be read: {message}");
            return Err(LifecycleError::of_text(&message, error.location));
        }
        Err(_) => return Ok(None), // The engine will report it.
    };
    // First each field by itself.
    let Some(reading) = read_part(root, KEY, &BLOCK, DocumentKind::Block) else {
        check_spelling(root, config)?;
        return Ok(None);
    };
    if let Some(problem) = reading.problems.into_iter().next() {
        return Err(LifecycleError::new(problem));
    }
    let mut lifecycle: Lifecycle = match reading.tree.read(KEY) {
        Ok(lifecycle) => lifecycle,
        // The table of fields has checked everything that can fail here.
        Err(error) => return Err(LifecycleError::of_node(root, &[KEY], &error.to_string())),
    };
    if let Some(alive) = &mut lifecycle.alive
        && alive.check == Check::Notify
    {
        // The default is for probes. A notification that is missing is final: `timeoutMs` is the
        // longest time between two.
        alive.failure_threshold = 1;
    }
    // Then fields that depend on each other.
    check_times(root, &lifecycle)?;
    if lifecycle.wants_notify() {
        check_notify(root, runtime)?;
    }
    Ok(Some(lifecycle))
}

/// Refuses a misspelt key of the block: the block would be ignored with all its conditions.
fn check_spelling(root: &Yaml, config: &str) -> Result<(), LifecycleError> {
    let Content::Map(entries) = &root.content else {
        return Ok(());
    };
    if !may_have_block(config) {
        return Ok(());
    }
    for (key, _) in entries.iter() {
        if let Some(key) = key.scalar()
            && nearest(key, [KEY]).is_some()
        {
            let message = format!("unknown key; did you mean '{KEY}'?");
            return Err(LifecycleError::of_node(root, &[key], &message));
        }
    }
    Ok(())
}

/// Checks times whose bounds depend on other fields.
fn check_times(root: &Yaml, lifecycle: &Lifecycle) -> Result<(), LifecycleError> {
    if let Some(Alive { check, pace, .. }) = &lifecycle.alive
        && *check != Check::Notify
        && pace.timeout > Duration::from_millis(TIMEOUT_MAX_MS)
    {
        let found = pace.timeout.as_millis();
        let expected = format!("a whole number from {PERIOD_LOWEST_MS} to {TIMEOUT_MAX_MS}");
        let message = format!("expected {expected}, found number {found}");
        let path = [KEY, "alive", "timeoutMs"];
        return Err(LifecycleError::of_node(root, &path, &message));
    }
    if let Some(UpdateBlock { terms, .. }) = &lifecycle.update
        && terms.deadline <= terms.healthy
    {
        let deadline = terms.deadline.as_millis();
        let healthy = terms.healthy.as_millis();
        let message = format!(
            "no instance could ever be healthy in time: 'deadlineMs' ({deadline}) must be greater than 'healthyMs' ({healthy})"
        );
        return Err(LifecycleError::of_node(root, &[KEY, "update"], &message));
    }
    Ok(())
}

/// Checks what `notify` needs: the runtime podman, without the options that the agent adds itself.
fn check_notify(root: &Yaml, runtime: &str) -> Result<(), LifecycleError> {
    if runtime != "podman" {
        let message = format!("'notify' is for the runtime podman only; this is {runtime}");
        return Err(LifecycleError::of_node(root, &[KEY], &message));
    }
    let Some(Content::List(options)) = root.get("commandOptions").map(|options| &options.content)
    else {
        return Ok(());
    };
    for option in options.iter().filter_map(Yaml::scalar) {
        let name = option.split('=').next().unwrap_or_default();
        if ["--sdnotify", "--pidfile"].contains(&name) {
            let message = format!("'{option}' cannot be used together with 'notify'; leave it out");
            return Err(LifecycleError::of_node(root, &["commandOptions"], &message));
        }
    }
    Ok(())
}

/// Returns whether there can be a block, perhaps under a misspelt key. Most configurations have
/// none and need not be read.
fn may_have_block(config: &str) -> bool {
    let config = config.to_ascii_lowercase();
    config.contains("life") || config.contains("cycle")
}

fn milliseconds<'de, D: Deserializer<'de>>(number: D) -> Result<Duration, D::Error> {
    u64::deserialize(number).map(Duration::from_millis)
}

fn milliseconds_or_none<'de, D: Deserializer<'de>>(
    number: D,
) -> Result<Option<Duration>, D::Error> {
    let time = milliseconds(number)?;
    Ok(if time.is_zero() { None } else { Some(time) })
}

fn address<'de, D: Deserializer<'de>>(text: D) -> Result<IpAddr, D::Error> {
    // The table of fields allows addresses and `localhost` only.
    let text = String::deserialize(text)?;
    Ok(text.parse().unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

/// Converts a place in a runtime configuration to one in its manifest, where the configuration is a
/// block of text that begins at `begins`; `None` if it is written differently.
pub fn place_in_manifest(
    manifest: &str,
    begins: Location,
    config: &str,
    at: Location,
) -> Option<Location> {
    let wanted = config.lines().nth(at.line as usize - 1)?;
    // A block begins in the line after its mark, or later if empty lines follow the mark.
    for line in (begins.line + at.line..).take(1 + EMPTY_LINES_MAX) {
        let Some(text) = manifest.lines().nth(line as usize - 1) else {
            continue;
        };
        if text.trim() == wanted.trim()
            && let Some(indentation) = indentation(text).checked_sub(indentation(wanted))
        {
            let column = at.column + u32::try_from(indentation).ok()?;
            return Some(Location { line, column });
        }
    }
    None
}

/// Empty lines at the beginning of a block of text; more are hardly written.
const EMPTY_LINES_MAX: usize = 3;

fn indentation(line: &str) -> usize {
    line.find(line.trim()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
