//! A connector whose calls take virtual time: it does what the connectors of the real engines do,
//! child by child.
//!
//! Thread: the one of the test, on the stack of a control loop, which is paused while a call runs.

use super::coroutine::{Pause, pause};
use super::engine::{Action, Answer, Caller, SimEngine};
use ankaios_fakes::fake_connector::is_cancelled;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::InstanceName;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_runtime::log_reader::LogCall;
use ankaios_runtime::{
    Cancel, ContainerId, ListedContainer, NewContainer, ProbeTarget, RuntimeConnector, RuntimeError,
};
use std::time::Duration;

/// Calls the engines of one node for one life of its agent.
pub(crate) struct SimConnector {
    pub engine: SimEngine,
    pub caller: Caller,
    pub clock: ManualClock,
}

impl SimConnector {
    fn call(
        &self,
        action: Action,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<Answer, RuntimeError> {
        let begin = self.clock.now();
        let call = self.engine.begin(&self.caller, action, limit);
        loop {
            if is_cancelled(cancel) {
                self.engine.cancel(call);
            }
            if let Some(result) = self.engine.take_result(call) {
                return result;
            }
            let until = self.engine.due_of(call).unwrap_or(begin);
            pause(Pause::Calling { until });
        }
    }

    fn change(&self, action: Action) -> Result<Answer, RuntimeError> {
        self.call(action, None, None)
    }

    fn make(
        &mut self,
        action: Action,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        match self.call(action, limit, cancel)? {
            Answer::Id(id) => Ok(id),
            other => panic!("a create answers {other:?}"),
        }
    }
}

fn check(new: &NewContainer) -> Result<(), RuntimeError> {
    if new.workload.runtime_config.starts_with("bad") {
        return Err(RuntimeError::Unsupported("it will never work".to_owned()));
    }
    Ok(())
}

impl RuntimeConnector for SimConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        check(new)?;
        self.make(Action::Run(new.clone()), limit, cancel)
    }

    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        self.call(Action::Image(workload.agent.clone()), limit, cancel)
            .map(drop)
    }

    fn create_arguments(&self, new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        check(new)?;
        Ok(vec![new.workload.runtime_config.to_string()])
    }

    fn create_only(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        check(new)?;
        self.make(Action::Create(new.clone()), limit, cancel)
    }

    fn init(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        self.make(Action::Init(id.clone(), new.clone()), limit, cancel)
            .map(drop)
    }

    fn note(&mut self, instance: &InstanceName, _id: &ContainerId) {
        self.engine.forget_record(instance);
    }

    fn note_prepared(&mut self, instance: &InstanceName, record: &str) {
        self.engine.keep_record(instance, record);
    }

    fn prepared_record(&self, instance: &InstanceName) -> Option<String> {
        self.engine.record(instance)
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        check(new)?;
        self.make(Action::Start(id.clone(), new.clone()), limit, cancel)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.change(Action::Stop(id.clone()))?;
        self.change(Action::Remove(id.clone())).map(drop)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.change(Action::Stop(id.clone())).map(drop)
    }

    fn probe_target(
        &mut self,
        id: &ContainerId,
        with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let listed = if with_processes {
            self.list()?
        } else {
            Vec::new()
        };
        let found = listed.into_iter().find(|found| found.id == *id);
        Ok(ProbeTarget {
            processes: found.map(|found| found.processes).unwrap_or_default(),
            ..ProbeTarget::default()
        })
    }

    fn find(
        &mut self,
        instance: &InstanceName,
        _wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let listed = self.list()?.into_iter();
        Ok(listed
            .filter(|container| container.instance == *instance)
            .map(|container| container.id)
            .collect())
    }

    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        match self.change(Action::List)? {
            Answer::Listed(listed) => Ok(listed),
            other => panic!("a listing answers {other:?}"),
        }
    }

    fn log_calls(
        &mut self,
        _instance: &InstanceName,
        _wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError> {
        Ok(Vec::new())
    }
}
