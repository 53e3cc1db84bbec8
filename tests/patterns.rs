//! Patterns on values that clients choose: what is remembered within a request changes no decision, and no value makes
//! the patterns of a policy read without end.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tollgate::clock::{ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Engine, Generation, Outcome};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConditionResults, ConnectionFacts, Facts, KeySecret};

const HEAD: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
check: { silence: [spoofable-key] }
";

fn engine(policy: &str) -> (Engine, Generation) {
    let text = format!("{HEAD}{policy}");
    let loaded = config::read_text(&text, "patterns.yaml", Path::new(""));
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let engine = Engine::new(Arc::new(ManualClock::new(Nanos::ZERO)), KeySecret::new([1; 16]));
    let generation = engine.generation(loaded.config.policy, None).0;
    (engine, generation)
}

fn facts<'r>(
    headers: &'r HeaderMap,
    readings: &'r [String],
    conditions: Option<&'r ConditionResults>,
) -> Facts<'r> {
    Facts {
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false },
        connection: &ConnectionFacts::NONE,
        now: Nanos::ZERO,
        method: "GET",
        host: "a",
        path: "/a",
        readings,
        query: Some("q=bot"),
        headers,
        conditions,
    }
}

fn agent(value: &[u8]) -> HeaderMap {
    let value = HeaderValue::from_bytes(value).unwrap();
    HeaderMap::from_iter([(http::header::USER_AGENT, value)])
}

/// What a request with this agent comes to, as the proxy judges it.
fn outcome(engine: &Engine, generation: &Generation, value: &[u8]) -> Outcome {
    let (headers, conditions) = (agent(value), ConditionResults::default());
    let readings: Vec<String> = (0..24).map(|n| format!("/a{n}")).collect();
    engine.decide_now(generation, &facts(&headers, &readings, Some(&conditions))).0.outcome
}

/// So many routes, each with a pattern in which `N` is the number of the route; then one for everything else.
fn routes(pattern: &str, count: usize) -> (Engine, Generation) {
    let mut policy = "routes:\n".to_owned();
    for n in 0..count {
        let pattern = pattern.replace('N', &n.to_string());
        let matches = format!("{{ header: {{ user-agent: {{ regex: '{pattern}' }} }} }}");
        writeln!(policy, "  - {{ name: r{n}, match: {matches} }}").unwrap();
    }
    policy.push_str("  - { name: rest }\n");
    engine(&policy)
}

/// Every state of the automaton remembers twenty bytes, so such a value needs more states than the automaton may have.
#[test]
fn a_value_that_makes_all_patterns_read_it_is_unreadable() {
    let (engine, generation) = routes("[ab]N[^N]{20}x", 500);
    let mut draw = fastrand::Rng::with_seed(1);
    let hostile: Vec<u8> = (0..30_000).map(|_| draw.choice(*b"ab0123456789").unwrap()).collect();
    assert_eq!(outcome(&engine, &generation, &hostile), Outcome::UnreadableCondition);
    assert_eq!(outcome(&engine, &generation, b"Mozilla/5.0"), Outcome::Allowed);
}

/// A long value alone is no reason to refuse it, and a byte that is not ASCII is none either.
#[test]
fn long_values_and_foreign_letters_are_read() {
    let (engine, generation) = routes(r"(?i)\bbotN\b", 500);
    for value in ["bo".repeat(15_000), "bot\u{e9}".repeat(6_000), "naïve bot7".to_owned()] {
        assert_eq!(outcome(&engine, &generation, value.as_bytes()), Outcome::Allowed);
    }
}

/// A policy that refuses the class of agents that pass one of so many tests, in which `N` is the number of the test.
fn denied_class(test: &str, count: usize) -> (Engine, Generation) {
    let list: Vec<String> = (0..count).map(|n| test.replace('N', &n.to_string())).collect();
    let policy = format!(
        "classes: {{ words: {{ header: {{ user-agent: [{}] }} }} }}\n\
         limits: {{ l: {{ tier: exact, rate: 99/s, key: client_ip, overrides: [{{ class: words, action: deny }}] \
         }} }}\nroutes: [{{ name: a, limits: [l] }}]\n",
        list.join(", ")
    );
    engine(&policy)
}

fn assert_unreadable(outcome: Outcome) {
    assert_eq!(outcome, Outcome::UnreadableCondition);
}

const AGENT: &[u8] = b"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/124.0.0.0 Safari/537.36 Edg/124.0.2478.97 an app of version 1.2.3.4, build 7788, channel beta; de-DE";

/// Random letters that a counted repetition keeps in play for 300 bytes.
fn letters(length: usize) -> Vec<u8> {
    let mut draw = fastrand::Rng::with_seed(1);
    (0..length).map(|_| draw.choice(*b"abx").unwrap()).collect()
}

/// Each byte costs hundreds of steps, so bytes alone do not bound what such a pattern costs.
#[test]
fn counted_repetitions_are_counted_as_what_they_cost() {
    for count in [1, 30] {
        let (engine, generation) = denied_class("{ regex: '(?i)(a|b)[^;]{0,300}x[0-9N]' }", count);
        // It has the text that a match contains, where it makes no match.
        let hostile = [b"x7".to_vec(), letters(30_000)].concat();
        assert_unreadable(outcome(&engine, &generation, &hostile));
        assert_eq!(outcome(&engine, &generation, AGENT), Outcome::Allowed);
        let matching = [letters(100), b"x7".to_vec()].concat();
        assert_eq!(outcome(&engine, &generation, &matching), Outcome::Limited);
    }
    let (engine, generation) = denied_class("{ regex: '(?i)(a|b)[^;]{0,300}xNy' }", 250);
    assert_eq!(outcome(&engine, &generation, AGENT), Outcome::Allowed);
}

/// An ordinary value is read also by a policy whose automata are new.
#[test]
fn hundreds_of_patterns_read_an_ordinary_value() {
    for test in [
        r"{ regex: '(?i)\bbotN\b' }",
        "{ regex: '^[a-z]{3}[0-9]{2}N' }",
        "{ regex: '[a-z]{3}[^a-z]{2,5}qN' }",
        "{ regex: '[a-z]{3}[0-9]{2}[A-ZN]' }",
        "{ contains: botN }",
        "{ suffix: botN }",
    ] {
        let (engine, generation) = denied_class(test, 250);
        for _ in 0..3 {
            assert_eq!(outcome(&engine, &generation, AGENT), Outcome::Allowed, "{test}");
        }
    }
}

/// A thousand names in conditions do not make a query be read a thousand times; every value of a name is counted.
#[test]
fn parameters_and_cookies_are_read_within_the_budget() {
    let engine_of = |subject: &str, test: &str, count: usize| {
        let mut policy = "routes:\n".to_owned();
        for n in 0..count {
            let (name, test) = (format!("name{n}"), test.replace('N', &n.to_string()));
            writeln!(policy, "  - {{ name: r{n}, match: {{ {subject}: {{ {name}: {test} }} }} }}")
                .unwrap();
        }
        policy.push_str("  - { name: rest }\n");
        engine(&policy)
    };
    let outcome = |(engine, generation): &(Engine, Generation), query: &str, cookie: &str| {
        let (mut headers, conditions) = (HeaderMap::new(), ConditionResults::default());
        headers.insert(http::header::COOKIE, HeaderValue::from_str(cookie).unwrap());
        let readings: Vec<String> = (0..24).map(|n| format!("/a{n}")).collect();
        let facts = Facts { query: Some(query), ..facts(&headers, &readings, Some(&conditions)) };
        engine.decide_now(generation, &facts).0.outcome
    };
    let ordinary: String = (0..20).map(|n| format!("name{n}=value{n}&")).collect();
    let cookies: String = (0..12).map(|n| format!("name{n}={}; ", "v".repeat(60))).collect();
    for subject in ["query", "cookie"] {
        let names = engine_of(subject, "abc", 1_000);
        assert_eq!(outcome(&names, &ordinary, &cookies), Outcome::Allowed);
        assert_eq!(outcome(&names, &"&".repeat(30_000), &";".repeat(30_000)), Outcome::Allowed);
        let patterns = engine_of(subject, "{ regex: 'N$' }", 60);
        assert_eq!(outcome(&patterns, &ordinary, &cookies), Outcome::Allowed);
    }
    let list: Vec<String> = (0..60).map(|n| format!("{{ regex: '[a-z]{n}$' }}")).collect();
    let of_list = engine_of("query", &format!("[{}]", list.join(", ")), 1);
    assert_eq!(outcome(&of_list, &"name0&".repeat(5_000), "a=b"), Outcome::UnreadableCondition);
    assert_eq!(outcome(&of_list, &"name0&".repeat(50), "a=b"), Outcome::Allowed);
}

/// Below the number of routes from which patterns are combined, and in lists of a condition, each is asked alone.
#[test]
fn patterns_that_are_not_combined_share_the_budget() {
    let (engine, generation) = denied_class("{ regex: 'x[0-9]Ny' }", 200);
    assert_eq!(outcome(&engine, &generation, &[b'a'; 4_000]), Outcome::Allowed);
    assert_eq!(outcome(&engine, &generation, b"a x07y"), Outcome::Limited);
    assert_unreadable(outcome(&engine, &generation, &[b'a'; 30_000]));
    // A single text is found so fast that it hardly counts.
    let (engine, generation) = denied_class("{ regex: 'xNy' }", 200);
    assert_eq!(outcome(&engine, &generation, &[b'a'; 30_000]), Outcome::Allowed);
}

/// Thousands of texts in lists are looked for at once, so that long values are read by a policy that has them.
#[test]
fn long_lists_of_texts_read_long_values() {
    let class = |test: &str, class: usize| {
        let list: Vec<String> =
            (0..250).map(|n| test.replace('N', &format!("{class}-{n}"))).collect();
        format!("  c{class}: {{ header: {{ user-agent: [{}] }} }}\n", list.join(", "))
    };
    for test in ["{ contains: spamN.example }", "{ prefix: spamN }", "{ suffix: spamN }"] {
        let classes: String = (0..28).map(|n| class(test, n)).collect();
        let names: Vec<String> = (0..28).map(|n| format!("c{n}")).collect();
        let (engine, generation) = engine(&format!(
            "classes:\n{classes}routes:\n  - {{ name: spam, match: {{ class: [{}] }} }}\n  - {{ name: rest }}\n",
            names.join(", ")
        ));
        assert_eq!(outcome(&engine, &generation, &[b'a'; 30_000]), Outcome::Allowed, "{test}");
    }
}

/// The last of sixty thousand customers is found, for each limit that counts by class.
#[test]
fn long_lists_of_keys_are_compared_by_hash() {
    let class = |class: usize| {
        let keys: Vec<String> = (0..200).map(|n| format!("k{class}-{n}")).collect();
        format!("  c{class}: {{ header: {{ user-agent: [{}] }} }}\n", keys.join(", "))
    };
    let classes: String = (0..300).map(class).collect();
    let limit =
        |n| format!("  l{n}: {{ tier: exact, rate: 2/1h, key: class, missing_key: client_ip }}\n");
    let limits: String = (0..5).map(limit).collect();
    let (engine, generation) = engine(&format!(
        "classes:\n{classes}limits:\n{limits}routes: [{{ name: r, limits: [l0, l1, l2, l3, l4] }}]\n"
    ));
    for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Limited] {
        assert_eq!(outcome(&engine, &generation, b"k299-199"), expected);
    }
    assert_eq!(outcome(&engine, &generation, b"k0-0"), Outcome::Allowed, "another class");
    assert_eq!(outcome(&engine, &generation, b"none"), Outcome::Allowed);
}

/// A thousand classes, each with one text, in overrides of three limits.
fn classes_of_one_text(test: &str) -> (Engine, Generation) {
    let class = |n| {
        format!(
            "  c{n}: {{ header: {{ user-agent: {} }} }}\n",
            test.replace('N', &format!("{n:03}"))
        )
    };
    let classes: String = (0..1_000).map(class).collect();
    let overrides: Vec<String> =
        (0..1_000).map(|n| format!("{{ class: c{n}, action: deny }}")).collect();
    let overrides = overrides.join(", ");
    let limit = |n| {
        format!("  l{n}: {{ tier: exact, rate: 99/s, key: client_ip, overrides: [{overrides}] }}\n")
    };
    let limits: String = (0..3).map(limit).collect();
    engine(&format!(
        "classes:\n{classes}limits:\n{limits}routes: [{{ name: r, limits: [l0, l1, l2] }}]\n"
    ))
}

/// What is compared is counted, for every class and every line, but once for all limits. Short texts are never too much,
/// however long the value is; long ones are, against many lines that are made for them.
#[test]
fn texts_are_compared_within_the_budget() {
    for test in ["appN", "{ prefix: appN }", "{ suffix: appN }"] {
        let (engine, generation) = classes_of_one_text(test);
        assert_eq!(outcome(&engine, &generation, &[b'a'; 30_000]), Outcome::Allowed, "{test}");
        assert_eq!(outcome(&engine, &generation, b"app999"), Outcome::Limited, "{test}");
    }
    let long = "a".repeat(300);
    let (engine, generation) = classes_of_one_text(&format!("'{long}N'"));
    let of_lines = |length: usize, lines: usize| {
        let (mut headers, conditions) = (HeaderMap::new(), ConditionResults::default());
        let line = HeaderValue::from_bytes(&[b'a'].repeat(length)).unwrap();
        for _ in 0..lines {
            headers.append(http::header::USER_AGENT, line.clone());
        }
        engine.decide_now(&generation, &facts(&headers, &[], Some(&conditions))).0.outcome
    };
    assert_unreadable(of_lines(303, 90));
    assert_eq!(of_lines(303, 20), Outcome::Allowed);
    assert_eq!(of_lines(304, 90), Outcome::Allowed, "no text has the length");
}

const TESTS: [&str; 8] = [
    "bot",
    "present",
    "absent",
    "{ prefix: b }",
    "{ suffix: t }",
    "{ contains: o }",
    r"{ regex: '\bbot\b' }",
    "{ regex: '[a-c]t?$' }",
];
const VALUES: [&str; 6] = ["bot", "a bot", "boat", "c", "", "bot\u{e9}"];
const PATHS: [&str; 3] = ["/**", "/a", "/b/**"];

/// A condition, by indices.
#[derive(Clone, Debug)]
struct Conditions {
    subject: usize,
    test: usize,
    path: usize,
    is_excluded: bool,
}

fn conditions() -> impl Strategy<Value = Conditions> {
    (0..3_usize, 0..TESTS.len(), 0..PATHS.len(), any::<bool>()).prop_map(
        |(subject, test, path, is_excluded)| Conditions { subject, test, path, is_excluded },
    )
}

impl Conditions {
    fn yaml(&self) -> String {
        let test = TESTS[self.test];
        let own = match self.subject {
            0 => format!("header: {{ user-agent: {test} }}"),
            1 => format!("query: {{ q: {test} }}"),
            _ => format!("cookie: {{ c: {test} }}"),
        };
        let path = PATHS[self.path];
        match self.is_excluded {
            true => format!("path: {path}, not: {{ {own} }}"),
            false => format!("path: {path}, {own}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What is remembered equals what would be found again, under each reading of the path and in every use.
    #[test]
    fn what_is_remembered_changes_no_decision(
        routes in proptest::collection::vec(conditions(), 1..14),
        classes in proptest::collection::vec(conditions(), 3),
        agents in proptest::collection::vec(0..VALUES.len(), 0..3),
        cookie in 0..VALUES.len(),
        readings in proptest::sample::subsequence(vec!["/a", "/b/c", "/d"], 0..3),
    ) {
        let mut policy = "classes:\n".to_owned();
        for (index, class) in classes.iter().enumerate() {
            writeln!(policy, "  c{index}: {{ {} }}", class.yaml()).unwrap();
        }
        policy.push_str(
            "limits: { l: { tier: exact, rate: 1/s, key: class, missing_key: client_ip, \
             overrides: [{ class: c0, action: deny }, { class: c1, action: allow }] } }\nroutes:\n",
        );
        for (index, route) in routes.iter().enumerate() {
            let class = if index % 3 == 0 { ", class: c2" } else { "" };
            writeln!(policy, "  - {{ name: r{index}, match: {{ {}{class} }}, limits: [l] }}", route.yaml()).unwrap();
        }
        let (engine, generation) = engine(&policy);
        let mut headers = HeaderMap::new();
        for agent in agents {
            headers.append(http::header::USER_AGENT, HeaderValue::from_bytes(VALUES[agent].as_bytes()).unwrap());
        }
        let cookie = format!("c={}", VALUES[cookie]);
        headers.insert(HeaderName::from_static("cookie"), HeaderValue::from_bytes(cookie.as_bytes()).unwrap());
        let readings: Vec<String> = readings.into_iter().map(str::to_owned).collect();
        let remembered = ConditionResults::default();
        let anew = facts(&headers, &readings, None);
        let with_memory = facts(&headers, &readings, Some(&remembered));
        prop_assert_eq!(generation.policy().find(&anew), generation.policy().find(&with_memory));
        let first = engine.decide_now(&generation, &anew).0;
        let again = Engine::new(Arc::new(ManualClock::new(Nanos::ZERO)), KeySecret::new([1; 16]));
        let second = again.decide_now(&generation, &with_memory).0;
        prop_assert_eq!((first.outcome, first.route), (second.outcome, second.route));
    }
}
