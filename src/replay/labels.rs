//! What reports call the routes and limits of a policy.

use std::sync::Arc;

use super::names::{LimitLabel, Names};
use crate::clock::Nanos;
use crate::limit::TypedRate;
use crate::policy::{Count, Limit, Mode, Policy};

/// The names of a policy.
pub(super) fn names(policy: &Policy) -> Names {
    Names {
        routes: policy.routes.iter().map(|route| Arc::clone(&route.name)).collect(),
        limits: policy.limits.iter().map(label).collect(),
    }
}

fn label(limit: &Limit) -> LimitLabel {
    let (rate, window, algorithm, max_delay) = match &limit.count {
        Count::Estimate { rate, .. } => {
            (TypedRate(*rate).to_string(), rate.period(), "sliding_window", Nanos::ZERO)
        }
        Count::Exact { quota, .. } => {
            let rate = quota.rate();
            (TypedRate(rate).to_string(), rate.period(), quota.name(), quota.max_delay())
        }
        Count::InFlight { max } => {
            (format!("{max} at once"), Nanos::SECOND, "max_in_flight", Nanos::ZERO)
        }
    };
    let rollout = limit.terms.rollout;
    LimitLabel {
        name: Arc::clone(&limit.name),
        key: limit.key.to_string(),
        rate,
        window,
        algorithm,
        tier: limit.count.tier().name(),
        max_delay: (max_delay > Nanos::ZERO).then(|| format!("{max_delay:?}")),
        is_shadow: limit.mode == Mode::Shadow,
        rollout: (!rollout.is_complete())
            .then(|| format!("{} % of keys", f64::from(rollout.ppm) / 10_000.0)),
    }
}
