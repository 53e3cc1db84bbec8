//! What is counted of the requests that a policy judged.
//!
//! What must always hold: memory is bounded, whatever the log's size. Each limit keeps [`MAX_KEYS_PER_LIMIT`] keys, all
//! limits [`MAX_KEYS`]; keys above that are estimated, and the report says so. A request that is admitted costs neither
//! an allocation nor a text, apart from the entry of a new key.

mod distinct;
mod example;
mod heaviest;
mod key_table;
mod limit_tally;
mod over_time;
mod summary;
mod window;

use std::sync::Arc;

pub use distinct::KeyNumber;
pub(super) use distinct::{DistinctKeys, KeyBudget, folded};
pub use example::RequestExample;
pub(super) use example::key_text;
pub use key_table::{MAX_KEYS, MAX_KEYS_PER_LIMIT};
pub use over_time::{Bucket, MAX_BUCKETS};
pub use summary::{Dominance, EarlierRefusals, LimitSummary, RouteSummary, Summary, TopKey};

use self::limit_tally::LimitTally;
use self::over_time::{TimeAxis, TimeBuckets};
use super::judged::JudgedRequest;
use super::names::Names;
use crate::clock::Nanos;

/// Counts judged requests.
pub struct Tally {
    names: Arc<Names>,
    span: Option<(Nanos, Nanos)>,
    uncertainty: Nanos,
    requests: u64,
    refused: u64,
    refused_without_key: u64,
    /// Requests that no limit refuses, but a limit in shadow mode would.
    shadow_refused: u64,
    earlier: EarlierRefusals,
    routes: Vec<RouteTally>,
    unrouted: u64,
    limits: Vec<LimitTally>,
    axis: TimeAxis,
    over_time: TimeBuckets,
    budget: KeyBudget,
}

#[derive(Clone, Copy, Default)]
struct RouteTally {
    requests: u64,
    refused: u64,
}

impl Tally {
    /// Begins to count for the policy with these names.
    pub fn new(names: Arc<Names>) -> Self {
        let limits = names.limits.len();
        let limit = |label| LimitTally::new(label, limits);
        Self {
            routes: vec![RouteTally::default(); names.routes.len()],
            limits: names.limits.iter().map(limit).collect(),
            names,
            span: None,
            uncertainty: Nanos::ZERO,
            requests: 0,
            refused: 0,
            refused_without_key: 0,
            shadow_refused: 0,
            earlier: EarlierRefusals::default(),
            unrouted: 0,
            axis: TimeAxis::new(),
            over_time: TimeBuckets::new(),
            budget: KeyBudget::new(MAX_KEYS),
        }
    }

    /// Counts a request. Indices of routes and limits that have no name are left out.
    pub fn add(&mut self, request: &JudgedRequest<'_>) {
        let at = request.at;
        let (first, last) = self.span.unwrap_or((at, at));
        self.span = Some((first.min(at), last.max(at)));
        self.uncertainty = self.uncertainty.max(request.uncertainty);
        self.requests += 1;
        self.refused += u64::from(request.refused);
        match request.status {
            Some(429) => self.earlier.too_many_requests += 1,
            Some(503) => self.earlier.unavailable += 1,
            _ => {}
        }
        self.add_route(request);
        let bucket = self.bucket(at);
        let (mut has_refused_key, mut is_shadow_refused) = (false, false);
        for verdict in request.verdicts {
            if let Some(limit) = self.limits.get_mut(verdict.limit) {
                limit.add(request, verdict, bucket, &mut self.budget);
            }
            let refuses = verdict.result.refuses();
            has_refused_key |= refuses && !verdict.shadow;
            is_shadow_refused |= refuses && verdict.shadow;
        }
        self.refused_without_key += u64::from(request.refused && !has_refused_key);
        let shadow_refused = u64::from(is_shadow_refused && !request.refused);
        self.shadow_refused += shadow_refused;
        let counts = Bucket { requests: 1, refused: u64::from(request.refused), shadow_refused };
        over_time::count(&mut self.over_time, bucket, counts);
    }

    /// What was counted, with the `top` keys of each limit that are refused most, at most 1,000.
    pub fn finish(mut self, top: usize) -> Summary {
        self.limits.iter_mut().for_each(|limit| limit.count_waiting(&mut self.budget));
        Summary::of(self, top)
    }

    fn add_route(&mut self, request: &JudgedRequest<'_>) {
        let Some(index) = request.route else {
            self.unrouted += 1;
            return;
        };
        if let Some(route) = self.routes.get_mut(index) {
            route.requests += 1;
            route.refused += u64::from(request.refused);
        }
    }

    fn bucket(&mut self, at: Nanos) -> usize {
        let (index, change) = self.axis.bucket(at);
        if let Some(change) = change {
            change.apply(&mut self.over_time);
            self.limits.iter_mut().for_each(|limit| change.apply(&mut limit.over_time));
        }
        index
    }
}
