//! Essential workloads: when one of them has finally failed, the server writes the mode for
//! failures into the config item.
//!
//! Thread: `server`; part of [`ServerLoop`]. Only with modes, and with a mode for failures.
//! Switches of the server lead to that one mode and never from it, so there is at most one between
//! two switches of clients.

use super::ServerLoop;
use super::modes::failure_text;
use super::prepare::Occasion;
use super::requester::RequestKey;
use super::update::StateChange;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::ConfigItem;
use std::collections::BTreeMap;

/// Updates that waited for hooks when the server switched by itself. They came before and are
/// carried out after: what they write into the config item is older than the failure.
#[derive(Debug, Default)]
pub(crate) struct OlderUpdates {
    updates: Vec<RequestKey>,
    /// Why the server switched.
    cause: String,
}

impl ServerLoop {
    /// The essential instances among those that an agent reports that have finally failed.
    pub(super) fn new_failures(&mut self, states: &[WorkloadState]) -> Vec<WorkloadState> {
        let Some(modes) = &mut self.workloads.modes else {
            return Vec::new();
        };
        modes.new_failures(states, &self.workloads.effective)
    }

    /// Switches to the mode for failures unless that is the mode already. The failure of one that
    /// left meanwhile, because another one of the same report failed before it, means nothing.
    // [impl->swdd~server-modes-failure~1]
    pub(super) fn essential_failed(&mut self, failure: &WorkloadState) {
        if !self.workloads.is_wanted(&failure.instance)
            || self.guarded.would_undo(&failure.instance)
        {
            return; // The update that it may be the fault of is undone first.
        }
        let Some(modes) = &self.workloads.modes else {
            return;
        };
        let (Some(old), Some(new)) = (modes.current(), modes.on_failure().map(str::to_owned))
        else {
            return;
        };
        let text = failure_text(failure);
        if *old == new {
            return log::error!("{text}; the mode is '{new}' already.");
        }
        let cause = format!("{text}; switched from mode '{old}' to '{new}'.");
        log::error!("{cause}");
        let updates = self.waiting.updates().cloned().collect();
        self.older_updates = OlderUpdates {
            updates,
            cause: cause.clone(),
        };
        self.write_mode(new, cause);
    }

    /// The update of these workloads, whose failures led to nothing while they would undo it, could
    /// not be undone: what has finally failed of them counts now.
    pub(super) fn essential_failed_for_good(&mut self, names: &[Name]) {
        for name in names {
            let instance = self
                .workloads
                .effective
                .get(name)
                .map(|added| added.instance.clone());
            let noted = |instance: &InstanceName| {
                self.workloads
                    .modes
                    .as_ref()
                    .is_some_and(|modes| modes.has_failed(instance))
            };
            let Some(instance) = instance.filter(noted) else {
                continue;
            };
            if let Some(state) = self.workloads.states.get(&instance).cloned() {
                self.essential_failed(&WorkloadState::new(instance, state));
            }
        }
    }

    /// An update has its response. If it came before the server switched by itself and has written
    /// another mode, the mode for failures is written again.
    pub(super) fn older_update_done(&mut self, key: &RequestKey) {
        let OlderUpdates { updates, cause } = &mut self.older_updates;
        let Some(index) = updates.iter().position(|update| update == key) else {
            return;
        };
        updates.remove(index);
        let cause = cause.clone();
        let Some(modes) = &self.workloads.modes else {
            return;
        };
        let (Some(current), Some(target)) =
            (modes.current(), modes.on_failure().map(str::to_owned))
        else {
            return;
        };
        if *current != target {
            log::error!(
                "{cause} An earlier update, which waited for hooks, wrote '{current}'; switching to '{target}' again."
            );
            self.write_mode(target, cause);
        } else if let Some(modes) = &mut self.workloads.modes {
            modes.cause = Some(cause);
        }
    }

    /// Writes `mode` into the config item, as an update of a client would do.
    fn write_mode(&mut self, mode: String, cause: String) {
        let Some(modes) = &mut self.workloads.modes else {
            return;
        };
        modes.cause = Some(cause);
        let configs = BTreeMap::from([(modes.item().to_owned(), Some(ConfigItem::Text(mode)))]);
        let change = StateChange {
            configs,
            ..StateChange::default()
        };
        match self.workloads.prepare(change, Occasion::Update) {
            Ok(prepared) => drop(self.commit(prepared)),
            Err(error) => log::error!("The mode cannot be written: {error}"),
        }
    }
}
