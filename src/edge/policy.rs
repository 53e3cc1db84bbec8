//! What connections ask of the layers above them.
//!
//! The edge serves connections without knowing routes, limits or counters. The layer above implements
//! [`ConnectionPolicy`]; its rules are those of the configuration in force, so each call sees the latest reload.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Nanos;
use crate::config::Bounds;
use crate::http::{HeadBounds, RejectReason};
use crate::policy::client::{self, ClientRules};

/// The rules for connections in one configuration.
#[derive(Debug)]
pub struct ConnectionRules {
    /// Bounds of the proxy itself.
    pub bounds: Arc<Bounds>,
    /// Which peers are believed about clients' addresses.
    pub clients: ClientRules,
    /// Bounds of the head of a request.
    pub head: HeadBounds,
}

/// A client whose connections are counted together, and how many it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShare {
    /// The client's address, or its IPv6 network.
    pub client: IpAddr,
    /// Connections at once.
    pub max_connections: usize,
}

impl ConnectionRules {
    /// Under which address the connections of a peer are bounded. A load balancer (a trusted peer) carries those of
    /// many clients, which a header tells apart, so it is not bounded.
    pub fn share_of(&self, peer: IpAddr) -> Option<ClientShare> {
        let client = client::prefix(peer, self.clients.ipv6_prefix);
        let max_connections = self.bounds.max_connections_per_client;
        (!self.clients.trusts(peer)).then_some(ClientShare { client, max_connections })
    }
}

/// Why there was no room for something, or what had to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedReason {
    /// An exchange with an origin was refused.
    OriginConnections,
    /// One more exchange was refused for want of memory.
    Memory,
    /// An answer was cut that its client did not take.
    SlowReader,
    /// An idle connection of a client was closed to make room for another one.
    IdleConnections,
}

impl ShedReason {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 4] =
        [Self::OriginConnections, Self::Memory, Self::SlowReader, Self::IdleConnections];

    /// The word of the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OriginConnections => "origin_connections",
            Self::Memory => "memory",
            Self::SlowReader => "slow_reader",
            Self::IdleConnections => "idle_connections",
        }
    }
}

/// Decides about connections before they carry requests, and records what happened to them.
pub trait ConnectionPolicy: Send + Sync + 'static {
    /// The rules in force.
    fn rules(&self) -> Arc<ConnectionRules>;

    /// Whether connections of this client are refused by a ban. Trusted peers never are.
    fn is_banned(&self, client: IpAddr) -> bool;

    /// Records a connection that is closed without an answer.
    fn record_rejected_connection(&self, peer: IpAddr, reason: RejectReason);

    /// Records that something was refused, cut or closed for want of room.
    fn record_shed(&self, shed: ShedReason);

    /// Records the refusal of a head that no parser has read, and returns the HTTP/1 answer to it. `began` is when
    /// its first byte came, on the monotonic clock. Nothing that the client sends afterwards is a request.
    fn reject_head(&self, peer: IpAddr, began: Nanos, reason: RejectReason) -> Bytes;
}
