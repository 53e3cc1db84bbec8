//! The form of the payloads in a state directory: postcard's, of the records below.
//!
//! Bytes come from outside, so nothing in them can panic. A change of a record's fields is a change of the format.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::limit::{Cell, QuotaNumbers, Rate};
use crate::policy::{KeyHash, KeyRule, Ruling};
use crate::store::{Grant, SavedCell};

/// The group of a frame of quotas that adds to those of the frame before. Any other frame of quotas replaces them.
pub(super) const MORE_QUOTAS: u8 = 1;

/// A quota that cells name.
#[derive(Serialize, Deserialize)]
pub(super) struct QuotaRecord {
    pub(super) number: u32,
    pub(super) limit: String,
    pub(super) numbers: QuotaNumbers,
    pub(super) windows: Vec<Nanos>,
    pub(super) denies_after_crash: bool,
}

impl QuotaRecord {
    /// At least as many bytes as it takes in a payload: a name, and numbers of at most ten bytes each.
    pub(super) fn max_bytes(&self) -> usize {
        self.limit.len() + 10 * (self.windows.len() + 10)
    }
}

/// A cell. The key's bytes are written as they are: their bits are random, so no other form is shorter.
#[derive(Serialize)]
struct CellRecord<'c> {
    high: [u8; 8],
    low: [u8; 8],
    cell: Option<(u32, &'c Cell)>,
    grant: Option<(u32, Nanos)>,
}

#[derive(Deserialize)]
struct ReadCellRecord {
    high: [u8; 8],
    low: [u8; 8],
    cell: Option<(u32, Cell)>,
    grant: Option<(u32, Nanos)>,
}

/// A rule that an operator made for a key.
#[derive(Serialize, Deserialize)]
pub(super) struct RuleRecord {
    limit: String,
    high: u64,
    low: u64,
    ruling: RulingRecord,
    until: Nanos,
    made_at: Nanos,
    by: String,
    reason: String,
}

#[derive(Serialize, Deserialize)]
enum RulingRecord {
    Ban,
    Allow,
    Deny,
    Rate { count: u32, period: Nanos, burst: Option<u32> },
}

/// A cell as it was read.
pub(super) struct RestoredCell {
    pub(super) key: KeyHash,
    /// The number of its quota, and the cell. `None`: the key has none any more.
    pub(super) cell: Option<(u32, Cell)>,
    pub(super) grant: Option<Grant>,
}

impl From<&KeyRule> for RuleRecord {
    fn from(rule: &KeyRule) -> Self {
        Self {
            limit: rule.limit.to_string(),
            high: rule.key.high,
            low: rule.key.low,
            ruling: match rule.ruling {
                Ruling::Ban => RulingRecord::Ban,
                Ruling::Allow => RulingRecord::Allow,
                Ruling::Deny => RulingRecord::Deny,
                Ruling::Rate { rate, burst } => {
                    RulingRecord::Rate { count: rate.count(), period: rate.period(), burst }
                }
            },
            until: rule.until,
            made_at: rule.made_at,
            by: rule.by.to_string(),
            reason: rule.reason.to_string(),
        }
    }
}

/// The rules of a payload, and how many could not be read.
pub(super) fn read_rules(payload: &[u8]) -> (Vec<KeyRule>, u64) {
    let Some(records) = decoded::<Vec<RuleRecord>>(payload) else {
        return (Vec::new(), 1);
    };
    let count = records.len();
    let rules: Vec<KeyRule> = records.into_iter().filter_map(RuleRecord::rule).collect();
    let unreadable = (count - rules.len()) as u64;
    (rules, unreadable)
}

impl RuleRecord {
    fn rule(self) -> Option<KeyRule> {
        let ruling = match self.ruling {
            RulingRecord::Ban => Ruling::Ban,
            RulingRecord::Allow => Ruling::Allow,
            RulingRecord::Deny => Ruling::Deny,
            RulingRecord::Rate { count, period, burst } => {
                Ruling::Rate { rate: Rate::new(count, period).ok()?, burst }
            }
        };
        Some(KeyRule {
            limit: self.limit.into(),
            key: KeyHash { high: self.high, low: self.low },
            ruling,
            until: self.until,
            made_at: self.made_at,
            version: None,
            by: self.by.into(),
            reason: self.reason.into(),
        })
    }
}

pub(super) fn append(payload: &mut Vec<u8>, saved: SavedCell<'_>) {
    let SavedCell { key, cell, grant } = saved;
    let record = CellRecord {
        high: key.high.to_le_bytes(),
        low: key.low.to_le_bytes(),
        cell,
        grant: grant.map(|grant| (grant.units, grant.until)),
    };
    let bytes = std::mem::take(payload);
    // Writing to memory cannot fail.
    *payload = postcard::to_extend(&record, bytes).unwrap_or_default();
}

pub(super) fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // Writing to memory cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// The value in a payload. `None`: it is no such value.
pub(super) fn decoded<T: DeserializeOwned>(payload: &[u8]) -> Option<T> {
    postcard::from_bytes(payload).ok()
}

/// The cells in a payload. `None`: nothing can be read from there on.
pub(super) fn read_cells(payload: &[u8]) -> impl Iterator<Item = Option<RestoredCell>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok((record, behind)) = postcard::take_from_bytes::<ReadCellRecord>(rest) else {
            rest = &[];
            return Some(None);
        };
        rest = behind;
        let ReadCellRecord { high, low, cell, grant } = record;
        let key = KeyHash { high: u64::from_le_bytes(high), low: u64::from_le_bytes(low) };
        let grant = grant.map(|(units, until)| Grant { units, until });
        Some(Some(RestoredCell { key, cell, grant }))
    })
}
