//! The checker on one thread: a manual clock, listings and ends of processes given by the test.

use super::*;
use ankaios_fakes::log_lines::lines_of;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_runtime::ListedPods;
use crossbeam_channel::bounded;
use std::sync::{Arc, Mutex};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Notes what the checker asks for.
#[derive(Default)]
struct Fake {
    listings: usize,
    watched: Vec<(u64, u32)>,
    /// Processes whose end cannot be noticed.
    unnoticed: Vec<u32>,
    /// Processes that are not there although they are listed.
    gone: Vec<u32>,
}

impl SystemEnv for Fake {
    type Process = ();

    fn start_listing(&mut self) {
        self.listings += 1;
    }

    fn watch_exit(&mut self, key: u64, process: &MainProcess) -> Result<(), NotWatched> {
        if self.unnoticed.contains(&process.pid) {
            return Err(NotWatched::Unable);
        }
        if self.gone.contains(&process.pid) {
            return Err(NotWatched::Gone);
        }
        self.watched.push((key, process.pid));
        Ok(())
    }
}

/// A checker and what drives it.
struct Bench {
    checker: StateChecker<Fake, ManualClock>,
    clock: ManualClock,
    reports: Arc<Mutex<Vec<String>>>,
}

fn instance(name: &str) -> InstanceName {
    InstanceName::with_id(name, "1", "agent_A")
}

fn container(name: &str, state: &ExecutionState, pid: u32) -> ListedContainer {
    let id = ContainerId(name.into());
    ListedContainer {
        instance: instance(name),
        state: state.clone(),
        processes: (pid > 0)
            .then(|| MainProcess {
                container: id.clone(),
                pid,
            })
            .into_iter()
            .collect(),
        id,
        ended_at: None,
        in_pod: false,
        pods: None,
    }
}

fn running(name: &str, pid: u32) -> ListedContainer {
    container(name, &ExecutionState::plain(Phase::Running), pid)
}

fn exited(name: &str, code: i64) -> ListedContainer {
    container(name, &ExecutionState::exited(code), 0)
}

/// The workload 'pod', with these containers: the exit code of each, or none while it runs.
fn pod(containers: &[(&str, Option<i64>)]) -> ListedContainer {
    let mut listed = exited("pod", 0);
    let mut pods = ListedPods::default();
    for (number, (name, code)) in (1..).zip(containers) {
        let id = ContainerId((*name).into());
        pods.containers.push(id.clone());
        match code {
            None => listed.processes.push(MainProcess {
                container: id,
                pid: number,
            }),
            Some(0) => {}
            Some(code) => {
                listed.state = ExecutionState::exited(*code);
                pods.failed = Some(id);
            }
        }
    }
    if pods.failed.is_none() && !listed.processes.is_empty() {
        listed.state = ExecutionState::plain(Phase::Running);
    }
    listed.pods = Some(pods);
    listed
}

fn settings() -> CheckerSettings {
    let unknown_info = "Error getting state from Podman.";
    CheckerSettings {
        runtime: "podman",
        unknown_info,
        repair_interval: REPAIR_INTERVAL,
    }
}

fn refusal() -> RuntimeError {
    RuntimeError::Failed("no".into())
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new();
        let checker = StateChecker::new(Fake::default(), clock.clone(), settings());
        Self {
            checker,
            clock,
            reports: Arc::default(),
        }
    }

    /// A checker that has seen each of these run, with pids from 1 on.
    fn watching(names: &[&str]) -> Self {
        let mut bench = Self::new();
        for name in names {
            bench.watch(name, 1);
        }
        let all: Vec<_> = names
            .iter()
            .zip(1..)
            .map(|(name, pid)| running(name, pid))
            .collect();
        bench.answer_listing(all);
        bench.take_reports();
        bench
    }

    fn command(&mut self, command: WatchCommand) {
        self.checker.on_command(command);
        self.checker.list_if_due();
    }

    fn listed(&mut self, result: ListResult) {
        self.checker.on_listed(result);
        self.checker.list_if_due();
    }

    /// The process watched under this key ends.
    fn exit(&mut self, key: u64) {
        self.checker.on_exit(key);
        self.checker.list_if_due();
    }

    fn watch(&mut self, name: &str, number: u64) {
        self.watch_with(name, number, false);
    }

    fn watch_with(&mut self, name: &str, number: u64, engine_restarts: bool) {
        let id = ContainerId(name.into());
        let (reports, prefix) = (self.reports.clone(), format!("{name}/{number}"));
        let reply =
            Box::new(move |state| reports.lock().unwrap().push(format!("{prefix} {state}")));
        let command = WatchCommand::Watch {
            instance: instance(name),
            id,
            process: None,
            restarts: 0,
            engine_restarts,
            end: KnownEnd::default(),
            reply,
        };
        self.checker.on_command(command);
    }

    /// A container whose process is known to run.
    fn watch_process(&mut self, name: &str, pid: u32) {
        let id = ContainerId(name.into());
        let (reports, prefix) = (self.reports.clone(), name.to_owned());
        let reply =
            Box::new(move |state| reports.lock().unwrap().push(format!("{prefix} {state}")));
        let process = Some(MainProcess {
            container: id.clone(),
            pid,
        });
        let command = WatchCommand::Watch {
            instance: instance(name),
            id,
            process,
            restarts: 0,
            engine_restarts: false,
            end: KnownEnd::default(),
            reply,
        };
        self.command(command);
    }

    fn unwatch(&mut self, name: &str) {
        let command = WatchCommand::Unwatch {
            instance: instance(name),
        };
        self.command(command);
    }

    /// The process with this pid ends.
    fn end(&mut self, pid: u32) {
        let found = self
            .checker
            .env
            .watched
            .iter()
            .rev()
            .find(|(_, watched)| *watched == pid);
        let (key, _) = *found.expect("the process is watched");
        self.exit(key);
    }

    fn list(&mut self, listed: Vec<ListedContainer>) {
        self.listed(Ok(listed));
    }

    fn fail(&mut self) {
        self.listed(Err(refusal()));
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.checker.list_if_due();
    }

    /// A listing was started since the last look.
    #[track_caller]
    fn expect_listing(&mut self) {
        self.checker.list_if_due();
        assert_eq!(
            std::mem::take(&mut self.checker.env.listings),
            1,
            "listings"
        );
    }

    /// The next listing comes after `pause`, and not before.
    #[track_caller]
    fn expect_listing_after(&mut self, pause: Duration) {
        self.expect_no_listing();
        self.advance(pause - MILLISECOND);
        self.expect_no_listing();
        self.advance(MILLISECOND);
        self.expect_listing();
    }

    #[track_caller]
    fn answer_listing(&mut self, listed: Vec<ListedContainer>) {
        self.expect_listing();
        self.list(listed);
    }

    #[track_caller]
    fn answer_listing_after(&mut self, pause: Duration, listed: Vec<ListedContainer>) {
        self.expect_listing_after(pause);
        self.list(listed);
    }

    #[track_caller]
    fn expect_no_listing(&mut self) {
        self.checker.list_if_due();
        assert_eq!(self.checker.env.listings, 0, "listings");
    }

    fn take_reports(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reports.lock().unwrap())
    }
}

#[test]
fn nothing_is_listed_while_nothing_is_watched() {
    let mut bench = Bench::new();
    assert_eq!(bench.checker.next_listing_at(), None);
    bench.watch("web", 1);
    bench.unwatch("web");
    bench.expect_no_listing();
    let mut bench = Bench::watching(&["web"]);
    bench.unwatch("web");
    bench.advance(SECOND * 3600);
    bench.expect_no_listing();
    assert_eq!(bench.checker.next_listing_at(), None);
}

// [utest->swdd~generic-state-checker-sends-workload-state~2]
#[test]
fn only_changes_are_reported_and_each_start_begins_anew() {
    let mut bench = Bench::new();
    bench.watch("web", 1);
    bench.answer_listing(vec![running("web", 1)]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
    bench.watch("web", 2);
    bench.answer_listing(vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/2 Running(Ok)"]);
}

#[test]
fn an_end_is_seen_at_once_and_told_when_the_exit_code_is_there() {
    let mut bench = Bench::watching(&["web"]);
    bench.advance(SECOND);
    bench.end(1);
    bench.answer_listing(vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), [""; 0], "podman is behind");
    bench.answer_listing_after(
        EXIT_RETRY,
        vec![container(
            "web",
            &ExecutionState::with_info(Phase::Stopping, "stopped"),
            0,
        )],
    );
    assert_eq!(bench.take_reports(), [""; 0], "the exit code is on its way");
    bench.answer_listing_after(EXIT_RETRY, vec![exited("web", 3)]);
    assert_eq!(
        bench.take_reports(),
        ["web/1 Failed(ExecFailed): 'Exit code: '3''"]
    );
    bench.answer_listing_after(POLL_INTERVAL, vec![exited("web", 3)]);
    bench.expect_listing_after(REPAIR_INTERVAL);
}

// [utest->swdd~podmancli-uses-container-state-cache~1]
// [utest->swdd~podmancli-container-state-cache-all-containers~1]
#[test]
fn one_listing_serves_all_that_ended_together() {
    let mut bench = Bench::watching(&["a", "b", "c"]);
    bench.end(1);
    bench.expect_listing();
    bench.end(2);
    bench.end(3);
    bench.expect_no_listing();
    bench.list(vec![exited("a", 0), exited("b", 1), running("c", 3)]);
    assert_eq!(
        bench.take_reports(),
        [
            "a/1 Succeeded(Ok)",
            "b/1 Failed(ExecFailed): 'Exit code: '1''"
        ]
    );
    bench.answer_listing(vec![exited("a", 0), exited("b", 1), exited("c", 2)]);
    assert_eq!(
        bench.take_reports(),
        ["c/1 Failed(ExecFailed): 'Exit code: '2''"]
    );
}

// [utest->swdd~agent-provides-generic-state-checker-implementation~1]
#[test]
fn an_end_that_the_engine_never_notices_leads_to_polling() {
    let mut bench = Bench::watching(&["web"]);
    bench.end(1);
    bench.expect_listing();
    bench.advance(EXIT_CODE_MAX);
    bench.list(vec![running("web", 1)]);
    // The listing took a second, so the engine rests, but not longer than a poll.
    bench.answer_listing_after(POLL_INTERVAL, vec![running("web", 1)]);
    bench.answer_listing_after(POLL_INTERVAL, vec![exited("web", 0)]);
    assert_eq!(bench.take_reports(), ["web/1 Succeeded(Ok)"]);
}

const UNNOTICED: &str = "Failed(ExecFailed): 'its process has ended, which 'podman' does not notice: exit code unknown'";

// [utest->swdd~agent-sees-ends-that-no-engine-notices~1]
#[test]
fn an_end_that_the_engine_never_notices_fails_the_workload() {
    for phase in [Phase::Running, Phase::Stopping] {
        let listed = || vec![container("web", &ExecutionState::plain(phase), 1)];
        let mut bench = Bench::watching(&["web"]);
        bench.end(1);
        bench.answer_listing(listed());
        bench.advance(END_UNNOTICED_MAX - MILLISECOND);
        bench.answer_listing(listed());
        assert!(
            bench
                .take_reports()
                .iter()
                .all(|state| !state.contains("Failed")),
            "it may be noticed yet"
        );
        bench.advance(REPAIR_INTERVAL);
        bench.answer_listing(listed());
        assert_eq!(bench.take_reports(), [format!("web/1 {UNNOTICED}")]);
        bench.advance(REPAIR_INTERVAL);
        bench.answer_listing(vec![]);
        assert_eq!(
            bench.take_reports(),
            [""; 0],
            "it was seen to end, so it is not lost"
        );
    }
}

#[test]
fn an_unnoticed_end_is_over_when_the_engine_has_another_process() {
    let mut bench = Bench::watching(&["web"]);
    bench.end(1);
    bench.answer_listing(vec![running("web", 1)]);
    bench.advance(END_UNNOTICED_MAX);
    bench.answer_listing(vec![running("web", 1)]);
    bench.take_reports();
    bench.advance(REPAIR_INTERVAL);
    bench.answer_listing(vec![running("web", 2)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
}

// [utest->swdd~agent-sees-ends-that-no-engine-notices~1]
#[test]
fn a_missing_process_has_ended_where_the_engine_has_our_pids() {
    for (other, expected) in [(8, "Running(Ok)"), (9, UNNOTICED)] {
        let mut bench = Bench::new();
        bench.checker.env.gone = vec![7, 8];
        let listed = || vec![running("other", other), running("web", 7)];
        bench.watch("other", 1);
        bench.watch("web", 1);
        bench.answer_listing(listed());
        bench.advance(END_UNNOTICED_MAX);
        bench.answer_listing(listed());
        let reports = bench.take_reports();
        let last = reports
            .iter()
            .rfind(|state| state.starts_with("web"))
            .expect("it was reported");
        assert_eq!(last, &format!("web/1 {expected}"), "other process: {other}");
    }
}

// [utest->swdd~agent-provides-generic-state-checker-implementation~1]
#[test]
fn containers_without_exit_events_are_listed_every_second() {
    for pid in [0, 7] {
        let mut bench = Bench::new();
        bench.checker.env.unnoticed = vec![7];
        bench.watch("web", 1);
        bench.expect_listing();
        for _ in 0..5 {
            bench.list(vec![running("web", pid)]);
            bench.expect_listing_after(POLL_INTERVAL);
        }
        bench.list(vec![exited("web", 0)]);
        assert_eq!(
            bench.take_reports(),
            ["web/1 Running(Ok)", "web/1 Succeeded(Ok)"]
        );
        bench.expect_listing_after(REPAIR_INTERVAL);
    }
}

#[test]
fn process_that_ended_before_its_watch_is_noticed_soon() {
    let mut bench = Bench::new();
    bench.checker.env.gone = vec![7];
    bench.watch("brief", 1);
    bench.answer_listing(vec![running("brief", 7)]);
    bench.answer_listing_after(EXIT_RETRY, vec![exited("brief", 0)]);
    assert_eq!(
        bench.take_reports(),
        ["brief/1 Running(Ok)", "brief/1 Succeeded(Ok)"]
    );
}

#[test]
fn process_of_another_pid_namespace_is_rarely_looked_for_later() {
    let mut bench = Bench::new();
    bench.checker.env.gone = vec![7];
    bench.watch("web", 1);
    bench.answer_listing(vec![running("web", 7)]);
    bench.expect_listing_after(EXIT_RETRY);
    bench.clock.advance(EXIT_CODE_MAX);
    bench.list(vec![running("web", 7)]);
    bench.clock.advance(EXIT_CODE_MAX); // The engine rests as long as its listing took.
    bench.answer_listing(vec![running("web", 7)]);
    bench.expect_listing_after(POLL_INTERVAL);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
}

#[test]
fn a_process_is_watched_as_soon_as_that_becomes_possible() {
    let mut bench = Bench::new();
    bench.checker.env.unnoticed = vec![7];
    bench.watch("web", 1);
    bench.answer_listing(vec![running("web", 7)]);
    bench.checker.env.unnoticed.clear();
    bench.answer_listing_after(POLL_INTERVAL, vec![running("web", 7)]);
    bench.expect_listing_after(REPAIR_INTERVAL);
}

#[test]
fn container_restarted_by_the_engine_gets_a_new_process_watch() {
    let mut bench = Bench::watching(&["web"]);
    bench.end(1);
    bench.answer_listing(vec![running("web", 2)]);
    assert_eq!(bench.take_reports(), [""; 0], "it runs as before");
    bench.answer_listing_after(POLL_INTERVAL, vec![running("web", 2)]);
    bench.end(2);
    bench.expect_listing();
}

#[test]
fn an_old_key_means_nothing() {
    let mut bench = Bench::watching(&["web"]);
    let (key, _) = bench.checker.env.watched[0];
    bench.watch("web", 2);
    bench.expect_listing();
    bench.exit(key);
    bench.list(vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/2 Running(Ok)"]);
    bench.expect_listing_after(REPAIR_INTERVAL);
}

// [utest->swdd~podman-state-getter-returns-lost-state~1]
#[test]
fn a_container_is_lost_only_when_two_listings_miss_it() {
    let mut bench = Bench::new();
    bench.watch("web", 1);
    bench.answer_listing(vec![]);
    assert_eq!(bench.take_reports(), [""; 0]);
    bench.answer_listing_after(MISSING_RETRY, vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);

    bench.end(1);
    bench.answer_listing(vec![]);
    bench.answer_listing_after(MISSING_RETRY, vec![]);
    assert_eq!(bench.take_reports(), ["web/1 Failed(Lost)"]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![exited("web", 0)]);
    assert_eq!(
        bench.take_reports(),
        ["web/1 Succeeded(Ok)"],
        "it is seen when it comes back"
    );
}

// [utest->swdd~podman-state-getter-reset-cache~1]
// [utest->swdd~podmancli-container-state-cache-refresh~1]
#[test]
fn a_listing_that_began_before_a_start_says_nothing_about_it() {
    let mut bench = Bench::watching(&["old"]);
    bench.end(1);
    bench.expect_listing();
    bench.watch("web", 1);
    bench.list(vec![exited("old", 0), exited("web", 9)]);
    assert_eq!(bench.take_reports(), ["old/1 Succeeded(Ok)"]);
    bench.answer_listing(vec![exited("old", 0), running("web", 5)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
}

#[test]
fn pauses_and_removals_by_others_are_seen_by_the_next_listing() {
    let mut bench = Bench::watching(&["web"]);
    bench.answer_listing_after(
        REPAIR_INTERVAL,
        vec![container(
            "web",
            &ExecutionState::with_info(Phase::FailedUnknown, "paused"),
            1,
        )],
    );
    assert_eq!(bench.take_reports(), ["web/1 Failed(Unknown): 'paused'"]);
    bench.answer_listing_after(POLL_INTERVAL, vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
    bench.end(1);
    bench.expect_listing();
}

// [utest->swdd~agent-keeps-observed-ends~1]
#[test]
fn observed_end_stays_whatever_becomes_of_the_container() {
    let unknown = ExecutionState::with_info(Phase::FailedUnknown, "unknown container state");
    let removing = ExecutionState::with_info(Phase::Stopping, "removing");
    let later: [ListResult; 4] = [
        Ok(vec![]),
        Ok(vec![container("web", &unknown, 0)]),
        Ok(vec![container("web", &removing, 0)]),
        Err(refusal()),
    ];
    for (code, end) in [
        (0, "web/1 Succeeded(Ok)"),
        (137, "web/1 Failed(ExecFailed): 'Exit code: '137''"),
    ] {
        for result in &later {
            let mut bench = Bench::watching(&["web"]);
            bench.end(1);
            bench.answer_listing(vec![exited("web", code)]);
            assert_eq!(bench.take_reports(), [end]);
            bench.expect_listing_after(POLL_INTERVAL);
            for _ in 0..3 {
                bench.listed(result.clone());
                bench.advance(REPAIR_INTERVAL);
                bench.expect_listing();
            }
            bench.list(vec![]);
            assert_eq!(bench.take_reports(), [""; 0], "{code} {result:?}");
        }
    }
}

// [utest->swdd~agent-keeps-observed-ends~1]
#[test]
fn observed_end_is_forgotten_once_the_container_runs_again() {
    let mut bench = Bench::watching(&["web"]);
    bench.end(1);
    bench.answer_listing(vec![exited("web", 3)]);
    bench.answer_listing_after(POLL_INTERVAL, vec![exited("web", 0)]);
    assert_eq!(
        bench.take_reports(),
        [
            "web/1 Failed(ExecFailed): 'Exit code: '3''",
            "web/1 Succeeded(Ok)"
        ]
    );
    bench.answer_listing_after(REPAIR_INTERVAL, vec![running("web", 2)]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![]);
    bench.answer_listing_after(MISSING_RETRY, vec![]);
    assert_eq!(
        bench.take_reports(),
        ["web/1 Running(Ok)", "web/1 Failed(Lost)"]
    );
}

/// One container of the pod has failed, the others go on.
#[test]
fn failure_beside_running_containers_is_no_end_of_the_pod() {
    let mut bench = Bench::new();
    bench.watch("pod", 1);
    bench.answer_listing(vec![container("pod", &ExecutionState::exited(3), 7)]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![]);
    bench.answer_listing_after(MISSING_RETRY, vec![]);
    assert_eq!(
        bench.take_reports(),
        [
            "pod/1 Failed(ExecFailed): 'Exit code: '3''",
            "pod/1 Failed(Lost)"
        ]
    );
}

// [utest->swdd~agent-keeps-observed-ends~1]
#[test]
fn failure_of_a_pod_outlives_the_container_that_failed() {
    let mut bench = Bench::new();
    bench.watch("pod", 1);
    bench.answer_listing(vec![pod(&[("one", Some(0)), ("two", Some(137))])]);
    assert_eq!(
        bench.take_reports(),
        ["pod/1 Failed(ExecFailed): 'Exit code: '137''"]
    );
    let unknown = ExecutionState::with_info(Phase::FailedUnknown, "unknown container state");
    let gone = ListedContainer {
        state: unknown,
        ..pod(&[])
    };
    for later in [pod(&[("one", Some(0))]), pod(&[("one", Some(3))]), gone] {
        bench.answer_listing_after(REPAIR_INTERVAL, vec![later]);
        assert_eq!(bench.take_reports(), [""; 0]);
    }
    bench.answer_listing_after(REPAIR_INTERVAL, vec![pod(&[("one", None)])]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![pod(&[("one", Some(0))])]);
    assert_eq!(
        bench.take_reports(),
        ["pod/1 Running(Ok)", "pod/1 Succeeded(Ok)"]
    );
}

/// Nothing but the end of the same container replaces its failure.
#[test]
fn failure_of_a_pod_is_replaced_by_the_same_containers_end() {
    let mut bench = Bench::new();
    bench.watch("pod", 1);
    bench.answer_listing(vec![pod(&[("one", Some(0)), ("two", Some(3))])]);
    bench.answer_listing_after(
        REPAIR_INTERVAL,
        vec![pod(&[("one", Some(0)), ("two", Some(0))])],
    );
    assert_eq!(
        bench.take_reports(),
        [
            "pod/1 Failed(ExecFailed): 'Exit code: '3''",
            "pod/1 Succeeded(Ok)"
        ]
    );
}

#[test]
fn failure_beside_running_containers_outlives_its_container() {
    let mut bench = Bench::new();
    bench.watch("pod", 1);
    bench.answer_listing(vec![pod(&[("one", None), ("two", Some(3))])]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![pod(&[("one", None)])]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![pod(&[("one", Some(0))])]);
    assert_eq!(
        bench.take_reports(),
        ["pod/1 Failed(ExecFailed): 'Exit code: '3''"]
    );
}

#[test]
fn failure_of_a_pod_in_an_earlier_life_stays_until_it_runs() {
    let (id, failed) = (ContainerId("pod".into()), ExecutionState::exited(3));
    let (rest, running) = (pod(&[("one", Some(0))]), pod(&[("one", None)]));
    let mut end = KnownEnd::of_earlier_life(&id, failed.clone(), false);
    assert_eq!(end.update(&rest), failed);
    assert_eq!(end.update(&running).phase, Phase::Running);
    assert_eq!(end.update(&rest).phase, Phase::Succeeded);
    // The engine may have started it again, and then it ended well.
    let mut end = KnownEnd::of_earlier_life(&id, failed, true);
    assert_eq!(end.update(&rest).phase, Phase::Succeeded);
}

#[test]
fn end_of_an_earlier_life_is_reported_without_its_container() {
    let mut bench = Bench::new();
    let (reports, id) = (bench.reports.clone(), ContainerId("web".into()));
    let reply =
        Box::new(move |state: ExecutionState| reports.lock().unwrap().push(state.to_string()));
    let end = KnownEnd::of_earlier_life(&id, ExecutionState::exited(3), false);
    bench.command(WatchCommand::Watch {
        instance: instance("web"),
        id,
        process: None,
        restarts: 0,
        engine_restarts: false,
        end,
        reply,
    });
    bench.answer_listing(vec![]);
    assert_eq!(
        bench.take_reports(),
        ["Failed(ExecFailed): 'Exit code: '3''"]
    );
    bench.answer_listing_after(REPAIR_INTERVAL, vec![running("web", 2)]);
    assert_eq!(bench.take_reports(), ["Running(Ok)"]);
}

#[test]
fn what_the_engine_restarts_itself_is_soon_seen_to_run_again() {
    let mut bench = Bench::new();
    bench.watch_with("web", 1, true);
    bench.answer_listing(vec![running("web", 1)]);
    bench.take_reports();
    let ended = |at| ListedContainer {
        ended_at: Some(at),
        ..exited("web", 1)
    };
    bench.end(1);
    bench.expect_listing();
    bench.list(vec![ended(100)]);
    assert_eq!(
        bench.take_reports(),
        ["web/1 Failed(ExecFailed): 'Exit code: '1''"]
    );
    // It may have ended for good, so it is listed less and less often, until another end shows that
    // it ran meanwhile.
    for seconds in [1, 2, 4, 8] {
        bench.expect_listing_after(seconds * SECOND);
        bench.list(vec![ended(100)]);
    }
    bench.expect_listing_after(16 * SECOND);
    bench.list(vec![ended(130)]);
    bench.expect_listing_after(SECOND);
    bench.list(vec![running("web", 2)]);
    assert_eq!(bench.take_reports(), ["web/1 Running(Ok)"]);
    bench.expect_listing_after(REPAIR_INTERVAL);
}

#[test]
fn a_passing_state_is_looked_at_less_and_less_often() {
    let mut bench = Bench::new();
    bench.watch("web", 1);
    bench.expect_listing();
    let created = container(
        "web",
        &ExecutionState::with_info(Phase::PendingStarting, "created"),
        0,
    );
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        bench.list(vec![created.clone()]);
        bench.expect_listing_after(SECOND * seconds);
    }
    bench.list(vec![container(
        "web",
        &ExecutionState::with_info(Phase::Stopping, "stopping"),
        0,
    )]);
    bench.expect_listing_after(SECOND);
    // These states of nerdctl and podman have no known meaning.
    for state in ["stopped", "paused"] {
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            bench.list(vec![container(
                "web",
                &ExecutionState::with_info(Phase::FailedUnknown, state),
                0,
            )]);
            bench.expect_listing_after(SECOND * seconds);
        }
    }
    bench.list(vec![running("web", 1)]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![created]);
    bench.expect_listing_after(SECOND);
    assert_eq!(bench.take_reports().len(), 6);
}

// [utest->swdd~podman-state-getter-returns-unknown-state~1]
#[test]
fn engine_that_fails_twice_makes_all_states_unknown() {
    let mut bench = Bench::watching(&["a", "b"]);
    bench.expect_listing_after(REPAIR_INTERVAL);
    bench.fail();
    assert_eq!(bench.take_reports(), [""; 0]);
    bench.expect_listing();
    bench.fail();
    let unknown = "Failed(Unknown): 'Error getting state from Podman.'";
    assert_eq!(
        bench.take_reports(),
        [format!("a/1 {unknown}"), format!("b/1 {unknown}")]
    );
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        bench.expect_listing_after(SECOND * seconds);
        bench.fail();
    }
    assert_eq!(bench.take_reports(), [""; 0]);
    bench.end(2);
    bench.answer_listing(vec![running("a", 1), exited("b", 0)]);
    assert_eq!(
        bench.take_reports(),
        ["a/1 Running(Ok)", "b/1 Succeeded(Ok)"]
    );
    bench.expect_listing_after(POLL_INTERVAL);
    bench.fail();
    bench.answer_listing(vec![running("a", 1), exited("b", 0)]);
    assert_eq!(
        bench.take_reports(),
        [""; 0],
        "one failure alone is not told"
    );
}

#[test]
fn a_hanging_listing_does_not_stop_commands_and_ends_are_kept() {
    let mut bench = Bench::watching(&["a", "b"]);
    bench.expect_listing_after(REPAIR_INTERVAL);
    bench.watch("c", 1);
    bench.end(1);
    bench.unwatch("b");
    bench.advance(SECOND * 20);
    bench.expect_no_listing();
    bench.list(vec![exited("a", 1), exited("b", 1), exited("c", 1)]);
    assert_eq!(
        bench.take_reports(),
        ["a/1 Failed(ExecFailed): 'Exit code: '1''"]
    );
    bench.expect_listing_after(Duration::from_millis(100));
}

#[test]
fn the_engine_rests_as_long_as_it_worked() {
    let mut bench = Bench::watching(&["a", "b"]);
    bench.end(1);
    bench.expect_listing();
    bench.advance(MILLISECOND * 80);
    bench.list(vec![exited("a", 0), running("b", 2)]);
    bench.end(2);
    bench.expect_listing_after(MILLISECOND * 80);
}

#[test]
fn listing_serves_all_starts_that_came_during_the_last_one() {
    let mut bench = Bench::new();
    bench.watch("a", 1);
    bench.expect_listing();
    bench.watch("b", 2);
    bench.advance(MILLISECOND * 50);
    bench.list(vec![running("a", 1), running("b", 2)]);
    assert_eq!(bench.take_reports(), ["a/1 Running(Ok)"]);
    bench.watch("c", 3);
    bench.expect_listing_after(MILLISECOND * 50);
    bench.advance(MILLISECOND * 50);
    bench.list(vec![running("a", 1), running("b", 2), running("c", 3)]);
    assert_eq!(bench.take_reports(), ["b/2 Running(Ok)", "c/3 Running(Ok)"]);
}

#[test]
fn of_one_instance_the_container_named_last_is_watched() {
    let mut bench = Bench::watching(&["web"]);
    bench.watch("web", 2);
    bench.watch("web", 3);
    bench.unwatch("none");
    bench.answer_listing(vec![running("web", 1)]);
    assert_eq!(bench.take_reports(), ["web/3 Running(Ok)"]);
}

#[test]
fn request_for_all_containers_gets_a_listing_that_began_later() {
    let mut bench = Bench::new();
    let (sender, answers) = bounded(4);
    let ask = |bench: &mut Bench| {
        let sender = sender.clone();
        let reply: ListReply =
            Box::new(move |result| sender.send(result.map(|listed| listed.len())).unwrap());
        bench.command(WatchCommand::ListAll { reply });
    };
    ask(&mut bench);
    bench.expect_listing();
    ask(&mut bench);
    bench.list(vec![exited("a", 0)]);
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Ok(1)]);
    bench.answer_listing(vec![]);
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Ok(0)]);
    bench.advance(SECOND * 3600);
    bench.expect_no_listing();

    ask(&mut bench);
    bench.expect_listing();
    bench.fail();
    bench.expect_listing();
    bench.fail();
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Err(refusal())]);
}

#[test]
fn a_pod_is_watched_by_all_its_processes() {
    let pod = |pids: &[u32]| {
        let mut pod = running("pod", 0);
        pod.processes = pids
            .iter()
            .map(|pid| MainProcess {
                container: ContainerId(pid.to_string().into()),
                pid: *pid,
            })
            .collect();
        pod
    };
    let mut bench = Bench::new();
    bench.checker.env.unnoticed = vec![3];
    bench.watch("pod", 1);
    bench.answer_listing(vec![pod(&[1, 2, 3])]);
    bench.answer_listing_after(POLL_INTERVAL, vec![pod(&[1, 2])]);
    bench.end(2);
    bench.answer_listing(vec![pod(&[1])]);
    bench.answer_listing_after(POLL_INTERVAL, vec![pod(&[1])]);
    bench.answer_listing_after(REPAIR_INTERVAL, vec![pod(&[1])]);
    bench.end(1);
    bench.expect_listing();
}

#[test]
fn what_is_watched_is_told_without_a_listing() {
    let mut bench = Bench::new();
    let (reply, watched) = bounded(1);
    let id = ContainerId("web".into());
    let (of_web, ignored) = (instance("web"), Box::new(|_| {}));
    let command = WatchCommand::Watch {
        instance: of_web,
        id,
        process: None,
        restarts: 3,
        engine_restarts: false,
        end: KnownEnd::default(),
        reply: ignored,
    };
    bench.checker.on_command(command);
    let told = |bench: &mut Bench| -> Vec<(String, u32, Vec<u32>)> {
        bench.checker.on_command(WatchCommand::ListWatched {
            reply: reply.clone(),
        });
        let pids =
            |one: &InstanceProcesses| one.processes.iter().map(|process| process.pid).collect();
        let of_one =
            |one: &InstanceProcesses| (one.instance.workload.to_string(), one.restarts, pids(one));
        watched.try_recv().unwrap().iter().map(of_one).collect()
    };
    assert_eq!(
        told(&mut bench),
        [("web".to_owned(), 3, vec![])],
        "no listing has shown its process"
    );
    bench.answer_listing(vec![running("web", 7)]);
    assert_eq!(told(&mut bench), [("web".to_owned(), 3, vec![7])]);
    bench.expect_no_listing();
    bench.end(7);
    assert_eq!(told(&mut bench), [("web".to_owned(), 3, vec![])]);
    bench.unwatch("web");
    assert_eq!(told(&mut bench), []);
    let full = WatchCommand::ListWatched {
        reply: reply.clone(),
    };
    reply.send(Vec::new()).unwrap();
    bench.checker.on_command(full); // It never waits for whoever asked.
}

#[test]
fn container_with_known_process_runs_without_listing() {
    let mut bench = Bench::new();
    bench.watch_process("web", 7);
    assert_eq!(bench.take_reports(), ["web Running(Ok)"]);
    bench.expect_no_listing();
    bench.advance(REPAIR_INTERVAL - MILLISECOND);
    bench.expect_no_listing();
    bench.end(7);
    bench.answer_listing(vec![exited("web", 3)]);
    assert_eq!(
        bench.take_reports(),
        ["web Failed(ExecFailed): 'Exit code: '3''"]
    );
}

#[test]
fn a_process_that_cannot_be_watched_proves_nothing() {
    for unnoticed in [true, false] {
        let mut bench = Bench::new();
        let env = &mut bench.checker.env;
        if unnoticed {
            env.unnoticed.push(7)
        } else {
            env.gone.push(7)
        }
        bench.watch_process("web", 7);
        assert_eq!(bench.take_reports(), [""; 0]);
        bench.answer_listing(vec![running("web", 7)]);
        assert_eq!(bench.take_reports(), ["web Running(Ok)"]);
    }
}

/// As long as it is only created or initialised; nothing is listed for it.
#[test]
fn lost_prepared_container_is_reported_once_by_the_next_listing() {
    let pending = |name: &str| container(name, &ExecutionState::plain(Phase::PendingStarting), 0);
    for now in [None, Some(running("web", 1)), Some(exited("web", 0))] {
        let mut bench = Bench::new();
        let prepared = |bench: &mut Bench, name: &'static str| {
            let reports = bench.reports.clone();
            let reply: GoneReply =
                Box::new(move || reports.lock().unwrap().push(format!("{name} is gone")));
            bench.command(WatchCommand::WatchPrepared {
                instance: instance(name),
                id: ContainerId(name.into()),
                reply,
            });
        };
        ["web", "stays", "forgotten"]
            .into_iter()
            .for_each(|name| prepared(&mut bench, name));
        bench.command(WatchCommand::UnwatchPrepared {
            instance: instance("forgotten"),
        });
        assert_eq!(bench.checker.next_listing_at(), None);
        bench.watch("other", 1);
        bench.checker.list_if_due();
        prepared(&mut bench, "new"); // The listing under way may lack it.
        let all = |rest: Vec<ListedContainer>| {
            [vec![running("other", 5), pending("stays")], rest].concat()
        };
        bench.list(all(vec![pending("web")]));
        bench.take_reports();
        bench.clock.advance(REPAIR_INTERVAL);
        bench.checker.list_if_due();
        bench.list(all(now
            .clone()
            .into_iter()
            .chain([pending("new")])
            .collect()));
        assert_eq!(bench.take_reports(), ["web is gone"], "{now:?}");
        bench.clock.advance(REPAIR_INTERVAL);
        bench.checker.list_if_due();
        bench.list(all(now.into_iter().chain([pending("new")]).collect()));
        assert_eq!(bench.take_reports(), Vec::<String>::new());
    }
}

#[test]
fn listing_of_an_engine_is_warned_of_unless_it_is_unused() {
    let missing = || RuntimeError::NotInstalled("podman".into());
    for (names, error, expected) in [
        (&["a"][..], missing(), 1),
        (&["a"][..], refusal(), 1),
        (&[][..], refusal(), 1),
        (&[][..], missing(), 0),
    ] {
        let mut bench = if names.is_empty() {
            Bench::new()
        } else {
            Bench::watching(names)
        };
        let lines = lines_of(|| {
            for _ in 0..4 {
                bench.listed(Err(error.clone()));
            }
        });
        let warnings = lines
            .iter()
            .filter(|line| line.starts_with("Could not get the state"));
        assert_eq!(warnings.count(), expected, "{names:?} {error}: {lines:?}");
    }
}
