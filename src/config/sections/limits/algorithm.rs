//! From an algorithm's name and numbers to a quota.

use crate::clock::Nanos;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{rate, some_duration, whole};
use crate::limit::{FixedWindow, Quota, QuotaError, Rate, SlidingLog, SlidingWindow, TokenBucket};

/// An algorithm, and what it has beside the rate. Every rate of a limit (of a plan, of an
/// exception) makes a quota of the same shape.
pub(crate) struct Shape<'n> {
    algorithm: Algorithm,
    burst: Option<Located<'n>>,
    refill_every: Option<Located<'n>>,
    max_delay: Option<Located<'n>>,
    tick: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    TokenBucket,
    SlidingWindow,
    SlidingLog,
    FixedWindow,
    LeakyBucket,
}

/// `tick`: the unit of the clock that the exact tier is read by.
pub(crate) fn shape<'n>(map: &mut Mapping<'n>, tick: Nanos) -> Option<Shape<'n>> {
    let words = [
        ("token_bucket", Algorithm::TokenBucket),
        ("gcra", Algorithm::TokenBucket),
        ("sliding_window", Algorithm::SlidingWindow),
        ("sliding_log", Algorithm::SlidingLog),
        ("fixed_window", Algorithm::FixedWindow),
        ("leaky_bucket", Algorithm::LeakyBucket),
    ];
    let at = map.get("algorithm");
    let (burst, refill_every) = (map.get("burst"), map.get("refill_every"));
    let max_delay = map.get("max_delay");
    let algorithm = match &at {
        None => Algorithm::SlidingWindow,
        Some(at) => at.choice(&words)?,
    };
    let foreign = |name: &str, at: &Option<Located<'_>>, to: &str| {
        if let Some(at) = at {
            let cure = format!("add algorithm: {to}, or leave it out");
            at.error_with(format!("{name} belongs to {to}"), cure);
        }
    };
    match algorithm {
        Algorithm::TokenBucket => {}
        Algorithm::LeakyBucket => {
            foreign("burst", &burst, "token_bucket");
            foreign("refill_every", &refill_every, "token_bucket");
            if max_delay.is_none() {
                let cure = "write max_delay: 1s";
                map.at().error_with("max_delay is missing: a leaky bucket lets wait", cure);
                return None;
            }
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::FixedWindow => {
            foreign("burst", &burst, "token_bucket");
            foreign("refill_every", &refill_every, "token_bucket");
            foreign("max_delay", &max_delay, "leaky_bucket");
        }
    }
    Some(Shape { algorithm, burst, refill_every, max_delay, tick })
}

/// A rate that stands beside a limit's own: `600/1m`, or `{ rate: 600/1m, burst: 20 }`.
pub(crate) fn other_quota(at: &Located<'_>, shape: &Shape<'_>) -> Option<Quota> {
    if !at.is_map() {
        let rate = at.parse(rate)?;
        return shape.quota(rate, at, None);
    }
    let mut map = at.map()?;
    let quota = quota_in(&mut map, shape);
    map.finish();
    quota
}

/// `rate` and `burst` among the keys of a mapping.
pub(crate) fn quota_in(map: &mut Mapping<'_>, shape: &Shape<'_>) -> Option<Quota> {
    let rate_at = map.require("rate", "write for example rate: 600/1m");
    let burst = map.get("burst");
    let rate_at = rate_at?;
    let rate = rate_at.parse(rate)?;
    shape.quota(rate, &rate_at, burst.as_ref())
}

impl Shape<'_> {
    /// The quota of a rate. `burst`: of this rate; else the limit's own holds.
    pub(crate) fn quota(
        &self,
        rate: Rate,
        at: &Located<'_>,
        burst: Option<&Located<'_>>,
    ) -> Option<Quota> {
        if let Some(burst) = burst
            && self.algorithm != Algorithm::TokenBucket
        {
            burst.error_with("burst belongs to token_bucket", "leave it out");
            return None;
        }
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.bucket(rate, at, burst),
            Algorithm::SlidingLog => SlidingLog::new(rate)
                .map(Quota::SlidingLog)
                .map_err(|error| at.error_with(error.to_string(), "use sliding_window"))
                .ok(),
            Algorithm::FixedWindow => Some(Quota::FixedWindow(FixedWindow::new(rate))),
            Algorithm::SlidingWindow => Some(Quota::SlidingWindow(SlidingWindow::new(rate))),
        }
    }

    /// Whether requests may wait for their units.
    pub(crate) const fn delays(&self) -> bool {
        self.max_delay.is_some()
    }

    fn bucket(
        &self,
        rate: Rate,
        rate_at: &Located<'_>,
        burst: Option<&Located<'_>>,
    ) -> Option<Quota> {
        let burst_at = burst.or(self.burst.as_ref());
        let burst = match burst_at {
            None if self.algorithm == Algorithm::LeakyBucket => 1,
            None => rate.count(),
            Some(at) => u32::try_from(at.parse(whole(1, u64::from(u32::MAX)))?).ok()?,
        };
        let span = |at: &Option<Located<'_>>| match at {
            None => Some(Nanos::ZERO),
            Some(at) => at.parse(some_duration).map(Nanos::from),
        };
        let (refill_every, max_delay) = (span(&self.refill_every)?, span(&self.max_delay)?);
        let made = TokenBucket::new(rate, burst, refill_every, self.tick)
            .and_then(|bucket| bucket.with_max_delay(max_delay));
        let refused = |error: QuotaError| {
            let (at, cure) = match error {
                QuotaError::TooFast => (Some(rate_at), "write it over a longer time, or lower it"),
                QuotaError::TooLong => (burst_at, "lower the burst, or raise the rate"),
                QuotaError::UnevenRefill => (
                    self.refill_every.as_ref(),
                    "a time no longer than the rate's that brings 1, 2, 3 ... units",
                ),
                QuotaError::DelayedSteps => (self.max_delay.as_ref(), "leave one of the two out"),
                QuotaError::ZeroRate
                | QuotaError::Period
                | QuotaError::ZeroBurst
                | QuotaError::LogTooLarge => (Some(rate_at), "write for example 5/s"),
            };
            at.unwrap_or(rate_at).error_with(error.to_string(), cure);
        };
        made.map(Quota::TokenBucket).map_err(refused).ok()
    }
}
