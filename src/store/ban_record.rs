//! What is known of the denials and bans of one key, and how much it matters.

use std::collections::VecDeque;

use crate::clock::Nanos;
#[cfg(feature = "bin")]
use crate::policy::KeyHash;
use crate::policy::Penalty;

/// A reply of the shared store is younger: the store's deadlines are shorter. After it a clock that was set back cannot be
/// mistaken for a late reply.
pub(super) const MAX_REPLY_AGE: Nanos = Nanos::from_secs(10);

/// Instead of a time: a ban was not reported yet.
pub const UNREPORTED: u64 = u64::MAX;

/// The denials and bans of one key. `last` repeats the last of `denials`, so that the priority of a record is computed
/// from the record itself: a full shard compares all its records for each new key.
#[derive(Debug, Default)]
pub(super) struct BanRecord {
    /// The times of the latest denials, at most as many as make a ban.
    pub(super) denials: VecDeque<Nanos>,
    /// The time of the latest denial.
    pub(super) last: Nanos,
    /// How long a denial counts.
    pub(super) within: Nanos,
    /// The end of the latest ban (monotonic). Zero: the key was never banned since this process began.
    pub(super) until: Nanos,
    /// When the latest ban was reported to the shared store, in microseconds by its clock. [`UNREPORTED`]: not yet, as far as is
    /// known. Zero: there was none.
    pub(super) reported_at: u64,
    /// The latest lift of a shared ban.
    pub(super) lift: Option<Lift>,
    /// Bans by this node that are not forgiven. Bans by other nodes are counted by the store, which makes the next
    /// ban longer and reports its length.
    pub(super) level: u32,
    /// One level is forgiven after this time without a ban.
    pub(super) forgive: Nanos,
}

/// A lift of which the shared store has told. A reply of the store from before it may come after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lift {
    /// The report of the latest ban that is lifted, in microseconds by the store's clock.
    pub(super) reported_until: u64,
    /// When this node heard of it (monotonic).
    pub(super) heard_at: Nanos,
}

/// A record as it is saved.
#[cfg(feature = "bin")]
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SavedBan {
    pub(super) high: u64,
    pub(super) low: u64,
    /// `None`: the key has no record any more.
    pub(super) record: Option<SavedBanRecord>,
}

#[cfg(feature = "bin")]
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedBanRecord {
    denials: Vec<Nanos>,
    within: Nanos,
    pub(super) until: Nanos,
    level: u32,
    forgive: Nanos,
}

/// How much a record matters. A full shard drops the record with the lowest priority. The fields are compared in
/// this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordPriority {
    /// Whether dropping the record loses anything: a ban, a level, or a denial that counts.
    pub(super) matters: bool,
    /// A ban is dropped after every other record.
    pub(super) banned: bool,
    /// Whether the key has a level.
    pub(super) was_banned: bool,
    /// Keys with more denials matter more: each key of a flood has one. A ban clears the denials of its key.
    pub(super) denials: usize,
    /// The ban that ends first is dropped first.
    pub(super) until: Nanos,
    /// Then the record with the oldest denial.
    pub(super) last: Nanos,
}

impl Lift {
    /// Whether a ban is lifted that the store tells of at `now` (monotonic).
    pub(super) fn covers(&self, reported_at: u64, now: Nanos) -> bool {
        reported_at <= self.reported_until && now.saturating_sub(self.heard_at) < MAX_REPLY_AGE
    }
}

impl BanRecord {
    /// Adds a denial, unless the key is banned. Returns whether the denials make a ban now.
    pub(super) fn add_denial(&mut self, rule: &Penalty, now: Nanos) -> bool {
        (self.forgive, self.within) = (rule.forgive, rule.within);
        if self.until > now {
            return false;
        }
        while self.denials.front().is_some_and(|at| now.saturating_sub(*at) >= rule.within) {
            self.denials.pop_front();
        }
        self.denials.push_back(now);
        self.last = now;
        self.denials.len() >= rule.after as usize
    }

    /// Bans the key and returns the length of the ban, which doubles with each ban that is not forgiven.
    pub(super) fn ban(&mut self, rule: &Penalty, now: Nanos) -> Nanos {
        let quiet = now.saturating_sub(self.until).get();
        let forgiven = quiet.checked_div(rule.forgive.get()).unwrap_or(0);
        let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
        let level = if self.until == Nanos::ZERO { 0 } else { self.level.saturating_sub(forgiven) };
        let length = rule.span(level);
        self.level = level.saturating_add(1);
        (self.until, self.reported_at) = (now.saturating_add(length), UNREPORTED);
        self.denials.clear();
        length
    }

    pub(super) fn priority(&self, now: Nanos) -> RecordPriority {
        let forgiven_at = self.until.saturating_add(self.forgive.saturating_mul(self.level.into()));
        let denial_counts = !self.denials.is_empty() && now.saturating_sub(self.last) < self.within;
        let banned = self.until > now;
        RecordPriority {
            matters: banned || denial_counts || (self.level > 0 && forgiven_at > now),
            banned,
            was_banned: self.level > 0,
            denials: self.denials.len(),
            until: self.until,
            last: self.last,
        }
    }
}

#[cfg(feature = "bin")]
impl SavedBan {
    /// The key.
    pub const fn key(&self) -> KeyHash {
        KeyHash { high: self.high, low: self.low }
    }

    /// When its latest ban ends (monotonic): zero if it was never banned. `None`: it has no record any more.
    pub fn until(&self) -> Option<Nanos> {
        self.record.as_ref().map(|record| record.until)
    }

    pub(super) fn of(key: KeyHash, record: Option<&BanRecord>) -> Self {
        let record = record.map(|record| SavedBanRecord {
            denials: record.denials.iter().copied().collect(),
            within: record.within,
            until: record.until,
            level: record.level,
            forgive: record.forgive,
        });
        Self { high: key.high, low: key.low, record }
    }
}

#[cfg(feature = "bin")]
impl From<SavedBanRecord> for BanRecord {
    fn from(saved: SavedBanRecord) -> Self {
        let SavedBanRecord { denials, within, until, level, forgive } = saved;
        let last = denials.last().copied().unwrap_or_default();
        let denials = denials.into();
        Self { denials, last, within, until, reported_at: 0, lift: None, level, forgive }
    }
}
