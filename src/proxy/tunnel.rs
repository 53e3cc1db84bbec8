//! Connections that switch to another protocol (RFC 9110, section 7.8), as WebSockets do.
//!
//! From the 101 on, only `timeouts.tunnel` bounds the silence of both sides together. Before it, and
//! if the origin answers otherwise, `timeouts.read` holds as for every request. The framework has one
//! timeout for reading from an origin, which cannot be changed after the request was sent. So for
//! these requests the framework's timeout is off, and the client's stream, which is polled as long as
//! the origin is waited for, watches the time instead ([`ConnectionState::set_origin_timeout`]).

use http::{Version, header};
use pingora::http::RequestHeader;
use pingora::prelude::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::context::Context;
use crate::edge::{ConnectionState, OriginSilent, StreamCut};
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

/// Prepares the connection to the origin for a request that asks for another protocol.
pub(super) fn prepare(session: &Session, ctx: &Context, peer: &mut HttpPeer) {
    if !is_asked_for(session, ctx) {
        return;
    }
    let http2 = ctx.origin.as_ref().is_some_and(|origin| origin.config().http2);
    // Without a stream of ours, nothing else would watch the time, so the framework's timeout stays.
    if let (Some(connection), Some(read), false) =
        (ConnectionState::of(session), peer.options.read_timeout, http2)
    {
        peer.options.read_timeout = None;
        connection.set_origin_timeout(read);
    }
}

/// Whether the client asks for another protocol.
pub(super) fn is_asked_for(session: &Session, ctx: &Context) -> bool {
    ctx.uncommon.has(UncommonFields::UPGRADE) && asks_to_switch(session.req_header())
}

fn asks_to_switch(head: &RequestHeader) -> bool {
    head.version == Version::HTTP_11 && head.headers.contains_key(header::UPGRADE)
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

/// Turns the error with which the client's stream reports a silent origin into an error of the origin.
pub(super) fn attribute_to_origin(error: Box<Error>) -> Box<Error> {
    if !OriginSilent::is_cause_of(&error) {
        return error;
    }
    Error::explain(ErrorType::ReadTimedout, "the origin is silent").into_up()
}
