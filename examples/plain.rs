//! The baseline that tollgate is measured against: a Pingora proxy with no policy at all. The same
//! allocator, threads and listener, and what an origin is told of the client.
//!
//! `cargo run --release --example plain -- LISTEN ORIGIN [--refuse] [--tls=LISTEN,CERT,KEY]`: with
//! `--refuse` every request is answered with a bare 429, with `--tls` it also listens for TLS with
//! HTTP/1 and HTTP/2.

use std::net::IpAddr;

use async_trait::async_trait;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::listeners::tls::TlsSettings;
use pingora::prelude::*;
use pingora::server::configuration::ServerConf;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long a connection that nobody uses is kept, here and at the origin; as tollgate does.
const IDLE_SECS: u64 = 60;

struct Plain {
    origin: String,
    refuse: bool,
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
        Ok(Box::new(HttpPeer::new(self.origin.as_str(), false, String::new())))
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

/// What the command line says.
struct Arguments {
    listen: String,
    origin: String,
    refuse: bool,
    /// Address, certificate, key.
    tls: Option<(String, String, String)>,
}

fn arguments() -> Option<Arguments> {
    let (flags, mut places): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let (origin, listen) = (places.pop()?, places.pop()?);
    let mut arguments = Arguments { listen, origin, refuse: false, tls: None };
    for flag in flags {
        match flag.strip_prefix("--tls=").map(|tls| tls.split(',').collect::<Vec<_>>()).as_deref() {
            Some([listen, certificate, key]) => {
                let [listen, certificate, key] = [listen, certificate, key].map(|s| s.to_string());
                arguments.tls = Some((listen, certificate, key));
            }
            None if flag == "--refuse" => arguments.refuse = true,
            Some(_) | None => return None,
        }
    }
    places.is_empty().then_some(arguments)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(arguments) = arguments() else {
        return Err("usage: plain LISTEN ORIGIN [--refuse] [--tls=LISTEN,CERT,KEY]".into());
    };
    let threads = std::thread::available_parallelism()?.get();
    let conf = ServerConf { threads, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let plain = Plain { origin: arguments.origin, refuse: arguments.refuse };
    let mut service = http_proxy_service(&server.configuration, plain);
    service.add_tcp(&arguments.listen);
    if let Some((listen, certificate, key)) = arguments.tls {
        let mut tls = TlsSettings::intermediate(&certificate, &key)?;
        tls.enable_h2();
        service.add_tls_with_settings(&listen, None, tls);
    }
    server.add_service(service);
    server.run_forever()
}
