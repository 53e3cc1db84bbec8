//! What `tollgate ctl` prints of keys, overrides, the audit log and reloads.

use serde_json::Value;

use crate::cli::table::{TextTable, text};

/// What holds for a key.
pub(super) fn key(answer: &Value) -> String {
    let mut lines =
        vec![format!("limit {}, key {}", text(&answer["limit"]), text(&answer["hash"]))];
    if !answer["of"].is_null() {
        let full = match answer["full_at"].as_str() {
            Some(at) => format!(", all of it at {at}"),
            None => String::new(),
        };
        lines.push(format!(
            "spent {} of {}; {} left{full}",
            answer["spent"], answer["of"], answer["remaining"]
        ));
    }
    let ban = &answer["ban"];
    if !ban.is_null() {
        lines.push(format!("banned until {} ({})", text(&ban["until"]), text(&ban["reason"])));
    }
    let rule = &answer["override"];
    if !rule.is_null() {
        let until =
            rule["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
        lines.push(format!("override: {}{until} ({})", ruling(rule), text(&rule["reason"])));
    }
    lines.join("\n") + "\n"
}

/// The rules in force.
pub(super) fn overrides(answer: &Value) -> String {
    let mut table = TextTable::new(&["limit", "key", "rule", "until", "by", "reason"]);
    for row in answer["overrides"].as_array().into_iter().flatten() {
        let applies = if row["applies"] == false { " (the limit cannot follow it)" } else { "" };
        table.row(&[
            text(&row["limit"]),
            text(&row["hash"]),
            format!("{}{applies}", ruling(row)),
            text(&row["until"]),
            text(&row["by"]),
            text(&row["reason"]),
        ]);
    }
    table.or("no override and no ban of an operator is in force")
}

/// The audit log.
pub(super) fn audit(answer: &Value) -> String {
    let mut table =
        TextTable::new(&["time", "by", "from", "change", "limit", "key", "until", "reason"]);
    for row in answer["changes"].as_array().into_iter().flatten() {
        let detail = match row["detail"].as_str() {
            None | Some("") => String::new(),
            Some(detail) => format!(" {detail}"),
        };
        table.row(&[
            text(&row["time"]),
            text(&row["by"]),
            text(&row["from"]),
            format!("{}{detail}", text(&row["change"])),
            text(&row["limit"]),
            text(&row["hash"]),
            text(&row["until"]),
            text(&row["reason"]),
        ]);
    }
    table.or("nothing was changed since the process started")
}

/// The outcome of a reload.
pub(super) fn reload(answer: &Value) -> String {
    let mut lines = Vec::new();
    if answer["outcome"] == "applied" {
        lines.push(format!(
            "generation {} is in force: {}",
            answer["generation"],
            text(&answer["limits"])
        ));
        lines.extend(answer["changes"].as_array().into_iter().flatten().map(text));
    } else {
        lines.extend(answer["errors"].as_array().into_iter().flatten().map(text));
        lines.push("reload refused; the configuration in force stays".to_owned());
    }
    lines.join("\n") + "\n"
}

fn ruling(rule: &Value) -> String {
    match (rule["rate"].as_str(), &rule["burst"]) {
        (Some(rate), Value::Null) => rate.to_owned(),
        (Some(rate), burst) => format!("{rate} burst {burst}"),
        (None, _) => text(&rule["action"]),
    }
}
