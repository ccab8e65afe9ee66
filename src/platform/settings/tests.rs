//! Tests of the common settings.

use super::*;
use std::collections::BTreeMap;
use std::{fmt, fs};

/// For `unwrap_err` only: a program has no text of a file that may hold keys.
impl fmt::Debug for ConfigFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ConfigFile")
    }
}

/// As for files.
impl fmt::Debug for Pems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pems")
    }
}

fn file(text: &str) -> ConfigFile {
    ConfigFile {
        path: PathBuf::from("/etc/x.conf"),
        text: text.to_owned(),
    }
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn given_file_must_exist_and_else_the_first_place_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let second = write(&folder, "second", "version = 'v1'", 0o600);
    let missing = folder.path().join("missing");
    let places = [missing.clone(), second.clone()];
    assert_eq!(
        ConfigFile::find(None, &places).unwrap().unwrap().path,
        second
    );
    assert!(
        ConfigFile::find(None, std::slice::from_ref(&missing))
            .unwrap()
            .is_none()
    );
    let error = ConfigFile::find(Some(&missing), &places)
        .unwrap_err()
        .to_string();
    let start = format!(
        "Config file could not have been parsed due to: cannot read '{}': No such",
        missing.display()
    );
    assert!(error.starts_with(&start), "{error}");
    // A folder exists but cannot be read as a file.
    assert!(ConfigFile::find(None, &[folder.path().to_owned()]).is_err());
}

#[test]
fn a_config_file_that_is_too_large_or_not_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let large = write(&folder, "large", &"#".repeat(FILE_MAX + 1), 0o600);
    assert!(
        ConfigFile::read(&large)
            .unwrap_err()
            .to_string()
            .contains("larger than")
    );
    let binary = folder.path().join("binary");
    fs::write(&binary, [0xff, 0xfe, 0x00]).unwrap();
    assert!(ConfigFile::read(&binary).is_err());
}

#[test]
fn no_line_of_a_key_is_printed_wherever_the_file_is_wrong() {
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC";
    let key = format!("-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----");
    for text in [
        format!(
            "version = 'v1'\nkey_pem_content = \"\"\"\n-----BEGIN PRIVATE\n{line}\\q\n\"\"\"\n"
        ),
        format!("version = 'v1'\nca_pem_content = \"\"\"\n{key}\n{line}\\q\"\"\"\n"),
        format!("version = 'v1'\nkey_pem_content = '''\n{line}'''{line}\n"),
        format!("version = ['''{key}''']\n"),
        format!("key_pem_content = '''{key}'''\nversion = 1\n"),
        format!("version = 'v1'\nkey_pem_content = '''{key}\n"),
    ] {
        let file = file(&text);
        let Err(error) = file
            .check_version(false)
            .and_then(|()| file.keys::<BTreeMap<String, bool>>())
        else {
            panic!("it is correct: {text}");
        };
        let error = error.to_string();
        assert!(
            !error.contains(line) && error.contains("line ") && error.contains("/etc/x.conf"),
            "{error}"
        );
    }
}

#[test]
fn the_version_must_be_there_and_v1() {
    for (text, in_default, expected) in [
        ("version = 'v1'", false, ""),
        (
            "version = 'v2'",
            false,
            "Wrong version: v2 ('/etc/x.conf', line 1: 'v1' is expected)",
        ),
        (
            "\n[default]\nversion = 'v2'",
            true,
            "Wrong version: v2 ('/etc/x.conf', line 3: ",
        ),
        (
            "version = 'v1'\n[default]\nversion = 'v2'",
            true,
            "Wrong version: v2 ('/etc/x.conf': ",
        ),
        ("version = ''", false, "Wrong version: "),
        (
            "version = 1",
            false,
            "expected text in quotes, found number 1",
        ),
        ("", false, "missing field `version`"),
        (
            "[default]\nversion = 'v1'",
            false,
            "missing field `version`",
        ),
        ("[default]\nversion = 'v1'", true, ""),
        ("version = 'v1'\n[default]\ninsecure = true", true, ""),
        ("version = 'v1'", true, ""),
        ("version = ", false, "TOML parse error at line 1"),
    ] {
        match file(text).check_version(in_default) {
            Ok(()) => assert_eq!(expected, "", "{text:?}"),
            Err(error) => {
                assert!(
                    !expected.is_empty() && error.to_string().contains(expected),
                    "{text:?}: {error}"
                );
            }
        }
    }
}

#[test]
fn a_type_error_names_file_and_line_but_never_shows_a_key() {
    #[derive(Debug, Deserialize)]
    struct Keys {
        #[allow(dead_code)]
        insecure: Option<bool>,
        #[allow(dead_code)]
        key_pem_content: Option<String>,
    }
    let error = file("version = 'v1'\ninsecure = 'true'")
        .keys::<Keys>()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("'/etc/x.conf': TOML parse error at line 2, column 12"),
        "{error}"
    );
    let error = file("key_pem_content = 'SECRET' x")
        .keys::<Keys>()
        .unwrap_err()
        .to_string();
    assert!(!error.contains("SECRET"), "{error}");
}

#[test]
fn unknown_keys_are_reported_with_line_and_nearest_key() {
    let text = "version = 'v1'\nadress = 'x'\n[tags]\na = 'b'\n[[mutating_hook]]\nname = 'h'\n[[hooks]]\nname = 'x'\nprioo = 1\n";
    let known = [
        "version",
        "address",
        "tags.*",
        "mutating_hooks.name",
        "hooks.name",
        "hooks.prio",
    ];
    assert_eq!(
        file(text).unknown_keys(&known),
        [
            "'/etc/x.conf', line 2: unknown key 'adress' is ignored. Did you mean 'address'?",
            "'/etc/x.conf', line 5: unknown key 'mutating_hook' is ignored. Did you mean 'mutating_hooks'?",
            "'/etc/x.conf', line 9: unknown key 'hooks.prioo' is ignored. Did you mean 'hooks.prio'?",
        ]
    );
    let known_to_server = ["state_dir", "startup_manifest"];
    assert_eq!(
        file("state_persistence_file = '/s'\nstartup_config = 'a'").unknown_keys(&known_to_server),
        [
            "'/etc/x.conf', line 1: unknown key 'state_persistence_file' is ignored. Use 'state_dir', which names a folder.",
            "'/etc/x.conf', line 2: unknown key 'startup_config' is ignored. Use 'startup_manifest'.",
        ]
    );
    assert_eq!(
        file("state_persistence_file = '/s'").unknown_keys(&known),
        ["'/etc/x.conf', line 1: unknown key 'state_persistence_file' is ignored."],
        "a program without 'state_dir' does not name it"
    );
    assert_eq!(
        file("not toml =").unknown_keys(&known),
        Vec::<String>::new()
    );
    assert_eq!(
        file("zzz = 1").unknown_keys(&known),
        ["'/etc/x.conf', line 1: unknown key 'zzz' is ignored."]
    );
}

#[test]
fn pem_permissions_are_checked_before_reading() {
    let folder = tempfile::tempdir().unwrap();
    for (mode, key, certificate) in [
        (0o600, true, true),
        (0o400, true, true),
        (0o640, false, true),
        (0o644, false, true),
        (0o444, false, true),
        (0o664, false, false),
        (0o646, false, false),
        (0o700, false, false),
        (0o611, false, false),
    ] {
        let path = write(&folder, "pem", "PEM", mode);
        assert_eq!(read_pem(&path, true).is_ok(), key, "key {mode:o}");
        assert_eq!(
            read_pem(&path, false).is_ok(),
            certificate,
            "certificate {mode:o}"
        );
        fs::remove_file(path).unwrap();
    }
    let path = write(&folder, "key", "SECRET", 0o644);
    let error = read_pem(&path, true).unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(
        error,
        format!(
            "Certificate error: 'Private key file \"{shown}\" has insecure permissions 0644. Private keys must have permissions 0600 or 0400. Use 'chmod 0600 {shown}' to fix this.'"
        )
    );
    let error = read_pem(Path::new("/nowhere/x"), false)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "Certificate error: 'Error during opening the given file \"/nowhere/x\": No such file or directory (os error 2)'"
    );
}

#[test]
fn pem_path_beside_content_conflicts_and_options_override() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "ca", "FROM FILE", 0o644);
    let content = file("ca_pem_content = 'INLINE'").keys::<PemKeys>().unwrap();
    let pems = content.clone().read(&file("")).unwrap();
    assert_eq!(pems.ca.as_deref(), Some("INLINE"));
    let replaced = pems.overridden_by([Some(&path), None, None]).unwrap();
    assert_eq!(replaced.ca.as_deref(), Some("FROM FILE"));
    let both = PemKeys {
        ca_pem: Some(path),
        ..content
    };
    let conflict = both.read(&file("ca_pem = 'a'")).unwrap_err().to_string();
    assert!(
        conflict.ends_with("are both set ('/etc/x.conf', line 1: 'ca_pem' and 'ca_pem_content')"),
        "{conflict}"
    );
    let missing = PemKeys {
        key_pem: Some("/nowhere/x".into()),
        ..PemKeys::default()
    };
    let error = missing
        .read(&file("[default]\nkey_pem = '/nowhere/x'"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("Certificate could not have been read due to: Certificate error: '"),
        "{error}"
    );
    assert!(
        error.ends_with(" ('/etc/x.conf', line 2: 'key_pem')"),
        "{error}"
    );
}

#[test]
fn tls_is_decided_by_the_table_and_never_falls_back_silently() {
    let pems = |ca: bool, certificate: bool, key: bool| {
        let text = |given: bool| given.then(|| "SECRET".to_owned());
        Pems {
            ca: text(ca),
            certificate: text(certificate),
            key: text(key),
        }
    };
    for (insecure, given, expected, warned) in [
        (false, pems(true, true, true), Some(true), false),
        (true, pems(true, true, true), Some(true), true),
        (true, pems(false, false, false), Some(false), false),
        (true, pems(true, false, true), None, true),
        (false, pems(false, false, false), None, false),
        (false, pems(true, true, false), None, false),
    ] {
        let (security, warning) = decide_security(insecure, given.clone());
        let tls = security
            .as_ref()
            .ok()
            .map(|security| matches!(security, Security::MutualTls(_)));
        assert_eq!(tls, expected, "insecure {insecure}, {given:?}");
        assert_eq!(warning.is_some(), warned, "insecure {insecure}, {given:?}");
        assert!(!format!("{security:?} {given:?}").contains("SECRET"));
    }
    let error = decide_security(false, pems(true, true, false))
        .0
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("with the '--insecure' option! Missing: '--key_pem'"),
        "{error}"
    );
    assert!(error.starts_with(
        "Either provide mTLS config via the '--ca_pem', '--crt_pem' and '--key_pem' options"
    ));
}

#[test]
fn a_flag_knows_whether_it_was_given() {
    let flags = || {
        ["insecure", "no_insecure"]
            .map(|id| clap::Arg::new(id).long(id).action(clap::ArgAction::SetTrue))
    };
    let given = |words: &[&str]| {
        insecure_flag(
            &clap::Command::new("x")
                .args(flags())
                .get_matches_from(words),
        )
    };
    assert_eq!(
        (given(&["x"]), given(&["x", "--insecure"])),
        (None, Some(true))
    );
}

#[test]
fn a_readable_file_with_a_key_is_worth_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (mode, text, warned) in [
        (0o644, "key_pem_content = 'K'", true),
        (0o600, "key_pem_content = 'K'", false),
        (0o644, "ca_pem_content = 'C'", false),
    ] {
        let config = ConfigFile::read(&write(&folder, "conf", text, mode)).unwrap();
        let keys = config.keys::<PemKeys>().unwrap();
        assert_eq!(
            readable_key_warning(&config, &keys).is_some(),
            warned,
            "{mode:o} {text}"
        );
    }
}

#[test]
fn texts_in_other_encodings_are_read_or_named() {
    for text in ["", "a", "a = 1\n", "ä: ö\n"] {
        assert_eq!(read_limited(text.as_bytes(), 100).unwrap(), text);
        assert_eq!(
            read_limited(format!("\u{feff}{text}").as_bytes(), 100).unwrap(),
            text,
            "with a mark"
        );
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [
            [&b"\xff\xfe"[..], &little].concat(),
            [&b"\xfe\xff"[..], &big].concat(),
        ] {
            let error = read_limited(&bytes[..], 100).unwrap_err();
            assert_eq!(
                error.to_string(),
                "it is text in UTF-16; save it as UTF-8",
                "{text:?}"
            );
        }
        if text.len() > 2 && text.is_ascii() {
            assert!(
                read_limited(&little[..], 100).is_err() && read_limited(&big[..], 100).is_err(),
                "without a mark"
            );
        }
    }
    let error = read_limited(&b"a: 1\nb: \xe4\n"[..], 100).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (
            std::io::ErrorKind::InvalidData,
            "line 2 is not UTF-8; save it as UTF-8"
        )
    );
    assert!(
        read_limited(&b"\0\0"[..], 100).is_ok(),
        "zeros alone are no text in UTF-16"
    );
}

#[test]
fn config_and_pem_files_with_byte_order_mark_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        &folder,
        "x.conf",
        "\u{feff}version = 'v1'\r\nquiet = true\r\n",
        0o600,
    );
    let config = ConfigFile::read(&path).unwrap();
    config.check_version(false).unwrap();
    assert_eq!(config.unknown_keys(&["version"]).len(), 1);
    let path = write(&folder, "key.pem", "\u{feff}-----BEGIN", 0o600);
    assert_eq!(read_pem(&path, true).unwrap(), "-----BEGIN");
}
