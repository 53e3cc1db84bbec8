//! `response_filter`: what the client is told beside the origin's answer.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode, Version};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::fields::{LIMIT, RATELIMIT, RATELIMIT_POLICY, REMAINING, RESET, Standing, Triple};
use super::{Context, Ending, Link, Tollgate};
use crate::engine::Said;

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
    if let Some(standing) = ctx.standing() {
        match Link::of(session).filter(|_| is_http1(session)) {
            // The stream writes them as they are.
            Some(link) if !has_triple(&response.headers) => {
                link.tell(|out| standing.write_lines(out));
            }
            _ => write(response, &standing)?,
        }
    }
    // `Connection` of a 101 names the protocol that is switched to.
    if !switching && gate.leaving.load(std::sync::atomic::Ordering::Relaxed) {
        response.insert_header(header::CONNECTION, "close")?;
    }
    Ok(())
}

fn is_http1(session: &Session) -> bool {
    session.req_header().version != Version::HTTP_2
}

/// Writes the fields beside those that are there.
pub(super) fn write(response: &mut ResponseHeader, standing: &Standing<'_>) -> Result<()> {
    if standing.has_lists() {
        // Both are lists (RFC 9651): ours is one more line.
        response.append_header(RATELIMIT_POLICY, written(|out| standing.write_policies(out)))?;
        response.append_header(RATELIMIT, written(|out| standing.write_limits(out)))?;
    }
    if let Some(ours) = standing.triple()
        && !theirs_is_tighter(&response.headers, ours)
    {
        response.insert_header(LIMIT, HeaderValue::from(ours.limit))?;
        response.insert_header(REMAINING, HeaderValue::from(ours.remaining))?;
        response.insert_header(RESET, HeaderValue::from(ours.reset))?;
    }
    Ok(())
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut value = Vec::with_capacity(64);
    write(&mut value);
    value
}

/// Whether an origin tells a triple of its own.
fn has_triple(headers: &HeaderMap) -> bool {
    const THEIRS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit"),
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset"),
    ];
    THEIRS.iter().any(|name| headers.contains_key(name))
}

/// Whether the origin's triple leaves less than ours: then it goes out whole.
fn theirs_is_tighter(headers: &HeaderMap, ours: Triple) -> bool {
    let remaining = headers.get(REMAINING).and_then(|value| value.to_str().ok());
    remaining
        .and_then(|text| text.trim().parse::<u64>().ok())
        .is_some_and(|theirs| theirs < u64::from(ours.remaining))
}
