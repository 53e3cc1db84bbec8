//! The comparison of two policies in the text report.

use super::layout::{TextColumn, line_of, table, wrapped};
use super::{MAX_NAME, MAX_SENTENCE};
use crate::replay::compare::{DecisionChange, LimitComparison};
use crate::replay::report::format::{self, counted, grouped, request_line, short_time, shown};
use crate::replay::report::sentences::{change, in_policies, uncompared};
use crate::replay::report::{ComparedPolicy, Report};

/// Characters of the key of an example.
const MAX_KEY: usize = 30;
/// Characters of its request.
const MAX_REQUEST: usize = 200;
/// Characters of two rates.
const MAX_RATES: usize = 40;
/// Characters of its limit.
const MAX_LIMIT: usize = 16;

/// What changes, in both directions.
pub(super) fn write(out: &mut String, report: &Report, compared: &ComparedPolicy) {
    let comparison = &compared.comparison;
    let other = shown(&compared.other, MAX_SENTENCE);
    line_of(out, 0, &format!("\ncompared with {other}"));
    let requests = counted(comparison.requests, "request");
    let (live, others) = (grouped(comparison.live_refused), grouped(comparison.other_refused));
    wrapped(out, 2, &format!("refuses {others} of {requests} instead of {live}"));
    wrapped(
        out,
        2,
        &format!("newly refused: {}", change(&comparison.newly_refused, comparison.limits.len())),
    );
    wrapped(
        out,
        2,
        &format!("newly admitted: {}", change(&comparison.newly_admitted, comparison.limits.len())),
    );
    if let Some(uncompared) = uncompared(report, compared) {
        wrapped(out, 2, &uncompared);
    }
    limits(out, compared);
    examples(out, report, "newly refused, examples", &comparison.newly_refused);
    examples(out, report, "newly admitted, examples", &comparison.newly_admitted);
}

fn limits(out: &mut String, compared: &ComparedPolicy) {
    let row = |limit: &LimitComparison| {
        vec![
            shown(&limit.name, MAX_NAME),
            shown(&in_policies(limit), MAX_RATES),
            grouped(limit.newly_refused.requests),
            format::keys(limit.newly_refused.keys),
            grouped(limit.newly_admitted.requests),
            format::keys(limit.newly_admitted.keys),
        ]
    };
    let changed = compared.comparison.limits.iter().filter(|limit| limit.is_changed());
    let rows: Vec<Vec<String>> = changed.map(row).collect();
    if !rows.is_empty() {
        let columns = [
            TextColumn::Text("limit"),
            TextColumn::Elastic("rate"),
            TextColumn::Number("newly refused"),
            TextColumn::Number("keys"),
            TextColumn::Number("newly admitted"),
            TextColumn::Number("keys"),
        ];
        table(out, 2, &columns, &rows);
    }
}

fn examples(out: &mut String, report: &Report, title: &str, change: &DecisionChange) {
    if change.examples.is_empty() {
        return;
    }
    line_of(out, 2, title);
    let rows = change.examples.iter().map(|example| {
        vec![
            short_time(example.at, report.summary.span),
            shown(example.limit.as_deref().unwrap_or("(none)"), MAX_LIMIT),
            shown(example.key.as_deref().unwrap_or("(none)"), MAX_KEY),
            shown(&request_line(example), MAX_REQUEST),
        ]
    });
    let columns = [
        TextColumn::Text("time"),
        TextColumn::Text("limit"),
        TextColumn::Text("key"),
        TextColumn::Elastic("request"),
    ];
    table(out, 4, &columns, &rows.collect::<Vec<_>>());
}
