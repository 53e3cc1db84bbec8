//! Both tiers over HTTP: exactly what was promised is admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::servers::{Gate, Origin, client, metric, origin_yaml};

const WRITES: &str = "
limits:
  writes: { tier: exact, algorithm: token_bucket, rate: 1000/1h, key: header:x-api-key, missing_key: deny }
routes:
  - { name: webhook, match: { path: /api/webhook/**, methods: [POST, PUT] }, limits: [writes] }
  - { name: site }
";

/// Sends `total` requests from `connections` clients at once; how many were answered 200 and 429.
pub async fn hammer(
    client: &reqwest::Client,
    url: &str,
    connections: usize,
    total: usize,
) -> (usize, usize) {
    let (allowed, limited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let left = Arc::new(AtomicUsize::new(total));
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (allowed, limited, left) = (allowed.clone(), limited.clone(), left.clone());
        let (client, url) = (client.clone(), url.to_owned());
        tasks.push(tokio::spawn(async move {
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
            {
                let answer = client.post(&url).header("x-api-key", "hot").send().await.unwrap();
                match answer.status().as_u16() {
                    200 => allowed.fetch_add(1, Ordering::SeqCst),
                    429 => limited.fetch_add(1, Ordering::SeqCst),
                    other => panic!("status {other}"),
                };
                answer.bytes().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    (allowed.load(Ordering::SeqCst), limited.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_from_64_connections_gets_exactly_its_limit() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{WRITES}", origin_yaml(origin.address))).await;
    let (allowed, limited) = hammer(&client(), &gate.url("/api/webhook/x"), 64, 3_000).await;
    assert_eq!((allowed, limited), (1_000, 2_000));
    assert_eq!(origin.count(), 1_000, "admitted is what the origin saw");
    let metrics = gate.metrics().await;
    let verdicts = |verdict: &str| {
        let labels = format!("limit=\"writes\",tier=\"exact\",verdict=\"{verdict}\"");
        metric(&metrics, &format!("tollgate_decisions_total{{{labels}}}"))
    };
    assert_eq!((verdicts("allowed"), verdicts("denied")), (1_000.0, 2_000.0));
}

#[tokio::test]
async fn keys_do_not_share_a_budget_and_absent_ones_are_refused() {
    let origin = Origin::start("site").await;
    let policy = WRITES.replace("1000/1h", "2/1h");
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let send = async |key: Option<&str>| {
        let request = client().post(gate.url("/api/webhook/x"));
        let request = key.into_iter().fold(request, |r, key| r.header("x-api-key", key));
        request.send().await.unwrap().status().as_u16()
    };
    for key in ["a", "b", "c"] {
        let got = [send(Some(key)).await, send(Some(key)).await, send(Some(key)).await];
        assert_eq!(got, [200, 200, 429], "{key}");
    }
    assert_eq!(send(None).await, 400);
    // GET is another route, without limits.
    assert_eq!(client().get(gate.url("/api/webhook/x")).send().await.unwrap().status(), 200);
    assert_eq!(origin.count(), 7);
}

#[tokio::test]
async fn the_estimate_tier_refuses_one_client_and_not_its_neighbour() {
    let origin = Origin::start("site").await;
    let policy = "
clients: { trusted_proxies: [127.0.0.1], address_header: x-forwarded-for }
limits: { pageviews: { tier: estimate, rate: 50/1h, key: client_ip } }
routes: [{ name: site, limits: [pageviews] }]
";
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let client = client();
    let get = async |from: &str| {
        let request = client.get(gate.url("/")).header("x-forwarded-for", from);
        request.send().await.unwrap().status().as_u16()
    };
    let mut answers = Vec::new();
    for _ in 0..70 {
        answers.push(get("198.51.100.1").await);
    }
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 50);
    assert!(answers[..50].iter().all(|status| *status == 200));
    assert_eq!(get("198.51.100.2").await, 200);
    assert_eq!(origin.count(), 51);
}

#[tokio::test]
async fn a_stack_charges_all_or_none() {
    let origin = Origin::start("site").await;
    let policy = "
limits:
  org: { tier: exact, algorithm: token_bucket, rate: 5/1h, key: header:x-org, missing_key: deny }
  user: { tier: exact, algorithm: token_bucket, rate: 2/1h, key: [header:x-org, header:x-user], missing_key: deny }
  pages: { tier: estimate, rate: 100/1h, key: client_ip }
routes: [{ name: api, limits: [pages, org, user] }]
";
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let client = client();
    let get = async |user: &str| {
        let request = client.get(gate.url("/")).header("x-org", "o").header("x-user", user);
        let answer = request.send().await.unwrap();
        let limits = answer.headers()["ratelimit"].to_str().unwrap().to_owned();
        (answer.status().as_u16(), limits)
    };
    assert_eq!(get("a").await.0, 200);
    assert_eq!(get("a").await.0, 200);
    for _ in 0..10 {
        assert_eq!(get("a").await.0, 429, "user a is over its limit");
    }
    let (status, limits) = get("b").await;
    assert_eq!(status, 200);
    assert!(
        limits.contains("\"org\";r=2;"),
        "refusals spent nothing of the organisation: {limits}"
    );
    assert!(limits.contains("\"pages\";r=97;"), "nor of the estimate tier: {limits}");
}

#[tokio::test]
async fn a_full_room_does_as_the_policy_says() {
    for (when_full, expected) in [("deny", 429), ("allow", 200), ("estimate", 200)] {
        let origin = Origin::start("site").await;
        let policy = format!(
            "
limits:
  writes: {{ tier: exact, rate: 2/1h, key: header:x-api-key, missing_key: deny, max_keys: 3, when_full: {when_full} }}
routes: [{{ name: api, limits: [writes] }}]
"
        );
        let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
        let client = client();
        let get = async |key: &str| {
            client
                .get(gate.url("/"))
                .header("x-api-key", key)
                .send()
                .await
                .unwrap()
                .status()
                .as_u16()
        };
        for key in ["a", "b", "c"] {
            assert_eq!(get(key).await, 200);
        }
        assert_eq!(get("d").await, expected, "{when_full}");
        // Those who are in keep their exact count.
        assert_eq!((get("a").await, get("a").await), (200, 429), "{when_full}");
        let metrics = gate.metrics().await;
        let overflow = |verdict: &str| {
            let labels = format!("limit=\"writes\",tier=\"exact\",verdict=\"overflow_{verdict}\"");
            metric(&metrics, &format!("tollgate_decisions_total{{{labels}}}"))
        };
        let counted = overflow("allowed") + overflow("denied");
        assert!((counted - 1.0).abs() < f64::EPSILON, "never silently: {when_full}");
        if when_full == "estimate" {
            assert_eq!((get("d").await, get("d").await), (200, 429), "the cheap tier counts");
        }
    }
}
