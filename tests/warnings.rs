//! Warnings about routes and limits that nothing reaches, against a search through every request of a small world.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::net::IpAddr;
use std::path::Path;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tollgate::clock::Nanos;
use tollgate::config::{LoadedConfig, read_text};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConnectionFacts, Facts};

const HOSTS: &[&str] = &["a.test", "b.test", "x.b.test", "q.test", "other"];
const HOST_PATTERNS: &[&str] = &["a.test", "b.test", "\"*.test\"", "\"*.b.test\""];
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/",
    "/b",
    "/a/b",
    "/a/b/",
    "/a/c",
    "/a/b/c",
    "/c/b",
    "/a/x.png",
    "/x.png",
    "/c/d/x.png",
    "/d",
    "/a/d",
    "/c/d/b",
    "/a/d/b",
    "/a/d/d/b",
    "/c/c",
];
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

fn load(classes: &[String], routes: &[String]) -> LoadedConfig {
    let mut text = "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\n\
                    origins: { site: { servers: [127.0.0.1:1] } }\nclasses:\n"
        .to_owned();
    for (index, class) in classes.iter().enumerate() {
        text.push_str(&format!("  c{}: {class}\n", index + 1));
    }
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

/// Which routes some request of the world reaches.
fn reached(loaded: &LoadedConfig) -> Vec<bool> {
    let policy = &loaded.config.policy;
    let mut reached = vec![false; policy.routes.len()];
    let headers = headers();
    for host in HOSTS {
        for path in PATHS {
            for method in METHODS.iter().chain(&["DELETE"]) {
                for headers in &headers {
                    for client in CLIENTS {
                        let ip: IpAddr = client.parse().unwrap();
                        let facts = Facts {
                            client: RequestClient { ip, ipv6_prefix: 64, peer_trusted: false },
                            connection: &ConnectionFacts::NONE,
                            now: Nanos::ZERO,
                            method,
                            host,
                            path,
                            readings: &[],
                            query: None,
                            headers,
                        };
                        // What a router finds is what trying all routes in order finds.
                        let first = policy
                            .routes
                            .iter()
                            .position(|route| route.matches.holds(&facts).unwrap());
                        assert_eq!(policy.find(&facts).unwrap().map(|route| route.0), first);
                        if let Some(first) = first {
                            reached[first] = true;
                        }
                    }
                }
            }
        }
    }
    reached
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

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
