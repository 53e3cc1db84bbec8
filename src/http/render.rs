//! Answers of the proxy itself, as values: a pure function of the decision or of the reason to reject.
//!
//! It sends nothing. What must always hold: no text of a request is echoed.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::answer_preferences::{AnswerPreferences, ChosenBody, OfferedBody};
use super::lines::{self, InvalidField, Lines, REQUEST_ID, field};
use super::page::{self, PageValues};
use super::ratelimit_fields::RateLimitFields;
use super::validation::RejectReason;
use super::{challenge, problem};
use crate::clock::Nanos;
use crate::config::{Cors, RefusalBody, Responses};
use crate::engine::{Decision, Outcome};
use crate::policy::Policy;

/// The gRPC status RESOURCE_EXHAUSTED.
const GRPC_EXHAUSTED: &[u8] = b"8";

/// The fields of a refusal that a web page may read, in addition to those that it always may.
const EXPOSED: &[u8] = b"Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, \
                         X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id";

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
    RateLimitFields::new(decision, policy, responses).add_to(&mut headers)?;
    Ok(headers)
}

/// The answer to a request that a decision does not let through; `None` when it does.
pub fn refusal(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
    preferences: AnswerPreferences<'_>,
) -> Result<Option<Refusal>, InvalidField> {
    let reply = reply(RateLimitFields::new(decision, policy, responses), preferences);
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
        None if decision.outcome.is_outage() => reduced_capacity(None, responses, preferences),
        None => return None,
        Some((reason, status)) => {
            let mut reply = rejected(reason, status, responses, preferences);
            if let Outcome::MissingKey { limit, status: 401 } = decision.outcome {
                let challenges = challenge::of_key(&fields.policy.limit(limit).key);
                reply.lines.add("WWW-Authenticate: ", challenges.as_bytes());
            }
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
        Outcome::Allowed | Outcome::Limited | Outcome::Outage | Outcome::NoTokenKeys { .. } => None,
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

/// The answer to a request that is rejected: a problem document with the reason, or a page.
pub(crate) fn rejected(
    reason: RejectReason,
    status: u16,
    responses: &Responses,
    preferences: AnswerPreferences<'_>,
) -> Reply {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    of_status(status, Some(reason.name()), responses, preferences)
}

/// An answer with a status, and with a reason if there is one.
pub(crate) fn of_status(
    status: StatusCode,
    reason: Option<&str>,
    responses: &Responses,
    preferences: AnswerPreferences<'_>,
) -> Reply {
    let chosen = preferences.body_for(status.as_u16(), responses);
    let answer = OwnAnswer { status, retry_after: None, limit: "", preferences };
    answer.reply(chosen, |id| problem::of_status(status, reason, id))
}

/// The answer to a head that nobody has read: what its client prefers is unknown.
#[cfg(feature = "bin")]
pub(crate) fn unread(reason: RejectReason, request_id: &str) -> Reply {
    let status = StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = &HeaderMap::new();
    let preferences = AnswerPreferences { headers, chance: 0.0, request_id };
    let answer = OwnAnswer { status, retry_after: None, limit: "", preferences };
    answer.reply(ChosenBody::problem(), |id| problem::of_status(status, Some(reason.name()), id))
}

/// 503, for a shortage on our side that is not the client's fault. `retry_after`: the seconds after which the client
/// may try again, if that is known.
pub(crate) fn reduced_capacity(
    retry_after: Option<u64>,
    responses: &Responses,
    preferences: AnswerPreferences<'_>,
) -> Reply {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let chosen = preferences.body_for(status.as_u16(), responses);
    let answer = OwnAnswer { status, retry_after, limit: "", preferences };
    answer.reply(chosen, problem::reduced_capacity)
}

/// 429, with the time after which the request can succeed.
fn limited(fields: RateLimitFields<'_>, preferences: AnswerPreferences<'_>) -> Reply {
    let RateLimitFields { decision, policy, responses, .. } = fields;
    let jitter = responses.retry_after_jitter.mul_f64(preferences.chance.clamp(0.0, 1.0));
    let fields = RateLimitFields { jitter: jitter.into(), ..fields };
    let retry_after = fields.retry_after();
    let mut refusing = decision.refusing().map(|answer| policy.limit(answer.limit));
    let limit = refusing.find(|limit| !limit.hidden).map_or("", |limit| &*limit.name);
    let status = StatusCode::TOO_MANY_REQUESTS;
    let answer = OwnAnswer { status, retry_after, limit, preferences };
    let chosen = preferences.limited_body(responses);
    let mut reply = answer.reply(chosen, |id| problem::limited(fields, retry_after, id));
    fields.write_lines(reply.lines.bytes());
    reply
}

/// What all answers of the proxy itself have in common.
struct OwnAnswer<'a> {
    status: StatusCode,
    retry_after: Option<u64>,
    /// The first visible limit that refuses; empty if none does.
    limit: &'a str,
    preferences: AnswerPreferences<'a>,
}

impl OwnAnswer<'_> {
    /// The answer with a body. `problem` writes the problem document with the identifier of the request.
    fn reply(self, chosen: ChosenBody<'_>, problem: impl FnOnce(&str) -> Vec<u8>) -> Reply {
        let Self { status, retry_after, limit, preferences } = self;
        let request_id = preferences.request_id;
        let mut reply = match chosen.body {
            OfferedBody::Listed(RefusalBody::Problem) => {
                answer_with(status, PROBLEM_JSON, ReplyBody::Own(problem(request_id)), request_id)
            }
            OfferedBody::Listed(RefusalBody::Grpc) => {
                let empty = ReplyBody::Own(Vec::new());
                let mut grpc = answer_with(StatusCode::OK, "application/grpc", empty, request_id);
                grpc.lines.add("grpc-status: ", GRPC_EXHAUSTED);
                grpc.lines.add("grpc-message: ", b"too many requests");
                grpc
            }
            OfferedBody::Listed(RefusalBody::File { content, media_type }) => {
                answer_with(status, media_type, ReplyBody::Shared(content.clone()), request_id)
            }
            OfferedBody::Page(page) => {
                let values = PageValues { status: status.as_u16(), retry_after, request_id, limit };
                let body = ReplyBody::Shared(page::write(page, values));
                let mut reply = answer_with(status, &page.media_type, body, request_id);
                reply.lines.add(CONTENT_SECURITY_POLICY, PAGE_SOURCES.as_bytes());
                reply.lines.add("X-Content-Type-Options: ", b"nosniff");
                reply
            }
        };
        if let Some(wait) = retry_after {
            reply.lines.add_number("Retry-After: ", wait);
        }
        if chosen.varies {
            reply.lines.add("Vary: ", b"Accept");
        }
        reply
    }
}

const PROBLEM_JSON: &str = "application/problem+json";

const CONTENT_SECURITY_POLICY: &str = "Content-Security-Policy: ";

/// What a page of the operator may load: nothing that runs, and nothing of other sites. It is seen by clients that are
/// refused, at any URL.
const PAGE_SOURCES: &str = concat!(
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; ",
    "font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

fn answer_with(status: StatusCode, media_type: &str, body: ReplyBody, request_id: &str) -> Reply {
    let mut lines = Lines::new();
    lines.add("Cache-Control: ", b"no-store");
    lines.add("Content-Type: ", media_type.as_bytes());
    lines.add_number("Content-Length: ", body.as_bytes().len() as u64);
    if !request_id.is_empty() {
        lines.add(REQUEST_ID.begin, request_id.as_bytes());
    }
    Reply { status, lines, body }
}
