//! Cases without a caller among the engines: outputs that end the call, input that is not read, old
//! kernels.

mod followed;

use super::*;

/// Far more than any of these calls needs; a test that reaches it has failed.
const AMPLE: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_millis(100);
const BOUNDS: OutputBounds = OutputBounds {
    output_max: 1000,
    error_max: 100,
    end_when_exceeded: true,
};

fn shell(script: &str, input: &'static [u8], limit: Duration) -> ChildCall<'static> {
    let arguments = vec!["-c".into(), script.into()];
    ChildCall {
        program: OsStr::new("sh"),
        arguments,
        folder: None,
        variables: vec![],
        input,
        limit: Some(limit),
        bounds: BOUNDS,
        kill_grace: SHORT,
    }
}

fn end_of(script: &str, input: &'static [u8]) -> ChildEnd {
    shell(script, input, AMPLE).run(None, || None).unwrap()
}

#[test]
fn a_child_that_writes_too_much_is_ended_at_once() {
    let end = end_of("yes", b"");
    assert_eq!(
        (end.ending, end.output.len()),
        (Ending::TooMuchOutput, 1000)
    );
    // Also when it is done before that is noticed.
    let end = end_of("head -c 1001 /dev/zero", b"");
    assert_eq!(end.ending, Ending::TooMuchOutput);
    let end = end_of("head -c 1000 /dev/zero", b"");
    assert_eq!(
        (end.ending, end.output.len(), end.discarded),
        (Ending::Itself, 1000, 0)
    );
}

#[test]
fn input_that_was_not_read_is_reported() {
    static LARGE: [u8; 300_000] = [b'x'; 300_000];
    for (script, input, complete) in [
        ("cat >/dev/null", &LARGE[..], true),
        ("exit 0", &LARGE[..], false),
        ("exit 0", b"fits into the pipe", true),
    ] {
        let end = end_of(script, input);
        assert!(end.status.unwrap().success());
        assert_eq!(
            end.input_error.is_none(),
            complete,
            "{script} with {} bytes: {:?}",
            input.len(),
            end.input_error
        );
    }
}

#[test]
fn where_no_pidfd_can_be_had_the_end_is_noticed_all_the_same() {
    for (script, limit, ending) in [
        ("echo done; exit 0", AMPLE, Ending::Itself),
        ("exec sleep 600", SHORT, Ending::TimedOut(SHORT)),
    ] {
        let call = shell(script, b"", limit);
        let mut running = RunningCall::new(call.command().spawn().unwrap(), &call);
        running.pidfd = None;
        let status = running.wait(None, || None);
        assert_eq!(running.end_with(status).ending, ending, "{script}");
    }
}

#[test]
fn the_service_manager_is_hidden_from_the_child() {
    let command = shell("", b"", AMPLE).command();
    let removed: Vec<_> = command
        .get_envs()
        .filter(|(_, value)| value.is_none())
        .map(|(name, _)| name)
        .collect();
    for variable in [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "INVOCATION_ID",
    ] {
        assert!(removed.iter().any(|name| *name == variable), "{variable}");
    }
}

// What follows from it takes a right that tests do not have: tests/systemd/guest.sh shows it.
#[test]
fn only_a_negative_adjustment_protects() {
    for (adjustment, protects) in [
        ("-900\n", true),
        ("-1", true),
        ("0\n", false),
        ("200\n", false),
        ("", false),
    ] {
        assert_eq!(is_negative(adjustment), protects, "{adjustment:?}");
    }
}
