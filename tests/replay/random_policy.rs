//! Random policies of everything that an exact limit can be, several in one configuration: each has hosts of its own.

use std::fmt::Write as _;
use std::path::Path;

use fastrand::Rng;
use tollgate::config;

const CLASSES: &str = "classes:\n  staff: { header: { x-staff: \"yes\" } }\n  mobile: { header: { x-app: { prefix: m } } }\n";

/// Policies that one process serves.
pub(crate) const POLICIES: usize = 10;

/// What of a configuration these policies need, after the origins.
pub(crate) fn policies(random: &mut Rng) -> String {
    let (mut limits, mut routes) = ("limits:\n".to_owned(), "routes:\n".to_owned());
    for policy in 0..POLICIES {
        let count = random.usize(1..=3);
        limits.push_str(&accepted_limits(random, policy, count));
        let names = |costs: &[String]| {
            let items = costs.iter().enumerate().map(|(n, cost)| format!("p{policy}-l{n}{cost}"));
            items.collect::<Vec<_>>().join(", ")
        };
        let used = names(&vec![String::new(); count]);
        let _ = writeln!(
            routes,
            "  - {{ name: p{policy}-special, match: {{ host: p{policy}.test, {} }}, limits: [{used}] }}",
            condition(random)
        );
        let _ = writeln!(
            routes,
            "  - {{ name: p{policy}, match: {{ host: p{policy}.test }}, limits: [{used}] }}"
        );
    }
    format!("{CLASSES}{limits}{routes}")
}

fn condition(random: &mut Rng) -> &'static str {
    [
        "header: { x-app: { prefix: m } }",
        "query: { q: { regex: \"^[ab]$\" } }",
        "cookie: { sid: present }",
        "path: /special/**",
        "class: staff",
        "methods: [POST]",
    ][random.usize(..6)]
}

/// Random limits that a route may have: what does not go together is refused, and left out here.
fn accepted_limits(random: &mut Rng, policy: usize, count: usize) -> String {
    loop {
        let names: Vec<String> = (0..count).map(|n| format!("p{policy}-l{n}")).collect();
        let limits: String = names.iter().map(|name| limit(random, name)).collect();
        let used = names.join(", ");
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\nclients: {{ trusted_proxies: [127.0.0.1/32] }}\n\
             origins: {{ site: {{ servers: [\"127.0.0.1:2\"] }} }}\n{CLASSES}limits:\n{limits}\
             routes: [{{ name: a, limits: [{used}] }}]\n"
        );
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/keys");
        if config::read_text(&text, "random", &folder).is_ok() {
            return limits;
        }
    }
}

fn limit(random: &mut Rng, name: &str) -> String {
    let count = random.u32(2..8);
    let period = ["1s", "2s", "10s", "1m", "1h"][random.usize(..5)];
    let key = key(random);
    let mut keys = vec![format!("key: {key}")];
    let is_always_there = ["client_ip", "path", "method"].contains(&key);
    if !is_always_there {
        let missing = ["client_ip", "skip", "{ deny: 401 }"][random.usize(..3)];
        keys.push(format!("missing_key: {missing}"));
    }
    let by_flight = random.u8(..5) == 0;
    if by_flight {
        keys.push(format!("max_in_flight: {}", random.u32(1..4)));
    } else {
        let algorithm =
            ["token_bucket", "leaky_bucket", "sliding_window", "sliding_log", "fixed_window"]
                [random.usize(..5)];
        keys.push(format!("algorithm: {algorithm}, rate: {count}/{period}"));
        if algorithm == "leaky_bucket" {
            keys.push(format!("max_delay: {}", ["50ms", "300ms"][random.usize(..2)]));
        }
        if algorithm == "token_bucket" && random.bool() {
            keys.push(format!("burst: {}", random.u32(1..10)));
        }
        keys.extend(answer_dependence(random).map(str::to_owned));
        if random.u8(..3) == 0 {
            keys.push(format!(
                "overrides: [{{ network: 127.0.0.2/32, rate: {}/{period} }}, {{ class: staff, action: {} }}]",
                random.u32(1..12),
                ["allow", "deny"][random.usize(..2)]
            ));
        }
        if random.u8(..4) == 0 {
            keys.push(format!(
                "plans: {{ by: header:x-plan, rates: {{ gold: {}/{period}, tin: 1/{period} }} }}",
                random.u32(1..20)
            ));
        }
        if random.u8(..6) == 0 {
            keys.push("penalty: { after: 3, within: 10s, ban: 2s }".to_owned());
        }
    }
    match random.u8(..8) {
        0 => keys.push("mode: shadow".to_owned()),
        1 => keys.push(format!("rollout: {}%", random.u32(20..80))),
        _ => {}
    }
    format!("  {name}: {{ tier: exact, {} }}\n", keys.join(", "))
}

fn key(random: &mut Rng) -> &'static str {
    [
        "client_ip",
        "header:x-key",
        "cookie:sid",
        "query:q",
        "bearer",
        "basic_user",
        "path",
        "path_segment:1",
        "method",
        "[client_ip, header:x-key]",
        "{ shard: header:x-key, of: 3 }",
        "{ jwt: { secret_file: secret, claim: sub } }",
        "[host, class:mobile]",
    ][random.usize(..13)]
}

fn answer_dependence(random: &mut Rng) -> Option<&'static str> {
    [
        None,
        None,
        Some("refund: { status: [500-599] }"),
        Some("count: { status: [401, 403] }"),
        Some("cost: { header: x-weight, default: 1, max: 4 }"),
        Some("cost: { response_header: x-used, reserve: 1, max: 4 }"),
        Some("cost: { response_body: /usage/total, reserve: 2, max: 5 }"),
        Some("cost: 2"),
    ][random.usize(..8)]
}
