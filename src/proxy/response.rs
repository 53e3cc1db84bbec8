//! `response_filter`: settles the charges and adds the rate limit fields to the origin's response. The filters of its
//! body and its trailers settle what only the rest of it tells.
//!
//! What must always hold: an origin's own triple that leaves less than ours stays as it is.

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, Method, StatusCode, Version};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::traffic::RequestOutcome;
use super::{http10, tunnel};
use crate::config::RouteEdits;
use crate::edge::{ConnectionState, ExpectedResponse};
use crate::engine::FinalResponse;
use crate::http::{LIMIT, Lines, REMAINING, REQUEST_ID, RESET, edit_response, field};
use crate::policy::Route;

/// Settles the request and adds its fields to the response.
pub(super) fn write_fields(
    proxy: &Tollgate,
    session: &mut Session,
    response: &mut ResponseHeader,
    ctx: &mut Context,
) -> Result<()> {
    let switching = response.status == StatusCode::SWITCHING_PROTOCOLS;
    if response.status.is_informational() && !switching {
        // Only the final response gets the fields.
        return Ok(());
    }
    if switching {
        tunnel::begin(session, ctx);
    }
    if reads_trailers(ctx) && is_http1(session) && !has_no_body(session, response) {
        // With a length, the framework would end the exchange before the trailers.
        response.remove_header(&header::CONTENT_LENGTH);
    }
    if http10::is_request(session) {
        http10::prepare_response(session, response);
    }
    ctx.origin_status = Some(response.status.as_u16());
    if let Some(connection) = ConnectionState::of(session) {
        let read = ctx.origin.as_ref().map(|origin| origin.config().timeouts.read);
        connection.begin_response(switching, read.unwrap_or_default().into());
        if has_no_body(session, response) {
            connection.end_response();
        } else {
            ctx.expected = Some(ExpectedResponse::begin(connection, length_of(response)));
        }
    }
    ctx.outcome = Some(RequestOutcome::Forwarded);
    if let (Some(origin), Some(asked)) = (&ctx.origin, ctx.origin_asked) {
        let now = proxy.engine.now().mono;
        origin.counters().duration.record_span(now.saturating_sub(asked));
        if let Some(server) = ctx.asked {
            origin.answered(server, asked, now);
        }
        ctx.origin_answered = Some(now);
    }
    let final_response = FinalResponse {
        status: response.status.as_u16(),
        headers: &response.headers,
        by_origin: true,
    };
    proxy.finish(ctx, &final_response);
    for edits in ctx.edits().into_iter().flat_map(RouteEdits::of_response) {
        edit_response(response, edits)?;
    }
    add_own_fields(session, response, ctx)?;
    // `Connection` of a 101 names the protocol that is switched to.
    if !switching && proxy.leaving.load(std::sync::atomic::Ordering::Relaxed) {
        response.insert_header(header::CONNECTION, "close")?;
    }
    Ok(())
}

/// Adds the rate limit fields and the identifier that the origin was told, which replaces one of its own.
fn add_own_fields(session: &Session, response: &mut ResponseHeader, ctx: &Context) -> Result<()> {
    if response.headers.contains_key(REQUEST_ID.name) {
        response.remove_header(&REQUEST_ID.name);
    }
    let mut fields = ctx.rate_limit_fields();
    // The origin has a triple of its own, which may have to stay as it is.
    if has_triple(&response.headers)
        && let Some(fields) = fields.take()
    {
        fields.add_to_head(response)?;
    }
    let write = |out: &mut Vec<u8>| {
        field(out, REQUEST_ID.begin, |out| out.extend_from_slice(ctx.request_id().as_bytes()));
        if let Some(fields) = fields {
            fields.write_lines(out);
        }
    };
    match ConnectionState::of(session).filter(|_| is_http1(session)) {
        // The stream writes the fields as bytes.
        Some(connection) => connection.queue_head_lines(write),
        None if is_http1(session) => {
            response.insert_header(REQUEST_ID.shown(), ctx.request_id())?;
            if let Some(fields) = fields {
                fields.add_to_head(response)?;
            }
        }
        None => {
            let mut lines = Lines::new();
            write(lines.bytes());
            lines.append_to_head(response)?;
        }
    }
    Ok(())
}

/// Reads costs in the body, which passes unchanged.
pub(super) fn read_body(proxy: &Tollgate, body: Option<&Bytes>, is_end: bool, ctx: &mut Context) {
    if let (Some(decision), Some(body)) = (&ctx.decision, body) {
        proxy.engine.read_body(&ctx.live.generation, decision, &mut ctx.pending, body);
    }
    if is_end {
        // Before the last bytes are on their way, so that the next request of the client meets the corrected charge.
        end(proxy, true, ctx);
    }
}

/// Reads costs in the trailers. They are the end of a response.
pub(super) fn read_trailers(proxy: &Tollgate, trailers: &HeaderMap, ctx: &mut Context) {
    if let Some(decision) = &ctx.decision {
        proxy.engine.read_trailers(&ctx.live.generation, decision, &mut ctx.pending, trailers);
    }
    end(proxy, true, ctx);
}

/// Settles what the rest of the response could change. `is_complete`: it has come to its end.
pub(super) fn end(proxy: &Tollgate, is_complete: bool, ctx: &mut Context) {
    if let Some(decision) = ctx.decision.as_mut().filter(|_| ctx.pending.awaits_rest()) {
        let generation = &ctx.live.generation;
        proxy.engine.finish_rest(generation, decision, &mut ctx.pending, is_complete);
    }
}

/// Whether a trailer may change a charge.
fn reads_trailers(ctx: &Context) -> bool {
    ctx.pending.awaits_response() && ctx.route().is_some_and(Route::reads_trailers)
}

/// The length that a response declares.
fn length_of(response: &ResponseHeader) -> Option<u64> {
    response.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether a response has no body (RFC 9112, section 6.3).
fn has_no_body(session: &Session, response: &ResponseHeader) -> bool {
    let length = response.headers.get(header::CONTENT_LENGTH);
    session.req_header().method == Method::HEAD
        || matches!(response.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || length.is_some_and(|length| length == "0")
}

fn is_http1(session: &Session) -> bool {
    session.req_header().version != Version::HTTP_2
}

/// Whether the origin sends a triple of its own. A response has few fields, and three searches in the map cost more than
/// looking at the length of every name.
fn has_triple(headers: &HeaderMap) -> bool {
    let is_ours =
        |name: &HeaderName| [LIMIT, REMAINING, RESET].iter().any(|field| field.name == *name);
    headers.keys().any(|name| matches!(name.as_str().len(), 17 | 21) && is_ours(name))
}
