//! What samples say of instances with one container, several, or none.

use super::*;
use crate::images::ImageBytes;
use crate::uplink_outbox::uplink_outbox;
use ankaios_model::usage::NodeUsage;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::{ContainerId, MainProcess};
use std::fs;

fn container(memory: u64, start_ticks: u64) -> CgroupReading {
    let usage = WorkloadUsage {
        memory_bytes: Some(memory),
        inactive_file_bytes: Some(1),
        memory_peak_bytes: Some(2 * memory),
        cpu_usec: Some(10),
        pids: Some(1),
        ..WorkloadUsage::default()
    };
    CgroupReading::Usage(ContainerUsage {
        usage,
        start_ticks: Some(start_ticks),
    })
}

#[test]
fn one_container_tells_all_and_several_are_added_up() {
    let boot = Duration::from_secs(100);
    let one = usage_of(vec![container(100, 9_000)], 2, boot);
    let expected = WorkloadUsage {
        memory_bytes: Some(100),
        inactive_file_bytes: Some(1),
        memory_peak_bytes: Some(200),
        cpu_usec: Some(10),
        pids: Some(1),
        uptime_ms: Some(10_000),
        restarts: Some(2),
        ..WorkloadUsage::default()
    };
    assert_eq!(
        (one.usage, one.started_ms),
        (expected.clone(), Some(90_000))
    );
    let pod = usage_of(
        vec![
            container(100, 9_000),
            CgroupReading::Ended,
            container(50, 8_000),
        ],
        0,
        boot,
    );
    let expected = WorkloadUsage {
        memory_bytes: Some(150),
        inactive_file_bytes: Some(2),
        memory_peak_bytes: None,
        cpu_usec: Some(20),
        pids: Some(2),
        uptime_ms: Some(20_000),
        restarts: Some(0),
        ..expected
    };
    assert_eq!((pod.usage, pod.started_ms), (expected, Some(80_000)));
}

#[test]
fn what_one_container_does_not_tell_is_unknown_of_all() {
    let boot = Duration::from_secs(100);
    let without_memory = CgroupReading::Usage(ContainerUsage {
        usage: WorkloadUsage {
            pids: Some(1),
            ..WorkloadUsage::default()
        },
        start_ticks: None,
    });
    let pod = usage_of(vec![container(100, 9_000), without_memory], 0, boot);
    let expected = WorkloadUsage {
        pids: Some(2),
        restarts: Some(0),
        ..WorkloadUsage::default()
    };
    assert_eq!((pod.usage, pod.started_ms), (expected, None));
    let shared = usage_of(
        vec![container(100, 9_000), CgroupReading::NoCgroup],
        0,
        boot,
    );
    assert_eq!(
        shared.usage,
        WorkloadUsage {
            missing: Some(NO_CGROUP.to_owned()),
            ..WorkloadUsage::default()
        }
    );
    for ended in [vec![], vec![CgroupReading::Ended]] {
        let expected = WorkloadUsage {
            restarts: Some(3),
            ..WorkloadUsage::default()
        };
        let usage = usage_of(ended, 3, boot);
        assert_eq!(
            (usage.usage, usage.started_ms),
            (expected, None),
            "it does not run"
        );
    }
    let early = usage_of(vec![container(1, 20_000)], 0, boot).usage;
    assert_eq!(early.uptime_ms, None, "the clocks disagree");
}

#[test]
fn a_sample_has_each_watched_instance_and_the_node() {
    let top = tempfile::tempdir().unwrap();
    let id = "5".repeat(64);
    let file = |path: &str, text: &str| {
        let path = top.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    file(
        "proc/stat",
        "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 0 1 2 3 4 5 6 7 0 0\nintr 5\n",
    );
    file(
        "proc/meminfo",
        "MemTotal:  2000 kB\nMemFree:  1 kB\nMemAvailable:  500 kB\n",
    );
    file(
        "proc/self/mountinfo",
        "24 22 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    file("proc/7/cgroup", &format!("0::/libpod-{id}\n"));
    file(
        "proc/7/stat",
        "7 (sh) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 500 1000 50",
    );
    file(&format!("sys/fs/cgroup/libpod-{id}/pids.current"), "3\n");
    let instance = |name: &str| InstanceName::with_id(name, "id", "agent_A");
    let waker = EventFd::new().unwrap();
    let (checker, commands) = WatchSender::new(1, waker.clone());
    let (silent, _) = WatchSender::new(1, waker); // Its state checker has ended.
    let reply = threads::spawn("checker", STACK_SMALL, move || {
        let Ok(WatchCommand::ListWatched { reply }) = commands.recv() else {
            panic!("nothing was asked")
        };
        let processes = vec![MainProcess {
            container: ContainerId(id.as_str().into()),
            pid: 7,
        }];
        let running = InstanceProcesses {
            instance: instance("web"),
            restarts: 1,
            processes,
        };
        let ended = InstanceProcesses {
            instance: instance("done"),
            restarts: 0,
            processes: Vec::new(),
        };
        reply.send(vec![running, ended]).unwrap();
    });
    let mut sampler = UsageSampler::new(top.path(), vec![silent, checker], None);
    sampler.wait_max = Duration::from_secs(60);
    let sample = sampler.sample();
    assert!(threads::join_all(reply, Duration::from_secs(180)).is_empty());
    let node = NodeUsage {
        cores: Some(2),
        cpu_busy_usec: Some((1 + 2 + 3 + 6 + 7 + 8) * 10_000),
        memory_total_bytes: Some(2000 * 1024),
        memory_available_bytes: Some(500 * 1024),
    };
    assert_eq!(sample.usage.node, node);
    assert!(sample.usage.sampled_usec.is_some() && sample.usage.missing.is_none());
    let web = &sample.usage.workloads["web"]["id"];
    assert_eq!(
        (web.pids, web.memory_bytes, web.restarts),
        (Some(3), None, Some(1))
    );
    assert!(
        web.uptime_ms.is_some(),
        "this machine runs for more than 5 s"
    );
    let done = WorkloadUsage {
        restarts: Some(0),
        ..WorkloadUsage::default()
    };
    assert_eq!(sample.usage.workloads["done"]["id"], done);
    assert_eq!(sample.started_ms, [(instance("web"), 5_000)].into());
}

#[test]
fn newer_usage_request_replaces_the_one_under_way() {
    let (outbox, uplink) = uplink_outbox();
    uplink.connected();
    let top = tempfile::tempdir().unwrap();
    let (checker, commands) = WatchSender::new(1, EventFd::new().unwrap());
    let mut sampler = UsageSampler::new(top.path(), vec![checker], None);
    sampler.wait_max = Duration::from_secs(60);
    let requests = UsageRequests::new(outbox.clone(), sampler);
    let ample = Duration::from_secs(180);
    let next = || loop {
        match uplink.next() {
            Some(ToServer::UsageResponse { number, usage }) => {
                assert!(usage.sampled_usec.is_some());
                break number;
            }
            Some(other) => panic!("{other:?}"),
            None => uplink.woken().recv_timeout(ample).unwrap(),
        }
    };
    requests.request(1);
    let held = commands.recv_timeout(ample).unwrap(); // The thread waits for its reply.
    requests.request(2);
    drop(held);
    assert_eq!(next(), 2);
    drop(commands); // The state checker ends: nothing is waited for.
    requests.request(3);
    assert_eq!(next(), 3);
    assert_eq!(uplink.next(), None, "one response for each thread");
}

// [utest->swdd~agent-shows-bytes-of-images~1]
#[test]
fn bytes_of_images_are_those_of_the_workload() {
    let of = |usage| BTreeMap::from([("id".to_owned(), usage)]);
    let mut usage = AgentUsage {
        workloads: [
            ("web".to_owned(), of(WorkloadUsage::default())),
            ("other".to_owned(), of(WorkloadUsage::default())),
        ]
        .into(),
        ..AgentUsage::default()
    };
    let bytes = ImageBytes {
        all: 3,
        removable: 1,
    };
    let images = ImageReport {
        workloads: [("web".to_owned(), bytes), ("gone".to_owned(), bytes)].into(),
    };
    add_images(&mut usage, &images);
    let web = &usage.workloads["web"]["id"];
    assert_eq!(web.image_bytes, Some(3));
    assert_eq!(web.image_removable_bytes, Some(1));
    assert_eq!(usage.workloads["other"]["id"], WorkloadUsage::default());
    assert_eq!(usage.workloads.len(), 2);
}
