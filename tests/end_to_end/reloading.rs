//! HUP: the next policy is in force at once, counters go on, a bad file changes nothing.

use std::path::Path;
use std::time::Duration;

use support::servers::{
    Gate, Origin, Reloaded, client, eventually, free_port, metric, origin_yaml,
};
use support::wait::now;

fn policy(rate: &str) -> String {
    format!(
        "
limits: {{ writes: {{ tier: exact, rate: {rate}, key: header:x-api-key, missing_key: deny }} }}
routes: [{{ name: webhook, match: {{ methods: [POST] }}, limits: [writes] }}]
"
    )
}

/// Sends POSTs; how many were answered 200.
async fn admitted(gate: &Gate, count: usize) -> usize {
    let client = client();
    let mut admitted = 0;
    for _ in 0..count {
        let answer = client.post(gate.url("/")).header("x-api-key", "k").send().await.unwrap();
        match answer.status().as_u16() {
            200 => admitted += 1,
            429 => assert!(answer.headers().contains_key("retry-after")),
            other => panic!("status {other}"),
        }
    }
    admitted
}

#[tokio::test]
async fn counters_go_on_and_a_raised_limit_helps_at_once() {
    let origin = Origin::start("site").await;
    let site = origin_yaml(origin.address);
    let gate = Gate::start(&format!("{site}{}", policy("60/1h"))).await;
    assert_eq!(admitted(&gate, 30).await, 30);
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 31).await, 30, "a reload in between changes nothing");
    assert_eq!(gate.reload(&format!("{site}{}", policy("120/1h")), "").await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 70).await, 60, "raised by 60: 60 more");
    assert_eq!(gate.reload(&format!("{site}{}", policy("30/1h")), "").await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 5).await, 0, "lowered: what is above is debt");
    assert_eq!(gate.reload(&format!("{site}{}", policy("125/1h")), "").await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 10).await, 5, "the debt was never forgotten");
    assert_eq!(origin.count(), 125);
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_why() {
    let origin = Origin::start("site").await;
    let site = origin_yaml(origin.address);
    let gate = Gate::start(&format!("{site}{}", policy("3/1h"))).await;
    assert_eq!(admitted(&gate, 2).await, 2);
    let five = format!(
        "version: 1
listeners: [{{ address: 127.0.0.1:{} }}]
admin: {{ address: 127.0.0.1:{} }}
{site}limits:
  writes:
    tier: exakt
    rate: 60 per minute
    key: hedaer:x
routes:
  - name: webhook
    limits: [wirtes]
    origin: sit
",
        gate.port, gate.admin
    );
    assert_eq!(gate.reload_text(&five).await, Reloaded::Refused);
    let log = gate.log();
    for expected in [
        "tollgate.yaml:9:11: limits.writes.tier: unknown word \"exakt\"; did you mean \"exact\"?",
        "tollgate.yaml:10:11: limits.writes.rate: \"60 per minute\" is not a rate",
        "tollgate.yaml:11:10: limits.writes.key: unknown key source \"hedaer:x\"",
        "tollgate.yaml:14:14: routes[0].limits[0]: unknown limit \"wirtes\"; did you mean \"writes\"?",
        "tollgate.yaml:15:13: routes[0].origin: unknown origin \"sit\"; did you mean \"site\"?",
    ] {
        assert!(log.contains(expected), "{expected} is not in\n{log}");
    }
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_config_reloads_total{outcome=\"refused\"}"), 1.0);
    assert_eq!(metric(&metrics, "tollgate_config_generation"), 1.0);
    let (_, status) = gate.admin_get("/status").await.unwrap();
    assert!(status.contains("\"outcome\": \"refused\"") && status.contains("wirtes"), "{status}");
    assert_eq!(admitted(&gate, 3).await, 1, "the old policy is in force, with its counts");
    for broken in ["", "version: 1\nlisteners:\n  - addr", "a: &a [*a]", "\u{0}"] {
        assert_eq!(gate.reload_text(broken).await, Reloaded::Refused, "{broken:?}");
    }
    std::fs::remove_file(gate.file()).unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused);
    assert_eq!(gate.reload(&format!("{site}{}", policy("4/1h")), "").await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 3).await, 1);
}

/// The sum is that of `cat FILES | sha256sum`.
#[tokio::test]
async fn a_reload_tells_what_changed_and_which_files_are_in_force() {
    let origin = Origin::start("site").await;
    let site = format!("include: [more/*.yaml]\n{}", origin_yaml(origin.address));
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("more")).unwrap();
    let included = folder.path().join("more/b.yaml");
    std::fs::write(&included, "limits: { more: { tier: exact, rate: 1/s, key: client_ip } }")
        .unwrap();
    let gate = Gate::start_in(folder, &format!("{site}{}", policy("60/1h")), "").await;
    let sum = || {
        let out = std::process::Command::new("sh")
            .args(["-c", "cat \"$0\" \"$1\" | sha256sum | cut -c 1-16"])
            .args([gate.file().as_os_str(), included.as_os_str()])
            .output();
        String::from_utf8(out.unwrap().stdout).unwrap().trim().to_owned()
    };
    let status = async || -> serde_json::Value {
        serde_json::from_str(&gate.admin_get("/status").await.unwrap().1).unwrap()
    };
    let first = sum();
    assert_eq!(status().await["configuration"], first);
    let next = policy("6/1h").replace("limits: [writes]", "limits: [writes, more]");
    assert_eq!(gate.reload(&format!("{site}{next}"), "").await, Reloaded::Applied);
    let second = sum();
    assert_ne!(first, second);
    let expected = [
        format!("generation 2 is in force (configuration {second})"),
        "generation 2: limit writes: 60/1h -> 6/1h; route webhook: gains more".to_owned(),
    ];
    for line in expected {
        assert!(gate.log().contains(&line), "{line} is not in\n{}", gate.log());
    }
    assert_eq!(gate.reload_text("version: 2").await, Reloaded::Refused);
    let told = status().await;
    assert_eq!(
        (&told["configuration"], &told["last_reload"]["outcome"]),
        (&second.into(), &"refused".into())
    );
    let applied = &told["last_applied_reload"];
    assert_eq!(applied["changes"][0], "limit writes: 60/1h -> 6/1h");
}

#[tokio::test]
async fn the_duration_of_the_last_reload_is_a_metric() {
    const METRIC: &str = "tollgate_reload_duration_seconds";
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{}", origin_yaml(origin.address), policy("3/1h"))).await;
    assert!(!gate.metrics().await.contains(METRIC), "no reload, no duration");
    let good = std::fs::read_to_string(gate.file()).unwrap();
    let mut durations = Vec::new();
    for (text, expected) in [(good.as_str(), Reloaded::Applied), ("version: 2", Reloaded::Refused)]
    {
        let begun = now();
        assert_eq!(gate.reload_text(text).await, expected);
        let seconds = metric(&gate.metrics().await, METRIC);
        assert!(0.0 < seconds && seconds < begun.elapsed().as_secs_f64(), "{seconds}");
        durations.push(seconds);
    }
    assert_ne!(durations[0], durations[1], "a refused reload has a duration of its own");
}

#[tokio::test]
async fn origins_and_trusted_proxies_reload_and_health_checks_of_removed_origins_stop() {
    let (old, new) = (Origin::start("old").await, Origin::start("new").await);
    let to = |address: std::net::SocketAddr, trusted: &str| {
        format!(
            "origins:
  site:
    servers: [\"{address}\"]
    health_check: {{ path: /healthz, every: 100ms, timeout: 1s }}
clients: {{ trusted_proxies: [{trusted}], address_header: x-forwarded-for }}
limits: {{ pages: {{ tier: exact, rate: 1/1h, key: client_ip }} }}
routes: [{{ name: site, limits: [pages] }}]
"
        )
    };
    let gate = Gate::start(&to(old.address, "")).await;
    let get = async |from: &str| {
        let answer =
            client().get(gate.url("/")).header("x-forwarded-for", from).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(get("198.51.100.1").await, (200, "old".to_owned()));
    assert_eq!(get("198.51.100.2").await.0, 429, "an untrusted peer is the client itself");
    assert!(eventually(Duration::from_secs(5), || async { old.count() > 3 }).await);
    assert_eq!(gate.reload(&to(new.address, "127.0.0.1"), "").await, Reloaded::Applied);
    assert_eq!(get("198.51.100.1").await, (200, "new".to_owned()));
    assert_eq!(get("198.51.100.2").await, (200, "new".to_owned()));
    let asked = || old.seen().iter().filter(|seen| seen.target == "/healthz").count();
    let before = asked();
    let new_before = new.count();
    assert!(eventually(Duration::from_secs(5), || async { new.count() > new_before + 5 }).await);
    assert!(asked() <= before + 1, "the old origin is left alone");
}

#[tokio::test]
async fn listeners_do_not_reload_and_are_refused_by_name() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{}", origin_yaml(origin.address), policy("3/1h"))).await;
    let text = std::fs::read_to_string(gate.file()).unwrap();
    let moved = text.replace(&gate.port.to_string(), &free_port().to_string());
    assert_eq!(gate.reload_text(&moved).await, Reloaded::Refused);
    assert!(gate.log().contains("listeners: a reload cannot change it"), "{}", gate.log());
    assert_eq!(gate.reload_text(&format!("{text}threads: 1\n")).await, Reloaded::Refused);
    assert!(gate.log().contains("threads: a reload cannot change it"), "{}", gate.log());
}

#[tokio::test]
async fn reloads_under_load_lose_no_request() {
    let origin = Origin::start("site").await;
    let site = origin_yaml(origin.address);
    let gate = Gate::start(&format!("{site}{}", policy("1000000/1h"))).await;
    let (client, url) = (client(), gate.url("/"));
    let load = tokio::spawn(async move {
        for _ in 0..600 {
            let answer = client.post(&url).header("x-api-key", "k").send().await.unwrap();
            assert_eq!(answer.status(), 200);
        }
    });
    for round in 0..20 {
        let rate = format!("{}/1h", 1_000_000 + round);
        assert_eq!(gate.reload(&format!("{site}{}", policy(&rate)), "").await, Reloaded::Applied);
    }
    load.await.unwrap();
    assert_eq!(origin.count(), 600);
}

/// Included files are swapped as Kubernetes swaps a mounted ConfigMap: a link to a folder is replaced.
#[tokio::test]
async fn included_files_are_read_again() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let version = |name: &str, rate: &str| {
        let version = folder.path().join(name);
        std::fs::create_dir(&version).unwrap();
        let limit = format!(
            "limits: {{ writes: {{ tier: exact, rate: {rate}, key: header:x-api-key, missing_key: deny }} }}\n"
        );
        std::fs::write(version.join("limit.yaml"), limit).unwrap();
        let route = "routes: [{ name: webhook, match: { methods: [POST] }, limits: [writes] }]\n";
        std::fs::write(version.join("route.yaml"), route).unwrap();
        let next = folder.path().join("..next");
        std::os::unix::fs::symlink(&version, &next).unwrap();
        std::fs::rename(&next, folder.path().join("..data")).unwrap();
    };
    version("..1", "3/1h");
    for name in ["limit.yaml", "route.yaml"] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(Path::new("..data").join(name), link).unwrap();
    }
    let gate = Gate::start(&format!(
        "{}include: [\"{}/*.yaml\"]\nroutes: [{{ name: site }}]\n",
        origin_yaml(origin.address),
        folder.path().display()
    ))
    .await;
    assert_eq!(admitted(&gate, 5).await, 3);
    version("..2", "7/1h");
    assert_eq!(admitted(&gate, 1).await, 0, "nobody asked for a reload");
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(admitted(&gate, 9).await, 4, "what was spent stays spent");
    std::fs::write(folder.path().join("..2/limit.yaml"), "limits: { writes: 60/min }\n").unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused);
    let log = gate.log();
    assert!(log.contains("limit.yaml:1:11: limits.writes: expected a mapping"), "{log}");
}
