//! Counters of requests and refusals.
//!
//! They continue by name over all configurations, so a reload never resets them. They do not know the names of metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::origins::OriginCounters;
use crate::edge::ShedReason;
use crate::http::RejectReason;

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
}

impl RequestOutcome {
    /// Every outcome, in the order of the counters.
    pub const ALL: [Self; 4] = [Self::Forwarded, Self::Limited, Self::Rejected, Self::Failed];

    /// The label in the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Limited => "limited",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}

/// How the requests of one route ended, over all configurations.
#[derive(Debug, Default)]
pub struct RouteCounters([AtomicU64; RequestOutcome::ALL.len()]);

impl RouteCounters {
    pub(super) fn record(&self, outcome: RequestOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests ended with an outcome.
    pub fn get(&self, outcome: RequestOutcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

/// Counters of all traffic, over all configurations.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    routes: Mutex<HashMap<Arc<str>, Arc<RouteCounters>>>,
    origins: Mutex<HashMap<Arc<str>, Arc<OriginCounters>>>,
    reasons: [AtomicU64; RejectReason::ALL.len()],
    shed: [AtomicU64; ShedReason::ALL.len()],
}

impl TrafficCounters {
    /// The name under which requests without a route are counted. No route can have this name.
    pub const NO_ROUTE: &'static str = "";

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

    /// The counters of a route, made when it is first named.
    pub(super) fn route(&self, name: &Arc<str>) -> Arc<RouteCounters> {
        by_name(&self.routes, name)
    }

    /// The counters of an origin, made when it is first named.
    pub(super) fn origin(&self, name: &Arc<str>) -> Arc<OriginCounters> {
        by_name(&self.origins, name)
    }

    /// Every route that was ever configured, with its counters.
    pub fn routes(&self) -> Vec<(Arc<str>, Arc<RouteCounters>)> {
        sorted(&self.routes)
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
