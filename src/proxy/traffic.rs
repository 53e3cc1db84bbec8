//! Counters of requests and refusals, and the log of the latest refusals.
//!
//! They continue by name over all configurations, so a reload never resets them. They do not know the names of metrics.
//! What must always hold: however many routes there are and were, at most [`MAX_DETAILED_ROUTES`] have details of their
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::origins::OriginCounters;
use super::route_details::RouteDetails;
use crate::clock::Nanos;
use crate::edge::ShedReason;
use crate::http::RejectReason;
use crate::refusals::RefusalLog;

/// How a request ended: the label of `tollgate_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The origin answered.
    Forwarded,
    /// A limit refused it.
    Limited,
    /// It was not valid, or matched no route.
    Rejected,
    /// The origin did not answer.
    Failed,
    /// Its listener sent it to https.
    Redirected,
}

impl RequestOutcome {
    /// Every outcome, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Forwarded, Self::Limited, Self::Rejected, Self::Failed, Self::Redirected];

    /// The label in the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Limited => "limited",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Redirected => "redirected",
        }
    }
}

/// How the requests of one route ended, over all configurations.
#[derive(Debug, Default)]
pub struct RouteCounters {
    outcomes: [AtomicU64; RequestOutcome::ALL.len()],
    /// Of the limited ones, those whose key came from a credential.
    limited_authenticated: AtomicU64,
}

impl RouteCounters {
    pub(super) fn record(&self, outcome: RequestOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests ended with an outcome.
    pub fn get(&self, outcome: RequestOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// How many of the limited requests were limited for a key from a credential.
    pub fn limited_authenticated(&self) -> u64 {
        self.limited_authenticated.load(Ordering::Relaxed)
    }
}

/// How a request ended, for its route.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestEnd {
    pub(super) outcome: RequestOutcome,
    /// The status of the response; 0 if there was none.
    pub(super) status: u16,
    /// Bytes of the request's body that were read.
    pub(super) request_bytes: u64,
    /// Bytes of the response's body that were sent.
    pub(super) response_bytes: u64,
}

/// Everything that is counted of one route.
#[derive(Clone, Debug)]
pub(super) struct RouteTraffic {
    outcomes: Arc<RouteCounters>,
    details: Arc<RouteDetails>,
}

impl RouteTraffic {
    /// Records a request that has ended.
    pub(super) fn record(&self, end: &RequestEnd) {
        self.outcomes.record(end.outcome);
        self.details.record(end.status, end.request_bytes, end.response_bytes);
    }

    /// Records that a limited request had a key from a credential.
    pub(super) fn record_limited_authenticated(&self) {
        self.outcomes.limited_authenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// Records when the response of a timed request began, if it did, and when it ended.
    pub(super) fn record_times(&self, began: Nanos, first_byte: Option<Nanos>, ended: Nanos) {
        self.details.duration.record_span(ended.saturating_sub(began));
        if let Some(at) = first_byte {
            self.details.first_byte.record_span(at.saturating_sub(began));
        }
    }
}

/// The largest number of routes with details of their own. With more, a scrape would be larger than a megabyte.
pub(super) const MAX_DETAILED_ROUTES: usize = 256;

/// Counters of all traffic, over all configurations.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    routes: Mutex<HashMap<Arc<str>, Arc<RouteCounters>>>,
    /// At most [`MAX_DETAILED_ROUTES`].
    details: Mutex<HashMap<Arc<str>, Arc<RouteDetails>>>,
    /// The details of requests without a route.
    no_route: Arc<RouteDetails>,
    /// The details of all routes that have none of their own.
    other_routes: Arc<RouteDetails>,
    origins: Mutex<HashMap<Arc<str>, Arc<OriginCounters>>>,
    reasons: [AtomicU64; RejectReason::ALL.len()],
    shed: [AtomicU64; ShedReason::ALL.len()],
    refusals: RefusalLog,
}

impl TrafficCounters {
    /// The name under which requests without a route are counted. No route can have this name.
    pub const NO_ROUTE: &'static str = "";

    /// The name under which the details of routes without details of their own are shown. No route can have this name.
    pub const OTHER_ROUTES: &'static str = "(other)";

    /// The latest refusals.
    pub const fn refusals(&self) -> &RefusalLog {
        &self.refusals
    }

    pub(super) fn record_rejection(&self, reason: RejectReason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records that something was refused or closed for want of room.
    pub fn record_shed(&self, why: ShedReason) {
        self.shed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was refused or closed for want of room.
    pub fn times_shed(&self, why: ShedReason) -> u64 {
        self.shed[why as usize].load(Ordering::Relaxed)
    }

    /// How many requests were refused for a reason.
    pub fn rejected(&self, reason: RejectReason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }

    /// Makes room for the details of new routes: forgets those of routes that are in no configuration any more, once
    /// there is no room.
    pub(super) fn forget_old_details(&self) {
        let mut details = self.details.lock();
        if details.len() >= MAX_DETAILED_ROUTES {
            details.retain(|_, held| Arc::strong_count(held) > 1);
        }
    }

    /// The counters of a route, made when it is first named.
    pub(super) fn route(&self, name: &Arc<str>) -> RouteTraffic {
        let mut details = self.details.lock();
        let has_room = details.len() < MAX_DETAILED_ROUTES;
        let details = match details.get(name) {
            Some(own) => Arc::clone(own),
            None if has_room => Arc::clone(details.entry(Arc::clone(name)).or_default()),
            None => Arc::clone(&self.other_routes),
        };
        RouteTraffic { outcomes: by_name(&self.routes, name), details }
    }

    /// The counters of requests without a route.
    pub(super) fn no_route(&self) -> RouteTraffic {
        let outcomes = by_name(&self.routes, &Arc::from(Self::NO_ROUTE));
        RouteTraffic { outcomes, details: Arc::clone(&self.no_route) }
    }

    /// The counters of an origin, made when it is first named.
    pub(super) fn origin(&self, name: &Arc<str>) -> Arc<OriginCounters> {
        by_name(&self.origins, name)
    }

    /// Every route that was ever configured, with its counters.
    pub fn routes(&self) -> Vec<(Arc<str>, Arc<RouteCounters>)> {
        sorted(&self.routes)
    }

    /// The details of routes by name, of requests without a route, and of all other routes together.
    pub fn route_details(&self) -> Vec<(Arc<str>, Arc<RouteDetails>)> {
        let mut all = vec![(Arc::from(Self::NO_ROUTE), Arc::clone(&self.no_route))];
        all.extend(sorted(&self.details));
        all.push((Arc::from(Self::OTHER_ROUTES), Arc::clone(&self.other_routes)));
        all
    }

    /// Every origin that was ever configured, with its counters.
    pub fn origins(&self) -> Vec<(Arc<str>, Arc<OriginCounters>)> {
        sorted(&self.origins)
    }
}

fn by_name<T: Default>(map: &Mutex<HashMap<Arc<str>, Arc<T>>>, name: &Arc<str>) -> Arc<T> {
    Arc::clone(map.lock().entry(Arc::clone(name)).or_default())
}

fn sorted<T>(map: &Mutex<HashMap<Arc<str>, Arc<T>>>) -> Vec<(Arc<str>, Arc<T>)> {
    let mut all: Vec<_> = map.lock().iter().map(|(n, t)| (Arc::clone(n), Arc::clone(t))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_bounded_and_those_of_former_routes_make_room() {
        let counters = TrafficCounters::default();
        let load = |names: std::ops::Range<usize>| -> Vec<RouteTraffic> {
            counters.forget_old_details();
            names.map(|name| counters.route(&Arc::from(name.to_string()))).collect()
        };
        let end = RequestEnd {
            outcome: RequestOutcome::Forwarded,
            status: 200,
            request_bytes: 0,
            response_bytes: 1,
        };
        let sent = |name: &str| {
            let all = counters.route_details();
            all.iter().find(|(own, _)| **own == *name).map(|(_, details)| details.sent())
        };
        let first = load(0..MAX_DETAILED_ROUTES + 50);
        first.iter().for_each(|route| route.record(&end));
        assert_eq!(counters.route_details().len(), MAX_DETAILED_ROUTES + 2);
        assert_eq!(sent(TrafficCounters::OTHER_ROUTES), Some(50));
        assert_eq!((sent("0"), sent("300")), (Some(1), None));
        // A reload without most of them, while requests still hold the former configuration.
        let second = load(250..320);
        assert_eq!(sent("0"), Some(1), "a request may still end under it");
        drop(first);
        let third = load(250..320);
        drop(second);
        third.iter().for_each(|route| route.record(&end));
        assert_eq!((sent("0"), sent("250"), sent("300")), (None, Some(2), Some(1)));
        assert!(counters.route_details().len() <= MAX_DETAILED_ROUTES + 2);
        assert_eq!(sent(TrafficCounters::OTHER_ROUTES), Some(50), "it never decreases");
    }
}
