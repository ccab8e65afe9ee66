//! Keeps how a workload ended for the next agent, in the folder of its instance: others may remove
//! the container meanwhile.
//!
//! Thread: `wl:<name>` writes and reads, `scheduler` reads when the agent starts. Owns: nothing;
//! the connector keeps the text.

use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::names::InstanceName;
use ankaios_model::reason::Reason;
use ankaios_runtime::{ContainerId, RuntimeConnector};
use serde::{Deserialize, Serialize};

/// The record of one end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndRecord {
    container: String,
    /// The boot in which it was seen.
    boot: String,
    succeeded: bool,
    info: String,
    /// A text of [`Reason`]; older agents write none.
    #[serde(default)]
    reason: String,
}

/// Keeps how the container `id` of the instance ended during this `boot`.
pub(crate) fn keep(
    connector: &mut dyn RuntimeConnector,
    instance: &InstanceName,
    id: &ContainerId,
    boot: &str,
    state: &ExecutionState,
) {
    let record = EndRecord {
        container: id.0.to_string(),
        boot: boot.to_owned(),
        succeeded: state.phase == Phase::Succeeded,
        info: state.additional_info.to_string(),
        reason: state.reason.as_str().to_owned(),
    };
    let text = serde_json::to_string(&record).unwrap_or_default(); // Texts always can be written.
    connector.note_end(instance, &text);
}

/// Returns which container of the instance ended during this `boot`, and its last state; `None` if
/// there is no record of that.
pub(crate) fn kept(
    connector: &dyn RuntimeConnector,
    instance: &InstanceName,
    boot: &str,
) -> Option<(ContainerId, ExecutionState)> {
    let text = connector.end_record(instance)?;
    let record: EndRecord = serde_json::from_str(&text).ok()?;
    if record.boot != boot || boot.is_empty() {
        return None; // It was another boot, or the boot is not known.
    }
    let phase = if record.succeeded {
        Phase::Succeeded
    } else {
        Phase::FailedExecFailed
    };
    let reason = Reason::parse(&record.reason).unwrap_or_default();
    let state = ExecutionState::with_info(phase, record.info).because(reason);
    Some((ContainerId(record.container.into()), state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_fakes::fake_connector::FakeEngine;

    #[test]
    fn record_of_an_end_is_read_in_its_boot_only() {
        let engine = FakeEngine::new();
        let mut connector = engine.connector("agent_A");
        let (web, id) = (
            InstanceName::with_id("web", "1", "agent_A"),
            ContainerId("c1".into()),
        );
        for state in [ExecutionState::exited(0), ExecutionState::exited(3)] {
            keep(&mut connector, &web, &id, "boot 1", &state);
            assert_eq!(kept(&connector, &web, "boot 1"), Some((id.clone(), state)));
        }
        assert_eq!(kept(&connector, &web, "boot 2"), None);
        assert_eq!(
            kept(
                &connector,
                &InstanceName::with_id("db", "1", "agent_A"),
                "boot 1"
            ),
            None
        );
        keep(&mut connector, &web, &id, "", &ExecutionState::exited(0));
        assert_eq!(
            kept(&connector, &web, ""),
            None,
            "an unknown boot may be another one"
        );
        connector.note_end(&web, "{");
        assert_eq!(kept(&connector, &web, "boot 1"), None);
        keep(
            &mut connector,
            &web,
            &id,
            "boot 1",
            &ExecutionState::exited(0),
        );
        connector.forget_end(&web);
        assert_eq!(kept(&connector, &web, "boot 1"), None);
    }
}
