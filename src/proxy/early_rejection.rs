//! Refusals before there is a request: of connections, and of heads that no parser has read.
//!
//! It answers what the edge asks ([`ConnectionPolicy`]) from the configuration in force. What must always hold: a head
//! that the edge refuses is counted and logged like a request that the phases refuse.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::access_record::{AccessRecord, AccessSink};
use super::live::Live;
use super::request_id::RequestIds;
use super::traffic::{RequestEnd, RequestOutcome, TrafficCounters};
use crate::clock::Nanos;
use crate::edge::{ConnectionPolicy, ConnectionRules, ShedReason};
use crate::engine::Engine;
use crate::http::{RejectReason, Reply, render};

/// Decides about connections and records their refusals. Shared by all connections.
pub struct EarlyRejection {
    /// The clock, and who is banned.
    pub engine: Arc<Engine>,
    /// The configuration in force.
    pub live: Arc<ArcSwap<Live>>,
    /// Counters of refusals.
    pub counters: Arc<TrafficCounters>,
    /// Receives a record for each refused head.
    pub access: Arc<dyn AccessSink>,
    /// Makes identifiers of requests.
    pub request_ids: Arc<RequestIds>,
}

impl ConnectionPolicy for EarlyRejection {
    fn rules(&self) -> Arc<ConnectionRules> {
        Arc::clone(&self.live.load().connections)
    }

    /// A trusted proxy carries connections of many clients, so it is never banned.
    fn is_banned(&self, client: IpAddr) -> bool {
        let live = self.live.load();
        let now = self.engine.now();
        !live.clients().trusts(client)
            && self.engine.bans_connections(&live.generation, client, live.ipv6_prefix(), now)
    }

    fn record_rejected_connection(&self, peer: IpAddr, reason: RejectReason) {
        self.counters.record_rejection(reason);
        log::debug!("{peer}: connection refused: {}", reason.name());
    }

    fn record_shed(&self, shed: ShedReason) {
        self.counters.record_shed(shed);
    }

    fn reject_head(&self, peer: IpAddr, began: Nanos, reason: RejectReason) -> Bytes {
        let live = self.live.load();
        let now = self.engine.now();
        let date = self.engine.date(now);
        self.counters.record_rejection(reason);
        let request_id = self.request_ids.generate();
        let reply = render::unread(reason, request_id.as_str());
        let end = RequestEnd {
            outcome: RequestOutcome::Rejected,
            status: reason.status(),
            request_bytes: 0,
            response_bytes: reply.body_bytes(),
        };
        live.traffic(None).record(&end);
        if self.access.takes(RequestOutcome::Rejected, false, &live.access_log) {
            let duration = now.mono.saturating_sub(began);
            let id = request_id.as_str();
            let bytes = end.response_bytes;
            let record =
                AccessRecord::of_refused_head(&live, id, peer, reason, bytes, date, duration);
            self.access.record(&record, &live.access_log);
        }
        last_answer(&reply, date)
    }
}

/// The bytes of an HTTP/1 answer that ends a connection.
fn last_answer(reply: &Reply, date: Nanos) -> Bytes {
    let mut bytes = Vec::with_capacity(512);
    reply.write(&mut bytes, date, false, false);
    Bytes::from(bytes)
}
