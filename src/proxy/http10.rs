//! Clients that speak HTTP/1.0 (RFC 1945; RFC 9112, appendix C.2.2).
//!
//! Such a client knows neither chunks nor interim responses, and may send no `Host`. The framework would send chunks
//! and interim responses to it, and would forward its request without a `Host`. `request` stops the interim responses;
//! the rest is here.

use std::any::Any;

use async_trait::async_trait;
use http::{Method, StatusCode, Version, header};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::{HttpModule, HttpModuleBuilder, HttpModules, Module};
use pingora_proxy::Session;

use super::context::Context;

/// Whether a request came over HTTP/1.0.
pub(super) fn is_request(session: &Session) -> bool {
    session.req_header().version == Version::HTTP_10
}

/// Ends a body without a length with the connection: such a client would take the framing of chunks for content.
pub(super) fn prepare_response(session: &mut Session, response: &ResponseHeader) {
    // The framework chunks a body without a length; for an HTTP/2 origin it does so after our filter. A module sees the
    // head after that.
    let mut modules = HttpModules::new();
    modules.add_module(Box::new(NoChunks));
    session.downstream_modules_ctx = modules.build_ctx();
    let has_body = session.req_header().method != Method::HEAD
        && !matches!(response.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_body && !response.headers.contains_key(header::CONTENT_LENGTH) {
        session.set_keepalive(None);
    }
}

/// Adds the `Host` that HTTP/1.1 needs where the client sent none: the origin's own name, as for its health check
/// (`host`, `tls.sni`, or the address of its first server).
pub(super) fn name_host(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let named = request.headers.get(header::HOST).is_some_and(|host| !host.is_empty());
    match &ctx.origin {
        Some(origin) if !named => request.insert_header(header::HOST, origin.config().own_host()),
        _ => Ok(()),
    }
}

/// Removes the framing fields that HTTP/1.0 does not know.
struct NoChunks;

impl HttpModuleBuilder for NoChunks {
    fn init(&self) -> Module {
        Box::new(Self)
    }
}

#[async_trait]
impl HttpModule for NoChunks {
    async fn response_header_filter(
        &mut self,
        response: &mut ResponseHeader,
        _end_of_stream: bool,
    ) -> Result<()> {
        response.remove_header(&header::TRANSFER_ENCODING);
        response.remove_header(&header::TRAILER);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
