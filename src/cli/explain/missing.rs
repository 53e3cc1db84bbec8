//! Why a request has no value for a key: where it was looked for, and what stands there instead.
//!
//! The values are those of the command line, so that they may be shown. Nothing is decided here.

use http::header::AUTHORIZATION;
use serde_json::{Value, json};

use crate::policy::key::{Claim, KeyPart, TokenSource};
use crate::policy::{Facts, Policy, Route, Source};

/// Why a source finds nothing in a request; `None` if it finds something.
pub(super) fn absence(source: &Source, facts: &Facts<'_>, route: &Route) -> Option<String> {
    match source.part(facts, route) {
        KeyPart::Absent => Some(reason(source, facts)),
        KeyPart::Present(_)
        | KeyPart::Repeated
        | KeyPart::Unreadable
        | KeyPart::Unchecked
        | KeyPart::Unknowable
        | KeyPart::Unrecorded => None,
    }
}

/// The tokens that limits of the route look for and the request does not carry, with where each was looked for.
pub(super) fn absent_tokens_json(policy: &Policy, route: &Route, facts: &Facts<'_>) -> Value {
    let sources = policy.sources(route, |source| source.claim().is_some());
    let items = sources.iter().filter_map(|source| {
        let claim = source.claim()?;
        let why = absence(source, facts, route).filter(|_| claim.rejection(facts).is_none())?;
        Some(json!({ "claim": &*claim.wanted.name, "from": claim.from.to_string(), "why": why }))
    });
    items.collect()
}

fn reason(source: &Source, facts: &Facts<'_>) -> String {
    match source {
        Source::Header(name) => no_field(facts, name),
        Source::Cookie(name) => no_cookie(name),
        Source::Query(name) => no_parameter(name),
        Source::Bearer => no_credentials(facts, "Bearer"),
        Source::BasicUser => no_credentials(facts, "Basic"),
        Source::Jwt(claim) => no_claim(claim, facts),
        Source::Host => "the request names no host".to_owned(),
        Source::TlsSni if !facts.connection.is_tls => "the connection has no TLS".to_owned(),
        Source::TlsSni => "the handshake names no server, or an address".to_owned(),
        Source::TlsClient if !facts.connection.is_tls => "the connection has no TLS".to_owned(),
        Source::TlsClient => {
            "the client shows no certificate with a name (here: --tls-client NAME)".to_owned()
        }
        Source::PathSegment(n) => format!("the path has no segment {n}"),
        Source::Class(class) => format!("the request is not in class {}", class.name),
        Source::FirstClass(_) => "the request is in none of the classes".to_owned(),
        Source::Shard { of, .. } => reason(of, facts),
        // Every request has these.
        Source::ClientIp | Source::Path | Source::Method | Source::Route => String::new(),
    }
}

fn no_claim(claim: &Claim, facts: &Facts<'_>) -> String {
    if let Some(why) = claim.rejection(facts) {
        return format!("its token is not believed: {}", why.description());
    }
    if claim.is_known_valid(facts) {
        return format!("the claim {} of its token is empty", claim.wanted.name);
    }
    match &claim.from {
        TokenSource::Authorization => no_credentials(facts, "Bearer"),
        TokenSource::Header(name) => no_field(facts, name),
        TokenSource::Cookie(name) => no_cookie(name),
        TokenSource::Query(name) => no_parameter(name),
    }
}

fn no_field(facts: &Facts<'_>, name: &http::HeaderName) -> String {
    match facts.headers.contains_key(name) {
        true => format!("the field {name} is empty"),
        false => format!("there is no field {name}"),
    }
}

fn no_cookie(name: &str) -> String {
    format!("there is no cookie {name}, or an empty one")
}

fn no_parameter(name: &str) -> String {
    format!("the query has no parameter {name}, or an empty one")
}

/// What `Authorization` has instead of credentials of this scheme.
fn no_credentials(facts: &Facts<'_>, scheme: &str) -> String {
    let Some(line) = facts.headers.get(AUTHORIZATION) else {
        return format!("there is no field authorization; looked for authorization: {scheme} ...");
    };
    let line = line.as_bytes().trim_ascii();
    let found = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    if found.eq_ignore_ascii_case(scheme.as_bytes()) {
        return format!("nothing follows {scheme} in authorization");
    }
    match found.len() < line.len() {
        true => {
            let found = String::from_utf8_lossy(found);
            format!("authorization has the scheme {found}, not {scheme}")
        }
        false => format!("authorization has no scheme; write authorization: {scheme} ..."),
    }
}
