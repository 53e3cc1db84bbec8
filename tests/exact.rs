//! The exact tier through the engine: under any number of threads the promise is kept to the unit.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::{ManualClock, Nanos, Now};
use tollgate::config;
use tollgate::engine::{
    Decision, Engine, FinalResponse, Generation, Outcome, PendingSettlement, VerdictKind,
};
use tollgate::limit::{FixedWindow, Quota, Rate, SlidingWindow, TokenBucket, WindowLengths};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeyHash, KeySecret, LimitIndex};
use tollgate::store::{CellBudget, CellOwner, EmbeddedCharge, EmbeddedStore, QuotaSpec};

/// A day's begin, so that windows begin with the test.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

struct Bench {
    clock: Arc<ManualClock>,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
        Self { clock, engine }
    }

    fn load(&self, limits: &str, before: Option<&Generation>) -> Generation {
        let text = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
{limits}
"
        );
        let loaded = config::read_text(&text, "test.yaml", Path::new("")).unwrap();
        self.engine.generation(loaded.config.policy, before).0
    }

    fn allowed(&self, generation: &Generation, headers: &[(&'static str, &str)]) -> bool {
        let (decision, _pending) = self.decide(generation, headers);
        assert!(matches!(decision.outcome, Outcome::Allowed | Outcome::Limited));
        decision.outcome == Outcome::Allowed
    }

    fn decide(
        &self,
        generation: &Generation,
        headers: &[(&'static str, &str)],
    ) -> (Decision, PendingSettlement) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let facts = Facts {
            connection: &tollgate::policy::ConnectionFacts::NONE,
            client: RequestClient {
                ip: [192, 0, 2, 1].into(),
                ipv6_prefix: 64,
                peer_trusted: true,
            },
            now: self.engine.date(self.engine.now()),
            method: "POST",
            host: "a",
            path: "/",
            readings: &[],
            query: None,
            headers: &map,
            conditions: None,
        };
        self.engine.decide_now(generation, &facts)
    }
}

fn one_limit(algorithm: &str, rate: &str) -> String {
    format!(
        "limits: {{ l: {{ tier: exact, algorithm: {algorithm}, rate: {rate}, key: header:x-key, missing_key: deny }} }}
routes: [{{ name: r, limits: [l] }}]"
    )
}

#[test]
fn one_key_from_eight_threads_gets_exactly_its_limit() {
    for algorithm in ["token_bucket", "sliding_window", "sliding_log", "fixed_window"] {
        let bench = Bench::new();
        let generation = bench.load(&one_limit(algorithm, "97/1h"), None);
        for round in 0..200 {
            let key = format!("key-{round}");
            let admitted = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..20 {
                            if bench.allowed(&generation, &[("x-key", &key)]) {
                                admitted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            assert_eq!(admitted.load(Ordering::Relaxed), 97, "{algorithm}, round {round}");
        }
    }
}

#[test]
fn stacks_of_many_threads_charge_all_or_none() {
    let bench = Bench::new();
    let limits = "
limits:
  a: { tier: exact, algorithm: token_bucket, rate: 1000/1h, key: header:x-a, missing_key: deny }
  b: { tier: exact, algorithm: fixed_window, rate: 1000/1h, key: header:x-b, missing_key: deny }
  c: { tier: exact, algorithm: sliding_log, rate: 1000/1h, key: header:x-c, missing_key: deny }
routes:
  - { name: all, limits: [a, b, c] }
";
    let generation = bench.load(limits, None);
    let spent: Vec<AtomicU64> = (0..9).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (bench, generation, spent) = (&bench, &generation, &spent);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..3_000 {
                    let keys = [random.usize(0..3), random.usize(0..3), random.usize(0..3)];
                    let names = keys.map(|key| key.to_string());
                    let headers = [("x-a", &*names[0]), ("x-b", &*names[1]), ("x-c", &*names[2])];
                    if bench.allowed(generation, &headers) {
                        for (limit, key) in keys.iter().enumerate() {
                            spent[limit * 3 + key].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let spent: Vec<u64> = spent.iter().map(|spent| spent.load(Ordering::Relaxed)).collect();
    assert!(spent.iter().all(|spent| *spent <= 1_000), "{spent:?}");
    for limit in 0..3 {
        assert_eq!(spent[limit * 3..][..3].iter().sum::<u64>(), spent[..3].iter().sum::<u64>());
    }
    // Every cell says what was admitted: what is left of each can be spent, and not one more.
    let probe = bench.load(
        &limits.replace("[a, b, c]", "[a]").replace("name: all", "name: probe"),
        Some(&generation),
    );
    for (key, spent) in spent.iter().take(3).enumerate() {
        let name = key.to_string();
        let left = (0..).take_while(|_| bench.allowed(&probe, &[("x-a", &name)])).count() as u64;
        assert_eq!(left, 1_000 - spent);
    }
}

#[test]
fn a_sweep_drops_only_cells_that_equal_an_absent_one() {
    let bench = Bench::new();
    let generation = bench.load(&one_limit("token_bucket", "10/10s"), None);
    for key in 0..2_000 {
        let times = if key % 2 == 0 { 1 } else { 10 };
        for _ in 0..times {
            assert!(bench.allowed(&generation, &[("x-key", &key.to_string())]));
        }
    }
    let cells = || generation.cell_budget(LimitIndex(0)).unwrap().cells();
    assert_eq!(cells(), 2_000);
    let sweep_all = || (0..64).for_each(|_| bench.engine.tick(&generation));
    sweep_all();
    assert_eq!(cells(), 2_000, "nothing has refilled");
    bench.clock.advance(Nanos::from_secs(2));
    sweep_all();
    assert_eq!(cells(), 1_000, "half of the keys have refilled");
    for key in (1..2_000).step_by(2) {
        let name = key.to_string();
        let two = [true, true, false];
        assert_eq!(two, two.map(|_| bench.allowed(&generation, &[("x-key", &name)])), "{name}");
    }
    bench.clock.advance(Nanos::from_secs(20));
    sweep_all();
    assert_eq!(cells(), 0);
}

#[test]
fn a_flood_of_one_limits_keys_does_not_touch_another() {
    let bench = Bench::new();
    let limits = "
limits:
  flooded: { tier: exact, rate: 5/1h, key: header:x-key, missing_key: deny, when_full: deny }
  quiet: { tier: exact, rate: 5/1h, key: header:x-other, missing_key: skip, when_full: deny }
routes:
  - { name: quiet, match: { header: { x-route: quiet } }, limits: [quiet] }
  - { name: flooded, limits: [flooded] }
limits_of_this_proxy: { max_keys: 1000 }
";
    let generation = bench.load(limits, None);
    let admitted =
        (0..5_000).filter(|key| bench.allowed(&generation, &[("x-key", &key.to_string())])).count();
    assert_eq!(admitted, 750, "its share of 250 and the 500 that are lent");
    let quiet = |key: usize| {
        bench.allowed(&generation, &[("x-route", "quiet"), ("x-other", &key.to_string())])
    };
    assert_eq!((0..400).filter(|key| quiet(*key)).count(), 250, "its share was kept for it");
    for key in 0..750 {
        let name = key.to_string();
        assert!(bench.allowed(&generation, &[("x-key", &name)]), "who is in is counted exactly");
    }
}

#[test]
fn a_request_of_an_older_generation_is_decided_by_its_own_rate_and_counts_for_all() {
    let bench = Bench::new();
    let old = bench.load(&one_limit("fixed_window", "5/1h"), None);
    let key = [("x-key", "k")];
    assert!((0..5).all(|_| bench.allowed(&old, &key)) && !bench.allowed(&old, &key));
    let new = bench.load(&one_limit("fixed_window", "8/1h"), Some(&old));
    assert!(bench.allowed(&new, &key), "raised by three");
    assert!(!bench.allowed(&old, &key), "six are spent of five");
    assert!(bench.allowed(&new, &key) && bench.allowed(&new, &key) && !bench.allowed(&new, &key));
    let lower = bench.load(&one_limit("fixed_window", "9/1d"), Some(&new));
    assert!(bench.allowed(&lower, &key) && !bench.allowed(&lower, &key), "eight are spent of nine");
    assert!(!bench.allowed(&new, &key), "nine are spent of eight");
}

#[test]
fn overrides_have_numbers_of_their_own_which_are_given_again_after_reloads() {
    const OVERRIDES: usize = 3_000;
    let limits = |more: usize| {
        let rate = |n: usize| format!("{{ key: k{n}, rate: {}/1h }}", n + more);
        let overrides: Vec<String> = (0..OVERRIDES).map(rate).collect();
        format!(
            "limits: {{ l: {{ tier: exact, algorithm: fixed_window, rate: 1/1h, key: header:x-key, missing_key: deny, overrides: [{}] }} }}\n\
             routes: [{{ name: r, limits: [l] }}]\n",
            overrides.join(", ")
        )
    };
    let bench = Bench::new();
    let mut now = bench.load(&limits(1), None);
    let mut admitted = [0; 60];
    for more in 2..12 {
        now = bench.load(&limits(more), Some(&now));
        for (n, admitted) in admitted.iter_mut().enumerate().skip(more) {
            let key = format!("k{n}");
            *admitted += u32::from(bench.allowed(&now, &[("x-key", &key)]));
        }
    }
    for (n, admitted) in admitted.into_iter().enumerate() {
        let key = format!("k{n}");
        let more = (0..100).filter(|_| bench.allowed(&now, &[("x-key", &key)])).count();
        assert_eq!(admitted as usize + more, n + 11, "{key}");
    }
    // Two generations at a time, and cells under the quotas of those before.
    let most = 2 * (OVERRIDES + 1) + 600;
    assert!(bench.engine.issued_quotas() <= most, "{}", bench.engine.issued_quotas());
}

#[test]
fn reloads_do_not_make_the_quotas_grow_and_restarts_are_reported() {
    let bench = Bench::new();
    let mut now = bench.load(&one_limit("token_bucket", "5/1h"), None);
    for round in 0..1_000 {
        now = bench.load(&one_limit("token_bucket", &format!("{}/1h", 5 + round % 7)), Some(&now));
    }
    assert!(bench.engine.issued_quotas() <= 4, "{}", bench.engine.issued_quotas());
    let text = |limits: &str| {
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ site: {{ servers: [127.0.0.1:1] }} }}\n{limits}"
        );
        config::read_text(&text, "test.yaml", Path::new("")).unwrap().config.policy
    };
    let report = |limits: &str| bench.engine.generation(text(limits), Some(&now)).1.to_string();
    assert_eq!(report(&one_limit("fixed_window", "5/1h")), "restarted: l");
    assert_eq!(report(&one_limit("token_bucket", "500/1h")), "converted: l");
    let renamed = one_limit("token_bucket", "5/1h").replace("l: {", "m: {").replace("[l]", "[m]");
    assert_eq!(report(&renamed), "added: m; dropped: l");
}

/// Tasks that hold slots in flight are aborted, or panic, at any point: all slots become free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_tasks_free_their_slots() {
    let bench = Arc::new(Bench::new());
    let limits = "limits: { l: { tier: exact, max_in_flight: 40, key: client_ip } }
routes: [{ name: r, limits: [l] }]";
    let generation = Arc::new(bench.load(limits, None));
    let hold = |seed: u64| {
        let (bench, generation) = (Arc::clone(&bench), Arc::clone(&generation));
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..20 {
                let pending = bench.decide(&generation, &[]).1;
                for _ in 0..random.u8(0..5) {
                    tokio::task::yield_now().await;
                }
                assert!(random.u8(0..40) > 0, "a task that panics");
                drop(pending);
            }
        })
    };
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..50 {
        let tasks: Vec<_> = (0..40).map(|n| hold(round * 100 + n)).collect();
        for task in &tasks {
            if random.bool() {
                task.abort();
            }
            tokio::task::yield_now().await;
        }
        for task in tasks {
            let _ = task.await;
        }
        assert_eq!(generation.in_flight(LimitIndex(0)), Some(0), "round {round}");
    }
}

/// The share of a rollout is that of the keys, and who is in stays in while it grows.
#[test]
fn a_rollout_grows_by_the_same_keys() {
    let bench = Bench::new();
    let mut before: Vec<bool> = Vec::new();
    for share in [0, 1, 5, 25, 50, 100] {
        let limits = format!(
            "limits: {{ l: {{ tier: exact, algorithm: fixed_window, rate: 1/1h, key: header:x-key, missing_key: deny, rollout: {share}% }} }}
routes: [{{ name: r, limits: [l] }}]"
        );
        let generation = bench.load(&limits, None);
        let refused = |n: usize| {
            let key = format!("key-{n}");
            bench.allowed(&generation, &[("x-key", &key)]);
            !bench.allowed(&generation, &[("x-key", &key)])
        };
        let refused: Vec<bool> = (0..10_000).map(refused).collect();
        let many = refused.iter().filter(|yes| **yes).count();
        assert!(many.abs_diff(share * 100) < 150, "{share} %: {many}");
        for (n, was) in before.iter().enumerate() {
            assert!(!was || refused[n], "key-{n} fell out at {share} %");
        }
        before = refused;
    }
}

/// When all delay slots are taken, a request is judged without the limit's delay. If it is refused, no limit charges
/// it, the denial counts towards no ban, and its retry time has the configured jitter.
#[test]
fn a_request_without_a_delay_slot_is_not_charged() {
    let bench = Bench::new();
    let limits = "limits:
  pages: { tier: estimate, rate: 1000000/1h, key: client_ip }
  all: { tier: exact, algorithm: fixed_window, rate: 1000000/1h, key: client_ip }
  line: { tier: exact, algorithm: leaky_bucket, rate: 100/s, max_delay: 200s, key: header:x-key, missing_key: deny, penalty: { after: 2, within: 1m, ban: 1h } }
routes: [{ name: r, limits: [pages, all, line] }]
responses: { retry_after_jitter: 40s }";
    let generation = bench.load(limits, None);
    let decide = |key: &str| bench.decide(&generation, &[("x-key", key)]);
    let left = |decision: &Decision| decision.verdicts[1].verdict.remaining;
    let emission = Nanos::from_millis(10);

    assert_eq!(decide("a").0.wait(), Nanos::ZERO);
    let mut waiting: Vec<_> = (0..10_000).map(|_| decide("a")).collect();
    assert_eq!(waiting[9_999].0.wait(), Nanos::from_secs(100));
    assert_eq!(bench.engine.delayed_requests(), 10_000);

    // Requests that need no delay pass; those that need one are refused and charged nothing.
    assert_eq!(left(&decide("b").0), 1_000_000 - 10_002);
    for _ in 0..5 {
        let (refused, _pending) = decide("b");
        assert_eq!(refused.outcome, Outcome::Limited);
        assert_eq!(refused.retry_after(), Some(emission));
        assert_eq!(left(&refused), 1_000_000 - 10_002);
    }
    let (refused, _pending) = decide("a");
    assert_eq!((refused.outcome, refused.wait()), (Outcome::Limited, Nanos::ZERO));
    assert_eq!(refused.retry_after(), Some(Nanos::from_secs(100).saturating_add(emission)));
    assert_eq!(retry_texts(&refused, &generation, limits), ["101", "121", "140"]);
    assert_eq!(generation.counters(LimitIndex(2)).get(VerdictKind::OverflowDenied), 6);
    assert_eq!(generation.counters(LimitIndex(2)).get(VerdictKind::Denied), 0);
    assert_eq!(bench.engine.delayed_requests(), 10_000);

    // One delay has ended, and one client has left: two slots are free.
    waiting[0].1.end_delay();
    drop(waiting.pop());
    let more = [decide("b"), decide("b"), decide("b")];
    let outcomes: Vec<_> = more.iter().map(|(decision, _)| decision.outcome).collect();
    assert_eq!(outcomes, [Outcome::Allowed, Outcome::Allowed, Outcome::Limited]);
    assert_eq!(more[1].0.wait(), Nanos::from_millis(20), "nothing was spent by who was refused");
    drop((more, waiting));
    assert_eq!(bench.engine.delayed_requests(), 0);
}

/// `Retry-After`, with a jitter of 0, half and nearly the whole of its span.
fn retry_texts(decision: &Decision, generation: &Generation, limits: &str) -> [String; 3] {
    let text = format!(
        "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\n{limits}"
    );
    let loaded = config::read_text(&text, "f", Path::new("")).unwrap();
    [0.0, 0.5, 0.999].map(|chance| {
        let asking = tollgate::http::AnswerPreferences {
            headers: &HeaderMap::new(),
            chance,
            request_id: "",
        };
        let responses = &loaded.config.default_responses;
        let refusal = tollgate::http::refusal(decision, generation.policy(), responses, asking);
        refusal.unwrap().unwrap().headers["retry-after"].to_str().unwrap().to_owned()
    })
}

/// A key that was charged under more rates than a cell keeps, over reloads, is neither locked out of the
/// plans it uses nor given more of them.
#[test]
fn reloads_leave_no_plan_without_its_bucket() {
    let text = |own: u32, gold: u32| {
        format!(
            "limits: {{ l: {{ tier: exact, algorithm: token_bucket, rate: {own}/1d, key: header:x-key, \
             missing_key: deny, plans: {{ by: header:x-plan, rates: {{ gold: {{ rate: 10/1s, burst: {gold} }}, \
             silver: {{ rate: 5/1s, burst: 5 }} }} }} }} }}\nroutes: [{{ name: r, limits: [l] }}]"
        )
    };
    for reloads in [1, 7, 8, 15, 20, 40] {
        let bench = Bench::new();
        let mut generation = bench.load(&text(1_000, 10), None);
        for n in 1..=reloads {
            for _ in 0..5 {
                assert!(bench.allowed(&generation, &[("x-key", "k")]));
                bench.clock.advance(Nanos::SECOND);
            }
            generation = bench.load(&text(1_000 + n, 10), Some(&generation));
        }
        let [mut gold, mut silver] = [0, 0];
        for _ in 0..100 {
            bench.clock.advance(Nanos::SECOND);
            gold += u32::from(bench.allowed(&generation, &[("x-key", "k"), ("x-plan", "gold")]));
            silver +=
                u32::from(bench.allowed(&generation, &[("x-key", "k"), ("x-plan", "silver")]));
        }
        // Each begins with what is spent under the others.
        assert!(gold >= 99 && silver >= 99, "{reloads} reloads: gold {gold}, silver {silver}");
        let at_once = (0..1_000)
            .filter(|n| {
                let plan = if n % 20 == 0 { "silver" } else { "gold" };
                bench.allowed(&generation, &[("x-key", "k"), ("x-plan", plan)]) && plan == "gold"
            })
            .count();
        assert!(at_once <= 10, "{reloads} reloads: {at_once} of a burst of 10");
    }
}

/// Of several limits that lead to one cell the largest cost is charged, also if the response names it.
#[test]
fn a_cost_from_the_response_is_charged_however_the_limit_is_reached() {
    let cases = [
        // The response names the larger cost; the limit with the fixed cost is first, then last.
        ("1", "{ response_header: x-tokens, reserve: 10, max: 900 }", "500", 500),
        // The response names less than the fixed cost of the other limit.
        ("100", "{ response_header: x-tokens, reserve: 1, max: 900 }", "1", 100),
    ];
    for (by_ip, by_key, named, each) in cases {
        for order in ["by_ip, by_key", "by_key, by_ip"] {
            let bench = Bench::new();
            let generation = bench.load(
                &format!(
                    "limits:
  by_ip: {{ tier: exact, algorithm: fixed_window, rate: 10000/1h, key: client_ip, cost: {by_ip} }}
  by_key: {{ tier: exact, algorithm: fixed_window, rate: 10000/1h, key: header:x-key, missing_key: {{ limit: by_ip }}, cost: {by_key} }}
routes: [{{ name: r, limits: [{order}] }}]"
                ),
                None,
            );
            let mut headers = HeaderMap::new();
            headers.insert("x-tokens", HeaderValue::from_static(named));
            for n in 1..=5 {
                let (mut decision, mut pending) = bench.decide(&generation, &[]);
                let response = FinalResponse { status: 200, headers: &headers, by_origin: true };
                bench.engine.finish(&generation, &mut decision, &mut pending, &response);
                let left = decision.verdicts[0].verdict.remaining;
                assert_eq!(left, 10_000 - each * n, "{order}: {by_ip} and {by_key}");
            }
        }
    }
}

/// The system's clock is a day ahead for a moment: windows begin anew once. When it is set back, no charge is forgotten,
/// and no key waits longer than the windows that hold its charges.
#[test]
fn a_clock_that_was_a_day_ahead_gives_one_more_window_and_locks_no_key_out() {
    let day = Nanos::from_secs(86_400);
    for (algorithm, windows) in [("fixed_window", 1), ("sliding_window", 2)] {
        let bench = Bench::new();
        let generation = bench.load(&one_limit(algorithm, "10/1m"), None);
        let spend = || (0..15).filter(|_| bench.allowed(&generation, &[("x-key", "k")])).count();
        assert_eq!(spend(), 10, "{algorithm}");
        bench.clock.set_date(EPOCH.saturating_add(day));
        assert_eq!(spend(), 10, "{algorithm}: a new window");
        bench.clock.set_date(EPOCH);
        assert_eq!(spend(), 0, "{algorithm}: what was spent is not forgotten");
        bench.clock.advance(Nanos::from_secs(60 * windows + 1));
        assert_eq!(spend(), 10, "{algorithm}: no key is locked out");
        assert_eq!(spend(), 0, "{algorithm}");
    }
}

/// Reset times and the begin of a rollout follow the date, which is right again when the system's clock is.
#[test]
fn a_clock_that_was_a_day_ahead_leaves_no_trace_in_dates() {
    let bench = Bench::new();
    let rolled = "10/1m, from: 2027-01-15T12:00:00Z";
    let generation = bench.load(&one_limit("fixed_window", rolled), None);
    let policy = generation.policy();
    let text = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { s: { servers: [127.0.0.1:1] } }
routes: [{ name: r }]";
    let responses = config::read_text(text, "f", Path::new("")).unwrap().config.default_responses;
    let reset = || {
        let (decision, _) = bench.decide(&generation, &[("x-key", "k")]);
        let fields = tollgate::http::added_fields(&decision, policy, &responses).unwrap();
        let reset = fields.get("x-ratelimit-reset").map(|at| at.to_str().unwrap().to_owned());
        reset.map(|at| at.parse::<u64>().unwrap())
    };
    // 2027-01-15T10:40:00Z: the limit is still in shadow mode, so there is no field.
    let before = Nanos::from_secs(1_800_009_600);
    bench.clock.set_date(before);
    assert_eq!(reset(), None, "not yet in force");
    bench.clock.set_date(EPOCH);
    assert_eq!(reset(), Some(EPOCH.secs() + 60));
    bench.clock.set_date(before);
    assert_eq!(reset(), None, "not in force again");
    let generation = bench.load(&one_limit("fixed_window", "10/1m"), None);
    let (decision, _) = bench.decide(&generation, &[("x-key", "k")]);
    assert_eq!(decision.date, before);
}

/// Under one limit that delays, together with limits that do not and one that replaces it, a request leaves no sooner
/// than one emission interval after the previous one, whatever the mixture.
#[test]
fn delayed_requests_leave_in_order_under_any_mixture_of_limits() {
    let limits = "limits:
  line: { tier: exact, algorithm: leaky_bucket, rate: 2/s, max_delay: 5s, key: header:x-a, missing_key: { limit: anybody } }
  anybody: { tier: exact, algorithm: leaky_bucket, rate: 1/s, max_delay: 3s, key: client_ip }
  bucket: { tier: exact, algorithm: token_bucket, rate: 2/s, burst: 5, key: header:x-b, missing_key: skip }
  watched: { tier: exact, algorithm: leaky_bucket, rate: 1/10s, max_delay: 60s, key: header:x-b, missing_key: skip, mode: shadow }
routes: [{ name: r, limits: [line, bucket, watched] }]";
    let mut random = fastrand::Rng::with_seed(7);
    let bench = Bench::new();
    let generation = bench.load(limits, None);
    let mut leaves: [Vec<Nanos>; 3] = Default::default();
    let (mut waited, mut refused) = (0, 0);
    for _ in 0..5_000 {
        bench.clock.advance(Nanos::from_millis(random.u64(..250)));
        let (a, b) = (random.usize(..3), random.usize(..4));
        let keys = ["1", "2", "3"];
        let mut headers = Vec::new();
        headers.extend((a > 0).then(|| ("x-a", keys[a - 1])));
        headers.extend((b > 0).then(|| ("x-b", keys[b - 1])));
        let (decision, _pending) = bench.decide(&generation, &headers);
        match decision.outcome {
            Outcome::Allowed => {
                waited += u32::from(decision.wait() > Nanos::ZERO);
                leaves[a].push(decision.at.mono.saturating_add(decision.wait()));
            }
            _ => refused += 1,
        }
    }
    assert!(waited > 500 && refused > 500, "{waited} waited, {refused} were refused");
    for (times, emission) in leaves.iter().zip([1_000, 500, 500]) {
        let close = times
            .windows(2)
            .filter(|pair| pair[1].saturating_sub(pair[0]) < Nanos::from_millis(emission));
        assert_eq!(close.count(), 0, "of {} that left", times.len());
    }
}

/// A limit that is dropped and comes back finds its cells, and the room that they were counted in.
#[test]
fn a_limit_that_is_added_again_has_the_budget_of_its_old_cells() {
    let bench = Bench::new();
    let with = one_limit("fixed_window", "5/20s");
    let keys: Vec<String> = (0..5).map(|n| format!("k{n}")).collect();
    let ask = |generation: &Generation| {
        keys.iter().all(|key| bench.allowed(generation, &[("x-key", &**key)]))
    };
    let first = bench.load(&with, None);
    assert!(ask(&first));
    let without = bench.load("routes: [{ name: r }]", Some(&first));
    let again = bench.load(&with, Some(&without));
    assert!(ask(&again));
    let budget = again.cell_budget(LimitIndex(0)).unwrap();
    assert_eq!((budget.cells(), budget.weight()), (5, 5));
    bench.clock.advance(Nanos::from_secs(40));
    (0..64).for_each(|_| bench.engine.tick(&again));
    assert_eq!((budget.cells(), budget.weight()), (0, 0));
    assert!(bench.allowed(&again, &[("x-key", "new")]));
    assert_eq!(again.counters(LimitIndex(0)).get(VerdictKind::OverflowAllowed), 0);
}

/// A refund takes nothing out of a window that a reload brought after the charge: it was never in it.
#[test]
fn a_late_refund_takes_nothing_from_a_window_that_began_later() {
    for sliding in [false, true] {
        let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
        store.set_budgets(100, &[room.bounded(None)]);
        let issue = |secs| {
            let rate = Rate::new(10, Nanos::from_secs(secs)).unwrap();
            let quota = match sliding {
                true => Quota::SlidingWindow(SlidingWindow::new(rate)),
                false => Quota::FixedWindow(FixedWindow::new(rate)),
            };
            let claim = QuotaSpec {
                quota,
                windows: WindowLengths::of([&quota]),
                budget: Arc::clone(&room),
                denies_after_crash: false,
            };
            store.issue(claim, None)
        };
        let (short, long) = (issue(2), issue(3_600));
        let key = KeyHash { high: 1, low: 2 };
        let at = |secs: u64| {
            let at = Nanos::from_secs(3_600_000 + secs);
            Now { mono: at, wall: at }
        };
        let settle = |quota: &Arc<_>, cost, secs| {
            let charge = EmbeddedCharge { key, quota, cost };
            store.settle_single(&charge, true, at(secs), || panic!("there is room")).unwrap()
        };
        let settled = settle(&short, 10, 0);
        assert!(settled.charged);
        let receipt = short.quota().receipt(&settled.verdict, 10, at(0));
        assert!(settle(&long, 10, 10).charged);
        assert_eq!(store.refund(key, &short, 10, receipt, at(20)), CellOwner::Here);
        assert!(!settle(&long, 1, 30).charged, "sliding: {sliding}");
    }
}

/// What corrects an earlier charge of a slow rate does not slow the bucket of a fast one down.
#[test]
fn a_late_correction_does_not_slow_a_bucket_down() {
    let bucket = |count, period, burst| {
        let rate = Rate::new(count, Nanos::from_secs(period)).unwrap();
        Quota::TokenBucket(TokenBucket::new(rate, burst, Nanos::ZERO, Nanos::new(1)).unwrap())
    };
    let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
    store.set_budgets(100, &[room.bounded(None)]);
    let issue = |quota| {
        let claim = QuotaSpec {
            quota,
            windows: WindowLengths::of([&quota]),
            budget: Arc::clone(&room),
            denies_after_crash: false,
        };
        store.issue(claim, None)
    };
    let (slow, fast) = (issue(bucket(10, 3_600, 10)), issue(bucket(1_000, 1, 1_000)));
    let at = |millis: u64| {
        let at = Nanos::from_millis(1_000_000 + millis);
        Now { mono: at, wall: at }
    };
    let settle = |key, quota: &Arc<_>, cost, millis| {
        let charge = EmbeddedCharge { key, quota, cost };
        store.settle_single(&charge, true, at(millis), || panic!("there is room")).unwrap()
    };
    for debit in [false, true] {
        let key = KeyHash { high: 1, low: u64::from(debit) };
        let settled = settle(key, &slow, 1, 0);
        assert!(settled.charged);
        let receipt = slow.quota().receipt(&settled.verdict, 1, at(0));
        assert!(settle(key, &fast, 900, 10).charged);
        let owner = match debit {
            true => store.debit(key, &slow, 5, at(20)),
            false => store.refund(key, &slow, 1, receipt, at(20)),
        };
        assert_eq!(owner, CellOwner::Here);
        assert!(
            settle(key, &fast, 1_000, 2_000).charged,
            "full again after a second, debit: {debit}"
        );
    }
}
