//! `WWW-Authenticate` of a 401: what a client that lacks a key should send (RFC 9110, section 11.6.1).
//!
//! It tells the kind of credential, never its value. A key that no registered scheme describes (a field, a cookie, a
//! parameter) is `ApiKey`, which no browser asks its user for.

use crate::policy::key::TokenSource;
use crate::policy::{KeySpec, Source};

const BEARER: &str = "Bearer";
const BASIC: &str = "Basic realm=\"restricted\", charset=\"UTF-8\"";
const API_KEY: &str = "ApiKey realm=\"restricted\"";

/// The challenges for the parts of a key, each once.
pub(super) fn of_key(key: &KeySpec) -> String {
    let mut challenges: Vec<&str> = Vec::new();
    for challenge in key.sources().iter().filter_map(challenge) {
        if !challenges.contains(&challenge) {
            challenges.push(challenge);
        }
    }
    match challenges.is_empty() {
        true => API_KEY.to_owned(),
        false => challenges.join(", "),
    }
}

/// The challenge for a source that only a client can provide.
fn challenge(source: &Source) -> Option<&'static str> {
    match source {
        Source::Bearer => Some(BEARER),
        Source::Jwt(claim) => Some(match claim.from {
            TokenSource::Authorization => BEARER,
            TokenSource::Header(_) | TokenSource::Cookie(_) | TokenSource::Query(_) => API_KEY,
        }),
        Source::BasicUser => Some(BASIC),
        Source::Header(_) | Source::Cookie(_) | Source::Query(_) => Some(API_KEY),
        Source::Shard { of, .. } => challenge(of),
        Source::ClientIp
        | Source::Host
        | Source::TlsSni
        | Source::TlsClient
        | Source::Path
        | Source::Method
        | Source::Route
        | Source::PathSegment(_)
        | Source::Class(_)
        | Source::FirstClass(_) => None,
    }
}
