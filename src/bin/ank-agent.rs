//! `ank-agent`: reads the settings, starts the threads, waits for a signal and ends.
//!
//! Thread: `main`, which waits; the threads of the agent are listed in `src/lib.rs`.

use ankaios_lite::agent::Agent;
use ankaios_lite::agent::settings::{self, Machine};
use ankaios_lite::model::version::SHOWN_VERSION;
use ankaios_lite::platform::logging::{self, fatal};
use ankaios_lite::platform::memory;
use ankaios_lite::platform::program::{self, Exit};
use ankaios_lite::platform::service_manager::ServiceManager;
use ankaios_lite::platform::settings::SettingsError;
use ankaios_lite::platform::watchdog::WatchedThreads;
use ankaios_lite::wire::address::Security;
use ankaios_lite::wire::expiry;
use crossbeam_channel::bounded;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

/// The program; its exit code. Public for the multi-call file.
pub(crate) fn main() -> ExitCode {
    program::abort_on_panic();
    memory::at_start();
    logging::init("ank_agent");
    let settings = match settings::read(std::env::args_os(), &Machine::this()) {
        Ok(settings) => settings,
        Err(SettingsError::Usage(text)) => return program::usage(&text).into(),
        Err(error) => {
            fatal(&error.for_log(), "");
            return Exit::Failed.into();
        }
    };
    match start_and_wait(settings) {
        Ok(()) => Exit::Done.into(),
        Err(text) => {
            fatal(&format!("agent error: {text}"), "");
            Exit::Failed.into()
        }
    }
}

/// Runs the agent until a signal ends it.
///
/// # Errors
/// The start fails, the server refuses this version, or a thread that is needed has ended.
fn start_and_wait(settings: settings::AgentSettings) -> Result<(), Box<dyn Error>> {
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    let manager = ServiceManager::from_environment();
    // A signal, a refusal or a lost thread writes a byte, which wakes `main` to end the agent.
    let (mut woken, wake) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        let wake_by_signal = wake.try_clone()?;
        signal_hook::low_level::pipe::register(signal, wake_by_signal)?;
    }
    log_start(&settings);
    // The first failure is the reason; later ones may be its consequences.
    let (send_failure, failures) = bounded(1);
    let send_lost = send_failure.clone();
    let wake_by_lost = wake.try_clone()?;
    let mut watched = WatchedThreads::new(move |name| {
        let _ = send_lost.try_send(format!("the thread '{name}' has ended."));
        let _ = (&wake_by_lost).write_all(b"e"); // `main` reads as long as the program runs.
    });
    let mut wake_by_refusal = wake;
    let agent = Agent::start(settings, &mut watched, manager.status(), move |text| {
        let _ = send_failure.try_send(format!("Ankaios version mismatch: '{text}'."));
        let _ = wake_by_refusal.write_all(b"r");
    })?;
    let watch = manager.watch(watched)?;
    log::info!("Awaiting commands from the server ...");
    memory::give_back_stack();
    if let Err(error) = memory::settle_until(&woken) {
        log::debug!("Memory that only the start needed is kept: '{error}'");
    }
    let _ = woken.read_exact(&mut [0]); // A failed read ends the agent as well.
    let failure = failures.try_recv();
    manager.stopping();
    for name in agent.stop() {
        log::warn!("Thread '{name}' did not end in time.");
    }
    drop(watch);
    match failure {
        Ok(text) => Err(text.into()),
        Err(_) => {
            log::info!("Stopping; workloads go on running.");
            Ok(())
        }
    }
}

/// Logs the settings that matter most, and a warning about an expiring certificate.
fn log_start(settings: &settings::AgentSettings) {
    let tls = match settings.security {
        Security::Insecure => "none",
        Security::MutualTls(_) => "mutual",
    };
    let config = settings
        .config_file
        .as_deref()
        .unwrap_or(Path::new("none"))
        .display();
    log::info!(
        "ank-agent {} '{}', server: '{}', TLS: {tls}, folder: '{}', config file: '{config}'",
        *SHOWN_VERSION,
        settings.name,
        settings.url,
        settings.folder.display()
    );
    let owner = format!("agent '{}'", settings.name);
    if let Some(expires) = expiry::own(&settings.security)
        && let Some(text) = expiry::warning(&owner, expires, SystemTime::now())
    {
        log::warn!("Certificates: {text}.");
    }
}
