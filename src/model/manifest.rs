//! Reads manifests: YAML text to a desired state, with problems and their places.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`.

use super::complete_state::{DesiredState, desired_state_from_node};
use super::fields::reader::{
    DocumentKind, MANIFEST_WARNINGS_MAX, Problem, ReadDocument, UnknownKey, read,
};
use super::fields::table::STATE;
use super::names::Name;
use super::node::Node;
use super::yaml::{self, Location, Origin, Yaml, prefix};
use std::fmt;

/// The content of a manifest, before names and references are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The state, without white space around runtime configurations. Its receiver checks that the
    /// version is `v1` or `v0.1`.
    pub state: DesiredState,
    /// Keys that mean nothing.
    pub warnings: Vec<UnknownKey>,
    /// The first workload without agent, and its place. In the state its agent is empty, and
    /// `ank apply --agent` can set one.
    pub without_agent: Option<(Name, Option<Location>)>,
}

/// Why a text is not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not one well-formed YAML document, or a key is there twice. The text names the line.
    #[error("{message}")]
    Unreadable {
        /// The error of the YAML library.
        message: String,
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
        /// The fault.
        message: String,
        /// Where.
        location: Option<Location>,
    },
}

fn suffix(location: Option<Location>) -> String {
    location.map_or_else(String::new, |at| format!(" at {at}"))
}

impl ManifestError {
    pub fn invalid(
        Problem {
            path, message, at, ..
        }: Problem,
    ) -> Self {
        Self::Invalid {
            path,
            message,
            location: Some(at),
        }
    }
}

impl Manifest {
    /// Reads the text of one manifest as a server takes it.
    ///
    /// # Errors
    /// [`ManifestError`]; its variant is the kind of problem.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        Self::parse_and_warn(text, |_| ())
    }

    /// Reads the text of one manifest and passes warnings about unknown keys to `warn`, also if the
    /// text is refused: an unknown key is often a missing one with a wrong spelling. Of many keys,
    /// it names the first ones.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_and_warn(
        text: &str,
        mut warn: impl FnMut(&dyn fmt::Display),
    ) -> Result<Self, ManifestError> {
        let document =
            yaml::read(text, Origin::Own).map_err(|error| ManifestError::Unreadable {
                message: error.message,
            })?;
        let reading = read(&document.root, &STATE, DocumentKind::Manifest);
        for unknown in reading.unknown.iter().take(MANIFEST_WARNINGS_MAX) {
            warn(unknown);
        }
        let more = reading.unknown.len().saturating_sub(MANIFEST_WARNINGS_MAX);
        if more > 0 {
            warn(&format_args!("and {more} more of these"));
        }
        Self::new(reading, &document.root)
    }

    /// Makes a manifest of the content that was read below `root`.
    ///
    /// # Errors
    /// [`ManifestError`] for the first problem.
    pub fn new(reading: ReadDocument, root: &Yaml) -> Result<Self, ManifestError> {
        if let Some((message, at)) = reading.wrong_tags {
            return Err(ManifestError::TagShape {
                message,
                location: Some(at),
            });
        }
        if let Some(problem) = reading.problems.into_iter().next() {
            return Err(ManifestError::invalid(problem));
        }
        let mut tree = reading.tree;
        let mut without_agent = None;
        if let Some(Node::Map(workloads)) = tree.at_mut(&["workloads"]) {
            for (name, workload) in workloads.iter_mut() {
                let Some(fields) = workload.as_map_mut() else {
                    continue;
                };
                if fields.contains_key("agent") {
                    continue;
                }
                fields.insert("agent", Node::text("")); // `ank apply --agent` may set one later.
                if without_agent.is_none() {
                    let entry = root.entry_at(&["workloads", name]);
                    let at = entry.map(|(_, workload)| workload.at);
                    without_agent = Some((Name::from(&**name), at));
                }
            }
        }
        // The table of fields has checked everything that can fail here.
        let state = desired_state_from_node(&tree).map_err(|error| ManifestError::Invalid {
            path: String::new(),
            message: error.to_string(),
            location: None,
        })?;
        Ok(Self {
            state,
            without_agent,
            warnings: reading.unknown,
        })
    }

    /// The desired state of this manifest.
    ///
    /// # Errors
    /// [`ManifestError::Invalid`] when a workload has no agent. Version and names are not checked
    /// here.
    pub fn into_desired_state(self) -> Result<DesiredState, ManifestError> {
        let Some((name, location)) = self.without_agent else {
            return Ok(self.state);
        };
        Err(ManifestError::Invalid {
            path: format!("workloads.{name}"),
            message: "missing field `agent`".to_owned(),
            location,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
