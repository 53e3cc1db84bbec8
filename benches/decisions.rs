//! What a decision costs: routing, keys, both tiers. `make bench`.

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue};
use tollgate::clock::SystemClock;
use tollgate::config;
use tollgate::engine::{Engine, Generation};
use tollgate::policy::{Facts, KeySecret};

const HEAD: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
check: { silence: [spoofable-key] }
";

fn engine(policy: &str) -> (Engine, Generation) {
    let text = format!("{HEAD}{policy}");
    let loaded = config::read_text(&text, "bench.yaml", Path::new(""));
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
    let engine = Engine::new(Arc::new(SystemClock::new()), KeySecret::new([1; 16]));
    let generation = engine.generation(loaded.config.policy, None).0;
    (engine, generation)
}

fn facts<'r>(path: &'r str, headers: &'r HeaderMap) -> Facts<'r> {
    Facts {
        client_ip: [192, 0, 2, 1].into(),
        peer_trusted: false,
        now: tollgate::clock::Nanos::ZERO,
        method: "GET",
        host: "api.example.com",
        path,
        readings: &[],
        query: None,
        headers,
        ipv6_prefix: 64,
    }
}

/// The last of N routes that share their first segments.
fn routing(c: &mut Criterion) {
    let headers = HeaderMap::new();
    for count in [10, 1_000, 10_000] {
        let mut policy = "routes:\n".to_owned();
        for n in 0..count {
            let _ = writeln!(policy, "  - {{ name: r{n}, match: {{ path: /api/v1/item{n}/** }} }}");
        }
        let (_, generation) = engine(&policy);
        let path = format!("/api/v1/item{}/x", count - 1);
        let facts = facts(&path, &headers);
        assert!(generation.policy().find(&facts).is_some());
        c.bench_function(&format!("route/{count}"), |b| {
            b.iter(|| generation.policy().find(black_box(&facts)));
        });
    }
}

fn decisions(c: &mut Criterion) {
    let limits = [
        ("estimate", "tier: estimate, rate: 1000000/1m, key: header:x-key, missing_key: deny"),
        (
            "token_bucket",
            "tier: exact, algorithm: token_bucket, rate: 1000000/1m, key: header:x-key, missing_key: deny",
        ),
        ("sliding_window", "tier: exact, rate: 1000000/1m, key: header:x-key, missing_key: deny"),
        (
            "fixed_window",
            "tier: exact, algorithm: fixed_window, rate: 1000000/1m, key: header:x-key, missing_key: deny",
        ),
        ("refused", "tier: exact, rate: 1/1d, key: header:x-key, missing_key: deny"),
    ];
    for (name, limit) in limits {
        let policy = format!(
            "limits: {{ l: {{ {limit} }} }}\nroutes: [{{ name: r, limits: [l] }}]\nlimits_of_this_proxy: {{ max_keys: 3000000 }}\n"
        );
        for keys in [1usize, 1_000_000] {
            let (engine, generation) = engine(&policy);
            let all: Vec<HeaderMap> = (0..keys)
                .map(|key| {
                    let mut headers = HeaderMap::new();
                    if let Ok(value) = HeaderValue::try_from(format!("key-{key}")) {
                        headers.insert("x-key", value);
                    }
                    headers
                })
                .collect();
            for headers in &all {
                drop(engine.decide_embedded(&generation, &facts("/", headers)));
            }
            let mut next = 0;
            c.bench_function(&format!("decide/{name}/{keys}"), |b| {
                b.iter(|| {
                    // A stride that visits all keys in no order that a cache could guess.
                    next = (next + 611_953) % keys;
                    engine.decide_embedded(&generation, &facts("/", &all[next]))
                });
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2)).warm_up_time(std::time::Duration::from_millis(500));
    targets = routing, decisions
}
criterion_main!(benches);
