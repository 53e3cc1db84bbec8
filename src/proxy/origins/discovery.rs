//! The addresses of an origin's servers: names are looked up at each update.
//!
//! It does not know when updates happen. What must always hold: a name that does not resolve removes no server of another
//! name, and an answer of the resolver cannot make the list longer than its bound.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::lb::Backend;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::{Error, ErrorType};

use super::servers::{ResolvedServer, ServerList};
use crate::clock::Clock;
use crate::config::OriginServer;

/// The largest number of addresses of one origin. The framework has numbers for 65,536, and each has samples of metrics.
const MAX_ADDRESSES: usize = 4_096;

/// Looks up the servers of an origin.
pub(super) struct ServerNames {
    pub(super) servers: Vec<OriginServer>,
    /// Receives what was found.
    pub(super) list: Arc<ServerList>,
    pub(super) clock: Arc<dyn Clock>,
}

#[async_trait]
impl ServiceDiscovery for ServerNames {
    async fn discover(&self) -> pingora::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let (mut found, mut resolved, mut failed) = (BTreeSet::new(), Vec::new(), None);
        for server in &self.servers {
            match tokio::net::lookup_host(&server.address).await {
                Ok(addresses) => {
                    for address in addresses.take(MAX_ADDRESSES - resolved.len()) {
                        let weight = usize::from(server.weight);
                        let backend = Backend::new_with_weight(&address.to_string(), weight)?;
                        if found.insert(backend) {
                            let label = label(&server.address, address);
                            resolved.push(ResolvedServer { address, weight: server.weight, label });
                        }
                    }
                }
                Err(error) => failed = Some(format!("cannot resolve {}: {error}", server.address)),
            }
        }
        // A name that fails loses its own servers, unless no name has resolved: then all servers known before stay.
        if let Some(why) = failed {
            if found.is_empty() {
                return Error::e_explain(ErrorType::ConnectNoRoute, why);
            }
            log::warn!("{why}");
        }
        self.list.replace(&resolved, self.clock.now().mono);
        Ok((found, HashMap::new()))
    }
}

/// What metrics call a server. A name may have several addresses, which become healthy and ill one by one.
fn label(configured: &str, address: SocketAddr) -> Arc<str> {
    match configured.parse::<SocketAddr>() {
        Ok(_) => Arc::from(configured),
        Err(_) => Arc::from(format!("{configured}/{}", address.ip())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_what_is_configured() {
        let address = SocketAddr::from(([10, 0, 0, 7], 9_000));
        assert_eq!(&*label("10.0.0.7:9000", address), "10.0.0.7:9000");
        assert_eq!(&*label("site.internal:9000", address), "site.internal:9000/10.0.0.7");
    }
}
