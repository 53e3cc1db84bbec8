//! What is counted of the requests that one limit judges.

use super::distinct::{KeyBudget, folded};
use super::example::{RequestExample, key_text};
use super::heaviest::HeaviestKeys;
use super::key_table::{KeyRequest, KeyTable, Refuses};
use super::over_time::{self, Bucket, TimeBuckets};
use super::window::SlotClock;
use crate::replay::judged::{AppliedRate, JudgedRequest, KeyResult, KeyVerdict};
use crate::replay::names::LimitLabel;

/// First refusals that are shown, each of another key.
const MAX_FIRST_REFUSALS: usize = 10;

/// Admitted requests that wait to be counted for their keys: the memory of so many keys is fetched at once.
const MAX_WAITING: usize = 64;

/// The counts of one limit.
pub(super) struct LimitTally {
    pub(super) judged: u64,
    pub(super) refused: u64,
    pub(super) shadow_refused: u64,
    pub(super) banned: u64,
    /// Judged by the rate of a plan, an override or a rule.
    pub(super) other_rate: u64,
    pub(super) units: u64,
    pub(super) refused_units: u64,
    pub(super) keys: KeyTable,
    pub(super) heaviest: HeaviestKeys,
    pub(super) first_refusals: Vec<RequestExample>,
    /// The keys of these.
    first_keys: Vec<u64>,
    pub(super) over_time: TimeBuckets,
    clock: SlotClock,
    /// Requests that are not yet counted for their keys, in order.
    waiting: Vec<KeyRequest>,
}

impl LimitTally {
    /// Counts for this limit, one of so many.
    pub(super) fn new(label: &LimitLabel, limits: usize) -> Self {
        Self {
            judged: 0,
            refused: 0,
            shadow_refused: 0,
            banned: 0,
            other_rate: 0,
            units: 0,
            refused_units: 0,
            keys: KeyTable::default(),
            heaviest: HeaviestKeys::new(limits),
            first_refusals: Vec::new(),
            first_keys: Vec::new(),
            over_time: TimeBuckets::new(),
            clock: SlotClock::new(label.window),
            waiting: Vec::with_capacity(MAX_WAITING),
        }
    }

    /// Counts a verdict. `bucket` is that of the request's time.
    pub(super) fn add(
        &mut self,
        request: &JudgedRequest<'_>,
        verdict: &KeyVerdict,
        bucket: usize,
        budget: &mut KeyBudget,
    ) {
        let refused = refusal(verdict);
        let key_request = KeyRequest {
            hash: folded(verdict.key),
            slot: self.clock.slot(request.at),
            cost: verdict.cost,
            refused,
        };
        self.judged += 1;
        self.units = self.units.saturating_add(u64::from(verdict.cost));
        self.other_rate += u64::from(verdict.rate == AppliedRate::Other);
        let counts = Bucket {
            requests: 1,
            refused: u64::from(refused == Some(Refuses::Enforced)),
            shadow_refused: u64::from(refused == Some(Refuses::Shadow)),
        };
        over_time::count(&mut self.over_time, bucket, counts);
        match refused {
            Some(effect) => {
                self.count_waiting(budget);
                self.keys.add(&key_request, budget);
                self.refuse(request, verdict, &key_request, effect);
            }
            None => {
                self.waiting.push(key_request);
                if self.waiting.len() == MAX_WAITING {
                    self.count_waiting(budget);
                }
            }
        }
    }

    /// Counts the requests that wait.
    pub(super) fn count_waiting(&mut self, budget: &mut KeyBudget) {
        self.keys.fetch(&self.waiting);
        for request in self.waiting.drain(..) {
            if !self.keys.add(&request, budget) {
                self.heaviest.admit(&request);
            }
        }
    }

    #[cold]
    fn refuse(
        &mut self,
        request: &JudgedRequest<'_>,
        verdict: &KeyVerdict,
        key_request: &KeyRequest,
        effect: Refuses,
    ) {
        match effect {
            Refuses::Enforced => self.refused += 1,
            Refuses::Shadow => self.shadow_refused += 1,
        }
        self.banned += u64::from(verdict.result == KeyResult::Banned);
        self.refused_units = self.refused_units.saturating_add(u64::from(verdict.cost));
        self.heaviest.refuse(key_request, request.at, || key_text(request, verdict));
        let hash = key_request.hash;
        if self.first_keys.len() < MAX_FIRST_REFUSALS && !self.first_keys.contains(&hash) {
            let key = key_text(request, verdict);
            self.first_keys.push(hash);
            self.first_refusals.push(RequestExample::of(request, None, Some(key)));
        }
    }
}

fn refusal(verdict: &KeyVerdict) -> Option<Refuses> {
    match (verdict.result.refuses(), verdict.shadow) {
        (false, _) => None,
        (true, false) => Some(Refuses::Enforced),
        (true, true) => Some(Refuses::Shadow),
    }
}
