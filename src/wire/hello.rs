//! The checks of the first message of a stream.
//!
//! Thread: `rx:<peer>`, plain functions.

use super::grpc::Service;
use super::peer::{PeerHello, PeerOrigin};
use super::tls::PeerCertificate;
use crate::limits::{AGENT_TAGS_BYTES, AGENT_VERSION_BYTES};
use ankaios_model::complete_state::tags_bytes;
use ankaios_model::messages::{AgentHello, ToServer};
use ankaios_model::names::{NOT_OF_COMMANDER, excerpt, is_name, is_of_commander};
use ankaios_model::validation::NAME_RULE;
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
    if let Some(certificate) = certificate {
        check_certificate(certificate)?;
    }
    match (service, message) {
        (_, ToServer::Empty) => Err(refusal(RpcStatusCode::INVALID_ARGUMENT, NO_HELLO)),
        (Service::Agent, ToServer::AgentHello(hello)) => {
            check_version(&hello.version)?;
            check_agent(&hello, certificate)?;
            Ok(PeerHello::Agent(hello))
        }
        (Service::Cli, ToServer::CommanderHello { version }) => {
            check_version(&version)?;
            Ok(PeerHello::Cli)
        }
        (Service::Command, ToServer::CommanderHello { version }) => {
            check_version(&version)?;
            Ok(PeerHello::Commander)
        }
        (Service::Agent, _) => Err(refusal(
            RpcStatusCode::INVALID_ARGUMENT,
            "No AgentHello received.",
        )),
        (Service::Cli | Service::Command, _) => Err(refusal(
            RpcStatusCode::INVALID_ARGUMENT,
            "No CommanderHello received.",
        )),
    }
}

fn check_version(version: &str) -> Result<(), RpcStatus> {
    check_compatible(version).map_err(|text| refusal(RpcStatusCode::FAILED_PRECONDITION, &text))
}

/// Checks that the certificate of an agent is the only one and names agents.
fn check_certificate(certificate: &PeerCertificate) -> Result<(), RpcStatus> {
    if certificate.count > 1 {
        let text = "Ambiguous agent certificates provided!";
        return Err(refusal(RpcStatusCode::UNAUTHENTICATED, text));
    }
    // Without any DNS name the certificate would be valid for every agent.
    if certificate.dns_names.is_empty() {
        let text = "No subject alt names found in agent certificates!";
        return Err(refusal(RpcStatusCode::UNAUTHENTICATED, text));
    }
    Ok(())
}

/// Checks the name of an agent, whether its certificate has that name, and the sizes of its version
/// and tags, which are stored.
fn check_agent(hello: &AgentHello, certificate: Option<&PeerCertificate>) -> Result<(), RpcStatus> {
    let AgentHello {
        agent,
        version,
        tags,
        ..
    } = hello;
    if !is_name(agent) || is_of_commander(agent) {
        let rule = if is_of_commander(agent) {
            NOT_OF_COMMANDER
        } else {
            NAME_RULE
        };
        let text = format!("Unsupported agent name '{}'. {rule}", excerpt(agent));
        return Err(refusal(RpcStatusCode::INVALID_ARGUMENT, &text));
    }
    if let Some(PeerCertificate { dns_names, .. }) = certificate
        && !dns_names.iter().any(|name| name == agent || name == "*")
    {
        let text =
            format!("Agent name '{agent}' does not match SAN {dns_names:?} in agent certificates!");
        return Err(refusal(RpcStatusCode::UNAUTHENTICATED, &text));
    }
    if version.len() > AGENT_VERSION_BYTES {
        let text = format!(
            "The version of agent '{agent}' has {} bytes, at most {AGENT_VERSION_BYTES} are allowed.",
            version.len()
        );
        return Err(refusal(RpcStatusCode::INVALID_ARGUMENT, &text));
    }
    let bytes = tags_bytes(tags);
    if bytes > AGENT_TAGS_BYTES {
        let text = format!(
            "The tags of agent '{agent}' take {bytes} bytes, at most {AGENT_TAGS_BYTES} are allowed."
        );
        return Err(refusal(RpcStatusCode::INVALID_ARGUMENT, &text));
    }
    Ok(())
}

/// Checks the user at the other end:
///
/// - Over a Unix domain socket only root and the user of this server may be an agent, because an
///   agent receives the secrets of its workloads. Commanders are restricted by the permissions of
///   the socket's file.
/// - With TLS a commander needs a certificate with one of `commander_names`, if there are any.
pub(crate) fn check_user(
    hello: &PeerHello,
    origin: &PeerOrigin,
    commander_names: &[String],
) -> Result<(), RpcStatus> {
    let own = rustix::process::geteuid().as_raw();
    match (hello, origin) {
        (PeerHello::Agent(_), PeerOrigin::Socket(_, uid)) if *uid != 0 && *uid != own => {
            let text = format!(
                "Over a Unix domain socket only root and the user of the server (uid {own}) may run an agent, not uid {uid}."
            );
            Err(refusal(RpcStatusCode::PERMISSION_DENIED, &text))
        }
        (PeerHello::Cli | PeerHello::Commander, PeerOrigin::Tls(_, certificate)) => {
            let names = &certificate.dns_names;
            let is_named = names.iter().any(|name| commander_names.contains(name));
            if commander_names.is_empty() || is_named {
                return Ok(());
            }
            let text = format!(
                "Only certificates for {commander_names:?} may command, not one for {names:?}."
            );
            Err(refusal(RpcStatusCode::UNAUTHENTICATED, &text))
        }
        _ => Ok(()),
    }
}
