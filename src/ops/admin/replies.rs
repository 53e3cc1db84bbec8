//! How answers of the admin API look: JSON, problem documents (RFC 9457), plain text. None of them is stored by anybody.

use http::{HeaderName, Response, StatusCode, header};
use serde_json::{Value, json};

use super::keys::Unanswered;
use crate::clock::Nanos;
use crate::ops::status::ReloadOutcome;

/// The field by which commands know an admin listener before they send the token to it; its value is the version of the API.
pub const ADMIN_API: HeaderName = HeaderName::from_static("tollgate-admin-api");

/// The outcome of a reload that was asked for: 422 if the files are refused.
pub(super) fn reload_answer(outcome: ReloadOutcome) -> Response<Vec<u8>> {
    match outcome {
        ReloadOutcome::Applied { generation, report, changes } => json_answer(Ok(json!({
            "outcome": "applied", "generation": generation, "limits": report.to_string(),
            "changes": changes, "errors": [],
        }))),
        ReloadOutcome::Refused { errors } => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            let problem = json!({
                "type": "about:blank", "title": "Unprocessable Content", "status": status.as_u16(),
                "detail": "the configuration is refused; the one in force stays", "outcome": "refused",
                "errors": errors,
            });
            body(status, "application/problem+json", format!("{problem}\n"))
        }
    }
}

/// A problem document (RFC 9457).
pub(super) fn problem(status: StatusCode, detail: &str) -> Response<Vec<u8>> {
    let title = status.canonical_reason();
    let problem = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
    });
    body(status, "application/problem+json", format!("{problem}\n"))
}

pub(super) fn json_answer(answer: Result<Value, Unanswered>) -> Response<Vec<u8>> {
    match answer {
        Ok(value) => body(StatusCode::OK, "application/json", format!("{value:#}\n")),
        Err(Unanswered { status, detail }) => problem(status, &detail),
    }
}

pub(super) fn too_many(wait: Nanos) -> Response<Vec<u8>> {
    let mut answer = problem(StatusCode::TOO_MANY_REQUESTS, "too many requests of this client");
    let seconds = header::HeaderValue::from(wait.secs_ceil().max(1));
    answer.headers_mut().insert(header::RETRY_AFTER, seconds);
    answer
}

pub(super) fn not_allowed(allowed: &'static str) -> Response<Vec<u8>> {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("{allowed} only"));
    // RFC 9110, section 15.5.6.
    answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    answer
}

/// `is_given`: whether the request had a token, which is wrong then.
pub(super) fn unauthorized(is_given: bool) -> Response<Vec<u8>> {
    let detail = match is_given {
        true => "the token is wrong: it is not the content of admin.token_file",
        false => "a token is needed: Authorization: Bearer, and the content of admin.token_file",
    };
    let mut answer = problem(StatusCode::UNAUTHORIZED, detail);
    // RFC 9110, section 11.6.1.
    let challenge = header::HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    answer
}

pub(super) fn plain(status: StatusCode, text: &str) -> Response<Vec<u8>> {
    body(status, "text/plain; charset=utf-8", text.to_owned())
}

pub(super) fn body(
    status: StatusCode,
    media_type: &str,
    text: impl Into<Vec<u8>>,
) -> Response<Vec<u8>> {
    let mut answer = Response::new(text.into());
    *answer.status_mut() = status;
    let length = answer.body().len();
    let headers = answer.headers_mut();
    if let Ok(media_type) = media_type.parse() {
        headers.insert(header::CONTENT_TYPE, media_type);
    }
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    headers.insert(ADMIN_API, header::HeaderValue::from_static("1"));
    answer
}
