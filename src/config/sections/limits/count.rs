//! How a limit counts: an exact rate, an estimated rate, or requests in flight. Each of the three
//! has its own keys, and the keys of another one are refused by name.

use std::collections::HashSet;

use super::algorithm::{Shape, shape};
use super::limit::LimitContext;
use super::terms::terms;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{integer, rate};
use crate::config::sections::bounds::MAX_CELLS;
use crate::config::sections::costs::status_rules;
use crate::limit::{MAX_RATES, MAX_WINDOWS, Quota, Rate, WindowLengths};
use crate::policy::{
    AfterCrash, Count, DEFAULT_EXPECT_PER_SECOND, KeySpec, OnStoreFailure, StatusRules, Terms,
    WhenFull,
};

/// Keys that need an exact rate.
const EXACT_KEYS: [&str; 10] = [
    "algorithm",
    "burst",
    "refill_every",
    "max_delay",
    "when_full",
    "max_keys",
    "on_store_failure",
    "after_crash",
    "count",
    "refund",
];

/// How a limit counts, its overrides and plans, and which responses it counts or refunds.
pub(super) struct CountSettings {
    pub(super) count: Count,
    pub(super) terms: Terms,
    pub(super) status_rules: StatusRules,
}

/// Reads how a limit counts. `is_exact`: the tier; `None` if it has a mistake.
pub(super) fn count_settings(
    map: &mut Mapping<'_>,
    is_exact: Option<bool>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
) -> Option<CountSettings> {
    if let Some(at) = map.get("max_in_flight") {
        return in_flight(map, &at, is_exact, key, context);
    }
    let rate_at = map.require("rate", "write for example rate: 60/1m, or max_in_flight: 20");
    let rate = rate_at.as_ref().and_then(|at| at.parse(rate));
    match is_exact {
        Some(true) => exact(map, rate_at.as_ref(), rate, key, context),
        Some(false) => estimate(map, rate, key, context),
        // Without a tier, the keys of both tiers are known.
        None => {
            mark_known(map);
            None
        }
    }
}

fn in_flight(
    map: &mut Mapping<'_>,
    at: &Located<'_>,
    is_exact: Option<bool>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
) -> Option<CountSettings> {
    let why = "cannot be combined with max_in_flight";
    refuse(map, &["rate", "expect"], why, "leave one of the two out");
    refuse(map, &EXACT_KEYS, why, "leave it out");
    let why = "cannot be combined with max_in_flight: each node counts its own requests in flight";
    refuse(map, &["scope"], why, "leave it out");
    let max = at.parse(integer(1, u64::from(u32::MAX))).and_then(|max| u32::try_from(max).ok());
    if is_exact == Some(false) {
        at.error_with("requests in flight are counted exactly", "write tier: exact");
    }
    let terms = terms(map, None, key, context)?;
    let status_rules = StatusRules::default();
    Some(CountSettings { count: Count::InFlight { max: max? }, terms, status_rules })
}

fn exact(
    map: &mut Mapping<'_>,
    rate_at: Option<&Located<'_>>,
    rate: Option<Rate>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
) -> Option<CountSettings> {
    if let Some(at) = map.get("expect") {
        at.error_with(
            "expect belongs to tier: estimate",
            "leave it out: an exact limit counts every key by itself",
        );
    }
    let shape = shape(map, context.tick);
    if shape.as_ref().is_some_and(Shape::delays) {
        refuse(
            map,
            &["count", "refund"],
            "cannot be combined with max_delay: a refund does not shorten the delays that later \
             requests already have",
            "leave one of the two out",
        );
    }
    let status_rules = status_rules(map);
    let fallbacks = fallbacks(map);
    let after_crash = after_crash(map, context);
    let terms = match &shape {
        Some(shape) => terms(map, Some(shape), key, context),
        None => {
            mark_known(map);
            None
        }
    };
    let quota = quota(shape.as_ref(), rate, rate_at);
    if let (Some(quota), Some(terms), Some(at)) = (&quota, &terms, rate_at) {
        bound_windows_and_rates(quota, terms, at);
    }
    let (quota, Fallbacks { when_full, max_keys, on_store_failure }) = (quota?, fallbacks?);
    Some(CountSettings {
        count: Count::Exact {
            quota,
            when_full,
            max_keys,
            on_store_failure,
            after_crash: after_crash?,
        },
        terms: terms?,
        status_rules: status_rules?,
    })
}

fn estimate(
    map: &mut Mapping<'_>,
    rate: Option<Rate>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
) -> Option<CountSettings> {
    refuse(map, &EXACT_KEYS, "belongs to tier: exact", "leave it out, or write tier: exact");
    let terms = terms(map, None, key, context);
    let expect = expect(map);
    Some(CountSettings {
        count: Count::Estimate { rate: rate?, expect_per_second: expect? },
        terms: terms?,
        status_rules: StatusRules::default(),
    })
}

fn quota(shape: Option<&Shape<'_>>, rate: Option<Rate>, at: Option<&Located<'_>>) -> Option<Quota> {
    shape?.quota(rate?, at?, None)
}

/// Bounds the numbers of windows and rates, since every charge is written to each window length of
/// the limit, and to the bucket of each rate under which its key was charged. (Overrides do not
/// count as rates: an override concerns one key, or a few.)
fn bound_windows_and_rates(quota: &Quota, terms: &Terms, at: &Located<'_>) {
    let windows = WindowLengths::of(std::iter::once(quota).chain(&terms.quotas)).lengths().len();
    if windows > MAX_WINDOWS {
        at.error_with(
            format!(
                "this limit and its plans and overrides have {windows} different windows, at most \
                 {MAX_WINDOWS} are possible"
            ),
            "write their rates over fewer different durations",
        );
    }
    let plans = terms.plans.iter().flat_map(|plans| &plans.rates);
    let plans = plans.filter_map(|(_, rate)| terms.quotas.get((*rate as usize).checked_sub(1)?));
    let rates = std::iter::once(quota).chain(plans);
    let rates: HashSet<&Quota> = rates.filter(|quota| quota.window_length().is_none()).collect();
    if rates.len() > MAX_RATES {
        at.error_with(
            format!(
                "this limit and its plans have {} different rates, at most {MAX_RATES} are \
                 possible for a bucket",
                rates.len()
            ),
            "write fewer plans, or a separate limit for some of them",
        );
    }
}

/// Marks all keys as known, so that an earlier mistake does not make them unknown.
fn mark_known(map: &mut Mapping<'_>) {
    for key in
        EXACT_KEYS.iter().chain(&["expect", "plans", "overrides", "rollout", "from", "candidate"])
    {
        map.get(key);
    }
}

/// Records an error for each of these keys that is present.
fn refuse(map: &mut Mapping<'_>, keys: &[&'static str], why: &str, cure: &str) {
    for key in keys {
        if let Some(at) = map.get(key) {
            at.error_with(format!("{key} {why}"), cure);
        }
    }
}

fn after_crash(map: &mut Mapping<'_>, context: &LimitContext<'_>) -> Option<AfterCrash> {
    let Some(at) = map.get("after_crash") else {
        return Some(AfterCrash::default());
    };
    let after_crash = at.choice(&[("allow", AfterCrash::Allow), ("deny", AfterCrash::Deny)])?;
    if after_crash == AfterCrash::Deny && !context.has_state {
        at.error_with(
            "nothing is left after a crash without a state directory",
            "write store: { embedded: { state: /var/lib/tollgate } }, or leave after_crash out",
        );
    }
    Some(after_crash)
}

/// What an exact limit does without room for a key or while the store fails.
struct Fallbacks {
    when_full: WhenFull,
    max_keys: Option<usize>,
    on_store_failure: OnStoreFailure,
}

fn fallbacks(map: &mut Mapping<'_>) -> Option<Fallbacks> {
    let when_full = map.get("when_full").map(|at| {
        at.choice(&[
            ("estimate", WhenFull::Estimate),
            ("deny", WhenFull::Deny),
            ("allow", WhenFull::Allow),
        ])
    });
    let max_keys = map.get("max_keys").map(|at| at.parse(integer(1, MAX_CELLS)));
    let on_store_failure = map.get("on_store_failure").map(|at| {
        at.choice(&[
            ("local", OnStoreFailure::Local),
            ("allow", OnStoreFailure::Allow),
            ("deny", OnStoreFailure::Deny),
        ])
    });
    Some(Fallbacks {
        when_full: when_full.unwrap_or(Some(WhenFull::default()))?,
        max_keys: match max_keys {
            None => None,
            Some(keys) => Some(usize::try_from(keys?).ok()?),
        },
        on_store_failure: on_store_failure.unwrap_or(Some(OnStoreFailure::default()))?,
    })
}

/// `expect`: the traffic that the sketch is made for, in requests per second.
fn expect(map: &mut Mapping<'_>) -> Option<u32> {
    let Some(at) = map.get("expect") else {
        return Some(DEFAULT_EXPECT_PER_SECOND);
    };
    let mut expect = at.mapping()?;
    let requests =
        expect.require("requests", "write requests: 10000/s").map(|at| at.parse(per_second));
    expect.finish();
    requests?
}

/// A rate in requests per second, rounded up.
fn per_second(text: &str) -> Result<u32, String> {
    let rate = rate(text)?;
    let per_second = u128::from(rate.count()) * 1_000_000_000;
    let per_second = per_second.div_ceil(u128::from(rate.period().get()));
    u32::try_from(per_second).map_err(|_| format!("{text:?} is more than one node can receive"))
}
