//! The start times that the server keeps, and what follows from them: what an instance waited for, how long its start
//! took, and which chain of workloads was the last to be ready.
//!
//! Thread: `main`, plain values. All times are in milliseconds since the start of the server.

use super::error::CliError;
use super::reasons::{Needs, needs};
use super::rows::entries;
use super::table::one_line;
use crate::limits::START_TIME_MAX_MS;
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::{BTreeSet, HashMap};

/// The part of the complete state with the start times.
pub const PART: &str = "timings";

/// The parts of the complete state that [`Starts::of`] needs.
pub const MASKS: [&str; 3] = [PART, "desiredState.workloads.*.dependencies", "effectiveState.workloads.*.dependencies"];

/// The latest starts of all instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starts {
    /// The time of the response.
    pub now: u64,
    /// From the boot of the server's node to the start of the server.
    pub boot: u64,
    /// In the order of agent, workload and id.
    pub all: Vec<Start>,
}

/// The latest start of one instance; what did not happen, or was not reported, is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Which instance.
    pub instance: InstanceName,
    /// Accepted as a part of the desired state.
    pub desired: Option<u64>,
    /// First reported as waiting for others.
    pub waiting: Option<u64>,
    /// First reported as starting.
    pub starting: Option<u64>,
    /// First reported as started and not ready.
    pub started: Option<u64>,
    /// First reported as running, which is ready.
    pub running: Option<u64>,
    /// First reported as ended.
    pub ended: Option<u64>,
    /// How many starts of it were reported.
    pub starts: u64,
    /// How far its start was prepared; empty when it was not.
    pub prepared: String,
    /// The dependency that was met last while it waited; empty when there is none.
    pub waited_for: String,
}

impl Starts {
    /// The starts in `state`, a complete state as far as [`MASKS`].
    ///
    /// # Errors
    /// The server keeps no start times.
    // [impl->swdd~cli-shows-start-times~1]
    pub fn of(state: &Node) -> Result<Self, CliError> {
        let Some(timings) = state.get(PART) else {
            return Err(CliError::Start {
                text: "the server keeps no start times".to_owned(),
                hint: Some("an ank-server of Ankaios lite keeps them, if it is not older than this ank".to_owned()),
            });
        };
        let number = |key: &str| time(timings, key).unwrap_or_default();
        let mut all = Vec::new();
        for (agent, workloads) in entries(timings.get("instances")) {
            for (workload, ids) in entries(Some(workloads)) {
                let start = |(id, times): (&str, &Node)| Start::of(InstanceName::with_id(workload, id, agent), times);
                all.extend(entries(Some(ids)).map(start));
            }
        }
        let needs = needs(state);
        let by_name = by_name(&all);
        let waited_for: Vec<String> = all.iter().map(|start| met_last(start, &needs, &by_name)).collect();
        all.iter_mut().zip(waited_for).for_each(|(start, name)| start.waited_for = name);
        Ok(Self { now: number("now"), boot: number("boot"), all })
    }

    /// The start of each workload. Of several instances it is the one that was accepted last.
    #[must_use]
    pub fn by_workload(&self) -> HashMap<&str, &Start> {
        let mut all: Vec<&Start> = self.all.iter().collect();
        all.sort_by_key(|start| start.desired); // A later one replaces an earlier one.
        all.into_iter().map(|start| (&*start.instance.workload, start)).collect()
    }

    /// The workload among those that pass `filter` which was ready last, the dependency that it waited for last, and so
    /// on.
    #[must_use]
    pub fn last_chain(&self, filter: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let among = self.all.iter().filter(|start| filter(&start.instance.workload));
        let mut next = among.filter(|start| start.ready_at().is_some()).max_by_key(|start| start.ready_at());
        let (mut chain, by_workload) = (BTreeSet::new(), self.by_workload());
        while let Some(start) = next.filter(|start| chain.insert(&*start.instance.workload)) {
            next = by_workload.get(&*start.waited_for).copied();
        }
        chain
    }

    /// The time from the boot of the server's node to `at`.
    #[must_use]
    pub fn since_boot(&self, at: u64) -> u64 {
        self.boot + at
    }
}

fn time(node: &Node, key: &str) -> Option<u64> {
    Some(node.get(key)?.as_number()?.min(START_TIME_MAX_MS))
}

/// The starts of each workload.
fn by_name(all: &[Start]) -> HashMap<&str, Vec<&Start>> {
    let mut by_name: HashMap<&str, Vec<&Start>> = HashMap::new();
    for start in all {
        by_name.entry(&start.instance.workload).or_default().push(start);
    }
    by_name
}

/// The dependency of `start` that was met last while it waited.
fn met_last(start: &Start, needs: &Needs, by_name: &HashMap<&str, Vec<&Start>>) -> String {
    let Some((waiting, starting)) = start.waiting.zip(start.starting) else { return String::new() };
    let of_instance = needs.get(&*start.instance.workload).into_iter().flatten();
    let met = of_instance.flat_map(|(name, condition)| {
        let instances = by_name.get(name.as_str()).into_iter().flatten();
        instances.filter_map(move |other| Some((other.met(condition)?, name)))
    });
    let while_it_waited = met.filter(|(at, _)| (waiting..=starting).contains(at));
    while_it_waited.max().map(|(_, name)| name.clone()).unwrap_or_default()
}

/// The time between two moments; `None` when one of them is missing, or they are not in this order.
fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    to?.checked_sub(from?)
}

impl Start {
    fn of(instance: InstanceName, times: &Node) -> Self {
        let at = |key: &str| time(times, key);
        Self {
            instance,
            desired: at("desired"),
            waiting: at("waiting"),
            starting: at("starting"),
            started: at("started"),
            running: at("running"),
            ended: at("ended"),
            starts: times.get("starts").and_then(Node::as_number).unwrap_or_default(),
            prepared: one_line(times.get("prepared").and_then(Node::as_text).unwrap_or_default()),
            waited_for: String::new(),
        }
    }

    /// When a dependency with `condition` on this instance was met.
    fn met(&self, condition: &str) -> Option<u64> {
        if condition == "ADD_COND_RUNNING" { self.running } else { self.ended }
    }

    /// When it was ready. Without a report that it starts, it ran before the server knew of it, and nobody knows when it was
    /// ready.
    #[must_use]
    pub fn ready_at(&self) -> Option<u64> {
        self.running.filter(|_| self.starting.is_some())
    }

    /// When it was ready; of what ended before it was reported to run, as a short job does, when it ended.
    #[must_use]
    pub fn done_at(&self) -> Option<u64> {
        self.ready_at().or(self.ended.filter(|_| self.starting.is_some() && self.running.is_none()))
    }

    /// When the start began: with the acceptance of the instance, or, if it had been started before, with the first
    /// report after that.
    #[must_use]
    pub fn begin(&self) -> Option<u64> {
        if self.starts > 1 { self.waiting.into_iter().chain(self.starting).min() } else { self.desired }
    }

    /// How long it waited before it was started.
    #[must_use]
    pub fn waited(&self) -> Option<u64> {
        between(self.waiting, self.starting)
    }

    /// How long its engine took to start it.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        between(self.starting, self.started.or(self.running).or(self.ended))
    }

    /// How long it took from there until it was ready.
    #[must_use]
    pub fn ready(&self) -> Option<u64> {
        between(self.started, self.running)
    }

    /// How long it took altogether.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        between(self.begin(), self.done_at())
    }

    /// How long it takes already at `now`, since `from`; `None` when it is done, or has not begun.
    #[must_use]
    pub fn so_far(&self, from: Option<u64>, now: u64) -> Option<u64> {
        let goes_on = self.waiting.or(self.starting).is_some() && self.running.or(self.ended).is_none();
        between(from.filter(|_| goes_on), Some(now))
    }
}

/// Milliseconds as seconds with three decimals.
#[must_use]
pub fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cli::tests::let_need;

    /// A state with one instance `1` for each of `starts`: its agent and name (`agent/name`, agent `A` without), and its
    /// times, those of [`Start`] in their order from `desired` to `ended`. The server started three seconds after the boot.
    pub fn state(starts: &[(&str, [Option<u64>; 6])]) -> Node {
        let keys = ["desired", "waiting", "starting", "started", "running", "ended"];
        let mut instances = Node::empty();
        for (name, times) in starts {
            let (agent, name) = name.split_once('/').unwrap_or(("A", name));
            let times = keys.into_iter().zip(times);
            let times = times.filter_map(|(key, at)| Some((key, Node::Number((*at)?))));
            let instance = Node::map([("1", Node::map(times.chain([("starts", Node::Number(1))])))]);
            let workloads = instances.as_map_mut().unwrap().child(agent.to_owned());
            workloads.as_map_mut().unwrap().insert(name.to_owned(), instance);
        }
        let timings = [("now", Node::Number(9_000)), ("boot", Node::Number(3_000)), ("instances", instances)];
        Node::map([("timings", Node::map(timings)), ("desiredState", Node::empty())])
    }

    /// The example of the documentation: ten workloads on two agents, five of them in a chain.
    pub fn example() -> Node {
        let mut state = state(&[
            ("rear/settings", [Some(0), None, Some(312), None, Some(430), Some(880)]),
            ("rear/storage", [Some(0), Some(305), Some(902), Some(985), Some(1_652), None]),
            ("rear/bus", [Some(0), None, Some(310), None, Some(424), None]),
            ("rear/logger", [Some(0), None, Some(340), None, Some(610), None]),
            ("rear/updater", [Some(0), Some(306), Some(1_655), None, Some(1_905), None]),
            ("front/camera", [Some(0), Some(330), Some(431), Some(512), Some(1_180), None]),
            ("front/fusion", [Some(0), Some(332), Some(1_660), Some(1_785), Some(2_610), None]),
            ("front/planner", [Some(0), Some(333), Some(2_614), None, Some(2_819), None]),
            ("front/display", [Some(0), Some(334), Some(2_823), Some(2_904), Some(3_370), None]),
            ("front/watchdog", [Some(0), None, Some(345), None, Some(501), None]),
        ]);
        for (workload, needs) in [
            ("storage", &[("settings", "ADD_COND_SUCCEEDED")][..]),
            ("updater", &[("storage", "ADD_COND_RUNNING")]),
            ("camera", &[("bus", "ADD_COND_RUNNING")]),
            ("fusion", &[("camera", "ADD_COND_RUNNING"), ("storage", "ADD_COND_RUNNING")]),
            ("planner", &[("fusion", "ADD_COND_RUNNING")]),
            ("display", &[("planner", "ADD_COND_RUNNING")]),
        ] {
            let_need(&mut state, "desiredState", workload, needs);
        }
        for (agent, workload, level) in [
            ("rear", "storage", "INIT"),
            ("rear", "updater", "IMAGE"),
            ("front", "camera", "INIT"),
            ("front", "fusion", "CREATE"),
            ("front", "planner", "CREATE"),
            ("front", "display", "INIT"),
        ] {
            let times = state.at_mut(&["timings", "instances", agent, workload, "1"]).unwrap().as_map_mut().unwrap();
            times.insert("prepared".to_owned(), Node::text(level));
        }
        state
    }

    /// Compares `text` with the block of the page about starts that begins with `begin`; `ANKAIOS_WRITE_GOLDEN` in the
    /// environment writes it there.
    #[track_caller]
    pub fn assert_documented(begin: &str, text: &str) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fast-boot.md");
        let page = std::fs::read_to_string(path).unwrap();
        let block = |page: &str| {
            let from = page.find(&format!("```text\n{begin}")).expect(begin) + "```text\n".len();
            from..from + page[from..].find("```").unwrap()
        };
        let trimmed: String = text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
        if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
            let mut page = page.clone();
            page.replace_range(block(&page), &trimmed);
            std::fs::write(path, page).unwrap();
            return;
        }
        assert_eq!(page[block(&page)], trimmed, "{path}");
    }

    /// `web` needs `db` and `setup`, `db` needs `disk`; `lone` needs nothing and `late` is starting.
    pub fn chain() -> Node {
        let mut state = state(&[
            ("disk", [Some(0), None, Some(20), None, Some(520), None]),
            ("setup", [Some(0), None, Some(25), None, Some(300), Some(700)]),
            ("db", [Some(0), Some(22), Some(521), Some(800), Some(1_800), None]),
            ("web", [Some(0), Some(23), Some(1_802), None, Some(2_050), None]),
            ("lone", [Some(0), None, Some(30), None, Some(400), None]),
            ("late", [Some(8_000), None, Some(8_010), None, None, None]),
        ]);
        let_need(&mut state, "desiredState", "db", &[("disk", "ADD_COND_RUNNING")]);
        let needs = [("db", "ADD_COND_RUNNING"), ("setup", "ADD_COND_SUCCEEDED")];
        let_need(&mut state, "desiredState", "web", &needs);
        state
    }

    // [utest->swdd~cli-shows-start-times~1]
    #[test]
    fn an_instance_waited_for_the_dependency_that_was_met_last_while_it_waited() {
        let starts = Starts::of(&chain()).unwrap();
        let waited_for = |name| starts.by_workload()[name].waited_for.as_str();
        assert_eq!(["web", "db", "disk", "lone", "late"].map(waited_for), ["db", "disk", "", "", ""]);
        // Dependencies that were met before it waited, or after it had started, were no reason.
        for (needed, expected) in [(99, ""), (100, "needed"), (200, "needed"), (201, "")] {
            let mut state = state(&[
                ("needed", [Some(0), None, None, None, Some(needed), None]),
                ("one", [Some(0), Some(100), Some(200), None, None, None]),
            ]);
            let_need(&mut state, "desiredState", "one", &[("needed", "ADD_COND_RUNNING")]);
            let starts = Starts::of(&state).unwrap();
            assert_eq!(starts.by_workload()["one"].waited_for, expected, "{needed}");
        }
    }

    #[test]
    fn durations_are_missing_where_a_moment_is() {
        let starts = Starts::of(&chain()).unwrap();
        let durations = |name| {
            let start = starts.by_workload()[name];
            [start.waited(), start.start(), start.ready(), start.total()]
        };
        assert_eq!(durations("db"), [Some(499), Some(279), Some(1_000), Some(1_800)]);
        assert_eq!(durations("web"), [Some(1_779), Some(248), None, Some(2_050)]);
        assert_eq!(durations("late"), [None; 4]);
    }

    #[test]
    fn a_job_that_ended_before_it_was_reported_to_run_took_until_its_end() {
        let starts = Starts::of(&state(&[
            ("job", [Some(0), None, Some(10), None, None, Some(250)]),
            ("earlier", [Some(0), None, None, None, None, Some(250)]),
            ("runs", [Some(0), None, Some(20), None, Some(100), None]),
        ]));
        let starts = starts.unwrap();
        let of =
            |name| starts.by_workload().get(name).map(|start| (start.start(), start.total(), start.done_at())).unwrap();
        assert_eq!(of("job"), (Some(240), Some(250), Some(250)));
        assert_eq!(of("earlier"), (None, None, None));
        assert_eq!(starts.last_chain(|_| true), ["runs"].into(), "only what is ready is the last");
    }

    #[test]
    fn a_restarted_instance_counts_from_its_last_start() {
        let mut starts = Starts::of(&state(&[("w", [Some(0), Some(60_000), Some(61_000), None, Some(61_500), None])]));
        let start = &mut starts.as_mut().unwrap().all[0];
        assert_eq!((start.begin(), start.total()), (Some(0), Some(61_500)));
        start.starts = 2;
        assert_eq!((start.begin(), start.total()), (Some(60_000), Some(1_500)));
    }

    #[test]
    fn what_ran_before_the_server_was_there_has_no_durations() {
        let starts = Starts::of(&state(&[
            ("adopted", [Some(0), None, None, None, Some(1_000), None]),
            ("started", [Some(0), None, Some(10), None, Some(500), None]),
        ]));
        let starts = starts.unwrap();
        let adopted = starts.by_workload()["adopted"];
        assert_eq!((adopted.total(), adopted.ready_at()), (None, None));
        assert_eq!(starts.last_chain(|_| true), ["started"].into());
    }

    #[test]
    fn the_last_chain_goes_back_over_what_was_waited_for() {
        let mut starts = Starts::of(&chain()).unwrap();
        assert_eq!(starts.last_chain(|_| true), ["db", "disk", "web"].into());
        assert_eq!(starts.last_chain(|name| name != "web"), ["db", "disk"].into());
        assert_eq!(starts.last_chain(|name| name == "late"), [].into());
        for start in &mut starts.all {
            start.waited_for = if *start.instance.workload == *"disk" { "db" } else { "disk" }.to_owned();
        }
        assert_eq!(starts.last_chain(|name| name == "db"), ["db", "disk"].into(), "it ends");
    }

    #[test]
    fn a_server_without_start_times_is_an_error_with_a_hint() {
        let error = Starts::of(&Node::map([("desiredState", Node::empty())])).unwrap_err();
        assert_eq!(error.text_for(Some("print the start times")), "the server keeps no start times");
        assert!(error.hint().is_some());
    }
}
