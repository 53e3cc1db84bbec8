use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::config::{self, LoadedConfig};
use tollgate::engine::{Engine, FinalResponse, Generation, Outcome};
use tollgate::http::{AnswerPreferences, refusal, retry_after_secs};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret};

const POLICY: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { s: { servers: [127.0.0.1:1] } }
clients: { trusted_proxies: [10.0.0.0/8] }
limits:
  claims: { tier: exact, rate: 5/1m, key: { jwt: { jwks_file: keys/jwks.json, claim: sub } }, missing_key: client_ip }
  costs: { tier: exact, algorithm: fixed_window, rate: 1000/1m, key: client_ip, cost: { header: x-cost, max: 50 } }
  told: { tier: exact, algorithm: token_bucket, rate: 1000/1m, key: client_ip, cost: { response_header: x-used, reserve: 5, max: 50 }, plans: { by: header:x-plan, rates: { a: 2000/1m } } }
  one: { tier: exact, rate: 1/1m, key: client_ip }
routes: [{ name: r, limits: [claims, costs, told, one] }]
responses: { body: [problem, { file: keys/denied.html, type: text/html }, grpc], cors: [\"https://app.example\"], retry_after_jitter: 5s }
";

/// Longer than anything that is spent under the policy counts: an input does not see the last one.
const LATER: Nanos = Nanos::from_secs(300);

struct Node {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
    responses: Arc<tollgate::config::Responses>,
}

static NODE: LazyLock<Node> = LazyLock::new(|| {
    let loaded: LoadedConfig = config::read_text(POLICY, "terms.yaml", &policies()).unwrap();
    let (policy, responses) = (loaded.config.policy, loaded.config.default_responses);
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
    let generation = engine.generation(policy, None).0;
    Node { clock, engine, generation, responses }
});

/// The folder that relative paths of the policy start from; it holds the keys.
fn policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/policies")
}

/// `t` (trusted) or anything else, and the answer's status; then a token, `x-cost`, `x-plan`, `accept`,
/// `content-type`, `origin` and the answer's `x-used`, a line each. Nothing passes for less than it
/// costs, no forged token is believed, and nobody is told to come back too soon.
pub fn terms(bytes: &[u8]) {
    let mut lines = super::lines(bytes);
    let mut line = || lines.next().unwrap_or_default();
    let (is_trusted, status) = match line() {
        [b't', status @ ..] => (true, status),
        status => (false, status),
    };
    let status = std::str::from_utf8(status).ok().and_then(|status| status.trim().parse().ok());
    let status = status.filter(|status| (100..600).contains(status)).unwrap_or(200);
    let mut headers = HeaderMap::new();
    let names = ["authorization", "x-cost", "x-plan", "accept", "content-type", "origin", "x-used"];
    for name in names {
        let value = line();
        if let Ok(value) = HeaderValue::from_bytes(value)
            && !value.is_empty()
        {
            headers.append(name, value);
        }
    }
    let used = headers.remove("x-used");
    NODE.clock.advance(LATER);
    // The second one is refused by `one` at the latest.
    for n in 0..2 {
        let mut answer = HeaderMap::new();
        answer.extend(used.clone().map(|used| (http::HeaderName::from_static("x-used"), used)));
        let said = FinalResponse { status, headers: &answer, by_origin: is_trusted };
        let outcome = request(&headers, is_trusted, &said);
        assert!(outcome != Outcome::Allowed || n == 0, "one a minute");
    }
    NODE.engine.tick(&NODE.generation);
}

fn request(headers: &HeaderMap, is_trusted: bool, said: &FinalResponse<'_>) -> Outcome {
    let facts = Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient {
            ip: [192, 0, 2, 1].into(),
            ipv6_prefix: 64,
            peer_trusted: is_trusted,
        },
        now: Nanos::from_secs(1_800_000_000),
        method: "POST",
        host: "h",
        path: "/",
        readings: &[],
        query: None,
        headers,
        conditions: None,
    };
    let (engine, generation) = (&NODE.engine, &NODE.generation);
    let (mut decision, mut pending) = engine.decide_now(generation, &facts);
    if matches!(decision.outcome, Outcome::UnreadableKey { .. }) {
        // Only what readers part in different ways.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '"');
        let credentials = String::from_utf8_lossy(headers["authorization"].as_bytes());
        let bearer = credentials.strip_prefix("Bearer ").map(|token| token.trim_matches(' '));
        assert!(!bearer.is_some_and(|token| token.chars().all(plain)), "{bearer:?}");
        return decision.outcome;
    }
    assert!(matches!(decision.outcome, Outcome::Allowed | Outcome::Limited));
    for answer in &decision.verdicts {
        assert!((1..=50).contains(&answer.cost), "{answer:?}");
        // Nobody here can sign: the key is the address.
        assert!(!answer.authenticated, "{answer:?}");
    }
    for chance in [0.0, 0.5, 1.0] {
        let asking = AnswerPreferences { headers, chance, request_id: "" };
        let refused = refusal(&decision, generation.policy(), &NODE.responses, asking).unwrap();
        assert_eq!(refused.is_some(), decision.outcome == Outcome::Limited);
        if let Some(retry) = refused.and_then(|one| one.headers.get("retry-after").cloned()) {
            let told: u64 = retry.to_str().unwrap().parse().unwrap();
            assert!(told >= retry_after_secs(&decision).unwrap(), "told to come too soon");
        }
    }
    engine.finish(generation, &mut decision, &mut pending, said);
    decision.outcome
}
