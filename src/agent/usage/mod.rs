//! What the workloads of this agent and its node use, read from the kernel's files on request only.
//!
//! Between two requests there is no thread, no timer and no open file. The state checkers have the
//! main process of each container; [`cgroups`] finds the rest.
//!
//! Thread: `usage` takes one sample, sends it and ends; [`UsageRequests`] belongs to
//! `scheduler`. The thread `metrics` takes samples as well.
//! Takes: requests of the server, processes from the state checkers. Gives: a sample to `uplink`
//! (never waits).

pub(crate) mod cgroups;

use super::images::{ImageReport, ImageUses};
use super::resources::{self, TICKS_PER_SECOND};
use super::state_checker::{WatchCommand, WatchedInstance};
use super::uplink_outbox::UplinkOutbox;
use crate::limits::USAGE_PROCESSES_MAX;
use ankaios_model::messages::ToServer;
use ankaios_model::names::InstanceName;
use ankaios_model::usage::{AgentUsage, NO_CGROUP, WorkloadUsage};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_SMALL;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads;
use cgroups::{CgroupReader, Hierarchies, Reading};
use crossbeam_channel::{Sender, bounded};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The requests of the server. At most one thread takes a sample; a newer request replaces the one
/// that it responds to.
pub(crate) struct UsageRequests {
    outbox: UplinkOutbox,
    sampler: Arc<UsageSampler>,
    /// The number of the newest request, as long as a thread takes the sample for it.
    newest: Arc<Mutex<Option<u64>>>,
}

impl UsageRequests {
    /// Samples by `sampler` are put into `outbox`, behind what is more important.
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
            return; // The sample under way is sent as the response to this one.
        }
        let (newest, outbox, sampler) = (
            self.newest.clone(),
            self.outbox.clone(),
            self.sampler.clone(),
        );
        let thread = threads::spawn("usage", STACK_SMALL, move || {
            let usage = sampler.sample_with_images();
            if let Some(number) = newest.lock().take() {
                // Without a server nobody waits.
                let _ = outbox.put_message(ToServer::UsageResponse { number, usage }, None);
            }
        });
        if let Err(error) = thread {
            self.newest.lock().take();
            log::warn!("Not responding to a request for usage: no thread can be had: '{error}'.");
        }
    }
}

/// Takes samples.
#[derive(Debug)]
pub(crate) struct UsageSampler {
    /// `/`, or a recorded tree.
    top: PathBuf,
    /// The inboxes of the state checkers.
    checkers: Vec<Sender<WatchCommand>>,
    /// Where the bytes of images are known; `None` when images are not cleaned up.
    images: Option<ImageUses>,
    /// Longest wait for them.
    wait_max: Duration,
    /// Read with the first sample.
    hierarchies: OnceLock<Hierarchies>,
}

/// One sample.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// What is sent to the server.
    pub(crate) usage: AgentUsage,
    /// When the main process of each instance was started, in milliseconds since boot; of several
    /// containers the oldest.
    pub(crate) started_ms: BTreeMap<InstanceName, u64>,
}

impl UsageSampler {
    /// Reads the files below `top`, normally `/`, of the processes that these state checkers watch.
    pub(crate) fn new(
        top: &Path,
        checkers: Vec<Sender<WatchCommand>>,
        images: Option<ImageUses>,
    ) -> Self {
        Self {
            top: top.to_owned(),
            checkers,
            images,
            wait_max: USAGE_PROCESSES_MAX,
            hierarchies: OnceLock::new(),
        }
    }

    /// Takes a sample with the bytes of images, from what is known: no engine is called.
    // [impl->swdd~agent-shows-bytes-of-images~1]
    pub(crate) fn sample_with_images(&self) -> AgentUsage {
        let mut usage = self.sample().usage;
        let images = self.images.as_ref().and_then(ImageUses::report);
        add_images(&mut usage, &images.unwrap_or_default());
        usage
    }

    /// Takes a sample; waits at most [`USAGE_PROCESSES_MAX`] for the state checkers. Instances of
    /// one that did not reply are not in it.
    pub(crate) fn sample(&self) -> Sample {
        self.sample_of(&self.watched(), since(ClockId::Boottime))
    }

    /// The instances that the state checkers watch, with their processes.
    fn watched(&self) -> Vec<WatchedInstance> {
        let until = SystemClock.now() + self.wait_max;
        let (reply, replies) = bounded(self.checkers.len());
        for checker in &self.checkers {
            let _ = checker.send_deadline(
                WatchCommand::ListWatched {
                    reply: reply.clone(),
                },
                until,
            ); // Not in time: left out.
        }
        drop(reply);
        std::iter::from_fn(|| replies.recv_deadline(until).ok())
            .flatten()
            .collect()
    }

    fn hierarchies(&self) -> Option<&Hierarchies> {
        let read = || {
            Hierarchies::read(&self.top)
                .ok()
                .map(|read| self.hierarchies.get_or_init(|| read))
        };
        self.hierarchies.get().or_else(read)
    }

    fn sample_of(&self, watched: &[WatchedInstance], since_boot: Duration) -> Sample {
        let sampled_usec = u64::try_from(since(ClockId::Monotonic).as_micros()).ok();
        let node = resources::node_usage(&self.top.join("proc"));
        let mut sample = Sample {
            usage: AgentUsage {
                sampled_usec,
                node,
                ..AgentUsage::default()
            },
            ..Sample::default()
        };
        let unreadable = Hierarchies::default();
        let hierarchies = self.hierarchies().unwrap_or(&unreadable);
        let mut cgroups = CgroupReader::new(&self.top, hierarchies);
        for WatchedInstance {
            instance,
            restarts,
            processes,
        } in watched
        {
            let readings = processes
                .iter()
                .map(|process| cgroups.read(process))
                .collect();
            let (usage, started_ms) = usage_of(readings, *restarts, since_boot);
            let of_workload = sample
                .usage
                .workloads
                .entry(instance.workload.to_string())
                .or_default();
            of_workload.insert(instance.id.to_string(), usage);
            sample
                .started_ms
                .extend(started_ms.map(|started| (instance.clone(), started)));
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

fn since(clock: ClockId) -> Duration {
    // Neither of the clocks used here is ever negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// What an instance with these containers uses, and when it was started. A value that one of
/// several lacks is unknown of all of them.
fn usage_of(
    readings: Vec<Reading>,
    restarts: u32,
    since_boot: Duration,
) -> (WorkloadUsage, Option<u64>) {
    if readings.contains(&Reading::NoCgroup) {
        return (
            WorkloadUsage {
                missing: Some(NO_CGROUP.to_owned()),
                ..WorkloadUsage::default()
            },
            None,
        );
    }
    let usages = readings.into_iter().filter_map(|one| match one {
        Reading::Usage(usage, started) => Some((usage, started)),
        _ => None,
    });
    let (all, start_ticks) = usages.reduce(together).unwrap_or_default();
    let started_ms = start_ticks.map(|ticks| ticks.saturating_mul(1000 / TICKS_PER_SECOND));
    let uptime_ms = started_ms.and_then(|started| {
        u64::try_from(since_boot.as_millis())
            .ok()?
            .checked_sub(started)
    });
    (
        WorkloadUsage {
            uptime_ms,
            restarts: Some(restarts.into()),
            ..all
        },
        started_ms,
    )
}

/// What one container uses, and when it was started.
type Started = (WorkloadUsage, Option<u64>);

/// What two containers use together. Their peaks were not at the same time.
fn together((one, started): Started, (other, other_started): Started) -> Started {
    let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
    let usage = WorkloadUsage {
        memory_bytes: sum(one.memory_bytes, other.memory_bytes),
        inactive_file_bytes: sum(one.inactive_file_bytes, other.inactive_file_bytes),
        cpu_usec: sum(one.cpu_usec, other.cpu_usec),
        pids: sum(one.pids, other.pids),
        ..WorkloadUsage::default()
    };
    (usage, started.zip(other_started).map(|(a, b)| a.min(b)))
}

#[cfg(test)]
mod tests;
