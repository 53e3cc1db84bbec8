//! What a request may say and how: spellings of one credential, claims that only a proxy may make,
//! cookies in pieces, paths and lengths that readers take for different ones.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http2::silent;
use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, Reloaded, Seen, origin_yaml};

/// Sends a request of HTTP/1 on a connection of its own; the status of its answer.
async fn status(gate: &Gate, head: &str) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    // Code points are bytes, so that a field may hold any.
    let bytes: Vec<u8> = head.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    stream.write_all(&bytes).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read_buf(&mut answer).await.unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
    }
    std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap()
}

async fn get(gate: &Gate, target: &str, fields: &str) -> u16 {
    let fields = if fields.is_empty() { String::new() } else { format!("{fields}\r\n") };
    let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
    status(gate, &head).await
}

/// Sends a request of HTTP/2 over TLS; the status of its answer.
async fn get_http2(gate: &Gate, target: &str, fields: &[(&str, &str)]) -> u16 {
    let stream = TokioIo::new(silent(gate.port).await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = hyper::Request::get(format!("https://one.example:8443{target}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let status = sender.send_request(request).await.unwrap().status().as_u16();
    connection.abort();
    status
}

/// All lines of a field that the origin saw last.
fn lines(origin: &Origin, name: &str) -> Vec<String> {
    let Seen { headers, .. } = origin.seen().pop().unwrap();
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.get_all(name).iter().map(text).collect()
}

const ROUTE: &str = "routes: [{ name: r }]\n";

async fn over_tls(origin: SocketAddr, more: &str) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    Gate::start_in(folder, &format!("{}{ROUTE}{more}", origin_yaml(origin)), ONE).await
}

#[tokio::test]
async fn an_origin_of_http1_gets_one_line_of_cookies() {
    let origin = Origin::start("site").await;
    let gate = over_tls(origin.address, "").await;
    let crumbs = [("cookie", "a=1"), ("x-between", "x"), ("cookie", "b=2"), ("cookie", "c=3")];
    assert_eq!(get_http2(&gate, "/", &crumbs).await, 200);
    assert_eq!(lines(&origin, "cookie"), ["a=1; b=2; c=3"]);
    assert_eq!(lines(&origin, "x-between"), ["x"]);
    assert_eq!(get_http2(&gate, "/", &[("cookie", "a=1")]).await, 200);
    assert_eq!(lines(&origin, "cookie"), ["a=1"]);
    // Clients of HTTP/1 should send one line (RFC 6265, section 5.4). Origins read several in
    // different ways, so they too become the one that was read here.
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    assert_eq!(get(&gate, "/", "Cookie: a=1\r\nX: y\r\nCookie: b=2;\r\ncookie:").await, 200);
    assert_eq!(lines(&origin, "cookie"), ["a=1; b=2"]);
}

const KEYS: &str = "
limits:
  cookie: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, cookie:session_id], missing_key: skip }
  query: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, query:api_key], missing_key: skip }
  bearer: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, bearer], missing_key: skip }
  basic: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, basic_user], missing_key: skip }
  header: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, header:x-api-key], missing_key: skip }
  authorization: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: [host, header:authorization], missing_key: skip }
routes:
  - { name: cookie, match: { path: /cookie }, limits: [cookie] }
  - { name: query, match: { path: /query }, limits: [query] }
  - { name: bearer, match: { path: /bearer }, limits: [bearer] }
  - { name: basic, match: { path: /basic }, limits: [basic] }
  - { name: header, match: { path: /header }, limits: [header] }
  - { name: authorization, match: { path: /authorization }, limits: [authorization] }
  - { name: r }
";

/// A route, a credential that spends its budget, and the same one in another spelling: 429, the
/// same budget, or 400.
const SPELLINGS: &[(&str, &str, &str, u16)] = &[
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=\"abc\"", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=%61bc", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=\"\\141bc\"", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=\"\\abc\"", 429),
    ("/cookie", "Cookie: session_id=a%20c", "Cookie: session_id=a+c", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: x=1\r\nCookie: session_id=abc", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=abc; session_id=d", 429),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session.id=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session id=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session[id=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session%5Fid=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: %73ession_id=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id[]=abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=%c1%a1bc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=abc%00x", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=ab%6", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=\"abc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=\\141bc", 400),
    ("/cookie", "Cookie: session_id=abc", "Cookie: session_id=abc,x=y", 400),
    ("/query?api_key=abc", "", "?api_key=%61bc", 429),
    ("/query?api_key=abc", "", "?x=1&&api_key=abc", 429),
    ("/query?api_key=abc", "", "?%61pi_key=abc", 429),
    ("/query?api_key=abc", "", "?api+key=abc", 400),
    ("/query?api_key=abc", "", "?api.key=abc", 400),
    ("/query?api_key=abc", "", "?api%20key=abc", 400),
    ("/query?api_key=abc", "", "?api%2Ekey=abc", 400),
    ("/query?api_key=abc", "", "?api%5Bkey=abc", 400),
    ("/query?api_key=abc", "", "?api[key=abc", 400),
    ("/query?api_key=abc", "", "?api_key[]=abc", 400),
    ("/query?api_key=abc", "", "?api_key%5B%5D=abc", 400),
    ("/query?api_key=abc", "", "?%20api_key=abc", 400),
    ("/query?api_key=abc", "", "?+api_key=abc", 400),
    ("/query?api_key=abc", "", "?api_key%00x=abc", 400),
    ("/query?api_key=abc", "", "?api%c1%9fkey=abc", 400),
    ("/query?api_key=abc", "", "?x=1;api_key=abc", 400),
    ("/query?api_key=abc", "", "?api_key=abc;x=1", 400),
    ("/query?api_key=abc", "", "?api_key=ab%", 400),
    ("/query?api_key=abc", "", "?api_key=ab%c1%a3", 400),
    ("/query?api_key=abc", "", "?api_key=abc%00", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: bEARER abc", 429),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer   abc ", 429),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer\tabc", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer \tabc", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer abc x", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer abc,x", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer \"abc\"", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer\u{a0}abc", 400),
    ("/bearer", "Authorization: Bearer abc", "Authorization: Bearer=abc", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: basic  dTpw", 429),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dTpvbmU=", 429),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dTpvbmU", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dTpvbmV=", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dT!pw", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dT pw", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic\tdTpw", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dQ==", 400),
    ("/basic", "Authorization: Basic dTpw", "Authorization: Basic dQA6cA==", 400),
    ("/header", "X-Api-Key: abc", "x-api-key:  abc ", 429),
    ("/header", "X-Api-Key: abc", "X_Api_Key: abc", 400),
    ("/header", "X-Api-Key: abc", "X.Api.Key: abc", 400),
    ("/authorization", "Authorization: Bearer abc", "Authorization: BEARER  abc", 429),
    ("/authorization", "Authorization: Bearer abc", "Authorization: Bearer\tabc", 400),
    ("/authorization", "Authorization: Basic dTpw", "Authorization: basic dTpw", 429),
    ("/authorization", "Authorization: Basic dTpvbmU=", "Authorization: Basic dTpvbmU", 400),
];

#[tokio::test]
async fn spellings_of_one_credential_are_no_fresh_budgets() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{KEYS}", origin_yaml(origin.address))).await;
    let mut wrong = Vec::new();
    for (number, (target, credential, other, expected)) in SPELLINGS.iter().enumerate() {
        let host = format!("Host: h{number}.test");
        let ask = async |target: &str, field: &str| {
            let field = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
            let head =
                format!("GET {target} HTTP/1.1\r\n{host}\r\n{field}Connection: close\r\n\r\n");
            status(&gate, &head).await
        };
        assert_eq!(ask(target, credential).await, 200, "{target} {credential}");
        assert_eq!(ask(target, credential).await, 429, "{target} {credential}");
        let found = match other.strip_prefix('?') {
            Some(_) => ask(&format!("{}{other}", target.split_once('?').unwrap().0), "").await,
            None => ask(target, other).await,
        };
        if found != *expected {
            wrong.push(format!("{target} {other:?}: {found} and not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), SPELLINGS.len(), wrong.join("\n"));
    assert_eq!(origin.count(), SPELLINGS.len());
    // What only resembles a credential, or is no key of the route, is left alone.
    for (target, fields) in [
        ("/cookie", "Cookie: sessionid=a; session=b; other=%zz; x_session_id=%41"),
        ("/cookie", "Cookie: session-id=a; [=1; =2; session_id_=3"),
        ("/query?apikey=1&api-key=2&x=%zz;y&info=%c1%a1&api_key2=3", ""),
        ("/bearer", "Authorization: Token abc"),
        ("/bearer", "Authorization: Bearerish abc"),
        ("/bearer", "Authorization: Bearer 1|a.b-c_d~e+f/g=="),
        ("/basic", "Authorization: Bearer !"),
        ("/", "X_Api_Keys: abc\r\nMy_Own: x"),
    ] {
        assert_eq!(get(&gate, target, fields).await, 200, "{target} {fields}");
    }
}

/// Fields that say whom the request is from, or what it is aimed at, besides those that tollgate
/// writes itself.
const CLAIMS: &[&str] = &[
    "X-Real-IP",
    "True-Client-IP",
    "Client-IP",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "CF-Connecting-IP",
    "CF-Connecting-IPv6",
    "Fastly-Client-IP",
    "X-Original-Forwarded-For",
    "X-Envoy-External-Address",
    "X-Originating-IP",
    "X-Remote-IP",
    "X-Remote-Addr",
    "Forwarded",
    "Forwarded-For",
    "X-Forwarded",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Server",
    "X-Forwarded-Scheme",
    "X-Forwarded-Ssl",
    "X-Forwarded-By",
    "X-Forwarded-User",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-Uri",
    "X-Original-URL",
    "X-Original-URI",
    "X-Original-Host",
    "X-Rewrite-URL",
    "X-Host",
    "X-HTTP-Host-Override",
    "X-Scheme",
    "X-Url-Scheme",
    "Front-End-Https",
    "Proxy",
    "X-Override-URL",
    "X-HTTP-Path-Override",
    "X-Waws-Unencoded-Url",
    "X-Envoy-Original-Path",
    "X-Backend-Host",
    "X-Gateway-Host",
    "X-Remote-Address",
    "X-ProxyUser-Ip",
    "Fly-Client-IP",
    "DO-Connecting-IP",
    "Akamai-Client-IP",
    "Incap-Client-IP",
    "CloudFront-Viewer-Address",
    "X-Vercel-Forwarded-For",
    "X-AppEngine-Remote-Addr",
    "X-ARR-ClientCert",
    "X-Azure-FDID",
    "X-SSL-Client-Verify",
    "X-SSL-Client-S-DN",
    "SSL-Client-Cert",
    "X-Client-Cert",
    "X-Auth-Request-Email",
    "X-WebAuth-User",
    "X-Authenticated-User",
    "X-Remote-User",
    "Remote-User",
    "Remote-Addr",
];

#[tokio::test]
async fn claims_of_a_client_reach_no_origin() {
    let origin = Origin::start("site").await;
    let base = format!("{}{ROUTE}", origin_yaml(origin.address));
    let tls = over_tls(origin.address, "").await;
    let gate = Gate::start(&base).await;
    let names = || CLAIMS.iter().map(|name| name.to_ascii_lowercase());
    let all: String = CLAIMS.iter().map(|name| format!("{name}: 203.0.113.9\r\n")).collect();
    let kept = |origin: &Origin| -> Vec<String> {
        names().filter(|name| !lines(origin, name).is_empty()).collect()
    };
    let usual = "X-Api-Key: k\r\nX-Requested-With: a\r\nX-Csrf: b\r\nClient-Version: 1\r\n";
    assert_eq!(get(&gate, "/", &format!("{usual}{all}Accept: */*")).await, 200);
    let none: [String; 0] = [];
    assert_eq!(kept(&origin), none, "over HTTP/1");
    for name in ["x-api-key", "x-requested-with", "x-csrf", "client-version", "accept"] {
        assert_eq!(lines(&origin, name).len(), 1, "{name}");
    }
    // Each alone too: nothing hides behind another.
    for name in CLAIMS {
        assert_eq!(get(&gate, "/", &format!("{name}: x")).await, 200, "{name}");
        assert_eq!(lines(&origin, &name.to_ascii_lowercase()), none, "{name}");
    }
    let lower: Vec<String> = names().collect();
    let fields: Vec<(&str, &str)> = lower.iter().map(|name| (name.as_str(), "x")).collect();
    assert_eq!(get_http2(&tls, "/", &fields).await, 200);
    assert_eq!(kept(&origin), none, "over HTTP/2");
    // In the spelling of a reader that knows no difference, they are refused.
    for name in ["X_Forwarded_For", "X_Real_IP", "x-forwarded_host", "Content_Length"] {
        assert_eq!(get(&gate, "/", &format!("{name}: 1")).await, 400, "{name}");
    }
    assert_eq!(get_http2(&tls, "/", &[("x_forwarded_for", "1")]).await, 400);
    // A trusted peer says what it likes, also after a reload.
    let trusting = format!("{base}clients: {{ trusted_proxies: [127.0.0.1] }}\n");
    assert_eq!(gate.reload(&trusting, "").await, Reloaded::Applied);
    assert_eq!(get(&gate, "/", &format!("{all}Accept: */*")).await, 200);
    assert_eq!(kept(&origin).len(), CLAIMS.len());
}

#[tokio::test]
async fn the_forwarded_host_is_as_the_client_wrote_it() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    for host in ["Shop.Example:8080", "shop.example", "shop.example.", "[::1]:8080"] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Host: evil\r\n\r\n");
        assert_eq!(status(&gate, &head).await, 200);
        assert_eq!(lines(&origin, "x-forwarded-host"), [host]);
    }
    let tls = over_tls(origin.address, "").await;
    assert_eq!(get_http2(&tls, "/", &[("x-forwarded-host", "evil")]).await, 200);
    assert_eq!(lines(&origin, "x-forwarded-host"), ["one.example:8443"]);
}

#[tokio::test]
async fn a_field_with_underscores_is_refused_dropped_or_passed() {
    let origin = Origin::start("site").await;
    let base = format!("{}{KEYS}", origin_yaml(origin.address));
    let gate = Gate::start(&base).await;
    let one = "X_Api_Key: abc\r\nMy_Own: x";
    assert_eq!(get(&gate, "/header", one).await, 400);
    assert_eq!(origin.count(), 0);
    let text = gate.metrics().await;
    assert!(text.contains("tollgate_rejected_total{reason=\"ambiguous_field\"} 1"), "{text}");
    let with = |word| format!("{base}limits_of_this_proxy: {{ underscores: {word} }}\n");
    assert_eq!(gate.reload(&with("drop"), "").await, Reloaded::Applied);
    assert_eq!(get(&gate, "/header", one).await, 200);
    assert_eq!((lines(&origin, "x_api_key").len(), lines(&origin, "my_own").len()), (0, 1));
    assert_eq!(gate.reload(&with("pass"), "").await, Reloaded::Applied);
    assert_eq!(get(&gate, "/header", one).await, 200);
    assert_eq!(lines(&origin, "x_api_key"), ["abc"]);
    // What a policy without such a key means nothing by is left alone.
    let other = format!("{}{ROUTE}", origin_yaml(origin.address));
    assert_eq!(gate.reload(&other, "").await, Reloaded::Applied);
    assert_eq!(get(&gate, "/", one).await, 200);
    assert_eq!(lines(&origin, "x_api_key"), ["abc"]);
    // Fields of matches, plans and costs are meant too.
    let policy = format!(
        "{}
limits:
  l: {{ tier: exact, rate: 9/1h, key: client_ip, cost: {{ header: x-cost, default: 1, max: 9 }},
       plans: {{ by: header:x-plan, rates: {{ gold: 99/1h }} }} }}
routes: [{{ name: a, match: {{ header: {{ x-version: \"2\" }} }} }}, {{ name: b, limits: [l] }}]
",
        origin_yaml(origin.address)
    );
    assert_eq!(gate.reload(&policy, "").await, Reloaded::Applied);
    for name in ["X_Cost", "X_Plan", "X_Version", "X.Cost", "Authorization_", "Cookie_"] {
        let expected = if name.ends_with('_') { 200 } else { 400 };
        assert_eq!(get(&gate, "/", &format!("{name}: 1")).await, expected, "{name}");
    }
}

#[tokio::test]
async fn a_method_override_is_stripped_refused_or_passed() {
    let origin = Origin::start("site").await;
    let base = format!("{}{ROUTE}", origin_yaml(origin.address));
    let tls = over_tls(origin.address, "").await;
    let gate = Gate::start(&base).await;
    let with = |word| format!("{base}limits_of_this_proxy: {{ method_override: {word} }}\n");
    for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"] {
        let lower = name.to_ascii_lowercase();
        let (other, same) = (format!("{name}: DELETE"), format!("{name}: get"));
        let none: [&str; 0] = [];
        assert_eq!(gate.reload(&base, "").await, Reloaded::Applied);
        assert_eq!(get(&gate, "/", &other).await, 200);
        assert_eq!(lines(&origin, &lower), none);
        assert_eq!(get(&gate, "/", &same).await, 200);
        assert_eq!(lines(&origin, &lower), ["get"], "names the request's own");
        assert_eq!(get(&gate, "/", &format!("{same}\r\n{other}")).await, 200);
        assert_eq!(lines(&origin, &lower), none);
        assert_eq!(get_http2(&tls, "/", &[(&lower, "DELETE")]).await, 200);
        assert_eq!(lines(&origin, &lower), none);
        assert_eq!(gate.reload(&with("reject"), "").await, Reloaded::Applied);
        assert_eq!(get(&gate, "/", &other).await, 400);
        assert_eq!(get(&gate, "/", &same).await, 200);
        assert_eq!(gate.reload(&with("pass"), "").await, Reloaded::Applied);
        assert_eq!(get(&gate, "/", &other).await, 200);
        assert_eq!(lines(&origin, &lower), ["DELETE"]);
    }
    let text = gate.metrics().await;
    assert!(text.contains("tollgate_rejected_total{reason=\"method_override\"} 3"), "{text}");
}

#[tokio::test]
async fn a_length_that_no_reader_can_hold_is_refused() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    for length in ["9223372036854775808", "18446744073709551615", "99999999999999999999"] {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(status(&gate, &head).await, 400, "{length}");
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn whom_trusted_proxies_speak_for_is_read_without_being_told() {
    let origin = Origin::start("site").await;
    let base = format!(
        "{}limits: {{ l: {{ tier: exact, rate: 1/30d, key: client_ip }} }}\n\
         routes: [{{ name: r, limits: [l] }}]\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&format!("{base}clients: {{ trusted_proxies: [127.0.0.1] }}\n")).await;
    let from = |address: &str| format!("X-Forwarded-For: {address}");
    assert_eq!(get(&gate, "/", &from("203.0.113.1")).await, 200);
    assert_eq!(get(&gate, "/", &from("203.0.113.1")).await, 429);
    assert_eq!(get(&gate, "/", &from("203.0.113.2")).await, 200, "another client");
    let none = "clients: { trusted_proxies: [127.0.0.1], address_header: none }\n";
    assert_eq!(gate.reload(&format!("{base}{none}"), "").await, Reloaded::Applied);
    assert_eq!(get(&gate, "/", &from("203.0.113.3")).await, 200, "the peer");
    assert_eq!(get(&gate, "/", &from("203.0.113.4")).await, 429, "the peer again");
}
