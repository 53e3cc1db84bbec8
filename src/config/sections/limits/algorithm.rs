//! Turns the name and the numbers of an algorithm into a quota. Keys that belong to another
//! algorithm are refused by name.

use crate::clock::Nanos;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{integer, positive_duration, rate};
use crate::limit::{FixedWindow, Quota, QuotaError, Rate, SlidingLog, SlidingWindow, TokenBucket};

/// The shape of a limit's quotas: the algorithm and its settings other than the rate. The rates of
/// plans, overrides and the candidate give quotas of the same shape.
pub(super) struct Shape<'n> {
    algorithm: AlgorithmName,
    burst: Option<Located<'n>>,
    refill_every: Option<Located<'n>>,
    max_delay: Option<Located<'n>>,
    tick: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    TokenBucket,
    SlidingWindow,
    SlidingLog,
    FixedWindow,
    LeakyBucket,
}

/// `algorithm` and its settings. `tick`: the resolution of the clock of exact limits.
pub(super) fn shape<'n>(map: &mut Mapping<'n>, tick: Nanos) -> Option<Shape<'n>> {
    let words = [
        ("token_bucket", AlgorithmName::TokenBucket),
        ("gcra", AlgorithmName::TokenBucket),
        ("sliding_window", AlgorithmName::SlidingWindow),
        ("sliding_log", AlgorithmName::SlidingLog),
        ("fixed_window", AlgorithmName::FixedWindow),
        ("leaky_bucket", AlgorithmName::LeakyBucket),
    ];
    let at = map.get("algorithm");
    let (burst, refill_every) = (map.get("burst"), map.get("refill_every"));
    let max_delay = map.get("max_delay");
    let algorithm = match &at {
        None => AlgorithmName::SlidingWindow,
        Some(at) => at.choice(&words)?,
    };
    let foreign = |name: &str, at: &Option<Located<'_>>, to: &str| {
        if let Some(at) = at {
            let cure = format!("add algorithm: {to}, or leave it out");
            at.error_with(format!("{name} belongs to {to}"), cure);
        }
    };
    match algorithm {
        AlgorithmName::TokenBucket => {}
        AlgorithmName::LeakyBucket => {
            foreign("burst", &burst, "token_bucket");
            foreign("refill_every", &refill_every, "token_bucket");
            if max_delay.is_none() {
                let cure = "write max_delay: 1s";
                map.at().error_with("max_delay is missing: a leaky bucket delays requests", cure);
                return None;
            }
        }
        AlgorithmName::SlidingWindow | AlgorithmName::SlidingLog | AlgorithmName::FixedWindow => {
            foreign("burst", &burst, "token_bucket");
            foreign("refill_every", &refill_every, "token_bucket");
            foreign("max_delay", &max_delay, "leaky_bucket");
        }
    }
    Some(Shape { algorithm, burst, refill_every, max_delay, tick })
}

/// A rate in addition to that of the limit: `600/1m`, or `{ rate: 600/1m, burst: 20 }`.
pub(super) fn other_quota(at: &Located<'_>, shape: &Shape<'_>) -> Option<Quota> {
    if !at.is_mapping() {
        let rate = at.parse(rate)?;
        return shape.quota(rate, at, None);
    }
    let mut map = at.mapping()?;
    let quota = quota_in(&mut map, shape);
    map.finish();
    quota
}

/// `rate` and `burst` among the keys of a mapping.
pub(super) fn quota_in(map: &mut Mapping<'_>, shape: &Shape<'_>) -> Option<Quota> {
    let rate_at = map.require("rate", "write for example rate: 600/1m");
    let burst = map.get("burst");
    let rate_at = rate_at?;
    let rate = rate_at.parse(rate)?;
    shape.quota(rate, &rate_at, burst.as_ref())
}

impl Shape<'_> {
    /// The quota of a rate. `burst` is that of this rate; without it, that of the limit applies.
    pub(super) fn quota(
        &self,
        rate: Rate,
        at: &Located<'_>,
        burst: Option<&Located<'_>>,
    ) -> Option<Quota> {
        if let Some(burst) = burst
            && self.algorithm != AlgorithmName::TokenBucket
        {
            burst.error_with("burst belongs to token_bucket", "leave it out");
            return None;
        }
        match self.algorithm {
            AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket => self.bucket(rate, at, burst),
            AlgorithmName::SlidingLog => SlidingLog::new(rate)
                .map(Quota::SlidingLog)
                .map_err(|error| at.error_with(error.to_string(), "use sliding_window"))
                .ok(),
            AlgorithmName::FixedWindow => Some(Quota::FixedWindow(FixedWindow::new(rate))),
            AlgorithmName::SlidingWindow => Some(Quota::SlidingWindow(SlidingWindow::new(rate))),
        }
    }

    /// Whether requests may be delayed until their units are available.
    pub(super) const fn delays(&self) -> bool {
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
            None if self.algorithm == AlgorithmName::LeakyBucket => 1,
            None => rate.count(),
            Some(at) => u32::try_from(at.parse(integer(1, u64::from(u32::MAX)))?).ok()?,
        };
        let span = |at: &Option<Located<'_>>| match at {
            None => Some(Nanos::ZERO),
            Some(at) => at.parse(positive_duration).map(Nanos::from),
        };
        let (refill_every, max_delay) = (span(&self.refill_every)?, span(&self.max_delay)?);
        let bucket = TokenBucket::new(rate, burst, refill_every, self.tick)
            .and_then(|bucket| bucket.with_max_delay(max_delay));
        let report = |error: QuotaError| {
            let (at, cure) = match error {
                QuotaError::TooFast => (Some(rate_at), "write it over a longer time, or lower it"),
                QuotaError::TooLong => (burst_at, "lower the burst, or raise the rate"),
                QuotaError::UnevenRefill => (
                    self.refill_every.as_ref(),
                    "write a time, at most that of the rate, in which a whole number of units refills",
                ),
                QuotaError::DelayedSteps => (self.max_delay.as_ref(), "leave one of the two out"),
                QuotaError::ZeroRate
                | QuotaError::Period
                | QuotaError::ZeroBurst
                | QuotaError::BurstOfWindow
                | QuotaError::LogTooLarge => (Some(rate_at), "write for example 5/s"),
            };
            at.unwrap_or(rate_at).error_with(error.to_string(), cure);
        };
        bucket.map(Quota::TokenBucket).map_err(report).ok()
    }
}
