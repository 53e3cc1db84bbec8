//! Keys whose counts are forgotten: an operator has reset them, or a ban has cleared their denials.
//!
//! What other nodes published before is still in the store: a live node withdraws it a moment later, one that has ended never
//! does. So counts that were published until then are not believed. To forget too much admits more, and refuses nobody.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::policy::KeyHash;

/// The most keys: as many as counts of other nodes are kept. With so many, one of them is believed again.
const MAX_KEYS: usize = 131_072;

/// For each key, what is forgotten.
#[derive(Debug, Default)]
pub(in crate::engine) struct Forgotten {
    keys: Mutex<HashMap<KeyHash, Forgetting>>,
    /// Whether there are any, so that hardly anybody waits for the lock.
    has_any: AtomicBool,
}

/// What is forgotten of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forgetting {
    /// What was published until then (shared time) is not believed.
    pub(super) until: Nanos,
    /// The end of the latest ban (monotonic) that cleared its denials.
    ban_until: Nanos,
    /// From when on (shared time) no window has counts from before.
    over: Nanos,
}

impl Forgotten {
    /// Forgets what was published of a key until an instant (shared time), under a limit with windows of this length.
    pub(in crate::engine) fn forget(&self, key: KeyHash, until: Nanos, period: Nanos) {
        self.update(key, until, period, Nanos::ZERO);
    }

    /// Forgets the denials that led to a ban which ends at `ban_until` (monotonic). Returns whether this was not done before.
    pub(in crate::engine) fn forget_denials(
        &self,
        key: KeyHash,
        ban_until: Nanos,
        until: Nanos,
        period: Nanos,
    ) -> bool {
        self.update(key, until, period, ban_until)
    }

    fn update(&self, key: KeyHash, until: Nanos, period: Nanos, ban_until: Nanos) -> bool {
        let mut keys = self.keys.lock();
        if keys.len() >= MAX_KEYS && !keys.contains_key(&key) {
            let any = keys.keys().next().copied();
            any.and_then(|any| keys.remove(&any));
        }
        let fresh = Forgetting { until: Nanos::ZERO, ban_until: Nanos::ZERO, over: Nanos::ZERO };
        let forgetting = keys.entry(key).or_insert(fresh);
        if ban_until > Nanos::ZERO && ban_until <= forgetting.ban_until {
            return false;
        }
        forgetting.until = forgetting.until.max(until);
        forgetting.ban_until = forgetting.ban_until.max(ban_until);
        forgetting.over = forgetting.over.max(until.saturating_add(period.saturating_mul(2)));
        self.has_any.store(true, Ordering::Release);
        true
    }

    /// All of them, without those whose windows are over.
    pub(super) fn snapshot(&self, now: Nanos) -> HashMap<KeyHash, Forgetting> {
        if !self.has_any.load(Ordering::Acquire) {
            return HashMap::new();
        }
        let mut keys = self.keys.lock();
        keys.retain(|_, forgetting| forgetting.over > now);
        self.has_any.store(!keys.is_empty(), Ordering::Release);
        keys.clone()
    }
}
