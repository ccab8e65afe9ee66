//! The state that an update leads to: the mask algorithm on the parts it touches, and the strict
//! reading of the result.
//!
//! Thread: `server`; plain functions. Nothing is changed here, so a refused update leaves no trace.

use super::modes::ModeError;
use crate::state_view::StateView;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{
    DesiredState, Rendering, agent_node, config_node, desired_state_from_node, workload_node,
};
use ankaios_model::cycles::cycle_text;
use ankaios_model::field_path;
use ankaios_model::fields::table::COMPLETE_STATE;
use ankaios_model::fields::{Kind, omit_empty};
use ankaios_model::messages::{NO_STATE, UpdateState};
use ankaios_model::names::Name;
use ankaios_model::node::{Node, StateError};
use ankaios_model::refusal::{ErrorResponse, Refusal};
use ankaios_model::version::API_VERSION;
use ankaios_model::workload::{ConfigItem, Workload};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tags by key.
pub(crate) type Tags = BTreeMap<String, String>;

/// What an update changes; everything else costs nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DesiredChange {
    /// The version of the state, if that is named; it may be as it was.
    pub(crate) api_version: Option<String>,
    /// Workloads in their new revision, `None` for those that go; none is as it was, but for those
    /// that are tried again.
    pub(crate) workloads: BTreeMap<Name, Option<Arc<Workload>>>,
    /// Configs, likewise.
    pub(crate) configs: BTreeMap<String, Option<ConfigItem>>,
    /// New tags of agents; only those of connected agents are changed.
    pub(crate) agent_tags: BTreeMap<Name, Tags>,
    /// Guarded updates that may be made once more although they were undone.
    pub(crate) forgotten_updates: BTreeSet<u64>,
}

impl DesiredChange {
    /// What leads from `old` to `new`.
    pub(crate) fn between(old: &DesiredState, new: DesiredState) -> Self {
        Self {
            api_version: Some(new.api_version),
            workloads: differences(&old.workloads, new.workloads),
            configs: differences(&old.configs, new.configs),
            ..Self::default()
        }
    }

    /// Whether the desired state stays as it is.
    pub(crate) fn keeps(&self, desired: &DesiredState) -> bool {
        self.workloads.is_empty()
            && self.configs.is_empty()
            && self
                .api_version
                .as_ref()
                .is_none_or(|new| *new == desired.api_version)
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

    /// Makes the change. Returns the change that leads back.
    pub(crate) fn apply(self, desired: &mut DesiredState) -> Self {
        Self {
            api_version: self
                .api_version
                .map(|new| std::mem::replace(&mut desired.api_version, new)),
            workloads: exchange(&mut desired.workloads, self.workloads),
            configs: exchange(&mut desired.configs, self.configs),
            ..Self::default()
        }
    }
}

/// The entries of `new` that are not in `old` or different there, and
/// `None` for those that only `old` has.
fn differences<K: Ord + Clone, V: PartialEq>(
    old: &BTreeMap<K, V>,
    new: BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let gone = old
        .keys()
        .filter(|key| !new.contains_key(key))
        .map(|key| (key.clone(), None));
    let mut all: BTreeMap<K, Option<V>> = gone.collect_entries();
    all.extend(
        new.into_iter()
            .filter(|(key, value)| old.get(key) != Some(value))
            .map(|(key, value)| (key, Some(value))),
    );
    all
}

/// Makes `change` in `map`. Returns the change that leads back.
fn exchange<K: Ord + Clone, V>(
    map: &mut BTreeMap<K, V>,
    change: BTreeMap<K, Option<V>>,
) -> BTreeMap<K, Option<V>> {
    let one = |(key, value): (K, Option<V>)| {
        let old = match value {
            Some(value) => map.insert(key.clone(), value),
            None => map.remove(&key),
        };
        (key, old)
    };
    change.into_iter().map(one).collect_entries()
}

/// An update is refused; nothing was changed. The text is that of a refused startup manifest, see
/// [`UpdateError::answer`] for that of a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The request has no new state; reported without a frame.
    #[error("{}", NO_STATE)]
    NoState,
    /// The new state has another version or wrong config keys; reported without a frame.
    #[error("{0}")]
    Rule(String),
    /// Clients decide by the reason.
    #[error("{text}")]
    Known { text: String, refusal: Refusal },
    /// A mutating hook refuses the update.
    #[error("Mutating hook '{hook}' vetoed the state change: '{reason}'")]
    Veto {
        /// Which hook.
        hook: String,
        /// Its standard error.
        reason: String,
    },
    #[error("{0}")]
    Other(String),
}

impl UpdateError {
    /// The state that the update leads to is not valid.
    pub(crate) fn invalid(reason: impl std::fmt::Display) -> Self {
        Self::Other(format!("Resulting State is invalid, reason: '{reason}'"))
    }

    /// As [`Self::invalid`], of an error about modes.
    pub(crate) fn invalid_modes(frame: &str, error: &ModeError) -> Self {
        let invalid = Self::invalid(format_args!("{frame}{error}"));
        match error {
            ModeError::NoItem { .. } => Self::Known {
                text: invalid.to_string(),
                refusal: Refusal::NoModeItem,
            },
            ModeError::Wrong(_) => invalid,
        }
    }

    /// Workloads wait for each other, each for the next one and the last one for the first one.
    pub(crate) fn cycle(cycle: &[Name]) -> Self {
        Self::Other(cycle_text(cycle))
    }

    /// The text of the error response.
    pub(crate) fn answer(&self) -> String {
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
            text: self.answer(),
            refusal,
        }
    }
}

fn unparsable(reason: impl std::fmt::Display) -> UpdateError {
    UpdateError::invalid(format_args!(
        "Could not parse into CompleteState: '{reason}'"
    ))
}

/// What `update` makes of the current state. Who `may_forget` may name guarded updates by masks, to
/// make them once more.
///
/// # Errors
/// [`UpdateError`] when the new state cannot be read, a mask cannot be followed or the result lacks
/// something.
pub(crate) fn requested_change(
    current: StateView<'_>,
    update: UpdateState,
    may_forget: bool,
) -> Result<DesiredChange, UpdateError> {
    match (update.new_state, update.masks.as_slice()) {
        (None, _) if update.restart.is_empty() => Err(UpdateError::NoState),
        (None, _) => Ok(DesiredChange::default()),
        (Some(Err(reason)), []) => Err(unparsable(reason)),
        (Some(Err(reason)), _) => Err(UpdateError::Other(format!(
            "Failed to parse new state, '{reason}'"
        ))),
        (Some(Ok(new)), []) => whole_state(current.desired, &new),
        (Some(Ok(mut new)), masks) => {
            // An empty container means the same as none.
            omit_empty(&mut new, Kind::Object(&COMPLETE_STATE));
            patched(current, new, masks, may_forget)
        }
    }
}

// ------------------------------------------------------------ without masks

/// Reads the desired state and the tags of agents; everything else in the new state is ignored.
fn whole_state(current: &DesiredState, new: &Node) -> Result<DesiredChange, UpdateError> {
    let desired = new
        .get("desiredState")
        .ok_or_else(|| missing(&[], "desired_state"))?;
    if desired.get("workloads").is_none() {
        return Err(missing(&["desired_state"], "workloads"));
    }
    let desired =
        desired_state_from_node(desired).map_err(|error| unparsable(strict_text(&error)))?;
    let mut agent_tags = BTreeMap::new();
    for (name, agent) in new.entries("agents") {
        agent
            .get("tags")
            .ok_or_else(|| missing(&["agents", name], "tags"))?;
        agent_tags.insert(Name::from(name), tags(agent));
    }
    Ok(DesiredChange {
        agent_tags,
        ..DesiredChange::between(current, desired)
    })
}

/// `Missing field '<field>'` inside one frame for each part of the way to it.
fn missing(path: &[&str], field: &str) -> UpdateError {
    unparsable(framed(path, format!("Missing field '{field}'")))
}

fn framed(path: &[&str], reason: String) -> String {
    path.iter().rev().fold(reason, |inner, part| {
        format!("Cannot convert field '{part}' to spec object: '{inner}'.")
    })
}

/// The text for a state that came as a whole, where fields go by the names of the interface's own
/// language.
fn strict_text(error: &StateError) -> String {
    let (path, reason) = match error {
        StateError::Missing { path, field } => {
            (path, format!("Missing field '{}'", snake_case(field)))
        }
        StateError::Invalid { path, expected } => {
            (path, format!("invalid value, expected {expected}"))
        }
    };
    let mut parts: Vec<String> = path.split('.').map(str::to_owned).collect();
    // The third part is the name of a workload or a config item; it stays as it is.
    for (_, part) in parts
        .iter_mut()
        .enumerate()
        .filter(|(index, _)| *index != 2)
    {
        *part = snake_case(part);
    }
    framed(
        &parts.iter().map(String::as_str).collect::<Vec<_>>(),
        reason,
    )
}

fn snake_case(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, letter| {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
        text
    })
}

fn tags(agent: &Node) -> Tags {
    let entries = agent.entries("tags");
    entries
        .filter_map(|(key, value)| Some((key.to_owned(), value.as_text()?.to_owned())))
        .collect_entries()
}

// --------------------------------------------------------------- with masks

/// The part of the state with guarded updates. Nothing of it can be set.
const UPDATES: &str = "updates";

/// The guarded updates that masks name and the new state does not have.
fn forgotten_updates(new: &Node, masks: &[String]) -> BTreeSet<u64> {
    let number = |mask: &String| {
        let number = mask.strip_prefix(UPDATES)?.strip_prefix('.')?;
        if new.at(&[UPDATES, number]).is_some() {
            None
        } else {
            number.parse::<u64>().ok()
        }
    };
    masks.iter().filter_map(number).collect_entries()
}

/// Entries of one kind that the masks of an update can reach: those with these names, or all.
#[derive(Default)]
struct Reach {
    names: BTreeSet<String>,
    /// A mask replaces the map of all entries.
    all: bool,
}

impl Reach {
    fn add(&mut self, name: Option<&str>) {
        self.all |= name.is_none();
        self.names.extend(name.map(str::to_owned));
    }

    /// The current entries that masks name, as a tree with all containers.
    fn tree<K: Borrow<str> + Ord, V>(
        &self,
        map: &BTreeMap<K, V>,
        node: impl Fn(&V) -> Node,
    ) -> Node {
        Node::map(
            self.names
                .iter()
                .filter_map(|name| Some((name, node(map.get(name.as_str())?)))),
        )
    }

    /// What is different in `new`. An entry that is not within reach is as it was.
    fn differences<K, V: PartialEq>(
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
        let now = self.names.iter().map(|name| K::from(name)).map(|key| {
            let value = new.remove(&key);
            (key, value)
        });
        now.filter(|(key, value)| old.get(key) != value.as_ref())
            .collect_entries()
    }
}

/// Makes the change in the part of the current state that the masks can reach. Who `may_forget` may
/// name guarded updates.
fn patched(
    current: StateView<'_>,
    new: Node,
    masks: &[String],
    may_forget: bool,
) -> Result<DesiredChange, UpdateError> {
    let desired = current.desired;
    let [mut workloads, mut configs, mut agents] =
        [Reach::default(), Reach::default(), Reach::default()];
    for mask in masks {
        let mut parts = mask.split('.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("desiredState"), None, _) => (workloads.all, configs.all) = (true, true),
            (Some("desiredState"), Some("workloads"), name) => workloads.add(name),
            (Some("desiredState"), Some("configs"), key) => configs.add(key),
            (Some("agents"), name, _) => agents.add(name),
            _ => {}
        }
    }
    let state = [
        ("apiVersion", Node::text(&*desired.api_version)),
        (
            "workloads",
            workloads.tree(&desired.workloads, |workload| {
                workload_node(workload, Rendering::Full)
            }),
        ),
        ("configs", configs.tree(&desired.configs, config_node)),
    ];
    let effective = [
        ("apiVersion", Node::text(API_VERSION)),
        ("workloads", Node::empty()),
        ("configs", Node::empty()),
    ];
    // What is read-only is there but empty: masks may name it without an effect.
    let updates = may_forget.then(|| (UPDATES, Node::empty()));
    let mut tree = Node::map(updates.into_iter().chain([
        ("desiredState", Node::map(state)),
        ("workloadStates", Node::empty()),
        (
            "agents",
            agents.tree(current.agents, |agent| {
                agent_node(&agent.attributes, Rendering::Full)
            }),
        ),
        ("effectiveState", Node::map(effective)),
    ]));
    let applied = field_path::apply(&mut tree, &new, masks.iter().map(String::as_str));
    applied.map_err(|error| UpdateError::Other(error.to_string()))?;
    let forgotten_updates = forgotten_updates(&new, masks);
    drop(new); // What is large is not kept beside what becomes of it.
    let changed = match tree.get("desiredState") {
        Some(tree) => desired_state_from_node(tree).map_err(unparsable)?,
        None => DesiredState::default(),
    };
    Ok(DesiredChange {
        api_version: Some(changed.api_version),
        workloads: workloads.differences(&desired.workloads, changed.workloads),
        configs: configs.differences(&desired.configs, changed.configs),
        agent_tags: tree
            .entries("agents")
            .map(|(name, agent)| (name.into(), tags(agent)))
            .collect_entries(),
        forgotten_updates,
    })
}
