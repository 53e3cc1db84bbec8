//! What one request counts against the memory budget, and the sizes of an exchange.
//!
//! It counts the state of the exchange, the copies of the head and the latest chunks of the body. It does not know when
//! chunks leave the process; the framework's channel bounds how many are inside. The sizes were measured as resident
//! memory. What must always hold: the count covers the largest amount that the request can hold in its present state.

use std::sync::Arc;

use super::budget::{HeldMemory, MemoryBudget, MemoryKind};

/// Bytes of an exchange without its heads and bodies: the state of the request, and the connection to the origin with
/// its buffers. 32.8 KiB were measured over HTTP/1, 22.3 KiB over HTTP/2.
pub const EXCHANGE_BYTES: usize = 33 * 1024;

/// A head is kept as received, as a map of fields, and as sent to the origin.
pub const HEAD_COPIES: usize = 3;

/// Bytes that the framework reads or writes at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Chunks of a request body that may be in the process at once: four wait in the framework's channel, one is at each
/// end of it, and one is kept in case the request is sent again.
const MAX_BODY_CHUNKS: usize = 7;

/// The largest number of bytes of a request body that are in the process at once.
pub const MAX_BODY_BYTES: usize = MAX_BODY_CHUNKS * CHUNK_BYTES;

/// The largest number of bytes of a response between its origin and its client: four chunks wait in the framework's
/// channel, up to four are being written, and one is being read.
pub const MAX_RESPONSE_BYTES: usize = 9 * CHUNK_BYTES;

/// What one request holds, from when it first waits until its end.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    held: HeldMemory,
    without_body: usize,
    /// The sizes of the latest chunks of the body, as a ring. Earlier chunks have been sent to the origin.
    chunks: [usize; MAX_BODY_CHUNKS],
    next_slot: usize,
}

impl RequestMemory {
    /// A request whose head has this many bytes.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, head_bytes: usize) -> Self {
        let without_body = EXCHANGE_BYTES + HEAD_COPIES * head_bytes;
        let held = budget.hold(MemoryKind::Requests, without_body);
        Self { held, without_body, chunks: [0; MAX_BODY_CHUNKS], next_slot: 0 }
    }

    /// Counts one more chunk of the body.
    pub(crate) fn add_body_chunk(&mut self, bytes: usize) {
        self.chunks[self.next_slot] = bytes;
        self.next_slot = (self.next_slot + 1) % MAX_BODY_CHUNKS;
        self.held.set(self.without_body + self.chunks.iter().sum::<usize>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_were_sent_are_not_counted() {
        let budget = Arc::<MemoryBudget>::default();
        let mut request = RequestMemory::new(&budget, 100);
        let without_body = EXCHANGE_BYTES + 300;
        assert_eq!(budget.total(), without_body);
        for _ in 0..20 {
            request.add_body_chunk(64 * 1024);
        }
        assert_eq!(budget.total(), without_body + MAX_BODY_BYTES);
        for _ in 0..7 {
            request.add_body_chunk(10);
        }
        assert_eq!(budget.total(), without_body + 70);
        drop(request);
        assert_eq!(budget.total(), 0);
    }
}
