//! What other nodes of the fleet have counted of the keys of one limit, as this node knows it.
//!
//! Requests only read it; the exchange replaces it as a whole. What must always hold: it has no units that this node counted
//! itself, and only units that a node has certainly counted.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::limit::{SlidingWindow, WindowPair};
use crate::policy::KeyHash;

/// The counts of other nodes under one limit.
pub struct FleetView {
    /// Tells the limit from others in what nodes exchange.
    tag: u64,
    /// Whether denials are counted, and not what requests cost.
    counts_denials: bool,
    counts: ArcSwap<FleetCounts>,
    /// Keys whose counts are not used until they are replaced, and the number of the forgetting. At most as many as there are
    /// counts.
    forgotten: Mutex<HashMap<KeyHash, u64>>,
    has_forgotten: AtomicBool,
}

/// Counts by key.
#[derive(Clone)]
pub struct FleetCounts {
    by_key: HashTable<(KeyHash, WindowPair)>,
    /// Chooses the buckets of keys, so that nobody can search for keys that share one.
    secret: u64,
}

impl FleetView {
    /// Without counts. `tag`: what nodes call the limit.
    pub fn new(tag: u64) -> Self {
        Self {
            tag,
            counts_denials: false,
            counts: ArcSwap::from_pointee(FleetCounts::default()),
            forgotten: Mutex::default(),
            has_forgotten: AtomicBool::new(false),
        }
    }

    /// The same, for denials.
    pub fn of_denials(tag: u64) -> Self {
        Self { counts_denials: true, ..Self::new(tag) }
    }

    /// Whether denials are counted, and not what requests cost.
    pub const fn counts_denials(&self) -> bool {
        self.counts_denials
    }

    /// What nodes call the limit.
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Replaces all counts by some that have nothing of what was forgotten up to this number.
    pub fn replace(&self, counts: FleetCounts, forgotten_until: u64) {
        let mut forgotten = self.forgotten.lock();
        self.counts.store(counts.into());
        forgotten.retain(|_, number| *number > forgotten_until);
        self.has_forgotten.store(!forgotten.is_empty(), Ordering::Release);
    }

    /// Forgets what other nodes have counted of a key, until counts are replaced that leave it out. `number`: of this forgetting;
    /// later ones have higher numbers.
    pub fn forget(&self, key: KeyHash, number: u64) {
        let mut forgotten = self.forgotten.lock();
        if self.counts.load().of_key(key).is_some() {
            forgotten.insert(key, number);
            self.has_forgotten.store(true, Ordering::Release);
        }
    }

    /// The number of keys that other nodes have counted.
    pub fn keys(&self) -> usize {
        self.counts.load().by_key.len()
    }

    /// Whether another node has counted a key.
    pub fn has(&self, key: KeyHash) -> bool {
        self.of_key(key).is_some()
    }

    /// What other nodes have counted of a key.
    pub(super) fn of_key(&self, key: KeyHash) -> Option<WindowPair> {
        let counts = self.counts.load();
        if counts.by_key.is_empty() {
            return None;
        }
        let counted = counts.of_key(key)?;
        let is_forgotten =
            self.has_forgotten.load(Ordering::Acquire) && self.forgotten.lock().contains_key(&key);
        (!is_forgotten).then_some(counted)
    }

    /// Units that other nodes have counted of a key in the window of `now`, divided as `quota` divides windows.
    pub fn units_in_window(&self, key: KeyHash, quota: SlidingWindow, now: Nanos) -> u32 {
        let counted = self.of_key(key).unwrap_or_default();
        let (window, current, _) = counted.counts();
        let present = (now.get() / quota.rate().period().get()) as u32;
        if window == present { current } else { 0 }
    }
}

impl Default for FleetCounts {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl FleetCounts {
    /// Counts of keys, each key once.
    pub fn of(counts: Vec<(KeyHash, WindowPair)>) -> Self {
        let secret = RandomState::new().hash_one(0);
        let mut by_key = HashTable::with_capacity(counts.len());
        for counted in counts {
            by_key
                .insert_unique(bucket(counted.0, secret), counted, |(key, _)| bucket(*key, secret));
        }
        Self { by_key, secret }
    }

    fn of_key(&self, key: KeyHash) -> Option<WindowPair> {
        let found = self.by_key.find(bucket(key, self.secret), |(other, _)| *other == key);
        found.map(|(_, counted)| *counted)
    }
}

/// The bucket of a key in a table. Hashes of keys are random already if they have a secret; without one, the secret of the
/// table keeps anybody from choosing keys for one bucket.
const fn bucket(key: KeyHash, secret: u64) -> u64 {
    let mixed =
        ((key.high ^ secret) as u128).wrapping_mul((key.low ^ secret.rotate_left(32)) as u128);
    (mixed >> 64) as u64 ^ mixed as u64
}

impl std::fmt::Debug for FleetView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetView").field("keys", &self.keys()).finish_non_exhaustive()
    }
}
