//! What answers of HTTP servers and words of commands mean. Real sockets are in `prober/tests.rs`.

use super::*;

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
