//! What one connection counts against the memory budget.
//!
//! It counts the connection, its TLS session, its HTTP/2 streams, and the responses that wait for its client. It
//! registers with the [`SlowReaders`] when a response first waits. It does not watch anything itself. What must
//! always hold: each count covers what the connection can hold in its present state.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::Waker;

use super::budget::{HeldMemory, MemoryBudget, MemoryKind};
use super::slow_readers::{SlowReader, SlowReaders};
use crate::edge::http2::ExchangeCounts;

/// A connection after its first request; 12.4 KiB were measured.
const CONNECTION_BYTES: usize = 13 * 1024;

/// A TLS session (12.3 KiB were measured), and one record that has not arrived completely.
const TLS_BYTES: usize = (13 + 17) * 1024;

/// What an HTTP/2 connection adds: buffers of frames and tables of header compression. 59.3 KiB were measured.
const HTTP2_BYTES: usize = 60 * 1024;

/// An HTTP/2 stream, in addition to its exchange.
const STREAM_BYTES: usize = 2 * 1024;

/// Bytes of a response that wait in an HTTP/2 stream for its client: two frames, so that one is ready when the other
/// has been sent. (The default of the h2 crate, 400 KiB, would be 40 MB for 100 slow streams.)
pub(crate) const H2_SEND_BUFFER_BYTES: usize = 32 * 1024;

/// What connections hold, as shown to operators.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBytes {
    /// Without a request.
    pub idle: usize,
    /// For each HTTP/2 stream with a response in progress, in addition to its exchange.
    pub stream: usize,
}

/// What a connection holds. With TLS it may speak HTTP/2.
pub const fn connection_bytes(has_tls: bool) -> ConnectionBytes {
    let tls = if has_tls { TLS_BYTES + HTTP2_BYTES } else { 0 };
    ConnectionBytes { idle: CONNECTION_BYTES + tls, stream: STREAM_BYTES + H2_SEND_BUFFER_BYTES }
}

/// The memory of one connection; given back when dropped.
#[derive(Debug)]
pub(in crate::edge) struct ConnectionMemory {
    connection: HeldMemory,
    tls: HeldMemory,
    streams: HeldMemory,
    responses: HeldMemory,
    client: IpAddr,
    readers: Arc<SlowReaders>,
    slow_reader: Option<SlowReader>,
    /// Bytes of responses that wait for the client.
    waiting: usize,
    /// Bytes written since the connection began.
    written: u64,
}

impl ConnectionMemory {
    /// A connection of a client, before TLS.
    pub(in crate::edge) fn new(
        budget: &Arc<MemoryBudget>,
        readers: &Arc<SlowReaders>,
        client: IpAddr,
    ) -> Self {
        Self {
            connection: budget.hold(MemoryKind::Connections, CONNECTION_BYTES),
            tls: budget.hold(MemoryKind::Tls, 0),
            streams: budget.hold(MemoryKind::Streams, 0),
            responses: budget.hold(MemoryKind::Answers, 0),
            client,
            readers: Arc::clone(readers),
            slow_reader: None,
            waiting: 0,
            written: 0,
        }
    }

    /// Counts a TLS session; its handshake begins.
    pub(in crate::edge) fn begin_tls(&mut self) {
        self.tls.set(TLS_BYTES);
    }

    /// Counts the bytes that were received and not yet passed on.
    pub(in crate::edge) fn set_read_ahead(&mut self, bytes: usize) {
        self.connection.set(CONNECTION_BYTES + bytes);
    }

    /// Counts these HTTP/2 streams.
    pub(in crate::edge) fn set_streams(&mut self, counts: ExchangeCounts) {
        let streams = counts.open * STREAM_BYTES + counts.answering * H2_SEND_BUFFER_BYTES;
        self.streams.set(HTTP2_BYTES + counts.unread + streams);
    }

    /// Counts bytes that were written to the client.
    pub(in crate::edge) const fn add_written(&mut self, bytes: usize) {
        self.written = self.written.wrapping_add(bytes as u64);
    }

    /// Counts the bytes of origins' responses that wait for the client, and reports them together with the `blocked`
    /// streams that wait for window. (What waits inside a stream is counted with the stream, also for our own
    /// responses.)
    pub(in crate::edge) fn set_waiting(&mut self, bytes: usize, blocked: usize) {
        self.responses.set(bytes);
        self.waiting = bytes + blocked * H2_SEND_BUFFER_BYTES;
        if self.slow_reader.is_none() {
            if self.waiting == 0 {
                return;
            }
            self.slow_reader = Some(self.readers.register(self.client));
        }
        if let Some(slow_reader) = &self.slow_reader {
            slow_reader.update(self.waiting, self.written);
        }
    }

    /// Whether the responses that wait are to be ended now. If not, `waker` is woken when they are.
    pub(in crate::edge) fn poll_is_cut(&self, waker: &Waker) -> bool {
        let Some(slow_reader) = self.slow_reader.as_ref().filter(|_| self.waiting > 0) else {
            return false;
        };
        // In this order, so that a cut between the two steps wakes the task.
        slow_reader.register_waker(waker);
        slow_reader.is_cut()
    }

    /// Reports that they have been ended. (A connection that ends entirely stays cut, so that no other connection is
    /// cut for the memory that it gives back.)
    pub(in crate::edge) fn clear_cut(&self) {
        if let Some(slow_reader) = &self.slow_reader {
            slow_reader.clear_cut();
        }
    }
}
