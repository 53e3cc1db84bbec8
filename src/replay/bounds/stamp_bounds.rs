//! The bounds of one limit, request by request.

use super::key_states::KeyStates;
use super::pair_bounds::{PairRule, PairState};
use super::reordering::Reordering;
use super::set_bounds::{SetRule, SetState};
use super::stamped_request::{
    Certainty, CostRange, KeyRefusals, RefusalBounds, StampPrecision, StampedRequest,
};
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::replay::MemoryBounds;

/// The bounds of one limit.
#[derive(Debug)]
pub struct StampBounds {
    rules: Rules,
    reordering: Reordering,
    judged: u64,
    unless_refused: u64,
    /// Requests of keys for which there is no room.
    without_state: u64,
}

#[derive(Debug)]
enum Rules {
    Set(SetRule, KeyStates<SetState>),
    Pair(PairRule, KeyStates<PairState>),
    Unbounded,
}

impl StampBounds {
    /// No request yet. A limit of the estimate tier is a [`Quota::SlidingWindow`].
    ///
    /// The instants of a bucket with `refill_every` are those of the clock by which the engine aligns its refills.
    pub fn new(
        quota: Quota,
        precision: StampPrecision,
        costs: CostRange,
        memory: MemoryBounds,
    ) -> Self {
        let rules = match (&quota, SetRule::new(&quota, precision, costs)) {
            (_, Some(rule)) => Rules::Set(rule, KeyStates::new(memory)),
            (Quota::SlidingWindow(window), None) => {
                Rules::Pair(PairRule::new(window.rate(), costs), KeyStates::new(memory))
            }
            (_, None) => Rules::Unbounded,
        };
        Self::with_rules(rules, precision.disorder)
    }

    /// The bounds of a limit of which nothing is certain.
    pub fn unbounded() -> Self {
        Self::with_rules(Rules::Unbounded, Nanos::ZERO)
    }

    fn with_rules(rules: Rules, disorder: Nanos) -> Self {
        let reordering = Reordering::new(disorder);
        Self { rules, reordering, judged: 0, unless_refused: 0, without_state: 0 }
    }

    /// Nothing is certain any more, because of something that the rules do not know.
    pub fn mark_unbounded(&mut self) {
        self.rules = Rules::Unbounded;
    }

    /// Adds a request, roughly in the order of the earliest instants.
    ///
    /// Every request that may be charged must be added from the beginning on, those with an exact instant and those that
    /// cost nothing too. A request that may be charged more than `cost` later makes the limit unbounded.
    pub fn record(&mut self, mut request: StampedRequest) {
        request.latest = request.latest.max(request.earliest);
        self.judged += 1;
        self.unless_refused += u64::from(request.certainty == Certainty::UnlessRefused);
        if matches!(self.rules, Rules::Unbounded) {
            return;
        }
        if self.reordering.is_needless() {
            self.record_in_order(request);
            return;
        }
        self.reordering.push(request);
        while let Some(next) = self.reordering.next() {
            self.record_in_order(next);
        }
    }

    /// The bounds of all requests.
    pub fn finish(mut self) -> RefusalBounds {
        while let Some(next) = self.reordering.rest() {
            self.record_in_order(next);
        }
        let mut bounds = RefusalBounds {
            judged: self.judged,
            upper: self.without_state,
            lower_alone: 0,
            unless_refused: self.unless_refused,
        };
        match self.rules {
            Rules::Set(rule, states) => {
                states.into_states().for_each(|state| bounds.add(rule.finish(state)));
            }
            Rules::Pair(_, states) => {
                states.into_states().for_each(|state| bounds.add(state.finish()));
            }
            Rules::Unbounded => bounds.upper = self.judged,
        }
        bounds
    }

    fn record_in_order(&mut self, request: StampedRequest) {
        let recorded = match &mut self.rules {
            Rules::Set(rule, states) => {
                let heap = states.get_or_insert(request.key, SetState::default).map(|state| {
                    let before = state.heap_bytes();
                    rule.record(state, &request);
                    (before, state.heap_bytes())
                });
                heap.map(|(before, after)| states.heap_changed(before, after))
            }
            Rules::Pair(rule, states) => states
                .get_or_insert(request.key, PairState::default)
                .map(|state| rule.record(state, &request)),
            Rules::Unbounded => return,
        };
        self.without_state += u64::from(recorded.is_none());
    }
}

impl RefusalBounds {
    /// Adds a key.
    fn add(&mut self, key: KeyRefusals) {
        if key.is_unbounded {
            self.upper += key.judged;
        } else {
            self.upper += key.upper.min(key.judged);
            self.lower_alone += key.lower;
        }
    }
}
