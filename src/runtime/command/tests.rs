//! Scripted children: what a call gives back, and that no child can hang, flood or outlive it.

use super::*;
use ankaios_platform::limits::PIPE_CONTENT_MAX;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::fs;
use std::os::fd::AsFd as _;

/// Far more than any of these calls needs; a test that reaches it has failed.
const AMPLE: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_millis(100);

fn shell(script: &str) -> EngineCall<'static> {
    EngineCall::new("sh", ["-c", script]).limit(AMPLE)
}

fn text_of(call: EngineCall<'_>) -> Result<String, RuntimeError> {
    call.run(None)?.into_text()
}

/// Waits until the process is gone; false when it stays.
fn is_gone(pid: &str) -> bool {
    let Some(pid) = Pid::from_raw(pid.trim().parse().unwrap()) else {
        return false;
    };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let wait = Timespec::try_from(AMPLE).unwrap();
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&wait)) == Ok(1)
}

#[test]
fn arguments_reach_the_program_unchanged_and_output_comes_back() {
    let arguments = ["%s|", "a b", "$HOME", "\"q\"", "*", ""];
    assert_eq!(
        text_of(EngineCall::new("printf", arguments)),
        Ok("a b|$HOME|\"q\"|*||".to_owned())
    );
}

#[test]
fn a_failed_call_tells_what_the_engine_said_and_what_was_called() {
    for (script, said, code) in [
        (
            "echo; echo ' Error: no' >&2; exit 125",
            "Error: no",
            Some(125),
        ),
        ("exit 3", "Ended with exit status: 3", Some(3)),
        ("kill -9 $$", "Ended with signal: 9 (SIGKILL)", None),
    ] {
        let error = RuntimeError::Failed(CallError {
            text: said.to_owned(),
            call: Some(format!("'sh \"-c\" \"{script}\"'")),
            code,
            meaning: ErrorMeaning::Failure,
        });
        let shown = format!("{said}. Execution of 'sh \"-c\" \"{script}\"'");
        assert_eq!(error.to_string(), shown);
        assert_eq!(text_of(shell(script)), Err(error));
    }
}

#[test]
fn a_partial_answer_is_taken_where_it_helps() {
    assert_eq!(
        text_of(shell("echo one; exit 1").partial()),
        Ok("one\n".to_owned())
    );
    assert!(matches!(
        text_of(shell("echo two >&2; exit 1").partial()),
        Err(RuntimeError::Failed(_))
    ));
    assert!(matches!(
        text_of(shell("echo one; exit 1")),
        Err(RuntimeError::Failed(_))
    ));
}

#[test]
fn a_missing_program_is_named() {
    let call = EngineCall::new("no-such-engine", ["ps", "a b"]);
    let missing = CallError::in_call(
        "Error: 'no-such-engine' cannot be started: No such file or directory (os error 2)".into(),
        "'no-such-engine \"ps\" \"a b\"'".into(),
    );
    assert_eq!(text_of(call), Err(RuntimeError::NotInstalled(missing)));
}

#[test]
fn input_larger_than_a_pipe_passes_while_output_comes_back() {
    let input: String = "0123456789abcdef\n".repeat(100_000);
    let call = EngineCall::new("cat", [""; 0])
        .limit(AMPLE)
        .input(input.as_bytes());
    assert_eq!(text_of(call), Ok(input));
}

#[test]
fn a_child_that_does_not_read_its_input_is_no_error() {
    let input = vec![b'x'; 4 * PIPE_CONTENT_MAX];
    assert_eq!(
        text_of(shell("exec 0<&-; echo done").input(&input)),
        Ok("done\n".to_owned())
    );
    assert_eq!(
        text_of(shell("cat")),
        Ok(String::new()),
        "without input the child reads an end of file"
    );
}

#[test]
fn output_over_the_bound_is_dropped_and_cannot_be_used() {
    let result = text_of(shell("head -c 20000000 /dev/zero"));
    let Err(RuntimeError::Failed(error)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(
        error.text,
        "20000000 bytes of output are too many, at most 16777216 can be read"
    );
    let result = shell("head -c 20000000 /dev/zero").run(None).unwrap();
    assert_eq!(
        (result.bytes.len(), result.discarded),
        (ENGINE_OUTPUT_MAX, 20_000_000 - ENGINE_OUTPUT_MAX as u64)
    );
}

#[test]
fn the_end_of_a_long_error_is_kept_while_both_pipes_are_flooded() {
    let script = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait; echo 'Error: the reason' >&2; exit 1";
    let result = text_of(shell(script));
    let Err(RuntimeError::Failed(error)) = result else {
        panic!("{result:?}")
    };
    let said = error.text;
    assert!(said.starts_with("... "), "{said:?}");
    assert!(said.ends_with("Error: the reason"));
    assert!(said.len() <= ENGINE_ERROR_MAX + 4);
}

#[test]
fn output_that_is_not_text_is_an_error() {
    let result = text_of(shell("printf '\\377'"));
    assert!(
        matches!(&result, Err(RuntimeError::Failed(error)) if error.text.starts_with("The output is not text: ")),
        "{result:?}"
    );
}

#[test]
fn a_call_that_takes_too_long_is_ended_with_its_helpers() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // The helper ignores SIGTERM; the call itself ends politely.
    let script = format!(
        "(trap '' TERM; exec sleep 600) & printf 'Trying to pull\\nCopying\\n' >&2; echo $! >{0}; echo $$ >>{0}; wait",
        pids.display()
    );
    let result = shell(&script).limit(SHORT).run_extended(None, || {
        let written =
            || fs::read_to_string(&pids).is_ok_and(|text| text.matches('\n').count() == 2);
        while !written() {
            std::thread::yield_now();
        }
        None
    });
    let Err(RuntimeError::TimedOut(error)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(
        error.text,
        "No answer within 100ms. It wrote: 'Trying to pull; Copying'"
    );
    assert!(error.call.unwrap().starts_with("'sh "));
    let pids = fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        assert!(is_gone(pid), "process {pid} stays");
    }
}

#[test]
fn a_call_that_ignores_sigterm_is_killed() {
    let result = text_of(shell("trap '' TERM; while :; do sleep 600; done").limit(SHORT * 3));
    assert!(
        matches!(&result, Err(RuntimeError::TimedOut(error)) if error.text == "No answer within 300ms"),
        "{result:?}"
    );
}

#[test]
fn a_limit_can_be_extended_once_by_asking() {
    let script = "read line; exit 0";
    // The fifo has no writer, so only the limits end the call.
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let script = format!("{{ {script}; }} <{}", fifo.display());
    let call = shell(&script).limit(SHORT);
    let result = call.run_extended(None, || Some(SHORT));
    assert!(
        matches!(&result, Err(RuntimeError::TimedOut(error)) if error.text == "No answer within 200ms"),
        "{result:?}"
    );
    let call = shell(&script).limit(SHORT);
    let result = call.run_extended(None, || {
        fs::write(&fifo, "go\n").unwrap();
        Some(AMPLE)
    });
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn grandchild_with_open_pipes_does_not_delay_the_call() {
    let output = text_of(shell("sleep 600 & echo $!")).unwrap();
    let pid = Pid::from_raw(output.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL)
        .expect("the helper of a successful call still runs");
}

#[test]
fn a_grandchild_that_writes_for_ever_does_not_hold_the_call() {
    let output = shell("echo $$; yes >&2 & exec 2>&-; echo $!")
        .run(None)
        .unwrap()
        .into_text()
        .unwrap();
    let pid = output.lines().nth(1).unwrap().parse().unwrap();
    // Its pipe has no reader any more, so it may have ended by itself.
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    assert!(is_gone(output.lines().next().unwrap()));
}

#[test]
fn a_call_ends_when_it_is_cancelled() {
    let cancel = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let end = cancel.try_clone().unwrap();
    let thread = std::thread::spawn(move || rustix::io::write(&end, &1_u64.to_ne_bytes()).unwrap());
    assert_eq!(
        shell("exec sleep 600")
            .run(Some(cancel.as_fd()))
            .unwrap_err(),
        RuntimeError::Cancelled
    );
    thread.join().unwrap();
}

#[test]
fn the_child_is_reaped_and_leads_its_own_group() {
    let output = text_of(shell("read -r stat </proc/$$/stat; echo \"$stat\"")).unwrap();
    let fields: Vec<&str> = output.split(' ').collect();
    assert_eq!(fields[0], fields[4], "process and group of {output:?}");
    assert!(!fs::exists(format!("/proc/{}", fields[0])).unwrap());
}

#[test]
fn a_recorded_call_is_on_record_exactly_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (children, _) = EngineChildren::open(folder.path()).unwrap();
    let script = format!("cat {0}/$ANKAIOS_ENGINE_CALL", folder.path().display());
    let output = text_of(shell(&script).recorded(&children)).unwrap();
    assert_eq!(output.lines().nth(1), Some("sh"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn error_of_a_call_is_read_in_the_output_of_the_engine() {
    let words = shell("echo words >&2; exit 1");
    let read = |text: &str| match text {
        "words" => ErrorMeaning::NoSuchPod,
        other => panic!("{other}"),
    };
    let error = words.reading(read).run(None).unwrap_err();
    assert_eq!(*error.meaning(), ErrorMeaning::NoSuchPod);
    let late = shell("echo words >&2; exec sleep 600").limit(SHORT);
    let late = late.reading(read).run(None).unwrap_err();
    assert_eq!(*late.meaning(), ErrorMeaning::Failure, "it was not refused");
}

#[test]
fn an_option_that_the_engine_does_not_know_is_refused_each_time() {
    let failed = |meaning| CallError {
        meaning,
        ..CallError::default()
    };
    for (error, is_final) in [
        (
            RuntimeError::Failed(failed(ErrorMeaning::UnknownOption)),
            true,
        ),
        (
            RuntimeError::Failed(failed(ErrorMeaning::NoPidFileOption)),
            true,
        ),
        (RuntimeError::Failed(failed(ErrorMeaning::Failure)), false),
        (RuntimeError::Unsupported(String::new()), true),
        (RuntimeError::TimedOut(failed(ErrorMeaning::Failure)), false),
    ] {
        assert_eq!(error.is_final(), is_final, "{error:?}");
    }
}
