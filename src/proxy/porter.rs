//! What is refused before it is a request: connections, and heads that no parser was shown.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::finish::{AccessRecord, AccessSink};
use super::gate::Reason;
use super::live::{Books, Ending, Live, Shed};
use super::{render, upstream};
use crate::clock::Nanos;
use crate::engine::Engine;

/// Stands at the door. Shared by all connections.
pub struct Porter {
    /// The clock.
    pub engine: Arc<Engine>,
    /// What is loaded.
    pub live: Arc<ArcSwap<Live>>,
    /// What is counted.
    pub books: Arc<Books>,
    /// Where a line per request goes.
    pub access: Arc<dyn AccessSink>,
}

impl Porter {
    /// A connection is closed without an answer.
    pub fn turn_away(&self, peer: IpAddr, reason: Reason) {
        self.books.reject(reason);
        log::debug!("{peer}: connection refused: {}", reason.name());
    }

    /// An idle connection is closed to make room for another one.
    pub fn shed_idle(&self) {
        self.books.shed(Shed::IdleConnections);
    }

    /// Whether connections of a client are refused by a ban. A trusted proxy carries those of many.
    pub fn bans(&self, live: &Live, client: IpAddr) -> bool {
        let now = self.engine.now();
        !live.clients.trusts(client)
            && self.engine.bans_connections(&live.generation, client, live.ipv6_prefix, now)
    }

    /// A head is refused: counted, logged, and answered with these bytes, after which nothing that
    /// the client sends is a request.
    pub fn refuse(&self, peer: IpAddr, began: Nanos, reason: Reason) -> Bytes {
        let live = self.live.load();
        let now = self.engine.now();
        let date = self.engine.date(now);
        self.books.reject(reason);
        live.tally(None).count(Ending::Rejected);
        if !self.access.takes(Ending::Rejected, false, &live.access_log) {
            return answer(reason, date);
        }
        let request_id = upstream::RequestId::new();
        let record = AccessRecord {
            at: date,
            request_id: request_id.as_str(),
            client_ip: Some(peer),
            method: "",
            host: "",
            path: "",
            status: reason.status(),
            route: None,
            ending: Ending::Rejected,
            reason: Some(reason),
            limit: None,
            tunnel: None,
            retry_after: None,
            degraded: false,
            outage: false,
            banned: false,
            waited: Nanos::ZERO,
            trials: Vec::new(),
            generation: live.generation.number(),
            origin: None,
            ipv6_prefix: live.ipv6_prefix,
            duration: now.mono.saturating_sub(began),
        };
        self.access.record(&record, &live.access_log);
        answer(reason, date)
    }
}

/// The bytes of an HTTP/1 answer that ends a connection.
fn answer(reason: Reason, date: Nanos) -> Bytes {
    let mut bytes = Vec::with_capacity(512);
    render::rejected(reason, reason.status()).write(&mut bytes, date, false, false);
    Bytes::from(bytes)
}
