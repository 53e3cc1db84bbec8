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
mod connection_permits;
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
mod session_tickets;
mod sockets;
mod tls;
mod waiting;

pub(crate) use admin_connections::{AdminConnections, AdminServer};
pub use certificates::{CertificateStore, Certificates};
pub(crate) use connection::{ConnectionServer, ListenerContext};
pub(crate) use connection_permits::ConnectionPermits;
pub(crate) use guarded::H2_SEND_BUFFER_BYTES;
pub use guarded::{ConnectionBytes, connection_bytes};
pub(crate) use handover::{HandoverOffer, HandoverState, Successor, socket_path, take_over};
pub(crate) use handshakes::HandshakeLimiter;
pub(crate) use link::{ConnectionState, ExpectedResponse, OriginSilent, StreamCut};
pub(crate) use listening::{ListenerService, StartupBarrier};
pub(crate) use memory_budget::RequestMemory;
pub use memory_budget::{
    EXCHANGE_BYTES, HEAD_COPIES, MAX_BODY_BYTES, MAX_RESPONSE_BYTES, MemoryBudget, MemoryKind,
};
pub(crate) use memory_watch::{MemoryWatch, SlowReaders};
pub use policy::{ClientShare, ConnectionPolicy, ConnectionRules, ShedReason};
pub use proxy_protocol::{
    InvalidProxyHeader, MAX_PROXY_V1_BYTES, MAX_PROXY_V2_BYTES, PROXY_SIGNATURE_BYTES,
    PROXY_V2_FIXED_BYTES, ProxySource, ProxyVersion, parse_proxy_header, proxy_v2_size,
    proxy_version,
};
pub use session_tickets::{NoRandomness, TicketKeys};
pub use sockets::ListenError;
pub(crate) use sockets::ListeningSockets;
pub(crate) use tls::TlsAcceptor;
