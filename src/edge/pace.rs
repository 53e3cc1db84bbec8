//! How long a peer may keep us waiting.
//!
//! A peer has a credit of time. Waiting uses it up, every byte that moves adds to it, and it never
//! grows above where it began: so who moves at least the given rate is never cut, and who stops,
//! or sends a byte now and then, is cut when the credit is gone.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::clock::Nanos;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A credit of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    most: Nanos,
    left: Nanos,
    /// What one byte is worth.
    per_byte: Nanos,
    since: Option<Nanos>,
}

impl Pace {
    /// A full credit of `most` that bytes refill at `rate` per second; without a rate any byte
    /// refills it.
    pub(crate) fn new(most: Nanos, rate: Option<NonZeroU64>) -> Self {
        let per_byte = rate.map_or(most, |rate| Nanos::new(NANOS_PER_SECOND / rate.get()));
        Self { most, left: most, per_byte, since: None }
    }

    /// The credit is full again, as in the beginning.
    pub(crate) const fn renew(&mut self) {
        self.left = self.most;
        self.since = None;
    }

    /// We wait from now on, if not already. `Some` when it is a new wait, with its longest length.
    pub(crate) fn wait(&mut self, now: Nanos) -> Option<Nanos> {
        if self.since.is_some() {
            return None;
        }
        self.since = Some(now);
        Some(self.left)
    }

    /// Whether we wait.
    pub(crate) const fn waits(&self) -> bool {
        self.since.is_some()
    }

    /// When the wait is over, if there is one and nothing moves.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        Some(self.since?.saturating_add(self.left))
    }

    /// There is nothing to wait for: the time of a wait that was begun is given back.
    pub(crate) fn rest(&mut self) {
        self.since = None;
    }

    /// The wait is over and this many bytes moved.
    pub(crate) fn moved(&mut self, bytes: u64, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.saturating_sub(since));
        }
        let gained = self.per_byte.get().saturating_mul(bytes);
        self.left = Nanos::new(self.left.get().saturating_add(gained).min(self.most.get()));
    }
}

/// A wait that has an end.
pub(crate) struct Wait {
    pub(crate) pace: Pace,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, sleep: None }
    }

    /// Ready when the peer has kept us waiting for too long.
    pub(crate) fn poll_over(
        &mut self,
        now: Nanos,
        most: Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Some(left) = self.pace.wait(now) {
            let left = most.unwrap_or_else(|| Duration::from_nanos(left.get()));
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

    /// Seconds after which a peer is cut that moves `bytes` every `every` seconds.
    fn cut_after(rate: Option<u64>, bytes: u64, every: u64) -> Option<u64> {
        let mut pace = Pace::new(at(20), rate.and_then(NonZeroU64::new));
        let mut now = 0;
        while now < 100_000 {
            let left = pace.wait(at(now)).unwrap();
            if left < at(every) {
                return Some(now + left.get() / SECOND);
            }
            now += every;
            pace.moved(bytes, at(now));
        }
        None
    }

    #[test]
    fn who_moves_at_the_rate_is_never_cut() {
        assert_eq!(cut_after(Some(256), 256, 1), None);
        assert_eq!(cut_after(Some(256), 256 * 19, 19), None);
        assert_eq!(cut_after(Some(256), 1 << 20, 19), None);
    }

    #[test]
    fn who_trickles_is_cut_when_the_credit_is_gone() {
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
