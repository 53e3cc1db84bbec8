//! What `ctl` says of traffic: refusals, refused keys, minutes and the status, as text for people.
//!
//! It reads the JSON of the admin API and nothing else; what is missing there shows as nothing. Values come from a running
//! process and may have any characters, which tables escape.

use clap::Args;
use serde_json::Value;

use crate::cli::table::{TextTable, text};

/// Which refusals are listed.
#[derive(Debug, Args)]
pub(super) struct RefusalsArgs {
    /// Only those that this limit refused, or for which the request had no key.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Only those of this route.
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Only those since a date (2026-11-26T03:00:00Z), or in the last span (10m).
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// How many, up to 1000.
    #[arg(long, value_name = "N")]
    count: Option<usize>,
}

/// Whose keys are listed.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// The limit.
    #[arg(value_name = "LIMIT")]
    limit: String,
    /// The present hour and so many before it, up to 24.
    #[arg(long, value_name = "N")]
    hours: Option<u64>,
    /// How many keys.
    #[arg(long, value_name = "N")]
    count: Option<usize>,
}

/// Which minutes are shown.
#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// How many, up to 1440.
    #[arg(long, value_name = "N")]
    minutes: Option<usize>,
    /// Only this route.
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
}

impl RefusalsArgs {
    pub(super) fn path(&self) -> String {
        let count = self.count.map(|count| count.to_string());
        path(
            "/refusals",
            &[
                ("limit", self.limit.as_deref()),
                ("route", self.route.as_deref()),
                ("since", self.since.as_deref()),
                ("count", count.as_deref()),
            ],
        )
    }
}

impl TopArgs {
    pub(super) fn path(&self) -> String {
        let (hours, count) = (self.hours.map(|n| n.to_string()), self.count.map(|n| n.to_string()));
        let limit = Some(&*self.limit);
        path("/top", &[("limit", limit), ("hours", hours.as_deref()), ("count", count.as_deref())])
    }
}

impl HistoryArgs {
    pub(super) fn path(&self) -> String {
        let minutes = self.minutes.map(|minutes| minutes.to_string());
        path("/history", &[("minutes", minutes.as_deref()), ("route", self.route.as_deref())])
    }
}

/// Where one refusal is asked for.
pub(super) fn why_path(id: &str) -> String {
    // A space is `+` in a query only.
    let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("/refusals/{}", escaped.replace('+', "%20"))
}

/// A path with the parameters that have a value.
fn path(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let mut query = form_urlencoded::Serializer::new(String::new());
    given.for_each(|(name, value)| {
        query.append_pair(name, value);
    });
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// The latest refusals as a table.
pub(super) fn refusals(answer: &Value) -> String {
    let mut table =
        TextTable::new(&["time", "status", "route", "reason", "limit", "key", "request"]);
    for refusal in list(&answer["refusals"]) {
        let limit = deciding(refusal);
        table.row(&[
            text(&refusal["time"]),
            text(&refusal["status"]),
            text(&refusal["route"]),
            text(&refusal["reason"]),
            text(&limit["name"]),
            text(&limit["key_hash"]),
            text(&refusal["request_id"]),
        ]);
    }
    let mut text = table.or("nothing was refused");
    if answer["more"] == true {
        text.push_str("there are more; --count shows up to 1000\n");
    }
    text
}

/// The limit that refuses first, or the first.
fn deciding(refusal: &Value) -> &Value {
    let limits = list(&refusal["limits"]);
    let refuses = |limit: &&Value| {
        let verdict = limit["verdict"].as_str().unwrap_or_default();
        limit["shadow"] != true && !verdict.ends_with("allowed")
    };
    limits.iter().find(refuses).or(limits.first()).unwrap_or(&Value::Null)
}

/// Why one request was refused.
pub(super) fn why(refusal: &Value) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push_str(&format!("{name:<14} {value}\n"));
        }
    };
    line("request", text(&refusal["request_id"]));
    line("time", text(&refusal["time"]));
    line("route", text(&refusal["route"]));
    line("status", text(&refusal["status"]));
    line("reason", explained(refusal));
    line("client", text(&refusal["client_ip"]));
    line("authenticated", yes_or_no(&refusal["authenticated"]).to_owned());
    line("degraded", yes_or_no(&refusal["degraded"]).to_owned());
    line("generation", text(&refusal["generation"]));
    line(
        "would pass",
        match refusal["retry_at"].as_str() {
            Some(_) => text(&refusal["retry_at"]),
            None => "not at any known time".to_owned(),
        },
    );
    if let Some(earlier @ 1..) = refusal["earlier"].as_u64() {
        line("earlier", format!("{earlier} with the same identifier"));
    }
    let mut table = TextTable::new(&[
        "limit",
        "verdict",
        "spent",
        "of",
        "cost",
        "rate",
        "algorithm",
        "tier",
        "by",
        "would pass",
        "key",
    ]);
    for limit in list(&refusal["limits"]) {
        let note = match (limit["banned"] == true, limit["shadow"] == true) {
            (true, _) => " (ban)",
            (false, true) => " (shadow)",
            (false, false) => "",
        };
        let by = match (limit["plan"].as_str(), limit["override"].as_str()) {
            (Some(_), _) => format!("plan {}", text(&limit["plan"])),
            (None, Some(_)) => text(&limit["override"]),
            (None, None) => String::new(),
        };
        table.row(&[
            text(&limit["name"]),
            text(&limit["verdict"]) + note,
            text(&limit["spent"]),
            text(&limit["limit"]),
            text(&limit["cost"]),
            text(&limit["rate"]),
            text(&limit["algorithm"]),
            text(&limit["tier"]),
            by,
            text(&limit["retry_at"]),
            text(&limit["key_hash"]),
        ]);
    }
    lines.push('\n');
    lines.push_str(&table.or("no limit is recorded"));
    if let Some(left_out @ 1..) = refusal["limits_left_out"].as_u64() {
        lines.push_str(&format!("and {left_out} more limits that there was no room for\n"));
    }
    lines
}

/// Whether requests are served, and whether as they should be.
fn readiness(answer: &Value) -> String {
    match (answer["ready"] == true, answer["store"]["up"] == false) {
        (true, true) => "degraded: the store does not answer".to_owned(),
        (true, false) => "yes".to_owned(),
        (false, _) => "no".to_owned(),
    }
}

fn store(store: &Value) -> String {
    let state = if store["up"] == false { ", away" } else { "" };
    format!("{}{state}", text(&store["kind"]))
}

/// The reason in words.
fn explained(refusal: &Value) -> String {
    let limit = text(&deciding(refusal)["name"]);
    match refusal["reason"].as_str().unwrap_or_default() {
        "limit" if is_denied(deciding(refusal)) => {
            format!("an override of limit {limit} denies the key{}", rule(deciding(refusal)))
        }
        "limit" => format!("limit {limit} has no room for it"),
        "ban" if !deciding(refusal)["rule"].is_null() => {
            format!("an operator has banned the key from limit {limit}{}", rule(deciding(refusal)))
        }
        "ban" => format!("limit {limit} has banned the key, for too many refusals"),
        "store_outage" => format!("the store of limit {limit} does not answer"),
        "missing_key" => format!("it has no key for limit {limit}"),
        "repeated_key" => format!("it has the key of limit {limit} more than once"),
        "unreadable_key" => format!("origins could read its key for limit {limit} differently"),
        "no_token_keys" => format!("the keys that verify tokens for limit {limit} are missing"),
        _ => text(&refusal["reason"]),
    }
}

/// Whether an override refuses every request of the key.
fn is_denied(limit: &Value) -> bool {
    limit["denied"] == true
}

/// The rule of an operator that still holds for the key: until when, and why.
fn rule(limit: &Value) -> String {
    let rule = &limit["rule"];
    match rule["until"].as_str() {
        Some(until) => format!(" until {until}: {}", text(&rule["reason"])),
        None => String::new(),
    }
}

/// The keys that a limit refuses most.
pub(super) fn top(answer: &Value) -> String {
    let mut table = TextTable::new(&["refused", "error", "address", "key"]);
    for key in list(&answer["keys"]) {
        table.row(&[
            text(&key["refused"]),
            text(&key["error"]),
            text(&key["address"]),
            text(&key["hash"]),
        ]);
    }
    let (refused, from) = (text(&answer["refused"]), text(&answer["from"]));
    let mut text_of = format!("{refused} refusals since {from}");
    if answer["shared"] == true {
        text_of.push_str(", of this and other limits without a list of their own");
    }
    text_of.push_str(".\n");
    text_of.push_str(&table.or("this limit refused no key"));
    let senders = list(&answer["senders"]);
    if !senders.is_empty() {
        let mut table = TextTable::new(&["sent", "spent", "key"]);
        for sender in senders {
            table.row(&[text(&sender["sent"]), text(&sender["spent"]), text(&sender["hash"])]);
        }
        text_of.push_str("\nheaviest senders now\n");
        text_of.push_str(&table.or(""));
    }
    text_of
}

/// The last minutes: the sums of all routes that were asked for.
pub(super) fn history(answer: &Value) -> String {
    let mut table = TextTable::new(&[
        "minute",
        "forwarded",
        "limited",
        "authenticated",
        "rejected",
        "failed",
        "redirected",
    ]);
    for minute in list(&answer["minutes"]) {
        let total = &minute["total"];
        let note = if minute["complete"] == false { " (so far)" } else { "" };
        table.row(&[
            text(&minute["time"]) + note,
            text(&total["forwarded"]),
            text(&total["limited"]),
            text(&total["limited_authenticated"]),
            text(&total["rejected"]),
            text(&total["failed"]),
            text(&total["redirected"]),
        ]);
    }
    table.or("nothing is kept yet")
}

/// The status of the process.
pub(super) fn status(answer: &Value) -> String {
    let mut lines = String::new();
    for (name, value) in [
        ("version", text(&answer["version"])),
        ("ready", readiness(answer)),
        ("store", store(&answer["store"])),
        ("generation", text(&answer["generation"])),
        ("configuration", text(&answer["configuration"])),
        ("uptime", text(&answer["uptime_seconds"]) + " s"),
        ("connections", text(&answer["connections"])),
        ("last reload", reload(&answer["last_reload"])),
    ] {
        lines.push_str(&format!("{name:<14} {value}\n"));
    }
    let is_shared = answer["store"]["kind"] == "redis";
    let mut limits = TextTable::new(&["limit", "tier", "cells"]);
    for limit in list(&answer["limits"]) {
        let cells = match is_shared {
            true => "in the store".to_owned(),
            false => text(&limit["cells"]),
        };
        let cells = if limit["tier"] == "exact" { cells } else { String::new() };
        limits.row(&[text(&limit["name"]), text(&limit["tier"]), cells]);
    }
    let mut origins = TextTable::new(&["origin", "healthy", "servers"]);
    for origin in list(&answer["origins"]) {
        origins.row(&[text(&origin["name"]), text(&origin["healthy"]), text(&origin["servers"])]);
    }
    format!("{lines}\n{}\n{}", limits.or("no limits"), origins.or("no origins"))
}

fn reload(reload: &Value) -> String {
    if reload.is_null() {
        return "none".to_owned();
    }
    let errors =
        list(&reload["errors"]).iter().map(|error| format!("\n               {}", text(error)));
    let errors: String = errors.collect();
    format!("{} at {}{errors}", text(&reload["outcome"]), text(&reload["at"]))
}

fn yes_or_no(value: &Value) -> &'static str {
    if value == true { "yes" } else { "no" }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_escaped() {
        let args = RefusalsArgs {
            limit: Some("a&b=c d".to_owned()),
            route: None,
            since: Some("2026-11-26T03:00:00+01:00".to_owned()),
            count: Some(5),
        };
        assert_eq!(
            args.path(),
            "/refusals?limit=a%26b%3Dc+d&since=2026-11-26T03%3A00%3A00%2B01%3A00&count=5"
        );
        assert_eq!(HistoryArgs { minutes: None, route: None }.path(), "/history");
        assert_eq!(why_path("a/b+c d%?#"), "/refusals/a%2Fb%2Bc%20d%25%3F%23");
    }

    #[test]
    fn hostile_values_do_not_reach_the_terminal() {
        let refusal = serde_json::json!({
            "request_id": "\u{1b}[2J", "reason": "\u{1b}]0;", "route": "\u{9b}", "limits": [{ "name": "\n" }],
        });
        for shown in [why(&refusal), refusals(&serde_json::json!({ "refusals": [refusal] }))] {
            assert!(!shown.contains(['\u{1b}', '\u{9b}']), "{shown:?}");
        }
        for odd in [Value::Null, serde_json::json!([1]), serde_json::json!({ "keys": 7 })] {
            let shown = [why, refusals, top, history, status].map(|print| print(&odd));
            assert!(shown.iter().all(|shown| !shown.is_empty()));
        }
    }
}
