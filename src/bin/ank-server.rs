//! `ank-server`: reads the settings, starts the threads, waits for a signal and ends them.
//!
//! Thread: `main`, which waits for signals; `server` decides, `hook` runs hooks, `store` writes the state, `listen`, `rx:<peer>` and `tx` communicate.

use ankaios_lite::limits::{MANIFEST_MAX, SERVER_INBOX, STACK_SERVER, STOP_DEADLINE};
use ankaios_lite::model::complete_state::DesiredState;
use ankaios_lite::model::manifest::{Manifest, ManifestError};
use ankaios_lite::model::version::SHOWN_VERSION;
use ankaios_lite::platform::clock::SystemClock;
use ankaios_lite::platform::logging::{self, fatal, with_causes};
use ankaios_lite::platform::memory;
use ankaios_lite::platform::metrics_file;
use ankaios_lite::platform::program::{self, Exit};
use ankaios_lite::platform::service_manager::ServiceManager;
use ankaios_lite::platform::settings::{MissingPems, SettingsError};
use ankaios_lite::platform::threads::{self, Thread};
use ankaios_lite::platform::vital::VitalThreads;
use ankaios_lite::server::ServerLoop;
use ankaios_lite::server::metrics;
use ankaios_lite::server::mutating_hooks::MutatingHooks;
use ankaios_lite::server::settings::{self, ServerSettings};
use ankaios_lite::server::state_store::{self, Found, StateStore};
use ankaios_lite::wire::address::{ListenAddress, Security};
use ankaios_lite::wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use crossbeam_channel::{Receiver, Sender, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The program; its exit code. Public for the multi-call file.
pub fn main() -> ExitCode {
    program::abort_on_panic();
    memory::at_start();
    logging::init("ank_server");
    let settings = match settings::read(std::env::args_os()) {
        Ok(settings) => settings,
        Err(SettingsError::Usage(text)) => return program::usage(&text).into(),
        Err(error) => return failed(error.what(), error),
    };
    match start_and_wait(settings) {
        Ok(()) => Exit::Done.into(),
        Err(exit) => exit,
    }
}

fn failed(what: &str, detail: impl std::fmt::Display) -> ExitCode {
    fatal(what, detail);
    Exit::Failed.into()
}

fn unprotected(error: &MissingPems) -> ExitCode {
    failed("Missing certificate files", error)
}

fn server_error(error: &dyn Error) -> ExitCode {
    failed("server error", with_causes(error))
}

fn start_and_wait(mut settings: ServerSettings) -> Result<(), ExitCode> {
    let manifest = settings.startup_manifest.clone();
    let manifest = manifest.map(|path| read_manifest(&path).map(|desired| (desired, path))).transpose()?;
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    settings.security.as_ref().map_err(unprotected)?; // Before hooks run for a state that cannot be served.
    // From here on a signal ends everything in order, also while hooks check the state of the start.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| server_error(&error))?;
    let mut server = ServerLoop::new();
    server.set_update_on_failure(settings.update_on_failure);
    server.set_clock(SystemClock);
    let mut server_threads = Vec::new();
    if let Some(modes) = settings.modes.take() {
        server.set_modes(modes);
    }
    if !settings.mutating_hooks.is_empty() {
        let (hooks, thread) =
            MutatingHooks::start(std::mem::take(&mut settings.mutating_hooks), settings.message_max.0 as usize)
                .map_err(|error| server_error(&error))?;
        for signal in [SIGTERM, SIGINT] {
            let interrupted = hooks.interrupt().and_then(|end| signal_hook::low_level::pipe::register(signal, end));
            interrupted.map_err(|error| server_error(&error))?;
        }
        server.set_hooks(hooks);
        server_threads.push(thread);
    }
    let mut stopped = || signals.pending().next().inspect(|signal| log_stop(*signal)).is_some();
    let _own = settings.state_dir.as_deref().map(own_state_dir).transpose().map_err(Refused::log)?;
    match start_with_state(&mut server, settings.state_dir.as_deref(), manifest) {
        // Whatever a hook that was ended made of it.
        _ if stopped() => {
            drop(server);
            let _ = threads::join_all(server_threads, STOP_DEADLINE); // A hook that cannot be ended is left behind.
            return Ok(());
        }
        Ok(()) => {}
        Err(refused) => return Err(refused.log()),
    }
    if let Some(folder) = settings.state_dir.take() {
        // A start counts for the updates that are being judged, also when this one ends as early as the one before.
        let unsaved = server.take_unsaved().filter(|state| !state_store::save(&folder, state));
        let (store, thread) = StateStore::start(folder).map_err(|error| server_error(&error))?;
        unsaved.into_iter().for_each(|state| store.store(state));
        server.set_store(store);
        server_threads.push(thread);
    }
    serve(settings, server, server_threads, signals)
}

/// Serves clients until a signal comes, or a thread without which nothing goes on has ended.
fn serve(
    settings: ServerSettings,
    mut server: ServerLoop,
    mut server_threads: Vec<Thread>,
    mut signals: Signals,
) -> Result<(), ExitCode> {
    let options = EndpointOptions {
        addresses: settings.addresses,
        socket_mode: settings.socket_mode,
        security: settings.security.as_ref().map_err(unprotected)?.clone(),
        message_max: settings.message_max.0 as usize,
        commander_names: settings.commander_names,
    };
    let tls = protection_for_log(&options);
    let manager = ServiceManager::from_environment();
    let (mut vital, lost_thread) = vital_threads(signals.handle());
    let (inbox, events) = bounded(SERVER_INBOX);
    let endpoint = ServerEndpoint::start(&options, inbox, &mut vital).map_err(|error| server_error(&error))?;
    let (running, stop) = bounded(0);
    server.set_status(manager.status());
    if let Some(metrics) = settings.metrics {
        let (requests, requested) = bounded(1);
        server.set_metrics(requested);
        let text = move || metrics::requested(&requests).map(|numbers| numbers.text());
        let thread = metrics_file::start(metrics, stop.clone(), text).map_err(|error| server_error(&error))?;
        server_threads.push(thread);
    }
    let pulse = vital.add("server");
    let thread = threads::spawn("server", STACK_SERVER, move || server.run(&events, &stop, &SystemClock, &pulse))
        .map_err(|error| server_error(&error))?;
    let watch = manager.watch(vital).map_err(|error| server_error(&error))?;
    server_threads.push(thread);
    let config = settings.config_file.as_deref().unwrap_or(Path::new("none")).display().to_string();
    let addresses: Vec<String> = endpoint.addresses().iter().map(ToString::to_string).collect();
    let addresses = addresses.join("' and '");
    let version = &*SHOWN_VERSION;
    log::info!("ank-server {version} listens on '{addresses}', TLS: {tls}, config file: '{config}'");

    if let Err(error) = memory::settle() {
        log::debug!("Memory of the start is kept: '{error}'");
    }
    let signal = signals.forever().next().inspect(|signal| log_stop(*signal));
    manager.stopping();
    let lost = lost_thread.try_recv().ok().filter(|_| signal.is_none());
    stop_in_order(running, server_threads, endpoint);
    drop(watch);
    lost.map_or(Ok(()), |name| Err(failed("server error", format!("the thread '{name}' has ended"))))
}

/// The threads whose end ends the server: it closes `signals`, and the name of the first of them can be received.
fn vital_threads(signals: Handle) -> (VitalThreads, Receiver<String>) {
    let (lost, lost_thread) = bounded(1);
    let vital = VitalThreads::new(move |name| {
        let _ = lost.try_send(name.to_owned()); // Others that end then are a consequence.
        signals.close();
    });
    (vital, lost_thread)
}

/// Ends the server first, which closes every stream in order; the endpoint then has nothing left to wait for.
fn stop_in_order(running: Sender<()>, server_threads: Vec<Thread>, endpoint: ServerEndpoint) {
    drop(running);
    let still_running = threads::join_all(server_threads, STOP_DEADLINE);
    endpoint.stop(STOP_DEADLINE);
    for name in still_running {
        log::warn!("Thread '{name}' did not end within {STOP_DEADLINE:?}.");
    }
}

/// How connections are protected, for the log; warns of those that are not.
fn protection_for_log(options: &EndpointOptions) -> &'static str {
    if options.security != Security::Insecure {
        return "mutual";
    }
    if options.addresses.iter().any(|address| matches!(address, ListenAddress::Tcp(_))) {
        log::warn!("!!!ANKSERVER IS STARTED IN INSECURE MODE (-k, --insecure) -> TLS is disabled!!!");
    }
    "none"
}

fn log_stop(signal: i32) {
    log::info!("Stopping because of {}.", signal_hook::low_level::signal_name(signal).unwrap_or("a signal"));
}

/// Why the server cannot start with its state. Logged only when no signal ends it meanwhile.
struct Refused(String);

impl Refused {
    fn log(self) -> ExitCode {
        failed("server error", self.0)
    }
}

/// Makes the folder of the stored state ours as long as we run: each of two servers would store its own state over that
/// of the other.
fn own_state_dir(folder: &Path) -> Result<Option<File>, Refused> {
    match state_store::lock(folder) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(Refused(format!(
            "cannot use state_dir '{}': another server uses it. End that one, or give this one a folder of its own",
            folder.display()
        ))),
        Err(error) => {
            log::warn!("Cannot find out whether another server uses state_dir '{}': {error}", folder.display());
            Ok(None)
        }
    }
}

/// Takes over the stored state if there is one of use, the startup manifest otherwise.
fn start_with_state(
    server: &mut ServerLoop,
    state_dir: Option<&Path>,
    manifest: Option<(DesiredState, PathBuf)>,
) -> Result<(), Refused> {
    if start_with_stored(server, state_dir)? {
        return Ok(());
    }
    match manifest {
        Some((desired, path)) => server
            .start_with(desired)
            .map_err(|error| Refused(format!("{} (startup manifest '{}')", with_causes(&error), path.display()))),
        None => {
            log::info!("No startup manifest provided -> waiting for new workloads from the CLI");
            Ok(())
        }
    }
}

/// Takes over the state that an earlier server stored in `folder`. Returns whether there was a usable one; it then
/// replaces the startup manifest.
fn start_with_stored(server: &mut ServerLoop, folder: Option<&Path>) -> Result<bool, Refused> {
    let Some(folder) = folder else { return Ok(false) };
    let unusable = |error| Refused(format!("cannot use state_dir '{}': {error}", folder.display()));
    let Some(Found { state, warning }) = state_store::open(folder).map_err(unusable)? else { return Ok(false) };
    if let Some(warning) = warning {
        log::error!("{warning}.");
        server.set_warning(warning);
    }
    // It was accepted before, so whatever refuses it now may be another hook, setting or version. Going on without it
    // would delete the workloads of all agents.
    server.start_again_with(state).map_err(|error| {
        let file = folder.join(state_store::FILE);
        let way_out = "Remove the cause, or move the file away to start with the startup manifest";
        Refused(format!("cannot start with the stored state '{}': {error}. {way_out}", file.display()))
    })?;
    log::info!("Starting with the state stored in '{}'; a startup manifest does not count.", folder.display());
    Ok(true)
}

/// Reads and parses the startup manifest; keys that mean nothing are reported and ignored.
fn read_manifest(path: &Path) -> Result<DesiredState, ExitCode> {
    let unreadable = |error: &dyn std::fmt::Display| {
        failed("Could not read the startup config", format!("{}: {error}", path.display()))
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    file.take(MANIFEST_MAX + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > MANIFEST_MAX {
        return Err(unreadable(&format!("larger than {MANIFEST_MAX} bytes")));
    }
    let manifest = Manifest::parse_and_warn(&text, |key| log::warn!("{}: {key}", path.display()));
    let manifest = manifest.map_err(|error| manifest_failed(path, &error))?;
    manifest.into_desired_state().map_err(|error| manifest_failed(path, &error))
}

fn manifest_failed(path: &Path, error: &ManifestError) -> ExitCode {
    let what = match error {
        ManifestError::Unreadable { .. } | ManifestError::TagShape { .. } => "Invalid tags format in startup manifest",
        ManifestError::Invalid { .. } => "Parsing start config failed with error",
    };
    failed(what, format_args!("'{}': {error}", path.display()))
}
