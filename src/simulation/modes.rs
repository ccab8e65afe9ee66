//! Clusters with modes: their changes, the hook that assigns agents there, and the expected active
//! state.
//!
//! Thread: the one of the test. Computed here once more: the server is compared with it.

use ankaios_model::complete_state::DesiredState;
use ankaios_model::messages::{AddedWorkload, UpdateState, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::{ConfigItem, Workload};
use ankaios_server::ServerLoop;
use ankaios_server::mutating_hooks::{HookOutcome, MutatingHooks};
use ankaios_server::settings::ModeSettings;
use std::sync::Arc;

/// The config item with the mode.
pub(crate) const ITEM: &str = "mode";
/// Its mask.
pub(crate) const ITEM_MASK: &str = "desiredState.configs.mode";
/// The modes that clients switch to; nothing names the last one.
pub(crate) const MODES: [&str; 4] = ["drive", "park", LIMP, "off"];
/// What failures lead to.
pub(crate) const LIMP: &str = "limp";
/// The agent that the hook gives to workloads without one.
const ASSIGNED: &str = "A";

/// A server as the cluster starts it.
pub(crate) fn new_server(has_modes: bool) -> ServerLoop {
    let mut server = ServerLoop::new();
    if has_modes {
        server.set_modes(ModeSettings {
            config_item: ITEM.to_owned(),
            on_failure: Some(LIMP.to_owned()),
        });
        server.set_hooks(MutatingHooks::answering(assign));
    }
    server
}

/// The hook: a workload without an agent gets one.
fn assign(mut plan: WorkloadPlan) -> HookOutcome {
    for added in &mut plan.added {
        if added.instance.agent.is_empty() {
            added.instance.agent = ASSIGNED.into();
            Arc::make_mut(&mut added.workload).agent = ASSIGNED.into();
        }
    }
    Ok(Some(plan))
}

/// The current mode.
pub(crate) fn mode(desired: &DesiredState) -> Option<&str> {
    match desired.configs.get(ITEM) {
        Some(ConfigItem::Text(mode)) => Some(mode),
        _ => None,
    }
}

/// Returns whether a workload runs in the current mode.
fn is_in_mode(desired: &DesiredState, workload: &Workload) -> bool {
    let Some(modes) = workload.tags.get("modes") else {
        return true;
    };
    let Some(current) = mode(desired) else {
        return false;
    };
    modes.split(' ').any(|mode| mode == current)
}

/// The expected effective workload of a desired one.
pub(crate) fn expected(
    desired: &DesiredState,
    name: &Name,
    workload: &Arc<Workload>,
    has_modes: bool,
) -> AddedWorkload {
    let mut instance = own_instance(name, workload, has_modes);
    if has_modes && !is_in_mode(desired, workload) {
        instance.agent = "".into();
    }
    let mut workload = workload.clone();
    if workload.agent != instance.agent {
        Arc::make_mut(&mut workload).agent = instance.agent.clone();
    }
    AddedWorkload { instance, workload }
}

/// The instance of a desired workload on its own agent, in the mode or not.
pub(crate) fn own_instance(name: &Name, workload: &Workload, has_modes: bool) -> InstanceName {
    let mut instance = workload.instance_name(name);
    if has_modes && instance.agent.is_empty() {
        instance.agent = ASSIGNED.into();
    }
    instance
}

/// Returns whether a state may be desired: without the config item no workload must name a mode.
pub(crate) fn is_allowed(desired: &DesiredState) -> bool {
    if mode(desired).is_some() {
        return true;
    }
    let mut workloads = desired.workloads.values();
    workloads.all(|workload| !workload.tags.contains_key("modes"))
}

/// Returns whether a client writes the mode.
pub(crate) fn writes_mode(update: &UpdateState) -> bool {
    update.masks.is_empty() || update.masks.iter().any(|mask| mask == ITEM_MASK)
}

/// Changes the modes of a workload, and whether it is essential.
pub(crate) fn retag(workload: &mut Workload, random: &mut fastrand::Rng) {
    let tags = &mut workload.tags;
    tags.remove("modes");
    let mut modes = Vec::new();
    for mode in &MODES[..3] {
        if random.bool() {
            modes.push(*mode);
        }
    }
    if !modes.is_empty() {
        tags.insert("modes".to_owned(), modes.join(" "));
    }
    match random.u8(0..3) {
        0 => _ = tags.insert("essential".to_owned(), "true".to_owned()),
        1 => _ = tags.insert("essential".to_owned(), "false".to_owned()),
        _ => _ = tags.remove("essential"),
    }
}

/// Counts the switches of the server itself.
#[derive(Debug, Default)]
pub(crate) struct OwnSwitches {
    since_client: usize,
}

impl OwnSwitches {
    /// A client has written the mode.
    pub(crate) fn client_wrote(&mut self) {
        self.since_client = 0;
    }

    /// Notes the mode before and after an event that no client requested. Returns the violation.
    pub(crate) fn note(&mut self, was: Option<&str>, is: Option<&str>) -> Option<String> {
        if was == is {
            return None;
        }
        self.since_client += 1;
        let times = self.since_client;
        if is == Some(LIMP) && times == 1 {
            return None;
        }
        Some(format!(
            "the server switched from {was:?} to {is:?}, {times} times in a row"
        ))
    }
}
