//! The thread that probes all workloads of an agent: one `poll` for all sockets, no process and no
//! thread per probe.
//!
//! Thread: `probes`, which never waits for a control loop.
//! Owns: the orders and the probes under way. Takes: [`ProbeOrder`] from control loops. Gives:
//! [`super::ProbeReport`].

use super::paths;
use super::sockets::SocketIo;
use super::table::ProbeTable;
use super::{ProbeOrder, Probes};
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::private_folder::PrivateFolder;
use ankaios_platform::sync::EventFd;
use ankaios_platform::threads;
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv, socket_with,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Passes orders to the thread that probes.
pub struct Prober {
    commands: Sender<Command>,
    wake: EventFd,
}

enum Command {
    Watch(Box<ProbeOrder>),
    Unwatch(u64),
    /// The owner is gone.
    End,
}

impl Prober {
    /// Starts the thread, which ends when this is dropped.
    pub fn start<C: Clock>(clock: C) -> io::Result<Self> {
        // Orders waiting for the thread that checks; control loops wait when it is full, which
        // takes microseconds.
        let (commands, orders) = bounded(64);
        let wake = EventFd::new()?;
        let (woken, for_results) = (wake.clone(), wake.clone());
        let io = SocketIo::new(Arc::new(move || for_results.set()), paths::node());
        threads::spawn("probes", STACK_LARGE, move || {
            Loop {
                table: ProbeTable::new(io),
                clock,
                orders,
                woken,
            }
            .run()
        })?;
        Ok(Self { commands, wake })
    }

    fn send(&self, command: Command) {
        let _ = self.commands.send(command); // Gone only at the end.
        self.wake.set();
    }
}

impl Probes for Prober {
    fn watch(&self, order: ProbeOrder) {
        self.send(Command::Watch(Box::new(order)));
    }

    fn unwatch(&self, key: u64) {
        self.send(Command::Unwatch(key));
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.send(Command::End);
    }
}

/// Where the notify socket of an instance is. Its path must be short, so it is not in the folder of
/// the instance.
pub fn notify_socket_path(agent_folder: &Path, instance: &InstanceName) -> PathBuf {
    let digits = InstanceName::new("", &instance.to_string(), "").id;
    agent_folder
        .join("notify")
        .join(&digits[..digits.len().min(16)])
}

/// Makes a notify socket at `path`; an older one there is removed.
pub fn notify_socket(path: &Path) -> io::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        PrivateFolder::open(folder)?;
    }
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

struct Loop<C> {
    table: ProbeTable<SocketIo>,
    clock: C,
    orders: Receiver<Command>,
    /// Becomes readable when there is an order or a result.
    woken: EventFd,
}

#[derive(Clone, Copy)]
enum Source {
    Woken,
    Answer(u64),
    Notify(u64),
}

impl<C: Clock> Loop<C> {
    fn run(mut self) {
        loop {
            let Ok(ready) = self.wait() else { continue }; // Interrupted.
            for source in ready {
                match source {
                    Source::Woken => _ = self.woken.reset(),
                    Source::Answer(key) => {
                        if let Some(outcome) = self.table.io.ready(key) {
                            self.table.ended(key, outcome, self.clock.now());
                        }
                    }
                    Source::Notify(key) => self.read_notifications(key),
                }
            }
            for command in self.orders.try_iter() {
                match command {
                    Command::Watch(order) => self.table.watch(*order, self.clock.now()),
                    Command::Unwatch(key) => self.table.unwatch(key),
                    Command::End => return,
                }
            }
            for (key, outcome) in self.table.io.take_ended() {
                self.table.ended(key, outcome, self.clock.now());
            }
            self.table.turn(self.clock.now());
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let now = self.clock.now();
        let due = self
            .table
            .due()
            .into_iter()
            .chain(self.table.io.due())
            .min();
        let timeout = due.map(|at| at.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut sources = vec![Source::Woken];
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        for (key, socket, flags) in self.table.io.descriptors() {
            sources.push(Source::Answer(key));
            polled.push(PollFd::from_borrowed_fd(socket, flags));
        }
        for order in self.table.orders() {
            if let Some(socket) = &order.notify {
                sources.push(Source::Notify(order.key));
                polled.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
        }
        poll(&mut polled, timeout.as_ref())?;
        let ready = sources
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(source, _)| *source).collect())
    }

    fn read_notifications(&mut self, key: u64) {
        let socket = self
            .table
            .orders()
            .find(|order| order.key == key)
            .and_then(|order| order.notify.clone());
        let Some(socket) = socket else { return };
        // Longest notification read, in bytes; what systemd takes.
        let mut message = [0_u8; 4096];
        // Notifications of one workload read in a row while others wait.
        for _ in 0..16 {
            let Ok((length, _)) = recv(&socket, &mut message[..], RecvFlags::empty()) else {
                return;
            };
            self.table
                .notified(key, &message[..length], self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests;
