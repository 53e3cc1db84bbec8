//! `plans`, `overrides`, `rollout`, `from` and `candidate`: for whom a limit is another one.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::clock::Nanos;
use crate::config::files::read_bounded;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::share;
use crate::config::sections::keys::{KeyFiles, source};
use crate::config::sections::limits::algorithm::{Shape, other_quota, quota_in};
use crate::config::sections::listeners::network;
use crate::limit::Quota;
use crate::policy::key::address_bytes;
use crate::policy::{
    KeySpec, KeyValues, Override, OverrideAction, OverrideTarget, Plans, RateIndex, Rollout,
    Source, Terms,
};

/// Most keys of one limit's exceptions.
const MAX_KEYS: usize = 100_000;

/// The largest file of keys.
const MAX_KEYS_FILE: u64 = 16 << 20;

/// Most plans of a limit.
const MAX_PLANS: usize = 64;

/// What a limit is read with.
pub(crate) struct LimitContext<'g> {
    /// Where files are looked for.
    pub(crate) folder: &'g Path,
    pub(crate) key_files: &'g KeyFiles<'g>,
    /// Bits of an IPv6 address that make one client.
    pub(crate) ipv6_prefix: u8,
    /// The unit of the clock that the exact tier is read by.
    pub(crate) tick: Nanos,
}

/// Reads what of a limit depends on who asks. `shape`: what rates become; `None`: the limit has
/// none that could be another.
pub(crate) fn terms(
    map: &mut Mapping<'_>,
    shape: Option<&Shape<'_>>,
    key: Option<&KeySpec>,
    given: &LimitContext<'_>,
) -> Option<Terms> {
    let mut terms = Terms { rollout: rollout(map)?, ..Terms::default() };
    if let Some(at) = map.get("candidate") {
        let shape = rates(&at, shape)?;
        let mut map = at.map()?;
        let quota = quota_in(&mut map, shape);
        map.finish();
        terms.candidate = Some(quota?);
    }
    if let Some(at) = map.get("plans") {
        let shape = rates(&at, shape)?;
        terms.plans = Some(plans(&at, shape, given, &mut terms.quotas)?);
    }
    if let Some(at) = map.get("overrides") {
        let mut keys = 0;
        for item in at.list() {
            let found = exception(&item, shape, key?, given, &mut terms.quotas)?;
            if let OverrideTarget::Keys(named) = &found.target {
                keys += named.len();
            }
            terms.overrides.push(found);
        }
        if keys > MAX_KEYS {
            at.error(format!("{keys} keys, more than {MAX_KEYS}"));
        }
    }
    Some(terms)
}

/// Other rates need a limit that has one and counts exactly.
fn rates<'s, 'n>(at: &Located<'_>, shape: Option<&'s Shape<'n>>) -> Option<&'s Shape<'n>> {
    if shape.is_none() {
        let cure = "leave it out, or write tier: exact and a rate";
        at.error_with("another rate needs an exact one", cure);
    }
    shape
}

fn rollout(map: &mut Mapping<'_>) -> Option<Rollout> {
    let ppm = map.get("rollout").map(|at| at.parse(share));
    let from = map.get("from").map(|at| at.parse(instant));
    let all = Rollout::default();
    Some(Rollout { ppm: ppm.unwrap_or(Some(all.ppm))?, from: from.unwrap_or(Some(all.from))? })
}

/// `2026-12-01T00:00:00Z`.
fn instant(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("{text:?} is not an instant; write for example 2026-12-01T00:00:00Z");
    let time = humantime::parse_rfc3339(text).map_err(|_| wrong())?;
    time.duration_since(UNIX_EPOCH).map(Nanos::from).map_err(|_| wrong())
}

fn plans(
    at: &Located<'_>,
    shape: &Shape<'_>,
    given: &LimitContext<'_>,
    quotas: &mut Vec<Quota>,
) -> Option<Plans> {
    let mut map = at.map()?;
    let by_at = map.require("by", "write by: header:x-plan");
    let rates = map.require("rates", "write rates: { gold: 600/1m }");
    map.finish();
    let by_at = by_at?;
    let by = source(&by_at, given.key_files)?;
    if !matches!(by, Source::Header(_) | Source::Cookie(_) | Source::Jwt(_)) {
        let cure = "header:NAME, cookie:NAME, or { jwt: { jwks_file: FILE, claim: plan } }";
        by_at.error_with(format!("a plan is not told by {by}"), cure);
        return None;
    }
    let named = rates?.named();
    if named.len() > MAX_PLANS {
        at.error(format!("{} plans, more than {MAX_PLANS}", named.len()));
    }
    let mut rates = Vec::new();
    for (name, at) in named {
        rates.push((Box::from(name), add(quotas, other_quota(&at, shape)?)));
    }
    Some(Plans { by, rates })
}

/// The place of a rate among those of the limit; 0 is its own.
fn add(quotas: &mut Vec<Quota>, quota: Quota) -> RateIndex {
    let place = quotas.iter().position(|one| *one == quota).unwrap_or_else(|| {
        quotas.push(quota);
        quotas.len() - 1
    });
    // A configuration of at most 1 MiB does not hold that many.
    RateIndex::try_from(place + 1).unwrap_or(RateIndex::MAX)
}

fn exception(
    at: &Located<'_>,
    shape: Option<&Shape<'_>>,
    key: &KeySpec,
    given: &LimitContext<'_>,
    quotas: &mut Vec<Quota>,
) -> Option<Override> {
    let mut map = at.map()?;
    let whose = [map.get("key"), map.get("key_file"), map.get("network")];
    let action_at = map.get("action");
    let rate_at = map.get("rate");
    let action = match (&action_at, &rate_at) {
        (Some(at), None) => {
            at.choice(&[("allow", OverrideAction::Allow), ("deny", OverrideAction::Deny)])
        }
        (None, Some(at)) => {
            let shape = rates(at, shape)?;
            quota_in(&mut map, shape).map(|quota| OverrideAction::Rate(add(quotas, quota)))
        }
        _ => {
            at.error("write either action: allow, action: deny, or a rate");
            None
        }
    };
    map.finish();
    let target = match whose {
        [Some(at), None, None] => {
            let parts = at.one_or_more();
            let texts: Option<Vec<&str>> = parts.iter().map(|at| at.text()).collect();
            let parts = parts_of(&texts?, key, given).map_err(|why| at.error(why)).ok()?;
            OverrideTarget::Keys(Arc::from([parts]))
        }
        [None, Some(at), None] => {
            let keys = at.parse(|text| keys_of(&given.folder.join(text), key, given))?;
            OverrideTarget::Keys(keys.into())
        }
        [None, None, Some(at)] => OverrideTarget::Network(at.parse(network)?),
        _ => {
            at.error("write one of key, key_file and network");
            return None;
        }
    };
    Some(Override { target, action: action? })
}

/// One key a line, its parts apart by tabs; empty lines and those that begin with `#` say nothing.
fn keys_of(file: &Path, key: &KeySpec, given: &LimitContext<'_>) -> Result<Vec<KeyValues>, String> {
    let bytes = read_bounded(file, MAX_KEYS_FILE)?;
    let wrong = |line: usize, why: &str| format!("{}:{line}: {why}", file.display());
    let text = String::from_utf8(bytes).map_err(|_| wrong(1, "is not UTF-8"))?;
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim_end_matches('\r')));
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(n, line)| {
            let parts: Vec<&str> = line.split('\t').collect();
            parts_of(&parts, key, given).map_err(|why| wrong(n, &why))
        })
        .collect()
}

/// A key's parts as its sources would find them in a request.
fn parts_of(texts: &[&str], key: &KeySpec, given: &LimitContext<'_>) -> Result<KeyValues, String> {
    let sources = key.sources();
    if texts.len() != sources.len() {
        let many = sources.len();
        return Err(format!(
            "{} parts; a key of this limit is {key}, which has {many}",
            texts.len()
        ));
    }
    let parts = texts.iter().zip(sources).map(|(text, source)| match source {
        Source::ClientIp => {
            let address: IpAddr = text
                .parse()
                .map_err(|_| format!("{text:?} is not an address; write network: for many"))?;
            Ok(Box::from(&address_bytes(address, given.ipv6_prefix)[..]))
        }
        Source::Shard { .. } => Err("a key of shards has no exceptions by key".to_owned()),
        _ if text.is_empty() => Err("an empty value is never a key".to_owned()),
        Source::Host => Ok(text.to_ascii_lowercase().into_bytes().into_boxed_slice()),
        _ => Ok(text.as_bytes().into()),
    });
    parts.collect()
}
