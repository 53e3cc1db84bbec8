//! Who is banned, and who was denied how often of late. On this node; a store of many nodes is
//! told of bans and tells of those that others made (`redis/bans.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::policy::{KeyHash, Penalty};

/// Locks among which the keys are spread.
const SHARDS: usize = 64;

/// Most keys of one shard whose denials are counted: 65,536 in all. Beyond that the stalest is
/// forgotten: a flood of denied keys costs no memory.
const MOST: usize = 1_024;

/// Most bans that wait to be told to the store.
const MOST_UNTOLD: usize = 4_096;

/// Denials and bans, by key. (A key's hash names its limit too.)
#[derive(Debug)]
pub struct Bans {
    shards: Box<[Mutex<HashMap<KeyHash, Record>>]>,
    /// Bans that the store has not been told of.
    untold: Mutex<Vec<Ban>>,
    /// Whether a ban was ever made or heard of: while none was, nobody is looked up.
    any: AtomicUsize,
}

/// A ban that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Of whom.
    pub key: KeyHash,
    /// By which rule.
    pub rule: Penalty,
}

#[derive(Debug, Default)]
struct Record {
    /// The times of the latest denials, at most as many as make a ban.
    denials: VecDeque<Nanos>,
    /// Banned until then (monotonic).
    until: Nanos,
    /// Bans that are not forgiven.
    level: u32,
    /// As long after a ban a level is forgiven.
    forgive: Nanos,
}

impl Default for Bans {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            untold: Mutex::default(),
            any: AtomicUsize::new(0),
        }
    }
}

impl Bans {
    /// How long a key is banned yet, at `now` (monotonic); `None`: it is not.
    pub fn left(&self, key: KeyHash, now: Nanos) -> Option<Nanos> {
        if self.any.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let until = self.shard(key).lock().get(&key)?.until;
        (until > now).then(|| until.saturating_sub(now))
    }

    /// Notes a denial. Says how long the ban is that it leads to, if it does.
    pub fn denied(&self, key: KeyHash, rule: &Penalty, now: Nanos) -> Option<Nanos> {
        let mut shard = self.shard(key).lock();
        if shard.len() >= MOST && !shard.contains_key(&key) {
            make_room(&mut shard, now);
        }
        let record = shard.entry(key).or_default();
        record.forgive = rule.forgive;
        if record.until > now {
            return None;
        }
        while record.denials.front().is_some_and(|at| now.saturating_sub(*at) >= rule.within) {
            record.denials.pop_front();
        }
        record.denials.push_back(now);
        if record.denials.len() < rule.after as usize {
            return None;
        }
        let span = record.ban(rule, now);
        drop(shard);
        self.any.store(1, Ordering::Relaxed);
        let mut untold = self.untold.lock();
        if untold.len() < MOST_UNTOLD {
            untold.push(Ban { key, rule: *rule });
        }
        Some(span)
    }

    /// The store says that a key is banned for so long yet: what it says holds on every node.
    pub fn heard(&self, key: KeyHash, left: Nanos, now: Nanos) {
        let mut shard = self.shard(key).lock();
        if shard.len() >= MOST && !shard.contains_key(&key) {
            make_room(&mut shard, now);
        }
        let record = shard.entry(key).or_default();
        record.until = now.saturating_add(left);
        record.denials.clear();
        self.any.store(1, Ordering::Relaxed);
    }

    /// Bans that were made here since the last call.
    pub fn take_untold(&self) -> Vec<Ban> {
        std::mem::take(&mut *self.untold.lock())
    }

    /// These could not be told: they are taken along next time.
    pub fn untold(&self, bans: Vec<Ban>) {
        let mut untold = self.untold.lock();
        let room = MOST_UNTOLD.saturating_sub(untold.len());
        untold.extend(bans.into_iter().take(room));
    }

    /// Keys that are banned at `now`.
    pub fn live(&self, now: Nanos) -> usize {
        let live = |shard: &Mutex<HashMap<KeyHash, Record>>| {
            shard.lock().values().filter(|record| record.until > now).count()
        };
        if self.any.load(Ordering::Relaxed) == 0 { 0 } else { self.shards.iter().map(live).sum() }
    }

    fn shard(&self, key: KeyHash) -> &Mutex<HashMap<KeyHash, Record>> {
        &self.shards[(key.high % SHARDS as u64) as usize]
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

    /// Whether nothing is lost with it.
    fn is_stale(&self, now: Nanos) -> bool {
        let forgiven = self.until.saturating_add(self.forgive.saturating_mul(self.level.into()));
        self.until <= now
            && (self.level == 0 || forgiven <= now)
            && self.denials.back().is_none_or(|at| now.saturating_sub(*at) > Nanos::SECOND)
    }
}

/// Forgets who has nothing to lose; if nobody is so, one who is not banned.
fn make_room(shard: &mut HashMap<KeyHash, Record>, now: Nanos) {
    shard.retain(|_, record| !record.is_stale(now));
    if shard.len() >= MOST {
        let last = |record: &Record| record.denials.back().copied().unwrap_or(record.until);
        let stalest = shard.iter().min_by_key(|(_, one)| (one.until > now, last(one)));
        let stalest = stalest.map(|(key, _)| *key);
        stalest.and_then(|key| shard.remove(&key));
    }
}
