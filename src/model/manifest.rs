//! Reads manifests: YAML text to a desired state, and what is wrong with it where.
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`.

use super::complete_state::{DesiredState, desired_state_from_node};
use super::fields::reader::{MANIFEST_WARNINGS_MAX, Problem, Reading, Rules, UnknownKey, read};
use super::fields::table::STATE;
use super::names::Name;
use super::node::Node;
use super::yaml::{self, Location, Origin, Yaml, prefix};

/// The content of a manifest, before names and references are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its content; white space around runtime configurations is gone. Only the versions
    /// `v1` and `v0.1` are supported, which the receiver checks.
    pub state: DesiredState,
    /// Keys that mean nothing.
    pub warnings: Vec<UnknownKey>,
    /// The first of the workloads without agent, which `ank apply --agent` can give them, and where
    /// it is; in the state the agent is empty.
    pub without_agent: Option<(Name, Option<Location>)>,
}

/// Why a text is no manifest. The variants are its classes.
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
        /// What is wrong.
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

    /// The same. Keys that mean nothing are given to `warn` also when the text is refused: misspelt
    /// ones are probably those that it lacks.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_and_warn(
        text: &str,
        warn: impl FnMut(&UnknownKey),
    ) -> Result<Self, ManifestError> {
        let document =
            yaml::read(text, Origin::Own).map_err(|error| ManifestError::Unreadable {
                message: error.message,
            })?;
        let reading = read(&document.root, &STATE, Rules::Manifest);
        reading
            .unknown
            .iter()
            .take(MANIFEST_WARNINGS_MAX)
            .for_each(warn);
        Self::new(reading, &document.root)
    }

    /// The manifest below a `root` that was read as such.
    ///
    /// # Errors
    /// [`ManifestError`] for the first problem.
    pub fn new(reading: Reading, root: &Yaml) -> Result<Self, ManifestError> {
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
        let workloads = tree.at_mut(&["workloads"]).and_then(Node::as_map_mut);
        for (name, workload) in workloads
            .into_iter()
            .flat_map(|workloads| workloads.iter_mut())
        {
            if let Some(fields) = workload
                .as_map_mut()
                .filter(|fields| !fields.contains_key("agent"))
            {
                fields.insert("agent", Node::text(""));
                let at = || {
                    root.entry_at(&["workloads", name])
                        .map(|(_, workload)| workload.at)
                };
                without_agent.get_or_insert_with(|| (Name::from(&**name), at()));
            }
        }
        // The table has checked all that this could complain about.
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
        self.without_agent
            .map_or(Ok(self.state), |(name, location)| {
                let (path, message) = (
                    format!("workloads.{name}"),
                    "missing field `agent`".to_owned(),
                );
                Err(ManifestError::Invalid {
                    path,
                    message,
                    location,
                })
            })
    }
}

#[cfg(test)]
pub(crate) mod tests;
