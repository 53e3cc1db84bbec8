//! How many different keys there are: exactly up to a bound, and estimated above it.
//!
//! The keys up to the bound are remembered. Those that come later are estimated apart, so that the error is one of the
//! keys above the bound only. The estimate is a HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007) with the
//! estimator of Ertl ("New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6), which needs
//! no correction for small or large numbers.

use hashbrown::HashTable;

/// A number of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyNumber {
    /// How many.
    pub number: u64,
    /// Whether it is an estimate. Its standard error is 1 %.
    pub is_estimate: bool,
}

impl KeyNumber {
    /// The number of keys that were remembered, and of those that were not.
    pub(super) fn of(remembered: u64, others: Option<&KeyEstimate>) -> Self {
        let estimated = others.map_or(0, KeyEstimate::number);
        Self { number: remembered + estimated, is_estimate: others.is_some() }
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            number: self.number.saturating_add(other.number),
            is_estimate: self.is_estimate || other.is_estimate,
        }
    }
}

/// How many keys may still be remembered, over all limits.
#[derive(Clone, Copy, Debug)]
pub(in crate::replay) struct KeyBudget(usize);

impl KeyBudget {
    pub(in crate::replay) const fn new(keys: usize) -> Self {
        Self(keys)
    }

    /// Takes one key's memory, if there is some.
    pub(in crate::replay) fn take(&mut self) -> bool {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                true
            }
            None => false,
        }
    }

    #[cfg(test)]
    pub(in crate::replay) const fn left(self) -> usize {
        self.0
    }
}

/// A set of keys of which only the number is asked.
#[derive(Default)]
pub(in crate::replay) struct DistinctKeys {
    remembered: HashTable<u64>,
    others: Option<KeyEstimate>,
}

impl DistinctKeys {
    /// Adds a key by its folded hash.
    pub(in crate::replay) fn add(&mut self, hash: u64, max_keys: usize, budget: &mut KeyBudget) {
        if self.remembered.find(hash, |known| *known == hash).is_some() {
            return;
        }
        if self.others.is_none() && self.remembered.len() < max_keys && budget.take() {
            self.remembered.insert_unique(hash, hash, |known| *known);
        } else {
            self.others.get_or_insert_default().add(hash);
        }
    }

    pub(in crate::replay) fn number(&self) -> KeyNumber {
        KeyNumber::of(self.remembered.len() as u64, self.others.as_ref())
    }
}

/// The 64 bits of a key's hash that tables and estimates use. Two of 200,000 keys share them once in 900 million logs.
pub(in crate::replay) const fn folded(key: u128) -> u64 {
    (key >> 64) as u64 ^ key as u64
}

/// Bits of a hash that choose the register.
const REGISTER_BITS: u32 = 14;
/// 16 KiB; the standard error is 1.04 / sqrt(16384) = 0.8 %.
const REGISTERS: usize = 1 << REGISTER_BITS;
/// Bits of a hash after those.
const RANK_BITS: u32 = u64::BITS - REGISTER_BITS;

/// Estimates a number of keys in 16 KiB.
pub(super) struct KeyEstimate {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for KeyEstimate {
    fn default() -> Self {
        Self { registers: Box::new([0; REGISTERS]) }
    }
}

impl KeyEstimate {
    pub(super) fn add(&mut self, hash: u64) {
        let mixed = mixed(hash);
        let register = (mixed >> RANK_BITS) as usize;
        let rank = ((mixed << REGISTER_BITS).leading_zeros().min(RANK_BITS) + 1) as u8;
        self.registers[register] = self.registers[register].max(rank);
    }

    pub(super) fn number(&self) -> u64 {
        let mut counts = [0_u32; RANK_BITS as usize + 2];
        self.registers.iter().for_each(|rank| counts[usize::from(*rank)] += 1);
        let registers = REGISTERS as f64;
        let [empty, ranks @ .., full] = &counts;
        let mut sum = registers * tau(1.0 - f64::from(*full) / registers);
        for count in ranks.iter().rev() {
            sum = 0.5 * (sum + f64::from(*count));
        }
        sum += registers * sigma(f64::from(*empty) / registers);
        let estimate = registers * registers / (2.0 * std::f64::consts::LN_2 * sum);
        // A conversion from f64 saturates.
        estimate.round() as u64
    }
}

/// The finalizer of MurmurHash3, so that the estimate does not depend on the bits of the hash.
const fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Ertl's sigma: what empty registers contribute.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if sum <= before {
            return sum;
        }
    }
}

/// Ertl's tau: what full registers contribute.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * y;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_exactly_up_to_the_bound_and_estimated_above() {
        for (keys, max_keys) in
            [(0_u64, 100_usize), (100, 100), (101, 100), (1_000, 100), (50_000, 10), (300_000, 200)]
        {
            let (mut distinct, mut budget) = (DistinctKeys::default(), KeyBudget::new(1_000));
            for _ in 0..2 {
                (0..keys).for_each(|key| distinct.add(key, max_keys, &mut budget));
            }
            let found = distinct.number();
            assert_eq!(found.is_estimate, keys > max_keys as u64);
            let error = found.number.abs_diff(keys);
            assert!(error <= if found.is_estimate { keys / 25 } else { 0 }, "{keys}: {found:?}");
            assert_eq!(budget.left() as u64, 1_000 - keys.min(max_keys as u64));
        }
    }

    #[test]
    fn without_budget_every_number_is_an_estimate() {
        let (mut distinct, mut budget) = (DistinctKeys::default(), KeyBudget::new(0));
        distinct.add(1, 10, &mut budget);
        assert_eq!(distinct.number(), KeyNumber { number: 1, is_estimate: true });
    }
}
