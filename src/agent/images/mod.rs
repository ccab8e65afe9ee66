//! Removes images that no workload of this agent needs any more. Only with the setting
//! `image_cleanup`; without it there is no thread, file or call.
//!
//! Only images that an instance of this agent has used can be removed: they are written to a file
//! before the engine is called. A pass begins when nothing has changed for a while and no start is
//! under way. It removes one image after the other, and decides again before each removal.
//!
//! Thread: `images`; a thread `image-call` for each call of an engine, which it waits for together
//! with its other events, so that a start never waits for more than one removal.
//! Owns: the [`Ledger`] and its file.
//! Takes: uses of images from `call:<name>`, changes from `scheduler`, requests of `usage` and
//! `metrics`. Gives: consents to uses; calls of engines. Waits for `scheduler`, for
//! [`METRICS_WAIT_MAX`] at most, and for its disk.

mod ledger;
pub(crate) mod needs;

use crate::events::SchedulerEvent;
use crate::limits::USAGE_PROCESSES_MAX;
use crate::workload::{Connector, Engines};
use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_model::names::{InstanceName, Name};
use ankaios_platform::clock::{Clock, SystemClock, patience};
use ankaios_platform::limits::{METRICS_WAIT_MAX, STACK_LARGE};
use ankaios_platform::threads::{self, Thread};
use ankaios_runtime::images::{IMAGE_REMOVAL_MAX, ImageRemoval, ImageStore, names_of};
use ankaios_runtime::{NewContainer, RuntimeError};
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded, never, select_biased};
pub(crate) use ledger::LedgerFolder;
use ledger::{Decision, Ledger, StoreKind, UnneededImage, decide};
use log::{debug, error, info, warn};
use needs::ImageNeeds;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Images are removed when nothing has changed for this time. By then a boot is over, and an update
/// that has failed is rolled back.
const QUIET_TIME: Duration = Duration::from_secs(10 * 60);
/// Pause before the next pass if an engine call was under way. Most calls take less.
const BUSY_PAUSE: Duration = Duration::from_secs(60);
/// Pause before the next try, if a removal has failed or the image is in use.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest wait for the bytes of images. Then a sample of the usage is taken without them.
const REPORT_MAX: Duration = Duration::from_millis(300);
const _: () =
    assert!(USAGE_PROCESSES_MAX.as_millis() + REPORT_MAX.as_millis() < USAGE_WAIT_MAX.as_millis());
/// A start waits for the thread `images` this much longer than a removal may take: ending an engine
/// call needs some seconds. The wait is bounded, so that a disk that hangs prevents no start.
const CONSENT_GRACE: Duration = Duration::from_secs(10);
/// Events that wait for the thread `images`. When it is full, all senders except the scheduler
/// wait, for a limited time.
const INBOX: usize = 64;
/// The priority of `image-call`, which its engine calls inherit. In a lower class, a call that
/// holds the lock of the store might never continue.
const LOWEST_PRIORITY: i32 = 19;

/// The use of unneeded images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CleanupMode {
    /// They are only logged.
    Report,
    /// They are removed.
    Replaced,
}

/// How images are cleaned up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanupSettings {
    pub(crate) mode: CleanupMode,
    /// How many versions of a workload are kept beside the desired one.
    pub(crate) history: usize,
    pub(crate) folder: LedgerFolder,
}

/// An event for the thread `images`.
pub(crate) enum ImageEvent {
    /// The desired workloads have changed, or the connection to the server.
    Changed,
    /// An engine is about to be called for an instance.
    UseBegins {
        instance: InstanceName,
        runtime: Name,
        names: BTreeSet<String>,
        /// Dropped when the call may begin.
        consent: Sender<()>,
    },
    /// The engine call for an instance has ended.
    UseEnded {
        instance: InstanceName,
        runtime: Name,
        outcome: UseOutcome,
    },
    Surveyed(StoreKind, Result<ImageStore, RuntimeError>),
    Removed(StoreKind, Removal, Result<(), RuntimeError>),
    /// A request for the images of all workloads.
    Report(Sender<ImageReport>),
}

/// How an engine call has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum UseOutcome {
    /// The image may be missing.
    #[default]
    Failed,
    Prepared,
    Started,
}

/// A removal that was ordered.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    image: UnneededImage,
    removal: ImageRemoval,
    bytes: u64,
}

/// Bytes of images by workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageReport {
    pub(crate) workloads: BTreeMap<String, ImageBytes>,
}

/// Bytes of the images of one workload. Images share layers, so less may be on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ImageBytes {
    pub(crate) all: u64,
    /// The bytes of images that can be removed.
    pub(crate) removable: u64,
}

/// The sending end of the thread `images`.
#[derive(Debug, Clone)]
pub struct ImageUses {
    inbox: Sender<ImageEvent>,
    /// Longest wait of an engine call for this thread.
    wait_max: Duration,
}

/// An engine call under way that uses images.
pub(crate) struct ImageUse {
    uses: ImageUses,
    /// The thread `images` was notified of it.
    is_known: bool,
    instance: InstanceName,
    runtime: Name,
    pub(crate) outcome: UseOutcome,
}

impl ImageUses {
    /// Notes that an engine is about to be called for this instance. Waits until its images are in
    /// the ledger on the disk and no removal is under way, but at most `wait_max`.
    // [impl->swdd~agent-removes-no-image-beside-a-start~1]
    pub(crate) fn begin(&self, new: &NewContainer) -> ImageUse {
        let (consent, wait) = bounded::<()>(0);
        let runtime = new.workload.runtime.clone();
        let event = ImageEvent::UseBegins {
            instance: new.instance.clone(),
            runtime: runtime.clone(),
            names: names_of(&new.workload),
            consent,
        };
        let until = SystemClock.now() + self.wait_max;
        // An image that is not known in time is never removed.
        let is_known = self.inbox.send_deadline(event, until).is_ok();
        if is_known {
            // The wait ends when the other end is dropped; nothing is ever sent.
            let _ = wait.recv_deadline(until);
        }
        ImageUse {
            uses: self.clone(),
            is_known,
            instance: new.instance.clone(),
            runtime,
            outcome: UseOutcome::Failed,
        }
    }

    /// Reports that the desired workloads may have changed; never waits.
    pub(crate) fn changed(&self) {
        // If it is full, uses of images wait in it, which delay the clean-up as well.
        let _ = self.inbox.try_send(ImageEvent::Changed);
    }

    /// The bytes of the images of all workloads; `None` when they are not known within
    /// [`REPORT_MAX`].
    pub(crate) fn report(&self) -> Option<ImageReport> {
        let until = SystemClock.now() + REPORT_MAX;
        let (reply, report) = bounded(1);
        let event = ImageEvent::Report(reply);
        self.inbox.send_deadline(event, until).ok()?;
        report.recv_deadline(until).ok()
    }
}

impl Drop for ImageUse {
    /// Reports the end of the engine call.
    fn drop(&mut self) {
        if !self.is_known {
            return; // Its begin was not noted either.
        }
        let event = ImageEvent::UseEnded {
            instance: self.instance.clone(),
            runtime: self.runtime.clone(),
            outcome: self.outcome,
        };
        let ImageUses { inbox, wait_max } = &self.uses;
        if let Err(SendTimeoutError::Timeout(_)) = inbox.send_timeout(event, *wait_max) {
            warn!(
                "No image is removed any more until the agent is started again: the folder of the known images does not \
                 answer, and the end of a start was not noted."
            );
        }
    }
}

/// Reads the needs of all workloads; `None` when they are not known in time.
pub(crate) type ReadNeeds = Box<dyn Fn() -> Option<ImageNeeds> + Send>;

/// Requests the needs from the scheduler.
pub(crate) fn needs_of(scheduler: Sender<SchedulerEvent>) -> ReadNeeds {
    Box::new(move || {
        let (reply, needs) = bounded(1);
        let event = SchedulerEvent::ImageNeeds(reply);
        scheduler.send_timeout(event, METRICS_WAIT_MAX).ok()?;
        needs.recv_timeout(METRICS_WAIT_MAX).ok()
    })
}

/// A call of an engine, with the report of its result.
pub(crate) type ImageCall = Box<dyn FnOnce() + Send>;

/// Starts calls. Tests run them when they want.
pub(crate) type StartImageCall = Box<dyn Fn(ImageCall) -> io::Result<()> + Send>;

/// Runs each call on a thread of its own, with the lowest priority.
fn on_threads() -> StartImageCall {
    Box::new(|call| {
        let call = move || {
            // The priority applies to this thread only, and to the engine calls that it makes.
            if let Err(error) = rustix::process::nice(LOWEST_PRIORITY) {
                debug!("Images are removed with the usual priority: '{error}'");
            }
            call();
        };
        threads::spawn("image-call", STACK_LARGE, call)?;
        Ok(())
    })
}

/// The number of this day since 1970; 0 while the clock is set to an earlier time.
fn today() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs() / DAY.as_secs()
}

/// Returns [`QUIET_TIME`]; in development builds, the time in the environment variable
/// `ANKAIOS_TEST_IMAGE_QUIET_MS` if it is set.
fn quiet_time() -> Duration {
    #[cfg(debug_assertions)]
    if let Ok(text) = std::env::var("ANKAIOS_TEST_IMAGE_QUIET_MS")
        && let Ok(milliseconds) = text.parse()
    {
        return Duration::from_millis(milliseconds);
    }
    QUIET_TIME
}

/// The pause before the next pass if an engine call is under way.
fn busy_pause() -> Duration {
    quiet_time().min(BUSY_PAUSE)
}

/// The receiving end of the thread `images`, until it is started.
pub(crate) struct ImageInbox {
    uses: ImageUses,
    events: Receiver<ImageEvent>,
}

impl ImageInbox {
    pub(crate) fn new() -> Self {
        let (inbox, events) = bounded(INBOX);
        let wait_max = patience(IMAGE_REMOVAL_MAX) + CONSENT_GRACE;
        let uses = ImageUses { inbox, wait_max };
        Self { uses, events }
    }

    pub(crate) fn uses(&self) -> ImageUses {
        self.uses.clone()
    }

    /// Starts the thread `images`, which ends when the other end of `stop` is dropped.
    pub(crate) fn start<C: Clock>(
        self,
        settings: CleanupSettings,
        agent: Name,
        clock: C,
        engines: Arc<Engines>,
        scheduler: Sender<SchedulerEvent>,
        stop: Receiver<()>,
    ) -> io::Result<Thread> {
        let keeper = ImageKeeper::new(
            settings,
            agent,
            clock,
            engines,
            needs_of(scheduler),
            self.uses.inbox,
            on_threads(),
        );
        threads::spawn("images", STACK_LARGE, move || {
            keeper.run(&self.events, &stop)
        })
    }
}

/// Owns the ledger, and decides when which image is removed.
pub(crate) struct ImageKeeper<C: Clock> {
    settings: CleanupSettings,
    agent: Name,
    clock: C,
    engines: Arc<Engines>,
    read_needs: ReadNeeds,
    inbox: Sender<ImageEvent>,
    start_call: StartImageCall,
    today: fn() -> u64,
    ledger: Ledger,
    /// The ledger has changed since it was written to its file.
    is_unsaved: bool,
    /// The file of an earlier agent cannot be read, so nothing is removed or written.
    is_damaged: bool,
    /// The number of engine calls under way that use images.
    uses: usize,
    /// The consents of engine calls that wait for the end of a removal.
    waiting: Vec<Sender<()>>,
    call: Option<CallKind>,
    pass: Option<Pass>,
    /// Stores with an image in use whose id is not known yet.
    unseen: BTreeSet<StoreKind>,
    /// When to begin a pass.
    due: Option<Instant>,
    /// When this agent has run for a whole day since it added the last day.
    day_ends: Instant,
    /// Images whose removal has failed, with the time of the next try.
    postponed: BTreeMap<UnneededImage, Instant>,
    /// Images that the last pass has logged as removable. The next one does not repeat that.
    logged: BTreeSet<UnneededImage>,
    /// The last error of a listing. The log does not repeat it.
    list_error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Survey,
    Removal,
}

/// One search for images to remove: store by store, image by image.
struct Pass {
    needs: ImageNeeds,
    /// The ledgers of other agents.
    others: Vec<Ledger>,
    /// Stores that are not done yet, the present one last.
    stores: Vec<StoreKind>,
    /// An unneeded image is kept for now, because a container uses it for example.
    has_kept: bool,
    /// Images that were only logged.
    removable: BTreeSet<UnneededImage>,
}

impl<C: Clock> ImageKeeper<C> {
    /// Returns a keeper with the ledger of the earlier agent, if its file can be read.
    pub(crate) fn new(
        settings: CleanupSettings,
        agent: Name,
        clock: C,
        engines: Arc<Engines>,
        read_needs: ReadNeeds,
        inbox: Sender<ImageEvent>,
        start_call: StartImageCall,
    ) -> Self {
        let now = clock.now();
        let read = settings.folder.read();
        let is_damaged = read.is_err();
        if let Err(error) = &read {
            error!(
                "The file with the known images cannot be read: {error}. No image is removed. Move it away and restart \
                 the agent to begin without: images that were used until now then stay until they are used again."
            );
        }
        Self {
            settings,
            agent,
            clock,
            engines,
            read_needs,
            inbox,
            start_call,
            today,
            ledger: read.unwrap_or_default(),
            is_unsaved: false,
            is_damaged,
            uses: 0,
            waiting: Vec::new(),
            call: None,
            pass: None,
            unseen: BTreeSet::new(),
            due: Some(now + quiet_time()),
            day_ends: now + DAY,
            postponed: BTreeMap::new(),
            logged: BTreeSet::new(),
            list_error: String::new(),
        }
    }

    /// Handles events until the other end of `stop` is dropped.
    fn run(mut self, events: &Receiver<ImageEvent>, stop: &Receiver<()>) {
        loop {
            let alarm = match self.due {
                Some(at) => self.clock.alarm(at),
                None => never(),
            };
            select_biased! {
                recv(stop) -> _ => return,
                recv(events) -> event => match event {
                    Ok(event) => self.on_event(event),
                    Err(_) => return,
                },
                recv(alarm) -> _ => self.tick(),
            }
        }
    }

    /// When to call [`Self::tick`].
    #[cfg(test)]
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Handles one event.
    pub(crate) fn on_event(&mut self, event: ImageEvent) {
        match event {
            ImageEvent::Changed => self.changed(),
            ImageEvent::UseBegins {
                instance,
                runtime,
                names,
                consent,
            } => self.use_begins(&instance, &runtime, names, consent),
            ImageEvent::UseEnded {
                instance,
                runtime,
                outcome,
            } => self.use_ended(&instance, &runtime, outcome),
            ImageEvent::Surveyed(kind, result) => self.surveyed(kind, result),
            ImageEvent::Removed(kind, removal, result) => self.removed(kind, &removal, result),
            ImageEvent::Report(reply) => _ = reply.try_send(self.report()),
        }
    }

    /// Begins a pass if one is due.
    pub(crate) fn tick(&mut self) {
        if self.due.is_some_and(|at| at <= self.clock.now()) {
            self.due = None;
            self.begin_pass();
        }
    }

    /// Ends the pass under way, and postpones the next one until nothing has changed for
    /// [`QUIET_TIME`].
    fn changed(&mut self) {
        self.pass = None;
        self.due = Some(self.clock.now() + quiet_time());
    }

    /// Ends the pass under way, and postpones the next one for a moment only: a workload that is
    /// restarted again and again must not prevent all passes.
    fn interrupt(&mut self) {
        if self.pass.take().is_some() {
            self.due = Some(self.clock.now() + busy_pause());
        }
    }

    // -------------------------------------------------------------------- uses

    /// Notes a use of images on the disk. The engine call may begin when `consent` is dropped:
    /// after the removal under way, if there is one.
    fn use_begins(
        &mut self,
        instance: &InstanceName,
        runtime: &Name,
        names: BTreeSet<String>,
        consent: Sender<()>,
    ) {
        self.uses += 1;
        self.interrupt();
        if !names.is_empty() && self.ledger.note_use(instance, runtime, names) {
            self.is_unsaved = true;
            self.changed();
        }
        self.save();
        if self.call == Some(CallKind::Removal) {
            self.waiting.push(consent);
        }
    }

    /// Notes the end of a use, and whether the instance was started.
    fn use_ended(&mut self, instance: &InstanceName, runtime: &Name, outcome: UseOutcome) {
        self.uses = self.uses.saturating_sub(1);
        if outcome == UseOutcome::Started && self.ledger.note_start(instance, runtime) {
            self.is_unsaved = true;
            self.changed();
            self.save();
        }
        let kind = StoreKind::of_runtime(runtime);
        if outcome != UseOutcome::Failed && self.ledger.has_unseen(kind) {
            self.unseen.insert(kind);
        }
        self.survey_unseen();
    }

    /// Lists a store with images that were used for the first time, to learn their ids: later their
    /// names may belong to other images.
    fn survey_unseen(&mut self) {
        if self.uses > 0 || self.call.is_some() || self.is_damaged {
            return; // The end of a use or call tries again. Without a ledger no id is kept.
        }
        if let Some(kind) = self.unseen.pop_first() {
            self.survey(kind);
        }
    }

    /// Writes the ledger to its file. As long as that fails, nothing is removed.
    // [impl->swdd~agent-knows-images-before-their-use~1]
    fn save(&mut self) {
        if !self.is_unsaved || self.is_damaged {
            return; // A damaged file stays as it is, for the user.
        }
        match self.settings.folder.write(&self.ledger) {
            Ok(()) => self.is_unsaved = false,
            Err(error) => error!(
                "Cannot write the known images to '{}': {error}. No image is removed until it can be written. Make room \
                 there or make it writable.",
                self.settings.folder.path().display()
            ),
        }
    }

    // -------------------------------------------------------------------- pass

    /// Begins a pass. It is postponed
    /// - for a moment, if an engine call is under way;
    /// - for [`QUIET_TIME`], if the desired workloads are not known or an update is open;
    /// - for a day, if the ledgers of other agents cannot be read or ours cannot be written.
    fn begin_pass(&mut self) {
        if self.is_damaged {
            return; // It is not known which images are ours, so none is removed.
        }
        let now = self.clock.now();
        if self.uses > 0 || self.call.is_some() {
            self.due = Some(now + busy_pause());
            return;
        }
        let needs = (self.read_needs)().unwrap_or_default();
        if !needs.is_settled || needs.is_update_open {
            self.due = Some(now + quiet_time());
            return;
        }
        // First: the ledger says which versions are needed, and is on the disk.
        let has_run_a_day = self.day_ends <= now;
        if has_run_a_day {
            self.day_ends = now + DAY;
        }
        self.is_unsaved |= self.ledger.count_day((self.today)(), has_run_a_day);
        self.is_unsaved |= self.ledger.apply(&needs, self.settings.history);
        self.save();
        // Then: the needs of other agents.
        let others = match self.settings.folder.read_others() {
            Ok(others) if !self.is_unsaved => others,
            Ok(_) => return self.due = Some(now + DAY),
            Err(error) => {
                error!(
                    "The file with the known images of another agent cannot be read: {error}. No image is removed. Move \
                     the file away if no agent needs it."
                );
                return self.due = Some(now + DAY);
            }
        };
        // Finally: the stores.
        self.postponed.retain(|_, until| *until > now);
        let mut stores = vec![StoreKind::Containerd, StoreKind::Podman];
        stores.retain(|kind| self.ledger.has_store(*kind));
        self.pass = Some(Pass {
            needs,
            others,
            stores,
            has_kept: false,
            removable: BTreeSet::new(),
        });
        self.continue_pass();
    }

    /// Lists the present store of the pass again, or ends the pass.
    fn continue_pass(&mut self) {
        let Some(pass) = &self.pass else {
            return self.survey_unseen();
        };
        match pass.stores.last() {
            Some(kind) => self.survey(*kind),
            None => self.end_pass(),
        }
    }

    /// Ends the pass. The next one begins when an image may be removed that was kept now.
    fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else {
            return;
        };
        let mut dues: Vec<Instant> = self.postponed.values().copied().collect();
        if pass.has_kept {
            dues.push(self.clock.now() + DAY);
        }
        if self.ledger.has_deleted() {
            dues.push(self.day_ends);
        }
        self.due = dues.into_iter().min();
        self.logged = pass.removable;
        self.survey_unseen();
    }

    /// A connector of an engine with this store; `None` when none is enabled any more.
    fn connector(&self, kind: StoreKind) -> Option<Connector> {
        for runtime in kind.runtimes() {
            if let Some(source) = self.engines.get(*runtime) {
                return Some((source.connect)());
            }
        }
        None
    }

    /// Starts the engine call that lists a store.
    fn survey(&mut self, kind: StoreKind) {
        let Some(mut connector) = self.connector(kind) else {
            return self.leave_store();
        };
        let inbox = self.inbox.clone();
        self.begin_call(
            CallKind::Survey,
            Box::new(move || {
                let result = connector.image_store();
                let _ = inbox.send(ImageEvent::Surveyed(kind, result)); // Gone with the agent.
            }),
        );
    }

    /// Starts an engine call. If no thread can be started, the pass ends for a day.
    fn begin_call(&mut self, kind: CallKind, call: ImageCall) {
        match (self.start_call)(call) {
            Ok(()) => self.call = Some(kind),
            Err(error) => {
                warn!(
                    "Unneeded images are left for a day, because no thread can be started: '{error}'"
                );
                self.pass = None;
                self.due = Some(self.clock.now() + DAY);
            }
        }
    }

    /// Continues the pass with the next store, since the present one is done.
    fn leave_store(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.stores.pop();
            self.continue_pass();
        }
    }

    /// Takes the listing of a store: updates the ledger, and removes the next unneeded image of the
    /// pass.
    fn surveyed(&mut self, kind: StoreKind, result: Result<ImageStore, RuntimeError>) {
        self.call = None;
        let store = match result {
            Ok(store) => store,
            Err(error) => {
                let text = error.reason();
                if self.list_error != text {
                    warn!("Cannot list images, trying again in a day: '{text}'");
                    self.list_error = text;
                }
                if self.pass.take().is_some() {
                    self.due = Some(self.clock.now() + DAY);
                }
                return;
            }
        };
        // First: the ids.
        self.list_error.clear();
        self.is_unsaved |= self.ledger.see(kind, &store, &self.agent);
        self.save();
        let Some(pass) = &mut self.pass else {
            return self.survey_unseen(); // Only the ids were wanted, or the pass was ended.
        };
        // Then: the decision about each unneeded image.
        let needed = self.ledger.needed(kind, &store, &pass.needs, &pass.others);
        let mut removals = Vec::new();
        for image in self.ledger.unneeded(kind) {
            if self.postponed.contains_key(&image) {
                continue;
            }
            match decide(&image, &store, &needed) {
                Decision::Forget => {
                    self.ledger.forget(kind, &image);
                    self.is_unsaved = true;
                }
                Decision::Keep => pass.has_kept = true,
                Decision::Remove { removal, bytes } => removals.push(Removal {
                    image,
                    removal,
                    bytes,
                }),
            }
        }
        // Finally: one removal. The ledger must be on the disk before.
        self.save();
        if self.settings.mode == CleanupMode::Report {
            self.log_removable(removals);
            return self.leave_store();
        }
        match removals.into_iter().next() {
            Some(removal) if !self.is_unsaved && self.uses == 0 => self.remove(kind, removal),
            _ => self.leave_store(),
        }
    }

    /// Logs the images that could be removed, without those that the last pass has logged.
    // [impl->swdd~agent-reports-removable-images~1]
    fn log_removable(&mut self, removals: Vec<Removal>) {
        let Some(pass) = &mut self.pass else {
            return;
        };
        for Removal { image, bytes, .. } in removals {
            if !self.logged.contains(&image) {
                let UnneededImage { workload, name, .. } = &image;
                info!(
                    "Image '{name}' of workload '{workload}' could be removed ({}).",
                    mebibytes(bytes)
                );
            }
            pass.removable.insert(image);
        }
    }

    /// Starts the engine call that removes one image. If a container uses it since the listing, the
    /// engine refuses.
    fn remove(&mut self, kind: StoreKind, removal: Removal) {
        let Some(mut connector) = self.connector(kind) else {
            return self.leave_store();
        };
        let inbox = self.inbox.clone();
        self.begin_call(
            CallKind::Removal,
            Box::new(move || {
                let result = connector.remove_image(&removal.removal);
                // Gone with the agent.
                let _ = inbox.send(ImageEvent::Removed(kind, removal, result));
            }),
        );
    }

    /// Takes the result of a removal, and continues the pass.
    fn removed(&mut self, kind: StoreKind, removal: &Removal, result: Result<(), RuntimeError>) {
        self.call = None;
        self.waiting.clear(); // The engine calls that waited begin now.
        let UnneededImage { workload, name, .. } = &removal.image;
        match result {
            Ok(()) => {
                info!(
                    "Removed image '{name}', which workload '{workload}' does not need any more ({}).",
                    mebibytes(removal.bytes)
                );
                self.ledger.forget(kind, &removal.image);
                self.is_unsaved = true;
                self.save();
            }
            Err(error) => {
                warn!(
                    "Cannot remove image '{name}' of workload '{workload}', trying again in a day: '{}'",
                    error.reason()
                );
                let until = self.clock.now() + DAY;
                self.postponed.insert(removal.image.clone(), until);
            }
        }
        self.continue_pass();
    }

    // ------------------------------------------------------------------ report

    /// The bytes of the images of all workloads, as the ledger has them. No engine is called.
    fn report(&self) -> ImageReport {
        let mut ledger = self.ledger.clone();
        let needs = (self.read_needs)().unwrap_or_default();
        let may_remove = needs.is_settled && !needs.is_update_open && !self.is_damaged;
        if may_remove {
            ledger.apply(&needs, self.settings.history);
        }
        let mut workloads = ledger.bytes();
        if !may_remove {
            for bytes in workloads.values_mut() {
                bytes.removable = 0;
            }
        }
        ImageReport { workloads }
    }
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / (1024 * 1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
