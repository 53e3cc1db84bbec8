//! Whether a server is worth asking.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Failures in a row after which a server that still takes connections is not asked any more: one
/// may be chance, and each costs a request its whole deadline.
const MOST_FAILURES: u32 = 3;

/// Opens when a server fails and closes when somebody who is no request has seen it answer. So a
/// dead server costs a few slow requests and no more.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    open: AtomicBool,
    failures: AtomicU32,
}

impl Default for CircuitBreaker {
    /// Open: nobody has seen the server answer yet.
    fn default() -> Self {
        Self { open: AtomicBool::new(true), failures: AtomicU32::new(0) }
    }
}

impl CircuitBreaker {
    /// Whether the server is not to be asked.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// It answered.
    pub(super) fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// It did not; `gone`: there is not even a connection. Says whether this opened the breaker.
    pub(super) fn record_failure(&self, gone: bool) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (gone || failures >= MOST_FAILURES) && !self.open.swap(true, Ordering::AcqRel)
    }

    /// It was seen to answer. Says whether this closed the breaker.
    pub(super) fn close(&self) -> bool {
        self.failures.store(0, Ordering::Relaxed);
        self.open.swap(false, Ordering::AcqRel)
    }
}
