//! Bans and recent denials of keys, as this node knows them.
//!
//! A key that is denied too often within a time is banned. Records are kept in memory, in a fixed number of shards
//! of a fixed size. With a shared store, nodes share their bans (`redis/bans.rs`); this module only
//! queues them. It does not know requests, and nothing here waits for I/O.
//!
//! What always holds: memory is bounded, and a full shard drops the record that matters least, which is never a
//! ban while any other record is left.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

#[cfg(feature = "bin")]
use super::ban_record::SavedBan;
use super::ban_record::{BanRecord, Lift, UNREPORTED};
use crate::clock::Nanos;
use crate::policy::{KeyHash, Penalty};

/// Locks among which the keys are spread.
const SHARDS: usize = 1_024;

/// The largest number of records in a shard: 65,536 in all, which bounds the memory of a flood of denied keys. It is
/// small, because a full shard compares all its records to make room for a key.
const MAX_SHARD_RECORDS: usize = 64;

/// The largest number of changed keys that a shard lists. When there are more, all its records are saved.
const MAX_SHARD_CHANGES: usize = 2 * MAX_SHARD_RECORDS;

/// The largest number of bans that wait to be shared with other nodes.
const MAX_UNSHARED: usize = 4_096;

/// Denials and bans, by key. The hash of a key includes the name of its limit.
#[derive(Debug)]
pub struct Bans {
    shards: Box<[Mutex<BanShard>]>,
    /// Chooses the shard of a key. It is a secret of this process: the hash of a key may be known to anybody, and
    /// without the secret an attacker could aim at one shard.
    shard_hasher: RandomState,
    /// Bans that are not shared with other nodes yet.
    unshared: Mutex<Vec<Ban>>,
    /// How many bans were taken to be shared, and may not have been yet.
    untold: AtomicUsize,
    /// Bans that were made while the list of unshared bans was full. They are never shared.
    unshareable: AtomicU64,
    /// Whether a ban was ever made or received. Before the first one, no key is looked up.
    has_banned: AtomicBool,
    /// How often a record that mattered was dropped, or could not be made, for lack of room.
    evicted: AtomicU64,
    /// Whether changes are listed, to be saved.
    is_tracked: AtomicBool,
    /// Up to which report of a ban this node has heard of all, in microseconds by the clock of the shared store.
    heard: AtomicU64,
    /// The number of the latest change of operators that this node has made.
    made_changes: AtomicU64,
    knows_changes: AtomicBool,
    /// Whether everything was forgotten since [`Bans::take_forgotten`].
    is_forgotten: AtomicBool,
}

#[derive(Debug, Default)]
struct BanShard {
    records: HashMap<KeyHash, BanRecord>,
    /// Keys whose records have changed since they were last saved, each once; empty unless changes are tracked.
    changed: Vec<KeyHash>,
    /// Whether more keys have changed than the list holds.
    is_overfull: bool,
}

/// A ban that this node made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The banned key.
    pub key: KeyHash,
    /// The rule that banned it.
    pub rule: Penalty,
    /// When it was made (monotonic).
    pub at: Nanos,
    /// When it ends on this node (monotonic). An ended ban is not shared any more.
    pub until: Nanos,
    /// The number of the latest change of operators that this node had made before: later ones have forgiven its denials.
    pub made_changes: u64,
}

impl Default for Bans {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_hasher: RandomState::new(),
            unshared: Mutex::default(),
            untold: AtomicUsize::new(0),
            unshareable: AtomicU64::new(0),
            has_banned: AtomicBool::new(false),
            evicted: AtomicU64::new(0),
            is_tracked: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            made_changes: AtomicU64::new(0),
            knows_changes: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
        }
    }
}

impl Bans {
    /// How long a key is still banned at `now` (monotonic). `None`: it is not banned.
    pub fn remaining(&self, key: KeyHash, now: Nanos) -> Option<Nanos> {
        if !self.has_banned.load(Ordering::Relaxed) {
            return None;
        }
        let until = self.shard(key).lock().records.get(&key)?.until;
        (until > now).then(|| until.saturating_sub(now))
    }

    /// When the latest ban of a key ends or ended (monotonic), and when it was reported to the shared store, in microseconds by
    /// its clock, or [`UNREPORTED`]. `None`: no ban is known.
    pub fn latest_ban(&self, key: KeyHash) -> Option<(Nanos, u64)> {
        if !self.has_banned.load(Ordering::Relaxed) {
            return None;
        }
        let shard = self.shard(key).lock();
        let record = shard.records.get(&key)?;
        let BanRecord { until, reported_at, .. } = *record;
        // Of a ban that ended before this process began the end is zero.
        (until > Nanos::ZERO || reported_at > 0).then_some((until, reported_at))
    }

    /// Up to which report of a ban this node has heard of all, in microseconds by the clock of the shared store.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    /// Records that this node has heard of all bans that were reported until then.
    pub fn set_heard(&self, reported_at: u64) {
        self.heard.store(reported_at, Ordering::Release);
    }

    /// Records that this node has made all changes of operators up to this number.
    pub fn set_made_changes(&self, number: u64) {
        self.made_changes.store(number, Ordering::Release);
        self.knows_changes.store(true, Ordering::Release);
    }

    /// Whether it was ever known which changes operators have made.
    pub fn knows_changes(&self) -> bool {
        self.knows_changes.load(Ordering::Acquire)
    }

    /// Bans that are not shared yet, except those of `reset` keys, are for denials that no change up to this one has forgiven.
    pub fn vouch_unshared(&self, number: u64, reset: &[KeyHash]) {
        let mut unshared = self.unshared.lock();
        for ban in unshared.iter_mut().filter(|ban| !reset.contains(&ban.key)) {
            ban.made_changes = ban.made_changes.max(number);
        }
    }

    /// Whether the store was told of all bans of this node.
    pub fn are_told(&self) -> bool {
        let unshared = self.unshared.lock();
        unshared.is_empty() && self.untold.load(Ordering::Acquire) == 0
    }

    /// The store was told of the bans that were taken last.
    pub fn record_told(&self) {
        self.untold.store(0, Ordering::Release);
    }

    /// Forgets all denials and bans, because this node cannot know which of them operators have forgiven. The store tells of the
    /// bans in force again.
    pub fn forget_all(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let keys: Vec<KeyHash> = shard.records.drain().map(|(key, _)| key).collect();
            keys.into_iter().for_each(|key| self.list_changed(&mut shard, key));
        }
        self.is_forgotten.store(true, Ordering::Release);
    }

    /// Whether all bans were forgotten since this was asked last, and have to be heard of again.
    pub fn take_forgotten(&self) -> bool {
        self.is_forgotten.swap(false, Ordering::AcqRel)
    }

    /// How many denials of a key count now towards a ban by this node.
    pub fn denials(&self, key: KeyHash, now: Nanos) -> usize {
        let shard = self.shard(key).lock();
        shard.records.get(&key).map_or(0, |record| {
            let counts = |at: &&Nanos| now.saturating_sub(**at) < record.within;
            record.denials.iter().filter(counts).count()
        })
    }

    /// Records a denial. Returns the length of the ban, if the denial leads to one. A denial of a banned key does
    /// not count, nor does one in a shard that is full of banned keys.
    pub fn record_denial(&self, key: KeyHash, rule: &Penalty, now: Nanos) -> Option<Nanos> {
        let mut shard = self.shard(key).lock();
        let record = self.find_or_insert(&mut shard, key, Nanos::ZERO, now)?;
        if !record.add_denial(rule, now) {
            return None;
        }
        let length = record.ban(rule, now);
        drop(shard);
        self.record_own(key, rule, now, length);
        Some(length)
    }

    /// Bans a key at once, whatever this node has counted. `None`: it is banned already, or its shard is full of bans.
    pub fn ban(&self, key: KeyHash, rule: &Penalty, now: Nanos) -> Option<Nanos> {
        let mut shard = self.shard(key).lock();
        let record = self.find_or_insert(&mut shard, key, Nanos::ZERO, now)?;
        if record.until > now {
            return None;
        }
        (record.forgive, record.within) = (rule.forgive, rule.within);
        let length = record.ban(rule, now);
        drop(shard);
        self.record_own(key, rule, now, length);
        Some(length)
    }

    fn record_own(&self, key: KeyHash, rule: &Penalty, now: Nanos, length: Nanos) {
        self.has_banned.store(true, Ordering::Relaxed);
        let until = now.saturating_add(length);
        let made_changes = self.made_changes.load(Ordering::Acquire);
        let ban = Ban { key, rule: *rule, at: now, until, made_changes };
        self.queue_unshared(std::iter::once(ban));
    }

    /// Records a ban that the store reports, which ends or ended at `until`. The store's answer holds on every node. In a shard that
    /// is full of banned keys, the ban that ends first is dropped. `reported_at`: when it was reported, in microseconds by the
    /// store's clock.
    pub fn record_shared(&self, key: KeyHash, until: Nanos, reported_at: u64, now: Nanos) {
        let mut shard = self.shard(key).lock();
        if let Some(record) = self.find_or_insert(&mut shard, key, until, now) {
            if record.lift.is_some_and(|lift| lift.covers(reported_at, now)) {
                return;
            }
            // Its maker learns now when it was reported.
            let is_known = record.reported_at == reported_at || record.reported_at == UNREPORTED;
            if !is_known {
                record.denials.clear();
            }
            (record.until, record.reported_at) = (until, reported_at);
            self.has_banned.store(true, Ordering::Relaxed);
        }
    }

    /// Records a ban that a node made, as a shared store does, which counts the bans of all nodes (`redis/bans.lua`): a key
    /// that is banned is not banned again, and the ban is longer after earlier ones. Returns how long the key is banned now.
    #[cfg(feature = "bin")]
    pub(crate) fn record_reported(&self, ban: &Ban, now: Nanos) -> Nanos {
        let mut shard = self.shard(ban.key).lock();
        let Some(record) = self.find_or_insert(&mut shard, ban.key, ban.until, now) else {
            return ban.until.saturating_sub(now);
        };
        if record.until <= ban.at {
            record.forgive = ban.rule.forgive;
            record.ban(&ban.rule, ban.at);
        }
        record.until.saturating_sub(now)
    }

    /// Lifts the ban of a key, with everything that counts towards the next one.
    pub fn lift(&self, key: KeyHash) {
        let mut shard = self.shard(key).lock();
        shard.records.remove(&key);
        self.list_changed(&mut shard, key);
        drop(shard);
        self.unshared.lock().retain(|ban| ban.key != key);
    }

    /// Lifts a ban that was reported to the shared store until then, in microseconds by its clock, or that was not reported
    /// yet. One that was reported later stays, and one that is told later and was reported earlier is lifted already.
    pub fn lift_reported(&self, key: KeyHash, reported_until: u64, now: Nanos) {
        let mut shard = self.shard(key).lock();
        if let Some(record) = self.find_or_insert(&mut shard, key, Nanos::ZERO, now) {
            if record.reported_at != UNREPORTED && record.reported_at > reported_until {
                return;
            }
            let lift = Some(Lift { reported_until, heard_at: now });
            *record = BanRecord { lift, ..BanRecord::default() };
        }
        drop(shard);
        self.unshared.lock().retain(|ban| ban.key != key);
    }

    /// Forgets the denials of a key that count towards a ban. A ban in force stays.
    pub fn forget_denials(&self, key: KeyHash) {
        let mut shard = self.shard(key).lock();
        if let Some(record) = shard.records.get_mut(&key) {
            record.denials.clear();
            self.list_changed(&mut shard, key);
        }
    }

    /// Takes up to `max` bans of this node that are not shared with other nodes yet. Those are dropped that have ended so long ago
    /// that no denial counts any more which led to them.
    pub fn take_unshared(&self, max: usize, now: Nanos) -> Vec<Ban> {
        let mut unshared = self.unshared.lock();
        unshared.retain(|ban| ban.until.saturating_add(ban.rule.within.saturating_mul(2)) > now);
        let max = max.min(unshared.len());
        self.untold.store(max, Ordering::Release);
        unshared.drain(..max).collect()
    }

    /// Puts bans back that could not be shared, to be taken again.
    pub fn put_back_unshared(&self, bans: Vec<Ban>) {
        self.queue_unshared(bans.into_iter());
        self.record_told();
    }

    /// Takes the count of bans, made since the last call, that are never shared.
    pub fn take_unshareable(&self) -> u64 {
        self.unshareable.swap(0, Ordering::Relaxed)
    }

    /// The number of keys that are banned at `now`.
    pub fn count(&self, now: Nanos) -> usize {
        if !self.has_banned.load(Ordering::Relaxed) {
            return 0;
        }
        let banned = |shard: &Mutex<BanShard>| {
            shard.lock().records.values().filter(|record| record.until > now).count()
        };
        self.shards.iter().map(banned).sum()
    }

    /// How often a record that mattered was dropped, or could not be made, for lack of room.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn queue_unshared(&self, bans: impl ExactSizeIterator<Item = Ban>) {
        let mut unshared = self.unshared.lock();
        let room = MAX_UNSHARED.saturating_sub(unshared.len());
        let lost = bans.len().saturating_sub(room) as u64;
        self.unshareable.fetch_add(lost, Ordering::Relaxed);
        unshared.extend(bans.take(room));
    }

    fn shard(&self, key: KeyHash) -> &Mutex<BanShard> {
        &self.shards[(self.shard_hasher.hash_one(key) % SHARDS as u64) as usize]
    }

    /// Finds the record of a key, or inserts an empty one, for which a full shard drops a record. `until` is the
    /// end of the ban that is to be recorded. `None`: the shard is full of bans, none of which ends earlier.
    fn find_or_insert<'s>(
        &self,
        shard: &'s mut BanShard,
        key: KeyHash,
        until: Nanos,
        now: Nanos,
    ) -> Option<&'s mut BanRecord> {
        let records = &mut shard.records;
        if records.len() >= MAX_SHARD_RECORDS && !records.contains_key(&key) {
            let priorities = records.iter().map(|(key, record)| (record.priority(now), *key));
            let (lowest, dropped) = priorities.min_by_key(|(priority, _)| *priority)?;
            self.evicted.fetch_add(lowest.matters.into(), Ordering::Relaxed);
            if lowest.banned && lowest.until >= until {
                return None;
            }
            records.remove(&dropped);
        }
        self.list_changed(shard, key);
        Some(shard.records.entry(key).or_default())
    }

    /// Lists a key whose record is about to change, or is gone.
    fn list_changed(&self, shard: &mut BanShard, key: KeyHash) {
        if !self.is_tracked.load(Ordering::Relaxed) || shard.changed.contains(&key) {
            return;
        }
        match shard.changed.len() < MAX_SHARD_CHANGES {
            true => shard.changed.push(key),
            false => shard.is_overfull = true,
        }
    }

    /// From now on changed records are listed, to be saved.
    #[cfg(feature = "bin")]
    pub fn track_changes(&self) {
        self.is_tracked.store(true, Ordering::Relaxed);
    }

    /// Calls `save` with every record that has changed since the last call, or with all.
    #[cfg(feature = "bin")]
    pub fn save(&self, all: bool, mut save: impl FnMut(SavedBan)) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let changed = std::mem::take(&mut shard.changed);
            let takes_all = std::mem::take(&mut shard.is_overfull) || all;
            for key in &changed {
                save(SavedBan::of(*key, shard.records.get(key)));
            }
            if takes_all {
                let others = shard.records.iter().filter(|(key, _)| !changed.contains(key));
                others.for_each(|(key, record)| save(SavedBan::of(*key, Some(record))));
            }
        }
    }

    /// Puts back a saved record.
    #[cfg(feature = "bin")]
    pub fn restore(&self, saved: SavedBan, now: Nanos) {
        let SavedBan { high, low, record } = saved;
        let key = KeyHash { high, low };
        let mut shard = self.shard(key).lock();
        let Some(record) = record else {
            shard.records.remove(&key);
            self.list_changed(&mut shard, key);
            return;
        };
        let until = record.until;
        if let Some(restored) = self.find_or_insert(&mut shard, key, until, now) {
            // No directory has it.
            let reported_at = match restored.reported_at {
                0 if until > Nanos::ZERO => UNREPORTED,
                known => known,
            };
            *restored = BanRecord { reported_at, lift: restored.lift, ..record.into() };
            drop(shard);
            self.has_banned.fetch_or(until > Nanos::ZERO, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ban_record::MAX_REPLY_AGE;
    use super::*;

    const RULE: Penalty = Penalty {
        after: 5,
        within: Nanos::from_secs(600),
        ban: Nanos::from_secs(60),
        double_up_to: Nanos::from_secs(60),
        forgive: Nanos::from_secs(60),
        at_connection: false,
    };

    const MAX_RECORDS: usize = SHARDS * MAX_SHARD_RECORDS;

    const GUESSER: KeyHash = KeyHash { high: 0, low: 7 };

    /// The n-th other key. All end in the same bits, as an attacker who knows the hash function may choose them.
    fn other(n: u64) -> KeyHash {
        KeyHash { high: n << 32, low: n }
    }

    #[test]
    fn a_node_vouches_for_no_ban_of_a_key_that_was_reset_meanwhile() {
        let (bans, now) = (Bans::default(), Nanos::from_secs(1_000));
        for key in [GUESSER, other(1)] {
            assert!(bans.ban(key, &RULE, now).is_some());
        }
        bans.vouch_unshared(9, &[GUESSER]);
        assert!(!bans.are_told());
        let taken = bans.take_unshared(64, now);
        let made: Vec<_> = taken.iter().map(|ban| (ban.key, ban.made_changes)).collect();
        assert_eq!(made, [(GUESSER, 0), (other(1), 9)]);
        assert!(!bans.are_told(), "they are on their way");
        bans.put_back_unshared(taken);
        assert!(!bans.are_told());
        bans.take_unshared(64, now);
        bans.record_told();
        assert!(bans.are_told());
    }

    #[test]
    fn a_slow_guesser_is_banned_while_many_other_keys_are_denied() {
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
    fn a_key_with_several_denials_survives_a_flood_of_new_keys() {
        let bans = Bans::default();
        let mut now = Nanos::from_secs(1_000);
        assert_eq!([(); 4].map(|()| bans.record_denial(GUESSER, &RULE, now)), [None; 4]);
        for n in 1..3 * MAX_RECORDS as u64 {
            now = now.saturating_add(Nanos::new(10_000));
            bans.record_denial(other(n), &RULE, now);
        }
        assert!(bans.evicted() > MAX_RECORDS as u64, "{}", bans.evicted());
        assert!(bans.record_denial(GUESSER, &RULE, now).is_some());
    }

    #[test]
    fn denials_that_no_longer_count_are_dropped_first() {
        let bans = Bans::default();
        let then = Nanos::from_secs(1_000);
        for n in 0..2 * MAX_RECORDS as u64 {
            for _ in 0..4 {
                bans.record_denial(other(n), &RULE, then);
            }
        }
        let (now, evicted) = (then.saturating_add(RULE.within), bans.evicted());
        for n in 0..MAX_RECORDS as u64 / 4 {
            bans.record_denial(other(n << 8), &RULE, now);
        }
        assert_eq!(bans.evicted(), evicted, "nothing that counts was dropped");
    }

    #[test]
    fn ended_bans_of_other_nodes_are_known() {
        let (bans, now) = (Bans::default(), Nanos::from_secs(3));
        assert_eq!(bans.latest_ban(GUESSER), None);
        bans.record_denial(GUESSER, &RULE, now);
        assert_eq!(bans.latest_ban(GUESSER), None);
        bans.record_shared(GUESSER, now.saturating_sub(Nanos::from_secs(14)), 77, now);
        assert_eq!(bans.latest_ban(GUESSER), Some((Nanos::ZERO, 77)));
        assert_eq!((bans.denials(GUESSER, now), bans.remaining(GUESSER, now)), (0, None));
    }

    #[test]
    fn a_lift_leaves_bans_that_were_reported_later() {
        let (bans, now) = (Bans::default(), Nanos::from_secs(1_000));
        let until = now.saturating_add(Nanos::from_secs(60));
        let is_banned = |now| bans.remaining(GUESSER, now).is_some();
        // The lift is heard late: another ban was heard before it.
        bans.record_shared(GUESSER, until, 120, now);
        bans.lift_reported(GUESSER, 110, now);
        assert!(is_banned(now));
        bans.lift_reported(GUESSER, 120, now);
        assert!(!is_banned(now));
        // A reply from before the lift comes late.
        bans.record_shared(GUESSER, until, 120, now);
        assert!(!is_banned(now));
        bans.record_shared(GUESSER, until, 121, now);
        assert!(is_banned(now));
        // The key has no record yet.
        bans.lift_reported(other(1), 130, now);
        bans.record_shared(other(1), until, 130, now);
        assert_eq!(bans.remaining(other(1), now), None);
        // The clock of the store was set back.
        let later = now.saturating_add(MAX_REPLY_AGE);
        bans.record_shared(other(1), until, 5, later);
        assert!(bans.remaining(other(1), later).is_some());
    }

    #[test]
    fn a_lift_takes_back_a_ban_that_was_not_reported_yet() {
        let (bans, now) = (Bans::default(), Nanos::from_secs(1_000));
        assert!(bans.ban(GUESSER, &RULE, now).is_some());
        bans.lift_reported(GUESSER, 110, now);
        assert_eq!((bans.remaining(GUESSER, now), bans.take_unshared(9, now).len()), (None, 0));
        // It was on its way, and arrived in the store after the lift.
        bans.record_shared(GUESSER, now.saturating_add(Nanos::SECOND), 111, now);
        assert!(bans.remaining(GUESSER, now).is_some());
    }

    #[test]
    fn a_flood_of_new_keys_ends_no_ban() {
        let bans = Bans::default();
        let mut now = Nanos::from_secs(1_000);
        for n in 1..=1_000 {
            for guess in 1..=RULE.after {
                assert_eq!(bans.record_denial(other(n), &RULE, now).is_some(), guess == RULE.after);
            }
        }
        for n in 1_001..2 * MAX_RECORDS as u64 {
            now = now.saturating_add(Nanos::new(10_000));
            bans.record_denial(other(n), &RULE, now);
            bans.record_denial(other(n), &RULE, now);
        }
        assert_eq!(bans.count(now), 1_000);
        assert!((1..=1_000).all(|n| bans.remaining(other(n), now).is_some()));
    }

    #[test]
    fn in_full_shards_a_longer_ban_replaces_a_shorter_ban() {
        let bans = Bans::default();
        let now = Nanos::from_secs(1_000);
        for n in 1..=2 * MAX_RECORDS as u64 {
            bans.record_shared(other(n), now.saturating_add(Nanos::from_secs(n)), n, now);
        }
        assert_eq!(bans.count(now), MAX_RECORDS, "every record is a ban");
        let last = (2 * MAX_RECORDS as u64 - 1_000)..=(2 * MAX_RECORDS as u64);
        assert!(
            last.clone().all(|n| bans.remaining(other(n), now).is_some()),
            "the longest bans remain"
        );
        // A key that is not banned gets no record, and displaces none.
        bans.record_shared(GUESSER, now.saturating_add(Nanos::SECOND), 1, now);
        assert_eq!([(); 9].map(|()| bans.record_denial(GUESSER, &RULE, now)), [None; 9]);
        assert_eq!(bans.count(now), MAX_RECORDS);
        // One second before the last ban ends, all other records are stale.
        let later = now.saturating_add(Nanos::from_secs(2 * MAX_RECORDS as u64 - 1));
        assert_eq!((bans.count(later), bans.record_denial(GUESSER, &RULE, later)), (1, None));
        assert_eq!(
            [(); 4].map(|()| bans.record_denial(GUESSER, &RULE, later).is_some()),
            [false, false, false, true]
        );
    }
}
