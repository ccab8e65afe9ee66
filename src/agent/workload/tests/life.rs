//! Walks each arrow of the picture of one workload's life in docs/architecture.md.

use super::*;
use crate::workload::mailbox::Preparation;
use ankaios_model::prepare_level::PrepareLevel;
use std::collections::{BTreeMap, BTreeSet};

/// Read when the test runs: files that are compiled must be below `src/`.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md");

/// The place where a life begins and ends.
const NOTHING: &str = "[*]";

/// A control loop that is followed from place to place.
struct Walk {
    rig: Rig,
    at: &'static str,
    seen: Seen,
}

/// The arrows and states of all walks.
#[derive(Default)]
struct Seen {
    arrows: BTreeSet<(String, String)>,
    /// The states of the current instance that the loop reports in each place.
    reported: BTreeMap<String, BTreeSet<String>>,
}

impl Walk {
    fn new() -> Self {
        Self {
            rig: Rig::new(),
            at: NOTHING,
            seen: Seen::default(),
        }
    }

    /// Where the loop is between two events.
    fn place(&self) -> &'static str {
        let control_loop = &self.rig.control_loop;
        let has_next = control_loop.next.is_some() || control_loop.target.next.is_some();
        if control_loop.is_empty {
            return if has_next { "waits" } else { NOTHING };
        }
        match control_loop.stage {
            LoopStage::AwaitingCleanup => "room",
            LoopStage::WaitingForSlot(_) => "slot",
            LoopStage::Starting(_) => "call",
            LoopStage::RetryAt(_) | LoopStage::RestartAt(..) => "retry",
            LoopStage::DeleteRetryAt(..) | LoopStage::AwaitingGone(_) => "stops",
            LoopStage::OnlyCreatedUntil(_) => "runs",
            LoopStage::Idle if control_loop.found.is_some() => "waits",
            LoopStage::Idle if control_loop.container.is_some() => "runs",
            LoopStage::Idle => "failed",
        }
    }

    fn visit(&mut self, place: &'static str) {
        if self.at != place {
            let arrow = (self.at.to_owned(), place.to_owned());
            self.seen.arrows.insert(arrow);
            self.at = place;
        }
    }

    fn note(&mut self, place: &str, phase: Phase) {
        let reported = self.seen.reported.entry(place.to_owned()).or_default();
        reported.insert(phase.to_string());
    }

    /// The state that the loop has reported of an instance.
    fn state_of(&self, instance: &InstanceName) -> Option<Phase> {
        let state = self.rig.control_loop.status.state_of(instance);
        state.map(|state| state.phase)
    }

    /// Lets the loop do all it can do now.
    fn go(&mut self) {
        for _ in 0..100 {
            let current = self.rig.control_loop.instance.clone();
            let was_there = !self.rig.control_loop.is_empty;
            let step = self.rig.control_loop.step();
            self.rig.take_watch_commands();
            for event in self.rig.events.try_iter().collect::<Vec<_>>() {
                let SchedulerEvent::Status { status, .. } = event else {
                    panic!("unexpected {event:?}")
                };
                let phase = status.state_of(&current).map(|state| state.phase);
                if let Some(phase) = phase
                    && was_there
                    && phase.state() == "Stopping"
                {
                    self.visit("stops"); // The removal blocks the loop.
                    self.note("stops", phase);
                }
            }
            let place = self.place();
            self.visit(place);
            let current = self.rig.control_loop.instance.clone();
            if let Some(phase) = self.state_of(&current)
                && place != NOTHING
            {
                self.note(place, phase);
            }
            if step != LoopStep::Worked && !self.rig.make_call() {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    fn want(&mut self, order: AddedWorkload) {
        self.rig.put(RunTarget::Instance(order));
        self.go();
    }

    fn want_config(&mut self, config: &str) {
        let order = self.rig.order(config);
        self.want(order);
    }

    fn end(&mut self) {
        self.rig.put(RunTarget::Nothing);
        self.go();
    }

    fn adopt(&mut self, run: RunTarget, found: FoundContainer) {
        self.rig.put_with(run, vec![found]);
        self.go();
    }

    fn observe(&mut self, state: ExecutionState) {
        self.rig.take_watch_commands();
        self.rig.reply.as_ref().expect("a container was watched")(state);
        self.go();
    }

    fn until_due(&mut self) {
        let due = self.rig.control_loop.due().expect("it waits for a time");
        self.rig.clock.advance(self.rig.clock.until(due));
        self.go();
    }

    /// The instance `config` is prepared.
    fn prepare(&mut self, config: &str) {
        let added = self.rig.order(config);
        self.rig.target.next = Some(Preparation {
            added,
            level: PrepareLevel::Create,
            retry_limit: None,
        });
        self.rig.put(self.rig.target.run.clone());
        self.go();
    }

    /// A container in this state, as an earlier agent has left it.
    fn left(&self, purpose: FoundPurpose) -> FoundContainer {
        let running = ExecutionState::plain(Phase::Running);
        let id = self.rig.engine.add(&instance("a"), running);
        found("podman", "a", &id, purpose)
    }

    fn unsupported(&self, config: &str) -> AddedWorkload {
        let change = |workload: &mut Workload| workload.runtime = "podmn".into();
        self.rig.order_with(config, change)
    }
}

/// A walk through a part of the picture.
fn walk(seen: &mut Seen, steps: impl FnOnce(&mut Walk)) {
    let mut walk = Walk::new();
    std::mem::swap(&mut walk.seen, seen);
    steps(&mut walk);
    std::mem::swap(&mut walk.seen, seen);
}

fn always(walk: &Walk) -> AddedWorkload {
    let change = |workload: &mut Workload| workload.restart_policy = RestartPolicy::Always;
    walk.rig.order_with("a", change)
}

fn from_nothing(seen: &mut Seen) {
    walk(seen, |walk| {
        walk.want_config("a");
        walk.want_config("b");
        walk.end();
    });
    walk(seen, |walk| {
        walk.prepare("a");
        walk.rig.target.next = None;
        walk.end();
        walk.prepare("a");
        walk.want_config("a");
        walk.want(walk.unsupported("b"));
        walk.end();
    });
    walk(seen, |walk| walk.want(walk.unsupported("a")));
    walk(seen, |walk| {
        let orphan = orphaned(&walk.rig, "b").remove(0);
        walk.rig.other.inject(Call::Delete, [Fault::Fails]);
        let order = walk.rig.order("a");
        walk.adopt(RunTarget::Instance(order), orphan);
        walk.until_due();
    });
}

fn with_what_was_found(seen: &mut Seen) {
    walk(seen, |walk| {
        let order = walk.rig.order("a");
        let running = ExecutionState::plain(Phase::Running);
        let found = walk.left(FoundPurpose::Adopt(order.clone(), running));
        walk.adopt(RunTarget::Instance(order), found);
    });
    walk(seen, |walk| {
        let order = walk.rig.order("a");
        let found = walk.left(FoundPurpose::Replace);
        walk.adopt(RunTarget::Found, found.clone());
        let running = ExecutionState::plain(Phase::Running);
        let purpose = FoundPurpose::Adopt(order.clone(), running);
        walk.adopt(
            RunTarget::Instance(order),
            FoundContainer { purpose, ..found },
        );
    });
    walk(seen, |walk| {
        let order = walk.rig.order("a");
        let found = walk.left(FoundPurpose::StartAgain(order.clone()));
        walk.adopt(RunTarget::Found, found);
        walk.want(order);
    });
    walk(seen, |walk| {
        let found = walk.left(FoundPurpose::Replace);
        walk.adopt(RunTarget::Found, found);
        walk.want_config("b");
    });
}

fn while_it_starts(seen: &mut Seen) {
    // A slot is free for none at first.
    walk(seen, |walk| {
        let slots = walk.rig.slots.clone();
        let taken = [
            slots.try_take(SlotUse::Start),
            slots.try_take(SlotUse::Start),
        ];
        walk.want_config("a");
        walk.rig.other.inject(Call::Delete, [Fault::Fails]);
        walk.rig
            .put_with(walk.rig.target.run.clone(), orphaned(&walk.rig, "b"));
        walk.go();
        walk.until_due();
        walk.want_config("b");
        drop(taken);
        walk.go();
    });
    // Something else is wanted while it makes room.
    walk(seen, |walk| {
        let orphan = orphaned(&walk.rig, "b").remove(0);
        walk.rig.other.inject(Call::Delete, vec![Fault::Fails; 9]);
        let order = walk.rig.order("a");
        walk.adopt(RunTarget::Instance(order), orphan);
        walk.want_config("c");
    });
    // A call fails, and leaves something that cannot be removed at once.
    walk(seen, |walk| {
        walk.rig.engine.inject(Call::Create, [Fault::Fails]);
        walk.want_config("a");
        walk.until_due();
    });
    walk(seen, |walk| {
        walk.rig.engine.inject(Call::Create, [Fault::Fails]);
        walk.want_config("a");
        walk.rig.engine.inject(Call::Find, [Fault::Fails]);
        walk.end();
    });
    walk(seen, |walk| {
        walk.rig.engine.inject(Call::Create, [Fault::Unsupported]);
        walk.want_config("a");
    });
    // It is set back while the call is under way.
    walk(seen, |walk| {
        walk.rig.hold_calls = true;
        walk.want_config("a");
        walk.rig.hold_calls = false;
        walk.rig.put(RunTarget::Nothing);
        walk.want_config("a");
    });
    walk(seen, |walk| {
        walk.rig.hold_calls = true;
        walk.want_config("a");
        walk.rig.hold_calls = false;
        walk.want_config("b");
    });
}

fn while_it_runs(seen: &mut Seen) {
    walk(seen, |walk| {
        walk.want(always(walk));
        walk.rig.clock.advance(RESTART_SPACING);
        walk.observe(ExecutionState::exited(0));
        walk.observe(ExecutionState::exited(0));
        walk.until_due();
        walk.rig.clock.advance(RESTART_SPACING);
        for _ in 0..2 {
            walk.observe(ExecutionState::exited(1));
        }
    });
    for code in [0, 1] {
        walk(seen, |walk| {
            walk.want_config("a");
            walk.observe(ExecutionState::plain(Phase::Running));
            walk.observe(ExecutionState::exited(code));
        });
    }
    walk(seen, |walk| {
        walk.want_config("a");
        walk.rig.engine.inject(Call::Delete, [Fault::Fails]);
        walk.want_config("b");
        let slots = walk.rig.slots.clone();
        let _taken = [
            slots.try_take(SlotUse::Start),
            slots.try_take(SlotUse::Start),
        ];
        walk.until_due();
    });
}

/// The lines of a part of the page, from a heading to the next.
fn section(heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let mut lines = page.lines().skip_while(|line| *line != heading);
    lines.next().expect("the page has the heading");
    lines
        .take_while(|line| !line.starts_with("## "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_arrow_of_a_life_is_walked_and_no_other_one() {
    let mut seen = Seen::default();
    from_nothing(&mut seen);
    with_what_was_found(&mut seen);
    while_it_starts(&mut seen);
    while_it_runs(&mut seen);
    let mut arrows = BTreeSet::new();
    let mut reported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in section("## One workload in its agent") {
        let (line, _label) = line.split_once(" : ").unwrap_or((line.as_str(), ""));
        if let Some((from, to)) = line.split_once(" --> ") {
            arrows.insert((from.trim().to_owned(), to.trim().to_owned()));
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, place, states, _, _] = cells[..]
            && let Some(place) = place.strip_prefix('`')
        {
            let texts = states.split('`').skip(1).step_by(2);
            let states = texts.map(str::to_owned).collect();
            reported.insert(place.trim_end_matches('`').to_owned(), states);
        }
    }
    assert_eq!(seen.arrows, arrows);
    assert_eq!(seen.reported, reported);
}
