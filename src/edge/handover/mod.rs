//! Hands the listening sockets of a running process to its successor without losing a connection.
//!
//! Each process listens on a Unix socket in a private directory. A successor (`--upgrade`) loads its configuration,
//! connects to that socket and waits. On QUIT the running process sends its listening sockets and the keys of session
//! tickets. The successor reports that it accepts connections; then the running process stops accepting, finishes its
//! requests and ends.
//!
//! It does not know what the sockets serve. What must always hold: when anything fails before the successor's report,
//! the running process keeps serving as before.

mod offer;
mod socket_path;
mod takeover;
mod timeouts;
mod wire;

pub(crate) use offer::{HandoverOffer, HandoverState};
pub(crate) use socket_path::socket_path;
pub(crate) use takeover::{Successor, TakenOver, take_over};
