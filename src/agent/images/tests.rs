//! Which images are removed and when, with a manual clock and an engine in memory. A test runs each
//! call of the engine.

use super::ledger::{DELETED_DAYS, FILE, VERSIONS_MAX};
use super::needs::NeededInstances;
use super::*;
use crate::state_checker::thread::WatchSender;
use crate::workload::EngineSource;
use crate::workload::preparation::record::new_container;
use ankaios_fakes::fake_connector::{Call, FakeEngine, Fault};
use ankaios_fakes::log_lines::lines_of;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::workload::Workload;
use ankaios_platform::sync::EventFd;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::TempDir;

const MIB: u64 = 1024 * 1024;

/// An instance of a workload with this image.
fn version(workload: &str, image: &str) -> AddedWorkload {
    configured(workload, "podman", &format!("image: {image}"))
}

fn configured(workload: &str, runtime: &str, config: &str) -> AddedWorkload {
    let added = Workload::new("A", runtime, config);
    AddedWorkload {
        instance: added.instance_name(workload),
        workload: Arc::new(added),
    }
}

/// The id of the image with this name in the tests.
fn id_of(name: &str) -> String {
    name.replace([':', '/'], "-")
}

/// A folder for all agents, an engine and a clock, which outlive an agent.
struct Node {
    folder: TempDir,
    engine: FakeEngine,
    clock: ManualClock,
}

/// The keeper of one agent.
struct Rig {
    node: Node,
    keeper: ImageKeeper<ManualClock>,
    calls: Receiver<ImageCall>,
    events: Receiver<ImageEvent>,
    needs: Arc<Mutex<ImageNeeds>>,
    /// Calls of engines do not end.
    hold_calls: bool,
    settings: CleanupSettings,
}

fn settings(folder: &Path, agent: &str, mode: CleanupMode, history: usize) -> CleanupSettings {
    CleanupSettings {
        mode,
        history,
        folder: LedgerFolder {
            agents: folder.to_owned(),
            agent: agent.to_owned(),
            ending: "_agent",
            inner: "",
        },
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(CleanupMode::Replaced, 1)
    }

    fn with(mode: CleanupMode, history: usize) -> Self {
        let node = Node {
            folder: tempfile::tempdir().unwrap(),
            engine: FakeEngine::new(),
            clock: ManualClock::new(),
        };
        let settings = settings(node.folder.path(), "A", mode, history);
        Self::start(node, settings, Arc::default())
    }

    fn start(node: Node, settings: CleanupSettings, needs: Arc<Mutex<ImageNeeds>>) -> Self {
        needs.lock().unwrap().is_settled = true;
        let (start, calls) = bounded(8);
        let (inbox, events) = bounded(INBOX);
        let engine = node.engine.clone();
        let source = EngineSource {
            connect: Box::new(move || Box::new(engine.connector("A")) as Connector),
            watch: WatchSender::new(1, EventFd::new().unwrap()).0,
        };
        let read = needs.clone();
        let mut keeper = ImageKeeper::new(
            settings.clone(),
            "A".into(),
            node.clock.clone(),
            Arc::new(Engines::from([("podman".into(), source)])),
            Box::new(move || Some(read.lock().unwrap().clone())),
            inbox,
            Box::new(move |call| {
                start.try_send(call).unwrap();
                Ok(())
            }),
        );
        keeper.today = || 20_000;
        Self {
            node,
            keeper,
            calls,
            events,
            needs,
            hold_calls: false,
            settings,
        }
    }

    /// Replaces the agent by a new one, as if it was killed.
    fn restart(self) -> Self {
        Self::start(self.node, self.settings, self.needs)
    }

    fn engine(&self) -> &FakeEngine {
        &self.node.engine
    }

    /// Puts an image with this name into the store.
    fn load(&self, name: &str) {
        let full = format!("localhost/{name}");
        self.engine().load(&id_of(name), &[&full], MIB);
    }

    /// Handles all events and calls until there are none.
    fn run(&mut self) {
        for _ in 0..1000 {
            let mut call = None;
            if !self.hold_calls {
                call = self.calls.try_recv().ok();
            }
            let has_called = call.is_some();
            if let Some(call) = call {
                call();
            }
            match self.events.try_recv() {
                Ok(event) => self.keeper.on_event(event),
                Err(_) if !has_called => return,
                Err(_) => {}
            }
        }
        panic!("it does not come to rest");
    }

    fn pass(&mut self, duration: Duration) {
        let end = self.node.clock.now() + duration;
        self.run();
        while let Some(due) = self.keeper.due().filter(|due| *due <= end) {
            self.node.clock.advance(self.node.clock.until(due));
            self.keeper.tick();
            self.run();
        }
        self.node.clock.advance(self.node.clock.until(end));
    }

    fn begin(&mut self, added: &AddedWorkload) -> Receiver<()> {
        let (consent, wait) = bounded(0);
        self.keeper.on_event(ImageEvent::UseBegins {
            instance: added.instance.clone(),
            runtime: added.workload.runtime.clone(),
            names: names_of(&added.workload),
            consent,
        });
        wait
    }

    fn end(&mut self, added: &AddedWorkload, outcome: UseOutcome) {
        self.keeper.on_event(ImageEvent::UseEnded {
            instance: added.instance.clone(),
            runtime: added.workload.runtime.clone(),
            outcome,
        });
        self.run();
    }

    fn use_it(&mut self, added: &AddedWorkload, outcome: UseOutcome) {
        self.begin(added);
        self.end(added, outcome);
    }

    /// Sets the needs of a workload, as the scheduler reports them.
    fn want(&mut self, name: &str, instances: NeededInstances) {
        let mut needs = self.needs.lock().unwrap();
        needs.workloads.insert(name.into(), instances);
        drop(needs);
        self.keeper.on_event(ImageEvent::Changed);
    }

    /// Switches a workload to this image, which is loaded.
    fn switch(&mut self, workload: &str, image: &str) -> AddedWorkload {
        self.load(image);
        let added = version(workload, image);
        self.desire(&added);
        self.use_it(&added, UseOutcome::Started);
        added
    }

    fn desire(&mut self, added: &AddedWorkload) {
        let desired = NeededInstances {
            desired: Some(added.clone()),
            ..NeededInstances::default()
        };
        self.want(&added.instance.workload.clone(), desired);
    }

    fn delete(&mut self, workload: &str) {
        self.needs.lock().unwrap().workloads.remove(workload);
        self.keeper.on_event(ImageEvent::Changed);
    }

    /// The ids of the images in the store.
    fn images(&self) -> Vec<String> {
        self.engine().images().into_keys().collect()
    }

    /// The removals until now.
    fn removals(&self) -> Vec<String> {
        let mut calls = self.engine().take_calls();
        calls.retain(|call| call != "images");
        calls
    }

    fn file(&self) -> PathBuf {
        self.settings.folder.path().join(FILE)
    }
}

// [utest->swdd~agent-removes-replaced-images~1]
// [utest->swdd~agent-keeps-needed-images~1]
#[test]
fn replaced_image_is_removed_when_nothing_has_changed() {
    let mut rig = Rig::new();
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.load("by-hand:1");
    rig.pass(QUIET_TIME - Duration::from_millis(1));
    assert!(rig.removals().is_empty());
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.removals(), ["rmi nav-1"]);
    assert_eq!(rig.images(), ["by-hand-1", "nav-2", "nav-3"]);
    rig.pass(DAY * 3);
    assert!(rig.removals().is_empty());
    assert_eq!(rig.keeper.due(), None, "nothing is left to do");
}

#[test]
fn start_of_the_agent_begins_the_quiet_time() {
    let mut rig = Rig::new();
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.pass(QUIET_TIME - Duration::from_millis(1));
    let mut rig = rig.restart();
    rig.pass(QUIET_TIME - Duration::from_millis(1));
    assert_eq!(rig.images().len(), 3);
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.images(), ["nav-2", "nav-3"]);
}

// [utest->swdd~agent-keeps-needed-images~1]
#[test]
fn history_says_how_many_versions_that_ran_stay() {
    for (history, expected) in [
        (0, &["nav-5"][..]),
        (1, &["nav-4", "nav-5"]),
        (3, &["nav-2", "nav-3", "nav-4", "nav-5"]),
        (100, &["nav-1", "nav-2", "nav-3", "nav-4", "nav-5"]),
    ] {
        let mut rig = Rig::with(CleanupMode::Replaced, history);
        for number in 1..=5 {
            rig.switch("nav", &format!("nav:{number}"));
        }
        rig.pass(QUIET_TIME);
        assert_eq!(rig.images(), expected, "{history}");
    }
}

#[test]
fn version_that_never_ran_displaces_none_that_did() {
    let mut rig = Rig::new();
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    for image in ["nav:3", "nav:4"] {
        // Its image comes, and its start fails.
        rig.load(image);
        rig.desire(&version("nav", image));
        rig.use_it(&version("nav", image), UseOutcome::Prepared);
        rig.use_it(&version("nav", image), UseOutcome::Failed);
    }
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-2", "nav-4"]);
    // Without history, what ran last stays until another one has run.
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.load("nav:2");
    rig.desire(&version("nav", "nav:2"));
    rig.use_it(&version("nav", "nav:2"), UseOutcome::Prepared);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-1", "nav-2"]);
    rig.use_it(&version("nav", "nav:2"), UseOutcome::Started);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-2"]);
}

#[test]
fn rollback_makes_the_version_the_last_that_ran() {
    let mut rig = Rig::new();
    for image in ["nav:1", "nav:2", "nav:1", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-1", "nav-3"]);
}

#[test]
fn what_is_staged_prepared_or_there_stays() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.want(
        "nav",
        NeededInstances {
            desired: Some(version("nav", "nav:3")),
            others: vec![version("nav", "nav:1")],
            started: vec![],
        },
    );
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-1", "nav-3"]);
}

// [utest->swdd~agent-keeps-needed-images~1]
#[test]
fn open_update_and_unknown_needs_keep_everything() {
    type Change = fn(&mut ImageNeeds, bool);
    let changes: [Change; 2] = [
        |needs, is_so| needs.is_update_open = is_so,
        |needs, is_so| needs.is_settled = !is_so,
    ];
    for change in changes {
        let mut rig = Rig::with(CleanupMode::Replaced, 0);
        rig.switch("nav", "nav:1");
        rig.switch("nav", "nav:2");
        change(&mut rig.needs.lock().unwrap(), true);
        rig.pass(DAY * 40);
        assert!(rig.removals().is_empty());
        assert_eq!(rig.images().len(), 2);
        change(&mut rig.needs.lock().unwrap(), false);
        rig.pass(QUIET_TIME);
        assert_eq!(rig.images(), ["nav-2"]);
    }
}

#[test]
fn image_that_a_container_has_stays_until_that_is_gone() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    rig.engine().set_foreign_container("nav-1", true);
    rig.pass(DAY * 3);
    assert!(rig.removals().is_empty(), "no engine is asked in vain");
    rig.engine().set_foreign_container("nav-1", false);
    rig.pass(DAY);
    assert_eq!(rig.images(), ["nav-2"]);
}

// [utest->swdd~agent-keeps-images-of-deleted-workloads~1]
#[test]
fn deleted_workload_keeps_its_last_version_for_30_days() {
    let mut rig = Rig::new();
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.delete("nav");
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-3"]);
    rig.pass(DAY * (DELETED_DAYS - 1));
    assert_eq!(rig.images(), ["nav-3"]);
    rig.pass(DAY * 2);
    assert!(rig.images().is_empty());
    assert_eq!(rig.keeper.due(), None);
}

#[test]
fn workload_that_comes_again_keeps_its_last_version() {
    let mut rig = Rig::new();
    rig.switch("nav", "nav:1");
    rig.delete("nav");
    rig.pass(DAY * 29);
    rig.load("nav:2");
    rig.desire(&version("nav", "nav:2"));
    rig.pass(DAY * 30);
    assert_eq!(rig.images(), ["nav-1", "nav-2"]);
    rig.delete("nav");
    rig.pass(DAY * 29);
    assert!(
        rig.images().contains(&"nav-1".to_owned()),
        "days count anew"
    );
}

// [utest->swdd~agent-keeps-images-of-deleted-workloads~1]
#[test]
fn step_of_the_clock_counts_one_day_at_most() {
    let mut rig = Rig::new();
    rig.switch("nav", "nav:1");
    rig.delete("nav");
    rig.pass(QUIET_TIME);
    // Each start with another day: forth by years, back to 1970, and forth again.
    let days: [fn() -> u64; 4] = [|| 20_000, || 90_000, || 0, || 90_000];
    for today in days {
        for _ in 0..8 {
            rig = rig.restart();
            rig.keeper.today = today;
            rig.pass(QUIET_TIME);
        }
    }
    assert_eq!(rig.images(), ["nav-1"]);
    rig.pass(DAY * 30);
    assert!(rig.images().is_empty(), "it has run for 30 days");
}

#[test]
fn image_under_two_names_loses_the_unneeded_one() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    for number in 1..=2 {
        rig.engine()
            .load("same", &["localhost/a:1", "localhost/b:1"], MIB);
        let added = version("nav", ["a:1", "b:1"][number - 1]);
        rig.desire(&added);
        rig.use_it(&added, UseOutcome::Started);
    }
    rig.pass(QUIET_TIME);
    assert_eq!(rig.removals(), ["untag same localhost/a:1"]);
    assert_eq!(rig.engine().images()["same"], ["localhost/b:1"]);
}

#[test]
fn image_that_others_have_named_as_well_stays() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.engine()
        .load("nav-1", &["localhost/nav:1", "localhost/mine:1"], MIB);
    rig.switch("nav", "nav:2");
    rig.pass(QUIET_TIME);
    assert_eq!(rig.removals(), ["untag nav-1 localhost/nav:1"]);
    assert_eq!(rig.engine().images()["nav-1"], ["localhost/mine:1"]);
}

#[test]
fn image_of_two_workloads_stays_until_both_are_replaced() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("one", "base:1");
    rig.switch("two", "base:1");
    rig.switch("one", "base:2");
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["base-1", "base-2"]);
    rig.switch("two", "base:2");
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["base-2"]);
}

// [utest->swdd~agent-leaves-images-of-other-agents~1]
#[test]
fn image_that_another_agent_needs_stays() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    let other = settings(rig.node.folder.path(), "B", CleanupMode::Replaced, 0);
    let mut ledger = Ledger::default();
    let needed = version("web", "nav:1");
    ledger.note_use(&needed.instance, "podman", names_of(&needed.workload));
    other.folder.write(&ledger).unwrap();
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images().len(), 2);
    // It does not need it any more.
    ledger.apply(&ImageNeeds::default(), 0);
    for _ in 0..DELETED_DAYS {
        ledger.count_day(0, true);
    }
    ledger.apply(&ImageNeeds::default(), 0);
    other.folder.write(&ledger).unwrap();
    rig.pass(DAY);
    assert_eq!(rig.images(), ["nav-2"]);
}

// [utest->swdd~agent-removes-nothing-with-damaged-knowledge~1]
#[test]
fn damaged_file_of_another_agent_is_named_and_keeps_all() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    let other = settings(rig.node.folder.path(), "B", CleanupMode::Replaced, 0);
    other.folder.write(&Ledger::default()).unwrap();
    let file = other.folder.path().join(FILE);
    fs::write(&file, "foreign").unwrap();
    let lines = lines_of(|| rig.pass(QUIET_TIME));
    assert!(
        lines
            .iter()
            .any(|line| line.contains(&file.display().to_string())),
        "{lines:?}"
    );
    assert!(rig.removals().is_empty());
    fs::remove_file(&file).unwrap();
    rig.pass(DAY);
    assert_eq!(rig.images(), ["nav-2"]);
}

// [utest->swdd~agent-removes-nothing-with-damaged-knowledge~1]
#[test]
fn damaged_file_is_named_kept_and_nothing_is_removed() {
    let whole = {
        let mut rig = Rig::new();
        rig.switch("nav", "nav:1");
        fs::read_to_string(rig.file()).unwrap()
    };
    let newer = whole.replace("images 1", "images 2");
    for text in ["", "{}", &whole[1..], &whole[..whole.len() - 1], &newer] {
        let rig = Rig::with(CleanupMode::Replaced, 0);
        fs::create_dir_all(rig.settings.folder.path()).unwrap();
        fs::write(rig.file(), text).unwrap();
        let mut restarted = None;
        let lines = lines_of(|| restarted = Some(rig.restart()));
        let mut rig = restarted.unwrap();
        let file = rig.file().display().to_string();
        assert!(lines.iter().any(|line| line.contains(&file)), "{lines:?}");
        rig.switch("nav", "nav:1");
        rig.switch("nav", "nav:2");
        rig.pass(DAY * 40);
        assert!(rig.engine().take_calls().is_empty());
        assert_eq!(
            fs::read_to_string(rig.file()).unwrap(),
            text,
            "it loses nothing"
        );
    }
}

#[test]
fn failed_removal_is_logged_and_tried_a_day_later() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.engine().inject(Call::RemoveImage, [Fault::Fails]);
    let lines = lines_of(|| rig.pass(QUIET_TIME));
    assert!(
        lines
            .iter()
            .any(|line| line.contains("Cannot remove image 'nav:1'")),
        "{lines:?}"
    );
    assert_eq!(
        rig.removals(),
        ["rmi nav-1", "rmi nav-2"],
        "others go meanwhile"
    );
    rig.pass(DAY - Duration::from_millis(1));
    assert!(rig.removals().is_empty());
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.removals(), ["rmi nav-1"]);
}

#[test]
fn search_that_is_due_during_a_listing_follows_later() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.load("nav:2");
    let added = version("nav", "nav:2");
    rig.desire(&added);
    rig.begin(&added);
    rig.hold_calls = true;
    rig.end(&added, UseOutcome::Started);
    rig.node.clock.advance(QUIET_TIME);
    rig.keeper.tick();
    rig.hold_calls = false;
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-2"]);
}

#[test]
fn failed_listing_is_tried_a_day_later() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    rig.engine().inject(Call::ImageStore, [Fault::Fails]);
    rig.pass(DAY);
    assert_eq!(rig.images().len(), 2);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["nav-2"]);
}

// [utest->swdd~agent-removes-no-image-beside-a-start~1]
#[test]
fn start_waits_for_the_removal_under_way_and_no_other_begins() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    for image in ["nav:1", "nav:2", "nav:3"] {
        rig.switch("nav", image);
    }
    rig.node.clock.advance(QUIET_TIME);
    rig.keeper.tick();
    // The listing ends, and the first removal is under way.
    rig.calls.try_recv().unwrap()();
    rig.keeper.on_event(rig.events.try_recv().unwrap());
    let removal = rig.calls.try_recv().expect("a removal");
    let next = version("web", "web:1");
    let wait = rig.begin(&next);
    assert_eq!(wait.try_recv(), Err(crossbeam_channel::TryRecvError::Empty));
    removal();
    rig.keeper.on_event(rig.events.try_recv().unwrap());
    assert_eq!(
        wait.try_recv(),
        Err(crossbeam_channel::TryRecvError::Disconnected)
    );
    rig.run();
    rig.node.clock.advance(QUIET_TIME);
    rig.keeper.tick();
    rig.run();
    assert_eq!(
        rig.removals(),
        ["rmi nav-1"],
        "the start is still under way"
    );
    rig.end(&next, UseOutcome::Failed);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.removals(), ["rmi nav-2"]);
}

#[test]
fn restarts_without_end_do_not_prevent_removals() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    let crashes = rig.switch("web", "web:1");
    for _ in 0..20 {
        rig.pass(QUIET_TIME / 10);
        rig.use_it(&crashes, UseOutcome::Started);
    }
    assert_eq!(rig.images(), ["nav-2", "web-1"]);
}

#[test]
fn change_during_a_listing_ends_the_search() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    rig.node.clock.advance(QUIET_TIME);
    rig.keeper.tick();
    rig.desire(&version("nav", "nav:1"));
    rig.run();
    assert!(rig.removals().is_empty());
    rig.pass(QUIET_TIME);
    assert!(rig.images().contains(&"nav-1".to_owned()));
}

// [utest->swdd~agent-knows-images-before-their-use~1]
#[test]
fn image_is_known_on_the_disk_before_its_use() {
    let mut rig = Rig::new();
    let wait = rig.begin(&version("nav", "nav:1"));
    assert_eq!(
        wait.try_recv(),
        Err(crossbeam_channel::TryRecvError::Disconnected)
    );
    let text = fs::read_to_string(rig.file()).unwrap();
    assert!(text.contains("nav:1"), "{text}");
}

#[test]
fn nothing_is_removed_while_knowledge_cannot_be_written() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    // A file in place of the folder, as what cannot be written.
    let folder = rig.settings.folder.path();
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    rig.switch("nav", "nav:2");
    rig.pass(QUIET_TIME);
    assert!(rig.removals().is_empty());
    fs::remove_file(&folder).unwrap();
    rig.pass(DAY);
    assert_eq!(rig.images(), ["nav-2"]);
}

#[test]
fn restarts_of_the_same_version_write_nothing() {
    let mut rig = Rig::new();
    let added = rig.switch("nav", "nav:1");
    fs::remove_file(rig.file()).unwrap();
    for _ in 0..10 {
        rig.use_it(&added, UseOutcome::Started);
    }
    assert!(!rig.file().exists());
}

#[test]
fn images_with_a_read_only_store_are_left() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.engine().set_read_only("nav-1");
    rig.switch("nav", "nav:2");
    rig.pass(DAY);
    assert!(rig.removals().is_empty());
}

#[test]
fn tag_that_moves_leaves_no_unnamed_image() {
    let mut rig = Rig::new();
    let added = rig.switch("nav", "nav:latest");
    rig.engine().load("newer", &["localhost/nav:latest"], MIB);
    rig.use_it(&added, UseOutcome::Started);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.removals(), ["rmi nav-latest"]);
    assert_eq!(rig.images(), ["newer"]);
}

#[test]
fn name_that_others_moved_on_is_not_removed() {
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    rig.engine().load("by-hand", &["localhost/nav:1"], MIB);
    rig.pass(QUIET_TIME);
    assert_eq!(rig.removals(), ["rmi nav-1"]);
    assert_eq!(rig.images(), ["by-hand", "nav-2"]);
}

#[test]
fn all_images_of_pods_are_known() {
    let pods = |images: &str| {
        let manifest = format!("kind: Pod\nspec: {{containers: [{images}]}}");
        let config = serde_json::json!({ "manifest": manifest }).to_string();
        configured("pods", "podman-kube", &config)
    };
    let mut rig = Rig::with(CleanupMode::Replaced, 0);
    for image in ["a:1", "b:1", "a:2"] {
        rig.load(image);
    }
    for added in [
        pods("{image: a:1}, {image: b:1}"),
        pods("{image: a:2}, {image: b:1}"),
    ] {
        rig.desire(&added);
        rig.use_it(&added, UseOutcome::Started);
    }
    rig.pass(QUIET_TIME);
    assert_eq!(rig.images(), ["a-2", "b-1"]);
}

// [utest->swdd~agent-reports-removable-images~1]
#[test]
fn report_logs_each_removable_image_once_and_removes_none() {
    let mut rig = Rig::with(CleanupMode::Report, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    let lines = lines_of(|| {
        rig.pass(QUIET_TIME);
        rig.keeper.on_event(ImageEvent::Changed);
        rig.pass(QUIET_TIME);
    });
    let removable: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("could be removed"))
        .collect();
    assert_eq!(removable.len(), 1, "{lines:?}");
    assert!(removable[0].contains("Image 'nav:1' of workload 'nav' could be removed (1.0 MiB)."));
    assert!(rig.removals().is_empty());
}

// [utest->swdd~agent-shows-bytes-of-images~1]
#[test]
fn bytes_of_images_are_known_without_a_call() {
    let mut rig = Rig::with(CleanupMode::Report, 0);
    rig.switch("nav", "nav:1");
    rig.switch("nav", "nav:2");
    rig.switch("web", "nav:1");
    rig.switch("web", "web:1");
    rig.engine().take_calls();
    let expected = |all, removable| ImageBytes { all, removable };
    let report = rig.keeper.report();
    assert_eq!(report.workloads["nav"], expected(2 * MIB, MIB));
    assert_eq!(report.workloads["web"], expected(2 * MIB, MIB));
    rig.needs.lock().unwrap().is_update_open = true;
    assert_eq!(rig.keeper.report().workloads["nav"], expected(2 * MIB, 0));
    assert!(rig.engine().take_calls().is_empty());
}

/// The agent is killed after each number of steps of updates and two rollbacks.
// [utest->swdd~agent-knows-images-before-their-use~1]
#[test]
fn kill_at_any_moment_loses_no_needed_and_leaves_no_other() {
    let numbers = [1, 2, 3, 2, 4, 5, 4];
    for kill_at in 0..=numbers.len() * 4 {
        let mut rig = Rig::new();
        let mut steps = 0;
        // The last two that ran.
        let mut last: Vec<String> = Vec::new();
        for number in numbers {
            let image = format!("nav:{number}");
            if !rig.images().contains(&id_of(&image)) {
                assert!(!last.contains(&image), "{image} was needed and is missing");
                rig.load(&image);
            }
            let added = version("nav", &image);
            rig.desire(&added);
            for step in 0..4 {
                match step {
                    0 => _ = rig.begin(&added),
                    1 => rig.end(&added, UseOutcome::Started),
                    2 => {
                        rig.node.clock.advance(QUIET_TIME);
                        rig.keeper.tick();
                        // Only the listing.
                        if let Ok(call) = rig.calls.try_recv() {
                            call();
                        }
                        if let Ok(event) = rig.events.try_recv() {
                            rig.keeper.on_event(event);
                        }
                    }
                    _ => rig.run(),
                }
                steps += 1;
                if steps == kill_at {
                    rig = rig.restart();
                    rig.use_it(&added, UseOutcome::Started);
                }
            }
            last.retain(|one| *one != image);
            last.push(image);
            if last.len() > 2 {
                last.remove(0);
            }
        }
        rig.pass(QUIET_TIME);
        assert_eq!(rig.images(), ["nav-4", "nav-5"], "killed at step {kill_at}");
    }
}

#[test]
fn busy_workload_displaces_no_version_of_others() {
    let mut ledger = Ledger::default();
    let note = |ledger: &mut Ledger, added: &AddedWorkload| {
        let names = names_of(&added.workload);
        ledger.note_use(&added.instance, "podman", names);
    };
    note(&mut ledger, &version("nav", "nav:1"));
    for number in 0..VERSIONS_MAX + 10 {
        note(&mut ledger, &version("busy", &format!("busy:{number}")));
    }
    let count = |name: &str| ledger.workloads[name].versions.len();
    assert_eq!((count("nav"), count("busy")), (1, VERSIONS_MAX - 1));
    // With one version each the oldest goes.
    let mut ledger = Ledger::default();
    for number in 0..VERSIONS_MAX + 1 {
        note(&mut ledger, &version(&format!("w{number}"), "nav:1"));
    }
    assert_eq!(ledger.workloads.len(), VERSIONS_MAX);
    assert!(!ledger.workloads.contains_key("w0"));
}

#[test]
fn call_goes_on_when_the_thread_takes_no_events() {
    let (inbox, events) = bounded(1);
    let uses = ImageUses {
        inbox,
        wait_max: Duration::from_millis(1),
    };
    let added = version("nav", "nav:1");
    let new = new_container(Path::new("/run"), &added).unwrap();
    let known = uses.begin(&new);
    assert!(events.is_full());
    // Its end is not taken, and neither is anything of the next call.
    drop(known);
    drop(uses.begin(&new));
    assert!(matches!(
        events.try_recv(),
        Ok(ImageEvent::UseBegins { .. })
    ));
    assert!(events.is_empty());
}
