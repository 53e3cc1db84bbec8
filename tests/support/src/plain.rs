//! A Pingora proxy with no policy at all, with the deadlines of tollgate's defaults: one that waits
//! for its origin for ever is nobody's alternative. (Apart from `main.rs`, for a test to count what
//! it allocates.)

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;
use pingora_proxy::{ProxyHttp, Session};

/// How long a connection that nobody uses is kept, here and at the origin; as tollgate does.
const IDLE_SECS: u64 = 60;

/// How long a connection to the origin may take.
const CONNECT: Duration = Duration::from_secs(1);

/// How long the origin may send, or take, nothing.
const READ_OR_WRITE: Duration = Duration::from_secs(60);

/// The proxy: with `refuse` every request is answered with a bare 429.
pub struct Plain {
    pub origin: String,
    pub refuse: bool,
}

#[async_trait]
impl ProxyHttp for Plain {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    fn init_downstream_modules(&self, _: &mut pingora::modules::http::HttpModules) {}

    async fn request_filter(&self, session: &mut Session, _: &mut Self::CTX) -> Result<bool> {
        session.set_keepalive(Some(IDLE_SECS));
        if !self.refuse {
            return Ok(false);
        }
        let mut answer = ResponseHeader::build(429, Some(1))?;
        answer.insert_header("Content-Length", "0")?;
        session.write_response_header(Box::new(answer), true).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.origin.as_str(), false, String::new());
        peer.options.connection_timeout = Some(CONNECT);
        peer.options.total_connection_timeout = Some(CONNECT);
        peer.options.read_timeout = Some(READ_OR_WRITE);
        peer.options.write_timeout = Some(READ_OR_WRITE);
        peer.options.idle_timeout = Some(Duration::from_secs(IDLE_SECS));
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        _: &mut Self::CTX,
    ) -> Result<()> {
        let peer = session.client_addr().and_then(|peer| peer.as_inet()).map(|peer| peer.ip());
        let peer: IpAddr = peer.unwrap_or_else(|| [0, 0, 0, 0].into());
        let host = request.headers.get("host").cloned();
        request.insert_header("X-Forwarded-For", peer.to_string())?;
        let tls = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
        request.insert_header("X-Forwarded-Proto", if tls { "https" } else { "http" })?;
        if let Some(host) = host {
            request.insert_header("X-Forwarded-Host", host)?;
        }
        request.insert_header("X-Request-Id", format!("{:032x}", fastrand::u128(..)))
    }
}
