//! Where a key may have its cell in the confirm table: two sets and a tag, chosen by a secret.
//!
//! The hash of a key is not secret: with Redis and without a `key_secret_file` anyone can compute it, and search
//! for keys whose hashes agree in the bits that choose a set. So a second hash of that hash chooses the sets. Its
//! key never leaves the process:
//!
//! ```text
//!   sum   = a x high + b x low + c   mod 2^128     a, b, c: 128 secret bits each
//!   mixed = the upper half of sum, finished by one secret odd multiplier
//! ```
//!
//! The upper half is strongly universal (Dietzfelbinger 1996; Thorup, "High Speed Hashing for Integers and
//! Strings", section 3): for any two keys that are chosen without knowledge of the secret, both values are uniform
//! and independent. The last step is a bijection and preserves this. So two keys of an attacker share a set
//! exactly as often as two random keys do.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::policy::KeyHash;

/// The secret hash function of one table.
pub(super) struct SpotHasher {
    high: u128,
    low: u128,
    offset: u128,
    odd: u64,
    /// The number of sets less one. The number of sets is a power of two, and at least two.
    mask: usize,
}

/// A key and where its cell may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) key: KeyHash,
    /// The set that is searched first.
    pub(super) first: usize,
    /// A different set, used when the first is full.
    pub(super) second: usize,
    /// Tells the keys of a set apart, except for one pair in two thousand million. Never zero.
    pub(super) tag: u32,
}

impl SpotHasher {
    /// A new secret for a table of `sets` sets.
    pub(super) fn random(sets: usize) -> Self {
        debug_assert!(sets >= 2 && sets.is_power_of_two());
        // The standard hasher is SipHash with a key of the system's generator. Its values are as good as that
        // generator's, and it cannot fail.
        let system = RandomState::new();
        let word = |index: u64| system.hash_one(index);
        let wide = |index: u64| u128::from(word(index)) << 64 | u128::from(word(!index));
        Self { high: wide(1), low: wide(2), offset: wide(3), odd: word(4) | 1, mask: sets - 1 }
    }

    /// Where the cell of a key may be.
    pub(super) fn spot(&self, key: KeyHash) -> Spot {
        let sum = self
            .high
            .wrapping_mul(u128::from(key.high))
            .wrapping_add(self.low.wrapping_mul(u128::from(key.low)))
            .wrapping_add(self.offset);
        let upper = (sum >> 64) as u64;
        // Breaks the linear structure of the sum for keys at equal distances.
        let mixed = (upper ^ (upper >> 32)).wrapping_mul(self.odd);
        let mixed = mixed ^ (mixed >> 32);
        let first = mixed as usize & self.mask;
        let second = (mixed >> 16) as usize & self.mask;
        let second = if second == first { first ^ 1 } else { second };
        Spot { key, first, second, tag: (mixed >> 32) as u32 | 1 }
    }
}

impl fmt::Debug for SpotHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpotHasher").field("mask", &self.mask).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETS: usize = 8_192;

    /// The largest number of keys that share a first set.
    fn fullest(keys: impl Iterator<Item = KeyHash>) -> usize {
        let hasher = SpotHasher::random(SETS);
        let mut loads = vec![0usize; SETS];
        keys.for_each(|key| loads[hasher.spot(key).first] += 1);
        loads.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn crafted_keys_fill_no_set_more_than_random_keys_do() {
        // Four keys per set. Random keys put at most 19 into one set, except in one run of a million (Poisson
        // with mean 4, 8,192 sets). Structured keys may be slightly less even.
        const LARGEST: usize = 24;
        let keys = 4 * SETS as u64;
        for shift in 0..48 {
            let low_equal = (0..keys).map(|n| KeyHash { high: n << shift, low: 7 });
            assert!(fullest(low_equal) <= LARGEST, "equal low halves, step 2^{shift}");
            let high_equal = (0..keys).map(|n| KeyHash { high: 3, low: n << shift });
            assert!(fullest(high_equal) <= LARGEST, "equal high halves, step 2^{shift}");
            let halves_equal = (0..keys).map(|n| KeyHash { high: n << shift, low: n << shift });
            assert!(fullest(halves_equal) <= LARGEST, "equal halves, step 2^{shift}");
        }
    }

    #[test]
    fn the_second_set_differs_from_the_first_and_the_tag_is_not_zero() {
        for sets in [2, 4, SETS] {
            let hasher = SpotHasher::random(sets);
            for n in 0..10_000 {
                let spot = hasher.spot(KeyHash { high: n, low: n });
                assert_ne!(spot.first, spot.second);
                assert!(spot.first < sets && spot.second < sets && spot.tag != 0);
            }
        }
    }
}
