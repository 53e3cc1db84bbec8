//! Decides which connections may exist: permits for clients and for operators, and TLS handshakes for each client.
//!
//! When all permits are taken, an idle connection of a client that holds more than the newcomer is closed. It does
//! not know what connections carry; they report whether they are idle ([`IdleMark`]). What must always hold: a few
//! addresses cannot keep others out by holding connections, and a connection whose request has arrived is never
//! closed to make room.

mod admin_connections;
mod client_connections;
mod connection_permits;
mod handshake_limiter;
mod idle_mark;

pub(crate) use admin_connections::{AdminConnections, AdminServer};
pub(super) use connection_permits::ConnectionPermit;
pub(crate) use connection_permits::ConnectionPermits;
pub(crate) use handshake_limiter::HandshakeLimiter;
pub(super) use idle_mark::{IdleMark, unless_shed};
