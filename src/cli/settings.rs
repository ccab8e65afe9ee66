//! The settings of one run of `ank`: command line, environment, `ank.conf`, defaults.
//!
//! Thread: `main`, once at the start. Gives: checked settings, or the error to print; warnings go
//! to the output.

use super::args::Common;
use super::error::{CliError, Result, meant_or};
use super::output::{Output, one_line};
use ankaios_platform::settings::{
    self, ConfigError, ConfigFile, MessageSize, NUMBER_MAX, Number, PemError, PemKeys, Pems,
    VERSION_LINE,
};
use ankaios_wire::address::{Security, ServerUrl};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Config file of the whole machine.
const SYSTEM_FILE: &str = "/etc/ankaios/ank.conf";
/// Keys of the file, without those of certificates; the table `default` and contexts can have all.
const KEYS: [&str; 9] = [
    "version",
    "response_timeout",
    "verbose",
    "quiet",
    "no_wait",
    "server_url",
    "insecure",
    "max_message_size",
    "ignore_modes",
];

/// The settings of a run of `ank`, for all commands.
#[derive(Debug)]
pub struct CliSettings {
    /// The URL of the server; the scheme tells whether TLS is used.
    pub(crate) url: ServerUrl,
    /// How the connection is protected.
    pub(crate) security: Security,
    /// Longest wait for a response.
    pub(crate) response_timeout: Duration,
    /// Largest message sent and received.
    pub(crate) message_max: MessageSize,
    /// Whether and how long to wait for workloads after an update.
    pub(crate) waiting: Waiting,
    /// Workloads with the tag `modes` are sent also to a server without modes.
    pub(crate) ignore_modes: bool,
}

/// How a wait treats instances of agents that are not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentAgents {
    /// The wait ends without them: it has no limit, and the agents may never connect.
    Skipped,
    /// The wait includes them, and ends at its limit.
    Awaited,
}

/// Whether and how long to wait for workloads after an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Do not wait at all.
    pub(crate) no_wait: bool,
    /// Give up after this time.
    pub(crate) limit: Option<Duration>,
    /// A failed workload is an error of the command.
    pub(crate) fail_on_error: bool,
}

impl Waiting {
    /// Returns whether the exit code depends on all workloads that a command names. Then a command
    /// that is repeated, after an interrupt for example, also evaluates those that it does not
    /// change.
    pub(crate) fn judges(&self) -> bool {
        self.fail_on_error || self.limit.is_some()
    }

    /// The end of a wait that begins `now`; `None` without a limit.
    pub(crate) fn give_up(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.limit?)
    }

    /// How the wait treats agents that are not connected. With a limit it awaits them: they may
    /// connect before.
    pub(crate) fn absent(&self) -> AbsentAgents {
        if self.limit.is_some() {
            AbsentAgents::Awaited
        } else {
            AbsentAgents::Skipped
        }
    }
}

/// Keys of `ank.conf`, at the top, in the table `default` or in one of a context.
#[derive(Debug, Default, Deserialize)]
struct SettingsKeys {
    response_timeout: Option<Number<1, NUMBER_MAX>>,
    verbose: Option<bool>,
    quiet: Option<bool>,
    no_wait: Option<bool>,
    server_url: Option<String>,
    insecure: Option<bool>,
    max_message_size: Option<MessageSize>,
    ignore_modes: Option<bool>,
}

/// The tables of `ank.conf`.
#[derive(Deserialize)]
struct Tables<T> {
    #[serde(rename = "default")]
    _default: Option<T>,
    contexts: Option<BTreeMap<String, T>>,
}

/// The keys at the top of `file`, replaced by those in the table of `context`. Without a context it
/// is the table `default`.
fn merged<T: DeserializeOwned>(file: &ConfigFile, context: Option<&str>) -> Result<T, ConfigError> {
    // First, check all keys, even those of tables that are not used.
    file.keys::<Tables<T>>()?;
    let top = file.keys::<T>()?;
    // Then, merge both tables.
    let mut keys: toml::Table = file.keys()?;
    let table = match context {
        Some(name) => keys.get("contexts").and_then(|contexts| contexts.get(name)),
        None => keys.get("default"),
    };
    if let Some(toml::Value::Table(table)) = table.cloned() {
        keys.extend(table);
    }
    Ok(keys.try_into().unwrap_or(top)) // It cannot fail: each key was checked.
}

/// The names of all contexts of `file`.
fn contexts(file: &ConfigFile) -> Result<Vec<String>, ConfigError> {
    let tables = file.keys::<Tables<IgnoredAny>>()?;
    match tables.contexts {
        Some(contexts) => Ok(contexts.into_keys().collect()),
        None => Ok(Vec::new()),
    }
}

/// Time to wait for a response of the server, unless an option or the file says another.
const RESPONSE_TIMEOUT_DEFAULT_MS: u64 = 3000;

impl CliSettings {
    /// Merges the command line with the config file. Sets the levels of `output`.
    pub fn load(server_url: Option<&str>, common: &Common, output: &mut Output) -> Result<Self> {
        output.set_level(common.quiet, common.verbose); // For warnings about the file.
        let file = find_file(common, output)?;
        let (keys, pems) = read_file(file.as_ref(), common, output)?;
        let quiet = is_on(common.quiet, common.no_quiet, keys.quiet);
        let verbose = is_on(common.verbose, common.no_verbose, keys.verbose);
        output.set_level(quiet, verbose);
        warn_of_other_server(server_url, common, &keys, output);
        let (url, security) = connection(server_url, common, file.as_ref(), &keys, pems, output)?;
        let response_timeout = common
            .response_timeout
            .or(keys.response_timeout.map(|timeout| timeout.0))
            .unwrap_or(RESPONSE_TIMEOUT_DEFAULT_MS);
        Ok(Self {
            url,
            security,
            // At most 49 days, so that no point in time overflows.
            response_timeout: Duration::from_millis(response_timeout.min(NUMBER_MAX)),
            message_max: keys.max_message_size.unwrap_or_default(),
            waiting: Waiting {
                no_wait: is_on(common.no_wait, common.wait, keys.no_wait),
                limit: common.wait_timeout,
                fail_on_error: common.fail_on_error,
            },
            ignore_modes: keys.ignore_modes.unwrap_or(false),
        })
    }
}

/// Returns whether an option is on: by its flag, or by its key in the file unless the opposite flag
/// is given.
fn is_on(flag: bool, opposite_flag: bool, key: Option<bool>) -> bool {
    if flag {
        return true;
    }
    if opposite_flag {
        return false;
    }
    key.unwrap_or(false)
}

/// The chosen context. An empty name means the table `default`, so that an option can override the
/// context of the environment.
fn wanted_context(common: &Common) -> Option<&str> {
    common.context.as_deref().filter(|name| !name.is_empty())
}

/// Warns if the environment overrides the server of the chosen context: users choose a context for
/// its server.
fn warn_of_other_server(
    server_url: Option<&str>,
    common: &Common,
    keys: &SettingsKeys,
    output: &mut Output,
) {
    let Some(context) = wanted_context(common) else {
        return;
    };
    if let Some(used) = server_url
        && let Some(not_used) = &keys.server_url
        && used != not_used
        && is_of_environment(used)
    {
        output.warn(one_line(&format!(
            "the server is '{used}' of ANK_SERVER_URL, not '{not_used}' of context '{context}'"
        )));
    }
}

fn is_of_environment(url: &str) -> bool {
    match std::env::var_os("ANK_SERVER_URL") {
        Some(variable) => variable == url,
        None => false,
    }
}

/// Reads the config file of the command line, or the first of the usual ones that exists.
fn find_file(common: &Common, output: &mut Output) -> Result<Option<ConfigFile>, ConfigError> {
    let mut places = Vec::new();
    if let Some(file) = user_file() {
        places.push(file);
    } else if common.ank_config.is_none() && common.context.is_some() {
        // Without a context nothing is missing: most machines of a vehicle have no HOME.
        output.warn(format_args!(
            "HOME environment variable not found, continue with searching only system config file at '{SYSTEM_FILE}'."
        ));
    }
    places.push(PathBuf::from(SYSTEM_FILE));
    ConfigFile::find(common.ank_config.as_deref(), &places)
}

/// Config file of the user, below `$HOME`.
fn user_file() -> Option<PathBuf> {
    let mut home = std::env::var_os("HOME")?;
    if home.is_empty() {
        home = "/".into();
    }
    Some(PathBuf::from(home).join(".config/ankaios/ank.conf"))
}

/// The contexts that can be chosen, for completion; none without a usable file.
pub fn known_contexts(common: &Common) -> Vec<String> {
    let mut silent = Output::to(std::io::sink(), std::io::sink(), None);
    match find_file(common, &mut silent) {
        Ok(Some(file)) => contexts(&file).unwrap_or_default(),
        Ok(None) | Err(_) => Vec::new(),
    }
}

/// The keys of the file, and its certificates.
fn read_file(
    file: Option<&ConfigFile>,
    common: &Common,
    output: &mut Output,
) -> Result<(SettingsKeys, Pems)> {
    let contexts = match file {
        Some(file) => contexts(file)?,
        None => Vec::new(),
    };
    let context = wanted_context(common);
    if let Some(name) = context
        && !contexts.iter().any(|known| known == name)
    {
        return Err(no_context(name, file, &contexts));
    }
    let Some(file) = file else {
        return Ok(Default::default());
    };
    output.debug(format_args!("config file '{}'", file.path.display()));
    file.check_version(true)?;
    let known = known_keys(&contexts);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    for warning in file.unknown_keys(&known) {
        output.warn(warning);
    }
    let keys = merged(file, context)?;
    let pems: PemKeys = merged(file, context)?;
    if let Some(warning) = settings::readable_key_warning(file, &pems) {
        output.warn(warning);
    }
    Ok((keys, pems.read(file)?))
}

/// All keys that a file with these contexts can have.
fn known_keys(contexts: &[String]) -> Vec<String> {
    let mut known = vec!["contexts".to_owned()];
    for key in KEYS.iter().chain(&PemKeys::NAMES) {
        known.push((*key).to_owned());
        known.push(format!("default.{key}"));
        for context in contexts {
            known.push(format!("contexts.{context}.{key}"));
        }
    }
    known
}

fn no_context(name: &str, file: Option<&ConfigFile>, known: &[String]) -> CliError {
    let Some(file) = file else {
        let text = format!("Context '{name}' does not exist: there is no config file.");
        return CliError::start(
            text,
            "name the config file with '--ank-config <PATH>', or the server with '--server-url <URL>'",
        );
    };
    let path = file.path.display();
    let otherwise = if known.is_empty() {
        format!("a context is a table [contexts.{name}]")
    } else {
        format!("it has '{}'", known.join("', '"))
    };
    let hint = meant_or(name, known.iter().map(String::as_str), &otherwise);
    CliError::start(
        format_args!("Context '{name}' does not exist in '{path}'."),
        &hint,
    )
}

/// Decides the address of the server and how the connection is protected.
fn connection(
    server_url: Option<&str>,
    common: &Common,
    file: Option<&ConfigFile>,
    keys: &SettingsKeys,
    pems: Pems,
    output: &mut Output,
) -> Result<(ServerUrl, Security)> {
    // First, the certificates and the address.
    let paths = [
        common.ca_pem.as_deref(),
        common.crt_pem.as_deref(),
        common.key_pem.as_deref(),
    ];
    let pems = pems
        .overridden_by(paths)
        .map_err(|error| CliError::start(pem_text(&error), &pem_hint(&error)))?;
    let text = server_url
        .or(keys.server_url.as_deref())
        .unwrap_or("https://127.0.0.1:25551");
    let url = ServerUrl::parse(text).map_err(|error| {
        let place = place_of_url(server_url, file);
        let hint = format!(
            "write it{place} as http://<host>:<port>, https://<host>:<port> or unix:///<path>"
        );
        CliError::start(format_args!("Cannot connect to server: {error}"), &hint)
    })?;
    if url.is_socket() {
        // Certificates and '--insecure' have no effect: the permissions of the socket decide who
        // may connect.
        output.debug(format_args!("server '{url}'"));
        return Ok((url, Security::Insecure));
    }
    // Then, the protection.
    let insecure = !common.no_insecure && common.insecure.or(keys.insecure).unwrap_or(false);
    let (security, warning) = settings::decide_security(insecure, pems);
    if let Some(warning) = warning {
        output.warn(warning);
    }
    let security = security.map_err(|error| {
        let hint = if text.starts_with("http:") {
            format!("if '{url}' runs without TLS, add '-k'; otherwise set the certificates")
        } else {
            "set the certificates, or add '-k' if the server runs without TLS, for example on your own machine".to_owned()
        };
        let missing = error.options();
        CliError::start(format_args!("Missing certificate files: {missing}"), &hint)
    })?;
    // Finally, the scheme: the certificates decide about TLS. Plain text to a server with TLS would
    // only fail later.
    let url = url.with_tls(security != Security::Insecure);
    let protection = if url.uses_tls() {
        "mutual TLS"
    } else {
        "no TLS"
    };
    output.debug(format_args!("server '{url}', {protection}"));
    Ok((url, security))
}

/// The place where the address of the server is written, for a text; empty for the command line.
fn place_of_url(server_url: Option<&str>, file: Option<&ConfigFile>) -> String {
    if let Some(url) = server_url {
        if is_of_environment(url) {
            return " in the variable ANK_SERVER_URL".to_owned();
        }
        return String::new();
    }
    match file {
        Some(file) => format!(" in {}", file.place("server_url")),
        None => String::new(),
    }
}

/// The error of a PEM file, in one level of quotes.
fn pem_text(error: &PemError) -> String {
    match error {
        PemError::Open { path, source } => {
            format!(
                "Certificate error: cannot open '{}': {source}",
                path.display()
            )
        }
        PemError::Mode {
            path, what, mode, ..
        } => format!(
            "Certificate error: {what} '{}' has insecure permissions {mode:04o}",
            path.display()
        ),
    }
}

fn pem_hint(error: &PemError) -> String {
    match error {
        PemError::Open { .. } => "check the path and the permissions of the file".to_owned(),
        PemError::Mode { path, .. } => format!("'chmod 0600 {}' corrects them", path.display()),
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        let (text, hint) = match &error {
            ConfigError::Read { path, source } => (
                format!("cannot read config file '{}': {source}", path.display()),
                "name the config file with '--ank-config <PATH>'",
            ),
            ConfigError::NoVersion(path) => (
                format!("config file '{}' has no version", path.display()),
                VERSION_LINE,
            ),
            ConfigError::Parse(detail) => (
                format!("Config file could not be parsed: {detail}"),
                "correct that file, or name another one with '--ank-config <PATH>'",
            ),
            ConfigError::WrongVersion { version, place } => (
                format!("Config file could not be parsed: {place}: wrong version '{version}'"),
                VERSION_LINE,
            ),
            ConfigError::ConflictingPems { .. } => (
                format!("Config file could not be parsed: {error}"),
                "keep either the path or the content of each PEM in the config file",
            ),
            ConfigError::Pem { source, key, place } => {
                let text = format!("{} ({place}: '{key}')", pem_text(source));
                return Self::start(text, &pem_hint(source));
            }
        };
        Self::start(text, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use crate::tests::Written;
    use std::io;

    /// Loads the settings for the words after `-x <file with text>`; returns them or the error and
    /// its hint, and standard error.
    fn load_with_hint(
        file: &str,
        words: &[&str],
    ) -> (Result<CliSettings, (String, String)>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ank.conf");
        std::fs::write(&path, file).unwrap();
        let path = path.to_str().unwrap();
        let words = ["ank", "-x", path]
            .into_iter()
            .chain(words.iter().copied())
            .chain(["get", "agents"]);
        let arguments = Arguments::read(words).unwrap();
        let err = Written::default();
        let mut output = Output::to(io::sink(), err.clone(), None);
        let settings = CliSettings::load(
            arguments.server_url.as_deref(),
            &arguments.common,
            &mut output,
        );
        let hint = |error: &CliError| error.hint().replace(path, "FILE");
        let settings = settings.map_err(|error| (error.to_string(), hint(&error)));
        drop(output);
        (settings, err.text().replace(path, "FILE"))
    }

    fn load(file: &str, words: &[&str]) -> (Result<CliSettings, String>, String) {
        let (settings, err) = load_with_hint(file, words);
        (settings.map_err(|(text, _)| text), err)
    }

    #[test]
    fn command_line_beats_file_and_default_table_beats_top_level() {
        let file = "version = 'v1'\nserver_url = 'http://top:1'\nresponse_timeout = 7\ninsecure = true\nmax_message_size = 5000000\n[default]\nserver_url = 'http://table:2'\nno_wait = true\n";
        let (settings, warnings) = load(file, &[]);
        let settings = settings.unwrap();
        assert_eq!(settings.url.to_string(), "http://table:2");
        assert_eq!(settings.response_timeout, Duration::from_millis(7));
        assert!(settings.waiting.no_wait);
        assert_eq!(settings.message_max, Number(5_000_000));
        assert_eq!(warnings, "");
        let (settings, _) = load(file, &["-s", "http://line:3", "--response-timeout", "1"]);
        let settings = settings.unwrap();
        assert_eq!(
            (settings.url.to_string().as_str(), settings.response_timeout),
            ("http://line:3", Duration::from_millis(1))
        );
    }

    #[test]
    fn context_replaces_default_table_and_options_replace_both() {
        let file = "version = 'v1'\nresponse_timeout = 7\n[default]\nserver_url = 'http://table:2'\nquiet = true\n\
                    [contexts.car]\nserver_url = 'http://car:3'\nno_wait = true\n[contexts.lab]\ninsecur = true\n";
        let (settings, warnings) = load(file, &["-k", "--context", "car"]);
        let settings = settings.unwrap();
        assert_eq!(
            (settings.url.to_string().as_str(), settings.waiting.no_wait),
            ("http://car:3", true)
        );
        assert_eq!(
            settings.response_timeout,
            Duration::from_millis(7),
            "of the top"
        );
        assert!(warnings.contains(
            "unknown key 'contexts.lab.insecur' is ignored. Did you mean 'contexts.lab.insecure'?"
        ));
        let (settings, _) = load(
            file,
            &["-k", "--context", "car", "-s", "http://line:4", "--wait"],
        );
        let settings = settings.unwrap();
        assert_eq!(
            (settings.url.to_string().as_str(), settings.waiting.no_wait),
            ("http://line:4", false)
        );
        assert_eq!(
            load(file, &["-k"]).0.unwrap().url.to_string(),
            "http://table:2"
        );
        let (settings, _) = load(file, &["-k", "--context", ""]);
        assert_eq!(
            settings.unwrap().url.to_string(),
            "http://table:2",
            "an empty name is none"
        );
        let error = load(file, &["-k", "--context", "cat"]).0.unwrap_err();
        assert!(
            error.starts_with("Context 'cat' does not exist in '"),
            "{error}"
        );
        let wrong = "version = 'v1'\n[contexts.lab]\nquiet = 'no'\n";
        assert!(
            load(wrong, &["-k"])
                .0
                .unwrap_err()
                .contains("line 3, column 9")
        );
    }

    #[test]
    fn what_the_file_switches_on_an_option_switches_off() {
        let file =
            "version = 'v1'\nquiet = true\nverbose = true\nno_wait = true\ninsecure = true\n";
        assert!(load(file, &[]).0.unwrap().waiting.no_wait);
        assert!(!load(file, &["--wait"]).0.unwrap().waiting.no_wait);
        let level = |words: &[&str]| load(file, words).1.contains("debug: server");
        assert_eq!(
            (
                level(&[]),
                level(&["--no-quiet"]),
                level(&["--no-quiet", "--no-verbose"])
            ),
            (false, true, false)
        );
        let error = load(file, &["--no-insecure"]).0.unwrap_err();
        assert!(error.starts_with("Missing certificate files"), "{error}");
    }

    #[test]
    fn defaults_apply_where_nothing_is_set() {
        let (settings, _) = load("[default]\nversion = 'v1'\n", &["-k"]);
        let settings = settings.unwrap();
        assert_eq!(
            settings.url.to_string(),
            "http://127.0.0.1:25551",
            "without TLS the scheme is http"
        );
        assert_eq!(settings.security, Security::Insecure);
        assert_eq!(settings.response_timeout, Duration::from_secs(3));
        assert_eq!(settings.waiting, Waiting::default());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let v1 = "version = 'v1'\n";
        for (file, words, error) in [
            ("version = 'v2'\n", &["-k"][..], ": wrong version 'v2'"),
            ("", &["-k"], "' has no version"),
            (
                &format!("{v1}verbose = 'yes'\n"),
                &["-k"],
                "line 2, column 11",
            ),
            (
                &format!("{v1}default = 3\n"),
                &["-k"],
                "Config file could not",
            ),
            (
                &format!("{v1}ca_pem = 'a'\n[default]\nca_pem_content = 'b'\n"),
                &["-k"],
                "Conflicting certificates",
            ),
            (
                v1,
                &["-k", "-s", "here"],
                "Cannot connect to server: Wrong server address format: 'here'.",
            ),
            (
                v1,
                &["-k", "-s", ""],
                "Cannot connect to server: Wrong server address format: ''.",
            ),
            (
                v1,
                &[],
                "Missing certificate files: '--ca_pem', '--crt_pem', '--key_pem'",
            ),
            (
                v1,
                &["-k", "--ca_pem", "/nowhere/ca.pem"],
                "Certificate error: cannot open '/nowhere/ca.pem': No such file",
            ),
        ] {
            let (settings, _) = load(file, words);
            let found = settings.unwrap_err();
            assert!(found.contains(error), "{file:?} {words:?}: {found}");
        }
    }

    #[test]
    fn a_wrong_url_of_the_config_file_is_reported_with_its_place() {
        let file = "version = 'v1'\n[default]\nserver_url = 'here'\n";
        for (words, expected) in [
            (&["-k"][..], "write it in 'FILE', line 3 as http://"),
            (&["-k", "-s", "there"], "write it as http://"),
        ] {
            let hint = load_with_hint(file, words).0.unwrap_err().1;
            assert!(hint.starts_with(expected), "{hint}");
        }
    }

    #[test]
    fn a_url_without_tls_needs_an_option_that_the_hint_names() {
        let hint = |url| {
            load_with_hint("version = 'v1'\n", &["-s", url])
                .0
                .unwrap_err()
                .1
        };
        assert_eq!(
            hint("http://there:1"),
            "if 'http://there:1' runs without TLS, add '-k'; otherwise set the certificates"
        );
        assert!(hint("https://there:1").contains("add '-k' if the server runs without TLS"));
    }

    #[test]
    fn a_socket_needs_neither_certificates_nor_insecure() {
        let v1 = "version = 'v1'\n";
        for (file, words) in [
            (v1, &["-s", "unix:///run/ank.sock"][..]),
            (v1, &["-k", "-s", "unix:///run/ank.sock"]),
            (
                &format!("{v1}server_url = 'unix:///run/ank.sock'\nca_pem_content = 'C'\n"),
                &[],
            ),
        ] {
            let (settings, warnings) = load(file, words);
            let settings = settings.unwrap();
            assert_eq!(
                (settings.url.to_string().as_str(), &settings.security),
                ("unix:///run/ank.sock", &Security::Insecure)
            );
            assert_eq!(warnings, "");
        }
    }

    #[test]
    fn keys_are_never_printed() {
        let file = "version = 'v1'\nkey_pem_content = 'SECRET'\n";
        let (settings, err) = load(file, &["-v"]);
        let text = format!("{err}{}", settings.unwrap_err());
        assert!(!text.contains("SECRET"), "{text}");
        let file = "version = 'v1'\nca_pem_content = 'C'\ncrt_pem_content = 'C'\nkey_pem_content = 'SECRET'\n";
        let (settings, err) = load(file, &["-v"]);
        let text = format!("{err}{:?}", settings.unwrap());
        assert!(
            !text.contains("SECRET") && text.contains("mutual TLS"),
            "{text}"
        );
    }

    #[test]
    fn unknown_keys_are_warned_about() {
        let (_, err) = load(
            "version = 'v1'\ninsecur = true\n[default]\nserver = 'x'\n",
            &["-k"],
        );
        assert!(
            err.contains("'insecur'") && err.contains("'default.server'"),
            "{err}"
        );
    }
}
