//! Makes and starts containers.
//!
//! Thread: the one of the test.

use super::{Answer, Caller, Container, Discarded, Doing, World, failed, removes_itself};
use ankaios_model::execution_state::Phase;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, NewContainer, RuntimeError};

impl World {
    pub(super) fn run(
        &mut self,
        caller: &Caller,
        new: &NewContainer,
        half_done: bool,
    ) -> Result<Answer, RuntimeError> {
        self.check_name(caller, new)?;
        self.check_alone(caller, None, new);
        let id = self.add(caller, new, half_done);
        self.ready.starts_anew(new);
        if half_done {
            return Err(failed("the engine stopped in the middle"));
        }
        let doing = self.running(&new.workload);
        if let Some(container) = self.containers.get_mut(&id) {
            container.doing = doing;
        }
        Ok(Answer::Id(id))
    }

    pub(super) fn create(
        &mut self,
        caller: &Caller,
        new: &NewContainer,
        half_done: bool,
    ) -> Result<Answer, RuntimeError> {
        self.check_name(caller, new)?;
        let id = self.add(caller, new, half_done);
        if let Some(created) = self.containers.get_mut(&id) {
            created.prepared = true;
        }
        if half_done {
            return Err(failed("the engine stopped in the middle"));
        }
        Ok(Answer::Id(id))
    }

    pub(super) fn init(&mut self, id: &ContainerId) -> Result<Answer, RuntimeError> {
        let Some(container) = self.containers.get_mut(id) else {
            return Err(failed("no such container"));
        };
        container.doing = Doing::Created { initialised: true };
        Ok(Answer::Id(id.clone()))
    }

    /// Notes the removal of a prepared container that another life of the agent could start: its
    /// record fits, and the workload has no other container.
    pub(super) fn note_discarded(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let Doing::Created { initialised } = container.doing else {
            return;
        };
        let level = if initialised {
            PrepareLevel::Init
        } else {
            PrepareLevel::Create
        };
        let name = &container.instance.workload;
        let of_workload = self.containers.values();
        let is_alone = of_workload
            .filter(|other| other.instance.workload == *name)
            .count()
            == 1;
        let is_recorded = match self.records.get(&container.instance) {
            Some(text) => text.contains(&*id.0) && text.contains(level.as_str()),
            None => false,
        };
        let is_known = is_recorded && self.faults.list_lies == 0; // Nothing else has hidden it.
        if container.prepared && container.boot == self.boots && is_alone && is_known {
            self.discarded.push(Discarded {
                added: AddedWorkload {
                    instance: container.instance.clone(),
                    workload: container.made_for.clone(),
                },
                level,
            });
        }
    }

    fn check_name(&self, caller: &Caller, new: &NewContainer) -> Result<(), RuntimeError> {
        let name = new.instance.short();
        for other in self.containers.values() {
            if other.runtime == caller.runtime && other.instance.short() == name {
                return Err(failed("the name is already in use"));
            }
        }
        Ok(())
    }

    /// Adds a container. A listing right after that may miss it, unless its create has failed.
    fn add(&mut self, caller: &Caller, new: &NewContainer, half_done: bool) -> ContainerId {
        self.created += 1;
        let id = ContainerId(format!("{:064x}", self.created).into());
        let mut listed_from = self.clock.now();
        if self.happens(self.faults.list_misses) && !half_done {
            listed_from += self.millis(0..90);
        }
        let container = Container {
            runtime: caller.runtime.clone(),
            instance: new.instance.clone(),
            doing: Doing::Created { initialised: false },
            pid: self.created,
            started_by: caller.life,
            listed_from,
            leftover: true,
            prepared: false,
            made_for: new.workload.clone(),
            boot: self.boots,
            denied_until: None,
            stopped_by: None,
            removes_itself: removes_itself(&new.workload.runtime_config),
            vanishes_at: None,
            strange_until: None,
        };
        self.removed_by_hand.remove(&new.instance);
        self.containers.insert(id.clone(), container);
        id
    }

    /// Begins a start: the container may run at any time.
    pub(super) fn begin_start(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let was_prepared = container.prepared;
        container.prepared = false;
        if was_prepared && container.boot != self.boots {
            self.violations.push(format!(
                "'{}' was prepared before the boot and is started",
                container.instance
            ));
        }
    }

    pub(super) fn start(
        &mut self,
        caller: &Caller,
        id: &ContainerId,
        new: &NewContainer,
        fails: bool,
    ) -> Result<Answer, RuntimeError> {
        let doing = self.running(&new.workload);
        self.created += 1;
        let pid = self.created;
        let Some(container) = self.containers.get_mut(id) else {
            return Err(failed("no such container"));
        };
        if fails {
            container.leftover = true;
            return Err(failed("the container does not start"));
        }
        if container.phase() == Phase::Running {
            return Ok(Answer::Id(id.clone())); // A listing may have said that it does not run.
        }
        container.doing = doing;
        container.pid = pid;
        container.started_by = caller.life;
        container.stopped_by = None;
        container.vanishes_at = None;
        container.strange_until = None;
        self.check_alone(caller, Some(id), new);
        self.ready.starts_anew(new);
        Ok(Answer::Id(id.clone()))
    }
}
