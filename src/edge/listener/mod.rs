//! Listening sockets, and the services that accept connections on them.
//!
//! It binds sockets or inherits them from the previous process, accepts connections, and starts one task for each. It
//! does not know what a connection carries. What must always hold: a service accepts until the process shuts down or a
//! successor has taken over, whatever a single accept returns.

mod service;
mod serving_gate;
mod sockets;
mod startup_barrier;

pub(crate) use service::{BoundListener, ListenerService};
pub(crate) use serving_gate::ServingGate;
pub use sockets::ListenError;
pub(crate) use sockets::{ListeningSocket, ListeningSockets};
pub(crate) use startup_barrier::StartupBarrier;
