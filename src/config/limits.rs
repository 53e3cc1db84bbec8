//! `limits`: each by itself first, then what leads from one to another.

use std::sync::Arc;

use http::HeaderName;

use super::bounds::MOST_KEYS;
use super::read::{At, Map, did_you_mean};
use super::scalars::{is_name, rate, some_duration, whole};
use crate::clock::Nanos;
use crate::limit::{FixedWindow, Quota, QuotaError, Rate, SlidingLog, SlidingWindow, TokenBucket};
use crate::policy::key::MAX_KEY_PARTS;
use crate::policy::{
    Count, KeySpec, Limit, LimitIndex, MissingKey, Mode, OnStoreFailure, Source, WhenFull,
};

/// What a sketch is made for where `expect` does not say.
const DEFAULT_EXPECT: u32 = 1_000;

/// Most shards of a `{ shard, of }` key.
const MAX_SHARDS: u64 = 65_536;

/// The last segment that `path_segment` may name: a pattern has no more.
const MAX_SEGMENT: u64 = 64;

/// Keys of a limit of the exact tier alone.
const EXACT_KEYS: [&str; 6] =
    ["algorithm", "burst", "refill_every", "when_full", "max_keys", "on_store_failure"];

/// Keys of a limit that are known and not built yet.
const LATER: [&str; 11] = [
    "max_delay",
    "max_in_flight",
    "overrides",
    "plans",
    "candidate",
    "penalty",
    "refund",
    "count",
    "rollout",
    "from",
    "jwt",
];

/// Every limit of the file, in order, and where it stands. A limit with a mistake is among them
/// with a stand-in, so that whoever names it is not told that it is unknown.
pub(super) struct Limits<'n> {
    pub(super) limits: Vec<Limit>,
    pub(super) places: Vec<At<'n>>,
}

impl Limits<'_> {
    /// The limit of a name.
    pub(super) fn find(&self, at: &At<'_>, name: &str) -> Option<LimitIndex> {
        find(&self.limits.iter().map(|limit| &*limit.name).collect::<Vec<_>>(), at, name)
    }
}

fn find(names: &[&str], at: &At<'_>, name: &str) -> Option<LimitIndex> {
    let place = names.iter().position(|other| *other == name);
    if place.is_none() {
        let cure = did_you_mean(name, names).unwrap_or_else(|| "define it under limits".to_owned());
        at.error_with(format!("unknown limit {name:?}"), cure);
    }
    place.map(LimitIndex)
}

/// `limits`. `tick`: the unit of the clock that the exact tier is read by.
pub(super) fn limits<'n>(root: &mut Map<'n>, tick: Nanos) -> Limits<'n> {
    let named = root.get("limits").map(|at| at.named()).unwrap_or_default();
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let mut all = Limits { limits: Vec::new(), places: Vec::new() };
    for (name, at) in &named {
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), "use a-z, 0-9 and -, at most 64");
        }
        all.limits.push(limit(name, at, &names, tick).unwrap_or_else(|| stand_in(name)));
        all.places.push(at.clone());
    }
    refuse_cycles(&all);
    all
}

/// Never used: a file with a mistake makes no policy.
fn stand_in(name: &str) -> Limit {
    Limit {
        name: Arc::from(name),
        count: Count::Estimate { rate: Rate::ONE_A_SECOND, expect_per_second: DEFAULT_EXPECT },
        key: KeySpec::client_ip(),
        missing_key: MissingKey::Impossible,
        mode: Mode::Enforce,
        cost: 1,
        hidden: false,
    }
}

fn limit(name: &str, at: &At<'_>, names: &[&str], tick: Nanos) -> Option<Limit> {
    let mut map = at.map()?;
    let exact = map
        .require("tier", "write tier: exact (counts exactly) or tier: estimate (cheap)")
        .and_then(|at| at.choice(&[("estimate", false), ("exact", true)]));
    let rate_at = map.require("rate", "write for example rate: 60/1m");
    let rate = rate_at.as_ref().and_then(|at| at.parse(rate));
    let key = map.require("key", "write for example key: client_ip").and_then(|at| key(&at));
    let missing = missing_key(&mut map, key.as_ref(), names);
    let mode = map
        .get("mode")
        .map(|at| at.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]));
    let hidden = map.get("headers").map(|at| at.choice(&[("hidden", true)]));
    let cost = map.get("cost").map(|at| cost(&at));
    let count = match (exact, rate, &rate_at) {
        (Some(true), Some(rate), Some(at)) => exact_count(&mut map, rate, at, tick),
        (Some(false), Some(rate), _) => estimate_count(&mut map, rate),
        // The tier is unknown: keys of either are taken for known.
        _ => {
            for key in EXACT_KEYS.iter().chain(&["expect"]) {
                map.get(key);
            }
            None
        }
    };
    map.finish(&LATER);
    let limit = Limit {
        name: Arc::from(name),
        count: count?,
        key: key?,
        missing_key: missing?,
        mode: mode.unwrap_or(Some(Mode::Enforce))?,
        cost: cost.clone().unwrap_or(Some((1, None)))?.0,
        hidden: hidden.unwrap_or(Some(false))?,
    };
    if let Some(Some((_, Some(at)))) = &cost {
        refuse_dear(at, limit.cost, &limit);
    }
    Some(limit)
}

/// A fixed cost that the limit can never hold is a limit that refuses everything.
pub(super) fn refuse_dear(at: &At<'_>, cost: u32, limit: &Limit) {
    let most = match &limit.count {
        Count::Estimate { rate, .. } => rate.count(),
        Count::Exact { quota, .. } => quota.limit(),
    };
    if cost > most {
        let cure = format!("at most {most}, or raise the limit");
        at.error_with(format!("a cost of {cost} never fits into limit {:?}", limit.name), cure);
    }
}

/// A fixed cost with its place.
fn cost<'n>(at: &At<'n>) -> Option<(u32, Option<At<'n>>)> {
    if at.is_map() {
        at.not_yet("a cost that is read from a header");
        return None;
    }
    fixed_cost(at).map(|cost| (cost, Some(at.clone())))
}

/// A cost from 1 to 1,000,000.
pub(super) fn fixed_cost(at: &At<'_>) -> Option<u32> {
    at.parse(whole(1, 1_000_000)).and_then(|cost| u32::try_from(cost).ok())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    TokenBucket,
    SlidingWindow,
    SlidingLog,
    FixedWindow,
    LeakyBucket,
}

fn exact_count(map: &mut Map<'_>, rate: Rate, rate_at: &At<'_>, tick: Nanos) -> Option<Count> {
    use Algorithm::{
        FixedWindow as Fixed, LeakyBucket, SlidingLog as Log, SlidingWindow as Sliding,
    };
    let words = [
        ("token_bucket", Algorithm::TokenBucket),
        ("gcra", Algorithm::TokenBucket),
        ("sliding_window", Sliding),
        ("sliding_log", Log),
        ("fixed_window", Fixed),
        ("leaky_bucket", LeakyBucket),
    ];
    let algorithm_at = map.get("algorithm");
    let algorithm = match &algorithm_at {
        None => Sliding,
        Some(at) => at.choice(&words)?,
    };
    if let Some(at) = map.get("expect") {
        at.error_with(
            "expect belongs to tier: estimate",
            "leave it out: an exact limit counts every key by itself",
        );
    }
    let burst = map.get("burst");
    let refill_every = map.get("refill_every");
    let quota = match algorithm {
        Algorithm::TokenBucket => {
            bucket(rate, rate_at, burst.as_ref(), refill_every.as_ref(), tick)
        }
        LeakyBucket => {
            algorithm_at?.not_yet("\"leaky_bucket\"");
            None
        }
        Sliding | Log | Fixed => {
            for (name, at) in [("burst", burst), ("refill_every", refill_every)] {
                if let Some(at) = at {
                    let cure = "add algorithm: token_bucket, or leave it out";
                    at.error_with(format!("{name} belongs to token_bucket"), cure);
                }
            }
            windowed(algorithm, rate, rate_at)
        }
    };
    let when_full = map.get("when_full").map(|at| {
        at.choice(&[
            ("estimate", WhenFull::Estimate),
            ("deny", WhenFull::Deny),
            ("allow", WhenFull::Allow),
        ])
    });
    let max_keys = map.get("max_keys").map(|at| at.parse(whole(1, MOST_KEYS)));
    let on_store_failure = map.get("on_store_failure").map(|at| {
        at.choice(&[
            ("local", OnStoreFailure::Local),
            ("allow", OnStoreFailure::Allow),
            ("deny", OnStoreFailure::Deny),
        ])
    });
    Some(Count::Exact {
        quota: quota?,
        on_store_failure: on_store_failure.unwrap_or(Some(OnStoreFailure::default()))?,
        when_full: when_full.unwrap_or(Some(WhenFull::default()))?,
        max_keys: match max_keys {
            None => None,
            Some(keys) => Some(usize::try_from(keys?).ok()?),
        },
    })
}

fn windowed(algorithm: Algorithm, rate: Rate, at: &At<'_>) -> Option<Quota> {
    match algorithm {
        Algorithm::SlidingLog => SlidingLog::new(rate)
            .map(Quota::SlidingLog)
            .map_err(|error| at.error_with(error.to_string(), "use sliding_window"))
            .ok(),
        Algorithm::FixedWindow => Some(Quota::FixedWindow(FixedWindow::new(rate))),
        Algorithm::SlidingWindow | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            Some(Quota::SlidingWindow(SlidingWindow::new(rate)))
        }
    }
}

fn bucket(
    rate: Rate,
    rate_at: &At<'_>,
    burst_at: Option<&At<'_>>,
    refill_at: Option<&At<'_>>,
    tick: Nanos,
) -> Option<Quota> {
    let burst = match burst_at {
        None => rate.count(),
        Some(at) => u32::try_from(at.parse(whole(1, u64::from(u32::MAX)))?).ok()?,
    };
    let refill_every = match refill_at {
        None => Nanos::ZERO,
        Some(at) => Nanos::from(at.parse(some_duration)?),
    };
    let made = TokenBucket::new(rate, burst, refill_every, tick);
    let refused = |error: QuotaError| {
        let (at, cure) = match error {
            QuotaError::TooFast => (Some(rate_at), "write it over a longer time, or lower it"),
            QuotaError::TooLong => (burst_at, "lower the burst, or raise the rate"),
            QuotaError::UnevenRefill => {
                (refill_at, "a time no longer than the rate's that brings 1, 2, 3 ... units")
            }
            QuotaError::ZeroRate
            | QuotaError::Period
            | QuotaError::ZeroBurst
            | QuotaError::LogTooLarge => (Some(rate_at), "write for example 5/s"),
        };
        at.unwrap_or(rate_at).error_with(error.to_string(), cure);
    };
    made.map(Quota::TokenBucket).map_err(refused).ok()
}

fn estimate_count(map: &mut Map<'_>, rate: Rate) -> Option<Count> {
    for key in EXACT_KEYS {
        if let Some(at) = map.get(key) {
            let cure = "leave it out, or write tier: exact";
            at.error_with(format!("{key} belongs to tier: exact"), cure);
        }
    }
    let Some(mut expect) = map.get("expect").and_then(|at| at.map()) else {
        return Some(Count::Estimate { rate, expect_per_second: DEFAULT_EXPECT });
    };
    let requests =
        expect.require("requests", "write requests: 10000/s").map(|at| at.parse(per_second));
    expect.finish(&[]);
    Some(Count::Estimate { rate, expect_per_second: requests?? })
}

/// A rate as whole requests per second, rounded up.
fn per_second(text: &str) -> Result<u32, String> {
    let rate = rate(text)?;
    let per_second = u128::from(rate.count()) * 1_000_000_000;
    let per_second = per_second.div_ceil(u128::from(rate.period().get()));
    u32::try_from(per_second).map_err(|_| format!("{text:?} is more than any node sees"))
}

/// One source, or a list of them.
pub(super) fn key(at: &At<'_>) -> Option<KeySpec> {
    let items = at.one_or_more();
    let sources: Vec<Option<Source>> = items.iter().map(source).collect();
    let sources: Option<Vec<Source>> = sources.into_iter().collect();
    if items.is_empty() || items.len() > MAX_KEY_PARTS {
        at.error(format!("{} sources; a key has 1 to {MAX_KEY_PARTS}", items.len()));
        return None;
    }
    KeySpec::new(sources?)
}

/// One source of a key.
pub(super) fn source(at: &At<'_>) -> Option<Source> {
    if !at.is_map() {
        return source_of_text(at);
    }
    let mut map = at.map()?;
    if let Some(jwt) = map.get("jwt") {
        jwt.not_yet("a key from a JWT");
        return None;
    }
    let shard = map.require("shard", "write { shard: client_ip, of: 16 }");
    let of = map.require("of", "write { shard: client_ip, of: 16 }");
    map.finish(&[]);
    let inner = shard.and_then(|at| if at.is_map() { at.text().and(None) } else { source(&at) });
    let buckets = of.and_then(|at| at.parse(whole(1, MAX_SHARDS)));
    Some(Source::Shard { of: Box::new(inner?), buckets: u32::try_from(buckets?).ok()? })
}

fn source_of_text(at: &At<'_>) -> Option<Source> {
    let text = at.text()?;
    let plain = [
        ("client_ip", Source::ClientIp),
        ("bearer", Source::Bearer),
        ("basic_user", Source::BasicUser),
        ("host", Source::Host),
        ("path", Source::Path),
        ("method", Source::Method),
        ("route", Source::Route),
    ];
    if let Some((_, source)) = plain.iter().find(|(word, _)| *word == text) {
        return Some(source.clone());
    }
    match text.split_once(':') {
        Some(("header", name)) => match HeaderName::try_from(name) {
            Ok(name) => return Some(Source::Header(name)),
            Err(_) => at.error(format!("{name:?} is not the name of a header")),
        },
        Some(("cookie", name)) if is_token(name) => return Some(Source::Cookie(name.to_owned())),
        Some(("query", name)) if !name.is_empty() => return Some(Source::Query(name.to_owned())),
        Some(("path_segment", n)) => match whole(1, MAX_SEGMENT)(n) {
            Ok(n) => return Some(Source::PathSegment(n as usize)),
            Err(why) => at.error_with(why, "the first segment is 1"),
        },
        _ => {
            let words = plain.iter().map(|(word, _)| *word);
            let words: Vec<&str> = words
                .chain(["header:NAME", "cookie:NAME", "query:NAME", "path_segment:N"])
                .collect();
            let cure = did_you_mean(text, &words)
                .unwrap_or_else(|| format!("one of {}", words.join(", ")));
            at.error_with(format!("unknown key source {text:?}"), cure);
        }
    }
    None
}

/// A token of RFC 9110, as cookies are named.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// `missing_key`: must be written where the key can be absent, and cannot be where it never is.
fn missing_key(map: &mut Map<'_>, key: Option<&KeySpec>, names: &[&str]) -> Option<MissingKey> {
    let found = map.get("missing_key");
    match (key, found) {
        (Some(key), Some(at)) if !key.can_be_absent() => {
            at.error_with(format!("{key} is never absent"), "leave missing_key out");
            None
        }
        (Some(key), None) if key.can_be_absent() => {
            map.at().error_with(
                format!("missing_key is missing: a request can be without {key}"),
                "write missing_key: deny, client_ip, { limit: NAME } or skip",
            );
            None
        }
        (_, None) => Some(MissingKey::Impossible),
        (_, Some(at)) => outcome_of_missing(&at, names),
    }
}

fn outcome_of_missing(at: &At<'_>, names: &[&str]) -> Option<MissingKey> {
    if !at.is_map() {
        return at.choice(&[
            ("skip", MissingKey::Skip),
            ("deny", MissingKey::Deny(400)),
            ("client_ip", MissingKey::ClientIp),
        ]);
    }
    let mut map = at.map()?;
    let (limit, deny) = (map.get("limit"), map.get("deny"));
    map.finish(&[]);
    match (limit, deny) {
        (Some(at), None) => find(names, &at, at.text()?).map(MissingKey::Limit),
        (None, Some(at)) => {
            let status = at.parse(whole(400, 499))?;
            u16::try_from(status).ok().map(MissingKey::Deny)
        }
        _ => {
            at.error("write either { limit: NAME } or { deny: STATUS }");
            None
        }
    }
}

/// `missing_key: { limit: .. }` must come to an end.
fn refuse_cycles(all: &Limits<'_>) {
    for (start, at) in all.places.iter().enumerate() {
        let mut next = start;
        for _ in 0..=all.limits.len() {
            match all.limits[next].missing_key {
                MissingKey::Limit(LimitIndex(after)) if after == start => {
                    let name = &all.limits[start].name;
                    at.error_with(
                        format!("missing_key of limit {name:?} leads back to it"),
                        "end the chain with deny, client_ip or skip",
                    );
                    break;
                }
                MissingKey::Limit(LimitIndex(after)) => next = after,
                MissingKey::Impossible
                | MissingKey::Skip
                | MissingKey::Deny(_)
                | MissingKey::ClientIp => break,
            }
        }
    }
}
