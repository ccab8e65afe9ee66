//! Modes of the vehicle: a config item names the current mode, the tag `modes` of a workload the
//! modes that it is in. A workload outside of the current mode is effective without an agent.
//!
//! Thread: `server`; a plain value, part of [`crate::updates::Workloads`]; there is none unless
//! the settings name the config item. A switch looks at each workload with the tag.

use super::desired_change::DesiredChange;
use super::plan::EffectiveDiff;
use crate::settings::ModeSettings;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::EXCERPT_MAX;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::modes::{
    ESSENTIAL, ESSENTIAL_TAG, MODES_TAG, NO_MODE_ITEM, NOT_ESSENTIAL, NOT_IN_MODE, is_essential,
    is_in_mode, mode_names, wrong_mode,
};
use ankaios_model::names::{InstanceName, Name, excerpt, is_name};
use ankaios_model::node::{Entries, Node};
use ankaios_model::reason::Reason;
use ankaios_model::validation::NAME_RULE;
use ankaios_model::workload::{ConfigItem, RestartPolicy, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most modes that a workload may name. The server keeps each name. A vehicle has a handful.
const MODES_OF_WORKLOAD: usize = 64;

/// Workloads with their own agents.
type Placed = BTreeMap<Name, AddedWorkload>;

/// The modes of a server.
#[derive(Debug, Default)]
pub(crate) struct Modes {
    settings: ModeSettings,
    /// The text of the config item; none without one.
    current: Option<String>,
    /// The info of workloads outside of the current mode, shared by their states.
    info: Arc<str>,
    /// Essential instances whose final failure was handled.
    failed: BTreeSet<InstanceName>,
    /// The reason why the server switched by itself, until a client writes the config item.
    pub(crate) cause: Option<String>,
    /// Switches since the start of the server.
    pub(crate) switches: SwitchCounts,
}

/// Why the modes of a workload, or the config item, are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ModeError {
    /// The config item with the current mode does not exist.
    #[error("Workload '{workload}{}{item}' does not exist", NO_MODE_ITEM)]
    NoItem { workload: Name, item: String },
    #[error("{0}")]
    Wrong(String),
}

/// Numbers of switches of the mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SwitchCounts {
    /// By clients.
    pub(crate) client: u64,
    /// By the server, because an essential workload had failed.
    pub(crate) failure: u64,
}

fn text(item: Option<&ConfigItem>) -> Option<&str> {
    if let Some(ConfigItem::Text(text)) = item {
        Some(text)
    } else {
        None
    }
}

impl Modes {
    /// No workloads and no mode.
    pub(crate) fn new(settings: ModeSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Key of the config item with the current mode.
    pub(crate) fn item(&self) -> &str {
        &self.settings.config_item
    }

    /// The current mode.
    pub(crate) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// The mode that a failed essential workload leads to.
    pub(crate) fn on_failure(&self) -> Option<&str> {
        self.settings.on_failure.as_deref()
    }

    /// The names of all modes: of the workloads, the current one and the one for failures.
    fn known<'m>(&'m self, workloads: &'m Placed) -> BTreeSet<&'m str> {
        let mut known = BTreeSet::new();
        for (_, modes) in tagged(workloads) {
            known.extend(mode_names(modes));
        }
        known.extend(self.current());
        known.extend(self.on_failure());
        known
    }

    /// The modes as clients read them, with those of these workloads.
    pub(crate) fn node(&self, workloads: &Placed) -> Node {
        let known = self.known(workloads).into_iter().map(Node::text).collect();
        let mut fields = Entries::default();
        fields.insert("configItem", Node::text(self.item()));
        fields.insert("known", Node::List(known));
        if let Some(current) = self.current() {
            fields.insert("current", Node::text(current));
        }
        if let Some(on_failure) = self.on_failure() {
            fields.insert("onFailure", Node::text(on_failure));
        }
        if let Some(cause) = self.cause.as_deref() {
            fields.insert("cause", Node::text(cause));
        }
        Node::Map(fields)
    }

    /// Returns whether an update with these masks writes the config item, be it with the same text.
    pub(crate) fn is_written_by(&self, masks: &[String]) -> bool {
        masks.is_empty() || masks.iter().any(|mask| self.is_item_below(mask))
    }

    /// Returns whether the config item is below this mask.
    fn is_item_below(&self, mask: &str) -> bool {
        match mask.strip_prefix("desiredState") {
            Some("" | ".configs") => true,
            Some(below) => below.strip_prefix(".configs.") == Some(self.item()),
            None => false,
        }
    }

    // ------------------------------------------------------------------ checks

    /// Checks the config item.
    pub(crate) fn check_item(&self, item: Option<&ConfigItem>) -> Result<(), ModeError> {
        if item.is_none() {
            return Ok(());
        }
        if let Some(mode) = text(item)
            && is_name(mode)
        {
            return Ok(());
        }
        Err(ModeError::Wrong(format!(
            "Config item '{}' must be the name of a mode. {NAME_RULE}",
            self.item()
        )))
    }

    /// Checks the tags of a workload for modes. `has_item` is whether there will be a current mode.
    // [impl->swdd~server-modes-are-checked~1]
    pub(crate) fn check(
        &self,
        name: &Name,
        workload: &Workload,
        has_item: bool,
    ) -> Result<(), ModeError> {
        if let Some(modes) = workload.tags.get(MODES_TAG) {
            if mode_names(modes).next().is_none() {
                return Err(ModeError::Wrong(format!(
                    "Tag 'modes' of workload '{name}' names no mode; leave it out for every mode"
                )));
            }
            if let Some(mode) = wrong_mode(modes) {
                let mode = excerpt(mode);
                return Err(ModeError::Wrong(format!(
                    "Unsupported mode '{mode}' in tag 'modes' of workload '{name}'; blanks separate modes. {NAME_RULE}"
                )));
            }
            if mode_names(modes).nth(MODES_OF_WORKLOAD).is_some() {
                return Err(ModeError::Wrong(format!(
                    "Tag 'modes' of workload '{name}' names more than {MODES_OF_WORKLOAD} modes; leave it out for every \
                     mode"
                )));
            }
            if !has_item {
                return Err(self.no_item(name));
            }
        }
        // A switch must not change a workload.
        if workload.configs.values().any(|key| key == self.item()) {
            let item = self.item();
            return Err(ModeError::Wrong(format!(
                "Workload '{name}' refers to config item '{item}'; no template may depend on the mode"
            )));
        }
        // The tag 'essential' has a meaning only with a mode for failures.
        if self.on_failure().is_some()
            && let Some(value) = workload.tags.get(ESSENTIAL_TAG)
            && ![ESSENTIAL, NOT_ESSENTIAL].contains(&value.as_str())
        {
            return Err(ModeError::Wrong(format!(
                "Tag 'essential' of workload '{name}' must be 'true' or 'false'"
            )));
        }
        Ok(())
    }

    /// Checks that `change` may delete the config item: hooks may have given the tag to a workload
    /// that it leaves unchanged.
    pub(crate) fn check_hooked(
        &self,
        workloads: &Placed,
        change: &DesiredChange,
    ) -> Result<(), ModeError> {
        for (name, _) in tagged(workloads) {
            if !change.workloads.contains_key(name) {
                return Err(self.no_item(name));
            }
        }
        Ok(())
    }

    fn no_item(&self, name: &Name) -> ModeError {
        ModeError::NoItem {
            workload: name.clone(),
            item: self.item().to_owned(),
        }
    }

    // --------------------------------------------------------------- switching

    /// Takes over the present config item. Returns those of `workloads` that may have entered or
    /// left the current mode.
    // [impl->swdd~server-modes-switch~1]
    pub(crate) fn switch(&mut self, item: Option<&ConfigItem>, workloads: &Placed) -> Vec<Name> {
        let mode = text(item);
        if mode == self.current() {
            return Vec::new();
        }
        let old = std::mem::replace(&mut self.current, mode.map(str::to_owned));
        self.info = match mode {
            Some(mode) => format!("{NOT_IN_MODE}{mode}'").into(),
            None => Arc::default(),
        };
        self.log_switch(old.as_deref(), workloads);
        let is_switch = old.is_some();
        if is_switch && self.cause.is_some() {
            self.switches.failure += 1;
        } else if is_switch {
            self.switches.client += 1;
        }
        tagged(workloads).map(|(name, _)| name.clone()).collect()
    }

    /// Logs a switch of the mode. Warns if no workload names the new mode.
    fn log_switch(&self, old: Option<&str>, workloads: &Placed) {
        let Some(mode) = self.current() else { return };
        match old {
            Some(old) => log::info!("Switched from mode '{old}' to '{mode}'."),
            None => log::info!("The mode is '{mode}'."),
        }
        for (_, modes) in tagged(workloads) {
            if mode_names(modes).any(|name| name == mode) {
                return;
            }
        }
        log::warn!(
            "No workload names mode '{mode}' in its tag 'modes'; only workloads without this tag run."
        );
    }

    /// Returns whether a workload is in the current mode.
    pub(crate) fn is_inside(&self, workload: &Workload) -> bool {
        match self.current() {
            Some(mode) => is_in_mode(&workload.tags, mode),
            None => true,
        }
    }

    /// The state of a workload outside of the current mode.
    pub(crate) fn outside(&self) -> ExecutionState {
        ExecutionState::with_info(Phase::NotScheduled, self.info.clone()).because(Reason::NotInMode)
    }

    // --------------------------------------------------------------- failures

    /// Returns whether the final failure of an essential instance was handled.
    pub(crate) fn has_failed(&self, instance: &InstanceName) -> bool {
        self.failed.contains(instance)
    }

    /// Forgets the failures of instances that end. One that continues in another revision is kept.
    pub(crate) fn forget_failures(&mut self, EffectiveDiff { added, deleted }: &EffectiveDiff) {
        self.failed.retain(|failed| {
            let continues = added.iter().any(|added| added.instance == *failed);
            continues || !deleted.contains(failed)
        });
    }

    /// Takes the final failures of essential instances in these reports. Returns the new ones, if
    /// failures lead to a mode.
    pub(crate) fn take_failures(
        &mut self,
        states: &[WorkloadState],
        effective: &BTreeMap<Name, AddedWorkload>,
    ) -> Vec<WorkloadState> {
        if self.settings.on_failure.is_none() || self.current.is_none() {
            return Vec::new();
        }
        let mut failures = Vec::new();
        for report in states {
            let WorkloadState { instance, state } = report;
            let workload = match effective.get(&instance.workload) {
                Some(added)
                    if added.instance == *instance && is_essential(&added.workload.tags) =>
                {
                    &added.workload
                }
                // It is not wanted any more, or not essential.
                _ => {
                    self.failed.remove(instance);
                    continue;
                }
            };
            if is_final_failure(state, workload.restart_policy) {
                let is_new = self.failed.insert(instance.clone());
                if is_new {
                    failures.push(report.clone());
                }
            } else if state.phase != Phase::AgentDisconnected {
                self.failed.remove(instance); // It has recovered.
            }
        }
        failures
    }
}

/// The workloads that are not in every mode, with the texts of their tags.
fn tagged(workloads: &Placed) -> impl Iterator<Item = (&Name, &String)> {
    workloads
        .iter()
        .filter_map(|(name, added)| Some((name, added.workload.tags.get(MODES_TAG)?)))
}

/// Returns whether a workload in this state has failed and its agent will not restart it, or has
/// tried to in vain for long.
fn is_final_failure(state: &ExecutionState, policy: RestartPolicy) -> bool {
    match state.phase {
        Phase::FailedExecFailed => {
            policy == RestartPolicy::Never || state.reason == Reason::NoMoreRestarts
        }
        Phase::FailedLost | Phase::PendingStartingFailed => true,
        _ => false,
    }
}

/// The log line, and the shown cause, of a switch by the server because of a failure.
pub(crate) fn failure_text(WorkloadState { instance, state }: &WorkloadState) -> String {
    let mut state = state.clone();
    state.cut_info(EXCERPT_MAX);
    format!(
        "Essential workload '{}' failed: '{state}'",
        instance.workload
    )
}
