//! Names of the changes of states that the server keeps and `ank` shows. The state of a change is
//! that of an instance, or one of these names.
//!
//! Thread: none, constants.

/// The state of an agent that has connected.
pub const AGENT_CONNECTED: &str = "AgentConnected";
/// The state of an agent whose connection has ended.
pub const AGENT_LOST: &str = "AgentDisconnected";
/// The state of the server when it has started.
pub const SERVER_STARTED: &str = "ServerStarted";
