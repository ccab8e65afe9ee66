//! The least that a program like `ank-agent` can be: it reads a command line, settings, a manifest
//! and what an engine lists, connects to the server with mutual TLS and reads what it sends, with
//! the libraries of the agent, and does nothing with it. Of our own it has only the connection.
//! `./justw size` holds the size of the agent against that of this program, and shows how often it
//! wakes up.
//!
//! Thread: `main`, one that receives and one that waits for a signal.

#![allow(clippy::disallowed_methods, clippy::print_stdout)] // Only scripts/size.sh runs it.

use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::messages::ToServer;
use ankaios_lite::platform::logging;
use ankaios_lite::wire::address::{PemTexts, Security, ServerUrl};
use ankaios_lite::wire::client::{ClientOptions, Service, connect};
use ankaios_lite::wire::limits::CONNECT_MAX;
use clap::Parser;
use signal_hook::consts::SIGTERM;
use std::error::Error;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

/// Reads what an agent reads, and shows it.
#[derive(Parser)]
struct Options {
    /// A file in TOML.
    #[arg(short, long, env = "FLOOR_SETTINGS")]
    settings: String,
    /// A file in YAML.
    manifest: String,
}

#[derive(serde::Deserialize)]
struct Settings {
    server_url: String,
    tls: Option<Tls>,
}

#[derive(serde::Deserialize)]
struct Tls {
    ca: String,
    certificate: String,
    key: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    logging::init("floor");
    let options = Options::parse();
    let Settings { server_url, tls } = toml::from_str(&fs::read_to_string(options.settings)?)?;
    let manifest: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(options.manifest)?)?;
    let listed = Command::new("podman")
        .args(["ps", "--all", "--format", "json"])
        .output()?;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
    println!(
        "{}{}",
        serde_yaml::to_string(&manifest)?,
        serde_json::to_string(&listed)?
    );
    let (ended, ends) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, ended)?;
    let pem = tls.map(
        |Tls {
             ca,
             certificate,
             key,
         }| PemTexts {
            ca,
            certificate,
            key,
        },
    );
    let client = ClientOptions {
        url: ServerUrl::parse(&server_url)?,
        security: pem.map_or(Security::Insecure, Security::MutualTls),
        service: Service::Command,
        connect_limit: CONNECT_MAX,
        message_max: MESSAGE_MAX,
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let (_sender, mut receiver, hangup) = connect(&client, ToServer::CommanderHello { version })?;
    let (give, take) = crossbeam_channel::bounded(16);
    thread::spawn(move || {
        while receiver
            .receive()
            .is_ok_and(|message| give.send(message).is_ok())
        {}
    });
    thread::spawn(move || std::io::Read::read(&mut &ends, &mut [0]).map(|_| hangup.hang_up()));
    take.iter().for_each(|message| println!("{message:?}"));
    Ok(())
}
