//! Bounds for `sliding_window` and the estimate tier, which weight the count of the previous window.
//!
//! With `previous` units charged in the window before, the units of a window may at `x` after its beginning be up to
//! `room(x) = L - ceil(previous (W - x) / W)`. It grows with `x`, and falls with `previous`. Charging more in a window
//! leaves less in the next, so neither the earliest instants nor the latest ones are the worst case throughout.
//! Therefore a key has an interval of the units that each window charged, from `fewest` to `largest`.
//!
//! ```text
//!   window        n - 1                   n
//!   charged   fewest ... largest
//!                 │         └─► the smallest room(x) ─► fewest units, upper bound of refusals
//!                 └───────────► the largest room(x)  ─► most units, lower bound of refusals
//! ```
//!
//! Let `f(requests, instants, room)` be greedy admission within a window: a request is admitted if the units admitted
//! before and its own are at most `room(x)`. For equal pieces, `f` grows if requests are added, if instants move later,
//! and if the room grows (by induction over the requests; instants are compared in their order). So, with costs from `a`
//! to `b`:
//!
//! - Largest: the engine charges at most `f` of the units of all requests at their latest instants, in the largest room.
//!   (A unit is admitted there wherever the engine admits its request.)
//! - Fewest: it charges at least `f` of the units of the certain requests at their earliest instants, in the smallest
//!   room less `b - 1`. (Where it refuses a request, it has charged more than `room(x) - b`.) Possible requests may be
//!   refunded later, so their units are taken off.
//! - Lower bound: it admits at most `f` of the sure requests at cost `a`, latest instants, largest room. The others are
//!   refused.
//! - Upper bound: it refuses at most what `f` of all requests at cost `b`, earliest instants, smallest room refuses, even
//!   if it skips some: where it refuses what `f` admits, it has admitted more requests than `f`.
//!
//! A request whose interval crosses the edge of two windows may be charged in either. It counts towards the largest
//! number of both, is no sure request, and is refused in the upper bound. Keys with requests that may lie in more than
//! two windows, or in a window that has ended, are unbounded.

use super::stamped_request::{Certainty, CostRange, KeyRefusals, StampedRequest};
use crate::limit::Rate;

/// How a limit is computed.
#[derive(Debug)]
pub(super) struct PairRule {
    costs: CostRange,
    limit: u64,
    length: u64,
}

/// What is known of one key.
#[derive(Debug, Default)]
pub(super) struct PairState {
    tally: KeyRefusals,
    window: u64,
    previous: Charged,
    current: Charged,
    /// The latest of the latest instants in this window, since its beginning.
    latest: u64,
    /// Units that may be charged in the next window, and the latest instant at which.
    crossing: u64,
    crossing_latest: u64,
    crossing_refundable: u64,
    /// Sure requests of this window, and how many of them can be admitted.
    sure: u64,
    sure_fitting: u64,
    /// All requests of this window, and how many of them `f` admits.
    all: u64,
    all_fitting: u64,
}

/// Units that a window charged.
#[derive(Clone, Copy, Debug, Default)]
struct Charged {
    fewest: u64,
    largest: u64,
    /// Units that may be refunded.
    refundable: u64,
}

impl Charged {
    /// The smallest number of units that are charged and not refunded.
    const fn kept(&self) -> u64 {
        self.fewest.saturating_sub(self.refundable)
    }

    const fn add_refundable(&mut self, units: u64) {
        self.refundable = self.refundable.saturating_add(units);
    }
}

impl PairRule {
    pub(super) fn new(rate: Rate, costs: CostRange) -> Self {
        let costs = CostRange { min: costs.min.max(1), max: costs.max.min(rate.count()).max(1) };
        Self { costs, limit: rate.count().into(), length: rate.period().get() }
    }

    /// Adds a request of a key.
    pub(super) fn record(&self, state: &mut PairState, request: &StampedRequest) {
        let StampedRequest { cost, certainty, .. } = *request;
        state.tally.judged += 1;
        if cost == 0 || state.tally.is_unbounded {
            return;
        }
        let is_sure = certainty != Certainty::Possible;
        let cost = u64::from(cost);
        if is_sure && cost > self.limit {
            // It never fits and is never charged.
            state.tally.lower += 1;
            state.tally.upper += 1;
            return;
        }
        let max_cost = u64::from(self.costs.max);
        let (first, last) =
            (request.earliest.get() / self.length, request.latest.get() / self.length);
        let is_late = first < state.window;
        if is_late || last > first + 1 || (cost > max_cost && (is_sure || cost <= self.limit)) {
            state.tally.is_unbounded = true;
            return;
        }
        // A cost that may be above the limit is refused whatever was spent, if it is not lower after all.
        state.tally.upper += u64::from(cost > self.limit);
        self.advance(state, first);
        if last > first {
            self.record_crossing(state, cost, is_sure, request.latest.get() % self.length);
        } else {
            self.record_inside(state, cost, certainty, request);
        }
    }

    /// A request that began in this window.
    fn record_inside(
        &self,
        state: &mut PairState,
        cost: u64,
        certainty: Certainty,
        request: &StampedRequest,
    ) {
        let (min_cost, max_cost) = (u64::from(self.costs.min), u64::from(self.costs.max));
        let earliest = request.earliest.get() % self.length;
        state.latest = state.latest.max(request.latest.get() % self.length);
        let largest_room = self.room(state.previous.kept(), state.latest);
        let smallest_room = self.room(state.previous.largest, earliest);
        let current = &mut state.current;
        current.largest = filled(current.largest, cost, largest_room);
        if certainty == Certainty::Certain {
            let room = smallest_room.saturating_sub(max_cost - 1);
            current.fewest = filled(current.fewest, cost, room);
        }
        if certainty == Certainty::Possible {
            current.add_refundable(cost);
        }
        if certainty != Certainty::Possible && cost >= min_cost {
            state.sure += 1;
            state.sure_fitting += u64::from((state.sure_fitting + 1) * min_cost <= largest_room);
        }
        state.all += 1;
        state.all_fitting += u64::from((state.all_fitting + 1) * max_cost <= smallest_room);
    }

    /// A request that began in this window or in the next.
    fn record_crossing(
        &self,
        state: &mut PairState,
        cost: u64,
        is_sure: bool,
        latest_in_next: u64,
    ) {
        if !is_sure {
            state.current.add_refundable(cost);
            state.crossing_refundable = state.crossing_refundable.saturating_add(cost);
        }
        state.tally.upper += 1;
        state.latest = self.length - 1;
        let room = self.room(state.previous.kept(), state.latest);
        state.current.largest = filled(state.current.largest, cost, room);
        state.crossing = state.crossing.saturating_add(cost);
        state.crossing_latest = state.crossing_latest.max(latest_in_next);
    }

    /// Moves on to a later window.
    fn advance(&self, state: &mut PairState, window: u64) {
        while state.window < window {
            state.settle();
            state.window += 1;
            state.previous = std::mem::take(&mut state.current);
            state.latest = std::mem::take(&mut state.crossing_latest);
            let crossing = std::mem::take(&mut state.crossing);
            let room = self.room(state.previous.kept(), state.latest);
            state.current.largest = filled(0, crossing, room);
            state.current.refundable = std::mem::take(&mut state.crossing_refundable);
            if state.previous.largest == 0 && state.current.largest == 0 {
                state.window = window;
            }
        }
    }

    /// Units that the window may have charged in all, at an instant since its beginning.
    fn room(&self, previous: u64, instant: u64) -> u64 {
        let covered = self.length - instant;
        // The product nearly always fits into 64 bits, whose division takes a third of the time.
        let share = match previous.checked_mul(covered) {
            Some(product) => product.div_ceil(self.length),
            None => {
                let product = u128::from(previous) * u128::from(covered);
                u64::try_from(product.div_ceil(u128::from(self.length))).unwrap_or(u64::MAX)
            }
        };
        self.limit.saturating_sub(share)
    }
}

impl PairState {
    /// The bounds of the key.
    pub(super) fn finish(mut self) -> KeyRefusals {
        self.settle();
        self.tally
    }

    /// Adds what is known of the present window.
    fn settle(&mut self) {
        self.tally.lower += self.sure - self.sure_fitting;
        self.tally.upper += self.all - self.all_fitting;
        (self.sure, self.sure_fitting, self.all, self.all_fitting) = (0, 0, 0, 0);
    }
}

/// Charges as many units as fit into the room.
fn filled(charged: u64, units: u64, room: u64) -> u64 {
    charged.saturating_add(units).min(charged.max(room))
}
