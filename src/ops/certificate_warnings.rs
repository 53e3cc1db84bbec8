//! Warnings about the dates of certificates: those that clients, origins or the store refuse, now or soon.
//!
//! A warning, never an error: a process that serves nothing because one of its certificates has expired is worse than one
//! that serves it. What must always hold: every certificate that tollgate shows to a peer is looked at.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::clock::Nanos;
use crate::config::{Config, SourceMap, StoreConfig, Warning, WarningCode};
use crate::edge::ChainValidity;

/// A certificate that ends within this time expires soon, or within a quarter of its lifetime if that is shorter: clients
/// of ACME renew it before.
const SOON_SECONDS: i64 = 14 * DAY_SECONDS;

/// The part of its lifetime in which a certificate with a short one expires soon.
const SOON_DIVISOR: i64 = 4;

const DAY_SECONDS: i64 = 86_400;
const HOUR_SECONDS: i64 = 3_600;

/// Warnings about the certificates that the configuration names. `now` is the date.
pub fn certificate_warnings(config: &Config, source: &SourceMap, now: Nanos) -> Vec<Warning> {
    let now = i64::try_from(now.secs()).unwrap_or(i64::MAX);
    let mut warnings = Vec::new();
    let mut look = |path: String, file: Option<&Path>, pem: &[u8]| {
        let judged = ChainValidity::of_pem(pem).and_then(|validity| judge(validity, now));
        if let Some((code, what)) = judged {
            let file = file.map(|file| format!("{}: ", file.display())).unwrap_or_default();
            let message = format!("{file}the certificate {what}");
            let cure = "renew it, and reload";
            warnings.extend(source.warning(code, &path, message, cure));
        }
    };
    for (index, listener) in config.listeners.iter().enumerate() {
        for (number, files) in listener.certificates.iter().enumerate() {
            let path = format!("listeners[{index}].tls[{number}].certificate");
            let pem = fs::read(&files.certificate).unwrap_or_default();
            look(path, Some(&files.certificate), &pem);
        }
    }
    for origin in &config.origins {
        if let Some(client) = origin.tls.as_ref().and_then(|tls| tls.client.as_ref()) {
            let path = format!("origins.{}.tls.certificate", origin.name);
            let pem = fs::read(&client.certificate).unwrap_or_default();
            look(path, Some(&client.certificate), &pem);
        }
    }
    if let StoreConfig::Redis(redis) = &config.store
        && let Some(identity) = &redis.tls.identity
    {
        let path = "store.redis.tls.certificate".to_owned();
        look(path, None, &identity.certificate);
    }
    warnings
}

/// What is wrong with the dates of a chain, if anything.
fn judge(validity: ChainValidity, now: i64) -> Option<(WarningCode, String)> {
    let ChainValidity { not_before, not_after } = validity;
    let lifetime = not_after.saturating_sub(not_before);
    let (left, until_valid) = (not_after.saturating_sub(now), not_before.saturating_sub(now));
    if left < 0 {
        let (ago, at) = (span(left.saturating_neg()), date(not_after));
        let what = format!("expired {ago} ago, at {at}: peers refuse it");
        return Some((WarningCode::CertificateExpired, what));
    }
    if until_valid > 0 {
        let (wait, at) = (span(until_valid), date(not_before));
        let what = format!("is valid in {wait}, from {at} on: peers refuse it until then");
        return Some((WarningCode::CertificateNotYetValid, what));
    }
    let is_soon = left < SOON_SECONDS.min(lifetime / SOON_DIVISOR);
    is_soon.then(|| {
        let what = format!("expires in {}, at {}", span(left), date(not_after));
        (WarningCode::CertificateExpiresSoon, what)
    })
}

/// Days, or hours if there is less than a day.
fn span(seconds: i64) -> String {
    let (number, unit) = match seconds {
        ..DAY_SECONDS => (seconds / HOUR_SECONDS, "hour"),
        _ => (seconds / DAY_SECONDS, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

fn date(seconds: i64) -> String {
    let at = u64::try_from(seconds).ok().and_then(|seconds| {
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
        // humantime writes dates up to the year 9999 only.
        (seconds < YEAR_10000_SECONDS).then(|| humantime::format_rfc3339_seconds(at).to_string())
    });
    at.unwrap_or_else(|| "a date that cannot be written".to_owned())
}

/// The beginning of the year 10000.
const YEAR_10000_SECONDS: u64 = 253_402_300_800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_judged_by_what_is_left() {
        let (now, day) = (1_800_000_000, DAY_SECONDS);
        for (from, to, expected) in [
            (-90, 90, None),
            (-76, 14, None),
            (-77, 13, Some(("certificate-expires-soon", "expires in 13 days, at 2027-01-28T"))),
            // A certificate of six days that ends in two is renewed as usual.
            (-4, 2, None),
            (-5, 1, Some(("certificate-expires-soon", "expires in 1 day, at"))),
            (-90, -1, Some(("certificate-expired", "expired 1 day ago, at 2027-01-14T"))),
            (3, 90, Some(("certificate-not-yet-valid", "is valid in 3 days, from 2027-01-18T"))),
        ] {
            let validity =
                ChainValidity { not_before: now + from * day, not_after: now + to * day };
            let judged = judge(validity, now);
            let found = judged.as_ref().map(|(code, what)| (code.name(), what.as_str()));
            match (found, expected) {
                (None, None) => {}
                (Some((code, what)), Some((expected, begin))) => {
                    assert_eq!(code, expected);
                    assert!(what.starts_with(begin), "{what}");
                }
                other => panic!("{from} {to}: {other:?}"),
            }
        }
        for (not_before, not_after) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            judge(ChainValidity { not_before, not_after }, now);
        }
        assert_eq!(
            (span(7_300), date(i64::MAX)),
            ("2 hours".into(), "a date that cannot be written".into())
        );
    }
}
