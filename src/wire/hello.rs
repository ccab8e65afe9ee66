//! Who may open a stream: the checks of its first message.
//!
//! Thread: `rx:<peer>`, plain functions.

use super::grpc::Service;
use super::peer::{Origin, PeerHello};
use super::tls::PeerCertificate;
use crate::limits::AGENT_TAGS_BYTES;
use ankaios_model::complete_state::tags_bytes;
use ankaios_model::messages::{AgentHello, ToServer};
use ankaios_model::names::{NOT_OF_COMMANDER, excerpt, is_name, is_of_commander};
use ankaios_model::version::check_compatible;
use grpcio::{RpcStatus, RpcStatusCode};

/// Status message for a peer whose first message has no content.
pub(crate) const NO_HELLO: &str = "Empty";

/// A status that ends a stream.
pub(crate) fn refusal(code: RpcStatusCode, text: &str) -> RpcStatus {
    RpcStatus::with_message(code, text.to_owned())
}

/// Checks the first message of a stream, and the certificate of an agent with TLS.
// [impl->swdd~server-check-agent-name~1]
pub(crate) fn check_hello(
    service: Service,
    certificate: Option<&PeerCertificate>,
    message: ToServer,
) -> Result<PeerHello, RpcStatus> {
    let refuse = |code, text: &str| Err(refusal(code, text));
    let version = |version: &str| {
        check_compatible(version).map_err(|text| refusal(RpcStatusCode::FAILED_PRECONDITION, &text))
    };
    if let Some(certificate) = certificate {
        if certificate.count > 1 {
            return refuse(
                RpcStatusCode::UNAUTHENTICATED,
                "Ambiguous agent certificates provided!",
            );
        }
        // Without any DNS name the certificate would speak for every agent.
        if certificate.dns_names.is_empty() {
            let text = "No subject alt names found in agent certificates!";
            return refuse(RpcStatusCode::UNAUTHENTICATED, text);
        }
    }
    match (service, message) {
        (_, ToServer::Empty) => refuse(RpcStatusCode::INVALID_ARGUMENT, NO_HELLO),
        (Service::Agent, ToServer::AgentHello(hello)) => {
            let AgentHello { agent, tags, .. } = &hello;
            version(&hello.version)?;
            let rule = if is_of_commander(agent) {
                NOT_OF_COMMANDER
            } else {
                "Only a-z, A-Z, 0-9 chars, underscore (_), and hyphen (-) allowed. Maximum length is 63 characters."
            };
            if !is_name(agent) || is_of_commander(agent) {
                let text = format!("Unsupported agent name '{}'. {rule}", excerpt(agent));
                return refuse(RpcStatusCode::INVALID_ARGUMENT, &text);
            }
            if let Some(names) = certificate.map(|certificate| &certificate.dns_names)
                && !names.iter().any(|name| name == agent || name == "*")
            {
                let text = format!(
                    "Agent name '{agent}' does not match SAN {names:?} in agent certificates!"
                );
                return refuse(RpcStatusCode::UNAUTHENTICATED, &text);
            }
            let bytes = tags_bytes(tags);
            if bytes > AGENT_TAGS_BYTES {
                let text = format!(
                    "The tags of agent '{agent}' take {bytes} bytes, at most {AGENT_TAGS_BYTES} are allowed."
                );
                return refuse(RpcStatusCode::INVALID_ARGUMENT, &text);
            }
            Ok(PeerHello::Agent(hello))
        }
        (Service::Agent, _) => refuse(RpcStatusCode::INVALID_ARGUMENT, "No AgentHello received."),
        (Service::Cli, ToServer::CommanderHello { version: theirs }) => {
            version(&theirs).map(|()| PeerHello::Cli)
        }
        (Service::Command, ToServer::CommanderHello { version: theirs }) => {
            version(&theirs).map(|()| PeerHello::Commander)
        }
        (Service::Cli | Service::Command, _) => refuse(
            RpcStatusCode::INVALID_ARGUMENT,
            "No CommanderHello received.",
        ),
    }
}

/// Checks the user at the other end. Only root and the user of this server may be an agent over a
/// Unix domain socket, because an agent receives the secrets of its workloads. Who may be a
/// commander is decided by the permissions of the socket's file, and with TLS by the DNS names in
/// the certificate if the settings restrict these.
pub(crate) fn check_user(
    hello: &PeerHello,
    origin: &Origin,
    commander_names: &[String],
) -> Result<(), RpcStatus> {
    let own = rustix::process::geteuid().as_raw();
    match (hello, origin) {
        (PeerHello::Agent(_), Origin::Socket(_, uid)) if *uid != 0 && *uid != own => {
            let text = format!(
                "Over a Unix domain socket only root and the user of the server (uid {own}) may run an agent, not uid {uid}."
            );
            Err(refusal(RpcStatusCode::PERMISSION_DENIED, &text))
        }
        (PeerHello::Cli | PeerHello::Commander, Origin::Tls(_, certificate))
            if !commander_names.is_empty()
                && !certificate
                    .dns_names
                    .iter()
                    .any(|name| commander_names.contains(name)) =>
        {
            let text = format!(
                "Only certificates for {commander_names:?} may command, not one for {:?}.",
                certificate.dns_names
            );
            Err(refusal(RpcStatusCode::UNAUTHENTICATED, &text))
        }
        _ => Ok(()),
    }
}
