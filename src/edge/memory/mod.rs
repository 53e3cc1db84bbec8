//! The memory that clients make the process use: what is counted, and which connections are cut when it runs short.
//!
//! Connections, requests and responses count the bytes that they can hold in their present state. It does not know
//! HTTP; a connection that is cut decides itself what to end. What must always hold: what is counted is given back
//! when its holder is dropped, and clients that read their responses in time are not cut.

mod budget;
mod connection_memory;
mod request_memory;
mod slow_readers;
mod victims;
mod watch;

pub use budget::{MemoryBudget, MemoryKind};
pub(super) use connection_memory::ConnectionMemory;
pub(crate) use connection_memory::H2_SEND_BUFFER_BYTES;
pub use connection_memory::{ConnectionBytes, connection_bytes};
pub(crate) use request_memory::RequestMemory;
pub use request_memory::{EXCHANGE_BYTES, HEAD_COPIES, MAX_BODY_BYTES, MAX_RESPONSE_BYTES};
pub(crate) use slow_readers::SlowReaders;
pub(crate) use watch::MemoryWatch;
