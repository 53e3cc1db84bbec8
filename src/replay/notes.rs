//! What a report has to say of a policy and of logs before anybody believes its numbers: sentences, each with a cure.

use std::collections::BTreeMap;

use super::entry::ASSUMED_DURATION;
use super::logs::ReadSummary;
use crate::config::{Config, StoreConfig};
use crate::policy::{Cost, Count, Policy};

/// What follows from the policy alone, whatever the log.
pub(super) fn of_config(config: &Config, has_known_secret: bool) -> Vec<String> {
    let policy = &config.policy;
    let mut notes = Vec::new();
    if matches!(config.store, StoreConfig::Redis(_)) {
        notes.push(
            "exact limits count over all nodes together: give the logs of all nodes".to_owned(),
        );
    }
    if policy.limits.iter().any(|limit| matches!(limit.count, Count::Estimate { .. })) {
        notes.push(
            "estimate limits count per node: give the log of one node at a time to see what it \
             would do"
                .to_owned(),
        );
    }
    if policy.limits.iter().any(|limit| limit.terms.candidate.is_some()) {
        notes.push(
            "candidate rates are not judged here; give a copy of the file with the other rate to \
             --compare"
                .to_owned(),
        );
    }
    if !has_known_secret && names_keys(policy) {
        notes.push(
            "overrides and plans name keys, and tollgate's own log has hashes of them under a \
             secret that is not known here: with store.embedded.state, or key_secret_file for \
             Redis, they are recognised"
                .to_owned(),
        );
    }
    notes
}

/// Whether the policy itself names keys or plans whose values are hashes in a log.
fn names_keys(policy: &Policy) -> bool {
    policy.limits.iter().any(|limit| {
        let hidden = limit.key.sources().iter().any(|source| source.is_kept_out_of_logs());
        let by_key = limit
            .terms
            .overrides
            .iter()
            .any(|rule| matches!(rule.target, crate::policy::OverrideTarget::Keys(_)));
        let plans = limit.terms.plans.as_ref();
        (hidden && by_key) || plans.is_some_and(|plans| plans.by.is_kept_out_of_logs())
    })
}

/// What follows from the policy for logs of other servers.
pub(super) fn of_foreign_logs(config: &Config, has_host: bool) -> Vec<String> {
    let policy = &config.policy;
    let mut notes = Vec::new();
    let matches = || policy.routes.iter().flat_map(|route| route.matches.nested());
    if !has_host && matches().any(|matches| !matches.hosts.is_empty()) {
        notes.push(
            "routes name hosts, and a log without hosts matches none of them: use a format that \
             has the host, as combined with the virtual host first"
                .to_owned(),
        );
    }
    if matches().any(|matches| !matches.listeners.is_empty()) {
        notes.push(
            "routes name listeners, which only tollgate's own log with access_log: { replay: true } \
             has: none of them matches"
                .to_owned(),
        );
    }
    let costs = || policy.routes.iter().flat_map(|route| &route.limits).map(|used| &used.cost);
    if costs().any(Cost::depends_on_response) {
        notes.push(
            "costs that an answer names are not in the log: each request costs its reserve; \
             tollgate's own log with access_log: { replay: true } has them"
                .to_owned(),
        );
    }
    if !config.clients.trusted_proxies.is_empty() {
        notes.push(
            "the client behind a trusted proxy is read from the address header, if the log has \
             that header"
                .to_owned(),
        );
    }
    notes
}

/// What follows from the numbers of what could not be judged or was assumed.
pub(super) fn of_counts(
    not_judged: &BTreeMap<String, u64>,
    assumed: &BTreeMap<String, u64>,
) -> Vec<String> {
    let has = |counts: &BTreeMap<String, u64>, prefix: &str| {
        counts.keys().any(|reason| reason.starts_with(prefix))
    };
    let mut notes = Vec::new();
    if has(not_judged, "key:") {
        notes.push(
            "limits whose key is not in the log were not judged: log that header (NGINX: \
             $http_NAME), or use tollgate's own log with access_log: { replay: true }"
                .to_owned(),
        );
    }
    if has(not_judged, "rule:") {
        notes.push(
            "keys to which an operator's rule applied were not judged: a file has no such rules"
                .to_owned(),
        );
    }
    if has(assumed, "absent:") {
        notes.push(
            "conditions on values that the log does not have were taken as if requests had none"
                .to_owned(),
        );
    }
    if has(assumed, "duration:") {
        let seconds = ASSUMED_DURATION.secs();
        notes.push(format!(
            "the log has no durations: requests are judged at the time of their lines, bounds assume \
             that none took more than {seconds} s, and max_in_flight is not judged; log the duration \
             (NGINX: $request_time, Apache: %D)"
        ));
    }
    notes
}

/// What could not be read of the logs.
pub(super) fn of_logs(logs: &[ReadSummary]) -> Vec<String> {
    let warnings = logs.iter().filter_map(|log| log.warning.as_ref());
    warnings.map(ToString::to_string).collect()
}
