//! Limits whose keys need no signature are asked before a token is checked. The oracle counts signatures,
//! and compares each decision with the one on a token that is remembered, of which nothing is checked.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use support::signing;
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{
    Decision, Engine, FinalResponse, Generation, Outcome, PendingSettlement, VerdictKind,
};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret, LimitIndex};

/// A day's begin, so that windows begin with the test.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

/// The key source of every limit that needs a signature.
const SUBJECT: &str = "{ jwt: { secret_file: keys/secret, claim: sub } }";

struct Bench {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
}

impl Bench {
    fn new(policy: &str) -> Self {
        let text = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
{policy}
"
        );
        let loaded = config::read_text(&text, "tokens.yaml", Path::new("tests/policies"));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
        let generation = engine.generation(loaded.config.policy, None).0;
        Self { clock, engine, generation }
    }

    fn send(
        &self,
        client: u8,
        token: Option<&str>,
        plan: Option<&str>,
    ) -> (Decision, PendingSettlement) {
        self.send_to("/", client, token, plan)
    }

    fn send_to(
        &self,
        path: &str,
        client: u8,
        token: Option<&str>,
        plan: Option<&str>,
    ) -> (Decision, PendingSettlement) {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
            headers.insert(header::AUTHORIZATION, value);
        }
        if let Some(plan) = plan {
            headers.insert("x-plan", HeaderValue::try_from(plan).unwrap());
        }
        let facts = Facts {
            connection: &tollgate::policy::ConnectionFacts::NONE,
            client: RequestClient {
                ip: [192, 0, 2, client].into(),
                ipv6_prefix: 64,
                peer_trusted: true,
            },
            now: self.clock.date(self.clock.now()),
            method: "GET",
            host: "h",
            path,
            readings: &[],
            query: None,
            headers: &headers,
            conditions: None,
        };
        self.engine.decide_now(&self.generation, &facts)
    }

    /// A request that is answered at once.
    fn outcome(&self, client: u8, token: &str) -> Outcome {
        self.send(client, Some(token), None).0.outcome
    }

    fn checks(&self) -> u64 {
        signing::of(&self.generation).iter().map(|one| one.checks()).sum()
    }

    fn index(&self, limit: &str) -> LimitIndex {
        let limits = &self.generation.policy().limits;
        LimitIndex(limits.iter().position(|one| &*one.name == limit).unwrap())
    }

    fn count(&self, limit: &str, kind: VerdictKind) -> u64 {
        self.generation.counters(self.index(limit)).get(kind)
    }

    fn names(&self, decision: &Decision) -> Vec<String> {
        let name = |limit| self.generation.policy().limit(limit).name.to_string();
        decision.refusing().map(|answer| name(answer.limit)).collect()
    }
}

/// Limits that admit three requests, each by a key that needs no signature.
const CHEAP: [&str; 8] = [
    "tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip",
    "tier: exact, algorithm: sliding_log, rate: 3/1h, key: [client_ip, path]",
    "tier: exact, algorithm: token_bucket, rate: 6/1h, cost: 2, key: client_ip",
    "tier: estimate, rate: 3/1h, key: client_ip",
    "tier: exact, max_in_flight: 3, key: client_ip",
    "tier: exact, rate: 3/1h, key: header:x-plan, missing_key: client_ip",
    "tier: exact, rate: 9/1h, key: client_ip, plans: { by: header:x-plan, rates: { free: 3/1h } }",
    "tier: exact, algorithm: leaky_bucket, rate: 1/1h, max_delay: 2h, key: client_ip",
];

/// What becomes of a request whose token is no key, and whether it passes then.
const MISSING: [(&str, bool); 4] =
    [("skip", true), ("{ limit: other }", true), ("client_ip", true), ("{ deny: 401 }", false)];

#[test]
fn a_request_that_another_limit_refuses_has_no_signature_checked() {
    for cheap in CHEAP {
        // A request that is answered 401 is charged to what is certainly its client's own.
        let is_own = !cheap.contains("max_in_flight") && !cheap.contains("key: header");
        for (missing, passes) in MISSING.into_iter().filter(|(_, passes)| *passes || is_own) {
            for (order, mode) in [
                ("cheap, token", "enforce"),
                ("token, cheap", "enforce"),
                ("token, cheap", "shadow"),
            ] {
                let bench = Bench::new(&format!(
                    "clients: {{ trusted_proxies: [192.0.2.0/24] }}
limits:
  cheap: {{ {cheap} }}
  other: {{ tier: exact, rate: 1000/1h, key: client_ip }}
  token: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: {missing}, mode: {mode} }}
routes: [{{ name: r, limits: [{order}] }}]"
                ));
                let label = format!("{cheap}, {missing}, {order}, {mode}");
                let plan = cheap.contains("plans").then_some("free");
                let mut held = Vec::new();
                for n in 0..3 {
                    let (decision, pending) = bench.send(1, Some(&signing::forged(n)), plan);
                    match decision.outcome {
                        Outcome::Allowed => assert!(passes, "{label}"),
                        Outcome::MissingKey { status, .. } => {
                            assert!(!passes && status == 401, "{label}");
                        }
                        other => panic!("{label}: {other:?}"),
                    }
                    held.push(pending);
                }
                assert_eq!(bench.checks(), 3, "{label}");
                // What is remembered is asked together with all other limits.
                let (whole, _pending) = bench.send(1, Some(&signing::forged(0)), plan);
                for n in 3..100 {
                    let (decision, pending) = bench.send(1, Some(&signing::forged(n)), plan);
                    assert_eq!(decision.outcome, Outcome::Limited, "{label}");
                    assert_eq!(bench.names(&decision), ["cheap"], "{label}");
                    if passes {
                        assert_eq!(decision.retry_after(), whole.retry_after(), "{label}");
                    }
                    assert!(!pending.awaits_response(), "{label}");
                }
                assert_eq!(bench.checks(), 3, "{label}");
                // A remembered token that is no key is answered before anything is asked.
                let denied = if passes { 98 } else { 97 };
                assert_eq!(bench.count("cheap", VerdictKind::Denied), denied, "{label}");
                assert_eq!(bench.count("cheap", VerdictKind::Allowed), 3, "{label}");
                drop(held);
                assert_eq!(bench.engine.delayed_requests(), 0, "{label}");
            }
        }
    }
}

#[test]
fn bans_and_overrides_refuse_before_a_signature_is_checked() {
    let plans = "{ jwt: { secret_file: keys/secret, claim: plan } }";
    let plans = format!("plans: {{ by: {plans}, rates: {{ gold: 5/1h }} }}");
    let penalty = "penalty: { after: 2, within: 1h, ban: 2h }";
    for (limits, checked, banned) in [
        (format!("a: {{ tier: exact, rate: 1/1h, key: client_ip, {penalty} }}"), 1, true),
        // The rate is in the token: until the ban each token is checked.
        (format!("a: {{ tier: exact, rate: 1/1h, key: client_ip, {plans}, {penalty} }}"), 3, true),
        (
            format!(
                "a: {{ tier: exact, rate: 1/1h, key: client_ip, {plans}, \
                 overrides: [{{ network: 192.0.2.1/32, action: deny }}] }}"
            ),
            0,
            false,
        ),
        (
            format!(
                "a: {{ tier: exact, rate: 9/1h, key: client_ip, {plans}, \
                 overrides: [{{ network: 192.0.2.1/32, rate: 1/1h }}] }}"
            ),
            1,
            false,
        ),
    ] {
        let bench = Bench::new(&format!(
            "limits:
  {limits}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: skip }}
routes: [{{ name: r, limits: [t, a] }}]"
        ));
        for n in 0..20 {
            let (decision, _pending) = bench.send(1, Some(&signing::forged(n)), None);
            let refused = n > 0 || checked == 0;
            assert_eq!(decision.outcome == Outcome::Limited, refused, "{limits}: {decision:?}");
            assert_eq!(decision.is_banned(), banned && n >= 3, "{limits}: {n}");
        }
        assert_eq!(bench.checks(), checked, "{limits}");
        // Neighbours are not concerned.
        assert_eq!(bench.outcome(2, &signing::forged(0)), Outcome::Allowed, "{limits}");
    }
}

#[test]
fn a_forged_token_spends_nothing_that_is_not_its_clients_own() {
    for other in [
        "tier: exact, rate: 3/1h, key: path",
        "tier: estimate, rate: 3/1h, key: method",
        "tier: exact, max_in_flight: 3, key: client_ip",
        "tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip, count: { status: [401] }",
        "tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip, refund: { status: [500] }",
        "tier: exact, rate: 30/1h, key: client_ip, cost: { response_header: x-cost, reserve: 10, max: 20 }",
    ] {
        let bench = Bench::new(&format!(
            "limits:
  other: {{ {other} }}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: {{ deny: 401 }} }}
routes: [{{ name: r, limits: [t, other] }}]"
        ));
        let mut held = Vec::new();
        for n in 0..10 {
            let (decision, pending) = bench.send(1, Some(&signing::forged(n)), None);
            let rejected = matches!(decision.outcome, Outcome::MissingKey { status: 401, .. });
            assert!(rejected, "{other}: {decision:?}");
            held.push(pending);
        }
        let good = signing::signed("{\"sub\":\"a\"}", 0);
        for _ in 0..3 {
            let (decision, pending) = bench.send(1, Some(&good), None);
            assert_eq!(decision.outcome, Outcome::Allowed, "{other}");
            held.push(pending);
        }
        assert_eq!(bench.send(1, Some(&good), None).0.outcome, Outcome::Limited, "{other}");
    }
}

/// Limits behind the token that refuse a client after its first request, each with its name.
const BEHIND: [(&str, &str); 4] = [
    ("guests: { tier: exact, rate: 1/1h, key: client_ip }", "{ limit: guests }"),
    ("guests: { tier: estimate, rate: 1/1h, key: client_ip }", "{ limit: guests }"),
    (
        "guests: { tier: exact, rate: 1/1h, key: client_ip, penalty: { after: 2, within: 1h, ban: 2h } }",
        "{ limit: guests }",
    ),
    ("guests: { tier: exact, rate: 1/1h, key: method }", "{ limit: guests }"),
];

#[test]
fn a_check_in_vain_is_paid_for_when_a_limit_behind_the_token_refuses() {
    for paying in [
        "tier: exact, algorithm: fixed_window, rate: 5/1h, key: client_ip",
        "tier: exact, algorithm: sliding_log, rate: 5/1h, key: [path, client_ip]",
        "tier: exact, algorithm: token_bucket, rate: 10/1h, cost: 2, key: client_ip",
        "tier: exact, algorithm: leaky_bucket, rate: 1/1h, max_delay: 4h, key: client_ip",
        "tier: exact, rate: 5/1h, key: header:x-none, missing_key: client_ip",
        "tier: estimate, rate: 5/1h, key: client_ip",
    ] {
        for (behind, missing) in BEHIND {
            for order in ["a, t", "t, a"] {
                let label = format!("{paying}, {behind}, {order}");
                let bench = Bench::new(&format!(
                    "limits:
  a: {{ {paying} }}
  {behind}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: {missing} }}
routes: [{{ name: r, limits: [{order}] }}]"
                ));
                let mut left = Vec::new();
                for n in 0..100 {
                    let (decision, _pending) = bench.send(1, Some(&signing::forged(n)), None);
                    let passes = n == 0;
                    assert_eq!(decision.outcome == Outcome::Allowed, passes, "{label}, {n}");
                    let mut answers = decision.verdicts.iter();
                    let told = answers.find(|answer| answer.limit == bench.index("a"));
                    left.extend(told.map(|answer| answer.verdict.remaining));
                }
                assert_eq!(bench.checks(), 5, "{label}");
                if !behind.contains("penalty") && !paying.contains("cost") {
                    assert_eq!(left[..6], [4, 3, 2, 1, 0, 0], "{label}: what is told is true");
                }
                // What is remembered is judged whole, and costs nothing more.
                let good = signing::signed("{\"sub\":\"a\"}", 0);
                assert_eq!(bench.outcome(1, &good), Outcome::Limited, "{label}");
                assert_eq!(bench.outcome(2, &good), Outcome::Allowed, "{label}: a neighbour");
            }
        }
    }
}

#[test]
fn a_token_is_checked_once_for_all_uses_of_a_file() {
    let by = |claim: &str| format!("{{ jwt: {{ secret_file: keys/secret, claim: {claim} }} }}");
    let (sub, org, plan) = (by("sub"), by("org"), by("plan"));
    let bench = Bench::new(&format!(
        "limits:
  a: {{ tier: exact, rate: 9/1h, key: {sub}, missing_key: skip }}
  b: {{ tier: exact, rate: 9/1h, key: [{org}, {sub}], missing_key: {{ limit: c }} }}
  c: {{ tier: exact, rate: 9/1h, key: client_ip, plans: {{ by: {plan}, rates: {{ gold: 5/1h }} }} }}
routes: [{{ name: r, limits: [a, b] }}]"
    ));
    assert_eq!(signing::of(&bench.generation).len(), 1);
    for n in 0..3 {
        assert_eq!(bench.outcome(1, &signing::signed("{\"sub\":\"a\"}", n)), Outcome::Allowed);
        assert_eq!(bench.outcome(1, &signing::forged(n)), Outcome::Allowed);
        assert_eq!(bench.checks(), 2 * n + 2);
    }
}

#[test]
fn a_true_token_that_is_refused_is_charged_nothing() {
    let plans = "{ jwt: { secret_file: keys/secret, claim: plan } }";
    for (limit, claims) in [
        (
            format!("{{ tier: exact, rate: 1/1h, key: {SUBJECT}, missing_key: skip }}"),
            "{\"sub\":\"a\"}",
        ),
        (
            format!(
                "{{ tier: exact, rate: 1/1h, key: method, plans: {{ by: {plans}, rates: {{ gold: 1/2h }} }} }}"
            ),
            "{\"plan\":\"nobody knows\"}",
        ),
        (
            format!("{{ tier: exact, rate: 1/1h, key: [{SUBJECT}, path], missing_key: skip }}"),
            "{\"sub\":\"a\"}",
        ),
    ] {
        let bench = Bench::new(&format!(
            "limits:
  a: {{ tier: exact, algorithm: fixed_window, rate: 5/1h, key: client_ip }}
  t: {limit}
routes: [{{ name: r, limits: [a, t] }}]"
        ));
        for n in 0..20 {
            let (decision, _pending) = bench.send(1, Some(&signing::signed(claims, n)), None);
            assert_eq!(decision.outcome == Outcome::Allowed, n == 0, "{limit}");
            assert_eq!(decision.verdicts[0].verdict.remaining, 4, "{limit}");
        }
    }
}

#[test]
fn a_check_in_vain_is_paid_for_by_every_way_to_the_address() {
    let plans =
        "plans: { by: { jwt: { secret_file: keys/secret, claim: plan } }, rates: { gold: 9/1h } }";
    for (limits, order) in [
        // Another limit denies what lacks a key.
        ("u: { tier: exact, rate: 9/1h, key: SUBJECT, missing_key: { limit: a } }", "t, u"),
        ("u: { tier: exact, rate: 9/1h, key: SUBJECT, missing_key: { limit: a } }", "u, t"),
        // The rate is in the token.
        (
            &*format!(
                "u: {{ tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip, {plans} }}"
            ),
            "t, u",
        ),
        (
            &*format!(
                "u: {{ tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip, {plans} }}"
            ),
            "u, t",
        ),
        ("u: { tier: exact, rate: 3/1h, key: SUBJECT, missing_key: client_ip }", "t, u"),
    ] {
        let bench = Bench::new(
            &format!(
                "limits:
  a: {{ tier: exact, algorithm: fixed_window, rate: 3/1h, key: client_ip }}
  {limits}
  t: {{ tier: exact, rate: 1000/1h, key: SUBJECT, missing_key: {{ deny: 401 }} }}
routes: [{{ name: r, limits: [{order}] }}]"
            )
            .replace("SUBJECT", SUBJECT),
        );
        for n in 0..10 {
            let (decision, _pending) = bench.send(1, Some(&signing::forged(n)), None);
            assert_eq!(
                decision.outcome.status(),
                if n < 3 { 401 } else { 429 },
                "{limits}, {order}, {n}"
            );
        }
    }
}

#[test]
fn a_request_without_a_token_that_it_needs_is_charged_nothing() {
    let bench = Bench::new(&format!(
        "limits:
  a: {{ tier: exact, rate: 3/1h, key: client_ip }}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: {{ deny: 401 }} }}
routes: [{{ name: r, limits: [a, t] }}]"
    ));
    for _ in 0..10 {
        let (decision, _pending) = bench.send(1, None, None);
        assert!(matches!(decision.outcome, Outcome::MissingKey { status: 401, .. }));
        assert!(decision.verdicts.is_empty());
    }
    let good = signing::signed("{\"sub\":\"a\"}", 0);
    let (decision, _pending) = bench.send(1, Some(&good), None);
    assert_eq!(decision.outcome, Outcome::Allowed);
    let told = |decision: &Decision| -> Vec<u32> {
        decision.verdicts.iter().map(|answer| answer.verdict.remaining).collect()
    };
    assert_eq!(told(&decision), [2, 999], "both limits, in the order of the route");
    let (decision, _pending) = bench.send(1, Some(&good), None);
    assert_eq!(told(&decision), [1, 998]);
}

#[test]
fn a_cell_that_two_limits_lead_to_is_charged_once_and_all_or_none() {
    let bench = Bench::new(&format!(
        "limits:
  a: {{ tier: exact, algorithm: fixed_window, rate: 5/1h, key: client_ip }}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: {{ limit: a }} }}
routes: [{{ name: r, limits: [a, {{ limit: t, cost: 4 }}] }}]"
    ));
    for n in 0..3 {
        let (decision, _pending) = bench.send(1, Some(&signing::forged(n)), None);
        // One unit is left, which is enough for all that is known before the signature is checked.
        let outcome = if n == 0 { Outcome::Allowed } else { Outcome::Limited };
        assert_eq!(decision.outcome, outcome);
        let answers: Vec<_> =
            decision.verdicts.iter().map(|one| (one.cost, one.verdict.remaining)).collect();
        assert_eq!(answers, [(4, 1)]);
        assert_eq!(bench.checks(), n + 1);
    }
    let (decision, _pending) = bench.send(1, Some(&signing::signed("{\"sub\":\"a\"}", 0)), None);
    assert_eq!(decision.outcome, Outcome::Allowed, "a true token costs the address one unit");
    assert_eq!(bench.outcome(1, &signing::forged(9)), Outcome::Limited);
    assert_eq!(bench.checks(), 4);
}

#[test]
fn a_limit_that_is_asked_twice_admits_exactly_its_rate_to_many_threads() {
    for tier in [
        "tier: exact, algorithm: fixed_window",
        "tier: exact, algorithm: token_bucket",
        "tier: estimate",
    ] {
        let bench = Bench::new(&format!(
            "limits:
  a: {{ {tier}, rate: 97/1h, key: client_ip }}
  t: {{ tier: exact, rate: 1000/1h, key: {SUBJECT}, missing_key: skip }}
routes: [{{ name: r, limits: [a, t] }}]"
        ));
        let admitted = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (bench, admitted) = (&bench, &admitted);
                scope.spawn(move || {
                    for n in 0..500 {
                        let token = match n % 2 {
                            0 => signing::forged(thread * 1_000 + n),
                            _ => signing::signed("{\"sub\":\"a\"}", thread * 1_000 + n),
                        };
                        if bench.outcome(1, &token) == Outcome::Allowed {
                            admitted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 97, "{tier}");
        assert!(bench.checks() < 97 + 4 * 4, "{tier}: {}", bench.checks());
    }
}

/// Limits of the mixtures. Those whose names begin with `t` need a signature.
const MIXED: [&str; 12] = [
    "a: { tier: exact, algorithm: fixed_window, rate: 5/1m, key: client_ip }",
    "b: { tier: estimate, rate: 9/1m, key: client_ip }",
    "c: { tier: exact, algorithm: token_bucket, rate: 6/1m, key: [client_ip, header:x-plan], missing_key: skip }",
    "d: { tier: exact, algorithm: fixed_window, rate: 4/1m, key: client_ip, count: { status: [401] } }",
    "e: { tier: exact, max_in_flight: 3, key: client_ip }",
    "f: { tier: exact, rate: 8/1m, key: client_ip, overrides: [{ network: 192.0.2.3/32, action: deny }, { network: 192.0.2.4/32, action: allow }] }",
    "g: { tier: exact, algorithm: sliding_log, rate: 3/1m, key: client_ip, rollout: 50% }",
    "h: { tier: exact, rate: 7/1m, key: client_ip, plans: { by: header:x-plan, rates: { gold: 20/1m } } }",
    "tk: { tier: exact, algorithm: fixed_window, rate: 4/1m, key: SUBJECT, missing_key: MISSING }",
    "tl: { tier: exact, rate: 6/1m, key: [SUBJECT, client_ip], missing_key: skip, refund: { status: [500] } }",
    "tp: { tier: exact, rate: 2/1m, key: client_ip, plans: { by: { jwt: { secret_file: keys/secret, claim: plan } }, rates: { gold: 9/1m } } }",
    "ts: { tier: exact, rate: 2/1m, key: SUBJECT, missing_key: client_ip, mode: shadow }",
];

/// Two engines under one policy: the one has every token checked before it decides. What the other charges for a
/// check in vain, when the request is refused, the one is charged by a request to each of these limits alone.
#[test]
fn mixtures_answer_as_if_every_token_had_been_checked() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let missing = random.choice(["skip", "client_ip", "{ limit: z }"]).unwrap();
        let chosen: Vec<&str> =
            (0..random.usize(1..6)).map(|_| *random.choice(&MIXED).unwrap()).collect();
        let mut names: Vec<&str> =
            chosen.iter().map(|one| one.split(':').next().unwrap()).collect();
        names.sort_unstable();
        names.dedup();
        random.shuffle(&mut names);
        let limits: String = MIXED.map(|one| format!("  {one}\n")).concat();
        let alone = |one: &str| {
            format!("  - {{ name: {one}, match: {{ path: /{one} }}, limits: [{one}] }}\n")
        };
        let all = MIXED.iter().map(|one| one.split(':').next().unwrap()).chain(["z"]);
        let alone: String = all.map(alone).collect();
        let policy = format!(
            "clients: {{ trusted_proxies: [192.0.2.0/24] }}
limits:
{limits}  z: {{ tier: exact, rate: 3/1m, key: client_ip }}
routes:
{alone}  - {{ name: r, limits: [{}] }}",
            names.join(", ")
        );
        let policy = policy.replace("SUBJECT", SUBJECT).replace("MISSING", missing);
        let mut pair =
            Pair { known: Bench::new(&policy), unknown: Bench::new(&policy), held: Vec::new() };
        for step in 0..200 {
            pair.step(
                &names,
                &mut random,
                step,
                &format!("seed {seed}, step {step}, {names:?}, {missing}"),
            );
        }
    }
}

struct Pair {
    /// Every token is remembered before it decides.
    known: Bench,
    /// Tokens are new to it.
    unknown: Bench,
    held: Vec<(PendingSettlement, PendingSettlement)>,
}

impl Pair {
    fn step(&mut self, names: &[&str], random: &mut fastrand::Rng, step: u64, label: &str) {
        let pass = Nanos::new(random.u64(0..3_000_000_000));
        for bench in [&self.known, &self.unknown] {
            bench.clock.advance(pass);
            bench.engine.tick(&bench.generation);
        }
        let client = random.u8(1..6);
        let plan = random.choice([None, Some("gold"), Some("x")]).unwrap();
        let claims =
            ["{\"sub\":\"a\"}", "{\"sub\":\"b\",\"plan\":\"gold\"}", "{\"plan\":\"gold\"}"];
        let token = match random.u8(0..6) {
            0 => None,
            1 | 2 => Some(signing::forged(step)),
            _ => Some(signing::signed(random.choice(claims).unwrap(), step)),
        };
        if let Some(token) = &token {
            signing::recall(
                &self.known.generation,
                token,
                self.known.clock.date(self.known.clock.now()),
            );
        }
        let before = self.unknown.checks();
        let (mut one, mut pending_one) = self.known.send(client, token.as_deref(), plan);
        let (mut other, mut pending_other) = self.unknown.send(client, token.as_deref(), plan);
        let checked = self.unknown.checks() - before;
        let is_forged = token.as_deref().is_some_and(|token| token == signing::forged(step));
        if checked > 0 && is_forged && one.outcome == Outcome::Limited {
            self.pay(&mut one, client, plan);
        }
        self.compare(&one, &other, label);
        let needs_no_signature = |name: &String| !name.starts_with(['t', 'z']);
        let early = self.known.names(&one).iter().any(needs_no_signature);
        let needs_one = token.is_some() && names.iter().any(|name| name.starts_with('t'));
        assert_eq!(checked > 0, needs_one && !early, "{label}: {:?}", self.known.names(&one));
        if one.outcome == Outcome::Allowed {
            let (status, headers) = (*random.choice(&[200, 401, 500]).unwrap(), HeaderMap::new());
            let response = FinalResponse { status, headers: &headers, by_origin: true };
            let (known, unknown) = (&self.known, &self.unknown);
            known.engine.finish(&known.generation, &mut one, &mut pending_one, &response);
            unknown.engine.finish(&unknown.generation, &mut other, &mut pending_other, &response);
            assert_eq!(one.verdicts, other.verdicts, "{label}");
        }
        self.held.push((pending_one, pending_other));
        if self.held.len() > 4 {
            drop(self.held.remove(0));
        }
    }

    /// Charges the engine that knows every token for the check of the other.
    fn pay(&self, one: &mut Decision, client: u8, plan: Option<&str>) {
        let admitting =
            one.verdicts.iter_mut().filter(|answer| answer.verdict.allowed && !answer.shadow);
        for answer in admitting {
            let name = &*self.known.generation.policy().limit(answer.limit).name;
            if !["d", "e"].contains(&name) {
                let (paid, _) = self.known.send_to(&format!("/{name}"), client, None, plan);
                assert_eq!((paid.outcome, paid.verdicts.len()), (Outcome::Allowed, 1), "{name}");
                *answer = paid.verdicts[0];
            }
        }
    }

    /// A request passes or not alike; one that passes has the same answers, and one that does not has some
    /// of them.
    fn compare(&self, known: &Decision, unknown: &Decision, label: &str) {
        assert_eq!(known.outcome, unknown.outcome, "{label}\n{known:?}\n{unknown:?}");
        if known.outcome == Outcome::Allowed {
            assert_eq!(known.verdicts, unknown.verdicts, "{label}");
        }
        for answer in &unknown.verdicts {
            assert!(known.verdicts.contains(answer), "{label}: {answer:?} of {:?}", known.verdicts);
        }
        let refuses = unknown.refusing().next().is_some();
        assert_eq!(refuses, unknown.outcome == Outcome::Limited, "{label}");
    }
}
