//! Messages for clients of other implementations, which take at most 4 MiB each.
//!
//! Thread: `server`.

use super::convert::messages::write_from_server;
use ankaios_model::messages::{FromServer, Response, ResponseContent, WorkloadPlan};
use ankaios_model::names::Name;
use ankaios_platform::logging::log_source;
use std::collections::BTreeMap;

/// Encodes a message as one or more messages of at most `limit` bytes each.
///
/// - A plan is cut into parts.
/// - A response is replaced by an error that names the way out.
/// - Any other message is left out with an error in the log, since sending it would end the session
///   after each connect.
pub(crate) fn fit(message: FromServer, limit: usize, peer: &str) -> Vec<Vec<u8>> {
    let bytes = write_from_server(&message);
    let size = bytes.len();
    if size <= limit {
        return vec![bytes];
    }
    let what = match message {
        FromServer::UpdateWorkload(plan) => {
            if let Some([first, second]) = halves(plan) {
                let mut messages = fit(FromServer::UpdateWorkload(first), limit, peer);
                messages.extend(fit(FromServer::UpdateWorkload(second), limit, peer));
                return messages;
            }
            "an update of one workload".to_owned()
        }
        FromServer::Response(Response { id, .. }) => {
            return too_large_answer(id, size, limit, peer);
        }
        FromServer::ServerHello(added) => format!("the hello with {} workloads", added.len()),
        _ => "a message".to_owned(),
    };
    log_too_large(peer, &what, size, limit);
    Vec::new()
}

/// An error in place of an answer of at least `size` bytes.
pub(crate) fn too_large_answer(id: String, size: usize, limit: usize, peer: &str) -> Vec<Vec<u8>> {
    let text = format!(
        "The answer has at least {size} bytes, but this client takes at most {limit}. Ask for parts with field masks."
    );
    let error = write_from_server(&FromServer::Response(Response {
        id,
        content: ResponseContent::Error(text.into()),
    }));
    if error.len() <= limit {
        return vec![error];
    }
    // The id of the request is too long. It gets no answer, and the stream of its agent stays open.
    log_too_large(peer, "an answer", error.len(), limit);
    Vec::new()
}

/// Logs that a message for `peer` is not sent.
pub(crate) fn log_too_large(peer: &str, what: &str, size: usize, limit: usize) {
    let _source = log_source(peer);
    log::error!(
        "Not sending {what} to '{peer}': it has {size} bytes, but that program takes at most {limit}. \
         Use fewer or smaller workloads there, or an agent of this version."
    );
}

/// Cuts a plan in two; `None` if it has only one workload. The old and the new instance of a
/// workload stay together: one message makes them an update, two a stop and an unrelated start.
fn halves(plan: WorkloadPlan) -> Option<[WorkloadPlan; 2]> {
    let mut by_name: BTreeMap<Name, WorkloadPlan> = BTreeMap::new();
    for added in plan.added {
        by_name
            .entry(added.instance.workload.clone())
            .or_default()
            .added
            .push(added);
    }
    for deleted in plan.deleted {
        by_name
            .entry(deleted.instance.workload.clone())
            .or_default()
            .deleted
            .push(deleted);
    }
    if by_name.len() < 2 {
        return None;
    }
    let middle = by_name.len() / 2;
    let mut first = WorkloadPlan::default();
    let mut second = WorkloadPlan::default();
    for (index, part) in by_name.into_values().enumerate() {
        let half = if index < middle {
            &mut first
        } else {
            &mut second
        };
        half.added.extend(part.added);
        half.deleted.extend(part.deleted);
    }
    Some([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::messages::read_from_server;
    use ankaios_model::access_rules::AccessRule;
    use ankaios_model::messages::{AddedWorkload, DeletedWorkload, LogsRequest};
    use ankaios_model::refusal::ErrorResponse;
    use ankaios_model::workload::{AddCondition, Workload};
    use std::sync::Arc;

    const LIMIT: usize = 4096;

    fn added(index: usize, config: &str) -> AddedWorkload {
        let workload = Arc::new(Workload::new("A", "podman", config));
        AddedWorkload {
            instance: workload.instance_name(&format!("w{index}")),
            workload,
        }
    }

    #[test]
    fn both_instances_of_an_updated_workload_stay_together() {
        let plan = WorkloadPlan {
            added: (0..100).map(|index| added(index, "new")).collect(),
            deleted: (0..100)
                .map(|index| DeletedWorkload {
                    instance: added(index, "old").instance,
                    dependencies: BTreeMap::new(),
                })
                .collect(),
        };
        let pieces = fit(FromServer::UpdateWorkload(plan), LIMIT, "A");
        let mut count = 0;
        for piece in &pieces {
            assert!(piece.len() <= LIMIT);
            let Ok(FromServer::UpdateWorkload(plan)) = read_from_server(piece) else {
                panic!("{piece:?}")
            };
            let mut new: Vec<_> = plan
                .added
                .iter()
                .map(|added| &added.instance.workload)
                .collect();
            let mut old: Vec<_> = plan
                .deleted
                .iter()
                .map(|old| &old.instance.workload)
                .collect();
            count += new.len();
            new.sort();
            old.sort();
            assert_eq!(new, old);
        }
        assert_eq!(count, 100);
    }

    #[test]
    fn large_response_becomes_an_error_and_a_large_hello_nothing() {
        let content = ResponseContent::UpdateStateSuccess {
            added: vec!["x".repeat(LIMIT)],
            deleted: Vec::new(),
            restarted: vec![],
            warning: None,
        };
        let pieces = fit(
            FromServer::Response(Response {
                id: "id".into(),
                content,
            }),
            LIMIT,
            "c",
        );
        let Ok(FromServer::Response(response)) = read_from_server(&pieces[0]) else {
            panic!("{pieces:?}")
        };
        assert_eq!(response.id, "id");
        assert!(
            matches!(response.content, ResponseContent::Error(ErrorResponse { text, .. }) if text.contains("field masks"))
        );
        assert!(
            fit(
                FromServer::ServerHello(vec![added(0, &"x".repeat(LIMIT))]),
                LIMIT,
                "A"
            )
            .is_empty()
        );
    }

    #[test]
    fn too_large_message_is_recognised_in_every_part() {
        let long = || "x".repeat(LIMIT + 1);
        let with = |change: &dyn Fn(&mut Workload)| {
            let mut workload = Workload::new("A", "podman", "c");
            change(&mut workload);
            let workload = Arc::new(workload);
            AddedWorkload {
                instance: workload.instance_name("w"),
                workload,
            }
        };
        let rule = |allow| {
            move |workload: &mut Workload| {
                let rule = AccessRule::Log {
                    workload_names: vec!["x".repeat(LIMIT + 1)],
                };
                let access = &mut workload.control_interface_access;
                if allow {
                    &mut access.allow_rules
                } else {
                    &mut access.deny_rules
                }
                .push(rule);
            }
        };
        let plan = |added| {
            FromServer::UpdateWorkload(WorkloadPlan {
                added: vec![added],
                deleted: vec![],
            })
        };
        let request = |since: Option<String>, until: Option<String>| FromServer::LogsRequest {
            request_id: "id".into(),
            request: LogsRequest {
                since,
                until,
                ..LogsRequest::default()
            },
        };
        for message in [
            plan(with(&|workload| {
                workload.dependencies = [(long(), AddCondition::Running)].into()
            })),
            plan(with(&|workload| workload.runtime = long().into())),
            plan(with(&rule(true))),
            plan(with(&rule(false))),
            request(Some(long()), None),
            request(None, Some(long())),
            FromServer::Response(Response {
                id: long(),
                content: ResponseContent::EventsCancelAccepted,
            }),
        ] {
            assert!(
                fit(message.clone(), LIMIT, "A").is_empty(),
                "{message:.100?}"
            );
        }
    }
}
