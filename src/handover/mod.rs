//! Hands sockets and counts of a running process to its successor: no connection is lost, and no unit is spent twice.
//!
//! Each process listens on a Unix socket in a private directory. A successor (`run --upgrade`) reads its configuration,
//! connects to that socket and waits. On QUIT the running process hands over, in this order:
//!
//! ```text
//!   successor                                running process
//!   tollgate 6 wait           ──────────►
//!                             ◄──────────    hello: version, key secret, time lines, whether it saves
//!                                            ... QUIT ...
//!                             ◄──────────    sockets, an end of the link, keys of session tickets, word A
//!   copy A                    ──────────►
//!                             ◄──────────    copies of all cells, and of what changes meanwhile; word B
//!   looked B                  ──────────►    it has locked its state directory, if that is free, and changed nothing in it
//!                             ◄──────────    word C: the running process still serves, so that directory is not its own
//!   prepared C                ──────────►    the successor can serve within milliseconds now
//!                             ◄──────────    what changed last, in the instant in which the cells change hands; word D
//!   taken D                   ──────────►    from here on the successor counts, and accepts
//!                      link:  ◄─────────►    requests on old connections: judge, verdict; events (`link.rs`)
//! ```
//!
//! The words are random numbers, so an answer that was sent before its question is not believed. Until "taken D" is in the
//! running process's hands, everything is as it was when the conversation ends: it takes its cells back and serves on. The
//! system decides which of the two comes first: the running process closes its side for reading and then looks whether
//! "taken D" is there, and a successor that cannot write it ends.
//!
//! What must always hold: at no instant do two processes count; a peer of another user gets nothing; everything that is
//! read is bounded, and everything that waits has a deadline.

mod client;
mod context;
mod giving;
mod keeper;
mod link;
mod offer;
mod receiving;
mod serving;
mod socket_path;
mod stream;
mod timeouts;
mod wire;

pub(crate) use client::{Greeted, greet};
pub(crate) use context::HandoverContext;
pub(crate) use keeper::{Keeper, KeeperTask};
pub(crate) use offer::{HandoverOffer, LinkCount};
pub(crate) use receiving::{
    BeginSaving, EarlySave, TakeUp, TakeUpContext, TakenOver, explained, take_over,
};
pub(crate) use socket_path::socket_path;
