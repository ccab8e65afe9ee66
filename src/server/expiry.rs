//! Warns of certificates that expire soon: the one of the server and those of connected agents.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. Certificates are checked when
//! one comes, when the first warning is due, and then once a day. Without TLS there is no check.

use super::sessions::ConnectedAgent;
use ankaios_model::names::Name;
use ankaios_wire::expiry::{until_warning, warning};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// Interval in which a warning is repeated. Without a warning it is the longest time between two
/// checks, since the clock of the node may be set meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The checks of certificates.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// When the server's own certificate expires, in seconds since 1970; `None` without TLS.
    own: Option<u64>,
    next_check: Option<Instant>,
}

impl Expiry {
    /// When the next check is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_check
    }

    /// When the server's own certificate expires, in seconds since 1970; `None` without TLS.
    pub(crate) fn own(&self) -> Option<u64> {
        self.own
    }

    /// Sets when the server's own certificate expires.
    pub(crate) fn set_own(&mut self, expires: Option<u64>, now: Instant) {
        self.own = expires;
        if expires.is_some() {
            self.check_soon(now);
        }
    }

    /// Requests a check, since a certificate has come.
    pub(crate) fn check_soon(&mut self, now: Instant) {
        self.next_check = Some(now);
    }

    /// Warns of each certificate that expires soon, if a check is due, and sets the next check.
    pub(crate) fn check(&mut self, agents: &BTreeMap<Name, ConnectedAgent>, now: Instant) {
        if self.next_check.is_none_or(|due| now < due) {
            return;
        }
        let mut certificates = Vec::new();
        if let Some(expires) = self.own {
            certificates.push(("the server".to_owned(), expires));
        }
        for (name, agent) in agents {
            if let Some(expires) = agent.certificate_expires {
                certificates.push((format!("agent '{name}'"), expires));
            }
        }
        let wall_clock = SystemTime::now();
        let mut times = Vec::new();
        for (owner, expires) in certificates {
            if let Some(text) = warning(&owner, expires, wall_clock) {
                log::warn!("Certificates: {text}.");
            }
            times.push(expires);
        }
        self.next_check = match pause(&times, wall_clock) {
            Some(pause) => now.checked_add(pause),
            None => None,
        };
    }
}

/// The time until the next check of certificates that expire at these times; `None` without one.
fn pause(expires: &[u64], now: SystemTime) -> Option<Duration> {
    let first = expires.iter().min()?;
    let until = until_warning(*first, now);
    if until.is_zero() {
        return Some(CHECK_INTERVAL); // The warning was given, and will be repeated.
    }
    Some(until.min(CHECK_INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn check_of_certificates_is_at_the_warning_and_then_daily() {
        let day = CHECK_INTERVAL.as_secs();
        let now = UNIX_EPOCH + Duration::from_secs(100 * day);
        for (expires, expected) in [
            (&[][..], None),
            (&[1_000 * day], Some(CHECK_INTERVAL)),
            (&[130 * day + 7, 1_000 * day], Some(Duration::from_secs(7))),
            (&[130 * day], Some(CHECK_INTERVAL)),
            (&[1_000 * day, 0], Some(CHECK_INTERVAL)),
        ] {
            assert_eq!(pause(expires, now), expected, "{expires:?}");
        }
    }
}
