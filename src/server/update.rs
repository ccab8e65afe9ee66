//! What state an update asks for: the mask algorithm on the parts it touches, and the strict reading of the result
//! (spec/server.md section 8.2).
//!
//! Thread: `server`; plain functions. Nothing is changed here, so a refused update leaves no trace.

use super::state_view::StateView;
use crate::model::complete_state::{
    API_VERSION, DesiredState, Rendering, StateError, agent_node, config_node, desired_state_from_node,
    workload_from_node, workload_node,
};
use crate::model::field_path::{self, FieldNotFound};
use crate::model::messages::UpdateState;
use crate::model::names::Name;
use crate::model::node::Node;
use crate::model::validation::ValidationError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tags by key.
pub type Tags = BTreeMap<String, String>;

/// The state that an update asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct NewState {
    /// What users want now. Workloads that the update does not touch are those of the current state, shared.
    pub desired: DesiredState,
    /// New tags of agents, which count only for connected ones.
    pub agent_tags: BTreeMap<Name, Tags>,
}

/// An update is refused; nothing was changed. The text is that of a refused startup manifest, see
/// [`UpdateError::answer`] for that of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The request has no new state.
    #[error("The UpdateStateRequest does not contain a new state")]
    NoState,
    /// The new state holds something that no program of this version can read.
    #[error("Failed to parse new state, '{0}'")]
    Unreadable(String),
    /// A mask cannot be followed.
    #[error(transparent)]
    Field(#[from] FieldNotFound),
    /// Version or config keys; reported without a frame.
    #[error(transparent)]
    Rule(ValidationError),
    /// The state that the update leads to is not valid.
    #[error("Resulting State is invalid, reason: '{0}'")]
    Invalid(String),
    /// A mutating hook refuses the update.
    #[error("Mutating hook '{hook}' vetoed the state change: '{reason}'")]
    Veto {
        /// Which hook.
        hook: String,
        /// What it said.
        reason: String,
    },
    /// A mutating hook cannot do its work.
    #[error("Mutating hook '{hook}' execution failed: '{reason}'")]
    HookFailed {
        /// Which hook.
        hook: String,
        /// Why.
        reason: String,
    },
    /// The server cannot take more updates until the mutating hooks are done.
    #[error("Too many requests wait for mutating hooks; try again later")]
    TooManyWait,
    /// Workloads wait for each other.
    #[error("workload dependency '{0}' is part of a cycle.")]
    Cycle(Name),
}

impl UpdateError {
    /// The text of the Error answer.
    #[must_use]
    pub fn answer(&self) -> String {
        match self {
            Self::NoState | Self::Rule(_) => self.to_string(),
            Self::Veto { hook, reason } => format!("Update rejected by mutating hook '{hook}': '{reason}'"),
            _ => format!("Update rejected: '{self}'"),
        }
    }
}

fn unparsable(reason: impl std::fmt::Display) -> UpdateError {
    UpdateError::Invalid(format!("Could not parse into CompleteState: '{reason}'"))
}

/// The state that `update` makes of the current one.
///
/// # Errors
/// [`UpdateError`] when the new state cannot be read, a mask cannot be followed or the result lacks something.
pub fn requested_state(current: StateView<'_>, update: UpdateState) -> Result<NewState, UpdateError> {
    let mut requested = match (update.new_state, update.masks.as_slice()) {
        (None, _) => return Err(UpdateError::NoState),
        (Some(Err(reason)), []) => return Err(unparsable(reason)),
        (Some(Err(reason)), _) => return Err(UpdateError::Unreadable(reason)),
        (Some(Ok(new)), []) => whole_state(&new)?,
        (Some(Ok(mut new)), masks) => {
            leave_out_empty(&mut new);
            Patch::new(current, masks).apply(&new, masks)?
        }
    };
    share_unchanged(current.desired, &mut requested.desired);
    Ok(requested)
}

/// Replaces workloads of `new` that equal those of `old` by the old objects, so that later steps see at once that
/// nothing changed and no text is kept twice.
fn share_unchanged(old: &DesiredState, new: &mut DesiredState) {
    for (name, workload) in &mut new.workloads {
        match old.workloads.get(name) {
            Some(known) if !Arc::ptr_eq(known, workload) && known == workload => *workload = known.clone(),
            _ => {}
        }
    }
}

// ------------------------------------------------------------ without masks

/// Reads the desired state and the tags of agents; everything else in the new state is ignored.
fn whole_state(new: &Node) -> Result<NewState, UpdateError> {
    let desired = new.get("desiredState").ok_or_else(|| unparsable(missing(&[], "desired_state")))?;
    if desired.get("workloads").is_none() {
        return Err(unparsable(missing(&["desired_state"], "workloads")));
    }
    let desired = desired_state_from_node(desired).map_err(|error| unparsable(strict_text(&error)))?;
    let mut agent_tags = BTreeMap::new();
    for (name, agent) in new.get("agents").and_then(Node::as_map).into_iter().flatten() {
        let tags = agent.get("tags").ok_or_else(|| unparsable(missing(&["agents", name], "tags")))?;
        agent_tags.insert(Name::from(name.as_str()), texts(tags));
    }
    Ok(NewState { desired, agent_tags })
}

/// `Missing field '<field>'` inside one frame for each part of the way to it.
fn missing(path: &[&str], field: &str) -> String {
    framed(path, format!("Missing field '{field}'"))
}

fn framed(path: &[&str], reason: String) -> String {
    path.iter().rev().fold(reason, |inner, part| format!("Cannot convert field '{part}' to spec object: '{inner}'."))
}

/// The text for a state that came as a whole, where fields go by the names of the interface's own language.
fn strict_text(error: &StateError) -> String {
    let (path, reason) = match error {
        StateError::Missing { path, field } => (path, format!("Missing field '{}'", snake_case(field))),
        StateError::Invalid { path, expected } => (path, format!("invalid value, expected {expected}")),
    };
    let mut parts: Vec<String> = path.split('.').map(str::to_owned).collect();
    // The third part is the name of a workload or a config item; it stays as it is.
    for (_, part) in parts.iter_mut().enumerate().filter(|(index, _)| *index != 2) {
        *part = snake_case(part);
    }
    framed(&parts.iter().map(String::as_str).collect::<Vec<_>>(), reason)
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

fn texts(node: &Node) -> Tags {
    let entries = node.as_map().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_text()?.to_owned()))).collect()
}

// --------------------------------------------------------------- with masks

/// Containers of a workload that count as absent when they are empty, deepest first.
const OPTIONAL_CONTAINERS: [&[&str]; 7] = [
    &["dependencies"],
    &["tags"],
    &["configs"],
    &["files"],
    &["controlInterfaceAccess", "allowRules"],
    &["controlInterfaceAccess", "denyRules"],
    &["controlInterfaceAccess"],
];

/// Makes a new state sparse: an empty container in it means the same as none (spec/server.md section 7, T1).
fn leave_out_empty(new: &mut Node) {
    let below = |node: &mut Node, key: &str, change: &dyn Fn(&mut Node)| {
        node.as_map_mut().and_then(|map| map.get_mut(key)).into_iter().for_each(change);
    };
    let each = |node: &mut Node, change: &dyn Fn(&mut Node)| {
        node.as_map_mut().into_iter().flat_map(BTreeMap::values_mut).for_each(change);
    };
    below(new, "desiredState", &|state| {
        remove_if_empty(state, &["configs"]);
        below(state, "workloads", &|workloads| {
            each(workloads, &|workload| OPTIONAL_CONTAINERS.iter().for_each(|path| remove_if_empty(workload, path)));
        });
    });
    below(new, "agents", &|agents| each(agents, &|agent| remove_if_empty(agent, &["tags"])));
}

fn remove_if_empty(node: &mut Node, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let place = parents.iter().try_fold(node, |place, key| place.as_map_mut()?.get_mut(*key));
    if let Some(Node::Map(entries)) = place
        && entries.get(*last).is_some_and(Node::is_empty_container)
    {
        entries.remove(*last);
    }
}

/// The part of the current state that the masks of an update can reach, as a tree with all containers.
struct Patch<'s> {
    current: StateView<'s>,
    tree: Node,
    /// Names of workloads in the tree or in masks; none other can change unless all do.
    touched: BTreeSet<String>,
    /// A mask is about all workloads, so those outside the tree are gone.
    all_workloads: bool,
    /// A mask is about configs, so they are in the tree.
    configs: bool,
}

impl<'s> Patch<'s> {
    fn new(current: StateView<'s>, masks: &[String]) -> Self {
        let (mut touched, mut all_workloads, mut configs, mut agents) = (BTreeSet::new(), false, false, false);
        for mask in masks {
            let mut parts = mask.split('.');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("desiredState"), None, _) => (all_workloads, configs) = (true, true),
                (Some("desiredState"), Some("workloads"), None) => all_workloads = true,
                (Some("desiredState"), Some("workloads"), Some(name)) => {
                    touched.insert(name.to_owned());
                }
                (Some("desiredState"), Some("configs"), _) => configs = true,
                (Some("agents"), ..) => agents = true,
                _ => {}
            }
        }
        let desired = current.desired;
        let workloads = touched.iter().filter_map(|name| {
            let workload = desired.workloads.get(name.as_str())?;
            Some((name.clone(), workload_node(workload, Rendering::Full)))
        });
        let mut state = vec![
            ("apiVersion", Node::text(&desired.api_version)),
            ("workloads", Node::map(workloads.collect::<Vec<_>>())),
        ];
        if configs {
            let items = desired.configs.iter().map(|(key, item)| (key.clone(), config_node(item)));
            state.push(("configs", Node::map(items)));
        }
        let agents = current
            .agents
            .iter()
            .filter(|_| agents)
            .map(|(name, agent)| (&**name, agent_node(&agent.attributes, Rendering::Full)));
        let effective =
            [("apiVersion", Node::text(API_VERSION)), ("workloads", Node::empty()), ("configs", Node::empty())];
        // What is read-only is there but empty: masks may name it, and nothing comes of that.
        let tree = Node::map([
            ("desiredState", Node::map(state)),
            ("workloadStates", Node::empty()),
            ("agents", Node::map(agents)),
            ("effectiveState", Node::map(effective)),
        ]);
        Self { current, tree, touched, all_workloads, configs }
    }

    fn apply(mut self, new: &Node, masks: &[String]) -> Result<NewState, UpdateError> {
        for mask in masks {
            field_path::apply(&mut self.tree, new, mask)?;
        }
        Ok(NewState { desired: self.desired()?, agent_tags: self.agent_tags() })
    }

    fn desired(&self) -> Result<DesiredState, UpdateError> {
        let Some(tree) = self.tree.get("desiredState") else {
            return Ok(DesiredState::default());
        };
        if self.all_workloads {
            let mut desired = desired_state_from_node(tree).map_err(unparsable)?;
            if !self.configs {
                desired.configs.clone_from(&self.current.desired.configs);
            }
            return Ok(desired);
        }
        let mut desired = self.current.desired.clone();
        for name in &self.touched {
            match tree.at(&["workloads", name]) {
                None => {
                    desired.workloads.remove(name.as_str());
                }
                Some(node) => {
                    let path = format!("desiredState.workloads.{name}");
                    let workload = workload_from_node(node, &path).map_err(unparsable)?;
                    desired.workloads.insert(name.as_str().into(), Arc::new(workload));
                }
            }
        }
        // The rest of the tree is small: version, and configs when a mask is about them.
        let mut rest = tree.clone();
        if let Some(entries) = rest.as_map_mut() {
            entries.remove("workloads");
        }
        let rest = desired_state_from_node(&rest).map_err(unparsable)?;
        desired.api_version = rest.api_version;
        if self.configs {
            desired.configs = rest.configs;
        }
        Ok(desired)
    }

    fn agent_tags(&self) -> BTreeMap<Name, Tags> {
        let agents = self.tree.get("agents").and_then(Node::as_map).into_iter().flatten();
        agents.map(|(name, agent)| (name.as_str().into(), agent.get("tags").map(texts).unwrap_or_default())).collect()
    }
}
