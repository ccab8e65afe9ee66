//! What `ank stop` and `ank start` send and refuse, against a scripted server.

use super::*;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, instance, let_need, play, reported, state};
use ankaios_model::complete_state::execution_state_node;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::node::Node;
use ankaios_model::reason::STOPPED;

/// `web` runs and needs `db`, which is stopped; `job` has ended.
fn cluster() -> Node {
    let mut cluster = state(
        &["A"],
        &[
            ("web", "1", "A", Phase::Running),
            ("db", "1", "", Phase::NotScheduled),
            ("job", "1", "A", Phase::Succeeded),
        ],
    );
    let stopped = ExecutionState::with_info(Phase::NotScheduled, STOPPED).because(Reason::Stopped);
    *cluster.at_mut(&["workloadStates", "", "db", "1"]).unwrap() = execution_state_node(&stopped);
    cluster
}

type Read = fn(&[String], &mut dyn ServerLink, &mut Output) -> Result<CliUpdate>;

fn run(action: Read, names: &[&str], steps: Vec<Step>) -> Played<ExitCode> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    play(None, steps, |link, output| {
        let update = action(&names, link, output)?;
        let mut context = Context {
            link,
            output,
            waiting: Waiting::default(),
            ignore_modes: false,
        };
        send(update, &mut context)
    })
}

// [utest->swdd~cli-stops-workloads~1]
#[test]
fn stop_sends_names_and_waits_for_their_ends() {
    let steps = vec![
        Step::State(cluster()),
        Step::State(cluster()),
        Step::Accept(accepted(&["web.1."], &["web.1.A"])),
        Step::State(cluster()),
        Step::Broadcast(vec![reported("web.1.", Phase::NotScheduled, STOPPED)]),
        Step::Broadcast(vec![reported("web.1.A", Phase::Removed, "")]),
    ];
    let ran = run(stop, &["web"], steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert!(ran.server.is_done(), "{:?}", ran.server.steps);
    let expected = StopAndStart {
        stop: vec!["web".to_owned()],
        start: Vec::new(),
    };
    assert_eq!(ran.server.stops, [expected]);
    assert!(ran.out.starts_with("Stopping 'web'.\n"), "{}", ran.out);
}

#[test]
fn start_sends_only_what_is_stopped() {
    let steps = vec![
        Step::State(cluster()),
        Step::State(cluster()),
        Step::Accept(accepted(&["db.1.A"], &["db.1."])),
        Step::State(cluster()),
        Step::Broadcast(vec![
            reported("db.1.", Phase::Removed, ""),
            reported("db.1.A", Phase::Running, ""),
        ]),
    ];
    let ran = run(start, &["web", "db"], steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Success, "{}", ran.err);
    let expected = StopAndStart {
        stop: Vec::new(),
        start: vec!["db".to_owned()],
    };
    assert_eq!(ran.server.stops, [expected]);
    let said = "'web' is not stopped.\nStarting 'db'.\n";
    assert!(ran.out.starts_with(said), "{}", ran.out);
}

#[test]
fn stop_of_stopped_workload_sends_nothing() {
    let ran = run(stop, &["db"], vec![Step::State(cluster())]);
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert_eq!(ran.out, "'db' is stopped already.\n");
    assert!(ran.server.stops.is_empty());
}

#[test]
fn start_of_ended_workload_leads_to_restart() {
    let ran = run(start, &["job"], vec![Step::State(cluster())]);
    let error = ran.result.unwrap_err();
    assert_eq!(
        (error.to_string(), error.hint()),
        (
            "Workload 'job' is not stopped: it is Succeeded(Ok)".to_owned(),
            "'ank restart job' runs it again".to_owned()
        )
    );
}

#[test]
fn unknown_name_is_refused_with_nearest() {
    for action in [stop as Read, start] {
        let ran = run(action, &["wbe"], vec![Step::State(cluster())]);
        let error = ran.result.unwrap_err();
        assert_eq!(error.to_string(), "Workload name 'wbe' does not exist.");
        assert_eq!(error.hint(), "did you mean 'web'?");
    }
}

#[test]
fn start_warns_of_stopped_dependency() {
    let mut cluster = cluster();
    let_need(
        &mut cluster,
        "desiredState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let stopped = ExecutionState::with_info(Phase::NotScheduled, STOPPED).because(Reason::Stopped);
    let states = cluster
        .at_mut(&["workloadStates"])
        .unwrap()
        .as_map_mut()
        .unwrap();
    let ids = Node::map([("1", execution_state_node(&stopped))]);
    states.insert("A", Node::empty());
    states.insert("", Node::map([("web", ids.clone()), ("db", ids)]));
    let reasons = Reasons::new(&cluster);
    assert!(reasons.waits_in_vain("web"));
    let expected = "waits for 'db' to run: it is NotScheduled (stopped on request)";
    assert_eq!(reasons.unmet("web"), [expected]);
    assert!(reasons.rows.contains_key(&instance("web.1.")));
}

#[test]
fn server_that_cannot_stop_is_named() {
    let steps = vec![
        Step::State(cluster()),
        Step::State(cluster()),
        Step::Refuse(ankaios_model::messages::NO_STATE),
    ];
    let hint = run(stop, &["web"], steps).result.unwrap_err().hint();
    assert!(
        hint.starts_with("the server is older than this ank"),
        "{hint}"
    );
}
