//! Removals of containers: the starts that wait for them, the states meanwhile and the calls.

use super::*;
use crate::engine_call::CallDone;

const WAITS: &str = "a Pending(Starting): 'Waiting for 'other', which may have a container of it: Error: the engine says no'";

#[test]
fn start_shows_which_engine_it_waits_for() {
    let mut rig = Rig::new();
    rig.other.inject(Call::Delete, vec![Fault::Fails; 2]);
    let left = orphaned(&rig, "b");
    rig.adopt(RunTarget::Instance(rig.order("a")), left);
    let expected = [
        stopping("b"),
        starting("a"),
        delete_failed("b"),
        WAITS.to_owned(),
    ];
    assert_eq!(rig.states(), expected);
    rig.until_due();
    assert_eq!(rig.states(), [""; 0], "the text stays the same");
    rig.until_due();
    assert_eq!(rig.states(), [gone("b")]);
    assert_eq!(rig.engine.only().1.instance, instance("a"));
}

#[test]
fn start_that_was_given_up_does_not_show_an_engine() {
    let mut rig = Rig::new();
    rig.engine.inject(Call::Create, vec![Fault::IsMissing; 10]);
    rig.want_config("a");
    for _ in 0..RETRY_LIMIT {
        rig.until_due();
    }
    let last = rig.states().pop().unwrap();
    assert!(last.contains("No more retries"), "{last}");
    rig.other.inject(Call::Delete, vec![Fault::Fails; 10]);
    let left = orphaned(&rig, "b");
    rig.hand_over(left);
    rig.clock.advance(REVIVAL_INTERVAL);
    rig.run();
    let states = rig.states();
    let shown = states.iter().any(|state| state.starts_with("a "));
    assert!(!shown, "{states:?}");
}

#[test]
fn start_waits_for_a_preparation_that_is_not_needed() {
    let mut rig = Rig::new();
    let unneeded = rig.order("b");
    rig.control_loop
        .remove_unused(&unneeded, None, Some(u64::MAX), None);
    rig.want_config("a");
    // The removal of another container does not begin the start.
    let left = orphaned(&rig, "c");
    rig.hand_over(left);
    assert!(rig.other.containers().is_empty());
    assert!(rig.engine.containers().is_empty(), "there would be two");
    rig.control_loop
        .on_unneeded_call_ended(u64::MAX, Ok(CallDone::Image));
    rig.run();
    assert_eq!(rig.engine.only().1.instance, instance("a"));
}

/// Its removal begins with a stop, which takes a call of its own.
#[test]
fn only_a_container_that_has_ended_is_removed_as_ended() {
    let states = [
        (ExecutionState::plain(Phase::Running), 0),
        (ExecutionState::exited(0), 1),
        (ExecutionState::exited(1), 1),
    ];
    for (state, of_ended) in states {
        for is_replaced in [false, true] {
            let mut rig = Rig::new();
            rig.create("a", |workload| {
                workload.restart_policy = RestartPolicy::Never
            });
            rig.observe(state.clone());
            if is_replaced {
                rig.want_config("b");
            } else {
                rig.end();
            }
            assert_eq!(rig.engine.deletes_of_ended(), of_ended, "{state}");
        }
    }
}
