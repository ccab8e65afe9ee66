//! Command line, environment and config file of `ank-agent`, and its run folder.
//!
//! Thread: `main`.

use crate::images::{CleanupMode, CleanupSettings, LedgerFolder};
use crate::limits::{REPAIR_INTERVAL, RETRY_LIMIT};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::limits::NAME_MAX;
use ankaios_model::names::{NOT_OF_COMMANDER, RUNTIMES, has_name_characters, is_of_commander};
use ankaios_model::nearest::nearest;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::shown_text::without_passwords;
use ankaios_model::version::SHOWN_VERSION;
use ankaios_platform::metrics_file::{MetricsInterval, MetricsPath, MetricsSettings};
use ankaios_platform::private_folder::{self, PrivateFolder};
use ankaios_platform::settings::{
    ConfigFile, ControlMessageSize, MessageSize, NUMBER_MAX, Number, PemKeys, Pems, SettingsError,
    decide_security, insecure_flag, readable_key_warning,
};
use ankaios_wire::address::{Security, ServerUrl};
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The config file when no option names one.
pub(crate) const DEFAULT_CONFIG_FILE: &str = "/etc/ankaios/ank-agent.conf";
/// The least default of `max_parallel_starts`, which is twice the number of cores.
const PARALLEL_STARTS_MIN: usize = 4;
const DEFAULT_SERVER_URL: &str = "https://127.0.0.1:25551";
const SCHEMES: &str = " Write it as http://<host>:<port>, https://<host>:<port> or unix:///<path>";

/// The options of `ank-agent`.
#[derive(Debug, Parser)]
#[command(
    name = "ank-agent",
    version = SHOWN_VERSION.as_str(),
    about = "The Ankaios agent: runs the workloads of one node for the server and reports their states.",
    after_help = "Examples:\n  ank-agent --name front --server-url unix:///run/ankaios/ank.sock   with a server on this machine\n  \
                  ank-agent -x /etc/ankaios/ank-agent.conf                           with the settings of a file\n\n\
                  The config file has more settings, for example retry_limit: see ank-agent.conf."
)]
struct AgentArguments {
    /// Config file [default: /etc/ankaios/ank-agent.conf if it exists]
    #[arg(short = 'x', long, value_name = "PATH", alias = "config_path")]
    agent_config: Option<PathBuf>,
    /// Name of this agent: letters, digits, '_' and '-'
    #[arg(short = 'n', long, env = "ANKAGENT_NAME", value_name = "NAME")]
    name: Option<String>,
    /// Address of the server, for example http://10.0.0.1:25551 or unix:///run/ankaios/ank.sock
    /// [default: https://127.0.0.1:25551]
    #[arg(short = 's', long, env = "ANKAGENT_SERVER_URL", value_name = "URL")]
    server_url: Option<String>,
    /// Folder for the files and pipes of the workloads, which has to exist [default: ankaios in
    /// $TMPDIR or /tmp, which is made]
    #[arg(short = 'r', long, value_name = "DIR")]
    run_folder: Option<PathBuf>,
    /// Communicate without TLS, if no certificates are set
    // [impl->swdd~agent-supports-cli-argument-for-insecure-communication~1]
    #[arg(short = 'k', long, env = "ANKAGENT_INSECURE", action = ArgAction::SetTrue)]
    insecure: bool,
    /// Communicate with TLS even if the config file or the environment has 'insecure'
    #[arg(long, action = ArgAction::SetTrue)]
    no_insecure: bool,
    /// Tag of this agent, shown in its state; repeatable; replaces the tags of the config file
    #[arg(short = 't', long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    tags: Vec<(String, String)>,
    /// PEM file with the certificate of the authority that signed the certificate of the server
    // [impl->swdd~agent-supports-pem-file-paths-as-cli-arguments~1]
    #[arg(long = "ca_pem", value_name = "PATH", env = "ANKAGENT_CA_PEM")]
    ca_pem: Option<PathBuf>,
    /// PEM file with the certificate of this agent
    #[arg(long = "crt_pem", value_name = "PATH", env = "ANKAGENT_CRT_PEM")]
    crt_pem: Option<PathBuf>,
    /// PEM file with the private key of this agent
    #[arg(long = "key_pem", value_name = "PATH", env = "ANKAGENT_KEY_PEM")]
    key_pem: Option<PathBuf>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("invalid KEY=value: no `=` found in `{text}`")),
    }
}

/// The keys of the config file, without the PEM ones.
#[derive(Debug, Default, Deserialize)]
struct AgentKeys {
    name: Option<String>,
    server_url: Option<String>,
    run_folder: Option<PathBuf>,
    insecure: Option<bool>,
    runtimes: Option<Vec<String>>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Seconds; 0 has no limit.
    #[serde(default)]
    create_timeout: Number<0, NUMBER_MAX>,
    #[serde(default)]
    retry_limit: Number<0, NUMBER_MAX, { RETRY_LIMIT as u64 }>,
    restart_backoff: Option<bool>,
    rerun_finished: Option<Rerun>,
    max_parallel_starts: Option<Number<1, NUMBER_MAX>>,
    #[serde(default, deserialize_with = "prepare_level")]
    prepare: PrepareLevel,
    #[serde(default)]
    // Most containers that are initialised and wait for their start. Each takes about 12 MiB of
    // memory, so the highest value takes about a gigabyte.
    prepare_max: Number<0, 64, 4>,
    /// Seconds.
    #[serde(default)]
    listing_interval: Number<1, NUMBER_MAX, { REPAIR_INTERVAL.as_secs() }>,
    #[serde(default)]
    max_message_size: MessageSize,
    #[serde(default)]
    max_control_message_size: ControlMessageSize,
    metrics: Option<MetricsPath>,
    #[serde(default)]
    metrics_interval: MetricsInterval,
    #[serde(default)]
    image_cleanup: Cleanup,
    #[serde(default)]
    // Versions of a workload whose images are kept, beside the desired one. A rollback needs one.
    image_history: Number<0, 100, 1>,
    state_dir: Option<PathBuf>,
}

/// The values of `image_cleanup`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Cleanup {
    #[default]
    Never,
    Report,
    Replaced,
}

/// Reads a level, which is written in lower case.
fn prepare_level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PrepareLevel, D::Error> {
    let text = String::deserialize(deserializer)?;
    for level in PrepareLevel::ALL {
        if level.as_str().to_lowercase() == text {
            return Ok(*level);
        }
    }
    Err(D::Error::custom(format!(
        "unknown value '{text}', expected 'none', 'image', 'create' or 'init'"
    )))
}

/// The values of `rerun_finished`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rerun {
    #[default]
    Always,
    Boot,
}

const KNOWN_KEYS: [&str; 22] = [
    "version",
    "name",
    "server_url",
    "run_folder",
    "insecure",
    "runtimes",
    "tags.*",
    "create_timeout",
    "retry_limit",
    "restart_backoff",
    "rerun_finished",
    "max_parallel_starts",
    "prepare",
    "prepare_max",
    "listing_interval",
    "max_message_size",
    "max_control_message_size",
    "metrics",
    "metrics_interval",
    "image_cleanup",
    "image_history",
    "state_dir",
];

/// The settings of one run.
#[derive(Debug)]
pub struct AgentSettings {
    /// Name of this agent, checked.
    pub name: String,
    /// The address of the server.
    pub url: ServerUrl,
    /// The protection of the connection.
    pub security: Security,
    /// The agent's folder below the run folder, absolute; it exists.
    pub folder: PathBuf,
    /// Tags of this agent.
    pub(crate) tags: BTreeMap<String, String>,
    /// Enabled runtimes.
    pub(crate) runtimes: BTreeSet<&'static str>,
    /// Longest create; `None` has no limit.
    pub(crate) create_timeout: Option<Duration>,
    /// The number of retries of a failed create; `None` for no limit.
    pub(crate) retry_limit: Option<u32>,
    /// Whether restarts are delayed.
    pub(crate) restart_backoff: bool,
    /// After a restart of the agent, workloads that have ended since the node was booted are not
    /// started again.
    pub(crate) keeps_finished: bool,
    /// Most starts at the same time.
    pub(crate) parallel_starts: usize,
    /// How far waiting starts are prepared if the workload does not say it.
    pub(crate) prepare: PrepareLevel,
    /// Most containers that are initialised and wait.
    pub(crate) prepare_max: usize,
    /// Number of cores.
    pub(crate) cores: usize,
    /// Interval of full listings, which show changes that no event reports.
    pub(crate) listing_interval: Duration,
    /// Largest message sent and received.
    pub(crate) message_max: MessageSize,
    /// Longest message of a workload.
    pub(crate) control_message_max: ControlMessageSize,
    /// The settings of the metrics; `None` when none are written.
    pub(crate) metrics: Option<MetricsSettings>,
    /// The settings of the clean-up of images; `None` when there is none.
    pub(crate) cleanup: Option<CleanupSettings>,
    /// The config file in use.
    pub config_file: Option<PathBuf>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// The facts of the machine that settings depend on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// `TMPDIR`, or `/tmp`.
    pub temporary: PathBuf,
    /// Number of cores.
    pub cores: usize,
}

impl Machine {
    /// The machine of this process.
    pub fn this() -> Self {
        let temporary = match std::env::var_os("TMPDIR") {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from("/tmp"),
        };
        let cores = std::thread::available_parallelism();
        Self {
            temporary,
            cores: cores.map_or(1, usize::from),
        }
    }
}

/// The command line, as manual pages show it.
pub fn command() -> clap::Command {
    AgentArguments::command()
}

/// Reads the settings, and creates the run folder. Options come before the environment, and that
/// before the config file.
#[inline(never)] // Else `main` keeps the frame of this while it waits.
pub fn read(
    arguments: impl IntoIterator<Item = OsString>,
    machine: &Machine,
) -> Result<AgentSettings, SettingsError> {
    let command = AgentArguments::command();
    let matches = command
        .clone()
        .try_get_matches_from(arguments)
        .map_err(|error| SettingsError::usage(error, &command))?;
    let options = AgentArguments::from_arg_matches(&matches)?;
    let places = [PathBuf::from(DEFAULT_CONFIG_FILE)];
    let file = ConfigFile::find(options.agent_config.as_deref(), &places)?;
    combine(&matches, options, file.as_ref(), machine)
}

/// Combines the options with the config file, and checks the values.
fn combine(
    matches: &ArgMatches,
    options: AgentArguments,
    file: Option<&ConfigFile>,
    machine: &Machine,
) -> Result<AgentSettings, SettingsError> {
    let mut warnings = Vec::new();
    // First: the config file, and the files with certificates.
    let mut keys = AgentKeys::default();
    let mut pems = Pems::default();
    if let Some(file) = file {
        file.check_version(false)?;
        keys = file.keys()?;
        let pem_keys: PemKeys = file.keys()?;
        let known: Vec<&str> = KNOWN_KEYS.into_iter().chain(PemKeys::NAMES).collect();
        warnings.extend(file.unknown_keys(&known));
        warnings.extend(readable_key_warning(file, &pem_keys));
        pems = pem_keys.read(file)?;
    }
    let paths = [
        options.ca_pem.as_deref(),
        options.crt_pem.as_deref(),
        options.key_pem.as_deref(),
    ];
    // [impl->swdd~agent-provides-file-paths-to-communication-middleware~1]
    let pems = pems.overridden_by(paths)?;
    // Then: the values that are checked. An error names the place in the config file, if any.
    let name_place = place(file, "name", options.name.is_none() && keys.name.is_some());
    let name = checked_name(options.name.or(keys.name).unwrap_or_default(), &name_place)?;
    let is_in_file = options.run_folder.is_none() && keys.run_folder.is_some();
    let folder_place = place(file, "run_folder", is_in_file);
    let given_folder = options.run_folder.or(keys.run_folder);
    let folder = run_folder(given_folder, &name, &folder_place, machine)?;
    let runtimes_place = place(file, "runtimes", true);
    let runtimes = enabled_runtimes(keys.runtimes, &runtimes_place, &mut warnings)?;
    let insecure = insecure_flag(matches).or(keys.insecure).unwrap_or_default();
    let is_in_file = options.server_url.is_none() && keys.server_url.is_some();
    let url_place = place(file, "server_url", is_in_file);
    let url = options.server_url.or(keys.server_url);
    let url = url.as_deref().unwrap_or(DEFAULT_SERVER_URL);
    let parsed = parse_url(url, &url_place)?;
    let security = security_of(url, &parsed, insecure, pems, &mut warnings)?;
    let url = protected(parsed, &security, &mut warnings);
    let mode = match keys.image_cleanup {
        Cleanup::Never => None,
        Cleanup::Report => Some(CleanupMode::Report),
        Cleanup::Replaced => Some(CleanupMode::Replaced),
    };
    let cleanup = match mode {
        None => None,
        Some(mode) => {
            let folder_place = place(file, "state_dir", true);
            Some(CleanupSettings {
                mode,
                history: keys.image_history.0 as usize,
                folder: known_images(keys.state_dir, &name, &folder, &folder_place)?,
            })
        }
    };
    // Finally: all others.
    let tags = if options.tags.is_empty() {
        keys.tags
    } else {
        options.tags.into_iter().collect_entries()
    };
    let parallel_starts = match keys.max_parallel_starts {
        Some(starts) => starts.0 as usize,
        None => PARALLEL_STARTS_MIN.max(2 * machine.cores),
    };
    let metrics = keys.metrics.map(|path| MetricsSettings {
        path,
        interval: keys.metrics_interval,
    });
    let create_timeout = match keys.create_timeout.0 {
        0 => None,
        seconds => Some(Duration::from_secs(seconds)),
    };
    let retry_limit = match keys.retry_limit.0 {
        0 => None,
        limit => Some(limit as u32),
    };
    Ok(AgentSettings {
        name,
        url,
        security,
        folder,
        tags,
        runtimes,
        create_timeout,
        retry_limit,
        restart_backoff: keys.restart_backoff.unwrap_or(true),
        keeps_finished: keys.rerun_finished == Some(Rerun::Boot),
        parallel_starts,
        prepare: keys.prepare,
        prepare_max: keys.prepare_max.0 as usize,
        cores: machine.cores,
        listing_interval: Duration::from_secs(keys.listing_interval.0),
        message_max: keys.max_message_size,
        control_message_max: keys.max_control_message_size,
        metrics,
        cleanup,
        config_file: file.map(|file| file.path.clone()),
        warnings,
    })
}

/// A text with the place of a key in the config file, for an error. Empty if the value is not from
/// that file.
fn place(file: Option<&ConfigFile>, key: &str, is_in_file: bool) -> String {
    match file {
        Some(file) if is_in_file => format!(" ({}: '{key}')", file.place(key)),
        _ => String::new(),
    }
}

/// Reads the address of the server. The error names the schemes, since these decide whether
/// certificates are needed.
fn parse_url(url: &str, place: &str) -> Result<ServerUrl, SettingsError> {
    ServerUrl::parse(url).map_err(|error| {
        let schemes = if url.starts_with("unix:") {
            ""
        } else {
            SCHEMES
        };
        other(
            "Failed to create communications client.",
            format!("{error}{schemes}{place}"),
        )
    })
}

/// The protection of the connection. A Unix domain socket needs none, since it has permissions.
// [impl->swdd~agent-fails-on-missing-file-paths-and-insecure-cli-arguments~1]
fn security_of(
    url: &str,
    parsed: &ServerUrl,
    insecure: bool,
    pems: Pems,
    warnings: &mut Vec<String>,
) -> Result<Security, SettingsError> {
    if parsed.is_socket() {
        return Ok(Security::Insecure);
    }
    let (security, warning) = decide_security(insecure, pems);
    warnings.extend(warning.map(str::to_owned));
    security.map_err(|error| without_tls(url, error))
}

/// The error for a workload whose runtime the agent does not have.
pub(crate) fn unsupported_runtime(runtime: &str) -> String {
    if RUNTIMES.contains(&runtime) {
        return format!(
            "Unsupported Runtime: '{runtime}' is not among the 'runtimes' in the config file of the agent"
        );
    }
    let hint = match nearest(runtime, RUNTIMES) {
        Some(name) => format!("; did you mean '{name}'?"),
        None => format!("; there are '{}'", RUNTIMES.join("', '")),
    };
    format!("Unsupported Runtime '{runtime}'{hint}")
}

/// An error in a setting: `what` fails, and `text` says why.
fn other(what: &'static str, text: String) -> SettingsError {
    SettingsError::Other { what, text }
}

/// Checks the name of the agent. An error names its `place`, if there is one.
fn checked_name(name: String, place: &str) -> Result<String, SettingsError> {
    if name.is_empty() {
        let text = "Empty agent name is not allowed. Set '--name', the variable ANKAGENT_NAME or 'name' in the config file.";
        return Err(wrong_name(text, place));
    }
    let too_long = format!("It has more than {NAME_MAX} characters.");
    let rule = if !has_name_characters(&name) {
        "It may have letters, digits, '_' and '-'."
    } else if name.len() > NAME_MAX {
        &too_long
    } else if is_of_commander(&name) {
        NOT_OF_COMMANDER
    } else {
        return Ok(name);
    };
    // Manifests could not name such an agent, or the server would always refuse it.
    let text = format!("Agent name '{name}' is invalid. {rule}");
    Err(wrong_name(&text, place))
}

/// The error for a wrong name of the agent.
fn wrong_name(text: &str, place: &str) -> SettingsError {
    other(
        "Error encountered while checking agent name!",
        format!("{text}{place}"),
    )
}

/// The error for missing certificates. If the URL is one without TLS, it names the option for that.
fn without_tls(url: &str, error: impl Into<SettingsError> + std::fmt::Display) -> SettingsError {
    if !url.starts_with("http:") {
        return error.into();
    }
    other(
        "Missing certificate files",
        format!(
            "{error}. The URL '{}' needs '--insecure'",
            without_passwords(url)
        ),
    )
}

/// The URL with the scheme that fits the protection of the connection.
fn protected(url: ServerUrl, security: &Security, warnings: &mut Vec<String>) -> ServerUrl {
    match security {
        // [impl->swdd~agent-establishes-insecure-communication-based-on-provided-insecure-cli-argument~1]
        Security::Insecure => url.with_tls(false),
        Security::MutualTls(_) => {
            if !url.uses_tls() {
                warnings.push(format!(
                    "The server URL '{url}' is used with TLS, since certificates are given."
                ));
            }
            url.with_tls(true)
        }
    }
}

/// The runtimes in the config file; all known ones without that key. Unknown ones are warned of,
/// and are an error if no other is there.
fn enabled_runtimes(
    configured: Option<Vec<String>>,
    place: &str,
    warnings: &mut Vec<String>,
) -> Result<BTreeSet<&'static str>, SettingsError> {
    let Some(configured) = configured else {
        return Ok(RUNTIMES.into_iter().collect_entries());
    };
    let mut enabled = BTreeSet::new();
    let mut unknown = Vec::new();
    for name in &configured {
        match RUNTIMES.into_iter().find(|runtime| runtime == name) {
            Some(runtime) => {
                enabled.insert(runtime);
            }
            None => unknown.push(unsupported_runtime(name)),
        }
    }
    if enabled.is_empty() {
        let unknown: String = unknown.iter().map(|text| format!(". {text}")).collect();
        let text = format!(
            "No valid runtimes configured. Supported runtimes: {RUNTIMES:?}{unknown}{place}"
        );
        return Err(other("Invalid runtime configuration", text));
    }
    for text in unknown {
        warnings.push(format!("{text}{place}"));
    }
    Ok(enabled)
}

/// The folder of the known images: in `state_dir`, or else in the run folder. It is made with the
/// first write.
fn known_images(
    state_dir: Option<PathBuf>,
    name: &str,
    run_folder: &Path,
    place: &str,
) -> Result<LedgerFolder, SettingsError> {
    let agent = name.to_owned();
    match state_dir {
        Some(path) if !path.is_absolute() => {
            let text = format!(
                "'{}' is no absolute path, as '/var/lib/ankaios'{place}",
                path.display()
            );
            Err(other("The folder 'state_dir' cannot be used.", text))
        }
        Some(path) => Ok(LedgerFolder {
            agents: path,
            agent,
            ending: "_agent",
            inner: "",
        }),
        None => Ok(LedgerFolder {
            agents: run_folder.parent().unwrap_or(run_folder).to_owned(),
            agent,
            ending: "_io",
            inner: "images",
        }),
    }
}

/// Makes the agent's own folder in the run folder. Only its user can read it. Existing files stay,
/// since running workloads have them mounted.
fn run_folder(
    given: Option<PathBuf>,
    name: &str,
    place: &str,
    machine: &Machine,
) -> Result<PathBuf, SettingsError> {
    // First: the run folder, which agents share. Only the default one is created.
    let default = machine.temporary.join("ankaios");
    let base = given.unwrap_or_else(|| default.clone());
    if base == default {
        private_folder::share(&base).map_err(|error| no_folder_at(&base, &error))?;
    } else if base.is_dir() {
        private_folder::use_shared(&base).map_err(|error| no_folder_at(&base, &error))?;
    } else {
        let text = format!("Could not find directory \"{}\"{place}", base.display());
        return Err(no_folder(text));
    }
    // Then: the folder in it. It is absolute, since engines may have another working directory.
    let folder = base.join(format!("{name}_io"));
    let folder = std::path::absolute(&folder).map_err(|error| no_folder_at(&folder, &error))?;
    match PrivateFolder::open(&folder) {
        Ok(_) => Ok(folder),
        Err(error) if error.raw_os_error().is_some() => Err(no_folder_at(&folder, &error)),
        Err(refused) => Err(no_folder(refused.to_string())), // Its text names the folder already.
    }
}

/// The error for a folder that cannot be used.
fn no_folder(text: String) -> SettingsError {
    let what = "Run folder creation failed. Cannot continue without run folder.";
    other(what, text)
}

fn no_folder_at(path: &Path, error: &io::Error) -> SettingsError {
    no_folder(format!("'{}': {error}", path.display()))
}

#[cfg(test)]
mod tests;
