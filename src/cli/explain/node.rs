//! What a running process says of the keys of a request.
//!
//! The questions are made from the same values that the explanation shows, and are asked only if they stand for the key
//! and the rate that were explained. Where they do not, where a process does not answer, or does not know a limit, a reason
//! stands instead of the numbers.

use http::StatusCode;
use serde_json::{Value, json};

use crate::cli::admin_client::AdminClient;
use crate::engine::LimitVerdict;
use crate::policy::client::RequestClient;
use crate::policy::{KeyHash, KeySecret, Limit, OverrideTarget, Policy, RateSource, Source};

/// The secret of the explaining engine.
pub(super) const SECRET: KeySecret = KeySecret::new([0; 16]);

/// What the process says of the key of one limit. `parts` are those of the explanation.
pub(super) fn state_of(
    client: &AdminClient,
    policy: &Policy,
    verdict: &LimitVerdict,
    parts: &[Value],
    request: RequestClient,
) -> Value {
    let limit = policy.limit(verdict.limit);
    let asked = plan_of(limit, verdict)
        .and_then(|plan| Ok((plan, question_key(limit, verdict.key, parts, request)?)));
    let (plan, key) = match asked {
        Ok(asked) => asked,
        Err(why) => return json!({ "error": why }),
    };
    let question = json!({ "limit": &*limit.name, "key": key, "plan": plan });
    match client.post("/keys", &question) {
        Ok((StatusCode::OK, state)) => state,
        Ok((status, problem)) => {
            let detail = problem["detail"].as_str().or(problem.as_str()).unwrap_or_default();
            json!({ "error": format!("{status}: {detail}") })
        }
        Err(why) => json!({ "error": why }),
    }
}

/// The plan whose rate applies. The process finds overrides by key itself, and knows no request that others could match.
fn plan_of<'p>(limit: &'p Limit, verdict: &LimitVerdict) -> Result<Option<&'p str>, String> {
    match verdict.rate_source {
        RateSource::Own | RateSource::KeyRule => Ok(None),
        RateSource::Plan(index) => {
            let mut plans = limit.terms.plans.iter().flat_map(|plans| &plans.rates);
            Ok(plans.nth(index as usize).map(|(name, _)| &**name))
        }
        RateSource::Override(index) => {
            let rule = limit.terms.overrides.get(index as usize);
            match rule.map(|rule| &rule.target) {
                Some(OverrideTarget::Keys(_)) => Ok(None),
                Some(OverrideTarget::Network(_) | OverrideTarget::Class(_)) | None => Err(format!(
                    "because overrides[{index}] gives the rate by network or class, and the \
                     process is asked for a key only"
                )),
            }
        }
    }
}

/// The key as the process can be asked for it. It has to stand for the very key that was judged: a text may be decoded
/// once more, and not every key is a text.
fn question_key(
    limit: &Limit,
    judged: KeyHash,
    parts: &[Value],
    request: RequestClient,
) -> Result<Value, String> {
    let (hasher, prefix) = (SECRET.hasher(limit), request.ipv6_prefix);
    let values: Option<Vec<&str>> = parts.iter().map(|part| part["value"].as_str()).collect();
    let Some(values) = values else {
        // A part is absent: the limit took the address instead.
        let is_judged = hasher.hash_address(request.ip, prefix) == judged;
        return is_judged
            .then(|| json!({ "client_ip": request.ip }))
            .ok_or_else(|| "because a part of the key is absent".to_owned());
    };
    let means_judged = |texts: &[&str]| {
        let values = limit.key.typed_values(texts, prefix);
        values.is_ok_and(|values| limit.key.hash_values(&hasher, &values) == judged)
    };
    if means_judged(&values) {
        return Ok(json!(values));
    }
    // The process decodes the value of a cookie, which is decoded here already.
    let encode = |(value, source): (&&str, &Source)| match source {
        Source::Cookie(_) => encoded_cookie(value),
        _ => (*value).to_owned(),
    };
    let encoded: Vec<String> = values.iter().zip(limit.key.sources()).map(encode).collect();
    let encoded: Vec<&str> = encoded.iter().map(String::as_str).collect();
    if means_judged(&encoded) {
        return Ok(json!(encoded));
    }
    Err("because this key cannot be written as text (a shard, or bytes that are no UTF-8)"
        .to_owned())
}

/// The value of a cookie, with escapes for what origins would read in different ways.
fn encoded_cookie(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '%' | ';' | ',' | '"' | '\\' => {
                encoded.push_str(&format!("%{:02X}", u32::from(letter)))
            }
            other => encoded.push(other),
        }
    }
    encoded
}

/// What the process would answer now: the first limit that would refuse, or what is not known. `limits` are those of the
/// explanation, with what the process says of each.
pub(super) fn decision(limits: &[Value]) -> Value {
    let enforced = || limits.iter().filter(|limit| limit["shadow"] != true);
    let differs: Vec<String> = limits.iter().filter_map(difference).collect();
    if let Some((limit, why)) = enforced().find_map(|limit| Some((limit, refusal(limit)?))) {
        return json!({ "decision": "limited", "limit": limit["limit"], "why": why, "differs": differs });
    }
    let unknown = enforced().find(|limit| limit["now"]["error"].is_string());
    match unknown {
        Some(limit) => json!({
            "decision": "unknown", "limit": limit["limit"], "why": limit["now"]["error"], "differs": differs,
        }),
        None => json!({ "decision": "allowed", "limit": null, "why": null, "differs": differs }),
    }
}

/// Why a limit of the process would refuse the request.
fn refusal(limit: &Value) -> Option<String> {
    let now = &limit["now"];
    if let Some(until) = now["ban"]["until"].as_str() {
        return Some(format!("the key is banned until {until}"));
    }
    match now["override"]["action"].as_str() {
        Some("allow") => return None,
        Some("deny") => return Some("an override denies the key".to_owned()),
        _ => {}
    }
    if limit["refuses"] == true {
        return Some("it refuses with nothing spent".to_owned());
    }
    let (remaining, cost) = (now["remaining"].as_u64()?, limit["cost"].as_u64()?);
    (remaining < cost)
        .then(|| format!("{} of {} are spent, and it costs {cost}", now["spent"], now["of"]))
}

/// How a limit of the process differs from that of the file.
fn difference(limit: &Value) -> Option<String> {
    let (now, file) = (limit["now"]["of"].as_u64()?, limit["of"].as_u64()?);
    let is_other = now != file && limit["now"]["override"]["action"].is_null();
    let name = limit["limit"].as_str().unwrap_or_default();
    is_other.then(|| {
        format!(
            "limit {name} is {now} there and {file} in the file: it has another version of the file"
        )
    })
}

/// The decision as lines, the first with a name.
pub(super) fn decision_lines(decision: &Value) -> String {
    let word = decision["decision"].as_str().unwrap_or_default();
    let mut lines = match (decision["limit"].as_str(), decision["why"].as_str()) {
        (Some(limit), Some(why)) if word == "unknown" => {
            format!("now        unknown for {limit}: {why}\n")
        }
        (Some(limit), Some(why)) => format!("now        {word} by {limit}: {why}\n"),
        _ => format!("now        {word}\n"),
    };
    for difference in decision["differs"].as_array().into_iter().flatten().filter_map(Value::as_str)
    {
        lines.push_str(&format!("           {difference}\n"));
    }
    lines
}

/// The state as one line.
pub(super) fn line(state: &Value) -> String {
    if let Some(error) = state["error"].as_str() {
        return format!("now: unknown, {error}");
    }
    let mut line = format!("now: {} of {} spent", state["spent"], state["of"]);
    if let Some(full_at) = state["full_at"].as_str() {
        line.push_str(&format!(", full again at {full_at}"));
    }
    if let Some(until) = state["ban"]["until"].as_str() {
        line.push_str(&format!(", banned until {until}"));
    }
    line
}
