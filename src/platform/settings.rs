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
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest config or PEM file, in bytes: a CA bundle of a whole distribution is about 250 KB.
const FILE_MAX: usize = 1024 * 1024;
/// The highest value of `max_message_size`, in bytes: sizes are counted in 32 bits with a sign in
/// some places.
const MESSAGE_MAX_HIGHEST: usize = 1024 * 1024 * 1024;

/// The only version of config files.
pub(crate) const CONFIG_VERSION: &str = "v1";
/// What to do about a file without version, or with another one.
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
    /// An error names what is expected, not a type of the language.
    fn deserialize<D: Deserializer<'de>>(number: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(number)
            .ok()
            .and_then(|number| u64::try_from(number).ok());
        let expected =
            || D::Error::custom(format_args!("expected a whole number from {LOW} to {HIGH}"));
        number
            .filter(|number| (LOW..=HIGH).contains(number))
            .map(Self)
            .ok_or_else(expected)
    }
}

/// The highest value of numbers without a limit of their own.
pub const NUMBER_MAX: u64 = u32::MAX as u64;

/// Value of the key `max_message_size`: the largest gRPC message sent and received, in bytes. Has
/// to be the same for all programs of a cluster, or the lowest one counts for what the server
/// sends, and its own for what it receives.
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
        /// What was found.
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
        /// See [`Self::what`].
        what: &'static str,
        /// What is wrong with it.
        text: String,
    },
}

impl SettingsError {
    /// The error for a command line that `command` refuses, with the environment variable that it
    /// is about.
    pub fn usage(error: clap::Error, command: &clap::Command) -> Self {
        Self::Usage(naming_variable(error, command))
    }

    /// What failed, to be logged before the text of the error.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Usage(_) => "Wrong usage",
            Self::Config(_) => "Config file could not be parsed",
            Self::Pem(_) => "Failed to load certificate files!",
            Self::Security(_) => "Missing certificate files",
            Self::Other { what, .. } => what,
        }
    }
}

/// A config file that was read but not yet interpreted. It may hold keys, so it is never printed,
/// nor is what it holds.
pub struct ConfigFile {
    pub path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file given by option, or else the first of `places` that exists. `None`: no file,
    /// use defaults.
    ///
    /// # Errors
    /// [`ConfigError::Read`] when the given file is missing, or when a file exists but cannot be
    /// read: it is never skipped silently.
    pub fn find(option: Option<&Path>, places: &[PathBuf]) -> Result<Option<Self>, ConfigError> {
        if let Some(path) = option {
            return Self::read(path).map(Some);
        }
        // A dangling link or an unreadable folder is for the reader to complain about; only absence
        // is skipped.
        let exists = |path: &&PathBuf| !matches!(path.try_exists(), Ok(false));
        places
            .iter()
            .find(exists)
            .map(|path| Self::read(path))
            .transpose()
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

    /// The keys that `T` names, strictly typed; others are ignored here. Give `T` `Option` fields
    /// and call this once per group of keys (for example once with [`PemKeys`]).
    pub fn keys<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &toml::de::Error) -> ConfigError {
        // The excerpt may be any line of a key, also one that does not look like it.
        let holds_key = ["PRIVATE KEY", "key_pem_content"]
            .iter()
            .any(|sign| self.text.contains(sign));
        let shown = if holds_key {
            let line = error.span().map_or(1, |span| self.line(span.start));
            // The message may quote the value.
            let message = error.message();
            let message = if message.contains("PRIVATE KEY") {
                "a value of the wrong type"
            } else {
                message
            };
            format!("line {line}: {message} (excerpt left out)")
        } else {
            error.to_string().trim_end().to_owned()
        };
        ConfigError::Parse(format!("'{}': {shown}", self.path.display()))
    }

    /// Checks that `version` is [`CONFIG_VERSION`]; with `in_default` it may also stand in the
    /// table `[default]`.
    pub fn check_version(&self, in_default: bool) -> Result<(), ConfigError> {
        #[derive(Deserialize)]
        struct Given {
            version: Option<String>,
        }
        #[derive(Deserialize)]
        struct Default {
            default: Given,
        }
        let in_table = in_default.then(|| self.keys::<Default>().ok()).flatten();
        let version = match in_table.and_then(|keys| keys.default.version) {
            Some(version) => version,
            None => self
                .keys::<Given>()?
                .version
                .ok_or_else(|| ConfigError::NoVersion(self.path.clone()))?,
        };
        if version == CONFIG_VERSION {
            return Ok(());
        }
        Err(ConfigError::WrongVersion {
            version,
            place: self.place("version"),
        })
    }

    /// The file, and the line of `key` when that stands in one place only, at the top or in some
    /// table.
    pub fn place(&self, key: &str) -> String {
        let mut found = Vec::new();
        self.walk(&mut |path, line, is_table| {
            if !is_table && path.rsplit('.').next() == Some(key) {
                found.push(line);
            }
            true
        });
        let file = self.path.display();
        match found[..] {
            [line] => format!("'{file}', line {line}"),
            _ => format!("'{file}'"),
        }
    }

    fn line(&self, at: usize) -> usize {
        self.text
            .get(..at)
            .unwrap_or_default()
            .matches('\n')
            .count()
            + 1
    }

    /// A warning, with line number and the nearest known key, for every key that no pattern of
    /// `known` names.
    ///
    /// A pattern is a dotted path, for example `mutating_hooks.name`; tables in arrays count as
    /// tables, and a last part `*` stands for any key with anything below it. A table that is not
    /// known is reported once.
    pub fn unknown_keys(&self, known: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(&mut |path, line, _| {
            let leads_here = |pattern: &&str| match pattern.strip_suffix(".*") {
                Some(stem)
                    if path
                        .strip_prefix(stem)
                        .is_some_and(|rest| rest.starts_with('.')) =>
                {
                    true
                }
                _ => pattern
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
            };
            let is_known = known.iter().any(leads_here);
            if !is_known {
                let hint = hint_of_unknown(path, known);
                let file = self.path.display();
                found.push((
                    line,
                    format!("'{file}', line {line}: unknown key '{path}' is ignored.{hint}"),
                ));
            }
            is_known
        });
        found.sort_unstable();
        found.into_iter().map(|(_, warning)| warning).collect()
    }

    /// Calls `visit` with the path and line of each key, and whether it is that of a table; below
    /// only where it wants that.
    fn walk(&self, visit: &mut dyn FnMut(&str, usize, bool) -> bool) {
        if let Ok(table) = DeTable::parse(&self.text) {
            self.walk_table(table.get_ref(), "", visit);
        }
    }

    fn walk_table(
        &self,
        table: &DeTable<'_>,
        above: &str,
        visit: &mut dyn FnMut(&str, usize, bool) -> bool,
    ) {
        for (key, value) in table {
            let (path, value) = (format!("{above}{}", key.get_ref()), value.get_ref());
            if !visit(
                &path,
                self.line(key.span().start),
                matches!(value, DeValue::Table(_)),
            ) {
                continue;
            }
            let tables = match value {
                DeValue::Array(items) => items.iter().map(Spanned::get_ref).collect(),
                value => vec![value],
            };
            for table in tables.into_iter().filter_map(DeValue::as_table) {
                self.walk_table(table, &format!("{path}."), visit);
            }
        }
    }
}

/// Keys that people bring along from elsewhere, with the key that does the same here and what is
/// different about it.
const KEYS_OF_OTHERS: [(&str, &str, &str); 2] = [
    (
        "state_persistence_file",
        "state_dir",
        ", which names a folder",
    ),
    ("startup_config", "startup_manifest", ""),
];

/// What to do about an unknown key, for the end of its warning.
fn hint_of_unknown(path: &str, known: &[&str]) -> String {
    for (foreign, ours, difference) in KEYS_OF_OTHERS {
        if path == foreign && known.contains(&ours) {
            return format!(" Use '{ours}'{difference}.");
        }
    }
    meant(path, known).map_or_else(String::new, |name| format!(" Did you mean '{name}'?"))
}

/// The known key of the same depth that `path` was probably meant to be.
fn meant<'k>(path: &str, known: &[&'k str]) -> Option<&'k str> {
    let parts = path.split('.').count();
    let same_depth = |pattern: &&'k str| {
        let end = pattern
            .match_indices('.')
            .nth(parts - 1)
            .map_or(pattern.len(), |(at, _)| at);
        pattern.get(..end)
    };
    nearest(path, known.iter().filter_map(same_depth))
}

/// Reads all of a text of at most `max` bytes that a person wrote. The mark with which some editors
/// begin UTF-8 is left out.
///
/// # Errors
/// `FileTooLarge`; `InvalidData` when it is no UTF-8, with the encoding that it is probably in.
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

/// What some editors write before a text in UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Whether bytes begin as a text in UTF-16 does: with its mark, or with a letter of ASCII.
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
        /// What it holds.
        what: &'static str,
        /// What it may have.
        rule: &'static str,
        /// Its permission bits.
        mode: u32,
    },
}

/// Opens `path`, checks the permissions of what was opened (links are followed) and reads the text.
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
    let (what, is_allowed, rule) = match is_key {
        true => {
            let rule = "Private keys must have permissions 0600 or 0400.";
            ("Private key file", matches!(mode, 0o600 | 0o400), rule)
        }
        false => {
            let rule = "Certificates must be readable for the owner, not writable for others and not executable.";
            (
                "Certificate file",
                mode & 0o400 != 0 && mode & 0o133 == 0,
                rule,
            )
        }
    };
    if !is_allowed {
        return Err(PemError::Mode {
            path: path.to_owned(),
            what,
            rule,
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

    /// The texts: contents as they are, paths read at once, even when they will not be needed.
    /// `file` is where the keys stand.
    pub fn read(self, file: &ConfigFile) -> Result<Pems, ConfigError> {
        let mut pems = Pems([
            self.ca_pem_content,
            self.crt_pem_content,
            self.key_pem_content,
        ]);
        let paths = [self.ca_pem, self.crt_pem, self.key_pem]
            .into_iter()
            .zip(&mut pems.0);
        for ((path, pem), key) in paths.zip(Self::NAMES) {
            let Some(path) = path else { continue };
            if pem.is_some() {
                return Err(ConfigError::ConflictingPems {
                    key,
                    place: file.place(key),
                });
            }
            let text = read_pem(&path, key == KEY_PEM);
            *pem = Some(text.map_err(|source| ConfigError::Pem {
                source,
                key,
                place: file.place(key),
            })?);
        }
        Ok(pems)
    }
}

/// Paths of a CA certificate, of our certificate and of our private key: the PEM options of a
/// command line (`--ca_pem` and so on) and their environment variables.
pub(crate) type PemPaths<'a> = [Option<&'a Path>; 3];

/// The same texts as far as they are given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pems([Option<String>; 3]);

impl Pems {
    /// Reads the files of `paths` at once; each replaces what the config file says.
    pub fn overridden_by(mut self, paths: PemPaths<'_>) -> Result<Self, PemError> {
        for ((path, pem), key) in paths.into_iter().zip(&mut self.0).zip(PemKeys::NAMES) {
            if let Some(path) = path {
                *pem = Some(read_pem(path, key == KEY_PEM)?);
            }
        }
        Ok(self)
    }
}

/// A config file that holds a private key can be read by others. Worth a warning.
pub fn readable_key_warning(file: &ConfigFile, keys: &PemKeys) -> Option<String> {
    let mode = std::fs::metadata(&file.path).ok()?.permissions().mode() & 0o777;
    (keys.key_pem_content.is_some() && mode & 0o077 != 0).then(|| {
        let path = file.path.display();
        format!("'{path}' holds a private key but its permissions are {mode:04o}. Use 'chmod 0600 {path}'.")
    })
}

// --------------------------------------------------------- flags, decision

/// The combined value of `--insecure`, its environment variable and `--no-insecure`; `None` when
/// nothing is given.
///
/// Of the two options the later one counts, and an option more than the environment, which clap's
/// own way of overriding takes for a conflict. For arguments with the ids
/// `insecure` and `no_insecure`, declared as `bool`; clap itself refuses other values of the
/// variable than `true` and `false`.
pub fn insecure_flag(matches: &clap::ArgMatches) -> Option<bool> {
    let place = |id: &str| {
        let is_option = matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        is_option
            .then(|| matches.indices_of(id)?.next_back())
            .flatten()
    };
    match (place("insecure"), place("no_insecure")) {
        (Some(insecure), Some(not)) => Some(insecure > not),
        (None, Some(_)) => Some(false),
        (_, None) => matches
            .value_source("insecure")
            .filter(|source| *source != clap::parser::ValueSource::DefaultValue)
            .map(|_| matches.get_flag("insecure")),
    }
}

/// Adds the environment variable to a usage error about its value: clap names only the option of
/// `command`.
pub fn naming_variable(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (option, value) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    );
    let long = option
        .strip_prefix("--")
        .and_then(|option| option.split(' ').next());
    let argument = command
        .get_arguments()
        .find(|argument| long.is_some() && argument.get_long() == long);
    let variable = argument
        .and_then(clap::Arg::get_env)
        .filter(|name| std::env::var_os(name).is_some_and(|it| it == value));
    if let Some(name) = variable {
        let tip = format!(
            "the value is that of the environment variable {}",
            name.display()
        );
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
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

/// Decides how connections are protected, with a warning to print first.
pub fn decide_security(
    insecure: bool,
    pems: Pems,
) -> (Result<Security, MissingPems>, Option<&'static str>) {
    let options = ["'--ca_pem'", "'--crt_pem'", "'--key_pem'"]
        .into_iter()
        .zip(&pems.0);
    let missing: Vec<&'static str> = options
        .filter(|(_, text)| text.is_none())
        .map(|(option, _)| option)
        .collect();
    let nothing_given = missing.len() == 3;
    // Warning when certificates are given although `--insecure` is.
    let warning = (insecure && !nothing_given).then_some(
        "Insecure and secure flags specified at the same time. Defaulting to secure communication.",
    );
    let security = match pems.0 {
        [Some(ca), Some(certificate), Some(key)] => Ok(Security::MutualTls(PemTexts {
            ca,
            certificate,
            key,
        })),
        _ if insecure && nothing_given => Ok(Security::Insecure),
        _ => Err(MissingPems { missing }),
    };
    (security, warning)
}

#[cfg(test)]
mod tests;
