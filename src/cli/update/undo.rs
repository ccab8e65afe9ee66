//! `ank apply --rollback`: `ank` judges the update itself, and puts back what was there when it fails. Any server will do.
//!
//! Thread: `main`.

use crate::cli::error::{CliError, ExitCode, Result};
use crate::cli::rows;
use crate::cli::session::{Accepted, Context, ServerLink};
use crate::cli::wait::trial::{ClientTrial, effective_mask};
use crate::cli::wait::{self, WaitState, settled};
use crate::model::field_path::parts;
use crate::model::node::Node;
use std::time::Duration;

impl Context<'_> {
    /// Judges an accepted update of what `masks` name, which was `old` and came to the complete state `before`. Undoes it
    /// when it fails.
    pub(super) fn judge(
        &mut self,
        masks: &[String],
        old: &Node,
        accepted: &Accepted,
        before: &Node,
        mut state: WaitState,
    ) -> Result<ExitCode> {
        let effective = ClientTrial::names(accepted, before).into_iter().map(|name| effective_mask(&name));
        let sent = self.read(&masks.iter().cloned().chain(effective).collect::<Vec<_>>())?;
        let mut trial = ClientTrial::new(accepted, before, &mut state, &sent, self.link.now());
        let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, states: &[_]| trial.check(wait, link, states);
        let reached = wait::wait(&mut state, goal, self.waiting.limit, self).inspect_err(|_| {
            self.output.warn("the update is not watched any more: it stays in force, whether it fails or not");
        })?;
        if let Some(why) = &trial.failure {
            self.output.warn(format_args!("the update failed: {why}"));
            return self.undo(masks, old, &sent, trial.longest_deadline);
        }
        for why in &trial.kept {
            self.output.warn(format_args!("failed, and stays because of 'onFailure: KEEP': {why}"));
        }
        if reached && !trial.gone.is_empty() {
            let names = trial.gone.iter().map(|name| &**name).collect::<Vec<_>>().join("', '");
            let text = format!("others deleted or replaced '{names}' meanwhile; all else of the update is in force");
            self.output.error(text, "'ank diff' shows what is not as the manifests say");
            return Ok(ExitCode::Failed);
        }
        let code = self.conclude(&state, reached);
        let failed = self.waiting.fail_on_error && !trial.kept.is_empty();
        Ok(if failed && code == ExitCode::Success { ExitCode::WorkloadFailed } else { code })
    }

    /// Sends what was `old` there, but for those that are not as they were `sent`, and waits at most for `limit`.
    fn undo(&mut self, masks: &[String], old: &Node, sent: &Node, limit: Duration) -> Result<ExitCode> {
        let before = self.read(&rows::MASKS)?;
        let now = self.read(masks)?;
        let is_as_sent = |mask: &String| now.at(&parts(mask)) == sent.at(&parts(mask));
        let (ours, others): (Vec<String>, Vec<String>) = masks.iter().cloned().partition(is_as_sent);
        self.output.status("Putting back what was there before.\n")?;
        if !ours.is_empty() {
            let accepted = match self.link.update_state(old.clone(), ours) {
                Err(CliError::Refused(text)) => {
                    let text = format!("the update failed and cannot be undone: '{text}'");
                    self.output.error(text, "the update stays in force; see 'ank get workloads'");
                    return Ok(ExitCode::Failed);
                }
                accepted => accepted?,
            };
            let mut state = WaitState::new(&accepted, &before, &self.link.complete_state(&rows::MASKS)?);
            let reached = wait::wait(&mut state, settled, Some(limit), self)?;
            self.warn_of_missed(&state, reached);
        }
        if others.is_empty() {
            let hint = "the desired state is as it was before; correct the manifest and apply it again";
            self.output.error("the update failed and was undone", hint);
            return Ok(ExitCode::Undone);
        }
        let names: Vec<&str> = others.iter().filter_map(|mask| parts(mask).last().copied()).collect();
        let text = format!("the update failed; '{}' stayed because others changed it meanwhile", names.join("', '"));
        self.output.error(text, "all else that the update names is as it was before; see 'ank diff'");
        Ok(ExitCode::Failed)
    }
}

#[cfg(test)]
mod tests;
