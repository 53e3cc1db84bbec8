//! Denials are cached on the node: a charge that was just denied is denied again without a call,
//! until it could succeed.

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::KeyHash;

/// How long a denial is cached at most: a change that another node makes is seen after this.
const MAX_AGE: Nanos = Nanos::SECOND;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// Denials of one shard at most: 65,536 in all. A flood of denied keys beyond that asks the store.
const MAX_DENIALS: usize = 1_024;

type Denials = HashMap<DenialKey, Denial>;

/// What was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DenialKey {
    pub(super) key: KeyHash,
    /// The number of the quota that it was charged under.
    pub(super) quota_number: u32,
    pub(super) cost: u32,
}

/// Recent denials.
pub(super) struct DenialCache {
    shards: Box<[Mutex<Denials>]>,
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
    /// Records a denial. `since` is an instant before the store was asked, so that the cached
    /// retry time ends no later than the store said.
    pub(super) fn record(
        &self,
        denied: DenialKey,
        generation: u64,
        since: Nanos,
        verdict: Verdict,
    ) {
        let wait = verdict.retry_after.map_or(MAX_AGE, |retry| retry.min(MAX_AGE));
        let until = since.saturating_add(wait);
        let mut denials = self.shard(denied.key).lock();
        if denials.len() >= MAX_DENIALS {
            denials.retain(|_, denial| denial.until > since);
        }
        if denials.len() < MAX_DENIALS {
            denials.insert(denied, Denial { since, until, generation, verdict });
        }
    }

    /// The denial of a charge, if it is cached and still holds.
    pub(super) fn get(&self, denied: DenialKey, generation: u64, now: Nanos) -> Option<Verdict> {
        let mut denials = self.shard(denied.key).lock();
        let denial = *denials.get(&denied)?;
        if denial.until <= now || denial.generation != generation {
            denials.remove(&denied);
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

    fn shard(&self, key: KeyHash) -> &Mutex<Denials> {
        &self.shards[(key.high % SHARDS as u64) as usize]
    }
}
