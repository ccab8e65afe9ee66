//! The metrics file of the agent: the agent itself and the usage of its workloads.
//!
//! Thread: `metrics`, only with the key `metrics`. Each time it takes a sample, requests the
//! overview from the scheduler, and may wait for both and for the disk.

use super::events::{Overview, SchedulerEvent, WorkloadOverview};
use super::images::{ImageReport, ImageUses};
use super::resources;
use super::usage::{Sample, UsageSampler};
use ankaios_model::names::RUNTIMES;
use ankaios_model::version::VERSION;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::METRICS_WAIT_MAX;
use ankaios_platform::metrics_file::{self, Family, MetricsSettings, MetricsText, seconds};
use ankaios_platform::threads::Thread;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::io;
use std::time::Duration;

const INFO: Family = Family::gauge(
    "ankaios_agent_info",
    "The version of the agent; the value is always 1.",
);
const CONNECTED: Family = Family::gauge(
    "ankaios_agent_server_connected",
    "Whether the agent is connected to the server.",
);
const DURATION: Family = Family::gauge(
    "ankaios_agent_sample_duration_seconds",
    "How long it took to read what workloads use.",
);
const STATE: Family = Family::gauge(
    "ankaios_workload_state",
    "The present state of the workload; the value is always 1.",
);
const MEMORY: Family = Family::gauge(
    "ankaios_workload_memory_bytes",
    "Memory of the workload without the page cache that the kernel can take back at once.",
);
const PEAK: Family = Family::gauge(
    "ankaios_workload_memory_peak_bytes",
    "Highest memory of the workload, page cache included.",
);
const PIDS: Family = Family::gauge(
    "ankaios_workload_pids",
    "Processes and threads of the workload.",
);
const START: Family = Family::gauge(
    "ankaios_workload_start_time_seconds",
    "When the workload was started, in seconds since 1970.",
);
const CPU: Family = Family::counter(
    "ankaios_workload_cpu_seconds_total",
    "CPU time of the workload since it was started.",
);
const RESTARTS: Family = Family::counter(
    "ankaios_workload_restarts_total",
    "How often this agent process has started the workload after the first time.",
);
const OUT_OF_MEMORY: Family = Family::counter(
    "ankaios_workload_out_of_memory_total",
    "How often this agent process has seen the workload killed for want of memory.",
);

const IMAGES: Family = Family::gauge(
    "ankaios_workload_image_bytes",
    "Size of the images that are kept for the workload, layers that images share counted for each.",
);
const REMOVABLE: Family = Family::gauge(
    "ankaios_workload_image_removable_bytes",
    "Size of those images of the workload that can be removed.",
);

/// Starts the thread that writes the metrics of `agent`. It ends when the other end of `stop` is
/// dropped.
pub(crate) fn start(
    settings: MetricsSettings,
    agent: String,
    sampler: UsageSampler,
    scheduler: Sender<SchedulerEvent>,
    images: Option<ImageUses>,
    stop: Receiver<()>,
) -> io::Result<Thread> {
    metrics_file::start(settings, stop, move || {
        let begin = SystemClock.now();
        let sample = sampler.sample();
        let took = SystemClock.now().saturating_duration_since(begin);
        let overview = overview(&scheduler)?;
        let mut text = text(&agent, &overview, &sample, took, resources::boot_time());
        if let Some(images) = &images
            && let Some(report) = images.report()
        {
            add_images(&mut text, &agent, &report);
        }
        Some(text.finish())
    })
}

/// Requests the overview from the scheduler; `None` when there is no reply in time.
fn overview(scheduler: &Sender<SchedulerEvent>) -> Option<Overview> {
    let (reply, overview) = bounded(1);
    scheduler
        .send_timeout(SchedulerEvent::Overview(reply), METRICS_WAIT_MAX)
        .ok()?;
    overview.recv_timeout(METRICS_WAIT_MAX).ok()
}

/// The text of the metrics. An unknown value has no line. `boot_time` is in seconds since 1970.
fn text(
    agent: &str,
    overview: &Overview,
    sample: &Sample,
    took: Duration,
    boot_time: Option<u64>,
) -> MetricsText {
    // First: the agent.
    let mut text = MetricsText::default();
    let of_agent = [("agent", agent)];
    text.add(&INFO, &[("agent", agent), ("version", VERSION)], 1);
    text.add(&CONNECTED, &of_agent, u8::from(overview.connected));
    text.add(
        &DURATION,
        &of_agent,
        seconds(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
    );
    // Then: its workloads.
    for WorkloadOverview {
        instance,
        runtime,
        state,
        out_of_memory,
    } in &overview.workloads
    {
        // Any other text of a manifest becomes one label, or manifests could create any number of
        // series.
        let runtime = RUNTIMES
            .into_iter()
            .find(|known| *known == &**runtime)
            .unwrap_or("unsupported");
        let labels = [
            ("agent", agent),
            ("workload", &*instance.workload),
            ("runtime", runtime),
        ];
        if let Some(state) = state {
            let [agent, workload, runtime] = labels;
            text.add(&STATE, &[agent, workload, runtime, ("state", state)], 1);
        }
        text.add(&OUT_OF_MEMORY, &labels, *out_of_memory);
        let ids = sample.usage.workloads.get(&*instance.workload);
        let Some(usage) = ids.and_then(|ids| ids.get(&*instance.id)) else {
            continue;
        };
        // The kernel can take back the inactive page cache at once.
        let memory = match (usage.memory_bytes, usage.inactive_file_bytes) {
            (Some(all), Some(cache)) => Some(all.saturating_sub(cache)),
            _ => None,
        };
        let levels = [
            (&MEMORY, memory),
            (&PEAK, usage.memory_peak_bytes),
            (&PIDS, usage.pids),
            (&RESTARTS, usage.restarts),
        ];
        for (family, level) in levels {
            if let Some(level) = level {
                text.add(family, &labels, level);
            }
        }
        if let Some(started_ms) = sample.started_ms.get(instance)
            && let Some(boot_time) = boot_time
        {
            let started = boot_time.saturating_add(started_ms / 1000);
            text.add(&START, &labels, started);
        }
        if let Some(cpu_usec) = usage.cpu_usec {
            text.add(&CPU, &labels, seconds(cpu_usec));
        }
    }
    text
}

/// Adds the bytes of images, even of deleted workloads as long as theirs are kept.
// [impl->swdd~agent-shows-bytes-of-images~1]
fn add_images(text: &mut MetricsText, agent: &str, images: &ImageReport) {
    for (workload, bytes) in &images.workloads {
        let labels = [("agent", agent), ("workload", workload.as_str())];
        text.add(&IMAGES, &labels, bytes.all);
        text.add(&REMOVABLE, &labels, bytes.removable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::ImageBytes;
    use ankaios_model::names::InstanceName;
    use ankaios_model::usage::{AgentUsage, NO_CGROUP, WorkloadUsage};

    fn workload(name: &str, runtime: &str, state: Option<&'static str>) -> WorkloadOverview {
        WorkloadOverview {
            instance: InstanceName::with_id(name, "id", "A"),
            runtime: runtime.into(),
            state,
            out_of_memory: if name == "web" { 3 } else { 0 },
        }
    }

    #[test]
    fn metrics_have_a_line_for_each_known_value() {
        let known = WorkloadUsage {
            memory_bytes: Some(5000),
            inactive_file_bytes: Some(1000),
            memory_peak_bytes: Some(9000),
            cpu_usec: Some(1_500_000),
            pids: Some(3),
            uptime_ms: Some(1),
            restarts: Some(2),
            ..WorkloadUsage::default()
        };
        let missing = WorkloadUsage {
            missing: Some(NO_CGROUP.to_owned()),
            ..WorkloadUsage::default()
        };
        let old = WorkloadUsage {
            pids: Some(77),
            ..WorkloadUsage::default()
        };
        let workloads = [
            (
                "web".into(),
                [("id".into(), known), ("older".into(), old)].into(),
            ),
            ("shared".into(), [("id".into(), missing)].into()),
        ];
        let sample = Sample {
            usage: AgentUsage {
                workloads: workloads.into(),
                ..AgentUsage::default()
            },
            started_ms: [(InstanceName::with_id("web", "id", "A"), 12_345)].into(),
        };
        let overview = Overview {
            connected: true,
            workloads: vec![
                workload("web", "podman", Some("Running")),
                workload("shared", "podman-kube", Some("Running")),
                workload("waits", "a \"strange\" one", Some("Pending")),
                workload("new", "podman", None),
            ],
        };
        let shown = text(
            "A",
            &overview,
            &sample,
            Duration::from_micros(740),
            Some(1000),
        )
        .finish();
        let lines: Vec<&str> = shown
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let info = format!("ankaios_agent_info{{agent=\"A\",version=\"{VERSION}\"}} 1");
        let web = r#"{agent="A",workload="web",runtime="podman"}"#;
        assert_eq!(
            lines,
            [
                info,
                r#"ankaios_agent_sample_duration_seconds{agent="A"} 0.000740"#.to_owned(),
                r#"ankaios_agent_server_connected{agent="A"} 1"#.to_owned(),
                format!("ankaios_workload_cpu_seconds_total{web} 1.500000"),
                format!("ankaios_workload_memory_bytes{web} 4000"),
                format!("ankaios_workload_memory_peak_bytes{web} 9000"),
                format!("ankaios_workload_out_of_memory_total{}", r#"{agent="A",workload="new",runtime="podman"} 0"#),
                format!("ankaios_workload_out_of_memory_total{}", r#"{agent="A",workload="shared",runtime="podman-kube"} 0"#),
                format!("ankaios_workload_out_of_memory_total{}", r#"{agent="A",workload="waits",runtime="unsupported"} 0"#),
                format!("ankaios_workload_out_of_memory_total{web} 3"),
                format!("ankaios_workload_pids{web} 3"),
                format!("ankaios_workload_restarts_total{web} 2"),
                format!("ankaios_workload_start_time_seconds{web} 1012"),
                r#"ankaios_workload_state{agent="A",workload="shared",runtime="podman-kube",state="Running"} 1"#
                    .to_owned(),
                r#"ankaios_workload_state{agent="A",workload="waits",runtime="unsupported",state="Pending"} 1"#
                    .to_owned(),
                r#"ankaios_workload_state{agent="A",workload="web",runtime="podman",state="Running"} 1"#.to_owned(),
            ]
        );
        assert!(
            shown.contains("# TYPE ankaios_workload_cpu_seconds_total counter\n"),
            "{shown}"
        );
    }
    // [utest->swdd~agent-shows-bytes-of-images~1]
    #[test]
    fn bytes_of_images_have_a_line_for_each_workload() {
        let bytes = ImageBytes {
            all: 300,
            removable: 100,
        };
        let images = ImageReport {
            workloads: [("gone".to_owned(), bytes)].into(),
        };
        let mut text = MetricsText::default();
        add_images(&mut text, "A", &images);
        let text = text.finish();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"ankaios_workload_image_bytes{agent="A",workload="gone"} 300"#,
                r#"ankaios_workload_image_removable_bytes{agent="A",workload="gone"} 100"#,
            ]
        );
    }
}
