//! Rules that operators make for single keys: what they do to decisions, and when they end.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tollgate::clock::{ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Decision, Engine, Generation, Outcome, PendingSettlement, TypedKey};
use tollgate::limit::Rate;
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeyRule, KeySecret, LimitIndex, Ruling, RulingError};

/// The begin of a day, so that windows begin with the test.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

struct Bench {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
}

impl Bench {
    fn new(policy: &str) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
        let generation = engine.generation(read(policy), None).0;
        Self { clock, engine, generation }
    }

    fn reload(&mut self, policy: &str) {
        self.generation = self.engine.generation(read(policy), Some(&self.generation)).0;
    }

    fn date(&self) -> Nanos {
        self.engine.date(self.engine.now())
    }

    fn limit(&self, name: &str) -> LimitIndex {
        let mut limits = self.generation.policy().indexed_limits();
        limits.find(|(_, limit)| &*limit.name == name).unwrap().0
    }

    /// A rule for a key of a limit that lasts for a number of seconds.
    fn rule(&self, limit: &str, key: &str, ruling: Ruling, seconds: u64) -> KeyRule {
        let typed = TypedKey::Values(&[key]);
        let cell = self.engine.locate_key(&self.generation, self.limit(limit), &typed, 64).unwrap();
        KeyRule {
            limit: Arc::from(limit),
            key: cell.key,
            ruling,
            until: self.date().saturating_add(Nanos::from_secs(seconds)),
            made_at: self.date(),
            version: None,
            by: Arc::from("test"),
            reason: Arc::from("test"),
        }
    }

    fn set(&mut self, rules: Vec<KeyRule>) {
        self.engine.set_key_rules(rules.into());
        self.generation = self.engine.regenerate(&self.generation);
    }

    fn reset(&self, limit: &str, key: &str) {
        let (index, typed) = (self.limit(limit), TypedKey::Values(&[key]));
        let cell = self.engine.locate_key(&self.generation, index, &typed, 64).unwrap();
        self.engine.forget_key(&self.generation, index, cell.key, 0);
    }

    fn decide(&self, key: &str) -> (Decision, PendingSettlement) {
        let mut headers = HeaderMap::new();
        headers.insert("x-key", HeaderValue::from_str(key).unwrap());
        headers.insert("x-plan", HeaderValue::from_static("gold"));
        let client = [192, 0, 2, 1].into();
        let facts = Facts {
            connection: &tollgate::policy::ConnectionFacts::NONE,
            client: RequestClient { ip: client, ipv6_prefix: 64, peer_trusted: true },
            now: self.date(),
            method: "GET",
            host: "a",
            path: "/",
            readings: &[],
            query: None,
            headers: &headers,
            conditions: None,
        };
        self.engine.decide_now(&self.generation, &facts)
    }

    /// How many of `times` requests pass.
    fn admitted(&self, key: &str, times: usize) -> usize {
        (0..times).filter(|_| self.decide(key).0.outcome == Outcome::Allowed).count()
    }
}

fn read(policy: &str) -> tollgate::policy::Policy {
    let text = format!(
        "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
{policy}
"
    );
    config::read_text(&text, "test.yaml", Path::new("")).unwrap().config.policy
}

fn rate(count: u32, seconds: u64) -> Ruling {
    let rate = Rate::new(count, Nanos::from_secs(seconds)).unwrap();
    Ruling::Rate { rate, burst: None }
}

const WRITES: &str = "
limits:
  writes:
    tier: exact
    algorithm: fixed_window
    rate: 3/1h
    key: header:x-key
    missing_key: skip
    overrides: [{ key: vip, rate: 8/1h }, { key: bad, action: deny }]
    plans: { by: header:x-plan, rates: { gold: 5/1h } }
routes: [{ name: all, limits: [writes] }]";

#[test]
fn a_rule_stands_before_plans_and_overrides_until_its_end() {
    let mut bench = Bench::new(WRITES);
    assert_eq!(
        (bench.admitted("k", 9), bench.admitted("vip", 9), bench.admitted("bad", 9)),
        (5, 8, 0)
    );
    let rules = vec![
        bench.rule("writes", "k", rate(7, 3600), 60),
        bench.rule("writes", "vip", Ruling::Deny, 60),
        bench.rule("writes", "bad", Ruling::Allow, 60),
    ];
    bench.set(rules);
    assert_eq!(
        (bench.admitted("k", 9), bench.admitted("vip", 9), bench.admitted("bad", 9)),
        (2, 0, 9)
    );
    assert_eq!(bench.admitted("other", 9), 5, "of other keys nothing changes");
    bench.reload(&WRITES.replace("gold: 5/1h", "gold: 6/1h"));
    assert_eq!(bench.admitted("bad", 9), 9, "it survives a reload");
    bench.clock.advance(Nanos::from_millis(59_999));
    assert_eq!((bench.admitted("bad", 9), bench.admitted("k", 9)), (9, 0));
    bench.clock.advance(Nanos::from_millis(1));
    // The rules are still in the list, and have no effect.
    assert_eq!(
        (bench.admitted("bad", 9), bench.admitted("vip", 9), bench.admitted("k", 9)),
        (0, 0, 0)
    );
    bench.set(Vec::new());
    bench.clock.advance(Nanos::from_secs(3_600));
    assert_eq!((bench.admitted("k", 9), bench.admitted("vip", 9)), (6, 8));
}

#[test]
fn a_ban_refuses_with_its_own_end_and_charges_nothing() {
    let mut bench = Bench::new(WRITES);
    bench.set(vec![
        bench.rule("writes", "k", Ruling::Ban, 90),
        bench.rule("writes", "k", Ruling::Allow, 3_600),
    ]);
    bench.clock.advance(Nanos::from_secs(30));
    let (decision, _) = bench.decide("k");
    assert!(decision.is_banned() && decision.outcome == Outcome::Limited);
    assert_eq!(decision.retry_after(), Some(Nanos::from_secs(60)));
    bench.clock.advance(Nanos::from_secs(60));
    assert_eq!(bench.admitted("k", 20), 20, "the override lasts longer");
    bench.set(Vec::new());
    assert_eq!(bench.admitted("k", 20), 5, "neither was charged");
}

#[test]
fn a_rule_that_a_limit_cannot_follow_is_refused_with_the_reason() {
    let bench = Bench::new(
        "
limits:
  pages: { tier: estimate, rate: 3/1h, key: header:x-key, missing_key: skip }
  open: { tier: exact, max_in_flight: 2, key: header:x-key, missing_key: skip }
  quiet: { tier: exact, mode: shadow, rate: 3/1h, key: header:x-key, missing_key: skip }
  many:
    tier: exact
    algorithm: fixed_window
    rate: 1/1s
    key: header:x-key
    missing_key: skip
    plans: { by: header:x-plan, rates: { a: 1/2s, b: 1/3s, c: 1/4s, d: 1/5s, e: 1/6s, f: 1/7s, g: 1/8s } }
  bucket: { tier: exact, algorithm: token_bucket, rate: 1/1s, burst: 5, key: header:x-key, missing_key: skip }
routes: [{ name: all, limits: [pages, open, quiet, many, bucket] }]",
    );
    let check = |limit: &str, ruling: Ruling| {
        bench.generation.policy().limit(bench.limit(limit)).check_ruling(&ruling)
    };
    assert_eq!(check("pages", rate(5, 3600)), Err(RulingError::NoRates));
    assert_eq!(check("open", rate(5, 3600)), Err(RulingError::NoRates));
    assert_eq!(check("pages", Ruling::Deny), Ok(()));
    assert_eq!(check("quiet", Ruling::Ban), Err(RulingError::Shadow));
    assert_eq!(check("quiet", Ruling::Deny), Err(RulingError::Shadow));
    assert_eq!(check("many", rate(5, 9)), Err(RulingError::Windows));
    assert_eq!(check("many", rate(5, 8)), Ok(()));
    let burst = |burst| {
        let rate = Rate::new(5, Nanos::SECOND).unwrap();
        Ruling::Rate { rate, burst: Some(burst) }
    };
    assert!(matches!(check("many", burst(5)), Err(RulingError::Quota(_))));
    assert!(matches!(check("bucket", burst(0)), Err(RulingError::Quota(_))));
    assert_eq!(check("bucket", burst(50)), Ok(()));
}

#[test]
fn nine_rules_of_nine_windows_cannot_exceed_the_windows_of_a_limit() {
    let mut bench = Bench::new(WRITES);
    let rules: Vec<KeyRule> =
        (1..=12).map(|n| bench.rule("writes", &n.to_string(), rate(50, n), 60)).collect();
    bench.set(rules);
    let limit = bench.generation.policy().limit(LimitIndex(0));
    let windows = limit.terms.quotas.iter().filter_map(|quota| quota.window_length());
    let windows: std::collections::BTreeSet<Nanos> = windows.collect();
    assert!(windows.len() <= tollgate::limit::MAX_WINDOWS, "{windows:?}");
    assert_eq!(bench.admitted("1", 60), 50);
    assert_eq!(
        bench.admitted("12", 60),
        5,
        "it had no room, and the key keeps the rate of its plan"
    );
}

#[test]
fn a_reset_forgets_every_count_of_the_key() {
    let bench = Bench::new(
        "
limits_of_this_proxy: { max_keys: 1 }
limits:
  exact:
    { tier: exact, algorithm: token_bucket, rate: 3/1h, key: header:x-key, missing_key: skip, candidate: { rate: 2/1h } }
  pages: { tier: estimate, rate: 4/1h, key: header:x-key, missing_key: skip }
routes: [{ name: all, limits: [exact, pages] }]",
    );
    // The second key has no room in the store and is counted in the estimate tier.
    for key in ["a", "b"] {
        assert_eq!(bench.admitted(key, 9), 3);
        bench.reset("exact", key);
        assert_eq!(bench.admitted(key, 9), 1, "of {key} the other limit is spent");
        bench.reset("pages", key);
        assert_eq!(bench.admitted(key, 9), 2, "{key}");
    }
    bench.reset("exact", "a");
    bench.reset("pages", "a");
    let candidate = |decision: &Decision| decision.candidates[0].comparison().unwrap();
    let agrees = tollgate::engine::CandidateComparison::Agrees;
    assert_eq!(candidate(&bench.decide("a").0), agrees, "the candidate's cell is empty, too");
}

#[test]
fn a_reset_forgets_denials_that_lead_to_a_ban() {
    let bench = Bench::new(
        "
limits:
  writes:
    { tier: exact, rate: 1/1h, key: header:x-key, missing_key: skip, penalty: { after: 3, within: 1h, ban: 10m } }
routes: [{ name: all, limits: [writes] }]",
    );
    assert_eq!(bench.admitted("k", 3), 1);
    bench.reset("writes", "k");
    assert_eq!(bench.admitted("k", 3), 1);
    assert!(!bench.decide("k").0.is_banned(), "two denials before and two after are no three");
    assert!(bench.decide("k").0.is_banned());
    let typed = TypedKey::Values(&["k"]);
    let cell = bench.engine.locate_key(&bench.generation, LimitIndex(0), &typed, 64).unwrap();
    bench.engine.lift_ban(&bench.generation, cell.key, None);
    assert!(!bench.decide("k").0.is_banned());
}

/// What a property does next.
#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Wait(u16),
    /// A rate for key 0, as a rule of an operator and as the first override of the file.
    Override(u32),
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..3).prop_map(Step::Send),
        3 => (0u16..400).prop_map(Step::Wait),
        1 => (1u32..40).prop_map(Step::Override),
        1 => Just(Step::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// An operator's rate is what the same override at the head of the file would be, to the unit and to the header.
    #[test]
    fn a_rule_equals_an_override_at_the_head_of_the_file(
        algorithm in prop::sample::select(vec!["token_bucket", "sliding_window", "sliding_log", "fixed_window"]),
        refund in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let refund = if refund { "refund: { status: [500] }," } else { "" };
        let policy = |first: Option<u32>| {
            let first = first.map(|n| format!("{{ key: k0, rate: {n}/1m }}, ")).unwrap_or_default();
            format!(
                "limits:
  writes: {{ tier: exact, algorithm: {algorithm}, rate: 6/5m, key: header:x-key, missing_key: skip, {refund}
             overrides: [{first}{{ key: k0, rate: 9/1m }}, {{ key: k1, rate: 4/1m }}] }}
routes: [{{ name: all, limits: [writes] }}]"
            )
        };
        let (mut ruled, mut reloaded) = (Bench::new(&policy(None)), Bench::new(&policy(None)));
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send(key) => {
                    let key = format!("k{key}");
                    let (a, b) = (ruled.decide(&key).0, reloaded.decide(&key).0);
                    prop_assert_eq!(a.outcome, b.outcome, "step {}", n);
                    let verdicts = |decision: &Decision| {
                        decision.verdicts.iter().map(|it| it.verdict).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(verdicts(&a), verdicts(&b), "step {}", n);
                }
                Step::Wait(seconds) => {
                    for bench in [&ruled, &reloaded] {
                        bench.clock.advance(Nanos::from_secs(seconds.into()));
                    }
                }
                Step::Override(count) => {
                    let rule = ruled.rule("writes", "k0", rate(count, 60), 86_400 * 20);
                    ruled.set(vec![rule]);
                    reloaded.reload(&policy(Some(count)));
                }
                Step::End => {
                    ruled.set(Vec::new());
                    reloaded.reload(&policy(None));
                }
            }
        }
    }
}
