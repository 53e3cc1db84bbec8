//! `POST /keys`: what one key has spent under one limit.
//!
//! The key is in the body, so that no log of URLs has it; it is hashed here and echoed nowhere. Nothing is changed. The
//! answer is a value; reading the request and checking tokens and hosts happens before.

use std::net::IpAddr;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminApi;
use crate::clock::Nanos;
use crate::engine::{KeyCell, KeyState, LookUpError, TypedKey};
use crate::limit::TypedRate;
use crate::ops::log::timestamp;
use crate::policy::{Count, KeyHash, KeyRule, Limit, LimitIndex, OverrideAction, Ruling};
use crate::proxy::Live;

/// The largest number of limits that an error names.
const MAX_NAMES: usize = 20;

/// The body of a question.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    limit: String,
    key: QuestionKey,
    /// The plan by whose rate the key is judged.
    plan: Option<String>,
}

/// A key as the client sends it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum QuestionKey {
    Single(String),
    Values(Vec<String>),
    /// The client's address in the stead of the key, for `missing_key: client_ip`.
    Address(AddressKey),
    Hash(HashKey),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressKey {
    client_ip: IpAddr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HashKey {
    pub(super) hash: String,
}

/// Why a question has no answer.
pub(super) struct Unanswered {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl Unanswered {
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail: detail.into() }
    }
}

impl AdminApi {
    /// Answers a question about a key.
    pub(super) async fn key_state(&self, question: &[u8]) -> Result<Value, Unanswered> {
        let Question { limit: name, key, plan } =
            serde_json::from_slice(question).map_err(|error| {
                let shape =
                    "write {\"limit\": \"NAME\", \"key\": \"KEY\"}, or \"key\": [\"PART\", ..], \
                     {\"hash\": \"..\"} or {\"client_ip\": \"ADDRESS\"}, and \"plan\" if need be";
                // The text of an error names fields and positions, never a value of the body.
                Unanswered::bad_request(match error.classify() {
                    serde_json::error::Category::Data => shape.to_owned(),
                    _ => format!("is no JSON (line {}); {shape}", error.line()),
                })
            })?;
        let live = self.live.load_full();
        let (index, cell) = self.locate(&live, &name, &key)?;
        self.state_of(&live, index, cell, plan.as_deref()).await
    }

    /// The limit of a name and the cell of a key.
    pub(super) fn locate(
        &self,
        live: &Live,
        name: &str,
        key: &QuestionKey,
    ) -> Result<(LimitIndex, KeyCell), Unanswered> {
        let mut limits = live.generation.policy().indexed_limits();
        let (index, _) = limits.find(|(_, limit)| *limit.name == *name).ok_or_else(|| {
            let known = live.generation.policy().limits.iter().take(MAX_NAMES);
            let known: Vec<&str> = known.map(|limit| &*limit.name).collect();
            let detail = format!(
                "the configuration in force has no limit of this name; it has {}",
                known.join(", ")
            );
            Unanswered { status: StatusCode::NOT_FOUND, detail }
        })?;
        let values: Vec<&str> = match key {
            QuestionKey::Single(value) => vec![value],
            QuestionKey::Values(values) => values.iter().map(String::as_str).collect(),
            QuestionKey::Address(_) | QuestionKey::Hash(_) => Vec::new(),
        };
        let typed = match key {
            QuestionKey::Address(AddressKey { client_ip }) => TypedKey::Address(*client_ip),
            QuestionKey::Hash(HashKey { hash }) => TypedKey::Hash(self.hash_of(name, hash)?),
            QuestionKey::Single(_) | QuestionKey::Values(_) => TypedKey::Values(&values),
        };
        let prefix = live.clients().ipv6_prefix;
        let cell = self.engine.locate_key(&live.generation, index, &typed, prefix);
        Ok((index, cell.map_err(unanswered)?))
    }

    /// A typed hash, unless a refusal is kept in which it belongs to another limit.
    fn hash_of(&self, limit: &str, typed: &str) -> Result<KeyHash, Unanswered> {
        let hash = parse_hash(typed)?;
        match self.counters.refusals().limit_of(hash) {
            Some(other) if *other != *limit => {
                Err(Unanswered::bad_request(format!("this is the hash of a key of limit {other}")))
            }
            Some(_) | None => Ok(hash),
        }
    }

    /// What the key of a cell has spent, and what holds for it.
    pub(super) async fn state_of(
        &self,
        live: &Live,
        index: LimitIndex,
        cell: KeyCell,
        plan: Option<&str>,
    ) -> Result<Value, Unanswered> {
        let state = self.engine.look_up_cell(&live.generation, index, cell, plan).await;
        let state = state.map_err(unanswered)?;
        Ok(self.answer_of(live, live.generation.policy().limit(index), &state))
    }

    fn answer_of(&self, live: &Live, limit: &Limit, state: &KeyState) -> Value {
        let date = self.engine.date(state.at);
        let at = |left: Nanos| timestamp(date.saturating_add(left).into());
        let verdict = &state.verdict;
        let rules = self.engine.key_rules();
        let rules = || {
            let of_key = |rule: &&KeyRule| rule.limit == limit.name && rule.key == state.key;
            rules.iter().filter(of_key).filter(|rule| rule.until > date)
        };
        let banned = rules().find(|rule| rule.ruling.is_ban()).map(|rule| {
            json!({ "until": timestamp(rule.until.into()), "reason": &*rule.reason, "by": &*rule.by })
        });
        let banned = banned.or_else(|| {
            state
                .banned_for
                .map(|left| json!({ "until": at(left), "reason": "penalty", "by": null }))
        });
        let overridden = rules().find(|rule| !rule.ruling.is_ban()).map(rule_json);
        let overridden = overridden.or_else(|| configured_override(limit, state));
        let is_spent = verdict.reset > Nanos::ZERO;
        json!({
            "limit": &*limit.name,
            "hash": state.key.to_string(),
            "tier": limit.count.tier().name(),
            "of": verdict.limit,
            "spent": state.spent(),
            "remaining": verdict.remaining,
            // When requests in flight end is not known.
            "full_at": (is_spent && !matches!(limit.count, Count::InFlight { .. }))
                .then(|| at(verdict.reset)),
            "ban": banned,
            "override": overridden,
            "generation": live.generation.number(),
        })
    }
}

/// A rule of an operator, without its key.
pub(super) fn rule_json(rule: &KeyRule) -> Value {
    let (rate, burst, action) = match rule.ruling {
        Ruling::Ban => (None, None, Some("ban")),
        Ruling::Allow => (None, None, Some("allow")),
        Ruling::Deny => (None, None, Some("deny")),
        Ruling::Rate { rate, burst } => (Some(TypedRate(rate).to_string()), burst, None),
    };
    json!({
        "rate": rate, "burst": burst, "action": action, "until": timestamp(rule.until.into()),
        "reason": &*rule.reason, "by": &*rule.by, "since": timestamp(rule.made_at.into()),
    })
}

/// The override of the configuration for a key.
fn configured_override(limit: &Limit, state: &KeyState) -> Option<Value> {
    let rule = limit.terms.overrides.get(state.overridden? as usize)?;
    let (rate, action) = match rule.action {
        OverrideAction::Allow => (None, Some("allow")),
        OverrideAction::Deny => (None, Some("deny")),
        OverrideAction::Rate(rate) => {
            (limit.quota(rate).map(|quota| TypedRate(quota.rate()).to_string()), None)
        }
    };
    Some(json!({ "rate": rate, "action": action, "until": null, "reason": "configuration" }))
}

/// The hash of a key: 32 hexadecimal digits.
fn parse_hash(text: &str) -> Result<KeyHash, Unanswered> {
    let is_hash = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parsed = is_hash.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| Unanswered::bad_request("a hash has 32 hexadecimal digits"))
}

pub(super) fn unanswered(error: LookUpError) -> Unanswered {
    let status = match error {
        LookUpError::UnknownPlan { .. } => StatusCode::NOT_FOUND,
        LookUpError::Key(_) | LookUpError::HashInFamily | LookUpError::OtherLimit => {
            StatusCode::BAD_REQUEST
        }
        LookUpError::Store => StatusCode::SERVICE_UNAVAILABLE,
    };
    Unanswered { status, detail: error.detail() }
}
