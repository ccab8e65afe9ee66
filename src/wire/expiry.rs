//! Certificates that expire soon: when that is a warning, and its text.
//!
//! Thread: none, plain functions; used by all programs.

use super::address::Security;
use super::tls;
use ankaios_platform::logging::utc_of;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Warnings begin this long before a certificate expires: an OTA update or a visit to a workshop
/// takes weeks.
pub const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// When our own certificate expires, in seconds since 1970; `None` without TLS.
pub fn own(security: &Security) -> Option<u64> {
    match security {
        Security::Insecure => None,
        Security::MutualTls(pem) => tls::expiry(pem),
    }
}

/// The time from `now` until warnings about a certificate begin; zero if they have begun. `expires`
/// is in seconds since 1970.
pub fn until_warning(expires: u64, now: SystemTime) -> Duration {
    let begin = Duration::from_secs(expires).saturating_sub(WARN_BEFORE);
    begin.saturating_sub(since_1970(now))
}

fn since_1970(now: SystemTime) -> Duration {
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The warning about the certificate of `owner` at the time `now`; `None` while it is valid for
/// longer than [`WARN_BEFORE`].
// [impl->swdd~programs-warn-of-expiring-certificates~1]
pub fn warning(owner: &str, expires: u64, now: SystemTime) -> Option<String> {
    if !until_warning(expires, now).is_zero() {
        return None;
    }
    let date = utc_of(expires);
    let Some(left) = Duration::from_secs(expires).checked_sub(since_1970(now)) else {
        return Some(format!(
            "the certificate of {owner} has expired on {date}, or the clock of this machine is wrong; connections are \
             refused until it is replaced"
        ));
    };
    let days = left.as_secs() / (24 * 3600);
    let plural = if days == 1 { "" } else { "s" };
    Some(format!(
        "the certificate of {owner} expires on {date}, in {days} day{plural}; replace it before"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    // [utest->swdd~programs-warn-of-expiring-certificates~1]
    #[test]
    fn expiry_is_warned_of_from_thirty_days_before() {
        let expires = 1_000 * DAY;
        for (now, expected) in [
            (970 * DAY - 1, None),
            (
                970 * DAY,
                Some("expires on 1972-09-27T00:00:00Z, in 30 days; replace"),
            ),
            (999 * DAY - 1, Some("in 1 day; replace")),
            (1_000 * DAY - 1, Some("in 0 days; replace")),
            (
                1_000 * DAY + 1,
                Some("has expired on 1972-09-27T00:00:00Z, or the clock"),
            ),
        ] {
            let text = warning("'A'", expires, UNIX_EPOCH + Duration::from_secs(now));
            match expected {
                None => assert_eq!(text, None),
                Some(part) => assert!(text.clone().unwrap().contains(part), "{text:?}"),
            }
        }
    }
}
