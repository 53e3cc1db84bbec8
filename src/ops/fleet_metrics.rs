//! The part of `/metrics` that tells of the exchange of counts between nodes. It has the names of the metrics, as `metrics.rs`
//! has the others.

use prometheus::proto::{MetricFamily, MetricType};

use super::metric_family::{counter, family, gauge};
use crate::engine::{Engine, FleetOutcome, Generation};

/// Adds the families, if a limit counts over the fleet.
pub(super) fn fleet(engine: &Engine, generation: &Generation, families: &mut Vec<MetricFamily>) {
    let progress = engine.fleet_progress();
    let Some(lag) = progress.lag(engine.now().mono) else {
        return;
    };
    let (mut errors, mut keys) = (Vec::new(), Vec::new());
    for (index, limit) in generation.policy().indexed_limits() {
        let views: Vec<_> = generation.fleet_views(index).collect();
        if views.is_empty() {
            continue;
        }
        let labels = [("limit", &*limit.name)];
        let error = views.iter().map(|view| progress.error(view.tag())).fold(0.0, f64::max);
        errors.push(gauge(&labels, error));
        keys.push(gauge(&labels, views.iter().map(|view| view.keys()).sum::<usize>() as f64));
    }
    let calls = FleetOutcome::ALL
        .map(|outcome| counter(&[("outcome", outcome.name())], progress.calls(outcome)));
    let gauges = [
        (
            "tollgate_fleet_nodes",
            "Nodes that exchange counts, this one included, as the store told last.",
            vec![gauge(&[], f64::from(progress.nodes()))],
        ),
        (
            "tollgate_fleet_lag_seconds",
            "How old the latest answer of the store to an exchange is.",
            vec![gauge(&[], lag.get() as f64 / 1e9)],
        ),
        (
            "tollgate_fleet_error",
            "How far the nodes together may exceed the limit now, as a share of it, besides what arrives during two exchanges.",
            errors,
        ),
        ("tollgate_fleet_keys", "Keys that other nodes counted, as far as this node knows.", keys),
    ];
    families
        .extend(gauges.map(|(name, help, samples)| family(name, help, MetricType::GAUGE, samples)));
    families.push(family(
        "tollgate_fleet_calls_total",
        "Exchanges with the store, by how they ended; away: it was not asked, since it is away.",
        MetricType::COUNTER,
        calls.to_vec(),
    ));
    families.push(family(
        "tollgate_fleet_refused_chunks_total",
        "What other nodes published and this node left out: another key secret, another version, or made up.",
        MetricType::COUNTER,
        vec![counter(&[], progress.refused_chunks())],
    ));
}
