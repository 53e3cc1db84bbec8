//! What a decision costs, and what is around it: routing, keys, both tiers, fields, and reading a
//! configuration. `make bench`. (Beside governor: `benches/peers.rs`.)

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue};
use support::signing;
use tollgate::clock::{Nanos, SystemClock};
use tollgate::config::{self, LoadedConfig};
use tollgate::engine::{Engine, Generation};
use tollgate::http::{AnswerPreferences, Head, HeadBounds, added_fields, refusal, validate};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConditionResults, Facts, KeySecret, RouteIndex};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HEAD: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
check: { silence: [spoofable-key] }
";

/// Decisions of one measured turn.
const TURN: usize = 1_000;

fn load(policy: &str) -> LoadedConfig {
    let text = format!("{HEAD}{policy}");
    config::read_text(&text, "bench.yaml", Path::new(""))
        .unwrap_or_else(|errors| panic!("{errors}"))
}

fn engine(policy: &str) -> (Engine, Generation) {
    let loaded = load(policy);
    let engine = Engine::new(Arc::new(SystemClock::new()), KeySecret::new([1; 16]));
    let generation = engine.generation(loaded.config.policy, None).0;
    (engine, generation)
}

fn facts<'r>(path: &'r str, query: Option<&'r str>, headers: &'r HeaderMap) -> Facts<'r> {
    Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false },
        now: Nanos::ZERO,
        method: "GET",
        host: "api.example.com",
        path,
        readings: &[],
        query,
        headers,
        conditions: None,
    }
}

/// So many routes that share their first segments.
fn routes(count: usize) -> String {
    let mut policy = "routes:\n".to_owned();
    for n in 0..count {
        let _ = writeln!(policy, "  - {{ name: r{n}, match: {{ path: /api/v1/item{n}/** }} }}");
    }
    policy
}

/// The last of N routes.
fn routing(c: &mut Criterion) {
    let headers = HeaderMap::new();
    let mut group = c.benchmark_group("route");
    for count in [10, 1_000, 10_000] {
        let (_, generation) = engine(&routes(count));
        let path = format!("/api/v1/item{}/x", count - 1);
        let facts = facts(&path, None, &headers);
        assert!(matches!(generation.policy().find(&facts), Ok(Some(_))));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| generation.policy().find(black_box(&facts)));
        });
    }
}

/// Routes that differ in the class that they take, all with the same path.
fn routes_by_class(count: usize) -> String {
    let mut policy = "classes:\n".to_owned();
    for n in 0..count {
        let _ = writeln!(
            policy,
            "  c{n}: {{ header: {{ user-agent: {{ regex: '(?i)agent{n}/' }} }} }}"
        );
    }
    policy.push_str("routes:\n");
    for n in 0..count {
        let _ = writeln!(policy, "  - {{ name: r{n}, match: {{ path: /api/**, class: c{n} }} }}");
    }
    policy
}

/// The last of N routes by class.
fn routing_by_class(c: &mut Criterion) {
    let mut group = c.benchmark_group("route by class");
    for count in [10, 100, 1_000] {
        let (_, generation) = engine(&routes_by_class(count));
        let mut headers = HeaderMap::new();
        let agent = format!("Mozilla/5.0 (X11; Linux x86_64) Agent{}/7.1 (like Gecko)", count - 1);
        headers
            .insert("user-agent", agent.parse().unwrap_or_else(|error| panic!("{agent}: {error}")));
        let facts = facts("/api/v1/items", None, &headers);
        assert_eq!(generation.policy().find(&facts), Ok(Some(RouteIndex(count - 1))));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| generation.policy().find(black_box(&facts)));
        });
    }
}

/// Values that a client chooses to make patterns slow, where 500 routes each have a pattern of their own; beside an
/// ordinary value. The path has other readings, so the routes are looked for under each of them.
fn hostile_values(c: &mut Criterion) {
    const ROUTES: usize = 500;
    let mut group = c.benchmark_group("500 patterns");
    let mut draw = fastrand::Rng::with_seed(1);
    let mut many_states = |length: usize| -> Vec<u8> {
        (0..length).map(|_| draw.choice(*b"ab0123456789x").unwrap_or(b'a')).collect()
    };
    let values: [(&str, Vec<u8>); 5] = [
        ("ordinary", b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (like Gecko)".to_vec()),
        ("32 KiB", [b"bo".repeat(14_000), b"t".to_vec()].concat()),
        ("32 KiB not ASCII", "bot\u{e9}".repeat(6_000).into_bytes()),
        ("2 KiB of many states", many_states(2_000)),
        ("32 KiB of many states", many_states(30_000)),
    ];
    for pattern in [r"(?i)\\bbotN\\b", r"[ab]N[^N]{20}x"] {
        let mut policy = "limits: {}\nroutes:\n".to_owned();
        for n in 0..ROUTES {
            let pattern = pattern.replace('N', &n.to_string());
            let _ = writeln!(
                policy,
                "  - {{ name: r{n}, match: {{ header: {{ user-agent: {{ regex: \"{pattern}\" }} }} }} }}"
            );
        }
        policy.push_str("  - { name: rest }\n");
        let (engine, generation) = engine(&policy);
        let readings: Vec<String> = (0..24).map(|n| format!("/a{n}")).collect();
        for (name, value) in &values {
            let mut headers = HeaderMap::new();
            let value = http::HeaderValue::from_bytes(value);
            headers.insert("user-agent", value.unwrap_or_else(|error| panic!("{name}: {error}")));
            group.bench_function(BenchmarkId::new(pattern, name), |b| {
                b.iter(|| {
                    let conditions = ConditionResults::default();
                    let plain = facts("/a", None, &headers);
                    let facts =
                        Facts { readings: &readings, conditions: Some(&conditions), ..plain };
                    engine.decide_now(&generation, black_box(&facts)).0.outcome
                });
            });
        }
    }
}

/// Reading a path, and deciding under every way to read it, of the worst paths that pass or are refused.
/// Each unit is repeated up to a size; beside a plain path of the same sizes.
fn paths(c: &mut Criterion) {
    const PATHS: [(&str, usize); 12] = [
        ("a/", 32_000),
        ("a/../%252F%2F\\;x//./b", 32_000),
        ("//", 32_000),
        ("%61", 32_000),
        ("%e3%81%82", 32_000),
        ("a/", 4_000),
        ("%2F", 64 * 3),
        ("%252F;x/a/b/c/", 64 * 7),
        ("/a%3Fb;x//", 20 * 10),
        ("%252F/..;x/", 15 * 11),
        ("%252Fabc;x//", 21 * 12),
        ("a\\/../b;x/", 15 * 11),
    ];
    let limits = "limits: { l: { tier: estimate, rate: 1000000000/1h, key: client_ip } }\n";
    let routes = routes(100).replace("/** }", "/**/end }");
    let policy = format!("{limits}{routes}  - {{ name: all, limits: [l] }}\n");
    let (engine, generation) = engine(&policy);
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("h"));
    let bounds = HeadBounds { header_size: 32 * 1024, header_fields: 100, body_size: None };
    let mut group = c.benchmark_group("path");
    for (unit, size) in PATHS {
        let path = format!("/api/v1/item7/{}", unit.repeat(size / unit.len()));
        let read = |path: &str| {
            let head = Head {
                method: &http::Method::GET,
                target: path.as_bytes(),
                authority: None,
                version: http::Version::HTTP_11,
                headers: &headers,
            };
            let clean = validate(head, bounds).ok()?;
            let facts = Facts { readings: &clean.readings, ..facts(&clean.path, None, &headers) };
            let (decision, _) = engine.decide_now(&generation, &facts);
            Some((decision.outcome, clean.readings.len()))
        };
        let name = format!("{unit} to {size}: {:?}", read(&path));
        group.bench_function(name, |b| b.iter(|| read(black_box(&path))));
    }
}

/// Reading, checking and compiling a whole file.
fn configuration(c: &mut Criterion) {
    let policy = routes(10_000);
    c.benchmark_group("configuration").sample_size(10).bench_function("10000 routes", |b| {
        b.iter(|| load(black_box(&policy)).config.policy.routes.len());
    });
}

/// One key from each kind of source.
fn keys(c: &mut Criterion) {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-key", "key-00012345"),
        ("cookie", "theme=dark; sid=0123456789abcdef; lang=en"),
        ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
        ("user-agent", "Mozilla/5.0"),
        ("accept", "*/*"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let facts = facts("/v1/orgs/acme/items", Some("page=2&key=abc"), &headers);
    let mut group = c.benchmark_group("key");
    for key in [
        "client_ip",
        "header:x-key",
        "cookie:sid",
        "query:key",
        "bearer",
        "path_segment:3",
        "[client_ip, route]",
    ] {
        let policy = format!(
            "limits: {{ l: {{ tier: exact, rate: 1/1s, key: {key}, missing_key: skip }} }}\n\
             routes: [{{ name: r, limits: [l] }}]\n"
        );
        let policy = policy.replace(
            ", missing_key: skip",
            if key.contains("client_ip") { "" } else { ", missing_key: skip" },
        );
        let loaded = load(&policy);
        let policy = loaded.config.policy;
        let hasher = KeySecret::new([1; 16]).hasher(&policy.limits[0]);
        group.bench_function(key, |b| {
            b.iter(|| policy.limits[0].key.hash(&hasher, black_box(&facts), &policy.routes[0]));
        });
    }
}

const LIMITS: [(&str, &str); 6] = [
    ("estimate", "tier: estimate, rate: 1000000000/1h, expect: { requests: 20000/1s }"),
    ("token_bucket", "tier: exact, algorithm: token_bucket, rate: 1000000/1m, burst: 1000000"),
    ("sliding_window", "tier: exact, rate: 1000000000/1h"),
    ("sliding_log", "tier: exact, algorithm: sliding_log, rate: 10/1s"),
    ("fixed_window", "tier: exact, algorithm: fixed_window, rate: 1000000000/1h"),
    ("refused", "tier: exact, rate: 1/1d"),
];

/// A whole decision of the engine: route, key out of a field, charge, books. The fields lie in
/// memory one after the other, their hashes in no order.
fn decisions(c: &mut Criterion) {
    for (name, limit) in LIMITS {
        let mut group = c.benchmark_group(format!("decide/{name}"));
        group.throughput(Throughput::Elements(TURN as u64));
        for count in [1usize, 10_000, 1_000_000, 10_000_000] {
            let policy = format!(
                "limits: {{ l: {{ {limit}, key: header:x-key, missing_key: deny }} }}\n\
                 routes: [{{ name: r, limits: [l] }}]\n\
                 limits_of_this_proxy: {{ max_keys: 20000000 }}\n"
            );
            let (engine, generation) = engine(&policy);
            let mut headers = HeaderMap::new();
            headers.insert("x-key", HeaderValue::from_static("key-00000000"));
            let mut decide = |key: usize| {
                // Written anew for each, since ten million maps would not fit.
                let text = format!("key-{key:08}");
                if let (Some(value), Ok(next)) =
                    (headers.get_mut("x-key"), HeaderValue::try_from(text))
                {
                    *value = next;
                }
                let (decision, _) = engine.decide_now(&generation, &facts("/", None, &headers));
                black_box(decision.route);
            };
            (0..count).for_each(&mut decide);
            let mut next = 0;
            group.bench_function(BenchmarkId::from_parameter(count), |b| {
                b.iter(|| {
                    for _ in 0..TURN {
                        next = (next + 1) % count;
                        decide(next);
                    }
                });
            });
        }
    }
}

/// Forged tokens, each another one, from an address that has spent its limit.
fn forged(c: &mut Criterion) {
    /// More than are remembered.
    const TOKENS: usize = 40_000;
    let policy = "limits:
  address: { tier: exact, rate: 1/1d, key: client_ip }
  token: { tier: exact, rate: 60/1m, missing_key: skip,
           key: { jwt: { jwks_file: tests/policies/keys/jwks.json, claim: sub } } }
routes: [{ name: r, limits: [address, token] }]\n";
    let mut group = c.benchmark_group("decide/forged");
    for (algorithm, key, signature) in
        [("RS256", "rsa-1", 256), ("ES256", "ec-1", 64), ("EdDSA", "ed-1", 64)]
    {
        let (engine, generation) = engine(policy);
        let map = |n| {
            let token = signing::forged_for(algorithm, key, signature, n as u64);
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            value.ok().map(|value| HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]))
        };
        let all: Vec<HeaderMap> = (0..TOKENS).filter_map(map).collect();
        let mut headers = all.iter().cycle();
        let mut decide = || {
            let headers = headers.next()?;
            Some(engine.decide_now(&generation, &facts("/", None, headers)).0.outcome)
        };
        decide();
        group.bench_function(algorithm, |b| b.iter(&mut decide));
    }
}

/// Two threads on keys of their own, and one: decisions a second.
fn threads(c: &mut Criterion) {
    const EACH: usize = 100_000;
    let policy = "limits: { l: { tier: exact, rate: 1000000000/1h, key: header:x-key, missing_key: deny } }\n\
                  routes: [{ name: r, limits: [l] }]\n";
    let (engine, generation) = engine(policy);
    let keys: Vec<Vec<HeaderMap>> = (0..2)
        .map(|whose| {
            let map = |key| {
                let value = HeaderValue::try_from(format!("key-{whose}-{key}"));
                value.ok().map(|value| {
                    HeaderMap::from_iter([(http::HeaderName::from_static("x-key"), value)])
                })
            };
            (0..10_000).filter_map(map).collect()
        })
        .collect();
    let decide = |keys: &[HeaderMap]| {
        for headers in keys.iter().cycle().take(EACH) {
            black_box(engine.decide_now(&generation, &facts("/", None, headers)).0.route);
        }
    };
    let mut group = c.benchmark_group("decide/threads");
    for threads in [1, 2] {
        group.throughput(Throughput::Elements((EACH * threads) as u64));
        group.bench_function(BenchmarkId::from_parameter(threads), |b| {
            b.iter(|| {
                std::thread::scope(|scope| {
                    keys.iter().take(threads).for_each(|keys| drop(scope.spawn(|| decide(keys))));
                });
            });
        });
    }
}

/// What a client is told: beside an origin's answer, and instead of one.
fn fields(c: &mut Criterion) {
    let policy = "limits:\n  a: { tier: estimate, rate: 100/1m, key: client_ip }\n  \
                  b: { tier: exact, rate: 1/1d, key: client_ip }\nroutes: [{ name: r, limits: [a, b] }]\n";
    let loaded = load(policy);
    let responses = Arc::clone(&loaded.config.responses[RouteIndex(0)]);
    let (engine, generation) = engine(policy);
    let headers = HeaderMap::new();
    let (allowed, _) = engine.decide_now(&generation, &facts("/", None, &headers));
    let (refused, _) = engine.decide_now(&generation, &facts("/", None, &headers));
    let policy = generation.policy();
    let mut group = c.benchmark_group("fields");
    group.bench_function("allowed", |b| {
        b.iter(|| added_fields(black_box(&allowed), policy, &responses).map(|all| all.len()));
    });
    group.bench_function("refused", |b| {
        b.iter(|| {
            let asking = AnswerPreferences { headers: &headers, chance: 0.5, request_id: "" };
            refusal(black_box(&refused), policy, &responses, asking).map(|one| one.is_some())
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = routing, routing_by_class, hostile_values, paths, configuration, keys, fields, forged, threads, decisions
}
criterion_main!(benches);
