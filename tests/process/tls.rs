//! Mutual TLS with certificates made by the `openssl` commands that users follow, and OpenSSL as
//! the other side.
//!
//! Thread: the test's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, Output, workload};

/// Runs `openssl` in `folder`.
fn openssl(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    let output = command
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() || arguments[0] == "s_client",
        "openssl {arguments:?}:\n{text}"
    );
    text
}

/// Key and certificate of `name`, signed by the authority in the same folder.
fn issue(folder: &Path, name: &str, algorithm: &[&str], san: &str, usage: &str) {
    let (key, request, certificate) = (
        format!("{name}-key.pem"),
        format!("{name}.csr"),
        format!("{name}.pem"),
    );
    openssl(folder, &[&["genpkey", "-out", &key], algorithm].concat());
    let subject = format!("/CN={name}");
    openssl(
        folder,
        &[
            "req", "-new", "-key", &key, "-subj", &subject, "-out", &request,
        ],
    );
    let extensions = format!("subjectAltName = {san}\nextendedKeyUsage = {usage}\n");
    std::fs::write(folder.join("extensions"), extensions).expect("own folder is writable");
    let sign = [
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca-key.pem",
        "-CAcreateserial",
    ];
    openssl(
        folder,
        &[
            &sign[..],
            &["-days", "2", "-extfile", "extensions", "-out", &certificate],
        ]
        .concat(),
    );
}

/// An authority and certificates for the three programs.
fn certificates(cluster: &Cluster, algorithm: &[&str]) -> PathBuf {
    let folder = cluster.folder().join("certificates");
    std::fs::create_dir(&folder).expect("own folder is writable");
    openssl(
        &folder,
        &["genpkey", "-algorithm", "ED25519", "-out", "ca-key.pem"],
    );
    openssl(
        &folder,
        &[
            "req",
            "-x509",
            "-key",
            "ca-key.pem",
            "-subj",
            "/CN=vehicle",
            "-days",
            "2",
            "-out",
            "ca.pem",
        ],
    );
    issue(
        &folder,
        "ank-server",
        algorithm,
        "DNS:ank-server",
        "serverAuth",
    );
    issue(
        &folder,
        "ank-agent",
        algorithm,
        "DNS:agent_A, DNS:agent_B",
        "clientAuth",
    );
    issue(&folder, "ank", algorithm, "DNS:ank", "clientAuth");
    for entry in std::fs::read_dir(&folder).expect("just made").flatten() {
        if entry.file_name().to_string_lossy().ends_with("-key.pem") {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(entry.path(), std::fs::Permissions::from_mode(0o600))
                .expect("own file");
        }
    }
    folder
}

fn secure_cluster(algorithm: &[&str]) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::prepare();
    let folder = certificates(&cluster, algorithm);
    cluster.certificates = Some(folder.clone());
    cluster.start_server(&[]);
    (cluster, folder)
}

/// Runs `ank get agents` with this certificate and this authority.
fn get_agents_with(cluster: &Cluster, folder: &Path, certificate: &str, ca: &str) -> Output {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = cluster.bare_ank_command();
    command.args([
        "--server-url",
        &cluster.url(),
        "--ca_pem",
        &file(ca),
        "get",
        "agents",
    ]);
    command.args(["--crt_pem", &file(&format!("{certificate}.pem"))]);
    command.args(["--key_pem", &file(&format!("{certificate}-key.pem"))]);
    cluster.finish(command, "")
}

// [stest->swdd~agent-supports-pem-file-paths-as-cli-arguments~1]
#[test]
fn all_three_programs_work_with_keys_of_every_kind() {
    for algorithm in [
        &["-algorithm", "ED25519"][..],
        &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
    ] {
        let (mut cluster, _) = secure_cluster(algorithm);
        cluster.start_agent("agent_A");
        cluster.wait_for_agents(&["agent_A"]);
        cluster.run(&[workload("w", "run").on("agent_A")]);
    }
}

#[test]
fn openssl_as_the_client_negotiates_http2_with_both_versions() {
    let (cluster, folder) = secure_cluster(&["-algorithm", "ED25519"]);
    for (version, name) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let address = cluster.address();
        let connect = [
            "s_client",
            "-connect",
            &address,
            "-servername",
            "ank-server",
            "-alpn",
            "h2",
            version,
        ];
        let files = [
            "-CAfile",
            "ca.pem",
            "-cert",
            "ank.pem",
            "-key",
            "ank-key.pem",
            "-verify_return_error",
        ];
        let text = openssl(&folder, &[&connect[..], &files].concat());
        assert!(text.contains("ALPN protocol: h2"), "{version}:\n{text}");
        assert!(
            text.contains("Verify return code: 0 (ok)"),
            "{version}:\n{text}"
        );
        assert!(text.contains(name), "{version}:\n{text}");
    }
    // Something that is neither HTTP/2 nor silent is refused during the greeting.
    let address = cluster.address();
    let text = openssl(
        &folder,
        &[
            "s_client", "-connect", &address, "-alpn", "http/1.1", "-CAfile", "ca.pem",
        ],
    );
    assert!(text.contains("no application protocol"), "{text}");
}

#[test]
fn agent_missing_in_its_certificate_is_refused_with_a_reason() {
    let (mut cluster, _) = secure_cluster(&["-algorithm", "ED25519"]);
    cluster.start_agent("agent_C");
    let expected =
        r#"Agent name 'agent_C' does not match SAN ["agent_A", "agent_B"] in agent certificates!"#;
    cluster.wait_for("both sides say why", || {
        let told = cluster.agents["agent_C"].stderr().contains(expected);
        let logged = cluster
            .server
            .as_ref()
            .is_some_and(|server| server.stderr().contains(expected));
        (told && logged).then_some(())
    });
    assert!(!cluster.ank(&["get", "agents"]).stdout.contains("agent_C"));
}

#[test]
fn agent_without_tls_names_the_likely_cause_once() {
    let (mut cluster, _) = secure_cluster(&["-algorithm", "ED25519"]);
    cluster.certificates = None;
    cluster.start_agent("agent_A");
    let log = |cluster: &Cluster| cluster.agents["agent_A"].stderr();
    cluster.wait_for("the cause", || {
        log(&cluster)
            .contains("; the server may expect TLS")
            .then_some(())
    });
    assert!(!log(&cluster).contains("ServerGone"), "{}", log(&cluster));
}

#[test]
fn mistakes_of_ank_are_explained_and_the_server_goes_on() {
    let (cluster, folder) = secure_cluster(&["-algorithm", "ED25519"]);
    let ask = |certificate: &str, ca: &str| get_agents_with(&cluster, &folder, certificate, ca);
    let wrong_ca = ask("ank", "ank.pem");
    assert_eq!(wrong_ca.code, 1);
    assert!(
        wrong_ca
            .stderr
            .contains("Could not connect to Ankaios server on"),
        "{}",
        wrong_ca.stderr
    );
    assert!(
        wrong_ca.stderr.contains("was not signed by our CA"),
        "{}",
        wrong_ca.stderr
    );
    let server_certificate = ask("ank-server", "ca.pem");
    assert_eq!(server_certificate.code, 1);
    assert!(
        server_certificate.stderr.contains("not meant for this use"),
        "{}",
        server_certificate.stderr
    );
    assert_eq!(
        cluster
            .bare_ank(&[
                "--insecure",
                "--server-url",
                &cluster.url(),
                "get",
                "agents"
            ])
            .code,
        1
    );
    assert_eq!(ask("ank", "ca.pem").code, 0, "the server goes on");
}

#[test]
fn only_certificates_with_commander_names_may_command() {
    let mut cluster = Cluster::prepare();
    let folder = certificates(&cluster, &["-algorithm", "ED25519"]);
    cluster.certificates = Some(folder.clone());
    cluster.server_config = "commander_names = ['ank', 'tester']\n".to_owned();
    cluster.start_all(&["agent_A"]); // With the certificate for 'ank'.
    let output = get_agents_with(&cluster, &folder, "ank-agent", "ca.pem");
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    let text = r#"Only certificates for ["ank", "tester"] may command, not one for ["agent_A", "agent_B"]."#;
    assert!(output.stderr.contains(text), "{}", output.stderr);
    assert!(
        cluster.server().stderr().contains(text),
        "{}",
        cluster.server().stderr()
    );
}

/// The errors of `ank` and `ank-server` about the key or certificate `name`. Both must end with 1.
fn refusals(cluster: &Cluster, folder: &Path, name: &str) -> [String; 2] {
    let asked = get_agents_with(cluster, folder, name, "ca.pem");
    assert_eq!(asked.code, 1, "{name}: {asked:?}");
    let ca = folder.join("ca.pem").display().to_string();
    let certificate = folder.join(format!("{name}.pem")).display().to_string();
    let key = folder.join(format!("{name}-key.pem")).display().to_string();
    let options = [
        "--ca_pem",
        &ca,
        "--crt_pem",
        &certificate,
        "--key_pem",
        &key,
    ];
    let mut server = cluster.spawn_server(&options);
    assert_eq!(
        server.wait(LIMIT).map(exit_code),
        Some(1),
        "{name}: {}",
        server.stderr()
    );
    [asked.stderr, server.stderr()]
}

fn write_key(folder: &Path, name: &str, text: &[u8]) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join(name);
    std::fs::write(&path, text).expect("own folder is writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("own file");
}

#[test]
fn keys_that_do_not_work_are_named_with_their_kind() {
    let (mut cluster, folder) = secure_cluster(&["-algorithm", "ED25519"]);
    cluster.certificates = None;
    let read = |name: &str| std::fs::read(folder.join(name)).expect("it was made");
    let issue = |name: &str, algorithm: &[&str]| {
        issue(
            &folder,
            name,
            algorithm,
            "DNS:ank-server",
            "serverAuth,clientAuth",
        )
    };
    issue(
        "p521",
        &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"],
    );
    issue(
        "k1",
        &[
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:secp256k1",
        ],
    );
    issue(
        "rsa1024",
        &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"],
    );
    issue("ed448", &["-algorithm", "ED448"]);
    for name in [
        "encrypted",
        "legacy",
        "certificate",
        "public",
        "openssh",
        "der",
        "damaged",
    ] {
        std::fs::copy(folder.join("ank.pem"), folder.join(format!("{name}.pem")))
            .expect("own folder is writable");
    }
    let encrypt = ["-aes256", "-passout", "pass:secret"];
    openssl(
        &folder,
        &[
            &["pkey", "-in", "ank-key.pem", "-out", "encrypted-key.pem"],
            &encrypt[..],
        ]
        .concat(),
    );
    openssl(
        &folder,
        &[
            "genrsa",
            "-traditional",
            "-aes128",
            "-passout",
            "pass:secret",
            "-out",
            "legacy-key.pem",
        ],
    );
    write_key(&folder, "certificate-key.pem", &read("ank.pem"));
    openssl(
        &folder,
        &[
            "pkey",
            "-in",
            "ank-key.pem",
            "-pubout",
            "-out",
            "public-key.pem",
        ],
    );
    write_key(&folder, "public-key.pem", &read("public-key.pem"));
    let openssh =
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n";
    write_key(&folder, "openssh-key.pem", openssh);
    openssl(
        &folder,
        &[
            "pkey",
            "-in",
            "ank-key.pem",
            "-outform",
            "DER",
            "-out",
            "der-key.pem",
        ],
    );
    write_key(
        &folder,
        "der-key.pem",
        &[&read("der-key.pem")[..], b"\xff"].concat(),
    );
    write_key(
        &folder,
        "damaged-key.pem",
        b"-----BEGIN PRIVATE KEY-----\nsecret!\n-----END PRIVATE KEY-----\n",
    );
    for name in ["p521", "k1", "rsa1024", "ed448", "encrypted", "legacy"] {
        write_key(
            &folder,
            &format!("{name}-key.pem"),
            &read(&format!("{name}-key.pem")),
        );
    }
    let working = "Ed25519, ECDSA with P-256 or P-384 and RSA with 2048 to 4096 bits work";
    for (name, expected) in [
        (
            "p521",
            format!("the private key cannot be used: it is ECDSA with P-521; {working}"),
        ),
        (
            "k1",
            format!("the private key cannot be used: it is ECDSA with secp256k1; {working}"),
        ),
        (
            "rsa1024",
            format!("the private key cannot be used: it is RSA with 1024 bits; {working}"),
        ),
        (
            "ed448",
            format!("the private key cannot be used: it is Ed448; {working}"),
        ),
        (
            "encrypted",
            "the private key cannot be used: it is encrypted; 'openssl pkey".to_owned(),
        ),
        (
            "legacy",
            "the private key cannot be used: it is encrypted; 'openssl pkey".to_owned(),
        ),
        (
            "certificate",
            "the private key cannot be used: it holds a certificate and no key".to_owned(),
        ),
        (
            "public",
            "the private key cannot be used: it holds a public key".to_owned(),
        ),
        (
            "openssh",
            "the private key cannot be used: it holds a key of OpenSSH".to_owned(),
        ),
        (
            "der",
            "it is no PEM text; 'openssl pkey -inform DER' converts".to_owned(),
        ),
        (
            "damaged",
            "the private key cannot be used: it holds no PKCS#8, PKCS#1 or SEC1 key in PEM form"
                .to_owned(),
        ),
    ] {
        for text in refusals(&cluster, &folder, name) {
            assert!(
                text.contains(&expected) && !text.contains("secret"),
                "{name}: {text}"
            );
        }
    }
}

#[test]
fn certificates_that_do_not_work_are_named_with_the_way_out() {
    let (mut cluster, folder) = secure_cluster(&["-algorithm", "ED25519"]);
    cluster.certificates = None;
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was made");
    let write = |name: &str, content: String| {
        std::fs::write(folder.join(name), content).expect("own folder is writable")
    };
    let p521 = [
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-521",
        "-out",
        "other-ca-key.pem",
    ];
    openssl(&folder, &p521);
    let other = [
        "req",
        "-x509",
        "-key",
        "other-ca-key.pem",
        "-subj",
        "/CN=other",
        "-days",
        "2",
        "-out",
        "other-ca.pem",
    ];
    openssl(&folder, &other);
    for name in ["order", "request", "key", "marked"] {
        write_key(
            &folder,
            &format!("{name}-key.pem"),
            text("ank-key.pem").as_bytes(),
        );
    }
    write(
        "order.pem",
        format!("{}{}", text("ca.pem"), text("ank.pem")),
    );
    write("request.pem", text("ank.csr"));
    write("key.pem", text("ank-key.pem"));
    for (name, expected) in [
        (
            "order",
            "the certificate cannot be used: the private key is that of certificate 2 in it, which has to be the first",
        ),
        (
            "request",
            "the certificate cannot be used: it holds a certificate request",
        ),
        (
            "key",
            "the certificate cannot be used: it holds a private key and no certificate",
        ),
    ] {
        for said in refusals(&cluster, &folder, name) {
            assert!(said.contains(expected), "{name}: {said}");
        }
    }
    let ca = get_agents_with(&cluster, &folder, "ank", "other-ca.pem");
    assert!(
        ca.stderr
            .contains("the CA certificate cannot be used: its key is ECDSA with P-521"),
        "{}",
        ca.stderr
    );
    // A bundle may have some that do not work; a mark and the ends of lines of Windows do no harm.
    write(
        "bundle.pem",
        format!("{}{}", text("other-ca.pem"), text("ca.pem")),
    );
    write(
        "marked.pem",
        format!("\u{feff}{}{}", text("ank.pem"), text("ca.pem")).replace('\n', "\r\n"),
    );
    write_key(
        &folder,
        "marked-key.pem",
        format!("\u{feff}{}", text("ank-key.pem"))
            .replace('\n', "\r\n")
            .as_bytes(),
    );
    let output = get_agents_with(&cluster, &folder, "marked", "bundle.pem");
    assert_eq!(output.code, 0, "{}", output.stderr);
}

/// The certificates of these tests are valid for two days only, so all are warned of.
// [stest->swdd~programs-warn-of-expiring-certificates~1]
// [stest->swdd~server-reports-programs~1]
// [stest->swdd~cli-shows-versions~1]
#[test]
fn certificates_that_expire_soon_are_warned_of_everywhere() {
    let (mut cluster, _) = secure_cluster(&["-algorithm", "ED25519"]);
    cluster.start_agent("agent_A");
    cluster.wait_for("both programs warn in their logs", || {
        let server = cluster.server.as_ref()?.stderr();
        let agent = cluster.agents["agent_A"].stderr();
        let is_warned = server.contains("the certificate of the server expires on ")
            && server.contains("the certificate of agent 'agent_A' expires on ")
            && agent.contains("the certificate of agent 'agent_A' expires on ");
        is_warned.then_some(())
    });
    for words in [&["get", "agents", "-o", "wide"][..], &["version"]] {
        let output = cluster.ank(words);
        assert_eq!(output.code, 0, "{}", output.stderr);
        for owner in ["the server", "agent 'agent_A'"] {
            let text = format!("warn: the certificate of {owner} expires on 20");
            assert!(output.stderr.contains(&text), "{}", output.stderr);
        }
        assert!(output.stdout.contains("1.1.0"), "{}", output.stdout);
    }
}

// [stest->swdd~agent-reports-engine~1]
#[test]
fn engine_of_an_agent_is_shown_and_read_once() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run"), workload("w2", "run")]);
    cluster.wait_for("the engine is known", || {
        let agents = cluster.ank(&["get", "agents", "-o", "wide"]).success();
        agents.contains("podman 4.3.1").then_some(())
    });
    let versions = cluster.ank(&["version", "-o", "json"]).success();
    let versions: serde_json::Value = serde_json::from_str(&versions).expect("JSON");
    let engine = serde_json::json!({ "program": "podman", "name": "agent_A", "version": "4.3.1" });
    let programs = versions.as_array().expect("a list");
    assert!(programs.contains(&engine), "{versions}");
    cluster.remove("w1");
    assert_eq!(cluster.engine.calls_of("", "--version").len(), 1);
}

#[test]
fn server_with_an_expired_certificate_says_so_when_it_starts() {
    let mut cluster = Cluster::prepare();
    let folder = certificates(&cluster, &["-algorithm", "ED25519"]);
    // A day that is over; `-days` takes no negative number.
    let sign = [
        "x509",
        "-req",
        "-in",
        "ank-server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca-key.pem",
        "-CAcreateserial",
        "-days",
        "0",
        "-extfile",
        "extensions",
        "-out",
        "ank-server.pem",
    ];
    openssl(&folder, &sign);
    cluster.certificates = Some(folder);
    cluster.start_server(&[]);
    cluster.wait_for("the server warns", || {
        let log = cluster.server.as_ref()?.stderr();
        log.contains("the certificate of the server has expired on ")
            .then_some(())
    });
}
