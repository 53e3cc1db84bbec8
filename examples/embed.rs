//! The engine inside somebody else's `ProxyHttp`: a policy file decides, the rest is yours.
//!
//! `cargo run --example embed -- conf/examples/two-tier-site.yaml 127.0.0.1:8080 127.0.0.1:9000`

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::http::ResponseHeader;
use pingora::prelude::*;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use tollgate::limiter::{Judged, Limiter};

struct MyProxy {
    limiter: Arc<Limiter>,
    origin: String,
}

#[async_trait]
impl ProxyHttp for MyProxy {
    type CTX = Option<Judged>;

    fn new_ctx(&self) -> Self::CTX {
        None
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        let peer = session.client_addr().and_then(|a| a.as_inet()).map(|a| a.ip());
        let peer = peer.unwrap_or_else(|| [0, 0, 0, 0].into());
        let mut judged = self.limiter.judge(session.req_header(), peer).await;
        tokio::time::sleep(judged.wait()).await;
        judged.end_delay();
        let refusal = judged.refusal(&session.req_header().headers)?;
        *ctx = Some(judged);
        let Some(refusal) = refusal else {
            return Ok(false);
        };
        session.set_keepalive(None);
        session.write_response_header(Box::new(refusal.head), false).await?;
        session.write_response_body(Some(refusal.body), true).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.origin.as_str(), false, String::new())))
    }

    async fn response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        let Some(judged) = ctx else {
            return Ok(());
        };
        judged.finish(response);
        judged.write_fields(response)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(listen), Some(origin)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: embed POLICY.yaml LISTEN ORIGIN".into());
    };
    let limiter = Arc::new(Limiter::from_file(file.as_ref())?);
    let ticking = Arc::clone(&limiter);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            ticking.tick();
        }
    });
    let mut server = Server::new(None)?;
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, MyProxy { limiter, origin });
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever()
}
