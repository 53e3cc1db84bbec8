//! Sends the answers of the proxy itself: refusals, and 502, 503 and 504 for an origin.
//!
//! The connection stays open if the request's body is read to its end. Otherwise a bounded part of the body is read, so
//! that the client sees the answer rather than a reset, and the connection closes. What must always hold: reading
//! the body of a refused request is bounded in bytes and in time.

use http::{HeaderMap, Method, StatusCode, Version, header};
use pingora::{Error, ErrorSource, ErrorType, Result};
use pingora_proxy::{FailToProxy, Session};

use super::context::{Context, Tollgate};
use super::failure_reason::FailureReason;
use super::request_id::RequestId;
use super::traffic::RequestOutcome;
use super::tunnel;
use crate::edge::{ConnectionState, StreamCut};
use crate::engine::FinalResponse;
use crate::http::{RejectReason, Reply, edit_own, render};
use crate::limiter::discard::{DiscardBounds, discard, expects_continue, linger};

/// `Retry-After` of a request that was refused for want of room, in seconds. When room is free again is unknown, but
/// exchanges end all the time.
const SHED_RETRY: u64 = 1;

/// Answers a request that is not valid.
pub(super) async fn rejected(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    reason: RejectReason,
) -> Result<()> {
    // When the framing of a request is in doubt, nothing after it on the connection can be trusted. A certificate is shown
    // again on a new connection only.
    if matches!(
        reason,
        RejectReason::Framing | RejectReason::BodySize | RejectReason::ClientCertificate
    ) {
        session.set_keepalive(None);
    }
    RequestId::assign(&proxy.request_ids, session, ctx);
    let preferences = ctx.preferences(session);
    let reply = render::rejected(reason, reason.status(), ctx.responses(), preferences);
    refuse(session, ctx, reply).await
}

/// Answers a request that failed: 502, 503 or 504 for an origin, 413 for a body that grew too large. A client that has
/// gone gets no answer.
pub(super) async fn failure(
    proxy: &Tollgate,
    session: &mut Session,
    error: &Error,
    ctx: &mut Context,
) -> FailToProxy {
    if tunnel::record_end(ctx, error) {
        // It was forwarded and is no longer HTTP, so there is no answer.
        return FailToProxy { error_code: 0, can_reuse_downstream: false };
    }
    if let Some(reason) = StreamCut::reason_of(error) {
        ctx.rejected = Some(reason);
    }
    if ctx.rejected.is_none() {
        ctx.failure = Some(FailureReason::of(error, ctx.shed, proxy.cutoff.is_cut()));
    }
    let status = ctx.rejected.map_or_else(|| failure_status(error), RejectReason::status);
    ctx.outcome = Some(match (ctx.rejected, error.esource()) {
        (Some(_), _) => RequestOutcome::Rejected,
        // A client that leaves in the middle of a response is not a failure of the origin.
        (None, ErrorSource::Downstream) if ctx.origin_status.is_some() => RequestOutcome::Forwarded,
        (None, _) => RequestOutcome::Failed,
    });
    if ctx.outcome == Some(RequestOutcome::Failed) && ctx.origin_status.is_none() && status >= 500 {
        match ctx.is_unforwarded {
            true => proxy.finish_unforwarded(ctx, status),
            // The origin gave no response, so ours settles the charges.
            false => {
                proxy.finish(
                    ctx,
                    &FinalResponse { status, headers: &HeaderMap::new(), by_origin: false },
                );
            }
        }
    }
    if status != 0 && session.response_written().is_none() {
        session.set_keepalive(None);
        if let Err(error) = send_failure(proxy, session, ctx, status).await {
            log::debug!("the client did not take a {status}: {error}");
        }
    }
    FailToProxy { error_code: status, can_reuse_downstream: false }
}

async fn send_failure(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    status: u16,
) -> Result<()> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    RequestId::assign(&proxy.request_ids, session, ctx);
    let (responses, preferences) = (ctx.responses(), ctx.preferences(session));
    let reason = ctx.rejected.map(RejectReason::name);
    let mut reply = match ctx.shed {
        Some(_) => render::reduced_capacity(Some(SHED_RETRY), responses, preferences),
        None => render::of_status(status, reason, responses, preferences),
    };
    // The request was charged, so its answer has the rate limit fields.
    if let Some(fields) = ctx.rate_limit_fields() {
        fields.write_lines(reply.lines.bytes());
    }
    edit_answer(ctx, &mut reply);
    send(session, ctx, reply).await
}

fn failure_status(error: &Error) -> u16 {
    use ErrorType::{
        ConnectTimedout, HTTPStatus, InvalidHTTPHeader, ReadTimedout, TLSHandshakeTimedout,
        WriteTimedout,
    };
    let timed_out = matches!(
        error.etype(),
        ConnectTimedout | ReadTimedout | TLSHandshakeTimedout | WriteTimedout
    );
    match (error.etype(), error.esource()) {
        (HTTPStatus(status), _) => *status,
        (_, ErrorSource::Upstream) if timed_out => 504,
        (_, ErrorSource::Upstream) => 502,
        (ReadTimedout, ErrorSource::Downstream) => 408,
        (InvalidHTTPHeader, ErrorSource::Downstream) => 400,
        // The client has gone, or cannot be written to.
        (_, ErrorSource::Downstream) => 0,
        (_, ErrorSource::Internal | ErrorSource::Unset) => 500,
    }
}

/// Answers a request that is refused in `request_filter`.
pub(super) async fn refuse(
    session: &mut Session,
    ctx: &mut Context,
    mut reply: Reply,
) -> Result<()> {
    edit_answer(ctx, &mut reply);
    let version = session.req_header().version;
    if version == Version::HTTP_11
        && session.is_body_done()
        && write_through_stream(session, ctx, &reply)
    {
        return Ok(());
    }
    // Boxed, because most refusals return above and do not need the state of this future.
    Box::pin(send(session, ctx, reply)).await
}

/// Applies the changes of the route. Those of its origin are for the origin's own answers.
fn edit_answer(ctx: &Context, reply: &mut Reply) {
    if let Some(edits) = ctx.edits().map(|edits| &edits.route.response)
        && !edits.is_empty()
    {
        edit_own(&mut reply.lines, edits);
    }
}

/// Sends an answer, and handles the body of the request that will not be forwarded.
async fn send(session: &mut Session, ctx: &Context, reply: Reply) -> Result<()> {
    if let Some(connection) = ConnectionState::of(session) {
        connection.refuse(ctx.live.bounds().discard_bytes);
    }
    let version = session.req_header().version;
    let unread = version != Version::HTTP_2 && !session.is_body_done();
    let answer = reply.into_framework(version)?;
    if unread && !(fits_discard(session, ctx) && discard(session, discard_bounds(ctx)).await) {
        session.set_keepalive(None);
    }
    let without_body = session.req_header().method == Method::HEAD;
    session.write_response_header(Box::new(answer.head), without_body).await?;
    if !without_body {
        session.write_response_body(Some(answer.body), true).await?;
    }
    if unread && !session.is_body_done() && !expects_continue(session) {
        // The answer is sent before the rest is read, so that a client that stops sending finds it.
        session.finish_body().await?;
        linger(session, discard_bounds(ctx)).await;
    }
    Ok(())
}

/// Leaves a complete answer to the stream, which writes it when the framework ends the request. `false`: the session has
/// no stream of ours, or the framework has begun a response.
fn write_through_stream(session: &Session, ctx: &mut Context, reply: &Reply) -> bool {
    let Some(connection) =
        ConnectionState::of(session).filter(|_| session.response_written().is_none())
    else {
        return false;
    };
    connection.refuse(ctx.live.bounds().discard_bytes);
    let keeps = session.get_keepalive().is_some();
    let without_body = session.req_header().method == Method::HEAD;
    connection.queue_response(|out| reply.write(out, ctx.date, keeps, without_body));
    ctx.answered = Some(reply.status.as_u16());
    ctx.answered_bytes = if without_body { 0 } else { reply.body_bytes() };
    true
}

/// Whether the declared body is small enough to be read before the answer.
fn fits_discard(session: &Session, ctx: &Context) -> bool {
    let length = session.get_header(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    !expects_continue(session)
        && length.is_some_and(|length| length <= ctx.live.bounds().discard_bytes)
}

/// How much of a body that is not forwarded is read.
fn discard_bounds(ctx: &Context) -> DiscardBounds {
    let bounds = ctx.live.bounds();
    DiscardBounds { bytes: bounds.discard_bytes, time: bounds.discard_time }
}
