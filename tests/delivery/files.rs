//! Files delivered beside the programs: units, settings, init scripts, packages, install.sh. Each
//! is read by the program it is made for, where that is on this machine.
//!
//! Thread: the test's. Owns: one scratch folder per test.

#![allow(clippy::print_stderr)] // Tests say what they cannot do here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::process::clean_command;
use crate::support::scratch;
use ankaios_lite::agent::settings::Machine;

const SERVICES: [&str; 2] = ["ank-server", "ank-agent"];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn delivered(name: &str) -> PathBuf {
    top().join("cross/package").join(name)
}

fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("cannot read '{}': {error}", path.display()))
}

/// Runs a program; `None` when this machine does not have it.
fn run(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.success(), text))
}

/// The unit with programs that exist here, so that systemd finds nothing else to say.
fn unit_with_programs(service: &str, folder: &Path) -> PathBuf {
    let program = folder.join(service);
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ank-agent"), &program);
    let unit = folder.join(format!("{service}.service"));
    let changed = text(delivered(&format!("{service}.service"))).replace(
        &format!("/usr/bin/{service}"),
        program.to_str().expect("the path is text"),
    );
    fs::write(&unit, changed).expect("own folder is writable");
    unit
}

#[test]
fn systemd_has_nothing_to_say_against_the_units() {
    let folder = scratch::folder("units");
    for service in SERVICES {
        let unit = unit_with_programs(service, folder.path());
        let Some((done, said)) = run(
            "systemd-analyze",
            &["verify", "--man=no", unit.to_str().expect("text")],
        ) else {
            return eprintln!("no systemd-analyze here");
        };
        let about_ours: Vec<&str> = said.lines().filter(|line| line.contains(service)).collect();
        assert!(done && about_ours.is_empty(), "{service}: {said}");
    }
}

#[test]
fn the_server_is_as_little_exposed_as_promised() {
    let unit = delivered("ank-server.service");
    let unit = unit.to_str().expect("the path is text");
    // 1.6 when this was written, of 10. The agent has to be able to do what containers need: 9.6.
    let Some((done, said)) = run(
        "systemd-analyze",
        &["security", "--offline=true", "--threshold=20", unit],
    ) else {
        return eprintln!("no systemd-analyze here");
    };
    if said.contains("unrecognized option") || said.contains("Unknown option") {
        return eprintln!("systemd-analyze is too old");
    }
    assert!(done, "{said}");
}

#[test]
fn units_say_what_was_promised() {
    let both = [
        "Type=notify",
        "WatchdogSec=10s",
        "Restart=always",
        "RestartSec=1s",
        "LimitCORE=0",
    ];
    let server = [
        "User=ankaios",
        "RuntimeDirectory=ankaios",
        "StateDirectory=ankaios",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "MemoryDenyWriteExecute=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "SystemCallFilter=@system-service",
    ];
    let agent = [
        "KillMode=process",
        "Delegate=yes",
        "OOMScoreAdjust=-900",
        "RuntimeDirectory=ankaios-agent",
        "RuntimeDirectoryPreserve=yes",
        "After=network.target ank-server.service",
    ];
    for (service, lines) in SERVICES
        .into_iter()
        .zip([server.as_slice(), agent.as_slice()])
    {
        let unit = text(delivered(&format!("{service}.service")));
        for line in both.iter().chain(lines) {
            assert!(
                unit.lines().any(|found| found == *line),
                "{service}: {line}"
            );
        }
    }
}

#[test]
fn the_agent_gets_no_mount_namespace() {
    let unit = text(delivered("ank-agent.service"));
    let gives_one = [
        "Private",
        "Protect",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "Exec",
        "Bind",
        "TemporaryFileSystem",
        "Mount",
        "Root",
        "DynamicUser",
        "NoNewPrivileges",
    ];
    let options = unit
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("ExecStart="));
    for line in options {
        assert!(
            !gives_one.iter().any(|option| line.starts_with(option)),
            "{line}"
        );
    }
}

/// The file with all settings that are comments in use: keys are commented out as `# key = value`,
/// tables as `# [table]`.
fn everything_in_use(name: &str) -> String {
    let lines = text(delivered(name));
    let mut seen = BTreeSet::new();
    let mut result = String::new();
    for line in lines.lines() {
        let setting = line.strip_prefix("# ").unwrap_or(line);
        let key = setting
            .split_once(" = ")
            .map(|(key, _)| key)
            .filter(|key| !key.contains(' '));
        // The first one counts where a comment shows another value for a key.
        if key.is_some_and(|key| seen.insert(key.to_owned())) || setting.starts_with('[') {
            result += setting;
            result.push('\n');
        }
    }
    result
}

fn words(words: &[&str], path: &Path) -> Vec<OsString> {
    words
        .iter()
        .map(OsString::from)
        .chain([path.into()])
        .collect()
}

#[test]
fn settings_are_valid_as_shipped_and_with_all_comments_in_use() {
    let folder = scratch::folder("settings");
    let run_folder = folder.path().join("run");
    fs::create_dir(&run_folder).expect("own folder is writable");
    fs::write(run_folder.join("my-hook"), "").expect("own folder is writable");
    let path = |name: &str| folder.path().join(name);
    let here = |text: String| {
        // Certificates are not there, and the folders only on a device.
        let needs_them = |line: &&str| line.contains("_pem") || line.starts_with("commander_names");
        let kept = text
            .lines()
            .filter(|line| !needs_them(line))
            .map(|line| format!("{line}\n"));
        let here = run_folder.to_str().expect("text");
        let folders = [
            "/run/ankaios-agent",
            "/var/lib/ankaios",
            "/usr/libexec/ankaios/hooks",
        ];
        folders.iter().fold(kept.collect(), |text: String, folder| {
            text.replace(folder, here)
        })
    };
    for text in [
        text(delivered("ank-server.conf")),
        everything_in_use("ank-server.conf"),
    ] {
        fs::write(path("ank-server.conf"), here(text)).expect("own folder is writable");
        let settings = ankaios_lite::server::settings::read(words(
            &["ank-server", "-x"],
            &path("ank-server.conf"),
        ));
        assert_eq!(settings.expect("they are good").warnings, [""; 0]);
    }
    for text in [
        text(delivered("ank-agent.conf")),
        everything_in_use("ank-agent.conf"),
    ] {
        fs::write(path("ank-agent.conf"), here(text)).expect("own folder is writable");
        let arguments = words(&["ank-agent", "-x"], &path("ank-agent.conf"));
        let settings = ankaios_lite::agent::settings::read(arguments, &Machine::this())
            .expect("they are good");
        assert_eq!(settings.warnings, [""; 0]);
        assert_eq!(settings.folder, run_folder.join("agent_A_io"));
    }
    for text in [text(delivered("ank.conf")), everything_in_use("ank.conf")] {
        fs::write(path("ank.conf"), here(text)).expect("own folder is writable");
        let mut command = clean_command(env!("CARGO_BIN_EXE_ank"), folder.path());
        let output = command
            .args(["-x"])
            .arg(path("ank.conf"))
            .args(["get", "agents"])
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // No server listens there, but the settings were understood.
        assert!(
            said.contains("/run/ankaios/ank.sock") && !said.contains("warning"),
            "{said}"
        );
    }
}

#[test]
fn nothing_is_insecure_or_reachable_until_the_settings_say_so() {
    for name in ["ank-server.conf", "ank-agent.conf", "ank.conf"] {
        let text = text(delivered(name));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                !line.contains("insecure") && !line.contains("0.0.0.0"),
                "{name}: {line}"
            );
        }
        assert!(text.contains("\"unix:///run/ankaios/ank.sock\""), "{name}");
    }
}

#[test]
fn the_sample_manifest_is_one() {
    let manifest = ankaios_lite::model::manifest::Manifest::parse(&text(delivered("state.yaml")))
        .expect("it is YAML");
    assert_eq!(manifest.warnings.len(), 0);
    manifest.into_desired_state().expect("it is valid");
}

#[test]
fn init_scripts_know_their_verbs() {
    let folder = scratch::folder("init");
    for service in SERVICES {
        let script = folder.path().join(service);
        let here = text(delivered(&format!("{service}.init")))
            .replace(
                "DAEMON=/usr/bin/$NAME",
                &format!("DAEMON={}", env!("CARGO_BIN_EXE_ank-agent")),
            )
            .replace(
                "/run/$NAME.pid",
                &format!("{}/pid", folder.path().display()),
            );
        for (program, verb, code, said) in [
            (
                here.as_str(),
                "status",
                3,
                format!("{service} not running\n"),
            ),
            (&here, "stop", 0, format!("{service} is not running\n")),
            (&here, "wrong", 2, String::new()),
            (
                &here.replace("DAEMON=/", "DAEMON=/missing/"),
                "start",
                5,
                String::new(),
            ),
        ] {
            fs::write(&script, program).expect("own folder is writable");
            let output = Command::new("sh")
                .arg(&script)
                .arg(verb)
                .output()
                .expect("there is a shell");
            assert_eq!(
                output.status.code(),
                Some(code),
                "{service} {verb}: {output:?}"
            );
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                said,
                "{service} {verb}"
            );
        }
    }
}

#[test]
fn packages_are_made_of_files_that_exist() {
    let manifest: toml::Table = text(top().join("Cargo.toml")).parse().expect("it is TOML");
    let variants = manifest["package"]["metadata"]["deb"]["variants"]
        .as_table()
        .expect("a table");
    assert_eq!(variants.len(), 3);
    for (name, variant) in variants {
        let assets = variant["assets"].as_array().expect("a list");
        let sources: Vec<&str> = assets
            .iter()
            .map(|asset| asset[0].as_str().expect("text"))
            .collect();
        for source in sources
            .iter()
            .filter(|source| !source.starts_with("target/"))
        {
            assert!(names_files(source), "{name}: {source}");
        }
        for file in variant["conf-files"].as_array().expect("a list") {
            let file = Path::new(file.as_str().expect("text"))
                .file_name()
                .and_then(|name| name.to_str());
            assert!(
                sources
                    .iter()
                    .any(|source| source.ends_with(file.expect("a name"))),
                "{name}: {file:?}"
            );
        }
        if let Some(scripts) = variant.get("maintainer-scripts") {
            assert!(
                top()
                    .join(scripts.as_str().expect("text"))
                    .join("postinst")
                    .is_file(),
                "{name}"
            );
        }
    }
}

/// Whether an asset is a file, or stands for some: `<folder>/*.<ending>`, or all below
/// `<folder>/**/*`.
fn names_files(source: &str) -> bool {
    if let Some(folder) = source.strip_suffix("/**/*") {
        return !files_below(&top().join(folder)).is_empty();
    }
    let Some((folder, ending)) = source.split_once("/*") else {
        return top().join(source).is_file();
    };
    let mut files = fs::read_dir(top().join(folder))
        .expect("it can be read")
        .flatten();
    files.any(|file| file.path().is_file() && file.file_name().to_string_lossy().ends_with(ending))
}

/// The files of a Debian package: where each comes from, and the folder or file that it becomes.
fn assets(variant: &str) -> Vec<(String, String)> {
    let manifest: toml::Table = text(top().join("Cargo.toml")).parse().expect("it is TOML");
    let assets = manifest["package"]["metadata"]["deb"]["variants"][variant]["assets"]
        .as_array()
        .expect("a list");
    let word = |value: &toml::Value| value.as_str().expect("text").to_owned();
    assets
        .iter()
        .map(|asset| (word(&asset[0]), word(&asset[1])))
        .collect()
}

/// The pages of a package below its folder in /usr/share/doc, by the path that they have in the
/// repository.
fn pages_of(variant: &str) -> BTreeSet<String> {
    let mut pages = BTreeSet::new();
    for (source, target) in assets(variant) {
        if !target.starts_with("usr/share/doc/") {
            continue;
        }
        let Some((folder, pattern)) = source.split_once('*') else {
            pages.insert(source);
            continue;
        };
        let below = files_below(&top().join(folder));
        let is_named = |file: &&String| pattern.starts_with('*') || !file.contains('/');
        pages.extend(
            below
                .iter()
                .filter(is_named)
                .map(|file| format!("{folder}{file}")),
        );
    }
    pages
}

#[test]
fn packages_of_services_carry_their_own_pages_alone() {
    for (variant, own, others) in [
        ("server", "ank-server.8", "ank-agent"),
        ("agent", "ank-agent.8", "ank-server"),
    ] {
        let manual: Vec<String> = assets(variant)
            .into_iter()
            .map(|(source, _)| source)
            .filter(|source| source.contains("/man/"))
            .collect();
        assert_eq!(manual, [format!("target/man/man8/{own}")]);
        let pages = pages_of(variant);
        assert!(
            pages.contains("docs/configuration.md") && pages.contains("LICENSE"),
            "{pages:?}"
        );
        assert!(pages.len() < 15, "{pages:?}");
        for page in &pages {
            assert!(
                !page.contains("/examples/") && !page.contains(others),
                "{variant}: {page}"
            );
        }
        for (_, target) in assets(variant) {
            assert!(!target.contains(others), "{variant}: {target}");
        }
    }
}

/// Links lead to a page of the same package, or to one that the package with all pages has at the
/// same place.
#[test]
fn links_of_pages_lead_to_pages_that_a_package_has() {
    let all = pages_of("cli");
    for variant in ["server", "agent", "cli"] {
        let pages = pages_of(variant);
        assert!(pages.is_subset(&all), "{variant}: {pages:?}");
        for page in pages.iter().filter(|page| page.ends_with(".md")) {
            let page_text = text(top().join(page));
            for link in page_text
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split_once(')'))
                .map(|(link, _)| link)
            {
                let file = link.split('#').next().unwrap_or_default();
                if file.is_empty() || link.contains("://") || file.contains("src/") {
                    continue;
                }
                let target = top()
                    .join(page)
                    .parent()
                    .expect("it is in a folder")
                    .join(file);
                let target = target
                    .canonicalize()
                    .unwrap_or_else(|error| panic!("{page}: '{link}': {error}"));
                let target = target
                    .strip_prefix(top())
                    .expect("it is in the repository")
                    .display()
                    .to_string();
                assert!(
                    all.contains(&target),
                    "{variant}: '{page}' leads to '{target}', which no package has"
                );
            }
        }
    }
}

/// Runs a script of a Debian package with folders below `root`, and with programs that do nothing
/// in place of those that change this machine.
fn maintainer_script(package: &str, script: &str, verb: &str, root: &Path) {
    let programs = root.join("programs");
    fs::create_dir_all(&programs).expect("own folder is writable");
    for name in ["systemctl", "systemd-sysusers", "getent", "adduser"] {
        let program = programs.join(name);
        fs::write(&program, "#!/bin/sh\n").expect("own folder is writable");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("own file");
    }
    let here = root.display();
    let mut changed = text(top().join("cross/package/deb").join(package).join(script));
    for folder in ["/etc/", "/var/", "/run/"] {
        changed = changed.replace(folder, &format!("{here}{folder}"));
    }
    let mut command = Command::new("sh");
    command
        .args(["-c", &changed, script, verb])
        .env("PATH", format!("{here}/programs:/usr/bin:/bin"));
    let output = command.output().expect("there is a shell");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{package} {script}: {output:?}"
    );
}

#[test]
fn packages_make_the_folder_of_certificates_and_purge_it() {
    let packages = ["ank-server", "ank-agent", "ank"];
    for package in packages {
        let root = scratch::folder("deb");
        let settings = root.path().join("etc/ankaios");
        let certs = settings.join("certs");
        fs::create_dir_all(&settings).expect("own folder is writable");
        maintainer_script(package, "postinst", "configure", root.path());
        assert_eq!(mode(&certs), 0o755, "{package}");
        // A mode that an administrator has chosen stays.
        fs::set_permissions(&certs, fs::Permissions::from_mode(0o750)).expect("own folder");
        maintainer_script(package, "postinst", "configure", root.path());
        assert_eq!(mode(&certs), 0o750, "{package}");

        let of_another = settings.join("of-another-package.conf");
        fs::write(&of_another, "").expect("own folder is writable");
        maintainer_script(package, "postrm", "purge", root.path());
        assert!(certs.is_dir(), "{package}: another package is there");
        fs::remove_file(of_another).expect("own file");
        let key = certs.join("key.pem");
        fs::write(&key, "").expect("own folder is writable");
        maintainer_script(package, "postrm", "purge", root.path());
        assert!(key.exists(), "{package}: keys are the user's");
        fs::remove_file(key).expect("own file");
        maintainer_script(package, "postrm", "remove", root.path());
        assert!(certs.is_dir(), "{package}: only a purge removes settings");
        maintainer_script(package, "postrm", "purge", root.path());
        assert!(!settings.exists(), "{package}: nothing is left");
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .unwrap_or_else(|error| panic!("'{}': {error}", path.display()))
        .permissions()
        .mode()
        & 0o777
}

// Installing alone starts nothing: that is for the user, or for the image.
#[test]
fn maintainer_scripts_enable_and_start_nothing() {
    for service in SERVICES {
        for script in ["postinst", "prerm", "postrm"] {
            let script = text(top().join("cross/package/deb").join(service).join(script));
            for word in ["enable", "systemctl start", "systemctl restart", "--now"] {
                let lines = script.lines().filter(|line| !line.starts_with('#'));
                assert!(
                    lines.clone().all(|line| !line.contains(word)),
                    "{service}: {word}"
                );
            }
        }
    }
}

/// Everything below `folder`, without `folder` itself.
pub fn files_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("it can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(
                    path.strip_prefix(folder)
                        .expect("it is below")
                        .display()
                        .to_string(),
                );
            }
        }
    }
    found
}

/// Runs install.sh for an image of a system.
fn install_sh(image: &Path, arguments: &[&str]) -> std::process::Output {
    let programs = Path::new(env!("CARGO_BIN_EXE_ank"))
        .parent()
        .expect("it is in a folder");
    let mut command = Command::new("sh");
    command
        .arg(top().join("cross/package/install.sh"))
        .arg("--from")
        .arg(programs)
        .arg("--destdir")
        .arg(image);
    command.args(arguments).output().expect("there is a shell")
}

/// Returns its output.
fn install(image: &Path, arguments: &[&str]) -> String {
    let output = install_sh(image, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn uninstall(script: &Path, image: &Path) {
    let output = Command::new("sh")
        .arg(script)
        .env("DESTDIR", image)
        .output()
        .expect("there is a shell");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn install_sh_keeps_settings_and_removes_its_own_files() {
    let image = scratch::folder("image");
    install(image.path(), &["--init", "systemd"]);
    let installed = files_below(image.path());
    let expected = [
        "etc/ankaios/ank-agent.conf",
        "etc/ankaios/ank-server.conf",
        "etc/ankaios/ank.conf",
        "etc/ankaios/state.yaml",
        "etc/systemd/system/ank-agent.service",
        "etc/systemd/system/ank-server.service",
        "usr/lib/sysusers.d/ankaios.conf",
        "usr/local/bin/ank",
        "usr/local/bin/ank-agent",
        "usr/local/bin/ank-server",
        "usr/local/bin/ank-uninstall.sh",
        "usr/local/share/bash-completion/completions/ank",
    ];
    for file in expected {
        assert!(installed.contains(file), "{file} in {installed:?}");
    }
    let unit = text(image.path().join("etc/systemd/system/ank-agent.service"));
    assert!(
        unit.contains("ExecStart=/usr/local/bin/ank-agent\n"),
        "{unit}"
    );

    let settings = image.path().join("etc/ankaios/ank-agent.conf");
    fs::write(&settings, "# by the user\n").expect("own folder is writable");
    install(image.path(), &["--init", "systemd"]);
    assert_eq!(text(&settings), "# by the user\n");
    assert_eq!(
        files_below(image.path()),
        installed,
        "a second run adds nothing"
    );

    let state = image.path().join("var/lib/ankaios/desired-state.json");
    fs::create_dir_all(state.parent().expect("it is in a folder")).expect("own folder is writable");
    fs::write(&state, "{}").expect("own folder is writable");
    uninstall(
        &image.path().join("usr/local/bin/ank-uninstall.sh"),
        image.path(),
    );
    assert_eq!(text(&settings), "# by the user\n");
    fs::remove_file(state).expect("the state is the user's and stays");
    let kept: BTreeSet<String> = expected[..4]
        .iter()
        .map(|file| (*file).to_owned())
        .collect();
    assert_eq!(files_below(image.path()), kept);
}

#[test]
fn install_sh_installs_one_service_or_init_scripts() {
    let image = scratch::folder("image");
    install(
        image.path(),
        &["--init", "sysv", "-t", "agent", "--prefix", "/opt/ankaios"],
    );
    let script = text(image.path().join("etc/init.d/ank-agent"));
    assert!(
        script.contains("\nDAEMON=/opt/ankaios/bin/$NAME\n"),
        "{script}"
    );
}

/// A repository with the files of packages, manual pages, and programs that are empty: only those
/// named here.
fn repository_with(folder: &Path, programs: &[&str]) {
    let package = folder.join("cross/package");
    for file in files_below(&top().join("cross/package")) {
        write(&package.join(&file), &text(delivered(&file)));
    }
    for page in [
        "man1/ank.1",
        "man1/ank-apply.1",
        "man8/ank-agent.8",
        "man8/ank-server.8",
    ] {
        write(&folder.join("target/man").join(page), "");
    }
    for program in programs {
        let program = folder.join("target/release").join(program);
        write(&program, "");
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("own file");
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("own folder is writable");
    fs::write(path, text).expect("own folder is writable");
}

/// What `install.sh` of the repository in `folder` installs with these options.
fn installed_from(folder: &Path, arguments: &[&str]) -> BTreeSet<String> {
    let image = scratch::folder("image");
    let mut command = Command::new("sh");
    command
        .arg(folder.join("cross/package/install.sh"))
        .args(["--init", "systemd", "--destdir"])
        .arg(image.path());
    let output = command.args(arguments).output().expect("there is a shell");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{arguments:?}: {output:?}"
    );
    files_below(image.path())
}

#[test]
fn install_sh_with_one_part_installs_nothing_of_others() {
    const AGENT: [&str; 4] = [
        "etc/ankaios/ank-agent.conf",
        "etc/systemd/system/ank-agent.service",
        "usr/local/bin/ank-agent",
        "usr/local/share/man/man8/ank-agent.8",
    ];
    const SERVER: [&str; 6] = [
        "etc/ankaios/ank-server.conf",
        "etc/ankaios/state.yaml",
        "etc/systemd/system/ank-server.service",
        "usr/lib/sysusers.d/ankaios.conf",
        "usr/local/bin/ank-server",
        "usr/local/share/man/man8/ank-server.8",
    ];
    const CLI: [&str; 7] = [
        "etc/ankaios/ank.conf",
        "usr/local/bin/ank",
        "usr/local/share/bash-completion/completions/ank",
        "usr/local/share/fish/vendor_completions.d/ank.fish",
        "usr/local/share/man/man1/ank-apply.1",
        "usr/local/share/man/man1/ank.1",
        "usr/local/share/zsh/site-functions/_ank",
    ];
    // A device with one program builds no other.
    install_sh_installs_for("agent", &["ank-agent"], &[&AGENT]);
    install_sh_installs_for("server", &["ank-server"], &[&SERVER]);
    install_sh_installs_for("cli", &["ank"], &[&CLI]);
    install_sh_installs_for("server,cli", &["ank-server", "ank"], &[&SERVER, &CLI]);
    install_sh_installs_for(
        "both",
        &["ank-server", "ank-agent", "ank"],
        &[&SERVER, &AGENT, &CLI],
    );
}

/// With `-t parts` and these programs, exactly these files come with the script that removes them.
#[track_caller]
fn install_sh_installs_for(parts: &str, programs: &[&str], files: &[&[&str]]) {
    let repository = scratch::folder("repository");
    repository_with(repository.path(), programs);
    let mut expected: BTreeSet<String> = files.concat().into_iter().map(str::to_owned).collect();
    expected.insert("usr/local/bin/ank-uninstall.sh".to_owned());
    assert_eq!(
        installed_from(repository.path(), &["-t", parts]),
        expected,
        "{parts}"
    );
}

#[test]
fn install_sh_without_an_init_system_says_what_it_left_out() {
    let image = scratch::folder("image");
    let output = install_sh(image.path(), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output:?}");
    let warning = format!(
        "warning: no service was installed: '{}' has neither systemd (",
        image.path().display()
    );
    assert!(
        said.starts_with(&warning) && said.contains(" nor SysV init (/etc/init.d)\nhint: "),
        "{said}"
    );
    assert!(said.contains("--init systemd or --init sysv"), "{said}");
    assert!(
        !files_below(image.path())
            .iter()
            .any(|file| file.contains("service") || file.contains("init.d"))
    );
    // No service was requested.
    for arguments in [["--init", "none"], ["-t", "none"], ["-t", "cli"]] {
        let output = install_sh(scratch::folder("image").path(), &arguments);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn install_sh_finds_the_init_system_of_an_image() {
    for (there, installed) in [
        (
            vec!["usr/lib/systemd/systemd"],
            "etc/systemd/system/ank-agent.service",
        ),
        (
            vec!["lib/systemd/systemd", "etc/init.d/rc"],
            "etc/systemd/system/ank-agent.service",
        ),
        (
            vec!["bin/systemctl"],
            "etc/systemd/system/ank-agent.service",
        ),
        (vec!["etc/init.d/rc"], "etc/init.d/ank-agent"),
    ] {
        let image = scratch::folder("image");
        for file in &there {
            write(&image.path().join(file), "");
        }
        let output = install_sh(image.path(), &["-t", "agent"]);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{there:?}: {output:?}"
        );
        assert!(files_below(image.path()).contains(installed), "{there:?}");
    }
}

/// The server runs as a user of its own, and reads what root has installed with any `umask`.
#[test]
fn install_sh_makes_folders_that_everybody_reads() {
    let image = scratch::folder("image");
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 077 && exec sh \"$@\"", "sh"])
        .arg(delivered("install.sh"));
    command.arg("--from").arg(
        Path::new(env!("CARGO_BIN_EXE_ank"))
            .parent()
            .expect("it is in a folder"),
    );
    let output = command
        .args(["--init", "systemd", "--destdir"])
        .arg(image.path())
        .output()
        .expect("there is a shell");
    assert!(output.status.success(), "{output:?}");
    for folder in [
        "etc/ankaios",
        "etc/ankaios/certs",
        "usr/local/bin",
        "etc/systemd/system",
    ] {
        assert_eq!(mode(&image.path().join(folder)), 0o755, "{folder}");
    }
    assert_eq!(
        mode(&image.path().join("etc/ankaios/ank-server.conf")),
        0o644
    );
    let certs = image.path().join("etc/ankaios/certs");
    fs::set_permissions(&certs, fs::Permissions::from_mode(0o750)).expect("own folder");
    install(image.path(), &["--init", "systemd"]);
    assert_eq!(mode(&certs), 0o750, "a mode that somebody has chosen stays");
}

#[test]
fn install_sh_removes_files_of_a_run_with_other_options() {
    let image = scratch::folder("image");
    install(image.path(), &["--init", "systemd"]);
    let said = install(image.path(), &["--init", "sysv", "-t", "agent"]);
    assert!(
        said.contains("/etc/init.d/ank-agent start, or restart what runs")
            && !said.contains("ank-server"),
        "{said}"
    );
    uninstall(
        &image.path().join("usr/local/bin/ank-uninstall.sh"),
        image.path(),
    );
    let left = files_below(image.path());
    assert!(
        left.iter().all(|file| file.starts_with("etc/ankaios/")),
        "{left:?}"
    );
}

#[test]
fn uninstaller_of_an_image_leaves_files_of_the_host_alone() {
    let image = scratch::folder("image");
    let said = install(
        image.path(),
        &[
            "--init",
            "none",
            "-t",
            "none",
            "--prefix",
            "/opt/ankaios-of-image",
        ],
    );
    let installed = files_below(image.path());
    let script = image
        .path()
        .join("opt/ankaios-of-image/bin/ank-uninstall.sh");
    let output = Command::new("sh")
        .arg(&script)
        .env_remove("DESTDIR")
        .output()
        .expect("there is a shell");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1)
            && error.contains("nothing was removed\nhint: for an image "),
        "{output:?}"
    );
    assert_eq!(files_below(image.path()), installed);
    let (_, printed) = said
        .trim_end()
        .rsplit_once("to remove it: ")
        .expect("it names a command");
    let output = Command::new("sh")
        .args(["-c", printed])
        .output()
        .expect("there is a shell");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert_eq!(
        files_below(image.path()),
        BTreeSet::from(["etc/ankaios/ank.conf".to_owned()])
    );
}

#[test]
fn install_sh_installs_nothing_when_it_is_called_wrongly() {
    let image = scratch::folder("image");
    for (arguments, expected) in [
        (["--wrong", "x"], "error: unknown option '--wrong'\nhint: "),
        (
            ["--init", "upstart"],
            "error: '--init upstart' is not known\nhint: systemd, sysv or none\n",
        ),
        (
            ["-t", "client"],
            "error: '-t client' is not known\nhint: server, agent or cli, several of them",
        ),
        (
            ["-t", "agent server"],
            "error: '-t agent server' is not known\nhint: ",
        ),
        (
            ["-t", "agent,both"],
            "error: '-t agent,both' is not known\nhint: ",
        ),
        (["-t", ","], "error: '-t ,' is not known\nhint: "),
        (["-t", ""], "error: '-t ' is not known\nhint: "),
        (
            ["--prefix", "opt"],
            "error: '--prefix opt' is not an absolute path\nhint: ",
        ),
        (
            ["--from", "/missing"],
            "error: '/missing/ank-server' is missing\nhint: ",
        ),
    ] {
        let output = install_sh(image.path(), &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with(expected), "{arguments:?}: {said}");
        assert_eq!(files_below(image.path()), BTreeSet::new(), "{arguments:?}");
    }
}

#[test]
fn install_sh_installs_nothing_by_halves() {
    let image = scratch::folder("image");
    fs::write(image.path().join("etc"), "no folder can be made here")
        .expect("own folder is writable");
    let output = install_sh(image.path(), &["--init", "none"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: '") && said.contains("/etc/ankaios' cannot be written\nhint: "),
        "{said}"
    );
    assert_eq!(
        files_below(image.path()),
        BTreeSet::from(["etc".to_owned()])
    );
}
