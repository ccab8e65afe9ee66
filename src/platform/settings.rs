//! What the settings of the three programs have in common: config files, PEM texts, boolean flags,
//! the TLS decision.
//!
//! Thread: `main`, once at the start.
//! Takes: paths and texts of the command line, the environment and one TOML file (command line >
//! environment > file > default, decided per setting by the program). Gives: checked values, or
//! errors with their texts. Nothing here logs, since `ank` has no logger: warnings are returned.

use crate::limits::CONTROL_MESSAGE_MAX;
use crate::security::{PemTexts, Security};
use ankaios_model::limits::{FOREIGN_MESSAGE_MAX, MESSAGE_MAX};
use ankaios_model::nearest::nearest;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest config or PEM file, in bytes: a CA bundle of a whole distribution is about 250 KB.
const FILE_MAX: usize = 1024 * 1024;
/// The highest value of `max_message_size`, in bytes: gRPC counts sizes in 32 bits with a sign.
const MESSAGE_MAX_HIGHEST: usize = 1024 * 1024 * 1024;

/// The only version of config files.
pub(crate) const CONFIG_VERSION: &str = "v1";
/// The way out for a file without version, or with a wrong one.
pub const VERSION_LINE: &str = "begin the file with: version = \"v1\"";

/// A whole number in a config file, from `LOW` to `HIGH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number<const LOW: u64, const HIGH: u64, const DEFAULT: u64 = 0>(pub u64);

impl<const LOW: u64, const HIGH: u64, const DEFAULT: u64> Default for Number<LOW, HIGH, DEFAULT> {
    fn default() -> Self {
        Self(DEFAULT)
    }
}

impl<'de, const LOW: u64, const HIGH: u64, const DEFAULT: u64> Deserialize<'de>
    for Number<LOW, HIGH, DEFAULT>
{
    /// An error names the range, not a type of the language.
    fn deserialize<D: Deserializer<'de>>(number: D) -> Result<Self, D::Error> {
        if let Ok(number) = i64::deserialize(number)
            && let Ok(number) = u64::try_from(number)
            && (LOW..=HIGH).contains(&number)
        {
            return Ok(Self(number));
        }
        let expected = format_args!("expected a whole number from {LOW} to {HIGH}");
        Err(D::Error::custom(expected))
    }
}

/// The highest value of numbers without a limit of their own.
pub const NUMBER_MAX: u64 = u32::MAX as u64;

/// Value of the key `max_message_size`: the largest gRPC message sent and received, in bytes. It
/// should be the same for all programs of a cluster: otherwise the server sends no more than the
/// lowest one, and receives no more than its own.
pub type MessageSize =
    Number<{ FOREIGN_MESSAGE_MAX as u64 }, { MESSAGE_MAX_HIGHEST as u64 }, { MESSAGE_MAX as u64 }>;

/// The key `max_control_message_size` of an agent's config file: bytes of the longest message that
/// a workload may send through its control interface.
pub type ControlMessageSize =
    Number<{ 4 * 1024 }, { MESSAGE_MAX_HIGHEST as u64 }, { CONTROL_MESSAGE_MAX as u64 }>;

/// The config file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("Config file could not have been parsed due to: cannot read '{}': {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has no `version`.
    #[error("Config file could not have been parsed due to: '{}': missing field `version`: {VERSION_LINE}", .0.display())]
    NoVersion(PathBuf),
    /// Not TOML, or a key of the wrong type. The text names the file.
    #[error("Config file could not have been parsed due to: {0}")]
    Parse(String),
    /// Another version than [`CONFIG_VERSION`].
    #[error("Wrong version: {version} ({place}: '{CONFIG_VERSION}' is expected)")]
    WrongVersion {
        version: String,
        /// File and line.
        place: String,
    },
    /// One PEM is given as a path and as content in the same file.
    #[error(
        "Conflicting certificates: Certificate paths and certificate content are both set ({place}: '{key}' and \
         '{key}_content')"
    )]
    ConflictingPems {
        /// The key for the path.
        key: &'static str,
        /// The file.
        place: String,
    },
    /// A PEM file that the config file names cannot be used.
    #[error("Certificate could not have been read due to: {source} ({place}: '{key}')")]
    Pem {
        /// Why.
        source: PemError,
        /// The key for the path.
        key: &'static str,
        /// File and line.
        place: String,
    },
}

/// Why a program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Help, version or a usage error: what clap prints, and the exit code it wants.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The config file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// PEM files of options or environment.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// Neither certificates nor `--insecure`.
    #[error(transparent)]
    Security(#[from] MissingPems),
    /// A setting that only one of the programs has.
    #[error("{text}")]
    Other {
        /// What failed.
        what: &'static str,
        text: String,
    },
}

impl SettingsError {
    /// The error for a command line that `command` refuses, with the environment variable that it
    /// is about.
    pub fn usage(error: clap::Error, command: &clap::Command) -> Self {
        Self::Usage(naming_variable(error, command))
    }

    /// The error as it is logged. Scripts match this form.
    pub fn for_log(&self) -> String {
        let what = match self {
            Self::Usage(_) => "Wrong usage",
            Self::Config(_) => "Config file could not be parsed",
            Self::Pem(_) => "Failed to load certificate files!",
            Self::Security(_) => "Missing certificate files",
            Self::Other { what, .. } => what,
        };
        format!("{what}: '{self}'")
    }
}

/// A config file that was read but not yet interpreted. It may hold keys, so neither it nor its
/// content is ever printed.
pub struct ConfigFile {
    pub path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file of the option, or the first of `places` that exists. `None` without any.
    ///
    /// # Errors
    /// [`ConfigError::Read`] if the file of the option is missing, or a file that exists cannot be
    /// read.
    pub fn find(option: Option<&Path>, places: &[PathBuf]) -> Result<Option<Self>, ConfigError> {
        if let Some(path) = option {
            return Self::read(path).map(Some);
        }
        for path in places {
            // Only absence is skipped; a dangling link or an unreadable folder is an error.
            if !matches!(path.try_exists(), Ok(false)) {
                return Self::read(path).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let text = read_limited(File::open(path).map_err(failed)?, FILE_MAX).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }

    /// The keys that `T` names, strictly typed; others are ignored. Each group of keys, [`PemKeys`]
    /// for example, is a type with `Option` fields.
    pub fn keys<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.wrong(&error))
    }

    /// The error for a text that is not as expected. It quotes no key.
    fn wrong(&self, error: &toml::de::Error) -> ConfigError {
        let file = self.path.display();
        let holds_key = self.text.contains("PRIVATE KEY") || self.text.contains("key_pem_content");
        if !holds_key {
            let mut shown = error.to_string();
            if let Some(plain) = wrong_type(error.message()) {
                shown = shown.replace(error.message(), &plain);
            }
            return ConfigError::Parse(format!("'{file}': {}", shown.trim_end()));
        }
        // The excerpt may be any line of a key, and the message may quote it.
        let line = match error.span() {
            Some(span) => self.line(span.start),
            None => 1,
        };
        let mut message = error.message();
        if message.contains("PRIVATE KEY") {
            message = "a value of the wrong type";
        }
        ConfigError::Parse(format!(
            "'{file}': line {line}: {message} (excerpt left out)"
        ))
    }

    /// Checks that `version` is [`CONFIG_VERSION`]; with `in_default` it may also stand in the
    /// table `[default]`.
    pub fn check_version(&self, in_default: bool) -> Result<(), ConfigError> {
        #[derive(Deserialize)]
        struct Given {
            version: Option<String>,
        }
        #[derive(Deserialize)]
        struct GivenInDefault {
            default: Given,
        }
        let mut version = None;
        if in_default && let Ok(keys) = self.keys::<GivenInDefault>() {
            version = keys.default.version;
        }
        if version.is_none() {
            version = self.keys::<Given>()?.version;
        }
        let Some(version) = version else {
            return Err(ConfigError::NoVersion(self.path.clone()));
        };
        if version == CONFIG_VERSION {
            return Ok(());
        }
        Err(ConfigError::WrongVersion {
            version,
            place: self.place("version"),
        })
    }

    /// The file, and the line of `key` if only one table has it.
    pub fn place(&self, key: &str) -> String {
        let mut found = Vec::new();
        self.walk(&mut |visited| {
            if !visited.is_table && visited.path.rsplit('.').next() == Some(key) {
                found.push(visited.line);
            }
            true
        });
        let file = self.path.display();
        match found[..] {
            [line] => format!("'{file}', line {line}"),
            _ => format!("'{file}'"),
        }
    }

    /// The line of a place in the text, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or_default();
        before.matches('\n').count() + 1
    }

    /// A warning, with line number and the nearest known key, for every key that no pattern of
    /// `known` names.
    ///
    /// A pattern is a dotted path, for example `mutating_hooks.name`; tables in arrays count as
    /// tables, and a last part `*` stands for any key with anything below it. A table that is not
    /// known is reported once.
    pub fn unknown_keys(&self, known: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(&mut |VisitedKey { path, line, .. }| {
            let is_known = known.iter().any(|pattern| leads_to(pattern, path));
            if !is_known {
                let hint = hint_of_unknown(path, known);
                let file = self.path.display();
                let warning =
                    format!("'{file}', line {line}: unknown key '{path}' is ignored.{hint}");
                found.push((line, warning));
            }
            is_known
        });
        found.sort_unstable();
        found.into_iter().map(|(_, warning)| warning).collect()
    }

    /// Calls `visit` for each key. Its result decides whether to visit the keys below as well.
    fn walk(&self, visit: &mut dyn FnMut(VisitedKey<'_>) -> bool) {
        if let Ok(table) = DeTable::parse(&self.text) {
            self.walk_table(table.get_ref(), "", visit);
        }
    }

    /// Visits the keys of a table, whose paths begin with `above`.
    fn walk_table(
        &self,
        table: &DeTable<'_>,
        above: &str,
        visit: &mut dyn FnMut(VisitedKey<'_>) -> bool,
    ) {
        for (key, value) in table {
            let path = format!("{above}{}", key.get_ref());
            let value = value.get_ref();
            let visits_below = visit(VisitedKey {
                path: &path,
                line: self.line(key.span().start),
                is_table: value.is_table(),
            });
            if !visits_below {
                continue;
            }
            // Each table in an array has the path of the array.
            let values = match value {
                DeValue::Array(items) => items.iter().map(Spanned::get_ref).collect(),
                value => vec![value],
            };
            for value in values {
                if let DeValue::Table(table) = value {
                    self.walk_table(table, &format!("{path}."), visit);
                }
            }
        }
    }
}

/// A key of a config file.
struct VisitedKey<'k> {
    /// Its name, behind those of the tables that it is in.
    path: &'k str,
    line: usize,
    is_table: bool,
}

/// Returns whether `pattern` names the key `path` or keys below it.
fn leads_to(pattern: &str, path: &str) -> bool {
    // A `*` stands for all keys below.
    if let Some(stem) = pattern.strip_suffix(".*")
        && let Some(rest) = path.strip_prefix(stem)
        && rest.starts_with('.')
    {
        return true;
    }
    match pattern.strip_prefix(path) {
        Some(rest) => rest.is_empty() || rest.starts_with('.'),
        None => false,
    }
}

/// A key of another program, and the key of ours in its place.
struct ForeignKey {
    name: &'static str,
    ours: &'static str,
    /// Appended to the name of our key.
    difference: &'static str,
}

const FOREIGN_KEYS: [ForeignKey; 2] = [
    ForeignKey {
        name: "state_persistence_file",
        ours: "state_dir",
        difference: ", which names a folder",
    },
    ForeignKey {
        name: "startup_config",
        ours: "startup_manifest",
        difference: "",
    },
];

/// The advice at the end of the warning of an unknown key.
fn hint_of_unknown(path: &str, known: &[&str]) -> String {
    for key in FOREIGN_KEYS {
        if path == key.name && known.contains(&key.ours) {
            return format!(" Use '{}'{}.", key.ours, key.difference);
        }
    }
    match nearest_key(path, known) {
        Some(name) => format!(" Did you mean '{name}'?"),
        None => String::new(),
    }
}

/// The message about a value of a wrong type in words of users: the parser names types of the
/// language. `None` for other messages.
fn wrong_type(message: &str) -> Option<String> {
    let types = message.strip_prefix("invalid type: ")?;
    let (found, expected) = types.rsplit_once(", expected ")?;
    let expected = match expected {
        "a boolean" => "true or false without quotes",
        "a string" => "text in quotes",
        "a sequence" => "a list as [\"a\", \"b\"]",
        other => other,
    };
    let mut found = found.replace('`', "");
    for (word, plain) in [
        ("string ", "text "),
        ("integer ", "number "),
        ("floating point ", "number "),
        ("sequence", "a list"),
        ("map", "a table"),
    ] {
        if let Some(value) = found.strip_prefix(word) {
            found = format!("{plain}{value}");
            break;
        }
    }
    Some(format!("expected {expected}, found {found}"))
}

/// Returns the known key that is most similar to `path`. Longer known keys are cut to its depth.
fn nearest_key<'k>(path: &str, known: &[&'k str]) -> Option<&'k str> {
    let dots = path.matches('.').count();
    let mut candidates = Vec::new();
    for pattern in known {
        match pattern.match_indices('.').nth(dots) {
            Some((end, _)) => candidates.push(&pattern[..end]),
            None => candidates.push(pattern),
        }
    }
    nearest(path, candidates)
}

/// Reads a text of at most `max` bytes that a person wrote. A byte order mark is left out.
///
/// # Errors
/// `FileTooLarge`; `InvalidData` if it is not UTF-8, with its probable encoding.
pub fn read_limited(source: impl Read, max: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {max} bytes"),
        ));
    }
    if is_utf16(&bytes) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is text in UTF-16; save it as UTF-8",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {line} is not UTF-8; save it as UTF-8"),
        )
    })?;
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => Ok(rest.to_owned()),
        None => Ok(text),
    }
}

/// The mark that some editors write before a text in UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns whether bytes begin like a text in UTF-16: with its mark, or with an ASCII letter.
fn is_utf16(bytes: &[u8]) -> bool {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => true,
        [0, first, 0, ..] | [first, 0, _, 0, ..] => *first != 0,
        _ => false,
    }
}

// --------------------------------------------------------------------- PEM

/// A PEM file cannot be used. The texts hold no content of the file.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// Cannot be opened or read.
    #[error("Certificate error: 'Error during opening the given file \"{}\": {source}'", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Permissions that let others read or change it.
    #[error(
        "Certificate error: '{what} \"{}\" has insecure permissions {mode:04o}. {rule} Use 'chmod 0600 {}' to fix this.'",
        path.display(), path.display()
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its content.
        what: &'static str,
        /// The permissions that it may have.
        rule: &'static str,
        /// Its permission bits.
        mode: u32,
    },
}

/// Opens `path`, checks the permissions of the opened file (links are followed) and reads the text.
/// A private key has mode 0600 or 0400, others can neither change nor execute a certificate.
pub(crate) fn read_pem(path: &Path, is_key: bool) -> Result<String, PemError> {
    let failed = |source| PemError::Open {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    let mode = metadata.permissions().mode() & 0o7777; // Also no set-id bits.
    if is_key && !matches!(mode, 0o600 | 0o400) {
        return Err(PemError::Mode {
            path: path.to_owned(),
            what: "Private key file",
            rule: "Private keys must have permissions 0600 or 0400.",
            mode,
        });
    }
    if !is_key && (mode & 0o400 == 0 || mode & 0o133 != 0) {
        return Err(PemError::Mode {
            path: path.to_owned(),
            what: "Certificate file",
            rule: "Certificates must be readable for the owner, not writable for others and not executable.",
            mode,
        });
    }
    read_limited(file, FILE_MAX).map_err(|error| {
        if error.kind() != io::ErrorKind::InvalidData {
            return failed(error);
        }
        let command = if is_key {
            "openssl pkey -inform DER"
        } else {
            "openssl x509 -inform DER"
        };
        let text = format!("it is no PEM text; '{command}' converts a file in DER form");
        failed(io::Error::new(io::ErrorKind::InvalidData, text))
    })
}

/// The key of the path of a private key.
const KEY_PEM: &str = "key_pem";

/// The PEM keys of a config file, as read by [`ConfigFile::keys`].
#[derive(Clone, Default, Deserialize)]
pub struct PemKeys {
    /// Path of the CA certificate.
    pub(crate) ca_pem: Option<PathBuf>,
    /// Path of our certificate.
    pub(crate) crt_pem: Option<PathBuf>,
    /// Path of our private key.
    pub(crate) key_pem: Option<PathBuf>,
    /// The CA certificate itself.
    pub(crate) ca_pem_content: Option<String>,
    /// Our certificate itself.
    pub(crate) crt_pem_content: Option<String>,
    /// Our private key itself.
    pub(crate) key_pem_content: Option<String>,
}

impl PemKeys {
    /// Names of the keys, for [`ConfigFile::unknown_keys`].
    pub const NAMES: [&'static str; 6] = [
        "ca_pem",
        "crt_pem",
        KEY_PEM,
        "ca_pem_content",
        "crt_pem_content",
        "key_pem_content",
    ];

    /// Returns the texts: contents as they are, and the files of paths, which are read at once.
    /// `file` has the keys.
    pub fn read(self, file: &ConfigFile) -> Result<Pems, ConfigError> {
        Ok(Pems {
            ca: read_key(file, "ca_pem", self.ca_pem, self.ca_pem_content)?,
            certificate: read_key(file, "crt_pem", self.crt_pem, self.crt_pem_content)?,
            key: read_key(file, KEY_PEM, self.key_pem, self.key_pem_content)?,
        })
    }
}

/// Returns the text of one PEM, which a config file has as a path or as its content.
fn read_key(
    file: &ConfigFile,
    key: &'static str,
    path: Option<PathBuf>,
    content: Option<String>,
) -> Result<Option<String>, ConfigError> {
    let Some(path) = path else {
        return Ok(content);
    };
    if content.is_some() {
        return Err(ConfigError::ConflictingPems {
            key,
            place: file.place(key),
        });
    }
    match read_pem(&path, key == KEY_PEM) {
        Ok(text) => Ok(Some(text)),
        Err(source) => Err(ConfigError::Pem {
            source,
            key,
            place: file.place(key),
        }),
    }
}

/// Paths of a CA certificate, of our certificate and of our private key: the PEM options of a
/// command line (`--ca_pem` and so on) and their environment variables.
pub(crate) type PemPaths<'a> = [Option<&'a Path>; 3];

/// The texts of a CA certificate, of our certificate and of our private key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pems {
    ca: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
}

impl Pems {
    /// Reads the files of `paths`, which replace the texts of the config file.
    pub fn overridden_by(mut self, paths: PemPaths<'_>) -> Result<Self, PemError> {
        let [ca, certificate, key] = paths;
        if let Some(path) = ca {
            self.ca = Some(read_pem(path, false)?);
        }
        if let Some(path) = certificate {
            self.certificate = Some(read_pem(path, false)?);
        }
        if let Some(path) = key {
            self.key = Some(read_pem(path, true)?);
        }
        Ok(self)
    }
}

/// The warning about a config file with a private key that other users can read.
pub fn readable_key_warning(file: &ConfigFile, keys: &PemKeys) -> Option<String> {
    let mode = std::fs::metadata(&file.path).ok()?.permissions().mode() & 0o777;
    let is_private = mode & 0o077 == 0;
    if keys.key_pem_content.is_none() || is_private {
        return None;
    }
    let path = file.path.display();
    Some(format!(
        "'{path}' holds a private key but its permissions are {mode:04o}. Use 'chmod 0600 {path}'."
    ))
}

// --------------------------------------------------------- flags, decision

/// The combined value of `--insecure`, its environment variable and `--no-insecure`; `None` if none
/// is given.
///
/// The later option overrides the earlier one, and an option the environment; clap's own way of
/// overriding reports a conflict. For arguments with the ids `insecure` and `no_insecure`, declared
/// as `bool`; clap itself refuses other values of the variable than `true` and `false`.
pub fn insecure_flag(matches: &clap::ArgMatches) -> Option<bool> {
    let insecure = option_index(matches, "insecure");
    if let Some(not) = option_index(matches, "no_insecure") {
        let is_later = insecure.is_some_and(|insecure| insecure > not);
        return Some(is_later);
    }
    match matches.value_source("insecure")? {
        ValueSource::DefaultValue => None,
        _ => Some(matches.get_flag("insecure")),
    }
}

/// Returns the place of an option on the command line.
fn option_index(matches: &clap::ArgMatches, id: &str) -> Option<usize> {
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return None;
    }
    matches.indices_of(id)?.next_back()
}

/// Adds the environment variable to a usage error about its value: clap names only the option of
/// `command`.
pub fn naming_variable(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    if let Some(name) = variable_of(&error, command) {
        let name = name.display();
        let tip = format!("the value is that of the environment variable {name}");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// Returns the environment variable with the value that `error` is about.
fn variable_of<'c>(error: &clap::Error, command: &'c clap::Command) -> Option<&'c OsStr> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value,
        _ => "",
    };
    let long = option.strip_prefix("--")?.split(' ').next();
    let mut arguments = command.get_arguments();
    let argument = arguments.find(|argument| argument.get_long() == long)?;
    let name = argument.get_env()?;
    if std::env::var_os(name)? != value {
        return None;
    }
    Some(name)
}

/// Neither certificates nor `--insecure`. Reported as `Missing certificate files: '<error>'`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Either provide mTLS config via the '--ca_pem', '--crt_pem' and '--key_pem' options or deactivate mTLS with the '--insecure' option! Missing: {}",
    missing.join(", ")
)]
pub struct MissingPems {
    missing: Vec<&'static str>,
}

impl MissingPems {
    /// The options that are missing, in quotes.
    pub fn options(&self) -> String {
        self.missing.join(", ")
    }
}

/// Decides how connections are protected: by certificates, or not at all with `insecure`. Also
/// returns a warning to print first, if both are given.
pub fn decide_security(
    insecure: bool,
    pems: Pems,
) -> (Result<Security, MissingPems>, Option<&'static str>) {
    if insecure && pems == Pems::default() {
        return (Ok(Security::Insecure), None);
    }
    let mut warning = None;
    if insecure {
        warning = Some(
            "Insecure and secure flags specified at the same time. Defaulting to secure communication.",
        );
    }
    let Pems {
        ca,
        certificate,
        key,
    } = pems;
    let mut missing = Vec::new();
    if ca.is_none() {
        missing.push("'--ca_pem'");
    }
    if certificate.is_none() {
        missing.push("'--crt_pem'");
    }
    if key.is_none() {
        missing.push("'--key_pem'");
    }
    if let Some(ca) = ca
        && let Some(certificate) = certificate
        && let Some(key) = key
    {
        let texts = PemTexts {
            ca,
            certificate,
            key,
        };
        return (Ok(Security::MutualTls(texts)), warning);
    }
    (Err(MissingPems { missing }), warning)
}

#[cfg(test)]
mod tests;
