//! The budget for the memory that clients make the process use: connections, TLS, HTTP/2 streams, requests and
//! responses (`limits_of_this_proxy.memory`).
//!
//! Neither the framework nor the allocator can tell what one client's buffers hold. Therefore each holder counts the
//! largest amount that it can hold in its present state, and corrects the count when its state changes. The constants
//! were measured as resident memory of a process with a thousand of each. Cells of the exact tier and sketches have
//! bounds of their own and are not counted here.
//!
//! Counting refuses nothing by itself. Above the budget, new exchanges are refused where a server is chosen, and the
//! [`MemoryWatch`](super::MemoryWatch) cuts the connections with the largest unread responses. What must always hold:
//! what is counted is given back when its [`HeldMemory`] is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Sockets of connections, their buffers and their state, and the head that a connection is sending.
    Connections,
    /// TLS sessions with their record buffers.
    Tls,
    /// HTTP/2 streams, and responses that wait in them for window.
    Streams,
    /// Heads and bodies of requests that are being served.
    Requests,
    /// Responses that their clients do not read, on their way from the origin.
    Answers,
}

impl MemoryKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Connections, Self::Tls, Self::Streams, Self::Requests, Self::Answers];

    /// The label in the metrics.
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
        self.held.iter().map(|bytes| bytes.load(Ordering::Relaxed)).fold(0, usize::saturating_add)
    }

    /// Counts `bytes` of a kind until the guard is dropped.
    pub fn hold(self: &Arc<Self>, kind: MemoryKind, bytes: usize) -> HeldMemory {
        self.held[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        HeldMemory { budget: Arc::clone(self), kind, bytes }
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct HeldMemory {
    budget: Arc<MemoryBudget>,
    kind: MemoryKind,
    bytes: usize,
}

impl HeldMemory {
    /// Counts `bytes` instead of the previous number.
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
    fn what_is_held_is_counted_once_and_given_back() {
        let budget = Arc::<MemoryBudget>::default();
        let mut first = budget.hold(MemoryKind::Requests, 100);
        let second = budget.hold(MemoryKind::Answers, 7);
        assert_eq!((budget.total(), budget.held(MemoryKind::Requests)), (107, 100));
        first.set(250);
        first.set(40);
        assert_eq!((budget.total(), budget.held(MemoryKind::Requests)), (47, 40));
        drop((first, second));
        assert_eq!(budget.total(), 0);
    }
}
