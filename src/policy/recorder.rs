//! Records the values of a request for a replay: hashes where a value may be a credential, results where a condition decides.
//!
//! The hash of a value is keyed with the deployment's secret, and covers the source: an equal value in another header has
//! another hash. What must always hold: no value of a request comes out of here, except for numbers that name a cost.

use hashbrown::HashMap;
use http::HeaderName;

use super::condition::{Condition, Subject};
use super::cost::Cost;
use super::facts::Facts;
use super::key::{KeyPart, KeySecret, Source};
use super::limit::Limit;
use super::log_values::{Literals, RecordedValue, RecordedValues, condition_name};
use super::matching::Class;
use super::ruleset::Policy;
use super::terms::OverrideTarget;
use crate::tokens::SignatureCheck;

/// Conditions whose results are recorded. The results of more conditions would make a line of the log too long.
pub const MAX_RECORDED_CONDITIONS: usize = 64;

/// A part of a million.
const PER_MILLION: u64 = 1_000_000;

/// What is recorded of each request under one policy.
#[derive(Debug)]
pub struct Recorder {
    secret: KeySecret,
    sources: Vec<(Source, String)>,
    conditions: Vec<Condition>,
    costs: Vec<HeaderName>,
}

impl Recorder {
    /// What is recorded under a policy.
    pub fn of(policy: &Policy, secret: &KeySecret) -> Self {
        Self {
            secret: *secret,
            sources: recorded_sources(policy),
            conditions: recorded_conditions(policy),
            costs: cost_headers(policy),
        }
    }

    /// The values of a request that was decided under the policy. No signature is checked for it.
    pub fn record(&self, policy: &Policy, facts: &Facts<'_>) -> RecordedValues {
        let Some(route) = policy.routes.first() else {
            return RecordedValues::default();
        };
        let values = self.sources.iter().filter_map(|(source, name)| {
            let part = source.part_with(facts, route, SignatureCheck::Recall);
            Some((name.clone(), recorded(&self.secret, source, name, part)?))
        });
        let conditions = self.conditions.iter().map(|condition| {
            (condition_name(condition.fingerprint()), condition.holds(facts).ok())
        });
        let costs = self.costs.iter().filter_map(|name| {
            let lines: Vec<String> = facts.headers.get_all(name).iter().map(number).collect();
            (!lines.is_empty()).then(|| (name.to_string(), lines))
        });
        RecordedValues {
            values: values.collect(),
            conditions: conditions.collect(),
            costs: costs.collect(),
            rollouts: self.rollouts(policy, facts),
            ruled: self.ruled(policy, facts),
            trusted: facts.client.peer_trusted,
            preflight: super::route::is_preflight(facts),
            listener: facts.connection.listener.as_deref().map(str::to_owned),
            token_failed: false,
            asked_again: false,
        }
    }

    fn rollouts(
        &self,
        policy: &Policy,
        facts: &Facts<'_>,
    ) -> std::collections::BTreeMap<String, u32> {
        let limits = policy.limits.iter().filter(|limit| !limit.terms.rollout.is_complete());
        let part = |limit: &Limit| {
            let hasher = KeySecret::fixed_hasher(limit);
            let route = policy.routes.first()?;
            let own = limit.key.hash_with(&hasher, facts, route, SignatureCheck::Recall);
            let hash = own.unwrap_or_else(|_| hasher.hash_client_ip(facts));
            Some((limit.name.to_string(), u32::try_from(hash.low % PER_MILLION).ok()?))
        };
        limits.filter_map(part).collect()
    }

    /// The limits for which an operator's rule holds for the key of the request.
    fn ruled(&self, policy: &Policy, facts: &Facts<'_>) -> Vec<String> {
        let limits = policy.limits.iter().filter(|limit| !limit.terms.key_rules.is_empty());
        let is_ruled = |limit: &&Limit| {
            let Some(route) = policy.routes.first() else {
                return false;
            };
            let hasher = self.secret.hasher(limit);
            let own = limit.key.hash_with(&hasher, facts, route, SignatureCheck::Recall);
            let key = own.unwrap_or_else(|_| hasher.hash_client_ip(facts));
            limit.terms.key_rules.of_key(key).is_some_and(|rules| {
                rules.action(facts.now).is_some() || rules.banned_for(facts.now).is_some()
            })
        };
        limits.filter(is_ruled).map(|limit| limit.name.to_string()).collect()
    }
}

/// The values that a policy itself names, by their hashes under the secret of the log. `None`: nobody knows it, so hashes cannot be
/// compared with these values.
pub fn literals(policy: &Policy, secret: Option<&KeySecret>) -> Literals {
    let mut found = Literals::default();
    for limit in &policy.limits {
        if let Some(plans) = &limit.terms.plans {
            let names = plans.rates.iter().map(|(name, _)| (&plans.by, name.as_bytes()));
            add(names, secret, &mut found.by_hash, &mut found.unknown_plans);
        }
        for rule in &limit.terms.overrides {
            if let OverrideTarget::Keys(keys) = &rule.target {
                let values = keys.iter().flat_map(|values| limit.key.sources().iter().zip(values));
                let values = values.map(|(source, value)| (source, &**value));
                add(values, secret, &mut found.by_hash, &mut found.unknown_overrides);
            }
        }
    }
    found
}

/// Adds values to those that are known by their hash, or their sources to those whose hashes are not known.
fn add<'v>(
    values: impl Iterator<Item = (&'v Source, &'v [u8])>,
    secret: Option<&KeySecret>,
    by_hash: &mut HashMap<String, HashMap<u128, Box<[u8]>>>,
    unknown: &mut Vec<String>,
) {
    for (source, value) in values {
        let name = source.to_string();
        match (secret, source.read_configured(value)) {
            (Some(secret), KeyPart::Present(value)) => {
                let hash = secret.value_hash(&name, &value);
                by_hash.entry(name).or_default().insert(hash, value.into());
            }
            (None, KeyPart::Present(_)) if !unknown.contains(&name) => unknown.push(name),
            _ => {}
        }
    }
}

fn recorded(
    secret: &KeySecret,
    source: &Source,
    name: &str,
    part: KeyPart<'_>,
) -> Option<RecordedValue> {
    Some(match part {
        KeyPart::Present(value) => match (source, <[u8; 8]>::try_from(&*value)) {
            (Source::Shard { .. }, Ok(bucket)) => RecordedValue::Bucket(u64::from_be_bytes(bucket)),
            _ => RecordedValue::Hash(secret.value_hash(name, &value)),
        },
        KeyPart::Absent => RecordedValue::Absent,
        KeyPart::Repeated => RecordedValue::Repeated,
        KeyPart::Unreadable => RecordedValue::Unreadable,
        KeyPart::Unknowable => RecordedValue::Unknowable,
        KeyPart::Unchecked => RecordedValue::Unchecked,
        KeyPart::Unrecorded => return None,
    })
}

/// Digits as they are; anything else as a text that is no number.
fn number(value: &http::HeaderValue) -> String {
    let is_number = value.len() <= 20 && value.as_bytes().iter().all(u8::is_ascii_digit);
    let digits = value.to_str().ok().filter(|_| is_number);
    digits.unwrap_or("x").to_owned()
}

/// The sources of keys and plans that a log does not have anyway, each once. A bucket is recorded with what it is of.
fn recorded_sources(policy: &Policy) -> Vec<(Source, String)> {
    let mut found: Vec<(Source, String)> = Vec::new();
    for limit in &policy.limits {
        let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
        for source in limit.key.sources().iter().chain(plan) {
            for source in std::iter::successors(Some(source), |source| match source {
                Source::Shard { of, .. } => Some(of),
                _ => None,
            }) {
                if source.is_kept_out_of_logs() && found.iter().all(|(other, _)| other != source) {
                    found.push((source.clone(), source.to_string()));
                }
            }
        }
    }
    found
}

/// The conditions on values that are recorded.
fn recorded_conditions(policy: &Policy) -> Vec<Condition> {
    let mut found = all_conditions(policy);
    found.truncate(MAX_RECORDED_CONDITIONS);
    found
}

/// Every condition on a value, each once.
fn all_conditions(policy: &Policy) -> Vec<Condition> {
    let mut found: Vec<Condition> = Vec::new();
    let classes = policy.limits.iter().flat_map(classes_of);
    let of_classes: Vec<_> = classes.collect();
    let routes = policy.routes.iter().flat_map(|route| route.matches.all_values());
    let classes = of_classes.iter().flat_map(|class| class.matches.all_values());
    for condition in routes.chain(classes) {
        if !found.contains(condition) {
            found.push(condition.clone());
        }
    }
    found
}

/// Whether a key, a plan, a cost or a condition of the policy is read from this header.
pub fn reads_header(policy: &Policy, name: &HeaderName) -> bool {
    let in_sources = recorded_sources(policy)
        .iter()
        .any(|(source, _)| matches!(source, Source::Header(header) if header == name));
    let in_conditions = all_conditions(policy)
        .iter()
        .any(|condition| matches!(condition.subject(), Subject::Header(header) if header == name));
    in_sources || in_conditions || cost_headers(policy).contains(name)
}

fn classes_of(limit: &Limit) -> Vec<std::sync::Arc<Class>> {
    let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
    let sources = limit.key.sources().iter().chain(plan);
    let of_keys = sources.flat_map(Source::classes).cloned();
    let overrides = limit.terms.overrides.iter().filter_map(|rule| match &rule.target {
        OverrideTarget::Class(class) => Some(std::sync::Arc::clone(class)),
        OverrideTarget::Keys(_) | OverrideTarget::Network(_) => None,
    });
    of_keys.chain(overrides).collect()
}

/// The headers of requests that name a cost, each once.
fn cost_headers(policy: &Policy) -> Vec<HeaderName> {
    let of_routes = policy.routes.iter().flat_map(|route| &route.limits).map(|used| &used.cost);
    let mut found: Vec<HeaderName> = Vec::new();
    for cost in of_routes {
        if let Cost::Request { header, .. } = cost
            && !found.contains(header)
        {
            found.push(header.clone());
        }
    }
    found
}
