//! What mutating hooks read and write: one `UpdateWorkload` without length.
//!
//! Thread: `hook`.

use super::convert::from_server;
use super::schema::grpc_api;
use super::weight::decode as decode_message;
use crate::model::messages::WorkloadPlan;
use protobuf::Message;

/// Output of a hook that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookMessageError {
    /// Not the message that was expected.
    #[error("{0}")]
    Undecodable(String),
    /// That message, but something in it is missing or unknown.
    #[error("{0}")]
    Incomplete(String),
}

/// The bytes that a hook reads.
#[must_use]
pub fn encode(plan: &WorkloadPlan) -> Vec<u8> {
    // Writing into memory fails for a message of more than 2 GiB only, which no update can become.
    from_server::write_plan(plan).write_to_bytes().unwrap_or_default()
}

/// Reads what a hook wrote.
///
/// # Errors
/// [`HookMessageError`] with the reason.
pub fn decode(bytes: &[u8]) -> Result<WorkloadPlan, HookMessageError> {
    let message = decode_message::<grpc_api::UpdateWorkload>(bytes)
        .map_err(|error| HookMessageError::Undecodable(error.to_string()))?;
    from_server::read_plan(message).map_err(|error| HookMessageError::Incomplete(error.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::AddedWorkload;
    use crate::model::names::InstanceName;
    use crate::model::workload::Workload;
    use std::sync::Arc;

    #[test]
    fn a_message_that_is_cut_short_is_refused_wherever_it_ends() {
        let mut workload = Workload::new("A", "podman", "x");
        workload.tags.insert("k".to_owned(), "v".to_owned());
        let workload = Arc::new(workload);
        let added = vec![AddedWorkload { instance: workload.instance_name("web"), workload }];
        let plan = WorkloadPlan { added, deleted: vec![] };
        let bytes = encode(&plan);
        assert_eq!((decode(&bytes), decode(&[])), (Ok(plan), Ok(WorkloadPlan::default())));
        for end in 1..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        assert!(matches!(decode(b"garbage"), Err(HookMessageError::Undecodable(_))));
        let name = InstanceName::with_id("a", "id", "A");
        let added = |message| grpc_api::UpdateWorkload { addedWorkloads: vec![message], ..Default::default() };
        let whole = WorkloadPlan {
            added: vec![AddedWorkload { instance: name, workload: Arc::new(Workload::new("A", "r", "c")) }],
            deleted: vec![],
        };
        let bytes = from_server::write_plan(&whole).write_to_bytes().unwrap();
        let whole = grpc_api::UpdateWorkload::parse_from_bytes(&bytes).unwrap().addedWorkloads.remove(0);
        let mut no_name = whole.clone();
        no_name.instanceName.clear();
        let mut no_workload = whole.clone();
        no_workload.workload = None;
        let mut no_agent = whole;
        no_agent.workload = Some(Vec::new());
        for (message, reason) in
            [(no_name, "No instance name"), (no_workload, "No workload"), (no_agent, "Missing field 'agent'")]
        {
            let bytes = added(message).write_to_bytes().unwrap();
            assert_eq!(decode(&bytes), Err(HookMessageError::Incomplete(reason.to_owned())));
        }
    }
}
