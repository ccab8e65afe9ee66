//! The checks of an update, and what it means for workloads. Nothing is changed here, so a refused
//! update leaves no trace.
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
use std::fmt::Display;
use std::sync::Arc;

/// Workloads of a start that cannot be taken over, and why.
pub(crate) type Failed = BTreeMap<Name, String>;

/// An update that passed all checks but is not carried out yet.
#[derive(Debug, Default)]
pub(crate) struct CheckedUpdate {
    /// What changes in the desired state.
    pub(crate) change: DesiredChange,
    /// The new revisions of the workloads that are rendered in another way, or that hooks have
    /// changed.
    pub(crate) revisions: BTreeMap<Name, Revision>,
    /// Workloads that fail alone.
    pub(crate) failed: Failed,
    /// Whether a client writes the config item of the mode, also with the text that it has.
    pub(crate) writes_mode: bool,
    /// Workloads that are restarted.
    pub(crate) restarted: BTreeSet<Name>,
}

/// What brings a change, which decides about workloads that cannot be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateSource {
    /// A request: the whole update is refused.
    Update,
    /// The same of a workload, whose templates may render less.
    UpdateOfWorkload,
    /// The startup manifest: it is refused, unless only its templates do too much. They may come
    /// from many users, and a server that ends would be started again and again.
    Manifest,
    /// A state that an earlier server had accepted: each such workload fails alone.
    Stored,
}

impl UpdateSource {
    fn is_update(self) -> bool {
        matches!(self, Self::Update | Self::UpdateOfWorkload)
    }

    /// Notes the reason for a workload that fails alone.
    ///
    /// # Errors
    /// The `error`, where it is one of the whole update.
    fn fail(
        self,
        failed: &mut Failed,
        name: &Name,
        error: UpdateError,
        does_too_much: bool,
    ) -> Result<(), UpdateError> {
        let fails_alone = self == Self::Stored || self == Self::Manifest && does_too_much;
        if !fails_alone {
            return Err(error);
        }
        failed.insert(name.clone(), error.to_string());
        Ok(())
    }
}

/// Tags that an update gives to an agent are bounded like those of its hello.
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

/// What an earlier server accepted stays as it is, also at a start; its agent reports what is wrong
/// with it.
fn check_files(change: &DesiredChange) -> Result<(), UpdateError> {
    for (name, workload) in &change.workloads {
        let checked = workload
            .iter()
            .try_for_each(|workload| check_mount_points(workload));
        checked.map_err(|error| UpdateError::invalid(named(&error, name)))?;
    }
    Ok(())
}

/// A typo in a `lifecycle:` block must not switch a safety gate off, so the server refuses it.
///
/// `left` is what the texts may still become that are read for this update.
fn check_lifecycle(
    AddedWorkload { instance, workload }: &AddedWorkload,
    left: &mut usize,
) -> Result<(), UpdateError> {
    let refused = |error: LifecycleError| {
        UpdateError::invalid(format_args!("Workload '{}': {error}", instance.workload))
    };
    let read = lifecycle::of_config_within(&workload.runtime, &workload.runtime_config, left);
    if let Some(lifecycle) = read.map_err(refused)? {
        let checked = lifecycle.check_dependencies(&workload.dependencies);
        checked.map_err(refused)?;
    }
    Ok(())
}

/// The text of `error`, with the name of the workload it is about.
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
    /// Checks and renders `change`, and finds out what it means for workloads. The cost depends on
    /// what changes and what uses that, not on all that there is.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub(crate) fn check(
        &self,
        change: DesiredChange,
        source: UpdateSource,
    ) -> Result<CheckedUpdate, UpdateError> {
        let rule = |error: &dyn Error| UpdateError::Rule(error.to_string());
        if let Some(version) = &change.api_version
            && check_api_version(version).map_err(|error| rule(&error))?
        {
            log::warn!("The API version '{version}' is deprecated; use 'v1'.");
        }
        let configs = change
            .configs
            .iter()
            .filter_map(|(key, item)| Some((key, item.as_ref()?)));
        check_config_keys(configs).map_err(|error| rule(&error))?;
        if source.is_update() {
            check_files(&change)?;
            check_agent_tags(&change.agent_tags)?;
        }
        let mut failed = Failed::new();
        for (name, workload) in &change.workloads {
            if let Err(error) = workload
                .iter()
                .try_for_each(|workload| check_config_references(workload))
            {
                source.fail(
                    &mut failed,
                    name,
                    UpdateError::Rule(named(&error, name)),
                    false,
                )?;
            }
        }
        let mut revisions = BTreeMap::new();
        // Size of all runtime configurations of one update or start that may have a `lifecycle:`
        // block, in bytes: some 20,000 with forty nodes each. The server reads them in a row, about
        // 5 ns for each byte.
        let mut texts_left = 128 * 1024 * 1024;
        for (name, rendered) in self.rendered(&change, source, &mut failed)? {
            let known = self.before_hooks().get(&name).map(|known| &known.workload);
            if known == rendered.as_ref() || failed.contains_key(&name) {
                continue;
            }
            let rendered = rendered.map(|workload| added(&name, workload));
            if let Some(added) = &rendered {
                let checked = check_workload(&name, &added.workload);
                let checked = checked.map_err(|error| UpdateError::invalid(named(&error, &name)));
                if let Err(error) = checked.and_then(|()| check_lifecycle(added, &mut texts_left)) {
                    source.fail(&mut failed, &name, error, false)?;
                    continue;
                }
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
        self.check_together(&change, &failed)?;
        Ok(CheckedUpdate {
            change,
            revisions,
            failed,
            ..CheckedUpdate::default()
        })
    }

    /// Checks what workloads are together after `change`, but for the `failed` ones.
    pub(crate) fn check_together(
        &self,
        change: &DesiredChange,
        failed: &Failed,
    ) -> Result<(), UpdateError> {
        self.check_modes(change)
            .map_err(|error| UpdateError::invalid_modes("", &error))?;
        let workload = |name: &str| {
            change
                .workload(&self.desired, name)
                .map(|workload| &**workload)
        };
        // Also what is active in this revision already: what is desired beside it may still be
        // staged.
        let new = change
            .workloads
            .keys()
            .filter(|name| !failed.contains_key(*name));
        find_cycle(workload, new).map_or(Ok(()), |cycle| Err(UpdateError::cycle(&cycle)))
    }

    /// Checks what `change` says about modes, if there are modes.
    fn check_modes(&self, change: &DesiredChange) -> Result<(), ModeError> {
        let Some(modes) = &self.modes else {
            return Ok(());
        };
        let item = change.config(&self.desired, modes.item());
        modes.check_item(item)?;
        for (name, workload) in change
            .workloads
            .iter()
            .filter_map(|(name, workload)| Some((name, workload.as_ref()?)))
        {
            modes.check(name, workload, item.is_some())?;
        }
        if item.is_none() && change.configs.contains_key(modes.item()) {
            let stays = |name: &Name| !change.workloads.contains_key(name);
            for (name, workload) in self
                .desired
                .workloads
                .iter()
                .filter(|(name, _)| stays(name))
            {
                modes.check(name, workload, false)?;
            }
            modes.check_hooked(self.placed(), stays)?;
        }
        Ok(())
    }

    /// Takes over what hooks made of an update. What they leave out stays as it is by now: their
    /// plan may have been made for another state.
    ///
    /// # Errors
    /// [`UpdateError`] when a hook refused it, or its output cannot be carried out.
    pub(crate) fn hooked(
        &self,
        mut checked: CheckedUpdate,
        outcome: HookOutcome,
    ) -> Result<CheckedUpdate, UpdateError> {
        let invalid =
            |reason: &dyn Display| UpdateError::invalid(format_args!("Hook output: {reason}"));
        if let Some(output) = outcome? {
            self.change_by_hooks(&mut checked, output)
                .map_err(|reason| invalid(&reason))?;
        }
        let CheckedUpdate {
            change, revisions, ..
        } = &checked;
        let new = || {
            revisions
                .values()
                .filter_map(|revision| revision.effective.as_ref())
        };
        if let Some(modes) = &self.modes {
            let has_item = change.config(&self.desired, modes.item()).is_some();
            let checked =
                new().try_for_each(|it| modes.check(&it.instance.workload, &it.workload, has_item));
            checked.map_err(|error| UpdateError::invalid_modes("Hook output: ", &error))?;
        }
        let effective = |name: &str| {
            revisions
                .get(name)
                .map_or_else(|| self.placed().get(name), |it| it.effective.as_ref())
        };
        let workload = |name: &str| effective(name).map(|added| &*added.workload);
        match find_cycle(workload, new().map(|added| &added.instance.workload)) {
            Some(cycle) => Err(UpdateError::cycle(&cycle)),
            None => Ok(checked),
        }
    }

    /// An instance that is replaced ends even if a hook forgot it, one that does not exist cannot
    /// end.
    fn change_by_hooks(
        &self,
        checked: &mut CheckedUpdate,
        output: WorkloadPlan,
    ) -> Result<(), String> {
        let effective = self.placed();
        let made = std::mem::take(&mut checked.revisions);
        let as_it_is = |(name, revision): (&Name, &Revision)| {
            (
                name.clone(),
                Revision {
                    effective: effective.get(name).cloned(),
                    ..revision.clone()
                },
            )
        };
        let mut revisions: BTreeMap<Name, Revision> = made.iter().map(as_it_is).collect_entries();
        let mut place = |name: &Name, new: Option<AddedWorkload>| {
            let desired = || checked.change.workload(&self.desired, name).cloned();
            let revision = revisions.entry(name.clone()).or_insert_with(|| Revision {
                desired: desired(),
                ..self.revision(name)
            });
            revision.effective = new;
        };
        for DeletedWorkload { instance, .. } in output.deleted {
            if effective
                .get(&instance.workload)
                .is_some_and(|known| known.instance == instance)
            {
                place(&instance.workload, None);
            } else {
                log::warn!(
                    "A hook deletes '{}', which does not exist.",
                    excerpt(&instance.to_string())
                );
            }
        }
        let mut added = BTreeSet::new();
        for entry in output.added {
            check_added(&entry)?;
            let name = entry.instance.workload.clone();
            // What is the same is shared, so that no text is kept twice.
            let same = made
                .get(&name)
                .and_then(|revision| revision.effective.clone())
                .filter(|known| *known == entry);
            place(&name, Some(same.unwrap_or(entry)));
            if !added.insert(name.clone()) {
                return Err(format!("Workload '{name}' is added twice."));
            }
        }
        checked.revisions = revisions;
        Ok(())
    }

    /// The workloads that `change` touches as agents will get them, `None` for those that go: those
    /// that it names, and those that use configs that it names. At a start, those that need more
    /// than their share come last.
    pub(crate) fn rendered(
        &self,
        change: &DesiredChange,
        source: UpdateSource,
        failed: &mut Failed,
    ) -> Result<BTreeMap<Name, Option<Arc<Workload>>>, UpdateError> {
        let users = change
            .configs
            .keys()
            .flat_map(|key| self.config_users.of(key));
        let mut names: BTreeSet<&Name> = change.workloads.keys().chain(users).collect_entries();
        let config = |key: &str| change.config(&self.desired, key);
        let mut start = StartBudget::new(names.len());
        let mut rendered = BTreeMap::new();
        let bytes = if source == UpdateSource::UpdateOfWorkload {
            RENDERED_FOR_WORKLOAD_MAX
        } else {
            RENDERED_UPDATE_MAX
        };
        self.templates.begin(TEMPLATE_STEPS_MAX, bytes);
        for is_last in [source.is_update(), true] {
            for name in std::mem::take(&mut names) {
                let workload = change.workload(&self.desired, name);
                let result = workload.map(|workload| match source {
                    UpdateSource::Manifest | UpdateSource::Stored => self
                        .templates
                        .render_within(&mut start, is_last, workload, config),
                    _ => self.templates.render(workload, config),
                });
                match result.transpose() {
                    Ok(workload) => drop(rendered.insert(name.clone(), workload)),
                    Err(RenderError::TooManySteps { .. }) if !is_last => drop(names.insert(name)),
                    Err(error) => {
                        let does_too_much = matches!(error, RenderError::TooManySteps { .. });
                        source.fail(
                            failed,
                            name,
                            UpdateError::invalid(with_workload(&error, name)),
                            does_too_much,
                        )?;
                    }
                }
            }
        }
        Ok(rendered)
    }
}
