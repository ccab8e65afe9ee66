//! Messages between a workload and its agent, both ends.
//!
//! Thread: `control`.

use super::ConvertError;
use super::{from_server, to_server};
use crate::model::messages::{FromWorkload, ToWorkload};
use crate::wire::schema::control_api as api;
use api::from_ankaios::FromAnkaiosEnum;
use api::to_ankaios::ToAnkaiosEnum;

/// Reads a message of a workload.
// [impl->swdd~agent-converts-control-interface-message-to-ankaios-object~1]
#[must_use]
pub fn read_from_workload(message: api::ToAnkaios) -> FromWorkload {
    match message.ToAnkaiosEnum {
        Some(ToAnkaiosEnum::Hello(hello)) => FromWorkload::Hello { version: hello.protocolVersion },
        Some(ToAnkaiosEnum::Request(request)) => FromWorkload::Request(to_server::read_request(request)),
        _ => FromWorkload::Empty,
    }
}

/// Writes a message of a workload.
#[must_use]
pub fn write_from_workload(message: FromWorkload) -> api::ToAnkaios {
    let content = match message {
        FromWorkload::Hello { version } => {
            Some(ToAnkaiosEnum::Hello(api::Hello { protocolVersion: version, ..Default::default() }))
        }
        FromWorkload::Request(request) => Some(ToAnkaiosEnum::Request(to_server::write_request(request))),
        FromWorkload::Empty | FromWorkload::TooHeavy { .. } => None,
    };
    api::ToAnkaios { ToAnkaiosEnum: content, ..Default::default() }
}

/// Reads a message of the agent.
///
/// # Errors
/// What is missing or unknown.
pub fn read_to_workload(message: api::FromAnkaios) -> Result<ToWorkload, ConvertError> {
    Ok(match message.FromAnkaiosEnum {
        Some(FromAnkaiosEnum::ControlInterfaceAccepted(_)) => ToWorkload::Accepted,
        Some(FromAnkaiosEnum::ConnectionClosed(closed)) => ToWorkload::Closed { reason: closed.reason },
        Some(FromAnkaiosEnum::Response(response)) => ToWorkload::Response(from_server::read_response(response)?),
        _ => return Err(ConvertError("a message without content".to_owned())),
    })
}

/// Writes a message of the agent.
#[must_use]
pub fn write_to_workload(message: ToWorkload) -> api::FromAnkaios {
    let content = match message {
        ToWorkload::Accepted => FromAnkaiosEnum::ControlInterfaceAccepted(api::ControlInterfaceAccepted::default()),
        ToWorkload::Closed { reason } => {
            FromAnkaiosEnum::ConnectionClosed(api::ConnectionClosed { reason, ..Default::default() })
        }
        ToWorkload::Response(response) => FromAnkaiosEnum::Response(from_server::write_response(response)),
    };
    api::FromAnkaios { FromAnkaiosEnum: Some(content), ..Default::default() }
}
