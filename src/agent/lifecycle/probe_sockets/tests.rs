//! What answers of HTTP servers and words of commands mean. Real sockets are in `prober/tests.rs`.

use super::super::probe_table::ProbeIo as _;
use super::*;
use crate::model::lifecycle::Pace;
use crate::model::names::InstanceName;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

fn order(key: u64, check: Check) -> ProbeOrder {
    let limit = Duration::from_secs(1);
    ProbeOrder {
        key,
        instance: InstanceName::with_id("w", "id", "A"),
        purpose: Purpose::Ready,
        check,
        pace: Pace { initial_delay: limit, period: limit, timeout: limit },
        successes: 1,
        failures: None,
        target: ProbeTarget::default(),
        notify: None,
        unarmed: false,
        reports: bounded(1).0,
    }
}

/// A network mount whose server is gone: looking at its file kept the only thread, and nobody was checked any more.
#[test]
fn a_path_that_does_not_answer_keeps_no_other_check_waiting() {
    let (release, released) = bounded::<()>(0);
    let look = move |question: &PathQuestion| match question {
        PathQuestion::Exists(path) if path == "/hangs" => {
            let _ = released.recv_timeout(PATIENCE);
            Ok(())
        }
        _ => Ok(()),
    };
    let (wake, woken) = bounded(100);
    let mut io = SocketIo::new(Arc::new(move || wake.send(()).unwrap()), Arc::new(look));
    let hangs = || order(1, Check::File("/hangs".to_owned()));
    assert_eq!(io.begin(&hangs()), None);
    io.abandon(1); // Its time was over.
    assert_eq!(io.begin(&hangs()), None);
    for check in [Check::File("/up".to_owned()), Check::Unix("/socket".to_owned())] {
        assert_eq!(io.begin(&order(2, check)), None);
        woken.recv_timeout(PATIENCE).expect("an answer comes");
        assert_eq!(io.take_ended(), [(2, Outcome::Holds)]);
    }
    drop(release);
    woken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(io.take_ended(), [(1, Outcome::Holds)]);
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
        let failure = reason.map(|reason| Outcome::Fails { reason: reason.to_owned(), answered: true });
        assert_eq!(judge(line.as_bytes(), expected), failure.unwrap_or(Outcome::Holds), "{line}");
    }
}

#[test]
fn of_what_a_command_said_the_last_line_is_shown() {
    for (text, expected) in [
        ("starting\nno such table\n. Execution of 'podman \"exec\"'", "no such table"),
        ("Ended with exit status: 1. Execution of 'podman'", "Ended with exit status: 1"),
        ("", "failed"),
    ] {
        assert_eq!(reason(text), expected);
    }
    assert_eq!(reason(&"x".repeat(5_000)).len(), PROBE_REASON_MAX);
}
