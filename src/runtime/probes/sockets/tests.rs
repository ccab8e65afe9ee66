//! The meaning of answers of HTTP servers and of lines of commands. Real sockets are in
//! `prober/tests.rs`.

use super::super::table::ProbeIo as _;
use super::*;
use crate::probes::probe_order::probe_order;
use ankaios_model::lifecycle::Pace;
use ankaios_model::names::InstanceName;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(180);

fn order(key: u64, check: Check) -> ProbeOrder {
    let limit = Duration::from_secs(1);
    let pace = Pace {
        initial_delay: limit,
        period: limit,
        timeout: limit,
    };
    ProbeOrder {
        key,
        ..probe_order(Purpose::Ready, check, pace, &bounded(1).0)
    }
}

/// A network mount whose server is gone: the probe of a file there blocked the only thread, and all
/// probes ended.
#[test]
fn a_path_that_does_not_answer_keeps_no_other_check_waiting() {
    let (release, released) = bounded::<()>(0);
    let look = move |probe: &PathProbe| match probe {
        PathProbe::Look(path) if path == "/hangs" => {
            let _ = released.recv_timeout(PATIENCE);
            Ok(None)
        }
        _ => Ok(None),
    };
    let (wake, woken) = bounded(100);
    let mut io = SocketIo::new(Arc::new(move || wake.send(()).unwrap()), Arc::new(look));
    let hangs = || order(1, Check::File("/hangs".to_owned()));
    assert_eq!(io.begin(&hangs()), None);
    io.abandon(1); // Its time was over.
    assert_eq!(io.begin(&hangs()), None);
    for check in [
        Check::File("/up".to_owned()),
        Check::Unix("/socket".to_owned()),
    ] {
        assert_eq!(io.begin(&order(2, check)), None);
        woken.recv_timeout(PATIENCE).expect("an answer comes");
        assert_eq!(io.take_ended(), [holds(2)]);
    }
    drop(release);
    woken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(io.take_ended(), [holds(1)]);
}

fn holds(key: u64) -> EndedProbe {
    EndedProbe {
        key,
        outcome: Outcome::Holds,
    }
}

/// Commands run on this machine in place of a container.
struct Execs {
    folder: tempfile::TempDir,
    program: &'static str,
    io: SocketIo,
    woken: Receiver<()>,
}

impl Execs {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A file that is written while another test starts a process cannot be executed until that
        // one runs.
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/probes/sockets/engine.sh");
        let (wake, woken) = bounded(100);
        let io = SocketIo::new(
            Arc::new(move || wake.send(()).unwrap()),
            Arc::new(|_| Ok(None)),
        );
        Self {
            folder,
            program,
            io,
            woken,
        }
    }

    fn begin(&mut self, key: u64, workload: &str, command: &str) {
        let check = Check::Exec(["sh", "-c", command].map(str::to_owned).to_vec());
        let target = ProbeTarget {
            program: self.program,
            container: Some("c".to_owned()),
            processes: Vec::new(),
        };
        let mut order = ProbeOrder {
            instance: InstanceName::with_id(workload, "id", "A"),
            target,
            ..order(key, check)
        };
        order.pace.timeout = PATIENCE;
        assert_eq!(self.io.begin(&order), None);
    }

    /// Starts a command that ends after [`Self::release`], or with the test.
    fn hang(&mut self, key: u64, workload: &str) {
        let folder = self.folder.path().display();
        self.begin(
            key,
            workload,
            &format!("while [ -e '{folder}' ] && [ ! -e '{folder}/end' ]; do sleep 0.05; done"),
        );
    }

    fn release(&self) {
        std::fs::write(self.folder.path().join("end"), "").unwrap();
    }

    /// The probes that end next; waits as the thread does.
    fn next(&mut self) -> Vec<EndedProbe> {
        let give_up = SystemClock.now() + PATIENCE;
        loop {
            let ended = self.io.take_ended();
            if !ended.is_empty() {
                return ended;
            }
            assert!(!SystemClock.until(give_up).is_zero(), "nothing ended");
            let due = self.io.due().map_or(PATIENCE, |due| SystemClock.until(due));
            let _ = self.woken.recv_timeout(due);
        }
    }
}

#[test]
fn hanging_command_of_one_workload_delays_no_other_workload() {
    let mut execs = Execs::new();
    let began = SystemClock.now();
    for key in 0..2 * EXEC_PARALLEL as u64 {
        execs.hang(key, "hostile");
    }
    execs.begin(100, "good", "true");
    assert_eq!(execs.next(), [holds(100)]);
    assert!(SystemClock.now() < began + PATIENCE);
    execs.release();
    let mut keys: Vec<u64> = (0..2 * EXEC_PARALLEL)
        .flat_map(|_| execs.next())
        .map(|probe| probe.key)
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..2 * EXEC_PARALLEL as u64).collect::<Vec<u64>>());
}

#[test]
fn hanging_commands_free_their_slots_and_stay_bounded() {
    let mut execs = Execs::new();
    for key in 0..EXEC_PARALLEL as u64 {
        execs.hang(key, &format!("hangs{key}"));
    }
    execs.begin(100, "good", "true");
    let began = SystemClock.now();
    assert_eq!(execs.next(), [holds(100)]);
    assert!(SystemClock.now() < began + PATIENCE);
    for key in EXEC_PARALLEL as u64..100 {
        execs.hang(key, &format!("hangs{key}"));
    }
    let started = |execs: &mut Execs| {
        execs.io.take_ended();
        execs.io.commands.running.len()
    };
    while started(&mut execs) < EXEC_RUNNING_MAX {
        let _ = execs
            .woken
            .recv_timeout(SystemClock.until(execs.io.due().unwrap()));
    }
    assert_eq!(
        execs
            .io
            .commands
            .take_next(SystemClock.now() + EXEC_SLOT_MAX)
            .map(|command| command.key),
        None
    );
    execs.release();
}

#[test]
fn server_is_not_reset_while_it_sends_after_its_status() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, outcome_is_told) = bounded::<()>(0);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        let _ = outcome_is_told.recv_timeout(PATIENCE);
        for _ in 0..4 {
            stream.write_all(&[b'x'; 8 * 1024]).unwrap();
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new())
    });
    let mut io = SocketIo::new(Arc::new(|| {}), Arc::new(|_| Ok(None)));
    let order = order(
        1,
        Check::Http {
            host: [127, 0, 0, 1].into(),
            port,
            path: "/".to_owned(),
            status: None,
        },
    );
    // A probe of a running workload would be made in the network of its container.
    let order = ProbeOrder {
        purpose: Purpose::Gone,
        ..order
    };
    assert_eq!(io.begin(&order), None);
    let mut outcome = None;
    let give_up = SystemClock.now() + PATIENCE;
    while io.descriptors().count() > 0 && !SystemClock.until(give_up).is_zero() {
        for (_, socket, flags) in io.descriptors() {
            rustix::event::poll(
                &mut [rustix::event::PollFd::from_borrowed_fd(socket, flags)],
                None,
            )
            .unwrap();
        }
        if let Some(known) = io.ready(1) {
            assert_eq!(outcome.replace(known), None, "it is returned once");
            let _ = told.send_timeout((), PATIENCE);
        }
    }
    assert_eq!(outcome, Some(Outcome::Holds));
    assert_eq!(
        server
            .join()
            .unwrap()
            .expect("the connection ends in order"),
        0
    );
}

#[test]
fn the_status_of_an_answer_decides() {
    for (line, expected, reason) in [
        ("HTTP/1.1 200 OK\r", None, None),
        ("HTTP/1.0 302 Found", None, None),
        ("HTTP/1.1 204", Some(204), None),
        ("HTTP/1.1 200 OK", Some(204), Some("status 200")),
        ("HTTP/1.1 503 Service Unavailable", None, Some("status 503")),
        ("SSH-2.0-OpenSSH", None, Some("the answer is not HTTP")),
        ("HTTP/1.1 many", None, Some("the answer is not HTTP")),
        ("", None, Some("the answer is not HTTP")),
    ] {
        let failure = reason.map(|reason| Outcome::Fails {
            reason: reason.to_owned(),
            answered: true,
        });
        assert_eq!(
            evaluate(line.as_bytes(), expected),
            failure.unwrap_or(Outcome::Holds),
            "{line}"
        );
    }
}

#[test]
fn of_what_a_command_said_the_last_line_is_shown() {
    for (text, expected) in [
        ("starting\nno such table\n", "no such table"),
        ("Ended with exit status: 1", "Ended with exit status: 1"),
        ("", "failed"),
    ] {
        assert_eq!(last_line(text), expected);
    }
    assert_eq!(last_line(&"x".repeat(5_000)).len(), 120);
}
