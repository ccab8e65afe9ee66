//! Control interfaces: two FIFOs for each workload, one thread for all of them.
//!
//! The way of a request: [`poller`] reads bytes from the [`pipes`], one large message at a time.
//! [`session`] decodes it and checks it with the [`Authorizer`]. [`mailbox`] notes it as open, and
//! makes the next one wait for its response, or for some seconds. [`super::uplink_outbox`] sends
//! it. At the server it continues in `wire/stream.rs` and `server/requests.rs`.
//!
//! The way of a response: `grpc-poll-0`, or `rx:server` if it is large, passes it to
//! [`ControlHub::deliver`], it waits in the [`mailbox`], and [`poller`] writes it.
//!
//! The agent puts `<workload>@<generation>@` before the id of a request. A generation begins with
//! each container, and with a hello after the pipe was closed. Its end cancels its open requests,
//! and responses to it are dropped.
//!
//! Thread: [`ControlHub::deliver`] on `grpc-poll-0` and `rx:server`, [`ControlHub::open`] and
//! [`ControlInterface`] on `wl:<name>`, which makes and removes the FIFOs; everything else on
//! `control`. No thread waits for a workload.
//! Owns: the interfaces of all workloads and their mailboxes, behind locks that are held for a
//! moment only.

pub(crate) mod mailbox;
pub(crate) mod pipes;
pub(crate) mod poller;
pub mod session;

use super::uplink_outbox::UplinkOutbox;
use ankaios_model::access_rules::ControlInterfaceAccess;
use ankaios_model::authorizer::Authorizer;
use ankaios_model::messages::{Request, Response};
use ankaios_model::names::{Name, excerpt};
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::log_source;
use ankaios_platform::sync::{EventFd, Mutex};
use ankaios_platform::threads::{self, Thread};
use ankaios_platform::watchdog::WatchedThreads;
use mailbox::{ControlMailbox, EncodedResponse};
use pipes::{PipeError, PipeIds, Pipes};
use poller::{PipeLink, Poller};
use session::ControlSession;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Name of the folder of the FIFOs in that of their workload.
pub(crate) const FOLDER: &str = "control_interface";

/// Whether a workload needs a control interface. Deny rules alone allow nothing, so they need none.
// [impl->swdd~api-workload-needs-control-interface~1]
pub(crate) fn is_needed(access: &ControlInterfaceAccess) -> bool {
    !access.allow_rules.is_empty()
}

/// Opens control interfaces and delivers responses to workloads. Clones share everything.
#[derive(Clone)]
pub struct ControlHub {
    shared: Arc<HubState>,
}

struct HubState {
    registry: Mutex<Registry>,
    /// Wakes `control`.
    wake: EventFd,
    uplink: UplinkOutbox,
    message_max: usize,
    generations: AtomicU32,
}

#[derive(Debug, Default)]
struct Registry {
    interfaces: BTreeMap<Name, Arc<Interface>>,
    /// The interfaces that were opened and that `control` does not serve yet.
    opened: Vec<PipeLink>,
}

/// One interface, as all threads share it. The lock of the uplink may be taken while that of the
/// mailbox is held.
#[derive(Debug)]
struct Interface {
    workload: Name,
    mailbox: Mutex<ControlMailbox>,
    /// `control` must stop serving it.
    ended: AtomicBool,
    /// `control` must begin a new session, since the container was restarted.
    restarted: AtomicBool,
}

impl HubState {
    /// The text before the ids of a new generation.
    // [impl->swdd~agent-adds-workload-prefix-id-control-interface-request~1]
    fn next_prefix(&self, workload: &Name) -> String {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        // A name contains no '@', so the first one ends the name, whatever id the workload writes.
        format!("{workload}@{generation}@")
    }

    /// The descriptor that `uplink` sets when it takes a large request, to wake `control`.
    fn waker_for(&self, is_large: bool) -> Option<EventFd> {
        if is_large {
            Some(self.wake.clone())
        } else {
            None
        }
    }

    /// Begins a new generation of the interface. The requests of the earlier one are cancelled at
    /// the server, and responses to them are dropped.
    fn begin_generation(&self, interface: &Interface) {
        let prefix = self.next_prefix(&interface.workload);
        let ended = interface.mailbox.lock().begin(prefix);
        self.uplink.end_requests(&ended.prefix, ended.cancels);
    }

    /// Cancels requests of a workload that does not read their responses.
    fn cancel(&self, interface: &Interface, cancels: Vec<Request>) {
        for cancel in cancels {
            let _source = log_source(interface.workload.clone());
            log::warn!(
                "Cancelling a request of workload '{}': it does not read.",
                interface.workload
            );
            self.uplink.put_cancel(cancel);
        }
    }
}

impl ControlHub {
    /// Returns a hub without interfaces. Messages of workloads may have up to `message_max` bytes.
    pub fn new(uplink: UplinkOutbox, message_max: usize) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(HubState {
                registry: Mutex::default(),
                wake: EventFd::new()?,
                uplink,
                message_max,
                generations: AtomicU32::new(1),
            }),
        })
    }

    /// Starts the thread `control`, which runs until the other end of the pipe `stop` is closed.
    pub fn start<C: Clock>(
        &self,
        clock: C,
        stop: OwnedFd,
        watched: &mut WatchedThreads,
    ) -> io::Result<Thread> {
        let shared = self.shared.clone();
        let heartbeat = watched.add_woken_by("control", move || shared.wake.set());
        let poller = Poller::new(self.shared.clone(), clock);
        threads::spawn("control", STACK_LARGE, move || {
            poller.run(&stop, &heartbeat)
        })
    }

    /// Makes the FIFOs of a workload in `folder`, and begins to serve them. `is_mounted`: after a
    /// restart of the agent, the workload runs already and has them mounted.
    pub(crate) fn open(
        &self,
        workload: &Name,
        folder: PathBuf,
        access: &ControlInterfaceAccess,
        is_mounted: bool,
    ) -> Result<ControlInterface, PipeError> {
        // First: the FIFOs.
        pipes::create(&folder, is_mounted)?;
        let pipes = Pipes::open(&folder)?;
        let ids = pipes.ids().clone();
        // Then: the interface.
        let authorizer = Authorizer::new(access);
        let session = ControlSession::new(
            workload.clone(),
            authorizer.clone(),
            self.shared.message_max,
        );
        let mailbox = ControlMailbox::new(self.shared.next_prefix(workload));
        let interface = Arc::new(Interface {
            workload: workload.clone(),
            mailbox: Mutex::new(mailbox),
            ended: AtomicBool::new(false),
            restarted: AtomicBool::new(false),
        });
        // Finally: `control` serves it, in place of an earlier one.
        let link = PipeLink::new(interface.clone(), pipes, session);
        let mut registry = self.shared.registry.lock();
        let earlier = registry
            .interfaces
            .insert(workload.clone(), interface.clone());
        registry.opened.push(link);
        drop(registry);
        if let Some(earlier) = earlier {
            self.end(&earlier);
        }
        self.shared.wake.set();
        Ok(ControlInterface {
            hub: self.clone(),
            interface,
            folder,
            ids,
            authorizer,
        })
    }

    /// Ends the requests of the interface, and makes `control` stop serving it.
    fn end(&self, interface: &Interface) {
        self.shared.begin_generation(interface);
        interface.ended.store(true, Ordering::Relaxed);
        self.shared.wake.set();
    }

    fn interface(&self, workload: &str) -> Option<Arc<Interface>> {
        let registry = self.shared.registry.lock();
        registry.interfaces.get(workload).cloned()
    }

    /// Delivers a response of the server to the workload that its id names. Never waits.
    // [impl->swdd~agent-uses-id-prefix-forward-control-interface-response-correct-workload~1]
    // [impl->swdd~agent-remove-id-prefix-forwarding-control-interface-response~1]
    // [impl->swdd~agent-forward-responses-to-control-interface-pipe~1]
    pub fn deliver(&self, Response { id, mut content }: Response) {
        let Some((workload, _)) = id.split_once('@') else {
            return log::warn!(
                "Could not forward response: its id '{}' names no workload",
                excerpt(&id)
            );
        };
        let _source = log_source(workload);
        let Some(interface) = self.interface(workload) else {
            return log::warn!(
                "Could not forward response to workload '{}': control interface not available",
                excerpt(workload)
            );
        };
        // First: the request that the response answers.
        let mut mailbox = interface.mailbox.lock();
        let Some(own_id) = mailbox.own_id(&id).map(str::to_owned) else {
            return log::debug!(
                "Dropping a response to an earlier container of workload '{workload}'."
            );
        };
        let is_for_workload = mailbox.accept(&own_id, &mut content);
        drop(mailbox); // Encoding a large response takes time.
        if !is_for_workload {
            return self.shared.wake.set(); // The next request may be sent now.
        }
        // Then: the response, unless the generation has ended meanwhile.
        let response = EncodedResponse::new(Response {
            id: own_id,
            content,
        });
        let mut cancels = Vec::new();
        let mut mailbox = interface.mailbox.lock();
        if mailbox.own_id(&id).is_some() {
            if mailbox.write_directly(&response) {
                return; // Waking `control` would take longer than this write.
            }
            cancels = mailbox.put(response);
        }
        drop(mailbox);
        self.shared.cancel(&interface, cancels);
        self.shared.wake.set();
    }

    /// Makes `control` renew the subscriptions of workloads, since there is a connection.
    // [impl->swdd~agent-renews-event-subscriptions~1]
    pub(crate) fn connected(&self) {
        self.shared.wake.set();
    }

    /// Updates the open requests of all workloads, since the connection to the server is lost.
    // [impl->swdd~agent-renews-event-subscriptions~1]
    pub(crate) fn connection_lost(&self) {
        let registry = self.shared.registry.lock();
        let interfaces: Vec<Arc<Interface>> = registry.interfaces.values().cloned().collect();
        drop(registry);
        for interface in interfaces {
            let mut mailbox = interface.mailbox.lock();
            mailbox.connection_lost(|id| self.shared.uplink.has_request(id));
        }
        self.shared.wake.set();
    }
}

/// The control interface of one workload, as its control loop holds it. Dropping it ends nothing,
/// since workloads outlive the agent.
pub(crate) struct ControlInterface {
    hub: ControlHub,
    interface: Arc<Interface>,
    folder: PathBuf,
    ids: PipeIds,
    authorizer: Authorizer,
}

impl ControlInterface {
    /// Whether a workload with this folder and these rules can use it as it is.
    pub(crate) fn serves(&self, folder: &Path, access: &ControlInterfaceAccess) -> bool {
        self.folder == folder && is_needed(access) && self.authorizer == Authorizer::new(access)
    }

    /// Whether its FIFOs are still in its folder, where a new container would mount them.
    pub(crate) fn is_in_its_folder(&self) -> bool {
        self.ids.are_in(&self.folder)
    }

    /// Begins a new session for the next container, which must send a hello. It gets no responses
    /// of the earlier one.
    pub(crate) fn restart(&self) {
        self.container_gone();
        self.interface.restarted.store(true, Ordering::Relaxed);
        self.hub.shared.wake.set();
    }

    /// Ends the requests of the container, and keeps the session for the next container, which gets
    /// no responses to these requests.
    pub(crate) fn container_gone(&self) {
        self.hub.shared.begin_generation(&self.interface);
    }

    /// Ends the session and removes the FIFOs.
    pub(crate) fn end(self) {
        let name = &self.interface.workload;
        let mut registry = self.hub.shared.registry.lock();
        // A newer interface of the workload may have taken its place.
        if let Some(newest) = registry.interfaces.get(name)
            && Arc::ptr_eq(newest, &self.interface)
        {
            registry.interfaces.remove(name);
        }
        drop(registry);
        self.hub.end(&self.interface);
        pipes::remove(&self.folder);
    }
}

#[cfg(test)]
mod tests;
