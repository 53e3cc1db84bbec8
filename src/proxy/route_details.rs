//! What is counted of a route besides how its requests end: statuses, bytes, and how long they take for their clients.
//!
//! A route's details cost some kilobytes and some dozen lines of a scrape, so only the first routes have their own
//! ([`super::TrafficCounters`]). Threads count in stripes of their own. What must always hold: a request costs a few
//! additions here, and no clock is read for one that is not timed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Nanos;
use crate::engine::{STRIPES, stripe};
use crate::histogram::Histogram;

/// One request in this many is timed; a power of two. Reading the clock at the end of each request would cost about a
/// hundredth of a refusal.
const REQUESTS_PER_SAMPLE: u64 = 8;

/// Upper bounds of the buckets of durations, in microseconds. Refusals take tens of microseconds, downloads minutes.
const BOUNDS_MICROS: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// A histogram of durations.
pub(super) type DurationHistogram = Histogram<{ BOUNDS_MICROS.len() }>;

/// Statuses that are counted by themselves; the others by their class.
const OWN_CODES: [u16; 19] =
    [101, 200, 201, 204, 206, 301, 302, 304, 400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504];

/// The labels of statuses: those of [`OWN_CODES`], then the classes, then `none` for a request without a response.
pub const CODE_LABELS: [&str; OWN_CODES.len() + 6] = [
    "101", "200", "201", "204", "206", "301", "302", "304", "400", "401", "403", "404", "408",
    "413", "429", "500", "502", "503", "504", "1xx", "2xx", "3xx", "4xx", "5xx", "none",
];

/// The details of one route, or of several together.
#[derive(Debug)]
pub struct RouteDetails {
    stripes: [DetailStripe; STRIPES],
    /// From the head of a request to the end of its response.
    pub duration: DurationHistogram,
    /// From the head of a request to the head of its response.
    pub first_byte: DurationHistogram,
}

/// Counters in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct DetailStripe {
    codes: [AtomicU64; CODE_LABELS.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

impl Default for RouteDetails {
    fn default() -> Self {
        let histogram = || Histogram::new(BOUNDS_MICROS.map(|micros| micros * 1_000));
        Self { stripes: Default::default(), duration: histogram(), first_byte: histogram() }
    }
}

impl RouteDetails {
    /// Records the status of a response (0: none) and the bytes of both bodies.
    pub(super) fn record(&self, status: u16, received: u64, sent: u64) {
        let stripe = &self.stripes[stripe()];
        stripe.codes[code_index(status)].fetch_add(1, Ordering::Relaxed);
        if received > 0 {
            stripe.received.fetch_add(received, Ordering::Relaxed);
        }
        if sent > 0 {
            stripe.sent.fetch_add(sent, Ordering::Relaxed);
        }
    }

    /// How many responses there were, in the order of [`CODE_LABELS`].
    pub fn codes(&self) -> [u64; CODE_LABELS.len()] {
        std::array::from_fn(|code| self.sum(|stripe| &stripe.codes[code]))
    }

    /// Bytes of the bodies of requests.
    pub fn received(&self) -> u64 {
        self.sum(|stripe| &stripe.received)
    }

    /// Bytes of the bodies of responses.
    pub fn sent(&self) -> u64 {
        self.sum(|stripe| &stripe.sent)
    }

    fn sum<'s>(&'s self, of: impl Fn(&'s DetailStripe) -> &'s AtomicU64) -> u64 {
        self.stripes.iter().map(|stripe| of(stripe).load(Ordering::Relaxed)).sum()
    }
}

/// Whether a request that began at this time is timed: chosen by the low bits of that time.
pub(super) fn is_timed(began: Nanos) -> bool {
    // Zero: the request was never read.
    began > Nanos::ZERO && (began.get() / 8).is_multiple_of(REQUESTS_PER_SAMPLE)
}

/// The index of a status in [`CODE_LABELS`].
fn code_index(status: u16) -> usize {
    let class = usize::from(status / 100);
    match OWN_CODES.binary_search(&status) {
        Ok(own) => own,
        Err(_) if (1..=5).contains(&class) => OWN_CODES.len() + class - 1,
        Err(_) => CODE_LABELS.len() - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_counted_under_a_label_that_names_it() {
        assert!(OWN_CODES.is_sorted());
        for status in 0..1_100 {
            let label = CODE_LABELS[code_index(status)];
            let text = status.to_string();
            let is_class = || label == format!("{}xx", &text[..1]) && (100..600).contains(&status);
            let is_none = || label == "none" && !(100..600).contains(&status);
            assert!(label == text || is_class() || is_none(), "{status}: {label}");
        }
        let details = RouteDetails::default();
        for (status, received, sent) in [(200, 1, 2), (299, 0, 3), (429, 4, 0), (0, 0, 0)] {
            details.record(status, received, sent);
        }
        assert_eq!((details.received(), details.sent()), (5, 5));
        let counted = CODE_LABELS.into_iter().zip(details.codes()).filter(|(_, count)| *count > 0);
        let counted: Vec<_> = counted.collect();
        assert_eq!(counted, [("200", 1), ("429", 1), ("2xx", 1), ("none", 1)]);
    }

    #[test]
    fn an_eighth_of_requests_is_timed() {
        let timed = (1..=80_000).filter(|nanos| is_timed(Nanos::new(*nanos))).count();
        assert!((9_990..=10_010).contains(&timed), "{timed}");
        assert!(!is_timed(Nanos::ZERO));
    }
}
