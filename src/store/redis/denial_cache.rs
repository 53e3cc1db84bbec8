//! Caches denials of the store on this node. A charge that was just denied is denied again without a call, until it
//! could succeed.
//!
//! What always holds: a denial is cached for one second at most and not beyond its retry time, and a new generation
//! does not see denials of an older one. The number of denials is bounded. This module does not ask the store.

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::KeyHash;

/// The longest time for which a denial is cached. It bounds how late a change by another node is noticed.
const MAX_AGE: Nanos = Nanos::SECOND;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// The largest number of denials in a shard: 65,536 in all. When a flood of denied keys exceeds it, the store is
/// asked.
const MAX_DENIALS: usize = 1_024;

/// Recent denials.
pub(super) struct DenialCache {
    shards: Box<[Mutex<HashMap<DenialKey, Denial>>]>,
}

/// The charges to which a denial applies: those of one cost, to one key, under one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DenialKey {
    pub(super) key: KeyHash,
    pub(super) quota_number: u32,
    pub(super) cost: u32,
}

#[derive(Clone, Copy)]
struct Denial {
    since: Nanos,
    until: Nanos,
    /// A reload may have raised the limit.
    generation: u64,
    verdict: Verdict,
}

impl Default for DenialCache {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl DenialCache {
    /// Records a denial. `since` is an instant before the store was asked, so the cached retry time does not end
    /// later than that of the store.
    pub(super) fn record(&self, key: DenialKey, generation: u64, since: Nanos, verdict: Verdict) {
        let wait = verdict.retry_after.map_or(MAX_AGE, |retry| retry.min(MAX_AGE));
        let until = since.saturating_add(wait);
        let mut denials = self.shard(key).lock();
        if denials.len() >= MAX_DENIALS {
            denials.retain(|_, denial| denial.until > since);
        }
        if denials.len() < MAX_DENIALS {
            denials.insert(key, Denial { since, until, generation, verdict });
        }
    }

    /// The denial of a charge, if it is cached and still applies.
    pub(super) fn get(&self, key: DenialKey, generation: u64, now: Nanos) -> Option<Verdict> {
        let mut denials = self.shard(key).lock();
        let denial = *denials.get(&key)?;
        if denial.until <= now || denial.generation != generation {
            denials.remove(&key);
            return None;
        }
        let passed = now.saturating_sub(denial.since);
        let verdict = denial.verdict;
        Some(Verdict {
            reset: verdict.reset.saturating_sub(passed),
            retry_after: verdict.retry_after.map(|retry| retry.saturating_sub(passed)),
            ..verdict
        })
    }

    /// Forgets the denials of a key under every quota.
    pub(super) fn forget(&self, key: KeyHash) {
        let any_charge = DenialKey { key, quota_number: 0, cost: 0 };
        self.shard(any_charge).lock().retain(|denied, _| denied.key != key);
    }

    fn shard(&self, key: DenialKey) -> &Mutex<HashMap<DenialKey, Denial>> {
        &self.shards[(key.key.high % SHARDS as u64) as usize]
    }
}
