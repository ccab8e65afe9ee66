//! `bench tls`: throughput and CPU of mutual TLS beside plain text, through the whole server.
//!
//! Thread: `main` of the bench. Owns: a folder with the certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ankaios_lite::model::messages::{FromServer, Response, ResponseContent};
use ankaios_lite::wire::address::{PemTexts, Security};
use ankaios_lite::wire::raw;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use super::clients::Commander;
use super::process::{Server, cpu_of};
use super::scale::{mebibytes, milliseconds, state};

/// Reads of the whole state of 5,000 workloads.
const LARGE: u32 = 20;
/// Reads of a single field, one after the other.
const SMALL: u32 = 3000;

/// One kind of connection: for large and small reads the mean time and the CPU of server and
/// client, in ms.
struct Cost {
    rows: [[f64; 3]; 2],
    state_mib: f64,
}

/// Returns true: there is no relation to be kept.
pub fn run(programs: &Path) -> bool {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (security, arguments) = certificates(folder.path());
    let plain = measure(programs, &[], Security::Insecure);
    let tls = measure(programs, &arguments, security);
    println!("{:<44}{:>12}{:>12}{:>11}", "", "PLAIN", "TLS", "TLS/PLAIN");
    let sizes = [
        format!("read of about {:.1} MiB", plain.state_mib),
        "read of one field".to_owned(),
    ];
    for ((size, plain_row), tls_row) in sizes.iter().zip(plain.rows).zip(tls.rows) {
        for (what, (plain, tls)) in ["time", "CPU of the server", "CPU of the client"]
            .iter()
            .zip(plain_row.iter().zip(tls_row))
        {
            println!(
                "{:<44}{:>9.3} ms{:>9.3} ms{:>11.2}",
                format!("{size}: {what}"),
                plain,
                tls,
                tls / plain
            );
        }
    }
    let throughput = |cost: &Cost| cost.state_mib / (cost.rows[0][0] / 1000.0);
    println!(
        "{:<44}{:>6.0} MiB/s{:>6.0} MiB/s",
        "throughput of large reads",
        throughput(&plain),
        throughput(&tls)
    );
    true
}

fn measure(programs: &Path, arguments: &[String], security: Security) -> Cost {
    let server = Server::start(programs, arguments, security);
    let mut commander = Commander::connect(&server);
    commander.apply(state(100, 5000));
    let content = ResponseContent::CompleteState {
        state: commander.read(&[]),
        altered: None,
    };
    let response = FromServer::Response(Response {
        id: String::new(),
        content,
    });
    let state_bytes = raw::write_from_server(&response).len();
    let small = vec!["desiredState.workloads.workload_1.agent"];
    let rows = [(LARGE, Vec::new()), (SMALL, small)].map(|(count, masks)| {
        server.wait_until_idle();
        let (own, servers, begin) = (cpu_of(std::process::id()), server.cpu(), Instant::now());
        (0..count).for_each(|_| drop(commander.read(&masks)));
        let times: [Duration; 3] = [
            begin.elapsed(),
            server.cpu() - servers,
            cpu_of(std::process::id()) - own,
        ];
        times.map(|time| milliseconds(time / count))
    });
    Cost {
        rows,
        state_mib: mebibytes(state_bytes as u64),
    }
}

/// Certificates of a server and a commander: what the commander needs, and the options of the
/// server.
fn certificates(folder: &Path) -> (Security, Vec<String>) {
    let key = || KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = key();
    let authority = authority
        .self_signed(&authority_key)
        .expect("a certificate");
    let issue = |name: &str, usage| {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![usage];
        let own = key();
        let certificate = params
            .signed_by(&own, &authority, &authority_key)
            .expect("a certificate");
        (certificate.pem(), own.serialize_pem())
    };
    let (server, server_key) = issue("ank-server", ExtendedKeyUsagePurpose::ServerAuth);
    let (certificate, client_key) = issue("ank", ExtendedKeyUsagePurpose::ClientAuth);
    let mut arguments = Vec::new();
    for (option, text) in [
        ("--ca_pem", &authority.pem()),
        ("--crt_pem", &server),
        ("--key_pem", &server_key),
    ] {
        let path = folder.join(option);
        fs::write(&path, text).expect("own folder is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("own file");
        arguments.extend([option.to_owned(), path.display().to_string()]);
    }
    (
        Security::MutualTls(PemTexts {
            ca: authority.pem(),
            certificate,
            key: client_key,
        }),
        arguments,
    )
}
