//! Reads manifests: YAML text to a desired state, and what is wrong with it where (spec/server.md section 3).
//!
//! Thread: none, plain functions; used by `main` of the server and of `ank`.

use super::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use super::complete_state::{API_VERSION, API_VERSION_DEPRECATED, DesiredState};
use super::nearest::nearest;
use super::shown_text::without_passwords;
use super::workload::{AddCondition, ConfigItem, File, FileContent, RestartPolicy, Workload};
use super::yaml::{Document, Location, Plain, Step, Yaml, path_text};
use crate::limits::{MANIFEST_WARNINGS_MAX, YAML_MANIFEST_MAX};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Keys at the top level of a manifest.
pub const TOP_KEYS: [&str; 3] = ["apiVersion", "workloads", "configs"];
/// Keys of a workload.
pub const WORKLOAD_KEYS: [&str; 9] = [
    "agent",
    "runtime",
    "runtimeConfig",
    "restartPolicy",
    "tags",
    "dependencies",
    "configs",
    "files",
    "controlInterfaceAccess",
];
const FILE_KEYS: [&str; 3] = ["mountPoint", "data", "binaryData"];
const ACCESS_KEYS: [&str; 2] = ["allowRules", "denyRules"];
const STATE_RULE_KEYS: [&str; 4] = ["type", "operation", "filterMasks", "filterMask"];
const LOG_RULE_KEYS: [&str; 2] = ["type", "workloadNames"];
const TAG_KEYS: [&str; 2] = ["key", "value"];

/// What a manifest says, before names and references are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// As written; only `v1` and `v0.1` are supported, which the receiver checks.
    pub api_version: String,
    /// Workloads by name.
    pub workloads: BTreeMap<String, ManifestWorkload>,
    /// Values for templates by key.
    pub configs: BTreeMap<String, ConfigItem>,
    /// Keys that mean nothing, in the order of the file; at most [`MANIFEST_WARNINGS_MAX`].
    pub warnings: Vec<UnknownKey>,
    /// The error for the first workload that lacks its agent.
    without_agent: Option<ManifestError>,
}

/// A workload of a manifest. `ank apply --agent` can give it an agent later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestWorkload {
    /// The agent as written, empty for not scheduled; `None` when the key is not there.
    pub agent: Option<String>,
    /// All the rest; its own agent is empty.
    pub workload: Workload,
}

/// A key that means nothing and is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where in the tree, with the key itself.
    pub path: String,
    /// The key that was probably meant.
    pub nearest: Option<&'static str>,
    /// Where in the text.
    pub location: Option<Location>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown key '{}' is ignored", self.path)?;
        if let Some(location) = self.location {
            write!(formatter, " at {location}")?;
        }
        self.nearest.map_or(Ok(()), |name| write!(formatter, ", did you mean '{name}'?"))
    }
}

/// Why a text is no manifest. The variants are the classes of spec/server.md section 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not one well-formed YAML document, or a key is there twice. The text names the line.
    #[error("{message}")]
    Unreadable {
        /// What the YAML reader said.
        message: String,
        /// Where.
        location: Option<Location>,
    },
    /// The tags of a workload do not have the shape of the manifest's version.
    #[error("{message}")]
    TagShape {
        /// The text of spec/server.md section 3.2.
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
    /// Reads the text of one manifest.
    ///
    /// # Errors
    /// [`ManifestError`]; its variant says which kind of problem it is.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let document = Document::read(text, YAML_MANIFEST_MAX)
            .map_err(|error| ManifestError::Unreadable { message: error.message, location: error.location })?;
        check_tag_shapes(&document)?;
        Self::from_document(&document)
    }

    /// Reads a document whose tags have the right shape already.
    ///
    /// # Errors
    /// [`ManifestError::Invalid`] naming the first field that is missing or wrong.
    pub fn from_document(document: &Document<'_>) -> Result<Self, ManifestError> {
        let root = At::root(document.root());
        let mut reader = Reader::default();
        let mut manifest = reader.manifest(&root).map_err(|problem| problem.locate(document))?;
        manifest.warnings =
            reader.unknown.into_iter().take(MANIFEST_WARNINGS_MAX).map(|key| key.locate(document)).collect();
        let lacking = manifest.workloads.iter().find(|(_, workload)| workload.agent.is_none());
        manifest.without_agent = lacking.map(|(name, _)| {
            let path = vec![Step::Key("workloads".to_owned()), Step::Key(name.clone())];
            Problem { path, message: "missing field `agent`".to_owned() }.locate(document)
        });
        Ok(manifest)
    }

    /// The keys that mean nothing in a manifest that is refused, as far as it can be read; as many as
    /// [`MANIFEST_WARNINGS_MAX`].
    #[must_use]
    pub fn unknown_keys(document: &Document<'_>) -> Vec<UnknownKey> {
        let root = At::root(document.root());
        let version = document.root().get("apiVersion").and_then(Yaml::scalar);
        let mut reader = Reader { null_is_empty: version.is_some_and(null_is_empty), ..Reader::default() };
        reader.note_unknown(&root, &TOP_KEYS);
        let workloads = root.optional("workloads");
        for (_, workload) in workloads.iter().filter_map(|at| at.entries().ok()).flatten() {
            let _ = reader.workload(&workload); // What is wrong besides is told by whoever refused it.
        }
        reader.unknown.into_iter().take(MANIFEST_WARNINGS_MAX).map(|key| key.locate(document)).collect()
    }

    /// The desired state of this manifest; white space around runtime configurations is gone.
    ///
    /// # Errors
    /// [`ManifestError::Invalid`] when a workload has no agent. Version and names are not checked here.
    pub fn into_desired_state(self) -> Result<DesiredState, ManifestError> {
        if let Some(error) = self.without_agent {
            return Err(error);
        }
        let workloads = self.workloads.into_iter().map(|(name, entry)| {
            let mut workload = entry.workload;
            workload.agent = entry.agent.unwrap_or_default().into();
            (name.into(), Arc::new(workload))
        });
        Ok(DesiredState { api_version: self.api_version, workloads: workloads.collect(), configs: self.configs })
    }
}

/// Checks that tags are a mapping in `v1` and a list in `v0.1`; other versions are refused later anyway.
///
/// # Errors
/// [`ManifestError::TagShape`] for the first workload whose tags have the other shape.
pub fn check_tag_shapes(document: &Document<'_>) -> Result<(), ManifestError> {
    let root = document.root();
    let Some(version) = root.get("apiVersion").and_then(Yaml::scalar) else { return Ok(()) };
    let Some(Yaml::Map(workloads)) = root.get("workloads") else { return Ok(()) };
    for (key, workload) in workloads {
        let (Some(name), Some(tags)) = (key.scalar(), workload.get("tags")) else { continue };
        if null_is_empty(version) && *tags == Yaml::Null {
            continue;
        }
        let found = match tags {
            Yaml::Map(_) => "mapping",
            Yaml::List(_) => "sequence",
            _ => "a scalar",
        };
        let required = match (version, found) {
            (API_VERSION, "sequence" | "a scalar") => "mapping (key-value pairs)",
            (API_VERSION_DEPRECATED, "mapping" | "a scalar") => "sequence (list of key-value entries)",
            _ => continue,
        };
        let message = format!(
            "For API version '{version}', tags must be specified as a {required}. \
             Found tags as {found} for workload '{name}'."
        );
        let path = ["workloads", name, "tags"].map(|key| Step::Key(key.to_owned()));
        return Err(ManifestError::TagShape { message, location: document.locate_key(&path) });
    }
    Ok(())
}

/// Whether a mapping or list that is left empty in a manifest of this version is one without entries. In later ones it
/// is an error, which shows where something was forgotten.
fn null_is_empty(version: &str) -> bool {
    version == API_VERSION_DEPRECATED
}

// ----------------------------------------------------------- walking the tree

/// A problem before its place in the text is looked up, which costs another reading.
pub(super) struct Problem {
    pub(super) path: Vec<Step>,
    pub(super) message: String,
}

impl Problem {
    fn locate(self, document: &Document<'_>) -> ManifestError {
        let location = document.locate(&self.path);
        ManifestError::Invalid { path: path_text(&self.path), message: self.message, location }
    }
}

struct Unknown {
    path: Vec<Step>,
    nearest: Option<&'static str>,
}

impl Unknown {
    fn locate(self, document: &Document<'_>) -> UnknownKey {
        let location = document.locate_key(&self.path);
        UnknownKey { path: path_text(&self.path), nearest: self.nearest, location }
    }
}

/// A node and the way to it. The way is put together only when something is wrong.
pub(super) struct At<'a> {
    pub(super) node: &'a Yaml,
    parent: Option<(&'a At<'a>, Link<'a>)>,
}

#[derive(Clone, Copy)]
pub(super) enum Link<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub(super) fn root(node: &'a Yaml) -> Self {
        Self { node, parent: None }
    }

    fn steps(&self) -> Vec<Step> {
        let Some((parent, link)) = &self.parent else { return Vec::new() };
        let mut steps = parent.steps();
        steps.push(match link {
            Link::Key(key) => Step::Key((*key).to_owned()),
            Link::Index(index) => Step::Index(*index),
        });
        steps
    }

    pub(super) fn problem<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        // It may quote a value, and ends in states and logs.
        Err(Problem { path: self.steps(), message: without_passwords(&message.into()) })
    }

    pub(super) fn expected<T>(&self, expected: &str) -> Result<T, Problem> {
        self.problem(format!("{} found, expected {expected}", self.node.describe()))
    }

    pub(super) fn child(&'a self, key: &'a str, node: &'a Yaml) -> At<'a> {
        At { node, parent: Some((self, Link::Key(key))) }
    }

    pub(super) fn optional(&'a self, key: &'a str) -> Option<At<'a>> {
        self.node.get(key).map(|node| self.child(key, node))
    }

    pub(super) fn required(&'a self, key: &'a str) -> Result<At<'a>, Problem> {
        self.optional(key).map_or_else(|| self.problem(format!("missing field `{key}`")), Ok)
    }

    /// The text of any scalar, numbers as written, null as empty.
    pub(super) fn text(&self) -> Result<&'a str, Problem> {
        self.node.scalar().map_or_else(|| self.expected("text"), Ok)
    }

    /// The text of a string; numbers, booleans and null must be quoted to be one.
    pub(super) fn string(&self) -> Result<&'a str, Problem> {
        match self.node {
            Yaml::Text(text) => Ok(text),
            Yaml::Plain(..) | Yaml::Null => self.expected("text (put it in quotes)"),
            Yaml::List(_) | Yaml::Map(_) => self.expected("text"),
        }
    }

    /// The entries of a mapping with their keys as text.
    pub(super) fn entries(&'a self) -> Result<Vec<(&'a str, At<'a>)>, Problem> {
        let Yaml::Map(entries) = self.node else { return self.expected("a mapping") };
        let entry = |(key, node): &'a (Yaml, Yaml)| match key.scalar() {
            Some(text) => Ok((text, self.child(text, node))),
            None => self.problem(format!("{} found as key, expected text", key.describe())),
        };
        entries.iter().map(entry).collect()
    }

    pub(super) fn items(&'a self) -> Result<impl Iterator<Item = At<'a>>, Problem> {
        let Yaml::List(items) = self.node else { return self.expected("a list") };
        let item = |(index, node)| At { node, parent: Some((self, Link::Index(index))) };
        Ok(items.iter().enumerate().map(item))
    }

    /// One of the texts that `parse` knows; `names` lists them for the error.
    pub(super) fn member<T>(&self, names: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, Problem> {
        let Yaml::Text(text) = self.node else { return self.expected(names) };
        parse(text).map_or_else(|| self.problem(format!("unknown value '{text}', expected {names}")), Ok)
    }
}

/// Reads the parts of a manifest and remembers keys that mean nothing.
#[derive(Default)]
struct Reader {
    unknown: Vec<Unknown>,
    /// See [`null_is_empty`].
    null_is_empty: bool,
}

impl Reader {
    fn note_unknown(&mut self, at: &At<'_>, known: &[&'static str]) {
        let Yaml::Map(entries) = at.node else { return };
        for key in entries.iter().filter_map(|(key, _)| key.scalar()).filter(|key| !known.contains(key)) {
            let mut path = at.steps();
            path.push(Step::Key(key.to_owned()));
            self.unknown.push(Unknown { path, nearest: nearest(key, known.iter().copied()) });
        }
    }

    fn is_empty(&self, at: &At<'_>) -> bool {
        self.null_is_empty && *at.node == Yaml::Null
    }

    fn entries<'a>(&self, at: &'a At<'a>) -> Result<Vec<(&'a str, At<'a>)>, Problem> {
        if self.is_empty(at) { Ok(Vec::new()) } else { at.entries() }
    }

    fn items<'a>(&self, at: &'a At<'a>) -> Result<Vec<At<'a>>, Problem> {
        if self.is_empty(at) { Ok(Vec::new()) } else { Ok(at.items()?.collect()) }
    }

    fn texts(&self, at: &At<'_>) -> Result<Vec<String>, Problem> {
        self.items(at)?.iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    fn manifest(&mut self, root: &At<'_>) -> Result<Manifest, Problem> {
        if !matches!(root.node, Yaml::Map(_) | Yaml::Null) {
            return root.expected("a mapping with apiVersion and workloads");
        }
        let mut manifest =
            Manifest { api_version: root.required("apiVersion")?.text()?.to_owned(), ..Manifest::default() };
        self.null_is_empty = null_is_empty(&manifest.api_version);
        self.note_unknown(root, &TOP_KEYS);
        if let Some(workloads) = root.optional("workloads").filter(|at| *at.node != Yaml::Null) {
            for (name, workload) in workloads.entries()? {
                manifest.workloads.insert(name.to_owned(), self.workload(&workload)?);
            }
        }
        if let Some(configs) = root.optional("configs").filter(|at| *at.node != Yaml::Null) {
            for (key, item) in configs.entries()? {
                manifest.configs.insert(key.to_owned(), config_item(&item)?);
            }
        }
        Ok(manifest)
    }

    fn workload(&mut self, at: &At<'_>) -> Result<ManifestWorkload, Problem> {
        if !matches!(at.node, Yaml::Map(_)) {
            return at.expected("a mapping");
        }
        self.note_unknown(at, &WORKLOAD_KEYS);
        let agent = at.optional("agent").map(|agent| agent.text().map(str::to_owned)).transpose()?;
        let (runtime, config) = (at.required("runtime")?, at.required("runtimeConfig")?);
        let mut workload = Workload::new("", runtime.text()?, config.text()?);
        if let Some(policy) = at.optional("restartPolicy") {
            workload.restart_policy = policy.member("NEVER, ON_FAILURE or ALWAYS", RestartPolicy::parse)?;
        }
        if let Some(tags) = at.optional("tags") {
            workload.tags = self.tags(&tags)?;
        }
        if let Some(dependencies) = at.optional("dependencies") {
            let names = "ADD_COND_RUNNING, ADD_COND_SUCCEEDED or ADD_COND_FAILED";
            for (name, condition) in self.entries(&dependencies)? {
                workload.dependencies.insert(name.to_owned(), condition.member(names, AddCondition::parse)?);
            }
        }
        if let Some(configs) = at.optional("configs") {
            for (alias, key) in self.entries(&configs)? {
                workload.configs.insert(alias.to_owned(), key.text()?.to_owned());
            }
        }
        if let Some(files) = at.optional("files") {
            workload.files = self.items(&files)?.iter().map(|file| self.file(file)).collect::<Result<_, _>>()?;
        }
        if let Some(access) = at.optional("controlInterfaceAccess").filter(|at| *at.node != Yaml::Null) {
            workload.control_interface_access = self.access(&access)?;
        }
        Ok(ManifestWorkload { agent, workload })
    }

    /// Tags as a mapping, or as the list of entries that `v0.1` has.
    fn tags(&mut self, at: &At<'_>) -> Result<BTreeMap<String, String>, Problem> {
        if let Yaml::List(_) = at.node {
            let mut tags = BTreeMap::new();
            for entry in at.items()? {
                self.note_unknown(&entry, &TAG_KEYS);
                let (key, value) = (entry.required("key")?, entry.required("value")?);
                tags.insert(key.string()?.to_owned(), value.string()?.to_owned());
            }
            return Ok(tags);
        }
        let entries = self.entries(at)?.into_iter();
        entries.map(|(key, value)| Ok((key.to_owned(), value.string()?.to_owned()))).collect()
    }

    fn file(&mut self, at: &At<'_>) -> Result<File, Problem> {
        self.note_unknown(at, &FILE_KEYS);
        let mount_point = at.required("mountPoint")?.string()?.to_owned();
        let content = match (at.optional("data"), at.optional("binaryData")) {
            (Some(data), _) => FileContent::Data(data.string()?.to_owned()),
            (None, Some(data)) => FileContent::BinaryData(data.string()?.to_owned()),
            (None, None) => return at.problem("missing field `data` or `binaryData`"),
        };
        Ok(File { mount_point, content })
    }

    fn access(&mut self, at: &At<'_>) -> Result<ControlInterfaceAccess, Problem> {
        if !matches!(at.node, Yaml::Map(_)) {
            return at.expected("a mapping");
        }
        self.note_unknown(at, &ACCESS_KEYS);
        let mut rules = |field| match at.optional(field) {
            Some(list) => self.items(&list)?.iter().map(|rule| self.rule(rule)).collect::<Result<Vec<_>, _>>(),
            None => Ok(Vec::new()),
        };
        Ok(ControlInterfaceAccess { allow_rules: rules("allowRules")?, deny_rules: rules("denyRules")? })
    }

    fn rule(&mut self, at: &At<'_>) -> Result<AccessRule, Problem> {
        let is_state_rule = at.required("type")?.member("StateRule or LogRule", |name| match name {
            "StateRule" => Some(true),
            "LogRule" => Some(false),
            _ => None,
        })?;
        self.note_unknown(at, if is_state_rule { &STATE_RULE_KEYS } else { &LOG_RULE_KEYS });
        if !is_state_rule {
            return Ok(AccessRule::Log { workload_names: self.texts(&at.required("workloadNames")?)? });
        }
        let operation = at.required("operation")?.member("Nothing, Read, Write or ReadWrite", Operation::parse)?;
        let filter_masks = match (at.optional("filterMasks"), at.optional("filterMask")) {
            (Some(_), Some(_)) => return at.problem("duplicate field `filterMasks` (`filterMask` is its old name)"),
            (Some(masks), None) | (None, Some(masks)) => self.texts(&masks)?,
            (None, None) => return at.problem("missing field `filterMasks`"),
        };
        Ok(AccessRule::State { operation, filter_masks })
    }
}

fn config_item(at: &At<'_>) -> Result<ConfigItem, Problem> {
    match at.node {
        Yaml::Text(text) => Ok(ConfigItem::Text(text.clone())),
        Yaml::List(_) => at.items()?.map(|item| config_item(&item)).collect::<Result<_, _>>().map(ConfigItem::List),
        Yaml::Map(_) => {
            let entries = at.entries()?.into_iter();
            let items = entries.map(|(key, item)| Ok((key.to_owned(), config_item(&item)?))).collect::<Result<_, _>>();
            items.map(ConfigItem::Map)
        }
        Yaml::Plain(Plain::Boolean | Plain::Integer | Plain::Float, _) | Yaml::Null => {
            at.expected("text (put it in quotes), a list or a mapping")
        }
    }
}

#[cfg(test)]
mod tests;
