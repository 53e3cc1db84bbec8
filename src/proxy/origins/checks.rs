//! Active health checks: a periodic `GET` to each server.
//!
//! The framework sends them and keeps their last result; here each result also reaches what requests know about the server.
//! What must always hold: a check uses the same TLS as the requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use pingora::lb::Backend;
use pingora::lb::health_check::{HealthCheck as Check, HttpHealthCheck};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use super::servers::ServerList;
use crate::clock::Clock;
use crate::config::{HealthCheck, Origin};

/// The check of an origin's servers.
pub(super) struct ServerCheck {
    check: HttpHealthCheck,
    list: Arc<ServerList>,
    clock: Arc<dyn Clock>,
}

impl ServerCheck {
    /// `peer`: how connections to a server are made, whatever its address.
    pub(super) fn new(
        config: &Origin,
        settings: &HealthCheck,
        peer: HttpPeer,
        list: Arc<ServerList>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut check = HttpHealthCheck::new(config.own_host(), config.tls.is_some());
        check.peer_template = peer;
        check.peer_template.options.connection_timeout = Some(settings.timeout);
        check.peer_template.options.total_connection_timeout = Some(settings.timeout);
        check.peer_template.options.read_timeout = Some(settings.timeout);
        if let Ok(path) = settings.path.parse() {
            check.req.set_uri(path);
        }
        check.validator = Some(Box::new(|answer| {
            if answer.status.is_success() {
                return Ok(());
            }
            Error::e_explain(ErrorType::CustomCode("health", answer.status.as_u16()), "not healthy")
        }));
        Self { check, list, clock }
    }

    /// An address that the framework replaces by that of each server.
    pub(super) const fn any_address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 1)
    }
}

#[async_trait]
impl Check for ServerCheck {
    async fn check(&self, target: &Backend) -> pingora::Result<()> {
        let result = self.check.check(target).await;
        if let Some(server) = target.as_inet().and_then(|address| self.list.find(address))
            && server.health.checked(result.is_ok(), self.clock.now().mono)
        {
            log::info!("server {} passes its health check and is admitted again", server.label());
        }
        result
    }

    fn health_threshold(&self, success: bool) -> usize {
        self.check.health_threshold(success)
    }
}
