use std::path::Path;
use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Decision, Engine, Generation, Outcome};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret};

const POLICY: &str = r"
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

struct Node {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
}

static NODE: LazyLock<Node> = LazyLock::new(|| {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
    let loaded = config::read_text(POLICY, "keys.yaml", Path::new("")).unwrap();
    let generation = engine.generation(loaded.config.policy, None).0;
    Node { clock, engine, generation }
});

/// Path, query, `x-api-key`, two of `cookie` and `authorization`, a line each. The same request has the
/// same keys, in the same cells; another path or key has other ones.
pub fn keys(bytes: &[u8]) {
    let mut lines = super::lines(bytes).map(|line| String::from_utf8_lossy(line).into_owned());
    let mut line = || lines.next().unwrap_or_default();
    let (path, query) = (format!("/{}", line()), line());
    let mut headers = HeaderMap::new();
    for name in ["x-api-key", "cookie", "cookie", "authorization"] {
        let value = line();
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
            && !value.is_empty()
        {
            headers.append(name, value);
        }
    }
    // What the last input spent is forgotten.
    NODE.clock.advance(Nanos::from_secs(3));
    NODE.engine.tick(&NODE.generation);
    let first = decide(&path, &query, &headers);
    let second = decide(&path, &query, &headers);
    assert_eq!(first.outcome, second.outcome);
    assert_eq!(first.verdicts.len(), second.verdicts.len());
    for (one, two) in first.verdicts.iter().zip(&second.verdicts) {
        assert_eq!(one.limit, two.limit);
        assert_eq!(one.verdict.remaining, two.verdict.remaining + 1, "of {:?}", one.limit);
    }
    if first.outcome != Outcome::Allowed {
        return;
    }
    assert_eq!(spent(&second, 0), Some(2), "the path's cell");
    let is_named =
        headers.get("x-api-key").is_some_and(|key| !key.as_bytes().trim_ascii().is_empty());
    assert_eq!(spent(&second, 1), is_named.then_some(2), "the key's cell");
    let mut others = headers.clone();
    others.insert("x-api-key", HeaderValue::from_static("a key of somebody else"));
    let third = decide(&format!("{path}/other"), &query, &others);
    if third.outcome == Outcome::Allowed {
        assert_eq!((spent(&third, 0), spent(&third, 1)), (Some(1), Some(1)));
    }
}

/// What the cell of a limit has spent; `None`: the request has no such key.
fn spent(decision: &Decision, limit: usize) -> Option<u32> {
    let answer = decision.verdicts.iter().find(|one| one.limit.0 == limit);
    answer.map(|one| 1_000_000 - one.verdict.remaining)
}

fn decide(path: &str, query: &str, headers: &HeaderMap) -> Decision {
    let facts = Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false },
        now: Nanos::ZERO,
        method: "GET",
        host: "h",
        path,
        readings: &[],
        query: Some(query),
        headers,
        conditions: None,
    };
    let decision = NODE.engine.decide_now(&NODE.generation, &facts).0;
    let is_known = matches!(
        decision.outcome,
        Outcome::Allowed | Outcome::RepeatedKey { .. } | Outcome::UnreadableKey { .. }
    );
    assert!(is_known, "{:?}", decision.outcome);
    decision
}
