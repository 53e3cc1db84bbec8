//! `response_filter`: what the client is told beside the origin's answer.

use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::fields::{RateLimitFields, Triple};
use super::{Context, Ending, Link, Tollgate};
use crate::engine::Said;

// As texts, so that HTTP/1 shows them in the case that people know.
const RATELIMIT_POLICY: &str = "RateLimit-Policy";
const RATELIMIT: &str = "RateLimit";
const LIMIT: &str = "X-RateLimit-Limit";
const REMAINING: &str = "X-RateLimit-Remaining";
const RESET: &str = "X-RateLimit-Reset";

/// Adds where the client stands. An origin's own fields are never loosened.
pub(super) fn tell(
    gate: &Tollgate,
    session: &Session,
    response: &mut ResponseHeader,
    ctx: &mut Context,
) -> Result<()> {
    let switching = response.status == StatusCode::SWITCHING_PROTOCOLS;
    if response.status.is_informational() && !switching {
        // The final answer says it all.
        return Ok(());
    }
    ctx.origin_status = Some(response.status.as_u16());
    if let Some(link) = Link::of(session) {
        link.answer(switching);
    }
    ctx.ending = Some(Ending::Forwarded);
    if let (Some(origin), Some(asked)) = (&ctx.origin, ctx.origin_asked) {
        let now = gate.engine.now().mono;
        origin.tally().duration.observe(now.saturating_sub(asked));
    }
    let said =
        Said { status: response.status.as_u16(), headers: &response.headers, by_origin: true };
    gate.finish(ctx, &said);
    write(response, &ctx.fields())?;
    // `Connection` of a 101 names the protocol that is switched to.
    if !switching && gate.leaving.load(std::sync::atomic::Ordering::Relaxed) {
        response.insert_header(header::CONNECTION, "close")?;
    }
    Ok(())
}

/// Writes the fields beside those that are there.
pub(super) fn write(response: &mut ResponseHeader, fields: &RateLimitFields) -> Result<()> {
    // Both are lists (RFC 9651): ours is one more line.
    if let Some(policy) = &fields.policy {
        response.append_header(RATELIMIT_POLICY, policy.clone())?;
    }
    if let Some(limit) = &fields.limit {
        response.append_header(RATELIMIT, limit.clone())?;
    }
    if let Some(ours) = &fields.triple
        && !theirs_is_tighter(&response.headers, ours)
    {
        response.insert_header(LIMIT, HeaderValue::from(ours.limit))?;
        response.insert_header(REMAINING, HeaderValue::from(ours.remaining))?;
        response.insert_header(RESET, HeaderValue::from(ours.reset))?;
    }
    Ok(())
}

/// Whether the origin's triple leaves less than ours: then it goes out whole.
fn theirs_is_tighter(headers: &HeaderMap, ours: &Triple) -> bool {
    let remaining = headers.get(REMAINING).and_then(|value| value.to_str().ok());
    remaining
        .and_then(|text| text.trim().parse::<u64>().ok())
        .is_some_and(|theirs| theirs < u64::from(ours.remaining))
}
