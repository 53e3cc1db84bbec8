//! Keys from files that stand for those at a URL: commands that judge requests on paper ask no network.

use std::sync::Arc;

use http::Uri;

use crate::config::TestKeySet;
use crate::policy::{Facts, Policy, Source};
use crate::tokens::PublishedKeySet;

/// Puts keys in force. Returns what is wrong, in words: each set of the policy needs keys or `none`, and each URL has to be
/// one of the policy.
pub(super) fn install(sets: &[Arc<PublishedKeySet>], given: &[TestKeySet]) -> Vec<String> {
    let mut wrong = Vec::new();
    for set in sets {
        let name = set.name();
        let Some(keys) = given.iter().find(|keys| is_at(keys, set)) else {
            let cure = "write jwks: { URL: FILE } with its jwks_url, or none";
            wrong.push(format!("no keys for {name}; {cure}"));
            continue;
        };
        if let Some(Err(error)) = keys.json.as_ref().map(|json| set.install(json)) {
            wrong.push(format!("the keys for {name}: {error}"));
        }
    }
    let is_unknown = |keys: &&TestKeySet| !sets.iter().any(|set| is_at(keys, set));
    wrong.extend(given.iter().filter(is_unknown).map(|keys| {
        let url = without_query(&keys.url);
        format!("keys for {url}, which is no jwks_url of the policy")
    }));
    wrong
}

/// Puts keys in force that a command line names as `URL=FILE`.
pub(super) fn install_files(given: &[String], sets: &[Arc<PublishedKeySet>]) -> Result<(), String> {
    for given in given {
        let wrong = || {
            let shown = without_query(given);
            format!("--jwks {shown}: write URL=FILE, with a jwks_url of the policy")
        };
        let (url, file) = given.rsplit_once('=').ok_or_else(wrong)?;
        let json = std::fs::read(file).map_err(|error| format!("--jwks: {file}: {error}"))?;
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let mut named = sets.iter().filter(|set| set.url().uri == uri).peekable();
        named.peek().ok_or_else(wrong)?;
        for set in named {
            set.install(&json).map_err(|error| format!("--jwks: {file}: {error}"))?;
        }
    }
    Ok(())
}

/// Refuses a request with a token that a limit of its route reads, and whose keys are at a URL.
pub(super) fn check(policy: &Policy, facts: &Facts<'_>) -> Result<(), String> {
    let route = policy.find(facts).ok().flatten().map(|route| policy.route(route));
    let claims = route.map(|route| policy.sources(route, |source| source.claim().is_some()));
    for claim in claims.iter().flatten().filter_map(Source::claim) {
        if claim.lacks_keys(facts) {
            let shown = without_query(&claim.keys);
            return Err(format!("the keys at {shown} are not fetched here; add --jwks URL=FILE"));
        }
    }
    Ok(())
}

/// A URL for a message. Its query may be a secret.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

fn is_at(keys: &TestKeySet, set: &PublishedKeySet) -> bool {
    keys.url.parse::<Uri>().is_ok_and(|url| url == set.url().uri)
}
