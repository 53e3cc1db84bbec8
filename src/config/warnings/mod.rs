//! What is allowed and probably not meant. Each warning has a code by which it is silenced.

mod terms;

use crate::config::StoreConfig;
use crate::config::error::Warning;
use crate::config::reader::{Located, Mapping};
use crate::config::sections::limits::Limits;
use crate::config::sections::routes::Routes;
use crate::limit::SketchSize;
use crate::policy::client::ClientRules;
use crate::policy::{
    Count, Limit, LimitIndex, MissingKey, Mode, Rollout, RouteLimit, RouteMatch, Source,
};

/// Every code there is.
const CODES: [(&str, Code); 16] = [
    ("unreachable-route", Code::UnreachableRoute),
    ("unused-limit", Code::UnusedLimit),
    ("spoofable-key", Code::SpoofableKey),
    ("address-header-untrusted", Code::AddressHeaderUntrusted),
    ("trusts-everybody", Code::TrustsEverybody),
    ("estimate-noise", Code::EstimateNoise),
    ("fixed-key-secret", Code::FixedKeySecret),
    ("spoofable-cost", Code::SpoofableCost),
    ("plan-untrusted", Code::PlanUntrusted),
    ("overspend", Code::Overspend),
    ("rolled-out-to-nobody", Code::RolledOutToNobody),
    ("shared-ban", Code::SharedBan),
    ("spoofable-ban", Code::SpoofableBan),
    ("shadowed-override", Code::ShadowedOverride),
    ("unlimited-preflights", Code::UnlimitedPreflights),
    ("unlimited-token-checks", Code::UnlimitedTokenChecks),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    UnreachableRoute,
    UnusedLimit,
    SpoofableKey,
    AddressHeaderUntrusted,
    TrustsEverybody,
    EstimateNoise,
    FixedKeySecret,
    SpoofableCost,
    PlanUntrusted,
    Overspend,
    RolledOutToNobody,
    SharedBan,
    SpoofableBan,
    ShadowedOverride,
    UnlimitedPreflights,
    UnlimitedTokenChecks,
}

/// What there is to look at.
pub(super) struct WarningInput<'l> {
    pub(super) file: &'l str,
    pub(super) limits: &'l Limits<'l>,
    pub(super) routes: &'l Routes<'l>,
    pub(super) clients: &'l ClientRules,
    pub(super) clients_at: Option<Located<'l>>,
    pub(super) store: &'l StoreConfig,
    pub(super) store_at: Option<Located<'l>>,
}

/// Codes that `check: { silence: [..] }` names.
pub(super) struct Silenced(Vec<Code>);

/// `check`.
pub(super) fn silenced(root: &mut Mapping<'_>) -> Silenced {
    let Some(mut map) = root.get("check").and_then(|at| at.map()) else {
        return Silenced(Vec::new());
    };
    let codes = map.get("silence").map(|at| at.one_or_more()).unwrap_or_default();
    map.finish();
    Silenced(codes.iter().filter_map(|at| at.choice(&CODES)).collect())
}

/// Every warning that is not silenced, in the order of the file.
pub(super) fn warnings(looked: &WarningInput<'_>, silenced: &Silenced) -> Vec<Warning> {
    let mut found = WarningList { file: looked.file, silenced, warnings: Vec::new() };
    unreachable(looked, &mut found);
    unused(looked, &mut found);
    spoofable(looked, &mut found);
    unlimited_preflights(looked, &mut found);
    unlimited_token_checks(looked, &mut found);
    untrusted(looked, &mut found);
    noisy(looked, &mut found);
    unkeyed(looked, &mut found);
    terms::look(looked, &mut found);
    found.warnings.sort_by_key(|warning| warning.location);
    found.warnings
}

struct WarningList<'f> {
    file: &'f str,
    silenced: &'f Silenced,
    warnings: Vec<Warning>,
}

impl WarningList<'_> {
    fn add(&mut self, code: Code, at: &Located<'_>, message: String, cure: &str) {
        if self.silenced.0.contains(&code) {
            return;
        }
        let word = CODES.iter().find(|(_, other)| *other == code).map_or("", |(word, _)| *word);
        self.warnings.push(Warning {
            code: word,
            file: self.file.to_owned(),
            location: at.location,
            path: at.path.clone(),
            message,
            cure: cure.to_owned(),
        });
    }
}

fn unreachable(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    let routes = &looked.routes.routes;
    for (place, (route, at)) in routes.iter().zip(&looked.routes.places).enumerate() {
        let taken =
            routes[..place].iter().find(|before| takes_all(&before.matches, &route.matches));
        if let Some(before) = taken {
            let message =
                format!("route {:?} takes every request that this one could", before.name);
            found.add(
                Code::UnreachableRoute,
                at,
                message,
                "put it before that route, or remove it",
            );
        }
    }
}

/// Whether everything that `later` takes is surely taken by `earlier`: only simple cases.
fn takes_all(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    let all_hosts = earlier.hosts.is_empty() || earlier.hosts == later.hosts;
    let all_paths = earlier.paths.is_empty() || earlier.paths == later.paths;
    let all_methods = earlier.methods.iter().next().is_none() || earlier.methods == later.methods;
    let all_headers = earlier.headers.iter().all(|header| later.headers.contains(header));
    let all_clients = earlier.clients.is_empty() || earlier.clients == later.clients;
    all_hosts && all_paths && all_methods && all_headers && all_clients
}

fn unused(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    let mut used: Vec<bool> = vec![false; looked.limits.limits.len()];
    for one in looked.routes.routes.iter().flat_map(|route| &route.limits) {
        let mut next = Some(one.limit);
        while let Some(LimitIndex(place)) = next {
            next = match looked.limits.limits[place].missing_key {
                MissingKey::Limit(after) if !used[place] => Some(after),
                _ => None,
            };
            used[place] = true;
        }
    }
    for ((limit, at), used) in looked.limits.limits.iter().zip(&looked.limits.places).zip(used) {
        if !used {
            let message = format!("no route uses limit {:?}", limit.name);
            found.add(Code::UnusedLimit, at, message, "name it in a route, or remove it");
        }
    }
}

fn spoofable(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    for (route, at) in looked.routes.routes.iter().zip(&looked.routes.places) {
        let limits = || route.limits.iter().map(|one| &looked.limits.limits[one.limit.0]);
        if limits().any(is_by_address) {
            continue;
        }
        if let Some(limit) = limits().find(|limit| is_chosen_by_client(limit)) {
            let message = format!(
                "limit {:?} is by {}, which a client chooses freely: a new value is a new budget",
                limit.name, limit.key
            );
            let cure = "add a limit by client_ip, or check the value before tollgate";
            found.add(Code::SpoofableKey, at, message, cure);
        }
    }
}

fn is_by_address(limit: &Limit) -> bool {
    limit.key.sources() == [Source::ClientIp]
}

fn is_chosen_by_client(limit: &Limit) -> bool {
    limit
        .key
        .sources()
        .iter()
        .any(|source| matches!(source, Source::Header(_) | Source::Cookie(_) | Source::Query(_)))
}

/// Routes with limits whose preflights meet none of them: anybody can send as many as the origin takes.
fn unlimited_preflights(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    for (route, at) in looked.routes.routes.iter().zip(&looked.routes.places) {
        let takes_preflights = route.exempt.preflight && route.matches.methods.contains("OPTIONS");
        let limits = route.limits.iter().map(|one| &looked.limits.limits[one.limit.0]);
        let mut refusing = limits.filter(|limit| limit.mode == Mode::Enforce).peekable();
        let is_limited = refusing.peek().is_some();
        if takes_preflights && is_limited && !refusing.any(Limit::applies_to_exempt) {
            let message = format!(
                "preflights (OPTIONS with Origin) of route {:?} meet no limit: responses.exempt \
                 spares them exact limits, and no estimate limit by client_ip is here",
                route.name
            );
            let cure = "add a limit with tier: estimate and key: client_ip, or write \
                        responses: { exempt: [acme] } in the route";
            found.add(Code::UnlimitedPreflights, at, message, cure);
        }
    }
}

/// Routes that check signatures without a limit that is asked before: anybody can send as many forged tokens as
/// the processor takes.
fn unlimited_token_checks(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    let limit = |index: LimitIndex| &looked.limits.limits[index.0];
    for (route, at) in looked.routes.routes.iter().zip(&looked.routes.places) {
        let chains = route.limits.iter().flat_map(|one| {
            std::iter::successors(Some(one.limit), |last| match limit(*last).missing_key {
                MissingKey::Limit(next) => Some(next),
                _ => None,
            })
            // A chain with a cycle is refused elsewhere.
            .take(looked.limits.limits.len())
        });
        let checks_tokens = chains.into_iter().any(|index| reads_token(limit(index)));
        let bounds = |one: &RouteLimit| {
            bounds_token_checks(limit(one.limit)) && !one.cost.depends_on_response()
        };
        if checks_tokens && !route.limits.iter().any(bounds) {
            let message = format!(
                "route {:?} checks signed tokens, and no limit bounds how many forged ones a client \
                 may have checked",
                route.name
            );
            let cure = "add a limit by client_ip, as addresses: { tier: estimate, rate: 6000/1m, \
                        key: client_ip, headers: hidden }";
            found.add(Code::UnlimitedTokenChecks, at, message, cure);
        }
    }
}

fn reads_token(limit: &Limit) -> bool {
    let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
    limit.key.sources().iter().chain(plan).any(|source| source.claim().is_some())
}

/// Whether a limit refuses a client of forged tokens, whatever else it sends, and is charged for each of them.
fn bounds_token_checks(limit: &Limit) -> bool {
    let fixed = |source: &Source| matches!(source, Source::ClientIp | Source::Route);
    limit.mode == Mode::Enforce
        && limit.terms.rollout.ppm == Rollout::default().ppm
        && !matches!(limit.count, Count::InFlight { .. })
        && !limit.status_rules.depends_on_status()
        && !reads_token(limit)
        && limit.key.sources().contains(&Source::ClientIp)
        && limit.key.sources().iter().all(fixed)
}

fn untrusted(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    if let Some(at) = &looked.clients_at
        && looked.clients.address_header.is_some()
        && looked.clients.trusted_proxies.is_empty()
    {
        let message = "address_header is believed from nobody".to_owned();
        found.add(Code::AddressHeaderUntrusted, at, message, "write trusted_proxies: [10.0.0.0/8]");
    }
    let all = looked.clients.trusted_proxies.iter().find(|network| network.prefix_len() == 0);
    if let (Some(at), Some(all)) = (&looked.clients_at, all) {
        let message =
            format!("{all} is every client: each may say that it is another, for a new budget");
        let cure = "name the networks of your balancers, as trusted_proxies: [10.0.0.0/8]";
        found.add(Code::TrustsEverybody, at, message, cure);
    }
}

fn noisy(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    for (limit, at) in looked.limits.limits.iter().zip(&looked.limits.places) {
        let Count::Estimate { rate, expect_per_second } = &limit.count else {
            continue;
        };
        let over = SketchSize::new(*rate, *expect_per_second).expected_overcount();
        if over * 10 > u64::from(rate.count()) {
            let message = format!(
                "the sketch over-counts by about {over} of {}: every key becomes a suspect",
                rate.count()
            );
            let cure = "use a shorter window, or tier: exact";
            found.add(Code::EstimateNoise, at, message, cure);
        }
    }
}

fn unkeyed(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    let (StoreConfig::Redis(redis), Some(at)) = (looked.store, &looked.store_at) else {
        return;
    };
    if redis.key_secret.is_none() {
        let message = "without key_secret_file the hashes of keys are made with a secret that \
                       everybody knows: who can read the store can find out which keys are in it";
        let cure = "write key_secret_file, the same on all nodes";
        found.add(Code::FixedKeySecret, at, message.to_owned(), cure);
    }
}
