//! What one connection counts against the memory budget.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::Waker;

use crate::edge::exchanges::Counts;
use crate::edge::memory_budget::{HeldMemory, MemoryBudget, MemoryKind};
use crate::edge::memory_watch::{SlowReader, SlowReaders};

/// A connection after its first request; 12.4 KiB were measured.
const CONNECTION_BYTES: usize = 13 * 1024;

/// A TLS session, 12.3 KiB more, and one record of which the end has not come.
const TLS_BYTES: usize = (13 + 17) * 1024;

/// What an HTTP/2 connection has besides, 59.3 KiB: buffers of frames and tables of header compression.
const HTTP2_BYTES: usize = 60 * 1024;

/// A stream of HTTP/2, besides its exchange.
const STREAM_BYTES: usize = 2 * 1024;

/// Bytes of an answer that wait in a stream of HTTP/2 until its client takes them: two frames, so that one
/// is there when the other has gone. (The implementation's own 400 KiB are 40 MB for 100 slow streams.)
pub(crate) const H2_SEND_BUFFER_BYTES: usize = 32 * 1024;

/// What connections hold, for who tells operators.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBytes {
    /// Without a request.
    pub idle: usize,
    /// For each stream of HTTP/2 that is being answered, besides its exchange.
    pub stream: usize,
}

/// What a connection holds; with TLS it may speak HTTP/2.
pub const fn connection_bytes(has_tls: bool) -> ConnectionBytes {
    let tls = if has_tls { TLS_BYTES + HTTP2_BYTES } else { 0 };
    ConnectionBytes { idle: CONNECTION_BYTES + tls, stream: STREAM_BYTES + H2_SEND_BUFFER_BYTES }
}

/// One connection's memory; given back when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionMemory {
    connection: HeldMemory,
    tls: HeldMemory,
    streams: HeldMemory,
    answers: HeldMemory,
    client: IpAddr,
    readers: Arc<SlowReaders>,
    slow_reader: Option<SlowReader>,
    /// Bytes that wait for the client.
    waiting: usize,
    written: u64,
}

impl ConnectionMemory {
    /// A connection of a client, without TLS.
    pub(crate) fn new(
        budget: &Arc<MemoryBudget>,
        readers: &Arc<SlowReaders>,
        client: IpAddr,
    ) -> Self {
        Self {
            connection: budget.hold(MemoryKind::Connections, CONNECTION_BYTES),
            tls: budget.hold(MemoryKind::Tls, 0),
            streams: budget.hold(MemoryKind::Streams, 0),
            answers: budget.hold(MemoryKind::Answers, 0),
            client,
            readers: Arc::clone(readers),
            slow_reader: None,
            waiting: 0,
            written: 0,
        }
    }

    /// A handshake begins.
    pub(crate) fn begin_tls(&mut self) {
        self.tls.set(TLS_BYTES);
    }

    /// So many bytes came and were not given on.
    pub(crate) fn set_ahead(&mut self, bytes: usize) {
        self.connection.set(CONNECTION_BYTES + bytes);
    }

    /// It has these streams of HTTP/2.
    pub(crate) fn set_streams(&mut self, counts: Counts) {
        let streams = counts.open * STREAM_BYTES + counts.answering * H2_SEND_BUFFER_BYTES;
        self.streams.set(HTTP2_BYTES + counts.unread + streams);
    }

    /// So many bytes were written.
    pub(crate) const fn add_written(&mut self, bytes: usize) {
        self.written = self.written.wrapping_add(bytes as u64);
    }

    /// So many bytes of origins' answers wait for the client, and so many streams for window. (What waits in a
    /// stream is counted with it, also where the answer is our own.)
    pub(crate) fn set_answers(&mut self, bytes: usize, blocked: usize) {
        self.answers.set(bytes);
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

    /// Whether the answers that wait are to be ended now; if not, `waker` is told when they are.
    pub(crate) fn is_cut(&self, waker: &Waker) -> bool {
        let Some(slow_reader) = self.slow_reader.as_ref().filter(|_| self.waiting > 0) else {
            return false;
        };
        // In this order: what is told in between is not missed.
        slow_reader.wakes(waker);
        slow_reader.is_cut()
    }

    /// They have been ended, and are not counted any more. (A connection that ends as a whole stays cut, so
    /// that no other is cut for the memory that it gives back.)
    pub(crate) fn was_cut(&self) {
        if let Some(slow_reader) = &self.slow_reader {
            slow_reader.was_cut();
        }
    }
}
