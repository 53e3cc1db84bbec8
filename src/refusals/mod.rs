//! The latest refusals, and the keys that each limit refuses most.
//!
//! ```text
//!   a refused request ──► ring of the last 65,536 refusals ──► answers: why this one, which were the latest
//!                                    │
//!                              ten times a second
//!                                    ▼
//!                         keys by limit and hour ──► answers: who is refused most
//! ```
//!
//! A refusal is a request that a limit stops: because it has no room, because the key is banned, because the store of the
//! limit fails, or because the request has no key that the limit can judge. Requests that are not clean, that match no
//! route, or that fail at their origin are none. It knows decisions and policies, but neither requests nor answers. What
//! must always hold: recording a refusal waits for nothing and costs a forwarded request nothing; memory is bounded
//! ([`REFUSALS_BYTES`], [`KEYS_BYTES`]) and taken as refusals come; keys are kept as hashes.

mod layout;
mod names;
mod reason;
mod record;
mod record_ring;
mod refused_keys;
mod space_saving;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::policy::{KeyHash, Policy};
use layout::RECORD_WORDS;
use names::{MAX_NAMES, NameTable};
use record::{RecordFilter, has_id, refused_keys};
use record_ring::{RecordRead, Ring, RingSlot, SLOTS_PER_BLOCK};
use refused_keys::{REFUSED_KEYS_BYTES, RefusedKeys};

pub use layout::{MAX_ID_BYTES, MAX_RECORDED_LIMITS};
pub use names::{AlgorithmNumber, NameNumber, PolicyNames, UNKNOWN_NAME};
pub use reason::RefusalReason;
pub use record::{RecordedCell, RecordedLimit, RecordedRefusal, RecordedSource};
pub use refused_keys::{FrequentKey, FrequentKeys, HOURS};
pub use write::RefusedRequest;

/// Refusals that are kept: the last hour of 18 refusals each second.
pub const MAX_REFUSALS: usize = 65_536;

/// The bytes of all refusals that are kept.
pub const REFUSALS_BYTES: usize = MAX_REFUSALS * size_of::<RingSlot<RECORD_WORDS>>();

/// The bytes that counts of keys and names of former configurations can take besides.
pub const KEYS_BYTES: usize = REFUSED_KEYS_BYTES + MAX_NAMES * 128;

/// How long a record that is being written is waited for before its keys count as missed.
const WRITING_TIME: Nanos = Nanos::SECOND;

/// The latest refusals.
pub struct RefusalLog {
    ring: Ring<RECORD_WORDS>,
    names: NameTable,
    counting: Mutex<KeyCounting>,
}

/// The counts of keys, and which record they have come to.
#[derive(Default)]
struct KeyCounting {
    /// `None` before the first call.
    keys: Option<RefusedKeys>,
    /// The number of the next record.
    next: u64,
    /// Since when that record is being written.
    waits_since: Option<Nanos>,
    /// Records that were overwritten or dropped before they were counted.
    missed: u64,
}

/// What is asked of the latest refusals.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalQuery<'q> {
    /// Only those of requests that arrived at this date or later.
    pub since: Nanos,
    /// Only those of this route.
    pub route: Option<&'q str>,
    /// Only those that this limit refused, or for which the request had no key.
    pub limit: Option<&'q str>,
    /// At most so many.
    pub count: usize,
}

/// The latest refusals that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestRefusals {
    /// The latest first.
    pub refusals: Vec<RecordedRefusal>,
    /// Whether there are more.
    pub has_more: bool,
}

/// A refusal that was looked for by its identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRefusal {
    /// The latest with this identifier.
    pub refusal: RecordedRefusal,
    /// How many earlier ones have the same identifier: a trusted peer has sent it several times.
    pub earlier: usize,
}

/// A name that no configuration of this process has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownName {
    /// Of a route.
    Route,
    /// Of a limit.
    Limit,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self {
            ring: Ring::new(MAX_REFUSALS / SLOTS_PER_BLOCK),
            names: NameTable::default(),
            counting: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for RefusalLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefusalLog").field("next", &self.ring.next()).finish_non_exhaustive()
    }
}

impl RefusalLog {
    /// The numbers of a policy's names, for its records.
    pub fn names_of(&self, policy: &Policy) -> PolicyNames {
        PolicyNames::of(policy, &self.names)
    }

    /// The name of a number.
    pub fn name(&self, number: NameNumber) -> Arc<str> {
        self.names.name(number)
    }

    /// Records a refused request. It waits for nothing.
    pub fn record(&self, refused: &RefusedRequest<'_>) {
        if let Some(reason) = RefusalReason::of(refused.decision) {
            self.ring.push(|slot| refused.write(reason, slot));
        }
    }

    /// The latest refusals that are asked for.
    ///
    /// # Errors
    /// The name of the route or of the limit is unknown.
    pub fn latest(&self, query: &RefusalQuery<'_>) -> Result<LatestRefusals, UnknownName> {
        let number = |name: Option<&str>, unknown: UnknownName| {
            name.map(|name| self.names.find(name).ok_or(unknown)).transpose()
        };
        let filter = RecordFilter {
            since: query.since,
            route: number(query.route, UnknownName::Route)?,
            limit: number(query.limit, UnknownName::Limit)?,
        };
        let mut latest = LatestRefusals::default();
        for record in self.ring.latest() {
            let is_full = latest.refusals.len() >= query.count;
            let read = self.ring.read(record, |slot| {
                filter.admits(slot).then(|| (!is_full).then(|| RecordedRefusal::read(slot)))
            });
            match read {
                RecordRead::Complete(Some(Some(refusal))) => latest.refusals.push(refusal),
                RecordRead::Complete(Some(None)) => {
                    latest.has_more = true;
                    break;
                }
                RecordRead::Complete(None) | RecordRead::Absent | RecordRead::Overwritten => {}
            }
        }
        Ok(latest)
    }

    /// The latest refusal of a request with this identifier.
    pub fn find(&self, request_id: &str) -> Option<FoundRefusal> {
        let id = request_id.as_bytes();
        let mut found: Option<FoundRefusal> = None;
        for record in self.ring.latest() {
            let is_first = found.is_none();
            let read = self.ring.read(record, |slot| {
                has_id(slot, id).then(|| is_first.then(|| RecordedRefusal::read(slot)))
            });
            match (read, &mut found) {
                (RecordRead::Complete(Some(Some(refusal))), None) => {
                    found = Some(FoundRefusal { refusal, earlier: 0 });
                }
                (RecordRead::Complete(Some(_)), Some(found)) => found.earlier += 1,
                _ => {}
            }
        }
        found
    }

    /// Counts the keys of the refusals since the last call. Housekeeping calls it ten times a second: between two calls the
    /// ring takes up to 65,536 refusals. `date`: that of `now` (monotonic).
    pub fn count_keys(&self, now: Nanos, date: Nanos) {
        let counting = &mut *self.counting.lock();
        let keys = counting.keys.get_or_insert_with(|| RefusedKeys::new(now, date));
        keys.advance(now);
        let end = self.ring.next();
        let oldest = end.saturating_sub(self.ring.capacity() as u64);
        counting.missed += oldest.saturating_sub(counting.next);
        counting.next = counting.next.max(oldest);
        while counting.next < end {
            match self.ring.read(counting.next, refused_keys) {
                RecordRead::Complete(refused) => {
                    refused.iter().flatten().for_each(|refused| keys.add(refused));
                }
                RecordRead::Overwritten => counting.missed += 1,
                RecordRead::Absent => {
                    let since = *counting.waits_since.get_or_insert(now);
                    if now.saturating_sub(since) < WRITING_TIME {
                        return;
                    }
                    counting.missed += 1;
                }
            }
            counting.waits_since = None;
            counting.next += 1;
        }
    }

    /// The keys that a limit refused most in the present hour and in so many before it, as far as they are counted.
    /// `None`: no configuration has had this limit.
    pub fn frequent_keys(&self, limit: &str, hours: u64, now: Nanos) -> Option<FrequentKeys> {
        let number = self.names.find(limit)?;
        let counting = self.counting.lock();
        let keys = counting.keys.as_ref();
        Some(keys.map(|keys| keys.frequent(number, hours, now)).unwrap_or_default())
    }

    /// The limit of a key that is among the kept refusals.
    pub fn limit_of(&self, key: KeyHash) -> Option<Arc<str>> {
        self.ring.latest().find_map(|record| match self.ring.read(record, refused_keys) {
            RecordRead::Complete(refused) => {
                let mut refused = refused.iter().flatten();
                refused.find(|refused| refused.key == key).map(|it| self.names.name(it.limit))
            }
            RecordRead::Absent | RecordRead::Overwritten => None,
        })
    }

    /// How many refusals were overwritten or dropped before their keys were counted.
    pub fn missed(&self) -> u64 {
        self.counting.lock().missed
    }

    /// How many refusals were dropped because another one was being written where they belong.
    pub fn dropped(&self) -> u64 {
        self.ring.dropped()
    }
}
