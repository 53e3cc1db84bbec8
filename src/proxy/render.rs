//! Answers of the proxy itself, as values: a pure function of the decision, or of a reason.
//! Nothing of the request is echoed.

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use pingora::Result;
use pingora::http::ResponseHeader;
use serde::Serialize;

use super::fields::{self, RateLimitFields, Wanted};
use super::gate::Reason;
use super::negotiate::Asking;
use super::response;
use crate::clock::Nanos;
use crate::config::{Body, Cors, Responses};
use crate::engine::{Answer, Decision, Outcome};
use crate::policy::Policy;

/// The registered problem type of draft-ietf-httpapi-ratelimit-headers-11.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Of the same draft: the client does what nobody is meant to do.
const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

/// RESOURCE_EXHAUSTED, of gRPC's status codes.
const GRPC_EXHAUSTED: &str = "8";

/// What a web page may read of a refusal beside what it always may.
const EXPOSED: &str = "Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, \
                       X-RateLimit-Remaining, X-RateLimit-Reset";

/// Of the same draft: what is short is ours.
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// An answer that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Status and fields, `Content-Length` among them.
    pub head: ResponseHeader,
    /// The body.
    pub body: Bytes,
}

/// The fields that tell where a client stands, as the route's operator wants them.
pub(super) fn fields_of(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
) -> RateLimitFields {
    let wanted =
        Wanted { ratelimit: responses.ratelimit_fields, x_ratelimit: responses.x_ratelimit_fields };
    fields::of(decision, policy, wanted)
}

/// Tells a client where it stands, beside the fields that are there.
pub fn write_fields(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
    response: &mut ResponseHeader,
) -> Result<()> {
    response::write(response, &fields_of(decision, policy, responses))
}

/// The fields that stand beside an origin's own.
pub fn fields_beside(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
) -> Result<HeaderMap> {
    let mut head = ResponseHeader::build(StatusCode::OK, None)?;
    write_fields(decision, policy, responses, &mut head)?;
    Ok(head.headers.clone())
}

/// The answer to a request that a decision does not let through; `None` when it does.
pub fn refusal(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
    asking: Asking<'_>,
) -> Result<Option<Refusal>> {
    let mut refusal = match reason(decision) {
        None if decision.outcome == Outcome::Limited => {
            limited(decision, policy, responses, asking)?
        }
        None if decision.outcome == Outcome::Outage => outage()?,
        None => return Ok(None),
        Some((reason, status)) => rejected(reason, status)?,
    };
    let (cors, head) = (&responses.cors, &mut refusal.head);
    if !matches!(cors, Cors::Only(none) if none.is_empty()) {
        // The answer differs by who reads it, even where nobody may.
        head.append_header(header::VARY, "Origin")?;
    }
    if let Some(reader) = asking.reader(cors) {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, reader.clone())?;
        head.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED)?;
        if *cors != Cors::All {
            // A page that sends cookies may read only what says so.
            head.insert_header(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true")?;
        }
    }
    Ok(Some(refusal))
}

/// Why a decision refuses without a limit, with the status that says it.
pub(super) const fn reason(decision: &Decision) -> Option<(Reason, u16)> {
    match decision.outcome {
        Outcome::Allowed | Outcome::Limited | Outcome::Outage => None,
        Outcome::NoRoute => Some((Reason::NoRoute, Reason::NoRoute.status())),
        Outcome::AmbiguousPath => Some((Reason::Path, Reason::Path.status())),
        Outcome::MissingKey { status, .. } => Some((Reason::MissingKey, status)),
        Outcome::RepeatedKey { .. } => Some((Reason::RepeatedKey, Reason::RepeatedKey.status())),
    }
}

/// 400 and its kin.
pub(super) fn rejected(reason: Reason, status: u16) -> Result<Refusal> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    problem(status, Some(reason.name()))
}

/// A problem document (RFC 9457), in the order of its members.
#[derive(Serialize)]
struct Problem<'p> {
    #[serde(rename = "type")]
    kind: &'p str,
    title: &'p str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'p str>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<&'p str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

/// What the proxy says of itself or of an origin.
pub(super) fn problem(status: StatusCode, reason: Option<&str>) -> Result<Refusal> {
    whole_problem(&Problem {
        kind: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        reason,
        violated_policies: None,
        retry_after: None,
    })
}

fn whole_problem(problem: &Problem<'_>) -> Result<Refusal> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    // Texts and numbers always become JSON.
    let body = serde_json::to_vec(problem).unwrap_or_default();
    whole(status, PROBLEM_JSON, Bytes::from(body))
}

const PROBLEM_JSON: &str = "application/problem+json";

/// 503: the store is away, which is not the client's fault.
fn outage() -> Result<Refusal> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    whole_problem(&Problem {
        kind: REDUCED_CAPACITY,
        title: "Temporarily reduced capacity",
        status: status.as_u16(),
        reason: None,
        violated_policies: None,
        retry_after: None,
    })
}

/// 429, with the time after which it is worth trying again.
fn limited(
    decision: &Decision,
    policy: &Policy,
    responses: &Responses,
    asking: Asking<'_>,
) -> Result<Refusal> {
    let jitter = responses.retry_after_jitter.mul_f64(asking.chance.clamp(0.0, 1.0));
    let wait = decision.retry_after().map(|wait| wait.saturating_add(Nanos::from(jitter)));
    let retry_after = wait.map(|wait| wait.secs_ceil().max(1));
    let mut refusal = match asking.body(responses) {
        Body::Problem => limited_problem(decision, policy, retry_after)?,
        Body::Grpc => {
            let mut grpc = whole(StatusCode::OK, "application/grpc", Bytes::new())?;
            grpc.head.insert_header("grpc-status", GRPC_EXHAUSTED)?;
            grpc.head.insert_header("grpc-message", "too many requests")?;
            grpc
        }
        Body::File { content, media_type } => {
            whole(StatusCode::TOO_MANY_REQUESTS, media_type, content.clone())?
        }
    };
    if responses.bodies.len() > 1 {
        refusal.head.append_header(header::VARY, "Accept")?;
    }
    if let Some(wait) = retry_after {
        refusal.head.insert_header("Retry-After", wait)?;
    }
    write_fields(decision, policy, responses, &mut refusal.head)?;
    Ok(refusal)
}

fn limited_problem(
    decision: &Decision,
    policy: &Policy,
    retry_after: Option<u64>,
) -> Result<Refusal> {
    let visible = |answer: &&Answer| !policy.limit(answer.limit).hidden;
    let violated: Vec<&str> = decision
        .refusing()
        .filter(visible)
        .map(|answer| &*policy.limit(answer.limit).name)
        .collect();
    let (kind, title) = match decision.is_banned() {
        true => (ABNORMAL_USAGE, "Abnormal usage detected"),
        false => (QUOTA_EXCEEDED, "Too many requests"),
    };
    whole_problem(&Problem {
        kind,
        title,
        status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
        reason: None,
        violated_policies: Some(violated),
        retry_after,
    })
}

fn whole(status: StatusCode, media_type: &str, body: Bytes) -> Result<Refusal> {
    let mut head = ResponseHeader::build(status, Some(10))?;
    head.insert_header(header::CACHE_CONTROL, "no-store")?;
    head.insert_header(header::CONTENT_TYPE, media_type)?;
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    Ok(Refusal { head, body })
}
