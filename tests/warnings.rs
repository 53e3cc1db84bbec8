//! Warnings about routes and limits that nothing reaches, against a search through every request of a small world.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tollgate::clock::Nanos;
use tollgate::config::{LoadedConfig, read_text};
use tollgate::policy::client::RequestClient;
use tollgate::policy::key::KeyPart;
use tollgate::policy::{
    ConnectionFacts, Facts, KeySpec, Limit, LimitIndex, Mismatch, MissingKey, OverrideAction,
    OverrideTarget, Policy, RequestMatch, Route, Source,
};

const HOSTS: &[&str] = &["a.test", "b.test", "x.b.test", "q.test", "other"];
const HOST_PATTERNS: &[&str] = &["a.test", "b.test", "\"*.test\"", "\"*.b.test\""];
/// The segments that the paths of the world are made of.
const SEGMENTS: [&str; 4] = ["a", "b", "c", "x.png"];
const PATH_PATTERNS: &[&str] =
    &["/", "/a", "/a/", "/a/*", "/a/**", "/**", "/*/b", "/a/**/b", "/**/*.png", "/a/*.png", "/*"];
const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT"];
const VALUES: &[&str] = &["a", "ab", "az", "b", "bz", "xb", "z"];
const TESTS: &[&str] = &[
    "a",
    "b",
    "present",
    "absent",
    "[a, b]",
    "{ prefix: a }",
    "{ suffix: b }",
    "{ contains: b }",
    "[absent, b]",
];
const CLIENTS: &[&str] = &["10.1.0.1", "10.0.0.1", "192.0.2.1", "::1", "2001:db8::1"];
const NETWORKS: &[&str] =
    &["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "\"::/0\"", "\"2001:db8::/32\""];

/// Some conditions, as YAML in braces.
fn conditions(with_classes: bool, depth: u32) -> BoxedStrategy<String> {
    let list = |key: &'static str, items: &'static [&'static str]| {
        prop::option::weighted(0.4, subsequence(items, 1..=2))
            .prop_map(move |chosen| chosen.map(|chosen| format!("{key}: [{}]", chosen.join(", "))))
    };
    let value = |key: &'static str| {
        prop::option::weighted(0.3, select(TESTS))
            .prop_map(move |test| test.map(|test| format!("{key}: {{ x: {test} }}")))
    };
    let class = match with_classes {
        false => Just(None).boxed(),
        true => prop::option::weighted(0.2, select(&["c1", "c2"][..]))
            .prop_map(|class| class.map(|class| format!("class: {class}")))
            .boxed(),
    };
    let not = match depth {
        0 => Just(None).boxed(),
        depth => prop::option::weighted(0.2, conditions(with_classes, depth - 1))
            .prop_map(|inner| {
                inner.filter(|inner| inner != "{  }").map(|inner| format!("not: {inner}"))
            })
            .boxed(),
    };
    (
        list("host", HOST_PATTERNS),
        list("path", PATH_PATTERNS),
        list("methods", METHODS),
        value("header"),
        list("client", NETWORKS),
        class,
        not,
    )
        .prop_map(|(host, path, methods, header, client, class, not)| {
            let all = [host, path, methods, header, client, class, not];
            format!("{{ {} }}", all.into_iter().flatten().collect::<Vec<_>>().join(", "))
        })
        .boxed()
}

fn class() -> impl Strategy<Value = String> {
    conditions(false, 0).prop_map(|text| match text.as_str() {
        "{  }" => "{ path: /** }".to_owned(),
        _ => text,
    })
}

/// A configuration up to its limits, with these classes.
fn head(classes: &[String]) -> String {
    let mut text = "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\n\
                    origins: { site: { servers: [127.0.0.1:1] } }\nclasses:\n"
        .to_owned();
    for (index, class) in classes.iter().enumerate() {
        text.push_str(&format!("  c{}: {class}\n", index + 1));
    }
    text
}

fn load(classes: &[String], routes: &[String]) -> LoadedConfig {
    let mut text = head(classes);
    text.push_str("limits:\n");
    for index in 0..routes.len() {
        text.push_str(&format!("  l{index}: {{ tier: exact, rate: 1/1s, key: client_ip }}\n"));
    }
    text.push_str("routes:\n");
    for (index, conditions) in routes.iter().enumerate() {
        text.push_str(&format!(
            "  - {{ name: r{index}, match: {conditions}, limits: [l{index}] }}\n"
        ));
    }
    read_text(&text, "test.yaml", Path::new("")).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// One path for each number of segments, up to four, and each set of [`PATH_PATTERNS`] that such a path matches: whatever
/// region the patterns and keys of a test cut out, the world has a request in it.
static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let routes: Vec<_> = PATH_PATTERNS.iter().map(|path| format!("{{ path: {path} }}")).collect();
    let routes = load(&[], &routes).config.policy.routes;
    let headers = HeaderMap::new();
    let region = |path: &str| -> (usize, Vec<bool>) {
        let facts = facts("", path, "GET", &headers, CLIENTS[0]);
        let matched = routes.iter().map(|route| route.matches.holds(&facts).unwrap());
        (path.split('/').filter(|segment| !segment.is_empty()).count(), matched.collect())
    };
    let mut regions = BTreeMap::new();
    let mut stems = vec![String::new()];
    for _ in 0..4 {
        for stem in &stems {
            let folder = format!("{stem}/");
            regions.entry(region(&folder)).or_insert(folder);
        }
        let longer = |stem: &String| SEGMENTS.map(|segment| format!("{stem}/{segment}"));
        stems = stems.iter().flat_map(longer).collect();
        for stem in &stems {
            regions.entry(region(stem)).or_insert_with(|| stem.clone());
        }
    }
    regions.into_values().collect()
});

fn facts<'a>(
    host: &'a str,
    path: &'a str,
    method: &'a str,
    headers: &'a HeaderMap,
    client: &str,
) -> Facts<'a> {
    let ip: IpAddr = client.parse().unwrap();
    Facts {
        client: RequestClient { ip, ipv6_prefix: 64, peer_trusted: false },
        connection: &ConnectionFacts::NONE,
        now: Nanos::ZERO,
        method,
        host,
        path,
        readings: &[],
        query: None,
        headers,
        conditions: None,
    }
}

/// Every set of up to two lines of the header.
fn headers() -> Vec<HeaderMap> {
    let mut all = vec![HeaderMap::new()];
    for (index, first) in VALUES.iter().enumerate() {
        for second in std::iter::once(None).chain(VALUES[index + 1..].iter().map(Some)) {
            let mut headers = HeaderMap::new();
            headers.append("x", HeaderValue::from_static(first));
            if let Some(second) = second {
                headers.append("x", HeaderValue::from_static(second));
            }
            all.push(headers);
        }
    }
    all
}

/// The exclusions of a route are named as the reason exactly where it would match without them.
fn assert_exclusion_is_named(matches: &RequestMatch, facts: &Facts<'_>) {
    let is_named = matches.mismatch(facts) == Some(Mismatch::Excluded);
    let without = RequestMatch { none_of: Vec::new(), ..matches.clone() };
    assert_eq!(is_named, without.holds(facts).unwrap(), "{matches:?}");
}

/// Which routes some request of the world reaches.
fn reached(loaded: &LoadedConfig) -> Vec<bool> {
    let policy = &loaded.config.policy;
    let mut reached = vec![false; policy.routes.len()];
    let headers = headers();
    for host in HOSTS {
        for path in PATHS.iter() {
            for method in METHODS.iter().chain(&["DELETE"]) {
                for headers in &headers {
                    for client in CLIENTS {
                        let facts = facts(host, path, method, headers, client);
                        // What a router finds is what trying all routes in order finds.
                        let first = policy
                            .routes
                            .iter()
                            .position(|route| route.matches.holds(&facts).unwrap());
                        assert_eq!(policy.find(&facts).unwrap().map(|route| route.0), first);
                        if let Some(first) = first {
                            reached[first] = true;
                        }
                        for route in &policy.routes[..first.unwrap_or(policy.routes.len())] {
                            assert_exclusion_is_named(&route.matches, &facts);
                        }
                    }
                }
            }
        }
    }
    reached
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// A route that no request reaches is warned of, and no other one. So is a limit that only such routes use.
    #[test]
    fn routes_that_nothing_reaches_are_warned_of(
        classes in prop::collection::vec(class(), 2),
        routes in prop::collection::vec(conditions(true, 1), 1..6),
    ) {
        let loaded = load(&classes, &routes);
        let reached = reached(&loaded);
        let warned = |code: &str, path: String| {
            loaded.warnings.iter().any(|warning| warning.code == code && warning.path == path)
        };
        for (index, reached) in reached.iter().enumerate() {
            let route = warned("unreachable-route", format!("routes[{index}]"));
            let limit = warned("unused-limit", format!("limits.l{index}"));
            prop_assert_eq!(route, !reached, "r{}: {:?} {:?}", index, &routes, &classes);
            prop_assert_eq!(limit, !reached, "l{}", index);
        }
    }
}

/// Conditions in a smaller world, in which the search can always look at everything.
fn few_conditions(with_classes: bool) -> BoxedStrategy<String> {
    let path = prop::option::weighted(0.4, select(PATH_PATTERNS));
    let header = prop::option::weighted(0.4, select(TESTS));
    let client = prop::option::weighted(0.3, select(NETWORKS));
    let class = prop::option::weighted(0.3, select(&["c1", "c2"][..]));
    let is_not = prop::bool::weighted(0.4);
    (path, header, client, class, is_not)
        .prop_map(move |(path, header, client, class, is_not)| {
            let class = class.filter(|_| with_classes).map(|class| match is_not {
                true => format!("not: {{ class: {class} }}"),
                false => format!("class: {class}"),
            });
            let path = path.map(|path| format!("path: '{path}'"));
            let header = header.map(|test| format!("header: {{ x: {test} }}"));
            let client = client.map(|network| format!("client: {network}"));
            let all = [path, header, client, class].into_iter().flatten();
            format!("{{ {} }}", all.collect::<Vec<_>>().join(", "))
        })
        .boxed()
}

/// A limit whose key may be absent from all requests of its route, and whose overrides may allow all. `{}` in it is the
/// name of the limit for a missing key.
fn limit() -> impl Strategy<Value = String> {
    const KEYS: &[&str] = &[
        "client_ip",
        "'header:x'",
        "'path_segment:2'",
        "'path_segment:3'",
        "'class:c1'",
        "class",
        "[client_ip, 'header:x']",
    ];
    let target = prop_oneof![
        select(NETWORKS).prop_map(|network| format!("network: {network}")),
        select(&["class: c1", "class: c2"][..]).prop_map(str::to_owned),
    ];
    let action = select(&["action: allow", "action: allow", "action: deny", "rate: 2/1s"][..]);
    let rule = (target, action).prop_map(|(target, action)| format!("{{ {target}, {action} }}"));
    let missing = select(&["skip", "skip", "client_ip", "{ limit: {} }"][..]);
    (select(KEYS), missing, prop::collection::vec(rule, 0..4)).prop_map(|(key, missing, rules)| {
        let missing = match key {
            "client_ip" => String::new(),
            _ => format!(", missing_key: {missing}"),
        };
        let rules = rules.join(", ");
        format!("{{ tier: exact, rate: 1/1s, key: {key}{missing}, overrides: [{rules}] }}")
    })
}

fn load_limits(classes: &[String], routes: &[(String, String)]) -> LoadedConfig {
    let mut text = head(classes);
    text.push_str("limits:\n");
    for (index, (_, limit)) in routes.iter().enumerate() {
        let limit = limit.replace("{}", &format!("s{index}"));
        text.push_str(&format!("  l{index}: {limit}\n"));
        text.push_str(&format!("  s{index}: {{ tier: exact, rate: 1/1s, key: client_ip }}\n"));
    }
    text.push_str("routes:\n");
    for (index, (conditions, _)) in routes.iter().enumerate() {
        text.push_str(&format!(
            "  - {{ name: r{index}, match: {conditions}, limits: [l{index}] }}\n"
        ));
    }
    read_text(&text, "test.yaml", Path::new("")).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// What the requests of the world show of one limit.
#[derive(Clone)]
struct Shown {
    applies: bool,
    is_judged: bool,
    /// The overrides that are the first to match some request.
    decides: Vec<bool>,
}

/// What some request of the world shows of each limit.
fn shown(policy: &Policy) -> Vec<Shown> {
    let nothing = |limit: &Limit| Shown {
        applies: false,
        is_judged: false,
        decides: vec![false; limit.terms.overrides.len()],
    };
    let mut shown: Vec<Shown> = policy.limits.iter().map(nothing).collect();
    let mut headers = headers();
    headers.push(HeaderMap::from_iter([(
        http::HeaderName::from_static("x"),
        HeaderValue::from_static(""),
    )]));
    for path in PATHS.iter() {
        for headers in &headers {
            for client in CLIENTS {
                let facts = facts("a.test", path, "GET", headers, client);
                if let Some(found) = policy.find(&facts).unwrap() {
                    let route = &policy.routes[found.0];
                    note(policy, route, route.limits[0].limit, &facts, &mut shown);
                }
            }
        }
    }
    shown
}

/// Notes what one request shows of a limit, and of the limits to which missing keys lead.
fn note(policy: &Policy, route: &Route, index: LimitIndex, facts: &Facts<'_>, shown: &mut [Shown]) {
    let limit = policy.limit(index);
    if !has_key(&limit.key, route, facts) {
        match limit.missing_key {
            MissingKey::ClientIp => {}
            MissingKey::Limit(next) => return note(policy, route, next, facts, shown),
            MissingKey::Skip | MissingKey::Deny(_) | MissingKey::Impossible => return,
        }
    }
    let shown = &mut shown[index.0];
    shown.is_judged = true;
    let matches = |target: &OverrideTarget| target.matches_request(facts).unwrap();
    let mut rules = limit.terms.overrides.iter();
    let first = rules.position(|rule| matches(&rule.target));
    if let Some(first) = first {
        shown.decides[first] = true;
    }
    shown.applies |=
        first.is_none_or(|first| limit.terms.overrides[first].action != OverrideAction::Allow);
}

/// Whether a request has a key. One that has it twice is refused for this limit.
fn has_key(key: &KeySpec, route: &Route, facts: &Facts<'_>) -> bool {
    key.sources().iter().all(|source| match source {
        Source::Header(name) => facts.headers.get_all(name).iter().any(|line| !line.is_empty()),
        other => matches!(other.part(facts, route), KeyPart::Present(_)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A limit that applies to no request is warned of, and no other one; so is an override that is the first for none.
    #[test]
    fn limits_and_overrides_for_no_request_are_warned_of(
        classes in prop::collection::vec(few_conditions(false), 2),
        routes in prop::collection::vec((few_conditions(true), limit()), 1..4),
    ) {
        let classes: Vec<String> =
            classes.into_iter().map(|class| if class == "{  }" { "{ path: /** }".to_owned() } else { class }).collect();
        let loaded = load_limits(&classes, &routes);
        let shown = shown(&loaded.config.policy);
        for (limit, shown) in loaded.config.policy.limits.iter().zip(&shown) {
            let path = format!("limits.{}", limit.name);
            let own = || loaded.warnings.iter().filter(|warning| warning.path == path);
            let is_warned = own().any(|warning| warning.code == "unused-limit");
            if limit.name.starts_with('s') && !shown.is_judged {
                // A limit for a missing key is wanted also where no key is missing.
                continue;
            }
            prop_assert_eq!(is_warned, !shown.applies, "{}: {:?} {:?}", path, &routes, &classes);
            for (number, decides) in (1..).zip(&shown.decides).filter(|_| shown.is_judged) {
                let begin = format!("override {number} never applies");
                let is_warned = own().any(|warning| warning.message.starts_with(&begin));
                prop_assert_eq!(is_warned, !decides, "{} {}: {:?} {:?}", path, begin, &routes, &classes);
            }
        }
    }
}

/// The routes that are warned of, with the messages.
fn unreachable(routes: &[&str]) -> Vec<(String, String)> {
    let routes: Vec<String> = routes.iter().map(|route| (*route).to_owned()).collect();
    let loaded = load(&["{ host: a.test }".to_owned(), "{ host: b.test }".to_owned()], &routes);
    let found = loaded.warnings.into_iter().filter(|warning| warning.code == "unreachable-route");
    found.map(|warning| (warning.path, warning.message)).collect()
}

#[test]
fn the_routes_that_take_everything_are_named() {
    let one = unreachable(&["{ path: /api/** }", "{ path: /api/login }"]);
    assert_eq!(one.len(), 1);
    assert_eq!(one[0].0, "routes[1]");
    assert!(one[0].1.contains("route \"r0\" matches every request"), "{}", one[0].1);
    let two = unreachable(&["{ methods: POST }", "{ not: { methods: POST } }", "{ path: /x }"]);
    assert!(two[0].1.contains("routes \"r0\", \"r1\" match together"), "{}", two[0].1);
    let none = unreachable(&["{ path: /x, not: { path: /** } }"]);
    assert!(none[0].1.contains("no request can fulfil"), "{}", none[0].1);
    assert_eq!(unreachable(&["{ methods: PSOT }"])[0].0, "routes[0]");
}

#[test]
fn conditions_that_are_not_what_they_look_like() {
    let codes = |route: &str| -> Vec<(String, String)> {
        let loaded = load(
            &["{ host: a.test }".to_owned(), "{ host: b.test }".to_owned()],
            &[route.to_owned()],
        );
        let warnings = loaded.warnings.into_iter();
        let warnings = warnings.filter(|w| matches!(w.code, "unknown-method" | "star-in-value"));
        warnings.map(|warning| (warning.code.to_owned(), warning.cure)).collect()
    };
    let found = codes("{ methods: [POST, PSOT] }");
    assert_eq!(found, [("unknown-method".to_owned(), "did you mean \"POST\"?".to_owned())]);
    assert_eq!(codes("{ not: { methods: TRACE } }").len(), 1);
    assert_eq!(codes("{ header: { x: 'bot*' } }")[0].0, "star-in-value");
    assert_eq!(codes("{ header: { x: { regex: 'bot.*' } }, path: '/a/*' }"), []);
}

/// What cannot be known is not warned of, and equal patterns are known.
#[test]
fn patterns_are_compared_as_texts() {
    let agent = |pattern: &str| format!("{{ header: {{ user-agent: {{ regex: '{pattern}' }} }} }}");
    assert!(unreachable(&[&agent("bot"), &agent("crawler")]).is_empty());
    assert!(unreachable(&[&agent("bot"), "{ header: { user-agent: present } }"]).is_empty());
    assert_eq!(unreachable(&[&agent("bot"), &agent("bot")]).len(), 1);
    assert_eq!(unreachable(&["{ header: { user-agent: present } }", &agent("bot")]).len(), 1);
}

/// Ten thousand routes are read in seconds, those at the end included.
#[test]
fn many_routes_are_analysed_in_time() {
    let mut routes: Vec<String> =
        (0..3_000).map(|n| format!("{{ host: h{n}.test, path: /a/{n}/** }}")).collect();
    routes.push("{ path: /** }".to_owned());
    routes.push("{ path: /late }".to_owned());
    let began = support::wait::now();
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    assert_eq!(unreachable(&routes).len(), 1);
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}
