//! The demand on one limit, counted request by request.

use super::certainty::{Evidence, sentences};
use super::demand_table::{DemandTable, KeyDemand};
use super::peaks::{LogPeak, PairPeak, UnitsOfRequest, WindowPeak};
use super::rungs::{BacklogPeaks, Rungs};
use super::share::KeyShare;
use super::suggestion::{PeakMeasure, Peaks, SuggestedLimit, Suggestion};
use crate::clock::Nanos;
use crate::limit::{MAX_LOG_LIMIT, Quota, Rate};
use crate::replay::judged::AppliedRate;
use crate::replay::key_memory::MemoryBounds;

/// A request that is out of order by more than this and by more than a period means that the log's clock was set back.
const MIN_CLOCK_STEP: Nanos = Nanos::from_secs(60);

/// A request to which a limit applies.
#[derive(Clone, Copy, Debug)]
pub struct DemandedUnits {
    /// The hash of the key.
    pub key: u128,
    /// When it began, since the Unix epoch. A request that is slightly out of order counts at the time of the key's
    /// latest.
    pub at: Nanos,
    /// Units that count in the end, whether the request was refused or not; zero if they were refunded.
    pub cost: u32,
    /// Units for which there must be room when it is judged: its own before its answer, and what requests before it hold until
    /// theirs. The same as `cost` where answers change nothing.
    pub asked: u64,
    /// Whose rate applies. A key to which another rate than the limit's own ever applies is left out.
    pub rate: AppliedRate,
}

/// The demand on one limit with a rate.
///
/// A limit of the estimate tier is measured as a [`SlidingWindow`](crate::limit::SlidingWindow) of its rate: it judges
/// by the same formula.
#[derive(Debug)]
pub struct Demand {
    quota: Quota,
    counts: Counts,
    first: Option<Nanos>,
    last: Nanos,
}

#[derive(Debug)]
enum Counts {
    FixedWindow(DemandTable<WindowPeak>),
    SlidingWindow(DemandTable<PairPeak>),
    SlidingLog(DemandTable<LogPeak>),
    TokenBucket(DemandTable<BacklogPeaks>, Rungs),
}

impl Demand {
    /// No demand yet on a limit with this quota. `is_refunded`: answers give units back.
    pub fn new(quota: Quota, is_refunded: bool, bounds: MemoryBounds) -> Self {
        let counts = match quota {
            Quota::FixedWindow(_) => Counts::FixedWindow(DemandTable::new(bounds)),
            Quota::SlidingWindow(_) => Counts::SlidingWindow(DemandTable::new(bounds)),
            Quota::SlidingLog(_) => Counts::SlidingLog(DemandTable::new(bounds)),
            Quota::TokenBucket(bucket) => Counts::TokenBucket(
                DemandTable::new(bounds),
                Rungs::new(quota, bucket, is_refunded),
            ),
        };
        Self { quota, counts, first: None, last: Nanos::ZERO }
    }

    /// Counts a request.
    pub fn record(&mut self, request: DemandedUnits) {
        let DemandedUnits { at, cost, asked, .. } = request;
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.last = self.last.max(at);
        let units = UnitsOfRequest { asked, counted: u64::from(cost) };
        let period = self.rate().period();
        match &mut self.counts {
            Counts::FixedWindow(table) => {
                count(table, request, period, WindowPeak::default, |peak, at| {
                    peak.record(period, units, at);
                });
            }
            Counts::SlidingWindow(table) => {
                count(table, request, period, PairPeak::default, |peak, at| {
                    peak.record(period, units, at);
                });
            }
            Counts::SlidingLog(table) => {
                count(table, request, period, LogPeak::default, |peak, at| {
                    peak.record(period, units, at);
                });
            }
            Counts::TokenBucket(table, rungs) => {
                let new = || rungs.new_demand();
                count(table, request, period, new, |peaks, at| rungs.record(peaks, units, at));
            }
        }
    }

    /// The smallest limit that would have refused at most this share of keys.
    ///
    /// A window keeps its length, and its count is suggested. A bucket keeps its period. Of the pairs of rate and burst
    /// that refuse at most the share, the suggestion is the pair that admits the fewest units in one period, which is
    /// burst + count. So the burst comes from the peaks, and the rate only has to cover sustained use. (At a lower rate
    /// the burst would have to hold what does not refill in time; at a higher rate the burst hardly shrinks.) A leaky
    /// bucket keeps its size, and gets the smallest rate that suffices.
    pub fn suggest(&self, share: KeyShare) -> Suggestion {
        let (peaks, sampling_ratio, left_out) = match &self.counts {
            Counts::FixedWindow(table) => own_peaks(table, |peak| peak.peak),
            Counts::SlidingWindow(table) => own_peaks(table, |peak| peak.peak),
            Counts::SlidingLog(table) => own_peaks(table, |peak| peak.peak),
            Counts::TokenBucket(table, rungs) => {
                own_peaks(table, |demand| rungs.needed_burst(demand, rungs.own()))
            }
        };
        let suggested = match &self.counts {
            Counts::FixedWindow(_) | Counts::SlidingWindow(_) | Counts::SlidingLog(_) => {
                self.window_count(&peaks, share)
            }
            Counts::TokenBucket(table, rungs) if rungs.keeps_burst() => {
                smallest_rate(table, rungs, share)
            }
            Counts::TokenBucket(table, rungs) => tightest_pair(table, rungs, &peaks, share),
        };
        let refuses = suggested.as_ref().map_or(KeyShare::NONE, |found| found.refuses);
        let evidence = Evidence {
            keys: peaks.len(),
            sampling_ratio,
            left_out,
            share,
            refuses,
            span: self.last.saturating_sub(self.first.unwrap_or(self.last)),
            window: self.quota.window().max(self.rate().period()),
        };
        let mut certainty = sentences(&evidence);
        certainty.extend(suggested.as_ref().and_then(|found| found.remark.clone()));
        Suggestion {
            share,
            keys: peaks.len(),
            sampling_ratio,
            keys_left_out: left_out,
            percentiles: peaks.percentiles(),
            curve: peaks.curve(),
            suggested: suggested.map(|found| found.limit),
            kept_rate_burst: match &self.counts {
                Counts::TokenBucket(_, rungs) if !rungs.keeps_burst() && !peaks.is_empty() => {
                    Some(saturated(peaks.limit_for(share)))
                }
                _ => None,
            },
            refuses,
            certainty,
        }
    }

    /// What its percentiles and its curve count.
    pub const fn measure(&self) -> PeakMeasure {
        match self.quota {
            Quota::TokenBucket(_) => PeakMeasure::Burst,
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => {
                PeakMeasure::Window
            }
        }
    }

    /// Until when units that are charged at an instant count at all, at most. (Those of a bucket count until it has refilled, which
    /// depends on its rate.)
    pub fn counts_until(&self, at: Nanos) -> Nanos {
        let period = self.rate().period();
        let of_windows = |windows: u64| {
            let begun = at.get() - at.get() % period.get().max(1);
            Nanos::new(begun.saturating_add(period.get().saturating_mul(windows)))
        };
        match self.quota {
            Quota::FixedWindow(_) => of_windows(1),
            Quota::SlidingWindow(_) => of_windows(2),
            Quota::SlidingLog(_) => at.saturating_add(period),
            Quota::TokenBucket(_) => Nanos::new(u64::MAX),
        }
    }

    fn rate(&self) -> Rate {
        match self.quota {
            Quota::TokenBucket(quota) => quota.rate(),
            Quota::SlidingWindow(quota) => quota.rate(),
            Quota::SlidingLog(quota) => quota.rate(),
            Quota::FixedWindow(quota) => quota.rate(),
        }
    }

    /// The smallest count of a window.
    fn window_count(&self, peaks: &Peaks, share: KeyShare) -> Option<Found> {
        if peaks.is_empty() {
            return None;
        }
        let units = peaks.limit_for(share);
        let count = saturated(units);
        let remark = match self.quota {
            Quota::SlidingLog(_) if count > MAX_LOG_LIMIT => Some(format!(
                "A sliding_log has at most {MAX_LOG_LIMIT} units; use sliding_window for this rate."
            )),
            _ if units > u64::from(u32::MAX) => {
                Some(format!("The share needs {units} units, and a rate has at most {count}."))
            }
            _ => None,
        };
        let rate = Rate::new(count, self.rate().period()).ok()?;
        let refuses = peaks.refused_by(u64::from(count));
        Some(Found { limit: SuggestedLimit::Rate(rate), refuses, remark })
    }
}

/// A limit, the share of keys that it refuses, and what the reader has to know of it.
struct Found {
    limit: SuggestedLimit,
    refuses: KeyShare,
    remark: Option<String>,
}

fn count<D: KeyDemand>(
    table: &mut DemandTable<D>,
    request: DemandedUnits,
    period: Nanos,
    new: impl FnOnce() -> D,
    update: impl FnOnce(&mut D, Nanos),
) {
    match request.rate {
        AppliedRate::Own => {
            table.update(request.key, request.at, period.max(MIN_CLOCK_STEP), new, update);
        }
        AppliedRate::Other => table.leave_out(request.key, request.at, new),
    }
}

fn own_peaks<D: KeyDemand>(table: &DemandTable<D>, peak: impl Fn(&D) -> u64) -> (Peaks, u64, u64) {
    (Peaks::new(table.demands().map(peak)), table.sampling_ratio(), table.left_out())
}

/// The smallest of the rates at which the bucket as it is refuses at most the share.
fn smallest_rate(
    table: &DemandTable<BacklogPeaks>,
    rungs: &Rungs,
    share: KeyShare,
) -> Option<Found> {
    let burst = u64::from(rungs.bucket.burst());
    let mut fastest = None;
    for (index, rung) in rungs.iter().enumerate() {
        let needed = Peaks::new(table.demands().map(|demand| rungs.needed_burst(demand, index)));
        if needed.is_empty() {
            return None;
        }
        let refuses = needed.refused_by(burst);
        let limit = SuggestedLimit::Rate(rung.rate);
        if refuses <= share {
            let remark = (index == 0).then(|| range_remark("A lower rate may suffice"));
            return Some(Found { limit, refuses, remark });
        }
        fastest =
            Some(Found { limit, refuses, remark: Some(range_remark("The share needs more")) });
    }
    fastest
}

/// The pair of rate and burst that admits the fewest units in one period.
fn tightest_pair(
    table: &DemandTable<BacklogPeaks>,
    rungs: &Rungs,
    at_own_rate: &Peaks,
    share: KeyShare,
) -> Option<Found> {
    let mut tightest: Option<(u64, usize, Found)> = None;
    for (index, rung) in rungs.iter().enumerate() {
        let measured;
        let needed = if index == rungs.own() {
            at_own_rate
        } else {
            measured = Peaks::new(table.demands().map(|demand| rungs.needed_burst(demand, index)));
            &measured
        };
        if needed.is_empty() {
            return None;
        }
        let burst = saturated(needed.limit_for(share));
        if rungs.quota.with_rate(rung.rate, Some(burst)).is_err() {
            continue;
        }
        let in_period = u64::from(burst) + u64::from(rung.rate.count());
        if tightest.as_ref().is_none_or(|(fewest, ..)| in_period < *fewest) {
            let limit = SuggestedLimit::Bucket { rate: rung.rate, burst };
            let refuses = needed.refused_by(u64::from(burst));
            tightest = Some((in_period, index, Found { limit, refuses, remark: None }));
        }
    }
    let (_, index, mut found) = tightest?;
    if rungs.iter().len() > 1 && index + 1 == rungs.iter().len() {
        found.remark = Some(range_remark("A higher rate with a smaller burst may be better"));
    }
    Some(found)
}

fn range_remark(claim: &str) -> String {
    format!(
        "{claim}: the suggestion is at the end of the range that was measured. Set this rate and run it again."
    )
}

/// As a number of a configuration, at least 1.
fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX).max(1)
}
