//! The sentences that the text and the page share.

use super::format::{counted, counted_keys, grouped, keys, percent_of, shown};
use super::{BrokenLineKind, ComparedPolicy, Percentiles, Report};
use crate::replay::compare::{DecisionChange, LimitComparison};
use crate::replay::names::LimitLabel;
use crate::replay::tally::Dominance;

/// Characters of a file's name or a kind of broken lines.
const MAX_NAME: usize = 200;

/// How many requests and keys the policy would refuse.
pub(super) fn verdict(report: &Report) -> String {
    let summary = &report.summary;
    let policy = shown(&report.policy, MAX_NAME);
    let (all, refused) = summary.keys();
    match (summary.requests, summary.refused) {
        (0, _) => "No request could be judged.".to_owned(),
        (requests, 0) => {
            format!("{policy} would refuse none of {}.", counted(requests, "request"))
        }
        (requests, number) => {
            let share = percent_of(number, requests);
            let (number, requests) = (grouped(number), counted(requests, "request"));
            let per_limit = if summary.limits.len() > 1 { " (summed over the limits)" } else { "" };
            let keys = format!("{} of {}{per_limit}", keys(refused), counted_keys(all));
            let without_key = match summary.refused_without_key {
                0 => String::new(),
                requests => format!("; {} of them without a key", grouped(requests)),
            };
            format!("{policy} would refuse {number} of {requests} ({share}), {keys}{without_key}.")
        }
    }
}

/// What the counts themselves say of their limits.
pub(super) fn caveats(report: &Report) -> Vec<String> {
    let mut sentences: Vec<String> = report.lines.broken.iter().map(broken).collect();
    if report.lines.late > 0 {
        let late = counted(report.lines.late, "line");
        sentences.push(format!("{late} came too late to be judged in order"));
    }
    if report.lines.repeated > 0 {
        let repeated = counted(report.lines.repeated, "line");
        sentences.push(format!(
            "{repeated} of tollgate's own log came twice, as where two files overlap, and were judged once"
        ));
    }
    let earlier = &report.summary.earlier;
    if earlier.too_many_requests > 0 || earlier.unavailable > 0 {
        let (limited, unavailable) =
            (grouped(earlier.too_many_requests), grouped(earlier.unavailable));
        sentences.push(format!(
            "{limited} requests were answered with 429 and {unavailable} with 503 when they were \
             logged: clients that are refused back off, so the true demand may be higher; replay a \
             log that is older than the limits"
        ));
    }
    if report.summary.limits.iter().any(|limit| limit.keys.is_estimate) {
        sentences.push(
            "there are more keys than are remembered: numbers of keys with \"about\" are \
             estimates, and numbers with \">=\" are lower bounds; --from and --to judge a shorter \
             time"
                .to_owned(),
        );
    }
    sentences
}

/// Broken lines of one kind, by their numbers.
fn broken(lines: &BrokenLineKind) -> String {
    let first =
        lines.first.iter().map(|line| format!("{}:{}", shown(&line.file, MAX_NAME), line.line));
    let first: Vec<String> = first.collect();
    let first = match first.is_empty() {
        true => String::new(),
        false => format!(": {}", first.join(", ")),
    };
    let more =
        if lines.number > lines.first.len() as u64 && !first.is_empty() { ", .." } else { "" };
    let kind = shown(&lines.kind, MAX_NAME);
    format!("{} could not be read ({kind}){first}{more}", counted(lines.number, "line"))
}

/// The settings of a limit.
pub(super) fn settings(label: &LimitLabel) -> String {
    let LimitLabel { key, rate, algorithm, tier, max_delay, is_shadow, rollout, .. } = label;
    let mut text = format!("{rate} of {key}, {algorithm}, {tier}");
    if let Some(delay) = max_delay {
        text.push_str(&format!(", delays up to {delay}"));
    }
    if let Some(rollout) = rollout {
        text.push_str(&format!(", rollout {rollout}"));
    }
    if *is_shadow {
        text.push_str(", shadow mode: refuses nothing");
    }
    text
}

/// How much heavy keys dominate.
pub(super) fn dominance(found: &Dominance) -> String {
    let at_least = if found.is_lower_bound { "at least " } else { "" };
    let share = |number: u64| percent_of(number, found.total);
    let mut text = format!("the heaviest has {at_least}{} of the refusals", share(found.first));
    for (keys, number, fewer) in
        [(10, found.first_10, found.first), (100, found.first_100, found.first_10)]
    {
        if number > fewer {
            text.push_str(&format!(", the {keys} heaviest {}", share(number)));
        }
    }
    text
}

/// The bounds of a number of refusals.
pub(super) fn bounds(lower: u64, upper: u64) -> String {
    if lower == upper {
        return format!("exactly {}, although times are not exact", counted(lower, "request"));
    }
    let (lower, upper) = (grouped(lower), grouped(upper));
    format!("between {lower} and {upper} requests, because the log is not exact")
}

/// Requests and keys whose decision changes.
pub(super) fn change(change: &DecisionChange, limits: usize) -> String {
    if change.requests == 0 {
        return "no request".to_owned();
    }
    let requests = counted(change.requests, "request");
    // Equal keys of two limits are two keys.
    let summed = if limits > 1 { " (summed over the limits)" } else { "" };
    let with_key =
        (change.keys.number > 0).then(|| format!("{}{summed}", counted_keys(change.keys)));
    let without_key = (change.without_key > 0)
        .then(|| format!("{} that no key decides", counted(change.without_key, "request")));
    let deciding: Vec<String> = with_key.into_iter().chain(without_key).collect();
    format!("{requests}: {}", deciding.join(", "))
}

/// Requests that only one of two policies could judge, so that nothing of them is compared.
pub(super) fn uncompared(report: &Report, compared: &ComparedPolicy) -> Option<String> {
    let sides = [
        (compared.comparison.only_live, &report.policy),
        (compared.comparison.only_other, &compared.other),
    ];
    let told = sides.iter().filter(|(requests, _)| *requests > 0).map(|(requests, policy)| {
        format!(
            "{} that only {} could judge",
            counted(*requests, "request"),
            shown(policy, MAX_NAME)
        )
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("not compared: {}", told.join(", ")))
}

/// The rate of a limit in the live and the other policy.
pub(super) fn in_policies(limit: &LimitComparison) -> String {
    let rate = |label: &LimitLabel| {
        let shadow = if label.is_shadow { " (shadow)" } else { "" };
        format!("{}{shadow}", label.rate)
    };
    match (limit.live.as_ref().map(rate), limit.other.as_ref().map(rate)) {
        (Some(live), Some(other)) if live == other => live,
        (Some(live), Some(other)) => format!("{live} → {other}"),
        (Some(live), None) => format!("{live} → removed"),
        (None, Some(other)) => format!("new → {other}"),
        (None, None) => String::new(),
    }
}

impl Percentiles {
    /// The percentiles with their names.
    pub(super) const fn list(self) -> [(&'static str, u64); 5] {
        let Self { p50, p90, p99, p99_9, max } = self;
        [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p99_9), ("max", max)]
    }
}
