//! Workloads that talk to the cluster: two FIFOs per workload, one thread for all of them.
//!
//! Follow a request: [`poller`] reads bytes of [`pipes`], one large message at a time; [`session`]
//! decodes and checks them with the [`Authorizer`]; [`mailbox`] lets one request of a workload pass
//! until its response, or for some seconds; [`super::uplink_outbox`] sends it. At the server it
//! goes on in `wire/stream.rs` and `server/requests.rs`. Follow an answer: `rx:server` gives it to
//! [`ControlHub::deliver`], it waits in the [`mailbox`], [`poller`] writes it.
//!
//! The agent puts `<workload>@<generation>@` before the id of a request. A generation begins with
//! each container, and with a hello after the pipe was closed: what comes for another one is
//! dropped, and what was open is cancelled at its end.
//!
//! Thread: [`ControlHub::deliver`] on `rx:server`, [`ControlHub::open`] and [`ControlInterface`] on
//! `wl:<name>`, which makes and removes the FIFOs; everything else on `control`. No thread waits
//! for a workload.
//! Owns: which workload has an interface, and its mailbox, shared behind locks that are held for a
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
use mailbox::{Frame, Mailbox};
use pipes::{PipeError, PipeIds, Pipes};
use poller::{Link, Poller};
use session::Session;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Name of the folder of the FIFOs in that of their workload.
pub(crate) const FOLDER: &str = "control_interface";

/// Whether a workload gets a control interface: deny rules alone make none.
// [impl->swdd~api-workload-needs-control-interface~1]
pub(crate) fn is_wanted(access: &ControlInterfaceAccess) -> bool {
    !access.allow_rules.is_empty()
}

/// Where control interfaces are opened, and where answers for workloads are delivered. Clones are
/// the same.
#[derive(Clone)]
pub struct ControlHub {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Mutex<Registry>,
    /// Set when `control` has something to do.
    wake: EventFd,
    uplink: UplinkOutbox,
    message_max: usize,
    generations: AtomicU32,
}

#[derive(Debug, Default)]
struct Registry {
    interfaces: BTreeMap<Name, Arc<Interface>>,
    /// Not yet taken over by `control`.
    opened: Vec<Link>,
}

/// One interface, as all threads share it. The lock of the uplink may be taken while that of the
/// mailbox is held.
#[derive(Debug)]
struct Interface {
    workload: Name,
    mailbox: Mutex<Mailbox>,
    ended: AtomicBool,
    /// `control` has not seen yet that the container was restarted.
    restarted: AtomicBool,
}

impl Shared {
    // [impl->swdd~agent-adds-workload-prefix-id-control-interface-request~1]
    fn next_prefix(&self, workload: &Name) -> String {
        // A name has no '@', so the first one in an id is ours whatever the workload writes.
        format!(
            "{workload}@{}@",
            self.generations.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// What `interface` has asked is over.
    fn begin_generation(&self, interface: &Interface) {
        let prefix = self.next_prefix(&interface.workload);
        let (before, cancels) = interface.mailbox.lock().begin(prefix);
        self.uplink.end_requests(&before, cancels);
    }

    /// Cancels what a workload does not read.
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
    /// A hub without interfaces. Messages of workloads may have `message_max` bytes; requests go to
    /// `uplink`.
    pub fn new(uplink: UplinkOutbox, message_max: usize) -> io::Result<Self> {
        let (registry, wake, generations) = (Mutex::default(), EventFd::new()?, AtomicU32::new(1));
        Ok(Self {
            shared: Arc::new(Shared {
                registry,
                wake,
                uplink,
                message_max,
                generations,
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

    /// Makes the FIFOs of a workload in `folder`, and serves them from now on: of one that is about
    /// to start, or of one that runs already and has them mounted, so that it goes on after a
    /// restart of the agent.
    pub(crate) fn open(
        &self,
        workload: &Name,
        folder: PathBuf,
        access: &ControlInterfaceAccess,
        is_mounted: bool,
    ) -> Result<ControlInterface, PipeError> {
        pipes::create(&folder, is_mounted)?;
        let pipes = Pipes::open(&folder)?;
        let ids = pipes.ids().clone();
        let authorizer = Authorizer::new(access);
        let session = Session::new(
            workload.clone(),
            authorizer.clone(),
            self.shared.message_max,
        );
        let mailbox = Mutex::new(Mailbox::new(self.shared.next_prefix(workload)));
        let (workload, ended, restarted) = (
            workload.clone(),
            AtomicBool::default(),
            AtomicBool::default(),
        );
        let interface = Arc::new(Interface {
            workload,
            mailbox,
            ended,
            restarted,
        });
        let mut registry = self.shared.registry.lock();
        let earlier = registry
            .interfaces
            .insert(interface.workload.clone(), interface.clone());
        registry
            .opened
            .push(Link::new(interface.clone(), pipes, session));
        drop(registry);
        let control = ControlInterface {
            hub: self.clone(),
            interface,
            folder,
            ids,
            authorizer,
        };
        earlier
            .into_iter()
            .for_each(|earlier| self.let_go(&earlier));
        self.shared.wake.set();
        Ok(control)
    }

    fn let_go(&self, interface: &Interface) {
        self.shared.begin_generation(interface);
        interface.ended.store(true, Ordering::Relaxed);
        self.shared.wake.set();
    }

    /// Delivers an answer of the server to the workload that its id names. Never waits.
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
        let Some(interface) = self
            .shared
            .registry
            .lock()
            .interfaces
            .get(workload)
            .cloned()
        else {
            return log::warn!(
                "Could not forward response to workload '{}': control interface not available",
                excerpt(workload)
            );
        };
        let mut mailbox = interface.mailbox.lock();
        let Some(own_id) = mailbox.own_id(&id).map(str::to_owned) else {
            return log::debug!(
                "Dropping a response to an earlier container of workload '{workload}'."
            );
        };
        if mailbox.accept(&own_id, &mut content) {
            drop(mailbox); // A large one takes its time to encode.
            let frame = Frame::new(Response {
                id: own_id,
                content,
            });
            let mut mailbox = interface.mailbox.lock();
            // The generation may have ended meanwhile.
            let cancels = if mailbox.own_id(&id).is_some() {
                mailbox.put(frame)
            } else {
                Vec::new()
            };
            drop(mailbox);
            self.shared.cancel(&interface, cancels);
        }
        self.shared.wake.set();
    }

    /// There is a connection to the server: workloads get again what they have subscribed to.
    // [impl->swdd~agent-renews-event-subscriptions~1]
    pub(crate) fn connected(&self) {
        self.shared.wake.set();
    }

    /// The connection to the server is lost: the logs that workloads follow have ended, their
    /// events are interrupted, and what was sent is not answered any more.
    // [impl->swdd~agent-renews-event-subscriptions~1]
    pub(crate) fn connection_lost(&self) {
        let interfaces: Vec<Arc<Interface>> = self
            .shared
            .registry
            .lock()
            .interfaces
            .values()
            .cloned()
            .collect();
        for interface in interfaces {
            interface
                .mailbox
                .lock()
                .connection_lost(|id| self.shared.uplink.has_request(id));
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
    /// Whether it may serve a workload with this folder and these rules as it is.
    pub(crate) fn serves(&self, folder: &Path, access: &ControlInterfaceAccess) -> bool {
        self.folder == folder && is_wanted(access) && self.authorizer == Authorizer::new(access)
    }

    /// Whether a container that is started now would find its FIFOs.
    pub(crate) fn is_in_its_folder(&self) -> bool {
        self.ids.are_in(&self.folder)
    }

    /// The container will be started again: the next one must send a hello, and gets nothing of its
    /// predecessor.
    pub(crate) fn restart(&self) {
        self.container_gone();
        self.interface.restarted.store(true, Ordering::Relaxed);
        self.hub.shared.wake.set();
    }

    /// What the container has asked is not for the next one, which may go on with the session.
    pub(crate) fn container_gone(&self) {
        self.hub.shared.begin_generation(&self.interface);
    }

    /// Ends the session and removes the FIFOs.
    pub(crate) fn end(self) {
        let mut registry = self.hub.shared.registry.lock();
        let name = &self.interface.workload;
        if registry
            .interfaces
            .get(name)
            .is_some_and(|current| Arc::ptr_eq(current, &self.interface))
        {
            registry.interfaces.remove(name);
        }
        drop(registry);
        self.hub.let_go(&self.interface);
        pipes::remove(&self.folder);
    }
}

#[cfg(test)]
mod tests;
