//! The report of `tollgate state` as text.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use super::StateReport;
use crate::cli::table::{TextTable, shown};
use crate::clock::{Nanos, RoundedSpan};
use crate::engine::SavedLimit;
use crate::limit::{Quota, TypedRate};
use crate::policy::{KeyRule, Ruling};
use crate::state::{DirectoryUse, Inspection, SecretFinding};

/// Rows of rules and of damaged ranges that are shown.
const MAX_ROWS: usize = 20;

impl StateReport {
    pub(super) fn text(&self, found: &Inspection) -> String {
        let summary = found.summary();
        let bytes: u64 = summary.logs.iter().map(|log| log.bytes).sum();
        let frames: u64 = summary.logs.iter().map(|log| log.frames).sum();
        let logs = counted(summary.logs.len() as u64, "log");
        let mut text = format!("{}: {logs}, {bytes} bytes\n", self.directory);
        let mut fact = |label: &str, fact: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {label:<12} {fact}");
        };
        match found.usage() {
            DirectoryUse::By(process) => fact("in use", format!("by process {process}")),
            DirectoryUse::Unused => fact("in use", "by no process that can be seen".to_owned()),
            DirectoryUse::Unknown => fact("in use", "unknown: the system does not tell".to_owned()),
        }
        fact("last record", self.last_record(found));
        fact("last end", last_end(found).to_owned());
        fact(
            "key-secret",
            match found.secret() {
                SecretFinding::Fits => "the logs were written with it".to_owned(),
                SecretFinding::Other => {
                    "the logs were written with another one; put that one back".to_owned()
                }
                SecretFinding::Missing => {
                    "missing: no key can be found again; put it back".to_owned()
                }
                SecretFinding::Unusable(error) => error.to_string(),
            },
        );
        if let Some(first) = found.recovery().first_replayed() {
            fact("restored", format!("from log {first} on"));
        }
        self.write_damage(&mut text, found);
        text += "\nlimits\n";
        text += &indented(&limits(&self.contents.limits()));
        text += "\nbans\n";
        let (banned, denied) = (self.contents.banned(self.now), self.contents.denied());
        let keys = |number| counted(number as u64, "key");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {} banned, {} with denials", keys(banned), keys(denied));
        text += "\nhistory\n";
        let minutes = counted(self.minutes.count() as u64, "minute");
        let _ = writeln!(text, "  {minutes} with traffic");
        text += "\nrules of operators\n";
        text += &indented(&rules(self.contents.rules()));
        if self.older_unreadable.is_some() {
            let outcome = if self.is_damaged(found) { "damaged" } else { "nothing is damaged" };
            let _ = writeln!(text, "\nverified {frames} frames in {logs}: {outcome}");
        }
        text
    }

    fn last_record(&self, found: &Inspection) -> String {
        let summary = found.summary();
        let Some(last) = summary.last else {
            return "none".to_owned();
        };
        let at = format!("log {}, up to byte {}", last.log, last.bytes);
        match (&summary.mark, self.age) {
            (Some(mark), Some(age)) => {
                let date = date(mark.date);
                format!("{date}, {} ago ({at})", RoundedSpan(age))
            }
            _ => at,
        }
    }

    fn write_damage(&self, text: &mut String, found: &Inspection) {
        let mut lines: Vec<String> = Vec::new();
        for damage in found.damage() {
            let (log, at, bytes) = (damage.log, damage.at, counted(damage.bytes, "byte"));
            lines.push(match damage.is_tail {
                true => {
                    format!("log {log} ends after {at} bytes; {bytes} behind that cannot be read")
                }
                false => format!("log {log}: {bytes} from byte {at} on cannot be read"),
            });
        }
        let missing = found.summary().logs.iter().filter(|log| log.missing > 0);
        lines.extend(
            missing.map(|log| {
                format!("log {}: {} missing", log.number, counted(log.missing, "frame"))
            }),
        );
        if self.unreadable() > 0 {
            lines.push(format!(
                "{}: not what any tollgate of this version writes",
                counted(self.unreadable(), "record")
            ));
        }
        if lines.is_empty() {
            return;
        }
        *text += "\ndamaged, and left out by a start\n";
        let more = lines.len().saturating_sub(MAX_ROWS);
        lines.truncate(MAX_ROWS);
        lines.extend((more > 0).then(|| format!("and {more} more")));
        *text += &indented(&(lines.join("\n") + "\n"));
    }
}

fn last_end(found: &Inspection) -> &'static str {
    let summary = found.summary();
    match (found.usage(), summary.is_clean) {
        (DirectoryUse::By(_), _) => "it runs",
        (_, true) => "orderly: nothing is lost",
        (_, false) if summary.logs.is_empty() => "nothing was written",
        (_, false) if summary.has_orderly_end => {
            "orderly, but not all that was written can be read"
        }
        (_, false) => "a crash, a kill or a loss of power: what was not written is lost",
    }
}

fn limits(limits: &[SavedLimit]) -> String {
    let mut table = TextTable::new(&["limit", "cells", "counts", "after a crash"]);
    for limit in limits {
        let count = |quota: &Quota| format!("{} {}", quota.name(), TypedRate(quota.rate()));
        let mut counts: Vec<String> = limit.quotas.iter().map(count).collect();
        // Quotas may differ in what is not shown, as by the delay of an earlier configuration.
        counts.dedup();
        let after = if limit.denies_after_crash { "deny" } else { "allow" };
        table.row(&[
            shown(&limit.name),
            limit.cells.to_string(),
            counts.join(", "),
            after.to_owned(),
        ]);
    }
    table.or("none")
}

fn rules(rules: &[KeyRule]) -> String {
    let mut table = TextTable::new(&["limit", "key", "rule", "until", "by", "reason"]);
    for rule in rules.iter().take(MAX_ROWS) {
        table.row(&[
            shown(&rule.limit),
            rule.key.to_string(),
            ruling(rule.ruling),
            date(rule.until),
            shown(&rule.by),
            shown(&rule.reason),
        ]);
    }
    let more = rules.len().saturating_sub(MAX_ROWS);
    let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
    table.or("none") + &more
}

fn ruling(ruling: Ruling) -> String {
    match ruling {
        Ruling::Ban => "ban".to_owned(),
        Ruling::Allow => "allow".to_owned(),
        Ruling::Deny => "deny".to_owned(),
        Ruling::Rate { rate, burst: None } => TypedRate(rate).to_string(),
        Ruling::Rate { rate, burst: Some(burst) } => format!("{} burst {burst}", TypedRate(rate)),
    }
}

/// A number of things.
fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

fn date(at: Nanos) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from(at)).to_string()
}
