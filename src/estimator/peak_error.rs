//! The largest error of a limit, for its gauge.

use std::sync::atomic::{AtomicU64, Ordering};

/// The largest errors of the present window and of the one before, in units: what a key sent that no cell counts,
/// or what a key can send unwatched. Housekeeping rotates the windows; a late rotation only shows too much.
#[derive(Debug, Default)]
pub(super) struct PeakError {
    window: AtomicU64,
    current: AtomicU64,
    previous: AtomicU64,
}

impl PeakError {
    /// Records an error. It writes only when the peak grows, so that requests seldom do more than read.
    pub(super) fn record(&self, error: u64) {
        if self.current.load(Ordering::Relaxed) < error {
            self.current.fetch_max(error, Ordering::Relaxed);
        }
    }

    /// Begins a window, counted from the epoch, unless it has begun.
    pub(super) fn rotate(&self, window: u64) {
        let before = self.window.swap(window, Ordering::Relaxed);
        if before < window {
            let ended = self.current.swap(0, Ordering::Relaxed);
            // Also after a gap: a late rotation has left errors of the window before in it.
            self.previous.store(ended, Ordering::Relaxed);
        }
    }

    /// The larger of both peaks.
    pub(super) fn largest(&self) -> u64 {
        self.current.load(Ordering::Relaxed).max(self.previous.load(Ordering::Relaxed))
    }
}
