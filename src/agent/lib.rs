//! The agent: it runs the workloads of one node. This file starts its threads and connects them.
//!
//! Thread: `main` starts and ends the agent; each file names its own threads.
//!
//! The way of one workload: [`uplink`] receives it. [`scheduler`] keeps it until its dependencies
//! are met, then makes it the target of its control loop. [`workload`] is that loop: it may prepare
//! the start meanwhile, and calls the engine. [`state_checker`] reports the states of the
//! container. They go back through [`workload`], [`scheduler`] and [`uplink_outbox`] to the server.
//! Requests of the workload to the cluster, and their responses, go through [`control_interface`].

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod backoff;
pub mod control_interface;
mod end_record;
pub mod engine_call;
pub mod events;
mod folder_removal;
mod images;
pub mod limits;
mod log_stream;
mod metrics;
pub mod resources;
pub mod scheduler;
pub mod settings;
pub mod state_checker;
#[cfg(test)]
mod stepped_agent;
mod uplink;
pub mod uplink_outbox;
mod usage;
pub mod workload;
pub mod workload_files;

use crate::limits::{AGENT_STOP_DEADLINE, SCHEDULER_INBOX};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::version::VERSION;
use ankaios_platform::clock::SystemClock;
use ankaios_platform::folder_lock;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::threads::{self, Thread};
use ankaios_platform::watchdog::WatchedThreads;
use ankaios_runtime::container_engine::ContainerConnector;
use ankaios_runtime::containerd;
use ankaios_runtime::engine_children::EngineChildren;
use ankaios_runtime::engine_version::EngineVersions;
use ankaios_runtime::podman;
use ankaios_runtime::podman_kube::{self, PodmanKubeConnector};
use ankaios_runtime::probes::prober::Prober;
use ankaios_wire::client::{ClientOptions, Service};
use ankaios_wire::limits::CONNECT_MAX;
use control_interface::ControlHub;
use crossbeam_channel::{Sender, bounded};
use engine_call::CallContext;
use images::ImageInbox;
use resources::LoadSampler;
use rustix::pipe::{PipeFlags, pipe_with};
use scheduler::conditions::NodeFacts;
use scheduler::workloads::WorkloadRecords;
use scheduler::{COPIED_FILES, Scheduler};
use settings::AgentSettings;
use state_checker::CheckerSettings;
use state_checker::thread::WatchThread;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use uplink::Uplink;
use uplink_outbox::uplink_outbox;
use usage::UsageSampler;
use workload::start_slots::StartSlots;
use workload::{Connector, EngineSource, Engines, LoopContext};

/// A running agent.
pub struct Agent {
    /// All threads except `control` and `watch` end when this is dropped.
    running: Sender<()>,
    /// The threads `control` and `watch` end when this is closed.
    pollers_running: OwnedFd,
    threads: Vec<Thread>,
    /// The lock of the folder, which is held until the threads have ended.
    _folder: Option<File>,
}

impl Agent {
    /// Starts all threads. Those that the agent needs most are `watched` by the watchdog. `refused`
    /// is called with the server's text if it will never accept this agent.
    ///
    /// # Errors
    /// A thread cannot be started, or the run folder cannot be used. For example another agent may
    /// use it.
    #[inline(never)] // Else `main` keeps the frame of this while it waits.
    pub fn start(
        settings: AgentSettings,
        watched: &mut WatchedThreads,
        status: StatusBoard,
        refused: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        // First: the run folder.
        let folder = own_folder(&settings.folder, &settings.name)?;
        folder_removal::remove_set_aside(&settings.folder);
        // Then: the channels, the engines, and the control interfaces.
        // [impl->swdd~agent-uses-bounded-channels~1]
        let (inbox, events) = bounded(SCHEDULER_INBOX);
        let (running, stop) = bounded::<()>(0);
        let (outbox, reader) = uplink_outbox();
        let mut threads = Vec::new();
        let (children, previous) = EngineChildren::open(&settings.folder.join("engine-children"))?;
        let versions = EngineVersions::default();
        let (pollers_stop, pollers_running) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut watch = WatchThread::new(pollers_stop.try_clone()?)?;
        let engines = engines(&settings, &children, &versions, &mut watch);
        threads.push(watch.start(watched)?);
        let control = ControlHub::new(outbox.clone(), settings.control_message_max.0 as usize)?;
        threads.push(control.start(SystemClock, pollers_stop, watched)?);
        // Then: the values that all control loops share.
        let images = settings.cleanup.as_ref().map(|_| ImageInbox::new());
        let calls = CallContext {
            folder: settings.folder,
            boot: children.boot().into(),
            copied: Arc::new(
                COPIED_FILES
                    .map(str::to_owned)
                    .into_iter()
                    .collect_entries(),
            ),
            create_timeout: settings.create_timeout,
            images: images.as_ref().map(ImageInbox::uses),
        };
        let context = LoopContext {
            clock: SystemClock,
            engines: Arc::new(engines),
            reports: inbox.clone(),
            slots: StartSlots::new(
                settings.parallel_starts,
                settings.cores,
                settings.prepare_max,
            ),
            calls,
            start_call: engine_call::on_threads(),
            retry_limit: settings.retry_limit,
            restart_backoff: settings.restart_backoff,
            control: control.clone(),
            probes: Arc::new(Prober::new(SystemClock)?),
        };
        // Then: threads that only some settings need.
        let removes_images = images.is_some();
        if let (Some(images), Some(cleanup)) = (images, settings.cleanup) {
            threads.push(images.start(
                cleanup,
                settings.name.as_str().into(),
                SystemClock,
                context.engines.clone(),
                inbox.clone(),
                stop.clone(),
            )?);
        }
        if let Some(metrics) = settings.metrics {
            let checkers = context
                .engines
                .values()
                .map(|engine| engine.watch.clone())
                .collect();
            let sampler = UsageSampler::new(Path::new("/"), checkers, None);
            threads.push(metrics::start(
                metrics,
                settings.name.clone(),
                sampler,
                inbox.clone(),
                context.calls.images.clone(),
                stop.clone(),
            )?);
        }
        // Finally: the scheduler and the connection to the server. On the heap, each saves its
        // thread a page of the stack.
        let facts = NodeFacts::new(settings.tags.clone());
        let start_loop = scheduler::workloads::on_threads();
        let workloads = WorkloadRecords::new(
            settings.name.as_str().into(),
            context,
            fastrand::Rng::new(),
            start_loop,
            settings.keeps_finished,
            settings.prepare,
            facts,
        );
        let load = LoadSampler::new(Path::new("/proc"));
        let mut scheduler = Box::new(Scheduler::new(
            inbox.clone(),
            workloads,
            outbox,
            load,
            versions,
            Some(Box::new(previous)),
            status.clone(),
        ));
        let scheduler_stop = stop.clone();
        let heartbeat = watched.add("scheduler");
        threads.push(threads::spawn("scheduler", STACK_LARGE, move || {
            scheduler.run(&events, &scheduler_stop, &heartbeat)
        })?);
        let uplink = Box::new(Uplink {
            options: ClientOptions {
                url: settings.url,
                security: settings.security,
                service: Service::Agent,
                connect_limit: CONNECT_MAX,
                message_max: settings.message_max.0 as usize,
            },
            agent: settings.name,
            removes_images,
            version: VERSION,
            tags: settings.tags,
            outbox: reader,
            control,
            scheduler: inbox,
            status,
        });
        let heartbeat = watched.add("uplink");
        threads.push(threads::spawn("uplink", STACK_LARGE, move || {
            if let Some(text) = uplink.run(&stop, &heartbeat) {
                refused(text);
            }
        })?);
        Ok(Self {
            running,
            pollers_running,
            threads,
            _folder: folder,
        })
    }

    /// Ends the threads. Returns the names of those that have not ended in time. Workloads continue
    /// to run, and nothing in the run folder is removed, so that the next agent adopts them.
    pub fn stop(self) -> Vec<String> {
        drop(self.running);
        drop(self.pollers_running);
        threads::join_all(self.threads, AGENT_STOP_DEADLINE)
    }
}

/// Locks the folder while this agent runs. Otherwise a second agent of the same name would take the
/// engine calls of the first one for those of an earlier agent and end them, and both would create
/// containers of the same workloads. `None` if the folder cannot be locked at all.
fn own_folder(folder: &Path, name: &str) -> io::Result<Option<File>> {
    match File::open(folder).and_then(folder_lock::lock) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => {
            let text = format!(
                "another agent with the name '{name}' runs and uses the folder '{}'. End that one, or give this one a \
                 name of its own",
                folder.display()
            );
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        Err(error) => {
            log::warn!(
                "Cannot check whether another agent uses the folder '{}': '{error}'.",
                folder.display()
            );
            Ok(None)
        }
    }
}

/// The enabled runtimes, with their state checkers in `watch`. No engine is called until a workload
/// needs it, so one that is not installed is no error.
// [impl->swdd~agent-supports-podman~2]
// [impl->swdd~agent-supports-podman-kube-runtime~1]
fn engines(
    settings: &AgentSettings,
    children: &EngineChildren,
    versions: &EngineVersions,
    watch: &mut WatchThread,
) -> Engines {
    let mut engines = Engines::new();
    for &runtime in &settings.runtimes {
        let agent = settings.name.clone();
        let children = children.clone();
        let unknown_info = match runtime {
            podman_kube::RUNTIME_NAME => "Error getting state from pods.",
            podman::RUNTIME_NAME => "Error getting state from Podman.",
            _ => "Error getting state from Nerdctl.",
        };
        // Its clones share which plays have failed.
        let kube = PodmanKubeConnector::new(&agent, children.clone());
        let connect = move || -> Connector {
            match runtime {
                podman_kube::RUNTIME_NAME => Box::new(kube.clone()),
                podman::RUNTIME_NAME => Box::new(ContainerConnector::new(
                    &podman::ENGINE,
                    &agent,
                    children.clone(),
                )),
                _ => Box::new(ContainerConnector::new(
                    &containerd::ENGINE,
                    &agent,
                    children.clone(),
                )),
            }
        };
        let checker = CheckerSettings {
            runtime,
            unknown_info,
            repair_interval: settings.listing_interval,
        };
        let watch = watch.add(checker, connect(), versions.clone());
        let connect = Box::new(connect);
        engines.insert(runtime.into(), EngineSource { connect, watch });
    }
    engines
}
