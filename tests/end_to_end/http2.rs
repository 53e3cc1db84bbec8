//! HTTP/2 as an attacker writes it: frames made by hand.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::tls::{ONE, folder};
pub use support::frames::{
    Anybody, Attacker, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, frame, length, request, silent,
};
use support::servers::{
    Gate, Origin, Reloaded, eventually, metric, now, origin_yaml, resident_kib,
};

/// What the tests allow an attack to cost.
const MOST_KIB: u64 = 40 * 1024;

const BOUNDS: &str = "limits_of_this_proxy: { header_timeout: 1s, write_timeout: 1s }\n";

async fn gate(origin: &Origin) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    let policy = format!("{}routes: [{{ name: r }}]\n{BOUNDS}", origin_yaml(origin.address));
    Gate::start_in(folder, &policy, ONE).await
}

/// A body that stalls while its request is delayed is cut for its rate, and counted so.
#[tokio::test]
async fn a_stalled_body_of_a_delayed_request_is_named() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let limit = "{ tier: exact, algorithm: token_bucket, rate: 1/50s, burst: 1, max_delay: 55s, key: client_ip }";
    let policy = format!(
        "{}limits:\n  line: {limit}\nroutes: [{{ name: r, limits: [line] }}]\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let mut client = Attacker::new(gate.port).await;
    let first = request("GET", "/first", &[]);
    client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &first)).await;
    assert_eq!(client.answer(1).await, Some(200));
    let stalled = request("POST", "/stalled", &[(b"content-length", b"1000")]);
    client.write(&frame(HEADERS, END_HEADERS, 3, &stalled)).await;
    client.write(&frame(0, 0, 3, b"0123456789")).await;
    let counted = eventually(Duration::from_secs(30), || async {
        let sample = "tollgate_rejected_total{reason=\"body_rate\"}";
        metric(&gate.metrics().await, sample) == 1.0
    });
    assert!(counted.await, "{}", gate.metrics().await);
    assert_eq!(origin.count(), 1, "it was not forwarded");
}

/// Another client is served, and the attack has cost no more than it may.
async fn unharmed(gate: &Gate, before: u64) {
    let mut other = Attacker::new(gate.port).await;
    let head = request("GET", "/other", &[]);
    assert!(other.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await);
    assert_eq!(other.answer(1).await, Some(200));
    let grown = resident_kib(gate.pid()).saturating_sub(before);
    assert!(grown < MOST_KIB, "{grown} KiB");
    assert!(!gate.log().contains("panicked"), "{}", gate.log());
}

#[tokio::test]
async fn what_is_no_request_reaches_no_origin() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let (m, s, p, a): (&[u8], &[u8], &[u8], &[u8]) =
        (b":method", b":scheme", b":path", b":authority");
    let (get, https, x, one): (&[u8], &[u8], &[u8], &[u8]) =
        (b"GET", b"https", b"/x", b"one.example");
    let blocks: Vec<(&str, Vec<u8>)> = vec![
        ("no method", fields(&[(s, https), (p, x), (a, one)])),
        ("no scheme", fields(&[(m, get), (p, x), (a, one)])),
        ("no path", fields(&[(m, get), (s, https), (a, one)])),
        ("no authority and no host", fields(&[(m, get), (s, https), (p, x)])),
        ("two paths", fields(&[(m, get), (s, https), (p, x), (p, b"/admin"), (a, one)])),
        ("two methods", fields(&[(m, get), (m, b"POST"), (s, https), (p, x), (a, one)])),
        ("an unknown pseudo field", request("GET", "/x", &[(b":foo", b"x")])),
        ("a status", request("GET", "/x", &[(b":status", b"200")])),
        (
            "a pseudo field after others",
            fields(&[(m, get), (s, https), (b"x", b"y"), (p, x), (a, one)]),
        ),
        ("an empty path", request("GET", "", &[])),
        ("a path without a slash", request("GET", "admin", &[])),
        ("an absolute path", request("GET", "https://one.example/x", &[])),
        ("a star for GET", request("GET", "*", &[])),
        ("a blank in the path", request("GET", "/x y", &[])),
        ("a line end in the path", request("GET", "/x\r\nX: y", &[])),
        ("a NUL in the path", request("GET", "/x\0", &[])),
        ("an escaped NUL", request("GET", "/x%00", &[])),
        ("above the root", request("GET", "/x/../../y", &[])),
        ("bytes above 127", fields(&[(m, get), (s, https), (p, b"/\xff"), (a, one)])),
        ("a user in the authority", fields(&[(m, get), (s, https), (p, x), (a, b"u@one.example")])),
        ("a path in the authority", fields(&[(m, get), (s, https), (p, x), (a, b"one.example/x")])),
        ("an empty authority", fields(&[(m, get), (s, https), (p, x), (a, b"")])),
        ("another host", request("GET", "/x", &[(b"host", b"two.example")])),
        (
            "two hosts",
            request("GET", "/x", &[(b"host", b"one.example"), (b"host", b"one.example")]),
        ),
        ("CONNECT", fields(&[(m, b"CONNECT"), (a, b"one.example:80")])),
        ("TRACE", request("TRACE", "/x", &[])),
        ("an unknown method", request("FOO", "/x", &[])),
        ("a method in small letters", request("get", "/x", &[])),
        ("a method with a blank", request("GET /admin HTTP/1.1\r\n", "/x", &[])),
        ("capitals in a name", request("GET", "/x", &[(b"X-Loud", b"y")])),
        ("a blank in a name", request("GET", "/x", &[(b"x y", b"z")])),
        ("a colon in a name", request("GET", "/x", &[(b"x:y", b"z")])),
        ("an empty name", request("GET", "/x", &[(b"", b"z")])),
        ("a line end in a name", request("GET", "/x", &[(b"x\r\ny", b"z")])),
        ("a line end in a value", request("GET", "/x", &[(b"x", b"y\r\nz: w")])),
        ("a NUL in a value", request("GET", "/x", &[(b"x", b"y\0")])),
        ("connection", request("GET", "/x", &[(b"connection", b"x-api-key")])),
        ("keep-alive", request("GET", "/x", &[(b"keep-alive", b"x")])),
        ("proxy-connection", request("GET", "/x", &[(b"proxy-connection", b"x")])),
        ("transfer-encoding", request("POST", "/x", &[(b"transfer-encoding", b"chunked")])),
        ("upgrade", request("GET", "/x", &[(b"upgrade", b"websocket")])),
        ("te", request("GET", "/x", &[(b"te", b"gzip")])),
        (
            "two lengths",
            request("POST", "/x", &[(b"content-length", b"0"), (b"content-length", b"5")]),
        ),
        ("a list of lengths", request("POST", "/x", &[(b"content-length", b"0, 5")])),
        ("a length of letters", request("POST", "/x", &[(b"content-length", b"x")])),
        ("a signed length", request("POST", "/x", &[(b"content-length", b"+0")])),
        ("a length without a body", request("POST", "/x", &[(b"content-length", b"5")])),
        ("a head of 40 KB", request("GET", "/x", &[(b"x", &[b'y'; 40_000])])),
        ("two hundred fields", request("GET", "/x", &[(&b"x"[..], &b"y"[..]); 200])),
    ];
    assert!(blocks.len() >= 49);
    for (name, block) in &blocks {
        let mut attacker = Attacker::new(gate.port).await;
        for (n, piece) in block.chunks(16_000).enumerate() {
            let end = if (n + 1) * 16_000 >= block.len() { END_HEADERS } else { 0 };
            let kind = if n == 0 { HEADERS } else { CONTINUATION };
            let flags = if n == 0 { end | END_STREAM } else { end };
            attacker.write(&frame(kind, flags, 1, piece)).await;
        }
        let answer = attacker.answer(1).await;
        assert_ne!(answer, Some(200), "{name}");
        assert_eq!(origin.count(), 0, "{name}");
    }
    let mut clean = Attacker::new(gate.port).await;
    // The frame codec cuts a fragment off before anybody matches: what is forwarded is still what
    // was matched.
    let paths = ["/x", "/x?y", "/a/%61", "/group%2Fproject", "/x#y"];
    for (n, path) in paths.iter().enumerate() {
        let stream = n as u32 * 2 + 1;
        let block =
            request("GET", path, &[(b"te", b"trailers"), (b"cookie", b"a=b"), (b"cookie", b"c=d")]);
        assert!(clean.write(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)).await);
        assert_eq!(clean.answer(stream).await, Some(200), "{path}");
    }
    let targets: Vec<String> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/x", "/x?y", "/a/a", "/group%2Fproject", "/x"]);
}

#[tokio::test]
async fn a_length_that_lies_is_a_broken_request() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    for (length, body) in [(&b"10"[..], &b"12345"[..]), (b"5", b"1234567890"), (b"0", b"x")] {
        let mut attacker = Attacker::new(gate.port).await;
        let block = request("POST", "/x", &[(b"content-length", length)]);
        attacker.write(&frame(HEADERS, END_HEADERS, 1, &block)).await;
        attacker.write(&frame(DATA, END_STREAM, 1, body)).await;
        let answer = attacker.answer(1).await;
        assert_ne!(answer, Some(200), "{length:?}");
    }
    let mut honest = Attacker::new(gate.port).await;
    let block = request("POST", "/x", &[(b"content-length", b"5")]);
    honest.write(&frame(HEADERS, END_HEADERS, 1, &block)).await;
    honest.write(&frame(DATA, END_STREAM, 1, b"12345")).await;
    assert_eq!(honest.answer(1).await, Some(200));
}

#[tokio::test]
async fn a_rapid_reset_ends_with_the_connection() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let before = resident_kib(gate.pid());
    let mut attacker = Attacker::new(gate.port).await;
    let block = request("GET", "/reset", &[]);
    let mut written = 0;
    for n in 0..10_000_u32 {
        let mut bytes = frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block);
        bytes.extend(frame(RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes()));
        if !attacker.write(&bytes).await {
            break;
        }
        written += 1;
    }
    attacker.closed().await;
    assert!(written < 10_000, "the connection outlived {written} resets");
    let seen = origin.count();
    assert!(seen <= 101, "{seen} requests reached the origin");
    let counted = eventually(Duration::from_secs(5), || async {
        let metrics = gate.metrics().await;
        // The framework's own guard may be the first.
        metric(&metrics, "tollgate_rejected_total{reason=\"h2_resets\"}") <= 1.0
            && metric(&metrics, "tollgate_connections") == 0.0
    });
    assert!(counted.await);
    unharmed(&gate, before).await;
}

/// Streams that are reset while the origin still thinks, and a connection that goes with some open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_streams_free_their_places_in_flight() {
    let (origin, _) = support::moody::start();
    let (folder, _) = folder(&["one.example"]);
    let policy = format!(
        "{}limits: {{ slots: {{ tier: exact, max_in_flight: 8, key: client_ip }} }}\n\
         routes: [{{ name: r, limits: [slots] }}]\n",
        origin_yaml(origin)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let held = async || metric(&gate.metrics().await, "tollgate_in_flight{limit=\"slots\"}");
    let mut attacker = Attacker::new(gate.port).await;
    let block = request("GET", "/", &[(b"x-mood", b"hang")]);
    let open = |n: u32| frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block);
    for round in 0..5_u32 {
        let streams = round * 8..round * 8 + 8;
        for n in streams.clone() {
            assert!(attacker.write(&open(n)).await);
        }
        let full = eventually(Duration::from_secs(5), || async { held().await == 8.0 });
        assert!(full.await, "round {round}: {} held", held().await);
        for n in streams {
            attacker.write(&frame(RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes())).await;
        }
        let free = eventually(Duration::from_secs(5), || async { held().await == 0.0 });
        assert!(free.await, "round {round}: {} held after the reset", held().await);
    }
    for n in 40..48_u32 {
        attacker.write(&open(n)).await;
    }
    let full = eventually(Duration::from_secs(5), || async { held().await == 8.0 });
    assert!(full.await);
    drop(attacker);
    let free = eventually(Duration::from_secs(5), || async { held().await == 0.0 });
    assert!(free.await, "{} held after the connection", held().await);
}

#[tokio::test]
async fn slow_resets_are_counted_too() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let bounds = "limits_of_this_proxy: { h2_resets: 10 }\n";
    let policy = format!("{}routes: [{{ name: r }}]\n{bounds}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let mut attacker = Attacker::new(gate.port).await;
    let block = request("GET", "/reset", &[]);
    let mut resets = 0;
    for n in 0..20_u32 {
        attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)).await;
        if attacker.answer(n * 2 + 1).await.is_none() {
            break;
        }
        attacker.write(&frame(RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes())).await;
        resets += 1;
    }
    assert_eq!(resets, 11);
    // A proxy that is trusted shares its connection among many.
    let trusted = format!("{policy}clients: {{ trusted_proxies: [127.0.0.0/8] }}\n");
    assert!(matches!(gate.reload(&trusted, ONE).await, Reloaded::Applied));
    let mut proxy = Attacker::new(gate.port).await;
    for n in 0..50_u32 {
        proxy.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)).await;
        assert_eq!(proxy.answer(n * 2 + 1).await, Some(200), "after {n} resets");
        proxy.write(&frame(RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes())).await;
    }
    let counted = eventually(Duration::from_secs(5), || async {
        let sample = "tollgate_rejected_total{reason=\"h2_resets\"}";
        metric(&gate.metrics().await, sample) == 1.0
    });
    assert!(counted.await);
}

#[tokio::test]
async fn floods_of_frames_cost_little() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let before = resident_kib(gate.pid());
    let block = request("GET", "/x", &[]);
    let floods: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("settings", Vec::new(), frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0])),
        ("pings", Vec::new(), frame(PING, 0, 0, &[7; 8])),
        (
            "continuations",
            frame(HEADERS, 0, 1, &block),
            frame(CONTINUATION, 0, 1, &fields(&[(b"x", b"y")])),
        ),
        ("empty continuations", frame(HEADERS, 0, 1, &block), frame(CONTINUATION, 0, 1, b"")),
        ("empty bodies", frame(HEADERS, END_HEADERS, 1, &block), frame(DATA, 0, 1, b"")),
        ("priorities", Vec::new(), frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        ("window updates", Vec::new(), frame(8, 0, 0, &[0, 0, 0, 1])),
        ("unknown frames", Vec::new(), frame(0xaa, 0, 0, &[0; 100])),
    ];
    for (name, first, again) in floods {
        let mut attacker = Attacker::new(gate.port).await;
        attacker.write(&first).await;
        let many = again.repeat(1_000);
        // Nothing is read: what is to be answered piles up on this side or on theirs.
        for _ in 0..100 {
            if !attacker.write(&many).await {
                break;
            }
        }
        let grown = resident_kib(gate.pid()).saturating_sub(before);
        assert!(grown < MOST_KIB, "{name}: {grown} KiB");
        unharmed(&gate, before).await;
    }
}

#[tokio::test]
async fn a_bomb_of_indexed_fields_is_defused() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let before = resident_kib(gate.pid());
    let mut attacker = Attacker::new(gate.port).await;
    // One entry of the dynamic table (literal with indexing), then thousands of references to it.
    let mut block = request("GET", "/x", &[]);
    block.push(0x40);
    length(&mut block, 1);
    block.push(b'x');
    length(&mut block, 3_500);
    block.extend(vec![b'y'; 3_500]);
    block.extend(vec![0x80 | 62; 16_000]);
    let (first, second) = block.split_at(16_000);
    attacker.write(&frame(HEADERS, END_STREAM, 1, first)).await;
    attacker.write(&frame(CONTINUATION, END_HEADERS, 1, second)).await;
    assert_ne!(attacker.answer(1).await, Some(200));
    assert_eq!(origin.count(), 0);
    unharmed(&gate, before).await;
}

#[tokio::test]
async fn a_window_that_never_opens_holds_nothing_for_long() {
    let origin = Origin::with(|seen| {
        let size = if seen.target == "/big" { 4 << 20 } else { 4 };
        hyper::Response::new(http_body_util::Full::from(vec![b'x'; size]))
    })
    .await;
    let gate = gate(&origin).await;
    let before = resident_kib(gate.pid());
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    let mut attacker = Attacker::with_settings(gate.port, &[0, 4, 0, 0, 0, 0]).await;
    let block = request("GET", "/big", &[]);
    for n in 0..50_u32 {
        attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)).await;
    }
    // Every stream is given up after write_timeout, and not before it was answered.
    let mut given_up = 0;
    while given_up < 50 {
        let Some((kind, ..)) = attacker.read().await else { break };
        given_up += usize::from(kind == RST_STREAM);
    }
    assert_eq!(given_up, 50);
    unharmed(&gate, before).await;
}

#[tokio::test]
async fn who_owes_a_head_is_cut_in_time() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let block = request("GET", "/x", &[]);
    let within = |took: Duration, what: &str| {
        let fits = took > Duration::from_millis(500) && took < Duration::from_millis(2_000);
        assert!(fits, "{what}: {took:?}");
    };
    within(Attacker(silent(gate.port).await).closed().await, "no preface");
    let mut half = silent(gate.port).await;
    half.write_all(b"PRI * HTTP/2").await.unwrap();
    within(Attacker(half).closed().await, "half a preface");
    let mut open = Attacker::new(gate.port).await;
    open.write(&frame(HEADERS, 0, 1, &block)).await;
    within(open.closed().await, "a block that does not end");
    let mut inside = Attacker::new(gate.port).await;
    inside.write(&frame(HEADERS, END_HEADERS, 1, &block)[..20]).await;
    within(inside.closed().await, "half a frame");
    // A continuation now and then does not make it later.
    let mut trickle = Attacker::new(gate.port).await;
    trickle.write(&frame(HEADERS, 0, 1, &block)).await;
    let began = now();
    while trickle.write(&frame(CONTINUATION, 0, 1, &fields(&[(b"x", b"y")]))).await {
        assert!(began.elapsed() < Duration::from_secs(4), "a trickle goes on for ever");
        let closed = async { while trickle.read().await.is_some() {} };
        if timeout(Duration::from_millis(200), closed).await.is_ok() {
            break;
        }
    }
    // Counted when it is closed, of which the client may hear first.
    let counted = eventually(Duration::from_secs(5), || async {
        let sample = "tollgate_rejected_total{reason=\"header_timeout\"}";
        metric(&gate.metrics().await, sample) == 5.0
    });
    assert!(counted.await, "{}", gate.metrics().await);
    assert_eq!(origin.count(), 0);
}
