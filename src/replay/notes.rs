//! What a report has to say of a policy and of logs before anybody believes its numbers: sentences, each with a cure.

use std::collections::BTreeMap;

use super::entry::ASSUMED_DURATION;
use super::logs::ReadSummary;
use super::observer::NO_DURATION;
use super::report::{counted, time};
use crate::config::{Config, StoreConfig};
use crate::policy::{Cost, Count};

/// What follows from the policy alone, whatever the log.
pub(super) fn of_config(config: &Config) -> Vec<String> {
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
    if config.access_log.is_sampled() {
        notes.push(
            "access_log leaves lines out (sample, sample_denied): if tollgate wrote this log so, the requests that it lacks \
             count nowhere here, and the true demand is higher"
                .to_owned(),
        );
    }
    notes
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

/// Reasons why something was not judged or was assumed, by how they begin, each with what to do about it.
const CURES: &[(&str, &str)] = &[
    (
        "key:",
        "limits whose key is not in the log were not judged: log that header (NGINX: $http_NAME), or use tollgate's own \
         log with access_log: { replay: true }",
    ),
    (
        "plan:",
        "limits whose plan a request names were not judged: tollgate's own log has hashes of such values, under a secret that \
         nobody knows any more; with store.embedded.state, or key_secret_file for Redis, it is kept, and plans are recognised",
    ),
    (
        "override:",
        "overrides name keys, of which tollgate's own log has hashes under a secret that nobody knows any more: their keys \
         were judged by the rate of all others; with store.embedded.state, or key_secret_file for Redis, they are recognised",
    ),
    ("rule:", "keys to which an operator's rule applied were not judged: a file has no such rules"),
    (
        "no_client",
        "requests without the address of a client were not judged: if another program has put something before \
         the lines (Docker, Kubernetes, syslog), take that away; else check the names of fields in the format, log the \
         address, or name its field with --field client_ip=PATH",
    ),
    (
        "hidden_client",
        "the peer of these requests is a trusted proxy, and the header with the address of the client behind it was not \
         found: log that header, or if lines have it, name the format with --format, as 'nginx: LOG_FORMAT'",
    ),
    (
        "late",
        "requests whose lines came after hundreds of thousands of later ones were not judged: give each file as an argument \
         of its own, which are merged by time, rather than all of them on standard input; or sort the lines",
    ),
    (
        "no_request",
        "lines without a request were not judged; if they have some, another program has put something around \
         them (Docker, Kubernetes, syslog): take that away, or name the fields with --field",
    ),
    (
        "rejected:",
        "requests that tollgate rejects before it asks a limit were not judged; if they are many, a field was taken \
         for another: name the format with --format",
    ),
    (
        "absent:",
        "conditions on values that the log does not have were taken as if requests had none",
    ),
    (
        "room:",
        "limits had no room for new keys (max_keys); which idle keys had been forgotten by then is in no log, so verdicts \
         there may differ from those of the process",
    ),
    (
        "preflight:",
        "requests with the method OPTIONS were taken for CORS preflights, which no limit judges, and bounds assume \
         that too",
    ),
];

/// What follows from what could not be judged or was assumed.
pub(super) fn of_counts(
    not_judged: &BTreeMap<String, u64>,
    assumed: &BTreeMap<String, u64>,
) -> Vec<String> {
    let has = |prefix: &str| {
        let reasons = not_judged.keys().chain(assumed.keys());
        reasons.into_iter().any(|reason| reason.starts_with(prefix))
    };
    let cures = CURES.iter().filter(|(prefix, _)| has(prefix)).map(|(_, cure)| *cure);
    let mut notes: Vec<String> = cures.map(str::to_owned).collect();
    if let Some(requests) = assumed.get(NO_DURATION) {
        let seconds = ASSUMED_DURATION.secs();
        let requests = counted(*requests, "request");
        notes.push(format!(
            "the log has no duration of {requests}: each is judged at the time of its line and not by max_in_flight, and \
             bounds assume no more than {seconds} s; log the duration (NGINX: $request_time, Apache: %D)"
        ));
    }
    notes
}

/// What could not be read of the logs.
pub(super) fn of_logs(logs: &[ReadSummary]) -> Vec<String> {
    let warnings = logs.iter().filter_map(|log| log.warning.as_ref());
    let mut notes: Vec<String> = warnings.map(ToString::to_string).collect();
    let left_out: u64 = logs.iter().map(|log| log.left_out).sum();
    let spans = logs.iter().filter_map(|log| log.span);
    let span = spans.reduce(|(first, last), span| (first.min(span.0), last.max(span.1)));
    if let (1.., Some((first, last))) = (left_out, span) {
        notes.push(format!(
            "{} outside of --from and --to were left out; the log covers {} to {}",
            counted(left_out, "request"),
            time(first),
            time(last)
        ));
    }
    if logs.iter().any(|log| log.has_doubtful_times) {
        notes.push(
            "times of the hour that the clock shows twice when summer time ends were all taken for the first, so \
             refusals have no bounds; log times with their offset"
                .to_owned(),
        );
    }
    notes
}

/// What follows from the number of processes that wrote tollgate's own log.
pub(super) fn of_processes(
    store: &StoreConfig,
    processes: usize,
    has_known_secret: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    if processes < 2 {
        return notes;
    }
    if let StoreConfig::Embedded { state } = store {
        let begins = if state.is_some() { "on another machine" } else { "that is no upgrade" };
        notes.push(format!(
            "{processes} processes wrote the log, and here they count together; a process {begins} began with empty \
             counters: give its log alone; after a restart estimate limits and requests in flight began anew in any case"
        ));
        if !has_known_secret {
            notes.push(
                "without store.embedded.state each process has hashes of its own, so a key that is not an address \
                 is another key in each"
                    .to_owned(),
            );
        }
    }
    notes
}

/// Times of later lines are not exact, though those of the first were.
pub(super) fn of_late_inexactness(requests: u64) -> Option<String> {
    (requests > 0).then(|| {
        format!(
            "the first lines have exact times, and {} later do not: refusals have no bounds; give both kinds of \
             lines in files of their own",
            counted(requests, "request")
        )
    })
}
