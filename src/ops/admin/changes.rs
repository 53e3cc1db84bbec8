//! `POST /keys/reset`, `/keys/ban`, `/keys/unban` and `/keys/override`, `POST /reload`; `GET /overrides` and `/audit`.
//!
//! A change names a key as `POST /keys` does, and a reason. It is made, recorded in the audit log, and answered with what
//! holds for the key afterwards. Whether the caller may change anything is checked before. What must always hold: what
//! is recorded has been made, and no value of a key is recorded, answered or logged.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminApi;
use super::endpoints::KeyChange;
use super::keys::{HashKey, QuestionKey, Unanswered, rule_json, unanswered};
use super::made_change::{MadeChange, Operator};
use crate::clock::Nanos;
use crate::config::{read_duration, read_rate};
use crate::engine::KeyCell;
use crate::http::is_no_text;
use crate::ops::audit::{AuditEntry, ChangeKind};
use crate::ops::key_changes::MAX_RULE_SPAN;
use crate::ops::status::ReloadOutcome;
use crate::policy::{Count, KeyHash, KeyRule, Limit, LimitIndex, Ruling};
use crate::proxy::Live;
use crate::store::redis::RuleChange;

/// The longest reason, in characters: a sentence or two.
const MAX_REASON: usize = 500;

/// The longest that a caller waits for the outcome of a reload. A request of the admin listener ends soon after.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(20);

/// The body of a change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    limit: String,
    key: QuestionKey,
    reason: Option<String>,
    /// How long it lasts.
    #[serde(rename = "for")]
    span: Option<String>,
    rate: Option<String>,
    burst: Option<u32>,
    action: Option<String>,
}

/// A change that was read and makes sense.
struct Change {
    live: Arc<Live>,
    limit: LimitIndex,
    cell: KeyCell,
    reason: String,
    /// What is told to the store, or to this node.
    changes: Vec<RuleChange>,
    kind: ChangeKind,
    /// What the audit log says of it.
    detail: String,
    until: Option<Nanos>,
}

impl KeyChange {
    /// How its body is written.
    const fn shape(self) -> &'static str {
        match self {
            Self::Reset | Self::Unban => {
                "write {\"limit\": \"NAME\", \"key\": \"KEY\", \"reason\": \"WHY\"}"
            }
            Self::Ban => {
                "write {\"limit\": \"NAME\", \"key\": \"KEY\", \"for\": \"2h\", \"reason\": \"WHY\"}"
            }
            Self::Override => {
                "write {\"limit\": \"NAME\", \"key\": \"KEY\", \"rate\": \"600/1m\", \"for\": \"2h\", \"reason\": \
                 \"WHY\"}, or \"action\": \"allow\", \"deny\" or \"none\" in the stead of \"rate\""
            }
        }
    }
}

impl AdminApi {
    /// Makes a change of a key.
    pub(super) async fn change_key(
        &self,
        change: KeyChange,
        body: &[u8],
        operator: &Operator,
    ) -> Result<Value, Unanswered> {
        let request: ChangeRequest = serde_json::from_slice(body).map_err(|error| {
            // The text of an error of data could have a value of the body.
            Unanswered::bad_request(match error.classify() {
                serde_json::error::Category::Data => change.shape().to_owned(),
                _ => format!("is no JSON (line {}); {}", error.line(), change.shape()),
            })
        })?;
        if let Some(ended) = self.end_rule_of_former_limit(change, &request, operator).await? {
            return Ok(ended);
        }
        let change = self.read_change(change, request, operator)?;
        let name = change.live.generation.policy().limit(change.limit).name.to_string();
        let is_reset = change.kind == ChangeKind::Reset;
        if is_reset && self.engine.remote().is_some() {
            // Before anything is changed.
            change.cell.require_family().map_err(unanswered)?;
        }
        let target = (name.clone(), change.cell.key);
        let reset = is_reset.then(|| (Arc::clone(&change.live), change.limit, change.cell));
        let made = MadeChange {
            engine: Arc::clone(&self.engine),
            changes: Arc::clone(&self.changes),
            audit: Arc::clone(&self.audit),
            operator: operator.clone(),
            told: change.changes,
            reset,
            entry: MadeChange::entry(
                change.kind,
                change.detail,
                target,
                change.until,
                change.reason,
            ),
        };
        made.run().await?;
        let live = self.live.load_full();
        match self.state_of(&live, change.limit, change.cell, None).await {
            Ok(state) => Ok(state),
            // It was made. What the key has spent cannot be told.
            Err(_) => Ok(json!({ "limit": name, "hash": change.cell.key.to_string() })),
        }
    }

    /// Ends a rule whose limit is in no configuration any more. It is named by its hash, as `/overrides` shows it. `None`:
    /// there is no such rule, or it is not to be ended.
    async fn end_rule_of_former_limit(
        &self,
        change: KeyChange,
        request: &ChangeRequest,
        operator: &Operator,
    ) -> Result<Option<Value>, Unanswered> {
        let (kind, is_ban) = match change {
            KeyChange::Unban => (ChangeKind::Unban, true),
            KeyChange::Override if request.action.as_deref() == Some("none") => {
                (ChangeKind::EndOverride, false)
            }
            KeyChange::Override | KeyChange::Ban | KeyChange::Reset => return Ok(None),
        };
        let QuestionKey::Hash(HashKey { hash }) = &request.key else {
            return Ok(None);
        };
        let live = self.live.load();
        let is_in_force =
            live.generation.policy().limits.iter().any(|limit| *limit.name == *request.limit);
        let rules = self.engine.key_rules();
        let is_asked = |rule: &&KeyRule| {
            *rule.limit == *request.limit
                && rule.key.to_string().eq_ignore_ascii_case(hash)
                && rule.ruling.is_ban() == is_ban
        };
        let Some(rule) = rules.iter().find(is_asked).filter(|_| !is_in_force) else {
            return Ok(None);
        };
        let reason = reason(request.reason.as_deref())?;
        let made = MadeChange {
            engine: Arc::clone(&self.engine),
            changes: Arc::clone(&self.changes),
            audit: Arc::clone(&self.audit),
            operator: operator.clone(),
            told: vec![RuleChange::Drop { key: rule.key, is_ban, is_known: true }],
            reset: None,
            entry: MadeChange::entry(
                kind,
                "the limit is in no configuration any more".to_owned(),
                (rule.limit.to_string(), rule.key),
                None,
                reason,
            ),
        };
        made.run().await?;
        Ok(Some(json!({ "limit": &*rule.limit, "hash": rule.key.to_string() })))
    }

    fn read_change(
        &self,
        change: KeyChange,
        request: ChangeRequest,
        operator: &Operator,
    ) -> Result<Change, Unanswered> {
        let live = self.live.load_full();
        let reason = reason(request.reason.as_deref())?;
        let (limit, cell) = self.locate(&live, &request.limit, &request.key)?;
        let date = self.engine.date(self.engine.now());
        let spec = live.generation.policy().limit(limit);
        refuse_foreign_fields(change, &request)?;
        let (kind, detail, ruling) = match change {
            KeyChange::Reset if matches!(spec.count, Count::InFlight { .. }) => {
                return Err(conflict("requests in flight end by themselves; nothing can be reset"));
            }
            KeyChange::Reset => (ChangeKind::Reset, String::new(), None),
            KeyChange::Unban => (ChangeKind::Unban, String::new(), None),
            KeyChange::Ban => (ChangeKind::Ban, String::new(), Some(Ruling::Ban)),
            KeyChange::Override => match ruling(&request)? {
                Some(ruling) => (ChangeKind::Override, detail_of(&request), Some(ruling)),
                None => (ChangeKind::EndOverride, String::new(), None),
            },
        };
        let until = match ruling {
            Some(_) => Some(date.saturating_add(span(request.span.as_deref())?)),
            None => None,
        };
        let changes = match (kind, ruling, until) {
            (_, Some(ruling), Some(until)) => {
                check_ruling(spec, &ruling)?;
                vec![RuleChange::Put(KeyRule {
                    limit: Arc::clone(&spec.name),
                    key: cell.key,
                    ruling,
                    until,
                    made_at: date,
                    version: None,
                    by: Arc::from(&*operator.by),
                    reason: Arc::from(&*reason),
                })]
            }
            (ChangeKind::Reset, ..) => vec![RuleChange::Reset(cell.key)],
            (ChangeKind::Unban, ..) => {
                vec![self.end_of_rule(cell.key, true), RuleChange::Lift(cell.key)]
            }
            _ => vec![self.end_of_rule(cell.key, false)],
        };
        Ok(Change { live: Arc::clone(&live), limit, cell, reason, changes, kind, detail, until })
    }

    fn end_of_rule(&self, key: KeyHash, is_ban: bool) -> RuleChange {
        let is_ended = |rule: &KeyRule| rule.key == key && rule.ruling.is_ban() == is_ban;
        let is_known = self.engine.key_rules().iter().any(is_ended);
        RuleChange::Drop { key, is_ban, is_known }
    }

    /// `GET /overrides`: the rules in force, the ones that end first before the others.
    pub(super) fn overrides(&self) -> Value {
        let date = self.engine.date(self.engine.now());
        let live = self.live.load();
        let policy = live.generation.policy();
        let applies = |rule: &KeyRule| {
            policy.indexed_limits().any(|(_, limit)| {
                limit.name == rule.limit && limit.terms.key_rules.of_key(rule.key).is_some()
            })
        };
        let rules = self.engine.key_rules();
        let mut rules: Vec<&KeyRule> = rules.iter().filter(|rule| rule.until > date).collect();
        rules.sort_by_key(|rule| rule.until);
        let rows = rules.into_iter().map(|rule| {
            let mut row = rule_json(rule);
            row["limit"] = json!(&*rule.limit);
            row["hash"] = json!(rule.key.to_string());
            row["applies"] = json!(applies(rule));
            row
        });
        json!({ "overrides": rows.collect::<Vec<_>>() })
    }

    /// Reloads the configuration, and waits for the outcome.
    pub(super) async fn reload(&self, operator: &Operator) -> Result<ReloadOutcome, Unanswered> {
        let waiting = self.reloader.request(&self.requests);
        let (engine, audit) = (Arc::clone(&self.engine), Arc::clone(&self.audit));
        let operator = operator.clone();
        // It is recorded also where its caller leaves.
        let waited = tokio::spawn(async move {
            let outcome = tokio::time::timeout(RELOAD_TIMEOUT, waiting).await;
            let outcome = outcome.ok().and_then(Result::ok);
            let detail = match &outcome {
                Some(ReloadOutcome::Applied { generation, .. }) => {
                    format!("generation {generation}")
                }
                Some(ReloadOutcome::Refused { .. }) => "refused".to_owned(),
                None => format!("had not ended within {RELOAD_TIMEOUT:?}"),
            };
            audit.record(AuditEntry {
                at: engine.date(engine.now()),
                by: operator.by,
                from: operator.from,
                kind: ChangeKind::Reload,
                detail,
                target: None,
                until: None,
                reason: String::new(),
            });
            outcome
        });
        waited.await.ok().flatten().ok_or_else(|| Unanswered {
            status: StatusCode::GATEWAY_TIMEOUT,
            detail: format!("the reload has not ended within {RELOAD_TIMEOUT:?}; see /status"),
        })
    }
}

/// A reason is one line that people can read.
fn reason(typed: Option<&str>) -> Result<String, Unanswered> {
    let reason = typed.unwrap_or_default().trim();
    let problem = if reason.is_empty() {
        "a change needs a \"reason\"".to_owned()
    } else if reason.chars().count() > MAX_REASON {
        format!("the reason has more than {MAX_REASON} characters")
    } else if reason.chars().any(is_no_text) {
        "the reason has characters that are no text; write one line".to_owned()
    } else {
        return Ok(reason.to_owned());
    };
    Err(Unanswered::bad_request(problem))
}

/// Refuses fields that would have no effect.
fn refuse_foreign_fields(change: KeyChange, request: &ChangeRequest) -> Result<(), Unanswered> {
    let has_ruling = request.rate.is_some() || request.burst.is_some() || request.action.is_some();
    let lasts = matches!(change, KeyChange::Ban | KeyChange::Override)
        && request.action.as_deref() != Some("none");
    let foreign = match change {
        KeyChange::Override => None,
        _ if has_ruling => Some("rate, burst and action belong to /keys/override"),
        _ => None,
    };
    let foreign = foreign
        .or((request.span.is_some() && !lasts)
            .then_some("\"for\" has no effect here; leave it out"));
    foreign.map_or(Ok(()), |detail| Err(Unanswered::bad_request(detail)))
}

/// What an override says; `None`: it ends the override of the key.
fn ruling(request: &ChangeRequest) -> Result<Option<Ruling>, Unanswered> {
    match (request.rate.as_deref(), request.action.as_deref()) {
        (Some(rate), None) => {
            let rate = read_rate(rate).map_err(Unanswered::bad_request)?;
            Ok(Some(Ruling::Rate { rate, burst: request.burst }))
        }
        (None, Some(_)) if request.burst.is_some() => {
            Err(Unanswered::bad_request("\"burst\" belongs to a \"rate\""))
        }
        (None, Some("allow")) => Ok(Some(Ruling::Allow)),
        (None, Some("deny")) => Ok(Some(Ruling::Deny)),
        (None, Some("none")) => Ok(None),
        (None, Some(_)) => {
            Err(Unanswered::bad_request("\"action\" is \"allow\", \"deny\" or \"none\""))
        }
        _ => Err(Unanswered::bad_request("an override has either a \"rate\" or an \"action\"")),
    }
}

fn detail_of(request: &ChangeRequest) -> String {
    let burst = request.burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
    let rate = request.rate.as_deref().or(request.action.as_deref()).unwrap_or_default();
    format!("{rate}{burst}")
}

fn check_ruling(limit: &Limit, ruling: &Ruling) -> Result<(), Unanswered> {
    limit.check_ruling(ruling).map_err(|error| conflict(error.to_string()))
}

/// How long a rule lasts.
fn span(typed: Option<&str>) -> Result<Nanos, Unanswered> {
    let wrong =
        || Unanswered::bad_request("\"for\" says how long, as \"2h\": 1s at least, 30d at most");
    let span = Nanos::from(read_duration(typed.ok_or_else(wrong)?).map_err(|_| wrong())?);
    if span < Nanos::SECOND || span > MAX_RULE_SPAN { Err(wrong()) } else { Ok(span) }
}

fn conflict(detail: impl Into<String>) -> Unanswered {
    Unanswered { status: StatusCode::CONFLICT, detail: detail.into() }
}
