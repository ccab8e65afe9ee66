//! Programs whose output is followed.

use super::*;
use crate::clock::{Clock as _, SystemClock};

fn start(script: &str) -> FollowedChild {
    FollowedChild::start(OsStr::new("sh"), &["-c".into(), script.into()], &[]).unwrap()
}

/// Waits for something to read; answers all that was read until the end or until `enough`.
fn read_until(child: &mut FollowedChild, enough: impl Fn(&str) -> bool) -> (String, ChildOutput) {
    let (mut text, mut buffer) = (String::new(), [0; 1024]);
    loop {
        match child.read(&mut buffer) {
            ChildOutput::Bytes(count) => {
                text.push_str(std::str::from_utf8(&buffer[..count]).unwrap())
            }
            ChildOutput::End => return (text, ChildOutput::End),
            ChildOutput::NotYet if enough(&text) => return (text, ChildOutput::NotYet),
            ChildOutput::NotYet => {
                let mut polled: Vec<PollFd<'_>> = child
                    .descriptors()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let limit = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                assert_ne!(
                    poll(&mut polled, Some(&limit)),
                    Ok(0),
                    "nothing came, only {text:?}"
                );
            }
        }
    }
}

fn exists(pid: impl std::fmt::Display) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn both_outputs_come_in_the_order_in_which_they_were_written() {
    let mut child = start("echo 1; echo 2 >&2; echo 3; echo 4 >&2; printf 5");
    assert_eq!(
        read_until(&mut child, |_| false),
        ("1\n2\n3\n4\n5".to_owned(), ChildOutput::End)
    );
}

#[test]
fn output_is_read_while_running_and_a_drop_ends_the_child() {
    // It ignores all signals that can be ignored, and has a helper.
    let mut child = start("trap '' TERM PIPE; sleep 600 & echo $!; wait");
    let (helper, output) = read_until(&mut child, |text| text.ends_with('\n'));
    assert_eq!(output, ChildOutput::NotYet);
    let pid = child.pid.as_raw_nonzero();
    assert!(exists(pid));
    drop(child);
    assert!(!exists(pid), "not even a zombie is left");
    let helper: u32 = helper.trim().parse().unwrap();
    // It was killed, too; how soon that shows is up to the kernel, and who reaps it is not us.
    let state = || std::fs::read_to_string(format!("/proc/{helper}/stat")).unwrap_or_default();
    let begin = SystemClock.now();
    while !(state().is_empty() || state().contains(") Z ") || state().contains(") X ")) {
        assert!(
            SystemClock.until(begin + Duration::from_secs(60)) > Duration::ZERO,
            "{}",
            state()
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_helper_that_keeps_the_pipe_open_does_not_delay_the_end() {
    let mut child = start("sleep 600 & echo $!; exit 3");
    let (helper, output) = read_until(&mut child, |_| false);
    assert_eq!(output, ChildOutput::End);
    let helper = Pid::from_raw(helper.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(helper, Signal::KILL).unwrap();
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    let error = FollowedChild::start(OsStr::new("/no/such/program"), &[], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
