//! `scope`: over which nodes a limit counts. A scope that the limit cannot keep is refused.

use crate::config::reader::Located;
use crate::policy::{Count, Limit, OnStoreFailure, Scope, WhenFull};

/// Reads `scope`. `None`: a mistake.
pub(super) fn scope(at: Option<&Located<'_>>) -> Option<Scope> {
    match at {
        None => Some(Scope::default()),
        Some(at) => at.choice(&[("node", Scope::Node), ("fleet", Scope::Fleet)]),
    }
}

/// Records a mistake if the limit cannot count over the fleet, or counts there in any case.
/// `has_when_full`: whether `when_full` is written. `has_shared_store`: whether the file names a store that nodes share.
pub(super) fn refuse_fleet(
    at: &Located<'_>,
    limit: &Limit,
    has_when_full: bool,
    has_shared_store: bool,
) {
    if limit.scope == Scope::Node {
        return;
    }
    if !has_shared_store {
        at.error_with(
            "nodes exchange counts through a store that they share, and there is none",
            "write store: { redis: { url: redis://127.0.0.1:6379 } }, or leave scope out",
        );
        return;
    }
    let is_useful = match &limit.count {
        Count::Estimate { .. } => true,
        // The keys that a node has no room for are estimated, and only while it counts by itself.
        Count::Exact { when_full, on_store_failure, .. } => {
            let estimates = has_when_full
                && *when_full == WhenFull::Estimate
                && *on_store_failure == OnStoreFailure::Local;
            limit.penalty.is_some() || estimates
        }
        // Refused together with the other keys that do not belong to it.
        Count::InFlight { .. } => return,
    };
    if !is_useful {
        at.error_with(
            "an exact limit in a shared store is one number for all nodes already",
            "leave it out, or write a penalty, whose denials then count over all nodes, or when_full: estimate and \
             on_store_failure: local, so that all nodes together estimate the keys without room",
        );
    }
}
