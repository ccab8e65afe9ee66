//! The test as a workload: opens the FIFOs of a control interface on the host as the container
//! would.
//!
//! Thread: the test's. Owns: both ends. Waits with a limit.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ankaios_lite::model::messages::{
    FromWorkload, LogsRequest, ReadState, Request, RequestContent, Response, ResponseContent,
    ToWorkload, UpdateState,
};
use ankaios_lite::model::node::Node;
use ankaios_lite::wire::delimited::workload_side::{frame, read_message};

use rustix::event::{PollFd, PollFlags, Timespec, poll as wait};

use super::cluster::Cluster;
use super::{LIMIT, poll};

pub struct ControlClient {
    output: File,
    input: File,
    unread: Vec<u8>,
}

/// The folder of a workload's FIFOs on the host, once both are there.
pub fn folder(cluster: &Cluster, agent: &str, workload: &str) -> PathBuf {
    let prefix = format!("{workload}.");
    cluster.wait_for(&format!("FIFOs of '{workload}'"), || {
        let folders = std::fs::read_dir(cluster.run_folder().join(format!("{agent}_io"))).ok()?;
        let mut folders = folders.flatten();
        let own = folders.find(|one| one.file_name().to_string_lossy().starts_with(&prefix))?;
        let folder = own.path().join("control_interface");
        let has_both = folder.join("input").exists() && folder.join("output").exists();
        has_both.then_some(folder)
    })
}

fn open(path: &Path, write: bool) -> std::io::Result<File> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a small flag");
    File::options()
        .read(!write)
        .write(write)
        .custom_flags(nonblocking)
        .open(path)
}

impl ControlClient {
    /// Opens both pipes and sends nothing yet.
    pub fn open(folder: &Path) -> Self {
        let input = open(&folder.join("input"), false).expect("the FIFO 'input' is there");
        // The agent may be about to open its end.
        let output = poll(LIMIT, || open(&folder.join("output"), true).ok())
            .expect("the agent reads 'output'");
        Self {
            output,
            input,
            unread: Vec::new(),
        }
    }

    /// Whether a process has the other end of `output` open.
    pub fn has_reader(&self) -> bool {
        let mut waits = [PollFd::new(&self.output, PollFlags::OUT)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        wait(&mut waits, Some(&now)).expect("own descriptor");
        !waits[0].revents().contains(PollFlags::ERR)
    }

    /// Opens both pipes, sends the hello and waits for its response.
    pub fn connect(folder: &Path) -> Self {
        let mut client = Self::open(folder);
        client.hello("1.0.0");
        assert_eq!(client.receive(), ToWorkload::Accepted);
        client
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut rest = bytes;
        let written = poll(LIMIT, || match self.output.write(rest) {
            Ok(count) => {
                rest = &rest[count..];
                rest.is_empty().then_some(Ok(()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        });
        written.expect("the agent reads")
    }

    pub fn say(&mut self, message: FromWorkload) {
        self.write(&frame(message)).expect("the agent reads");
    }

    pub fn hello(&mut self, version: &str) {
        self.say(FromWorkload::Hello {
            version: version.to_owned(),
        });
    }

    pub fn request(&mut self, id: &str, content: RequestContent) {
        self.say(FromWorkload::Request(Request {
            id: id.to_owned(),
            content,
        }));
    }

    /// The next message; `None` when nothing came in time.
    pub fn try_receive(&mut self) -> Option<ToWorkload> {
        self.receive_within(LIMIT)
    }

    /// The next message; `None` when nothing came in this time.
    pub fn receive_within(&mut self, limit: Duration) -> Option<ToWorkload> {
        let mut room = vec![0; 1 << 16];
        poll(limit, || {
            loop {
                if let Some(message) = self.take() {
                    return Some(message);
                }
                match self.input.read(&mut room) {
                    // There is no writer now: the agent opens the pipe when it has a message.
                    Ok(0) => return None,
                    Ok(count) => self.unread.extend_from_slice(&room[..count]),
                    Err(_) => {
                        let mut waits = [PollFd::new(&self.input, PollFlags::IN)];
                        let second = Timespec {
                            tv_sec: 1,
                            tv_nsec: 0,
                        };
                        if wait(&mut waits, Some(&second)) != Ok(1) {
                            return None;
                        }
                    }
                }
            }
        })
    }

    /// Whether the other end of `input` is closed and everything was read.
    pub fn is_at_end(&mut self) -> bool {
        matches!(self.input.read(&mut [0; 64]), Ok(0))
    }

    pub fn receive(&mut self) -> ToWorkload {
        self.try_receive().expect("the agent answers")
    }

    /// Takes the first message, if it is complete. Before it is its length, a varint: seven bits in
    /// each byte, the lowest first.
    fn take(&mut self) -> Option<ToWorkload> {
        let prefix = self.unread.iter().position(|byte| byte & 0x80 == 0)? + 1;
        let mut length = 0;
        for byte in self.unread[..prefix].iter().rev() {
            length = length << 7 | usize::from(byte & 0x7f);
        }
        let message = self.unread.get(prefix..prefix + length)?;
        let message = read_message(message).expect("the agent writes whole messages");
        self.unread.drain(..prefix + length);
        Some(message)
    }

    /// The next answer, which must be for `id`.
    pub fn answer(&mut self, id: &str) -> ResponseContent {
        match self.receive() {
            ToWorkload::Response(Response {
                id: answered,
                content,
            }) if answered == id => content,
            other => panic!("an answer to '{id}' is expected, not {other:?}"),
        }
    }

    pub fn read(&mut self, id: &str, masks: &[&str]) -> ResponseContent {
        self.request(id, read(masks, false));
        self.answer(id)
    }

    pub fn update(&mut self, id: &str, new_state: Node, masks: &[&str]) -> ResponseContent {
        self.request(
            id,
            RequestContent::UpdateState(UpdateState {
                new_state: Some(Ok(new_state)),
                masks: owned(masks),
                ..Default::default()
            }),
        );
        self.answer(id)
    }
}

pub fn read(masks: &[&str], subscribe: bool) -> RequestContent {
    RequestContent::CompleteState(ReadState {
        masks: owned(masks),
        subscribe,
    })
}

pub fn logs(instances: Vec<ankaios_lite::model::names::InstanceName>) -> RequestContent {
    RequestContent::Logs(LogsRequest {
        instances,
        follow: Some(true),
        ..LogsRequest::default()
    })
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// The tree that has only `leaf`, at `path`.
pub fn tree(path: &str, leaf: Node) -> Node {
    let mut tree = leaf;
    for key in path.rsplit('.') {
        tree = Node::map([(key, tree)]);
    }
    tree
}
