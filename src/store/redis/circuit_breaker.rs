//! Decides whether a server is sent calls.
//!
//! The breaker opens when a server fails, and closes when a probe, not a request, has seen the server answer. So a
//! dead server costs a few slow requests and no more. This module does not know connections or time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Failures in a row after which a server that still accepts connections is not sent calls any more. A single
/// failure may be chance, and each costs a request its whole deadline.
const MAX_FAILURES: u32 = 3;

/// The breaker of one server.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    open: AtomicBool,
    failures: AtomicU32,
}

impl Default for CircuitBreaker {
    /// An open breaker: no probe has seen the server answer yet.
    fn default() -> Self {
        Self { open: AtomicBool::new(true), failures: AtomicU32::new(0) }
    }
}

impl CircuitBreaker {
    /// Whether the server must not be sent calls.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Records a call that was answered.
    pub(super) fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a call that was not answered. With `disconnected` true there is not even a connection, and the first
    /// failure opens the breaker. Returns whether this failure opened it.
    pub(super) fn record_failure(&self, disconnected: bool) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (disconnected || failures >= MAX_FAILURES) && !self.open.swap(true, Ordering::AcqRel)
    }

    /// Closes the breaker, because a probe was answered. Returns whether it was open.
    pub(super) fn close(&self) -> bool {
        self.failures.store(0, Ordering::Relaxed);
        self.open.swap(false, Ordering::AcqRel)
    }
}
