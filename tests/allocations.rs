//! How many allocations a request costs beside one of a Pingora proxy without a policy: both run
//! in this process, and the allocator counts.
//!
//! The client and the origin here allocate nothing for a request, so what is counted is the
//! proxy's. What both do while nobody asks is a few allocations a second.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora_proxy::http_proxy_service;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::plain::Plain;
use support::servers::free_port;
use support::signing;
use support::wait::eventually_in_thread;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{Quota, Rate, SlidingLog, WindowLengths, log_bytes};
use tollgate::policy::KeyHash;
use tollgate::signals::Signals;
use tollgate::store::{CellBudget, EmbeddedCharge, EmbeddedStore, QuotaSpec, SHARDS};
use tollgate::tokens::{ClaimLookup, SignatureCheck, TokenVerifier, WantedClaim};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What the issue of this file is about: allocations that tollgate may add to a forwarded request.
const MOST_ADDED: f64 = 4.0;

/// The allocator counts for the whole process: one test at a time.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

const REQUESTS: usize = 2_000;

const REQUEST: &[u8] =
    b"GET /item HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/plain\r\n\
                        Content-Length: 6\r\nConnection: keep-alive\r\n\r\nhello\n";

/// Answers every request, with what is on its stack.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let (mut buffer, mut held) = ([0; 8_192], 0);
                while let Ok(read @ 1..) = stream.read(&mut buffer[held..]) {
                    held += read;
                    if buffer[..held].ends_with(b"\r\n\r\n") {
                        held = 0;
                        stream.write_all(ANSWER).unwrap();
                    }
                }
            });
        }
    });
    address
}

fn plain(origin: SocketAddr, refuse: bool) -> u16 {
    let port = free_port();
    std::thread::spawn(move || {
        let conf = ServerConf { threads: 1, ..ServerConf::default() };
        let mut server = Server::new_with_opt_and_conf(None, conf);
        server.bootstrap();
        let plain = Plain { origin: origin.to_string(), refuse };
        let mut service = http_proxy_service(&server.configuration, plain);
        service.add_tcp(&format!("127.0.0.1:{port}"));
        server.add_service(service);
        server.run_forever();
    });
    port
}

/// A route with an estimate and an exact limit, and one that is spent at once.
fn tollgate(origin: SocketAddr) -> u16 {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let policy = format!(
        "version: 1
threads: 1
listeners: [{{ address: 127.0.0.1:{port} }}]
origins: {{ site: {{ servers: ['{origin}'] }} }}
limits:
  pageviews: {{ tier: estimate, rate: 1000000000/1h, key: client_ip }}
  writes: {{ tier: exact, rate: 1000000000/1h, key: client_ip }}
  spent: {{ tier: exact, rate: 1/1d, key: client_ip }}
routes:
  - {{ name: refused, match: {{ path: /refused }}, limits: [pageviews, spent] }}
  - {{ name: all, limits: [pageviews, writes] }}
access_log: {{ to: none }}
"
    );
    std::fs::write(&file, policy).unwrap();
    std::thread::spawn(move || {
        let orders = Signals::install().and_then(Signals::listen).unwrap();
        let loaded = tollgate::config::load(&file).map_err(|errors| errors.to_string()).unwrap();
        let options = tollgate::server::RunOptions { upgrade: false, ignore_state: false };
        tollgate::server::run(loaded, Some(&file), options, None, orders).unwrap();
        drop(folder);
    });
    port
}

fn connect(port: u16) -> TcpStream {
    let connect = || TcpStream::connect(("127.0.0.1", port)).ok();
    let stream = eventually_in_thread(Duration::from_secs(10), connect);
    stream.unwrap_or_else(|| panic!("nothing listens on {port}"))
}

/// Sends one request and reads its answer, of a length that is known.
fn ask(stream: &mut TcpStream, request: &[u8], status: &[u8]) {
    stream.write_all(request).unwrap();
    let (mut buffer, mut held) = ([0; 8_192], 0);
    loop {
        let read = stream.read(&mut buffer[held..]).unwrap();
        assert!(read > 0, "closed");
        held += read;
        let Some(end) = memchr::memmem::find(&buffer[..held], b"\r\n\r\n") else {
            continue;
        };
        let head = &buffer[..end];
        assert_eq!(&head[9..12], status, "{}", head.escape_ascii());
        let length = memchr::memmem::find(head, b"ontent-Length: ").unwrap() + 15;
        let digits = head[length..].iter().take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
        if held >= end + 4 + length {
            return;
        }
    }
}

/// Allocations for each request of a connection that is warm.
fn counted(port: u16, request: &[u8], status: &[u8]) -> f64 {
    let mut stream = connect(port);
    stream.set_nodelay(true).unwrap();
    for _ in 0..REQUESTS / 4 {
        ask(&mut stream, request, status);
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..REQUESTS {
        ask(&mut stream, request, status);
    }
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / REQUESTS as f64
}

#[test]
fn a_request_costs_few_allocations_beside_one_without_a_policy() {
    let _alone = ALONE.lock();
    let origin = origin();
    let ours = tollgate(origin);
    let (plain, refusing) = (plain(origin, false), plain(origin, true));
    let (own, base) = (counted(ours, REQUEST, b"200"), counted(plain, REQUEST, b"200"));
    println!("forwarded: {own:.1} allocations, {base:.1} without a policy: {:+.1}", own - base);
    assert!(own - base <= MOST_ADDED, "{own} instead of {base}");

    let refused = [b"GET /refused".as_slice(), &REQUEST[9..]].concat();
    ask(&mut connect(ours), &refused, b"200");
    let (own, base) = (counted(ours, &refused, b"429"), counted(refusing, REQUEST, b"429"));
    println!("refused: {own:.1} allocations, {base:.1} of a bare 429: {:+.1}", own - base);
    assert!(own - base <= MOST_ADDED, "{own} instead of {base}");
}

/// Keys that burst under a `sliding_log` and then ask once in a while: what the store says that it
/// holds is what the allocator gave it, and what is left is what `check` says of such a key.
#[test]
fn a_log_gives_back_what_it_does_not_need_and_says_what_it_holds() {
    let _alone = ALONE.lock();
    const KEYS: u64 = 10_000;
    const MINUTE: u64 = 60_000_000_000;
    let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
    store.set_budgets(100_000_000, &[room.bounded(None)]);
    let rate = Rate::new(500, Nanos::new(MINUTE)).unwrap();
    let quota = Quota::SlidingLog(SlidingLog::new(rate).unwrap());
    let claim = QuotaSpec {
        quota,
        windows: WindowLengths::of([&quota]),
        budget: Arc::clone(&room),
        denies_after_crash: false,
    };
    let quota = store.issue(claim, None);
    let key = |n: u64| KeyHash { high: n << 50 | n, low: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
    let keys: Vec<KeyHash> = (0..KEYS).map(key).collect();
    let ask = |key: KeyHash, at: u64| {
        let now = Now { mono: Nanos::new(at), wall: Nanos::new(at) };
        let charge = EmbeddedCharge { key, quota: &quota, cost: 1 };
        store.settle_single(&charge, true, now, || panic!("there is room")).unwrap().charged
    };
    let sweep = |at: u64| {
        let now = Now { mono: Nanos::new(at), wall: Nanos::new(at) };
        (0..SHARDS / 128).for_each(|_| {
            store.sweep(128, now);
        });
    };
    let empty = store.bytes();
    let region = Region::new(ALLOCATOR);
    let held = || {
        let change = region.change();
        change.bytes_allocated as f64 - change.bytes_deallocated as f64
    };
    let check = |what: &str, expected: f64, within: f64| {
        let told = (store.bytes() - empty) as f64;
        println!("{what}: the store says {told}, the allocator {}, expected {expected}", held());
        assert!((told / held() - 1.0).abs() < 0.2, "{what}: {told} told, {} held", held());
        assert!(expected == 0.0 || (told / expected - 1.0).abs() < within, "{what}: {told}");
    };
    for n in 0..500 {
        keys.iter().for_each(|key| assert!(ask(*key, MINUTE + n)));
    }
    check("after the burst", 0.0, 0.0);
    keys.iter().for_each(|key| assert!(ask(*key, 3 * MINUTE)));
    sweep(3 * MINUTE + 1);
    // So few keys lie in one block of each shard that they fall into.
    let mut shards: Vec<u64> = keys.iter().map(|key| key.high >> 52).collect();
    shards.sort_unstable();
    shards.dedup();
    let tables = (shards.len() * 2_048) as f64;
    let few = KEYS as f64 * log_bytes(1) as f64;
    check("after the window", tables + few, 0.1);
    sweep(5 * MINUTE);
    assert_eq!((room.cells(), store.bytes()), (0, empty));
}

/// What the claims of remembered tokens may take, with the lists that hold them.
const MOST_REMEMBERED: f64 = 34.0 * 1024.0 * 1024.0;

/// Valid tokens of the largest size, in the forms that take most memory: what is remembered of them stays within its
/// bound, and the last one is still remembered.
#[test]
fn remembered_tokens_are_bounded_by_bytes() {
    let _alone = ALONE.lock();
    const TOKENS: u64 = 2_000;
    let secret = include_str!("policies/keys/secret").trim_end_matches(['\r', '\n']);
    let many: String = (0..1_000).map(|n| format!("\"{n:x}\":1,")).collect();
    for claims in [
        format!("{{{many}\"sub\":\"a\"}}"),
        format!("{{\"sub\":\"a\",\"aud\":[{}\"\"]}}", "\"\",".repeat(3_500)),
        format!("{{\"sub\":\"a\",\"iss\":\"{}\"}}", "i".repeat(11_000)),
    ] {
        let tokens = TokenVerifier::from_secret(secret.as_bytes()).unwrap();
        let lookup = |token: &str| {
            let wanted = WantedClaim::named("sub");
            let value =
                tokens.claim(token.as_bytes(), &wanted, SignatureCheck::Verify, Nanos::ZERO);
            assert_eq!(value, ClaimLookup::Value("a".to_owned()));
        };
        let region = Region::new(ALLOCATOR);
        for n in 0..TOKENS {
            lookup(&signing::signed(&claims, n));
        }
        let change = region.change();
        let held = change.bytes_allocated as f64 - change.bytes_deallocated as f64;
        println!("{} bytes of claims: {held} bytes are held", claims.len());
        assert!(held < MOST_REMEMBERED, "{held}: {}..", &claims[..40]);
        lookup(&signing::signed(&claims, TOKENS - 1));
        assert_eq!(tokens.checks(), TOKENS);
    }
}

/// What reading the worst paths may take: bytes that are written, in place of time.
const MOST_WRITTEN: usize = 160 * 1024;

/// Paths of 32 KiB that mean many things: each is looked at in all its meanings, or refused, for as
/// little as one that means one.
#[test]
fn a_path_of_many_meanings_is_read_for_little() {
    const SIZE: usize = 32 * 1024 - 100;
    let _alone = ALONE.lock();
    let repeated = |unit: &str, size: usize| format!("/{}", unit.repeat(size / unit.len()));
    let mut worst = 0;
    let long = format!("%252F{};x//", "a".repeat(200));
    for unit in [
        &*long,
        "a/../%252F%2F\\;x//./b",
        "%252F",
        "%2F",
        "//",
        "a/../",
        "./",
        "\\",
        ";x/",
        "%3F",
        "%2525",
        "%2561",
        "%61",
        "%C3%A9",
        "%c3%a9",
        "a/",
    ] {
        // At its longest, and as long as it may be and pass.
        let sizes = (4..=SIZE.ilog2()).map(|bits| 1 << bits).chain([SIZE]);
        for size in sizes {
            let path = repeated(unit, size);
            let mut headers = http::HeaderMap::new();
            headers.insert("host", http::HeaderValue::from_static("h"));
            let head = tollgate::http::Head {
                method: &http::Method::GET,
                target: path.as_bytes(),
                authority: None,
                version: http::Version::HTTP_11,
                headers: &headers,
            };
            let bounds = tollgate::http::HeadBounds {
                header_size: 32 * 1024,
                header_fields: 100,
                body_size: None,
            };
            let region = Region::new(ALLOCATOR);
            let readings = tollgate::http::validate(head, bounds).map(|clean| clean.readings.len());
            let written = region.change().bytes_allocated;
            worst = worst.max(written);
            assert!(written < MOST_WRITTEN, "{unit} to {size}: {written} bytes, {readings:?}");
        }
    }
    println!("at most {worst} bytes");
}
