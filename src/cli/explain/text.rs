//! An explanation as text. Its JSON is the only source.

use serde_json::Value;

/// The explanation as lines of text, without the earlier routes.
pub(super) fn lines(explanation: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        // A decoded value may hold what a terminal would carry out.
        Value::String(text) => text.replace(char::is_control, "\u{fffd}"),
        other => other.to_string(),
    };
    let mut lines = String::new();
    let listener = &explanation["listener"];
    match (&listener["listener"], &listener["assumed"]) {
        (Value::Null, Value::Null) => {}
        (Value::String(name), Value::Null) => lines.push_str(&format!("listener   {name}\n")),
        (name, why) => lines.push_str(&format!("listener   {}: {}\n", text(name), text(why))),
    }
    let decision_of_node = &explanation["now"];
    for name in [
        "client_ip",
        "host",
        "path",
        "route",
        "rewritten",
        "origin",
        "decision",
        "status",
        "location",
        "reason",
    ] {
        if let Some(value) = explanation.get(name).filter(|value| !value.is_null()) {
            let with_node = name == "decision" && !decision_of_node.is_null();
            let condition = if with_node { " with nothing spent" } else { "" };
            lines.push_str(&format!("{name:<10} {}{condition}\n", text(value)));
        }
    }
    let unreadable = &explanation["unreadable_condition"];
    if let (Value::String(of), Value::String(why)) = (&unreadable["of"], &unreadable["why"]) {
        lines.push_str(&format!("           {of}: {why}\n"));
    }
    if !decision_of_node.is_null() {
        lines.push_str(&super::node::decision_lines(decision_of_node));
    }
    for limit in explanation["limits"].as_array().into_iter().flatten() {
        let shadow = if limit["shadow"] == true { ", shadow" } else { "" };
        let refuses = if limit["refuses"] == true { ", refuses" } else { "" };
        let cost = match limit["cost"].is_null() {
            true => String::new(),
            false => format!("cost {} of {}, ", limit["cost"], limit["of"]),
        };
        lines.push_str(&format!(
            "limit      {} ({}{shadow}{refuses}): {cost}key {}\n",
            text(&limit["limit"]),
            text(&limit["tier"]),
            text(&limit["key"]),
        ));
        for name in ["rate", "why"] {
            if let Value::String(line) = &limit["rate"][name] {
                lines.push_str(&format!("           {line}\n"));
            }
        }
        for part in limit["parts"].as_array().into_iter().flatten() {
            let value = match &part["value"] {
                Value::Null => {
                    format!("absent ({}): {}", text(&limit["missing_key"]), text(&part["absent"]))
                }
                value => text(value),
            };
            lines.push_str(&format!("           {} = {value}\n", text(&part["source"])));
        }
        if !limit["now"].is_null() {
            lines.push_str(&format!("           {}\n", super::node::line(&limit["now"])));
        }
    }
    for token in explanation["rejected_tokens"].as_array().into_iter().flatten() {
        let (from, claim, why) = (text(&token["from"]), text(&token["claim"]), text(&token["why"]));
        lines.push_str(&format!("token      of {from} is not believed (claim {claim}): {why}\n"));
    }
    for token in explanation["absent_tokens"].as_array().into_iter().flatten() {
        let (from, claim, why) = (text(&token["from"]), text(&token["claim"]), text(&token["why"]));
        lines.push_str(&format!("token      none in {from} (claim {claim}): {why}\n"));
    }
    for skipped in explanation["skipped_limits"].as_array().into_iter().flatten() {
        let (limit, why) = (text(&skipped["limit"]), text(&skipped["why"]));
        lines.push_str(&format!("limit      {limit} does not apply: {why}\n"));
    }
    lines
}
