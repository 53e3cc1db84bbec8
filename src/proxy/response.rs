//! `response_filter`: what the client is told beside the origin's answer.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode, Version, response};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::fields::{Standing, Triple};
use super::lines::{LIMIT, RATELIMIT, RATELIMIT_POLICY, REMAINING, RESET, value_of};
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
            _ if is_http1(session) => write(response, &standing)?,
            Some(_) | None => write_uncased(response, &standing)?,
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

/// What is to be written: the two lists, and the triple where the origin's is not tighter.
type ToWrite = (Option<[Vec<u8>; 2]>, Option<Triple>);

fn to_write(headers: &HeaderMap, standing: &Standing<'_>) -> ToWrite {
    let lists = standing.has_lists().then(|| {
        [written(|out| standing.write_policies(out)), written(|out| standing.write_limits(out))]
    });
    (lists, standing.triple().filter(|ours| !theirs_is_tighter(headers, *ours)))
}

/// Writes the fields beside those that are there.
pub(super) fn write(response: &mut ResponseHeader, standing: &Standing<'_>) -> Result<()> {
    let (lists, triple) = to_write(&response.headers, standing);
    if let Some([policies, limits]) = lists {
        // Both are lists (RFC 9651): ours is one more line.
        response.append_header(RATELIMIT_POLICY.shown(), policies)?;
        response.append_header(RATELIMIT.shown(), limits)?;
    }
    if let Some(ours) = triple {
        response.insert_header(LIMIT.shown(), HeaderValue::from(ours.limit))?;
        response.insert_header(REMAINING.shown(), HeaderValue::from(ours.remaining))?;
        response.insert_header(RESET.shown(), HeaderValue::from(ours.reset))?;
    }
    Ok(())
}

/// The same where names have no case, as over HTTP/2: what keeps it would only be carried along.
fn write_uncased(response: &mut ResponseHeader, standing: &Standing<'_>) -> Result<()> {
    let (lists, triple) = to_write(&response.headers, standing);
    let none = ResponseHeader::build_no_case(response.status, Some(0))?;
    let mut parts: response::Parts = std::mem::replace(response, none).into();
    let headers = &mut parts.headers;
    if let Some(lists) = lists {
        for (name, list) in [RATELIMIT_POLICY, RATELIMIT].into_iter().zip(lists) {
            headers.append(name.name, value_of(list.into())?);
        }
    }
    if let Some(ours) = triple {
        headers.insert(LIMIT.name, HeaderValue::from(ours.limit));
        headers.insert(REMAINING.name, HeaderValue::from(ours.remaining));
        headers.insert(RESET.name, HeaderValue::from(ours.reset));
    }
    *response = parts.into();
    Ok(())
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut value = Vec::with_capacity(64);
    write(&mut value);
    value
}

/// Whether an origin tells a triple of its own. (An answer has few fields, and three searches in
/// the map cost more than a look at the length of every name.)
fn has_triple(headers: &HeaderMap) -> bool {
    let is_ours = |name: &HeaderName| [LIMIT, REMAINING, RESET].iter().any(|one| one.name == *name);
    headers.keys().any(|name| matches!(name.as_str().len(), 17 | 21) && is_ours(name))
}

/// Whether the origin's triple leaves less than ours: then it goes out whole.
fn theirs_is_tighter(headers: &HeaderMap, ours: Triple) -> bool {
    let remaining = headers.get(REMAINING.name).and_then(|value| value.to_str().ok());
    remaining
        .and_then(|text| text.trim().parse::<u64>().ok())
        .is_some_and(|theirs| theirs < u64::from(ours.remaining))
}
