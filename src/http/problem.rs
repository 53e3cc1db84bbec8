//! Problem documents (RFC 9457): the bodies of the proxy's own answers where no other body is chosen.
//!
//! Their texts are constants of this program, names of limits, and identifiers whose form was checked, so nothing in them
//! needs an escape.

use http::StatusCode;

use super::lines::number;
use super::ratelimit_fields::RateLimitFields;
use crate::engine::LimitVerdict;

/// The beginning of the problem document of draft-ietf-httpapi-ratelimit-headers-11, up to the list of the limits that
/// refuse.
const QUOTA_EXCEEDED: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
    r#""title":"Too many requests","status":429,"violated-policies":["#
);

/// The same for a banned client.
const ABNORMAL_USAGE: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","#,
    r#""title":"Abnormal usage detected","status":429,"violated-policies":["#
);

/// The problem type of the same draft for a shortage or an outage on our side.
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// A status, with a reason if there is one.
pub(super) fn of_status(status: StatusCode, reason: Option<&str>, request_id: &str) -> Vec<u8> {
    let title = status.canonical_reason().unwrap_or("Error");
    let mut body = begin("about:blank", title, status);
    if let Some(reason) = reason {
        text_member(&mut body, "reason", reason);
    }
    end(body, request_id)
}

/// 503, for a shortage on our side that is not the client's fault.
pub(super) fn reduced_capacity(request_id: &str) -> Vec<u8> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    end(begin(REDUCED_CAPACITY, "Temporarily reduced capacity", status), request_id)
}

/// 429, with the visible limits that refuse.
pub(super) fn limited(
    fields: RateLimitFields<'_>,
    retry_after: Option<u64>,
    request_id: &str,
) -> Vec<u8> {
    let RateLimitFields { decision, policy, .. } = fields;
    let begin = if decision.is_banned() { ABNORMAL_USAGE } else { QUOTA_EXCEEDED };
    let mut body = Vec::with_capacity(320);
    body.extend_from_slice(begin.as_bytes());
    let visible = |answer: &&LimitVerdict| !policy.limit(answer.limit).hidden;
    for (index, answer) in decision.refusing().filter(visible).enumerate() {
        body.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        body.extend_from_slice(policy.limit(answer.limit).name.as_bytes());
        body.push(b'"');
    }
    body.push(b']');
    if let Some(wait) = retry_after {
        body.extend_from_slice(b",\"retry_after\":");
        number(&mut body, wait);
    }
    end(body, request_id)
}

fn begin(kind: &str, title: &str, status: StatusCode) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.extend_from_slice(b"{\"type\":\"");
    body.extend_from_slice(kind.as_bytes());
    body.extend_from_slice(b"\",\"title\":\"");
    body.extend_from_slice(title.as_bytes());
    body.extend_from_slice(b"\",\"status\":");
    number(&mut body, status.as_u16().into());
    body
}

fn text_member(body: &mut Vec<u8>, name: &str, value: &str) {
    for text in [",\"", name, "\":\"", value, "\""] {
        body.extend_from_slice(text.as_bytes());
    }
}

/// Ends a document with the request's identifier, which a limiter inside another server does not have.
fn end(mut body: Vec<u8>, request_id: &str) -> Vec<u8> {
    if !request_id.is_empty() {
        text_member(&mut body, "request_id", request_id);
    }
    body.push(b'}');
    body
}
