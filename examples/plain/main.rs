//! The baseline that tollgate is measured against: a Pingora proxy with no policy at all. The same
//! allocator, threads and listener, and what an origin is told of the client.
//!
//! `cargo run --release --example plain -- LISTEN ORIGIN [--refuse] [--tls=LISTEN,CERT,KEY]`: with
//! `--refuse` every request is answered with a bare 429, with `--tls` it also listens for TLS with
//! HTTP/1 and HTTP/2. What else could make the framework faster is tried with `--threads=N`,
//! `--no-stealing` (a runtime for each thread) and `--pool=N` (connections kept to the origin).

use pingora::listeners::tls::TlsSettings;
use pingora::prelude::*;
use pingora::server::configuration::ServerConf;
use pingora_proxy::http_proxy_service;
use support::plain::Plain;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What the command line says.
struct Arguments {
    listen: String,
    origin: String,
    refuse: bool,
    /// Address, certificate, key.
    tls: Option<(String, String, String)>,
    conf: ServerConf,
}

fn arguments() -> Option<Arguments> {
    let (flags, mut places): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let (origin, listen) = (places.pop()?, places.pop()?);
    let threads = std::thread::available_parallelism().ok()?.get();
    let conf = ServerConf { threads, ..ServerConf::default() };
    let mut arguments = Arguments { listen, origin, refuse: false, tls: None, conf };
    for flag in flags {
        let (name, value) = flag.split_once('=').unwrap_or((&flag, ""));
        match (name, value.split(',').collect::<Vec<_>>().as_slice()) {
            ("--refuse", _) => arguments.refuse = true,
            ("--no-stealing", _) => arguments.conf.work_stealing = false,
            ("--threads", [threads]) => arguments.conf.threads = threads.parse().ok()?,
            ("--pool", [pool]) => {
                arguments.conf.upstream_keepalive_pool_size = pool.parse().ok()?
            }
            ("--tls", [listen, certificate, key]) => {
                let [listen, certificate, key] = [listen, certificate, key].map(|s| s.to_string());
                arguments.tls = Some((listen, certificate, key));
            }
            _ => return None,
        }
    }
    places.is_empty().then_some(arguments)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(arguments) = arguments() else {
        return Err("usage: plain LISTEN ORIGIN [--refuse] [--tls=LISTEN,CERT,KEY]".into());
    };
    let mut server = Server::new_with_opt_and_conf(None, arguments.conf);
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
