//! Requests logs from the server, as a commander does, and reads the responses one by one.
//!
//! Thread: the test's; once it reads, `log-client` reads the stream until the connection is closed,
//! on drop.
//! Owns: a connection. Gives: responses in order.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ankaios_lite::model::messages::{FromServer, LogsRequest, RequestContent, ResponseContent};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::wire::client::{ClientReceiver, ClientSender, Hangup, Service};

use super::cluster::Cluster;
use super::{LIMIT, connection};

pub struct LogClient {
    sender: ClientSender,
    unread: Option<ClientReceiver>,
    responses: Option<Receiver<(String, ResponseContent)>>,
    hangup: Hangup,
    thread: Option<JoinHandle<()>>,
}

/// A request for everything that one instance wrote.
pub fn everything(instance: &InstanceName) -> LogsRequest {
    LogsRequest {
        instances: vec![instance.clone()],
        ..LogsRequest::default()
    }
}

impl LogClient {
    pub fn new(cluster: &Cluster) -> Self {
        let (sender, receiver, hangup) = connection::commander(&cluster.url(), Service::Command);
        Self {
            sender,
            unread: Some(receiver),
            responses: None,
            hangup,
            thread: None,
        }
    }

    fn say(&mut self, id: &str, content: RequestContent) {
        connection::request(&mut self.sender, id, content);
    }

    pub fn request(&mut self, id: &str, request: LogsRequest) {
        self.say(id, RequestContent::Logs(request));
    }

    pub fn cancel(&mut self, id: &str) {
        self.say(id, RequestContent::LogsCancel);
    }

    /// The next response and its id.
    ///
    /// # Panics
    /// When none comes, or the stream has ended.
    pub fn next(&mut self) -> (String, ResponseContent) {
        if let Some(receiver) = self.unread.take() {
            let (send_response, responses) = sync_channel(0);
            self.responses = Some(responses);
            let thread = std::thread::Builder::new().name("log-client".to_owned());
            let thread = thread.spawn(move || read(receiver, &send_response));
            self.thread = Some(thread.expect("a thread"));
        }
        let responses = self.responses.as_ref().expect("it reads");
        responses.recv_timeout(LIMIT).expect("a response comes")
    }

    /// The instances in the response that accepts a request.
    pub fn accepted(&mut self, id: &str) -> Vec<InstanceName> {
        match self.next() {
            (other, ResponseContent::LogsAccepted(instances)) if other == id => instances,
            other => panic!("{other:?}"),
        }
    }

    /// The next lines of the request.
    pub fn lines(&mut self, id: &str) -> Vec<String> {
        match self.next() {
            (other, ResponseContent::LogEntries(entries)) if other == id => {
                entries.into_iter().map(|entry| entry.message).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// All lines of `instance` until their end.
    pub fn lines_until_stop(&mut self, id: &str, instance: &InstanceName) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.next() {
                (other, ResponseContent::LogEntries(entries)) if other == id => {
                    assert!(
                        entries.iter().all(|entry| entry.instance == *instance),
                        "{entries:?}"
                    );
                    lines.extend(entries.into_iter().map(|entry| entry.message));
                }
                (other, ResponseContent::LogsStop(ended)) if other == id && ended == *instance => {
                    return lines;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Requests the lines of one instance and returns all of them.
    pub fn read_all(&mut self, request: LogsRequest) -> Vec<String> {
        let instance = request.instances[0].clone();
        self.request("all", request);
        assert_eq!(self.accepted("all"), std::slice::from_ref(&instance));
        self.lines_until_stop("all", &instance)
    }
}

/// Sends the responses of the server one by one, until the connection or the receiver is gone.
fn read(mut receiver: ClientReceiver, send_response: &SyncSender<(String, ResponseContent)>) {
    while let Ok(message) = receiver.receive() {
        let FromServer::Response(response) = message else {
            continue;
        };
        let sent = send_response.send((response.id, response.content));
        if sent.is_err() {
            return;
        }
    }
}

impl Drop for LogClient {
    fn drop(&mut self) {
        self.hangup.hang_up();
        drop(self.responses.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
