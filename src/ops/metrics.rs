//! `/metrics`: this file, and for the exchange of counts `fleet_metrics.rs`, have the names that dashboards depend on.
//!
//! The rooms below count in plain atomics; this file reads them at each scrape. What must always hold: labels come from
//! the configuration or from closed lists, never from a request.

use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::audit::{AuditLog, ChangeKind};
use super::fleet_metrics::fleet;
use super::line_writer::LineWriter;
use super::metric_family::{counter, family, gauge, histogram, histogram_in_units};
use super::status::Status;
use crate::edge::{CertificateStore, MemoryBudget, MemoryKind, ShedReason};
use crate::engine::{CandidateComparison, Engine, VerdictKind};
use crate::http::RejectReason;
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::policy::{Count, Tier, UnreadCost};
use crate::proxy::{CODE_LABELS, Live, OriginCounters, RequestOutcome, TrafficCounters};
use crate::state::SaveOutcome;
use crate::store::redis::CallOutcome;
use crate::tokens::{self, FetchOutcome, TokenError};

/// The framework's version, for `tollgate_build_info`.
const PINGORA: &str = "0.9.1";

/// The counters that a scrape reads.
#[derive(Clone, Copy)]
pub struct Sources<'s> {
    /// Counters of decisions, bans and the store.
    pub engine: &'s Engine,
    /// The configuration in force.
    pub live: &'s Live,
    /// Counters of requests, refusals and origins.
    pub counters: &'s TrafficCounters,
    /// Counters of reloads.
    pub status: &'s Status,
    /// The number of clients' connections.
    pub connections: &'s AtomicUsize,
    /// Memory that clients make the process use.
    pub memory: &'s MemoryBudget,
    /// The certificates of the listeners.
    pub certificates: &'s CertificateStore,
    /// Changes by operators.
    pub audit: &'s AuditLog,
    /// What the system says of this process.
    pub process: &'s ProcessCollector,
}

/// Reads what the system says of this process. To be made when the process starts: it reads the time of the start once.
pub fn process_collector() -> ProcessCollector {
    ProcessCollector::for_self()
}

/// The text exposition format of Prometheus, version 0.0.4.
pub fn render(sources: Sources<'_>) -> String {
    let mut families = Vec::new();
    requests(sources, &mut families);
    route_details(sources, &mut families);
    decisions(sources, &mut families);
    units(sources, &mut families);
    requests_and_keys(sources, &mut families);
    key_sets(sources, &mut families);
    estimator(sources, &mut families);
    fleet(sources.engine, &sources.live.generation, &mut families);
    store(sources, &mut families);
    saved_state(sources, &mut families);
    handover(sources, &mut families);
    origins(sources, &mut families);
    server(sources, &mut families);
    certificates(sources, &mut families);
    operators(sources, &mut families);
    // It reads files below /proc. Without a free descriptor it knows nothing, and its families are left out.
    families.extend(sources.process.collect());
    // A family without a sample is left out, because some checkers report a HELP line without samples as a mistake.
    families.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
        log::error!("cannot render the metrics: {error}");
    }
    String::from_utf8(text).unwrap_or_default()
}

fn requests(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let mut samples = Vec::new();
    for (route, counters) in sources.counters.routes() {
        for outcome in RequestOutcome::ALL {
            let labels = [("route", &*route), ("outcome", outcome.name())];
            samples.push(counter(&labels, counters.get(outcome)));
        }
    }
    families.push(family(
        "tollgate_requests_total",
        "Requests by route and how they ended.",
        MetricType::COUNTER,
        samples,
    ));
    let rejected = RejectReason::ALL
        .map(|reason| counter(&[("reason", reason.name())], sources.counters.rejected(reason)));
    families.push(family(
        "tollgate_rejected_total",
        "Requests refused before or without a limit, by reason.",
        MetricType::COUNTER,
        rejected.to_vec(),
    ));
    let shed = ShedReason::ALL
        .map(|reason| counter(&[("reason", reason.name())], sources.counters.times_shed(reason)));
    families.push(family(
        "tollgate_shed_total",
        "What was refused or cut because there was no room for it, by what was short.",
        MetricType::COUNTER,
        shed.to_vec(),
    ));
}

/// Statuses, bytes and durations by route.
fn route_details(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let (mut codes, mut received, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    let (mut durations, mut first_bytes) = (Vec::new(), Vec::new());
    for (route, details) in sources.counters.route_details() {
        let label = ("route", &*route);
        let counted = CODE_LABELS.into_iter().zip(details.codes());
        let is_silent = details.codes().iter().all(|count| *count == 0);
        // A sample of each code and bucket of each route would be a large scrape; most would always be zero.
        codes.extend(
            counted
                .filter(|(_, count)| *count > 0)
                .map(|(code, count)| counter(&[label, ("code", code)], count)),
        );
        if is_silent {
            continue;
        }
        received.push(counter(&[label], details.received()));
        sent.push(counter(&[label], details.sent()));
        durations.push(histogram(&[label], &details.duration));
        first_bytes.push(histogram(&[label], &details.first_byte));
    }
    let counters = [
        ("tollgate_responses_total", "Responses by route and status.", codes),
        ("tollgate_received_bytes_total", "Bytes of the bodies of requests, by route.", received),
        ("tollgate_sent_bytes_total", "Bytes of the bodies of responses, by route.", sent),
    ];
    families.extend(
        counters.map(|(name, help, samples)| family(name, help, MetricType::COUNTER, samples)),
    );
    families.push(family(
        "tollgate_request_duration_seconds",
        "From the head of a request to the end of its response; one in 8 is timed, no tunnel is.",
        MetricType::HISTOGRAM,
        durations,
    ));
    families.push(family(
        "tollgate_time_to_first_byte_seconds",
        "From the head of a request to the head of its response; one in 8 is timed, no tunnel is.",
        MetricType::HISTOGRAM,
        first_bytes,
    ));
}

/// When the certificates of listeners expire.
fn certificates(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let samples = sources.certificates.expiries().into_iter().map(|expiry| {
        let file = expiry.file.display().to_string();
        let labels = [("listener", &*expiry.listener), ("certificate", &*file)];
        gauge(&labels, expiry.not_after as f64)
    });
    families.push(family(
        "tollgate_certificate_expiry_timestamp_seconds",
        "When the first certificate of the chain in this file expires.",
        MetricType::GAUGE,
        samples.collect(),
    ));
}

fn decisions(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let generation = &sources.live.generation;
    let (mut verdicts, mut cells) = (Vec::new(), Vec::new());
    for (index, limit) in generation.policy().indexed_limits() {
        let tier = limit.count.tier().name();
        for kind in VerdictKind::ALL {
            let labels = [("limit", &*limit.name), ("tier", tier), ("verdict", kind.name())];
            verdicts.push(counter(&labels, generation.counters(index).get(kind)));
        }
        if let Some(budget) = generation.cell_budget(index) {
            cells.push(gauge(&[("limit", &limit.name)], budget.cells() as f64));
        }
    }
    families.push(family(
        "tollgate_decisions_total",
        "Verdicts by limit.",
        MetricType::COUNTER,
        verdicts,
    ));
    let durations = [Tier::Estimate, Tier::Exact]
        .map(|tier| histogram(&[("tier", tier.name())], sources.engine.durations().of(tier)));
    families.push(family(
        "tollgate_decision_duration_seconds",
        "How long decisions take, by the dearest tier asked; one in 64 is timed.",
        MetricType::HISTOGRAM,
        durations.to_vec(),
    ));
    families.push(family(
        "tollgate_cells",
        "Cells of the embedded store.",
        MetricType::GAUGE,
        cells,
    ));
}

/// What requests were charged, of every limit that counts units.
fn units(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let generation = &sources.live.generation;
    let policy = generation.policy();
    let with_response_cost = policy.limits_with_response_cost();
    let (mut charged, mut refunded, mut unread) = (Vec::new(), Vec::new(), Vec::new());
    for (index, limit) in policy.indexed_limits() {
        if matches!(limit.count, Count::InFlight { .. }) {
            continue;
        }
        let (name, counters) = (("limit", &*limit.name), generation.counters(index));
        charged.push(counter(&[name], counters.charged()));
        if with_response_cost.contains(&index) || limit.status_rules.depends_on_status() {
            refunded.push(counter(&[name], counters.refunded()));
        }
        if with_response_cost.contains(&index) {
            unread.extend(UnreadCost::ALL.map(|reason| {
                counter(&[name, ("reason", reason.name())], counters.unread_costs(reason))
            }));
        }
    }
    let all = [
        (
            "tollgate_charged_units_total",
            "Units charged to requests that passed, refunded ones included.",
            charged,
        ),
        ("tollgate_refunded_units_total", "Units given back because of the answer.", refunded),
        (
            "tollgate_unread_costs_total",
            "Answers whose cost is not known, so that the reserve stays charged.",
            unread,
        ),
    ];
    families
        .extend(all.map(|(name, help, samples)| family(name, help, MetricType::COUNTER, samples)));
}

/// Requests in flight and delayed, bans, candidates and tokens.
fn requests_and_keys(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let generation = &sources.live.generation;
    let (mut in_flight, mut bans, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
    for (index, limit) in generation.policy().indexed_limits() {
        let name = ("limit", &*limit.name);
        if let Some(held) = generation.in_flight(index) {
            in_flight.push(gauge(&[name], held as f64));
        }
        let counters = generation.counters(index);
        if limit.penalty.is_some() {
            bans.push(counter(&[name], counters.bans()));
        }
        if limit.terms.candidate.is_some() {
            candidates.extend(CandidateComparison::ALL.map(|kind| {
                counter(&[name, ("verdict", kind.name())], counters.candidate_verdicts(kind))
            }));
        }
    }
    let waiting = gauge(&[], sources.engine.delayed_requests() as f64);
    let banned = gauge(&[], sources.engine.bans().count(sources.engine.now().mono) as f64);
    let forgotten = counter(&[], sources.engine.bans().evicted());
    let refused = TokenError::ALL.map(|error| counter(&[("reason", error.name())], error.count()));
    let all = [
        ("tollgate_in_flight", "What requests in flight hold.", MetricType::GAUGE, in_flight),
        (
            "tollgate_waiting",
            "Requests that wait for their turn.",
            MetricType::GAUGE,
            vec![waiting],
        ),
        ("tollgate_banned_keys", "Keys that are banned now.", MetricType::GAUGE, vec![banned]),
        ("tollgate_bans_total", "Bans that this node made.", MetricType::COUNTER, bans),
        (
            "tollgate_bans_forgotten_total",
            "Keys whose denials were forgotten: too many keys were denied at once.",
            MetricType::COUNTER,
            vec![forgotten],
        ),
        (
            "tollgate_candidate_verdicts_total",
            "How often a candidate agrees with the rate in force.",
            MetricType::COUNTER,
            candidates,
        ),
        (
            "tollgate_tokens_refused_total",
            "Signed tokens that were not believed.",
            MetricType::COUNTER,
            refused.to_vec(),
        ),
        (
            "tollgate_tokens_checked_total",
            "Signed tokens that were checked; one that is remembered is not checked again.",
            MetricType::COUNTER,
            vec![counter(&[], tokens::total_checks())],
        ),
    ];
    families.extend(all.map(|(name, help, kind, samples)| family(name, help, kind, samples)));
}

/// The sets of keys at URLs.
fn key_sets(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let (mut keys, mut ages, mut fetches) = (Vec::new(), Vec::new(), Vec::new());
    for report in sources.live.key_sets(sources.engine.now().mono) {
        let set = ("set", &*report.name);
        keys.push(gauge(&[set], report.keys as f64));
        ages.extend(report.age.map(|age| gauge(&[set], age.get() as f64 / 1e9)));
        for (outcome, count) in FetchOutcome::ALL.into_iter().zip(report.outcomes) {
            fetches.push(counter(&[set, ("outcome", outcome.name())], count));
        }
    }
    families.push(family(
        "tollgate_jwks_keys",
        "Keys in force of a set at a URL; 0 before the first.",
        MetricType::GAUGE,
        keys,
    ));
    families.push(family(
        "tollgate_jwks_age_seconds",
        "How long ago the set in force was last fetched.",
        MetricType::GAUGE,
        ages,
    ));
    families.push(family(
        "tollgate_jwks_fetches_total",
        "Fetches of a set at a URL, by how they ended.",
        MetricType::COUNTER,
        fetches,
    ));
}

fn estimator(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let generation = &sources.live.generation;
    let table = sources.engine.confirm_table();
    let (mut load, mut error) = (Vec::new(), Vec::new());
    for (index, limit) in generation.policy().indexed_limits() {
        let Some(estimate) = generation.estimate(index) else {
            continue;
        };
        let labels = [("limit", &*limit.name)];
        let share = estimate.noise() as f64 / f64::from(estimate.rate().count());
        load.push(gauge(&labels, share));
        error.push(gauge(&labels, estimate.confirm_error(table) as f64));
    }
    families.push(family(
        "tollgate_estimator_load_ratio",
        "What a key that sent nothing would read in the sketch, as a share of the limit.",
        MetricType::GAUGE,
        load,
    ));
    families.push(family(
        "tollgate_confirm_error",
        "How far a key can exceed the limit now.",
        MetricType::GAUGE,
        error,
    ));
    families.push(family(
        "tollgate_confirm_cells",
        "Live cells of the confirm table.",
        MetricType::GAUGE,
        vec![gauge(&[], table.live_cells() as f64)],
    ));
    families.push(family(
        "tollgate_confirm_max_cells",
        "Cells of the confirm table, used or not.",
        MetricType::GAUGE,
        vec![gauge(&[], table.cells() as f64)],
    ));
}

fn store(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let remote = sources.engine.remote();
    // The embedded store is in this process, so it is up whenever this is read.
    let up = remote.is_none_or(|remote| remote.is_up());
    let bytes = remote.map_or_else(|| sources.engine.cell_bytes() as u64, |remote| remote.bytes());
    let mut add_gauge = |name, help, value| {
        families.push(family(name, help, MetricType::GAUGE, vec![gauge(&[], value)]));
    };
    add_gauge("tollgate_store_up", "Whether the store answers.", f64::from(u8::from(up)));
    add_gauge("tollgate_store_bytes", "Bytes that the store holds.", bytes as f64);
    let Some(remote) = remote else {
        return;
    };
    let warnings =
        [("may_evict", remote.may_evict()), ("keeps_nothing", remote.lacks_persistence())];
    let warnings =
        warnings.map(|(word, holds)| gauge(&[("warning", word)], f64::from(u8::from(holds))));
    families.push(family(
        "tollgate_store_warning",
        "What the log warned of when the store was connected to.",
        MetricType::GAUGE,
        warnings.to_vec(),
    ));
    let metrics = remote.metrics();
    let calls = CallOutcome::ALL
        .map(|outcome| counter(&[("outcome", outcome.name())], metrics.calls(outcome)));
    families.push(family(
        "tollgate_store_calls_total",
        "Calls to the store, by how they ended.",
        MetricType::COUNTER,
        calls.to_vec(),
    ));
    families.push(family(
        "tollgate_store_unreported_lost_total",
        "Units that the store will never be told of, because the list of them was full.",
        MetricType::COUNTER,
        vec![counter(&[], metrics.unreported_lost())],
    ));
    families.push(family(
        "tollgate_store_call_duration_seconds",
        "How long calls took, whatever came of them.",
        MetricType::HISTOGRAM,
        vec![histogram(&[], &metrics.durations)],
    ));
    families.push(family(
        "tollgate_store_batch_size",
        "Charges in a call.",
        MetricType::HISTOGRAM,
        vec![histogram_in_units(&[], &metrics.batches, 1.0)],
    ));
}

/// What the process before has handed over.
fn handover(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let (cells, pause) = sources.status.handover();
    let gauges = [
        (
            "tollgate_handover_cells",
            "Cells that the process before has handed over; 0 if none has.",
            cells as f64,
        ),
        (
            "tollgate_handover_pause_seconds",
            "How long requests waited while the process before handed over.",
            pause.get() as f64 / 1e9,
        ),
    ];
    for (name, help, value) in gauges {
        families.push(family(name, help, MetricType::GAUGE, vec![gauge(&[], value)]));
    }
}

/// What the state directory holds and how saving goes; nothing without one.
fn saved_state(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let Some(state) = sources.status.state() else {
        return;
    };
    let gauges = [
        ("tollgate_state_bytes", "Bytes of the state directory's logs.", state.bytes() as f64),
        (
            "tollgate_state_recovered_cells",
            "Cells that were restored when the process started.",
            state.recovered_cells() as f64,
        ),
    ];
    for (name, help, value) in gauges {
        families.push(family(name, help, MetricType::GAUGE, vec![gauge(&[], value)]));
    }
    // Nothing is saved before everything is restored, and nothing changes either.
    let is_saving = state.restoring_percent().is_none();
    let age = is_saving.then(|| state.age(sources.engine.now().mono).get() as f64 / 1e9);
    families.push(family(
        "tollgate_state_age_seconds",
        "The time of which changes would be lost if the process were killed now.",
        MetricType::GAUGE,
        age.map(|age| gauge(&[], age)).into_iter().collect(),
    ));
    let writes = SaveOutcome::ALL
        .map(|outcome| counter(&[("outcome", outcome.name())], state.outcomes(outcome)));
    families.push(family(
        "tollgate_state_writes_total",
        "Writes of the state by outcome.",
        MetricType::COUNTER,
        writes.to_vec(),
    ));
}

fn origins(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let (mut answers, mut durations, mut connections) = (Vec::new(), Vec::new(), Vec::new());
    let mut retries = Vec::new();
    for (origin, counters) in sources.counters.origins() {
        for (class, count) in OriginCounters::CLASSES.iter().zip(counters.classes()) {
            answers.push(counter(&[("origin", &origin), ("class", class)], count));
        }
        durations.push(histogram(&[("origin", &origin)], &counters.duration));
        connections.push(gauge(&[("origin", &origin)], counters.slots.taken() as f64));
        retries.push(counter(&[("origin", &origin)], counters.retries()));
    }
    let mut servers = Vec::new();
    for group in &sources.live.origins {
        for server in group.reports() {
            let labels = [("origin", &*group.config().name), ("server", &*server.label)];
            servers.push(gauge(&labels, if server.is_up { 1.0 } else { 0.0 }));
        }
    }
    families.push(family(
        "tollgate_origin_retries_total",
        "Attempts to ask an origin beyond the first of a request.",
        MetricType::COUNTER,
        retries,
    ));
    families.push(family(
        "tollgate_origin_server_up",
        "1 while requests are sent to a server, 0 while its health check fails or it is left out.",
        MetricType::GAUGE,
        servers,
    ));
    families.push(family(
        "tollgate_origin_connections",
        "Exchanges with an origin now, each of which may need a connection.",
        MetricType::GAUGE,
        connections,
    ));
    families.push(family(
        "tollgate_origin_requests_total",
        "Requests sent to an origin, by class of the answer's status.",
        MetricType::COUNTER,
        answers,
    ));
    families.push(family(
        "tollgate_origin_duration_seconds",
        "From asking an origin to the head of its answer.",
        MetricType::HISTOGRAM,
        durations,
    ));
}

fn server(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let status = sources.status;
    let (applied, refused) = status.reloads();
    let gauges = [
        (
            "tollgate_config_generation",
            "The number of the configuration in force.",
            sources.live.generation.number() as f64,
        ),
        (
            "tollgate_config_last_reload_success_timestamp_seconds",
            "When a configuration was last put in force.",
            status.last_success().get() as f64 / 1e9,
        ),
        (
            "tollgate_connections",
            "Connections of clients.",
            sources.connections.load(Ordering::Relaxed) as f64,
        ),
    ];
    for (name, help, value) in gauges {
        families.push(family(name, help, MetricType::GAUGE, vec![gauge(&[], value)]));
    }
    let memory = MemoryKind::ALL
        .map(|kind| gauge(&[("kind", kind.name())], sources.memory.held(kind) as f64));
    families.push(family(
        "tollgate_memory_bytes",
        "The most that connections, TLS, streams, requests and answers can hold now.",
        MetricType::GAUGE,
        memory.to_vec(),
    ));
    families.push(family(
        "tollgate_config_reloads_total",
        "Reloads by outcome.",
        MetricType::COUNTER,
        vec![
            counter(&[("outcome", "applied")], applied),
            counter(&[("outcome", "refused")], refused),
        ],
    ));
    // Without a sample before the first reload: 0 would be a duration.
    let duration = status.last_duration().map(|span| gauge(&[], span.get() as f64 / 1e9));
    families.push(family(
        "tollgate_reload_duration_seconds",
        "How long the last reload took, applied or refused.",
        MetricType::GAUGE,
        duration.into_iter().collect(),
    ));
    families.push(family(
        "tollgate_log_dropped_total",
        "Log lines dropped because nobody took them in time.",
        MetricType::COUNTER,
        vec![counter(&[], LineWriter::dropped())],
    ));
    let suppressed =
        LogKind::ALL.map(|kind| counter(&[("kind", kind.name())], LOG_SAMPLER.suppressed(kind)));
    families.push(family(
        "tollgate_log_suppressed_total",
        "Lines of the operator's log that were not written, because many of their kind were.",
        MetricType::COUNTER,
        suppressed.to_vec(),
    ));
    let versions = [("version", env!("CARGO_PKG_VERSION")), ("pingora", PINGORA)];
    families.push(family(
        "tollgate_build_info",
        "What runs.",
        MetricType::GAUGE,
        vec![gauge(&versions, 1.0)],
    ));
}

/// What operators have changed.
fn operators(sources: Sources<'_>, families: &mut Vec<MetricFamily>) {
    let date = sources.engine.date(sources.engine.now());
    let rules = sources.engine.key_rules();
    let in_force = rules.iter().filter(|rule| rule.until > date).count();
    families.push(family(
        "tollgate_overrides",
        "Overrides and bans of operators in force, of all nodes that share the store.",
        MetricType::GAUGE,
        vec![gauge(&[], in_force as f64)],
    ));
    let changes =
        ChangeKind::ALL.map(|kind| counter(&[("change", kind.name())], sources.audit.count(kind)));
    families.push(family(
        "tollgate_admin_changes_total",
        "Changes by operators on this node, by what was changed.",
        MetricType::COUNTER,
        changes.to_vec(),
    ));
}
