//! The checks of an update, and the new revisions of its workloads. Nothing is changed here, so a
//! refused update leaves no trace.
//!
//! Thread: `server`; plain values and the part of [`Workloads`] that makes them.

use super::Workloads;
use super::desired_change::{DesiredChange, Tags, UpdateError};
use super::modes::ModeError;
use super::plan::{Revision, added, check_added};
use super::templates::{RenderError, StartBudget};
use crate::limits::{RENDERED_FOR_WORKLOAD_MAX, RENDERED_UPDATE_MAX, TEMPLATE_STEPS_MAX};
use crate::mutating_hooks::HookOutcome;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::tags_bytes;
use ankaios_model::cycles::find_cycle;
use ankaios_model::lifecycle::{self, LifecycleError};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, WorkloadPlan};
use ankaios_model::names::{Name, excerpt};
use ankaios_model::validation::{
    ValidationError, check_api_version, check_config_keys, check_config_references,
    check_mount_points, check_workload,
};
use ankaios_model::workload::Workload;
use ankaios_wire::limits::AGENT_TAGS_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use std::sync::Arc;

/// All runtime configurations of one update or start that may have a `lifecycle:` block, in bytes:
/// some 20,000 with forty nodes each. The server reads them in a row, about 5 ns for each byte.
pub(super) const LIFECYCLE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Workloads of a start that cannot be taken over, with the reason.
pub(crate) type Failed = BTreeMap<Name, String>;

/// An update that passed all checks and is not committed yet.
#[derive(Debug, Default)]
pub(crate) struct CheckedUpdate {
    /// The change of the desired state.
    pub(crate) change: DesiredChange,
    /// The new revisions of the workloads that are rendered in another way, or that hooks have
    /// changed.
    pub(crate) revisions: BTreeMap<Name, Revision>,
    /// Workloads that fail alone.
    pub(crate) failed: Failed,
    /// Whether a client writes the config item of the mode, be it with the same text.
    pub(crate) writes_mode: bool,
    /// Workloads that are restarted.
    pub(crate) restarted: BTreeSet<Name>,
}

/// The source of a change. It decides about workloads that cannot be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateSource {
    /// A request: the whole update is refused.
    Update,
    /// A request of a workload, whose templates may render less.
    UpdateOfWorkload,
    /// The startup manifest: it is refused, unless its templates only do too much altogether. They
    /// may come from many users, and a server that ends would be started again and again.
    Manifest,
    /// A state that an earlier server had accepted: each such workload fails alone.
    Stored,
}

impl UpdateSource {
    fn is_update(self) -> bool {
        matches!(self, Self::Update | Self::UpdateOfWorkload)
    }

    /// Notes the reason for a workload that fails alone. `does_too_much`: its templates exceed a
    /// bound of the whole update.
    ///
    /// # Errors
    /// The `error`, if it refuses the whole update.
    fn fail(
        self,
        failed: &mut Failed,
        name: &Name,
        error: UpdateError,
        does_too_much: bool,
    ) -> Result<(), UpdateError> {
        let fails_alone = match self {
            Self::Update | Self::UpdateOfWorkload => false,
            Self::Manifest => does_too_much,
            Self::Stored => true,
        };
        if !fails_alone {
            return Err(error);
        }
        failed.insert(name.clone(), error.to_string());
        Ok(())
    }
}

/// Checks the API version and the keys of configs.
fn check_rules(change: &DesiredChange) -> Result<(), UpdateError> {
    if let Some(version) = &change.api_version {
        let is_deprecated = check_api_version(version).map_err(rule)?;
        if is_deprecated {
            log::warn!("The API version '{version}' is deprecated; use 'v1'.");
        }
    }
    let mut configs = Vec::new();
    for (key, item) in &change.configs {
        if let Some(item) = item {
            configs.push((key, item));
        }
    }
    check_config_keys(configs).map_err(rule)
}

fn rule(error: ValidationError) -> UpdateError {
    UpdateError::Rule(error.to_string())
}

/// Checks the tags that an update gives to agents: they have the bound of the tags in a hello.
fn check_agent_tags(agent_tags: &BTreeMap<Name, Tags>) -> Result<(), UpdateError> {
    for (name, tags) in agent_tags {
        let bytes = tags_bytes(tags);
        if bytes > AGENT_TAGS_BYTES {
            let name = excerpt(name);
            let text = format!(
                "The tags of agent '{name}' take {bytes} bytes, at most {AGENT_TAGS_BYTES} are allowed"
            );
            return Err(UpdateError::invalid(text));
        }
    }
    Ok(())
}

/// Checks the mount points of files. Only updates are checked: a workload that an earlier server
/// has accepted stays unchanged at a start, and its agent reports the fault.
fn check_files(change: &DesiredChange) -> Result<(), UpdateError> {
    for (name, workload) in &change.workloads {
        if let Some(workload) = workload
            && let Err(error) = check_mount_points(workload)
        {
            return Err(UpdateError::invalid(named(&error, name)));
        }
    }
    Ok(())
}

/// Checks a rendered workload and its `lifecycle:` block, in which a typo must not switch a safety
/// gate off. `bytes_left`, see [`LIFECYCLE_BYTES_MAX`].
fn check_rendered(
    AddedWorkload { instance, workload }: &AddedWorkload,
    bytes_left: &mut usize,
) -> Result<(), UpdateError> {
    let name = &instance.workload;
    if let Err(error) = check_workload(name, workload) {
        return Err(UpdateError::invalid(named(&error, name)));
    }
    match check_lifecycle(workload, bytes_left) {
        Ok(()) => Ok(()),
        Err(error) => Err(UpdateError::invalid(format_args!(
            "Workload '{name}': {error}"
        ))),
    }
}

fn check_lifecycle(workload: &Workload, bytes_left: &mut usize) -> Result<(), LifecycleError> {
    let config = &workload.runtime_config;
    let lifecycle = lifecycle::of_config_within(&workload.runtime, config, bytes_left)?;
    if let Some(lifecycle) = lifecycle {
        lifecycle.check_dependencies(&workload.dependencies)?;
    }
    Ok(())
}

/// The text of `error`, with the name of its workload.
fn named(error: &ValidationError, workload: &str) -> String {
    if error.names_workload() {
        error.to_string()
    } else {
        with_workload(error, workload)
    }
}

fn with_workload(error: &dyn Error, workload: &str) -> String {
    format!("{error} (workload '{workload}')")
}

impl Workloads {
    /// Checks and renders `change`. The cost depends on the changed workloads and configs and their
    /// users, not on the size of the state.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub(crate) fn check(
        &self,
        change: DesiredChange,
        source: UpdateSource,
    ) -> Result<CheckedUpdate, UpdateError> {
        // First, the change as it is desired.
        check_rules(&change)?;
        if source.is_update() {
            check_files(&change)?;
            check_agent_tags(&change.agent_tags)?;
        }
        let mut failed = Failed::new();
        for (name, workload) in &change.workloads {
            if let Some(workload) = workload
                && let Err(error) = check_config_references(workload)
            {
                let error = UpdateError::Rule(named(&error, name));
                source.fail(&mut failed, name, error, false)?;
            }
        }
        // Then, each workload as it is rendered.
        let mut revisions = BTreeMap::new();
        let mut bytes_left = LIFECYCLE_BYTES_MAX;
        for (name, rendered) in self.rendered(&change, source, &mut failed)? {
            let known = self.before_hooks().get(&name).map(|known| &known.workload);
            if known == rendered.as_ref() || failed.contains_key(&name) {
                continue; // Unchanged, or not taken over.
            }
            let rendered = rendered.map(|workload| added(&name, workload));
            if let Some(added) = &rendered
                && let Err(error) = check_rendered(added, &mut bytes_left)
            {
                source.fail(&mut failed, &name, error, false)?;
                continue;
            }
            let desired = change.workload(&self.desired, &name).cloned();
            revisions.insert(
                name,
                Revision {
                    desired,
                    effective: rendered.clone(),
                    rendered,
                },
            );
        }
        // Finally, the workloads together.
        self.check_together(&change, &failed)?;
        Ok(CheckedUpdate {
            change,
            revisions,
            failed,
            ..CheckedUpdate::default()
        })
    }

    /// Checks the state after `change` as a whole: the modes of workloads, and that no workloads
    /// wait for each other. The `failed` ones are left out.
    pub(crate) fn check_together(
        &self,
        change: &DesiredChange,
        failed: &Failed,
    ) -> Result<(), UpdateError> {
        if let Err(error) = self.check_modes(change) {
            return Err(UpdateError::invalid_modes("", &error));
        }
        // Workloads that are already active in this revision are checked as well: the workloads
        // that they need may still be staged.
        let names = change.workloads.keys();
        let names = names.filter(|name| !failed.contains_key(*name));
        let cycle = find_cycle(|name| Some(&**change.workload(&self.desired, name)?), names);
        match cycle {
            Some(cycle) => Err(UpdateError::cycle(&cycle)),
            None => Ok(()),
        }
    }

    /// Checks the mode item and the modes of changed workloads, if there are modes.
    fn check_modes(&self, change: &DesiredChange) -> Result<(), ModeError> {
        let Some(modes) = &self.modes else {
            return Ok(());
        };
        let item = change.config(&self.desired, modes.item());
        modes.check_item(item)?;
        for (name, workload) in &change.workloads {
            if let Some(workload) = workload {
                modes.check(name, workload, item.is_some())?;
            }
        }
        // If the change deletes the mode item, no other workload may name a mode.
        let deletes_item = item.is_none() && change.configs.contains_key(modes.item());
        if !deletes_item {
            return Ok(());
        }
        for (name, workload) in &self.desired.workloads {
            if !change.workloads.contains_key(name) {
                modes.check(name, workload, false)?;
            }
        }
        modes.check_hooked(self.placed(), change)
    }

    /// Takes over the changes of hooks to an update. Workloads that they leave out stay unchanged,
    /// since their plan may have been made for another state.
    ///
    /// # Errors
    /// [`UpdateError`] when a hook refused the update, or its output is not valid.
    pub(crate) fn hooked(
        &self,
        mut checked: CheckedUpdate,
        outcome: HookOutcome,
    ) -> Result<CheckedUpdate, UpdateError> {
        if let Some(output) = outcome?
            && let Err(reason) = self.change_by_hooks(&mut checked, output)
        {
            return Err(UpdateError::invalid(format_args!("Hook output: {reason}")));
        }
        let mut names = Vec::new();
        for revision in checked.revisions.values() {
            if let Some(added) = &revision.effective {
                self.check_hooked_modes(added, &checked.change)?;
                names.push(&added.instance.workload);
            }
        }
        let cycle = find_cycle(|name| self.effective_after(&checked.revisions, name), names);
        match cycle {
            Some(cycle) => Err(UpdateError::cycle(&cycle)),
            None => Ok(checked),
        }
    }

    /// Checks the modes of a workload that hooks may have changed, if there are modes.
    fn check_hooked_modes(
        &self,
        added: &AddedWorkload,
        change: &DesiredChange,
    ) -> Result<(), UpdateError> {
        let Some(modes) = &self.modes else {
            return Ok(());
        };
        let has_item = change.config(&self.desired, modes.item()).is_some();
        match modes.check(&added.instance.workload, &added.workload, has_item) {
            Ok(()) => Ok(()),
            Err(error) => Err(UpdateError::invalid_modes("Hook output: ", &error)),
        }
    }

    /// The effective workload `name` once these revisions are active.
    fn effective_after<'w>(
        &'w self,
        revisions: &'w BTreeMap<Name, Revision>,
        name: &str,
    ) -> Option<&'w Workload> {
        let added = match revisions.get(name) {
            Some(revision) => revision.effective.as_ref()?,
            None => self.placed().get(name)?,
        };
        Some(&added.workload)
    }

    /// Replaces the revisions of an update by those of the hooks. A replaced instance ends even if
    /// the hooks left its delete out.
    fn change_by_hooks(
        &self,
        checked: &mut CheckedUpdate,
        output: WorkloadPlan,
    ) -> Result<(), String> {
        let placed = self.placed();
        let change = &checked.change;
        // First, all workloads unchanged.
        let before_hooks = std::mem::take(&mut checked.revisions);
        let mut revisions = BTreeMap::new();
        for (name, revision) in &before_hooks {
            let unchanged = Revision {
                effective: placed.get(name).cloned(),
                ..revision.clone()
            };
            revisions.insert(name.clone(), unchanged);
        }
        // Then, the deletes of the hooks.
        for DeletedWorkload { instance, .. } in output.deleted {
            let name = &instance.workload;
            match placed.get(name) {
                Some(known) if known.instance == instance => {
                    self.set_effective(&mut revisions, change, name, None);
                }
                _ => {
                    let instance = instance.to_string();
                    log::warn!(
                        "A hook deletes '{}', which does not exist.",
                        excerpt(&instance)
                    );
                }
            }
        }
        // Finally, their added workloads.
        let mut names = BTreeSet::new();
        for mut added in output.added {
            check_added(&added)?;
            let name = added.instance.workload.clone();
            if !names.insert(name.clone()) {
                return Err(format!("Workload '{name}' is added twice."));
            }
            // An unchanged workload is shared, so that no text is kept twice.
            if let Some(revision) = before_hooks.get(&name)
                && let Some(known) = &revision.effective
                && *known == added
            {
                added = known.clone();
            }
            self.set_effective(&mut revisions, change, &name, Some(added));
        }
        checked.revisions = revisions;
        Ok(())
    }

    /// Sets the effective workload `name` in the revisions of an update with this change.
    fn set_effective(
        &self,
        revisions: &mut BTreeMap<Name, Revision>,
        change: &DesiredChange,
        name: &Name,
        effective: Option<AddedWorkload>,
    ) {
        let revision = revisions.entry(name.clone()).or_insert_with(|| Revision {
            desired: change.workload(&self.desired, name).cloned(),
            ..self.revision(name)
        });
        revision.effective = effective;
    }

    /// Renders the workloads that `change` names, and the users of the configs that it names. A
    /// deleted workload is `None`.
    pub(crate) fn rendered(
        &self,
        change: &DesiredChange,
        source: UpdateSource,
        failed: &mut Failed,
    ) -> Result<BTreeMap<Name, Option<Arc<Workload>>>, UpdateError> {
        let mut names: BTreeSet<&Name> = change.workloads.keys().collect_entries();
        for key in change.configs.keys() {
            names.extend(self.config_users.of(key));
        }
        let bytes = if source == UpdateSource::UpdateOfWorkload {
            RENDERED_FOR_WORKLOAD_MAX
        } else {
            RENDERED_UPDATE_MAX
        };
        self.templates.begin(TEMPLATE_STEPS_MAX, bytes);
        let mut start = StartBudget::new(names.len());
        let mut rendered = BTreeMap::new();
        // At a start, workloads that need more than their share of the steps are left for a second
        // pass, in which they may take all remaining steps. An update needs one pass, which leaves
        // no names for the second.
        for is_last_pass in [source.is_update(), true] {
            for name in std::mem::take(&mut names) {
                let Some(workload) = change.workload(&self.desired, name) else {
                    rendered.insert(name.clone(), None); // It is deleted.
                    continue;
                };
                let result = if source.is_update() {
                    self.templates
                        .render(workload, |key| change.config(&self.desired, key))
                } else {
                    self.templates
                        .render_within(&mut start, is_last_pass, workload, |key| {
                            change.config(&self.desired, key)
                        })
                };
                let error = match result {
                    Ok(workload) => {
                        rendered.insert(name.clone(), Some(workload));
                        continue;
                    }
                    Err(error) => error,
                };
                let does_too_much = matches!(error, RenderError::TooManySteps { .. });
                if does_too_much && !is_last_pass {
                    names.insert(name); // For the second pass.
                    continue;
                }
                let error = UpdateError::invalid(with_workload(&error, name));
                source.fail(failed, name, error, does_too_much)?;
            }
        }
        Ok(rendered)
    }
}
