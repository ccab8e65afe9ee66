//! A service manager that starts nothing and receives all messages: the socket in `NOTIFY_SOCKET`.
//!
//! Thread: the test's. Owns: the socket and its folder.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{LIMIT, scratch};

pub struct ServiceManager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl ServiceManager {
    pub fn new() -> Self {
        let folder = scratch::folder("manager");
        let socket =
            UnixDatagram::bind(folder.path().join("notify")).expect("own folder is writable");
        socket
            .set_read_timeout(Some(LIMIT))
            .expect("a timeout can be set");
        Self { socket, folder }
    }

    /// The environment of a service with this `WatchdogSec`, and the variable with the folder of
    /// [`Self::freezer`].
    pub fn environment(&self, watchdog: Duration) -> Vec<(String, String)> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        vec![
            ("NOTIFY_SOCKET".to_owned(), path("notify")),
            ("WATCHDOG_USEC".to_owned(), watchdog.as_micros().to_string()),
            ("ANKAIOS_TEST_FREEZE".to_owned(), path("")),
        ]
    }

    /// A folder in which a file with the name of a thread freezes that thread, in builds for tests.
    pub fn freezer(&self) -> &Path {
        self.folder.path()
    }

    /// The next message.
    pub fn next(&self) -> String {
        self.receive()
            .unwrap_or_else(|| panic!("waited {LIMIT:?} in vain for a message"))
    }

    /// The next message that is not only a sign of life.
    pub fn next_news(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    /// Waits for a message with `text` and drops all before it.
    pub fn wait_for(&self, text: &str) {
        let begin = Instant::now();
        let mut news = Vec::new();
        while begin.elapsed() < LIMIT
            && let Some(message) = self.receive()
        {
            if message.contains(text) {
                return;
            }
            // Signs of life continue without end.
            if message != "WATCHDOG=1" {
                news.push(message);
            }
        }
        panic!("waited {LIMIT:?} in vain for '{text}', received {news:?}");
    }

    /// Received messages that were not checked yet.
    pub fn waiting(&self) -> Vec<String> {
        self.socket.set_nonblocking(true).expect("it can be set");
        let messages = std::iter::from_fn(|| self.receive()).collect();
        self.socket.set_nonblocking(false).expect("it can be set");
        messages
    }

    fn receive(&self) -> Option<String> {
        let mut room = [0; 4096];
        match self.socket.recv(&mut room) {
            Ok(length) => Some(String::from_utf8_lossy(&room[..length]).into_owned()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }
}
