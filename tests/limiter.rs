//! The library as an outsider uses it: only what the crate's root shows, on a manual clock.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use support::wait::{eventually, virtual_time};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::{Action, Limiter, LimiterError, Refusal};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A policy with one exact limit.
fn policy(limit: &str) -> String {
    format!(
        "version: 1\nlimits: {{ site: {{ tier: exact, key: client_ip, {limit} }} }}\n\
         routes: [{{ name: pages, limits: [site] }}]\n"
    )
}

fn limiter(policy: &str) -> (Limiter, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
    let built = Limiter::builder().policy_text(policy).clock(Arc::clone(&clock) as Arc<_>).build();
    (built.unwrap(), clock)
}

fn get(path: &str) -> Parts {
    let request = http::Request::get(path).header("host", "www.example.com").body(()).unwrap();
    request.into_parts().0
}

async fn refusal(limiter: &Limiter) -> Option<Refusal> {
    match limiter.judge(&get("/"), CLIENT).await.action() {
        Action::Forward { .. } => None,
        Action::Refuse(refusal) => Some(refusal),
    }
}

#[tokio::test]
async fn a_policy_without_listeners_and_origins_judges() {
    let (limiter, clock) = limiter(&policy("rate: 1/1m"));
    let mut judged = limiter.judge(&get("/"), CLIENT).await;
    assert_eq!((judged.route(), judged.limit()), (Some("pages"), Some("site")));
    let mut headers = HeaderMap::new();
    judged.answered(StatusCode::EARLY_HINTS, &mut headers);
    assert!(headers.is_empty(), "the final answer has the fields");
    judged.answered(StatusCode::OK, &mut headers);
    assert_eq!(headers["ratelimit-policy"], "\"site\";q=1;w=60");

    let refused = refusal(&limiter).await.unwrap();
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let response: http::Response<bytes::Bytes> = refused.into();
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    clock.advance(Nanos::from_secs(wait));
    assert!(refusal(&limiter).await.is_none());
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_its_reason() {
    let (limiter, _) = limiter(&policy("rate: 1/1m"));
    let judged = limiter.judge(&get("/a/%2e%2e/b%00"), CLIENT).await;
    let Action::Refuse(refused) = judged.action() else { panic!("forwarded") };
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(judged.reason().is_some() && judged.route().is_none());
}

#[tokio::test]
async fn a_failure_refunds_what_the_policy_refunds() {
    let (limiter, _) = limiter(&policy("rate: 1/1m, refund: { status: [502] }"));
    for _ in 0..3 {
        let mut judged = limiter.judge(&get("/"), CLIENT).await;
        assert!(matches!(judged.action(), Action::Forward { .. }));
        judged.failed(StatusCode::BAD_GATEWAY);
    }
    drop(limiter.judge(&get("/"), CLIENT).await);
    assert!(refusal(&limiter).await.is_some(), "what is not settled stays charged");
}

#[tokio::test]
async fn a_reload_raises_the_limit_and_counters_continue() {
    let (limiter, _) = limiter(&policy("rate: 1/1m"));
    assert!(refusal(&limiter).await.is_none());
    assert!(refusal(&limiter).await.is_some());
    let report = limiter.reload_text(policy("rate: 2/1m")).unwrap();
    assert_eq!(report.converted.len(), 1, "{report}");
    assert!(refusal(&limiter).await.is_none());
    assert!(refusal(&limiter).await.is_some());
    assert!(matches!(limiter.reload(), Err(LimiterError::NoFile)));
    assert!(matches!(limiter.reload_text("version: 2"), Err(LimiterError::Policy(_))));

    let metrics = limiter.metrics();
    let site = &metrics.limits[0];
    assert_eq!((site.name.as_str(), site.verdicts.allowed, site.verdicts.denied), ("site", 2, 2));
    assert_eq!((site.cells, metrics.store_up), (Some(1), true));
}

#[test]
fn mistakes_of_a_policy_are_listed_with_locations_and_cures() {
    let text = "version: 1\nlimits: { a: { tier: exact, rate: 1/1m, keys: client_ip } }\nroutes: [{ name: b, limits: [c] }]\n";
    let Err(LimiterError::Policy(errors)) = Limiter::builder().policy_text(text).build() else {
        panic!("it is valid")
    };
    let paths: Vec<&str> = errors.errors.iter().map(|error| error.path.as_str()).collect();
    assert!(paths.contains(&"limits.a.keys") && paths.len() >= 2, "{errors}");
    assert!(errors.errors.iter().all(|error| error.location.is_some()));
    assert!(matches!(Limiter::builder().build(), Err(LimiterError::NoPolicy)));
}

#[tokio::test]
async fn a_policy_over_redis_is_connected_to() {
    let text =
        "version: 1\nstore: { redis: { url: redis://127.0.0.1:1 } }\nroutes: [{ name: a }]\n";
    let built = Limiter::builder().policy_text(text).build();
    assert!(matches!(built, Err(LimiterError::NeedsConnect)));
    let limiter = Limiter::builder().policy_text(text).connect().await.unwrap();
    assert!(!limiter.metrics().store_up);
    let changed = limiter.reload_text("version: 1\nroutes: [{ name: a }]\n");
    assert!(matches!(changed, Err(LimiterError::StoreChanged)));
}

/// The log lines of all tests of this program.
static LINES: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// How many lines contain all of these texts.
fn logged(texts: &[&str]) -> usize {
    LINES.lock().iter().filter(|line| texts.iter().all(|text| line.contains(text))).count()
}

const WITH_TOKENS: &str = "version: 1
limits: { site: { tier: exact, rate: 1/1m, key: { jwt: { claim: sub, secret_file: secret } }, missing_key: client_ip } }
routes: [{ name: pages, limits: [site] }]
";

/// A file that failed is not read over a text that came later.
#[tokio::test(start_paused = true)]
async fn a_text_stays_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (folder.path().join("policy.yaml"), folder.path().join("secret"));
    std::fs::write(&file, "version: 1\nroutes: [{ name: pages }]\n").unwrap();
    let limiter = Limiter::builder().policy_file(&file).reload_on_change().build().unwrap();
    tokio::spawn(limiter.run_background());
    std::fs::write(&file, WITH_TOKENS).unwrap();
    virtual_time(Duration::from_secs(10)).await;
    limiter.reload_text("version: 1\nroutes: [{ name: emergency }]\n").unwrap();
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    virtual_time(Duration::from_secs(60)).await;
    assert_eq!(limiter.judge(&get("/"), CLIENT).await.route(), Some("emergency"));
    std::fs::write(&file, "version: 1\nroutes: [{ name: changed }]\n").unwrap();
    virtual_time(Duration::from_secs(3)).await;
    assert_eq!(limiter.judge(&get("/"), CLIENT).await.route(), Some("changed"));
}

/// A reload that hangs does not keep the rounds from running, which free idle keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_reload_that_hangs_delays_no_other_work() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("policy.yaml"), folder.path().join("keys"));
    std::fs::write(&file, policy("rate: 1/1m")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
    let builder = Limiter::builder().policy_file(&file).reload_on_change();
    let limiter = builder.clock(Arc::clone(&clock) as Arc<_>).build().unwrap();
    let background = tokio::spawn(limiter.run_background());
    assert!(refusal(&limiter).await.is_none());
    std::fs::write(&file, policy("rate: 1/1m, overrides: [{ key_file: keys, action: allow }]"))
        .unwrap();
    // Opening the pipe waits for its reader: from here on the reload hangs.
    let writer =
        tokio::task::spawn_blocking(move || std::fs::File::options().write(true).open(pipe));
    let writer = writer.await.unwrap().unwrap();
    clock.advance(Nanos::from_secs(3_600));
    let swept = eventually(Duration::from_secs(30), || async {
        limiter.metrics().limits[0].cells == Some(0)
    });
    assert!(swept.await, "{:?}", limiter.metrics());
    drop(writer);
    background.abort();
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_failed_is_tried_again_and_reported_once() {
    let _ = log::set_logger(&Lines).map(|()| log::set_max_level(log::LevelFilter::Info));
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    let (file, secret) = (folder.path().join("policy.yaml"), folder.path().join("secret"));
    std::fs::write(&file, "version: 1\nroutes: [{ name: pages }]\n").unwrap();
    let limiter = Limiter::builder().policy_file(&file).reload_on_change().build().unwrap();
    tokio::spawn(limiter.run_background());

    std::fs::write(&file, WITH_TOKENS).unwrap();
    virtual_time(Duration::from_secs(120)).await;
    assert!(limiter.metrics().limits.is_empty(), "the file that it names is missing");
    assert_eq!(logged(&[name, "stays as it was"]), 1, "one version, one line");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    virtual_time(Duration::from_secs(20)).await;
    assert_eq!(limiter.metrics().limits.len(), 1, "it recovers without another change");

    for (version, broken) in
        ["version: 1\nroutes: [{ nam: a }]", "version: 1\nroutes: [{ nam: ab }]"].iter().enumerate()
    {
        std::fs::write(&file, broken).unwrap();
        virtual_time(Duration::from_secs(60)).await;
        assert_eq!(logged(&[name, "stays as it was"]), version + 2);
    }
    assert_eq!(limiter.metrics().limits.len(), 1, "the policy in force stays");
    std::fs::write(&file, "version: 1\nroutes: [{ name: other }]\n").unwrap();
    virtual_time(Duration::from_secs(3)).await;
    assert!(limiter.metrics().limits.is_empty(), "a change is read at once");
}
