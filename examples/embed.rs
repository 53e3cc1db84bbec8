//! Rate limits in your own Pingora proxy: a policy file decides, the rest is yours.
//!
//! `cargo run --example embed -- conf/examples/two-tier-site.yaml 127.0.0.1:8080 127.0.0.1:9000`

use async_trait::async_trait;
use pingora::http::ResponseHeader;
use pingora::prelude::*;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use tollgate::Limiter;
use tollgate::plugin::RequestLimit;

struct MyProxy(Limiter, String);

#[async_trait]
impl ProxyHttp for MyProxy {
    type CTX = RequestLimit;
    fn new_ctx(&self) -> RequestLimit {
        RequestLimit::default()
    }
    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestLimit) -> Result<bool> {
        ctx.request_filter(&self.0, session).await
    }
    async fn response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestLimit,
    ) -> Result<()> {
        ctx.response_filter(response)
    }
    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut RequestLimit) {
        ctx.logging(session, error);
    }
    async fn upstream_peer(&self, _: &mut Session, _: &mut RequestLimit) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.1.as_str(), false, String::new())))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policy, listen, origin] = args.try_into().map_err(|_| "embed POLICY LISTEN ORIGIN")?;
    let limiter = Limiter::builder().policy_file(policy).reload_on_change().build()?;
    let mut server = Server::new(None)?;
    server.bootstrap();
    server.add_service(limiter.background());
    let mut proxy = http_proxy_service(&server.configuration, MyProxy(limiter, origin));
    proxy.add_tcp(&listen);
    server.add_service(proxy);
    server.run_forever()
}
