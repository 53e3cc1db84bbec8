//! Bans, and recent denials by key. Both are kept on this node; with a shared store, nodes tell each
//! other of bans (`redis/bans.rs`).

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::policy::{KeyHash, Penalty};

/// Locks among which the keys are spread.
const SHARDS: usize = 1_024;

/// Most keys of one shard whose denials are counted: 65,536 in all, so a flood of denied keys costs no
/// memory. Small, since all records of a full shard are looked at to make room for a key.
const SHARD_KEYS: usize = 64;

/// Most bans that wait to be told to the store.
const MOST_UNTOLD: usize = 4_096;

/// Denials and bans, by key. (A key's hash names its limit too.)
#[derive(Debug)]
pub struct Bans {
    shards: Box<[Mutex<Shard>]>,
    /// Says in which shard a key is. A secret of this process: the hash of a key may be known to
    /// all, and a shard could be flooded by aim.
    spread: RandomState,
    /// Bans that the store has not been told of.
    untold: Mutex<Vec<Ban>>,
    /// Bans that were made while too many waited to be told.
    untellable: AtomicU64,
    /// Whether a ban was ever made or heard of: while none was, nobody is looked up.
    any: AtomicUsize,
    /// Records that were dropped, or never made, for want of room.
    forgotten: AtomicU64,
}

/// How much a record matters: where there is no room, the least goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Weight {
    /// Whether anything is lost with it: a ban, a level, or a denial that counts.
    matters: bool,
    /// No ban goes before what is none.
    banned: bool,
    /// Whether the key has been banned.
    was_banned: bool,
    /// A flood of new keys has one each; a key that was banned has none.
    denials: usize,
    /// The ban that ends first goes first.
    until: Nanos,
    /// Then the oldest.
    last: Nanos,
}

type Shard = HashMap<KeyHash, Record>;

/// A ban that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Of whom.
    pub key: KeyHash,
    /// By which rule.
    pub rule: Penalty,
    /// When it was made (monotonic).
    pub at: Nanos,
    /// When it ends here: then there is nothing to tell any more.
    pub until: Nanos,
}

#[derive(Debug, Default)]
struct Record {
    /// The times of the latest denials, at most as many as make a ban.
    denials: VecDeque<Nanos>,
    /// The latest one. (What weighs a record lies in it: that of a full shard are weighed for each new key.)
    last: Nanos,
    /// How long a denial counts.
    within: Nanos,
    /// Banned until then (monotonic).
    until: Nanos,
    /// Bans of this node that are not forgiven. Those that it heard of are counted by the store,
    /// which makes the next one longer and says so.
    level: u32,
    /// As long after a ban a level is forgiven.
    forgive: Nanos,
}

impl Default for Bans {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            spread: RandomState::new(),
            untold: Mutex::default(),
            untellable: AtomicU64::new(0),
            any: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
        }
    }
}

impl Bans {
    /// How long a key is banned yet, at `now` (monotonic); `None`: it is not.
    pub fn remaining(&self, key: KeyHash, now: Nanos) -> Option<Nanos> {
        if self.any.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let until = self.shard(key).lock().get(&key)?.until;
        (until > now).then(|| until.saturating_sub(now))
    }

    /// Notes a denial. Says how long the ban is that it leads to, if it does. Where there is room
    /// for banned keys only, the denial is not counted.
    pub fn record_denial(&self, key: KeyHash, rule: &Penalty, now: Nanos) -> Option<Nanos> {
        let mut shard = self.shard(key).lock();
        let record = self.record(&mut shard, key, Nanos::ZERO, now)?;
        (record.forgive, record.within) = (rule.forgive, rule.within);
        if record.until > now {
            return None;
        }
        while record.denials.front().is_some_and(|at| now.saturating_sub(*at) >= rule.within) {
            record.denials.pop_front();
        }
        record.denials.push_back(now);
        record.last = now;
        if record.denials.len() < rule.after as usize {
            return None;
        }
        let span = record.ban(rule, now);
        drop(shard);
        self.any.store(1, Ordering::Relaxed);
        let mut untold = self.untold.lock();
        if untold.len() < MOST_UNTOLD {
            untold.push(Ban { key, rule: *rule, at: now, until: now.saturating_add(span) });
        } else {
            self.untellable.fetch_add(1, Ordering::Relaxed);
        }
        Some(span)
    }

    /// The store says that a key is banned for so long yet: what it says holds on every node. Where
    /// there is room for banned keys only, the ban that ends first goes.
    pub fn record_shared(&self, key: KeyHash, left: Nanos, now: Nanos) {
        let until = now.saturating_add(left);
        let mut shard = self.shard(key).lock();
        if let Some(record) = self.record(&mut shard, key, until, now) {
            record.until = until;
            record.denials.clear();
            self.any.store(1, Ordering::Relaxed);
        }
    }

    /// Bans that were made here and not told yet, at most `max` at once; those that have ended are
    /// forgotten.
    pub fn take_unshared(&self, max: usize, now: Nanos) -> Vec<Ban> {
        let mut untold = self.untold.lock();
        untold.retain(|ban| ban.until > now);
        let max = max.min(untold.len());
        untold.drain(..max).collect()
    }

    /// These could not be told: they are taken along next time.
    pub fn put_back_unshared(&self, bans: Vec<Ban>) {
        let mut untold = self.untold.lock();
        let room = MOST_UNTOLD.saturating_sub(untold.len());
        let lost = bans.len().saturating_sub(room) as u64;
        self.untellable.fetch_add(lost, Ordering::Relaxed);
        untold.extend(bans.into_iter().take(room));
    }

    /// How many bans were made since the last time this was asked, which no other node will be told of.
    pub fn take_unshareable(&self) -> u64 {
        self.untellable.swap(0, Ordering::Relaxed)
    }

    /// Keys that are banned at `now`.
    pub fn count(&self, now: Nanos) -> usize {
        let live = |shard: &Mutex<Shard>| {
            shard.lock().values().filter(|record| record.until > now).count()
        };
        if self.any.load(Ordering::Relaxed) == 0 { 0 } else { self.shards.iter().map(live).sum() }
    }

    /// Records that were dropped while they counted, or never made, for want of room.
    pub fn evicted(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Shard> {
        &self.shards[(self.spread.hash_one(key) % SHARDS as u64) as usize]
    }

    /// A key's record, a new one if need be. `until`: how long the key is to be banned. `None`: all
    /// others matter more.
    fn record<'s>(
        &self,
        shard: &'s mut Shard,
        key: KeyHash,
        until: Nanos,
        now: Nanos,
    ) -> Option<&'s mut Record> {
        if shard.len() >= SHARD_KEYS && !shard.contains_key(&key) {
            let weighed = shard.iter().map(|(key, record)| (record.weight(now), *key));
            let (weight, least) = weighed.min_by_key(|(weight, _)| *weight)?;
            self.forgotten.fetch_add(weight.matters.into(), Ordering::Relaxed);
            if weight.banned && weight.until >= until {
                return None;
            }
            shard.remove(&least);
        }
        Some(shard.entry(key).or_default())
    }
}

impl Record {
    /// A ban: twice as long for each that is not forgiven.
    fn ban(&mut self, rule: &Penalty, now: Nanos) -> Nanos {
        let quiet = now.saturating_sub(self.until).get();
        let forgiven = quiet.checked_div(rule.forgive.get()).unwrap_or(0);
        let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
        let level = if self.until == Nanos::ZERO { 0 } else { self.level.saturating_sub(forgiven) };
        let span = rule.span(level);
        self.level = level.saturating_add(1);
        self.until = now.saturating_add(span);
        self.denials.clear();
        span
    }

    fn weight(&self, now: Nanos) -> Weight {
        let forgiven = self.until.saturating_add(self.forgive.saturating_mul(self.level.into()));
        let counts = !self.denials.is_empty() && now.saturating_sub(self.last) < self.within;
        let banned = self.until > now;
        Weight {
            matters: banned || counts || (self.level > 0 && forgiven > now),
            banned,
            was_banned: self.level > 0,
            denials: self.denials.len(),
            until: self.until,
            last: self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Penalty = Penalty {
        after: 5,
        within: Nanos::from_secs(600),
        ban: Nanos::from_secs(60),
        double_up_to: Nanos::from_secs(60),
        forgive: Nanos::from_secs(60),
        at_connection: false,
    };

    const ALL: usize = SHARDS * SHARD_KEYS;

    const GUESSER: KeyHash = KeyHash { high: 0, low: 7 };

    /// The n-th of other keys: all of them end in the same bits, as an attacker may choose them who knows
    /// how keys are hashed.
    fn other(n: u64) -> KeyHash {
        KeyHash { high: n << 32, low: n }
    }

    #[test]
    fn who_guesses_slowly_is_banned_while_others_are_denied() {
        let bans = Bans::default();
        for guess in 0..5 {
            let now = Nanos::from_secs(1_000 + 10 * guess);
            let banned = bans.record_denial(GUESSER, &RULE, now);
            assert_eq!(banned.is_some(), guess == 4, "guess {guess}");
            for n in 0..25_000 {
                let now = now.saturating_add(Nanos::new(400_000 * n));
                assert_eq!(bans.record_denial(other(1 + guess * 25_000 + n), &RULE, now), None);
            }
        }
    }

    #[test]
    fn what_was_denied_more_than_once_outlives_any_flood_of_new_keys() {
        let bans = Bans::default();
        let mut now = Nanos::from_secs(1_000);
        assert_eq!([(); 4].map(|()| bans.record_denial(GUESSER, &RULE, now)), [None; 4]);
        for n in 1..3 * ALL as u64 {
            now = now.saturating_add(Nanos::new(10_000));
            bans.record_denial(other(n), &RULE, now);
        }
        assert!(bans.evicted() > ALL as u64, "{}", bans.evicted());
        assert!(bans.record_denial(GUESSER, &RULE, now).is_some());
    }

    #[test]
    fn denials_that_no_longer_count_make_room_first() {
        let bans = Bans::default();
        let then = Nanos::from_secs(1_000);
        for n in 0..2 * ALL as u64 {
            for _ in 0..4 {
                bans.record_denial(other(n), &RULE, then);
            }
        }
        let (now, forgotten) = (then.saturating_add(RULE.within), bans.evicted());
        for n in 0..ALL as u64 / 4 {
            bans.record_denial(other(n << 8), &RULE, now);
        }
        assert_eq!(bans.evicted(), forgotten, "nothing that counts was dropped");
    }

    #[test]
    fn a_flood_lifts_no_ban() {
        let bans = Bans::default();
        let mut now = Nanos::from_secs(1_000);
        for n in 1..=1_000 {
            for guess in 1..=RULE.after {
                assert_eq!(bans.record_denial(other(n), &RULE, now).is_some(), guess == RULE.after);
            }
        }
        for n in 1_001..2 * ALL as u64 {
            now = now.saturating_add(Nanos::new(10_000));
            bans.record_denial(other(n), &RULE, now);
            bans.record_denial(other(n), &RULE, now);
        }
        assert_eq!(bans.count(now), 1_000);
        assert!((1..=1_000).all(|n| bans.remaining(other(n), now).is_some()));
    }

    #[test]
    fn bans_beyond_the_room_replace_those_that_end_first() {
        let bans = Bans::default();
        let now = Nanos::from_secs(1_000);
        for n in 1..=2 * ALL as u64 {
            bans.record_shared(other(n), Nanos::from_secs(n), now);
        }
        assert_eq!(bans.count(now), ALL, "all that there is room for");
        let last = (2 * ALL as u64 - 1_000)..=(2 * ALL as u64);
        assert!(last.clone().all(|n| bans.remaining(other(n), now).is_some()), "the longest");
        // Whoever is not banned has no room, and takes nobody's.
        bans.record_shared(GUESSER, Nanos::SECOND, now);
        assert_eq!([(); 9].map(|()| bans.record_denial(GUESSER, &RULE, now)), [None; 9]);
        assert_eq!(bans.count(now), ALL);
        // A second before nobody is banned any more, everybody else is stale.
        let later = now.saturating_add(Nanos::from_secs(2 * ALL as u64 - 1));
        assert_eq!((bans.count(later), bans.record_denial(GUESSER, &RULE, later)), (1, None));
        assert_eq!(
            [(); 4].map(|()| bans.record_denial(GUESSER, &RULE, later).is_some()),
            [false, false, false, true]
        );
    }
}
