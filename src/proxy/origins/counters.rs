//! Counters of one origin, over all configurations: what its servers answered, how long it took, how often a request was
//! sent again, its slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::slots::OriginSlots;
use crate::clock::Nanos;
use crate::histogram::Histogram;

/// The counters of one origin.
#[derive(Debug)]
pub struct OriginCounters {
    /// By class of status: no answer, 1xx to 5xx.
    classes: [AtomicU64; 6],
    /// From the choice of a server to the head of its answer.
    pub duration: Histogram<12>,
    /// The slots of its exchanges.
    pub slots: Arc<OriginSlots>,
    /// Attempts beyond the first of a request.
    retries: AtomicU64,
}

impl Default for OriginCounters {
    fn default() -> Self {
        // Upper bounds in milliseconds, about two and a half times apart.
        let millis = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000];
        let bounds = millis.map(|millis| Nanos::from_millis(millis).get());
        Self {
            classes: Default::default(),
            duration: Histogram::new(bounds),
            slots: Arc::default(),
            retries: AtomicU64::new(0),
        }
    }
}

impl OriginCounters {
    /// Names of the classes, in order.
    pub const CLASSES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    /// Records an answer by its status, or that there was none.
    pub fn record(&self, status: Option<u16>) {
        let class = status.map_or(0, |status| usize::from(status / 100).min(5));
        self.classes[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a request was sent to another server, or once more to the same one.
    pub fn record_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// How many attempts there were beyond the first of a request.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// How many answers there were of each class.
    pub fn classes(&self) -> [u64; 6] {
        std::array::from_fn(|class| self.classes[class].load(Ordering::Relaxed))
    }
}
