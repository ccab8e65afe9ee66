//! The real thread with real sockets and files, on loopback and in a scratch folder.

use super::*;
use crate::probes::probe_order::probe_order;
use crate::probes::{Outcome, ProbeReport, Purpose};
use ankaios_model::lifecycle::{Check, Pace};
use ankaios_platform::clock::SystemClock;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(180);

struct Rig {
    prober: Prober,
    reports: (Sender<ProbeReport>, Receiver<ProbeReport>),
    key: u64,
}

impl Rig {
    fn new() -> Self {
        Self {
            prober: Prober::new(SystemClock).unwrap(),
            reports: bounded(64),
            key: 0,
        }
    }

    fn watch(&mut self, purpose: Purpose, check: Check, notify: Option<Arc<OwnedFd>>) {
        self.prober.unwatch(self.key);
        for _ in self.reports.1.try_iter() {}
        self.key += 1;
        let period = Duration::from_millis(50);
        let pace = Pace {
            initial_delay: Duration::ZERO,
            period,
            timeout: Duration::from_secs(5),
        };
        let order = probe_order(purpose, check, pace, &self.reports.0);
        self.prober.watch(ProbeOrder {
            key: self.key,
            notify,
            ..order
        });
    }

    /// The next conclusion: `holds`, or why not.
    fn verdict(&self) -> String {
        loop {
            let report = self
                .reports
                .1
                .recv_timeout(PATIENCE)
                .expect("a report comes");
            if report.key == self.key && report.is_verdict {
                return match report.outcome {
                    Outcome::Holds => "holds".to_owned(),
                    Outcome::Fails { reason, .. } => reason,
                };
            }
        }
    }
}

/// A port of the node.
fn tcp(port: u16) -> Check {
    Check::Tcp {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port,
    }
}

#[test]
fn a_port_is_refused_then_open_then_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut rig = Rig::new();
    // To be gone is asked in the node's own network.
    rig.watch(Purpose::Gone, tcp(port), None);
    assert_eq!(rig.verdict(), "holds");
    drop(listener);
    assert_eq!(rig.verdict(), "refused");
}

#[test]
fn a_container_that_is_not_known_does_not_answer() {
    let mut rig = Rig::new();
    rig.watch(Purpose::Ready, tcp(1), None);
    assert_eq!(rig.verdict(), "its process is not found");
    rig.watch(Purpose::Alive, Check::Exec(vec!["true".to_owned()]), None);
    assert_eq!(rig.verdict(), "its container is not known");
}

#[test]
fn an_http_server_is_asked_for_its_path_and_its_status_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, requests) = bounded(100);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let _ = asked.send(String::from_utf8_lossy(&request[..length]).into_owned());
            let status = if number < 2 {
                "503 Service Unavailable"
            } else {
                "200 OK"
            };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut rig = Rig::new();
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    // To be gone is asked in the node's own network, and any answer means that it is not.
    rig.watch(
        Purpose::Gone,
        Check::Http {
            host,
            port,
            path: "/ready".to_owned(),
            status: Some(200),
        },
        None,
    );
    assert_eq!(rig.verdict(), "holds");
    assert!(
        requests
            .recv_timeout(PATIENCE)
            .unwrap()
            .starts_with("GET /ready HTTP/1.1\r\nHost: 127.0.0.1:")
    );
}

#[test]
fn a_unix_socket_and_a_file_are_asked_for_by_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s").to_str().unwrap().to_owned();
    let mut rig = Rig::new();
    for check in [Check::Unix(path.clone()), Check::File(path.clone())] {
        rig.watch(Purpose::Ready, check, None);
        assert_eq!(rig.verdict(), "does not exist");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(rig.verdict(), "holds");
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(rig.verdict(), "does not exist");
    }
}

#[test]
fn a_notification_arrives_and_the_socket_can_be_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify").join("n");
    let mut rig = Rig::new();
    for _ in 0..2 {
        let socket = notify_socket(&path).unwrap();
        // A message that is sent before the socket is watched is not lost.
        UnixDatagram::unbound()
            .unwrap()
            .send_to(b"MAINPID=1\nREADY=1", &path)
            .unwrap();
        rig.watch(Purpose::Ready, Check::Notify, Some(Arc::new(socket)));
        assert_eq!(rig.verdict(), "holds");
    }
    let long = folder.path().join("x".repeat(120));
    assert!(notify_socket(&long).is_err());
}
