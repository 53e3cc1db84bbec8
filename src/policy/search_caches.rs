//! The states that lazy automata keep between values, bounded for each thread.
//!
//! A policy may have thousands of patterns, and reloads bring new ones, so what all of them keep together has one bound.
//! It knows no patterns. What always holds: a cache belongs to one automaton; the caches of a thread stay below the
//! bound, except for the one in use; those of an automaton that is gone are freed when the thread searches again.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;

/// The bytes of states that one thread keeps, for all automata of all policies. Above it the thread begins again with
/// none. Their vectors grow by doubling, so the memory may be twice as much.
const MAX_THREAD_BYTES: usize = 8 << 20;

/// How many automata are gone. A thread that sees another number frees their caches.
static GONE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CACHES: RefCell<ThreadCaches> = RefCell::default();
}

/// An automaton, as the owner of its caches.
#[derive(Debug)]
pub(super) struct CacheOwner {
    id: u64,
}

/// What an automaton works with.
#[derive(Debug)]
pub(super) struct SearchCache {
    pub(super) states: regex_automata::hybrid::dfa::Cache,
    /// For each pattern the number of the last search that reported it.
    pub(super) reported_by: Vec<u32>,
    pub(super) search: u32,
}

#[derive(Default)]
struct ThreadCaches {
    by_owner: HashMap<u64, KeptCache>,
    bytes: usize,
    /// [`GONE`] when it was last read.
    gone: u64,
}

struct KeptCache {
    cache: SearchCache,
    bytes: usize,
    owner: Weak<CacheOwner>,
}

impl CacheOwner {
    pub(super) fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }
}

impl Drop for CacheOwner {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

impl SearchCache {
    fn bytes(&self) -> usize {
        self.states.memory_usage() + self.reported_by.len() * size_of::<u32>()
    }
}

/// Takes the cache that this thread keeps for an automaton, if it does.
pub(super) fn take(owner: &CacheOwner) -> Option<SearchCache> {
    CACHES.try_with(|caches| caches.try_borrow_mut().ok()?.take(owner.id)).ok().flatten()
}

/// Keeps a cache for the next search of this thread.
pub(super) fn keep(owner: &Arc<CacheOwner>, cache: SearchCache) {
    // A thread that ends keeps nothing.
    let _ = CACHES.try_with(|caches| {
        if let Ok(mut caches) = caches.try_borrow_mut() {
            caches.keep(owner, cache);
        }
    });
}

impl ThreadCaches {
    fn take(&mut self, owner: u64) -> Option<SearchCache> {
        let gone = GONE.load(Ordering::Relaxed);
        if gone != self.gone {
            self.gone = gone;
            self.by_owner.retain(|_, kept| kept.owner.strong_count() > 0);
            self.bytes = self.by_owner.values().map(|kept| kept.bytes).sum();
        }
        let kept = self.by_owner.remove(&owner)?;
        self.bytes = self.bytes.saturating_sub(kept.bytes);
        Some(kept.cache)
    }

    fn keep(&mut self, owner: &Arc<CacheOwner>, cache: SearchCache) {
        let bytes = cache.bytes();
        if self.bytes + bytes > MAX_THREAD_BYTES {
            self.by_owner = HashMap::new();
            self.bytes = 0;
        }
        if bytes <= MAX_THREAD_BYTES {
            self.bytes += bytes;
            let kept = KeptCache { cache, bytes, owner: Arc::downgrade(owner) };
            self.by_owner.insert(owner.id, kept);
        }
    }
}

/// The bytes that this thread keeps, and for how many automata.
#[cfg(test)]
pub(super) fn kept() -> (usize, usize) {
    CACHES.with_borrow(|caches| {
        let bytes: usize = caches.by_owner.values().map(|kept| kept.cache.bytes()).sum();
        assert_eq!(bytes, caches.bytes);
        (bytes, caches.by_owner.len())
    })
}

#[cfg(test)]
mod tests {
    use super::super::value_automaton::ValueAutomaton;
    use super::super::work_budget::WorkBudget;
    use super::*;

    /// An automaton of which this thread keeps some 100 KiB, since each state remembers twenty bytes.
    fn used_automaton(number: usize) -> ValueAutomaton {
        let automaton = ValueAutomaton::new(&[format!("[ab][^{number}]{{20}}x")]).unwrap();
        let mut draw = fastrand::Rng::with_seed(1);
        let value: Vec<u8> = (0..2_000).map(|_| draw.choice(*b"abcd").unwrap()).collect();
        automaton.search(&value, &WorkBudget::with_building(), |_| {}).unwrap();
        automaton
    }

    #[test]
    fn all_automata_of_a_thread_keep_so_many_states_together() {
        let mut automata = Vec::new();
        let mut largest_count = 0;
        for number in 0..50 {
            automata.push(used_automaton(number));
            let (bytes, count) = kept();
            assert!(bytes <= MAX_THREAD_BYTES, "{bytes} after {number}");
            largest_count = largest_count.max(count);
        }
        assert!((8..50).contains(&largest_count), "they begin again: {largest_count}");
    }

    #[test]
    fn states_of_automata_that_are_gone_are_freed() {
        let old: Vec<_> = (0..8).map(used_automaton).collect();
        assert_eq!(kept().1, 8);
        drop(old);
        let new = used_automaton(0);
        assert_eq!(kept().1, 1);
        drop(new);
    }
}
