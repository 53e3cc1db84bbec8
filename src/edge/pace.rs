//! How long a peer may keep us waiting: a credit of time that progress refills.
//!
//! Waiting uses up the credit, every byte that moves adds to it, and it never exceeds its initial value. So a peer that
//! moves bytes at the given rate or faster is never cut, and a peer that stops, or sends a byte now and then, is cut
//! when the credit is used up. It does not know what moves. What must always hold: the total time a peer waits without
//! moving at the rate is bounded by the initial credit.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::clock::Nanos;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A credit of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    max_credit: Nanos,
    credit: Nanos,
    /// The credit that one byte adds.
    per_byte: Nanos,
    waiting_since: Option<Nanos>,
}

impl Pace {
    /// A full credit that bytes refill at `rate` per second. Without a rate any byte refills it completely.
    pub(super) fn new(max_credit: Nanos, rate: Option<NonZeroU64>) -> Self {
        let per_byte = rate.map_or(max_credit, |rate| Nanos::new(NANOS_PER_SECOND / rate.get()));
        Self { max_credit, credit: max_credit, per_byte, waiting_since: None }
    }

    /// Ends the wait and restores the full credit.
    pub(super) const fn reset(&mut self) {
        self.credit = self.max_credit;
        self.waiting_since = None;
    }

    /// Begins to wait, unless it waits already. Returns the longest time that a new wait may take.
    pub(super) fn begin_wait(&mut self, now: Nanos) -> Option<Nanos> {
        if self.waiting_since.is_some() {
            return None;
        }
        self.waiting_since = Some(now);
        Some(self.credit)
    }

    /// Whether we wait for the peer.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// When the peer is cut if nothing moves; `None` if we do not wait.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        Some(self.waiting_since?.saturating_add(self.credit))
    }

    /// Ends the wait, if there is one, without charging its time: there is nothing to wait for.
    pub(super) const fn cancel_wait(&mut self) {
        self.waiting_since = None;
    }

    /// Ends the wait, if there is one, charges its time, and adds the credit of the bytes that moved.
    pub(super) fn record_progress(&mut self, bytes: u64, now: Nanos) {
        if let Some(since) = self.waiting_since.take() {
            self.credit = self.credit.saturating_sub(now.saturating_sub(since));
        }
        let gained = self.per_byte.get().saturating_mul(bytes);
        let credit = self.credit.get().saturating_add(gained);
        self.credit = Nanos::new(credit.min(self.max_credit.get()));
    }
}

/// A [`Pace`] with a timer, for a stream that polls.
pub(super) struct PacedWait {
    pub(super) pace: Pace,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl PacedWait {
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, sleep: None }
    }

    /// Begins to wait, unless it waits already. Ready when the peer has kept us waiting too long: for `max` if given,
    /// else for its credit.
    pub(super) fn poll_expired(
        &mut self,
        now: Nanos,
        max: Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Some(credit) = self.pace.begin_wait(now) {
            let left = max.unwrap_or_else(|| Duration::from_nanos(credit.get()));
            match &mut self.sleep {
                Some(sleep) => sleep.set(tokio::time::sleep(left)),
                None => self.sleep = Some(Box::pin(tokio::time::sleep(left))),
            }
        }
        self.sleep.as_mut().map_or(Poll::Pending, |sleep| sleep.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = NANOS_PER_SECOND;

    fn at(seconds: u64) -> Nanos {
        Nanos::new(seconds * SECOND)
    }

    /// When a peer is cut that moves `bytes` every `every` seconds, in seconds.
    fn cut_after(rate: Option<u64>, bytes: u64, every: u64) -> Option<u64> {
        let mut pace = Pace::new(at(20), rate.and_then(NonZeroU64::new));
        let mut now = 0;
        while now < 100_000 {
            let left = pace.begin_wait(at(now)).unwrap();
            if left < at(every) {
                return Some(now + left.get() / SECOND);
            }
            now += every;
            pace.record_progress(bytes, at(now));
        }
        None
    }

    #[test]
    fn a_peer_that_moves_at_the_rate_is_never_cut() {
        assert_eq!(cut_after(Some(256), 256, 1), None);
        assert_eq!(cut_after(Some(256), 256 * 19, 19), None);
        assert_eq!(cut_after(Some(256), 1 << 20, 19), None);
    }

    #[test]
    fn a_peer_that_trickles_is_cut_when_the_credit_is_used_up() {
        assert_eq!(cut_after(Some(256), 1, 4), Some(20));
        assert_eq!(cut_after(Some(256), 128, 1), Some(39));
        assert_eq!(cut_after(Some(256), 1 << 20, 21), Some(20));
    }

    #[test]
    fn without_a_rate_any_byte_is_enough() {
        assert_eq!(cut_after(None, 1, 19), None);
        assert_eq!(cut_after(None, 1, 21), Some(20));
    }
}
