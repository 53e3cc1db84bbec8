//! Forged tokens over real sockets: no more signatures are checked than the address's limit admits.

use support::servers::{Gate, Origin, client, metric, origin_yaml};
use support::signing;

use crate::tls;

const GUESTS: &str = "{ limit: guests }";
const CHECKED: &str = "tollgate_tokens_checked_total";

fn policy(address: &str, missing: &str) -> String {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/keys/jwks.json");
    format!(
        "
limits:
  address: {{ {address}, key: client_ip }}
  guests: {{ tier: exact, rate: 1/1h, key: client_ip }}
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
        // From the second on the limit behind the token refuses.
        (exact, GUESTS, 200, false),
        ("tier: estimate, rate: 5/1h", GUESTS, 200, true),
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
            let refused = n >= if missing == GUESTS { 1 } else { 5 };
            let expected = if refused { 429 } else { admitted };
            assert_eq!(answer.status(), expected, "{address}, {missing}, {n}");
            let told = answer.headers()["ratelimit"].to_str().unwrap();
            let left = 4_u64.saturating_sub(n);
            assert!(told.contains(&format!("\"address\";r={left};")), "{missing}, {n}: {told}");
            assert_eq!(answer.headers().contains_key("retry-after"), refused);
            if refused {
                let by = if n < 5 { "guests" } else { "address" };
                let body = answer.text().await.unwrap();
                assert!(body.contains(&format!("\"violated-policies\":[\"{by}\"]")), "{body}");
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
        let passed = match (admitted, missing) {
            (_, GUESTS) => 1,
            (200, _) => 5,
            _ => 0,
        };
        assert_eq!(origin.count(), passed, "{address}, {missing}");
    }
}
