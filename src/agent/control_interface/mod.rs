//! Workloads that talk to the cluster: two FIFOs per workload, one thread for all of them.
//!
//! Follow a request: [`pipes`] reads bytes, [`session`] decodes messages and checks them with the [`Authorizer`],
//! [`super::uplink_outbox`] sends what is allowed. Follow an answer: `rx:server` gives it to
//! [`ControlHub::deliver`], it waits in an [`outbox`], [`poller`] writes it.
//!
//! Thread: [`ControlHub::deliver`] on `rx:server`, [`ControlHub::open`] and [`ControlInterface`] on `wl:<name>`, which
//! makes and removes the FIFOs; everything else on `control`. No thread waits for a workload.
//! Owns: which workload has an interface, and what waits for it, shared behind locks that are held for a moment only.

pub mod lasting;
pub mod outbox;
pub mod pipes;
pub mod poller;
mod read_budget;
pub mod session;

use super::uplink_outbox::UplinkOutbox;
use crate::limits::STACK_LARGE;
use crate::model::access_rules::ControlInterfaceAccess;
use crate::model::authorizer::Authorizer;
use crate::model::messages::{Request, Response};
use crate::model::names::{Name, excerpt};
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::platform::sync::{EventFd, Mutex};
use crate::platform::threads::{self, Thread};
use crate::platform::vital::VitalThreads;
use crate::wire::delimited::Undecodable;
use outbox::{Frame, Outbox};
use pipes::{PipeError, Pipes};
use poller::Poller;
use session::Session;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the folder of the FIFOs in that of their workload.
pub const FOLDER: &str = "control_interface";

/// Whether a workload gets a control interface: deny rules alone make none.
// [impl->swdd~api-workload-needs-control-interface~1]
#[must_use]
pub fn is_wanted(access: &ControlInterfaceAccess) -> bool {
    !access.allow_rules.is_empty()
}

/// Where control interfaces are opened, and where answers for workloads are delivered. Clones are the same.
#[derive(Debug, Clone)]
pub struct ControlHub {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registry: Mutex<Registry>,
    /// Set when `control` has something to do.
    wake: EventFd,
    uplink: UplinkOutbox,
    message_max: usize,
}

#[derive(Debug, Default)]
struct Registry {
    interfaces: BTreeMap<Name, Arc<Interface>>,
    /// Not yet taken over by `control`.
    opened: Vec<Opened>,
}

/// What a new interface brings to `control`.
#[derive(Debug)]
struct Opened {
    interface: Arc<Interface>,
    pipes: Pipes,
    session: Session,
}

/// One interface, as all threads share it.
#[derive(Debug)]
struct Interface {
    workload: Name,
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    outbox: Outbox,
    ended: bool,
    restarted: bool,
}

impl Interface {
    /// Puts an answer for the workload, encoded before the lock is taken, since a large one takes its time. Returns
    /// what is to be cancelled at the server.
    fn put(&self, frame: Result<Frame, Undecodable>) -> Vec<Request> {
        match frame {
            Ok(frame) => self.mailbox.lock().outbox.put(frame),
            Err(error) => {
                let _source = log_source(self.workload.clone());
                log::warn!("An answer for workload '{}' cannot be sent: '{error}'", self.workload);
                Vec::new()
            }
        }
    }
}

impl Shared {
    /// Cancels a request of a workload at the server.
    fn cancel(&self, workload: &str, Request { id, content }: Request) {
        self.uplink.put_cancel(Request { id: format!("{workload}@{id}"), content });
    }
}

impl ControlHub {
    /// A hub without interfaces. Messages of workloads may have `message_max` bytes; requests go to `uplink`.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new(uplink: UplinkOutbox, message_max: usize) -> io::Result<Self> {
        let wake = EventFd::new()?;
        Ok(Self { shared: Arc::new(Shared { registry: Mutex::default(), wake, uplink, message_max }) })
    }

    /// Starts the thread `control`, which runs until the other end of the pipe `stop` is closed.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start<C: Clock>(&self, clock: C, stop: OwnedFd, vital: &mut VitalThreads) -> io::Result<Thread> {
        let shared = self.shared.clone();
        let pulse = vital.add_nudged_by("control", move || shared.wake.set());
        let poller = Poller::new(self.shared.clone(), clock);
        threads::spawn("control", STACK_LARGE, move || poller.run(&stop, &pulse))
    }

    /// Makes the FIFOs of a workload that is about to start in `folder`, and serves them from now on.
    ///
    /// # Errors
    /// [`PipeError`] when that is not possible.
    pub fn open(
        &self,
        workload: &Name,
        folder: PathBuf,
        access: &ControlInterfaceAccess,
    ) -> Result<ControlInterface, PipeError> {
        pipes::create(&folder)?;
        self.serve(workload, folder, access)
    }

    /// Serves the FIFOs of a workload that runs already and may have them open, so that it goes on after a restart of the
    /// agent.
    ///
    /// # Errors
    /// [`PipeError`] when that is not possible.
    pub fn reopen(
        &self,
        workload: &Name,
        folder: PathBuf,
        access: &ControlInterfaceAccess,
    ) -> Result<ControlInterface, PipeError> {
        pipes::keep(&folder)?;
        self.serve(workload, folder, access)
    }

    fn serve(
        &self,
        workload: &Name,
        folder: PathBuf,
        access: &ControlInterfaceAccess,
    ) -> Result<ControlInterface, PipeError> {
        let pipes = Pipes::open(&folder)?;
        let authorizer = Authorizer::new(access);
        let session = Session::new(workload.clone(), authorizer.clone(), self.shared.message_max);
        let interface = Arc::new(Interface { workload: workload.clone(), mailbox: Mutex::default() });
        let mut registry = self.shared.registry.lock();
        if let Some(earlier) = registry.interfaces.insert(workload.clone(), interface.clone()) {
            earlier.mailbox.lock().ended = true;
        }
        registry.opened.push(Opened { interface: interface.clone(), pipes, session });
        drop(registry);
        self.shared.wake.set();
        Ok(ControlInterface { hub: self.clone(), interface, folder, authorizer })
    }

    /// Delivers an answer of the server to the workload that its id names. Never waits.
    // [impl->swdd~agent-uses-id-prefix-forward-control-interface-response-correct-workload~1]
    // [impl->swdd~agent-remove-id-prefix-forwarding-control-interface-response~1]
    pub fn deliver(&self, Response { id, content }: Response) {
        let Some((workload, own_id)) = id.split_once('@') else {
            return log::warn!("Could not forward response: its id '{}' names no workload", excerpt(&id));
        };
        if let Err(error @ NoInterface) = self.deliver_to(workload, Response { id: own_id.to_owned(), content }) {
            let _source = log_source(workload);
            log::warn!("Could not forward response to workload '{}': {error}", excerpt(workload));
        }
    }

    /// The connection to the server is lost, and with it all events and logs that workloads follow.
    pub fn connection_lost(&self) {
        let interfaces: Vec<Arc<Interface>> = self.shared.registry.lock().interfaces.values().cloned().collect();
        interfaces.iter().for_each(|interface| interface.mailbox.lock().outbox.connection_lost());
    }

    /// A workload has requested events and logs with this id, and got the first response.
    #[cfg(test)]
    pub fn follow(&self, workload: &str, id: &str) {
        self.shared.registry.lock().interfaces[workload].mailbox.lock().outbox.follow(id);
    }

    /// Delivers an answer with the id of the workload. Never waits.
    ///
    /// # Errors
    /// The workload has no control interface; a request that lasts is then cancelled at the server.
    // [impl->swdd~agent-forward-responses-to-control-interface-pipe~1]
    fn deliver_to(&self, workload: &str, response: Response) -> Result<(), NoInterface> {
        self.shared.uplink.answered(workload, &response);
        let interface = self.shared.registry.lock().interfaces.get(workload).cloned();
        let Some(interface) = interface else {
            if let Some(cancel) = outbox::cancellation(&response) {
                self.shared.cancel(workload, cancel);
            }
            return Err(NoInterface);
        };
        for cancel in interface.put(Frame::new(response)) {
            let _source = log_source(workload);
            log::warn!(
                "Cancelling a request of workload '{workload}': it does not read, or an earlier container of it sent it."
            );
            self.shared.cancel(workload, cancel);
        }
        self.shared.wake.set();
        Ok(())
    }
}

/// The workload has no control interface (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("control interface not available")]
struct NoInterface;

/// The control interface of one workload, as its control loop holds it. Dropping it ends nothing, since workloads
/// outlive the agent.
#[derive(Debug)]
pub struct ControlInterface {
    hub: ControlHub,
    interface: Arc<Interface>,
    folder: PathBuf,
    authorizer: Authorizer,
}

impl ControlInterface {
    /// The host folder to mount.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it may serve a workload with this folder and these rules as it is.
    #[must_use]
    pub fn serves(&self, folder: &Path, access: &ControlInterfaceAccess) -> bool {
        self.folder == folder && is_wanted(access) && self.authorizer == Authorizer::new(access)
    }

    /// The container will be started again: the next one must send a hello, and gets nothing of its predecessor.
    pub fn restart(&self) {
        self.interface.mailbox.lock().restarted = true;
        self.hub.shared.wake.set();
    }

    /// The container is gone: what it follows is not for the next one, which may go on with the session.
    pub fn forget_lasting(&self) {
        self.interface.mailbox.lock().outbox.forget_lasting();
    }

    /// Ends the session and removes the FIFOs.
    pub fn end(self) {
        let mut registry = self.hub.shared.registry.lock();
        let name = &self.interface.workload;
        if registry.interfaces.get(name).is_some_and(|current| Arc::ptr_eq(current, &self.interface)) {
            registry.interfaces.remove(name);
            self.hub.shared.uplink.forget_requests(name);
        }
        drop(registry);
        self.interface.mailbox.lock().ended = true;
        self.hub.shared.wake.set();
        pipes::remove(&self.folder);
    }
}

#[cfg(test)]
mod tests;
