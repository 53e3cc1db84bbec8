//! The report as text: the verdict first, then each limit, then what could not be judged.

mod changes;
mod layout;
mod limits;

use std::collections::BTreeMap;

use self::layout::{TextColumn, line_of, sparkline, table, wrapped};
use super::format::{
    counted, counted_keys, grouped, keys, percent, percent_of, rate, shown, span, time,
};
use super::{Report, SuggestedRate, sentences};
use crate::clock::Nanos;
use crate::replay::tally::{Bucket, KeyNumber, Summary};

/// Characters of a name.
const MAX_NAME: usize = 24;
/// Characters of a sentence, a reason or a file's name.
const MAX_SENTENCE: usize = 600;

/// The report.
pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    verdict(&mut out, report);
    if let Some(compared) = &report.compare {
        changes::write(&mut out, report, compared);
    }
    over_time(&mut out, &report.summary);
    routes(&mut out, &report.summary);
    limits::write(&mut out, &report.summary);
    not_judged(&mut out, report);
    suggestions(&mut out, &report.suggestions);
    out
}

fn verdict(out: &mut String, report: &Report) {
    let summary = &report.summary;
    wrapped(out, 0, &sentences::verdict(report));
    if summary.shadow_refused > 0 {
        let requests = counted(summary.shadow_refused, "request");
        wrapped(out, 0, &format!("Limits in shadow mode would refuse {requests} more."));
    }
    let read = counted(report.lines.read, "line");
    match summary.span {
        None => wrapped(out, 0, &format!("{read} read.")),
        Some((first, last)) => {
            let length = span(last.saturating_sub(first));
            let (first, last) = (time(first), time(last));
            wrapped(
                out,
                0,
                &format!("{read} read, from {first} to {last} ({length}). Times are UTC."),
            );
        }
    }
}

fn over_time(out: &mut String, summary: &Summary) {
    if summary.over_time.len() < 2 {
        return;
    }
    let numbers = |of: fn(&Bucket) -> u64| summary.over_time.iter().map(of).collect::<Vec<_>>();
    line_of(out, 0, "\nover time");
    plot(out, "requests", &numbers(|bucket| bucket.requests), summary.bucket_width);
    plot(out, "refused", &numbers(|bucket| bucket.refused), summary.bucket_width);
}

/// A sparkline with the sum of its highest bar. Nothing if all numbers are zero.
fn plot(out: &mut String, name: &str, numbers: &[u64], width: Nanos) {
    let (bars, group) = sparkline(numbers);
    let peak = numbers.chunks(group).map(|chunk| chunk.iter().sum()).max().unwrap_or(0);
    if peak > 0 {
        let width = span(width.saturating_mul(group as u64));
        line_of(out, 2, &format!("{name:<10}  {bars}  up to {} in {width}", grouped(peak)));
    }
}

fn routes(out: &mut String, summary: &Summary) {
    let row = |name: &str, requests: u64, refused: u64| {
        vec![
            shown(name, MAX_NAME),
            grouped(requests),
            percent_of(requests, summary.requests),
            grouped(refused),
        ]
    };
    let (met, unmet): (Vec<_>, Vec<_>) =
        summary.routes.iter().partition(|route| route.requests > 0);
    let mut rows: Vec<Vec<String>> =
        met.iter().map(|route| row(&route.name, route.requests, route.refused)).collect();
    if summary.unrouted > 0 {
        rows.push(row("(no route)", summary.unrouted, 0));
    }
    if rows.is_empty() {
        return;
    }
    line_of(out, 0, "\nroutes");
    let columns = [
        TextColumn::Elastic("route"),
        TextColumn::Number("requests"),
        TextColumn::Number("share"),
        TextColumn::Number("refused"),
    ];
    table(out, 2, &columns, &rows);
    if !unmet.is_empty() {
        let names: Vec<String> = unmet.iter().map(|route| shown(&route.name, MAX_NAME)).collect();
        wrapped(out, 2, &format!("without requests: {}", shown(&names.join(", "), MAX_SENTENCE)));
    }
}

fn not_judged(out: &mut String, report: &Report) {
    let mut lines = String::new();
    reasons(&mut lines, "not judged", &report.not_judged);
    reasons(&mut lines, "assumed", &report.assumed);
    for sentence in sentences::caveats(report).iter().chain(&report.notes) {
        wrapped(&mut lines, 2, &format!("- {}", shown(sentence, MAX_SENTENCE)));
    }
    if !lines.is_empty() {
        line_of(out, 0, "\nwhat could not be judged");
        out.push_str(&lines);
    }
}

fn reasons(out: &mut String, title: &str, reasons: &BTreeMap<String, u64>) {
    for (reason, number) in reasons.iter().filter(|(_, number)| **number > 0) {
        let reason = shown(reason, MAX_SENTENCE);
        wrapped(out, 2, &format!("- {title}: {} ({reason})", counted(*number, "request")));
    }
}

fn suggestions(out: &mut String, suggestions: &[SuggestedRate]) {
    if !suggestions.is_empty() {
        line_of(out, 0, "\nsuggested rates");
    }
    for suggestion in suggestions {
        let refuses = percent(suggestion.refuses_keys);
        let name = shown(&suggestion.limit, MAX_NAME);
        line_of(out, 2, &format!("{name}: {} (refuses {refuses} of keys)", rate(suggestion)));
        wrapped(out, 4, &shown(&suggestion.sentence, MAX_SENTENCE));
        let [p50, p90, p99, p99_9, max] = suggestion.percentiles.list().map(|(_, n)| grouped(n));
        let percentiles = format!("p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p99_9}, max {max}");
        wrapped(out, 4, &format!("{}: {percentiles}", suggestion.measure.text()));
        for line in suggestion.yaml.lines() {
            line_of(out, 6, &shown(line, MAX_SENTENCE));
        }
    }
}

/// A number of keys out of all keys of a limit.
fn keys_of(refused: KeyNumber, all: KeyNumber) -> String {
    let share = percent_of(refused.number.min(all.number), all.number);
    format!("{} of {} ({share})", keys(refused), counted_keys(all))
}
