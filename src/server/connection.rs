//! One connection of a client, from its first byte to its last.
//!
//! The framework's own loop serves it; this is the seam where connections are counted, and where
//! they can be bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use pingora_proxy::HttpProxy;

use crate::proxy::Tollgate;

/// Serves connections.
pub(super) struct Connections {
    pub(super) proxy: Arc<HttpProxy<Tollgate>>,
    pub(super) count: Arc<AtomicUsize>,
}

/// Counts a connection for as long as it is held.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let _counted = Counted::new(&self.count);
        self.proxy.process_new(stream, shutdown).await
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
