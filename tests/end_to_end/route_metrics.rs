//! What `/metrics` says of routes, certificates and the process, beside what clients did.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;

use crate::tls::{ONE, folder, trusting};
use support::servers::{Gate, Origin, client, eventually, metric, now, origin_yaml};

/// When a gate's file was written, in seconds since the Unix epoch.
fn started_at(gate: &Gate) -> f64 {
    let written = gate.file().metadata().unwrap().modified().unwrap();
    written.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

#[tokio::test]
async fn statuses_bytes_and_durations_are_counted_by_route() {
    const REQUESTS: u64 = 400;
    let origin = Origin::with(|seen| {
        let mut answer = hyper::Response::new(Full::new(Bytes::from_static(b"0123456789")));
        if seen.target.ends_with("/teapot") {
            *answer.status_mut() = hyper::StatusCode::IM_A_TEAPOT;
        }
        answer
    })
    .await;
    let (folder, pairs) = folder(&["one.example"]);
    let policy = format!(
        "{}limits: {{ few: {{ tier: exact, rate: 300/1h, key: client_ip }} }}
routes:
  - {{ name: limited, match: {{ path: /limited }}, limits: [few] }}
  - {{ name: site, match: {{ path: [/, /teapot] }} }}
access_log: {{ to: none }}
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], gate.port));
    let http2 = trusting(&pairs[0], "one.example", to).build().unwrap();
    let http1 = trusting(&pairs[0], "one.example", to).http1_only().build().unwrap();
    let base = format!("https://one.example:{}", gate.port);
    for n in 0..REQUESTS {
        let client = if n % 2 == 0 { &http2 } else { &http1 };
        let answer = client.post(format!("{base}/limited")).body("abc").send().await.unwrap();
        assert_eq!(answer.status(), if n < 300 { 200 } else { 429 });
        answer.bytes().await.unwrap();
    }
    assert_eq!(http2.get(format!("{base}/teapot")).send().await.unwrap().status(), 418);
    assert_eq!(http1.get(format!("{base}/none")).send().await.unwrap().status(), 404);
    let count = |text: &str, sample: &str| metric(text, sample) as u64;
    let all = eventually(Duration::from_secs(5), || async {
        let text = gate.metrics().await;
        let none = "tollgate_responses_total{route=\"\",code=\"404\"}";
        count(&text, none) == 1
            && count(&text, "tollgate_responses_total{route=\"site\",code=\"4xx\"}") == 1
    });
    assert!(all.await, "{}", gate.metrics().await);
    let text = gate.metrics().await;
    let of = |name: &str| count(&text, &format!("tollgate_{name}{{route=\"limited\"}}"));
    assert_eq!(count(&text, "tollgate_responses_total{route=\"limited\",code=\"200\"}"), 300);
    assert_eq!(count(&text, "tollgate_responses_total{route=\"limited\",code=\"429\"}"), 100);
    let received = of("received_bytes_total");
    assert!((900..=1_200).contains(&received), "{received}: of a refused request what was read");
    assert!(of("sent_bytes_total") > 3_000 + 100 * 100, "the origin's bodies and ours");
    for histogram in ["request_duration_seconds", "time_to_first_byte_seconds"] {
        // One in eight, by the low bits of the clock.
        let timed = of(&format!("{histogram}_count"));
        assert!((10..=150).contains(&timed), "{histogram}: {timed} of {REQUESTS}");
        let sum = metric(&text, &format!("tollgate_{histogram}_sum{{route=\"limited\"}}"));
        assert!(sum > 0.0 && sum < timed as f64, "{histogram}: {sum} s of {timed}");
    }
    assert!(!text.contains("route=\"(other)\""), "{text}");
}

/// More routes than have details of their own: the rest is summed, and the size of a scrape is bounded.
#[tokio::test]
async fn ten_thousand_routes_do_not_make_a_scrape_of_ten_thousand_histograms() {
    let origin = Origin::start("site").await;
    let names = (0..2_000).map(|n| format!("  - {{ name: r{n}, match: {{ path: /{n} }} }}\n"));
    let routes: String = names.collect();
    let policy =
        format!("{}routes:\n{routes}access_log: {{ to: none }}\n", origin_yaml(origin.address));
    let gate = Gate::start(&policy).await;
    let client = client();
    for route in (0..2_000).step_by(5) {
        let answer = client.get(gate.url(&format!("/{route}"))).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let text = gate.metrics().await;
    let other = metric(&text, "tollgate_responses_total{route=\"(other)\",code=\"200\"}");
    let own = text.lines().filter(|line| line.starts_with("tollgate_responses_total{")).count() - 1;
    assert_eq!(
        (other as usize + own, own),
        (400, 52),
        "256 routes have their own, a fifth was asked"
    );
    assert_eq!(
        metric(&text, "tollgate_requests_total{route=\"r1995\",outcome=\"forwarded\"}"),
        1.0
    );
}

#[tokio::test]
async fn certificates_say_when_they_expire() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let policy = format!("{}routes: [{{ name: site }}]\n", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let text = gate.metrics().await;
    let name = "tollgate_certificate_expiry_timestamp_seconds{";
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&format!("listener=\"127.0.0.1:{}\"", gate.port)), "{line}");
    let at: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let today = started_at(&gate);
    assert!(at > today, "{line}");
}

/// Without a descriptor the process cannot be looked at; every other metric is still there.
#[tokio::test]
async fn a_scrape_without_descriptors_lacks_the_process_only() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let origin = Origin::start("site").await;
    let policy = format!("{}routes: [{{ name: site }}]\n", origin_yaml(origin.address));
    let gate = Gate::start(&policy).await;
    let operator = client();
    let url = format!("http://127.0.0.1:{}/metrics", gate.admin);
    let scrape = async || operator.get(&url).send().await.unwrap().text().await.unwrap();
    let text = scrape().await;
    for name in ["cpu_seconds_total", "open_fds", "max_fds", "resident_memory_bytes", "threads"] {
        assert!(text.contains(&format!("\nprocess_{name} ")), "{name}: {text}");
    }
    let started = metric(&text, "process_start_time_seconds");
    let today = started_at(&gate);
    assert!((today - started).abs() < 60.0, "{started}");
    let began = now();
    let pid = Pid::from_raw(i32::try_from(gate.pid()).unwrap());
    let before = prlimit(
        pid,
        Resource::Nofile,
        Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum },
    )
    .unwrap();
    let text = scrape().await;
    assert!(text.contains("tollgate_build_info") && !text.contains("process_"), "{text}");
    prlimit(pid, Resource::Nofile, before).unwrap();
    assert!(scrape().await.contains("process_open_fds"), "after {:?}", began.elapsed());
}
