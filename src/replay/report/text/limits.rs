//! The limits in the text report.

use super::layout::{TextColumn, line_of, table, wrapped};
use super::{MAX_NAME, keys_of, plot};
use crate::replay::report::format::{
    self, counted, grouped, percent_of, request_line, short_time, shown, span,
};
use crate::replay::report::{MAX_DETAILED_LIMITS, sentences};
use crate::replay::tally::{LimitSummary, Summary, TopKey};

/// Characters of a key.
const MAX_KEY: usize = 64;
/// Characters of a key before a request.
const MAX_SHORT_KEY: usize = 40;
/// Characters of a rate.
const MAX_RATE: usize = 16;
/// Characters of the settings of a limit.
const MAX_SETTINGS: usize = 300;
/// Characters of a request.
const MAX_REQUEST: usize = 200;

/// The limits: all in a table, then those that refuse.
pub(super) fn write(out: &mut String, summary: &Summary) {
    if summary.limits.is_empty() {
        line_of(out, 0, "\nThe policy has no limit.");
        return;
    }
    line_of(out, 0, "\nlimits");
    let has_shadow = summary.limits.iter().any(|limit| limit.shadow_refused > 0);
    let mut columns = vec![
        TextColumn::Elastic("limit"),
        TextColumn::Text("rate"),
        TextColumn::Number("judged"),
        TextColumn::Number("refused"),
        TextColumn::Number("share"),
        TextColumn::Number("keys"),
        TextColumn::Number("keys refused"),
    ];
    if has_shadow {
        columns.push(TextColumn::Number("in shadow"));
    }
    let row = |limit: &LimitSummary| {
        let mut row = vec![
            shown(&limit.label.name, MAX_NAME),
            shown(&limit.label.rate, MAX_RATE),
            grouped(limit.judged),
            grouped(limit.refused),
            percent_of(limit.refused, limit.judged),
            format::keys(limit.keys),
            format::keys(limit.keys_refused),
        ];
        if has_shadow {
            row.push(grouped(limit.shadow_refused));
        }
        row
    };
    table(out, 2, &columns, &summary.limits.iter().map(row).collect::<Vec<_>>());
    let refusing = || summary.limits.iter().filter(|limit| limit.found() > 0);
    refusing().take(MAX_DETAILED_LIMITS).for_each(|limit| detail(out, summary, limit));
    if let Some(more @ 1..) = refusing().count().checked_sub(MAX_DETAILED_LIMITS) {
        let more = counted(more as u64, "more limit");
        wrapped(out, 0, &format!("\n{more} would refuse requests; --json has all of them."));
    }
}

fn detail(out: &mut String, summary: &Summary, limit: &LimitSummary) {
    out.push('\n');
    let name = shown(&limit.label.name, MAX_NAME);
    let settings = shown(&sentences::settings(&limit.label), MAX_SETTINGS);
    wrapped(out, 0, &format!("limit {name}: {settings}"));
    let mut fact = |name: &str, text: String| wrapped(out, 2, &format!("{name}: {text}"));
    if limit.refused > 0 {
        fact("refuses", numbers(limit, limit.refused, false));
    }
    if limit.shadow_refused > 0 {
        fact("would refuse without shadow mode", numbers(limit, limit.shadow_refused, true));
    }
    if limit.banned > 0 {
        fact("by bans", grouped(limit.banned));
    }
    if let Some((lower, upper)) = limit.bounds {
        fact("bounds", sentences::bounds(lower, upper));
    }
    if let Some(found) = &limit.dominance {
        fact("heavy keys", sentences::dominance(found));
    }
    let found = limit.over_time.iter().map(|bucket| bucket.refused + bucket.shadow_refused);
    let found: Vec<u64> = found.collect();
    if found.len() > 1 {
        plot(out, "over time", &found, summary.bucket_width);
    }
    top(out, summary, limit);
    first_refusals(out, summary, limit);
}

fn numbers(limit: &LimitSummary, refused: u64, shadow: bool) -> String {
    let keys = if shadow { limit.keys_shadow_refused } else { limit.keys_refused };
    let share = percent_of(refused, limit.judged);
    let (refused, judged) = (grouped(refused), counted(limit.judged, "request"));
    format!("{refused} of {judged} ({share}), {}", keys_of(keys, limit.keys))
}

fn top(out: &mut String, summary: &Summary, limit: &LimitSummary) {
    if limit.top.is_empty() {
        return;
    }
    let window = span(limit.label.window);
    line_of(out, 2, &format!("keys refused most (peak: at least so many units within {window})"));
    let row = |key: &TopKey| {
        let at_least = if key.is_lower_bound { ">= " } else { "" };
        let number = |number: u64| format!("{at_least}{}", grouped(number));
        vec![
            shown(&key.key, MAX_KEY),
            number(key.requests),
            number(key.refused + key.shadow_refused),
            number(key.peak_rate),
            short_time(key.first_refused, summary.span),
            short_time(key.last_refused, summary.span),
        ]
    };
    let columns = [
        TextColumn::Elastic("key"),
        TextColumn::Number("requests"),
        TextColumn::Number("refused"),
        TextColumn::Number("peak"),
        TextColumn::Text("first refused"),
        TextColumn::Text("last refused"),
    ];
    table(out, 4, &columns, &limit.top.iter().map(row).collect::<Vec<_>>());
}

fn first_refusals(out: &mut String, summary: &Summary, limit: &LimitSummary) {
    if limit.first_refusals.is_empty() {
        return;
    }
    line_of(out, 2, "first refusals of different keys");
    let rows = limit.first_refusals.iter().map(|example| {
        let key = example.key.as_deref().unwrap_or_default();
        let time = short_time(example.at, summary.span);
        vec![time, shown(key, MAX_SHORT_KEY), shown(&request_line(example), MAX_REQUEST)]
    });
    let columns =
        [TextColumn::Text("time"), TextColumn::Text("key"), TextColumn::Elastic("request")];
    table(out, 4, &columns, &rows.collect::<Vec<_>>());
}
