//! The block `update` of a `lifecycle:` block: how an update of the workload is staged, when it may be carried out, and
//! how it is judged.
//!
//! Thread: none, plain values.

use super::{At, Condition, Problem, condition, known_keys, milliseconds};
use crate::limits::{UPDATE_DEADLINE_LOWEST, UPDATE_DEADLINE_MS, UPDATE_HEALTHY_MS};
use crate::model::names::named_enum;
use crate::model::prepare_level::PrepareLevel;
use std::time::Duration;

const KEYS: [&str; 5] = ["stage", "when", "healthyMs", "deadlineMs", "onFailure"];

named_enum! {
    /// What follows from an update that failed.
    #[derive(Default)]
    OnFailure {
        /// What was before is desired again.
        Rollback = "ROLLBACK",
        /// The update stays.
        #[default]
        Keep = "KEEP",
    }
}

/// How an instance is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// It is healthy when it ran for so long, or has succeeded so long ago.
    pub healthy: Duration,
    /// It has failed when it was not healthy for so long.
    pub deadline: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let (healthy, deadline) = (UPDATE_HEALTHY_MS, UPDATE_DEADLINE_MS);
        Self { healthy: Duration::from_millis(healthy), deadline: Duration::from_millis(deadline) }
    }
}

/// A checked block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// What is prepared before old instances are stopped.
    pub stage: PrepareLevel,
    /// What must hold for the update to be carried out.
    pub when: Option<Condition>,
    /// How the instance is judged.
    pub terms: Terms,
    /// What follows when it fails; `None` leaves that to the server's settings.
    pub on_failure: Option<OnFailure>,
}

/// Reads the block.
pub(super) fn read(at: &At<'_>) -> Result<Update, Problem> {
    known_keys(at, &[&KEYS])?;
    let stage = at.optional("stage").map(|at| stage(&at)).transpose()?;
    let on_failure = at.optional("onFailure").map(|at| at.member("ROLLBACK or KEEP", OnFailure::parse)).transpose()?;
    let lowest = u64::try_from(UPDATE_DEADLINE_LOWEST.as_millis()).unwrap_or_default();
    let terms = Terms {
        healthy: milliseconds(at, "healthyMs", UPDATE_HEALTHY_MS, 0)?,
        deadline: milliseconds(at, "deadlineMs", UPDATE_DEADLINE_MS, lowest)?,
    };
    if terms.deadline <= terms.healthy {
        let [deadline, healthy] = [terms.deadline, terms.healthy].map(|time| time.as_millis());
        return at.problem(format!(
            "no instance could ever be healthy in time: 'deadlineMs' ({deadline}) must be greater than 'healthyMs' ({healthy})"
        ));
    }
    Ok(Update {
        stage: stage.unwrap_or(PrepareLevel::Create),
        when: at.optional("when").map(|at| condition(&at)).transpose()?,
        terms,
        on_failure,
    })
}

fn stage(at: &At<'_>) -> Result<PrepareLevel, Problem> {
    const NAMES: &str = "NONE, IMAGE or CREATE";
    match at.member(NAMES, PrepareLevel::parse)? {
        PrepareLevel::Init => at.problem(format!(
            "an initialised container would hold memory and ports beside the one that runs; expected {NAMES}"
        )),
        stage => Ok(stage),
    }
}
