//! The proxy with its policy, before two origins.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::certificates::{ONE, Pair, folder};
use crate::servers::{Gate, free_port};
use crate::soak::origin::Origins;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A running proxy.
pub struct Site {
    pub gate: Gate,
    /// Where it takes HTTP/1 without TLS.
    pub plain: SocketAddr,
    /// Where it takes HTTP/1 and HTTP/2 over TLS.
    pub tls: SocketAddr,
    /// The certificate of `one.example`.
    pub pair: Pair,
}

impl Site {
    /// Starts it with these limits, routes and other sections of a policy. `options` are those of `Gate::run`.
    pub async fn start(origins: Origins, policy: &str, options: &[&str]) -> Self {
        let (folder, mut pairs) = folder(&["one.example"]);
        let keys = include_str!("../../../policies/keys/jwks.json");
        std::fs::write(folder.path().join("jwks.json"), keys).unwrap();
        let Origins { site, early } = origins;
        // What is kept of a connection to an origin is to be gone within the test.
        let policy = format!(
            "origins:
  site: {{ servers: [\"{site}\"], timeouts: {{ connect: 5s, idle: 10s }} }}
  early: {{ servers: [\"{early}\"], timeouts: {{ connect: 5s, idle: 10s }} }}
{policy}"
        );
        let plain = free_port();
        let listeners = format!("{ONE}\n  - address: 127.0.0.1:{plain}");
        let (tls, admin) = Gate::prepare(&folder, &policy, &listeners);
        let mut gate = Gate::run(Arc::new(folder), tls, admin, options);
        gate.wait_admin().await;
        let (plain, tls) = (SocketAddr::new(HERE, plain), SocketAddr::new(HERE, tls));
        Self { gate, plain, tls, pair: pairs.remove(0) }
    }
}
