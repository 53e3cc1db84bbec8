//! The operator's log of requests that failed.
//!
//! A line names the request's identifier, its route, the server and the failure. It holds nothing that came with the
//! request, because queries, paths, fields and cookies may contain keys. Lines are sampled.

use std::fmt;
use std::net::SocketAddr;

use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::request_id::RequestId;
use crate::edge::ShedReason;
use crate::log_sampler::{LOG_SAMPLER, LogKind};

/// Logs a request that ended without a response, or in the middle of one. `status`: our answer, if there was none before.
pub(super) fn failed(
    proxy: &Tollgate,
    session: &Session,
    ctx: &mut Context,
    error: &Error,
    status: u16,
) {
    if is_by_client(ctx, error) {
        return;
    }
    let kind = match error.esource() {
        ErrorSource::Upstream => LogKind::OriginFailed,
        _ => LogKind::Internal,
    };
    if !LOG_SAMPLER.admit_line(kind, proxy.engine.date(proxy.engine.now())) {
        return;
    }
    let id = RequestId::of(&proxy.request_ids, session, ctx);
    let failure = FailureLine { ctx, error };
    log::error!("{failure}; answered {status}; {}", request(ctx, &id));
    // The access log shows the same identifier.
    ctx.request_id = Some(id);
}

/// Logs that a server could not be asked, and that the request goes to another one or is sent again.
pub(super) fn retried(proxy: &Tollgate, session: &Session, ctx: &mut Context, error: &Error) {
    if !LOG_SAMPLER.admit_line(LogKind::OriginRetried, proxy.engine.date(proxy.engine.now())) {
        return;
    }
    let id = RequestId::of(&proxy.request_ids, session, ctx);
    log::warn!("{}; tried again; {}", FailureLine { ctx, error }, request(ctx, &id));
    ctx.request_id = Some(id);
}

/// The request as logs name it.
pub(super) fn request(ctx: &Context, id: &RequestId) -> String {
    let route = ctx.decision.as_ref().and_then(|decision| decision.route);
    let route = route.map_or("none", |route| &*ctx.live.generation.policy().route(route).name);
    format!("route {route}, request {}", id.as_str())
}

/// Whether the client caused the error, or a tunnel ended. Neither is of use to the operator.
fn is_by_client(ctx: &Context, error: &Error) -> bool {
    ctx.tunnel.is_some() || *error.esource() == ErrorSource::Downstream || ctx.rejected.is_some()
}

/// What went wrong, at which server.
struct FailureLine<'f> {
    ctx: &'f Context,
    error: &'f Error,
}

impl fmt::Display for FailureLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.ctx.origin {
            write!(f, "origin {}: ", origin.config().name)?;
        }
        if let Some(server) = self.server() {
            write!(f, "server {server} ")?;
        }
        match self.ctx.shed {
            Some(ShedReason::OriginConnections) => {
                return f.write_str("no connection is left for this client (max_connections)");
            }
            Some(ShedReason::Memory | ShedReason::SlowReader | ShedReason::IdleConnections) => {
                return f.write_str("no memory is left for it (limits_of_this_proxy.memory)");
            }
            None => {}
        }
        f.write_str(description(self.error.root_etype()))?;
        let cause = self.error.root_cause();
        if cause.is::<Error>() {
            // An error of the framework itself, without an outside cause.
            return self.handshake().map_or(Ok(()), |why| write!(f, ": {why}"));
        }
        // A connection fails before the request is sent, so its error can hold nothing of the request.
        match cause.is::<std::io::Error>() || is_connecting(self.error.root_etype()) {
            true => write!(f, ": {cause}"),
            false => Ok(()),
        }
    }
}

impl FailureLine<'_> {
    fn server(&self) -> Option<SocketAddr> {
        if matches!(self.error.root_etype(), ErrorType::HTTPStatus(_)) {
            // We gave this status ourselves, so no server was asked.
            return None;
        }
        self.ctx.server()
    }

    /// Why a handshake failed. It comes before the request, so it can hold nothing of it.
    fn handshake(&self) -> Option<&str> {
        use ErrorType::{HandshakeError, InvalidCert, TLSHandshakeFailure};
        let is_tls =
            matches!(self.error.etype(), HandshakeError | InvalidCert | TLSHandshakeFailure);
        self.error.context.as_ref().filter(|_| is_tls).map(|context| context.as_str())
    }
}

/// Whether an error comes before the first byte of the request.
const fn is_connecting(error: &ErrorType) -> bool {
    use ErrorType::{
        BindError, ConnectError, ConnectNoRoute, ConnectProxyFailure, ConnectRefused,
        ConnectTimedout, HandshakeError, InvalidCert, SocketError, TLSHandshakeFailure,
        TLSHandshakeTimedout,
    };
    matches!(
        error,
        BindError
            | ConnectError
            | ConnectNoRoute
            | ConnectProxyFailure
            | ConnectRefused
            | ConnectTimedout
            | HandshakeError
            | InvalidCert
            | SocketError
            | TLSHandshakeFailure
            | TLSHandshakeTimedout
    )
}

/// A failure in words of our own: the framework's contexts may quote what was received.
fn description(error: &ErrorType) -> &'static str {
    use ErrorType::{
        BindError, ConnectError, ConnectNoRoute, ConnectProxyFailure, ConnectRefused,
        ConnectTimedout, ConnectionClosed, HTTPStatus, HandshakeError, InvalidCert,
        InvalidHTTPHeader, ReadError, ReadTimedout, SocketError, TLSHandshakeFailure,
        TLSHandshakeTimedout, WriteError, WriteTimedout,
    };
    match error {
        ConnectRefused | ConnectNoRoute | ConnectError | ConnectProxyFailure | BindError
        | SocketError => "cannot be reached",
        ConnectTimedout => "cannot be reached: no connection within timeouts.connect",
        TLSHandshakeFailure | InvalidCert | HandshakeError => "does not agree on TLS",
        TLSHandshakeTimedout => "does not end its TLS handshake in time",
        ReadTimedout => "sends nothing within timeouts.read",
        WriteTimedout => "takes nothing within timeouts.write",
        ReadError | ConnectionClosed => "closed the connection before its answer ended",
        WriteError => "does not take the request",
        InvalidHTTPHeader => "sends an answer that is not HTTP",
        HTTPStatus(503) => "no server is healthy",
        other => other.as_str(),
    }
}
