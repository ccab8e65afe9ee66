//! The events of a simulated cluster, for people who look for the reason of a failure.
//!
//! Thread: the one of the test. A seed runs without a trace first; one that fails runs again with
//! it.

use ankaios_agent::events::SchedulerEvent;
use ankaios_agent::workload::status::Status;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AddedWorkload, FromServer, ToServer};
use ankaios_platform::clock::Clock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Where lines go; clones write to the same place.
#[derive(Clone)]
pub(crate) struct Trace {
    lines: Option<Arc<Mutex<TraceLines>>>,
    clock: ManualClock,
    start: Instant,
}

struct TraceLines {
    last: VecDeque<String>,
    kept: usize,
}

impl Trace {
    /// Keeps the last `kept` lines; none is made when that is zero.
    pub(crate) fn new(clock: &ManualClock, kept: usize) -> Self {
        let mut lines = None;
        if kept > 0 {
            lines = Some(Arc::new(Mutex::new(TraceLines {
                last: VecDeque::new(),
                kept,
            })));
        }
        Self {
            lines,
            clock: clock.clone(),
            start: clock.now(),
        }
    }

    /// Adds a line with the virtual time before it.
    pub(crate) fn line(&self, text: impl FnOnce() -> String) {
        let Some(lines) = &self.lines else { return };
        let time = self.clock.now().saturating_duration_since(self.start);
        let line = format!("{:>9.3} {}", time.as_secs_f64(), text());
        let mut lines = lines.lock().unwrap();
        if lines.last.len() >= lines.kept {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
    }

    /// An event of an agent, short enough for one line.
    pub(crate) fn event(event: &SchedulerEvent) -> String {
        match event {
            SchedulerEvent::Server(FromServer::ServerHello(added)) => {
                format!("hello {}", names(added))
            }
            SchedulerEvent::Server(FromServer::UpdateWorkload(plan)) => {
                let mut deleted = Vec::new();
                for one in &plan.deleted {
                    deleted.push(format!("{} {:?}", one.instance.short(), one.dependencies));
                }
                format!("plan: deleted {deleted:?}, added {}", names(&plan.added))
            }
            SchedulerEvent::Server(FromServer::WorkloadStates(list)) => {
                format!("others: {}", states(list))
            }
            SchedulerEvent::Status { workload, status } => {
                let all = status.changes_since(&Status::default());
                format!("status of {workload}: {}", states(&all))
            }
            SchedulerEvent::Listed { runtime, result } => match result {
                Ok(found) => {
                    let mut texts = Vec::new();
                    for container in found {
                        texts.push(format!(
                            "{} {}",
                            container.instance.short(),
                            container.state
                        ));
                    }
                    format!("listed: {runtime} {texts:?}")
                }
                Err(error) => format!("listed: {runtime} {error}"),
            },
            other => format!("{other:?}"),
        }
    }

    /// A message of an agent, short enough for one line.
    pub(crate) fn message(message: &ToServer) -> String {
        match message {
            ToServer::WorkloadStates(list) => states(list),
            ToServer::Prepared(list) => format!("prepared: {list:?}"),
            other => format!("{other:?}"),
        }
    }

    /// The lines that were kept.
    pub(crate) fn take(&self) -> Vec<String> {
        match &self.lines {
            Some(lines) => lines.lock().unwrap().last.drain(..).collect(),
            None => Vec::new(),
        }
    }
}

fn names(added: &[AddedWorkload]) -> String {
    let mut names = Vec::new();
    for AddedWorkload { instance, workload } in added {
        names.push(format!("{} {:?}", instance.short(), workload.dependencies));
    }
    format!("{names:?}")
}

fn states(states: &[WorkloadState]) -> String {
    let mut texts = Vec::new();
    for WorkloadState { instance, state } in states {
        texts.push(format!("{} {state}", instance.short()));
    }
    texts.join(", ")
}
