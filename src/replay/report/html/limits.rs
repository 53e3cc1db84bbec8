//! The limits on the page.

use super::begin_section;
use super::markup::{HtmlColumn, element, facts, table};
use super::plot::{Bars, bars};
use crate::replay::report::format::{
    counted, counted_keys, grouped, keys, percent_of, request_line, span, time,
};
use crate::replay::report::{MAX_DETAILED_LIMITS, sentences};
use crate::replay::tally::{KeyNumber, LimitSummary, Summary, TopKey};

/// The limits: all in a table, then those that refuse.
pub(super) fn section(out: &mut String, summary: &Summary) {
    begin_section(out, "limits", "Limits");
    if summary.limits.is_empty() {
        element(out, "p", "The policy has no limit.");
    }
    let columns = [
        HtmlColumn::Text("limit"),
        HtmlColumn::Text("rate"),
        HtmlColumn::Number("judged"),
        HtmlColumn::Number("refused"),
        HtmlColumn::Number("share"),
        HtmlColumn::Number("keys"),
        HtmlColumn::Number("keys refused"),
        HtmlColumn::Number("in shadow mode"),
    ];
    let row = |limit: &LimitSummary| {
        vec![
            limit.label.name.to_string(),
            limit.label.rate.clone(),
            grouped(limit.judged),
            grouped(limit.refused),
            percent_of(limit.refused, limit.judged),
            keys(limit.keys),
            keys(limit.keys_refused),
            grouped(limit.shadow_refused),
        ]
    };
    let rows: Vec<Vec<String>> = summary.limits.iter().map(row).collect();
    table(
        out,
        "What each limit would refuse; a request counts for every limit that refuses it",
        &columns,
        &rows,
    );
    let refusing = || summary.limits.iter().filter(|limit| limit.found() > 0);
    for (index, limit) in refusing().take(MAX_DETAILED_LIMITS).enumerate() {
        article(out, summary, limit, index);
    }
    if let Some(more @ 1..) = refusing().count().checked_sub(MAX_DETAILED_LIMITS) {
        let more = counted(more as u64, "more limit");
        element(out, "p", &format!("{more} would refuse requests; --json has all of them."));
    }
    out.push_str("</section>\n");
}

fn article(out: &mut String, summary: &Summary, limit: &LimitSummary, index: usize) {
    out.push_str("<article>\n");
    element(out, "h3 class=\"text\"", &limit.label.name);
    element(out, "p class=\"soft text\"", &sentences::settings(&limit.label));
    out.push_str("<div class=\"columns\">\n<div class=\"column\">\n");
    facts(out, &limit_facts(limit));
    out.push_str("</div>\n<div class=\"column\">\n");
    let numbers: Vec<u64> = limit.over_time.iter().map(|bucket| bucket.refused).collect();
    let id = format!("limit-{index}");
    bars(out, summary, &Bars { id: &id, title: "refused", class: "refused", numbers: &numbers });
    let numbers: Vec<u64> = limit.over_time.iter().map(|bucket| bucket.shadow_refused).collect();
    let (id, title) = (format!("limit-{index}-shadow"), "would be refused without shadow mode");
    bars(out, summary, &Bars { id: &id, title, class: "shadow", numbers: &numbers });
    out.push_str("</div>\n</div>\n");
    top(out, limit);
    first_refusals(out, limit);
    out.push_str("</article>\n");
}

fn limit_facts(limit: &LimitSummary) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let numbers = |refused: u64, keys_refused: KeyNumber| {
        let share = percent_of(refused, limit.judged);
        let judged = counted(limit.judged, "request");
        let keys = format!("{} of {}", keys(keys_refused), counted_keys(limit.keys));
        format!("{} of {judged} ({share}), {keys}", grouped(refused))
    };
    if limit.refused > 0 {
        facts.push(("would refuse", numbers(limit.refused, limit.keys_refused)));
    }
    if limit.shadow_refused > 0 {
        facts.push(("in shadow mode", numbers(limit.shadow_refused, limit.keys_shadow_refused)));
    }
    if limit.banned > 0 {
        facts.push(("by bans", grouped(limit.banned)));
    }
    if let Some((lower, upper)) = limit.bounds {
        facts.push(("bounds", sentences::bounds(lower, upper)));
    }
    if let Some(found) = &limit.dominance {
        facts.push(("heavy keys", sentences::dominance(found)));
    }
    if limit.units != limit.judged {
        let (refused, units) = (grouped(limit.refused_units), grouped(limit.units));
        facts.push(("units", format!("{refused} of {units} refused")));
    }
    if limit.other_rate > 0 {
        let requests = counted(limit.other_rate, "request");
        facts.push(("other rates", format!("{requests} by plans, overrides or rules")));
    }
    facts
}

fn top(out: &mut String, limit: &LimitSummary) {
    let row = |key: &TopKey| {
        let at_least = if key.is_lower_bound { "≥ " } else { "" };
        let number = |number: u64| format!("{at_least}{}", grouped(number));
        vec![
            key.key.to_string(),
            number(key.requests),
            number(key.refused + key.shadow_refused),
            number(key.peak_rate),
            time(key.first_refused),
            time(key.last_refused),
        ]
    };
    let columns = [
        HtmlColumn::Text("key"),
        HtmlColumn::Number("requests"),
        HtmlColumn::Number("refused"),
        HtmlColumn::Number("peak"),
        HtmlColumn::Text("first refused"),
        HtmlColumn::Text("last refused"),
    ];
    let window = span(limit.label.window);
    let caption = format!("Keys refused most; peak: at least so many units within {window}");
    table(out, &caption, &columns, &limit.top.iter().map(row).collect::<Vec<_>>());
}

fn first_refusals(out: &mut String, limit: &LimitSummary) {
    let rows = limit.first_refusals.iter().map(|example| {
        let key = example.key.as_deref().unwrap_or_default().to_owned();
        vec![time(example.at), key, request_line(example)]
    });
    let columns = [HtmlColumn::Text("time"), HtmlColumn::Text("key"), HtmlColumn::Long("request")];
    table(out, "First refusals of different keys", &columns, &rows.collect::<Vec<_>>());
}
