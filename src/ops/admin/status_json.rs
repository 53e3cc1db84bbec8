//! `/status`: the state of the node as JSON.
//!
//! It reads what others count and changes nothing. Routes are not in it, because ten thousand of them would be a megabyte
//! on every refresh of a page; they have a listing of their own (`routes`). Names of fields are part of the admin API:
//! they may be added to, and none is renamed.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::AdminApi;
use crate::clock::Nanos;
use crate::engine::{Generation, LimitCounters, VerdictKind};
use crate::limit::TypedRate;
use crate::ops::log::timestamp;
use crate::ops::status::ReloadOutcome;
use crate::policy::{Count, Limit, LimitIndex};
use crate::proxy::Live;

impl AdminApi {
    /// What `/status` says of a configuration in force.
    pub(super) fn status_of(&self, live: &Live) -> Value {
        let now = self.engine.now();
        let generation = &live.generation;
        let limits = generation.policy().indexed_limits();
        let confirm = self.engine.confirm_table();
        let key_sets = live.key_sets(now.mono).map(|set| {
            json!({
                "set": &*set.name,
                "keys": set.keys,
                "age_seconds": set.age.map(|age| age.secs()),
                "failure": set.failure.map(|failure| failure.to_string()),
            })
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.status.is_ready(),
            "generation": generation.number(),
            "configuration": &*live.config_hash,
            "uptime_seconds": now.mono.saturating_sub(self.status.started().mono).secs(),
            "connections": self.connections.load(Ordering::Relaxed),
            "limits": limits.map(|limit| self.limit_status(generation, limit)).collect::<Vec<_>>(),
            "confirm_cells": confirm.live_cells(),
            "max_confirm_cells": confirm.cells(),
            "routes": generation.policy().routes.len(),
            "origins": origins(live),
            "store": self.store_status(),
            "key_sets": key_sets.collect::<Vec<_>>(),
            "last_reload": self.status.last().map(reload_json),
            "last_applied_reload": self.status.last_applied().map(reload_json),
        })
    }

    /// One limit: how it counts, how full it is, and its verdicts since the process started.
    fn limit_status(&self, generation: &Generation, (index, limit): (LimitIndex, &Limit)) -> Value {
        let cells = generation.cell_budget(index).map(crate::store::CellBudget::cells);
        let estimate = generation.estimate(index);
        let counters = generation.counters(index);
        let keys = limit.key.sources().iter().map(ToString::to_string);
        json!({
            "name": &*limit.name,
            "tier": limit.count.tier().name(),
            "algorithm": algorithm(&limit.count),
            "rate": rate(&limit.count),
            "key": keys.collect::<Vec<_>>(),
            "cells": cells,
            "max_cells": max_cells(generation, &limit.count),
            // As `tollgate_estimator_load_ratio`.
            "load": estimate.map(|estimate| {
                estimate.noise() as f64 / f64::from(estimate.rate().count())
            }),
            // As `tollgate_confirm_error`.
            "confirm_error": estimate
                .map(|estimate| estimate.confirm_error(self.engine.confirm_table())),
            "in_flight": generation.in_flight(index),
            "allowed": sum(counters, &[VerdictKind::Allowed, VerdictKind::OverflowAllowed]),
            "denied": sum(counters, &[VerdictKind::Denied, VerdictKind::OverflowDenied]),
            "shadow_denied": sum(counters, &[VerdictKind::ShadowDenied]),
            "degraded": sum(counters, &[VerdictKind::DegradedAllowed, VerdictKind::DegradedDenied]),
        })
    }

    fn store_status(&self) -> Value {
        let remote = self.engine.remote();
        json!({
            "kind": if remote.is_some() { "redis" } else { "embedded" },
            // The embedded store is in this process.
            "up": remote.is_none_or(|remote| remote.is_up()),
            "bytes": remote.map_or_else(|| self.engine.cell_bytes() as u64, |remote| remote.bytes()),
        })
    }
}

fn sum(counters: &LimitCounters, kinds: &[VerdictKind]) -> u64 {
    kinds.iter().map(|kind| counters.get(*kind)).sum()
}

/// The word of the configuration.
const fn algorithm(count: &Count) -> &'static str {
    match count {
        // The estimate tier has no other.
        Count::Estimate { .. } => "sliding_window",
        Count::Exact { quota, .. } => quota.name(),
        Count::InFlight { .. } => "max_in_flight",
    }
}

/// The rate as it is written, or the number of requests at once.
fn rate(count: &Count) -> String {
    match count {
        Count::Estimate { rate, .. } => TypedRate(*rate).to_string(),
        Count::Exact { quota, .. } => TypedRate(quota.rate()).to_string(),
        Count::InFlight { max } => max.to_string(),
    }
}

/// The bound of an exact limit: its own, or that of all limits together.
fn max_cells(generation: &Generation, count: &Count) -> Option<usize> {
    match count {
        Count::Exact { max_keys, .. } => Some(max_keys.unwrap_or(generation.policy().max_keys)),
        Count::Estimate { .. } | Count::InFlight { .. } => None,
    }
}

fn origins(live: &Live) -> Vec<Value> {
    let origins = live.origins.iter().map(|origin| {
        let servers = origin.health();
        let states = origin.reports().into_iter().map(|server| {
            json!({
                "server": &*server.label,
                "up": server.is_up,
                "left_out_for_seconds": server.left_out_for.map(|left| left.secs_ceil()),
            })
        });
        json!({
            "name": &*origin.config().name,
            "servers": servers.all,
            "healthy": servers.healthy,
            "states": states.collect::<Vec<_>>(),
        })
    });
    origins.collect()
}

/// How a reload went.
fn reload_json((at, outcome): (Nanos, ReloadOutcome)) -> Value {
    let at = timestamp(at.into());
    match outcome {
        ReloadOutcome::Applied { generation, report, changes } => json!({
            "at": at, "outcome": "applied", "generation": generation,
            "limits": report.to_string(), "changes": changes, "errors": [],
        }),
        ReloadOutcome::Refused { errors } => {
            json!({ "at": at, "outcome": "refused", "errors": errors })
        }
    }
}
