//! Answers of the proxy itself, as values: a pure function of the decision or of the reason to reject.
//!
//! It sends nothing. What must always hold: no text of a request is echoed.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::answer_preferences::AnswerPreferences;
use super::lines::{self, InvalidField, Lines, field, number};
use super::ratelimit_fields::RateLimitFields;
use super::validation::RejectReason;
use crate::clock::Nanos;
use crate::config::{Cors, RefusalBody, Responses};
use crate::engine::{Decision, LimitVerdict, Outcome};
use crate::policy::Policy;

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

/// The gRPC status RESOURCE_EXHAUSTED.
const GRPC_EXHAUSTED: &[u8] = b"8";

/// The fields of a refusal that a web page may read, in addition to those that it always may.
const EXPOSED: &[u8] = b"Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, \
                         X-RateLimit-Remaining, X-RateLimit-Reset";

/// The problem type of the same draft for a shortage or an outage on our side.
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// An answer that is ready to be sent.
///
/// ```
/// use bytes::Bytes;
/// use tollgate::Refusal;
///
/// /// The answer of a server that speaks the `http` crate's types.
/// fn answer(refusal: Refusal) -> http::Response<Bytes> {
///     log::info!("refused with {}: {} bytes", refusal.status, refusal.body.len());
///     refusal.into()
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, `Content-Length` among them.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// An answer, except for the fields that the connection adds.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) lines: Lines,
    pub(crate) body: ReplyBody,
}

/// The body of a reply.
#[derive(Clone, Debug)]
pub(crate) enum ReplyBody {
    /// Written for this reply.
    Own(Vec<u8>),
    /// The operator's body, which many replies share.
    Shared(Bytes),
}

impl ReplyBody {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl From<ReplyBody> for Bytes {
    fn from(body: ReplyBody) -> Self {
        match body {
            ReplyBody::Own(bytes) => bytes.into(),
            ReplyBody::Shared(bytes) => bytes,
        }
    }
}

impl Reply {
    /// The reply with its fields as a map.
    pub(crate) fn into_refusal(self) -> Result<Refusal, InvalidField> {
        let headers = self.lines.into_headers()?;
        Ok(Refusal { status: self.status, headers, body: self.body.into() })
    }

    /// The length of the body.
    #[cfg(feature = "bin")]
    pub(crate) fn body_bytes(&self) -> u64 {
        self.body.as_bytes().len() as u64
    }

    /// Writes the reply as HTTP/1.1 (RFC 9112). `keeps`: whether the connection stays open.
    pub(crate) fn write(&self, out: &mut Vec<u8>, date: Nanos, keeps: bool, without_body: bool) {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                out.extend_from_slice(b"HTTP/1.1 429 Too Many Requests\r\n");
            }
            status => {
                let reason = status.canonical_reason().unwrap_or_default();
                out.extend_from_slice(
                    format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes(),
                );
            }
        }
        out.extend_from_slice(self.lines.as_bytes());
        field(out, "Date: ", |out| out.extend_from_slice(&lines::date(date)));
        let connection: &[u8] = if keeps { b"keep-alive" } else { b"close" };
        field(out, "Connection: ", |out| out.extend_from_slice(connection));
        out.extend_from_slice(b"\r\n");
        if !without_body {
            out.extend_from_slice(self.body.as_bytes());
        }
    }
}

/// The fields that are added to an origin's answer that has no such fields of its own.
pub fn added_fields(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
) -> Result<HeaderMap, InvalidField> {
    let mut headers = HeaderMap::new();
    RateLimitFields { decision, policy, responses, members: None }.add_to(&mut headers)?;
    Ok(headers)
}

/// The answer to a request that a decision does not let through; `None` when it does.
pub fn refusal(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
    preferences: AnswerPreferences<'_>,
) -> Result<Option<Refusal>, InvalidField> {
    let reply = reply(RateLimitFields { decision, policy, responses, members: None }, preferences);
    reply.map(Reply::into_refusal).transpose()
}

/// Like [`refusal`], with the fields as lines.
pub(crate) fn reply(
    fields: RateLimitFields<'_>,
    preferences: AnswerPreferences<'_>,
) -> Option<Reply> {
    let RateLimitFields { decision, responses, .. } = fields;
    let mut reply = match reason(decision) {
        None if decision.outcome == Outcome::Limited => limited(fields, preferences),
        None if decision.outcome == Outcome::Outage => reduced_capacity(None),
        None => return None,
        Some((reason, status)) => {
            let mut reply = rejected(reason, status);
            // Only a request that was charged for a forged token has verdicts to write.
            fields.write_lines(reply.lines.bytes());
            reply
        }
    };
    let (cors, lines) = (&responses.cors, &mut reply.lines);
    if !matches!(cors, Cors::Only(none) if none.is_empty()) {
        // The answer depends on `Origin`, also if this page may not read it, so caches must keep answers apart.
        lines.add("Vary: ", b"Origin");
    }
    if let Some(reader) = preferences.reader(cors) {
        lines.add("Access-Control-Allow-Origin: ", reader.as_bytes());
        lines.add("Access-Control-Expose-Headers: ", EXPOSED);
        if *cors != Cors::All {
            // A page that sends cookies may read only an answer with this field.
            lines.add("Access-Control-Allow-Credentials: ", b"true");
        }
    }
    Some(reply)
}

/// Why a decision refuses without a limit, and the status of the answer.
pub(crate) const fn reason(decision: &Decision) -> Option<(RejectReason, u16)> {
    match decision.outcome {
        Outcome::Allowed | Outcome::Limited | Outcome::Outage => None,
        Outcome::NoRoute => Some((RejectReason::NoRoute, RejectReason::NoRoute.status())),
        Outcome::AmbiguousPath => Some((RejectReason::Path, RejectReason::Path.status())),
        Outcome::MissingKey { status, .. } => Some((RejectReason::MissingKey, status)),
        Outcome::RepeatedKey { .. } => {
            Some((RejectReason::RepeatedKey, RejectReason::RepeatedKey.status()))
        }
        Outcome::UnreadableCondition => {
            let reason = RejectReason::UnreadableCondition;
            Some((reason, reason.status()))
        }
        Outcome::UnreadableKey { .. } => {
            Some((RejectReason::UnreadableKey, RejectReason::UnreadableKey.status()))
        }
    }
}

/// The answer to a request that is rejected: a problem document with the reason.
pub(crate) fn rejected(reason: RejectReason, status: u16) -> Reply {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    problem(status, Some(reason.name()))
}

/// A problem document with a status, and with a reason if there is one.
pub(crate) fn problem(status: StatusCode, reason: Option<&str>) -> Reply {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = problem_body("about:blank", title, status, |out| {
        if let Some(reason) = reason {
            out.extend_from_slice(b",\"reason\":\"");
            out.extend_from_slice(reason.as_bytes());
            out.push(b'"');
        }
    });
    answer_with(status, PROBLEM_JSON, body)
}

/// The body of a problem document (RFC 9457). All its texts are constants of this program, so nothing needs an escape.
fn problem_body(
    kind: &str,
    title: &str,
    status: StatusCode,
    more: impl FnOnce(&mut Vec<u8>),
) -> ReplyBody {
    let mut body = Vec::with_capacity(256);
    body.extend_from_slice(b"{\"type\":\"");
    body.extend_from_slice(kind.as_bytes());
    body.extend_from_slice(b"\",\"title\":\"");
    body.extend_from_slice(title.as_bytes());
    body.extend_from_slice(b"\",\"status\":");
    number(&mut body, status.as_u16().into());
    more(&mut body);
    body.push(b'}');
    ReplyBody::Own(body)
}

const PROBLEM_JSON: &str = "application/problem+json";

/// 503, for a shortage on our side that is not the client's fault. `retry_after`: the seconds after which the client
/// may try again, if that is known.
pub(crate) fn reduced_capacity(retry_after: Option<u32>) -> Reply {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let body = problem_body(REDUCED_CAPACITY, "Temporarily reduced capacity", status, |_| {});
    let mut reply = answer_with(status, PROBLEM_JSON, body);
    if let Some(seconds) = retry_after {
        field(reply.lines.bytes(), "Retry-After: ", |out| number(out, seconds.into()));
    }
    reply
}

/// 429, with the time after which the request can succeed.
fn limited(fields: RateLimitFields<'_>, preferences: AnswerPreferences<'_>) -> Reply {
    let RateLimitFields { decision, responses, .. } = fields;
    let jitter = responses.retry_after_jitter.mul_f64(preferences.chance.clamp(0.0, 1.0));
    let wait = decision.retry_after().map(|wait| wait.saturating_add(Nanos::from(jitter)));
    let retry_after = wait.map(|wait| wait.secs_ceil().max(1));
    let mut reply = match preferences.body(responses) {
        RefusalBody::Problem => {
            let body = limited_body(fields, retry_after);
            answer_with(StatusCode::TOO_MANY_REQUESTS, PROBLEM_JSON, body)
        }
        RefusalBody::Grpc => {
            let mut grpc =
                answer_with(StatusCode::OK, "application/grpc", ReplyBody::Own(Vec::new()));
            grpc.lines.add("grpc-status: ", GRPC_EXHAUSTED);
            grpc.lines.add("grpc-message: ", b"too many requests");
            grpc
        }
        RefusalBody::File { content, media_type } => {
            let body = ReplyBody::Shared(content.clone());
            answer_with(StatusCode::TOO_MANY_REQUESTS, media_type, body)
        }
    };
    if responses.bodies.len() > 1 {
        reply.lines.add("Vary: ", b"Accept");
    }
    if let Some(wait) = retry_after {
        reply.lines.add_number("Retry-After: ", wait);
    }
    fields.write_lines(reply.lines.bytes());
    reply
}

fn limited_body(fields: RateLimitFields<'_>, retry_after: Option<u64>) -> ReplyBody {
    let RateLimitFields { decision, policy, .. } = fields;
    let begin = if decision.is_banned() { ABNORMAL_USAGE } else { QUOTA_EXCEEDED };
    let mut body = Vec::with_capacity(256);
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
    body.push(b'}');
    ReplyBody::Own(body)
}

fn answer_with(status: StatusCode, media_type: &str, body: ReplyBody) -> Reply {
    let mut lines = Lines::new();
    lines.add("Cache-Control: ", b"no-store");
    lines.add("Content-Type: ", media_type.as_bytes());
    lines.add_number("Content-Length: ", body.as_bytes().len() as u64);
    Reply { status, lines, body }
}
