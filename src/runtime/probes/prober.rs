//! The thread that probes all workloads of an agent: one `poll` for all sockets, no process and no
//! thread per probe.
//!
//! Thread: `probes`, which never waits for a control loop; it starts with the first order, since
//! most workloads have no probes.
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
use ankaios_platform::sync::{EventFd, Mutex};
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

/// Orders that wait for the thread. Above that, control loops wait, which takes microseconds.
const ORDERS_MAX: usize = 64;
/// Digits of an instance's hash in the name of its notify socket: the path of a socket is short.
const SOCKET_NAME_DIGITS: usize = 16;
/// Longest notification that is read, in bytes: the same as in systemd.
const NOTIFICATION_MAX: usize = 4096;
/// Notifications of one workload that are read in a row while others wait.
const NOTIFICATIONS_IN_A_ROW: usize = 16;

/// Passes orders to the thread that probes.
pub struct Prober {
    commands: Sender<ProberCommand>,
    wake: EventFd,
    /// What the thread will run; `None` once it has started.
    waiting: Mutex<Option<Body>>,
}

type Body = Box<dyn FnOnce() + Send>;

enum ProberCommand {
    Watch(Box<ProbeOrder>),
    Unwatch(u64),
    /// The owner is gone.
    End,
}

impl Prober {
    /// A prober whose thread starts with the first order, and ends when this is dropped.
    pub fn new<C: Clock>(clock: C) -> io::Result<Self> {
        let (commands, orders) = bounded(ORDERS_MAX);
        let wake = EventFd::new()?;
        let woken = wake.clone();
        let for_results = wake.clone();
        let body = Box::new(move || {
            let wake_for_result = Arc::new(move || for_results.set());
            let io = SocketIo::new(wake_for_result, paths::node());
            let probes = ProberLoop {
                table: ProbeTable::new(io),
                clock,
                orders,
                woken,
            };
            probes.run();
        });
        Ok(Self {
            commands,
            wake,
            waiting: Mutex::new(Some(body)),
        })
    }

    /// Starts the thread if it does not run. Without one the next order tries again.
    fn start_thread(&self) {
        let mut waiting = self.waiting.lock();
        let Some(body) = waiting.take() else {
            return;
        };
        let name = "probes".to_owned();
        if let Err((error, body)) = threads::spawn_with(name, STACK_LARGE, body, |body| body()) {
            log::error!("Cannot start the thread that probes workloads: '{error}'.");
            *waiting = Some(body);
        }
    }

    fn has_thread(&self) -> bool {
        self.waiting.lock().is_none()
    }

    /// Sends a command, and wakes the thread.
    fn send(&self, command: ProberCommand) {
        if self.has_thread() {
            let _ = self.commands.send(command); // It fails only when the program ends.
        } else {
            let _ = self.commands.try_send(command); // Without a thread, sending could block forever.
        }
        self.wake.set();
    }
}

impl Probes for Prober {
    fn watch(&self, order: ProbeOrder) {
        self.start_thread();
        self.send(ProberCommand::Watch(Box::new(order)));
    }

    fn unwatch(&self, key: u64) {
        self.send(ProberCommand::Unwatch(key));
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.send(ProberCommand::End);
    }
}

/// The path of the notify socket of an instance. It must be short, so it is not in the folder of
/// the instance.
pub fn notify_socket_path(agent_folder: &Path, instance: &InstanceName) -> PathBuf {
    let hash = InstanceName::new("", &instance.to_string(), "").id;
    let name = &hash[..hash.len().min(SOCKET_NAME_DIGITS)];
    agent_folder.join("notify").join(name)
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

struct ProberLoop<C> {
    table: ProbeTable<SocketIo>,
    clock: C,
    orders: Receiver<ProberCommand>,
    /// Becomes readable when there is an order or a result.
    woken: EventFd,
}

#[derive(Clone, Copy)]
enum Source {
    Woken,
    Answer(u64),
    Notify(u64),
}

impl<C: Clock> ProberLoop<C> {
    /// Probes until the owner is gone.
    fn run(mut self) {
        loop {
            // First take results and notifications of sockets.
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
            // Then take orders, and results of commands and paths.
            for command in self.orders.try_iter() {
                match command {
                    ProberCommand::Watch(order) => self.table.watch(*order, self.clock.now()),
                    ProberCommand::Unwatch(key) => self.table.unwatch(key),
                    ProberCommand::End => return,
                }
            }
            for probe in self.table.io.take_ended() {
                self.table.ended(probe.key, probe.outcome, self.clock.now());
            }
            // Finally start due probes.
            self.table.turn(self.clock.now());
        }
    }

    /// Waits for a descriptor or the time of a probe. Returns the descriptors that are ready.
    fn wait(&self) -> io::Result<Vec<Source>> {
        // First list all descriptors.
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
        // Then wait until one of them is ready, or the table has something to do.
        poll(&mut polled, self.timeout().as_ref())?;
        // Finally return the ready ones.
        let mut ready = Vec::new();
        for (source, polled) in sources.iter().zip(&polled) {
            if !polled.revents().is_empty() {
                ready.push(*source);
            }
        }
        Ok(ready)
    }

    /// Time until a probe or a command is due; `None` if none is.
    fn timeout(&self) -> Option<Timespec> {
        let due = [self.table.due(), self.table.io.due()];
        let first = due.into_iter().flatten().min()?;
        let left = first.saturating_duration_since(self.clock.now());
        Timespec::try_from(left).ok()
    }

    /// Reads some notifications of the workload with this order.
    fn read_notifications(&mut self, key: u64) {
        let Some(socket) = self.notify_socket(key) else {
            return;
        };
        let mut message = [0_u8; NOTIFICATION_MAX];
        for _ in 0..NOTIFICATIONS_IN_A_ROW {
            let Ok((length, _)) = recv(&socket, &mut message[..], RecvFlags::empty()) else {
                return; // None waits any more.
            };
            let now = self.clock.now();
            self.table.notified(key, &message[..length], now);
        }
    }

    fn notify_socket(&self, key: u64) -> Option<Arc<OwnedFd>> {
        let order = self.table.orders().find(|order| order.key == key)?;
        order.notify.clone()
    }
}

#[cfg(test)]
mod tests;
