//! Bounds for algorithms whose admitted requests are a set with a property: `token_bucket`, `sliding_log` and
//! `fixed_window`.
//!
//! Let a request with the known instant `p` truly begin in `[p, p + u]`, and let costs be from `a` to `b`.
//!
//! **Lower bound.** The sure requests that the engine admits are a set S that conforms to the limit.
//! - Bucket of capacity B: S spends at most `B + t` in any true interval of length `t`. The requests of S with known
//!   instants in an interval of length `t` truly lie in an interval of length `t + u`. So S conforms, at known instants,
//!   to a bucket of capacity `B + u`.
//! - Log of window W and limit L: requests with known instants in a half-open window of length `k W - u` truly lie in
//!   `k` windows. So S has at most `k L` units there. (`k` is the smallest number that leaves a window.)
//! - Fixed window: a request whose interval lies in one window truly counts there.
//!
//! S conforms still if every cost is lowered to `a`, or is divided into units. Greedy admission admits the largest
//! number of equal pieces (`admission.rs`). So S has at most as many requests as greedy admission of costs `a`, and at
//! most as many units as greedy admission of units. The sure requests that are not in S are refused; a number of refused
//! units is at least that number divided by `b` of requests.
//!
//! **Upper bound.** Let G be greedy admission of all requests at cost `b` and true instants. The engine E refuses at
//! most as many as G, even if it skips, refunds or charges less for some: with `d` the refusals of G less those of E,
//! E has spent at most what G has spent plus `d b`. Each step keeps that, and if E refuses what G admits, then E has spent
//! more than G, so `d` was at least 1. (Log: E is full at `t` with `m = L / b` requests or more in the window, G has
//! fewer than `m`, so `d` has grown by at least 1 within the window.) G admits at least as many as any set that conforms
//! at true instants, and such sets can be found at known instants:
//! - Bucket: a set that conforms to capacity `B - u` at known instants. Where that is less than a request: groups that
//!   fill an empty bucket, each at least its fill time plus `u` after the one before.
//! - Log: a set that conforms to a window of `W + u`.
//! - Fixed window: as above.
//!
//! **Requests outside of the assumptions** (out of order, too uncertain, across the edge of a fixed window) are not in the
//! sets: the lower bound does not count them, and the upper bound counts each as refused.

use std::mem::take;

use super::admission::{Admitted, Room};
use super::stamped_request::{Certainty, CostRange, KeyRefusals, StampPrecision, StampedRequest};
use crate::limit::Quota;

/// A log keeps at most about this many distinct instants per key. Where more units fit, known instants are rounded down
/// accordingly.
const LOG_INSTANTS: u64 = 256;

/// How a limit is computed.
#[derive(Debug)]
pub(super) struct SetRule {
    costs: CostRange,
    /// Units that can be spent at once.
    limit: u32,
    /// Known instants are rounded down to multiples of this.
    grid: u64,
    /// By how much the latest instant may be later than the rounded earliest one. A request of more is outside of the
    /// assumptions.
    max_spread: u64,
    /// After such a gap nothing that was admitted counts any more, in any of the sets.
    gap: u64,
    sure: Room,
    sure_units: Room,
    all: Room,
    all_groups: Room,
}

/// What is known of one key.
#[derive(Debug, Default)]
pub(super) struct SetState {
    tally: KeyRefusals,
    last: u64,
    sure: PieceCount,
    all: PieceCount,
    all_groups: PieceCount,
    /// Only where costs differ.
    sure_units: Option<Box<PieceCount>>,
}

/// Pieces since the last gap.
#[derive(Debug, Default)]
struct PieceCount {
    admitted: Admitted,
    /// Pieces that were not admitted.
    excess: u64,
}

impl PieceCount {
    fn add(&mut self, room: &Room, at: u64, pieces: u64) {
        let fitting = room.admit(&mut self.admitted, at, pieces);
        self.excess = self.excess.saturating_add(pieces - fitting);
    }
}

impl SetRule {
    /// The rule of a quota; `None` for the weighted windows.
    pub(super) fn new(quota: &Quota, precision: StampPrecision, costs: CostRange) -> Option<Self> {
        let limit = quota.limit();
        let costs = CostRange { min: costs.min.max(1), max: costs.max.min(limit).max(1) };
        let (min, max) = (u64::from(costs.min.min(costs.max)), u64::from(costs.max));
        let (unit, uncertainty) = (precision.unit.get().max(1), precision.uncertainty.get());
        let base = Self {
            costs,
            limit,
            grid: 1,
            max_spread: uncertainty,
            gap: 0,
            sure: Room::Nothing,
            sure_units: Room::Nothing,
            all: Room::Nothing,
            all_groups: Room::Nothing,
        };
        match quota {
            Quota::SlidingWindow(_) => None,
            Quota::FixedWindow(window) => {
                let length = window.rate().period().get();
                let room = |pieces| Room::Window { pieces };
                let limit = u64::from(limit);
                let (sure, all) = (room(limit / min), room(limit / max));
                // Both ends of the interval lie in the same window.
                let base = Self { grid: length, gap: length, max_spread: length - 1, ..base };
                Some(Self { sure, sure_units: room(limit), all, ..base })
            }
            Quota::SlidingLog(log) => {
                let window = log.rate().period().get();
                let limit = u64::from(limit);
                let needs_grid = limit.saturating_mul(uncertainty / window + 1) > LOG_INSTANTS;
                let instants = window.saturating_add(uncertainty).div_ceil(LOG_INSTANTS);
                let coarse = instants.div_ceil(unit).max(1).saturating_mul(unit);
                let grid = if needs_grid { coarse } else { unit };
                let uncertainty = uncertainty.saturating_add(grid - unit);
                let windows = uncertainty / window + 1;
                let shorter = windows.saturating_mul(window).saturating_sub(uncertainty);
                let longer = window.saturating_add(uncertainty);
                let in_windows = limit.saturating_mul(windows);
                let room = |window, pieces| Room::Log { window, pieces };
                let base = Self { grid, max_spread: uncertainty, gap: longer, ..base };
                let (sure, sure_units) =
                    (room(shorter, in_windows / min), room(shorter, in_windows));
                Some(Self { sure, sure_units, all: room(longer, limit / max), ..base })
            }
            Quota::TokenBucket(bucket) => {
                let (capacity, emission) = (quota.window().get(), bucket.emission().get());
                let step = bucket.refill_every().get();
                // Long steps: nearly every request lies in one step, and the others are outside of the assumptions.
                let (grid, uncertainty) = match step {
                    0 => (1, uncertainty),
                    step if step > uncertainty => (step, 0),
                    step => (step, uncertainty.div_ceil(step).saturating_mul(step)),
                };
                let (larger, smaller) =
                    (capacity.saturating_add(uncertainty), capacity.saturating_sub(uncertainty));
                let room = |capacity, units: u64| Room::Bucket {
                    capacity,
                    piece: emission.saturating_mul(units),
                };
                let fits = capacity / emission.saturating_mul(max).max(1);
                let filled = fits.saturating_mul(max).saturating_mul(emission);
                let pause = filled.saturating_add(uncertainty);
                // Refills in steps: the step of the latest instant is at most `uncertainty` later.
                let max_spread = uncertainty.saturating_add(grid - 1);
                let base = Self { grid, max_spread, gap: larger, ..base };
                let (sure, sure_units) = (room(larger, min), room(larger, 1));
                let all_groups = Room::Groups { pieces: fits, pause };
                Some(Self { sure, sure_units, all: room(smaller, max), all_groups, ..base })
            }
        }
    }

    /// Adds a request of a key.
    pub(super) fn record(&self, state: &mut SetState, request: &StampedRequest) {
        let StampedRequest { cost, certainty, .. } = *request;
        state.tally.judged += 1;
        if cost == 0 {
            return;
        }
        let is_sure = certainty != Certainty::Possible;
        if is_sure && cost > self.limit {
            // It never fits and is never charged.
            state.tally.lower += 1;
            state.tally.upper += 1;
            return;
        }
        if cost > self.costs.max && (is_sure || cost <= self.limit) {
            state.tally.is_unbounded = true;
            return;
        }
        // A cost that may be above the limit is refused whatever was spent, if it is not lower after all.
        state.tally.upper += u64::from(cost > self.limit);
        let Some(at) = self.known_instant(state, request) else {
            state.tally.upper += 1;
            return;
        };
        if at >= state.last.saturating_add(self.gap) {
            self.settle(state);
        }
        state.last = at;
        if is_sure && cost >= self.costs.min {
            state.sure.add(&self.sure, at, 1);
            if self.costs.min < self.costs.max {
                let sure_units = state.sure_units.get_or_insert_default();
                sure_units.add(&self.sure_units, at, u64::from(cost));
            }
        }
        state.all.add(&self.all, at, 1);
        if matches!(self.all_groups, Room::Groups { .. }) {
            state.all_groups.add(&self.all_groups, at, 1);
        }
    }

    /// The bounds of a key.
    pub(super) fn finish(&self, mut state: SetState) -> KeyRefusals {
        self.settle(&mut state);
        state.tally
    }

    /// The instant of a request on the grid; `None` if the request is outside of the assumptions.
    fn known_instant(&self, state: &SetState, request: &StampedRequest) -> Option<u64> {
        let earliest = request.earliest.get();
        let at = if self.grid == 1 { earliest } else { earliest - earliest % self.grid };
        let is_known = request.latest.get().saturating_sub(at) <= self.max_spread;
        (at >= state.last && is_known).then_some(at)
    }

    /// Adds what is known since the last gap. Before and after a gap, the better of two sets may be another, since
    /// nothing of the one counts in the other.
    fn settle(&self, state: &mut SetState) {
        let units = state.sure_units.as_mut().map_or(0, |counted| take(&mut counted.excess));
        let by_units = units.div_ceil(u64::from(self.costs.max));
        state.tally.lower += take(&mut state.sure.excess).max(by_units);
        let excess = take(&mut state.all.excess);
        let upper = match self.all_groups {
            Room::Groups { .. } => excess.min(take(&mut state.all_groups.excess)),
            _ => excess,
        };
        state.tally.upper += upper;
    }
}

impl SetState {
    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let units = self.sure_units.as_deref();
        let boxed = units.map_or(0, |units| size_of::<PieceCount>() + units.admitted.heap_bytes());
        boxed + self.sure.admitted.heap_bytes() + self.all.admitted.heap_bytes()
    }
}
