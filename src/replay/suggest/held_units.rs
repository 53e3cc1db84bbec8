//! What requests hold until their answers, where answers change what a limit has charged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::clock::Nanos;

/// Requests whose answers are to come. Above it the earliest answer comes too soon.
const MAX_UNANSWERED: usize = 200_000;

/// The units that unanswered requests hold above what they count in the end, by key; below it, if an answer names a larger cost.
#[derive(Debug, Default)]
pub struct HeldUnits {
    of_keys: HashMap<u128, i64>,
    /// Answers to come, earliest first.
    answers: BinaryHeap<Reverse<(Nanos, u128, i64)>>,
}

impl HeldUnits {
    /// What the requests of a key hold at a time. Answers of that very time have come, as a replay settles them.
    pub fn of(&mut self, key: u128, at: Nanos) -> i64 {
        while let Some(Reverse((answered, ..))) = self.answers.peek()
            && *answered <= at
        {
            self.answer();
        }
        self.of_keys.get(&key).copied().unwrap_or_default()
    }

    /// A request holds units until its answer.
    pub fn hold(&mut self, key: u128, units: i64, until: Nanos) {
        if units == 0 {
            return;
        }
        if self.answers.len() >= MAX_UNANSWERED {
            self.answer();
        }
        self.answers.push(Reverse((until, key, units)));
        let held = self.of_keys.entry(key).or_default();
        *held = held.saturating_add(units);
    }

    /// The earliest answer comes.
    fn answer(&mut self) {
        let Some(Reverse((_, key, units))) = self.answers.pop() else {
            return;
        };
        let left = self.of_keys.get(&key).map_or(0, |held| held.saturating_sub(units));
        match left {
            0 => drop(self.of_keys.remove(&key)),
            left => drop(self.of_keys.insert(key, left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_held_until_their_answers() {
        let mut held = HeldUnits::default();
        held.hold(1, 5, Nanos::new(10));
        held.hold(1, -2, Nanos::new(20));
        held.hold(2, 7, Nanos::new(15));
        assert_eq!((held.of(1, Nanos::new(9)), held.of(2, Nanos::new(9))), (3, 7));
        assert_eq!((held.of(1, Nanos::new(10)), held.of(2, Nanos::new(14))), (-2, 7));
        assert_eq!((held.of(1, Nanos::new(20)), held.of(2, Nanos::new(20))), (0, 0));
        assert!(held.of_keys.is_empty() && held.answers.is_empty());
    }
}
