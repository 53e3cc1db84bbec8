//! Counts what one policy decides: for the report, for suggested rates, and for bounds where the times of a log are not exact.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::bounds::{Certainty, CostRange, StampBounds, StampPrecision, StampedRequest};
use super::entry::LogEntry;
use super::judged::{AppliedRate, HIDDEN, JudgedRequest, KeyResult, KeyVerdict, ShowKey};
use super::key_memory::MemoryBounds;
use super::labels;
use super::names::Names;
use super::policy::{Judgment, NotJudged, ReplayedPolicy};
use super::settled;
use super::suggest::{Demand, DemandedUnits, HeldUnits, InFlightDemand};
use super::tally::Tally;
use crate::clock::Nanos;
use crate::engine::{Decision, LimitVerdict, Outcome};
use crate::limit::{Quota, SlidingWindow};
use crate::policy::key::KeyPart;
use crate::policy::{
    Cost, Count, Facts, Limit, LimitIndex, MissingKey, MissingValue, Mode, Policy, RateSource,
    Route, Source,
};

/// What is assumed where a log does not say how long requests took.
pub(super) const NO_DURATION: &str = "duration:none";

/// What is assumed of a request with the method `OPTIONS`, if the log does not say.
const PREFLIGHT: &str = "preflight:OPTIONS";

/// Hexadecimal digits of a key's hash in a report.
const SHOWN_DIGITS: usize = 12;

/// Counts the decisions of one policy.
pub(super) struct Observer {
    pub(super) tally: Tally,
    pub(super) names: Arc<Names>,
    pub(super) demands: Vec<LimitDemand>,
    pub(super) bounds: Vec<LimitBounds>,
    /// Requests, or verdicts of a limit, that are missing, by reason.
    pub(super) not_judged: BTreeMap<String, u64>,
    /// Requests for which something was assumed, by what it was.
    pub(super) assumed: BTreeMap<String, u64>,
    shows_keys: bool,
    suggests: bool,
    bounds_refusals: bool,
    /// Requests whose times are not exact, though those of the first lines were: refusals have no bounds.
    pub(super) inexact_late: u64,
    /// Requests that each limit did not see because a key of them was banned.
    pub(super) unseen: Vec<u64>,
    judged: u64,
    verdicts: Vec<KeyVerdict>,
}

/// What is counted, and within which bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObserverSettings {
    /// Whether keys are shown as they are.
    pub(super) shows_keys: bool,
    /// Whether rates are suggested.
    pub(super) suggests: bool,
    /// Whether the times of a log are not exact, so that refusals have bounds.
    pub(super) bounds_refusals: bool,
    /// The memory of the demand on each limit, and of its bounds.
    pub(super) memory: MemoryBounds,
}

/// The demand on one limit.
pub(super) enum LimitDemand {
    Rate(Box<RateDemand>),
    InFlight(Box<InFlightDemand>),
}

/// The demand on a limit with a rate.
pub(super) struct RateDemand {
    /// What requests cost in the end.
    pub(super) settled: Demand,
    /// What requests hold until their answers; `None` if answers change nothing.
    held: Option<HeldUnits>,
}

/// The bounds of one limit.
pub(super) struct LimitBounds {
    /// What the limit is bounded by; `None`: nothing about it is certain.
    quota: Option<Quota>,
    costs: CostRange,
    memory: MemoryBounds,
    /// Made with the first request, which shows how exact times are.
    pub(super) stamps: Option<StampBounds>,
}

/// Shows the keys of one request.
struct KeyTexts<'k> {
    policy: &'k Policy,
    facts: &'k Facts<'k>,
    decision: &'k Decision,
    shows_keys: bool,
}

impl Observer {
    /// Counts the decisions of a policy.
    pub(super) fn new(policy: &Policy, settings: ObserverSettings) -> Self {
        let ObserverSettings { shows_keys, suggests, bounds_refusals, memory } = settings;
        let names = Arc::new(labels::names(policy));
        Self {
            tally: Tally::new(Arc::clone(&names)),
            names,
            demands: policy
                .indexed_limits()
                .map(|(index, _)| demand(policy, index, memory))
                .collect(),
            bounds: policy
                .indexed_limits()
                .map(|(index, _)| bounds(policy, index, memory))
                .collect(),
            not_judged: BTreeMap::new(),
            assumed: BTreeMap::new(),
            shows_keys,
            suggests,
            bounds_refusals,
            inexact_late: 0,
            unseen: vec![0; policy.limits.len()],
            judged: 0,
            verdicts: Vec::new(),
        }
    }

    /// Counts a request that is not judged.
    pub(super) fn note_unjudged(&mut self, why: NotJudged) {
        let reason = match why {
            NotJudged::Unjudged(why) => why.name().to_owned(),
            NotJudged::Rejected(reason) => format!("rejected:{}", reason.name()),
        };
        *self.not_judged.entry(reason).or_default() += 1;
    }

    /// Counts a judgment. `then` sees the judged request.
    pub(super) fn add(
        &mut self,
        judgment: &Judgment,
        facts: &Facts<'_>,
        replayed: &ReplayedPolicy,
        entry: &LogEntry,
        then: impl FnOnce(&JudgedRequest<'_>),
    ) {
        let (policy, decision) = (replayed.policy(), &judgment.decision);
        self.note_missing(&judgment.missing, entry);
        self.verdicts.clear();
        let route = decision.route.map(|route| policy.route(route));
        let verdicts = decision.verdicts.iter();
        self.verdicts.extend(verdicts.map(|found| KeyVerdict {
            cost: settled::units(found, policy, route, entry),
            ..key_verdict(found)
        }));
        let shown = KeyTexts { policy, facts, decision, shows_keys: self.shows_keys };
        let request = JudgedRequest {
            number: self.judged,
            at: entry.at.wall,
            uncertainty: entry.latest.saturating_sub(entry.earliest),
            route: decision.route.map(|route| route.0),
            refused: decision.outcome != Outcome::Allowed && decision.outcome != Outcome::NoRoute,
            status: entry.status,
            method: facts.method,
            host: if self.shows_keys { facts.host } else { shown.host() },
            path: if self.shows_keys { facts.path } else { shown.path() },
            verdicts: &self.verdicts,
            shown: &shown,
        };
        self.judged += 1;
        self.tally.add(&request);
        for (verdict, found) in self.verdicts.iter().zip(&decision.verdicts) {
            if found.kind.lacks_room() {
                let reason = format!("room:{}", policy.limit(found.limit).name);
                *self.assumed.entry(reason).or_default() += 1;
            }
            if self.suggests {
                self.demands[verdict.limit].add(verdict, found.cost, entry);
            }
            if self.bounds_refusals {
                let certainty = certainty(policy, decision, found, &judgment.missing);
                self.bounds[verdict.limit].add(found, entry, certainty);
            }
        }
        then(&request);
        if self.suggests && decision.verdicts.iter().any(|found| found.banned) {
            self.note_unseen(policy, decision);
        }
    }

    /// Counts a request of a banned key at the limits that do not see it.
    fn note_unseen(&mut self, policy: &Policy, decision: &Decision) {
        let Some(route) = decision.route.map(|route| policy.route(route)) else {
            return;
        };
        for limit in route.limits.iter().map(|used| used.limit) {
            if decision.verdicts.iter().all(|found| found.limit != limit || found.banned) {
                self.unseen[limit.0] += 1;
            }
        }
    }

    fn note_missing(&mut self, missing: &[MissingValue], entry: &LogEntry) {
        for value in missing {
            let (counts, reason) = match value {
                MissingValue::Key(source) => (&mut self.not_judged, format!("key:{source}")),
                MissingValue::Rule(limit) => (&mut self.not_judged, format!("rule:{limit}")),
                MissingValue::Plan(source) => (&mut self.not_judged, format!("plan:{source}")),
                MissingValue::Override(source) => (&mut self.assumed, format!("override:{source}")),
                MissingValue::Condition(subject) => {
                    (&mut self.assumed, format!("absent:{subject}"))
                }
                MissingValue::Cost(header) => (&mut self.assumed, format!("default_cost:{header}")),
            };
            *counts.entry(reason).or_default() += 1;
        }
        if entry.is_assumed_preflight() {
            *self.assumed.entry(PREFLIGHT.to_owned()).or_default() += 1;
        }
        self.inexact_late += u64::from(!self.bounds_refusals && entry.latest > entry.earliest);
        if entry.duration.is_none() {
            match self.assumed.get_mut(NO_DURATION) {
                Some(count) => *count += 1,
                None => drop(self.assumed.insert(NO_DURATION.to_owned(), 1)),
            }
        }
    }
}

fn folded_key(found: &LimitVerdict) -> u128 {
    u128::from(found.key.high) << 64 | u128::from(found.key.low)
}

fn key_verdict(found: &LimitVerdict) -> KeyVerdict {
    KeyVerdict {
        limit: found.limit.0,
        key: folded_key(found),
        cost: found.cost,
        rate: match found.rate_source {
            RateSource::Own => AppliedRate::Own,
            RateSource::Plan(_) | RateSource::Override(_) | RateSource::KeyRule => {
                AppliedRate::Other
            }
        },
        result: match (found.verdict.allowed, found.banned) {
            (true, _) => KeyResult::Admitted,
            (false, false) => KeyResult::Refused,
            (false, true) => KeyResult::Banned,
        },
        shadow: found.shadow,
    }
}

impl LimitDemand {
    /// Counts a request. `charged`: what it cost before its answer.
    fn add(&mut self, verdict: &KeyVerdict, charged: u32, entry: &LogEntry) {
        match self {
            Self::Rate(demand) => {
                let (key, at) = (verdict.key, entry.at.wall);
                let mut asked = i64::from(charged);
                if let Some(held) = &mut demand.held {
                    asked = asked.saturating_add(held.of(key, at));
                    let surplus = i64::from(charged) - i64::from(verdict.cost);
                    held.hold(key, surplus, entry.answered().min(demand.settled.counts_until(at)));
                }
                demand.settled.record(DemandedUnits {
                    key,
                    at,
                    cost: verdict.cost,
                    asked: u64::try_from(asked).unwrap_or_default(),
                    rate: verdict.rate,
                });
            }
            Self::InFlight(demand) => match (verdict.rate, entry.duration) {
                (AppliedRate::Own, Some(_)) => {
                    demand.request(verdict.key, verdict.cost, entry.at.wall, entry.end());
                }
                (AppliedRate::Own, None) | (AppliedRate::Other, _) => {
                    demand.leave_out(verdict.key, entry.at.wall);
                }
            },
        }
    }
}

fn demand(policy: &Policy, index: LimitIndex, memory: MemoryBounds) -> LimitDemand {
    let limit = policy.limit(index);
    let quota = match &limit.count {
        Count::Estimate { rate, .. } => Quota::SlidingWindow(SlidingWindow::new(*rate)),
        Count::Exact { quota, .. } => *quota,
        Count::InFlight { .. } => {
            return LimitDemand::InFlight(Box::new(InFlightDemand::new(memory)));
        }
    };
    let mut users = policy.routes.iter();
    let holds = users.any(|route| settled::is_settled_later(policy, index, route));
    let held = holds.then(HeldUnits::default);
    LimitDemand::Rate(Box::new(RateDemand { settled: Demand::new(quota, holds, memory), held }))
}

impl LimitDemand {
    /// Whether answers change what requests are charged.
    pub(super) const fn has_refunds(&self) -> bool {
        matches!(self, Self::Rate(demand) if demand.held.is_some())
    }
}

impl LimitBounds {
    fn add(&mut self, found: &LimitVerdict, entry: &LogEntry, certainty: Certainty) {
        let (quota, costs, memory) = (self.quota, self.costs, self.memory);
        let stamps = self.stamps.get_or_insert_with(|| match quota {
            Some(quota) => StampBounds::new(quota, precision(entry), costs, memory),
            None => StampBounds::unbounded(),
        });
        stamps.record(StampedRequest {
            earliest: entry.earliest,
            latest: entry.latest,
            key: folded_key(found),
            // What is only possible has to stand for the most that it may cost.
            cost: match certainty {
                Certainty::Certain | Certainty::UnlessRefused => found.cost,
                Certainty::Possible => found.cost.max(costs.max),
            },
            certainty,
        });
    }
}

/// How exact times are, by the first request of a log.
fn precision(entry: &LogEntry) -> StampPrecision {
    let second = Nanos::SECOND.get();
    let is_full_second = entry.earliest.get().is_multiple_of(second);
    let uncertainty = entry.latest.saturating_sub(entry.earliest);
    StampPrecision {
        unit: if is_full_second && uncertainty.get() + 1 >= second {
            Nanos::SECOND
        } else {
            Nanos::new(1)
        },
        uncertainty,
        // Requests are judged in the order of the times of their lines.
        disorder: uncertainty,
    }
}

/// What bounds a limit. Its own rate must hold for every key, and nothing but counts may refuse: a ban ends the judgment of the
/// other limits too.
fn bounds(policy: &Policy, index: LimitIndex, memory: MemoryBounds) -> LimitBounds {
    let limit = policy.limit(index);
    let terms = &limit.terms;
    let is_plain = terms.plans.is_none()
        && terms.overrides.is_empty()
        && terms.key_rules.is_empty()
        && terms.rollout.is_complete()
        && terms.rollout.from == Nanos::ZERO
        && policy.limits.iter().all(|limit| limit.penalty.is_none());
    let quota = match &limit.count {
        Count::Estimate { .. } | Count::InFlight { .. } => None,
        // Steps of refills begin at an instant that no log has.
        Count::Exact { quota: Quota::TokenBucket(bucket), .. }
            if bucket.refill_every() > Nanos::ZERO =>
        {
            None
        }
        Count::Exact { quota, .. } => Some(*quota),
    };
    let mut is_known = true;
    let (mut min, mut max) = (u32::MAX, 1);
    for used in policy.routes.iter().flat_map(|route| &route.limits) {
        let (least, greatest) = match &used.cost {
            Cost::Fixed(cost) => (*cost, *cost),
            Cost::Request { max, .. } | Cost::Response { max, .. } => (1, *max),
        };
        if policy.missing_key_chain(used.limit).any(|reached| reached == index) {
            (min, max) = (min.min(least), max.max(greatest));
            // What an answer names is not known when the request is judged.
            is_known &= !used.cost.depends_on_response();
        }
    }
    LimitBounds {
        quota: quota.filter(|_| is_plain && is_known),
        costs: CostRange { min: min.clamp(1, max), max },
        memory,
        stamps: None,
    }
}

/// What is certain of a request under a limit, apart from its time.
fn certainty(
    policy: &Policy,
    decision: &Decision,
    found: &LimitVerdict,
    missing: &[MissingValue],
) -> Certainty {
    let Some(route) = decision.route.map(|route| policy.route(route)) else {
        return Certainty::Possible;
    };
    // A limit whose key is missing is not judged; what else is missing may change the judgment of this one.
    let is_blurred = missing.iter().any(|value| match value {
        MissingValue::Key(_) | MissingValue::Rule(_) | MissingValue::Plan(_) => false,
        MissingValue::Condition(_) | MissingValue::Cost(_) | MissingValue::Override(_) => true,
    });
    if is_blurred || settled::is_settled_later(policy, found.limit, route) {
        return Certainty::Possible;
    }
    let others = route.limits.iter().map(|used| used.limit).filter(|other| *other != found.limit);
    let mut enforced = others.filter(|other| policy.limit(*other).mode == Mode::Enforce).peekable();
    if enforced.peek().is_none() {
        return Certainty::Certain;
    }
    let judged = |limit: LimitIndex| decision.verdicts.iter().any(|other| other.limit == limit);
    // What a limit refuses that was not judged is in no bounds.
    if enforced.all(judged) { Certainty::UnlessRefused } else { Certainty::Possible }
}

impl KeyTexts<'_> {
    /// The path, unless a limit of the route keys by it: then it may hold what keys are hidden for.
    fn path(&self) -> &str {
        let route = self.decision.route.map(|route| self.policy.route(route));
        let hides = route.is_some_and(|route| !self.policy.path_sources(route).is_empty());
        if hides { HIDDEN } else { self.facts.path }
    }
}

impl KeyTexts<'_> {
    /// The host, unless it is a key of the route.
    fn host(&self) -> &str {
        let route = self.decision.route.map(|route| self.policy.route(route));
        let is_key = |limit: &Limit| limit.key.sources().contains(&Source::Host);
        let hides = route.is_some_and(|route| {
            let mut limits =
                route.limits.iter().flat_map(|used| self.policy.missing_key_chain(used.limit));
            limits.any(|limit| is_key(self.policy.limit(limit)))
        });
        if hides { HIDDEN } else { self.facts.host }
    }
}

impl ShowKey for KeyTexts<'_> {
    fn show(&self, verdict: &KeyVerdict) -> Cow<'_, str> {
        let limit = &self.policy.limits[verdict.limit];
        let sources = limit.key.sources();
        let route = self.decision.route.map(|route| self.policy.route(route));
        if self.is_address(limit, route) {
            return Cow::Owned(self.facts.client.prefix().to_string());
        }
        if let (true, Some(route)) = (self.shows_keys, route) {
            let mut text = String::new();
            for source in sources {
                if !text.is_empty() {
                    text.push_str(", ");
                }
                text.push_str(&super::key_text::shown(source, self.facts, route));
            }
            return Cow::Owned(text);
        }
        let mut digits = String::with_capacity(32);
        // Writing to a string cannot fail.
        let _ = write!(digits, "{:032x}", verdict.key);
        digits.truncate(SHOWN_DIGITS);
        Cow::Owned(digits)
    }
}

impl KeyTexts<'_> {
    /// Whether the key is the client's address, because the request lacks the limit's own.
    fn is_address(&self, limit: &Limit, route: Option<&Route>) -> bool {
        let sources = limit.key.sources();
        if sources == [Source::ClientIp] {
            return true;
        }
        let (MissingKey::ClientIp, Some(route)) = (&limit.missing_key, route) else {
            return false;
        };
        let is_there =
            |source: &Source| matches!(source.part(self.facts, route), KeyPart::Present(_));
        !sources.iter().all(is_there)
    }
}
