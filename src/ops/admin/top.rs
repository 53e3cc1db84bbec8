//! `GET /top`: the keys that a limit refuses most, and of a limit of the estimate tier the heaviest senders now.
//!
//! What must always hold: keys are shown as hashes, and as addresses only where the key is the client's address and the
//! configuration allows it.

use serde_json::{Value, json};

use super::AdminApi;
use super::keys::Unanswered;
use super::query::{Parameters, bad_request, not_found};
use super::refusals::{shown_address, unknown_name};
use crate::ops::log::timestamp;
use crate::refusals::{FrequentKey, HOURS};

impl AdminApi {
    /// The keys that a limit refused most.
    pub(super) fn top(&self, query: Option<&str>) -> Result<Value, Unanswered> {
        let parameters = Parameters::of(query, &["limit", "hours", "count"])?;
        let hours = parameters.number("hours", 1, (1, HOURS))?;
        let count = parameters.count()?;
        let limit = parameters
            .get("limit")
            .ok_or_else(|| bad_request("limit is missing; write /top?limit=NAME".to_owned()))?;
        let now = self.engine.now();
        let date = self.engine.date(now);
        let log = self.counters.refusals();
        log.count_keys(now.mono, date);
        let frequent = log
            .frequent_keys(limit, hours, now.mono)
            .ok_or_else(|| not_found(unknown_name("limit", limit)))?;
        let keys = frequent.keys.iter().take(count).map(|key| self.key_json(key));
        Ok(json!({
            "limit": limit,
            "hours": hours,
            "from": timestamp(date.saturating_sub(frequent.span).into()),
            "refused": frequent.total,
            "missed": log.missed(),
            "shared": frequent.is_shared,
            "keys": keys.collect::<Vec<_>>(),
            "senders": self.senders(limit, count),
        }))
    }

    fn key_json(&self, key: &FrequentKey) -> Value {
        let mut answer = json!({
            "hash": key.key.to_string(), "refused": key.refused, "error": key.error,
        });
        let address = key.address.filter(|_| self.show_addresses);
        if let (Some(address), Some(members)) = (address, answer.as_object_mut()) {
            members.insert("address".to_owned(), shown_address(address).into());
        }
        answer
    }

    /// The keys of an estimate limit that send most now. Other limits have none here.
    fn senders(&self, limit: &str, count: usize) -> Value {
        let live = self.live.load();
        let policy = live.generation.policy();
        let index = policy.indexed_limits().find(|(_, spec)| *spec.name == *limit);
        let estimate = index.and_then(|(index, _)| live.generation.estimate(index));
        let senders = estimate.map_or_else(Vec::new, |estimate| {
            estimate.heaviest(self.engine.confirm_table(), count, self.engine.now())
        });
        let shown = senders.iter().map(|sender| {
            json!({ "hash": sender.key.to_string(), "sent": sender.sent, "spent": sender.spent })
        });
        Value::Array(shown.collect())
    }
}
