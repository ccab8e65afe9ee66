//! Modes of the vehicle: a config item names the current mode, the tag `modes` of a workload the
//! modes that it is in. A workload outside of the current mode is effective without an agent.
//!
//! Thread: `server`; a plain value, part of [`crate::updates::Workloads`]; there is none unless
//! the settings name the config item. A switch looks at each workload with the tag.

use super::plan::EffectiveDiff;
use crate::settings::ModeSettings;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::EXCERPT_MAX;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::modes::{
    ESSENTIAL, ESSENTIAL_TAG, MODES_TAG, NO_MODE_ITEM, NOT_ESSENTIAL, NOT_IN_MODE, is_essential,
    is_in_mode, mode_names, wrong_mode,
};
use ankaios_model::names::{InstanceName, Name, excerpt, is_name};
use ankaios_model::node::Node;
use ankaios_model::reason::Reason;
use ankaios_model::validation::NAME_RULE;
use ankaios_model::workload::{ConfigItem, RestartPolicy, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Modes that one workload may name. The server keeps each name; a vehicle has a handful.
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
    /// Essential instances whose final failure was seen.
    failed: BTreeSet<InstanceName>,
    /// Why the server switched by itself, until a client writes the config item.
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

/// How often the mode was switched.
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

    /// The modes of all workloads, the current one and the one for failures.
    fn known<'m>(&'m self, workloads: &'m Placed) -> BTreeSet<&'m str> {
        let named = tagged(workloads).flat_map(|(_, modes)| mode_names(modes));
        named
            .chain(self.current())
            .chain(self.on_failure())
            .collect_entries()
    }

    /// What clients read of them and the modes of these workloads.
    pub(crate) fn node(&self, workloads: &Placed) -> Node {
        let text = |key, text: Option<&str>| Some((key, Node::text(text?)));
        let known = Node::List(self.known(workloads).into_iter().map(Node::text).collect());
        let entries = [
            text("configItem", Some(self.item())),
            text("current", self.current()),
            Some(("known", known)),
            text("onFailure", self.on_failure()),
            text("cause", self.cause.as_deref()),
        ];
        Node::map(entries.into_iter().flatten())
    }

    /// Whether an update with these masks writes the config item, with the same text or another.
    pub(crate) fn is_written_by(&self, masks: &[String]) -> bool {
        let writes = |mask: &String| match mask.strip_prefix("desiredState") {
            Some("" | ".configs") => true,
            Some(below) => below.strip_prefix(".configs.") == Some(self.item()),
            None => false,
        };
        masks.is_empty() || masks.iter().any(writes)
    }

    // ------------------------------------------------------------------ checks

    /// Checks the config item.
    pub(crate) fn check_item(&self, item: Option<&ConfigItem>) -> Result<(), ModeError> {
        match item {
            Some(item) if !text(Some(item)).is_some_and(is_name) => Err(ModeError::Wrong(format!(
                "Config item '{}' must be the name of a mode. {NAME_RULE}",
                self.item()
            ))),
            _ => Ok(()),
        }
    }

    /// Checks what a workload says about modes. `has_item` is whether there will be a current mode.
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
        // So that a switch changes no workload.
        if workload.configs.values().any(|key| key == self.item()) {
            let item = self.item();
            return Err(ModeError::Wrong(format!(
                "Workload '{name}' refers to config item '{item}'; no template may depend on the mode"
            )));
        }
        let essential = self.on_failure().and(workload.tags.get(ESSENTIAL_TAG));
        match essential {
            Some(value) if ![ESSENTIAL, NOT_ESSENTIAL].contains(&value.as_str()) => {
                Err(ModeError::Wrong(format!(
                    "Tag 'essential' of workload '{name}' must be 'true' or 'false'"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the config item may go: hooks may have given the tag to one of
    /// `workloads` that `stays`.
    pub(crate) fn check_hooked(
        &self,
        workloads: &Placed,
        stays: impl Fn(&Name) -> bool,
    ) -> Result<(), ModeError> {
        tagged(workloads)
            .find(|(name, _)| stays(name))
            .map_or(Ok(()), |(name, _)| Err(self.no_item(name)))
    }

    fn no_item(&self, name: &Name) -> ModeError {
        ModeError::NoItem {
            workload: name.clone(),
            item: self.item().to_owned(),
        }
    }

    // --------------------------------------------------------------- switching

    /// Takes over the present config item. Returns those of `workloads` that may be inside or
    /// outside now.
    // [impl->swdd~server-modes-switch~1]
    pub(crate) fn switch(&mut self, item: Option<&ConfigItem>, workloads: &Placed) -> Vec<Name> {
        let mode = text(item);
        if mode == self.current() {
            return Vec::new();
        }
        let old = std::mem::replace(&mut self.current, mode.map(str::to_owned));
        self.info = mode
            .map_or_else(String::new, |mode| format!("{NOT_IN_MODE}{mode}'"))
            .into();
        self.log_switch(old.as_deref(), workloads);
        if old.is_some() {
            let SwitchCounts { client, failure } = &mut self.switches;
            *(if self.cause.is_some() {
                failure
            } else {
                client
            }) += 1;
        }
        tagged(workloads).map(|(name, _)| name.clone()).collect()
    }

    fn log_switch(&self, old: Option<&str>, workloads: &Placed) {
        let Some(mode) = self.current() else { return };
        match old {
            Some(old) => log::info!("Switched from mode '{old}' to '{mode}'."),
            None => log::info!("The mode is '{mode}'."),
        }
        if !tagged(workloads).any(|(_, modes)| mode_names(modes).any(|name| name == mode)) {
            log::warn!(
                "No workload names mode '{mode}' in its tag 'modes'; only workloads without this tag run."
            );
        }
    }

    /// Whether a workload is in the current mode.
    pub(crate) fn is_inside(&self, workload: &Workload) -> bool {
        self.current()
            .is_none_or(|mode| is_in_mode(&workload.tags, mode))
    }

    /// The state of a workload outside of the current mode.
    pub(crate) fn outside(&self) -> ExecutionState {
        ExecutionState::with_info(Phase::NotScheduled, self.info.clone()).because(Reason::NotInMode)
    }

    // --------------------------------------------------------------- failures

    /// Whether the final failure of an essential instance was seen.
    pub(crate) fn has_failed(&self, instance: &InstanceName) -> bool {
        self.failed.contains(instance)
    }

    /// The failures of instances that have ended mean nothing any more.
    pub(crate) fn forget_failures(&mut self, EffectiveDiff { added, deleted }: &EffectiveDiff) {
        self.failed.retain(|failed| {
            !deleted.contains(failed) || added.iter().any(|added| added.instance == *failed)
        });
    }

    /// Notes which effective instances have finally failed by these reports. Returns the essential
    /// ones that had not before, if failures lead to a mode.
    pub(crate) fn new_failures(
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
            let added = effective
                .get(&instance.workload)
                .filter(|added| added.instance == *instance);
            let Some(AddedWorkload { workload, .. }) =
                added.filter(|added| is_essential(&added.workload.tags))
            else {
                self.failed.remove(instance);
                continue;
            };
            if is_final_failure(state, workload.restart_policy) {
                if self.failed.insert(instance.clone()) {
                    failures.push(report.clone());
                }
            } else if state.phase != Phase::AgentDisconnected {
                self.failed.remove(instance);
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

/// Whether nothing will restart a workload in this state by itself, or nothing has succeeded in
/// that for long.
fn is_final_failure(state: &ExecutionState, policy: RestartPolicy) -> bool {
    match state.phase {
        Phase::FailedExecFailed => {
            policy == RestartPolicy::Never || state.reason == Reason::NoMoreRestarts
        }
        Phase::FailedLost | Phase::PendingStartingFailed => true,
        _ => false,
    }
}

/// What is logged, and shown as the cause, when the server switches because of a failure.
pub(crate) fn failure_text(WorkloadState { instance, state }: &WorkloadState) -> String {
    let mut state = state.clone();
    state.cut_info(EXCERPT_MAX);
    format!(
        "Essential workload '{}' failed: '{state}'",
        instance.workload
    )
}
