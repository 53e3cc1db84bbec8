//! Connections of clients: from the socket to the bytes that the framework reads and writes.
//!
//! The edge listens, admits as many connections as its bounds allow, reads PROXY headers, performs TLS handshakes,
//! reads each head under its deadline and gives it to the framework. It watches both directions of every stream:
//! deadlines, minimum rates, memory. It hands the listening sockets over to a successor. It knows neither routes nor
//! limits: it asks the layer above through [`ConnectionPolicy`].
//!
//! What must always hold: whatever a peer sends or withholds, everything that is held for it has a bound and a
//! deadline.
//!
//! | folder | holds |
//! |---|---|
//! | `listener` | sockets, and the loops that accept |
//! | `admission` | permits for connections, handshakes for each client |
//! | `tls` | certificates, session tickets, the handshake |
//! | `connection` | one connection: PROXY header, TLS, one HTTP/1 head after the other |
//! | `stream` | the byte stream below the framework, with its deadlines |
//! | `http2` | frames and exchanges of HTTP/2, observed on the wire |
//! | `state` | what a stream and the requests on it tell each other |
//! | `memory` | the memory budget, and what is cut when it runs short |

mod admission;
mod connection;
mod cutoff;
mod http2;
mod listener;
mod memory;
mod pace;
mod policy;
mod state;
mod stream;
mod tls;

pub(crate) use admission::{AdminConnections, AdminServer, ConnectionPermits, HandshakeLimiter};
pub(crate) use connection::{ConnectionServer, ListenerContext};
pub use connection::{
    InvalidProxyHeader, MAX_PROXY_V1_BYTES, MAX_PROXY_V2_BYTES, PROXY_SIGNATURE_BYTES,
    PROXY_V2_FIXED_BYTES, ProxySource, ProxyVersion, parse_proxy_header, proxy_v2_size,
    proxy_version,
};
pub(crate) use cutoff::Cutoff;
pub use listener::ListenError;
pub(crate) use listener::{
    BoundListener, ListenerService, ListeningSocket, ListeningSockets, ServingGate, StartupBarrier,
};
pub use memory::{
    ConnectionBytes, EXCHANGE_BYTES, HEAD_COPIES, MAX_BODY_BYTES, MAX_RESPONSE_BYTES, MemoryBudget,
    MemoryKind, connection_bytes,
};
pub(crate) use memory::{H2_SEND_BUFFER_BYTES, MemoryWatch, RequestMemory, SlowReaders};
pub use policy::{ClientShare, ConnectionPolicy, ConnectionRules, ShedReason};
pub(crate) use state::{ConnectionState, ExpectedResponse, OriginSilent, StreamCut};
pub(crate) use stream::BODY_CREDIT;
pub(crate) use tls::TlsAcceptor;
pub use tls::{
    CertificateExpiry, CertificateFileError, CertificateStore, Certificates, ChainValidity,
    NoRandomness, TicketKeys,
};
