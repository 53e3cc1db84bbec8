//! Configurations as text: every mistake is reported with its location and its cure.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tollgate::config::{self, LogTarget, MethodOverride, RefusalBody, Underscores};
use tollgate::policy::client::AddressHeader;

/// The beginning of a valid file. Each case appends its text, from line 4 on.
const HEAD: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:2] } }
";

fn errors(text: &str) -> Vec<String> {
    match config::read_text(text, "f", Path::new("")) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.lines(),
    }
}

/// `rest` follows the head, from line 4 on.
fn check(rest: &str, expected: &[&str]) {
    let found = errors(&format!("{HEAD}{rest}"));
    assert_eq!(found, expected, "in\n{rest}");
}

const ROUTE: &str = "routes: [{ name: r }]\n";

fn limit(fields: &str, expected: &[&str]) {
    check(&format!("limits:\n  l: {{ {fields} }}\n{ROUTE}"), expected);
}

#[test]
fn mistakes_in_limits() {
    limit("tier: exact, rate: 5/s, key: client_ip", &[]);
    limit(
        "tier: exact, rate: 5/s, key: header:x",
        &["f:5:3: limits.l: missing_key is missing: a request can be without header:x; write \
           missing_key: deny, client_ip, { limit: NAME } or skip"],
    );
    limit(
        "tier: exact, rate: 5/s, key: client_ip, missing_key: deny",
        &["f:5:61: limits.l.missing_key: client_ip is never absent; leave missing_key out"],
    );
    limit(
        "rate: 5/s, key: client_ip",
        &[
            "f:5:3: limits.l: tier is missing; write tier: exact (counts exactly) or tier: estimate (cheap)",
        ],
    );
    limit(
        "tier: estimate, rate: 5/s, key: client_ip, burst: 3",
        &[
            "f:5:58: limits.l.burst: burst belongs to tier: exact; leave it out, or write tier: exact",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: client_ip, burst: 3",
        &[
            "f:5:55: limits.l.burst: burst belongs to token_bucket; add algorithm: token_bucket, or leave it out",
        ],
    );
    limit(
        "tier: exact, rate: 20000/s, key: client_ip, algorithm: sliding_log",
        &[
            "f:5:27: limits.l.rate: a sliding log holds at most 10000 units per window; use sliding_window",
        ],
    );
    limit(
        "tier: exact, algorithm: token_bucket, rate: 3000000/s, key: client_ip",
        &[
            "f:5:52: limits.l.rate: this rate errs by more than 0.1 % in the clock's unit; write it over a longer time, or lower it",
        ],
    );
    limit(
        "tier: exact, algorithm: token_bucket, rate: 7/1m, refill_every: 1s, key: client_ip",
        &[
            "f:5:72: limits.l.refill_every: refill_every brings no whole number of units; write a time, at most that of the rate, in which a whole number of units refills",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: client_ip, cost: 6",
        &[
            "f:5:54: limits.l.cost: a cost of 6 never fits into limit \"l\"; write at most 5, or raise the limit",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: client_ip, colour: red",
        &[
            "f:5:48: limits.l.colour: unknown key \"colour\"; known here: tier, key, missing_key, mode, headers, cost, penalty, scope, max_in_flight, rate, expect, algorithm, burst, refill_every, max_delay, count, refund, when_full, max_keys, on_store_failure, after_crash, rollout, from, candidate, plans, overrides",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: client_ip, algoritm: gcra",
        &["f:5:48: limits.l.algoritm: unknown key \"algoritm\"; did you mean \"algorithm\"?"],
    );
    limit(
        "tier: exact, rate: 5/s, key: [client_ip, clientip]",
        &["f:5:49: limits.l.key[1]: unknown key source \"clientip\"; did you mean \"client_ip\"?"],
    );
    limit(
        "tier: exact, rate: 5/s, key: path_segment:0, missing_key: skip",
        &["f:5:37: limits.l.key: \"0\" is not a whole number from 1 to 64; the first segment is 1"],
    );
    check(
        "limits:\n  a: { tier: exact, rate: 1/s, key: bearer, missing_key: { limit: b } }\n  b: { tier: exact, rate: 1/s, key: bearer, missing_key: { limit: a } }\nroutes: [{ name: r }]\n",
        &[
            "f:5:3: limits.a: missing_key of limit \"a\" leads back to it; end the chain with deny, client_ip or skip",
            "f:6:3: limits.b: missing_key of limit \"b\" leads back to it; end the chain with deny, client_ip or skip",
        ],
    );
}

#[test]
fn mistakes_in_options_of_limits() {
    let exact = |text: &str, expected: &[&str]| {
        limit(&format!("tier: exact, rate: 5/s, key: client_ip, {text}"), expected);
    };
    exact(
        "penalty: { after: 0, within: 1m }",
        &[
            "f:5:57: limits.l.penalty: ban is missing; write ban: 10m",
            "f:5:66: limits.l.penalty.after: \"0\" is not a whole number from 1 to 1000",
        ],
    );
    exact(
        "penalty: { after: 2, within: 1m, ban: 10m, double_up_to: 1m }",
        &[
            "f:5:105: limits.l.penalty.double_up_to: double_up_to is shorter than the ban; leave it out to not double",
        ],
    );
    exact(
        "plans: { by: host, rates: { gold: 9/s } }",
        &[
            "f:5:61: limits.l.plans.by: a plan cannot be read from host; header:NAME, cookie:NAME, class, or { jwt: { jwks_file: FILE, claim: plan } }",
        ],
    );
    exact(
        "plans: { by: header:x-plan, rates: { gold: { rate: 9/s, burst: 3 } } }",
        &["f:5:111: limits.l.plans.rates.gold.burst: burst belongs to token_bucket; leave it out"],
    );
    exact(
        "overrides: [{ key: 192.0.2.999, action: allow }, { network: 192.0.2.0/24 }, { key: a, network: b, action: deny }, { key: 192.0.2.1, rate: 9/s, action: deny }]",
        &[
            "f:5:67: limits.l.overrides[0].key: \"192.0.2.999\" is not an address; write network: for many",
        ],
    );
    exact(
        "overrides: [{ network: 192.0.2.0/24 }]",
        &[
            "f:5:60: limits.l.overrides[0]: an override has one effect; write either action: allow, action: deny, or a rate",
        ],
    );
    exact(
        "overrides: [{ key: 192.0.2.1, network: 192.0.2.0/24, action: deny }]",
        &[
            "f:5:60: limits.l.overrides[0]: an override is for one kind of target; write one of key, key_file, network and class",
        ],
    );
    exact(
        "count: { status: [] }",
        &["f:5:65: limits.l.count.status: no status; write for example [401, 403]"],
    );
    exact(
        "refund: { status: [599-500] }",
        &["f:5:67: limits.l.refund.status[0]: \"599-500\" ends before it begins; write 500-599"],
    );
    exact(
        "rollout: 101%",
        &["f:5:57: limits.l.rollout: \"101%\" is not a share; write for example 100% or 2.5%"],
    );
    exact(
        "from: tomorrow",
        &[
            "f:5:54: limits.l.from: \"tomorrow\" is not an instant; write for example 2026-12-01T00:00:00Z",
        ],
    );
    exact(
        "max_delay: 1s",
        &[
            "f:5:59: limits.l.max_delay: max_delay belongs to leaky_bucket; add algorithm: leaky_bucket, or leave it out",
        ],
    );
    exact(
        "algorithm: leaky_bucket",
        &[
            "f:5:3: limits.l: max_delay is missing: a leaky bucket delays requests; write max_delay: 1s",
        ],
    );
    exact(
        "algorithm: token_bucket, refill_every: 1s, max_delay: 1s",
        &[
            "f:5:102: limits.l.max_delay: refill_every and max_delay do not go together; leave one of the two out",
        ],
    );
    exact(
        "max_in_flight: 20, burst: 3",
        &[
            "f:5:27: limits.l.rate: rate cannot be combined with max_in_flight; leave one of the two out",
            "f:5:74: limits.l.burst: burst cannot be combined with max_in_flight; leave it out",
        ],
    );
    exact(
        "cost: { header: x-cost }",
        &["f:5:54: limits.l.cost: max is missing; write max: 100, the largest cost of one request"],
    );
    exact(
        "cost: { header: x-cost, default: 3, max: 2 }",
        &["f:5:54: limits.l.cost: default is 3, above max 2; raise max, or lower the other"],
    );
    exact(
        "cost: { response_header: x-tokens, reserve: 9, max: 90 }",
        &[
            "f:5:54: limits.l.cost: a cost of 9 never fits into limit \"l\"; write at most 5, or raise the limit",
        ],
    );
    for (cost, words) in [
        ("response_body: usage.total, reserve: 1, max: 2", "write for example /usage/total"),
        ("response_body: /a~b, reserve: 1, max: 2", "write ~0 for ~ and ~1 for /"),
        ("response_body: /a, max: 2", "reserve is missing"),
        ("response_body: /a, reserve: 1", "max is missing"),
        ("response_body: /a, response_header: x, reserve: 1, max: 2", "write one of"),
        ("reserve: 1, max: 2", "write one of"),
        ("response_trailer: 'a b', reserve: 1, max: 2", "is not the name of a header"),
        ("response_body: /a, reserve: 1, max: 4294967296", "4294967295"),
    ] {
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:2] }} }}\nlimits: {{ l: {{ tier: exact, rate: 5/s, key: client_ip, cost: {{ {cost} }} }} }}\nroutes: [{{ name: r, limits: [l] }}]\n"
        );
        let errors = config::read_text(&text, "f", Path::new("")).unwrap_err().lines();
        assert!(errors.len() == 1 && errors[0].contains(words), "{cost}: {errors:?}");
    }
    let estimate = |text: &str, expected: &[&str]| {
        limit(&format!("tier: estimate, rate: 5/s, key: client_ip, {text}"), expected);
    };
    for key in ["count: { status: [401] }", "refund: { status: [500] }", "max_delay: 1s"] {
        let name = key.split(':').next().unwrap();
        estimate(
            key,
            &[&format!(
                "f:5:{}: limits.l.{name}: {name} belongs to tier: exact; leave it out, or write tier: exact",
                53 + name.len()
            )],
        );
    }
    for key in ["candidate: { rate: 9/s }", "plans: { by: header:p, rates: { a: 9/s } }"] {
        let name = key.split(':').next().unwrap();
        estimate(
            key,
            &[&format!(
                "f:5:{}: limits.l.{name}: a second rate needs a limit with an exact rate; leave it out, or write tier: exact and a rate",
                53 + name.len()
            )],
        );
    }
    estimate(
        "overrides: [{ network: 192.0.2.0/24, rate: 9/s }]",
        &[
            "f:5:94: limits.l.overrides[0].rate: a second rate needs a limit with an exact rate; leave it out, or write tier: exact and a rate",
        ],
    );
    estimate(
        "cost: { response_header: x-tokens, reserve: 1, max: 90 }",
        &[
            "f:5:57: limits.l.cost: a cost from the response needs an exact rate; leave it out, or write a rate with tier: exact",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: { jwt: { claim: sub } }, missing_key: skip",
        &[
            "f:5:44: limits.l.key.jwt: the keys that verify a token are given once; write exactly one of jwks_file, jwks_url and secret_file, for example { jwks_file: FILE, claim: sub }",
        ],
    );
    limit(
        "tier: exact, rate: 5/s, key: { jwt: { secret_file: nowhere, claim: sub } }, missing_key: skip",
        &[
            "f:5:59: limits.l.key.jwt.secret_file: nowhere: No such file or directory (os error 2); create it, or correct its name",
        ],
    );
    check(
        &format!(
            "responses: {{ body: [grpc], cors: [\"https://a.example/\"], exempt: [all] }}\n{ROUTE}"
        ),
        &[
            "f:4:20: responses.body: grpc is only for gRPC calls; begin the list with problem or a file",
            "f:4:35: responses.cors[0]: \"https://a.example/\" is not an origin; write https://app.example.com, or \"*\"",
            "f:4:67: responses.exempt[0]: unknown word \"all\"; one of preflight, acme",
        ],
    );
}

#[test]
fn an_interval_of_the_state_is_refused_with_its_bounds() {
    for flush in ["0s", "9ms", "11s"] {
        let expected =
            format!("f:4:46: store.embedded.flush: {flush:?} is not between 10ms and 10s");
        check(
            &format!("store: {{ embedded: {{ state: /nowhere, flush: {flush} }} }}\n{ROUTE}"),
            &[&expected],
        );
    }
}

#[test]
fn mistakes_in_stores() {
    let store = |text: &str, expected: &[&str]| {
        check(&format!("store: {{ redis: {{ {text} }} }}\n{ROUTE}"), expected);
    };
    for good in [
        "url: redis://127.0.0.1:6379",
        "url: \"redis://[::1]:6379/3\", timeout: 5ms, prefix: edge",
        "url: valkey://store.internal",
        "url: rediss://store.internal:6380",
        "url: unix:/run/redis/redis.sock",
        "cluster: [redis://10.0.0.1, redis://10.0.0.2:6380]",
        "sentinel: { urls: [redis://10.0.0.1:26379], master: edge, database: 2 }",
    ] {
        store(good, &[]);
    }
    let message = "one of url, cluster and sentinel is needed; write url: redis://127.0.0.1:6379, \
               cluster: [..] or sentinel: { urls: [..], master: NAME }";
    store("timeout: 20ms", &[&format!("f:4:17: store.redis: {message}")]);
    store("url: redis://a, cluster: [redis://b]", &[&format!("f:4:17: store.redis: {message}")]);
    let written = "write redis://HOST:6379, rediss://HOST:6379 or unix:/run/redis.sock";
    for bad in [
        "http://a",
        "a:6379",
        "redis://",
        "redis://a:0",
        "redis://a:x",
        "unix:redis.sock",
        "redis://a?x=1",
    ] {
        let expected = format!("f:4:24: store.redis.url: {bad:?} is not an address; {written}");
        store(&format!("url: \"{bad}\""), &[&expected]);
    }
    store(
        "url: \"redis://u:secret@a\"",
        &[
            "f:4:24: store.redis.url: an address must not contain a password; write it without, and username and password_file",
        ],
    );
    store(
        "url: redis://a/x",
        &[
            "f:4:24: store.redis.url: \"x\" is not the number of a database; write 0 or leave it out",
        ],
    );
    store(
        "cluster: [redis://a, rediss://b]",
        &[
            "f:4:28: store.redis.cluster: redis: and rediss: addresses are mixed; use TLS for all or for none",
        ],
    );
    store(
        "cluster: [redis://a/1]",
        &["f:4:28: store.redis.cluster: a Cluster has only one database; leave the number out"],
    );
    store(
        "url: redis://a, prefix: \"a{b}\"",
        &[
            "f:4:43: store.redis.prefix: \"a{b}\" is not a prefix; write at most 64 of a-z A-Z 0-9 - _ . :",
        ],
    );
    store(
        "url: redis://a, timeout: 1m",
        &[
            "f:4:44: store.redis.timeout: \"1m\" is longer than 10s, and the client waits as long; write for example 20ms",
        ],
    );
    store(
        "url: redis://a, tls: {}",
        &[
            "f:4:40: store.redis.tls: tls without a rediss: address; write rediss:// instead of redis://",
        ],
    );
    store(
        "url: redis://a, key_secret_file: nowhere",
        &[
            "f:4:52: store.redis.key_secret_file: nowhere: No such file or directory (os error 2); create it, or correct its name",
        ],
    );
    store(
        "url: redis://a, username: u",
        &[
            "f:4:17: store.redis: a username without a password; write password_file: /run/secrets/redis",
        ],
    );
    store(
        "url: redis://a, pasword_file: u",
        &[
            "f:4:35: store.redis.pasword_file: unknown key \"pasword_file\"; did you mean \"password_file\"?",
        ],
    );
    // Rates are read in the microseconds of the store's clock.
    let limit =
        "limits: { l: { tier: exact, algorithm: token_bucket, rate: 3000/s, key: client_ip } }";
    check(&format!("{limit}\n{ROUTE}"), &[]);
    check(
        &format!("{limit}\nstore: {{ redis: {{ url: redis://a }} }}\n{ROUTE}"),
        &[
            "f:4:60: limits.l.rate: this rate errs by more than 0.1 % in the clock's unit; write it over a longer time, or lower it",
        ],
    );
}

/// A request cannot keep the order of two queues, so a route with two limits that delay is refused.
#[test]
fn two_limits_that_delay_are_refused_on_one_route() {
    let refused = |line: usize, column: usize, route: usize, first: &str, second: &str| {
        format!(
            "f:{line}:{column}: routes[{route}]: limits {first:?} and {second:?} could both delay a request, and a request \
             cannot keep the order of both queues; remove max_delay from one of them (a leaky_bucket then \
             becomes a token_bucket), or use them on different routes"
        )
    };
    let line = "{ tier: exact, algorithm: leaky_bucket, rate: 2/s, max_delay: 2s, key: client_ip }";
    let keyed = "{ tier: exact, algorithm: leaky_bucket, rate: 9/s, max_delay: 1s, key: header:x, missing_key: { limit: line } }";
    let smooth = "{ tier: exact, algorithm: token_bucket, rate: 1/s, max_delay: 1s, key: header:y, missing_key: skip }";
    let planned = "{ tier: exact, algorithm: token_bucket, rate: 1/s, key: header:y, missing_key: { limit: smooth } }";
    let watched = "{ tier: exact, algorithm: leaky_bucket, rate: 1/s, max_delay: 1s, key: client_ip, mode: shadow }";
    let rolled = "{ tier: exact, algorithm: leaky_bucket, rate: 1/s, max_delay: 1s, key: client_ip, rollout: 5% }";
    let bucket = "{ tier: exact, algorithm: token_bucket, rate: 1/s, key: client_ip }";
    let limits = format!(
        "limits:\n  line: {line}\n  keyed: {keyed}\n  smooth: {smooth}\n  planned: {planned}\n  watched: {watched}\n  rolled: {rolled}\n  bucket: {bucket}\n"
    );
    let route = |limits_of_route: &str, defaults: &str, expected: &[String]| {
        let route = format!("routes:\n  - {{ name: r, limits: [{limits_of_route}] }}\n");
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check(&format!("{limits}{defaults}{route}"), &expected);
    };
    // One limit that delays, with limits that do not, and with the limits that replace it.
    for accepted in [
        "line",
        "line, watched, bucket",
        "keyed",
        "smooth, watched",
        "planned",
        "rolled",
        "planned, smooth",
    ] {
        route(accepted, "", &[]);
    }
    route("line, smooth", "", &[refused(13, 5, 0, "line", "smooth")]);
    route("bucket, line, watched, rolled", "", &[refused(13, 5, 0, "line", "rolled")]);
    // By way of a missing key, on either side.
    route("keyed, line", "", &[refused(13, 5, 0, "keyed", "line")]);
    route("line, keyed", "", &[refused(13, 5, 0, "line", "keyed")]);
    route("line, planned", "", &[refused(13, 5, 0, "line", "smooth")]);
    // By way of the defaults.
    route("smooth", "defaults: { limits: [line] }\n", &[refused(14, 5, 0, "line", "smooth")]);
    // Whichever rate holds.
    let gold = "  gold: { tier: exact, algorithm: leaky_bucket, rate: 1/s, max_delay: 1s, key: client_ip, plans: { by: header:x-plan, rates: { gold: { rate: 9/s } } } }\n";
    check(
        &format!("{limits}{gold}routes:\n  - {{ name: r, limits: [gold, line] }}\n"),
        &[&refused(14, 5, 0, "gold", "line")],
    );
}

/// Names of limits, routes and origins: `[a-zA-Z0-9_-]{1,64}`, as typed.
#[test]
fn names_have_64_characters_at_most() {
    let names = |limit: &str, route: &str, origin: &str| {
        format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ {origin}: {{ servers: [127.0.0.1:1] }} }}
limits: {{ {limit}: {{ tier: exact, rate: 5/s, key: client_ip }} }}
routes: [{{ name: {route}, origin: {origin}, limits: [{limit}] }}]
"
        )
    };
    let longest = "Z".repeat(64);
    for name in
        ["Writes", "per_user", "_", "-a", "A-1_b", "True", "NULL", "1_000", "0x1F", &longest]
    {
        let found = errors(&names(name, name, name));
        assert_eq!(found, [""; 0], "{name}");
    }
    for name in ["a.b", "a/b", "caf\u{e9}", &format!("{longest}Z")] {
        let found = errors(&names(name, name, name));
        let cure = format!(": {name:?} is not a name; use a-z, A-Z, 0-9, _ and -, at most 64");
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found.iter().all(|error| error.ends_with(&cure)), "{found:#?}");
    }
    // Names that differ in case are different names, in lists too.
    check(
        "limits:\n  Writes: { tier: exact, rate: 5/s, key: client_ip }\n  writes: { tier: exact, rate: 9/s, key: client_ip }\n\
         routes: [{ name: r, limits: [writes, Writes] }, { name: R, limits: [Writes] }]\n",
        &[],
    );
    check(
        "limits:\n  Writes: { tier: exact, rate: 5/s, key: client_ip }\nroutes: [{ name: r, limits: [writes] }]\n",
        &["f:6:30: routes[0].limits[0]: unknown limit \"writes\"; did you mean \"Writes\"?"],
    );
}

/// A refund does not shorten the delays that later requests already have.
#[test]
fn a_limit_that_delays_has_no_refunds() {
    let limit = |more: &str| {
        format!(
            "limits:\n  a: {{ tier: exact, algorithm: leaky_bucket, rate: 5/1s, max_delay: 1s, key: client_ip{more} }}\n"
        )
    };
    let why = "cannot be combined with max_delay: a refund does not shorten the delays that later requests already have; leave one of the two out";
    check(
        &format!("{}routes: [{{ name: r, limits: [a] }}]\n", limit(", count: { status: [401] }")),
        &[&format!("f:5:96: limits.a.count: count {why}")],
    );
    check(
        &format!("{}routes: [{{ name: r, limits: [a] }}]\n", limit(", refund: { status: [503] }")),
        &[&format!("f:5:97: limits.a.refund: refund {why}")],
    );
    check(
        &format!(
            "{}routes: [{{ name: r, limits: [{{ limit: a, cost: {{ response_header: x-used, reserve: 1, max: 3 }} }}] }}]\n",
            limit("")
        ),
        &[
            "f:6:10: routes[0]: limit \"a\" has a max_delay, and its cost here is from the response; leave one of the two out",
        ],
    );
}

/// Each charge is written to every window and bucket of its key, so their number is bounded.
#[test]
fn windows_and_rates_of_a_limit_are_bounded() {
    let text = |algorithm: &str, rates: &mut dyn Iterator<Item = String>| {
        let plans: Vec<String> =
            rates.enumerate().map(|(n, rate)| format!("p{n}: {rate}")).collect();
        let plans = plans.join(", ");
        format!(
            "limits:\n  a: {{ tier: exact, algorithm: {algorithm}, rate: 100/1s, key: client_ip, plans: {{ by: header:x-plan, rates: {{ {plans} }} }} }}\n\
             routes: [{{ name: r, limits: [a] }}]\n"
        )
    };
    let rates = |count: u32| (1..=count).map(|n| format!("{n}/1s"));
    let windows = |count: u32| (2..2 + count).map(|n| format!("100/{n}s"));
    check(&text("token_bucket", &mut rates(7)), &[]);
    check(&text("token_bucket", &mut windows(7)), &[]);
    check(&text("sliding_window", &mut rates(20)), &[]);
    check(&text("sliding_window", &mut windows(7)), &[]);
    let bucket = "f:5:52: limits.a.rate: this limit and its plans";
    let window = "f:5:54: limits.a.rate: this limit and its plans";
    check(
        &text("token_bucket", &mut rates(8)),
        &[&format!(
            "{bucket} have 9 different rates, at most 8 are possible for a bucket; write fewer plans, or a separate limit for some of them"
        )],
    );
    check(
        &text("sliding_window", &mut windows(8)),
        &[&format!(
            "{window} and overrides have 9 different windows, at most 8 are possible; write their rates over fewer different durations"
        )],
    );
}

#[test]
fn mistakes_in_routes() {
    check(
        "routes: [{ name: r }, { name: r }]\n",
        &[
            "f:4:31: routes[1].name: two routes have the name \"r\"; rename one of them; the other is on line 4",
        ],
    );
    check(
        "routes: [{ name: R.1 }]\n",
        &["f:4:18: routes[0].name: \"R.1\" is not a name; use a-z, A-Z, 0-9, _ and -, at most 64"],
    );
    check(
        "routes: [{ name: r, match: { path: api, host: \"http://a\", methods: [post] } }]\n",
        &[
            "f:4:36: routes[0].match.path: path \"api\": a path begins with /; write /api",
            "f:4:47: routes[0].match.host: \"http://a\" is not a host; write a, without scheme, port and path",
            "f:4:69: routes[0].match.methods[0]: \"post\" is not a method; write POST",
        ],
    );
    check(
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip } }\nroutes: [{ name: r, limits: [l, l] }]\n",
        &["f:5:33: routes[0].limits[1]: limit \"l\" is listed twice; remove one of them"],
    );
    check(
        "routes: [{ name: r, match: { client: [10.0.0.1/8] } }]\n",
        &[
            "f:4:39: routes[0].match.client[0]: \"10.0.0.1/8\" has bits beyond its prefix; write 10.0.0.0/8",
        ],
    );
}

#[test]
fn mistakes_in_sections() {
    assert_eq!(errors(""), ["f:1:1: the file is empty; begin with version: 1"]);
    assert_eq!(
        errors("version: 1\n"),
        [
            "f:1:1: listeners is missing; write listeners: [{ address: 0.0.0.0:8080 }]",
            "f:1:1: origins is missing; write origins: { site: { servers: [127.0.0.1:9000] } }",
            "f:1:1: routes is missing; write routes: [{ name: site }]",
        ]
    );
    check(
        &format!("admin: {{ address: 0.0.0.0:9900 }}\n{ROUTE}"),
        &[
            "f:4:19: admin.address: 0.0.0.0:9900 can be reached from other machines; add token_file, or listen on 127.0.0.1",
        ],
    );
    let why = "is not a host; write admin.example, without scheme and port";
    check(
        &format!(
            "admin: {{ address: 127.0.0.1:9900, hosts: [\"admin:80\", \"*.b\", \"http://c\", d] }}\n{ROUTE}"
        ),
        &[
            &format!("f:4:43: admin.hosts[0]: \"admin:80\" {why}"),
            &format!("f:4:55: admin.hosts[1]: \"*.b\" {why}"),
            &format!("f:4:62: admin.hosts[2]: \"http://c\" {why}"),
        ],
    );
    check(
        &format!("access_log: {{ to: sdtout }}\n{ROUTE}"),
        &[
            "f:4:19: access_log.to: unknown word \"sdtout\"; stdout, stderr, none, or a file as ./access.log",
        ],
    );
    for (format, message) in [
        ("jsno", "unknown format \"jsno\"; did you mean \"json\"?"),
        (
            "apache",
            "unknown format \"apache\"; json, ecs, otel, combined, or a template as '$client_ip $status'",
        ),
        (
            "'a $statsu'",
            "unknown field $statsu at character 3 of the template; did you mean \"$status\"?",
        ),
        (
            "'$remote_addr'",
            "unknown field $remote_addr at character 1 of the template; its name here is $client_ip",
        ),
        (
            "'$status $'",
            "a $ without a name at character 9 of the template; write $$ for a dollar sign, and $name without braces",
        ),
        (
            "\"$path\\n$path\"",
            "a line end or control character at character 6 of the template; a line of the log is one line; leave it out",
        ),
        (
            "costs $$5",
            "a template without a $name is the same line for every request; name fields, as '$client_ip $status'; $$ stands for a dollar sign",
        ),
    ] {
        check(
            &format!("access_log: {{ format: {format} }}\n{ROUTE}"),
            &[&format!("f:4:23: access_log.format: {message}")],
        );
    }
    check(
        &format!("access_log: {{ log_key: full }}\n{ROUTE}"),
        &["f:4:24: access_log.log_key: unknown word \"full\"; one of none, hash, prefix"],
    );
    check(
        &format!("responses: {{ body: {{ file: nowhere.html, type: text/html }} }}\n{ROUTE}"),
        &[
            "f:4:28: responses.body.file: nowhere.html: No such file or directory (os error 2); create it, or correct its name",
        ],
    );
    let listeners: Vec<String> =
        (1..=33).map(|port| format!("{{ address: 127.0.0.1:{port} }}")).collect();
    let listeners = format!("listeners: [{}]", listeners.join(", "));
    assert_eq!(
        errors(&HEAD.replace("listeners: [{ address: 127.0.0.1:1 }]", &listeners)),
        [
            "f:1:1: routes is missing; write routes: [{ name: site }]",
            "f:2:12: listeners: 33 listeners, more than 32; let some of them share a listener, or start another tollgate",
        ]
    );
}

#[test]
fn the_server_name_of_an_origin_is_a_name_or_an_address() {
    let tls = |sni: &str| {
        let servers = "servers: [127.0.0.1:2]";
        let head = HEAD.replace(servers, &format!("{servers}, tls: {{ sni: {sni} }}"));
        errors(&format!("{head}{ROUTE}"))
    };
    for sni in ["site.internal", "SITE", "a_b.internal", "192.0.2.1", "\"2001:db8::1\""] {
        assert_eq!(tls(sni), Vec::<String>::new(), "{sni}");
    }
    for sni in ["\"\"", "\" \"", "site.internal:443", "https://site", "\"*.internal\"", "a..b"] {
        let bare = sni.trim_matches('"');
        let expected = format!(
            "f:3:56: origins.site.tls.sni: {bare:?} is not a name; write site.internal, the one in \
             the certificate"
        );
        assert_eq!(tls(sni), [expected], "{sni}");
    }
}

#[test]
fn handshakes_have_a_rate_or_none() {
    let bounds = |value: &str| {
        format!("limits_of_this_proxy: {{ handshakes_per_client: {value} }}\n{ROUTE}")
    };
    let read = |value: &str| {
        let text = format!("{HEAD}{}", bounds(value));
        config::read_text(&text, "f", Path::new("")).unwrap().config.bounds.handshakes_per_client
    };
    let of = |value: &str| read(value).map(|bucket| (bucket.burst(), bucket.rate().period().get()));
    assert_eq!(of("50/s"), Some((50, 1_000_000_000)));
    assert_eq!(of("300/5m"), Some((300, 300_000_000_000)));
    assert_eq!(of("none"), None);
    let default = config::read_text(&format!("{HEAD}{ROUTE}"), "f", Path::new("")).unwrap();
    assert_eq!(default.config.bounds.handshakes_per_client, read("50/s"));
    let location = "f:4:48: limits_of_this_proxy.handshakes_per_client";
    check(
        &bounds("50"),
        &[&format!(
            "{location}: \"50\" is not a rate; say in which time: write 50/s, 50/1m or 50/1h"
        )],
    );
    check(
        &bounds("3000000000/1s"),
        &[&format!(
            "{location}: \"3000000000/1s\" is too fast or too slow; write for example 50/s, or none"
        )],
    );
}

#[test]
fn five_mistakes_are_five_errors_with_five_lines() {
    let text = "version: 1
listeners: [{ address: 8080 }]
origins: { site: { servers: [127.0.0.1] } }
limits:
  writes: { tier: exact, rate: 60 per minute, key: client_ip }
routes:
  - name: webhook
    limits: [wirtes]
  - name: site
    orgin: site
";
    let found = errors(text);
    let lines: Vec<&str> = found.iter().map(|error| error.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["2", "3", "5", "8", "10"], "{found:#?}");
}

#[test]
fn errors_about_yaml_have_a_cure() {
    let refused = |rest: &str, words: &[&str]| {
        let found = errors(&format!("{HEAD}{rest}"));
        assert_eq!(found.len(), 1, "{rest}: {found:#?}");
        for word in words {
            assert!(found[0].contains(word), "{word} is not in {}", found[0]);
        }
    };
    refused("routes: [{ name: r, match: { host: *.example.com } }]\n", &["f:4:", "quote it"]);
    refused("routes: &all [{ name: r }]\n", &["f:4:9", "anchor"]);
    refused("routes: !tag [{ name: r }]\n", &["f:4:9", "tag"]);
    refused(
        "version: 1\nroutes: [{ name: r }]\n",
        &["f:4:1", "\"version\" is written twice", "line 1"],
    );
    refused("routes: [{ name: r }]\n---\nversion: 1\n", &["second document"]);
    refused("routes: [{ name: r }\n", &["f:"]);
    refused("routes:\n\t- name: r\n", &["f:"]);
    refused("clients: { trusted_proxies: [::1/128] }\nroutes: [{ name: r }]\n", &["f:4:"]);
}

#[test]
fn mistakes_in_policy_tests_have_locations() {
    let text = "cases:
  - name: a
    steps:
      - { at: 5s, send: { url: \"http://a/\" }, expect: { alowed: 1 } }
      - { at: 1s, times: 0, send: { url: \"http://a/\", answer: { status: 99 } }, expect: { allowed: 1 } }
      - { send: { method: \"G T\", url: \"http://a/\", ip: x, headers: { \"a b\": c } }, expect: { allowed: 1 } }
  - { name: b }
";
    let errors = config::read_cases(text, "c", Path::new("")).unwrap_err().lines();
    assert_eq!(
        errors,
        [
            "c:4:57: cases[0].steps[0].expect.alowed: unknown key \"alowed\"; did you mean \"allowed\"?",
            "c:5:26: cases[0].steps[1].times: \"0\" is not a whole number from 1 to 10000000",
            "c:5:73: cases[0].steps[1].send.answer.status: \"99\" is not a whole number from 100 to 599",
            "c:6:27: cases[0].steps[2].send.method: \"G T\" is not a method; write for example GET",
            "c:6:56: cases[0].steps[2].send.ip: \"x\" is not an address; write for example 192.0.2.7",
            "c:6:70: cases[0].steps[2].send.headers.a b: \"a b\" is not the name of a header; write it as x-api-key: TEXT",
            "c:7:5: cases[1]: steps is missing; write steps: [{ send: .., expect: .. }]",
        ]
    );
    let empty = config::read_cases("cases: []", "c", Path::new("")).unwrap_err().lines();
    assert_eq!(
        empty,
        [
            "c:1:8: cases: no case: nothing would be tested; write cases: [{ name: .., steps: [..] }]"
        ]
    );
}

#[test]
fn hostile_texts_are_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let mapped = "a: {".repeat(20_000);
    let bomb: String = (1..9).fold("a0: &a0 [x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| {
        let last = n - 1;
        text + &format!("a{n}: &a{n} [*a{last},*a{last},*a{last},*a{last},*a{last}]\n")
    });
    let long = "x".repeat((1 << 20) + 1);
    for text in [
        &deep,
        &mapped,
        &bomb,
        &long,
        "\0",
        "%YAML 9.9\n---\n",
        "? [a]\n: b\n",
        "- - - -",
        "{{{{",
        "\u{feff}",
        "|\n",
        ">\n x",
        "'",
        "\"\\x",
        "@",
        "`",
    ] {
        assert!(!errors(text).is_empty());
    }
}

#[test]
fn values_are_text_as_typed() {
    let policy =
        "routes: [{ name: r, match: { header: { x-key: 007, x-yes: yes, x-float: 1e3 } } }]\n";
    let loaded = config::read_text(&format!("{HEAD}{policy}"), "f", Path::new("")).unwrap();
    let conditions = &loaded.config.policy.routes[0].matches.values;
    let tests: Vec<String> =
        conditions.iter().map(|condition| condition.tests()[0].to_string()).collect();
    assert_eq!(tests, ["007", "yes", "1e3"]);
}

#[test]
fn warnings_have_a_code_and_can_be_silenced() {
    let policy = "clients: { address_header: x-forwarded-for }
limits:
  keyed: { tier: exact, rate: 5/s, key: header:x, missing_key: skip }
  unused: { tier: exact, rate: 5/s, key: client_ip }
  noisy: { tier: estimate, rate: 10/1h, key: client_ip, expect: { requests: 50000/s } }
routes:
  - { name: all, limits: [keyed] }
  - { name: never, match: { path: /x }, limits: [noisy] }
";
    let codes = |text: &str| -> Vec<&str> {
        let loaded = config::read_text(text, "f", Path::new("")).unwrap();
        loaded.warnings.iter().map(|warning| warning.code).collect()
    };
    assert_eq!(
        codes(&format!("{HEAD}{policy}")),
        [
            "address-header-untrusted",
            "unused-limit",
            "unused-limit",
            "estimate-noise",
            "spoofable-key",
            "unlimited-preflights",
            "unreachable-route"
        ]
    );
    let silenced = "check: { silence: [unused-limit, estimate-noise, unlimited-preflights] }\n";
    assert_eq!(
        codes(&format!("{HEAD}{policy}{silenced}")),
        ["address-header-untrusted", "spoofable-key", "unreachable-route"]
    );
    let by_name = policy.replace("header:x,", "tls_sni,");
    assert!(codes(&format!("{HEAD}{by_name}{silenced}")).contains(&"spoofable-key"));
    for everybody in ["0.0.0.0/0", "\"::/0\""] {
        let clients = format!("clients: {{ trusted_proxies: [10.0.0.0/8, {everybody}] }}");
        let text = format!("{HEAD}{clients}\nroutes: [{{ name: r }}]\n");
        let loaded = config::read_text(&text, "f", Path::new("")).unwrap();
        let [warning] = &loaded.warnings[..] else { panic!("{:?}", loaded.warnings) };
        assert_eq!((warning.code, &*warning.path), ("trusts-everybody", "clients"));
        assert!(warning.message.contains(everybody.trim_matches('"')), "{warning}");
        assert!(!warning.cure.is_empty());
    }
}

#[test]
fn x_forwarded_for_is_the_default_field_of_trusted_proxies() {
    let header = |clients: &str| {
        let text = format!("{HEAD}clients: {{ {clients} }}\nroutes: [{{ name: r }}]\n");
        config::read_text(&text, "f", Path::new("")).unwrap().config.clients.address_header
    };
    let real_ip = AddressHeader::Single(http::HeaderName::from_static("x-real-ip"));
    for (clients, expected) in [
        ("trusted_proxies: []", None),
        ("ipv6_prefix: 56", None),
        ("trusted_proxies: [10.0.0.0/8]", Some(AddressHeader::XForwardedFor)),
        ("trusted_proxies: 10.0.0.1", Some(AddressHeader::XForwardedFor)),
        ("trusted_proxies: [10.0.0.0/8], address_header: none", None),
        (
            "trusted_proxies: [10.0.0.0/8], address_header: forwarded",
            Some(AddressHeader::Forwarded),
        ),
        ("trusted_proxies: [10.0.0.0/8], address_header: X-Real-IP", Some(real_ip)),
    ] {
        assert_eq!(header(clients), expected, "{clients}");
    }
}

#[test]
fn words_of_the_bounds_are_known_or_refused_with_a_cure() {
    let read = |bounds: &str| {
        let text = format!("{HEAD}limits_of_this_proxy: {{ {bounds} }}\nroutes: [{{ name: r }}]\n");
        config::read_text(&text, "f", Path::new("")).map(|loaded| loaded.config.bounds)
    };
    let standard = read("").unwrap();
    assert_eq!(standard.underscores, Underscores::RejectAmbiguous);
    assert_eq!(standard.method_override, MethodOverride::Strip);
    for (word, expected) in [
        ("reject_ambiguous", Underscores::RejectAmbiguous),
        ("pass", Underscores::Pass),
        ("drop", Underscores::Drop),
    ] {
        assert_eq!(read(&format!("underscores: {word}")).unwrap().underscores, expected);
    }
    for (word, expected) in [
        ("reject", MethodOverride::Reject),
        ("strip", MethodOverride::Strip),
        ("pass", MethodOverride::Pass),
    ] {
        assert_eq!(read(&format!("method_override: {word}")).unwrap().method_override, expected);
    }
    for wrong in ["underscores: reject", "method_override: drop"] {
        let errors = read(wrong).unwrap_err().lines().join("\n");
        assert!(errors.contains("unknown word") && errors.contains("f:"), "{errors}");
        assert!(errors.contains("one of") || errors.contains("did you mean"), "{errors}");
    }
}

/// Warnings about the options of a limit, each with its cure.
#[test]
fn options_of_limits_have_warnings() {
    let codes = |limit: &str, used: &str| -> Vec<(&str, bool)> {
        let text = format!(
            "{HEAD}limits:\n  l: {{ tier: exact, rate: 50/s, {limit} }}
routes: [{{ name: r, limits: [{used}] }}]
check: {{ silence: [spoofable-key, unlimited-preflights, unused-limit] }}\n"
        );
        let loaded = config::read_text(&text, "f", Path::new(""));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let warnings = loaded.warnings.iter();
        warnings
            .map(|warning| (warning.code, !warning.message.is_empty() && !warning.cure.is_empty()))
            .collect()
    };
    let by_ip = "key: client_ip";
    let ban = "penalty: { after: 9, within: 1m, ban: 1m }";
    for (limit, used, code) in [
        ("plans: { by: header:x-plan, rates: { gold: 99/s } }", "l", "plan-untrusted"),
        ("rollout: 0%", "l", "rolled-out-to-nobody"),
        (
            "overrides: [{ network: 10.0.0.0/8, action: allow }, { network: 10.1.0.0/16, action: deny }]",
            "l",
            "shadowed-override",
        ),
        ("cost: 1", "{ limit: l, cost: { header: x-cost, max: 9 } }", "spoofable-cost"),
        (
            "cost: 1",
            "{ limit: l, cost: { response_header: x-used, reserve: 1, max: 99 } }",
            "overspend",
        ),
    ] {
        assert_eq!(codes(&format!("{by_ip}, {limit}"), used), [(code, true)], "{limit}");
    }
    assert_eq!(codes(&format!("key: route, {ban}"), "l"), [("shared-ban", true)]);
    let by_key = format!("key: header:x-key, missing_key: skip, {ban}");
    assert_eq!(codes(&by_key, "l"), [("spoofable-ban", true)]);
    // Anybody can send a server name, and all clients of a site send the same one.
    let by_name = format!("key: tls_sni, missing_key: skip, {ban}");
    assert_eq!(codes(&by_name, "l"), [("shared-ban", true), ("spoofable-ban", true)]);
    let by_both = format!("key: [header:x-key, tls_sni], missing_key: skip, {ban}");
    assert_eq!(codes(&by_both, "l"), [("spoofable-ban", true)]);
    assert_eq!(codes(&format!("{by_ip}, {ban}"), "l"), []);
}

/// No warning if one limit applies to preflights, or if the route receives none.
#[test]
fn a_route_whose_preflights_meet_no_limit_has_a_warning() {
    let warnings = |limits: &str, route: &str| -> Vec<String> {
        let text = format!(
            "{HEAD}limits:
  exact: {{ tier: exact, rate: 5/s, key: client_ip }}
  keyed: {{ tier: estimate, rate: 50/s, key: header:x, missing_key: skip }}
  watched: {{ tier: estimate, rate: 50/s, key: client_ip, mode: shadow }}
  floods: {{ tier: estimate, rate: 50/s, key: client_ip }}
routes: [{{ name: r, limits: [{limits}]{route} }}]\n"
        );
        let loaded = config::read_text(&text, "f", Path::new(""));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let about = loaded.warnings.iter().filter(|warning| warning.code == "unlimited-preflights");
        about
            .map(|warning| format!("{}: {} {}", warning.path, warning.message, warning.cure))
            .collect()
    };
    for (limits, route, expected) in [
        ("exact", "", true),
        ("exact, keyed", "", true),
        ("exact, watched", "", true),
        ("exact", ", match: { methods: [GET, OPTIONS] }", true),
        ("exact", ", responses: { exempt: [preflight] }", true),
        ("exact, floods", "", false),
        ("floods", "", false),
        ("watched", "", false),
        ("", "", false),
        ("exact", ", match: { methods: [GET, POST] }", false),
        ("exact", ", responses: { exempt: [acme] }", false),
        ("exact", ", responses: { exempt: [] }", false),
    ] {
        let warnings = warnings(limits, route);
        assert_eq!(warnings.len(), usize::from(expected), "{limits}{route}: {warnings:?}");
        let is_complete = |text: &String| {
            text.starts_with("routes[0]")
                && text.contains("\"r\"")
                && text.contains("exempt: [acme]")
        };
        assert!(warnings.iter().all(is_complete), "{warnings:?}");
    }
}

/// The bound is a limit that is judged before signatures and refuses a client that sends forged tokens.
#[test]
fn mistakes_about_tokens_are_named_with_their_cure() {
    for (keys, expected) in [
        ("jwks_url: \"https://a/k\", jwks_file: f", "write exactly one of jwks_file"),
        ("jwks_url: \"a/k\"", "jwks_url: this is no URL; write for example https://login"),
        ("jwks_url: \"https://a b/\"", "jwks_url: this is no URL"),
        ("jwks_url: \"ftp://a/k\"", "keys are fetched over https"),
        ("jwks_url: \"http://a.example/k\"", "over http anyone on the way could put in other keys"),
        ("jwks_url: \"http://127.0.0.1.nip.io/k\"", "over http anyone on the way"),
        ("jwks_url: \"http://localhost.example/k\"", "over http anyone on the way"),
        ("jwks_url: \"http://192.0.2.1/k\"", "over http anyone on the way"),
        ("jwks_url: \"https://u:p@a/k\"", "a URL of public keys has no user"),
        ("jwks_url: \"https://a/k#x\"", "a fragment is never sent"),
        ("jwks_url: \"https://a:0/k\"", "the URL names no server"),
        (
            "jwks_url: \"http://[::1]:8/k\", jwks_ca_file: f",
            "jwks_ca_file: there is no TLS to check",
        ),
        (
            "jwks_url: \"https://a/k\", jwks_ca_file: nowhere",
            "nowhere: No such file or directory (os error 2); create it",
        ),
        (
            "jwks_url: \"https://a/k\", on_keys_failure: allow",
            "unknown word \"allow\"; one of deny, absent",
        ),
        (
            "jwks_url: \"https://a/k\", algorithms: [HS256]",
            "these keys are never for HS256; public keys are for",
        ),
        (
            "jwks_url: \"https://a/k\", algorithms: [RS512, ES512]",
            "algorithms[1]: ES512 is not supported; write some of RS256, RS384, RS512, PS256",
        ),
        (
            "secret_file: keys/secret, algorithms: HS512",
            "HS512 is not supported; a secret is for HS256 alone",
        ),
        ("jwks_url: \"https://a/k\", algorithms: none", "unknown word \"none\""),
        ("jwks_url: \"https://a/k\", algorithms: []", "no algorithm: no token would be believed"),
        (
            "secret_file: keys/secret, algorithms: RS256",
            "these keys are never for RS256; a secret is for HS256 alone",
        ),
        ("jwks_file: keys/rotated.json, algorithms: RS256", "has no key for one of the algorithms"),
        (
            "secret_file: keys/secret, on_keys_failure: deny",
            "on_keys_failure: only a set at a URL has it",
        ),
        ("secret_file: keys/secret, jwks_ca_file: f", "jwks_ca_file: only a set at a URL has it"),
        ("secret_file: keys/secret, issuer: \"\"", "issuer: "),
        ("secret_file: keys/secret, audience: []", "0 audiences; write 1 to 16"),
        ("secret_file: keys/secret, leeway: 6m", "is not a whole number of seconds up to 5m"),
        ("secret_file: keys/secret, leeway: 500ms", "is not a whole number of seconds up to 5m"),
        (
            "secret_file: keys/secret, from: bearer",
            "a token cannot be read from \"bearer\"; one of authorization",
        ),
        ("secret_file: keys/secret, from: \"header:authorization\"", "write authorization"),
        ("secret_file: keys/secret, from: \"header:Cookie\"", "write cookie:NAME"),
        ("secret_file: keys/secret, from: \"header:a b\"", "is not the name of a header"),
        ("secret_file: keys/secret, from: \"cookie:a b\"", "a token cannot be read from"),
        ("secret_file: keys/secret, isuer: a", "unknown key \"isuer\"; did you mean \"issuer\"?"),
    ] {
        let text = format!(
            "{HEAD}limits:\n  l: {{ tier: exact, rate: 5/s, key: {{ jwt: {{ {keys}, claim: sub }} }}, \
             missing_key: skip }}\n{ROUTE}"
        );
        let errors = config::read_text(&text, "f", Path::new("tests/policies"));
        let errors = errors.map(drop).unwrap_err().lines().join("\n");
        assert!(errors.contains(expected), "{keys}: {errors}");
    }
    let sets: Vec<String> = (0..17)
        .map(|n| {
            let jwt = format!("{{ jwks_url: \"https://a/{n}\", claim: sub }}");
            format!(
                "  l{n}: {{ tier: exact, rate: 5/s, key: {{ jwt: {jwt} }}, missing_key: skip }}"
            )
        })
        .collect();
    let found = errors(&format!("{HEAD}limits:\n{}\n{ROUTE}", sets.join("\n")));
    assert!(found.join("\n").contains("more than 16 sets of keys at URLs"), "{found:?}");
}

#[test]
fn tokens_of_a_provider_have_warnings_of_their_own() {
    let warnings = |keys: &str, missing: &str| -> Vec<&'static str> {
        let url = "jwks_url: \"https://a/k\", claim: sub";
        let text = format!(
            "{HEAD}limits:\n  l: {{ tier: exact, rate: 5/s, key: {{ jwt: {{ {url}{keys} }} }}, \
             missing_key: {missing} }}\n{ROUTE}"
        );
        let loaded = config::read_text(&text, "f", Path::new("")).unwrap();
        let codes = loaded.warnings.iter().map(|warning| warning.code);
        codes.filter(|code| matches!(*code, "any-audience" | "outage-as-missing-key")).collect()
    };
    let absent = ", audience: a, on_keys_failure: absent";
    assert_eq!(warnings("", "skip"), ["any-audience"]);
    assert_eq!(warnings(", audience: a", "deny"), [""; 0]);
    assert_eq!(warnings(absent, "{ deny: 401 }"), ["outage-as-missing-key"]);
    assert_eq!(warnings(absent, "client_ip"), [""; 0]);
}

#[test]
fn sets_of_keys_are_named_without_their_query() {
    let set = |n: usize, url: &str| {
        let jwt = format!("{{ jwks_url: \"{url}\", claim: sub }}");
        format!("  l{n}: {{ tier: exact, rate: 5/s, key: {{ jwt: {jwt} }}, missing_key: skip }}\n")
    };
    let urls =
        ["https://a/k?t=1", "https://a/k?t=2", "https://A/k?t=1", "https://a:8/", "https://b"];
    let all: String = urls.iter().enumerate().map(|(n, url)| set(n, url)).collect();
    let loaded = config::read_text(&format!("{HEAD}limits:\n{all}{ROUTE}"), "f", Path::new(""));
    let sets = loaded.unwrap().config.policy.key_sets;
    let names: Vec<&str> = sets.iter().map(|set| set.name()).collect();
    assert_eq!(names, ["a/k", "a/k#2", "a:8/", "b/"]);
}

#[test]
fn a_route_that_checks_tokens_without_a_bound_has_a_warning() {
    let jwt = |claim: &str| format!("{{ jwt: {{ secret_file: keys/secret, claim: {claim} }} }}");
    let (sub, plan) = (jwt("sub"), jwt("plan"));
    let warnings = |limits: &str| -> usize {
        let text = format!(
            "{HEAD}limits:
  key: {{ tier: exact, rate: 5/s, key: {sub}, missing_key: {{ limit: guests }} }}
  chain: {{ tier: exact, rate: 5/s, key: header:x, missing_key: {{ limit: key }} }}
  plan: {{ tier: exact, rate: 5/s, key: client_ip, plans: {{ by: {plan}, rates: {{ gold: 9/s }} }} }}
  guests: {{ tier: exact, rate: 5/s, key: client_ip }}
  own: {{ tier: estimate, rate: 50/s, key: [client_ip, route] }}
  watched: {{ tier: estimate, rate: 50/s, key: client_ip, mode: shadow }}
  counted: {{ tier: exact, rate: 50/s, key: client_ip, count: {{ status: [401] }} }}
  partly: {{ tier: exact, rate: 50/s, key: client_ip, rollout: 50% }}
  pages: {{ tier: exact, rate: 50/s, key: [client_ip, path] }}
  flying: {{ tier: exact, max_in_flight: 5, key: client_ip }}
  late: {{ tier: exact, rate: 50/s, key: client_ip, cost: {{ response_header: c, reserve: 1, max: 2 }} }}
routes: [{{ name: r, limits: [{limits}] }}]\n"
        );
        let loaded = config::read_text(&text, "f", Path::new("tests/policies"));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let about =
            loaded.warnings.iter().filter(|warning| warning.code == "unlimited-token-checks");
        about
            .filter(|warning| warning.path == "routes[0]" && warning.cure.contains("client_ip"))
            .count()
    };
    for unbounded in ["key", "chain", "plan", "plan, key"] {
        assert_eq!(warnings(unbounded), 1, "{unbounded}");
        for bound in ["guests", "own"] {
            assert_eq!(warnings(&format!("{unbounded}, {bound}")), 0, "{unbounded}, {bound}");
        }
        for other in ["watched", "partly", "counted", "pages", "flying", "late"] {
            assert_eq!(warnings(&format!("{unbounded}, {other}")), 1, "{unbounded}, {other}");
        }
    }
    assert_eq!(warnings("guests, watched"), 0);
}

fn files() -> Vec<PathBuf> {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let listed =
        |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all = ["examples", "compose", "."].into_iter().flat_map(|folder| listed(conf.join(folder)));
    let is_policy = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.ends_with(".yaml") && !name.ends_with(".test.yaml")
    };
    all.filter(is_policy).collect()
}

#[test]
fn every_file_of_conf_is_valid_and_raises_no_warning() {
    let files = files();
    assert!(files.len() >= 5);
    for file in files {
        let loaded = config::load(&file).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tollgate.yaml");
    let config = config::load(&file).unwrap().config;
    assert_eq!((config.bounds.header_size, config.bounds.discard_bytes), (32_768, 65_536));
    assert_eq!((config.policy.max_keys, config.clients.ipv6_prefix), (1_000_000, 64));
    assert_eq!(
        (&config.access_log.to, &config.default_responses.bodies[0]),
        (&LogTarget::Stdout, &RefusalBody::Problem)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Cut, doubled, swapped and overwritten bytes: an error or a policy, never a panic.
    #[test]
    fn no_text_panics(edits in proptest::collection::vec((0usize..4_000, 0usize..40, 0u8..4, any::<char>()), 1..12)) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tollgate.yaml");
        let mut text: Vec<char> = std::fs::read_to_string(file).unwrap().chars().collect();
        for (at, length, kind, other) in edits {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            match kind {
                0 => drop(text.drain(at..end)),
                1 => { let copy = text[at..end].to_vec(); text.splice(at..at, copy); }
                2 => text.insert(at, other),
                _ => text[at..end].reverse(),
            }
        }
        let text: String = text.into_iter().collect();
        let _ = config::read_text(&text, "f", Path::new("/nonexistent"));
    }
}

/// Certificates that do not belong together, and listeners whose clients would choose whether they are asked.
#[test]
fn certificates_of_clients_and_for_origins_are_checked_in_their_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        support::certificates::pair(name).write(folder.path(), name);
    }
    std::fs::write(folder.path().join("empty.pem"), "nothing").unwrap();
    let check = |listener: &str, origin: &str, expected: &[&str]| {
        let text = format!(
            "version: 1\nlisteners:\n  - address: 127.0.0.1:1\n    tls: {listener}\norigins:\n  site:\n    servers: [127.0.0.1:1]\n    tls: {{ sni: a{origin} }}\nroutes: [{{ name: r }}]\n"
        );
        let found = match config::read_text(&text, "f", folder.path()) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.lines(),
        };
        assert_eq!(found.len(), expected.len(), "{listener} {origin}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            let found = found.replace(folder.path().to_str().unwrap(), "F");
            assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
        }
    };
    let pair = "certificate: a.crt, private_key: a.key";
    let one = format!("{{ {pair} }}");
    let asks = format!("{{ {pair}, client_ca: b.crt }}");
    check(&one, "", &[]);
    check(&asks, ", ca_file: b.crt, certificate: b.crt, private_key: b.key", &[]);
    check(&format!("[{asks}, {asks}]"), "", &[]);
    check(
        &format!("[{asks}, {one}]"),
        "",
        &[
            "f:4:10: listeners[0].tls: client_ca differs between the pairs of one listener; name the same",
        ],
    );
    for (file, why) in
        [("empty.pem", "F/empty.pem: holds no certificate"), ("none.pem", "F/none.pem: ")]
    {
        let listener = format!("{{ {pair}, client_ca: {file} }}");
        check(&listener, "", &[&format!("f:4:63: listeners[0].tls.client_ca: {why}")]);
    }
    check(
        &one,
        ", certificate: a.crt, private_key: b.key",
        &[
            "f:8:53: origins.site.tls.private_key: F/b.key: is not the key of the certificate in F/a.crt",
        ],
    );
    check(
        &one,
        ", certificate: a.crt",
        &["f:8:10: origins.site.tls: a certificate without its key; write private_key: client.key"],
    );
    check(
        &one,
        ", private_key: a.key",
        &["f:8:10: origins.site.tls: a key without its certificate; write certificate: client.crt"],
    );
}

#[test]
fn the_name_of_a_client_has_a_kind() {
    let limit = |key: &str| {
        format!(
            "{HEAD}limits:\n  l: {{ tier: exact, rate: 1/s, key: tls_client, missing_key: deny, overrides: [{{ key: \"{key}\", action: deny }}] }}\nroutes: [{{ name: r, limits: [l] }}]\n"
        )
    };
    assert_eq!(errors(&limit("dns:a.internal")), Vec::<String>::new());
    for key in ["a.internal", "DNS:a", "dns:", "ip:a"] {
        let found = errors(&limit(key));
        let expected = format!("{key:?} names no certificate; begin it with one of uri:, dns:, ");
        assert!(matches!(&found[..], [only] if only.contains(&expected)), "{key}: {found:#?}");
    }
    let codes: Vec<&str> = config::read_text(&limit("dns:a"), "f", Path::new(""))
        .unwrap()
        .warnings
        .iter()
        .map(|warning| warning.code)
        .collect();
    assert!(codes.contains(&"clients-not-asked"), "{codes:?}");
    let missing = limit("dns:a").replace(", missing_key: deny", "");
    assert!(errors(&missing)[0].contains("missing_key is missing"), "{:?}", errors(&missing));
}

/// What a key reads of a connection counts only where the listeners of its routes have it.
#[test]
fn keys_of_connections_are_looked_for_at_the_listeners_of_their_routes() {
    let folder = tempfile::tempdir().unwrap();
    support::certificates::pair("a").write(folder.path(), "a");
    let codes = |matches: &str, key: &str| -> Vec<String> {
        let text = format!(
            "version: 1
check: {{ silence: [unlimited-preflights, spoofable-key] }}
listeners:
  - {{ name: plain, address: 127.0.0.1:1 }}
  - {{ name: tls, address: 127.0.0.1:2, tls: {{ certificate: a.crt, private_key: a.key }} }}
  - {{ name: asks, address: 127.0.0.1:3, tls: {{ certificate: a.crt, private_key: a.key, client_ca: a.crt }} }}
origins: {{ s: {{ servers: [127.0.0.1:9] }} }}
limits: {{ l: {{ tier: exact, rate: 5/s, key: {key}, missing_key: skip }} }}
routes: [{{ name: r, {matches}limits: [l] }}]
"
        );
        let loaded = config::read_text(&text, "f", folder.path());
        let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let codes = loaded.warnings.iter().map(|warning| warning.code.to_owned());
        codes.filter(|code| !code.starts_with("certificate-")).collect()
    };
    let none: [&str; 0] = [];
    for (matches, key, expected) in [
        ("", "tls_client", &none[..]),
        ("match: { listener: asks }, ", "tls_client", &none),
        ("match: { listener: [plain, tls] }, ", "tls_client", &["clients-not-asked"]),
        ("match: { not: { listener: asks } }, ", "[client_ip, tls_client]", &["clients-not-asked"]),
        ("", "tls_sni", &none),
        ("match: { listener: tls }, ", "tls_sni", &none),
        ("match: { listener: plain }, ", "tls_sni", &["unused-limit"]),
    ] {
        assert_eq!(codes(matches, key), expected, "{matches} {key}");
    }
}

/// Costs that cannot be read are refused at their route: trailers of an origin of HTTP/1, and what a library does not see.
#[test]
fn costs_that_cannot_be_read_are_refused() {
    let policy = |http: u8, cost: &str| {
        format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ s: {{ servers: [127.0.0.1:2], http: {http} }} }}
limits: {{ l: {{ tier: exact, rate: 5/s, key: client_ip, cost: {{ {cost}, reserve: 1, max: 9 }} }} }}
routes:
  - {{ name: r, limits: [l] }}
"
        )
    };
    let errors = |config_use, text: &str| match config::read_text_for(
        config_use,
        text,
        "f",
        Path::new(""),
    ) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.lines(),
    };
    let trailer = "response_trailer: x-used";
    assert_eq!(errors(config::ConfigUse::Proxy, &policy(2, trailer)), [""; 0]);
    assert_eq!(
        errors(config::ConfigUse::Proxy, &policy(1, trailer)),
        [
            "f:6:5: routes[0]: the cost of limit \"l\" is in a trailer, and trailers of HTTP/1 are not read; write http: 2 at the origin, or use response_header or response_body"
        ]
    );
    assert_eq!(errors(config::ConfigUse::Plugin, &policy(1, "response_header: x-used")), [""; 0]);
    for cost in [trailer, "response_body: /n"] {
        let found = errors(config::ConfigUse::Plugin, &policy(2, cost));
        assert!(
            found.len() == 1
                && found[0].contains(
                    "which a limiter inside another server does not read; use response_header"
                ),
            "{found:?}"
        );
    }
}
