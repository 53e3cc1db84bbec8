use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;

use super::Part;
use crate::policy::Facts;

/// The token of `Authorization: Bearer TOKEN` (RFC 6750); the scheme's case does not matter.
pub(super) fn bearer<'r>(facts: &Facts<'r>) -> Part<'r> {
    credentials(facts, b"bearer", Part::of)
}

/// The user of `Authorization: Basic` (RFC 7617); what does not decode is absent.
pub(super) fn basic_user<'r>(facts: &Facts<'r>) -> Part<'r> {
    credentials(facts, b"basic", |encoded| {
        let Ok(decoded) = STANDARD.decode(encoded) else {
            return Part::Absent;
        };
        match decoded.iter().position(|b| *b == b':') {
            Some(at) => Part::of(decoded[..at].to_vec()),
            None => Part::Absent,
        }
    })
}

/// What follows the scheme in the only `Authorization` line, if it is that scheme.
fn credentials<'r>(
    facts: &Facts<'r>,
    scheme: &[u8],
    read: impl FnOnce(&'r [u8]) -> Part<'r>,
) -> Part<'r> {
    let mut lines = facts.headers.get_all(AUTHORIZATION).iter();
    let Some(line) = lines.next() else {
        return Part::Absent;
    };
    if lines.next().is_some() {
        return Part::Repeated;
    }
    let line = line.as_bytes().trim_ascii();
    match line.iter().position(|b| *b == b' ') {
        Some(at) if line[..at].eq_ignore_ascii_case(scheme) => read(line[at..].trim_ascii()),
        _ => Part::Absent,
    }
}
