//! The command line, and the engine inside somebody else's proxy.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

use support::servers::{Origin, client, eventually, free_port, signal};

fn tollgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn check_tells_what_is_promised_or_every_mistake() {
    let valid = tollgate(&["check", "conf/tollgate.yaml"]);
    assert!(valid.status.success());
    let told = text(&valid.stdout);
    for line in
        ["conf/tollgate.yaml: valid", "at most 10 + 5/1s x T", "limit anonymous-writes applies"]
    {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("behind.yaml");
    let behind = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
clients: { trusted_proxies: [10.0.0.0/8, 0.0.0.0/0] }
origins: { site: { servers: [127.0.0.1:2] } }
routes: [{ name: r }]
limits_of_this_proxy: { underscores: pass, method_override: pass }
";
    std::fs::write(&file, behind).unwrap();
    let told = text(&tollgate(&["check", file.to_str().unwrap()]).stdout);
    for line in [
        "address: x-forwarded-for of 10.0.0.0/8, 0.0.0.0/0, else the peer",
        "behind.yaml:3:10: warning[trusts-everybody]: clients: 0.0.0.0/0 contains every client",
        "fields with _ are forwarded",
        "fields that name another method are forwarded",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    let file = folder.path().join("bad.yaml");
    std::fs::write(&file, "version: 2\nlistners: []\n").unwrap();
    let bad = tollgate(&["check", file.to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(1));
    let told = text(&bad.stdout);
    assert!(
        told.contains(
            "bad.yaml:2:1: listners: unknown key \"listners\"; did you mean \"listeners\"?"
        ),
        "{told}"
    );
    assert_eq!(tollgate(&["run", "--config", file.to_str().unwrap()]).status.code(), Some(2));
    assert_eq!(tollgate(&["run", "--config", "/nonexistent.yaml"]).status.code(), Some(2));
}

#[test]
fn explain_asks_the_real_engine() {
    let asked = |more: &[&str]| {
        let mut args = vec!["explain", "--config", "conf/tollgate.yaml"];
        args.extend(more);
        tollgate(&args)
    };
    let told = asked(&["-H", "x-api-key: k1", "POST", "https://api.example.com/api/webhook/x"]);
    let lines = text(&told.stdout);
    for line in
        ["route      webhook", "limit      writes (exact): cost 1 of 60", "header:x-api-key = k1"]
    {
        assert!(lines.contains(line), "{line} is not in\n{lines}");
    }
    let json = asked(&["--json", "--ip", "203.0.113.7", "GET", "/anything"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["route"], &json["decision"]), (&"office".into(), &"allowed".into()));
    for (url, expected) in [
        ("https://A.example:8443/sni", "tls_sni = a.example\n"),
        ("https://192.0.2.1/sni", "missing key"),
        ("http://a.example/sni", "missing key"),
    ] {
        let told = tollgate(&["explain", "--config", "tests/policies/keys.yaml", "GET", url]);
        assert!(text(&told.stdout).contains(expected), "{url}: {}", text(&told.stdout));
    }
    for (more, expected) in [
        (&["--tls-client", "dns:Web.Example."][..], "tls_client = dns:web.example\n"),
        (&["--tls-client", "uri:spiffe://a/b"], "tls_client = uri:spiffe://a/b\n"),
        (&[], "missing key"),
    ] {
        let mut args = vec!["explain", "--config", "tests/policies/keys.yaml"];
        args.extend(more);
        args.extend(["GET", "https://a/client"]);
        let told = text(&tollgate(&args).stdout);
        assert!(told.contains(expected), "{more:?}: {told}");
    }
    for (name, url) in [("web.example", "https://a/client"), ("dns:web.example", "http://a/client")]
    {
        let args =
            ["explain", "--config", "tests/policies/keys.yaml", "--tls-client", name, "GET", url];
        assert_eq!(tollgate(&args).status.code(), Some(2), "{name} {url}");
    }
    explain_says_why();
    let unclean = asked(&["GET", "https://a/x/../../y"]);
    assert!(text(&unclean.stdout).contains("rejected"), "{}", text(&unclean.stdout));
}

/// Which plan or override gave a rate, why a limit does not apply, and why earlier routes do not match.
fn explain_says_why() {
    let url = |path: &str| format!("http://a/{path}");
    for (more, path, expected) in [
        (
            &["-H", "x-plan: gold"][..],
            "planned",
            "no plan by header:x-plan: any client can write it",
        ),
        (&["--ip", "10.0.0.1"], "planned", "no plan by header:x-plan: the request names none"),
        (
            &["--ip", "10.0.0.1", "-H", "x-plan: tin"],
            "planned",
            "names one that plans.rates does not have",
        ),
        (&["--ip", "10.0.0.1", "-H", "x-plan: gold"], "planned", "           plan gold\n"),
        (&["-H", "x-api-key: demo"], "by-key", "           overrides[0] of this key\n"),
        (&["--ip", "198.51.100.9"], "by-key", "           overrides[5] of 198.51.100.0/24\n"),
        (
            &["-H", "x-api-key: banished"],
            "by-key",
            "limit      by-key (exact, refuses): cost 1 of 2",
        ),
        (
            &["-H", "x-api-key: free"],
            "by-key",
            "limit      by-key does not apply: overrides[3] of this key allows it\n",
        ),
        (
            &[],
            "tried",
            "limit      other does not apply: the request has no header:x-other (missing_key: skip): there is no field x-other\n",
        ),
        (&[], "tried", "not        planned: the path is not /planned\n"),
    ] {
        let url = url(path);
        let mut args = vec!["explain", "--config", "tests/policies/terms.yaml"];
        args.extend(more);
        args.extend(["GET", &url]);
        let told = text(&tollgate(&args).stdout);
        assert!(told.contains(expected), "{more:?} {path}: {expected} is not in\n{told}");
    }
    let args =
        ["explain", "--config", "tests/policies/jwt.yaml", "-H", "authorization: Bearer abc"];
    let told = text(&tollgate(&[&args[..], &["GET", "http://a/keys"]].concat()).stdout);
    let expected = "token      of authorization is not believed (claim sub): it is no token";
    assert!(told.contains(expected), "{told}");
    let preflight = ["-H", "origin: https://b", "-H", "access-control-request-method: PUT"];
    let mut args = vec!["explain", "--json", "--config", "conf/tollgate.yaml"];
    args.extend(preflight);
    args.extend(["OPTIONS", "https://api.example.com/api/webhook/x"]);
    let told: serde_json::Value = serde_json::from_slice(&tollgate(&args).stdout).unwrap();
    assert_eq!(
        told["earlier_routes"][0]["why"],
        "the method is not POST or PUT or PATCH or DELETE"
    );
    let skipped = &told["skipped_limits"][0];
    assert_eq!(skipped["limit"], "watched");
    assert!(skipped["why"].as_str().unwrap().contains("responses.exempt"), "{skipped}");
}

#[test]
fn policies_are_tested_before_they_meet_traffic() {
    // Every example that has cases passes them.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/examples");
    let mut tested = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let cases = entry.unwrap().path().display().to_string();
        let Some(policy) = cases.strip_suffix(".test.yaml") else { continue };
        let output = tollgate(&["test", "--config", &format!("{policy}.yaml"), &cases]);
        assert!(output.status.success(), "{cases}: {}", text(&output.stdout));
        tested += 1;
    }
    assert!(tested >= 3, "{tested}");
    // What fails is told with its line and the reason, and written for a CI server.
    let folder = tempfile::tempdir().unwrap();
    let (cases, junit) = (folder.path().join("c.test.yaml"), folder.path().join("junit.xml"));
    let (cases, junit) = (cases.to_str().unwrap(), junit.to_str().unwrap());
    let one = "cases:\n  - name: \"sixty < & >\"\n    steps:\n      - { times: 61, send: { method: POST, url: \"http://a/\" }, expect: { allowed: 61 } }\n";
    std::fs::write(cases, one).unwrap();
    let config = "conf/examples/two-tier-site.yaml";
    let output = tollgate(&["test", "--config", config, "--junit", junit, cases]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    let expected = "line 4: allowed: expected 61, found 60 (limit writes, key client_ip, 60 of 60 spent, next at 61s)";
    assert!(told.contains(expected) && told.contains("0 of 1 cases pass"), "{told}");
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(
        xml.contains("tests=\"1\" failures=\"1\"") && xml.contains("sixty &lt; &amp; &gt;"),
        "{xml}"
    );
    // A case with several nodes tells which one it is.
    let nodes = "cases:\n  - name: nodes\n    steps:\n      - { send: { url: \"http://a/\" }, expect: { allowed: 1 } }\n      - { node: edge-2, send: { url: \"http://a/\" }, expect: { allowed: 2 } }\n";
    std::fs::write(cases, nodes).unwrap();
    let output = tollgate(&["test", "--config", config, "--junit", junit, cases]);
    for told in [text(&output.stdout), std::fs::read_to_string(junit).unwrap()] {
        assert!(told.contains("line 5, node edge-2: allowed: expected 2, found 1"), "{told}");
        assert!(!told.contains("line 4"), "{told}");
    }
    // What cannot be read is told with its place.
    std::fs::write(cases, "cases: [{ name: a, stps: [] }]\n").unwrap();
    let output = tollgate(&["test", "--config", config, cases]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean \"steps\"?"));
    let output = tollgate(&["test", "--config", "nowhere.yaml", cases]);
    assert_eq!(output.status.code(), Some(2));
}

/// The status says whether a log could be read; what is wrong with a command line is told by name, and nothing is counted twice.
#[test]
fn a_replay_ends_as_its_logs_allow() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(
        path("p.yaml"),
        "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\norigins: { s: { servers: [127.0.0.1:2] } }\n\
         limits: { l: { tier: exact, algorithm: fixed_window, rate: 2/1h, key: client_ip } }\n\
         routes: [{ name: s, limits: [l] }]\n",
    )
    .unwrap();
    let line = |second: u32| {
        format!(
            "192.0.2.1 - - [24/Nov/2026:08:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n"
        )
    };
    let lines: String = (0..5).map(line).collect();
    std::fs::write(path("log"), lines).unwrap();
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("log.xz"), b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F").unwrap();
    std::fs::write(path("junk"), [0xff, 0, 10, 7].repeat(500)).unwrap();
    let (policy, log) = (path("p.yaml"), path("log"));
    let replayed = tollgate(&["replay", "-c", &policy, "--json", &log]);
    let report: serde_json::Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(replayed.status.code(), Some(0));
    assert_eq!((&report["requests"], &report["refused"]), (&5.into(), &3.into()));
    for (words, status, told) in [
        (vec![path("empty")], 1, ""),
        (vec![path("junk")], 2, "no known format"),
        (vec![log.clone(), log.clone()], 2, "named twice"),
        (vec![log.clone(), path("log.xz")], 2, "xz -dc LOG | tollgate replay"),
        (vec![path("miss\u{1b}[2Jing")], 2, "miss\\u{1b}[2Jing"),
        (vec![path("missing")], 2, "No such file"),
        (vec!["--suggest".to_owned(), "x".to_owned(), log.clone()], 2, "0.1%"),
        (vec!["--format".to_owned(), "comon".to_owned(), log.clone()], 2, "common"),
        (vec!["--html".to_owned(), log.clone(), log.clone()], 2, "would replace"),
        (vec!["--html".to_owned(), policy.clone(), log.clone()], 2, "would replace"),
        (vec!["--html".to_owned(), path("log.xz"), log.clone()], 2, "no page of a replay"),
        (vec!["--html".to_owned(), path("no/page.html"), log.clone()], 2, "is no directory"),
        (vec!["--html".to_owned(), "-".to_owned(), log.clone()], 2, "--html needs a file"),
        (vec!["--from".to_owned(), "yesterday".to_owned(), log.clone()], 2, "--from: expected"),
        (vec!["--from".to_owned(), "2027-01-01T00:00:00Z".to_owned(), log.clone()], 1, ""),
        (vec!["--top".to_owned(), "2000".to_owned(), log.clone()], 2, "1..=1000"),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = tollgate(&[&["replay", "-c", &policy], words.as_slice()].concat());
        assert_eq!(ended.status.code(), Some(status), "{words:?}: {}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains(told), "{words:?}: {}", text(&ended.stderr));
    }
    // One file that no format reads keeps the others from nothing.
    let replayed = tollgate(&["replay", "-c", &policy, "--json", &path("junk"), &log]);
    let report: serde_json::Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!((replayed.status.code(), &report["requests"]), (Some(0), &5.into()));
    assert!(report["notes"].to_string().contains("junk: no known format"), "{report}");
    // Times without a zone are in that of --timezone.
    for (from, zone, requests) in [
        ("2026-11-24T08:00:03Z", "UTC", 2),
        ("2026-11-24T09:00:03+01:00", "UTC", 2),
        ("2026-11-24T03:00:03", "-05:00", 2),
        ("2026-11-24T09:00:04", "Europe/Berlin", 1),
    ] {
        let words = ["replay", "-c", &policy, "--json", "--from", from, "--timezone", zone, &log];
        let report: serde_json::Value = serde_json::from_slice(&tollgate(&words).stdout).unwrap();
        assert_eq!(report["requests"], requests, "{from} {zone}: {report}");
        assert!(report["notes"].to_string().contains("outside of --from"), "{report}");
    }
    let page = path("page.html");
    let written = tollgate(&["replay", "-c", &policy, "--html", &page, &log]);
    assert_eq!(written.status.code(), Some(0));
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!"));
    // A page is replaced by the next one.
    let written = tollgate(&["replay", "-c", &policy, "--html", &page, &log]);
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    assert!(std::fs::read_to_string(&log).unwrap().starts_with("192.0.2.1"));
}

#[test]
fn the_schema_is_printed_for_editors() {
    let printed = tollgate(&["schema"]);
    assert_eq!(printed.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert!(schema["properties"]["limits"].is_object());
}

#[test]
fn a_taken_port_is_told_and_no_panic() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let policy = format!(
        "version: 1\nlisteners: [{{ address: \"{address}\" }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\nroutes: [{{ name: s }}]\n"
    );
    std::fs::write(&file, policy).unwrap();
    let refused = tollgate(&["run", "--config", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(told.contains(&format!("cannot listen on {address}")), "{told}");
    assert!(!told.contains("panicked"), "{told}");
}

/// Ends the program when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `make run` starts: the printed commands do what the text beside them says.
#[tokio::test]
async fn the_demonstration_shows_both_tiers_and_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("demo")
        .env("TMPDIR", folder.path())
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let pid = child.id();
    let _running = Running(child);
    let told = || std::fs::read_to_string(&out).unwrap_or_default();
    let after = |word: &str| {
        let text = told();
        let rest = text.split(word).nth(1).unwrap_or("").trim_start().to_owned();
        rest.split_whitespace().next().unwrap_or("").to_owned()
    };
    assert!(eventually(Duration::from_secs(10), || async { told().contains("Ctrl-C") }).await);
    let (site, file) = (after("in front of it at"), after("The policy is"));
    let address = site.strip_prefix("http://").unwrap().to_owned();
    let up = eventually(Duration::from_secs(10), || async {
        tokio::net::TcpStream::connect(&address).await.is_ok()
    });
    assert!(up.await);
    let post = async || {
        let request = client().post(format!("{site}/api/webhook")).header("x-api-key", "demo");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!([post().await, post().await, post().await, post().await], [200, 200, 200, 429]);
    for path in ["/api/track", "/"] {
        assert_eq!(client().get(format!("{site}{path}")).send().await.unwrap().status(), 200);
    }
    let policy = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, policy.replace("rate: 3/1m", "rate: 6/1m")).unwrap();
    signal("HUP", pid);
    let raised = eventually(Duration::from_secs(5), || async { post().await == 200 });
    assert!(raised.await, "raising the limit helps at once");
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_tollgate")).with_file_name("examples").join(name)
}

#[tokio::test]
async fn the_engine_runs_inside_another_proxy() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let policy = "
version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
limits: { writes: { tier: exact, rate: 2/1h, key: client_ip } }
routes: [{ name: site, limits: [writes] }]
";
    std::fs::write(&file, policy).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let child = Command::new(example("embed"))
        .args([file.to_str().unwrap(), &listen, &origin.address.to_string()])
        .spawn()
        .expect("cargo test builds the examples");
    let _running = Running(child);
    let url = format!("http://{listen}/");
    let up = eventually(Duration::from_secs(10), || async {
        tokio::net::TcpStream::connect(&listen).await.is_ok()
    });
    assert!(up.await);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = client().get(&url).send().await.unwrap();
        assert!(answer.headers().contains_key("ratelimit"));
        answers.push(answer.status().as_u16());
    }
    assert_eq!(answers, [200, 200, 429]);
    assert_eq!(origin.count(), 2);
}

/// What tollgate is measured against does what it is compared for, and nothing else.
#[tokio::test]
async fn the_baseline_forwards_or_refuses() {
    let origin = Origin::start("site").await;
    for (more, status) in [(&[][..], 200), (&["--refuse"][..], 429)] {
        let listen = format!("127.0.0.1:{}", free_port());
        let child = Command::new(example("plain"))
            .args([&listen, &origin.address.to_string()])
            .args(more)
            .spawn()
            .expect("cargo test builds the examples");
        let _running = Running(child);
        let up = eventually(Duration::from_secs(10), || async {
            tokio::net::TcpStream::connect(&listen).await.is_ok()
        });
        assert!(up.await);
        let client = client();
        for _ in 0..2 {
            let answer = client.get(format!("http://{listen}/x")).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status);
            let closes = answer.headers().get("connection").is_some_and(|word| word == "close");
            assert!(!closes, "the connection is kept");
            assert!(!answer.headers().contains_key("ratelimit"));
        }
    }
    let seen = origin.seen();
    assert_eq!(seen.len(), 2, "what is refused is not forwarded");
    assert_eq!(seen[0].headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(seen[0].headers["x-request-id"].len(), 32);
}
