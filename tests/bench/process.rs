//! An `ank-server` as a process: start, CPU and memory, end.
//!
//! Thread: `main` of the bench. Owns: the process; it is killed on drop.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ankaios_lite::wire::address::{Security, ServerUrl};

use super::clients;

/// Times in `/proc/<pid>/stat` are counted in hundredths of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);
/// Longest wait for a server that starts or becomes idle.
const LIMIT: Duration = Duration::from_secs(120);
/// A server that used no CPU for this long has done its work.
const QUIET: Duration = Duration::from_millis(400);

pub struct Server {
    child: Child,
    pub url: ServerUrl,
    pub port: u16,
    pub security: Security,
    /// From the start of the process to its first answer.
    pub answered_after: Duration,
}

impl Server {
    /// Starts `ank-server` of the folder `programs` and waits for its first answer.
    pub fn start(programs: &Path, arguments: &[String], security: Security) -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let port = port.expect("loopback has free ports").port();
            let scheme = if security == Security::Insecure {
                "http"
            } else {
                "https"
            };
            let url = ServerUrl::parse(&format!("{scheme}://127.0.0.1:{port}"))
                .expect("a correct address");
            let mut command = Command::new(programs.join("ank-server"));
            command
                .args(["--address", &format!("127.0.0.1:{port}")])
                .args(arguments);
            if security == Security::Insecure {
                command.arg("--insecure");
            }
            command.env("RUST_LOG", "error").stdin(Stdio::null());
            let begin = Instant::now();
            let child = command
                .spawn()
                .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
            let mut server = Self {
                child,
                url,
                port,
                security: security.clone(),
                answered_after: Duration::ZERO,
            };
            while begin.elapsed() < LIMIT && !server.has_ended() {
                if clients::answers(&server) {
                    server.answered_after = begin.elapsed();
                    return server;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            // Another process may have taken the port.
        }
        panic!("ank-server does not start");
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// CPU time used so far, by all threads.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    /// Memory in bytes, of shared pages the part that falls to this process.
    pub fn pss(&self) -> u64 {
        pss_of(self.child.id())
    }

    /// How long `ank` of the folder `programs` takes for a command, as a whole process.
    pub fn time_of(&self, programs: &Path, arguments: &[&str]) -> Duration {
        let mut command = Command::new(programs.join("ank"));
        command
            .args([
                "--insecure",
                "--server-url",
                &format!("http://127.0.0.1:{}", self.port),
            ])
            .args(arguments);
        let begin = Instant::now();
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .expect("ank starts");
        assert!(status.success(), "{command:?}");
        begin.elapsed()
    }

    /// Waits until the server has used no CPU for a while; what follows is measured without what
    /// came before.
    pub fn wait_until_idle(&self) {
        let begin = Instant::now();
        let (mut used, mut since) = (self.cpu(), Instant::now());
        while since.elapsed() < QUIET && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.cpu();
            if now != used {
                (used, since) = (now, Instant::now());
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory in bytes, of shared pages the part that falls to this process.
pub fn pss_of(pid: u32) -> u64 {
    memory_of(pid, "Pss:")
}

/// Memory in bytes that is in no file: the kernel cannot take it from the process.
pub fn anonymous_of(pid: u32) -> u64 {
    memory_of(pid, "Anonymous:")
}

fn memory_of(pid: u32, what: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(what))
        .expect("the kernel says it");
    let kilobytes: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kilobytes * 1024
}

/// CPU time of a process and all its threads.
pub fn cpu_of(pid: u32) -> Duration {
    // User and system time are the 14th and 15th field.
    sum_of_ticks(pid, 2)
}

/// CPU time of a process, all its threads and its children that have ended.
pub fn cpu_with_children(pid: u32) -> Duration {
    // Those of the children follow.
    sum_of_ticks(pid, 4)
}

/// The sum of this number of fields from the 14th on.
fn sum_of_ticks(pid: u32, fields_count: usize) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let ticks: u32 = fields
        .split_whitespace()
        .skip(11)
        .take(fields_count)
        .map(|field| field.parse::<u32>().unwrap_or(0))
        .sum();
    TICK * ticks
}
