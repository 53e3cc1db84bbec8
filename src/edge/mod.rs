//! Connections of clients, from the socket to the first byte of a valid request.
//!
//! The edge accepts connections within their bounds, reads PROXY headers, shakes hands over TLS, reads each head under
//! its deadline and hands it to the framework, and watches both directions of every stream: deadlines, minimum rates,
//! memory. It hands the listening sockets over to a successor. It knows neither routes nor limits: what it needs of them
//! it asks through [`ConnectionPolicy`].
//!
//! What must always hold: whatever a peer sends or withholds, each thing that is held for it has a bound and a deadline.

mod admin_connections;
mod certificates;
mod connection;
mod exchanges;
mod frames;
mod guarded;
mod handover;
mod handshakes;
mod idle_mark;
mod link;
mod listening;
mod memory_budget;
mod memory_watch;
mod pace;
mod policy;
mod proxy_protocol;
mod seats;
mod session_tickets;
mod sockets;
mod tls;
mod waiting;

pub(crate) use admin_connections::{AdminConnections, AdminServer};
pub use certificates::{CertificateStore, Certificates};
pub(crate) use connection::{Connections, Door};
pub(crate) use guarded::SEND_BUFFER;
pub use guarded::{ConnectionBytes, connection_bytes};
pub(crate) use handover::{Heritage, Offer, Successor, place, take_over};
pub(crate) use handshakes::Handshakes;
pub(crate) use link::{Cut, ExpectedAnswer, Link, OriginSilent};
pub(crate) use listening::{Accepting, Listening};
pub(crate) use memory_budget::RequestMemory;
pub use memory_budget::{
    EXCHANGE_BYTES, HEAD_COPIES, MAX_ANSWER_BYTES, MAX_BODY_BYTES, MemoryBudget, MemoryKind,
};
pub(crate) use memory_watch::{MemoryWatch, SlowReaders};
pub use policy::{ClientShare, ConnectionPolicy, ConnectionRules, Shed};
pub use proxy_protocol::{
    NoProxyHeader, PROXY_SIGNATURE, PROXY_V1_MOST, PROXY_V2_FIXED, PROXY_V2_MOST, ProxiedFrom,
    ProxyVersion, proxied_from, proxy_v2_size, proxy_version,
};
pub(crate) use seats::Seats;
pub use session_tickets::{NoRandomness, TicketKeys};
pub use sockets::ListenError;
pub(crate) use sockets::Sockets;
pub(crate) use tls::Tls;
