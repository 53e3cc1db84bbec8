//! The report as one HTML page.
//!
//! The page holds its styles and plots and loads nothing: its content security policy forbids all loads and all scripts.
//! What must always hold: every text of the log and of the configuration is escaped (`markup.rs`).

mod changes;
mod limits;
mod markup;
mod plot;

use std::collections::BTreeMap;

use self::markup::{HtmlColumn, element, escaped, facts, lines, table};
use self::plot::{Bars, bars, curve};
use super::format::{counted, grouped, percent, percent_of, rate, span, time};
use super::{Report, SuggestedRate, sentences};
use crate::replay::tally::{Bucket, Summary};

/// The style of the page.
/// What every page has in its head.
pub const PAGE_MARK: &str = "<meta name=\"generator\" content=\"tollgate replay\"/>";

const STYLE: &str = include_str!("style.css");

/// Styles of this page, and nothing else. `frame-ancestors` has no effect in a `meta` element.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The page.
pub(super) fn page(report: &Report) -> String {
    let mut out = String::with_capacity(1 << 16);
    let title = escaped(&format!("tollgate replay: {}", report.policy));
    out.push_str(&format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{CONTENT_SECURITY_POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         {PAGE_MARK}\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta name=\"referrer\" content=\"no-referrer\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    ));
    header(&mut out, report);
    out.push_str("<main>\n");
    if let Some(compared) = &report.compare {
        changes::section(&mut out, report, compared);
    }
    over_time(&mut out, &report.summary);
    routes(&mut out, &report.summary);
    limits::section(&mut out, &report.summary);
    not_judged(&mut out, report);
    suggestions(&mut out, &report.suggestions);
    out.push_str(
        "</main>\n<footer>Written by <code>tollgate replay</code>. All times are UTC.</footer>\n\
         </body>\n</html>\n",
    );
    out
}

fn header(out: &mut String, report: &Report) {
    let summary = &report.summary;
    out.push_str("<header>\n<h1>tollgate replay</h1>\n");
    element(out, "p class=\"verdict text\"", &sentences::verdict(report));
    if summary.shadow_refused > 0 {
        let requests = counted(summary.shadow_refused, "request");
        element(out, "p", &format!("Limits in shadow mode would refuse {requests} more."));
    }
    let read = counted(report.lines.read, "line");
    let read = match summary.span {
        None => format!("{read} read."),
        Some((first, last)) => {
            let length = span(last.saturating_sub(first));
            format!("{read} read, from {} to {} ({length}).", time(first), time(last))
        }
    };
    element(out, "p class=\"soft\"", &read);
    out.push_str("<nav aria-label=\"Sections\"><ul>");
    let sections = [
        (report.compare.is_some(), "changes", "Comparison"),
        (has_plots(summary), "time", "Over time"),
        (has_routes(summary), "routes", "Routes"),
        (true, "limits", "Limits"),
        (true, "open", "What could not be judged"),
        (!report.suggestions.is_empty(), "rates", "Suggested rates"),
    ];
    for (_, id, name) in sections.iter().filter(|(is_there, ..)| *is_there) {
        out.push_str(&format!("<li><a href=\"#{id}\">{name}</a></li>"));
    }
    out.push_str("</ul></nav>\n</header>\n");
}

/// Begins a section with its title.
fn begin_section(out: &mut String, id: &str, title: &str) {
    out.push_str(&format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-head\">\n<h2 id=\"{id}-head\">{}</h2>\n",
        escaped(title)
    ));
}

fn has_plots(summary: &Summary) -> bool {
    summary.over_time.len() > 1
}

fn over_time(out: &mut String, summary: &Summary) {
    if !has_plots(summary) {
        return;
    }
    begin_section(out, "time", "Over time");
    let numbers = |of: fn(&Bucket) -> u64| summary.over_time.iter().map(of).collect::<Vec<_>>();
    let plots: [(&str, &str, &str, Vec<u64>); 2] = [
        ("time-requests", "requests", "requests", numbers(|bucket| bucket.requests)),
        ("time-refused", "refused", "refused", numbers(|bucket| bucket.refused)),
    ];
    for (id, title, class, numbers) in &plots {
        bars(out, summary, &Bars { id, title, class, numbers });
    }
    out.push_str("<details><summary>The same as a table</summary>\n");
    let begin = |index: u64| {
        time(summary.over_time_from.saturating_add(summary.bucket_width.saturating_mul(index)))
    };
    let buckets = (0..).zip(&summary.over_time).filter(|(_, bucket)| bucket.requests > 0);
    let rows = buckets
        .map(|(index, bucket)| {
            vec![begin(index), grouped(bucket.requests), grouped(bucket.refused)]
        })
        .collect::<Vec<_>>();
    let columns =
        [HtmlColumn::Text("from"), HtmlColumn::Number("requests"), HtmlColumn::Number("refused")];
    let caption = format!("Requests in each {}", span(summary.bucket_width));
    table(out, &caption, &columns, &rows);
    out.push_str("</details>\n</section>\n");
}

fn has_routes(summary: &Summary) -> bool {
    summary.requests > 0 && !(summary.routes.is_empty() && summary.unrouted == 0)
}

fn routes(out: &mut String, summary: &Summary) {
    if !has_routes(summary) {
        return;
    }
    begin_section(out, "routes", "Routes");
    let row = |name: &str, requests: u64, refused: u64| {
        let share = percent_of(requests, summary.requests);
        vec![name.to_owned(), grouped(requests), share, grouped(refused)]
    };
    let routes = summary.routes.iter();
    let mut rows: Vec<Vec<String>> =
        routes.map(|route| row(&route.name, route.requests, route.refused)).collect();
    if summary.unrouted > 0 {
        rows.push(row("(no route)", summary.unrouted, 0));
    }
    let columns = [
        HtmlColumn::Text("route"),
        HtmlColumn::Number("requests"),
        HtmlColumn::Number("share"),
        HtmlColumn::Number("refused"),
    ];
    table(out, "Requests that each route matches", &columns, &rows);
    out.push_str("</section>\n");
}

fn not_judged(out: &mut String, report: &Report) {
    begin_section(out, "open", "What could not be judged");
    let mut sentences = reasons("not judged", &report.not_judged);
    sentences.extend(reasons("assumed", &report.assumed));
    sentences.extend(sentences::caveats(report));
    sentences.extend(report.notes.iter().cloned());
    if sentences.is_empty() {
        element(out, "p", "Every line was judged.");
    } else {
        out.push_str("<ul>\n");
        sentences.iter().for_each(|sentence| element(out, "li class=\"text\"", sentence));
        out.push_str("</ul>\n");
    }
    out.push_str("</section>\n");
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn reasons(title: &str, reasons: &BTreeMap<String, u64>) -> Vec<String> {
    let reasons = reasons.iter().filter(|(_, number)| **number > 0);
    let sentence = |(reason, number): (&String, &u64)| {
        format!("{title}: {} ({reason})", counted(*number, "request"))
    };
    reasons.map(sentence).collect()
}

fn suggestions(out: &mut String, suggestions: &[SuggestedRate]) {
    if suggestions.is_empty() {
        return;
    }
    begin_section(out, "rates", "Suggested rates");
    for (index, suggestion) in suggestions.iter().enumerate() {
        out.push_str("<article>\n");
        element(out, "h3 class=\"text\"", &format!("{}: {}", suggestion.limit, rate(suggestion)));
        element(out, "p class=\"text\"", &suggestion.sentence);
        out.push_str("<div class=\"columns\">\n<div class=\"column\">\n");
        let percentiles = suggestion.percentiles.list().map(|(name, units)| (name, grouped(units)));
        let refuses = percent(suggestion.refuses_keys);
        facts(out, &[("refuses", format!("{refuses} of keys"))]);
        element(out, "h4", &capitalised(suggestion.measure.text()));
        facts(out, &percentiles);
        lines(out, &suggestion.yaml);
        out.push_str("</div>\n<div class=\"column\">\n");
        curve(out, &format!("rate-{index}"), suggestion);
        points(out, suggestion);
        out.push_str("</div>\n</div>\n</article>\n");
    }
    out.push_str("</section>\n");
}

fn points(out: &mut String, suggestion: &SuggestedRate) {
    if suggestion.curve.is_empty() {
        return;
    }
    out.push_str("<details><summary>The same as a table</summary>\n");
    let points = suggestion.curve.iter();
    let rows = points.map(|(rate, share)| vec![grouped(*rate), percent(*share)]);
    let columns =
        [HtmlColumn::Number(suggestion.measure.text()), HtmlColumn::Number("keys refused")];
    table(out, "Keys that a rate refuses at least once", &columns, &rows.collect::<Vec<_>>());
    out.push_str("</details>\n");
}
