//! What need not be asked: a charge that was just denied is denied again at home, until it could
//! succeed.

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::KeyHash;

/// How long a denial is answered at home at most: a change that another node makes is seen then.
const LONGEST: Nanos = Nanos::SECOND;

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// Most denials of one shard: 65,536 in all. A flood of denied keys beyond that asks the store.
const MOST: usize = 1_024;

/// What was denied, and of what cost.
type Denials = HashMap<Charged, Denial>;

/// A key, under a quota (by its number), and what was to be charged.
type Charged = (KeyHash, u32, u32);

/// Denials of late.
pub(super) struct Home {
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

impl Default for Home {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Home {
    /// Notes a denial. `since`: an instant before the store was asked, so that the time it told is
    /// over no later than it said.
    pub(super) fn note(&self, charged: Charged, generation: u64, since: Nanos, verdict: Verdict) {
        let wait = verdict.retry_after.map_or(LONGEST, |retry| retry.min(LONGEST));
        let until = since.saturating_add(wait);
        let mut denials = self.shard(charged.0).lock();
        if denials.len() >= MOST {
            denials.retain(|_, denial| denial.until > since);
        }
        if denials.len() < MOST {
            denials.insert(charged, Denial { since, until, generation, verdict });
        }
    }

    /// What a charge is answered at home, if it is.
    pub(super) fn denied(&self, charged: Charged, generation: u64, now: Nanos) -> Option<Verdict> {
        let mut denials = self.shard(charged.0).lock();
        let denial = *denials.get(&charged)?;
        if denial.until <= now || denial.generation != generation {
            denials.remove(&charged);
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
