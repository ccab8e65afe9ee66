//! Listings of containers: their format, and the meaning of podman's states for workloads.
//!
//! A listing prints only the fields that are read here, and only the beginning of each text: labels
//! of images and of other containers may be megabytes long, and a listing that is too long to be
//! read hides all workloads.
//!
//! One invalid entry must not hide all others, so fields are read one by one, and only an output
//! that is not a sequence of objects is an error.
//!
//! Thread: none, plain values; runs on the thread that called the engine.

use super::container_config::{LABEL_AGENT, LABEL_NAME};
use super::{ContainerId, ListedContainer, MainProcess};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::limits::NAME_MAX;
use ankaios_model::names::InstanceName;
use serde_json::{Map, Value};

/// Printed characters of a label or a name, which may come from any image or user. Longer than the
/// full name of an instance and of a container in a pod.
const LISTED_TEXT_MAX: usize = 512;
const _: () = assert!(LISTED_TEXT_MAX > 2 * NAME_MAX + 64 + 2);

/// One container as the engine lists it: an object with the keys of [`podman_format`] or of the
/// format for nerdctl.
#[derive(Debug)]
pub struct EngineContainer(Map<String, Value>);

/// The Go template by which podman prints one container. `ListContainer` has the plain values,
/// without the changes for people that podman makes to some of them.
pub(crate) fn podman_format() -> String {
    let fields = [
        "State",
        "ExitCode",
        "Exited",
        "ExitedAt",
        "Pid",
        "Pod",
        "AutoRemove",
        "IsInfra",
    ];
    let mut format = r#"{"Id":{{json .ListContainer.ID}},"#.to_owned();
    for name in fields {
        format.push_str(&format!(r#""{name}":{{{{json .ListContainer.{name}}}}},"#));
    }
    let name = shortened(".Names");
    let pod_name = shortened(".ListContainer.PodName");
    let labels = labels_format(".ListContainer.Labels");
    format.push_str(&format!(r#""Name":{name},"PodName":{pod_name},{labels}}}"#));
    format
}

/// The part of a template that prints the labels by which workloads are found; `labels` is the map
/// of all.
pub(super) fn labels_format(labels: &str) -> String {
    let name = shortened(&format!(r#"(index {labels} "{LABEL_NAME}")"#));
    let agent = shortened(&format!(r#"(index {labels} "{LABEL_AGENT}")"#));
    format!(r#""Labels":{{"{LABEL_NAME}":{name},"{LABEL_AGENT}":{agent}}}"#)
}

/// The part of a template that prints the beginning of a text.
pub(super) fn shortened(text: &str) -> String {
    format!(r#"{{{{json (printf "%.{LISTED_TEXT_MAX}s" {text})}}}}"#)
}

/// Reads a listing: an object for each container, usually on a line of its own.
pub fn parse(text: &str) -> Result<Vec<EngineContainer>, String> {
    let mut containers = Vec::new();
    for entry in serde_json::Deserializer::from_str(text).into_iter() {
        match entry {
            Ok(entry) => containers.push(EngineContainer(entry)),
            Err(error) => return Err(format!("The list of containers cannot be read: {error}")),
        }
    }
    Ok(containers)
}

impl EngineContainer {
    pub(super) fn field(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    fn text(&self, key: &str) -> &str {
        self.field(key).as_str().unwrap_or_default()
    }

    /// The full id; `None` if the entry has no valid one.
    pub fn id(&self) -> Option<ContainerId> {
        ContainerId::printed(self.field("Id").as_str()?)
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.field("Labels")[name].as_str()
    }

    /// Id of its pod.
    pub(crate) fn pod(&self) -> Option<&str> {
        match self.text("Pod") {
            "" => None,
            pod => Some(pod),
        }
    }

    /// Name of its pod if the listing was made with `--pod`; otherwise empty.
    pub(crate) fn pod_name(&self) -> &str {
        self.text("PodName")
    }

    /// Its name; empty if the entry has none.
    pub fn name(&self) -> &str {
        self.text("Name")
    }

    /// Returns whether the engine made it to hold a pod together.
    pub fn is_infra(&self) -> bool {
        *self.field("IsInfra") == Value::Bool(true)
    }

    /// Returns whether its processes are paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.text("State").eq_ignore_ascii_case("paused")
    }

    /// Its main process while that runs.
    pub(crate) fn process(&self) -> Option<MainProcess> {
        let pid = u32::try_from(self.field("Pid").as_u64()?).ok()?;
        if pid == 0 {
            return None; // It does not run.
        }
        Some(MainProcess {
            container: self.id()?,
            pid,
        })
    }

    /// Time of its end in seconds since 1970. Podman prints the year 1 for one that has not ended.
    pub fn ended_at(&self) -> Option<u64> {
        if !self.execution_state().phase.has_ended() {
            return None;
        }
        self.field("ExitedAt").as_u64()
    }

    /// The state of the workload that follows from podman's state of the container.
    ///
    /// Podman reports `stopped` from the end of the process until it has cleaned up, some 100 ms
    /// later; the exit code is final from the beginning (`Exited` is true).
    // [impl->swdd~podman-state-getter-maps-state~3]
    // [impl->swdd~allowed-workload-states~2]
    pub fn execution_state(&self) -> ExecutionState {
        let engine_state = self.text("State");
        let with_state = |phase| ExecutionState::with_info(phase, engine_state);
        match engine_state.to_ascii_lowercase().as_str() {
            "created" | "configured" | "initialized" => with_state(Phase::PendingStarting),
            "running" => ExecutionState::plain(Phase::Running),
            "stopped" if *self.field("Exited") != Value::Bool(true) => with_state(Phase::Stopping),
            // It removes itself, so the exit code is seen only by chance.
            "exited" | "stopped" if *self.field("AutoRemove") == Value::Bool(true) => {
                ExecutionState::plain(Phase::FailedLost)
            }
            "exited" | "stopped" => match self.field("ExitCode").as_i64() {
                Some(code) => ExecutionState::exited(code),
                None => with_state(Phase::FailedUnknown),
            },
            "stopping" | "removing" => with_state(Phase::Stopping),
            // [impl->swdd~podman-state-getter-returns-unknown-state~1]
            _ => with_state(Phase::FailedUnknown),
        }
    }

    /// The instance of the container; `None` if it is not a container of `agent`.
    ///
    /// The engine's filter is not trusted: the label and the agent part of the instance must both
    /// be exactly `agent`.
    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    pub fn instance_of(&self, agent: &str) -> Option<InstanceName> {
        let instance = InstanceName::parse(self.label(LABEL_NAME)?)?;
        if self.label(LABEL_AGENT) != Some(agent) || *instance.agent != *agent {
            return None;
        }
        Some(instance)
    }

    /// The entry as a container of `agent`; `None` if it is of another one, or invalid.
    pub fn of_agent(&self, agent: &str) -> Option<ListedContainer> {
        Some(ListedContainer {
            id: self.id()?,
            instance: self.instance_of(agent)?,
            state: self.execution_state(),
            processes: self.process().into_iter().collect(),
            ended_at: self.ended_at(),
            in_pod: self.pod().is_some(),
            pods: None,
        })
    }

    /// Returns whether the container carries exactly the name of `instance`.
    // [impl->swdd~podman-get-workload-id-uses-label~1]
    pub(crate) fn is_of(&self, instance: &InstanceName) -> bool {
        self.label(LABEL_NAME) == Some(&*instance.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: &str) -> EngineContainer {
        parse(json).unwrap().remove(0)
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
            (
                "exited",
                "4294967295",
                "Failed(ExecFailed): 'Exit code: '4294967295''",
            ),
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
            assert_eq!(
                container.execution_state().to_string(),
                expected,
                "{state} {code}"
            );
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
            let container = entry(&format!(
                r#"{{"Id": "i", "State": "running", "Labels": {labels}}}"#
            ));
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
            let container = entry(&format!(
                r#"{{"State": "stopped", "ExitCode": {code}, "Exited": {exited}}}"#
            ));
            assert_eq!(
                container.execution_state().to_string(),
                expected,
                "{exited} {code}"
            );
        }
    }

    #[test]
    fn how_a_container_ended_that_removes_itself_was_up_to_chance() {
        for (state, code) in [("exited", 0), ("exited", 3), ("stopped", 0)] {
            let json = format!(
                r#"{{"State": "{state}", "ExitCode": {code}, "Exited": true, "ExitedAt": 1, "AutoRemove": true}}"#
            );
            assert_eq!(
                entry(&json).execution_state(),
                ExecutionState::plain(Phase::FailedLost),
                "{state} {code}"
            );
            assert_eq!(entry(&json).ended_at(), None);
        }
        for (state, expected) in [
            ("running", Phase::Running),
            ("created", Phase::PendingStarting),
        ] {
            let json = format!(r#"{{"State": "{state}", "AutoRemove": true}}"#);
            assert_eq!(entry(&json).execution_state().phase, expected);
        }
    }

    #[test]
    fn a_strange_entry_does_not_hide_the_others() {
        let good = r#"{"Id": "i", "State": "exited", "ExitCode": 3, "Pid": 0, "Labels": {"name":"w.1.A","agent":"A"}}"#;
        let text = format!(
            r#"{{}} {{"Id": 5, "Labels": []}} {{"Id": null, "Pid": "x", "Pod": null}} {good}"#
        );
        let listed: Vec<_> = parse(&text)
            .unwrap()
            .iter()
            .filter_map(|entry| entry.of_agent("A"))
            .collect();
        assert_eq!(
            listed,
            [ListedContainer {
                id: ContainerId("i".into()),
                instance: InstanceName::with_id("w", "1", "A"),
                state: ExecutionState::exited(3),
                processes: vec![],
                ended_at: None,
                in_pod: false,
                pods: None,
            }]
        );
    }

    #[test]
    fn an_id_that_reads_like_an_option_is_none() {
        for (id, known) in [
            ("0a9f", true),
            ("--all", false),
            ("-a", false),
            ("", false),
            ("a b", false),
            ("a\\n", false),
        ] {
            let container = entry(&format!(
                r#"{{"Id": "{id}", "Pid": 7, "Labels": {{"name":"w.1.A","agent":"A"}}}}"#
            ));
            assert_eq!(container.of_agent("A").is_some(), known, "{id}");
            assert_eq!(container.process().is_some(), known, "{id}");
        }
    }

    #[test]
    fn listing_that_is_not_a_sequence_of_objects_is_an_error() {
        for (text, count) in [("", 0), ("\n", 0), ("{}", 1), ("{}\n{}\n", 2), ("{}{}", 2)] {
            assert_eq!(parse(text).unwrap().len(), count, "{text:?}");
        }
        for text in ["garbage", "[]", "null", "{", "{} x", "1"] {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with("The list of containers cannot be read: "),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn a_pid_is_known_only_while_there_is_a_process() {
        for (json, pid) in [
            ("0", None),
            ("7", Some(7)),
            ("-1", None),
            ("99999999999", None),
            ("\"7\"", None),
        ] {
            let process = entry(&format!(r#"{{"Id": "i", "Pid": {json}}}"#)).process();
            assert_eq!(process.map(|process| process.pid), pid, "{json}");
        }
        assert_eq!(entry("{}").process(), None);
        assert_eq!(entry(r#"{"Pod": "p"}"#).pod(), Some("p"));
        assert_eq!(entry(r#"{"Pod": ""}"#).pod(), None);
    }
}
