//! What a scripted service manager receives, with a clock that the test moves.

use super::*;
use crate::manual_clock::ManualClock;
use crate::watchdog::Heartbeat;
use std::ffi::OsString;
use std::io::ErrorKind;
use tempfile::TempDir;

const WATCHDOG: Duration = Duration::from_secs(10);
/// Longest wait for what must come.
const AMPLE: Duration = Duration::from_secs(180);

/// A service manager that only receives.
struct Manager {
    socket: UnixDatagram,
    name: OsString,
    _folder: TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            name: path.into(),
            _folder: folder,
        }
    }

    /// The message that has come, if any.
    fn received(&self) -> Option<String> {
        let mut room = [0; 4096];
        match self.socket.recv(&mut room) {
            Ok(length) => Some(String::from_utf8(room[..length].to_vec()).unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }
}

/// Two threads that are watched, and who watches them.
struct Rig {
    manager: Manager,
    clock: ManualClock,
    notifier: Notifier<ManualClock>,
    one: Heartbeat,
    two: Heartbeat,
}

impl Rig {
    fn new(watchdog: Option<Duration>) -> Self {
        let (manager, clock) = (Manager::new(), ManualClock::new());
        let service = ServiceManager::new(&manager.name, watchdog).unwrap();
        let mut threads = WatchedThreads::unattended();
        let (one, two) = (threads.add("one"), threads.add("two"));
        let socket = service.socket.clone().unwrap();
        let notifier = Notifier::new(socket, service.status(), threads, watchdog, clock.clone());
        Self {
            manager,
            clock,
            notifier,
            one,
            two,
        }
    }

    /// One that has reported that it is ready.
    fn ready(watchdog: Option<Duration>) -> Self {
        let mut rig = Self::new(watchdog);
        rig.both_turn();
        rig.notifier.check();
        assert_eq!(rig.manager.received().as_deref(), Some("READY=1\nSTATUS="));
        rig
    }

    fn both_turn(&self) {
        self.one.turn();
        self.two.turn();
    }

    /// Lets so much time pass, with all checks of the threads that are due meanwhile.
    fn pass(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while let Some(due) = self.notifier.due.filter(|due| *due <= end) {
            self.clock.advance(self.clock.until(due));
            self.notifier.check();
        }
        self.clock.advance(self.clock.until(end));
    }
}

#[test]
fn ready_is_sent_with_the_status_once_all_threads_have_run() {
    let mut rig = Rig::new(Some(WATCHDOG));
    rig.notifier.board.workloads(|| "no workloads".to_owned());
    rig.notifier.board.connection(|| "Connecting".to_owned());
    rig.one.turn();
    rig.pass(WATCHDOG);
    assert_eq!(
        rig.manager.received(),
        None,
        "the other thread has not run yet"
    );
    rig.two.turn();
    rig.pass(VITAL_CHECK_MAX);
    assert_eq!(
        rig.manager.received().as_deref(),
        Some("READY=1\nSTATUS=Connecting; no workloads")
    );
    assert_eq!(rig.manager.received(), None);
}

#[test]
fn all_is_well_at_half_of_the_time_when_every_thread_went_on() {
    let mut rig = Rig::ready(Some(WATCHDOG));
    for _ in 0..3 {
        rig.both_turn();
        rig.pass(WATCHDOG / 2 - Duration::from_millis(1));
        assert_eq!(rig.manager.received(), None);
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.manager.received().as_deref(), Some("WATCHDOG=1"));
    }
}

#[test]
fn an_idle_thread_is_nudged_and_its_turn_counts() {
    let mut rig = Rig::ready(Some(WATCHDOG));
    rig.pass(WATCHDOG / 2);
    assert_eq!(rig.manager.received(), None);
    for heartbeat in [&rig.one, &rig.two] {
        heartbeat.woken().try_recv().expect("it was woken");
        heartbeat.turn();
    }
    rig.pass(VITAL_CHECK_FIRST);
    assert_eq!(rig.manager.received().as_deref(), Some("WATCHDOG=1"));
}

#[test]
fn nothing_is_sent_as_long_as_one_thread_is_stuck() {
    let mut rig = Rig::ready(Some(WATCHDOG));
    for _ in 0..100 {
        rig.one.turn();
        rig.pass(WATCHDOG / 10);
        assert_eq!(rig.manager.received(), None);
    }
    // It was slow and not stuck, and the manager is patient: it gets a sign at once, and not at the
    // next half.
    rig.two.turn();
    rig.pass(VITAL_CHECK_MAX);
    assert_eq!(rig.manager.received().as_deref(), Some("WATCHDOG=1"));
}

#[test]
fn a_turn_before_the_last_message_does_not_count_for_the_next() {
    let mut rig = Rig::ready(Some(WATCHDOG));
    rig.both_turn();
    rig.pass(WATCHDOG / 2);
    assert_eq!(rig.manager.received().as_deref(), Some("WATCHDOG=1"));
    rig.one.turn();
    rig.pass(WATCHDOG);
    assert_eq!(rig.manager.received(), None);
}

#[test]
fn without_a_watchdog_nobody_is_nudged_after_the_start() {
    let mut rig = Rig::ready(None);
    assert_eq!(rig.notifier.due, None);
    rig.pass(WATCHDOG * 10);
    assert_eq!(rig.manager.received(), None);
    assert!(rig.one.woken().is_empty() && rig.two.woken().is_empty());
}

#[test]
fn the_status_is_sent_when_it_has_changed_and_then_rests() {
    let mut rig = Rig::ready(None);
    rig.notifier.rest_until = None;
    rig.notifier.send_status();
    assert_eq!(rig.manager.received(), None, "it is the same");
    rig.notifier
        .board
        .workloads(|| "2 workloads\r\nREADY=0".to_owned());
    assert!(rig.notifier.listens_for_changes());
    rig.notifier.send_status();
    assert_eq!(
        rig.manager.received().as_deref(),
        Some("STATUS=2 workloads  READY=0"),
        "one line, or it would be a command"
    );
    assert!(!rig.notifier.listens_for_changes());
    assert_eq!(
        rig.notifier.rest_until,
        Some(rig.clock.now() + SERVICE_STATUS_REST)
    );
}

#[test]
fn a_long_status_is_cut_between_letters() {
    let board = StatusBoard(Some(Arc::new(Board {
        status: Mutex::default(),
        changed: bounded(1).0,
    })));
    board.connection(|| "ä".repeat(SERVICE_STATUS_MAX));
    assert_eq!(board.text(), "ä".repeat(SERVICE_STATUS_MAX / 2));
}

#[test]
fn the_thread_sends_all_this_and_ends() {
    let manager = Manager::new();
    manager.socket.set_nonblocking(false).unwrap();
    manager.socket.set_read_timeout(Some(AMPLE)).unwrap();
    let service = ServiceManager::new(&manager.name, Some(Duration::from_millis(2))).unwrap();
    let mut threads = WatchedThreads::unattended();
    let heartbeat = threads.add("one");
    heartbeat.outside(|| {
        let (running, thread) = service.watch(threads).unwrap().expect("a manager listens");
        assert_eq!(manager.received().as_deref(), Some("READY=1\nSTATUS="));
        assert_eq!(manager.received().as_deref(), Some("WATCHDOG=1"));
        service.status().workloads(|| "1 workload".to_owned());
        let received =
            std::iter::from_fn(|| manager.received()).find(|message| message != "WATCHDOG=1");
        assert_eq!(received.as_deref(), Some("STATUS=1 workload"));
        service.stopping();
        let received =
            std::iter::from_fn(|| manager.received()).find(|message| message != "WATCHDOG=1");
        assert_eq!(received.as_deref(), Some("STOPPING=1\nSTATUS=Stopping"));
        drop(running);
        assert_eq!(threads::join_all([thread], AMPLE), [""; 0]);
    });
}

#[test]
fn an_abstract_name_is_understood_as_well() {
    let name = format!("ankaios-lite-test-{}", uuid::Uuid::new_v4());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(AMPLE)).unwrap();
    let service = ServiceManager::new(OsStr::new(&format!("@{name}")), None).unwrap();
    service.stopping();
    let mut room = [0; 100];
    let length = socket.recv(&mut room).unwrap();
    assert_eq!(&room[..length], b"STOPPING=1\nSTATUS=Stopping");
}

#[test]
fn another_kind_of_socket_is_refused() {
    let error = ServiceManager::new(OsStr::new("vsock:2:1234"), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_manager_that_is_gone_stops_nothing() {
    let mut rig = Rig::new(Some(WATCHDOG));
    drop(rig.manager);
    rig.one.turn();
    rig.two.turn();
    rig.notifier.check();
    assert!(rig.notifier.ready);
}

#[test]
fn without_a_manager_nothing_is_sent_or_watched() {
    let service = ServiceManager::default();
    let mut threads = WatchedThreads::unattended();
    let heartbeat = threads.add("one");
    assert!(service.watch(threads).unwrap().is_none());
    service
        .status()
        .connection(|| unreachable!("nobody wants to know"));
    service.stopping();
    assert!(heartbeat.woken().is_empty());
}
