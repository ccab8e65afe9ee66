//! The `lifecycle:` block of a runtime configuration: when a workload may run, counts as ready, as
//! alive and as gone, how often it is started again, and how far a start is prepared.
//!
//! Thread: none, plain values; read by `main` of `ank`, by `server` and by the agent.
//!
//! A typo must not switch a safety gate off, so an unknown key is an error with its place.

use super::fields::reader::{Problem, Rules, read_part};
use super::fields::{Field, Kind, Object, Text};
use super::names::RUNTIMES;
use super::names::named_enum;
use super::nearest::nearest;
use super::prepare_level::PrepareLevel;
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
pub struct Lifecycle {
    /// Whether the workload is relevant on its node; evaluated when the agent starts and on
    /// updates.
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
    pub fn wants_notify(&self) -> bool {
        let ready = self
            .ready
            .as_ref()
            .is_some_and(|ready| ready.check == Check::Notify);
        ready
            || self
                .alive
                .as_ref()
                .is_some_and(|alive| alive.check == Check::Notify)
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
        /// Where; the workload itself unless said otherwise.
        #[serde(deserialize_with = "address")]
        host: IpAddr,
        /// Which port.
        port: u16,
    },
    /// A request is answered.
    Http {
        /// Where; the workload itself unless said otherwise.
        #[serde(deserialize_with = "address")]
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

/// How a check is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    /// Before the first one.
    #[serde(rename = "initialDelayMs", deserialize_with = "milliseconds", default)]
    pub initial_delay: Duration,
    /// From the end of one to the next.
    #[serde(rename = "periodMs", deserialize_with = "milliseconds")]
    pub period: Duration,
    /// Longest wait for one.
    #[serde(rename = "timeoutMs", deserialize_with = "milliseconds")]
    pub timeout: Duration,
}

/// When dependents may start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// What must hold.
    #[serde(flatten)]
    pub check: Check,
    /// How it is repeated.
    #[serde(flatten)]
    pub pace: Pace,
    /// How often in a row it must hold.
    pub success_threshold: u32,
    /// `None` waits for ever.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds_or_none")]
    pub deadline: Option<Duration>,
    /// What follows when it is over.
    #[serde(default)]
    pub on_deadline: OnDeadline,
}

named_enum! {
    /// What follows from a missed deadline.
    #[derive(Default)]
    OnDeadline {
        /// The start failed.
        #[default]
        Fail = "FAIL",
        /// Probing goes on.
        Wait = "WAIT",
    }
}

/// Whether it still works.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alive {
    /// What must hold.
    #[serde(flatten)]
    pub check: Check,
    /// How it is repeated.
    #[serde(flatten)]
    pub pace: Pace,
    /// How often in a row it must fail.
    pub failure_threshold: u32,
    /// What follows then.
    #[serde(default)]
    pub action: AliveAction,
}

named_enum! {
    /// What follows when it does not work any more.
    #[derive(Default)]
    AliveAction {
        /// It is stopped and has failed; its restart policy decides.
        #[default]
        Restart = "RESTART",
        /// It is only reported.
        Report = "REPORT",
    }
}

/// When it counts as removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gone {
    /// What must fail.
    #[serde(flatten)]
    pub check: Check,
    /// How it is repeated.
    #[serde(flatten)]
    pub pace: Pace,
    /// When the delete counts as failed; `None` never.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds_or_none")]
    pub deadline: Option<Duration>,
}

/// How often it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    /// Bound of the first delay.
    #[serde(rename = "backoffMs", deserialize_with = "milliseconds")]
    pub backoff: Duration,
    /// Bound of all delays.
    #[serde(rename = "backoffMaxMs", deserialize_with = "milliseconds")]
    pub backoff_max: Duration,
    /// Starts without success in a row; `None` has no limit.
    pub max_restarts: Option<u32>,
    /// Being ready for this long begins a new count.
    #[serde(rename = "windowMs", deserialize_with = "milliseconds")]
    pub window: Duration,
}

named_enum! {
    /// What follows from an update that failed, the strictest first.
    #[derive(Default)]
    OnFailure {
        /// What was before is desired again.
        Rollback = "ROLLBACK",
        /// The update stays.
        #[default]
        Keep = "KEEP",
    }
}

/// How an instance is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    /// It is healthy when it ran for so long, or has succeeded so long ago.
    #[serde(rename = "healthyMs", deserialize_with = "milliseconds")]
    pub healthy: Duration,
    /// It has failed when it was not healthy for so long.
    #[serde(rename = "deadlineMs", deserialize_with = "milliseconds")]
    pub deadline: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let (healthy, deadline) = (UPDATE_HEALTHY_MS, UPDATE_DEADLINE_MS);
        Self {
            healthy: Duration::from_millis(healthy),
            deadline: Duration::from_millis(deadline),
        }
    }
}

/// How an update is staged, when it may be carried out, and how it is judged.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// What is prepared before old instances are stopped.
    pub stage: PrepareLevel,
    /// What must hold for the update to be carried out.
    pub when: Option<Condition>,
    #[serde(flatten)]
    pub terms: Terms,
    /// What follows when it fails; `None` leaves that to the server's settings.
    pub on_failure: Option<OnFailure>,
}

/// Entries that must all hold.
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
    /// The paths it is about.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.path_exists
            .iter()
            .chain(&self.path_missing)
            .map(String::as_str)
    }

    /// The first entry that does not hold, as text; `None` when all hold. `exists` is `None` for a
    /// path that does not answer, which does not hold either.
    pub fn unmet(
        &self,
        exists: impl Fn(&str) -> Option<bool>,
        tags: &BTreeMap<String, String>,
    ) -> Option<String> {
        let both = [
            (&self.path_exists, true, "does not exist"),
            (&self.path_missing, false, "exists"),
        ];
        for (path, wanted, otherwise) in both {
            let Some(path) = path else { continue };
            match exists(path) {
                Some(found) if found == wanted => {}
                Some(_) => return Some(format!("{path} {otherwise}")),
                None => return Some(format!("{path} does not answer")),
            }
        }
        let wrong = self
            .tags
            .iter()
            .find(|(key, value)| tags.get(*key) != Some(*value))?;
        Some(match tags.get(wrong.0) {
            Some(other) => format!("tag {} is '{other}', not '{}'", wrong.0, wrong.1),
            None => format!("the agent has no tag {}", wrong.0),
        })
    }
}

/// A runtime configuration, or the block in it, is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}{}", prefix(path), location.map_or_else(String::new, |at| format!(" ({at} of runtimeConfig)")))]
pub struct ConfigError {
    /// Path of the field, empty when the text cannot be read at all.
    pub(crate) path: String,
    /// What is wrong, with a suggestion where there is one.
    pub(crate) message: String,
    /// Where in the runtime configuration.
    pub location: Option<Location>,
}

impl ConfigError {
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
}

// ----------------------------------------------------------------- its fields

/// Longest time, in milliseconds: a day. More can only be a mistake.
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Shortest period and timeout of a check, in milliseconds. Faster ones would only cost.
const PERIOD_LOWEST_MS: u64 = 50;
/// Longest timeout of a check, in milliseconds: it keeps a socket or a process of the engine. A
/// watchdog that a workload notifies may have any.
const TIMEOUT_MAX_MS: u64 = 60_000;
/// Shortest first delay of restarts, in milliseconds. A container needs about that long to start.
const BACKOFF_LOWEST_MS: u64 = 100;
/// So long a new instance must run unless its block says something else, in milliseconds.
const UPDATE_HEALTHY_MS: u64 = 10_000;
/// So long it may take until it is healthy, likewise: an image of some hundred MB may have to be
/// pulled.
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

/// With `notify` nothing is probed, so this means nothing then.
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
            Field {
                needs: Some("timeoutMs"),
                ..NOTIFY
            }, // There is no time that suits many.
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

/// Reads the block of a runtime configuration; `None` when it has none, or the runtime is not one
/// that has it.
///
/// # Errors
/// The first thing that is not as it should be.
// [impl->swdd~lifecycle-block-is-checked~1]
pub fn of_config(runtime: &str, config: &str) -> Result<Option<Lifecycle>, ConfigError> {
    of_config_within(runtime, config, &mut { usize::MAX })
}

/// Reads the block of one of many runtime configurations, which together may become `left` bytes:
/// all requests wait until all are read.
///
/// # Errors
/// As [`of_config`], or when they become more.
pub fn of_config_within(
    runtime: &str,
    config: &str,
    left: &mut usize,
) -> Result<Option<Lifecycle>, ConfigError> {
    if !RUNTIMES.contains(&runtime) || !may_have_block(config) {
        return Ok(None);
    }
    if *left == 0 {
        let message = "too many and too large runtime configurations to look for the block; use smaller ones or \
                       several updates";
        return Err(ConfigError {
            path: String::new(),
            message: message.to_owned(),
            location: None,
        });
    }
    let read = yaml::read(config, Origin::Others);
    let failed = || config.len().saturating_mul(NODE_BYTES / 2).min(OTHERS_MAX);
    *left = left.saturating_sub(
        read.as_ref()
            .map_or_else(|_| failed(), |document| document.size),
    );
    of_document(
        runtime,
        config,
        read.as_ref().map(|document| &document.root),
    )
}

/// Reads the block of a runtime configuration that was read as YAML.
pub(super) fn of_document(
    runtime: &str,
    config: &str,
    root: Result<&Yaml, &YamlError>,
) -> Result<Option<Lifecycle>, ConfigError> {
    let root = match root {
        _ if !RUNTIMES.contains(&runtime) => return Ok(None),
        Ok(root) => root,
        Err(error) if config.contains(KEY) => {
            let message = format!(
                "the runtime configuration cannot be read: {}",
                error.message
            );
            return Err(ConfigError {
                path: String::new(),
                message,
                location: error.location,
            });
        }
        Err(_) => return Ok(None), // Its engine will report it.
    };
    let problem = |path: &[&str], message: &str| {
        let location = root.entry_at(path).map(|(key, _)| key.at);
        Err(ConfigError {
            path: path.join("."),
            message: message.to_owned(),
            location,
        })
    };
    let Some(reading) = read_part(root, KEY, &BLOCK, Rules::Block) else {
        // Under another spelling the block would be ignored, with all its gates.
        let Content::Map(entries) = &root.content else {
            return Ok(None);
        };
        if !may_have_block(config) {
            return Ok(None);
        }
        let misspelt = entries
            .iter()
            .filter_map(|(key, _)| key.scalar())
            .find(|key| nearest(key, [KEY]).is_some());
        return misspelt.map_or(Ok(None), |key| {
            problem(&[key], &format!("unknown key, did you mean '{KEY}'?"))
        });
    };
    if let Some(problem) = reading.problems.into_iter().next() {
        return Err(ConfigError::new(problem));
    }
    let lifecycle = match reading.tree.read::<Lifecycle>(KEY) {
        Ok(lifecycle) => lifecycle,
        // The table has checked all of it.
        Err(error) => return problem(&[KEY], &error.to_string()),
    };
    if let Some(Alive { check, pace, .. }) = &lifecycle.alive
        && *check != Check::Notify
        && pace.timeout > Duration::from_millis(TIMEOUT_MAX_MS)
    {
        let found = pace.timeout.as_millis();
        let expected = format!("a whole number from {PERIOD_LOWEST_MS} to {TIMEOUT_MAX_MS}");
        return problem(
            &[KEY, "alive", "timeoutMs"],
            &format!("number {found} found, expected {expected}"),
        );
    }
    if let Some(Update { terms, .. }) = &lifecycle.update
        && terms.deadline <= terms.healthy
    {
        let [deadline, healthy] = [terms.deadline, terms.healthy].map(|time| time.as_millis());
        let message = format!(
            "no instance could ever be healthy in time: 'deadlineMs' ({deadline}) must be greater than 'healthyMs' ({healthy})"
        );
        return problem(&[KEY, "update"], &message);
    }
    if !lifecycle.wants_notify() {
        return Ok(Some(lifecycle));
    }
    // Podman needs these options for itself when a workload notifies.
    if runtime != "podman" {
        return problem(
            &[KEY],
            &format!("'notify' is for the runtime podman only, this is {runtime}"),
        );
    }
    let options = root.get("commandOptions").map(|options| &options.content);
    let options = if let Some(Content::List(options)) = options {
        &options[..]
    } else {
        &[]
    };
    let is_taken = |text: &&str| {
        ["--sdnotify", "--pidfile"].contains(&text.split('=').next().unwrap_or_default())
    };
    match options.iter().filter_map(Yaml::scalar).find(is_taken) {
        Some(option) => {
            let message = format!("'{option}' cannot be used together with 'notify'; leave it out");
            problem(&["commandOptions"], &message)
        }
        None => Ok(Some(lifecycle)),
    }
}

/// Whether there can be a block, perhaps under a misspelt key. Most configurations have none and
/// need not be read.
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
    milliseconds(number).map(|time| Some(time).filter(|time| !time.is_zero()))
}

fn address<'de, D: Deserializer<'de>>(text: D) -> Result<IpAddr, D::Error> {
    // Another name is none, as the table says.
    String::deserialize(text).map(|text| text.parse().unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

/// The place in a manifest of what is at `at` in a runtime configuration that is written there as a
/// block of text which begins at `begins`; `None` when it is written differently.
pub fn place_in_manifest(
    manifest: &str,
    begins: Location,
    config: &str,
    at: Location,
) -> Option<Location> {
    let wanted = config.lines().nth(at.line as usize - 1)?;
    // A block begins in the line after its mark, or later: empty lines at its beginning do not
    // count.
    (begins.line + at.line..).take(4).find_map(|line| {
        let text = manifest
            .lines()
            .nth(line as usize - 1)
            .filter(|text| text.trim() == wanted.trim())?;
        let indentation = text
            .find(wanted.trim())?
            .checked_sub(wanted.find(wanted.trim())?)?;
        Some(Location {
            line,
            column: at.column + u32::try_from(indentation).ok()?,
        })
    })
}

#[cfg(test)]
mod tests;
