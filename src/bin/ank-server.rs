//! `ank-server`: reads the settings, starts the threads, waits for a signal and ends them.
//!
//! Thread: `main`, which waits for signals; `server` decides, `hook` runs hooks, `store` writes the
//! state, `listen`, `tls`, `rx:<peer>` and `tx` communicate; all are in `src/lib.rs`.

use ankaios_lite::model::complete_state::DesiredState;
use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::manifest::{Manifest, ManifestError};
use ankaios_lite::model::version::SHOWN_VERSION;
use ankaios_lite::model::yaml::{self, Origin};
use ankaios_lite::platform::clock::SystemClock;
use ankaios_lite::platform::limits::STOP_DEADLINE;
use ankaios_lite::platform::logging::{self, fatal, with_causes};
use ankaios_lite::platform::memory::{self, Arenas};
use ankaios_lite::platform::metrics_file;
use ankaios_lite::platform::program::{self, Exit};
use ankaios_lite::platform::service_manager::ServiceManager;
use ankaios_lite::platform::settings::{MissingPems, SettingsError, read_limited};
use ankaios_lite::platform::threads::{self, Thread};
use ankaios_lite::platform::watchdog::WatchedThreads;
use ankaios_lite::server::ServerLoop;
use ankaios_lite::server::history;
use ankaios_lite::server::limits::STACK_SERVER;
use ankaios_lite::server::metrics;
use ankaios_lite::server::mutating_hooks::MutatingHooks;
use ankaios_lite::server::settings::{self, ServerSettings};
use ankaios_lite::server::state_store::{self, Found, StateStore};
use ankaios_lite::wire::address::{ListenAddress, Security};
use ankaios_lite::wire::expiry;
use ankaios_lite::wire::limits::SERVER_INBOX;
use ankaios_lite::wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use crossbeam_channel::bounded;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The program; its exit code. Public for the multi-call file.
pub(crate) fn main() -> ExitCode {
    program::abort_on_panic();
    memory::at_start(Arenas::Two);
    logging::init("ank_server");
    let settings = match settings::read(std::env::args_os()) {
        Ok(settings) => settings,
        Err(SettingsError::Usage(text)) => return program::usage(&text).into(),
        Err(error) => {
            fatal(error.what(), &error);
            return Exit::Failed.into();
        }
    };
    match start_and_wait(settings) {
        Ok(()) => Exit::Done.into(),
        Err(StartError(what, text)) => {
            fatal(what, text);
            Exit::Failed.into()
        }
    }
}

/// What ends the server, and why.
struct StartError(&'static str, String);

impl<E: Error> From<E> for StartError {
    fn from(error: E) -> Self {
        Self::server(with_causes(&error))
    }
}

impl StartError {
    fn server(text: String) -> Self {
        Self("server error", text)
    }

    fn unprotected(error: &MissingPems) -> Self {
        Self("Missing certificate files", error.to_string())
    }
}

fn start_and_wait(mut settings: ServerSettings) -> Result<(), StartError> {
    let manifest = settings.startup_manifest.clone();
    let manifest = manifest
        .map(|path| read_manifest(&path).map(|desired| (desired, path)))
        .transpose()?;
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    // Check the certificates now: hooks must not run if the server cannot listen.
    settings
        .security
        .as_ref()
        .map_err(StartError::unprotected)?;
    // From here on a signal causes an orderly stop, even while hooks check the restored state.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut server = ServerLoop::new();
    server.set_update_on_failure(settings.update_on_failure);
    server.set_clock(SystemClock);
    let mut server_threads = Vec::new();
    if let Some(modes) = settings.modes.take() {
        server.set_modes(modes);
    }
    if !settings.mutating_hooks.is_empty() {
        let (hooks, thread) = MutatingHooks::start(
            std::mem::take(&mut settings.mutating_hooks),
            settings.message_max.0 as usize,
        )?;
        for signal in [SIGTERM, SIGINT] {
            let interrupted = hooks
                .interrupt()
                .and_then(|end| signal_hook::low_level::pipe::register(signal, end));
            interrupted?;
        }
        server.set_hooks(hooks);
        server_threads.push(thread);
    }
    let _own = settings
        .state_dir
        .as_deref()
        .map(own_state_dir)
        .transpose()?;
    let started = start_with_state(&mut server, settings.state_dir.as_deref(), manifest);
    // Check for a signal before the result, since an interrupted hook can make the start fail.
    let signal = signals.pending().next();
    if let Some(signal) = signal {
        log_stop(signal);
        drop(server);
        // A hook that cannot be ended is left behind.
        let _ = threads::join_all(server_threads, STOP_DEADLINE);
        return Ok(());
    }
    started?;
    let state_dir = settings.state_dir.as_deref();
    server.start_history(state_dir.map(history::read).unwrap_or_default());
    if let Some(folder) = settings.state_dir.take() {
        // A start counts for the updates that are being judged, also when this one ends as early as
        // the one before.
        let (store, thread) = StateStore::start(folder, server.take_unsaved())?;
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
) -> Result<(), StartError> {
    let options = EndpointOptions {
        addresses: settings.addresses,
        socket_mode: settings.socket_mode,
        security: settings
            .security
            .as_ref()
            .map_err(StartError::unprotected)?
            .clone(),
        message_max: settings.message_max.0 as usize,
        commander_names: settings.commander_names,
    };
    let tls = protection_for_log(&options);
    server.set_own_certificate(expiry::own(&options.security));
    let manager = ServiceManager::from_environment();
    // The end of a thread without which nothing goes on ends the server as a signal does.
    let (lost, lost_thread) = bounded(1);
    let handle = signals.handle();
    let mut watched = WatchedThreads::new(move |name| {
        let _ = lost.try_send(name.to_owned()); // Others that end then are a consequence.
        handle.close();
    });
    let (inbox, events) = bounded(SERVER_INBOX);
    let endpoint = ServerEndpoint::start(&options, inbox, &mut watched)?;
    let (running, stop) = bounded(0);
    server.set_status(manager.status());
    if let Some(metrics) = settings.metrics {
        let (requests, requested) = bounded(1);
        server.set_metrics(requested);
        let text = move || metrics::requested(&requests);
        let thread = metrics_file::start(metrics, stop.clone(), text)?;
        server_threads.push(thread);
    }
    let heartbeat = watched.add("server");
    let thread = threads::spawn("server", STACK_SERVER, move || {
        server.run(&events, &stop, &SystemClock, &heartbeat)
    })?;
    let watch = manager.watch(watched)?;
    server_threads.push(thread);
    let config = settings
        .config_file
        .as_deref()
        .unwrap_or(Path::new("none"))
        .display()
        .to_string();
    let addresses: Vec<String> = endpoint
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let addresses = addresses.join("' and '");
    let version = &*SHOWN_VERSION;
    log::info!(
        "ank-server {version} listens on '{addresses}', TLS: {tls}, config file: '{config}'"
    );

    if let Err(error) = memory::settle() {
        log::debug!("Memory of the start is kept: '{error}'");
    }
    memory::give_back_stack();
    let signal = signals.forever().next().inspect(|signal| log_stop(*signal));
    manager.stopping();
    let lost = lost_thread.try_recv().ok().filter(|_| signal.is_none());
    // The server first, which closes every stream in order; the endpoint then has nothing left to
    // wait for.
    drop(running);
    let still_running = threads::join_all(server_threads, STOP_DEADLINE);
    endpoint.stop(STOP_DEADLINE);
    for name in still_running {
        log::warn!("Thread '{name}' did not end within {STOP_DEADLINE:?}.");
    }
    drop(watch);
    lost.map_or(Ok(()), |name| {
        Err(StartError::server(format!("the thread '{name}' has ended")))
    })
}

/// How connections are protected, for the log; warns of those that are not.
fn protection_for_log(options: &EndpointOptions) -> &'static str {
    if options.security != Security::Insecure {
        return "mutual";
    }
    if options
        .addresses
        .iter()
        .any(|address| matches!(address, ListenAddress::Tcp(_)))
    {
        log::warn!(
            "!!!ANKSERVER IS STARTED IN INSECURE MODE (-k, --insecure) -> TLS is disabled!!!"
        );
    }
    "none"
}

fn log_stop(signal: i32) {
    log::info!(
        "Stopping because of {}.",
        signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
    );
}

/// Makes the folder of the stored state ours as long as we run: each of two servers would store its
/// own state over that of the other.
fn own_state_dir(folder: &Path) -> Result<Option<File>, StartError> {
    match state_store::lock(folder) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(StartError::server(format!(
            "cannot use state_dir '{}': another server uses it. End that one, or give this one a folder of its own",
            folder.display()
        ))),
        Err(error) => {
            log::warn!(
                "Cannot find out whether another server uses state_dir '{}': {error}",
                folder.display()
            );
            Ok(None)
        }
    }
}

/// Takes over the stored state if there is one of use, the startup manifest otherwise.
fn start_with_state(
    server: &mut ServerLoop,
    state_dir: Option<&Path>,
    manifest: Option<(DesiredState, PathBuf)>,
) -> Result<(), StartError> {
    if start_with_stored(server, state_dir)? {
        return Ok(());
    }
    match manifest {
        Some((desired, path)) => server.start_with(desired).map_err(|error| {
            StartError::server(format!(
                "{} (startup manifest '{}')",
                with_causes(&error),
                path.display()
            ))
        }),
        None => {
            log::info!("No startup manifest provided -> waiting for new workloads from the CLI");
            Ok(())
        }
    }
}

/// Takes over the state that an earlier server stored in `folder`. Returns whether there was a
/// usable one; it then replaces the startup manifest.
fn start_with_stored(server: &mut ServerLoop, folder: Option<&Path>) -> Result<bool, StartError> {
    let Some(folder) = folder else {
        return Ok(false);
    };
    let unusable = |error| {
        StartError::server(format!(
            "cannot use state_dir '{}': {error}",
            folder.display()
        ))
    };
    let Some(Found { state, warning }) = state_store::open(folder).map_err(unusable)? else {
        return Ok(false);
    };
    if let Some(warning) = warning {
        log::error!("{warning}.");
        server.set_warning(warning);
    }
    // It was accepted before, so whatever refuses it now may be another hook, setting or version.
    // Going on without it would delete the workloads of all agents.
    server.start_again_with(state).map_err(|error| {
        let file = folder.join(state_store::FILE);
        let way_out = "Remove the cause, or move it and the one before it away to start with the startup manifest";
        StartError::server(format!("cannot start with the stored state '{}': {error}. {way_out}", file.display()))
    })?;
    log::info!(
        "Starting with the state stored in '{}'; a startup manifest does not count.",
        folder.display()
    );
    Ok(true)
}

/// Reads and parses the startup manifest; keys that mean nothing are reported and ignored.
fn read_manifest(path: &Path) -> Result<DesiredState, StartError> {
    let unreadable = |error: io::Error| {
        StartError(
            "Could not read the startup config",
            format!("{}: {error}", path.display()),
        )
    };
    let text = File::open(path)
        .and_then(|file| read_limited(file, MESSAGE_MAX))
        .map_err(unreadable)?;
    let manifest = Manifest::parse_and_warn(&text, |key| log::warn!("{}: {key}", path.display()));
    let manifest = manifest.map_err(|error| manifest_failed(path, &text, &error))?;
    manifest
        .into_desired_state()
        .map_err(|error| manifest_failed(path, &text, &error))
}

/// The failure of a manifest with this text, with what to do about one that is no YAML.
fn manifest_failed(path: &Path, text: &str, error: &ManifestError) -> StartError {
    let what = match error {
        ManifestError::Unreadable { .. } | ManifestError::TagShape { .. } => {
            "Invalid tags format in startup manifest"
        }
        ManifestError::Invalid { .. } => "Parsing start config failed with error",
    };
    let mut shown = format!("'{}': {error}", path.display());
    if let Err(error) = yaml::read(text, Origin::Own) {
        let hint = error.hint(text, "a manifest is one YAML or JSON document");
        shown.push_str(&format!(". Hint: {hint}"));
    }
    StartError(what, shown)
}
