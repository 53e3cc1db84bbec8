//! Finds the head of an HTTP/1 request in the bytes that have arrived.
//!
//! It feeds the scan of `http` and skips the empty line that may precede a request. Its caller sets the deadline.
//! What must always hold: it consumes nothing but that empty line.

use crate::edge::stream::ClientStream;
use crate::http::{HeadBounds, HeadScan, HostCache, RejectReason, WireHead};

/// The search for the head of one request.
pub(super) struct HeadSearch<'c> {
    scan: HeadScan,
    /// Whether no byte of the request has arrived yet.
    is_fresh: bool,
    bounds: HeadBounds,
    host_cache: &'c mut HostCache,
}

impl<'c> HeadSearch<'c> {
    /// A new search. `host_cache`: the host of the connection's previous request.
    pub(super) fn new(bounds: HeadBounds, host_cache: &'c mut HostCache) -> Self {
        Self { scan: HeadScan::default(), is_fresh: true, bounds, host_cache }
    }

    /// Scans what has arrived. `None` while the head is incomplete.
    pub(super) fn advance(
        &mut self,
        stream: &mut ClientStream,
    ) -> Result<Option<WireHead>, RejectReason> {
        // An empty line before a request is ignored (RFC 9112, section 2.2).
        if self.is_fresh && stream.buffered().starts_with(b"\r\n") {
            stream.consume(2);
        }
        self.is_fresh &= stream.buffered() == b"\r";
        if self.is_fresh {
            return Ok(None);
        }
        self.scan.advance(stream.buffered(), self.bounds, self.host_cache)
    }

    /// Reads until the head is complete. `Err(None)` if the client has left.
    pub(super) async fn read(
        &mut self,
        stream: &mut ClientStream,
    ) -> Result<WireHead, Option<RejectReason>> {
        loop {
            if !matches!(stream.fill().await, Ok(true)) {
                return Err(None);
            }
            if let Some(head) = self.advance(stream).map_err(Some)? {
                return Ok(head);
            }
        }
    }
}
