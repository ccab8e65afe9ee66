//! Looks whether certificates expire soon: the one of the server and those of connected agents.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. It looks when a certificate
//! comes, at the time when the first one begins to be warned of, and then once a day. Without TLS
//! it never looks.

use super::ServerLoop;
use ankaios_wire::expiry::{until_warning, warning};
use std::time::{Duration, Instant, SystemTime};

/// Interval of looks while a certificate is warned of, and the longest one otherwise: the clock of
/// the node may be set meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// When the server looks at certificates.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// When its own one expires, in seconds since 1970; `None` without TLS.
    pub(crate) own: Option<u64>,
    next_look: Option<Instant>,
}

impl Expiry {
    /// When the next look is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_look
    }

    /// Lets a certificate that has come be looked at.
    pub(crate) fn look_at(&mut self, now: Instant) {
        self.next_look = Some(now);
    }
}

/// The time until the next look at certificates that expire then; `None` without one.
fn pause(expires: impl Iterator<Item = u64>, now: SystemTime) -> Option<Duration> {
    let until = expires.map(|one| until_warning(one, now)).min()?;
    if until.is_zero() {
        return Some(LOOK_INTERVAL);
    }
    Some(until.min(LOOK_INTERVAL))
}

impl ServerLoop {
    /// Sets when the server's own certificate expires.
    pub fn set_own_certificate(&mut self, expires: Option<u64>) {
        self.expiry.own = expires;
        if expires.is_some() {
            self.expiry.look_at(self.now());
        }
    }

    /// Looks at all certificates when that is due, and logs those that expire soon.
    pub(super) fn look_at_certificates(&mut self) {
        let Some(due) = self.expiry.next_look else {
            return;
        };
        let now = self.now();
        if now < due {
            return;
        }
        let wall_clock = SystemTime::now();
        let mut known = Vec::new();
        if let Some(expires) = self.expiry.own {
            known.push(("the server".to_owned(), expires));
        }
        for (name, agent) in self.sessions.agents() {
            if let Some(expires) = agent.certificate_expires {
                known.push((format!("agent '{name}'"), expires));
            }
        }
        for (owner, expires) in &known {
            if let Some(text) = warning(owner, *expires, wall_clock) {
                log::warn!("Certificates: {text}.");
            }
        }
        let pause = pause(known.iter().map(|(_, expires)| *expires), wall_clock);
        self.expiry.next_look = pause.and_then(|pause| now.checked_add(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn look_at_certificates_is_at_the_warning_and_then_daily() {
        let day = LOOK_INTERVAL.as_secs();
        let now = UNIX_EPOCH + Duration::from_secs(100 * day);
        for (expires, expected) in [
            (&[][..], None),
            (&[1_000 * day], Some(LOOK_INTERVAL)),
            (&[130 * day + 7, 1_000 * day], Some(Duration::from_secs(7))),
            (&[130 * day], Some(LOOK_INTERVAL)),
            (&[1_000 * day, 0], Some(LOOK_INTERVAL)),
        ] {
            assert_eq!(pause(expires.iter().copied(), now), expected, "{expires:?}");
        }
    }
}
