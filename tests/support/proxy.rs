//! A TCP proxy between programs of a cluster: it delays, cuts, stalls and corrupts what passes,
//! when a test says so.
//!
//! Thread: `accept` and two for each connection; all end when the proxy is dropped. Owns: its port
//! and connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a connection checks whether its fault has changed. A part of the fault, not of the
/// test's waiting.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Switches {
    /// Nothing passes, without a notice.
    stalled: AtomicBool,
    /// Each piece that passes takes this long, in milliseconds.
    delay_ms: AtomicUsize,
    /// This number of bytes passes unchanged, then one is wrong, and again. 0: all are right.
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
        let (shared, target) = (switches.clone(), target.to_owned());
        std::thread::spawn(move || accept(&listener, &target, &shared));
        Self { switches, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Stalls: nothing passes, until it does again. Connections stay open and new ones are
    /// taken.
    pub fn stall(&self, yes: bool) {
        self.switches.stalled.store(yes, Ordering::SeqCst);
    }

    pub fn delay(&self, by: Duration) {
        self.switches.delay_ms.store(
            usize::try_from(by.as_millis()).expect("a short delay"),
            Ordering::SeqCst,
        );
    }

    /// Makes one byte of this number wrong; 0 ends that.
    pub fn corrupt(&self, one_of: usize) {
        self.switches.corrupt_after.store(one_of, Ordering::SeqCst);
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for connection in self
            .switches
            .connections
            .lock()
            .expect("nobody panics with it")
            .drain(..)
        {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// How many connections there were so far.
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
            continue;
        }; // The client is told by the end of its own.
        switches.accepted.fetch_add(1, Ordering::SeqCst);
        let mut connections = switches.connections.lock().expect("nobody panics with it");
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (from, to) = (
                from.try_clone().expect("a descriptor"),
                to.try_clone().expect("a descriptor"),
            );
            let switches = switches.clone();
            std::thread::spawn(move || pass(from, to, &switches));
        }
        connections.extend([client, server]);
    }
}

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
        std::thread::sleep(Duration::from_millis(
            switches.delay_ms.load(Ordering::SeqCst) as u64,
        ));
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
