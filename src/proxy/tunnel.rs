//! Connections that switch to another protocol (RFC 9110, section 7.8), as WebSockets do.
//!
//! From the 101 on, only `timeouts.tunnel` bounds the silence of both sides together. Before it, and if the origin
//! answers otherwise, `timeouts.read` holds as for every request; `origin_wait` sees to that.

use http::{HeaderValue, Version, header};
use pingora::http::RequestHeader;
use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::context::Context;
use crate::edge::StreamCut;
use crate::http::UncommonFields;

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// One side closed it.
    Closed,
    /// Nothing came from either side for `timeouts.tunnel`.
    Idle,
    /// One side did not read what the other side sent.
    Stalled,
}

impl TunnelEnd {
    /// The word of the access log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
        }
    }

    fn from_error(error: &Error) -> Self {
        match (error.etype(), error.esource()) {
            (ErrorType::ReadTimedout, ErrorSource::Downstream) => Self::Idle,
            (ErrorType::WriteTimedout, _) => Self::Stalled,
            _ if StreamCut::reason_of(error).is_some() => Self::Stalled,
            _ => Self::Closed,
        }
    }
}

/// Whether the client asks for another protocol, and this proxy passes that on. A request with a body is an ordinary one
/// (a server may ignore `Upgrade`): behind a body that the origin does not take, no timeout of an ordinary request would
/// hold. So is one that asks for HTTP, since requests on such a connection would bypass the limiter.
pub(super) fn is_asked_for(session: &Session, ctx: &Context) -> bool {
    ctx.uncommon.has(UncommonFields::UPGRADE) && asks_to_switch(session.req_header())
}

fn asks_to_switch(head: &RequestHeader) -> bool {
    head.version == Version::HTTP_11
        && head.headers.contains_key(header::UPGRADE)
        && !head.headers.get_all(header::UPGRADE).iter().any(is_to_http)
        && !announces_body(head)
}

fn announces_body(head: &RequestHeader) -> bool {
    let is_long = |length: &HeaderValue| length.as_bytes().iter().any(|digit| *digit != b'0');
    head.headers.contains_key(header::TRANSFER_ENCODING)
        || head.headers.get(header::CONTENT_LENGTH).is_some_and(is_long)
}

/// Whether a line of `Upgrade` names another version of HTTP, or TLS with HTTP inside.
fn is_to_http(line: &HeaderValue) -> bool {
    line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
    })
}

/// The origin switches protocols: from now on both sides may be silent for `timeouts.tunnel`.
pub(super) fn begin(session: &mut Session, ctx: &mut Context) {
    let idle = ctx.origin.as_ref().map(|origin| origin.config().timeouts.tunnel);
    // The framework restarts this timeout with each byte of either side.
    session.set_read_timeout(idle);
    ctx.tunnel = Some(TunnelEnd::Closed);
}

/// Records how a tunnel ended. Returns `false` if the connection is not a tunnel.
pub(super) fn record_end(ctx: &mut Context, error: &Error) -> bool {
    let end = ctx.tunnel.as_mut();
    end.map(|end| *end = TunnelEnd::from_error(error)).is_some()
}
