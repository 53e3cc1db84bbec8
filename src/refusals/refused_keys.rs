//! The keys that each limit refused most, hour by hour.
//!
//! ```text
//!   limit ──► the present hour: entries that are counted in
//!         ──► the 24 hours before: entries that stand still
//! ```
//!
//! Hours are counted on the monotonic clock, so that a step of the wall clock moves nothing between them. It does not know
//! names; limits have numbers. What must always hold: memory is bounded by [`MAX_LIMITS_WITH_KEYS`] limits (those that
//! refuse first; all others share one more list) with [`ENTRIES`] entries for each of [`HOURS`] hours, and a limit without
//! refusals holds none.

use std::collections::VecDeque;
use std::net::IpAddr;

use hashbrown::{HashMap, HashSet};

use super::names::NameNumber;
use super::record::RefusedKey;
use super::space_saving::{ENTRIES, FrozenCounts, KeyCount, SpaceSaving};
use crate::clock::Nanos;
use crate::policy::KeyHash;

/// Limits with a list of their own.
pub(super) const MAX_LIMITS_WITH_KEYS: usize = 64;

/// Hours that are kept before the present one.
pub const HOURS: u64 = 24;

const HOUR: Nanos = Nanos::from_secs(3_600);

/// The bytes that all lists together can take.
pub(super) const REFUSED_KEYS_BYTES: usize = (MAX_LIMITS_WITH_KEYS + 1)
    * ENTRIES
    * ((HOURS as usize + 1) * size_of::<KeyCount>() + size_of::<(KeyHash, u16)>() * 2);

/// The lists of all limits.
pub(super) struct RefusedKeys {
    /// The time by which the first hour of the process is shorter, so that hours begin with those of its dates.
    phase: Nanos,
    /// The present hour.
    hour: u64,
    lists: HashMap<NameNumber, LimitKeys>,
    /// Of all limits that have no list of their own.
    shared: LimitKeys,
}

#[derive(Default)]
struct LimitKeys {
    present: SpaceSaving,
    /// The hours before with their numbers, the latest first. Those without refusals are left out.
    past: VecDeque<(u64, FrozenCounts)>,
}

/// A key that was refused often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrequentKey {
    /// Its hash.
    pub key: KeyHash,
    /// At most how often it was refused.
    pub refused: u64,
    /// At most so many of these refusals were those of other keys.
    pub error: u64,
    /// The client's address with the bits of it that are the key, if the key is the address.
    pub address: Option<(IpAddr, u8)>,
}

impl FrequentKey {
    /// How often it was refused at least.
    pub const fn certain(&self) -> u64 {
        self.refused.saturating_sub(self.error)
    }
}

/// The keys that a limit refused most in some hours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrequentKeys {
    /// The time from the beginning of the first of these hours until now.
    pub span: Nanos,
    /// All refusals in this list, of all its keys and limits.
    pub total: u64,
    /// Whether the list is shared with other limits.
    pub is_shared: bool,
    /// The keys, those that were certainly refused most often first.
    pub keys: Vec<FrequentKey>,
}

impl RefusedKeys {
    /// Empty lists. `date`: that of `now` (monotonic).
    pub(super) fn new(now: Nanos, date: Nanos) -> Self {
        let phase = date.saturating_sub(now).get() % HOUR.get();
        let mut keys = Self {
            phase: Nanos::new(phase),
            hour: 0,
            lists: HashMap::new(),
            shared: LimitKeys::default(),
        };
        keys.hour = keys.hour_of(now);
        keys
    }

    fn hour_of(&self, now: Nanos) -> u64 {
        now.saturating_add(self.phase).get() / HOUR.get()
    }

    /// Begins a new hour if the present one is over.
    pub(super) fn advance(&mut self, now: Nanos) {
        let hour = self.hour_of(now);
        if hour <= self.hour {
            return;
        }
        let ended = std::mem::replace(&mut self.hour, hour);
        for list in self.lists.values_mut().chain([&mut self.shared]) {
            list.end_hour(ended, hour);
        }
        // A limit that was quiet for a day makes room for another.
        self.lists.retain(|_, list| !list.past.is_empty());
    }

    /// Counts a refusal.
    pub(super) fn add(&mut self, refused: &RefusedKey) {
        let has_room = self.lists.len() < MAX_LIMITS_WITH_KEYS;
        let list = match self.lists.get_mut(&refused.limit) {
            Some(own) => own,
            None if has_room => self.lists.entry(refused.limit).or_default(),
            None => &mut self.shared,
        };
        list.present.add(refused.key, || KeyCount {
            key: refused.key,
            count: 0,
            error: 0,
            limit: refused.limit.0,
            address: refused.address,
        });
    }

    /// The keys that a limit refused most in the present hour and in so many before it.
    pub(super) fn frequent(&self, limit: NameNumber, hours: u64, now: Nanos) -> FrequentKeys {
        let first = self.hour.saturating_sub(hours.min(HOURS));
        let began = Nanos::new(first.saturating_mul(HOUR.get())).saturating_sub(self.phase);
        let own = self.lists.get(&limit);
        let list = own.unwrap_or(&self.shared);
        let past = list.past.iter().filter(|(hour, _)| *hour >= first).map(|(_, counts)| counts);
        let counts: Vec<FrozenCounts> =
            std::iter::once(list.present.freeze()).chain(past.cloned()).collect();
        let mut keys = merged(&counts, limit);
        keys.sort_by_key(|key| std::cmp::Reverse((key.certain(), key.refused)));
        FrequentKeys {
            span: now.saturating_sub(began),
            total: counts.iter().map(|counts| counts.total).sum(),
            is_shared: own.is_none() && self.lists.len() >= MAX_LIMITS_WITH_KEYS,
            keys,
        }
    }
}

impl LimitKeys {
    /// Moves the counts of the hour that has ended to those before, and forgets what is too old in the hour that begins.
    fn end_hour(&mut self, ended: u64, begins: u64) {
        let counts = std::mem::take(&mut self.present);
        if counts.total() > 0 {
            self.past.push_front((ended, counts.freeze()));
        }
        self.past.retain(|(hour, _)| hour.saturating_add(HOURS) >= begins);
    }
}

/// The keys of one limit in several hours. In an hour whose list is full, a key that is not in it may have occurred as
/// often as the smallest of the list, which is added to its count and to its error (Agarwal and others, "Mergeable
/// summaries", 2012).
fn merged(hours: &[FrozenCounts], limit: NameNumber) -> Vec<FrequentKey> {
    let of_limit = hours
        .iter()
        .flat_map(|counts| counts.entries.iter())
        .filter(|entry| entry.limit == limit.0);
    let mut seen = HashSet::new();
    let distinct = of_limit.filter(|entry| seen.insert(entry.key));
    let sum = |entry: &KeyCount| {
        let mut key = FrequentKey { key: entry.key, refused: 0, error: 0, address: entry.address };
        for counts in hours {
            let (count, error) = match counts.find(entry.key) {
                Some(found) => (found.count, found.error),
                None => (counts.absent, counts.absent),
            };
            key.refused += u64::from(count);
            key.error += u64::from(error);
        }
        key
    };
    distinct.map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Nanos = Nanos::from_secs(1_800_000_000);

    fn refused(limit: u32, n: u64) -> RefusedKey {
        let key = KeyHash { high: n ^ u64::from(limit) << 40, low: n };
        RefusedKey { limit: NameNumber(limit), key, address: None }
    }

    fn hours(n: u64) -> Nanos {
        HOUR.saturating_mul(n)
    }

    #[test]
    fn hours_follow_each_other_and_are_forgotten_after_a_day() {
        // It starts at half past the hour.
        let date = EPOCH.saturating_add(Nanos::from_secs(1_800));
        let mut keys = RefusedKeys::new(Nanos::ZERO, date);
        let count = |keys: &RefusedKeys, asked: u64, now: Nanos| {
            let found = keys.frequent(NameNumber(1), asked, now);
            let times = found.keys.iter().find(|key| key.key.low == 7).map(|key| key.refused);
            (times, found.total, found.span.secs())
        };
        keys.add(&refused(1, 7));
        assert_eq!(count(&keys, 1, Nanos::from_secs(60)), (Some(1), 1, 60));
        let mut now = Nanos::from_secs(1_799);
        keys.advance(now);
        keys.add(&refused(1, 7));
        assert_eq!(count(&keys, 0, now), (Some(2), 2, 1_799));
        now = Nanos::from_secs(1_800);
        keys.advance(now);
        keys.add(&refused(1, 8));
        assert_eq!(count(&keys, 0, now), (None, 1, 0), "the next hour by the clock");
        assert_eq!(count(&keys, 1, now), (Some(2), 3, 1_800));
        for n in 1..=23 {
            now = Nanos::from_secs(1_800).saturating_add(hours(n));
            keys.advance(now);
        }
        assert_eq!(count(&keys, 24, now), (Some(2), 3, 1_800 + 23 * 3_600));
        assert_eq!(count(&keys, 23, now), (None, 1, 23 * 3_600));
        keys.advance(now.saturating_add(hours(1)));
        assert_eq!(count(&keys, 24, now), (None, 1, 23 * 3_600));
        keys.advance(now.saturating_add(hours(30)));
        assert!(keys.lists.is_empty(), "a quiet limit holds nothing");
        // A clock that seems to run back begins no hour.
        keys.advance(Nanos::ZERO);
        assert_eq!(keys.hour, keys.hour_of(now.saturating_add(hours(30))));
    }

    #[test]
    fn limits_beyond_the_bound_share_a_list() {
        let mut keys = RefusedKeys::new(Nanos::ZERO, EPOCH);
        let limits = u32::try_from(MAX_LIMITS_WITH_KEYS).unwrap() + 5;
        for limit in 1..=limits {
            (0..limit).for_each(|_| keys.add(&refused(limit, 7)));
        }
        for limit in 1..=limits {
            let found = keys.frequent(NameNumber(limit), 1, Nanos::SECOND);
            assert_eq!(found.is_shared, limit > 64, "{limit}");
            assert_eq!((found.keys.len(), found.keys[0].refused), (1, limit.into()));
        }
        let unknown = keys.frequent(NameNumber(0), 24, Nanos::SECOND);
        assert!(unknown.keys.is_empty());
    }

    /// A key that is refused in each of several hours, among so many others that the lists are full.
    #[test]
    fn counts_of_several_hours_stay_upper_bounds() {
        let mut keys = RefusedKeys::new(Nanos::ZERO, EPOCH);
        let mut now = Nanos::ZERO;
        let (mut heavy, mut light) = (0, 0);
        for hour in 0..5_u64 {
            now = hours(hour);
            keys.advance(now);
            for n in 0..20_000 {
                keys.add(&refused(1, 1_000 + n % (300 + hour * 700)));
                if n % 50 == 0 {
                    keys.add(&refused(1, 1));
                    heavy += 1;
                }
                if hour == 2 && n % 10 == 0 {
                    keys.add(&refused(1, 2));
                    light += 1;
                }
            }
        }
        let found = keys.frequent(NameNumber(1), 24, now);
        for (n, occurred) in [(1, heavy), (2, light)] {
            let key = found.keys.iter().find(|key| key.key.low == n).unwrap();
            assert!(key.refused >= occurred && key.refused - key.error <= occurred, "{key:?}");
        }
        assert!(found.keys.is_sorted_by_key(|key| std::cmp::Reverse(key.certain())));
    }

    /// Ten million keys that come once, from an attacker who wants to hide one that comes often.
    #[test]
    fn ten_million_different_keys_do_not_hide_a_frequent_key() {
        let mut keys = RefusedKeys::new(Nanos::ZERO, EPOCH);
        let mut often = 0_u64;
        for n in 0..10_000_000 {
            keys.add(&refused(1, 100 + n));
            if n % 200 == 0 {
                keys.add(&refused(1, 1));
                often += 1;
            }
        }
        let found = keys.frequent(NameNumber(1), 1, Nanos::SECOND);
        assert_eq!((found.keys.len(), found.total), (ENTRIES, 10_000_000 + often));
        let position = found.keys.iter().position(|key| key.key.low == 1).unwrap();
        let key = found.keys[position];
        assert!(key.refused >= often && key.refused - key.error <= often, "{key:?}");
        assert_eq!(position, 0, "{key:?}");
    }
}
