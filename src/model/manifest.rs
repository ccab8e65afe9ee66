//! Reads manifests: YAML text to a desired state, and what is wrong with it where.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`.

use super::complete_state::{DesiredState, desired_state_from_node};
use super::fields::STATE;
use super::fields::reader::{Reading, Rules, UnknownKey, read};
use super::names::Name;
use super::node::Node;
use super::place::{At, Problem};
use super::yaml::{Document, Location, Step, Yaml, path_text};
use crate::limits::YAML_MANIFEST_MAX;
use std::collections::BTreeSet;

/// The content of a manifest, before names and references are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its content; white space around runtime configurations is gone. Only the versions `v1` and `v0.1` are supported,
    /// which the receiver checks.
    pub state: DesiredState,
    /// Workloads without agent, which `ank apply --agent` can give them; in the state it is empty.
    pub without_agent: BTreeSet<Name>,
    /// Keys that mean nothing.
    pub warnings: Vec<UnknownKey>,
    /// The error for the first of the workloads without agent.
    agent_error: Option<ManifestError>,
}

/// Why a text is no manifest. The variants are its classes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not one well-formed YAML document, or a key is there twice. The text names the line.
    #[error("{message}")]
    Unreadable {
        /// The error of the YAML library.
        message: String,
        /// Where.
        location: Option<Location>,
    },
    /// The tags of a workload do not have the shape of the manifest's version.
    #[error("{message}")]
    TagShape {
        /// Which shape it must have and which it has.
        message: String,
        /// Where the tags are.
        location: Option<Location>,
    },
    /// A field is missing or has a value it cannot have.
    #[error("{}{message}{}", prefix(path), suffix(*location))]
    Invalid {
        /// Path of the field, or of the mapping that lacks one; empty for the whole manifest.
        path: String,
        /// What is wrong.
        message: String,
        /// Where.
        location: Option<Location>,
    },
}

fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

fn suffix(location: Option<Location>) -> String {
    location.map_or_else(String::new, |at| format!(" at {at}"))
}

impl ManifestError {
    /// The error for `problem` in `document`.
    #[must_use]
    pub fn invalid(problem: &Problem, document: &Document<'_>) -> Self {
        let location = document.locate(&problem.path);
        Self::Invalid { path: path_text(&problem.path), message: problem.message.clone(), location }
    }

    /// Where in the text, when that is known.
    #[must_use]
    pub fn location(&self) -> Option<Location> {
        match self {
            Self::Unreadable { location, .. } | Self::TagShape { location, .. } | Self::Invalid { location, .. } => {
                *location
            }
        }
    }
}

impl Manifest {
    /// Reads the text of one manifest as a server takes it.
    ///
    /// # Errors
    /// [`ManifestError`]; its variant is the kind of problem.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let document = Document::read(text, YAML_MANIFEST_MAX)
            .map_err(|error| ManifestError::Unreadable { message: error.message, location: error.location })?;
        let root = At::root(document.root());
        let no_mapping = match root.node {
            Yaml::Map(_) => Ok(()),
            Yaml::Null => root.required("apiVersion").map(drop),
            _ => root.expected("a mapping with apiVersion and workloads"),
        };
        no_mapping.map_err(|problem| ManifestError::invalid(&problem, &document))?;
        Self::new(read(&document, &STATE, Rules::Manifest), &document)
    }

    /// Unknown keys in a text that [`Self::parse`] refuses; misspelt keys are probably those that it lacks.
    #[must_use]
    pub fn unknown_keys(text: &str) -> Vec<UnknownKey> {
        let document = Document::read(text, YAML_MANIFEST_MAX);
        document.map_or_else(|_| Vec::new(), |document| read(&document, &STATE, Rules::Manifest).unknown)
    }

    /// The manifest in a `document` that was read as such.
    ///
    /// # Errors
    /// [`ManifestError`] for the first problem.
    pub fn new(reading: Reading, document: &Document<'_>) -> Result<Self, ManifestError> {
        if let Some(Problem { path, message }) = reading.wrong_tags {
            return Err(ManifestError::TagShape { message, location: document.locate_key(&path) });
        }
        if let Some(problem) = reading.problems.first() {
            return Err(ManifestError::invalid(problem, document));
        }
        let mut tree = reading.tree;
        let mut without_agent = BTreeSet::new();
        for (name, workload) in tree.at_mut(&["workloads"]).and_then(Node::as_map_mut).into_iter().flatten() {
            let fields = workload.as_map_mut().filter(|fields| !fields.contains_key("agent"));
            without_agent.extend(fields.map(|fields| {
                fields.insert("agent".to_owned(), Node::text(""));
                Name::from(name)
            }));
        }
        let agent_error = without_agent.first().map(|name| {
            let path = ["workloads", &**name].map(|key| Step::Key(key.to_owned())).to_vec();
            ManifestError::invalid(&Problem { path, message: "missing field `agent`".to_owned() }, document)
        });
        // The table has checked all that this could complain about.
        let state = desired_state_from_node(&tree).map_err(|error| ManifestError::Invalid {
            path: String::new(),
            message: error.to_string(),
            location: None,
        })?;
        Ok(Self { state, without_agent, warnings: reading.unknown, agent_error })
    }

    /// The desired state of this manifest.
    ///
    /// # Errors
    /// [`ManifestError::Invalid`] when a workload has no agent. Version and names are not checked here.
    pub fn into_desired_state(self) -> Result<DesiredState, ManifestError> {
        self.agent_error.map_or(Ok(self.state), Err)
    }
}

#[cfg(test)]
pub(crate) mod tests;
