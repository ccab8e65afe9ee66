//! Command line, environment and config file of `ank-server`.
//!
//! Thread: `main`.

use ankaios_model::lifecycle::OnFailure;
use ankaios_model::names::{excerpt, is_name};
use ankaios_model::validation::NAME_RULE;
use ankaios_model::version::SHOWN_VERSION;
use ankaios_platform::metrics_file::{MetricsInterval, MetricsPath, MetricsSettings};
use ankaios_platform::settings::{
    ConfigError, ConfigFile, MessageSize, MissingPems, Number, PemKeys, Pems, SettingsError,
    decide_security, insecure_flag, readable_key_warning,
};
use ankaios_wire::address::{ListenAddress, Security};
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use serde::Deserialize;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The config file when no option names one.
pub(crate) const DEFAULT_CONFIG_FILE: &str = "/etc/ankaios/ank-server.conf";
/// The folder of hooks whose entry names none.
pub(crate) const DEFAULT_HOOKS_FOLDER: &str = "/usr/libexec/ankaios/hooks";
const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 25551);
/// The user of the server and the group of the socket's file may connect.
const DEFAULT_SOCKET_MODE: u32 = 0o660;

/// The options of `ank-server`.
#[derive(Debug, Parser)]
#[command(
    name = "ank-server",
    version = SHOWN_VERSION.as_str(),
    about = "The Ankaios server: stores the desired state of a cluster, assigns workloads to agents and serves the state to clients.",
    after_help = "Examples:\n  ank-server --address unix:///run/ankaios/ank.sock   for programs on this machine\n  \
                  ank-server -x /etc/ankaios/ank-server.conf          with the settings of a file\n\n\
                  The config file has more settings, for example state_dir: see ank-server.conf."
)]
struct ServerArguments {
    /// YAML manifest with the workloads to start with
    #[arg(
        short = 'm',
        long,
        value_name = "PATH",
        short_alias = 'c',
        alias = "startup-config"
    )]
    startup_manifest: Option<PathBuf>,
    /// Config file [default: /etc/ankaios/ank-server.conf if it exists]
    #[arg(short = 'x', long, value_name = "PATH")]
    server_config: Option<PathBuf>,
    /// IP address and port to listen on, for example 0.0.0.0:25551 or [::]:25551, or a Unix domain
    /// socket, for example unix:///run/ankaios/ank.sock; may be given several times [default:
    /// 127.0.0.1:25551]
    #[arg(short = 'a', long, env = "ANKSERVER_ADDRESS", value_name = "ADDRESS")]
    address: Vec<ListenAddress>,
    /// Communicate without TLS, if no certificates are set
    #[arg(short = 'k', long, env = "ANKSERVER_INSECURE", action = ArgAction::SetTrue)]
    insecure: bool,
    /// Communicate with TLS even if the config file or the environment has 'insecure'
    #[arg(long, action = ArgAction::SetTrue)]
    no_insecure: bool,
    /// PEM file with the certificate of the authority that signed the certificates of agents and
    /// clients
    #[arg(long = "ca_pem", value_name = "PATH", env = "ANKSERVER_CA_PEM")]
    ca_pem: Option<PathBuf>,
    /// PEM file with the certificate of this server
    #[arg(long = "crt_pem", value_name = "PATH", env = "ANKSERVER_CRT_PEM")]
    crt_pem: Option<PathBuf>,
    /// PEM file with the private key of this server
    #[arg(long = "key_pem", value_name = "PATH", env = "ANKSERVER_KEY_PEM")]
    key_pem: Option<PathBuf>,
}

/// The keys of the config file, without the PEM ones.
#[derive(Debug, Default, Deserialize)]
struct ServerKeys {
    startup_manifest: Option<PathBuf>,
    #[serde(default, deserialize_with = "addresses")]
    address: Option<Vec<ListenAddress>>,
    #[serde(default, deserialize_with = "socket_mode")]
    socket_mode: Option<u32>,
    insecure: Option<bool>,
    #[serde(default)]
    mutating_hooks: Vec<HookEntry>,
    state_dir: Option<PathBuf>,
    #[serde(default)]
    max_message_size: MessageSize,
    #[serde(default)]
    commander_names: Vec<String>,
    #[serde(default, deserialize_with = "on_failure")]
    update_on_failure: OnFailure,
    metrics: Option<MetricsPath>,
    #[serde(default)]
    metrics_interval: MetricsInterval,
    #[serde(default, deserialize_with = "mode_name")]
    mode_config: Option<String>,
    #[serde(default, deserialize_with = "mode_name")]
    mode_on_failure: Option<String>,
}

/// Value of the key `update_on_failure`.
fn on_failure<'de, D: serde::Deserializer<'de>>(text: D) -> Result<OnFailure, D::Error> {
    let text = String::deserialize(text)?;
    for known in OnFailure::ALL {
        if known.as_str().to_ascii_lowercase() == text {
            return Ok(*known);
        }
    }
    Err(serde::de::Error::custom("'rollback' or 'keep' is expected"))
}

/// Value of the key `address`. The addresses are parsed later, so that the error names the fault of
/// one of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an address or a list of addresses is expected")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn addresses<'de, D: serde::Deserializer<'de>>(
    texts: D,
) -> Result<Option<Vec<ListenAddress>>, D::Error> {
    let texts = match OneOrMany::deserialize(texts)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    };
    if texts.is_empty() {
        return Err(serde::de::Error::custom(
            "a server needs at least one address",
        ));
    }
    let mut addresses = Vec::new();
    for text in texts {
        addresses.push(text.parse().map_err(serde::de::Error::custom)?);
    }
    Ok(Some(addresses))
}

/// Value of the key `socket_mode`: permissions of the files of Unix domain sockets.
fn socket_mode<'de, D: serde::Deserializer<'de>>(number: D) -> Result<Option<u32>, D::Error> {
    let mode = u32::deserialize(number).unwrap_or_default(); // 0 is refused below.
    // A decimal 660 is a mistake for octal, and would open the socket in another way.
    if mode & !0o666 == 0 && mode & 0o600 == 0o600 {
        return Ok(Some(mode));
    }
    Err(serde::de::Error::custom(
        "permissions from 0o600 to 0o666 are expected, written in octal as 0o660",
    ))
}

/// Value of the keys `mode_config` and `mode_on_failure`: a name as configs and modes have it.
fn mode_name<'de, D: serde::Deserializer<'de>>(text: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(text)?;
    if is_name(&name) {
        return Ok(Some(name));
    }
    Err(serde::de::Error::custom(format_args!(
        "unsupported name '{}'. {NAME_RULE}",
        excerpt(&name)
    )))
}

/// An outside program that may change or refuse updates.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HookEntry {
    /// Name of the program, and of the hook in messages.
    pub(crate) name: String,
    /// Hooks with a lower number run first; 0 to 255.
    #[serde(default)]
    pub(crate) prio: Number<0, { u8::MAX as u64 }>,
    /// Folder of the program.
    #[serde(default = "default_hooks_folder")]
    pub(crate) path: PathBuf,
    /// How long it may run, in seconds, 1 to 65535; a hook that takes longer is ended and the
    /// update refused.
    #[serde(default)]
    // Timeout of a hook unless the config file has another one, in seconds. Updates wait meanwhile.
    pub(crate) timeout_s: Number<1, { u16::MAX as u64 }, 10>,
}

/// The config item with the mode of the vehicle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModeSettings {
    /// Key of the config item, 1 to 63 bytes of `[a-zA-Z0-9_-]`.
    pub config_item: String,
    /// The mode that a failed essential workload leads to; `None` to switch on request only.
    pub on_failure: Option<String>,
}

fn default_hooks_folder() -> PathBuf {
    DEFAULT_HOOKS_FOLDER.into()
}

const KNOWN_KEYS: [&str; 17] = [
    "version",
    "startup_manifest",
    "address",
    "socket_mode",
    "insecure",
    "state_dir",
    "max_message_size",
    "commander_names",
    "metrics",
    "metrics_interval",
    "mode_config",
    "mode_on_failure",
    "update_on_failure",
    "mutating_hooks.name",
    "mutating_hooks.prio",
    "mutating_hooks.path",
    "mutating_hooks.timeout_s",
];

/// The settings of one run.
#[derive(Debug)]
pub struct ServerSettings {
    /// Manifest to start with.
    pub startup_manifest: Option<PathBuf>,
    /// Addresses to listen on, at least one.
    pub addresses: Vec<ListenAddress>,
    /// Permissions of the files of Unix domain sockets.
    pub socket_mode: u32,
    /// How connections over TCP are protected; decided last, after the manifest was read.
    pub security: Result<Security, MissingPems>,
    /// Hooks in the order in which they run.
    pub mutating_hooks: Vec<HookEntry>,
    /// Folder in which the desired state is kept over restarts; `None` to keep it in memory alone.
    pub state_dir: Option<PathBuf>,
    /// Largest message sent and received.
    pub message_max: MessageSize,
    /// With TLS, only certificates with one of these DNS names may command; empty: all of the
    /// authority.
    pub commander_names: Vec<String>,
    /// The metrics file; `None` without one.
    pub metrics: Option<MetricsSettings>,
    /// The modes of the vehicle; `None` without them.
    pub modes: Option<ModeSettings>,
    /// The default `onFailure` of guarded updates.
    pub update_on_failure: OnFailure,
    /// The config file in use.
    pub config_file: Option<PathBuf>,
    /// Problems that do not prevent the start.
    pub warnings: Vec<String>,
}

/// The command line, as manual pages show it.
pub fn command() -> clap::Command {
    ServerArguments::command()
}

/// Reads the settings: arguments, then the config file, then the PEM files.
///
/// # Errors
/// [`SettingsError`] of the first step that fails.
pub fn read(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<ServerSettings, SettingsError> {
    let command = ServerArguments::command();
    let matches = match command.clone().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return Err(SettingsError::usage(error, &command)),
    };
    let options = ServerArguments::from_arg_matches(&matches)?;
    let places = [PathBuf::from(DEFAULT_CONFIG_FILE)];
    let file = ConfigFile::find(options.server_config.as_deref(), &places)?;
    combine(&matches, options, file.as_ref())
}

/// Combines the command line with the config file, whose keys are overridden by options.
fn combine(
    matches: &ArgMatches,
    options: ServerArguments,
    file: Option<&ConfigFile>,
) -> Result<ServerSettings, SettingsError> {
    // First, the keys of the file and the certificates.
    let mut warnings = Vec::new();
    let mut keys = ServerKeys::default();
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
    let pems = pems.overridden_by(paths)?;
    // Then, the protection of connections, which depends on the addresses.
    let from_options = insecure_flag(matches);
    let insecure = from_options.or(keys.insecure).unwrap_or_default();
    let mut addresses = options.address;
    if addresses.is_empty() {
        addresses = match keys.address {
            Some(addresses) => addresses,
            None => vec![ListenAddress::Tcp(DEFAULT_ADDRESS)],
        };
    }
    // Sockets are protected by the permissions of their files.
    let mut security = Ok(Security::Insecure);
    let mut tcp = addresses
        .iter()
        .filter(|address| matches!(address, ListenAddress::Tcp(_)));
    if tcp.next().is_some() {
        let (decided, warning) = decide_security(insecure, pems);
        warnings.extend(warning.map(str::to_owned));
        security = decided;
    }
    if !keys.commander_names.is_empty() && !matches!(security, Ok(Security::MutualTls(_))) {
        warnings.push("The key 'commander_names' has no effect without certificates.".to_owned());
    }
    // Finally, keys that refer to other keys or to files.
    if keys.mode_config.is_none()
        && keys.mode_on_failure.is_some()
        && let Some(file) = file
    {
        let place = file.place("mode_on_failure");
        let text = format!("'mode_on_failure' needs 'mode_config' as well ({place})");
        return Err(ConfigError::Parse(text).into());
    }
    let modes = keys.mode_config.map(|config_item| ModeSettings {
        config_item,
        on_failure: keys.mode_on_failure,
    });
    let metrics = keys.metrics.map(|path| MetricsSettings {
        path,
        interval: keys.metrics_interval,
    });
    let mut mutating_hooks = keys.mutating_hooks;
    mutating_hooks.sort_by_key(|hook| hook.prio.0); // Stable: ties stay in the order of the file.
    warnings.extend(missing_hooks(&mutating_hooks));
    if let Some(folder) = &keys.state_dir
        && !folder.exists()
    {
        let folder = folder.display();
        warnings.push(format!(
            "The state_dir '{folder}' does not exist yet, so there is no state of an earlier server."
        ));
    }
    Ok(ServerSettings {
        startup_manifest: options.startup_manifest.or(keys.startup_manifest),
        addresses,
        socket_mode: keys.socket_mode.unwrap_or(DEFAULT_SOCKET_MODE),
        security,
        mutating_hooks,
        state_dir: keys.state_dir,
        message_max: keys.max_message_size,
        commander_names: keys.commander_names,
        metrics,
        update_on_failure: keys.update_on_failure,
        modes,
        config_file: file.map(|file| file.path.clone()),
        warnings,
    })
}

/// Warnings of hooks whose programs do not exist.
fn missing_hooks(hooks: &[HookEntry]) -> Vec<String> {
    let mut warnings = Vec::new();
    for hook in hooks {
        let program = hook.path.join(&hook.name);
        if !program.is_file() {
            let program = program.display();
            warnings.push(format!(
                "The hook '{program}' does not exist; updates that change workloads are refused until it does."
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings from a config file with `text` and further arguments.
    fn settings(text: &str, arguments: &[&str]) -> Result<ServerSettings, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ank-server.conf");
        std::fs::write(&path, text).unwrap();
        let arguments = ["ank-server".as_ref(), "-x".as_ref(), path.as_os_str()]
            .into_iter()
            .chain(
                arguments
                    .iter()
                    .map(|argument| std::ffi::OsStr::new(*argument)),
            );
        read(arguments.map(ToOwned::to_owned))
    }

    #[test]
    fn options_win_over_the_file_and_the_file_over_defaults() {
        let text = "version = 'v1'\naddress = '127.0.0.1:1'\nstartup_manifest = 'a'\ninsecure = true\nstate_dir = '/s'\nmax_message_size = 5000000\nupdate_on_failure = 'rollback'\n";
        let from_file = settings(text, &[]).unwrap();
        assert_eq!(from_file.addresses, ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(from_file.startup_manifest, Some("a".into()));
        assert_eq!(from_file.security, Ok(Security::Insecure));
        assert_eq!(from_file.state_dir, Some("/s".into()));
        assert_eq!(
            (from_file.message_max, from_file.update_on_failure),
            (Number(5_000_000), OnFailure::Rollback)
        );
        let from_options = settings(text, &["-a", "[::1]:2", "-m", "b", "--no-insecure"]).unwrap();
        assert_eq!(from_options.addresses, ["[::1]:2".parse().unwrap()]);
        assert_eq!(from_options.startup_manifest, Some("b".into()));
        assert!(from_options.security.is_err());
        let defaults = settings("version = 'v1'", &["-k"]).unwrap();
        assert_eq!(
            (defaults.addresses, defaults.startup_manifest),
            (vec!["127.0.0.1:25551".parse().unwrap()], None)
        );
        assert_eq!(defaults.security, Ok(Security::Insecure));
        assert_eq!(
            (defaults.state_dir, defaults.message_max),
            (None, Number(64 * 1024 * 1024))
        );
        assert_eq!(defaults.update_on_failure, OnFailure::Keep);
        assert!(defaults.config_file.is_some() && defaults.warnings.is_empty());
    }

    #[test]
    fn sockets_need_no_certificates_and_ports_do() {
        let both = "version = 'v1'\naddress = ['127.0.0.1:1', 'unix:///run/ank.sock']\nsocket_mode = 0o600\n";
        let from_file = settings(both, &[]).unwrap();
        let shown: Vec<String> = from_file
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["127.0.0.1:1", "unix:///run/ank.sock"]);
        assert!(
            from_file.security.is_err(),
            "the port needs certificates or --insecure"
        );
        assert_eq!(from_file.socket_mode, 0o600);
        let from_options = settings(both, &["-a", "unix:///a", "--address", "unix:///b"]).unwrap();
        assert_eq!(
            from_options.addresses,
            ["unix:///a".parse().unwrap(), "unix:///b".parse().unwrap()]
        );
        assert_eq!(from_options.security, Ok(Security::Insecure));
        let one = settings(
            "version = 'v1'\naddress = 'unix:///run/ank.sock'\nca_pem_content = 'x'\n",
            &[],
        )
        .unwrap();
        assert_eq!(
            (one.security, one.socket_mode, one.warnings),
            (Ok(Security::Insecure), 0o660, Vec::new())
        );
    }

    #[test]
    fn names_of_commanders_mean_something_with_certificates_only() {
        let text = "version = 'v1'\ncommander_names = ['ank']\n";
        let insecure = settings(text, &["-k"]).unwrap();
        assert_eq!(
            insecure.warnings,
            ["The key 'commander_names' has no effect without certificates."]
        );
        let pems = "ca_pem_content = 'x'\ncrt_pem_content = 'x'\nkey_pem_content = 'x'\n";
        let secure = settings(&format!("{text}{pems}"), &[]).unwrap();
        assert_eq!(secure.commander_names, ["ank"]);
        assert!(
            !secure
                .warnings
                .iter()
                .any(|warning| warning.contains("commander_names")),
            "{:?}",
            secure.warnings
        );
    }

    #[test]
    fn of_two_opposite_flags_the_later_one_counts() {
        for (arguments, insecure) in [
            (["-k", "--no-insecure"], false),
            (["--no-insecure", "-k"], true),
        ] {
            let security = settings("version = 'v1'", &arguments).unwrap().security;
            assert_eq!(security.is_ok(), insecure, "{arguments:?}");
        }
    }

    #[test]
    fn older_names_of_the_manifest_option_are_still_known() {
        for option in ["-m", "-c", "--startup-manifest", "--startup-config"] {
            let settings = settings("version = 'v1'", &["-k", option, "m.yaml"]).unwrap();
            assert_eq!(settings.startup_manifest, Some("m.yaml".into()), "{option}");
        }
        let help = ServerArguments::command().render_help().to_string();
        assert!(!help.contains("startup-config"), "{help}");
    }

    #[test]
    fn hooks_run_by_priority_and_then_in_the_order_of_the_file() {
        let text = "version = 'v1'\n
            [[mutating_hooks]]\nname = 'c'\nprio = 7\npath = '/h'\n[[mutating_hooks]]\nname = 'a'\n
            [[mutating_hooks]]\nname = 'd'\nprio = 7\ntimeout_s = 3\n[[mutating_hook]]\nname = 'ignored'\n";
        let settings = settings(text, &["-k"]).unwrap();
        let hooks: Vec<(&str, u64)> = settings
            .mutating_hooks
            .iter()
            .map(|hook| (hook.name.as_str(), hook.prio.0))
            .collect();
        assert_eq!(hooks, [("a", 0), ("c", 7), ("d", 7)]);
        let timeouts: Vec<u64> = settings
            .mutating_hooks
            .iter()
            .map(|hook| hook.timeout_s.0)
            .collect();
        assert_eq!(timeouts, [10, 10, 3]);
        assert_eq!(
            settings.mutating_hooks[0].path,
            PathBuf::from(DEFAULT_HOOKS_FOLDER)
        );
        assert!(
            settings.warnings[0].contains("unknown key 'mutating_hook'"),
            "{:?}",
            settings.warnings
        );
    }

    #[test]
    fn the_mode_is_a_config_item_and_failures_need_it() {
        let modes = |text: &str| {
            settings(&format!("version = 'v1'\n{text}"), &["-k"]).map(|settings| settings.modes)
        };
        let with = |on_failure: Option<&str>| {
            Some(ModeSettings {
                config_item: "mode".into(),
                on_failure: on_failure.map(Into::into),
            })
        };
        assert_eq!(modes("").unwrap(), None);
        assert_eq!(modes("mode_config = 'mode'").unwrap(), with(None));
        assert_eq!(
            modes("mode_config = 'mode'\nmode_on_failure = 'limp'").unwrap(),
            with(Some("limp"))
        );
        let long = "m".repeat(64);
        for (text, part) in [
            (
                "mode_on_failure = 'limp'".to_owned(),
                "'mode_on_failure' needs 'mode_config' as well",
            ),
            ("mode_config = ''".to_owned(), "unsupported name ''"),
            (
                "mode_config = 'a.b'".to_owned(),
                "unsupported name 'a.b'. Only a-z",
            ),
            (format!("mode_config = '{long}'"), "unsupported name"),
            (
                "mode_config = true".to_owned(),
                "expected text in quotes, found boolean true",
            ),
            (
                "mode_config = 'mode'\nmode_on_failure = 'limp home'".to_owned(),
                "unsupported name 'limp home'",
            ),
        ] {
            let error = modes(&text).unwrap_err();
            assert!(
                matches!(error, SettingsError::Config(_)) && error.to_string().contains(part),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_its_class() {
        type Check = fn(&SettingsError) -> bool;
        let usage: Check = |error| matches!(error, SettingsError::Usage(_));
        let config: Check = |error| matches!(error, SettingsError::Config(_));
        let pem: Check = |error| matches!(error, SettingsError::Pem(_));
        for (text, arguments, class) in [
            ("version = 'v1'", vec!["--address", "localhost:1"], usage),
            ("version = 'v1'", vec!["-a", "25551"], usage),
            ("version = 'v1'", vec!["--insecure=false"], usage),
            ("version = 'v1'", vec!["positional"], usage),
            ("version = 'v1'", vec!["-a", "unix://run/ank.sock"], usage),
            ("version = 'v1'\naddress = 'localhost:1'", vec![], config),
            ("version = 'v1'\naddress = []", vec![], config),
            ("version = 'v1'\naddress = [1]", vec![], config),
            (
                "version = 'v1'\naddress = ['unix://run/ank.sock']",
                vec![],
                config,
            ),
            ("version = 'v1'\nsocket_mode = 660", vec![], config),
            ("version = 'v1'\nsocket_mode = 0o060", vec![], config),
            ("version = 'v1'\ninsecure = 'true'", vec![], config),
            (
                "version = 'v1'\n[[mutating_hooks]]\nprio = 1",
                vec![],
                config,
            ),
            (
                "version = 'v1'\n[[mutating_hooks]]\nname = 'a'\nprio = 256",
                vec![],
                config,
            ),
            (
                "version = 'v1'\n[[mutating_hooks]]\nname = 'a'\ntimeout_s = 0",
                vec![],
                config,
            ),
            (
                "version = 'v1'\nupdate_on_failure = 'ROLLBACK'",
                vec![],
                config,
            ),
            ("version = 'v1'\nmax_message_size = 4194303", vec![], config),
            (
                "version = 'v1'\nmax_message_size = 1073741825",
                vec![],
                config,
            ),
            (
                "version = 'v1'\nmax_message_size = '64 MiB'",
                vec![],
                config,
            ),
            (
                "version = 'v1'\nca_pem = 'a'\nca_pem_content = 'b'",
                vec![],
                config,
            ),
            ("version = 'v1'\nca_pem = '/nowhere/a'", vec!["-k"], config),
            ("insecure = true", vec![], config),
            (
                "version = 'v1'",
                vec!["-k", "--key_pem", "/nowhere/key"],
                pem,
            ),
        ] {
            let error = settings(text, &arguments).unwrap_err();
            assert!(class(&error), "{text} {arguments:?}: {error}");
        }
    }
}
