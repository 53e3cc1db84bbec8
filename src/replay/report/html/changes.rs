//! The comparison of two policies on the page.

use super::begin_section;
use super::markup::{HtmlColumn, element, facts, table};
use crate::replay::compare::{DecisionChange, LimitComparison};
use crate::replay::report::format::{counted, grouped, keys, request_line, time};
use crate::replay::report::sentences::{change, in_policies, uncompared};
use crate::replay::report::{ComparedPolicy, Report};

/// What changes, in both directions.
pub(super) fn section(out: &mut String, report: &Report, compared: &ComparedPolicy) {
    let comparison = &compared.comparison;
    begin_section(out, "changes", "Comparison");
    let requests = counted(comparison.requests, "request");
    let (live, other) = (grouped(comparison.live_refused), grouped(comparison.other_refused));
    element(
        out,
        "p class=\"text\"",
        &format!(
            "{} would refuse {other} of {requests}; {} would refuse {live}.",
            compared.other, report.policy
        ),
    );
    if let Some(uncompared) = uncompared(report, compared) {
        element(out, "p class=\"text\"", &uncompared);
    }
    facts(
        out,
        &[
            ("newly refused", change(&comparison.newly_refused, comparison.limits.len())),
            ("newly admitted", change(&comparison.newly_admitted, comparison.limits.len())),
        ],
    );
    limits(out, &comparison.limits);
    examples(out, "Newly refused: examples of different keys", &comparison.newly_refused);
    examples(out, "Newly admitted: examples of different keys", &comparison.newly_admitted);
    out.push_str("</section>\n");
}

fn limits(out: &mut String, limits: &[LimitComparison]) {
    let row = |limit: &LimitComparison| {
        vec![
            limit.name.to_string(),
            in_policies(limit),
            grouped(limit.newly_refused.requests),
            keys(limit.newly_refused.keys),
            grouped(limit.newly_admitted.requests),
            keys(limit.newly_admitted.keys),
        ]
    };
    let columns = [
        HtmlColumn::Text("limit"),
        HtmlColumn::Text("rate"),
        HtmlColumn::Number("newly refused"),
        HtmlColumn::Number("keys"),
        HtmlColumn::Number("newly admitted"),
        HtmlColumn::Number("keys"),
    ];
    let changed = limits.iter().filter(|limit| limit.is_changed());
    let rows: Vec<Vec<String>> = changed.map(row).collect();
    table(out, "The limits that change", &columns, &rows);
}

fn examples(out: &mut String, caption: &str, change: &DecisionChange) {
    let rows = change.examples.iter().map(|example| {
        vec![
            time(example.at),
            example.limit.as_deref().unwrap_or("(none)").to_owned(),
            example.key.as_deref().unwrap_or("(none)").to_owned(),
            request_line(example),
        ]
    });
    let columns = [
        HtmlColumn::Text("time"),
        HtmlColumn::Text("limit"),
        HtmlColumn::Text("key"),
        HtmlColumn::Long("request"),
    ];
    table(out, caption, &columns, &rows.collect::<Vec<_>>());
}
