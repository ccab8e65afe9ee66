//! A control loop with a manual clock and an engine in memory: no thread, no sleep.

use super::*;
use crate::backoff::backoff_max;
use crate::control_interface::ControlHub;
use crate::engine_call::ContainerCall;
use crate::limits::{
    CREATED_MAX, RESTART_RESET, RESTART_SPACING, REVIVAL_INTERVAL, START_SLOT_MAX, STEPPED_INBOX,
};
use crate::state_checker::thread::WatchSender;
use crate::state_checker::{StateReply, WatchCommand};
use crate::uplink_outbox::uplink_outbox;
use crate::workload::mailbox::{
    FoundContainer, FoundPurpose, MailboxHandle, RunTarget, Target, mailbox,
};
use crate::workload::start_slots::SlotUse;
use crate::workload::status::Status;
use ankaios_fakes::fake_connector::{Call, FAILURE, FakeEngine, Fault};
use ankaios_fakes::fake_probes::FakeProbes;
use ankaios_fakes::log_lines::lines_of;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::access_rules::{AccessRule, Operation};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::workload::{File, FileContent, RestartPolicy};
use ankaios_platform::limits::{ADDITIONAL_INFO_MAX, CONTROL_MESSAGE_MAX};
use ankaios_platform::sync::EventFd;
use crossbeam_channel::{Receiver, bounded};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

mod life;
mod probes;
mod removal;

/// A control loop and everything around it.
struct Rig {
    control_loop: WorkloadControlLoop<ManualClock>,
    handle: MailboxHandle,
    /// The newest target.
    target: Target,
    /// The newest status that [`Self::states`] has seen.
    status: Arc<Status>,
    clock: ManualClock,
    engine: FakeEngine,
    /// The engine of another runtime, `other`, and the commands to its state checker.
    other: FakeEngine,
    _other_watched: Receiver<WatchCommand>,
    /// Engine calls that were started and have not begun.
    calls: Receiver<Box<ContainerCall>>,
    hold_calls: bool,
    events: Receiver<SchedulerEvent>,
    watched: Receiver<WatchCommand>,
    slots: StartSlots,
    folder: tempfile::TempDir,
    steps: LoopStep,
    /// The other commands to it.
    watch_commands: Vec<&'static str>,
    /// Takes the states of the newest watch.
    reply: Option<StateReply>,
    /// The restarts in that command.
    restarts: u32,
}

const RETRY_LIMIT: u32 = 3;

impl Rig {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut LoopContext<ManualClock>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        let (reports, events) = bounded(1000);
        let (engine, other) = (FakeEngine::new(), FakeEngine::new());
        let source = |engine: &FakeEngine| {
            let engine = engine.clone();
            let waker = EventFd::new().unwrap();
            let (watch, watched) = WatchSender::new(STEPPED_INBOX, waker);
            let connect = Box::new(move || Box::new(engine.connector("agent_A")) as Connector);
            (EngineSource { connect, watch }, watched)
        };
        let ((podman, watched), (elsewhere, other_watched)) = (source(&engine), source(&other));
        let slots = StartSlots::new(2, 2, 2);
        let (start, calls) = bounded(8);
        let mut context = LoopContext {
            clock: clock.clone(),
            engines: Arc::new(Engines::from([
                ("podman".into(), podman),
                ("other".into(), elsewhere),
            ])),
            reports,
            slots: slots.clone(),
            calls: CallContext {
                folder: folder.path().to_owned(),
                boot: "boot".into(),
                copied: Arc::default(),
                create_timeout: None,
                images: None,
            },
            start_call: Arc::new(move |call| {
                start.try_send(call).unwrap();
                Ok(())
            }),
            retry_limit: Some(RETRY_LIMIT),
            restart_backoff: true,
            control: ControlHub::new(uplink_outbox().0, CONTROL_MESSAGE_MAX).unwrap(),
            probes: FakeProbes::settable(&clock).0,
        };
        change(&mut context);
        let (handle, mailbox) = mailbox();
        let random = fastrand::Rng::with_seed(42);
        let control_loop = WorkloadControlLoop::new(instance("a"), context, random, mailbox);
        let (steps, watch_commands) = (LoopStep::Idle, Vec::new());
        Self {
            control_loop,
            handle,
            target: Target::default(),
            status: Arc::default(),
            clock,
            engine,
            other,
            _other_watched: other_watched,
            calls,
            hold_calls: false,
            events,
            watched,
            slots,
            folder,
            steps,
            watch_commands,
            reply: None,
            restarts: 0,
        }
    }

    fn order(&self, config: &str) -> AddedWorkload {
        self.order_with(config, |_| {})
    }

    fn order_with(&self, config: &str, change: impl FnOnce(&mut Workload)) -> AddedWorkload {
        let mut workload = Workload::new("agent_A", "podman", config);
        change(&mut workload);
        AddedWorkload {
            instance: workload.instance_name("web"),
            workload: Arc::new(workload),
        }
    }

    /// A new loop with a container of an earlier agent in this state, which stays as it is. Returns
    /// its id.
    fn hold(&mut self, config: &str, state: ExecutionState) -> ContainerId {
        let id = self.engine.add(&instance(config), state);
        let context = self.control_loop.context.clone();
        let (handle, mailbox) = mailbox();
        let random = fastrand::Rng::with_seed(1);
        self.control_loop = WorkloadControlLoop::new(instance(config), context, random, mailbox);
        self.handle = handle;
        self.adopt(
            RunTarget::Found,
            vec![found("podman", config, &id, FoundPurpose::Replace)],
        );
        id
    }

    /// Sets the target.
    fn put(&mut self, run: RunTarget) {
        self.put_with(run, Vec::new());
    }

    /// Sets the target, which comes with containers of an earlier agent.
    fn put_with(&mut self, run: RunTarget, adopt: Vec<FoundContainer>) {
        self.target.number += 1;
        self.target.is_retry = self.target.run == run;
        self.target.run = run;
        self.handle.put(Target {
            adopt,
            ..self.target.clone()
        });
    }

    fn adopt(&mut self, run: RunTarget, adopt: Vec<FoundContainer>) {
        self.put_with(run, adopt);
        self.run();
    }

    /// Hands over orphaned containers; what must run stays the same.
    fn hand_over(&mut self, orphaned: Vec<FoundContainer>) {
        self.adopt(self.target.run.clone(), orphaned);
    }

    /// Whether there is something of the instance.
    fn has(&self, config: &str) -> bool {
        let instances = &self.control_loop.status.instances;
        instances.contains_key(&instance(config))
    }

    /// This must run.
    fn want(&mut self, order: AddedWorkload) {
        self.put(RunTarget::Instance(order));
        self.run();
    }

    fn want_config(&mut self, config: &str) {
        self.want_with(config, |_| {});
    }

    fn want_with(&mut self, config: &str, change: impl FnOnce(&mut Workload)) {
        self.want(self.order_with(config, change));
    }

    /// The container that is there is good for this.
    fn want_existing(&mut self, config: &str, change: impl FnOnce(&mut Workload)) {
        let order = self.order_with(config, change);
        let state = ExecutionState::plain(Phase::Running);
        self.control_loop.found = Some(FoundPurpose::Adopt(order.clone(), state));
        self.want(order);
    }

    /// Nothing must run any more.
    fn end(&mut self) {
        self.put(RunTarget::Nothing);
        self.run();
    }

    /// Lets the loop do all it can do now.
    fn run(&mut self) {
        for _ in 0..100 {
            self.steps = self.control_loop.step();
            self.take_watch_commands();
            if self.steps != LoopStep::Worked && !self.make_call() {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    /// Makes an engine call that was started; returns whether there was one.
    fn make_call(&mut self) -> bool {
        let call = if self.hold_calls {
            None
        } else {
            self.calls.try_recv().ok()
        };
        let is_one = call.is_some();
        call.into_iter().for_each(|call| call.run());
        is_one
    }

    /// Does what the state checker does.
    fn take_watch_commands(&mut self) {
        for command in self.watched.try_iter() {
            match command {
                WatchCommand::ListAll { .. } => panic!("no listing is wanted"),
                WatchCommand::Watch {
                    reply, restarts, ..
                } => {
                    self.watch_commands.push("Watch");
                    (self.reply, self.restarts) = (Some(reply), restarts);
                }
                WatchCommand::ListWatched { .. } => panic!("no sample is taken"),
                WatchCommand::WatchPrepared { .. } | WatchCommand::UnwatchPrepared { .. } => {}
                WatchCommand::Unwatch { .. } => self.watch_commands.push("Unwatch"),
            }
        }
    }

    /// Creates `config` and forgets how.
    fn create(&mut self, config: &str, change: impl FnOnce(&mut Workload)) -> ContainerId {
        let order = self.order_with(config, change);
        self.want(order);
        self.states();
        self.engine.take_calls();
        self.engine.only().0
    }

    fn always(&mut self, config: &str) -> ContainerId {
        self.create(config, |workload| {
            workload.restart_policy = RestartPolicy::Always
        })
    }

    /// Moves the time to the next thing that the loop wants to do, and lets it do that.
    fn until_due(&mut self) -> Duration {
        let wait = self
            .clock
            .until(self.control_loop.due().expect("the loop waits for a time"));
        self.clock.advance(wait);
        self.run();
        wait
    }

    /// The engine's view changed; the state checker tells it.
    fn observe(&mut self, state: ExecutionState) {
        self.take_watch_commands();
        self.reply.as_ref().expect("a container was watched")(state);
        self.run();
    }

    fn watch_commands(&mut self) -> Vec<&'static str> {
        self.take_watch_commands();
        std::mem::take(&mut self.watch_commands)
    }

    /// The states that were reported since the last call, with the configuration of the instance.
    fn states(&mut self) -> Vec<String> {
        let mut states = Vec::new();
        for event in self.events.try_iter() {
            let SchedulerEvent::Status { workload, status } = event else {
                panic!("unexpected {event:?}")
            };
            for report in status.changes_since(&self.status) {
                let configs = ["a", "b", "c", "d"];
                let config = configs
                    .into_iter()
                    .find(|config| instance(config) == report.instance);
                states.push(format!("{} {}", config.unwrap(), report.state));
            }
            if status.is_idle && !self.status.is_idle {
                states.push(format!("ended {workload}"));
            }
            self.status = status;
        }
        states
    }

    fn path(&self, config: &str) -> PathBuf {
        self.folder.path().join(instance(config).folder())
    }
}

fn instance(config: &str) -> InstanceName {
    InstanceName::new("web", config, "agent_A")
}

fn starting(config: &str) -> String {
    format!("{config} Pending(Starting): 'Triggered at runtime.'")
}

fn retry(config: &str, number: u32) -> String {
    format!("{config} Pending(Starting): 'Retry {number}: {FAILURE}'")
}

fn stopping(config: &str) -> String {
    format!("{config} Stopping(RequestedAtRuntime)")
}

fn delete_failed(config: &str) -> String {
    format!("{config} Stopping(DeleteFailed): '{FAILURE}'")
}

fn gone(config: &str) -> String {
    format!("{config} Removed")
}

fn file(mount_point: &str) -> File {
    File {
        mount_point: mount_point.to_owned(),
        content: FileContent::Data("x".to_owned()),
    }
}

// ------------------------------------------------------------------- create

// [utest->swdd~agent-workload-control-loop-executes-create~3]
#[test]
fn create_reports_starts_and_watches() {
    let mut rig = Rig::new();
    rig.want_with("a", |workload| workload.files.push(file("/etc/x")));
    assert_eq!(rig.states(), [starting("a")]);
    assert_eq!(rig.engine.take_calls(), ["create web"]);
    assert_eq!(rig.watch_commands(), ["Watch"]);
    let new = rig.engine.only().1.new.unwrap();
    assert_eq!(new.instance, instance("a"));
    assert_eq!(
        new.files,
        [(rig.path("a").join("files/etc/x"), "/etc/x".to_owned())]
    );
    // [utest->swdd~workload-control-loop-sends-workload-states~2]
    rig.observe(ExecutionState::plain(Phase::Running));
    assert_eq!(rig.states(), ["a Running(Ok)"]);
}

#[test]
fn create_with_unwritable_files_is_final_and_leaves_no_files() {
    let mut rig = Rig::new();
    rig.want_with("a", |workload| {
        workload.files = vec![file("/ok"), file("bad")]
    });
    let cause = "Failed to create workload file: 'invalid mount point 'bad': 'path 'bad' is relative, expected \
                 absolute path'''";
    assert_eq!(
        rig.states(),
        [
            starting("a"),
            format!("a Pending(StartingFailed): '{cause}")
        ]
    );
    assert!(rig.engine.take_calls().is_empty());
    assert!(!rig.path("a").join("files").exists());
    assert_eq!(rig.control_loop.due(), None);
}

// [utest->swdd~agent-workload-control-loop-update-broken-allowed~1]
#[test]
fn create_that_the_engine_can_never_do_is_final_until_an_update() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::Unsupported]);
    rig.want_with("a", |workload| workload.files.push(file("/x")));
    assert_eq!(
        rig.states(),
        [
            starting("a"),
            "a Pending(StartingFailed): 'it will never work'".to_owned()
        ]
    );
    assert!(!rig.path("a").join("files").exists());
    assert_eq!(rig.control_loop.due(), None);
    rig.want_config("b");
    assert_eq!(rig.states(), [stopping("a"), gone("a"), starting("b")]);
}

// [utest->swdd~agent-skips-unknown-runtime~1]
#[test]
fn unknown_runtime_fails_for_good_until_updated_or_deleted() {
    let mut rig = Rig::new();
    let order = rig.order_with("a", |workload| {
        workload.files.push(file("/x"));
        workload.runtime = "podmn".into();
    });
    rig.want(order);
    let info = "a Pending(StartingFailed): 'Unsupported Runtime 'podmn'; did you mean 'podman'?'";
    assert_eq!(rig.states(), [starting("a"), info.to_owned()]);
    assert_eq!(rig.control_loop.due(), None);
    assert!(!rig.path("a").exists(), "no files without a runtime");
    rig.want_config("b");
    assert_eq!(rig.states(), [stopping("a"), gone("a"), starting("b")]);
    rig.end();
    assert_eq!(
        rig.states(),
        [stopping("b"), gone("b"), "ended web".to_owned()]
    );
}

#[test]
fn long_create_shows_its_age_and_returns_its_slot() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::Fails]);
    let slots = rig.slots.clone();
    rig.want_config("a");
    rig.hold_calls = true;
    rig.until_due();
    assert_eq!(slots.free(), 1);
    let age = |seconds| {
        format!(
            "a Pending(Starting): 'Retry 1: {FAILURE}. The create has been running for {seconds} s.'"
        )
    };
    assert_eq!(rig.until_due() + rig.until_due(), START_SLOT_MAX * 2);
    assert_eq!(
        rig.states(),
        [starting("a"), retry("a", 1), age(10), age(20)]
    );
    assert_eq!(slots.free(), 2);
    rig.hold_calls = false;
    rig.run();
    assert_eq!(
        (rig.engine.containers().len(), rig.watch_commands()),
        (1, vec!["Watch"])
    );
}

#[test]
fn age_of_a_create_keeps_the_reason_of_the_last_failure() {
    let mut rig = Rig::new();
    rig.hold_calls = true;
    rig.want_config("a");
    rig.control_loop.start_info = format!("Retry 3: {}", "\u{fc}".repeat(ADDITIONAL_INFO_MAX));
    rig.states();
    rig.until_due();
    let state = rig.states().remove(0);
    assert!(
        state.starts_with("a Pending(Starting): 'Retry 3: \u{fc}"),
        "{state}"
    );
    assert!(
        state.ends_with("\u{fc}. The create has been running for 10 s.'"),
        "{state}"
    );
    assert!(state.len() <= ADDITIONAL_INFO_MAX + 30);
}

#[test]
fn create_timeout_ends_the_create_and_searches_its_container() {
    let limit = Duration::from_secs(5);
    let mut rig = Rig::with(|context| context.calls.create_timeout = Some(limit));
    rig.engine
        .inject(Call::Create, [Fault::Hangs(limit * 2), Fault::TimesOut]);
    rig.want_config("a");
    assert_eq!(
        rig.states(),
        [
            starting("a"),
            "a Pending(Starting): 'Retry 1: it took too long'".to_owned()
        ]
    );
    rig.until_due();
    rig.until_due();
    assert_eq!(
        rig.engine.take_calls(),
        [
            "create web",
            "find web",
            "find web",
            "create web",
            "find web",
            "delete web",
            "find web",
            "create web"
        ]
    );
    assert_eq!(
        rig.engine.containers().len(),
        1,
        "never two containers for one workload"
    );
}

/// Seed 149 of the simulation.
#[test]
fn late_container_of_a_call_is_removed_for_a_failed_instance() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::TimesOut]);
    rig.want_config("a");
    assert!(rig.engine.containers().is_empty());
    rig.engine
        .add(&instance("a"), ExecutionState::plain(Phase::Running));
    rig.want_with("a", |workload| workload.runtime = "nothing".into());
    assert!(rig.engine.containers().is_empty());
}

#[test]
fn workload_without_installed_engine_is_deleted_and_moved() {
    for moves in [false, true] {
        let mut rig = Rig::new();
        rig.engine.inject(Call::Create, [Fault::IsMissing]);
        rig.want_config("a");
        assert_eq!(rig.states(), [starting("a"), retry("a", 1)]);
        if moves {
            rig.want_with("b", |workload| workload.runtime = "other".into());
            assert_eq!(rig.states(), [stopping("a"), gone("a"), starting("b")]);
            assert_eq!(rig.other.only().1.instance, instance("b"));
        } else {
            rig.end();
            assert_eq!(
                rig.states(),
                [stopping("a"), gone("a"), "ended web".to_owned()]
            );
        }
    }
}

/// A container that was found.
fn found(runtime: &str, config: &str, id: &ContainerId, purpose: FoundPurpose) -> FoundContainer {
    FoundContainer {
        runtime: runtime.into(),
        instance: instance(config),
        id: id.clone(),
        purpose,
    }
}

/// An orphaned container, in an engine of another runtime.
fn orphaned(rig: &Rig, config: &str) -> Vec<FoundContainer> {
    let running = ExecutionState::plain(Phase::Running);
    let id = rig.other.add(&instance(config), running);
    vec![found("other", config, &id, FoundPurpose::Remove)]
}

#[test]
fn an_instance_with_a_second_container_is_removed_when_both_are() {
    for (last, tries) in [("end", 1), ("a", 0), ("b", 1)] {
        let mut rig = Rig::new();
        let elsewhere = rig.other.clone();
        rig.create("a", |_| {});
        elsewhere.inject(
            Call::Delete,
            vec![Fault::Fails; if last == "a" { 2 } else { 3 }],
        );
        rig.hand_over(orphaned(&rig, "a"));
        assert_eq!(rig.states(), [""; 0]);
        if last == "end" {
            rig.end();
        } else {
            rig.want_with(last, |workload| {
                workload.restart_policy = RestartPolicy::Always
            });
        }
        let first = rig.states();
        assert_eq!(first.contains(&gone("a")), last == "a", "{first:?}");
        assert!(
            !rig.engine.take_calls().contains(&"create web".to_owned()),
            "nothing is started beside the other"
        );
        for _ in 0..2 {
            rig.until_due();
        }
        assert_eq!(
            rig.states()
                .iter()
                .filter(|state| **state == gone("a"))
                .count(),
            tries,
            "{last}"
        );
        assert_eq!(rig.engine.containers().len(), usize::from(last != "end"));
        assert_eq!(rig.control_loop.status.is_idle, last == "end");
    }
}

#[test]
fn orphaned_containers_are_removed_and_shown_as_instances() {
    let mut rig = Rig::new();
    let elsewhere = rig.other.clone();
    rig.create("a", |_| {});
    elsewhere.inject(Call::Delete, [Fault::Fails]);
    std::fs::create_dir_all(rig.path("b")).unwrap();
    rig.hand_over(orphaned(&rig, "b"));
    assert!(rig.has("b"));
    assert_eq!(rig.states(), [stopping("b"), delete_failed("b")]);
    rig.until_due();
    assert_eq!(rig.states(), [gone("b")]);
    assert!(!rig.path("b").exists() && !rig.has("b"));
    // A loop that has nothing left to do but that ends with it.
    elsewhere.inject(Call::Delete, [Fault::Fails]);
    rig.adopt(RunTarget::Nothing, orphaned(&rig, "c"));
    assert_eq!(
        rig.states(),
        [stopping("c"), stopping("a"), gone("a"), delete_failed("c")]
    );
    rig.until_due();
    assert_eq!(rig.states(), [gone("c"), "ended web".to_owned()]);
}

/// Otherwise its end would not be reported when it is deleted, and others would wait for that
/// without end.
#[test]
fn returning_instance_outlives_its_old_container() {
    let mut rig = Rig::new();
    rig.create("b", |_| {});
    rig.other.inject(Call::Delete, vec![Fault::Fails; 2]);
    rig.hand_over([orphaned(&rig, "a"), orphaned(&rig, "b")].concat());
    rig.want_config("a");
    assert!(
        rig.other.containers().is_empty() && rig.has("a"),
        "{:?}",
        rig.states()
    );
}

#[test]
fn instance_desired_when_its_last_container_goes_has_ended() {
    let mut rig = Rig::new();
    rig.create("a", |_| {});
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    let order = rig.order("b");
    rig.adopt(RunTarget::Instance(order), orphaned(&rig, "b"));
    assert_eq!(
        rig.states(),
        [stopping("b"), stopping("a"), delete_failed("a"), gone("b")]
    );
    assert!(rig.other.containers().is_empty());
    rig.end();
    assert_eq!(
        rig.states(),
        [stopping("a"), gone("a"), "ended web".to_owned()]
    );
}

#[test]
fn creates_are_bounded_and_deletes_need_no_slot() {
    let mut rig = Rig::new();
    let taken = [
        rig.slots.try_take(SlotUse::Start),
        rig.slots.try_take(SlotUse::Start),
    ];
    rig.want_config("a");
    assert_eq!(rig.states(), [starting("a")]);
    assert!(rig.engine.take_calls().is_empty());
    drop(taken);
    rig.run();
    assert_eq!(rig.engine.take_calls(), ["create web"]);
    assert_eq!(rig.slots.free(), 2);

    let mut rig = Rig::new();
    let _taken = [
        rig.slots.try_take(SlotUse::Start),
        rig.slots.try_take(SlotUse::Start),
    ];
    rig.want_config("a");
    rig.end();
    assert_eq!(
        rig.states(),
        [
            starting("a"),
            stopping("a"),
            gone("a"),
            "ended web".to_owned()
        ]
    );
    assert!(rig.engine.take_calls().is_empty());
}

// -------------------------------------------------------------------- retry

// [utest->swdd~agent-workload-control-loop-executes-retry~1]
// [utest->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
#[test]
fn failed_create_is_retried_after_the_backoff_and_then_runs() {
    let mut rig = Rig::new();
    rig.engine
        .inject(Call::Create, [Fault::Fails, Fault::Fails]);
    rig.want_with("a", |workload| workload.files.push(file("/x")));
    assert_eq!(rig.states(), [starting("a"), retry("a", 1)]);
    assert!(!rig.path("a").join("files").exists());
    for number in 1..=2 {
        let wait = rig.until_due();
        assert!(wait <= backoff_max(number), "retry {number} after {wait:?}");
    }
    assert_eq!(
        rig.states(),
        [retry("a", 2)],
        "a retry is not announced again"
    );
    assert_eq!(
        rig.engine.take_calls(),
        [
            "create web",
            "find web",
            "create web",
            "find web",
            "create web"
        ]
    );
    assert!(rig.path("a").join("files/x").exists());
    assert_eq!(rig.control_loop.due(), None);
}

/// Lets everybody write to the existing folder `path`, or its owner alone.
fn set_open(path: &Path, is_open: bool) {
    let mode = if is_open { 0o777 } else { 0o700 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn workload_with_a_folder_of_others_is_retried() {
    for (what, has_file) in [("workload file", true), ("control interface", false)] {
        let mut rig = Rig::new();
        let folder = rig.path("a");
        std::fs::create_dir(&folder).unwrap();
        set_open(&folder, true);
        rig.want_with("a", |workload| match has_file {
            true => workload.files.push(file("/x")),
            false => allow(workload, "agents"),
        });
        rig.until_due();
        let states = rig.states();
        let cause = format!("others may write to '{}' (mode 0777)", folder.display());
        for (number, state) in states.iter().enumerate().skip(1) {
            let begin = format!("a Pending(Starting): 'Retry {number}: Failed to create {what}: '");
            assert!(
                state.starts_with(&begin) && state.contains(&cause),
                "{states:?}"
            );
        }
        assert_eq!(
            (states.len(), rig.engine.take_calls().len()),
            (3, 0),
            "{states:?}"
        );
        set_open(&folder, false);
        rig.until_due();
        assert_eq!(rig.engine.take_calls(), ["create web"]);
        assert_eq!(
            (folder.join("files/x").exists(), rig.mounted().is_none()),
            (has_file, has_file)
        );
    }
}

#[test]
fn a_control_interface_that_others_could_change_is_made_anew() {
    let mut rig = Rig::new();
    let folder = rig.control_folder("a");
    std::fs::create_dir_all(folder.join("left")).unwrap();
    set_open(&rig.path("a"), false);
    set_open(&folder, true);
    rig.want_with("a", |workload| allow(workload, "agents"));
    assert_eq!(rig.engine.take_calls(), ["create web"]);
    assert_eq!(
        rig.engine.only().1.new.unwrap().control_interface,
        Some(folder.clone())
    );
    assert!(folder.join("input").exists() && !folder.join("left").exists());
}

// [utest->swdd~agent-workload-control-loop-limits-retry-attempts~1]
// [utest->swdd~agent-workload-control-loop-retry-limit-set-execution-state~2]
#[test]
fn retries_end_at_the_limit_and_revive_without_reports() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, vec![Fault::Fails; 6]);
    rig.want_config("a");
    for _ in 0..RETRY_LIMIT {
        rig.until_due();
    }
    let last = format!("a Pending(StartingFailed): 'No more retries: {FAILURE}'");
    assert_eq!(
        rig.states(),
        [
            starting("a"),
            retry("a", 1),
            retry("a", 2),
            retry("a", 3),
            last
        ]
    );
    assert_eq!(rig.engine.take_calls().len(), 2 * 4);
    for _ in 0..2 {
        assert_eq!(rig.until_due(), REVIVAL_INTERVAL);
        assert!(rig.states().is_empty());
    }
    rig.watch_commands();
    assert_eq!(rig.until_due(), REVIVAL_INTERVAL);
    assert_eq!(
        rig.watch_commands(),
        ["Watch"],
        "the success reports normally"
    );
    assert_eq!(rig.engine.take_calls().len(), 2 * 2 + 1);
    assert_eq!(rig.control_loop.due(), None);
}

#[test]
fn without_limit_the_retries_never_end() {
    let mut rig = Rig::with(|context| context.retry_limit = None);
    rig.engine.inject(Call::Create, vec![Fault::Fails; 101]);
    rig.want_config("a");
    for _ in 0..100 {
        rig.until_due();
    }
    assert_eq!(rig.states().last().unwrap(), &retry("a", 101));
}

// [utest->swdd~agent-workload-control-loop-reset-retry-attempts-on-update~1]
// [utest->swdd~agent-workload-control-loop-update-create-failed-allows-retry~1]
#[test]
fn update_begins_the_retries_anew_also_after_the_limit() {
    for failures in [2, RETRY_LIMIT + 1] {
        let mut rig = Rig::new();
        rig.engine
            .inject(Call::Create, vec![Fault::Fails; failures as usize + 1]);
        rig.want_config("a");
        for _ in 1..failures {
            rig.until_due();
        }
        rig.states();
        rig.want_config("b");
        assert_eq!(
            rig.states(),
            [stopping("a"), gone("a"), starting("b"), retry("b", 1)]
        );
        rig.until_due();
        assert_eq!(rig.engine.only().1.instance, instance("b"));
    }
}

// [utest->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
#[test]
fn delete_and_update_end_the_waiting_for_a_retry() {
    for update in [true, false] {
        let mut rig = Rig::new();
        rig.engine.inject(Call::Create, [Fault::Fails]);
        rig.want_config("a");
        rig.states();
        if update {
            rig.want_with("b", |workload| workload.runtime = "podmn".into());
        } else {
            rig.end();
        }
        assert_eq!(rig.states()[..2], [stopping("a"), gone("a")]);
        assert_eq!(rig.control_loop.due(), None);
        assert!(rig.engine.containers().is_empty());
    }
}

// ------------------------------------------------------------------- delete

// [utest->swdd~agent-workload-control-loop-executes-delete~2]
// [utest->swdd~agent-workload-control-loop-executes-update-delete-only~1]
#[test]
fn delete_removes_container_and_folder_and_ends_the_loop() {
    let mut rig = Rig::new();
    rig.create("a", |workload| workload.files.push(file("/x")));
    rig.watch_commands();
    rig.end();
    assert_eq!(
        rig.states(),
        [stopping("a"), gone("a"), "ended web".to_owned()]
    );
    assert_eq!(rig.watch_commands(), ["Unwatch"]);
    assert_eq!(rig.engine.take_calls(), ["delete web"]);
    assert!(!rig.path("a").exists());
    drop(std::mem::replace(&mut rig.handle, mailbox().0));
    assert_eq!(rig.control_loop.step(), LoopStep::Ended);
}

// [utest->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
#[test]
fn failed_delete_keeps_the_container_and_is_retried() {
    let mut rig = Rig::new();
    rig.create("a", |_| {});
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::Fails, Fault::Fails]);
    rig.end();
    assert_eq!(rig.states(), [stopping("a"), delete_failed("a")]);
    rig.observe(ExecutionState::plain(Phase::Running));
    assert!(rig.states().is_empty(), "the failed delete stays visible");
    assert!(rig.until_due() <= backoff_max(1));
    assert_eq!(rig.engine.take_calls(), ["delete web", "delete web"]);
    rig.end();
    assert_eq!(
        rig.states(),
        [stopping("a"), delete_failed("a")],
        "a new command tries at once"
    );
    rig.until_due();
    assert_eq!(rig.states(), [gone("a"), "ended web".to_owned()]);
    assert!(rig.engine.containers().is_empty());
}

// [utest->swdd~agent-workload-control-loop-delete-broken-allowed~1]
#[test]
fn delete_of_what_was_never_created_works() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::IsMissing]);
    rig.engine.inject(Call::Find, [Fault::Fails]);
    rig.want_config("a");
    rig.states();
    rig.end();
    assert_eq!(
        rig.states(),
        [stopping("a"), gone("a"), "ended web".to_owned()]
    );
}

#[test]
fn leftover_of_a_failed_start_is_removed_later_if_not_at_once() {
    use Fault::{LeavesHalfDone, TimesOut};
    let cases = [
        (Call::Create, LeavesHalfDone, Call::Find),
        (Call::Create, LeavesHalfDone, Call::Delete),
        (Call::Create, TimesOut, Call::Find),
        (Call::Create, TimesOut, Call::Delete),
        (Call::Start, LeavesHalfDone, Call::Delete),
    ];
    for (call, fault, hindered) in cases {
        let mut rig = Rig::new();
        rig.engine.inject(call, [fault.clone()]);
        rig.engine.inject(hindered, [Fault::Fails, Fault::Fails]);
        rig.want_with("a", |workload| {
            workload.restart_policy = RestartPolicy::Always
        });
        if call == Call::Start {
            rig.clock.advance(RESTART_SPACING);
            rig.observe(ExecutionState::plain(Phase::Succeeded));
        }
        assert_eq!(rig.engine.containers().len(), 1, "{call:?} {fault:?}");
        rig.states();
        rig.end();
        assert_eq!(
            rig.states(),
            [stopping("a"), delete_failed("a")],
            "{hindered:?} {call:?} {fault:?}"
        );
        rig.until_due();
        assert_eq!(
            rig.states(),
            [gone("a"), "ended web".to_owned()],
            "{hindered:?} {call:?} {fault:?}"
        );
        assert!(rig.engine.containers().is_empty());
    }
}

// [utest->swdd~podman-create-workload-deletes-failed-container~1]
#[test]
fn a_failed_create_removes_exactly_its_containers_at_once() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, [Fault::LeavesHalfDone]);
    let other = rig
        .engine
        .add(&instance("b"), ExecutionState::plain(Phase::Running));
    rig.want_config("a");
    assert_eq!(
        rig.engine.take_calls(),
        ["create web", "find web", "delete web"]
    );
    assert_eq!(rig.engine.only().0, other);
}

#[test]
fn a_newer_target_during_a_create_cancels_it_and_is_followed() {
    for (update, last) in [(None, "ended web".to_owned()), (Some("b"), starting("b"))] {
        let mut rig = Rig::new();
        let (handle, mailbox) = mailbox();
        rig.control_loop.mailbox = mailbox;
        let put = |handle: &MailboxHandle, number, run| {
            handle.put(Target {
                number,
                run,
                ..Target::default()
            });
        };
        let newer = match update {
            Some(config) => RunTarget::Instance(rig.order(config)),
            None => RunTarget::Nothing,
        };
        put(&handle, 1, RunTarget::Instance(rig.order("a")));
        rig.engine.during_next_create(move || {
            put(&handle, 2, newer);
            std::mem::forget(handle); // The agent keeps its end.
        });
        rig.run();
        assert_eq!(
            rig.states(),
            [starting("a"), stopping("a"), gone("a"), last]
        );
        assert_eq!(rig.engine.take_calls()[..2], ["create web", "find web"]);
        let left: Vec<InstanceName> = rig
            .engine
            .containers()
            .into_values()
            .map(|found| found.instance)
            .collect();
        assert_eq!(left, update.into_iter().map(instance).collect::<Vec<_>>());
    }
}

// ------------------------------------------------------------------- update

// [utest->swdd~agent-workload-control-loop-executes-update~2]
#[test]
fn update_removes_the_old_then_starts_the_new() {
    for (config, folder_stays) in [("b", false), ("a", true)] {
        let mut rig = Rig::new();
        rig.create("a", |workload| workload.files.push(file("/x")));
        rig.want_config(config);
        assert_eq!(rig.states(), [stopping("a"), gone("a"), starting(config)]);
        assert_eq!(rig.engine.take_calls(), ["delete web", "create web"]);
        assert!(!rig.path("a").join("files").exists());
        assert_eq!(rig.path("a").exists(), folder_stays);
        assert_eq!(rig.engine.only().1.instance, instance(config));
    }
}

// [utest->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
#[test]
fn update_whose_delete_fails_keeps_its_workload_and_retries() {
    let mut rig = Rig::new();
    rig.create("a", |_| {});
    rig.engine
        .inject(Call::Delete, [Fault::Fails, Fault::TimesOut]);
    rig.want_config("b");
    assert_eq!(rig.states(), [stopping("a"), delete_failed("a")]);
    rig.until_due();
    assert_eq!(
        rig.states(),
        ["a Stopping(DeleteFailed): 'it took too long'"]
    );
    rig.until_due();
    assert_eq!(rig.states(), [gone("a"), starting("b")]);
    assert_eq!(rig.engine.only().1.instance, instance("b"));
}

#[test]
fn instance_replaced_behind_a_failed_delete_never_appears() {
    for (next, last) in [
        (None, "ended web".to_owned()),
        (Some("b"), starting("b")),
        (Some("c"), starting("c")),
    ] {
        let mut rig = Rig::new();
        rig.create("a", |_| {});
        rig.engine.inject(Call::Delete, [Fault::Fails]);
        rig.want_config("b");
        rig.states();
        match next {
            Some(config) => rig.want_config(config),
            None => rig.end(),
        }
        assert_eq!(rig.states(), [stopping("a"), gone("a"), last], "{next:?}");
    }
}

/// A rollback of an update that was never switched.
#[test]
fn target_that_is_set_back_early_touches_no_container() {
    let mut rig = Rig::new();
    let id = rig.create("a", |_| {});
    rig.states();
    let (old, new) = (rig.order("a"), rig.order("b"));
    rig.put(RunTarget::Instance(new));
    rig.put(RunTarget::Instance(old));
    rig.run();
    assert_eq!(rig.engine.take_calls(), [""; 0]);
    assert_eq!(rig.states(), [""; 0]);
    assert_eq!(rig.engine.only().0, id);
}

#[test]
fn a_cancelled_start_that_is_wanted_again_is_started_again() {
    let mut rig = Rig::new();
    rig.hold_calls = true;
    rig.want_config("a");
    let (old, new) = (rig.order("a"), rig.order("b"));
    rig.put(RunTarget::Instance(new));
    rig.put(RunTarget::Instance(old));
    rig.hold_calls = false;
    rig.run();
    assert_eq!(rig.engine.only().1.instance, instance("a"));
    assert_eq!(rig.states(), [starting("a")]);
}

#[test]
fn update_to_another_runtime_deletes_with_the_old_engine() {
    let mut rig = Rig::new();
    rig.create("a", |_| {});
    rig.want_with("b", |workload| workload.runtime = "other".into());
    assert_eq!(rig.engine.take_calls(), ["delete web"]);
    assert_eq!(rig.other.take_calls(), ["create web"]);
}

// ------------------------------------------------------------------ restart

// [utest->swdd~agent-supports-restart-policies~1]
// [utest->swdd~workload-control-loop-restarts-workload-with-enabled-restart-policy~2]
#[test]
fn policies_restart_what_they_say_and_nothing_else() {
    use RestartPolicy::{Always, Never, OnFailure};
    for (phase, restarting) in [
        (Phase::FailedExecFailed, vec![OnFailure, Always]),
        (Phase::Succeeded, vec![Always]),
        (Phase::FailedLost, vec![]),
        (Phase::FailedUnknown, vec![]),
        (Phase::Running, vec![]),
        (Phase::PendingStarting, vec![]),
        (Phase::Stopping, vec![]),
    ] {
        for policy in [Never, OnFailure, Always] {
            let mut rig = Rig::new();
            rig.create("a", |workload| workload.restart_policy = policy);
            rig.clock.advance(RESTART_SPACING);
            rig.observe(ExecutionState::plain(phase));
            let restarted = !rig.engine.take_calls().is_empty();
            assert_eq!(restarted, restarting.contains(&policy), "{policy} {phase}");
        }
    }
}

// [utest->swdd~workload-control-loop-handles-workload-restarts~2]
#[test]
fn a_workload_that_succeeded_is_started_in_its_own_container() {
    let mut rig = Rig::new();
    let id = rig.create("a", |workload| {
        workload.restart_policy = RestartPolicy::Always;
        workload.files.push(file("/x"));
    });
    rig.watch_commands();
    std::fs::remove_file(rig.path("a").join("files/x")).unwrap();
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(0));
    assert_eq!(rig.states(), ["a Succeeded(Ok)".to_owned(), starting("a")]);
    assert_eq!(rig.engine.take_calls(), ["start web"]);
    assert_eq!(rig.watch_commands(), ["Unwatch", "Watch"]);
    assert_eq!(rig.engine.only().0, id);
    assert!(
        rig.path("a").join("files/x").exists(),
        "files are written again"
    );
}

#[test]
fn succeeded_pods_stay_known_when_their_next_create_fails() {
    let mut rig = Rig::new();
    rig.engine.forbid_start_again();
    let id = rig.always("a");
    rig.clock.advance(RESTART_SPACING);
    rig.engine.inject(Call::Delete, [Fault::Fails]);
    rig.engine.inject(Call::Create, [Fault::Fails]);
    rig.observe(ExecutionState::exited(0));
    assert_eq!(
        rig.states(),
        [
            "a Succeeded(Ok)".to_owned(),
            stopping("a"),
            delete_failed("a")
        ]
    );
    assert_eq!(
        rig.engine.only().0,
        id,
        "nothing is created before the old ones are gone"
    );
    rig.until_due();
    assert_eq!(rig.states(), [gone("a"), starting("a"), retry("a", 1)]);
    rig.until_due();
    assert_eq!(
        rig.engine.take_calls(),
        [
            "delete web",
            "delete web",
            "create web",
            "find web",
            "create web"
        ]
    );
    assert_ne!(rig.engine.only().0, id);
}

// [utest->swdd~workload-control-loop-restarts-workloads-using-update~1]
#[test]
fn a_workload_that_failed_gets_a_new_container() {
    let mut rig = Rig::new();
    let id = rig.always("a");
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(3));
    let failed = "a Failed(ExecFailed): 'Exit code: '3''".to_owned();
    assert_eq!(
        rig.states(),
        [failed, stopping("a"), gone("a"), starting("a")]
    );
    assert_eq!(rig.engine.take_calls(), ["delete web", "create web"]);
    assert_ne!(rig.engine.only().0, id);
}

#[test]
fn failed_restart_is_retried_in_a_new_container() {
    let cases: [(_, &[_]); 2] = [
        (Fault::Fails, &["delete web", "create web"]),
        (Fault::IsMissing, &["start web"]),
    ];
    for (fault, others) in cases {
        let mut rig = Rig::new();
        let id = rig.always("a");
        rig.engine.inject(Call::Start, [fault]);
        rig.clock.advance(RESTART_SPACING);
        rig.observe(ExecutionState::exited(0));
        assert_eq!(rig.states().last().unwrap(), &retry("a", 1));
        rig.until_due();
        assert_eq!(rig.engine.take_calls(), [&["start web"], others].concat());
        assert_eq!(rig.engine.only().0 == id, others.len() == 1);
    }
}

#[test]
fn ended_container_that_others_removed_is_created_anew_at_once() {
    let mut rig = Rig::new();
    let id = rig.always("a");
    rig.engine.remove(&id);
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(0));
    assert_eq!(rig.states(), ["a Succeeded(Ok)".to_owned(), starting("a")]);
    assert_eq!(rig.engine.take_calls(), ["start web", "create web"]);
    assert_ne!(rig.engine.only().0, id);
}

// [utest->swdd~agent-keeps-observed-ends~1]
#[test]
fn only_an_end_that_nothing_follows_is_kept() {
    for (policy, code, is_kept) in [
        (RestartPolicy::Never, 0, true),
        (RestartPolicy::Never, 3, true),
        (RestartPolicy::OnFailure, 0, true),
        (RestartPolicy::OnFailure, 3, false),
        (RestartPolicy::Always, 0, false),
    ] {
        let mut rig = Rig::new();
        rig.create("a", |workload| workload.restart_policy = policy);
        rig.observe(ExecutionState::plain(Phase::Running));
        let record = |rig: &Rig| {
            rig.control_loop
                .connector()
                .unwrap()
                .end_record(&instance("a"))
        };
        assert_eq!(record(&rig), None, "nothing has ended");
        rig.observe(ExecutionState::exited(code));
        assert_eq!(record(&rig).is_some(), is_kept, "{policy} {code}");
        rig.end();
        assert_eq!(record(&rig), None, "{policy} {code}");
    }
}

#[test]
fn ended_container_that_cannot_start_again_is_removed() {
    let mut rig = Rig::new();
    rig.always("a");
    rig.engine.inject(Call::Start, [Fault::Unsupported]);
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(0));
    assert_eq!(
        rig.states().last().unwrap(),
        "a Pending(StartingFailed): 'it will never work'"
    );
    rig.want_config("b");
    assert_eq!(
        rig.engine.take_calls(),
        ["start web", "delete web", "create web"]
    );
}

#[test]
fn an_update_forgets_the_crashes_of_the_old_workload() {
    let mut rig = Rig::new();
    crashes_in_a_row(&mut rig);
    rig.want_with("b", |workload| {
        workload.restart_policy = RestartPolicy::Always
    });
    rig.clock.advance(RESTART_SPACING);
    rig.states();
    rig.observe(ExecutionState::exited(1));
    assert_eq!(
        rig.states().last().unwrap(),
        &starting("b"),
        "the first restart of the new one is immediate"
    );
}

#[test]
fn starts_of_a_short_workload_are_a_second_apart() {
    let mut rig = Rig::new();
    rig.always("a");
    for _ in 0..5 {
        rig.observe(ExecutionState::exited(0));
        assert_eq!(rig.until_due(), RESTART_SPACING);
    }
    assert_eq!(rig.engine.take_calls(), ["start web"; 5]);
}

#[test]
fn without_restart_backoff_every_restart_is_immediate() {
    let mut rig = Rig::with(|context| context.restart_backoff = false);
    rig.always("a");
    for _ in 0..5 {
        rig.observe(ExecutionState::exited(1));
    }
    assert_eq!(rig.engine.take_calls().len(), 10);
}

#[test]
fn starts_after_the_first_are_counted_until_an_update() {
    let mut rig = Rig::with(|context| context.restart_backoff = false);
    let counted = |rig: &mut Rig| {
        rig.watch_commands();
        rig.restarts
    };
    rig.always("a");
    assert_eq!(counted(&mut rig), 0);
    for count in 1..4 {
        rig.observe(ExecutionState::exited(1));
        assert_eq!(counted(&mut rig), count);
    }
    rig.engine.inject(Call::Create, [Fault::Fails]);
    rig.want_with("b", |workload| {
        workload.restart_policy = RestartPolicy::Always
    });
    rig.until_due();
    assert_eq!(counted(&mut rig), 0, "a failed create is no start");
    rig.observe(ExecutionState::exited(1));
    assert_eq!(counted(&mut rig), 1);
    rig.hold("a", ExecutionState::plain(Phase::Running));
    rig.want_existing("a", |workload| {
        workload.restart_policy = RestartPolicy::Always
    });
    assert_eq!(counted(&mut rig), 0, "taken over");
    rig.observe(ExecutionState::exited(1));
    assert_eq!(counted(&mut rig), 1);
}

#[test]
fn commands_and_revivals_end_the_wait_for_a_restart() {
    for case in ["running", "delete", "update"] {
        let mut rig = Rig::new();
        rig.always("a");
        rig.observe(ExecutionState::exited(1));
        assert!(rig.control_loop.due().is_some());
        match case {
            "running" => rig.observe(ExecutionState::plain(Phase::Running)),
            "delete" => rig.end(),
            _ => {
                rig.want_config("b");
            }
        }
        assert_eq!(rig.control_loop.due(), None, "{case}");
    }
}

/// A workload that has crashed so often that its next restart is delayed.
fn crashes_in_a_row(rig: &mut Rig) {
    rig.always("a");
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(1));
    for restart in 1..=6 {
        assert_eq!(
            rig.states().last().unwrap(),
            &starting("a"),
            "restart {restart}"
        );
        rig.observe(ExecutionState::exited(1));
        let wait = rig.clock.until(rig.control_loop.due().expect("it waits"));
        let bound = backoff_max(restart);
        assert!(
            wait <= bound.max(RESTART_SPACING) && wait >= bound / 2,
            "restart {restart}: {wait:?}"
        );
        if restart < 6 {
            rig.until_due();
        }
    }
}

#[test]
fn an_end_that_was_told_twice_counted_as_two_crashes() {
    let mut rig = Rig::new();
    crashes_in_a_row(&mut rig);
    let due = rig.control_loop.due();
    rig.engine.take_calls();
    rig.states();
    // The engine could not be asked for a while, or another container of the same pod ended, too.
    for state in [
        ExecutionState::plain(Phase::FailedUnknown),
        ExecutionState::exited(1),
        ExecutionState::exited(2),
    ] {
        rig.observe(state);
        assert_eq!(rig.control_loop.due(), due);
    }
    assert_eq!(rig.states().len(), 3, "they are reported all the same");
    rig.until_due();
    assert_eq!(rig.engine.take_calls(), ["delete web", "create web"]);
}

#[test]
fn running_time_after_a_revival_does_not_end_the_backoff() {
    let mut rig = Rig::new();
    crashes_in_a_row(&mut rig);
    rig.observe(ExecutionState::plain(Phase::Running));
    assert_eq!(rig.control_loop.due(), None);
    rig.clock.advance(RESTART_RESET);
    rig.observe(ExecutionState::exited(1));
    assert_eq!(
        rig.states().last().unwrap(),
        &starting("a"),
        "immediate again"
    );
}

// [utest->swdd~workload-control-loop-receives-workload-states~1]
// [utest->swdd~workload-control-loop-checks-workload-state-validity~1]
#[test]
fn states_of_an_earlier_start_are_ignored() {
    let mut rig = Rig::new();
    rig.always("a");
    rig.take_watch_commands();
    let old = rig.reply.take().unwrap();
    old(ExecutionState::exited(1));
    rig.clock.advance(RESTART_SPACING);
    rig.run();
    rig.states();
    rig.engine.take_calls();
    old(ExecutionState::exited(1));
    rig.run();
    assert!(rig.states().is_empty());
    assert!(rig.engine.take_calls().is_empty());
    rig.end();
    rig.states();
    rig.observe(ExecutionState::plain(Phase::FailedLost));
    assert!(rig.states().is_empty(), "nothing is watched after a delete");
}

// ----------------------------------------------------------- found at start

// [utest->swdd~agent-workload-control-loop-executes-resume~1]
#[test]
fn resume_watches_reports_nothing_and_restarts_with_everything() {
    let mut rig = Rig::new();
    rig.hold("a", ExecutionState::plain(Phase::Running));
    rig.want_existing("a", |workload| {
        workload.restart_policy = RestartPolicy::Always;
        allow(workload, "agents");
    });
    assert!(rig.states().is_empty());
    assert!(rig.engine.take_calls().is_empty());
    assert_eq!(rig.watch_commands(), ["Watch"]);
    rig.observe(ExecutionState::exited(1));
    let new = rig.engine.only().1.new.unwrap();
    assert_eq!(new.control_interface, Some(rig.control_folder("a")));
    assert!(rig.control_folder("a").join("input").exists());
}

// ------------------------------------------------------- control interface

/// Simulated seeds 3011153 and 3013823: a listing showed a container as running that was only
/// created. It was taken over and never started.
#[test]
fn adopted_container_that_was_never_started_is_replaced() {
    for policy in RestartPolicy::ALL {
        let mut rig = Rig::new();
        rig.hold("a", ExecutionState::plain(Phase::Running));
        rig.want_existing("a", |workload| workload.restart_policy = *policy);
        let created = ExecutionState::with_info(Phase::PendingStarting, "created");
        rig.observe(created.clone());
        assert!(
            rig.engine.take_calls().is_empty(),
            "its engine may be restarting it"
        );
        rig.observe(ExecutionState::plain(Phase::Running));
        assert_eq!(rig.control_loop.due(), None);
        rig.observe(created.clone());
        rig.observe(ExecutionState::plain(Phase::FailedUnknown));
        rig.states();
        assert_eq!(rig.until_due(), CREATED_MAX);
        assert_eq!(
            rig.engine.take_calls(),
            ["delete web", "create web"],
            "{policy}"
        );
        assert_eq!(rig.states(), [stopping("a"), gone("a"), starting("a")]);
        rig.observe(created);
        assert_eq!(
            rig.control_loop.due(),
            None,
            "its create has ended well, so it has been started"
        );
    }
}

#[test]
fn end_of_an_only_created_container_is_a_usual_end() {
    let mut rig = Rig::new();
    rig.hold("a", ExecutionState::plain(Phase::Running));
    rig.want_existing("a", |workload| {
        workload.restart_policy = RestartPolicy::Never
    });
    rig.observe(ExecutionState::with_info(Phase::PendingStarting, "created"));
    rig.observe(ExecutionState::exited(0));
    assert_eq!(rig.control_loop.due(), None);
    assert!(rig.engine.take_calls().is_empty());
}

fn allow(workload: &mut Workload, mask: &str) {
    let rule = AccessRule::State {
        operation: Operation::Read,
        filter_masks: vec![mask.to_owned()],
    };
    workload.control_interface_access.allow_rules.push(rule);
}

impl Rig {
    fn control_folder(&self, config: &str) -> PathBuf {
        self.folder
            .path()
            .join(instance(config).folder())
            .join("control_interface")
    }

    fn input_inode(&self, config: &str) -> Option<u64> {
        let metadata = std::fs::metadata(self.control_folder(config).join("input")).ok()?;
        Some(std::os::unix::fs::MetadataExt::ino(&metadata))
    }

    /// Keeps the inode of the pipe of `a` from being used again.
    fn open_input(&self) -> std::fs::File {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(self.control_folder("a").join("input"))
            .unwrap()
    }

    fn mounted(&self) -> Option<PathBuf> {
        self.engine.only().1.new.unwrap().control_interface
    }
}

// [utest->swdd~api-workload-needs-control-interface~1]
#[test]
fn only_a_workload_with_allow_rules_gets_a_control_interface() {
    let mut rig = Rig::new();
    rig.create("a", |workload| {
        let rule = AccessRule::Log {
            workload_names: vec!["*".to_owned()],
        };
        workload.control_interface_access.deny_rules.push(rule);
    });
    assert_eq!((rig.mounted(), rig.input_inode("a")), (None, None));

    let mut rig = Rig::new();
    rig.create("a", |workload| allow(workload, "agents"));
    assert_eq!(rig.mounted(), Some(rig.control_folder("a")));
    assert!(rig.input_inode("a").is_some());
}

#[test]
fn update_keeps_the_control_interface_with_same_path_and_rules() {
    let mut rig = Rig::new();
    rig.create("a", |workload| allow(workload, "agents"));
    let first = rig.input_inode("a").unwrap();
    let open = rig.open_input();

    rig.want_with("a", |workload| {
        allow(workload, "agents");
        workload.tags.insert("k".to_owned(), "v".to_owned());
    });
    assert_eq!(
        (rig.input_inode("a"), rig.mounted()),
        (Some(first), Some(rig.control_folder("a")))
    );

    rig.want_with("a", |workload| allow(workload, "desiredState"));
    let second = rig.input_inode("a").unwrap();
    assert_ne!(second, first, "a new one for new rules");
    drop(open);

    rig.want_with("b", |workload| allow(workload, "desiredState"));
    assert!(
        rig.input_inode("b").is_some() && !rig.folder.path().join(instance("a").folder()).exists()
    );

    let no_rules = rig.order("b");
    rig.want(no_rules);
    assert_eq!((rig.input_inode("b"), rig.mounted()), (None, None));
    assert!(!rig.control_folder("b").exists());
}

#[test]
fn control_interface_goes_with_its_workload_only() {
    let mut rig = Rig::new();
    rig.create("a", |workload| {
        workload.restart_policy = RestartPolicy::Always;
        allow(workload, "agents");
    });
    let inode = rig.input_inode("a");
    rig.clock.advance(RESTART_SPACING);
    rig.observe(ExecutionState::exited(1));
    assert!(rig.states().contains(&starting("a")), "it is started again");
    assert_eq!(
        (rig.input_inode("a"), rig.mounted()),
        (inode, Some(rig.control_folder("a")))
    );
    std::fs::create_dir_all(rig.control_folder("a").join("of/the/container")).unwrap();
    rig.end();
    assert!(!rig.path("a").exists());
}

// [utest->swdd~agent-makes-removed-files-anew~1]
#[test]
fn control_interface_that_others_removed_is_made_anew() {
    let remove_all = |rig: &Rig| std::fs::remove_dir_all(rig.path("a")).unwrap();
    let remove_pipe =
        |rig: &Rig| std::fs::remove_file(rig.control_folder("a").join("input")).unwrap();
    for remove in [remove_all as fn(&Rig), remove_pipe] {
        let mut rig = Rig::new();
        rig.create("a", |workload| {
            workload.restart_policy = RestartPolicy::Always;
            allow(workload, "agents");
        });
        remove(&rig);
        rig.clock.advance(RESTART_SPACING);
        rig.observe(ExecutionState::exited(1));
        assert!(rig.input_inode("a").is_some() && rig.control_folder("a").join("output").exists());
        assert_eq!(rig.mounted(), Some(rig.control_folder("a")));
    }
}

#[test]
fn ending_agent_leaves_control_interfaces_of_workloads() {
    let mut rig = Rig::new();
    rig.create("a", |workload| allow(workload, "agents"));
    let before = rig.input_inode("a");
    let _open = rig.open_input();
    rig.want_existing("a", |workload| allow(workload, "agents"));
    rig.hold("a", ExecutionState::plain(Phase::Running));
    assert_eq!(rig.input_inode("a"), before, "who has it open goes on");
    assert!(rig.control_folder("a").join("output").exists());
}

#[test]
fn workload_starts_without_a_control_interface_that_fails() {
    let mut rig = Rig::new();
    let folder = rig.control_folder("a");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("output"), "not a FIFO").unwrap();
    rig.create("a", |workload| allow(workload, "agents"));
    assert_eq!(rig.mounted(), None);
}

#[test]
fn long_engine_messages_are_cut_between_characters() {
    let mut rig = Rig::new();
    let text = "ä".repeat(ADDITIONAL_INFO_MAX);
    let state = ExecutionState::with_info(Phase::Running, text);
    rig.control_loop.report_of(instance("a"), state);
    let state = &rig.control_loop.status.instances[&instance("a")];
    assert_eq!(state.additional_info.len(), ADDITIONAL_INFO_MAX);
}

#[test]
fn the_thread_ends_when_the_agent_drops_its_end() {
    let rig = Rig::new();
    drop(rig.handle);
    let control_loop = Box::new(rig.control_loop);
    let thread = ankaios_platform::threads::spawn(
        "wl:web",
        ankaios_runtime::limits::STACK_WORKLOAD,
        move || Box::new(control_loop).run(),
    )
    .unwrap();
    assert!(ankaios_platform::threads::join_all([thread], Duration::from_secs(180)).is_empty());
}

#[test]
fn failed_removal_is_logged_as_an_update_or_a_stop() {
    for (is_replaced, verb) in [(false, "stop"), (true, "update")] {
        let mut rig = Rig::new();
        rig.create("a", |_| {});
        rig.engine.inject(Call::Delete, [Fault::Fails]);
        let lines = lines_of(|| {
            if is_replaced {
                rig.want_config("b");
            } else {
                rig.end();
            }
        });
        let expected = format!("Could not {verb} workload 'web'");
        assert!(
            lines.iter().any(|line| line.starts_with(&expected)),
            "{lines:?}"
        );
    }
}

/// A listing may be older than the start of the container.
#[test]
fn container_of_the_loop_is_not_removed_as_an_orphan() {
    let mut rig = Rig::new();
    rig.create("a", |_| {});
    let (id, _) = rig.engine.only();
    rig.hand_over(vec![found("podman", "a", &id, FoundPurpose::Remove)]);
    assert_eq!(rig.states(), [""; 0]);
    assert_eq!(rig.engine.containers().len(), 1);
    // The same id in another engine is another container.
    let running = ExecutionState::plain(Phase::Running);
    let other = rig.other.add(&instance("b"), running);
    rig.hand_over(vec![found("other", "b", &other, FoundPurpose::Remove)]);
    assert!(rig.other.containers().is_empty());
    assert_eq!(rig.engine.containers().len(), 1);
}
