//! `ank mode`: the modes of the server, and the switch to one of them.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::{CliError, meant_or};
use super::output::Output;
use super::rows::entries;
use super::session::ServerLink;
use super::table::{self, Table, TooWide, one_line};
use super::update::Update;
use crate::model::modes::{MODES_TAG, mode_names};
use crate::model::names::is_name;
use crate::model::node::Node;

/// The part of the complete state with the modes of the server.
pub const PART: &str = "modes";

/// The modes that a server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerModes {
    /// Key of the config item that holds the current mode.
    pub item: String,
    /// The current mode; `None` while the config item does not exist.
    pub current: Option<String>,
    /// The current mode, the one for failures and those that workloads name; sorted.
    pub known: Vec<String>,
    /// The mode that a failed essential workload leads to.
    pub on_failure: Option<String>,
    /// Why the server switched by itself, until a client switches.
    pub cause: Option<String>,
}

impl ServerModes {
    /// The modes in `state`, a complete state that was read with [`PART`]; `None` when the server has none.
    pub fn in_state(state: &Node) -> Option<Self> {
        let modes = state.get(PART)?;
        let text = |key| modes.get(key).and_then(Node::as_text).map(str::to_owned);
        let known = modes.get("known").and_then(Node::as_list).unwrap_or_default();
        Some(Self {
            item: text("configItem")?,
            current: text("current"),
            known: known.iter().filter_map(Node::as_text).map(str::to_owned).collect(),
            on_failure: text("onFailure"),
            cause: text("cause"),
        })
    }

    /// Whether `mode` is one of the known ones.
    pub fn knows(&self, mode: &str) -> bool {
        self.known.iter().any(|known| known == mode)
    }
}

fn no_modes() -> CliError {
    CliError::input("This server has no modes.", "set 'mode_config' in ank-server.conf")
}

/// The modes in the tags of the workloads in `part` of a complete state, with each workload that names them.
pub fn named<'s>(state: &'s Node, part: &str) -> impl Iterator<Item = (&'s str, &'s str)> {
    entries(state.at(&[part, "workloads"])).flat_map(|(name, workload)| {
        let tag = workload.at(&["tags", MODES_TAG]).and_then(Node::as_text).unwrap_or_default();
        mode_names(tag).map(move |mode| (name, mode))
    })
}

/// Prints the modes of the server, which one is current, and how many workloads name each.
pub fn show(link: &mut dyn ServerLink, format: Format, output: &mut Output<'_>) -> Result<(), CliError> {
    let state = link.complete_state(&[PART, "effectiveState.workloads.*.tags"])?;
    let modes = ServerModes::in_state(&state).ok_or_else(no_modes)?;
    if let Some(cause) = &modes.cause {
        output.warn(one_line(cause));
    }
    let count = |mode: &String| {
        let mut workloads: Vec<&str> =
            named(&state, "effectiveState").filter(|(_, named)| named == mode).map(|(name, _)| name).collect();
        workloads.dedup(); // One that names it twice.
        workloads.len()
    };
    let mut data = state.get(PART).cloned().unwrap_or_default();
    let counts = modes.known.iter().map(|mode| (mode.as_str(), Node::Number(count(mode) as u64)));
    data.as_map_mut().map(|map| map.insert("workloads", Node::map(counts)));
    let row = |mode: &String| {
        let is_current = if modes.current.as_ref() == Some(mode) { "yes" } else { "" };
        vec![one_line(mode), is_current.to_owned(), count(mode).to_string()]
    };
    let table = Table { headings: vec!["MODE", "CURRENT", "WORKLOADS"], rows: modes.known.iter().map(row).collect() };
    Ok(table::show(format, &data, &table, TooWide::Drop, None, output)?)
}

/// The update that switches to a mode.
pub fn switch(link: &mut dyn ServerLink, mode: &str, may_be_new: bool) -> Result<Update, CliError> {
    let state = link.complete_state(&[PART])?;
    let modes = ServerModes::in_state(&state).ok_or_else(no_modes)?;
    if !may_be_new && !modes.knows(mode) {
        let known = format!("the known ones are '{}'", modes.known.join("', '"));
        let why = if is_name(mode) { "'--new' switches to it all the same" } else { "no mode can have this name" };
        let otherwise = format!("{why}; {known}");
        let hint = meant_or(mode, modes.known.iter().map(String::as_str), &otherwise);
        return Err(CliError::input(format!("Mode '{mode}' is not known."), hint).into());
    }
    let accepted = match &modes.current {
        Some(current) if current == mode => format!("Mode '{mode}' is set already."),
        Some(current) => format!("Switched from mode '{current}' to '{mode}'."),
        None => format!("Switched to mode '{mode}'."),
    };
    let configs = Node::map([(modes.item.as_str(), Node::text(mode))]);
    let new_state = Node::map([("desiredState", Node::map([("configs", configs)]))]);
    let masks = vec![format!("desiredState.configs.{}", modes.item)];
    Ok(Update { new_state, masks, accepted, ..Update::default() })
}

#[cfg(test)]
mod tests;
