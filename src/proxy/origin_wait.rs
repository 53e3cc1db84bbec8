//! How long an origin is waited for, and who kept a request from being answered.
//!
//! `timeouts.read` begins when the origin has the whole request. The framework's timeout begins earlier: with the last
//! piece that was sent, or over HTTP/2 with the head, and it cannot be changed after that. So where a client of HTTP/1
//! has more to send, the framework's timeout is longer, and where it asks for another protocol it is off. The
//! client's stream, which is polled as long as the origin is waited for, watches the time instead
//! ([`ConnectionState::set_origin_timeout`]). A stream of HTTP/2 cannot do that, so there the framework's timeout stays.
//!
//! What must always hold: as long as a part of the body is with the client, only a server that does not take what was
//! sent can fail. Servers have deadlines of their own for a body, so even an exchange that the server ended says nothing.

use std::pin::pin;
use std::task::{Context as PollContext, Waker};
use std::time::Duration;

use http::Version;
use pingora::prelude::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::tunnel;
use crate::clock::Nanos;
use crate::edge::{BODY_CREDIT, ConnectionState, OriginSilent};
use crate::http::RejectReason;
use crate::limiter::discard::expects_continue;

/// A client that has sent nothing of its body for this time stalls. The pieces of a body that is being sent come closer
/// together. When `timeouts.read` has passed, half of that is enough: over HTTP/2 that time began with the head, and a
/// piece that came after the head does not make the server the one that is waited for.
const MIN_STALL: Nanos = Nanos::SECOND;

/// How long the framework waits at least for an origin whose client has more to send: longer than a client may keep its
/// body back, so that the client's stream ends the stall first and says who caused it.
const MIN_FRAMEWORK_WAIT: Duration = BODY_CREDIT.saturating_add(Duration::from_secs(3));

/// Sets what watches the silence of the origin, before a request is sent.
pub(super) fn prepare(session: &mut Session, ctx: &Context, peer: &mut HttpPeer) {
    let is_http1 = session.req_header().version != Version::HTTP_2;
    // A client that waits for `100 Continue` does not stall its body: the origin is silent.
    let has_more = !session.is_body_done() && !expects_continue(session);
    if !is_http1 || !(has_more || tunnel::is_asked_for(session, ctx)) {
        return;
    }
    // Without a stream of ours nothing else would watch the time.
    if let (Some(connection), Some(read)) =
        (ConnectionState::of(session), peer.options.read_timeout)
    {
        // Once the server does not take the body, the framework waits for its answer and reads no more of the client, so
        // the stream is not polled. This timeout then ends the request.
        let is_tunnel = tunnel::is_asked_for(session, ctx);
        peer.options.read_timeout = (!is_tunnel).then(|| read.max(MIN_FRAMEWORK_WAIT));
        connection.set_origin_timeout(read);
    }
}

/// Names the side that caused the error of an exchange: the origin, where the client's stream found it silent, and the
/// client, where it stalls its body.
pub(super) fn attribute(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    error: Box<Error>,
) -> Box<Error> {
    if OriginSilent::is_cause_of(&error) {
        return Error::explain(ErrorType::ReadTimedout, "the origin is silent").into_up();
    }
    if *error.esource() != ErrorSource::Upstream
        || *error.etype() == ErrorType::WriteTimedout
        || ctx.origin_status.is_some()
        || !stalls_body(proxy, session, ctx, *error.etype() == ErrorType::ReadTimedout)
    {
        return error;
    }
    ctx.rejected = Some(RejectReason::BodyRate);
    Error::explain(ErrorType::ReadTimedout, "the client stalls its body").into_down()
}

/// Whether the client keeps its body back. `is_late`: the origin's time is over.
fn stalls_body(proxy: &Tollgate, session: &mut Session, ctx: &Context, is_late: bool) -> bool {
    if session.is_body_done() || (ctx.body_read == 0 && expects_continue(session)) {
        return false;
    }
    let since = ctx.body_at.max(ctx.origin_asked.unwrap_or_default());
    let silent_for = proxy.engine.now().mono.saturating_sub(since);
    silent_for >= min_stall(ctx, is_late) && sends_nothing(session)
}

fn min_stall(ctx: &Context, is_late: bool) -> Nanos {
    match &ctx.origin {
        Some(origin) if is_late => MIN_STALL.min(Nanos::from(origin.config().timeouts.read / 2)),
        _ => MIN_STALL,
    }
}

/// Whether nothing of the body waits to be read: otherwise the server has not taken what came before. What is read here
/// stays in the framework's buffer for a request that is sent again.
fn sends_nothing(session: &mut Session) -> bool {
    let mut cx = PollContext::from_waker(Waker::noop());
    pin!(session.as_downstream_mut().read_request_body()).poll(&mut cx).is_pending()
}

/// Whether the server took the whole request and gave no answer, or does not take the request. The end of a kept
/// connection says nothing.
pub(super) fn leaves_request_unanswered(
    session: &mut Session,
    ctx: &Context,
    error: &Error,
    kept: bool,
) -> bool {
    if *error.esource() != ErrorSource::Upstream || ctx.origin_status.is_some() {
        return false;
    }
    match error.etype() {
        ErrorType::WriteTimedout => true,
        ErrorType::ReadTimedout => session.is_body_done(),
        _ => !kept && session.is_body_done(),
    }
}
