//! Essential workloads: when one of them has finally failed, the server writes the mode for
//! failures into the config item.
//!
//! Thread: `server`; part of [`Updates`]. Only with modes, and with a mode for failures. Switches
//! of the server lead to that one mode and never from it, so there is at most one between two
//! switches of clients.

use super::Updates;
use super::checks::UpdateSource;
use super::desired_change::DesiredChange;
use super::modes::failure_text;
use crate::effects::Effects;
use crate::sessions::RequestKey;
use crate::subscriptions::ChangedPaths;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::names::Name;
use ankaios_model::workload::ConfigItem;
use std::collections::BTreeMap;
use std::time::Instant;

/// Updates that were not committed yet when the server switched the mode by itself. The mode that
/// one of them writes is older than the failure, so it must not apply.
#[derive(Debug, Default)]
pub(super) struct OlderUpdates {
    updates: Vec<RequestKey>,
    /// The reason of the switch.
    cause: String,
}

/// The current mode and the one for failures.
struct FailureSwitch {
    current: String,
    target: String,
}

impl Updates {
    /// Takes the final failures of essential instances in these reports. Returns the new ones.
    pub(super) fn take_failures(&mut self, states: &[WorkloadState]) -> Vec<WorkloadState> {
        match &mut self.workloads.modes {
            Some(modes) => modes.take_failures(states, &self.workloads.effective),
            None => Vec::new(),
        }
    }

    fn failure_switch(&self) -> Option<FailureSwitch> {
        let modes = self.workloads.modes.as_ref()?;
        Some(FailureSwitch {
            current: modes.current()?.to_owned(),
            target: modes.on_failure()?.to_owned(),
        })
    }

    /// Switches to the mode for failures, unless that is the mode already. `updates` are not
    /// committed yet.
    // [impl->swdd~server-modes-failure~1]
    pub(crate) fn essential_failed(
        &mut self,
        failure: &WorkloadState,
        updates: Vec<RequestKey>,
        now: Instant,
        effects: &mut Effects,
    ) {
        if !self.workloads.is_wanted(&failure.instance) {
            return; // An earlier failure in the same report has switched the mode.
        }
        let Some(FailureSwitch { current, target }) = self.failure_switch() else {
            return;
        };
        let text = failure_text(failure);
        if current == target {
            return log::error!("{text}; the mode is '{target}' already.");
        }
        let cause = format!("{text}; switched from mode '{current}' to '{target}'.");
        log::error!("{cause}");
        self.older_updates = OlderUpdates {
            updates,
            cause: cause.clone(),
        };
        self.write_mode(target, cause, now, effects);
    }

    /// The state of an essential workload whose final failure was handled.
    pub(crate) fn noted_failure(&self, name: &Name) -> Option<WorkloadState> {
        let instance = &self.workloads.effective.get(name)?.instance;
        let modes = self.workloads.modes.as_ref()?;
        if !modes.has_failed(instance) {
            return None;
        }
        let state = self.workloads.states.get(instance)?;
        Some(WorkloadState::new(instance.clone(), state.clone()))
    }

    /// Notes that the update `key` has its result. If it is older than the last switch of the
    /// server by itself and has written another mode, writes the mode for failures again.
    pub(crate) fn older_update_done(
        &mut self,
        key: &RequestKey,
        now: Instant,
        effects: &mut Effects,
    ) {
        let OlderUpdates { updates, cause } = &mut self.older_updates;
        let Some(index) = updates.iter().position(|update| update == key) else {
            return;
        };
        updates.remove(index);
        let cause = cause.clone();
        let Some(FailureSwitch { current, target }) = self.failure_switch() else {
            return;
        };
        if current != target {
            log::error!(
                "{cause} An earlier update, which waited for hooks, wrote '{current}'; switching to '{target}' again."
            );
            self.write_mode(target, cause, now, effects);
        } else if let Some(modes) = &mut self.workloads.modes {
            modes.cause = Some(cause); // The update may have removed it with the same mode.
        }
    }

    /// Writes `mode` into the config item, as an update of a client would do.
    fn write_mode(&mut self, mode: String, cause: String, now: Instant, effects: &mut Effects) {
        let Some(modes) = &mut self.workloads.modes else {
            return;
        };
        modes.cause = Some(cause);
        let item = (modes.item().to_owned(), Some(ConfigItem::Text(mode)));
        let change = DesiredChange {
            configs: BTreeMap::from([item]),
            ..DesiredChange::default()
        };
        match self.workloads.check(change, UpdateSource::Update) {
            Ok(checked) => _ = self.commit(checked, ChangedPaths::default(), now, effects),
            Err(error) => log::error!("The mode cannot be written: {error}"),
        }
    }
}
