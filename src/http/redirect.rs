//! Where a listener with `redirect: https` sends its requests.
//!
//! The target is written from what was validated: the host, the canonical path, the query. What must always hold: no
//! request is sent to a host that no route serves, so that a redirect never leads to a foreign host.

use http::StatusCode;

use super::forwarded::came_over_https;
use super::lines::{Lines, REQUEST_ID};
use super::render::{Reply, ReplyBody};
use super::validation::{RejectReason, ValidRequest};
use crate::policy::{Exempt, Facts, HostPattern, Policy};

/// The default port of https, which a URL leaves out.
const HTTPS_PORT: u16 = 443;

/// The hosts that requests may be sent to.
#[derive(Clone, Debug)]
pub struct ServedHosts(Option<Vec<HostPattern>>);

impl ServedHosts {
    /// The hosts that the routes of a policy name. A route that names none serves every host.
    pub fn of(policy: &Policy) -> Self {
        if policy.routes.iter().any(|route| route.matches.hosts.is_empty()) {
            return Self(None);
        }
        let mut hosts: Vec<HostPattern> = Vec::new();
        for host in policy.routes.iter().flat_map(|route| &route.matches.hosts) {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        Self(Some(hosts))
    }

    fn contain(&self, host: &str) -> bool {
        self.0.as_ref().is_none_or(|hosts| hosts.iter().any(|pattern| pattern.matches(host)))
    }
}

/// The URL that a request is redirected to. `None` if it is not: its listener does not redirect, it came over https to a
/// trusted proxy, it is an ACME challenge that `exempt` lets pass, or no route serves its host.
///
/// # Errors
/// The request names no host, or nothing that a URL can name.
pub fn https_location(
    valid: &ValidRequest<'_>,
    facts: &Facts<'_>,
    served: &ServedHosts,
    exempt: Exempt,
) -> Result<Option<String>, RejectReason> {
    let Some(port) = facts.connection.https_port else {
        return Ok(None);
    };
    let is_challenge = Exempt { preflight: false, ..exempt }.covers(facts);
    let is_https = facts.client.peer_trusted && came_over_https(facts.headers);
    if is_challenge || is_https {
        return Ok(None);
    }
    if valid.host.is_empty() {
        return Err(RejectReason::Host);
    }
    if !valid.path.starts_with('/') {
        return Err(RejectReason::Target);
    }
    if !served.contain(&valid.host) {
        return Ok(None);
    }
    let mut location = format!("https://{}", valid.host);
    if port != HTTPS_PORT {
        location.push_str(&format!(":{port}"));
    }
    location.push_str(&valid.path);
    if let Some(query) = valid.query {
        location.push('?');
        location.push_str(query);
    }
    Ok(Some(location))
}

/// The redirect: 301 for what every client repeats as it was, 308 for the methods that some clients would change.
pub(crate) fn redirect(method: &http::Method, location: &str, request_id: &str) -> Reply {
    let status = match method.as_str() {
        "GET" | "HEAD" => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    let mut lines = Lines::new();
    lines.add("Cache-Control: ", b"no-store");
    lines.add("Content-Length: ", b"0");
    if !request_id.is_empty() {
        lines.add(REQUEST_ID.begin, request_id.as_bytes());
    }
    lines.add("Location: ", location.as_bytes());
    Reply { status, lines, body: ReplyBody::Own(Vec::new()) }
}
