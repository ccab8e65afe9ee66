//! Bounds of the server, with their reasons. Bounds with one user are in its file.
//!
//! Thread: none, plain values.

use ankaios_model::limits::{FOREIGN_MESSAGE_MAX, MESSAGE_MAX};
use ankaios_platform::limits::STOP_DEADLINE;
use std::time::Duration;

// ------------------------------------------------------------------ threads

/// Stack of the server's thread, in bytes: templates nested [`TEMPLATE_DEPTH_MAX`] deep need up to
/// 1.5 MiB.
pub const STACK_SERVER: usize = 4 * 1024 * 1024;

// ------------------------------------------------------------------ requests

/// Size up to which requests of workloads may let the desired and the effective state grow, in
/// bytes of memory of both: our clients take a response with all of it.
pub(crate) const STATE_OF_WORKLOADS_MAX: usize = 16 * 1024 * 1024;
const _: () = assert!(2 * STATE_OF_WORKLOADS_MAX < MESSAGE_MAX);
/// Event subscriptions of one stream. An agent's stream carries those of all its workloads.
pub(crate) const SUBSCRIPTIONS_PER_PEER_MAX: usize = 1024;
/// Log collections of one stream. An agent's stream carries those of all its workloads.
pub(crate) const LOG_COLLECTIONS_PER_PEER_MAX: usize = 1024;
/// Event subscriptions of one workload.
pub(crate) const SUBSCRIPTIONS_OF_WORKLOAD: usize = 64;
/// Log collections of one workload. Each may be of many workloads.
pub(crate) const LOG_COLLECTIONS_OF_WORKLOAD: usize = 64;
/// Parts of all field masks of one update and of the names that it restarts, each counted once: a
/// dozen masks for each of 5,000 workloads. Each part may take a hundred bytes while the state is
/// read.
pub(crate) const MASKS_PARTS_MAX: usize = 250_000;

// ---------------------------------------------------------- guarded updates

/// Guarded updates that are open at the same time. Each report is compared with all of them.
pub(crate) const UPDATES_OPEN: usize = 16;
/// Open guarded updates that workloads have requested, so that there is room for those of
/// commanders.
pub(crate) const UPDATES_OPEN_OF_WORKLOADS: usize = 12;
/// Ended updates that are kept, so that failures are remembered: of commanders, and as many of
/// workloads.
pub(crate) const UPDATES_ENDED: usize = 16;
/// Stored form of the ended updates of commanders, and as much of workloads, in bytes of JSON: it
/// is written with each desired state.
pub(crate) const UPDATES_ENDED_BYTES: usize = 1024 * 1024;
/// Time for which an update waits for a disconnected agent before it is switched.
pub(crate) const UPDATE_AGENT_AWAY: Duration = Duration::from_secs(60);

// ---------------------------------------------------------------- templates

/// Depth to which blocks, alternatives and brackets of a template may be nested. The template
/// engine recurses and would overflow the stack, which ends the process; it needs up to 16 KiB for
/// each level.
pub(crate) const TEMPLATE_DEPTH_MAX: usize = 64;
/// Longest rendered template, in bytes. Agents of Eclipse Ankaios take no longer messages.
pub(crate) const RENDERED_MAX: usize = FOREIGN_MESSAGE_MAX;
/// All rendered templates of one update, in bytes; more could not be sent to agents.
pub(crate) const RENDERED_UPDATE_MAX: usize = 2 * MESSAGE_MAX;
/// All rendered templates of an update that a workload requests, in bytes. It may let the state
/// grow only to [`STATE_OF_WORKLOADS_MAX`].
pub(crate) const RENDERED_FOR_WORKLOAD_MAX: usize = STATE_OF_WORKLOADS_MAX / 2;
const _: () = assert!(2 * TEMPLATE_DEPTH_MAX * 16 * 1024 < STACK_SERVER);
/// Steps of all templates of one update. A step is at most about a microsecond of the server's
/// thread on a small PC. Thousands of workloads with loops need some 100,000; nested loops over a
/// short list could run for years.
pub(crate) const TEMPLATE_STEPS_MAX: usize = 1_000_000;
/// Steps of all templates at a start, which are the result of several updates. Agents wait at most
/// two seconds meanwhile, and then start the rendered workloads. Those that are not rendered have
/// failed.
pub(crate) const TEMPLATE_START_STEPS: usize = 1_600_000;
/// Divisor of these steps: one part is shared evenly by all workloads, the rest is for workloads
/// that need more.
pub(crate) const TEMPLATE_START_SHARE: usize = 4;
const _: () = assert!(
    TEMPLATE_START_STEPS - TEMPLATE_START_STEPS / TEMPLATE_START_SHARE > TEMPLATE_STEPS_MAX
);
/// Bytes of config values that are copied or compared in one step.
pub(crate) const TEMPLATE_STEP_BYTES: usize = 1024;
/// Config values that the templates of one workload can name, in bytes of the template engine's
/// copy.
pub(crate) const TEMPLATE_VALUES_MAX: usize = RENDERED_MAX;

// ----------------------------------------------------------- mutating hooks

/// Time from SIGTERM to SIGKILL for a hook.
pub(crate) const HOOK_KILL_GRACE: Duration = Duration::from_millis(500);
const _: () = assert!(HOOK_KILL_GRACE.as_millis() < STOP_DEADLINE.as_millis());
