//! What a tally found, as reports show it.

use std::cmp::Reverse;
use std::sync::Arc;

use super::distinct::KeyNumber;
use super::example::RequestExample;
use super::heaviest::HeavyKey;
use super::limit_tally::LimitTally;
use super::over_time::Bucket;
use super::{RouteTally, Tally};
use crate::clock::Nanos;
use crate::replay::names::LimitLabel;

/// The largest number of keys that is listed for a limit.
const MAX_TOP: usize = 1_000;

/// The counts of all requests.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The times of the first and the last request.
    pub span: Option<(Nanos, Nanos)>,
    /// By how much a request may have begun later than its time.
    pub uncertainty: Nanos,
    /// All requests.
    pub requests: u64,
    /// Those that are refused.
    pub refused: u64,
    /// Those that are refused although no limit refuses a key, as a request without a required key is.
    pub refused_without_key: u64,
    /// Those that are admitted, but that a limit in shadow mode would refuse.
    pub shadow_refused: u64,
    /// Those that were refused when they were logged.
    pub earlier: EarlierRefusals,
    /// The requests of each route, in the order of the policy.
    pub routes: Vec<RouteSummary>,
    /// Requests that no route matches.
    pub unrouted: u64,
    /// When the first bucket over time begins.
    pub over_time_from: Nanos,
    /// The length of each bucket.
    pub bucket_width: Nanos,
    /// All requests over time.
    pub over_time: Vec<Bucket>,
    /// The counts of each limit, in the order of the policy.
    pub limits: Vec<LimitSummary>,
}

/// Requests that were refused when they were logged. Earlier refusals hide demand: clients that are refused back off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlierRefusals {
    /// With status 429.
    pub too_many_requests: u64,
    /// With status 503.
    pub unavailable: u64,
}

/// The counts of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSummary {
    /// Its name.
    pub name: Arc<str>,
    /// Requests that it matches.
    pub requests: u64,
    /// Those that are refused.
    pub refused: u64,
}

/// The counts of one limit.
#[derive(Clone, Debug)]
pub struct LimitSummary {
    /// The limit.
    pub label: LimitLabel,
    /// Requests that it judged.
    pub judged: u64,
    /// Those that it refuses.
    pub refused: u64,
    /// Those that it would refuse without shadow mode.
    pub shadow_refused: u64,
    /// Refusals by a ban, of both kinds.
    pub banned: u64,
    /// Requests that were judged by the rate of a plan, an override or a rule.
    pub other_rate: u64,
    /// Units of all requests.
    pub units: u64,
    /// Units of the refused requests, of both kinds.
    pub refused_units: u64,
    /// Different keys.
    pub keys: KeyNumber,
    /// Those that are refused at least once.
    pub keys_refused: KeyNumber,
    /// Those that would be refused at least once without shadow mode.
    pub keys_shadow_refused: KeyNumber,
    /// How much the heaviest keys dominate; `None` without refusals.
    pub dominance: Option<Dominance>,
    /// The keys that are refused most.
    pub top: Vec<TopKey>,
    /// The first refusals of different keys.
    pub first_refusals: Vec<RequestExample>,
    /// The limit's requests over time, in the buckets of [`Summary::over_time`].
    pub over_time: Vec<Bucket>,
    /// The fewest and the largest number of refusals, if times are not exact. The tally leaves it empty.
    pub bounds: Option<(u64, u64)>,
}

impl LimitSummary {
    /// Refusals with and without effect.
    pub const fn found(&self) -> u64 {
        self.refused + self.shadow_refused
    }
}

/// How many refusals belong to few keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dominance {
    /// Refusals of the heaviest key.
    pub first: u64,
    /// Of the ten heaviest.
    pub first_10: u64,
    /// Of the hundred heaviest.
    pub first_100: u64,
    /// Of all keys.
    pub total: u64,
    /// Whether the three are lower bounds, because not every key could be counted.
    pub is_lower_bound: bool,
}

/// A key that is refused often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The key, as reports show it.
    pub key: Box<str>,
    /// Its requests.
    pub requests: u64,
    /// Those that are refused.
    pub refused: u64,
    /// Those that would be refused without shadow mode.
    pub shadow_refused: u64,
    /// The largest number of units in a window of the limit's length.
    pub peak_rate: u64,
    /// Its first refusal.
    pub first_refused: Nanos,
    /// Its last refusal.
    pub last_refused: Nanos,
    /// Whether the numbers are lower bounds.
    pub is_lower_bound: bool,
    /// Whether there may be a refusal before the first that is known.
    pub is_first_uncertain: bool,
}

impl Summary {
    pub(super) fn of(tally: Tally, top: usize) -> Self {
        let top = top.min(MAX_TOP);
        let (over_time_from, bucket_width) = tally.axis.origin();
        let route = |(name, route): (&Arc<str>, RouteTally)| RouteSummary {
            name: name.clone(),
            requests: route.requests,
            refused: route.refused,
        };
        let routes = tally.names.routes.iter().zip(tally.routes).map(route).collect();
        let axis = &tally.axis;
        let limit = |(label, mut limit): (&LimitLabel, LimitTally)| {
            let over_time = axis.filled(std::mem::take(&mut limit.over_time));
            LimitSummary { over_time, ..limit_summary(label, limit, top) }
        };
        Self {
            span: tally.span,
            uncertainty: tally.uncertainty,
            requests: tally.requests,
            refused: tally.refused,
            refused_without_key: tally.refused_without_key,
            shadow_refused: tally.shadow_refused,
            earlier: tally.earlier,
            routes,
            unrouted: tally.unrouted,
            over_time_from,
            bucket_width,
            limits: tally.names.limits.iter().zip(tally.limits).map(limit).collect(),
            over_time: axis.filled(tally.over_time),
        }
    }

    /// The keys of all limits and those that are refused. A client is counted for every limit that has a key of it.
    pub fn keys(&self) -> (KeyNumber, KeyNumber) {
        let none = KeyNumber::default();
        self.limits.iter().fold((none, none), |(keys, refused), limit| {
            (keys.plus(limit.keys), refused.plus(limit.keys_refused))
        })
    }
}

fn limit_summary(label: &LimitLabel, limit: LimitTally, top: usize) -> LimitSummary {
    let [keys, keys_refused, keys_shadow_refused] = limit.keys.numbers();
    LimitSummary {
        dominance: dominance(&limit),
        top: top_keys(&limit, top),
        label: label.clone(),
        judged: limit.judged,
        refused: limit.refused,
        shadow_refused: limit.shadow_refused,
        banned: limit.banned,
        other_rate: limit.other_rate,
        units: limit.units,
        refused_units: limit.refused_units,
        keys,
        keys_refused,
        keys_shadow_refused,
        first_refusals: limit.first_refusals,
        over_time: Vec::new(),
        bounds: None,
    }
}

fn dominance(limit: &LimitTally) -> Option<Dominance> {
    let total = limit.refused + limit.shadow_refused;
    let counted = limit.keys.iter().map(|key| key.found()).filter(|found| *found > 0);
    let others = limit.heaviest.iter().filter(|key| limit.keys.find(key.hash).is_none());
    let mut found: Vec<u64> = counted.chain(others.map(|key| key.count - key.error)).collect();
    let heaviest = 100.min(found.len());
    if heaviest < found.len() {
        found.select_nth_unstable_by_key(heaviest, |found| Reverse(*found));
        found.truncate(heaviest);
    }
    found.sort_unstable_by_key(|found| Reverse(*found));
    let of = |keys: usize| found.iter().take(keys).sum();
    (total > 0).then(|| Dominance {
        first: of(1),
        first_10: of(10),
        first_100: of(100),
        total,
        is_lower_bound: !limit.keys.is_complete(),
    })
}

fn top_keys(limit: &LimitTally, top: usize) -> Vec<TopKey> {
    let mut keys: Vec<TopKey> = limit.heaviest.iter().map(|key| top_key(limit, key)).collect();
    keys.sort_by(|a, b| {
        let order = |key: &TopKey| Reverse((key.refused + key.shadow_refused, key.requests));
        order(a).cmp(&order(b)).then_with(|| a.key.cmp(&b.key))
    });
    keys.truncate(top);
    keys
}

fn top_key(limit: &LimitTally, heavy: &HeavyKey) -> TopKey {
    let key = TopKey {
        key: heavy.text.clone(),
        requests: heavy.requests,
        refused: heavy.refused,
        shadow_refused: heavy.shadow_refused,
        peak_rate: u64::from(heavy.peak),
        first_refused: heavy.first,
        last_refused: heavy.last,
        is_lower_bound: true,
        is_first_uncertain: heavy.error > 0,
    };
    match limit.keys.find(heavy.hash) {
        None => key,
        Some(counted) => TopKey {
            requests: u64::from(counted.requests),
            refused: u64::from(counted.refused),
            shadow_refused: u64::from(counted.shadow_refused),
            peak_rate: u64::from(counted.peak),
            is_lower_bound: false,
            ..key
        },
    }
}
