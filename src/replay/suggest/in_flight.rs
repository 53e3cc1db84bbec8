//! The demand on a limit of requests in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::certainty::{Evidence, sentences};
use super::demand_table::{DemandTable, KeyDemand};
use super::share::KeyShare;
use super::suggestion::{Peaks, SuggestedLimit, Suggestion};
use crate::clock::Nanos;
use crate::replay::key_memory::MemoryBounds;

/// The largest number of requests whose end is remembered. Above it the earliest end comes too soon.
const MAX_OPEN: usize = 1_000_000;

/// The demand on one limit of requests in flight: the largest sum of costs at once, per key.
///
/// Either [`InFlightDemand::request`] is called for each request in the order of their beginnings, or
/// [`InFlightDemand::start`] and [`InFlightDemand::end`] in the order of the events. At equal times the end comes first, as where
/// requests are judged.
#[derive(Debug)]
pub struct InFlightDemand {
    table: DemandTable<UnitsInFlight>,
    /// Ends to come, earliest first.
    ends: BinaryHeap<Reverse<PendingEnd>>,
    /// Ends that came too soon.
    early_ends: u64,
    first: Option<Nanos>,
    last: Nanos,
    longest: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PendingEnd {
    at: Nanos,
    key: u128,
    cost: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct UnitsInFlight {
    now: u64,
    peak: u64,
}

impl KeyDemand for UnitsInFlight {
    fn restart(&mut self) {
        self.now = 0;
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

impl InFlightDemand {
    /// No demand yet.
    pub fn new(bounds: MemoryBounds) -> Self {
        Self {
            table: DemandTable::new(bounds),
            ends: BinaryHeap::new(),
            early_ends: 0,
            first: None,
            last: Nanos::ZERO,
            longest: Nanos::ZERO,
        }
    }

    /// Counts a request from its beginning to its end.
    pub fn request(&mut self, key: u128, cost: u32, begin: Nanos, end: Nanos) {
        while let Some(Reverse(pending)) = self.ends.peek().copied()
            && (pending.at <= begin || self.ends.len() >= MAX_OPEN)
        {
            self.early_ends += u64::from(pending.at > begin);
            self.ends.pop();
            self.end(pending.key, pending.cost, pending.at);
        }
        self.start(key, cost, begin);
        let at = end.max(begin);
        self.longest = self.longest.max(at.saturating_sub(begin));
        self.ends.push(Reverse(PendingEnd { at, key, cost }));
    }

    /// A request of this key begins.
    pub fn start(&mut self, key: u128, cost: u32, at: Nanos) {
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.last = self.last.max(at);
        // Ends are events of their own, so a clock that ran back changes nothing.
        let any_disorder = Nanos::new(u64::MAX);
        self.table.update(key, at, any_disorder, UnitsInFlight::default, |units, _| {
            units.now = units.now.saturating_add(u64::from(cost));
            units.peak = units.peak.max(units.now);
        });
    }

    /// A request of this key, which has begun, ends.
    pub fn end(&mut self, key: u128, cost: u32, at: Nanos) {
        self.last = self.last.max(at);
        self.table.update_known(key, |units| units.now = units.now.saturating_sub(cost.into()));
    }

    /// Leaves out a key to which another maximum applies.
    pub fn leave_out(&mut self, key: u128, at: Nanos) {
        self.table.leave_out(key, at, UnitsInFlight::default);
    }

    /// The smallest maximum that would have refused at most this share of keys.
    pub fn suggest(&self, share: KeyShare) -> Suggestion {
        let peaks = Peaks::new(self.table.demands().map(|units| units.peak));
        let max = u32::try_from(peaks.limit_for(share)).unwrap_or(u32::MAX);
        let refuses = peaks.refused_by(u64::from(max));
        let evidence = Evidence {
            keys: peaks.len(),
            sampling_ratio: self.table.sampling_ratio(),
            left_out: self.table.left_out(),
            share,
            refuses,
            span: self.last.saturating_sub(self.first.unwrap_or(self.last)),
            window: self.longest,
        };
        let mut certainty = sentences(&evidence);
        if self.early_ends > 0 {
            certainty.push(format!(
                "{} requests counted as ended too soon: more than {MAX_OPEN} were in flight.",
                self.early_ends
            ));
        }
        Suggestion {
            share,
            keys: evidence.keys,
            sampling_ratio: evidence.sampling_ratio,
            keys_left_out: evidence.left_out,
            percentiles: peaks.percentiles(),
            curve: peaks.curve(),
            suggested: (!peaks.is_empty()).then_some(SuggestedLimit::InFlight(max)),
            kept_rate_burst: None,
            refuses,
            certainty,
        }
    }
}
