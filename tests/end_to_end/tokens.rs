//! Forged tokens over real sockets: no more signatures are checked than the address's limit admits.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::servers::{Gate, Origin, client, metric, now, origin_yaml};
use crate::{signing, tls};

const CHECKED: &str = "tollgate_tokens_checked_total";

fn policy(address: &str, missing: &str) -> String {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/keys/jwks.json");
    format!(
        "
limits:
  address: {{ {address}, key: client_ip }}
  token: {{ tier: exact, rate: 1000/1h, key: {{ jwt: {{ jwks_file: {keys}, claim: sub }} }}, missing_key: {missing} }}
routes: [{{ name: r, limits: [token, address] }}]
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_are_checked_as_often_as_the_address_may_ask() {
    let exact = "tier: exact, algorithm: fixed_window, rate: 5/1h";
    for (address, missing, admitted, http2) in [
        (exact, "{ deny: 401 }", 401, false),
        (exact, "{ deny: 401 }", 401, true),
        (exact, "skip", 200, false),
        ("tier: estimate, rate: 5/1h", "{ deny: 401 }", 401, false),
        ("tier: estimate, rate: 5/1h", "skip", 200, true),
    ] {
        let origin = Origin::start("site").await;
        let policy = format!("{}{}", origin_yaml(origin.address), policy(address, missing));
        let (folder, pairs) = tls::folder(&["one.example"]);
        let gate = Gate::start_in(folder, &policy, if http2 { tls::ONE } else { "" }).await;
        let to = std::net::SocketAddr::from(([127, 0, 0, 1], gate.port));
        let (client, url) = match http2 {
            false => (client(), gate.url("/")),
            true => (
                tls::trusting(&pairs[0], "one.example", to).build().unwrap(),
                format!("https://one.example:{}/", gate.port),
            ),
        };
        let send = async |n: u64| {
            let token = match n % 3 {
                0 => signing::forged_for("RS256", "rsa-1", 256, n),
                1 => signing::forged_for("ES256", "ec-1", 64, n),
                _ => signing::forged_for("EdDSA", "ed-1", 64, n),
            };
            client.get(&url).bearer_auth(token).send().await.unwrap()
        };
        for n in 0..200 {
            let answer = send(n).await;
            let expected = if n < 5 { admitted } else { 429 };
            assert_eq!(answer.status(), expected, "{address}, {missing}, {n}");
            let told = answer.headers()["ratelimit"].to_str().unwrap();
            let left = 4_u64.saturating_sub(n);
            assert!(told.contains(&format!("\"address\";r={left};")), "{missing}, {n}: {told}");
            assert_eq!(answer.headers().contains_key("retry-after"), n >= 5);
            if n >= 5 {
                let body = answer.text().await.unwrap();
                assert!(body.contains("\"violated-policies\":[\"address\"]"), "{body}");
            }
        }
        let metrics = gate.metrics().await;
        assert_eq!(metric(&metrics, CHECKED), 5.0, "{address}, {missing}");
        let verdicts = |verdict: &str| {
            let tier = if address == exact { "exact" } else { "estimate" };
            let labels = format!("limit=\"address\",tier=\"{tier}\",verdict=\"{verdict}\"");
            metric(&metrics, &format!("tollgate_decisions_total{{{labels}}}"))
        };
        assert_eq!((verdicts("allowed"), verdicts("denied")), (5.0, 195.0), "{missing}");
        assert_eq!(origin.count(), if admitted == 200 { 5 } else { 0 }, "{address}, {missing}");
    }
}

/// What a flood of forged tokens costs: `TOLLGATE_BINARY=... cargo test --test end_to_end
/// what_a_flood_of_forged_tokens_costs -- --ignored --nocapture` prints the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, of a minute"]
async fn what_a_flood_of_forged_tokens_costs() {
    println!(
        "| token | missing_key | connections | requests/s | 429 | time of a request | of a core |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (algorithm, key, signature) in [("RS256", "rsa-1", 256), ("ES256", "ec-1", 64)] {
        let rows = ["skip", "{ deny: 401 }"].map(|missing| [1, 10, 1_000].map(|n| (missing, n)));
        for (missing, connections) in rows.into_iter().flatten() {
            let origin = Origin::start("site").await;
            let limit = "tier: exact, rate: 100/1m";
            let policy = format!(
                "{}{}access_log: {{ to: none }}\n\
                 limits_of_this_proxy: {{ max_connections_per_client: 2000 }}\n",
                origin_yaml(origin.address),
                policy(limit, missing)
            );
            let gate = Gate::start(&policy).await;
            let until = now() + SPAN;
            let before = processor_time(gate.pid());
            let clients = (0..connections).map(|client| {
                let port = gate.port;
                let forged = move |n| {
                    signing::forged_for(algorithm, key, signature, client * 10_000_000 + n)
                };
                tokio::spawn(flood(port, until, forged))
            });
            let (mut sent, mut limited) = (0, 0);
            for client in clients.collect::<Vec<_>>() {
                let (one, other) = client.await.unwrap();
                (sent, limited) = (sent + one, limited + other);
            }
            let spent = processor_time(gate.pid()) - before;
            println!(
                "| {algorithm} | {missing} | {connections} | {} | {} % | {} us | {} % |",
                sent / SPAN.as_secs(),
                100 * limited / sent.max(1),
                spent.as_micros() as u64 / sent.max(1),
                100 * spent.as_millis() as u64 / SPAN.as_millis() as u64,
            );
        }
    }
}

/// How long each row of the table is measured.
const SPAN: Duration = Duration::from_secs(4);

/// Sends one token after the other over one connection; how many were answered, and how many with 429.
async fn flood(port: u16, until: Instant, forged: impl Fn(u64) -> String) -> (u64, u64) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut sent, mut limited, mut answer) = (0, 0, Vec::new());
    while now() < until {
        let token = forged(sent);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        answer.clear();
        while !is_whole(&answer) {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the connection is kept");
        }
        sent += 1;
        limited += u64::from(answer.starts_with(b"HTTP/1.1 429"));
    }
    (sent, limited)
}

/// Whether the answer is there to the end of its body.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    answer.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap()
}

/// What the kernel has counted for a process, of a hundredth of a second.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let ticks: u64 =
        after_name.split(' ').skip(11).take(2).map(|one| one.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
