//! How much memory counts per key may take, and the hash by which tables find a key.

/// How much memory the counts of one limit may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// The largest number of keys.
    pub max_keys: usize,
    /// The largest number of bytes, all keys together.
    pub max_bytes: usize,
}

impl Default for MemoryBounds {
    /// A million keys, 256 MiB.
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_bytes: 256 << 20 }
    }
}

/// A hash of 64 bits, each of which depends on all bits of the key. Two of a million keys have the same with a
/// probability of 3 in 10^8.
pub(super) fn mixed(key: u128) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let folded = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ (product >> 64) as u64
    };
    let (low, high) = (key as u64, (key >> 64) as u64);
    folded(folded(low ^ FACTOR, FACTOR) ^ high, 0xd6e8_feb8_6659_fd93)
}

/// The hash as the table is given it. The table reads its first and last bits, which are zero for all sampled keys.
pub(super) const fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}
