//! Units that were charged and may still be given back, because another limit of the same request has not judged yet.
//!
//! They count for requests of this node, as tentative charges do, and are not published: a node that dies, or is cut off, before
//! it gives them back would leave them to the others. For the same reason they do not go to a successor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

use crate::policy::KeyHash;

/// Locks of the map.
const SHARDS: usize = 64;

/// For each key, the tentative units of requests that are being judged. So many entries at most as there are such requests.
#[derive(Debug)]
pub(in crate::engine) struct TentativeUnits {
    shards: [Mutex<HashMap<KeyHash, u64>>; SHARDS],
    /// For each shard, whether its units were left out of what went to a successor. It changes under the lock of the shard.
    are_left_out: [AtomicBool; SHARDS],
}

/// Units of a request. They are settled when this is dropped.
#[derive(Debug)]
pub(in crate::engine) struct TentativeHold {
    units: Arc<TentativeUnits>,
    key: KeyHash,
    cost: u32,
    is_settled: bool,
}

impl Default for TentativeUnits {
    fn default() -> Self {
        let are_left_out = std::array::from_fn(|_| AtomicBool::new(false));
        Self { shards: std::array::from_fn(|_| Mutex::default()), are_left_out }
    }
}

impl TentativeUnits {
    /// Holds units of a key. Call it before they are charged, and drop it after they were kept or given back.
    pub(in crate::engine) fn hold(self: &Arc<Self>, key: KeyHash, cost: u32) -> TentativeHold {
        *self.shard(key).lock().entry(key).or_default() += u64::from(cost);
        TentativeHold { units: Arc::clone(self), key, cost, is_settled: false }
    }

    /// The tentative units of a key. Units that are read of its cell meanwhile are among them, if its cell is locked.
    pub(in crate::engine) fn of(&self, key: KeyHash) -> u32 {
        let units = self.shard(key).lock().get(&key).copied().unwrap_or_default();
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// Waits until all units are settled, but only for about so many milliseconds. It blocks its thread.
    #[cfg(feature = "bin")]
    pub(in crate::engine) fn wait_until_none(&self, patience_millis: u32) {
        let is_held = |shard: &Mutex<HashMap<_, _>>| !shard.lock().is_empty();
        for _ in 0..patience_millis {
            if !self.shards.iter().any(is_held) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Nothing was left out yet of what goes to a successor.
    #[cfg(feature = "bin")]
    pub(in crate::engine) fn begin_switch(&self) {
        self.are_left_out.iter().for_each(|shard| shard.store(false, Ordering::Relaxed));
    }

    /// All units that are tentative now, by key. They are left out of what goes to a successor.
    #[cfg(feature = "bin")]
    pub(in crate::engine) fn leave_out(&self) -> HashMap<KeyHash, u32> {
        let mut all = HashMap::new();
        for (shard, is_left_out) in self.shards.iter().zip(&self.are_left_out) {
            let units =
                |(key, units): (&KeyHash, &u64)| (*key, u32::try_from(*units).unwrap_or(u32::MAX));
            let shard = shard.lock();
            is_left_out.store(true, Ordering::Relaxed);
            all.extend(shard.iter().map(units));
        }
        all
    }

    fn shard(&self, key: KeyHash) -> &Mutex<HashMap<KeyHash, u64>> {
        &self.shards[key.low as usize % SHARDS]
    }
}

impl TentativeHold {
    /// Settles the units. Returns whether they were left out of what went to a successor, if they were held before the switch.
    pub(in crate::engine) fn settle(mut self) -> bool {
        self.is_settled = true;
        self.release()
    }

    fn release(&self) -> bool {
        let mut shard = self.units.shard(self.key).lock();
        if let Entry::Occupied(mut entry) = shard.entry(self.key) {
            let left = entry.get().saturating_sub(u64::from(self.cost));
            if left == 0 {
                entry.remove();
            } else {
                *entry.get_mut() = left;
            }
        }
        self.units.are_left_out[self.key.low as usize % SHARDS].load(Ordering::Relaxed)
    }
}

impl Drop for TentativeHold {
    fn drop(&mut self) {
        if !self.is_settled {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_held_until_they_are_settled() {
        let units = Arc::<TentativeUnits>::default();
        let (key, other) = (KeyHash { high: 1, low: 2 }, KeyHash { high: 2, low: 2 });
        let (first, second) = (units.hold(key, 3), units.hold(key, u32::MAX));
        assert_eq!((units.of(key), units.of(other)), (u32::MAX, 0));
        drop(second);
        assert_eq!(units.of(key), 3);
        drop(first);
        assert_eq!(units.of(key), 0);
        let held = [(); 3].map(|()| units.hold(key, 2));
        let [first, second, third] = held;
        assert!(!first.settle());
        assert_eq!(units.leave_out().into_iter().collect::<Vec<_>>(), [(key, 4)]);
        assert!(second.settle());
        units.begin_switch();
        assert!(!third.settle());
        assert!(units.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
