//! HTTP/2 connections as seen on the wire: frames, flow-control windows, and which side keeps the other waiting.
//!
//! The h2 crate has no deadline for a stream and no way to end one from outside. Therefore the frames of both
//! directions are observed, exchanges that wait too long are aborted, and both sides are told with RST_STREAM. It
//! decodes no header block, refuses no frame, and does no I/O: its caller passes the bytes. What must always hold:
//! nothing is inserted between the fragments of a frame or of a header block.

mod exchange;
mod exchanges;
mod frame_watch;
mod frames;
mod shed_wait;

pub(super) use exchange::ExchangeTimeouts;
pub(super) use exchanges::ExchangeCounts;
pub(super) use frame_watch::FrameWatch;
pub(super) use frames::goaway;
