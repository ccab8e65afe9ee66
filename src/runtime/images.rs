//! Images got before the containers that need them.
//!
//! Thread: `call:<name>`. Owns: nothing; the engine keeps the images.

use super::engine_cli::EngineCli;
use super::{Cancel, RuntimeError};
use crate::limits::LISTING_MAX;
use crate::model::runtime_config::ContainerConfig;
use crate::model::shown_text::without_passwords;
use std::time::Duration;

/// Pulls the image of `config` if it is missing, with those of its options that choose the image. `exists` is the call
/// that fails when it is, without its name; `limit` bounds each call.
pub fn pull_missing(
    cli: &EngineCli,
    config: &ContainerConfig,
    exists: &[&str],
    limit: Option<Duration>,
    cancel: Cancel<'_>,
) -> Result<(), RuntimeError> {
    let call = cli.call(config.call(exists).address(&config.image));
    let short = limit.map_or(LISTING_MAX, |limit| limit.min(LISTING_MAX));
    match call.limit(short).run(cancel) {
        Err(RuntimeError::Failed(_)) if config.may_not_pull() => {
            Err(RuntimeError::Failed(format!("{}: image not known", without_passwords(&config.image))))
        }
        Err(RuntimeError::Failed(_)) => cli.change(config.pull_arguments()).limit(limit).run(cancel).map(drop),
        result => result.map(drop),
    }
}
