//! Counts the requests of one limit that are in flight, by key.
//!
//! The count of a key rises when a request begins and falls when the request's permit is dropped, however the
//! request ends. The counts are those of this node. This module does not know what a request is.
//!
//! What always holds: the count of a key is the sum of the costs of its live permits, and a key without permits
//! takes no memory. So the bounds on concurrent requests also bound this memory.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::policy::KeyHash;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// The requests of one limit that are in flight on this node.
#[derive(Debug)]
pub struct InFlightCounts {
    shards: Box<[Mutex<HashMap<KeyHash, u64>>]>,
}

/// Counts as one request in flight. Dropping it ends the request.
#[derive(Debug)]
pub struct InFlightPermit {
    counts: Arc<InFlightCounts>,
    key: KeyHash,
    cost: u32,
}

/// The result of [`InFlightCounts::acquire`].
#[must_use = "dropping the permit ends the request"]
#[derive(Debug)]
pub struct Acquired {
    /// `None`: the request does not fit.
    pub permit: Option<InFlightPermit>,
    /// The count of the key, with this request if it fits.
    pub held: u64,
}

impl Default for InFlightCounts {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl InFlightCounts {
    /// Adds a request of `cost` if the count of its key then is at most `max`. With `always` true it is added in
    /// any case.
    pub fn acquire(self: &Arc<Self>, key: KeyHash, cost: u32, max: u32, always: bool) -> Acquired {
        let mut shard = self.shard(key).lock();
        let held = shard.get(&key).copied().unwrap_or(0);
        let after = held + u64::from(cost);
        if after > u64::from(max) && !always {
            return Acquired { permit: None, held };
        }
        shard.insert(key, after);
        let permit = InFlightPermit { counts: Arc::clone(self), key, cost };
        Acquired { permit: Some(permit), held: after }
    }

    /// The count of a key.
    pub fn held(&self, key: KeyHash) -> u64 {
        self.shard(key).lock().get(&key).copied().unwrap_or(0)
    }

    /// The sum of the counts of all keys.
    pub fn total(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().values().sum::<u64>()).sum()
    }

    fn shard(&self, key: KeyHash) -> &Mutex<HashMap<KeyHash, u64>> {
        &self.shards[(key.high % SHARDS as u64) as usize]
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let mut shard = self.counts.shard(self.key).lock();
        if let Some(held) = shard.get_mut(&self.key) {
            *held = held.saturating_sub(u64::from(self.cost));
            if *held == 0 {
                shard.remove(&self.key);
            }
        }
    }
}
