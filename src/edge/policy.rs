//! The interface through which connections ask the layer above.
//!
//! The edge serves connections without knowing routes, limits or counters. The layer above implements
//! [`ConnectionPolicy`]. What must always hold: the rules are those of the configuration in force, so each call sees
//! the latest reload.

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
    /// Bounds that protect the proxy itself.
    pub bounds: Arc<Bounds>,
    /// Which peers are trusted to name clients' addresses.
    pub clients: ClientRules,
    /// Bounds of a request's head.
    pub head: HeadBounds,
}

/// A client whose connections are counted together, and how many it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShare {
    /// The client's address, or its IPv6 network.
    pub client: IpAddr,
    /// The largest number of connections at once.
    pub max_connections: usize,
}

impl ConnectionRules {
    /// The address for which connections of a peer are counted, and their bound. `None` for a trusted peer: a load
    /// balancer carries connections of many clients, which a header distinguishes.
    pub fn share_of(&self, peer: IpAddr) -> Option<ClientShare> {
        let client = client::prefix(peer, self.clients.ipv6_prefix);
        let max_connections = self.bounds.max_connections_per_client;
        (!self.clients.trusts(peer)).then_some(ClientShare { client, max_connections })
    }
}

/// What was refused, cut or closed for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedReason {
    /// An exchange with an origin was refused.
    OriginConnections,
    /// An exchange was refused for want of memory.
    Memory,
    /// A response was cut because its client did not read it.
    SlowReader,
    /// An idle connection of a client was closed to make room for another one.
    IdleConnections,
}

impl ShedReason {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 4] =
        [Self::OriginConnections, Self::Memory, Self::SlowReader, Self::IdleConnections];

    /// The label in the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OriginConnections => "origin_connections",
            Self::Memory => "memory",
            Self::SlowReader => "slow_reader",
            Self::IdleConnections => "idle_connections",
        }
    }
}

/// Decides about connections before they carry requests, and records what happens to them.
pub trait ConnectionPolicy: Send + Sync + 'static {
    /// The rules in force.
    fn rules(&self) -> Arc<ConnectionRules>;

    /// Whether a ban refuses connections of this client. Trusted peers are never banned.
    fn is_banned(&self, client: IpAddr) -> bool;

    /// Records a connection that is closed without a response.
    fn record_rejected_connection(&self, peer: IpAddr, reason: RejectReason);

    /// Records that something was refused, cut or closed for want of room.
    fn record_shed(&self, shed: ShedReason);

    /// Records the refusal of a head that no parser has read, and returns the HTTP/1 response to it. `began`: when its
    /// first byte arrived, on the monotonic clock. The connection ends after this response.
    fn reject_head(&self, peer: IpAddr, began: Nanos, reason: RejectReason) -> Bytes;
}
