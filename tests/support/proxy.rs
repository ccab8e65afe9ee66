//! A TCP proxy between programs of a cluster. A test makes it delay, cut, stall or corrupt the bytes
//! that pass.
//!
//! Thread: `accept` and two for each connection; all end when the proxy is dropped. Owns: its port
//! and connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a connection examines the switches. A part of the fault, not of the test's waiting.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Switches {
    /// Nothing passes; connections stay open.
    stalled: AtomicBool,
    /// Delay of each piece, in milliseconds.
    delay_ms: AtomicUsize,
    /// One of this number of bytes is changed. 0: none.
    corrupt_after: AtomicUsize,
    ended: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
}

pub struct Proxy {
    switches: Arc<Switches>,
    port: u16,
}

impl Proxy {
    /// A proxy in front of `target`, an address.
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        listener.set_nonblocking(true).expect("own socket");
        let port = listener.local_addr().expect("own socket").port();
        let switches = Arc::new(Switches::default());
        let shared = switches.clone();
        let target = target.to_owned();
        std::thread::spawn(move || accept(&listener, &target, &shared));
        Self { switches, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets whether nothing passes. Connections stay open, and new ones are accepted.
    pub fn stall(&self, yes: bool) {
        self.switches.stalled.store(yes, Ordering::SeqCst);
    }

    pub fn delay(&self, by: Duration) {
        let milliseconds = usize::try_from(by.as_millis()).expect("a short delay");
        self.switches.delay_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// Changes one of this number of bytes; 0 changes none.
    pub fn corrupt(&self, one_of: usize) {
        self.switches.corrupt_after.store(one_of, Ordering::SeqCst);
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        let mut connections = self
            .switches
            .connections
            .lock()
            .expect("it is not poisoned");
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Number of connections so far.
    pub fn accepted(&self) -> usize {
        self.switches.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switches.ended.store(true, Ordering::SeqCst);
        self.cut();
    }
}

fn accept(listener: &TcpListener, target: &str, switches: &Arc<Switches>) {
    while !switches.ended.load(Ordering::SeqCst) {
        let Ok((client, _)) = listener.accept() else {
            std::thread::sleep(LOOK);
            continue;
        };
        let Ok(server) = TcpStream::connect(target) else {
            continue; // The connection of the client ends.
        };
        switches.accepted.fetch_add(1, Ordering::SeqCst);
        let mut connections = switches.connections.lock().expect("it is not poisoned");
        for (from, to) in [(&client, &server), (&server, &client)] {
            let from = from.try_clone().expect("a descriptor");
            let to = to.try_clone().expect("a descriptor");
            let switches = switches.clone();
            std::thread::spawn(move || pass(from, to, &switches));
        }
        connections.extend([client, server]);
    }
}

/// Passes bytes in one direction until either end is gone.
fn pass(mut from: TcpStream, mut to: TcpStream, switches: &Switches) {
    let _ = from.set_nonblocking(false);
    let _ = from.set_read_timeout(Some(LOOK));
    let mut buffer = [0; 16 * 1024];
    let mut passed = 0;
    loop {
        if switches.ended.load(Ordering::SeqCst) {
            return;
        }
        if switches.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            continue;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => break,
        };
        let delay_ms = switches.delay_ms.load(Ordering::SeqCst) as u64;
        std::thread::sleep(Duration::from_millis(delay_ms));
        let one_of = switches.corrupt_after.load(Ordering::SeqCst);
        if one_of > 0 {
            for byte in &mut buffer[..count] {
                passed += 1;
                if passed % one_of == 0 {
                    *byte ^= 0x55;
                }
            }
        }
        // Bytes that were read before a stall began are stalled, too.
        while switches.stalled.load(Ordering::SeqCst) && !switches.ended.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
