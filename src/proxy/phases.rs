//! Pingora's `ProxyHttp`: which file serves which phase, and nothing else.

use async_trait::async_trait;
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::HttpPeer;
use pingora::upstreams::peer::Peer;
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use super::context::{Context, Tollgate};
use super::request_id::RequestId;
use super::{access_record, failure_log, origin_wait, request, respond, response, upstream};
use crate::edge::ConnectionState;

#[async_trait]
impl ProxyHttp for Tollgate {
    // Boxed, because the framework moves it between futures.
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Self::CTX {
        Box::new(Context::new(self.live.load_full()))
    }

    /// No modules: this proxy does not compress.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// Written by hand, because the future of an `async fn` would be larger.
    fn request_filter<'proxy, 'session, 'ctx, 'r>(
        &'proxy self,
        session: &'session mut Session,
        ctx: &'ctx mut Self::CTX,
    ) -> request::Judging<'r>
    where
        'proxy: 'r,
        'session: 'r,
        'ctx: 'r,
        Self: 'r,
    {
        request::judge(self, session, ctx)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<bytes::Bytes>,
        _end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        request::bound_body(self, body.as_ref(), ctx)
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut Self::CTX,
    ) -> Result<Box<HttpPeer>> {
        upstream::choose(self, session, ctx)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream_request: &mut RequestHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        upstream::write_forwarding_fields(self, session, upstream_request, ctx)
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Self::CTX,
        error: Box<pingora::Error>,
    ) -> Box<pingora::Error> {
        let error = upstream::try_another(ctx, error);
        if error.retry() {
            failure_log::retried(self, session, ctx, &error);
        }
        error
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<pingora::Error>,
        ctx: &mut Self::CTX,
        client_reused: bool,
    ) -> Box<pingora::Error> {
        let error = origin_wait::attribute(self, session, ctx, error)
            .more_context(format!("server {}", peer.address()));
        let error = upstream::send_again(session, ctx, error, client_reused);
        // The end of a kept connection is not a failure of the server.
        if error.retry() && !client_reused {
            failure_log::retried(self, session, ctx, &error);
        }
        error
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        response::write_fields(self, session, response, ctx)
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<bytes::Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<Option<std::time::Duration>> {
        if ctx.pending.awaits_rest() {
            response::read_body(self, body.as_ref(), end_of_stream, ctx);
        }
        if end_of_stream && let Some(connection) = ConnectionState::of(session) {
            connection.end_response();
        }
        Ok(None)
    }

    fn upstream_response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut http::HeaderMap,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        response::read_trailers(self, trailers, ctx);
        Ok(())
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &pingora::Error,
        ctx: &mut Self::CTX,
    ) -> FailToProxy {
        let failure = respond::failure(self, session, error, ctx).await;
        failure_log::failed(self, session, ctx, error, failure.error_code);
        failure
    }

    /// Always `true`: `fail_to_proxy` has logged the error, without anything from the request.
    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &Self::CTX,
        _error: &pingora::Error,
    ) -> bool {
        true
    }

    /// Always `true`: `failure_log` has logged the warning.
    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Self::CTX,
        _error: &pingora::Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    /// The name of a request in the framework's log lines: never its target, which is the default.
    fn request_summary(&self, session: &Session, ctx: &Self::CTX) -> String {
        failure_log::request(ctx, &RequestId::of(&self.request_ids, session, ctx))
    }

    async fn logging(
        &self,
        session: &mut Session,
        error: Option<&pingora::Error>,
        ctx: &mut Self::CTX,
    ) {
        response::end(self, error.is_none(), ctx);
        access_record::record(self, session, ctx);
    }
}
