//! The stream between a client and the framework: deadlines, minimum rates, and one request at a time.
//!
//! Over HTTP/1 the framework reads only a head that was scanned before, and the bytes of its body. It never sees what
//! follows, so a difference in how two parsers find the end of a request cannot smuggle one; pipelined requests wait
//! here. Over HTTP/2 all bytes pass, and their frames are watched. The stream does not know routes, limits or the
//! framework's phases. What must always hold: while a request is in progress, every wait for the client has a deadline
//! or a minimum rate.

mod client_stream;
mod context;
mod digests;
mod read_ahead;
mod read_http1;
mod read_http2;
mod transport;
mod write;

pub(crate) use client_stream::BODY_CREDIT;
pub(super) use client_stream::ClientStream;
pub(super) use context::StreamContext;
pub(super) use transport::Transport;
