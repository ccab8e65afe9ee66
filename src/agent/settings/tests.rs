//! Options, config file, run folder: precedence, order of the checks, texts.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A machine whose temporary folder is our own.
struct Rig {
    folder: tempfile::TempDir,
    machine: Machine,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            temporary: folder.path().to_owned(),
            cores: 3,
        };
        Self { folder, machine }
    }

    fn config(&self, text: &str) -> String {
        let path = self.folder.path().join("agent.conf");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// With the arguments, split at blanks; a config file is always named, so that none of the
    /// machine is found.
    fn read(&self, config: &str, arguments: &str) -> Result<AgentSettings, SettingsError> {
        let config = self.config(&format!("version = 'v1'\n{config}"));
        let all = ["ank-agent", "-x", &config]
            .into_iter()
            .chain(arguments.split_whitespace())
            .map(OsString::from);
        read(all, &self.machine)
    }

    fn settings(&self, config: &str, arguments: &str) -> AgentSettings {
        self.read(config, arguments)
            .unwrap_or_else(|error| panic!("{arguments}: {error}"))
    }

    fn error(&self, config: &str, arguments: &str) -> String {
        let error = self.read(config, arguments).expect_err(arguments);
        error.for_log()
    }
}

#[test]
fn defaults_are_those_of_the_specification() {
    let rig = Rig::new();
    let settings = rig.settings("name = 'A'\ninsecure = true", "");
    assert_eq!(settings.url.to_string(), "http://127.0.0.1:25551");
    assert_eq!(settings.security, Security::Insecure);
    assert_eq!(settings.folder, rig.folder.path().join("ankaios/A_io"));
    assert_eq!(settings.runtimes, RUNTIMES.into());
    assert_eq!(settings.create_timeout, None);
    assert_eq!(settings.retry_limit, Some(20));
    assert!(settings.restart_backoff);
    assert!(!settings.keeps_finished);
    assert_eq!(settings.parallel_starts, 6);
    assert_eq!(
        (settings.prepare, settings.prepare_max, settings.cores),
        (PrepareLevel::None, 4, 3)
    );
    assert_eq!(settings.listing_interval, REPAIR_INTERVAL);
    assert_eq!(settings.tags, BTreeMap::new());
    assert_eq!(settings.metrics, None);
    assert_eq!(settings.cleanup, None);
    assert_eq!(settings.warnings, [""; 0]);
    let one_core = Machine {
        cores: 1,
        ..rig.machine.clone()
    };
    let arguments = [
        "ank-agent",
        "-x",
        &rig.config("version = 'v1'"),
        "-n",
        "A",
        "-k",
    ]
    .map(OsString::from);
    assert_eq!(read(arguments, &one_core).unwrap().parallel_starts, 4);
}

#[test]
fn every_key_of_the_config_file_is_used() {
    let rig = Rig::new();
    let base = rig.folder.path().join("base");
    fs::create_dir(&base).unwrap();
    let config = format!(
        "name = 'A'\nserver_url = 'https://server:1'\nrun_folder = '{}'\ninsecure = true\nruntimes = ['podman', 'x']\n\
         create_timeout = 90\nretry_limit = 0\nrestart_backoff = false\nrerun_finished = 'boot'\n\
         max_parallel_starts = 9\nprepare = 'init'\nprepare_max = 64\nlisting_interval = 5\nmax_message_size = 5000000\n\
         max_control_message_size = 8192\nmetrics = '/run/a.prom'\nmetrics_interval = 7\nretry_limits = 1\n[tags]\nzone = 'a'\n",
        base.display()
    );
    let settings = rig.settings(&config, "");
    assert_eq!(settings.url.to_string(), "http://server:1");
    assert_eq!(settings.folder, base.join("A_io"));
    assert_eq!(settings.runtimes, BTreeSet::from(["podman"]));
    assert_eq!(settings.create_timeout, Some(Duration::from_secs(90)));
    assert_eq!(settings.retry_limit, None);
    assert!(!settings.restart_backoff);
    assert!(settings.keeps_finished);
    assert_eq!(settings.parallel_starts, 9);
    assert_eq!(
        (settings.prepare, settings.prepare_max),
        (PrepareLevel::Init, 64)
    );
    assert_eq!(settings.control_message_max.0, 8192);
    assert_eq!(settings.listing_interval, Duration::from_secs(5));
    assert_eq!(settings.message_max, Number(5_000_000));
    let metrics = settings.metrics.expect("a path is given");
    assert_eq!(
        (metrics.path, metrics.interval),
        ("/run/a.prom".to_owned().try_into().unwrap(), Number(7))
    );
    assert_eq!(
        settings.tags,
        BTreeMap::from([("zone".to_owned(), "a".to_owned())])
    );
    assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
    let unsupported = format!(
        "Unsupported Runtime 'x'; there are 'podman', 'containerd', 'podman-kube' ('{}', line 6: 'runtimes')",
        rig.config(&config)
    );
    assert!(
        settings.warnings.contains(&unsupported),
        "{:?}",
        settings.warnings
    );
    assert_eq!(
        rig.settings(&config.replace("= 90", "= 0"), "")
            .create_timeout,
        None
    );
}

#[test]
fn arguments_win_over_the_config_file_and_tags_replace_all_tags() {
    let rig = Rig::new();
    let other = rig.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let config =
        "name = 'A'\nserver_url = 'http://a:1'\ninsecure = true\n[tags]\nzone = 'a'\nkind = 'x'\n";
    let arguments = format!(
        "-n B -s http://b:2 -r {} -t zone=b -t zone=c=d -t empty=",
        other.display()
    );
    let settings = rig.settings(config, &arguments);
    assert_eq!(settings.name, "B");
    assert_eq!(settings.url.to_string(), "http://b:2");
    assert_eq!(settings.folder, other.join("B_io"));
    let tags =
        [("zone", "c=d"), ("empty", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(settings.tags, BTreeMap::from(tags));
    assert!(
        rig.error(config, "--no-insecure")
            .starts_with("Missing certificate files: 'Either provide mTLS config")
    );
}

#[test]
fn the_old_name_of_the_config_option_is_understood() {
    let rig = Rig::new();
    let config = rig.config("version = 'v1'\nname = 'A'\ninsecure = true");
    let arguments = ["ank-agent", "--config_path", &config].map(OsString::from);
    assert_eq!(read(arguments, &rig.machine).unwrap().name, "A");
}

#[test]
fn fatal_errors_have_the_documented_texts() {
    let rig = Rig::new();
    let long = "x".repeat(64);
    let not_parsed =
        "Config file could not be parsed: 'Config file could not have been parsed due to: ";
    for (config, arguments, text) in [
        (
            "",
            "-k",
            "Error encountered while checking agent name!: 'Empty agent name is not allowed. ",
        ),
        (
            "",
            "-k -n a.b",
            "Error encountered while checking agent name!: 'Agent name 'a.b' is invalid. ",
        ),
        (
            "",
            &format!("-k -n {long}"),
            "Error encountered while checking agent name!: 'Agent name 'xxx",
        ),
        (
            "",
            "-k -n commander-conn1",
            "Error encountered while checking agent name!: 'Agent name 'commander-conn1' is invalid. It must not begin with ",
        ),
        (
            "",
            "-k -n A -r /does/not/exist",
            "Run folder creation failed. Cannot continue without run folder.: 'Could not find directory \"/does/not/exist\"'",
        ),
        (
            "runtimes = []",
            "-k -n A",
            "Invalid runtime configuration: 'No valid runtimes configured. Supported runtimes: [\"podman\", \"containerd\", \"podman-kube\"]",
        ),
        (
            "runtimes = ['docker']",
            "-k -n A",
            "Invalid runtime configuration: '",
        ),
        (
            "",
            "-n A",
            "Missing certificate files: 'Either provide mTLS config via the '--ca_pem",
        ),
        (
            "",
            "-n A -s http://there:1",
            "Missing certificate files: 'Either provide mTLS config via the '--ca_pem', '--crt_pem' and '--key_pem' options \
             or deactivate mTLS with the '--insecure' option! Missing: '--ca_pem', '--crt_pem', '--key_pem'. The URL \
             'http://there:1' needs '--insecure''",
        ),
        (
            "",
            "-k -n A -s server",
            "Failed to create communications client.: 'Wrong server address format: 'server'. Write it as http",
        ),
        (
            "",
            "-k -n A --ca_pem /does/not/exist",
            "Failed to load certificate files!: '",
        ),
        (
            "ca_pem = 'a'\nca_pem_content = 'b'",
            "-k",
            "Config file could not be parsed: 'Conflicting certificates: ",
        ),
        ("rerun_finished = 'never'", "-k -n A", not_parsed),
        ("listing_interval = 0", "-k -n A", not_parsed),
        ("retry_limit = -1", "-k -n A", not_parsed),
        ("prepare = 'all'", "-k -n A", not_parsed),
        ("prepare = 'INIT'", "-k -n A", not_parsed),
        ("prepare_max = 65", "-k -n A", not_parsed),
        ("prepare_max = -1", "-k -n A", not_parsed),
        ("metrics = 'unix:///run/a.prom'", "-k -n A", not_parsed),
        ("metrics_interval = 0", "-k -n A", not_parsed),
        ("image_cleanup = 'Never'", "-k -n A", not_parsed),
        ("image_cleanup = true", "-k -n A", not_parsed),
        ("image_history = 101", "-k -n A", not_parsed),
        ("image_history = -1", "-k -n A", not_parsed),
    ] {
        let error = rig.error(config, arguments);
        assert!(error.starts_with(text), "{config} {arguments}: {error}");
    }
    let usage = rig.read("", "-t novalue").unwrap_err();
    assert!(matches!(&usage, SettingsError::Usage(error) if error.use_stderr()));
    assert!(
        usage
            .to_string()
            .contains("invalid KEY=value: no `=` found in `novalue`"),
        "{usage}"
    );
}

#[test]
fn a_wrong_value_of_the_config_file_is_told_with_its_place() {
    let rig = Rig::new();
    for (config, arguments, line) in [
        ("name = 'a.b'", "-k", "line 2: 'name'"),
        (
            "name = 'A'\nrun_folder = '/does/not/exist'",
            "-k",
            "line 3: 'run_folder'",
        ),
        (
            "name = 'A'\nserver_url = 'here'",
            "-k",
            "line 3: 'server_url'",
        ),
    ] {
        let error = rig.error(config, arguments);
        assert!(
            error.ends_with(&format!(" ('{}', {line})'", rig.config("").as_str())),
            "{config}: {error}"
        );
    }
    let error = rig.error("name = 'A'\nserver_url = 'http://here'", "-k -s there");
    assert!(
        error.ends_with("format: 'there'. Write it as http://<host>:<port>, https://<host>:<port> or unix:///<path>'"),
        "{error}"
    );
}

#[test]
fn checks_are_made_in_the_documented_order() {
    let rig = Rig::new();
    // Each row mends what the row before complains about.
    for (config, arguments, what) in [
        (
            "runtimes = []",
            "-s x --key_pem /none -n a.b -r /none",
            "Failed to load certificate files!",
        ),
        (
            "runtimes = []",
            "-s x -n a.b -r /none",
            "Error encountered while checking agent name!",
        ),
        (
            "runtimes = []",
            "-s x -n a -r /none",
            "Run folder creation failed. Cannot continue without run folder.",
        ),
        (
            "runtimes = []",
            "-s x -n a",
            "Invalid runtime configuration",
        ),
        ("", "-s x -n a", "Failed to create communications client."),
        ("", "-s http://x -n a", "Missing certificate files"),
    ] {
        assert!(
            rig.error(config, arguments).starts_with(what),
            "{arguments}"
        );
    }
}

#[test]
fn certificates_mean_tls_even_with_insecure() {
    let rig = Rig::new();
    let pems = "ca_pem_content = 'a'\ncrt_pem_content = 'b'\nkey_pem_content = 'c'\nname = 'A'";
    for (arguments, url, warnings) in [
        ("", "https://127.0.0.1:25551", 0),
        ("-k", "https://127.0.0.1:25551", 1),
        ("-s http://server:1", "https://server:1", 1),
    ] {
        fs::set_permissions(rig.config(""), fs::Permissions::from_mode(0o600)).unwrap();
        let settings = rig.settings(pems, arguments);
        assert!(
            matches!(settings.security, Security::MutualTls(_)),
            "{arguments}"
        );
        assert_eq!(settings.url.to_string(), url);
        assert_eq!(
            settings.warnings.len(),
            warnings,
            "{arguments}: {:?}",
            settings.warnings
        );
    }
}

#[test]
fn an_incomplete_set_of_certificates_is_never_printed() {
    let rig = Rig::new();
    for (config, missing) in [
        (
            "key_pem_content = 'SECRET'",
            "Missing: '--ca_pem', '--crt_pem''",
        ),
        (
            "ca_pem_content = 'SECRET'\nkey_pem_content = 'SECRET'",
            "Missing: '--crt_pem''",
        ),
    ] {
        let path = rig.config("");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = rig.error(&format!("{config}\nname = 'A'"), "");
        assert!(
            error.starts_with("Missing certificate files: '") && error.contains(missing),
            "{error}"
        );
        assert!(!error.contains("SECRET"), "{error}");
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn default_run_folder_alone_is_created_and_never_cleaned() {
    let rig = Rig::new();
    let base = rig.folder.path().join("ankaios");
    rig.settings("", "-k -n A");
    fs::write(base.join("A_io/kept"), "").unwrap();
    rig.settings("", "-k -n A");
    assert!(base.join("A_io/kept").exists());
    fs::remove_dir_all(&base).unwrap();
    rig.settings("", &format!("-k -n A -r {}", base.display()));
    assert!(base.is_dir(), "naming the default counts as the default");
    fs::remove_dir_all(&base).unwrap();
    fs::write(&base, "").unwrap();
    assert!(
        rig.error("", "-k -n A")
            .starts_with("Run folder creation failed.")
    );
}

#[test]
fn run_folder_is_shared_and_the_agent_folder_private() {
    let rig = Rig::new();
    let base = rig.folder.path().join("ankaios");
    rig.settings("", "-k -n A");
    assert_eq!([mode(&base), mode(&base.join("A_io"))], [0o1777, 0o700]);
    // As other agents make them.
    set_mode(&base, 0o777);
    set_mode(&base.join("A_io"), 0o755);
    rig.settings("", "-k -n A");
    assert_eq!([mode(&base), mode(&base.join("A_io"))], [0o1777, 0o700]);
    // A user has made this one, and set its mode.
    let given = rig.folder.path().join("given");
    fs::create_dir(&given).unwrap();
    for (before, after) in [(0o700, 0o700), (0o755, 0o755), (0o777, 0o1777)] {
        set_mode(&given, before);
        rig.settings("", &format!("-k -n A -r {}", given.display()));
        assert_eq!(
            [mode(&given), mode(&given.join("A_io"))],
            [after, 0o700],
            "{before:o}"
        );
    }
}

#[test]
fn a_run_folder_that_others_control_is_refused() {
    let rig = Rig::new();
    let base = rig.folder.path().join("ankaios");
    rig.settings("", "-k -n A");
    let own = base.join("A_io");
    let what = "Run folder creation failed. Cannot continue without run folder.: '";
    set_mode(&own, 0o777);
    let text = format!(
        "{what}others may write to '{}' (mode 0777). Remove it; or, ",
        own.display()
    );
    let error = rig.error("", "-k -n A");
    assert!(error.starts_with(&text), "{error}");
    if !rustix::process::geteuid().is_root() {
        return; // Only root can make something of somebody else.
    }
    std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
    let text = format!(
        "{what}'{}' belongs to user 65534, not to user 0 who runs this program.",
        own.display()
    );
    let error = rig.error("", "-k -n A");
    assert!(error.starts_with(&text), "{error}");
    fs::remove_dir(&own).unwrap();
    std::os::unix::fs::chown(&base, Some(65534), None).unwrap();
    for arguments in [
        "-k -n A".to_owned(),
        format!("-k -n A -r {}/../ankaios", base.display()),
    ] {
        let error = rig.error("", &arguments);
        assert!(
            error.contains("it belongs to user 65534, who could replace everything in it"),
            "{error}"
        );
    }
    assert!(!own.exists());
}

#[test]
fn a_relative_run_folder_becomes_absolute() {
    let rig = Rig::new();
    let relative = format!(
        "src/../target/{}",
        rig.folder.path().file_name().unwrap().to_str().unwrap()
    );
    fs::create_dir_all(&relative).unwrap();
    let settings = rig.settings("", &format!("-k -n A -r {relative}"));
    assert!(settings.folder.is_absolute());
    assert!(settings.folder.is_dir());
    fs::remove_dir_all(&relative).unwrap();
}

#[test]
fn a_socket_needs_neither_certificates_nor_insecure() {
    let rig = Rig::new();
    for (config, arguments) in [
        ("", "-n A -s unix:///run/ank.sock"),
        (
            "name = 'A'\nserver_url = 'unix:///run/ank.sock'\nca_pem_content = 'C'",
            "",
        ),
        ("", "-n A -k -s unix:///run/ank.sock"),
    ] {
        let settings = rig.settings(config, arguments);
        assert_eq!(
            settings.url.to_string(),
            "unix:///run/ank.sock",
            "{arguments}"
        );
        assert_eq!(
            (settings.security, settings.warnings),
            (Security::Insecure, Vec::new()),
            "{arguments}"
        );
    }
    for arguments in [
        "-n A -k -s unix://run/ank.sock",
        "-n A -s unix://run/ank.sock",
    ] {
        assert_eq!(
            rig.error("", arguments),
            "Failed to create communications client.: 'Wrong server address format: 'unix://run/ank.sock'. A socket \
             is written as unix:///path, with an absolute path of at most 107 bytes.'"
        );
    }
}

// [utest->swdd~agent-removes-replaced-images~1]
#[test]
fn images_are_cleaned_up_only_with_the_setting() {
    let rig = Rig::new();
    let cleanup = |config: &str| rig.settings(config, "-k -n A").cleanup;
    for config in [
        "",
        "image_cleanup = 'never'\nimage_history = 3\nstate_dir = '/s'",
    ] {
        assert_eq!(cleanup(config), None, "{config}");
    }
    let found = cleanup("image_cleanup = 'report'").unwrap();
    let folder = LedgerFolder {
        agents: rig.folder.path().join("ankaios"),
        agent: "A".to_owned(),
        ending: "_io",
        inner: "images",
    };
    assert_eq!((found.mode, found.history), (CleanupMode::Report, 1));
    assert_eq!(found.folder, folder);
    let config = "image_cleanup = 'replaced'\nimage_history = 0\nstate_dir = '/s'";
    let found = cleanup(config).unwrap();
    assert_eq!((found.mode, found.history), (CleanupMode::Replaced, 0));
    assert_eq!(found.folder.path(), Path::new("/s/A_agent"));
    let error = rig.error("image_cleanup = 'report'\nstate_dir = 'x'", "-k -n A");
    assert!(
        error.contains("'x' is no absolute path") && error.contains("'state_dir'"),
        "{error}"
    );
}
