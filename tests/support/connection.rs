//! The test as a peer of the server: a connection as an agent, a command line or a commander has
//! it.
//!
//! Thread: the test's. Owns nothing; the connection ends when what was returned is dropped.

use ankaios_lite::model::limits::MESSAGE_MAX;
use ankaios_lite::model::messages::{AgentHello, Request, RequestContent, ToServer};
use ankaios_lite::model::version::VERSION;
use ankaios_lite::wire::address::{Security, ServerUrl};
use ankaios_lite::wire::client::{
    ClientOptions, ClientReceiver, ClientSender, Hangup, Service, connect,
};

use super::LIMIT;

pub type Connection = (ClientSender, ClientReceiver, Hangup);

/// A connection of the kind `service` that begins with `hello`.
pub fn open(url: &str, service: Service, hello: ToServer) -> Connection {
    let options = ClientOptions {
        url: ServerUrl::parse(url).expect("a URL"),
        security: Security::Insecure,
        service,
        connect_limit: LIMIT,
        message_max: MESSAGE_MAX,
    };
    connect(&options, hello).expect("the server accepts connections")
}

/// A connection of a commander; `Service::Cli` also gets the states of all workloads.
pub fn commander(url: &str, service: Service) -> Connection {
    open(
        url,
        service,
        ToServer::CommanderHello {
            version: VERSION.to_owned(),
        },
    )
}

pub fn agent(url: &str, name: &str) -> Connection {
    let hello = AgentHello {
        agent: name.to_owned(),
        version: VERSION.to_owned(),
        tags: [].into(),
        ..AgentHello::default()
    };
    open(url, Service::Agent, ToServer::AgentHello(hello))
}

pub fn request(sender: &mut ClientSender, id: &str, content: RequestContent) {
    let id = id.to_owned();
    let sent = sender.send(ToServer::Request(Request { id, content }));
    sent.expect("the stream is open");
}
