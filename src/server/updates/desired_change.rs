//! The desired change of an update: its masks are applied to the parts of the state that they
//! reach, and the result is read strictly.
//!
//! Thread: `server`; plain functions. Nothing is changed here, so a refused update leaves no trace.

use super::modes::ModeError;
use crate::state_view::StateView;

use ankaios_model::complete_state::{
    DesiredState, Rendering, agent_node, config_node, desired_state_from_node, workload_node,
};
use ankaios_model::cycles::cycle_text;
use ankaios_model::field_path;
use ankaios_model::fields::table::COMPLETE_STATE;
use ankaios_model::fields::{Kind, omit_empty};
use ankaios_model::messages::{NO_STATE, UpdateState};
use ankaios_model::names::Name;
use ankaios_model::node::{Entries, Node, StateError};
use ankaios_model::refusal::{ErrorResponse, Refusal};
use ankaios_model::version::API_VERSION;
use ankaios_model::workload::{ConfigItem, Workload};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tags by key.
pub(crate) type Tags = BTreeMap<String, String>;

/// A change of the desired state. Its size is that of the changed parts, not of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DesiredChange {
    /// The version of the state, if the update has one; it may be the same.
    pub(crate) api_version: Option<String>,
    /// New and changed workloads, `None` for deleted ones. Unchanged ones are in it only to be
    /// tried again, see [`Updates::failed_at_start`](super::Updates::failed_at_start).
    pub(crate) workloads: BTreeMap<Name, Option<Arc<Workload>>>,
    /// New and changed configs, `None` for deleted ones.
    pub(crate) configs: BTreeMap<String, Option<ConfigItem>>,
    /// New tags of agents; only those of connected agents are changed.
    pub(crate) agent_tags: BTreeMap<Name, Tags>,
    /// Guarded updates that may be made once more although they were rolled back.
    pub(crate) forgotten_updates: BTreeSet<u64>,
}

impl DesiredChange {
    /// The change that leads from `old` to `new`.
    pub(crate) fn between(old: &DesiredState, new: DesiredState) -> Self {
        Self {
            api_version: Some(new.api_version),
            workloads: differences(&old.workloads, new.workloads),
            configs: differences(&old.configs, new.configs),
            ..Self::default()
        }
    }

    /// Returns whether the change leaves the desired state unchanged.
    pub(crate) fn keeps(&self, desired: &DesiredState) -> bool {
        if let Some(version) = &self.api_version
            && *version != desired.api_version
        {
            return false;
        }
        self.workloads.is_empty() && self.configs.is_empty()
    }

    /// A workload of `desired` after the change.
    pub(crate) fn workload<'a>(
        &'a self,
        desired: &'a DesiredState,
        name: &str,
    ) -> Option<&'a Arc<Workload>> {
        match self.workloads.get(name) {
            Some(changed) => changed.as_ref(),
            None => desired.workloads.get(name),
        }
    }

    /// A config of `desired` after the change.
    pub(crate) fn config<'a>(
        &'a self,
        desired: &'a DesiredState,
        key: &str,
    ) -> Option<&'a ConfigItem> {
        match self.configs.get(key) {
            Some(changed) => changed.as_ref(),
            None => desired.configs.get(key),
        }
    }

    /// Applies the change. Returns the change that leads back.
    pub(crate) fn apply(self, desired: &mut DesiredState) -> Self {
        let mut back = Self {
            workloads: exchange(&mut desired.workloads, self.workloads),
            configs: exchange(&mut desired.configs, self.configs),
            ..Self::default()
        };
        if let Some(version) = self.api_version {
            let before = std::mem::replace(&mut desired.api_version, version);
            back.api_version = Some(before);
        }
        back
    }
}

/// The entries that are new or changed in `new`, and `None` for those that only `old` has.
fn differences<K: Ord + Clone, V: PartialEq>(
    old: &BTreeMap<K, V>,
    new: BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let mut changed = BTreeMap::new();
    for key in old.keys() {
        if !new.contains_key(key) {
            changed.insert(key.clone(), None);
        }
    }
    for (key, value) in new {
        if old.get(&key) != Some(&value) {
            changed.insert(key, Some(value));
        }
    }
    changed
}

/// Applies `change` to `map`. Returns the change that leads back.
fn exchange<K: Ord + Clone, V>(
    map: &mut BTreeMap<K, V>,
    change: BTreeMap<K, Option<V>>,
) -> BTreeMap<K, Option<V>> {
    let mut back = BTreeMap::new();
    for (key, value) in change {
        let before = match value {
            Some(value) => map.insert(key.clone(), value),
            None => map.remove(&key),
        };
        back.insert(key, before);
    }
    back
}

/// The reason why an update is refused. Its text is for a refused startup manifest, see
/// [`UpdateError::response`] for requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The request has no new state; reported without a frame.
    #[error("{}", NO_STATE)]
    NoState,
    /// The new state has another version or wrong config keys; reported without a frame.
    #[error("{0}")]
    Rule(String),
    /// A refusal that has a reason for programs beside the text.
    #[error("{text}")]
    Known { text: String, refusal: Refusal },
    /// A mutating hook refuses the update.
    #[error("Mutating hook '{hook}' vetoed the state change: '{reason}'")]
    Veto {
        hook: String,
        /// The standard error of the hook.
        reason: String,
    },
    #[error("{0}")]
    Other(String),
}

impl UpdateError {
    /// The error of an update that leads to an invalid state.
    pub(crate) fn invalid(reason: impl std::fmt::Display) -> Self {
        Self::Other(format!("Resulting State is invalid, reason: '{reason}'"))
    }

    /// As [`Self::invalid`], of an error about modes. `prefix` comes before its text.
    pub(crate) fn invalid_modes(prefix: &str, error: &ModeError) -> Self {
        let invalid = Self::invalid(format_args!("{prefix}{error}"));
        match error {
            ModeError::NoItem { .. } => Self::Known {
                text: invalid.to_string(),
                refusal: Refusal::NoModeItem,
            },
            ModeError::Wrong(_) => invalid,
        }
    }

    /// The error of workloads that wait for each other, each for the next one and the last one for
    /// the first one.
    pub(crate) fn cycle(cycle: &[Name]) -> Self {
        Self::Other(cycle_text(cycle))
    }

    /// The text of the error response.
    pub(crate) fn response_text(&self) -> String {
        match self {
            Self::NoState | Self::Rule(_) => self.to_string(),
            Self::Veto { hook, reason } => {
                format!("Update rejected by mutating hook '{hook}': '{reason}'")
            }
            Self::Known { .. } | Self::Other(_) => format!("Update rejected: '{self}'"),
        }
    }

    /// The error response.
    pub(crate) fn response(&self) -> ErrorResponse {
        let refusal = match self {
            Self::NoState => Refusal::NoState,
            Self::Known { refusal, .. } => *refusal,
            Self::Rule(_) | Self::Veto { .. } | Self::Other(_) => Refusal::None,
        };
        ErrorResponse {
            text: self.response_text(),
            refusal,
        }
    }
}

fn unparsable(reason: impl std::fmt::Display) -> UpdateError {
    UpdateError::invalid(format_args!(
        "Could not parse into CompleteState: '{reason}'"
    ))
}

/// The change of the current state by `update`. With `may_forget`, its masks may name guarded
/// updates that were rolled back, so that these can be made once more.
///
/// # Errors
/// [`UpdateError`] when the new state cannot be read, a mask cannot be followed or the result lacks
/// a field.
pub(crate) fn requested_change(
    current: StateView<'_>,
    update: UpdateState,
    may_forget: bool,
) -> Result<DesiredChange, UpdateError> {
    let Some(new) = update.new_state else {
        if update.restart.is_empty() {
            return Err(UpdateError::NoState);
        }
        return Ok(DesiredChange::default());
    };
    let has_masks = !update.masks.is_empty();
    let mut new = match new {
        Ok(new) => new,
        Err(reason) if has_masks => {
            let text = format!("Failed to parse new state, '{reason}'");
            return Err(UpdateError::Other(text));
        }
        Err(reason) => return Err(unparsable(reason)),
    };
    if !has_masks {
        return whole_state(current.desired, &new);
    }
    // An empty container means the same as none.
    omit_empty(&mut new, Kind::Object(&COMPLETE_STATE));
    patched(current, new, &update.masks, may_forget)
}

// ------------------------------------------------------------ without masks

/// Reads the desired state and the tags of agents; everything else in the new state is ignored.
fn whole_state(current: &DesiredState, new: &Node) -> Result<DesiredChange, UpdateError> {
    let Some(desired) = new.get("desiredState") else {
        return Err(missing(&[], "desired_state"));
    };
    if desired.get("workloads").is_none() {
        return Err(missing(&["desired_state"], "workloads"));
    }
    let desired = match desired_state_from_node(desired) {
        Ok(desired) => desired,
        Err(error) => return Err(unparsable(strict_text(&error))),
    };
    let mut agent_tags = BTreeMap::new();
    for (name, agent) in new.entries("agents") {
        if agent.get("tags").is_none() {
            return Err(missing(&["agents", name], "tags"));
        }
        agent_tags.insert(Name::from(name), tags(agent));
    }
    Ok(DesiredChange {
        agent_tags,
        ..DesiredChange::between(current, desired)
    })
}

/// The error `Missing field '<field>'`, framed for each part of its path.
fn missing(path: &[&str], field: &str) -> UpdateError {
    unparsable(framed(path, format!("Missing field '{field}'")))
}

fn framed(path: &[impl AsRef<str>], reason: String) -> String {
    let mut text = reason;
    for part in path.iter().rev() {
        let part = part.as_ref();
        text = format!("Cannot convert field '{part}' to spec object: '{text}'.");
    }
    text
}

/// The text of an error in a state that came as a whole. It has the names of fields in the
/// protocol, which differ from those in manifests.
fn strict_text(error: &StateError) -> String {
    match error {
        StateError::Missing { path, field } => framed(
            &protocol_path(path),
            format!("Missing field '{}'", snake_case(field)),
        ),
        StateError::Invalid { path, expected } => framed(
            &protocol_path(path),
            format!("invalid value, expected {expected}"),
        ),
    }
}

/// The parts of a path, with the names that fields have in the protocol.
fn protocol_path(path: &str) -> Vec<String> {
    /// Place of the name of a workload or a config item in a path, which stays unchanged.
    const NAME_INDEX: usize = 2;
    let mut parts = Vec::new();
    for (index, part) in path.split('.').enumerate() {
        if index == NAME_INDEX {
            parts.push(part.to_owned());
        } else {
            parts.push(snake_case(part));
        }
    }
    parts
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn tags(agent: &Node) -> Tags {
    let mut tags = Tags::new();
    for (key, value) in agent.entries("tags") {
        if let Some(text) = value.as_text() {
            tags.insert(key.to_owned(), text.to_owned());
        }
    }
    tags
}

// --------------------------------------------------------------- with masks

/// The part of the state with guarded updates. It is read-only, except that masks without a value
/// make the server forget that updates were rolled back.
const UPDATES: &str = "updates";

/// The guarded updates that masks name and the new state does not have.
fn forgotten_updates(new: &Node, masks: &[String]) -> BTreeSet<u64> {
    let mut forgotten = BTreeSet::new();
    for mask in masks {
        let Some((UPDATES, number)) = mask.split_once('.') else {
            continue;
        };
        if new.at(&[UPDATES, number]).is_none()
            && let Ok(number) = number.parse()
        {
            forgotten.insert(number);
        }
    }
    forgotten
}

/// The entries that the masks of an update can reach.
#[derive(Default)]
struct Reach {
    workloads: EntriesInReach,
    configs: EntriesInReach,
    agents: EntriesInReach,
}

impl Reach {
    fn of(masks: &[String]) -> Self {
        let mut reach = Self::default();
        for mask in masks {
            let mut parts = mask.split('.');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("desiredState"), None, _) => {
                    reach.workloads.all = true;
                    reach.configs.all = true;
                }
                (Some("desiredState"), Some("workloads"), name) => reach.workloads.add(name),
                (Some("desiredState"), Some("configs"), key) => reach.configs.add(key),
                (Some("agents"), name, _) => reach.agents.add(name),
                _ => {}
            }
        }
        reach
    }

    /// The current state as a tree with the entries in reach. Read-only parts are there but empty:
    /// masks may name them without an effect.
    fn tree(&self, current: StateView<'_>, may_forget: bool) -> Node {
        let desired = current.desired;
        let workloads = self.workloads.tree(&desired.workloads, |workload| {
            workload_node(workload, Rendering::Full)
        });
        let configs = self.configs.tree(&desired.configs, config_node);
        let agents = self.agents.tree(current.agents, |agent| {
            agent_node(&agent.attributes, Rendering::Full)
        });
        let desired = Node::object([
            ("apiVersion", Node::text(&*desired.api_version)),
            ("workloads", workloads),
            ("configs", configs),
        ]);
        let effective = Node::object([
            ("apiVersion", Node::text(API_VERSION)),
            ("workloads", Node::empty()),
            ("configs", Node::empty()),
        ]);
        let mut tree = Entries::default();
        tree.insert("desiredState", desired);
        tree.insert("agents", agents);
        tree.insert("effectiveState", effective);
        tree.insert("workloadStates", Node::empty());
        if may_forget {
            tree.insert(UPDATES, Node::empty());
        }
        Node::Map(tree)
    }
}

/// The entries of one kind that masks can reach: those with these names, or all.
#[derive(Default)]
struct EntriesInReach {
    names: BTreeSet<String>,
    /// Whether a mask replaces the map of all entries.
    all: bool,
}

impl EntriesInReach {
    /// Adds the entry `name`, or all without a name.
    fn add(&mut self, name: Option<&str>) {
        match name {
            Some(name) => _ = self.names.insert(name.to_owned()),
            None => self.all = true,
        }
    }

    /// The current entries that masks name, as a tree with all containers. A mask of all entries
    /// replaces them, so that the current ones do not matter.
    fn tree<K: Borrow<str> + Ord, V>(
        &self,
        map: &BTreeMap<K, V>,
        node: impl Fn(&V) -> Node,
    ) -> Node {
        let mut tree = Entries::default();
        for name in &self.names {
            if let Some(value) = map.get(name.as_str()) {
                tree.insert(name.clone(), node(value));
            }
        }
        Node::Map(tree)
    }

    /// The new, changed and deleted entries of `new`, which has only the entries in reach. Entries
    /// out of reach are unchanged.
    fn differences_in_reach<K, V: PartialEq>(
        &self,
        old: &BTreeMap<K, V>,
        mut new: BTreeMap<K, V>,
    ) -> BTreeMap<K, Option<V>>
    where
        K: Ord + Clone + for<'n> From<&'n str>,
    {
        if self.all {
            return differences(old, new);
        }
        let mut changed = BTreeMap::new();
        for name in &self.names {
            let key = K::from(name);
            let value = new.remove(&key);
            if old.get(&key) != value.as_ref() {
                changed.insert(key, value);
            }
        }
        changed
    }
}

/// Applies the masks to the part of the current state that they can reach. `may_forget`, see
/// [`requested_change`].
fn patched(
    current: StateView<'_>,
    new: Node,
    masks: &[String],
    may_forget: bool,
) -> Result<DesiredChange, UpdateError> {
    // First, the tree of that part with the new values.
    let reach = Reach::of(masks);
    let mut tree = reach.tree(current, may_forget);
    if let Err(error) = field_path::apply(&mut tree, &new, masks.iter().map(String::as_str)) {
        return Err(UpdateError::Other(error.to_string()));
    }
    let forgotten_updates = forgotten_updates(&new, masks);
    drop(new); // It may be large, and must not be kept beside the result.
    // Then, the result compared with the current state.
    let changed = match tree.get("desiredState") {
        Some(tree) => desired_state_from_node(tree).map_err(unparsable)?,
        None => DesiredState::default(),
    };
    let mut agent_tags = BTreeMap::new();
    for (name, agent) in tree.entries("agents") {
        agent_tags.insert(name.into(), tags(agent));
    }
    let desired = current.desired;
    let workloads = &reach.workloads;
    let configs = &reach.configs;
    Ok(DesiredChange {
        api_version: Some(changed.api_version),
        workloads: workloads.differences_in_reach(&desired.workloads, changed.workloads),
        configs: configs.differences_in_reach(&desired.configs, changed.configs),
        agent_tags,
        forgotten_updates,
    })
}
