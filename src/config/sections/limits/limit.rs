//! `limits`: each by itself first, then what leads from one to another.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::reader::{Located, Mapping, did_you_mean};
use crate::config::scalars::{NAME_CURE, is_name, rate, whole};
use crate::config::sections::bounds::MOST_KEYS;
use crate::config::sections::costs::{cost, counted, penalty, refuse_misfit};
use crate::config::sections::keys::key;
use crate::config::sections::limits::algorithm::{Shape, shape};
use crate::config::sections::limits::terms::{LimitContext, terms};
use crate::limit::{MAX_RATES, MAX_WINDOWS, Quota, Rate, WindowLengths};
use crate::policy::{
    Cost, Count, KeySpec, Limit, LimitIndex, MissingKey, Mode, OnStoreFailure, StatusRules, Terms,
    WhenFull,
};

/// What a sketch is made for where `expect` does not say.
const DEFAULT_EXPECT: u32 = 1_000;

/// Keys of a limit that need an exact rate.
const EXACT_KEYS: [&str; 9] = [
    "algorithm",
    "burst",
    "refill_every",
    "max_delay",
    "when_full",
    "max_keys",
    "on_store_failure",
    "count",
    "refund",
];

/// Every limit of the file, in order, and where it stands. A limit with a mistake is among them
/// with a stand-in, so that whoever names it is not told that it is unknown.
pub(crate) struct Limits<'n> {
    pub(crate) limits: Vec<Limit>,
    pub(crate) places: Vec<Located<'n>>,
}

impl Limits<'_> {
    /// The limit of a name.
    pub(crate) fn find(&self, at: &Located<'_>, name: &str) -> Option<LimitIndex> {
        find(&self.limits.iter().map(|limit| &*limit.name).collect::<Vec<_>>(), at, name)
    }
}

fn find(names: &[&str], at: &Located<'_>, name: &str) -> Option<LimitIndex> {
    let place = names.iter().position(|other| *other == name);
    if place.is_none() {
        let cure = did_you_mean(name, names).unwrap_or_else(|| "define it under limits".to_owned());
        at.error_with(format!("unknown limit {name:?}"), cure);
    }
    place.map(LimitIndex)
}

/// `limits`.
pub(crate) fn limits<'n>(root: &mut Mapping<'n>, given: &LimitContext<'_>) -> Limits<'n> {
    let named = root.get("limits").map(|at| at.named()).unwrap_or_default();
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let mut all = Limits { limits: Vec::new(), places: Vec::new() };
    for (name, at) in &named {
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), NAME_CURE);
        }
        all.limits.push(limit(name, at, &names, given).unwrap_or_else(|| stand_in(name)));
        all.places.push(at.clone());
    }
    refuse_cycles(&all);
    all
}

/// Never used: a file with a mistake makes no policy.
fn stand_in(name: &str) -> Limit {
    Limit {
        name: Arc::from(name),
        count: Count::Estimate { rate: Rate::ONE_PER_SECOND, expect_per_second: DEFAULT_EXPECT },
        key: KeySpec::client_ip(),
        missing_key: MissingKey::Impossible,
        mode: Mode::Enforce,
        cost: Cost::Fixed(1),
        terms: Box::default(),
        status_rules: StatusRules::default(),
        penalty: None,
        hidden: false,
    }
}

fn limit(name: &str, at: &Located<'_>, names: &[&str], given: &LimitContext<'_>) -> Option<Limit> {
    let mut map = at.map()?;
    let exact = map
        .require("tier", "write tier: exact (counts exactly) or tier: estimate (cheap)")
        .and_then(|at| at.choice(&[("estimate", false), ("exact", true)]));
    let key = map
        .require("key", "write for example key: client_ip")
        .and_then(|at| key(&at, given.key_files));
    let missing = missing_key(&mut map, key.as_ref(), names);
    let mode = map
        .get("mode")
        .map(|at| at.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]));
    let hidden = map.get("headers").map(|at| at.choice(&[("hidden", true)]));
    let cost_at = map.get("cost");
    let cost = cost_at.as_ref().map(cost);
    let penalty_at = map.get("penalty");
    let penalty = penalty_at.as_ref().map(penalty);
    let counting = counting(&mut map, exact, key.as_ref(), given);
    map.finish();
    let (count, terms, counted) = counting?;
    let limit = Limit {
        name: Arc::from(name),
        count,
        key: key?,
        missing_key: missing?,
        mode: mode.unwrap_or(Some(Mode::Enforce))?,
        cost: cost.unwrap_or(Some(Cost::Fixed(1)))?,
        terms: Box::new(terms),
        status_rules: counted,
        penalty: match penalty {
            None => None,
            Some(penalty) => Some(penalty?),
        },
        hidden: hidden.unwrap_or(Some(false))?,
    };
    if let Some(at) = penalty_at.filter(|_| limit.penalty.is_some_and(|rule| rule.at_connection))
        && limit.key != KeySpec::client_ip()
    {
        let cure = "write at: request, or key: client_ip";
        at.error_with("connections are refused by address, and this key is another", cure);
    }
    if let Some(at) = &cost_at {
        refuse_misfit(at, &limit.cost, &limit);
    }
    Some(limit)
}

/// How a limit counts, for whom it does so in another way, and what comes back.
fn counting(
    map: &mut Mapping<'_>,
    exact: Option<bool>,
    key: Option<&KeySpec>,
    given: &LimitContext<'_>,
) -> Option<(Count, Terms, StatusRules)> {
    let in_flight = map.get("max_in_flight");
    if let Some(at) = &in_flight {
        let only = "does not go with max_in_flight";
        refuse(map, &["rate", "expect"], only, "leave one of the two out");
        refuse(map, &EXACT_KEYS, only, "leave it out");
        let most =
            at.parse(whole(1, u64::from(u32::MAX))).and_then(|most| u32::try_from(most).ok());
        if exact == Some(false) {
            at.error_with("requests in flight are counted exactly", "write tier: exact");
        }
        let terms = terms(map, None, key, given)?;
        return Some((Count::InFlight { max: most? }, terms, StatusRules::default()));
    }
    let rate_at = map.require("rate", "write for example rate: 60/1m, or max_in_flight: 20");
    let rate = rate_at.as_ref().and_then(|at| at.parse(rate));
    match exact {
        Some(true) => {
            if let Some(at) = map.get("expect") {
                at.error_with(
                    "expect belongs to tier: estimate",
                    "leave it out: an exact limit counts every key by itself",
                );
            }
            let shape = shape(map, given.tick);
            if shape.as_ref().is_some_and(Shape::delays) {
                refuse(
                    map,
                    &["count", "refund"],
                    "does not go with max_delay: those behind a request that is given back have their turns",
                    "leave one of the two out",
                );
            }
            let counted = counted(map);
            let rules = rules(map);
            let terms = match &shape {
                Some(shape) => terms(map, Some(shape), key, given),
                None => {
                    know_all(map);
                    None
                }
            };
            let quota = quota(shape.as_ref(), rate, rate_at.as_ref());
            if let (Some(quota), Some(terms), Some(at)) = (&quota, &terms, &rate_at) {
                few_variants(quota, terms, at);
            }
            Some((exact_count(quota?, rules?), terms?, counted?))
        }
        Some(false) => {
            refuse(
                map,
                &EXACT_KEYS,
                "belongs to tier: exact",
                "leave it out, or write tier: exact",
            );
            let terms = terms(map, None, key, given);
            let expect = expect(map);
            Some((
                Count::Estimate { rate: rate?, expect_per_second: expect? },
                terms?,
                StatusRules::default(),
            ))
        }
        // The tier is unknown: keys of either are taken for known.
        None => {
            know_all(map);
            None
        }
    }
}

/// Every charge counts in each window that the limit's rates have, and in the bucket of each rate that its
/// key has met: of any plan. (An override belongs to a key, or to few.)
fn few_variants(quota: &Quota, terms: &Terms, at: &Located<'_>) {
    let windows = WindowLengths::of(std::iter::once(quota).chain(&terms.quotas)).lengths().len();
    if windows > MAX_WINDOWS {
        at.error_with(
            format!("this limit and its plans and overrides have {windows} different windows, at most {MAX_WINDOWS} are possible"),
            "write their rates over fewer different durations",
        );
    }
    let of_plans = terms.plans.iter().flat_map(|plans| &plans.rates);
    let of_plans =
        of_plans.filter_map(|(_, rate)| terms.quotas.get((*rate as usize).checked_sub(1)?));
    let buckets = std::iter::once(quota).chain(of_plans);
    let buckets: HashSet<&Quota> = buckets.filter(|one| one.window_length().is_none()).collect();
    if buckets.len() > MAX_RATES {
        let count = buckets.len();
        at.error_with(
            format!("this limit and its plans have {count} different rates, at most {MAX_RATES} are possible of a bucket"),
            "write fewer plans, or a limit for some of them",
        );
    }
}

/// A mistake elsewhere shall not make keys unknown.
fn know_all(map: &mut Mapping<'_>) {
    for key in
        EXACT_KEYS.iter().chain(&["expect", "plans", "overrides", "rollout", "from", "candidate"])
    {
        map.get(key);
    }
}

fn refuse(map: &mut Mapping<'_>, keys: &[&'static str], why: &str, cure: &str) {
    for key in keys {
        if let Some(at) = map.get(key) {
            at.error_with(format!("{key} {why}"), cure);
        }
    }
}

fn quota(shape: Option<&Shape<'_>>, rate: Option<Rate>, at: Option<&Located<'_>>) -> Option<Quota> {
    shape?.quota(rate?, at?, None)
}

/// What an exact limit does when something is short.
type Rules = (WhenFull, Option<usize>, OnStoreFailure);

fn rules(map: &mut Mapping<'_>) -> Option<Rules> {
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
    let max_keys = match max_keys {
        None => None,
        Some(keys) => Some(usize::try_from(keys?).ok()?),
    };
    Some((
        when_full.unwrap_or(Some(WhenFull::default()))?,
        max_keys,
        on_store_failure.unwrap_or(Some(OnStoreFailure::default()))?,
    ))
}

const fn exact_count(quota: Quota, (when_full, max_keys, on_store_failure): Rules) -> Count {
    Count::Exact { quota, when_full, max_keys, on_store_failure }
}

/// What a sketch is made for.
fn expect(map: &mut Mapping<'_>) -> Option<u32> {
    let Some(at) = map.get("expect") else {
        return Some(DEFAULT_EXPECT);
    };
    let mut expect = at.map()?;
    let requests =
        expect.require("requests", "write requests: 10000/s").map(|at| at.parse(per_second));
    expect.finish();
    requests?
}

/// A rate as whole requests per second, rounded up.
fn per_second(text: &str) -> Result<u32, String> {
    let rate = rate(text)?;
    let per_second = u128::from(rate.count()) * 1_000_000_000;
    let per_second = per_second.div_ceil(u128::from(rate.period().get()));
    u32::try_from(per_second).map_err(|_| format!("{text:?} is more than any node sees"))
}

/// `missing_key`: must be written where the key can be absent, and cannot be where it never is.
fn missing_key(map: &mut Mapping<'_>, key: Option<&KeySpec>, names: &[&str]) -> Option<MissingKey> {
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

fn outcome_of_missing(at: &Located<'_>, names: &[&str]) -> Option<MissingKey> {
    if !at.is_map() {
        return at.choice(&[
            ("skip", MissingKey::Skip),
            ("deny", MissingKey::Deny(400)),
            ("client_ip", MissingKey::ClientIp),
        ]);
    }
    let mut map = at.map()?;
    let (limit, deny) = (map.get("limit"), map.get("deny"));
    map.finish();
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
