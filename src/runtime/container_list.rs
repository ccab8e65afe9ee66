//! Reads what `podman ps --format=json` prints, and says what a container's state means for its workload.
//!
//! One strange entry must not hide all others, so fields are read one by one and only an output that is no list of
//! objects at all is an error.
//!
//! Thread: none, plain values; runs on the thread that asked the engine.

use super::container_config::{LABEL_AGENT, LABEL_NAME};
use super::{ContainerId, ListedContainer, MainProcess};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::InstanceName;
use serde::Deserialize;
use serde_json::Value;

/// One container as the engine lists it. A field is null when it is missing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EngineContainer {
    id: Value,
    state: Value,
    exit_code: Value,
    exited: Value,
    labels: Value,
    pid: Value,
    pod: Value,
    exited_at: Value,
    auto_remove: Value,
    names: Value,
    is_infra: Value,
}

/// Reads the list. The engine prints `null` for an empty one in some versions.
///
/// # Errors
/// Why the text is no list of containers.
pub fn parse(text: &str) -> Result<Vec<EngineContainer>, String> {
    let list: Result<Option<Vec<EngineContainer>>, _> = serde_json::from_str(text);
    list.map(Option::unwrap_or_default).map_err(|error| format!("The list of containers cannot be read: {error}"))
}

impl EngineContainer {
    /// The full id; `None` when the entry has none that can be one.
    #[must_use]
    pub fn id(&self) -> Option<ContainerId> {
        self.id.as_str().and_then(ContainerId::printed)
    }

    /// The value of a label; `None` when there are no labels or not this one.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)?.as_str()
    }

    /// Id of the pod that the container belongs to.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.pod.as_str().filter(|pod| !pod.is_empty())
    }

    /// Its name; empty when the entry has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names[0].as_str().unwrap_or_default()
    }

    /// Whether the engine made it itself to hold a pod together.
    #[must_use]
    pub fn is_infra(&self) -> bool {
        self.is_infra == Value::Bool(true)
    }

    /// Main process while there is one.
    #[must_use]
    pub fn process(&self) -> Option<MainProcess> {
        let pid = self.pid.as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
        Some(MainProcess { container: self.id()?, pid })
    }

    /// When it ended, in seconds since 1970. The engine fills in the year 1 for one that never did.
    #[must_use]
    pub fn ended_at(&self) -> Option<u64> {
        let ended = matches!(self.execution_state().phase, Phase::Succeeded | Phase::FailedExecFailed);
        self.exited_at.as_u64().filter(|_| ended)
    }

    /// What the container's state means for its workload (spec/agent.md section 15.3).
    ///
    /// Podman says `stopped` from the end of the process until it has cleaned up behind it, some 100 ms later; the
    /// exit code is there from the beginning (`Exited` says so), and nothing will change it.
    // [impl->swdd~podman-state-getter-maps-state~3]
    // [impl->swdd~allowed-workload-states~2]
    #[must_use]
    pub fn execution_state(&self) -> ExecutionState {
        let engine_state = self.state.as_str().unwrap_or_default();
        let with_state = |phase| ExecutionState::with_info(phase, engine_state);
        match engine_state.to_ascii_lowercase().as_str() {
            "created" | "configured" | "initialized" => with_state(Phase::PendingStarting),
            "running" => ExecutionState::plain(Phase::Running),
            "stopped" if self.exited != Value::Bool(true) => with_state(Phase::Stopping),
            // It removes itself, so whether anybody sees the exit code is up to chance.
            "exited" | "stopped" if self.auto_remove == Value::Bool(true) => ExecutionState::plain(Phase::FailedLost),
            "exited" | "stopped" => match self.exit_code.as_i64() {
                Some(code) => ExecutionState::exited(code),
                None => with_state(Phase::FailedUnknown),
            },
            "stopping" | "removing" => with_state(Phase::Stopping),
            // [impl->swdd~podman-state-getter-returns-unknown-state~1]
            _ => with_state(Phase::FailedUnknown),
        }
    }

    /// The entry as a container of `agent`; `None` when it is not its, or cannot be read.
    ///
    /// The engine's filter is not trusted: the label and the agent part of the instance must both be exactly `agent`.
    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    #[must_use]
    pub fn of_agent(&self, agent: &str) -> Option<ListedContainer> {
        let instance = self.label(LABEL_NAME).and_then(InstanceName::parse)?;
        let ours = self.label(LABEL_AGENT) == Some(agent) && *instance.agent == *agent;
        ours.then_some(())?;
        Some(ListedContainer {
            id: self.id()?,
            instance,
            state: self.execution_state(),
            processes: self.process().into_iter().collect(),
            ended_at: self.ended_at(),
            in_pod: self.pod().is_some(),
        })
    }

    /// Whether the container carries the name of `instance` exactly.
    // [impl->swdd~podman-get-workload-id-uses-label~1]
    #[must_use]
    pub fn is_of(&self, instance: &InstanceName) -> bool {
        self.label(LABEL_NAME).is_some_and(|name| name == instance.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: &str) -> EngineContainer {
        parse(&format!("[{json}]")).unwrap().remove(0)
    }

    // [utest->swdd~podman-state-getter-maps-state~3]
    // [utest->swdd~podman-state-getter-returns-unknown-state~1]
    #[test]
    fn engine_states_mean_what_the_table_says() {
        for (state, code, expected) in [
            ("created", "0", "Pending(Starting): 'created'"),
            ("Configured", "0", "Pending(Starting): 'Configured'"),
            ("initialized", "0", "Pending(Starting): 'initialized'"),
            ("running", "0", "Running(Ok)"),
            ("RUNNING", "0", "Running(Ok)"),
            ("exited", "0", "Succeeded(Ok)"),
            ("Exited", "1", "Failed(ExecFailed): 'Exit code: '1''"),
            ("exited", "-1", "Failed(ExecFailed): 'Exit code: '-1''"),
            ("exited", "4294967295", "Failed(ExecFailed): 'Exit code: '4294967295''"),
            ("exited", "null", "Failed(Unknown): 'exited'"),
            ("exited", "\"x\"", "Failed(Unknown): 'exited'"),
            ("stopping", "0", "Stopping(Stopping): 'stopping'"),
            ("stopped", "0", "Stopping(Stopping): 'stopped'"),
            ("removing", "0", "Stopping(Stopping): 'removing'"),
            ("paused", "0", "Failed(Unknown): 'paused'"),
            ("unknown", "0", "Failed(Unknown): 'unknown'"),
            ("dancing", "0", "Failed(Unknown): 'dancing'"),
            ("", "0", "Failed(Unknown)"),
        ] {
            let container = entry(&format!(r#"{{"State": "{state}", "ExitCode": {code}}}"#));
            assert_eq!(container.execution_state().to_string(), expected, "{state} {code}");
        }
    }

    // [utest->swdd~podman-list-of-existing-workloads-uses-labels~1]
    #[test]
    fn only_containers_of_exactly_this_agent_are_taken() {
        for (labels, ours) in [
            (r#"{"name": "w.1.C", "agent": "C"}"#, true),
            (r#"{"name": "w.1.X-C", "agent": "X-C"}"#, false),
            (r#"{"name": "w.1.X-C", "agent": "C"}"#, false),
            (r#"{"name": "w.1.C", "agent": "X"}"#, false),
            (r#"{"name": "w.1.C"}"#, false),
            (r#"{"name": "w.C", "agent": "C"}"#, false),
            (r#"{"name": 5, "agent": "C"}"#, false),
            (r#"{"agent": "C"}"#, false),
            ("{}", false),
            ("null", false),
            (r#""text""#, false),
        ] {
            let container = entry(&format!(r#"{{"Id": "i", "State": "running", "Labels": {labels}}}"#));
            assert_eq!(container.of_agent("C").is_some(), ours, "{labels}");
        }
    }

    #[test]
    fn a_stopped_container_whose_exit_code_is_known_has_ended() {
        for (exited, code, expected) in [
            ("true", 0, "Succeeded(Ok)"),
            ("true", 137, "Failed(ExecFailed): 'Exit code: '137''"),
            ("false", 137, "Stopping(Stopping): 'stopped'"),
        ] {
            let container = entry(&format!(r#"{{"State": "stopped", "ExitCode": {code}, "Exited": {exited}}}"#));
            assert_eq!(container.execution_state().to_string(), expected, "{exited} {code}");
        }
    }

    #[test]
    fn how_a_container_ended_that_removes_itself_was_up_to_chance() {
        for (state, code) in [("exited", 0), ("exited", 3), ("stopped", 0)] {
            let json = format!(
                r#"{{"State": "{state}", "ExitCode": {code}, "Exited": true, "ExitedAt": 1, "AutoRemove": true}}"#
            );
            assert_eq!(entry(&json).execution_state(), ExecutionState::plain(Phase::FailedLost), "{state} {code}");
            assert_eq!(entry(&json).ended_at(), None);
        }
        for (state, expected) in [("running", Phase::Running), ("created", Phase::PendingStarting)] {
            let json = format!(r#"{{"State": "{state}", "AutoRemove": true}}"#);
            assert_eq!(entry(&json).execution_state().phase, expected);
        }
    }

    #[test]
    fn a_strange_entry_does_not_hide_the_others() {
        let good = r#"{"Id": "i", "State": "exited", "ExitCode": 3, "Pid": 0, "Labels": {"name":"w.1.A","agent":"A"}}"#;
        let text = format!(r#"[{{}}, {{"Id": 5, "Labels": []}}, {{"Id": null, "Pid": "x", "Pod": null}}, {good}]"#);
        let listed: Vec<_> = parse(&text).unwrap().iter().filter_map(|entry| entry.of_agent("A")).collect();
        assert_eq!(
            listed,
            [ListedContainer {
                id: ContainerId("i".into()),
                instance: InstanceName::with_id("w", "1", "A"),
                state: ExecutionState::exited(3),
                processes: vec![],
                ended_at: None,
                in_pod: false,
            }]
        );
    }

    #[test]
    fn an_id_that_reads_like_an_option_is_none() {
        for (id, known) in
            [("0a9f", true), ("--all", false), ("-a", false), ("", false), ("a b", false), ("a\\n", false)]
        {
            let container = entry(&format!(r#"{{"Id": "{id}", "Pid": 7, "Labels": {{"name":"w.1.A","agent":"A"}}}}"#));
            assert_eq!(container.of_agent("A").is_some(), known, "{id}");
            assert_eq!(container.process().is_some(), known, "{id}");
        }
    }

    #[test]
    fn an_empty_list_may_be_null_and_anything_else_is_an_error() {
        assert_eq!(parse("[]\n").unwrap().len(), 0);
        assert_eq!(parse("null").unwrap().len(), 0);
        for text in ["", "garbage", "{}", "[1]", "[{]", "[] []"] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("The list of containers cannot be read: "), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_pid_is_known_only_while_there_is_a_process() {
        for (json, pid) in [("0", None), ("7", Some(7)), ("-1", None), ("99999999999", None), ("\"7\"", None)] {
            let process = entry(&format!(r#"{{"Id": "i", "Pid": {json}}}"#)).process();
            assert_eq!(process.map(|process| process.pid), pid, "{json}");
        }
        assert_eq!(entry("{}").process(), None);
        assert_eq!(entry(r#"{"Pod": "p"}"#).pod(), Some("p"));
        assert_eq!(entry(r#"{"Pod": ""}"#).pod(), None);
    }
}
