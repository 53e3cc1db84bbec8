//! Requests in flight, by key: a number that goes up at the door and down when the request ends,
//! however it ends.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::policy::KeyHash;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// The requests of one limit that are in flight on this node. As large as there are requests, which
/// the bounds of the proxy bound.
#[derive(Debug)]
pub struct InFlightCounts {
    shards: Box<[Mutex<HashMap<KeyHash, u64>>]>,
}

/// What one request holds; dropping it gives it back.
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
    /// The sum of the costs that the key's requests hold, this one included if it fits.
    pub held: u64,
}

impl Default for InFlightCounts {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl InFlightCounts {
    /// Adds a request that counts as `cost`, if its key then holds `max` at most. With `always` it is
    /// added in any case.
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

    /// What all keys' requests hold.
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
