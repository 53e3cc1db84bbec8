//! What operators see, and how the process ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use support::servers::{Gate, Origin, client, metric, now, origin_yaml};

const POLICY: &str = "
limits:
  writes: { tier: exact, rate: 1/1h, key: header:x-api-key, missing_key: deny }
  pages: { tier: estimate, rate: 100/1m, key: client_ip }
routes:
  - { name: webhook, match: { methods: [POST] }, limits: [writes, pages] }
  - { name: site, limits: [pages] }
";

#[tokio::test]
async fn the_door_shows_health_metrics_and_status() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    let post = || client().post(gate.url("/")).header("x-api-key", "very-secret-value").send();
    assert_eq!(post().await.unwrap().status(), 200);
    assert_eq!(post().await.unwrap().status(), 429);
    assert_eq!(client().get(gate.url("/a%00b")).send().await.unwrap().status(), 400);
    assert_eq!(gate.admin_get("/healthz").await.unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(gate.admin_get("/nothing").await.unwrap().0, 404);
    let metrics = gate.metrics().await;
    for sample in [
        "tollgate_requests_total{route=\"webhook\",outcome=\"forwarded\"} 1",
        "tollgate_requests_total{route=\"webhook\",outcome=\"limited\"} 1",
        "tollgate_requests_total{route=\"\",outcome=\"rejected\"} 1",
        "tollgate_rejected_total{reason=\"path\"} 1",
        "tollgate_decisions_total{limit=\"writes\",tier=\"exact\",verdict=\"denied\"} 1",
        "tollgate_decisions_total{limit=\"pages\",tier=\"estimate\",verdict=\"allowed\"} 2",
        "tollgate_cells{limit=\"writes\"} 1",
        "tollgate_confirm_cells 1",
        "tollgate_confirm_error{limit=\"pages\"} 0",
        "tollgate_estimator_load_ratio{limit=\"pages\"} 0",
        "tollgate_store_up 1",
        "tollgate_config_generation 1",
        "tollgate_config_reloads_total{outcome=\"applied\"} 0",
        "tollgate_origin_requests_total{origin=\"site\",class=\"2xx\"} 1",
        "tollgate_origin_duration_seconds_count{origin=\"site\"} 1",
        "tollgate_log_dropped_total 0",
        "tollgate_build_info{",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in\n{metrics}");
    }
    assert!(metric(&metrics, "tollgate_connections") >= 0.0);
    assert!(metrics.contains("tollgate_decision_duration_seconds_bucket"));
    promtool_accepts(&metrics);
    let (_, status) = gate.admin_get("/status").await.unwrap();
    assert!(status.contains("\"generation\": 1") && status.contains("\"uptime_seconds\""));
    for told in [&metrics, &status, &gate.log(), &gate.stdout()] {
        assert!(!told.contains("very-secret-value"), "values of keys are told to nobody");
    }
}

fn promtool_accepts(metrics: &str) {
    use std::io::Write;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by make test");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn every_request_is_one_line_of_the_access_log() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    let post = || client().post(gate.url("/x?token=hidden")).header("x-api-key", "k1").send();
    assert_eq!(post().await.unwrap().status(), 200);
    assert_eq!(post().await.unwrap().status(), 429);
    let two = support::servers::eventually(Duration::from_secs(5), || async {
        gate.stdout().lines().count() == 2
    })
    .await;
    assert!(two, "{}", gate.stdout());
    let lines: Vec<serde_json::Value> =
        gate.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["decision"], "allowed");
    assert_eq!(lines[0]["origin"], "site");
    let refused = &lines[1];
    for (name, value) in [
        ("client_ip", "127.0.0.1".into()),
        ("method", "POST".into()),
        ("path", "/x".into()),
        ("status", 429.into()),
        ("route", "webhook".into()),
        ("decision", "limited".into()),
        ("limit", "writes".into()),
        ("tier", "exact".into()),
        ("remaining", 0.into()),
        ("authenticated", true.into()),
        ("degraded", false.into()),
        ("generation", 1.into()),
        ("origin", serde_json::Value::Null),
    ] {
        assert_eq!(refused[name], value, "{name} in {refused}");
    }
    assert!(refused["retry_after"].as_u64().unwrap() >= 1);
    assert_eq!(refused["request_id"].as_str().unwrap().len(), 32);
    assert_eq!(lines[0]["request_id"], origin.seen()[0].headers["x-request-id"].to_str().unwrap());
    assert!(!gate.stdout().contains("hidden") && !gate.stdout().contains("k1"));
}

#[tokio::test]
async fn a_token_guards_what_is_more_than_health() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "0123456789abcdef\n").unwrap();
    let gate = Gate::start_in(
        folder,
        &format!("  token_file: token\n{}{POLICY}", origin_yaml(origin.address)),
        "",
    )
    .await;
    assert_eq!(gate.admin_get("/healthz").await.unwrap().0, 200);
    for path in ["/metrics", "/status"] {
        assert_eq!(gate.admin_get(path).await.unwrap().0, 401);
        let url = format!("http://127.0.0.1:{}{path}", gate.admin);
        let with = |token: &'static str| client().get(&url).bearer_auth(token).send();
        assert_eq!(with("0123456789abcdef").await.unwrap().status(), 200);
        assert_eq!(with("0123456789abcdeX").await.unwrap().status(), 401);
        assert_eq!(with("0123456789abcdef0").await.unwrap().status(), 401);
    }
}

#[tokio::test]
async fn term_drains_and_ends_as_soon_as_idle() {
    let origin = Origin::start("site").await;
    let bounds = "limits_of_this_proxy: { drain: 500ms, finish: 20s }\n";
    let mut gate = Gate::start(&format!("{}{POLICY}{bounds}", origin_yaml(origin.address))).await;
    let kept = client();
    assert_eq!(kept.get(gate.url("/")).send().await.unwrap().status(), 200);
    let began = now();
    gate.signal("TERM");
    let not_ready = support::servers::eventually(Duration::from_secs(2), || async {
        gate.admin_get("/ready").await.is_ok_and(|(status, _)| status == 503)
    })
    .await;
    assert!(not_ready);
    let draining = client().get(gate.url("/")).send().await.unwrap();
    assert_eq!(draining.status(), 200, "still accepting");
    assert_eq!(draining.headers()["connection"], "close");
    let status = gate.ended(Duration::from_secs(5)).await.expect("ends when idle");
    assert!(status.success(), "{status}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_millis(2_500), "{took:?}");
}

#[tokio::test]
async fn a_second_term_ends_it_now() {
    let origin = Origin::start("site").await;
    let mut gate = Gate::start(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_millis(300)).await.is_none(), "drains for 10 s");
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(2)).await.is_some());
}
