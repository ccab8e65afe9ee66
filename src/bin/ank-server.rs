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
use ankaios_lite::platform::memory;
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
use ankaios_lite::server::state_store::{self, Found, StateStore, UnusableFolder};
use ankaios_lite::wire::address::{ListenAddress, Security};
use ankaios_lite::wire::expiry;
use ankaios_lite::wire::limits::SERVER_INBOX;
use ankaios_lite::wire::server_endpoint::{EndpointOptions, ServerEndpoint};
use crossbeam_channel::bounded;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The program; its exit code. Public for the multi-call file.
pub(crate) fn main() -> ExitCode {
    program::abort_on_panic();
    memory::at_start();
    logging::init("ank_server");
    let settings = match settings::read(std::env::args_os()) {
        Ok(settings) => settings,
        Err(SettingsError::Usage(text)) => return program::usage(&text).into(),
        Err(error) => {
            fatal(&error.for_log(), "");
            return Exit::Failed.into();
        }
    };
    match start_and_wait(settings) {
        Ok(()) => Exit::Done.into(),
        Err(StartError { cause, hint }) => {
            fatal(&cause, &hint);
            Exit::Failed.into()
        }
    }
}

/// Why the server ends, and what to do about it.
struct StartError {
    cause: String,
    /// May be empty.
    hint: String,
}

impl<E: Error> From<E> for StartError {
    fn from(error: E) -> Self {
        Self::server(with_causes(&error))
    }
}

impl StartError {
    fn server(text: String) -> Self {
        Self {
            cause: format!("server error: {text}"),
            hint: String::new(),
        }
    }

    /// An error that scripts match in this form.
    fn quoted(what: &str, text: impl Display) -> Self {
        Self {
            cause: format!("{what}: '{text}'"),
            hint: String::new(),
        }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: hint.into(),
            ..self
        }
    }

    fn unprotected(error: &MissingPems) -> Self {
        Self::quoted("Missing certificate files", error)
    }

    fn unusable(folder: &Path, error: UnusableFolder) -> Self {
        let text = format!("cannot use state_dir '{}': {error}", folder.display());
        Self::server(text).with_hint(error.hint)
    }
}

/// A startup manifest that was read.
struct StartupManifest {
    path: PathBuf,
    desired: DesiredState,
}

/// The signals that end the server, and a socket that wakes `main`, which waits for it.
struct EndWait {
    signals: Signals,
    woken: UnixStream,
    wake: UnixStream,
}

impl EndWait {
    /// From here on, each signal writes to the socket.
    fn new() -> Result<Self, StartError> {
        const ENDING: [i32; 2] = [SIGTERM, SIGINT];
        let (woken, wake) = UnixStream::pair()?;
        // A signal is noted before the socket wakes `main`.
        let signals = Signals::new(ENDING)?;
        for signal in ENDING {
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self {
            signals,
            woken,
            wake,
        })
    }
}

/// Restores the state, and then runs the server until a signal ends it.
fn start_and_wait(mut settings: ServerSettings) -> Result<(), StartError> {
    // First read the startup manifest, and check the certificates: hooks must not run if the server
    // cannot listen.
    let manifest = match settings.startup_manifest.clone() {
        Some(path) => Some(StartupManifest {
            desired: read_manifest(&path)?,
            path,
        }),
        None => None,
    };
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    settings
        .security
        .as_ref()
        .map_err(StartError::unprotected)?;
    // Then restore the state, which hooks check. From here on a signal causes an orderly stop.
    let mut end = EndWait::new()?;
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
            signal_hook::low_level::pipe::register(signal, hooks.interrupt()?)?;
        }
        server.set_hooks(hooks);
        server_threads.push(thread);
    }
    let _lock = match &settings.state_dir {
        Some(folder) => own_state_dir(folder)?,
        None => None,
    };
    let started = start_with_state(&mut server, settings.state_dir.as_deref(), manifest);
    // Check for a signal before the result, since an interrupted hook can make the start fail.
    let signal = end.signals.pending().next();
    if let Some(signal) = signal {
        log_stop(signal);
        drop(server);
        let _ = threads::join_all(server_threads, STOP_DEADLINE); // A stuck hook is left behind.
        return Ok(());
    }
    started?;
    // Finally store the state, and serve clients.
    match settings.state_dir.take() {
        Some(folder) => {
            server.start_history(history::read(&folder));
            // Store at once that this start is a loss for open updates: the server may end as early
            // as the one before.
            let (store, thread) = StateStore::start(folder, server.take_unsaved())?;
            server.set_store(store);
            server_threads.push(thread);
        }
        None => server.start_history(Vec::new()),
    }
    serve(settings, server, server_threads, end)
}

/// Serves clients until a signal ends the server.
///
/// # Errors
/// The server cannot listen, or a thread that is needed has ended.
fn serve(
    settings: ServerSettings,
    mut server: ServerLoop,
    mut server_threads: Vec<Thread>,
    end: EndWait,
) -> Result<(), StartError> {
    // First listen.
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
    let EndWait {
        mut signals,
        woken,
        wake,
    } = end;
    // A needed thread that ends closes `signals` and wakes `main`: both waits below end then.
    let (send_lost, lost_threads) = bounded(1);
    let signals_handle = signals.handle();
    let mut watched = WatchedThreads::new(move |name| {
        let _ = send_lost.try_send(name.to_owned()); // Only the first: others are a consequence.
        signals_handle.close();
        let _ = (&wake).write_all(b"e"); // `main` has the other end as long as the program runs.
    });
    let (inbox, events) = bounded(SERVER_INBOX);
    let endpoint = ServerEndpoint::start(&options, inbox, &mut watched)?;
    // Then start the threads. Dropping `running` stops them.
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
    let addresses = endpoint.addresses().iter().map(ToString::to_string);
    let addresses: Vec<String> = addresses.collect();
    let addresses = addresses.join("' and '");
    let version = &*SHOWN_VERSION;
    log::info!(
        "ank-server {version} listens on '{addresses}', TLS: {tls}, config file: '{config}'"
    );

    memory::give_back_stack();
    // Finally wait for a signal, and stop.
    if let Err(error) = memory::settle_until(&woken) {
        log::debug!("Memory that only the start needed is kept: '{error}'");
    }
    let signal = signals.forever().next();
    let mut lost_thread = None;
    match signal {
        Some(signal) => log_stop(signal),
        None => lost_thread = lost_threads.try_recv().ok(),
    }
    manager.stopping();
    // The server ends every stream in order, so the endpoint has nothing to wait for after it.
    drop(running);
    let still_running = threads::join_all(server_threads, STOP_DEADLINE);
    endpoint.stop(STOP_DEADLINE);
    for name in still_running {
        log::warn!("Thread '{name}' did not end within {STOP_DEADLINE:?}.");
    }
    drop(watch);
    match lost_thread {
        Some(name) => Err(StartError::server(format!("the thread '{name}' has ended"))),
        None => Ok(()),
    }
}

/// Returns how connections over TCP are protected, for the log. Warns if they are not.
fn protection_for_log(options: &EndpointOptions) -> &'static str {
    if options.security != Security::Insecure {
        return "mutual";
    }
    let mut addresses = options.addresses.iter();
    if addresses.any(|address| matches!(address, ListenAddress::Tcp(_))) {
        log::warn!(
            "!!!ANKSERVER IS STARTED IN INSECURE MODE (-k, --insecure) -> TLS is disabled!!!"
        );
    }
    "none"
}

fn log_stop(signal: i32) {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    log::info!("Stopping because of {name}.");
}

/// Locks the folder of the stored state until the result is dropped: two servers would overwrite
/// each other's state. `None` if it cannot be locked for another reason.
fn own_state_dir(folder: &Path) -> Result<Option<File>, StartError> {
    state_store::make_folder(folder).map_err(|error| StartError::unusable(folder, error))?;
    match state_store::lock(folder) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => {
            let text = format!(
                "cannot use state_dir '{}': another server uses it",
                folder.display()
            );
            let hint = "end that one, or give this one a folder of its own";
            Err(StartError::server(text).with_hint(hint))
        }
        Err(error) => {
            log::warn!(
                "Cannot find out whether another server uses state_dir '{}': {error}",
                folder.display()
            );
            Ok(None)
        }
    }
}

/// Starts with the stored state if there is a usable one, otherwise with the startup manifest.
fn start_with_state(
    server: &mut ServerLoop,
    state_dir: Option<&Path>,
    manifest: Option<StartupManifest>,
) -> Result<(), StartError> {
    if start_with_stored(server, state_dir)? {
        return Ok(());
    }
    let Some(StartupManifest { path, desired }) = manifest else {
        log::info!("No startup manifest provided -> waiting for new workloads from the CLI");
        return Ok(());
    };
    if let Err(error) = server.start_with(desired) {
        let path = path.display();
        let why = with_causes(&error);
        let text = format!("{why} (startup manifest '{path}')");
        return Err(StartError::server(text));
    }
    Ok(())
}

/// Starts with the state that an earlier server stored in `folder`. Returns false if there is no
/// usable one.
fn start_with_stored(server: &mut ServerLoop, folder: Option<&Path>) -> Result<bool, StartError> {
    let Some(folder) = folder else {
        return Ok(false);
    };
    let found = match state_store::open(folder) {
        Ok(found) => found,
        Err(error) => return Err(StartError::unusable(folder, error)),
    };
    let Some(Found { state, warning }) = found else {
        return Ok(false);
    };
    if let Some(warning) = warning {
        log::error!("{warning}.");
        server.set_warning(warning);
    }
    // An earlier server accepted this state; a changed hook, setting or version may refuse it now.
    // Without it the server would delete the workloads of all agents, so it does not start.
    if let Err(error) = server.start_again_with(state) {
        let file = folder.join(state_store::FILE);
        let text = format!(
            "cannot start with the stored state '{}': {error}",
            file.display()
        );
        let hint = "remove the cause, or move it and the one before it away to start with the startup manifest";
        return Err(StartError::server(text).with_hint(hint));
    }
    log::info!(
        "Starting with the state stored in '{}'; a startup manifest does not count.",
        folder.display()
    );
    Ok(true)
}

/// Reads and parses the startup manifest. Warns of unknown keys.
fn read_manifest(path: &Path) -> Result<DesiredState, StartError> {
    let text = match File::open(path).and_then(|file| read_limited(file, MESSAGE_MAX)) {
        Ok(text) => text,
        Err(error) => {
            let text = format!("{}: {error}", path.display());
            return Err(StartError::quoted(
                "Could not read the startup config",
                text,
            ));
        }
    };
    let manifest = Manifest::parse_and_warn(&text, |key| log::warn!("{}: {key}", path.display()));
    let manifest = manifest.map_err(|error| manifest_failed(path, &text, &error))?;
    let desired = manifest.into_desired_state();
    desired.map_err(|error| manifest_failed(path, &text, &error))
}

/// The error for a manifest with this `text`; with a hint if the text is no YAML.
fn manifest_failed(path: &Path, text: &str, error: &ManifestError) -> StartError {
    let what = match error {
        ManifestError::Unreadable { .. } | ManifestError::TagShape { .. } => {
            "Invalid tags format in startup manifest"
        }
        ManifestError::Invalid { .. } => "Parsing start config failed with error",
    };
    let failed = StartError::quoted(what, format!("'{}': {error}", path.display()));
    match yaml::read(text, Origin::Own) {
        Ok(_) => failed,
        Err(error) => failed.with_hint(error.hint(text, "a manifest is one YAML or JSON document")),
    }
}
