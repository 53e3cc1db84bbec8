//! One budget for the memory that clients make the process use: connections, TLS, HTTP/2 streams, requests
//! and answers (`limits_of_this_proxy.memory`).
//!
//! Neither the framework nor the allocator tells what one client's buffers hold. So each stage counts the
//! most that it can hold in its present state, and corrects that as its state changes. The constants were
//! measured as resident memory of a process with a thousand of each. Cells of the exact tier and sketches have bounds of their own
//! and are not counted here.
//!
//! Counting never refuses anything by itself: above the budget, new exchanges are refused where a server is
//! chosen, and the connections with the largest unread answers are cut by the server's memory watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// ListeningSockets, their buffers and their state, and the head that a connection is sending.
    Connections,
    /// TLS sessions with their record buffers.
    Tls,
    /// HTTP/2 streams, and answers that wait in them for window.
    Streams,
    /// Heads and bodies of requests that are being served.
    Requests,
    /// Answers that their clients do not take, on their way from the origin.
    Answers,
}

impl MemoryKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Connections, Self::Tls, Self::Streams, Self::Requests, Self::Answers];

    /// The word of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Tls => "tls",
            Self::Streams => "streams",
            Self::Requests => "requests",
            Self::Answers => "answers",
        }
    }
}

/// Bytes of one exchange besides its heads and bodies: the state of the request and of the connection to the
/// origin with its buffers; 32.8 KiB were measured over HTTP/1, 22.3 KiB over HTTP/2.
pub const EXCHANGE_BYTES: usize = 33 * 1024;

/// A head is kept as it came, as a map of fields, and as what the origin is sent.
pub const HEAD_COPIES: usize = 3;

/// Most bytes of a request's body that are in the process at once: four parts of 64 KiB wait in the
/// framework's channel, one is at either end of it, and one is kept in case the request is sent again.
pub const MAX_BODY_BYTES: usize = 7 * 64 * 1024;

/// Parts of a request's body that may be in the process at once.
const BODY_PARTS: usize = MAX_BODY_BYTES / (64 * 1024);

/// What one request holds, from when it waits for something to its end.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    held: HeldMemory,
    without_body: usize,
    /// The sizes of the latest parts of the body; those before them have been sent to the origin.
    parts: [usize; BODY_PARTS],
    next_part: usize,
}

impl RequestMemory {
    /// A request whose head has so many bytes.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, head_bytes: usize) -> Self {
        let without_body = EXCHANGE_BYTES + HEAD_COPIES * head_bytes;
        let held = budget.hold(MemoryKind::Requests, without_body);
        Self { held, without_body, parts: [0; BODY_PARTS], next_part: 0 }
    }

    /// One more part of its body came.
    pub(crate) fn add_body_chunk(&mut self, bytes: usize) {
        self.parts[self.next_part] = bytes;
        self.next_part = (self.next_part + 1) % BODY_PARTS;
        self.held.set(self.without_body + self.parts.iter().sum::<usize>());
    }
}

/// Most bytes of an answer between its origin and its client: four parts of 64 KiB wait in the framework's
/// channel, up to four are being written, and one is being read.
pub const MAX_RESPONSE_BYTES: usize = 9 * 64 * 1024;

/// Bytes in use, by kind, over all generations.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    held: [AtomicUsize; MemoryKind::ALL.len()],
}

impl MemoryBudget {
    /// Bytes of one kind.
    pub fn held(&self, kind: MemoryKind) -> usize {
        self.held[kind as usize].load(Ordering::Relaxed)
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.held.iter().map(|one| one.load(Ordering::Relaxed)).fold(0, usize::saturating_add)
    }

    /// Counts `bytes` of a kind until the guard is dropped.
    pub fn hold(self: &Arc<Self>, kind: MemoryKind, bytes: usize) -> HeldMemory {
        self.held[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        HeldMemory { budget: Arc::clone(self), kind, bytes }
    }
}

/// Bytes that are counted for as long as this exists.
#[derive(Debug)]
pub struct HeldMemory {
    budget: Arc<MemoryBudget>,
    kind: MemoryKind,
    bytes: usize,
}

impl HeldMemory {
    /// How many.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` instead of those before.
    pub fn set(&mut self, bytes: usize) {
        let counter = &self.budget.held[self.kind as usize];
        if bytes > self.bytes {
            counter.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else if bytes < self.bytes {
            counter.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_were_sent_are_not_counted() {
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

    #[test]
    fn what_is_held_is_counted_once_and_given_back() {
        let budget = Arc::<MemoryBudget>::default();
        let mut one = budget.hold(MemoryKind::Requests, 100);
        let other = budget.hold(MemoryKind::Answers, 7);
        assert_eq!((budget.total(), budget.held(MemoryKind::Requests)), (107, 100));
        one.set(250);
        one.set(40);
        assert_eq!((budget.total(), one.bytes()), (47, 40));
        drop((one, other));
        assert_eq!(budget.total(), 0);
    }
}
