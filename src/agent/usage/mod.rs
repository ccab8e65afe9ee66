//! The usage of the workloads of this agent and of its node. It is read from files of the kernel,
//! and only on request.
//!
//! Between two requests there is no thread, no timer and no open file. The state checkers have the
//! main process of each container; [`cgroups`] finds its control groups.
//!
//! Thread: `usage` takes one sample, sends it and ends; [`UsageRequests`] belongs to
//! `scheduler`. The thread `metrics` takes samples as well.
//! Takes: requests of the server, processes from the state checkers. Gives: a sample to `uplink`
//! (never waits).

pub(crate) mod cgroups;

use super::images::{ImageReport, ImageUses};
use super::resources::{self, TICKS_PER_SECOND};
use super::state_checker::thread::WatchSender;
use super::state_checker::{InstanceProcesses, WatchCommand};
use super::uplink_outbox::UplinkOutbox;
use crate::limits::USAGE_PROCESSES_MAX;
use ankaios_model::messages::ToServer;
use ankaios_model::names::InstanceName;
use ankaios_model::usage::{AgentUsage, NO_CGROUP, WorkloadUsage};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_SMALL;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads;
use cgroups::{CgroupReader, CgroupReading, ContainerUsage, Hierarchies};
use crossbeam_channel::bounded;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Responds to requests of the server. At most one thread takes a sample, and its sample is the
/// response to the newest request.
pub(crate) struct UsageRequests {
    outbox: UplinkOutbox,
    sampler: Arc<UsageSampler>,
    /// The number of the newest request, while a thread takes a sample.
    newest: Arc<Mutex<Option<u64>>>,
}

impl UsageRequests {
    /// Returns a value that puts samples of `sampler` into `outbox`.
    pub(crate) fn new(outbox: UplinkOutbox, sampler: UsageSampler) -> Self {
        Self {
            outbox,
            sampler: Arc::new(sampler),
            newest: Arc::default(),
        }
    }

    /// Responds to the request `number` with a sample; never waits for it.
    // [impl->swdd~usage-on-request~1]
    pub(crate) fn request(&self, number: u64) {
        if self.newest.lock().replace(number).is_some() {
            return; // The sample under way is the response to this request.
        }
        let newest = self.newest.clone();
        let outbox = self.outbox.clone();
        let sampler = self.sampler.clone();
        let thread = threads::spawn("usage", STACK_SMALL, move || {
            let usage = sampler.sample_with_images();
            if let Some(number) = newest.lock().take() {
                let response = ToServer::UsageResponse { number, usage };
                let _ = outbox.put_message(response, None); // Without a server it is dropped.
            }
        });
        if let Err(error) = thread {
            *self.newest.lock() = None;
            log::warn!(
                "Not responding to a request for usage: no thread can be started: '{error}'."
            );
        }
    }
}

/// Takes samples.
#[derive(Debug)]
pub(crate) struct UsageSampler {
    /// `/`, or a recorded tree.
    top: PathBuf,
    /// Reach the state checkers.
    checkers: Vec<WatchSender>,
    /// The source of the bytes of images; `None` when images are not cleaned up.
    images: Option<ImageUses>,
    /// Longest wait for the state checkers.
    wait_max: Duration,
    /// Read with the first sample.
    hierarchies: OnceLock<Hierarchies>,
}

/// One sample.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The values for the server.
    pub(crate) usage: AgentUsage,
    /// When the main process of each instance was started, in milliseconds since boot. With several
    /// containers, that of the oldest one.
    pub(crate) started_ms: BTreeMap<InstanceName, u64>,
}

impl UsageSampler {
    /// Returns a sampler of the processes that these state checkers watch. It reads files below
    /// `top`, normally `/`.
    pub(crate) fn new(top: &Path, checkers: Vec<WatchSender>, images: Option<ImageUses>) -> Self {
        Self {
            top: top.to_owned(),
            checkers,
            images,
            wait_max: USAGE_PROCESSES_MAX,
            hierarchies: OnceLock::new(),
        }
    }

    /// Takes a sample with the bytes of images, as far as they are known. No engine is called.
    // [impl->swdd~agent-shows-bytes-of-images~1]
    pub(crate) fn sample_with_images(&self) -> AgentUsage {
        let mut usage = self.sample().usage;
        if let Some(images) = &self.images
            && let Some(report) = images.report()
        {
            add_images(&mut usage, &report);
        }
        usage
    }

    /// Takes a sample. Waits at most [`USAGE_PROCESSES_MAX`] for the state checkers; if one does
    /// not reply in time, its instances are left out.
    pub(crate) fn sample(&self) -> Sample {
        self.sample_of(&self.watched(), since(ClockId::Boottime))
    }

    /// The instances that the state checkers watch, with their processes.
    fn watched(&self) -> Vec<InstanceProcesses> {
        let until = SystemClock.now() + self.wait_max;
        let (reply, replies) = bounded(self.checkers.len());
        for checker in &self.checkers {
            let command = WatchCommand::ListWatched {
                reply: reply.clone(),
            };
            checker.send_deadline(command, until); // Otherwise its reply is missing.
        }
        drop(reply);
        let mut watched = Vec::new();
        while let Ok(instances) = replies.recv_deadline(until) {
            watched.extend(instances);
        }
        watched
    }

    /// The mounted hierarchies; `None` while they cannot be read.
    fn hierarchies(&self) -> Option<&Hierarchies> {
        if let Some(known) = self.hierarchies.get() {
            return Some(known);
        }
        let read = Hierarchies::read(&self.top).ok()?;
        Some(self.hierarchies.get_or_init(|| read))
    }

    /// Takes a sample of the node and of these instances.
    fn sample_of(&self, watched: &[InstanceProcesses], since_boot: Duration) -> Sample {
        // First: the node.
        let mut sample = Sample::default();
        sample.usage.sampled_usec = u64::try_from(since(ClockId::Monotonic).as_micros()).ok();
        sample.usage.node = resources::node_usage(&self.top.join("proc"));
        // Then: the instances.
        let unreadable = Hierarchies::default();
        let hierarchies = self.hierarchies().unwrap_or(&unreadable);
        let mut cgroups = CgroupReader::new(&self.top, hierarchies);
        for watched in watched {
            let mut readings = Vec::new();
            for process in &watched.processes {
                readings.push(cgroups.read(process));
            }
            let container = usage_of(readings, watched.restarts, since_boot);
            let instance = &watched.instance;
            if let Some(started_ms) = container.started_ms {
                sample.started_ms.insert(instance.clone(), started_ms);
            }
            let name = instance.workload.to_string();
            let of_workload = sample.usage.workloads.entry(name).or_default();
            of_workload.insert(instance.id.to_string(), container.usage);
        }
        sample
    }
}

/// Adds the bytes of images to each instance of a workload.
fn add_images(usage: &mut AgentUsage, images: &ImageReport) {
    for (workload, bytes) in &images.workloads {
        let Some(instances) = usage.workloads.get_mut(workload) else {
            continue; // It has no container.
        };
        for instance in instances.values_mut() {
            instance.image_bytes = Some(bytes.all);
            instance.image_removable_bytes = Some(bytes.removable);
        }
    }
}

/// The time of a clock that counts from boot.
fn since(clock: ClockId) -> Duration {
    // Such a clock is never negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// The usage of the containers of one instance.
struct InstanceUsage {
    usage: WorkloadUsage,
    /// When the oldest was started, in milliseconds since boot.
    started_ms: Option<u64>,
}

/// The usage of an instance with these containers. A value that one of them lacks is unknown.
fn usage_of(readings: Vec<CgroupReading>, restarts: u32, since_boot: Duration) -> InstanceUsage {
    if readings.contains(&CgroupReading::NoCgroup) {
        return InstanceUsage {
            usage: WorkloadUsage {
                missing: Some(NO_CGROUP.to_owned()),
                ..WorkloadUsage::default()
            },
            started_ms: None,
        };
    }
    // First: the sums.
    let mut all: Option<ContainerUsage> = None;
    for reading in readings {
        if let CgroupReading::Usage(one) = reading {
            all = match all {
                Some(others) => Some(together(&others, &one)),
                None => Some(one),
            };
        }
    }
    let mut all = all.unwrap_or_default();
    all.usage.restarts = Some(restarts.into());
    // Then: the times, in milliseconds.
    let Some(ticks) = all.start_ticks else {
        return InstanceUsage {
            usage: all.usage,
            started_ms: None,
        };
    };
    let started_ms = ticks.saturating_mul(1000 / TICKS_PER_SECOND);
    if let Ok(since_boot_ms) = u64::try_from(since_boot.as_millis()) {
        all.usage.uptime_ms = since_boot_ms.checked_sub(started_ms);
    }
    InstanceUsage {
        usage: all.usage,
        started_ms: Some(started_ms),
    }
}

/// The usage of two containers together, without peaks: they were not at the same time.
fn together(one: &ContainerUsage, other: &ContainerUsage) -> ContainerUsage {
    let a = &one.usage;
    let b = &other.usage;
    let start_ticks = match (one.start_ticks, other.start_ticks) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => None,
    };
    ContainerUsage {
        usage: WorkloadUsage {
            memory_bytes: sum(a.memory_bytes, b.memory_bytes),
            inactive_file_bytes: sum(a.inactive_file_bytes, b.inactive_file_bytes),
            cpu_usec: sum(a.cpu_usec, b.cpu_usec),
            pids: sum(a.pids, b.pids),
            ..WorkloadUsage::default()
        },
        start_ticks,
    }
}

/// The sum; `None` if one of them is unknown.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one?.checked_add(other?)
}

#[cfg(test)]
mod tests;
