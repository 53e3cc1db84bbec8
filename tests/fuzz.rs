//! Whatever bytes come: no panic, and what is promised of each reader holds.
//!
//! Two seconds each with `cargo test`; `make fuzz` runs them for as long as it is told. Inputs are
//! drawn from fragments that matter to the reader and from any bytes, and shrunk when they fail.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use pingora::http::RequestHeader;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Engine, Outcome, Said};
use tollgate::policy::client::{AddressHeader, ClientRules, resolve};
use tollgate::policy::{Facts, KeySecret};
use tollgate::proxy::{
    Asking, Clean, Framing, GateBounds, Head, HeadScan, LastHost, Length, ProxiedFrom, Reason,
    pass, pass_scanned, proxied_from, proxy_v2_size, proxy_version, refusal, retry_after_secs,
};

const BOUNDS: GateBounds =
    GateBounds { header_size: 4096, header_fields: 20, body_size: Some(1_000_000) };

/// Draws inputs until the time is over.
#[expect(clippy::disallowed_methods, reason = "fuzzing is bounded by real time")]
fn fuzz<S: Strategy>(name: &str, inputs: S, holds: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    const ROUND: u32 = 256;
    let seconds = std::env::var("TOLLGATE_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(2, |seconds| seconds.parse().unwrap());
    let (began, mut rounds) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        let config = Config { cases: ROUND, failure_persistence: None, ..Config::default() };
        TestRunner::new(config).run(&inputs, &holds).unwrap();
        rounds += 1;
    }
    println!("{name}: {} inputs", rounds * u64::from(ROUND));
}

/// Bytes of these fragments and any others between them.
fn bytes_of(fragments: &'static [&'static [u8]], most: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(fragments).prop_map(<[u8]>::to_vec),
        2 => prop::collection::vec(any::<u8>(), 1..4),
        1 => (prop::sample::select(fragments), 2..40_usize).prop_map(|(f, n)| f.repeat(n)),
    ];
    prop::collection::vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

fn text_of(fragments: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => prop::sample::select(fragments).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => (prop::sample::select(fragments), 2..40_usize).prop_map(|(f, n)| f.repeat(n)),
    ];
    prop::collection::vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

const HEADS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\n",
    b"POST /a?b HTTP/1.1\r\n",
    b"GET ",
    b"OPTIONS * ",
    b"http://h/",
    b" HTTP/1.1",
    b" HTTP/1.0\r\n",
    b"HTTP/2",
    b"Host: h\r\n",
    b"host:h:80\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: x-api-key\r\n",
    b"X: y\r\n",
    b": ",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b"/..",
    b"//",
    b"%2f",
    b";",
    b"\\",
    b"#",
    b"<>`",
];

/// A scan in pieces that end where the cuts say.
fn scanned(bytes: &[u8], cuts: &[usize]) -> Result<Option<tollgate::proxy::WireHead>, Reason> {
    let (mut scan, mut last) = (HeadScan::default(), LastHost::default());
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    for cut in cuts {
        if let Some(head) = scan.advance(&bytes[..cut], BOUNDS, &mut last)? {
            return Ok(Some(head));
        }
    }
    scan.advance(bytes, BOUNDS, &mut last)
}

#[test]
fn heads() {
    const BEGUN: &[u8] = b"POST /a HTTP/1.1\r\nHost: h\r\n";
    let begun =
        (any::<bool>(), bytes_of(HEADS, 12), any::<bool>()).prop_map(|(begun, rest, end)| {
            [if begun { BEGUN } else { b"" }, &rest, if end { b"\r\n\r\n" } else { b"" }].concat()
        });
    let inputs = (begun, prop::collection::vec(any::<usize>(), 0..5));
    fuzz("heads", inputs, |(bytes, cuts)| {
        let whole = scanned(&bytes, &[]);
        let pieces = scanned(&bytes, &cuts);
        match whole {
            Ok(Some(_)) => prop_assert_eq!(&pieces, &whole),
            // What is refused may be refused for another reason before all of it has come, and a line
            // that came in pieces when it ends.
            Err(_) if pieces.is_err() => {}
            Err(_) => {
                prop_assert_eq!(pieces, Ok(None));
                prop_assert!(scanned(&[&bytes[..], b"\r\n"].concat(), &cuts).is_err());
            }
            Ok(None) => prop_assert_eq!(pieces, Ok(None)),
        }
        let Ok(Some(scanned)) = whole else {
            return Ok(());
        };
        is_strict(&bytes[..scanned.size])?;
        // The framework's parser finds the same head, and answers nothing by itself.
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut fields);
        let size = parsed.parse(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(size, httparse::Status::Complete(scanned.size));
        let (method, target) = (parsed.method.unwrap(), parsed.path.unwrap());
        let built = RequestHeader::build(method, target.as_bytes(), None);
        prop_assert!(built.is_ok(), "{target}");
        let mut headers = HeaderMap::new();
        for field in parsed.headers.iter() {
            headers.append(
                HeaderName::from_bytes(field.name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(field.value).unwrap(),
            );
        }
        let (method, version) = (Method::from_bytes(method.as_bytes()).unwrap(), parsed.version);
        let version = if version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let target = target.as_bytes();
        let head = Head { method: &method, target, authority: None, version, headers: &headers };
        // What was found in the bytes is what is found in the parsed head. (Of several reasons to
        // refuse it either may be told.)
        let read = pass_scanned(&scanned.scanned, target, BOUNDS).unwrap();
        match (pass(head, BOUNDS), read) {
            (Ok(clean), read) => {
                is_clean(&clean, &method)?;
                prop_assert_eq!(Ok(clean), read);
            }
            (Err(_), read) => prop_assert!(read.is_err(), "{:?}", read),
        }
        Ok(())
    });
}

/// What no two readers differ about, said in another way than the scan says it.
fn is_strict(head: &[u8]) -> Result<(), TestCaseError> {
    let text: String = head.iter().map(|byte| char::from(*byte)).collect();
    let lines: Vec<&str> = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").collect();
    let control = |c: char| c < ' ' && c != '\t' || c == '\x7f';
    prop_assert!(!lines.iter().any(|line| line.contains(control)), "{text:?}");
    let named = |name: &str| {
        let named = |line: &&&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        lines[1..].iter().filter(named).count()
    };
    prop_assert!(lines[1..].iter().all(|line| !line.starts_with([' ', '\t', ':'])), "{text:?}");
    prop_assert!(named("host") == 1 || named("host") == 0 && lines[0].ends_with("HTTP/1.0"));
    prop_assert!(named("content-length") + named("transfer-encoding") <= 1, "{text:?}");
    prop_assert!(lines.len() <= BOUNDS.header_fields + 1 && head.len() <= BOUNDS.header_size);
    Ok(())
}

/// What holds of everything that the gate lets through.
fn is_clean(clean: &Clean<'_>, method: &Method) -> Result<(), TestCaseError> {
    let path = &*clean.path;
    prop_assert!(path.starts_with('/') || path == "*" && *method == Method::OPTIONS);
    prop_assert!(path.bytes().all(|byte| byte.is_ascii_graphic()));
    prop_assert!(
        !clean.host.ends_with('.') && !clean.host.contains([':', '@', '/'])
            || clean.host.starts_with('[')
    );
    prop_assert!(
        !clean.host.bytes().any(|byte| byte.is_ascii_uppercase()) || clean.host.starts_with('[')
    );
    if path == "*" {
        return Ok(());
    }
    // What is forwarded is read again as what was matched.
    let again = passed(path, "h");
    let again = again.map_err(|reason| TestCaseError::fail(format!("{path}: {reason:?}")))?;
    prop_assert_eq!(&*again.0, path);
    prop_assert_eq!(&again.1, &clean.readings);
    // A path without other readings has none under an origin that does all that origins do.
    if clean.readings.is_empty() {
        prop_assert_eq!(normalised(path), decoded(path), "{}", path);
    } else {
        let all = &clean.readings;
        let read = normalised(path);
        prop_assert!(
            read == path || all.iter().any(|one| decoded(one) == decoded(&read)),
            "{path}: {read} is not among {all:?}"
        );
    }
    Ok(())
}

fn passed(target: &str, host: &str) -> Result<(String, Vec<String>), Reason> {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_str(host).unwrap());
    let (method, version, target) = (Method::GET, Version::HTTP_11, target.as_bytes());
    let head = Head { method: &method, target, authority: None, version, headers: &headers };
    pass(head, BOUNDS).map(|clean| (clean.path.into_owned(), clean.readings))
}

fn decoded(path: &str) -> String {
    percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// An origin that decodes, takes `\` for `/`, cuts parameters, merges slashes and resolves dots.
fn normalised(path: &str) -> String {
    let path = decoded(path).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.split('/').map(|part| part.split(';').next().unwrap()).collect();
    for part in &parts[1..] {
        match *part {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let open = matches!(parts.last(), Some(&("" | "." | ".."))) && !segments.is_empty();
    format!("/{}{}", segments.join("/"), if open { "/" } else { "" })
}

#[test]
fn paths() {
    const FRAGMENTS: &[&str] = &[
        "/", "a", "admin", "..", ".", "//", ";", "x=1", "\\", "%2f", "%2F", "%5c", "%2e", "%252e",
        "%25", "%3b", "%00", "%", "%41", "%c3%a9", "é", " ", "#", "?", "~", "@", ":", "%3a", "<",
    ];
    fuzz("paths", text_of(FRAGMENTS, 12), |path| {
        if let Ok((found, readings)) = passed(&format!("/{path}"), "h") {
            let path = found.as_str().into();
            let rare = tollgate::proxy::Rare::NONE;
            let clean = Clean { host: "h".into(), path, readings, query: None, rare };
            is_clean(&clean, &Method::GET)?;
        }
        Ok(())
    });
}

#[test]
fn hosts() {
    const FRAGMENTS: &[&str] = &[
        "a",
        "A",
        ".",
        "..",
        ":",
        "80",
        "[",
        "]",
        "::1",
        "@",
        "/",
        "example.com",
        "-",
        "_",
        "%2e",
        ",",
        " ",
        "192.0.2.1",
        "\\",
        "?",
        "#",
    ];
    fuzz("hosts", text_of(FRAGMENTS, 8), |host| {
        let Ok(value) = HeaderValue::from_str(&host) else {
            return Ok(());
        };
        let mut headers = HeaderMap::new();
        headers.insert("host", value);
        let (method, version) = (Method::GET, Version::HTTP_11);
        let head =
            Head { method: &method, target: b"/", authority: None, version, headers: &headers };
        let Ok(clean) = pass(head, BOUNDS) else {
            return Ok(());
        };
        is_clean(&clean, &method)?;
        // The same host in other clothes is the same host.
        for other in [host.to_ascii_uppercase(), host.to_ascii_lowercase()] {
            headers_host(&other, &clean.host)?;
        }
        if !host.contains(':') {
            headers_host(&format!("{host}:8080"), &clean.host)?;
        }
        headers_host(&clean.host, &clean.host)
    });
}

fn headers_host(host: &str, expected: &str) -> Result<(), TestCaseError> {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_str(host).unwrap());
    let (method, version) = (Method::GET, Version::HTTP_11);
    let head = Head { method: &method, target: b"/", authority: None, version, headers: &headers };
    let clean = pass(head, BOUNDS).map_err(|reason| TestCaseError::fail(format!("{reason:?}")))?;
    prop_assert!(clean.host.eq_ignore_ascii_case(expected), "{host}: {}", clean.host);
    Ok(())
}

#[test]
fn bodies() {
    const CHUNKS: &[&[u8]] = &[
        b"0\r\n\r\n",
        b"3\r\nabc\r\n",
        b"a\r\n0123456789\r\n",
        b"1F",
        b";x=y",
        b"\r\n",
        b"\n",
        b"\r",
        b"0",
        b"X: y\r\n",
        b" ",
        b"+",
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    let inputs = (bytes_of(CHUNKS, 16), 0..200_u64, prop::collection::vec(any::<usize>(), 0..5));
    fuzz("bodies", inputs, |(bytes, length, cuts)| {
        for length in [Length::None, Length::Bytes(length), Length::Chunked] {
            let mut framing = Framing::new(length);
            let whole = framing.take(&bytes).map(|taken| (taken, framing.is_done()));
            if let Ok((taken, done)) = whole {
                prop_assert!(done || taken == bytes.len());
            }
            if let (Length::Bytes(length), Ok((taken, _))) = (length, whole) {
                prop_assert_eq!(taken as u64, length.min(bytes.len() as u64));
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut framing, mut at) = (Framing::new(length), 0);
            let mut pieces = Ok(());
            for cut in cuts {
                match framing.take(&bytes[at.min(cut)..cut]) {
                    Ok(taken) => at = at.min(cut) + taken,
                    Err(reason) => {
                        pieces = Err(reason);
                        break;
                    }
                }
                if framing.is_done() {
                    break;
                }
            }
            prop_assert_eq!(pieces.map(|()| (at, framing.is_done())), whole);
        }
        Ok(())
    });
}

#[test]
fn forwarded_addresses() {
    const FRAGMENTS: &[&str] = &[
        "10.0.0.1",
        "198.51.100.1",
        "2001:db8::1",
        "[2001:db8::1]:80",
        ":443",
        ", ",
        ",",
        "for=",
        ";",
        "\"",
        "unknown",
        "::ffff:10.0.0.2",
        " ",
        "%eth0",
        "[",
        "]",
    ];
    let lines = prop::collection::vec(text_of(FRAGMENTS, 10), 0..4);
    fuzz("forwarded addresses", lines, |lines| {
        for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
            let rules = ClientRules {
                trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
                address_header: Some(match header {
                    "x-forwarded-for" => AddressHeader::XForwardedFor,
                    "forwarded" => AddressHeader::Forwarded,
                    name => AddressHeader::Single(HeaderName::from_static(name)),
                }),
            };
            let mut headers = HeaderMap::new();
            for line in &lines {
                if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
                    headers.append(header, value);
                }
            }
            let (trusted, stranger) = (IpAddr::from([10, 9, 9, 9]), IpAddr::from([192, 0, 2, 1]));
            let client = resolve(trusted, &headers, &rules);
            prop_assert_eq!(resolve(stranger, &headers, &rules), stranger);
            // A client that a proxy vouched for is that client, whatever it invented itself.
            if header == "x-forwarded-for" {
                let vouched = HeaderValue::from_static("198.51.100.77");
                headers.append(header, vouched);
                let found = resolve(trusted, &headers, &rules);
                prop_assert_eq!(found, IpAddr::from([198, 51, 100, 77]), "before: {}", client);
            }
        }
        Ok(())
    });
}

#[test]
fn proxy_headers() {
    const FRAGMENTS: &[&[u8]] = &[
        b"PROXY ",
        b"TCP4 ",
        b"TCP6 ",
        b"UNKNOWN",
        b"192.0.2.1 ",
        b"2001:db8::1 ",
        b"4000 ",
        b"80",
        b"\r\n",
        b"\r\n\r\n\0\r\nQUIT\n",
        b"\x21\x11",
        b"\x21\x21",
        b"\x20\0",
        b"\0\x0c",
        b"\0\x24",
        b"\xff\xff",
        b"............",
    ];
    let addresses = (any::<[u8; 4]>(), any::<u16>(), any::<[u8; 16]>());
    fuzz("PROXY headers", (bytes_of(FRAGMENTS, 10), addresses), |(bytes, (v4, port, v6))| {
        let _ = proxied_from(&bytes);
        if let Some(start) = bytes.first_chunk() {
            let _ = proxy_version(start);
        }
        if let Some(fixed) = bytes.first_chunk() {
            prop_assert!(proxy_v2_size(fixed).is_ok_and(|size| size <= 4096) || bytes[14] >= 15);
        }
        for ip in [IpAddr::from(v4), IpAddr::from(v6)] {
            let family = if ip.is_ipv4() { "TCP4" } else { "TCP6" };
            let line = format!("PROXY {family} {ip} {ip} {port} 80\r\n");
            let client = ProxiedFrom::Client(SocketAddr::new(ip, port));
            prop_assert_eq!(proxied_from(line.as_bytes()), Ok(client), "{}", line);
        }
        Ok(())
    });
}

const EVERY_KEY: &str = r"
version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
limits:
  a: { tier: exact, rate: 1000000/1s, key: [client_ip, method, path, route] }
  b: { tier: exact, rate: 1000000/1s, key: header:x-api-key, missing_key: skip }
  c: { tier: exact, rate: 1000000/1s, key: cookie:session, missing_key: skip }
  d: { tier: exact, rate: 1000000/1s, key: query:user, missing_key: skip }
  e: { tier: exact, rate: 1000000/1s, key: bearer, missing_key: skip }
  f: { tier: exact, rate: 1000000/1s, key: basic_user, missing_key: skip }
  g: { tier: exact, rate: 1000000/1s, key: [host, { shard: client_ip, of: 16 }], missing_key: skip }
  h: { tier: exact, rate: 1000000/1s, key: path_segment:2, missing_key: skip }
routes: [{ name: r, limits: [a, b, c, d, e, f, g, h] }]
";

#[test]
fn keys() {
    const FRAGMENTS: &[&str] = &[
        "session=",
        "user=",
        ";",
        ",",
        "=",
        "&",
        "+",
        "%41",
        "%",
        "Bearer ",
        "bearer ",
        "Basic ",
        "YTpi",
        "dXNlcjpwYXNz",
        "\"",
        " ",
        "a",
        "/",
        "==",
        "%ff",
        "[]",
    ];
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
    let loaded = config::read_text(EVERY_KEY, "keys.yaml", Path::new("")).unwrap();
    let generation = engine.generation(loaded.config.policy, None).0;
    let text = || text_of(FRAGMENTS, 8);
    let inputs = (prop::collection::vec(text(), 4), text(), text(), any::<[u8; 16]>());
    fuzz("keys", inputs, |(values, path, query, address)| {
        let mut headers = HeaderMap::new();
        for (name, value) in ["x-api-key", "cookie", "authorization", "cookie"].iter().zip(values) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(*name, value);
            }
        }
        let facts = Facts {
            client_ip: address.into(),
            peer_trusted: false,
            now: tollgate::clock::Nanos::ZERO,
            method: "GET",
            host: "h",
            path: &format!("/{path}"),
            readings: &[],
            query: Some(&query),
            headers: &headers,
            ipv6_prefix: 64,
        };
        let (first, _) = engine.decide_now(&generation, &facts);
        let (second, _) = engine.decide_now(&generation, &facts);
        let known = matches!(
            first.outcome,
            Outcome::Allowed | Outcome::RepeatedKey { .. } | Outcome::UnreadableKey { .. }
        );
        prop_assert!(known, "{:?}", first.outcome);
        prop_assert_eq!(first.outcome, second.outcome);
        // The same request meets the same cells: none of them refills in between. Afterwards time
        // goes on, or ten minutes of keys would fill the room.
        for (one, two) in first.answers.iter().zip(&second.answers) {
            prop_assert_eq!(one.limit, two.limit);
            prop_assert_eq!(one.verdict.remaining, two.verdict.remaining + 1);
        }
        clock.advance(Nanos::from_millis(10));
        engine.tick(&generation);
        Ok(())
    });
}

/// Signed tokens, costs that requests and answers name, and what shapes a refusal: nothing passes
/// for less than it costs, and no forged token is believed.
#[test]
fn terms() {
    const TOKENS: &[&str] = &[
        "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYS0xIn0",
        "eyJhbGciOiJub25lIn0",
        "eyJhbGciOiJFUzI1NiJ9",
        "eyJhbGciOiJFZERTQSJ9",
        "eyJhbGciOiJIUzI1NiJ9",
        "eyJzdWIiOiJhIiwicGxhbiI6ImdvbGQifQ",
        ".",
        "..",
        "e30",
        "=",
        "-_",
        "AAAA",
        "Bearer ",
    ];
    const FIELDS: &[&str] = &[
        "1",
        "0",
        "-1",
        "9",
        "99999999999999999999",
        "text/html",
        "*/*",
        ";q=0.5",
        ";q=nan",
        "q=",
        ",",
        "application/grpc",
        "+proto",
        "https://app.example",
        "\t",
        " ",
    ];
    const POLICY: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { s: { servers: [127.0.0.1:1] } }
clients: { trusted_proxies: [10.0.0.0/8] }
limits:
  claims: { tier: exact, rate: 5/1h, key: { jwt: { jwks_file: tests/policies/keys/jwks.json, claim: sub } }, missing_key: client_ip }
  costs: { tier: exact, algorithm: fixed_window, rate: 1000/1h, key: client_ip, cost: { header: x-cost, max: 50 } }
  told: { tier: exact, algorithm: token_bucket, rate: 1000/1h, key: client_ip, cost: { response_header: x-used, reserve: 5, max: 50 }, plans: { by: header:x-plan, rates: { a: 2000/1h } } }
  one: { tier: exact, rate: 1/1h, key: client_ip }
routes: [{ name: r, limits: [claims, costs, told, one] }]
responses: { body: [problem, { file: tests/policies/keys/denied.html, type: text/html }, grpc], cors: [\"https://app.example\"], retry_after_jitter: 5s }
";
    let loaded = config::read_text(POLICY, "terms.yaml", Path::new("")).unwrap();
    let (policy, responses) = (loaded.config.policy, loaded.config.default_responses);
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
    let generation = engine.generation(policy, None).0;
    let fields = prop::collection::vec(text_of(FIELDS, 4), 5);
    let inputs = (text_of(TOKENS, 6), fields, any::<bool>(), 100u16..600, any::<f64>());
    fuzz("terms", inputs, |(token, values, trusted, status, chance)| {
        let mut headers = HeaderMap::new();
        let names = ["x-cost", "x-plan", "accept", "content-type", "origin", "authorization"];
        for (name, value) in names.iter().zip(values.iter().chain([&token])) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(*name, value);
            }
        }
        let facts = Facts {
            client_ip: [192, 0, 2, 1].into(),
            peer_trusted: trusted,
            now: Nanos::from_secs(1_800_000_000),
            method: "POST",
            host: "h",
            path: "/",
            readings: &[],
            query: None,
            headers: &headers,
            ipv6_prefix: 64,
        };
        let (mut decision, mut pending) = engine.decide_now(&generation, &facts);
        if matches!(decision.outcome, Outcome::UnreadableKey { .. }) {
            // Only what readers part in different ways.
            let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"');
            let bearer = token.strip_prefix("Bearer ").map(str::trim);
            prop_assert!(!bearer.is_some_and(|token| token.bytes().all(plain)), "{token:?}");
            return Ok(());
        }
        prop_assert!(matches!(decision.outcome, Outcome::Allowed | Outcome::Limited));
        for answer in &decision.answers {
            prop_assert!((1..=50).contains(&answer.cost), "{answer:?}");
            // Nobody here can sign: the key is the address.
            prop_assert!(!answer.authenticated, "{token:?}");
        }
        let asking = Asking { headers: &headers, chance };
        let refused = refusal(&decision, generation.policy(), &responses, asking).unwrap();
        prop_assert_eq!(refused.is_some(), decision.outcome == Outcome::Limited);
        if let Some(retry) = refused.and_then(|one| one.head.headers.get("retry-after").cloned()) {
            let (told, least) =
                (retry.to_str().unwrap().parse::<u64>(), retry_after_secs(&decision));
            prop_assert!(told.unwrap() >= least.unwrap(), "told to come too soon");
        }
        if let Some(used) = values.first().and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert("x-used", used);
        }
        let said = Said { status, headers: &headers, by_origin: trusted };
        engine.finish(&generation, &mut decision, &mut pending, &said);
        clock.advance(Nanos::from_secs(60));
        engine.tick(&generation);
        Ok(())
    });
}

#[test]
fn configurations() {
    const FRAGMENTS: &[&str] = &[
        "version: 1\n",
        "listeners: [{ address: 127.0.0.1:1 }]\n",
        "  - ",
        "\n",
        "  ",
        ": ",
        "{ ",
        " }",
        "[",
        "]",
        ", ",
        "limits:\n",
        "  a: { tier: exact, rate: 1/s, key: client_ip }\n",
        "routes:\n",
        "  - { name: r, limits: [a] }\n",
        "origins:\n",
        "  s: { servers: [127.0.0.1:1] }\n",
        "missing_key: ",
        "rate: ",
        "0/0s",
        "99999999999999999999/1s",
        "1/1d",
        "&x ",
        "*x",
        "<<: ",
        "!!str ",
        "# c\n",
        "\"",
        "'",
        "|\n",
        "---\n",
        "...\n",
        "\t",
        "~",
        "null",
        "burst: ",
        "-1",
        "algorithm: ",
        "gcra",
        "sliding_log",
        "when_full: ",
        "defaults: ",
        "match: ",
        "/a/**",
        "leaky_bucket, max_delay: 1s",
        "max_in_flight: 3",
        "cost: { header: x, max: 9 }",
        "cost: { response_header: x, reserve: 1, max: 9 }",
        "count: { status: [401, 500-599] }",
        "plans: { by: header:p, rates: { a: 9/s } }",
        "overrides: [{ network: 10.0.0.0/8, action: deny }]",
        "rollout: 5%",
        "from: 2027-01-01T00:00:00Z",
        "penalty: { after: 1, within: 1s, ban: 1s }",
        "candidate: { rate: 9/s }",
        "\u{feff}",
    ];
    let examples: Vec<String> =
        ["conf/tollgate.yaml", "conf/examples/logins.yaml", "conf/examples/rollout.yaml"]
            .iter()
            .map(|file| std::fs::read_to_string(file).unwrap())
            .collect();
    let edits = prop::collection::vec(
        (any::<prop::sample::Index>(), 0..30_usize, text_of(FRAGMENTS, 3)),
        0..4,
    );
    let inputs = prop_oneof![
        text_of(FRAGMENTS, 30),
        (prop::sample::select(examples), edits).prop_map(|(text, edits)| {
            let mut characters: Vec<char> = text.chars().collect();
            for (at, gone, come) in edits {
                let at = at.index(characters.len().max(1)).min(characters.len());
                let end = (at + gone).min(characters.len());
                characters.splice(at..end, come.chars());
            }
            characters.into_iter().collect()
        }),
    ];
    fuzz("configurations", inputs, |text: String| {
        match config::read_text(&text, "f.yaml", Path::new("")) {
            // Whatever is accepted can be put in force.
            Ok(loaded) => {
                let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
                let engine = Engine::new(clock, KeySecret::new([7; 16]));
                let generation = engine.generation(loaded.config.policy, None).0;
                engine.tick(&generation);
            }
            Err(errors) => {
                prop_assert!(!errors.errors.is_empty());
                for line in errors.lines() {
                    prop_assert!(line.starts_with("f.yaml"), "{line}");
                }
            }
        }
        Ok(())
    });
}
