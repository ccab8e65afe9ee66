//! The times at which each instance was accepted, waited, started and ran, so that users find the
//! slow part of a start.
//!
//! Thread: `server`; a plain value owned by [`super::Updates`]. A report costs one look-up in a
//! map. An instance has times while it has a state or is wanted.

use crate::state_view::{present, present_entries, put_instance};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::names::InstanceName;
use ankaios_model::node::{Entries, Node};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_platform::clock::{Clock, SystemClock};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// The times of all instances.
#[derive(Debug)]
pub(crate) struct Timings {
    /// When the server started.
    start: Instant,
    /// The time from the boot of the node to `start`.
    boot: Duration,
    instances: HashMap<InstanceName, StartTimes>,
}

/// Milliseconds since the start of the server plus one, so that an absent time takes no memory.
type StartMoment = NonZeroU64;

/// The times of the latest start of one instance. Each is the first of its kind.
#[derive(Debug, Default)]
struct StartTimes {
    desired: Option<StartMoment>,
    waiting: Option<StartMoment>,
    starting: Option<StartMoment>,
    started: Option<StartMoment>,
    running: Option<StartMoment>,
    ended: Option<StartMoment>,
    /// Starts that were reported, or that must have been before the first report of a run.
    starts: u32,
    prepared: Option<PrepareLevel>,
    /// Whether an older instance of the same name may still be reported, until it is removed.
    has_predecessor: bool,
}

impl Default for Timings {
    /// Begins with the start of the server at this moment.
    fn default() -> Self {
        let since_boot = clock_gettime(ClockId::Boottime);
        Self {
            start: SystemClock.now(),
            boot: Duration::try_from(since_boot).unwrap_or_default(),
            instances: HashMap::new(),
        }
    }
}

impl Timings {
    /// Notes that an instance is wanted since `now`, for the first time or in another revision.
    pub(crate) fn accept(&mut self, instance: &InstanceName, now: Instant) {
        let times = StartTimes {
            desired: Some(self.moment(now)),
            has_predecessor: self.instances.contains_key(instance),
            ..StartTimes::default()
        };
        self.instances.insert(instance.clone(), times);
    }

    /// Notes a reported state of a wanted or unwanted instance.
    // [impl->swdd~server-keeps-start-times~1]
    pub(crate) fn report(
        &mut self,
        instance: &InstanceName,
        state: &ExecutionState,
        now: Instant,
        is_wanted: bool,
    ) {
        if state.phase == Phase::Removed {
            match self.instances.get_mut(instance) {
                // The instance is restarted in another container, or an earlier one of the same
                // name has ended.
                Some(times) if is_wanted => times.restart(),
                _ => self.remove(instance),
            }
            return;
        }
        let moment = self.moment(now);
        if let Some(times) = self.instances.get_mut(instance) {
            times.report(state, moment);
            return;
        }
        let mut times = StartTimes::default();
        times.report(state, moment);
        self.instances.insert(instance.clone(), times);
    }

    /// Forgets an instance that is not wanted and has no state any more.
    pub(crate) fn remove(&mut self, instance: &InstanceName) {
        self.instances.remove(instance);
    }

    fn moment(&self, now: Instant) -> StartMoment {
        StartMoment::MIN.saturating_add(milliseconds(now.saturating_duration_since(self.start)))
    }

    /// The part of the state with times that masks select; `None` if they select nothing.
    pub(crate) fn read(&self, now: Instant, wanted: &Wanted<'_>) -> Option<Node> {
        let now = milliseconds(now.saturating_duration_since(self.start));
        let boot = milliseconds(self.boot);
        let parts = [
            ("now", wanted.below("now").take(Node::Number(now))),
            ("boot", wanted.below("boot").take(Node::Number(boot))),
            ("instances", self.read_instances(&wanted.below("instances"))),
        ];
        present(wanted, parts)
    }

    /// The wanted times of all instances.
    fn read_instances(&self, wanted: &Wanted<'_>) -> Option<Node> {
        if wanted.is_nothing() {
            return None;
        }
        let mut agents = Entries::default();
        for (instance, times) in &self.instances {
            let wanted = wanted
                .below(&instance.agent)
                .below(&instance.workload)
                .below(&instance.id);
            if !wanted.is_nothing()
                && let Some(node) = wanted.take(times.node())
            {
                put_instance(&mut agents, instance, node);
            }
        }
        present_entries(wanted, agents)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl StartTimes {
    /// Notes the time of a reported state, if it is the first of its kind in this start. An
    /// instance that has run or ended, and is at the begin of a start again, has another start.
    fn report(&mut self, state: &ExecutionState, now: StartMoment) {
        let phase = state.phase;
        let is_begin = match phase {
            Phase::PendingInitial | Phase::PendingWaitingToStart | Phase::PendingStarting => true,
            // A lost connection can hide the begin of this start.
            Phase::Running => self.ended.is_some(),
            _ => false,
        };
        if is_begin && (self.running.is_some() || self.ended.is_some()) {
            self.restart();
        }
        match phase {
            Phase::PendingWaitingToStart => {
                self.waiting.get_or_insert(now);
                if state.prepared != PrepareLevel::None {
                    self.prepared = Some(state.prepared);
                }
            }
            Phase::PendingStarting => {
                if self.starting.is_none() {
                    self.starting = Some(now);
                    self.starts = self.starts.saturating_add(1);
                }
                if state.reason == Reason::Ready {
                    self.started.get_or_insert(now);
                }
            }
            Phase::Running => {
                self.running.get_or_insert(now);
            }
            Phase::Succeeded
            | Phase::FailedExecFailed
            | Phase::FailedLost
            | Phase::PendingStartingFailed => {
                self.ended.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// Begins another start of the instance. A run whose start was not reported counts as well: it
    /// was started before this server, so the new start does not begin with the acceptance.
    fn restart(&mut self) {
        let has_run = self.running.is_some() || self.ended.is_some();
        let is_own = !self.has_predecessor;
        if has_run && self.starting.is_none() && is_own {
            self.starts = self.starts.saturating_add(1);
        }
        *self = Self {
            desired: self.desired,
            starts: self.starts,
            ..Self::default()
        };
    }

    /// The times as clients read them.
    fn node(&self) -> Node {
        let times = [
            ("desired", self.desired),
            ("waiting", self.waiting),
            ("starting", self.starting),
            ("started", self.started),
            ("running", self.running),
            ("ended", self.ended),
        ];
        let mut fields = Entries::default();
        for (key, moment) in times {
            if let Some(moment) = moment {
                fields.insert(key, Node::Number(moment.get() - 1));
            }
        }
        if self.starts > 0 {
            fields.insert("starts", Node::Number(self.starts.into()));
        }
        if let Some(level) = self.prepared {
            fields.insert("prepared", Node::text(level.as_str()));
        }
        Node::Map(fields)
    }
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl Timings {
    /// The instances that have times.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &InstanceName> {
        self.instances.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Cluster;
    use ankaios_fakes::manual_clock::ManualClock;
    use ankaios_model::names::hash_id;

    use Phase::{
        AgentDisconnected, FailedExecFailed, FailedLost, FailedUnknown, PendingInitial,
        PendingStarting, PendingStartingFailed, PendingWaitingToStart, Removed, Running, Stopping,
        StoppingRequestedAtRuntime, Succeeded,
    };

    /// The times of an instance that was accepted at 1 ms, after reports at 2 ms, 3 ms and so on.
    fn after(reports: &[(Phase, &str)]) -> String {
        let (mut timings, instance) = (Timings::default(), InstanceName::with_id("w", "1", "A"));
        let at =
            |timings: &Timings, milliseconds| timings.start + Duration::from_millis(milliseconds);
        timings.accept(&instance, at(&timings, 1));
        for ((phase, info), now) in reports.iter().zip(2..) {
            timings.report(
                &instance,
                &ExecutionState::from_text(*phase, *info),
                at(&timings, now),
                true,
            );
        }
        let node = timings.instances[&instance].node();
        let entries = node.as_map().unwrap().iter();
        entries
            .map(|(key, value)| format!("{key}={}", serde_json::to_string(value).unwrap()))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn reports_of_one_start_give_its_times() {
        let waits = (PendingWaitingToStart, "");
        let starts = (PendingStarting, "Triggered at runtime.");
        let runs = (Running, "");
        for (reports, expected) in [
            (&[][..], "desired=1"),
            (&[(PendingInitial, ""), waits], "desired=1 waiting=3"),
            (
                &[
                    waits,
                    waits,
                    starts,
                    (PendingStarting, "Retry 1: x"),
                    runs,
                    runs,
                ],
                { "desired=1 running=6 starting=4 starts=1 waiting=2" },
            ),
            (
                &[
                    starts,
                    (PendingStarting, "ready: tcp 80 refused"),
                    (PendingStarting, "ready: x"),
                    runs,
                ],
                { "desired=1 running=5 started=3 starting=2 starts=1" },
            ),
            (
                &[starts, (Succeeded, "")],
                "desired=1 ended=3 starting=2 starts=1",
            ),
            (
                &[
                    starts,
                    runs,
                    (FailedExecFailed, "Exit code: '1'"),
                    (FailedLost, ""),
                ],
                { "desired=1 ended=4 running=3 starting=2 starts=1" },
            ),
            (
                &[starts, (PendingStartingFailed, "No more retries: x")],
                "desired=1 ended=3 starting=2 starts=1",
            ),
            (&[runs], "desired=1 running=2"),
            (
                &[
                    starts,
                    runs,
                    (FailedUnknown, ""),
                    (AgentDisconnected, ""),
                    (Stopping, ""),
                    runs,
                ],
                { "desired=1 running=3 starting=2 starts=1" },
            ),
            (
                &[starts, waits, starts, runs],
                "desired=1 running=5 starting=2 starts=1 waiting=3",
            ),
        ] {
            assert_eq!(after(reports), expected, "{reports:?}");
        }
    }

    #[test]
    fn a_further_start_begins_anew() {
        let (waits, starts) = ((PendingWaitingToStart, ""), (PendingStarting, ""));
        let (runs, fails) = ((Running, ""), (FailedExecFailed, ""));
        for (reports, expected) in [
            (&[starts, runs, waits][..], "desired=1 starts=1 waiting=4"),
            (
                &[starts, runs, fails, starts],
                "desired=1 starting=5 starts=2",
            ),
            (
                &[waits, starts, runs, fails, starts, runs],
                "desired=1 running=7 starting=6 starts=2",
            ),
            (&[starts, runs, fails, runs], "desired=1 running=5 starts=1"),
            (
                &[starts, (PendingStartingFailed, ""), starts, runs],
                "desired=1 running=5 starting=4 starts=2",
            ),
            (
                &[
                    (PendingWaitingToStart, "prepared: INIT"),
                    starts,
                    runs,
                    waits,
                ],
                "desired=1 starts=1 waiting=5",
            ),
            (
                &[starts, runs, fails, (Removed, ""), starts],
                "desired=1 starting=6 starts=2",
            ),
            (&[(Removed, ""), waits], "desired=1 waiting=3"),
            // It ran before this server was started.
            (
                &[runs, fails, starts, runs],
                "desired=1 running=5 starting=4 starts=2",
            ),
            (
                &[runs, (Removed, ""), starts],
                "desired=1 starting=4 starts=2",
            ),
        ] {
            assert_eq!(after(reports), expected, "{reports:?}");
        }
    }

    #[test]
    fn the_last_level_of_preparation_is_kept() {
        for (infos, expected) in [
            (&["prepared: IMAGE"][..], "\"IMAGE\""),
            (
                &[
                    "prepared: IMAGE",
                    "prepared: INIT",
                    "prepare: no space left, retry in 4 s",
                ],
                "\"INIT\"",
            ),
            (
                &["precondition: /run/keys is missing; prepared: CREATE", ""],
                "\"CREATE\"",
            ),
            (
                &[
                    "prepared: CREATE; waits for 'db' to run",
                    "waits for 'db' to run",
                ],
                "\"CREATE\"",
            ),
            (
                &[
                    "prepare: no such image",
                    "prepared: MORE",
                    "it is prepared: INIT",
                ],
                "",
            ),
        ] {
            let reports: Vec<(Phase, &str)> = infos
                .iter()
                .map(|info| (PendingWaitingToStart, *info))
                .collect();
            let times = after(&reports);
            assert_eq!(
                times
                    .split_once(" prepared=")
                    .map_or("", |(_, rest)| rest.split_once(' ').unwrap().0),
                expected
            );
        }
        assert_eq!(
            after(&[(PendingStarting, "prepared: INIT")]),
            "desired=1 starting=2 starts=1",
            "not while it waits"
        );
    }

    // [utest->swdd~server-keeps-start-times~1]
    #[test]
    fn times_follow_updates_and_reports_and_end_with_the_instance() {
        const MANIFEST: &str = "
apiVersion: v1
workloads:
  w: {agent: A, runtime: podman, runtimeConfig: x}
  late: {agent: B, runtime: podman, runtimeConfig: x}
";
        let clock = ManualClock::new();
        let mut cluster = Cluster::with_manifest(MANIFEST);
        cluster.server.updates.timings_mut().start = clock.now();
        cluster.server.set_clock(clock.clone());
        let agent = cluster.settled_agent("A");
        let (instance, id) = (InstanceName::new("w", "x", "A"), hash_id("x"));
        let report = |cluster: &mut Cluster, phase| {
            clock.advance(Duration::from_millis(100));
            cluster.report(agent, &[(&instance, phase)]);
        };
        report(&mut cluster, PendingStarting);
        report(&mut cluster, Running);
        let masks = ["timings.instances.A.w"];
        let times = |times: &str| {
            format!(r#"{{"timings":{{"instances":{{"A":{{"w":{{"{id}":{{{times}}}}}}}}}}}}}"#)
        };
        assert_eq!(
            cluster.read(&masks),
            times(r#""desired":0,"running":200,"starting":100,"starts":1"#)
        );
        assert_eq!(
            cluster.read(&["timings.instances.B.*.*.desired", "timings.now"]),
            format!(
                r#"{{"timings":{{"instances":{{"B":{{"late":{{"{id}":{{"desired":0}}}}}}}},"now":200}}}}"#
            )
        );
        // The same instance in another revision is a new start. Late reports are about the old one.
        let tags = "{desiredState: {apiVersion: v1, workloads: {w: {tags: {a: b}}}}}";
        cluster
            .update(tags, &["desiredState.workloads.w.tags"])
            .unwrap();
        assert_eq!(cluster.read(&masks), times(r#""desired":200"#));
        for phase in [
            Running,
            StoppingRequestedAtRuntime,
            Removed,
            PendingStarting,
        ] {
            report(&mut cluster, phase);
        }
        assert_eq!(
            cluster.read(&masks),
            times(r#""desired":200,"starting":600,"starts":1"#)
        );
        cluster
            .update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads"],
            )
            .unwrap();
        assert_ne!(cluster.read(&masks), "{}", "it has not ended yet");
        report(&mut cluster, Removed);
        assert_eq!(cluster.read(&["timings.instances"]), r#"{"timings":{}}"#);
    }

    #[test]
    fn instance_ended_after_its_delete_leaves_no_times() {
        let mut cluster = Cluster::with_manifest(
            "{apiVersion: v1, workloads: {w: {agent: A, runtime: r, runtimeConfig: x}}}",
        );
        let agent = cluster.settled_agent("A");
        // Its predecessor of an earlier server: the state is gone, the instance is wanted.
        cluster.report(agent, &[(&InstanceName::new("w", "x", "A"), Removed)]);
        assert!(
            cluster
                .server
                .updates
                .timings()
                .instances()
                .next()
                .is_some()
        );
        cluster
            .update(
                "{desiredState: {apiVersion: v1}}",
                &["desiredState.workloads"],
            )
            .unwrap();
        assert!(
            cluster
                .server
                .updates
                .timings()
                .instances()
                .next()
                .is_none()
        );
    }
}
