//! Counts the requests of one limit that are in flight, by key.
//!
//! The count of a key rises when a request begins and falls when the request's permit is dropped, however the
//! request ends. The counts are those of this node. This module does not know what a request is.
//!
//! What always holds: the count of a key is the sum of the costs of its live permits, and a key without permits
//! takes no memory. So the bounds on concurrent requests also bound this memory.
//!
//! When a successor takes over, the counts are its own from one instant on: it admits, and every permit that is dropped here
//! is reported to it.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::policy::KeyHash;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// The requests of one limit that are in flight on this node.
#[derive(Debug)]
pub struct InFlightCounts {
    shards: Box<[Mutex<Shard>]>,
}

/// Reports to the successor that a request of a key has ended, with its cost.
#[derive(Clone)]
pub struct ReleaseHook(pub Arc<dyn Fn(KeyHash, u32) + Send + Sync>);

#[derive(Debug, Default)]
struct Shard {
    held: HashMap<KeyHash, u64>,
    /// Set while a successor counts.
    successor: Option<ReleaseHook>,
}

/// Counts as one request in flight. Dropping it ends the request.
#[derive(Debug)]
pub struct InFlightPermit {
    counts: Arc<InFlightCounts>,
    key: KeyHash,
    cost: u32,
    /// Whether a successor hears of its end: not of what it does not know.
    is_told: bool,
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
    /// any case. `None`: a successor counts, and has to be asked.
    pub fn acquire(
        self: &Arc<Self>,
        key: KeyHash,
        cost: u32,
        max: u32,
        always: bool,
    ) -> Option<Acquired> {
        let mut shard = self.shard(key).lock();
        if shard.successor.is_some() {
            return None;
        }
        let held = shard.held.get(&key).copied().unwrap_or(0);
        let after = held + u64::from(cost);
        if after > u64::from(max) && !always {
            return Some(Acquired { permit: None, held });
        }
        shard.held.insert(key, after);
        let permit = InFlightPermit { counts: Arc::clone(self), key, cost, is_told: true };
        Some(Acquired { permit: Some(permit), held: after })
    }

    /// The same while a successor counts and does not answer: only what is in flight here is known. The successor never hears of the
    /// request.
    pub fn acquire_alone(self: &Arc<Self>, key: KeyHash, cost: u32, max: u32) -> Acquired {
        let mut shard = self.shard(key).lock();
        let held = shard.held.get(&key).copied().unwrap_or(0);
        let after = held + u64::from(cost);
        if after > u64::from(max) {
            return Acquired { permit: None, held };
        }
        shard.held.insert(key, after);
        let permit = InFlightPermit { counts: Arc::clone(self), key, cost, is_told: false };
        Acquired { permit: Some(permit), held: after }
    }

    /// A permit for a request that the successor has admitted, or that is in flight in the process before this one.
    pub fn admitted(self: &Arc<Self>, key: KeyHash, cost: u32) -> InFlightPermit {
        let mut shard = self.shard(key).lock();
        *shard.held.entry(key).or_default() += u64::from(cost);
        InFlightPermit { counts: Arc::clone(self), key, cost, is_told: true }
    }

    /// The count of a key.
    pub fn held(&self, key: KeyHash) -> u64 {
        self.shard(key).lock().held.get(&key).copied().unwrap_or(0)
    }

    /// The sum of the counts of all keys.
    pub fn total(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().held.values().sum::<u64>()).sum()
    }

    /// Makes the counts a successor's: calls `copy` with each key and its count, in the instant from which its shard is
    /// handed over. `ended` is called for every permit that is dropped from then on.
    pub fn hand_over(&self, ended: &ReleaseHook, mut copy: impl FnMut(KeyHash, u64)) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.successor = Some(ended.clone());
            shard.held.iter().for_each(|(key, held)| copy(*key, *held));
        }
    }

    /// Counts here again: the successor has gone.
    pub fn take_back(&self) {
        for shard in &self.shards {
            shard.lock().successor = None;
        }
    }

    fn end(&self, key: KeyHash, cost: u32, is_told: bool) {
        let mut shard = self.shard(key).lock();
        if let Some(held) = shard.held.get_mut(&key) {
            *held = held.saturating_sub(u64::from(cost));
            if *held == 0 {
                shard.held.remove(&key);
            }
        }
        let successor = shard.successor.clone().filter(|_| is_told && cost > 0);
        // The hook takes the lock of the succession's events. `take_back` holds that lock while it locks each shard, so this
        // shard is released first.
        drop(shard);
        if let Some(ReleaseHook(ended)) = successor {
            ended(key, cost);
        }
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Shard> {
        &self.shards[(key.high % SHARDS as u64) as usize]
    }
}

impl InFlightPermit {
    /// Ends a part of it. Returns the cost that is left to be ended elsewhere.
    pub fn end_some(&mut self, cost: u32) -> u32 {
        let ended = cost.min(self.cost);
        self.counts.end(self.key, ended, self.is_told);
        self.cost -= ended;
        cost - ended
    }

    /// The key.
    pub const fn key(&self) -> KeyHash {
        self.key
    }

    /// Whether nothing of it is left.
    pub const fn is_ended(&self) -> bool {
        self.cost == 0
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.counts.end(self.key, self.cost, self.is_told);
    }
}

impl fmt::Debug for ReleaseHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReleaseHook")
    }
}
