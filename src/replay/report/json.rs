//! The report as JSON. docs/src/replay.md describes its members: more may be added, none is renamed.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::format::exact_time;
use super::{BrokenLineKind, ComparedPolicy, Report, Share, SuggestedRate};
use crate::clock::Nanos;
use crate::http::is_no_text;
use crate::replay::compare::{DecisionChange, LimitChange, LimitComparison};
use crate::replay::tally::{
    Bucket, Dominance, KeyNumber, LimitSummary, RequestExample, RouteSummary, Summary, TopKey,
};

/// The report, with a line end.
pub(super) fn report(report: &Report) -> String {
    let mut members = object(json!({
        "policy": report.policy,
        "lines": report.lines.read,
        "broken": report.lines.broken(),
        "broken_lines": list(&report.lines.broken, broken),
        "late": report.lines.late,
        "repeated": report.lines.repeated,
        "not_judged": report.not_judged,
        "assumed": report.assumed,
        "notes": report.notes,
        "compare": report.compare.as_ref().map(compare),
        "suggest": list(&report.suggestions, suggestion),
    }));
    members.extend(object(summary(&report.summary)));
    printable(&format!("{:#}\n", Value::Object(members)))
}

/// Control characters inside of strings as escapes, because terminals obey them. All of them are in the first plane.
fn printable(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter != '\n' && is_no_text(letter) {
            // Writing to a string never fails.
            let _ = write!(out, "\\u{:04x}", u32::from(letter));
        } else {
            out.push(letter);
        }
    }
    out
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn list<T>(items: &[T], value: fn(&T) -> Value) -> Vec<Value> {
    items.iter().map(value).collect()
}

fn broken(lines: &BrokenLineKind) -> Value {
    let first = lines.first.iter().map(|at| json!({ "file": at.file, "line": at.line }));
    json!({
        "kind": lines.kind,
        "number": lines.number,
        "first": first.collect::<Vec<_>>(),
    })
}

fn summary(summary: &Summary) -> Value {
    json!({
        "from": summary.span.map(|(first, _)| exact_time(first)),
        "to": summary.span.map(|(_, last)| exact_time(last)),
        "time_uncertainty_seconds": seconds(summary.uncertainty),
        "requests": summary.requests,
        "refused": summary.refused,
        "refused_without_key": summary.refused_without_key,
        "shadow_refused": summary.shadow_refused,
        "logged_429": summary.earlier.too_many_requests,
        "logged_503": summary.earlier.unavailable,
        "routes": list(&summary.routes, route),
        "no_route": summary.unrouted,
        "over_time": {
            "from": summary.span.map(|_| exact_time(summary.over_time_from)),
            "bucket_seconds": seconds(summary.bucket_width),
            "requests": buckets(&summary.over_time, |bucket| bucket.requests),
            "refused": buckets(&summary.over_time, |bucket| bucket.refused),
        },
        "limits": list(&summary.limits, limit),
    })
}

fn buckets(buckets: &[Bucket], number: fn(&Bucket) -> u64) -> Vec<u64> {
    buckets.iter().map(number).collect()
}

/// Seconds as a number that has a fraction only if it needs one.
fn seconds(span: Nanos) -> Value {
    match span.get() % Nanos::SECOND.get() {
        0 => json!(span.secs()),
        _ => json!(span.get() as f64 / Nanos::SECOND.get() as f64),
    }
}

fn route(route: &RouteSummary) -> Value {
    json!({ "name": &*route.name, "requests": route.requests, "refused": route.refused })
}

fn limit(limit: &LimitSummary) -> Value {
    let label = &limit.label;
    let mut members = object(json!({
        "name": &*label.name,
        "key": label.key,
        "rate": label.rate,
        "window_seconds": seconds(label.window),
        "algorithm": label.algorithm,
        "tier": label.tier,
        "max_delay": label.max_delay,
        "shadow": label.is_shadow,
        "rollout": label.rollout,
    }));
    members.extend(object(json!({
        "judged": limit.judged,
        "refused": limit.refused,
        "shadow_refused": limit.shadow_refused,
        "banned": limit.banned,
        "other_rate": limit.other_rate,
        "units": limit.units,
        "refused_units": limit.refused_units,
        "bounds": limit.bounds.map(|(lower, upper)| json!({ "lower": lower, "upper": upper })),
        "keys": limit.keys.number,
        "keys_refused": limit.keys_refused.number,
        "keys_shadow_refused": limit.keys_shadow_refused.number,
        "keys_are_estimates": limit.keys.is_estimate,
        "heaviest": limit.dominance.as_ref().map(dominance),
        "top": list(&limit.top, top),
        "first_refusals": list(&limit.first_refusals, example),
        "over_time": {
            "judged": buckets(&limit.over_time, |bucket| bucket.requests),
            "refused": buckets(&limit.over_time, |bucket| bucket.refused),
            "shadow_refused": buckets(&limit.over_time, |bucket| bucket.shadow_refused),
        },
    })));
    Value::Object(members)
}

fn dominance(found: &Dominance) -> Value {
    json!({
        "refusals": found.total,
        "of_1_key": found.first,
        "of_10_keys": found.first_10,
        "of_100_keys": found.first_100,
        "lower_bounds": found.is_lower_bound,
    })
}

fn top(key: &TopKey) -> Value {
    json!({
        "key": key.key,
        "requests": key.requests,
        "refused": key.refused,
        "shadow_refused": key.shadow_refused,
        "peak_rate": key.peak_rate,
        "first_refused": exact_time(key.first_refused),
        "last_refused": exact_time(key.last_refused),
        "lower_bounds": key.is_lower_bound,
        "first_uncertain": key.is_first_uncertain,
    })
}

fn example(example: &RequestExample) -> Value {
    json!({
        "time": exact_time(example.at),
        "limit": example.limit.as_deref(),
        "key": example.key,
        "method": example.method,
        "host": example.host,
        "path": example.path,
    })
}

fn compare(compared: &ComparedPolicy) -> Value {
    let comparison = &compared.comparison;
    let examples = |change: &DecisionChange, name: &str| {
        let examples = change.examples.iter().map(|shown| {
            let mut members = object(example(shown));
            members.insert("change".to_owned(), json!(name));
            Value::Object(members)
        });
        examples.collect::<Vec<_>>()
    };
    let mut all = examples(&comparison.newly_refused, "newly_refused");
    all.extend(examples(&comparison.newly_admitted, "newly_admitted"));
    let (refused, admitted) = (&comparison.newly_refused, &comparison.newly_admitted);
    json!({
        "other": compared.other,
        "requests": comparison.requests,
        "only_policy": comparison.only_live,
        "only_other": comparison.only_other,
        "refused": comparison.live_refused,
        "other_refused": comparison.other_refused,
        "newly_refused": refused.requests,
        "newly_admitted": admitted.requests,
        "newly_refused_keys": refused.keys.number,
        "newly_admitted_keys": admitted.keys.number,
        "newly_refused_without_key": refused.without_key,
        "newly_admitted_without_key": admitted.without_key,
        "keys_are_estimates": refused.keys.is_estimate || admitted.keys.is_estimate,
        "examples": all,
        "limits": list(&comparison.limits, limit_comparison),
    })
}

fn limit_comparison(limit: &LimitComparison) -> Value {
    let change = |change: LimitChange| {
        let LimitChange { requests, keys: KeyNumber { number, is_estimate } } = change;
        json!({ "requests": requests, "keys": number, "keys_are_estimates": is_estimate })
    };
    json!({
        "name": &*limit.name,
        "rate": limit.live.as_ref().map(|label| &label.rate),
        "other_rate": limit.other.as_ref().map(|label| &label.rate),
        "in_policy": limit.live.is_some(),
        "in_other": limit.other.is_some(),
        "newly_refused": change(limit.newly_refused),
        "newly_admitted": change(limit.newly_admitted),
    })
}

fn suggestion(suggestion: &SuggestedRate) -> Value {
    let point = |(rate, refused): &(u64, Share)| json!({ "rate": rate, "refuses_keys_share": share(*refused) });
    let percentiles = suggestion.percentiles.list().into_iter();
    let percentiles: Map<String, Value> =
        percentiles.map(|(name, units)| (name.replace('.', "_"), json!(units))).collect();
    json!({
        "limit": &*suggestion.limit,
        "rate": suggestion.rate,
        "burst": suggestion.burst,
        "refuses_keys": suggestion.refuses_keys.number,
        "keys": suggestion.refuses_keys.total,
        "refuses_keys_share": share(suggestion.refuses_keys),
        "measures": suggestion.measure.name(),
        "percentiles": percentiles,
        "curve": list(&suggestion.curve, point),
        "yaml": suggestion.yaml,
        "sentence": suggestion.sentence,
    })
}

/// A share as a fraction; 0 of nothing.
fn share(share: Share) -> f64 {
    share.number as f64 / share.total.max(1) as f64
}
