//! A container engine in memory: containers with states, and faults on request.
//!
//! Thread: the one of the test; connectors and the test share the engine.

use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::Workload;
use ankaios_runtime::call_error::{CallError, ErrorMeaning};
use ankaios_runtime::images::{ContainerImage, ImageRemoval, ImageStore, LocalImage, names_of};
use ankaios_runtime::log_reader::LogCall;
use ankaios_runtime::{
    Cancel, ContainerId, ListedContainer, ListedPods, MainProcess, NewContainer, OutOfMemory,
    ProbeTarget, RuntimeConnector, RuntimeError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The way in which a call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Does nothing, and fails.
    Fails,
    /// Does nothing: the engine is not installed.
    IsMissing,
    /// Does its work, but reports that it took too long.
    TimesOut,
    /// Refuses the workload for good.
    Unsupported,
    /// Fails in the middle: the container exists, and cannot be removed.
    LeavesHalfDone,
    /// Waits for this long, then does its work unless it was cancelled.
    Hangs(Duration),
}

/// Kinds of calls that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `create`.
    Create,
    /// `prepare_image`.
    Image,
    /// `create_only`.
    CreateOnly,
    /// `init`.
    Init,
    /// `start`.
    Start,
    /// `delete`.
    Delete,
    /// `stop`.
    Stop,
    /// `out_of_memory`.
    Inspect,
    /// `find`.
    Find,
    /// `list`.
    List,
    /// `probe_target`, which is not among the calls that were made.
    ProbeTarget,
    /// `image_store`.
    ImageStore,
    /// `remove_image`.
    RemoveImage,
}

/// The engine; clones are the same engine.
#[derive(Clone, Default)]
pub struct FakeEngine {
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    containers: BTreeMap<ContainerId, FakeContainer>,
    created: u32,
    calls: Vec<String>,
    faults: BTreeMap<Call, VecDeque<Fault>>,
    cannot_start_again: bool,
    silent: bool,
    /// Workloads whose containers cannot be deleted.
    stuck: BTreeSet<String>,
    during_next_create: Option<Box<dyn FnOnce() + Send>>,
    /// Number of calls of `delete_ended`.
    deletes_of_ended: usize,
    /// The noted container of each instance.
    noted: BTreeMap<InstanceName, ContainerId>,
    /// Noted containers of an earlier boot.
    of_earlier_boots: BTreeSet<ContainerId>,
    /// The records of prepared containers.
    records: BTreeMap<InstanceName, String>,
    /// The records of ends.
    ends: BTreeMap<InstanceName, String>,
    log_calls: Option<Result<Vec<LogCall>, RuntimeError>>,
    images: Vec<LocalImage>,
    /// Images of containers that others have made.
    foreign: Vec<ContainerImage>,
    /// Containers that were killed for want of memory.
    out_of_memory: BTreeMap<ContainerId, OutOfMemory>,
}

/// One container.
#[derive(Debug, Clone)]
pub struct FakeContainer {
    /// From its label.
    pub instance: InstanceName,
    /// Its state in listings.
    pub state: ExecutionState,
    /// Whether it is one of a pod.
    pub in_pod: bool,
    /// The containers of its pods, if it stands for pods.
    pub pods: Option<ListedPods>,
    /// Its create; `None` if a test has added it.
    pub new: Option<NewContainer>,
}

impl FakeEngine {
    /// No containers, no faults.
    pub fn new() -> Self {
        Self::default()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// A connector for the containers of `agent`.
    pub fn connector(&self, agent: &str) -> FakeConnector {
        FakeConnector {
            engine: self.clone(),
            agent: agent.to_owned(),
        }
    }

    /// Makes the next calls of this kind fail, one for each fault.
    pub fn inject(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        self.world().faults.entry(call).or_default().extend(faults);
    }

    /// Forbids to start an exited container again, as with pods.
    pub fn forbid_start_again(&self) {
        self.world().cannot_start_again = true;
    }

    /// Removes all faults that are left.
    pub fn forget_faults(&self) {
        self.world().faults.clear();
    }

    /// Sets whether deletes of containers of this workload fail.
    pub fn set_stuck(&self, workload: &str, stuck: bool) {
        let mut world = self.world();
        if stuck {
            world.stuck.insert(workload.to_owned());
        } else {
            world.stuck.remove(workload);
        }
    }

    /// Sets whether listings of the state checker never end.
    pub fn set_silent(&self, silent: bool) {
        self.world().silent = silent;
    }

    /// See [`Self::set_silent`].
    pub fn is_silent(&self) -> bool {
        self.world().silent
    }

    /// Runs `action` in the middle of the next create.
    pub fn during_next_create(&self, action: impl FnOnce() + Send + 'static) {
        self.world().during_next_create = Some(Box::new(action));
    }

    /// Adds a container, as if an earlier agent had created it.
    pub fn add(&self, instance: &InstanceName, state: ExecutionState) -> ContainerId {
        self.world().add(instance, state, None)
    }

    /// Changes the state of a container.
    pub fn set_state(&self, id: &ContainerId, state: ExecutionState) {
        self.world().containers.get_mut(id).unwrap().state = state;
    }

    /// Removes a container, as another user of the engine does.
    pub fn remove(&self, id: &ContainerId) {
        self.world().containers.remove(id);
    }

    /// Makes it stand for pods with these containers. The failure of `failed` is its state, if that
    /// is a failure.
    pub fn set_pods(&self, id: &ContainerId, containers: &[&str], failed: Option<&str>) {
        let mut pods = ListedPods::default();
        for container in containers {
            pods.containers.push(ContainerId((*container).into()));
        }
        if let Some(failed) = failed {
            pods.failed = Some(ContainerId(failed.into()));
        }
        self.world().containers.get_mut(id).unwrap().pods = Some(pods);
    }

    /// Makes it one of a pod.
    pub fn put_into_pod(&self, id: &ContainerId) {
        self.world().containers.get_mut(id).unwrap().in_pod = true;
    }

    /// Notes the container, as if an earlier agent had.
    pub fn note(&self, id: &ContainerId) {
        let mut world = self.world();
        let instance = world.containers[id].instance.clone();
        world.noted.insert(instance, id.clone());
    }

    /// Boots the node. All notes are of an earlier boot after that.
    pub fn reboot(&self) {
        let mut world = self.world();
        world.of_earlier_boots = world.noted.values().cloned().collect();
    }

    /// The noted container of the instance.
    pub fn noted(&self, instance: &InstanceName) -> Option<ContainerId> {
        self.world().noted.get(instance).cloned()
    }

    /// The record of the prepared container of the instance.
    pub fn record(&self, instance: &InstanceName) -> Option<String> {
        self.world().records.get(instance).cloned()
    }

    /// Keeps this, as if an earlier agent had.
    pub fn set_record(&self, instance: &InstanceName, record: String) {
        self.world().records.insert(instance.clone(), record);
    }

    /// Kills a container for want of memory.
    pub fn kill_out_of_memory(&self, id: &ContainerId, limit: Option<u64>) {
        self.set_state(id, ExecutionState::killed());
        self.world()
            .out_of_memory
            .insert(id.clone(), OutOfMemory { limit });
    }

    /// Sets how logs are read.
    pub fn set_log_calls(&self, calls: Result<Vec<LogCall>, RuntimeError>) {
        self.world().log_calls = Some(calls);
    }

    /// Adds an image with this id to the store. Other images lose these names.
    pub fn load(&self, id: &str, names: &[&str], bytes: u64) {
        let mut world = self.world();
        for image in &mut world.images {
            image.names.retain(|name| !names.contains(&&**name));
        }
        world.images.retain(|image| image.id != id);
        world.images.push(LocalImage {
            id: id.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes: Some(bytes),
            ..LocalImage::default()
        });
    }

    /// Moves an image to a store that cannot be changed.
    pub fn set_read_only(&self, id: &str) {
        let mut world = self.world();
        let mut images = world.images.iter_mut();
        let image = images.find(|image| image.id == id);
        image.expect("an image").is_read_only = true;
    }

    /// Sets whether another program has a container of this image.
    pub fn set_foreign_container(&self, id: &str, is_there: bool) {
        let mut world = self.world();
        world.foreign.retain(|one| one.id.as_deref() != Some(id));
        if is_there {
            world.foreign.push(ContainerImage {
                id: Some(id.to_owned()),
                ..ContainerImage::default()
            });
        }
    }

    /// The images in the store, each with its names.
    pub fn images(&self) -> BTreeMap<String, Vec<String>> {
        let world = self.world();
        let images = world.images.iter();
        images
            .map(|image| (image.id.clone(), image.names.clone()))
            .collect()
    }

    /// All containers.
    pub fn containers(&self) -> BTreeMap<ContainerId, FakeContainer> {
        self.world().containers.clone()
    }

    /// The only container.
    pub fn only(&self) -> (ContainerId, FakeContainer) {
        let containers = self.containers();
        assert_eq!(containers.len(), 1, "{containers:?}");
        containers.into_iter().next().unwrap()
    }

    /// The calls until now, for example `create web`; forgets them.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.world().calls)
    }

    /// Number of calls of `delete_ended` so far.
    pub fn deletes_of_ended(&self) -> usize {
        self.world().deletes_of_ended
    }

    /// The containers of an agent, as a listing shows them.
    pub fn listing(&self, agent: &str) -> Vec<ListedContainer> {
        let mut listing = Vec::new();
        for (id, container) in &self.world().containers {
            if *container.instance.agent != *agent {
                continue;
            }
            listing.push(ListedContainer {
                id: id.clone(),
                instance: container.instance.clone(),
                state: container.state.clone(),
                processes: Vec::new(),
                ended_at: None,
                in_pod: container.in_pod,
                pods: container.pods.clone(),
            });
        }
        listing
    }
}

impl World {
    fn add(
        &mut self,
        instance: &InstanceName,
        state: ExecutionState,
        new: Option<NewContainer>,
    ) -> ContainerId {
        self.created += 1;
        let id = ContainerId(format!("{:064x}", self.created).into());
        let container = FakeContainer {
            instance: instance.clone(),
            state,
            in_pod: false,
            pods: None,
            new,
        };
        self.containers.insert(id.clone(), container);
        id
    }

    /// The name of the workload of a container, for texts of calls.
    fn workload_of(&self, id: &ContainerId) -> Name {
        match self.containers.get(id) {
            Some(container) => container.instance.workload.clone(),
            None => "nothing".into(),
        }
    }

    /// Returns whether a container outside of pods has the name of this instance.
    fn has_name(&self, instance: &InstanceName) -> bool {
        let mut containers = self.containers.values();
        containers.any(|one| !one.in_pod && one.instance.short() == instance.short())
    }

    fn image_store(&self) -> ImageStore {
        let mut store = ImageStore {
            images: self.images.clone(),
            containers: self.foreign.clone(),
        };
        for container in self.containers.values() {
            let Some(new) = &container.new else {
                continue;
            };
            for name in names_of(&new.workload) {
                let id = store.find(&name).map(|image| image.id.clone());
                store.containers.push(ContainerImage {
                    id,
                    name,
                    instance: Some(container.instance.clone()),
                });
            }
        }
        store
    }

    /// Records a call. Returns its fault, if it has one.
    fn begin(&mut self, call: Call, text: String) -> Option<Fault> {
        self.calls.push(text);
        self.faults.get_mut(&call).and_then(VecDeque::pop_front)
    }
}

/// Talks to a [`FakeEngine`].
pub struct FakeConnector {
    engine: FakeEngine,
    agent: String,
}

/// The text of every failure.
pub const FAILURE: &str = "Error: the engine says no";

fn failure() -> CallError {
    CallError {
        text: format!("a line\n{FAILURE}"),
        call: Some("'fake \"call\"'".to_owned()),
        code: Some(125),
        meaning: ErrorMeaning::Failure,
    }
}

fn failed() -> RuntimeError {
    RuntimeError::Failed(failure())
}

/// Returns whether the call was cancelled.
pub fn is_cancelled(cancel: Cancel<'_>) -> bool {
    let Some(descriptor) = cancel else {
        return false;
    };
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&at_once)) == Ok(1)
}

/// The error of a call whose fault is [`Fault::TimesOut`].
fn timed_out() -> RuntimeError {
    RuntimeError::TimedOut("it took too long".into())
}

fn unsupported() -> RuntimeError {
    RuntimeError::Unsupported("it will never work".to_owned())
}

/// The state of a container that was created and not started.
fn created() -> ExecutionState {
    ExecutionState::with_info(Phase::PendingStarting, "created")
}

impl RuntimeConnector for FakeConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let mut world = self.engine.world();
        let fault = world.begin(Call::Create, format!("create {}", new.instance.workload));
        let action = world.during_next_create.take();
        drop(world); // The action may use it.
        if let Some(action) = action {
            action();
        }
        if is_cancelled(cancel) {
            return Err(RuntimeError::Cancelled);
        }
        if let Some(Fault::Hangs(age)) = &fault
            && limit.is_some_and(|limit| limit < *age)
        {
            return Err(timed_out());
        }
        // First the faults without effect.
        match fault {
            Some(Fault::Unsupported) => return Err(unsupported()),
            Some(Fault::IsMissing) => return Err(RuntimeError::NotInstalled(failure())),
            Some(Fault::Fails) => return Err(failed()),
            _ => {}
        }
        let mut world = self.engine.world();
        if world.has_name(&new.instance) {
            return Err(RuntimeError::Failed("the name is already in use".into()));
        }
        // Then those that leave a container.
        if fault == Some(Fault::LeavesHalfDone) {
            world.add(&new.instance, created(), None);
            return Err(failed());
        }
        let running = ExecutionState::plain(Phase::Running);
        let id = world.add(&new.instance, running, Some(new.clone()));
        if fault == Some(Fault::TimesOut) {
            return Err(timed_out());
        }
        Ok(id)
    }

    fn prepare_image(
        &mut self,
        workload: &Workload,
        _limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let fault = self
            .engine
            .world()
            .begin(Call::Image, format!("image {}", &*workload.runtime_config));
        if is_cancelled(cancel) {
            return Err(RuntimeError::Cancelled);
        }
        match fault {
            None => Ok(()),
            Some(Fault::TimesOut) => Err(timed_out()),
            Some(_) => Err(failed()),
        }
    }

    fn create_arguments(&self, new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        match &new.workload.config().engine {
            Ok(_) => Ok(vec![new.workload.runtime_config.to_string()]),
            Err(reason) => Err(RuntimeError::Unsupported(reason.clone())),
        }
    }

    fn create_only(
        &mut self,
        new: &NewContainer,
        _limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let mut world = self.engine.world();
        let fault = world.begin(
            Call::CreateOnly,
            format!("create-only {}", new.instance.workload),
        );
        let action = world.during_next_create.take();
        drop(world); // The action may use it.
        if let Some(action) = action {
            action();
        }
        let mut world = self.engine.world();
        match fault {
            Some(Fault::Unsupported) => return Err(unsupported()),
            Some(Fault::Fails) => return Err(failed()),
            Some(Fault::TimesOut) => {
                world.add(&new.instance, created(), Some(new.clone()));
                return Err(timed_out());
            }
            _ => {}
        }
        if world.has_name(&new.instance) {
            return Err(RuntimeError::Failed("the name is already in use".into()));
        }
        let id = world.add(&new.instance, created(), Some(new.clone()));
        if fault == Some(Fault::LeavesHalfDone) {
            return Err(failed());
        }
        if is_cancelled(cancel) {
            return Err(RuntimeError::Cancelled);
        }
        Ok(id)
    }

    fn init(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        _limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let mut world = self.engine.world();
        let fault = world.begin(Call::Init, format!("init {}", new.instance.workload));
        if is_cancelled(cancel) {
            return Err(RuntimeError::Cancelled);
        }
        if fault.is_some() {
            return Err(failed());
        }
        let Some(container) = world.containers.get_mut(id) else {
            return Err(failed());
        };
        container.state = ExecutionState::with_info(Phase::PendingStarting, "initialized");
        Ok(())
    }

    fn note_prepared(&mut self, instance: &InstanceName, record: &str) {
        self.engine
            .world()
            .records
            .insert(instance.clone(), record.to_owned());
    }

    fn prepared_record(&self, instance: &InstanceName) -> Option<String> {
        self.engine.world().records.get(instance).cloned()
    }

    fn can_start_again(&self) -> bool {
        !self.engine.world().cannot_start_again
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        _limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let mut world = self.engine.world();
        let fault = world.begin(Call::Start, format!("start {}", new.instance.workload));
        if is_cancelled(cancel) {
            return Err(RuntimeError::Cancelled);
        }
        match fault {
            Some(Fault::Unsupported) => return Err(unsupported()),
            Some(Fault::IsMissing) => return Err(RuntimeError::NotInstalled(failure())),
            Some(_) => return Err(failed()),
            None => {}
        }
        let Some(container) = world.containers.get_mut(id) else {
            return Err(RuntimeError::Failed(CallError {
                meaning: ErrorMeaning::NoSuchContainer,
                ..format!("no container with ID {} found: no such container", id.0).into()
            }));
        };
        container.state = ExecutionState::plain(Phase::Running);
        Ok(id.clone())
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let mut world = self.engine.world();
        let name = world.workload_of(id);
        if world.stuck.contains(&*name) {
            return Err(failed());
        }
        match world.begin(Call::Delete, format!("delete {name}")) {
            Some(Fault::TimesOut) => return Err(timed_out()),
            Some(_) => return Err(failed()),
            None => {}
        }
        world.containers.remove(id);
        Ok(())
    }

    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.engine.world().deletes_of_ended += 1;
        self.delete(id)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let mut world = self.engine.world();
        let text = format!("stop {}", world.workload_of(id));
        if world.begin(Call::Stop, text).is_some() {
            return Err(failed());
        }
        if let Some(container) = world.containers.get_mut(id) {
            container.state = ExecutionState::exited(0);
        }
        Ok(())
    }

    fn probe_target(
        &mut self,
        id: &ContainerId,
        with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let mut world = self.engine.world();
        let faults = world.faults.get_mut(&Call::ProbeTarget);
        if faults.and_then(VecDeque::pop_front).is_some() {
            return Err(failed());
        }
        let mut processes = Vec::new();
        if with_processes {
            processes.push(MainProcess {
                container: id.clone(),
                pid: 1,
            });
        }
        Ok(ProbeTarget {
            program: "fake",
            container: Some(id.0.to_string()),
            processes,
        })
    }

    fn out_of_memory(
        &mut self,
        _instance: &InstanceName,
        id: &ContainerId,
    ) -> Result<Option<OutOfMemory>, RuntimeError> {
        let mut world = self.engine.world();
        if !world.containers.contains_key(id) {
            return Ok(None);
        }
        let text = format!("inspect {}", world.workload_of(id));
        if world.begin(Call::Inspect, text).is_some() {
            return Err(failed());
        }
        Ok(world.out_of_memory.get(id).copied())
    }

    fn find(
        &mut self,
        instance: &InstanceName,
        _wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut world = self.engine.world();
        let text = format!("find {}", instance.workload);
        if world.begin(Call::Find, text).is_some() {
            return Err(failed());
        }
        let mut found = Vec::new();
        for (id, container) in &world.containers {
            if container.instance == *instance {
                found.push(id.clone());
            }
        }
        Ok(found)
    }

    fn note(&mut self, instance: &InstanceName, id: &ContainerId) {
        let mut world = self.engine.world();
        world.of_earlier_boots.remove(id);
        world.noted.insert(instance.clone(), id.clone());
        world.records.remove(instance);
    }

    fn is_noted(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.engine.world().noted.get(instance) == Some(id)
    }

    fn ran_in_this_boot(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.is_noted(instance, id) && !self.engine.world().of_earlier_boots.contains(id)
    }

    fn note_end(&mut self, instance: &InstanceName, record: &str) {
        self.engine
            .world()
            .ends
            .insert(instance.clone(), record.to_owned());
    }

    fn end_record(&self, instance: &InstanceName) -> Option<String> {
        self.engine.world().ends.get(instance).cloned()
    }

    fn forget_end(&mut self, instance: &InstanceName) {
        self.engine.world().ends.remove(instance);
    }

    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        match self.engine.world().begin(Call::List, "list".to_owned()) {
            Some(Fault::IsMissing) => return Err(RuntimeError::NotInstalled(failure())),
            Some(_) => return Err(failed()),
            None => {}
        }
        Ok(self.engine.listing(&self.agent))
    }

    fn log_calls(
        &mut self,
        _instance: &InstanceName,
        _wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError> {
        let calls = self.engine.world().log_calls.clone();
        calls.unwrap_or(Ok(Vec::new()))
    }

    fn image_store(&mut self) -> Result<ImageStore, RuntimeError> {
        let mut world = self.engine.world();
        match world.begin(Call::ImageStore, "images".to_owned()) {
            Some(_) => Err(failed()),
            None => Ok(world.image_store()),
        }
    }

    /// Refuses to remove an image that engines refuse to remove.
    fn remove_image(&mut self, removal: &ImageRemoval) -> Result<(), RuntimeError> {
        let mut world = self.engine.world();
        let text = match removal {
            ImageRemoval::Name { id, name } => format!("untag {id} {name}"),
            ImageRemoval::Image { id, .. } => format!("rmi {id}"),
        };
        if world.begin(Call::RemoveImage, text).is_some() {
            return Err(failed());
        }
        let store = world.image_store();
        match removal {
            ImageRemoval::Name { id, name } => {
                for image in world.images.iter_mut().filter(|image| image.id == *id) {
                    image.names.retain(|one| one != name);
                }
            }
            ImageRemoval::Image { id, .. } => {
                let Some(image) = store.with_id(id) else {
                    return Ok(());
                };
                if store.is_in_use(image) || image.names.len() > 1 || image.is_read_only {
                    return Err(failed());
                }
                world.images.retain(|image| image.id != *id);
            }
        }
        Ok(())
    }
}
